//! Serving pulls: a range of the index becomes a batch of whole log entries.
//!
//! The source's half of a migration's cost is here. Words are met in hash order while their entries
//! lie anywhere in memory, so each entry is asked for when its word is met, and copied some words
//! later. All tables share the budget of a pull. The densest one goes first and decides how far it
//! comes, so that little of the others is copied in vain.
//!
//! Long records are another case: an entry that would lead too far ends the walk before it. If that
//! leaves nothing, the next records are copied one hash after the other instead.

use super::view::View;
use super::{Stall, Store, Worker};
use crate::index::{Find, Kind, WalkBudget, Word};
use crate::log::Turn;
use std::ops::ControlFlow;
use types::limits::TABLES_MAX;
use types::{HashRange, KeyHash, TableId, key_hash};
use wire::batch::{BatchWriter, RUN_HEADER_BYTES};
use wire::entry::HEADER_BYTES;
use wire::peer::PULL_OVERSHOOT_MAX;

/// Entries asked for ahead of the one that is copied. Measured by `store_bench`.
const AHEAD: usize = 24;

/// Of a long entry the processor itself sees that all of it is read.
const PREFETCHED_MAX: usize = 512;

/// A pull ends after so many buckets of a table, however few bytes they gave: 20-50 µs in a sparse
/// range.
const BUCKETS_MAX: usize = 4096;

impl Worker {
    /// Appends to `out` (as a `wire::batch`) every record of all tables with a hash from `cursor`
    /// up to, not including, the hash that is returned; `None`: up to the end of the range. May
    /// append a few records from beyond. The range is frozen or leaving: nobody changes it.
    ///
    /// Ends about where `out` has grown by `bytes_max`, at the latest by twice that and
    /// [`PULL_OVERSHOOT_MAX`] per table, or behind the records of the first hash.
    pub fn collect(
        &mut self,
        range: HashRange,
        cursor: KeyHash,
        bytes_max: usize,
        out: &mut Vec<u8>,
    ) -> Option<KeyHash> {
        let turn = self.participant.turn();
        let rest = HashRange::try_from((cursor.max(range.first()), range.last())).ok()?;
        let pull = Pull { store: &self.store, turn: &turn, rest, bytes_max, start: out.len() };
        let next = pull.copy_buckets(out);
        if next.is_none_or(|next| next > rest.first()) {
            return next;
        }
        out.truncate(pull.start);
        pull.copy_hashes(out)
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

/// One pull that is being served.
struct Pull<'t> {
    store: &'t Store,
    turn: &'t Turn<'t>,
    /// From the cursor on.
    rest: HashRange,
    bytes_max: usize,
    /// Length of the buffer before the first record was copied.
    start: usize,
}

/// A table as the first slot of a pull shows it: most tables are of like records everywhere.
#[derive(Clone, Copy)]
struct Density {
    table: TableId,
    records: u64,
    bytes: u64,
}

impl Pull<'_> {
    /// Copies the records of whole buckets, or fewer. Returns where to go on: at the cursor itself
    /// if the records of the first hash are too long to be copied with those around them.
    fn copy_buckets(&self, out: &mut Vec<u8>) -> Option<KeyHash> {
        let (tables, total) = self.tables_by_density();
        let (mut rest, mut next) = (self.rest, None);
        for (place, density) in tables.iter().flatten().enumerate() {
            let share = (self.bytes_max as u128 * u128::from(density.bytes) / total) as usize;
            // The first table decides how far the pull comes. The others follow it, unless they
            // have far more there than in the first slot.
            let share = if place == 0 { share } else { 2 * share };
            let full = out.len() + share;
            let limit = full + PULL_OVERSHOOT_MAX;
            let writer = BatchWriter::new(out);
            let copy = Copying { writer, start: self.start, full, limit, left: None };
            if let Some(stopped) = self.copy_records(*density, rest, copy) {
                // The tables after it go no further. What those before it gave beyond is sent again.
                next = Some(stopped);
                if stopped <= rest.first() {
                    break;
                }
                rest = HashRange::new(rest.first(), KeyHash(stopped.0 - 1));
            }
        }
        next
    }

    /// Tables with an index, and the bytes of all in the first slot, at least 1.
    fn tables_by_density(&self) -> ([Option<Density>; TABLES_MAX], u128) {
        let slot = self.rest.first().slot();
        let mut tables = [None; TABLES_MAX];
        let mut total = 0;
        for (place, (table, index)) in tables.iter_mut().zip(self.store.indexes()) {
            let count = index.count(slot, self.turn);
            // One byte more, so that a table alone has the whole budget, also in an empty slot.
            let density = Density { table, records: count.records, bytes: count.bytes + 1 };
            total += u128::from(density.bytes);
            *place = Some(density);
        }
        tables.sort_by_key(|density| std::cmp::Reverse(density.map(|density| density.bytes)));
        (tables, total.max(1))
    }

    /// Copies the records of one table. Returns where to go on.
    fn copy_records(
        &self,
        density: Density,
        range: HashRange,
        mut copy: Copying<'_>,
    ) -> Option<KeyHash> {
        let view = View::new(self.store, density.table, self.turn);
        let entry_bytes = density.mean_entry_bytes();
        let mut ahead = Ahead { words: [None; AHEAD], met: 0 };
        let budget = WalkBudget { entries: usize::MAX, buckets: BUCKETS_MAX };
        let next = view.index.walk(range, budget, view.turn, |hash, word| {
            if is_record(word) {
                view.log.prefetch(word.address(), entry_bytes);
                if let Some(due) = ahead.exchange(hash, word) {
                    copy.push(&view, due);
                }
            }
            if copy.is_full() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        for due in ahead.drain() {
            copy.push(&view, due);
        }
        match (next, copy.left) {
            (Some(next), Some(left)) => Some(next.min(left)),
            (next, left) => next.or(left),
        }
    }

    /// Copies the records of the next hashes, in order of hash: of as many as there is room for,
    /// and of one at least, if there is any. Returns where to go on, behind the cursor.
    fn copy_hashes(&self, out: &mut Vec<u8>) -> Option<KeyHash> {
        let (mut rest, mut next) = (self.rest, None);
        let mut met: Vec<(KeyHash, TableId, Word)> = Vec::new();
        for (table, _) in self.store.indexes() {
            let view = View::new(self.store, table, self.turn);
            let budget = WalkBudget { entries: 1, buckets: BUCKETS_MAX };
            let stopped = view.index.walk(rest, budget, view.turn, |_, word| {
                if is_record(word) {
                    let hash = key_hash(self.store.seed(), view.entry(word).key);
                    met.push((hash, table, word));
                }
                ControlFlow::Continue(())
            });
            if let Some(stopped) = stopped {
                next = Some(stopped);
                rest = HashRange::new(rest.first(), KeyHash(stopped.0 - 1));
            }
        }
        met.retain(|&(hash, ..)| rest.contains(hash));
        met.sort_by_key(|&(hash, table, _)| (hash, table));
        let limit = self.start + self.bytes_max + PULL_OVERSHOOT_MAX;
        let encoded = |word: Word| self.store.log.encoded(word.address(), self.turn);
        let bytes_of = |&(.., word): &(_, _, Word)| encoded(word).len() + RUN_HEADER_BYTES;
        let mut writer = BatchWriter::new(out);
        for run in met.chunk_by(|one, other| one.0 == other.0) {
            let bytes: usize = run.iter().map(bytes_of).sum();
            if writer.bytes() > self.start && writer.bytes() + bytes > limit {
                return Some(run[0].0);
            }
            for &(hash, table, word) in run {
                writer.push(table, hash.slot(), encoded(word));
            }
        }
        next
    }
}

impl Density {
    /// Returns the assumed length of an entry: the slot's mean.
    fn mean_entry_bytes(self) -> usize {
        let mean = self.bytes / self.records.max(1);
        (mean as usize).clamp(HEADER_BYTES, PREFETCHED_MAX)
    }
}

/// Where the records of a table are copied to, and up to which length.
struct Copying<'o> {
    writer: BatchWriter<'o>,
    /// Length before the first record of the pull.
    start: usize,
    /// Length at which the walk ends.
    full: usize,
    /// Length that only the first record of a pull may go beyond.
    limit: usize,
    /// Lowest hash of a record that was not copied.
    left: Option<KeyHash>,
}

impl Copying<'_> {
    /// Copies a record whose hash is not below this one, unless it or one before it is too long.
    #[inline]
    fn push(&mut self, view: &View<'_>, (hash, word): (KeyHash, Word)) {
        let entry = view.log.encoded(word.address(), view.turn);
        let length = self.writer.bytes() + RUN_HEADER_BYTES + entry.len();
        let fits = length <= self.limit || self.writer.bytes() == self.start;
        if fits && self.left.is_none() {
            self.writer.push(view.table, hash.slot(), entry);
        } else {
            self.left = Some(self.left.map_or(hash, |left| left.min(hash)));
        }
    }

    #[inline]
    fn is_full(&self) -> bool {
        self.writer.bytes() >= self.full || self.left.is_some()
    }
}

/// Words whose entries are on their way into the cache.
struct Ahead {
    words: [Option<(KeyHash, Word)>; AHEAD],
    met: usize,
}

impl Ahead {
    /// Takes the word that was met longest ago, once there are enough, and leaves this one.
    #[inline]
    fn exchange(&mut self, hash: KeyHash, word: Word) -> Option<(KeyHash, Word)> {
        let place = self.met % AHEAD;
        self.met += 1;
        self.words[place].replace((hash, word))
    }

    /// The words that are left, in the order in which they were met.
    fn drain(&self) -> impl Iterator<Item = (KeyHash, Word)> {
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
