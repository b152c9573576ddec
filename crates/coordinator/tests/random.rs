//! Random histories with minimal servers, broken connections, restarted coordinators, and lost,
//! duplicated and reordered messages between servers.
//!
//! At every step no hash is served twice, and no source has dropped data that its target still
//! needs. At the end, after all disturbances, every migration has ended and the map is correct.

mod support;

use coordinator::{CoordinatorEvent, Effect, LinkId};
use protocols::migration::timing::PREPARED_MAX;
use std::collections::BTreeMap;
use std::time::Duration;
use support::{CommitTime, Storage, World, caller_of, join_of, migrate, slots};
use types::{HashRange, Instant, MigrationId, ServerId, Slot};
use wire::control::{
    Ask, FromCoordinator, Intent, JoinReply, MigrationRequest, MigrationUpdate, ToCoordinator,
};

/// Number of slots that move. All others stay with the first server.
const SLOTS: u16 = 12;
const SERVERS: usize = 3;

#[test]
fn whatever_breaks_no_hash_is_served_twice_and_everything_ends() {
    let mut endings: BTreeMap<String, usize> = BTreeMap::new();
    for seed in 0..150 {
        let storage = if seed % 10 == 0 { Storage::file() } else { Storage::memory() };
        let mut history = History::new(seed, storage);
        if seed % 3 == 0 {
            history.world.commit_time = CommitTime::Random(fastrand::Rng::with_seed(seed));
        }
        history.run(Duration::from_secs(20), true);
        history.run(Duration::from_secs(60), false);
        history.check_end();
        for report in history.world.coordinator().reports() {
            *endings.entry(format!("{:?} {}", report.state, report.message)).or_default() += 1;
        }
    }
    println!("{endings:#?}");
    for ending in ["Success", "Cancelled", "Failed no", "Failed the flip", "Failed s"] {
        let is_met = endings.keys().any(|key| key.starts_with(ending));
        assert!(is_met, "no migration ended as {ending}: the histories are too tame");
    }
}

#[derive(Debug)]
enum SourceState {
    Flipping { intent: Intent },
    Leaving { kept: Vec<HashRange> },
    Over,
}

#[derive(Debug)]
enum TargetState {
    Known { intent: Intent, until: Instant },
    Never,
    Accepted { remaining: Vec<HashRange> },
    Over { accepted: bool },
}

/// A server process that never dies.
#[derive(Debug, Default)]
struct Server {
    id: Option<ServerId>,
    connection: Option<LinkId>,
    serves: Vec<HashRange>,
    sources: BTreeMap<MigrationId, SourceState>,
    targets: BTreeMap<MigrationId, TargetState>,
}

/// An event in the future. Deliveries are ordered by time, then by number, so that each
/// connection keeps its order.
#[derive(Debug)]
enum Delivery {
    ToCoordinator {
        connection: LinkId,
        message: ToCoordinator,
    },
    ToServer {
        connection: LinkId,
        message: FromCoordinator,
    },
    Flip {
        migration: MigrationId,
        source: usize,
        target: usize,
    },
    FlipAnswer {
        migration: MigrationId,
        source: usize,
        accepted: bool,
    },
    Connect {
        server: usize,
    },
    /// A server performs its periodic work.
    Look {
        server: usize,
    },
    Disturb,
}

struct History {
    seed: u64,
    random: fastrand::Rng,
    world: World,
    servers: Vec<Server>,
    deliveries: BTreeMap<(Instant, u64), Delivery>,
    /// Arrival time of the last message of each connection and direction, so that no message
    /// overtakes another.
    arrivals: BTreeMap<(LinkId, bool), Instant>,
    numbers: u64,
    is_disturbed: bool,
}

impl History {
    fn new(seed: u64, storage: Storage) -> History {
        let mut history = History {
            seed,
            random: fastrand::Rng::with_seed(seed),
            world: World::new(storage),
            servers: (0..SERVERS).map(|_| Server::default()).collect(),
            deliveries: BTreeMap::new(),
            arrivals: BTreeMap::new(),
            numbers: 0,
            is_disturbed: true,
        };
        for server in 0..SERVERS {
            history.connect(server);
            history.run(Duration::from_millis(500), false);
            assert_eq!(history.servers[server].id, Some(ServerId(server as u32 + 1)));
            history.put(Duration::ZERO, Delivery::Look { server });
        }
        history.servers[0].serves = vec![HashRange::ALL];
        history.put(Duration::ZERO, Delivery::Disturb);
        history
    }

    fn put(&mut self, after: Duration, delivery: Delivery) {
        self.numbers += 1;
        self.deliveries.insert((self.world.now() + after, self.numbers), delivery);
    }

    fn put_in_order(&mut self, connection: LinkId, up: bool, delivery: Delivery) {
        let delay = Duration::from_micros(self.random.u64(20..80_000));
        let arrival = self.arrivals.entry((connection, up)).or_default();
        *arrival = (*arrival).max(self.world.now() + delay);
        self.numbers += 1;
        self.deliveries.insert((*arrival, self.numbers), delivery);
    }

    fn run(&mut self, duration: Duration, is_disturbed: bool) {
        self.is_disturbed = is_disturbed;
        let end = self.world.now() + duration;
        while let Some((&(at, number), _)) = self.deliveries.first_key_value() {
            if at > end {
                break;
            }
            let delivery = self.deliveries.remove(&(at, number)).unwrap();
            let effects = self.world.wait(at.since(self.world.now()));
            self.carry_out(effects);
            self.deliver(delivery);
            self.check();
        }
        let effects = self.world.wait(end.since(self.world.now()));
        self.carry_out(effects);
    }

    fn carry_out(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Send { connection, message } => {
                    let delivery = Delivery::ToServer { connection, message };
                    self.put_in_order(connection, false, delivery);
                }
                Effect::Commit(_) => unreachable!("the store has it"),
                Effect::Close { connection } => {
                    let known = self.servers.iter().position(|s| s.connection == Some(connection));
                    if let Some(server) = known {
                        self.lose(server);
                    }
                }
            }
        }
    }

    fn tell(&mut self, server: usize, message: impl Into<ToCoordinator>) {
        let message = message.into();
        if let Some(connection) = self.servers[server].connection {
            self.put_in_order(connection, true, Delivery::ToCoordinator { connection, message });
        }
    }

    fn connect(&mut self, server: usize) {
        if self.servers[server].connection.is_none() {
            let join = join_of(self.servers[server].id);
            let connection = self.world.open_connection(caller_of(&join));
            self.servers[server].connection = Some(connection);
            self.tell(server, ToCoordinator::Join(join));
        }
    }

    /// Breaks a connection on the server's side; the server reconnects later.
    fn lose(&mut self, server: usize) {
        self.servers[server].connection = None;
        let away = match self.random.u8(..) {
            ..=180 => self.random.u64(1..1_500),
            _ => self.random.u64(1_500..15_000),
        };
        self.put(Duration::from_millis(away), Delivery::Connect { server });
    }

    fn disturb(&mut self) {
        if !self.is_disturbed {
            return;
        }
        let server = self.random.usize(..SERVERS);
        match self.random.u8(..100) {
            ..=2 => {
                self.world.restart();
                for server in 0..SERVERS {
                    if self.servers[server].connection.is_some() {
                        self.lose(server);
                    }
                }
            }
            3..=14 => {
                if let Some(connection) = self.servers[server].connection {
                    self.lose(server);
                    let effects = self.world.handle(CoordinatorEvent::Closed { connection });
                    self.carry_out(effects);
                }
            }
            15..=24 => {
                let ask = Ask::Cancel { source: None, task: None };
                self.tell(server, ToCoordinator::Ask { request: 1, ask });
            }
            25..=34 => self
                .tell(server, ToCoordinator::Ask { request: 2, ask: Ask::Flush { table: None } }),
            _ => {
                let (a, b) = (self.random.u16(..SLOTS), self.random.u16(..SLOTS));
                let target = ServerId(self.random.u32(1..=SERVERS as u32));
                let ask = migrate(slots(a.min(b), a.max(b)), target);
                self.tell(server, ToCoordinator::Ask { request: 3, ask });
            }
        }
        let pause = Duration::from_millis(self.random.u64(1..200));
        self.put(pause, Delivery::Disturb);
    }

    fn deliver(&mut self, delivery: Delivery) {
        match delivery {
            Delivery::ToCoordinator { connection, message } => {
                if self.servers.iter().any(|server| server.connection == Some(connection)) {
                    let effects = self.world.say(connection, message);
                    self.carry_out(effects);
                }
            }
            Delivery::ToServer { connection, message } => {
                let to = self.servers.iter().position(|s| s.connection == Some(connection));
                if let Some(server) = to {
                    self.hear(server, message);
                }
            }
            Delivery::Flip { migration, source, target } => {
                self.hear_flip(migration, source, target)
            }
            Delivery::FlipAnswer { migration, source, accepted } => {
                self.end_flip(source, migration, accepted);
                if !accepted {
                    self.tell(source, MigrationUpdate::FlipUnanswered { migration });
                }
            }
            Delivery::Connect { server } => self.connect(server),
            Delivery::Look { server } => {
                self.look(server);
                let pause = Duration::from_millis(self.random.u64(20..120));
                self.put(pause, Delivery::Look { server });
            }
            Delivery::Disturb => self.disturb(),
        }
    }

    fn hear(&mut self, server: usize, message: FromCoordinator) {
        let this = &mut self.servers[server];
        match message {
            FromCoordinator::Join(JoinReply::Welcome { server: id, .. }) => {
                assert!(this.id.is_none_or(|known| known == id), "a server keeps its number");
                this.id = Some(id);
            }
            FromCoordinator::Join(JoinReply::Rejected { reason, .. }) => {
                panic!("seed {}: {reason}", self.seed)
            }
            FromCoordinator::Map(_) | FromCoordinator::Answer { .. } => {}
            FromCoordinator::Migration(request) => self.migrate(server, request),
            FromCoordinator::Join(JoinReply::Describe | JoinReply::Waiting { .. })
            | FromCoordinator::Log(_)
            | FromCoordinator::Recovery(_)
            | FromCoordinator::Liveness(_)
            | FromCoordinator::Clock(_)
            | FromCoordinator::Mark(_) => panic!("seed {}: no server dies here", self.seed),
        }
    }

    fn migrate(&mut self, server: usize, request: MigrationRequest) {
        match request {
            MigrationRequest::Measure { migration, .. } => {
                self.tell(server, MigrationUpdate::Measured { migration, records: 1, bytes: 1 });
            }
            MigrationRequest::Prepare(intent) => {
                let migration = intent.migration;
                let refused = (self.random.u8(..) < 10).then(|| "no".to_owned());
                if refused.is_none() {
                    let until = self.world.now() + PREPARED_MAX;
                    let known = TargetState::Known { intent, until };
                    self.servers[server].targets.entry(migration).or_insert(known);
                }
                self.tell(server, MigrationUpdate::Prepared { migration, refused });
            }
            MigrationRequest::Start(intent) => self.start(server, intent),
            MigrationRequest::Decide { migration } => self.decide(server, migration),
            MigrationRequest::Outcome { migration, accepted } => {
                self.end_flip(server, migration, accepted);
            }
            MigrationRequest::Forget { migration, remaining } => {
                self.forget(server, migration, &remaining);
            }
            MigrationRequest::Finished { migration } => self.finish(server, migration),
        }
    }

    fn start(&mut self, server: usize, intent: Intent) {
        let migration = intent.migration;
        let this = &mut self.servers[server];
        match this.sources.get(&migration) {
            None => {
                let served = this.serves.iter();
                let unserved =
                    served.fold(vec![intent.range], |rest, range| without(&rest, *range));
                assert_eq!(unserved, [], "seed {}: flip of a range that is not served", self.seed);
                this.serves = without(&this.serves, intent.range);
                this.sources.insert(migration, SourceState::Flipping { intent });
            }
            // Some sources leave this report to their target.
            Some(SourceState::Leaving { .. }) if self.seed.is_multiple_of(2) => {
                self.tell(server, MigrationUpdate::Flipped { migration });
            }
            Some(SourceState::Over) => {
                self.tell(server, MigrationUpdate::FlipUnanswered { migration });
            }
            Some(SourceState::Flipping { .. } | SourceState::Leaving { .. }) => {}
        }
    }

    fn hear_flip(&mut self, migration: MigrationId, source: usize, target: usize) {
        let now = self.world.now();
        let this = &mut self.servers[target];
        let accepted = match this.targets.get(&migration) {
            Some(TargetState::Known { until, .. }) if now >= *until => {
                this.targets.insert(migration, TargetState::Never);
                false
            }
            Some(TargetState::Known { intent, .. }) => {
                let range = intent.range;
                this.serves.push(range);
                let remaining = vec![range];
                this.targets.insert(migration, TargetState::Accepted { remaining });
                self.tell(target, MigrationUpdate::Flipped { migration });
                true
            }
            None => return,
            Some(TargetState::Accepted { .. }) => true,
            Some(TargetState::Never) => false,
            Some(TargetState::Over { accepted }) => *accepted,
        };
        let answer = Delivery::FlipAnswer { migration, source, accepted };
        self.put_peer(answer);
    }

    /// Sends a message between servers, possibly lost or reordered. Senders repeat messages, so
    /// duplicates occur as well.
    fn put_peer(&mut self, delivery: Delivery) {
        if !self.is_disturbed || self.random.u8(..100) < 60 {
            let delay = Duration::from_micros(self.random.u64(20..40_000));
            self.put(delay, delivery);
        }
    }

    fn decide(&mut self, server: usize, migration: MigrationId) {
        let targets = &mut self.servers[server].targets;
        let accepted = match targets.get(&migration) {
            Some(TargetState::Known { .. } | TargetState::Never) | None => {
                targets.insert(migration, TargetState::Never);
                false
            }
            Some(TargetState::Accepted { .. }) => true,
            Some(TargetState::Over { accepted }) => *accepted,
        };
        self.tell(server, MigrationUpdate::Decided { migration, accepted });
    }

    fn end_flip(&mut self, server: usize, migration: MigrationId, accepted: bool) {
        let this = &mut self.servers[server];
        let Some(SourceState::Flipping { intent }) = this.sources.get(&migration) else {
            // Withdrawn before its start: a late start message must not begin it.
            if !accepted {
                this.sources.entry(migration).or_insert(SourceState::Over);
            }
            return;
        };
        let range = intent.range;
        if accepted {
            this.sources.insert(migration, SourceState::Leaving { kept: vec![range] });
            self.tell(server, MigrationUpdate::Flipped { migration });
        } else {
            this.serves.push(range);
            this.sources.insert(migration, SourceState::Over);
        }
    }

    fn forget(&mut self, server: usize, migration: MigrationId, remaining: &[HashRange]) {
        self.end_flip(server, migration, true);
        let sources = &mut self.servers[server].sources;
        match sources.get_mut(&migration) {
            Some(SourceState::Leaving { kept }) => {
                *kept = kept
                    .iter()
                    .flat_map(|kept| remaining.iter().filter_map(|range| range.intersection(*kept)))
                    .collect();
                if kept.is_empty() {
                    sources.insert(migration, SourceState::Over);
                    self.tell(server, MigrationUpdate::Released { migration });
                }
            }
            Some(SourceState::Over) => self.tell(server, MigrationUpdate::Released { migration }),
            other => panic!("seed {}: forget of {other:?}", self.seed),
        }
    }

    fn finish(&mut self, server: usize, migration: MigrationId) {
        let targets = &mut self.servers[server].targets;
        let accepted = match targets.get(&migration) {
            Some(TargetState::Accepted { remaining }) => {
                assert_eq!(*remaining, [], "seed {}: finished too early", self.seed);
                true
            }
            Some(TargetState::Over { accepted }) => *accepted,
            Some(TargetState::Known { .. } | TargetState::Never) | None => false,
        };
        targets.insert(migration, TargetState::Over { accepted });
    }

    /// Repeats unanswered messages, and makes progress.
    fn look(&mut self, server: usize) {
        let mut flips = Vec::new();
        for (&migration, state) in &self.servers[server].sources {
            if let SourceState::Flipping { intent } = state {
                flips.push((migration, intent.target.0 as usize - 1));
            }
        }
        for (migration, target) in flips {
            self.put_peer(Delivery::Flip { migration, source: server, target });
            if self.random.u8(..) < 30 {
                self.tell(server, MigrationUpdate::FlipUnanswered { migration });
            }
        }
        let mut shrinks = Vec::new();
        for (&migration, state) in &mut self.servers[server].targets {
            if let TargetState::Accepted { remaining } = state {
                if let Some(first) = remaining.first().copied() {
                    let parts = first.divide(2);
                    remaining.splice(
                        ..1,
                        parts[1..].iter().copied().filter(|r| r.slots().0 != r.slots().1),
                    );
                }
                shrinks.push((migration, remaining.clone()));
            }
        }
        for (migration, remaining) in shrinks {
            self.tell(server, MigrationUpdate::Shrink { migration, remaining });
        }
    }

    fn check(&self) {
        for slot in 0..SLOTS {
            let hash = Slot(slot).first_hash();
            let servers = self.servers.iter();
            let serving = servers.filter(|s| s.serves.iter().any(|range| range.contains(hash)));
            assert!(serving.count() <= 1, "seed {}: slot {slot} is served twice", self.seed);
        }
        for (migration, state) in self.servers.iter().flat_map(|server| &server.targets) {
            let TargetState::Accepted { remaining } = state else { continue };
            let kept = self.servers.iter().find_map(|server| server.sources.get(migration));
            let is_kept = |needed: &HashRange| match kept {
                Some(SourceState::Flipping { intent }) => intent.range.covers(*needed),
                Some(SourceState::Leaving { kept }) => {
                    kept.iter().any(|range| range.covers(*needed))
                }
                Some(SourceState::Over) | None => false,
            };
            assert!(remaining.iter().all(is_kept), "seed {}: {migration} forgot early", self.seed);
        }
        let map = self.world.coordinator().map();
        assert_eq!(map.tablets[0].range.first(), HashRange::ALL.first());
        assert_eq!(map.tablets[map.tablets.len() - 1].range.last(), HashRange::ALL.last());
        for pair in map.tablets.windows(2) {
            assert_eq!(pair[0].range.last().0 + 1, pair[1].range.first().0, "gap or overlap");
        }
    }

    fn check_end(&self) {
        let map = self.world.coordinator().map();
        assert_eq!(map.moving, [], "seed {}: not all migrations have ended", self.seed);
        for tablet in &map.tablets {
            let owner = self.servers.iter().find(|server| server.id == Some(tablet.owner)).unwrap();
            let (first, last) = tablet.range.slots();
            for slot in [first, last] {
                let serves = owner.serves.iter().any(|range| range.contains(slot.first_hash()));
                assert!(serves, "seed {}: {} does not serve {slot:?}", self.seed, tablet.owner);
            }
        }
    }
}

fn without(ranges: &[HashRange], cut: HashRange) -> Vec<HashRange> {
    ranges.iter().flat_map(|range| range.without(cut)).flatten().collect()
}
