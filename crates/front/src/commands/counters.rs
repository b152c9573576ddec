//! Commands on values that are numbers.

use super::command::flag::{DENYOOM, FAST, WRITE};
use super::command::{Family, ONE, command};
use super::pieces::string;
use super::{Call, Done, Refusal, parse_integer, refused};
use values::Extended;

pub(super) static FAMILY: Family = Family {
    group: "string",
    category: Some("@string"),
    commands: &[
        command("decr", 2, WRITE | DENYOOM | FAST, ONE, |call| add(call, -1)),
        command("decrby", 3, WRITE | DENYOOM | FAST, ONE, decrby),
        command("incr", 2, WRITE | DENYOOM | FAST, ONE, |call| add(call, 1)),
        command("incrby", 3, WRITE | DENYOOM | FAST, ONE, incrby),
        command("incrbyfloat", 3, WRITE | DENYOOM | FAST, ONE, incrbyfloat),
    ],
};

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

/// `INCR key` and `DECR key`, and the end of `INCRBY` and `DECRBY`.
fn add(call: &mut Call<'_>, number: i64) -> Done {
    let sum = call.update(|record, changes| {
        let (old, expiry) = match record {
            None => (Some(0), None),
            Some(record) => (parse_integer(string(record)?), record.expiry),
        };
        let old = old.ok_or(Refusal::NotAnInteger)?;
        let sum = old.checked_add(number).ok_or(OVERFLOW)?;
        changes.put(0, itoa::Buffer::new().format(sum).as_bytes(), expiry);
        Ok::<i64, Refusal>(sum)
    })?;
    call.integer(sum?)
}

const OVERFLOW: Refusal = Refusal::because("ERR increment or decrement would overflow");

/// `INCRBYFLOAT key number`.
fn incrbyfloat(call: &mut Call<'_>) -> Done {
    let number = call.args[2];
    let sum = call.update(|record, changes| {
        let (old, expiry) = match record {
            None => (&b"0"[..], None),
            Some(record) => (string(record)?, record.expiry),
        };
        let old = Extended::parse(old).ok_or(NOT_A_FLOAT)?;
        let number = Extended::parse(number).ok_or(NOT_A_FLOAT)?;
        let sum = old.checked_add(number).ok_or(INFINITE)?.format();
        changes.put(0, sum.as_bytes(), expiry);
        Ok::<String, Refusal>(sum)
    })??;
    call.bulk(sum.as_bytes())
}

const NOT_A_FLOAT: Refusal = Refusal::because("ERR value is not a valid float");
const INFINITE: Refusal = Refusal::because("ERR increment would produce NaN or Infinity");
