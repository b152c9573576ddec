//! The costs of a durable log and of its recovery: nanoseconds of the thread's processor time per
//! record of 30 + 100 bytes. The disk is memory.
//!
//! `cargo run --release -p store --example durable_bench [records] [huge] [recover]`
#![expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

mod common;

use common::{key_of, per_record, publish, time};
use std::collections::BTreeMap;
use std::hint::black_box;
use std::sync::Arc;
use store::{CleaningOccasion, Key, Need, Store, TabletState, Worker, log::LogChange};
use types::{KeyHash, ReactorId, SegmentId, TableId, UnixMillis, key_hash};

const TABLE: TableId = TableId(0);
const NOW: UnixMillis = UnixMillis(1_700_000_000_000);
/// Operations per turn.
const TURN: usize = 32;

/// Sent bytes by segment.
type Disk = BTreeMap<SegmentId, Vec<u8>>;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let records: usize = arguments.iter().find_map(|word| word.parse().ok()).unwrap_or(1_000_000);
    let huge_pages = arguments.iter().any(|word| word == "huge");
    println!("{records} records of 30 + 100 bytes, huge pages asked for: {huge_pages}");
    if !arguments.iter().any(|word| word == "recover") {
        println!("                      put, fresh   overwriting   read   delete");
        for durable in [false, true, false, true] {
            operate(records, huge_pages, durable);
        }
    }
    recover(records, huge_pages);
}

/// Measures the operations of a client. After each one, it takes the reply's dependency.
fn operate(records: usize, huge_pages: bool, durable: bool) {
    let store = store(records, huge_pages, durable);
    let mut worker = store.worker(ReactorId(0));
    store.log().prepare_segments(usize::MAX);
    let mut random = fastrand::Rng::with_seed(1);
    let shuffled: Vec<usize> = (0..records).map(|_| random.usize(..records)).collect();
    let all: Vec<usize> = (0..records).collect();
    let fresh = each(&mut worker, &all, put);
    let again = each(&mut worker, &shuffled[..records / 2], put);
    let read = each(&mut worker, &shuffled, |worker, key| {
        let first = worker.read_one(TABLE, key, |record| record.map(|r| r.value.bytes[0]));
        assert_eq!(black_box(first), Ok(Some(7)));
    });
    let delete = each(&mut worker, &all[..records / 4], delete);
    let name = if durable { "durable" } else { "not durable" };
    println!("{name:20} {fresh:8.0} ns {again:10.0} ns {read:6.0} {delete:8.0} ns");
}

fn put(worker: &mut Worker, key: Key<'_>) {
    worker.put(TABLE, key, &[7; 100], None).expect("there is room");
}

fn delete(worker: &mut Worker, key: Key<'_>) {
    let delete = worker.update_one(TABLE, key, Need::Records, |_, changes| changes.delete(0));
    delete.expect("there is room");
}

/// Returns the nanoseconds per operation, including sending, the other work of a turn, and
/// cleaning.
fn each(worker: &mut Worker, order: &[usize], operate: impl Fn(&mut Worker, Key<'_>)) -> f64 {
    let store = Arc::clone(worker.store());
    per_record(order.len(), || {
        for turn in order.chunks(TURN) {
            worker.begin_turn(NOW);
            for &number in turn {
                let key = &key_of(number);
                let key = Key { hash: key_hash(store.seed(), key), bytes: key };
                operate(worker, key);
                black_box(worker.take_dependency());
            }
            save(&store, worker, |_, _| {});
            worker.clean(CleaningOccasion::LowMemory);
        }
    })
}

/// Sends all bytes and syncs them immediately.
fn save(store: &Store, worker: &mut Worker, mut write: impl FnMut(SegmentId, &[u8])) {
    worker.hand_out(|unsaved| {
        write(unsaved.segment, unsaved.bytes);
        let length = unsaved.from + unsaved.bytes.len() as u32;
        store.log().raise_synced(unsaved.segment, length);
        true
    });
    if store.log().has_changes() {
        for change in store.log().take_changes() {
            match change {
                LogChange::Opened(_) | LogChange::Closed { .. } => {}
                LogChange::Dead(segment) => store.log().release(segment),
            }
        }
    }
}

/// Measures writing and recovering a log: records that were never overwritten, then with half of
/// them overwritten, then with a tenth deleted.
fn recover(records: usize, huge_pages: bool) {
    let mut disk = Disk::new();
    let store = store(records, huge_pages, true);
    let mut worker = store.worker(ReactorId(0));
    let mut random = fastrand::Rng::with_seed(1);
    let mut write = |numbers: Vec<usize>, operate: fn(&mut Worker, Key<'_>)| {
        for turn in numbers.chunks(TURN) {
            worker.begin_turn(NOW);
            for &number in turn {
                let key = &key_of(number);
                operate(&mut worker, Key { hash: key_hash(store.seed(), key), bytes: key });
            }
            save(&store, &mut worker, |segment, bytes| {
                disk.entry(segment).or_default().extend_from_slice(bytes);
            });
        }
        read_back(&disk, records, huge_pages);
    };
    write((0..records).collect(), put);
    write((0..records / 2).map(|_| random.usize(..records)).collect(), put);
    write((0..records / 10).map(|_| random.usize(..records)).collect(), delete);
}

fn read_back(disk: &Disk, records: usize, huge_pages: bool) {
    let store = store(records, huge_pages, true);
    let mut worker = store.worker(ReactorId(0));
    worker.begin_turn(NOW);
    let bytes: usize = disk.values().map(Vec::len).sum();
    let adopt = time(|| {
        for (segment, bytes) in disk {
            let fill = |out: &mut [u8]| {
                out[..bytes.len()].copy_from_slice(bytes);
                bytes.len()
            };
            store.log().adopt(*segment, fill).expect("there is room");
        }
    });
    let mut calls = 0;
    let entries = time(|| {
        for segment in disk.keys() {
            let mut from = Some(0);
            while let Some(offset) = from {
                worker.begin_turn(NOW);
                from = worker.recover(*segment, offset, 256).expect("a log");
                calls += 1;
            }
        }
    });
    let finish = time(|| {
        let mut cursor = Some(KeyHash(0));
        while let Some(from) = cursor {
            worker.begin_turn(NOW);
            cursor = worker.finish_recovery(from, 4096).expect("there is room");
        }
    });
    let count = (bytes / 160) as f64;
    println!(
        "read back: {:.0} MB, {} records; adopt {:.2} GB/s, {:.0} ns per 160 bytes to enter \
         ({:.2} M/s, {calls} calls), {:.0} ms to finish",
        bytes as f64 / 1e6,
        worker.table_records(TABLE),
        bytes as f64 / adopt,
        entries / count,
        count * 1e3 / entries,
        finish / 1e6,
    );
}

fn store(records: usize, huge_pages: bool, durable: bool) -> Arc<Store> {
    let store = common::store((records * 420).max(64 << 20), huge_pages, durable, None);
    publish(&store, TabletState::Serving);
    store
}
