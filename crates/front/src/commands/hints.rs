//! Hints of `COMMAND` for clients: how to distribute requests over servers, and how commands use
//! their keys. Both tables were recorded from Valkey 9.1.2, but for the commands of Ballast only.

use super::command::{Command, Keys};
use resp::ReplyWriter;

/// Tips, by command names. Commands without tips are omitted.
const TIPS: &[(&str, &[&str])] = &[
    (
        "client|setinfo client|setname commandlog|reset config|resetstat config|rewrite config|set \
         slowlog|reset",
        &["request_policy:all_nodes", "response_policy:all_succeeded"],
    ),
    (
        "client|info client|list cluster|bumpepoch cluster|count-failure-reports \
         cluster|getkeysinslot cluster|info cluster|links cluster|myshardid cluster|nodes \
         cluster|replicas cluster|shards cluster|slots dump hrandfield hscan lastsave object|encoding \
         object|freq object|idletime object|refcount pttl spop srandmember sscan time ttl \
         xadd xautoclaim xclaim xinfo|consumers xpending xtrim zrandmember zscan",
        &["nondeterministic_output"],
    ),
    ("ballast.map", &["nondeterministic_output"]),
    (
        "ballast.scan scan",
        &["nondeterministic_output", "request_policy:special", "response_policy:special"],
    ),
    ("cluster|slot-stats", &["nondeterministic_output", "request_policy:all_shards"]),
    (
        "command command|docs command|info command|list hgetall hkeys hvals sdiff sinter smembers \
         sunion",
        &["nondeterministic_output_order"],
    ),
    ("commandlog|get slowlog|get", &["request_policy:all_nodes", "nondeterministic_output"]),
    (
        "commandlog|len slowlog|len",
        &["request_policy:all_nodes", "response_policy:agg_sum", "nondeterministic_output"],
    ),
    ("dbsize", &["request_policy:all_shards", "response_policy:agg_sum"]),
    ("del exists touch unlink", &["request_policy:multi_shard", "response_policy:agg_sum"]),
    (
        "flushall flushdb memory|purge ping",
        &["request_policy:all_shards", "response_policy:all_succeeded"],
    ),
    (
        "info memory|doctor memory|malloc-stats memory|stats",
        &["nondeterministic_output", "request_policy:all_shards", "response_policy:special"],
    ),
    ("keys", &["request_policy:all_shards", "nondeterministic_output_order"]),
    (
        "latency|doctor latency|graph latency|histogram latency|history latency|latest",
        &["nondeterministic_output", "request_policy:all_nodes", "response_policy:special"],
    ),
    ("latency|reset", &["request_policy:all_nodes", "response_policy:agg_sum"]),
    ("mget", &["request_policy:multi_shard"]),
    ("mset msetex", &["request_policy:multi_shard", "response_policy:all_succeeded"]),
    (
        "randomkey",
        &["request_policy:all_shards", "response_policy:special", "nondeterministic_output"],
    ),
    ("wait waitaof", &["request_policy:all_shards", "response_policy:agg_min"]),
];

/// The access flags of each command's keys: those of the first key, and those of the other keys if
/// they differ. Commands not listed only read.
const ACCESS: &[(&str, &[&[&str]])] = &[
    ("append linsert lpush lpushx rpush rpushx", &[&["RW", "insert"]]),
    ("ballast.del", &[&["RM", "delete"]]),
    ("ballast.set", &[&["RW", "update"]]),
    ("bitfield set", &[&["RW", "access", "update", "variable_flags"]]),
    (
        "bitop geosearchstore sdiffstore sinterstore sunionstore zdiffstore zinterstore zrangestore zunionstore",
        &[&["OW", "update"], READS],
    ),
    ("copy", &[READS, &["OW", "update"]]),
    (
        "decr decrby getex getset hgetex hincrby hincrbyfloat incr incrby incrbyfloat move setbit \
         zincrby",
        &[&["RW", "access", "update"]],
    ),
    ("del delifeq unlink", &[&["RM", "delete"]]),
    (
        "debug|object exists hexists hlen hstrlen llen memory|usage object|encoding object|freq \
         object|idletime object|refcount scard sismember strlen touch type watch xlen zcard",
        &[&["RO"]],
    ),
    (
        "expire expireat geoadd hexpire hexpireat hmset hpersist hpexpire hpexpireat hset \
         lset persist pexpire pexpireat setrange xack xadd xclaim xgroup|setid xsetid zadd",
        &[&["RW", "update"]],
    ),
    (
        "blmpop blpop brpop bzmpop bzpopmax bzpopmin getdel hgetdel lmpop lpop rpop spop zmpop zpopmax zpopmin",
        &[&["RW", "access", "delete"]],
    ),
    (
        "hdel lrem ltrim srem xautoclaim xdel xgroup|delconsumer xgroup|destroy xtrim zrem \
         zremrangebylex zremrangebyrank zremrangebyscore",
        &[&["RW", "delete"]],
    ),
    ("hsetex hsetnx sadd xgroup|create xgroup|createconsumer", &[&["RW", "insert"]]),
    ("mset msetex psetex restore restore-asking setex", &[&["OW", "update"]]),
    ("msetnx setnx", &[&["OW", "insert"]]),
    ("rename", &[&["RW", "access", "delete"], &["OW", "update"]]),
    ("renamenx", &[&["RW", "access", "delete"], &["OW", "insert"]]),
    ("blmove brpoplpush lmove rpoplpush smove", &[&["RW", "access", "delete"], &["RW", "insert"]]),
];

const READS: &[&str] = &["RO", "access"];

/// Notes shown beside the flags.
const NOTES: &[(&str, &str)] = &[
    ("bitfield", "This command allows both access and modification of the key"),
    ("getex", "RW and UPDATE because it changes the TTL"),
    ("set", "RW and ACCESS due to the optional `GET` argument"),
    ("xadd", "UPDATE instead of INSERT because of the optional trimming feature"),
];

fn of<T: Copy>(table: &[(&str, T)], name: &str) -> Option<T> {
    let row = table.iter().find(|(names, _)| names.split_ascii_whitespace().any(|it| it == name));
    row.map(|(_, value)| *value)
}

/// Writes the tips of a command.
pub(super) fn write_tips(command: &Command, reply: &mut ReplyWriter<'_>) {
    let tips = of(TIPS, command.name).unwrap_or_default();
    reply.set(tips.len());
    tips.iter().for_each(|tip| reply.bulk(tip.as_bytes()));
}

/// The keys of one specification: from position `first`, in steps.
struct KeyRange {
    first: i64,
    /// Last key, relative to the first. Negative values count from the end.
    last: i64,
    step: i64,
}

/// Writes the key specifications, from which clients without built-in knowledge of a command learn
/// its key positions and their use.
pub(super) fn write_keys(command: &Command, reply: &mut ReplyWriter<'_>) {
    let access = of(ACCESS, command.name).unwrap_or(&[READS]);
    match (command.keys, access) {
        (Keys::None | Keys::Unnamed | Keys::Wrapped { .. }, _) => reply.set(0),
        (Keys::Counted | Keys::CountedPairs | Keys::CountedSecond, _) => {
            let step = if command.keys == Keys::CountedPairs { 2 } else { 1 };
            let number = if command.keys == Keys::CountedSecond { 2 } else { 1 };
            reply.set(1);
            write_counted(command, access[0], number, step, reply);
        }
        (Keys::CountedBehindOne, access) => {
            let [one, others] = access else { return reply.set(0) };
            reply.set(access.len());
            write_range(command, one, KeyRange { first: 1, last: 0, step: 1 }, reply);
            write_counted(command, others, 2, 1, reply);
        }
        (Keys::Streams, access) => {
            reply.set(1);
            write_streams(command, access[0], reply);
        }
        (Keys::OneAndStored { from }, access) => {
            reply.set(3);
            write_range(command, access[0], KeyRange { first: 1, last: 0, step: 1 }, reply);
            for keyword in ["STORE", "STOREDIST"] {
                write_stored(command, keyword, from.into(), reply);
            }
        }
        (Keys::Sorted { may_store }, _) => {
            reply.set(2 + usize::from(may_store));
            write_range(command, READS, KeyRange { first: 1, last: 0, step: 1 }, reply);
            write_unknown(UNKNOWN_PATTERNS, READS, reply);
            if may_store {
                write_unknown(UNKNOWN_STORE, &["OW", "update"], reply);
            }
        }
        (Keys::At { first, last, step }, access) => {
            let (first, last, step) = (i64::from(first), i64::from(last), i64::from(step));
            let end = if last > 0 { last - first } else { last };
            let [one, others @ ..] = access else { return reply.set(0) };
            reply.set(access.len());
            let end_of_one = if others.is_empty() { end } else { 0 };
            write_range(command, one, KeyRange { first, last: end_of_one, step }, reply);
            if let [others] = others {
                let last = if end > 0 { end - 1 } else { end };
                write_range(command, others, KeyRange { first: first + 1, last, step }, reply);
            }
        }
    }
}

/// Writes the specification of keys behind their number.
fn write_counted(
    command: &Command,
    flags: &[&str],
    number: i64,
    step: i64,
    reply: &mut ReplyWriter<'_>,
) {
    begin(command, flags, number, reply);
    let search = [("keynumidx", 0), ("firstkey", 1), ("keystep", step)];
    write_search(reply, "keynum", &search);
}

const UNKNOWN_PATTERNS: &str = "For the optional BY/GET keyword. It is marked 'unknown' because the \
     key names derive from the content of the key we sort";
const UNKNOWN_STORE: &str = "For the optional STORE keyword. It is marked 'unknown' because the \
     keyword can appear anywhere in the argument array";

/// Writes the specification of keys that clients cannot find.
fn write_unknown(note: &str, flags: &[&str], reply: &mut ReplyWriter<'_>) {
    reply.map(4);
    reply.texts([("notes", note)]);
    reply.bulk(b"flags");
    reply.set(flags.len());
    flags.iter().for_each(|flag| reply.simple(flag));
    for part in ["begin_search", "find_keys"] {
        reply.bulk(part.as_bytes());
        write_search(reply, "unknown", &[]);
    }
}

/// Writes the specification of the key behind a keyword.
fn write_stored(command: &Command, keyword: &str, from: i64, reply: &mut ReplyWriter<'_>) {
    write_flags(command, &["OW", "update", "variable_flags"], reply);
    reply.map(2);
    reply.texts([("type", "keyword")]);
    reply.bulk(b"spec");
    reply.map(2);
    reply.texts([("keyword", keyword)]);
    reply.integers([("startfrom", from)]);
    reply.bulk(b"find_keys");
    write_search(reply, "range", &[("lastkey", 0), ("keystep", 1), ("limit", 0)]);
}

/// Writes the specification of the keys behind `STREAMS`, of which each has an id.
fn write_streams(command: &Command, flags: &[&str], reply: &mut ReplyWriter<'_>) {
    write_flags(command, flags, reply);
    reply.map(2);
    reply.texts([("type", "keyword")]);
    reply.bulk(b"spec");
    reply.map(2);
    reply.texts([("keyword", "STREAMS")]);
    reply.integers([("startfrom", command.streams_from() as i64)]);
    reply.bulk(b"find_keys");
    write_search(reply, "range", &[("lastkey", -1), ("keystep", 1), ("limit", 2)]);
}

fn write_range(command: &Command, flags: &[&str], place: KeyRange, reply: &mut ReplyWriter<'_>) {
    begin(command, flags, place.first, reply);
    let KeyRange { last, step, .. } = place;
    write_search(reply, "range", &[("lastkey", last), ("keystep", step), ("limit", 0)]);
}

/// Writes a specification up to the part that determines the number of keys.
fn begin(command: &Command, flags: &[&str], first: i64, reply: &mut ReplyWriter<'_>) {
    write_flags(command, flags, reply);
    write_search(reply, "index", &[("index", first)]);
    reply.bulk(b"find_keys");
}

/// Writes the flags of a specification, up to the search for its first key.
fn write_flags(command: &Command, flags: &[&str], reply: &mut ReplyWriter<'_>) {
    let note = of(NOTES, command.name);
    reply.map(3 + usize::from(note.is_some()));
    reply.texts(note.map(|note| ("notes", note)));
    reply.bulk(b"flags");
    reply.set(flags.len());
    flags.iter().for_each(|flag| reply.simple(flag));
    reply.bulk(b"begin_search");
}

fn write_search(reply: &mut ReplyWriter<'_>, kind: &str, numbers: &[(&str, i64)]) {
    reply.map(2);
    reply.texts([("type", kind)]);
    reply.bulk(b"spec");
    reply.map(numbers.len());
    reply.integers(numbers.iter().copied());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_in_the_tables_is_a_command() {
        let names = TIPS.iter().map(|(names, _)| *names);
        let names = names.chain(ACCESS.iter().map(|(names, _)| *names));
        let names = names.chain(NOTES.iter().map(|(names, _)| *names));
        for name in names.flat_map(str::split_ascii_whitespace) {
            let mut parts = name.splitn(2, '|').map(str::as_bytes);
            let (command, below) = (parts.next().expect("a name"), parts.next());
            let found = Command::of(command, below).map(|command| command.name);
            assert_eq!(found, Ok(name));
        }
    }
}
