//! Routing of messages to components.

use super::authorization::judge;
use super::confirmation::HeldMessages;
use super::membership::OpenLink;
use super::migrations::MigrationSender;
use super::recoveries::{FencedReport, ManifestAnswer, ManifestQuestion, changed_profile};
use super::requests::Requester;
use super::view::ClusterView;
use super::{Coordinator, Decision};
use crate::configuration::PartitionKey;
use crate::configuration_store::Stopped;
use crate::outbox::{Caller, CoordinatorEvent, Effects, LinkId, Moment};
use crate::ranges::without;
use crate::records::{Server, TabletRecord};
use std::collections::BTreeSet;
use types::{HashRange, OwnershipEpoch, SegmentId, ServerId};
use wire::control::{
    Answer, Ask, LivenessUpdate, LogRequest, LogUpdate, MigrationUpdate, RecoveryRequest,
    RecoveryUpdate, ToCoordinator,
};

impl Coordinator {
    pub(super) fn receive(
        &mut self,
        at: Moment,
        connection: LinkId,
        message: ToCoordinator,
        out: &mut Effects,
    ) -> Result<(), Stopped> {
        // If the connection is unknown, it was closed here while the message was in flight.
        let Some(link) = self.membership.link(connection) else { return Ok(()) };
        if let Err(reason) = judge(link.caller, link.server, &message) {
            self.refuse(at, connection, &message, reason, out);
            return Ok(());
        }
        if !self.confirmation.is_confirmed() {
            return self.receive_unconfirmed(at, connection, message, out);
        }
        match (message, link.server) {
            (ToCoordinator::Join(join), _) => self.join(at, connection, join, out),
            (ToCoordinator::Ask { request, ask }, server) => {
                if let Some(server) = server {
                    self.note_heard(at.now, server);
                }
                self.ask(at, Requester { connection, server, request }, ask, out)
            }
            (ToCoordinator::Clock(reading), None) => {
                self.newcomer_clock(at, connection, reading, out)
            }
            (message, Some(server)) => {
                self.note_heard(at.now, server);
                self.receive_of_server(at, server, message, out)
            }
            (_, None) => unreachable!("before its join, a peer may only ask and send its clock"),
        }
    }

    /// Dispatches a message from a joined server to a confirmed coordinator.
    fn receive_of_server(
        &mut self,
        at: Moment,
        server: ServerId,
        message: ToCoordinator,
        out: &mut Effects,
    ) -> Result<(), Stopped> {
        match message {
            ToCoordinator::Join(_) | ToCoordinator::Ask { .. } => unreachable!("handled above"),
            ToCoordinator::Clock(reading) => {
                self.clocks.note(at.now, server, reading);
                Ok(())
            }
            // This answers a rebuild's question; this coordinator has its store.
            ToCoordinator::Described(_) => Ok(()),
            ToCoordinator::Liveness(update) => self.receive_of_liveness(at, server, update, out),
            ToCoordinator::Holding { range, epoch } => self.holding(at, server, range, epoch),
            ToCoordinator::Migration(update) => self.receive_of_migration(at, server, update, out),
            ToCoordinator::Log(update) => self.receive_of_log(at, server, update, out),
            ToCoordinator::Recovery(update) => self.receive_of_recovery(at, server, update, out),
        }
    }

    /// Dispatches a message about the liveness of servers.
    fn receive_of_liveness(
        &mut self,
        at: Moment,
        server: ServerId,
        update: LivenessUpdate,
        out: &mut Effects,
    ) -> Result<(), Stopped> {
        match update {
            LivenessUpdate::Pong { is_stalled } => {
                if self.failure_detector.pong(at.now, server, is_stalled) {
                    tracing::warn!(
                        %server,
                        "reactor stalled for too long, declaring its server dead"
                    );
                    self.declare_dead(at, BTreeSet::from([server]), out)?;
                }
            }
            LivenessUpdate::Suspect { server: suspect } => {
                self.failure_detector.verify(at.now, suspect, &self.membership, out);
            }
            LivenessUpdate::Witnessed { server } => self.witnessed(at, server),
        }
        Ok(())
    }

    /// Passes a message about a migration to the component, and applies its decision.
    fn receive_of_migration(
        &mut self,
        at: Moment,
        server: ServerId,
        update: MigrationUpdate,
        out: &mut Effects,
    ) -> Result<(), Stopped> {
        let sender = |migration| MigrationSender { server, migration };
        let view = ClusterView::new(at, self.store.configuration(), &self.membership);
        let decision = match update {
            MigrationUpdate::Measured { migration, records, bytes } => {
                self.migrations.measured(sender(migration), records, bytes, view)
            }
            MigrationUpdate::Prepared { migration, refused } => {
                self.migrations.prepared(sender(migration), refused, view)
            }
            MigrationUpdate::FlipUnanswered { migration } => {
                self.migrations.flip_unanswered(sender(migration), view)
            }
            MigrationUpdate::Flipped { migration } => {
                self.migrations.flipped(sender(migration), view)
            }
            MigrationUpdate::Decided { migration, accepted } => {
                self.migrations.decided(sender(migration), accepted, view)
            }
            MigrationUpdate::Shrink { migration, remaining } => {
                let sender = sender(migration);
                let decision = self.migrations.shrink_accepts(sender, &remaining, view);
                self.apply(at, decision, out)?;
                self.migrations.shrink(sender, &remaining, self.view(at))
            }
            MigrationUpdate::Progress { migration, progress } => {
                self.migrations.note_progress(sender(migration), progress, view);
                Decision::nothing()
            }
            MigrationUpdate::Released { migration } => {
                self.migrations.released(sender(migration), view)
            }
        };
        self.apply(at, decision, out)
    }

    /// Dispatches a message about a log, from its master or from a backup.
    fn receive_of_log(
        &mut self,
        at: Moment,
        server: ServerId,
        update: LogUpdate,
        out: &mut Effects,
    ) -> Result<(), Stopped> {
        let configuration = self.store.configuration();
        let view = ClusterView::new(at, configuration, &self.membership);
        match update {
            LogUpdate::ManifestContinues { number } => {
                return self.manifest_log(at, server, number, out);
            }
            LogUpdate::LoadProfile(profile) => {
                if let Some(edit) = changed_profile(server, profile, configuration) {
                    self.commit(at, edit)?;
                }
            }
            LogUpdate::Fenced { log, first, replicas, clock, more } => {
                let report = FencedReport { first, replicas: &replicas, clock, more };
                self.recoveries.fenced(server, log, report, view);
            }
            LogUpdate::ManifestRead { log, replica, first, bodies, next } => {
                let question = ManifestQuestion { backup: server, replica, first };
                let answer = ManifestAnswer { bodies, next };
                self.recoveries.manifest_read(log, question, answer, view);
            }
            LogUpdate::Damaged { log, segment, epoch } => {
                self.recoveries.damaged(server, log, (segment, epoch));
            }
            LogUpdate::LogFreed { log } => self.recoveries.log_freed(server, log, configuration),
            LogUpdate::IsNeeded { log } => self.is_needed(server, log, out),
        }
        Ok(())
    }

    /// Dispatches a message of a recovery master.
    fn receive_of_recovery(
        &mut self,
        at: Moment,
        server: ServerId,
        update: RecoveryUpdate,
        out: &mut Effects,
    ) -> Result<(), Stopped> {
        let view = ClusterView::new(at, self.store.configuration(), &self.membership);
        let edit = match update {
            RecoveryUpdate::Replayed { dead, range, epoch } => {
                self.recoveries.replayed(server, PartitionKey { dead, range, epoch }, view)
            }
            RecoveryUpdate::Recovered { dead, range, epoch } => {
                return self.recovered(at, server, PartitionKey { dead, range, epoch }, out);
            }
            RecoveryUpdate::NotRecovered { dead, range, epoch, reason } => {
                let key = PartitionKey { dead, range, epoch };
                self.recoveries.not_recovered(server, key, reason, view)
            }
        };
        match edit {
            Some(edit) => self.commit(at, edit),
            None => Ok(()),
        }
    }

    /// Answers a message that its sender is not entitled to send. A joined server's refused ask
    /// is answered with the reason; every other connection is closed.
    fn refuse(
        &mut self,
        at: Moment,
        connection: LinkId,
        message: &ToCoordinator,
        reason: &str,
        out: &mut Effects,
    ) {
        // The server has joined but is not admitted yet. It repeats the message once it is.
        if self.confirmation.is_waiting(connection) {
            return;
        }
        match (message, self.membership.server_on(connection)) {
            (ToCoordinator::Ask { request, .. }, server @ Some(_)) => {
                let requester = Requester { connection, server, request: *request };
                requester.answer(Answer::Refused(reason.to_owned()), out);
            }
            _ => {
                // A server that had joined counts as absent from now on.
                self.closed(at, connection);
                self.reject(connection, reason.to_owned().into(), out);
            }
        }
    }

    /// Records that a witness received an answer from a server that is silent here.
    fn witnessed(&mut self, at: Moment, server: ServerId) {
        let Some(record) = self.store.configuration().servers().get(&server) else { return };
        let is_new = self.failure_detector.witnessed(at.now, record, &self.membership);
        // A reachable server without a connection is shown as connected.
        if is_new && !self.membership.is_connected(server) {
            self.maps.mark_stale();
        }
    }

    /// Records that the first owner of a new range holds it. From now on the range is never
    /// assigned as an empty one.
    fn holding(
        &mut self,
        at: Moment,
        server: ServerId,
        range: HashRange,
        epoch: OwnershipEpoch,
    ) -> Result<(), Stopped> {
        let tablet = self.store.configuration().tablet(server, range, epoch);
        let Some(tablet) = tablet.filter(|it| it.is_born).cloned() else { return Ok(()) };
        let mut edit = self.store.configuration().edit();
        edit.put_tablet(TabletRecord { is_born: false, ..tablet });
        self.migrations.mark_queue_stale();
        self.commit(at, edit)
    }

    /// Records the newest segment of a master's manifest log, and confirms it to the master.
    fn manifest_log(
        &mut self,
        at: Moment,
        server: ServerId,
        number: SegmentId,
        out: &mut Effects,
    ) -> Result<(), Stopped> {
        let configuration = self.store.configuration();
        let Some(record) = configuration.servers().get(&server).cloned() else { return Ok(()) };
        let number = record.manifest_log.map_or(number, |recorded| recorded.max(number));
        if record.manifest_log != Some(number) {
            let mut edit = configuration.edit();
            assert!(record.manifest_log < Some(number), "the number of a manifest log falls");
            edit.put_server(Server { manifest_log: Some(number), ..record });
            self.commit(at, edit)?;
        }
        self.membership.send(server, LogRequest::ManifestRecorded { number }, out);
        Ok(())
    }

    /// Commits that a partition's owner no longer depends on the dead server's log.
    fn recovered(
        &mut self,
        at: Moment,
        server: ServerId,
        key: PartitionKey,
        out: &mut Effects,
    ) -> Result<(), Stopped> {
        let view = ClusterView::new(at, self.store.configuration(), &self.membership);
        if let Some((edit, lineage)) = self.recoveries.recovered(server, key, view) {
            let edit = match lineage {
                // The range again has everything from both logs.
                Some(migration) => {
                    let remaining = migration.dependency().map(|it| &it.remaining[..]);
                    let rest = without(remaining.unwrap_or_default(), &[key.range]);
                    self.migrations.depend(edit, migration, rest, view)
                }
                None => Some(edit),
            };
            if let Some(edit) = edit {
                self.migrations.mark_queue_stale();
                self.commit(at, edit)?;
            }
        }
        if self.store.configuration().owns(server, key.range, key.epoch) {
            let kept = RecoveryRequest::RecoveryConfirmed { range: key.range, epoch: key.epoch };
            self.membership.send(server, kept, out);
        }
        Ok(())
    }

    /// Answers a backup that asks about a log which it was not asked to free, possibly because it
    /// was away.
    fn is_needed(&self, server: ServerId, log: ServerId, out: &mut Effects) {
        let configuration = self.store.configuration();
        let was_given = log < configuration.counters().server;
        let lives = configuration.servers().get(&log).is_some_and(|record| !record.declared_dead);
        if was_given && !lives && !configuration.recoveries().contains_key(&log) {
            self.membership.send(server, LogRequest::FreeLog { log }, out);
        }
    }
}

/// Messages to a coordinator that may not change anything.
impl Coordinator {
    /// Processes a message while the store is unconfirmed: joins of known servers, asks and
    /// clocks. Servers repeat all other messages, so nothing else need be remembered.
    fn receive_unconfirmed(
        &mut self,
        at: Moment,
        connection: LinkId,
        message: ToCoordinator,
        out: &mut Effects,
    ) -> Result<(), Stopped> {
        let server = self.membership.server_on(connection);
        match (message, server) {
            (ToCoordinator::Join(join), _) => return self.join(at, connection, join, out),
            (ToCoordinator::Ask { request, ask }, server) => {
                let requester = Requester { connection, server, request };
                match (server, &ask) {
                    (Some(_), Ask::Migrate { .. } | Ask::Cancel { .. } | Ask::Flush { .. }) => {
                        self.confirmation.hold_ask(requester, ask);
                    }
                    _ => self.ask_undecided(at, requester, &ask, out),
                }
            }
            (ToCoordinator::Clock(reading), Some(server)) => {
                self.clocks.note(at.now, server, reading);
            }
            _ => {}
        }
        if let Some(server) = server {
            self.note_heard(at.now, server);
        }
        Ok(())
    }

    /// Processes the joins and asks that were held while the store was unconfirmed.
    pub(super) fn receive_held(
        &mut self,
        at: Moment,
        held: HeldMessages,
        out: &mut Effects,
    ) -> Result<(), Stopped> {
        assert!(self.confirmation.is_confirmed(), "held messages wait for the confirmation");
        let HeldMessages { joins, asks } = held;
        // The unconfirmed phase may have delayed other servers as well: restart their absence
        // timers.
        self.membership.expect_anew(at.now);
        let connected: Vec<ServerId> = self.membership.servers().collect();
        for server in connected {
            if let Some(edit) = self.migrations.adopt_orphans(server, self.view(at)) {
                self.commit(at, edit)?;
            }
        }
        self.maps.mark_stale();
        for (connection, join) in joins {
            if self.membership.link(connection).is_some() {
                self.join(at, connection, join, out)?;
            }
        }
        for (requester, ask) in asks {
            if self.membership.link(requester.connection).is_some() {
                self.ask(at, requester, ask, out)?;
            }
        }
        Ok(())
    }

    /// Processes an event while the store is older than the cluster.
    pub(super) fn handle_older(&mut self, at: Moment, event: CoordinatorEvent, out: &mut Effects) {
        assert!(self.membership.servers().next().is_none(), "a server stays on an older store");
        match event {
            CoordinatorEvent::Opened { connection, caller } => {
                self.membership.open(connection, caller);
            }
            CoordinatorEvent::Closed { connection } => self.membership.forget(connection),
            CoordinatorEvent::Tick => {}
            CoordinatorEvent::Committed(_) => unreachable!("handled by the caller"),
            CoordinatorEvent::Received { connection, message } => {
                let Some(OpenLink { caller, .. }) = self.membership.link(connection) else {
                    return;
                };
                match (caller, message) {
                    (Caller::Operator, ToCoordinator::Ask { request, ask }) => {
                        let requester = Requester { connection, server: None, request };
                        self.ask_undecided(at, requester, &ask, out);
                    }
                    _ => {
                        let rejection = self.confirmation.older_rejection();
                        self.reject(connection, rejection, out);
                    }
                }
            }
        }
    }
}
