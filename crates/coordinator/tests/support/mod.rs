//! The environment of all tests: a coordinator with a clock, a store that outlives it, and
//! connections.

#![allow(dead_code, unreachable_pub, reason = "each test binary uses another part")]

pub mod text;

use coordinator::{
    Caller, ClusterIdentity, Coordinator, CoordinatorEvent, CoordinatorSettings, Drawn, Effect,
    Effects, LinkId, MemoryStore, MetaStore, Moment, Stopped, Transaction,
};
use coordinator_server::FileStore;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;
use types::{ClusterId, Generation, HashRange, Instant, ServerId, Slot, UnixMillis};
use wire::control::{
    Ask, ClockReading, FromCoordinator, Join, LivenessRequest, LivenessUpdate, MigrationPolicy,
    ToCoordinator,
};

/// A store that outlives the coordinator.
pub enum Storage {
    Memory(MemoryStore),
    File { path: PathBuf, _folder: tempfile::TempDir },
}

impl Storage {
    pub fn memory() -> Storage {
        Storage::Memory(MemoryStore::new())
    }

    pub fn file() -> Storage {
        let folder = tempfile::tempdir().unwrap();
        Storage::File { path: folder.path().join("meta.redb"), _folder: folder }
    }

    /// A copy of a file that another version has written.
    pub fn copy_of(file: &Path) -> Storage {
        let storage = Storage::file();
        let Storage::File { path, .. } = &storage else { unreachable!("it is a file") };
        std::fs::copy(file, path).unwrap();
        storage
    }

    pub fn open(&self) -> Box<dyn MetaStore + Send> {
        match self {
            Storage::Memory(store) => Box::new(store.clone()),
            Storage::File { path, .. } => Box::new(FileStore::open(path).unwrap()),
        }
    }
}

pub const IDENTITY: ClusterIdentity = ClusterIdentity { cluster: ClusterId(77), seed: 42 };

/// Time at which the store answers a commit.
pub enum CommitTime {
    AtOnce,
    /// When the test calls [`World::finish_commit`]. Transactions are among the effects.
    ByHand,
    /// Up to 50 ms later.
    Random(fastrand::Rng),
}

/// A sequence of coordinators on one store.
pub struct World {
    storage: Storage,
    coordinator: Option<Coordinator>,
    /// The open store of the coordinator.
    store: Option<Box<dyn MetaStore + Send>>,
    pub commit_time: CommitTime,
    /// Transaction in flight, with the time of its commit if that is known.
    in_flight: Option<(Transaction, Option<Instant>)>,
    settings: CoordinatorSettings,
    now: Instant,
    connections: u64,
    /// Servers that do not answer pings. All others answer at once.
    pub hanging: BTreeSet<LinkId>,
    /// Includes pings in the effects.
    pub shows_pings: bool,
    /// Milliseconds by which servers' clocks are ahead.
    pub clocks_ahead: BTreeMap<LinkId, i64>,
    /// Includes marks in the effects.
    pub shows_marks: bool,
    /// Owners of new ranges do not confirm them. Otherwise they do so at once.
    pub births_are_silent: bool,
    /// Number of coordinators started so far.
    starts: u64,
    pub trusts_file: bool,
}

/// Wall clock of the servers at the beginning, in milliseconds.
const WALL_START: u64 = 1_700_000_000_000;

impl World {
    pub fn new(storage: Storage) -> World {
        let mut world = World {
            storage,
            coordinator: None,
            store: None,
            commit_time: CommitTime::AtOnce,
            in_flight: None,
            settings: CoordinatorSettings::default(),
            now: Instant(0),
            connections: 0,
            hanging: BTreeSet::new(),
            shows_pings: false,
            clocks_ahead: BTreeMap::new(),
            shows_marks: false,
            births_are_silent: false,
            starts: 0,
            trusts_file: false,
        };
        world.restart();
        world
    }

    pub fn coordinator(&self) -> &Coordinator {
        self.coordinator.as_ref().unwrap()
    }

    /// Replaces the coordinator; all connections are lost. A transaction in flight takes effect or
    /// not if commits take random times, and does not otherwise.
    pub fn restart(&mut self) {
        if let CommitTime::Random(random) = &mut self.commit_time
            && random.bool()
        {
            self.apply_transaction();
        }
        self.stop();
        let mut store = self.storage.open();
        let other = ClusterIdentity { cluster: ClusterId(1), seed: 1 };
        let fresh = if self.connections == 0 { IDENTITY } else { other };
        self.starts += 1;
        let drawn = Drawn { fresh, term: 100 + self.starts };
        let settings = CoordinatorSettings { trusts_file: self.trusts_file, ..self.settings };
        let opened = Coordinator::open(&mut store, drawn, settings, self.now);
        self.coordinator = Some(opened.unwrap());
        self.store = Some(store);
    }

    /// Ends the coordinator. A file can be open only once, and is closed as well.
    fn stop(&mut self) {
        (self.coordinator, self.store, self.in_flight) = (None, None, None);
    }

    /// Lets another coordinator open the same store.
    pub fn take_over(&mut self) {
        let drawn = Drawn { fresh: IDENTITY, term: 1000 };
        let store = self.store.as_mut().unwrap();
        Coordinator::open(store, drawn, self.settings, self.now).unwrap();
    }

    /// Applies the transaction in flight. The coordinator does not learn of it.
    pub fn apply_transaction(&mut self) -> Option<CoordinatorEvent> {
        let (transaction, _) = self.in_flight.take()?;
        let verdict = self.store.as_mut().unwrap().transact(&transaction).unwrap();
        Some(CoordinatorEvent::Committed(verdict))
    }

    /// Applies the transaction in flight, and informs the coordinator.
    pub fn finish_commit(&mut self) -> Result<Vec<Effect>, Stopped> {
        let committed = self.apply_transaction().expect("no transaction is in flight");
        self.try_handle(committed)
    }

    /// Begins a transaction. Returns the effects that follow at once.
    fn begin_commit(&mut self, transaction: Transaction) -> Result<Vec<Effect>, Stopped> {
        assert!(self.in_flight.is_none(), "one transaction is in flight at a time");
        let at = match &mut self.commit_time {
            CommitTime::AtOnce => None,
            CommitTime::ByHand => {
                self.in_flight = Some((transaction.clone(), None));
                return Ok(vec![Effect::Commit(transaction)]);
            }
            CommitTime::Random(random) => {
                Some(self.now + Duration::from_micros(random.u64(..50_000)))
            }
        };
        self.in_flight = Some((transaction, at));
        if at.is_none() { self.finish_commit() } else { Ok(Vec::new()) }
    }

    fn next_commit(&self) -> Option<Instant> {
        self.in_flight.as_ref()?.1
    }

    pub fn now(&self) -> Instant {
        self.now
    }

    pub fn next_deadline(&self) -> Option<Instant> {
        self.coordinator().next_deadline()
    }

    pub fn try_handle(&mut self, event: CoordinatorEvent) -> Result<Vec<Effect>, Stopped> {
        let at = Moment { now: self.now, wall: UnixMillis(1_000 + self.now.0 / 1_000_000) };
        let mut out = Effects::new();
        self.coordinator.as_mut().unwrap().handle(at, event, &mut out)?;
        let mut effects = Vec::new();
        let mut births = Vec::new();
        for effect in out.drain() {
            match &effect {
                Effect::Commit(transaction) => {
                    effects.extend(self.begin_commit(transaction.clone())?);
                    continue;
                }
                Effect::Send { message: FromCoordinator::Mark(_), .. } if !self.shows_marks => {
                    continue;
                }
                Effect::Send {
                    message: FromCoordinator::Liveness(LivenessRequest::Witness { .. }),
                    ..
                } if !self.shows_pings => {
                    continue;
                }
                Effect::Send { connection, message: FromCoordinator::Map(map) } => {
                    let born = map.tablets.iter().filter(|tablet| tablet.is_born);
                    births.extend(born.map(|born| (*connection, born.range, born.epoch)));
                }
                Effect::Send { .. } | Effect::Close { .. } => {}
            }
            let Some((connection, message)) = self.answer_of_link(&effect) else {
                effects.push(effect);
                continue;
            };
            if self.shows_pings
                && matches!(message, ToCoordinator::Liveness(LivenessUpdate::Pong { .. }))
            {
                effects.push(effect);
            }
            if !self.hanging.contains(&connection) {
                effects
                    .extend(self.try_handle(CoordinatorEvent::Received { connection, message })?);
            }
        }
        births.retain(|_| !self.births_are_silent);
        for (connection, range, epoch) in births {
            let message = ToCoordinator::Holding { range, epoch };
            effects.extend(self.try_handle(CoordinatorEvent::Received { connection, message })?);
        }
        Ok(effects)
    }

    /// Returns the automatic answer of a server's link.
    fn answer_of_link(&self, effect: &Effect) -> Option<(LinkId, ToCoordinator)> {
        match effect {
            Effect::Send {
                connection,
                message: FromCoordinator::Liveness(LivenessRequest::Ping),
            } => Some((*connection, LivenessUpdate::Pong { is_stalled: false }.into())),
            Effect::Send { connection, message: FromCoordinator::Clock(question) } => {
                let ahead = self.clocks_ahead.get(connection).copied().unwrap_or(0);
                let true_time = WALL_START + self.now.0 / 1_000_000;
                let wall = UnixMillis(true_time.saturating_add_signed(ahead));
                let (asked, expiry) = (question.asked, Some(UnixMillis(true_time)));
                Some((*connection, ToCoordinator::Clock(ClockReading { asked, wall, expiry })))
            }
            Effect::Send { .. } | Effect::Commit(_) | Effect::Close { .. } => None,
        }
    }

    /// Returns a copy of the store. Starts another coordinator, because a file can be open only
    /// once.
    pub fn copy(&mut self) -> MemoryStore {
        self.stop();
        let mut copy = MemoryStore::new();
        let writes = self.storage.open().list("").unwrap();
        // Revisions count transactions, so the copy needs as many of them.
        let last = writes.iter().map(|(_, entry)| entry.revision.0).max().unwrap_or(0);
        for revision in 1..=last {
            let of_it = writes.iter().filter(|(_, entry)| entry.revision.0 == revision);
            let writes = of_it.map(|(key, entry)| (key.clone(), Some(entry.value.clone())));
            let transaction = Transaction { expected: Vec::new(), writes: writes.collect() };
            copy.transact(&transaction).unwrap();
        }
        self.restart();
        copy
    }

    /// Replaces the store by an earlier copy.
    pub fn put_back(&mut self, copy: MemoryStore) {
        self.stop();
        self.storage = Storage::Memory(copy);
    }

    pub fn handle(&mut self, event: CoordinatorEvent) -> Vec<Effect> {
        self.try_handle(event).unwrap()
    }

    pub fn open_connection(&mut self, caller: Caller) -> LinkId {
        self.connections += 1;
        let connection = LinkId(self.connections);
        assert_eq!(self.handle(CoordinatorEvent::Opened { connection, caller }), []);
        connection
    }

    pub fn say(&mut self, connection: LinkId, message: impl Into<ToCoordinator>) -> Vec<Effect> {
        let message = message.into();
        self.handle(CoordinatorEvent::Received { connection, message })
    }

    /// Opens a connection and joins, as a new or known server.
    pub fn join(&mut self, rejoin: Option<ServerId>) -> (LinkId, Vec<Effect>) {
        let join = join_of(rejoin);
        let connection = self.open_connection(caller_of(&join));
        (connection, self.say(connection, ToCoordinator::Join(join)))
    }

    /// Lets time pass while the coordinator is paused.
    pub fn stand_still(&mut self, duration: Duration) {
        self.now = self.now + duration;
    }

    /// Lets time pass, and ticks at every deadline of the coordinator.
    pub fn wait(&mut self, duration: Duration) -> Vec<Effect> {
        let end = self.now + duration;
        let mut effects = Vec::new();
        let mut ticks = 0;
        let next =
            |world: &World| world.next_deadline().into_iter().chain(world.next_commit()).min();
        while let Some(deadline) = next(self).filter(|deadline| *deadline <= end) {
            if self.next_commit() == Some(deadline) {
                self.now = self.now.max(deadline);
                effects.extend(self.finish_commit().unwrap());
                continue;
            }
            ticks = if deadline > self.now { 1 } else { ticks + 1 };
            self.now = self.now.max(deadline);
            effects.extend(self.handle(CoordinatorEvent::Tick));
            let next = self.next_deadline();
            // Servers' answers to the first tick may have made more work due.
            let is_over = next.is_none_or(|next| next > self.now);
            assert!(is_over || ticks < 2, "a deadline that is met moves on");
        }
        self.now = end;
        effects.extend(self.handle(CoordinatorEvent::Tick));
        effects
    }
}

pub fn join_of(rejoin: Option<ServerId>) -> Join {
    Join {
        host: "host".into(),
        client_port: 6379,
        bus_port: 16379,
        rejoin: rejoin.map(|server| (IDENTITY.cluster, server)),
        replicas: 0,
        rack: String::new(),
        disk: None,
        former: None,
        mark: None,
    }
}

/// Returns the process that sends a join. All test processes have the same generation.
pub fn caller_of(join: &Join) -> Caller {
    Caller::Server { number: join.rejoin, generation: Generation(1) }
}

pub fn slots(first: u16, last: u16) -> HashRange {
    HashRange::of_slots(Slot(first), Slot(last))
}

pub fn migrate(range: HashRange, target: ServerId) -> Ask {
    let policy = MigrationPolicy::default();
    Ask::Migrate { ranges: vec![range], source: None, target, policy }
}

/// Returns the messages to one connection.
pub fn sent_to(effects: &[Effect], to: LinkId) -> Vec<FromCoordinator> {
    let message = |effect: &Effect| match effect {
        Effect::Send { connection, message } if *connection == to => Some(message.clone()),
        Effect::Send { .. } | Effect::Commit(_) | Effect::Close { .. } => None,
    };
    effects.iter().filter_map(message).collect()
}
