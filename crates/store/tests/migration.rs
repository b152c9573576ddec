//! A range that arrives: the table of design §10.1, and known mistakes of earlier systems.

mod common;

use common::{Move, NOW, Server, TABLE, value};
use std::sync::Arc;
use store::{
    Arrival, ArrivalPlan, CleaningOccasion, Missing, Need, RangeClock, ReplayError, Stall,
    TableKey, TabletState,
};
use types::{
    HashRange, Incarnation, KeyHash, MigrationId, ServerId, Slot, TableId, TypedValue, UnixMillis,
    Version, slot_of,
};
use wire::batch::BatchWriter;
use wire::entry::{Body, Entry};
use wire::peer::RecordCounts;

fn with(pairs: &[(&str, &str)]) -> Move {
    Move::flip(|source| {
        for (name, value) in pairs {
            source.set(name, value).unwrap();
        }
    })
}

#[test]
fn a_record_that_is_here_is_served_above_the_progress() {
    let mut moving = with(&[("a", "1")]);
    moving.priority_pull("a");
    assert_eq!(moving.target.get("a"), value("1"));
    assert_eq!(moving.target.set_if_absent("a", "2"), Ok(false));
    assert_eq!(moving.target.increment("a"), Ok(2));
    assert_eq!(moving.target.delete("a"), Ok(true));
}

#[test]
fn a_tombstone_that_is_here_is_served_as_an_absence() {
    let mut moving = with(&[("a", "1")]);
    assert_eq!(moving.target.delete_blindly("a"), Ok(false));
    assert_eq!(moving.target.get("a"), Ok(None));
    assert_eq!(moving.target.delete("a"), Ok(false));
    assert_eq!(moving.target.set_if_absent("a", "2"), Ok(true));
    assert_eq!(moving.target.get("a"), value("2"));
}

#[test]
fn what_is_not_here_below_the_progress_does_not_exist() {
    let mut moving = with(&[("a", "1")]);
    moving.replay_all();
    moving.advance_all();
    assert_eq!(moving.target.get("b"), Ok(None));
    assert_eq!(moving.target.delete("b"), Ok(false));
    assert_eq!(moving.target.increment("b"), Ok(1));
    assert_eq!(moving.target.set_if_absent("c", "2"), Ok(true));
}

#[test]
fn whatever_must_see_a_record_waits_for_it_above_the_progress() {
    let mut moving = with(&[("a", "1")]);
    let missing = moving.missing(&["a"]);
    assert_eq!(moving.target.get("a"), Err(missing.clone()));
    assert_eq!(moving.target.delete("a"), Err(missing.clone()));
    assert_eq!(moving.target.increment("a"), Err(missing.clone()));
    assert_eq!(moving.target.set_if_absent("a", "2"), Err(missing));
    moving.priority_pull("a");
    assert_eq!(moving.target.increment("a"), Ok(2));
}

#[test]
fn a_blind_write_waits_for_nothing() {
    let mut moving = with(&[("a", "1"), ("b", "1")]);
    assert_eq!(moving.target.set("a", "2"), Ok(()));
    assert_eq!(moving.target.set_all(&[("b", "2"), ("c", "2")]), Ok(()));
    moving.replay_all();
    let (_, mut target) = moving.finish();
    for name in ["a", "b", "c"] {
        assert_eq!(target.get(name), value("2"));
    }
    target.check_live_bytes();
}

#[test]
fn all_missing_keys_of_a_command_are_asked_for_at_once() {
    let mut moving = with(&[("a", "1"), ("b", "2"), ("c", "3"), ("d", "4")]);
    moving.priority_pull("b");
    let missing = moving.missing(&["a", "c", "d"]);
    assert_eq!(moving.target.get_all(&["a", "b", "c", "d", "a"]), Err(missing.clone()));
    let keys = ["d", "b", "c", "a"].map(|name| moving.target.key(name));
    let update = moving.target.worker.update(TABLE, &keys, Need::Records, |_, _| ());
    assert_eq!(update, Err(missing));
    for name in ["a", "c", "d"] {
        moving.priority_pull(name);
    }
    let all = moving.target.get_all(&["a", "b", "c", "d"]).unwrap();
    assert_eq!(all.concat_values(), "1234");
}

trait Concat {
    fn concat_values(&self) -> String;
}

impl Concat for Vec<Option<Vec<u8>>> {
    fn concat_values(&self) -> String {
        let texts = self.iter().map(|value| String::from_utf8(value.clone().unwrap()).unwrap());
        texts.collect()
    }
}

#[test]
fn absent_at_the_source_is_an_answer() {
    let mut moving = with(&[("a", "1")]);
    assert_eq!(moving.target.get("b"), Err(moving.missing(&["b"])));
    moving.priority_pull("b");
    assert_eq!(moving.target.get("b"), Ok(None));
    assert_eq!(moving.target.get_all(&["b", "a"]), Err(moving.missing(&["a"])));
    assert_eq!(moving.target.increment("b"), Ok(1));
    assert_eq!(moving.target.get("b"), value("1"));
    let (_, mut target) = moving.finish();
    assert_eq!(target.get("b"), value("1"));
}

#[test]
fn a_hot_key_overwritten_many_times_before_the_move_does_not_come_back_over_a_write() {
    let mut moving = Move::flip(|source| {
        for round in 0..1000 {
            source.set("hot", &round.to_string()).unwrap();
        }
    });
    moving.target.set("hot", "written at the target").unwrap();
    assert!(moving.target.version("hot").unwrap() > Version(1000));
    moving.priority_pull("hot");
    moving.replay_all();
    assert_eq!(moving.target.get("hot"), value("written at the target"));
    let (_, mut target) = moving.finish();
    assert_eq!(target.get("hot"), value("written at the target"));
}

#[test]
fn a_deleted_record_is_not_resurrected_by_its_late_arrival() {
    let mut moving = with(&[("a", "1"), ("b", "1")]);
    moving.target.delete_blindly("a").unwrap();
    moving.priority_pull("b");
    assert_eq!(moving.target.delete("b"), Ok(true));
    moving.replay_all();
    assert_eq!(moving.target.get("a"), Ok(None));
    assert_eq!(moving.target.get("b"), Ok(None));
    let (_, mut target) = moving.finish();
    assert_eq!(target.get("a"), Ok(None));
    assert_eq!(target.get("b"), Ok(None));
    target.check_live_bytes();
    assert_eq!(target.store.usage().log.live_bytes, 0, "tombstones go when progress has passed");
}

#[test]
fn a_batch_that_comes_again_after_the_progress_has_passed_changes_nothing() {
    let mut moving = with(&[("a", "1"), ("b", "1")]);
    let late = moving.source.collect(1 << 20);
    moving.replay_all();
    moving.target.delete("a").unwrap();
    moving.advance_all();
    while moving.target.worker.sweep(&moving.arrival, 100) {}
    moving.target.delete("b").unwrap();
    for batch in &late {
        moving.target.replay(&moving.arrival.clone(), batch);
    }
    assert_eq!(moving.target.get("a"), Ok(None), "its tombstone was swept: progress decides");
    assert_eq!(moving.target.get("b"), Ok(None), "deleted below the progress without tombstone");
}

#[test]
fn two_copies_of_a_record_are_one() {
    let mut moving = with(&[("a", "1"), ("b", "2")]);
    moving.priority_pull("a");
    moving.priority_pull("a");
    moving.replay_all();
    moving.replay_all();
    assert_eq!(moving.arrival.counters().records, 2);
    assert_eq!(moving.target.records(), 2);
    moving.target.check_live_bytes();
}

#[test]
fn a_conditional_write_of_a_key_that_has_not_arrived_is_not_decided_by_its_absence() {
    let mut moving = with(&[("a", "1")]);
    assert!(moving.target.set_if_absent("a", "2").is_err());
    moving.priority_pull("a");
    assert_eq!(moving.target.set_if_absent("a", "2"), Ok(false));
    assert_eq!(moving.target.get("a"), value("1"));
}

#[test]
fn a_removal_between_two_pulls_does_not_hide_another_record() {
    // The source releases records below the pull's cursor between pulls. The cursor is a hash, so
    // no record is skipped.
    let mut moving = Move::flip(|source| {
        for number in 0..3000 {
            source.set(&format!("{{tag}}{number}"), "here").unwrap();
        }
    });
    let mut cursor = Some(KeyHash(0));
    let mut round = 0;
    while let Some(from) = cursor {
        let mut batch = Vec::new();
        moving.source.turn();
        cursor = moving.source.worker.collect(HashRange::ALL, from, 300, &mut batch);
        moving.target.replay(&moving.arrival.clone(), &batch);
        // The source may already release the pulled records, bucket by bucket.
        if let Some(next) = cursor
            && round % 3 == 0
            && next > KeyHash(0)
        {
            let passed = HashRange::new(KeyHash(0), KeyHash(next.0 - 1));
            moving.source.turn();
            let mut forgotten = Some(KeyHash(0));
            while let Some(from) = forgotten {
                forgotten = moving.source.worker.forget(passed, from, 3);
            }
        }
        round += 1;
    }
    assert_eq!(moving.target.records(), 3000);
}

#[test]
fn expiry_above_the_progress_is_a_delete() {
    let mut moving = with(&[("a", "1")]);
    moving.priority_pull("a");
    // At the target the record gets an expiry, expires and is reclaimed.
    moving.target.set_with_expiry("a", "2", Some(UnixMillis(NOW.0 + 10))).unwrap();
    moving.target.now = UnixMillis(NOW.0 + 10);
    assert_eq!(moving.target.get("a"), Ok(None));
    let mut cursor = Some(KeyHash(0));
    while let Some(from) = cursor {
        moving.target.turn();
        cursor = moving.target.worker.expire(TABLE, from, 1000);
    }
    assert_eq!(moving.target.records(), 0);
    moving.replay_all();
    assert_eq!(moving.target.get("a"), Ok(None), "the version without expiry must not come back");
    let (_, mut target) = moving.finish();
    assert_eq!(target.get("a"), Ok(None));
    assert_eq!(target.store.usage().log.live_bytes, 0);
}

#[test]
fn expired_records_that_need_tombstones_do_not_stop_the_cleaner_of_a_full_target() {
    let mut moving = with(&[]);
    let target = &mut moving.target;
    let (expiry, filler) = (UnixMillis(NOW.0 + 10), "x".repeat(100_000));
    let mut number = 0;
    let full = loop {
        number += 1;
        let name = format!("expiring {number}");
        let set = target.set_with_expiry(&name, "1", Some(expiry));
        if let Err(stall) = set.and_then(|()| target.set("overwritten", &filler)) {
            break stall;
        }
    };
    assert_eq!(full, Stall::OutOfMemory);
    target.now = expiry;
    // Tombstones use the memory that is kept for deletes.
    let full = loop {
        number += 1;
        if let Err(stall) = target.delete_blindly(&format!("absent {number}")) {
            break stall;
        }
    };
    assert_eq!(full, Stall::OutOfMemory);
    while target.worker.clean(CleaningOccasion::LowMemory) {
        target.turn();
    }
    (0..3).for_each(|_| target.turn());
    target.set("new", &filler).expect("nearly all of the log is dead");
}

/// Moves records to a target with as much memory as it must reserve, and no other.
fn move_into_reserved_memory(records: usize, value_bytes: usize) {
    const MEMORY: usize = 256 << 20;
    let mut source = Server::with_memory(MEMORY);
    let value = "x".repeat(value_bytes);
    (0..records).for_each(|it| source.set(&format!("key {it}"), &value).unwrap());
    let wanted = source.worker.bytes_to_receive(HashRange::ALL);
    let target = Server::new(MEMORY);
    let log = target.store.log();
    let reserved = wanted + wanted / 10 + 2 * log.segment_bytes() as u64;
    let reservation = log.reserve(reserved).expect("memory for the records");
    let mut moving = Move::from_to_reserved(source, target, MigrationId(1), Some(reservation));
    let target = &mut moving.target;
    // Records of others fill the memory that is not reserved.
    let full = loop {
        let filled = target.set(&format!("other {}", target.store.version().0), &value);
        if let Err(stall) = filled {
            break stall;
        }
    };
    assert_eq!(full, Stall::OutOfMemory);
    moving.replay_all();
    moving.advance_all();
    let last = format!("key {}", records - 1);
    assert_eq!(moving.target.get(&last), Ok(Some(value.into_bytes())));
}

#[test]
fn large_records_fit_into_the_reserved_memory() {
    move_into_reserved_memory(30, 2_200_000);
}

#[test]
fn the_index_of_small_records_fits_into_the_reserved_memory() {
    move_into_reserved_memory(400_000, 1);
}

#[test]
fn a_table_flushed_while_it_arrives_stays_empty() {
    let mut moving = with(&[("a", "1"), ("b", "2")]);
    moving.priority_pull("a");
    let mut flushing =
        common::tablet(HashRange::ALL, TabletState::Arriving(Arc::clone(&moving.arrival)));
    flushing.flushing = store::TableSet::of(TABLE);
    moving.target.store.publish(store::TabletMap::new(vec![flushing]));
    assert_eq!(moving.target.get("a"), Err(Stall::Held));
    moving.priority_pull("b");
    moving.arrival.flush_table(TABLE);
    let mut cursor = Some(KeyHash(0));
    while let Some(from) = cursor {
        cursor = moving.target.worker.flush_step(TABLE, from, 10);
    }
    moving.target.publish(TabletState::Arriving(Arc::clone(&moving.arrival)));
    assert_eq!(moving.target.get("a"), Ok(None));
    moving.replay_all();
    assert_eq!(moving.target.get("b"), Ok(None));
    moving.target.set("a", "new").unwrap();
    let (_, mut target) = moving.finish();
    assert_eq!((target.get("a"), target.get("b")), (value("new"), Ok(None)));
}

#[test]
fn a_range_that_goes_back_has_what_the_target_left() {
    let moving = with(&[("kept", "1"), ("deleted", "1"), ("changed", "1")]);
    let (source, mut target) = moving.finish();
    target.set("changed", "2").unwrap();
    target.delete("deleted").unwrap();
    target.set("new", "1").unwrap();
    let back = Move::from_to(target, source, MigrationId(2));
    let (_, mut source) = back.finish();
    assert_eq!(source.get("kept"), value("1"));
    assert_eq!(source.get("deleted"), Ok(None));
    assert_eq!(source.get("changed"), value("2"));
    assert_eq!(source.get("new"), value("1"));
    source.check_live_bytes();
}

#[test]
fn a_sweep_that_is_late_leaves_the_tombstones_of_the_next_arrival_alone() {
    let mut moving = with(&[("a", "1")]);
    moving.target.delete_blindly("a").unwrap();
    moving.replay_all();
    moving.advance_all();
    let not_swept = Arc::clone(&moving.arrival);
    moving.target.worker.splice(MigrationId(1));
    moving.target.publish(TabletState::Serving);
    moving.target.set("a", "2").unwrap();
    // The range leaves and returns before its tombstones are reclaimed.
    let away = Move::from_to(moving.target, Server::new(64 << 20), MigrationId(2));
    let (target, other) = away.finish();
    let mut back = Move::from_to(other, target, MigrationId(3));
    back.target.delete_blindly("a").unwrap();
    while back.target.worker.sweep(&not_swept, 2) {}
    back.replay_all();
    assert_eq!(back.target.get("a"), Ok(None), "the tombstone was needed");
}

#[test]
fn a_replay_of_a_migration_that_is_not_current_is_dropped() {
    let mut moving = with(&[("a", "1")]);
    let batches = moving.source.collect(1 << 20);
    moving.target.publish(TabletState::Serving);
    for batch in &batches {
        moving.target.replay(&moving.arrival.clone(), batch);
    }
    assert_eq!(moving.target.get("a"), Ok(None));
    assert_eq!(moving.arrival.counters().records, 0);
}

#[test]
fn a_frozen_range_holds_and_a_leaving_one_is_not_ours() {
    let mut server = Server::serving();
    server.set("a", "1").unwrap();
    server.publish(TabletState::Frozen);
    assert_eq!(server.get("a"), Err(Stall::Held));
    assert_eq!(server.set("a", "2"), Err(Stall::Held));
    server.publish(TabletState::Leaving);
    assert_eq!(server.get("a"), Err(Stall::NotOwned));
    assert_eq!(server.increment("a"), Err(Stall::NotOwned));
    server.publish(TabletState::Serving);
    assert_eq!(server.get("a"), value("1"), "a source that thaws serves what it had");
}

#[test]
fn a_frozen_range_is_not_reclaimed() {
    let mut server = Server::serving();
    server.set_with_expiry("a", "1", Some(UnixMillis(NOW.0 + 5))).unwrap();
    server.now = UnixMillis(NOW.0 + 5);
    server.publish(TabletState::Frozen);
    assert_eq!(server.worker.expire(TABLE, KeyHash(0), 100_000), None);
    assert_eq!(server.records(), 1);
}

#[test]
fn a_walk_waits_at_the_progress() {
    let mut moving = with(&[("a", "1"), ("b", "1"), ("c", "1"), ("d", "1"), ("e", "1")]);
    let mut seen = Vec::new();
    let target = &mut moving.target;
    let stalled = target.worker.scan(TABLE, KeyHash(0), 100_000, |key, _| seen.push(key.to_vec()));
    let migration = MigrationId(1);
    assert_eq!(stalled, Err(Stall::NotArrived { migration, from: KeyHash(0) }));
    moving.replay_all();
    moving.advance_all();
    let mut cursor = Some(KeyHash(0));
    while let Some(from) = cursor {
        moving.target.turn();
        let step =
            moving.target.worker.scan(TABLE, from, 100_000, |key, _| seen.push(key.to_vec()));
        cursor = step.unwrap();
    }
    seen.sort();
    assert_eq!(seen, [b"a", b"b", b"c", b"d", b"e"]);
}

#[test]
fn a_damaged_batch_is_refused_and_does_no_harm() {
    let mut moving = with(&[("a", "1"), ("b", "2"), ("c", "3")]);
    let batch = moving.source.collect(1 << 20).concat();
    let arrival = moving.arrival.clone();
    for length in 0..batch.len() {
        moving.target.turn();
        let _ = moving.target.worker.replay(&arrival, &batch[..length], 0, 100);
    }
    let mut damaged = batch.clone();
    let end = damaged.len() - 12;
    damaged[end] ^= 1;
    assert!(moving.target.worker.replay(&arrival, &damaged, 0, 100).is_err());
    moving.target.replay(&arrival, &batch);
    assert_eq!(moving.target.records(), 3);
    moving.target.check_live_bytes();
}

#[test]
fn a_copy_between_tables_waits_for_what_is_missing_in_either_of_them() {
    let other = TableId(1);
    let mut moving = with(&[("a", "1")]);
    let copy = |server: &mut Server, from: TableId, to: TableId| {
        let key = server.key("a");
        let keys = [from, to].map(|table| TableKey { table, key });
        server.worker.update_tables(
            &keys,
            |_| true,
            |records, changes| {
                let record = records[0].filter(|_| records[1].is_none());
                record.map(|record| changes.put(1, record.value.bytes, record.expiry)).is_some()
            },
        )
    };
    let missing_in = |table: TableId, moving: &Move| match moving.missing(&["a"]) {
        Stall::Missing(missing) => Stall::Missing(Missing { table, ..missing }),
        other => other,
    };
    let stall = copy(&mut moving.target, TABLE, other);
    assert_eq!(stall, Err(missing_in(TABLE, &moving)));
    moving.priority_pull("a");
    let stall = copy(&mut moving.target, TABLE, other);
    assert_eq!(stall, Err(missing_in(other, &moving)));
    let (_, mut target) = moving.finish();
    assert_eq!(copy(&mut target, TABLE, other), Ok(true));
    assert_eq!(copy(&mut target, TABLE, other), Ok(false));
    let key = target.key("a");
    let copied =
        target.worker.read_one(other, key, |record| record.map(|r| r.value.bytes.to_vec()));
    assert_eq!(copied, Ok(Some(b"1".to_vec())));
}

#[test]
fn a_range_that_comes_from_a_clock_ahead_waits_for_ours_and_no_other_notices() {
    let mut server = Server::serving();
    let names: Vec<String> = (0..64).map(|number| format!("key:{number}")).collect();
    let (low, high) = (KeyHash(u64::MAX / 2), KeyHash(u64::MAX / 2 + 1));
    let ranges = [HashRange::new(KeyHash(0), low), HashRange::new(high, KeyHash(u64::MAX))];
    for name in &names {
        server.set_with_expiry(name, "1", Some(UnixMillis(NOW.0 + 300))).unwrap();
    }
    // The upper half comes from a server with a clock half a second ahead.
    let floor = UnixMillis(NOW.0 + 500);
    let clocks = [RangeClock::OWN, RangeClock::going_on_from(floor, NOW)];
    let tablets = ranges.into_iter().zip(clocks).map(|(range, clock)| store::Tablet {
        clock,
        ..common::tablet(range, TabletState::Serving)
    });
    server.store.publish(store::TabletMap::new(tablets.collect()));
    server.turn();
    assert_eq!((server.store.clock(), server.store.latest_clock()), (NOW, floor));
    for name in &names {
        let hash = server.key(name).hash;
        let is_high = ranges[1].contains(hash);
        let expected = (!is_high).then(|| b"1".to_vec());
        assert_eq!(server.get(name), Ok(expected), "{name}");
        // A record written from now on has its full time to live, by the clock of its range.
        let at = UnixMillis(server.worker.clock_at(hash).0 + 200);
        assert_eq!(at.0, if is_high { floor.0 } else { NOW.0 } + 200);
        server.set_with_expiry(name, "2", Some(at)).unwrap();
        assert_eq!(server.get(name), Ok(Some(b"2".to_vec())), "{name}");
    }
    let mut cursor = Some(KeyHash(0));
    while let Some(from) = cursor {
        cursor = server.worker.expire(TABLE, from, 100_000);
    }
    server.now = UnixMillis(NOW.0 + 201);
    for name in &names {
        let is_high = ranges[1].contains(server.key(name).hash);
        assert_eq!(server.get(name), Ok(is_high.then(|| b"2".to_vec())), "{name}");
    }
    server.now = UnixMillis(floor.0 + 200);
    names.iter().for_each(|name| assert_eq!(server.get(name), Ok(None), "{name}"));
}

#[test]
fn a_range_that_comes_from_a_clock_behind_goes_on_from_there() {
    let mut server = Server::serving();
    // The previous owner's clock was 300 ms behind. A client has just taken a lock for 200 ms.
    let before = UnixMillis(NOW.0 - 300);
    server.clock = RangeClock::going_on_from(before, NOW);
    server.publish(TabletState::Serving);
    let hash = server.key("lock").hash;
    assert_eq!(server.worker.clock_at(hash), before);
    server.set_with_expiry("lock", "1", Some(UnixMillis(before.0 + 200))).unwrap();
    for (passed, is_held) in [(0, true), (180, true), (200, false)] {
        server.now = UnixMillis(NOW.0 + passed);
        server.turn();
        let expected = is_held.then(|| b"1".to_vec());
        assert_eq!(server.get("lock"), Ok(expected), "after {passed} ms");
    }
    // The clock catches up by running a twentieth faster.
    server.now = UnixMillis(NOW.0 + 6_000);
    server.turn();
    assert_eq!(server.worker.clock_at(hash), server.now);
    assert_eq!((server.store.clock(), server.store.latest_clock()), (server.now, server.now));
}

#[test]
fn records_in_another_slot_or_range_than_they_belong_to_are_refused() {
    let body = Body::Object { expiry: None, replaces: None, value: TypedValue::string(b"1") };
    let entry = Entry { incarnation: Incarnation(1), version: Version(1), key: b"foo", body };
    let mut encoded = vec![0; entry.encoded_bytes()];
    entry.encode(&mut encoded);
    let batch = |slot| {
        let mut batch = Vec::new();
        BatchWriter::new(&mut batch).push(TABLE, slot, &encoded);
        batch
    };
    let mut target = Server::new(64 << 20);
    let (right, wrong) = (slot_of(b"foo"), Slot(7));
    for (range, slot) in [(right, wrong), (wrong, right), (wrong, wrong)] {
        let arrival = arrival(HashRange::of_slots(range, range));
        target.publish(TabletState::Arriving(Arc::clone(&arrival)));
        let replayed = target.worker.replay(&arrival, &batch(slot), 0, 9);
        assert!(matches!(replayed, Err(ReplayError::Corrupt(_))), "{slot:?}: {replayed:?}");
        assert!(target.worker.is_empty(HashRange::ALL));
    }
    let arrival = arrival(HashRange::of_slots(right, right));
    target.publish(TabletState::Arriving(Arc::clone(&arrival)));
    assert_eq!(target.worker.replay(&arrival, &batch(right), 0, 9).unwrap().records, 1);
}

/// Returns an arrival of a range that the source has reported as empty.
fn arrival(range: HashRange) -> Arc<Arrival> {
    Arc::new(Arrival::new(ArrivalPlan {
        migration: MigrationId(1),
        source: ServerId(1),
        range,
        partitions: vec![range],
        expected: RecordCounts::default(),
        reservation: None,
    }))
}
