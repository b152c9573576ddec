//! A server that does not come back: another one recovers its log, in parts and in any order, and
//! the test continues with that server.

use super::{Scale, World, incarnations, name, number};
use crate::common::TABLE;
use crate::disk::Disk;
use fastrand::Rng;
use std::sync::Arc;
use store::log::Among;
use store::{
    CleaningOccasion, RangeClock, Recovery, RecoveryPlan, ReplayError, Stall, TableSet, Tablet,
    TabletMap, TabletState, Worker,
};
use types::limits::TABLES_MAX;
use types::{HashRange, KeyHash, OwnershipEpoch};

/// Maximum number of consecutive replay steps that fail for lack of memory, before the store
/// counts as too small.
const REFUSED_MAX: usize = 20;

/// Remaining work after the log has been replayed, and late messages that must have no effect.
#[derive(Default)]
pub(super) struct Remains {
    /// Recoveries with tombstones that are not reclaimed.
    sweeping: Vec<Arc<Recovery>>,
    /// Pieces that arrive again, too late.
    late: Vec<Piece>,
}

/// A stretch of the dead server's log to be replayed into one recovery partition.
#[derive(Clone)]
struct Piece {
    recovery: Arc<Recovery>,
    entries: Arc<Vec<u8>>,
    from: usize,
}

impl World {
    /// Lets another server recover the contents of the disk.
    pub(super) fn be_succeeded(&mut self, left: &Disk) {
        let mut twin = Twin::new(self.scale, left, self.incarnation, self.now);
        let old_incarnation = self.incarnation;
        self.disk = Disk::default();
        let (none, now) = (TabletMap::default(), self.now);
        (self.store, self.workers) = self.disk.recover(self.scale.config(), none, now, |_| {});
        let stretches = left.stretches(&mut self.rng, 200).into_iter();
        let stretches: Vec<Arc<Vec<u8>>> = stretches.map(Arc::new).collect();
        loop {
            let parts = self.begin_recovery(old_incarnation);
            let pieces = pieces(&parts, &stretches, &mut self.rng);
            if self.replay_all(pieces.clone()) {
                self.remains = Remains { sweeping: parts, late: pieces };
                break;
            }
            self.abandon();
        }
        if self.rng.bool() {
            // The index words of reclaimed tombstones go when these are synced.
            (0..10).for_each(|_| {
                self.settle_recovery(0);
                self.rest();
            });
        }
        self.serve();
        for number in 0..self.scale.keys {
            let name = name(number);
            let hashed = self.hashed(&name);
            assert_eq!(see(&mut self.workers[0], hashed), twin.see(hashed), "key {number}");
        }
    }

    /// Begins one to three recovery partitions, under new incarnations.
    fn begin_recovery(&mut self, old_incarnation: u64) -> Vec<Arc<Recovery>> {
        self.incarnation += TABLES_MAX as u64;
        let ranges = HashRange::ALL.divide(self.rng.usize(1..=3));
        let expected = [0, 1 << 18, 1 << 21, u64::MAX][self.rng.usize(..4)];
        let recovery = |(number, range)| {
            let number = self.incarnation + number as u64;
            let old_incarnations = vec![incarnations(old_incarnation).to_vec()];
            let recovery = Recovery::new(RecoveryPlan { number, range, old_incarnations });
            recovery.foresee(expected);
            Arc::new(recovery)
        };
        let parts: Vec<Arc<Recovery>> = ranges.into_iter().enumerate().map(recovery).collect();
        let tablet = |recovery: &Arc<Recovery>| Tablet {
            range: recovery.range(),
            epoch: OwnershipEpoch(2),
            incarnations: incarnations(self.incarnation),
            state: TabletState::Recovering(Arc::clone(recovery)),
            clock: RangeClock::OWN,
            flushing: TableSet::NONE,
        };
        self.store.publish(TabletMap::new(parts.iter().map(tablet).collect()));
        (0..self.workers.len()).for_each(|at| self.turn(at));
        parts
    }

    /// Replays pieces in any order, interleaved with other work. Returns `false` if the recovery
    /// was abandoned.
    fn replay_all(&mut self, mut pieces: Vec<Piece>) -> bool {
        let gives_up_at = if self.rng.u8(..4) == 0 { self.rng.usize(..=pieces.len()) } else { 0 };
        let mut refused = 0;
        while !pieces.is_empty() {
            if pieces.len() == gives_up_at {
                return false;
            }
            let (which, at) =
                (self.rng.usize(..pieces.len()), self.rng.usize(..self.workers.len()));
            let Piece { recovery, entries, from } = &pieces[which];
            let most = self.rng.usize(1..100);
            match self.workers[at].replay_log(recovery, entries, *from, most) {
                Ok(replayed) => {
                    refused = 0;
                    match replayed.next {
                        Some(next) => pieces[which].from = next,
                        None => drop(pieces.swap_remove(which)),
                    }
                }
                Err(ReplayError::OutOfMemory) => {
                    refused += 1;
                    assert!(refused < REFUSED_MAX, "the log of a like server has no room");
                    self.rest();
                }
                Err(ReplayError::Corrupt(corrupt)) => panic!("{corrupt}"),
            }
            self.go_on_beside(at);
        }
        true
    }

    /// Executes other work while a range is being recovered.
    fn go_on_beside(&mut self, at: usize) {
        match self.rng.u32(..40) {
            0..4 => {
                let takes = self.rng.u8(1..4);
                let rng = &mut self.rng;
                self.disk.save(&self.store, &mut self.workers[at], || rng.u8(..4) < takes);
            }
            4..6 => self.disk.sync_some(&self.store, &mut self.rng),
            6..12 => {
                self.turn(at);
                self.workers[at].clean(CleaningOccasion::LowMemory);
            }
            12..14 => self.drop_some(),
            14..16 => self.turn(at),
            16 => self.expire(at),
            17 => {
                let name = name(self.key_of());
                let hashed = self.hashed(&name);
                let read = self.workers[at].read_one(TABLE, hashed, |_| ());
                assert_eq!(read, Err(Stall::Held), "the content is not known yet");
            }
            _ => {}
        }
    }

    /// Removes everything that was replayed.
    fn abandon(&mut self) {
        self.store.publish(TabletMap::default());
        (0..self.workers.len()).for_each(|at| self.turn(at));
        let mut cursor = Some(KeyHash(0));
        while let Some(from) = cursor {
            cursor = self.workers[0].forget(HashRange::ALL, from, 100);
        }
        assert!(self.workers[0].is_empty(HashRange::ALL), "something is left");
        self.check_bytes();
    }

    /// Makes the replayed records durable, and serves them.
    fn serve(&mut self) {
        for worker in &mut self.workers {
            self.disk.save(&self.store, worker, || true);
        }
        assert!(self.store.log().unacknowledged(Among::Everything).is_none(), "all has been saved");
        self.disk.sync_all(&self.store);
        self.store.publish(super::tablets(self.incarnation, false));
        (0..self.workers.len()).for_each(|at| self.turn(at));
    }

    /// Reclaims some tombstones of the recoveries.
    fn sweep_some(&mut self, parts: &[Arc<Recovery>]) {
        for recovery in parts {
            let at = self.rng.usize(..self.workers.len());
            let most = self.rng.usize(1..20);
            self.workers[at].sweep_recovery(recovery, most);
        }
    }

    /// Continues with the remaining work of a recovery.
    pub(super) fn settle_recovery(&mut self, at: usize) {
        let parts = self.remains.sweeping.clone();
        self.sweep_some(&parts);
        if !self.remains.late.is_empty() {
            let late = self.rng.usize(..self.remains.late.len());
            let Piece { recovery, entries, .. } = self.remains.late.swap_remove(late);
            let replayed = self.workers[at].replay_log(&recovery, &entries, 0, usize::MAX).unwrap();
            assert_eq!((replayed.records, replayed.next), (0, None), "it is too late");
        }
    }
}

/// Returns every stretch for every recovery partition, some of them twice.
fn pieces(parts: &[Arc<Recovery>], stretches: &[Arc<Vec<u8>>], rng: &mut Rng) -> Vec<Piece> {
    let mut pieces = Vec::new();
    for recovery in parts {
        for entries in stretches {
            let piece = Piece { recovery: recovery.clone(), entries: entries.clone(), from: 0 };
            let times = 1 + usize::from(rng.u8(..5) == 0);
            pieces.extend(std::iter::repeat_n(piece, times));
        }
    }
    pieces
}

/// The server that would have come back from the same disk.
struct Twin {
    workers: Vec<Worker>,
}

impl Twin {
    fn new(scale: Scale, left: &Disk, incarnation: u64, now: types::UnixMillis) -> Twin {
        let serving = super::tablets(incarnation, false);
        let (_, workers) = left.clone().recover(scale.config(), serving, now, |_| {});
        Twin { workers }
    }

    fn see(&mut self, key: store::Key<'_>) -> Option<u64> {
        see(&mut self.workers[0], key)
    }
}

fn see(worker: &mut Worker, key: store::Key<'_>) -> Option<u64> {
    worker.read_one(TABLE, key, |record| record.map(|record| number(record.value.bytes))).unwrap()
}
