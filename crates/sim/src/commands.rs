//! Conversion of operations to requests of the Redis protocol, and of replies to outcomes.

use crate::history::{Action, Outcome};
use crate::servers::server_at;
use crate::workload::{Register, decode, expiry_millis};
use resp::{Items, Reply, RequestWriter};
use std::fmt;

/// Meaning of a reply to an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Said {
    Outcome(Outcome),
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
    /// Not a valid reply to this request.
    Nonsense,
}

/// Appends the request of an operation.
pub(crate) fn write(register: &Register, action: Action, out: &mut Vec<u8>) {
    let value = |number| register.encode(number);
    let keys = &register.keys;
    match (action, keys.len()) {
        (Action::Read, 1) => with_keys(b"GET", register, out),
        (Action::Read, _) => with_keys(b"MGET", register, out),
        (Action::Probe, _) => with_keys(b"EXISTS", register, out),
        (Action::Delete, _) => with_keys(b"DEL", register, out),
        (Action::Take, _) => with_keys(b"GETDEL", register, out),
        (Action::Increment, _) => with_keys(b"INCR", register, out),
        (Action::Write(new), 1) => RequestWriter::write(&[b"SET", &keys[0].1, &value(new)], out),
        (Action::Write(new), _) => with_values(b"MSET", register, &value(new), out),
        (Action::WriteExpiring(new), _) => {
            let writer = RequestWriter::new(5, out).argument(b"SET").argument(&keys[0].1);
            let writer = writer.argument(&value(new)).argument(b"PX");
            drop(writer.integer(expiry_millis(new) as i64));
        }
        (Action::WriteIfAbsent(new), 1) => {
            RequestWriter::write(&[b"SET", &keys[0].1, &value(new), b"NX"], out);
        }
        (Action::WriteIfAbsent(new), _) => with_values(b"MSETNX", register, &value(new), out),
        (Action::Swap(old, new), _) => {
            let (old, new) = (value(old), value(new));
            RequestWriter::write(&[b"SET", &keys[0].1, &new, b"IFEQ", &old], out);
        }
        (Action::Exchange(new), _) => {
            RequestWriter::write(&[b"SET", &keys[0].1, &value(new), b"GET"], out);
        }
        (Action::Flush, _) => unreachable!("a flush is no operation on one register"),
    }
}

/// Appends an operation on a pair as a transaction with one command per key, without `EXEC`.
/// Returns the number of requests, 0 if the operation cannot be a transaction.
pub(crate) fn write_collected(register: &Register, action: Action, out: &mut Vec<u8>) -> usize {
    if register.keys.len() == 1 {
        return 0;
    }
    let value = match action {
        Action::Read | Action::Delete => Vec::new(),
        Action::Write(new) => register.encode(new),
        _ => return 0,
    };
    RequestWriter::write(&[b"MULTI"], out);
    for (_, key) in &register.keys {
        match action {
            Action::Write(_) => RequestWriter::write(&[b"SET", key, &value], out),
            Action::Delete => RequestWriter::write(&[b"DEL", key], out),
            _ => RequestWriter::write(&[b"GET", key], out),
        }
    }
    1 + register.keys.len()
}

fn with_keys(name: &[u8], register: &Register, out: &mut Vec<u8>) {
    let writer = RequestWriter::new(1 + register.keys.len(), out).argument(name);
    drop(register.keys.iter().fold(writer, |writer, (_, key)| writer.argument(key)));
}

fn with_values(name: &[u8], register: &Register, value: &[u8], out: &mut Vec<u8>) {
    let writer = RequestWriter::new(1 + 2 * register.keys.len(), out).argument(name);
    let keys = register.keys.iter();
    drop(keys.fold(writer, |writer, (_, key)| writer.argument(key).argument(value)));
}

/// Interprets the reply to an operation.
pub(crate) fn read(register: &Register, action: Action, reply: &Reply<'_>) -> Said {
    if let Reply::Error(text) = reply {
        return read_error(text);
    }
    if let (Action::Write(_) | Action::Delete, Reply::Array(items)) = (action, reply) {
        return read_transaction(*items);
    }
    let outcome = match action {
        Action::Read if register.keys.len() > 1 => return read_values(reply),
        Action::Read | Action::Take | Action::Exchange(_) => value(reply).map(Outcome::Value),
        Action::Probe | Action::Delete => match *reply {
            Reply::Integer(0) => Some(Outcome::Applied(false)),
            Reply::Integer(count) if count == register.keys.len() as i64 => {
                Some(Outcome::Applied(true))
            }
            Reply::Integer(1) => return Said::Torn,
            _ => None,
        },
        Action::Write(_) | Action::WriteExpiring(_) => {
            (*reply == Reply::Simple(b"OK")).then_some(Outcome::Done)
        }
        Action::WriteIfAbsent(_) | Action::Swap(..) => match *reply {
            Reply::Simple(b"OK") | Reply::Integer(1) => Some(Outcome::Applied(true)),
            Reply::Null | Reply::Integer(0) => Some(Outcome::Applied(false)),
            _ => None,
        },
        Action::Increment => match *reply {
            Reply::Integer(number) => u64::try_from(number).ok().map(Outcome::Number),
            _ => None,
        },
        Action::Flush => (*reply == Reply::Simple(b"OK")).then_some(Outcome::Done),
    };
    outcome.map_or(Said::Nonsense, Said::Outcome)
}

fn value(reply: &Reply<'_>) -> Option<Option<u64>> {
    match reply {
        Reply::Null => Some(None),
        Reply::Bulk(bytes) => decode(bytes).map(Some),
        _ => None,
    }
}

/// Interprets the reply of `EXEC` to one write, or one delete, of each key of a pair.
fn read_transaction(mut items: Items<'_>) -> Said {
    let (one, other) = (items.next(), items.next());
    match (one, other) {
        (Some(one), Some(other)) if one != other => Said::Torn,
        (Some(Reply::Simple(b"OK")), Some(_)) => Said::Outcome(Outcome::Done),
        (Some(Reply::Integer(count @ (0 | 1))), Some(_)) => {
            Said::Outcome(Outcome::Applied(count == 1))
        }
        _ => Said::Nonsense,
    }
}

fn read_values(reply: &Reply<'_>) -> Said {
    let Reply::Array(items) = reply else { return Said::Nonsense };
    let values: Option<Vec<_>> = items.map(|item| value(&item)).collect();
    match values.as_deref() {
        Some([one, other]) if one == other => Said::Outcome(Outcome::Value(*one)),
        Some([_, _]) => Said::Torn,
        Some(_) | None => Said::Nonsense,
    }
}

/// Interprets an error: as a redirection, as temporary, or as a refusal.
pub(crate) fn read_error(text: &[u8]) -> Said {
    let text = String::from_utf8_lossy(text);
    let mut words = text.split(' ');
    match words.next() {
        Some("MOVED") => {
            let port = words.nth(1).and_then(|address| address.rsplit_once(':'));
            let port = port.and_then(|(_, port)| port.parse().ok());
            port.and_then(server_at).map_or(Said::Nonsense, Said::Moved)
        }
        Some("TRYAGAIN" | "CLUSTERDOWN" | "OOM" | "LOADING" | "MISCONF" | "NOREPLICAS") => {
            Said::Later
        }
        Some("EXECABORT") => Said::Aborted,
        _ if text.starts_with("ERR the coordinator cannot be reached") => Said::Refused,
        _ => Said::Nonsense,
    }
}

/// Printable form of a reply: bytes as text, values without their filler.
pub(crate) struct Shown<'a, 'r>(pub(crate) &'a Reply<'r>);

impl fmt::Display for Shown<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |f: &mut fmt::Formatter<'_>, items: Items<'_>| {
            f.write_str("[")?;
            for (at, item) in items.enumerate() {
                let comma = if at > 0 { ", " } else { "" };
                write!(f, "{comma}{}", Shown(&item))?;
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
