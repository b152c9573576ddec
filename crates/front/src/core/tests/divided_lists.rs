//! Lists of any size, compared with a model: packed, divided into pages, growing and shrinking.

use super::paged_values::PagedValues;
use super::*;
use fastrand::Rng;
use std::collections::VecDeque;

/// Longest packed list in these tests. A page has up to 32 bytes, each end of a root 16.
const PACKED_BYTES: &str = "64";

type Items = VecDeque<String>;

impl PagedValues {
    fn check_list(&mut self, key: &str, model: &Items) {
        assert_eq!(self.number(&format!("LLEN {key}")), model.len() as i64);
        assert_eq!(&Items::from(self.strings(&format!("LRANGE {key} 0 -1"))), model);
        assert_eq!(self.number(&format!("EXISTS {key}")), i64::from(!model.is_empty()));
    }
}

fn item(random: &mut Rng) -> String {
    let length = if random.u8(..16) == 0 { random.usize(20..90) } else { random.usize(1..7) };
    ["a", "b", "c"][random.usize(..3)].repeat(length)
}

/// Returns the position that a number of a command names.
fn place(at: i64, length: usize) -> Option<usize> {
    let at = if at < 0 { at + length as i64 } else { at };
    usize::try_from(at).ok().filter(|at| *at < length)
}

/// Returns the items between two inclusive positions.
fn between(model: &Items, first: i64, last: i64) -> Items {
    let length = model.len() as i64;
    let from_end = |at: i64| if at < 0 { at + length } else { at };
    let (first, last) = (from_end(first).max(0), from_end(last).min(length - 1));
    (first..=last).map(|at| model[at as usize].clone()).collect()
}

fn pop(model: &mut Items, is_left: bool) -> Option<String> {
    if is_left { model.pop_front() } else { model.pop_back() }
}

fn push(model: &mut Items, is_left: bool, item: &str) {
    if is_left { model.push_front(item.to_owned()) } else { model.push_back(item.to_owned()) }
}

/// Executes one random command that adds or removes items at an end, on both.
fn step_at_end(lists: &mut PagedValues, model: &mut Items, random: &mut Rng) {
    let is_left = random.bool();
    let letter = if is_left { "L" } else { "R" };
    let end = if is_left { "LEFT" } else { "RIGHT" };
    match random.u8(..7) {
        0..3 => {
            let new: Vec<String> = (0..random.usize(1..5)).map(|_| item(random)).collect();
            new.iter().for_each(|item| push(model, is_left, item));
            let reply = lists.number(&format!("{letter}PUSH key {}", new.join(" ")));
            assert_eq!(reply, model.len() as i64);
        }
        3 => {
            let found: Vec<String> = pop(model, is_left).into_iter().collect();
            assert_eq!(lists.strings(&format!("{letter}POP key")), found);
        }
        4 => {
            let count = random.usize(1..6);
            let found: Vec<String> = (0..count).map_while(|_| pop(model, is_left)).collect();
            assert_eq!(lists.strings(&format!("{letter}POP key {count}")), found);
        }
        5 => {
            let count = random.usize(1..6);
            let mut found: Vec<String> = (0..count).map_while(|_| pop(model, is_left)).collect();
            if !found.is_empty() {
                found.insert(0, "key".to_owned());
            }
            let (wait, name) = if random.bool() { ("0.01 ", "BLMPOP") } else { ("", "LMPOP") };
            if wait.is_empty() || !found.is_empty() {
                let line = format!("{name} {wait}2 none key {end} COUNT {count}");
                assert_eq!(lists.strings(&line), found);
            }
        }
        _ => {
            let to_left = random.bool();
            let to = if to_left { "LEFT" } else { "RIGHT" };
            let moved = pop(model, is_left);
            moved.iter().for_each(|item| push(model, to_left, item));
            let found: Vec<String> = moved.into_iter().collect();
            assert_eq!(lists.strings(&format!("LMOVE key key {end} {to}")), found);
        }
    }
}

/// Executes one random command on any item, on both.
fn step_inside(lists: &mut PagedValues, model: &mut Items, random: &mut Rng) {
    let length = model.len() as i64;
    let mut at = || random.i64(-length - 1..=length);
    let (first, last) = (at(), at());
    let one = item(random);
    match random.u8(..8) {
        0 => {
            let found: Vec<String> =
                place(first, model.len()).map(|at| model[at].clone()).into_iter().collect();
            assert_eq!(lists.strings(&format!("LINDEX key {first}")), found);
        }
        1 => {
            let found = Vec::from(between(model, first, last));
            assert_eq!(lists.strings(&format!("LRANGE key {first} {last}")), found);
        }
        2 => {
            let reply = lists.ask(&format!("LSET key {first} {one}"));
            match place(first, model.len()) {
                Some(at) => {
                    model[at] = one;
                    assert_eq!(reply, "+OK\r\n");
                }
                None if model.is_empty() => assert_eq!(reply, "-ERR no such key\r\n"),
                None => assert_eq!(reply, "-ERR index out of range\r\n"),
            }
        }
        3 => {
            let (is_after, pivot) = (random.bool(), item(random));
            let word = if is_after { "AFTER" } else { "BEFORE" };
            let found = model.iter().position(|item| *item == pivot);
            if let Some(at) = found {
                model.insert(at + usize::from(is_after), one.clone());
            }
            let expected = match found {
                _ if length == 0 => 0,
                Some(_) => length + 1,
                None => -1,
            };
            let reply = lists.number(&format!("LINSERT key {word} {pivot} {one}"));
            assert_eq!(reply, expected);
        }
        4 => {
            let count = random.i64(-3..=3);
            let places: Vec<usize> = (0..model.len()).filter(|at| model[*at] == one).collect();
            let most = if count == 0 { usize::MAX } else { count.unsigned_abs() as usize };
            let removed: Vec<usize> = match count < 0 {
                true => places.into_iter().rev().take(most).collect(),
                false => {
                    places.into_iter().take(most).collect::<Vec<_>>().into_iter().rev().collect()
                }
            };
            removed.iter().for_each(|at| drop(model.remove(*at)));
            let reply = lists.number(&format!("LREM key {count} {one}"));
            assert_eq!(reply, removed.len() as i64);
        }
        5 => {
            let rank = [1, 2, -1, -2][random.usize(..4)];
            let mut places: Vec<usize> = (0..model.len()).filter(|at| model[*at] == one).collect();
            if rank < 0 {
                places.reverse();
            }
            let skipped = i64::abs(rank) as usize - 1;
            let expected: Vec<usize> = places.into_iter().skip(skipped).take(2).collect();
            let reply = lists.ask(&format!("LPOS key {one} RANK {rank} COUNT 2"));
            let numbers = expected.iter().map(|at| format!(":{at}\r\n")).collect::<String>();
            assert_eq!(reply, format!("*{}\r\n{numbers}", expected.len()));
        }
        6 if random.u8(..4) == 0 => {
            *model = between(model, first, last);
            assert_eq!(lists.ask(&format!("LTRIM key {first} {last}")), "+OK\r\n");
        }
        _ => {
            let kept = model.len().saturating_sub(random.usize(..4));
            let first = model.len().min(1);
            *model = between(model, first as i64, kept as i64 - 1);
            let line = format!("LTRIM key {first} {}", kept as i64 - 1);
            if kept > 0 {
                assert_eq!(lists.ask(&line), "+OK\r\n");
            } else {
                model.clear();
                lists.ask("DEL key");
            }
        }
    }
}

fn behaves_like_a_queue(seed: u64, in_transactions: bool) {
    let mut random = Rng::with_seed(seed);
    let mut lists = PagedValues::new(PACKED_BYTES);
    lists.in_transactions = in_transactions;
    let mut model = Items::new();
    let mut most_pages = 0;
    for round in 0..400 {
        if round % 80 == 40 {
            let new: Vec<String> = (0..60).map(|_| item(&mut random)).collect();
            let is_left = random.bool();
            new.iter().for_each(|item| push(&mut model, is_left, item));
            let name = if is_left { "LPUSH" } else { "RPUSH" };
            assert_eq!(lists.number(&format!("{name} key {}", new.join(" "))), model.len() as i64);
        }
        match random.bool() {
            true => step_at_end(&mut lists, &mut model, &mut random),
            false => step_inside(&mut lists, &mut model, &mut random),
        }
        lists.check_list("key", &model);
        most_pages = most_pages.max(lists.pages());
        if random.u8(..8) == 0 {
            // Orphans are removed between the commands, also while their numbers are used again.
            lists.run(random.usize(..40));
        }
    }
    assert!(most_pages > 10, "{most_pages} pages");
    lists.ask("DEL key");
    lists.sweep(0);
}

#[test]
fn a_list_of_any_size_behaves_like_a_queue_with_two_ends() {
    (0..8).for_each(|seed| behaves_like_a_queue(seed, false));
}

#[test]
fn a_list_of_any_size_behaves_the_same_in_transactions() {
    (20..24).for_each(|seed| behaves_like_a_queue(seed, true));
}

/// Pushes 60 items to this key.
fn fill(lists: &mut PagedValues, key: &str) -> Items {
    let items: Items = (0..60).map(|number| format!("item{number}")).collect();
    let line = format!("RPUSH {key} {}", items.iter().cloned().collect::<Vec<_>>().join(" "));
    assert_eq!(lists.number(&line), 60);
    items
}

#[test]
fn commands_on_keys_take_the_pages_of_lists_along() {
    let mut lists = PagedValues::new(PACKED_BYTES);
    let mut items = fill(&mut lists, "a");
    assert!(lists.pages() > 10);
    assert_eq!(lists.ask("TYPE a"), "+list\r\n");
    assert_eq!(lists.number("EXPIRE a 100"), 1);
    lists.check_list("a", &items);
    assert_eq!(lists.ask("RENAME a b"), "+OK\r\n");
    lists.check_list("b", &items);
    assert_eq!(lists.number("TTL b"), 100);
    assert_eq!(lists.number("EXISTS a"), 0);
    assert_eq!(lists.number("COPY b c"), 1);
    assert_eq!(lists.strings("LPOP b 3"), ["item0", "item1", "item2"]);
    assert_eq!(lists.number("TTL b"), 100, "a change keeps the expiry");
    lists.check_list("c", &items);
    assert_eq!(lists.number("TTL c"), 100);
    assert_eq!(lists.number("COPY b c"), 0);
    assert_eq!(lists.number("RENAMENX b c"), 0);
    assert_eq!(lists.number("COPY c d DB 1"), 1);
    assert_eq!(lists.ask("SELECT 1"), "+OK\r\n");
    lists.check_list("d", &items);
    assert_eq!(lists.ask("SELECT 0"), "+OK\r\n");
    assert_eq!(lists.strings("OBJECT ENCODING c"), ["listpack"]);
    assert!(lists.number("MEMORY USAGE c") > 60 * 7);
    let wrong = "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n";
    for line in ["GET c", "HGET c f", "SADD c x", "ZADD c 1 x"] {
        assert_eq!(lists.ask(line), wrong, "{line}");
    }
    assert_eq!(lists.ask("SET string x"), "+OK\r\n");
    for line in ["LMOVE c string LEFT LEFT", "LMPOP 2 none string LEFT", "LPUSH string x"] {
        assert_eq!(lists.ask(line), wrong, "{line}");
    }
    lists.check_list("c", &items);
    assert_eq!(lists.ask("LMOVE none string LEFT LEFT"), "$-1\r\n");
    assert_eq!(lists.strings("LMPOP 3 none c string LEFT"), ["c", "item0"]);
    items.pop_front();
    assert_eq!(lists.strings("RPOPLPUSH c other"), ["item59"]);
    items.pop_back();
    lists.check_list("c", &items);
    assert_eq!(lists.ask("SET c string"), "+OK\r\n");
    assert_eq!(lists.number("DEL b other"), 2);
    let again = fill(&mut lists, "b");
    lists.check_list("b", &again);
}

#[test]
fn restored_lists_have_pages() {
    let mut lists = PagedValues::new(PACKED_BYTES);
    let items = fill(&mut lists, "a");
    let mut packed = Vec::new();
    values::encode_list(
        items.iter().map(|item| values::ListPart::Item(item.as_bytes())),
        &mut packed,
    );
    let value = types::TypedValue { value_type: types::ValueType::List, bytes: &packed };
    let dump = values::dump(value).expect("a list");
    assert_eq!(lists.restore("b", &dump, &[]), "+OK\r\n");
    lists.check_list("b", &items);
    assert!(lists.restore("b", &dump, &[]).starts_with("-BUSYKEY"));
    assert_eq!(lists.strings("LPOP b 7").len(), 7);
    assert_eq!(lists.restore("b", &dump, &["REPLACE"]), "+OK\r\n");
    lists.check_list("b", &items);
}

#[test]
fn transactions_work_on_copies_of_the_pages_of_lists() {
    let mut lists = PagedValues::new(PACKED_BYTES);
    let mut items = fill(&mut lists, "a");
    lists.ask("MULTI");
    for line in ["LTRIM a 0 9", "RPUSH a x y z w", "LINDEX a 30", "LLEN a", "RPOP a", "LSET a 2 v"]
    {
        assert_eq!(lists.ask(line), "+QUEUED\r\n");
    }
    assert_eq!(lists.ask("EXEC"), "*6\r\n+OK\r\n:14\r\n$-1\r\n:14\r\n$1\r\nw\r\n+OK\r\n");
    items.truncate(10);
    items[2] = "v".to_owned();
    items.extend(["x", "y", "z"].map(str::to_owned));
    lists.check_list("a", &items);
    lists.ask("WATCH a");
    let mut other = lists.world.connect(2, 1, HERE);
    assert_eq!(lists.world.ask(&mut other, "LPUSH a left"), ":14\r\n");
    lists.ask("MULTI");
    lists.ask("RPOP a");
    assert_eq!(lists.ask("EXEC"), "*-1\r\n");
    for _ in 0..2 {
        assert_eq!(
            lists.ask("BALLAST.ONCE 7 1 1 LMPOP 1 a RIGHT COUNT 2"),
            "*2\r\n$1\r\na\r\n*2\r\n$1\r\nz\r\n$1\r\ny\r\n"
        );
    }
    items.truncate(items.len() - 2);
    items.push_front("left".to_owned());
    lists.check_list("a", &items);
}

#[test]
fn a_transaction_that_creates_a_page_with_the_number_of_an_orphan_ends() {
    let mut lists = PagedValues::new(PACKED_BYTES);
    let mut items = fill(&mut lists, "a");
    assert_eq!(lists.ask("LTRIM a 0 9"), "+OK\r\n");
    items.truncate(10);
    lists.ask("MULTI");
    let new: Vec<String> = (0..20).map(|number| format!("new{number}")).collect();
    lists.ask(&format!("RPUSH a {}", new.join(" ")));
    assert_eq!(lists.ask("EXEC"), "*1\r\n:30\r\n");
    items.extend(new);
    lists.check_list("a", &items);
}

#[test]
fn orphans_of_a_trimmed_list_are_removed_and_its_pages_stay() {
    let mut lists = PagedValues::new(PACKED_BYTES);
    let mut items = fill(&mut lists, "a");
    let before = lists.pages();
    assert_eq!(lists.ask("LTRIM a 0 14"), "+OK\r\n");
    items.truncate(15);
    assert!(lists.pages() > before / 2, "{} of {before}", lists.pages());
    lists.sweep(before / 2);
    lists.check_list("a", &items);
    let mut more = 0;
    // While orphans are removed, their numbers are used again.
    for round in 0..200 {
        let new: Vec<String> = (0..20).map(|number| format!("{round}:{number}")).collect();
        assert_eq!(lists.number(&format!("RPUSH a {}", new.join(" "))), 35);
        items.extend(new);
        lists.check_list("a", &items);
        assert_eq!(lists.ask("LTRIM a 0 14"), "+OK\r\n");
        items.truncate(15);
        more = more.max(lists.pages());
        lists.run(round % 7);
    }
    lists.sweep(before / 2);
    lists.check_list("a", &items);
    assert!(more > before / 2, "no orphan was left");
}

#[test]
fn a_change_of_a_list_that_does_not_fit_into_one_batch_is_refused_and_changes_nothing() {
    let mut lists = PagedValues::new(PACKED_BYTES);
    let mut items = fill(&mut lists, "a");
    let long = "x".repeat(1 << 20);
    let reply = lists.ask(&format!("RPUSH a {}", [&long[..]; 12].join(" ")));
    assert!(reply.starts_with("-ERR a command cannot change this many bytes"), "{reply}");
    lists.check_list("a", &items);
    for _ in 0..12 {
        lists.number(&format!("RPUSH a {long}"));
        items.push_back(long.clone());
    }
    assert_eq!(lists.number("LLEN a"), 72);
    assert_eq!(lists.strings("LINDEX a 65").concat(), long);
    let reply = lists.ask("COPY a b");
    assert!(reply.starts_with("-ERR a command cannot change this many bytes"), "{reply}");
    assert_eq!(lists.ask("LTRIM a 0 59"), "+OK\r\n");
    items.truncate(60);
    lists.check_list("a", &items);
}

#[test]
fn lists_from_before_a_lower_limit_are_divided_by_the_next_change() {
    let mut lists = PagedValues::new(PACKED_BYTES);
    assert_eq!(lists.ask("CONFIG SET max-packed-bytes 4096"), "+OK\r\n");
    let mut items = fill(&mut lists, "a");
    fill(&mut lists, "b");
    assert_eq!(lists.pages(), 0);
    assert_eq!(lists.ask("CONFIG SET max-packed-bytes 64"), "+OK\r\n");
    assert_eq!(lists.strings("LMOVE a c LEFT LEFT"), ["item0"]);
    lists.check_list("c", &["item0".to_owned()].into());
    items.pop_front();
    lists.check_list("a", &items);
    let of_a = lists.pages();
    assert!(of_a > 10, "{of_a}");
    assert_eq!(lists.number("LREM b 0 item7"), 1);
    assert!(lists.pages() > of_a + 10);
    assert_eq!(lists.number("LLEN b"), 59);
}

#[test]
fn a_push_behind_empty_pages_may_leave_fewer_pages_than_it_makes() {
    let mut lists = PagedValues::new("4096");
    let long = ["z", "A"].map(|letter| letter.repeat(1_000));
    let [z, a] = long.each_ref().map(String::as_str);
    let mut items = vec![z, z];
    items.extend([a; 10]);
    (0..12).for_each(|_| items.extend([a, a, "cccccccccccccccccccccccccccccc"]));
    items.extend(["BBBBBBBBBBBBBBBBBBBB"; 5_100]);
    lists.number(&format!("RPUSH l {}", items.join(" ")));
    assert_eq!(lists.number(&format!("LREM l 0 {a}")), 34);
    (0..2).for_each(|_| assert_eq!(lists.strings("LPOP l"), [z]));
    let pushed = ["u", "v", "w", "x", "y", "t"].map(|letter| letter.repeat(1_100));
    assert_eq!(lists.number(&format!("LPUSH l {}", pushed.join(" "))), 5_118);
    let mut model: Items = pushed.into_iter().rev().collect();
    let rest = items.iter().skip(2).filter(|item| **item != a);
    model.extend(rest.map(|item| (*item).to_owned()));
    lists.check_list("l", &model);
}

#[test]
fn items_longer_than_pages_stay_in_order_while_pages_become_empty() {
    for seed in 0..6 {
        let mut random = Rng::with_seed(seed);
        let (mut lists, mut model) = (PagedValues::new(PACKED_BYTES), Items::new());
        for _ in 0..400 {
            let is_left = random.bool();
            let letter = if is_left { "L" } else { "R" };
            match random.u8(..4) {
                0 | 1 => {
                    let lengths = if random.bool() { 1..30 } else { 14..20 };
                    let mut item =
                        || ["a", "b", "c"][random.usize(..3)].repeat(random.usize(lengths.clone()));
                    let new: Vec<String> = (0..12).map(|_| item()).collect();
                    new.iter().for_each(|item| push(&mut model, is_left, item));
                    lists.number(&format!("{letter}PUSH key {}", new.join(" ")));
                }
                2 if !model.is_empty() => {
                    let item = model[random.usize(..model.len())].clone();
                    let before = model.len();
                    model.retain(|other| *other != item);
                    let removed = before - model.len();
                    assert_eq!(lists.number(&format!("LREM key 0 {item}")), removed as i64);
                }
                _ => {
                    let count = random.usize(1..8);
                    let found: Vec<String> =
                        (0..count).map_while(|_| pop(&mut model, is_left)).collect();
                    assert_eq!(lists.strings(&format!("{letter}POP key {count}")), found);
                }
            }
        }
        lists.check_list("key", &model);
    }
}

#[test]
fn a_refused_change_of_a_list_in_a_transaction_changes_nothing() {
    let mut lists = PagedValues::new(PACKED_BYTES);
    let items = fill(&mut lists, "a");
    lists.in_transactions = true;
    let reply = lists.ask(&format!("RPUSH a {}", "x".repeat(LONG)));
    assert!(reply.starts_with("-ERR a command cannot change this many bytes"), "{reply}");
    lists.in_transactions = false;
    lists.check_list("a", &items);
}

/// Length of an item that an argument may have and a page may not.
const LONG: usize = 4_063_232;
