//! A server that receives arbitrary messages. Each could have been sent by a peer or a
//! coordinator, in another order or in another cluster. A test beside calls this with random
//! bytes, and a target of `fuzz/` with bytes bred by a fuzzer.
//!
//! The server holds a quarter of the slots, with records. It may take part in migrations and a
//! recovery, and holds replicas of other servers' logs. Half of the messages are answers to its
//! requests, with a detail or two changed.

#[path = "../common/mod.rs"]
mod common;
mod control;
mod draw;
mod peers;

use backup::{MemoryDisk, Replicas};
use common::{CLUSTER, ME, REACTORS, Sockets};
pub(crate) use draw::Draw;
use draw::{kinds, quarter};
use front::core::Core;
use node::{Mode, Payload, Plan, Route, Sending, To};
use serde::{Serialize, de::DeserializeOwned};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use types::ConnectionId;
use types::limits::TABLES_MAX;
use types::{Incarnation, Instant, MigrationId, OwnershipEpoch, ServerId, UnixMillis};
use wire::control::{
    Answer, ClusterMap, FromCoordinator, Intent, MigrationPolicy, MigrationRequest,
    PriorityPullMode, ServerInfo, TabletInfo, ToCoordinator,
};
use wire::frame::{self, HEADER_BYTES, Header};
use wire::peer::{Append, PeerMessage, PriorityPull, Pull, RecoveryRead};
use wire::replica::{BootId, PieceWriter, ReplicaId};

/// Server that the first map declares dead.
pub(crate) const DEAD: ServerId = ServerId(4);
/// Number of kinds of messages of peers, of a coordinator, and of its answers.
const KINDS: [usize; 3] = [15, 23, 13];
const MEMORY_BYTES: usize = 128 << 20;
const WALL: UnixMillis = UnixMillis(1_700_000_000_000);
const KEYS: u64 = 60;
/// Maximum number of turns at one time: far more than the longest chain of causes and effects.
const TURNS_MAX: usize = 2_000;
/// Number of recent requests of each kind that may be answered.
const ASKED_MAX: usize = 16;
/// Maximum payload: far more than all data of the server, and less than any limit of a frame.
const PAYLOAD_MAX: usize = 1 << 20;

/// Requests that the server has sent to others.
#[derive(Default)]
struct Asked {
    pulls: Vec<Pull>,
    priority_pulls: Vec<PriorityPull>,
    appends: Vec<(Append, u32)>,
    reads: Vec<RecoveryRead>,
}

struct World {
    cores: Vec<Core>,
    sockets: Sockets,
    now: Instant,
    asked: Asked,
    /// Unanswered messages with sending reactor, destination, and payload size in bytes.
    unanswered: Vec<(usize, ServerId, PeerMessage, u32)>,
    /// Migrations that the server was informed of.
    intents: Vec<Intent>,
    told: Vec<ToCoordinator>,
    talk: Talk,
    /// Replicas that the server holds for others, with their writers' positions.
    writers: BTreeMap<ReplicaId, PieceWriter>,
    connections: u64,
    map_version: u64,
    peer_kinds: Vec<PeerMessage>,
    control_kinds: Vec<FromCoordinator>,
    answer_kinds: Vec<Answer>,
}

/// Summary of the messages that a server has received and sent.
#[derive(Default)]
pub(crate) struct Talk {
    /// Number of messages received.
    pub(crate) told: usize,
    /// Kinds of messages sent to other servers: one bit each, by the kind's number.
    pub(crate) to_peers: u32,
    /// Kinds of messages sent to the coordinator, likewise.
    pub(crate) to_coordinator: u128,
}

/// Sends a server the messages that the bytes encode, and returns a summary. Fails if the server
/// panics, or makes a message that no frame can carry.
pub(crate) fn tell_anything(data: &[u8]) -> Talk {
    let mut draw = Draw::new(data);
    let mut world = World::new();
    while !draw.is_over() {
        match draw.below(16) {
            0..=8 => world.peer_says(&mut draw),
            9..=12 => world.coordinator_says(&mut draw),
            13 => world.client_says(&mut draw),
            _ => {
                let quarters = draw.pick(&[1, 4, 40, 400, 2_000]);
                world.pass(Duration::from_micros(250 * quarters));
            }
        }
        world.turn(0);
        world.turn(1);
    }
    world.talk
}

/// Returns a message as its receiver decodes it; `None` if decoding refuses it.
fn sent<M: Serialize + DeserializeOwned>(message: &M) -> Option<M> {
    let mut bytes = Vec::new();
    frame::encode(message, 0, &mut bytes).ok()?;
    let header = Header::parse(bytes.first_chunk()?).ok()?;
    header.message(&bytes[HEADER_BYTES..]).ok()
}

impl World {
    fn new() -> World {
        let disk = Replicas::open(Arc::new(MemoryDisk::new()), BootId::default());
        let disk = disk.expect("an empty disk").replicas;
        let plan = Plan { mode: Mode::Memory, replicas: 1, scrub: Some(Duration::from_secs(1)) };
        let (_, cores) = common::start(plan, disk, MEMORY_BYTES);
        let mut world = World {
            cores,
            sockets: Sockets::default(),
            now: Instant(1_000_000_000),
            asked: Asked::default(),
            unanswered: Vec::new(),
            intents: Vec::new(),
            told: Vec::new(),
            talk: Talk::default(),
            writers: BTreeMap::new(),
            connections: 0,
            map_version: 1,
            peer_kinds: kinds(),
            control_kinds: control::control_kinds(),
            answer_kinds: kinds(),
        };
        let known = [world.peer_kinds.len(), world.control_kinds.len(), world.answer_kinds.len()];
        assert_eq!(known, KINDS, "other kinds of messages than are known");
        world.turn(0);
        world.turn(1);
        for is_born in [true, false] {
            world.cores[0].on_control(FromCoordinator::Map(first_map(is_born)));
        }
        world.fill();
        world
    }

    /// Puts records into the server's range, without a check of its lease.
    fn fill(&mut self) {
        self.turn(0);
        for number in 0..KEYS {
            let key = key(number);
            let hash = self.cores[0].engine_mut().hash(&key);
            let key = store::Key { hash, bytes: &key };
            let table = types::TableId((number % 3) as u8);
            let value = vec![b'v'; 1 << (number % 12)];
            // The store refuses keys of other servers' quarters.
            let _ = self.cores[0].engine_mut().worker.put(table, key, &value, None);
        }
    }

    /// Advances the time, and then runs turns until nothing is due. A reactor with something due
    /// in every turn would never sleep.
    fn pass(&mut self, time: Duration) {
        self.now = self.now + time;
        for _ in 0..TURNS_MAX {
            for reactor in 0..self.cores.len() {
                self.turn(reactor);
            }
            let mut deadlines = self.cores.iter().filter_map(Core::next_deadline);
            if deadlines.all(|due| due > self.now) {
                return;
            }
        }
        panic!("due work is never done");
    }

    fn turn(&mut self, reactor: usize) {
        let core = &mut self.cores[reactor];
        let wall = UnixMillis(WALL.0 + self.now.0 / 1_000_000);
        core.begin_turn(self.now, wall);
        core.end_of_input(&mut self.sockets);
        core.tick(self.now, &mut self.sockets);
        core.quantum(self.now, &mut self.sockets);
        self.carry_out(reactor);
    }

    fn carry_out(&mut self, reactor: usize) {
        let out = &mut self.cores[reactor].engine_mut().out;
        let (jobs, peers) = (std::mem::take(&mut out.disk), std::mem::take(&mut out.peers));
        for message in std::mem::take(&mut out.control) {
            let kind = control::kind_of(&message, check_frame(&message, 0));
            self.talk.to_coordinator |= 1 << kind;
            keep(&mut self.told, message);
        }
        for sending in peers {
            self.talk.to_peers |= 1 << check_frame(&sending.message, sending.payload.len())[0];
            self.note_asked(reactor, sending);
        }
        for job in jobs {
            self.cores[reactor].on_disk(job.carry_out());
        }
    }

    fn note_asked(&mut self, reactor: usize, sending: Sending) {
        if let To::Server(to) = sending.to {
            let bytes = sending.payload.len() as u32;
            keep(&mut self.unanswered, (reactor, to, sending.message.clone(), bytes));
        }
        match sending.message {
            PeerMessage::Pull(pull) => keep(&mut self.asked.pulls, pull),
            PeerMessage::PriorityPull(pull) => keep(&mut self.asked.priority_pulls, pull),
            PeerMessage::Append(append) => {
                keep(&mut self.asked.appends, (append, sending.payload.len() as u32));
            }
            PeerMessage::RecoveryRead(read) => keep(&mut self.asked.reads, read),
            PeerMessage::Flip(_)
            | PeerMessage::FlipAnswer { .. }
            | PeerMessage::PullReply(_)
            | PeerMessage::PriorityReply(_)
            | PeerMessage::Appended(_)
            | PeerMessage::Release { .. }
            | PeerMessage::Released { .. }
            | PeerMessage::Needed { .. }
            | PeerMessage::RecoveryReply(_)
            | PeerMessage::Ping
            | PeerMessage::Pong => {}
        }
    }

    fn peer_says(&mut self, draw: &mut Draw<'_>) {
        let any = draw.below(self.cores.len());
        let answer = if draw.one_in(3) { None } else { self.answer_of_peer(draw) };
        let (reactor, (from, message, payload)) = match answer {
            Some((reactor, answer)) => (reactor, answer),
            None => (any, self.some_peer_message(draw)),
        };
        let Some(message) = sent(&message) else { return };
        let payload = Payload { buffer: payload, start: 0 };
        self.cores[reactor].on_peer(from, Route(draw.number()), message, payload);
        self.talk.told += 1;
    }

    fn coordinator_says(&mut self, draw: &mut Draw<'_>) {
        let message = self.some_control_message(draw);
        let Some(message) = sent(&message) else { return };
        let reactor = usize::from(node::reactor_for(&message, REACTORS).0);
        let Some(core) = self.cores.get_mut(reactor) else { return };
        if let FromCoordinator::Migration(
            MigrationRequest::Prepare(intent) | MigrationRequest::Start(intent),
        ) = &message
        {
            keep(&mut self.intents, intent.clone());
        }
        core.on_control(message);
        self.talk.told += 1;
    }

    fn client_says(&mut self, draw: &mut Draw<'_>) {
        self.connections += 1;
        let reactor = draw.below(self.cores.len());
        let number = (reactor as u64) << 48 | self.connections;
        let connection = ConnectionId::from_number(number);
        let core = &mut self.cores[reactor];
        core.open(connection, "127.0.0.1:1000".to_owned(), &mut self.sockets);
        let key = String::from_utf8(key(draw.below(KEYS as usize) as u64)).expect("text");
        let line = match draw.below(6) {
            0 => format!("SET {key} {}", draw.number()),
            1 => format!("GET {key}"),
            2 => format!("DEL {key}"),
            3 => format!("INCR {key}"),
            4 => "DBSIZE".to_owned(),
            _ => format!("SET {key} 1 PX 3"),
        };
        core.receive(connection, format!("{line}\r\n").as_bytes(), &mut self.sockets);
        self.sockets.outputs.clear();
    }
}

/// Checks that a message of the server fits into a frame, and that its payload is not larger than
/// the server's data. Returns the first two encoded bytes: the numbers of the family and kind.
fn check_frame<M: Serialize>(message: &M, payload_bytes: usize) -> [u8; 2] {
    let mut bytes = Vec::new();
    if let Err(error) = frame::encode(message, payload_bytes, &mut bytes) {
        panic!("{error}");
    }
    assert!(payload_bytes <= PAYLOAD_MAX, "{payload_bytes} bytes in one turn");
    [bytes[HEADER_BYTES], bytes.get(HEADER_BYTES + 1).copied().unwrap_or_default()]
}

fn keep<T>(asked: &mut Vec<T>, question: T) {
    if asked.len() == ASKED_MAX {
        asked.remove(0);
    }
    asked.push(question);
}

fn key(number: u64) -> Vec<u8> {
    format!("{{{}}}{number}", number % 20).into_bytes()
}

fn server(id: ServerId, is_dead: bool) -> ServerInfo {
    ServerInfo {
        id,
        host: "here".into(),
        client_port: id.0 as u16,
        bus_port: 100,
        connected: !is_dead,
        rack: String::new(),
        is_dead,
        in_recovery: is_dead,
    }
}

/// Returns a map in which each of four servers owns a quarter; the fourth is dead.
fn first_map(is_born: bool) -> ClusterMap {
    let servers = (1..=4).map(|id| server(ServerId(id), ServerId(id) == DEAD)).collect();
    let tablet = |number: u16| TabletInfo {
        range: quarter(number),
        owner: [ME, ServerId(1), ServerId(3), DEAD][usize::from(number)],
        epoch: OwnershipEpoch(1),
        incarnations: vec![Incarnation(1); TABLES_MAX],
        is_born,
    };
    let tablets = (0..4).map(tablet).collect();
    ClusterMap { version: 1, cluster: CLUSTER, servers, tablets, moving: Vec::new() }
}

/// Returns a migration that is plausible at the beginning: away from the server if the number is
/// even, else to it. Sometimes a field is changed.
fn some_intent(draw: &mut Draw<'_>) -> Intent {
    let number = draw.below(6) as u64;
    let (source, target, range) = match number % 2 {
        0 => (ME, ServerId(1), quarter(0)),
        _ => (ServerId(1), ME, quarter(1)),
    };
    let is_whole = !draw.one_in(4);
    Intent {
        migration: MigrationId(draw.near(number)),
        range: if is_whole { range } else { draw.range() },
        source: if is_whole { source } else { draw.server() },
        target: if is_whole { target } else { draw.server() },
        source_epoch: OwnershipEpoch(draw.near(1)),
        target_epoch: OwnershipEpoch(draw.near(2 + number)),
        target_incarnations: incarnations(draw),
        bytes: draw.near(10_000),
        policy: some_policy(draw),
    }
}

fn some_policy(draw: &mut Draw<'_>) -> MigrationPolicy {
    if draw.bool() {
        return MigrationPolicy::default();
    }
    MigrationPolicy {
        partitions: draw.number() as u16,
        pull_bytes: draw.u32(),
        pulls_ahead: draw.number() as u16,
        priority: match draw.below(3) {
            0 => PriorityPullMode::Off,
            1 => PriorityPullMode::Immediate,
            _ => PriorityPullMode::Batched { hashes_max: draw.number() as u16 },
        },
        background_share: draw.number() as u8,
        latency_p99_micros: if draw.bool() { 0 } else { draw.u32() },
    }
}

fn incarnations(draw: &mut Draw<'_>) -> Vec<Incarnation> {
    let count = if draw.one_in(8) { draw.below(40) } else { TABLES_MAX };
    (0..count).map(|_| Incarnation(draw.near(2))).collect()
}
