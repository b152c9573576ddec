//! One run: servers, coordinator, clients and network, driven event by event from one seed.
//!
//! Time jumps from event to event. Events of the same moment happen in the order in which they were
//! planned, so that the seed decides everything. A run has three parts: clients work while ranges
//! move; then the weather clears and everything comes to rest; then every register is read once
//! more, and what clients saw and what servers hold is judged.

mod crashes;
mod deaths;
mod disks;
mod faults;
mod judge;
mod leaders;
mod links;
mod messages;
mod moves;
mod requests;
mod rollback;

use crate::clients::Clients;
use crate::failure::{Failure, Report, Rule};
use crate::network::Weather;
use crate::planted::Planted;
use crate::reactor::{Inbound, Outbound, Reactor, Surroundings};
use crate::servers::{Keeps, Saved, Server};
use crate::settings::{Knob, Settings};
use crate::trace::Trace;
use crate::workload::{Job, Workload};
use coordinator::{ConnectionId, Effect, Event};
use crashes::Losses;
use deaths::{Deaths, Strike};
use disks::Disk;
use fastrand::Rng;
use faults::Cuts;
use leaders::Leaders;
use rollback::FolderCopy;
use server::engine::{DiskJob, Identity, Mode, Plan};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use types::{
    ClusterId, HashSeed, Instant, KeyHash, MigrationId, OwnershipEpoch, ServerId, Slot, UnixMillis,
};
use wire::control::{
    ClusterMap, FromCoordinator, MigrationReport, MigrationState, RecoveryReport, ToCoordinator,
};

/// Servers of every run.
const SERVERS: usize = 3;

/// After the weather has cleared everything must come to rest within this time: repetitions take a
/// quarter of a second, demands of the coordinator a second, requests to what is lost five, and so
/// does the coordinator with a server that is gone.
const REST_MAX: Duration = Duration::from_secs(60);

/// How often it is looked whether everything has come to rest.
const REST_AGAIN: Duration = Duration::from_millis(20);

/// How often a server reads again what it keeps for others, if it does at all in this run.
const SCRUB_INTERVAL: Duration = Duration::from_millis(700);

/// Memory of a server: some migrations at once, each with its reservation.
const MEMORY_BYTES: usize = 256 << 20;

/// One run in so many has less.
const SCARCE_ONE_IN: u32 = 8;

/// In one run in so many servers keep their logs.
const KEPT_ONE_IN: u32 = 4;

/// Memory and segments of servers whose logs are to be cleaned, and how much longer values are there.
const SMALL_MEMORY_BYTES: [usize; 2] = [3 << 20, 4 << 20];
const SMALL_SEGMENT_BYTES: usize = 64 << 10;
const SMALL_LENGTH: usize = 12;

/// Makes other numbers of a seed.
const REPLICATED: u64 = 0x7265_706c_6963_6173;

/// One run in so many is long.
const LONG_ONE_IN: u32 = 16;

/// Long runs last so many times as long, and are as many times slower.
const LONG_SLOWNESS: u32 = 16;

/// An idle reactor looks at least this often.
const IDLE_MAX: Duration = Duration::from_millis(10);

/// The wall clock at the start of a run, in milliseconds.
const WALL_START: u64 = 1_700_000_000_000;

/// Number of the world's own requests to the coordinator.
const OWN_REQUEST: u64 = u64::MAX;

/// What is going to happen. Small, since most of it stands in the plan by itself.
#[derive(Debug)]
enum Next {
    Turn(usize, usize),
    Arrive(usize, usize, Inbound),
    Up(ConnectionId, Box<ToCoordinator>),
    Down(usize, ConnectionId, Box<FromCoordinator>),
    /// What a server has written arrives at its client.
    Answer(server::core::ConnectionId, Vec<u8>),
    Think(usize),
    /// A client finds its connection broken.
    Broken(server::core::ConnectionId),
    /// Nobody listens where the job of a slot is to be sent.
    Refused(usize),
    Move,
    Fault,
    Rejoin(usize),
    /// The coordinator hears that a connection has ended.
    Hangup(ConnectionId),
    /// A disk has done what a reactor asked for.
    Disk(usize, usize, Box<DiskJob>),
    /// A process starts where one has died.
    Start(usize),
    /// A coordinator is called.
    Coordinator(u32),
    /// The end of a link to a coordinator is heard of at the server.
    Sever(usize, ConnectionId),
    /// Another coordinator opens the store, unless there is one that leads.
    Lead,
    /// The newest store is brought back.
    BringBack,
    Strike(Strike),
    Rest,
}

/// Which part of the run it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Working,
    Resting,
    /// So many of the last jobs have been begun.
    Reading(usize),
}

struct World {
    now: Instant,
    rng: Rng,
    settings: Settings,
    weather: Weather,
    /// The kinds of faults that this run has.
    faults: Vec<Knob>,
    /// What each server has.
    memory_bytes: usize,
    /// How servers keep their logs, if they do.
    kept: Option<Keeps>,
    /// Whether ranges move in a run whose servers keep what they hold.
    moves_kept: bool,
    /// The disks of the servers.
    disks: Vec<Disk>,
    /// The cluster as each server knows it beside its map, and has saved it if it keeps anything.
    saved: [Option<Saved>; SERVERS],
    folder_copy: Option<FolderCopy>,
    /// Everything that the run does by itself takes so many times as long.
    slowness: u32,
    /// When nothing is away any more that has been away so far.
    away_until: Instant,
    cuts: Cuts,
    deaths: Deaths,
    losses: Losses,
    /// One turn in so many has a background quantum.
    leisure: u32,
    part: Part,
    /// How long clients have worked, once they do no more.
    worked: Option<Duration>,
    /// When everything must have come to rest.
    rest_by: Instant,
    /// When everything that expires has done so, by every clock.
    expired_by: Instant,
    /// How far a server's wall clock may be ahead of that of the world.
    skew_max_millis: u64,
    /// By how much the clocks of ranges differed that moved as one: the lower ones took a step.
    clock_steps: BTreeMap<MigrationId, Duration>,
    plan: BTreeMap<(Instant, u64), Next>,
    planned: u64,
    leaders: Leaders,
    connections: u64,
    servers: Vec<Server>,
    workload: Workload,
    clients: Clients,
    /// Texts that clients have had sent back.
    echoes: u64,
    /// What clients do last.
    closing: Vec<Job>,
    migrations: Vec<MigrationReport>,
    /// Deaths that are not dealt with, asked for when a run does not come to its end.
    recoveries: Vec<RecoveryReport>,
    /// Moves that were granted.
    started: BTreeSet<MigrationId>,
    /// By server: the newest map that it has had.
    maps_seen: BTreeMap<ServerId, u64>,
    /// By slot with keys: the highest epoch under which it was served.
    epochs: BTreeMap<Slot, OwnershipEpoch>,
    /// Migrations whose target has been seen to accept.
    accepted: BTreeSet<MigrationId>,
    /// What a reactor was told not to be at a source, and how often it has asked since.
    told_absent: BTreeMap<((usize, usize), MigrationId, KeyHash), u32>,
    /// For a planted bug: maps that servers were sent.
    maps: Vec<ClusterMap>,
    trace: Trace,
    failure: Option<Failure>,
}

/// Runs one seed. A failed assertion of the real code is a failure like any other.
pub fn run(settings: &Settings) -> Report {
    ::planted::plant(settings.planted.and_then(Planted::inside));
    let run = std::panic::AssertUnwindSafe(|| World::new(settings.clone()).run());
    std::panic::catch_unwind(run).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        Report {
            trace: 0,
            operations: 0,
            moved: 0,
            not_moved: 0,
            worked: Duration::ZERO,
            refused: 0,
            longest: Duration::ZERO,
            failure: Some(Rule::NoPanic.broken(text.unwrap_or_default())),
        }
    })
}

/// What servers have to live with in a run: their memory, who keeps their logs, and how they die.
struct Scene {
    memory_bytes: usize,
    kept: Option<Keeps>,
    moves_kept: bool,
    deaths: Deaths,
}

impl Scene {
    fn draw(rng: &mut Rng, settings: &Settings, workload: &mut Workload) -> Scene {
        let is_scarce = rng.u32(..SCARCE_ONE_IN) == 0 && settings.has(Knob::Memory);
        let scarce = [72 << 20, 88 << 20, 120 << 20][rng.usize(..3)];
        let is_kept = rng.u32(..KEPT_ONE_IN) == 0 && settings.has(Knob::Kept);
        let mode = [Mode::Memory, Mode::Interval, Mode::Disk][rng.usize(..3)];
        // From numbers of its own, so that other runs stay as they are.
        let mut replicated = Rng::with_seed(settings.seed ^ REPLICATED);
        let has_lineage = settings.has(Knob::Lineage);
        let is_others = is_kept && replicated.bool() && settings.has(Knob::Replicated);
        let (is_kept, is_others) =
            (is_kept || settings.is_replicated, is_others || settings.is_replicated);
        // No draw of its own, which would make other runs of all seeds.
        let scrub = settings.seed.is_multiple_of(2).then_some(SCRUB_INTERVAL);
        let plan = Plan { mode, replicas: replicated.u16(1..=2), scrub };
        let moves_kept = is_others && replicated.u32(..4) != 0 && has_lineage;
        let deaths = match is_others {
            true => Deaths::draw(&mut replicated, settings, plan),
            false => Deaths::default(),
        };
        let is_small = is_others && replicated.bool() && settings.has(Knob::Small);
        let small = SMALL_MEMORY_BYTES[replicated.usize(..2)];
        if is_small {
            workload.lengthen(SMALL_LENGTH);
        }
        let segment_bytes = is_small.then_some(SMALL_SEGMENT_BYTES);
        let keeps = match is_others {
            true => Keeps::Others(plan, segment_bytes),
            false => Keeps::Own(mode),
        };
        let memory_bytes = match (is_small, is_scarce) {
            (true, _) => small,
            (false, true) => scarce,
            (false, false) => MEMORY_BYTES,
        };
        Scene { memory_bytes, kept: is_kept.then_some(keeps), moves_kept, deaths }
    }
}

/// Setting up.
impl World {
    fn new(settings: Settings) -> World {
        let mut rng = Rng::with_seed(settings.seed);
        let identity = coordinator::Identity { cluster: ClusterId(1), seed: rng.u64(..) };
        let mut workload = Workload::draw(&mut rng, &HashSeed::new(identity.seed), &settings);
        let depths = requests::draw_depths(&mut rng, &settings);
        let clients = Clients::new(&depths, SERVERS, workload.registers.len());
        let closing = requests::closing(&mut rng, &workload);
        let weather = Weather::draw(&mut rng);
        let weather = if settings.has(Knob::Weather) { weather } else { Weather::fair() };
        let faults = faults::draw(&mut rng, &settings);
        let Scene { memory_bytes, kept, moves_kept, deaths } =
            Scene::draw(&mut rng, &settings, &mut workload);
        let is_long = rng.u32(..LONG_ONE_IN) == 0 && settings.has(Knob::Long);
        let trace = Trace::new(settings.is_printed);
        let leaders = Leaders::new(identity, settings.seed, settings.planted);
        let leisure = [1, 5, 25][rng.usize(..3)];
        let mut world = World {
            now: Instant(0),
            rng,
            settings,
            weather,
            faults,
            memory_bytes,
            kept,
            moves_kept,
            disks: (0..SERVERS).map(|_| Disk::default()).collect(),
            saved: [None; SERVERS],
            folder_copy: None,
            slowness: if is_long { LONG_SLOWNESS } else { 1 },
            away_until: Instant(0),
            cuts: Cuts::default(),
            deaths,
            losses: Losses::default(),
            leisure,
            part: Part::Working,
            worked: None,
            rest_by: Instant(0),
            expired_by: Instant(0),
            skew_max_millis: 0,
            clock_steps: BTreeMap::new(),
            plan: BTreeMap::new(),
            planned: 0,
            leaders,
            connections: 0,
            servers: Vec::new(),
            workload,
            clients,
            echoes: 0,
            closing,
            migrations: Vec::new(),
            recoveries: Vec::new(),
            started: BTreeSet::new(),
            maps_seen: BTreeMap::new(),
            epochs: BTreeMap::new(),
            accepted: BTreeSet::new(),
            told_absent: BTreeMap::new(),
            maps: Vec::new(),
            trace,
            failure: None,
        };
        for place in 0..SERVERS {
            assert!(world.start_server(place), "a small cluster takes every server");
        }
        world.plan_the_run();
        world
    }

    /// A process joins the cluster, as one that the coordinator has never heard of. `false`: no
    /// coordinator answers.
    fn start_server(&mut self, place: usize) -> bool {
        let identity = self.leaders.identity();
        // A process with the log of the one before it is the same server.
        let is_own = self.kept.is_some_and(|keeps| keeps.replicas() == 0);
        let before = self.servers.get(place).filter(|_| is_own);
        let rejoin = before.map(|before| (identity.cluster, before.id));
        let Some(connection) = self.open_connection(rejoin, None) else { return false };
        // Nobody is connected under this number yet, so the welcome is for this server.
        // What is saved outlives the process only where something is kept on a disk.
        let saved = self.saved[place].filter(|_| self.kept.is_some());
        let message = ToCoordinator::Join(self.join(place, rejoin, saved));
        let effects = self.coordinate(connection, Event::Received { connection, message });
        let welcomed = effects.iter().find_map(|effect| match effect {
            Effect::Send { message: FromCoordinator::Welcome { server, .. }, .. } => Some(*server),
            Effect::Send { .. } | Effect::Close { .. } => None,
        });
        let Some(server) = welcomed else {
            self.carry_out(effects);
            // It may wait for others to come; this process does not.
            let effects = self.coordinate(connection, Event::Closed { connection });
            self.carry_out(effects);
            return false;
        };
        let who = Identity { cluster: identity.cluster, server };
        let mark = self.saved[place].filter(|_| self.kept.is_some()).and_then(|it| it.mark);
        self.saved[place] = Some(Saved { number: (who.cluster, server), mark });
        let kept = self.kept.map(|keeps| self.disks[place].open(keeps));
        let about = (identity.seed, self.memory_bytes);
        let server = Server::new(place, who, about, kept, connection);
        match self.servers.get_mut(place) {
            Some(before) => *before = server,
            None => self.servers.push(server),
        }
        for reactor in 0..self.servers[place].reactors.len() {
            self.servers[place].reactors[reactor].due = self.now;
            self.plan_at(self.now, Next::Turn(place, reactor));
        }
        self.carry_out(effects);
        self.note_linked(place, connection);
        true
    }

    /// Replicas that others have of what each server holds.
    fn replicas(&self) -> u16 {
        self.kept.map_or(0, Keeps::replicas)
    }

    fn plan_the_run(&mut self) {
        // What a dead server held is served again after a third of a second.
        let usual = if self.replicas() > 0 { 400_000..2_000_000 } else { 200_000..800_000 };
        let end = self.micros(usual) * self.slowness;
        let end = self.settings.until.map_or(end, |until| end.min(until));
        self.plan_in(end, Next::Rest);
        // The map has to arrive first.
        for client in 0..self.clients.count() {
            self.clients.begins_to_think(client);
            self.plan_in(Duration::from_millis(5), Next::Think(client));
        }
        self.plan_in(Duration::from_millis(10), Next::Move);
        self.begin_faults();
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

    /// The wall clock of a server.
    fn wall_at(&self, place: usize) -> UnixMillis {
        UnixMillis(self.wall().0 + self.servers[place].clock_ahead_millis)
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
            worked: self.worked.unwrap_or(self.now.since(Instant(0))),
            refused: self.clients.refused(),
            longest: self.clients.longest,
            failure: self.failure,
        }
    }

    fn happen(&mut self, next: Next) {
        match next {
            Next::Turn(server, reactor) => self.turn(server, reactor),
            Next::Arrive(server, reactor, inbound) => {
                self.note_told((server, reactor), &inbound);
                self.servers[server].reactors[reactor].inbox.push_back(inbound);
                self.wake(server, reactor);
            }
            Next::Up(connection, message) => self.arrive_up(connection, *message),
            Next::Down(server, connection, message) => {
                self.arrive_down(server, connection, *message)
            }
            Next::Answer(connection, bytes) => self.answered(connection, bytes),
            Next::Think(client) => self.think(client),
            Next::Broken(connection) => self.broken(connection),
            Next::Refused(slot) => self.refused(slot),
            Next::Move => self.ask_for_a_move(),
            Next::Fault => self.fault(),
            Next::Rejoin(server) => self.rejoin(server),
            Next::Hangup(connection) => self.hang_up(connection),
            Next::Disk(server, reactor, job) => {
                let done = Inbound::Disk(job.carry_out());
                self.servers[server].reactors[reactor].inbox.push_back(done);
                self.wake(server, reactor);
            }
            Next::Start(server) => self.start_again(server),
            Next::Coordinator(number) => self.tick_leader(number),
            Next::Sever(server, connection) => self.sever(server, connection),
            Next::Lead => self.lead(),
            Next::BringBack => self.bring_back(),
            Next::Strike(strike) => self.strike(strike),
            Next::Rest => self.rest(),
        }
    }

    /// The reactor begins a turn soon.
    fn wake(&mut self, server: usize, reactor: usize) {
        let soon = self.now + self.micros(1..10);
        let sleeper = &mut self.servers[server].reactors[reactor];
        // One that is within its turn goes on when it does.
        if sleeper.due > soon && !sleeper.is_begun {
            sleeper.due = soon;
            self.plan_at(soon, Next::Turn(server, reactor));
        }
    }

    fn turn(&mut self, place: usize, reactor: usize) {
        let (now, wall) = (self.now, self.wall_at(place));
        let server = &mut self.servers[place];
        if server.reactors[reactor].due != now {
            return; // It was woken earlier, or put off.
        }
        if server.paused_until > now {
            let until = server.paused_until;
            server.reactors[reactor].due = until;
            return self.plan_at(until, Next::Turn(place, reactor));
        }
        if !server.reactors[reactor].is_begun {
            server.reactors[reactor].begin_turn(now, wall, self.settings.planted);
            // Now and then the operating system takes the processor away.
            let is_taken = self.rng.u32(..1000) == 0 && self.part == Part::Working;
            let soon = self.micros(1..if is_taken { 12_000 } else { 10 });
            self.servers[place].reactors[reactor].due = now + soon;
            return self.plan_in(soon, Next::Turn(place, reactor));
        }
        let mut out = Vec::new();
        let has_quantum = self.rng.u32(..self.leisure) == 0;
        self.with_reactor((place, reactor), false, &mut out, Reactor::listen);
        self.check_progress(place);
        let is_busy = self.with_reactor((place, reactor), has_quantum, &mut out, Reactor::turn);
        let pause = self.pause_after(place, reactor, is_busy);
        self.servers[place].reactors[reactor].due = now + pause;
        self.plan_in(pause, Next::Turn(place, reactor));
        for outbound in out {
            self.leave(place, reactor, outbound);
        }
        let (inspector, registers) = (&mut self.servers[place].inspector, &self.workload.registers);
        match self.settings.planted {
            Some(Planted::ReclaimedWithoutTombstone) => {
                inspector.reclaim_without_tombstone(wall, registers);
            }
            Some(Planted::DeleteWithoutTombstone) => inspector.drop_tombstones(wall, registers),
            _ => {}
        }
        self.check_progress(place);
        self.check_owners(place);
        if self.servers[place].has_ended() {
            return self.die(place, false);
        }
        if self.servers[place].take_wake_all() {
            (0..self.servers[place].reactors.len()).for_each(|other| self.wake(place, other));
        }
    }

    /// Runs a part of a reactor's turn.
    fn with_reactor<T>(
        &mut self,
        (place, reactor): (usize, usize),
        has_quantum: bool,
        out: &mut Vec<Outbound>,
        run: impl FnOnce(&mut Reactor, &mut Surroundings<'_>) -> T,
    ) -> T {
        let server = &mut self.servers[place];
        let clock = server.node.store().clock();
        server.inspector.worker.begin_turn(clock);
        let mut around = Surroundings {
            now: self.now,
            has_quantum,
            planted: self.settings.planted,
            inspector: &mut server.inspector.worker,
            out,
        };
        let result = run(&mut server.reactors[reactor], &mut around);
        server.inspector.worker.sleep();
        result
    }

    /// How long after this turn the next one begins.
    fn pause_after(&mut self, place: usize, reactor: usize, is_busy: bool) -> Duration {
        if is_busy {
            return self.micros(2..50);
        }
        let core = &mut self.servers[place].reactors[reactor].core;
        core.sleep();
        let deadline = core.next_deadline().map(|at| at.since(self.now));
        deadline.unwrap_or(IDLE_MAX).clamp(Duration::from_micros(1), IDLE_MAX)
    }
}
