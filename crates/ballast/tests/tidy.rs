//! Code rules that neither the compiler nor clippy can check: dependencies between crates, places
//! of `unsafe`, lengths of files and functions, messages of panics, and names in documents.
//!
//! The lists below are the rules. `docs/architecture.md` gives the reasons.

#[path = "tidy/names.rs"]
mod names;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The workspace crates that each crate may use. Tests and examples may use more.
const MAY_USE: [(&str, &[&str]); 24] = [
    ("types", &[]),
    ("planted", &[]),
    ("measure", &[]),
    ("wire", &["types"]),
    ("store", &["types", "planted", "wire"]),
    ("backup", &["types", "wire"]),
    ("resp", &[]),
    ("values", &["types"]),
    ("client-core", &["types", "planted", "resp"]),
    ("client", &["types", "resp", "client-core"]),
    ("protocols", &["types", "planted", "wire"]),
    ("handshake", &["types", "wire"]),
    ("links", &["types", "wire", "handshake"]),
    ("runtime", &["types"]),
    ("node", &["types", "planted", "wire", "store", "values", "backup", "protocols"]),
    ("settings", &["types"]),
    ("front", &["types", "planted", "wire", "store", "resp", "values", "node", "settings"]),
    ("bus", &["types", "wire", "handshake", "links", "node"]),
    (
        "server",
        &["types", "wire", "backup", "handshake", "links", "bus", "runtime", "node", "front"],
    ),
    ("coordinator", &["types", "planted", "wire", "protocols"]),
    ("coordinator-server", &["types", "wire", "handshake", "links", "coordinator"]),
    (
        "sim",
        &[
            "types",
            "planted",
            "wire",
            "store",
            "backup",
            "resp",
            "values",
            "protocols",
            "handshake",
            "links",
            "bus",
            "node",
            "front",
            "coordinator",
            "client-core",
        ],
    ),
    ("bench", &["types", "resp"]),
    (
        "ballast",
        &[
            "types",
            "wire",
            "store",
            "backup",
            "resp",
            "protocols",
            "handshake",
            "links",
            "runtime",
            "node",
            "settings",
            "front",
            "server",
            "coordinator",
            "coordinator-server",
            "sim",
            "bench",
        ],
    ),
];

/// External crates that access the operating system, and the crates that may use them.
const MEETS_THE_SYSTEM: [(&str, &[&str]); 8] = [
    ("getrandom", &["handshake"]),
    ("io-uring", &["runtime"]),
    ("libc", &[]),
    ("mio", &[]),
    ("nix", &["ballast"]),
    ("redb", &["coordinator-server"]),
    // `store` only maps memory with it.
    ("rustix", &["store", "runtime", "bench", "ballast"]),
    ("tokio", &["client", "server", "coordinator-server", "bench", "ballast"]),
];

/// Crates that the simulator must not link, and the exceptions: crates through which it may.
const NOT_IN_THE_SIMULATOR: [(&str, &[&str]); 6] = [
    ("io-uring", &[]),
    ("mio", &[]),
    ("redb", &[]),
    ("runtime", &[]),
    // The memory of the log is mapped.
    ("rustix", &["store"]),
    ("tokio", &[]),
];

/// The only files that may contain `unsafe`. Each justifies every block, and has a naive twin.
const UNSAFE_FILES: [&str; 6] = [
    "crates/runtime/src/descriptors.rs",
    "crates/runtime/src/driver/ring.rs",
    "crates/store/src/index/bucket.rs",
    "crates/store/src/log/arena.rs",
    "crates/store/src/log/chunks.rs",
    "crates/store/src/log/segment.rs",
];

/// Most lines of a file, and of a function, without their tests.
const FILE_LINES_MAX: usize = 1_000;
const FUNCTION_LINES_MAX: usize = 70;

#[test]
fn crates_use_only_what_the_architecture_allows() {
    let allowed: BTreeMap<&str, &[&str]> = MAY_USE.into();
    let ours: BTreeSet<&str> = allowed.keys().copied().collect();
    let mut wrong = Vec::new();
    for (name, uses) in dependencies() {
        let Some(allowed) = allowed.get(&*name) else {
            wrong.push(format!("crate {name} has no line in the table of dependencies"));
            continue;
        };
        for used in &uses {
            if ours.contains(&**used) && !allowed.contains(&&**used) {
                wrong.push(format!("{name} must not use {used}"));
            }
            let system = MEETS_THE_SYSTEM.iter().find(|(meets, _)| meets == used);
            if system.is_some_and(|(_, may)| !may.contains(&&*name)) {
                wrong.push(format!("{name} must not meet the operating system through {used}"));
            }
        }
    }
    none(&wrong);
}

/// Code that cannot name a socket, a file or a timer can wait for none, so it behaves the same in
/// every run with the same seed.
#[test]
fn the_simulator_links_no_runtime() {
    let links = links_of("sim");
    let is_wrong = |user: &str, used: &str| {
        let rule = NOT_IN_THE_SIMULATOR.iter().find(|(forbidden, _)| *forbidden == used);
        rule.is_some_and(|(_, exceptions)| !exceptions.contains(&user))
    };
    let wrong = links.iter().filter(|(user, used)| is_wrong(user, used));
    none(&wrong.map(|(user, used)| format!("{user} uses {used}")).collect::<Vec<_>>());
}

/// Otherwise a production server could contain planted bugs.
#[test]
fn only_the_simulator_can_plant_bugs_and_only_if_it_is_asked_to() {
    let mut wrong = Vec::new();
    for (name, _) in dependencies() {
        let manifest = read(&format!("crates/{name}/Cargo.toml"));
        let turns_on = |line: &&str| line.contains("planted/on") || line.contains("\"plant\"");
        let expected: &[&str] = match &*name {
            // The two tests of planted bugs are built only with that feature.
            "sim" => &[
                r#"plant = ["planted/on"]"#,
                r#"required-features = ["plant"]"#,
                r#"required-features = ["plant"]"#,
            ],
            _ => &[],
        };
        let found: Vec<&str> = manifest.lines().filter(turns_on).collect();
        if found != expected {
            wrong.push(format!("crates/{name}/Cargo.toml turns planted bugs on: {found:?}"));
        }
    }
    none(&wrong);
}

/// A lint of the workspace denies unsafe code, except in files that lift it.
#[test]
fn unsafe_code_is_permitted_only_in_the_listed_files() {
    let lifts = |line: &str| {
        ["allow", "expect"].iter().any(|way| line.contains(&format!("[{way}(unsafe_code")))
    };
    let sources = sources();
    let lifting = sources
        .iter()
        .filter(|source| !source.is_test && source.all_code().any(|(_, line)| lifts(line)));
    let found: Vec<&str> = lifting.map(|source| &*source.path).collect();
    assert_eq!(found, UNSAFE_FILES);
}

#[test]
fn the_architecture_names_every_file_with_unsafe_code() {
    let text = read("docs/architecture.md");
    let missing: Vec<_> = UNSAFE_FILES.iter().filter(|file| !text.contains(**file)).collect();
    none(&missing);
}

#[test]
fn files_and_functions_stay_short_enough_to_be_read() {
    let mut wrong = Vec::new();
    for source in sources().iter().filter(|source| !source.is_test) {
        let lines = source.code_lines;
        if lines > FILE_LINES_MAX {
            wrong.push(format!("{} has {lines} lines without its tests", source.path));
        }
        for (number, length) in source.functions() {
            if length > FUNCTION_LINES_MAX {
                wrong.push(format!("{}:{number} is a function of {length} lines", source.path));
            }
        }
    }
    none(&wrong);
}

#[test]
fn every_file_begins_by_saying_what_it_is() {
    let silent = sources().into_iter().filter(|source| !source.is_test);
    let silent = silent.filter(|source| !source.text.starts_with("//!")).map(|source| source.path);
    none(&silent.collect::<Vec<_>>());
}

/// `expect` is an assertion, and its text is the reason why it holds. (Clippy's `unwrap_used` and,
/// in crates that parse bytes from outside, `expect_used` are on in the roots of the crates.)
#[test]
fn every_expectation_says_why_it_holds() {
    let mut wrong = Vec::new();
    for source in sources().iter().filter(|source| !source.is_test) {
        let silent = |line: &str| !line.split(".expect(").skip(1).all(says_why);
        let found = source.code().filter(|(_, line)| silent(line));
        wrong.extend(found.map(|(number, line)| format!("{}:{number}: {line}", source.path)));
    }
    none(&wrong);
}

#[test]
fn nothing_is_left_to_be_done_in_comments() {
    let marks =
        [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X"), concat!("MEAS", "URED")];
    let mut wrong = Vec::new();
    for source in sources() {
        let marked = source.lines().filter(|(_, line)| marks.iter().any(|m| line.contains(m)));
        wrong.extend(marked.map(|(number, _)| format!("{}:{number}", source.path)));
    }
    none(&wrong);
}

#[test]
fn documents_lead_to_files_that_exist() {
    let mut wrong = Vec::new();
    for path in documents() {
        let text = read(&path);
        let folder = Path::new(&path).parent().unwrap_or(Path::new("")).to_path_buf();
        let links = links(&text).into_iter().map(|link| folder.join(link));
        let named = named_files(&text).into_iter().map(PathBuf::from);
        for target in links.chain(named) {
            if !workspace().join(&target).exists() {
                wrong.push(format!("{path}: {}", target.display()));
            }
        }
    }
    for source in sources() {
        let cited = named_files(&source.text).into_iter().filter(|name| name.starts_with("docs/"));
        let missing = cited.filter(|name| !workspace().join(name).exists());
        wrong.extend(missing.map(|name| format!("{}: {name}", source.path)));
    }
    none(&wrong);
}

/// Tests the checks themselves.
#[test]
fn the_checks_see_what_they_look_for() {
    for (line, begins) in [
        ("fn f() {", true),
        ("pub(crate) const fn f() {", true),
        ("let f = fnv(1);", false),
        ("// fn f() {", false),
    ] {
        assert_eq!(is_function(line), begins, "{line}");
    }
    for (argument, speaks) in [
        ("\"a leaf has a bucket\")", true),
        ("LOCK)", true),
        ("\"oops\")", false),
        ("\"\")", false),
    ] {
        assert_eq!(says_why(argument), speaks, "{argument}");
    }
    let found = links_of("coordinator-server");
    for (user, used) in [("coordinator-server", "tokio"), ("tokio", "mio"), ("coordinator", "wire")]
    {
        assert!(found.contains(&(user.into(), used.into())), "{user} uses {used}");
    }
    assert_eq!(test_module(&["#[cfg(test)]", "mod tests {"]), Some("tests"));
    assert_eq!(test_module(&["#[cfg(all(test, unix))]", "mod shapes;"]), Some("shapes"));
    assert_eq!(test_module(&["#[cfg(test)]", "fn helper() {"]), None);
    assert_eq!(links("[a](b.md#c), [d](https://e.f/), [g](#h)"), ["b.md"]);
    assert_eq!(
        named_files("See `docs/formats.md`. In crates/types/src/ids.rs."),
        ["docs/formats.md", "crates/types/src/ids.rs"]
    );
}

/// One file of Rust code.
struct Source {
    /// Path from the workspace's root.
    path: String,
    text: String,
    /// Lines before the file's test module.
    code_lines: usize,
    /// True for tests, benchmarks, and their shared code.
    is_test: bool,
}

impl Source {
    fn read(path: String) -> Source {
        let text = read(&path);
        Source::new(path, text)
    }

    fn new(path: String, text: String) -> Source {
        let lines: Vec<&str> = text.lines().collect();
        let tests = (0..lines.len()).find(|&at| test_module(&lines[at..]).is_some());
        let code_lines = tests.unwrap_or(lines.len());
        let places = ["/tests/", "/examples/", "/benches/", "fuzz_targets/"];
        let is_test = places.iter().any(|place| path.contains(place));
        Source { path, text, code_lines, is_test }
    }

    /// Returns the lines with their numbers.
    fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.text.lines().enumerate().map(|(at, line)| (at + 1, line))
    }

    /// Returns the lines without comments.
    fn all_code(&self) -> impl Iterator<Item = (usize, &str)> {
        self.lines().filter(|(_, line)| !line.trim_start().starts_with("//"))
    }

    /// Returns the lines of [`Source::all_code`] before the tests.
    fn code(&self) -> impl Iterator<Item = (usize, &str)> {
        self.all_code().take_while(|(number, _)| *number <= self.code_lines)
    }

    /// Returns the first line of each function, and its number of lines from signature to end.
    fn functions(&self) -> Vec<(usize, usize)> {
        let lines: Vec<&str> = self.text.lines().take(self.code_lines).collect();
        let mut found = Vec::new();
        for (at, line) in lines.iter().enumerate() {
            let code = line.trim_start();
            if is_function(code) && !line.ends_with(';') {
                let end = format!("{}}}", &line[..line.len() - code.len()]);
                let length = lines[at..].iter().position(|line| *line == end);
                found.extend(length.map(|length| (at + 1, length + 1)));
            }
        }
        found
    }
}

/// Returns whether a line begins a function.
fn is_function(code: &str) -> bool {
    let is_before = |word: &&str| word.starts_with("pub") || ["const", "async"].contains(word);
    code.split(' ').find(|word| !is_before(word)) == Some("fn")
}

/// Returns the name of the test module that these lines begin with.
fn test_module<'l>(lines: &[&'l str]) -> Option<&'l str> {
    let is_gate =
        |line: &str| line.starts_with("#[cfg(test)]") || line.starts_with("#[cfg(all(test");
    let mut attributes = lines.iter().skip_while(|line| line.starts_with("#["));
    let declared = lines.first().filter(|line| is_gate(line)).and(attributes.next())?;
    declared.strip_prefix("mod ").map(|name| name.trim_end_matches([';', '{', ' ']))
}

/// Returns every file of Rust code, in order.
fn sources() -> Vec<Source> {
    let mut paths = Vec::new();
    collect(Path::new("crates"), "rs", &mut paths);
    collect(Path::new("fuzz/fuzz_targets"), "rs", &mut paths);
    let mut sources: Vec<Source> = paths.into_iter().map(Source::read).collect();
    let test_modules: Vec<String> = sources.iter().flat_map(test_module_files).collect();
    for source in &mut sources {
        source.is_test |= test_modules.contains(&source.path);
    }
    sources
}

/// Returns the possible paths of a file's test modules.
fn test_module_files(source: &Source) -> Vec<String> {
    let lines: Vec<&str> = source.text.lines().collect();
    let names = (0..lines.len()).filter_map(|at| test_module(&lines[at..]));
    let own = source.path.trim_end_matches(".rs").trim_end_matches("/mod").trim_end_matches("/lib");
    names.map(|name| format!("{own}/{name}.rs")).collect()
}

/// Returns the dependencies of each crate's manifest, without development dependencies.
fn dependencies() -> BTreeMap<String, BTreeSet<String>> {
    let mut manifests = Vec::new();
    collect(Path::new("crates"), "toml", &mut manifests);
    let manifests = manifests.iter().filter_map(|path| {
        let name = path.strip_prefix("crates/")?.strip_suffix("/Cargo.toml")?;
        Some((name.to_owned(), read(path)))
    });
    manifests
        .map(|(name, text)| {
            let manifest: toml::Table = text.parse().unwrap_or_else(|e| panic!("{name}: {e}"));
            let used = ["dependencies", "build-dependencies"].into_iter().filter_map(|section| {
                manifest.get(section)?.as_table().map(|table| table.keys().cloned())
            });
            (name, used.flatten().collect())
        })
        .collect()
}

/// Returns all links from a crate to another that building this crate includes, as user and used,
/// optional ones and those of other operating systems included. Versions of a crate count as one.
fn links_of(name: &str) -> BTreeSet<(String, String)> {
    // The lock file does not tell development dependencies from others; manifests do.
    let mut used_by = locked_dependencies();
    used_by.extend(dependencies());
    let mut links = BTreeSet::new();
    let mut unseen = vec![name.to_owned()];
    while let Some(user) = unseen.pop() {
        for used in used_by.get(&user).into_iter().flatten() {
            if links.insert((user.clone(), used.clone())) {
                unseen.push(used.clone());
            }
        }
    }
    links
}

/// Returns the dependencies of each package in the lock file.
fn locked_dependencies() -> BTreeMap<String, BTreeSet<String>> {
    let lock: toml::Table = read("Cargo.lock").parse().expect("the lock file is valid");
    let mut found: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for package in lock["package"].as_array().expect("a lock file has a list of packages") {
        let name = package["name"].as_str().expect("the name is a text");
        let used = package.get("dependencies").and_then(|used| used.as_array());
        // A name is followed by a version where there are several.
        let used = used.into_iter().flatten().filter_map(|it| it.as_str()?.split(' ').next());
        found.entry(name.to_owned()).or_default().extend(used.map(str::to_owned));
    }
    found
}

/// Returns every document, in order.
fn documents() -> Vec<String> {
    let mut paths: Vec<String> = ["README.md", "CONTRIBUTING.md"]
        .iter()
        .filter(|p| workspace().join(p).exists())
        .map(|p| (*p).into())
        .collect();
    collect(Path::new("docs"), "md", &mut paths);
    paths
}

/// Returns the targets of links to files.
fn links(text: &str) -> Vec<String> {
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
    let files = targets.map(|(target, _)| target).filter(|target| !target.contains("://"));
    let without_place = files.map(|target| target.split('#').next().unwrap_or_default());
    without_place.filter(|target| !target.is_empty()).map(str::to_owned).collect()
}

/// Returns workspace files named in a text: words that begin with one of its folders.
fn named_files(text: &str) -> Vec<String> {
    let is_inside = |c: char| c.is_ascii_alphanumeric() || "/_-.".contains(c);
    text.split(|c: char| !is_inside(c))
        .map(|word| word.trim_end_matches('.'))
        .filter(|word| ["crates/", "docs/", "fuzz/", ".ci/"].iter().any(|f| word.starts_with(f)))
        .filter(|word| [".rs", ".md", ".toml"].iter().any(|end| word.ends_with(end)))
        .map(str::to_owned)
        .collect()
}

/// Returns whether the argument of `expect` is a reason: the name of a constant, or a sentence.
fn says_why(argument: &str) -> bool {
    let is_name = argument.starts_with(|c: char| c.is_ascii_uppercase());
    let words = argument.trim_start_matches('"').split('"').next().unwrap_or_default();
    is_name || argument.is_empty() || words.split_whitespace().count() >= 3
}

/// Collects all files below a folder with this ending, in order.
fn collect(folder: &Path, ending: &str, into: &mut Vec<String>) {
    let entries = fs::read_dir(workspace().join(folder)).into_iter().flatten().flatten();
    let mut names: Vec<PathBuf> = entries.map(|entry| folder.join(entry.file_name())).collect();
    names.sort();
    for path in names {
        if workspace().join(&path).is_dir() {
            collect(&path, ending, into);
        } else if path.extension().is_some_and(|found| found == ending) {
            into.push(path.to_string_lossy().into_owned());
        }
    }
}

fn read(path: &str) -> String {
    fs::read_to_string(workspace().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn none<T: std::fmt::Debug>(wrong: &[T]) {
    assert!(wrong.is_empty(), "{} places break the rule:\n{wrong:#?}", wrong.len());
}
