//! Estimates of the record count per slot while a log is read, so that each leaf is created once
//! at about its final size. Growing a leaf from one bucket costs as much as everything else.
//!
//! The estimate assumes that unread entries are as long as those already read, and that slots are
//! alike. A wrong estimate costs memory or growth.

use crate::sync::atomic::{AtomicU64, Ordering};
use types::limits::TABLES_MAX;
use types::{HashRange, TableId};

/// Estimate of the entries that a log contains.
#[derive(Debug, Default)]
pub(super) struct RecordEstimate {
    /// Expected bytes of entries; 0 if unknown.
    bytes: AtomicU64,
    /// Number of entries read so far, per table.
    seen_by_table: [AtomicU64; TABLES_MAX],
    seen_bytes: AtomicU64,
}

/// Entries of the range that one step has read, whether they were needed or not.
#[derive(Debug, Default)]
pub(super) struct EntryCounts {
    by_table: [u64; TABLES_MAX],
    bytes: u64,
}

/// Minimum number of entries read before the estimate is used.
const SEEN_MIN: u64 = 256;

/// Assumed share of log entries that are current objects after replay, in percent. The cleaner
/// runs at a higher share; a log that was never cleaned has a lower one.
const NEEDED_PERCENT: u64 = 75;

impl EntryCounts {
    /// Counts one entry.
    #[inline]
    pub(super) fn note(&mut self, table: TableId, bytes: usize) {
        self.by_table[usize::from(table.0)] += 1;
        self.bytes += bytes as u64;
    }
}

impl RecordEstimate {
    /// Sets the expected bytes of entries.
    pub(super) fn foresee(&self, bytes: u64) {
        self.bytes.store(bytes, Ordering::Relaxed);
    }

    /// Adds the entries that one step has read.
    pub(super) fn note_seen(&self, new: &EntryCounts) {
        let by_table = self.seen_by_table.iter().zip(new.by_table);
        for (all, new) in by_table.filter(|(_, new)| *new > 0) {
            all.fetch_add(new, Ordering::Relaxed);
        }
        self.seen_bytes.fetch_add(new.bytes, Ordering::Relaxed);
    }

    /// Returns the estimated number of records of a table per slot of the range, in a log of at
    /// most `log_bytes`. `None` if too little is known.
    #[inline(never)]
    pub(super) fn records_per_slot(
        &self,
        table: TableId,
        range: HashRange,
        log_bytes: u64,
    ) -> Option<u32> {
        let expected = self.bytes.load(Ordering::Relaxed);
        // The log cannot hold more.
        let bytes = u128::from(expected.min(log_bytes));
        let seen: u64 = self.seen_by_table.iter().map(|seen| seen.load(Ordering::Relaxed)).sum();
        if bytes == 0 || seen < SEEN_MIN || !range.is_whole_slots() {
            return None;
        }
        let of_table = &self.seen_by_table[usize::from(table.0)];
        let of_table = u128::from(of_table.load(Ordering::Relaxed));
        let seen_bytes = u128::from(self.seen_bytes.load(Ordering::Relaxed).max(1));
        let entries = bytes * of_table / seen_bytes;
        let (first, last) = range.slots();
        let slots = u128::from(last.0 - first.0) + 1;
        u32::try_from(entries * u128::from(NEEDED_PERCENT) / 100 / slots).ok()
    }
}
