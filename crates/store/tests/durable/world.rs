//! A durable store, its disk, and a naive model of the values that a key may have after a crash.
//!
//! Everything runs on one thread, in an order drawn from a seed: writes, deletes and reads by
//! several workers, sending, syncing, cleaning, dropping, releasing, the clock, flushes. At any
//! moment the process is killed or the power fails. The test then continues with the contents of
//! the disk: the same server restarts, or another one recovers its log (`successor.rs`).

#[path = "successor.rs"]
mod successor;

use crate::common::{TABLE, key};
use crate::disk::{Disk, Replica, config};
use fastrand::Rng;
use std::collections::BTreeMap;
use std::sync::Arc;
use store::log::Dependency;
use store::{
    CleaningOccasion, EvictionRule, Need, RangeClock, Stall, Store, TableSet, Tablet, TabletMap,
    TabletState, Worker,
};
use types::limits::TABLES_MAX;
use types::{
    EvictionPolicy, HashRange, Incarnation, KeyHash, OwnershipEpoch, SegmentId, UnixMillis,
};

const SEGMENT_BYTES: usize = 64 << 10;

/// Parameters of a world.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scale {
    pub(crate) reactors: u16,
    pub(crate) segments: usize,
    pub(crate) keys: usize,
    pub(crate) value_bytes_max: usize,
    /// Average distance of crashes: a higher value means fewer crashes.
    pub(crate) calm: u8,
    /// Divisor of the share of values with an expiry.
    pub(crate) expiring: u8,
    /// Set if another server may recover the log. Bugs that need many crashes of the same log are
    /// found only without successors.
    pub(crate) has_successors: bool,
}

/// State of a key after a write.
#[derive(Clone, Debug, PartialEq, Eq)]
struct State {
    /// Number of the value and its expiry; `None` if the key was deleted.
    value: Option<(u64, Option<UnixMillis>)>,
    /// Positions for which the reply waited, by segment.
    needs: Vec<(SegmentId, u32)>,
}

/// States of a key, beginning with the last one that cannot be lost.
type History = Vec<State>;

pub(crate) struct World {
    rng: Rng,
    scale: Scale,
    store: Arc<Store>,
    workers: Vec<Worker>,
    disk: Disk,
    now: UnixMillis,
    incarnation: u64,
    histories: BTreeMap<usize, History>,
    numbers: u64,
    remains: successor::Remains,
    pub(crate) crashes: u64,
    pub(crate) refused: u64,
    pub(crate) written: u64,
    pub(crate) evicted: u64,
}

/// Two keys that are only written together.
const TWINS: [usize; 2] = [0, 1];

impl World {
    pub(crate) fn new(seed: u64, scale: Scale) -> World {
        let (now, incarnation) = (UnixMillis(1_000_000), 1);
        let mut disk = Disk::default();
        let (store, workers) =
            disk.recover(scale.config(), tablets(incarnation, false), now, |_| {});
        World {
            rng: Rng::with_seed(seed),
            scale,
            store,
            workers,
            disk,
            now,
            incarnation,
            histories: BTreeMap::new(),
            numbers: 0,
            remains: successor::Remains::default(),
            crashes: 0,
            refused: 0,
            written: 0,
            evicted: 0,
        }
    }

    /// Executes one random step.
    pub(crate) fn step(&mut self) {
        let at = self.rng.usize(..self.workers.len());
        let now = self.now;
        match self.rng.u32(..1000) {
            0..350 => self.put(at),
            350..450 => self.delete(at),
            450..500 => self.increment(at),
            500..530 => self.put_twins(at),
            530..540 => drop(self.race()),
            540..640 => self.read(at),
            640..760 => self.workers[at].begin_turn(now),
            760..860 => {
                let may_refuse = self.rng.u8(..4) == 0;
                let rng = &mut self.rng;
                let takes = || !may_refuse || rng.bool();
                self.disk.save(&self.store, &mut self.workers[at], takes);
            }
            860..920 => self.disk.sync_some(&self.store, &mut self.rng),
            920..975 => {
                self.workers[at].begin_turn(now);
                self.workers[at].clean(CleaningOccasion::LowMemory);
            }
            975..982 => self.drop_some(),
            982..986 => self.now = UnixMillis(self.now.0 + self.rng.u64(..1000)),
            986..990 => self.expire(at),
            990..991 if self.rng.u8(..20) == 0 => self.flush(),
            996..999 => self.settle_recovery(at),
            999 => self.evict(at),
            991..996 if self.rng.u8(..self.scale.calm) == 0 => self.crash(),
            _ => {}
        }
    }

    /// Runs the background work of an idle reactor many times: a server that has been idle for a
    /// while must have room again.
    pub(crate) fn rest(&mut self) {
        for _ in 0..60 {
            for at in 0..self.workers.len() {
                self.turn(at);
                for _ in 0..20 {
                    self.workers[at].clean(CleaningOccasion::LowMemory);
                }
                self.disk.save(&self.store, &mut self.workers[at], || true);
            }
            self.disk.sync_all(&self.store);
            while self.disk.drop_one(0) {}
            while self.disk.release_one(&self.store) {}
        }
    }

    fn turn(&mut self, at: usize) {
        self.workers[at].begin_turn(self.now);
    }

    /// Chooses a key. A tenth of the keys is written frequently; the others are written mainly in
    /// some phases, so that old segments with many live entries exist.
    fn key_of(&mut self) -> usize {
        let is_hot_phase = self.numbers % 1000 < 600;
        let hot = if is_hot_phase { 250 } else { 100 };
        let keys = self.scale.keys;
        let most = if self.rng.u8(..) < hot { keys / 10 } else { keys };
        self.rng.usize(TWINS.len()..most.max(TWINS.len() + 1))
    }

    fn next_value(&mut self) -> (u64, Vec<u8>) {
        self.numbers += 1;
        let length = 8 + self.rng.usize(..=self.scale.value_bytes_max);
        let mut bytes = self.numbers.to_le_bytes().to_vec();
        bytes.resize(length, self.numbers as u8);
        (self.numbers, bytes)
    }

    fn expiry(&mut self) -> Option<UnixMillis> {
        (self.rng.u8(..self.scale.expiring) == 0)
            .then(|| UnixMillis(self.now.0 + self.rng.u64(1..1500)))
    }

    fn put(&mut self, at: usize) {
        let key = self.key_of();
        self.put_key(at, key);
    }

    fn put_key(&mut self, at: usize, key: usize) {
        let ((number, bytes), expiry) = (self.next_value(), self.expiry());
        let name = name(key);
        let hashed = self.hashed(&name);
        let result = self.workers[at].put(TABLE, hashed, &bytes, expiry);
        let needs = self.needs(at);
        if self.count(&result) {
            self.note(key, State { value: Some((number, expiry)), needs });
        }
    }

    fn delete(&mut self, at: usize) {
        let key = self.key_of();
        self.delete_key(at, key);
    }

    fn delete_key(&mut self, at: usize, key: usize) {
        let name = name(key);
        let need = if self.rng.bool() { Need::Records } else { Need::Nothing };
        let hashed = self.hashed(&name);
        let result = self.workers[at].update(TABLE, &[hashed], need, |records, changes| {
            changes.delete(0);
            records[0].map(|record| number(record.value.bytes))
        });
        let needs = self.needs(at);
        if let Ok(seen) = &result {
            self.check_seen(key, *seen, &needs);
            // Otherwise the key did not exist, and nothing changed.
            if !needs.is_empty() {
                self.note(key, State { value: None, needs });
            }
        }
        self.count(&result);
    }

    /// Writes a value after reading the previous one.
    fn increment(&mut self, at: usize) {
        let key = self.key_of();
        let (new, bytes) = self.next_value();
        let name = name(key);
        let hashed = self.hashed(&name);
        let result =
            self.workers[at].update(TABLE, &[hashed], Need::Records, |records, changes| {
                changes.put(0, &bytes, None);
                records[0].map(|record| number(record.value.bytes))
            });
        let needs = self.needs(at);
        if let Ok(seen) = &result {
            self.check_seen(key, *seen, &needs);
            self.note(key, State { value: Some((new, None)), needs });
        }
        self.count(&result);
    }

    fn put_twins(&mut self, at: usize) {
        let names = TWINS.map(name);
        let keys = names.each_ref().map(|name| key(&self.store, name));
        let (number, bytes) = self.next_value();
        let deletes = self.rng.u8(..4) == 0;
        let result = self.workers[at].update(TABLE, &keys, Need::Nothing, |_, changes| {
            for at in 0..2 {
                if deletes { changes.delete(at) } else { changes.put(at, &bytes, None) }
            }
        });
        let needs = self.needs(at);
        if self.count(&result) && !needs.is_empty() {
            let value = (!deletes).then_some((number, None));
            for twin in TWINS {
                self.note(twin, State { value, needs: needs.clone() });
            }
        }
    }

    fn read(&mut self, at: usize) {
        let key = self.key_of();
        let name = name(key);
        let hashed = self.hashed(&name);
        let read =
            |record: Option<store::Record<'_>>| record.map(|record| number(record.value.bytes));
        let seen = self.workers[at].read_one(TABLE, hashed, read).unwrap();
        let needs = self.needs(at);
        self.check_seen(key, seen, &needs);
    }

    /// Checks that an operation saw the state of the last write, and that its reply waits for
    /// that write.
    fn check_seen(&mut self, key: usize, seen: Option<u64>, needs: &[(SegmentId, u32)]) {
        let clock = self.store.clock();
        let Some(last) = self.histories.get(&key).and_then(|history| history.last()) else {
            assert_eq!(seen, None, "key {key} was never written");
            return;
        };
        assert_eq!(seen, last.value_at(clock), "key {key}");
        // If the reply waited for less, it could reveal a value that can still be lost. (The last
        // position is the write itself; earlier ones are its dependencies, such as the replaced
        // entry.)
        if let Some((segment, end)) = last.needs.last() {
            let is_safe = self.disk.has(*segment, *end);
            let waits = needs.iter().any(|(of, to)| of == segment && to >= end);
            assert!(is_safe || waits, "key {key} is shown before {segment} {end}");
        }
    }

    fn expire(&mut self, at: usize) {
        self.turn(at);
        let mut cursor = Some(KeyHash(0));
        while let Some(from) = cursor {
            cursor = self.workers[at].expire(TABLE, from, 50);
        }
    }

    /// Evicts some records with an expiry. The model learns from reads which ones are gone.
    fn evict(&mut self, at: usize) {
        self.turn(at);
        let before = self.store.evicted();
        let rule = EvictionRule { policy: EvictionPolicy::VolatileRandom, samples: 5 };
        self.workers[at].evict(rule, 2_000, |_, _, _| 0);
        let clock = self.store.clock();
        let last = |history: &History| history.last().and_then(|state| state.value_at(clock));
        let present = self.histories.iter().filter(|(_, history)| last(history).is_some());
        let present: Vec<usize> = present.map(|(key, _)| *key).collect();
        let mut gone = 0;
        for key in present {
            let name = name(key);
            let hashed = self.hashed(&name);
            let is_there = self.workers[at].read_one(TABLE, hashed, |record| record.is_some());
            let needs = self.needs(at);
            if !is_there.unwrap() {
                self.note(key, State { value: None, needs });
                gone += 1;
            }
        }
        assert_eq!(gone, self.store.evicted() - before);
        self.evicted += gone;
    }

    /// Flushes everything, under a new incarnation.
    fn flush(&mut self) {
        self.store.publish(tablets(self.incarnation, true));
        let all = 0..self.workers.len();
        all.clone().for_each(|at| self.turn(at));
        self.incarnation += TABLES_MAX as u64;
        let mut cursor = Some(KeyHash(0));
        while let Some(from) = cursor {
            self.turn(0);
            cursor = self.workers[0].flush_step(TABLE, from, 1000);
        }
        self.store.publish(tablets(self.incarnation, false));
        all.for_each(|at| self.turn(at));
        self.histories.clear();
    }

    fn drop_some(&mut self) {
        while self.rng.u8(..4) != 0 {
            if self.rng.bool() {
                let choice = self.rng.usize(..);
                self.disk.drop_one(choice);
            } else {
                self.disk.release_one(&self.store);
            }
        }
    }

    /// Lets two workers write the same key in succession; returns the second worker.
    fn race(&mut self) -> usize {
        let [first, second] = [(); 2].map(|()| self.rng.usize(..self.workers.len()));
        let key = self.key_of();
        for at in [first, second] {
            if self.rng.u8(..3) > 0 { self.put_key(at, key) } else { self.delete_key(at, key) }
        }
        second
    }

    /// Lets one worker write and another overwrite the same key, with only the second write on
    /// the disk.
    fn lose_a_link(&mut self) {
        let second = self.race();
        self.disk.save(&self.store, &mut self.workers[second], || true);
    }

    /// Ends the process and continues with the contents of the disk.
    pub(crate) fn crash(&mut self) {
        self.crashes += 1;
        if self.rng.bool() {
            self.lose_a_link();
        }
        if self.disk.manifest.len() > self.scale.segments {
            // Many crashes in a row: nothing was cleaned between them.
            self.rest();
        }
        let is_power_cut = self.rng.bool();
        let mut rng = self.rng.fork();
        let keep = |pieces: usize| if rng.bool() { 0 } else { rng.usize(..=pieces) };
        let left = self.disk.after_crash(is_power_cut.then_some(keep));
        let allowed: BTreeMap<usize, Vec<State>> = self
            .histories
            .iter()
            .map(|(key, history)| (*key, self.kept(history, is_power_cut)))
            .collect();
        self.workers.clear();
        self.remains = successor::Remains::default();
        if self.scale.has_successors && self.rng.bool() {
            self.be_succeeded(&left);
        } else {
            self.come_back(left);
        }
        self.check_bytes();
        self.histories.clear();
        for (key, states) in allowed {
            self.check_recovered(key, states);
        }
        let twins = TWINS.map(|twin| self.histories.get(&twin).map(|history| history[0].value));
        assert_eq!(twins[0], twins[1], "half of a write of two keys is there");
    }

    fn come_back(&mut self, left: Disk) {
        self.disk = left;
        let seed = self.rng.u64(..);
        let order = |segments: &mut Vec<SegmentId>| Rng::with_seed(seed).shuffle(segments);
        let serving = tablets(self.incarnation, false);
        (self.store, self.workers) =
            self.disk.recover(self.scale.config(), serving, self.now, order);
    }

    /// Returns the states of which one must be present after a crash.
    fn kept(&self, history: &History, is_power_cut: bool) -> Vec<State> {
        let is_kept = |state: &State| {
            state.needs.iter().all(|(segment, end)| match is_power_cut {
                true => self.disk.has_synced(*segment, *end),
                false => self.disk.has(*segment, *end),
            })
        };
        let first = history.iter().rposition(is_kept);
        let mut states = history[first.unwrap_or(0)..].to_vec();
        if first.is_none() {
            states.insert(0, State { value: None, needs: Vec::new() });
        }
        states
    }

    fn check_recovered(&mut self, key: usize, states: Vec<State>) {
        let name = name(key);
        let hashed = self.hashed(&name);
        let read =
            |record: Option<store::Record<'_>>| record.map(|record| number(record.value.bytes));
        let seen = self.workers[0].read_one(TABLE, hashed, read).unwrap();
        assert!(self.workers[0].take_dependency().is_none(), "recovered records are durable");
        let clock = self.store.clock();
        let found = states.iter().rev().find(|state| state.value_at(clock) == seen);
        let Some(found) = found else {
            let may_be: Vec<_> = states.iter().map(|state| state.value_at(clock)).collect();
            panic!("key {key} is {seen:?} after crash {}, not one of {may_be:?}", self.crashes);
        };
        let value = seen.and(found.value);
        self.histories.insert(key, vec![State { value, needs: Vec::new() }]);
    }

    /// Checks that the log's live bytes are those of the index and of the pins.
    pub(crate) fn check_bytes(&mut self) {
        self.turn(0);
        let usage = self.store.usage().log;
        let indexed = self.workers[0].range_bytes(HashRange::ALL);
        assert_eq!(
            usage.live_bytes,
            indexed + usage.pinned_bytes,
            "live bytes are counted wrongly"
        );
    }

    fn hashed<'n>(&self, name: &'n [u8]) -> store::Key<'n> {
        key(&self.store, name)
    }

    fn needs(&mut self, at: usize) -> Vec<(SegmentId, u32)> {
        let dependency: Option<Dependency> = self.workers[at].take_dependency();
        dependency.iter().flat_map(Dependency::positions).collect()
    }

    fn count<T>(&mut self, result: &Result<T, Stall>) -> bool {
        match result {
            Ok(_) => self.written += 1,
            Err(Stall::OutOfMemory) => self.refused += 1,
            Err(other) => panic!("{other:?}"),
        }
        result.is_ok()
    }

    fn note(&mut self, key: usize, state: State) {
        let history = self.histories.entry(key).or_default();
        history.push(state);
        // A synced state cannot be lost: earlier ones are forgotten.
        let disk = &self.disk;
        let is_synced = |state: &State| {
            state.needs.iter().all(|(segment, end)| disk.has_synced(*segment, *end))
        };
        if let Some(first) = history.iter().rposition(is_synced) {
            history.drain(..first);
        } else if history.len() == 1 {
            history.insert(0, State { value: None, needs: Vec::new() });
        }
    }
}

impl State {
    fn value_at(&self, clock: UnixMillis) -> Option<u64> {
        let (number, expiry) = self.value?;
        expiry.is_none_or(|at| at > clock).then_some(number)
    }
}

impl Disk {
    fn has(&self, segment: SegmentId, end: u32) -> bool {
        // A dropped segment is not needed any more.
        let has = |replica: &Replica| replica.bytes.len() >= end as usize;
        self.gone.contains(&segment) || self.segments.get(&segment).is_some_and(has)
    }

    fn has_synced(&self, segment: SegmentId, end: u32) -> bool {
        let has = |replica: &Replica| replica.synced >= end as usize;
        self.gone.contains(&segment) || self.segments.get(&segment).is_some_and(has)
    }
}

impl Scale {
    /// Returns parameters that depend on the seed.
    pub(crate) fn of(seed: u64) -> Scale {
        Scale {
            reactors: 1 + (seed % 3) as u16,
            segments: 40,
            keys: [60, 1000][(seed % 2) as usize],
            value_bytes_max: if seed % 5 < 3 { 2000 } else { 100 },
            calm: [3, 30][(seed / 4 % 2) as usize],
            expiring: [4, 30][(seed / 2 % 2) as usize],
            has_successors: seed / 16 % 2 == 1,
        }
    }

    fn config(self) -> store::StoreConfig {
        config(self.segments * SEGMENT_BYTES, SEGMENT_BYTES, self.reactors)
    }
}

fn name(key: usize) -> Vec<u8> {
    format!("key {key}").into_bytes()
}

fn number(value: &[u8]) -> u64 {
    u64::from_le_bytes(*value.first_chunk().expect("values begin with their number"))
}

/// Returns the incarnations of all tables, starting with this number.
pub(crate) fn incarnations(first: u64) -> [Incarnation; TABLES_MAX] {
    std::array::from_fn(|table| Incarnation(first + table as u64))
}

fn tablets(incarnation: u64, is_flushed: bool) -> TabletMap {
    let flushing = if is_flushed { TableSet::ALL } else { TableSet::NONE };
    TabletMap::new(vec![Tablet {
        range: HashRange::ALL,
        epoch: OwnershipEpoch(1),
        incarnations: incarnations(incarnation),
        state: TabletState::Serving,
        clock: RangeClock::OWN,
        flushing,
    }])
}
