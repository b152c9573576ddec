//! Circles of imports: files of one crate each of which depends on the others.
//!
//! A file depends on the file that defines what it imports, wherever the name was re-exported on
//! the way. Imports between a module and its own parts do not count. The parts of a circle are a
//! strongly connected component of that graph.

use crate::sources::SourceFile;
use std::collections::{BTreeMap, BTreeSet};
use syn::{Item, UseTree};

/// Path of a module, from the root of its crate.
type Module = Vec<String>;

/// An imported path, as written.
type Import = Vec<String>;

/// A module of one crate.
#[derive(Debug, Default)]
struct ModuleScope {
    file: String,
    children: BTreeSet<String>,
    items: BTreeSet<String>,
    /// Imported names, and their paths.
    imports: BTreeMap<String, Import>,
    /// Modules all of whose names are imported.
    globs: Vec<Import>,
}

/// Returns the paths of each circle's files.
pub(crate) fn circles(sources: &[SourceFile]) -> Vec<Vec<String>> {
    let crates: BTreeSet<&str> = sources.iter().map(|source| source.krate.as_str()).collect();
    let mut circles = Vec::new();
    for krate in crates {
        let of_crate = sources.iter().filter(|source| source.is_product && source.krate == krate);
        let scopes = scopes(of_crate);
        circles.extend(components(&graph(&scopes)));
    }
    circles
}

fn scopes<'s>(sources: impl Iterator<Item = &'s SourceFile>) -> BTreeMap<Module, ModuleScope> {
    let mut scopes = BTreeMap::new();
    for source in sources {
        let Some(inside) = &source.inside else { continue };
        let mut module: Module =
            inside.with_extension("").iter().map(|part| part.to_string_lossy().into()).collect();
        if module.last().is_some_and(|last| ["lib", "main", "mod"].contains(&last.as_str())) {
            module.pop();
        }
        add_scope(&mut scopes, &module, &source.path, &source.syntax.items);
    }
    scopes
}

fn add_scope(
    scopes: &mut BTreeMap<Module, ModuleScope>,
    module: &Module,
    file: &str,
    items: &[Item],
) {
    let mut scope = ModuleScope { file: file.to_owned(), ..ModuleScope::default() };
    for item in items {
        let name = match item {
            Item::Const(it) => it.ident.to_string(),
            Item::Enum(it) => it.ident.to_string(),
            Item::Fn(it) => it.sig.ident.to_string(),
            Item::Static(it) => it.ident.to_string(),
            Item::Struct(it) => it.ident.to_string(),
            Item::Trait(it) => it.ident.to_string(),
            Item::Type(it) => it.ident.to_string(),
            Item::Union(it) => it.ident.to_string(),
            Item::Use(it) => {
                add_imports(&it.tree, &mut Vec::new(), &mut scope);
                continue;
            }
            Item::Mod(it) => {
                scope.children.insert(it.ident.to_string());
                let is_test = it.ident == "tests" || it.ident == "naive";
                if let (Some((_, items)), false) = (&it.content, is_test) {
                    let child: Module =
                        module.iter().cloned().chain([it.ident.to_string()]).collect();
                    add_scope(scopes, &child, file, items);
                }
                continue;
            }
            _ => continue,
        };
        scope.items.insert(name);
    }
    scopes.insert(module.clone(), scope);
}

fn add_imports(tree: &UseTree, path: &mut Import, scope: &mut ModuleScope) {
    match tree {
        UseTree::Path(it) => {
            path.push(it.ident.to_string());
            add_imports(&it.tree, path, scope);
            path.pop();
        }
        UseTree::Name(it) => {
            let name = it.ident.to_string();
            let mut full = path.clone();
            let known = if name == "self" { full.last().cloned() } else { Some(name.clone()) };
            if name != "self" {
                full.push(name);
            }
            scope.imports.extend(known.map(|known| (known, full)));
        }
        UseTree::Rename(it) => {
            let full = path.iter().cloned().chain([it.ident.to_string()]).collect();
            scope.imports.insert(it.rename.to_string(), full);
        }
        UseTree::Glob(_) => scope.globs.push(path.clone()),
        UseTree::Group(it) => {
            it.items.iter().for_each(|tree| add_imports(tree, path, scope));
        }
    }
}

/// Re-exports followed for one name: more would be a circle of re-exports.
const DEPTH_MAX: usize = 16;

/// The file that defines what a path in a module names.
fn defining_file<'s>(
    scopes: &'s BTreeMap<Module, ModuleScope>,
    from: &Module,
    path: &[String],
    depth: usize,
) -> Option<&'s str> {
    if depth == DEPTH_MAX {
        return None;
    }
    let mut module = from.clone();
    for (position, segment) in path.iter().enumerate() {
        let scope = scopes.get(&module)?;
        let rest = path.get(position + 1..).unwrap_or_default();
        match segment.as_str() {
            "crate" => module.clear(),
            "self" => {}
            "super" => drop(module.pop()?),
            _ if scope.children.contains(segment) => {
                let child: Module = module.iter().cloned().chain([segment.clone()]).collect();
                if rest.is_empty() {
                    return None;
                }
                module = child;
            }
            _ if scope.items.contains(segment) => return Some(&scope.file),
            _ => {
                let prefixes = scope.imports.get(segment).cloned().into_iter().chain(
                    scope.globs.iter().map(|glob| glob.iter().chain([segment]).cloned().collect()),
                );
                let full =
                    prefixes.map(|prefix: Import| prefix.iter().chain(rest).cloned().collect());
                let mut found = full
                    .filter(|full: &Import| full != path)
                    .filter_map(|full| defining_file(scopes, &module, &full, depth + 1));
                return found.next();
            }
        }
    }
    None
}

/// Returns whether one file is the other, or holds the module that contains the other: a module
/// and its parts depend on each other by design.
fn is_kin(one: &str, other: &str) -> bool {
    let inside = |file: &str| {
        let file = file.trim_end_matches(".rs");
        let root = ["/mod", "/lib", "/main"].iter().find_map(|it| file.strip_suffix(it));
        format!("{}/", root.unwrap_or(file))
    };
    let (one, other) = (inside(one), inside(other));
    one.starts_with(&other) || other.starts_with(&one)
}

/// By file: the files that define what it imports.
fn graph(scopes: &BTreeMap<Module, ModuleScope>) -> BTreeMap<&str, BTreeSet<&str>> {
    let mut graph: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (module, scope) in scopes {
        for path in scope.imports.values() {
            if let Some(file) = defining_file(scopes, module, path, 0)
                && !is_kin(&scope.file, file)
            {
                graph.entry(&scope.file).or_default().insert(file);
            }
        }
    }
    graph
}

/// The strongly connected components of more than one file.
fn components(graph: &BTreeMap<&str, BTreeSet<&str>>) -> Vec<Vec<String>> {
    let reached: BTreeMap<&str, BTreeSet<&str>> =
        graph.keys().map(|file| (*file, reachable(graph, file))).collect();
    let mut found: BTreeSet<Vec<String>> = BTreeSet::new();
    for (file, others) in &reached {
        let returns = |other: &&&str| reached.get(**other).is_some_and(|it| it.contains(file));
        let mut circle: BTreeSet<&str> = others.iter().filter(returns).copied().collect();
        circle.insert(file);
        if circle.len() > 1 {
            found.insert(circle.into_iter().map(str::to_owned).collect());
        }
    }
    found.into_iter().collect()
}

fn reachable<'g>(graph: &BTreeMap<&'g str, BTreeSet<&'g str>>, from: &str) -> BTreeSet<&'g str> {
    let mut reached = BTreeSet::new();
    let mut next: Vec<&str> = vec![from];
    while let Some(file) = next.pop() {
        for other in graph.get(file).into_iter().flatten() {
            if reached.insert(*other) {
                next.push(other);
            }
        }
    }
    reached
}
