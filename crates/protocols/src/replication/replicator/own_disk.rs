//! Replication to the master's own disk, for a master that is the last living server: see
//! `docs/design/solo.md`. The candidates for replicas are either other servers or the master alone.
//!
//! A server without a cluster is such a master from its start to its end, and continues a log
//! that an earlier process of it has written.
//!
//! **Invariant:** a replica on the own disk counts as one of the wanted replicas only while no
//! other server lives. It is released when its segment is sealed and enough other servers have
//! all of it.

use super::{ReplicatedSegment, Replicator, SegmentStage};
use crate::replication::quorum::Quorum;
use types::{SegmentId, ServerId};
use wire::replica::ReplicaEpoch;

impl Replicator {
    /// Returns whether the master replicates its log to its own disk.
    pub fn keeps_own_log(&self) -> bool {
        self.placement.contains(self.settings.log)
    }

    /// Returns the server with replicas that do not count as wanted: the master, while others live.
    pub(super) fn uncounted(&self) -> Option<ServerId> {
        Some(self.settings.log).filter(|_| !self.keeps_own_log())
    }

    /// Adds a segment that an earlier process has written, with its complete replica here.
    pub(super) fn adopt(&mut self, id: SegmentId, epoch: ReplicaEpoch, length: u32) {
        assert!(self.settings.is_standalone, "{id} is adopted by a server that has a cluster");
        let own = self.settings.log;
        let quorum = self.is_manifest_log().then_some(Quorum::OWN_DISK);
        self.open(id, ReplicatedSegment::adopted(own, epoch, length, quorum));
        self.replica_counts.add(own);
        self.update_short(id);
    }

    /// Returns whether everything appended so far is synced, and in the manifest.
    pub fn is_synced(&self) -> bool {
        let unfinished = self.active.union(&self.short).map(|id| &self.segments[id]);
        let mut counted = unfinished.filter(|it| it.stage != SegmentStage::Evicted);
        counted.all(|segment| segment.reached().synced == segment.extent().length)
    }

    /// Returns how many backups receive the next write of a segment without replicas. The own
    /// disk of a server without a cluster does while it has not refused its last replica.
    pub(super) fn answering_backups(&self) -> usize {
        let own = self.settings.log;
        match self.settings.is_standalone {
            true => usize::from(self.placement.contains(own) && !self.placement.has_refused(own)),
            false => self.placement.answering(own).min(self.settings.replicas),
        }
    }

    /// Returns whether the id of a manifest segment names the own disk although other servers
    /// live, or the reverse. Such a segment has no replica yet; it began before the living
    /// servers were known.
    pub(super) fn is_for_another_disk(&self, id: SegmentId) -> bool {
        let segment = &self.segments[&id];
        let is_own = segment.quorum.map(|quorum| quorum.is_own);
        segment.replicas.is_empty() && is_own.is_some_and(|is_own| is_own != self.keeps_own_log())
    }

    /// Re-evaluates the replicas on the own disk after the set of living servers has changed.
    pub(super) fn review_own_replicas(&mut self) {
        let own = self.settings.log;
        if !self.replica_counts.has_replicas(own) {
            return;
        }
        let is_own = |id: &SegmentId| self.segments[id].replicas.iter().any(|it| it.backup == own);
        let owned: Vec<SegmentId> = self.segments.keys().copied().filter(is_own).collect();
        for id in owned {
            self.update_short(id);
            self.release_own(id);
        }
    }

    /// Releases the replica of a segment on the own disk if it is no longer needed.
    pub(super) fn release_own(&mut self, id: SegmentId) {
        let own = self.settings.log;
        if self.is_manifest_log() || self.keeps_own_log() {
            return;
        }
        let enough = self.placement.living(own).clamp(1, self.settings.replicas);
        let Some(segment) = self.segments.get_mut(&id) else { return };
        let of = segment.extent();
        let elsewhere = segment.placed(Some(own)).filter(|it| it.is_complete(of)).count();
        // While the manifest lists the segment as open, only originals count.
        if segment.stage != SegmentStage::Sealed || elsewhere < enough {
            return;
        }
        if let Some(replica) = segment.remove(own) {
            self.replica_counts.remove(own);
            self.release(id, [(own, replica.epoch)].into_iter());
        }
    }
}
