//! Measures the structure of the workspace: sizes of crates and types, names that are defined more
//! than once, circles of imports, assertions.
//!
//! `cargo run -p measure` prints the table, and ends with status 1 if a measure is above its limit.
//! A limit is a value that has been reached: a change may lower it, and must not exceed it.

#![warn(clippy::unwrap_used)]

mod circles;
mod items;
mod sources;

use anyhow::{Context, Result};
use items::ProductItems;
use sources::{SourceFile, sources};
use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::PathBuf;
use std::process::ExitCode;

fn main() -> Result<ExitCode> {
    let root = match std::env::args().nth(1) {
        Some(root) => PathBuf::from(root),
        None => PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")),
    };
    let sources = sources(&root).context("cannot read the sources of the workspace")?;
    let items = ProductItems::of(&sources);
    let mut table = MeasureTable::new();
    comments(&sources, &mut table);
    names(&items, &mut table);
    sizes(&sources, &items, &mut table);
    assertions(&sources, &items, &mut table);
    let circles = circles::circles(&sources);
    table.row("circles of files", circles.len(), 0, 0);
    for circle in &circles {
        table.note(circle.join(" <-> "));
    }
    table.row("look-ups of optional parts of a server", items.look_ups(), 0, 0);
    print!("{table}");
    Ok(if table.is_within_limits { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The measures, in the order in which they are printed.
struct MeasureTable {
    lines: Vec<String>,
    is_within_limits: bool,
}

impl MeasureTable {
    fn new() -> MeasureTable {
        let head = format!("{:<58} {:>8} {:>8} {:>8}", "measure", "value", "limit", "target");
        MeasureTable { lines: vec![head], is_within_limits: true }
    }

    /// Adds a measure that must not exceed `limit`, and is to come down to `target`.
    fn row(&mut self, measure: &str, value: usize, limit: usize, target: usize) {
        let verdict = if value > limit { "  above its limit" } else { "" };
        self.is_within_limits &= value <= limit;
        self.lines.push(format!("{measure:<58} {value:>8} {limit:>8} {target:>8}{verdict}"));
    }

    fn note(&mut self, text: impl Display) {
        self.lines.push(format!("    {text}"));
    }
}

impl Display for MeasureTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.lines.iter().try_for_each(|line| writeln!(f, "{line}"))
    }
}

/// Words that open a comment without a subject.
const OPENERS: [&str; 6] = ["What", "Whether", "Who", "Whose", "Of", "So"];

fn comments(sources: &[SourceFile], table: &mut MeasureTable) {
    let text = |line: &str| {
        let line = line.trim_start();
        let comment = line.strip_prefix("//")?;
        Some(comment.trim_start_matches(['/', '!']).trim_start().to_owned())
    };
    let product = sources.iter().filter(|source| source.is_product);
    let comments = product.flat_map(|source| source.text.lines().filter_map(text));
    let comments: Vec<String> = comments.collect();
    let opens_badly = |comment: &&String| {
        let word = comment.split(|c: char| !c.is_alphanumeric()).next();
        word.is_some_and(|word| OPENERS.contains(&word))
    };
    let openers = comments.iter().filter(opens_badly).count();
    table.row("comment lines that open with What, Whether, Who, ...", openers, 0, 60);
    let pointing = comments.iter().filter(|text| text.contains("See the module's text")).count();
    table.row("\"See the module's text\"", pointing, 0, 0);
}

/// The parameter of all command functions, which are not functions on it.
const PARAMETER: &str = "Call";

fn names(items: &ProductItems, table: &mut MeasureTable) {
    let repeated = |public_only: bool| {
        let mut places: BTreeMap<&str, usize> = BTreeMap::new();
        for one in items.types.iter().filter(|one| one.is_public || !public_only) {
            *places.entry(&one.name).or_default() += 1;
        }
        places.values().filter(|count| **count > 1).count()
    };
    table.row("type names defined more than once", repeated(false), 4, 60);
    table.row("public type names defined more than once", repeated(true), 0, 0);
    table.row("functions that take destructured tuples", items.tuples.len(), 0, 0);
    let methods = items.methods.iter().filter(|((_, name), _)| name != PARAMETER);
    let mut methods: Vec<(&(String, String), &usize)> = methods.collect();
    methods.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
    let fields = items.types.iter().max_by_key(|one| one.fields);
    if let Some((_, count)) = methods.first() {
        let measure = "methods of the largest type, free functions on it included";
        table.row(measure, **count, 69, 60);
    }
    for ((krate, name), count) in methods.iter().take(6) {
        table.note(format!("{krate}::{name} {count}"));
    }
    if let Some(largest) = fields {
        table.row("fields of the largest type", largest.fields, 20, 20);
        table.note(&largest.name);
    }
}

/// Lines of `src` without assertions when the measures were introduced, this crate included.
const LINES_AT_START: usize = 78_222;

fn sizes(sources: &[SourceFile], items: &ProductItems, table: &mut MeasureTable) {
    let mut crates: BTreeMap<&str, usize> = BTreeMap::new();
    for source in sources.iter().filter(|source| source.is_product) {
        *crates.entry(&source.krate).or_default() += items.product_lines(source);
    }
    let largest = crates.iter().max_by_key(|(_, lines)| **lines);
    if let Some((name, lines)) = largest {
        let measure = format!("lines of the largest crate ({name})");
        table.row(&measure, *lines, 23_300, 12_000);
    }
    let lines: usize = crates.values().sum();
    let target = LINES_AT_START - 2_500;
    table.row("lines of src without assertions", lines - items.assertion_lines, 127_500, target);
}

/// Crates that should assert densely, and how many lines they have for each assertion at most.
const ASSERTING: [(&str, usize); 4] =
    [("store", 80), ("protocols", 52), ("coordinator", 88), ("node", 104)];

fn assertions(sources: &[SourceFile], items: &ProductItems, table: &mut MeasureTable) {
    for (krate, limit) in ASSERTING {
        let of_crate = || sources.iter().filter(|it| it.is_product && it.krate == krate);
        let lines: usize = of_crate().map(|source| items.product_lines(source)).sum();
        let count: usize = of_crate().map(|source| items.assertions_of(source)).sum();
        if lines > 0 {
            let measure = format!("lines of {krate} for each assertion");
            table.row(&measure, lines / count.max(1), limit, 100);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(path: &str, text: &str) -> SourceFile {
        let syntax = syn::parse_file(text).expect("Rust");
        let inside = Some(PathBuf::from(path));
        let (krate, path, text) = ("one".into(), format!("src/{path}"), text.into());
        SourceFile { krate, path, inside, is_product: true, text, syntax }
    }

    #[test]
    fn test_modules_are_no_lines_of_the_product_and_define_no_types() {
        let text = "pub struct A;\n#[cfg(test)]\nmod tests {\n    struct A;\n}\nfn f() {}\n";
        let sources = [source("lib.rs", text)];
        let items = ProductItems::of(&sources);
        assert_eq!((items.product_lines(&sources[0]), items.types.len()), (2, 1));
        assert!(items.types[0].is_public);
    }

    #[test]
    fn functions_on_a_type_count_like_its_methods() {
        let text = "struct A { a: u8 }\nimpl A { fn a(&self) {} }\nimpl Drop for A { fn drop(&mut \
                    self) {} }\nfn b(a: &mut A, (c, d): (u8, u8)) { assert!(c < d); }\n";
        let sources = [source("lib.rs", text)];
        let items = ProductItems::of(&sources);
        assert_eq!(items.methods[&("one".into(), "A".into())], 2);
        assert_eq!((items.tuples.len(), items.assertions_of(&sources[0])), (1, 1));
        assert_eq!(items.types[0].fields, 1);
    }

    #[test]
    fn a_circle_is_found_through_a_name_that_is_exported_elsewhere() {
        let circles_of = |third: &str| {
            let root = "mod a;\nmod b;\nmod c;\npub use b::*;\nuse a::A;\n";
            circles::circles(&[
                source("lib.rs", root),
                source("a.rs", "use crate::B;\npub struct A(B);\n"),
                source("b.rs", "use super::c::C;\npub struct B(C);\n"),
                source("c.rs", third),
            ])
        };
        assert_eq!(circles_of("pub struct C;\n"), Vec::<Vec<String>>::new());
        let circle = ["src/a.rs", "src/b.rs", "src/c.rs"].map(str::to_owned).to_vec();
        assert_eq!(circles_of("use crate::a::A;\npub struct C(A);\n"), vec![circle]);
    }
}
