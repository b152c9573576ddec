//! Strings that are numbers.

use super::table::flag::{DENYOOM, FAST, WRITE};
use super::table::{Family, ONE, command};
use super::{Call, Done, Refusal, parse_integer, refused};
use store::Need;

pub(super) static FAMILY: Family = Family {
    group: "string",
    category: Some("@string"),
    commands: &[
        command("decr", 2, WRITE | DENYOOM | FAST, ONE, decr).text(
            "1.0.0",
            "O(1)",
            "Takes one from a number; what does not exist is 0.",
        ),
        command("decrby", 3, WRITE | DENYOOM | FAST, ONE, decrby).text(
            "1.0.0",
            "O(1)",
            "Takes an integer from a number.",
        ),
        command("incr", 2, WRITE | DENYOOM | FAST, ONE, incr).text(
            "1.0.0",
            "O(1)",
            "Adds one to a number; what does not exist is 0.",
        ),
        command("incrby", 3, WRITE | DENYOOM | FAST, ONE, incrby).text(
            "1.0.0",
            "O(1)",
            "Adds an integer to a number.",
        ),
    ],
};

/// `INCR key`.
fn incr(call: &mut Call<'_>) -> Done {
    add(call, 1)
}

/// `DECR key`.
fn decr(call: &mut Call<'_>) -> Done {
    add(call, -1)
}

/// `INCRBY key number`.
fn incrby(call: &mut Call<'_>) -> Done {
    let number = parse_integer(call.args[2]).ok_or(Refusal::NotAnInteger)?;
    add(call, number)
}

/// `DECRBY key number`.
fn decrby(call: &mut Call<'_>) -> Done {
    let number = parse_integer(call.args[2]).ok_or(Refusal::NotAnInteger)?;
    let number = number.checked_neg().ok_or_else(|| refused("ERR decrement would overflow"))?;
    add(call, number)
}

fn add(call: &mut Call<'_>, number: i64) -> Done {
    let (key, table) = (call.key(1), call.session.table);
    let sum = call.engine.worker.update(table, &[key], Need::Records, |records, changes| {
        let (old, expiry) = match records[0] {
            None => (Some(0), None),
            Some(record) => (parse_integer(record.value), record.expiry),
        };
        let old = old.ok_or(Refusal::NotAnInteger)?;
        let sum = old.checked_add(number).ok_or(OVERFLOW)?;
        changes.put(0, itoa::Buffer::new().format(sum).as_bytes(), expiry);
        Ok::<i64, Refusal>(sum)
    })?;
    call.reply.integer(sum?);
    Ok(())
}

const OVERFLOW: Refusal =
    Refusal::Because(std::borrow::Cow::Borrowed("ERR increment or decrement would overflow"));
