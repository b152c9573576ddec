//! Shared setup of the index tests: an index with a log of its own.

use super::*;
use crate::address::Address;
use crate::log::{Log, LogConfig, Participant};
use types::ReactorId;

pub(super) const EVERYTHING: WalkBudget = WalkBudget { entries: usize::MAX, buckets: usize::MAX };

pub(super) struct IndexFixture {
    pub(super) index: Index,
    pub(super) log: Arc<Log>,
}

impl IndexFixture {
    pub(super) fn new(memory_bytes: usize, reactors: u16) -> IndexFixture {
        let config = LogConfig {
            memory_bytes,
            reactors,
            huge_pages: false,
            durable: false,
            segment_bytes: None,
        };
        let log = Log::new(&config).expect("the memory suffices");
        let slab = Slab::new(Arc::clone(&log));
        IndexFixture { index: Index::new(slab), log }
    }

    pub(super) fn participant(&self, reactor: u16) -> Participant {
        let mut participant = self.log.reclamation().participant(ReactorId(reactor));
        participant.begin_turn();
        participant
    }
}

/// Returns the word of a record that stores `number` in its address.
pub(super) fn word_of(hash: KeyHash, number: u64) -> Word {
    Word::new(hash, WordKind::Object, Address::from_units(number))
}
