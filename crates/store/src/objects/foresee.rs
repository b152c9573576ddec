//! Memory that will be needed soon is asked for ahead, so that an operation does not wait for it.
//!
//! An operation on a record that no cache holds waits two or three times for memory: for the word
//! in the index, for the entry it leads to, for the rest of the entry. Several such operations wait
//! one after the other; asked for together, all of them come in the time of one.

use super::Worker;
use super::view::View;
use types::{KeyHash, TableId};

/// Bytes of an entry that are asked for: header, key, and the value of a small record.
const ENTRY_BYTES: usize = 192;

impl Worker {
    /// Operations on these keys will come soon, in this turn. A hint: changes nothing.
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
