//! How much will be entered from a log, so that leaves are made once at about the size that they will
//! have: growing from one bucket costs as much as everything else. All of it is guessed: entries are as
//! long as those that were read, and slots are alike. A wrong guess costs memory, or growing.

use super::view::View;
use crate::sync::atomic::{AtomicU64, Ordering};
use types::limits::TABLES_MAX;
use types::{HashRange, Slot, TableId};

/// What is known of how much there will be.
#[derive(Debug, Default)]
pub(super) struct Expected {
    /// Bytes of entries that will come; 0: nobody knows.
    bytes: AtomicU64,
    /// Those that have come.
    seen_by_table: [AtomicU64; TABLES_MAX],
    seen_bytes: AtomicU64,
}

/// Entries of the range that were read, whether they were needed or not.
#[derive(Debug, Default)]
pub(super) struct Seen {
    by_table: [u64; TABLES_MAX],
    bytes: u64,
}

/// With fewer entries nothing is guessed from them.
const SEEN_MIN: u64 = 256;

/// Of the entries of a log that are objects which count when all has been read, in per cent: a
/// cleaner works at more, and who never needed one has less.
const NEEDED_PERCENT: u64 = 75;

impl Seen {
    /// One more.
    #[inline]
    pub(super) fn note(&mut self, table: TableId, bytes: usize) {
        self.by_table[usize::from(table.0)] += 1;
        self.bytes += bytes as u64;
    }
}

impl Expected {
    /// About so many bytes of entries will be entered.
    pub(super) fn foresee(&self, bytes: u64) {
        self.bytes.store(bytes, Ordering::Relaxed);
    }

    /// Entries have been read.
    pub(super) fn note_seen(&self, new: &Seen) {
        let by_table = self.seen_by_table.iter().zip(new.by_table);
        for (all, new) in by_table.filter(|(_, new)| *new > 0) {
            all.fetch_add(new, Ordering::Relaxed);
        }
        self.seen_bytes.fetch_add(new.bytes, Ordering::Relaxed);
    }

    /// Makes the leaf of a slot of the range, if there is none, at about the size that it will have.
    /// Without memory for it nothing happens: it grows as others do.
    #[inline]
    pub(super) fn make_leaf(&self, view: &View<'_>, slot: Slot, range: HashRange) {
        if !view.index.is_used(slot)
            && let Some(records) = self.records_per_slot(view, range)
        {
            let _ = view.index.reserve(slot, records, view.turn);
        }
    }

    /// Records that a slot of the view's table is going to have.
    #[inline(never)]
    fn records_per_slot(&self, view: &View<'_>, range: HashRange) -> Option<u32> {
        let expected = self.bytes.load(Ordering::Relaxed);
        // More has no room here anyway.
        let bytes = u128::from(expected.min(view.log.total_bytes()));
        let seen: u64 = self.seen_by_table.iter().map(|seen| seen.load(Ordering::Relaxed)).sum();
        if bytes == 0 || seen < SEEN_MIN || !range.is_whole_slots() {
            return None;
        }
        let of_table = &self.seen_by_table[usize::from(view.table.0)];
        let of_table = u128::from(of_table.load(Ordering::Relaxed));
        let seen_bytes = u128::from(self.seen_bytes.load(Ordering::Relaxed).max(1));
        let entries = bytes * of_table / seen_bytes;
        let (first, last) = range.slots();
        let slots = u128::from(last.0 - first.0) + 1;
        u32::try_from(entries * u128::from(NEEDED_PERCENT) / 100 / slots).ok()
    }
}
