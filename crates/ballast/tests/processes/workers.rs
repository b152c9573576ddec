//! Clients that perform random operations on registers and record the results.
//!
//! They follow redirects. With patience, they also survive server failures: if a connection breaks
//! or a reply is late, the request is abandoned with unknown outcome. A request that was not sent,
//! or that a server cannot execute for now, is retried.

use crate::availability::{Demand, TimedOperation, broken, timeline};
use crate::client::{Answer, Client, PATIENCE, comes_true, until};
use crate::moves::{keys, records};
use crate::registers::{History, Register, judge};
use bench::clock;
use bench::slot_map::{NodeIndex, Redirect, SlotMap, parse_redirect};
use resp::Value;
use sim::history::{OperationOutcome, RegisterAction, RegisterOperation, RequestPlace};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use types::{Instant, SLOT_COUNT, Slot, slot_of};

const CLIENTS: usize = 6;
const CLIENTS_MAX: u64 = 64;
/// Most requests in a batch of a client, each on a different register.
const BATCH_MAX: usize = 12;
/// Batch size of passes over all registers, large since with `disk` each waits for disks.
const SURVEY_BATCH: usize = 250;
/// Most redirects of one request: redis-py's limit.
const REDIRECTS_MAX: usize = 16;
/// Pause before a request is retried.
const PAUSE: Duration = Duration::from_millis(5);
/// Time limit of a reply on most connections of patient clients, and on some of them. The longer
/// one is there to receive late replies of a server that was declared dead.
const ANSWER_MAX: Duration = Duration::from_secs(2);
const LATE_ANSWER_MAX: Duration = Duration::from_secs(10);
const CONNECT_MAX: Duration = Duration::from_millis(500);

/// State shared by the clients of a test.
#[derive(Debug)]
pub(crate) struct Crowd {
    /// Count of the beginnings and ends of all clients' operations.
    moments: AtomicU64,
    /// Selects the hot registers. Registers that are hot while a server dies get many operations
    /// with unknown outcome. The checker cannot follow more of them, so the hot registers change.
    era: AtomicU32,
    stop: AtomicBool,
    /// Time during which an operation is retried; 0 if no failures are expected.
    patience: Duration,
    /// Set if every second client reads at both sides of a migration.
    reads_both_sides: bool,
    /// Number of reads whose value came from the source of a migration.
    copied: AtomicU64,
    begun: Instant,
    demands: Mutex<Vec<Demand>>,
}

impl Crowd {
    fn new(patience: Duration) -> Crowd {
        Crowd {
            moments: AtomicU64::new(1),
            era: AtomicU32::new(0),
            stop: AtomicBool::new(false),
            patience,
            reads_both_sides: false,
            copied: AtomicU64::new(0),
            begun: clock::now(),
            demands: Mutex::default(),
        }
    }

    /// Returns the time since the clients began.
    pub(crate) fn time(&self) -> Duration {
        clock::now().since(self.begun)
    }

    /// Demands that operations are answered in time.
    pub(crate) fn demand(&self, demand: Demand) {
        self.demands.lock().unwrap_or_else(PoisonError::into_inner).push(demand);
    }

    /// Returns the approximate number of completed operations.
    pub(crate) fn operations(&self) -> u64 {
        self.moments.load(Ordering::SeqCst) / 2
    }

    /// Returns the number of reads whose value came from the source of a migration.
    pub(crate) fn copied(&self) -> u64 {
        self.copied.load(Ordering::Relaxed)
    }

    /// Selects other hot registers.
    pub(crate) fn next_era(&self) {
        self.era.fetch_add(1, Ordering::Relaxed);
    }

    /// Waits until clients have completed `more` further operations.
    pub(crate) fn until_operations(&self, more: u64) {
        let enough = self.operations() + more;
        until("clients go on", || self.operations() >= enough || self.stop.load(Ordering::Relaxed));
    }

    fn moment(&self) -> u64 {
        self.moments.fetch_add(1, Ordering::SeqCst)
    }
}

/// The results of a test.
pub(crate) struct Finished {
    /// The operations of all clients. The last ones read every register.
    history: History,
    /// Keys that existed at the end.
    found: BTreeSet<String>,
    /// Errors that a client must not see.
    refusals: Vec<String>,
    redirects: u64,
    /// Number of operations with unknown outcome.
    given_up: usize,
    times: Vec<TimedOperation>,
    begun: Instant,
    demands: Vec<Demand>,
}

impl Finished {
    /// Checks that the history is linearizable, that every operation was answered in time while
    /// that was demanded, and that the keys read at the end exist exactly once.
    pub(crate) fn check(&self, addresses: &[SocketAddr]) {
        if !self.demands.is_empty() {
            println!("{}", timeline(self.begun, &self.times));
        }
        let late = broken(&self.demands, &self.times);
        assert!(late.is_empty(), "operations were not answered in time: {late:#?}");
        assert!(self.refusals.is_empty(), "clients were told: {:?}", self.refusals);
        let operations = judge(&self.history);
        assert_each_key_once(addresses, &self.found);
        let Finished { given_up, redirects, .. } = self;
        println!("{operations} operations, {given_up} given up, {redirects} redirects");
    }
}

/// Checks that every key found exists on exactly one server, and that there are no others.
fn assert_each_key_once(addresses: &[SocketAddr], found: &BTreeSet<String>) {
    let is_same = comes_true(|| records(addresses) == found.len() as i64);
    // At once, since they may disappear.
    let slots = addresses.iter().filter(|_| !is_same);
    let slots: Vec<_> = slots.flat_map(|&address| slots_with_unseen_records(address)).collect();
    let held = addresses
        .iter()
        .flat_map(|&address| keys(address).into_iter().map(move |key| (key, address)));
    let mut holders: BTreeMap<String, Vec<SocketAddr>> = BTreeMap::new();
    held.for_each(|(key, address)| holders.entry(key).or_default().push(address));
    let missing: Vec<&String> = found.iter().filter(|key| !holders.contains_key(*key)).collect();
    holders.retain(|key, holders| !found.contains(key) || holders.len() > 1);
    let is_right = is_same && missing.is_empty() && holders.is_empty();
    assert!(
        is_right,
        "{} keys were found, and servers have {} records; on no server: {missing:?}; on two servers, \
         or never there: {holders:?}; slots with unseen records: {slots:?}",
        found.len(),
        records(addresses),
    );
}

/// Returns the slots of a server in which it counts more records than it shows, with both numbers.
fn slots_with_unseen_records(address: SocketAddr) -> Vec<(SocketAddr, usize, i64, usize)> {
    let mut client = Client::connect(address);
    let mut ask = |command: &str, slot: usize, more: &[&str]| {
        client.ask(&[&["CLUSTER", command, &slot.to_string()], more].concat())
    };
    let mut differing = Vec::new();
    for slot in 0..usize::from(SLOT_COUNT) {
        if let Value::Integer(counted) = ask("COUNTKEYSINSLOT", slot, &[]).0 {
            let shown = ask("GETKEYSINSLOT", slot, &["1000"]).items().len();
            if counted != shown as i64 {
                differing.push((address, slot, counted, shown));
            }
        }
    }
    differing
}

/// Writes every register, so that no loss can go unnoticed; lets clients work while `happens` runs;
/// and reads every register at the end.
pub(crate) fn under_load<T>(
    addresses: &[SocketAddr],
    seed: u64,
    patience: Duration,
    happens: impl FnOnce(&Crowd) -> T,
) -> (T, Finished) {
    under_load_of(&Crowd::new(patience), addresses, seed, happens)
}

/// Does the same as [`under_load`] without failures. Every second client reads at both sides of a
/// migration.
pub(crate) fn under_two_sided_load<T>(
    addresses: &[SocketAddr],
    seed: u64,
    happens: impl FnOnce(&Crowd) -> T,
) -> (T, Finished) {
    let crowd = Crowd { reads_both_sides: true, ..Crowd::new(Duration::ZERO) };
    under_load_of(&crowd, addresses, seed, happens)
}

fn under_load_of<T>(
    crowd: &Crowd,
    addresses: &[SocketAddr],
    seed: u64,
    happens: impl FnOnce(&Crowd) -> T,
) -> (T, Finished) {
    let mut surveyor = Worker::new(CLIENTS, seed, addresses, crowd);
    surveyor.write_everything();
    let (result, mut workers) = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|number| {
                let mut worker = Worker::new(number, seed, addresses, crowd);
                scope.spawn(move || {
                    while !worker.crowd.stop.load(Ordering::Relaxed) && worker.refusals.is_empty() {
                        worker.some_operations();
                    }
                    worker
                })
            })
            .collect();
        let stop = StopAtTheEnd(&crowd.stop);
        let result = happens(crowd);
        drop(stop);
        let workers = clients.into_iter().map(|client| client.join().expect("a client goes on"));
        (result, workers.collect::<Vec<Worker>>())
    });
    let found = surveyor.read_everything();
    workers.push(surveyor);
    let demands = crowd.demands.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let mut finished = Finished {
        history: Vec::new(),
        found,
        refusals: Vec::new(),
        redirects: 0,
        given_up: 0,
        times: Vec::new(),
        begun: crowd.begun,
        demands,
    };
    for worker in workers {
        finished.times.extend(worker.times);
        finished.history.extend(worker.history);
        finished.refusals.extend(worker.refusals);
        finished.redirects += worker.redirects;
    }
    let is_open = |(_, operation): &&(Register, RegisterOperation)| operation.outcome.is_none();
    finished.given_up = finished.history.iter().filter(is_open).count();
    (result, finished)
}

/// A guard that stops threads even if the test fails.
pub(crate) struct StopAtTheEnd<'s>(pub(crate) &'s AtomicBool);

impl Drop for StopAtTheEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// One client with a connection to each server.
struct Worker<'c> {
    number: usize,
    random: fastrand::Rng,
    crowd: &'c Crowd,
    routes: SlotMap,
    lines: BTreeMap<NodeIndex, Line>,
    /// Number of connections opened so far.
    opened: u64,
    /// Server that was last asked for the slot map.
    informant: u16,
    history: History,
    /// Last known value of each register, and number of values used.
    known: BTreeMap<Register, u64>,
    values: u64,
    redirects: u64,
    refusals: Vec<String>,
    times: Vec<TimedOperation>,
}

struct Line {
    /// Number of the connection among all opened by the client.
    number: u64,
    client: Client,
    answer_max: Duration,
}

/// An operation in progress.
struct Begun {
    register: Register,
    action: RegisterAction,
    begun: u64,
    begun_at: Instant,
    /// Time at which retries end.
    until: Instant,
    /// Server and connection it was sent to.
    sent: Option<Sent>,
}

/// The server and connection a request was sent to.
#[derive(Clone, Copy)]
struct Sent {
    node: NodeIndex,
    line: u64,
}

/// The reply to a request.
enum Reply {
    /// The request was not sent.
    NotSent,
    /// The request was sent, but will get no reply.
    None,
    /// The reply of this server.
    Some(NodeIndex, Answer),
}

/// The next step of an operation.
enum Next {
    Ended(OperationOutcome),
    /// Send it to another server, with ASKING if necessary.
    Elsewhere(Redirect),
    /// Retry it later.
    Later(String),
    GivenUp,
    Refused(String),
}

impl<'c> Worker<'c> {
    fn new(number: usize, seed: u64, addresses: &[SocketAddr], crowd: &'c Crowd) -> Worker<'c> {
        Worker {
            number,
            random: fastrand::Rng::with_seed(seed * CLIENTS_MAX + number as u64),
            crowd,
            routes: SlotMap::new(addresses),
            lines: BTreeMap::new(),
            opened: 0,
            informant: 0,
            history: Vec::new(),
            known: BTreeMap::new(),
            values: 0,
            redirects: 0,
            refusals: Vec::new(),
            times: Vec::new(),
        }
    }

    /// Performs a batch of pipelined operations on different registers.
    fn some_operations(&mut self) {
        let count = self.random.usize(1..=BATCH_MAX);
        let era = self.crowd.era.load(Ordering::Relaxed);
        let registers: BTreeSet<Register> =
            (0..count).map(|_| Register::random(&mut self.random, era)).collect();
        let batch = registers.into_iter().map(|register| {
            let new = self.new_value();
            let known = self.known.get(&register).copied().unwrap_or(0);
            (register, register.action(&mut self.random, new, known))
        });
        let batch = batch.collect();
        self.perform(batch);
    }

    /// Returns a value that no other client writes.
    fn new_value(&mut self) -> u64 {
        self.values += 1;
        self.values * CLIENTS_MAX + self.number as u64
    }

    fn write_everything(&mut self) {
        self.perform_everywhere(|worker, register| register.writing(worker.new_value()));
    }

    fn perform_everywhere(&mut self, action: impl Fn(&mut Self, Register) -> RegisterAction) {
        // Avoid one redirect per slot.
        self.ask_for_routes();
        let all: Vec<Register> = Register::all().collect();
        for some in all.chunks(SURVEY_BATCH) {
            let batch = some.iter().map(|register| (*register, action(self, *register))).collect();
            self.perform(batch);
        }
    }

    /// Reads every register, and returns the keys that exist.
    fn read_everything(&mut self) -> BTreeSet<String> {
        let before = self.history.len();
        // Requests on connections that broke meanwhile would get no reply.
        self.lines.clear();
        self.perform_everywhere(|_, _| RegisterAction::Read);
        let found = self.history[before..].iter().filter(|(_, operation)| {
            matches!(operation.outcome, Some(OperationOutcome::Value(Some(_))))
        });
        found.flat_map(|(register, _)| register.keys()).collect()
    }

    fn perform(&mut self, batch: Vec<(Register, RegisterAction)>) {
        let begun_at = clock::now();
        let until = begun_at + self.crowd.patience;
        let mut sent = Vec::new();
        let is_smart = self.crowd.reads_both_sides && self.number.is_multiple_of(2);
        let is_read = |&(register, action): &(Register, RegisterAction)| {
            is_smart && action == RegisterAction::Read && register.keys().len() == 1
        };
        let (reads, others): (Vec<_>, Vec<_>) = batch.into_iter().partition(is_read);
        for (register, action) in reads {
            let (begun, begun_at) = (self.crowd.moment(), clock::now());
            let operation = Begun { register, action, begun, begun_at, until, sent: None };
            let reply = self.read_both_sides(&register.keys()[0]);
            self.finish(&operation, reply);
        }
        for (register, action) in others {
            let begun = self.crowd.moment();
            let mut operation = Begun { register, action, begun, begun_at, until, sent: None };
            let owner = self.routes.owner(slot_of(register.keys()[0].as_bytes()));
            operation.sent = self.send(&operation, owner);
            sent.push(operation);
        }
        // Receive all replies before following redirects, which reuse the connections.
        let replies: Vec<(Begun, Reply)> = sent
            .into_iter()
            .map(|operation| {
                let reply = self.receive(operation.sent);
                (operation, reply)
            })
            .collect();
        for (operation, reply) in replies {
            self.finish(&operation, reply);
        }
    }

    /// Follows redirects until an operation has ended, and records its outcome.
    fn finish(&mut self, operation: &Begun, mut reply: Reply) {
        let slot = slot_of(operation.register.keys()[0].as_bytes());
        let mut redirects = 0;
        let outcome = loop {
            let node = match self.judge(operation, reply, redirects) {
                Next::Ended(outcome) => break Some(outcome),
                Next::GivenUp => break None,
                Next::Refused(refusal) => return self.note_refusal(refusal),
                Next::Elsewhere(redirect) => {
                    redirects += 1;
                    self.follow(redirect)
                }
                Next::Later(refusal) if clock::now() > operation.until => {
                    return self.note_refusal(refusal);
                }
                Next::Later(_) => {
                    redirects = 0;
                    clock::sleep(PAUSE);
                    self.ask_for_routes();
                    self.routes.owner(slot)
                }
            };
            let sent = self.send(operation, node);
            reply = self.receive(sent);
        };
        if let Some(OperationOutcome::Value(Some(number))) = outcome {
            self.known.insert(operation.register, number);
        }
        let Begun { register, action, begun, begun_at, .. } = *operation;
        let ended = self.crowd.moment();
        self.times.push(TimedOperation {
            register,
            begun: begun_at,
            ended: clock::now(),
            is_answered: outcome.is_some(),
        });
        // A client has one operation per register at a time, and an abandoned one may take effect
        // after all others.
        let place = RequestPlace { connection: begun, request: 0 };
        let operation =
            RegisterOperation { client: self.number, begun, ended, place, action, outcome };
        self.history.push((register, operation));
    }

    /// Prints an unexpected error at once, since the test may wait for this client in vain.
    fn note_refusal(&mut self, refusal: String) {
        println!("client {} was told: {refusal}", self.number);
        self.refusals.push(refusal);
    }

    fn judge(&self, operation: &Begun, reply: Reply, redirects: usize) -> Next {
        let is_patient = !self.crowd.patience.is_zero();
        let Begun { register, action, .. } = *operation;
        let (node, answer) = match reply {
            Reply::Some(node, answer) => (node, answer),
            Reply::NotSent => {
                return Next::Later(format!("{register:?}: no server can be reached"));
            }
            Reply::None if is_patient => return Next::GivenUp,
            Reply::None => return Next::Refused(format!("{register:?}: no answer")),
        };
        if let Value::Error(text) = &answer.0
            && let Some(redirect) = parse_redirect(text, self.routes.address(node))
        {
            return match redirects < REDIRECTS_MAX {
                true => Next::Elsewhere(redirect),
                false => Next::Later(format!("{register:?}: too many redirects")),
            };
        }
        let temporary = ["CLUSTERDOWN", "TRYAGAIN", "LOADING"];
        match register.outcome(action, &answer.0) {
            Ok(outcome) => Next::Ended(outcome),
            Err(refusal) if is_patient && temporary.iter().any(|word| answer.is_error(word)) => {
                Next::Later(refusal)
            }
            Err(refusal) => Next::Refused(refusal),
        }
    }

    fn follow(&mut self, redirect: Redirect) -> NodeIndex {
        self.redirects += 1;
        match redirect {
            Redirect::Moved(slot, address) => self.routes.moved(slot, address),
            Redirect::Ask(address) => {
                let node = self.routes.node(address);
                if let Some(line) = self.line(node) {
                    line.client.try_request(&["ASKING"]);
                    let answer_max = line.answer_max;
                    if line.client.answer_within(answer_max).is_none() {
                        self.lines.remove(&node);
                    }
                }
                node
            }
        }
    }

    fn send(&mut self, operation: &Begun, node: NodeIndex) -> Option<Sent> {
        let request = operation.register.request(operation.action);
        let line = self.line(node)?;
        let number = line.number;
        // A part of the request may have been sent.
        if !line.client.try_request(&request) {
            self.lines.remove(&node);
        }
        Some(Sent { node, line: number })
    }

    /// Reads a key at its owner, and at all servers that may be the source of its migration, in any
    /// order. Asks the owner once more if the answers do not fit.
    fn read_both_sides(&mut self, key: &str) -> Reply {
        let owner = self.routes.owner(slot_of(key.as_bytes()));
        let is_source_first = self.random.bool();
        let mut copies = Vec::new();
        if is_source_first {
            copies = self.read_copies(key, owner);
        }
        let reply = match self.random.u8(..20) {
            0 => self.exchange(owner, &["BALLAST.READ", key, "PULL"]),
            _ => self.exchange(owner, &["BALLAST.READ", key]),
        };
        let Reply::Some(node, answer) = reply else { return reply };
        let Value::Array(not_here) = &answer.0 else { return Reply::Some(node, answer) };
        if !is_source_first {
            copies = self.read_copies(key, owner);
        }
        match copies.iter().find_map(|copy| combined(not_here, copy)) {
            Some(value) => {
                self.crowd.copied.fetch_add(1, Ordering::Relaxed);
                Reply::Some(node, Answer(value))
            }
            None => self.exchange(owner, &["GET", key]),
        }
    }

    /// Returns the copies of a key at all servers but one.
    fn read_copies(&mut self, key: &str, owner: NodeIndex) -> Vec<Value> {
        let nodes: Vec<NodeIndex> = self.routes.nodes().filter(|node| *node != owner).collect();
        let replies = nodes.into_iter().map(|node| self.exchange(node, &["BALLAST.READCOPY", key]));
        let copy = |reply| match reply {
            Reply::Some(_, answer) => Some(answer.0),
            Reply::NotSent | Reply::None => None,
        };
        replies.filter_map(copy).collect()
    }

    /// Sends a request outside of the batches, and receives the reply.
    fn exchange(&mut self, node: NodeIndex, words: &[&str]) -> Reply {
        let Some(line) = self.line(node) else { return Reply::NotSent };
        let number = line.number;
        line.client.try_request(words);
        self.receive(Some(Sent { node, line: number }))
    }

    fn receive(&mut self, sent: Option<Sent>) -> Reply {
        let Some(Sent { node, line }) = sent else { return Reply::NotSent };
        let Some(open) = self.lines.get_mut(&node).filter(|open| open.number == line) else {
            return Reply::None;
        };
        let answer_max = open.answer_max;
        match open.client.answer_within(answer_max) {
            Some(answer) => Reply::Some(node, answer),
            None => {
                self.lines.remove(&node);
                Reply::None
            }
        }
    }

    /// Returns the connection to a server, if the server can be reached.
    fn line(&mut self, node: NodeIndex) -> Option<&mut Line> {
        if !self.lines.contains_key(&node) {
            let client = Client::try_connect(self.routes.address(node), CONNECT_MAX)?;
            self.opened += 1;
            let answer_max = match self.random.u8(..4) {
                _ if self.crowd.patience.is_zero() => PATIENCE,
                0 => LATE_ANSWER_MAX,
                _ => ANSWER_MAX,
            };
            self.lines.insert(node, Line { number: self.opened, client, answer_max });
        }
        self.lines.get_mut(&node)
    }

    /// Asks the next server for the slot map.
    fn ask_for_routes(&mut self) {
        let count = self.routes.nodes().count() as u16;
        self.informant = (self.informant + 1) % count;
        let node = NodeIndex(self.informant);
        let Some(line) = self.line(node) else { return };
        line.client.try_request(&["CLUSTER", "SLOTS"]);
        match line.client.answer_within(ANSWER_MAX) {
            Some(Answer(Value::Array(ranges))) => {
                ranges.into_iter().for_each(|range| self.learn(Answer(range)));
            }
            // A server that has just started may have no map.
            Some(_) => {}
            None => drop(self.lines.remove(&node)),
        }
    }

    fn learn(&mut self, range: Answer) {
        let range = range.items();
        let owner = range[2].items();
        let port = u16::try_from(owner[1].number()).expect("a port is a small number");
        let ip = owner[0].text().parse().expect("an owner has an address");
        let address = SocketAddr::new(ip, port);
        for slot in range[0].number()..=range[1].number() {
            let slot = u16::try_from(slot).ok().filter(|slot| *slot < SLOT_COUNT);
            self.routes.moved(Slot(slot.expect("a slot is a small number")), address);
        }
    }
}

/// Returns the value of a key that its owner does not have yet, if the source's answer fits.
fn combined(not_here: &[Value], copy: &Value) -> Option<Value> {
    let (Value::Array(copy), Value::Integer(clock)) = (copy, not_here.get(2)?) else { return None };
    let [migration, epoch, value, Value::Integer(expiry)] = &copy[..] else { return None };
    let is_same = not_here.get(..2)? == [migration.clone(), epoch.clone()];
    let exists = *expiry == 0 || expiry > clock;
    is_same.then(|| if exists { value.clone() } else { Value::Null })
}
