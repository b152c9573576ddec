//! The costs of the index: nanoseconds per lookup, insertion and walked record, compared with
//! `hashbrown` and the standard library's sorted map, and bytes per record.
//!
//! `cargo run --release -p store --example index_bench [-- MILLIONS...]` prints the table of
//! times (1, 5 and 20 million records by default), `-- memory [MILLIONS]` the table of bytes.
//!
//! All structures map the same 64-bit hashes to the same numbers, without keys. Times are the
//! thread's processor time, so that other work on the machine has little influence. Every run
//! checks its results.
#![expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

use rustix::time::{ClockId, clock_gettime};
use std::{
    collections::BTreeMap, env, hash::BuildHasherDefault, hint::black_box, ops::ControlFlow,
};
use std::{hash::Hasher, sync::Arc};
use store::{
    Address,
    index::{Find, Index, Slab, WalkBudget, Word, WordKind},
    log::{Log, LogConfig, Participant},
};
use types::{HashRange, KeyHash, ReactorId, SLOT_COUNT, Slot};

fn main() {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let numbers = |from: usize| -> Vec<u64> {
        arguments[from..].iter().map(|n| n.parse().expect("a number of millions")).collect()
    };
    match arguments.first().map(String::as_str) {
        Some("memory") => print_memory(numbers(1).first().copied().unwrap_or(16)),
        Some(_) => print_times(&numbers(0)),
        None => print_times(&[1, 5, 20]),
    }
}

/// An index with an unused log and one reactor.
struct World {
    index: Index,
    slab: Arc<Slab>,
    log: Arc<Log>,
    participant: Participant,
}

impl World {
    fn new(records: u64, huge_pages: bool) -> World {
        let memory_bytes = (records as usize * 32).next_multiple_of(8 << 20).max(128 << 20);
        let log = Log::new(&LogConfig {
            memory_bytes,
            reactors: 1,
            huge_pages,
            durable: false,
            segment_bytes: None,
        })
        .expect("memory");
        let slab = Slab::new(Arc::clone(&log));
        let mut participant = log.reclamation().participant(ReactorId(0));
        participant.begin_turn();
        World { index: Index::new(Arc::clone(&slab)), slab, log, participant }
    }

    /// Creates an index with every slot's leaf at its final size.
    fn reserved(records: u64, huge_pages: bool) -> World {
        let world = World::new(records, huge_pages);
        let mut counts = vec![0u32; usize::from(SLOT_COUNT)];
        hashes(records).for_each(|(hash, _)| counts[usize::from(hash.slot().0)] += 1);
        world.reserve(&counts);
        world
    }

    /// Creates the leaf, or the directory of leaves, of each slot for this many records.
    fn reserve(&self, counts: &[u32]) {
        let turn = self.participant.turn();
        for (slot, count) in counts.iter().enumerate() {
            self.index.reserve(Slot(slot as u16), *count, &turn).expect("memory");
        }
    }

    fn insert(&mut self, hash: KeyHash, number: u64) {
        if number.is_multiple_of(16) {
            self.participant.begin_turn();
            self.log.reclamation().collect(64);
        }
        let turn = self.participant.turn();
        let mut guard = self.index.lock(hash, &turn).expect("no other thread locks");
        let word = Word::new(hash, WordKind::Object, Address::from_units(number));
        guard.insert(hash, word, 130).expect("memory");
    }

    /// Inserts as replay does: one guard as long as it covers the hashes.
    fn insert_ascending(&mut self, batch: &[(KeyHash, u64)]) {
        self.participant.begin_turn();
        self.log.reclamation().collect(64);
        let turn = self.participant.turn();
        let mut rest = batch;
        while let Some(&(first, _)) = rest.first() {
            let mut guard = self.index.lock(first, &turn).expect("no other thread locks");
            let covered = rest.iter().take_while(|(hash, _)| guard.covers(*hash)).count();
            for &(hash, number) in &rest[..covered] {
                let word = Word::new(hash, WordKind::Object, Address::from_units(number));
                guard.insert(hash, word, 130).expect("memory");
            }
            rest = &rest[covered..];
        }
    }

    fn find(&self, hash: KeyHash, number: u64) -> Option<u64> {
        let turn = self.participant.turn();
        let wanted = Address::from_units(number);
        match self.index.find(hash, &turn, |word| word.address() == wanted) {
            Find::Hit(word) => Some(word.address().units()),
            Find::Miss => None,
            Find::Contended => unreachable!("no other thread locks"),
        }
    }

    fn walk(&self) -> u64 {
        let turn = self.participant.turn();
        let budget = WalkBudget { entries: 500, buckets: 100 };
        let mut sum = 0;
        let mut rest = Some(HashRange::ALL);
        while let Some(range) = rest {
            let next = self.index.walk(range, budget, &turn, |_, word| {
                sum += word.address().units();
                ControlFlow::Continue(())
            });
            rest = next.map(|next| HashRange::new(next, range.last()));
        }
        sum
    }
}

/// Returns the `number`th hash by SplitMix64's finalizer, a permutation.
fn hash_of(number: u64) -> KeyHash {
    let mut z = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    KeyHash(z ^ (z >> 31))
}

fn hashes(records: u64) -> impl Iterator<Item = (KeyHash, u64)> {
    (1..=records).map(|number| (hash_of(number), number))
}

/// An identity hasher, because the hashes are already uniform.
#[derive(Default)]
struct NoHash(u64);

impl Hasher for NoHash {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, _: &[u8]) {
        unreachable!("only numbers are hashed")
    }
    fn write_u64(&mut self, number: u64) {
        self.0 = number;
    }
}

type Hashbrown = hashbrown::HashMap<u64, u64, BuildHasherDefault<NoHash>>;

/// Measurements of one structure at one size, by name.
type Times = Vec<(&'static str, f64)>;

/// Adds the nanoseconds of processor time per operation.
fn time(times: &mut Times, name: &'static str, operations: u64, work: impl FnOnce()) {
    let now = || {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
    };
    let before = now();
    work();
    times.push((name, (now() - before) as f64 / operations as f64));
}

const ASCENDING: &str = "insert, ascending";
const RESERVED: &str = "insert, ascending, reserved";
const RANDOM: &str = "insert, random";
const HIT: &str = "lookup, hit";
const CHAINED: &str = "lookup, each after the other";
const MISS: &str = "lookup, miss";
const WALK: &str = "walk";

fn print_times(millions: &[u64]) {
    println!("| millions | ns per operation | index | huge pages | hashbrown | BTreeMap |");
    println!("| --- | --- | --- | --- | --- | --- |");
    for &millions in millions {
        let records = millions * 1_000_000;
        let columns = [
            time_index(records, false),
            time_index(records, true),
            time_hashbrown(records),
            time_sorted_map(records),
        ];
        for name in [ASCENDING, RESERVED, RANDOM, HIT, CHAINED, MISS, WALK] {
            let cell = |times: &Times| {
                let found = times.iter().find(|(of, _)| *of == name);
                found.map_or("-".to_string(), |(_, nanoseconds)| format!("{nanoseconds:.1}"))
            };
            println!("| {millions} | {name} | {} |", columns.each_ref().map(cell).join(" | "));
        }
    }
}

/// Operations per measurement: enough for synced results, few enough for a short run.
const LOOKUPS: u64 = 2_000_000;

fn time_index(records: u64, huge_pages: bool) -> Times {
    let mut times = Times::new();
    let mut sorted: Vec<(KeyHash, u64)> = hashes(records).collect();
    sorted.sort_unstable();
    for (what, mut world) in [
        (ASCENDING, World::new(records, huge_pages)),
        (RESERVED, World::reserved(records, huge_pages)),
    ] {
        time(&mut times, what, records, || {
            sorted.chunks(400).for_each(|batch| world.insert_ascending(batch));
        });
        assert_eq!(world.walk(), records * (records + 1) / 2);
    }
    drop(sorted);

    let mut world = World::new(records, huge_pages);
    time(&mut times, RANDOM, records, || {
        hashes(records).for_each(|(hash, number)| world.insert(hash, number));
    });
    time(&mut times, HIT, LOOKUPS, || {
        for number in numbers(records) {
            assert!(world.find(hash_of(number), number).is_some());
        }
    });
    time(&mut times, CHAINED, LOOKUPS, || {
        let mut zero = 0;
        for number in numbers(records) {
            let found = world.find(hash_of(number + zero), number).expect("it is there");
            zero = black_box(found) - number;
        }
    });
    time(&mut times, MISS, LOOKUPS, || {
        for number in records + 1..=records + LOOKUPS {
            assert!(world.find(hash_of(number), number).is_none());
        }
    });
    time(&mut times, WALK, records, || {
        assert_eq!(world.walk(), records * (records + 1) / 2);
    });
    times
}

/// Returns record numbers in an order that no prefetcher predicts.
fn numbers(records: u64) -> impl Iterator<Item = u64> {
    (0..LOOKUPS).map(move |lookup| hash_of(lookup ^ 0x5555_0000_0000).0 % records + 1)
}

fn time_hashbrown(records: u64) -> Times {
    let mut times = Times::new();
    let mut map = Hashbrown::default();
    time(&mut times, RANDOM, records, || {
        map.extend(hashes(records).map(|(hash, number)| (hash.0, number)));
    });
    time(&mut times, HIT, LOOKUPS, || {
        for number in numbers(records) {
            assert_eq!(map.get(&hash_of(number).0), Some(&number));
        }
    });
    time(&mut times, MISS, LOOKUPS, || {
        for number in records + 1..=records + LOOKUPS {
            assert!(!map.contains_key(&hash_of(number).0));
        }
    });
    time(&mut times, WALK, records, || {
        assert_eq!(map.values().sum::<u64>(), records * (records + 1) / 2);
    });
    times
}

fn time_sorted_map(records: u64) -> Times {
    let mut times = Times::new();
    let mut sorted: Vec<(u64, u64)> = hashes(records).map(|(h, number)| (h.0, number)).collect();
    sorted.sort_unstable();
    let mut map = BTreeMap::new();
    time(&mut times, ASCENDING, records, || {
        sorted.iter().for_each(|&(hash, number)| {
            map.insert(hash, number);
        });
    });
    let mut map = BTreeMap::new();
    time(&mut times, RANDOM, records, || {
        hashes(records).for_each(|(hash, number)| {
            map.insert(hash.0, number);
        });
    });
    time(&mut times, HIT, LOOKUPS, || {
        for number in numbers(records) {
            assert_eq!(map.get(&hash_of(number).0), Some(&number));
        }
    });
    time(&mut times, WALK, records, || {
        assert_eq!(map.values().sum::<u64>(), records * (records + 1) / 2);
    });
    times
}

/// Prints the bytes per record of a growing index, and of one with leaves created at their final
/// size: of the leaves alone, and with the slab's free blocks.
fn print_memory(millions: u64) {
    println!(
        "| records | grown: leaves | with free blocks | reserved: leaves | with free blocks |"
    );
    println!("| --- | --- | --- | --- | --- |");
    let mut grown = World::new(millions * 1_000_000, true);
    let mut records = 0u64;
    for thousands in (0..).map(|step| [250, 375][step % 2] << (step / 2)) {
        let size = thousands * 1000;
        if size > millions * 1_000_000 {
            break;
        }
        hashes(size).skip(records as usize).for_each(|(hash, number)| grown.insert(hash, number));
        records = size;
        let mut reserved = World::reserved(size, true);
        hashes(size).for_each(|(hash, number)| reserved.insert(hash, number));
        let per_record =
            [&grown, &reserved].map(|world| [world.index.memory(), world.slab.bytes()]).map(
                |bytes| bytes.map(|bytes| format!("{:.2}", bytes as f64 / size as f64)).join(" | "),
            );
        println!("| {size} | {} |", per_record.join(" | "));
    }
}
