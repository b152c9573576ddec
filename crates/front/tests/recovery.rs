//! A server recovers a recovery partition of a dead server from replicas on its own disk and on
//! another server's. The test plays that server: it takes every append.

mod common;

use backup::{MemoryDisk, Replicas};
use common::{CLUSTER, ME, Sockets};
use front::core::Core;
use node::{Mode, Node, Payload, Plan, Route, Sending, To};
use std::sync::Arc;
use std::time::Duration;
use store::TabletState;
use types::ConnectionId;
use types::limits::TABLES_MAX;
use types::{
    HashRange, HashSeed, Incarnation, Instant, OwnershipEpoch, SegmentId, ServerId, TypedValue,
    UnixMillis, Version, slot_of,
};
use wire::control::{
    ClusterMap, FromCoordinator, LoadProfile, LogRequest, LogUpdate, MANIFEST_BYTES_PER_MESSAGE,
    ManifestPosition, RecoveryLog, RecoveryPartition, RecoveryRequest, RecoverySegment,
    RecoveryUpdate, ReplicaPlace, ServerInfo, TabletInfo, ToCoordinator,
};
use wire::entry::{Body, Dead, Entry};
use wire::manifest::{ManifestEntry, SegmentContent};
use wire::peer::{Append, AppendResult, Appended, PeerMessage, RecoveryRead, RecoveryReply};
use wire::replica::{
    BootId, PieceWriter, ReplicaEpoch, ReplicaFormat, ReplicaHeader, ReplicaId, ReplicaKind, Stamp,
};

const DEAD: ServerId = ServerId(1);
const OTHER: ServerId = ServerId(3);
const OLD: Incarnation = Incarnation(5);
const SEGMENT_BYTES: u32 = 1 << 20;
/// Number of a manifest segment.
const MANIFEST: u64 = SegmentId::FIRST_OF_MANIFEST.0;
const WALL: UnixMillis = UnixMillis(1_700_000_000_000);

struct World {
    node: Arc<Node>,
    cores: Vec<Core>,
    sockets: Sockets,
    now: Instant,
    /// The other server's replicas of the dead server's log.
    other: Replicas,
    /// Messages about partitions to the coordinator, without repetitions.
    told: Vec<String>,
    connections: u64,
    /// Set if the other server does not answer appends to data segments.
    is_slow: bool,
    /// Last load profile sent to the coordinator.
    profile: Option<LoadProfile>,
}

fn disk() -> Replicas {
    Replicas::open(Arc::new(MemoryDisk::new()), BootId::default()).expect("an empty disk").replicas
}

fn id(segment: u64) -> ReplicaId {
    ReplicaId { log: DEAD, segment: SegmentId(segment), epoch: ReplicaEpoch(0) }
}

fn header(disk: &Replicas, segment: u64, kind: ReplicaKind) -> ReplicaHeader {
    ReplicaHeader {
        format: ReplicaFormat::CURRENT,
        cluster: CLUSTER,
        id: id(segment),
        kind,
        segment_bytes: SEGMENT_BYTES,
        boot: disk.boot(),
    }
}

/// Writes a replica, and returns its content as a manifest would record it.
fn write(disk: &Replicas, segment: u64, entries: &[(u64, &str, Option<&str>)]) -> SegmentContent {
    let header = header(disk, segment, ReplicaKind::Data);
    let replica = disk.create(header).expect("room for a replica");
    let mut writer = PieceWriter::new(replica.identity());
    for &(version, key, value) in entries {
        let body = match value {
            Some(value) => Body::Object {
                expiry: None,
                replaces: None,
                value: TypedValue::string(value.as_bytes()),
            },
            None => Body::Tombstone { dead: Dead::Nothing },
        };
        let version = Version(version);
        let entry = Entry { incarnation: OLD, version, key: key.as_bytes(), body };
        let mut bytes = vec![0; entry.encoded_bytes()];
        entry.encode(&mut bytes);
        let piece = writer.next(&bytes, 0, Stamp { version, ..Stamp::default() });
        replica.append(&piece, &bytes).expect("room for a piece");
    }
    SegmentContent { length: writer.length(), crc: writer.crc() }
}

fn server(id: ServerId, is_dead: bool) -> ServerInfo {
    ServerInfo {
        id,
        host: "here".into(),
        client_port: id.0 as u16,
        bus_port: 100 + id.0 as u16,
        connected: !is_dead,
        rack: String::new(),
        is_dead,
        in_recovery: false,
    }
}

/// Returns the maps that assign all slots to this server as never served, under this epoch.
fn born(epoch: u64) -> [FromCoordinator; 2] {
    [true, false].map(|is_born| map_of(2, ME, epoch, Incarnation(4), is_born))
}

fn map(version: u64, owner: ServerId, epoch: u64, incarnation: Incarnation) -> FromCoordinator {
    map_of(version, owner, epoch, incarnation, false)
}

fn map_of(
    version: u64,
    owner: ServerId,
    epoch: u64,
    incarnation: Incarnation,
    is_born: bool,
) -> FromCoordinator {
    let tablet = TabletInfo {
        range: HashRange::ALL,
        owner,
        epoch: OwnershipEpoch(epoch),
        incarnations: vec![incarnation; TABLES_MAX],
        is_born,
    };
    FromCoordinator::Map(ClusterMap {
        version,
        cluster: CLUSTER,
        servers: vec![server(DEAD, true), server(ME, false), server(OTHER, false)],
        tablets: vec![tablet],
        moving: Vec::new(),
    })
}

/// Returns the coordinator's confirmation that the partition is durable.
fn kept(epoch: u64) -> FromCoordinator {
    RecoveryRequest::RecoveryConfirmed { range: HashRange::ALL, epoch: OwnershipEpoch(epoch) }
        .into()
}

/// Returns a partition that is the whole key space.
fn part(epoch: u64, segments: &[(u64, SegmentContent, ServerId)]) -> FromCoordinator {
    let segment = |&(segment, content, backup): &(u64, SegmentContent, ServerId)| RecoverySegment {
        log: DEAD,
        segment: SegmentId(segment),
        content: Some(content),
        places: vec![ReplicaPlace { backup, epoch: ReplicaEpoch(0), length: content.length }],
        common_prefix: content.length,
    };
    RecoveryRequest::Recover(Box::new(RecoveryPartition {
        range: HashRange::ALL,
        epoch: OwnershipEpoch(epoch),
        incarnations: vec![Incarnation(epoch); TABLES_MAX],
        keeps: false,
        clock_floor: UnixMillis(0),
        logs: vec![RecoveryLog { dead: DEAD, old_incarnations: vec![OLD; 1] }],
        list: epoch,
        segments_total: segments.len() as u32,
        segments: segments.iter().map(segment).collect(),
    }))
    .into()
}

impl World {
    /// Makes a server with the replicas `mine`, and another one with `other`.
    fn new(mine: Replicas, other: Replicas) -> World {
        let plan = Plan { mode: Mode::Memory, replicas: 1, scrub: None };
        let (node, cores) = common::start(plan, mine, 64 << 20);
        let mut world = World {
            node,
            cores,
            sockets: Sockets::default(),
            now: Instant(0),
            other,
            told: Vec::new(),
            connections: 0,
            is_slow: false,
            profile: None,
        };
        world.pass(10);
        world.hear(map(1, DEAD, 1, OLD));
        world.hear(LogRequest::Fence { log: DEAD }.into());
        world
    }

    /// Delivers a message of the coordinator.
    fn hear(&mut self, message: FromCoordinator) {
        self.cores[0].on_control(message);
        self.pass(20);
    }

    /// Advances the time by `millis` milliseconds, with some turns of every reactor in each.
    fn pass(&mut self, millis: u64) {
        for _ in 0..4 * millis {
            self.now = self.now + Duration::from_micros(250);
            for reactor in 0..self.cores.len() {
                let core = &mut self.cores[reactor];
                core.begin_turn(self.now, WALL);
                core.end_of_input(&mut self.sockets);
                core.tick(self.now, &mut self.sockets);
                core.quantum(self.now, &mut self.sockets);
                self.carry_out(reactor);
            }
        }
    }

    fn carry_out(&mut self, reactor: usize) {
        let out = &mut self.cores[reactor].engine_mut().out;
        let (jobs, peers) = (std::mem::take(&mut out.disk), std::mem::take(&mut out.peers));
        for message in std::mem::take(&mut out.control) {
            self.told(message);
        }
        for job in jobs {
            self.cores[reactor].on_disk(job.carry_out());
        }
        for sending in peers {
            assert_eq!(sending.to, To::Server(OTHER), "{:?} goes nowhere else", sending.message);
            if let Some((answer, payload)) = self.answer(sending) {
                let payload = Payload { buffer: payload, start: 0 };
                self.cores[reactor].on_peer(OTHER, Route(0), answer, payload);
            }
        }
    }

    /// Returns the other server's answer.
    fn answer(&self, sending: Sending) -> Option<(PeerMessage, Vec<u8>)> {
        match sending.message {
            // Appends of manifest segments are always answered: they renew the read lease.
            PeerMessage::Append(Append { kind: ReplicaKind::Data, .. }) if self.is_slow => None,
            PeerMessage::Append(Append { replica, from, sent, .. }) => {
                let length = from + sending.payload.len() as u32;
                let result = AppendResult::Has { length, synced: length };
                Some((PeerMessage::Appended(Appended { replica, sent, result }), Vec::new()))
            }
            PeerMessage::RecoveryRead(read) => {
                let seed = HashSeed::new(1);
                let mut entries = Vec::new();
                // Short replies of a few entries each.
                let next = self.other.entries(&read, &seed, 100, &mut entries).ok()?;
                let RecoveryRead { replica, range, from } = read;
                let reply = RecoveryReply { replica, range, from, next };
                Some((PeerMessage::RecoveryReply(reply), entries))
            }
            _ => None,
        }
    }

    fn told(&mut self, message: ToCoordinator) {
        let told = match message {
            ToCoordinator::Log(LogUpdate::ManifestContinues { number }) => {
                return self.cores[0].on_control(LogRequest::ManifestRecorded { number }.into());
            }
            ToCoordinator::Log(LogUpdate::LoadProfile(profile)) => {
                self.profile = Some(profile);
                return;
            }
            ToCoordinator::Recovery(RecoveryUpdate::Replayed { epoch, .. }) => {
                format!("{epoch} replayed")
            }
            ToCoordinator::Recovery(RecoveryUpdate::Recovered { epoch, .. }) => {
                format!("{epoch} recovered")
            }
            ToCoordinator::Recovery(RecoveryUpdate::NotRecovered { epoch, reason, .. }) => {
                format!("{epoch} not recovered: {reason}")
            }
            _ => return,
        };
        if self.told.last() != Some(&told) {
            self.told.push(told);
        }
    }

    /// Sends a request on a new connection, and returns the reply.
    fn ask(&mut self, line: &str) -> String {
        self.connections += 1;
        let reactor = self.connections as usize % self.cores.len();
        let connection = ConnectionId::from_number((reactor as u64) << 48 | self.connections);
        let core = &mut self.cores[reactor];
        core.open(connection, "127.0.0.1:1000".to_owned(), &mut self.sockets);
        core.receive(connection, format!("{line}\r\n").as_bytes(), &mut self.sockets);
        self.pass(10);
        let output = self.sockets.outputs.remove(&connection).unwrap_or_default();
        String::from_utf8(output).expect("replies of these tests are text")
    }

    fn states(&self) -> Vec<TabletState> {
        self.node.store().tablets().iter().map(|tablet| tablet.state.clone()).collect()
    }
}

#[test]
fn a_part_is_read_from_all_disks_and_served_when_the_map_says_so() {
    let (mine, other) = (disk(), disk());
    // The tombstone precedes the record it deletes, and an overwrite the record it replaces.
    let first = write(&mine, 1, &[(9, "gone", None), (8, "twice", Some("new"))]);
    let entries: Vec<_> =
        [(1, "one", Some("1")), (2, "gone", Some("x")), (3, "twice", Some("old"))]
            .into_iter()
            .collect();
    let second = write(&other, 2, &entries);
    let mut world = World::new(mine, other);
    world.hear(part(7, &[(1, first, ME), (2, second, OTHER)]));
    assert_eq!(world.told, ["e7 replayed", "e7 recovered"]);
    assert!(matches!(world.states()[..], [TabletState::Recovering(_)]));
    let mut asked = world.ask("GET one");
    assert_eq!(asked, "", "no client is answered yet");
    world.hear(map(2, ME, 7, Incarnation(7)));
    assert!(matches!(world.states()[..], [TabletState::Securing(_)]));
    world.hear(kept(7));
    assert!(matches!(world.states()[..], [TabletState::Serving]));
    for (key, answer) in [("one", "$1\r\n1\r\n"), ("twice", "$3\r\nnew\r\n"), ("gone", "$-1\r\n")] {
        asked = world.ask(&format!("GET {key}"));
        assert_eq!(asked, answer, "{key}");
    }
    let info = world.ask("INFO recovery");
    assert!(info.contains("recovery_parts:0\r\nrecovery_segments:0"), "{info}");
    assert!(info.contains("recovery_parts_recovered:1\r\n"), "{info}");
    assert_eq!(world.ask("SET twice newer"), "+OK\r\n", "its version is above those of the dead");
    assert_eq!(world.ask("GET twice"), "$5\r\nnewer\r\n");
}

#[test]
fn what_is_replayed_is_served_before_it_is_safe_and_writes_wait_until_they_are() {
    let (mine, other) = (disk(), disk());
    let first = write(&mine, 1, &[(1, "one", Some("1")), (2, "two", Some("2"))]);
    let mut world = World::new(mine, other);
    world.is_slow = true;
    world.hear(part(7, &[(1, first, ME)]));
    assert_eq!(world.told, ["e7 replayed"]);
    world.hear(map(2, ME, 7, Incarnation(7)));
    assert_eq!(world.ask("GET one"), "$1\r\n1\r\n", "the dead server's log has it");
    assert_eq!(world.ask("DEL two"), "", "nobody has that yet");
    world.is_slow = false;
    world.pass(300);
    assert_eq!(world.told, ["e7 replayed", "e7 recovered"]);
    assert!(
        matches!(world.states()[..], [TabletState::Securing(_)]),
        "the coordinator has to know"
    );
    world.hear(kept(7));
    assert!(matches!(world.states()[..], [TabletState::Serving]));
    assert_eq!(world.ask("GET two"), "$-1\r\n");
}

#[test]
fn what_is_handed_back_is_forgotten_and_can_be_recovered_later() {
    let (mine, other) = (disk(), disk());
    let first = write(&mine, 1, &[(1, "one", Some("1")), (9, "gone", None)]);
    let second = write(&other, 2, &[(2, "two", Some("2"))]);
    let mut world = World::new(mine, other);
    let wrong = SegmentContent { crc: second.crc ^ 1, ..second };
    world.hear(part(7, &[(1, first, ME), (2, wrong, OTHER)]));
    let reason = "e7 not recovered: seg2 of log s1 cannot be read: s3 has other content";
    assert_eq!(world.told, [reason]);
    assert!(world.states().is_empty(), "there is no tablet any more");
    assert!(world.cores[0].engine_mut().worker.is_empty(HashRange::ALL), "nor any record");
    world.hear(part(8, &[(1, first, ME), (2, second, OTHER)]));
    assert_eq!(world.told, [reason, "e8 replayed", "e8 recovered"]);
    world.hear(map(2, ME, 8, Incarnation(8)));
    assert_eq!(world.ask("GET one"), "$1\r\n1\r\n");
    assert_eq!(world.ask("GET two"), "$1\r\n2\r\n");
    assert_eq!(world.ask("GET gone"), "$-1\r\n");
}

#[test]
fn a_part_that_somebody_else_gets_is_forgotten() {
    let (mine, other) = (disk(), disk());
    let first = write(&mine, 1, &[(1, "one", Some("1"))]);
    let mut world = World::new(mine, other);
    world.hear(part(7, &[(1, first, ME)]));
    assert_eq!(world.told, ["e7 replayed", "e7 recovered"]);
    world.hear(map(2, OTHER, 8, Incarnation(8)));
    assert!(world.states().is_empty());
    assert!(world.cores[0].engine_mut().worker.is_empty(HashRange::ALL));
    assert!(world.ask("GET one").starts_with("-MOVED"));
}

#[test]
fn what_is_held_already_is_not_recovered() {
    let mut world = World::new(disk(), disk());
    born(1).into_iter().for_each(|map| world.hear(map));
    world.hear(part(7, &[]));
    assert_eq!(world.told, ["e7 not recovered: the server already serves a part of the range"]);
    assert!(matches!(world.states()[..], [TabletState::Serving]));
}

#[test]
fn a_server_says_what_its_ranges_would_cost() {
    let mut world = World::new(disk(), disk());
    world.pass(1500);
    assert_eq!(world.profile, Some(LoadProfile::default()), "it has nothing");
    born(1).into_iter().for_each(|map| world.hear(map));
    let long = "x".repeat(1000);
    for number in 0..3 {
        assert_eq!(world.ask(&format!("SET {{one}}{number} {long}")), "+OK\r\n");
    }
    assert_eq!(world.ask("SET other 1"), "+OK\r\n");
    world.pass(6500);
    let profile = world.profile.expect("a load profile");
    let loads = profile.slots();
    let (one, other) = (slot_of(b"one"), slot_of(b"other"));
    let ([one, other], total) =
        ([one, other].map(|slot| loads[usize::from(slot.0)]), profile.total());
    assert_eq!(one + other, total);
    assert!(
        (3 * 1256..3 * 1400).contains(&one),
        "three records of 1000 bytes, and 256 each: {one}"
    );
    assert!((257..400).contains(&other), "a small one: {other}");
}

/// Reading a manifest on the reactor delayed heartbeats of other masters. The read also began
/// anew for each part that fits into a message.
#[test]
fn a_manifest_is_read_by_the_disk_thread_and_once_for_all_parts() {
    let mine = disk();
    let entry = ManifestEntry::Open { segment: SegmentId(1) };
    let body = wire::manifest::encode(&vec![entry; MANIFEST_BYTES_PER_MESSAGE / 4]);
    let pieces = 3;
    let replica = mine.create(header(&mine, MANIFEST, ReplicaKind::Manifest)).expect("room");
    let mut writer = PieceWriter::new(replica.identity());
    for _ in 0..pieces {
        let piece = writer.next(&body, 0, Stamp::default());
        replica.append(&piece, &body).expect("room for a piece");
    }
    let mut world = World::new(mine, disk());
    let (mut jobs, mut parts, mut read) = (0, 0, 0);
    let mut next = Some(ManifestPosition::default());
    while let Some(first) = next.take() {
        let replica = (SegmentId(MANIFEST), ReplicaEpoch(0));
        let core = &mut world.cores[0];
        core.on_control(LogRequest::ReadManifest { log: DEAD, replica, first }.into());
        for job in std::mem::take(&mut core.engine_mut().out.disk) {
            assert!(core.engine_mut().out.control.is_empty(), "the reactor has read it");
            jobs += 1;
            core.on_disk(job.carry_out());
        }
        let told = std::mem::take(&mut core.engine_mut().out.control);
        let [ToCoordinator::Log(LogUpdate::ManifestRead { bodies, next: rest, .. })] = &told[..]
        else {
            panic!("{told:?}");
        };
        parts += 1;
        read += bodies.iter().map(Vec::len).sum::<usize>();
        next = *rest;
    }
    assert_eq!((jobs, parts, read), (1, 2, pieces * body.len()));
}
