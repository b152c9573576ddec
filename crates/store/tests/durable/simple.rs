//! One case each.

use crate::common::{NOW, TABLE, key, tablet};
use crate::disk::{Disk, config};
use std::sync::Arc;
use store::{Need, Store, TabletMap, TabletState, Worker};
use types::HashRange;

pub(crate) fn serving() -> TabletMap {
    TabletMap::new(vec![tablet(HashRange::ALL, TabletState::Serving)])
}

struct Server {
    store: Arc<Store>,
    workers: Vec<Worker>,
    disk: Disk,
}

impl Server {
    fn new() -> Server {
        let mut disk = Disk::default();
        let (store, workers) = disk.recover(config(64 << 20, 4 << 20, 1), (serving(), NOW), |_| {});
        Server { store, workers, disk }
    }

    fn turn(&mut self) {
        self.workers.iter_mut().for_each(|worker| worker.begin_turn(NOW));
    }

    fn set(&mut self, name: &str, value: &str) {
        self.turn();
        let key = key(&self.store, name.as_bytes());
        self.workers[0].put(TABLE, key, value.as_bytes(), None).unwrap();
    }

    fn delete(&mut self, name: &str) -> bool {
        self.turn();
        let key = key(&self.store, name.as_bytes());
        let delete = self.workers[0].update(TABLE, &[key], Need::Records, |records, changes| {
            changes.delete(0);
            records[0].is_some()
        });
        delete.unwrap()
    }

    fn get(&mut self, name: &str) -> Option<String> {
        self.turn();
        let key = key(&self.store, name.as_bytes());
        let text = |value: &[u8]| String::from_utf8(value.to_vec()).unwrap();
        let read = |record: Option<store::Record<'_>>| record.map(|record| text(record.value));
        self.workers[0].read_one(TABLE, key, read).unwrap()
    }

    fn save(&mut self) {
        self.disk.save(&self.store, &mut self.workers[0], || true);
    }

    fn waits(&mut self) -> bool {
        let dependency = self.workers[0].take_dependency();
        dependency.is_some_and(|dependency| !self.store.log().is_acknowledged(&dependency))
    }

    /// Everything that was saved is there again.
    fn crash(mut self) -> Server {
        let (store, workers) =
            self.disk.recover(config(64 << 20, 4 << 20, 1), (serving(), NOW), |_| {});
        Server { store, workers, disk: self.disk }
    }
}

#[test]
fn what_was_saved_is_there_after_a_crash_and_nothing_else() {
    let mut server = Server::new();
    server.set("a", "1");
    server.set("b", "1");
    server.set("b", "2");
    server.set("c", "1");
    assert!(server.delete("c"));
    server.save();
    server.set("a", "not saved");
    let mut server = server.crash();
    assert_eq!(server.get("a").as_deref(), Some("1"));
    assert_eq!(server.get("b").as_deref(), Some("2"));
    assert_eq!(server.get("c"), None);
    server.set("c", "again");
    assert_eq!(server.get("c").as_deref(), Some("again"));
}

#[test]
fn replies_wait_for_what_they_show() {
    let mut server = Server::new();
    assert_eq!(server.get("a"), None);
    assert!(!server.waits(), "there has never been anything");
    server.set("a", "1");
    let written = server.workers[0].take_dependency().unwrap();
    assert!(!server.store.log().is_acknowledged(&written));
    assert_eq!(server.get("a").as_deref(), Some("1"));
    assert!(server.waits(), "a read shows what is not safe");
    server.save();
    assert!(server.store.log().is_acknowledged(&written));
    assert!(server.get("a").is_some() && !server.waits());
    server.delete("a");
    assert!(server.waits());
    assert_eq!(server.get("a"), None);
    assert!(server.waits(), "a miss shows a delete that is not safe");
    server.save();
    assert!(server.get("a").is_none() && !server.waits());
    server.disk.sync_all(&server.store);
    server.turn();
    assert!(server.get("a").is_none() && !server.waits());
}

#[test]
fn a_copy_does_not_leave_the_log_before_its_original() {
    assert!(!crate::scenario::an_original_outlives_its_copy(), "a deleted record is back");
}
