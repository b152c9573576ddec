//! Two-sided reads: `BALLAST.READ` and `BALLAST.READCOPY`.
//!
//! While a range moves, a client may ask both sides for a record. The target replies with the record
//! or its absence, which counts, or that the record has not arrived. Then the source's reply counts,
//! if both name the same migration and epoch. See `docs/design/two-sided-reads.md`.

use super::command::flag::{FAST, NO_ACCESS, NO_MULTI, READONLY};
use super::command::{Family, ONE, command};
use super::pieces::string;
use super::{Call, Cause, Done, NotExecuted, Refusal, uppercase_is};
use crate::core::data::TableKey;

pub(super) static FAMILY: Family = Family {
    group: "ballast",
    category: Some("@string"),
    commands: &[
        command("ballast.read", -2, READONLY | FAST, ONE, read),
        command("ballast.readcopy", 2, READONLY | FAST | NO_ACCESS | NO_MULTI, ONE, read_copy),
    ],
};

/// `BALLAST.READ key [PULL]`: as `GET`, but a record that has not arrived is reported at once. With
/// `PULL` it is also requested from the source.
fn read(call: &mut Call<'_>) -> Done {
    let pulls = match &call.args[2..] {
        [] => false,
        [word] if uppercase_is(word, b"PULL") => true,
        _ => return Err(Refusal::Syntax.into()),
    };
    let (key, table) = (call.key(1), call.session.status.table);
    let reply = &mut call.reply;
    let result = call.backend.read_if_here(table, key, |record| {
        reply.bulk_or_null(record.map(string).transpose()?);
        Ok::<(), Refusal>(())
    })?;
    let not_here = match result {
        Ok(replied) => return Ok(replied?),
        Err(not_here) => not_here,
    };
    if pulls {
        call.backend.hint_pull(call.now, TableKey { table, key }, not_here);
    }
    call.reply.array(3);
    for number in [not_here.migration.0, not_here.epoch.0, not_here.clock.0] {
        call.reply.integer(number as i64);
    }
    Ok(())
}

/// `BALLAST.READCOPY key`: migration, epoch, value or null, and expiry time (0: none) of the record
/// in the copy that the source of a migration keeps. Null if this server has no such copy.
fn read_copy(call: &mut Call<'_>) -> Done {
    let (key, table) = (call.key(1), call.session.status.table);
    let Some((migration, epoch)) = call.backend.node().copy_of(key.hash) else {
        call.reply.null();
        return Ok(());
    };
    let reply = &mut call.reply;
    let read = call.backend.read_copy(table, key, |record| {
        let value = record.map(string).transpose()?;
        reply.array(4);
        reply.integer(migration.0 as i64);
        reply.integer(epoch.0 as i64);
        reply.bulk_or_null(value);
        let expiry = record.and_then(|record| record.expiry);
        reply.integer(expiry.map_or(0, |at| at.0) as i64);
        Ok::<(), Refusal>(())
    })?;
    let read = read.transpose()?;
    if read.is_none() {
        // The range has left, and this turn began before.
        call.reply.null();
    } else if call.backend.node().copy_of(key.hash) != Some((migration, epoch)) {
        // The copy may have been deleted meanwhile.
        return Err(NotExecuted::Retry(Cause::Turn));
    }
    Ok(())
}
