//! The costs of the store's operations, in nanoseconds each, on records of 30 + 100 bytes:
//! operations of a client, of a migration over source and target, and of a recovery from a dead
//! server's log.
//!
//! The times are the thread's processor time, so that other work on the machine has less
//! influence.
//!
//! `cargo run --release -p store --example store_bench [records] [huge]`
#![expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

mod common;

use common::{key_of, per_record, publish, time};
use std::hint::black_box;
use std::ops::ControlFlow;
use std::sync::Arc;
use store::index::{Index, Slab, WalkBudget, Word, WordKind};
use store::log::{Log, LogConfig, Participant, SideLog, SideLogKind};
use store::{
    Address, Arrival, ArrivalPlan, Key, Need, Recovery, RecoveryPlan, Store, TabletState, Worker,
};
use types::{
    HashRange, HashSeed, Incarnation, KeyHash, MigrationId, ReactorId, ServerId, TableId,
    TypedValue, UnixMillis, Version, key_hash, key_hash_in_slot,
};
use wire::batch::BatchReader;
use wire::entry::{Body, Entry};
use wire::peer::RecordCounts;

const TABLE: TableId = TableId(0);
const NOW: UnixMillis = UnixMillis(1_700_000_000_000);
/// Bytes of a pull.
const PULL_BYTES: usize = 64 << 10;
/// Operations per turn.
const TURN: usize = 32;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let records: usize = arguments.iter().find_map(|word| word.parse().ok()).unwrap_or(1_000_000);
    let records = records.next_multiple_of(TURN);
    let huge_pages = arguments.iter().any(|word| word == "huge");
    let source = store(records, huge_pages);
    let mut worker = source.worker(ReactorId(0));
    publish(&source, TabletState::Serving);
    source.log().prepare_segments(usize::MAX);
    let seed = source.seed().clone();
    println!("a load from memory    {:6.0} ns", load_from_memory());
    println!("{records} records of 30 + 100 bytes, huge pages asked for: {huge_pages}");

    let fresh = per_record(records, || put_all(&mut worker, &seed, records));
    println!("put, fresh            {fresh:6.0} ns");
    println!("memory per record     {:6.1} bytes of index", {
        source.usage().index_bytes as f64 / records as f64
    });
    let mut random = fastrand::Rng::with_seed(1);
    let shuffled: Vec<usize> = (0..records).map(|_| random.usize(..records)).collect();
    let read = per_record(records, || read_all(&mut worker, &seed, &shuffled));
    println!("read, random          {read:6.0} ns");
    let again = per_record(records / 2, || {
        overwrite(&mut worker, &seed, &shuffled[..records / 2]);
    });
    println!("put, overwriting      {again:6.0} ns");
    let update = per_record(records / 4, || {
        increment(&mut worker, &seed, &shuffled[..records / 4]);
    });
    println!("update, random        {update:6.0} ns");
    migrate(&source, &mut worker, records, huge_pages);
    drop((worker, source));
    [false, true].into_iter().for_each(|expects| recover(records, huge_pages, expects));
}

/// Moves everything to another store, without a network: pulls of eight partitions in rotation,
/// each replayed immediately. The parts of replay are also measured separately.
fn migrate(source: &Arc<Store>, worker: &mut Worker, records: usize, huge_pages: bool) {
    publish(source, TabletState::Leaving);
    worker.begin_turn(NOW);
    let walk = walk_alone(source.seed(), records, huge_pages);
    let target = store(records, huge_pages);
    let mut receiver = target.worker(ReactorId(0));
    let partitions = HashRange::ALL.divide(8);
    let arrival = Arc::new(Arrival::new(ArrivalPlan {
        migration: MigrationId(1),
        source: ServerId(1),
        range: HashRange::ALL,
        partitions: partitions.clone(),
        expected: RecordCounts::of(&worker.counts(HashRange::ALL)),
        reservation: None,
    }));
    publish(&target, TabletState::Arriving(Arc::clone(&arrival)));
    target.raise_version(source.version());
    target.log().prepare_segments(usize::MAX);
    let mut scratch = Scratch::new(huge_pages);
    let mut moved = Moved::default();
    let mut buffer = Vec::with_capacity(2 * PULL_BYTES);
    let mut rest: Vec<_> = partitions.iter().map(|&range| Some((range, range.first()))).collect();
    while rest.iter().any(Option::is_some) {
        for partition in &mut rest {
            let Some((range, cursor)) = *partition else { continue };
            buffer.clear();
            moved.collect += time(|| {
                worker.begin_turn(NOW);
                let next = worker.collect(range, cursor, PULL_BYTES, &mut buffer);
                *partition = next.map(|next| (range, next));
            });
            moved.check += time(|| assert!(BatchReader::new(&buffer).all(|entry| entry.is_ok())));
            moved.hash += time(|| hash_all(source.seed(), &buffer));
            moved.copy += time(|| scratch.copy_all(&buffer));
            scratch.forget();
            moved.replay += time(|| replay(&mut receiver, &arrival, &buffer));
        }
    }
    receiver.splice(MigrationId(1));
    assert_eq!(arrival.counters().records, records as u64, "every record has arrived");
    moved.print(walk, records);
    println!("forget                {:6.0} ns", per_record(records, || forget_all(worker)));
    assert!(worker.is_empty(HashRange::ALL), "nothing is left");
}

/// Nanoseconds of a whole migration, by step.
#[derive(Default)]
struct Moved {
    collect: f64,
    replay: f64,
    // Parts of replay, each including the iteration over the batch.
    check: f64,
    hash: f64,
    copy: f64,
}

impl Moved {
    fn print(&self, walk: f64, records: usize) {
        let show = |what: &str, nanoseconds: f64| println!("{what:<21} {nanoseconds:6.0} ns");
        let per_record = |nanoseconds: f64| nanoseconds / records as f64;
        let [collect, replay] = [self.collect, self.replay].map(per_record);
        let [check, hash, copy] = [self.check, self.hash, self.copy].map(per_record);
        show("collect", collect);
        show("- of it: walk", walk);
        show("- the rest: copy", collect - walk);
        show("replay", replay);
        show("- of it: check", check);
        show("- hash", hash - check);
        show("- copy", copy - check);
        show("- the rest: insert", replay - hash - copy + check);
        show("collect and replay", collect + replay);
    }
}

/// Walks an index of the same hashes, without reading entries.
fn walk_alone(seed: &HashSeed, records: usize, huge_pages: bool) -> f64 {
    let memory_bytes = (records * 32).max(64 << 20);
    let log = Log::new(&LogConfig {
        memory_bytes,
        reactors: 1,
        huge_pages,
        durable: false,
        segment_bytes: None,
    })
    .expect("memory");
    let index = Index::new(Slab::new(Arc::clone(&log)));
    let mut reactor = log.reclamation().participant(ReactorId(0));
    for number in 0..records {
        if number % TURN == 0 {
            reactor.begin_turn();
            log.reclamation().collect(TURN);
        }
        let turn = reactor.turn();
        let hash = key_hash(seed, &key_of(number));
        let word = Word::new(hash, WordKind::Object, Address::from_units(number as u64));
        index
            .lock(hash, &turn)
            .expect("no other thread locks")
            .insert(hash, word, 160)
            .expect("memory");
    }
    let turn = reactor.turn();
    let budget = WalkBudget { entries: PULL_BYTES / 160, buckets: usize::MAX };
    let mut met = 0;
    let walk = per_record(records, || {
        let mut rest = Some(HashRange::ALL);
        while let Some(range) = rest {
            let next = index.walk(range, budget, &turn, |_, word| {
                met += usize::from(word.kind() == WordKind::Object);
                ControlFlow::Continue(())
            });
            rest = next.map(|next| HashRange::new(next, range.last()));
        }
    });
    assert_eq!(met, records);
    walk
}

fn hash_all(seed: &HashSeed, batch: &[u8]) {
    for entry in BatchReader::new(batch).flatten() {
        black_box(key_hash_in_slot(seed, entry.slot, entry.entry.key));
    }
}

/// Destination of batches that are copied only for measurement.
struct Scratch {
    log: Arc<Log>,
    side_log: SideLog,
    reactor: Participant,
    copies: Vec<(Address, u32)>,
}

impl Scratch {
    fn new(huge_pages: bool) -> Scratch {
        let config = LogConfig {
            memory_bytes: 1 << 30,
            reactors: 1,
            huge_pages,
            durable: false,
            segment_bytes: None,
        };
        let log = Log::new(&config).expect("there is memory for the benchmark");
        log.prepare_segments(usize::MAX);
        let reactor = log.reclamation().participant(ReactorId(0));
        Scratch {
            side_log: log.side_log(SideLogKind::Arriving(None)),
            log,
            reactor,
            copies: Vec::with_capacity(1024),
        }
    }

    fn copy_all(&mut self, batch: &[u8]) {
        for entry in BatchReader::new(batch).flatten() {
            let copied = self.side_log.append_encoded(entry.encoded, Incarnation(1));
            self.copies.push((copied.expect("there is room"), entry.encoded.len() as u32));
        }
    }

    /// Frees the memory of full segments.
    fn forget(&mut self) {
        self.copies.drain(..).for_each(|(address, bytes)| self.log.mark_dead(address, bytes));
        if self.side_log.bytes() > 4 * self.log.segment_bytes() as u64 {
            self.side_log = self.log.side_log(SideLogKind::Arriving(None));
        }
        self.reactor.begin_turn();
        self.log.reclamation().collect(TURN);
    }
}

fn replay(worker: &mut Worker, arrival: &Arc<Arrival>, batch: &[u8]) {
    let mut from = Some(0);
    while let Some(offset) = from {
        worker.begin_turn(NOW);
        from = worker.replay(arrival, batch, offset, 256).expect("there is room").next;
    }
}

/// Replays the log of a server that wrote every record once, and then half of them again. The
/// segments come in descending order.
fn recover(records: usize, huge_pages: bool, expects: bool) {
    let store = store(records, huge_pages);
    store.log().prepare_segments(usize::MAX);
    let mut worker = store.worker(ReactorId(0));
    let plan = RecoveryPlan {
        number: 1,
        range: HashRange::ALL,
        old_incarnations: vec![vec![Incarnation(9)]],
    };
    let recovery = Arc::new(Recovery::new(plan));
    if expects {
        recovery.foresee((records * 160 * 3 / 2) as u64);
    }
    publish(&store, TabletState::Recovering(Arc::clone(&recovery)));
    worker.begin_turn(NOW);
    let mut random = fastrand::Rng::with_seed(5);
    let again: Vec<usize> = (0..records / 2).map(|_| random.usize(..records)).collect();
    let versions: Vec<(usize, u64)> = (0..records).chain(again).zip(1..).collect();
    let (mut first, mut second, mut sent) = (0.0, 0.0, Vec::with_capacity(PULL_BYTES));
    for (part, spent) in [(&versions[..records], &mut first), (&versions[records..], &mut second)] {
        for chunk in part.chunks(PULL_BYTES / 160).rev() {
            sent.clear();
            chunk.iter().for_each(|&(number, version)| append_record(&mut sent, number, version));
            *spent += time(|| replay_log(&mut worker, &recovery, &sent));
        }
    }
    println!("replay_log, {}", if expects { "told how much there is" } else { "not told" });
    println!("- fresh               {:6.0} ns", first / records as f64);
    println!("- newer               {:6.0} ns", second / (records / 2) as f64);
    let index_bytes = store.usage().index_bytes as f64;
    println!("- memory per record   {:6.1} bytes of index", index_bytes / records as f64);
}

/// Appends an encoded entry to a log.
fn append_record(log: &mut Vec<u8>, number: usize, version: u64) {
    let body = Body::Object { expiry: None, replaces: None, value: TypedValue::string(&[7; 100]) };
    let (incarnation, version, key) = (Incarnation(9), Version(version), &key_of(number)[..]);
    let entry = Entry { incarnation, version, key, body };
    let from = log.len();
    log.resize(from + entry.encoded_bytes(), 0);
    entry.encode(&mut log[from..]);
}

fn replay_log(worker: &mut Worker, recovery: &Arc<Recovery>, entries: &[u8]) {
    let mut from = Some(0);
    while let Some(offset) = from {
        worker.begin_turn(NOW);
        from = worker.replay_log(recovery, entries, offset, 256).expect("there is room").next;
    }
}

fn forget_all(worker: &mut Worker) {
    let mut cursor = Some(KeyHash(0));
    while let Some(from) = cursor {
        worker.begin_turn(NOW);
        cursor = worker.forget(HashRange::ALL, from, 256);
    }
}

/// Measures one uncached memory load: the yardstick for everything else.
fn load_from_memory() -> f64 {
    const LINES: usize = 1 << 22;
    let mut random = fastrand::Rng::with_seed(3);
    // One cycle through all lines (Sattolo), one element per line.
    let mut next: Vec<[u32; 16]> = (0..LINES).map(|line| [line as u32; 16]).collect();
    for line in (1..LINES).rev() {
        next.swap(line, random.usize(..line));
    }
    let loads = 1 << 20;
    per_record(loads, || {
        let mut at = 0;
        for _ in 0..loads {
            at = next[at][0] as usize;
        }
        black_box(at);
    })
}

fn put_all(worker: &mut Worker, seed: &HashSeed, records: usize) {
    for turn in 0..records / TURN {
        worker.begin_turn(NOW);
        for number in turn * TURN..(turn + 1) * TURN {
            let key = &key_of(number);
            let key = Key { hash: key_hash(seed, key), bytes: key };
            worker.put(TABLE, key, &[7; 100], None).expect("there is room");
        }
    }
}

fn read_all(worker: &mut Worker, seed: &HashSeed, order: &[usize]) {
    for turn in order.chunks(TURN) {
        worker.begin_turn(NOW);
        for &at in turn {
            let key = &key_of(at);
            let key = Key { hash: key_hash(seed, key), bytes: key };
            let first = worker.read_one(TABLE, key, |record| record.map(|r| r.value.bytes[0]));
            assert_eq!(black_box(first), Ok(Some(7)));
        }
    }
}

fn overwrite(worker: &mut Worker, seed: &HashSeed, order: &[usize]) {
    for turn in order.chunks(TURN) {
        worker.begin_turn(NOW);
        for &at in turn {
            let key = &key_of(at);
            let key = Key { hash: key_hash(seed, key), bytes: key };
            worker.put(TABLE, key, &[8; 100], None).expect("there is room");
        }
    }
}

fn increment(worker: &mut Worker, seed: &HashSeed, order: &[usize]) {
    for turn in order.chunks(TURN) {
        worker.begin_turn(NOW);
        for &at in turn {
            let key = &key_of(at);
            let key = Key { hash: key_hash(seed, key), bytes: key };
            let updated = worker.update(TABLE, &[key], Need::Records, |records, changes| {
                let record = records[0].expect("every key has a record");
                let mut value = [0; 100];
                value.copy_from_slice(record.value.bytes);
                value[0] = value[0].wrapping_add(1);
                changes.put(0, &value, None);
            });
            updated.expect("there is room");
        }
    }
}

fn store(records: usize, huge_pages: bool) -> Arc<Store> {
    common::store((records * 320).max(64 << 20), huge_pages, false, None)
}
