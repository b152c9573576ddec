//! Servers that answer for one that the coordinator does not hear.
//!
//! Silence on a link tells nothing of who is at its other end: between the two there may be a cut
//! that nobody else has a part in. So before a server is declared dead for it, some others are told
//! to ask it over the bus. If one of them has an answer the server is unreachable from here, not
//! dead: clients and other servers reach it, and it goes on serving. That is asked again with every
//! ping, so a death is found as early as without.
//!
//! An answer is the server's own: a process that stands where another one stood has another number,
//! and the bus closes connections to whoever is not who was meant.

use super::{Coordinator, Presence};
use crate::ledger::Stopped;
use crate::outbox::Outbox;
use crate::records::Server;
use crate::store::MetaStore;
use std::time::Duration;
use types::{Instant, ServerId};
use wire::control::FromCoordinator;

/// So many are asked about each server that is missed.
const WITNESSES: usize = 3;

impl<S: MetaStore> Coordinator<S> {
    /// Asks others about the servers that are missed. Called with every ping.
    pub(super) fn ask_witnesses(&mut self, now: Instant, out: &mut Outbox) {
        let servers = self.ledger.servers();
        self.witnessed.retain(|server, _| servers.get(server).is_some_and(|it| !it.fenced));
        let missed = servers.values().filter(|server| self.is_missed(now, server));
        let missed: Vec<ServerId> = missed.map(|server| server.id).collect();
        for server in missed {
            for witness in self.witnesses_for(now, server) {
                self.send(witness, FromCoordinator::Witness { server }, out);
            }
        }
    }

    /// Returns whether the server would be declared dead soon, if nothing is heard of it.
    fn is_missed(&self, now: Instant, server: &Server) -> bool {
        let is_silent = match self.presence.get(&server.id) {
            None => false,
            Some(Presence::Connected(_)) => !self.hearing.is_heard(now, server.id),
            Some(Presence::Away { .. } | Presence::Expected { .. }) => true,
        };
        is_silent && server.keeps_log() && !server.fenced
    }

    /// Others that are heard: the next ones by number, so that not always the same are asked.
    fn witnesses_for(&self, now: Instant, suspect: ServerId) -> Vec<ServerId> {
        let servers = self.ledger.servers();
        let later = servers.range(suspect..).skip(1);
        let others = later.chain(servers.range(..suspect)).map(|(server, _)| *server);
        others.filter(|server| self.hearing.is_heard(now, *server)).take(WITNESSES).collect()
    }

    /// A server has had an answer of another one.
    pub(super) fn witnessed(&mut self, now: Instant, server: ServerId) -> Result<(), Stopped> {
        let record = self.ledger.servers().get(&server);
        if !record.is_some_and(|record| self.is_missed(now, record)) {
            return Ok(());
        }
        if self.witnessed.insert(server, now).is_none() {
            tracing::warn!(%server, "is not reached from here, but by other servers");
            // Who has no connection is shown as if it had one.
            self.map_is_stale |= self.connection_of(server).is_none();
        }
        Ok(())
    }

    /// Returns whether other servers reach it, though it may have no connection here.
    pub(super) fn is_reached_by_others(&self, server: ServerId) -> bool {
        self.witnessed.contains_key(&server)
    }

    /// Up to when the server counts as living, since others have reached it.
    pub(super) fn lives_until(&self, server: ServerId) -> Option<Instant> {
        let lasts: Duration = self.settings.silence_max;
        self.witnessed.get(&server).map(|heard| *heard + lasts)
    }
}
