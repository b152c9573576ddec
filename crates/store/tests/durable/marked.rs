//! A durable store with version marks, on a machine that loses power.
//!
//! Three reactors write, delete and exchange values of several keys, save, sync, clean and mark in
//! an order drawn from a seed. After a loss of power the store must have exactly the state that it
//! had at the last mark. After the end of the process alone it must have all that was saved.

use crate::common::{NOW, TABLE, key, tablet};
use crate::disk::{Disk, config};
use fastrand::Rng;
use std::collections::BTreeMap;
use std::sync::Arc;
use store::{
    CleaningOccasion, Key, Need, PendingMark, Stall, Store, TabletMap, TabletState, Worker,
};
use types::{HashRange, SegmentId, Version};
use wire::manifest::VersionMark;

const SEGMENT_BYTES: usize = 64 << 10;
const SEGMENTS: usize = 60;
const REACTORS: u16 = 3;
const KEYS: usize = 120;
const VALUE_BYTES_MAX: usize = 3_000;

/// Content of the store: the numbers of the values.
type Content = BTreeMap<usize, u64>;

/// New values of some keys; `None`: the key is deleted.
type Change = Vec<(usize, Option<u64>)>;

pub(crate) struct MarkedWorld {
    rng: Rng,
    store: Arc<Store>,
    workers: Vec<Worker>,
    disk: Disk,
    pending: Option<PendingMark>,
    /// Content at the start of the process.
    base: Content,
    /// Changes since then, each with the version counter behind it.
    changes: Vec<(Version, Change)>,
    numbers: u64,
    pub(crate) power_cuts: u64,
    pub(crate) lost: u64,
}

impl MarkedWorld {
    pub(crate) fn new(seed: u64) -> MarkedWorld {
        let mark = VersionMark { whole: SegmentId(0), version: Version(0) };
        let mut disk = Disk { mark: Some(mark), ..Disk::default() };
        let (store, workers) = start(&mut disk, 0);
        MarkedWorld {
            rng: Rng::with_seed(seed),
            store,
            workers,
            disk,
            pending: None,
            base: Content::new(),
            changes: Vec::new(),
            numbers: 0,
            power_cuts: 0,
            lost: 0,
        }
    }

    /// Executes one random step.
    pub(crate) fn step(&mut self) {
        let at = self.rng.usize(..self.workers.len());
        match self.rng.u32(..1000) {
            0..500 => self.change(at),
            500..560 => self.workers[at].begin_turn(NOW),
            560..660 => self.disk.save(&self.store, &mut self.workers[at], || true),
            660..740 => self.disk.sync_some(&self.store, &mut self.rng),
            740..850 => {
                self.workers[at].begin_turn(NOW);
                self.workers[at].clean(CleaningOccasion::LowMemory);
            }
            850..900 => {
                let choice = self.rng.usize(..);
                self.disk.drop_one(choice);
            }
            900..950 => {
                self.disk.release_one(&self.store);
            }
            950..997 => self.mark(),
            _ if self.rng.u8(..4) == 0 => self.crash(),
            _ => {}
        }
    }

    /// Changes one to three keys in one step.
    fn change(&mut self, at: usize) {
        let count = self.rng.usize(1..=3);
        let of_change: Vec<usize> = (0..count).map(|_| self.rng.usize(..KEYS)).collect();
        self.numbers += 1;
        let number = self.numbers;
        let mut value = number.to_le_bytes().to_vec();
        value.resize(8 + self.rng.usize(..VALUE_BYTES_MAX), number as u8);
        let deletes: Vec<bool> = of_change.iter().map(|_| self.rng.u8(..4) == 0).collect();
        let names: Vec<Vec<u8>> = of_change.iter().map(|key| name(*key)).collect();
        let keys: Vec<Key<'_>> = names.iter().map(|name| key(&self.store, name)).collect();
        self.workers[at].begin_turn(NOW);
        let changed = self.workers[at].update(TABLE, &keys, Need::Records, |_, changes| {
            for (at, deletes) in deletes.iter().enumerate() {
                if *deletes { changes.delete(at) } else { changes.put(at, &value, None) }
            }
        });
        match changed {
            Ok(()) => {
                let new = deletes.iter().map(|deletes| (!deletes).then_some(number));
                let change = of_change.into_iter().zip(new).collect();
                self.changes.push((self.store.version(), change));
            }
            Err(Stall::OutOfMemory) => {}
            Err(other) => panic!("{other:?}"),
        }
    }

    /// Begins a mark, or records the pending one if it is reached.
    fn mark(&mut self) {
        let Some(mark) = &mut self.pending else {
            self.pending = Some(self.store.begin_mark());
            return;
        };
        if self.store.is_mark_reached(mark) {
            let recorded = self.disk.mark.as_mut().expect("the log has marks");
            assert!(recorded.version <= mark.version(), "a mark goes back");
            recorded.version = mark.version();
            self.store.note_marked(mark);
            self.pending = None;
            self.disk.note_changes(&self.store);
        }
    }

    /// Cleans as a server does that has been idle for a while.
    fn rest(&mut self) {
        for _ in 0..60 {
            for at in 0..self.workers.len() {
                self.workers[at].begin_turn(NOW);
                for _ in 0..20 {
                    self.workers[at].clean(CleaningOccasion::LowMemory);
                }
            }
            self.save_all();
            self.disk.sync_all(&self.store);
            self.mark();
            while self.disk.drop_one(0) {}
            while self.disk.release_one(&self.store) {}
        }
    }

    fn save_all(&mut self) {
        while self.workers.iter().any(Worker::has_unsaved) {
            let workers = self.workers.iter_mut();
            workers.for_each(|worker| self.disk.save(&self.store, worker, || true));
        }
    }

    /// Ends the process or cuts the power, and checks what the next process finds.
    fn crash(&mut self) {
        if self.disk.manifest.len() > SEGMENTS * 2 / 3 {
            self.rest();
        }
        let is_power_cut = self.rng.bool();
        let mut until = Version::MAX;
        let left = if is_power_cut {
            self.power_cuts += 1;
            until = self.disk.mark.expect("the log has marks").version;
            let mut rng = self.rng.fork();
            let keep = |pieces: usize| if rng.bool() { 0 } else { rng.usize(..=pieces) };
            self.disk.after_crash(Some(keep))
        } else {
            self.save_all();
            self.disk.after_crash(None::<fn(usize) -> usize>)
        };
        self.workers.clear();
        self.pending = None;
        self.disk = left;
        (self.store, self.workers) = start(&mut self.disk, self.rng.u64(..));
        for (version, changes) in std::mem::take(&mut self.changes) {
            if version > until {
                self.lost += 1;
                continue;
            }
            for (key, value) in changes {
                match value {
                    Some(number) => self.base.insert(key, number),
                    None => self.base.remove(&key),
                };
            }
        }
        assert_eq!(self.content(), self.base, "at {until}, power cut: {is_power_cut}");
        self.check_bytes();
    }

    fn content(&mut self) -> Content {
        let mut content = Content::new();
        for at in 0..KEYS {
            let name = name(at);
            let hashed = key(&self.store, &name);
            let value = self.workers[0].read_one(TABLE, hashed, |record| {
                record.and_then(|it| it.value.bytes.first_chunk().map(|it| u64::from_le_bytes(*it)))
            });
            content.extend(value.expect("the store serves all keys").map(|number| (at, number)));
        }
        content
    }

    /// Checks that the log's live bytes are those of the index and of the pins.
    fn check_bytes(&mut self) {
        let usage = self.store.usage().log;
        let indexed = self.workers[0].range_bytes(HashRange::ALL);
        assert_eq!(
            usage.live_bytes,
            indexed + usage.pinned_bytes,
            "live bytes are counted wrongly"
        );
    }
}

/// Starts a process that finds this disk, and reads the segments in an order drawn from a seed.
fn start(disk: &mut Disk, seed: u64) -> (Arc<Store>, Vec<Worker>) {
    let serving = TabletMap::new(vec![tablet(HashRange::ALL, TabletState::Serving)]);
    let config = config(SEGMENTS * SEGMENT_BYTES, SEGMENT_BYTES, REACTORS);
    disk.recover(config, serving, NOW, |segments| Rng::with_seed(seed).shuffle(segments))
}

fn name(key: usize) -> Vec<u8> {
    format!("key {key}").into_bytes()
}
