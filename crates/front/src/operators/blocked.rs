//! Requests that wait for keys, on all reactors: `BLPOP` and its relatives
//! (`docs/design/blocking.md`).
//!
//! Each key has a queue for each type of value that requests wait for, in order of arrival; of a
//! stream, one for each consumer group, and one for the requests that read its entries. A write of the
//! key notifies the first request of each queue, and so does the departure of the one before it. Those
//! that read entries are all notified. A notified request is retried by its reactor.
//!
//! **Invariant:** a request is in the queue of each of its keys from before its last look at them
//! until its reply is written.

use super::lock;
use crossbeam_utils::CachePadded;
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use types::{ConnectionId, KeyHash, ReactorId, TableId, ValueType};

/// A key that requests wait for, and the elements of its value that they want.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AwaitedKey {
    pub(crate) table: TableId,
    pub(crate) hash: KeyHash,
    pub(crate) elements: AwaitedElements,
}

/// The elements that a request waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum AwaitedElements {
    /// Elements of a value of this type, which a request takes away. Requests are served in turn.
    Taken(ValueType),
    /// Entries of a stream, which all requests read.
    Entries,
    /// Entries for a consumer group of a stream, by the hash of its name. Requests for the same group
    /// are served in turn. They also end when the group or the stream is removed.
    GroupEntries(u64),
}

impl AwaitedElements {
    /// Returns the type of the value that has the elements.
    pub(crate) fn value_type(self) -> ValueType {
        match self {
            AwaitedElements::Taken(value_type) => value_type,
            AwaitedElements::Entries | AwaitedElements::GroupEntries(_) => ValueType::Stream,
        }
    }
}

/// The key of the queues of requests that wait for a type of value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct QueueKey {
    table: TableId,
    hash: KeyHash,
    value_type: ValueType,
}

impl From<AwaitedKey> for QueueKey {
    fn from(key: AwaitedKey) -> QueueKey {
        let AwaitedKey { table, hash, elements } = key;
        QueueKey { table, hash, value_type: elements.value_type() }
    }
}

/// Types of values that requests wait for.
const AWAITED_TYPES: [ValueType; 3] = [ValueType::List, ValueType::SortedSet, ValueType::Stream];

/// Place of a request in the order of arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct BlockedTicket(u64);

/// A request that waits for keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockedRequest {
    pub(crate) ticket: BlockedTicket,
    pub(crate) connection: ConnectionId,
    /// Number of the request on its connection.
    pub(crate) number: u64,
}

#[derive(Debug)]
struct QueuedRequest {
    request: BlockedRequest,
    /// True if the request was notified, and has not looked at the key since.
    is_notified: bool,
}

/// The requests that wait for the same elements of a key, in order of arrival.
#[derive(Debug, Default)]
struct BlockedQueue {
    requests: BTreeMap<BlockedTicket, QueuedRequest>,
    /// Number of requests that are not notified.
    quiet: usize,
}

impl BlockedQueue {
    /// Returns the ticket of the request that has waited longest.
    fn first(&self) -> Option<BlockedTicket> {
        self.requests.keys().next().copied()
    }

    /// Adds a request. It may be there already, since it may name a key twice.
    fn add(&mut self, request: BlockedRequest) {
        let new = || {
            self.quiet += 1;
            QueuedRequest { request, is_notified: false }
        };
        self.requests.entry(request.ticket).or_insert_with(new);
    }

    /// Removes a request. Returns whether it was there.
    fn remove(&mut self, ticket: BlockedTicket) -> bool {
        let Some(removed) = self.requests.remove(&ticket) else { return false };
        self.quiet -= usize::from(!removed.is_notified);
        debug_assert!(self.quiet <= self.requests.len(), "more are quiet than wait");
        true
    }

    /// Records that a request looks at the key.
    fn looks(&mut self, ticket: BlockedTicket) {
        let Some(queued) = self.requests.get_mut(&ticket) else { return };
        self.quiet += usize::from(std::mem::replace(&mut queued.is_notified, false));
    }

    /// Passes the requests to `notify` that were not notified: the first one, or all.
    fn notify(&mut self, all: bool, notify: impl FnMut(BlockedRequest)) {
        if self.quiet == 0 {
            return;
        }
        let count = if all { usize::MAX } else { 1 };
        let served = self.requests.values_mut().take(count);
        let new = served.filter_map(|queued| {
            let was_notified = std::mem::replace(&mut queued.is_notified, true);
            (!was_notified).then_some(queued.request)
        });
        self.quiet -= new.map(notify).count();
    }
}

/// The queues of a key for one type of value, by the elements that their requests wait for. No queue is
/// empty.
type ElementQueues = BTreeMap<AwaitedElements, BlockedQueue>;

/// The queues of some keys. No key is without one. They are only looked up, never iterated.
type KeyQueues = HashMap<QueueKey, ElementQueues>;

/// Requests of one reactor that were notified.
#[derive(Default)]
struct Notified {
    is_any: AtomicBool,
    requests: Mutex<Vec<BlockedRequest>>,
}

/// The requests of all reactors that wait for keys.
pub(crate) struct BlockedRequests {
    /// Number of requests. A reactor reads it once per turn.
    count: CachePadded<AtomicU64>,
    tickets: AtomicU64,
    parts: Box<[CachePadded<Mutex<KeyQueues>>]>,
    reactors: Box<[CachePadded<Notified>]>,
}

/// Parts of the queues, each with a lock of its own.
const PARTS: usize = 64;

impl BlockedRequests {
    pub(crate) fn new(reactors: u16) -> BlockedRequests {
        BlockedRequests {
            count: CachePadded::default(),
            tickets: AtomicU64::new(0),
            parts: (0..PARTS).map(|_| CachePadded::default()).collect(),
            reactors: (0..reactors).map(|_| CachePadded::default()).collect(),
        }
    }

    fn part(&self, hash: KeyHash) -> &Mutex<KeyQueues> {
        &self.parts[hash.0 as usize % PARTS]
    }

    /// Returns whether any request waits. A reactor that has begun a turn after the grace period of
    /// a request sees the request.
    #[inline]
    pub(crate) fn is_any(&self) -> bool {
        self.count.load(Ordering::Relaxed) > 0
    }

    /// Returns the number of keys that requests wait for. One that they wait for with two types
    /// counts twice.
    pub(crate) fn keys(&self) -> u64 {
        self.parts.iter().map(|part| lock(part).len() as u64).sum()
    }

    /// Adds a request to the queues of these keys, and returns its ticket. The caller looks at the
    /// keys once more after a grace period.
    pub(crate) fn add(
        &self,
        keys: &[AwaitedKey],
        connection: ConnectionId,
        number: u64,
    ) -> BlockedTicket {
        let ticket = BlockedTicket(self.tickets.fetch_add(1, Ordering::Relaxed));
        let request = BlockedRequest { ticket, connection, number };
        self.count.fetch_add(1, Ordering::Relaxed);
        for key in keys {
            let mut queues = lock(self.part(key.hash));
            let known = AWAITED_TYPES.contains(&key.elements.value_type());
            debug_assert!(known, "nobody notifies for {key:?}");
            let of_key = queues.entry(QueueKey::from(*key)).or_default();
            of_key.entry(key.elements).or_default().add(request);
        }
        ticket
    }

    /// Removes a request from the queues of its keys, and notifies the requests that become first.
    pub(crate) fn remove(
        &self,
        keys: &[AwaitedKey],
        ticket: BlockedTicket,
        mut wake: impl FnMut(ReactorId),
    ) {
        for key in keys {
            let mut queues = lock(self.part(key.hash));
            let Entry::Occupied(mut of_key) = queues.entry(QueueKey::from(*key)) else { continue };
            let Some(queue) = of_key.get_mut().get_mut(&key.elements) else { continue };
            let was_first = queue.first() == Some(ticket);
            if !queue.remove(ticket) {
                continue;
            }
            if queue.requests.is_empty() {
                of_key.get_mut().remove(&key.elements);
                if of_key.get().is_empty() {
                    of_key.remove();
                }
            } else if was_first && key.elements != AwaitedElements::Entries {
                queue.notify(false, |request| self.notify_request(request, &mut wake));
            }
        }
        let before = self.count.fetch_sub(1, Ordering::Relaxed);
        assert!(before > 0, "a request that does not wait is removed");
    }

    /// Notifies the requests of each type that wait for this key and are served next, after a write or
    /// the removal of its value.
    pub(crate) fn notify(&self, table: TableId, hash: KeyHash, mut wake: impl FnMut(ReactorId)) {
        let mut queues = lock(self.part(hash));
        for value_type in AWAITED_TYPES {
            let key = QueueKey { table, hash, value_type };
            for (elements, queue) in queues.get_mut(&key).into_iter().flatten() {
                let all = *elements == AwaitedElements::Entries;
                queue.notify(all, |request| self.notify_request(request, &mut wake));
            }
        }
    }

    fn notify_request(&self, request: BlockedRequest, wake: &mut impl FnMut(ReactorId)) {
        let reactor = request.connection.reactor();
        let notified = &self.reactors[usize::from(reactor.0)];
        lock(&notified.requests).push(request);
        notified.is_any.store(true, Ordering::Release);
        wake(reactor);
    }

    /// Returns whether a request may take from a key: none waits longer. The request looks at the
    /// key after this call, so that later writes notify it again.
    pub(crate) fn is_first(&self, key: AwaitedKey, ticket: Option<BlockedTicket>) -> bool {
        let mut queues = lock(self.part(key.hash));
        let of_key = queues.get_mut(&QueueKey::from(key));
        let Some(queue) = of_key.and_then(|of_key| of_key.get_mut(&key.elements)) else {
            return true;
        };
        if let Some(ticket) = ticket {
            queue.looks(ticket);
        }
        queue.first() == ticket || key.elements == AwaitedElements::Entries
    }

    /// Returns whether requests of this reactor were notified.
    #[inline]
    pub(crate) fn has_notified(&self, reactor: ReactorId) -> bool {
        self.reactors[usize::from(reactor.0)].is_any.load(Ordering::Relaxed)
    }

    /// Takes the requests of this reactor that were notified.
    pub(crate) fn take_notified(&self, reactor: ReactorId) -> Vec<BlockedRequest> {
        let notified = &self.reactors[usize::from(reactor.0)];
        if !self.has_notified(reactor) || !notified.is_any.swap(false, Ordering::AcqRel) {
            return Vec::new();
        }
        std::mem::take(&mut lock(&notified.requests))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: TableId = TableId(0);
    const KEYS: [AwaitedKey; 2] = [list(1), list(2)];

    const fn list(hash: u64) -> AwaitedKey {
        let elements = AwaitedElements::Taken(ValueType::List);
        AwaitedKey { table: TABLE, hash: KeyHash(hash), elements }
    }

    fn notify(blocked: &BlockedRequests, key: AwaitedKey, wake: impl FnMut(ReactorId)) {
        blocked.notify(key.table, key.hash, wake);
    }

    fn connection(reactor: u64, number: u64) -> ConnectionId {
        ConnectionId::from_number(reactor << 48 | number)
    }

    fn taken(blocked: &BlockedRequests, reactor: u16) -> Vec<u64> {
        blocked.take_notified(ReactorId(reactor)).iter().map(|request| request.number).collect()
    }

    #[test]
    fn the_first_request_is_notified_and_then_the_next() {
        let blocked = BlockedRequests::new(2);
        let first = blocked.add(&KEYS[..1], connection(0, 1), 1);
        let second = blocked.add(&KEYS, connection(1, 1), 2);
        assert_eq!((blocked.is_any(), blocked.keys()), (true, 2));
        assert!(blocked.is_first(KEYS[0], Some(first)) && blocked.is_first(KEYS[1], Some(second)));
        assert!(!blocked.is_first(KEYS[0], Some(second)) && !blocked.is_first(KEYS[0], None));
        let mut woken = Vec::new();
        notify(&blocked, KEYS[0], |reactor| woken.push(reactor.0));
        notify(&blocked, KEYS[0], |reactor| woken.push(reactor.0));
        assert_eq!((woken, taken(&blocked, 0), taken(&blocked, 1)), (vec![0], vec![1], vec![]));
        let mut woken = Vec::new();
        blocked.remove(&KEYS[..1], first, |reactor| woken.push(reactor.0));
        assert_eq!((woken, taken(&blocked, 1)), (vec![1], vec![2]));
        blocked.remove(&KEYS, second, |_| unreachable!("no request is left"));
        assert_eq!((blocked.is_any(), blocked.keys()), (false, 0));
    }

    #[test]
    fn a_request_that_looks_at_its_key_is_notified_of_later_writes() {
        let blocked = BlockedRequests::new(1);
        let ticket = blocked.add(&[KEYS[0], KEYS[0]], connection(0, 1), 1);
        for _ in 0..2 {
            notify(&blocked, KEYS[0], |_| {});
            assert_eq!(taken(&blocked, 0), [1]);
            notify(&blocked, KEYS[0], |_| unreachable!("it was notified"));
            assert_eq!(taken(&blocked, 0), []);
            assert!(blocked.is_first(KEYS[0], Some(ticket)));
        }
        notify(&blocked, KEYS[1], |_| unreachable!("no request waits for this key"));
        blocked.remove(&[KEYS[0], KEYS[0]], ticket, |_| unreachable!("no request is left"));
        assert!(!blocked.is_any());
    }

    #[test]
    fn requests_for_two_types_wait_in_queues_of_their_own() {
        let blocked = BlockedRequests::new(1);
        let elements = AwaitedElements::Taken(ValueType::SortedSet);
        let sorted_set = AwaitedKey { elements, ..KEYS[0] };
        let first = blocked.add(&KEYS[..1], connection(0, 1), 1);
        let second = blocked.add(&[sorted_set], connection(0, 2), 2);
        assert!(blocked.is_first(KEYS[0], Some(first)));
        assert!(blocked.is_first(sorted_set, Some(second)), "nobody waits longer for that type");
        notify(&blocked, KEYS[0], |_| {});
        assert_eq!(taken(&blocked, 0), [1, 2]);
    }

    #[test]
    fn readers_of_a_stream_are_notified_together_and_those_of_a_group_in_turn() {
        let blocked = BlockedRequests::new(1);
        let reader = AwaitedKey { elements: AwaitedElements::Entries, ..KEYS[0] };
        let group = |hash| AwaitedKey { elements: AwaitedElements::GroupEntries(hash), ..KEYS[0] };
        let keys = [reader, group(1), group(1), group(2), reader];
        let tickets: Vec<BlockedTicket> = (1..)
            .zip(keys)
            .map(|(number, key)| blocked.add(&[key], connection(0, number), number))
            .collect();
        notify(&blocked, KEYS[0], |_| {});
        let mut notified = taken(&blocked, 0);
        notified.sort_unstable();
        assert_eq!(notified, [1, 2, 4, 5]);
        let may_take: Vec<bool> = keys
            .into_iter()
            .zip(&tickets)
            .map(|(key, ticket)| blocked.is_first(key, Some(*ticket)))
            .collect();
        assert_eq!(may_take, [true, true, false, true, true]);
        assert!(!blocked.is_first(group(1), None) && blocked.is_first(group(3), None));
        assert!(blocked.is_first(reader, None), "readers take nothing away");
        blocked.remove(&keys[..1], tickets[0], |_| {});
        assert_eq!(taken(&blocked, 0), []);
        blocked.remove(&keys[1..2], tickets[1], |_| {});
        assert_eq!(taken(&blocked, 0), [3]);
    }

    /// A request in the model of the queues.
    struct ModelRequest {
        ticket: BlockedTicket,
        number: u64,
        keys: Vec<AwaitedKey>,
        /// The keys of which it was notified, and at which it has not looked since.
        notified: Vec<AwaitedKey>,
    }

    /// The requests in order of arrival.
    #[derive(Default)]
    struct ModelQueues(Vec<ModelRequest>);

    impl ModelQueues {
        fn first(&self, key: AwaitedKey) -> Option<usize> {
            self.0.iter().position(|request| request.keys.contains(&key))
        }

        /// Notifies the requests for these elements that are served next. Returns their numbers.
        fn notify(&mut self, key: AwaitedKey) -> Vec<u64> {
            let first = self.first(key);
            let mut notified = Vec::new();
            for (at, request) in self.0.iter_mut().enumerate() {
                let is_next = key.elements == AwaitedElements::Entries || Some(at) == first;
                let waits = request.keys.contains(&key) && !request.notified.contains(&key);
                if is_next && waits {
                    request.notified.push(key);
                    notified.push(request.number);
                }
            }
            notified
        }

        /// Removes a request. Returns the numbers of those that are notified for it.
        fn remove(&mut self, at: usize) -> Vec<u64> {
            let keys = self.0[at].keys.clone();
            let was_first = |key: &&AwaitedKey| self.first(**key) == Some(at);
            let next: Vec<AwaitedKey> = keys.iter().filter(was_first).copied().collect();
            self.0.remove(at);
            let in_turn = |key: &AwaitedKey| key.elements != AwaitedElements::Entries;
            next.into_iter().filter(in_turn).flat_map(|key| self.notify(key)).collect()
        }
    }

    #[test]
    fn the_queues_behave_like_a_list_of_requests_in_order_of_arrival() {
        let kinds = [
            AwaitedElements::Taken(ValueType::List),
            AwaitedElements::Taken(ValueType::SortedSet),
            AwaitedElements::Entries,
            AwaitedElements::GroupEntries(1),
            AwaitedElements::GroupEntries(2),
        ];
        let mut random = fastrand::Rng::with_seed(1);
        let (blocked, mut model) = (BlockedRequests::new(1), ModelQueues::default());
        let mut number = 0;
        for _ in 0..20_000 {
            let hash = random.u64(1..3);
            let mut expected = Vec::new();
            match random.u8(..10) {
                0..3 if model.0.len() < 30 => {
                    number += 1;
                    let elements = kinds[random.usize(..kinds.len())];
                    let mut keys = vec![AwaitedKey { elements, ..list(hash) }];
                    if random.bool() {
                        keys.push(AwaitedKey { elements, ..list(3 - hash) });
                    }
                    let ticket = blocked.add(&keys, connection(0, number), number);
                    model.0.push(ModelRequest { ticket, number, keys, notified: Vec::new() });
                }
                0..5 if !model.0.is_empty() => {
                    let at = random.usize(..model.0.len());
                    let ModelRequest { ticket, ref keys, .. } = model.0[at];
                    blocked.remove(keys, ticket, |_| {});
                    expected = model.remove(at);
                }
                5..7 => {
                    notify(&blocked, list(hash), |_| {});
                    let keys = kinds.map(|elements| AwaitedKey { elements, ..list(hash) });
                    expected = keys.into_iter().flat_map(|key| model.notify(key)).collect();
                }
                _ if !model.0.is_empty() => {
                    let at = random.usize(..model.0.len());
                    let key = model.0[at].keys[0];
                    model.0[at].notified.retain(|notified| *notified != key);
                    let is_next =
                        key.elements == AwaitedElements::Entries || model.first(key) == Some(at);
                    assert_eq!(blocked.is_first(key, Some(model.0[at].ticket)), is_next);
                }
                _ => {}
            }
            let mut notified = taken(&blocked, 0);
            notified.sort_unstable();
            expected.sort_unstable();
            assert_eq!(notified, expected);
            assert_eq!(blocked.is_any(), !model.0.is_empty());
        }
        assert!(number > 3_000, "{number}");
    }
}
