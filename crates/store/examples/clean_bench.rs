//! The cost of overwriting when little memory is free: nanoseconds of the thread's processor time
//! per overwrite of a record of 30 + 100 bytes, cleaning included, at several shares of live bytes.
//!
//! The records are drawn uniformly, or by Zipf's law (`zipf`). Like a server, the thread cleans for
//! one quantum per turn while the log is low, and until a write has room.
//!
//! `cargo run --release -p store --example clean_bench [MiB] [huge] [zipf]`
#![expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

mod common;

use common::{key_of, per_record, publish, time};
use std::sync::Arc;
use store::{Key, Stall, Store, TabletState, Worker};
use types::{ReactorId, TableId, UnixMillis, key_hash};

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
        let store = common::store(memory_bytes, has("huge"), false);
        publish(&store, TabletState::Serving);
        let mut bench = Bench::new(&store, memory_bytes / 100 * share / RECORD_BYTES);
        bench.fill();
        // Reaches the steady state first: each segment has been cleaned several times.
        bench.overwrite(2 * memory_bytes / RECORD_BYTES, has("zipf"));
        bench.cleaning = 0.0;
        let operations = 2 * memory_bytes / RECORD_BYTES;
        let each = per_record(operations, || bench.overwrite(operations, has("zipf")));
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
                Ok(_) => return,
                Err(Stall::OutOfMemory) => self.clean(),
                Err(other) => panic!("a write is refused: {other:?}"),
            }
            self.worker.begin_turn(NOW);
        }
    }

    fn clean(&mut self) {
        if self.store.log().is_low() {
            self.cleaning += time(|| {
                self.worker.clean();
            });
        }
    }
}
