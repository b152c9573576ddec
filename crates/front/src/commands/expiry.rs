//! Commands that read and set expiry times.

use super::command::flag::{FAST, READONLY, WRITE};
use super::command::{Family, ONE, command};
use super::{Call, Done, Refusal, parse_integer, uppercase_is};
use crate::operators::counts::Found;
use store::Record;
use types::UnixMillis;

pub(super) static FAMILY: Family = Family {
    group: "generic",
    category: Some("@keyspace"),
    commands: &[
        command("expire", -3, WRITE | FAST, ONE, expire),
        command("expireat", -3, WRITE | FAST, ONE, expireat),
        command("expiretime", 2, READONLY | FAST, ONE, expiretime),
        command("persist", 2, WRITE | FAST, ONE, persist),
        command("pexpire", -3, WRITE | FAST, ONE, pexpire),
        command("pexpireat", -3, WRITE | FAST, ONE, pexpireat),
        command("pexpiretime", 2, READONLY | FAST, ONE, pexpiretime),
        command("pttl", 2, READONLY | FAST, ONE, pttl),
        command("ttl", 2, READONLY | FAST, ONE, ttl),
    ],
};

/// `TTL key`: seconds, rounded to the nearest.
fn ttl(call: &mut Call<'_>) -> Done {
    let now = call.clock_of(&[call.key(1)]);
    tell_expiry(call, |at| rounded_seconds(at.0.saturating_sub(now.0)))
}

/// `PTTL key`: milliseconds.
fn pttl(call: &mut Call<'_>) -> Done {
    let now = call.clock_of(&[call.key(1)]);
    tell_expiry(call, |at| at.0.saturating_sub(now.0))
}

/// `EXPIRETIME key`: seconds, rounded to the nearest.
fn expiretime(call: &mut Call<'_>) -> Done {
    tell_expiry(call, |at| rounded_seconds(at.0))
}

/// `PEXPIRETIME key`: milliseconds.
fn pexpiretime(call: &mut Call<'_>) -> Done {
    tell_expiry(call, |at| at.0)
}

fn rounded_seconds(millis: u64) -> u64 {
    (millis + 500) / 1000
}

fn tell_expiry(call: &mut Call<'_>, number: impl FnOnce(UnixMillis) -> u64) -> Done {
    let left = call.read(|record| match record {
        None => -2,
        Some(Record { expiry: None, .. }) => -1,
        Some(Record { expiry: Some(at), .. }) => number(at) as i64,
    })?;
    call.integer(left)
}

/// `PERSIST key`.
fn persist(call: &mut Call<'_>) -> Done {
    let persisted = call.update(|record, changes| match record {
        Some(record) if record.expiry.is_some() => {
            changes.put(0, record.value, None);
            true
        }
        Some(_) | None => false,
    })?;
    call.integer(persisted)
}

/// `EXPIRE key seconds [NX | XX | GT | LT]`.
fn expire(call: &mut Call<'_>) -> Done {
    set_expiry(call, |number, now| number.checked_mul(1000)?.checked_add(now))
}

/// `PEXPIRE key milliseconds [NX | XX | GT | LT]`.
fn pexpire(call: &mut Call<'_>) -> Done {
    set_expiry(call, |number, now| number.checked_add(now))
}

/// `EXPIREAT key seconds-since-1970 [NX | XX | GT | LT]`.
fn expireat(call: &mut Call<'_>) -> Done {
    set_expiry(call, |number, _| number.checked_mul(1000))
}

/// `PEXPIREAT key milliseconds-since-1970 [NX | XX | GT | LT]`.
fn pexpireat(call: &mut Call<'_>) -> Done {
    set_expiry(call, |number, _| Some(number))
}

/// Conditions under which `EXPIRE` and its variants set the expiry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct ExpireConditions {
    if_none: bool,
    if_some: bool,
    if_later: bool,
    if_sooner: bool,
}

impl ExpireConditions {
    fn parse(words: &[&[u8]]) -> Result<ExpireConditions, Refusal> {
        let mut conditions = ExpireConditions::default();
        for word in words {
            let field = match () {
                () if uppercase_is(word, b"NX") => &mut conditions.if_none,
                () if uppercase_is(word, b"XX") => &mut conditions.if_some,
                () if uppercase_is(word, b"GT") => &mut conditions.if_later,
                () if uppercase_is(word, b"LT") => &mut conditions.if_sooner,
                () => {
                    let text = format!("ERR Unsupported option {}", String::from_utf8_lossy(word));
                    return Err(Refusal::Because(text.into()));
                }
            };
            *field = true;
        }
        let ExpireConditions { if_none, if_some, if_later, if_sooner } = conditions;
        if if_none && (if_some || if_later || if_sooner) {
            let text = "ERR NX and XX, GT or LT options at the same time are not compatible";
            return Err(Refusal::Because(text.into()));
        }
        if if_later && if_sooner {
            let text = "ERR GT and LT options at the same time are not compatible";
            return Err(Refusal::Because(text.into()));
        }
        Ok(conditions)
    }

    /// Returns whether the conditions allow the new expiry. A missing expiry counts as infinite.
    fn allow(self, old: Option<UnixMillis>, new: u64) -> bool {
        !(self.if_none && old.is_some()
            || self.if_some && old.is_none()
            || self.if_later && old.is_none_or(|old| new <= old.0)
            || self.if_sooner && old.is_some_and(|old| new >= old.0))
    }
}

fn set_expiry(call: &mut Call<'_>, at: impl FnOnce(i64, i64) -> Option<i64>) -> Done {
    let conditions = ExpireConditions::parse(&call.args[3..])?;
    let number = parse_integer(call.args[2]).ok_or(Refusal::NotAnInteger)?;
    let now = call.clock_of(&[call.key(1)]);
    let at = at(number, now.0 as i64).ok_or(Refusal::ExpireTime)?;
    let at = u64::try_from(at).unwrap_or(0);
    let mut expired = 0;
    let set = call.update(|record, changes| {
        let Some(record) = record else { return false };
        if !conditions.allow(record.expiry, at) {
            return false;
        }
        if at <= now.0 {
            expired = 1;
            changes.delete(0);
        } else {
            changes.put(0, record.value, Some(UnixMillis(at)));
        }
        true
    })?;
    call.backend.data().count(Found::expired(expired));
    call.integer(set)
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
