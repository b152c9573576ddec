//! The unfinished requests of one connection, in the order in which they came.
//!
//! Replies leave in request order. A request is executed when no earlier unfinished one names one
//! of its keys; what has been executed ahead of its turn waits here with its reply. Requests that
//! look at keys which they do not name run alone.
//!
//! The requests that wait for a key stand in its *lane*; those that run alone are *walls*. So what may
//! be executed next is known without looking at all that wait, of which there are many when a range
//! has been away for a while.

use super::waits::Cause;
use crate::commands::{Past, Transaction, Walk};
use resp::{OwnedRequest, Protocol};
use std::collections::{BTreeSet, HashMap, VecDeque};
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
    /// The keys that it names.
    fn places(&self) -> impl Iterator<Item = (TableId, KeyHash)> {
        let (table, keys) = match self {
            Scope::Keys(table, keys) => (*table, keys.as_slice()),
            Scope::Nothing | Scope::Everything => (TableId(0), [].as_slice()),
        };
        keys.iter().map(move |key| (table, *key))
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
    pub(crate) past: Past,
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

/// The unfinished requests of one connection, in the order of their arrival.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    /// Number of the first one in `requests`.
    first: u64,
    requests: VecDeque<Unfinished>,
    bytes: usize,
    /// Which requests wait to use a key, in their order. None is empty.
    lanes: HashMap<(TableId, KeyHash), VecDeque<u64>>,
    /// Those that wait to run alone.
    walls: BTreeSet<u64>,
    /// Those that waited for their turn when it came. Some may have been executed since.
    due: BTreeSet<u64>,
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
        match scope {
            Scope::Nothing => true,
            Scope::Keys(..) => {
                self.walls.is_empty() && scope.places().all(|key| !self.lanes.contains_key(&key))
            }
            Scope::Everything => self.begins_with_nothing(self.requests.len()),
        }
    }

    /// Whether the first ones touch no key. Those that have been executed may have.
    fn begins_with_nothing(&self, count: usize) -> bool {
        self.requests.iter().take(count).all(|request| match request {
            Unfinished::Done(_) => false,
            Unfinished::Waiting(waiting) => waiting.scope == Scope::Nothing,
        })
    }

    /// Whether nothing stands before a request that waits.
    fn is_turn(&self, number: u64, scope: &Scope) -> bool {
        match scope {
            Scope::Nothing => true,
            Scope::Keys(..) => {
                let is_first =
                    |key| self.lanes.get(&key).and_then(|it| it.front()) == Some(&number);
                self.walls.first().is_none_or(|wall| *wall > number) && scope.places().all(is_first)
            }
            Scope::Everything => self.begins_with_nothing((number - self.first) as usize),
        }
    }

    /// Adds a reply that must wait for those before it.
    pub(crate) fn push_done(&mut self, reply: Vec<u8>) {
        self.bytes += reply.len();
        self.requests.push_back(Unfinished::Done(reply));
    }

    /// Adds a request and returns its number.
    pub(crate) fn push_waiting(&mut self, waiting: Waiting) -> u64 {
        let number = self.first + self.requests.len() as u64;
        self.bytes += waiting.request.held_bytes();
        for key in waiting.scope.places() {
            let lane = self.lanes.entry(key).or_default();
            // It may name a key twice.
            if lane.back() != Some(&number) {
                lane.push_back(number);
            }
        }
        if waiting.scope == Scope::Everything {
            self.walls.insert(number);
        }
        self.requests.push_back(Unfinished::Waiting(Box::new(waiting)));
        number
    }

    fn place(&self, number: u64) -> Option<usize> {
        usize::try_from(number.checked_sub(self.first)?).ok()
    }

    /// The request of this number, if it has not been executed yet.
    pub(crate) fn waiting(&mut self, number: u64) -> Option<&mut Waiting> {
        let at = self.place(number)?;
        match self.requests.get_mut(at)? {
            Unfinished::Waiting(waiting) => Some(waiting),
            Unfinished::Done(_) => None,
        }
    }

    /// The request that waits for other servers, of which there is one at most: nothing behind it is
    /// parsed.
    pub(crate) fn waiting_for_replicas(&self) -> Option<u64> {
        let last = self.requests.len().checked_sub(1)?;
        match &self.requests[last] {
            Unfinished::Waiting(waiting) if matches!(waiting.cause, Some(Cause::Replicas(_))) => {
                Some(self.first + last as u64)
            }
            Unfinished::Waiting(_) | Unfinished::Done(_) => None,
        }
    }

    /// Returns whether a request waits for other servers without a limit in time.
    pub(crate) fn waits_for_ever(&self) -> bool {
        match self.requests.back() {
            Some(Unfinished::Waiting(waiting)) => waiting.cause == Some(Cause::Replicas(None)),
            Some(Unfinished::Done(_)) | None => false,
        }
    }

    /// The first request that waits only for its turn and whose turn it is.
    pub(crate) fn next_due(&mut self) -> Option<u64> {
        while let Some(&number) = self.due.first() {
            if self.waits_for_turn(number) {
                return Some(number);
            }
            self.due.remove(&number);
        }
        let wall = *self.walls.first()?;
        let is_due = self.waits_for_turn(wall) && self.is_turn(wall, &Scope::Everything);
        is_due.then_some(wall)
    }

    /// Whether it waits for nothing else.
    fn waits_for_turn(&self, number: u64) -> bool {
        match self.place(number).and_then(|at| self.requests.get(at)) {
            Some(Unfinished::Waiting(waiting)) => waiting.cause.is_none(),
            Some(Unfinished::Done(_)) | None => false,
        }
    }

    /// The request of this number has been executed.
    pub(crate) fn finish(&mut self, number: u64, reply: Vec<u8>) {
        let at = (number - self.first) as usize;
        self.bytes += reply.len();
        match std::mem::replace(&mut self.requests[at], Unfinished::Done(reply)) {
            Unfinished::Waiting(waiting) => {
                self.bytes -= waiting.request.held_bytes();
                self.make_way(number, &waiting.scope);
            }
            Unfinished::Done(_) => unreachable!("request {number} was executed twice"),
        }
    }

    /// Nothing waits for a request any more: finds those whose turn has come.
    fn make_way(&mut self, number: u64, scope: &Scope) {
        for key in scope.places() {
            let Some(lane) = self.lanes.get_mut(&key) else { continue };
            // It is the first one, but for those that are given up before their turn.
            if let Some(at) = lane.iter().position(|waiting| *waiting == number) {
                lane.remove(at);
            }
            match lane.front().copied() {
                Some(next) => self.note_if_due(next),
                None => drop(self.lanes.remove(&key)),
            }
        }
        if self.walls.remove(&number) {
            let end = self.first + self.requests.len() as u64;
            let next_wall = self.walls.range(number..).next().copied();
            (number + 1..next_wall.unwrap_or(end)).for_each(|next| self.note_if_due(next));
        }
    }

    fn note_if_due(&mut self, number: u64) {
        let Some(at) = self.place(number) else { return };
        if let Some(Unfinished::Waiting(waiting)) = self.requests.get(at)
            && waiting.cause.is_none()
            && self.is_turn(number, &waiting.scope)
        {
            self.due.insert(number);
        }
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
        assert_eq!(queue.next_due(), None);
        queue.finish(first, Vec::new());
        assert_eq!(queue.next_due(), Some(second));
    }

    #[test]
    fn a_request_that_may_look_at_any_key_waits_for_earlier_replies_too() {
        let mut queue = Queue::default();
        let first = queue.push_waiting(waiting(&[1]));
        queue.push_done(Vec::new());
        let scan = queue.push_waiting(Waiting { scope: Scope::Everything, ..waiting(&[]) });
        queue.finish(first, Vec::new());
        assert_eq!(queue.next_due(), None, "replies have not been taken");
        queue.take_replies(&mut Vec::new());
        assert_eq!(queue.next_due(), Some(scan));
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

    /// Whether the order of two requests can be seen from outside.
    fn meets(one: &Scope, other: &Scope) -> bool {
        match (one, other) {
            (Scope::Nothing, _) | (_, Scope::Nothing) => false,
            (Scope::Everything, _) | (_, Scope::Everything) => true,
            (Scope::Keys(table, keys), Scope::Keys(other_table, others)) => {
                table == other_table && keys.iter().any(|key| others.contains(key))
            }
        }
    }

    /// The naive twin: looks at everything that stands before.
    fn may_run(queue: &Queue, count: usize, scope: &Scope) -> bool {
        queue.requests.iter().take(count).all(|request| match request {
            Unfinished::Done(_) => *scope != Scope::Everything,
            Unfinished::Waiting(waiting) => !meets(&waiting.scope, scope),
        })
    }

    fn naive_due(queue: &Queue) -> Option<u64> {
        let due = queue.requests.iter().enumerate().find(|(at, request)| match request {
            Unfinished::Done(_) => false,
            Unfinished::Waiting(waiting) => {
                waiting.cause.is_none() && may_run(queue, *at, &waiting.scope)
            }
        });
        due.map(|(at, _)| queue.first + at as u64)
    }

    #[test]
    fn what_is_due_is_what_looking_at_everything_finds() {
        for seed in 0..200 {
            let mut random = Random(seed);
            let mut queue = Queue::default();
            for _ in 0..400 {
                step(&mut queue, &mut random);
                assert_eq!(queue.next_due(), naive_due(&queue), "seed {seed}");
                let waiting =
                    queue.requests.iter().filter(|it| matches!(it, Unfinished::Waiting(_)));
                if waiting.count() == 0 {
                    assert!(queue.lanes.is_empty() && queue.walls.is_empty(), "seed {seed}");
                }
            }
        }
    }

    /// What a connection may do next: a request comes, one that waited is executed, or given up.
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
                        queue.push_waiting(Waiting { scope, cause, ..waiting(&[]) });
                    }
                }
            }
            // It waited for something, and that has come; or it has waited too long.
            4 | 5 => {
                let is_woken = queue.waiting(number).is_some_and(|it| it.cause.is_some());
                if is_woken || (queue.waiting(number).is_some() && random.below(10) == 0) {
                    queue.finish(number, Vec::new());
                }
            }
            6 => {
                if let Some(due) = queue.next_due() {
                    match random.below(3) {
                        0 => queue.waiting(due).unwrap().cause = Some(Cause::Held),
                        _ => queue.finish(due, Vec::new()),
                    }
                }
            }
            _ => queue.take_replies(&mut Vec::new()),
        }
    }

    /// Numbers that follow from a seed: `SplitMix64` (Steele, Lea, Flood 2014).
    struct Random(u64);

    impl Random {
        fn below(&mut self, end: u64) -> u64 {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            (mixed ^ (mixed >> 31)) % end
        }
    }
}
