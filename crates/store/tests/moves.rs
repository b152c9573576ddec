//! All operations at once against a sorted map: client operations, expiry, cleaning, and a range
//! that moves back and forth between two stores, in random order.

mod common;

use common::{NOW, Server, TABLE};
use std::collections::BTreeMap;
use std::sync::Arc;
use store::{
    Arrival, ArrivalPlan, CleaningOccasion, Key, Need, RangeClock, ReplayError, Stall, TabletState,
};
use types::{HashRange, KeyHash, MigrationId, ServerId, UnixMillis};
use wire::peer::RecordCounts;

const PARTITIONS: usize = 4;

/// Value and expiry by key.
type Twin = BTreeMap<Vec<u8>, (Vec<u8>, Option<UnixMillis>)>;

/// Two stores, one of which owns everything.
struct World {
    servers: [Server; 2],
    owner: usize,
    /// The unfinished move from the other store to the owner, if any.
    moving: Option<Moving>,
    moves: u64,
    twin: Twin,
    random: fastrand::Rng,
    keys: u32,
    value_bytes_max: usize,
    now: UnixMillis,
}

struct Moving {
    arrival: Arc<Arrival>,
    partitions: Vec<HashRange>,
    cursors: [Option<KeyHash>; PARTITIONS],
    /// Batches that will arrive again.
    late: Vec<Vec<u8>>,
}

impl World {
    fn new(seed: u64, keys: u32, value_bytes_max: usize) -> World {
        World {
            servers: [Server::with_memory(64 << 20), Server::new(64 << 20)],
            owner: 0,
            moving: None,
            moves: 0,
            twin: Twin::new(),
            random: fastrand::Rng::with_seed(seed),
            keys,
            value_bytes_max,
            now: NOW,
        }
    }

    fn step(&mut self) {
        self.now = UnixMillis(self.now.0 + self.random.u64(..2));
        for server in &mut self.servers {
            server.now = self.now;
            server.turn();
        }
        match self.random.u32(..100) {
            0..30 => self.put(),
            30..50 => self.read(),
            50..60 => self.append(),
            60..70 => self.delete(),
            70..80 => self.exchange(),
            80..83 => self.expire(),
            83..88 => self.clean(),
            _ => self.go_on_moving(),
        }
    }

    fn name(&mut self) -> Vec<u8> {
        let number = self.random.u32(..self.keys);
        match number % 3 {
            0 => format!("{{together}}{number}").into_bytes(),
            _ => number.to_string().into_bytes(),
        }
    }

    fn value(&mut self) -> Vec<u8> {
        vec![self.random.u8(..); self.random.usize(..self.value_bytes_max)]
    }

    fn expiry(&mut self) -> Option<UnixMillis> {
        let soon = UnixMillis(self.now.0 + self.random.u64(..300));
        self.random.bool().then_some(soon)
    }

    fn expected(&self, name: &[u8]) -> Option<Vec<u8>> {
        let (value, expiry) = self.twin.get(name)?;
        expiry.is_none_or(|at| at > self.now).then(|| value.clone())
    }

    /// Executes an operation and retries it until it succeeds.
    fn operate<T>(&mut self, mut operation: impl FnMut(&mut Server) -> Result<T, Stall>) -> T {
        for _ in 0..1000 {
            match operation(&mut self.servers[self.owner]) {
                Ok(done) => return done,
                Err(Stall::Missing(missing)) => {
                    missing.hashes.iter().for_each(|&hash| self.priority_pull(hash));
                }
                Err(Stall::OutOfMemory) => self.clean(),
                Err(stall) => panic!("{stall:?}"),
            }
        }
        panic!("it never ends");
    }

    fn put(&mut self) {
        let (name, value, expiry) = (self.name(), self.value(), self.expiry());
        self.operate(|server| {
            let key = common::key(&server.store, &name);
            server.worker.put(TABLE, key, &value, expiry)
        });
        self.twin.insert(name, (value, expiry));
    }

    fn read(&mut self) {
        let names: Vec<_> = (0..self.random.usize(1..5)).map(|_| self.name()).collect();
        let read = self.operate(|server| {
            let store = Arc::clone(&server.store);
            let keys: Vec<Key<'_>> = names.iter().map(|name| common::key(&store, name)).collect();
            server.worker.read(TABLE, &keys, |records| {
                records
                    .iter()
                    .map(|record| record.map(|r| r.value.bytes.to_vec()))
                    .collect::<Vec<_>>()
            })
        });
        let expected: Vec<_> = names.iter().map(|name| self.expected(name)).collect();
        assert!(read == expected, "{names:?} in move {}", self.moves);
    }

    /// Lengthens a value and keeps its expiry.
    fn append(&mut self) {
        let name = self.name();
        let after = self.operate(|server| {
            let store = Arc::clone(&server.store);
            let key = common::key(&store, &name);
            server.worker.update(TABLE, &[key], Need::Records, |records, changes| {
                let (value, expiry) =
                    records[0].map_or((&[][..], None), |r| (r.value.bytes, r.expiry));
                changes.put_joined(0, &[value, b"+"], expiry);
                ([value, b"+"].concat(), expiry)
            })
        });
        let before = self.expected(&name).unwrap_or_default();
        assert!(after.0[..after.0.len() - 1] == before, "{name:?}");
        self.twin.insert(name, after);
    }

    fn delete(&mut self) {
        let name = self.name();
        let need = if self.random.bool() { Need::Records } else { Need::Nothing };
        let was_there = self.operate(|server| {
            let store = Arc::clone(&server.store);
            let key = common::key(&store, &name);
            server.worker.update(TABLE, &[key], need, |records, changes| {
                changes.delete(0);
                records[0].is_some()
            })
        });
        if need == Need::Records {
            assert_eq!(was_there, self.expected(&name).is_some(), "{name:?}");
        }
        self.twin.remove(&name);
    }

    /// Exchanges the values of two keys. A key is deleted if the other does not exist.
    fn exchange(&mut self) {
        let names = [self.name(), self.name()];
        if names[0] == names[1] {
            return;
        }
        let values = names.each_ref().map(|name| self.expected(name));
        self.operate(|server| {
            let store = Arc::clone(&server.store);
            let keys = names.each_ref().map(|name| common::key(&store, name));
            server.worker.update(TABLE, &keys, Need::Records, |records, changes| {
                for at in 0..2 {
                    match records[1 - at] {
                        Some(record) => changes.put(at, record.value.bytes, None),
                        None => changes.delete(at),
                    }
                }
            })
        });
        let [first, second] = names;
        for (name, value) in [first, second].into_iter().zip(values.into_iter().rev()) {
            match value {
                Some(value) => drop(self.twin.insert(name, (value, None))),
                None => drop(self.twin.remove(&name)),
            }
        }
    }

    fn expire(&mut self) {
        let server = &mut self.servers[self.owner];
        let mut cursor = Some(KeyHash(0));
        while let Some(from) = cursor {
            server.turn();
            cursor = server.worker.expire(TABLE, from, 4096);
        }
    }

    fn clean(&mut self) {
        for server in &mut self.servers {
            server.turn();
            while server.worker.clean(CleaningOccasion::LowMemory) {
                server.turn();
            }
            (0..3).for_each(|_| server.turn());
        }
    }

    fn go_on_moving(&mut self) {
        match &self.moving {
            None if self.random.u32(..20) == 0 => self.begin_move(),
            None => {}
            Some(moving) if moving.cursors == [None; PARTITIONS] => self.end_move(),
            Some(_) => self.pull(),
        }
    }

    fn begin_move(&mut self) {
        self.moves += 1;
        let partitions = HashRange::ALL.divide(PARTITIONS);
        let target = 1 - self.owner;
        self.servers[self.owner].publish(TabletState::Leaving);
        assert!(self.servers[target].worker.is_empty(HashRange::ALL));
        let arrival = Arc::new(Arrival::new(ArrivalPlan {
            migration: MigrationId(self.moves),
            source: ServerId(1),
            range: HashRange::ALL,
            partitions: partitions.clone(),
            expected: RecordCounts::of(&self.servers[self.owner].worker.counts(HashRange::ALL)),
            reservation: None,
        }));
        let source = Arc::clone(&self.servers[self.owner].store);
        self.servers[target].store.raise_version(source.version());
        let own = self.servers[target].store.clock();
        self.servers[target].clock = RangeClock::going_on_from(source.latest_clock(), own);
        self.servers[target].publish(TabletState::Arriving(Arc::clone(&arrival)));
        self.owner = target;
        let cursors = std::array::from_fn(|at| Some(partitions[at].first()));
        self.moving = Some(Moving { arrival, partitions, cursors, late: Vec::new() });
    }

    /// Replays the next pull of a partition, or repeats an earlier batch.
    fn pull(&mut self) {
        let Some(moving) = &mut self.moving else { return };
        let arrival = Arc::clone(&moving.arrival);
        let at = self.random.usize(..PARTITIONS);
        if let Some(from) = moving.cursors[at] {
            let mut batch = Vec::new();
            let source = &mut self.servers[1 - self.owner];
            let next = source.worker.collect(moving.partitions[at], from, 3000, &mut batch);
            moving.cursors[at] = next;
            if self.random.u32(..4) == 0 {
                moving.late.push(batch.clone());
            }
            self.replay(&batch);
            arrival.advance(at as u16, next);
        } else if let Some(batch) = moving.late.pop() {
            self.replay(&batch);
        }
        let target = &mut self.servers[self.owner];
        target.worker.sweep(&arrival, 3);
    }

    fn replay(&mut self, batch: &[u8]) {
        let Some(moving) = &self.moving else { return };
        let arrival = Arc::clone(&moving.arrival);
        let mut from = Some(0);
        while let Some(offset) = from {
            self.servers[self.owner].turn();
            match self.servers[self.owner].worker.replay(&arrival, batch, offset, 5) {
                Ok(replayed) => from = replayed.next,
                Err(ReplayError::OutOfMemory) => self.clean(),
                Err(ReplayError::Corrupt(corrupt)) => panic!("{corrupt}"),
            }
        }
    }

    fn priority_pull(&mut self, hash: KeyHash) {
        let Some(moving) = &self.moving else { panic!("nothing is missing without a move") };
        let arrival = Arc::clone(&moving.arrival);
        let mut batch = Vec::new();
        let source = &mut self.servers[1 - self.owner].worker;
        if source.collect_hash(TABLE, hash, &mut batch).unwrap() {
            self.replay(&batch);
        } else {
            arrival.note_absent(TABLE, hash);
        }
    }

    fn end_move(&mut self) {
        let Some(moving) = self.moving.take() else { return };
        let target = &mut self.servers[self.owner];
        while target.worker.sweep(&moving.arrival, 10) {}
        target.worker.splice(moving.arrival.migration());
        target.publish(TabletState::Serving);
        let source = &mut self.servers[1 - self.owner];
        let mut cursor = Some(KeyHash(0));
        while let Some(from) = cursor {
            source.turn();
            cursor = source.worker.forget(HashRange::ALL, from, 500);
        }
        assert!(source.worker.is_empty(HashRange::ALL));
        assert_eq!(source.store.usage().log.live_bytes, 0, "the source has forgotten everything");
        // Late copies of records deleted since are dropped, because the migration is over.
        for batch in &moving.late {
            self.servers[self.owner].replay(&moving.arrival, batch);
        }
        self.check();
    }

    /// Checks by a scan and by the counts that every record is present.
    fn check(&mut self) {
        let server = &mut self.servers[self.owner];
        let mut seen = BTreeMap::new();
        let mut cursor = Some(KeyHash(0));
        while let Some(from) = cursor {
            server.turn();
            let step = server.worker.scan(TABLE, from, 1000, |key, record| {
                let twice = seen.insert(key.to_vec(), (record.value.bytes.to_vec(), record.expiry));
                assert!(twice.is_none(), "a record is shown once");
            });
            cursor = step.unwrap();
        }
        let now = self.now;
        self.twin.retain(|_, (_, expiry)| expiry.is_none_or(|at| at > now));
        assert!(seen == self.twin, "after move {}", self.moves);
        server.check_live_bytes();
    }
}

/// Runs a world for `steps` steps and finishes its move.
fn run(mut world: World, steps: u32) -> World {
    for _ in 0..steps {
        world.step();
    }
    while world.moving.is_some() {
        world.go_on_moving();
    }
    world.check();
    world
}

#[test]
fn random_operations_while_all_goes_back_and_forth_do_what_a_sorted_map_does() {
    for (seed, keys, value_bytes_max) in [(1, 50, 100), (2, 3000, 300), (3, 1000, 1000)] {
        let world = run(World::new(seed, keys, value_bytes_max), 20_000);
        assert!(world.moves > 5, "{} moves", world.moves);
    }
}

/// Few keys and long values, so that both stores are cleaned repeatedly.
#[test]
fn the_cleaner_relocates_whatever_moves() {
    let mut world = World::new(4, 700, 60_000);
    world = run(world, 6_000);
    assert!(world.moves > 1, "{} moves", world.moves);
    let appended = world.servers.iter().map(|server| server.store.version().0).max();
    assert!(appended.unwrap_or(0) > 3_000);
}
