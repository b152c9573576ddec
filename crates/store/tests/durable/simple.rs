//! One case per test.

use crate::common::{NOW, TABLE, key, tablet};
use crate::disk::{Disk, config};
use crate::scenario::object;
use std::sync::Arc;
use store::log::Among;
use store::{
    Arrival, ArrivalPlan, CleaningOccasion, Need, Recovery, RecoveryPlan, Store, TabletMap,
    TabletState, Worker,
};
use types::{
    HashRange, Incarnation, KeyHash, MigrationId, SegmentId, ServerId, TypedValue, Version,
};
use wire::entries::EntryReader;
use wire::entry::{Body, Dead, Entry, Location};
use wire::peer::RecordCounts;

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
        let (store, workers) = disk.recover(config(64 << 20, 4 << 20, 1), serving(), NOW, |_| {});
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
        let read =
            |record: Option<store::Record<'_>>| record.map(|record| text(record.value.bytes));
        self.workers[0].read_one(TABLE, key, read).unwrap()
    }

    fn save(&mut self) {
        self.disk.save(&self.store, &mut self.workers[0], || true);
    }

    fn waits(&mut self) -> bool {
        let dependency = self.workers[0].take_dependency();
        dependency.is_some_and(|dependency| !self.store.log().is_acknowledged(&dependency))
    }

    /// Restarts the server after a crash. All saved data is recovered.
    fn crash(mut self) -> Server {
        let (store, workers) =
            self.disk.recover(config(64 << 20, 4 << 20, 1), serving(), NOW, |_| {});
        Server { store, workers, disk: self.disk }
    }
}

/// The reactor's turn began before the coordinator's map arrived, which another reactor adopted
/// meanwhile (simulator seeds 1795372805243 and 1795369544711 of ede026c: a tombstone was entered
/// as if it belonged to no table, so the value that it deletes came back).
#[test]
fn a_turn_that_began_before_the_tablets_were_published_recovers_by_them_all_the_same() {
    let mut server = Server::new();
    server.set("kept", "1");
    server.set("deleted", "2");
    server.save();
    assert!(server.delete("deleted"));
    server.save();
    let (store, mut workers) = server.disk.begin_recovery(config(64 << 20, 4 << 20, 1));
    workers[0].begin_turn(NOW);
    store.publish(serving());
    server.disk.enter(&store, &mut workers, NOW, |_| {});
    let mut server = Server { store, workers, disk: server.disk };
    assert_eq!(server.get("kept").as_deref(), Some("1"));
    assert_eq!(server.get("deleted"), None);
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
    assert!(server.waits(), "a read shows a value that is not durable");
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

#[test]
fn a_restart_knows_the_originals_of_copies_that_it_reads_first() {
    assert!(!crate::scenario::an_original_is_read_after_its_copy(), "a deleted record is back");
}

/// The cleaner expects that such a tombstone is pinned.
#[test]
fn a_tombstone_up_to_a_segment_that_a_restart_reads_later_is_pinned() {
    const LOWEST: SegmentId = SegmentId(40);
    let mut disk = Disk::default();
    let body = Body::Tombstone { dead: Dead::UpTo(LOWEST) };
    disk.add(LOWEST, (1..=60).map(|version| object("lowest", version)));
    disk.add(SegmentId(50), [Entry { body, ..object("key", 2) }]);
    disk.add(SegmentId(60), [object("key", 3)]);
    let small = config(16 * SMALL, SMALL, 1);
    let (store, mut workers) = disk.recover(small, serving(), NOW, |order| order.reverse());
    for _ in 0..100 {
        workers[0].begin_turn(NOW);
        workers[0].clean(CleaningOccasion::Rest);
    }
    let usage = store.usage().log;
    let indexed = workers[0].range_bytes(HashRange::ALL);
    assert!(usage.pinned_bytes > 0, "the lowest segment is in the log");
    assert_eq!(usage.live_bytes, indexed + usage.pinned_bytes);
}

#[test]
fn a_write_that_was_refused_is_not_there_after_a_crash() {
    // Short records in a few slots: leaves cannot grow while the open segment has room.
    let small = || config(16 * SMALL, SMALL, 1);
    let mut disk = Disk::default();
    let (store, mut workers) = disk.recover(small(), serving(), NOW, |_| {});
    let mut refused = Vec::new();
    for number in 0..100_000 {
        workers[0].begin_turn(NOW);
        let name = format!("{{{}}}{number}", number % 300);
        if workers[0].put(TABLE, key(&store, name.as_bytes()), b"", None).is_err() {
            refused.push(name);
        }
        disk.save(&store, &mut workers[0], || true);
    }
    assert!(refused.len() > 50_000, "{} were refused", refused.len());
    drop(workers);
    let (store, mut workers) = disk.recover(small(), serving(), NOW, |_| {});
    let is_there = |name: &String| {
        let key = key(&store, name.as_bytes());
        workers[0].read_one(TABLE, key, |record| record.is_some()).unwrap()
    };
    assert_eq!(refused.into_iter().find(is_there), None);
}

const SMALL: usize = 64 << 10;

#[test]
fn a_server_that_was_full_has_room_again_for_what_is_overwritten() {
    for (length, keys) in [(1000, 600), (8, 6000)] {
        let mut disk = Disk::default();
        let small = config(24 * SMALL, SMALL, 2);
        let (store, mut workers) = disk.recover(small, serving(), NOW, |_| {});
        let mut written = 0;
        for number in 0..60_000 {
            let worker = &mut workers[number % 2];
            worker.begin_turn(NOW);
            let name = format!("{}", number * 7919 % keys);
            let put = worker.put(TABLE, key(&store, name.as_bytes()), &vec![7; length], None);
            written += usize::from(put.is_ok());
            worker.clean(CleaningOccasion::LowMemory);
            disk.save(&store, worker, || true);
            if number % 100 == 0 {
                disk.sync_all(&store);
                while disk.drop_one(0) {}
                while disk.release_one(&store) {}
            }
        }
        // Two thirds of the memory that heads and cleaners do not reserve is live, including the
        // index.
        assert!(written > 20_000, "{written} writes of {length} bytes");
    }
}

#[test]
fn what_a_migration_brought_is_there_after_a_crash() {
    let mut source = Server::new();
    for round in 0..3 {
        for number in 0..500 {
            source.set(&format!("{number}"), &format!("{round}{}", "x".repeat(3000)));
        }
        source.save();
    }
    let mut target = Server::new();
    let arrival = Arc::new(Arrival::new(ArrivalPlan {
        migration: MigrationId(1),
        source: ServerId(1),
        range: HashRange::ALL,
        partitions: vec![HashRange::ALL],
        expected: RecordCounts::of(&source.workers[0].counts(HashRange::ALL)),
        reservation: None,
    }));
    target.store.raise_version(source.store.version());
    let arriving = TabletState::Arriving(Arc::clone(&arrival));
    target.store.publish(TabletMap::new(vec![tablet(HashRange::ALL, arriving)]));
    target.turn();
    target.set("7", "written at the target");
    let mut cursor = Some(KeyHash(0));
    while let Some(from) = cursor {
        let mut batch = Vec::new();
        source.turn();
        cursor = source.workers[0].collect(HashRange::ALL, from, 64 << 10, &mut batch);
        let mut next = Some(0);
        while let Some(offset) = next {
            target.turn();
            next = target.workers[0].replay(&arrival, &batch, offset, 100).unwrap().next;
        }
        target.save();
    }
    assert!(target.get("8").is_some() && !target.waits(), "the source has it");
    arrival.advance(0, None);
    target.workers[0].splice(MigrationId(1));
    target.store.publish(serving());
    target.set("9", "later");
    target.save();
    let mut target = target.crash();
    assert_eq!(target.get("7").as_deref(), Some("written at the target"));
    assert_eq!(target.get("9").as_deref(), Some("later"));
    assert!(target.get("8").is_some_and(|value| value.starts_with('2')));
    assert_eq!(target.workers[0].table_records(TABLE), 500);
    let usage = target.store.usage().log;
    let indexed = target.workers[0].range_bytes(HashRange::ALL);
    assert_eq!(usage.live_bytes, indexed + usage.pinned_bytes);
}

#[test]
fn what_was_handed_out_can_be_read_by_every_worker_and_nothing_else() {
    let mut disk = Disk::default();
    let (store, mut workers) = disk.recover(config(64 << 20, 4 << 20, 2), serving(), NOW, |_| {});
    let segment = |disk: &Disk| *disk.segments.keys().next().unwrap();
    workers[0].put(TABLE, key(&store, b"a"), b"1", None).unwrap();
    disk.save(&store, &mut workers[0], || true);
    let (first, length) = (segment(&disk), disk.segments[&segment(&disk)].bytes.len() as u32);
    workers[0].put(TABLE, key(&store, b"b"), b"1", None).unwrap();
    for worker in &workers {
        let bytes = &disk.segments[&first].bytes;
        assert_eq!(worker.read_segment(first, 0, length), Some(&bytes[..]));
        assert_eq!(worker.read_segment(first, 8, 16), Some(&bytes[8..16]));
        assert_eq!(worker.read_segment(first, 0, length + 8), None, "it is not handed out");
        assert_eq!(worker.read_segment(SegmentId(first.0 + 1), 0, 0), None);
    }
    disk.save(&store, &mut workers[0], || true);
    let bytes = &disk.segments[&first].bytes;
    assert_eq!(workers[1].read_segment(first, 0, bytes.len() as u32), Some(&bytes[..]));
}

#[test]
fn a_segment_that_is_to_end_gets_nothing_more() {
    let mut server = Server::new();
    server.set("a", "1");
    server.save();
    let first = *server.disk.segments.keys().next().unwrap();
    server.store.log().end_segment(first);
    server.save();
    let length = server.disk.segments[&first].bytes.len();
    assert!(server.disk.segments[&first].is_closed, "its writer had nothing to hand out");
    server.set("b", "1");
    server.store.log().end_segment(first);
    server.set("c", "1");
    server.save();
    assert_eq!(server.disk.segments[&first].bytes.len(), length);
    let second = *server.disk.segments.keys().next_back().unwrap();
    assert!(second > first && !server.disk.segments[&second].is_closed);
    server.set("d", "1");
    server.store.log().end_segment(second);
    server.save();
    assert!(server.disk.segments[&second].is_closed, "also with what was not handed out");
    let mut server = server.crash();
    for name in ["a", "b", "c", "d"] {
        assert_eq!(server.get(name).as_deref(), Some("1"), "{name}");
    }
}

#[test]
fn what_is_not_acknowledged_can_be_asked_for() {
    let mut server = Server::new();
    assert!(server.store.log().unacknowledged(Among::Everything).is_none());
    server.set("a", "1");
    let before = server.store.log().unacknowledged(Among::Everything).unwrap();
    assert!(!server.store.log().is_acknowledged(&before));
    server.save();
    assert!(server.store.log().is_acknowledged(&before));
    assert!(server.store.log().unacknowledged(Among::Everything).is_none());
    server.set("b", "1");
    assert!(server.store.log().is_acknowledged(&before), "later appends do not count");
    assert!(server.store.log().unacknowledged(Among::Everything).is_some());
}

#[test]
fn a_replayed_entry_that_was_refused_is_not_there_after_a_crash() {
    // As for writes: the log has room while the index has none.
    let small = || config(16 * SMALL, SMALL, 1);
    let mut disk = Disk::default();
    let old = Incarnation(90);
    let recovery = Arc::new(Recovery::new(RecoveryPlan {
        number: 1,
        range: HashRange::ALL,
        old_incarnations: vec![vec![old]],
    }));
    let state = TabletState::Recovering(Arc::clone(&recovery));
    let recovering = TabletMap::new(vec![tablet(HashRange::ALL, state)]);
    let (store, mut workers) = disk.recover(small(), recovering, NOW, |_| {});
    let mut refused = Vec::new();
    for number in 0..50_000 {
        workers[0].begin_turn(NOW);
        let name = format!("{{{}}}{number}", number % 300);
        let body = Body::Object { expiry: None, replaces: None, value: TypedValue::string(b"") };
        let (incarnation, key) = (old, name.as_bytes());
        let entry = Entry { incarnation, version: Version(number + 1), key, body };
        let mut bytes = vec![0; entry.encoded_bytes()];
        entry.encode(&mut bytes);
        if workers[0].replay_log(&recovery, &bytes, 0, 1).is_err() {
            refused.push(name);
        }
    }
    disk.save(&store, &mut workers[0], || true);
    assert!(refused.len() > 20_000, "{} were refused", refused.len());
    drop(workers);
    let (store, mut workers) = disk.recover(small(), serving(), NOW, |_| {});
    let is_there = |name: &String| {
        let key = key(&store, name.as_bytes());
        workers[0].read_one(TABLE, key, |record| record.is_some()).unwrap()
    };
    assert_eq!(refused.into_iter().find(is_there), None);
}

#[test]
fn what_is_recovered_names_nothing_of_the_log_that_it_was_read_from() {
    let mut server = Server::new();
    let recovery = Arc::new(Recovery::new(RecoveryPlan {
        number: 1,
        range: HashRange::ALL,
        old_incarnations: vec![vec![Incarnation(90)]],
    }));
    let recovering = TabletState::Recovering(Arc::clone(&recovery));
    server.store.publish(TabletMap::new(vec![tablet(HashRange::ALL, recovering)]));
    server.turn();
    let elsewhere = Location { segment: SegmentId(7), offset: 64 };
    let object = Body::Object {
        expiry: None,
        replaces: Some(elsewhere),
        value: TypedValue::string(b"value"),
    };
    let bodies = [object, Body::Tombstone { dead: Dead::At(elsewhere) }];
    for (number, body) in bodies.into_iter().enumerate() {
        let key = format!("{number}");
        let entry =
            Entry { incarnation: Incarnation(90), version: Version(1), key: key.as_bytes(), body };
        let mut bytes = vec![0; entry.encoded_bytes()];
        entry.encode(&mut bytes);
        server.workers[0].replay_log(&recovery, &bytes, 0, 1).unwrap();
    }
    server.save();
    let replica = server.disk.segments.values().next().unwrap();
    let mut written = EntryReader::from(&replica.bytes, 0);
    let mut next = || written.next_checked().unwrap().unwrap().entry.body;
    assert_eq!(
        next(),
        Body::Object { expiry: None, replaces: None, value: TypedValue::string(b"value") }
    );
    assert_eq!(next(), Body::Tombstone { dead: Dead::Nothing });
}

#[test]
fn what_only_one_replica_of_a_dead_log_has_is_not_shown_before_it_is_safe_here() {
    let mut server = Server::new();
    let recovery = Arc::new(Recovery::new(RecoveryPlan {
        number: 1,
        range: HashRange::ALL,
        old_incarnations: vec![vec![Incarnation(90)]],
    }));
    let tablets = |state| TabletMap::new(vec![tablet(HashRange::ALL, state)]);
    server.store.publish(tablets(TabletState::Recovering(recovery.clone())));
    server.turn();
    let encoded = |key: &str, body| {
        let entry =
            Entry { incarnation: Incarnation(90), version: Version(1), key: key.as_bytes(), body };
        let mut bytes = vec![0; entry.encoded_bytes()];
        entry.encode(&mut bytes);
        bytes
    };
    let object = Body::Object { expiry: None, replaces: None, value: TypedValue::string(b"value") };
    let deleted = Body::Tombstone { dead: Dead::Nothing };
    let divergent = [encoded("divergent", object), encoded("deleted", deleted)];
    let worker = &mut server.workers[0];
    for bytes in &divergent {
        worker.replay_divergent(&recovery, bytes, 0, 1).unwrap();
    }
    // The whole log is replayed again as common_prefix.
    for bytes in divergent.iter().chain([&encoded("common_prefix", object)]) {
        worker.replay_log(&recovery, bytes, 0, 1).unwrap();
    }
    server.store.publish(tablets(TabletState::Securing(recovery)));
    let mut waits = |name: &str, value: Option<&str>| {
        server.turn();
        assert_eq!(server.get(name).as_deref(), value);
        server.workers[0].take_dependency()
    };
    assert!(waits("common_prefix", Some("value")).is_none());
    let shown = waits("divergent", Some("value")).expect("nobody else may find it again");
    let hidden = waits("deleted", None).expect("an older version may be found again");
    assert!(waits("never written", None).is_none());
    server.save();
    let log = server.store.log();
    assert!(log.is_acknowledged(&shown) && log.is_acknowledged(&hidden));
}
