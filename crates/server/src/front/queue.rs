//! The unfinished requests of one connection, in the order in which they came.
//!
//! Replies leave in request order. A request is executed when no earlier unfinished one names one
//! of its keys; what has been executed ahead of its turn waits here with its reply. Requests that
//! look at keys which they do not name run alone.

use super::waits::Cause;
use crate::commands::{Transaction, Walk};
use resp::{OwnedRequest, Protocol};
use std::collections::VecDeque;
use types::{KeyHash, TableId};
use wire::control::Answer;

/// What a request touches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// No key: executed when it is parsed, so that `SELECT` and `HELLO` count for what follows.
    Nothing,
    /// These keys of a table.
    Keys(TableId, Vec<KeyHash>),
    /// Perhaps any.
    Everything,
}

impl Scope {
    /// Whether the order of two requests can be seen from outside.
    fn meets(&self, other: &Scope) -> bool {
        match (self, other) {
            (Scope::Nothing, _) | (_, Scope::Nothing) => false,
            (Scope::Everything, _) | (_, Scope::Everything) => true,
            (Scope::Keys(table, keys), Scope::Keys(other_table, others)) => {
                table == other_table && keys.iter().any(|key| others.contains(key))
            }
        }
    }
}

/// A request that has not been executed. It starts again from the beginning.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) request: OwnedRequest,
    pub(crate) scope: Scope,
    /// Table and protocol at the time when it was parsed.
    pub(crate) table: TableId,
    pub(crate) protocol: Protocol,
    /// What it waits for; `None`: only for its turn on the connection.
    pub(crate) cause: Option<Cause>,
    pub(crate) kept: Kept,
}

/// What a request keeps from one execution to the next.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    /// Whether its reply is not sent: see `CLIENT REPLY`.
    pub(crate) is_silent: bool,
    /// Whether nothing behind it is even parsed before it is done.
    pub(crate) is_alone: bool,
    /// What the coordinator said to it.
    pub(crate) answer: Option<Answer>,
    /// How far it has got, if it takes several turns.
    pub(crate) walk: Option<Walk>,
    /// What `EXEC` carries out: it was complete when `EXEC` was parsed.
    pub(crate) transaction: Option<Transaction>,
}

#[derive(Debug)]
enum Unfinished {
    /// Executed; its reply waits for those before it.
    Done(Vec<u8>),
    Waiting(Box<Waiting>),
}

/// See the module's text.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    /// Number of the first one in `requests`.
    first: u64,
    requests: VecDeque<Unfinished>,
    bytes: usize,
}

/// Unfinished requests of one connection before it is no longer read.
const REQUESTS_MAX: usize = 1024;
/// Their bytes, and those of their replies, before it is no longer read.
const BYTES_MAX: usize = 1 << 20;

impl Queue {
    pub(crate) fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Whether nothing more is to be read for now.
    pub(crate) fn is_full(&self) -> bool {
        self.requests.len() >= REQUESTS_MAX || self.bytes >= BYTES_MAX || self.ends_alone()
    }

    /// Whether the last request must be done before another one is parsed.
    fn ends_alone(&self) -> bool {
        match self.requests.back() {
            Some(Unfinished::Waiting(waiting)) => waiting.kept.is_alone,
            Some(Unfinished::Done(_)) | None => false,
        }
    }

    /// Whether a request of this scope may be executed before everything in here has been.
    pub(crate) fn may_overtake(&self, scope: &Scope) -> bool {
        self.meets_none_of_the_first(self.requests.len(), scope)
    }

    fn meets_none_of_the_first(&self, count: usize, scope: &Scope) -> bool {
        self.requests.iter().take(count).all(|request| match request {
            Unfinished::Done(_) => *scope != Scope::Everything,
            Unfinished::Waiting(waiting) => !waiting.scope.meets(scope),
        })
    }

    /// Adds a reply that must wait for those before it.
    pub(crate) fn push_done(&mut self, reply: Vec<u8>) {
        self.bytes += reply.len();
        self.requests.push_back(Unfinished::Done(reply));
    }

    /// Adds a request and returns its number.
    pub(crate) fn push_waiting(&mut self, waiting: Waiting) -> u64 {
        self.bytes += waiting.request.held_bytes();
        self.requests.push_back(Unfinished::Waiting(Box::new(waiting)));
        self.first + self.requests.len() as u64 - 1
    }

    /// The request of this number, if it has not been executed yet.
    pub(crate) fn waiting(&mut self, number: u64) -> Option<&mut Waiting> {
        let at = usize::try_from(number.checked_sub(self.first)?).ok()?;
        match self.requests.get_mut(at)? {
            Unfinished::Waiting(waiting) => Some(waiting),
            Unfinished::Done(_) => None,
        }
    }

    /// The first request from this number on that waits only for its turn and whose turn it is.
    pub(crate) fn next_due(&self, from: u64) -> Option<u64> {
        let skip = usize::try_from(from.saturating_sub(self.first)).ok()?;
        let due = (skip..self.requests.len()).find(|&at| match &self.requests[at] {
            Unfinished::Done(_) => false,
            Unfinished::Waiting(waiting) => {
                waiting.cause.is_none() && self.meets_none_of_the_first(at, &waiting.scope)
            }
        });
        due.map(|at| self.first + at as u64)
    }

    /// The request of this number has been executed.
    pub(crate) fn finish(&mut self, number: u64, reply: Vec<u8>) {
        let at = (number - self.first) as usize;
        let before = std::mem::replace(&mut self.requests[at], Unfinished::Done(Vec::new()));
        match before {
            Unfinished::Waiting(waiting) => self.bytes -= waiting.request.held_bytes(),
            Unfinished::Done(_) => unreachable!("request {number} was executed twice"),
        }
        self.bytes += reply.len();
        self.requests[at] = Unfinished::Done(reply);
    }

    /// Moves the replies whose turn it is into `out`.
    pub(crate) fn take_replies(&mut self, out: &mut Vec<u8>) {
        while let Some(Unfinished::Done(reply)) = self.requests.front() {
            out.extend_from_slice(reply);
            self.bytes -= reply.len();
            self.first += 1;
            self.requests.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use resp::{RequestLimits, RequestParser, RequestWriter};

    fn waiting(keys: &[u64]) -> Waiting {
        let mut bytes = Vec::new();
        RequestWriter::write(&[b"GET", b"x"], &mut bytes);
        let mut parser = RequestParser::new(RequestLimits::default());
        let request = parser.next(&mut &bytes[..]).unwrap().unwrap().to_owned();
        Waiting {
            request,
            scope: keys_of(keys),
            table: TableId(0),
            protocol: Protocol::Resp2,
            cause: None,
            kept: Kept::default(),
        }
    }

    fn keys_of(keys: &[u64]) -> Scope {
        Scope::Keys(TableId(0), keys.iter().map(|&hash| KeyHash(hash)).collect())
    }

    #[test]
    fn replies_leave_in_request_order() {
        let mut queue = Queue::default();
        let first = queue.push_waiting(waiting(&[1]));
        queue.push_done(b"second".to_vec());
        let third = queue.push_waiting(waiting(&[3]));
        let mut out = Vec::new();
        queue.finish(third, b"third".to_vec());
        queue.take_replies(&mut out);
        assert_eq!(out, b"");
        queue.finish(first, b"first".to_vec());
        queue.take_replies(&mut out);
        assert_eq!(out, b"firstsecondthird");
        assert!(queue.is_empty());
        assert_eq!(queue.bytes, 0);
    }

    #[test]
    fn requests_of_one_key_keep_their_order_and_others_overtake() {
        let mut queue = Queue::default();
        let first = queue.push_waiting(waiting(&[1, 2]));
        assert!(!queue.may_overtake(&keys_of(&[2])));
        assert!(queue.may_overtake(&keys_of(&[3])));
        assert!(queue.may_overtake(&Scope::Nothing));
        assert!(!queue.may_overtake(&Scope::Everything));
        assert!(queue.may_overtake(&Scope::Keys(TableId(1), vec![KeyHash(1)])));
        queue.waiting(first).unwrap().cause = Some(Cause::Held);
        let second = queue.push_waiting(waiting(&[2]));
        assert_eq!(queue.next_due(0), None);
        queue.finish(first, Vec::new());
        assert_eq!(queue.next_due(0), Some(second));
    }

    #[test]
    fn a_request_that_may_look_at_any_key_waits_for_earlier_replies_too() {
        let mut queue = Queue::default();
        let first = queue.push_waiting(waiting(&[1]));
        queue.push_done(Vec::new());
        let scan = queue.push_waiting(Waiting { scope: Scope::Everything, ..waiting(&[]) });
        queue.finish(first, Vec::new());
        assert_eq!(queue.next_due(0), None, "replies have not been taken");
        queue.take_replies(&mut Vec::new());
        assert_eq!(queue.next_due(0), Some(scan));
        assert!(!queue.may_overtake(&keys_of(&[7])));
        assert!(queue.may_overtake(&Scope::Nothing));
    }

    #[test]
    fn a_connection_with_much_unfinished_is_not_read() {
        let mut queue = Queue::default();
        for _ in 0..REQUESTS_MAX {
            assert!(!queue.is_full());
            queue.push_waiting(waiting(&[1]));
        }
        assert!(queue.is_full());
        let mut queue = Queue::default();
        queue.push_waiting(waiting(&[1]));
        queue.push_done(vec![0; BYTES_MAX]);
        assert!(queue.is_full());
    }
}
