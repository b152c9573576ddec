//! Reactors whose segments are saved independently: a crash takes no part of a batch away, and
//! nothing that another batch has read.

use crate::common::{NOW, TABLE, key, number};
use crate::disk::{Disk, config};
use crate::simple::serving;
use fastrand::Rng;
use std::sync::Arc;
use store::{Changes, Need, Record, Store, Worker};

const ACCOUNTS: [&str; 6] = ["a", "b", "c", "d", "e", "f"];
const START: u64 = 100;

/// One server with three reactors.
struct Server {
    store: Arc<Store>,
    workers: Vec<Worker>,
    disk: Disk,
}

impl Server {
    fn on(mut disk: Disk) -> Server {
        let (store, workers) = disk.recover(config(64 << 20, 64 << 10, 3), serving(), NOW, |_| {});
        Server { store, workers, disk }
    }

    /// Returns a server that has saved these records.
    fn with(names: &[&str]) -> Server {
        let mut server = Server::on(Disk::default());
        for name in names {
            server.update(0, &[*name], |_, changes| changes.put(0, b"100", None));
        }
        server.save(0);
        server
    }

    /// Updates records on one of the reactors.
    fn update(
        &mut self,
        reactor: usize,
        names: &[&str],
        f: impl FnOnce(&[Option<Record<'_>>], &mut Changes<'_>),
    ) {
        let keys: Vec<_> = names.iter().map(|name| key(&self.store, name.as_bytes())).collect();
        self.workers[reactor].begin_turn(NOW);
        self.workers[reactor].update(TABLE, &keys, Need::Records, f).unwrap();
    }

    /// Moves an amount from one account to another on one of the reactors.
    fn transfer(&mut self, reactor: usize, names: [&str; 2], amount: u64) {
        self.update(reactor, &names, |accounts, changes| {
            let [from, to] = [0, 1].map(|at| number(accounts[at].unwrap().value.bytes));
            let amount = amount.min(from);
            changes.put(0, (from - amount).to_string().as_bytes(), None);
            changes.put(1, (to + amount).to_string().as_bytes(), None);
        });
    }

    /// Copies the first record to the second key.
    fn copy(&mut self, reactor: usize, names: [&str; 2]) {
        self.update(reactor, &names, |records, changes| {
            changes.put(1, records[0].unwrap().value.bytes, None);
        });
    }

    /// Adds one to a record.
    fn increment(&mut self, reactor: usize, name: &str) {
        self.update(reactor, &[name], |records, changes| {
            let value = records[0].map_or(0, |record| number(record.value.bytes));
            changes.put(0, (value + 1).to_string().as_bytes(), None);
        });
    }

    fn get(&mut self, name: &str) -> Option<u64> {
        let key = key(&self.store, name.as_bytes());
        self.workers[0].begin_turn(NOW);
        let read = |record: Option<Record<'_>>| record.map(|record| number(record.value.bytes));
        self.workers[0].read_one(TABLE, key, read).unwrap()
    }

    /// Saves and acknowledges the bytes of one reactor.
    fn save(&mut self, reactor: usize) {
        self.disk.save(&self.store, &mut self.workers[reactor], || true);
    }

    /// Restarts the server after it was killed: what was saved is left.
    fn crash(self) -> Server {
        Server::on(self.disk.after_crash(None::<fn(usize) -> usize>))
    }
}

#[test]
fn a_write_that_has_read_a_record_of_a_batch_is_saved_behind_the_batch() {
    let mut server = Server::with(&["a", "b"]);
    server.transfer(0, ["a", "b"], 30);
    server.increment(1, "b");
    server.save(1);
    let mut server = server.crash();
    assert_eq!((server.get("a"), server.get("b")), (Some(100), Some(100)), "half a transfer");
    server.transfer(0, ["a", "b"], 30);
    server.increment(1, "b");
    server.save(0);
    server.save(1);
    let mut server = server.crash();
    assert_eq!((server.get("a"), server.get("b")), (Some(70), Some(131)));
}

#[test]
fn a_batch_is_saved_behind_every_record_that_it_has_read() {
    let mut server = Server::with(&["a"]);
    server.increment(0, "a");
    server.copy(1, ["a", "b"]);
    server.save(1);
    let mut server = server.crash();
    assert_eq!((server.get("a"), server.get("b")), (Some(100), None), "a copy of nothing");
}

/// The batch writes one record only, but it depends on another reactor.
#[test]
fn a_write_that_has_read_the_only_record_of_a_dependent_batch_is_saved_behind_it() {
    let mut server = Server::with(&["a"]);
    server.increment(0, "a");
    server.copy(1, ["a", "b"]);
    server.increment(2, "b");
    server.save(2);
    let mut server = server.crash();
    assert_eq!((server.get("a"), server.get("b")), (Some(100), None), "a copy of nothing");
}

/// The second write of the first reactor needs no order of its own, but the third write has read the
/// batch through it.
#[test]
fn a_write_that_has_read_a_batch_through_another_write_is_saved_behind_the_batch() {
    let mut server = Server::with(&["a", "b"]);
    server.transfer(0, ["a", "b"], 30);
    server.increment(0, "b");
    server.increment(1, "b");
    server.save(1);
    let mut server = server.crash();
    assert_eq!((server.get("a"), server.get("b")), (Some(100), Some(100)), "half a transfer");
}

#[test]
fn writes_of_single_records_wait_for_nobody() {
    let mut server = Server::with(&["a"]);
    server.increment(0, "a");
    server.increment(1, "a");
    server.save(1);
    let mut server = server.crash();
    assert_eq!(server.get("a"), Some(102), "the newest version has both");
}

#[test]
fn what_was_written_before_a_dependent_batch_is_saved_without_waiting() {
    let mut server = Server::with(&["a", "b"]);
    server.increment(1, "c");
    server.transfer(0, ["a", "b"], 30);
    server.transfer(1, ["b", "a"], 1);
    server.save(1);
    let mut server = server.crash();
    assert_eq!((server.get("a"), server.get("c")), (Some(100), Some(1)));
}

/// Transfers between accounts on all reactors, with writes of single accounts in between; each
/// reactor saves when it likes, and fills many segments. After every crash the sum is the same.
#[test]
fn no_crash_leaves_half_a_transfer() {
    for seed in 0..20 {
        let mut rng = Rng::with_seed(seed);
        let mut server = Server::with(&ACCOUNTS);
        for step in 0..3_000 {
            let reactor = rng.usize(..3);
            let from = rng.usize(..ACCOUNTS.len());
            let to = (from + rng.usize(1..ACCOUNTS.len())) % ACCOUNTS.len();
            match rng.u8(..10) {
                0 | 1 => server.save(reactor),
                2..6 => {
                    server.transfer(reactor, [ACCOUNTS[from], ACCOUNTS[to]], rng.u64(1..20));
                }
                6..9 => server.update(reactor, &[ACCOUNTS[from]], |records, changes| {
                    changes.put(0, records[0].unwrap().value.bytes, None);
                }),
                _ => server.update(reactor, &["filler"], |_, changes| {
                    changes.put(0, &[b'x'; 9_000], None);
                }),
            }
            if rng.u32(..100) == 0 {
                server = server.crash();
                let sum: u64 = ACCOUNTS.iter().map(|name| server.get(name).unwrap()).sum();
                assert_eq!(sum, START * ACCOUNTS.len() as u64, "seed {seed}, step {step}");
            }
        }
    }
}

/// Bytes that wait are saved as soon as what they wait for is acknowledged, also the end of a
/// segment.
#[test]
fn everything_is_saved_in_the_end() {
    let mut server = Server::with(&ACCOUNTS);
    for round in 0..300 {
        server.transfer(round % 2, ["a", "b"], 1);
        server.update(1, &["filler"], |_, changes| changes.put(0, &[b'x'; 9_000], None));
    }
    for _ in 0..300 {
        server.save(0);
        server.save(1);
    }
    assert!(!server.workers.iter().any(Worker::has_unsaved), "some bytes are never sent");
    let mut server = server.crash();
    assert_eq!((server.get("a"), server.get("b")), (Some(0), Some(200)));
}
