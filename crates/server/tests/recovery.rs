//! A server that recovers a part of what a dead one held, from replicas on its own disk and on another
//! server's. That other server is played: it takes every append, and has some replicas.

use backup::{MemoryDisk, Replicas};
use runtime::ConnectionId;
use server::Settings;
use server::core::{Connections, Core};
use server::engine::{
    Engine, Identity, Keeping, Mode, Node, Payload, Plan, Replication, Route, Sending, To,
};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use store::{Store, StoreConfig, TabletState};
use types::limits::TABLES_MAX;
use types::{
    ClusterId, HashRange, HashSeed, Instant, OwnershipEpoch, ReactorId, SegmentId, ServerId,
    Tenure, UnixMillis, Version, slot_of,
};
use wire::control::{
    ClusterMap, FromCoordinator, RecoveryLog, RecoveryPart, RecoverySegment, ReplicaPlace,
    ServerInfo, TabletInfo, ToCoordinator, Will,
};
use wire::directory::Content;
use wire::entry::{Body, Dead, Entry};
use wire::peer::{Append, AppendResult, Appended, PeerMessage, RecoveryRead, RecoveryReply};
use wire::replica::{
    BootId, PieceWriter, ReplicaEpoch, ReplicaFormat, ReplicaHeader, ReplicaId, ReplicaKind, Stamp,
};

const CLUSTER: ClusterId = ClusterId(1);
const DEAD: ServerId = ServerId(1);
const ME: ServerId = ServerId(2);
const OTHER: ServerId = ServerId(3);
const OLD: Tenure = Tenure(5);
const SEGMENT_BYTES: u32 = 1 << 20;
const REACTORS: u16 = 2;
const WALL: UnixMillis = UnixMillis(1_700_000_000_000);

/// Clients' connections.
#[derive(Default)]
struct Sockets {
    outputs: BTreeMap<ConnectionId, Vec<u8>>,
}

impl Connections for Sockets {
    fn output(&mut self, connection: ConnectionId) -> &mut Vec<u8> {
        self.outputs.entry(connection).or_default()
    }

    fn resume_reading(&mut self, _connection: ConnectionId) {}

    fn pause_reading(&mut self, _connection: ConnectionId) {}

    fn close_after_flush(&mut self, _connection: ConnectionId) {}
}

struct World {
    node: Arc<Node>,
    cores: Vec<Core>,
    sockets: Sockets,
    now: Instant,
    /// What the other server has of the dead one's log.
    other: Replicas,
    /// What was told to the coordinator of parts, each once.
    told: Vec<String>,
    connections: u64,
    /// The other server answers nothing that is appended to segments.
    is_slow: bool,
    /// The last one.
    will: Option<Will>,
}

fn disk() -> Replicas {
    Replicas::open(Arc::new(MemoryDisk::new()), BootId::default()).expect("an empty disk").replicas
}

fn id(segment: u64) -> ReplicaId {
    ReplicaId { log: DEAD, segment: SegmentId(segment), epoch: ReplicaEpoch(0) }
}

/// Writes a replica; its content is what a directory would say.
fn write(disk: &Replicas, segment: u64, entries: &[(u64, &str, Option<&str>)]) -> Content {
    let header = ReplicaHeader {
        format: ReplicaFormat::CURRENT,
        cluster: CLUSTER,
        id: id(segment),
        kind: ReplicaKind::Data,
        segment_bytes: SEGMENT_BYTES,
        boot: disk.boot(),
    };
    let replica = disk.create(header).expect("room for a replica");
    let mut writer = PieceWriter::new(replica.identity());
    for &(version, key, value) in entries {
        let body = match value {
            Some(value) => Body::Object { expiry: None, replaces: None, value: value.as_bytes() },
            None => Body::Tombstone { dead: Dead::Nothing },
        };
        let version = Version(version);
        let entry = Entry { tenure: OLD, version, key: key.as_bytes(), body };
        let mut bytes = vec![0; entry.encoded_bytes()];
        entry.encode(&mut bytes);
        let piece = writer.next(&bytes, 0, Stamp { version, ..Stamp::default() });
        replica.append(&piece, &bytes).expect("room for a piece");
    }
    Content { length: writer.length(), crc: writer.crc() }
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

/// The maps by which we get everything, under this epoch.
fn born(epoch: u64) -> [FromCoordinator; 2] {
    [true, false].map(|is_born| map_of((2, ME), epoch, Tenure(4), is_born))
}

fn map(version: u64, owner: ServerId, epoch: u64, tenure: Tenure) -> FromCoordinator {
    map_of((version, owner), epoch, tenure, false)
}

fn map_of(
    (version, owner): (u64, ServerId),
    epoch: u64,
    tenure: Tenure,
    is_born: bool,
) -> FromCoordinator {
    let tablet = TabletInfo {
        range: HashRange::ALL,
        owner,
        epoch: OwnershipEpoch(epoch),
        tenures: vec![tenure; TABLES_MAX],
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

/// The part is safe for the coordinator.
fn kept(epoch: u64) -> FromCoordinator {
    FromCoordinator::Kept { range: HashRange::ALL, epoch: OwnershipEpoch(epoch) }
}

/// The whole key space is one part.
fn part(epoch: u64, segments: &[(u64, Content, ServerId)]) -> FromCoordinator {
    let segment = |&(segment, content, backup): &(u64, Content, ServerId)| RecoverySegment {
        log: DEAD,
        segment: SegmentId(segment),
        content: Some(content),
        places: vec![ReplicaPlace { backup, epoch: ReplicaEpoch(0), length: content.length }],
        settled: content.length,
    };
    FromCoordinator::Recover(Box::new(RecoveryPart {
        range: HashRange::ALL,
        epoch: OwnershipEpoch(epoch),
        tenures: vec![Tenure(epoch); TABLES_MAX],
        keeps: false,
        clock_floor: UnixMillis(0),
        logs: vec![RecoveryLog { dead: DEAD, old_tenures: vec![OLD; 1] }],
        list: epoch,
        segments_total: segments.len() as u32,
        segments: segments.iter().map(segment).collect(),
    }))
}

impl World {
    /// A server on whose disk these replicas are; the other one has those.
    fn new(mine: Replicas, other: Replicas) -> World {
        let settings = Settings {
            host: "here".to_owned(),
            client_port: 2,
            bus_port: 102,
            memory_bytes: 64 << 20,
            reactors: REACTORS,
            is_cluster: true,
            cuts: server::Cuts::default(),
        };
        let store = StoreConfig {
            memory_bytes: settings.memory_bytes,
            reactors: REACTORS,
            seed: HashSeed::new(1),
            huge_pages: false,
            durable: true,
            segment_bytes: None,
        };
        let store = Store::new(store).expect("memory for a small store");
        let plan = Plan { mode: Mode::Memory, replicas: 1, scrub: None };
        let replication = Arc::new(Replication::new(plan, ME, REACTORS, mine));
        let identity = Identity { cluster: CLUSTER, server: ME };
        let keeping = Keeping::Replicated(replication);
        let node = Node::keeping(settings, identity, store, keeping, Arc::default());
        node.set_linked(true);
        let core = |reactor| Core::new(Engine::new(node.clone(), ReactorId(reactor)));
        let mut world = World {
            cores: (0..REACTORS).map(core).collect(),
            node,
            sockets: Sockets::default(),
            now: Instant(0),
            other,
            told: Vec::new(),
            connections: 0,
            is_slow: false,
            will: None,
        };
        world.pass(10);
        world.hear(map(1, DEAD, 1, OLD));
        world.hear(FromCoordinator::Fence { log: DEAD });
        world
    }

    /// The coordinator says something.
    fn hear(&mut self, message: FromCoordinator) {
        self.cores[0].on_control(message);
        self.pass(20);
    }

    /// So many milliseconds pass, with some turns of every reactor in each.
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
        let out = &mut self.cores[reactor].engine.out;
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

    /// What the other server says.
    fn answer(&self, sending: Sending) -> Option<(PeerMessage, Vec<u8>)> {
        match sending.message {
            // Of segments; the chain's keep the read lease.
            PeerMessage::Append(Append { kind: ReplicaKind::Data, .. }) if self.is_slow => None,
            PeerMessage::Append(Append { replica, from, sent, .. }) => {
                let length = from + sending.payload.len() as u32;
                let result = AppendResult::Has { length, stable: length };
                Some((PeerMessage::Appended(Appended { replica, sent, result }), Vec::new()))
            }
            PeerMessage::RecoveryRead(read) => {
                let seed = HashSeed::new(1);
                let mut entries = Vec::new();
                // In replies of a few entries.
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
            ToCoordinator::Chain { number } => {
                return self.cores[0].on_control(FromCoordinator::ChainNoted { number });
            }
            ToCoordinator::Will(will) => {
                self.will = Some(will);
                return;
            }
            ToCoordinator::Replayed { epoch, .. } => format!("{epoch} replayed"),
            ToCoordinator::Recovered { epoch, .. } => format!("{epoch} recovered"),
            ToCoordinator::NotRecovered { epoch, reason, .. } => {
                format!("{epoch} not recovered: {reason}")
            }
            _ => return,
        };
        if self.told.last() != Some(&told) {
            self.told.push(told);
        }
    }

    /// What a client is answered, on a connection of its own.
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
    // The tombstone comes before what it has killed, and an overwrite before what it replaced.
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
    assert_eq!(asked, "", "nobody is answered yet");
    world.hear(map(2, ME, 7, Tenure(7)));
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
    world.hear(map(2, ME, 7, Tenure(7)));
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
    let wrong = Content { crc: second.crc ^ 1, ..second };
    world.hear(part(7, &[(1, first, ME), (2, wrong, OTHER)]));
    let reason = "e7 not recovered: seg2 of log s1 cannot be read: s3 has something else";
    assert_eq!(world.told, [reason]);
    assert!(world.states().is_empty(), "there is no tablet any more");
    assert!(world.cores[0].engine.worker.is_empty(HashRange::ALL), "nor any record");
    world.hear(part(8, &[(1, first, ME), (2, second, OTHER)]));
    assert_eq!(world.told, [reason, "e8 replayed", "e8 recovered"]);
    world.hear(map(2, ME, 8, Tenure(8)));
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
    world.hear(map(2, OTHER, 8, Tenure(8)));
    assert!(world.states().is_empty());
    assert!(world.cores[0].engine.worker.is_empty(HashRange::ALL));
    assert!(world.ask("GET one").starts_with("-MOVED"));
}

#[test]
fn what_is_held_already_is_not_recovered() {
    let mut world = World::new(disk(), disk());
    born(1).into_iter().for_each(|map| world.hear(map));
    world.hear(part(7, &[]));
    assert_eq!(world.told, ["e7 not recovered: the server holds a part of the range"]);
    assert!(matches!(world.states()[..], [TabletState::Serving]));
}

#[test]
fn a_server_says_what_its_ranges_would_cost() {
    let mut world = World::new(disk(), disk());
    world.pass(1500);
    assert_eq!(world.will, Some(Will::default()), "it has nothing");
    born(1).into_iter().for_each(|map| world.hear(map));
    let long = "x".repeat(1000);
    for number in 0..3 {
        assert_eq!(world.ask(&format!("SET {{one}}{number} {long}")), "+OK\r\n");
    }
    assert_eq!(world.ask("SET other 1"), "+OK\r\n");
    world.pass(6500);
    let will = world.will.expect("a will");
    let loads = will.slots();
    let (one, other) = (slot_of(b"one"), slot_of(b"other"));
    let ([one, other], total) = ([one, other].map(|slot| loads[usize::from(slot.0)]), will.total());
    assert_eq!(one + other, total);
    assert!(
        (3 * 1256..3 * 1400).contains(&one),
        "three records of 1000 bytes, and 256 each: {one}"
    );
    assert!((257..400).contains(&other), "a small one: {other}");
}
