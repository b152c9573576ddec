//! Recovery of dead servers' ranges on this server: drives one recovery master for each recovery
//! partition (part) that the coordinator has assigned to it.
//!
//! - `masters`: events for the recovery masters;
//! - `effects`: tablets that begin and end, reads, replays;
//! - `lineage`: partitions of a migration that has lost one side;
//! - `reading`: reads from this server's replicas of dead servers' logs, and their `read_jobs`;
//! - `extent`: the estimated size of a partition;
//! - `counts`: counters of both sides for operators.
//!
//! The tablet of a partition is *recovering* until the coordinator's map assigns it to this
//! server under the partition's epoch (`tablets.rs`). From then on it is *securing*: served
//! before it is durable, until its replayed records are replicated and the coordinator knows
//! that. Replayed records go into one side log per reactor, shared by all partitions. If another
//! server becomes the owner, they are deleted.
//!
//! Few partitions are replayed at a time, in order of their epochs, because each has reads in
//! progress and replies that wait. When memory is short, a partition waits for the cleaner before
//! it is handed back.
//!
//! **Invariant:** no read starts before every reactor has begun a turn with the new tablet. A
//! reactor that did not know the tablet would drop the records it replays.
//! **Invariant:** no partition begins in a range while records of an earlier attempt there are
//! being deleted.

mod counts;
mod effects;
mod extent;
mod lineage;
mod masters;
mod read_jobs;
mod reading;

pub(super) use counts::RecoveryCounts;
pub(super) use masters::refusal;
pub(super) use read_jobs::{LogReads, ReadRequester};
pub use read_jobs::{ReadDone, ReadJob};

use super::demands::{ReplayReplication, Wait};
use super::work::ReplayLog;
use extent::Extent;
use std::sync::Arc;
use store::log::{Dependency, GracePeriod};
use store::{Recovery, ReplayCounters};
use types::{HashRange, Incarnation, Instant, KeyHash, TableId, UnixMillis};
use wire::control::{RecoveryLog, RecoveryPartition};

/// The state that this server keeps for a recovery master.
pub(super) struct RecoveryDriver {
    /// Logs to read, with the incarnations of valid entries.
    logs: Vec<RecoveryLog>,
    /// Incarnations of new entries, by table.
    incarnations: Vec<Incarnation>,
    /// Set if records that this server already holds are valid, too.
    keeps: bool,
    /// Latest clock by which the dead server can have judged expiry in the range.
    clock_floor: UnixMillis,
    extent: Extent,
    since: Instant,
    phase: RecoveryPhase,
}

/// The progress of a recovery partition on this server.
enum RecoveryPhase {
    /// The partition is not here: it has not begun, or is over.
    Idle,
    /// The partition waits for others to be replayed.
    Queued,
    /// The partition waits for memory to begin.
    WaitingForRoom { until: Instant },
    /// Every reactor begins a turn with the tablet; then the void records are deleted. `earlier`
    /// are the attempts that this one replaces.
    Beginning {
        recovery: Arc<Recovery>,
        grace: GracePeriod,
        voided: Voided,
        earlier: Vec<Arc<Recovery>>,
    },
    /// Segments are read and replayed.
    Replaying { recovery: Arc<Recovery> },
    /// These replays wait for memory.
    Stalled { recovery: Arc<Recovery>, until: Instant, replays: Vec<ReplayLog> },
    /// Backups must acknowledge all entries written for the partition.
    Securing { recovery: Arc<Recovery>, replayed_at: Instant, entries: Dependency },
    /// The partition is durable; the coordinator does not know that yet.
    Durable { recovery: Arc<Recovery>, replayed_at: Instant },
    /// The partition's last dependency has ended, and every reactor begins a turn.
    Sweeping { recovery: Arc<Recovery>, grace: GracePeriod },
}

/// Maximum number of partitions that are replayed at a time.
const REPLAYED_MAX: usize = 4;

/// Void records of tablets that wait for their recovery.
#[derive(Debug)]
struct Voided {
    /// Ranges and tables of the records.
    parts: Vec<(HashRange, TableId)>,
    /// Hash from which the records of the last part are left.
    from: KeyHash,
}

impl RecoveryPhase {
    /// Returns the replay of a partition that depends on the dead server's log.
    fn recovery(&self) -> Option<&Arc<Recovery>> {
        match self {
            RecoveryPhase::Beginning { recovery, .. }
            | RecoveryPhase::Replaying { recovery }
            | RecoveryPhase::Stalled { recovery, .. }
            | RecoveryPhase::Securing { recovery, .. }
            | RecoveryPhase::Durable { recovery, .. } => Some(recovery),
            RecoveryPhase::Idle
            | RecoveryPhase::Queued
            | RecoveryPhase::WaitingForRoom { .. }
            | RecoveryPhase::Sweeping { .. } => None,
        }
    }

    /// Returns when the last segment was replayed, until the partition's last dependency ends.
    fn replayed_at(&self) -> Option<Instant> {
        match self {
            RecoveryPhase::Securing { replayed_at, .. }
            | RecoveryPhase::Durable { replayed_at, .. } => Some(*replayed_at),
            RecoveryPhase::Idle
            | RecoveryPhase::Queued
            | RecoveryPhase::WaitingForRoom { .. }
            | RecoveryPhase::Beginning { .. }
            | RecoveryPhase::Replaying { .. }
            | RecoveryPhase::Stalled { .. }
            | RecoveryPhase::Sweeping { .. } => None,
        }
    }

    fn wait(&self) -> Option<Wait> {
        match self {
            RecoveryPhase::Securing { .. } => Some(Wait::Backups),
            RecoveryPhase::WaitingForRoom { .. }
            | RecoveryPhase::Beginning { .. }
            | RecoveryPhase::Stalled { .. }
            | RecoveryPhase::Sweeping { .. } => Some(Wait::Reactors),
            RecoveryPhase::Idle
            | RecoveryPhase::Queued
            | RecoveryPhase::Replaying { .. }
            | RecoveryPhase::Durable { .. } => None,
        }
    }
}

impl RecoveryDriver {
    fn new(now: Instant, part: &RecoveryPartition) -> RecoveryDriver {
        RecoveryDriver {
            logs: part.logs.clone(),
            incarnations: part.incarnations.clone(),
            keeps: part.keeps,
            clock_floor: part.clock_floor,
            extent: Extent::default(),
            since: now,
            phase: RecoveryPhase::Idle,
        }
    }

    /// Returns whether segments are being read and replayed.
    fn is_being_replayed(&self) -> bool {
        self.phase.recovery().is_some() && self.phase.replayed_at().is_none()
    }

    /// Returns the dead server's log that is needed until this server's own log has the whole
    /// partition. `None`: the partition is served only then. `held` are the tablet's incarnations
    /// now: a table with another one than at the beginning was flushed, and its records in the dead
    /// server's log are void.
    fn dependency(&self, held: &[Incarnation]) -> Option<RecoveryLog> {
        let [RecoveryLog { dead, old_incarnations }] = &self.logs[..] else { return None };
        let is_flushed = |table: usize| self.incarnations.get(table) != held.get(table);
        let old = old_incarnations.iter().enumerate();
        let old = old.map(|(table, it)| if is_flushed(table) { Incarnation(0) } else { *it });
        (!self.keeps).then(|| RecoveryLog { dead: *dead, old_incarnations: old.collect() })
    }

    fn counters(&self) -> ReplayCounters {
        self.phase.recovery().map_or_else(ReplayCounters::default, |it| it.counters())
    }

    /// Returns when the replayed records are replicated. Deferring that serves clients sooner,
    /// and meanwhile the dead server's log has the records. Exceptions are partitions that are
    /// served only when durable, and those that lack memory: dead entries free no memory before
    /// they are replicated.
    fn replication(&self) -> Option<ReplayReplication> {
        let lacks_room = matches!(
            self.phase,
            RecoveryPhase::WaitingForRoom { .. } | RecoveryPhase::Stalled { .. }
        );
        let is_served_when_durable = self.keeps || self.logs.len() > 1;
        if lacks_room || (self.phase.recovery().is_some() && is_served_when_durable) {
            Some(ReplayReplication::Prompt)
        } else {
            self.is_being_replayed().then_some(ReplayReplication::Deferred)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::{HashRange, OwnershipEpoch, ServerId};

    #[test]
    fn a_partition_in_one_log_depends_on_what_was_not_flushed_since() {
        let log = |dead| RecoveryLog {
            dead: ServerId(dead),
            old_incarnations: vec![Incarnation(1), Incarnation(2)],
        };
        let mut part = RecoveryPartition {
            range: HashRange::ALL,
            epoch: OwnershipEpoch(7),
            incarnations: vec![Incarnation(11), Incarnation(12)],
            keeps: false,
            clock_floor: UnixMillis(0),
            logs: vec![log(1)],
            list: 1,
            segments_total: 0,
            segments: Vec::new(),
        };
        let dependency = |part: &RecoveryPartition, held: [u64; 2]| {
            RecoveryDriver::new(Instant(0), part).dependency(&held.map(Incarnation))
        };
        assert_eq!(dependency(&part, [11, 12]), Some(log(1)));
        let old_incarnations = vec![Incarnation(1), Incarnation(0)];
        let flushed = RecoveryLog { dead: ServerId(1), old_incarnations };
        assert_eq!(dependency(&part, [11, 13]), Some(flushed));
        part.keeps = true;
        assert_eq!(dependency(&part, [11, 12]), None);
        part.keeps = false;
        part.logs.push(log(2));
        assert_eq!(dependency(&part, [11, 12]), None);
    }
}
