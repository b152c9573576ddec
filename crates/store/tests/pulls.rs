//! Serving of pulls: the source sends everything by the end of the range, and never exceeds the
//! size limit of a reply, for records of any length in any number of tables.

mod common;

use common::{Server, key};
use std::collections::{BTreeMap, BTreeSet};
use store::TabletState;
use types::limits::{RECORD_BYTES_MAX, TABLES_MAX};
use types::{HashRange, KeyHash, TableId};
use wire::batch::{BatchReader, RUN_HEADER_BYTES};
use wire::peer::PULL_OVERSHOOT_MAX;

/// Lengths of the values by table and hash.
type Records = BTreeMap<(u8, KeyHash), usize>;

struct Source {
    server: Server,
    records: Records,
}

impl Source {
    fn new(memory_bytes: usize) -> Source {
        Source { server: Server::with_memory(memory_bytes), records: Records::new() }
    }

    fn put(&mut self, table: u8, name: &str, bytes: usize) {
        let key = key(&self.server.store, name.as_bytes());
        self.server.turn();
        let value = vec![b'v'; bytes];
        self.server.worker.put(TableId(table), key, &value, None).unwrap();
        self.records.insert((table, key.hash), bytes);
    }

    /// Pulls everything as a target does. Checks that each reply has all records up to its
    /// reported end, and that it respects the size limit. Returns the number of replies.
    fn pull_all(&mut self, bytes_max: usize) -> usize {
        self.server.publish(TabletState::Leaving);
        let tables: BTreeSet<u8> = self.records.keys().map(|&(table, _)| table).collect();
        let (mut cursor, mut replies) = (Some(KeyHash(0)), 0);
        while let Some(from) = cursor {
            let mut batch = Vec::new();
            self.server.turn();
            cursor = self.server.worker.collect(HashRange::ALL, from, bytes_max, &mut batch);
            assert!(cursor.is_none_or(|next| next > from), "no step from {from} to {cursor:?}");
            let met: Records = BatchReader::new(&batch)
                .map(|entry| entry.unwrap())
                .map(|read| {
                    let hash = key(&self.server.store, read.entry.key).hash;
                    assert_eq!(hash.slot(), read.slot);
                    let bytes = read.encoded.len();
                    ((read.table.0, hash), bytes)
                })
                .collect();
            let mut due = self
                .records
                .keys()
                .filter(|&&(_, hash)| from <= hash && cursor.is_none_or(|next| hash < next));
            assert!(due.all(|record| met.contains_key(record)), "records are left out at {from}");
            let first = met.keys().map(|&(_, hash)| hash).filter(|&hash| hash >= from).min();
            let of_first: usize = met
                .iter()
                .filter(|((_, hash), _)| Some(*hash) == first)
                .map(|(_, bytes)| bytes + RUN_HEADER_BYTES)
                .sum();
            let bound = 2 * bytes_max + tables.len() * PULL_OVERSHOOT_MAX;
            assert!(
                batch.len() <= bound + RECORD_BYTES_MAX || batch.len() <= of_first,
                "{} bytes for a pull of {bytes_max}",
                batch.len()
            );
            replies += 1;
        }
        replies
    }
}

#[test]
fn long_records_of_one_slot_come_in_many_replies() {
    let mut source = Source::new(160 << 20);
    for number in 0..30 {
        source.put(0, &format!("{{t}}{number}"), 2_900_000);
    }
    let replies = source.pull_all(64 << 10);
    assert!((30..=60).contains(&replies), "{replies} replies for 30 records");
    source.pull_all(8 << 20);
}

#[test]
fn the_longest_records_of_one_hash_in_all_tables_make_one_reply() {
    let mut source = Source::new(256 << 20);
    for table in 0..TABLES_MAX as u8 {
        source.put(table, "k", types::limits::VALUE_BYTES_MAX);
        source.put(table, "other", types::limits::VALUE_BYTES_MAX);
    }
    source.pull_all(64 << 10);
}

#[test]
fn records_of_all_lengths_in_all_tables_come_once_their_range_is_done() {
    for seed in 0..12 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut source = Source::new(128 << 20);
        let tables = rng.u8(1..=TABLES_MAX as u8);
        let mut left = 40_000_000;
        while left > 0 && source.records.len() < 3_000 {
            let most = if rng.u32(..40) == 0 { 22 } else { 12 };
            let bytes = 1usize << rng.u32(0..most);
            // Few tags: many records with neighboring hashes.
            let name = format!("{{{}}}{}", rng.u32(..4), rng.u32(..2_000));
            source.put(rng.u8(..tables), &name, bytes);
            left -= bytes.min(left);
        }
        for bytes_max in [1 << 10, 64 << 10, 8 << 20] {
            source.pull_all(bytes_max);
        }
    }
}

#[test]
fn a_sparse_table_does_not_hold_up_a_dense_one() {
    let mut source = Source::new(128 << 20);
    for number in 0..20_000 {
        source.put(7, &format!("{{t}}{number}"), 100);
        if number % 100 == 0 {
            source.put(0, &format!("{{t}}{number}"), 100);
        }
    }
    let bytes: usize = source.records.len() * 144;
    let replies = source.pull_all(64 << 10);
    assert!(replies <= bytes / (64 << 10) * 3 / 2, "{replies} replies for {bytes} bytes");
}
