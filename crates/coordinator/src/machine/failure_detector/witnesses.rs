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

use super::FailureDetector;
use crate::configuration::ClusterConfiguration;
use crate::machine::membership::{Membership, Presence};
use crate::outbox::Effects;
use crate::records::Server;
use types::{Instant, ServerId};
use wire::control::LivenessRequest;

/// Number of witnesses asked about each missed server.
const WITNESSES: usize = 3;

impl FailureDetector {
    /// Asks witnesses about the missed servers. Called with every ping.
    pub(in crate::machine) fn ask_witnesses(
        &mut self,
        now: Instant,
        configuration: &ClusterConfiguration,
        membership: &Membership,
        out: &mut Effects,
    ) {
        let servers = configuration.servers();
        self.witnessed.retain(|server, _| servers.get(server).is_some_and(|it| !it.declared_dead));
        for missed in servers.values().filter(|server| self.is_missed(now, server, membership)) {
            let witnesses = self.witnesses_for(now, missed.id, configuration);
            assert!(!witnesses.contains(&missed.id), "{} is a witness for itself", missed.id);
            for witness in witnesses {
                membership.send(witness, LivenessRequest::Witness { server: missed.id }, out);
            }
        }
    }

    /// Returns whether the server would soon be declared dead if it stays silent.
    fn is_missed(&self, now: Instant, server: &Server, membership: &Membership) -> bool {
        let is_silent = match membership.presence(server.id) {
            None => false,
            Some(Presence::Connected(_)) => !self.is_heard(now, server.id),
            Some(Presence::Away { .. } | Presence::Expected { .. }) => true,
        };
        is_silent && server.keeps_log() && !server.declared_dead
    }

    /// Returns heard servers that follow the suspect by number, which spreads the load.
    fn witnesses_for(
        &self,
        now: Instant,
        suspect: ServerId,
        configuration: &ClusterConfiguration,
    ) -> Vec<ServerId> {
        let servers = configuration.servers();
        let later = servers.range(suspect..).skip(1);
        let others = later.chain(servers.range(..suspect)).map(|(server, _)| *server);
        others.filter(|server| self.is_heard(now, *server)).take(WITNESSES).collect()
    }

    /// Records that a witness received an answer from the server. Returns whether that is new: a
    /// reachable server without a connection is shown as connected.
    pub(in crate::machine) fn witnessed(
        &mut self,
        now: Instant,
        server: &Server,
        membership: &Membership,
    ) -> bool {
        if !self.is_missed(now, server, membership) {
            return false;
        }
        let is_new = self.witnessed.insert(server.id, now).is_none();
        if is_new {
            tracing::warn!(server = %server.id, "server is only reachable from other servers");
        }
        is_new
    }

    /// Returns whether other servers reach it, though it may have no connection here.
    pub(in crate::machine) fn is_reached_by_others(&self, server: ServerId) -> bool {
        self.witnessed.contains_key(&server)
    }

    /// Returns the time until which witnesses' reports keep the server alive.
    pub(super) fn lives_until(&self, server: ServerId) -> Option<Instant> {
        self.witnessed.get(&server).map(|heard| *heard + self.silence_max)
    }
}
