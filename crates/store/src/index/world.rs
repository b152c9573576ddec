//! Shared setup of the index tests: an index with a log of its own.

use super::*;
use crate::{
    address::Address,
    log::{Log, LogConfig, Participant},
};
use types::ReactorId;

pub(super) const EVERYTHING: WalkBudget = WalkBudget { entries: usize::MAX, buckets: usize::MAX };

pub(super) struct World {
    pub(super) index: Index,
    pub(super) log: Arc<Log>,
}

impl World {
    pub(super) fn new(memory_bytes: usize, reactors: u16) -> World {
        let config = LogConfig {
            memory_bytes,
            reactors,
            huge_pages: false,
            durable: false,
            segment_bytes: None,
        };
        let log = Log::new(&config).expect("the memory suffices");
        let slab = Slab::new(Arc::clone(&log));
        World { index: Index::new(slab), log }
    }

    pub(super) fn participant(&self, reactor: u16) -> Participant {
        let mut participant = self.log.reclamation().participant(ReactorId(reactor));
        participant.begin_turn();
        participant
    }
}

/// Returns the word of a record that stores `number` in its address.
pub(super) fn word_of(hash: KeyHash, number: u64) -> Word {
    Word::new(hash, Kind::Object, Address::from_units(number))
}
