//! Reactors whose segments are saved independently: a crash takes no part of a batch away, and
//! nothing that another batch has read.

use crate::common::{NOW, TABLE, key, number, tablet};
use crate::transfers::{ACCOUNTS, Server, has_halved_a_transfer};
use std::sync::Arc;
use store::{Arrival, ArrivalPlan, TabletMap, TabletState, Worker};
use types::{HashRange, KeyHash, MigrationId, ServerId, UnixMillis};
use wire::peer::RecordCounts;

impl Server {
    /// Sets a record, whatever it was.
    fn set(&mut self, reactor: usize, name: &str, value: &str) {
        let key = key(&self.store, name.as_bytes());
        self.workers[reactor].begin_turn(NOW);
        self.workers[reactor].put(TABLE, key, value.as_bytes(), None).unwrap();
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

/// Without the batch, the history is that the batch has never been.
#[test]
fn blind_writes_wait_for_nobody() {
    let mut server = Server::with(&["a", "b"]);
    server.transfer(0, ["a", "b"], 30);
    server.set(1, "b", "7");
    server.save(1);
    let mut server = server.crash();
    assert_eq!((server.get("a"), server.get("b")), (Some(100), Some(7)));
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

#[test]
fn no_crash_leaves_half_a_transfer() {
    assert_eq!((0..20).find(|&seed| has_halved_a_transfer(seed)), None);
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

/// In a range that arrives, an expired record leaves a tombstone. The record's expiry is the reason
/// for it, so the tombstone must not outlive the batch that has set the expiry.
#[test]
fn the_tombstone_of_an_expired_record_is_saved_behind_the_batch_that_let_it_expire() {
    let mut server = Server::with(&["a", "b"]);
    let arrival = Arc::new(Arrival::new(ArrivalPlan {
        migration: MigrationId(1),
        source: ServerId(2),
        range: HashRange::ALL,
        partitions: vec![HashRange::ALL],
        expected: RecordCounts::of(&[]),
        reservation: None,
    }));
    let arriving = tablet(HashRange::ALL, TabletState::Arriving(arrival));
    server.store.publish(TabletMap::new(vec![arriving]));
    server.update(0, &["a", "b"], |_, changes| {
        changes.put(0, b"1", Some(UnixMillis(1)));
        changes.put(1, b"1", None);
    });
    server.workers[1].begin_turn(NOW);
    assert_eq!(server.workers[1].expire(TABLE, KeyHash(0), 1 << 20), None);
    server.save(1);
    let mut server = server.crash();
    assert_eq!((server.get("a"), server.get("b")), (Some(100), Some(100)), "half a batch");
}
