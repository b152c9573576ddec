//! Hashes and sets of any size, compared with a model: packed, divided into pages, growing and
//! shrinking.

use super::paged_values::PagedValues;
use super::*;
use fastrand::Rng;
use std::collections::BTreeSet;

/// Longest packed value in these tests. A page has 16 bytes on average: two or three elements.
const PACKED_BYTES: &str = "40";

type Fields = BTreeMap<String, String>;

impl PagedValues {
    /// Compares all that can be read of a hash with the model.
    fn check_hash(&mut self, key: &str, model: &Fields) {
        assert_eq!(self.number(&format!("HLEN {key}")), model.len() as i64);
        let all = self.strings(&format!("HGETALL {key}"));
        let (pairs, _) = all.as_chunks::<2>();
        let all: Fields = pairs.iter().cloned().map(|[field, value]| (field, value)).collect();
        assert_eq!(&all, model);
        assert_eq!(pairs.len(), model.len(), "a field is there twice");
        let mut scanned = Fields::new();
        let mut cursor = "0".to_owned();
        loop {
            let mut parts = self.strings(&format!("HSCAN {key} {cursor} COUNT 4"));
            cursor = parts.remove(0);
            let (pairs, _) = parts.as_chunks::<2>();
            scanned.extend(pairs.iter().cloned().map(|[field, value]| (field, value)));
            if cursor == "0" {
                break;
            }
        }
        assert_eq!(&scanned, model);
    }
}

fn field(random: &mut Rng, fields: usize) -> String {
    format!("field:{}", random.usize(..fields))
}

/// Executes one random command on both.
fn step(pages: &mut PagedValues, model: &mut Fields, fields: usize, random: &mut Rng) {
    let one = field(random, fields);
    let value = "v".repeat(random.usize(1..12));
    match random.u32(..10) {
        0..4 => {
            let is_new = model.insert(one.clone(), value.clone()).is_none();
            assert_eq!(pages.number(&format!("HSET key {one} {value}")), i64::from(is_new));
        }
        4 => {
            let more: Vec<String> =
                (0..random.usize(1..20)).map(|_| field(random, fields)).collect();
            let words: Vec<String> = more.iter().map(|field| format!("{field} {value}")).collect();
            let before = model.len();
            model.extend(more.into_iter().map(|field| (field, value.clone())));
            let added = (model.len() - before) as i64;
            assert_eq!(pages.number(&format!("HSET key {}", words.join(" "))), added);
        }
        5 => {
            let more: Vec<String> =
                (0..random.usize(1..20)).map(|_| field(random, fields)).collect();
            let removed = more.iter().filter(|field| model.remove(*field).is_some()).count();
            assert_eq!(pages.number(&format!("HDEL key {}", more.join(" "))), removed as i64);
        }
        6 => {
            let is_new = !model.contains_key(&one);
            model.entry(one.clone()).or_insert(value.clone());
            assert_eq!(pages.number(&format!("HSETNX key {one} {value}")), i64::from(is_new));
        }
        7 => {
            let found: Vec<String> = model.remove(&one).into_iter().collect();
            assert_eq!(pages.strings(&format!("HGETDEL key FIELDS 1 {one}")), found);
        }
        8 => {
            let drawn = pages.strings("HRANDFIELD key 3");
            let distinct: BTreeSet<&String> = drawn.iter().collect();
            assert_eq!(distinct.len(), model.len().min(3), "{drawn:?}");
            assert!(drawn.iter().all(|field| model.contains_key(field)));
        }
        _ => {
            let found: Vec<String> = model.get(&one).cloned().into_iter().collect();
            assert_eq!(pages.strings(&format!("HGET key {one}")), found);
            assert_eq!(pages.number(&format!("HEXISTS key {one}")), found.len() as i64);
        }
    }
}

#[test]
fn a_hash_of_any_size_behaves_like_a_map() {
    for seed in 0..12 {
        let mut random = Rng::with_seed(seed);
        let mut pages = PagedValues::new(PACKED_BYTES);
        let mut model = Fields::new();
        let mut has_had_pages = false;
        for round in 0..6 {
            let fields = [3, 40, 200, 6, 100, 1][round];
            for _ in 0..60 {
                step(&mut pages, &mut model, fields, &mut random);
                has_had_pages |= pages.pages() > 20;
            }
            pages.check_hash("key", &model);
        }
        assert!(has_had_pages);
        let left: Vec<&str> = model.keys().map(String::as_str).collect();
        if !left.is_empty() {
            let line = format!("HDEL key {}", left.join(" "));
            assert_eq!(pages.number(&line), left.len() as i64);
        }
        assert_eq!(pages.number("EXISTS key"), 0);
        assert_eq!(pages.pages(), 0, "a page outlives its elements");
    }
}

#[test]
fn sets_of_any_size_are_combined_moved_and_popped() {
    let mut pages = PagedValues::new(PACKED_BYTES);
    let members = |range: std::ops::Range<u32>| range.map(|n| format!("m{n}")).collect::<Vec<_>>();
    let set = |range| members(range).into_iter().collect::<BTreeSet<String>>();
    pages.ask(&format!("SADD a {}", members(0..60).join(" ")));
    pages.ask(&format!("SADD b {}", members(40..100).join(" ")));
    assert!(pages.pages() > 20);
    let got = |pages: &mut PagedValues, line: &str| {
        pages.strings(line).into_iter().collect::<BTreeSet<String>>()
    };
    assert_eq!(got(&mut pages, "SINTER a b"), set(40..60));
    assert_eq!(got(&mut pages, "SUNION a b none"), set(0..100));
    assert_eq!(got(&mut pages, "SDIFF a b"), set(0..40));
    assert_eq!(pages.number("SINTERCARD 2 a b LIMIT 5"), 5);
    assert_eq!(pages.number("SUNIONSTORE a a b"), 100, "into one of the sets");
    assert_eq!(got(&mut pages, "SMEMBERS a"), set(0..100));
    assert_eq!(pages.number("SMOVE a b m3"), 1);
    assert_eq!(pages.number("SMOVE a b m3"), 0);
    assert_eq!(pages.number("SISMEMBER b m3"), 1);
    assert_eq!(pages.number("SINTERSTORE c a none"), 0);
    assert_eq!(pages.number("EXISTS c"), 0);
    assert_eq!(pages.strings("SRANDMEMBER a 7").len(), 7);
    assert_eq!(pages.strings("SRANDMEMBER a -7").len(), 7);
    let mut popped = BTreeSet::new();
    for count in [1, 3, 30, 100] {
        let some = pages.strings(&format!("SPOP a {count}"));
        popped.extend(some);
    }
    let mut all = set(0..100);
    all.remove("m3");
    assert_eq!(popped, all);
    assert_eq!(pages.ask("SPOP a"), "$-1\r\n");
    assert_eq!(pages.number("EXISTS a"), 0);
}

/// Sets a hash of 50 fields under this key.
fn fill(pages: &mut PagedValues, key: &str) -> Fields {
    let fields: Fields = (0..50).map(|n| (format!("f{n}"), format!("v{n}"))).collect();
    let words: Vec<String> =
        fields.iter().map(|(field, value)| format!("{field} {value}")).collect();
    pages.ask(&format!("HSET {key} {}", words.join(" ")));
    fields
}

#[test]
fn commands_on_keys_take_the_pages_along() {
    let mut pages = PagedValues::new(PACKED_BYTES);
    let fields = fill(&mut pages, "a");
    assert_eq!(pages.number("EXPIRE a 100"), 1);
    assert_eq!(pages.ask("RENAME a b"), "+OK\r\n");
    pages.check_hash("b", &fields);
    assert_eq!(pages.number("TTL b"), 100);
    assert_eq!(pages.number("EXISTS a"), 0);
    assert_eq!(pages.number("COPY b c"), 1);
    assert_eq!(pages.number("HDEL b f1 f2"), 2);
    pages.check_hash("c", &fields);
    assert_eq!(pages.number("TTL c"), 100);
    assert_eq!(pages.number("COPY b c"), 0);
    assert_eq!(pages.number("RENAMENX b c"), 0);
    assert_eq!(pages.number("COPY c d DB 1"), 1);
    assert_eq!(pages.ask("SELECT 1"), "+OK\r\n");
    pages.check_hash("d", &fields);
    assert_eq!(pages.ask("SELECT 0"), "+OK\r\n");
    assert_eq!(pages.number("PERSIST c"), 1);
    pages.check_hash("c", &fields);
    assert_eq!(pages.strings("OBJECT ENCODING c"), ["hashtable"]);
    assert!(pages.number("MEMORY USAGE c") > 50 * 6);
    assert_eq!(
        pages.ask("GET c"),
        "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"
    );
    assert_eq!(pages.number("SADD set x"), 1);
    assert_eq!(pages.ask("SET c string"), "+OK\r\n");
    let again = fill(&mut pages, "b");
    pages.check_hash("b", &again);
    assert_eq!(pages.number("DEL b"), 1);
    assert_eq!(pages.number("HSET b one 1"), 1);
    pages.check_hash("b", &[("one".to_owned(), "1".to_owned())].into());
}

#[test]
fn transactions_work_on_copies_of_pages() {
    let mut pages = PagedValues::new(PACKED_BYTES);
    let mut fields = fill(&mut pages, "a");
    pages.ask("MULTI");
    for line in ["HSET a f1 x", "HGET a f1", "HDEL a f2", "HLEN a", "HINCRBY a n 5"] {
        assert_eq!(pages.ask(line), "+QUEUED\r\n");
    }
    assert_eq!(pages.ask("EXEC"), "*5\r\n:0\r\n$1\r\nx\r\n:1\r\n:49\r\n:5\r\n");
    fields.insert("f1".into(), "x".into());
    fields.insert("n".into(), "5".into());
    fields.remove("f2");
    pages.check_hash("a", &fields);
    pages.ask("WATCH a");
    let mut other = pages.world.connect(2, 1, HERE);
    assert_eq!(pages.world.ask(&mut other, "HSET a f3 y"), ":0\r\n");
    pages.ask("MULTI");
    pages.ask("HGET a f3");
    assert_eq!(pages.ask("EXEC"), "*-1\r\n");
    pages.ask("MULTI");
    pages.ask("HGET a f3");
    assert_eq!(pages.ask("EXEC"), "*1\r\n$1\r\ny\r\n");
    assert_eq!(pages.ask("BALLAST.ONCE 7 1 1 HINCRBY a n 2"), ":7\r\n");
    assert_eq!(pages.ask("BALLAST.ONCE 7 1 1 HINCRBY a n 2"), ":7\r\n");
    assert_eq!(pages.strings("HGET a n"), ["7"]);
}

#[test]
fn a_change_that_does_not_fit_into_one_batch_is_refused_and_changes_nothing() {
    let mut pages = PagedValues::new(PACKED_BYTES);
    let fields = fill(&mut pages, "a");
    let long = "x".repeat(1 << 20);
    let words: Vec<String> = (0..12).map(|n| format!("long{n} {long}")).collect();
    let reply = pages.ask(&format!("HSET a {}", words.join(" ")));
    assert!(reply.starts_with("-ERR a command cannot change this many bytes"), "{reply}");
    pages.check_hash("a", &fields);
    for word in &words {
        assert_eq!(pages.number(&format!("HSET a {word}")), 1);
    }
    assert_eq!(pages.number("HLEN a"), 62);
    assert_eq!(pages.strings("HGET a long7"), [long]);
}

#[test]
fn pages_without_a_root_are_removed_and_others_stay() {
    let mut pages = PagedValues::new(PACKED_BYTES);
    let kept = fill(&mut pages, "kept");
    let of_kept = pages.pages();
    for (key, removal) in [
        ("a", "DEL a"),
        ("b", "SET b string"),
        ("c", "PEXPIRE c 1"),
        ("d", "SUNIONSTORE d none"),
        ("e", "RENAME e f"),
    ] {
        fill(&mut pages, key);
        pages.ask(removal);
    }
    assert_eq!(pages.number("DEL f"), 1);
    assert!(pages.pages() > 3 * of_kept);
    pages.sweep(of_kept);
    pages.check_hash("kept", &kept);
    assert_eq!(pages.pages(), of_kept);
}

#[test]
fn a_full_server_waits_for_the_memory_of_pages_without_a_root() {
    let mut pages = PagedValues::new(PACKED_BYTES);
    let value = "v".repeat(1_000);
    let mut client = pages.world.connect(3, 0, HERE);
    let mut fields = 0;
    // The memory is filled with one hash, which is then replaced by a string.
    loop {
        let line = format!("HSET hash field:{fields} {value}");
        let reply = pages.world.ask_patiently(&mut client, &line);
        pages.world.turn();
        if reply != ":1\r\n" {
            assert!(reply.starts_with("-OOM "), "{reply}");
            break;
        }
        fields += 1;
        if fields % 4 == 0 {
            pages.world.now = pages.world.now + Duration::from_micros(100);
        }
    }
    assert!(fields > 10_000, "{fields}");
    assert_eq!(pages.world.ask_patiently(&mut client, "DEL hash"), ":1\r\n");
    for number in 0..fields {
        let reply = pages.world.ask_patiently(&mut client, &format!("SET key:{number} {value}"));
        assert_eq!(reply, "+OK\r\n", "{number}");
        pages.world.turn();
    }
}

#[test]
fn a_refused_change_of_a_hash_in_a_transaction_changes_nothing() {
    let mut pages = PagedValues::new(PACKED_BYTES);
    let fields = fill(&mut pages, "a");
    pages.in_transactions = true;
    let reply = pages.ask(&format!("HSET a new1 1 new2 2 new3 3 big {}", "x".repeat(4_063_232)));
    assert!(reply.starts_with("-ERR a command cannot change this many bytes"), "{reply}");
    pages.in_transactions = false;
    pages.check_hash("a", &fields);
}

#[test]
fn removals_from_values_that_are_divided_meanwhile_are_answered_once() {
    let mut pages = PagedValues::new("4096");
    let members: Vec<String> = (0..100).map(|number| format!("member{number}")).collect();
    pages.number(&format!("SADD set {}", members.join(" ")));
    let fields: Vec<String> = members.iter().map(|name| format!("{name} value")).collect();
    pages.number(&format!("HSET hash {}", fields.join(" ")));
    assert_eq!(pages.ask("CONFIG SET max-packed-bytes 64"), "+OK\r\n");
    let popped = pages.strings("SPOP set");
    assert_eq!((popped.len(), pages.number("SCARD set")), (1, 99));
    assert_eq!(pages.number(&format!("SISMEMBER set {}", popped[0])), 0);
    let deleted = pages.strings("HGETDEL hash FIELDS 2 member0 member1");
    assert_eq!((deleted.len(), pages.number("HLEN hash")), (2, 98));
    assert!(pages.pages() > 10, "both values have pages now");
}

#[test]
fn commands_take_many_values_with_pages() {
    for in_transactions in [false, true] {
        let mut pages = PagedValues::new(PACKED_BYTES);
        let keys: Vec<String> = (0..20).map(|key| format!("s{key}")).collect();
        for key in &keys {
            let members: Vec<String> = (0..30).map(|member| format!("{key}:{member}")).collect();
            pages.ask(&format!("SADD {key} common {}", members.join(" ")));
        }
        pages.in_transactions = in_transactions;
        let keys = keys.join(" ");
        assert_eq!(pages.strings(&format!("SINTER {keys}")), ["common"]);
        assert_eq!(pages.number(&format!("SUNIONSTORE all {keys}")), 20 * 30 + 1);
        assert_eq!(pages.strings("SUNION s1 s1 s1 s1 s1 s1 s1 s1 s1 s1").len(), 31);
        assert_eq!(pages.number(&format!("ZUNIONSTORE z 20 {keys}")), 20 * 30 + 1);
    }
}
