//! A fault that lasts while clients work: the cluster must serve them all the same.
//!
//! Usual faults end before everything has to be well again. A lasting fault begins when the cluster
//! is whole, and nothing heals while it lasts: a cluster that waits for its end breaks a rule. The
//! cluster can survive each of these faults, since only one server, one pair of servers or the
//! coordinator is concerned. It has some time to notice the fault and to recover what a dead server
//! had; from then on, each operation has a budget, refusals and new attempts included.

use crate::named::named;
use crate::settings::{Knob, RunSettings};
use fastrand::Rng;
use protocols::replication::timing::SILENT_AFTER_MAX;
use std::time::Duration;
use types::Instant;

/// One replicated run in this many has a lasting fault.
const LASTING_ONE_IN: u32 = 4;

/// Mixed into the seed for the separate random numbers of lasting faults.
const LASTING: u64 = 0x6c61_7374_696e_6721;

/// Time from the beginning of a fault within which the cluster adapts to it: it declares a silent
/// server dead after 150 to 400 ms, and recovers its data.
const ADAPTATION: Duration = Duration::from_secs(1);

/// Time within which an operation is answered afterwards, unless a disk is slow. Nearly all take a
/// few milliseconds. But the first write for which a master needs some backup may find it silent,
/// and masters that have replaced several backups lately wait longer before they replace one.
const BUDGET: Duration = Duration::from_millis(300).saturating_add(SILENT_AFTER_MAX);

/// The same while a disk is slow that is needed for all replicas. Masters tolerate it up to that
/// limit, and an operation may wait for two of them, with a job under way and a job of its own at
/// each. In a log of few small segments, a write may also wait for memory that is reusable when
/// its replicas have been copied.
const SLOW_DISK_BUDGET: Duration = Duration::from_millis(3_600);

/// Time by which a native client may need longer: after a second of silence it asks another server
/// for a map, after another one it closes the connection, and its longest pause is half a second.
const NATIVE_PATIENCE: Duration = Duration::from_millis(2_500);

/// Durations of lasting faults in milliseconds. The longest one exceeds all time limits of
/// connections to the coordinator.
const DURATIONS_MILLIS: [u64; 4] = [3_000, 3_000, 4_000, 8_000];

named! {
    /// Kind of a fault that lasts.
    LastingKind:
    PairPartition, "cut", "Two servers lose each other's messages, in one direction or in both.";
    CoordinatorPartition, "unlinked", "A server does not reach the coordinator.";
    CoordinatorAway, "no-coordinator", "There is no coordinator.";
    DeadServer, "dead", "A server is dead, and nothing starts in its place.";
    Partition, "island", "A server reaches neither other servers nor the coordinator.";
    PausedServer, "paused", "A server is paused, and its connections stay open.";
    SlowDisk, "slow-disk", "Each job of a server's disk takes 100 to 600 ms.";
    FullDisk, "full-disk", "A server's disk is full.";
}

/// Fault that lasts now.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LastingFault {
    pub(crate) kind: LastingKind,
    /// Place of the concerned server.
    pub(crate) place: usize,
    /// Place of the second server of a pair.
    pub(crate) other: usize,
    begun: Instant,
    pub(crate) until: Instant,
    /// Set if writes may wait for the concerned server's disk, or for the copies that replace its
    /// replicas.
    is_needed: bool,
    /// Set if each write waits for syncs, and so for all copies before it on a disk.
    awaits_syncs: bool,
    /// Set once clients have noticed that the concerned server does not answer.
    pub(crate) is_noticed: bool,
}

impl LastingKind {
    /// Draws the kind for a run with replicated logs, if it has a lasting fault.
    pub(crate) fn draw(settings: &RunSettings) -> Option<LastingKind> {
        let mut rng = Rng::with_seed(settings.seed ^ LASTING);
        let is_drawn = rng.u32(..LASTING_ONE_IN) == 0 && settings.has(Knob::Lasting);
        let drawn = LastingKind::ALL[rng.usize(..LastingKind::ALL.len())];
        settings.lasting.or(is_drawn.then_some(drawn))
    }
}

impl LastingFault {
    /// Draws the concerned servers and the end.
    pub(crate) fn draw(
        kind: LastingKind,
        servers: usize,
        is_needed: bool,
        awaits_syncs: bool,
        now: Instant,
        rng: &mut Rng,
    ) -> LastingFault {
        let place = rng.usize(..servers);
        let other = (place + rng.usize(1..servers)) % servers;
        let millis = DURATIONS_MILLIS[rng.usize(..DURATIONS_MILLIS.len())];
        let longest = DURATIONS_MILLIS[DURATIONS_MILLIS.len() - 1];
        let millis = if kind == LastingKind::SlowDisk { longest } else { millis };
        let until = now + Duration::from_millis(millis);
        LastingFault {
            kind,
            place,
            other,
            begun: now,
            until,
            is_needed,
            awaits_syncs,
            is_noticed: false,
        }
    }

    /// Returns the time by which an operation that a client began at `since` must be answered.
    pub(crate) fn deadline(&self, since: Instant) -> Instant {
        let budget = match self.kind {
            LastingKind::SlowDisk if self.is_needed => SLOW_DISK_BUDGET,
            _ if self.is_needed && self.awaits_syncs => SLOW_DISK_BUDGET,
            _ => BUDGET,
        };
        since.max(self.adapted_at()) + budget
    }

    /// Returns the same for an operation of a native client, which notices silence by its own time
    /// limits.
    pub(crate) fn native_deadline(&self, since: Instant) -> Instant {
        self.deadline(since) + NATIVE_PATIENCE
    }

    /// Returns the time by which the cluster has adapted to the fault.
    pub(crate) fn adapted_at(&self) -> Instant {
        self.begun + ADAPTATION
    }

    /// Returns the place whose server answers nobody although its connections are open.
    pub(crate) fn mute_place(&self) -> Option<usize> {
        (self.kind == LastingKind::PausedServer).then_some(self.place)
    }

    /// Returns whether clients know better than the reply to a request of this time that names a
    /// place as the owner: they have noticed since that its server answers nobody.
    pub(crate) fn outdates(&self, owner: usize, attempt: Instant) -> bool {
        self.is_noticed && self.mute_place() == Some(owner) && attempt < self.adapted_at()
    }

    /// Returns whether a process at this place must not start yet.
    pub(crate) fn keeps_dead(&self, place: usize) -> bool {
        self.kind == LastingKind::DeadServer && self.place == place
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_have_each_kind_of_fault_unless_it_is_left_out() {
        let kind = |seed| LastingKind::draw(&RunSettings::new(seed));
        for wanted in LastingKind::ALL {
            assert!((1..500).any(|seed| kind(seed) == Some(*wanted)), "{wanted}");
        }
        assert!((1..20).any(|seed| kind(seed).is_none()));
        let without =
            |seed| RunSettings { without: [Knob::Lasting].into(), ..RunSettings::new(seed) };
        assert!((1..100).all(|seed| LastingKind::draw(&without(seed)).is_none()));
    }

    #[test]
    fn an_operation_has_its_budget_from_its_beginning_or_the_end_of_the_adaptation_on() {
        let mut rng = Rng::with_seed(1);
        let begun = Instant(5_000_000_000);
        let fault = LastingFault::draw(LastingKind::DeadServer, 3, true, false, begun, &mut rng);
        assert_ne!(fault.place, fault.other);
        assert_eq!(fault.deadline(Instant(1)), begun + ADAPTATION + BUDGET);
        let late = begun + ADAPTATION + ADAPTATION;
        assert_eq!(fault.deadline(late), late + BUDGET);
        assert!(fault.deadline(Instant(1)) < fault.until, "each fault lasts longer than a budget");
    }

    #[test]
    fn a_slow_disk_costs_more_time_only_where_it_is_needed() {
        let begun = Instant(5_000_000_000);
        for (is_needed, budget) in [(true, SLOW_DISK_BUDGET), (false, BUDGET)] {
            let mut rng = Rng::with_seed(1);
            let fault =
                LastingFault::draw(LastingKind::SlowDisk, 3, is_needed, false, begun, &mut rng);
            assert_eq!(fault.deadline(begun), fault.adapted_at() + budget);
        }
    }
}
