//! Replicas of a dead server's log, by segment.

use std::collections::{BTreeMap, BTreeSet};
use types::{SegmentId, ServerId};
use wire::control::ReplicaPlace;
use wire::replica::ReplicaEpoch;

/// A replica's segment and epoch.
pub(in crate::machine) type ReplicaName = (SegmentId, ReplicaEpoch);

/// Reported replicas of the segments of one log. A look-up of a segment costs as much as it has
/// replicas, however many servers hold other segments.
#[derive(Debug, Default)]
pub(super) struct ReplicaIndex {
    /// Lengths in bytes.
    lengths: BTreeMap<(SegmentId, ServerId, ReplicaEpoch), u32>,
}

impl ReplicaIndex {
    /// Records a replica. Returns its length that was known before.
    pub(super) fn insert(
        &mut self,
        holder: ServerId,
        name: ReplicaName,
        length: u32,
    ) -> Option<u32> {
        let (segment, epoch) = name;
        self.lengths.insert((segment, holder, epoch), length)
    }

    /// Returns the length of a replica.
    pub(super) fn length(&self, holder: ServerId, name: ReplicaName) -> Option<u32> {
        let (segment, epoch) = name;
        self.lengths.get(&(segment, holder, epoch)).copied()
    }

    /// Returns the replicas of a segment, in order of their holders.
    pub(super) fn of(&self, segment: SegmentId) -> impl Iterator<Item = ReplicaPlace> {
        let first = (segment, ServerId(0), ReplicaEpoch(0));
        let last = (segment, ServerId(u32::MAX), ReplicaEpoch(u32::MAX));
        self.lengths.range(first..=last).map(|(&(_, backup, epoch), &length)| {
            #[cfg(test)]
            REPLICAS_LOOKED_AT.set(REPLICAS_LOOKED_AT.get() + 1);
            ReplicaPlace { backup, epoch, length }
        })
    }

    /// Returns the segments that have a replica.
    pub(super) fn segments(&self) -> BTreeSet<SegmentId> {
        self.lengths.keys().map(|(segment, ..)| *segment).collect()
    }

    /// Removes all replicas of a holder.
    pub(super) fn forget(&mut self, holder: ServerId) {
        self.lengths.retain(|(_, other, _), _| *other != holder);
    }
}

#[cfg(test)]
thread_local! {
    /// Number of replicas that this test has looked at.
    static REPLICAS_LOOKED_AT: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// Returns the number of replicas that the running test has looked at.
#[cfg(test)]
pub(in crate::machine) fn replicas_looked_at() -> u64 {
    REPLICAS_LOOKED_AT.get()
}
