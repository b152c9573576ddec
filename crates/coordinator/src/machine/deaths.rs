//! Servers whose log others keep are not waited for: one that stays away is declared dead.
//!
//! That is written down, with the recovery of what it owned, in one transaction. From then on the
//! server is not let in under its number, whatever it says; and whatever waited for it goes on
//! without it.
//!
//! So is one that is connected and says nothing (`hearing.rs`). A coordinator that hears nobody at all
//! suspects itself: nobody dies while no server is connected, and after that, as after its own start,
//! servers get as long to come back as migrations would wait for them.

use super::{Coordinator, Presence, membership::Rejection};
use crate::ledger::{Edit, Stopped};
use crate::outbox::{Moment, Outbox};
use crate::records::{Recovery, Server};
use crate::store::MetaStore;
use std::collections::BTreeSet;
use types::{Instant, ServerId};

impl<S: MetaStore> Coordinator<S> {
    /// When a server is declared dead, if it does not come back, or says nothing more, and others
    /// are heard.
    pub(super) fn dead_at(&self, server: &Server, half_heard: Instant) -> Option<Instant> {
        if self.is_alone || !server.keeps_log() || server.fenced {
            return None;
        }
        let due = match self.presence.get(&server.id)? {
            Presence::Away { since } => *since + self.settings.return_max,
            Presence::Expected { since } => *since + self.settings.absence_max,
            Presence::Connected(_) => self.hearing.silent_at(server.id, half_heard)?,
        };
        // Others reach it: only this coordinator does not.
        let due = self.lives_until(server.id).map_or(due, |until| due.max(until));
        self.hearing.may_judge(due).then_some(due)
    }

    /// Whether the server was declared dead, and is recovered from its log.
    pub(super) fn is_dead(&self, server: ServerId) -> bool {
        self.ledger.servers().get(&server).is_some_and(|record| record.fenced && record.keeps_log())
    }

    /// Declares those dead whose time is over.
    pub(super) fn declare_absent_dead(
        &mut self,
        at: Moment,
        out: &mut Outbox,
    ) -> Result<(), Stopped> {
        // Each death may leave so few that half of them are heard, who are judged otherwise.
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

    /// Ends the servers' part in the cluster.
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

    /// What is written when servers are dead. Followed, after the commit, by `part_with`.
    pub(super) fn put_dead(&self, at: Moment, edit: &mut Edit, servers: &BTreeSet<ServerId>) {
        for recovery in self.ledger.recoveries().values() {
            // Others will get what they were to recover.
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

    /// Nothing is said to the dead any more, and what they said about others counts no more.
    pub(super) fn part_with(&mut self, at: Moment, servers: &BTreeSet<ServerId>, out: &mut Outbox) {
        for &server in servers {
            tracing::warn!(%server, "given up");
            self.forget_holder(server);
            if let Some(connection) = self.connection_of(server) {
                self.closed(at, connection);
                self.reject(connection, Rejection::fenced(), out);
            }
        }
    }

    /// Somebody is connected again after nobody was.
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
