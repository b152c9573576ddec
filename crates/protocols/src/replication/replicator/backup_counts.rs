//! The number of backups that hold all writes of a replicator, for `WAIT` and `WAITAOF`.

use super::{Replica, ReplicatedSegment, Replicator, SegmentStage};
use crate::replication::replica::SegmentExtent;
use types::ServerId;

/// Number of other servers that hold all of a segment, minimized over all segments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BackupCounts {
    /// Backups that have written all of it.
    pub taken: usize,
    /// Backups that have synced all of it.
    pub synced: usize,
}

impl BackupCounts {
    /// Counts the backups of one segment. A segment that is not in the manifest would not be read
    /// after a crash, so its count is 0.
    fn of(segment: &ReplicatedSegment, master: ServerId) -> BackupCounts {
        let SegmentExtent { length, .. } = segment.extent();
        let is_registered = segment.is_registered || segment.stage >= SegmentStage::Sealed;
        let count = |has: fn(&Replica) -> u32| {
            let holds = segment.placed(Some(master)).filter(|replica| has(replica) >= length);
            if is_registered { holds.filter(|replica| replica.is_open()).count() } else { 0 }
        };
        BackupCounts {
            taken: count(|replica| replica.has()),
            synced: count(|replica| replica.synced()),
        }
    }

    /// Returns the element-wise minimum.
    fn min(self, other: BackupCounts) -> BackupCounts {
        BackupCounts { taken: self.taken.min(other.taken), synced: self.synced.min(other.synced) }
    }
}

impl Replicator {
    /// Returns how many other servers hold everything appended so far. Inactive segments have all
    /// the replicas that they need.
    pub fn backup_counts(&self) -> BackupCounts {
        let has_none = self.is_fenced || self.keeps_own_log();
        let wanted = if has_none { 0 } else { self.settings.replicas };
        let all = BackupCounts { taken: wanted, synced: wanted };
        let unfinished = self.active.union(&self.short).map(|id| &self.segments[id]);
        let counted =
            unfinished.filter(|it| it.stage != SegmentStage::Evicted && it.extent().length > 0);
        counted.map(|it| BackupCounts::of(it, self.settings.log)).fold(all, BackupCounts::min)
    }
}
