//! Until when a master may serve: until 100 ms after each backup that a recovery could rest on was
//! sent something that it acknowledged.
//!
//! A recovery rests on one backup of the chain's segment that the coordinator knows. While another
//! one is being announced it may know either, so the backups of both count. A backup that is lost
//! counts as before: its disk may come back, and be what a recovery rests on. Before the coordinator
//! knows any there is no lease: what such a server holds it hands out to others at once.
//!
//! **Invariant:** the lease ends at the latest [`LEASE`] after any one of them was fenced.

use super::timing::LEASE;
use std::collections::BTreeMap;
use types::{Instant, SegmentId, ServerId};

/// The end of the time for which a master may serve.
#[derive(Debug, Default)]
pub(super) struct Lease {
    /// When each backup was last sent something that it has acknowledged.
    backups: BTreeMap<SegmentId, BTreeMap<ServerId, Option<Instant>>>,
    /// The coordinator knows one of the chain's segments.
    is_noted: bool,
}

impl Lease {
    /// The coordinator may know this segment from now on.
    pub(super) fn require(
        &mut self,
        segment: SegmentId,
        backups: impl Iterator<Item = (ServerId, Option<Instant>)>,
    ) {
        self.backups.insert(segment, backups.collect());
    }

    /// The coordinator knows this segment, and will never again name one before it.
    pub(super) fn note(&mut self, segment: SegmentId) {
        self.is_noted = true;
        self.backups = self.backups.split_off(&segment);
    }

    pub(super) fn confirm(&mut self, segment: SegmentId, backup: ServerId, sent: Instant) {
        let backups = self.backups.get_mut(&segment);
        if let Some(confirmed) = backups.and_then(|backups| backups.get_mut(&backup)) {
            *confirmed = (*confirmed).max(Some(sent));
        }
    }

    /// `None`: there is no lease.
    pub(super) fn until(&self) -> Option<Instant> {
        let all = self.backups.values().flat_map(BTreeMap::values);
        let oldest = all.min().copied().flatten().filter(|_| self.is_noted);
        oldest.map(|sent| sent + LEASE)
    }
}
