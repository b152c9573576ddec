//! Types, functions and assertions of the product, tests aside.

use crate::sources::SourceFile;
use std::collections::{BTreeMap, BTreeSet};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Attribute, FnArg, Item, Pat, Signature, Type, Visibility};

/// A struct, enum, union, trait or alias.
pub(crate) struct NamedType {
    pub(crate) name: String,
    /// Visible outside its crate, as far as its own visibility says.
    pub(crate) is_public: bool,
    /// Fields of a struct; 0 for others.
    pub(crate) fields: usize,
}

/// The items of all product files.
#[derive(Default)]
pub(crate) struct ProductItems {
    pub(crate) types: Vec<NamedType>,
    /// Functions that destructure a tuple parameter.
    pub(crate) tuples: Vec<String>,
    /// By crate and type: methods, and free functions whose first parameter is the type.
    pub(crate) methods: BTreeMap<(String, String), usize>,
    /// Fields of the parts of a server that are options.
    optional_parts: BTreeSet<String>,
    /// By name: uses of fields, and calls without arguments, in the crate `node`.
    uses: BTreeMap<String, usize>,
    /// By path: lines of test modules inside the file.
    test_lines: BTreeMap<String, usize>,
    /// By path.
    assertions: BTreeMap<String, usize>,
    /// Lines of all assertions.
    pub(crate) assertion_lines: usize,
}

impl ProductItems {
    pub(crate) fn of(sources: &[SourceFile]) -> ProductItems {
        let mut items = ProductItems::default();
        for source in sources.iter().filter(|source| source.is_product) {
            let mut visitor = Visitor { source, items: &mut items, owner: None };
            visitor.visit_file(&source.syntax);
        }
        items
    }

    /// Lines of a file without its test modules.
    pub(crate) fn product_lines(&self, source: &SourceFile) -> usize {
        let tests = self.test_lines.get(&source.path).copied().unwrap_or(0);
        source.text.lines().count().saturating_sub(tests)
    }

    /// Uses of the parts of a server that are options, so that each use asks for its presence.
    pub(crate) fn look_ups(&self) -> usize {
        self.optional_parts.iter().filter_map(|name| self.uses.get(name)).sum()
    }

    pub(crate) fn assertions_of(&self, source: &SourceFile) -> usize {
        self.assertions.get(&source.path).copied().unwrap_or(0)
    }
}

struct Visitor<'s> {
    source: &'s SourceFile,
    items: &'s mut ProductItems,
    /// The type whose methods are visited.
    owner: Option<String>,
}

impl Visitor<'_> {
    fn count_method(&mut self, of: String) {
        let key = (self.source.krate.clone(), of);
        *self.items.methods.entry(key).or_default() += 1;
    }

    fn note_type(&mut self, name: &syn::Ident, visibility: &Visibility, fields: usize) {
        let is_public = matches!(visibility, Visibility::Public(_));
        self.items.types.push(NamedType { name: name.to_string(), is_public, fields });
    }

    fn note_use(&mut self, name: &syn::Ident) {
        if self.source.krate == "node" {
            *self.items.uses.entry(name.to_string()).or_default() += 1;
        }
    }

    fn note_optional_parts(&mut self, server: &syn::ItemStruct) {
        if self.source.krate == "node" && SERVERS.iter().any(|name| server.ident == name) {
            let optional = server.fields.iter().filter(|field| is_option(&field.ty));
            let names = optional.filter_map(|field| field.ident.as_ref()).map(ToString::to_string);
            self.items.optional_parts.extend(names);
        }
    }

    fn note_function(&mut self, signature: &Signature) {
        let takes_tuple = signature.inputs.iter().any(|input| match input {
            FnArg::Typed(typed) => matches!(*typed.pat, Pat::Tuple(_)),
            FnArg::Receiver(_) => false,
        });
        if takes_tuple {
            self.items.tuples.push(format!("{}: {}", self.source.path, signature.ident));
        }
    }
}

/// Returns whether an item is compiled for tests only.
fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("test")
            || attribute.path().is_ident("cfg")
                && attribute.parse_args::<syn::Path>().is_ok_and(|path| path.is_ident("test"))
    })
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Const(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

/// The name of a type behind references.
fn type_name(of: &Type) -> Option<String> {
    match of {
        Type::Path(path) => path.path.segments.last().map(|segment| segment.ident.to_string()),
        Type::Reference(reference) => type_name(&reference.elem),
        _ => None,
    }
}

const ASSERTIONS: [&str; 6] =
    ["assert", "assert_eq", "assert_ne", "debug_assert", "debug_assert_eq", "debug_assert_ne"];

/// Types of the crate `node` whose fields are the parts of a server.
const SERVERS: [&str; 2] = ["Engine", "Node"];

fn is_option(of: &Type) -> bool {
    type_name(of).is_some_and(|name| name == "Option")
}

impl<'ast> Visit<'ast> for Visitor<'_> {
    fn visit_item(&mut self, item: &'ast Item) {
        if is_test(attributes(item)) {
            let span = item.span();
            let lines = span.end().line - span.start().line + 1;
            *self.items.test_lines.entry(self.source.path.clone()).or_default() += lines;
            return;
        }
        match item {
            Item::Struct(it) => {
                self.note_type(&it.ident, &it.vis, it.fields.len());
                self.note_optional_parts(it);
            }
            Item::Enum(it) => self.note_type(&it.ident, &it.vis, 0),
            Item::Union(it) => self.note_type(&it.ident, &it.vis, 0),
            Item::Trait(it) => self.note_type(&it.ident, &it.vis, 0),
            Item::Type(it) => self.note_type(&it.ident, &it.vis, 0),
            Item::Fn(it) => {
                self.note_function(&it.sig);
                let first = it.sig.inputs.first();
                if let Some(FnArg::Typed(typed)) = first
                    && let Some(name) = type_name(&typed.ty)
                {
                    self.count_method(name);
                }
            }
            _ => {}
        }
        visit::visit_item(self, item);
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        let before = self.owner.take();
        self.owner = item.trait_.is_none().then(|| type_name(&item.self_ty)).flatten();
        visit::visit_item_impl(self, item);
        self.owner = before;
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        if is_test(&function.attrs) {
            return;
        }
        if let Some(owner) = self.owner.clone() {
            self.count_method(owner);
        }
        self.note_function(&function.sig);
        visit::visit_impl_item_fn(self, function);
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        if call.path.segments.last().is_some_and(|it| ASSERTIONS.iter().any(|one| it.ident == one))
        {
            let span = call.span();
            *self.items.assertions.entry(self.source.path.clone()).or_default() += 1;
            self.items.assertion_lines += span.end().line - span.start().line + 1;
        }
        visit::visit_macro(self, call);
    }

    fn visit_expr_method_call(&mut self, call: &'ast syn::ExprMethodCall) {
        if call.args.is_empty() {
            self.note_use(&call.method);
        }
        visit::visit_expr_method_call(self, call);
    }

    fn visit_expr_field(&mut self, field: &'ast syn::ExprField) {
        if let syn::Member::Named(name) = &field.member {
            self.note_use(name);
        }
        visit::visit_expr_field(self, field);
    }
}
