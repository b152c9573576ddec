//! Reads at both sides of a migration, and its demands on turns. The test plays the other server
//! and the coordinator.

mod common;

use backup::{MemoryDisk, Replicas};
use common::{CLUSTER, ME, REACTORS, Sockets};
use front::core::Core;
use node::{Mode, Payload, Plan, Replication, Route, To};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use types::limits::TABLES_MAX;
use types::{
    BackgroundDemand, ConnectionId, HashRange, Incarnation, Instant, LatencyTarget, MigrationId,
    OwnershipEpoch, ServerId, Slot, UnixMillis, Version,
};
use wire::control::{
    ClusterMap, FromCoordinator, Intent, LogRequest, LogUpdate, MigrationPolicy, MigrationRequest,
    ServerInfo, TabletInfo, ToCoordinator,
};
use wire::peer::{
    Append, AppendResult, Appended, Flip, PeerMessage, PriorityAnswer, PriorityPull, PriorityReply,
    Pull, PullReply, RecordCounts,
};
use wire::replica::BootId;

const OTHER: ServerId = ServerId(3);
const WALL: UnixMillis = UnixMillis(1_700_000_000_000);
const MOVE: MigrationId = MigrationId(7);
const OLD_EPOCH: OwnershipEpoch = OwnershipEpoch(1);
const NEW_EPOCH: OwnershipEpoch = OwnershipEpoch(2);

/// The migration and its epoch, which replies name.
const PAIR: &str = ":7\r\n:2\r\n";

struct World {
    cores: Vec<Core>,
    sockets: Sockets,
    now: Instant,
    connections: u64,
    /// Messages about migrations that the server has sent to the other one.
    sent: Vec<PeerMessage>,
}

fn server(id: ServerId) -> ServerInfo {
    ServerInfo {
        id,
        host: "here".into(),
        client_port: id.0 as u16,
        bus_port: 100 + id.0 as u16,
        connected: true,
        rack: String::new(),
        is_dead: false,
        in_recovery: false,
    }
}

/// Returns a map in which `owner` has all slots, and they move from `moving.0` to `moving.1`.
fn map(
    version: u64,
    owner: ServerId,
    epoch: OwnershipEpoch,
    moving: Option<(ServerId, ServerId)>,
    is_born: bool,
) -> FromCoordinator {
    let tablet = TabletInfo {
        range: HashRange::ALL,
        owner,
        epoch,
        incarnations: vec![Incarnation(epoch.0); TABLES_MAX],
        is_born,
    };
    let moving = moving.map(|(source, target)| (HashRange::ALL, source, target));
    FromCoordinator::Map(ClusterMap {
        version,
        cluster: CLUSTER,
        servers: vec![server(ME), server(OTHER)],
        tablets: vec![tablet],
        moving: moving.into_iter().collect(),
    })
}

fn intent(source: ServerId, target: ServerId) -> Intent {
    Intent {
        migration: MOVE,
        range: HashRange::ALL,
        source,
        target,
        source_epoch: OLD_EPOCH,
        target_epoch: NEW_EPOCH,
        target_incarnations: vec![Incarnation(NEW_EPOCH.0); TABLES_MAX],
        bytes: 1 << 20,
        policy: MigrationPolicy { latency_p99_micros: 2_000, ..MigrationPolicy::default() },
    }
}

fn replicated() -> Replication {
    let disk = Replicas::open(Arc::new(MemoryDisk::new()), BootId::default());
    let plan = Plan { mode: Mode::Memory, replicas: 1, scrub: None };
    Replication::new(plan, ME, REACTORS, disk.expect("an empty disk").replicas)
}

impl World {
    fn new(replication: Replication) -> World {
        let (_, cores) = common::start_with(replication, 64 << 20);
        let (sockets, now, sent) = (Sockets::default(), Instant(0), Vec::new());
        let mut world = World { cores, sockets, now, connections: 0, sent };
        world.pass(10);
        world
    }

    /// Returns a server that has left these records to the other one.
    fn source(records: &[(&str, &str)]) -> World {
        let mut world = World::new(replicated());
        for is_born in [true, false] {
            world.hear(map(1, ME, OLD_EPOCH, None, is_born));
        }
        for (key, value) in records {
            assert_eq!(world.ask(&format!("SET {key} {value}")), "+OK\r\n");
        }
        world.hear(map(2, ME, OLD_EPOCH, Some((ME, OTHER)), false));
        world.hear(MigrationRequest::Start(intent(ME, OTHER)).into());
        world
    }

    /// Lets the other server accept the flip.
    fn accept(&mut self) {
        let is_flip = |message: &PeerMessage| matches!(message, PeerMessage::Flip(_));
        assert!(self.sent.iter().any(is_flip), "no flip was sent");
        self.receive(PeerMessage::FlipAnswer { migration: MOVE, accepted: true }, Vec::new());
    }

    /// Returns a server to which all slots have moved, without their records.
    fn target(replication: Replication) -> World {
        let mut world = World::target_before_map(replication);
        world.hear(map(2, ME, NEW_EPOCH, Some((OTHER, ME)), false));
        world
    }

    /// The same before the server has a map that shows it as the owner.
    fn target_before_map(replication: Replication) -> World {
        let mut world = World::new(replication);
        world.hear(map(1, OTHER, OLD_EPOCH, Some((OTHER, ME)), false));
        world.hear(MigrationRequest::Prepare(intent(OTHER, ME)).into());
        world.receive(PeerMessage::Pong, Vec::new());
        world.receive(
            PeerMessage::Flip(Flip {
                migration: MOVE,
                range: HashRange::ALL,
                source_epoch: OLD_EPOCH,
                target_epoch: NEW_EPOCH,
                version_floor: Version(100),
                expiry_clock: WALL,
                records: RecordCounts::default(),
            }),
            Vec::new(),
        );
        world
    }

    /// Returns the demand of background work on the turns of each reactor.
    fn demands(&self) -> Vec<BackgroundDemand> {
        self.cores.iter().map(|core| core.engine().background_demand()).collect()
    }

    fn hear(&mut self, message: FromCoordinator) {
        self.cores[0].on_control(message);
        self.pass(10);
    }

    fn receive(&mut self, message: PeerMessage, payload: Vec<u8>) {
        let payload = Payload { buffer: payload, start: 0 };
        self.cores[0].on_peer(OTHER, Route(0), message, payload);
        self.pass(10);
    }

    /// Advances the time by `millis` milliseconds, with some turns of every reactor in each.
    fn pass(&mut self, millis: u64) {
        for _ in 0..4 * millis {
            self.now = self.now + Duration::from_micros(250);
            for reactor in 0..self.cores.len() {
                let core = &mut self.cores[reactor];
                let wall = UnixMillis(WALL.0 + self.now.0 / 1_000_000);
                core.begin_turn(self.now, wall);
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
            if let ToCoordinator::Log(LogUpdate::ManifestContinues { number }) = message {
                self.cores[0].on_control(LogRequest::ManifestRecorded { number }.into());
            }
        }
        for job in jobs {
            self.cores[reactor].on_disk(job.carry_out());
        }
        for sending in peers {
            assert!(matches!(sending.to, To::Server(OTHER) | To::Back(_)), "{:?}", sending.to);
            let PeerMessage::Append(Append { replica, from, sent, .. }) = sending.message else {
                self.sent.push(sending.message);
                continue;
            };
            let length = from + sending.payload.len() as u32;
            let result = AppendResult::Has { length, synced: length };
            let answer = PeerMessage::Appended(Appended { replica, sent, result });
            let payload = Payload { buffer: Vec::new(), start: 0 };
            self.cores[reactor].on_peer(OTHER, Route(0), answer, payload);
        }
    }

    /// Sends a request on a new connection, and returns what it has output within 10 ms.
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

    /// Returns the priority pulls that were sent, without repetitions.
    fn priority_pulls(&self) -> Vec<&PriorityPull> {
        let mut pulls: Vec<&PriorityPull> = Vec::new();
        for message in &self.sent {
            if let PeerMessage::PriorityPull(pull) = message
                && !pulls.contains(&pull)
            {
                pulls.push(pull);
            }
        }
        pulls
    }

    /// Takes a priority pull that was sent.
    fn unanswered_pull(&mut self) -> Option<PriorityPull> {
        let is_pull = |message: &PeerMessage| matches!(message, PeerMessage::PriorityPull(_));
        let at = self.sent.iter().position(is_pull)?;
        match self.sent.remove(at) {
            PeerMessage::PriorityPull(pull) => Some(pull),
            _ => None,
        }
    }

    /// Answers a priority pull. The reactor that has sent it takes the reply, the others drop it.
    fn answer_pull(&mut self, reply: PriorityReply) {
        for core in &mut self.cores {
            let payload = Payload { buffer: Vec::new(), start: 0 };
            core.on_peer(OTHER, Route(0), PeerMessage::PriorityReply(reply.clone()), payload);
        }
        self.pass(10);
    }

    /// Answers all pulls that are sent until nothing is missing: there are no records.
    fn complete(&mut self) {
        for _ in 0..100 {
            let pulls: Vec<Pull> = std::mem::take(&mut self.sent)
                .into_iter()
                .filter_map(
                    |message| if let PeerMessage::Pull(it) = message { Some(it) } else { None },
                )
                .collect();
            for Pull { migration, epoch, partition, cursor, .. } in pulls {
                let reply = PullReply { migration, epoch, partition, cursor, next: None };
                self.receive(PeerMessage::PullReply(reply), Vec::new());
            }
            self.pass(10);
        }
    }

    /// Returns the field `migrations` of the map for clients.
    fn migrations(&mut self) -> String {
        let map = self.ask("BALLAST.MAP");
        let (_, migrations) = map.split_once("$10\r\nmigrations\r\n").expect("the field exists");
        migrations.replace("\r\n", " ").trim_end().to_owned()
    }
}

/// Splits a reply that a record has not arrived. Returns the clock.
fn clock_in(reply: &str) -> u64 {
    let clock = reply.strip_prefix(&format!("*3\r\n{PAIR}:")).expect("not here yet");
    clock.trim_end().parse().expect("the clock is a number")
}

#[test]
fn a_source_answers_from_its_copy_while_the_range_leaves() {
    let mut world = World::source(&[("a", "1"), ("b", "2")]);
    let none = "$-1\r\n";
    assert_eq!(world.ask("BALLAST.READCOPY a"), none, "the flip is not accepted");
    world.accept();
    assert!(world.ask("GET a").starts_with("-MOVED "));
    assert_eq!(world.ask("BALLAST.READCOPY a"), format!("*4\r\n{PAIR}$1\r\n1\r\n:0\r\n"));
    assert_eq!(world.ask("BALLAST.READCOPY c"), format!("*4\r\n{PAIR}$-1\r\n:0\r\n"));
    assert_eq!(world.migrations(), "*1 *5 :0 :16383 :0 :1 $-1");
    // The target has everything except for slot 15495, that of key `a`.
    let remaining = vec![HashRange::of_slots(Slot(15495), Slot(15495))];
    world.cores[0].on_control(MigrationRequest::Forget { migration: MOVE, remaining }.into());
    assert_eq!(world.ask("BALLAST.READCOPY b"), none, "it is being deleted");
    assert_eq!(world.ask("BALLAST.READCOPY a"), format!("*4\r\n{PAIR}$1\r\n1\r\n:0\r\n"));
    let all = MigrationRequest::Forget { migration: MOVE, remaining: Vec::new() };
    world.hear(all.into());
    assert_eq!(world.ask("BALLAST.READCOPY a"), none);
}

#[test]
fn a_transaction_is_collected_where_its_commands_would_be_executed() {
    let queued = "+OK\r\n+QUEUED\r\n+QUEUED\r\n";
    let request = "MULTI\r\nSET a 1\r\nGET a";
    let mut target = World::target_before_map(replicated());
    assert_eq!(target.ask(request), queued, "its map names the source as the owner");
    let mut source = World::source(&[]);
    assert_eq!(source.ask(request), queued, "the flip is not accepted");
    source.accept();
    assert!(source.ask(request).starts_with("+OK\r\n-MOVED "));
}

#[test]
fn a_source_returns_expiry_times_and_expired_records() {
    let mut world = World::source(&[]);
    world.accept();
    assert_eq!(world.ask("BALLAST.READCOPY a"), format!("*4\r\n{PAIR}$-1\r\n:0\r\n"));
    let mut world = World::source(&[("a", "1 PX 500"), ("b", "1")]);
    world.accept();
    world.pass(1_000);
    let reply = world.ask("BALLAST.READCOPY a");
    let expiry = reply.strip_prefix(&format!("*4\r\n{PAIR}$1\r\n1\r\n:")).expect("a record");
    let expiry: u64 = expiry.trim_end().parse().expect("a number");
    assert!((WALL.0 + 500..WALL.0 + 1_000).contains(&expiry), "{expiry}");
}

#[test]
fn a_range_that_stays_is_no_copy() {
    let mut world = World::source(&[("a", "1")]);
    world.receive(PeerMessage::FlipAnswer { migration: MOVE, accepted: false }, Vec::new());
    assert_eq!(world.ask("BALLAST.READCOPY a"), "$-1\r\n");
    assert_eq!(world.ask("BALLAST.READ a"), "$1\r\n1\r\n");
}

#[test]
fn a_target_tells_that_a_record_has_not_arrived() {
    let mut world = World::target(replicated());
    let clock = clock_in(&world.ask("BALLAST.READ a"));
    assert!(clock > WALL.0, "{clock}");
    assert!(world.priority_pulls().is_empty(), "nothing waits for the record");
    assert_eq!(world.migrations(), "*1 *5 :0 :16383 :1 :0 *1 *2 :0 :16383");
    assert_eq!(world.ask("SET a 1"), "+OK\r\n");
    assert_eq!(world.ask("BALLAST.READ a"), "$1\r\n1\r\n");
    assert_eq!(world.ask("BALLAST.DEL a"), "*2\r\n:1\r\n:0\r\n");
    assert_eq!(world.ask("BALLAST.READ a"), "$-1\r\n");
    clock_in(&world.ask("BALLAST.READ b"));
    world.complete();
    assert_eq!(world.ask("BALLAST.READ b"), "$-1\r\n");
    assert_eq!(world.migrations(), "*1 *5 :0 :16383 :1 :0 *0");
}

#[test]
fn a_marked_read_pulls_the_record_early() {
    let mut world = World::target(replicated());
    clock_in(&world.ask("BALLAST.READ a PULL"));
    let pull = PriorityPull::clone(world.priority_pulls()[0]);
    assert_eq!(pull.hashes.len(), 1);
    let (table, hash) = pull.hashes[0];
    let answers = vec![(table, hash, PriorityAnswer::Absent)];
    let PriorityPull { migration, epoch, request, .. } = pull;
    world.answer_pull(PriorityReply { migration, epoch, request, answers });
    assert_eq!(world.ask("BALLAST.READ a"), "$-1\r\n");
}

#[test]
fn marked_reads_ask_for_a_bounded_number_of_records() {
    let mut world = World::target(replicated());
    for number in 0..400 {
        clock_in(&world.ask(&format!("BALLAST.READ key{number} PULL")));
    }
    // Each reactor requests 16 hashes at a time. Those of 64 marked reads are requested at most.
    let mut asked = BTreeSet::new();
    while let Some(pull) = world.unanswered_pull() {
        asked.extend(pull.hashes.iter().copied());
        let absent = |(table, hash)| (table, hash, PriorityAnswer::Absent);
        let answers = pull.hashes.into_iter().map(absent).collect();
        let PriorityPull { migration, epoch, request, .. } = pull;
        world.answer_pull(PriorityReply { migration, epoch, request, answers });
    }
    assert!(
        (64..=64 * usize::from(REACTORS)).contains(&asked.len()),
        "{} are asked for",
        asked.len()
    );
}

#[test]
fn without_a_lease_a_read_waits_for_the_record() {
    let mut world = World::target(Replication::nowhere(ME, REACTORS));
    assert_eq!(world.ask("BALLAST.READ a"), "");
    assert_eq!(world.priority_pulls().len(), 1);
}

#[test]
fn a_read_in_a_transaction_waits_for_the_record() {
    let mut world = World::target(replicated());
    let replies = world.ask("MULTI\r\nBALLAST.READ a\r\nEXEC");
    assert_eq!(replies, "+OK\r\n+QUEUED\r\n");
    assert_eq!(world.priority_pulls().len(), 1);
    let replies = world.ask("MULTI\r\nBALLAST.READCOPY a");
    assert!(replies.contains("not allowed inside a transaction"), "{replies}");
}

#[test]
fn arguments_are_checked() {
    let mut world = World::target(replicated());
    assert_eq!(world.ask("BALLAST.READ a b"), "-ERR syntax error\r\n");
    assert_eq!(world.ask("BALLAST.READ a PULL PULL"), "-ERR syntax error\r\n");
    assert!(world.ask("BALLAST.READCOPY a b").starts_with("-ERR wrong number of arguments"));
}

#[test]
fn a_move_is_limited_by_its_latency_target_at_both_sides_until_it_ends() {
    let without = BackgroundDemand { share: 10, target: None, is_urgent: false };
    let target = LatencyTarget { p99: Duration::from_micros(2_000), share_max: 10 };
    let limited = BackgroundDemand { share: 0, target: Some(target), is_urgent: false };
    let is_each = |world: &World, demand| world.demands().iter().all(|it| *it == demand);
    let mut world = World::new(replicated());
    assert!(is_each(&world, without), "{:?}", world.demands());
    world = World::source(&[("a", "1")]);
    world.accept();
    assert!(is_each(&world, limited), "{:?}", world.demands());
    let all = MigrationRequest::Forget { migration: MOVE, remaining: Vec::new() };
    world.hear(all.into());
    assert!(is_each(&world, without), "{:?}", world.demands());
    let mut world = World::target(replicated());
    assert!(is_each(&world, limited), "{:?}", world.demands());
    world.complete();
    world.hear(MigrationRequest::Finished { migration: MOVE }.into());
    assert!(is_each(&world, without), "{:?}", world.demands());
}
