//! Tombstones of a durable store that the index still points at, until their index words are
//! reclaimed.
//!
//! A delete appends a tombstone and points the key's word at it. So a reader that finds no record
//! knows the durability dependency of its answer, and the next writer of the key names the entry
//! that it replaces. When the tombstone is synced its word is removed: a missing word then means
//! the same. The tombstone itself stays in the log as long as it is needed (`log/pins.rs`).

use super::stall::Stall;
use super::store::Store;
use super::view::{Placed, View};
use crate::index::{Word, WordKind};
use crate::log::{EntryEnd, Participant};
use planted::Bug;
use std::collections::VecDeque;
use types::{KeyHash, TableId, Version};

/// Queue of tombstones with words that are removed once synced, in the order of writing.
#[derive(Debug, Default)]
pub(super) struct TombstoneQueue(VecDeque<IndexedTombstone>);

/// A tombstone with an index word that is to be removed.
#[derive(Clone, Copy, Debug)]
pub(super) struct IndexedTombstone {
    pub(super) table: TableId,
    pub(super) hash: KeyHash,
    pub(super) version: Version,
    pub(super) written: EntryEnd,
}

impl TombstoneQueue {
    /// Schedules the removal of a tombstone's word.
    pub(super) fn push(&mut self, tombstone: IndexedTombstone) {
        self.0.push_back(tombstone);
    }

    /// Returns the number of tombstones, synced or not.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether the oldest word can be removed.
    #[inline]
    pub(super) fn is_due(&self, store: &Store) -> bool {
        self.0.front().is_some_and(|oldest| is_removable(store, oldest))
    }

    /// Removes at most `max` words of synced tombstones. Returns the number of removed words.
    #[inline]
    pub(super) fn reclaim(
        &mut self,
        max: usize,
        store: &Store,
        participant: &Participant,
    ) -> usize {
        if self.0.is_empty() { 0 } else { self.reclaim_some(max, store, participant) }
    }

    #[inline(never)]
    fn reclaim_some(&mut self, max: usize, store: &Store, participant: &Participant) -> usize {
        let turn = participant.turn();
        for removed in 0..max {
            let Some(tombstone) = self.0.front().filter(|it| is_removable(store, it)) else {
                return removed;
            };
            let view = View::new(store, tombstone.table, &turn);
            if remove_word(&view, tombstone).is_err() {
                // Another thread holds the leaf: retry in the next turn.
                return removed;
            }
            self.0.pop_front();
        }
        max
    }
}

/// Returns whether the tombstone's word can be removed.
fn is_removable(store: &Store, tombstone: &IndexedTombstone) -> bool {
    store.log.is_synced(&tombstone.written) || planted::is(Bug::TombstoneRemovedEarly)
}

/// Removes the tombstone's word, even if the cleaner has moved the tombstone. Does nothing if the
/// key was written again.
fn remove_word(view: &View<'_>, tombstone: &IndexedTombstone) -> Result<(), Stall> {
    let &IndexedTombstone { hash, version, .. } = tombstone;
    let mut leaf = view.lock(hash)?;
    let is_it =
        |word: Word| word.kind() == WordKind::Tombstone && view.entry(word).version == version;
    if let Some(word) = leaf.find(hash, is_it) {
        let placed = Placed::new(word, &view.entry(word));
        leaf.remove(hash, word, placed.bytes);
        view.retire(placed);
    }
    Ok(())
}
