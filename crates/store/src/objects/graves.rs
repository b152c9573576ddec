//! Tombstones of a durable store that the index still points at.
//!
//! A delete leaves a tombstone in the log and points the key's word at it, so that whoever finds
//! nothing knows what that depends on, and whoever writes the key next names what it replaces. When
//! the tombstone is stable the word goes: it could not be told any more from a key that never was.
//! The tombstone itself stays in the log as long as it is needed (`log/pins.rs`).

use super::view::{Placed, View};
use super::{Stall, Worker};
use crate::index::{Kind, Word};
use crate::log::Written;
use planted::Bug;
use std::collections::VecDeque;
use types::{KeyHash, TableId, Version};
use wire::entry::Body;

/// Words taken out in one turn at least.
const PER_TURN: usize = 32;

/// Of those that wait, one in so many is taken out in a turn: a burst of deletes is not paid for in
/// one turn, and the queue does not grow for ever.
const PART_PER_TURN: usize = 8;

/// Tombstones whose words go when they are stable, in order of writing.
pub(super) type Graves = VecDeque<Grave>;

/// One of them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Grave {
    pub(super) table: TableId,
    pub(super) hash: KeyHash,
    pub(super) version: Version,
    pub(super) written: Written,
}

impl Worker {
    /// Takes words out whose tombstones are stable, in a bounded step.
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
            if !is_safe && !planted::is(Bug::GraveClosedEarly) {
                break;
            }
            let view = View::new(&self.store, grave.table, &turn);
            if close(&view, grave).is_err() {
                // The leaf is held: next time.
                break;
            }
            self.graves.pop_front();
        }
    }
}

/// Takes the tombstone's word out, wherever it points to by now, unless the key has been written.
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
    /// No word points at the entry any more: it is dead, or if it is a tombstone of a durable store
    /// it stays as long as it is needed. The leaf is locked.
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
