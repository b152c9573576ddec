//! Several reactors as threads: no reader sees half of a change and no acknowledged write is
//! lost, while the index grows, the cleaner relocates, records expire, and a range arrives or is
//! recovered.

mod common;

use common::{NOW, TABLE, number, tablet};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use store::{
    Arrival, ArrivalPlan, Changes, CleaningOccasion, Key, Need, Record, Recovery, RecoveryPlan,
    Stall, Store, TabletMap, TabletState, Worker,
};
use types::{
    HashRange, Incarnation, KeyHash, MigrationId, ReactorId, ServerId, TypedValue, UnixMillis,
    Version,
};
use wire::entry::{Body, Dead, Entry};
use wire::peer::RecordCounts;

const THREADS: u16 = 4;
/// Number of account pairs, each pair in one slot. Money moves within a pair.
const PAIRS: u64 = 64;
const MONEY: u64 = 1000;

fn account(pair: u64, side: u64) -> Vec<u8> {
    format!("{{pair {pair}}}{side}").into_bytes()
}

/// Retries while another thread holds a leaf; `otherwise` handles all other stalls.
fn persist<T>(
    worker: &mut Worker,
    mut operation: impl FnMut(&mut Worker) -> Result<T, Stall>,
    mut otherwise: impl FnMut(&mut Worker, Stall),
) -> T {
    loop {
        worker.begin_turn(NOW);
        match operation(worker) {
            Ok(done) => return done,
            Err(Stall::Contended) => std::thread::yield_now(),
            Err(stall) => otherwise(worker, stall),
        }
    }
}

fn refuse(_: &mut Worker, stall: Stall) {
    panic!("{stall:?}")
}

fn add_one(records: &[Option<Record<'_>>], changes: &mut Changes<'_>) {
    let before = records[0].map_or(0, |record| number(record.value.bytes));
    changes.put(0, (before + 1).to_string().as_bytes(), None);
}

/// Moves money within a pair.
fn transfer(records: &[Option<Record<'_>>], changes: &mut Changes<'_>, amount: u64) {
    let [Some(from), Some(to)] = records else { panic!("both accounts exist throughout") };
    let [from, to] = [from, to].map(|record| number(record.value.bytes));
    let amount = amount.min(from);
    changes.put(0, (from - amount).to_string().as_bytes(), None);
    changes.put(1, (to + amount).to_string().as_bytes(), None);
}

/// Runs one thread on a store that serves everything.
fn work(store: &Arc<Store>, reactor: u16, cleaned: &AtomicUsize) {
    let mut worker = store.worker(ReactorId(reactor));
    let mut random = fastrand::Rng::with_seed(u64::from(reactor));
    for round in 0..15_000u64 {
        let pair = random.u64(..PAIRS);
        let names = [account(pair, round % 2), account(pair, (round + 1) % 2)];
        let keys: Vec<Key<'_>> = names.iter().map(|name| common::key(store, name)).collect();
        match random.u32(..10) {
            0..3 => {
                let amount = random.u64(..100);
                let change = |worker: &mut Worker| {
                    worker.update(TABLE, &keys, Need::Records, |r, c| transfer(r, c, amount))
                };
                persist(&mut worker, change, refuse);
            }
            3..6 => {
                let sum = |records: &[Option<Record<'_>>]| -> u64 {
                    records.iter().map(|r| r.map_or(0, |record| number(record.value.bytes))).sum()
                };
                let read = |worker: &mut Worker| worker.read(TABLE, &keys, sum);
                assert_eq!(persist(&mut worker, read, refuse), 2 * MONEY, "half of a transfer");
            }
            // Garbage, so that leaves grow and segments are cleaned.
            6..9 => {
                let name = format!("{reactor} {}", random.u32(..1000));
                let key = common::key(store, name.as_bytes());
                let value = vec![reactor as u8; random.usize(..20_000)];
                let expiry = random.bool().then_some(NOW);
                let put = |worker: &mut Worker| worker.put(TABLE, key, &value, expiry);
                persist(&mut worker, put, |worker, stall| {
                    assert_eq!(stall, Stall::OutOfMemory);
                    worker.clean(CleaningOccasion::LowMemory);
                });
            }
            _ => {
                worker.begin_turn(NOW);
                worker.expire(TABLE, KeyHash(random.u64(..)), 64);
                cleaned.fetch_add(
                    usize::from(worker.clean(CleaningOccasion::LowMemory)),
                    Ordering::Relaxed,
                );
            }
        }
    }
    // Ends the thread's turn, so that no grace period waits for it.
    worker.sleep();
}

#[test]
fn threads_see_whole_changes_while_leaves_grow_and_the_cleaner_relocates() {
    let store = common::store(160 << 20, THREADS + 1);
    store.publish(TabletMap::new(vec![tablet(HashRange::ALL, TabletState::Serving)]));
    let mut first = store.worker(ReactorId(THREADS));
    first.begin_turn(NOW);
    for pair in 0..PAIRS {
        for side in 0..2 {
            let name = account(pair, side);
            let key = common::key(&store, &name);
            first.put(TABLE, key, MONEY.to_string().as_bytes(), None).unwrap();
        }
    }
    first.sleep();
    let cleaned = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for reactor in 0..THREADS {
            let (store, cleaned) = (&store, &cleaned);
            scope.spawn(move || work(store, reactor, cleaned));
        }
    });
    assert!(cleaned.into_inner() > 50, "the cleaner had nothing to do");
    first.begin_turn(NOW);
    let live = store.usage().log.live_bytes;
    assert_eq!(live, first.range_bytes(HashRange::ALL), "log and index agree about live bytes");
}

/// Batches, each with the progress after it.
type Pulls = VecDeque<(Vec<u8>, Option<KeyHash>)>;

/// A range that arrives: state shared by the threads.
struct Arriving {
    store: Arc<Store>,
    source: Mutex<Worker>,
    arrival: Arc<Arrival>,
    /// Outstanding pulls of each partition.
    pulls: Vec<Mutex<Pulls>>,
    increments: AtomicUsize,
    has_arrived: AtomicBool,
}

const COUNTERS: u64 = 200;

fn counter(number: u64) -> Vec<u8> {
    format!("counter {number}").into_bytes()
}

impl Arriving {
    /// Creates a source with counters at zero and many other records, and an empty target.
    fn new() -> Arriving {
        let origin = common::store(64 << 20, 1);
        origin.publish(TabletMap::new(vec![tablet(HashRange::ALL, TabletState::Serving)]));
        let mut source = origin.worker(ReactorId(0));
        source.begin_turn(NOW);
        for name in (0..COUNTERS).map(counter) {
            source.put(TABLE, common::key(&origin, &name), b"0", None).unwrap();
        }
        for other in 0..30_000u32 {
            let key = common::key(&origin, &other.to_le_bytes()).hash;
            let key = Key { hash: key, bytes: &other.to_le_bytes() };
            source.put(TABLE, key, &[1; 50], Some(UnixMillis(NOW.0 + 1))).unwrap();
        }
        origin.publish(TabletMap::new(vec![tablet(HashRange::ALL, TabletState::Leaving)]));
        source.begin_turn(NOW);
        let partitions = HashRange::ALL.divide(8);
        let pulls = partitions.iter().map(|&range| Mutex::new(pulls_of(&mut source, range)));
        let pulls = pulls.collect();
        let arrival = Arc::new(Arrival::new(ArrivalPlan {
            migration: MigrationId(1),
            source: ServerId(1),
            range: HashRange::ALL,
            partitions,
            expected: RecordCounts::of(&source.counts(HashRange::ALL)),
            reservation: None,
        }));
        let store = common::store(128 << 20, THREADS + 1);
        store.raise_version(origin.version());
        let state = TabletState::Arriving(Arc::clone(&arrival));
        store.publish(TabletMap::new(vec![tablet(HashRange::ALL, state)]));
        Arriving {
            store,
            source: Mutex::new(source),
            arrival,
            pulls,
            increments: AtomicUsize::new(0),
            has_arrived: AtomicBool::new(false),
        }
    }

    /// Replays the next pull of a partition, and advances its progress.
    fn pull(&self, worker: &mut Worker, partition: usize) {
        let mut pulls = self.pulls[partition].lock().unwrap();
        let Some((batch, progress)) = pulls.pop_front() else { return };
        self.replay(worker, &batch);
        self.arrival.advance(partition as u16, progress);
    }

    fn replay(&self, worker: &mut Worker, batch: &[u8]) {
        let mut from = Some(0);
        while let Some(offset) = from {
            worker.begin_turn(NOW);
            from = worker.replay(&self.arrival, batch, offset, 16).unwrap().next;
        }
    }

    fn priority_pull(&self, worker: &mut Worker, stall: Stall) {
        let Stall::Missing(missing) = stall else { panic!("{stall:?}") };
        for hash in missing.hashes {
            let mut batch = Vec::new();
            let found = self.source.lock().unwrap().collect_hash(TABLE, hash, &mut batch).unwrap();
            assert!(found, "every counter is at the source");
            self.replay(worker, &batch);
        }
    }

    /// Runs one thread.
    fn work(&self, reactor: u16) {
        let mut worker = self.store.worker(ReactorId(reactor));
        let mut random = fastrand::Rng::with_seed(u64::from(reactor));
        while !self.has_arrived.load(Ordering::Relaxed) {
            let name = counter(random.u64(..COUNTERS));
            let key = common::key(&self.store, &name);
            let add = |worker: &mut Worker| worker.update(TABLE, &[key], Need::Records, add_one);
            persist(&mut worker, add, |worker, stall| self.priority_pull(worker, stall));
            self.increments.fetch_add(1, Ordering::Relaxed);
            let partition = random.usize(..self.pulls.len());
            self.pull(&mut worker, partition);
            let is_done = self.pulls.iter().all(|pulls| pulls.lock().unwrap().is_empty());
            self.has_arrived.fetch_or(is_done, Ordering::Relaxed);
        }
        worker.splice(self.arrival.migration());
        worker.sleep();
    }
}

/// Returns all pulls of a partition.
fn pulls_of(source: &mut Worker, range: HashRange) -> Pulls {
    let mut pulls = VecDeque::new();
    let mut cursor = Some(range.first());
    while let Some(from) = cursor {
        let mut batch = Vec::new();
        cursor = source.collect(range, from, 2000, &mut batch);
        pulls.push_back((batch, cursor));
    }
    pulls
}

#[test]
fn no_increment_is_lost_while_threads_replay_what_arrives() {
    for _ in 0..3 {
        let arriving = Arriving::new();
        std::thread::scope(|scope| {
            for reactor in 0..THREADS {
                let arriving = &arriving;
                scope.spawn(move || arriving.work(reactor));
            }
        });
        let Arriving { store, increments, .. } = arriving;
        let mut worker = store.worker(ReactorId(THREADS));
        worker.begin_turn(NOW);
        let mut sum = 0;
        for name in (0..COUNTERS).map(counter) {
            let key = common::key(&store, &name);
            sum += worker
                .read_one(TABLE, key, |record| {
                    record.map_or(0, |record| number(record.value.bytes))
                })
                .expect("everything has arrived");
        }
        assert_eq!(sum as usize, increments.into_inner(), "increments are lost");
        assert_eq!(worker.table_records(TABLE), COUNTERS + 30_000);
        let live = store.usage().log.live_bytes;
        assert_eq!(live, worker.range_bytes(HashRange::ALL), "log and index disagree");
    }
}

#[test]
fn a_log_that_several_threads_replay_at_once_is_as_if_one_had() {
    const KEYS: u64 = 3000;
    let old = Incarnation(70);
    // Three versions of each key; for every third key the last is a tombstone.
    let entries: Vec<Vec<u8>> = (0..3 * KEYS)
        .map(|number| {
            let (key, version) = (number % KEYS, Version(number + 1));
            let value = version.0.to_le_bytes();
            let body = match number / KEYS == 2 && key.is_multiple_of(3) {
                true => Body::Tombstone { dead: Dead::Nothing },
                false => {
                    Body::Object { expiry: None, replaces: None, value: TypedValue::string(&value) }
                }
            };
            let name = format!("{{{}}}{key}", key % 20);
            let entry = Entry { incarnation: old, version, key: name.as_bytes(), body };
            let mut bytes = vec![0; entry.encoded_bytes()];
            entry.encode(&mut bytes);
            bytes
        })
        .collect();
    let store = common::store(256 << 20, THREADS);
    let plan = RecoveryPlan { number: 1, range: HashRange::ALL, old_incarnations: vec![vec![old]] };
    let recovery = Arc::new(Recovery::new(plan));
    let recovering = TabletState::Recovering(Arc::clone(&recovery));
    store.publish(TabletMap::new(vec![tablet(HashRange::ALL, recovering)]));
    let barrier = std::sync::Barrier::new(usize::from(THREADS));
    std::thread::scope(|scope| {
        for reactor in 0..THREADS {
            let (store, recovery, entries, barrier) = (&store, &recovery, &entries, &barrier);
            scope.spawn(move || {
                let mut worker = store.worker(ReactorId(reactor));
                let mut mine = entries.clone();
                fastrand::Rng::with_seed(u64::from(reactor)).shuffle(&mut mine);
                let mine = mine.concat();
                let mut from = Some(0);
                while let Some(offset) = from {
                    worker.begin_turn(NOW);
                    from = worker.replay_log(recovery, &mine, offset, 50).unwrap().next;
                }
                worker.sleep();
                barrier.wait();
                worker.begin_turn(NOW);
                while worker.sweep_recovery(recovery, 10) {}
            });
        }
    });
    store.publish(TabletMap::new(vec![tablet(HashRange::ALL, TabletState::Serving)]));
    let mut worker = store.worker(ReactorId(0));
    worker.begin_turn(NOW);
    for key in 0..KEYS {
        let name = format!("{{{}}}{key}", key % 20);
        let key_of = common::key(&store, name.as_bytes());
        let seen = worker.read_one(TABLE, key_of, |record| record.map(|record| record.version));
        let last = Version(2 * KEYS + key + 1);
        assert_eq!(seen, Ok((!key.is_multiple_of(3)).then_some(last)), "{name}");
    }
    assert_eq!(worker.table_records(TABLE), KEYS - KEYS / 3, "tombstones are gone");
    assert_eq!(store.usage().log.live_bytes, worker.range_bytes(HashRange::ALL));
}
