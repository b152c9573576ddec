//! The costs of the log's operations, in nanoseconds of the thread's own processor time (other
//! work may run on the machine), compared with naive alternatives:
//! `cargo run --release -p store --example log_bench [huge]`. The results are in
//! `docs/design/log.md`.
#![expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

use rustix::time::{ClockId, clock_gettime};
use std::{hint::black_box, sync::Arc};
use store::{
    Address,
    log::{Backlog, Head, Log, LogConfig, Participant, Reclaim, SideLogKind, Survivors},
};
use types::{Incarnation, ReactorId, TypedValue, Version};
use wire::entry::{Body, Entry};

const KEY: &[u8; 30] = b"user:0123456789012345678901234";
const VALUE: [u8; 100] = [7; 100];
const RECORDS: usize = 5_000_000;

/// Returns the nanoseconds per call of `work`, called `count` times: the best of five rounds.
fn nanos(count: usize, mut work: impl FnMut(usize)) -> f64 {
    let round = |work: &mut dyn FnMut(usize)| {
        let start = now();
        (0..count).for_each(work);
        start.nanos() / count as f64
    };
    (0..5).map(|_| round(&mut work)).fold(f64::INFINITY, f64::min)
}

/// Returns the nanoseconds per call of `work`, called `count` times in one round.
fn nanos_once(count: usize, work: impl FnMut(usize)) -> f64 {
    let start = now();
    (0..count).for_each(work);
    start.nanos() / count as f64
}

/// A start time in the thread's processor time.
struct Started(f64);

fn now() -> Started {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Started(time.tv_sec as f64 * 1e9 + time.tv_nsec as f64)
}

impl Started {
    fn nanos(&self) -> f64 {
        now().0 - self.0
    }
}

fn show(what: &str, nanos: f64) {
    println!("{what:<58} {nanos:>8.1} ns");
}

fn record(version: u64) -> Entry<'static> {
    let body = Body::Object { expiry: None, replaces: None, value: TypedValue::string(&VALUE) };
    Entry { incarnation: Incarnation(1), version: Version(version), key: KEY, body }
}

fn log_of(memory_bytes: usize, huge_pages: bool) -> Arc<Log> {
    Log::new(&LogConfig {
        memory_bytes,
        reactors: 2,
        huge_pages,
        durable: false,
        segment_bytes: None,
    })
    .expect("there is memory")
}

fn naive() {
    let entry = record(1);
    let bytes = entry.encoded_bytes();
    let mut out = vec![0u8; bytes];
    let from = vec![1u8; bytes];
    show(
        "naive: memcpy of 160 bytes",
        nanos(1 << 20, |_| {
            black_box(&mut out).copy_from_slice(black_box(&from));
        }),
    );
    show(
        "naive: CRC of 144 bytes",
        nanos(1 << 20, |_| {
            black_box(wire::crc32c(black_box(&from[..144])));
        }),
    );
    show(
        "naive: encode into one hot buffer",
        nanos(1 << 20, |_| {
            black_box(&entry).encode(black_box(&mut out));
        }),
    );
    show(
        "naive: parse from one hot buffer",
        nanos(1 << 20, |_| {
            black_box(Entry::parse(black_box(&out)).is_ok());
        }),
    );
    let mut heap: Vec<Box<[u8]>> = Vec::with_capacity(RECORDS);
    show(
        "naive: a boxed record each (malloc)",
        nanos_once(RECORDS, |_| {
            heap.push(black_box(&out).clone().into_boxed_slice());
        }),
    );
}

fn append(head: &mut Head, addresses: &mut Vec<Address>) {
    for version in 0..RECORDS {
        addresses.push(head.append_one(black_box(&record(version as u64))).expect("there is room"));
    }
}

fn appending(huge_pages: bool) {
    let log = log_of(2 << 30, huge_pages);
    let mut reactor = log.reclamation().participant(ReactorId(0));
    reactor.begin_turn();
    let mut head = log.head();
    let mut addresses = Vec::with_capacity(RECORDS);
    let per_record = |start: Started| start.nanos() / RECORDS as f64;
    let start = now();
    append(&mut head, &mut addresses);
    show("append_one, 130 B record, pages not touched yet", per_record(start));
    let bytes = record(0).encoded_bytes() as u32;
    fastrand::Rng::with_seed(1).shuffle(&mut addresses);
    reading(&log, &reactor, &addresses);
    show("kill, random", nanos_once(RECORDS, |i| log.mark_dead(addresses[i], bytes)));
    drop(head);
    for _ in 0..3 {
        reactor.begin_turn();
        log.reclamation().collect(usize::MAX);
    }
    addresses.clear();
    let mut head = log.head();
    let start = now();
    append(&mut head, &mut addresses);
    show("append_one, 130 B record, pages touched", per_record(start));
}

fn reading(log: &Log, reactor: &Participant, addresses: &[Address]) {
    let turn = reactor.turn();
    show(
        "entry, 1,000 records in the cache",
        nanos(1 << 20, |i| {
            black_box(log.entry(addresses[i % 1000], &turn).version);
        }),
    );
    show(
        "entry, 5 M records at random",
        nanos_once(RECORDS, |i| {
            black_box(log.entry(addresses[i], &turn).version);
        }),
    );
    show(
        "entry, 5 M records at random, prefetched 8 ahead",
        nanos_once(RECORDS, |i| {
            log.prefetch(addresses[(i + 8) % RECORDS], 32);
            black_box(log.entry(addresses[i], &turn).version);
        }),
    );
    show(
        "segment_of, random",
        nanos_once(RECORDS, |i| {
            black_box(log.segment_of(addresses[i]));
        }),
    );
}

fn copying() {
    let log = log_of(2 << 30, false);
    let mut reactor = log.reclamation().participant(ReactorId(0));
    reactor.begin_turn();
    let entry = record(1);
    let mut encoded = vec![0; entry.encoded_bytes()];
    entry.encode(&mut encoded);
    let mut side = log.side_log(SideLogKind::Arriving(None));
    let mut survivors = log.survivors();
    log.prepare_segments(20);
    show(
        "SideLog::append_encoded, pages prepared",
        nanos_once(1_000_000, |_| {
            side.append_encoded(black_box(&encoded), Incarnation(2)).expect("there is room");
        }),
    );
    log.prepare_segments(20);
    show(
        "Survivors::append_encoded, pages prepared",
        nanos_once(1_000_000, |_| {
            survivors.append_encoded(black_box(&encoded)).expect("there is room");
        }),
    );
    let segments = 32;
    let start = now();
    let prepared = log.prepare_segments(segments);
    let bytes = prepared * log.segment_bytes();
    println!("prepare_segments: {:.1} GB/s", bytes as f64 / start.nanos());
    let mut chunks = Vec::new();
    show("take_chunk, fresh", nanos_once(64, |_| chunks.extend(log.take_chunk())));
    show("give_chunk", nanos_once(32, |_| log.give_chunk(chunks.pop().expect("taken"))));
    show("take_chunk, used before (zeroed)", nanos_once(32, |_| chunks.extend(log.take_chunk())));
    show(
        "usage, 256 segments",
        nanos(1000, |_| {
            black_box(log.usage());
        }),
    );
    side.splice(&mut Backlog::default());
    show(
        "choose a victim, 256 segments, none worth it",
        nanos(1000, |_| drop(black_box(log.claim_victim()))),
    );
    let large = log_of(8 << 30, false);
    show("choose a victim, 1,024 segments", nanos(1000, |_| drop(black_box(large.claim_victim()))));
}

fn kilobyte(key: &[u8]) -> Entry<'_> {
    let body = Body::Object { expiry: None, replaces: None, value: TypedValue::string(&[7; 1000]) };
    Entry { incarnation: Incarnation(1), version: Version(1), key, body }
}

/// Overwrites random records while `live_percent` of the arena is live: the worst case for a
/// cleaner.
fn cleaning(live_percent: usize) {
    let log = log_of(800 << 20, false);
    let mut reactor = log.reclamation().participant(ReactorId(0));
    let (mut head, mut survivors) = (log.head(), log.survivors());
    let bytes = kilobyte(&[0; 8]).encoded_bytes();
    let keys = (800 << 20) / 100 * live_percent / bytes;
    let mut places: Vec<Option<Address>> = vec![None; keys];
    let mut rng = fastrand::Rng::with_seed(1);
    let (mut copied, mut refused, overwrites) = (0, 0, 2 * keys);
    let start = now();
    for i in 0..keys + overwrites {
        reactor.begin_turn();
        log.reclamation().collect(8);
        if log.is_low() && i % 64 == 0 {
            copied += clean(&log, &reactor, &mut survivors, &mut places);
        }
        let key = if i < keys { i } else { rng.usize(..keys) };
        let key_bytes = (key as u64).to_le_bytes();
        match head.append_one(&kilobyte(&key_bytes)) {
            Ok(to) => {
                if let Some(old) = places[key].replace(to) {
                    log.mark_dead(old, bytes as u32);
                }
            }
            Err(_) => refused += 1,
        }
    }
    let per_write = copied as f64 / (overwrites * bytes) as f64;
    println!(
        "cleaning at {live_percent} % live: {per_write:.2} bytes copied per byte written, {refused} \
         writes refused of {overwrites}, {:.0} ns per write",
        start.nanos() / (keys + overwrites) as f64
    );
}

/// Cleans one victim; returns the bytes copied.
fn clean(
    log: &Arc<Log>,
    reactor: &Participant,
    survivors: &mut Survivors,
    places: &mut [Option<Address>],
) -> usize {
    let Some(mut victim) = log.claim_victim() else { return 0 };
    let turn = reactor.turn();
    let mut copied = 0;
    while let Some(candidate) = victim.peek(&turn) {
        let key = candidate.entry.key.try_into().map_or(0, u64::from_le_bytes) as usize;
        if places[key] == Some(candidate.address) {
            let Ok(to) = survivors.append_encoded(candidate.encoded) else { break };
            places[key] = Some(to);
            copied += candidate.encoded.len();
            log.mark_dead(candidate.address, candidate.encoded.len() as u32);
        }
        victim.advance(&candidate);
    }
    copied
}

/// An owner without items.
struct Nothing;

impl Reclaim for Nothing {
    fn reclaim(&self, _number: u64) {}
}

fn reclaiming() {
    let log = log_of(1 << 30, false);
    let mut reactor = log.reclamation().participant(ReactorId(0));
    let mut other = log.reclamation().participant(ReactorId(1));
    let nothing: Arc<dyn Reclaim> = Arc::new(Nothing);
    show("begin_turn", nanos(1 << 22, |_| black_box(&mut reactor).begin_turn()));
    show(
        "begin_turn and turn",
        nanos(1 << 22, |_| {
            black_box(&mut reactor).begin_turn();
            black_box(&reactor.turn());
        }),
    );
    show(
        "collect, nothing retired",
        nanos(1 << 22, |_| {
            black_box(log.reclamation().collect(64));
        }),
    );
    show(
        "is_low",
        nanos(1 << 22, |_| {
            black_box(black_box(&log).is_low());
        }),
    );
    other.begin_turn();
    let retire = || {
        let owner = Arc::clone(&nothing);
        log.reclamation().retire(owner, 1);
    };
    retire();
    show(
        "begin_turn and collect, one retired, not due",
        nanos(1 << 20, |_| {
            reactor.begin_turn();
            black_box(log.reclamation().collect(64));
        }),
    );
    drop(other);
    show(
        "begin_turn, retire and collect, each its own turn",
        nanos(1 << 20, |_| {
            reactor.begin_turn();
            retire();
            black_box(log.reclamation().collect(64));
        }),
    );
}

fn main() {
    let huge_pages = std::env::args().any(|argument| argument == "huge");
    println!("huge pages: {:?}", log_of(1 << 30, huge_pages).usage().huge_pages);
    naive();
    appending(huge_pages);
    copying();
    reclaiming();
    [50, 70, 80, 85, 90].into_iter().for_each(cleaning);
}
