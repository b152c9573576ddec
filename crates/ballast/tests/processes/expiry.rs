//! Keys that expire become invisible at once, and are removed soon although no client reads them.

use crate::client::until;
use crate::servers::{MODEST, Process};

#[test]
fn an_expired_key_is_invisible_to_every_command() {
    let server = Process::alone(&MODEST);
    let mut client = server.client();
    client.ask(&["SET", "short", "value", "PX", "60"]);
    until("the key expires", || client.ask(&["PTTL", "short"]).number() == -2);
    for (command, expected) in
        [("TTL", -2), ("EXISTS", 0), ("STRLEN", 0), ("DEL", 0), ("UNLINK", 0), ("PERSIST", 0)]
    {
        assert_eq!(client.ask(&[command, "short"]).number(), expected, "{command}");
    }
    assert_eq!(client.ask(&["EXPIRE", "short", "100"]).number(), 0);
    assert_eq!(client.ask(&["TYPE", "short"]).text(), "none");
    assert_eq!(client.ask(&["SCAN", "0", "COUNT", "1000"]).items()[1].items(), []);
    assert_eq!(client.ask(&["SETNX", "short", "again"]).number(), 1);
    assert_eq!(client.ask(&["TTL", "short"]).number(), -1, "the old expiry is forgotten");
}

#[test]
fn a_counter_that_has_expired_starts_again() {
    let server = Process::alone(&MODEST);
    let mut client = server.client();
    client.ask(&["SET", "hits", "41"]);
    assert_eq!(client.ask(&["PEXPIRE", "hits", "60"]).number(), 1);
    assert_eq!(client.ask(&["INCR", "hits"]).number(), 42, "an increment keeps the expiry");
    until("the counter expires", || client.ask(&["EXISTS", "hits"]).number() == 0);
    assert_eq!(client.ask(&["INCR", "hits"]).number(), 1);
    assert_eq!(client.ask(&["TTL", "hits"]).number(), -1);
}

#[test]
fn expired_keys_that_nobody_asks_for_are_reclaimed() {
    let server = Process::alone(&MODEST);
    let mut client = server.client();
    for database in ["0", "5"] {
        client.ask(&["SELECT", database]);
        for number in 0..2_000 {
            let key = format!("session:{number}");
            client.ask(&["SET", &key, "value", "PX", if number < 1_990 { "1" } else { "1000000" }]);
        }
    }
    for database in ["0", "5"] {
        client.ask(&["SELECT", database]);
        until("the walk reclaims", || client.ask(&["DBSIZE"]).number() == 10);
    }
}

#[test]
fn expired_fields_that_nobody_asks_for_are_reclaimed() {
    let server = Process::alone(&MODEST);
    let mut client = server.client();
    for number in 0..500 {
        let key = format!("session:{number}");
        client.ask(&["HSETEX", &key, "PX", "1", "FIELDS", "2", "user", "u", "token", "t"]);
        if number < 10 {
            client.ask(&["HSET", &key, "user", "u"]);
        }
    }
    until("the walk reclaims", || client.ask(&["DBSIZE"]).number() == 10);
    assert_eq!(client.ask(&["HLEN", "session:1"]).number(), 1);
}

#[test]
fn the_time_that_is_left_is_told_in_seconds_and_milliseconds() {
    let server = Process::alone(&MODEST);
    let mut client = server.client();
    let now = client.ask(&["TIME"]).items();
    let now: i64 = now[0].text().parse().expect("seconds are a number");
    let (soon, soon_millis) = ((now + 100).to_string(), ((now + 100) * 1_000).to_string());
    for set in [
        vec!["SET", "key", "value", "EX", "100"],
        vec!["SET", "key", "value", "PX", "100000"],
        vec!["SET", "key", "value", "EXAT", &soon],
        vec!["SET", "key", "value", "PXAT", &soon_millis],
        vec!["SETEX", "key", "100", "value"],
        vec!["PSETEX", "key", "100000", "value"],
        vec!["EXPIRE", "key", "100"],
        vec!["PEXPIRE", "key", "100000"],
        vec!["EXPIREAT", "key", &soon],
        vec!["PEXPIREAT", "key", &soon_millis],
    ] {
        client.ask(&["SET", "key", "value"]);
        client.ask(&set);
        let (seconds, millis) =
            (client.ask(&["TTL", "key"]).number(), client.ask(&["PTTL", "key"]).number());
        assert!((98..=100).contains(&seconds), "{set:?}: {seconds} s");
        assert!((98_000..=100_000).contains(&millis), "{set:?}: {millis} ms");
    }
}
