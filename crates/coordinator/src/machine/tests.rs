//! The amount of work and of messages in large clusters.

use super::*;
use crate::metastore::MemoryStore;
use crate::outbox::Caller;
use crate::records::TabletRecord;
use migrations::MIGRATIONS_OF_SIDE_MAX;
use recoveries::{
    LISTED_SEGMENTS_MAX, PARTS_GIVEN_MAX, places_looked_up, replicas_looked_at, servers_visited,
};
use std::collections::BTreeMap;
use types::{ClusterId, Generation, HashRange, SLOT_COUNT, SegmentId, Slot, UnixMillis};
use wire::control::{
    Ask, ClockReading, FromCoordinator, Join, LivenessRequest, LogRequest, LogUpdate,
    ManifestPosition, MigrationPolicy, MigrationProgress, MigrationRequest, MigrationState,
    MigrationUpdate, RecoveryPartition, RecoveryRequest, RecoveryUpdate, ReplicaInfo,
};
use wire::manifest::{ManifestEntry, SegmentContent, SegmentRecord, encode};
use wire::replica::ReplicaEpoch;

/// A coordinator whose servers s1, s2, ... answer pings and questions for their clocks at once.
struct Cluster {
    coordinator: Coordinator,
    store: MemoryStore,
    now: Instant,
    /// Replicas of each server's log.
    replicas: u16,
    connections: BTreeMap<ServerId, LinkId>,
    last: LinkId,
    /// The messages to each connection, without pings and questions for clocks.
    sent: BTreeMap<LinkId, Vec<FromCoordinator>>,
}

const IDENTITY: ClusterIdentity = ClusterIdentity { cluster: ClusterId(7), seed: 1 };

impl Cluster {
    /// Creates a cluster of servers with this number of replicas of their logs. The first one owns
    /// everything, in tablets of equal width.
    fn new(servers: u32, tablets: u16, replicas: u16) -> Cluster {
        let mut store = MemoryStore::new();
        let drawn = Drawn { fresh: IDENTITY, term: 9 };
        let coordinator =
            Coordinator::open(&mut store, drawn, CoordinatorSettings::default(), Instant(0));
        let mut cluster = Cluster {
            coordinator: coordinator.expect("a new store can be opened"),
            store,
            now: Instant(0),
            replicas,
            connections: BTreeMap::new(),
            last: LinkId(0),
            sent: BTreeMap::new(),
        };
        for server in 1..=servers {
            cluster.connect(ServerId(server), None);
        }
        let configuration = cluster.coordinator.store.configuration();
        let mut edit = configuration.edit();
        let whole = configuration.tablets().values().next().expect("there is a tablet").clone();
        let width = SLOT_COUNT / tablets;
        for tablet in 0..tablets {
            let end = if tablet + 1 == tablets { SLOT_COUNT } else { (tablet + 1) * width };
            let range = HashRange::of_slots(Slot(tablet * width), Slot(end - 1));
            edit.put_tablet(TabletRecord { range, is_born: false, ..whole.clone() });
        }
        let at = cluster.at();
        cluster.coordinator.commit(at, edit).expect("the store works");
        cluster.handle(CoordinatorEvent::Tick);
        cluster
    }

    fn at(&self) -> Moment {
        Moment { now: self.now, wall: UnixMillis(1_000) }
    }

    fn connect(&mut self, server: ServerId, rejoin: Option<ServerId>) {
        let connection = LinkId(self.last.0 + 1);
        self.last = connection;
        self.connections.insert(server, connection);
        let number = rejoin.map(|server| (IDENTITY.cluster, server));
        let caller = Caller::Server { number, generation: Generation(1) };
        self.handle(CoordinatorEvent::Opened { connection, caller });
        let join = Join {
            host: "host".into(),
            client_port: 6379,
            bus_port: 16379,
            rejoin: number,
            replicas: self.replicas,
            rack: String::new(),
            disk: None,
            former: None,
            mark: None,
        };
        self.say(server, ToCoordinator::Join(join));
    }

    fn disconnect(&mut self, server: ServerId) {
        let connection = self.connections[&server];
        self.handle(CoordinatorEvent::Closed { connection });
    }

    fn say(&mut self, server: ServerId, message: impl Into<ToCoordinator>) {
        let connection = self.connections[&server];
        self.handle(CoordinatorEvent::Received { connection, message: message.into() });
    }

    fn handle(&mut self, event: CoordinatorEvent) {
        let mut out = Effects::new();
        self.coordinator.handle(self.at(), event, &mut out).expect("nobody takes over");
        for effect in out.drain() {
            match effect {
                Effect::Commit(transaction) => {
                    let verdict = self.store.transact(&transaction).expect("memory works");
                    self.handle(CoordinatorEvent::Committed(verdict));
                }
                Effect::Send { connection, message } => self.receive(connection, message),
                Effect::Close { .. } => {}
            }
        }
    }

    fn receive(&mut self, connection: LinkId, message: FromCoordinator) {
        let answer = match message {
            FromCoordinator::Liveness(LivenessRequest::Ping) => {
                LivenessUpdate::Pong { is_stalled: false }.into()
            }
            FromCoordinator::Clock(question) => {
                let wall = UnixMillis(1_000);
                ToCoordinator::Clock(ClockReading { asked: question.asked, wall, expiry: None })
            }
            message => return self.sent.entry(connection).or_default().push(message),
        };
        self.handle(CoordinatorEvent::Received { connection, message: answer });
    }

    /// Lets time pass, with ticks at every deadline.
    fn wait(&mut self, duration: Duration) {
        let end = self.now + duration;
        while let Some(deadline) = self.coordinator.next_deadline().filter(|at| *at <= end) {
            self.now = self.now.max(deadline);
            self.handle(CoordinatorEvent::Tick);
        }
        self.now = end;
        self.handle(CoordinatorEvent::Tick);
    }

    /// Takes the recovery partitions that a server was sent since the last call.
    fn take_parts(&mut self, server: ServerId) -> Vec<RecoveryPartition> {
        let sent = self.sent.remove(&self.connections[&server]).unwrap_or_default();
        let part = |message| match message {
            FromCoordinator::Recovery(RecoveryRequest::Recover(part)) => Some(*part),
            _ => None,
        };
        sent.into_iter().filter_map(part).collect()
    }

    fn fence(&mut self, backup: ServerId, manifest: &[u8], segments: u64) {
        let replica = |segment, is_manifest, length| ReplicaInfo {
            segment: SegmentId(segment),
            epoch: ReplicaEpoch(0),
            is_manifest,
            length,
            may_be_short: false,
        };
        let of_manifest = replica(1, true, manifest.len() as u32);
        let of_log = (1..=segments).map(|segment| replica(segment, false, 100));
        let replicas = std::iter::once(of_manifest).chain(of_log).collect();
        let clock = UnixMillis(0);
        self.say(backup, LogUpdate::Fenced { log: DEAD, first: 0, replicas, clock, more: false });
    }
}

const DEAD: ServerId = ServerId(1);
const MASTERS: [ServerId; 3] = [ServerId(2), ServerId(3), ServerId(4)];

/// Returns a cluster whose server s1 has died, with a log of so many segments. All of them are on
/// the backups that are given, and the manifest says so.
fn with_a_dead_server(tablets: u16, segments: u64, backups: &[ServerId]) -> Cluster {
    let mut cluster = Cluster::new(4, tablets, 2);
    cluster.say(DEAD, LogUpdate::ManifestContinues { number: SegmentId(1) });
    cluster.disconnect(DEAD);
    cluster.wait(Duration::from_millis(150));
    let content = Some(SegmentContent { length: 100, crc: 1 });
    let record = |segment| SegmentRecord { segment: SegmentId(segment), content };
    let records = (1..=segments).map(record).collect();
    let manifest = encode(&[ManifestEntry::Snapshot { segments: records }]);
    for backup in MASTERS {
        let held = if backups.contains(&backup) { segments } else { 0 };
        cluster.fence(backup, &manifest, held);
    }
    let is_question =
        |it: &FromCoordinator| matches!(it, FromCoordinator::Log(LogRequest::ReadManifest { .. }));
    let is_asked = |server: &ServerId| {
        cluster.sent.get(&cluster.connections[server]).is_some_and(|it| it.iter().any(is_question))
    };
    let asked = MASTERS.into_iter().find(is_asked).expect("a backup is asked for the manifest");
    let (replica, first) = ((SegmentId(1), ReplicaEpoch(0)), ManifestPosition::default());
    let (log, bodies) = (DEAD, vec![manifest]);
    cluster.say(asked, LogUpdate::ManifestRead { log, replica, first, bodies, next: None });
    cluster.wait(Duration::from_millis(106));
    cluster
}

#[test]
fn a_recovery_master_is_given_few_partitions_at_a_time() {
    let mut cluster = with_a_dead_server(60, 50, &MASTERS);
    let mut given: BTreeMap<ServerId, Vec<RecoveryPartition>> = BTreeMap::new();
    for master in MASTERS {
        given.insert(master, cluster.take_parts(master));
        assert_eq!(given[&master].len(), PARTS_GIVEN_MAX, "{master}");
    }
    let mut recovered = 0;
    while let Some(master) = MASTERS.into_iter().find(|master| !given[master].is_empty()) {
        let part = given.get_mut(&master).expect("it is a master").remove(0);
        assert_eq!(part.segments.len(), 50);
        let (range, epoch) = (part.range, part.epoch);
        cluster.say(master, RecoveryUpdate::Replayed { dead: DEAD, range, epoch });
        let next = cluster.take_parts(master);
        assert!(next.iter().all(|next| next.epoch > epoch), "older partitions come first");
        given.get_mut(&master).expect("it is a master").extend(next);
        cluster.say(master, RecoveryUpdate::Recovered { dead: DEAD, range, epoch });
        recovered += 1;
    }
    assert_eq!(recovered, 60, "every partition is recovered");
    assert!(cluster.coordinator.recoveries().iter().all(|it| it.ranges.is_empty()));
}

#[test]
fn long_lists_do_not_fill_the_queue_of_a_link() {
    const SEGMENTS: u64 = 9_000;
    let mut cluster = with_a_dead_server(60, SEGMENTS, &MASTERS);
    let mut epochs = BTreeSet::new();
    for _ in 0..4 {
        // Each time the list has other places: it is a new one.
        for other in [ServerId(3), ServerId(4)] {
            cluster.disconnect(other);
            cluster.wait(Duration::from_millis(50));
            cluster.connect(other, Some(other));
            cluster.wait(Duration::from_millis(50));
        }
        cluster.wait(Duration::from_millis(800));
        let parts = cluster.take_parts(MASTERS[0]);
        let listed: usize = parts.iter().map(|part| part.segments.len()).sum();
        assert!(listed <= 2 * LISTED_SEGMENTS_MAX, "{listed} segments are listed in a second");
        assert!(listed > 0, "a list that has changed is sent");
        epochs.extend(parts.iter().map(|part| part.epoch));
    }
    cluster.wait(Duration::from_secs(3));
    epochs.extend(cluster.take_parts(MASTERS[0]).iter().map(|part| part.epoch));
    assert_eq!(epochs.len(), PARTS_GIVEN_MAX, "what was put off is sent later");
}

#[test]
fn an_unchanged_list_is_not_sent_again() {
    let mut cluster = with_a_dead_server(4, 50, &MASTERS);
    assert!(!cluster.take_parts(MASTERS[0]).is_empty());
    cluster.wait(Duration::from_secs(5));
    assert_eq!(cluster.take_parts(MASTERS[0]), []);
    // Repeated reports of the same replicas change nothing.
    cluster.say(
        MASTERS[1],
        LogUpdate::Damaged { log: DEAD, segment: SegmentId(99), epoch: ReplicaEpoch(0) },
    );
    assert_eq!(cluster.take_parts(MASTERS[0]), []);
    cluster.say(
        MASTERS[1],
        LogUpdate::Damaged { log: DEAD, segment: SegmentId(9), epoch: ReplicaEpoch(0) },
    );
    assert!(!cluster.take_parts(MASTERS[0]).is_empty(), "another list is sent at once");
}

#[test]
fn a_log_is_checked_again_only_if_something_has_changed() {
    // Nobody has the segments, so the recovery waits for an operator.
    let mut cluster = with_a_dead_server(100, 200, &[]);
    let before = places_looked_up();
    for _ in 0..10 {
        cluster.handle(CoordinatorEvent::Tick);
    }
    assert_eq!(places_looked_up() - before, 0, "nothing has changed");
    cluster.fence(ServerId(3), &[0; 700], 100);
    assert_eq!(places_looked_up() - before, 200, "each segment is looked up once");
    let before = places_looked_up();
    cluster.fence(ServerId(3), &[0; 700], 100);
    assert_eq!(places_looked_up() - before, 0, "the same report says nothing new");
    // The reconnection of a backup without replicas changes nothing either.
    cluster.connect(ServerId(5), None);
    let clock = UnixMillis(0);
    let report = LogUpdate::Fenced { log: DEAD, first: 0, replicas: vec![], clock, more: false };
    cluster.say(ServerId(5), report);
    let before = places_looked_up();
    cluster.disconnect(ServerId(5));
    cluster.connect(ServerId(5), Some(ServerId(5)));
    assert_eq!(places_looked_up() - before, 0, "it has no replica of the log");
}

#[test]
fn a_check_looks_at_the_replicas_of_each_segment_and_at_no_others() {
    // One backup has all segments; the others have the manifest.
    let mut cluster = with_a_dead_server(1, 200, &MASTERS[..1]);
    let before = replicas_looked_at();
    let (segment, epoch) = (SegmentId(200), ReplicaEpoch(0));
    cluster.say(MASTERS[0], LogUpdate::Damaged { log: DEAD, segment, epoch });
    let looked_at = replicas_looked_at() - before;
    assert!((200..220).contains(&looked_at), "{looked_at} replicas");
}

/// Counts the sent requests to fence a log, of all servers.
fn requests_to_fence(cluster: &Cluster) -> usize {
    let is_one =
        |it: &&FromCoordinator| matches!(it, FromCoordinator::Log(LogRequest::Fence { .. }));
    cluster.sent.values().flatten().filter(is_one).count()
}

#[test]
fn each_server_is_asked_about_each_dead_one_until_it_answers() {
    const DEAD_SERVERS: u32 = 5;
    const LIVING: u32 = 15;
    let mut cluster = Cluster::new(DEAD_SERVERS + LIVING, 20, 2);
    let all = 1..=DEAD_SERVERS + LIVING;
    // Each server owns a tablet, so each log is needed.
    let configuration = cluster.coordinator.store.configuration();
    let mut edit = configuration.edit();
    for (owner, tablet) in all.clone().zip(configuration.tablets().values()) {
        edit.put_tablet(TabletRecord { owner: ServerId(owner), ..tablet.clone() });
    }
    let at = cluster.at();
    cluster.coordinator.commit(at, edit).expect("the store works");
    for server in all.map(ServerId) {
        cluster.say(server, LogUpdate::ManifestContinues { number: SegmentId(1) });
    }
    (1..=DEAD_SERVERS).for_each(|server| cluster.disconnect(ServerId(server)));
    cluster.wait(Duration::from_millis(150));
    let mut open = (DEAD_SERVERS * LIVING) as usize;
    assert_eq!(requests_to_fence(&cluster), open);
    let before = servers_visited();
    for log in (1..=DEAD_SERVERS).map(ServerId) {
        let clock = UnixMillis(0);
        let report = LogUpdate::Fenced { log, first: 0, replicas: vec![], clock, more: false };
        cluster.say(ServerId(7), report);
        open -= 1;
    }
    assert_eq!(servers_visited() - before, 0, "an answer concerns no other server");
    cluster.sent.clear();
    cluster.wait(Duration::from_secs(1));
    assert_eq!(requests_to_fence(&cluster), open, "asked again, except for who has answered");
    cluster.sent.clear();
    cluster.connect(ServerId(7), Some(ServerId(7)));
    let asked = requests_to_fence(&cluster);
    assert_eq!(asked, DEAD_SERVERS as usize, "a report may have been lost with the connection");
}

impl Cluster {
    /// Requests the move of a range to a server.
    fn migrate(&mut self, range: HashRange, target: ServerId) {
        let (ranges, policy) = (vec![range], MigrationPolicy::default());
        let ask = Ask::Migrate { ranges, source: None, target, policy };
        self.say(target, ToCoordinator::Ask { request: 1, ask });
    }

    /// Takes the requests about migrations that a server was sent since the last call.
    fn take_requests(&mut self, server: ServerId) -> Vec<MigrationRequest> {
        let sent = self.sent.remove(&self.connections[&server]).unwrap_or_default();
        let request = |message| match message {
            FromCoordinator::Migration(request) => Some(request),
            _ => None,
        };
        sent.into_iter().filter_map(request).collect()
    }

    fn under_way(&self) -> usize {
        self.coordinator.store.configuration().under_way().count()
    }

    /// Answers each request about migrations from `source` to `target` as the next step demands.
    /// Returns the number of answers.
    fn answer_requests(&mut self, source: ServerId, target: ServerId) -> usize {
        let of_source = self.take_requests(source).into_iter().map(|request| (source, request));
        let requests: Vec<_> = of_source
            .chain(self.take_requests(target).into_iter().map(|it| (target, it)))
            .collect();
        let count = requests.len();
        for (server, request) in requests {
            match request {
                MigrationRequest::Measure { migration, .. } => {
                    let (records, bytes) = (1, 100);
                    self.say(server, MigrationUpdate::Measured { migration, records, bytes });
                }
                MigrationRequest::Prepare(intent) => {
                    let migration = intent.migration;
                    self.say(server, MigrationUpdate::Prepared { migration, refused: None });
                }
                MigrationRequest::Start(intent) => {
                    self.say(target, MigrationUpdate::Flipped { migration: intent.migration });
                }
                MigrationRequest::Forget { migration, remaining } if remaining.is_empty() => {
                    self.say(server, MigrationUpdate::Released { migration });
                }
                MigrationRequest::Forget { migration, .. } => {
                    self.say(target, MigrationUpdate::Shrink { migration, remaining: Vec::new() });
                }
                MigrationRequest::Decide { .. }
                | MigrationRequest::Outcome { .. }
                | MigrationRequest::Finished { .. } => {}
            }
        }
        count
    }
}

#[test]
fn few_migrations_of_a_server_are_under_way_at_a_time() {
    let (source, target) = (ServerId(1), ServerId(2));
    let mut cluster = Cluster::new(2, 20, 2);
    cluster.migrate(HashRange::ALL, target);
    assert_eq!(cluster.coordinator.reports().len(), 20);
    let mut steps = 0;
    while cluster.under_way() > 0 {
        assert!(cluster.under_way() <= MIGRATIONS_OF_SIDE_MAX, "{}", cluster.under_way());
        assert!(cluster.answer_requests(source, target) > 0, "nothing goes on");
        steps += 1;
    }
    assert!(steps >= 20 / MIGRATIONS_OF_SIDE_MAX);
    let owned = cluster.coordinator.store.configuration().owned_by(target).count();
    assert_eq!(owned, 20, "every tablet has moved");
}

#[test]
fn migrations_of_an_absent_server_keep_no_other_ones_back() {
    let (gone, source, target) = (ServerId(1), ServerId(3), ServerId(2));
    let mut cluster = Cluster::new(3, 20, 0);
    let configuration = cluster.coordinator.store.configuration();
    let mut edit = configuration.edit();
    let last = configuration.tablets().values().last().expect("there are tablets").clone();
    let of_another = last.range;
    let before = Slot(of_another.slots().0.0 - 1);
    edit.put_tablet(TabletRecord { owner: source, ..last });
    let at = cluster.at();
    cluster.coordinator.commit(at, edit).expect("the store works");
    cluster.migrate(HashRange::of_slots(Slot(0), before), target);
    cluster.migrate(of_another, target);
    assert_eq!(cluster.take_requests(source), [], "the target has enough to do");
    cluster.disconnect(gone);
    assert_eq!(cluster.take_requests(source).len(), 1, "the other migration starts");
    assert_eq!(cluster.under_way(), MIGRATIONS_OF_SIDE_MAX + 1, "no migration of an absent server");
    cluster.wait(CoordinatorSettings::default().absence_max);
    let reports = cluster.coordinator.reports();
    let ended = reports.iter().filter(|it| it.state == MigrationState::Failed).count();
    assert_eq!(ended, 19, "nothing waits for it for ever");
}

#[test]
fn reports_that_change_nothing_cause_no_pass_over_all_migrations() {
    let (source, target) = (ServerId(1), ServerId(2));
    let mut cluster = Cluster::new(2, 1, 2);
    cluster.migrate(HashRange::ALL, target);
    // Measured, prepared, flipped.
    (0..3).for_each(|_| assert_eq!(cluster.answer_requests(source, target), 1));
    let migration = cluster.coordinator.reports()[0].migration;
    cluster.take_requests(source);
    let before = cluster.coordinator.reconciled;
    cluster.now = cluster.now + Duration::from_millis(10);
    let progress = MigrationProgress { records: 1, ..MigrationProgress::default() };
    cluster.say(target, MigrationUpdate::Progress { migration, progress });
    cluster.say(target, MigrationUpdate::Flipped { migration });
    let remaining = vec![HashRange::ALL];
    cluster.say(target, MigrationUpdate::Shrink { migration, remaining });
    assert_eq!(cluster.coordinator.reconciled, before, "the state was looked through");
    assert_eq!(cluster.coordinator.reports()[0].progress, progress);
    cluster.say(target, MigrationUpdate::Shrink { migration, remaining: Vec::new() });
    assert_eq!(cluster.coordinator.reconciled, cluster.now);
    assert_eq!(cluster.take_requests(source).len(), 1, "the source releases the range");
}
