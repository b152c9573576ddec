//! The cost of overwriting when little memory is free: nanoseconds of the thread's processor time
//! per overwrite of a record of 30 + 100 bytes, cleaning included, at several shares of live bytes.
//!
//! The records are drawn uniformly, by Zipf's law (`zipf`), or nine of ten from a tenth of them
//! (`hot`). Like a server, the thread cleans for one quantum per turn while the log is low, and
//! until a write has room. A durable log (`durable`) is sent and synced at the end of each turn; the
//! disk is nowhere.
//!
//! `cargo run --release -p store --example clean_bench [MiB] [huge] [zipf | hot] [durable]
//! [shares=20,84,91] [segment=MiB]`
#![expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

mod common;

use common::{key_of, per_record, publish, time};
use std::sync::Arc;
use store::log::LogChange;
use store::{CleaningOccasion, Key, Stall, Store, TabletState, Worker};
use types::{ReactorId, TableId, UnixMillis, key_hash};

const TABLE: TableId = TableId(0);
const NOW: UnixMillis = UnixMillis(1_700_000_000_000);
/// Operations per turn.
const TURN: usize = 32;
/// Shares of the memory that live entries and index take, in percent.
const SHARES: [usize; 5] = [20, 50, 75, 84, 91];
/// Bytes of a record in the log.
const ENTRY_BYTES: usize = 160;
/// The same, and about those in the index.
const RECORD_BYTES: usize = ENTRY_BYTES + 12;
/// Exponent of Zipf's law.
const SKEW: f64 = 0.99;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let mebibytes: usize = arguments.iter().find_map(|word| word.parse().ok()).unwrap_or(512);
    let has = |option: &str| arguments.iter().any(|word| word == option);
    let value = |name| arguments.iter().find_map(|word| word.strip_prefix(name));
    let shares = value("shares=").map_or(SHARES.to_vec(), |list| {
        list.split(',').map(|share| share.parse().expect("a percentage")).collect()
    });
    let segment = value("segment=").map(|word| word.parse::<usize>().expect("a number of MiB"));
    let load = match (has("zipf"), has("hot")) {
        (true, _) => Load::Zipf,
        (false, true) => Load::Hot,
        (false, false) => Load::Uniform,
    };
    println!("{}", arguments.join(" "));
    println!("live %   ns each   of which cleaning   copied per written   rate / first rate");
    let mut first = None;
    for share in shares {
        let memory_bytes = mebibytes << 20;
        let segment_bytes = segment.map(|mebibytes| mebibytes << 20);
        let store = common::store(memory_bytes, has("huge"), has("durable"), segment_bytes);
        publish(&store, TabletState::Serving);
        let mut bench = Bench::new(&store, memory_bytes / 100 * share / RECORD_BYTES);
        bench.fill();
        // Reaches the steady state first: each segment has been cleaned several times.
        let operations = 2 * memory_bytes / RECORD_BYTES;
        bench.overwrite(operations, load);
        bench.cleaning = 0.0;
        let copied = store.log().usage().copied_bytes;
        let each = per_record(operations, || bench.overwrite(operations, load));
        let copied = (store.log().usage().copied_bytes - copied) as f64;
        let cleaning = bench.cleaning / operations as f64;
        let copied = copied / (operations * ENTRY_BYTES) as f64;
        let rate = 100.0 * *first.get_or_insert(each) / each;
        println!("{share:6} {each:9.0} {cleaning:19.0} {copied:20.2} {rate:17.0} %");
    }
}

/// The distribution of overwritten records.
#[derive(Clone, Copy)]
enum Load {
    Uniform,
    Zipf,
    /// Nine of ten overwrites are of a tenth of the records.
    Hot,
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
                self.save();
                self.worker.begin_turn(NOW);
            }
            self.put(number);
        }
    }

    fn overwrite(&mut self, operations: usize, load: Load) {
        for _ in 0..operations.div_ceil(TURN) {
            self.worker.begin_turn(NOW);
            for _ in 0..TURN {
                let number = self.draw(load);
                self.put(number);
            }
            self.save();
            self.clean();
        }
    }

    /// Draws a record. The place of a rank is scattered by a multiplication, so that neighbors in
    /// the log are not of neighboring ranks.
    fn draw(&mut self, load: Load) -> usize {
        let rank = match load {
            Load::Uniform => return self.random.usize(..self.records),
            Load::Hot if self.random.u8(..10) > 0 => self.random.usize(..self.records / 10),
            Load::Hot => self.random.usize(..self.records),
            Load::Zipf => {
                // Inverse of the integral of x^-SKEW, which approximates the distribution.
                let (count, power) = (self.records as f64, 1.0 - SKEW);
                let rank = self.random.f64() * (count.powf(power) - 1.0) + 1.0;
                rank.powf(1.0 / power) as usize
            }
        };
        rank.wrapping_mul(0x9e37_79b1) % self.records
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
            self.save();
            self.worker.begin_turn(NOW);
        }
    }

    fn clean(&mut self) {
        if self.store.log().is_low() {
            self.cleaning += time(|| {
                self.worker.clean(CleaningOccasion::LowMemory);
            });
        }
    }

    /// Sends and syncs all bytes of a durable log.
    fn save(&mut self) {
        let log = self.store.log();
        if !log.is_durable() {
            return;
        }
        self.worker.hand_out(|unsaved| {
            log.raise_synced(unsaved.segment, unsaved.from + unsaved.bytes.len() as u32);
            true
        });
        if log.has_changes() {
            for change in log.take_changes() {
                match change {
                    LogChange::Opened(_) | LogChange::Closed { .. } => {}
                    LogChange::Dead(segment) => log.release(segment),
                }
            }
        }
    }
}
