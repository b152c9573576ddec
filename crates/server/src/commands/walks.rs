//! Commands that look at keys which they do not name.

use super::glob::glob_matches;
use super::strings::BadArgument;
use super::{Call, Pause, parse_integer, parse_unsigned, uppercase_is};
use types::{KeyHash, TableId};
use wire::control::Ask;

/// Buckets of one step, and most steps of one `SCAN`: a turn stays short however large COUNT is or
/// however empty the table.
const STEP_BUCKETS: usize = 4;
const STEPS_MAX: usize = 1024;

/// `DBSIZE`: exact while nothing moves in or expires, approximate meanwhile.
pub(crate) fn dbsize(call: &mut Call<'_>) -> Result<(), Pause> {
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
    fn parse(arguments: &[&'a [u8]]) -> Result<ScanOptions<'a>, BadArgument> {
        let mut options = ScanOptions { pattern: None, count: 10, strings: true };
        let (pairs, rest) = arguments.as_chunks::<2>();
        if !rest.is_empty() {
            return Err(BadArgument::Syntax);
        }
        for [word, value] in pairs {
            if uppercase_is(word, b"MATCH") {
                options.pattern = (*value != b"*").then_some(value);
            } else if uppercase_is(word, b"COUNT") {
                let count = parse_integer(value).ok_or(BadArgument::NotAnInteger)?;
                options.count = usize::try_from(count).unwrap_or(0);
                if options.count == 0 {
                    return Err(BadArgument::Syntax);
                }
            } else if uppercase_is(word, b"TYPE") {
                options.strings = uppercase_is(value, b"STRING");
            } else {
                return Err(BadArgument::Syntax);
            }
        }
        Ok(options)
    }
}

/// `SCAN cursor [MATCH pattern] [COUNT count] [TYPE type]`. The cursor is the key hash at which
/// the walk goes on, so it stays right whatever grows, shrinks or moves meanwhile.
pub(crate) fn scan(call: &mut Call<'_>) -> Result<(), Pause> {
    let Some(cursor) = parse_unsigned(call.args[1]) else {
        call.reply.error("ERR invalid cursor");
        return Ok(());
    };
    let options = match ScanOptions::parse(&call.args[2..]) {
        Ok(options) => options,
        Err(bad) => {
            call.refuse(bad, "scan");
            return Ok(());
        }
    };
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
pub(crate) fn flushdb(call: &mut Call<'_>) -> Result<(), Pause> {
    flush(call, Some(call.session.table))
}

/// `FLUSHALL [ASYNC | SYNC]`: empties every table on this server.
pub(crate) fn flushall(call: &mut Call<'_>) -> Result<(), Pause> {
    flush(call, None)
}

fn flush(call: &mut Call<'_>, table: Option<TableId>) -> Result<(), Pause> {
    match &call.args[1..] {
        [] => {}
        [how] if uppercase_is(how, b"ASYNC") || uppercase_is(how, b"SYNC") => {}
        _ => {
            call.syntax_error();
            return Ok(());
        }
    }
    match call.answer {
        None => Err(Pause::Ask(Ask::Flush { table })),
        Some(answer) => {
            super::cluster::reply_done(call, answer);
            Ok(())
        }
    }
}
