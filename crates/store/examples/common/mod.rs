//! Functions that the benchmarks of the store share: a store of one tablet, keys, processor time.

use rustix::time::{ClockId, clock_gettime};
use std::sync::Arc;
use store::{RangeClock, Store, StoreConfig, TableSet, Tablet, TabletMap, TabletState};
use types::limits::TABLES_MAX;
use types::{HashRange, HashSeed, Incarnation, OwnershipEpoch};

/// Creates a store for one reactor, without tablets.
pub(crate) fn store(
    memory_bytes: usize,
    huge_pages: bool,
    durable: bool,
    segment_bytes: Option<usize>,
) -> Arc<Store> {
    let seed = HashSeed::new(7);
    let config =
        StoreConfig { memory_bytes, reactors: 1, seed, huge_pages, durable, segment_bytes };
    Store::new(config).expect("there is memory for the benchmark")
}

/// Publishes one tablet of all hashes, in this state.
pub(crate) fn publish(store: &Store, state: TabletState) {
    store.publish(TabletMap::new(vec![Tablet {
        range: HashRange::ALL,
        epoch: OwnershipEpoch(1),
        incarnations: std::array::from_fn::<_, TABLES_MAX, _>(|table| {
            Incarnation(table as u64 + 1)
        }),
        state,
        clock: RangeClock::OWN,
        flushing: TableSet::NONE,
    }]));
}

/// Returns the key of a number. It is computed, because reading it from memory would cost as much
/// as the lookup.
pub(crate) fn key_of(number: usize) -> [u8; 30] {
    let mut key = *b"user:0123456789:abcdefghij:---";
    key[22..].copy_from_slice(&(number as u64).to_le_bytes());
    key
}

/// Returns the nanoseconds of the thread's processor time.
pub(crate) fn time(run: impl FnOnce()) -> f64 {
    let begun = clock_gettime(ClockId::ThreadCPUTime);
    run();
    let ended = clock_gettime(ClockId::ThreadCPUTime);
    let seconds = (ended.tv_sec - begun.tv_sec) as f64;
    seconds * 1e9 + (ended.tv_nsec - begun.tv_nsec) as f64
}

/// Returns the nanoseconds per record.
pub(crate) fn per_record(records: usize, run: impl FnOnce()) -> f64 {
    time(run) / records as f64
}
