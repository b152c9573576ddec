//! Streams that are divided into pages, with a consumer group, at real processes: changed while they
//! move and while servers are killed, and read after a restart.

use crate::client::{Answer, until};
use crate::once::Repeater;
use crate::paged_clients::{
    PagedClient, RestartedServer, change_while_moving, change_while_owners_die, dataset_bytes,
};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

/// Entries of a stream when the test begins: about 150 pages.
const ENTRIES: usize = 8_000;

/// A client with one stream and one consumer group.
struct StreamClient {
    repeater: Repeater,
    random: fastrand::Rng,
    /// Set if changes are exactly-once requests, which are repeated.
    once: bool,
    key: String,
    /// Values of the entries by their milliseconds.
    entries: BTreeMap<u64, String>,
    /// Milliseconds of the newest entry so far.
    newest: u64,
    /// Milliseconds of the entry that the group has delivered last.
    delivered: u64,
    pending: BTreeSet<u64>,
}

fn id(ms: u64) -> String {
    format!("{ms}-0")
}

/// Returns milliseconds and values of a reply with entries.
fn entries_of(reply: &Answer) -> Vec<(u64, String)> {
    let entry = |entry: &Answer| {
        let parts = entry.items();
        let ms = parts[0].text().split('-').next().and_then(|ms| ms.parse().ok());
        (ms.expect("an id"), parts[1].items()[1].text())
    };
    reply.items().iter().map(entry).collect()
}

impl StreamClient {
    fn new(addresses: &[SocketAddr], seed: u64, once: bool) -> StreamClient {
        StreamClient {
            repeater: Repeater::new(addresses, seed),
            random: fastrand::Rng::with_seed(seed),
            once,
            key: format!("stream:{seed}"),
            entries: BTreeMap::new(),
            newest: 0,
            delivered: 0,
            pending: BTreeSet::new(),
        }
    }

    /// Returns a request; `key` stands for the key.
    fn words(&self, line: &str) -> Vec<String> {
        let word = |word: &str| if word == "key" { self.key.clone() } else { word.to_owned() };
        line.split(' ').map(word).collect()
    }

    fn read(&mut self, line: &str) -> Answer {
        let words = self.words(line);
        self.repeater.repeat(&words, false)
    }

    fn change(&mut self, line: &str) -> Answer {
        let words = self.words(line);
        self.repeater.change(&words, self.once)
    }

    fn add(&mut self, options: &str) {
        self.newest += self.random.u64(1..4);
        let value = format!("value:{}{}", self.newest, "x".repeat(self.random.usize(..30)));
        let line = format!("XADD key {options}{} name {value}", id(self.newest));
        assert_eq!(self.change(&line).text(), id(self.newest));
        self.entries.insert(self.newest, value);
    }

    fn some_id(&mut self) -> u64 {
        let first = self.entries.first_key_value().map_or(0, |(ms, _)| *ms);
        self.random.u64(first..=self.newest)
    }

    fn change_entries(&mut self) {
        match self.random.u8(..8) {
            0 => {
                let wanted: BTreeSet<u64> = (0..3).map(|_| self.some_id()).collect();
                let ids: Vec<String> = wanted.iter().map(|ms| id(*ms)).collect();
                let removed = wanted.iter().filter(|ms| self.entries.remove(ms).is_some()).count();
                let reply = self.change(&format!("XDEL key {}", ids.join(" "))).number();
                assert_eq!(reply, removed as i64);
            }
            1 => {
                let length = self.entries.len() - self.random.usize(..5);
                self.add(&format!("MAXLEN {length} "));
                while self.entries.len() > length {
                    self.entries.pop_first();
                }
            }
            2 if self.random.u8(..16) == 0 => {
                let first = self.some_id().min(self.newest - self.newest / 3);
                let before = self.entries.len();
                self.entries.retain(|ms, _| *ms >= first);
                let removed = self.change(&format!("XTRIM key MINID {}", id(first))).number();
                assert_eq!(removed as usize, before - self.entries.len());
            }
            _ => self.add(""),
        }
    }

    fn use_group(&mut self) {
        if self.random.bool() || self.pending.len() > 200 {
            let acknowledged: Vec<u64> = self.pending.iter().take(5).copied().collect();
            if acknowledged.is_empty() {
                return;
            }
            self.pending.retain(|ms| !acknowledged.contains(ms));
            let ids: Vec<String> = acknowledged.iter().map(|ms| id(*ms)).collect();
            let reply = self.change(&format!("XACK key group {}", ids.join(" "))).number();
            assert_eq!(reply, ids.len() as i64);
            return;
        }
        if self.once {
            // A read may deliver entries whose reply is lost, and cannot be repeated.
            let claimed = self.some_id();
            let line = format!("XCLAIM key group one 0 {} FORCE JUSTID", id(claimed));
            let reply = self.change(&line).items();
            self.pending.remove(&claimed);
            if self.entries.contains_key(&claimed) {
                self.pending.insert(claimed);
            }
            assert_eq!(reply.len(), usize::from(self.entries.contains_key(&claimed)));
            return;
        }
        let reply = self.change("XREADGROUP GROUP group one COUNT 5 STREAMS key >");
        let expected = self.entries.range(self.delivered + 1..).take(5);
        let expected: Vec<(u64, String)> =
            expected.map(|(ms, value)| (*ms, value.clone())).collect();
        match expected.last() {
            None => assert_eq!(reply.0, resp::Value::Null),
            Some((last, _)) => {
                self.delivered = *last;
                self.pending.extend(expected.iter().map(|(ms, _)| *ms));
                assert_eq!(entries_of(&reply.items()[0].items()[1]), expected);
            }
        }
    }

    fn read_range(&mut self) {
        let start = self.some_id();
        let expected = self.entries.range(start..).take(10);
        let expected: Vec<(u64, String)> =
            expected.map(|(ms, value)| (*ms, value.clone())).collect();
        let found = self.read(&format!("XRANGE key {} + COUNT 10", id(start)));
        assert_eq!(entries_of(&found), expected);
        let expected = self.entries.range(..=start).rev().take(10);
        let expected: Vec<(u64, String)> =
            expected.map(|(ms, value)| (*ms, value.clone())).collect();
        let found = self.read(&format!("XREVRANGE key {} - COUNT 10", id(start)));
        assert_eq!(entries_of(&found), expected);
    }
}

impl PagedClient for StreamClient {
    fn fill(&mut self) {
        if self.newest == 0 {
            let created = self.change("XGROUP CREATE key group 0 MKSTREAM");
            assert_eq!(created.text(), "OK");
        }
        while self.entries.len() < ENTRIES {
            self.add("");
        }
    }

    fn step(&mut self) {
        match self.random.u8(..4) {
            0 => self.change_entries(),
            1 => self.use_group(),
            _ => self.read_range(),
        }
        while self.entries.len() < ENTRIES / 4 {
            self.add("");
        }
    }

    fn check(&mut self) {
        assert_eq!(self.read("XLEN key").number(), self.entries.len() as i64);
        let found = entries_of(&self.read("XRANGE key - +"));
        let expected = self.entries.iter().map(|(ms, value)| (*ms, value.clone()));
        assert!(found.into_iter().eq(expected), "the stream has other entries than were written");
        let pending = self.read("XPENDING key group - + 100000");
        let ids: Vec<String> =
            pending.items().iter().map(|entry| entry.items()[0].text()).collect();
        let expected: Vec<String> = self.pending.iter().map(|ms| id(*ms)).collect();
        assert_eq!(ids, expected, "other entries are pending");
    }

    fn repeater(&mut self) -> &mut Repeater {
        &mut self.repeater
    }
}

/// Returns two clients.
fn clients(addresses: &[SocketAddr], once: bool) -> Vec<StreamClient> {
    (1..=2).map(|seed| StreamClient::new(addresses, seed, once)).collect()
}

#[test]
fn long_streams_are_changed_while_they_move() {
    change_while_moving(|addresses| clients(addresses, false));
}

#[test]
fn long_streams_survive_the_death_of_their_owners() {
    change_while_owners_die(|addresses| clients(addresses, true));
}

#[test]
fn a_restarted_server_has_its_long_streams_and_forgets_removed_entries() {
    let new = |addresses: &[SocketAddr], seed| StreamClient::new(addresses, seed, false);
    let server = RestartedServer::after(new, |other| {
        let removed = other.change("XTRIM key MAXLEN 100").number();
        assert_eq!(removed as usize, ENTRIES - 100);
        while other.entries.len() > 100 {
            other.entries.pop_first();
        }
    });
    let RestartedServer { mut client, mut one, mut other, .. } = server;
    let whole = dataset_bytes(&mut client);
    assert_eq!(one.change("DEL key").number(), 1);
    (one.entries, one.pending) = (BTreeMap::new(), BTreeSet::new());
    until("the pages of the removed stream are removed", || dataset_bytes(&mut client) < whole / 3);
    other.fill();
    other.check();
}
