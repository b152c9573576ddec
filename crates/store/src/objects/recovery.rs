//! State of a [`Recovery`]: this server replays a dead server's log into a range, in any order,
//! before it serves the range.
//!
//! The idea: the highest version of a key is its current state. So replay compares each entry
//! with the one that the index points at; the order of the dead log does not matter. Tombstones
//! stay in the index until everything has been replayed, so that an older object finds the
//! tombstone that supersedes it. Then [`super::Worker::sweep_recovery`] reclaims them.
//!
//! Information in the entries about their own log does not apply to this log:
//! - The locations in `replaces` and [`Dead`](wire::entry::Dead) are for the dead log's cleaner,
//!   which must not let an old version return when a segment leaves. No segment leaves any more,
//!   and the whole log is read. Lost links need no mending either; `recover.rs` mends them only
//!   because it continues the same log. An entry appended here names the entry that it replaces
//!   in *this* log, or none.
//! - A tombstone without an index word at the dead server supersedes by its version, as any
//!   other. A tombstone that the cleaner derived from an overwrite has the object's version less
//!   one. That may be the version of the replaced entry: at equal versions the tombstone wins
//!   ([`super::view::rank`]).
//! - Copy-origin notes order the release of segments and are skipped. A copy has the version of
//!   its original, so the second of the two is dropped.
//! - An entry under incarnation 0 has been revoked: no table has that incarnation.
//!
//! Entries that are not needed are not appended, so this log must keep superseded only what it
//! contains.
//!
//! Invariants:
//! - No operation accesses the range before everything is replayed; expiry and reclamation skip
//!   it. The cleaner moves replayed entries as any others.
//! - Then the range may be served, but tombstones stay until this log has everything durably
//!   ([`super::TabletState::Securing`]): if this server dies before, both logs are read.
//! - Nothing is replayed after tombstone reclamation has begun.
//!
//! Outside this module: the list of segments, their replay progress, and the durability of this
//! log before the range is served (`protocols`, `server`). [`super::Worker::forget`] clears the
//! range of an abandoned recovery.

use super::estimate::{EntryCounts, RecordEstimate};
use super::replay_counters::{ReplayCounters, ReplayCounts};
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Mutex, MutexGuard};
use std::fmt;
use types::{HashRange, Incarnation, KeyHash, TableId};

/// Parameters of a [`Recovery`].
pub struct RecoveryPlan {
    /// Number of the recovery, unique on this server.
    pub number: u64,
    /// Range that is recovered.
    pub range: HashRange,
    /// Incarnations of the current entries, by log and then by table. No two servers write under
    /// the same incarnation.
    pub old_incarnations: Vec<Vec<Incarnation>>,
}

/// The recovery of a range.
pub struct Recovery {
    number: u64,
    range: HashRange,
    old_incarnations: Vec<Vec<Incarnation>>,
    /// Set when everything has been replayed and tombstones may be reclaimed.
    is_over: AtomicBool,
    /// Tombstones in the index.
    tombstones: Mutex<Vec<(TableId, KeyHash)>>,
    counts: ReplayCounts,
    estimate: RecordEstimate,
}

impl Recovery {
    /// Creates a recovery without replayed entries.
    pub fn new(plan: RecoveryPlan) -> Recovery {
        let RecoveryPlan { number, range, old_incarnations } = plan;
        Recovery {
            number,
            range,
            old_incarnations,
            is_over: AtomicBool::new(false),
            tombstones: Mutex::new(Vec::new()),
            counts: ReplayCounts::default(),
            estimate: RecordEstimate::default(),
        }
    }

    /// Returns the number of the recovery, unique on this server.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Returns the range that is recovered.
    pub fn range(&self) -> HashRange {
        self.range
    }

    /// Announces the approximate bytes of entries that will be replayed: the segments' bytes
    /// times the range's part of the dead server's load. The index uses this hint to avoid most
    /// of its growth.
    pub fn foresee(&self, bytes: u64) {
        self.estimate.foresee(bytes);
    }

    /// Returns the totals of replay so far.
    pub fn counters(&self) -> ReplayCounters {
        self.counts.load()
    }

    /// Returns the table of an entry that the dead server wrote under this incarnation, if the
    /// entry is relevant.
    #[inline]
    pub(super) fn table_of(&self, incarnation: Incarnation) -> Option<TableId> {
        let in_log =
            |incarnations: &Vec<Incarnation>| incarnations.iter().position(|&it| it == incarnation);
        let table = self.old_incarnations.iter().find_map(in_log)?;
        (incarnation != Incarnation(0)).then_some(TableId(table as u8))
    }

    /// Returns the estimated number of records of a table per slot, in a log of at most
    /// `log_bytes`.
    pub(super) fn records_per_slot(&self, table: TableId, log_bytes: u64) -> Option<u32> {
        self.estimate.records_per_slot(table, self.range, log_bytes)
    }

    /// Adds the entries that one step has read.
    pub(super) fn note_seen(&self, new: &EntryCounts) {
        self.estimate.note_seen(new);
    }

    /// Returns the totals that replay updates.
    pub(super) fn counts(&self) -> &ReplayCounts {
        &self.counts
    }

    /// Returns whether replay has ended. The caller must hold the lock of the record's leaf.
    #[inline]
    pub(super) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    /// Ends replay.
    pub(super) fn end(&self) {
        self.is_over.store(true, Ordering::Release);
    }

    /// Records the tombstones that were put into the index under these hashes.
    pub(super) fn note_tombstone(&self, new: &mut Vec<(TableId, KeyHash)>) {
        debug_assert!(
            new.iter().all(|(_, hash)| self.range.contains(*hash)),
            "{self:?} gets a tombstone of another range"
        );
        if !new.is_empty() {
            self.tombstones().append(new);
        }
    }

    /// Takes over the recorded tombstones of an earlier attempt to recover a part of the range.
    /// Every reactor must have begun a turn without it.
    pub fn take_over(&self, earlier: &Recovery) {
        let is_here = |(_, hash): &(TableId, KeyHash)| self.range.contains(*hash);
        let (mut here, there) =
            std::mem::take(&mut *earlier.tombstones()).into_iter().partition(is_here);
        *earlier.tombstones() = there;
        self.note_tombstone(&mut here);
    }

    /// Takes up to `max` recorded tombstones.
    pub(super) fn take_tombstones(&self, max: usize) -> Vec<(TableId, KeyHash)> {
        let mut tombstones = self.tombstones();
        let left = tombstones.len().saturating_sub(max);
        tombstones.split_off(left)
    }

    fn tombstones(&self) -> MutexGuard<'_, Vec<(TableId, KeyHash)>> {
        self.tombstones.lock().expect("nothing panics while it holds this lock")
    }
}

impl fmt::Debug for Recovery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "recovery {} of {}", self.number, self.range)
    }
}
