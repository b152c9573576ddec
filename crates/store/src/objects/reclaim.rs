//! Reclamation of synced tombstones in bounded steps.
//!
//! A sync makes the tombstones of all deletes since the last one reclaimable at once. A turn
//! reclaims a few; background work reclaims the others, and gets more of the reactor's time the more
//! there are.

use super::worker::Worker;

/// Maximum number of tombstones that a quantum of background work reclaims: an estimated 25-50 µs.
const PER_QUANTUM: usize = 256;

/// Number of tombstones from which on every turn is followed by a quantum that reclaims some. The
/// queue has 10 MiB then.
const WAITING_MAX: usize = 1 << 18;

impl Worker {
    /// Returns the minimum share of a reactor's time for [`Worker::reclaim_tombstones`], in
    /// percent, which rises with the number of tombstones. `None`: none is synced.
    #[inline]
    pub fn reclamation_share(&self) -> Option<u8> {
        let share = || (self.tombstones.len() * 100 / WAITING_MAX).min(100) as u8;
        self.tombstones.is_due(&self.store).then(share)
    }

    /// Removes synced tombstones from the index. Returns `false` if there is none, or another
    /// thread holds its leaf.
    pub fn reclaim_tombstones(&mut self) -> bool {
        let removed = self.tombstones.reclaim(PER_QUANTUM, &self.store, &self.participant);
        assert!(removed <= PER_QUANTUM, "{removed} tombstones are reclaimed in a quantum");
        removed > 0
    }
}

#[cfg(test)]
#[cfg(not(feature = "shuttle"))]
mod tests {
    use super::super::worker::RECLAIMED_TOMBSTONES;
    use super::*;
    use crate::log::Among;
    use crate::objects::{
        Changes, Key, Need, RangeClock, Record, Store, StoreConfig, TableSet, Tablet, TabletMap,
        TabletState,
    };
    use std::sync::Arc;
    use types::{
        HashRange, HashSeed, Incarnation, OwnershipEpoch, ReactorId, TableId, UnixMillis, key_hash,
    };

    const NOW: UnixMillis = UnixMillis(1);
    const DELETES: usize = 100_000;

    /// A durable store in which so many keys were deleted, and nothing is synced.
    fn store_with_deletes() -> (Arc<Store>, Worker) {
        let store = Store::new(StoreConfig {
            memory_bytes: 96 << 20,
            reactors: 1,
            seed: HashSeed::new(42),
            huge_pages: false,
            durable: true,
            segment_bytes: None,
        });
        let store = store.expect("the memory suffices");
        store.publish(TabletMap::new(vec![Tablet {
            range: HashRange::ALL,
            epoch: OwnershipEpoch(1),
            incarnations: std::array::from_fn(|table| Incarnation(table as u64 + 1)),
            state: TabletState::Serving,
            clock: RangeClock::OWN,
            flushing: TableSet::NONE,
        }]));
        let mut worker = store.worker(ReactorId(0));
        for number in 0..DELETES {
            worker.begin_turn(NOW);
            let name = number.to_be_bytes();
            let key = Key { hash: key_hash(store.seed(), &name), bytes: &name };
            worker.put(TableId(0), key, b"", None).expect("there is room");
            let delete = |_: &[Option<Record<'_>>], changes: &mut Changes<'_>| changes.delete(0);
            worker.update(TableId(0), &[key], Need::Records, delete).expect("there is room");
        }
        (store, worker)
    }

    #[test]
    fn tombstones_that_are_synced_at_once_are_reclaimed_in_bounded_steps() {
        let (store, mut worker) = store_with_deletes();
        assert_eq!(worker.tombstones.len(), DELETES, "nothing is synced");
        assert!(worker.reclamation_share().is_none() && !worker.reclaim_tombstones());
        let all = store.log.unacknowledged(Among::Everything).expect("unsynced bytes");
        all.positions().for_each(|(segment, end)| store.log.raise_synced(segment, end));
        worker.begin_turn(NOW);
        assert_eq!(worker.tombstones.len(), DELETES - RECLAIMED_TOMBSTONES);
        assert_eq!(worker.reclamation_share(), Some(38));
        let mut quanta = 0;
        while worker.reclamation_share().is_some() {
            let before = worker.tombstones.len();
            assert!(worker.reclaim_tombstones(), "no other thread holds a leaf");
            assert!(before - worker.tombstones.len() <= PER_QUANTUM);
            quanta += 1;
        }
        assert_eq!(quanta, (DELETES - RECLAIMED_TOMBSTONES).div_ceil(PER_QUANTUM));
        assert_eq!(worker.tombstones.len(), 0);
        assert_eq!(worker.range_bytes(HashRange::ALL), 0, "the index is empty");
    }
}
