//! Commands that read keys which they do not name: scans, counts and flushes of whole tables.

use super::command::flag::{DANGEROUS, FAST, READONLY, WRITE};
use super::command::{Family, Keys, command};
use super::glob::BoundedPattern;
use super::{
    Call, Cause, Done, KeyspaceScan, NotExecuted, Refusal, UNKNOWN_BYTES_MAX, parse_integer,
    parse_unsigned, printable, refused, uppercase_is,
};
use resp::{Protocol, ReplyWriter};
use types::{KeyHash, TableId, ValueType};
use wire::control::Ask;

pub(super) static FAMILY: Family = Family {
    group: "generic",
    category: Some("@keyspace"),
    commands: &[
        command("keys", 2, READONLY | DANGEROUS, Keys::Unnamed, keys),
        command("randomkey", 1, READONLY, Keys::Unnamed, randomkey),
        command("scan", -2, READONLY, Keys::Unnamed, scan),
    ],
};

pub(super) static TABLE_FAMILY: Family = Family {
    group: "server",
    category: Some("@keyspace"),
    commands: &[
        command("dbsize", 1, READONLY | FAST, Keys::Unnamed, dbsize),
        command("flushall", -1, WRITE | DANGEROUS, Keys::Unnamed, |call| flush(call, None)),
        command("flushdb", -1, WRITE | DANGEROUS, Keys::Unnamed, |call| {
            flush(call, Some(call.session.status.table))
        }),
    ],
};

/// Buckets per step and most steps of one `SCAN`. They bound a turn, however large `COUNT` is or
/// however sparse the table.
const STEP_BUCKETS: usize = 4;
const STEPS_MAX: usize = 1024;
/// Steps of a longer scan in one turn.
const TURN_STEPS: usize = 32;

/// `DBSIZE`: exact, except that it is approximate while records arrive or expire.
fn dbsize(call: &mut Call<'_>) -> Done {
    let records = call.backend.table_records(call.session.status.table);
    call.integer(records as i64)
}

/// Redis's names of value types.
const TYPES: [&[u8]; 6] = [b"STRING", b"LIST", b"SET", b"ZSET", b"HASH", b"STREAM"];

struct ScanOptions<'a> {
    pattern: Option<&'a [u8]>,
    count: usize,
    /// Type of the keys to return.
    value_type: TypeFilter,
}

/// The condition `TYPE` of `SCAN`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TypeFilter {
    Any,
    Is(ValueType),
    /// A type of Redis that no key here can have.
    None,
}

impl TypeFilter {
    fn allows(self, value_type: ValueType) -> bool {
        match self {
            TypeFilter::Any => true,
            TypeFilter::Is(wanted) => value_type == wanted,
            TypeFilter::None => false,
        }
    }
}

impl<'a> ScanOptions<'a> {
    fn parse(arguments: &[&'a [u8]]) -> Result<ScanOptions<'a>, Refusal> {
        let mut options = ScanOptions { pattern: None, count: 10, value_type: TypeFilter::Any };
        let (pairs, rest) = arguments.as_chunks::<2>();
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
                if !TYPES.iter().any(|name| uppercase_is(value, name)) {
                    let value = printable(value, UNKNOWN_BYTES_MAX);
                    let text = format!("ERR unknown type name '{value}'");
                    return Err(Refusal::Because(text.into()));
                }
                let named = |known: &ValueType| uppercase_is(value, known.name().as_bytes());
                let known = ValueType::ALL.into_iter().find(named);
                options.value_type = known.map_or(TypeFilter::None, TypeFilter::Is);
            } else {
                return Err(Refusal::Syntax);
            }
        }
        if !rest.is_empty() {
            return Err(Refusal::Syntax);
        }
        Ok(options)
    }
}

/// `SCAN cursor [MATCH pattern] [COUNT count] [TYPE type]`. The cursor is the key hash at which the
/// scan continues, so it stays valid while the table grows, shrinks or moves.
fn scan(call: &mut Call<'_>) -> Done {
    scan_while(call, |_, _, _| Ok(true))
}

/// Executes a command with the arguments of `SCAN`. `continues` is asked before each step, with the
/// hash at which it begins and the number of steps before it.
pub(super) fn scan_while(
    call: &mut Call<'_>,
    continues: impl Fn(&Call<'_>, KeyHash, usize) -> Result<bool, NotExecuted>,
) -> Done {
    let cursor = parse_unsigned(call.args[1]).ok_or_else(|| refused("ERR invalid cursor"))?;
    let options = ScanOptions::parse(&call.args[2..])?;
    let pattern = options.pattern.map(BoundedPattern::new);
    let mut found: Vec<Vec<u8>> = Vec::new();
    let mut seen = 0;
    let mut next = Some(KeyHash(cursor));
    for steps in 0..STEPS_MAX {
        let Some(from) = next else { break };
        if seen >= options.count || !continues(call, from, steps)? {
            break;
        }
        next =
            call.backend.scan(call.session.status.table, from, STEP_BUCKETS, |key, record| {
                seen += 1;
                let is_wanted = options.value_type.allows(record.value.value_type);
                if is_wanted && pattern.as_ref().is_none_or(|pattern| pattern.matches(key)) {
                    found.push(key.to_vec());
                }
            })?;
    }
    pattern.map_or(Ok(()), |pattern| pattern.check())?;
    call.reply.array(2);
    let cursor = next.map_or(0, |hash| hash.0);
    call.reply.bulk(itoa::Buffer::new().format(cursor).as_bytes());
    call.reply.bulks(&found);
    Ok(())
}

/// Continues a scan for at most one turn's share of steps. Returns true if it has reached the end,
/// or if `stop` returns true after a step.
fn resume_scan(
    call: &mut Call<'_>,
    scan: &mut KeyspaceScan,
    mut f: impl FnMut(&mut KeyspaceScan, &[u8]),
    stop: impl Fn(&KeyspaceScan) -> bool,
) -> Result<bool, NotExecuted> {
    let table = call.session.status.table;
    for _ in 0..TURN_STEPS {
        let from = scan.next;
        let next = call.backend.scan(table, from, STEP_BUCKETS, |key, _| f(scan, key))?;
        let Some(next) = next else { return Ok(true) };
        scan.next = next;
        if stop(scan) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// `KEYS pattern`: returns keys that exist during the whole scan, and maybe others.
fn keys(call: &mut Call<'_>) -> Done {
    let pattern = BoundedPattern::new(call.args[1]);
    let mut scan = call.scan.take().unwrap_or_else(|| KeyspaceScan::from(KeyHash(0)));
    let found = |scan: &mut KeyspaceScan, key: &[u8]| {
        if pattern.matches(key) {
            ReplyWriter::new(Protocol::Resp2, &mut scan.replies).bulk(key);
            scan.count += 1;
        }
    };
    let scanned = resume_scan(call, &mut scan, found, |_| false);
    pattern.check()?;
    match scanned {
        Ok(true) => {
            call.reply.array(scan.count);
            call.reply.written(&scan.replies);
            Ok(())
        }
        Ok(false) => leave(call, scan, NotExecuted::Retry(Cause::Turn)),
        Err(next) => leave(call, scan, next),
    }
}

/// Saves the scan until the command is executed again.
fn leave(call: &mut Call<'_>, scan: KeyspaceScan, next: NotExecuted) -> Done {
    *call.scan = Some(scan);
    Err(next)
}

/// `RANDOMKEY`: returns one of the first keys after a random hash.
fn randomkey(call: &mut Call<'_>) -> Done {
    // Counting all keys would visit all leaves of the index.
    if !call.backend.has_records(call.session.status.table) {
        call.reply.null();
        return Ok(());
    }
    let mut draw = call.random();
    let random = KeyHash(draw.u64(..));
    let mut scan = call.scan.take().unwrap_or_else(|| KeyspaceScan::from(random));
    // Reservoir sampling over one step.
    let found = |scan: &mut KeyspaceScan, key: &[u8]| {
        scan.count += 1;
        if draw.u64(..scan.count as u64) == 0 {
            scan.replies = key.to_vec();
        }
    };
    match resume_scan(call, &mut scan, found, |scan| scan.count > 0) {
        Ok(true) if scan.count > 0 => call.reply.bulk(&scan.replies),
        Ok(true) if scan.is_second => call.reply.null(),
        Ok(true) => {
            let again = KeyspaceScan { is_second: true, ..KeyspaceScan::from(KeyHash(0)) };
            return leave(call, again, NotExecuted::Retry(Cause::Turn));
        }
        Ok(false) => return leave(call, scan, NotExecuted::Retry(Cause::Turn)),
        Err(next) => return leave(call, scan, next),
    }
    Ok(())
}

/// `FLUSHDB [ASYNC | SYNC]` and `FLUSHALL`: empty one table or every table on this server.
fn flush(call: &mut Call<'_>, table: Option<TableId>) -> Done {
    match &call.args[1..] {
        [] => {}
        [how] if uppercase_is(how, b"ASYNC") || uppercase_is(how, b"SYNC") => {}
        _ => return Err(Refusal::Syntax.into()),
    }
    match call.answer {
        None => Err(call.backend.ask(Ask::Flush { table })),
        Some(answer) => super::slots::reply_done(call, answer),
    }
}
