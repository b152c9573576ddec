//! The servers of a run: the real engine on a store of its own, and the link to the coordinator.

use crate::inspect::Inspector;
use crate::reactor::Reactor;
use backup::Replicas;
use coordinator::ConnectionId;
use server::Cuts;
use server::engine::{Engine, Identity, Keeping, Kept, Mode, Node, Plan, Pulse, Replication};
use server::host::{Host, Job, Usage};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use store::{Store, StoreConfig, Tablet, TabletState};
use types::{ClusterId, Generation, HashRange, HashSeed, Instant, ReactorId, ServerId};
use wire::control::{Join, Mark};

/// Reactors of a server: two are enough for one of them to be behind.
const REACTORS: u16 = 2;

/// Client port of the first server; the others follow.
const FIRST_PORT: u16 = 7000;

pub(crate) struct Server {
    pub(crate) id: ServerId,
    /// The run of its process.
    pub(crate) generation: Generation,
    pub(crate) node: Arc<Node>,
    pub(crate) reactors: Vec<Reactor>,
    pub(crate) inspector: Inspector,
    /// What its link says to pings.
    pub(crate) pulse: Pulse,
    /// The tablets' version that was looked at last.
    pub(crate) tablets_version: u64,
    wake_all: Arc<AtomicBool>,
    has_ended: Arc<AtomicBool>,
    pub(crate) link: Link,
    /// The process is gone, and no other one stands in its place yet.
    pub(crate) is_dead: bool,
    /// It stands still until then.
    pub(crate) paused_until: Instant,
    /// How far its wall clock is ahead of that of the world.
    pub(crate) clock_ahead_millis: u64,
}

/// The connection to the coordinator. Both directions keep order.
#[derive(Debug)]
pub(crate) struct Link {
    /// `None`: it is broken.
    pub(crate) connection: Option<ConnectionId>,
    /// When the last message of each direction arrives.
    pub(crate) up: Instant,
    pub(crate) down: Instant,
}

/// The place of the server that has this client port.
pub(crate) fn server_at(port: u16) -> Option<usize> {
    port.checked_sub(FIRST_PORT).map(usize::from)
}

/// The cluster as the last process at a place has saved it, and a running one knows it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Saved {
    pub(crate) number: (ClusterId, ServerId),
    pub(crate) mark: Option<Mark>,
}

/// How servers keep what they hold.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Keeps {
    /// Each on its own disk.
    Own(Mode),
    /// On the disks of others; of segments of this size, unless that is as usual.
    Others(Plan, Option<usize>),
}

impl Keeps {
    pub(crate) fn mode(self) -> Mode {
        match self {
            Keeps::Own(mode) | Keeps::Others(Plan { mode, .. }, _) => mode,
        }
    }

    /// Replicas that others have of what a server holds.
    pub(crate) fn replicas(self) -> u16 {
        match self {
            Keeps::Own(_) => 0,
            Keeps::Others(plan, _) => plan.replicas,
        }
    }
}

/// What a process finds on its disk.
pub(crate) enum Folder {
    Own(Kept, Mode),
    Others(Replicas, Plan, Option<usize>),
}

impl Folder {
    fn segment_bytes(&self) -> Option<usize> {
        match self {
            Folder::Own(kept, _) => kept.segment_bytes(),
            Folder::Others(_, _, segment_bytes) => *segment_bytes,
        }
    }
}

/// The process of a server, as far as the server ends it.
struct Process {
    has_ended: Arc<AtomicBool>,
}

impl Host for Process {
    fn usage(&self) -> Usage {
        Usage::default()
    }

    fn reactors(&self) -> Vec<server::host::Counts> {
        Vec::new()
    }

    fn begin(&self, request: u64, job: Job) {
        unreachable!("nobody in a run asks for {job:?}, as {request}");
    }

    fn shut_down(&self) {
        unreachable!("nobody in a run asks for that");
    }

    fn fail(&self, reason: String) {
        panic!("{reason}");
    }

    fn begin_anew(&self, _reason: String) {
        self.has_ended.store(true, Ordering::Relaxed);
    }

    fn file(&self) -> Option<String> {
        None
    }

    fn driver(&self) -> &'static str {
        "none"
    }
}

/// Mostly more often than by default, so that moves in which nothing hurries are cut in the middle.
fn cuts(seed: u64) -> Cuts {
    match seed % 4 {
        0 => Cuts::default(),
        _ => Cuts { bytes: 64 << 20, after: Duration::from_millis(200) },
    }
}

/// What a server says first to the coordinator.
pub(crate) fn join(
    place: usize,
    rejoin: Option<(ClusterId, ServerId)>,
    replicas: u16,
    saved: Option<&Saved>,
) -> Join {
    Join {
        host: format!("server{place}"),
        client_port: FIRST_PORT + place as u16,
        bus_port: FIRST_PORT + 1000 + place as u16,
        rejoin,
        replicas,
        rack: String::new(),
        disk: None,
        former: saved.map(|saved| saved.number),
        mark: saved.and_then(|saved| saved.mark),
    }
}

impl Server {
    pub(crate) fn new(
        place: usize,
        identity: Identity,
        (seed, memory_bytes): (u64, usize),
        folder: Option<Folder>,
        link: ConnectionId,
    ) -> Server {
        let config = StoreConfig {
            memory_bytes,
            // The inspector is one more.
            reactors: REACTORS + 1,
            seed: HashSeed::new(seed),
            huge_pages: false,
            durable: folder.is_some(),
            segment_bytes: folder.as_ref().and_then(Folder::segment_bytes),
        };
        let store = Store::new(config).expect("there is enough memory for a small store");
        let Join { host, client_port, bus_port, .. } = join(place, None, 0, None);
        let settings = server::Settings {
            host,
            client_port,
            bus_port,
            memory_bytes,
            reactors: REACTORS,
            is_cluster: true,
            cuts: cuts(seed),
        };
        let whose = (identity.cluster, identity.server);
        let keeping = match folder {
            None => Keeping::Nothing,
            Some(Folder::Own(kept, mode)) => {
                let keeper = kept.keep(whose, store.log().segment_bytes(), mode);
                Keeping::Alone(Arc::new(keeper.expect("what a server has kept is whole")))
            }
            Some(Folder::Others(replicas, plan, _)) => {
                let replication = Replication::new(plan, identity.server, REACTORS, replicas);
                Keeping::Replicated(Arc::new(replication))
            }
        };
        let link_state = Arc::default();
        let node = Node::keeping(settings, identity, Arc::clone(&store), keeping, link_state);
        let wake_all = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&wake_all);
        node.set_wake_all(move || flag.store(true, Ordering::Relaxed));
        node.set_linked(true);
        let has_ended = Arc::new(AtomicBool::new(false));
        node.set_host(Box::new(Process { has_ended: has_ended.clone() }));
        let engines = (0..REACTORS).map(|r| Engine::new(Arc::clone(&node), ReactorId(r)));
        let reactors = engines.map(Reactor::new).collect();
        let inspector = Inspector::new(store.worker(ReactorId(REACTORS)));
        let generation = Generation(link.0);
        let link = Link { connection: Some(link), up: Instant(0), down: Instant(0) };
        Server {
            id: identity.server,
            generation,
            pulse: Pulse::new(Arc::clone(&node)),
            node,
            reactors,
            inspector,
            tablets_version: 0,
            wake_all,
            has_ended,
            link,
            is_dead: false,
            paused_until: Instant(0),
            clock_ahead_millis: 0,
        }
    }

    /// Whether it hears the coordinator, and serves all that it holds but for the ranges of which it
    /// has no news any more. Who is dead is at rest, unless it has kept its log.
    pub(crate) fn is_settled(&self, now: Instant, cannot_end: impl Fn(HashRange) -> bool) -> bool {
        // Who has none may be taken for dead, and not know.
        let replication = self.node.replication();
        let is_leased = replication.is_none_or(|replication| replication.is_leased(now));
        let tablets = self.node.store().tablets();
        let is_settled = |tablet: &Tablet| match tablet.state {
            TabletState::Serving => true,
            TabletState::Arriving(_) | TabletState::Leaving => cannot_end(tablet.range),
            TabletState::Frozen | TabletState::Recovering(_) | TabletState::Securing(_) => false,
        };
        match &self.node.keeper() {
            // It comes back, with everything.
            Some(keeper) if self.is_dead || keeper.progress().is_some() => false,
            None if self.is_dead => self.node.replication().is_none(),
            _ => self.link.connection.is_some() && is_leased && tablets.iter().all(is_settled),
        }
    }

    /// Ranges whose operations it executes at this moment.
    pub(crate) fn served(&self, now: Instant) -> Vec<HashRange> {
        if self.may_serve(now) { self.inspector.served() } else { Vec::new() }
    }

    /// Whether it executes operations at all.
    pub(crate) fn may_serve(&self, now: Instant) -> bool {
        let is_leased = match self.node.replication() {
            Some(replication) => replication.is_leased(now),
            None => !self.node.is_overdue(now),
        };
        !self.is_dead && is_leased
    }

    /// Whether the process has ended itself, to begin anew.
    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Relaxed)
    }

    /// Whether every reactor is to begin a turn soon, asked once.
    pub(crate) fn take_wake_all(&self) -> bool {
        self.wake_all.swap(false, Ordering::Relaxed)
    }
}
