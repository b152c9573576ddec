//! Tombstones of a durable store that the index still points at, until their index words are
//! reclaimed.
//!
//! A delete appends a tombstone and points the key's word at it. So a reader that finds no record
//! knows the durability dependency of its answer, and the next writer of the key names the entry
//! that it replaces. When the tombstone is synced its word is removed: a missing word then means
//! the same. The tombstone itself stays in the log as long as it is needed (`log/pins.rs`).

use super::view::{Placed, View};
use super::{Stall, Worker};
use crate::index::{Kind, Word};
use crate::log::Written;
use planted::Bug;
use std::collections::VecDeque;
use types::{KeyHash, TableId, Version};
use wire::entry::Body;

/// Minimum number of words removed per turn, if as many are due.
const PER_TURN: usize = 32;

/// Divisor of the queue length: a turn removes at least this part of the waiting words. A burst
/// of deletes is spread over turns, and the queue stays bounded.
const PART_PER_TURN: usize = 8;

/// Tombstones with words that are removed once synced, in the order of writing.
pub(super) type Graves = VecDeque<Grave>;

/// A tombstone with an index word that is to be removed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Grave {
    pub(super) table: TableId,
    pub(super) hash: KeyHash,
    pub(super) version: Version,
    pub(super) written: Written,
}

impl Worker {
    /// Removes the words of synced tombstones, in a bounded step.
    #[inline]
    pub(super) fn close_graves(&mut self) {
        if !self.graves.is_empty() {
            self.close_some_graves();
        }
    }

    #[inline(never)]
    fn close_some_graves(&mut self) {
        let turn = self.participant.turn();
        for _ in 0..PER_TURN.max(self.graves.len() / PART_PER_TURN) {
            let Some(grave) = self.graves.front() else { break };
            let is_safe = self.store.log.is_stable(&grave.written);
            if !is_safe && !planted::is(Bug::TombstoneRemovedEarly) {
                break;
            }
            let view = View::new(&self.store, grave.table, &turn);
            if close(&view, grave).is_err() {
                // Another thread holds the leaf: retry in the next turn.
                break;
            }
            self.graves.pop_front();
        }
    }
}

/// Removes the tombstone's word, even if the cleaner has moved the tombstone. Does nothing if the
/// key was written again.
fn close(view: &View<'_>, grave: &Grave) -> Result<(), Stall> {
    let mut leaf = view.lock(grave.hash)?;
    let is_it =
        |word: Word| word.kind() == Kind::Tombstone && view.entry(word).version == grave.version;
    if let Some(word) = leaf.find(grave.hash, is_it) {
        let tombstone = Placed::new(word, &view.entry(word));
        leaf.remove(grave.hash, word, tombstone.bytes);
        view.retire(tombstone);
    }
    Ok(())
}

impl View<'_> {
    /// Releases an entry that no word points at any more. The entry is marked as dead, but a
    /// tombstone of a durable store stays live as long as it is needed. The caller holds the
    /// leaf's lock.
    #[inline]
    pub(super) fn retire(&self, old: Placed) {
        if self.log.is_durable() && old.word.kind() == Kind::Tombstone {
            self.bury(old);
        } else {
            self.log.kill(old.word.address(), old.bytes);
        }
    }

    fn bury(&self, tombstone: Placed) {
        match self.entry(tombstone.word).body {
            Body::Tombstone { dead } => {
                self.log.bury(tombstone.word.address(), tombstone.bytes, dead);
            }
            Body::Object { .. } | Body::CopiesOf(_) => unreachable!("the word says tombstone"),
        }
    }
}
