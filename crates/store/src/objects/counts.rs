//! How much is here: from the totals that the index keeps in its leaves.

use super::Worker;
use super::tablets::TabletState;
use crate::index::Index;
use types::{HashRange, Slot, TableId};

impl Worker {
    /// Records per table and slot of a range, ascending, without those that have none. A slot that
    /// the range cuts counts whole.
    pub fn counts(&self, range: HashRange) -> Vec<(TableId, Slot, u32)> {
        let turn = self.participant.turn();
        let mut counts = Vec::new();
        for (table, index) in self.store.indexes() {
            for slot in slots_of(range) {
                let records = index.records(slot, &turn);
                if records > 0 {
                    counts.push((table, slot, u32::try_from(records).unwrap_or(u32::MAX)));
                }
            }
        }
        counts
    }

    /// Bytes of the log that the range's records take, counted as [`Worker::counts`] does.
    pub fn range_bytes(&self, range: HashRange) -> u64 {
        let turn = self.participant.turn();
        let indexes = self.store.indexes();
        indexes.flat_map(|(_, index)| slots_of(range).map(|slot| index.bytes(slot, &turn))).sum()
    }

    /// Records of a table in tablets that are ours. Approximate while records arrive or go.
    pub fn table_records(&self, table: TableId) -> u64 {
        let Some(index) = self.store.index(table) else { return 0 };
        let turn = self.participant.turn();
        let ours = self.tablets.iter().filter(|tablet| match tablet.state {
            TabletState::Serving
            | TabletState::Frozen
            | TabletState::Arriving(_)
            | TabletState::Securing(_) => true,
            TabletState::Leaving | TabletState::Recovering(_) => false,
        });
        ours.flat_map(|tablet| slots_of(tablet.range)).map(|slot| index.records(slot, &turn)).sum()
    }

    /// Records of a table in one slot.
    pub fn slot_records(&self, table: TableId, slot: Slot) -> u64 {
        let turn = self.participant.turn();
        self.store.index(table).map_or(0, |index| index.records(slot, &turn))
    }

    /// Whether no record, of whatever table, lies in the slots of the range.
    pub fn is_empty(&self, range: HashRange) -> bool {
        let turn = self.participant.turn();
        let is_empty = |index: &Index| slots_of(range).all(|slot| index.records(slot, &turn) == 0);
        self.store.indexes().all(|(_, index)| is_empty(index))
    }
}

/// Every slot that has a hash in the range.
fn slots_of(range: HashRange) -> impl Iterator<Item = Slot> {
    let (first, last) = range.slots();
    (first.0..=last.0).map(Slot)
}
