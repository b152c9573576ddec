//! Demands of the machines on the turns of all reactors.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;
use types::Instant;

/// Demands of one machine on the turns of all reactors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Demands {
    /// Work outside of the machine that it waits for.
    pub(crate) wait: Option<Wait>,
    /// Share of a reactor's running time for background work, in percent: the minimum without a
    /// latency target, the maximum with one.
    pub(crate) background_share: Option<u8>,
    /// Delay that 99 % of the clients' requests are not to exceed.
    pub(crate) latency_target: Option<Duration>,
    /// Time until which all ranges may be served.
    pub(crate) served_until: Option<Instant>,
    /// Replication of the records that it replays.
    pub(crate) replication: Option<ReplayReplication>,
}

/// Work that a machine waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Wait {
    /// Turns of the reactors. No reactor sleeps meanwhile.
    Reactors,
    /// Answers of backups, which wake all reactors.
    Backups,
}

/// The time at which replayed records are replicated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ReplayReplication {
    /// Once all records are replayed.
    Deferred,
    /// At once.
    Prompt,
}

/// The demands of all machines of a fleet together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FleetDemands {
    pub(crate) deadline: Option<Instant>,
    /// Number of machines that wait.
    pub(crate) waiting: usize,
    /// Those of them that wait for reactors.
    pub(crate) restless: usize,
    pub(crate) background_share: Option<u8>,
    pub(crate) latency_target: Option<Duration>,
    pub(crate) served_until: Option<Instant>,
    pub(crate) replication: Option<ReplayReplication>,
}

impl FleetDemands {
    /// Returns the demands of two fleets together.
    pub(crate) fn and(self, other: FleetDemands) -> FleetDemands {
        let earliest = |one: Option<Instant>, other| one.into_iter().chain(other).min();
        let targets = self.latency_target.into_iter().chain(other.latency_target);
        FleetDemands {
            deadline: earliest(self.deadline, other.deadline),
            waiting: self.waiting + other.waiting,
            restless: self.restless + other.restless,
            background_share: self.background_share.max(other.background_share),
            latency_target: targets.min(),
            served_until: earliest(self.served_until, other.served_until),
            replication: self.replication.max(other.replication),
        }
    }
}

/// The demands of all machines, which turns read without the lock of the machines.
pub(crate) struct SharedDemands {
    /// Number of machines that wait for reactors or backups. Read in every turn.
    pub(crate) waiting: AtomicUsize,
    /// Those of them that wait for reactors (a grace period, a splice). No reactor sleeps
    /// meanwhile. The other machines wait for backups; their answers wake all reactors.
    pub(crate) restless: AtomicUsize,
    /// Earliest deadline of any machine, in nanoseconds; `u64::MAX` if there is none.
    pub(crate) deadline: AtomicU64,
    /// Time until which all ranges may be served, in nanoseconds. It is limited while the
    /// acceptance of some flip is unacknowledged; `u64::MAX` if there is no such flip.
    pub(crate) unacknowledged_until: AtomicU64,
    /// Set while recovery replays records and no client depends on their replication. Replication
    /// of the replayed segments is then deferred.
    pub(crate) keeps_recovered_back: AtomicBool,
    /// Number of reactors with operations that wait for records.
    pub(crate) reactors_missing: AtomicUsize,
    /// Share of a reactor's running time for background work, in percent.
    pub(crate) background_share: AtomicU8,
    /// Lowest latency target of the moves, in nanoseconds; 0 if there is none.
    pub(crate) latency_target: AtomicU64,
}

impl Default for SharedDemands {
    fn default() -> SharedDemands {
        SharedDemands {
            waiting: AtomicUsize::new(0),
            restless: AtomicUsize::new(0),
            deadline: AtomicU64::new(u64::MAX),
            unacknowledged_until: AtomicU64::new(u64::MAX),
            keeps_recovered_back: AtomicBool::new(false),
            reactors_missing: AtomicUsize::new(0),
            background_share: AtomicU8::new(BACKGROUND_SHARE),
            latency_target: AtomicU64::new(0),
        }
    }
}

impl SharedDemands {
    /// Publishes the demands of all machines. Returns whether the replication of recovered
    /// segments may begin.
    pub(crate) fn publish(&self, demands: FleetDemands) -> bool {
        let nanoseconds = |at: Option<Instant>| at.map_or(u64::MAX, |at| at.0);
        let keeps_back = demands.replication == Some(ReplayReplication::Deferred);
        assert!(demands.restless <= demands.waiting, "a machine that waits for reactors waits");
        let kept_back = self.keeps_recovered_back.swap(keeps_back, Ordering::Relaxed);
        self.unacknowledged_until.store(nanoseconds(demands.served_until), Ordering::Release);
        self.waiting.store(demands.waiting, Ordering::Release);
        self.restless.store(demands.restless, Ordering::Release);
        self.deadline.store(nanoseconds(demands.deadline), Ordering::Release);
        let share = demands.background_share.unwrap_or(BACKGROUND_SHARE);
        self.background_share.store(share, Ordering::Relaxed);
        let target = demands.latency_target.map_or(0, |target| target.as_nanos() as u64);
        self.latency_target.store(target, Ordering::Relaxed);
        kept_back && !keeps_back
    }
}

/// Minimum background share in percent while no migration asks for another (design: 10 %).
const BACKGROUND_SHARE: u8 = 10;

/// Minimum background share in percent during a recovery: clients of its ranges wait for it.
pub(crate) const RECOVERY_SHARE: u8 = 50;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_latency_target_counts() {
        let with = |target: Option<u64>| FleetDemands {
            latency_target: target.map(Duration::from_micros),
            ..FleetDemands::default()
        };
        let together = with(Some(2_000)).and(with(None)).and(with(Some(1_000)));
        assert_eq!(together.latency_target, Some(Duration::from_micros(1_000)));
        let shared = SharedDemands::default();
        shared.publish(together);
        assert_eq!(shared.latency_target.load(Ordering::Relaxed), 1_000_000);
        shared.publish(with(None).and(with(None)));
        assert_eq!(shared.latency_target.load(Ordering::Relaxed), 0);
    }

    #[test]
    #[should_panic(expected = "a machine that waits for reactors waits")]
    fn the_machines_that_wait_for_reactors_are_counted_once() {
        let demands = FleetDemands { restless: 1, ..FleetDemands::default() };
        SharedDemands::default().publish(demands);
    }
}
