//! The part of a reactor that commands work on.

use crate::data::{Data, TransactionRecords};
use crate::operators::counts::FrontEndCounters;
use crate::operators::host::HostJob;
use crate::operators::{Baseline, Operators, lock};
use node::{Engine, Node};
use settings::ServerConfiguration;
use std::sync::Arc;
use types::{Instant, ReactorCounts, UnixMillis};

/// The engine of a reactor, with the settings and counters that commands use beside it.
pub(crate) struct Backend {
    pub(crate) engine: Engine,
    /// Private copies of the records that the current transaction works on.
    pub(crate) staged: Option<TransactionRecords>,
    /// State that the reactors of the server share for operators.
    pub(crate) operators: Arc<Operators>,
    /// Settings in effect for this turn.
    pub(crate) configuration: Arc<ServerConfiguration>,
    /// Counters of this reactor.
    pub(crate) counts: Arc<FrontEndCounters>,
    /// Operators' version at which `configuration` and `counts` were read.
    version: u64,
}

impl Backend {
    /// Creates the backend of the engine's reactor.
    pub(crate) fn new(engine: Engine, operators: Arc<Operators>) -> Backend {
        let version = operators.version();
        let (configuration, counts) =
            (operators.configuration(), operators.counts_of(engine.reactor()));
        Backend { engine, staged: None, operators, configuration, counts, version }
    }

    /// Returns the state that the reactors of the server share.
    #[inline]
    pub(crate) fn node(&self) -> &Node {
        self.engine.node()
    }

    /// Begins a turn: applies changes that other reactors have made since the last one.
    pub(crate) fn begin_turn(&mut self, now: Instant, wall: UnixMillis) {
        self.follow_operators();
        self.engine.begin_turn(now, wall);
    }

    /// Reloads settings and counters that operators have replaced.
    pub(crate) fn follow_operators(&mut self) {
        if self.operators.version() != self.version {
            self.version = self.operators.version();
            self.configuration = self.operators.configuration();
            self.counts = self.operators.counts_of(self.engine.reactor());
        }
    }

    /// Returns the data that commands read and write: the store, or the copies of a transaction.
    #[inline]
    pub(crate) fn data(&mut self) -> Data<'_> {
        match &mut self.staged {
            None => Data::Store(&mut self.engine.worker, &self.counts),
            Some(staged) => Data::Staged(staged),
        }
    }

    /// Starts a job of the process and returns its number. [`node::Wake::Answer`] follows under
    /// that number. Returns `None` if no process hosts this server.
    pub(crate) fn begin(&mut self, job: HostJob) -> Option<u64> {
        let host = self.operators.host()?;
        let request = self.engine.begin_request();
        host.begin(request, job);
        Some(request)
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
            bytes_in: sum(|counts| counts.bytes_in),
            bytes_out: sum(|counts| counts.bytes_out),
        };
        self.operators.reset_counts();
        self.follow_operators();
    }
}
