//! Sorted sets of any size, compared with a model: packed, divided into pages, growing and shrinking,
//! with and without an order in memory.

use super::paged_values::PagedValues;
use super::*;
use crate::core::backend::Backend;
use crate::core::data::TableKey;
use crate::core::elements::{NewExpiry, Touched, ValueChange};
use crate::core::staged::TransactionRecords;
use fastrand::Rng;
use std::collections::BTreeSet;
use types::{TableId, ValueType};

/// Longest packed sorted set in these tests: about four members. A page has 16 bytes on average.
const PACKED_BYTES: &str = "64";

type Scores = BTreeMap<String, i64>;

/// Returns the members of a model in order, with their scores.
fn in_order(model: &Scores) -> Vec<(String, i64)> {
    let mut members: Vec<_> =
        model.iter().map(|(member, score)| (member.clone(), *score)).collect();
    members.sort_by_key(|(member, score)| (*score, member.clone()));
    members
}

/// Returns members with their scores as a reply shows them.
fn shown(members: &[(String, i64)]) -> Vec<String> {
    members.iter().flat_map(|(member, score)| [member.clone(), score.to_string()]).collect()
}

fn names(members: &[(String, i64)]) -> Vec<String> {
    members.iter().map(|(member, _)| member.clone()).collect()
}

impl PagedValues {
    fn check_sorted(&mut self, key: &str, model: &Scores) {
        let members = in_order(model);
        assert_eq!(self.number(&format!("ZCARD {key}")), members.len() as i64);
        assert_eq!(self.strings(&format!("ZRANGE {key} 0 -1 WITHSCORES")), shown(&members));
        let mut scanned = Vec::new();
        let mut cursor = "0".to_owned();
        loop {
            let mut parts = self.strings(&format!("ZSCAN {key} {cursor} COUNT 4"));
            cursor = parts.remove(0);
            scanned.extend(parts.as_chunks::<2>().0.to_vec());
            if cursor == "0" {
                break;
            }
        }
        let scanned: Scores =
            scanned.into_iter().map(|[it, score]| (it, score.parse().expect("a score"))).collect();
        assert_eq!(&scanned, model);
    }

    /// Returns the number of orders in memory.
    fn orders(&self) -> u64 {
        self.world.node.orders().totals().orders
    }
}

fn member(random: &mut Rng, members: usize) -> String {
    format!("m{}", random.usize(..members))
}

/// Executes one random command that adds members or changes scores, on both.
fn step_adding(sets: &mut PagedValues, model: &mut Scores, members: usize, random: &mut Rng) {
    let one = member(random, members);
    let score = random.i64(-20..20);
    let old = model.get(&one).copied();
    match random.u8(..6) {
        0..2 => {
            model.insert(one.clone(), score);
            let line = format!("ZADD key {score} {one}");
            assert_eq!(sets.number(&line), i64::from(old.is_none()), "{line}");
        }
        2 => {
            let pairs: Vec<(String, i64)> = (0..random.usize(2..20))
                .map(|_| (member(random, members), random.i64(-20..20)))
                .collect();
            let words: Vec<String> =
                pairs.iter().map(|(it, score)| format!("{score} {it}")).collect();
            let before = model.len();
            model.extend(pairs);
            let added = (model.len() - before) as i64;
            assert_eq!(sets.number(&format!("ZADD key {}", words.join(" "))), added);
        }
        3 => {
            let sum = old.unwrap_or(0) + score;
            model.insert(one.clone(), sum);
            let reply = sets.strings(&format!("ZINCRBY key {score} {one}"));
            assert_eq!(reply, [sum.to_string()]);
        }
        4 => {
            let is_new = old.is_none();
            if is_new {
                model.insert(one.clone(), score);
            }
            assert_eq!(sets.number(&format!("ZADD key NX {score} {one}")), i64::from(is_new));
        }
        _ => {
            let rises = old.is_some_and(|old| score > old);
            if rises {
                model.insert(one.clone(), score);
            }
            let line = format!("ZADD key XX GT CH {score} {one}");
            assert_eq!(sets.number(&line), i64::from(rises));
        }
    }
}

/// Executes one random command that removes members, on both.
fn step_removing(sets: &mut PagedValues, model: &mut Scores, members: usize, random: &mut Rng) {
    let all = in_order(model);
    let first = random.usize(..=all.len());
    let last = (first + random.usize(..6)).min(all.len());
    let count = random.usize(..5);
    let removed = match random.u8(..7) {
        0 => {
            let some: Vec<String> =
                (0..random.usize(1..12)).map(|_| member(random, members)).collect();
            let number = some.iter().filter(|it| model.remove(*it).is_some()).count();
            assert_eq!(sets.number(&format!("ZREM key {}", some.join(" "))), number as i64);
            Vec::new()
        }
        1 => {
            let line = format!("ZREMRANGEBYRANK key {first} {}", last as i64 - 1);
            let expected = if last == 0 { &all[first..] } else { &all[first..last] };
            assert_eq!(sets.number(&line), expected.len() as i64, "{line}");
            expected.to_vec()
        }
        2 => {
            let low = random.i64(-25..25);
            let high = low + random.i64(0..4);
            let line = format!("ZREMRANGEBYSCORE key ({low} {high}");
            let is_within = |(_, score): &&(String, i64)| *score > low && *score <= high;
            let expected: Vec<_> = all.iter().filter(is_within).cloned().collect();
            assert_eq!(sets.number(&line), expected.len() as i64, "{line}");
            expected
        }
        3 => {
            let expected = &all[..count.min(all.len())];
            assert_eq!(sets.strings(&format!("ZPOPMIN key {count}")), shown(expected));
            expected.to_vec()
        }
        4 => {
            let expected: Vec<_> = all.iter().rev().take(count).cloned().collect();
            assert_eq!(sets.strings(&format!("ZPOPMAX key {count}")), shown(&expected));
            expected
        }
        5 => {
            let count = count + 1;
            let expected = &all[..count.min(all.len())];
            let mut reply = shown(expected);
            if !all.is_empty() {
                reply.insert(0, "key".to_owned());
            }
            assert_eq!(sets.strings(&format!("ZMPOP 2 none key MIN COUNT {count}")), reply);
            expected.to_vec()
        }
        _ if all.is_empty() => Vec::new(),
        _ => {
            let expected = &all[all.len() - 1..];
            let reply = [&["key".to_owned()][..], &shown(expected)].concat();
            assert_eq!(sets.strings("BZPOPMAX none key 0"), reply);
            expected.to_vec()
        }
    };
    model.retain(|member, _| !removed.iter().any(|(it, _)| it == member));
}

/// Executes one random command that reads, on both.
fn step_reading(sets: &mut PagedValues, model: &Scores, members: usize, random: &mut Rng) {
    let all = in_order(model);
    let one = member(random, members);
    let rank = all.iter().position(|(member, _)| *member == one);
    match random.u8(..7) {
        0 => {
            let reply = sets.ask(&format!("ZRANK key {one}"));
            let expected = rank.map_or("$-1\r\n".to_owned(), |rank| format!(":{rank}\r\n"));
            assert_eq!(reply, expected);
        }
        1 => {
            let reply = sets.ask(&format!("ZREVRANK key {one} WITHSCORE"));
            let expected = rank.map_or("*-1\r\n".to_owned(), |rank| {
                let (score, rank) = (all[rank].1.to_string(), all.len() - 1 - rank);
                format!("*2\r\n:{rank}\r\n${}\r\n{score}\r\n", score.len())
            });
            assert_eq!(reply, expected);
        }
        2 => {
            let found: Vec<String> = model.get(&one).map(i64::to_string).into_iter().collect();
            assert_eq!(sets.strings(&format!("ZSCORE key {one}")), found);
            assert_eq!(sets.strings(&format!("ZMSCORE key none {one}")), found);
        }
        3 => {
            let (first, count) = (random.usize(..=all.len()), random.usize(1..6));
            let line = format!("ZRANGE key {first} {}", first + count - 1);
            let expected: Vec<_> = all.iter().skip(first).take(count).cloned().collect();
            assert_eq!(sets.strings(&line), names(&expected));
            let line = format!("ZRANGE key {first} {} REV WITHSCORES", first + count - 1);
            let expected: Vec<_> = all.iter().rev().skip(first).take(count).cloned().collect();
            assert_eq!(sets.strings(&line), shown(&expected));
        }
        4 => {
            let low = random.i64(-25..25);
            let high = low + random.i64(0..9);
            let is_within = |(_, score): &&(String, i64)| *score >= low && *score < high;
            let expected: Vec<_> = all.iter().filter(is_within).cloned().collect();
            let count = sets.number(&format!("ZCOUNT key {low} ({high}"));
            assert_eq!(count, expected.len() as i64);
            let line = format!("ZRANGEBYSCORE key {low} ({high} WITHSCORES LIMIT 1 4");
            let expected: Vec<_> = expected.into_iter().skip(1).take(4).collect();
            assert_eq!(sets.strings(&line), shown(&expected));
        }
        5 => {
            let drawn = sets.strings("ZRANDMEMBER key 3 WITHSCORES");
            let (pairs, _) = drawn.as_chunks::<2>();
            let distinct: BTreeSet<&String> = pairs.iter().map(|[member, _]| member).collect();
            assert_eq!(distinct.len(), model.len().min(3), "{drawn:?}");
            for [member, score] in pairs {
                assert_eq!(model.get(member).map(i64::to_string).as_ref(), Some(score));
            }
        }
        _ => {
            let stored = sets.number("ZRANGESTORE copy key 1 7 REV");
            let expected: Scores = all.iter().rev().skip(1).take(7).cloned().collect();
            assert_eq!(stored, expected.len() as i64);
            sets.check_sorted("copy", &expected);
        }
    }
}

/// Executes random commands by clients of two reactors, some in transactions.
fn run_random(seed: u64, transactions: u8) -> u64 {
    let mut random = Rng::with_seed(seed);
    let mut sets = PagedValues::new(PACKED_BYTES);
    let mut other = sets.world.connect(2, 1, HERE);
    let mut model = Scores::new();
    let mut pages_max = 0;
    for members in [3, 40, 150, 8, 100, 1] {
        for _ in 0..80 {
            if random.bool() {
                std::mem::swap(&mut sets.client, &mut other);
            }
            sets.in_transactions = random.u8(..100) < transactions;
            let removes = if model.len() > members { 6 } else { 2 };
            match random.u8(..10) {
                of_ten if of_ten < removes => {
                    step_removing(&mut sets, &mut model, members, &mut random);
                }
                7.. => step_reading(&mut sets, &model, members, &mut random),
                _ => step_adding(&mut sets, &mut model, members, &mut random),
            }
            pages_max = pages_max.max(sets.pages());
        }
        sets.check_sorted("key", &model);
    }
    sets.in_transactions = false;
    let number = model.len() as i64;
    assert_eq!(sets.number("ZREMRANGEBYRANK key 0 -1"), number);
    assert_eq!(sets.number("EXISTS key"), 0);
    pages_max
}

#[test]
fn a_sorted_set_of_any_size_behaves_like_a_sorted_map() {
    for seed in 0..12 {
        assert!(run_random(seed, 0) > 40);
    }
}

#[test]
fn a_sorted_set_of_any_size_behaves_like_a_sorted_map_in_transactions() {
    for seed in 100..108 {
        run_random(seed, 30);
    }
    for seed in 200..204 {
        run_random(seed, 100);
    }
}

/// Adds members `m0`, `m1` and so on with scores that are their numbers, modulo 10.
fn fill(sets: &mut PagedValues, key: &str, count: i64) -> Scores {
    let model: Scores = (0..count).map(|number| (format!("m{number}"), number % 10)).collect();
    let words: Vec<String> = model.iter().map(|(it, score)| format!("{score} {it}")).collect();
    for words in words.chunks(500) {
        sets.ask(&format!("ZADD {key} {}", words.join(" ")));
    }
    model
}

#[test]
fn an_order_is_made_with_the_pages_and_dropped_with_them() {
    let mut sets = PagedValues::new(PACKED_BYTES);
    // The clock of a server need not begin at zero.
    sets.world.now = sets.world.now + Duration::from_secs(100_000);
    let model = fill(&mut sets, "a", 60);
    assert_eq!(sets.orders(), 1);
    sets.run(3_000);
    assert_eq!(sets.orders(), 1, "an order that was just made is dropped as unused");
    sets.check_sorted("a", &model);
    assert_eq!(sets.strings("OBJECT ENCODING a"), ["skiplist"]);
    let usage = sets.number("MEMORY USAGE a");
    let info = sets.ask("INFO memory");
    assert!(info.contains("sorted_set_orders:1\r\n"), "{info}");
    assert_eq!(sets.number("DEL a"), 1);
    assert!(usage > 60 * (8 + 11 + 11), "{usage}");
    sets.run(3_000);
    assert_eq!(sets.orders(), 0, "the order of a value that has gone stays");
}

#[test]
fn an_order_is_built_in_several_turns_while_members_change() {
    let mut sets = PagedValues::new("1000");
    let mut model = fill(&mut sets, "a", 12_000);
    let mut other = sets.world.connect(2, 1, HERE);
    let mut random = Rng::with_seed(5);
    for _ in 0..8 {
        assert_eq!(sets.ask("MEMORY PURGE"), "+OK\r\n");
        let mut turns = 0;
        let mut reply = sets.world.ask(&mut other, "ZRANGE a 0 -1 WITHSCORES");
        while reply.is_empty() {
            for _ in 0..random.usize(..40) {
                let one = format!("m{}", random.u32(..12_500));
                if random.bool() {
                    let score = random.i64(0..10);
                    let is_new = model.insert(one.clone(), score).is_none();
                    assert_eq!(sets.number(&format!("ZADD a {score} {one}")), i64::from(is_new));
                } else {
                    let was_there = model.remove(&one).is_some();
                    assert_eq!(sets.number(&format!("ZREM a {one}")), i64::from(was_there));
                }
            }
            sets.world.turn();
            turns += 1;
            assert!(turns < 100, "the order is never complete");
            reply = sets.world.answer(&other);
        }
        assert!(turns > 2, "{turns} turns");
        let lines: Vec<&str> = reply.split("\r\n").collect();
        let strings = lines.iter().enumerate().filter(|(_, line)| line.starts_with('$'));
        let strings: Vec<String> = strings.map(|(at, _)| lines[at + 1].to_owned()).collect();
        assert_eq!(strings, shown(&in_order(&model)));
    }
}

#[test]
fn orders_follow_transactions() {
    let mut sets = PagedValues::new("1000");
    let mut model = fill(&mut sets, "a", 12_000);
    let other = fill(&mut sets, "b", 12_000);
    // Both orders are complete.
    for key in ["a", "b"] {
        assert_eq!(sets.strings(&format!("ZRANGE {key} 0 0")), ["m0"]);
    }
    for line in ["MULTI", "ZADD a -1 m17", "ZPOPMIN a", "ZADD b -1 x", "ZREM a m30", "ZREM b x"] {
        sets.ask(line);
    }
    assert_eq!(sets.ask("EXEC"), "*5\r\n:0\r\n*2\r\n$3\r\nm17\r\n$2\r\n-1\r\n:1\r\n:1\r\n:1\r\n");
    assert_eq!(sets.ask("BALLAST.ONCE 7 1 1 ZADD a 4 m40"), ":0\r\n");
    model.retain(|member, _| member != "m17" && member != "m30");
    model.insert("m40".to_owned(), 4);
    // An order of so many members is built in several turns, so these replies come from the old ones.
    for (key, model) in [("a", &model), ("b", &other)] {
        assert_eq!(sets.strings(&format!("ZRANGE {key} 0 -1")), names(&in_order(model)));
    }
    sets.ask("MULTI");
    for line in ["DEL a", "ZADD a 1 one", "ZRANGE a 0 -1"] {
        assert_eq!(sets.ask(line), "+QUEUED\r\n");
    }
    assert_eq!(sets.ask("EXEC"), "*3\r\n:1\r\n:1\r\n*1\r\n$3\r\none\r\n");
    assert_eq!(sets.strings("ZRANGE a 0 -1"), ["one"]);
}

/// Begins a transaction on the sorted set `z`, whose commands run when the test says so.
fn begin_transaction(backend: &mut Backend) {
    let (table, key) = (TableId(0), backend.key(b"z"));
    let staged = TransactionRecords::read(backend, table, WALL, &[key], |_| true);
    backend.staged = staged.ok().expect("nothing to wait for");
}

/// Sets the score of a member of `z` in the transaction.
fn add_in_transaction(backend: &mut Backend, member: &[u8], score: f64) {
    let key = TableKey { table: TableId(0), key: backend.key(b"z") };
    let (names, expiry) = ([member], NewExpiry::Kept);
    let touched = Touched::Names(&names);
    let change = ValueChange { key, touched, expiry, added: 40, removes: false };
    let added = backend.update_elements(ValueType::SortedSet, change, |set, _| {
        Ok(set.set(member, &values::score_value(score))?)
    });
    assert_eq!(added.ok(), Some(true), "a new member");
}

/// Lets the transaction take effect. Returns whether it did.
fn commit_transaction(backend: &mut Backend) -> bool {
    let staged = backend.staged.take().expect("a transaction");
    let needs = |place| staged.needs(place);
    let committed = staged.commit_with_orders(backend, |backend| {
        backend.update_tables(&staged.keys(), needs, |records, changes| {
            let is_current = staged.is_current(records);
            if is_current {
                staged.apply(changes);
            }
            is_current
        })
    });
    committed.ok().expect("nothing to wait for")
}

#[test]
fn an_order_that_is_built_while_a_transaction_runs_has_all_of_its_changes() {
    for has_order_before in [false, true] {
        let mut sets = PagedValues::new(PACKED_BYTES);
        let mut model = fill(&mut sets, "z", 60);
        let mut other = sets.world.connect(2, 1, HERE);
        let mut build_anew = |sets: &mut PagedValues| {
            let reply = sets.world.ask(&mut other, "MEMORY PURGE\r\nZRANGE z 0 0");
            assert_eq!(reply, "+OK\r\n*1\r\n$2\r\nm0\r\n");
        };
        if !has_order_before {
            sets.ask("MEMORY PURGE");
        }
        begin_transaction(&mut sets.world.cores[0].backend);
        add_in_transaction(&mut sets.world.cores[0].backend, b"first", 3.0);
        if has_order_before {
            sets.world.node.orders().forget_all();
        } else {
            build_anew(&mut sets);
        }
        add_in_transaction(&mut sets.world.cores[0].backend, b"second", 4.0);
        if has_order_before {
            build_anew(&mut sets);
        }
        assert!(commit_transaction(&mut sets.world.cores[0].backend));
        model.extend([("first".to_owned(), 3), ("second".to_owned(), 4)]);
        sets.check_sorted("z", &model);
    }
}

#[test]
fn the_order_of_a_set_that_a_transaction_leaves_as_it_is_stays() {
    let mut sets = PagedValues::new("1000");
    fill(&mut sets, "a", 12_000);
    assert_eq!(sets.strings("ZRANGE a 0 0"), ["m0"]);
    for line in ["MULTI", "ZADD a NX 5 m0", "SET other 1"] {
        sets.ask(line);
    }
    assert_eq!(sets.ask("EXEC"), "*2\r\n:0\r\n+OK\r\n");
    // A new order of so many members is built in several turns.
    assert_eq!(sets.strings("ZRANGE a 0 0"), ["m0"]);
}

#[test]
fn an_order_outlasts_changes_of_the_expiry() {
    let mut sets = PagedValues::new("1000");
    let mut model = fill(&mut sets, "a", 12_000);
    // A new order of so many members is built in several turns, so the replies come from this one.
    assert_eq!(sets.strings("ZRANGE a 0 0"), ["m0"]);
    for line in ["EXPIRE a 1000", "PEXPIREAT a 9000000000000", "PERSIST a", "EXPIRE a 1000 NX"] {
        assert_eq!(sets.number(line), 1, "{line}");
        assert_eq!(sets.strings("ZRANGE a 0 0"), ["m0"], "{line}");
    }
    assert_eq!(sets.number("EXPIRE a 1000 NX"), 0);
    assert_eq!(sets.strings("ZRANGE a 0 0"), ["m0"]);
    assert_eq!(sets.ask("BALLAST.ONCE 7 1 1 EXPIRE a 50"), ":1\r\n");
    assert_eq!(sets.strings("ZRANGE a 0 0"), ["m0"]);
    for line in ["MULTI", "ZADD a -1 x", "PERSIST a", "ZADD a -2 y", "EXPIRE a 100"] {
        sets.ask(line);
    }
    assert_eq!(sets.ask("EXEC"), "*4\r\n:1\r\n:1\r\n:1\r\n:1\r\n");
    model.extend([("x".to_owned(), -1), ("y".to_owned(), -2)]);
    sets.check_sorted("a", &model);
    assert_eq!(sets.number("EXPIRE a -1"), 1);
    assert_eq!(sets.number("EXISTS a"), 0);
    assert!(sets.strings("ZRANGE a 0 -1").is_empty());
}

#[test]
fn an_order_is_built_while_the_expiry_changes() {
    let mut sets = PagedValues::new("1000");
    fill(&mut sets, "a", 12_000);
    let mut other = sets.world.connect(2, 1, HERE);
    assert_eq!(sets.ask("MEMORY PURGE"), "+OK\r\n");
    let mut turns = 0;
    let mut reply = sets.world.ask(&mut other, "ZRANGE a 0 0");
    while reply.is_empty() {
        turns += 1;
        assert!(turns < 100, "the order is never complete");
        assert_eq!(sets.number(&format!("EXPIRE a {turns}0000")), 1);
        sets.world.turn();
        reply = sets.world.answer(&other);
    }
    assert_eq!(reply, "*1\r\n$2\r\nm0\r\n");
    assert!(turns > 2, "{turns} turns");
}

#[test]
fn orders_of_sets_that_only_grow_take_no_more_than_their_share_of_the_memory() {
    let mut sets = PagedValues::new("1000");
    let share = sets.world.node.settings().memory_bytes as u64 / 4;
    let members: Vec<String> = (0..400).map(|number| format!("1 member:{number:020}")).collect();
    let (mut filled, mut dropped) = (0, false);
    while !dropped {
        let orders_before = sets.orders();
        assert_eq!(sets.number(&format!("ZADD z{filled} {}", members.join(" "))), 400);
        filled += 1;
        dropped = sets.orders() <= orders_before;
        let memory_bytes = sets.world.node.orders().totals().memory_bytes;
        assert!(memory_bytes < share + 20_000, "{memory_bytes} for {filled} orders");
    }
    assert!(filled > 500, "{filled}");
    assert_eq!(sets.strings("ZRANGE z0 0 0"), ["member:00000000000000000000"], "it is built anew");
}

/// Sends a request of several lines, and returns its reply and the number of turns until then.
fn ask_patiently(sets: &mut PagedValues, lines: &str) -> (String, usize) {
    let mut reply = sets.world.ask(&mut sets.client, lines);
    let mut turns = 0;
    while !reply.ends_with('\n') || reply.ends_with("QUEUED\r\n") {
        sets.world.turn();
        reply += &sets.world.answer(&sets.client);
        turns += 1;
        assert!(turns < 100, "no answer to {lines}: {reply}");
    }
    (reply, turns)
}

#[test]
fn commands_on_copies_let_the_order_be_built_once() {
    let transaction = "MULTI\r\nINCR n\r\nZRANGE a 0 0\r\nEXEC";
    for (request, reply) in [
        (transaction, "*2\r\n:1\r\n*1\r\n$2\r\nm0\r\n"),
        ("MULTI\r\nZREMRANGEBYRANK a 0 0\r\nEXEC", "*1\r\n:1\r\n"),
        ("BALLAST.ONCE 7 1 1 ZPOPMIN a", "*2\r\n$2\r\nm0\r\n$1\r\n0\r\n"),
    ] {
        let mut sets = PagedValues::new("1000");
        fill(&mut sets, "a", 12_000);
        assert_eq!(sets.ask("MEMORY PURGE"), "+OK\r\n");
        let (found, turns) = ask_patiently(&mut sets, request);
        assert!(found.ends_with(reply), "{request}: {found}");
        assert!(turns > 2, "{request} reads all pages in {turns} turns");
        assert_eq!(sets.orders(), 1);
        let (_, turns) = ask_patiently(&mut sets, transaction);
        assert_eq!(turns, 0, "the order is built anew after {request}");
    }
}

#[test]
fn a_transaction_that_needs_more_orders_than_fit_is_executed() {
    let mut sets = PagedValues::new("1000");
    let lines: Vec<String> = (0..12)
        .map(|number| {
            let key = format!("z{number}");
            fill(&mut sets, &key, 2_000);
            format!("ZRANGE {key} 0 0")
        })
        .collect();
    assert_eq!(sets.ask("MEMORY PURGE"), "+OK\r\n");
    let lines = format!("MULTI\r\n{}\r\nEXEC", lines.join("\r\n"));
    let (reply, _) = ask_patiently(&mut sets, &lines);
    assert!(reply.ends_with(&"*1\r\n$2\r\nm0\r\n".repeat(12)), "{reply}");
    assert_eq!(sets.orders(), 8, "the pages of the others are read");
}

#[test]
fn sorted_sets_of_any_size_are_combined_stored_and_copied() {
    let mut sets = PagedValues::new(PACKED_BYTES);
    let a = fill(&mut sets, "a", 60);
    let numbers: Vec<String> = (40..90).map(|number| format!("m{number}")).collect();
    sets.ask(&format!("SADD set {}", numbers.join(" ")));
    assert_eq!(sets.number("ZUNIONSTORE union 2 a set WEIGHTS 2 1"), 90);
    let mut union: Scores = a.iter().map(|(member, score)| (member.clone(), 2 * score)).collect();
    numbers.iter().for_each(|member| *union.entry(member.clone()).or_default() += 1);
    sets.check_sorted("union", &union);
    assert_eq!(sets.number("ZINTERCARD 2 a set"), 20);
    let difference: Scores =
        a.clone().into_iter().filter(|(it, _)| !numbers.contains(it)).collect();
    let reply = sets.strings("ZDIFF 2 a set WITHSCORES");
    assert_eq!(reply, shown(&in_order(&difference)));
    assert_eq!(sets.number("ZINTERSTORE a 2 a set AGGREGATE MAX"), 20, "into one of the sets");
    assert_eq!(sets.number("ZCARD a"), 20);
    assert_eq!(sets.number("ZDIFFSTORE none 2 set set"), 0);
    assert_eq!(sets.number("EXISTS none"), 0);
    assert_eq!(sets.number("EXPIRE union 100"), 1);
    assert_eq!(sets.ask("RENAME union b"), "+OK\r\n");
    sets.check_sorted("b", &union);
    assert_eq!(sets.number("COPY b c"), 1);
    assert_eq!(sets.number("ZREM b m1"), 1);
    sets.check_sorted("c", &union);
    assert_eq!(sets.number("TTL c"), 100);
    assert_eq!(
        sets.ask("GET c"),
        "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"
    );
    assert_eq!(
        sets.ask("ZADD set 1 x"),
        "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"
    );
}

#[test]
fn members_of_one_score_are_found_by_their_bytes() {
    let mut sets = PagedValues::new(PACKED_BYTES);
    let members: Vec<String> = (10..90).map(|number| format!("{number}")).collect();
    let words: Vec<String> = members.iter().map(|member| format!("1 {member}")).collect();
    sets.ask(&format!("ZADD a {}", words.join(" ")));
    assert_eq!(sets.strings("ZRANGEBYLEX a [2 (30"), members[10..20]);
    assert_eq!(sets.strings("ZRANGE a + [87 BYLEX REV"), ["89", "88", "87"]);
    assert_eq!(sets.number("ZLEXCOUNT a - +"), 80);
    assert_eq!(sets.number("ZREMRANGEBYLEX a (20 [85"), 65);
    let left = ["10", "11", "12", "13", "14", "15", "16", "17", "18", "19", "20"];
    assert_eq!(sets.strings("ZRANGE a 0 -1"), [&left[..], &["86", "87", "88", "89"]].concat());
}

#[test]
fn positions_in_pages_are_found() {
    let mut sets = PagedValues::new(PACKED_BYTES);
    let places: Vec<String> =
        (0..60).map(|number| format!("{}.5 40.{number} p{number}", number % 7)).collect();
    assert_eq!(sets.number(&format!("GEOADD a {}", places.join(" "))), 60);
    let mut packed = PagedValues::new("100000");
    assert_eq!(packed.number(&format!("GEOADD a {}", places.join(" "))), 60);
    assert!(sets.pages() > 20 && packed.pages() == 0);
    for line in [
        "GEOSEARCH a FROMMEMBER p3 BYRADIUS 200 km ASC WITHDIST WITHCOORD",
        "GEOSEARCHSTORE b a FROMLONLAT 3 40 BYBOX 300 300 km",
        "ZRANGE b 0 -1 WITHSCORES",
        "GEODIST a p3 p4 km",
        "GEOPOS a p5 none p6",
        "GEOHASH a p7",
    ] {
        assert_eq!(sets.ask(line), packed.ask(line), "{line}");
    }
}

#[test]
fn a_removal_that_does_not_fit_into_one_batch_is_refused_and_changes_nothing() {
    let mut sets = PagedValues::new("1000");
    let count = fill(&mut sets, "a", 3_000).len() as i64;
    // The pages of the others have these as well, and are written with them.
    let long = "x".repeat(300_000);
    for number in 0..60 {
        assert_eq!(sets.number(&format!("ZADD a 100 {long}{number}")), 1);
        sets.run(2);
    }
    let reply = sets.ask("ZREMRANGEBYSCORE a -inf 9");
    assert!(reply.starts_with("-ERR a command cannot change this many bytes"), "{reply}");
    assert_eq!(sets.number("ZCARD a"), count + 60);
    assert_eq!(sets.number("ZREMRANGEBYRANK a 0 9"), 10);
    assert_eq!(sets.number("ZCOUNT a 0 9"), count - 10);
    assert_eq!(sets.number("ZREMRANGEBYRANK a 0 -1"), count + 50, "all of them");
    assert_eq!(sets.number("EXISTS a"), 0);
}

#[test]
fn a_pop_from_several_sets_takes_the_first_that_has_members() {
    let mut sets = PagedValues::new(PACKED_BYTES);
    fill(&mut sets, "b", 50);
    fill(&mut sets, "c", 50);
    assert_eq!(sets.strings("ZMPOP 3 a b c MIN COUNT 2"), ["b", "m0", "0", "m10", "0"]);
    assert_eq!(sets.number("ZADD a 1 x"), 1);
    assert_eq!(sets.strings("ZMPOP 3 a b c MAX"), ["a", "x", "1"]);
    assert_eq!(sets.strings("BZMPOP 0 3 a b c MAX"), ["b", "m9", "9"]);
    assert_eq!(sets.number("SADD a x"), 1);
    let reply = sets.ask("ZMPOP 3 a b c MAX");
    assert!(reply.starts_with("-WRONGTYPE"), "{reply}");
}
