//! The seam between commands and the node: all that commands may do with the engine and the store.
//!
//! The methods in [`super::data`] read and change records. Those in this file are for commands that
//! administer the server or the cluster, and for connections.

use super::staged::TransactionRecords;
use crate::commands::{Cause, NOT_INSIDE, NotExecuted, Refusal, refused};
use crate::operators::blocked::{AwaitedKey, BlockedTicket};
use crate::operators::counts::FrontEndCounters;
use crate::operators::host::HostJob;
use crate::operators::{Baseline, Operators, lock};
use node::{EarlyPull, Engine, Node, Safety};
use settings::ServerConfiguration;
use std::sync::Arc;
use std::time::Duration;
use store::Missing;
use types::{
    HashRange, Instant, KeyHash, ReactorCounts, ReactorId, Slot, TableId, UnixMillis, Version,
};
use wire::control::Ask;

/// Members and pages that a reactor adds to orders of sorted sets in one turn: about a millisecond.
const ORDER_STEPS: usize = 3_000;

/// The engine of a reactor, with the settings and counters that commands use beside it.
pub(crate) struct Backend {
    /// Visible in `core` only, so that no command can call it.
    pub(super) engine: Engine,
    /// Private copies of the records that the current transaction works on.
    pub(crate) staged: Option<Box<TransactionRecords>>,
    /// Buffers of an ended transaction, for the next one.
    pub(super) spare_copies: Option<Box<TransactionRecords>>,
    /// State that the reactors of the server share for operators.
    pub(crate) operators: Arc<Operators>,
    /// Settings in effect for this turn.
    pub(crate) configuration: Arc<ServerConfiguration>,
    /// Counters of this reactor.
    pub(crate) counts: Arc<FrontEndCounters>,
    /// Set if the current command counts as an access to its keys, and accesses are tracked.
    pub(super) notes_access: bool,
    /// Set if requests waited for keys when the turn began.
    pub(super) has_blocked: bool,
    /// Members and pages that may be added to orders of sorted sets in this turn.
    pub(super) order_steps: usize,
    /// Operators' version at which `configuration` and `counts` were read.
    version: u64,
}

impl Backend {
    /// Creates the backend of the engine's reactor.
    pub(crate) fn new(engine: Engine, operators: Arc<Operators>) -> Backend {
        let version = operators.version();
        let (configuration, counts) =
            (operators.configuration(), operators.counts_of(engine.reactor()));
        Backend {
            engine,
            staged: None,
            spare_copies: None,
            operators,
            configuration,
            counts,
            notes_access: false,
            has_blocked: false,
            order_steps: ORDER_STEPS,
            version,
        }
    }

    /// Returns the state that the reactors of the server share.
    #[inline]
    pub(crate) fn node(&self) -> &Node {
        self.engine.node()
    }

    /// Begins a turn: applies changes that other reactors have made since the last one.
    pub(crate) fn begin_turn(&mut self, now: Instant, wall: UnixMillis) {
        self.follow_operators();
        self.order_steps = ORDER_STEPS;
        self.engine.begin_turn(now, wall);
        // Read after the turn has begun: see `docs/design/blocking.md`.
        self.has_blocked = self.operators.blocked.is_any();
    }

    /// Returns whether a request may take elements of a key: none has waited for it longer.
    pub(crate) fn may_take(&self, key: AwaitedKey, ticket: Option<BlockedTicket>) -> bool {
        let blocked = &self.operators.blocked;
        self.staged.is_some() || !blocked.is_any() || blocked.is_first(key, ticket)
    }

    /// Notifies the first request that waits for a key, after a write of it.
    #[cold]
    pub(super) fn notify_blocked(&self, table: TableId, hash: KeyHash) {
        self.operators.blocked.notify(table, hash, |reactor| self.wake(reactor));
    }

    /// Makes another reactor run a turn soon.
    pub(super) fn wake(&self, reactor: ReactorId) {
        if reactor != self.engine.reactor() {
            self.engine.node().wake(reactor);
        }
    }

    /// Sets whether the data that follows is used by a command that counts as an access to its
    /// keys.
    #[inline]
    pub(crate) fn set_accesses(&mut self, are_accesses: bool) {
        self.notes_access = are_accesses && self.engine.worker.tracks_access();
    }

    /// Reloads settings and counters that operators have replaced.
    pub(crate) fn follow_operators(&mut self) {
        if self.operators.version() != self.version {
            self.version = self.operators.version();
            self.configuration = self.operators.configuration();
            self.counts = self.operators.counts_of(self.engine.reactor());
        }
    }

    /// Applies settings that this reactor has changed.
    pub(crate) fn follow_settings(&mut self) {
        self.follow_operators();
        self.engine.follow_settings();
    }

    /// Asks the coordinator. Its answer is passed to the next execution of the command.
    pub(crate) fn ask(&mut self, ask: Ask) -> NotExecuted {
        if self.staged.is_some() {
            return NOT_INSIDE.into();
        }
        match self.engine.ask(ask) {
            Some(request) => NotExecuted::Retry(Cause::Answer(request)),
            None => refused("ERR the coordinator cannot be reached, please try again later"),
        }
    }

    /// Starts a job of the process. Its answer is passed to the next execution of the command.
    pub(crate) fn begin(&mut self, job: HostJob) -> NotExecuted {
        if self.staged.is_some() {
            return NOT_INSIDE.into();
        }
        let Some(host) = self.operators.host() else {
            return refused("ERR not supported: there is no process to run this job");
        };
        let request = self.engine.begin_request();
        host.begin(request, job);
        NotExecuted::Retry(Cause::Answer(request))
    }

    /// Requests the event that ends a wait, if the node must be asked for it. Returns the cause to
    /// wait for, or an error if the event cannot happen.
    pub(super) fn prepare_wait(&mut self, cause: Cause, now: Instant) -> Result<Cause, Refusal> {
        match cause {
            Cause::Memory if !self.engine.may_win_memory() => Err(Refusal::OutOfMemory),
            Cause::Missing(missing)
                if self.engine.pull_early(now, &missing, EarlyPull::Awaited) =>
            {
                Ok(Cause::Missing(missing))
            }
            Cause::Missing(Missing { migration, hashes, .. }) => {
                Ok(Cause::Progress { migration, from: hashes[0] })
            }
            Cause::Progress { migration, from } => {
                self.engine.want_progress(migration, from);
                Ok(cause)
            }
            Cause::Held
            | Cause::Turn
            | Cause::Answer(_)
            | Cause::Replicas(_)
            | Cause::Paused
            | Cause::Memory
            | Cause::Blocked(_) => Ok(cause),
        }
    }

    /// Returns the version that the last update of several keys has given to the one at this
    /// position; `None` if it has not written the key, or has removed it.
    pub(crate) fn written_version(&self, position: usize) -> Option<Version> {
        self.engine.worker.updated_keys().version_of(position)
    }

    pub(crate) fn table_records(&self, table: TableId) -> u64 {
        self.engine.worker.table_records(table)
    }

    pub(crate) fn has_records(&self, table: TableId) -> bool {
        self.engine.worker.has_records(table)
    }

    /// Returns the numbers of records of a range, by table and slot.
    pub(crate) fn record_counts(&self, range: HashRange) -> Vec<(TableId, Slot, u32)> {
        self.engine.worker.counts(range)
    }

    /// Returns how many servers have this reactor's earlier writes.
    pub(crate) fn safety(&self) -> Safety {
        self.engine.safety()
    }

    /// Returns whether this server syncs its log to its disk.
    pub(crate) fn can_sync(&self) -> bool {
        self.engine.can_sync()
    }

    /// Returns the time since the server was started.
    pub(crate) fn uptime(&self, now: Instant) -> Duration {
        self.engine.uptime(now)
    }

    /// Returns the time within the turn that began at `now`.
    pub(crate) fn time_within_turn(&self, now: Instant) -> Instant {
        self.engine.time_within_turn(now)
    }

    /// Runs one bounded piece of background work. Returns `false` if there was none.
    pub(crate) fn quantum(&mut self, now: Instant) -> bool {
        let before = self.engine.time_within_turn(now);
        let done = self.engine.quantum(now);
        if let Some(kind) = done {
            self.counts.background(kind, self.engine.time_within_turn(now).since(before));
        }
        done.is_some()
    }

    /// Resets all statistics, including counters outside the reactors' own ones.
    pub(crate) fn reset_statistics(&mut self) {
        let node = self.node();
        let reactors = self.operators.host().map(|host| host.reactors()).unwrap_or_default();
        let sum = |count: fn(&ReactorCounts) -> u64| reactors.iter().map(count).sum();
        *lock(&self.operators.baseline) = Baseline {
            expired: node.store().expired(),
            evicted: node.store().evicted(),
            bytes_in: sum(|counts| counts.bytes_in),
            bytes_out: sum(|counts| counts.bytes_out),
        };
        self.operators.reset_counts();
        self.follow_operators();
    }
}
