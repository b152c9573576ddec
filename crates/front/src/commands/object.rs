//! `OBJECT` and `MEMORY`: properties of values and of memory, as far as they exist here.
//!
//! Records are plain bytes in a log: they have no encoding. The replies are those that Redis would
//! most likely give. Accesses are tracked while a policy of eviction needs them.

use super::command::flag::{ANYTIME, NO_ACCESS, READONLY};
use super::command::{Command, Family, Keys, SECOND, command, container};
use super::help::help;
use super::{Call, Done, Refusal, parse_integer, uppercase_is};
use super::{lists, packed, sorted_sets};
use crate::core::data::{Accessed, Record, TableKey};
use crate::core::orders::order_bytes;
use types::ValueType;
use values::{Form, PAGE_NAME_BYTES, ValuePages};

pub(super) static OBJECT_FAMILY: Family = Family {
    group: "generic",
    category: Some("@keyspace"),
    commands: &[container("object", OBJECT)],
};

pub(super) static MEMORY_FAMILY: Family =
    Family { group: "server", category: None, commands: &[container("memory", MEMORY)] };

const QUIET: u32 = READONLY | NO_ACCESS;

static OBJECT: &[Command] = &[
    command("object|encoding", 3, QUIET, SECOND, encoding),
    command("object|freq", 3, QUIET, SECOND, frequency),
    help("object|help"),
    command("object|idletime", 3, QUIET, SECOND, idle_time),
    command("object|refcount", 3, QUIET, SECOND, |call| {
        reply_about(call, |reply, _| {
            reply.integer(1);
            Ok(())
        })
    }),
];

static MEMORY: &[Command] = &[
    command("memory|doctor", 2, 0, Keys::None, doctor),
    help("memory|help"),
    command("memory|malloc-stats", 2, ANYTIME, Keys::None, allocator),
    command("memory|purge", 2, 0, Keys::None, |call| {
        call.backend.node().orders().forget_all();
        call.ok()
    }),
    command("memory|stats", 2, 0, Keys::None, stats),
    command("memory|usage", -3, READONLY, SECOND, usage),
];

/// Replies about a record, or with null if there is none.
fn reply_about(
    call: &mut Call<'_>,
    f: impl FnOnce(&mut resp::ReplyWriter<'_>, Record<'_>) -> Result<(), Refusal>,
) -> Done {
    call.reply_with(2, |reply, record| match record {
        Some(record) => f(reply, record),
        None => {
            reply.null();
            Ok(())
        }
    })
}

/// Longest string that Redis embeds in its object header, in bytes.
const EMBEDDED_BYTES_MAX: usize = 44;

/// `OBJECT ENCODING key`.
fn encoding(call: &mut Call<'_>) -> Done {
    let (key, table) = (call.key(2), call.session.status.table);
    let is_list = |record: Record<'_>| record.value.value_type == ValueType::List;
    if call.backend.peek_one(table, key, |record| record.is_some_and(is_list))? {
        let name = packed::again_if_replaced(lists::encoding(call))?;
        return call.bulk(name);
    }
    reply_about(call, |reply, record| {
        reply.bulk(match record.value.as_string() {
            None if record.value.value_type == ValueType::SortedSet => {
                sorted_sets::encoding(record)?
            }
            None if record.value.value_type == ValueType::Stream => b"stream",
            // A list has come after the first look.
            None if is_list(record) => b"listpack",
            None => packed::encoding_name(record.value)?,
            Some(string) if parse_integer(string).is_some() => b"int",
            Some(string) if string.len() <= EMBEDDED_BYTES_MAX => b"embstr",
            Some(_) => b"raw",
        });
        Ok(())
    })
}

/// `OBJECT IDLETIME key`: 0 if no policy needs it.
fn idle_time(call: &mut Call<'_>) -> Done {
    let accessed = call.backend.accessed(call.session.status.table, call.key(2));
    reply_about(call, |reply, _| {
        match accessed {
            Some(Accessed::Before { millis }) => reply.integer((millis / 1000) as i64),
            Some(Accessed::Times { .. }) => reply.error(NOT_TIMED),
            None => reply.integer(0),
        }
        Ok(())
    })
}

/// `OBJECT FREQ key`.
fn frequency(call: &mut Call<'_>) -> Done {
    let accessed = call.backend.accessed(call.session.status.table, call.key(2));
    reply_about(call, |reply, _| {
        match accessed {
            Some(Accessed::Times { count }) => reply.integer(count.into()),
            Some(Accessed::Before { .. }) | None => reply.error(NOT_COUNTED),
        }
        Ok(())
    })
}

const NOT_TIMED: &str = "ERR An LFU maxmemory policy is selected, idle time not tracked. Please note that when switching between policies at runtime LRU and LFU data will take some time to adjust.";
const NOT_COUNTED: &str = "ERR An LFU maxmemory policy is not selected, access frequency not tracked. Please note that when switching between policies at runtime LRU and LFU data will take some time to adjust.";

/// `MEMORY USAGE key [SAMPLES count]`.
fn usage(call: &mut Call<'_>) -> Done {
    let mut rest = &call.args[3..];
    while let [word, number, after @ ..] = rest {
        if !uppercase_is(word, b"SAMPLES") {
            return Err(Refusal::Syntax.into());
        }
        if parse_integer(number).ok_or(Refusal::NotAnInteger)? < 0 {
            return Err(Refusal::Syntax.into());
        }
        rest = after;
    }
    if !rest.is_empty() {
        return Err(Refusal::Syntax.into());
    }
    let (key, table) = (call.key(2), call.session.status.table);
    let mut root = None;
    let bytes = call.backend.peek_one(table, key, |record| {
        let record = record?;
        if let (ValueType::SortedSet, Ok(Form::Split(found))) =
            (record.value.value_type, Form::of(record.value))
        {
            root = Some(found);
        }
        let expires = usize::from(record.expiry.is_some());
        let own = wire::entry::encoded_bytes(key.bytes.len(), record.value.stored_bytes(), expires);
        let pages = ValuePages::of(record.value).map_or(0, |pages| {
            let page = wire::entry::encoded_bytes(PAGE_NAME_BYTES, 0, 0) + INDEX_WORD_BYTES;
            pages.bytes + pages.count() * page as u64
        });
        Some(own + pages as usize)
    })?;
    let order =
        root.map_or(0, |root| order_bytes(call.backend.node(), TableKey { table, key }, &root));
    match bytes {
        Some(bytes) => call.reply.integer((bytes + order + INDEX_WORD_BYTES) as i64),
        None => call.reply.null(),
    }
    Ok(())
}

/// Size of a record's index entry, in bytes.
const INDEX_WORD_BYTES: usize = 8;

/// Memory use, in percent, above which the cleaner has much to do.
const FULL_PERCENT: u64 = 90;

/// `MEMORY DOCTOR`.
fn doctor(call: &mut Call<'_>) -> Done {
    let usage = call.backend.node().store().usage();
    let live = usage.log.live_bytes + usage.index_bytes;
    let percent = 100 * live / usage.log.total_bytes.max(1);
    let text = match percent {
        0..FULL_PERCENT => {
            format!("Records and index use {percent} % of the memory. No problem found.\n")
        }
        _ => format!(
            "Records and index use {percent} % of the memory. Writes are refused when it is full: increase maxmemory, move slots to other servers, or let maxmemory-policy evict records.\n"
        ),
    };
    call.text(&text)
}

/// `MEMORY MALLOC-STATS`.
fn allocator(call: &mut Call<'_>) -> Done {
    let usage = call.backend.node().store().usage();
    let text = format!(
        "Log and index share one mapping. Bytes: total {}, free {}, live records {}, index {}, resident {}.\n",
        usage.log.total_bytes,
        usage.log.free_bytes,
        usage.log.live_bytes,
        usage.index_bytes,
        usage.log.resident_bytes,
    );
    call.text(&text)
}

/// `MEMORY STATS`: those of Redis's numbers that have a meaning here.
fn stats(call: &mut Call<'_>) -> Done {
    let usage = call.backend.node().store().usage();
    let used = usage.log.total_bytes.saturating_sub(usage.log.free_bytes);
    let keys: u64 = (0..types::limits::DATABASES)
        .map(|table| call.backend.table_records(types::TableId(table as u8)))
        .sum();
    let dataset = usage.log.live_bytes;
    let numbers = [
        ("total.allocated", used),
        ("startup.allocated", 0),
        ("overhead.total", usage.index_bytes),
        ("keys.count", keys),
        ("keys.bytes-per-key", (dataset + usage.index_bytes) / keys.max(1)),
        ("dataset.bytes", dataset),
        ("allocator.allocated", used),
        ("allocator.active", usage.log.total_bytes),
        ("allocator.resident", usage.log.resident_bytes),
    ];
    call.reply.map(numbers.len() + 1);
    call.reply.integers(numbers.map(|(name, number)| (name, number as i64)));
    call.reply.bulk(b"dataset.percentage");
    call.reply.double(100.0 * dataset as f64 / used.max(1) as f64);
    Ok(())
}
