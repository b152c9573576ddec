//! Tests of exactly-once requests on one server.

use super::*;
use types::{LeaseId, TableId};
use wire::control::{ClockQuestion, LeaseGrant};

const INCREMENT: &str = "BALLAST.ONCE 7 1 1 INCR a";

fn world() -> (World, Asking) {
    let mut world = World::new(ServerConfiguration::default());
    let client = world.connect(1, 0, HERE);
    (world, client)
}

/// Returns the number of completion records, floors included.
fn completions(world: &World) -> u64 {
    world.cores[0].backend.table_records(TableId::COMPLETIONS)
}

fn end_leases_below(world: &mut World, horizon: u64) {
    let (asked, lease_horizon) = (world.now, LeaseId(horizon));
    let question = ClockQuestion { asked, reference: None, lease_horizon };
    world.cores[0].on_control(FromCoordinator::Clock(question));
}

#[test]
fn a_repeated_request_is_executed_once_and_gets_the_same_reply() {
    let (mut world, mut client) = world();
    let mut other = world.connect(2, 1, HERE);
    assert_eq!(world.ask(&mut client, INCREMENT), ":1\r\n");
    assert_eq!(world.ask(&mut client, INCREMENT), ":1\r\n");
    assert_eq!(world.ask(&mut other, INCREMENT), ":1\r\n", "on another reactor");
    assert_eq!(world.ask(&mut client, "INCR a"), ":2\r\n");
    assert_eq!(world.ask(&mut client, INCREMENT), ":1\r\n", "after other writes");
    assert_eq!(world.ask(&mut client, "DEL a"), ":1\r\n");
    assert_eq!(world.ask(&mut client, INCREMENT), ":1\r\n");
    assert_eq!(world.ask(&mut client, "GET a"), "$-1\r\n", "after the key was deleted");
    assert_eq!(world.ask(&mut client, "BALLAST.ONCE 7 2 1 INCR a"), ":1\r\n");
    assert_eq!(world.ask(&mut client, "BALLAST.ONCE 8 1 1 INCR a"), ":2\r\n", "another client");
}

#[test]
fn expiries_of_fields_are_set_once() {
    let (mut world, mut client) = world();
    let hset = "BALLAST.ONCE 7 1 1 HSETEX a PX 500 FIELDS 1 f v";
    let persist = "BALLAST.ONCE 7 2 1 HPERSIST a FIELDS 1 f";
    let expire = "BALLAST.ONCE 7 3 1 HPEXPIRE a 700 FIELDS 1 f";
    let get = "BALLAST.ONCE 7 4 1 HGETEX a PX 900 FIELDS 1 f";
    for (request, reply, left) in [
        (hset, ":1", 500),
        (persist, "*1\r\n:1", -1),
        (hset, ":1", -1),
        (expire, "*1\r\n:1", 700),
        (persist, "*1\r\n:1", 700),
        (get, "*1\r\n$1\r\nv", 900),
        (expire, "*1\r\n:1", 900),
        (get, "*1\r\n$1\r\nv", 900),
    ] {
        assert_eq!(world.ask(&mut client, request), format!("{reply}\r\n"), "{request}");
        let shown = world.ask(&mut client, "HPTTL a FIELDS 1 f");
        assert_eq!(shown, format!("*1\r\n:{left}\r\n"), "{request}");
    }
}

#[test]
fn requests_are_recorded_in_any_order_until_the_client_has_completed_them() {
    let (mut world, mut client) = world();
    for (request, reply) in [
        ("7 3 1 APPEND a xyz", ":3"),
        ("7 1 1 APPEND a x", ":4"),
        ("7 3 1 APPEND a xyz", ":3"),
        ("7 1 1 APPEND a x", ":4"),
        ("7 4 3 APPEND a xy", ":6"),
        ("7 3 3 APPEND a xyz", ":3"),
        (
            "7 5 4 STRLEN a",
            "-ERR only commands that change the keys they name can be executed once",
        ),
    ] {
        let line = format!("BALLAST.ONCE {request}");
        assert_eq!(world.ask(&mut client, &line), format!("{reply}\r\n"), "{line}");
    }
    for stale in ["7 1 1 APPEND a x", "7 2 1 APPEND a x", "7 3 4 APPEND a x"] {
        let reply = world.ask(&mut client, &format!("BALLAST.ONCE {stale}"));
        assert!(reply.starts_with("-ACKNOWLEDGED "), "{stale}: {reply}");
    }
    assert_eq!(world.ask(&mut client, "STRLEN a"), ":6\r\n");
}

#[test]
fn commands_with_a_number_of_keys_are_executed_once() {
    let (mut world, mut client) = world();
    let popped = "*2\r\n$4\r\n{a}2\r\n*1\r\n*2\r\n$1\r\ny\r\n$1\r\n2";
    for (request, reply) in [
        ("7 1 1 ZADD {a}1 1 x 2 y", ":2"),
        ("7 2 1 ZINCRBY {a}1 5 x", "$1\r\n6"),
        ("7 2 1 ZINCRBY {a}1 5 x", "$1\r\n6"),
        ("7 3 1 ZUNIONSTORE {a}2 2 {a}1 {a}3", ":2"),
        ("7 4 1 ZMPOP 2 {a}3 {a}2 MIN", popped),
        ("7 4 1 ZMPOP 2 {a}3 {a}2 MIN", popped),
        ("7 5 1 GEORADIUS {a}1 0 0 1 m STORE {a}4", ":0"),
    ] {
        let line = format!("BALLAST.ONCE {request}");
        assert_eq!(world.ask(&mut client, &line), format!("{reply}\r\n"), "{line}");
    }
    assert_eq!(world.ask(&mut client, "ZCARD {a}2"), ":1\r\n");
}

#[test]
fn an_error_is_recorded_as_a_reply() {
    let (mut world, mut client) = world();
    world.ask(&mut client, "SET a text");
    let error = world.ask(&mut client, INCREMENT);
    assert_eq!(error, "-ERR value is not an integer or out of range\r\n");
    world.ask(&mut client, "DEL a");
    assert_eq!(world.ask(&mut client, INCREMENT), error);
    assert_eq!(world.ask(&mut client, "GET a"), "$-1\r\n");
}

#[test]
fn refused_requests_are_neither_executed_nor_recorded() {
    let (mut world, mut client) = world();
    for request in [
        "7 1 1 GET a",
        "7 1 1 FLUSHALL now",
        "7 1 1 BALLAST.ONCE 7 1 1 INCR a",
        "7 1 1 NOSUCH a",
        "7 1 1 INCR a b",
        "7 1 1 MSETEX 0 a",
        "0 1 1 INCR a",
        "7 0 1 INCR a",
        "7 1 0 INCR a",
        "7 x 1 INCR a",
        "-7 1 1 INCR a",
        "9223372036854775808 1 1 INCR a",
        "7 1 1 INCR",
    ] {
        let reply = world.ask(&mut client, &format!("BALLAST.ONCE {request}"));
        assert!(reply.starts_with("-ERR "), "{request}: {reply}");
    }
    assert_eq!(completions(&world), 0);
    assert_eq!(world.ask(&mut client, INCREMENT), ":1\r\n");
}

#[test]
fn commands_on_several_keys_and_with_versions_are_wrapped() {
    let (mut world, mut client) = world();
    let mut twice = |request: &str| {
        let line = format!("BALLAST.ONCE 7 {request}");
        let reply = world.ask(&mut client, &line);
        assert_eq!(world.ask(&mut client, &line), reply, "{line}");
        reply
    };
    assert_eq!(twice("1 1 MSET a 1 b 2 a 3"), "+OK\r\n");
    assert_eq!(twice("2 1 DEL a b c"), ":2\r\n");
    assert_eq!(twice("3 1 SET a 5 GET"), "$-1\r\n");
    assert_eq!(twice("4 1 GETDEL a"), "$1\r\n5\r\n");
    assert_eq!(twice("5 1 SETNX a 1"), ":1\r\n");
    assert_eq!(twice("6 1 SETNX a 2"), ":0\r\n");
    assert_eq!(twice("7 1 RENAME a b"), "+OK\r\n");
    assert_eq!(twice("20 1 RPUSH list a b c"), ":3\r\n");
    assert_eq!(twice("21 1 LPOP list"), "$1\r\na\r\n");
    assert_eq!(twice("22 1 LMPOP 2 nokey list RIGHT"), "*2\r\n$4\r\nlist\r\n*1\r\n$1\r\nc\r\n");
    let refused = "-ERR commands that wait cannot be executed once\r\n";
    assert_eq!(twice("23 1 BLPOP list 0"), refused);
    assert_eq!(twice("23 1 BLMPOP 0 1 list LEFT"), refused);
    let written = twice("8 1 BALLAST.SET a 1");
    assert!(written.starts_with("*2\r\n:1\r\n:"), "{written}");
    let version = written.trim_end().rsplit(':').next().unwrap().to_owned();
    assert_eq!(world.ask(&mut client, "BALLAST.GET a"), format!("*2\r\n$1\r\n1\r\n:{version}\r\n"));
    let deleted =
        world.ask(&mut client, &format!("BALLAST.ONCE 7 9 1 BALLAST.DEL a IFVERSION {version}"));
    assert_eq!(deleted, "*2\r\n:1\r\n:0\r\n");
}

#[test]
fn completion_records_are_invisible_and_outlive_a_flush() {
    let mut world = World::of_cluster();
    let mut client = world.connect(1, 0, HERE);
    assert_eq!(world.ask(&mut client, INCREMENT), ":1\r\n");
    assert_eq!(world.ask(&mut client, "DEL a"), ":1\r\n");
    assert_eq!(completions(&world), 1);
    assert_eq!(world.ask(&mut client, "DBSIZE"), ":0\r\n");
    assert_eq!(world.ask(&mut client, "SCAN 0"), "*2\r\n$1\r\n0\r\n*0\r\n");
    assert_eq!(world.ask(&mut client, "RANDOMKEY"), "$-1\r\n");
    assert_eq!(world.ask(&mut client, "CLUSTER COUNTKEYSINSLOT 15495"), ":0\r\n");
    assert_eq!(world.ask(&mut client, "CLUSTER GETKEYSINSLOT 15495 10"), "*0\r\n");
    assert!(!world.ask(&mut client, "INFO keyspace").contains("db"));
    assert_eq!(world.ask(&mut client, "SELECT 16"), "-ERR DB index is out of range\r\n");
    assert_eq!(world.ask(&mut client, "COPY a a DB 16"), "-ERR DB index is out of range\r\n");
}

/// Lets a walk over the completion records learn, and a later one drop.
fn walk_twice(world: &mut World) {
    world.pass(Duration::ZERO);
    world.pass(Duration::from_secs(5));
}

#[test]
fn completed_requests_are_dropped_and_their_copies_refused() {
    let (mut world, mut client) = world();
    for sequence in 1..=100 {
        let line = format!("BALLAST.ONCE 7 {sequence} {sequence} INCR {{a}}{sequence}");
        assert_eq!(world.ask(&mut client, &line), ":1\r\n");
    }
    assert_eq!(completions(&world), 100);
    walk_twice(&mut world);
    assert_eq!(completions(&world), 2, "the last one, and the floors of the slot");
    let late = world.ask(&mut client, "BALLAST.ONCE 7 1 1 INCR {a}1");
    assert!(late.starts_with("-ACKNOWLEDGED "), "{late}");
    assert_eq!(world.ask(&mut client, "GET {a}1"), "$1\r\n1\r\n");
    assert_eq!(world.ask(&mut client, "BALLAST.ONCE 7 100 100 INCR {a}100"), ":1\r\n");
    assert_eq!(world.ask(&mut client, "BALLAST.ONCE 7 101 100 INCR {a}1"), ":2\r\n");
    assert_eq!(world.ask(&mut client, "BALLAST.ONCE 8 1 1 INCR {a}1"), ":3\r\n");
}

#[test]
fn records_of_an_ended_lease_are_dropped_and_its_requests_refused() {
    let (mut world, mut client) = world();
    world.ask(&mut client, INCREMENT);
    world.ask(&mut client, "BALLAST.ONCE 8 1 1 INCR a");
    end_leases_below(&mut world, 7);
    walk_twice(&mut world);
    assert_eq!(completions(&world), 2, "no lease of these has ended");
    end_leases_below(&mut world, 8);
    let refused = world.ask(&mut client, INCREMENT);
    assert!(refused.starts_with("-LEASEENDED "), "{refused}");
    assert_eq!(completions(&world), 2);
    walk_twice(&mut world);
    assert_eq!(completions(&world), 2, "the other client's, and the floors of the slot");
    assert_eq!(world.ask(&mut client, "BALLAST.ONCE 8 1 1 INCR a"), ":2\r\n");
    assert_eq!(world.ask(&mut client, "GET a"), "$1\r\n2\r\n");
}

#[test]
fn replies_have_limits_that_are_checked_before_the_execution() {
    let (mut world, mut client) = world();
    let long = "x".repeat(20_000);
    world.ask(&mut client, &format!("SET a {long}"));
    let refused = world.ask(&mut client, "BALLAST.ONCE 7 1 1 GETDEL a");
    assert!(refused.starts_with("-ERR the reply is too long"), "{refused}");
    assert_eq!(world.ask(&mut client, "STRLEN a"), ":20000\r\n");
    let value = "x".repeat(10_000);
    world.ask(&mut client, &format!("SET b {value}"));
    let get =
        |sequence: u32, first: u32| format!("BALLAST.ONCE 7 {sequence} {first} SETRANGE b 0 x");
    let set = |sequence: u32| format!("BALLAST.ONCE 7 {sequence} 1 SET b {value} GET");
    let refused: Vec<u32> = (1..=20)
        .filter(|sequence| world.ask(&mut client, &set(*sequence)).starts_with("-ERR too many"))
        .collect();
    assert_eq!(refused, (14..=20).collect::<Vec<_>>());
    assert_eq!(world.ask(&mut client, &get(21, 13)), ":10000\r\n", "room after acknowledgment");
}

#[test]
fn leases_come_from_the_coordinator() {
    let mut world = World::of_cluster();
    let mut client = world.connect(1, 0, HERE);
    for (line, renewed, answer, reply) in [
        (
            "BALLAST.LEASE",
            None,
            Some(LeaseGrant { lease: LeaseId(9), term: 300 }),
            "*2\r\n:9\r\n:300\r\n",
        ),
        (
            "BALLAST.LEASE renew 9",
            Some(LeaseId(9)),
            None,
            "-LEASEENDED The lease has ended. Take a new one with BALLAST.LEASE\r\n",
        ),
    ] {
        assert_eq!(world.ask(&mut client, line), "");
        let (request, asks) = asked(&mut world);
        assert_eq!(asks, [Ask::Lease { renewed }]);
        let answer = Answer::Lease(answer);
        world.cores[0].on_control(FromCoordinator::Answer { request, answer });
        world.pass(Duration::ZERO);
        assert_eq!(world.answer(&client), reply);
    }
    for wrong in ["BALLAST.LEASE 9", "BALLAST.LEASE RENEW", "BALLAST.LEASE RENEW x"] {
        assert!(world.ask(&mut client, wrong).starts_with("-ERR "), "{wrong}");
    }
}
