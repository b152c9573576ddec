//! One run: servers, coordinator, clients and network, driven event by event from one seed.
//!
//! Time jumps from event to event. Events of the same moment happen in the order in which they
//! were planned, so the seed decides everything. A run has three parts. First, clients work while
//! ranges move. Then all faults end, and everything comes to rest. Last, clients read every
//! register once more, and the run checks the observations of the clients and the contents of the
//! servers.

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
use crate::servers::{Keeps, Saved, Server, SharedTime};
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
use node::{DiskJob, Identity, Mode, Plan};
use rollback::FolderCopy;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use types::{
    ClusterId, HashSeed, Instant, KeyHash, MigrationId, OwnershipEpoch, ServerId, Slot, UnixMillis,
};
use wire::control::{
    ClusterMap, FromCoordinator, MigrationReport, MigrationState, RecoveryReport, ToCoordinator,
};

/// Number of servers in every run.
const SERVERS: usize = 3;

/// Time within which everything must come to rest after the faults have ended. Retries take 250
/// ms, the coordinator repeats demands after 1 s, and requests for lost data fail after 5 s. The
/// coordinator also waits 5 s for a server that is gone.
const REST_MAX: Duration = Duration::from_secs(60);

/// Interval between two checks if everything has come to rest.
const REST_AGAIN: Duration = Duration::from_millis(20);

/// Scrubbing interval of the backups, in runs that scrub.
const SCRUB_INTERVAL: Duration = Duration::from_millis(700);

/// Memory of a server in bytes: enough for several migrations with their reservations.
const MEMORY_BYTES: usize = 256 << 20;

/// One run in this many has servers with less memory.
const SCARCE_ONE_IN: u32 = 8;

/// One run in this many has servers that persist their logs.
const KEPT_ONE_IN: u32 = 4;

/// Memory, segment size and value length factor in runs that are to clean their logs.
const SMALL_MEMORY_BYTES: [usize; 2] = [3 << 20, 4 << 20];
const SMALL_SEGMENT_BYTES: usize = 64 << 10;
const SMALL_LENGTH: usize = 12;

/// Mixed into the seed for the separate random numbers of replicated runs.
const REPLICATED: u64 = 0x7265_706c_6963_6173;

/// One run in this many is long.
const LONG_ONE_IN: u32 = 16;

/// Factor by which long runs last longer and are slower.
const LONG_SLOWNESS: u32 = 16;

/// Longest sleep of an idle reactor.
const IDLE_MAX: Duration = Duration::from_millis(10);

/// Wall clock at the start of a run, in milliseconds.
const WALL_START: u64 = 1_700_000_000_000;

/// Request number of the world's own requests to the coordinator.
const OWN_REQUEST: u64 = u64::MAX;

/// Planned event. Small, since the plan stores events by value.
#[derive(Debug)]
enum Next {
    Turn(usize, usize),
    Arrive(usize, usize, Inbound),
    Up(ConnectionId, Box<ToCoordinator>),
    Down(usize, ConnectionId, Box<FromCoordinator>),
    /// Reply bytes of a server arrive at a client.
    Answer(front::core::ConnectionId, Vec<u8>),
    Think(usize),
    /// A client notices that its connection is broken.
    Broken(front::core::ConnectionId),
    /// The job of this slot is refused, since no process listens at its server's address.
    Refused(usize),
    Move,
    Fault,
    Rejoin(usize),
    /// The coordinator notices that a connection has ended.
    Hangup(ConnectionId),
    /// A disk has finished a job of a reactor.
    Disk(usize, usize, Box<DiskJob>),
    /// A process starts in place of a dead one.
    Start(usize),
    /// The deadline of a coordinator.
    Coordinator(u32),
    /// A server notices that its link to a coordinator has ended.
    Sever(usize, ConnectionId),
    /// Another coordinator opens the store, unless one leads.
    Lead,
    /// An operator restores the newest store.
    BringBack,
    Strike(Strike),
    Rest,
}

/// Part of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Working,
    Resting,
    /// Final reads; contains the number of closing jobs that have begun.
    Reading(usize),
}

struct World {
    now: Instant,
    /// The same time, for reactors that read the clock within a turn.
    time: SharedTime,
    rng: Rng,
    settings: Settings,
    weather: Weather,
    /// Kinds of faults that this run has.
    faults: Vec<Knob>,
    /// Memory of each server, in bytes.
    memory_bytes: usize,
    /// Way in which servers persist their logs, if they do.
    kept: Option<Keeps>,
    /// Set if ranges move although servers persist their logs.
    moves_kept: bool,
    /// Disks of the servers.
    disks: Vec<Disk>,
    /// Identity and newest mark that each place knows. Survives the process if servers persist
    /// anything.
    saved: [Option<Saved>; SERVERS],
    folder_copy: Option<FolderCopy>,
    /// Factor by which the run's own delays are longer.
    slowness: u32,
    /// End of all outages so far.
    away_until: Instant,
    cuts: Cuts,
    deaths: Deaths,
    losses: Losses,
    /// One turn in this many has a background quantum.
    leisure: u32,
    part: Part,
    /// Time that the clients worked, once they have stopped.
    worked: Option<Duration>,
    /// Deadline for everything to come to rest.
    rest_by: Instant,
    /// Time at which everything that expires has expired by every clock.
    expired_by: Instant,
    /// Maximal lead of a server's wall clock over the world's, in milliseconds.
    skew_max_millis: u64,
    /// Difference between the clocks of the parts of a range that moved as one: the clocks behind
    /// were stepped forward.
    clock_steps: BTreeMap<MigrationId, Duration>,
    plan: BTreeMap<(Instant, u64), Next>,
    planned: u64,
    leaders: Leaders,
    connections: u64,
    servers: Vec<Server>,
    workload: Workload,
    clients: Clients,
    /// Number of `ECHO` requests so far.
    echoes: u64,
    /// Final jobs of the clients.
    closing: Vec<Job>,
    migrations: Vec<MigrationReport>,
    /// Unfinished recoveries, queried when a run does not come to rest.
    recoveries: Vec<RecoveryReport>,
    /// Moves that the coordinator has granted.
    started: BTreeSet<MigrationId>,
    /// Newest map version of each server.
    maps_seen: BTreeMap<ServerId, u64>,
    /// For each slot with keys, the highest epoch under which it was served.
    epochs: BTreeMap<Slot, OwnershipEpoch>,
    /// Migrations that their target has accepted.
    accepted: BTreeSet<MigrationId>,
    /// For each hash that a reactor learned to be absent at the source, the number of later
    /// requests.
    told_absent: BTreeMap<((usize, usize), MigrationId, KeyHash), u32>,
    /// For a planted bug: maps that were sent to servers.
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

/// Drawn environment of the servers: memory, persistence of the logs, and deaths.
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
        // Drawn from a separate generator, so that other runs stay the same.
        let mut replicated = Rng::with_seed(settings.seed ^ REPLICATED);
        let has_lineage = settings.has(Knob::Lineage);
        let is_others = is_kept && replicated.bool() && settings.has(Knob::Replicated);
        let (is_kept, is_others) =
            (is_kept || settings.is_replicated, is_others || settings.is_replicated);
        // Not drawn: a further draw would change the runs of all seeds.
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

/// Setup.
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
            time: SharedTime::new(Instant(0).into()),
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

    /// Starts a process that joins the cluster: under its previous id if it has its own log,
    /// otherwise as a new server. Returns `false` if no coordinator admits it.
    fn start_server(&mut self, place: usize) -> bool {
        let identity = self.leaders.identity();
        // A process with the log of its predecessor is the same server.
        let is_own = self.kept.is_some_and(|keeps| keeps.replicas() == 0);
        let before = self.servers.get(place).filter(|_| is_own);
        let rejoin = before.map(|before| (identity.cluster, before.id));
        let Some(connection) = self.open_connection(rejoin, None) else { return false };
        // No server is connected under this id yet, so the welcome is for this server. The saved
        // identity outlives the process only in runs with disks.
        let saved = self.saved[place].filter(|_| self.kept.is_some());
        let message = ToCoordinator::Join(self.join(place, rejoin, saved));
        let effects = self.coordinate(connection, Event::Received { connection, message });
        let welcomed = effects.iter().find_map(|effect| match effect {
            Effect::Send { message: FromCoordinator::Welcome { server, .. }, .. } => Some(*server),
            Effect::Send { .. } | Effect::Close { .. } => None,
        });
        let Some(server) = welcomed else {
            self.carry_out(effects);
            // The coordinator may wait for other servers first; this process does not.
            let effects = self.coordinate(connection, Event::Closed { connection });
            self.carry_out(effects);
            return false;
        };
        let who = Identity { cluster: identity.cluster, server };
        let mark = self.saved[place].filter(|_| self.kept.is_some()).and_then(|it| it.mark);
        self.saved[place] = Some(Saved { number: (who.cluster, server), mark });
        let kept = self.kept.map(|keeps| self.disks[place].open(keeps));
        let about = (identity.seed, self.memory_bytes);
        let server = Server::new(place, who, about, (kept, &self.time), connection);
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

    /// Returns the number of replicas that other servers have of each log.
    fn replicas(&self) -> u16 {
        self.kept.map_or(0, Keeps::replicas)
    }

    fn plan_the_run(&mut self) {
        // The ranges of a dead server are served again after a third of a second.
        let usual = if self.replicas() > 0 { 400_000..2_000_000 } else { 200_000..800_000 };
        let end = self.micros(usual) * self.slowness;
        let end = self.settings.until.map_or(end, |until| end.min(until));
        self.plan_in(end, Next::Rest);
        // Clients begin after the first map has arrived.
        for client in 0..self.clients.count() {
            self.clients.begins_to_think(client);
            self.plan_in(Duration::from_millis(5), Next::Think(client));
        }
        self.plan_in(Duration::from_millis(10), Next::Move);
        self.begin_faults();
    }
}

/// Time and events.
impl World {
    fn plan_at(&mut self, at: Instant, next: Next) {
        self.planned += 1;
        self.plan.insert((at, self.planned), next);
    }

    fn plan_in(&mut self, delay: Duration, next: Next) {
        self.plan_at(self.now + delay, next);
    }

    /// Draws a duration in microseconds.
    fn micros(&mut self, range: std::ops::Range<u64>) -> Duration {
        Duration::from_micros(self.rng.u64(range))
    }

    fn wall(&self) -> UnixMillis {
        UnixMillis(WALL_START + self.now.0 / 1_000_000)
    }

    /// Returns the wall clock of a server.
    fn wall_at(&self, place: usize) -> UnixMillis {
        UnixMillis(self.wall().0 + self.servers[place].clock_ahead_millis)
    }

    fn run(mut self) -> Report {
        while self.failure.is_none() {
            let Some(((at, _), next)) = self.plan.pop_first() else { break };
            self.now = at;
            self.time.set(at);
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

    /// Makes the reactor begin a turn soon.
    fn wake(&mut self, server: usize, reactor: usize) {
        let soon = self.now + self.micros(1..10);
        let sleeper = &mut self.servers[server].reactors[reactor];
        // A reactor in the middle of a turn continues at its planned time.
        if sleeper.due > soon && !sleeper.is_begun {
            sleeper.due = soon;
            self.plan_at(soon, Next::Turn(server, reactor));
        }
    }

    fn turn(&mut self, place: usize, reactor: usize) {
        let (now, wall) = (self.now, self.wall_at(place));
        let server = &mut self.servers[place];
        if server.reactors[reactor].due != now {
            return; // Superseded: the reactor was woken earlier, or postponed.
        }
        if server.paused_until > now {
            let until = server.paused_until;
            server.reactors[reactor].due = until;
            return self.plan_at(until, Next::Turn(place, reactor));
        }
        if !server.reactors[reactor].is_begun {
            server.reactors[reactor].begin_turn(now, wall, self.settings.planted);
            // Now and then the operating system preempts the reactor.
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

    /// Returns the time between this turn and the next one.
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
