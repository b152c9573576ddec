//! A master that keeps its log on its own disk, because no other server lives.
//!
//! It is then a backup of its own log, with the same messages and the same rules, and never beside
//! others: [`Candidate`](super::super::Candidate)s are either other servers, or the master alone.
//! No other server can take over its ranges: the coordinator has noted a segment of the log directory
//! whose only replica is on this disk, and a recovery needs that segment. See `docs/design/solo.md`.
//!
//! **Invariant:** a replica on the own disk is one of the replicas that are wanted only while no
//! other server lives. It is released when the log directory says that its segment is closed, and
//! enough others have all of it.

use super::{Replicator, Stage};
use crate::replication::losses::let_go;
use types::{SegmentId, ServerId};

impl Replicator {
    /// Returns whether the master is to keep its log on its own disk.
    pub fn keeps_own_log(&self) -> bool {
        self.placement.contains(self.settings.log)
    }

    /// Returns the server whose replicas do not count for as many as are wanted.
    pub(super) fn uncounted(&self) -> Option<ServerId> {
        Some(self.settings.log).filter(|_| !self.keeps_own_log())
    }

    /// Returns whether a segment of the chain says by its number that it stands on the own disk, and
    /// should not, or the other way round. It was begun before it was known who lives, and has no
    /// replica yet.
    pub(super) fn is_for_another_disk(&self, id: SegmentId) -> bool {
        let segment = &self.segments[&id];
        let is_own = segment.quorum.map(|quorum| quorum.is_own);
        segment.replicas.is_empty() && is_own.is_some_and(|is_own| is_own != self.keeps_own_log())
    }

    /// Looks at the replicas on the own disk again: others live than before, and with that changes
    /// what these count for.
    pub(super) fn review_own_replicas(&mut self) {
        let own = self.settings.log;
        if !self.held.contains_key(&own) {
            return;
        }
        let is_own = |id: &SegmentId| self.segments[id].replicas.iter().any(|it| it.backup == own);
        let owned: Vec<SegmentId> = self.segments.keys().copied().filter(is_own).collect();
        for id in owned {
            self.update_short(id);
            self.release_own(id);
        }
    }

    /// Gives up the replica of a segment on the own disk if it is not needed any more.
    pub(super) fn release_own(&mut self, id: SegmentId) {
        let own = self.settings.log;
        if self.is_chain() || self.keeps_own_log() {
            return;
        }
        let enough = self.placement.living(own).clamp(1, self.settings.replicas);
        let Some(segment) = self.segments.get_mut(&id) else { return };
        let of = segment.extent();
        let elsewhere = segment.placed(Some(own)).filter(|it| it.is_complete(of)).count();
        // While the directory says that it is open only originals count.
        if segment.stage != Stage::Kept || elsewhere < enough {
            return;
        }
        if let Some(replica) = segment.remove(own) {
            let_go(&mut self.held, own);
            self.release(id, [(own, replica.epoch)].into_iter());
        }
    }
}
