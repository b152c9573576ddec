//! Recovered ranges that are served before they are durable in the new owner's log. If the new
//! owner dies, a third server reads both logs and finds all acknowledged writes.

use crate::common::{NOW, TABLE, key};
use crate::disk::{Disk, config};
use crate::world::incarnations;
use fastrand::Rng;
use std::collections::BTreeMap;
use std::sync::Arc;
use store::log::Among;
use store::{
    CleaningOccasion, Need, RangeClock, Recovery, RecoveryPlan, Store, TableSet, Tablet, TabletMap,
    TabletState, Worker,
};
use types::{HashRange, KeyHash, OwnershipEpoch, UnixMillis};

/// Number of keys in a history.
const KEYS: u32 = 300;
/// Number of keys that are written and removed frequently, so that old entries of other keys can
/// leave the log.
const HOT_KEYS: u32 = 20;

/// Expected values by key.
type Model = BTreeMap<u32, Vec<u8>>;

/// A server and its disk.
struct Server {
    store: Arc<Store>,
    workers: Vec<Worker>,
    disk: Disk,
    now: UnixMillis,
}

fn tablets(incarnation: u64, state: TabletState) -> TabletMap {
    let range = HashRange::ALL;
    let (epoch, flushing) = (OwnershipEpoch(incarnation), TableSet::NONE);
    let clock = RangeClock::OWN;
    let incarnations = incarnations(incarnation);
    TabletMap::new(vec![Tablet { range, epoch, incarnations, state, clock, flushing }])
}

impl Server {
    fn new(map: TabletMap) -> Server {
        let mut disk = Disk::default();
        let (store, workers) = disk.recover(config(24 << 16, 1 << 16, 2), map, NOW, |_| {});
        Server { store, workers, disk, now: NOW }
    }

    /// Creates a server that has replayed these logs, each with its first incarnation.
    fn successor(
        incarnation: u64,
        logs: &[(&Disk, u64)],
        rng: &mut Rng,
    ) -> (Server, Arc<Recovery>) {
        let old_incarnations =
            logs.iter().map(|(_, incarnation)| incarnations(*incarnation).to_vec()).collect();
        let plan = RecoveryPlan { number: incarnation, range: HashRange::ALL, old_incarnations };
        let recovery = Arc::new(Recovery::new(plan));
        let mut server =
            Server::new(tablets(incarnation, TabletState::Recovering(recovery.clone())));
        let mut pieces: Vec<Vec<u8>> =
            logs.iter().flat_map(|(disk, _)| disk.stretches(rng, 50)).collect();
        rng.shuffle(&mut pieces);
        for piece in pieces {
            let at = rng.usize(..server.workers.len());
            server.turn(at);
            let mut next = Some(0);
            while let Some(from) = next {
                next = server.workers[at].replay_log(&recovery, &piece, from, 100).unwrap().next;
            }
        }
        (server, recovery)
    }

    fn turn(&mut self, at: usize) {
        self.workers[at].begin_turn(self.now);
    }

    fn publish(&mut self, map: TabletMap) {
        self.store.publish(map);
        (0..self.workers.len()).for_each(|at| self.turn(at));
    }

    /// Executes a client operation or a step of the server's background work.
    fn step(&mut self, model: &mut Model, rng: &mut Rng) {
        let at = rng.usize(..self.workers.len());
        let keys = if rng.u32(..5) == 0 { KEYS } else { HOT_KEYS };
        let number = rng.u32(..keys);
        let name = number.to_string();
        let hashed = key(&self.store, name.as_bytes());
        match rng.u32(..20) {
            0..8 => {
                let longest = if number < HOT_KEYS { 8000 } else { 500 };
                let value = vec![rng.u8(..); rng.usize(..longest)];
                // Some values expire after the test, some immediately.
                let expiry = match rng.u32(..6) {
                    0 => Some(UnixMillis(self.now.0 + 1)),
                    1 => Some(UnixMillis(u64::MAX >> 1)),
                    _ => None,
                };
                self.turn(at);
                if self.workers[at].put(TABLE, hashed, &value, expiry).is_ok() {
                    model.insert(number, value);
                    if expiry.is_some_and(|at| at.0 == self.now.0 + 1) {
                        model.remove(&number);
                        self.now.0 += 1;
                    }
                }
            }
            8..12 => {
                self.turn(at);
                let delete = |_: &[Option<store::Record<'_>>], changes: &mut store::Changes<'_>| {
                    changes.delete(0);
                };
                if self.workers[at].update(TABLE, &[hashed], Need::Nothing, delete).is_ok() {
                    model.remove(&number);
                }
            }
            12..15 => {
                self.turn(at);
                while self.workers[at].clean(CleaningOccasion::LowMemory) && rng.u32(..20) != 0 {}
            }
            15 => {
                self.turn(at);
                let _ = self.workers[at].expire(TABLE, KeyHash(0), 100);
            }
            16..18 => self.disk.save(&self.store, &mut self.workers[at], || rng.u8(..4) > 0),
            18 => self.disk.sync_all(&self.store),
            _ => while self.disk.drop_one(0) && self.disk.release_one(&self.store) {},
        }
    }

    /// Acknowledges all writes of clients.
    fn save(&mut self) {
        for worker in &mut self.workers {
            self.disk.save(&self.store, worker, || true);
        }
    }

    fn check(&mut self, model: &Model, seed: u64) {
        for number in 0..KEYS {
            let name = number.to_string();
            let hashed = key(&self.store, name.as_bytes());
            self.turn(0);
            let read = |record: Option<store::Record<'_>>| record.map(|it| it.value.bytes.to_vec());
            let found = self.workers[0].read_one(TABLE, hashed, read).unwrap();
            assert_eq!(found.as_ref(), model.get(&number), "seed {seed}: key {number}");
        }
    }
}

#[test]
fn whoever_dies_before_it_has_all_that_it_serves_is_succeeded_from_both_logs() {
    let seeds = std::env::var("SEEDS").map_or(60, |seeds| seeds.parse().expect("a number"));
    for seed in 0..seeds {
        let rng = &mut Rng::with_seed(seed);
        let mut model = Model::new();
        let mut first = Server::new(tablets(100, TabletState::Serving));
        for _ in 0..rng.usize(..2000) {
            first.step(&mut model, rng);
        }
        first.save();
        let left = first.disk.after_crash(None::<fn(usize) -> usize>);

        let (mut second, recovery) = Server::successor(200, &[(&left, 100)], rng);
        second.now = first.now;
        second.publish(tablets(200, TabletState::Securing(recovery.clone())));
        second.check(&model, seed);
        let keeps_back = rng.bool();
        second.workers.iter_mut().for_each(|worker| worker.keep_recovered_back(keeps_back));
        for _ in 0..rng.usize(..3000) {
            second.step(&mut model, rng);
        }
        second.save();
        second.check(&model, seed);
        let inherited = second.disk.after_crash(None::<fn(usize) -> usize>);
        let (mut third, _) = Server::successor(300, &[(&inherited, 200), (&left, 100)], rng);
        third.now = second.now;
        third.publish(tablets(300, TabletState::Serving));
        third.check(&model, seed);

        // If the new owner lives until its own log has everything, that log alone is enough.
        second.workers.iter_mut().for_each(|worker| worker.keep_recovered_back(false));
        second.save();
        assert!(second.store.log().unacknowledged(Among::Everything).is_none(), "seed {seed}");
        second.publish(tablets(200, TabletState::Serving));
        for _ in 0..rng.usize(..2000) {
            second.step(&mut model, rng);
            second.workers[0].sweep_recovery(&recovery, 3);
        }
        second.save();
        let alone = second.disk.after_crash(None::<fn(usize) -> usize>);
        let (mut fourth, _) = Server::successor(400, &[(&alone, 200)], rng);
        fourth.now = second.now;
        fourth.publish(tablets(400, TabletState::Serving));
        fourth.check(&model, seed);
    }
}
