//! Commands that wait until a list has items (`docs/design/blocking.md`).
//!
//! A handler tries to take items. If there are none, it returns [`Cause::Blocked`], and is executed
//! again when a list of its keys has items. The connection ends its wait when the time limit has
//! passed, or when `CLIENT UNBLOCK` asks for it, without the handler.

use super::command::flag::{ALONE, BLOCKING, DENYOOM, WRITE};
use super::command::{Family, Keys, TWO, command};
use super::lists::{ItemMove, ItemPop, PopOfSeveral, parse_end};
use super::not_executed::KeyWait;
use super::{Call, Cause, Done, NotExecuted, Refusal, parse_unsigned};
use crate::core::data::Key;
use resp::ReplyWriter;
use std::ops::Range;
use std::time::Duration;
use types::ValueType;
use values::{Extended, ListEnd};

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
const LONGEST: Duration = Duration::from_secs(100 * 365 * 86_400);

const NOT_A_FLOAT: Refusal = Refusal::because("ERR timeout is not a float or out of range");
const OUT_OF_RANGE: Refusal = Refusal::because("ERR timeout is out of range");
const NEGATIVE: Refusal = Refusal::because("ERR timeout is negative");

/// Returns which of these keys the request may take items from: those that no request has waited
/// for longer.
fn open(call: &Call<'_>, keys: &[Key<'_>]) -> Vec<bool> {
    let ticket = call.past.blocked.map(|blocked| blocked.ticket);
    let table = call.session.status.table;
    keys.iter().map(|key| call.backend.may_take((table, key.hash), ticket)).collect()
}

/// Makes the request wait for the keys at these positions. Inside a transaction, which cannot wait,
/// replies with `null` instead.
fn wait(
    call: &mut Call<'_>,
    keys: Range<usize>,
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
    let wait = KeyWait { keys, value_type: ValueType::List, until };
    Err(NotExecuted::Retry(Cause::Blocked(wait)))
}

/// `BLPOP key [key ...] timeout` and `BRPOP`.
fn pop(call: &mut Call<'_>, end: ListEnd) -> Done {
    let last = call.args.len() - 1;
    let timeout = parse_timeout(call, call.args[last])?;
    let keys = call.keys(1..last);
    let open = open(call, &keys);
    let popped = ItemPop { end, count: 1 }.run_on_first(call, &keys, &open, |reply, key, _| {
        reply.array(2);
        reply.bulk(key);
    })?;
    if popped { Ok(()) } else { wait(call, 1..last, timeout, |reply| reply.null_array()) }
}

/// `BLMPOP timeout numkeys key [key ...] LEFT|RIGHT [COUNT count]`.
fn blmpop(call: &mut Call<'_>) -> Done {
    let several = PopOfSeveral::parse(&call.args[2..])?;
    let timeout = parse_timeout(call, call.args[1])?;
    let positions = 3..3 + several.keys;
    let keys = call.keys(positions.clone());
    let open = open(call, &keys);
    match several.run(call, &keys, &open)? {
        true => Ok(()),
        false => wait(call, positions, timeout, |reply| reply.null_array()),
    }
}

/// `BLMOVE source target LEFT|RIGHT LEFT|RIGHT timeout`.
fn blmove(call: &mut Call<'_>) -> Done {
    let ends = [parse_end(call.args[3])?, parse_end(call.args[4])?];
    move_item(call, ends, call.args[5])
}

/// `BRPOPLPUSH source target timeout`.
fn brpoplpush(call: &mut Call<'_>) -> Done {
    move_item(call, [ListEnd::Right, ListEnd::Left], call.args[3])
}

fn move_item(call: &mut Call<'_>, ends: [ListEnd; 2], timeout: &[u8]) -> Done {
    let timeout = parse_timeout(call, timeout)?;
    let keys = [call.key(1), call.key(2)];
    let may_take = open(call, &keys[..1])[0];
    match (ItemMove { keys, ends, may_take }).run(call)? {
        true => Ok(()),
        false => wait(call, 1..2, timeout, |reply| reply.null()),
    }
}
