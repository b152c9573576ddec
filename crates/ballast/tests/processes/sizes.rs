//! Moves, recoveries and restarts with values of every length, in every database and slot.

use crate::client::{Client, until};
use crate::moves::until_all_end;
use crate::seats::{Plan, Seat, Seats};
use crate::servers::{Cluster, MODEST};
use std::net::SocketAddr;
use types::limits::{DATABASES, VALUE_BYTES_MAX};
use types::{SLOT_COUNT, slot_of};

/// Requests in a pipeline.
const AT_ONCE: usize = 512;

/// An expected record: database, key, and the parameters of its value.
#[derive(Clone)]
struct Expected {
    database: usize,
    key: String,
    bytes: usize,
}

impl Expected {
    /// Returns the value, which is different for each key and in each of its parts.
    fn value(&self) -> String {
        let mut value = String::with_capacity(self.bytes + self.key.len() + 8);
        let mut line = 0;
        while value.len() < self.bytes {
            value.push_str(&self.key);
            value.push_str(&line.to_string());
            line += 1;
        }
        value.truncate(self.bytes);
        value
    }
}

fn select(client: &mut Client, database: usize) {
    assert_eq!(client.ask(&["SELECT", &database.to_string()]).text(), "OK");
}

/// Splits records into runs of one database, short enough for one pipeline.
fn batches(records: &[Expected]) -> impl Iterator<Item = &[Expected]> {
    let mut rest = records;
    std::iter::from_fn(move || {
        let first = rest.first()?;
        let mut bytes = 0;
        let fits = |record: &&Expected| {
            bytes += record.bytes;
            record.database == first.database && bytes <= first.bytes.max(1 << 20)
        };
        let count = rest.iter().take(AT_ONCE).take_while(fits).count();
        let (batch, others) = rest.split_at(count.max(1));
        rest = others;
        Some(batch)
    })
}

/// Writes the records, which are ordered by database.
fn write(address: SocketAddr, records: &[Expected]) {
    let mut client = Client::connect(address);
    for batch in batches(records) {
        select(&mut client, batch[0].database);
        let requests = batch.iter().map(|it| vec!["SET".into(), it.key.clone(), it.value()]);
        for answer in client.ask_all(&requests.collect::<Vec<_>>()) {
            assert_eq!(answer.text(), "OK");
        }
    }
}

/// Reads all records and checks them.
fn check(address: SocketAddr, records: &[Expected], after: &str) {
    let mut client = Client::connect(address);
    for batch in batches(records) {
        select(&mut client, batch[0].database);
        let requests = batch.iter().map(|it| vec!["GET".into(), it.key.clone()]);
        let answers = client.ask_all(&requests.collect::<Vec<_>>());
        for (record, answer) in batch.iter().zip(answers) {
            let is_it = answer.text() == record.value();
            assert!(is_it, "{} of {} bytes after {after}", record.key, record.bytes);
        }
    }
}

/// Moves slots, and waits for the end of the migration.
fn move_slots(source: SocketAddr, target: SocketAddr, slots: (u16, u16)) {
    let name = Client::connect(target).ask(&["CLUSTER", "MYID"]).text();
    let (first, last) = (slots.0.to_string(), slots.1.to_string());
    let words = ["CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", &first, &last, "NODE", &name];
    let is_over = || {
        assert_eq!(Client::connect(source).ask(&words).text(), "OK");
        until_all_end(&[source, target]);
        let ranges = Client::connect(target).ask(&["CLUSTER", "SLOTS"]).items();
        ranges.iter().any(|range| {
            let range = range.items();
            let port = range[2].items()[1].number();
            let covers = range[0].number() <= slots.0.into() && slots.1 <= range[1].number() as u16;
            let ip = range[2].items()[0].text();
            covers && (ip, port) == (target.ip().to_string(), target.port().into())
        })
    };
    // A migration may be abandoned if processors are busy, so repeat it.
    until("the slots have moved", is_over);
}

/// Returns a hash tag for each slot.
fn tags() -> Vec<String> {
    let mut tags = vec![String::new(); usize::from(SLOT_COUNT)];
    let mut missing = tags.len();
    for number in 0.. {
        let tag = format!("{number:x}");
        let place = &mut tags[usize::from(slot_of(tag.as_bytes()).0)];
        if place.is_empty() {
            *place = tag;
            missing -= 1;
        }
        if missing == 0 {
            break;
        }
    }
    tags
}

/// Checks all records on their current owners.
fn check_everywhere(seats: &Seats, records: &[Expected], after: &str) {
    let ranges = seats.servers[0].ask(&["CLUSTER", "SLOTS"]).expect("a server answers").items();
    let mut checked = 0;
    for range in ranges {
        let range = range.items();
        let node = range[2].items();
        let ip = node[0].text().parse().expect("an address");
        let address = SocketAddr::new(ip, node[1].number() as u16);
        let slots = range[0].number()..=range[1].number();
        let is_there = |it: &&Expected| slots.contains(&slot_of(it.key.as_bytes()).0.into());
        let some: Vec<Expected> = records.iter().filter(is_there).cloned().collect();
        check(address, &some, after);
        checked += some.len();
    }
    assert_eq!(checked, records.len(), "every slot has an owner");
}

fn restart_all(seats: &mut Seats) {
    seats.servers.iter_mut().for_each(Seat::kill);
    seats.servers.iter_mut().for_each(Seat::start);
    seats.servers.iter_mut().for_each(Seat::ready);
    seats.until_whole();
}

/// A source that put all values into one reply would need a frame of more than 64 MiB.
#[test]
fn long_values_of_one_slot_are_moved_recovered_and_read_back() {
    let plan = Plan { servers: 3, replicas: 1, durability: "memory", network: None };
    let mut seats = Seats::start(plan, |_| ());
    let records: Vec<Expected> = (0..25)
        .map(|number| Expected { database: 0, key: format!("{{t}}{number}"), bytes: 2_750_000 })
        .collect();
    let (source, target) = (seats.servers[0].address, seats.servers[1].address);
    write(source, &records);
    let slot = slot_of(b"t").0;
    move_slots(source, target, (slot, slot));
    check(target, &records, "the move");
    seats.servers[1].kill();
    seats.until_served();
    seats.servers[1].start();
    seats.servers[1].ready();
    seats.until_whole();
    check_everywhere(&seats, &records, "the recovery");
    restart_all(&mut seats);
    check_everywhere(&seats, &records, "a restart of all");
}

#[test]
fn a_move_of_all_slots_in_all_databases_is_one_flip() {
    let memory = [&MODEST[..], &["--memory", "256mb"]].concat();
    let cluster = Cluster::start(2, &memory);
    let tags = tags();
    let record =
        |database, tag: &String| Expected { database, key: format!("{{{tag}}}"), bytes: 1 };
    let databases = 0..DATABASES;
    let records: Vec<Expected> =
        databases.flat_map(|database| tags.iter().map(move |tag| record(database, tag))).collect();
    let addresses = cluster.addresses();
    write(addresses[0], &records);
    move_slots(addresses[0], addresses[1], (0, SLOT_COUNT - 1));
    let few: Vec<Expected> = records.into_iter().step_by(37).collect();
    check(addresses[1], &few, "the move");
}

#[test]
fn values_of_all_lengths_in_all_databases_and_slots_survive_moves_recoveries_and_restarts() {
    let plan = Plan { servers: 3, replicas: 1, durability: "memory", network: None };
    let mut seats = Seats::start(plan, |_| ());
    let tags = tags();
    let mut random = fastrand::Rng::with_seed(7);
    // One value of each power of two, and many values of common lengths.
    let longest = (0..=22).map(|power| (1usize << power).min(VALUE_BYTES_MAX));
    let usual = (0..3_000).map(|_| 1 << random.u32(0..11));
    let mut records: Vec<Expected> = longest
        .chain(usual)
        .enumerate()
        .map(|(number, bytes)| {
            let (database, tag) = (number % DATABASES, &tags[number * 5 % tags.len()]);
            Expected { database, key: format!("{{{tag}}}{number}"), bytes }
        })
        .collect();
    records.sort_by_key(|record| record.database);
    let (source, target) = (seats.servers[0].address, seats.servers[1].address);
    write(source, &records);
    move_slots(source, target, (0, SLOT_COUNT - 1));
    check(target, &records, "a move of all");
    seats.servers[1].kill();
    seats.until_served();
    seats.servers[1].start();
    seats.servers[1].ready();
    seats.until_whole();
    restart_all(&mut seats);
    check_everywhere(&seats, &records, "a recovery and a restart of all");
}
