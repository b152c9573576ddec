//! Shared helpers of the store tests: a server in a box, and moves between two servers.

#![allow(dead_code, reason = "each test file uses its part")]

use std::sync::Arc;
use store::log::Reservation;
use store::{
    Arrival, ArrivalPlan, Key, Need, RangeClock, Stall, Store, StoreConfig, TableSet, Tablet,
    TabletMap, TabletState, Worker,
};
use types::limits::TABLES_MAX;
use types::{
    HashRange, HashSeed, Incarnation, KeyHash, MigrationId, OwnershipEpoch, ReactorId, ServerId,
    TableId, UnixMillis, Version, key_hash,
};
use wire::peer::RecordCounts;

pub(crate) const TABLE: TableId = TableId(0);
pub(crate) const NOW: UnixMillis = UnixMillis(1_000_000);

/// A store with one worker.
pub(crate) struct Server {
    pub(crate) store: Arc<Store>,
    pub(crate) worker: Worker,
    /// Time passed to the next turn.
    pub(crate) now: UnixMillis,
    /// Clock of the tablet that is published next.
    pub(crate) clock: RangeClock,
}

pub(crate) type Answer = Result<Option<Vec<u8>>, Stall>;

impl Server {
    /// Creates a server that serves the whole key space.
    pub(crate) fn serving() -> Server {
        Server::with_memory(64 << 20)
    }

    pub(crate) fn with_memory(memory_bytes: usize) -> Server {
        let mut server = Server::new(memory_bytes);
        server.publish(TabletState::Serving);
        server
    }

    /// Creates a server without tablets.
    pub(crate) fn new(memory_bytes: usize) -> Server {
        let store = store(memory_bytes, 1);
        let worker = store.worker(ReactorId(0));
        let mut server = Server { store, worker, now: NOW, clock: RangeClock::OWN };
        server.turn();
        server
    }

    pub(crate) fn publish(&mut self, state: TabletState) {
        let clock = self.clock;
        let tablet = Tablet { clock, ..tablet(HashRange::ALL, state) };
        self.store.publish(TabletMap::new(vec![tablet]));
        self.turn();
    }

    pub(crate) fn turn(&mut self) {
        self.worker.begin_turn(self.now);
    }

    pub(crate) fn key<'k>(&self, bytes: &'k str) -> Key<'k> {
        key(&self.store, bytes.as_bytes())
    }

    pub(crate) fn get(&mut self, name: &str) -> Answer {
        let key = self.key(name);
        self.turn();
        self.worker.read_one(TABLE, key, |record| record.map(|record| record.value.bytes.to_vec()))
    }

    pub(crate) fn version(&mut self, name: &str) -> Option<Version> {
        let key = self.key(name);
        self.turn();
        let read = self.worker.read_one(TABLE, key, |record| record.map(|record| record.version));
        read.unwrap()
    }

    pub(crate) fn get_all(&mut self, names: &[&str]) -> Result<Vec<Option<Vec<u8>>>, Stall> {
        let keys: Vec<_> = names.iter().map(|name| self.key(name)).collect();
        self.turn();
        self.worker.read(TABLE, &keys, |records| {
            records.iter().map(|record| record.map(|record| record.value.bytes.to_vec())).collect()
        })
    }

    pub(crate) fn set(&mut self, name: &str, value: &str) -> Result<(), Stall> {
        self.set_with_expiry(name, value, None)
    }

    pub(crate) fn set_with_expiry(
        &mut self,
        name: &str,
        value: &str,
        expiry: Option<UnixMillis>,
    ) -> Result<(), Stall> {
        let key = self.key(name);
        self.turn();
        self.worker.put(TABLE, key, value.as_bytes(), expiry).map(drop)
    }

    /// Deletes a record. Returns whether it existed.
    pub(crate) fn delete(&mut self, name: &str) -> Result<bool, Stall> {
        self.remove(name, Need::Records)
    }

    pub(crate) fn delete_blindly(&mut self, name: &str) -> Result<bool, Stall> {
        self.remove(name, Need::Nothing)
    }

    fn remove(&mut self, name: &str, need: Need) -> Result<bool, Stall> {
        let key = self.key(name);
        self.turn();
        self.worker.update(TABLE, &[key], need, |records, changes| {
            changes.delete(0);
            records[0].is_some()
        })
    }

    /// Increments a number in decimal digits; an absent record counts as 0.
    pub(crate) fn increment(&mut self, name: &str) -> Result<u64, Stall> {
        let key = self.key(name);
        self.turn();
        self.worker.update(TABLE, &[key], Need::Records, |records, changes| {
            let before = records[0].map_or(0, |record| number(record.value.bytes));
            changes.put(0, (before + 1).to_string().as_bytes(), None);
            before + 1
        })
    }

    /// Executes SET with NX. Returns whether the value was set.
    pub(crate) fn set_if_absent(&mut self, name: &str, value: &str) -> Result<bool, Stall> {
        let key = self.key(name);
        self.turn();
        self.worker.update(TABLE, &[key], Need::Records, |records, changes| {
            if records[0].is_none() {
                changes.put(0, value.as_bytes(), None);
            }
            records[0].is_none()
        })
    }

    pub(crate) fn set_all(&mut self, pairs: &[(&str, &str)]) -> Result<(), Stall> {
        let keys: Vec<_> = pairs.iter().map(|(name, _)| self.key(name)).collect();
        self.turn();
        self.worker.update(TABLE, &keys, Need::Nothing, |_, changes| {
            for (at, (_, value)) in pairs.iter().enumerate() {
                changes.put(at, value.as_bytes(), None);
            }
        })
    }

    /// Returns the batches of a pull of everything.
    pub(crate) fn collect(&mut self, bytes_max: usize) -> Vec<Vec<u8>> {
        let mut batches = Vec::new();
        let mut cursor = Some(KeyHash(0));
        while let Some(from) = cursor {
            let mut batch = Vec::new();
            self.turn();
            cursor = self.worker.collect(HashRange::ALL, from, bytes_max, &mut batch);
            batches.push(batch);
        }
        batches
    }

    /// Returns the result of a priority pull of this key.
    pub(crate) fn collect_key(&mut self, name: &str) -> Vec<u8> {
        let hash = self.key(name).hash;
        let mut batch = Vec::new();
        self.turn();
        let found = self.worker.collect_hash(TABLE, hash, &mut batch).unwrap();
        assert_eq!(found, !batch.is_empty());
        batch
    }

    pub(crate) fn replay(&mut self, arrival: &Arc<Arrival>, batch: &[u8]) {
        let mut from = Some(0);
        while let Some(offset) = from {
            self.turn();
            from = self.worker.replay(arrival, batch, offset, 3).unwrap().next;
        }
    }

    pub(crate) fn records(&mut self) -> u64 {
        self.turn();
        self.worker.table_records(TABLE)
    }

    /// Checks that the log and the index count the same live bytes.
    pub(crate) fn check_live_bytes(&mut self) {
        self.turn();
        let counted = self.store.usage().log.live_bytes;
        let indexed = self.worker.range_bytes(HashRange::ALL);
        assert_eq!(counted, indexed, "the log and the index disagree about live bytes");
    }
}

pub(crate) fn store(memory_bytes: usize, reactors: u16) -> Arc<Store> {
    let seed = HashSeed::new(42);
    Store::new(StoreConfig {
        memory_bytes,
        reactors,
        seed,
        huge_pages: false,
        durable: false,
        segment_bytes: None,
    })
    .unwrap()
}

pub(crate) fn tablet(range: HashRange, state: TabletState) -> Tablet {
    let incarnations =
        std::array::from_fn::<_, TABLES_MAX, _>(|table| Incarnation(table as u64 + 1));
    let (epoch, clock) = (OwnershipEpoch(1), RangeClock::OWN);
    Tablet { range, epoch, incarnations, state, clock, flushing: TableSet::NONE }
}

pub(crate) fn key<'k>(store: &Store, bytes: &'k [u8]) -> Key<'k> {
    Key { hash: key_hash(store.seed(), bytes), bytes }
}

pub(crate) fn number(value: &[u8]) -> u64 {
    std::str::from_utf8(value).unwrap().parse().unwrap()
}

pub(crate) fn value(text: &str) -> Answer {
    Ok(Some(text.as_bytes().to_vec()))
}

/// Two servers, and a step-by-step move of everything from one to the other.
pub(crate) struct Move {
    pub(crate) source: Server,
    pub(crate) target: Server,
    pub(crate) arrival: Arc<Arrival>,
}

impl Move {
    /// Executes the flip. The source has the records from `fill`; the target is empty and serves.
    pub(crate) fn flip(fill: impl FnOnce(&mut Server)) -> Move {
        let mut source = Server::serving();
        fill(&mut source);
        let target = Server::new(64 << 20);
        Move::from_to(source, target, MigrationId(1))
    }

    pub(crate) fn from_to(source: Server, target: Server, migration: MigrationId) -> Move {
        Move::from_to_reserved(source, target, migration, None)
    }

    pub(crate) fn from_to_reserved(
        mut source: Server,
        mut target: Server,
        migration: MigrationId,
        reservation: Option<Reservation>,
    ) -> Move {
        source.publish(TabletState::Leaving);
        assert!(target.worker.is_empty(HashRange::ALL), "a range is accepted from nothing");
        let arrival = Arc::new(Arrival::new(ArrivalPlan {
            migration,
            source: ServerId(1),
            range: HashRange::ALL,
            partitions: HashRange::ALL.divide(4),
            expected: RecordCounts::of(&source.worker.counts(HashRange::ALL)),
            reservation: reservation.map(Arc::new),
        }));
        target.store.raise_version(source.store.version());
        target.clock = RangeClock::going_on_from(source.store.latest_clock(), target.store.clock());
        target.publish(TabletState::Arriving(Arc::clone(&arrival)));
        Move { source, target, arrival }
    }

    /// Replays everything; the progress does not change.
    pub(crate) fn replay_all(&mut self) {
        for batch in self.source.collect(500) {
            self.target.replay(&self.arrival, &batch);
        }
    }

    /// Answers a priority pull of this key.
    pub(crate) fn priority_pull(&mut self, name: &str) {
        let batch = self.source.collect_key(name);
        if batch.is_empty() {
            self.arrival.note_absent(TABLE, self.source.key(name).hash);
        } else {
            self.target.replay(&self.arrival, &batch);
        }
    }

    /// Advances the progress past everything.
    pub(crate) fn advance_all(&mut self) {
        for partition in 0..4 {
            self.arrival.advance(partition, None);
        }
    }

    /// Completes the move. Returns source and target.
    pub(crate) fn finish(mut self) -> (Server, Server) {
        self.replay_all();
        self.advance_all();
        self.target.turn();
        while self.target.worker.sweep(&self.arrival, 2) {}
        self.target.worker.splice(self.arrival.migration());
        self.target.publish(TabletState::Serving);
        let mut cursor = Some(KeyHash(0));
        while let Some(from) = cursor {
            self.source.turn();
            cursor = self.source.worker.forget(HashRange::ALL, from, 7);
        }
        assert!(self.source.worker.is_empty(HashRange::ALL), "the source has forgotten all");
        assert_eq!(self.source.store.usage().log.live_bytes, 0);
        (self.source, self.target)
    }

    /// Returns the stall of an operation that needs these keys.
    pub(crate) fn missing(&self, names: &[&str]) -> Stall {
        let mut hashes: Vec<_> = names.iter().map(|name| self.target.key(name).hash).collect();
        hashes.sort();
        Stall::Missing(store::Missing { table: TABLE, migration: self.arrival.migration(), hashes })
    }
}
