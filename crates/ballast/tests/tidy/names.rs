//! Names that documents quote from the code: types and their members, modules, files, scripts and
//! settings. A renamed one makes a document lie, and no compiler reads documents.

use super::{Source, documents, none, read, sources, workspace};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// Quoted names that are not ours: of the language, of the system, and of other systems.
const FOREIGN: [&str; 14] = [
    "ClusterPipeline",
    "Display",
    "JedisMovedDataException",
    "MaxRedirects",
    "Option",
    "RapidSecrets::seed",
    "Vec",
    "bbr_main",
    "clear_page",
    "epoll_pwait",
    "finish_task_switch",
    "tcp_recvmsg",
    "tcp_sendmsg",
    "tcp_sendmsg_locked",
];

/// The names that the code defines.
#[derive(Default)]
struct DefinedNames {
    /// Types, variants, functions, constants, fields and modules, with the files that define them.
    files: BTreeMap<String, BTreeSet<String>>,
    /// Variants, methods, constants and fields of each type.
    members: BTreeMap<String, BTreeSet<String>>,
    /// Paths of all files and folders of the workspace, each with a leading slash.
    paths: BTreeSet<String>,
    /// Every word of the code, strings included.
    words: BTreeSet<String>,
}

#[test]
fn documents_quote_names_that_the_code_defines() {
    let mut names = DefinedNames::of(&sources());
    ["crates", "docs", "fuzz", "tests"]
        .iter()
        .for_each(|folder| names.add_folder(Path::new(folder)));
    let mut wrong = Vec::new();
    for path in documents() {
        for (number, quoted) in quotations(&read(&path)) {
            if !FOREIGN.contains(&&*quoted) && !names.know(&quoted) {
                wrong.push(format!("{path}:{number}: {quoted}"));
            }
        }
    }
    none(&wrong);
}

#[test]
fn the_glossary_defines_every_word_once() {
    let text = read("docs/glossary.md");
    let rows = text.lines().filter_map(|line| line.strip_prefix("| ")?.split_once(" | "));
    let words: Vec<String> = rows.skip(1).map(|(word, _)| word.to_lowercase()).collect();
    assert!(words.len() > 50, "the glossary has a table of words");
    let wrong: Vec<_> = words.windows(2).filter(|pair| pair[0] >= pair[1]).collect();
    none(&wrong);
}

/// Tests the check itself.
#[test]
fn the_check_of_quoted_names_sees_what_it_looks_for() {
    let text = "//! A file.\npub struct Engine {\n    node: u8,\n}\nimpl Engine {\n    pub fn wait\
                (&self) {}\n}\nenum Stage {\n    Open { at: u8 },\n}\n";
    let source = Source::new("crates/node/src/engine.rs".into(), text.into());
    let mut names = DefinedNames::of(&[source]);
    names.add_path(Path::new("crates/node/src/engine.rs"));
    for known in [
        "Engine",
        "Engine::wait",
        "Engine::{wait, node}",
        "node::Engine",
        "engine::Engine::wait",
        "Stage::Open",
        "Open { at }",
        "engine.rs",
        "src/engine.rs",
        "node/src",
        "SET key",
        "--memory 4gb",
    ] {
        assert!(names.know(known), "{known}");
    }
    for unknown in [
        "Engines",
        "Engine::waits",
        "Engine::{wait, nodes}",
        "store::Engine",
        "Stage::Shut",
        "engines.rs",
        "gine.rs",
        "node/engine",
        "no_such_word",
    ] {
        assert!(!names.know(unknown), "{unknown}");
    }
    let text = "a `b` c\n```\n`d`\n```\n`e f` `g`";
    let quoted: Vec<_> = quotations(text).into_iter().map(|(_, quoted)| quoted).collect();
    assert_eq!(quoted, ["b", "e f", "g"]);
}

impl DefinedNames {
    fn of(sources: &[Source]) -> DefinedNames {
        let mut names = DefinedNames::default();
        for source in sources {
            names.add_source(source);
            let is_inside = |c: char| c.is_alphanumeric() || c == '_';
            let words = source.all_code().flat_map(|(_, line)| line.split(|c| !is_inside(c)));
            names.words.extend(words.map(str::to_owned));
        }
        names
    }

    /// Adds all files and folders below a folder.
    fn add_folder(&mut self, folder: &Path) {
        let entries = fs::read_dir(workspace().join(folder)).into_iter().flatten().flatten();
        for path in entries.map(|entry| folder.join(entry.file_name())) {
            if workspace().join(&path).is_dir() {
                self.add_folder(&path);
            } else {
                self.add_path(&path);
            }
        }
    }

    /// Adds a file and its folders.
    fn add_path(&mut self, path: &Path) {
        let all = path.ancestors().filter(|one| *one != Path::new(""));
        self.paths.extend(all.map(|one| format!("/{}", one.display())));
    }

    /// Adds the items of a file. Formatted code shows by its indentation what belongs to what.
    fn add_source(&mut self, source: &Source) {
        let mut owner = None;
        for (_, line) in source.all_code() {
            let code = line.trim_start();
            if line.len() == code.len() && !code.is_empty() {
                owner = owner_of(code);
            }
            let item = item_of(code);
            let member = item.or_else(|| member_of(line).filter(|_| owner.is_some()));
            let Some(name) = member else { continue };
            self.files.entry(name.to_owned()).or_default().insert(source.path.clone());
            if let Some(owner) = owner.filter(|_| line.len() > code.len()) {
                self.members.entry(owner.to_owned()).or_default().insert(name.to_owned());
            }
        }
    }

    /// Returns whether the quoted text names nothing in the code, or only existing things.
    fn know(&self, quoted: &str) -> bool {
        let first = quoted.split([' ', '(', '<']).next().unwrap_or_default();
        if let Some((before, rest)) = quoted.split_once('{')
            && let Some((group, after)) = rest.split_once('}')
            && !before.ends_with(' ')
        {
            let one = |name: &str| self.know(&format!("{before}{}{after}", name.trim()));
            return group.split(',').all(one);
        }
        let is_name = |name: &str| {
            name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
                && name.starts_with(|c: char| c.is_ascii_alphabetic())
        };
        let is_path = |c: char| c.is_ascii_alphanumeric() || "/_-.".contains(c);
        if first.contains("::") {
            let parts: Vec<&str> = first.split("::").collect();
            !parts.iter().all(|part| is_name(part))
                || parts.windows(2).all(|pair| self.know_member(pair[0], pair[1]))
        } else if first.ends_with(".rs")
            || first.trim_matches('/').contains('/')
                && first.chars().all(|c| c.is_ascii_lowercase() || "/_".contains(c))
        {
            let end = format!("/{}", first.trim_matches('/'));
            !first.chars().all(is_path) || self.paths.iter().any(|path| path.ends_with(&end))
        } else if is_name(first) && is_type_name(first) {
            self.files.contains_key(first)
        } else if is_name(first) && first.contains('_') && first.to_lowercase() == first {
            // A group of scripts may be quoted by the beginning of their names.
            let is_file = |path: &String| {
                path.ends_with(&format!("/{first}"))
                    || ['.', '_'].iter().any(|end| path.contains(&format!("/{first}{end}")))
            };
            self.words.contains(first) || self.paths.iter().any(is_file)
        } else {
            true
        }
    }

    /// Returns whether a type, module or crate has this member.
    fn know_member(&self, owner: &str, name: &str) -> bool {
        if is_type_name(owner) {
            return self.members.get(owner).is_some_and(|members| members.contains(name));
        }
        let is_in = |path: &String| {
            path.contains(&format!("/{owner}/")) || path.ends_with(&format!("/{owner}.rs"))
        };
        let is_module =
            self.paths.iter().any(|path| is_in(path) && path.ends_with(&format!("/{name}.rs")));
        is_module
            || self.paths.iter().any(|path| path.ends_with(&format!("/{owner}/{name}")))
            || self.files.get(name).is_some_and(|files| files.iter().any(is_in))
    }
}

/// Returns whether a name has the form of a type or variant.
fn is_type_name(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_uppercase())
        && name.contains(|c: char| c.is_ascii_lowercase())
}

/// Returns the type to which the indented lines after this line belong.
fn owner_of(code: &str) -> Option<&str> {
    let code = without_visibility(code);
    if let Some(header) = code.strip_prefix("impl") {
        let header = header.split(" where").next().unwrap_or(header);
        let target = header.rsplit_once(" for ").map_or(header, |(_, target)| target);
        let target = match target.strip_prefix('<') {
            Some(parameters) => parameters.split_once("> ")?.1,
            None => target,
        };
        return leading_name(target.trim_start().rsplit("::").next()?);
    }
    // The body of a macro may define types.
    if code.ends_with("!(") || code.ends_with("! {") {
        return leading_name(code);
    }
    let (keyword, rest) = code.split_once(' ')?;
    ["struct", "enum", "trait", "union"].contains(&keyword).then(|| leading_name(rest)).flatten()
}

/// Returns the name of the item that this line defines.
fn item_of(code: &str) -> Option<&str> {
    let mut words = without_visibility(code)
        .split(' ')
        .skip_while(|word| ["async", "unsafe", "extern", "\"C\""].contains(word));
    let keyword = words.next()?;
    let mut name = words.next()?;
    if keyword == "const" && name == "fn" {
        name = words.next()?;
    }
    let items = [
        "struct",
        "enum",
        "trait",
        "union",
        "type",
        "const",
        "static",
        "fn",
        "mod",
        "macro_rules!",
    ];
    items.contains(&keyword).then(|| leading_name(name)).flatten()
}

/// Returns the name of the variant or field that this line of a type's body defines.
fn member_of(line: &str) -> Option<&str> {
    let code = line.strip_prefix("    ").filter(|code| !code.starts_with(' '))?;
    let code = without_visibility(code);
    let name = leading_name(code)?;
    let behind = &code[name.len()..];
    let is_member = [":", ",", " {", "(", " ="].iter().any(|end| behind.starts_with(end));
    is_member.then_some(name)
}

fn without_visibility(code: &str) -> &str {
    match code.strip_prefix("pub") {
        Some(rest) if rest.starts_with('(') => rest.split_once(") ").map_or(code, |(_, rest)| rest),
        Some(rest) => rest.trim_start(),
        None => code,
    }
}

/// Returns the identifier at the beginning of a text.
fn leading_name(text: &str) -> Option<&str> {
    let end = text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(text.len());
    (end > 0).then(|| &text[..end])
}

/// Returns the quoted texts of a document outside of code blocks, with their line numbers.
fn quotations(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut is_block = false;
    for (at, line) in text.lines().enumerate() {
        let is_fence = line.trim_start().starts_with("```");
        is_block ^= is_fence;
        if !is_block && !is_fence {
            let quoted = line.split('`').skip(1).step_by(2);
            found.extend(quoted.map(|quoted| (at + 1, quoted.to_owned())));
        }
    }
    found
}
