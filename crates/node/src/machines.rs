//! Machines of migrations and recoveries of one server, with the state of their drivers.

use crate::driver::{Driven, DrivenMachines, FleetDemands, ReplayReplication};
use crate::recovering::RecoveryDriver;
use crate::source_side::SourceDriver;
use crate::target_side::TargetDriver;
use protocols::migration::Cuts;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use types::{Instant, MigrationId, OwnershipEpoch};

/// The target machine of a migration with its driver.
pub(crate) type TargetSide = Driven<TargetDriver>;

/// The recovery master of a recovery partition with its driver.
pub(crate) type RecoverySide = Driven<RecoveryDriver>;

/// The machines of a server, and the values about them that turns read without the lock.
pub(crate) struct SharedMachines {
    machines: Mutex<Machines>,
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
    /// Minimum share of a reactor's running time for background work, in percent.
    pub(crate) background_share: AtomicU8,
}

impl SharedMachines {
    pub(crate) fn new(cuts: Cuts) -> SharedMachines {
        SharedMachines {
            machines: Mutex::new(Machines::new(cuts)),
            waiting: AtomicUsize::new(0),
            restless: AtomicUsize::new(0),
            deadline: AtomicU64::new(u64::MAX),
            unacknowledged_until: AtomicU64::new(u64::MAX),
            keeps_recovered_back: AtomicBool::new(false),
            reactors_missing: AtomicUsize::new(0),
            background_share: AtomicU8::new(BACKGROUND_SHARE),
        }
    }

    /// Locks the machines for reading.
    pub(crate) fn read(&self) -> impl Deref<Target = Machines> {
        self.lock()
    }

    fn lock(&self) -> MutexGuard<'_, Machines> {
        self.machines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes machines, and publishes the values that every turn reads before it unlocks them.
    /// Calls `wake_all` if the replication of recovered segments may begin.
    pub(crate) fn change<T>(
        &self,
        change: impl FnOnce(&mut Machines) -> T,
        wake_all: impl FnOnce(),
    ) -> T {
        let mut machines = self.lock();
        let result = change(&mut machines);
        if self.publish(machines.demands()) {
            wake_all();
        }
        result
    }

    /// Publishes the demands of all machines. Returns whether the replication of recovered
    /// segments may begin.
    fn publish(&self, demands: FleetDemands) -> bool {
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
        kept_back && !keeps_back
    }
}

/// The machines of all migrations and recoveries of this server, behind one lock. A migration
/// receives a few thousand messages a second at most, and operations never take the lock.
pub(crate) struct Machines {
    pub(crate) cuts: Cuts,
    pub(crate) sources: DrivenMachines<MigrationId, SourceDriver>,
    pub(crate) targets: DrivenMachines<MigrationId, TargetDriver>,
    pub(crate) recoveries: DrivenMachines<OwnershipEpoch, RecoveryDriver>,
}

impl Machines {
    fn new(cuts: Cuts) -> Machines {
        Machines {
            cuts,
            sources: DrivenMachines::default(),
            targets: DrivenMachines::default(),
            recoveries: DrivenMachines::default(),
        }
    }

    fn demands(&self) -> FleetDemands {
        self.sources.demands().and(self.targets.demands()).and(self.recoveries.demands())
    }
}

/// Minimum background share in percent while no migration asks for another (design: 10 %).
const BACKGROUND_SHARE: u8 = 10;

/// Minimum background share in percent during a recovery: clients of its ranges wait for it.
pub(crate) const RECOVERY_SHARE: u8 = 50;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::IDLE_MACHINES_MAX;
    use protocols::migration::{MigrationSource, MigrationTarget, SourceEvent, TargetEvent};
    use protocols::{Machine, Outbox};

    #[test]
    fn only_so_many_ended_migrations_are_remembered() {
        let mut machines = Machines::new(Cuts::default());
        for id in (1..=1000).map(MigrationId) {
            let target = || (MigrationTarget::new(id, Cuts::default()), TargetDriver::Idle);
            machines.targets.begin(id, target);
            machines.targets.change(id, |target| {
                target.machine.handle(Instant(0), TargetEvent::Decide, &mut Outbox::new());
                assert!(target.machine.is_over());
            });
            machines.sources.begin(id, || (MigrationSource::new(id), SourceDriver::Idle));
            machines.sources.change(id, |source| {
                let outcome = SourceEvent::Outcome { accepted: false };
                source.machine.handle(Instant(0), outcome, &mut Outbox::new());
            });
        }
        assert_eq!(machines.targets.values().count(), IDLE_MACHINES_MAX);
        assert_eq!(machines.sources.values().count(), IDLE_MACHINES_MAX);
        assert!(machines.targets.contains(MigrationId(1000)), "the youngest are kept");
    }

    #[test]
    #[should_panic(expected = "a machine that waits for reactors waits")]
    fn the_machines_that_wait_for_reactors_are_counted_once() {
        let demands = FleetDemands { restless: 1, ..FleetDemands::default() };
        SharedMachines::new(Cuts::default()).publish(demands);
    }
}
