//! Commands on parts of values.

use super::command::flag::{DENYOOM, FAST, READONLY, WRITE};
use super::command::{Family, ONE, command};
use super::{Call, Done, Refusal, parse_integer, refused};
use crate::core::data::Record;
use std::ops::Range;
use types::UnixMillis;
use types::limits::VALUE_BYTES_MAX;

pub(super) static FAMILY: Family = Family {
    group: "string",
    category: Some("@string"),
    commands: &[
        command("append", 3, WRITE | DENYOOM | FAST, ONE, append),
        command("getrange", 4, READONLY, ONE, getrange),
        command("setrange", 4, WRITE | DENYOOM, ONE, setrange),
        command("strlen", 2, READONLY | FAST, ONE, strlen),
        command("substr", 4, READONLY, ONE, getrange),
    ],
};

/// Returns the string of a record.
#[inline]
pub(super) fn string(record: Record<'_>) -> Result<&[u8], Refusal> {
    record.value.as_string().ok_or(Refusal::WrongType)
}

/// Returns the string and the expiry of a record. A missing record is an empty string without
/// expiry.
pub(super) fn string_or_empty(
    record: Option<Record<'_>>,
) -> Result<(&[u8], Option<UnixMillis>), Refusal> {
    record.map_or(Ok((&[], None)), |record| Ok((string(record)?, record.expiry)))
}

/// Returns the range between two inclusive positions of `length` units, by Redis's rules: negative
/// positions count from the end, and positions outside are clamped. `None` if the range is empty.
pub(super) fn piece(first: i64, last: i64, length: usize) -> Option<Range<usize>> {
    if first < 0 && last < 0 && first > last {
        return None;
    }
    clamped(first, last, length)
}

/// Does the same as [`piece`], but accepts negative positions in the wrong order if both are
/// clamped.
pub(super) fn clamped(first: i64, last: i64, length: usize) -> Option<Range<usize>> {
    let length = i64::try_from(length).unwrap_or(i64::MAX);
    let inside = |at: i64| if at < 0 { at.saturating_add(length).max(0) } else { at };
    let (first, last) = (inside(first), inside(last).min(length - 1));
    (first <= last).then(|| first as usize..last as usize + 1)
}

/// `STRLEN key`.
fn strlen(call: &mut Call<'_>) -> Done {
    let length = call.read(|record| Ok::<_, Refusal>(string_or_empty(record)?.0.len()))??;
    call.integer(length as i64)
}

/// `GETRANGE key first last` and `SUBSTR`.
fn getrange(call: &mut Call<'_>) -> Done {
    let first = parse_integer(call.args[2]).ok_or(Refusal::NotAnInteger)?;
    let last = parse_integer(call.args[3]).ok_or(Refusal::NotAnInteger)?;
    call.reply_with(1, |reply, record| {
        let (value, _) = string_or_empty(record)?;
        reply.bulk(piece(first, last, value.len()).map_or(&[], |piece| &value[piece]));
        Ok(())
    })
}

/// `APPEND key value`.
fn append(call: &mut Call<'_>) -> Done {
    let tail = call.args[2];
    let length = call.update(|record, changes| {
        let (old, expiry) = string_or_empty(record)?;
        let length = old.len() + tail.len();
        if length > VALUE_BYTES_MAX {
            return Err(Refusal::TooLarge);
        }
        changes.put_joined(0, &[old, tail], expiry);
        Ok(length)
    })??;
    call.integer(length as i64)
}

/// `SETRANGE key offset value`. An empty value neither creates a key nor extends one.
fn setrange(call: &mut Call<'_>) -> Done {
    let offset = parse_integer(call.args[2]).ok_or(Refusal::NotAnInteger)?;
    let offset = u64::try_from(offset).map_err(|_| refused("ERR offset is out of range"))?;
    let new = call.args[3];
    let end = offset.saturating_add(new.len() as u64);
    let length = call.update(|record, changes| {
        let (old, expiry) = string_or_empty(record)?;
        if new.is_empty() {
            return Ok(old.len());
        }
        if end > VALUE_BYTES_MAX as u64 {
            return Err(Refusal::TooLarge);
        }
        let (offset, end) = (offset as usize, end as usize);
        let gap = vec![0; offset.saturating_sub(old.len())];
        let (before, after) = (&old[..offset.min(old.len())], &old[end.min(old.len())..]);
        changes.put_joined(0, &[before, &gap, new, after], expiry);
        Ok(end.max(old.len()))
    })??;
    call.integer(length as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_counted_as_redis_counts_them() {
        for (first, last, length, expected) in [
            (0, -1, 5, Some(0..5)),
            (1, 3, 5, Some(1..4)),
            (-3, -2, 5, Some(2..4)),
            (-100, 100, 5, Some(0..5)),
            (0, -100, 5, Some(0..1)),
            (3, 2, 5, None),
            (-1, -2, 5, None),
            (5, 9, 5, None),
            (0, 0, 0, None),
            (0, -1, 0, None),
            (i64::MIN, i64::MAX, 5, Some(0..5)),
            (i64::MAX, i64::MAX, 5, None),
            (i64::MIN, i64::MIN, 5, Some(0..1)),
        ] {
            assert_eq!(piece(first, last, length), expected, "{first} {last} {length}");
        }
    }
}
