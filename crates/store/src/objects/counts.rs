//! Record and byte counts, from the totals that the index keeps in its leaves.

use super::tablets::{Tablet, TabletState};
use super::worker::Worker;
use crate::index::{Index, SlotCount};
use types::limits::SEGMENT_BYTES_MIN;
use types::{HashRange, SLOT_COUNT, Slot, TableId};

/// Number of slots that cost as much to check as one leaf: their cells fill a cache line or two.
const SLOTS_PER_LEAF: usize = 16;

/// Index bytes of a record in a leaf that has room for further ones, on average.
const INDEX_BYTES_PER_RECORD: u64 = 16;

/// Index bytes of the smallest leaf.
const INDEX_BYTES_PER_LEAF: u64 = 64;

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

    /// Returns the memory that a server needs to receive the range's records, if it adds a tenth for
    /// what is written meanwhile: their entries and their words in the index. If the ends of segments
    /// that are too short for a further record need more than that tenth, they are included. Slots count
    /// as in [`Worker::counts`].
    pub fn bytes_to_receive(&self, range: HashRange) -> u64 {
        let turn = self.participant.turn();
        let indexes = self.store.indexes();
        let counts =
            indexes.flat_map(|(_, index)| slots_of(range).map(|slot| index.count(slot, &turn)));
        let all = counts.map(memory_of).fold(RangeMemory::default(), RangeMemory::and);
        all.to_receive()
    }

    /// Returns the number of records of a table in tablets that this server owns. Approximate
    /// while records arrive or leave.
    pub fn table_records(&self, table: TableId) -> u64 {
        let Some(index) = self.store.index(table) else { return 0 };
        let turn = self.participant.turn();
        self.owned_slots().map(|slot| index.records(slot, &turn)).sum()
    }

    /// Returns whether the table has records in tablets that this server owns. Looks at slots up to the
    /// first one with a record.
    pub fn has_records(&self, table: TableId) -> bool {
        let Some(index) = self.store.index(table) else { return false };
        let turn = self.participant.turn();
        self.owned_slots().any(|slot| index.records(slot, &turn) > 0)
    }

    /// Returns the slots of this server's tablets, ascending.
    fn owned_slots(&self) -> impl Iterator<Item = Slot> {
        let ours = self.tablets.iter().filter(|tablet| is_ours(tablet));
        // The tablets ascend. Two of them may share a slot, which is counted once.
        let mut uncounted = 0;
        ours.flat_map(move |tablet| {
            let (first, last) = tablet.range.slots();
            let from = std::mem::replace(&mut uncounted, last.0 + 1);
            (from.max(first.0)..=last.0).map(Slot)
        })
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

/// Memory of records at a server that receives them, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct RangeMemory {
    /// Entries and index.
    used: u64,
    /// The same, with the unused ends of segments.
    taken: u64,
}

impl RangeMemory {
    fn and(self, other: RangeMemory) -> RangeMemory {
        RangeMemory {
            used: self.used.saturating_add(other.used),
            taken: self.taken.saturating_add(other.taken),
        }
    }

    fn to_receive(self) -> u64 {
        // The ends are an upper bound already.
        self.used.max(self.taken - self.taken / 11)
    }
}

/// Returns the memory of these records.
///
/// A record that does not fit into the rest of a segment leaves that rest unused, which is much if the
/// records are large. The receiving server may have the smallest segments.
fn memory_of(count: SlotCount) -> RangeMemory {
    let SlotCount { records, bytes, leaves } = count;
    let index = records * INDEX_BYTES_PER_RECORD + leaves as u64 * INDEX_BYTES_PER_LEAF;
    let segment = SEGMENT_BYTES_MIN as u64;
    // The bytes include those of tombstones, which are not counted as records.
    let length = bytes.checked_div(records).unwrap_or(0).clamp(1, segment);
    let used = segment - segment % length;
    assert!(used > segment / 2, "a segment holds as many records of {length} bytes as fit");
    let entries = u128::from(bytes) * u128::from(segment) / u128::from(used);
    let entries = u64::try_from(entries).unwrap_or(u64::MAX);
    RangeMemory { used: index.saturating_add(bytes), taken: index.saturating_add(entries) }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_records_need_the_segments_that_they_leave_half_empty() {
        let of = |records, bytes| memory_of(SlotCount { records, bytes, leaves: 1 });
        let (segment, index) = (SEGMENT_BYTES_MIN as u64, |records: u64| 64 + 16 * records);
        let half = segment / 2 + 1;
        for (records, bytes, taken) in [
            (0, 0, 0),
            // Tombstones only.
            (0, 4000, 4000),
            (3, 3 * segment, 3 * segment),
            (7, 7 * half, 7 * segment),
            (6, 6 * (segment / 3), 2 * segment),
        ] {
            let (used, taken) = (bytes + index(records), taken + index(records));
            assert_eq!(of(records, bytes), RangeMemory { used, taken });
            let told = of(records, bytes).to_receive();
            assert!(told >= used && told + told.div_ceil(10) >= taken, "{told} of {taken}");
        }
        let small = of(1000, 160_000);
        assert_eq!((small.used, small.to_receive()), (160_000 + index(1000), small.used));
        assert_eq!(of(1, u64::MAX).to_receive(), u64::MAX, "whatever a damaged count may say");
    }
}
