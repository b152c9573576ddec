//! Streams of any size, with consumer groups, compared with a model: in one record, divided into
//! pages, growing and shrinking.

use super::paged_values::PagedValues;
use fastrand::Rng;
use std::collections::{BTreeMap, BTreeSet};

/// Longest stream in one record in these tests. A page has up to 32 bytes, the end in a root 8.
const PACKED_BYTES: &str = "64";

type Id = (u64, u64);

/// A group, with the consumers of its pending entries.
#[derive(Default)]
struct Group {
    last: Id,
    pending: BTreeMap<Id, String>,
}

#[derive(Default)]
struct Model {
    entries: BTreeMap<Id, Vec<String>>,
    last: Id,
    groups: BTreeMap<String, Group>,
}

fn text(id: Id) -> String {
    format!("{}-{}", id.0, id.1)
}

impl Model {
    /// Returns the strings of a reply with these entries.
    fn strings<'e>(&self, ids: impl IntoIterator<Item = &'e Id>) -> Vec<String> {
        let mut all = Vec::new();
        for id in ids {
            all.push(text(*id));
            all.extend(self.entries.get(id).into_iter().flatten().cloned());
        }
        all
    }

    fn ids(&self) -> Vec<Id> {
        self.entries.keys().copied().collect()
    }

    fn some_id(&self, random: &mut Rng) -> Id {
        let ids = self.ids();
        match ids.is_empty() || random.u8(..4) == 0 {
            true => (random.u64(..=self.last.0 + 1), random.u64(..3)),
            false => ids[random.usize(..ids.len())],
        }
    }
}

impl PagedValues {
    fn check_stream(&mut self, key: &str, model: &Model) {
        assert_eq!(self.number(&format!("XLEN {key}")), model.entries.len() as i64);
        let all = model.ids();
        assert_eq!(self.strings(&format!("XRANGE {key} - +")), model.strings(&all));
        let reversed: Vec<Id> = all.into_iter().rev().collect();
        assert_eq!(self.strings(&format!("XREVRANGE {key} + -")), model.strings(&reversed));
        for (name, group) in &model.groups {
            let mut ids = Vec::new();
            for consumer in ["one", "two"] {
                let own = group.pending.iter().filter(|(_, owner)| *owner == consumer);
                let own: Vec<String> = own.map(|(id, _)| text(*id)).collect();
                let line = format!("XPENDING {key} {name} - + 10000 {consumer}");
                let found = self.strings(&line);
                let found: Vec<String> = found.chunks(2).map(|entry| entry[0].clone()).collect();
                assert_eq!(found, own, "{line}");
                ids.extend(own);
            }
            assert_eq!(ids.len(), group.pending.len());
        }
    }
}

fn add(streams: &mut PagedValues, model: &mut Model, random: &mut Rng) {
    let id = match random.bool() {
        true => (model.last.0, model.last.1 + random.u64(1..3)),
        false => (model.last.0 + random.u64(1..3), random.u64(..2)),
    };
    let mut fields = Vec::new();
    for _ in 0..random.usize(1..3) {
        let length = if random.u8(..12) == 0 { random.usize(20..90) } else { random.usize(1..5) };
        fields.push(["a", "b"][random.usize(..2)].to_owned());
        fields.push("v".repeat(length));
    }
    model.entries.insert(id, fields.clone());
    model.last = id;
    let mut options = String::new();
    if random.u8(..8) == 0 {
        let length = model.entries.len() - random.usize(..model.entries.len().min(4));
        options = format!("MAXLEN {length} ");
        while model.entries.len() > length {
            model.entries.pop_first();
        }
    }
    let line = format!("XADD key {options}{} {}", text(id), fields.join(" "));
    assert_eq!(streams.strings(&line), [text(id)]);
}

fn read(streams: &mut PagedValues, model: &Model, random: &mut Rng) {
    let [one, other] = [(); 2].map(|()| model.some_id(random));
    let (start, end) = (one.min(other), one.max(other));
    let count = random.usize(1..9);
    let (low, high) = (text(start), text(end));
    let within: Vec<Id> = model.entries.range(start..=end).map(|(id, _)| *id).collect();
    let first: Vec<Id> = within.iter().take(count).copied().collect();
    let last: Vec<Id> = within.iter().rev().take(count).copied().collect();
    match random.u8(..4) {
        0 => {
            let line = format!("XRANGE key {low} {high} COUNT {count}");
            assert_eq!(streams.strings(&line), model.strings(&first), "{line}");
        }
        1 => {
            let line = format!("XREVRANGE key {high} {low} COUNT {count}");
            assert_eq!(streams.strings(&line), model.strings(&last), "{line}");
        }
        2 => {
            let line = format!("XRANGE key ({low} {high}");
            let inner: Vec<Id> = within.into_iter().filter(|id| *id != start).collect();
            assert_eq!(streams.strings(&line), model.strings(&inner), "{line}");
        }
        _ => {
            let behind = model.entries.keys().filter(|id| **id > start).take(count);
            let mut found = model.strings(behind);
            if !found.is_empty() {
                found.insert(0, "key".to_owned());
            }
            let line = format!("XREAD COUNT {count} STREAMS none key 0 {low}");
            assert_eq!(streams.strings(&line), found, "{line}");
        }
    }
}

fn remove(streams: &mut PagedValues, model: &mut Model, random: &mut Rng) {
    if random.u8(..3) > 0 {
        let ids: BTreeSet<Id> = (0..random.usize(1..5)).map(|_| model.some_id(random)).collect();
        let words: Vec<String> = ids.iter().map(|id| text(*id)).collect();
        let removed = ids.iter().filter(|id| model.entries.remove(id).is_some()).count();
        assert_eq!(streams.number(&format!("XDEL key {}", words.join(" "))), removed as i64);
        return;
    }
    let before = model.entries.len();
    let removed = match random.u8(..3) {
        0 => {
            let length = before.saturating_sub(random.usize(..before / 2 + 2));
            while model.entries.len() > length {
                model.entries.pop_first();
            }
            streams.number(&format!("XTRIM key MAXLEN {length}"))
        }
        1 => {
            let id = model.some_id(random);
            model.entries.retain(|entry, _| *entry >= id);
            streams.number(&format!("XTRIM key MINID {}", text(id)))
        }
        _ => {
            let length = before.saturating_sub(random.usize(..before / 2 + 2));
            let removed = streams.number(&format!("XTRIM key MAXLEN ~ {length}"));
            (0..removed).for_each(|_| drop(model.entries.pop_first()));
            assert!(model.entries.len() >= length, "more was removed than asked for");
            removed
        }
    };
    assert_eq!(removed as usize, before - model.entries.len());
}

fn use_group(streams: &mut PagedValues, model: &mut Model, random: &mut Rng) {
    let name = ["g", "h"][random.usize(..2)].to_owned();
    let consumer = ["one", "two"][random.usize(..2)].to_owned();
    let Some(mut group) = model.groups.remove(&name) else {
        let last = model.some_id(random);
        let line = format!("XGROUP CREATE key {name} {} MKSTREAM", text(last));
        assert_eq!(streams.ask(&line), "+OK\r\n");
        model.groups.insert(name, Group { last, pending: BTreeMap::new() });
        return;
    };
    match random.u8(..12) {
        0 => {
            assert_eq!(streams.number(&format!("XGROUP DESTROY key {name}")), 1);
            return;
        }
        1 => {
            let own = group.pending.iter().filter(|(_, owner)| **owner == consumer).count();
            group.pending.retain(|_, owner| *owner != consumer);
            let line = format!("XGROUP DELCONSUMER key {name} {consumer}");
            assert_eq!(streams.number(&line), own as i64);
        }
        2 => {
            group.last = model.some_id(random);
            let line = format!("XGROUP SETID key {name} {}", text(group.last));
            assert_eq!(streams.ask(&line), "+OK\r\n");
        }
        3..6 => {
            let ids: BTreeSet<Id> =
                (0..random.usize(1..6)).map(|_| model.some_id(random)).collect();
            let words: Vec<String> = ids.iter().map(|id| text(*id)).collect();
            let known = ids.iter().filter(|id| group.pending.remove(id).is_some()).count();
            let line = format!("XACK key {name} {}", words.join(" "));
            assert_eq!(streams.number(&line), known as i64);
        }
        6 => {
            let id = model.some_id(random);
            let is_claimed = group.pending.contains_key(&id) && model.entries.contains_key(&id);
            group.pending.remove(&id);
            if is_claimed {
                group.pending.insert(id, consumer.clone());
            }
            let line = format!("XCLAIM key {name} {consumer} 0 {} JUSTID", text(id));
            let claimed: Vec<String> = is_claimed.then(|| text(id)).into_iter().collect();
            assert_eq!(streams.strings(&line), claimed);
        }
        7 => {
            let own: Vec<Id> = group
                .pending
                .iter()
                .filter(|(_, owner)| **owner == consumer)
                .map(|(id, _)| *id)
                .collect();
            let mut found = vec!["key".to_owned()];
            found.extend(model.strings(&own));
            let line = format!("XREADGROUP GROUP {name} {consumer} STREAMS key 0");
            assert_eq!(streams.strings(&line), found);
        }
        _ => {
            let count = random.usize(1..6);
            let (last, behind) = (group.last, |id: &&Id| **id > group.last);
            let found: Vec<Id> = model.entries.keys().filter(behind).take(count).copied().collect();
            group.last = found.last().copied().unwrap_or(last);
            for id in &found {
                group.pending.insert(*id, consumer.clone());
            }
            let mut strings = model.strings(&found);
            if !strings.is_empty() {
                strings.insert(0, "key".to_owned());
            }
            let line = format!("XREADGROUP GROUP {name} {consumer} COUNT {count} STREAMS key >");
            assert_eq!(streams.strings(&line), strings, "{line}");
        }
    }
    model.groups.insert(name, group);
}

fn follow_the_model(in_transactions: bool, first_seed: u64) {
    for seed in first_seed..first_seed + 6 {
        let mut streams = PagedValues::new(PACKED_BYTES);
        streams.in_transactions = in_transactions;
        let (mut model, mut random) = (Model::default(), Rng::with_seed(seed));
        for step in 0..400 {
            match random.u8(..16) {
                0..2 => remove(&mut streams, &mut model, &mut random),
                2..5 => read(&mut streams, &model, &mut random),
                5..8 => use_group(&mut streams, &mut model, &mut random),
                9 if model.last != (0, 0) => {
                    let dump = streams.dump("key");
                    assert_eq!(streams.restore("other", &dump, &["REPLACE"]), "+OK\r\n");
                    streams.check_stream("other", &model);
                    assert!(streams.restore("other", &dump, &[]).starts_with("-BUSYKEY"));
                    streams.ask("RENAME other key");
                }
                8 if model.last != (0, 0) => {
                    let (command, from) = match random.bool() {
                        true => ("COPY key other REPLACE", "other"),
                        false => ("RENAME key other", "other"),
                    };
                    streams.ask(command);
                    streams.check_stream(from, &model);
                    streams.ask("RENAME other key");
                }
                _ => add(&mut streams, &mut model, &mut random),
            }
            if step % 16 == 0 {
                streams.check_stream("key", &model);
            }
        }
        streams.check_stream("key", &model);
        assert_eq!(streams.ask("TYPE key"), "+stream\r\n");
        assert_eq!(streams.number("DEL key"), 1);
    }
}

#[test]
fn a_restored_stream_replaces_another_value_with_its_pages() {
    let mut streams = PagedValues::new(PACKED_BYTES);
    let (mut model, mut random) = (Model::default(), Rng::with_seed(1));
    (0..80).for_each(|_| add(&mut streams, &mut model, &mut random));
    (0..20).for_each(|_| use_group(&mut streams, &mut model, &mut random));
    let dump = streams.dump("key");
    let pages = streams.pages();
    assert!(pages > 10, "{pages} pages");
    assert_eq!(streams.ask("SADD other a"), ":1\r\n");
    for _ in 0..3 {
        assert_eq!(streams.restore("other", &dump, &["REPLACE"]), "+OK\r\n");
        streams.check_stream("other", &model);
    }
    assert_eq!(streams.restore("other", &dump, &["REPLACE", "ABSTTL"]), "+OK\r\n");
    assert_eq!(streams.dump("other"), dump);
    assert_eq!(streams.ask("XADD empty 1-1 a b"), "$3\r\n1-1\r\n");
    assert_eq!(streams.number("XDEL empty 1-1"), 1);
    let empty = streams.dump("empty");
    assert_eq!(streams.restore("other", &empty, &["REPLACE"]), "+OK\r\n");
    assert_eq!(streams.ask("XADD other 1-1 a b"), streams.ask("XADD empty 1-1 a b"));
    assert_eq!(streams.number("DEL key"), 1);
    streams.sweep(0);
}

#[test]
fn a_stream_of_any_size_does_what_its_commands_say() {
    follow_the_model(false, 1);
}

#[test]
fn a_stream_of_any_size_does_what_the_commands_of_transactions_say() {
    follow_the_model(true, 100);
}
