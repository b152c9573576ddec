//! The coordinator's state machine: range ownership, and the life of every migration and recovery.
//!
//! The machine holds no socket and no store, and reads no clock. [`Coordinator::handle`] takes one
//! event, changes the configuration in memory, and pushes messages for servers. The changes are
//! committed by an effect, [`Effect::Commit`]. What is produced after a change leaves only after
//! its commit (`commit_gate.rs`), so a coordinator that crashes in between has promised nothing.
//!
//! The machine keeps no separate "waiting for an answer" state; a migration's stage determines it.
//! Each live migration has at most one open *demand*: a message to one server, repeated until the
//! answer changes the stage (`migrations/demands.rs`). A lost message, a reconnecting server
//! and a restarted coordinator are therefore one case. Messages that do not fit the stage are
//! repeated or late, and change nothing.
//!
//! The state belongs to components: [`Membership`], [`FailureDetector`], [`Confirmation`],
//! [`Clocks`], [`MapPublisher`], [`FlushRequests`], [`Migrations`] and [`Recoveries`]. Only a
//! component changes its own state. It reads the configuration and the membership, and returns
//! what it wants changed, sent or passed to another component. [`Coordinator`] routes the events
//! (`routing.rs`, `joining.rs`, `asking.rs`) and is the only one that changes the configuration.
//!
//! After each event `reconcile.rs` reconciles the state. No migration waits for a permanently lost
//! server, and none stays queued once it may start. Every connected server has the current map, and
//! every due demand has been sent.
//!
//! Invariants:
//! - A migration changes the owner of its range only when its target has accepted the flip. A
//!   target with a replicated log that died undecided counts as having accepted.
//! - An intent that could be flipped ends without a change of owner in two cases only. Either its
//!   target answers that it will never accept, or the target was away longer than its promise lasts
//!   and the source had no answer. A target that returns later is admitted only if it had not
//!   accepted.
//! - A server's ranges change owner without its consent only after it was declared dead, and only
//!   to a server that reports having recovered them.
//! - Only one of several migrations that share a hash is under way. The others start in numerical
//!   order.
//! - Tablets are never merged. The parts of a split tablet keep its epoch and incarnations.
//!
//! See `docs/design/coordinator.md`.

mod asking;
mod authorization;
mod clocks;
mod commit_gate;
mod confirmation;
mod decision;
mod failure_detector;
mod flushes;
mod joining;
mod leases;
mod map;
mod membership;
mod migrations;
mod reconcile;
mod recoveries;
mod rejection;
mod requests;
mod routing;
mod view;

pub use recoveries::LISTED_BYTES_MAX;

use crate::configuration::Edit;
use crate::configuration_store::{ConfigurationStore, Stopped};
use crate::metastore::MetaStore;
use crate::outbox::{CoordinatorEvent, Effect, Effects, LinkId, Moment};
use crate::records::{ClusterIdentity, Drawn};
use clocks::Clocks;
use commit_gate::CommitGate;
use confirmation::Confirmation;
use decision::Decision;
use failure_detector::FailureDetector;
use flushes::FlushRequests;
use leases::Leases;
use map::MapPublisher;
use membership::{Excuse, Membership};
use migrations::Migrations;
use protocols::migration::timing::UNACKNOWLEDGED_MAX;
use recoveries::Recoveries;
use rejection::Rejection;
use std::collections::BTreeSet;
use std::time::Duration;
use types::{Instant, ServerId};
use view::ClusterView;
use wire::control::{
    ClusterMap, JoinReply, LivenessUpdate, MigrationReport, MigrationUpdate, RecoveryReport,
    ToCoordinator,
};

/// The coordinator's tunable parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CoordinatorSettings {
    /// Longest disconnection of a server before migrations stop waiting for it.
    ///
    /// It exceeds [`UNACKNOWLEDGED_MAX`], the time for which a target serves an accepted range
    /// without an answer; that in turn exceeds the lifetime of its promise to accept. A target that
    /// was away this long therefore serves nothing of the range, unless its source was informed.
    pub absence_max: Duration,
    /// Longest disconnection of a server with a replicated log before it is declared dead. At
    /// most `absence_max`.
    pub return_max: Duration,
    /// Longest silence of such a server on an open connection before it is declared dead. Pings
    /// are sent every fifth of it.
    pub silence_max: Duration,
    /// Longest time for which one reactor of such a server may be stalled while the process
    /// answers.
    pub stall_max: Duration,
    /// Time for which a client's lease for exactly-once requests lasts, unless it is renewed.
    pub lease_term: Duration,
    /// Refuses servers with skewed clocks, and migrations from or to members with skewed clocks.
    /// Disabled only in a simulator.
    pub limits_skew: bool,
    /// The operator vouches for the store's content; no server needs to confirm it.
    pub trusts_file: bool,
}

impl Default for CoordinatorSettings {
    fn default() -> CoordinatorSettings {
        // A server reconnects within a second; clients' held requests wait for five. A crashed
        // process closes its connections at once. A live process that is not stopped reconnects
        // within a few round trips.
        CoordinatorSettings {
            absence_max: Duration::from_secs(5),
            return_max: Duration::from_millis(150),
            // Five pings. A runnable process waits about 50 ms where four compete for each
            // processor.
            silence_max: Duration::from_millis(500),
            // Some commands and some writes to a busy disk take seconds.
            stall_max: Duration::from_secs(5),
            // Far above the time for which a client repeats a request.
            lease_term: Duration::from_secs(300),
            limits_skew: true,
            trusts_file: false,
        }
    }
}

/// The configuration of a cluster, and the components that change it.
#[derive(Debug)]
pub struct Coordinator {
    store: ConfigurationStore,
    gate: CommitGate,
    membership: Membership,
    failure_detector: FailureDetector,
    confirmation: Confirmation,
    clocks: Clocks,
    maps: MapPublisher,
    flushes: FlushRequests,
    leases: Leases,
    migrations: Migrations,
    recoveries: Recoveries,
    /// Time up to which all due work was done by the last `reconcile`.
    reconciled: Instant,
}

impl Coordinator {
    /// Resumes from the state in the store, or creates a cluster with the drawn identity in an
    /// empty store. No server is connected yet; absences are counted from `now`. The store is used
    /// here only, and by the shell afterwards.
    pub fn open(
        store: &mut impl MetaStore,
        drawn: Drawn,
        settings: CoordinatorSettings,
        now: Instant,
    ) -> Result<Coordinator, Stopped> {
        let served = UNACKNOWLEDGED_MAX + UNACKNOWLEDGED_MAX / 20;
        assert!(settings.absence_max > served, "targets that serve would count as absent");
        let store = ConfigurationStore::open(store, drawn.fresh, drawn.term)?;
        let configuration = store.configuration();
        let has_confirmers = configuration.confirmers().next().is_some();
        let is_confirmed = settings.trusts_file || !store.has_past() || !has_confirmers;
        let membership = Membership::new(&settings, configuration, now);
        Ok(Coordinator {
            failure_detector: FailureDetector::new(&settings),
            confirmation: Confirmation::new(is_confirmed),
            clocks: Clocks::new(settings.limits_skew),
            maps: MapPublisher::new(store.term()),
            flushes: FlushRequests::default(),
            leases: Leases::new(store.term(), settings.lease_term, now),
            migrations: Migrations::new(configuration, &membership, now),
            membership,
            recoveries: Recoveries::new(store.term(), configuration),
            store,
            gate: CommitGate::default(),
            reconciled: now,
        })
    }

    /// Returns the identity of the cluster.
    pub fn identity(&self) -> ClusterIdentity {
        self.store.configuration().identity()
    }

    /// Returns the map that was last published, with the current content.
    pub fn map(&self) -> ClusterMap {
        // The map does not depend on the time.
        let wall = types::UnixMillis::default();
        let view = self.view(Moment { now: self.reconciled, wall });
        self.maps.map(view, &self.failure_detector)
    }

    /// Returns reports of all recorded migrations, newest first.
    pub fn reports(&self) -> Vec<MigrationReport> {
        self.migrations.reports(|_| true, self.store.configuration())
    }

    /// Returns reports of all recoveries, in order of the dead servers' numbers.
    pub fn recoveries(&self) -> Vec<RecoveryReport> {
        // The reports do not depend on the time.
        let wall = types::UnixMillis::default();
        self.recoveries.reports(self.view(Moment { now: self.reconciled, wall }))
    }

    /// Returns how many servers with data must still join before any change.
    pub fn awaited_servers(&self) -> usize {
        self.confirmation.awaited_servers(self.store.configuration())
    }

    /// Applies one event; the only way to change a coordinator.
    ///
    /// # Errors
    /// Another coordinator has replaced this one. The machine must not be used again. Effects that
    /// it pushed before remain valid, and the store can be opened again.
    pub fn handle(
        &mut self,
        at: Moment,
        event: CoordinatorEvent,
        out: &mut Effects,
    ) -> Result<(), Stopped> {
        let sendable = match event {
            CoordinatorEvent::Committed(verdict) => {
                self.store.committed(&verdict)?;
                self.gate.release()
            }
            event => {
                let mut effects = Effects::new();
                match self.confirmation.is_older() {
                    true => self.handle_older(at, event, &mut effects),
                    false => self.step(at, event, &mut effects)?,
                }
                self.gate.pass(effects, self.store.progress())
            }
        };
        self.confirmation.mark_messages(self.store.mark(), sendable, &self.membership, out);
        if let Some(transaction) = self.store.begin_transaction() {
            self.gate.begin();
            out.push(Effect::Commit(transaction));
        }
        Ok(())
    }

    fn step(
        &mut self,
        at: Moment,
        event: CoordinatorEvent,
        out: &mut Effects,
    ) -> Result<(), Stopped> {
        assert!(!self.confirmation.is_older(), "a coordinator on an old store acts");
        let excuse = self.failure_detector.note_pause(at.now);
        self.excuse_absences(excuse);
        for connection in self.gate.held_welcomes() {
            if let Some(server) = self.membership.link(connection).and_then(|it| it.server) {
                self.failure_detector.await_welcome(at.now, server);
            }
        }
        let (is_repeated, changes) = (is_often_repeated(&event), self.store.changes());
        match event {
            CoordinatorEvent::Opened { connection, caller } => {
                self.membership.open(connection, caller);
            }
            CoordinatorEvent::Received { connection, message } => {
                self.receive(at, connection, message, out)?;
            }
            CoordinatorEvent::Closed { connection } => self.closed(at, connection),
            CoordinatorEvent::Tick => {}
            CoordinatorEvent::Committed(_) => unreachable!("handled by the caller"),
        }
        let is_unchanged = self.store.changes() == changes && !self.maps.is_stale();
        if is_repeated && is_unchanged && !self.failure_detector.is_ping_due(at.now) {
            return Ok(());
        }
        self.reconcile(at, out)
    }

    /// Applies a component's decision: makes the change, and then produces its messages.
    fn apply(&mut self, at: Moment, decision: Decision, out: &mut Effects) -> Result<(), Stopped> {
        let Decision { edit, dead, messages } = decision;
        if edit.is_some() || !dead.is_empty() {
            let mut edit = edit.unwrap_or_else(|| self.store.configuration().edit());
            edit.declare_dead(&dead, at.wall, self.store.configuration());
            self.commit(at, edit)?;
            self.disconnect_dead(at, &dead, out);
        }
        for (server, message) in messages {
            self.membership.send(server, message, out);
        }
        Ok(())
    }

    /// Makes a change, which the next transaction commits, and informs the components.
    fn commit(&mut self, at: Moment, edit: Edit) -> Result<(), Stopped> {
        if edit.touches_map(self.store.configuration()) {
            self.maps.mark_stale();
        }
        let migrations = edit.touched_migrations();
        assert!(self.confirmation.is_confirmed() || edit.is_empty(), "unconfirmed, yet changing");
        self.store.change(edit);
        let configuration = self.store.configuration();
        self.recoveries.committed(configuration);
        self.migrations.committed(at.now, migrations, configuration);
        Ok(())
    }

    /// Declares servers dead. The declaration and the recovery of their ranges are in one
    /// transaction. From then on a server is never admitted under its number again, and work
    /// that waited for it continues without it.
    fn declare_dead(
        &mut self,
        at: Moment,
        dead: BTreeSet<ServerId>,
        out: &mut Effects,
    ) -> Result<(), Stopped> {
        self.apply(at, Decision { dead, ..Decision::nothing() }, out)
    }

    /// Closes the connections of dead servers and discards their statements about other logs.
    fn disconnect_dead(&mut self, at: Moment, servers: &BTreeSet<ServerId>, out: &mut Effects) {
        for &server in servers {
            tracing::warn!(%server, "server declared dead");
            self.recoveries.forget_holder(server);
            if let Some(connection) = self.membership.connection_of(server) {
                self.closed(at, connection);
                self.reject(connection, Rejection::fenced(), out);
            }
        }
    }

    /// Removes a closed connection from every component.
    fn closed(&mut self, at: Moment, connection: LinkId) {
        self.confirmation.closed(connection);
        self.clocks.forget_join(connection);
        let mut since = at.now;
        if let Some(server) = self.membership.server_on(connection) {
            self.clocks.forget(server);
            since = self.failure_detector.unwatch(at.now, server);
            self.flushes.closed(connection);
            self.maps.mark_stale();
            self.migrations.mark_queue_stale();
        }
        self.membership.close(connection, since);
        assert!(self.membership.link(connection).is_none(), "{connection} is closed and stays");
    }

    /// Sends the reason for a rejection to a connection, and closes it.
    fn reject(&mut self, connection: LinkId, rejection: Rejection, out: &mut Effects) {
        let Rejection { reason, is_fenced } = rejection;
        tracing::warn!(%connection, reason, "rejected");
        self.send_away(connection, JoinReply::Rejected { reason, is_fenced }, out);
    }

    /// Sends the last reply to a connection, and closes it.
    fn send_away(&mut self, connection: LinkId, reply: JoinReply, out: &mut Effects) {
        // Its held join or asks must not be processed later: no event tells that it has ended.
        self.confirmation.closed(connection);
        self.clocks.forget_join(connection);
        self.membership.forget(connection);
        out.push(Effect::Send { connection, message: reply.into() });
        out.push(Effect::Close { connection });
    }

    /// Records a sign of life of a server.
    fn note_heard(&mut self, now: Instant, server: ServerId) {
        let excuse = self.failure_detector.note_heard(now, server);
        self.excuse_absences(excuse);
    }

    fn excuse_absences(&mut self, excuse: Option<Excuse>) {
        if let Some(excuse) = excuse {
            self.membership.excuse(excuse);
        }
    }

    fn view(&self, at: Moment) -> ClusterView<'_> {
        ClusterView::new(at, self.store.configuration(), &self.membership)
    }
}

/// Returns whether nothing becomes due by an event that changes no record. Thousands of servers
/// answer pings, and each migration's target repeats its report ten times a second.
fn is_often_repeated(event: &CoordinatorEvent) -> bool {
    let CoordinatorEvent::Received { message, .. } = event else { return false };
    matches!(
        message,
        ToCoordinator::Liveness(LivenessUpdate::Pong { .. })
            | ToCoordinator::Clock(_)
            | ToCoordinator::Migration(
                MigrationUpdate::Progress { .. }
                    | MigrationUpdate::Flipped { .. }
                    | MigrationUpdate::Shrink { .. }
            )
    )
}

#[cfg(test)]
mod tests;
