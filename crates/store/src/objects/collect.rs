//! Serving of pulls: copies a range of the index into a batch of whole log entries. See
//! `docs/design/migration.md`, "Pulls".
//!
//! The walk meets words in hash order, but their entries lie anywhere in memory. So each entry is
//! prefetched when its word is met, and copied some words later. The walk ends before an entry that
//! would exceed the limit. If nothing was copied by then, the next records are copied hash by hash.

use super::stall::Stall;
use super::store::Store;
use super::view::View;
use super::worker::Worker;
use crate::index::{Find, WalkBudget, Word, WordKind};
use crate::log::Turn;
use std::ops::ControlFlow;
use types::limits::TABLES_MAX;
use types::{HashRange, KeyHash, TableId, key_hash};
use wire::batch::{BatchWriter, RUN_HEADER_BYTES};
use wire::entry::HEADER_BYTES;
use wire::peer::PULL_OVERSHOOT_MAX;

/// Entries prefetched ahead of the one that is copied. Measured by `store_bench`.
const AHEAD: usize = 24;

/// Maximum prefetched bytes of an entry. The hardware prefetcher handles the rest of a long one.
const PREFETCHED_MAX: usize = 512;

/// Maximum number of buckets that a pull walks per table, however few bytes they contain: 20-50
/// µs in a sparse range.
const BUCKETS_MAX: usize = 4096;

impl Worker {
    /// Appends to `out` (as a `wire::batch`) every record of all tables with a hash from `cursor`
    /// up to, but not including, the returned hash. `None` means up to the end of the range. May
    /// append a few records from beyond. The range must be frozen or leaving, so that it does not
    /// change.
    ///
    /// Ends after about `bytes_max` bytes. The limit is twice that and [`PULL_OVERSHOOT_MAX`] per
    /// table, or the records of the first hash.
    pub fn collect(
        &mut self,
        range: HashRange,
        cursor: KeyHash,
        bytes_max: usize,
        out: &mut Vec<u8>,
    ) -> Option<KeyHash> {
        let turn = self.participant.turn();
        let rest = HashRange::try_from((cursor.max(range.first()), range.last())).ok()?;
        let pull =
            ServedPull { store: &self.store, turn: &turn, rest, bytes_max, start: out.len() };
        let next = pull.copy_buckets(out);
        if next.is_none_or(|next| next > rest.first()) {
            return next;
        }
        assert!(out.len() >= pull.start, "a pull has removed bytes of the buffer");
        out.truncate(pull.start);
        let next = pull.copy_hashes(out);
        assert!(next.is_none_or(|next| next > rest.first()), "a pull of {rest} stands still");
        next
    }

    /// Appends to `out` every record with this hash. Returns `Ok(false)` if there is none.
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

    /// Returns whether a record or a tombstone with this hash is present.
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

/// A pull that is being served.
struct ServedPull<'t> {
    store: &'t Store,
    turn: &'t Turn<'t>,
    /// Range from the cursor on.
    rest: HashRange,
    bytes_max: usize,
    /// Length of the buffer before the first record was copied.
    start: usize,
}

/// Record density of a table, measured in the first slot of a pull. Most tables have similar
/// records everywhere.
#[derive(Clone, Copy)]
struct Density {
    table: TableId,
    records: u64,
    bytes: u64,
}

impl ServedPull<'_> {
    /// Copies the records of whole buckets, or fewer. Returns where to resume. That is the cursor
    /// itself if the records of the first hash are too long to be copied with their neighbors.
    fn copy_buckets(&self, out: &mut Vec<u8>) -> Option<KeyHash> {
        let (tables, total) = self.tables_by_density();
        let (mut rest, mut next) = (self.rest, None);
        for (place, density) in tables.iter().flatten().enumerate() {
            let share = (self.bytes_max as u128 * u128::from(density.bytes) / total) as usize;
            // The first table decides the end of the pull. The others follow it up to there,
            // unless they have far more records than in the first slot.
            let share = if place == 0 { share } else { 2 * share };
            let full = out.len() + share;
            let limit = full + PULL_OVERSHOOT_MAX;
            let writer = BatchWriter::new(out);
            let copy = Copying { writer, start: self.start, full, limit, left: None };
            if let Some(stopped) = self.copy_records(*density, rest, copy) {
                // The following tables stop there. Records that earlier tables gave beyond it are
                // sent again.
                next = Some(stopped);
                if stopped <= rest.first() {
                    break;
                }
                rest = HashRange::new(rest.first(), KeyHash(stopped.0 - 1));
            }
        }
        next
    }

    /// Returns the tables with an index, densest first, and the bytes of all in the first slot,
    /// at least 1.
    fn tables_by_density(&self) -> ([Option<Density>; TABLES_MAX], u128) {
        let slot = self.rest.first().slot();
        let mut tables = [None; TABLES_MAX];
        let mut total = 0;
        for (place, (table, index)) in tables.iter_mut().zip(self.store.indexes()) {
            let count = index.count(slot, self.turn);
            // One extra byte, so that a single table gets the whole budget, also in an empty
            // slot.
            let density = Density { table, records: count.records, bytes: count.bytes + 1 };
            total += u128::from(density.bytes);
            *place = Some(density);
        }
        tables.sort_by_key(|density| std::cmp::Reverse(density.map(|density| density.bytes)));
        (tables, total.max(1))
    }

    /// Copies the records of one table. Returns where to resume.
    fn copy_records(
        &self,
        density: Density,
        range: HashRange,
        mut copy: Copying<'_>,
    ) -> Option<KeyHash> {
        let view = View::new(self.store, density.table, self.turn);
        let entry_bytes = density.mean_entry_bytes();
        let mut ahead = PrefetchQueue { words: [None; AHEAD], met: 0 };
        let budget = WalkBudget { entries: usize::MAX, buckets: BUCKETS_MAX };
        let next = view.index.walk(range, budget, view.turn, |hash, word| {
            if is_record(word) {
                view.log.prefetch(word.address(), entry_bytes);
                if let Some((due_hash, due)) = ahead.exchange(hash, word) {
                    copy.push(&view, due_hash, due);
                }
            }
            if copy.is_full() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        for (hash, word) in ahead.drain() {
            copy.push(&view, hash, word);
        }
        match (next, copy.left) {
            (Some(next), Some(left)) => Some(next.min(left)),
            (next, left) => next.or(left),
        }
    }

    /// Copies the records of the next hashes in hash order: as many hashes as fit, and at least
    /// one if there is any. Returns where to resume, which is behind the cursor.
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

/// Destination of one table's records, with its length limits.
struct Copying<'o> {
    writer: BatchWriter<'o>,
    /// Length before the first record of the pull.
    start: usize,
    /// Length at which the walk ends.
    full: usize,
    /// Length that only the first record of a pull may exceed.
    limit: usize,
    /// Lowest hash of a record that was not copied.
    left: Option<KeyHash>,
}

impl Copying<'_> {
    /// Copies a record, unless it or an earlier one is too long. Its hash is not below `hash`.
    #[inline]
    fn push(&mut self, view: &View<'_>, hash: KeyHash, word: Word) {
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

/// Words with entries that are being prefetched.
struct PrefetchQueue {
    words: [Option<(KeyHash, Word)>; AHEAD],
    met: usize,
}

impl PrefetchQueue {
    /// Inserts a word and returns the oldest one, once enough words are queued.
    #[inline]
    fn exchange(&mut self, hash: KeyHash, word: Word) -> Option<(KeyHash, Word)> {
        let place = self.met % AHEAD;
        self.met += 1;
        self.words[place].replace((hash, word))
    }

    /// Returns the remaining words in the order in which they were met.
    fn drain(&self) -> impl Iterator<Item = (KeyHash, Word)> {
        (self.met..self.met + AHEAD).filter_map(|at| self.words[at % AHEAD])
    }
}

/// Returns whether the word is a record. Tombstones are not sent: they belong to an earlier
/// arrival, and all of those have ended.
#[inline]
fn is_record(word: Word) -> bool {
    match word.kind() {
        WordKind::Object | WordKind::Expiring => true,
        WordKind::Tombstone => false,
    }
}
