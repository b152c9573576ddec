//! `SLOWLOG`, and Valkey's newer `COMMANDLOG`, which also has logs of large requests and large
//! replies. Those two logs are always empty here.

use super::command::{Command, Keys, command};
use super::help::help;
use super::server::OPERATOR;
use super::{Call, Done, NotExecuted, Refusal, parse_integer, refused};
use crate::operators::lock;

pub(super) static SLOWLOG: &[Command] = &[
    command("slowlog|get", -2, OPERATOR, Keys::None, get),
    help("slowlog|help"),
    command("slowlog|len", 2, OPERATOR, Keys::None, len),
    command("slowlog|reset", 2, OPERATOR, Keys::None, reset),
];

pub(super) static COMMANDLOG: &[Command] = &[
    command("commandlog|get", 4, OPERATOR, Keys::None, get_of_kind),
    help("commandlog|help"),
    command("commandlog|len", 3, OPERATOR, Keys::None, len_of_kind),
    command("commandlog|reset", 3, OPERATOR, Keys::None, reset_of_kind),
];

/// `SLOWLOG GET [count]`.
fn get(call: &mut Call<'_>) -> Done {
    let count = match call.args[2..] {
        [] => 10,
        [count] => parse_count(count)?,
        _ => return Err(Refusal::Arity.into()),
    };
    reply_entries(call, count);
    Ok(())
}

/// Parses the number of entries to return; -1 means all.
fn parse_count(argument: &[u8]) -> Result<usize, NotExecuted> {
    match parse_integer(argument) {
        Some(-1) => Ok(usize::MAX),
        count => count
            .and_then(|count| usize::try_from(count).ok())
            .ok_or_else(|| refused("ERR count should be greater than or equal to -1")),
    }
}

fn reply_entries(call: &mut Call<'_>, count: usize) {
    let log = lock(&call.backend.operators.slow_log);
    let entries = log.youngest(count);
    call.reply.array(entries.len());
    for entry in entries {
        call.reply.array(6);
        call.reply.integer(entry.number as i64);
        call.reply.integer((entry.at.0 / 1000) as i64);
        call.reply.integer(entry.spent.as_micros() as i64);
        call.reply.bulks(&entry.args);
        call.reply.bulk(entry.peer.as_bytes());
        call.reply.bulk(&entry.name);
    }
}

/// `SLOWLOG LEN`.
fn len(call: &mut Call<'_>) -> Done {
    let entries = lock(&call.backend.operators.slow_log).len();
    call.integer(entries as i64)
}

/// `SLOWLOG RESET`.
fn reset(call: &mut Call<'_>) -> Done {
    lock(&call.backend.operators.slow_log).clear();
    call.ok()
}

/// Returns whether an argument names the slow log. The other valid names refer to empty logs.
fn is_slow(argument: &[u8]) -> Result<bool, NotExecuted> {
    match &argument.to_ascii_lowercase()[..] {
        b"slow" => Ok(true),
        b"large-request" | b"large-reply" => Ok(false),
        _ => Err(refused(
            "ERR type should be one of the following: slow, large-request, large-reply",
        )),
    }
}

/// `COMMANDLOG GET count type`.
fn get_of_kind(call: &mut Call<'_>) -> Done {
    let count = parse_count(call.args[2])?;
    match is_slow(call.args[3])? {
        true => reply_entries(call, count),
        false => call.reply.array(0),
    }
    Ok(())
}

/// `COMMANDLOG LEN type`.
fn len_of_kind(call: &mut Call<'_>) -> Done {
    if is_slow(call.args[2])? {
        return len(call);
    }
    call.integer(0)
}

/// `COMMANDLOG RESET type`.
fn reset_of_kind(call: &mut Call<'_>) -> Done {
    if is_slow(call.args[2])? { reset(call) } else { call.ok() }
}
