//! The sources of the numbers that operators see.

use super::counts::{Counter, FrontEndCounters, Summary};
use super::host::ProcessUsage;
use super::{Baseline, Operators, lock};
use crate::commands::{Command, commands_and_subcommands};
use node::{Node, Replication};
use std::sync::Arc;
use std::time::Duration;
use store::StoreUsage;
use types::{Instant, ReactorCounts};

/// State of a server at one moment, from which its numbers are computed.
pub(crate) struct Sources<'e> {
    pub(crate) node: &'e Node,
    pub(crate) operators: &'e Operators,
    pub(crate) now: Instant,
    /// Counters of each reactor's front end.
    pub(crate) counts: Vec<Arc<FrontEndCounters>>,
    /// Each reactor's own counters.
    pub(crate) reactors: Vec<ReactorCounts>,
    pub(crate) process: ProcessUsage,
    pub(crate) memory: StoreUsage,
    /// Values at the last reset of counters that cannot be reset.
    pub(crate) baseline: Baseline,
}

impl<'e> Sources<'e> {
    /// Reads the state of a server.
    pub(crate) fn new(node: &'e Node, operators: &'e Operators, now: Instant) -> Sources<'e> {
        let host = operators.host();
        Sources {
            node,
            operators,
            now,
            counts: operators.counts(),
            reactors: host.map(|host| host.reactors()).unwrap_or_default(),
            process: host.map(|host| host.usage()).unwrap_or_default(),
            memory: node.store().usage(),
            baseline: *lock(&operators.baseline),
        }
    }

    /// Returns the sum of a counter over all reactors.
    pub(crate) fn sum(&self, counter: fn(&FrontEndCounters) -> &Counter) -> u64 {
        self.counts.iter().map(|counts| counter(counts).read()).sum()
    }

    /// Returns a number about replication; 0 without replication.
    pub(crate) fn replication(&self, number: fn(&Replication) -> u64) -> u64 {
        let durability = self.node.durability();
        if durability.is_with_others() { number(durability) } else { 0 }
    }

    /// Returns the number of migrations in progress away from this server, and to it.
    pub(crate) fn migrations(&self) -> (usize, usize) {
        let (map, me) = (self.node.map(), self.node.me());
        let out = map.moving.iter().filter(|(_, source, _)| *source == me).count();
        (out, map.moving.iter().filter(|(_, _, target)| *target == me).count())
    }

    /// Returns the share of background work in percent: its minimum, or what the latency of
    /// clients allows on the most limited reactor while a migration has a latency target.
    pub(crate) fn background_share(&self) -> u64 {
        let wanted = self.node.background_share().into();
        let steered = self.reactors.iter().map(|reactor| reactor.steered_share);
        match self.node.latency_target() {
            Some(_) => steered.filter(|share| *share > 0).min().unwrap_or(wanted),
            None => wanted,
        }
    }

    /// Returns the delay that 99 % of the last requests have not exceeded on the slowest reactor;
    /// zero while no migration has a latency target.
    pub(crate) fn seen_p99(&self) -> Duration {
        let seen = self.reactors.iter().map(|reactor| reactor.seen_p99_ns);
        let seen = seen.max().filter(|_| self.node.latency_target().is_some());
        Duration::from_nanos(seen.unwrap_or(0))
    }

    /// Returns the number of keys expired since the last reset of the statistics. It includes keys
    /// that a command gave an expiry time in the past.
    pub(crate) fn expired(&self) -> u64 {
        let before = self.baseline.expired;
        self.node.store().expired().saturating_sub(before) + self.sum(|counts| &counts.expired)
    }

    /// Returns the number of records evicted since the last reset of the statistics.
    pub(crate) fn evicted(&self) -> u64 {
        self.node.store().evicted().saturating_sub(self.baseline.evicted)
    }
}

/// Returns the commands that these reactors have called, with their sums, sorted by name.
pub(crate) fn called(counts: &[Arc<FrontEndCounters>]) -> Vec<(&'static Command, Summary)> {
    let mut called: Vec<_> = commands_and_subcommands()
        .filter_map(|(_, command)| Some((command, Summary::of(counts, command.number())?)))
        .collect();
    called.sort_unstable_by_key(|(command, _)| command.name);
    called
}
