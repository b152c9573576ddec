//! `docs/compatibility.md`: every command of the supported groups, and its differences.
//!
//! The existing commands come from the command table, by `COMMAND DOCS`; those of Valkey 9.1.2 are
//! in [`VALKEY`]. Missing commands must be explained in [`NOTES`], and differences should be.
//! Commands listed "as Valkey" are called, and must not be refused. The test fails if the document,
//! or the number of commands in the README, does not match. `UPDATE_GOLDENFILES=1` writes both.

use crate::client::Answer;
use crate::servers::{MODEST, Process};
use resp::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

const DOCUMENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/compatibility.md");
const README: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../README.md");

/// Commands and subcommands of Valkey 9.1.2 by group.
const VALKEY: [(&str, &str); 13] = [
    (
        "string",
        "append decr decrby delifeq get getdel getex getrange getset incr incrby incrbyfloat lcs \
         mget mset msetex msetnx psetex set setex setnx setrange strlen substr",
    ),
    ("bitmap", "bitcount bitfield bitfield_ro bitop bitpos getbit setbit"),
    (
        "hash",
        "hdel hexists hexpire hexpireat hexpiretime hget hgetall hgetdel hgetex hincrby \
         hincrbyfloat hkeys hlen hmget hmset hpersist hpexpire hpexpireat hpexpiretime hpttl \
         hrandfield hscan hset hsetex hsetnx hstrlen httl hvals",
    ),
    (
        "set",
        "sadd scard sdiff sdiffstore sinter sintercard sinterstore sismember smembers smismember \
         smove spop srandmember srem sscan sunion sunionstore",
    ),
    (
        "list",
        "blmove blmpop blpop brpop brpoplpush lindex linsert llen lmove lmpop lpop lpos lpush lpushx \
         lrange lrem lset ltrim rpop rpoplpush rpush rpushx",
    ),
    (
        "sorted-set",
        "bzmpop bzpopmax bzpopmin zadd zcard zcount zdiff zdiffstore zincrby zinter zintercard \
         zinterstore zlexcount zmpop zmscore zpopmax zpopmin zrandmember zrange zrangebylex \
         zrangebyscore zrangestore zrank zrem zremrangebylex zremrangebyrank zremrangebyscore \
         zrevrange zrevrangebylex zrevrangebyscore zrevrank zscan zscore zunion zunionstore",
    ),
    (
        "stream",
        "xack xadd xautoclaim xclaim xdel xgroup xgroup|create xgroup|createconsumer \
         xgroup|delconsumer xgroup|destroy xgroup|help xgroup|setid xinfo xinfo|consumers \
         xinfo|groups xinfo|help xinfo|stream xlen xpending xrange xread xreadgroup xrevrange \
         xsetid xtrim",
    ),
    (
        "geo",
        "geoadd geodist geohash geopos georadius georadius_ro georadiusbymember \
         georadiusbymember_ro geosearch geosearchstore",
    ),
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

/// Differences from Valkey, unless the summary describes a refusal or no-op. A name that ends in
/// `*` covers all names with this beginning that have no note of their own.
const NOTES: &[(&str, &str)] = &[
    ("acl*", "the only user is `default`, with the password `requirepass`"),
    ("acl|cat", "lists the commands of Ballast"),
    ("acl|list", "one user; shows only whether a password is set"),
    ("auth", "the only user is `default`"),
    (
        "bgrewriteaof",
        "accepted with durability `disk`, where every write is synced before its reply; else refused with the reason",
    ),
    ("bgsave", "as BGREWRITEAOF"),
    ("bitfield", "an offset `#n` that overflows 64 bits is refused"),
    ("blmove", "as BLPOP"),
    ("blmpop", "as BLPOP"),
    (
        "blpop",
        "other commands may see or take an item between its push and its pop by a client that waits",
    ),
    ("brpop", "as BLPOP"),
    ("brpoplpush", "as BLPOP"),
    ("bzmpop", "as BLPOP"),
    ("bzpopmax", "as BLPOP"),
    ("bzpopmin", "as BLPOP"),
    ("client|info", "fields that do not apply are 0 or empty"),
    ("client|list", "as CLIENT INFO"),
    ("cluster|flushslot", "use FLUSHDB"),
    (
        "cluster|migrateslots",
        "groups of slots are started one after another; POLICY sets migration parameters",
    ),
    ("cluster|saveconfig", "the coordinator stores the configuration"),
    ("cluster|slaves", "use CLUSTER REPLICAS"),
    ("cluster|slot-stats", "key-count only: the cost of requests is not measured per slot"),
    ("cluster|syncslots", "servers use their own protocol"),
    ("clusterscan", "use SCAN on each server"),
    ("command|docs", "own texts, without arguments and history"),
    ("command|getkeysandflags", "use COMMAND GETKEYS"),
    ("commandlog", "large requests and large replies are not logged"),
    ("config|get", "the settings of Ballast: `ballast.toml` lists them"),
    (
        "config|set",
        "as CONFIG GET; constant settings accept only their value, and the error gives the reason",
    ),
    ("debug", "only CHANGE-REPL-ID, OBJECT, SET-ACTIVE-EXPIRE and SLEEP"),
    ("copy", "not to another database inside a transaction"),
    ("dump", "long values are not compressed, expired fields are left out; Valkey reads the dumps"),
    ("flushall", "ASYNC is treated as SYNC: the reply is sent when all keys are deleted"),
    ("flushdb", "ASYNC is treated as SYNC: the reply is sent when all keys are deleted"),
    ("georadius", "as GEOSEARCH"),
    ("georadius_ro", "as GEOSEARCH"),
    ("georadiusbymember", "as GEOSEARCH"),
    ("georadiusbymember_ro", "as GEOSEARCH"),
    (
        "geosearch",
        "without ASC, DESC and COUNT, members come in the order of their scores, and ANY returns the first of them; also finds members beyond the 180th meridian and at the poles",
    ),
    ("geosearchstore", "as GEOSEARCH"),
    (
        "hrandfield",
        "a negative count below -1048576 is refused; elements are read in time proportional to the size of the hash",
    ),
    ("hgetex", "a time that is no number is refused before the type of the key is looked at"),
    ("hsetex", "as HGETEX, and before NX and XX are looked at"),
    (
        "hlen",
        "does not count expired fields of hashes without pages; Valkey counts them until they are reclaimed",
    ),
    ("hscan", "one step returns all elements of a small value, with the cursor 0"),
    ("info", "only fields that apply to Ballast"),
    (
        "keys",
        "in the order of key hashes, executed incrementally: other clients are served meanwhile, and keys that they write or delete may be returned or not",
    ),
    ("lastsave", "the current time with durability `disk`; else the start time of the server"),
    ("latency|doctor", "own texts"),
    ("latency|graph", "own texts"),
    (
        "lcs",
        "the product of both lengths is at most 1,000,000 or so: the table must fit into a value",
    ),
    ("lolwut", ""),
    ("lset", "a position beyond 32 bits is out of range; Valkey uses its lower 32 bits"),
    ("memory|doctor", "reports on the log"),
    ("memory|malloc-stats", "reports on log and index"),
    ("memory|stats", "only numbers that apply to Ballast"),
    ("memory|usage", "bytes of the record in log and index"),
    ("migrate", "slots move as a whole: use CLUSTER MIGRATESLOTS"),
    ("module*", "there are no modules"),
    ("monitor", "times in milliseconds"),
    (
        "multi",
        "not inside a transaction: SELECT, and commands that access keys they do not name (KEYS, SCAN, RANDOMKEY, DBSIZE, FLUSHALL, FLUSHDB)",
    ),
    (
        "object|encoding",
        "values have no encoding: returns `int`, `embstr` (up to 44 bytes) or `raw`, depending on the value alone",
    ),
    ("object|freq", "a key that is deleted and written again keeps its count"),
    ("object|idletime", "up to three days, and 0 unless an LRU policy is selected"),
    ("randomkey", "keys after large gaps between hashes are more likely than others"),
    ("replconf", "Redis replication is not supported"),
    (
        "restore",
        "strings, hashes, sets, lists, sorted sets and streams only; reads the ziplists and zipmaps of Redis 6.2 and older; refuses scores that are no numbers; accepts dumps of Redis 8 too; limits a TTL that is too large to the maximum",
    ),
    ("save", "as BGREWRITEAOF"),
    ("scan", "cursors are key hashes, of up to 64 bits"),
    ("srandmember", "as HRANDFIELD"),
    ("sscan", "as HSCAN"),
    (
        "shutdown",
        "SAVE is refused without persistence; with persistence the log is always complete",
    ),
    (
        "sort",
        "at most 65,536 values of other keys (GET and BY) and 64 MiB of them; elements with equal values of BY keep their order, and texts are compared byte by byte; within MULTI and BALLAST.ONCE as well",
    ),
    ("sort_ro", "as SORT"),
    (
        "wait",
        "counts the other servers that have all writes of this connection's reactor: 0 without replication",
    ),
    (
        "waitaof",
        "as WAIT, for writes synced to disk: of this server (durability `interval` or `disk`) and of other servers",
    ),
    ("xadd", "`~` removes whole pages of 2 KiB, where Valkey removes blocks of 100 entries"),
    ("xautoclaim", "as XREADGROUP"),
    ("xclaim", "as XREADGROUP"),
    (
        "xinfo|consumers",
        "`idle` of a consumer that reads without receiving entries may be a second too long",
    ),
    ("xinfo|stream", "radix-tree-keys and radix-tree-nodes are derived from the number of pages"),
    (
        "xreadgroup",
        "a group of more than 2 MiB (about 170,000 pending entries) is refused; a wait does not end when the stream expires or is flushed",
    ),
    ("xtrim", "as XADD"),
    ("zadd", "the score -0 is stored as 0, as Valkey does in small sorted sets"),
    ("zincrby", "as ZADD"),
    ("zrandmember", "as HRANDFIELD"),
    (
        "zscan",
        "as HSCAN; scores have the fewest digits that tell them apart, in large sorted sets too",
    ),
];

/// Beginnings of the summaries of refused and no-op commands.
const NOTHING: [&str; 5] =
    ["No effect", "Always reports", "Returns an empty list:", "Returns -1:", "Returns 0:"];

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

/// Returns all names in [`VALKEY`].
fn names() -> impl Iterator<Item = &'static str> {
    VALKEY.iter().flat_map(|(_, names)| names.split_whitespace())
}

/// Returns the README with the number of commands inserted.
fn readme(counted: &str) -> String {
    let text = std::fs::read_to_string(README).expect("there is a README");
    let end = text.find(" commands answer as Valkey").expect("the README counts the commands");
    let begin = text[..end].rfind(' ').map_or(0, |at| at + 1);
    let rest = &text[end + " commands answer as Valkey".len()..];
    format!("{}{counted}{rest}", &text[..begin])
}

/// Calls a command with meaningless arguments, and checks that it is not refused as unsupported.
fn assert_not_refused(server: &Process, name: &str) {
    // This command would end the server.
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
    assert!(!is_refused, "{name} should answer as Valkey, but is refused: {text}");
}

/// Words in the errors of commands that are refused whatever their arguments are.
const REFUSALS: [&str; 2] = ["not supported", "not in import"];

const SAME: &str = "as Valkey";

/// Returns name and summary of every command and subcommand.
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

/// Returns the note on a command: its own, or that of a matching prefix.
fn note(name: &str) -> Option<&'static str> {
    let own = NOTES.iter().find(|(of, _)| *of == name);
    let wide =
        || NOTES.iter().find(|(of, _)| of.strip_suffix('*').is_some_and(|of| name.starts_with(of)));
    own.or_else(wide).map(|(_, why)| *why)
}

/// Returns the support level of a command, and the reason.
fn standing(name: &str, summary: Option<&String>) -> (&'static str, String) {
    let Some(summary) = summary else {
        let why = note(name).unwrap_or_else(|| panic!("{name} is missing: why?"));
        return ("unknown", why.into());
    };
    if let Some(why) = summary.strip_prefix("Not supported: ") {
        return ("refused", why.into());
    }
    if NOTHING.iter().any(|beginning| summary.starts_with(beginning)) {
        return ("differs", summary.clone());
    }
    // A note on a whole group also covers its missing commands.
    match NOTES.iter().find(|(of, _)| *of == name) {
        Some((_, why)) => ("differs", (*why).into()),
        None => (SAME, String::new()),
    }
}

fn document(here: &BTreeMap<String, String>) -> String {
    let mut text = String::from(INTRODUCTION);
    let mut known = BTreeSet::new();
    for (group, names) in VALKEY {
        writeln!(text, "\n## {group}\n\n| command | Ballast | note |\n| --- | --- | --- |")
            .expect("a string");
        for name in names.split_whitespace() {
            known.insert(name);
            let (standing, why) = standing(name, here.get(name));
            writeln!(text, "| {} | {standing} | {why} |", shown(name)).expect("a string");
        }
    }
    text.push_str("\n## Commands of Ballast only\n\n| command | summary |\n| --- | --- |\n");
    for (name, summary) in here.iter().filter(|(name, _)| !known.contains(name.as_str())) {
        writeln!(text, "| {} | {summary} |", shown(name)).expect("a string");
    }
    text
}

fn shown(name: &str) -> String {
    name.to_uppercase().replace('|', " ")
}

const INTRODUCTION: &str = "# Compatibility

Commands of Valkey 9.1.2 in the groups that Ballast implements, and how Ballast answers them: `as Valkey` with the same replies, `differs` as the note says, `refused` with an error that gives the reason, `unknown` as a command that does not exist.
A test writes this page from the command table (`crates/ballast/tests/processes/compatibility.rs`).
Another test sends random commands to Ballast and to Valkey and compares their replies byte for byte, in RESP2 and RESP3 (`differential.rs` beside it).

For all commands:
- A value has at most 4,063,232 bytes, and a key at most 65,535. The limit of values is also the maximum of `proto-max-bulk-len`. A request with a longer argument is answered with an error that contains both lengths, and the connection stays open; above 512 MB it is a protocol error, which closes the connection, as in Valkey.
- The keys and values of one multi-key write must fit into one log segment (8 MiB, less on small servers).
- A reply has at most 512 MB: a request that names a long value again and again gets an error. So does one whose pattern takes too long to compare with the names (SCAN, HSCAN, SSCAN, ZSCAN, KEYS), and ZUNION, ZINTER, their relatives and ZINTERCARD if sets that they name more than once have more than 4,194,304 members.
- `HELP` of a container command lists the subcommands with their summaries in Ballast.
- In a cluster all databases can be selected, as in Valkey with `cluster-databases 16`.
";
