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

/// Minimum number of words removed per turn, if as many are due.
const PER_TURN: usize = 32;

/// Divisor of the queue length: a turn removes at least this part of the waiting words. A burst
/// of deletes is spread over turns, and the queue stays bounded.
const PART_PER_TURN: usize = 8;

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

    /// Removes the words of synced tombstones, in a bounded step.
    #[inline]
    pub(super) fn reclaim(&mut self, store: &Store, participant: &Participant) {
        if !self.0.is_empty() {
            self.reclaim_some(store, participant);
        }
    }

    #[inline(never)]
    fn reclaim_some(&mut self, store: &Store, participant: &Participant) {
        let turn = participant.turn();
        for _ in 0..PER_TURN.max(self.0.len() / PART_PER_TURN) {
            let Some(tombstone) = self.0.front() else { break };
            let is_safe = store.log.is_synced(&tombstone.written);
            if !is_safe && !planted::is(Bug::TombstoneRemovedEarly) {
                break;
            }
            let view = View::new(store, tombstone.table, &turn);
            if remove_word(&view, tombstone).is_err() {
                // Another thread holds the leaf: retry in the next turn.
                break;
            }
            self.0.pop_front();
        }
    }
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
