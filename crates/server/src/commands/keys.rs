//! Commands on keys, whatever they hold.

use super::strings::BadArgument;
use super::{Call, Pause, parse_integer, uppercase_is};
use store::{Key, Need, Record};
use types::UnixMillis;

/// `DEL key [key ...]` and `UNLINK`: both count what they removed, so both read first.
pub(crate) fn del(call: &mut Call<'_>) -> Result<(), Pause> {
    let keys: Vec<Key<'_>> = (1..call.args.len()).map(|at| call.key(at)).collect();
    let removed = call.engine.worker.update(
        call.session.table,
        &keys,
        Need::Records,
        |records, changes| {
            let mut removed = 0;
            for (at, record) in records.iter().enumerate() {
                // A key that is named twice is removed, and counted, once.
                let again = keys[..at].iter().any(|key| key.bytes == keys[at].bytes);
                if record.is_some() && !again {
                    changes.delete(at);
                    removed += 1;
                }
            }
            removed
        },
    )?;
    call.reply.integer(removed);
    Ok(())
}

/// `EXISTS key [key ...]` and `TOUCH`: a key that is named twice counts twice.
pub(crate) fn exists(call: &mut Call<'_>) -> Result<(), Pause> {
    let keys: Vec<Key<'_>> = (1..call.args.len()).map(|at| call.key(at)).collect();
    let count = call
        .engine
        .worker
        .read(call.session.table, &keys, |records| records.iter().flatten().count())?;
    call.reply.integer(count as i64);
    Ok(())
}

/// `TYPE key`.
pub(crate) fn kind(call: &mut Call<'_>) -> Result<(), Pause> {
    let key = call.key(1);
    let exists = call.engine.worker.read_one(call.session.table, key, |record| record.is_some())?;
    call.reply.simple(if exists { "string" } else { "none" });
    Ok(())
}

/// `TTL key`: seconds, rounded to the nearest.
pub(crate) fn ttl(call: &mut Call<'_>) -> Result<(), Pause> {
    time_left(call, |millis| (millis + 500) / 1000)
}

/// `PTTL key`: milliseconds.
pub(crate) fn pttl(call: &mut Call<'_>) -> Result<(), Pause> {
    time_left(call, |millis| millis)
}

fn time_left(call: &mut Call<'_>, unit: impl FnOnce(u64) -> u64) -> Result<(), Pause> {
    let key = call.key(1);
    let now = call.wall;
    let left = call.engine.worker.read_one(call.session.table, key, |record| match record {
        None => -2,
        Some(Record { expiry: None, .. }) => -1,
        Some(Record { expiry: Some(at), .. }) => unit(at.0.saturating_sub(now.0)) as i64,
    })?;
    call.reply.integer(left);
    Ok(())
}

/// `PERSIST key`.
pub(crate) fn persist(call: &mut Call<'_>) -> Result<(), Pause> {
    let (key, table) = (call.key(1), call.session.table);
    let persisted = call.engine.worker.update(
        table,
        &[key],
        Need::Records,
        |records, changes| match records[0] {
            Some(record) if record.expiry.is_some() => {
                changes.put(0, record.value, None);
                true
            }
            Some(_) | None => false,
        },
    )?;
    call.reply.integer(i64::from(persisted));
    Ok(())
}

/// `EXPIRE key seconds [NX | XX | GT | LT]`.
pub(crate) fn expire(call: &mut Call<'_>) -> Result<(), Pause> {
    set_expiry(call, "expire", |number, now| number.checked_mul(1000)?.checked_add(now))
}

/// `PEXPIRE key milliseconds [NX | XX | GT | LT]`.
pub(crate) fn pexpire(call: &mut Call<'_>) -> Result<(), Pause> {
    set_expiry(call, "pexpire", |number, now| number.checked_add(now))
}

/// `EXPIREAT key seconds-since-1970 [NX | XX | GT | LT]`.
pub(crate) fn expireat(call: &mut Call<'_>) -> Result<(), Pause> {
    set_expiry(call, "expireat", |number, _| number.checked_mul(1000))
}

/// `PEXPIREAT key milliseconds-since-1970 [NX | XX | GT | LT]`.
pub(crate) fn pexpireat(call: &mut Call<'_>) -> Result<(), Pause> {
    set_expiry(call, "pexpireat", |number, _| Some(number))
}

/// When `EXPIRE` and its like set the expiry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct ExpireConditions {
    if_none: bool,
    if_some: bool,
    if_later: bool,
    if_sooner: bool,
}

impl ExpireConditions {
    fn parse(words: &[&[u8]]) -> Result<ExpireConditions, String> {
        let mut conditions = ExpireConditions::default();
        for word in words {
            let field = match () {
                () if uppercase_is(word, b"NX") => &mut conditions.if_none,
                () if uppercase_is(word, b"XX") => &mut conditions.if_some,
                () if uppercase_is(word, b"GT") => &mut conditions.if_later,
                () if uppercase_is(word, b"LT") => &mut conditions.if_sooner,
                () => {
                    let word = super::printable(word, 128);
                    return Err(format!("ERR Unsupported option {word}"));
                }
            };
            *field = true;
        }
        let ExpireConditions { if_none, if_some, if_later, if_sooner } = conditions;
        if if_none && (if_some || if_later || if_sooner) {
            return Err(
                "ERR NX and XX, GT or LT options at the same time are not compatible".into()
            );
        }
        if if_later && if_sooner {
            return Err("ERR GT and LT options at the same time are not compatible".into());
        }
        Ok(conditions)
    }

    /// No expiry counts as an endless one.
    fn allow(self, old: Option<UnixMillis>, new: u64) -> bool {
        !(self.if_none && old.is_some()
            || self.if_some && old.is_none()
            || self.if_later && old.is_none_or(|old| new <= old.0)
            || self.if_sooner && old.is_some_and(|old| new >= old.0))
    }
}

fn set_expiry(
    call: &mut Call<'_>,
    command: &str,
    at: impl FnOnce(i64, i64) -> Option<i64>,
) -> Result<(), Pause> {
    let conditions = match ExpireConditions::parse(&call.args[3..]) {
        Ok(conditions) => conditions,
        Err(text) => {
            call.reply.error(&text);
            return Ok(());
        }
    };
    let Some(number) = parse_integer(call.args[2]) else {
        call.refuse(BadArgument::NotAnInteger, command);
        return Ok(());
    };
    let Some(at) = at(number, call.wall.0 as i64) else {
        call.refuse(BadArgument::ExpireTime, command);
        return Ok(());
    };
    let (key, table, now) = (call.key(1), call.session.table, call.wall);
    let at = u64::try_from(at).unwrap_or(0);
    let set = call.engine.worker.update(table, &[key], Need::Records, |records, changes| {
        let Some(record) = records[0] else { return false };
        if !conditions.allow(record.expiry, at) {
            return false;
        }
        if at <= now.0 {
            changes.delete(0);
        } else {
            changes.put(0, record.value, Some(UnixMillis(at)));
        }
        true
    })?;
    call.reply.integer(i64::from(set));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_of_expire_are_those_of_redis() {
        let parse = |words: &[&str]| {
            let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
            ExpireConditions::parse(&words)
        };
        let at = |millis| Some(UnixMillis(millis));
        for (words, old, new, allowed) in [
            (&[][..], None, 5, true),
            (&["nx"], None, 5, true),
            (&["NX"], at(1), 5, false),
            (&["XX"], None, 5, false),
            (&["XX"], at(1), 5, true),
            (&["GT"], None, 5, false),
            (&["GT"], at(4), 5, true),
            (&["GT"], at(5), 5, false),
            (&["LT"], None, 5, true),
            (&["LT"], at(6), 5, true),
            (&["LT"], at(5), 5, false),
            (&["XX", "LT"], None, 5, false),
        ] {
            assert_eq!(parse(words).unwrap().allow(old, new), allowed, "{words:?} {old:?} {new}");
        }
        assert!(parse(&["NX", "GT"]).is_err());
        assert!(parse(&["GT", "LT"]).is_err());
        assert!(parse(&["what"]).is_err());
    }
}
