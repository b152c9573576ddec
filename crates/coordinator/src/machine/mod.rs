//! The coordinator's state machine: range ownership, and the life of every migration and recovery.
//!
//! The machine holds no socket and reads no clock. [`Coordinator::handle`] takes one event, commits
//! the resulting changes to the metadata store, and pushes messages for servers. A message that
//! depends on a change is pushed after the commit, so a coordinator that crashes in between has
//! promised nothing.
//!
//! The machine keeps no separate "waiting for an answer" state; a migration's stage determines it.
//! Each live migration has at most one open *demand*: a message to one server, repeated until the
//! answer changes the stage (`demand` in `transitions.rs`). A lost message, a reconnecting server
//! and a restarted coordinator are therefore one case. Messages that do not fit the stage are
//! repeated or late, and change nothing.
//!
//! After each event `settle` reconciles the state. No migration waits for a permanently lost
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
use wire::control::{Answer, FromCoordinator, MigrationProgress, ToCoordinator};

/// The coordinator's tunable parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
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
    /// Refuses servers with skewed clocks, and migrations from or to members with skewed clocks.
    /// Disabled only in a simulator.
    pub limits_skew: bool,
    /// The operator vouches for the store's content; no server needs to confirm it.
    pub trusts_file: bool,
}

impl Default for Settings {
    fn default() -> Settings {
        // A server reconnects within a second; clients' held requests wait for five. A crashed
        // process closes its connections at once. A live process that is not stopped reconnects
        // within a few round trips.
        Settings {
            absence_max: Duration::from_secs(5),
            return_max: Duration::from_millis(150),
            // Five pings. A runnable process waits about 50 ms where four compete for each
            // processor.
            silence_max: Duration::from_millis(500),
            // Some commands and some writes to a busy disk take seconds.
            stall_max: Duration::from_secs(5),
            limits_skew: true,
            trusts_file: false,
        }
    }
}

/// The configuration of a cluster, and the transitions that change it.
#[derive(Debug)]
pub struct Coordinator<S> {
    settings: Settings,
    ledger: Ledger<S>,
    standing: Standing,
    /// Open connections with the server that joined on each. `None` until it has joined.
    connections: BTreeMap<ConnectionId, Option<ServerId>>,
    /// The process at the other end of each connection.
    callers: BTreeMap<ConnectionId, Caller>,
    /// Connection state of every server in the ledger.
    presence: BTreeMap<ServerId, Presence>,
    hearing: Hearing,
    clocks: Clocks,
    /// Last time another server reported an answer from a server that is silent here.
    witnessed: BTreeMap<ServerId, Instant>,
    /// Next send time of each migration's demand. Contains only migrations that have one.
    due: BTreeMap<MigrationId, Instant>,
    /// Newest reported progress of live migrations, shown to operators.
    progress: BTreeMap<MigrationId, (MigrationProgress, UnixMillis)>,
    /// Requests for incarnations that wait for a flip to be decided, in order of arrival.
    flushes: Vec<Flush>,
    /// Replica inventory of each recovery in the ledger.
    evidence: BTreeMap<ServerId, Evidence>,
    /// Next send time of each recovery demand that was sent and is still open.
    demanded: BTreeMap<Wanted, Instant>,
    /// Servers that handed a recovery partition back, with the end of their backoff.
    refusals: BTreeMap<ServerId, Instant>,
    /// Duration of each such server's last backoff.
    pauses: BTreeMap<ServerId, Duration>,
    /// Segment lists sent in this term.
    lists: u64,
    /// No server is connected. Then no server's absence counts.
    is_alone: bool,
    /// A server joined from a disk that has data of this cluster.
    has_seen_data: bool,
    /// Maps published in this term.
    maps: u64,
    map_is_stale: bool,
    /// A queued migration may have become startable.
    queue_is_stale: bool,
    /// Time up to which all due work was done by the last `settle`.
    settled: Instant,
}

/// Reachability of a server.
#[derive(Clone, Copy, Debug)]
enum Presence {
    Connected(ConnectionId),
    Away {
        since: Instant,
    },
    /// Not seen since this coordinator started, or since the coordinator was possibly cut off.
    Expected {
        since: Instant,
    },
}

/// A server's request for new incarnations, needed by a flush.
#[derive(Debug)]
struct Flush {
    connection: ConnectionId,
    server: ServerId,
    request: u64,
    table: Option<TableId>,
}

impl<S: MetaStore> Coordinator<S> {
    /// Resumes from the state in the store, or creates a cluster with the drawn identity in an
    /// empty store. No server is connected yet; absences are counted from `now`.
    pub fn open(
        store: S,
        drawn: Drawn,
        settings: Settings,
        now: Instant,
    ) -> Result<Coordinator<S>, Stopped> {
        let served = UNACKNOWLEDGED_MAX + UNACKNOWLEDGED_MAX / 20;
        assert!(settings.absence_max > served, "targets that serve would count as absent");
        let ledger = Ledger::open(store, drawn.fresh, drawn.term)?;
        let has_confirmers = ledger.servers().values().any(Server::can_confirm);
        let is_confirmed = settings.trusts_file || !ledger.has_past() || !has_confirmers;
        assert!(settings.return_max <= settings.absence_max, "dead servers do not return");
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

    /// Returns the identity of the cluster.
    pub fn identity(&self) -> Identity {
        self.ledger.identity()
    }

    /// Applies one event; the only way to change a coordinator.
    ///
    /// # Errors
    /// The store failed, or another coordinator has replaced this one. The machine must not be
    /// used again. Effects that it pushed before remain valid, and the store can be opened again.
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
        // A pong makes nothing else due, and thousands of servers send them: skip the full pass.
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
            (None, _) => unreachable!("before its join, a peer may only ask and send its clock"),
        };
        self.note_heard(at.now, server);
        self.receive_of_server(at, server, message, out)
    }

    /// Dispatches a message from a joined server to a confirmed coordinator.
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
            // These answer a rebuild's question; this coordinator has its store.
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
            | ToCoordinator::LoadProfile(_) => self.receive_of_log(at, server, message, out),
        }
    }

    /// Returns the number under which the connection joined, if any. The outer `None` means that
    /// the message must be ignored: the connection is closed, or not entitled to it.
    fn sender(
        &mut self,
        at: Moment,
        connection: ConnectionId,
        message: &ToCoordinator,
        out: &mut Outbox,
    ) -> Option<Option<ServerId>> {
        // If the connection is unknown, it was closed here while the message was in flight.
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

    /// Answers a message that its sender is not entitled to send. A joined server's refused ask
    /// is answered with the reason; every other connection is closed.
    fn refuse(
        &mut self,
        at: Moment,
        (connection, joined): (ConnectionId, Option<ServerId>),
        message: &ToCoordinator,
        reason: &str,
        out: &mut Outbox,
    ) {
        // The server has joined but is not admitted yet. It repeats the message once it is.
        if self.standing.is_waiting(connection) {
            return;
        }
        match (message, joined) {
            (ToCoordinator::Ask { request, .. }, Some(_)) => {
                let asker = asks::Asker { connection, server: joined, request: *request };
                asker.answer(Answer::Refused(reason.to_owned()), out);
            }
            _ => {
                // A server that had joined counts as absent from now on.
                self.closed(at, connection);
                self.reject(connection, reason.to_owned().into(), out);
            }
        }
    }

    /// Dispatches a message about logs and their recovery.
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
            ToCoordinator::LoadProfile(will) => self.note_will(at, server, will),
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

    /// Commits a change, and records the follow-up work that it causes.
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
            // The stage has changed, so the next demand is due at once.
            self.due.insert(id, at.now);
            if !self.ledger.migrations().get(&id).is_some_and(Migration::is_live) {
                self.progress.remove(&id);
            }
        }
        Ok(())
    }

    /// Commits a migration's new stage together with the other changes of the edit.
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
            // The dead source of a served-before-durable range has nothing to release, and the
            // migration is not part of the visible history.
            true => edit.remove_migration(next.id),
            false => edit.put_migration(next),
        }
        self.commit(at, edit)
    }

    fn progress_of(&self, migration: &Migration) -> (MigrationProgress, UnixMillis) {
        let written = (migration.progress, migration.updated);
        self.progress
            .get(&migration.id)
            .map_or(written, |heard| (heard.0, heard.1.max(migration.updated)))
    }

    /// Returns the server's connection, if it is connected.
    fn connection_of(&self, server: ServerId) -> Option<ConnectionId> {
        match self.presence.get(&server) {
            Some(Presence::Connected(connection)) => Some(*connection),
            Some(Presence::Away { .. } | Presence::Expected { .. }) | None => None,
        }
    }

    fn send(&self, server: ServerId, message: FromCoordinator, out: &mut Outbox) {
        // No connection: the message is dropped. Everything that matters is repeated on
        // reconnection.
        if let Some(connection) = self.connection_of(server) {
            out.push(Effect::Send { connection, message });
        }
    }
}
