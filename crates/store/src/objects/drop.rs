//! Deletion of records without tombstones: those that a source releases after a migration, and
//! those of a flushed table.
//!
//! No operation accesses such a range meanwhile; only the cleaner may relocate its entries. A
//! small slot is detached from the index as a whole: one step for the leaf, and then only the
//! lengths of the dead entries are read. In a large slot each record is removed on its own.

use super::leaves::HeldLeaf;
use super::record::Key;
use super::store::{Store, behind};
use super::tablets::TabletState;
use super::view::View;
use super::worker::Worker;
use crate::index::{Contended, WalkBudget, Word, WordKind};
use std::ops::ControlFlow;
use types::{HashRange, KeyHash, TableId, key_hash_in_slot};
use wire::entry::HEADER_BYTES;

impl Worker {
    /// Deletes every record of all tables in the range, from `cursor` on, in a bounded step.
    /// Returns where to resume; `None` at the end. The range must be leaving, and a grace period
    /// must have passed since that state was published.
    pub fn forget(
        &mut self,
        range: HashRange,
        cursor: KeyHash,
        buckets_max: usize,
    ) -> Option<KeyHash> {
        let mut rest = HashRange::new(cursor.max(range.first()), range.last());
        let mut next = None;
        let tables: Vec<TableId> = self.store.indexes().map(|(table, _)| table).collect();
        for table in tables {
            if let Some(stopped) = self.drop_records(table, rest, buckets_max) {
                // The other tables stop there as well, and the next step resumes there.
                next = Some(stopped);
                if stopped <= rest.first() {
                    return next;
                }
                rest = HashRange::new(rest.first(), KeyHash(stopped.0 - 1));
            }
        }
        next
    }

    /// Deletes the records of a table in the tablets that block its operations
    /// ([`super::Tablet::flushing`]), from `cursor` on, in a bounded step. A grace period must
    /// have passed since those tablets were published. Returns where to resume; `None` at the
    /// end.
    pub fn flush_step(
        &mut self,
        table: TableId,
        cursor: KeyHash,
        buckets_max: usize,
    ) -> Option<KeyHash> {
        let tablets = std::sync::Arc::clone(&self.tablets);
        let tablet = tablets.iter().find(|tablet| {
            let is_ours = match tablet.state {
                TabletState::Serving | TabletState::Arriving(_) | TabletState::Securing(_) => true,
                TabletState::Frozen | TabletState::Leaving | TabletState::Recovering(_) => false,
            };
            cursor <= tablet.range.last() && is_ours && tablet.flushing.contains(table)
        })?;
        let first = cursor.max(tablet.range.first());
        let rest = HashRange::new(first, tablet.range.last());
        let next = self.drop_records(table, rest, buckets_max);
        next.or_else(|| behind(tablet.range.last()))
    }

    /// Deletes the records of one table, in a bounded step. Returns where to resume. No other
    /// operation may run on the range.
    pub fn drop_records(
        &mut self,
        table: TableId,
        range: HashRange,
        buckets_max: usize,
    ) -> Option<KeyHash> {
        let turn = self.participant.turn();
        let view = View::new(&self.store, table, &turn);
        let left = buckets_max * EMPTY_SLOTS_PER_BUCKET;
        let mut step = DeletionStep { store: &self.store, view, words: &mut self.words, left };
        let mut cursor = range.first();
        while step.left > 0 {
            let last = range.last().min(cursor.slot().last_hash());
            if let Some(stopped) = step.drop_in_slot(HashRange::new(cursor, last)) {
                return Some(stopped);
            }
            cursor = behind(last).filter(|&next| next <= range.last())?;
        }
        Some(cursor)
    }
}

/// Number of empty slots that cost as much as one bucket.
const EMPTY_SLOTS_PER_BUCKET: usize = 8;

/// Maximum number of records in a slot that is detached as a whole: some tens of microseconds.
const WHOLE_MAX: u64 = 2048;

/// A step of deleting the records of one table.
struct DeletionStep<'s, 't> {
    store: &'s Store,
    view: View<'t>,
    words: &'s mut Vec<(KeyHash, Word)>,
    /// Remaining effort of the step, in empty slots.
    left: usize,
}

impl DeletionStep<'_, '_> {
    /// Deletes the records of a part of a slot. Returns where to resume, if that is still inside
    /// the slot.
    fn drop_in_slot(&mut self, range: HashRange) -> Option<KeyHash> {
        let view = self.view;
        self.words.clear();
        let is_small = view.index.records(range.first().slot(), view.turn) <= WHOLE_MAX;
        let next = if range.is_whole_slots() && is_small && !self.has_tombstones(range) {
            self.drop_whole(range)
        } else {
            self.drop_each(range)
        };
        let buckets = self.words.len().div_ceil(WORDS_PER_BUCKET);
        self.left = self.left.saturating_sub(1 + buckets * EMPTY_SLOTS_PER_BUCKET);
        next
    }

    /// Returns whether the range contains tombstones of a durable store. Each of them stays in
    /// the log as long as it is needed, which is decided while its leaf is locked. No new ones
    /// appear: there are no deletes in this range any more.
    fn has_tombstones(&mut self, range: HashRange) -> bool {
        if !self.view.log.is_durable() {
            return false;
        }
        let budget = WalkBudget { entries: usize::MAX, buckets: usize::MAX };
        let mut has_tombstones = false;
        self.view.index.walk(range, budget, self.view.turn, |_, word| {
            has_tombstones |= word.kind() == WordKind::Tombstone;
            ControlFlow::Continue(())
        });
        has_tombstones
    }

    /// Detaches the slot's leaves from the index, and marks their entries as dead.
    fn drop_whole(&mut self, range: HashRange) -> Option<KeyHash> {
        let View { index, log, turn, .. } = self.view;
        let slot = range.first().slot();
        let mut leaves = match index.detach_slot(slot, turn) {
            Ok(leaves) => leaves?,
            Err(Contended) => {
                // Only the cleaner can hold a leaf, and only for a short time.
                self.left = 0;
                return Some(range.first());
            }
        };
        let drained = leaves.drain(usize::MAX, turn, |word| {
            log.prefetch(word.address(), HEADER_BYTES);
            self.words.push((range.first(), word));
        });
        assert!(drained, "all that was taken out is counted");
        for &(_, word) in &*self.words {
            log.mark_dead(word.address(), log.encoded(word.address(), turn).len() as u32);
        }
        None
    }

    /// Removes the records one by one.
    fn drop_each(&mut self, range: HashRange) -> Option<KeyHash> {
        let view = self.view;
        let buckets = self.left.div_ceil(EMPTY_SLOTS_PER_BUCKET);
        let next = view.gather(range, buckets, self.words);
        let mut held = HeldLeaf::none();
        for &(lowest, word) in &*self.words {
            let key = view.entry(word).key;
            let hash = key_hash_in_slot(self.store.seed(), lowest.slot(), key);
            if !range.contains(hash) {
                continue;
            }
            let Ok(leaf) = held.lock(&view, hash) else { return Some(range.first()) };
            if let Some(old) = view.find_locked(leaf, Key { hash, bytes: key }).old() {
                leaf.remove(hash, old.word, old.bytes);
                view.retire(old);
            }
        }
        next
    }
}

/// Number of words in a typically filled bucket.
const WORDS_PER_BUCKET: usize = 6;
