//! Death declarations: a server with a replicated log that stays away is declared dead.
//!
//! The declaration and the recovery of the server's ranges are committed in one transaction. From
//! then on the server is never admitted under its number again, and work that waited for it
//! continues without it.
//!
//! A connected but silent server is declared dead as well (`hearing.rs`). A coordinator that
//! hears no server at all suspects itself: no server is declared dead while none is connected.
//! After that, as after the coordinator's own start, servers have as long to return as migrations
//! would wait for them.

use super::{Coordinator, Presence, membership::Rejection};
use crate::ledger::{Edit, Stopped};
use crate::outbox::{Moment, Outbox};
use crate::records::{Recovery, Server};
use crate::store::MetaStore;
use std::collections::BTreeSet;
use types::{Instant, ServerId};

impl<S: MetaStore> Coordinator<S> {
    /// Returns when the server is declared dead, if it neither reconnects nor sends a message
    /// until then and other servers are heard.
    pub(super) fn dead_at(&self, server: &Server, half_heard: Instant) -> Option<Instant> {
        if self.is_alone || !server.keeps_log() || server.fenced {
            return None;
        }
        let due = match self.presence.get(&server.id)? {
            Presence::Away { since } => *since + self.settings.return_max,
            Presence::Expected { since } => *since + self.settings.absence_max,
            Presence::Connected(_) => self.hearing.silent_at(server.id, half_heard)?,
        };
        // Other servers reach it; only the coordinator does not.
        let due = self.lives_until(server.id).map_or(due, |until| due.max(until));
        self.hearing.may_judge(due).then_some(due)
    }

    /// Returns whether the server was declared dead and is recovered from its log.
    pub(super) fn is_dead(&self, server: ServerId) -> bool {
        self.ledger.servers().get(&server).is_some_and(|record| record.fenced && record.keeps_log())
    }

    /// Declares every server dead whose deadline has passed.
    pub(super) fn declare_absent_dead(
        &mut self,
        at: Moment,
        out: &mut Outbox,
    ) -> Result<(), Stopped> {
        // Each death shrinks the set that "half of the servers" refers to, so later ones are
        // judged anew.
        loop {
            let half_heard = self.hearing.half_heard();
            let is_due = |server: &&Server| {
                self.dead_at(server, half_heard).is_some_and(|due| due <= at.now)
            };
            let due = self.ledger.servers().values().filter(is_due).map(|server| server.id);
            let due: BTreeSet<ServerId> = due.collect();
            if due.is_empty() {
                return Ok(());
            }
            self.declare_dead(at, &due, out)?;
        }
    }

    /// Declares servers dead, and closes their connections after the commit.
    pub(super) fn declare_dead(
        &mut self,
        at: Moment,
        servers: &BTreeSet<ServerId>,
        out: &mut Outbox,
    ) -> Result<(), Stopped> {
        let mut edit = self.ledger.edit();
        self.put_dead(at, &mut edit, servers);
        self.commit(at, edit)?;
        self.part_with(at, servers, out);
        Ok(())
    }

    /// Adds the records of newly dead servers to an edit. `part_with` must follow the commit.
    pub(super) fn put_dead(&self, at: Moment, edit: &mut Edit, servers: &BTreeSet<ServerId>) {
        for recovery in self.ledger.recoveries().values() {
            // Their recovery partitions are assigned to other masters.
            if let Some(rest) = recovery.with_parts(|part| !servers.contains(&part.master)) {
                edit.put_recovery(rest);
            }
        }
        for server in servers.iter().filter_map(|server| self.ledger.servers().get(server)) {
            edit.put_server(Server { fenced: true, ..server.clone() });
            if server.keeps_log() && !server.fenced {
                edit.put_recovery(Recovery::new(server.id, at.wall));
            }
        }
    }

    /// Closes the connections of dead servers and discards their statements about other logs.
    pub(super) fn part_with(&mut self, at: Moment, servers: &BTreeSet<ServerId>, out: &mut Outbox) {
        for &server in servers {
            tracing::warn!(%server, "server declared dead");
            self.forget_holder(server);
            if let Some(connection) = self.connection_of(server) {
                self.closed(at, connection);
                self.reject(connection, Rejection::fenced(), out);
            }
        }
    }

    /// Restarts the absence timers when a first server connects after none was connected.
    pub(super) fn end_solitude(&mut self, now: Instant) {
        if std::mem::take(&mut self.is_alone) {
            for (server, presence) in &mut self.presence {
                let keeps_log = self.ledger.servers().get(server).is_some_and(Server::keeps_log);
                if keeps_log && !matches!(presence, Presence::Connected(_)) {
                    *presence = Presence::Expected { since: now };
                }
            }
        }
    }
}
