//! What the index costs: bytes per record, and nanoseconds per lookup, insertion and walk, beside
//! `hashbrown` and the sorted map of the standard library.
//!
//! `cargo run --release -p store --example index_bench -- memory` prints the table of bytes.

use std::{env, sync::Arc};
use store::{
    Address,
    index::{Index, Kind, Slab, Word},
    log::{Log, LogConfig, Participant},
};
use types::{KeyHash, ReactorId, Slot};

fn main() {
    let arguments: Vec<String> = env::args().skip(1).collect();
    match arguments.first().map(String::as_str) {
        Some("memory") => print_memory(arguments.get(1).map_or(16, |n| n.parse().expect("millions"))),
        _ => eprintln!("memory"),
    }
}

struct World {
    index: Index,
    slab: Arc<Slab>,
    log: Arc<Log>,
    participant: Participant,
}

impl World {
    fn new(huge_pages: bool) -> World {
        let log = Log::new(&LogConfig { memory_bytes: 1 << 30, reactors: 1, huge_pages })
            .expect("memory");
        let slab = Slab::new(Arc::clone(&log));
        let participant = log.reclamation().participant(ReactorId(0));
        World { index: Index::new(Arc::clone(&slab)), slab, log, participant }
    }

    fn insert(&mut self, hash: KeyHash, number: u64) {
        self.participant.begin_turn();
        self.log.reclamation().collect(16);
        let turn = self.participant.turn();
        let mut guard = self.index.lock(hash, &turn).expect("nobody else");
        let word = Word::new(hash, Kind::Object, Address::from_units(number));
        guard.insert(hash, word, 130).expect("memory");
    }
}

/// A permutation of the numbers (SplitMix64): the `number`th hash.
fn hash_of(number: u64) -> KeyHash {
    let mut z = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    KeyHash(z ^ (z >> 31))
}

fn print_memory(millions: u64) {
    println!("| records | leaves B/record | with free blocks | reserved: leaves | with free blocks |");
    println!("| --- | --- | --- | --- | --- |");
    let mut grown = World::new(true);
    let mut records = 0u64;
    let mut size = 250_000u64;
    while size <= millions * 1_000_000 {
        while records < size {
            records += 1;
            grown.insert(hash_of(records), records);
        }
        let reserved = reserved(size);
        let per = |bytes: u64| bytes as f64 / size as f64;
        println!(
            "| {size} | {:.2} | {:.2} | {:.2} | {:.2} |",
            per(grown.index.memory()),
            per(grown.slab.bytes()),
            per(reserved.index.memory()),
            per(reserved.slab.bytes())
        );
        size = if size % 3 == 0 { size / 3 * 4 } else { size / 2 * 3 };
        if size % 1_000_000 != 0 && size > 1_000_000 { size = size.next_multiple_of(1_000_000) }
    }
}

fn reserved(records: u64) -> World {
    let mut world = World::new(true);
    let mut counts = vec![0u32; 16384];
    (1..=records).for_each(|number| counts[usize::from(hash_of(number).slot().0)] += 1);
    world.participant.begin_turn();
    for (slot, count) in counts.iter().enumerate() {
        let turn = world.participant.turn();
        world.index.reserve(Slot(slot as u16), *count, &turn).expect("memory");
    }
    (1..=records).for_each(|number| world.insert(hash_of(number), number));
    world
}
