//! Commands that wait until a list or sorted set has elements (`docs/design/blocking.md`).
//!
//! A handler tries to take elements. If there are none, it returns [`Cause::Blocked`], and is executed
//! again when a value of its keys has some. The connection ends its wait when the time limit has
//! passed, or when `CLIENT UNBLOCK` asks for it, without the handler.

use super::command::flag::{ALONE, BLOCKING, DENYOOM, FAST, WRITE};
use super::command::{Family, Keys, TWO, command};
use super::lists::{self, ItemMove, ItemPop};
use super::not_executed::KeyWait;
use super::pop_of_several::PopOfSeveral;
use super::sorted_sets::{self, MemberPop, SetEnd};
use super::{Call, Cause, Done, NotExecuted, Refusal, parse_unsigned};
use crate::core::data::Key;
use crate::operators::blocked::{AwaitedElements, AwaitedKey};
use resp::ReplyWriter;
use std::ops::Range;
use std::time::Duration;
use types::ValueType;
use values::{Extended, ListEnd, ScoredMember};

pub(super) static FAMILY: Family = Family {
    group: "list",
    category: Some("@list"),
    commands: &[
        command("blmove", 6, WAITS | DENYOOM, TWO, blmove),
        command("blmpop", -5, WAITS, Keys::CountedSecond, blmpop),
        command("blpop", -3, WAITS, ALL_BUT_LAST, |call| pop(call, ListEnd::Left)),
        command("brpop", -3, WAITS, ALL_BUT_LAST, |call| pop(call, ListEnd::Right)),
        command("brpoplpush", 4, WAITS | DENYOOM, TWO, brpoplpush),
    ],
};

pub(super) static SORTED_SET_FAMILY: Family = Family {
    group: "sorted-set",
    category: Some("@sortedset"),
    commands: &[
        command("bzmpop", -5, WAITS, Keys::CountedSecond, bzmpop),
        command("bzpopmax", -3, WAITS | FAST, ALL_BUT_LAST, |call| {
            pop_member(call, SetEnd::Highest)
        }),
        command("bzpopmin", -3, WAITS | FAST, ALL_BUT_LAST, |call| {
            pop_member(call, SetEnd::Lowest)
        }),
    ],
};

const WAITS: u32 = WRITE | BLOCKING | ALONE;

/// All arguments but the last are keys.
const ALL_BUT_LAST: Keys = Keys::At { first: 1, last: -2, step: 1 };

/// Parses a time limit in seconds; `None` means no limit.
fn parse_timeout(call: &Call<'_>, text: &[u8]) -> Result<Option<Duration>, Refusal> {
    let seconds = match parse_unsigned(text) {
        Some(whole) => whole as f64,
        None => {
            let number = Extended::parse(text).ok_or(NOT_A_FLOAT)?;
            number.format().parse().map_err(|_| NOT_A_FLOAT)?
        }
    };
    let millis = (seconds * 1000.0).ceil();
    if millis >= (i64::MAX as u64 - call.wall.0) as f64 {
        return Err(OUT_OF_RANGE);
    }
    match millis as i64 {
        ..0 => Err(NEGATIVE),
        0 => Ok(None),
        millis => Ok(Some(Duration::from_millis(millis.unsigned_abs()).min(LONGEST))),
    }
}

/// The longest wait that an `Instant` can represent.
pub(super) const LONGEST: Duration = Duration::from_secs(100 * 365 * 86_400);

const NOT_A_FLOAT: Refusal = Refusal::because("ERR timeout is not a float or out of range");
/// Refuses a time in milliseconds if the clock cannot show its end.
pub(super) fn check_millis(call: &Call<'_>, millis: u64) -> Result<(), Refusal> {
    let latest = (i64::MAX as u64).saturating_sub(call.wall.0);
    if millis <= latest { Ok(()) } else { Err(OUT_OF_RANGE) }
}

const OUT_OF_RANGE: Refusal = Refusal::because("ERR timeout is out of range");
const NEGATIVE: Refusal = Refusal::because("ERR timeout is negative");

/// Returns which of these keys the request may take elements from: those that no request for the same
/// elements has waited for longer.
pub(super) fn open(call: &Call<'_>, keys: &[Key<'_>], elements: AwaitedElements) -> Vec<bool> {
    let ticket = call.past.blocked.map(|blocked| blocked.ticket);
    let table = call.session.status.table;
    let awaited = |key: &Key<'_>| AwaitedKey { table, hash: key.hash, elements };
    keys.iter().map(|key| call.backend.may_take(awaited(key), ticket)).collect()
}

/// Makes the request wait for the keys at these positions. Inside a transaction, which cannot wait,
/// replies with `null` instead.
pub(super) fn wait(
    call: &mut Call<'_>,
    keys: Range<usize>,
    elements: AwaitedElements,
    timeout: Option<Duration>,
    null: fn(&mut ReplyWriter<'_>),
) -> Done {
    if call.backend.staged.is_some() {
        null(&mut call.reply);
        return Ok(());
    }
    let until = match call.past.blocked {
        Some(blocked) => blocked.until,
        None => timeout.map(|timeout| call.now + timeout),
    };
    let wait = KeyWait { keys, elements, until };
    Err(NotExecuted::Retry(Cause::Blocked(wait)))
}

/// Executes `take`, which takes elements of the first of these keys that is open and has some, and
/// replies. It gets the keys, and which of them are open. If there are no elements, the request waits.
fn take_or_wait<'c>(
    call: &mut Call<'c>,
    positions: Range<usize>,
    value_type: ValueType,
    timeout: Option<Duration>,
    take: impl FnOnce(&mut Call<'c>, &[Key<'c>], &[bool]) -> Result<bool, NotExecuted>,
) -> Done {
    let keys = call.keys(positions.clone());
    let elements = AwaitedElements::Taken(value_type);
    let open = open(call, &keys, elements);
    match take(call, &keys, &open)? {
        true => Ok(()),
        false => wait(call, positions, elements, timeout, |reply| reply.null_array()),
    }
}

/// `BLPOP key [key ...] timeout` and `BRPOP`.
fn pop(call: &mut Call<'_>, end: ListEnd) -> Done {
    let last = call.args.len() - 1;
    let timeout = parse_timeout(call, call.args[last])?;
    take_or_wait(call, 1..last, ValueType::List, timeout, |call, keys, open| {
        ItemPop { end, count: 1 }.run_on_first(call, keys, open, |reply, key, _| {
            reply.array(2);
            reply.bulk(key);
        })
    })
}

/// `BLMPOP timeout numkeys key [key ...] LEFT|RIGHT [COUNT count]`.
fn blmpop(call: &mut Call<'_>) -> Done {
    let several = PopOfSeveral::parse(&call.args[2..], lists::parse_end)?;
    let timeout = parse_timeout(call, call.args[1])?;
    let keys = 3..3 + several.keys;
    take_or_wait(call, keys, ValueType::List, timeout, |call, keys, open| {
        several.run(call, keys, open)
    })
}

/// `BLMOVE source target LEFT|RIGHT LEFT|RIGHT timeout`.
fn blmove(call: &mut Call<'_>) -> Done {
    let ends = [lists::parse_end(call.args[3])?, lists::parse_end(call.args[4])?];
    move_item(call, ends, call.args[5])
}

/// `BRPOPLPUSH source target timeout`.
fn brpoplpush(call: &mut Call<'_>) -> Done {
    move_item(call, [ListEnd::Right, ListEnd::Left], call.args[3])
}

fn move_item(call: &mut Call<'_>, ends: [ListEnd; 2], timeout: &[u8]) -> Done {
    let timeout = parse_timeout(call, timeout)?;
    let keys = [call.key(1), call.key(2)];
    let elements = AwaitedElements::Taken(ValueType::List);
    let may_take = open(call, &keys[..1], elements)[0];
    match (ItemMove { keys, ends, may_take }).run(call)? {
        true => Ok(()),
        false => wait(call, 1..2, elements, timeout, |reply| reply.null()),
    }
}

/// `BZPOPMIN key [key ...] timeout` and `BZPOPMAX`.
fn pop_member(call: &mut Call<'_>, end: SetEnd) -> Done {
    let last = call.args.len() - 1;
    let timeout = parse_timeout(call, call.args[last])?;
    take_or_wait(call, 1..last, ValueType::SortedSet, timeout, |call, keys, open| {
        MemberPop { end, count: 1 }.run_on_first(call, keys, open, |reply, key, members| {
            reply.array(1 + 2 * members.len());
            reply.bulk(key);
            for ScoredMember { score, member } in members {
                reply.bulk(member);
                reply.double(*score);
            }
        })
    })
}

/// `BZMPOP timeout numkeys key [key ...] MIN | MAX [COUNT count]`.
fn bzmpop(call: &mut Call<'_>) -> Done {
    let several = PopOfSeveral::parse(&call.args[2..], sorted_sets::parse_end)?;
    let timeout = parse_timeout(call, call.args[1])?;
    let keys = 3..3 + several.keys;
    take_or_wait(call, keys, ValueType::SortedSet, timeout, |call, keys, open| {
        several.run(call, keys, open)
    })
}
