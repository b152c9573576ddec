//! The unfinished requests of one connection, in order of arrival.
//!
//! Replies leave in request order. A request may be executed when no earlier unfinished request
//! uses any of its keys. If it overtakes others, its reply waits here. Requests that read unnamed
//! keys run alone.
//!
//! Each key has a queue of the requests that wait for it. Requests that run alone are barriers.
//! Both find the next runnable request without a scan over all waiting requests, which are many
//! after a range was unavailable for a while.

use crate::commands::{Cause, KeyspaceScan, Past, QueuedTransaction};
use planted::Bug;
use resp::{OwnedRequest, Protocol};
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use types::{KeyHash, TableId};
use values::StreamId;
use wire::control::Answer;

/// The keys that a request touches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// No key: executed when parsed, so that `SELECT` and `HELLO` apply to the next requests.
    Nothing,
    /// These keys of a table.
    Keys(TableId, Vec<KeyHash>),
    /// Possibly any key: the request is a barrier.
    Everything,
}

impl Scope {
    /// Returns the keys that the scope names.
    fn places(&self) -> impl Iterator<Item = (TableId, KeyHash)> {
        let (table, keys) = match self {
            Scope::Keys(table, keys) => (*table, keys.as_slice()),
            Scope::Nothing | Scope::Everything => (TableId(0), [].as_slice()),
        };
        keys.iter().map(move |key| (table, *key))
    }
}

/// A request that was not executed. A retry starts it from the beginning.
pub(crate) struct ParkedRequest {
    /// Shared with its execution: a retry does not copy a long value.
    pub(crate) request: Arc<OwnedRequest>,
    pub(crate) scope: Scope,
    /// The connection's table and protocol when the request was parsed.
    pub(crate) table: TableId,
    pub(crate) protocol: Protocol,
    /// The cause of the wait; `None` if the request waits only for earlier requests.
    pub(crate) cause: Option<Cause>,
    pub(crate) state: RequestState,
    /// Bytes of the request, and of the transaction that it executes. Set by
    /// [`Queue::push_waiting`].
    pub(crate) held_bytes: usize,
}

impl ParkedRequest {
    /// Returns whether the request may wait without a time limit: it makes progress, or the duration
    /// of its wait is intended.
    pub(crate) fn is_patient(&self) -> bool {
        match &self.cause {
            Some(Cause::Paused | Cause::Replicas(_) | Cause::Blocked(_)) => true,
            Some(Cause::Turn) => self.state.scan.is_some(),
            Some(_) | None => false,
        }
    }
}

/// State that a request keeps from one execution to the next.
#[derive(Default)]
pub(crate) struct RequestState {
    /// True if the reply is not sent: see `CLIENT REPLY`.
    pub(crate) is_silent: bool,
    /// True if no later request is parsed before this one is done.
    pub(crate) blocks_parsing: bool,
    /// The answer of the coordinator or of the process.
    pub(crate) answer: Option<Answer>,
    pub(crate) past: Past,
    /// The position of a command that takes several turns.
    pub(crate) scan: Option<KeyspaceScan>,
    /// The ids behind which a command that waits reads streams, in the order of its keys.
    pub(crate) stream_ids: Vec<StreamId>,
    /// Number of orders of sorted sets that were built for a transaction.
    pub(crate) orders_built: u32,
    /// The transaction that `EXEC` executes, complete since `EXEC` was parsed.
    pub(crate) transaction: Option<QueuedTransaction>,
}

enum Unfinished {
    /// An executed request. Its reply waits for those of earlier requests.
    Done(Vec<u8>),
    Waiting(Box<ParkedRequest>),
}

/// The unfinished requests of one connection, in order of arrival.
#[derive(Default)]
pub(crate) struct Queue {
    /// Number of the first request in `requests`.
    first: u64,
    requests: VecDeque<Unfinished>,
    bytes: usize,
    /// Per-key queues: the requests that wait for each key, in order. No queue is empty.
    key_queues: HashMap<(TableId, KeyHash), VecDeque<u64>>,
    /// Barriers: requests that wait to run alone.
    barriers: BTreeSet<u64>,
    /// Requests that became first in all their queues, some of which were executed since.
    runnable: BTreeSet<u64>,
}

/// Unfinished requests of one connection at which reading stops.
const REQUESTS_MAX: usize = 1024;
/// Bytes of unfinished requests and their replies at which reading stops.
const BYTES_MAX: usize = 1 << 20;

impl Queue {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Returns whether the connection must not be read for now.
    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.requests.len() >= REQUESTS_MAX || self.bytes >= BYTES_MAX || self.ends_alone()
    }

    /// Returns whether the last request must be done before the next is parsed.
    fn ends_alone(&self) -> bool {
        match self.requests.back() {
            Some(Unfinished::Waiting(waiting)) => waiting.state.blocks_parsing,
            Some(Unfinished::Done(_)) | None => false,
        }
    }

    /// Returns whether a new request of this scope may be executed before all unfinished requests.
    pub(crate) fn may_overtake(&self, scope: &Scope) -> bool {
        match scope {
            Scope::Nothing => true,
            Scope::Keys(..) => {
                (self.barriers.is_empty() || planted::is(Bug::BarrierOvertaken))
                    && scope.places().all(|key| !self.key_queues.contains_key(&key))
            }
            Scope::Everything => self.begins_with_nothing(self.requests.len()),
        }
    }

    /// Returns whether the first requests touch no key. An executed one may have touched any.
    fn begins_with_nothing(&self, count: usize) -> bool {
        if planted::is(Bug::BarrierTooEarly) {
            return true;
        }
        self.requests.iter().take(count).all(|request| match request {
            Unfinished::Done(_) => false,
            Unfinished::Waiting(waiting) => waiting.scope == Scope::Nothing,
        })
    }

    /// Returns whether no earlier request blocks this waiting request.
    fn is_turn(&self, number: u64, scope: &Scope) -> bool {
        match scope {
            Scope::Nothing => true,
            Scope::Keys(..) => {
                let is_first =
                    |key| self.key_queues.get(&key).and_then(|it| it.front()) == Some(&number);
                self.barriers.first().is_none_or(|barrier| *barrier > number)
                    && scope.places().all(is_first)
            }
            Scope::Everything => self.begins_with_nothing((number - self.first) as usize),
        }
    }

    /// Adds a reply that must wait for those of earlier requests.
    pub(crate) fn push_done(&mut self, reply: Vec<u8>) {
        self.bytes += reply.len();
        self.requests.push_back(Unfinished::Done(reply));
    }

    /// Adds a request and returns its number.
    pub(crate) fn push_waiting(&mut self, mut waiting: ParkedRequest) -> u64 {
        let number = self.first + self.requests.len() as u64;
        let of_transaction = waiting.state.transaction.as_ref().map_or(0, |it| it.held_bytes());
        waiting.held_bytes = waiting.request.held_bytes() + of_transaction;
        self.bytes += waiting.held_bytes;
        for key in waiting.scope.places() {
            let key_queue = self.key_queues.entry(key).or_default();
            // The request may name a key twice.
            if key_queue.back() != Some(&number) {
                key_queue.push_back(number);
            }
        }
        if waiting.scope == Scope::Everything {
            self.barriers.insert(number);
        }
        self.requests.push_back(Unfinished::Waiting(Box::new(waiting)));
        number
    }

    fn place(&self, number: u64) -> Option<usize> {
        usize::try_from(number.checked_sub(self.first)?).ok()
    }

    /// Returns the request of this number, if it was not executed yet.
    pub(crate) fn waiting(&mut self, number: u64) -> Option<&mut ParkedRequest> {
        let at = self.place(number)?;
        match self.requests.get_mut(at)? {
            Unfinished::Waiting(waiting) => Some(waiting),
            Unfinished::Done(_) => None,
        }
    }

    /// Returns the last request, if it waits for replicas or keys. No request behind it is parsed.
    pub(crate) fn unblockable(&self) -> Option<u64> {
        let last = self.requests.len().checked_sub(1)?;
        match &self.requests[last] {
            Unfinished::Waiting(waiting)
                if waiting.state.past.blocked.is_some()
                    || matches!(waiting.cause, Some(Cause::Replicas(_))) =>
            {
                Some(self.first + last as u64)
            }
            Unfinished::Waiting(_) | Unfinished::Done(_) => None,
        }
    }

    /// Returns whether the last request waits for keys. The connection is read meanwhile, so that
    /// its end is noticed.
    pub(crate) fn ends_blocked(&self) -> bool {
        match self.requests.back() {
            Some(Unfinished::Waiting(waiting)) => waiting.state.past.blocked.is_some(),
            Some(Unfinished::Done(_)) | None => false,
        }
    }

    /// Returns whether a request waits for keys, or for replicas without a time limit.
    pub(crate) fn waits_for_ever(&self) -> bool {
        let is_endless = match self.requests.back() {
            Some(Unfinished::Waiting(waiting)) => waiting.cause == Some(Cause::Replicas(None)),
            Some(Unfinished::Done(_)) | None => false,
        };
        is_endless || self.ends_blocked()
    }

    /// Returns the first runnable request.
    pub(crate) fn next_runnable(&mut self) -> Option<u64> {
        while let Some(&number) = self.runnable.first() {
            if self.waits_for_turn(number) {
                return Some(number);
            }
            self.runnable.remove(&number);
        }
        let barrier = *self.barriers.first()?;
        let is_runnable = self.waits_for_turn(barrier) && self.is_turn(barrier, &Scope::Everything);
        is_runnable.then_some(barrier)
    }

    /// Returns whether a request before this one may wait without a time limit.
    pub(crate) fn has_patient_before(&self, number: u64) -> bool {
        let before = self.requests.iter().take(self.place(number).unwrap_or(0));
        before.into_iter().any(|request| match request {
            Unfinished::Waiting(waiting) => waiting.is_patient(),
            Unfinished::Done(_) => false,
        })
    }

    /// Returns whether the request waits only for earlier requests.
    fn waits_for_turn(&self, number: u64) -> bool {
        match self.place(number).and_then(|at| self.requests.get(at)) {
            Some(Unfinished::Waiting(waiting)) => waiting.cause.is_none(),
            Some(Unfinished::Done(_)) | None => false,
        }
    }

    /// Records that a request was executed, with its reply.
    pub(crate) fn finish(&mut self, number: u64, reply: Vec<u8>) {
        let at = (number - self.first) as usize;
        self.bytes += reply.len();
        match std::mem::replace(&mut self.requests[at], Unfinished::Done(reply)) {
            Unfinished::Waiting(waiting) => {
                self.bytes -= waiting.held_bytes;
                self.make_way(number, &waiting.scope);
            }
            Unfinished::Done(_) => unreachable!("request {number} was executed twice"),
        }
    }

    /// Removes a finished request from its queues, and finds the requests that become runnable.
    fn make_way(&mut self, number: u64, scope: &Scope) {
        for key in scope.places() {
            let Some(key_queue) = self.key_queues.get_mut(&key) else { continue };
            // The request is the first, unless it timed out before its turn.
            if let Some(at) = key_queue.iter().position(|waiting| *waiting == number) {
                key_queue.remove(at);
            }
            match key_queue.front().copied() {
                Some(next) => self.mark_if_runnable(next),
                None => drop(self.key_queues.remove(&key)),
            }
        }
        if self.barriers.remove(&number) {
            let end = self.first + self.requests.len() as u64;
            let next_barrier = self.barriers.range(number..).next().copied();
            (number + 1..next_barrier.unwrap_or(end)).for_each(|next| self.mark_if_runnable(next));
        }
    }

    fn mark_if_runnable(&mut self, number: u64) {
        let Some(at) = self.place(number) else { return };
        if let Some(Unfinished::Waiting(waiting)) = self.requests.get(at)
            && waiting.cause.is_none()
            && self.is_turn(number, &waiting.scope)
        {
            self.runnable.insert(number);
        }
    }

    /// Moves the replies at the front of the queue into `out`.
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
    use types::SplitMix64;

    fn waiting(keys: &[u64]) -> ParkedRequest {
        let mut bytes = Vec::new();
        RequestWriter::write(&[b"GET", b"x"], &mut bytes);
        let mut parser = RequestParser::new(RequestLimits::default());
        let request = parser.next(&mut &bytes[..]).unwrap().unwrap().to_owned();
        ParkedRequest {
            request: Arc::new(request),
            scope: keys_of(keys),
            table: TableId(0),
            protocol: Protocol::Resp2,
            cause: None,
            state: RequestState::default(),
            held_bytes: 0,
        }
    }

    fn keys_of(keys: &[u64]) -> Scope {
        Scope::Keys(TableId(0), keys.iter().map(|&hash| KeyHash(hash)).collect())
    }

    #[test]
    fn the_commands_of_a_parked_transaction_count() {
        let mut queue = Queue::default();
        let mut exec = waiting(&[1]);
        let mut transaction = QueuedTransaction::default();
        let mut bytes = Vec::new();
        RequestWriter::write(&[b"SET", b"x", &vec![0; BYTES_MAX]], &mut bytes);
        let mut parser = RequestParser::new(RequestLimits::default());
        transaction.push(parser.next(&mut &bytes[..]).unwrap().unwrap(), true);
        exec.state.transaction = Some(transaction);
        let number = queue.push_waiting(exec);
        assert!(queue.is_full());
        // Its execution takes the state away.
        queue.waiting(number).unwrap().state = RequestState::default();
        queue.finish(number, Vec::new());
        assert_eq!((queue.is_full(), queue.bytes), (false, 0));
    }

    #[test]
    fn requests_behind_one_without_a_time_limit_have_none_either() {
        let mut queue = Queue::default();
        let first = queue.push_waiting(waiting(&[1]));
        let mut paused = waiting(&[2]);
        paused.cause = Some(Cause::Paused);
        let paused = queue.push_waiting(paused);
        let behind = queue.push_waiting(waiting(&[2]));
        assert!(!queue.has_patient_before(first) && !queue.has_patient_before(paused));
        assert!(queue.has_patient_before(behind));
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
        assert_eq!(queue.next_runnable(), None);
        queue.finish(first, Vec::new());
        assert_eq!(queue.next_runnable(), Some(second));
    }

    #[test]
    fn a_request_that_may_look_at_any_key_waits_for_earlier_replies_too() {
        let mut queue = Queue::default();
        let first = queue.push_waiting(waiting(&[1]));
        queue.push_done(Vec::new());
        let scan = queue.push_waiting(ParkedRequest { scope: Scope::Everything, ..waiting(&[]) });
        queue.finish(first, Vec::new());
        assert_eq!(queue.next_runnable(), None, "replies have not been taken");
        queue.take_replies(&mut Vec::new());
        assert_eq!(queue.next_runnable(), Some(scan));
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

    /// Returns whether the order of two requests is observable.
    fn meets(one: &Scope, other: &Scope) -> bool {
        match (one, other) {
            (Scope::Nothing, _) | (_, Scope::Nothing) => false,
            (Scope::Everything, _) | (_, Scope::Everything) => true,
            (Scope::Keys(table, keys), Scope::Keys(other_table, others)) => {
                table == other_table && keys.iter().any(|key| others.contains(key))
            }
        }
    }

    /// Naive twin of `may_overtake`: examines all earlier requests.
    fn may_run(queue: &Queue, count: usize, scope: &Scope) -> bool {
        queue.requests.iter().take(count).all(|request| match request {
            Unfinished::Done(_) => *scope != Scope::Everything,
            Unfinished::Waiting(waiting) => !meets(&waiting.scope, scope),
        })
    }

    fn naive_runnable(queue: &Queue) -> Option<u64> {
        let runnable = queue.requests.iter().enumerate().find(|(at, request)| match request {
            Unfinished::Done(_) => false,
            Unfinished::Waiting(waiting) => {
                waiting.cause.is_none() && may_run(queue, *at, &waiting.scope)
            }
        });
        runnable.map(|(at, _)| queue.first + at as u64)
    }

    #[test]
    fn what_is_due_is_what_looking_at_everything_finds() {
        for seed in 0..200 {
            let mut random = Random(SplitMix64::new(seed));
            let mut queue = Queue::default();
            for _ in 0..400 {
                step(&mut queue, &mut random);
                assert_eq!(queue.next_runnable(), naive_runnable(&queue), "seed {seed}");
                let waiting =
                    queue.requests.iter().filter(|it| matches!(it, Unfinished::Waiting(_)));
                if waiting.count() == 0 {
                    assert!(
                        queue.key_queues.is_empty() && queue.barriers.is_empty(),
                        "seed {seed}"
                    );
                }
            }
        }
    }

    /// One random event of a connection: a request arrives, is executed, or times out.
    fn step(queue: &mut Queue, random: &mut Random) {
        let number = queue.first + random.below(queue.requests.len() as u64 + 1);
        match random.below(8) {
            0..4 => {
                let scope = match random.below(12) {
                    0 => Scope::Everything,
                    1 => Scope::Nothing,
                    _ => keys_of(&[random.below(5), random.below(5)]),
                };
                let is_first = queue.may_overtake(&scope);
                assert_eq!(is_first, may_run(queue, queue.requests.len(), &scope));
                match is_first && random.below(3) == 0 {
                    true => queue.push_done(Vec::new()),
                    false => {
                        let cause = is_first.then_some(Cause::Held);
                        queue.push_waiting(ParkedRequest { scope, cause, ..waiting(&[]) });
                    }
                }
            }
            // The cause of the wait is over, or the request has timed out.
            4 | 5 => {
                let is_woken = queue.waiting(number).is_some_and(|it| it.cause.is_some());
                if is_woken || (queue.waiting(number).is_some() && random.below(10) == 0) {
                    queue.finish(number, Vec::new());
                }
            }
            6 => {
                if let Some(runnable) = queue.next_runnable() {
                    match random.below(3) {
                        0 => queue.waiting(runnable).unwrap().cause = Some(Cause::Held),
                        _ => queue.finish(runnable, Vec::new()),
                    }
                }
            }
            _ => queue.take_replies(&mut Vec::new()),
        }
    }

    /// Pseudo-random numbers from a seed.
    struct Random(SplitMix64);

    impl Random {
        fn below(&mut self, end: u64) -> u64 {
            self.0.draw() % end
        }
    }
}
