//! The read lease of a master: rule 6 of `docs/design/replication.md`. It lasts for [`LEASE`] after
//! the newest send that a quorum of the manifest's backups has acknowledged. A recovery fences
//! enough backups to intersect every such quorum of the segment that the coordinator knows.
//!
//! **Invariant:** the lease ends at most [`LEASE`] after a recovery has fenced as many backups as
//! it must.

use super::timing::LEASE;
use std::collections::BTreeMap;
use types::{Instant, SegmentId, ServerId};

/// The manifest segments on which the lease depends.
#[derive(Clone, Debug, Default)]
pub(super) struct Lease {
    segments: BTreeMap<SegmentId, Required>,
    /// The manifest segment that the coordinator has recorded; `None`: none yet.
    recorded: Option<SegmentId>,
}

#[derive(Clone, Debug)]
struct Required {
    /// Number of backups that must have acknowledged a message.
    needed: usize,
    /// Send time of the newest message that each backup has acknowledged.
    backups: BTreeMap<ServerId, Option<Instant>>,
}

impl Required {
    /// Returns the newest send time that at least `needed` backups have reached.
    fn confirmed(&self) -> Option<Instant> {
        let mut sent: Vec<Option<Instant>> = self.backups.values().copied().collect();
        sent.sort_unstable_by(|one, other| other.cmp(one));
        *sent.get(self.needed - 1)?
    }
}

impl Lease {
    /// Adds a segment that the coordinator may know from now on. `needed` is at least one.
    pub(super) fn require(
        &mut self,
        segment: SegmentId,
        needed: usize,
        backups: impl Iterator<Item = (ServerId, Option<Instant>)>,
    ) {
        assert!(needed > 0, "a lease needs the answer of a backup");
        assert!(self.recorded <= Some(segment), "{segment} is older than {:?}", self.recorded);
        let backups = backups.collect();
        self.segments.insert(segment, Required { needed, backups });
    }

    /// Records that the coordinator knows this segment and will never name an earlier one again.
    pub(super) fn recorded(&mut self, segment: SegmentId) {
        assert!(self.recorded <= Some(segment), "{segment} is older than {:?}", self.recorded);
        self.recorded = Some(segment);
        self.segments = self.segments.split_off(&segment);
    }

    pub(super) fn confirm(&mut self, segment: SegmentId, backup: ServerId, sent: Instant) {
        let required = self.segments.get_mut(&segment);
        if let Some(confirmed) = required.and_then(|it| it.backups.get_mut(&backup)) {
            *confirmed = (*confirmed).max(Some(sent));
        }
    }

    /// Returns the end of the lease; `None` if there is no lease.
    pub(super) fn until(&self) -> Option<Instant> {
        let oldest = self.segments.values().map(Required::confirmed).min();
        oldest.flatten().filter(|_| self.recorded.is_some()).map(|sent| sent + LEASE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEGMENT: SegmentId = SegmentId(1);

    #[test]
    #[should_panic(expected = "is older than")]
    fn the_coordinator_does_not_go_back_to_an_earlier_segment() {
        let mut lease = Lease::default();
        lease.recorded(SegmentId(2));
        lease.recorded(SEGMENT);
    }

    #[test]
    fn two_of_three_backups_renew_the_lease() {
        let mut lease = Lease::default();
        let backups = [2, 3, 4].map(|it| (ServerId(it), Some(Instant(1))));
        lease.require(SEGMENT, 2, backups.into_iter());
        assert_eq!(lease.until(), None, "the coordinator does not know it");
        lease.recorded(SEGMENT);
        assert_eq!(lease.until(), Some(Instant(1) + LEASE));
        lease.confirm(SEGMENT, ServerId(2), Instant(9));
        assert_eq!(lease.until(), Some(Instant(1) + LEASE), "one is not enough");
        lease.confirm(SEGMENT, ServerId(4), Instant(7));
        assert_eq!(lease.until(), Some(Instant(7) + LEASE), "the older one of the two");
        lease.confirm(SEGMENT, ServerId(9), Instant(20));
        assert_eq!(lease.until(), Some(Instant(7) + LEASE), "an unknown server does not count");
    }

    #[test]
    fn a_segment_that_is_announced_counts_as_the_noted_one_does() {
        let mut lease = Lease::default();
        lease.require(SEGMENT, 1, [(ServerId(2), Some(Instant(5)))].into_iter());
        lease.recorded(SEGMENT);
        let next = SegmentId(2);
        lease.require(next, 2, [(ServerId(2), Some(Instant(9)))].into_iter());
        assert_eq!(lease.until(), None, "fewer backups than are needed");
        lease.require(next, 1, [(ServerId(3), Some(Instant(3)))].into_iter());
        assert_eq!(lease.until(), Some(Instant(3) + LEASE));
        lease.recorded(next);
        lease.confirm(next, ServerId(3), Instant(8));
        assert_eq!(lease.until(), Some(Instant(8) + LEASE));
    }
}
