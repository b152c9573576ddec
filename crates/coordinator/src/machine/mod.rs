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
//! - of migrations that share a hash only one is under way; the others start in order of their
//!   numbers;
//! - tablets are never merged, and a tablet that is cut keeps its epoch and tenures.
//!
//! See `docs/design/coordinator.md`.

mod asks;
mod membership;
mod settle;
mod transitions;
mod view;

use crate::ledger::{Edit, Ledger, Stopped};
use crate::outbox::{ConnectionId, Effect, Event, Moment, Outbox};
use crate::records::{Identity, Migration, Stage};
use crate::store::MetaStore;
use protocols::migration::timing::PREPARED_MAX;
use std::collections::BTreeMap;
use std::time::Duration;
use types::{Instant, MigrationId, ServerId, TableId, UnixMillis};
use wire::control::{FromCoordinator, Progress, ToCoordinator};

/// What may be tuned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// How long a server may be disconnected before migrations stop waiting for it.
    ///
    /// Longer than a target keeps its promise to accept a flip, [`PREPARED_MAX`]: so a target that
    /// was away for so long accepts no more, and what it did accept its source can have been told.
    pub absence_max: Duration,
}

impl Default for Settings {
    fn default() -> Settings {
        // A server reconnects within a second; clients' held requests wait for five.
        Settings { absence_max: Duration::from_secs(5) }
    }
}

/// The configuration of a cluster and everything that changes it.
#[derive(Debug)]
pub struct Coordinator<S> {
    settings: Settings,
    ledger: Ledger<S>,
    /// `None` until the connection has joined.
    connections: BTreeMap<ConnectionId, Option<ServerId>>,
    /// Of every server of the ledger.
    presence: BTreeMap<ServerId, Presence>,
    /// When each migration's demand is to be sent next. Of those that have one.
    due: BTreeMap<MigrationId, Instant>,
    /// What people were last told about live migrations.
    progress: BTreeMap<MigrationId, (Progress, UnixMillis)>,
    /// Requests for tenures that wait for a flip to be decided, in order of arrival.
    flushes: Vec<Flush>,
    /// Maps published in this term.
    maps: u64,
    map_is_stale: bool,
    /// Whether a queued migration may have become free.
    queue_is_stale: bool,
}

/// Whether a server can be talked to.
#[derive(Clone, Copy, Debug)]
enum Presence {
    Connected(ConnectionId),
    Away { since: Instant },
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
        fresh: Identity,
        settings: Settings,
        now: Instant,
    ) -> Result<Coordinator<S>, Stopped> {
        assert!(settings.absence_max > PREPARED_MAX, "targets would be given up too early");
        let ledger = Ledger::open(store, fresh)?;
        let away = Presence::Away { since: now };
        let presence = ledger.servers().keys().map(|&server| (server, away)).collect();
        let due = ledger.migrations().keys().map(|&migration| (migration, now)).collect();
        Ok(Coordinator {
            settings,
            ledger,
            connections: BTreeMap::new(),
            presence,
            due,
            progress: BTreeMap::new(),
            flushes: Vec::new(),
            maps: 0,
            map_is_stale: true,
            queue_is_stale: true,
        })
    }

    /// The cluster.
    pub fn identity(&self) -> Identity {
        self.ledger.identity()
    }

    /// The only way to change a coordinator. After an error it is of no more use: what it pushed
    /// before stands, and the store can be opened again.
    pub fn handle(&mut self, at: Moment, event: Event, out: &mut Outbox) -> Result<(), Stopped> {
        match event {
            Event::Opened { connection } => {
                let known = self.connections.insert(connection, None);
                assert!(known.is_none(), "{connection} opened twice");
            }
            Event::Received { connection, message } => {
                self.receive(at, connection, message, out)?;
            }
            Event::Closed { connection } => self.closed(at, connection),
            Event::Tick => {}
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
        let joined = match self.connections.get(&connection) {
            Some(joined) => *joined,
            // We have closed it; this was on its way.
            None => return Ok(()),
        };
        if let ToCoordinator::Join(join) = message {
            return self.join(at, connection, join, out);
        }
        let Some(server) = joined else {
            let reason = "the first message must be a join".to_owned();
            self.reject(connection, reason.into(), out);
            return Ok(());
        };
        match message {
            ToCoordinator::Join(_) => unreachable!("handled above"),
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
            ToCoordinator::Ask { request, ask } => {
                let asker = asks::Asker { connection, server, request };
                self.ask(at, asker, ask, out)
            }
        }
    }

    /// Commits a change, and notes what has to follow from it.
    fn commit(&mut self, at: Moment, edit: Edit) -> Result<(), Stopped> {
        self.map_is_stale |= edit.touches_map(&self.ledger);
        let migrations = edit.touched_migrations();
        self.queue_is_stale |= !migrations.is_empty();
        self.ledger.commit(edit)?;
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
        edit.put_migration(next);
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
            Some(Presence::Away { .. }) | None => None,
        }
    }

    fn send(&self, server: ServerId, message: FromCoordinator, out: &mut Outbox) {
        // Everything that matters is repeated when the server comes back.
        if let Some(connection) = self.connection_of(server) {
            out.push(Effect::Send { connection, message });
        }
    }
}
