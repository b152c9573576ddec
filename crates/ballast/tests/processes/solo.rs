//! The last living server of a cluster writes its log to its own disk and continues to serve. It
//! loses nothing when it is killed, and servers that join later get replicas of its whole log.

use crate::client::{Client, until};
use crate::crashes::alone;
use crate::seats::{Plan, Seat, Seats};
use std::process::Command;

/// Number of keys in a test, and in a test in which writes wait for the disk.
const KEYS: usize = 2_000;
const KEYS_ON_DISK: usize = 100;

fn start(servers: usize, replicas: usize, durability: &str) -> Seats {
    let plan = Plan { servers, replicas, durability, network: None };
    let mut seats = Seats::start(plan, |_| ());
    seats.spread();
    seats
}

fn running(seats: &Seats) -> impl Iterator<Item = &Seat> {
    seats.servers.iter().filter(|seat| seat.is_there())
}

/// Sends each key's request to the running servers in turn until one returns the expected reply.
fn each(seats: &Seats, keys: usize, request: impl Fn(usize) -> (Vec<String>, String)) {
    let mut clients: Vec<Client> =
        running(seats).map(|seat| Client::connect(seat.address)).collect();
    for key in 0..keys {
        let (words, expected) = request(key);
        until(&words.join(" "), || {
            clients.iter_mut().any(|client| client.ask(&words).text() == expected)
        });
    }
}

fn write(seats: &Seats, keys: usize, value: &str) {
    each(seats, keys, |key| {
        (["SET".into(), format!("key:{key}"), format!("{value}{key}")].into(), "OK".into())
    });
}

/// Reads every key. An error reply or a redirect does not count as a value.
fn read(seats: &Seats, keys: usize, value: &str) {
    each(seats, keys, |key| (["GET".into(), format!("key:{key}")].into(), format!("{value}{key}")));
}

fn field(seat: &Seat, name: &str) -> Option<String> {
    seat.field(&["INFO", "everything"], name)
}

fn is_last_server(seat: &Seat) -> bool {
    field(seat, "log_on_own_disk_only").as_deref() == Some("1")
}

/// Returns the output of `ballast cluster status`.
fn status(seats: &Seats) -> String {
    let address = seats.coordinator.address.to_string();
    let key = seats.coordinator.disk.with_file_name("cluster.key");
    let mut command = Command::new(crate::servers::binary());
    command.args(["cluster", "status", "--coordinator", &address]).arg("--cluster-key-file");
    let output = command.arg(key).output().expect("the binary starts");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).expect("words")
}

fn kill_and_start(seat: &mut Seat) {
    seat.kill();
    seat.start();
    seat.ready();
}

/// With two servers, kills one, then the other one twice, and lets the first get all data.
fn lose_one_and_the_other(durability: &str, keys: usize) {
    let _alone = alone();
    let mut seats = start(2, 1, durability);
    write(&seats, keys, "two");
    assert!(!status(&seats).contains("own disk"));
    seats.servers[0].kill();
    read(&seats, keys, "two");
    write(&seats, keys, "one");
    assert!(is_last_server(&seats.servers[1]));
    until("an operator is warned", || status(&seats).contains("is on its own disk only"));
    // Every replica that was lost with the first server has been copied to the second one's disk.
    seats.until_whole();

    kill_and_start(&mut seats.servers[1]);
    read(&seats, keys, "one");
    write(&seats, keys, "again");
    seats.until_whole();
    kill_and_start(&mut seats.servers[1]);
    read(&seats, keys, "again");

    // The first server starts with outdated replicas. After it has a replica of every segment, the
    // second one can be lost.
    seats.servers[0].start();
    seats.servers[0].ready();
    write(&seats, keys, "new");
    seats.until_whole();
    assert!(!is_last_server(&seats.servers[1]) && !status(&seats).contains("own disk"));
    seats.servers[1].kill();
    std::fs::remove_dir_all(&seats.servers[1].disk).expect("nobody uses it");
    read(&seats, keys, "new");
    assert!(is_last_server(&seats.servers[0]));
}

#[test]
fn the_last_of_two_servers_serves_on_and_loses_nothing_when_it_is_killed() {
    lose_one_and_the_other("memory", KEYS);
}

#[test]
fn the_last_of_two_servers_has_on_its_disk_what_it_has_answered() {
    lose_one_and_the_other("disk", KEYS_ON_DISK);
}

#[test]
fn the_last_of_three_servers_gives_everything_to_those_that_come_back() {
    let _alone = alone();
    let mut seats = start(3, 2, "memory");
    write(&seats, KEYS, "three");
    seats.servers[0].kill();
    read(&seats, KEYS, "three");
    write(&seats, KEYS, "two");
    seats.servers[1].kill();
    read(&seats, KEYS, "two");
    write(&seats, KEYS, "one");
    assert!(is_last_server(&seats.servers[2]));
    seats.servers[0].start();
    seats.servers[0].ready();
    until("somebody else keeps the log", || !is_last_server(&seats.servers[2]));
    read(&seats, KEYS, "one");
    write(&seats, KEYS, "two again");
    seats.servers[1].start();
    seats.servers[1].ready();
    seats.until_whole();
    seats.servers[2].kill();
    std::fs::remove_dir_all(&seats.servers[2].disk).expect("nobody uses it");
    read(&seats, KEYS, "two again");
}

#[test]
fn three_of_four_servers_are_killed_one_after_the_other_and_one_comes_back() {
    let _alone = alone();
    let mut seats = start(4, 2, "memory");
    write(&seats, KEYS, "four");
    for (place, value) in ["three", "two", "one"].into_iter().enumerate() {
        seats.servers[place].kill();
        write(&seats, KEYS, value);
        read(&seats, KEYS, value);
    }
    until("it is the last one", || is_last_server(&seats.servers[3]));
    seats.servers[1].start();
    seats.servers[1].ready();
    until("somebody else keeps the log", || !is_last_server(&seats.servers[3]));
    read(&seats, KEYS, "one");
    write(&seats, KEYS, "two again");
    read(&seats, KEYS, "two again");
    seats.servers[0].start();
    seats.servers[0].ready();
    // Two other servers have a replica of every segment each: the last disk can be lost.
    seats.until_whole();
    seats.servers[3].kill();
    std::fs::remove_dir_all(&seats.servers[3].disk).expect("nobody uses it");
    read(&seats, KEYS, "two again");
}

#[test]
fn an_operator_can_have_the_last_server_refuse_writes() {
    let _alone = alone();
    let mut seats = start(2, 1, "memory");
    let wants = ["CONFIG", "SET", "min-replicas-to-write", "1"];
    assert!(seats.servers[1].ask(&wants).is_some());
    seats.servers[0].kill();
    until("it is the last one", || is_last_server(&seats.servers[1]));
    seats.until_served();
    let mut client = Client::connect(seats.servers[1].address);
    assert!(client.ask(&["SET", "key", "value"]).is_error("NOREPLICAS"));
    assert_eq!(client.ask(&["CONFIG", "SET", "min-replicas-to-write", "auto"]).text(), "OK");
    assert_eq!(client.ask(&["SET", "key", "value"]).text(), "OK");
    assert_eq!(client.ask(&["WAIT", "1", "10"]).number(), 0, "nobody else has it");
}
