//! The requests of one reactor that wait for keys (`docs/design/blocking.md`).

use super::waiter::WaiterId;
use crate::operators::blocked::{AwaitedKey, BlockedRequests, BlockedTicket};
use node::Node;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use store::{GracePeriod, Store};
use types::{ConnectionId, Instant, ReactorId};

/// A request that waits for keys.
#[derive(Debug)]
struct BlockedWait {
    keys: Vec<AwaitedKey>,
    ticket: BlockedTicket,
    until: Option<Instant>,
}

/// The requests of one reactor that wait for keys. They are in the queues that all reactors share
/// as long as they are here.
#[derive(Debug, Default)]
pub(crate) struct BlockedWaits {
    requests: BTreeMap<WaiterId, BlockedWait>,
    /// The time limits of `requests`.
    limits: BTreeSet<(Instant, WaiterId)>,
    /// Requests that must look at their keys once more when their grace period is over, in order.
    recent: VecDeque<(GracePeriod, WaiterId)>,
}

/// Time after which a reactor checks again whether a grace period is over. Other reactors begin a
/// turn within that time, unless they are asleep, or busy for long.
const GRACE_CHECK: std::time::Duration = std::time::Duration::from_micros(20);

impl BlockedWaits {
    /// Makes a request wait for these keys until this time. Returns its ticket. A request that
    /// waits already keeps its place.
    pub(crate) fn add(
        &mut self,
        waiter: WaiterId,
        keys: Vec<AwaitedKey>,
        until: Option<Instant>,
        shared: &BlockedRequests,
        store: &Store,
    ) -> BlockedTicket {
        if let Some(known) = self.requests.get(&waiter) {
            return known.ticket;
        }
        let ticket = shared.add(&keys, waiter.connection, waiter.number);
        self.limits.extend(until.map(|until| (until, waiter)));
        // A reactor that writes one of the keys in its present turn may not see the request.
        self.recent.push_back((store.grace_period(), waiter));
        self.requests.insert(waiter, BlockedWait { keys, ticket, until });
        ticket
    }

    /// Ends the wait of a request, if it waits.
    pub(crate) fn remove(
        &mut self,
        waiter: WaiterId,
        shared: &BlockedRequests,
        wake: impl FnMut(ReactorId),
    ) {
        let Some(wait) = self.requests.remove(&waiter) else { return };
        if let Some(until) = wait.until {
            self.limits.remove(&(until, waiter));
        }
        shared.remove(&wait.keys, wait.ticket, wake);
        assert!(self.limits.len() <= self.requests.len(), "a limit outlives its request");
    }

    /// Ends the waits of a closed connection.
    pub(crate) fn forget(
        &mut self,
        connection: ConnectionId,
        shared: &BlockedRequests,
        node: &Node,
    ) {
        let of_connection = |number| WaiterId { connection, number };
        let range = of_connection(0)..=of_connection(u64::MAX);
        while let Some((waiter, _)) = self.requests.range(range.clone()).next() {
            self.remove(*waiter, shared, |reactor| node.wake(reactor));
        }
    }

    /// Takes the requests whose grace period is over.
    pub(crate) fn take_recent(&mut self, store: &Store) -> Vec<WaiterId> {
        let mut due = Vec::new();
        while let Some((period, waiter)) = self.recent.front()
            && store.is_over(period)
        {
            due.push(*waiter);
            self.recent.pop_front();
        }
        due
    }

    /// Takes the requests whose time limit has passed. They wait until they are answered.
    pub(crate) fn take_late(&mut self, now: Instant) -> Vec<WaiterId> {
        let mut late = Vec::new();
        while let Some((_, waiter)) = self.limits.first().filter(|(until, _)| *until <= now) {
            late.push(*waiter);
            self.limits.pop_first();
        }
        late
    }

    /// Returns all requests, which a change of tablets may concern.
    pub(crate) fn all(&self) -> impl Iterator<Item = WaiterId> {
        self.requests.keys().copied()
    }

    /// Returns when [`BlockedWaits::take_recent`] or [`BlockedWaits::take_late`] is due.
    pub(crate) fn next_deadline(&self, now: Instant) -> Option<Instant> {
        let recent = (!self.recent.is_empty()).then(|| now + GRACE_CHECK);
        let limit = self.limits.first().map(|(until, _)| *until);
        recent.into_iter().chain(limit).min()
    }
}
