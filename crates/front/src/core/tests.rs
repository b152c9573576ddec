//! Tests of client limits, and of other behavior of the core, in virtual time and without sockets.

mod blocked_streams;
mod blocking;
mod clock;
mod divided_lists;
mod divided_sorted_sets;
mod divided_streams;
mod eviction;
mod expiring_fields;
mod fidelity;
mod lengths;
mod once;
mod paged_values;
mod released;
mod sorting;
mod split_values;

use super::*;
use crate::operators::Operators;
use node::NodeSettings;
use node::{Node, Replication, ServerIdentity};
use settings::ServerConfiguration;
use std::collections::BTreeMap;
use std::time::Duration;
use store::{Store, StoreConfig};
use types::MigrationId;
use types::{ClusterId, HashRange, HashSeed, Incarnation, OwnershipEpoch, ServerId};
use wire::control::{
    Answer, Ask, ClusterMap, MigrationProgress, MigrationReport, MigrationState, ServerInfo,
    TabletInfo, ToCoordinator,
};

/// Connections that only record what is sent to them.
#[derive(Default)]
struct Sockets {
    outputs: BTreeMap<ConnectionId, Vec<u8>>,
    paused: Vec<ConnectionId>,
    resumed: Vec<ConnectionId>,
    closed: Vec<ConnectionId>,
}

impl Connections for Sockets {
    fn output(&mut self, connection: ConnectionId) -> &mut Vec<u8> {
        self.outputs.entry(connection).or_default()
    }

    fn resume_reading(&mut self, connection: ConnectionId) {
        self.resumed.push(connection);
    }

    fn pause_reading(&mut self, connection: ConnectionId) {
        self.paused.push(connection);
    }

    fn close_after_flush(&mut self, connection: ConnectionId) {
        self.closed.push(connection);
    }

    fn backlog(&self, connection: ConnectionId) -> usize {
        self.outputs.get(&connection).map_or(0, Vec::len)
    }
}

/// Two reactors of one server, and the time.
struct World {
    node: Arc<Node>,
    operators: Arc<Operators>,
    cores: [Core; 2],
    sockets: Sockets,
    now: Instant,
    /// Lead of the wall clock over the virtual time, in milliseconds.
    wall_ahead: i64,
}

const WALL: UnixMillis = UnixMillis(1_700_000_000_000);

impl World {
    fn new(configuration: ServerConfiguration) -> World {
        World::of(configuration, false)
    }

    /// Returns a server that is a member of a cluster.
    fn of_cluster() -> World {
        let world = World::of(ServerConfiguration::default(), true);
        world.node.set_linked(true);
        world
    }

    fn of(configuration: ServerConfiguration, is_cluster: bool) -> World {
        let settings = NodeSettings {
            host: "127.0.0.1".to_owned(),
            client_port: 6379,
            bus_port: 16379,
            memory_bytes: 64 << 20,
            reactors: 2,
            is_cluster,
            cuts: node::Cuts::default(),
        };
        let store = StoreConfig {
            memory_bytes: settings.memory_bytes,
            reactors: 2,
            seed: HashSeed::new(1),
            huge_pages: false,
            durable: false,
            segment_bytes: None,
        };
        let store = Store::new(store).expect("memory for a small store");
        let identity = ServerIdentity { cluster: ClusterId(1), server: ServerId(1) };
        let durability = Arc::new(Replication::nowhere(identity.server, 2));
        let node = Node::new(settings, identity, store, durability, Arc::default());
        let operators = Arc::new(Operators::new(2));
        operators.configure(&node, configuration);
        let core =
            |number| Core::new(Engine::new(node.clone(), ReactorId(number)), operators.clone());
        let cores = [core(0), core(1)];
        let mut world = World {
            node,
            operators,
            cores,
            sockets: Sockets::default(),
            now: Instant(0),
            wall_ahead: 0,
        };
        let map = ClusterMap {
            version: 1,
            cluster: ClusterId(1),
            servers: vec![ServerInfo {
                id: ServerId(1),
                host: "127.0.0.1".into(),
                client_port: 6379,
                bus_port: 16379,
                connected: true,
                rack: String::new(),
                is_dead: false,
                in_recovery: false,
            }],
            tablets: vec![TabletInfo {
                range: HashRange::ALL,
                owner: ServerId(1),
                epoch: OwnershipEpoch(1),
                incarnations: (1..=types::limits::TABLES_MAX as u64).map(Incarnation).collect(),
                is_born: true,
            }],
            moving: Vec::new(),
        };
        world.cores[0].begin_turn(world.now, WALL);
        world.cores[0].on_control(FromCoordinator::Map(map.clone()));
        let tablets = map.tablets.iter().map(|it| TabletInfo { is_born: false, ..it.clone() });
        let map = ClusterMap { tablets: tablets.collect(), ..map };
        world.cores[0].on_control(FromCoordinator::Map(map));
        world.pass(Duration::ZERO);
        world
    }

    fn wall(&self) -> UnixMillis {
        let true_time = WALL.0 + self.now.0 / 1_000_000;
        UnixMillis(true_time.saturating_add_signed(self.wall_ahead))
    }

    /// Lets time pass, with turns of both reactors.
    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        loop {
            let deadlines = self.cores.iter().filter_map(|core| core.next_deadline());
            let next = deadlines.filter(|at| *at > self.now).min().unwrap_or(end).min(end);
            self.now = next;
            let wall = self.wall();
            for core in &mut self.cores {
                core.begin_turn(self.now, wall);
                core.end_of_input(&mut self.sockets);
                core.tick(self.now, &mut self.sockets);
            }
            for connection in &self.sockets.closed {
                self.cores.iter_mut().for_each(|core| core.closed(*connection));
            }
            if self.now >= end {
                return;
            }
        }
    }

    fn connect(&mut self, number: u64, reactor: usize, peer: &str) -> Asking {
        let connection = ConnectionId::from_number((reactor as u64) << 48 | number);
        self.cores[reactor].begin_turn(self.now, self.wall());
        self.cores[reactor].open(connection, peer.to_owned(), &mut self.sockets);
        Asking { connection, reactor, input: Vec::new() }
    }

    /// Sends a line, and returns the output since the last call.
    fn ask(&mut self, client: &mut Asking, line: &str) -> String {
        client.input.extend_from_slice(line.as_bytes());
        client.input.extend_from_slice(b"\r\n");
        self.go_on(client)
    }

    fn go_on(&mut self, client: &mut Asking) -> String {
        let output = self.go_on_bytes(client);
        String::from_utf8(output).expect("replies of these tests are text")
    }

    fn go_on_bytes(&mut self, client: &mut Asking) -> Vec<u8> {
        let wall = self.wall();
        let core = &mut self.cores[client.reactor];
        core.begin_turn(self.now, wall);
        let taken = core.receive(client.connection, &client.input, &mut self.sockets);
        client.input.drain(..taken.unwrap_or(0));
        core.end_of_input(&mut self.sockets);
        self.sockets.outputs.remove(&client.connection).unwrap_or_default()
    }

    fn answer(&mut self, client: &Asking) -> String {
        let output = self.sockets.outputs.remove(&client.connection).unwrap_or_default();
        String::from_utf8(output).expect("replies of these tests are text")
    }

    /// Runs a turn of both reactors, including a quantum of background work if there is any.
    /// Returns whether there was.
    fn turn(&mut self) -> bool {
        let mut has_worked = false;
        let wall = self.wall();
        for core in &mut self.cores {
            core.begin_turn(self.now, wall);
            core.end_of_input(&mut self.sockets);
            if core.next_deadline().is_some_and(|at| at <= self.now) {
                core.tick(self.now, &mut self.sockets);
            }
            has_worked |= core.has_background() && core.quantum(self.now, &mut self.sockets);
        }
        has_worked
    }

    fn is_closed(&self, client: &Asking) -> bool {
        self.sockets.closed.contains(&client.connection)
    }
}

struct Asking {
    connection: ConnectionId,
    reactor: usize,
    input: Vec<u8>,
}

const HERE: &str = "127.0.0.1:1000";

#[test]
fn who_does_nothing_for_too_long_is_sent_away() {
    let mut configuration = ServerConfiguration::default();
    configuration.clients.timeout = Duration::from_secs(10);
    let mut world = World::new(configuration);
    let mut busy = world.connect(1, 0, HERE);
    let idle = world.connect(2, 0, HERE);
    for _ in 0..4 {
        world.pass(Duration::from_secs(3));
        assert_eq!(world.ask(&mut busy, "PING"), "+PONG\r\n");
    }
    assert!(world.is_closed(&idle) && !world.is_closed(&busy));
    assert_eq!(world.operators.counts()[0].timed_out.read(), 1);
}

#[test]
fn who_leaves_too_many_replies_is_sent_away_at_once_or_in_time() {
    let configuration = |text: &str| {
        let mut configuration = ServerConfiguration::default();
        let setting = settings::Setting::find("client-output-buffer-limit").unwrap();
        setting.set(&mut configuration, text).unwrap();
        configuration
    };
    for (limit, at_once, in_time) in [
        ("normal 100 0 0", true, true),
        ("normal 0 100 5", false, true),
        ("normal 0 0 0", false, false),
    ] {
        let mut world = World::new(configuration(limit));
        let client = world.connect(1, 0, HERE);
        let request = format!("PING {}\r\n", "x".repeat(200));
        world.cores[0].receive(client.connection, request.as_bytes(), &mut world.sockets);
        assert_eq!(world.is_closed(&client), at_once, "{limit}");
        world.pass(Duration::from_secs(6));
        assert_eq!(world.is_closed(&client), in_time, "{limit}");
    }
}

#[test]
fn a_pause_holds_writes_or_everything_on_all_reactors_until_it_ends() {
    let mut world = World::new(ServerConfiguration::default());
    let mut operator = world.connect(1, 0, HERE);
    let mut other = world.connect(2, 1, HERE);
    assert_eq!(world.ask(&mut operator, "CLIENT PAUSE 8000 WRITE"), "+OK\r\n");
    assert_eq!(world.ask(&mut other, "GET a"), "$-1\r\n");
    assert_eq!(world.ask(&mut other, "SET a 1"), "");
    assert_eq!(world.ask(&mut other, "GET a"), "");
    world.pass(Duration::from_secs(7));
    assert_eq!(world.answer(&other), "");
    world.pass(Duration::from_secs(2));
    assert_eq!(world.answer(&other), "+OK\r\n$1\r\n1\r\n");

    world.sockets.resumed.clear();
    assert_eq!(world.ask(&mut operator, "CLIENT PAUSE 1000"), "+OK\r\n");
    assert_eq!(world.ask(&mut other, "GET a"), "");
    world.pass(Duration::from_secs(2));
    assert!(world.sockets.resumed.contains(&other.connection));
    assert_eq!(world.go_on(&mut other), "$1\r\n1\r\n");

    assert_eq!(world.ask(&mut operator, "CLIENT PAUSE 100000 WRITE"), "+OK\r\n");
    assert_eq!(world.ask(&mut other, "SET a 2"), "");
    assert_eq!(world.ask(&mut operator, "CLIENT UNPAUSE"), "+OK\r\n");
    world.pass(Duration::ZERO);
    assert_eq!(world.answer(&other), "+OK\r\n");
}

#[test]
fn clients_of_other_reactors_are_listed_and_sent_away() {
    let mut world = World::new(ServerConfiguration::default());
    let mut operator = world.connect(1, 0, HERE);
    let mut other = world.connect(2, 1, "127.0.0.1:2000");
    world.ask(&mut other, "CLIENT SETNAME other");
    let list = world.ask(&mut operator, "CLIENT LIST");
    assert!(list.contains("addr=127.0.0.1:2000 ") && list.contains(" name=other "), "{list}");
    assert!(list.contains(" cmd=client|setname ") && list.contains(" cmd=client|list "), "{list}");
    assert!(list.contains(" tot-net-in=22 tot-net-out=5 "), "{list}");
    assert_eq!(world.ask(&mut operator, "CLIENT KILL TYPE normal"), ":1\r\n");
    world.pass(Duration::ZERO);
    assert!(world.is_closed(&other) && !world.is_closed(&operator));
    world.cores[1].closed(other.connection);
    assert_eq!(world.ask(&mut operator, "CLIENT KILL 127.0.0.1:2000"), "-ERR No such client\r\n");
    assert_eq!(world.ask(&mut operator, "CLIENT KILL SKIPME no TYPE normal"), ":1\r\n");
    assert!(world.is_closed(&operator));
}

#[test]
fn who_monitors_sees_the_requests_of_all_reactors() {
    let mut world = World::new(ServerConfiguration::default());
    let mut watcher = world.connect(1, 0, HERE);
    let mut other = world.connect(2, 1, "127.0.0.1:2000");
    assert_eq!(world.ask(&mut watcher, "MONITOR"), "+OK\r\n");
    world.ask(&mut other, "GET a");
    world.ask(&mut other, "AUTH secret");
    world.pass(Duration::ZERO);
    let line = "+1700000000.000000 [0 127.0.0.1:2000] \"GET\" \"a\"\r\n";
    let secret = line.replace("\"GET\" \"a\"", "\"AUTH\" \"(redacted)\"");
    assert_eq!(world.answer(&watcher), format!("{line}{secret}"));
    assert_eq!(world.ask(&mut watcher, "RESET"), "+RESET\r\n");
    world.ask(&mut other, "GET a");
    world.pass(Duration::ZERO);
    assert_eq!(world.answer(&watcher), "");
}

#[test]
fn concurrent_changes_of_the_settings_are_all_kept() {
    let World { node, operators, .. } = World::new(ServerConfiguration::default());
    let raise = || {
        operators.reconfigure(&node, |configuration| {
            configuration.operators.latency_threshold += 1;
            Ok::<(), ()>(())
        })
    };
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| (0..2_000).for_each(|_| assert_eq!(raise(), Ok(()))));
        }
    });
    assert_eq!(operators.configuration().operators.latency_threshold, 4_000);
    let refused = operators.reconfigure(&node, |configuration| {
        configuration.operators.latency_threshold = 1;
        Err("no")
    });
    assert_eq!(refused, Err("no"));
    assert_eq!(operators.configuration().operators.latency_threshold, 4_000);
}

#[test]
fn strangers_are_refused_and_must_say_the_password() {
    let mut world = World::new(ServerConfiguration::default());
    let stranger = world.connect(1, 0, "10.0.0.1:5");
    assert!(world.is_closed(&stranger));
    assert!(world.answer(&stranger).starts_with("-DENIED "));
    let mut configuration = ServerConfiguration::default();
    configuration.access.requirepass = "secret".to_string();
    configuration.clients.count_max = 1;
    world.operators.configure(&world.node, configuration);
    let mut stranger = world.connect(2, 0, "10.0.0.1:5");
    let refused = world.connect(3, 1, HERE);
    assert_eq!(world.answer(&refused), "-ERR max number of clients reached\r\n");
    for line in ["GET a", "GET", "NOSUCH x", "CLIENT"] {
        assert_eq!(world.ask(&mut stranger, line), "-NOAUTH Authentication required.\r\n");
    }
    assert!(world.ask(&mut stranger, "HELLO 3").starts_with("-NOAUTH HELLO must be called"));
    assert!(world.ask(&mut stranger, "AUTH secrex").starts_with("-WRONGPASS "));
    assert_eq!(world.ask(&mut stranger, "AUTH secret"), "+OK\r\n");
    assert_eq!(world.ask(&mut stranger, "GET a"), "$-1\r\n");
    assert_eq!(world.ask(&mut stranger, "RESET"), "+RESET\r\n");
    assert_eq!(world.ask(&mut stranger, "GET a"), "-NOAUTH Authentication required.\r\n");
}

#[test]
fn replies_that_are_not_wanted_are_not_sent() {
    let mut world = World::new(ServerConfiguration::default());
    let mut client = world.connect(1, 0, HERE);
    assert_eq!(world.ask(&mut client, "CLIENT REPLY SKIP"), "");
    assert_eq!(world.ask(&mut client, "PING"), "");
    assert_eq!(world.ask(&mut client, "PING"), "+PONG\r\n");
    assert_eq!(world.ask(&mut client, "CLIENT REPLY OFF"), "");
    assert_eq!(world.ask(&mut client, "PING"), "");
    assert_eq!(world.ask(&mut client, "CLIENT REPLY SKIP"), "");
    assert_eq!(world.ask(&mut client, "CLIENT REPLY ON"), "+OK\r\n");
    // A parked request keeps its position, and the request after `SKIP` gets no reply.
    let mut operator = world.connect(2, 1, HERE);
    world.ask(&mut operator, "CLIENT PAUSE 1000 WRITE");
    let lines = ["SET a 1", "CLIENT REPLY SKIP", "SET a 2", "GET a"].join("\r\n");
    assert_eq!(world.ask(&mut client, &lines), "");
    world.ask(&mut operator, "CLIENT UNPAUSE");
    world.pass(Duration::ZERO);
    let answered = world.answer(&client) + &world.go_on(&mut client);
    assert_eq!(answered, "+OK\r\n$1\r\n2\r\n");
}

/// Sends pipelined requests to reactor 0, without running a turn.
fn send(world: &mut World, client: &Asking, requests: &str) {
    world.cores[0].begin_turn(world.now, WALL);
    let taken = world.cores[0].receive(client.connection, requests.as_bytes(), &mut world.sockets);
    assert_eq!(taken, Some(requests.len()), "too much is unfinished");
}

/// Runs turns until all requests are answered; returns their number. Appends to `replies`.
fn turns_until(world: &mut World, client: &Asking, sent: usize, replies: &mut String) -> usize {
    for turns in 0..100_000 {
        replies.push_str(&world.answer(client));
        if replies.matches("\r\n").count() >= sent {
            return turns;
        }
        world.turn();
        world.now = world.now + Duration::from_micros(50);
    }
    panic!("of {sent} requests {} are answered", replies.matches("\r\n").count());
}

fn set(key: usize) -> String {
    format!("SET key:{key} {}\r\n", "x".repeat(16 << 10))
}

/// Far more writes than a quantum of cleaning frees memory for.
const SETS_PER_TURN: usize = 32;

#[test]
fn writers_wait_for_the_cleaner_while_half_of_the_memory_is_dead() {
    let mut world = World::new(ServerConfiguration::default());
    let client = world.connect(1, 0, HERE);
    let mut random = fastrand::Rng::with_seed(1);
    let (mut sent, mut replies) = (0, String::new());
    while sent < 20_000 {
        let sets: String = (0..SETS_PER_TURN).map(|_| set(random.usize(..2_000))).collect();
        send(&mut world, &client, &sets);
        sent += SETS_PER_TURN;
        world.turn();
        turns_until(&mut world, &client, sent - SETS_PER_TURN, &mut replies);
    }
    turns_until(&mut world, &client, sent, &mut replies);
    assert_eq!(replies.matches("+OK").count(), sent, "somebody was refused");
    assert!(world.operators.counts()[0].parked.read() > 0, "nobody had to wait");
}

#[test]
fn a_full_server_refuses_writes_soon_and_deletes_make_room_at_once() {
    let mut world = World::new(ServerConfiguration::default());
    let client = world.connect(1, 0, HERE);
    let (mut sent, mut replies) = (0, String::new());
    while !replies.contains("-OOM") {
        send(&mut world, &client, &set(sent));
        sent += 1;
        let turns = turns_until(&mut world, &client, sent, &mut replies);
        assert!(turns < 20, "write {sent} was answered after {turns} turns");
    }
    assert!(sent > 2_500, "full with {sent} records");
    assert!(!world.turn(), "nothing is to be won, and nobody tries");
    send(&mut world, &client, &set(0));
    assert!(world.answer(&client).starts_with("-OOM"), "known already");
    let deletes: String = (0..1_000).map(|key| format!("DEL key:{key}\r\n")).collect();
    send(&mut world, &client, &deletes);
    assert!(world.answer(&client) == ":1\r\n".repeat(1_000), "a delete had to wait");
    replies.clear();
    send(&mut world, &client, &(0..50).map(set).collect::<String>());
    turns_until(&mut world, &client, 50, &mut replies);
    assert_eq!(replies.matches("+OK").count(), 50, "there is room");
}

#[test]
fn a_transaction_for_which_there_is_no_memory_is_discarded() {
    let mut world = World::new(ServerConfiguration::default());
    let mut client = world.connect(1, 0, HERE);
    let (mut sent, mut replies) = (0, String::new());
    while !replies.contains("-OOM") {
        send(&mut world, &client, &set(sent));
        sent += 1;
        turns_until(&mut world, &client, sent, &mut replies);
    }
    let lines = ["MULTI", set(sent).trim_end(), "EXEC"].join("\r\n");
    let reply = world.ask(&mut client, &lines);
    let discarded = "+OK\r\n+QUEUED\r\n-EXECABORT Transaction discarded because of: OOM command ";
    assert!(reply.starts_with(discarded), "{reply}");
}

/// Returns all requests of reactor 0 to the coordinator, and the number of the last.
fn asked(world: &mut World) -> (u64, Vec<Ask>) {
    let asked = std::mem::take(&mut world.cores[0].backend.engine.out.control);
    let asked = asked.into_iter().filter_map(|message| match message {
        ToCoordinator::Ask { request, ask } => Some((request, ask)),
        _ => None,
    });
    let (requests, asks): (Vec<u64>, Vec<Ask>) = asked.unzip();
    (requests.last().copied().unwrap_or(0), asks)
}

const LIST: Ask = Ask::List { task: Some(MigrationId(1)) };

#[test]
fn a_slot_that_cannot_be_taken_over_is_answered_with_the_reason() {
    let mut world = World::of_cluster();
    let mut client = world.connect(1, 0, HERE);
    let elsewhere = HashRange::of_slots(types::Slot(0), types::Slot(9));
    let map = |version, moving| ClusterMap {
        version,
        moving,
        tablets: vec![TabletInfo {
            range: elsewhere,
            owner: ServerId(2),
            epoch: OwnershipEpoch(2),
            incarnations: vec![Incarnation(2); types::limits::TABLES_MAX],
            is_born: false,
        }],
        ..(*world.node.map()).clone()
    };
    let (before, during, after) =
        (map(2, vec![]), map(3, vec![(elsewhere, ServerId(2), ServerId(1))]), map(4, vec![]));
    let report = |state, message: &str| MigrationReport {
        migration: MigrationId(1),
        task: MigrationId(1),
        range: HashRange::of_slots(types::Slot(5), types::Slot(5)),
        source: ServerId(2),
        target: ServerId(1),
        state,
        message: message.to_string(),
        created: WALL,
        updated: WALL,
        progress: MigrationProgress::default(),
    };
    let hear = |world: &mut World, message| {
        world.cores[0].on_control(message);
        world.turn();
        asked(world)
    };
    hear(&mut world, FromCoordinator::Map(before));
    let name = world.node.name_of(ServerId(1));
    assert_eq!(world.ask(&mut client, &format!("CLUSTER SETSLOT 5 NODE {name}")), "");
    let (request, asks) = asked(&mut world);
    assert!(matches!(asks[..], [Ask::Migrate { .. }]), "{asks:?}");
    let answer = Answer::Started(vec![MigrationId(1)]);
    let (request, asks) = hear(&mut world, FromCoordinator::Answer { request, answer });
    assert_eq!(asks, [LIST], "the map does not tell of the move");
    let answer = Answer::Migrations(vec![report(MigrationState::Preparing, "")]);
    let (request, asks) = hear(&mut world, FromCoordinator::Answer { request, answer });
    assert_eq!(asks, [LIST]);
    hear(&mut world, FromCoordinator::Map(during));
    let answer = Answer::Migrations(vec![report(MigrationState::Preparing, "")]);
    let (_, asks) = hear(&mut world, FromCoordinator::Answer { request, answer });
    assert_eq!(asks, [], "the move is under way");
    let (request, asks) = hear(&mut world, FromCoordinator::Map(after));
    assert_eq!(asks, [LIST], "it is over, and the slot is not here");
    let answer = Answer::Migrations(vec![report(MigrationState::Failed, "no room")]);
    hear(&mut world, FromCoordinator::Answer { request, answer });
    assert_eq!(world.answer(&client), "-ERR no room\r\n");
}

#[test]
fn commands_of_a_transaction_are_counted_once_they_count() {
    let mut world = World::new(ServerConfiguration::default());
    let mut client = world.connect(1, 0, HERE);
    for line in ["MULTI", "SET a x", "INCR a", "EXEC"] {
        world.ask(&mut client, line);
    }
    let info = world.ask(&mut client, "INFO commandstats errorstats");
    for counted in ["cmdstat_set:calls=1,", "cmdstat_incr:calls=1,", "errorstat_ERR:count=1"] {
        assert!(info.contains(counted), "{counted}: {info}");
    }
}

#[test]
fn slots_are_shown_by_their_keys_and_slow_commands_by_either_name() {
    let mut world = World::of_cluster();
    let mut client = world.connect(1, 0, HERE);
    world.ask(&mut client, "SET a 1");
    let of_a = "*2\r\n:15495\r\n*2\r\n$9\r\nkey-count\r\n:1\r\n";
    let line = "CLUSTER SLOT-STATS ORDERBY key-count LIMIT 1 DESC";
    assert_eq!(world.ask(&mut client, line), format!("*1\r\n{of_a}"));
    let of_first = "*2\r\n:0\r\n*2\r\n$9\r\nkey-count\r\n:0\r\n";
    assert_eq!(
        world.ask(&mut client, "CLUSTER SLOT-STATS SLOTSRANGE 0 0"),
        format!("*1\r\n{of_first}")
    );
    assert!(world.ask(&mut client, &line.replace("key-count", "memory")).starts_with("-ERR Unrec"));
    assert!(world.ask(&mut client, &line.replace("LIMIT 1", "LIMIT 0")).starts_with("-ERR Limit"));
    assert_eq!(world.ask(&mut client, "COMMANDLOG LEN slow"), ":0\r\n");
    assert_eq!(world.ask(&mut client, "COMMANDLOG GET -1 large-reply"), "*0\r\n");
    assert_eq!(world.ask(&mut client, "COMMANDLOG RESET SLOW"), "+OK\r\n");
    assert!(world.ask(&mut client, "COMMANDLOG LEN fast").starts_with("-ERR type should be"));
}
