//! The list of connected clients. Each reactor has a list of its own. A client's reactor writes the
//! facts about it, and all reactors may read them.

use super::lock;
use crossbeam_utils::CachePadded;
use resp::Protocol;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use types::ConnectionId;
use types::{Instant, ReactorId, TableId};

/// The published state of one client.
pub(crate) struct Facts {
    /// Number of the client, never reused.
    pub(crate) id: u64,
    pub(crate) connection: ConnectionId,
    /// The client's address, and the address on this server that it is connected to.
    pub(crate) peer: String,
    pub(crate) local: String,
    pub(crate) since: Instant,
    pub(crate) names: Mutex<Names>,
    last_request: AtomicU64,
    requests: AtomicU64,
    traffic: [AtomicU64; 4],
    shown: AtomicU64,
    collected: AtomicU64,
    is_killed: AtomicBool,
    /// A `CLIENT UNBLOCK` that the client's reactor has not processed yet.
    unblocked: Mutex<Option<Unblocked>>,
}

/// The way in which `CLIENT UNBLOCK` ends a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unblocked {
    /// Reply as if the time limit had passed.
    TimeOut,
    /// Reply with an error.
    Error,
}

/// Names that a client has given itself.
#[derive(Clone, Debug, Default)]
pub(crate) struct Names {
    /// Set by `CLIENT SETNAME`; empty if not set.
    pub(crate) name: Vec<u8>,
    /// Set by `CLIENT SETINFO LIB-NAME`.
    pub(crate) library: Vec<u8>,
    /// Set by `CLIENT SETINFO LIB-VER`.
    pub(crate) version: Vec<u8>,
}

/// Bytes that a client has sent and received.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Traffic {
    /// Input processed since the client connected.
    pub(crate) read: u64,
    /// Output produced since the client connected.
    pub(crate) written: u64,
    /// Input received but not processed, when last updated.
    pub(crate) unread: u64,
    /// Output produced but not sent, when last updated.
    pub(crate) unsent: u64,
}

/// The part of a client's state that changes with its requests, except its transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClientStatus {
    /// The table (Redis database) that the client's commands work on.
    pub(crate) table: TableId,
    /// The protocol version in which replies are written.
    pub(crate) protocol: Protocol,
    /// Set by `MONITOR`.
    pub(crate) is_monitor: bool,
    /// Set by `CLIENT NO-EVICT` and `CLIENT NO-TOUCH`, only for display.
    pub(crate) no_evict: bool,
    pub(crate) no_touch: bool,
    /// True while a request of the client is parked, or the client is paused.
    pub(crate) is_blocked: bool,
    /// True while a request of the client waits for replicas. `CLIENT UNBLOCK` can end that.
    pub(crate) is_waiting: bool,
    /// True if the client follows redirections: `CLIENT CAPA redirect`.
    pub(crate) takes_redirects: bool,
    /// Number of the last command; `None` if the client has called none.
    pub(crate) command: Option<u16>,
}

impl Default for ClientStatus {
    fn default() -> ClientStatus {
        ClientStatus::unpack(0)
    }
}

/// The transaction that a client is collecting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TransactionCounts {
    /// Number of commands since `MULTI`; `None` if there was no `MULTI`.
    pub(crate) commands: Option<u32>,
    /// Number of keys that the client watches.
    pub(crate) watched: u32,
}

impl TransactionCounts {
    fn pack(self) -> u64 {
        let commands = self.commands.map_or(0, |count| count.saturating_add(1));
        u64::from(commands) | u64::from(self.watched) << 32
    }

    fn unpack(word: u64) -> TransactionCounts {
        TransactionCounts { commands: (word as u32).checked_sub(1), watched: (word >> 32) as u32 }
    }
}

impl ClientStatus {
    fn pack(self) -> u64 {
        u64::from(self.table.0)
            | u64::from(self.protocol == Protocol::Resp3) << 8
            | u64::from(self.is_monitor) << 9
            | u64::from(self.no_evict) << 10
            | u64::from(self.no_touch) << 11
            | u64::from(self.is_blocked) << 12
            | u64::from(self.takes_redirects) << 13
            | u64::from(self.command.is_some()) << 14
            | u64::from(self.is_waiting) << 15
            | u64::from(self.command.unwrap_or(0)) << 16
    }

    fn unpack(word: u64) -> ClientStatus {
        let bit = |at: u32| word >> at & 1 == 1;
        ClientStatus {
            table: TableId(word as u8),
            protocol: if bit(8) { Protocol::Resp3 } else { Protocol::Resp2 },
            is_monitor: bit(9),
            no_evict: bit(10),
            no_touch: bit(11),
            is_blocked: bit(12),
            is_waiting: bit(15),
            takes_redirects: bit(13),
            command: bit(14).then_some((word >> 16) as u16),
        }
    }
}

impl Facts {
    /// Returns the facts about a newly connected client.
    pub(crate) fn new(
        id: u64,
        connection: ConnectionId,
        addresses: (String, String),
        now: Instant,
    ) -> Facts {
        Facts {
            id,
            connection,
            peer: addresses.0,
            local: addresses.1,
            since: now,
            names: Mutex::default(),
            last_request: AtomicU64::new(now.0),
            requests: AtomicU64::new(0),
            traffic: Default::default(),
            shown: AtomicU64::new(0),
            collected: AtomicU64::new(0),
            is_killed: AtomicBool::new(false),
            unblocked: Mutex::default(),
        }
    }

    /// Publishes changes. Plain stores suffice, because only the client's reactor writes.
    pub(crate) fn publish(
        &self,
        now: Instant,
        requests: u64,
        shown: ClientStatus,
        collected: TransactionCounts,
    ) {
        self.last_request.store(now.0, Ordering::Relaxed);
        self.requests.store(self.requests() + requests, Ordering::Relaxed);
        self.shown.store(shown.pack(), Ordering::Relaxed);
        self.collected.store(collected.pack(), Ordering::Relaxed);
    }

    /// Publishes the bytes read and written since the last call, and those that remain.
    pub(crate) fn add_traffic(&self, more: Traffic) {
        let [read, written, ..] = &self.traffic;
        let sums = [
            read.load(Ordering::Relaxed) + more.read,
            written.load(Ordering::Relaxed) + more.written,
            more.unread,
            more.unsent,
        ];
        self.traffic.iter().zip(sums).for_each(|(place, sum)| place.store(sum, Ordering::Relaxed));
    }

    pub(crate) fn traffic(&self) -> Traffic {
        let [read, written, unread, unsent] =
            self.traffic.each_ref().map(|place| place.load(Ordering::Relaxed));
        Traffic { read, written, unread, unsent }
    }

    pub(crate) fn last_request(&self) -> Instant {
        Instant(self.last_request.load(Ordering::Relaxed))
    }

    pub(crate) fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    pub(crate) fn shown(&self) -> ClientStatus {
        ClientStatus::unpack(self.shown.load(Ordering::Relaxed))
    }

    pub(crate) fn collected(&self) -> TransactionCounts {
        TransactionCounts::unpack(self.collected.load(Ordering::Relaxed))
    }
}

/// Totals over all clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sums {
    /// Clients with a parked request.
    pub(crate) blocked: u64,
    /// Clients that watch keys, and the number of watched keys.
    pub(crate) watching: u64,
    pub(crate) watched_keys: u64,
    /// Bytes of unprocessed input and unsent output.
    pub(crate) bytes: u64,
    /// The largest backlog of one client, when last updated.
    pub(crate) unread_max: u64,
    pub(crate) unsent_max: u64,
}

impl Sums {
    fn add(&mut self, facts: &Facts) {
        let (shown, traffic) = (facts.shown(), facts.traffic());
        let watched = u64::from(facts.collected().watched);
        self.blocked += u64::from(shown.is_blocked);
        self.watching += u64::from(watched > 0);
        self.watched_keys += watched;
        self.bytes += traffic.unread + traffic.unsent;
        self.unread_max = self.unread_max.max(traffic.unread);
        self.unsent_max = self.unsent_max.max(traffic.unsent);
    }
}

/// The lists of connected clients, one per reactor.
pub(crate) struct ClientRegistry {
    reactors: Box<[CachePadded<ReactorClients>]>,
    /// Number of the newest client.
    named: AtomicU64,
}

#[derive(Default)]
struct ReactorClients {
    clients: Mutex<BTreeMap<u64, Arc<Facts>>>,
    /// Number of clients. Only the reactor writes it.
    count: AtomicU64,
    /// True if some of the clients must be closed.
    has_killed: AtomicBool,
    /// True if some of the clients must be unblocked.
    has_unblocked: AtomicBool,
}

impl ClientRegistry {
    pub(crate) fn new(reactors: u16) -> ClientRegistry {
        let reactors = (0..reactors).map(|_| CachePadded::default()).collect();
        ClientRegistry { reactors, named: AtomicU64::new(0) }
    }

    fn of(&self, reactor: ReactorId) -> &ReactorClients {
        &self.reactors[usize::from(reactor.0)]
    }

    /// Returns the number for a new client.
    pub(crate) fn name(&self) -> u64 {
        self.named.fetch_add(1, Ordering::Relaxed) + 1
    }

    pub(crate) fn add(&self, reactor: ReactorId, facts: Arc<Facts>) {
        let list = self.of(reactor);
        list.count.fetch_add(1, Ordering::Relaxed);
        lock(&list.clients).insert(facts.id, facts);
    }

    pub(crate) fn remove(&self, reactor: ReactorId, id: u64) {
        let list = self.of(reactor);
        list.count.fetch_sub(1, Ordering::Relaxed);
        lock(&list.clients).remove(&id);
    }

    /// Returns the number of connected clients.
    pub(crate) fn count(&self) -> u64 {
        self.reactors.iter().map(|list| list.count.load(Ordering::Relaxed)).sum()
    }

    /// Returns the client with this number.
    pub(crate) fn find(&self, id: u64) -> Option<Arc<Facts>> {
        self.reactors.iter().find_map(|list| lock(&list.clients).get(&id).cloned())
    }

    /// Returns totals over all clients.
    pub(crate) fn sums(&self) -> Sums {
        let mut sums = Sums::default();
        for list in &self.reactors {
            lock(&list.clients).values().for_each(|facts| sums.add(facts));
        }
        sums
    }

    /// Returns all clients, oldest first.
    pub(crate) fn all(&self) -> Vec<Arc<Facts>> {
        let mut all: Vec<Arc<Facts>> = Vec::new();
        for list in &self.reactors {
            all.extend(lock(&list.clients).values().cloned());
        }
        all.sort_unstable_by_key(|facts| facts.id);
        all
    }

    /// Returns at most `count` clients of a reactor with numbers above `id`, in order.
    pub(crate) fn after(&self, reactor: ReactorId, id: u64, count: usize) -> Vec<Arc<Facts>> {
        let clients = lock(&self.of(reactor).clients);
        let range = clients.range((Bound::Excluded(id), Bound::Unbounded));
        range.take(count).map(|(_, facts)| facts.clone()).collect()
    }

    /// Marks a client to be closed. Its reactor does so in its next turn.
    pub(crate) fn kill(&self, facts: &Facts) {
        facts.is_killed.store(true, Ordering::Relaxed);
        self.of(facts.connection.reactor()).has_killed.store(true, Ordering::Release);
    }

    /// Marks a client to be unblocked. Its reactor does so in its next turn.
    pub(crate) fn unblock(&self, facts: &Facts, how: Unblocked) {
        *lock(&facts.unblocked) = Some(how);
        self.of(facts.connection.reactor()).has_unblocked.store(true, Ordering::Release);
    }

    /// Takes the clients of this reactor that must be unblocked.
    pub(crate) fn take_unblocked(&self, reactor: ReactorId) -> Vec<(ConnectionId, Unblocked)> {
        let list = self.of(reactor);
        if !list.has_unblocked.load(Ordering::Relaxed)
            || !list.has_unblocked.swap(false, Ordering::AcqRel)
        {
            return Vec::new();
        }
        let clients = lock(&list.clients);
        let unblocked =
            |facts: &Arc<Facts>| Some((facts.connection, lock(&facts.unblocked).take()?));
        clients.values().filter_map(unblocked).collect()
    }

    /// Returns the clients of this reactor that must be closed.
    pub(crate) fn take_killed(&self, reactor: ReactorId) -> Vec<ConnectionId> {
        let list = self.of(reactor);
        if !list.has_killed.load(Ordering::Relaxed)
            || !list.has_killed.swap(false, Ordering::AcqRel)
        {
            return Vec::new();
        }
        let clients = lock(&list.clients);
        let killed = clients.values().filter(|facts| facts.is_killed.load(Ordering::Relaxed));
        killed.map(|facts| facts.connection).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_client_shows_is_read_as_it_was_told() {
        for command in [0, 1, 65_535] {
            let shown = ClientStatus {
                table: TableId(15),
                protocol: Protocol::Resp3,
                is_monitor: true,
                no_evict: false,
                no_touch: true,
                is_blocked: true,
                is_waiting: true,
                takes_redirects: false,
                command: Some(command),
            };
            assert_eq!(ClientStatus::unpack(shown.pack()), shown);
            let collected = TransactionCounts { commands: Some(u32::from(command)), watched: 7 };
            assert_eq!(TransactionCounts::unpack(collected.pack()), collected);
        }
    }
}
