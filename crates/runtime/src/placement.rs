//! Placement of new connections: on the reactor with the fewest of the same kind, then the fewest
//! in all. The count rises when a connection is assigned, not when it arrives, so that a burst of
//! connections is spread as well.

use crate::connection::Class;
use crate::driver::Accepted;
use crate::mailbox::{Mailboxes, ReactorMessage};
use crossbeam_utils::CachePadded;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use types::ReactorId;

/// Accepted connections of a reactor, including those on their way to it.
#[derive(Debug, Default)]
pub(crate) struct ReactorLoad {
    clients: AtomicUsize,
    servers: AtomicUsize,
}

impl ReactorLoad {
    fn of(&self, class: Class) -> &AtomicUsize {
        if class.is_bus() { &self.servers } else { &self.clients }
    }

    fn read(&self, class: Class) -> (usize, usize) {
        let clients = self.clients.load(Ordering::Relaxed);
        let servers = self.servers.load(Ordering::Relaxed);
        (if class.is_bus() { servers } else { clients }, clients + servers)
    }
}

/// One reactor's access to the placement of connections.
pub(crate) struct ConnectionPlacement<M> {
    reactor: ReactorId,
    loads: Arc<[CachePadded<ReactorLoad>]>,
    mailboxes: Mailboxes<M>,
}

impl<M> ConnectionPlacement<M> {
    pub(crate) fn new(
        reactor: ReactorId,
        loads: Arc<[CachePadded<ReactorLoad>]>,
        mailboxes: Mailboxes<M>,
    ) -> ConnectionPlacement<M> {
        ConnectionPlacement { reactor, loads, mailboxes }
    }

    pub(crate) fn reactor(&self) -> ReactorId {
        self.reactor
    }

    /// Assigns a connection to a reactor. Returns it if that is this reactor.
    pub(crate) fn place(&self, accepted: Accepted) -> Option<Accepted> {
        let chosen = least_loaded(&self.loads, accepted.class);
        self.loads[usize::from(chosen.0)].of(accepted.class).fetch_add(1, Ordering::Relaxed);
        if chosen == self.reactor {
            return Some(accepted);
        }
        self.mailboxes.of(chosen).post(ReactorMessage::Connection(accepted));
        None
    }

    /// Records that a connection placed here has ended.
    pub(crate) fn left(&self, class: Class) {
        let before =
            self.loads[usize::from(self.reactor.0)].of(class).fetch_sub(1, Ordering::Relaxed);
        assert!(before > 0, "more connections have ended than were placed");
    }
}

fn least_loaded(loads: &[CachePadded<ReactorLoad>], class: Class) -> ReactorId {
    let least = loads.iter().enumerate().min_by_key(|(_, load)| load.read(class));
    ReactorId(least.map_or(0, |(reactor, _)| reactor as u16))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loads(counts: &[(usize, usize)]) -> Vec<CachePadded<ReactorLoad>> {
        let load = |&(clients, servers): &(usize, usize)| {
            CachePadded::new(ReactorLoad { clients: clients.into(), servers: servers.into() })
        };
        counts.iter().map(load).collect()
    }

    #[test]
    #[should_panic(expected = "more connections have ended than were placed")]
    fn a_connection_ends_only_where_it_was_placed() {
        let loads = loads(&[(1, 0)]);
        let placement =
            ConnectionPlacement::new(ReactorId(0), loads.into(), Mailboxes::<()>::new(Vec::new()));
        placement.left(Class::Client);
        placement.left(Class::Client);
    }

    #[test]
    fn each_kind_goes_where_there_are_fewest_of_it_and_a_tie_to_where_there_are_fewest_in_all() {
        let loads = loads(&[(5, 0), (4, 2), (4, 1)]);
        assert_eq!(least_loaded(&loads, Class::Client), ReactorId(2));
        assert_eq!(least_loaded(&loads, Class::Bus), ReactorId(0));
    }
}
