//! `docs/compatibility.md`: every command of the groups that Ballast has, and how it differs.
//!
//! What is there is asked of a server (`COMMAND DOCS`), so it is read from the command table. What
//! Valkey 9.1.2 has is [`VALKEY`]; what is missing must be explained in [`NOTES`], and what differs
//! should be. What answers "as Valkey" is asked for, and must not be refused. The test fails if the
//! document, or the number of commands in the README, is not what follows from them;
//! `UPDATE_GOLDENFILES=1` writes both.

use crate::client::Answer;
use crate::servers::{MODEST, Process};
use resp::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

const DOCUMENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/compatibility.md");
const README: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../README.md");

/// Commands and subcommands of Valkey 9.1.2 by group.
const VALKEY: [(&str, &str); 7] = [
    (
        "string",
        "append decr decrby delifeq get getdel getex getrange getset incr incrby incrbyfloat lcs \
         mget mset msetex msetnx psetex set setex setnx setrange strlen substr",
    ),
    ("bitmap", "bitcount bitfield bitfield_ro bitop bitpos getbit setbit"),
    (
        "generic",
        "copy del dump exists expire expireat expiretime keys migrate move object object|encoding \
         object|freq object|help object|idletime object|refcount persist pexpire pexpireat \
         pexpiretime pttl randomkey rename renamenx restore scan sort sort_ro touch ttl type unlink \
         wait waitaof",
    ),
    ("transactions", "discard exec multi unwatch watch"),
    (
        "connection",
        "auth client client|caching client|capa client|getname client|getredir client|help \
         client|id client|import-source client|info client|kill client|list client|no-evict \
         client|no-touch client|pause client|reply client|setinfo client|setname client|tracking \
         client|trackinginfo client|unblock client|unpause echo hello ping quit reset select",
    ),
    (
        "server",
        "acl acl|cat acl|deluser acl|dryrun acl|genpass acl|getuser acl|help acl|list acl|load \
         acl|log acl|save acl|setuser acl|users acl|whoami bgrewriteaof bgsave command commandlog \
         commandlog|get commandlog|help commandlog|len commandlog|reset command|count command|docs \
         command|getkeys command|getkeysandflags command|help command|info command|list config \
         config|get config|help config|resetstat config|rewrite config|set dbsize debug failover \
         flushall flushdb info lastsave latency latency|doctor latency|graph latency|help \
         latency|histogram latency|history latency|latest latency|reset lolwut memory memory|doctor \
         memory|help memory|malloc-stats memory|purge memory|stats memory|usage module module|help \
         module|list module|load module|loadex module|unload monitor psync replconf replicaof \
         restore-asking role save shutdown slaveof slowlog slowlog|get slowlog|help slowlog|len \
         slowlog|reset swapdb sync time",
    ),
    (
        "cluster",
        "asking cluster cluster|addslots cluster|addslotsrange cluster|bumpepoch \
         cluster|cancelslotmigrations cluster|count-failure-reports cluster|countkeysinslot \
         cluster|delslots cluster|delslotsrange cluster|failover cluster|flushslot \
         cluster|flushslots cluster|forget cluster|getkeysinslot cluster|getslotmigrations \
         cluster|help cluster|info cluster|keyslot cluster|links cluster|meet cluster|migrateslots \
         cluster|myid cluster|myshardid cluster|nodes cluster|replicas cluster|replicate \
         cluster|reset cluster|saveconfig cluster|set-config-epoch cluster|setslot cluster|shards \
         cluster|slaves cluster|slot-stats cluster|slots cluster|syncslots clusterscan readonly \
         readwrite",
    ),
];

/// What is not as in Valkey, beside what refuses or does nothing by its own summary. A name that ends
/// in `*` stands for all that begin like this and are not named themselves.
const NOTES: &[(&str, &str)] = &[
    ("acl*", "there is one user: `requirepass`"),
    ("acl|cat", "of the commands that there are"),
    ("acl|list", "one user; of its password only that there is one"),
    ("auth", "one user: `default`"),
    (
        "bgrewriteaof",
        "answered where every write is on disk before its reply (durability `disk`); refused elsewhere, with the reason",
    ),
    ("bgsave", "as BGREWRITEAOF"),
    ("bitfield", "an offset `#n` that overflows 64 bits is refused"),
    ("client|info", "what this server does not know is 0 or empty"),
    ("client|list", "as CLIENT INFO"),
    ("client|unblock", "only WAIT and WAITAOF block"),
    ("cluster|flushslot", "FLUSHDB"),
    (
        "cluster|migrateslots",
        "groups of slots are begun one after another; POLICY says how to move",
    ),
    ("cluster|saveconfig", "the coordinator keeps the configuration"),
    ("cluster|slaves", "CLUSTER REPLICAS"),
    ("cluster|slot-stats", "key-count alone: what the requests of a slot cost is not measured"),
    ("cluster|syncslots", "servers speak a protocol of their own"),
    ("clusterscan", "SCAN on each server"),
    ("command|docs", "in our words, without arguments and history"),
    ("command|getkeysandflags", "COMMAND GETKEYS"),
    ("commandlog", "large requests and large replies are not logged"),
    ("config|get", "the settings that there are: `ballast.toml` lists them"),
    (
        "config|set",
        "as CONFIG GET; what has one value can be set to it, and the error of any other says why",
    ),
    ("debug", "CHANGE-REPL-ID, OBJECT, SET-ACTIVE-EXPIRE and SLEEP"),
    ("copy", "to another database: not inside a transaction"),
    ("dump", "long values are not compressed; Valkey reads the dumps"),
    ("flushall", "ASYNC is SYNC: the reply comes when all is gone"),
    ("flushdb", "ASYNC is SYNC: the reply comes when all is gone"),
    ("info", "the fields that mean something here"),
    (
        "keys",
        "in the order of key hashes, over many turns: other clients are served meanwhile, and what they write or delete may be shown or not",
    ),
    ("lastsave", "now where every write is on disk before its reply; else when the server began"),
    ("latency|doctor", "in our words"),
    ("latency|graph", "in our words"),
    ("lolwut", ""),
    ("memory|doctor", "speaks of the log"),
    ("memory|malloc-stats", "speaks of log and index"),
    ("memory|stats", "those numbers that mean something here"),
    ("memory|usage", "bytes of the record in log and index"),
    ("migrate", "slots move as a whole: CLUSTER MIGRATESLOTS"),
    ("module*", "there are no modules"),
    ("monitor", "times in milliseconds"),
    (
        "multi",
        "not within a transaction: SELECT, and what looks at keys that it does not name (KEYS, SCAN, RANDOMKEY, DBSIZE, FLUSHALL, FLUSHDB)",
    ),
    (
        "object|encoding",
        "values have no encoding: `int`, `embstr` (up to 44 bytes) or `raw`, by the value alone",
    ),
    ("randomkey", "keys behind large gaps between hashes are more likely than others"),
    ("replconf", "there is no replication in this protocol"),
    (
        "restore",
        "strings only; dumps of Redis 8 are taken too; IDLETIME and FREQ are read and forgotten; a TTL too far ahead lasts as long as can be said",
    ),
    ("save", "as BGREWRITEAOF"),
    ("scan", "cursors are key hashes, of up to 64 bits"),
    (
        "shutdown",
        "SAVE is refused where nothing is persisted; elsewhere the log is whole in any case",
    ),
    ("sort*", "there are no lists, sets and sorted sets"),
    ("touch", "counts; when keys were used is not remembered"),
    (
        "wait",
        "counts the other servers that hold all that this connection's reactor has written: 0 of a server that is not replicated",
    ),
    (
        "waitaof",
        "as WAIT, by what the disks have: of this server (durability `interval` or `disk`) and of others",
    ),
];

/// How summaries begin of what does not do what its name says.
const NOTHING: [&str; 8] = [
    "Changes nothing",
    "Does nothing",
    "Takes note of nothing",
    "Says that nothing",
    "Returns nothing",
    "Returns -1:",
    "Returns 0:",
    "Returns 0;",
];

#[test]
fn the_document_of_compatibility_says_what_the_command_table_says() {
    let server = Process::alone(&MODEST);
    let here = documented(&server.client().ask(&["COMMAND", "DOCS"]));
    let containers: BTreeSet<&str> =
        here.keys().filter_map(|name| Some(name.split_once('|')?.0)).collect();
    let same: Vec<&str> =
        names().filter(|name| standing(name, here.get(*name)).0 == SAME).collect();
    for name in &same {
        assert_not_refused(&server, name);
    }
    let is_counted = |name: &&&str| !name.ends_with("|help") && !containers.contains(**name);
    let counted = format!("{} commands answer as Valkey", same.iter().filter(is_counted).count());
    for (path, text) in [(DOCUMENT, document(&here)), (README, readme(&counted))] {
        if std::env::var_os("UPDATE_GOLDENFILES").is_some() {
            std::fs::write(path, &text).expect("the document can be written");
        }
        let written = std::fs::read_to_string(path).unwrap_or_default();
        assert!(written == text, "{path} is stale: see the text of this test");
    }
}

/// All names in [`VALKEY`].
fn names() -> impl Iterator<Item = &'static str> {
    VALKEY.iter().flat_map(|(_, names)| names.split_whitespace())
}

/// The README with the number of commands in its place.
fn readme(counted: &str) -> String {
    let text = std::fs::read_to_string(README).expect("there is a README");
    let end = text.find(" commands answer as Valkey").expect("the README counts the commands");
    let begin = text[..end].rfind(' ').map_or(0, |at| at + 1);
    let rest = &text[end + " commands answer as Valkey".len()..];
    format!("{}{counted}{rest}", &text[..begin])
}

/// Asks for a command with senseless arguments, and checks that it is not refused as such.
fn assert_not_refused(server: &Process, name: &str) {
    // It would end the server.
    if name == "shutdown" {
        return;
    }
    let mut client = server.client();
    let info = client.ask(&["COMMAND", "INFO", name]).items().remove(0).items();
    let arguments = info[1].number().unsigned_abs() as usize;
    let mut words: Vec<&str> = name.split('|').collect();
    words.resize(words.len().max(arguments), "x");
    client.request(&words);
    let Some((Value::Error(text), _)) = client.answer_and_bytes() else { return };
    let text = String::from_utf8_lossy(&text).into_owned();
    let is_refused = REFUSALS.iter().any(|words| text.contains(words));
    assert!(!is_refused, "{name} is said to answer as Valkey, and is refused: {text}");
}

/// Words in the errors of commands that are refused whatever their arguments.
const REFUSALS: [&str; 6] =
    ["not supported", "nothing", "neither", "is not for this cluster", "not in import", "no other"];

const SAME: &str = "as Valkey";

/// Name and summary of every command and subcommand.
fn documented(docs: &Answer) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    for [name, properties] in docs.items().as_chunks().0 {
        let mut summary = String::new();
        for [property, value] in properties.items().as_chunks().0 {
            match property.text().as_str() {
                "summary" => summary = value.text(),
                "subcommands" => all.extend(documented(value)),
                _ => {}
            }
        }
        all.insert(name.text(), summary);
    }
    all
}

/// The note on a command: its own, or that of all that begin like it.
fn note(name: &str) -> Option<&'static str> {
    let own = NOTES.iter().find(|(of, _)| *of == name);
    let wide =
        || NOTES.iter().find(|(of, _)| of.strip_suffix('*').is_some_and(|of| name.starts_with(of)));
    own.or_else(wide).map(|(_, why)| *why)
}

/// How a command stands, and why.
fn standing(name: &str, summary: Option<&String>) -> (&'static str, String) {
    let Some(summary) = summary else {
        let why = note(name).unwrap_or_else(|| panic!("{name} is missing: why?"));
        return ("unknown", why.into());
    };
    if let Some(why) = summary.strip_prefix("Is refused") {
        return ("refused", why.trim_start_matches([':', ' ']).into());
    }
    if NOTHING.iter().any(|beginning| summary.starts_with(beginning)) {
        return ("differs", summary.clone());
    }
    // A note about a whole group also holds for its missing commands.
    match NOTES.iter().find(|(of, _)| *of == name) {
        Some((_, why)) => ("differs", (*why).into()),
        None => (SAME, String::new()),
    }
}

fn document(here: &BTreeMap<String, String>) -> String {
    let mut text = String::from(INTRODUCTION);
    let mut known = BTreeSet::new();
    for (group, names) in VALKEY {
        writeln!(text, "\n## {group}\n\n| command | here | |\n| --- | --- | --- |")
            .expect("a string");
        for name in names.split_whitespace() {
            known.insert(name);
            let (standing, why) = standing(name, here.get(name));
            writeln!(text, "| {} | {standing} | {why} |", shown(name)).expect("a string");
        }
    }
    text.push_str("\n## Only here\n\n| command | |\n| --- | --- |\n");
    for (name, summary) in here.iter().filter(|(name, _)| !known.contains(name.as_str())) {
        writeln!(text, "| {} | {summary} |", shown(name)).expect("a string");
    }
    text
}

fn shown(name: &str) -> String {
    name.to_uppercase().replace('|', " ")
}

const INTRODUCTION: &str = "# Compatibility

Commands of Valkey 9.1.2 in the groups that Ballast has, and how they are answered here.
This page is written by a test from the command table (`crates/ballast/tests/processes/compatibility.rs`).
Another test sends random commands to Ballast and to Valkey and compares their replies byte for byte, in RESP2 and RESP3 (`differential.rs` beside it).

What holds for all commands:
- There are strings only. No command answers `WRONGTYPE`.
- A value has at most 4,063,232 bytes and a key 65,535. The first is what `proto-max-bulk-len` may be at most. A request with a longer argument is answered with an error that names both lengths, and the connection goes on; above 512 MB it is a protocol error, which ends the connection, as in Valkey.
- The keys of one write of several keys, with their values, must fit into one segment of the log (8 MiB, less on small servers).
- `HELP` of a container command lists the subcommands in our words.
- In a cluster all databases can be selected, as in Valkey with `cluster-databases 16`.
";
