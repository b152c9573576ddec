//! Random migrations of slot ranges between servers, back and forth.

use crate::client::{Answer, Client, until};
use crate::servers::Cluster;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use types::SLOT_COUNT;

/// Slots per piece. Ranges consist of whole pieces, since tablets are never merged.
const SLOTS_OF_A_PIECE: u16 = 512;
/// Pause between two requests for moves while servers die, and time limits of such a request.
const ASK_EVERY: Duration = Duration::from_millis(30);
const CONNECT_MAX: Duration = Duration::from_millis(100);
const PATIENCE_OF_ASKERS: Duration = Duration::from_secs(2);
const PIECES: usize = (SLOT_COUNT / SLOTS_OF_A_PIECE) as usize;

/// The outcomes of migrations.
#[derive(Debug, Default)]
pub(crate) struct Ended {
    /// Migrations that moved their whole range.
    pub(crate) succeeded: usize,
    /// Migrations cancelled by the test, or because they depended on a cancelled one.
    pub(crate) cancelled: usize,
    /// Migrations abandoned before anything moved: the target must free memory first, or was too
    /// busy to answer. A retry helps.
    pub(crate) given_up: usize,
    /// Errors of requests that were refused, because they depended on a failed migration.
    pub(crate) refused: Vec<String>,
    /// Error messages of the other migrations.
    pub(crate) failed: Vec<String>,
}

/// A client that requests migrations.
pub(crate) struct Mover {
    random: fastrand::Rng,
    servers: Vec<Client>,
    names: Vec<String>,
    /// Owner of each piece after all requested migrations.
    owners: Vec<usize>,
    /// Errors of refused requests.
    refused: Vec<String>,
}

/// Moves slots of a cluster for this time. Some of the moves must succeed.
pub(crate) fn move_for(cluster: &Cluster, seed: u64, time: Duration) {
    let stop = AtomicBool::new(false);
    let mut mover = Mover::new(cluster, seed);
    std::thread::scope(|scope| {
        let moves = scope.spawn(|| mover.keep_moving(&stop));
        bench::clock::sleep(time);
        stop.store(true, Ordering::Relaxed);
        let ended = moves.join().expect("moves go on");
        assert!(ended.succeeded > 0, "{ended:?}");
    });
}

impl Mover {
    /// Creates a mover for this cluster.
    pub(crate) fn new(cluster: &Cluster, seed: u64) -> Mover {
        let mut servers: Vec<Client> = cluster.servers.iter().map(|s| s.client()).collect();
        let names = servers.iter_mut().map(|s| s.ask(&["CLUSTER", "MYID"]).text()).collect();
        let random = fastrand::Rng::with_seed(seed);
        let mut mover = Mover { random, servers, names, owners: Vec::new(), refused: Vec::new() };
        mover.look_around();
        mover
    }

    /// Requests migrations until `stop` is set, and waits for those in progress.
    pub(crate) fn keep_moving(&mut self, stop: &AtomicBool) -> Ended {
        while !stop.load(Ordering::Relaxed) {
            self.some_moves();
            self.settle();
            self.look_around();
        }
        self.ended()
    }

    /// Requests some migrations that run concurrently or wait for each other.
    fn some_moves(&mut self) {
        for _ in 0..self.random.usize(1..=3) {
            let (first, last, source) = self.some_range();
            let target = (source + self.random.usize(1..self.servers.len())) % self.servers.len();
            self.ask_to_move(first, last, source, target);
            if self.random.u8(..3) == 0 {
                self.ask_to_move(first, last, target, source);
            }
        }
        if self.random.u8(..8) == 0 {
            let server = self.random.usize(..self.servers.len());
            self.servers[server].ask(&["CLUSTER", "CANCELSLOTMIGRATIONS"]);
        }
    }

    /// Returns adjacent pieces of one owner: first, last, owner.
    fn some_range(&mut self) -> (usize, usize, usize) {
        let first = self.random.usize(..PIECES);
        let owner = self.owners[first];
        let same = self.owners[first..].iter().take_while(|&&other| other == owner).count();
        (first, first + self.random.usize(..same), owner)
    }

    fn ask_to_move(&mut self, first: usize, last: usize, source: usize, target: usize) {
        let slot = |piece: usize| piece * usize::from(SLOTS_OF_A_PIECE);
        let slots = (slot(first).to_string(), (slot(last + 1) - 1).to_string());
        let words = ["CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", &slots.0, &slots.1, "NODE"];
        let target_name = self.names[target].clone();
        let mut words: Vec<String> = words.map(String::from).into();
        words.push(target_name);
        words.extend(some_policy(&mut self.random));
        let answer = self.servers[source].ask(&words);
        if answer.text() != "OK" {
            // An earlier migration has failed meanwhile; see `ended`.
            return self.refused.push(answer.text());
        }
        self.owners[first..=last].fill(target);
    }

    /// Waits until no migration is in progress.
    fn settle(&mut self) {
        let servers = &mut self.servers;
        until("all migrations end", || servers.iter_mut().flat_map(reports).all(|it| it.is_over()));
    }

    /// Reads the slot owners, once all servers agree.
    fn look_around(&mut self) {
        let servers = &mut self.servers;
        let mut slots = Vec::new();
        until("all servers tell the same slots", || {
            let mut told = servers.iter_mut().map(|server| server.ask(&["CLUSTER", "SLOTS"]));
            slots = told.next().expect("a cluster has a server").items();
            told.all(|others| others.items() == slots)
        });
        self.owners = vec![usize::MAX; PIECES];
        for range in slots {
            let range = range.items();
            let (first, last, owner) = (range[0].number(), range[1].number(), range[2].items());
            let port = owner[1].number();
            let owner = self.servers.iter().position(|s| i64::from(s.address.port()) == port);
            let piece = |slot: i64| slot as usize / usize::from(SLOTS_OF_A_PIECE);
            self.owners[piece(first)..=piece(last)].fill(owner.expect("an owner is a server"));
        }
    }

    /// Returns the outcomes of all migrations so far.
    fn ended(&mut self) -> Ended {
        let mut ended = Ended { refused: self.refused.clone(), ..Ended::default() };
        for server in &mut self.servers {
            let mine = reports(server).into_iter().filter(|report| report.operation == "EXPORT");
            for Report { state, message, .. } in mine {
                match (&*state, &*message) {
                    ("success", _) => ended.succeeded += 1,
                    ("cancelled", _) | ("failed", NOT_THERE) => ended.cancelled += 1,
                    ("failed", text) if GIVEN_UP.iter().any(|why| text.starts_with(why)) => {
                        ended.given_up += 1;
                    }
                    (_, _) => ended.failed.push(message),
                }
            }
        }
        ended
    }
}

/// Returns a migration policy, which is the default in half of the cases.
fn some_policy(random: &mut fastrand::Rng) -> Vec<String> {
    if random.bool() {
        return Vec::new();
    }
    let priority = ["OFF", "IMMEDIATE", "1", "16"][random.usize(..4)].to_string();
    let numbers = [
        ("PARTITIONS", random.u32(1..=16)),
        ("PULL-BYTES", 1 << random.u32(10..=20)),
        ("AHEAD", random.u32(1..=4)),
        ("SHARE", random.u32(1..=100)),
        ("LATENCY-P99", random.u32(0..=2) * 500),
    ];
    let numbers = numbers.into_iter().flat_map(|(name, n)| [name.into(), n.to_string()]);
    ["POLICY".into(), "PRIORITY".into(), priority].into_iter().chain(numbers).collect()
}

/// State of a thread that requests migrations.
#[derive(Default)]
pub(crate) struct MoveRequests {
    /// Ends the thread.
    pub(crate) stop: AtomicBool,
    /// Set while no new migrations are wanted.
    pub(crate) pause: AtomicBool,
    /// Set by the thread while it requests one.
    is_asking: AtomicBool,
}

impl MoveRequests {
    /// Returns requests that begin at once, or that are never made.
    pub(crate) fn new(are_made: bool) -> MoveRequests {
        MoveRequests { stop: AtomicBool::new(!are_made), ..MoveRequests::default() }
    }

    /// Sets `pause`, and waits until no request and no migration is left.
    pub(crate) fn pause(&self, addresses: &[SocketAddr]) {
        self.pause.store(true, Ordering::SeqCst);
        until("no migration is requested", || !self.is_asking.load(Ordering::SeqCst));
        until_all_end(addresses);
    }
}

/// Requests random migrations between these servers, whether they are available or not, until it
/// is stopped. Returns the number of accepted requests.
pub(crate) fn keep_asking(addresses: &[SocketAddr], seed: u64, requests: &MoveRequests) -> usize {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut granted = 0;
    while !requests.stop.load(Ordering::Relaxed) {
        requests.is_asking.store(true, Ordering::SeqCst);
        if !requests.pause.load(Ordering::SeqCst) {
            // Failures of dead or busy servers are ignored.
            granted += usize::from(ask_for_some_move(addresses, &mut random).is_some());
        }
        requests.is_asking.store(false, Ordering::SeqCst);
        bench::clock::sleep(ASK_EVERY);
    }
    granted
}

/// Waits until none of these servers takes part in a migration.
pub(crate) fn until_all_end(addresses: &[SocketAddr]) {
    until("all migrations end", || {
        addresses.iter().all(|&address| {
            let answer = Client::connect(address).ask(&["CLUSTER", "GETSLOTMIGRATIONS"]);
            // The coordinator may have been unavailable until now.
            !answer.is_error("") && reports_in(&answer).iter().all(Report::is_over)
        })
    });
}

fn ask_for_some_move(addresses: &[SocketAddr], random: &mut fastrand::Rng) -> Option<()> {
    let ask = |address: SocketAddr, words: &[&str]| {
        Client::ask_once(address, words, CONNECT_MAX, PATIENCE_OF_ASKERS)
    };
    let ranges = ask(*random.choice(addresses)?, &["CLUSTER", "SLOTS"])?.items();
    let range = random.choice(ranges)?.items();
    let owner = range[2].items();
    let ip = owner[0].text().parse().ok()?;
    let owner = SocketAddr::new(ip, u16::try_from(owner[1].number()).ok()?);
    let others = addresses.iter().filter(|address| **address != owner);
    let target = ask(*random.choice(others.collect::<Vec<_>>())?, &["CLUSTER", "MYID"])?.text();
    let (first, last) = some_pieces([0, 1].map(|field| range[field].number() as usize), random);
    let words = ["CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", &first, &last, "NODE", &target];
    let policy = some_policy(random);
    let words: Vec<&str> = words.into_iter().chain(policy.iter().map(String::as_str)).collect();
    ask(owner, &words)?;
    Some(())
}

/// Returns adjacent pieces within a range as in `Mover`, so that there are few tablets. Returns the
/// whole range if it contains no piece.
fn some_pieces([low, high]: [usize; 2], random: &mut fastrand::Rng) -> (String, String) {
    let piece = usize::from(SLOTS_OF_A_PIECE);
    let pieces = low.div_ceil(piece)..(high + 1) / piece;
    let (first, last) = match random.choice(pieces.clone()) {
        None => (low, high),
        Some(first) => (first * piece, random.usize(first + 1..=pieces.end) * piece - 1),
    };
    (first.to_string(), last.to_string())
}

/// The error of a move that depended on a cancelled move.
const NOT_THERE: &str = "Slots are not served by the source node";

/// The beginnings of errors for migrations abandoned before they began.
const GIVEN_UP: [&str; 2] = ["the target has no room", "the flip was not answered in time"];

/// The state of a migration as reported by a server.
struct Report {
    state: String,
    operation: String,
    message: String,
}

impl Report {
    fn is_over(&self) -> bool {
        ["success", "failed", "cancelled"].contains(&&*self.state)
    }
}

fn reports(server: &mut Client) -> Vec<Report> {
    reports_in(&server.ask(&["CLUSTER", "GETSLOTMIGRATIONS"]))
}

fn reports_in(answer: &Answer) -> Vec<Report> {
    let field = |fields: &[Answer], name: &str| {
        let found = fields.chunks(2).find(|pair| pair[0].text() == name);
        found.expect("a report has all fields")[1].text()
    };
    let report = |report: &Answer| {
        let fields = report.items();
        let [state, operation, message] =
            ["state", "operation", "message"].map(|name| field(&fields, name));
        Report { state, operation, message }
    };
    answer.items().iter().map(report).collect()
}

/// Returns the total number of records on the servers.
pub(crate) fn records(addresses: &[SocketAddr]) -> i64 {
    addresses.iter().map(|&address| Client::connect(address).ask(&["DBSIZE"]).number()).sum()
}

/// Returns all keys on a server.
pub(crate) fn keys(address: SocketAddr) -> Vec<String> {
    let mut client = Client::connect(address);
    let mut keys = Vec::new();
    let mut cursor = "0".to_string();
    loop {
        let reply = client.ask(&["SCAN", &cursor, "COUNT", "1000"]).items();
        keys.extend(reply[1].items().iter().map(Answer::text));
        cursor = reply[0].text();
        if cursor == "0" {
            return keys;
        }
    }
}
