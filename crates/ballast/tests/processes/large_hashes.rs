//! Hashes that are divided into pages, at real processes: changed while they move and while servers
//! are killed, and read after a restart.

use crate::client::Answer;
use crate::once::Repeater;
use crate::paged_clients::{
    PagedClient, RestartedServer, change_while_moving, change_while_owners_die,
};
use std::collections::BTreeMap;
use std::net::SocketAddr;

/// Fields of a hash: about 4,000 pages.
const FIELDS: usize = 30_000;

/// Fields that one command sets when the hash is filled.
const FIELDS_AT_ONCE: usize = 100;

/// Expiry of fields that expire: not during the test.
const EXPIRY: i64 = 33_177_117_420_123;

type Fields = BTreeMap<String, Field>;

/// A field of the model.
#[derive(Clone, Debug, PartialEq)]
struct Field {
    value: String,
    expires: bool,
}

impl Field {
    fn lasting(value: impl Into<String>) -> Field {
        Field { value: value.into(), expires: false }
    }
}

/// A client with one hash.
struct HashClient {
    repeater: Repeater,
    random: fastrand::Rng,
    /// Set if a change may have been executed before, at a server that was killed.
    may_repeat: bool,
    key: String,
    fields: Fields,
}

impl HashClient {
    fn new(addresses: &[SocketAddr], seed: u64, may_repeat: bool) -> HashClient {
        HashClient {
            repeater: Repeater::new(addresses, seed),
            random: fastrand::Rng::with_seed(seed),
            may_repeat,
            key: format!("hash:{seed}"),
            fields: Fields::new(),
        }
    }

    /// Sends a request that may be executed several times.
    fn ask(&mut self, words: &[&str]) -> Answer {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        self.repeater.repeat(&words, false)
    }

    fn check_count(&mut self) {
        let key = self.key.clone();
        assert_eq!(self.ask(&["HLEN", &key]).number(), self.fields.len() as i64);
    }
}

impl PagedClient for HashClient {
    fn fill(&mut self) {
        let key = self.key.clone();
        let names: Vec<String> = (0..FIELDS).map(|number| format!("field:{number}")).collect();
        for some in names.chunks(FIELDS_AT_ONCE) {
            let mut words = vec!["HSET", &key];
            some.iter().for_each(|name| words.extend([&name[..], "value"]));
            self.ask(&words);
            let new = some.iter().map(|name| (name.clone(), Field::lasting("value")));
            self.fields.extend(new);
        }
        self.check_count();
    }

    fn step(&mut self) {
        let may_repeat = self.may_repeat;
        let key = self.key.clone();
        let name = format!("field:{}", self.random.usize(..FIELDS + FIELDS / 8));
        let before = self.fields.get(&name).cloned();
        match self.random.u8(..5) {
            0 => {
                let value = "x".repeat(self.random.usize(1..200));
                let is_new = self.ask(&["HSET", &key, &name, &value]).number();
                assert!(may_repeat || is_new == i64::from(before.is_none()), "{name}");
                self.fields.insert(name, Field::lasting(value));
            }
            4 => {
                let expiry = EXPIRY.to_string();
                let done = self.ask(&["HPEXPIREAT", &key, &expiry, "FIELDS", "1", &name]).items();
                let code = if before.is_some() { 1 } else { -2 };
                assert_eq!(done[0].number(), code, "{name}");
                self.fields.entry(name).and_modify(|field| field.expires = true);
            }
            1 => {
                let removed = self.ask(&["HDEL", &key, &name]).number();
                assert!(may_repeat || removed == i64::from(before.is_some()), "{name}");
                self.fields.remove(&name);
            }
            _ => {
                let answer = self.ask(&["HMGET", &key, &name]).items();
                let found = (answer[0].0 != resp::Value::Null).then(|| answer[0].text());
                assert_eq!(found, before.map(|field| field.value), "{name}");
            }
        }
    }

    fn check(&mut self) {
        self.check_count();
        let key = self.key.clone();
        let all: Vec<String> =
            self.ask(&["HGETALL", &key]).items().iter().map(Answer::text).collect();
        let (pairs, _) = all.as_chunks::<2>();
        let mut read: Fields =
            pairs.iter().cloned().map(|[name, value]| (name, Field::lasting(value))).collect();
        let names: Vec<String> = read.keys().cloned().collect();
        for some in names.chunks(FIELDS_AT_ONCE) {
            let count = some.len().to_string();
            let mut words = vec!["HPEXPIRETIME", &key, "FIELDS", &count];
            words.extend(some.iter().map(String::as_str));
            for (name, expiry) in some.iter().zip(self.ask(&words).items()) {
                let expiry = expiry.number();
                assert!([-1, EXPIRY].contains(&expiry), "{name}: {expiry}");
                read.entry(name.clone()).and_modify(|field| field.expires = expiry == EXPIRY);
            }
        }
        assert!(read == self.fields, "the hash has other fields than were written");
        self.check_count();
    }

    fn repeater(&mut self) -> &mut Repeater {
        &mut self.repeater
    }
}

/// Returns two clients.
fn clients(addresses: &[SocketAddr], may_repeat: bool) -> Vec<HashClient> {
    (1..=2).map(|seed| HashClient::new(addresses, seed, may_repeat)).collect()
}

#[test]
fn large_hashes_are_changed_while_they_move() {
    change_while_moving(|addresses| clients(addresses, false));
}

#[test]
fn large_hashes_survive_the_death_of_their_owners() {
    change_while_owners_die(|addresses| clients(addresses, true));
}

#[test]
fn a_restarted_server_has_its_large_hashes_and_forgets_deleted_ones() {
    let new = |addresses: &[SocketAddr], seed| HashClient::new(addresses, seed, false);
    let mut server = RestartedServer::after(new, |other| {
        let key = other.key.clone();
        assert_eq!(other.ask(&["DEL", &key]).number(), 1);
        other.fields.clear();
    });
    server.wait_for_sweep();
    server.one.check();
}
