//! The scan that reclaims expired records.

use crate::key_counts::KeyCounts;
use std::time::Duration;
use store::{Expiring, Worker};
use types::limits::DATABASES;
use types::{Instant, KeyHash, TableId};

/// The scan that reclaims expired records. All reactors share it and run it in steps.
#[derive(Debug, Default)]
pub(crate) struct ExpiryScan {
    pub(crate) table: u8,
    pub(crate) cursor: u64,
    pub(crate) next: Instant,
    /// Number of buckets left in this round.
    pub(crate) buckets_left: usize,
    /// Records with an expiry time that the scan has met in this table.
    pub(crate) met: Expiring,
    /// Number of buckets left to scan without a pause after the last expired record was found.
    pub(crate) eager_left: usize,
}

/// Pause between two rounds of the expiry scan, and the number of buckets per round. While every
/// round finds expired records there is no pause. 300,000 keys occupy some 55,000 buckets, and
/// their scan then takes half a second, at 20 us per millisecond.
const EXPIRY_PAUSE: Duration = Duration::from_millis(100);
const EXPIRY_BUCKETS: usize = 4_096;
const EXPIRY_QUANTUM_BUCKETS: usize = 128;

impl ExpiryScan {
    /// Runs one step of the scan that reclaims expired records, table by table. `rests` is set
    /// while the scan is disabled.
    pub(crate) fn step(
        &mut self,
        now: Instant,
        rests: bool,
        worker: &mut Worker,
        counts: &KeyCounts,
    ) {
        if now < self.next {
            return;
        }
        if rests {
            self.next = now + EXPIRY_PAUSE;
            return;
        }
        if self.buckets_left == 0 {
            self.buckets_left = EXPIRY_BUCKETS;
        }
        assert!(usize::from(self.table) < DATABASES, "the scan is in a table");
        assert!(self.buckets_left <= EXPIRY_BUCKETS, "a round is bounded");
        let table = TableId(self.table);
        let next = worker.expire(table, KeyHash(self.cursor), EXPIRY_QUANTUM_BUCKETS);
        let met = worker.take_expiring();
        self.met.add(met);
        self.eager_left = match met.expired {
            0 => self.eager_left.saturating_sub(EXPIRY_QUANTUM_BUCKETS),
            _ => EXPIRY_BUCKETS,
        };
        match next {
            Some(cursor) => {
                assert!(cursor.0 >= self.cursor, "the scan does not go back within a table");
                self.cursor = cursor.0;
                self.buckets_left = self.buckets_left.saturating_sub(EXPIRY_QUANTUM_BUCKETS);
            }
            None => {
                counts.note_expiring(table, std::mem::take(&mut self.met));
                self.cursor = 0;
                // The others have nothing to scan, and a step would wake this thread for each.
                self.table = next_database(table, worker).unwrap_or_default().0;
                self.buckets_left = if self.table == 0 { 0 } else { self.buckets_left };
            }
        }
        let rests = self.buckets_left == 0 && self.eager_left == 0;
        let pause = if rests { EXPIRY_PAUSE } else { Duration::from_millis(1) };
        self.next = now + pause;
    }
}

/// Returns the first database behind this one that has ever had records.
pub(crate) fn next_database(table: TableId, worker: &Worker) -> Option<TableId> {
    (table.0 + 1..DATABASES as u8).map(TableId).find(|&table| worker.uses(table))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use store::{Key, RangeClock, Store, StoreConfig, TableSet, Tablet, TabletMap, TabletState};
    use types::limits::SEGMENT_BYTES_MIN;
    use types::{
        HashRange, HashSeed, Incarnation, OwnershipEpoch, ReactorId, SLOT_COUNT, Slot, UnixMillis,
        key_hash_in_slot,
    };

    /// A store with so many tablets of equal size, and one record in each that has expired.
    fn store_with_tablets(count: u16, table: TableId) -> (Arc<Store>, Worker) {
        let store = Store::new(StoreConfig {
            memory_bytes: 16 * SEGMENT_BYTES_MIN,
            reactors: 1,
            seed: HashSeed::new(7),
            huge_pages: false,
            durable: false,
            segment_bytes: None,
        });
        let store = store.expect("the memory suffices");
        let slots = SLOT_COUNT / count;
        let tablet = |number| Tablet {
            range: HashRange::of_slots(Slot(number * slots), Slot(number * slots + slots - 1)),
            epoch: OwnershipEpoch(1),
            incarnations: std::array::from_fn(|table| Incarnation(table as u64 + 1)),
            state: TabletState::Serving,
            clock: RangeClock::OWN,
            flushing: TableSet::NONE,
        };
        store.publish(TabletMap::new((0..count).map(tablet).collect()));
        let mut worker = store.worker(ReactorId(0));
        worker.begin_turn(UnixMillis(1));
        for number in 0..count {
            let hash = key_hash_in_slot(store.seed(), Slot(number * slots), b"key");
            let key = Key { hash, bytes: b"key" };
            worker.put(table, key, b"value", Some(UnixMillis(2))).expect("there is room");
        }
        worker.begin_turn(UnixMillis(3));
        (store, worker)
    }

    #[test]
    fn the_scan_steps_through_tables_that_are_used_alone() {
        let last = TableId(DATABASES as u8 - 1);
        let ((store, mut worker), counts) = (store_with_tablets(1, last), KeyCounts::default());
        let mut scan = ExpiryScan::default();
        let mut tables = Vec::new();
        while store.expired() == 0 || scan.eager_left > 0 {
            tables.push(scan.table);
            scan.step(scan.next, false, &mut worker, &counts);
        }
        tables.dedup();
        assert_eq!(tables[..3], [0, last.0, 0]);
    }

    #[test]
    fn a_step_scans_many_small_tablets() {
        let count = 1_024;
        let (store, mut worker) = store_with_tablets(count, TableId(0));
        let (mut scan, counts) = (ExpiryScan::default(), KeyCounts::default());
        for _ in 0..64 {
            scan.step(scan.next, false, &mut worker, &counts);
        }
        assert_eq!(store.expired(), u64::from(count));
    }
}
