//! Membership: open connections, the servers that joined on them, and absences.
//!
//! A server number identifies one run of a process. A server that rejoins under its number still
//! has everything in memory.
//!
//! Invariants:
//! - A server is `Connected` by exactly the connection on which it joined last. Older connections
//!   of it are closed.
//! - While no server is connected, the coordinator suspects itself: absences count anew from the
//!   next connection.

use super::CoordinatorSettings;
use crate::configuration::ClusterConfiguration;
use crate::outbox::{Caller, Effect, Effects, LinkId};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use types::{ClusterId, Instant, ServerId};
use wire::control::{FromCoordinator, Join};

/// Connections and absences of servers.
#[derive(Debug)]
pub(super) struct Membership {
    absence_max: Duration,
    return_max: Duration,
    links: BTreeMap<LinkId, OpenLink>,
    /// Connection state of every server in the configuration.
    presence: BTreeMap<ServerId, Presence>,
    connected: ConnectedServers,
    /// Set while no server is connected. Then no server's absence counts.
    is_isolated: bool,
}

/// The connected servers.
#[derive(Debug, Default)]
pub(super) struct ConnectedServers {
    servers: BTreeSet<ServerId>,
    /// Number of changes of the set.
    revision: u64,
}

impl ConnectedServers {
    pub(super) fn insert(&mut self, server: ServerId) {
        self.revision += u64::from(self.servers.insert(server));
    }

    pub(super) fn remove(&mut self, server: ServerId) {
        self.revision += u64::from(self.servers.remove(&server));
    }

    pub(super) fn contains(&self, server: ServerId) -> bool {
        self.servers.contains(&server)
    }

    /// Returns the servers in order of their numbers.
    pub(super) fn iter(&self) -> impl Iterator<Item = ServerId> {
        self.servers.iter().copied()
    }

    /// Returns a number that is another one after each change of the set.
    pub(super) fn revision(&self) -> u64 {
        self.revision
    }
}

/// An open connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct OpenLink {
    /// The process at the other end.
    pub(super) caller: Caller,
    /// The server that joined on the connection. `None` until it has joined.
    pub(super) server: Option<ServerId>,
}

/// Reachability of a server.
#[derive(Clone, Copy, Debug)]
pub(super) enum Presence {
    Connected(LinkId),
    Away {
        since: Instant,
    },
    /// Not seen since this coordinator started, or since the coordinator was possibly cut off.
    Expected {
        since: Instant,
    },
}

/// Time in which the coordinator could hear no server. It does not count against them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Excuse {
    /// Time by which every deadline moves.
    pub(super) longer: Duration,
    /// No deadline moves beyond this time.
    pub(super) latest: Instant,
}

impl Excuse {
    /// Moves the beginning of a silence.
    pub(super) fn extend(self, since: &mut Instant) {
        *since = (*since + self.longer).min(self.latest);
    }
}

impl Membership {
    /// Expects all servers of the configuration. Absences count from `now`.
    pub(super) fn new(
        settings: &CoordinatorSettings,
        configuration: &ClusterConfiguration,
        now: Instant,
    ) -> Membership {
        let CoordinatorSettings { absence_max, return_max, .. } = *settings;
        assert!(return_max <= absence_max, "dead servers do not return");
        let expected = Presence::Expected { since: now };
        let servers = configuration.servers().keys();
        let presence = servers.map(|&server| (server, expected)).collect();
        let (links, connected) = (BTreeMap::new(), ConnectedServers::default());
        Membership { absence_max, return_max, links, presence, connected, is_isolated: true }
    }

    /// Records a new connection.
    pub(super) fn open(&mut self, connection: LinkId, caller: Caller) {
        let known = self.links.insert(connection, OpenLink { caller, server: None });
        assert!(known.is_none(), "{connection} opened twice");
    }

    /// Returns an open connection.
    pub(super) fn link(&self, connection: LinkId) -> Option<OpenLink> {
        self.links.get(&connection).copied()
    }

    /// Returns the server that joined on this connection.
    pub(super) fn server_on(&self, connection: LinkId) -> Option<ServerId> {
        self.links.get(&connection)?.server
    }

    /// Binds a connection to the server that has joined on it. Returns the server's previous
    /// connection, which counts as closed.
    pub(super) fn bind(&mut self, connection: LinkId, server: ServerId) -> Option<LinkId> {
        let old = self.connection_of(server);
        if let Some(old) = old {
            assert_ne!(old, connection, "{server} joins again on its own connection");
            self.links.remove(&old);
        }
        let link = self.links.get_mut(&connection).expect("a joining server has a connection");
        assert_eq!(link.server, None, "two servers join on {connection}");
        link.server = Some(server);
        self.presence.insert(server, Presence::Connected(connection));
        self.connected.insert(server);
        old
    }

    /// Removes a connection on which no server has joined.
    pub(super) fn forget(&mut self, connection: LinkId) {
        let link = self.links.remove(&connection);
        let server = link.and_then(|link| link.server);
        assert_eq!(server, None, "{connection} is removed while its server counts as connected");
    }

    /// Removes a connection. The absence of a server that had joined on it counts from `since`.
    pub(super) fn close(&mut self, connection: LinkId, since: Instant) {
        let Some(link) = self.links.remove(&connection) else { return };
        if let Some(server) = link.server {
            let before = self.presence.insert(server, Presence::Away { since });
            let was_connected = matches!(before, Some(Presence::Connected(at)) if at == connection);
            self.connected.remove(server);
            assert!(was_connected, "{server} was not connected by {connection}: {before:?}");
            let is_isolated = self.servers().next().is_none();
            self.is_isolated = is_isolated;
        }
    }

    /// Removes a server that has left the configuration.
    pub(super) fn remove(&mut self, server: ServerId) {
        let presence = self.presence.remove(&server);
        let is_connected = matches!(presence, Some(Presence::Connected(_)));
        assert!(!is_connected, "{server} leaves the configuration while it is connected");
    }

    /// Returns the server's connection, if it is connected.
    pub(super) fn connection_of(&self, server: ServerId) -> Option<LinkId> {
        match self.presence.get(&server) {
            Some(Presence::Connected(connection)) => Some(*connection),
            Some(Presence::Away { .. } | Presence::Expected { .. }) | None => None,
        }
    }

    pub(super) fn is_connected(&self, server: ServerId) -> bool {
        self.connection_of(server).is_some()
    }

    pub(super) fn connected(&self) -> &ConnectedServers {
        &self.connected
    }

    /// Returns the connections of servers, in order.
    pub(super) fn joined(&self) -> impl Iterator<Item = (LinkId, ServerId)> {
        self.links.iter().filter_map(|(&connection, link)| Some((connection, link.server?)))
    }

    /// Returns the connected servers, in order of their connections.
    pub(super) fn servers(&self) -> impl Iterator<Item = ServerId> {
        self.joined().map(|(_, server)| server)
    }

    pub(super) fn presence(&self, server: ServerId) -> Option<Presence> {
        self.presence.get(&server).copied()
    }

    /// Returns whether no server is connected. Then none is declared dead.
    pub(super) fn is_isolated(&self) -> bool {
        self.is_isolated
    }

    /// Returns the time from which the absence of a disconnected server with a replicated log
    /// means its death. `None`: it is connected or unknown.
    pub(super) fn return_deadline(&self, server: ServerId) -> Option<Instant> {
        match self.presence.get(&server)? {
            Presence::Away { since } => Some(*since + self.return_max),
            Presence::Expected { since } => Some(*since + self.absence_max),
            Presence::Connected(_) => None,
        }
    }

    /// Returns when migrations stop waiting for a server. `None`: it is connected.
    pub(super) fn given_up_at(&self, server: ServerId) -> Option<Instant> {
        match self.presence.get(&server) {
            Some(Presence::Away { since } | Presence::Expected { since }) => {
                Some(*since + self.absence_max)
            }
            Some(Presence::Connected(_)) | None => None,
        }
    }

    /// Restarts the absence timers of servers with replicated logs when a first server connects
    /// after none was connected.
    pub(super) fn end_isolation(&mut self, now: Instant, configuration: &ClusterConfiguration) {
        if std::mem::take(&mut self.is_isolated) {
            for (&server, presence) in &mut self.presence {
                let is_connected = matches!(presence, Presence::Connected(_));
                if configuration.keeps_log(server) && !is_connected {
                    *presence = Presence::Expected { since: now };
                }
            }
        }
        assert!(self.servers().next().is_some(), "isolation ends with a connected server");
    }

    /// Restarts the absence timers of the servers not seen since the coordinator's start.
    pub(super) fn expect_anew(&mut self, now: Instant) {
        for presence in self.presence.values_mut() {
            if let Presence::Expected { since } = presence {
                *since = now;
            }
        }
    }

    /// Excuses absences for a time in which the coordinator could hear no server.
    pub(super) fn excuse(&mut self, excuse: Excuse) {
        for presence in self.presence.values_mut() {
            match presence {
                Presence::Away { since } | Presence::Expected { since } => excuse.extend(since),
                Presence::Connected(_) => {}
            }
        }
    }

    /// Returns whether a connected number and the rejoin under it belong to the same process.
    pub(super) fn is_same_process(&self, connection: LinkId, join: &Join, ours: ClusterId) -> bool {
        let Some((cluster, server)) = join.rejoin else { return true };
        let generation = |connection| match self.links.get(&connection)?.caller {
            Caller::Server { generation, .. } => Some(generation),
            Caller::Operator => None,
        };
        let living = self.connection_of(server).and_then(generation);
        living.is_none() || living == generation(connection) || cluster != ours
    }

    /// Sends a message to a server, if it is connected. Everything that matters is repeated on
    /// reconnection.
    pub(super) fn send(
        &self,
        server: ServerId,
        message: impl Into<FromCoordinator>,
        out: &mut Effects,
    ) {
        if let Some(connection) = self.connection_of(server) {
            out.push(Effect::Send { connection, message: message.into() });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::configuration::tests::empty;

    fn membership() -> Membership {
        let configuration = empty();
        let mut membership =
            Membership::new(&CoordinatorSettings::default(), &configuration, Instant(0));
        membership.open(LinkId(1), Caller::Operator);
        membership.open(LinkId(2), Caller::Operator);
        membership
    }

    #[test]
    fn a_server_that_joins_again_loses_its_older_connection() {
        let mut membership = membership();
        assert_eq!(membership.bind(LinkId(1), ServerId(7)), None);
        assert_eq!(membership.bind(LinkId(2), ServerId(7)), Some(LinkId(1)));
        assert!(membership.link(LinkId(1)).is_none());
        membership.close(LinkId(2), Instant(5));
        assert!(membership.is_isolated());
        assert!(!membership.is_connected(ServerId(7)));
    }

    #[test]
    #[should_panic(expected = "two servers join on connection 1")]
    fn a_connection_has_one_server() {
        let mut membership = membership();
        membership.bind(LinkId(1), ServerId(7));
        membership.bind(LinkId(1), ServerId(8));
    }

    #[test]
    #[should_panic(expected = "leaves the configuration while it is connected")]
    fn a_connected_server_does_not_leave_the_configuration() {
        let mut membership = membership();
        membership.bind(LinkId(1), ServerId(7));
        membership.remove(ServerId(7));
    }
}
