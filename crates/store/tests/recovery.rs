//! Replay of a dead server's log into a range that is being recovered: one case per test.

mod common;

use common::{Move, NOW, Server, TABLE, tablet, value};
use std::sync::Arc;
use store::{Recovery, RecoveryPlan, ReplayCounters, ReplayError, Stall, TabletMap, TabletState};
use types::{HashRange, Incarnation, KeyHash, SegmentId, TableId, TypedValue, UnixMillis, Version};
use wire::entry::{Body, Dead, Entry, Location};

/// Incarnation of table 0; table 1 has the next one.
const OLD: Incarnation = Incarnation(70);

fn encoded(entry: &Entry<'_>) -> Vec<u8> {
    let mut bytes = vec![0; entry.encoded_bytes()];
    entry.encode(&mut bytes);
    bytes
}

fn object(incarnation: Incarnation, key: &str, version: u64, value: &str) -> Vec<u8> {
    let body =
        Body::Object { expiry: None, replaces: None, value: TypedValue::string(value.as_bytes()) };
    encoded(&Entry { incarnation, version: Version(version), key: key.as_bytes(), body })
}

fn tombstone(key: &str, version: u64) -> Vec<u8> {
    let dead = Dead::At(Location { segment: SegmentId(77), offset: 8 });
    let body = Body::Tombstone { dead };
    encoded(&Entry { incarnation: OLD, version: Version(version), key: key.as_bytes(), body })
}

fn recovery(number: u64, range: HashRange) -> Arc<Recovery> {
    // A table without an incarnation has 0.
    let old_incarnations = vec![vec![OLD, Incarnation(OLD.0 + 1), Incarnation(0)]];
    Arc::new(Recovery::new(RecoveryPlan { number, range, old_incarnations }))
}

/// A server that recovers the whole key space.
struct Recovering {
    server: Server,
    recovery: Arc<Recovery>,
}

impl Recovering {
    fn new() -> Recovering {
        let mut server = Server::new(64 << 20);
        let recovery = recovery(1, HashRange::ALL);
        server.publish(TabletState::Recovering(Arc::clone(&recovery)));
        Recovering { server, recovery }
    }

    /// Replays entries and returns the number of records inserted into the index.
    fn replay(&mut self, entries: &[u8]) -> u64 {
        self.server.turn();
        let all = self.server.worker.replay_log(&self.recovery, entries, 0, usize::MAX).unwrap();
        assert_eq!(all.next, None);
        all.records
    }

    fn sweep(&mut self) {
        self.server.turn();
        while self.server.worker.sweep_recovery(&self.recovery, 2) {}
    }

    fn serve(mut self) -> Server {
        self.server.publish(TabletState::Serving);
        self.server
    }
}

#[test]
fn the_highest_version_counts_in_whatever_order_it_comes() {
    let entries =
        [object(OLD, "a", 5, "new"), object(OLD, "a", 3, "old"), object(OLD, "a", 5, "new")];
    for order in [[0, 1, 2], [1, 0, 2], [2, 1, 0]] {
        let mut recovering = Recovering::new();
        for at in order {
            recovering.replay(&entries[at]);
        }
        let mut server = recovering.serve();
        assert_eq!(server.get("a"), value("new"));
        server.set("a", "newer").unwrap();
        assert!(server.version("a").unwrap() > Version(5), "versions go on");
        server.check_live_bytes();
    }
}

#[test]
fn a_deleted_record_stays_deleted_in_whatever_order_it_comes() {
    let entries = [object(OLD, "a", 3, "old"), tombstone("a", 4), object(OLD, "b", 1, "other")];
    for order in [[0, 1, 2], [1, 0, 2], [2, 1, 0]] {
        let mut recovering = Recovering::new();
        for at in order {
            recovering.replay(&entries[at]);
        }
        let hash = recovering.server.key("a").hash;
        assert_eq!(recovering.server.worker.knows(TABLE, hash), Ok(true));
        recovering.sweep();
        assert_eq!(recovering.server.worker.knows(TABLE, hash), Ok(false), "its tombstone is gone");
        assert_eq!(recovering.replay(&entries[0]), 0, "nothing comes any more");
        let mut server = recovering.serve();
        assert_eq!((server.get("a"), server.get("b")), (Ok(None), value("other")));
        server.check_live_bytes();
    }
}

#[test]
fn of_equal_versions_the_tombstone_counts() {
    // A cleaner found that version 5 had replaced an entry, and left a tombstone in its place.
    let entries = [object(OLD, "a", 4, "replaced"), tombstone("a", 4)];
    for order in [[0, 1], [1, 0]] {
        let mut recovering = Recovering::new();
        for at in order {
            recovering.replay(&entries[at]);
        }
        assert_eq!(recovering.serve().get("a"), Ok(None));
    }
}

#[test]
fn what_does_not_count_is_dropped() {
    let mut recovering = Recovering::new();
    let all = [
        object(OLD, "a", 5, "counts"),
        object(Incarnation(OLD.0 + 1), "a", 7, "in another table"),
        object(Incarnation(OLD.0 - 1), "a", 9, "flushed"),
        object(Incarnation(0), "a", 10, "revoked"),
        encoded(&Entry::note(SegmentId(3))),
        object(OLD, "a", 5, "counts"),
    ];
    let bytes = (all[0].len() + all[1].len()) as u64;
    assert_eq!(recovering.replay(&all.concat()), 2);
    assert_eq!(recovering.recovery.counters(), ReplayCounters { records: 2, bytes, dropped: 4 });
    let mut server = recovering.serve();
    assert_eq!(server.get("a"), value("counts"));
    let other = server.worker.read_one(TableId(1), common::key(&server.store, b"a"), |record| {
        record.map(|record| record.value.bytes.to_vec())
    });
    assert_eq!(other, value("in another table"));
    assert!(server.store.version() >= Version(10), "not below any version that was seen");
}

#[test]
fn a_part_gets_its_range_and_nothing_else() {
    let names: Vec<String> = (0..200).map(|number| format!("key {number}")).collect();
    let entries: Vec<u8> = names.iter().flat_map(|name| object(OLD, name, 1, name)).collect();
    let mut server = Server::new(64 << 20);
    let parts: Vec<_> = HashRange::ALL.divide(3).into_iter().zip(1..).collect();
    let parts: Vec<_> = parts.into_iter().map(|(range, number)| recovery(number, range)).collect();
    let published = |state: fn(&Arc<Recovery>) -> TabletState| {
        // The last third has no tablet.
        let tablets = parts[..2].iter().map(|part| tablet(part.range(), state(part)));
        TabletMap::new(tablets.collect())
    };
    server.store.publish(published(|part| TabletState::Recovering(Arc::clone(part))));
    for part in &parts {
        server.turn();
        let replayed = server.worker.replay_log(part, &entries, 0, usize::MAX).unwrap();
        assert_eq!(replayed.records + replayed.dropped, 200);
    }
    server.store.publish(published(|_| TabletState::Serving));
    for name in &names {
        let is_ours = !parts[2].range().contains(server.key(name).hash);
        let expected = if is_ours { value(name) } else { Err(Stall::NotOwned) };
        assert_eq!(server.get(name), expected);
    }
    let again = server.worker.replay_log(&parts[0], &object(OLD, &names[0], 9, "late"), 0, 1);
    assert_eq!(again.unwrap().records, 0, "it is served");
    assert_eq!(parts[2].counters().records, 0);
    server.check_live_bytes();
}

#[test]
fn what_is_recovered_by_another_attempt_is_dropped() {
    let mut first = Recovering::new();
    first.replay(&object(OLD, "a", 1, "given up"));
    first.server.store.publish(TabletMap::default());
    first.server.turn();
    let mut cursor = Some(KeyHash(0));
    while let Some(from) = cursor {
        cursor = first.server.worker.forget(HashRange::ALL, from, 10);
    }
    assert_eq!(first.server.store.usage().log.live_bytes, 0);
    let second = recovery(2, HashRange::ALL);
    first.server.publish(TabletState::Recovering(Arc::clone(&second)));
    assert_eq!(first.replay(&object(OLD, "a", 1, "late")), 0);
    first.recovery = second;
    assert_eq!(first.replay(&object(OLD, "a", 1, "again")), 1);
    assert_eq!(first.serve().get("a"), value("again"));
}

#[test]
fn nobody_operates_on_a_range_that_is_being_recovered() {
    let mut recovering = Recovering::new();
    recovering.replay(&object(OLD, "a", 1, "1"));
    let server = &mut recovering.server;
    assert_eq!(server.get("a"), Err(Stall::Held));
    assert_eq!(server.set("a", "2"), Err(Stall::Held));
    assert_eq!(server.delete_blindly("a"), Err(Stall::Held));
    assert_eq!(server.get_all(&["a", "b"]), Err(Stall::Held));
    let walked = server.worker.scan(TABLE, KeyHash(0), 10, |_, _| panic!("it is not ours yet"));
    assert_eq!(walked, Err(Stall::Held));
    assert_eq!(server.records(), 0);
    assert_eq!(recovering.serve().records(), 1);
}

#[test]
fn what_has_expired_is_left_alone_and_hidden_when_it_is_served() {
    let expired = |version, value: &'static [u8]| {
        let expiry = Some(UnixMillis(NOW.0 - 1));
        let body = Body::Object { expiry, replaces: None, value: TypedValue::string(value) };
        encoded(&Entry { incarnation: OLD, version: Version(version), key: b"a", body })
    };
    let mut recovering = Recovering::new();
    assert_eq!(recovering.replay(&expired(5, b"expired")), 1);
    assert_eq!(recovering.server.worker.expire(TABLE, KeyHash(0), 1000), None);
    assert_eq!(recovering.replay(&object(OLD, "a", 3, "older and without end")), 0);
    assert_eq!(recovering.serve().get("a"), Ok(None));
}

#[test]
fn a_log_is_replayed_in_bounded_steps() {
    let entries: Vec<u8> =
        (0..100).flat_map(|number| object(OLD, &format!("key {number}"), 1, "value")).collect();
    for most in [1, 7, 32, 100] {
        let Recovering { mut server, recovery } = Recovering::new();
        let (mut from, mut steps) = (Some(0), 0);
        while let Some(offset) = from {
            server.turn();
            let step = server.worker.replay_log(&recovery, &entries, offset, most).unwrap();
            assert!(step.records <= most as u64);
            from = step.next;
            steps += 1;
        }
        assert_eq!((steps, recovery.counters().records), (100_usize.div_ceil(most), 100));
    }
}

#[test]
fn an_index_that_is_told_how_much_there_will_be_is_not_much_larger() {
    let entries: Vec<u8> =
        (0..60_000).flat_map(|number| object(OLD, &format!("key {number}"), 1, "value")).collect();
    let index_bytes = |expected: u64| {
        let mut recovering = Recovering::new();
        recovering.recovery.foresee(expected);
        // Some entries come first, as the basis of the estimated count.
        for part in entries.chunks(entries.len() / 60_000 * 1000) {
            recovering.replay(part);
        }
        assert_eq!(recovering.recovery.counters().records, 60_000);
        let mut server = recovering.serve();
        assert_eq!(server.get("key 59999"), value("value"));
        server.store.usage().index_bytes
    };
    let [grown, told, wrong] = [0, entries.len() as u64, u64::MAX].map(index_bytes);
    assert!(told < grown * 13 / 10, "{told} bytes instead of {grown}");
    assert!(wrong < 20 << 20, "{wrong} bytes");
}

#[test]
fn what_is_no_entry_is_refused() {
    let mut recovering = Recovering::new();
    let mut entries = [object(OLD, "a", 1, "whole"), object(OLD, "b", 1, "changed")].concat();
    let last = entries.len() - 8;
    entries[last] ^= 1;
    for bytes in [&entries[..], &entries[..last]] {
        let result = recovering.server.worker.replay_log(&recovering.recovery, bytes, 0, 100);
        assert!(matches!(result, Err(ReplayError::Corrupt(_))), "{result:?}");
    }
    assert_eq!(recovering.serve().get("b"), Ok(None));
}

#[test]
fn the_tombstones_of_an_arrival_without_its_source_go_with_the_recovery() {
    let mut moving = Move::flip(|source| source.set("a", "1").unwrap());
    moving.target.delete_blindly("a").unwrap();

    // The source dies before the record has arrived.
    let first = recovery(1, HashRange::ALL);
    moving.target.publish(TabletState::Recovering(Arc::clone(&first)));
    moving.arrival.end();
    while moving.target.worker.sweep(&moving.arrival, 2) {}

    // The first attempt to recover the range is given up.
    let second = recovery(2, HashRange::ALL);
    moving.target.publish(TabletState::Recovering(Arc::clone(&second)));
    second.take_over(&first);
    let mut recovering = Recovering { server: moving.target, recovery: second };
    assert_eq!(recovering.replay(&object(OLD, "a", 1, "1")), 0, "the tombstone supersedes it");
    recovering.sweep();
    let mut server = recovering.serve();
    assert_eq!(server.get("a"), Ok(None));
    server.check_live_bytes();
    assert_eq!(server.store.usage().log.live_bytes, 0, "the tombstone was reclaimed");
}
