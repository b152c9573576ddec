//! `SORT` of values of any size, compared with a model: packed and divided into pages, with values of
//! other keys, alone and in transactions.

use super::paged_values::PagedValues;
use super::*;
use fastrand::Rng;

/// Longest packed value in these tests.
const PACKED_BYTES: &str = "64";

/// Two values with the same numbers, and the weights of the numbers.
struct Numbers {
    values: PagedValues,
    /// In the order of the list and, where scores are the numbers themselves, of the sorted set.
    numbers: Vec<i64>,
    /// Weights by number; `None`: there is no key.
    weights: BTreeMap<i64, Option<i64>>,
}

impl Numbers {
    fn new(count: usize, seed: u64) -> Numbers {
        let mut values = PagedValues::new(PACKED_BYTES);
        let mut random = Rng::with_seed(seed);
        let mut numbers: Vec<i64> = (-40..40).collect();
        random.shuffle(&mut numbers);
        numbers.truncate(count);
        let mut weights = BTreeMap::new();
        for number in &numbers {
            assert!(values.number(&format!("RPUSH list {number}")) > 0);
            assert_eq!(values.number(&format!("SADD set {number}")), 1);
            assert_eq!(values.number(&format!("ZADD zset {number} {number}")), 1);
            let weight = (random.u8(..4) > 0).then(|| random.i64(-5..5));
            if let Some(weight) = weight {
                assert_eq!(values.ask(&format!("SET w:{number} {weight}")), "+OK\r\n");
                let line = format!("HSET hash:{number}:x field {weight} {}", "other 1 ".repeat(3));
                assert_eq!(values.number(line.trim_end()), 2);
                if random.bool() {
                    let more: Vec<String> = (0..30).map(|at| format!("f{at} v")).collect();
                    values.number(&format!("HSET hash:{number}:x {}", more.join(" ")));
                }
            }
            weights.insert(*number, weight);
        }
        Numbers { values, numbers, weights }
    }

    /// Returns the numbers by their weights, or by themselves.
    fn sorted(&self, by_weight: bool) -> Vec<i64> {
        let mut sorted = self.numbers.clone();
        let weight =
            |number: &i64| if by_weight { self.weights[number].unwrap_or(0) } else { *number };
        // Numbers of equal weight are compared as texts.
        sorted.sort_by_key(|number| (weight(number), number.to_string()));
        sorted
    }

    /// Returns the strings of a reply, those that do not exist as "".
    fn strings(&mut self, line: &str) -> Vec<String> {
        let reply = self.values.ask(line);
        assert!(reply.starts_with('*'), "{line}: {reply}");
        let mut lines = reply.split("\r\n").skip(1);
        let mut strings = Vec::new();
        while let Some(length) = lines.next().filter(|line| !line.is_empty()) {
            let string = if length == "$-1" { None } else { lines.next() };
            strings.push(string.unwrap_or_default().to_owned());
        }
        strings
    }

    fn check(&mut self, line: &str, expected: &[String]) {
        assert_eq!(self.strings(line), expected, "{line}");
        let stored = self.values.number(&format!("{line} STORE to"));
        assert_eq!(stored as usize, expected.len(), "{line}");
        assert_eq!(self.strings("LRANGE to 0 -1"), expected, "{line} STORE");
        assert_eq!(self.values.number("EXISTS to"), i64::from(!expected.is_empty()));
    }
}

fn texts(numbers: &[i64]) -> Vec<String> {
    numbers.iter().map(i64::to_string).collect()
}

#[test]
fn elements_are_sorted_by_themselves_and_by_values_of_other_keys() {
    for (count, in_transactions) in [(0, false), (3, false), (70, false), (3, true), (70, true)] {
        let mut numbers = Numbers::new(count, 7);
        numbers.values.in_transactions = in_transactions;
        for value in ["list", "set", "zset"] {
            let sorted = numbers.sorted(false);
            numbers.check(&format!("SORT {value}"), &texts(&sorted));
            let reversed: Vec<i64> = sorted.iter().rev().copied().collect();
            let part = &reversed[2.min(count)..9.min(count)];
            numbers.check(&format!("SORT {value} LIMIT 2 7 DESC"), &texts(part));
            for pattern in ["w:*", "hash:*:x->field"] {
                let sorted = numbers.sorted(true);
                let expected: Vec<String> = sorted
                    .iter()
                    .flat_map(|number| {
                        let weight = numbers.weights[number].map(|weight| weight.to_string());
                        [number.to_string(), weight.unwrap_or_default()]
                    })
                    .collect();
                let line = format!("SORT {value} BY {pattern} GET # GET {pattern}");
                numbers.check(&line, &expected);
            }
            let mut words = texts(&sorted);
            words.sort();
            numbers.check(&format!("SORT {value} ALPHA"), &words);
        }
        let ascending = numbers.sorted(false);
        let descending: Vec<i64> = ascending.iter().rev().copied().collect();
        let order = numbers.numbers.clone();
        let reversed: Vec<i64> = order.iter().rev().copied().collect();
        for (line, expected) in [
            ("SORT zset BY nosort", &ascending),
            ("SORT zset BY nosort DESC", &descending),
            ("SORT list BY nosort", &order),
            ("SORT list BY nosort DESC", &reversed),
        ] {
            numbers.check(line, &texts(expected));
            let part = &expected[1.min(count)..5.min(count)];
            numbers.check(&format!("{line} LIMIT 1 4"), &texts(part));
        }
    }
}

#[test]
fn a_result_replaces_the_value_of_its_key_even_of_the_sorted_one() {
    let mut numbers = Numbers::new(60, 3);
    let sorted = texts(&numbers.sorted(false));
    assert_eq!(numbers.values.number("SORT list STORE list"), 60);
    assert_eq!(numbers.strings("LRANGE list 0 -1"), sorted);
    assert_eq!(numbers.values.number("EXPIRE set 100"), 1);
    assert_eq!(numbers.values.number("SORT zset BY nosort LIMIT 0 2 STORE set"), 2);
    assert_eq!(numbers.strings("LRANGE set 0 -1"), &sorted[..2]);
    assert_eq!(numbers.values.number("TTL set"), -1);
    assert_eq!(numbers.values.number("SORT list LIMIT 100 1 STORE zset"), 0);
    assert_eq!(numbers.values.number("EXISTS zset"), 0);
    assert_eq!(numbers.values.number("SORT none STORE list"), 0);
    assert_eq!(numbers.values.number("DEL set"), 1);
    for number in numbers.numbers.clone() {
        numbers.values.ask(&format!("DEL hash:{number}:x"));
    }
    numbers.values.number("DEL to");
    numbers.values.sweep(0);
}

#[test]
fn a_transaction_sorts_by_what_its_commands_have_written() {
    let mut numbers = Numbers::new(30, 3);
    let values = &mut numbers.values;
    assert_eq!(values.ask("RPUSH few 1 2 3"), ":3\r\n");
    for line in ["MULTI", "MSET w:1 30 w:2 20 w:3 10", "SORT few BY w:* GET #", "DEL w:1"] {
        values.ask(line);
    }
    values.ask("SORT few BY w:* GET w:*");
    let replies = values.ask("EXEC");
    let sorted =
        "*3\r\n$1\r\n3\r\n$1\r\n2\r\n$1\r\n1\r\n:1\r\n*3\r\n$-1\r\n$2\r\n10\r\n$2\r\n20\r\n";
    assert_eq!(replies, format!("*4\r\n+OK\r\n{sorted}"));
    let once = "BALLAST.ONCE 7 1 1 SORT few BY w:* STORE to";
    for _ in 0..2 {
        assert_eq!(values.ask(once), ":3\r\n");
        assert_eq!(values.strings("LRANGE to 0 -1"), ["1", "3", "2"]);
    }
}

#[test]
fn keys_of_other_slots_are_refused_in_a_cluster() {
    let mut world = World::of_cluster();
    let mut client = world.connect(1, 0, HERE);
    world.ask(&mut client, "RPUSH {a}list 2 1");
    world.ask(&mut client, "MSET {a}w1 9 {a}w2 8");
    let denied = |option: &str| {
        format!(
            "-ERR {option} option of SORT denied in Cluster mode when keys formed by the pattern \
             may be in different slots.\r\n"
        )
    };
    let sorted = "*2\r\n$1\r\n2\r\n$1\r\n1\r\n".to_owned();
    for (options, reply) in [
        ("BY {a}w*", sorted.clone()),
        ("BY nosort", sorted),
        ("BY w*", denied("BY")),
        ("BY w{a}*", "*2\r\n$1\r\n1\r\n$1\r\n2\r\n".to_owned()),
        ("BY {b}w*", denied("BY")),
        ("BY {a*}", denied("BY")),
        ("BY *{a}", denied("BY")),
        ("BY {}{a}*", denied("BY")),
        ("BY {a}w* GET w", denied("GET")),
        ("GET # GET {b}*", denied("GET")),
        ("STORE {b}", "-CROSSSLOT Keys in request don't hash to the same slot\r\n".to_owned()),
    ] {
        assert_eq!(
            world.ask(&mut client, &format!("SORT {{a}}list {options}")),
            reply,
            "{options}"
        );
    }
}

#[test]
fn more_values_than_a_reactor_reads_at_once_are_refused() {
    let mut values = PagedValues::new("4096");
    let few = "1 ".repeat(1 << 12);
    (0..16).for_each(|_| drop(values.ask(&format!("RPUSH list {}", few.trim_end()))));
    assert_eq!(values.ask("SET w:1 x"), "+OK\r\n");
    assert!(values.ask("SORT list BY w:* ALPHA LIMIT 0 1").starts_with("*1\r\n"));
    assert!(values.ask("SORT list GET # LIMIT 0 1").starts_with("*1\r\n"));
    let refused = values.ask("SORT list GET # GET w:*");
    assert!(refused.starts_with("-ERR SORT cannot read more than 65536 values"), "{refused}");
    assert_eq!(values.number("RPUSH list 1"), (1 << 16) + 1);
    assert_eq!(values.ask("SORT list BY w:* ALPHA LIMIT 0 1"), refused);
    assert_eq!(values.ask("SORT list LIMIT 0 1"), "*1\r\n$1\r\n1\r\n");
    let long = "x".repeat(2_000);
    assert_eq!(values.ask(&format!("SET w:1 {long}")), "+OK\r\n");
    let refused = values.ask("SORT list GET w:* LIMIT 0 40000");
    assert!(refused.starts_with("-ERR SORT cannot read more than 64 MiB"), "{refused}");
}
