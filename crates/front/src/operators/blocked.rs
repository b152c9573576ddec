//! Requests that wait for keys, on all reactors: `BLPOP` and its relatives
//! (`docs/design/blocking.md`).
//!
//! Each key has a queue for each type of value that requests wait for, in order of arrival. A write of
//! the key notifies the first one of each queue, and so does the departure of the one before it. A notified request is
//! retried by its reactor.
//!
//! **Invariant:** a request is in the queue of each of its keys from before its last look at them
//! until its reply is written.

use super::lock;
use crossbeam_utils::CachePadded;
use std::collections::{HashMap, VecDeque};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use types::{ConnectionId, KeyHash, ReactorId, TableId, ValueType};

/// A key that requests wait for, and the type of the value that has elements for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct AwaitedKey {
    pub(crate) table: TableId,
    pub(crate) hash: KeyHash,
    pub(crate) value_type: ValueType,
}

/// Types of values that requests wait for.
const AWAITED_TYPES: [ValueType; 2] = [ValueType::List, ValueType::SortedSet];

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

/// The queues of some keys. No queue is empty. They are only looked up, never iterated.
type KeyQueues = HashMap<AwaitedKey, VecDeque<QueuedRequest>>;

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
            debug_assert!(AWAITED_TYPES.contains(&key.value_type), "nobody notifies for {key:?}");
            let mut queues = lock(self.part(key.hash));
            let queue = queues.entry(*key).or_default();
            // The request may name a key twice.
            if queue.iter().all(|queued| queued.request.ticket != ticket) {
                queue.push_back(QueuedRequest { request, is_notified: false });
            }
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
            let Some(queue) = queues.get_mut(key) else { continue };
            let at = queue.iter().position(|queued| queued.request.ticket == ticket);
            let Some(at) = at else { continue };
            queue.remove(at);
            match queue.front_mut() {
                None => drop(queues.remove(key)),
                Some(first) if at == 0 => self.notify_request(first, &mut wake),
                Some(_) => {}
            }
        }
        let before = self.count.fetch_sub(1, Ordering::Relaxed);
        assert!(before > 0, "a request that does not wait is removed");
    }

    /// Notifies the first request of each type that waits for this key, after a write of it.
    pub(crate) fn notify(&self, table: TableId, hash: KeyHash, mut wake: impl FnMut(ReactorId)) {
        let mut queues = lock(self.part(hash));
        for value_type in AWAITED_TYPES {
            let key = AwaitedKey { table, hash, value_type };
            if let Some(first) = queues.get_mut(&key).and_then(VecDeque::front_mut) {
                self.notify_request(first, &mut wake);
            }
        }
    }

    fn notify_request(&self, queued: &mut QueuedRequest, wake: &mut impl FnMut(ReactorId)) {
        if std::mem::replace(&mut queued.is_notified, true) {
            return;
        }
        let reactor = queued.request.connection.reactor();
        let notified = &self.reactors[usize::from(reactor.0)];
        lock(&notified.requests).push(queued.request);
        notified.is_any.store(true, Ordering::Release);
        wake(reactor);
    }

    /// Returns whether a request may take from a key: none waits longer. The request looks at the
    /// key after this call, so that later writes notify it again.
    pub(crate) fn is_first(&self, key: AwaitedKey, ticket: Option<BlockedTicket>) -> bool {
        let mut queues = lock(self.part(key.hash));
        let Some(queue) = queues.get_mut(&key) else { return true };
        let first = queue.front().map(|queued| queued.request.ticket);
        let own = queue.iter_mut().find(|queued| Some(queued.request.ticket) == ticket);
        if let Some(own) = own {
            own.is_notified = false;
        }
        first == ticket
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
        AwaitedKey { table: TABLE, hash: KeyHash(hash), value_type: ValueType::List }
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
        let sorted_set = AwaitedKey { value_type: ValueType::SortedSet, ..KEYS[0] };
        let first = blocked.add(&KEYS[..1], connection(0, 1), 1);
        let second = blocked.add(&[sorted_set], connection(0, 2), 2);
        assert!(blocked.is_first(KEYS[0], Some(first)));
        assert!(blocked.is_first(sorted_set, Some(second)), "nobody waits longer for that type");
        notify(&blocked, KEYS[0], |_| {});
        assert_eq!(taken(&blocked, 0), [1, 2]);
    }
}
