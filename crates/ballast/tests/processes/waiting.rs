//! `WAIT` and `WAITAOF`: they wait until earlier writes are on enough other servers and disks, and
//! return the numbers.

use crate::client::{Answer, Client, until};
use crate::crashes::alone;
use crate::seats::{Plan, Seats};
use crate::servers::{MODEST, Process};

/// A timeout longer than any event of the test takes.
const LONG: &str = "20000";

fn numbers(answer: &Answer) -> Vec<i64> {
    answer.items().iter().map(Answer::number).collect()
}

#[test]
fn a_server_alone_waits_for_its_own_disk() {
    for durability in ["interval", "disk"] {
        let folder = tempfile::tempdir().expect("a folder can be made");
        let arguments = [&MODEST[..], &["--durability", durability]].concat();
        let server = Process::kept(folder.path(), &arguments);
        let mut client = server.client();
        let mut requests = Vec::new();
        for line in ["SET a 1", &format!("WAITAOF 1 0 {LONG}"), "GET a"] {
            requests.push(line.split(' ').map(String::from).collect());
        }
        let answers = client.ask_all(&requests);
        assert_eq!(numbers(&answers[1]), [1, 0], "{durability}");
        assert_eq!(answers[2].text(), "1", "what follows is answered too");
        assert_eq!(client.ask(&["WAIT", "1", "20"]).number(), 0, "there are no others");
        assert_eq!(numbers(&client.ask(&["WAITAOF", "1", "1", "20"])), [1, 0]);
    }
}

#[test]
fn what_is_left_to_the_system_is_not_said_to_be_on_a_disk() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let server = Process::kept(folder.path(), &[&MODEST[..], &["--durability", "memory"]].concat());
    let mut client = server.client();
    client.ask(&["SET", "a", "1"]);
    let refusal = "ERR WAITAOF cannot be used when numlocal is set but appendonly is disabled.";
    assert_eq!(client.ask(&["WAITAOF", "1", "0", LONG]).text(), refusal);
    assert_eq!(numbers(&client.ask(&["WAITAOF", "0", "0", LONG])), [0, 0]);
    let saved = client.ask(&["BGSAVE"]).text();
    assert!(saved.starts_with("ERR not supported with durability 'memory': "), "{saved}");
}

#[test]
fn a_write_is_on_as_many_other_servers_as_wait_says() {
    let _alone = alone();
    let plan = Plan { servers: 3, replicas: 2, durability: "disk", network: None };
    let mut seats = Seats::start(plan, |_| ());
    let mut client = Client::connect(seats.servers[0].address);
    let mut requests = Vec::new();
    for line in ["SET a 1", &format!("WAIT 2 {LONG}"), &format!("WAITAOF 0 2 {LONG}"), "SAVE"] {
        requests.push(line.split(' ').map(String::from).collect());
    }
    let answers = client.ask_all(&requests);
    assert_eq!(answers[0].text(), "OK");
    assert_eq!(answers[1].number(), 2);
    assert_eq!(numbers(&answers[2]), [0, 2]);
    assert_eq!(answers[3].text(), "OK", "a write is on disks before it is answered");

    seats.servers[2].kill();
    until("one server is known to be gone", || client.ask(&["WAIT", "2", "1"]).number() == 1);
    assert_eq!(client.ask(&["SET", "b", "2"]).text(), "OK");
    assert_eq!(client.ask(&["WAIT", "1", LONG]).number(), 1);
    seats.servers[2].start();
    // The data is on two other servers again when the replacement has joined.
    client.request(&["WAIT", "2", "0"]);
    seats.servers[2].ready();
    assert_eq!(client.answer().number(), 2);
}
