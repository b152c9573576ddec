//! Commands on keys, independent of their values.

use super::command::flag::{DANGEROUS, DENYOOM, FAST, NO_ACCESS, OTHER_TABLES, READONLY, WRITE};
use super::command::{ALL, Family, Keys, ONE, TWO, command};
use super::numbers::parse_integer_within;
use super::packed::{SizeChange, again_if_replaced};
use super::streams::copy_stream;
use super::{Call, Done, NotExecuted, Refusal, refused};
use crate::core::data::{Need, Record, TableKey};
use crate::core::elements::{NewExpiry, Touched, ValueChange};
use crate::core::lists::ListChange;
use crate::core::streams::StreamAccess;
use crate::operators::counts::Found;
use std::collections::HashSet;
use types::limits::DATABASES;
use types::{TableId, ValueType};
use values::{ListEnd, PackedList, TimedElement, ValuePages};

pub(super) static FAMILY: Family = Family {
    group: "generic",
    category: Some("@keyspace"),
    commands: &[
        command("copy", -3, WRITE | DENYOOM | OTHER_TABLES, TWO, copy),
        command("del", -2, WRITE | NO_ACCESS, ALL, del),
        command("exists", -2, READONLY | FAST | NO_ACCESS, ALL, exists),
        command("move", 3, WRITE | FAST, ONE, move_away),
        command("rename", 3, WRITE, TWO, rename),
        command("renamenx", 3, WRITE | FAST, TWO, renamenx),
        command("swapdb", 3, WRITE | FAST | DANGEROUS, Keys::Unnamed, swapdb),
        command("touch", -2, READONLY | FAST, ALL, exists),
        command("type", 2, READONLY | FAST | NO_ACCESS, ONE, kind),
        command("unlink", -2, WRITE | FAST | NO_ACCESS, ALL, del),
    ],
};

/// `DEL key [key ...]` and `UNLINK`: both return the number of keys removed, so both read first.
fn del(call: &mut Call<'_>) -> Done {
    let keys = call.keys(1..call.args.len());
    let mut has_pages = false;
    let removed = call.update_keys(&keys, Need::Records, |records, changes| {
        let mut removed = 0;
        // A key that is named twice is removed and counted once.
        let mut named = HashSet::new();
        for (at, record) in records.iter().enumerate() {
            let is_first = keys.len() == 1 || record.is_some() && named.insert(keys[at].bytes);
            if let Some(record) = record.filter(|_| is_first) {
                has_pages |= ValuePages::of(record.value).is_some();
                changes.delete(at);
                removed += 1;
            }
        }
        removed
    })?;
    if has_pages {
        call.backend.note_orphans();
    }
    call.integer(removed)
}

/// `EXISTS key [key ...]` and `TOUCH`: a key that is named twice counts twice.
fn exists(call: &mut Call<'_>) -> Done {
    let keys = call.keys(1..call.args.len());
    let count = call
        .backend
        .read(call.session.status.table, &keys, |records| records.iter().flatten().count())?;
    call.integer(count as i64)
}

/// `TYPE key`.
fn kind(call: &mut Call<'_>) -> Done {
    let name = call.read(|record| record.map_or("none", |it| it.value.value_type.name()))?;
    call.reply.simple(name);
    Ok(())
}

const NO_SUCH_KEY: Refusal = Refusal::because("ERR no such key");

/// `RENAME key newkey`.
fn rename(call: &mut Call<'_>) -> Done {
    rename_if(call, |_| true)?;
    call.ok()
}

/// `RENAMENX key newkey`.
fn renamenx(call: &mut Call<'_>) -> Done {
    let renamed = rename_if(call, |new| new.is_none())?;
    call.integer(renamed)
}

fn rename_if(
    call: &mut Call<'_>,
    allows: impl Fn(Option<Record<'_>>) -> bool,
) -> Result<bool, NotExecuted> {
    let table = call.session.status.table;
    let keys = [1, 2].map(|at| TableKey { table, key: call.key(at) });
    let renamed = call.backend.update_tables(
        &keys,
        |_| true,
        |records, changes| {
            let record = records[0].ok_or(NO_SUCH_KEY)?;
            if !allows(records[1]) || keys[0] == keys[1] {
                return Ok(Ok(allows(records[1])));
            }
            if ValuePages::of(record.value).is_some() {
                return Ok(Err(record.value.value_type));
            }
            changes.put_value(1, record.value, record.expiry);
            changes.delete(0);
            Ok::<_, Refusal>(Ok(true))
        },
    )??;
    match renamed {
        Ok(renamed) => Ok(renamed),
        Err(value_type) => {
            let renamed = copy_elements(call, value_type, keys, true, allows)?;
            Ok(renamed.ok_or(NO_SUCH_KEY)?)
        }
    }
}

/// Copies a split value to another key, if `allows` says so of the record there, and removes the old
/// one if `moves` is set. Returns whether it did so; `None`: there is no value.
fn copy_elements(
    call: &mut Call<'_>,
    value_type: ValueType,
    [from, to]: [TableKey<'_>; 2],
    moves: bool,
    allows: impl Fn(Option<Record<'_>>) -> bool,
) -> Result<Option<bool>, NotExecuted> {
    let expiry = NewExpiry::Of(0);
    if value_type == ValueType::List {
        return again_if_replaced(copy_list(call, [from, to], moves, allows));
    }
    if value_type == ValueType::Stream {
        let [from, to] = [from, to].map(StreamAccess::of);
        let streams = [from, StreamAccess { expiry, is_replaced: true, ..to }];
        return again_if_replaced(copy_stream(call, streams, moves, allows));
    }
    let touched = if moves { Touched::All } else { Touched::Source };
    let values = [
        SizeChange::Adds(0).of(from, touched),
        ValueChange { expiry, ..SizeChange::Adds(0).of(to, Touched::Replaced) },
    ];
    let copied = call.backend.update_values(value_type, &values, |values, records| {
        let [from, to] = values else { unreachable!("there are two values") };
        if records[0].is_none() {
            return Ok(None);
        }
        if !allows(records[1]) {
            return Ok(Some(false));
        }
        for timed in from.iter_timed() {
            let TimedElement { element, expiry } = timed?;
            to.set_until(element.name, element.value, expiry)?;
        }
        if to.count() == 0 {
            // All fields have expired: nothing must be left of the former value.
            to.clear();
        }
        if moves {
            from.clear();
        }
        Ok(Some(true))
    });
    again_if_replaced(copied)
}

/// Copies a list like [`copy_elements`].
fn copy_list(
    call: &mut Call<'_>,
    keys: [TableKey<'_>; 2],
    moves: bool,
    allows: impl Fn(Option<Record<'_>>) -> bool,
) -> Result<Option<bool>, NotExecuted> {
    let expiry = NewExpiry::Of(0);
    let [from, to] = keys.map(ListChange::of);
    let lists = [from, ListChange { expiry, is_replaced: true, ..to }];
    call.backend.update_lists(&lists, PackedList::EMPTY, |lists, records| {
        if records[0].is_none() {
            return Ok(None);
        }
        if !allows(records[1]) {
            return Ok(Some(false));
        }
        let all = lists.on(0, |from| from.slice(0..from.count()))?;
        let to = lists.get(1)?;
        all.parts().for_each(|part| to.push(ListEnd::Right, part));
        if moves {
            lists.get(0)?.clear();
        }
        Ok(Some(true))
    })
}

/// `COPY key newkey [DB database] [REPLACE]`.
fn copy(call: &mut Call<'_>) -> Done {
    let (table, mut to, mut replaces) =
        (call.session.status.table, call.session.status.table, false);
    let mut words = call.args[3..].iter();
    while let Some(word) = words.next() {
        match &word.to_ascii_uppercase()[..] {
            b"REPLACE" => replaces = true,
            b"DB" => to = parse_database(words.next().ok_or(Refusal::Syntax)?)?,
            _ => return Err(Refusal::Syntax.into()),
        }
    }
    let (from, key) = (call.key(1), call.key(2));
    if (table, from.bytes) == (to, key.bytes) {
        return Err(refused("ERR source and destination objects are the same"));
    }
    let keys = [TableKey { table, key: from }, TableKey { table: to, key }];
    let allows = |old: Option<Record<'_>>| replaces || old.is_none();
    let mut exists = false;
    let copied = call.backend.update_tables(
        &keys,
        |_| true,
        |records, changes| {
            exists = records[0].is_some();
            let Some(record) = records[0].filter(|_| allows(records[1])) else { return Ok(false) };
            if ValuePages::of(record.value).is_some() {
                return Err(record.value.value_type);
            }
            changes.put_value(1, record.value, record.expiry);
            Ok(true)
        },
    )?;
    let copied = match copied {
        Ok(copied) => copied,
        Err(value_type) => {
            let copied = copy_elements(call, value_type, keys, false, allows)?;
            exists = copied.is_some();
            copied.unwrap_or(false)
        }
    };
    call.backend.count(Found::key(exists));
    call.integer(copied)
}

/// Parses a database number into its table.
pub(super) fn parse_database(number: &[u8]) -> Result<TableId, Refusal> {
    let number = parse_integer_within(number, i64::from(i32::MIN)..=i64::from(i32::MAX))?;
    let table = u8::try_from(number).ok().filter(|&table| usize::from(table) < DATABASES);
    table.map(TableId).ok_or(Refusal::because("ERR DB index is out of range"))
}

/// `MOVE key database`.
fn move_away(_: &mut Call<'_>) -> Done {
    Err(refused("ERR MOVE is not supported: use COPY key key DB database, then DEL"))
}

/// `SWAPDB database database`.
fn swapdb(_: &mut Call<'_>) -> Done {
    Err(refused("ERR SWAPDB is not supported"))
}
