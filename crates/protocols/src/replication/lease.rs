//! Until when a master may serve: until 100 ms after the newest send that a quorum of the backups
//! acknowledged on which a recovery could rest.
//!
//! A recovery fences so many backups of the chain's segment that the coordinator knows that it meets
//! every such quorum. While another segment is being announced it may know either, so the quorums
//! of both count. A backup that is lost counts as before: its disk may come back, and be one that a
//! recovery rests on. Before the coordinator knows any there is no lease: what such a server holds it
//! hands out to others at once.
//!
//! **Invariant:** the lease ends at the latest [`LEASE`] after as many of them were fenced as a
//! recovery must fence.

use super::timing::LEASE;
use std::collections::BTreeMap;
use types::{Instant, SegmentId, ServerId};

/// The segments that the lease depends on.
#[derive(Debug, Default)]
pub(super) struct Lease {
    segments: BTreeMap<SegmentId, Required>,
    /// The coordinator knows one of the chain's segments.
    is_noted: bool,
}

#[derive(Debug)]
struct Required {
    /// So many must have acknowledged something.
    needed: usize,
    /// Send time of the newest message that each backup has acknowledged.
    backups: BTreeMap<ServerId, Option<Instant>>,
}

impl Required {
    /// Send time of the newest message that so many as are needed have acknowledged, or later ones.
    fn confirmed(&self) -> Option<Instant> {
        let mut sent: Vec<Option<Instant>> = self.backups.values().copied().collect();
        sent.sort_unstable_by(|one, other| other.cmp(one));
        *sent.get(self.needed - 1)?
    }
}

impl Lease {
    /// The coordinator may know this segment from now on. `needed` is at least one.
    pub(super) fn require(
        &mut self,
        segment: SegmentId,
        needed: usize,
        backups: impl Iterator<Item = (ServerId, Option<Instant>)>,
    ) {
        let backups = backups.collect();
        self.segments.insert(segment, Required { needed: needed.max(1), backups });
    }

    /// The coordinator knows this segment, and will never again name one before it.
    pub(super) fn note(&mut self, segment: SegmentId) {
        self.is_noted = true;
        self.segments = self.segments.split_off(&segment);
    }

    pub(super) fn confirm(&mut self, segment: SegmentId, backup: ServerId, sent: Instant) {
        let required = self.segments.get_mut(&segment);
        if let Some(confirmed) = required.and_then(|it| it.backups.get_mut(&backup)) {
            *confirmed = (*confirmed).max(Some(sent));
        }
    }

    /// `None`: there is no lease.
    pub(super) fn until(&self) -> Option<Instant> {
        let oldest = self.segments.values().map(Required::confirmed).min();
        oldest.flatten().filter(|_| self.is_noted).map(|sent| sent + LEASE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEGMENT: SegmentId = SegmentId(1);

    #[test]
    fn two_of_three_backups_renew_the_lease() {
        let mut lease = Lease::default();
        let backups = [2, 3, 4].map(|it| (ServerId(it), Some(Instant(1))));
        lease.require(SEGMENT, 2, backups.into_iter());
        assert_eq!(lease.until(), None, "the coordinator does not know it");
        lease.note(SEGMENT);
        assert_eq!(lease.until(), Some(Instant(1) + LEASE));
        lease.confirm(SEGMENT, ServerId(2), Instant(9));
        assert_eq!(lease.until(), Some(Instant(1) + LEASE), "one is not enough");
        lease.confirm(SEGMENT, ServerId(4), Instant(7));
        assert_eq!(lease.until(), Some(Instant(7) + LEASE), "the older one of the two");
        lease.confirm(SEGMENT, ServerId(9), Instant(20));
        assert_eq!(lease.until(), Some(Instant(7) + LEASE), "a stranger does not count");
    }

    #[test]
    fn a_segment_that_is_announced_counts_as_the_noted_one_does() {
        let mut lease = Lease::default();
        lease.require(SEGMENT, 1, [(ServerId(2), Some(Instant(5)))].into_iter());
        lease.note(SEGMENT);
        let next = SegmentId(2);
        lease.require(next, 2, [(ServerId(2), Some(Instant(9)))].into_iter());
        assert_eq!(lease.until(), None, "fewer backups than are needed");
        lease.require(next, 1, [(ServerId(3), Some(Instant(3)))].into_iter());
        assert_eq!(lease.until(), Some(Instant(3) + LEASE));
        lease.note(next);
        lease.confirm(next, ServerId(3), Instant(8));
        assert_eq!(lease.until(), Some(Instant(8) + LEASE));
    }
}
