//! Commands that look at keys which they do not name.

use super::glob::glob_matches;
use super::table::flag::{DANGEROUS, FAST, READONLY, WRITE};
use super::table::{Family, Keys, command};
use super::{Call, Done, Refusal, Undone, parse_integer, parse_unsigned, refused, uppercase_is};
use types::{KeyHash, TableId};
use wire::control::Ask;

pub(super) static FAMILY: Family = Family {
    group: "server",
    category: Some("@keyspace"),
    commands: &[
        command("dbsize", 1, READONLY | FAST, Keys::Unnamed, dbsize).text(
            "1.0.0",
            "O(1)",
            "Counts the keys of this server.",
        ),
        command("flushall", -1, WRITE | DANGEROUS, Keys::Unnamed, flushall).text(
            "1.0.0",
            "O(N) of the number of keys",
            "Deletes every key of this server, in all databases.",
        ),
        command("flushdb", -1, WRITE | DANGEROUS, Keys::Unnamed, flushdb).text(
            "1.0.0",
            "O(N) of the number of keys",
            "Deletes every key of this server, in the current database.",
        ),
        command("scan", -2, READONLY, Keys::Unnamed, scan).text(
            "2.8.0",
            "O(1) for each call, O(N) of the number of keys for a whole walk",
            "Walks over the keys of this server.",
        ),
    ],
};

/// Buckets of one step, and most steps of one `SCAN`: a turn stays short however large COUNT is or
/// however empty the table.
const STEP_BUCKETS: usize = 4;
const STEPS_MAX: usize = 1024;

/// `DBSIZE`: exact while nothing moves in or expires, approximate meanwhile.
fn dbsize(call: &mut Call<'_>) -> Done {
    let records = call.engine.worker.table_records(call.session.table);
    call.reply.integer(records as i64);
    Ok(())
}

/// What `SCAN` was asked for.
struct ScanOptions<'a> {
    pattern: Option<&'a [u8]>,
    count: usize,
    strings: bool,
}

impl<'a> ScanOptions<'a> {
    fn parse(arguments: &[&'a [u8]]) -> Result<ScanOptions<'a>, Refusal> {
        let mut options = ScanOptions { pattern: None, count: 10, strings: true };
        let (pairs, rest) = arguments.as_chunks::<2>();
        if !rest.is_empty() {
            return Err(Refusal::Syntax);
        }
        for [word, value] in pairs {
            if uppercase_is(word, b"MATCH") {
                options.pattern = (*value != b"*").then_some(value);
            } else if uppercase_is(word, b"COUNT") {
                let count = parse_integer(value).ok_or(Refusal::NotAnInteger)?;
                options.count = usize::try_from(count).unwrap_or(0);
                if options.count == 0 {
                    return Err(Refusal::Syntax);
                }
            } else if uppercase_is(word, b"TYPE") {
                options.strings = uppercase_is(value, b"STRING");
            } else {
                return Err(Refusal::Syntax);
            }
        }
        Ok(options)
    }
}

/// `SCAN cursor [MATCH pattern] [COUNT count] [TYPE type]`. The cursor is the key hash at which
/// the walk goes on, so it stays right whatever grows, shrinks or moves meanwhile.
fn scan(call: &mut Call<'_>) -> Done {
    let cursor = parse_unsigned(call.args[1]).ok_or_else(|| refused("ERR invalid cursor"))?;
    let options = ScanOptions::parse(&call.args[2..])?;
    let mut found: Vec<Vec<u8>> = Vec::new();
    let mut seen = 0;
    let mut next = Some(KeyHash(cursor));
    for _ in 0..STEPS_MAX {
        let Some(from) = next else { break };
        if seen >= options.count {
            break;
        }
        next = call.engine.worker.scan(call.session.table, from, STEP_BUCKETS, |key, _| {
            seen += 1;
            if options.strings && options.pattern.is_none_or(|p| glob_matches(p, key, false)) {
                found.push(key.to_vec());
            }
        })?;
    }
    call.reply.array(2);
    let cursor = next.map_or(0, |hash| hash.0);
    call.reply.bulk(itoa::Buffer::new().format(cursor).as_bytes());
    call.reply.array(found.len());
    for key in found {
        call.reply.bulk(&key);
    }
    Ok(())
}

/// `FLUSHDB [ASYNC | SYNC]`: empties the table on this server.
fn flushdb(call: &mut Call<'_>) -> Done {
    flush(call, Some(call.session.table))
}

/// `FLUSHALL [ASYNC | SYNC]`: empties every table on this server.
fn flushall(call: &mut Call<'_>) -> Done {
    flush(call, None)
}

fn flush(call: &mut Call<'_>, table: Option<TableId>) -> Done {
    match &call.args[1..] {
        [] => {}
        [how] if uppercase_is(how, b"ASYNC") || uppercase_is(how, b"SYNC") => {}
        _ => return Err(Refusal::Syntax.into()),
    }
    match call.answer {
        None => Err(Undone::Ask(Ask::Flush { table })),
        Some(answer) => super::cluster::reply_done(call, answer),
    }
}
