//! The cost of overwriting when little memory is free: nanoseconds of the thread's processor time
//! per overwrite of a record of 30 + 100 bytes, cleaning included, at several shares of live bytes.
//!
//! The records are drawn uniformly, or by Zipf's law (`zipf`). Like a server, the thread cleans for
//! one quantum per turn while the log is low, and until a write has room.
//!
//! `cargo run --release -p store --example clean_bench [MiB] [huge] [zipf]`
#![expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

use rustix::time::{ClockId, clock_gettime};
use std::sync::Arc;
use store::{
    Key, RangeClock, Stall, Store, StoreConfig, TableSet, Tablet, TabletMap, TabletState, Worker,
};
use types::limits::TABLES_MAX;
use types::{
    HashRange, HashSeed, Incarnation, OwnershipEpoch, ReactorId, TableId, UnixMillis, key_hash,
};

const TABLE: TableId = TableId(0);
const NOW: UnixMillis = UnixMillis(1_700_000_000_000);
/// Operations per turn.
const TURN: usize = 32;
/// Shares of the memory that live entries and index take, in percent.
const SHARES: [usize; 5] = [20, 50, 75, 84, 91];
/// Bytes of a record in the log, and about those in the index.
const RECORD_BYTES: usize = 160 + 12;
/// Exponent of Zipf's law.
const SKEW: f64 = 0.99;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let mebibytes: usize = arguments.iter().find_map(|word| word.parse().ok()).unwrap_or(512);
    let has = |option: &str| arguments.iter().any(|word| word == option);
    println!("{mebibytes} MiB, huge pages asked for: {}, zipf: {}", has("huge"), has("zipf"));
    println!("live %   ns each   of which cleaning   rate / rate at the first share");
    let mut first = None;
    for share in SHARES {
        let memory_bytes = mebibytes << 20;
        let store = store(memory_bytes, has("huge"));
        let mut bench = Bench::new(&store, memory_bytes / 100 * share / RECORD_BYTES);
        bench.fill();
        // Reaches the steady state first: each segment has been cleaned several times.
        bench.overwrite(2 * memory_bytes / RECORD_BYTES, has("zipf"));
        bench.cleaning = 0.0;
        let operations = 2 * memory_bytes / RECORD_BYTES;
        let begun = processor_ns();
        bench.overwrite(operations, has("zipf"));
        let each = (processor_ns() - begun) / operations as f64;
        let cleaning = bench.cleaning / operations as f64;
        let rate = *first.get_or_insert(each) / each;
        println!("{share:6} {each:9.0} {cleaning:19.0} {:24.0} %", 100.0 * rate);
    }
}

struct Bench {
    store: Arc<Store>,
    worker: Worker,
    records: usize,
    random: fastrand::Rng,
    /// Processor time of cleaning in nanoseconds.
    cleaning: f64,
}

impl Bench {
    fn new(store: &Arc<Store>, records: usize) -> Bench {
        let random = fastrand::Rng::with_seed(1);
        let worker = store.worker(ReactorId(0));
        Bench { store: Arc::clone(store), worker, records, random, cleaning: 0.0 }
    }

    fn fill(&mut self) {
        for number in 0..self.records {
            if number % TURN == 0 {
                self.worker.begin_turn(NOW);
            }
            self.put(number);
        }
    }

    fn overwrite(&mut self, operations: usize, is_skewed: bool) {
        for _ in 0..operations.div_ceil(TURN) {
            self.worker.begin_turn(NOW);
            for _ in 0..TURN {
                let number = self.draw(is_skewed);
                self.put(number);
            }
            self.clean();
        }
    }

    /// Draws a record. By Zipf's law, the place of a rank is scattered by a multiplication, so that
    /// neighbors in the log are not of neighboring ranks.
    fn draw(&mut self, is_skewed: bool) -> usize {
        if !is_skewed {
            return self.random.usize(..self.records);
        }
        // Inverse of the integral of x^-SKEW, which approximates the distribution.
        let (count, power) = (self.records as f64, 1.0 - SKEW);
        let rank = (self.random.f64() * (count.powf(power) - 1.0) + 1.0).powf(1.0 / power);
        (rank as usize).wrapping_mul(0x9e37_79b1) % self.records
    }

    fn put(&mut self, number: usize) {
        let key = &key_of(number);
        let key = Key { hash: key_hash(self.store.seed(), key), bytes: key };
        loop {
            match self.worker.put(TABLE, key, &[8; 100], None) {
                Ok(()) => return,
                Err(Stall::OutOfMemory) => self.clean(),
                Err(other) => panic!("a write is refused: {other:?}"),
            }
            self.worker.begin_turn(NOW);
        }
    }

    fn clean(&mut self) {
        if self.store.log().is_low() {
            let begun = processor_ns();
            self.worker.clean();
            self.cleaning += processor_ns() - begun;
        }
    }
}

fn store(memory_bytes: usize, huge_pages: bool) -> Arc<Store> {
    let config = StoreConfig {
        memory_bytes,
        reactors: 1,
        seed: HashSeed::new(7),
        huge_pages,
        durable: false,
        segment_bytes: None,
    };
    let store = Store::new(config).expect("there is memory for the benchmark");
    store.publish(TabletMap::new(vec![Tablet {
        range: HashRange::ALL,
        epoch: OwnershipEpoch(1),
        incarnations: std::array::from_fn::<_, TABLES_MAX, _>(|table| {
            Incarnation(table as u64 + 1)
        }),
        state: TabletState::Serving,
        clock: RangeClock::OWN,
        flushing: TableSet::NONE,
    }]));
    store
}

/// Returns the key of a number. It is computed, because reading it from memory would cost as much
/// as the lookup.
fn key_of(number: usize) -> [u8; 30] {
    let mut key = *b"user:0123456789:abcdefghij:---";
    key[22..].copy_from_slice(&(number as u64).to_le_bytes());
    key
}

/// Returns the processor time of the thread in nanoseconds.
fn processor_ns() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}
