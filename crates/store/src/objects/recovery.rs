//! A range that is being recovered: this server is going to serve what a dead one held, and enters
//! that one's log, entry by entry in any order, before anybody is answered.
//!
//! The one idea: the highest version of a key is the key. So an entry that was read is compared with
//! what stands in the index, and nothing else of the dead log's order matters. Tombstones stand in
//! the index until everything has been replayed, so that an older object which comes after its
//! tombstone finds it; then the sweep takes them out.
//!
//! What the entries say of their own log means nothing in this one:
//! - the places in `replaces` and [`Dead`](wire::entry::Dead) are for the dead log's cleaner, which
//!   must not let an old version come back when a segment leaves. None leaves any more, all of the
//!   log is read, and of what was lost in the middle of a key's history nothing is asked either
//!   (`recover.rs` has to mend that only because it goes on with the same log). What is appended
//!   here names what it replaces *here*, or nothing;
//! - a tombstone that no word of the dead server pointed at kills by its version as any other. One
//!   that its cleaner derived from an overwrite has the object's version less one, which may be the
//!   version of what was overwritten: of equal versions the tombstone counts ([`super::view::rank`]);
//! - notes about copies say which segment must leave first: they are skipped. A copy has the version
//!   of its original, so whichever comes second is not needed;
//! - an entry under tenure 0 has been revoked: no table has that tenure.
//!
//! What is not needed is not appended, so that this log has only what it must keep dead itself.
//!
//! Invariants:
//! - nobody operates on the range before all is replayed; expiry and the reclaiming of records leave it
//!   alone; from then on it may be served, but tombstones stay until this log has everything
//!   ([`super::TabletState::Securing`]): if this server dies before, both logs are read; the cleaner moves what was replayed as everything else;
//! - nothing is entered any more when the sweep has begun.
//!
//! Left to others: which segments there are and what of them has been replayed, and that the log is
//! safe before the range is served (`protocols`, `server`). The range of an abandoned recovery is forgotten
//! ([`super::Worker::forget`]).

use super::expected::{Expected, Seen};
use super::replay::{ReplayCounters, ReplayCounts};
use super::view::View;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Mutex, MutexGuard};
use std::fmt;
use types::{HashRange, KeyHash, Slot, TableId, Tenure};

/// What a [`Recovery`] is made of.
pub struct RecoveryPlan {
    /// Tells it from all others on this server.
    pub number: u64,
    /// What is recovered.
    pub range: HashRange,
    /// By log, and there by table: the tenures under which dead servers wrote what counts. No two
    /// servers write under the same.
    pub old_tenures: Vec<Vec<Tenure>>,
}

/// The recovery of a range.
pub struct Recovery {
    number: u64,
    range: HashRange,
    old_tenures: Vec<Vec<Tenure>>,
    /// Everything has been replayed, and tombstones may go.
    is_over: AtomicBool,
    /// Tombstones in the index.
    buried: Mutex<Vec<(TableId, KeyHash)>>,
    counts: ReplayCounts,
    expected: Expected,
}

impl Recovery {
    /// A recovery of which nothing has been replayed.
    pub fn new(plan: RecoveryPlan) -> Recovery {
        let RecoveryPlan { number, range, old_tenures } = plan;
        Recovery {
            number,
            range,
            old_tenures,
            is_over: AtomicBool::new(false),
            buried: Mutex::new(Vec::new()),
            counts: ReplayCounts::default(),
            expected: Expected::default(),
        }
    }

    /// Tells it from all others on this server.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// What is recovered.
    pub fn range(&self) -> HashRange {
        self.range
    }

    /// About so many bytes of entries of the range will be replayed. A hint that spares the index
    /// much of its growing: the segments' bytes, times the range's part of what was the dead server's.
    pub fn foresee(&self, bytes: u64) {
        self.expected.foresee(bytes);
    }

    /// How much has been replayed so far.
    pub fn counters(&self) -> ReplayCounters {
        self.counts.load()
    }

    /// The table of an entry that the dead server wrote under this tenure, if it counts.
    #[inline]
    pub(super) fn table_of(&self, tenure: Tenure) -> Option<TableId> {
        let in_log = |tenures: &Vec<Tenure>| tenures.iter().position(|&it| it == tenure);
        let table = self.old_tenures.iter().find_map(in_log)?;
        (tenure != Tenure(0)).then_some(TableId(table as u8))
    }

    /// Makes the slot's leaf, if there is none, at about the size that it will have.
    #[inline]
    pub(super) fn make_leaf(&self, view: &View<'_>, slot: Slot) {
        self.expected.make_leaf(view, slot, self.range);
    }

    /// Entries have been read.
    pub(super) fn note_seen(&self, new: &Seen) {
        self.expected.note_seen(new);
    }

    /// Where what has been replayed is counted.
    pub(super) fn counts(&self) -> &ReplayCounts {
        &self.counts
    }

    /// Whether nothing is replayed any more. To be asked under the lock of the record's leaf.
    #[inline]
    pub(super) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    /// Nothing is replayed any more.
    pub(super) fn end(&self) {
        self.is_over.store(true, Ordering::Release);
    }

    /// Tombstones have been put into the index under these hashes.
    pub(super) fn note_buried(&self, new: &mut Vec<(TableId, KeyHash)>) {
        if !new.is_empty() {
            self.buried().append(new);
        }
    }

    /// Takes up to `max` tombstones.
    pub(super) fn take_buried(&self, max: usize) -> Vec<(TableId, KeyHash)> {
        let mut buried = self.buried();
        let left = buried.len().saturating_sub(max);
        buried.split_off(left)
    }

    fn buried(&self) -> MutexGuard<'_, Vec<(TableId, KeyHash)>> {
        self.buried.lock().expect("nothing panics while it holds this lock")
    }
}

impl fmt::Debug for Recovery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "recovery {} of {}", self.number, self.range)
    }
}
