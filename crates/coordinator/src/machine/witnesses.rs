//! Witnesses: other servers vouch for a server that the coordinator does not hear.
//!
//! Silence on a link does not prove that the server is down; the cut may affect only this link.
//! Before a silent server is declared dead, several other servers are asked to ping it over the
//! bus. If one of them receives an answer, the server is only unreachable from the coordinator,
//! and continues to serve. The question is repeated with every ping, so witnesses do not delay
//! the detection of a death.
//!
//! Only the server itself can answer. Another process at its address has another number, and the
//! bus closes a connection to the wrong process.

use super::{Coordinator, Presence};
use crate::ledger::Stopped;
use crate::outbox::Outbox;
use crate::records::Server;
use crate::store::MetaStore;
use std::time::Duration;
use types::{Instant, ServerId};
use wire::control::FromCoordinator;

/// Number of witnesses asked about each missed server.
const WITNESSES: usize = 3;

impl<S: MetaStore> Coordinator<S> {
    /// Asks witnesses about the missed servers. Called with every ping.
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

    /// Returns whether the server would soon be declared dead if it stays silent.
    fn is_missed(&self, now: Instant, server: &Server) -> bool {
        let is_silent = match self.presence.get(&server.id) {
            None => false,
            Some(Presence::Connected(_)) => !self.hearing.is_heard(now, server.id),
            Some(Presence::Away { .. } | Presence::Expected { .. }) => true,
        };
        is_silent && server.keeps_log() && !server.fenced
    }

    /// Returns heard servers that follow the suspect by number, which spreads the load.
    fn witnesses_for(&self, now: Instant, suspect: ServerId) -> Vec<ServerId> {
        let servers = self.ledger.servers();
        let later = servers.range(suspect..).skip(1);
        let others = later.chain(servers.range(..suspect)).map(|(server, _)| *server);
        others.filter(|server| self.hearing.is_heard(now, *server)).take(WITNESSES).collect()
    }

    /// Records that a witness received an answer from the server.
    pub(super) fn witnessed(&mut self, now: Instant, server: ServerId) -> Result<(), Stopped> {
        let record = self.ledger.servers().get(&server);
        if !record.is_some_and(|record| self.is_missed(now, record)) {
            return Ok(());
        }
        if self.witnessed.insert(server, now).is_none() {
            tracing::warn!(%server, "server is only reachable from other servers");
            // A reachable server without a connection is shown as connected.
            self.map_is_stale |= self.connection_of(server).is_none();
        }
        Ok(())
    }

    /// Returns whether other servers reach it, though it may have no connection here.
    pub(super) fn is_reached_by_others(&self, server: ServerId) -> bool {
        self.witnessed.contains_key(&server)
    }

    /// Returns the time until which witnesses' reports keep the server alive.
    pub(super) fn lives_until(&self, server: ServerId) -> Option<Instant> {
        let lasts: Duration = self.settings.silence_max;
        self.witnessed.get(&server).map(|heard| *heard + lasts)
    }
}
