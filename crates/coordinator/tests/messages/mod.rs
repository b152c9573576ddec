//! A coordinator with arbitrary messages. Half of them answer its demands, with one or two
//! details changed. Usually a connection sends only messages that its process may send.

#[path = "../../../front/tests/messages/draw.rs"]
mod draw;

use crate::support::{IDENTITY, Storage, World};
use coordinator::{Caller, CoordinatorEvent, Effect, LinkId};
pub(crate) use draw::Draw;
use draw::kinds;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::time::Duration;
use types::limits::TABLES_MAX;
use types::{
    ClusterId, Generation, Incarnation, Instant, LeaseId, MigrationId, OwnershipEpoch, SegmentId,
    ServerId, Slot, TableId, UnixMillis,
};
use wire::control::{
    Ask, ClockReading, ClusterMap, Description, FromCoordinator, HeldMigration, HeldState,
    HeldTablet, HistoryMark, Holdings, Intent, Join, LivenessRequest, LivenessUpdate, LoadProfile,
    LogLoss, LogRequest, LogUpdate, ManifestPosition, MigrationPolicy, MigrationProgress,
    MigrationRequest, MigrationUpdate, PriorityPullMode, RecoveryLog, RecoveryPartition,
    RecoveryRequest, RecoveryUpdate, ReplicaInfo, ServerInfo, TabletInfo, ToCoordinator,
};
use wire::frame::{self, HEADER_BYTES, Header};
use wire::manifest::{ManifestEntry, SegmentContent, SegmentRecord, encode};
use wire::replica::ReplicaEpoch;

/// Number of kinds of messages to a coordinator, and of asks.
const KINDS: usize = 27;
const ASKS: usize = 12;

/// Most connections at a time, and most demands that may be answered.
const CONNECTIONS_MAX: usize = 8;
const DEMANDS_MAX: usize = 24;

struct Told {
    world: World,
    kinds: Vec<ToCoordinator>,
    asks: Vec<Ask>,
    /// The process at the other end of each connection, and whether it has sent a join.
    connections: BTreeMap<LinkId, (Caller, bool)>,
    last_connection: u64,
    demands: Vec<(LinkId, FromCoordinator)>,
    heard: usize,
    kinds_heard: u128,
}

/// Sends the messages encoded by the bytes to a coordinator. Returns how many messages it has sent,
/// and a bit for each of their kinds. Fails if it panics or makes a message too large for a frame.
pub(crate) fn tell_anything(data: &[u8]) -> (usize, u128) {
    let mut draw = Draw::new(data);
    let mut told = Told {
        world: World::new(Storage::memory()),
        kinds: all_kinds(),
        asks: kinds(),
        connections: BTreeMap::new(),
        last_connection: 1_000,
        demands: Vec::new(),
        heard: 0,
        kinds_heard: 0,
    };
    assert_eq!((told.kinds.len(), told.asks.len()), (KINDS, ASKS), "other kinds than are known");
    // Three servers replicate each other's logs; the log of the fourth is not replicated, as
    // earlier versions permitted.
    let fourth = Some((IDENTITY.cluster, ServerId(4)));
    for (rejoin, replicas) in [(None, 1), (None, 1), (None, 1), (None, 1), (fourth, 0)] {
        let connection = told.open(server(rejoin.map(|(_, server)| server), 1));
        told.say(connection, ToCoordinator::Join(join(rejoin, replicas)));
        told.say(connection, LogUpdate::ManifestContinues { number: SegmentId(1) });
    }
    while !draw.is_over() {
        told.step(&mut draw);
    }
    (told.heard, told.kinds_heard)
}

/// Returns one message of each kind, of all families.
fn all_kinds() -> Vec<ToCoordinator> {
    let of_family = |family| match family {
        ToCoordinator::Described(_) => in_family::<Description>(),
        ToCoordinator::Liveness(_) => in_family::<LivenessUpdate>(),
        ToCoordinator::Migration(_) => in_family::<MigrationUpdate>(),
        ToCoordinator::Log(_) => in_family::<LogUpdate>(),
        ToCoordinator::Recovery(_) => in_family::<RecoveryUpdate>(),
        ToCoordinator::Join(_)
        | ToCoordinator::Clock(_)
        | ToCoordinator::Ask { .. }
        | ToCoordinator::Holding { .. } => vec![family],
    };
    kinds().into_iter().flat_map(of_family).collect()
}

fn in_family<F: DeserializeOwned + Into<ToCoordinator>>() -> Vec<ToCoordinator> {
    kinds::<F>().into_iter().map(Into::into).collect()
}

/// Returns the number of a message's kind: that of its family, and that within the family.
fn kind_of(message: &FromCoordinator, encoded: &[u8]) -> u8 {
    let within = match message {
        FromCoordinator::Join(_)
        | FromCoordinator::Liveness(_)
        | FromCoordinator::Migration(_)
        | FromCoordinator::Log(_)
        | FromCoordinator::Recovery(_) => encoded[1],
        FromCoordinator::Clock(_)
        | FromCoordinator::Answer { .. }
        | FromCoordinator::Mark(_)
        | FromCoordinator::Map(_) => 0,
    };
    8 * encoded[0] + within
}

/// Returns a message as its receiver decodes it; `None` if decoding refuses it.
fn sent(message: &ToCoordinator) -> Option<ToCoordinator> {
    let mut bytes = Vec::new();
    frame::encode(message, 0, &mut bytes).ok()?;
    let header = Header::parse(bytes.first_chunk()?).ok()?;
    header.message(&bytes[HEADER_BYTES..]).ok()
}

fn server(number: Option<ServerId>, generation: u64) -> Caller {
    let number = number.map(|server| (IDENTITY.cluster, server));
    Caller::Server { number, generation: Generation(generation) }
}

fn some_caller(draw: &mut Draw<'_>) -> Caller {
    match draw.below(8) {
        0 | 1 => Caller::Operator,
        2 => server(None, draw.number()),
        // Usually a single process uses each number.
        _ => server(Some(draw.server()), if draw.one_in(8) { draw.number() } else { 1 }),
    }
}

fn join(rejoin: Option<(ClusterId, ServerId)>, replicas: u16) -> Join {
    Join {
        host: "host".into(),
        client_port: 6379,
        bus_port: 16379,
        rejoin,
        replicas,
        rack: String::new(),
        disk: None,
        former: None,
        mark: None,
    }
}

impl Told {
    fn open(&mut self, caller: Caller) -> LinkId {
        self.last_connection += 1;
        let connection = LinkId(self.last_connection);
        self.connections.insert(connection, (caller, false));
        self.happens(CoordinatorEvent::Opened { connection, caller });
        connection
    }

    fn say(&mut self, connection: LinkId, message: impl Into<ToCoordinator>) {
        if let Some(message) = sent(&message.into()) {
            if let (ToCoordinator::Join(_), Some(known)) =
                (&message, self.connections.get_mut(&connection))
            {
                known.1 = true;
            }
            self.happens(CoordinatorEvent::Received { connection, message });
        }
    }

    fn happens(&mut self, event: CoordinatorEvent) {
        let effects = self.world.handle(event);
        self.take(effects);
    }

    fn take(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Send { connection, message } => {
                    let mut bytes = Vec::new();
                    if let Err(error) = frame::encode(&message, 0, &mut bytes) {
                        panic!("{error}");
                    }
                    self.kinds_heard |= 1 << kind_of(&message, &bytes[HEADER_BYTES..]);
                    self.heard += 1;
                    if self.demands.len() == DEMANDS_MAX {
                        self.demands.remove(0);
                    }
                    self.demands.push((connection, message));
                }
                Effect::Commit(_) => unreachable!("the store has it"),
                Effect::Close { connection } => {
                    self.connections.remove(&connection);
                }
            }
        }
    }

    fn step(&mut self, draw: &mut Draw<'_>) {
        let connections: Vec<LinkId> = self.connections.keys().copied().collect();
        match draw.below(32) {
            0 | 1 if connections.len() < CONNECTIONS_MAX => {
                let caller = some_caller(draw);
                self.open(caller);
            }
            2 if !connections.is_empty() => {
                let connection = draw.pick(&connections);
                self.connections.remove(&connection);
                self.happens(CoordinatorEvent::Closed { connection });
            }
            3 => {
                // All connections end with the coordinator.
                self.world.restart();
                self.connections.clear();
            }
            4 if !connections.is_empty() => {
                let connection = draw.pick(&connections);
                self.set_link(draw, connection);
            }
            5..=8 => {
                let millis = draw.pick(&[1, 10, 110, 160, 600, 1_100, 6_000]);
                match draw.one_in(8) {
                    true => self.world.stand_still(Duration::from_millis(millis)),
                    false => {
                        let effects = self.world.wait(Duration::from_millis(millis));
                        self.take(effects);
                    }
                }
            }
            9..=19 if !self.demands.is_empty() => {
                let (connection, demand) = draw.pick(&self.demands);
                if let Some(message) = answer(draw, demand)
                    && self.connections.contains_key(&connection)
                {
                    self.say(connection, message);
                }
            }
            _ if connections.is_empty() => {
                let caller = some_caller(draw);
                self.open(caller);
            }
            _ => {
                let connection = draw.pick(&connections);
                let message = self.some_message_of(draw, connection);
                self.say(connection, message);
            }
        }
    }

    /// Changes the automatic answers of a server's link.
    fn set_link(&mut self, draw: &mut Draw<'_>, connection: LinkId) {
        if !self.world.hanging.remove(&connection) && draw.bool() {
            self.world.hanging.insert(connection);
        }
        let ahead = draw.pick(&[0, 0, 300, -300, 10_000, i64::MIN]);
        self.world.clocks_ahead.insert(connection, ahead);
    }

    /// Returns a message that, usually, the process at the other end may send.
    fn some_message_of(&self, draw: &mut Draw<'_>, connection: LinkId) -> ToCoordinator {
        let known = self.connections.get(&connection).filter(|_| !draw.one_in(24));
        match known {
            Some((Caller::Server { number, .. }, false)) => {
                ToCoordinator::Join(join(*number, draw.below(3) as u16))
            }
            Some((Caller::Operator, _)) => self.some_request(draw),
            Some((Caller::Server { .. }, true)) if draw.one_in(3) => self.some_request(draw),
            Some((Caller::Server { .. }, true)) | None => {
                let kind = draw.pick(&self.kinds);
                self.some_message(draw, kind)
            }
        }
    }

    fn some_request(&self, draw: &mut Draw<'_>) -> ToCoordinator {
        let kind = if draw.bool() { migrate(draw) } else { draw.pick(&self.asks) };
        ToCoordinator::Ask { request: draw.number(), ask: some_ask(draw, kind) }
    }
}

/// Returns a server's answer to a demand.
fn answer(draw: &mut Draw<'_>, demand: FromCoordinator) -> Option<ToCoordinator> {
    match demand {
        FromCoordinator::Clock(question) => Some(some_reading(draw, question.asked).into()),
        FromCoordinator::Liveness(LivenessRequest::Ping) => {
            Some(LivenessUpdate::Pong { is_stalled: draw.one_in(4) }.into())
        }
        FromCoordinator::Liveness(LivenessRequest::Witness { server }) => {
            Some(LivenessUpdate::Witnessed { server }.into())
        }
        FromCoordinator::Migration(demand) => migrated(draw, demand).map(Into::into),
        FromCoordinator::Log(demand) => reported(draw, demand).map(Into::into),
        FromCoordinator::Recovery(RecoveryRequest::Recover(part)) => {
            recovered(draw, &part).map(Into::into)
        }
        FromCoordinator::Recovery(RecoveryRequest::RecoveryConfirmed { .. })
        | FromCoordinator::Join(_)
        | FromCoordinator::Map(_)
        | FromCoordinator::Answer { .. }
        | FromCoordinator::Mark(_) => None,
    }
}

fn migrated(draw: &mut Draw<'_>, demand: MigrationRequest) -> Option<MigrationUpdate> {
    Some(match demand {
        MigrationRequest::Measure { migration, .. } => {
            MigrationUpdate::Measured { migration, records: draw.number(), bytes: draw.number() }
        }
        MigrationRequest::Prepare(intent) => MigrationUpdate::Prepared {
            migration: intent.migration,
            refused: draw.one_in(4).then(|| "x".repeat(draw.below(2_000))),
        },
        MigrationRequest::Start(intent) => {
            let migration = intent.migration;
            match draw.one_in(3) {
                true => MigrationUpdate::FlipUnanswered { migration },
                false => MigrationUpdate::Flipped { migration },
            }
        }
        MigrationRequest::Decide { migration } => {
            MigrationUpdate::Decided { migration, accepted: draw.bool() }
        }
        MigrationRequest::Forget { migration, remaining } => match remaining.is_empty() {
            true => MigrationUpdate::Released { migration },
            // Occasionally sent in place of the target: its dependency is known here.
            false => MigrationUpdate::Shrink { migration, remaining: remaining[1..].to_vec() },
        },
        MigrationRequest::Outcome { migration, .. } => MigrationUpdate::Flipped { migration },
        MigrationRequest::Finished { .. } => return None,
    })
}

fn reported(draw: &mut Draw<'_>, demand: LogRequest) -> Option<LogUpdate> {
    Some(match demand {
        LogRequest::ManifestRecorded { .. } => return None,
        LogRequest::Fence { log } => match draw.one_in(3) {
            true => fenced(draw, log),
            false => usual_report(draw, log),
        },
        LogRequest::ReadManifest { log, replica, first } if !draw.one_in(3) => {
            let bodies = vec![manifest()];
            LogUpdate::ManifestRead { log, replica, first, bodies, next: None }
        }
        LogRequest::ReadManifest { log, replica, first } => LogUpdate::ManifestRead {
            log,
            replica,
            first: ManifestPosition { pieces: draw.near(first.pieces.into()) as u32, ..first },
            bodies: bodies(draw),
            next: draw.one_in(3).then(|| place(draw)),
        },
        LogRequest::FreeLog { log } => LogUpdate::LogFreed { log },
    })
}

fn recovered(draw: &mut Draw<'_>, part: &RecoveryPartition) -> Option<RecoveryUpdate> {
    let dead = part.dead()?;
    let range = if draw.one_in(6) { draw.range() } else { part.range };
    let epoch = OwnershipEpoch(draw.near(part.epoch.0));
    Some(match draw.below(4) {
        0 => RecoveryUpdate::NotRecovered { dead, range, epoch, reason: "no".into() },
        1 => RecoveryUpdate::Replayed { dead, range, epoch },
        _ => RecoveryUpdate::Recovered { dead, range, epoch },
    })
}

/// Returns a manifest of two segments: a closed one, and an open one.
fn manifest() -> Vec<u8> {
    let content = SegmentContent { length: 100, crc: 1 };
    let closed = SegmentRecord { segment: SegmentId(1), content: Some(content) };
    let open = SegmentRecord { segment: SegmentId(2), content: None };
    encode(&[ManifestEntry::Snapshot { segments: vec![closed, open] }])
}

/// Returns the report of a backup that, usually, has the whole log.
fn usual_report(draw: &mut Draw<'_>, log: ServerId) -> LogUpdate {
    let replica = |number, is_manifest, length| ReplicaInfo {
        segment: SegmentId(number),
        epoch: ReplicaEpoch(0),
        is_manifest,
        length,
        may_be_short: false,
    };
    let manifest_log = replica(1, true, manifest().len() as u32);
    let mut replicas = vec![manifest_log, replica(1, false, 100), replica(2, false, 60)];
    if draw.one_in(4) {
        replicas.remove(draw.below(3));
    }
    LogUpdate::Fenced { log, first: 0, replicas, clock: UnixMillis(5), more: false }
}

fn fenced(draw: &mut Draw<'_>, log: ServerId) -> LogUpdate {
    let replicas = draw.list(4, |draw| ReplicaInfo {
        segment: SegmentId(draw.number()),
        epoch: ReplicaEpoch(draw.below(2) as u32),
        is_manifest: draw.bool(),
        length: draw.u32(),
        may_be_short: draw.bool(),
    });
    let first = if draw.one_in(4) { draw.u32() } else { 0 };
    let clock = UnixMillis(draw.number());
    LogUpdate::Fenced { log, first, replicas, clock, more: draw.one_in(4) }
}

fn bodies(draw: &mut Draw<'_>) -> Vec<Vec<u8>> {
    draw.list(3, |draw| vec![draw.number() as u8; draw.below(60)])
}

fn place(draw: &mut Draw<'_>) -> ManifestPosition {
    ManifestPosition { pieces: draw.u32(), bytes: draw.u32() }
}

fn some_mark(draw: &mut Draw<'_>) -> HistoryMark {
    HistoryMark { term: draw.near(1), term_id: draw.near(101), transaction: draw.number() }
}

fn some_reading(draw: &mut Draw<'_>, asked: Instant) -> ClockReading {
    let wall = UnixMillis(draw.near(1_700_000_000_000));
    let expiry = draw.bool().then(|| UnixMillis(draw.near(1_700_000_000_000)));
    ClockReading { asked: Instant(draw.near(asked.0)), wall, expiry }
}

impl Told {
    /// Returns a message of this kind.
    fn some_message(&self, draw: &mut Draw<'_>, kind: ToCoordinator) -> ToCoordinator {
        match kind {
            ToCoordinator::Join(_) => some_join(draw).into(),
            ToCoordinator::Clock(_) => {
                let asked = Instant(draw.near(self.world.now().0));
                some_reading(draw, asked).into()
            }
            ToCoordinator::Ask { .. } => self.some_request(draw),
            ToCoordinator::Described(kind) => match kind {
                Description::KnownMap(_) => Description::KnownMap(Box::new(some_map(draw))).into(),
                Description::Holds(_) => Description::Holds(Box::new(some_holdings(draw))).into(),
            },
            ToCoordinator::Liveness(kind) => match kind {
                LivenessUpdate::Pong { .. } => {
                    LivenessUpdate::Pong { is_stalled: draw.bool() }.into()
                }
                LivenessUpdate::Suspect { .. } => {
                    LivenessUpdate::Suspect { server: draw.server() }.into()
                }
                LivenessUpdate::Witnessed { .. } => {
                    LivenessUpdate::Witnessed { server: draw.server() }.into()
                }
            },
            ToCoordinator::Holding { .. } => {
                ToCoordinator::Holding { range: draw.range(), epoch: OwnershipEpoch(draw.number()) }
            }
            ToCoordinator::Migration(kind) => some_migration_update(draw, kind).into(),
            ToCoordinator::Log(kind) => some_log_update(draw, kind).into(),
            ToCoordinator::Recovery(kind) => some_recovery_update(draw, kind).into(),
        }
    }
}

fn some_join(draw: &mut Draw<'_>) -> Join {
    let rejoin = draw.bool().then(|| (ClusterId(draw.near(77)), draw.server()));
    let disk = draw.one_in(4).then(|| ClusterId(draw.near(77)));
    let former = draw.one_in(4).then(|| (ClusterId(draw.near(77)), draw.server()));
    let rack = "r".repeat(draw.below(60));
    // An unknown mark stops the coordinator: its store is then outdated.
    let mark = draw.one_in(50).then(|| some_mark(draw));
    let plain = join(rejoin, draw.number() as u16);
    Join { rack, disk, former, mark, ..plain }
}

fn some_migration_update(draw: &mut Draw<'_>, kind: MigrationUpdate) -> MigrationUpdate {
    let migration = MigrationId(draw.number());
    match kind {
        MigrationUpdate::Measured { .. } => {
            MigrationUpdate::Measured { migration, records: draw.number(), bytes: draw.number() }
        }
        MigrationUpdate::Prepared { .. } => {
            MigrationUpdate::Prepared { migration, refused: draw.bool().then(|| "no".into()) }
        }
        MigrationUpdate::Flipped { .. } => MigrationUpdate::Flipped { migration },
        MigrationUpdate::FlipUnanswered { .. } => MigrationUpdate::FlipUnanswered { migration },
        MigrationUpdate::Decided { .. } => {
            MigrationUpdate::Decided { migration, accepted: draw.bool() }
        }
        MigrationUpdate::Shrink { .. } => {
            MigrationUpdate::Shrink { migration, remaining: draw.list(4, Draw::range) }
        }
        MigrationUpdate::Progress { .. } => {
            MigrationUpdate::Progress { migration, progress: some_progress(draw) }
        }
        MigrationUpdate::Released { .. } => MigrationUpdate::Released { migration },
    }
}

fn some_log_update(draw: &mut Draw<'_>, kind: LogUpdate) -> LogUpdate {
    let (log, segment) = (draw.server(), SegmentId(draw.number()));
    let epoch = ReplicaEpoch(draw.below(2) as u32);
    match kind {
        LogUpdate::ManifestContinues { .. } => LogUpdate::ManifestContinues { number: segment },
        LogUpdate::LoadProfile(_) => {
            LogUpdate::LoadProfile(LoadProfile::of(&[draw.number() >> 8, 0, draw.number() >> 8]))
        }
        LogUpdate::Fenced { .. } => fenced(draw, log),
        LogUpdate::ManifestRead { .. } => LogUpdate::ManifestRead {
            log,
            replica: (segment, epoch),
            first: place(draw),
            bodies: bodies(draw),
            next: draw.bool().then(|| place(draw)),
        },
        LogUpdate::Damaged { .. } => LogUpdate::Damaged { log, segment, epoch },
        LogUpdate::LogFreed { .. } => LogUpdate::LogFreed { log },
        LogUpdate::IsNeeded { .. } => LogUpdate::IsNeeded { log },
    }
}

fn some_recovery_update(draw: &mut Draw<'_>, kind: RecoveryUpdate) -> RecoveryUpdate {
    let (dead, range, epoch) = (draw.server(), draw.range(), OwnershipEpoch(draw.number()));
    match kind {
        RecoveryUpdate::Replayed { .. } => RecoveryUpdate::Replayed { dead, range, epoch },
        RecoveryUpdate::Recovered { .. } => RecoveryUpdate::Recovered { dead, range, epoch },
        RecoveryUpdate::NotRecovered { .. } => {
            let reason = "no".repeat(draw.below(300));
            RecoveryUpdate::NotRecovered { dead, range, epoch, reason }
        }
    }
}

fn some_progress(draw: &mut Draw<'_>) -> MigrationProgress {
    MigrationProgress {
        records_total: draw.number(),
        records: draw.number(),
        bytes: draw.number(),
        priority_records: draw.number(),
        elapsed_ns: draw.number(),
    }
}

fn migrate(draw: &mut Draw<'_>) -> Ask {
    Ask::Migrate {
        ranges: if draw.one_in(4) { draw.list(4, Draw::range) } else { vec![slots(draw)] },
        source: draw.one_in(6).then(|| draw.server()),
        target: draw.server(),
        policy: some_policy(draw),
    }
}

/// Returns an ask of this kind.
fn some_ask(draw: &mut Draw<'_>, kind: Ask) -> Ask {
    match kind {
        Ask::Migrate { .. } => migrate(draw),
        Ask::Cancel { .. } => Ask::Cancel {
            source: draw.bool().then(|| draw.server()),
            task: draw.one_in(3).then(|| MigrationId(draw.number())),
        },
        Ask::List { .. } => Ask::List { task: draw.bool().then(|| MigrationId(draw.number())) },
        Ask::Flush { .. } => {
            Ask::Flush { table: draw.bool().then(|| TableId(draw.below(18) as u8)) }
        }
        Ask::AcceptLoss { .. } => {
            let segment = |draw: &mut Draw<'_>| SegmentId(draw.number());
            let loss = match draw.bool() {
                true => LogLoss::Manifest,
                false => LogLoss::Segments { first: draw.list(3, segment), total: draw.u32() },
            };
            Ask::AcceptLoss { dead: draw.server(), loss }
        }
        Ask::Rebuild { .. } => {
            Ask::Rebuild { without: draw.list(3, Draw::server), go: draw.bool() }
        }
        Ask::Lease { .. } => {
            Ask::Lease { renewed: draw.bool().then(|| LeaseId(draw.number() >> draw.below(64))) }
        }
        Ask::Recoveries | Ask::Map | Ask::Health | Ask::Standing | Ask::Clocks => kind,
    }
}

fn slots(draw: &mut Draw<'_>) -> types::HashRange {
    let first = draw.pick(&[0, 100, 4_096, 8_192]);
    crate::support::slots(first, Slot(first + draw.below(4_000) as u16).0)
}

fn some_policy(draw: &mut Draw<'_>) -> MigrationPolicy {
    if !draw.one_in(4) {
        return MigrationPolicy::default();
    }
    MigrationPolicy {
        partitions: draw.number() as u16,
        pull_bytes: draw.u32(),
        pulls_ahead: draw.number() as u16,
        priority: PriorityPullMode::Batched { hashes_max: draw.number() as u16 },
        background_share: draw.number() as u8,
        latency_p99_micros: if draw.bool() { 0 } else { draw.u32() },
    }
}

fn incarnations(draw: &mut Draw<'_>) -> Vec<Incarnation> {
    draw.list(TABLES_MAX + 1, |draw| Incarnation(draw.number()))
}

/// Returns a server's map for a coordinator whose file is lost.
fn some_map(draw: &mut Draw<'_>) -> ClusterMap {
    let server = |draw: &mut Draw<'_>| ServerInfo {
        id: draw.server(),
        host: "host".into(),
        client_port: 1,
        bus_port: 2,
        connected: draw.bool(),
        rack: String::new(),
        is_dead: draw.bool(),
        in_recovery: draw.bool(),
    };
    let tablet = |draw: &mut Draw<'_>| TabletInfo {
        range: draw.range(),
        owner: draw.server(),
        epoch: OwnershipEpoch(draw.number()),
        incarnations: incarnations(draw),
        is_born: draw.bool(),
    };
    ClusterMap {
        version: draw.number(),
        cluster: IDENTITY.cluster,
        servers: draw.list(4, server),
        tablets: draw.list(3, tablet),
        moving: draw.list(2, |draw| (draw.range(), draw.server(), draw.server())),
    }
}

/// Returns a server's state for a coordinator whose file is lost.
fn some_holdings(draw: &mut Draw<'_>) -> Holdings {
    let tablet = |draw: &mut Draw<'_>| HeldTablet {
        range: draw.range(),
        epoch: OwnershipEpoch(draw.number()),
        incarnations: incarnations(draw),
        state: draw.pick(&[HeldState::Owned, HeldState::Leaving, HeldState::Recovering]),
        depends_on: draw
            .bool()
            .then(|| RecoveryLog { dead: draw.server(), old_incarnations: incarnations(draw) }),
    };
    let migration = |draw: &mut Draw<'_>| HeldMigration {
        intent: Intent {
            migration: MigrationId(draw.number()),
            range: draw.range(),
            source: draw.server(),
            target: draw.server(),
            source_epoch: OwnershipEpoch(draw.number()),
            target_epoch: OwnershipEpoch(draw.number()),
            target_incarnations: incarnations(draw),
            bytes: draw.number(),
            policy: some_policy(draw),
        },
        is_accepted: draw.bool(),
    };
    let manifest_log = |draw: &mut Draw<'_>| draw.bool().then(|| SegmentId(draw.number()));
    Holdings {
        seed: draw.near(IDENTITY.seed),
        manifest_log: manifest_log(draw),
        tablets: draw.list(3, tablet),
        migrations: draw.list(2, migration),
        logs: draw.list(3, |draw| (draw.server(), manifest_log(draw))),
    }
}
