//! Conversion of operations to requests of the Redis protocol, and of replies to outcomes.

use crate::collections::{self, RegisterShape};
use crate::history::{Lifetime, OperationOutcome, RegisterAction, RemainingTime};
use crate::servers::server_at;
use crate::typed;
use crate::versions::SeenVersion;
use crate::workload::{Register, decode};
use resp::{Items, Reply, RequestWriter};
use std::fmt;

/// Meaning of a reply to an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ReplyMeaning {
    Outcome(OperationOutcome),
    /// Not executed: redirected to this server.
    Moved(usize),
    /// Not executed in time: the client may try again.
    Later,
    /// Not executed: the server has no connection to the coordinator.
    Refused,
    /// Not executed: a command of the transaction was refused.
    Aborted,
    /// The two keys of a pair have different values.
    Torn,
    /// The members of a sorted set are not in order.
    Disordered,
    /// Not a valid reply to this request.
    Nonsense,
}

/// Appends the request of an operation.
pub(crate) fn write(register: &Register, action: RegisterAction, out: &mut Vec<u8>) {
    match register.shape {
        RegisterShape::Hash => return typed::write(register, action, out),
        RegisterShape::Fields
        | RegisterShape::List
        | RegisterShape::SortedSet
        | RegisterShape::Stream
            if !is_on_lifetime(action) =>
        {
            return write_all(&collections::commands(register, action), out);
        }
        RegisterShape::String
        | RegisterShape::Fields
        | RegisterShape::List
        | RegisterShape::SortedSet
        | RegisterShape::Stream => {}
    }
    let value = |number| register.encode(number);
    let keys = &register.keys;
    match (action, keys.len()) {
        (RegisterAction::Read, 1) => with_keys(b"GET", register, out),
        (RegisterAction::Read, _) => with_keys(b"MGET", register, out),
        (RegisterAction::Probe, _) => with_keys(b"EXISTS", register, out),
        (RegisterAction::Delete, _) => with_keys(b"DEL", register, out),
        (RegisterAction::Take, _) => with_keys(b"GETDEL", register, out),
        (RegisterAction::Increment, _) => with_keys(b"INCR", register, out),
        (RegisterAction::Write(new), 1) => {
            RequestWriter::write(&[b"SET", &keys[0].1, &value(new)], out)
        }
        (RegisterAction::Write(new), _) => with_values(b"MSET", register, &value(new), out),
        (RegisterAction::WriteExpiring(new, lifetime), _) => {
            let (option, number) = expiry_option(register, lifetime);
            with_number(&[b"SET", &keys[0].1, &value(new), option], number, out);
        }
        (RegisterAction::WriteKeeping(new), _) => {
            RequestWriter::write(&[b"SET", &keys[0].1, &value(new), b"KEEPTTL"], out);
        }
        (RegisterAction::Expire(lifetime), _) => {
            let (option, number) = expiry_option(register, lifetime);
            let name: &[u8] = if option == b"PX" { b"PEXPIRE" } else { b"PEXPIREAT" };
            with_number(&[name, &keys[0].1], number, out);
        }
        (RegisterAction::Persist, _) => with_keys(b"PERSIST", register, out),
        (RegisterAction::ReadExpiring(lifetime), _) => {
            let (option, number) = expiry_option(register, lifetime);
            with_number(&[b"GETEX", &keys[0].1, option], number, out);
        }
        (RegisterAction::ReadPersisting, _) => {
            RequestWriter::write(&[b"GETEX", &keys[0].1, b"PERSIST"], out);
        }
        (RegisterAction::ReadRemaining, _) => with_keys(b"PTTL", register, out),
        (RegisterAction::WriteIfAbsent(new), 1) => {
            RequestWriter::write(&[b"SET", &keys[0].1, &value(new), b"NX"], out);
        }
        (RegisterAction::WriteIfAbsent(new), _) => {
            with_values(b"MSETNX", register, &value(new), out)
        }
        (RegisterAction::Swap(old, new), _) => {
            let (old, new) = (value(old), value(new));
            RequestWriter::write(&[b"SET", &keys[0].1, &new, b"IFEQ", &old], out);
        }
        (RegisterAction::Exchange(new), _) => {
            RequestWriter::write(&[b"SET", &keys[0].1, &value(new), b"GET"], out);
        }
        (RegisterAction::Part(_), _) => unreachable!("a string has no parts"),
        (RegisterAction::Flush, _) => unreachable!("a flush is no operation on one register"),
    }
}

/// Appends several requests.
fn write_all(commands: &[Vec<Vec<u8>>], out: &mut Vec<u8>) {
    for words in commands {
        let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
        RequestWriter::write(&words, out);
    }
}

/// Returns whether an operation is on the time to live alone, whatever the type of the value is.
fn is_on_lifetime(action: RegisterAction) -> bool {
    matches!(
        action,
        RegisterAction::Expire(_) | RegisterAction::Persist | RegisterAction::ReadRemaining
    )
}

/// Appends the request of an operation on one key as a command with versions. A swap needs
/// `version`, that of its expected value. Returns `false` if there is no such command.
pub(crate) fn write_versioned(
    register: &Register,
    action: RegisterAction,
    version: Option<u64>,
    out: &mut Vec<u8>,
) -> bool {
    let [(_, key)] = &register.keys[..] else { return false };
    if register.shape != RegisterShape::String {
        return false;
    }
    let set_if = |new: u64, version: u64, out: &mut Vec<u8>| {
        let words = [b"BALLAST.SET", &key[..], &register.encode(new), b"IFVERSION"];
        with_number(&words, version as i64, out);
    };
    match (action, version) {
        (RegisterAction::Read, _) => with_keys(b"BALLAST.GET", register, out),
        (RegisterAction::Write(new), _) => {
            RequestWriter::write(&[b"BALLAST.SET", key, &register.encode(new)], out);
        }
        (RegisterAction::WriteIfAbsent(new), _) => set_if(new, 0, out),
        (RegisterAction::Swap(_, new), Some(version)) => set_if(new, version, out),
        _ => return false,
    }
    true
}

/// Returns the version that a reply shows, if it is the reply to a command with versions, and the
/// value that it belongs to is known.
pub(crate) fn version_in(
    register: &Register,
    action: RegisterAction,
    reply: &Reply<'_>,
) -> Option<SeenVersion> {
    let Reply::Array(items) = reply else { return None };
    if register.shape != RegisterShape::String {
        return None;
    }
    let (first, version) = pair_of(register, *items)?;
    let value = match (action, first) {
        (RegisterAction::Read, first) => value(&first)?,
        (
            RegisterAction::Write(new)
            | RegisterAction::WriteIfAbsent(new)
            | RegisterAction::Swap(_, new),
            Reply::Integer(1),
        ) => Some(new),
        _ => return None,
    };
    Some(SeenVersion { value, version })
}

/// Returns the first item of the reply to a command with versions, and the version.
fn pair_of<'r>(register: &Register, mut items: Items<'r>) -> Option<(Reply<'r>, u64)> {
    let (first, second) = (items.next()?, items.next()?);
    let Reply::Integer(version) = second else { return None };
    let is_pair = register.keys.len() == 1 && items.next().is_none();
    Some((first, u64::try_from(version).ok()?)).filter(|_| is_pair)
}

/// Interprets the reply to a command with versions.
fn read_versioned(action: RegisterAction, first: &Reply<'_>) -> Option<OperationOutcome> {
    match (action, first) {
        (RegisterAction::Read, first) => value(first).map(OperationOutcome::Value),
        (RegisterAction::Write(_), Reply::Integer(1)) => Some(OperationOutcome::Done),
        (
            RegisterAction::WriteIfAbsent(_) | RegisterAction::Swap(..),
            Reply::Integer(done @ (0 | 1)),
        ) => Some(OperationOutcome::Applied(*done == 1)),
        _ => None,
    }
}

/// Returns the option of `SET` and `GETEX` for a time to live, and its number.
pub(crate) fn expiry_option(register: &Register, lifetime: Lifetime) -> (&'static [u8], i64) {
    match lifetime {
        Lifetime::After(number) => (b"PX", register.expiry_millis(number) as i64),
        Lifetime::Until(_, millis) => (b"PXAT", millis as i64),
        Lifetime::Unknown => unreachable!("a client knows its request"),
    }
}

/// Appends an operation as a transaction, without `EXEC`: one on a pair with one command per key, or
/// one that needs several commands. Returns the number of requests, 0 if the operation cannot be a
/// transaction.
pub(crate) fn write_collected(
    register: &Register,
    action: RegisterAction,
    out: &mut Vec<u8>,
) -> usize {
    if collections::is_transaction(register, action) {
        let commands = collections::commands(register, action);
        RequestWriter::write(&[b"MULTI"], out);
        write_all(&commands, out);
        return 1 + commands.len();
    }
    if register.keys.len() == 1 {
        return 0;
    }
    let value = match action {
        RegisterAction::Read | RegisterAction::Delete => Vec::new(),
        RegisterAction::Write(new) => register.encode(new),
        _ => return 0,
    };
    RequestWriter::write(&[b"MULTI"], out);
    for (_, key) in &register.keys {
        match action {
            RegisterAction::Write(_) => RequestWriter::write(&[b"SET", key, &value], out),
            RegisterAction::Delete => RequestWriter::write(&[b"DEL", key], out),
            _ => RequestWriter::write(&[b"GET", key], out),
        }
    }
    1 + register.keys.len()
}

fn with_keys(name: &[u8], register: &Register, out: &mut Vec<u8>) {
    let writer = RequestWriter::new(1 + register.keys.len(), out).argument(name);
    drop(register.keys.iter().fold(writer, |writer, (_, key)| writer.argument(key)));
}

fn with_number(words: &[&[u8]], number: i64, out: &mut Vec<u8>) {
    let writer = RequestWriter::new(words.len() + 1, out);
    drop(words.iter().fold(writer, |writer, word| writer.argument(word)).integer(number));
}

fn with_values(name: &[u8], register: &Register, value: &[u8], out: &mut Vec<u8>) {
    let writer = RequestWriter::new(1 + 2 * register.keys.len(), out).argument(name);
    let keys = register.keys.iter();
    drop(keys.fold(writer, |writer, (_, key)| writer.argument(key).argument(value)));
}

/// Interprets the reply to an operation.
pub(crate) fn read(register: &Register, action: RegisterAction, reply: &Reply<'_>) -> ReplyMeaning {
    // A flush is an operation on all registers of its table.
    let shape = match action {
        RegisterAction::Flush => RegisterShape::String,
        _ => register.shape,
    };
    if let Reply::Error(text) = reply {
        return read_error_of(shape, text);
    }
    if shape == RegisterShape::Hash {
        return typed::read(register, action, reply);
    }
    if shape.has_parts() && !is_on_lifetime(action) {
        return collections::read(register, action, reply);
    }
    if let Reply::Array(items) = reply
        && let Some((first, _)) = pair_of(register, *items)
    {
        let outcome = read_versioned(action, &first);
        return outcome.map_or(ReplyMeaning::Nonsense, ReplyMeaning::Outcome);
    }
    if let (RegisterAction::Write(_) | RegisterAction::Delete, Reply::Array(items)) =
        (action, reply)
    {
        return read_transaction(*items);
    }
    let outcome = match action {
        RegisterAction::Read if register.keys.len() > 1 => return read_values(reply),
        RegisterAction::Read
        | RegisterAction::Take
        | RegisterAction::Exchange(_)
        | RegisterAction::ReadExpiring(_)
        | RegisterAction::ReadPersisting => value(reply).map(OperationOutcome::Value),
        RegisterAction::ReadRemaining => remaining(reply).map(OperationOutcome::Remaining),
        RegisterAction::Probe
        | RegisterAction::Delete
        | RegisterAction::Expire(_)
        | RegisterAction::Persist => match *reply {
            Reply::Integer(0) => Some(OperationOutcome::Applied(false)),
            Reply::Integer(count) if count == register.keys.len() as i64 => {
                Some(OperationOutcome::Applied(true))
            }
            Reply::Integer(1) => return ReplyMeaning::Torn,
            _ => None,
        },
        RegisterAction::Write(_)
        | RegisterAction::WriteExpiring(..)
        | RegisterAction::WriteKeeping(_) => {
            (*reply == Reply::Simple(b"OK")).then_some(OperationOutcome::Done)
        }
        RegisterAction::WriteIfAbsent(_) | RegisterAction::Swap(..) => match *reply {
            Reply::Simple(b"OK") | Reply::Integer(1) => Some(OperationOutcome::Applied(true)),
            Reply::Null | Reply::Integer(0) => Some(OperationOutcome::Applied(false)),
            _ => None,
        },
        RegisterAction::Increment => match *reply {
            Reply::Integer(number) => u64::try_from(number).ok().map(OperationOutcome::Number),
            _ => None,
        },
        RegisterAction::Flush => (*reply == Reply::Simple(b"OK")).then_some(OperationOutcome::Done),
        RegisterAction::Part(_) => None,
    };
    outcome.map_or(ReplyMeaning::Nonsense, ReplyMeaning::Outcome)
}

/// Interprets an error as the reply to an operation on a register of this shape.
fn read_error_of(shape: RegisterShape, text: &[u8]) -> ReplyMeaning {
    let is_of_type = text.starts_with(b"WRONGTYPE ");
    if is_of_type && shape == RegisterShape::Fields {
        return ReplyMeaning::Outcome(OperationOutcome::WrongType);
    }
    match collections::is_rejection(shape, text) {
        true => ReplyMeaning::Outcome(OperationOutcome::Rejected),
        false => read_error(text),
    }
}

/// Returns the number in a bulk string, or that there is none.
pub(crate) fn value(reply: &Reply<'_>) -> Option<Option<u64>> {
    match reply {
        Reply::Null => Some(None),
        Reply::Bulk(bytes) => decode(bytes).map(Some),
        _ => None,
    }
}

/// Returns the remaining time to live in a reply.
pub(crate) fn remaining(reply: &Reply<'_>) -> Option<RemainingTime> {
    match *reply {
        Reply::Integer(-2) => Some(RemainingTime::NoValue),
        Reply::Integer(-1) => Some(RemainingTime::Endless),
        Reply::Integer(millis) => u64::try_from(millis).ok().map(RemainingTime::Millis),
        _ => None,
    }
}

/// Interprets the reply of `EXEC` to one write, or one delete, of each key of a pair.
fn read_transaction(mut items: Items<'_>) -> ReplyMeaning {
    let (one, other) = (items.next(), items.next());
    match (one, other) {
        (Some(one), Some(other)) if one != other => ReplyMeaning::Torn,
        (Some(Reply::Simple(b"OK")), Some(_)) => ReplyMeaning::Outcome(OperationOutcome::Done),
        (Some(Reply::Integer(count @ (0 | 1))), Some(_)) => {
            ReplyMeaning::Outcome(OperationOutcome::Applied(count == 1))
        }
        _ => ReplyMeaning::Nonsense,
    }
}

fn read_values(reply: &Reply<'_>) -> ReplyMeaning {
    let Reply::Array(items) = reply else { return ReplyMeaning::Nonsense };
    let values: Option<Vec<_>> = items.map(|item| value(&item)).collect();
    match values.as_deref() {
        Some([one, other]) if one == other => ReplyMeaning::Outcome(OperationOutcome::Value(*one)),
        Some([_, _]) => ReplyMeaning::Torn,
        Some(_) | None => ReplyMeaning::Nonsense,
    }
}

/// Interprets an error: as a redirection, as temporary, or as a refusal.
pub(crate) fn read_error(text: &[u8]) -> ReplyMeaning {
    let text = String::from_utf8_lossy(text);
    let mut words = text.split(' ');
    match words.next() {
        Some("MOVED") => {
            let port = words.nth(1).and_then(|address| address.rsplit_once(':'));
            let port = port.and_then(|(_, port)| port.parse().ok());
            port.and_then(server_at).map_or(ReplyMeaning::Nonsense, ReplyMeaning::Moved)
        }
        Some("TRYAGAIN" | "CLUSTERDOWN" | "OOM" | "LOADING" | "MISCONF" | "NOREPLICAS") => {
            ReplyMeaning::Later
        }
        Some("EXECABORT") => ReplyMeaning::Aborted,
        _ if text.starts_with("ERR the coordinator cannot be reached") => ReplyMeaning::Refused,
        _ => ReplyMeaning::Nonsense,
    }
}

/// Printable form of a reply: bytes as text, values without their filler.
pub(crate) struct PrintedReply<'a, 'r>(pub(crate) &'a Reply<'r>);

impl fmt::Display for PrintedReply<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |f: &mut fmt::Formatter<'_>, items: Items<'_>| {
            f.write_str("[")?;
            for (at, item) in items.enumerate() {
                let comma = if at > 0 { ", " } else { "" };
                write!(f, "{comma}{}", PrintedReply(&item))?;
            }
            f.write_str("]")
        };
        match self.0 {
            Reply::Simple(text) | Reply::Error(text) => f.write_str(&String::from_utf8_lossy(text)),
            Reply::Bulk(bytes) => {
                let text = String::from_utf8_lossy(bytes);
                write!(f, "\"{}\"", text.trim_end_matches('.'))
            }
            Reply::Integer(number) => write!(f, "{number}"),
            Reply::Null => f.write_str("null"),
            Reply::Array(items) => list(f, *items),
            other => write!(f, "{other:?}"),
        }
    }
}
