//! Lasting partial faults: during each fault, every key must be readable and writable as usual.
//!
//! Nothing heals before that is verified, so a cluster that waits for the end of the fault fails
//! the test. Requires root and `ip`. If no network can be created, the tests that cut connections
//! print that and do nothing.

use crate::client::{Client, until};
use crate::network::Network;
use crate::seats::{Plan, Seats};
use bench::clock;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

const SERVERS: usize = 4;
/// Least duration of a fault: longer than leases and all silence timeouts.
const LASTS: Duration = Duration::from_secs(3);
/// The same without a coordinator: longer than the silence limit of control connections.
const LASTS_WITHOUT_COORDINATOR: Duration = Duration::from_secs(7);
/// Bytes of a value, large enough that segments fill and new ones begin.
const VALUE_BYTES: usize = 100_000;

/// Runs one cluster at a time, because a busy machine looks like a network fault.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn network() -> Option<Network> {
    let network = Network::new(SERVERS + 1);
    network.inspect_err(|why| println!("skipped: no network can be made here: {why}")).ok()
}

/// Starts a cluster in which each server owns slots, and returns a key of each.
fn start(network: Option<&Network>) -> (Seats, Vec<String>) {
    let plan = Plan { servers: SERVERS, replicas: 2, durability: "memory", network };
    let mut seats = Seats::start(plan, |_| ());
    seats.spread();
    let key_of = |server: usize| {
        let keys = (0..1_000).map(|number| format!("key:{number}"));
        let mut owned = keys.filter(|key| seats.servers[server].ask(&["EXISTS", key]).is_some());
        owned.next().expect("every server owns something")
    };
    let keys = (0..SERVERS).map(key_of).collect();
    (seats, keys)
}

/// Writes and reads every key for at least this time, retrying until each succeeds.
fn write_and_read_all(seats: &Seats, keys: &[String], lasts: Duration) {
    let end = clock::now() + lasts;
    for count in 0.. {
        if clock::now() >= end {
            break;
        }
        let value = format!("{count}:{}", "x".repeat(VALUE_BYTES));
        for (key, seat) in keys.iter().zip(&seats.servers) {
            until("every key is written while the fault lasts", || {
                seat.ask(&["SET", key, &value]).is_some_and(|answer| answer.text() == "OK")
            });
            until("every key is read while the fault lasts", || {
                seat.ask(&["GET", key]).is_some_and(|answer| answer.text() == value)
            });
        }
    }
}

/// Returns the names of the running servers. A server that was declared dead gets a new name.
fn names(seats: &Seats) -> Vec<Option<String>> {
    seats.servers.iter().map(crate::seats::Seat::identity).collect()
}

#[test]
fn two_servers_that_do_not_reach_each_other_keep_no_key_waiting() {
    let _alone = alone();
    let Some(network) = network() else { return };
    let (mut seats, keys) = start(Some(&network));
    let before = names(&seats);
    network.cut(1, 2);
    write_and_read_all(&seats, &keys, LASTS);
    assert_eq!(names(&seats), before, "nobody was taken for dead");
    network.join(1, 2);
    seats.until_whole();
    write_and_read_all(&seats, &keys, LASTS);
}

#[test]
fn a_cut_in_one_direction_keeps_no_key_waiting() {
    let _alone = alone();
    let Some(network) = network() else { return };
    let (mut seats, keys) = start(Some(&network));
    let before = names(&seats);
    network.cut_from(1, 2);
    write_and_read_all(&seats, &keys, LASTS);
    assert_eq!(names(&seats), before, "nobody was taken for dead");
    network.join(1, 2);
    seats.until_whole();
}

#[test]
fn a_coordinator_that_is_away_keeps_no_key_waiting() {
    let _alone = alone();
    let (mut seats, keys) = start(None);
    seats.coordinator.kill();
    write_and_read_all(&seats, &keys, LASTS_WITHOUT_COORDINATOR);
    seats.coordinator.start();
    seats.coordinator.ready();
    seats.until_whole();
    write_and_read_all(&seats, &keys, LASTS);
}

#[test]
fn two_servers_cut_off_from_each_other_need_no_coordinator() {
    let _alone = alone();
    let Some(network) = network() else { return };
    let (mut seats, keys) = start(Some(&network));
    seats.coordinator.kill();
    network.cut(1, 2);
    write_and_read_all(&seats, &keys, LASTS);
    network.join(1, 2);
    seats.coordinator.start();
    seats.coordinator.ready();
    seats.until_whole();
}

#[test]
fn a_server_that_the_coordinator_does_not_reach_serves_on() {
    let _alone = alone();
    let Some(network) = network() else { return };
    let (mut seats, keys) = start(Some(&network));
    let before = names(&seats);
    // The coordinator has place 0.
    network.cut(0, 1);
    write_and_read_all(&seats, &keys, LASTS_WITHOUT_COORDINATOR);
    assert_eq!(names(&seats), before, "nobody was taken for dead");
    network.join(0, 1);
    seats.until_whole();
    write_and_read_all(&seats, &keys, LASTS);
}

#[test]
fn a_server_that_reaches_nobody_sends_its_clients_elsewhere() {
    let _alone = alone();
    let Some(network) = network() else { return };
    let (seats, keys) = start(Some(&network));
    let address = seats.servers[0].address;
    let (mut reader, mut writer) = (Client::connect(address), Client::connect(address));
    assert_eq!(writer.ask(&["SET", &keys[0], "before"]).text(), "OK");
    // Clients reach the server as before. The coordinator has place 0.
    (0..=SERVERS).filter(|place| *place != 1).for_each(|place| network.cut(1, place));
    // No backup acknowledges this write, unless it has left before.
    let is_sent = writer.try_request(&["SET", &keys[0], "after"]);
    assert!(is_sent, "the connection is open");
    until("the server refuses what others serve", || {
        // A read of the written key would wait for the write.
        reader.try_request(&["GET", &format!("{{{}}}:other", keys[0])]);
        reader.answer_within(LASTS).is_some_and(|answer| answer.is_error("CLUSTERDOWN"))
    });
    let outcome = writer.answer_within(LASTS);
    assert!(outcome.is_none(), "no reply tells the outcome of the write: {outcome:?}");
    until("another server serves the key", || {
        seats.servers[1..].iter().any(|seat| seat.ask(&["EXISTS", &keys[0]]).is_some())
    });
}

#[test]
fn a_write_that_too_few_servers_would_keep_is_refused_and_not_executed() {
    let plan = Plan { servers: 3, replicas: 2, durability: "memory", network: None };
    let mut seats = Seats::start(plan, |_| ());
    // This server owns all slots.
    let mut client = Client::connect(seats.servers[0].address);
    let all_others = ["CONFIG", "SET", "min-replicas-to-write", "2"];
    assert_eq!(client.ask(&all_others).text(), "OK");
    assert_eq!(client.ask(&["SET", "key", "before"]).text(), "OK");
    seats.servers[2].kill();
    let reachable = |seats: &Seats, count: &str| {
        let field = seats.servers[0].field(&["INFO", "everything"], "log_backups_reachable");
        field.as_deref() == Some(count)
    };
    until("one other server is left", || reachable(&seats, "1"));
    assert!(client.ask(&["SET", "key", "after"]).is_error("NOREPLICAS"));
    let transaction = [&["MULTI"][..], &["SET", "key", "after"], &["EXEC"]];
    let mut answers = transaction.map(|request| client.ask(request));
    assert!(answers[2].is_error("EXECABORT"), "{answers:?}");
    assert_eq!(client.ask(&["GET", "key"]).text(), "before");
    assert_eq!(client.ask(&["CONFIG", "SET", "min-replicas-to-write", "1"]).text(), "OK");
    assert_eq!(client.ask(&["SET", "key", "later"]).text(), "OK");
    assert_eq!(client.ask(&all_others).text(), "OK");
    seats.servers[2].start();
    seats.servers[2].ready();
    until("there are two again", || reachable(&seats, "2"));
    answers = transaction.map(|request| client.ask(request));
    assert_eq!(answers[2].items().len(), 1, "{answers:?}");
    assert_eq!(client.ask(&["GET", "key"]).text(), "after");
}
