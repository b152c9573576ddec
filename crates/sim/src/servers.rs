//! Servers of a run: the real engine on its own store, and the link to the coordinator.

use crate::inspect::Inspector;
use crate::power::DrawnVersions;
use crate::reactor::{Outbound, SimulatedReactor, Surroundings, TurnInput};
use crate::reactor_bus::ReactorBus;
use crate::streams::BusProfile;
use backup::Replicas;
use bus::Bus;
use coordinator::LinkId;
use front::Operators;
use handshake::{ClusterKeys, Credentials};
use links::Backoff;
use node::Cuts;
use node::{
    ClusterMembership, Engine, LogPlacement, Mode, Node, Plan, ReactorLiveness, RecoveredLog,
    Replication, ServerIdentity, Supervisor,
};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use store::{Store, StoreConfig, Tablet, TabletState};
use types::{
    ClusterId, Generation, HashRange, HashSeed, Instant, KeyHash, ReactorId, ServerId, UnixMillis,
};
use wire::control::{HistoryMark, Join};

/// Number of reactors of a server: with two, one can lag behind.
const REACTORS: u16 = 2;

/// Client port of the first server; the others follow.
const FIRST_PORT: u16 = 7000;

/// Distance of a server's bus port from its client port.
const BUS_PORTS: u16 = 1000;

/// Key of clusters that have one.
const KEY: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";

/// The run's time, which reactors read within their turns.
pub(crate) type SharedTime = Rc<Cell<Instant>>;

/// Interval between two inspections of the servers.
pub(crate) const INSPECTION_INTERVAL: Duration = Duration::from_millis(5);

/// Time for which a server must have been well, so that no operation is refused because of an
/// earlier fault.
const SETTLED: Duration = Duration::from_millis(50);

pub(crate) struct SimulatedServer {
    pub(crate) id: ServerId,
    /// Generation of its process.
    pub(crate) generation: Generation,
    pub(crate) node: Arc<Node>,
    pub(crate) reactors: Vec<SimulatedReactor>,
    pub(crate) inspector: Inspector,
    /// Liveness state with which the link answers pings.
    pub(crate) liveness: ReactorLiveness,
    /// Version of the tablets at the last check.
    pub(crate) tablets_version: u64,
    wake_all: Arc<AtomicBool>,
    has_ended: Arc<AtomicBool>,
    pub(crate) link: CoordinatorLink,
    /// Set if the process is gone, and no other one has replaced it yet.
    pub(crate) is_dead: bool,
    /// End of the current pause.
    pub(crate) paused_until: Instant,
    /// Lead of its wall clock over the true one, in milliseconds.
    pub(crate) clock_ahead_millis: i64,
    /// Time since which each inspection has found the server well, with the same tablets.
    well_since: Instant,
    /// Version of the tablets at the last inspection.
    inspected_version: u64,
    /// Time of the last inspection that found the lease lost, so that the server refuses.
    lease_lost_at: Option<Instant>,
    /// Versions that it has drawn, if its log must be synced in time.
    pub(crate) drawn: DrawnVersions,
}

/// Link of a process to its coordinator.
pub(crate) struct CoordinatorLink {
    /// Connection that is being opened or used.
    pub(crate) connection: Option<LinkId>,
    /// Set if the coordinator has welcomed this connection.
    pub(crate) is_connected: bool,
    pub(crate) membership: ClusterMembership,
    pub(crate) backoff: Backoff,
}

/// Returns the place of the server that has this bus port.
pub(crate) fn place_of_bus_port(port: u16) -> Option<usize> {
    port.checked_sub(BUS_PORTS).and_then(server_at)
}

/// Returns the place of the server that has this client port.
/// Returns the address of the server at a place, for clients.
pub(crate) fn server_address(place: usize) -> String {
    format!("server{place}:{}", usize::from(FIRST_PORT) + place)
}

pub(crate) fn server_at(port: u16) -> Option<usize> {
    port.checked_sub(FIRST_PORT).map(usize::from)
}

/// Identity and newest mark of a place, as its current or last process has saved them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SavedIdentity {
    pub(crate) number: (ClusterId, ServerId),
    pub(crate) mark: Option<HistoryMark>,
}

/// Persistence of the servers' logs.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Persistence {
    /// Each server has its own log on its own disk.
    LocalLog(LocalLog),
    /// Other servers have replicas; the size is that of the segments, if not the default.
    Replicated(Plan, Option<usize>),
}

/// Log of a server on its own disk.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LocalLog {
    pub(crate) mode: Mode,
    /// Time for which bytes stay unsynced in mode `interval`, if not the default.
    pub(crate) sync_interval: Option<Duration>,
    /// Size of the segments, if not the default.
    pub(crate) segment_bytes: Option<usize>,
}

impl Persistence {
    pub(crate) fn mode(self) -> Mode {
        match self {
            Persistence::LocalLog(LocalLog { mode, .. })
            | Persistence::Replicated(Plan { mode, .. }, _) => mode,
        }
    }

    /// Returns the number of replicas that other servers have of a log.
    pub(crate) fn replicas(self) -> u16 {
        match self {
            Persistence::LocalLog(_) => 0,
            Persistence::Replicated(plan, _) => plan.replicas,
        }
    }
}

/// Contents of the disk at the start of a process.
pub(crate) enum OpenedDisk {
    LocalLog(RecoveredLog, LocalLog),
    Replicas(Replicas, Plan, Option<usize>),
}

impl OpenedDisk {
    fn segment_bytes(&self) -> Option<usize> {
        match self {
            OpenedDisk::LocalLog(kept, plan) => kept.segment_bytes().or(plan.segment_bytes),
            OpenedDisk::Replicas(_, _, segment_bytes) => *segment_bytes,
        }
    }
}

/// Process of a server, as far as the server can end it.
struct SimulatedProcess {
    has_ended: Arc<AtomicBool>,
}

impl Supervisor for SimulatedProcess {
    fn fail(&self, reason: String) {
        panic!("{reason}");
    }

    fn begin_anew(&self, _reason: String) {
        self.has_ended.store(true, Ordering::Relaxed);
    }
}

/// Returns whether a server serves a range with all its records.
pub(crate) fn is_served(tablet: &Tablet) -> bool {
    match tablet.state {
        TabletState::Serving | TabletState::Securing(_) => true,
        TabletState::Arriving(_)
        | TabletState::Frozen
        | TabletState::Leaving
        | TabletState::Recovering(_) => false,
    }
}

/// Returns the limits of cuts. Most are shorter than the default, so that slow moves have cuts,
/// too.
fn cuts(seed: u64) -> Cuts {
    match seed % 4 {
        0 => Cuts::default(),
        _ => {
            let after = Duration::from_millis(200);
            Cuts { bytes: 64 << 20, after, after_max: after, ..Cuts::default() }
        }
    }
}

/// Returns the first message of a server to the coordinator.
pub(crate) fn join(
    place: usize,
    rejoin: Option<(ClusterId, ServerId)>,
    replicas: u16,
    rack: String,
    saved: Option<&SavedIdentity>,
) -> Join {
    Join {
        host: format!("server{place}"),
        client_port: FIRST_PORT + place as u16,
        bus_port: FIRST_PORT + BUS_PORTS + place as u16,
        rejoin,
        replicas,
        rack,
        disk: saved.map(|saved| saved.number.0),
        former: saved.map(|saved| saved.number),
        mark: saved.and_then(|saved| saved.mark),
    }
}

/// Returns the credentials of a process.
pub(crate) fn credentials(generation: Generation, has_keys: bool) -> Credentials {
    let keys = has_keys.then(|| ClusterKeys::parse(KEY).expect("the key is valid"));
    Credentials::new(generation, keys)
}

/// Creates one reactor's engine, which reads the run's time within its turns.
fn engine(node: &Arc<Node>, reactor: ReactorId, time: SharedTime) -> Engine {
    let mut engine = Engine::new(Arc::clone(node), reactor);
    engine.set_time_within_turn(Box::new(move || time.get()));
    engine
}

/// Everything that a process starts with.
pub(crate) struct ProcessSetup {
    pub(crate) identity: ServerIdentity,
    /// Seed of the cluster's key hash.
    pub(crate) seed: u64,
    pub(crate) memory_bytes: usize,
    /// Longest packed value, in bytes.
    pub(crate) packed_bytes: usize,
    /// Disk with the log, if logs are persisted.
    pub(crate) disk: Option<OpenedDisk>,
    /// The run's time.
    pub(crate) time: SharedTime,
    /// Connection to the coordinator.
    pub(crate) connection: LinkId,
    /// Connections between servers, if they exchange bytes.
    pub(crate) bus: Option<BusProfile>,
}

impl ProcessSetup {
    fn store(&self) -> Arc<Store> {
        let config = StoreConfig {
            memory_bytes: self.memory_bytes,
            // The inspector has a worker, too.
            reactors: REACTORS + 1,
            seed: HashSeed::new(self.seed),
            huge_pages: false,
            durable: self.disk.is_some(),
            segment_bytes: self.disk.as_ref().and_then(OpenedDisk::segment_bytes),
        };
        Store::new(config).expect("there is enough memory for a small store")
    }

    fn settings(&self, place: usize) -> node::NodeSettings {
        let Join { host, client_port, bus_port, .. } = join(place, None, 0, String::new(), None);
        node::NodeSettings {
            host,
            client_port,
            bus_port,
            memory_bytes: self.memory_bytes,
            reactors: REACTORS,
            is_cluster: true,
            cuts: cuts(self.seed),
        }
    }

    /// Starts the persistence of the log on its disk.
    fn durability(self, store: &Store) -> Replication {
        let server = self.identity.server;
        match self.disk {
            None => Replication::nowhere(server, REACTORS),
            Some(OpenedDisk::LocalLog(log, plan)) => {
                let durability = Replication::alone(log, self.identity, plan.mode, REACTORS, store);
                let durability = durability.expect("a server's persisted log is complete");
                match plan.sync_interval {
                    Some(interval) => durability.with_sync_interval(interval),
                    None => durability,
                }
            }
            Some(OpenedDisk::Replicas(replicas, plan, _)) => {
                Replication::new(plan, server, REACTORS, replicas)
            }
        }
    }
}

impl SimulatedServer {
    pub(crate) fn new(
        place: usize,
        membership: ClusterMembership,
        setup: ProcessSetup,
    ) -> SimulatedServer {
        let store = setup.store();
        let settings = setup.settings(place);
        let (identity, connection, profile) = (setup.identity, setup.connection, setup.bus);
        let packed_bytes = setup.packed_bytes;
        let time = Rc::clone(&setup.time);
        let started = time.get();
        let durability = Arc::new(setup.durability(&store));
        let link_state = Arc::default();
        let node = Node::new(settings, identity, Arc::clone(&store), durability, link_state);
        let wake_all = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&wake_all);
        node.set_wake(move |_| flag.store(true, Ordering::Relaxed));
        node.set_linked(true);
        let has_ended = Arc::new(AtomicBool::new(false));
        node.set_supervisor(Box::new(SimulatedProcess { has_ended: has_ended.clone() }));
        let engines = (0..REACTORS).map(|r| engine(&node, ReactorId(r), Rc::clone(&time)));
        let operators = Arc::new(Operators::new(REACTORS));
        operators.set_packed_bytes(packed_bytes);
        let generation = Generation(connection.0);
        let credentials = profile.map(|bus| credentials(generation, bus.has_keys));
        let bus = |reactor: u64| {
            let owner = generation.0 << 8 | reactor;
            let too_long = operators.frames_too_long.clone();
            let mut bus = Bus::new(&node, credentials.clone()?, too_long);
            bus.limit_backlog(profile?.backlog_max);
            Some(ReactorBus::new(bus, owner))
        };
        let reactor =
            |(engine, number)| SimulatedReactor::new(engine, operators.clone(), bus(number));
        let reactors = engines.zip(0..).map(reactor).collect();
        let inspector = Inspector::new(store.worker(ReactorId(REACTORS)));
        let link = CoordinatorLink {
            connection: Some(connection),
            is_connected: true,
            membership,
            backoff: Backoff::new(),
        };
        SimulatedServer {
            id: identity.server,
            generation,
            liveness: ReactorLiveness::new(Arc::clone(&node)),
            node,
            reactors,
            inspector,
            tablets_version: 0,
            wake_all,
            has_ended,
            link,
            is_dead: false,
            paused_until: Instant(0),
            well_since: started,
            inspected_version: 0,
            lease_lost_at: None,
            drawn: DrawnVersions::default(),
            clock_ahead_millis: 0,
        }
    }

    /// Records whether the coordinator has welcomed the current connection.
    pub(crate) fn set_linked(&mut self, is_linked: bool) {
        self.link.is_connected = is_linked;
        self.node.set_linked(is_linked);
    }

    pub(crate) fn wall(&self, true_wall: UnixMillis) -> UnixMillis {
        UnixMillis(true_wall.0.saturating_add_signed(self.clock_ahead_millis))
    }

    pub(crate) fn run_reactor<T>(
        &mut self,
        reactor: usize,
        input: TurnInput,
        out: &mut Vec<Outbound>,
        part: impl FnOnce(&mut SimulatedReactor, &mut Surroundings<'_>) -> T,
    ) -> T {
        let clock = self.node.store().clock();
        self.inspector.worker.begin_turn(clock);
        let mut around = Surroundings { input, inspector: &mut self.inspector.worker, out };
        let result = part(&mut self.reactors[reactor], &mut around);
        self.inspector.worker.sleep();
        result
    }

    /// Returns whether the server is linked to the coordinator and serves all its ranges, except
    /// those in a migration that cannot end. A dead server is settled only if its log is not
    /// persisted.
    pub(crate) fn is_settled(&self, now: Instant, cannot_end: impl Fn(HashRange) -> bool) -> bool {
        // A server without a lease may have been declared dead without knowing it.
        let durability = self.node.durability();
        let is_leased = !durability.is_with_others() || durability.is_leased(now);
        let tablets = self.node.store().tablets();
        let is_settled = |tablet: &Tablet| match tablet.state {
            TabletState::Serving => true,
            TabletState::Arriving(_) | TabletState::Leaving => cannot_end(tablet.range),
            TabletState::Frozen | TabletState::Recovering(_) | TabletState::Securing(_) => false,
        };
        match durability.placement() {
            // The server comes back, with everything.
            LogPlacement::OwnDisk if self.is_dead => false,
            LogPlacement::OwnDisk if durability.load_progress().is_some() => false,
            LogPlacement::Nowhere if self.is_dead => true,
            LogPlacement::OtherServers if self.is_dead => false,
            _ => self.link.is_connected && is_leased && tablets.iter().all(is_settled),
        }
    }

    /// Returns the ranges in which the server executes operations at this moment.
    pub(crate) fn served(&self, now: Instant) -> Vec<HashRange> {
        if self.may_serve(now) { self.inspector.served() } else { Vec::new() }
    }

    /// Returns whether the server executes operations at all.
    pub(crate) fn may_serve(&self, now: Instant) -> bool {
        let durability = self.node.durability();
        let is_leased = match durability.is_with_others() {
            true => durability.is_leased(now),
            false => !self.node.is_overdue(now),
        };
        !self.is_dead && is_leased
    }

    /// Looks whether the server is well: its process runs, has its lease, and has all the replicas
    /// of its log.
    pub(crate) fn inspect(&mut self, now: Instant) {
        let durability = self.node.durability();
        let is_well = self.may_serve(now)
            && self.paused_until <= now
            && durability.is_with_others()
            && durability.under_replicated() == 0;
        if durability.is_with_others() && durability.has_lost_lease(now) {
            self.lease_lost_at = Some(now);
        }
        let version = self.node.tablets_version();
        if !is_well || version != self.inspected_version {
            self.well_since = now;
        }
        self.inspected_version = version;
    }

    /// Returns whether the server has been well since this time and for a while before, and has
    /// served this hash.
    pub(crate) fn has_served(&self, hash: KeyHash, since: Instant) -> bool {
        let tablets = self.node.store().tablets();
        let is_ours = tablets.at(hash).is_some_and(is_served);
        let is_same = self.node.tablets_version() == self.inspected_version;
        !self.is_dead && is_ours && is_same && self.well_since + SETTLED <= since
    }

    /// Returns whether the server may have refused operations since this time because it had no
    /// lease for too long. It may have got one since, and after the last inspection that found none.
    pub(crate) fn has_lost_lease(&self, since: Instant, now: Instant) -> bool {
        let durability = self.node.durability();
        let has_just = durability.is_with_others() && durability.has_lost_lease(now);
        has_just || self.lease_lost_at.is_some_and(|at| at + INSPECTION_INTERVAL >= since)
    }

    /// Returns whether the process has ended itself in order to rejoin as a new server.
    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Relaxed)
    }

    /// Returns whether every reactor is to begin a turn soon, and resets this flag.
    pub(crate) fn take_wake_all(&self) -> bool {
        self.wake_all.swap(false, Ordering::Relaxed)
    }
}
