//! Hashes that are divided into pages, at real processes: changed while they move and while servers
//! are killed, and read after a restart.

use crate::client::{Answer, Client, until};
use crate::crashes::alone;
use crate::moves::move_for;
use crate::seats::{Plan, Seats};
use crate::servers::{Cluster, MODEST, Process};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Fields of a hash: about 4,000 pages.
const FIELDS: usize = 30_000;

/// Fields that one command sets when the hash is filled.
const FIELDS_AT_ONCE: usize = 100;

const ANSWER_MAX: Duration = Duration::from_secs(6);

type Fields = BTreeMap<String, String>;

/// A client with one hash. It repeats a request until a server has answered it.
struct HashClient {
    addresses: Vec<SocketAddr>,
    at: SocketAddr,
    connection: Option<Client>,
    random: fastrand::Rng,
    key: String,
    fields: Fields,
}

impl HashClient {
    fn new(addresses: &[SocketAddr], seed: u64) -> HashClient {
        let at = addresses[0];
        let (addresses, key) = (addresses.to_vec(), format!("hash:{seed}"));
        let random = fastrand::Rng::with_seed(seed);
        HashClient { addresses, at, connection: None, random, key, fields: Fields::new() }
    }

    /// Sends a request that may be executed several times.
    fn ask(&mut self, words: &[&str]) -> Answer {
        let mut reply = None;
        until("a request is answered", || {
            let connected = self.connection.take();
            let connected = connected.or_else(|| Client::try_connect(self.at, ANSWER_MAX));
            let answer = connected.and_then(|mut client| {
                let is_sent = client.try_request(words);
                let answer = client.answer_within(ANSWER_MAX).filter(|_| is_sent)?;
                self.connection = Some(client);
                Some(answer)
            });
            match answer {
                Some(answer) if answer.redirection().is_some() => {
                    (self.at, self.connection) = (answer.redirection().unwrap_or(self.at), None);
                    false
                }
                Some(answer) if answer.is_temporary() => false,
                None => {
                    self.at = self.addresses[self.random.usize(..self.addresses.len())];
                    false
                }
                answer => {
                    reply = answer;
                    true
                }
            }
        });
        reply.expect("the request is answered")
    }

    fn fill(&mut self) {
        let key = self.key.clone();
        let names: Vec<String> = (0..FIELDS).map(|number| format!("field:{number}")).collect();
        for some in names.chunks(FIELDS_AT_ONCE) {
            let mut words = vec!["HSET", &key];
            some.iter().for_each(|name| words.extend([&name[..], "value"]));
            self.ask(&words);
            self.fields.extend(some.iter().map(|name| (name.clone(), "value".to_owned())));
        }
        self.check_count();
    }

    fn check_count(&mut self) {
        let key = self.key.clone();
        assert_eq!(self.ask(&["HLEN", &key]).number(), self.fields.len() as i64);
    }

    /// Changes and reads one field. `may_repeat`: a change may have been executed before.
    fn step(&mut self, may_repeat: bool) {
        let key = self.key.clone();
        let name = format!("field:{}", self.random.usize(..FIELDS + FIELDS / 8));
        let before = self.fields.get(&name).cloned();
        match self.random.u8(..4) {
            0 => {
                let value = "x".repeat(self.random.usize(1..200));
                let is_new = self.ask(&["HSET", &key, &name, &value]).number();
                assert!(may_repeat || is_new == i64::from(before.is_none()), "{name}");
                self.fields.insert(name, value);
            }
            1 => {
                let removed = self.ask(&["HDEL", &key, &name]).number();
                assert!(may_repeat || removed == i64::from(before.is_some()), "{name}");
                self.fields.remove(&name);
            }
            _ => {
                let answer = self.ask(&["HMGET", &key, &name]).items();
                let found = (answer[0].0 != resp::Value::Null).then(|| answer[0].text());
                assert_eq!(found, before, "{name}");
            }
        }
    }

    fn check(&mut self) {
        self.check_count();
        let key = self.key.clone();
        let all: Vec<String> =
            self.ask(&["HGETALL", &key]).items().iter().map(Answer::text).collect();
        let (pairs, _) = all.as_chunks::<2>();
        let read: Fields = pairs.iter().cloned().map(|[name, value]| (name, value)).collect();
        assert!(read == self.fields, "the hash has other fields than were written");
        self.check_count();
    }
}

/// Lets clients change their hashes while `meanwhile` runs, and checks all fields.
fn change_while(addresses: &[SocketAddr], may_repeat: bool, meanwhile: impl FnOnce()) {
    let mut clients: Vec<HashClient> =
        (1..=2).map(|seed| HashClient::new(addresses, seed)).collect();
    clients.iter_mut().for_each(HashClient::fill);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let changing: Vec<_> = clients
            .iter_mut()
            .map(|client| {
                let stop = &stop;
                scope.spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        client.step(may_repeat);
                    }
                    client.check();
                })
            })
            .collect();
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(meanwhile));
        stop.store(true, Ordering::Relaxed);
        changing.into_iter().for_each(|client| client.join().expect("no reply was wrong"));
        ended.expect("nothing else fails");
    });
}

#[test]
fn large_hashes_are_changed_while_they_move() {
    let cluster = Cluster::start(3, &MODEST);
    change_while(&cluster.addresses(), false, || {
        move_for(&cluster, 1, Duration::from_secs(5));
    });
}

#[test]
fn large_hashes_survive_the_death_of_their_owners() {
    let _alone = alone();
    let plan = Plan { servers: 3, replicas: 2, durability: "memory", network: None };
    let mut seats = Seats::start(plan, |_| ());
    seats.spread();
    change_while(&seats.addresses(), true, || {
        seats.kill_in_turn();
    });
}

#[test]
fn a_restarted_server_has_its_large_hashes_and_forgets_deleted_ones() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder for a test");
    let start = || Process::kept(folder.path(), &MODEST);
    let server = start();
    let mut one = HashClient::new(&[server.address], 1);
    let mut other = HashClient::new(&[server.address], 2);
    one.fill();
    other.fill();
    (0..2_000).for_each(|_| one.step(false));
    let key = other.key.clone();
    assert_eq!(other.ask(&["DEL", &key]).number(), 1);
    other.fields.clear();
    server.kill();
    let server = start();
    let mut client = server.client();
    until("the log is loaded", || !client.ask(&["DBSIZE"]).is_error("LOADING"));
    for hash in [&mut one, &mut other] {
        (hash.addresses, hash.at, hash.connection) = (vec![server.address], server.address, None);
        hash.check();
    }
    let live = |client: &mut Client| {
        let info = client.ask(&["INFO", "memory"]).text();
        let line = info.lines().find_map(|line| line.strip_prefix("used_memory_dataset:"));
        line.expect("INFO has it").trim().parse::<u64>().expect("a number")
    };
    let before = live(&mut client);
    until("the pages of the deleted hash are removed", || live(&mut client) < before * 2 / 3);
    one.check();
}
