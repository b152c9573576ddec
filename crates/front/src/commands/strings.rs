//! Commands on whole values.

use super::command::flag::{DENYOOM, FAST, READONLY, WRITE};
use super::command::{ALL, Family, Keys, ONE, PAIRS, command};
use super::pieces::string;
use super::set_options::{
    Dialect, EX, Expiry, ExpiryFormat, PX, SetCondition, SetOptions, expire_at,
};
use super::{Call, Done, Refusal, parse_integer, refused};
use crate::core::data::{Changes, Need};
use crate::operators::counts::Found;
use planted::Bug;
use types::UnixMillis;

pub(super) static FAMILY: Family = Family {
    group: "string",
    category: Some("@string"),
    commands: &[
        command("delifeq", 3, WRITE | FAST, ONE, delifeq),
        command("get", 2, READONLY | FAST, ONE, get),
        command("getdel", 2, WRITE | FAST, ONE, getdel),
        command("getex", -2, WRITE | FAST, ONE, getex),
        command("getset", 3, WRITE | DENYOOM | FAST, ONE, getset),
        command("mget", -2, READONLY | FAST, ALL, mget),
        command("mset", -3, WRITE | DENYOOM, PAIRS, mset),
        command("msetex", -4, WRITE | DENYOOM, Keys::CountedPairs, msetex),
        command("msetnx", -3, WRITE | DENYOOM, PAIRS, msetnx),
        command("psetex", 4, WRITE | DENYOOM, ONE, |call| put_for(call, PX)),
        command("set", -3, WRITE | DENYOOM, ONE, set),
        command("setex", 4, WRITE | DENYOOM, ONE, |call| put_for(call, EX)),
        command("setnx", 3, WRITE | DENYOOM | FAST, ONE, setnx),
    ],
};

/// `GET key`.
fn get(call: &mut Call<'_>) -> Done {
    call.reply_with(1, |reply, record| {
        reply.bulk_or_null(record.map(string).transpose()?);
        Ok(())
    })
}

/// `MGET key [key ...]`.
fn mget(call: &mut Call<'_>) -> Done {
    let keys = call.keys(1..call.args.len());
    let reply = &mut call.reply;
    call.backend.read(call.session.status.table, &keys, |records| {
        reply.array(records.len());
        for record in records {
            // A value of another type counts as absent, as in Redis.
            reply.bulk_or_null(record.and_then(|record| record.value.as_string()));
        }
    })
}

/// `MSET key value [key value ...]`.
fn mset(call: &mut Call<'_>) -> Done {
    if call.args.len().is_multiple_of(2) {
        return Err(Refusal::Arity.into());
    }
    let args = call.args;
    let keys = call.keys((1..args.len()).step_by(2));
    call.update_keys(&keys, Need::Nothing, |_, changes| {
        for at in 0..args.len() / 2 {
            changes.put(at, args[2 + 2 * at], None);
        }
    })?;
    call.ok()
}

/// `MSETNX key value [key value ...]`.
fn msetnx(call: &mut Call<'_>) -> Done {
    if call.args.len().is_multiple_of(2) {
        return Err(Refusal::Arity.into());
    }
    let args = call.args;
    let keys = call.keys((1..args.len()).step_by(2));
    let set = call.update_keys(&keys, Need::Records, |records, changes| {
        let none_exists = records.iter().all(Option::is_none);
        if none_exists {
            for at in 0..args.len() / 2 {
                changes.put(at, args[2 + 2 * at], None);
            }
        }
        none_exists
    })?;
    call.integer(set)
}

/// `SET key value [NX | XX | IFEQ value] [GET] [EX s | PX ms | EXAT s | PXAT ms | KEEPTTL]`.
fn set(call: &mut Call<'_>) -> Done {
    if call.args.len() == 3 {
        return put(call, call.args[2], None);
    }
    let now = call.clock_of(&[call.key(1)]);
    match SetOptions::parse(&call.args[3..], Dialect::Set, now)? {
        SetOptions {
            condition: SetCondition::Always,
            fields: _,
            get: false,
            expiry: Some(Expiry::At(at)),
        } if at > now => put(call, call.args[2], Some(at)),
        options => set_reading_first(call, options, now),
    }
}

/// Writes a value blindly, without reading the old record.
fn put(call: &mut Call<'_>, value: &[u8], expiry: Option<UnixMillis>) -> Done {
    let key = call.key(1);
    call.backend.put(call.session.status.table, key, value, expiry)?;
    call.ok()
}

fn set_reading_first(call: &mut Call<'_>, options: SetOptions<'_>, now: UnixMillis) -> Done {
    let value = call.args[2];
    let mut found = Found::default();
    let (set, old) = call.update(|record, changes| {
        if options.get {
            found = Found::key(record.is_some());
        }
        let set = options.allows(record)?;
        let old = match options.get {
            true => Some(record.map(string).transpose()?.map(<[u8]>::to_vec)),
            false => None,
        };
        if set && write(changes, 0, value, options.new_expiry(record), now) {
            found.expired = u64::from(record.is_some());
        }
        Ok::<_, Refusal>((set, old))
    })??;
    call.backend.count(found);
    match (old, set) {
        (Some(Some(old)), _) => call.reply.bulk(&old),
        (Some(None), _) | (None, false) => call.reply.null(),
        (None, true) => call.reply.simple("OK"),
    }
    Ok(())
}

/// Writes a value, or deletes the key if the new expiry has passed. Returns true if it deleted.
fn write(
    changes: &mut Changes<'_>,
    at: usize,
    value: &[u8],
    expiry: Option<UnixMillis>,
    now: UnixMillis,
) -> bool {
    let is_expired = expiry.is_some_and(|expiry| expiry <= now);
    match is_expired {
        true => changes.delete(at),
        false => changes.put(at, value, expiry),
    }
    is_expired
}

/// `MSETEX numkeys key value [key value ...] [NX | XX] [EX s | PX ms | EXAT s | PXAT ms |
/// KEEPTTL]`.
fn msetex(call: &mut Call<'_>) -> Done {
    let count = parse_integer(call.args[1]).and_then(|count| u32::try_from(count).ok());
    let count = count.filter(|count| (1..=i32::MAX as u32).contains(count));
    let count = count.ok_or_else(|| refused("ERR invalid numkeys value or out of range"))? as usize;
    let args = call.args;
    let words = args.get(2 + 2 * count..).ok_or(Refusal::Syntax)?;
    let keys = call.keys((0..count).map(|at| 2 + 2 * at));
    let now = call.clock_of(&keys);
    let options = SetOptions::parse(words, Dialect::MSetEx, now)?;
    let is_past = matches!(options.expiry, Some(Expiry::At(at)) if at <= now);
    let keeps = options.expiry == Some(Expiry::Keep);
    let is_blind = options.condition == SetCondition::Always && !keeps && !is_past;
    let need = if is_blind { Need::Nothing } else { Need::Records };
    let mut expired = 0;
    let set = call.update_keys(&keys, need, |records, changes| {
        let allowed: Result<Vec<bool>, Refusal> =
            records.iter().map(|record| options.allows(*record)).collect();
        let set = allowed?.into_iter().all(|allowed| allowed);
        if set {
            for (at, record) in records.iter().enumerate() {
                let expiry = options.new_expiry(*record);
                let is_expired = write(changes, at, args[3 + 2 * at], expiry, now);
                expired += u64::from(is_expired && record.is_some());
            }
        }
        Ok::<_, Refusal>(set)
    })??;
    call.backend.count(Found::expired(expired));
    call.integer(set)
}

/// `SETNX key value`.
fn setnx(call: &mut Call<'_>) -> Done {
    let value = call.args[2];
    let set = call.update(|record, changes| {
        let absent = record.is_none();
        if absent {
            changes.put(0, value, None);
        }
        absent
    })?;
    call.integer(set)
}

/// `SETEX key seconds value` and `PSETEX key milliseconds value`.
fn put_for(call: &mut Call<'_>, format: ExpiryFormat) -> Done {
    let number = parse_integer(call.args[2]).ok_or(Refusal::NotAnInteger)?;
    let now = call.clock_of(&[call.key(1)]);
    let at = expire_at(number, format, now).ok_or(Refusal::ExpireTime)?;
    put(call, call.args[3], Some(at))
}

/// `GETSET key value`.
fn getset(call: &mut Call<'_>) -> Done {
    let options = SetOptions { get: true, ..SetOptions::default() };
    set_reading_first(call, options, UnixMillis(0))
}

/// `GETDEL key`.
fn getdel(call: &mut Call<'_>) -> Done {
    let (key, table) = (call.key(1), call.session.status.table);
    let reply = &mut call.reply;
    let exists = call.backend.update(table, &[key], Need::Records, |records, changes| {
        match records[0] {
            Some(record) => {
                reply.bulk(string(record)?);
                changes.delete(0);
            }
            None => reply.null(),
        }
        Ok::<_, Refusal>(records[0].is_some())
    })??;
    call.backend.count(Found::key(exists));
    Ok(())
}

/// `GETEX key [EX s | PX ms | EXAT s | PXAT ms | PERSIST]`.
fn getex(call: &mut Call<'_>) -> Done {
    let (key, table) = (call.key(1), call.session.status.table);
    let now = call.clock_of(&[key]);
    let options = SetOptions::parse(&call.args[2..], Dialect::GetEx, now)?;
    let Some(expiry) = options.expiry else { return get(call) };
    let reply = &mut call.reply;
    let mut found = Found::key(false);
    call.backend.update(table, &[key], Need::Records, |records, changes| {
        found = Found::key(records[0].is_some());
        let Some(record) = records[0] else {
            reply.null();
            return Ok(());
        };
        let value = string(record)?;
        reply.bulk(value);
        let new = options.new_expiry(records[0]);
        let changes_expiry = expiry != Expiry::Never || record.expiry.is_some();
        if changes_expiry && !planted::is(Bug::LifetimeNotChanged) {
            found.expired = u64::from(write(changes, 0, value, new, now));
        }
        Ok::<_, Refusal>(())
    })??;
    call.backend.count(found);
    Ok(())
}

/// `DELIFEQ key value`.
fn delifeq(call: &mut Call<'_>) -> Done {
    let value = call.args[2];
    let deleted = call.update(|record, changes| {
        let is_equal = record.map(string).transpose()?.is_some_and(|old| old == value);
        if is_equal {
            changes.delete(0);
        }
        Ok::<_, Refusal>(is_equal)
    })??;
    call.integer(deleted)
}
