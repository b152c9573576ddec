//! Record and byte counts, from the totals that the index keeps in its leaves.

use super::tablets::{Tablet, TabletState};
use super::worker::Worker;
use crate::index::{Index, SlotCount};
use types::{HashRange, SLOT_COUNT, Slot, TableId};

/// Number of slots that cost as much to check as one leaf: their cells fill a cache line or two.
const SLOTS_PER_LEAF: usize = 16;

impl Worker {
    /// Returns the record counts per table and slot of a range, ascending, without empty slots. A
    /// slot that is only partly in the range counts whole.
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

    /// Returns the log bytes of the range's records. Slots count as in [`Worker::counts`].
    pub fn range_bytes(&self, range: HashRange) -> u64 {
        let turn = self.participant.turn();
        let indexes = self.store.indexes();
        indexes.flat_map(|(_, index)| slots_of(range).map(|slot| index.bytes(slot, &turn))).sum()
    }

    /// Returns the number of records of a table in tablets that this server owns. Approximate
    /// while records arrive or leave.
    pub fn table_records(&self, table: TableId) -> u64 {
        let Some(index) = self.store.index(table) else { return 0 };
        let turn = self.participant.turn();
        let ours = self.tablets.iter().filter(|tablet| is_ours(tablet));
        // The tablets ascend. Two of them may share a slot, which is counted once.
        let mut uncounted = 0;
        let slots = ours.flat_map(|tablet| {
            let (first, last) = tablet.range.slots();
            let from = std::mem::replace(&mut uncounted, last.0 + 1);
            (from.max(first.0)..=last.0).map(Slot)
        });
        slots.map(|slot| index.records(slot, &turn)).sum()
    }

    /// Counts the owned records slot by slot, from `from` on, and calls `visit` for each slot and
    /// table that has a leaf. The step is bounded to about `leaves_max` leaves. A slot that is
    /// only partly owned counts whole. Returns where to resume; `None` at the end.
    pub fn count_slots(
        &self,
        from: Slot,
        leaves_max: usize,
        mut visit: impl FnMut(Slot, TableId, SlotCount),
    ) -> Option<Slot> {
        let turn = self.participant.turn();
        let mut effort = 0;
        for slot in (from.0..SLOT_COUNT).map(Slot) {
            if effort >= leaves_max * SLOTS_PER_LEAF {
                return Some(slot);
            }
            effort += 1;
            if !self.tablets.of_slot(slot).any(is_ours) {
                continue;
            }
            for (table, index) in self.store.indexes() {
                let count = index.count(slot, &turn);
                effort += 1 + count.leaves * SLOTS_PER_LEAF;
                if count.leaves > 0 {
                    visit(slot, table, count);
                }
            }
        }
        None
    }

    /// Returns whether the slots of the range contain no record of any table.
    pub fn is_empty(&self, range: HashRange) -> bool {
        let turn = self.participant.turn();
        let is_empty = |index: &Index| slots_of(range).all(|slot| index.records(slot, &turn) == 0);
        self.store.indexes().all(|(_, index)| is_empty(index))
    }
}

/// Returns whether the tablet would have to be recovered if this server died.
fn is_ours(tablet: &Tablet) -> bool {
    match tablet.state {
        TabletState::Serving
        | TabletState::Frozen
        | TabletState::Arriving(_)
        | TabletState::Securing(_) => true,
        TabletState::Leaving | TabletState::Recovering(_) => false,
    }
}

/// Returns every slot that overlaps the range.
fn slots_of(range: HashRange) -> impl Iterator<Item = Slot> {
    let (first, last) = range.slots();
    (first.0..=last.0).map(Slot)
}
