//! Versions of records, as clients see them. The numbers depend on the run, their order does not.

use crate::client::{Answer, Client};
use crate::servers::{MODEST, Process};
use resp::Value;

/// Returns the second item of a reply: the version.
fn version(answer: &Answer) -> i64 {
    answer.items()[1].number()
}

/// Writes with a condition, and returns whether it was executed, and the version.
fn write_if(client: &mut Client, words: &[&str], condition: i64) -> (bool, i64) {
    let condition = condition.to_string();
    let words = [words, &["IFVERSION", &condition]].concat();
    let answer = client.ask(&words);
    (answer.items()[0].number() == 1, version(&answer))
}

#[test]
fn every_write_has_a_version_of_its_own_and_conditions_guard_it() {
    let server = Process::alone(&MODEST);
    let client = &mut server.client();
    let first = version(&client.ask(&["BALLAST.SET", "k", "1"]));
    assert!(first > 0);
    let read = client.ask(&["BALLAST.GET", "k"]);
    assert_eq!((read.items()[0].text(), version(&read)), ("1".into(), first));
    assert_eq!(write_if(client, &["BALLAST.SET", "k", "2"], 0), (false, first));
    assert_eq!(write_if(client, &["BALLAST.SET", "k", "2"], first + 1), (false, first));
    let (is_written, second) = write_if(client, &["BALLAST.SET", "k", "2"], first);
    assert!(is_written && second > first);
    assert_eq!(write_if(client, &["BALLAST.SET", "k", "3"], first), (false, second));
    assert_eq!(write_if(client, &["BALLAST.DEL", "k"], first), (false, second));
    assert_eq!(write_if(client, &["BALLAST.DEL", "k"], second), (true, 0));
    assert_eq!(write_if(client, &["BALLAST.SET", "k", "3"], second), (false, 0));
    let (is_written, third) = write_if(client, &["BALLAST.SET", "k", "3"], 0);
    assert!(is_written && third > second, "a version does not come back after a delete");
    let mut before = third;
    for words in [
        &["SET", "k", "1", "EX", "1000"][..],
        &["INCR", "k"],
        &["PERSIST", "k"],
        &["APPEND", "k", "1"],
        &["BALLAST.SET", "k", "5"],
    ] {
        client.ask(words);
        let after = version(&client.ask(&["BALLAST.GET", "k"]));
        assert!(after > before, "{words:?} gives a new version");
        before = after;
    }
    client.ask(&["SET", "k", "6", "EX", "1000"]);
    client.ask(&["BALLAST.SET", "k", "7"]);
    assert_eq!(client.ask(&["TTL", "k"]).number(), -1);
    client.ask(&["SET", "k", "8", "NX"]);
    let after = client.ask(&["BALLAST.GET", "k"]);
    assert_eq!(after.items()[0].text(), "7", "a write that changes nothing gives no version");
}

/// Runs a transaction, and returns its replies.
fn transact(client: &mut Client, commands: &[&[&str]]) -> Vec<Answer> {
    client.ask(&["MULTI"]);
    for command in commands {
        assert_eq!(client.ask(command).text(), "QUEUED");
    }
    client.ask(&["EXEC"]).items()
}

#[test]
fn replies_of_a_transaction_show_the_versions_that_it_has_given() {
    let server = Process::alone(&MODEST);
    let client = &mut server.client();
    let before = version(&client.ask(&["BALLAST.SET", "a", "0"]));
    let condition = before.to_string();
    let replies = transact(
        client,
        &[
            &["BALLAST.GET", "a"],
            &["BALLAST.SET", "a", "1", "IFVERSION", &condition],
            &["BALLAST.GET", "a"],
            &["SET", "plain", "1"],
            &["BALLAST.SET", "a", "2", "IFVERSION", &condition],
            &["BALLAST.SET", "b", "1"],
            &["BALLAST.SET", "gone", "1"],
            &["DEL", "gone"],
            &["BALLAST.SET", "a", "3", "IFVERSION", "x"],
            &["GET", "a"],
        ],
    );
    let (a, b) = (version(&client.ask(&["BALLAST.GET", "a"])), client.ask(&["BALLAST.GET", "b"]));
    assert!(a > before && version(&b) > before && a != version(&b));
    let pair = |one: i64, two: i64| Value::Array(vec![Value::Integer(one), Value::Integer(two)]);
    let read = |text: &str, version: i64| {
        Value::Array(vec![Value::Bulk(text.into()), Value::Integer(version)])
    };
    assert_eq!(replies[0].0, read("0", before), "before the first write");
    assert_eq!(replies[1].0, pair(1, a));
    assert_eq!(replies[2].0, read("1", a));
    assert_eq!(replies[3].text(), "OK");
    assert_eq!(replies[4].0, pair(0, a), "the condition names the version before");
    assert_eq!(replies[5].0, pair(1, version(&b)));
    assert_eq!(replies[6].0, pair(1, 0), "the record does not exist in the end");
    assert_eq!(replies[7].number(), 1);
    assert!(replies[8].is_error("ERR value is not an integer"));
    assert_eq!(replies[9].text(), "1");
    assert_eq!(replies.len(), 10);
}

#[test]
fn a_transaction_of_one_key_and_one_without_writes_show_versions() {
    let server = Process::alone(&MODEST);
    let client = &mut server.client();
    let replies = transact(client, &[&["BALLAST.SET", "k", "1"], &["BALLAST.GET", "k"]]);
    let now = version(&client.ask(&["BALLAST.GET", "k"]));
    assert_eq!(replies.iter().map(version).collect::<Vec<_>>(), [now, now]);
    let replies =
        transact(client, &[&["BALLAST.GET", "k"], &["BALLAST.DEL", "k", "IFVERSION", "0"]]);
    assert_eq!(replies.iter().map(version).collect::<Vec<_>>(), [now, now]);
}
