//! Requests of values with parts, and the meaning of their replies.

use super::*;
use crate::commands::{self, ReplyMeaning};
use crate::history::{
    AdditionLimit, EntryId, EntryIds, NewEntry, OperationOutcome, PendingSummary, StreamAction,
};
use crate::workload::Workload;
use resp::{ReplyLimits, ReplyParser};
use std::collections::BTreeSet;
use types::HashSeed;

fn has_some(settings: &RunSettings) -> bool {
    Collections::draw(settings).is_some()
}

/// Returns a workload with values that have parts, streams among them, and fields that expire or not.
fn workload_with(timed_fields: bool) -> Workload {
    let is_one = |seed: &u64| {
        let collections = Collections::draw(&RunSettings::new(*seed));
        collections.is_some_and(|it| it.streams.is_some() && it.timed.is_some() == timed_fields)
    };
    let seed = (1..).find(is_one).unwrap();
    Workload::draw(&mut Rng::with_seed(1), &HashSeed::new(7), &RunSettings::new(seed))
}

fn workload() -> Workload {
    workload_with(false)
}

fn register(workload: &Workload, shape: RegisterShape) -> Register {
    workload.registers.iter().find(|register| register.shape == shape).unwrap().clone()
}

fn meaning(register: &Register, action: RegisterAction, bytes: &[u8]) -> ReplyMeaning {
    let mut parser = ReplyParser::new(ReplyLimits::default());
    let mut rest = bytes;
    let received = parser.next(&mut rest).unwrap().unwrap();
    commands::read(register, action, &received.reply)
}

#[test]
fn a_fifth_of_the_runs_have_values_with_parts_unless_they_are_left_out() {
    let with = (1..1_000).filter(|&seed| has_some(&RunSettings::new(seed))).count();
    assert!((100..250).contains(&with), "{with}");
    for knob in [Knob::Collections, Knob::Types] {
        let settings = |seed| RunSettings { without: [knob].into(), ..RunSettings::new(seed) };
        assert!((1..100).all(|seed| !has_some(&settings(seed))));
    }
    let native = |seed| RunSettings { has_native: true, ..RunSettings::new(seed) };
    assert!((1..100).all(|seed| !has_some(&native(seed))));
}

#[test]
fn other_runs_have_the_same_registers_and_operations_with_and_without_this() {
    let settings = |without: &[Knob]| RunSettings {
        without: without.iter().copied().collect(),
        ..RunSettings::new((1..).find(|&seed| has_some(&RunSettings::new(seed))).unwrap())
    };
    let keys = |settings: &RunSettings| {
        let workload = Workload::draw(&mut Rng::with_seed(1), &HashSeed::new(7), settings);
        workload.registers.iter().map(|register| register.keys.clone()).collect::<Vec<_>>()
    };
    assert_eq!(keys(&settings(&[])), keys(&settings(&[Knob::Collections])));
}

#[test]
fn each_operation_has_a_request_and_all_of_them_are_drawn() {
    let mut workload = workload();
    let registers = workload.registers.clone();
    let mut drawn: BTreeSet<String> = BTreeSet::new();
    let mut collections = workload.collections.take().unwrap();
    for (number, register) in registers.iter().enumerate().filter(|(_, it)| it.shape.has_parts()) {
        for round in 0..200 {
            let action = match round % 3 {
                0 => RegisterAction::Read,
                _ => RegisterAction::Write(1),
            };
            let room = GrowthRoom { entries: round % 2 == 0, pending: round % 2 == 0 };
            let action = collections.possible(number, register, action, room);
            let mut bytes = Vec::new();
            let requests = commands::write_collected(register, action, &mut bytes);
            assert_eq!(requests > 0, is_transaction(register, action));
            if requests == 0 {
                commands::write(register, action, &mut bytes);
            }
            let text = String::from_utf8(bytes).unwrap();
            drawn.extend(
                text.split("\r\n")
                    .filter(|word| {
                        word.len() > 2 && word.bytes().all(|byte| byte.is_ascii_uppercase())
                    })
                    .map(str::to_owned),
            );
        }
    }
    let all = "DEL EXISTS GET HDEL HGET HLEN HMGET HSET HSETNX LLEN LMOVE LPOP LRANGE LTRIM MULTI \
        RENAME RPOP RPUSH SET XACK XADD XDEL XGROUP XLEN XPENDING XRANGE XREADGROUP XREVRANGE XTRIM \
        ZADD ZCARD ZINCRBY ZPOPMIN ZRANGE ZREM ZSCORE";
    let missing: Vec<_> = all.split_whitespace().filter(|name| !drawn.contains(*name)).collect();
    assert!(missing.is_empty(), "{missing:?} of {drawn:?}");
}

#[test]
fn members_that_are_returned_in_disorder_or_twice_are_found() {
    let set = register(&workload(), RegisterShape::SortedSet);
    let read = |pairs: &[(&str, &str)]| {
        let mut reply = format!("*{}\r\n", 2 * pairs.len());
        for word in pairs.iter().flat_map(|(member, score)| [member, score]) {
            reply.push_str(&format!("${}\r\n{word}\r\n", word.len()));
        }
        meaning(&set, RegisterAction::Read, reply.as_bytes())
    };
    let scores =
        NumberedParts::default().with(1, Some(part_of_score(4))).with(2, Some(part_of_score(4)));
    let outcome = OperationOutcome::Value(scores.number());
    assert_eq!(read(&[("one", "4"), ("south", "4")]), ReplyMeaning::Outcome(outcome));
    assert_eq!(read(&[]), ReplyMeaning::Outcome(OperationOutcome::Value(None)));
    assert_eq!(read(&[("south", "4"), ("one", "4")]), ReplyMeaning::Disordered);
    assert_eq!(read(&[("one", "5"), ("south", "4")]), ReplyMeaning::Disordered);
    assert_eq!(read(&[("one", "4"), ("one", "5")]), ReplyMeaning::Nonsense);
    assert_eq!(read(&[("other", "4")]), ReplyMeaning::Nonsense);
    assert_eq!(read(&[("one", "70000")]), ReplyMeaning::Nonsense);
}

#[test]
fn a_whole_hash_is_read_with_its_type() {
    let hash = register(&workload(), RegisterShape::Fields);
    let read = |reply: &str| meaning(&hash, RegisterAction::Read, reply.as_bytes());
    let wrong = "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n";
    let fields = |first: &str| format!("*4\r\n{first}$-1\r\n$-1\r\n$-1\r\n");
    let value = |value| ReplyMeaning::Outcome(OperationOutcome::Value(value));
    let (none, seven) = (fields("$-1\r\n"), fields("$4\r\n7 ..\r\n"));
    assert_eq!(read(&format!("*2\r\n$-1\r\n{none}")), value(None));
    let one = NumberedParts::default().with(0, Some(7));
    assert_eq!(read(&format!("*2\r\n{wrong}{seven}")), value(one.number()));
    let text = string(5).to_string();
    let whole = format!("*2\r\n${}\r\n{text}\r\n{wrong}", text.len());
    assert_eq!(read(&whole), value(Some(string(5))));
    // The type belongs to another moment than the fields.
    assert_eq!(read(&format!("*2\r\n{wrong}{none}")), ReplyMeaning::Torn);
    assert_eq!(read(&format!("*2\r\n$-1\r\n{seven}")), ReplyMeaning::Torn);
    let other = meaning(&hash, RegisterAction::Part(PartAction::CountFields), wrong.as_bytes());
    assert_eq!(other, ReplyMeaning::Outcome(OperationOutcome::WrongType));
}

/// Returns what a client makes of the reply to an operation on a stream.
fn of_stream(action: StreamAction, reply: &str) -> ReplyMeaning {
    let stream = register(&workload(), RegisterShape::Stream);
    let action = RegisterAction::Part(PartAction::Stream(action));
    meaning(&stream, action, reply.replace(' ', "\r\n").as_bytes())
}

#[test]
fn entries_of_a_stream_are_read_with_their_values() {
    let id = |second| EntryId::new(2, second).unwrap();
    let value = |number: u64| format!("${} {number}", number.to_string().len());
    let entry =
        |second: u64, number: u64| format!("*2 $3 2-{second} *2 $5 entry {}", value(number));
    let oldest = |entries: &[String]| {
        let reply = format!("*{} {} ", entries.len(), entries.join(" "));
        of_stream(StreamAction::Oldest(3), &reply)
    };
    let entries = |ids: &[EntryId]| {
        let ids = EntryIds::of(ids.iter().copied()).unwrap();
        ReplyMeaning::Outcome(OperationOutcome::Entries(ids))
    };
    let (named, drawn) = (entry(1, id(1).number()), entry(2, id(0).number()));
    assert_eq!(oldest(&[named.clone(), drawn]), entries(&[id(1), id(2)]));
    let other = entry(2, id(1).number());
    assert_eq!(oldest(&[other]), ReplyMeaning::Nonsense, "this is the value of another entry");
    let delivered = |entries: &str| of_stream(StreamAction::Redeliver, entries);
    let some = format!("*1 *2 $1 k *2 {named} *2 $3 2-7 *-1 ");
    assert_eq!(delivered(&some), entries(&[id(1)]));
    assert_eq!(of_stream(StreamAction::Deliver(1), "*-1 "), entries(&[]));
}

#[test]
fn a_stream_refuses_by_its_state() {
    let rejected = ReplyMeaning::Outcome(OperationOutcome::Rejected);
    let add = |limit| StreamAction::Add(NewEntry::At(2), limit);
    let text = "ERR The ID specified in XADD is equal or smaller than the target stream top item";
    let stream = register(&workload(), RegisterShape::Stream);
    let read = |limit, reply: String| {
        let action = RegisterAction::Part(PartAction::Stream(add(limit)));
        meaning(&stream, action, reply.as_bytes())
    };
    assert_eq!(read(AdditionLimit::None, format!("-{text}\r\n")), rejected);
    assert_eq!(read(AdditionLimit::Behind, format!("*2\r\n-{text}\r\n:0\r\n")), rejected);
    let pending = RegisterAction::Part(PartAction::Stream(StreamAction::Pending));
    assert_eq!(meaning(&stream, pending, b"-NOGROUP No such key\r\n"), rejected);
    let ends = Some([EntryId::new(0, 1).unwrap(), EntryId::new(2, 5).unwrap()]);
    let summary = PendingSummary { count: 2, ends };
    let pending = "*4 :2 $3 0-1 $3 2-5 *1 *2 $8 consumer $1 2 ";
    let outcome = ReplyMeaning::Outcome(OperationOutcome::Pending(summary));
    assert_eq!(of_stream(StreamAction::Pending, pending), outcome);
    let uneven = pending.replace(":2", ":3");
    assert_eq!(of_stream(StreamAction::Pending, &uneven), ReplyMeaning::Nonsense);
}

#[test]
fn a_hash_with_a_field_that_expires_has_no_operations_on_its_key() {
    let mut workload = workload_with(true);
    let registers = workload.registers.clone();
    let mut collections = workload.collections.take().unwrap();
    let lifetime = crate::history::Lifetime::After(5);
    let asked = [
        RegisterAction::Read,
        RegisterAction::Write(1),
        RegisterAction::Expire(lifetime),
        RegisterAction::ReadExpiring(lifetime),
        RegisterAction::Persist,
        RegisterAction::ReadRemaining,
    ];
    let mut drawn: BTreeSet<String> = BTreeSet::new();
    let timed = registers.iter().enumerate().filter(|(_, register)| register.has_timed_field);
    for (number, register) in timed {
        for action in asked.iter().cycle().take(300) {
            let room = GrowthRoom { entries: true, pending: true };
            let action = collections.possible(number, register, *action, room);
            let mut bytes = Vec::new();
            if commands::write_collected(register, action, &mut bytes) == 0 {
                commands::write(register, action, &mut bytes);
                let text = String::from_utf8(bytes).unwrap();
                drawn.extend(text.split("\r\n").nth(2).map(str::to_owned));
            }
        }
    }
    for name in ["HPEXPIRE", "HSETEX", "HGETEX", "HPERSIST", "HPTTL", "HDEL", "HSET", "HGET"] {
        assert!(drawn.contains(name), "{name} of {drawn:?}");
    }
    let on_key = ["EXISTS", "DEL", "HLEN", "PEXPIRE", "PERSIST", "PTTL"];
    assert!(on_key.iter().all(|name| !drawn.contains(*name)), "{drawn:?}");
}

#[test]
fn the_replies_about_a_field_that_expires_are_those_of_one_field() {
    let hash = register(&workload_with(true), RegisterShape::Fields);
    let read = |part, reply: &str| {
        let bytes = reply.replace(' ', "\r\n");
        meaning(&hash, RegisterAction::Part(part), bytes.as_bytes())
    };
    let lifetime = crate::history::Lifetime::After(5);
    let applied = |done| ReplyMeaning::Outcome(OperationOutcome::Applied(done));
    assert_eq!(read(PartAction::ExpireField(lifetime), "*1 :2 "), applied(true));
    assert_eq!(read(PartAction::ExpireField(lifetime), "*1 :-2 "), applied(false));
    assert_eq!(read(PartAction::ExpireField(lifetime), "*2 :1 :1 "), ReplyMeaning::Nonsense);
    assert_eq!(read(PartAction::PersistField, "*1 :-1 "), applied(false));
    let value = ReplyMeaning::Outcome(OperationOutcome::Value(Some(7)));
    assert_eq!(read(PartAction::ReadFieldExpiring(lifetime), "*1 $1 7 "), value);
    let wrong = "-WRONGTYPE Operation against a key\r\n";
    let none = "*4\r\n$-1\r\n$-1\r\n$-1\r\n$-1\r\n";
    let whole = meaning(&hash, RegisterAction::Read, format!("*2\r\n{wrong}{none}").as_bytes());
    assert_eq!(whole, ReplyMeaning::Outcome(OperationOutcome::Value(None)), "the key is there");
}
