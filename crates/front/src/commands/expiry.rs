//! Commands that read and set expiry times.

use super::command::flag::{FAST, NO_ACCESS, READONLY, WRITE};
use super::command::{Family, ONE, command};
use super::set_options::{EX, EXAT, ExpiryFormat, PX, PXAT};
use super::{Call, Done, Refusal, parse_integer};
use crate::core::data::Record;
use crate::operators::counts::Found;
use planted::Bug;
use types::UnixMillis;

pub(super) static FAMILY: Family = Family {
    group: "generic",
    category: Some("@keyspace"),
    commands: &[
        command("expire", -3, WRITE | FAST, ONE, |call| set_expiry(call, EX)),
        command("expireat", -3, WRITE | FAST, ONE, |call| set_expiry(call, EXAT)),
        command("expiretime", 2, READONLY | FAST | NO_ACCESS, ONE, |call| show_expiry(call, EXAT)),
        command("persist", 2, WRITE | FAST, ONE, persist),
        command("pexpire", -3, WRITE | FAST, ONE, |call| set_expiry(call, PX)),
        command("pexpireat", -3, WRITE | FAST, ONE, |call| set_expiry(call, PXAT)),
        command("pexpiretime", 2, READONLY | FAST | NO_ACCESS, ONE, |call| show_expiry(call, PXAT)),
        command("pttl", 2, READONLY | FAST | NO_ACCESS, ONE, |call| show_expiry(call, PX)),
        command("ttl", 2, READONLY | FAST | NO_ACCESS, ONE, |call| show_expiry(call, EX)),
    ],
};

/// `TTL key`, `PTTL`, `EXPIRETIME` and `PEXPIRETIME`. Seconds are rounded to the nearest.
fn show_expiry(call: &mut Call<'_>, format: ExpiryFormat) -> Done {
    let from = match format.absolute {
        true => UnixMillis(0),
        false if planted::is(Bug::RemainingFromWallClock) => call.wall,
        false => call.clock_of(&[call.key(1)]),
    };
    let shown = call.read(|record| match record {
        None => -2,
        Some(Record { expiry: None, .. }) => -1,
        Some(Record { expiry: Some(at), .. }) => {
            let millis = at.0.saturating_sub(from.0);
            (if format.seconds { (millis + 500) / 1000 } else { millis }) as i64
        }
    })?;
    call.integer(shown)
}

/// `PERSIST key`.
fn persist(call: &mut Call<'_>) -> Done {
    let persisted = call.update_expiry(|record, changes| match record {
        Some(record) if record.expiry.is_some() => {
            changes.put_value(0, record.value, None);
            true
        }
        Some(_) | None => false,
    })?;
    call.integer(persisted)
}

/// Conditions under which `EXPIRE` and its variants set the expiry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ExpireConditions {
    if_none: bool,
    if_some: bool,
    if_later: bool,
    if_sooner: bool,
}

impl ExpireConditions {
    /// Parses the words.
    pub(super) fn parse(words: &[&[u8]]) -> Result<ExpireConditions, Refusal> {
        let mut conditions = ExpireConditions::default();
        for word in words {
            match &word.to_ascii_uppercase()[..] {
                b"NX" => conditions.if_none = true,
                b"XX" => conditions.if_some = true,
                b"GT" => conditions.if_later = true,
                b"LT" => conditions.if_sooner = true,
                _ => {
                    let text = format!("ERR Unsupported option {}", String::from_utf8_lossy(word));
                    return Err(Refusal::Because(text.into()));
                }
            }
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
    pub(super) fn allow(self, old: Option<UnixMillis>, new: u64) -> bool {
        !(self.if_none && old.is_some()
            || self.if_some && old.is_none()
            || self.if_later && old.is_none_or(|old| new <= old.0)
            || self.if_sooner && old.is_some_and(|old| new >= old.0))
    }
}

/// `EXPIRE key seconds [NX | XX | GT | LT]`, `PEXPIRE` with milliseconds, and `EXPIREAT` and
/// `PEXPIREAT` with times since 1970.
fn set_expiry(call: &mut Call<'_>, format: ExpiryFormat) -> Done {
    let conditions = ExpireConditions::parse(&call.args[3..])?;
    let now = call.clock_of(&[call.key(1)]);
    let at = parse_any_time(call.args[2], format, now)?;
    let mut expired = 0;
    let set = call.update_expiry(|record, changes| {
        let Some(record) = record else { return false };
        if !conditions.allow(record.expiry, at) {
            return false;
        }
        if at <= now.0 {
            expired = 1;
            changes.delete(0);
        } else {
            changes.put_value(0, record.value, Some(UnixMillis(at)));
        }
        true
    })?;
    call.backend.count(Found::expired(expired));
    call.integer(set)
}

/// Parses an expiry, which may be in the past, into milliseconds since 1970. What is before 1970
/// counts as 1970.
pub(super) fn parse_any_time(
    number: &[u8],
    format: ExpiryFormat,
    now: UnixMillis,
) -> Result<u64, Refusal> {
    let number = parse_integer(number).ok_or(Refusal::NotAnInteger)?;
    let millis = number.checked_mul(if format.seconds { 1000 } else { 1 });
    let from = if format.absolute { 0 } else { now.0 as i64 };
    let at = millis.and_then(|millis| millis.checked_add(from)).ok_or(Refusal::ExpireTime)?;
    Ok(u64::try_from(at).unwrap_or(0))
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
