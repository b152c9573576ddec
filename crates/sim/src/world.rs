//! One run: servers, coordinator, clients and network, driven event by event from one seed.
//!
//! Time jumps from event to event. Events of the same moment happen in the order in which they were
//! planned, so that the seed decides everything. A run has three parts: clients work while ranges
//! move; then the weather clears and everything comes to rest; then every register is read once
//! more, and what clients saw and what servers hold is judged.

use crate::clients::Clients;
use crate::history::{Action, Verdict};
use crate::network::Weather;
use crate::planted::{self, Planted};
use crate::reactor::{Inbound, Outbound, Reply, Request, Surroundings};
use crate::servers::{Server, join, server_at};
use crate::trace::Trace;
use crate::workload::{Workload, draw_policy};
use coordinator::{ConnectionId, Coordinator, Effect, Event, MemoryStore, Moment, Outbox};
use fastrand::Rng;
use protocols::migration::{from_coordinator, peer, to_coordinator};
use server::engine::{Identity, Route, Sending, To};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;
use types::{ClusterId, HashSeed, Instant, MigrationId, ServerId, UnixMillis};
use wire::control::{Answer, Ask, FromCoordinator, MigrationReport, MigrationState, ToCoordinator};
use wire::peer::PeerMessage;

/// What a run is made of.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Decides everything.
    pub seed: u64,
    /// A bug to be found.
    pub planted: Option<Planted>,
    /// Whether every event is printed.
    pub is_printed: bool,
}

/// What came of a run.
#[derive(Clone, Debug)]
pub struct Report {
    /// Fingerprint of everything that happened.
    pub trace: u64,
    /// Operations that clients have finished.
    pub operations: usize,
    /// Migrations that have ended with a change of owner, and without.
    pub moved: usize,
    /// Migrations that were refused, cancelled or given up.
    pub not_moved: usize,
    /// The longest time that a client waited for an operation.
    pub longest: Duration,
    /// The rule that was broken, if one was.
    pub failure: Option<Failure>,
}

/// A rule that was broken, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// What clients saw has no explanation.
    NotLinearizable(String),
    /// The checker could not decide.
    GaveUp(String),
    /// A pair of keys was seen half written.
    Torn(String),
    /// Servers point at each other.
    Circles(String),
    /// The progress has passed a record that is not there.
    ProgressAhead(String),
    /// An operation or a migration does not end.
    Stuck(String),
    /// Records are where they do not belong, or their number is wrong.
    Misplaced(String),
    /// An assertion of the real code failed.
    Panicked(String),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (rule, text) = match self {
            Failure::NotLinearizable(text) => ("what clients saw is not linearizable", text),
            Failure::GaveUp(text) => ("the checker gave up", text),
            Failure::Torn(text) => ("a command on two keys was seen half done", text),
            Failure::Circles(text) => ("clients are sent in circles", text),
            Failure::ProgressAhead(text) => ("the progress is ahead of the replay", text),
            Failure::Stuck(text) => ("something does not end", text),
            Failure::Misplaced(text) => ("records are not where they belong", text),
            Failure::Panicked(text) => ("an assertion failed", text),
        };
        write!(f, "{rule}: {text}")
    }
}

/// Servers of every run.
const SERVERS: usize = 3;

/// After the weather has cleared everything must come to rest within this time: repetitions take a
/// quarter of a second, and demands of the coordinator a second.
const REST_MAX: Duration = Duration::from_secs(30);

/// How often it is looked whether everything has come to rest.
const REST_AGAIN: Duration = Duration::from_millis(20);

/// An idle reactor looks at least this often.
const IDLE_MAX: Duration = Duration::from_millis(10);

/// The wall clock at the start of a run, in milliseconds.
const WALL_START: u64 = 1_700_000_000_000;

/// Number of the world's own requests to the coordinator.
const OWN_REQUEST: u64 = u64::MAX;

/// What is going to happen.
#[derive(Debug)]
enum Next {
    Turn(usize, usize),
    Arrive(usize, usize, Inbound),
    Up(ConnectionId, ToCoordinator),
    Down(usize, ConnectionId, FromCoordinator),
    Answer(Request, Reply),
    Think(usize),
    Move,
    Break(usize),
    Rejoin(usize),
    Coordinator,
    Rest,
}

/// Which part of the run it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Working,
    Resting,
    /// Registers up to this one have been asked for.
    Reading(usize),
}

struct World {
    now: Instant,
    rng: Rng,
    settings: Settings,
    weather: Weather,
    part: Part,
    /// When everything must have come to rest.
    rest_by: Instant,
    plan: BTreeMap<(Instant, u64), Next>,
    planned: u64,
    coordinator: Coordinator<MemoryStore>,
    coordinator_due: Option<Instant>,
    connections: u64,
    servers: Vec<Server>,
    workload: Workload,
    clients: Clients,
    migrations: Vec<MigrationReport>,
    /// Migrations whose target has been seen to accept.
    accepted: BTreeSet<MigrationId>,
    trace: Trace,
    failure: Option<Failure>,
}

/// Runs one seed. A failed assertion of the real code is a failure like any other.
pub fn run(settings: Settings) -> Report {
    let run = std::panic::AssertUnwindSafe(|| World::new(settings).run());
    std::panic::catch_unwind(run).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        Report {
            trace: 0,
            operations: 0,
            moved: 0,
            not_moved: 0,
            longest: Duration::ZERO,
            failure: Some(Failure::Panicked(text.unwrap_or_default())),
        }
    })
}

/// Setting up.
impl World {
    fn new(settings: Settings) -> World {
        let mut rng = Rng::with_seed(settings.seed);
        let identity = coordinator::Identity { cluster: ClusterId(1), seed: rng.u64(..) };
        let opened = Coordinator::open(
            MemoryStore::new(),
            identity,
            coordinator::Settings::default(),
            Instant(0),
        );
        let workload = Workload::draw(&mut rng, &HashSeed::new(identity.seed));
        let clients = Clients::new(rng.usize(2..10), workload.registers.len());
        let weather = Weather::draw(&mut rng);
        let mut world = World {
            now: Instant(0),
            rng,
            settings,
            weather,
            part: Part::Working,
            rest_by: Instant(0),
            plan: BTreeMap::new(),
            planned: 0,
            coordinator: opened.expect("an empty store can be opened"),
            coordinator_due: None,
            connections: 0,
            servers: Vec::new(),
            workload,
            clients,
            migrations: Vec::new(),
            accepted: BTreeSet::new(),
            trace: Trace::new(settings.is_printed),
            failure: None,
        };
        (0..SERVERS).for_each(|place| world.start_server(place, identity));
        world.plan_the_run();
        world
    }

    fn start_server(&mut self, place: usize, identity: coordinator::Identity) {
        let connection = self.open_connection();
        // Nobody is connected under this number yet, so the welcome is for this server.
        let message = ToCoordinator::Join(join(place, None));
        let effects = self.coordinate(Event::Received { connection, message });
        let welcomed = effects.iter().find_map(|effect| match effect {
            Effect::Send { message: FromCoordinator::Welcome { server, .. }, .. } => Some(*server),
            Effect::Send { .. } | Effect::Close { .. } => None,
        });
        let server = welcomed.expect("a small cluster takes every server");
        let who = Identity { cluster: identity.cluster, server };
        self.servers.push(Server::new(place, who, identity.seed, connection));
        for reactor in 0..self.servers[place].reactors.len() {
            self.plan_at(Instant(0), Next::Turn(place, reactor));
        }
        self.carry_out(effects);
    }

    fn plan_the_run(&mut self) {
        let end = self.micros(200_000..800_000);
        self.plan_in(end, Next::Rest);
        // The map has to arrive first.
        for client in 0..self.clients.count() {
            self.plan_in(Duration::from_millis(5), Next::Think(client));
        }
        self.plan_in(Duration::from_millis(10), Next::Move);
        if self.rng.bool() {
            let delay = self.micros(20_000..200_000);
            self.plan_in(delay, Next::Break(0));
        }
    }
}

/// Time.
impl World {
    fn plan_at(&mut self, at: Instant, next: Next) {
        self.planned += 1;
        self.plan.insert((at, self.planned), next);
    }

    fn plan_in(&mut self, delay: Duration, next: Next) {
        self.plan_at(self.now + delay, next);
    }

    /// Some microseconds.
    fn micros(&mut self, range: std::ops::Range<u64>) -> Duration {
        Duration::from_micros(self.rng.u64(range))
    }

    fn wall(&self) -> UnixMillis {
        UnixMillis(WALL_START + self.now.0 / 1_000_000)
    }

    fn run(mut self) -> Report {
        while self.failure.is_none() {
            let Some(((at, _), next)) = self.plan.pop_first() else { break };
            self.now = at;
            self.happen(next);
        }
        if self.failure.is_none() {
            self.failure = self.judge();
        }
        let has_moved = |report: &&MigrationReport| report.state == MigrationState::Success;
        let moved = self.migrations.iter().filter(has_moved).count();
        Report {
            trace: self.trace.hash(),
            operations: self.clients.operations(),
            moved,
            not_moved: self.migrations.len() - moved,
            longest: self.clients.longest,
            failure: self.failure,
        }
    }

    fn happen(&mut self, next: Next) {
        match next {
            Next::Turn(server, reactor) => self.turn(server, reactor),
            Next::Arrive(server, reactor, inbound) => {
                self.servers[server].reactors[reactor].inbox.push_back(inbound);
                self.wake(server, reactor);
            }
            Next::Up(connection, message) => self.arrive_up(connection, message),
            Next::Down(server, connection, message) => {
                self.arrive_down(server, connection, message)
            }
            Next::Answer(request, reply) => self.answered(request, reply),
            Next::Think(client) => self.think(client),
            Next::Move => self.ask_for_a_move(),
            Next::Break(server) => self.break_link(server),
            Next::Rejoin(server) => self.rejoin(server),
            Next::Coordinator => {
                if self.coordinator_due == Some(self.now) {
                    let effects = self.coordinate(Event::Tick);
                    self.carry_out(effects);
                }
            }
            Next::Rest => self.rest(),
        }
    }

    /// The reactor begins a turn soon.
    fn wake(&mut self, server: usize, reactor: usize) {
        let soon = self.now + self.micros(1..10);
        let due = &mut self.servers[server].reactors[reactor].due;
        if *due > soon {
            *due = soon;
            self.plan_at(soon, Next::Turn(server, reactor));
        }
    }

    fn turn(&mut self, place: usize, reactor: usize) {
        let (now, wall) = (self.now, self.wall());
        let server = &mut self.servers[place];
        if server.reactors[reactor].due != now {
            return; // It was woken earlier, or put off.
        }
        let mut out = Vec::new();
        server.inspector.worker.begin_turn(wall);
        let is_busy = server.reactors[reactor].turn(&mut Surroundings {
            now,
            wall,
            rng: &mut self.rng,
            registers: &self.workload.registers,
            planted: self.settings.planted,
            inspector: &mut server.inspector.worker,
            out: &mut out,
        });
        server.inspector.worker.sleep();
        let pause = self.pause_after(place, reactor, is_busy);
        self.servers[place].reactors[reactor].due = now + pause;
        self.plan_in(pause, Next::Turn(place, reactor));
        for outbound in out {
            self.leave(place, reactor, outbound);
        }
        self.check_progress(place);
        if self.servers[place].take_wake_all() {
            (0..self.servers[place].reactors.len()).for_each(|other| self.wake(place, other));
        }
    }

    /// How long after this turn the next one begins.
    fn pause_after(&mut self, place: usize, reactor: usize, is_busy: bool) -> Duration {
        if is_busy {
            // Now and then the operating system takes the processor away.
            let is_taken = self.rng.u32(..2000) == 0 && self.part == Part::Working;
            let longest = if is_taken { 12_000 } else { 50 };
            return self.micros(2..longest);
        }
        let engine = &mut self.servers[place].reactors[reactor].engine;
        engine.sleep();
        let deadline = engine.next_deadline().map(|at| at.since(self.now));
        deadline.unwrap_or(IDLE_MAX).clamp(Duration::from_micros(1), IDLE_MAX)
    }
}

/// Messages.
impl World {
    fn leave(&mut self, place: usize, reactor: usize, outbound: Outbound) {
        match outbound {
            Outbound::Peer(sending) => self.send(place, reactor, sending),
            Outbound::Control(message) => self.send_up(place, message),
            Outbound::Reply(request, reply) => {
                let delay = self.weather.delay(&mut self.rng);
                self.plan_in(delay, Next::Answer(request, reply));
            }
            Outbound::Deleted(migration, hash) => {
                self.servers[place].inspector.note_deleted(migration, hash);
            }
        }
    }

    fn send(&mut self, place: usize, reactor: usize, sending: Sending) {
        let Sending { to, mut message, payload, .. } = sending;
        let (to, to_reactor) = match to {
            To::Back(route) => ((route.0 >> 16) as usize, (route.0 & 0xffff) as usize),
            To::Server(id) => {
                let to = self.servers.iter().position(|server| server.id == id);
                let to = to.expect("servers name servers of the cluster");
                (to, self.rng.usize(..self.servers[to].reactors.len()))
            }
        };
        if self.settings.planted == Some(Planted::FloorNotRaised) {
            planted::without_floor(&mut message);
        }
        if let PeerMessage::FlipAnswer { migration, accepted: true } = &message {
            self.accepted.insert(*migration);
        }
        let from = self.servers[place].id;
        let copies = self.weather.copies(&mut self.rng);
        self.trace.note(
            self.now,
            format_args!("{from} → {} {} {copies:?}", self.servers[to].id, peer(&message)),
        );
        let route = Route((place as u64) << 16 | reactor as u64);
        for delay in copies {
            let (message, payload) = (message.clone(), payload.clone());
            let inbound = Inbound::Peer { from, route, message, payload };
            self.plan_in(delay, Next::Arrive(to, to_reactor, inbound));
        }
    }

    fn send_up(&mut self, place: usize, message: ToCoordinator) {
        let from = self.servers[place].id;
        self.trace.note(self.now, format_args!("{from} → c {}", to_coordinator(&message)));
        if let ToCoordinator::Flipped { migration } = message {
            self.accepted.insert(migration);
        }
        if let (Some(Planted::ThawedWithoutAsking), ToCoordinator::FlipUnanswered { migration }) =
            (self.settings.planted, &message)
        {
            let message = FromCoordinator::Outcome { migration: *migration, accepted: false };
            return self.plan_in(Duration::ZERO, Next::Arrive(place, 0, Inbound::Control(message)));
        }
        let delay = self.weather.delay(&mut self.rng);
        let link = &mut self.servers[place].link;
        let Some(connection) = link.connection else { return };
        link.up = link.up.max(self.now + delay);
        let at = link.up;
        self.plan_at(at, Next::Up(connection, message));
    }

    fn arrive_up(&mut self, connection: ConnectionId, message: ToCoordinator) {
        if self.servers.iter().any(|server| server.link.connection == Some(connection)) {
            let effects = self.coordinate(Event::Received { connection, message });
            self.carry_out(effects);
        }
    }

    fn arrive_down(&mut self, place: usize, connection: ConnectionId, message: FromCoordinator) {
        if self.servers[place].link.connection != Some(connection) {
            return;
        }
        let Some(message) = self.tamper_down(place, message) else { return };
        // The link hands everything to one reactor, in order.
        self.servers[place].reactors[0].inbox.push_back(Inbound::Control(message));
        self.wake(place, 0);
    }

    /// What planted bugs make of a message from the coordinator.
    fn tamper_down(&mut self, place: usize, message: FromCoordinator) -> Option<FromCoordinator> {
        match (self.settings.planted, message) {
            (Some(Planted::NeverNotKept), FromCoordinator::Decide { migration })
                if !self.accepted.contains(&migration) =>
            {
                self.send_up(place, ToCoordinator::Decided { migration, accepted: false });
                None
            }
            (Some(Planted::ForgottenBeforeCut), FromCoordinator::Forget { migration, .. }) => {
                Some(FromCoordinator::Forget { migration, remaining: Vec::new() })
            }
            (_, message) => Some(message),
        }
    }
}

/// The coordinator and its links.
impl World {
    fn open_connection(&mut self) -> ConnectionId {
        self.connections += 1;
        let connection = ConnectionId(self.connections);
        let effects = self.coordinate(Event::Opened { connection });
        self.carry_out(effects);
        connection
    }

    fn coordinate(&mut self, event: Event) -> Vec<Effect> {
        let at = Moment { now: self.now, wall: self.wall() };
        let mut out = Outbox::new();
        let result = self.coordinator.handle(at, event, &mut out);
        result.expect("a store in memory takes every transaction");
        let due = self.coordinator.next_deadline().map(|due| due.max(self.now));
        if due != self.coordinator_due {
            self.coordinator_due = due;
            if let Some(due) = due {
                self.plan_at(due, Next::Coordinator);
            }
        }
        out.drain().collect()
    }

    fn carry_out(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Send { message: FromCoordinator::Answer { request, answer }, .. }
                    if request == OWN_REQUEST =>
                {
                    if let Answer::Migrations(reports) = answer {
                        self.migrations = reports;
                    }
                }
                Effect::Send { connection, message } => self.send_down(connection, message),
                Effect::Close { connection } => {
                    let closed = self.place_of(connection);
                    assert!(closed.is_none(), "a server of this run was thrown out");
                }
            }
        }
    }

    fn place_of(&self, connection: ConnectionId) -> Option<usize> {
        self.servers.iter().position(|server| server.link.connection == Some(connection))
    }

    fn send_down(&mut self, connection: ConnectionId, message: FromCoordinator) {
        let Some(place) = self.place_of(connection) else { return };
        let to = self.servers[place].id;
        self.trace.note(self.now, format_args!("c → {to} {}", from_coordinator(&message)));
        let delay = self.weather.delay(&mut self.rng);
        let link = &mut self.servers[place].link;
        link.down = link.down.max(self.now + delay);
        let at = link.down;
        self.plan_at(at, Next::Down(place, connection, message));
    }

    fn break_link(&mut self, place: usize) {
        if self.part != Part::Working {
            return;
        }
        if let Some(connection) = self.servers[place].link.connection.take() {
            self.trace
                .note(self.now, format_args!("the link of {} breaks", self.servers[place].id));
            self.servers[place].node.set_linked(false);
            let effects = self.coordinate(Event::Closed { connection });
            self.carry_out(effects);
            let away = if self.rng.u32(..4) == 0 { 2_500_000 } else { 50_000 };
            let away = self.micros(100..away);
            self.plan_in(away, Next::Rejoin(place));
        }
        let (again, other) = (self.micros(10_000..300_000), self.rng.usize(..SERVERS));
        self.plan_in(again, Next::Break(other));
    }

    fn rejoin(&mut self, place: usize) {
        let connection = self.open_connection();
        let server = &mut self.servers[place];
        server.link.connection = Some(connection);
        server.node.set_linked(true);
        let rejoin = Some((server.node.cluster(), server.id));
        let message = ToCoordinator::Join(join(place, rejoin));
        let effects = self.coordinate(Event::Received { connection, message });
        self.carry_out(effects);
    }

    /// The world's own word with the coordinator, past all networks.
    fn ask(&mut self, ask: Ask) {
        let connection = self.servers.iter().find_map(|server| server.link.connection);
        let Some(connection) = connection else { return };
        let message = ToCoordinator::Ask { request: OWN_REQUEST, ask };
        let effects = self.coordinate(Event::Received { connection, message });
        self.carry_out(effects);
    }

    fn ask_for_a_move(&mut self) {
        if self.part != Part::Working {
            return;
        }
        if self.rng.u32(..20) == 0 {
            self.ask(Ask::Cancel { source: None });
        } else {
            let target: ServerId = self.servers[self.rng.usize(..SERVERS)].id;
            let range = self.workload.draw_range(&mut self.rng);
            let policy = draw_policy(&mut self.rng);
            self.trace.note(self.now, format_args!("asked to move {range} to {target}"));
            self.ask(Ask::Migrate { ranges: vec![range], source: None, target, policy });
        }
        let pause = self.micros(500..30_000);
        self.plan_in(pause, Next::Move);
    }
}

/// Clients.
impl World {
    fn think(&mut self, client: usize) {
        // Its pause may have lasted from one part of the run into the next.
        if self.clients.is_busy(client) {
            return;
        }
        let (register, action) = match &mut self.part {
            Part::Working => self.workload.next(&mut self.rng),
            Part::Resting => return,
            Part::Reading(next) => {
                if *next == self.workload.registers.len() {
                    return;
                }
                *next += 1;
                (*next - 1, Action::Read)
            }
        };
        self.clients.begin(self.now, client, register, action);
        self.request(Request { client, register, action });
    }

    /// Sends an operation to where the client believes its register to be; now and then elsewhere.
    fn request(&mut self, request: Request) {
        let slot = self.workload.registers[request.register].slot();
        let known = self.clients.owner(request.client, slot);
        let is_lost = self.part == Part::Working && self.rng.u32(..30) == 0;
        let place = known.filter(|_| !is_lost).unwrap_or_else(|| self.rng.usize(..SERVERS));
        self.trace.note(self.now, format_args!("to {} {request:?}", self.servers[place].id));
        let reactor = self.rng.usize(..self.servers[place].reactors.len());
        let delay = self.weather.delay(&mut self.rng);
        self.plan_in(delay, Next::Arrive(place, reactor, Inbound::Request(request)));
    }

    fn answered(&mut self, request: Request, reply: Reply) {
        self.trace.note(self.now, format_args!("{request:?} = {reply:?}"));
        match reply {
            Reply::Outcome(outcome) => {
                self.clients.end(self.now, request.client, outcome);
                let pause = self.micros(1..300);
                self.plan_in(pause, Next::Think(request.client));
            }
            Reply::Moved(port) => {
                let slot = self.workload.registers[request.register].slot();
                if self.clients.redirect(request.client, slot, server_at(port)) {
                    self.request(request);
                } else {
                    self.failure = Some(Failure::Circles(format!("{request:?}")));
                }
            }
            Reply::Torn => self.failure = Some(Failure::Torn(format!("{request:?}"))),
        }
    }
}

/// Rules.
impl World {
    /// What the progress of this server has just passed must be here.
    fn check_progress(&mut self, place: usize) {
        let wall = self.wall();
        let passed = self.servers[place].inspector.newly_passed(&self.workload.registers);
        for (migration, source, hash) in passed {
            let at_source = self.servers.iter_mut().find(|server| server.id == source);
            let is_there = at_source.is_some_and(|server| server.inspector.has(wall, hash));
            let inspector = &mut self.servers[place].inspector;
            if is_there && !inspector.has_or_deleted(wall, migration, hash) {
                let text = format!("{migration} has passed {hash}, which only {source} has");
                self.failure = Some(Failure::ProgressAhead(text));
            }
        }
    }

    /// The weather clears, and everything has to come to an end.
    fn rest(&mut self) {
        if self.part == Part::Working {
            self.trace.note(self.now, format_args!("the weather clears"));
            self.part = Part::Resting;
            self.weather = Weather::fair();
            self.rest_by = self.now + REST_MAX;
        }
        self.ask(Ask::List);
        let moving: Vec<_> =
            self.migrations.iter().filter(|report| !is_over(report.state)).collect();
        let is_at_rest = moving.is_empty() && self.clients.open().next().is_none();
        match self.part {
            Part::Working => unreachable!("the working part has just ended"),
            Part::Resting if is_at_rest => {
                self.part = Part::Reading(0);
                (0..self.clients.count())
                    .for_each(|client| self.plan_in(REST_AGAIN, Next::Think(client)));
            }
            // Nothing is planned any more: the run ends.
            Part::Reading(next) if is_at_rest && next == self.workload.registers.len() => {
                return self.plan.clear();
            }
            Part::Resting | Part::Reading(_) => {}
        }
        if self.now >= self.rest_by {
            self.failure = Some(Failure::Stuck(self.describe_unrest()));
        }
        self.plan_in(REST_AGAIN, Next::Rest);
    }

    fn describe_unrest(&self) -> String {
        let mut text = String::new();
        for open in self.clients.open() {
            text.push_str(&format!("\n  open since {}: {:?}", open.since, open.request));
        }
        for report in self.migrations.iter().filter(|report| !is_over(report.state)) {
            text.push_str(&format!("\n  {report:?}"));
        }
        for server in &self.servers {
            for reactor in &server.reactors {
                text.push_str(&format!("\n  at {}: {}", server.id, reactor.waiting()));
            }
        }
        text
    }

    /// What clients saw, and what the servers hold at the end.
    fn judge(&mut self) -> Option<Failure> {
        match self.clients.judge() {
            Some((register, Verdict::Violated(text))) => {
                let key = String::from_utf8_lossy(&self.workload.registers[register].keys[0].1);
                return Some(Failure::NotLinearizable(format!("{key}: {text}")));
            }
            Some((register, _)) => return Some(Failure::GaveUp(format!("register {register}"))),
            None => {}
        }
        let wall = self.wall();
        let mut held = 0;
        for server in &mut self.servers {
            held += server.inspector.records(wall);
            let left = server.inspector.left_behind(wall);
            if !left.is_empty() {
                return Some(Failure::Misplaced(format!("{} holds {left:?}", server.id)));
            }
        }
        let exist = (0..self.workload.registers.len())
            .filter(|&register| self.clients.last_read(register).is_some())
            .map(|register| self.workload.registers[register].keys.len() as u64)
            .sum::<u64>();
        (held != exist)
            .then(|| Failure::Misplaced(format!("{held} records are held, {exist} exist")))
    }
}

fn is_over(state: MigrationState) -> bool {
    match state {
        MigrationState::Success | MigrationState::Cancelled | MigrationState::Failed => true,
        MigrationState::Queued
        | MigrationState::Preparing
        | MigrationState::Moving
        | MigrationState::Releasing => false,
    }
}
