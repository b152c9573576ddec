//! Requests that wait for entries of streams, on two reactors.

use super::blocking::settle;
use super::*;

const NO_GROUP: &str =
    "-NOGROUP No such key 's' or consumer group 'g' in XREADGROUP with GROUP option\r\n";

const WRONG_TYPE: &str = "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n";

fn world() -> World {
    World::new(ServerConfiguration::default())
}

/// Returns the reply with entries `a` = `b` of the stream `s`.
fn entries(ids: &[&str]) -> String {
    let mut reply = format!("*1\r\n*2\r\n$1\r\ns\r\n*{}\r\n", ids.len());
    for id in ids {
        reply += &format!("*2\r\n${}\r\n{id}\r\n*2\r\n$1\r\na\r\n$1\r\nb\r\n", id.len());
    }
    reply
}

#[test]
fn all_readers_are_served_behind_the_ids_at_which_they_began_to_wait() {
    let mut world = world();
    let mut writer = world.connect(9, 1, HERE);
    world.ask(&mut writer, "XADD s 1-1 a b");
    let mut readers: Vec<Asking> =
        (0..4).map(|number| world.connect(number, number as usize % 2, HERE)).collect();
    for (reader, id) in readers.iter_mut().zip(["$", "$", "1-1", "3-0"]) {
        assert_eq!(world.ask(reader, &format!("XREAD BLOCK 0 STREAMS none s 0 {id}")), "");
        settle(&mut world);
    }
    // The trim removes the entry at which two readers began to wait.
    world.ask(&mut writer, "XADD s MAXLEN 1 2-1 a b");
    settle(&mut world);
    let replies: Vec<String> = readers.iter().map(|reader| world.answer(reader)).collect();
    let [new, none] = [entries(&["2-1"]), String::new()];
    assert_eq!(replies, [new.clone(), new.clone(), new, none]);
    world.ask(&mut writer, "MULTI\r\nXADD s 3-0 a b\r\nXADD s 3-1 a b\r\nEXEC");
    settle(&mut world);
    assert_eq!(world.answer(&readers[3]), entries(&["3-1"]));
    assert!(!world.operators.blocked.is_any());
}

#[test]
fn a_change_of_one_stream_without_new_entries_does_not_end_the_notifications_of_a_reader() {
    let mut world = world();
    let mut reader = world.connect(1, 0, HERE);
    let mut writer = world.connect(2, 1, HERE);
    world.ask(&mut writer, "XADD r 1-0 a b\r\nXADD s 1-0 a b");
    assert_eq!(world.ask(&mut reader, "XREAD BLOCK 0 STREAMS r s $ $"), "");
    settle(&mut world);
    for line in ["XGROUP CREATE s g $", "XGROUP CREATE s h $", "XADD s 2-0 a b"] {
        assert_eq!(world.answer(&reader), "", "before {line}");
        world.ask(&mut writer, line);
        settle(&mut world);
    }
    assert_eq!(world.answer(&reader), entries(&["2-0"]));
}

#[test]
fn consumers_of_a_group_are_served_in_turn_and_other_groups_beside_them() {
    let mut world = world();
    let mut writer = world.connect(9, 1, HERE);
    world.ask(&mut writer, "XGROUP CREATE s g $ MKSTREAM\r\nXGROUP CREATE s h $");
    let mut readers: Vec<Asking> =
        (0..3).map(|number| world.connect(number, number as usize % 2, HERE)).collect();
    for (reader, group) in readers.iter_mut().zip(["g", "g", "h"]) {
        let line = format!("XREADGROUP GROUP {group} c BLOCK 0 STREAMS s >");
        assert_eq!(world.ask(reader, &line), "");
        settle(&mut world);
    }
    let mut answers = |world: &mut World, line: &str| -> Vec<String> {
        world.ask(&mut writer, line);
        settle(world);
        readers.iter().map(|reader| world.answer(reader)).collect()
    };
    let one = entries(&["1-1"]);
    assert_eq!(answers(&mut world, "XADD s 1-1 a b"), [one.clone(), String::new(), one]);
    assert_eq!(answers(&mut world, "XADD s 1-2 a b")[1], entries(&["1-2"]));
    assert!(!world.operators.blocked.is_any());
}

#[test]
fn a_group_that_is_gone_ends_the_wait() {
    let mut world = world();
    let mut reader = world.connect(1, 0, HERE);
    let mut other = world.connect(2, 1, HERE);
    for (line, reply) in [
        ("XGROUP DESTROY s g", NO_GROUP),
        ("DEL s", NO_GROUP),
        ("RENAME s other", NO_GROUP),
        ("SET s 1", WRONG_TYPE),
    ] {
        world.ask(&mut other, "DEL s\r\nXGROUP CREATE s g $ MKSTREAM");
        assert_eq!(world.ask(&mut reader, "XREADGROUP GROUP g c BLOCK 0 STREAMS s >"), "");
        settle(&mut world);
        assert_eq!(world.answer(&reader), "", "{line}");
        world.ask(&mut other, line);
        settle(&mut world);
        assert_eq!(world.answer(&reader), reply, "{line}");
    }
}

#[test]
fn a_wait_for_entries_ends_with_its_time_limit_and_inside_a_transaction() {
    let mut world = world();
    let mut reader = world.connect(1, 0, HERE);
    assert_eq!(world.ask(&mut reader, "XREAD BLOCK 5 STREAMS s $"), "");
    settle(&mut world);
    world.pass(Duration::from_millis(10));
    assert_eq!(world.answer(&reader), "*-1\r\n");
    let replies = world.ask(&mut reader, "MULTI\r\nXREAD BLOCK 0 STREAMS s $\r\nEXEC");
    assert_eq!(replies, "+OK\r\n+QUEUED\r\n*1\r\n*-1\r\n");
    for (line, error) in [
        ("XREAD BLOCK -1 STREAMS s 0", "-ERR timeout is negative\r\n"),
        ("XREAD BLOCK x STREAMS s 0", "-ERR timeout is not an integer or out of range\r\n"),
    ] {
        assert_eq!(world.ask(&mut reader, line), error);
    }
}
