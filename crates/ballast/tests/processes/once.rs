//! Exactly-once requests at real processes: repeated after their owner was killed, while slots move,
//! after a restart, and while the coordinator is away.

use crate::client::{Answer, Client, until};
use crate::crashes::alone;
use crate::moves::move_for;
use crate::seats::{Plan, Seats};
use crate::servers::{Cluster, MODEST, Process};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Clients of a test under faults, counters per client, and requests in flight per client.
const CLIENTS: usize = 3;
const COUNTERS: usize = 8;
const IN_FLIGHT: usize = 4;

/// Time for one answer, while servers are killed.
const ANSWER_MAX: Duration = Duration::from_secs(2);

/// A client that repeats its requests until they are answered, at whatever server.
pub(crate) struct Repeater {
    addresses: Vec<SocketAddr>,
    connections: BTreeMap<SocketAddr, Client>,
    random: fastrand::Rng,
    lease: String,
    sequence: u64,
    /// Number of answers that a repetition has got for a second time.
    repeated: usize,
}

/// A request with its number.
#[derive(Clone)]
pub(crate) struct Numbered {
    pub(crate) sequence: u64,
    command: Vec<String>,
}

impl Repeater {
    pub(crate) fn new(addresses: &[SocketAddr], seed: u64) -> Repeater {
        let mut repeater = Repeater {
            addresses: addresses.to_vec(),
            connections: BTreeMap::new(),
            random: fastrand::Rng::with_seed(seed),
            lease: String::new(),
            sequence: 0,
            repeated: 0,
        };
        until("a lease is granted", || {
            let address = repeater.some_address();
            let answer = repeater.try_ask(address, &["BALLAST.LEASE".to_owned()]);
            let lease = answer.filter(|answer| !answer.is_error("")).map(|it| it.items());
            lease.is_some_and(|items| {
                repeater.lease = items[0].number().to_string();
                items[1].number() > 10_000
            })
        });
        repeater
    }

    fn some_address(&mut self) -> SocketAddr {
        self.addresses[self.random.usize(..self.addresses.len())]
    }

    pub(crate) fn numbered(&mut self, command: &[&str]) -> Numbered {
        self.sequence += 1;
        let command = command.iter().map(|word| (*word).to_owned()).collect();
        Numbered { sequence: self.sequence, command }
    }

    /// Asks a server once. `None`: the connection is broken, or there is no answer in time.
    fn try_ask(&mut self, address: SocketAddr, words: &[String]) -> Option<Answer> {
        let connected = self.connections.remove(&address);
        let mut client = connected.or_else(|| Client::try_connect(address, ANSWER_MAX))?;
        let is_sent = client.try_request(words);
        let answer = client.answer_within(ANSWER_MAX).filter(|_| is_sent)?;
        self.connections.insert(address, client);
        Some(answer)
    }

    /// Repeats a request until it is answered. The connection may be cut before the answer.
    pub(crate) fn ask(&mut self, request: &Numbered, first_incomplete: u64) -> Answer {
        let numbers = [self.lease.clone(), request.sequence.to_string()];
        let mut words = vec!["BALLAST.ONCE".to_owned()];
        words.extend(numbers);
        words.push(first_incomplete.to_string());
        words.extend(request.command.iter().cloned());
        self.repeat(&words, true)
    }

    /// Repeats a command until it is answered: if it is to be executed `once`, as an exactly-once
    /// request that acknowledges all before it.
    pub(crate) fn change(&mut self, words: &[String], once: bool) -> Answer {
        if !once {
            return self.repeat(words, false);
        }
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let request = self.numbered(&words);
        self.ask(&request, request.sequence)
    }

    /// Repeats a request that may be executed several times until it is answered. If `loses` is set,
    /// some replies are lost.
    pub(crate) fn repeat(&mut self, words: &[String], loses: bool) -> Answer {
        let mut address = self.some_address();
        let mut reply = None;
        until("a request is answered", || {
            if loses && self.random.u8(..16) == 0 {
                // The reply is lost, but not the request.
                if let Some(mut client) = self.connections.remove(&address) {
                    client.try_request(words);
                }
            }
            match self.try_ask(address, words) {
                Some(answer) if answer.redirection().is_some() => {
                    address = answer.redirection().unwrap_or(address);
                    false
                }
                Some(answer) if answer.is_temporary() => false,
                None => {
                    address = self.some_address();
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

    /// Increments counters, some requests at a time in random order, and checks every answer.
    /// Returns the increments by counter.
    fn increment(&mut self, name: &str, stop: &AtomicBool) -> BTreeMap<String, i64> {
        let mut counts = BTreeMap::new();
        while !stop.load(Ordering::Relaxed) {
            let first_incomplete = self.sequence + 1;
            let mut requests = Vec::new();
            for _ in 0..IN_FLIGHT {
                let counter = format!("{name}:{}", self.random.usize(..COUNTERS));
                requests.push(self.numbered(&["INCR", &counter]));
            }
            self.random.shuffle(&mut requests);
            let mut answers = Vec::new();
            for request in &requests {
                let answer = self.ask(request, first_incomplete);
                let count: &mut i64 = counts.entry(request.command[1].clone()).or_default();
                *count += 1;
                assert_eq!(answer.0, resp::Value::Integer(*count), "{request:?}");
                answers.push(answer);
            }
            for (request, answer) in requests.iter().zip(answers) {
                if self.random.bool() {
                    assert_eq!(self.ask(request, first_incomplete), answer, "{request:?} again");
                    self.repeated += 1;
                }
            }
        }
        counts
    }
}

impl std::fmt::Debug for Numbered {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "request {}: {}", self.sequence, self.command.join(" "))
    }
}

/// Lets clients increment counters while `meanwhile` runs, and checks all counters.
fn count_while(addresses: &[SocketAddr], seed: u64, meanwhile: impl FnOnce()) {
    let stop = AtomicBool::new(false);
    let counted = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|number| {
                let stop = &stop;
                scope.spawn(move || {
                    let mut client = Repeater::new(addresses, seed + number as u64);
                    let counts = client.increment(&format!("counter {number}"), stop);
                    (client, counts)
                })
            })
            .collect();
        let _stop = StopCounting(&stop);
        meanwhile();
        drop(_stop);
        let join = |client: std::thread::ScopedJoinHandle<'_, _>| {
            client.join().expect("no reply was wrong")
        };
        clients.into_iter().map(join).collect::<Vec<(Repeater, BTreeMap<String, i64>)>>()
    });
    for (mut client, counts) in counted {
        println!("{} requests, {} repeated", client.sequence, client.repeated);
        assert!(client.repeated > 0 && !counts.is_empty());
        for (counter, count) in counts {
            let request = client.numbered(&["INCRBY", &counter, "0"]);
            let answer = client.ask(&request, request.sequence);
            assert_eq!(answer.number(), count, "{counter}");
        }
    }
}

/// Stops the clients also if the test fails meanwhile.
struct StopCounting<'s>(&'s AtomicBool);

impl Drop for StopCounting<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn increments_are_exact_while_slots_move() {
    let cluster = Cluster::start(3, &MODEST);
    count_while(&cluster.addresses(), 1, || {
        move_for(&cluster, 1, Duration::from_secs(5));
    });
}

#[test]
fn increments_are_exact_while_owners_are_killed() {
    let _alone = alone();
    let plan = Plan { servers: 3, replicas: 2, durability: "memory", network: None };
    let mut seats = Seats::start(plan, |_| ());
    seats.spread();
    count_while(&seats.addresses(), 7, || {
        seats.kill_in_turn();
    });
}

#[test]
fn a_restarted_server_knows_what_it_has_executed() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder for a test");
    let start = || Process::kept(folder.path(), &MODEST);
    let server = start();
    let mut client = server.client();
    let lease = client.ask(&["BALLAST.LEASE"]).items()[0].number().to_string();
    let request = |sequence: i32| {
        let sequence = sequence.to_string();
        ["BALLAST.ONCE", &lease, &sequence, "1", "INCR", "counter"].map(str::to_owned)
    };
    for sequence in 1..=9 {
        assert_eq!(client.ask(&request(sequence)).number(), i64::from(sequence));
    }
    server.kill();
    let server = start();
    let mut client = server.client();
    until("the log is loaded", || !client.ask(&["DBSIZE"]).is_error("LOADING"));
    for sequence in (1..=9).rev() {
        assert_eq!(client.ask(&request(sequence)).number(), i64::from(sequence));
    }
    assert_eq!(client.ask(&request(10)).number(), 10);
    assert_eq!(client.ask(&["FLUSHALL"]).text(), "OK");
    assert_eq!(client.ask(&request(10)).number(), 10, "a flush does not execute it again");
    assert_eq!(client.ask(&["EXISTS", "counter"]).number(), 0);
    let renewed = client.ask(&["BALLAST.LEASE", "RENEW", &lease]);
    assert_eq!(renewed.items()[0].number().to_string(), lease);
    let another = client.ask(&["BALLAST.LEASE"]).items()[0].number();
    assert!(another.to_string() != lease);
}

#[test]
fn a_coordinator_that_is_killed_ends_no_lease() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder for a test");
    let coordinator = Process::coordinator_in(folder.path(), 0, &[]);
    let port = coordinator.address.port();
    let server = Process::joined(&coordinator, &MODEST);
    let mut client = server.client();
    until("all slots are served", || {
        client.ask(&["CLUSTER", "INFO"]).text().contains("cluster_state:ok")
    });
    let lease = client.ask(&["BALLAST.LEASE"]).items()[0].number();
    let lease_words = lease.to_string();
    let request = ["BALLAST.ONCE", &lease_words, "1", "1", "INCR", "counter"];
    assert_eq!(client.ask(&request).number(), 1);
    coordinator.kill();
    until("the server notices", || {
        client.ask(&["BALLAST.LEASE", "RENEW", &lease_words]).is_error("ERR ")
    });
    assert_eq!(client.ask(&request).number(), 1);
    let _coordinator = Process::coordinator_in(folder.path(), port, &[]);
    until("the lease is renewed", || {
        let answer = client.ask(&["BALLAST.LEASE", "RENEW", &lease_words]);
        !answer.is_error("ERR ") && answer.items()[0].number() == lease
    });
    assert_eq!(client.ask(&request).number(), 1);
    let next = client.ask(&["BALLAST.LEASE"]).items()[0].number();
    assert!(next >> 32 > lease >> 32, "{next} is of a later coordinator than {lease}");
    assert_eq!(client.ask(&["GET", "counter"]).text(), "1");
}
