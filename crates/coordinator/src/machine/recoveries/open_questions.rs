//! Requests that every connected server must answer for a recovery.

use super::replica_inventory::ReplicaInventory;
use crate::machine::membership::ConnectedServers;
use std::collections::BTreeMap;
use std::time::Duration;
use types::{Instant, ServerId};

/// The servers that have not answered the request of a recovery's stage: to fence the log, or to
/// free it.
///
/// After the loss of many servers, each of their recoveries asks each of the others. So an event
/// costs one comparison for each recovery, and visits the servers of those in which it has changed
/// anything.
#[derive(Debug, Default)]
pub(super) struct OpenQuestions {
    /// The log is being freed.
    is_freeing: bool,
    /// Time at which each server is asked next.
    due: BTreeMap<ServerId, Instant>,
    /// No server is asked before this time. `None`: all have answered.
    next: Option<Instant>,
    /// Revision of the connected servers on which the rest is based. `None`: it is outdated.
    revision: Option<u64>,
}

impl OpenQuestions {
    /// Adds the servers that must answer, and removes those that have left.
    pub(super) fn follow(
        &mut self,
        is_freeing: bool,
        inventory: &ReplicaInventory,
        connected: &ConnectedServers,
    ) {
        let is_open = |server: &ServerId| match is_freeing {
            true => !inventory.has_freed(*server),
            false => inventory.is_to_report(*server),
        };
        if self.is_freeing == is_freeing && self.revision == Some(connected.revision()) {
            debug_assert!(
                connected.iter().filter(is_open).eq(self.due.keys().copied()),
                "other servers are asked than have to answer"
            );
            return;
        }
        if self.is_freeing != is_freeing {
            self.due.clear();
        }
        let due = |server| (server, self.due.get(&server).copied().unwrap_or_default());
        self.due = connected.iter().inspect(|_| note_visit()).filter(is_open).map(due).collect();
        self.is_freeing = is_freeing;
        self.revision = Some(connected.revision());
        self.next = self.due.values().min().copied();
    }

    /// Returns the servers that are to be asked at this time, and again after `pause`.
    pub(super) fn take_due(&mut self, now: Instant, pause: Duration) -> Vec<ServerId> {
        if self.next.is_none_or(|next| next > now) {
            return Vec::new();
        }
        let all = self.due.iter_mut().inspect(|_| note_visit());
        let due = all.filter(|(_, due)| **due <= now);
        let asked = due.map(|(&server, due)| {
            *due = now + pause;
            server
        });
        let asked = asked.collect();
        self.next = self.due.values().min().copied();
        assert!(self.next.is_none_or(|next| next > now), "a server is asked without end");
        asked
    }

    /// Records an answer: the server has fenced the log, or freed it.
    pub(super) fn answered(&mut self, server: ServerId, is_freed: bool) {
        if is_freed != self.is_freeing {
            return;
        }
        self.due.remove(&server);
        if self.due.is_empty() {
            self.next = None;
        }
    }

    /// Asks a server at once if it has to answer, because messages to it may have been lost.
    pub(super) fn repeat_to(&mut self, server: ServerId) {
        self.due.remove(&server);
        self.revision = None;
    }

    /// Returns a time before which no server is asked; `None` if all have answered.
    pub(super) fn next(&self) -> Option<Instant> {
        self.next
    }

    /// Returns whether a connected server is known that has not freed the log.
    pub(super) fn waits_for_freeing(&self, connected: &ConnectedServers) -> bool {
        self.is_freeing && self.revision == Some(connected.revision()) && !self.due.is_empty()
    }
}

#[cfg(test)]
thread_local! {
    /// Number of servers that this test has visited for questions.
    static SERVERS_VISITED: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// Returns the number of servers that the running test has visited for questions.
#[cfg(test)]
pub(in crate::machine) fn servers_visited() -> u64 {
    SERVERS_VISITED.get()
}

fn note_visit() {
    #[cfg(test)]
    SERVERS_VISITED.set(SERVERS_VISITED.get() + 1);
}
