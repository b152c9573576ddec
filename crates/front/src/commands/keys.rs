//! Commands on keys, independent of their values.

use super::command::flag::{DANGEROUS, DENYOOM, FAST, NO_ACCESS, OTHER_TABLES, READONLY, WRITE};
use super::command::{ALL, Family, Keys, ONE, TWO, command};
use super::numbers::parse_integer_within;
use super::{Call, Done, Refusal, refused};
use crate::core::data::{Changes, Need, Record, TableKey};
use crate::operators::counts::Found;
use types::TableId;
use types::limits::DATABASES;

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
    let removed = call.update_keys(&keys, Need::Records, |records, changes| {
        let mut removed = 0;
        for (at, record) in records.iter().enumerate() {
            // A key that is named twice is removed and counted once.
            let again = keys[..at].iter().any(|key| key.bytes == keys[at].bytes);
            if record.is_some() && !again {
                changes.delete(at);
                removed += 1;
            }
        }
        removed
    })?;
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
    allows: impl FnOnce(Option<Record<'_>>) -> bool,
) -> Result<bool, super::NotExecuted> {
    let keys = [call.key(1), call.key(2)];
    let renamed = call.update_keys(&keys, Need::Records, |records, changes| {
        let record = records[0].ok_or(NO_SUCH_KEY)?;
        let renamed = allows(records[1]);
        if renamed && keys[0] != keys[1] {
            changes.put_value(1, record.value, record.expiry);
            changes.delete(0);
        }
        Ok::<bool, Refusal>(renamed)
    })?;
    Ok(renamed?)
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
    let mut found = Found::default();
    let mut copy = |record: Option<Record<'_>>,
                    old: Option<Record<'_>>,
                    to: usize,
                    changes: &mut Changes<'_>| {
        found = Found::key(record.is_some());
        let Some(record) = record.filter(|_| replaces || old.is_none()) else { return false };
        changes.put_value(to, record.value, record.expiry);
        true
    };
    let keys = [TableKey { table, key: from }, TableKey { table: to, key }];
    let copied = call.backend.update_tables(&keys, keys.len(), |records, changes| {
        copy(records[0], records[1], 1, changes)
    })?;
    call.backend.count(found);
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
