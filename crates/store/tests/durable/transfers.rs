//! A server with three reactors that save independently, and transfers between accounts.

use crate::common::{NOW, TABLE, key, number, tablet};
use crate::disk::{Disk, config};
use fastrand::Rng;
use std::sync::Arc;
use store::{Changes, Need, Record, Store, TabletMap, TabletState, Worker};
use types::HashRange;

pub(crate) const ACCOUNTS: [&str; 6] = ["a", "b", "c", "d", "e", "f"];
const START: u64 = 100;

/// One server with three reactors.
pub(crate) struct Server {
    pub(crate) store: Arc<Store>,
    pub(crate) workers: Vec<Worker>,
    pub(crate) disk: Disk,
}

impl Server {
    pub(crate) fn on(mut disk: Disk) -> Server {
        let serving = TabletMap::new(vec![tablet(HashRange::ALL, TabletState::Serving)]);
        let (store, workers) = disk.recover(config(64 << 20, 64 << 10, 3), serving, NOW, |_| {});
        Server { store, workers, disk }
    }

    /// Returns a server that has saved these records.
    pub(crate) fn with(names: &[&str]) -> Server {
        let mut server = Server::on(Disk::default());
        for name in names {
            server.update(0, &[*name], |_, changes| changes.put(0, b"100", None));
        }
        server.save(0);
        server
    }

    /// Updates records on one of the reactors.
    pub(crate) fn update(
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
    pub(crate) fn transfer(&mut self, reactor: usize, names: [&str; 2], amount: u64) {
        self.update(reactor, &names, |accounts, changes| {
            let [from, to] = [0, 1].map(|at| number(accounts[at].unwrap().value.bytes));
            let amount = amount.min(from);
            changes.put(0, (from - amount).to_string().as_bytes(), None);
            changes.put(1, (to + amount).to_string().as_bytes(), None);
        });
    }

    pub(crate) fn get(&mut self, name: &str) -> Option<u64> {
        let key = key(&self.store, name.as_bytes());
        self.workers[0].begin_turn(NOW);
        let read = |record: Option<Record<'_>>| record.map(|record| number(record.value.bytes));
        self.workers[0].read_one(TABLE, key, read).unwrap()
    }

    /// Saves and acknowledges the bytes of one reactor.
    pub(crate) fn save(&mut self, reactor: usize) {
        self.disk.save(&self.store, &mut self.workers[reactor], || true);
    }

    /// Restarts the server after it was killed: what was saved is left.
    pub(crate) fn crash(self) -> Server {
        Server::on(self.disk.after_crash(None::<fn(usize) -> usize>))
    }
}

/// Makes transfers between accounts on all reactors, with writes of single accounts in between; each
/// reactor saves when it likes, and fills many segments. Returns whether a crash has changed the
/// sum of all accounts.
pub(crate) fn has_halved_a_transfer(seed: u64) -> bool {
    let mut rng = Rng::with_seed(seed);
    let mut server = Server::with(&ACCOUNTS);
    for _ in 0..3_000 {
        let reactor = rng.usize(..3);
        let from = rng.usize(..ACCOUNTS.len());
        let to = (from + rng.usize(1..ACCOUNTS.len())) % ACCOUNTS.len();
        match rng.u8(..10) {
            0 | 1 => server.save(reactor),
            2..6 => server.transfer(reactor, [ACCOUNTS[from], ACCOUNTS[to]], rng.u64(1..20)),
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
            if sum != START * ACCOUNTS.len() as u64 {
                return true;
            }
        }
    }
    false
}
