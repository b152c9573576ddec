//! Prefetching of memory for operations that follow soon in the same turn.
//!
//! An operation on an uncached record waits two or three times for memory: for the index word,
//! for the entry, for the rest of the entry. Several such operations wait one after the other.
//! Prefetched together, they take the time of one.

use super::view::View;
use super::worker::Worker;
use types::{KeyHash, TableId};

/// Prefetched bytes of an entry: header, key, and the value of a small record.
const ENTRY_BYTES: usize = 192;

impl Worker {
    /// Prefetches index and entries for operations on these keys that follow in this turn.
    /// Changes nothing.
    pub fn foresee(&mut self, table: TableId, hashes: &[KeyHash]) {
        let turn = self.participant.turn();
        let view = View::new(&self.store, table, &turn);
        for hash in hashes {
            view.index.prefetch(*hash, &turn);
        }
        for hash in hashes {
            view.index.candidates(*hash, &turn, |word| {
                view.log.prefetch(word.address(), ENTRY_BYTES);
            });
        }
    }
}
