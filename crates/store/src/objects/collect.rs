//! Serving pulls: a range of the index becomes a batch of whole log entries.
//!
//! The source's half of a migration's cost is here. Words are met in hash order while their entries
//! lie anywhere in memory, so each entry is asked for when its word is met, and copied some words
//! later.

use super::view::View;
use super::{Stall, Worker};
use crate::index::{Find, Kind, WalkBudget, Word};
use std::ops::ControlFlow;
use types::{HashRange, KeyHash, Slot, TableId, key_hash};
use wire::batch::BatchWriter;
use wire::entry::HEADER_BYTES;

/// Entries asked for ahead of the one that is copied. Measured by `store_bench`.
const AHEAD: usize = 24;

/// Of a long entry the processor itself sees that all of it is read.
const PREFETCHED_MAX: usize = 512;

/// A pull ends after so many buckets, however few bytes they gave: 20-50 µs in a sparse range.
const BUCKETS_MAX: usize = 4096;

impl Worker {
    /// Appends to `out` (as a `wire::batch`) every record of all tables with a hash from `cursor`
    /// up to, not including, the hash that is returned; `None`: up to the end of the range. Ends
    /// with the bucket in which `out` has grown by `bytes_max`. May append a few records from
    /// beyond. The range is frozen or leaving: nobody changes it.
    pub fn collect(
        &mut self,
        range: HashRange,
        cursor: KeyHash,
        bytes_max: usize,
        out: &mut Vec<u8>,
    ) -> Option<KeyHash> {
        let turn = self.participant.turn();
        let mut rest = HashRange::new(cursor.max(range.first()), range.last());
        let mut next = None;
        for (table, _) in self.store.indexes() {
            let view = View::new(&self.store, table, &turn);
            if let Some(stopped) = copy_records(&view, rest, bytes_max, out) {
                // The tables after it go no further. What those before it gave beyond is sent again.
                next = Some(stopped);
                rest = HashRange::new(rest.first(), KeyHash(stopped.0 - 1));
            }
        }
        next
    }

    /// Appends to `out` every record with this hash. `Ok(false)`: there is none.
    pub fn collect_hash(
        &mut self,
        table: TableId,
        hash: KeyHash,
        out: &mut Vec<u8>,
    ) -> Result<bool, Stall> {
        let turn = self.participant.turn();
        let view = View::new(&self.store, table, &turn);
        let mut words: Vec<Word> = Vec::new();
        let note = |word: Word| {
            if is_record(word) && !words.contains(&word) {
                words.push(word);
            }
            false
        };
        match view.index.find(hash, &turn, note) {
            Find::Miss => {}
            Find::Hit(_) | Find::Contended => return Err(Stall::Contended),
        }
        words.retain(|&word| key_hash(self.store.seed(), view.entry(word).key) == hash);
        let mut writer = BatchWriter::new(out);
        for word in &words {
            writer.push(table, hash.slot(), view.log.encoded(word.address(), &turn));
        }
        Ok(!words.is_empty())
    }

    /// Whether a record with this hash, or the tombstone of one, is here.
    pub fn knows(&mut self, table: TableId, hash: KeyHash) -> Result<bool, Stall> {
        let turn = self.participant.turn();
        let view = View::new(&self.store, table, &turn);
        let is_it = |word| key_hash(self.store.seed(), view.entry(word).key) == hash;
        match view.index.find(hash, &turn, is_it) {
            Find::Miss => Ok(false),
            Find::Hit(_) => Ok(true),
            Find::Contended => Err(Stall::Contended),
        }
    }
}

/// Copies the records of one table. Returns where to go on.
fn copy_records(
    view: &View<'_>,
    range: HashRange,
    bytes_max: usize,
    out: &mut Vec<u8>,
) -> Option<KeyHash> {
    let full = out.len() + bytes_max;
    let entry_bytes = mean_entry_bytes(view, range.first().slot());
    let mut writer = BatchWriter::new(out);
    let mut ahead = Ahead { words: [None; AHEAD], met: 0 };
    let budget = WalkBudget { entries: usize::MAX, buckets: BUCKETS_MAX };
    let next = view.index.walk(range, budget, view.turn, |hash, word| {
        if is_record(word) {
            view.log.prefetch(word.address(), entry_bytes);
            if let Some((slot, due)) = ahead.exchange(hash.slot(), word) {
                writer.push(view.table, slot, view.log.encoded(due.address(), view.turn));
            }
        }
        if writer.bytes() >= full { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    for (slot, due) in ahead.drain() {
        writer.push(view.table, slot, view.log.encoded(due.address(), view.turn));
    }
    next
}

/// What an entry is taken to be long. The slot's mean, since most tables are of like records.
fn mean_entry_bytes(view: &View<'_>, slot: Slot) -> usize {
    let records = view.index.records(slot, view.turn).max(1);
    let mean = view.index.bytes(slot, view.turn) / records;
    (mean as usize).clamp(HEADER_BYTES, PREFETCHED_MAX)
}

/// Words whose entries are on their way into the cache.
struct Ahead {
    words: [Option<(Slot, Word)>; AHEAD],
    met: usize,
}

impl Ahead {
    /// Takes the word that was met longest ago, once there are enough, and leaves this one.
    #[inline]
    fn exchange(&mut self, slot: Slot, word: Word) -> Option<(Slot, Word)> {
        let place = self.met % AHEAD;
        self.met += 1;
        self.words[place].replace((slot, word))
    }

    /// The words that are left, in the order in which they were met.
    fn drain(&self) -> impl Iterator<Item = (Slot, Word)> {
        (self.met..self.met + AHEAD).filter_map(|at| self.words[at % AHEAD])
    }
}

/// Tombstones stay: they say something about an earlier arrival, and all of those have ended.
#[inline]
fn is_record(word: Word) -> bool {
    match word.kind() {
        Kind::Object | Kind::Expiring => true,
        Kind::Tombstone => false,
    }
}
