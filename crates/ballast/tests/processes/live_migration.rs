//! The promise of the whole project, on real processes: ranges move back and forth, and clients
//! see nothing but redirects.
//!
//! What clients did and were told is recorded and judged by the simulator's checker: per register
//! (a key, or two keys of a slot that are only written together) there must be an order in which
//! everything can have happened. A write that is lost makes the reads behind it inexplicable; the
//! last reads are of every register.

use crate::client::{Answer, Client, until};
use crate::moves::{Ended, Mover, keys, records};
use crate::servers::Cluster;
use bench::clock;
use bench::routes::{Node, Redirect, Routes, parse_redirect};
use resp::Value;
use sim::history::{self, Action, Operation, Outcome, Place, Verdict};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use types::slot_of;

/// What clients work on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Register {
    Text(u32),
    Counter(u32),
    Pair(u32),
}

/// How many registers of a kind there are. The first few are hot.
const TEXTS: u32 = 20_000;
const COUNTERS: u32 = 2_000;
const PAIRS: u32 = 2_000;
const HOT_TEXTS: u32 = 6;
const HOT_COUNTERS: u32 = 4;
const HOT_PAIRS: u32 = 2;

const CLIENTS: usize = 6;
const CLIENTS_MAX: u64 = 64;
/// Requests that a client sends at once, on as many registers.
const BATCH_MAX: usize = 12;
/// How often one request may be sent elsewhere: redis-py's limit.
const REDIRECTS_MAX: usize = 16;

const MEMORY_BYTES: u64 = 256 << 20;
/// Code, stacks, buffers of connections and of pulls.
const MEMORY_BESIDE_BYTES: u64 = 128 << 20;

/// How long the load lasts: 20 s, or what the environment says.
fn duration() -> Duration {
    let seconds = std::env::var("BALLAST_TEST_SECONDS").ok().map(|text| text.parse());
    Duration::from_secs(seconds.map_or(20, |number| number.expect("a number of seconds")))
}

/// What is moved when, and what clients do: always the same, or as the environment says.
fn seed() -> u64 {
    let seed = std::env::var("BALLAST_TEST_SEED").ok().map(|text| text.parse());
    seed.map_or(1, |number| number.expect("a seed is a number"))
}

#[test]
fn clients_see_nothing_but_redirects_while_ranges_move_back_and_forth() {
    let seed = seed();
    println!("BALLAST_TEST_SEED={seed}");
    let memory = MEMORY_BYTES.to_string();
    let arguments = |reactors| ["--memory", &memory, "--shared-cores", "--reactors", reactors];
    let cluster = Cluster::of(&[&arguments("1"), &arguments("2"), &arguments("3")]);
    let addresses = cluster.addresses();
    let moments = AtomicU64::new(0);
    let (stop_moves, stop) = (AtomicBool::new(false), AtomicBool::new(false));
    let (ended, seen) = std::thread::scope(|scope| {
        let moves = scope.spawn(|| Mover::new(&cluster, seed).keep_moving(&stop_moves));
        let clients: Vec<_> = (0..CLIENTS)
            .map(|number| {
                let mut worker = Worker::new((number, seed), &addresses, &moments);
                let stop = &stop;
                scope.spawn(move || {
                    while !stop.load(Ordering::Relaxed) && worker.refusals.is_empty() {
                        worker.some_operations();
                    }
                    worker
                })
            })
            .collect();
        watch_memory(&cluster);
        stop_moves.store(true, Ordering::Relaxed);
        let ended = moves.join();
        stop.store(true, Ordering::Relaxed);
        let seen: Vec<_> = clients.into_iter().map(|client| client.join()).collect();
        (ended.expect("moves go on"), seen)
    });
    let mut workers: Vec<Worker> =
        seen.into_iter().map(|worker| worker.expect("a client goes on")).collect();
    workers.push(Worker::new((CLIENTS, seed), &addresses, &moments));
    let found = workers[CLIENTS].read_everything();
    assert_moved(&ended);
    let refusals: Vec<&String> = workers.iter().flat_map(|worker| &worker.refusals).collect();
    assert!(refusals.is_empty(), "clients were told: {refusals:?}");
    let operations = judge(&workers);
    assert_each_key_once(&addresses, &found);
    let redirects: u64 = workers.iter().map(|worker| worker.redirects).sum();
    println!("{operations} operations, {redirects} redirects; migrations: {ended:?}");
}

fn watch_memory(cluster: &Cluster) {
    let end = clock::now() + duration();
    while clock::now() < end {
        clock::sleep(Duration::from_millis(100));
        for server in &cluster.servers {
            let resident = server.resident_bytes();
            let most = MEMORY_BYTES + MEMORY_BESIDE_BYTES;
            assert!(resident < most, "{} holds {resident} bytes", server.address);
        }
    }
}

fn assert_moved(ended: &Ended) {
    assert!(ended.failed.is_empty(), "migrations failed: {:?}", ended.failed);
    assert!(ended.succeeded >= 10, "hardly anything has moved: {ended:?}");
    let refused = ended.given_up + ended.refused.len();
    assert!(ended.succeeded > 20 * refused, "moves are given up too often: {ended:?}");
}

/// Checks the history of every register; returns how many operations there were.
fn judge(workers: &[Worker]) -> usize {
    let mut histories: BTreeMap<Register, Vec<Operation>> = BTreeMap::new();
    for (register, operation) in workers.iter().flat_map(|worker| &worker.history) {
        histories.entry(*register).or_default().push(*operation);
    }
    for (register, history) in &histories {
        match history::check(history, &[]) {
            Verdict::Linearizable => {}
            Verdict::Violated(text) => panic!("{register:?} cannot have behaved so: {text}"),
            Verdict::GaveUp => panic!("{register:?} has too many possible histories"),
        }
    }
    histories.values().map(Vec::len).sum()
}

/// Every key that was found by reading stands on exactly one server, and no other key on any.
fn assert_each_key_once(addresses: &[SocketAddr], found: &BTreeSet<String>) {
    until("servers forget what has moved", || records(addresses) == found.len() as i64);
    let mut held: Vec<String> = addresses.iter().flat_map(|&address| keys(address)).collect();
    held.sort();
    assert!(held.iter().eq(found), "a key stands on no server, or on two, or was never there");
}

impl Register {
    fn random(random: &mut fastrand::Rng) -> Register {
        let (texts, counters, pairs) = match random.bool() {
            true => (HOT_TEXTS, HOT_COUNTERS, HOT_PAIRS),
            false => (TEXTS, COUNTERS, PAIRS),
        };
        match random.u32(..texts + counters + pairs) {
            number if number < texts => Register::Text(number),
            number if number < texts + counters => Register::Counter(number - texts),
            number => Register::Pair(number - texts - counters),
        }
    }

    fn all() -> impl Iterator<Item = Register> {
        let texts = (0..TEXTS).map(Register::Text);
        let counters = (0..COUNTERS).map(Register::Counter);
        texts.chain(counters).chain((0..PAIRS).map(Register::Pair))
    }

    fn keys(self) -> Vec<String> {
        match self {
            Register::Text(number) => vec![format!("text:{number}")],
            Register::Counter(number) => vec![format!("counter:{number}")],
            Register::Pair(number) => {
                vec![format!("{{pair:{number}}}:left"), format!("{{pair:{number}}}:right")]
            }
        }
    }

    /// Something to do with it. `new` is a value that was never used, `known` one that it may have.
    fn action(self, random: &mut fastrand::Rng, new: u64, known: u64) -> Action {
        match (self, random.u8(..100)) {
            (_, 0..45) => Action::Read,
            (_, 45..55) => Action::Delete,
            (Register::Counter(_), _) => Action::Increment,
            (Register::Text(_), 55..62) => Action::WriteIfAbsent(new),
            (Register::Text(_), 62..70) => Action::Swap(known, new),
            (Register::Text(_) | Register::Pair(_), _) => Action::Write(new),
        }
    }

    fn request(self, action: Action) -> Vec<Vec<u8>> {
        let keys: Vec<Vec<u8>> = self.keys().into_iter().map(String::into_bytes).collect();
        let words = |words: &[&[u8]]| words.iter().map(|word| word.to_vec()).collect();
        let key = &keys[0];
        match (self, action) {
            (Register::Text(_) | Register::Counter(_), Action::Read) => words(&[b"GET", key]),
            (Register::Pair(_), Action::Read) => words(&[b"MGET", key, &keys[1]]),
            (Register::Text(_) | Register::Counter(_), Action::Delete) => words(&[b"DEL", key]),
            (Register::Pair(_), Action::Delete) => words(&[b"DEL", key, &keys[1]]),
            (_, Action::Increment) => words(&[b"INCR", key]),
            (_, Action::WriteIfAbsent(new)) => words(&[b"SET", key, &value(new), b"NX"]),
            (_, Action::Swap(old, new)) => words(&[b"SET", key, &value(new), b"IFEQ", &value(old)]),
            (Register::Pair(_), Action::Write(new)) => {
                words(&[b"MSET", key, &value(new), &keys[1], &value(new)])
            }
            (_, Action::Write(new)) if new % 4 == 0 => {
                words(&[b"SET", key, &value(new), b"EX", b"10000"])
            }
            (_, Action::Write(new)) => words(&[b"SET", key, &value(new)]),
            (
                _,
                Action::Probe
                | Action::Exchange(_)
                | Action::Take
                | Action::Flush
                | Action::WriteExpiring(_),
            ) => {
                unreachable!("the simulator's alone")
            }
        }
    }

    /// What a reply says about the action; an error is given back.
    fn outcome(self, action: Action, reply: &Value) -> Result<Outcome, String> {
        let pair = matches!(self, Register::Pair(_));
        match (action, reply) {
            (Action::Read, Value::Array(both)) if both[0] == both[1] => {
                self.outcome(action, &both[0])
            }
            (Action::Read, Value::Null) => Ok(Outcome::Value(None)),
            (Action::Read, Value::Bulk(text)) => Ok(Outcome::Value(Some(number_of(text)?))),
            (Action::Write(_), Value::Simple(_)) => Ok(Outcome::Done),
            (Action::WriteIfAbsent(_) | Action::Swap(..), Value::Simple(_)) => {
                Ok(Outcome::Applied(true))
            }
            (Action::WriteIfAbsent(_) | Action::Swap(..), Value::Null) => {
                Ok(Outcome::Applied(false))
            }
            (Action::Increment, Value::Integer(number)) => Ok(Outcome::Number(*number as u64)),
            (Action::Delete, Value::Integer(0)) => Ok(Outcome::Applied(false)),
            (Action::Delete, Value::Integer(1)) if !pair => Ok(Outcome::Applied(true)),
            (Action::Delete, Value::Integer(2)) if pair => Ok(Outcome::Applied(true)),
            (_, Value::Error(text)) => Err(String::from_utf8_lossy(text).into_owned()),
            (_, other) => Err(format!("{self:?} {action:?} was answered {other:?}")),
        }
    }
}

/// Long enough now and then for segments to fill.
fn value(number: u64) -> Vec<u8> {
    let length = if number.is_multiple_of(5) { 3_000 } else { 60 };
    format!("{number}:{:x>length$}", "").into_bytes()
}

/// The number in a value, or in a counter.
fn number_of(text: &[u8]) -> Result<u64, String> {
    let digits = text.split(|&byte| byte == b':').next().unwrap_or_default();
    let number = std::str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok());
    let is_whole = number.is_some_and(|number| text == digits || text == value(number));
    number.filter(|_| is_whole).ok_or_else(|| format!("nobody wrote {text:?}"))
}

/// One client with a connection to each server.
struct Worker<'m> {
    number: usize,
    random: fastrand::Rng,
    /// Counts beginnings and ends of all clients' operations.
    moments: &'m AtomicU64,
    routes: Routes,
    connections: BTreeMap<Node, Client>,
    history: Vec<(Register, Operation)>,
    /// The value last seen anywhere, and values given so far.
    known: BTreeMap<Register, u64>,
    values: u64,
    redirects: u64,
    /// Errors that a client must not see.
    refusals: Vec<String>,
}

/// An operation that has begun.
struct Begun {
    register: Register,
    action: Action,
    begun: u64,
    node: Node,
}

impl<'m> Worker<'m> {
    fn new(
        (number, seed): (usize, u64),
        addresses: &[SocketAddr],
        moments: &'m AtomicU64,
    ) -> Worker<'m> {
        Worker {
            number,
            random: fastrand::Rng::with_seed(seed * CLIENTS_MAX + number as u64),
            moments,
            routes: Routes::new(addresses),
            connections: BTreeMap::new(),
            history: Vec::new(),
            known: BTreeMap::new(),
            values: 0,
            redirects: 0,
            refusals: Vec::new(),
        }
    }

    /// A batch of operations on different registers, pipelined.
    fn some_operations(&mut self) {
        let count = self.random.usize(1..=BATCH_MAX);
        let registers: BTreeSet<Register> =
            (0..count).map(|_| Register::random(&mut self.random)).collect();
        let batch = registers.into_iter().map(|register| {
            self.values += 1;
            // Values of different clients differ.
            let new = self.values * CLIENTS_MAX + self.number as u64;
            let known = self.known.get(&register).copied().unwrap_or(0);
            (register, register.action(&mut self.random, new, known))
        });
        let batch = batch.collect();
        self.perform(batch);
    }

    /// Reads every register, and returns the keys that exist.
    fn read_everything(&mut self) -> BTreeSet<String> {
        let all: Vec<_> = Register::all().map(|register| (register, Action::Read)).collect();
        for batch in all.chunks(BATCH_MAX) {
            self.perform(batch.to_vec());
        }
        let found = self
            .history
            .iter()
            .filter(|(_, operation)| matches!(operation.outcome, Some(Outcome::Value(Some(_)))));
        found.flat_map(|(register, _)| register.keys()).collect()
    }

    fn perform(&mut self, batch: Vec<(Register, Action)>) {
        let mut sent = Vec::new();
        for (register, action) in batch {
            let node = self.routes.owner(slot_of(register.keys()[0].as_bytes()));
            let begun = self.moment();
            self.connection(node).request(&register.request(action));
            sent.push(Begun { register, action, begun, node });
        }
        // All replies first: each redirect asks again, on connections that must be free for that.
        let replies: Vec<(Begun, Answer)> = sent
            .into_iter()
            .map(|begun| {
                let reply = self.connection(begun.node).answer();
                (begun, reply)
            })
            .collect();
        for (begun, reply) in replies {
            self.finish(begun, reply);
        }
    }

    /// Follows redirects until an operation has ended, and notes how.
    fn finish(&mut self, operation: Begun, mut reply: Answer) {
        let Begun { register, action, begun, mut node } = operation;
        for _ in 0..REDIRECTS_MAX {
            let Value::Error(text) = &reply.0 else { break };
            let Some(redirect) = parse_redirect(text, self.routes.address(node)) else { break };
            self.redirects += 1;
            node = match redirect {
                Redirect::Moved(slot, address) => self.routes.moved(slot, address),
                Redirect::Ask(address) => {
                    let node = self.routes.node(address);
                    self.connection(node).ask(&["ASKING"]);
                    node
                }
            };
            reply = self.connection(node).ask(&register.request(action));
        }
        let ended = self.moment();
        match register.outcome(action, &reply.0) {
            Ok(outcome) => {
                if let Outcome::Value(Some(number)) = outcome {
                    self.known.insert(register, number);
                }
                let client = self.number;
                let outcome = Some(outcome);
                // A client has one request for a register at a time.
                let place = Place { connection: client as u64, request: begun };
                let operation = Operation { client, begun, ended, place, action, outcome };
                self.history.push((register, operation));
            }
            Err(refusal) => self.refusals.push(refusal),
        }
    }

    fn moment(&self) -> u64 {
        self.moments.fetch_add(1, Ordering::SeqCst)
    }

    fn connection(&mut self, node: Node) -> &mut Client {
        let address = self.routes.address(node);
        self.connections.entry(node).or_insert_with(|| Client::connect(address))
    }
}
