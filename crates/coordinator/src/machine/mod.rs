//! The coordinator as a machine: who owns what, and every migration's way from request to end.
//!
//! It holds no socket and reads no clock. [`Coordinator::handle`] takes one event, commits what
//! follows from it to the metadata store, and pushes what servers are to be told. A message that
//! depends on a change is pushed after the change has been committed, so that a coordinator that
//! dies in between has promised nothing.
//!
//! What it waits for is never a state of its own: it follows from a migration's stage. Each live
//! migration has at most one open *demand*, a message to one server that is repeated until the
//! answer changes the stage (`demand` in `transitions.rs`). So a lost message, a server that
//! reconnects, and a coordinator that starts again are one case. Messages that do not fit the stage
//! are repetitions or come late, and change nothing.
//!
//! After each event `settle` restores what must hold: nothing waits for a server that is gone for
//! good, nothing is queued whose way is free, everybody connected has the current map, and every
//! demand that is due has been sent.
//!
//! Invariants:
//! - a range changes owner only when its target has accepted the flip;
//! - an intent that could be flipped ends without a change of owner only when its target says that
//!   it never will, or when the target is gone for longer than its promise lasts and the source has
//!   had no answer. Such a target, should it come back, is let in only if it had not accepted;
//! - what a server owns changes hands without its word only when it was declared dead, and only
//!   to who says that it has recovered it;
//! - of migrations that share a hash only one is under way; the others start in order of their
//!   numbers;
//! - tablets are never merged, and a tablet that is cut keeps its epoch and tenures.
//!
//! See `docs/design/coordinator.md`.

mod asks;
mod clocks;
mod deaths;
mod entitled;
mod hearing;
mod membership;
mod recovery;
mod settle;
mod standing;
mod transitions;
mod view;
mod witnesses;

use crate::ledger::{Edit, Ledger, Stopped};
use crate::outbox::{Caller, ConnectionId, Effect, Event, Moment, Outbox};
use crate::records::{Drawn, Identity, Migration, Server, Stage};
use crate::store::MetaStore;
use clocks::Clocks;
use hearing::Hearing;
use protocols::migration::timing::UNACKNOWLEDGED_MAX;
use recovery::{DirectoryQuestion, Evidence, FencedReport, Wanted};
use standing::Standing;
use std::collections::BTreeMap;
use std::time::Duration;
use types::{Instant, MigrationId, ServerId, TableId, UnixMillis};
use wire::control::{Answer, FromCoordinator, Progress, ToCoordinator};

/// What may be tuned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// How long a server may be disconnected before migrations stop waiting for it.
    ///
    /// Longer than a target that nobody answers serves what it has accepted,
    /// [`UNACKNOWLEDGED_MAX`], which is longer than it keeps its promise to accept. So a target
    /// that was away for so long serves nothing of the range, unless its source has been told.
    pub absence_max: Duration,
    /// How long a server whose log others keep may be disconnected before it is declared dead.
    /// Not longer than `absence_max`.
    pub return_max: Duration,
    /// How long such a server may say nothing on a connection that stands. A fifth of it is the
    /// pause between two pings.
    pub silence_max: Duration,
    /// How long a reactor of such a server may stand still while the rest of the process answers.
    pub stall_max: Duration,
    /// Refuse servers whose clocks are off, and moves to or from members whose clocks are. Only a
    /// simulator goes without.
    pub limits_skew: bool,
    /// An operator answers for the store: no server need confirm it.
    pub trusts_file: bool,
}

impl Default for Settings {
    fn default() -> Settings {
        // A server reconnects within a second; clients' held requests wait for five.
        // A process that has died closes its connections at once, and one that lives connects again
        // within some round trips, if it is not stopped.
        Settings {
            absence_max: Duration::from_secs(5),
            return_max: Duration::from_millis(150),
            // Five pings. A process that wants to run waits for some 50 ms where four want each
            // processor.
            silence_max: Duration::from_millis(500),
            // Some commands take seconds, and so does a write to a disk that is busy.
            stall_max: Duration::from_secs(5),
            limits_skew: true,
            trusts_file: false,
        }
    }
}

/// The configuration of a cluster and everything that changes it.
#[derive(Debug)]
pub struct Coordinator<S> {
    settings: Settings,
    ledger: Ledger<S>,
    standing: Standing,
    /// `None` until the connection has joined.
    connections: BTreeMap<ConnectionId, Option<ServerId>>,
    /// The process at the other end of each.
    callers: BTreeMap<ConnectionId, Caller>,
    /// Of every server of the ledger.
    presence: BTreeMap<ServerId, Presence>,
    hearing: Hearing,
    clocks: Clocks,
    /// When another server last had an answer of one that is not heard here.
    witnessed: BTreeMap<ServerId, Instant>,
    /// When each migration's demand is to be sent next. Of those that have one.
    due: BTreeMap<MigrationId, Instant>,
    /// What people were last told about live migrations.
    progress: BTreeMap<MigrationId, (Progress, UnixMillis)>,
    /// Requests for tenures that wait for a flip to be decided, in order of arrival.
    flushes: Vec<Flush>,
    /// What was heard for each recovery. Of all that the ledger has.
    evidence: BTreeMap<ServerId, Evidence>,
    /// When what recoveries demand is to be sent again. Of all that was sent and is still wanted.
    demanded: BTreeMap<Wanted, Instant>,
    /// Servers that handed a part back, until they are asked again.
    refusals: BTreeMap<ServerId, Instant>,
    /// How long they were left in peace when they did so last.
    pauses: BTreeMap<ServerId, Duration>,
    /// Lists of segments sent in this term.
    lists: u64,
    /// No server is connected: then nobody is missed.
    is_alone: bool,
    /// A server has come whose disk has data of this cluster.
    has_seen_data: bool,
    /// Maps published in this term.
    maps: u64,
    map_is_stale: bool,
    /// Whether a queued migration may have become free.
    queue_is_stale: bool,
    /// When everything that was due by then was last done.
    settled: Instant,
}

/// Whether a server can be talked to.
#[derive(Clone, Copy, Debug)]
enum Presence {
    Connected(ConnectionId),
    Away {
        since: Instant,
    },
    /// This coordinator has not seen it yet, or may have been cut off itself.
    Expected {
        since: Instant,
    },
}

/// A server's request for tenures.
#[derive(Debug)]
struct Flush {
    connection: ConnectionId,
    server: ServerId,
    request: u64,
    table: Option<TableId>,
}

impl<S: MetaStore> Coordinator<S> {
    /// Goes on where the store's last coordinator stopped, or makes a cluster of this identity if
    /// there never was one. No server is connected yet; `now` is when they begin to be missed.
    pub fn open(
        store: S,
        drawn: Drawn,
        settings: Settings,
        now: Instant,
    ) -> Result<Coordinator<S>, Stopped> {
        let served = UNACKNOWLEDGED_MAX + UNACKNOWLEDGED_MAX / 20;
        assert!(settings.absence_max > served, "targets would be given up while they serve");
        let ledger = Ledger::open(store, drawn.fresh, drawn.term)?;
        let has_confirmers = ledger.servers().values().any(Server::can_confirm);
        let is_confirmed = settings.trusts_file || !ledger.has_past() || !has_confirmers;
        assert!(settings.return_max <= settings.absence_max, "the dead would be waited for");
        let expected = Presence::Expected { since: now };
        let presence = ledger.servers().keys().map(|&server| (server, expected)).collect();
        let evidence =
            ledger.recoveries().keys().map(|&dead| (dead, Evidence::default())).collect();
        let due = ledger.migrations().keys().map(|&migration| (migration, now)).collect();
        Ok(Coordinator {
            settings,
            ledger,
            standing: Standing::new(is_confirmed),
            connections: BTreeMap::new(),
            callers: BTreeMap::new(),
            presence,
            hearing: Hearing::new(settings.silence_max, settings.absence_max),
            clocks: Clocks::default(),
            witnessed: BTreeMap::new(),
            due,
            progress: BTreeMap::new(),
            flushes: Vec::new(),
            evidence,
            demanded: BTreeMap::new(),
            refusals: BTreeMap::new(),
            pauses: BTreeMap::new(),
            lists: 0,
            is_alone: true,
            has_seen_data: false,
            maps: 0,
            map_is_stale: true,
            queue_is_stale: true,
            settled: now,
        })
    }

    /// The cluster.
    pub fn identity(&self) -> Identity {
        self.ledger.identity()
    }

    /// The only way to change a coordinator. After an error it is of no more use: what it pushed
    /// before stands, and the store can be opened again.
    pub fn handle(&mut self, at: Moment, event: Event, out: &mut Outbox) -> Result<(), Stopped> {
        let mut effects = Outbox::new();
        let handled = match self.standing.is_older() {
            true => {
                self.handle_older(at.now, event, &mut effects);
                Ok(())
            }
            false => self.step(at, event, &mut effects),
        };
        self.mark_messages(effects, out);
        handled
    }

    fn step(&mut self, at: Moment, event: Event, out: &mut Outbox) -> Result<(), Stopped> {
        self.note_pause(at.now);
        let is_pong = matches!(
            event,
            Event::Received { message: ToCoordinator::Pong { .. } | ToCoordinator::Clock(_), .. }
        );
        match event {
            Event::Opened { connection, caller } => {
                let known = self.connections.insert(connection, None);
                assert!(known.is_none(), "{connection} opened twice");
                self.callers.insert(connection, caller);
            }
            Event::Received { connection, message } => {
                self.receive(at, connection, message, out)?;
            }
            Event::Closed { connection } => self.closed(at, connection),
            Event::Tick => {}
        }
        // Nothing is due because somebody is there: thousands of servers may say so.
        if is_pong && !self.map_is_stale && !self.hearing.is_ping_due(at.now) {
            return Ok(());
        }
        self.settle(at, out)
    }

    fn receive(
        &mut self,
        at: Moment,
        connection: ConnectionId,
        message: ToCoordinator,
        out: &mut Outbox,
    ) -> Result<(), Stopped> {
        let Some(joined) = self.sender(at, connection, &message, out) else { return Ok(()) };
        if !self.standing.is_confirmed() {
            return self.receive_unconfirmed(at, (connection, joined), message, out);
        }
        if let ToCoordinator::Join(join) = message {
            return self.join(at, connection, join, out);
        }
        if let ToCoordinator::Ask { request, ask } = message {
            joined.into_iter().for_each(|server| self.note_heard(at.now, server));
            return self.ask(at, asks::Asker { connection, server: joined, request }, ask, out);
        }
        let server = match (joined, &message) {
            (Some(server), _) => server,
            (None, ToCoordinator::Clock(reading)) => {
                return self.newcomer_clock(at, connection, *reading, out);
            }
            (None, _) => unreachable!("who has not joined may only join, ask and show its clock"),
        };
        self.note_heard(at.now, server);
        self.receive_of_server(at, server, message, out)
    }

    /// A message of a server that has joined, to a coordinator that is confirmed.
    fn receive_of_server(
        &mut self,
        at: Moment,
        server: ServerId,
        message: ToCoordinator,
        out: &mut Outbox,
    ) -> Result<(), Stopped> {
        match message {
            ToCoordinator::Join(_) | ToCoordinator::Ask { .. } => unreachable!("handled above"),
            ToCoordinator::Pong { is_stalled } => self.pong(at, server, is_stalled, out),
            ToCoordinator::Clock(reading) => {
                self.note_clock(at.now, server, reading);
                Ok(())
            }
            ToCoordinator::Suspect { server: suspect } => {
                self.verify(at.now, suspect, out);
                Ok(())
            }
            ToCoordinator::Witnessed { server } => self.witnessed(at.now, server),
            ToCoordinator::Measured { migration, records, bytes } => {
                self.measured(at, (server, migration), records, bytes)
            }
            ToCoordinator::Prepared { migration, refused } => {
                self.prepared(at, (server, migration), refused)
            }
            ToCoordinator::FlipUnanswered { migration } => {
                self.flip_unanswered(at, (server, migration), out)
            }
            ToCoordinator::Flipped { migration } => self.flipped(at, (server, migration), out),
            ToCoordinator::Decided { migration, accepted } => {
                self.decided(at, (server, migration), accepted, out)
            }
            ToCoordinator::Shrink { migration, remaining } => {
                self.shrink(at, (server, migration), &remaining, out)
            }
            ToCoordinator::Progress { migration, progress } => {
                self.note_progress(at, (server, migration), progress);
                Ok(())
            }
            ToCoordinator::Released { migration } => self.released(at, (server, migration), out),
            ToCoordinator::Holding { range, epoch } => self.holding(at, server, (range, epoch)),
            // Whoever had to be told knows.
            ToCoordinator::KnownMap(_) | ToCoordinator::Holds(_) => Ok(()),
            ToCoordinator::Chain { .. }
            | ToCoordinator::Fenced { .. }
            | ToCoordinator::DirectoryRead { .. }
            | ToCoordinator::Replayed { .. }
            | ToCoordinator::Recovered { .. }
            | ToCoordinator::NotRecovered { .. }
            | ToCoordinator::Damaged { .. }
            | ToCoordinator::LogFreed { .. }
            | ToCoordinator::IsNeeded { .. }
            | ToCoordinator::Will(_) => self.receive_of_log(at, server, message, out),
        }
    }

    /// The number under which a connection was let in, if it has one; `None`: it may not say this.
    fn sender(
        &mut self,
        at: Moment,
        connection: ConnectionId,
        message: &ToCoordinator,
        out: &mut Outbox,
    ) -> Option<Option<ServerId>> {
        // Else we have closed it; this was on its way.
        let (joined, caller) =
            (*self.connections.get(&connection)?, *self.callers.get(&connection)?);
        match entitled::judge(caller, joined, message) {
            Ok(()) => Some(joined),
            Err(reason) => {
                self.refuse(at, (connection, joined), message, reason, out);
                None
            }
        }
    }

    /// Answers a message that its sender may not send. A server that asked on behalf of others goes
    /// on; every other connection is closed.
    fn refuse(
        &mut self,
        at: Moment,
        (connection, joined): (ConnectionId, Option<ServerId>),
        message: &ToCoordinator,
        reason: &str,
        out: &mut Outbox,
    ) {
        // It has joined, and repeats the rest once it is let in.
        if self.standing.is_waiting(connection) {
            return;
        }
        match (message, joined) {
            (ToCoordinator::Ask { request, .. }, Some(_)) => {
                let asker = asks::Asker { connection, server: joined, request: *request };
                asker.answer(Answer::Refused(reason.to_owned()), out);
            }
            _ => {
                // Who had joined is missed from here on.
                self.closed(at, connection);
                self.reject(connection, reason.to_owned().into(), out);
            }
        }
    }

    /// A message about logs and their recovery.
    fn receive_of_log(
        &mut self,
        at: Moment,
        server: ServerId,
        message: ToCoordinator,
        out: &mut Outbox,
    ) -> Result<(), Stopped> {
        match message {
            ToCoordinator::Chain { number } => self.chain(at, server, number, out),
            ToCoordinator::Fenced { log, first, replicas, clock, more } => {
                let report = FencedReport { first, replicas: &replicas, clock, more };
                self.fenced(at, (server, log), report);
                Ok(())
            }
            ToCoordinator::DirectoryRead { log, replica, first, bodies, next } => {
                let question = DirectoryQuestion { backup: server, replica, first };
                self.directory_read(log, question, bodies, next);
                Ok(())
            }
            ToCoordinator::Replayed { dead, range, epoch } => {
                self.replayed(at, server, (dead, range, epoch))
            }
            ToCoordinator::Recovered { dead, range, epoch } => {
                self.recovered(at, server, (dead, range, epoch), out)
            }
            ToCoordinator::NotRecovered { dead, range, epoch, reason } => {
                self.not_recovered(at, server, (dead, range, epoch), reason)
            }
            ToCoordinator::Damaged { log, segment, epoch } => {
                self.damaged(server, log, (segment, epoch));
                Ok(())
            }
            ToCoordinator::LogFreed { log } => {
                self.log_freed(server, log);
                Ok(())
            }
            ToCoordinator::IsNeeded { log } => {
                self.is_needed(server, log, out);
                Ok(())
            }
            ToCoordinator::Will(will) => self.note_will(at, server, will),
            ToCoordinator::Join(_)
            | ToCoordinator::Measured { .. }
            | ToCoordinator::Prepared { .. }
            | ToCoordinator::FlipUnanswered { .. }
            | ToCoordinator::Flipped { .. }
            | ToCoordinator::Decided { .. }
            | ToCoordinator::Shrink { .. }
            | ToCoordinator::Progress { .. }
            | ToCoordinator::Released { .. }
            | ToCoordinator::Pong { .. }
            | ToCoordinator::Clock(_)
            | ToCoordinator::Suspect { .. }
            | ToCoordinator::Witnessed { .. }
            | ToCoordinator::KnownMap(_)
            | ToCoordinator::Holds(_)
            | ToCoordinator::Holding { .. }
            | ToCoordinator::Ask { .. } => unreachable!("not about a log"),
        }
    }

    /// Commits a change, and notes what has to follow from it.
    fn commit(&mut self, at: Moment, edit: Edit) -> Result<(), Stopped> {
        self.map_is_stale |= edit.touches_map(&self.ledger);
        let migrations = edit.touched_migrations();
        self.queue_is_stale |= !migrations.is_empty();
        self.ledger.commit(edit)?;
        let recoveries = self.ledger.recoveries();
        self.evidence.retain(|dead, _| recoveries.contains_key(dead));
        for &dead in recoveries.keys() {
            self.evidence.entry(dead).or_default();
        }
        for id in migrations {
            // Whatever was demanded before, the stage has changed.
            self.due.insert(id, at.now);
            if !self.ledger.migrations().get(&id).is_some_and(Migration::is_live) {
                self.progress.remove(&id);
            }
        }
        Ok(())
    }

    /// Commits a migration's new stage, with whatever else the edit holds.
    fn advance(
        &mut self,
        at: Moment,
        mut edit: Edit,
        migration: &Migration,
        stage: Stage,
    ) -> Result<(), Stopped> {
        let progress = self.progress_of(migration).0;
        let mut next = Migration { updated: at.wall, progress, ..migration.clone() };
        next.stage = stage;
        match next.is_inheritance && next.dependency().is_none() {
            // The source has nothing to release, and nobody wants to know.
            true => edit.remove_migration(next.id),
            false => edit.put_migration(next),
        }
        self.commit(at, edit)
    }

    fn progress_of(&self, migration: &Migration) -> (Progress, UnixMillis) {
        let written = (migration.progress, migration.updated);
        self.progress
            .get(&migration.id)
            .map_or(written, |heard| (heard.0, heard.1.max(migration.updated)))
    }

    /// The connection of a server, if it has one.
    fn connection_of(&self, server: ServerId) -> Option<ConnectionId> {
        match self.presence.get(&server) {
            Some(Presence::Connected(connection)) => Some(*connection),
            Some(Presence::Away { .. } | Presence::Expected { .. }) | None => None,
        }
    }

    fn send(&self, server: ServerId, message: FromCoordinator, out: &mut Outbox) {
        // Everything that matters is repeated when the server comes back.
        if let Some(connection) = self.connection_of(server) {
            out.push(Effect::Send { connection, message });
        }
    }
}
