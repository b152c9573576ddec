//! Fuzz test of the whole front end without sockets: random bytes go into one server's core. Its
//! output must consist of replies, each to its own request.
//!
//! There are two kinds of input. *Requests*: every command of the table with random and edge-case
//! arguments, pipelined and cut anywhere, each followed by an `ECHO` of a unique text. Each
//! request must have exactly one reply, and each text must return in its place. *Damaged
//! requests*: the same with bytes changed, lost, repeated and inserted. The output must consist
//! of complete replies of any content.
//!
//! `BALLAST_FUZZ_REQUESTS=10000000 cargo test --release -p server --test front_end` runs longer;
//! `BALLAST_FUZZ_SEED` sets the seed.

#[path = "common/whole_map.rs"]
mod whole_map;

use fastrand::Rng;
use front::Operators;
use front::core::{ConnectionId, Connections, Core};
use node::NodeSettings;
use node::{Engine, Node, Replication, ServerIdentity, Wake};
use resp::{ReplyLimits, ReplyParser, RequestWriter, Value};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use store::{Store, StoreConfig};
use types::{ClusterId, HashSeed, Instant, ReactorId, ServerId, UnixMillis};
use whole_map::whole_map;
use wire::control::{Answer, FromCoordinator, ToCoordinator};

/// One connection, as the operating system would have it.
#[derive(Default)]
struct End {
    input: Vec<u8>,
    output: Vec<u8>,
    is_paused: bool,
    is_closing: bool,
}

/// All connections, by number.
#[derive(Default)]
struct Ends(Vec<End>);

impl Ends {
    fn at(&mut self, connection: ConnectionId) -> &mut End {
        &mut self.0[connection.number() as usize]
    }
}

impl Connections for Ends {
    fn output(&mut self, connection: ConnectionId) -> &mut Vec<u8> {
        &mut self.at(connection).output
    }

    fn resume_reading(&mut self, connection: ConnectionId) {
        self.at(connection).is_paused = false;
    }

    fn pause_reading(&mut self, connection: ConnectionId) {
        self.at(connection).is_paused = true;
    }

    fn close_after_flush(&mut self, connection: ConnectionId) {
        self.at(connection).is_closing = true;
    }
}

/// Number of connections that are open at a time.
const CONNECTIONS: usize = 4;

/// Most waits for items of lists on one connection.
const WAITS_MAX: usize = 60;

/// Longer than any request waits.
const LONG: Duration = Duration::from_secs(6);

/// A server with one reactor that owns all slots.
struct Server {
    core: Core,
    ends: Ends,
    now: Instant,
}

impl Server {
    fn start(is_cluster: bool) -> Server {
        let config = StoreConfig {
            memory_bytes: 64 << 20,
            reactors: 1,
            seed: HashSeed::new(7),
            huge_pages: false,
            durable: false,
            segment_bytes: None,
        };
        let memory_bytes = config.memory_bytes;
        let store = Store::new(config).expect("there is memory for a small store");
        let settings = NodeSettings {
            host: "here".into(),
            client_port: 7000,
            bus_port: 7001,
            memory_bytes,
            reactors: 1,
            is_cluster,
            cuts: node::Cuts::default(),
        };
        let (cluster, server) = (ClusterId(1), ServerId(1));
        let operators = Arc::new(Operators::new(settings.reactors));
        let durability = Arc::new(Replication::nowhere(server, 1));
        let identity = ServerIdentity { cluster, server };
        let node = Node::new(settings, identity, store, durability, Arc::default());
        node.set_linked(true);
        let mut core = Core::new(Engine::new(node, ReactorId(0)), operators.clone());
        core.begin_turn(Instant(0), WALL);
        for is_born in [true, false] {
            core.on_control(FromCoordinator::Map(whole_map(cluster, server, is_born)));
        }
        let mut server = Server { core, ends: Ends::default(), now: Instant(0) };
        (0..CONNECTIONS).for_each(|_| {
            server.open();
        });
        server
    }

    fn open(&mut self) -> ConnectionId {
        let connection = ConnectionId::from_number(self.ends.0.len() as u64);
        self.ends.0.push(End::default());
        self.core.open(connection, "127.0.0.1:40000".into(), &mut self.ends);
        connection
    }

    /// Runs one turn, which reads all available input.
    fn turn(&mut self) {
        self.now = self.now + Duration::from_micros(20);
        self.core.begin_turn(self.now, UnixMillis(WALL.0 + self.now.0 / 1_000_000));
        for number in 0..self.ends.0.len() {
            let connection = ConnectionId::from_number(number as u64);
            let end = &mut self.ends.0[number];
            if end.is_paused || end.is_closing || end.input.is_empty() {
                continue;
            }
            let input = std::mem::take(&mut end.input);
            let consumed = self.core.receive(connection, &input, &mut self.ends);
            let consumed = consumed.expect("the connection is a client's");
            self.ends.0[number].input.splice(..0, input[consumed..].iter().copied());
        }
        self.core.end_of_input(&mut self.ends);
        if self.core.next_deadline().is_some_and(|deadline| deadline <= self.now) {
            self.core.tick(self.now, &mut self.ends);
        }
        self.core.quantum(self.now, &mut self.ends);
        for message in std::mem::take(&mut self.core.engine_mut().out.control) {
            if let ToCoordinator::Ask { request, .. } = message {
                let answer = Answer::Refused("not in this test".into());
                self.core.engine_mut().out.wakes.push(Wake::Answer(request, answer));
            }
        }
    }

    /// Runs turns until no input is read and no request waits.
    fn settle(&mut self) {
        for round in 0..WAITS_MAX {
            (0..8).for_each(|_| self.turn());
            // Long scans continue from turn to turn.
            while self.core.next_deadline().is_some_and(|deadline| deadline <= self.now) {
                self.turn();
            }
            self.now = self.now + LONG;
            // Input stays behind a request that waits for items of a list.
            if round > 0 && self.ends.0.iter().all(|end| end.input.is_empty()) {
                return;
            }
        }
    }
}

const WALL: UnixMillis = UnixMillis(1_700_000_000_000);

/// Elements of random requests.
struct Grammar {
    commands: Vec<Vec<u8>>,
    echoed: u64,
}

/// Commands without exactly one reply per request, or that end a connection, tested elsewhere.
const LEFT_OUT: [&str; 8] = [
    "shutdown",
    "quit",
    "monitor",
    "client|reply",
    "client|kill",
    "client|pause",
    "debug",
    "reset",
];

/// Arguments with a special meaning.
const WORDS: [&str; 51] = [
    "",
    "0",
    "1",
    "-1",
    "2",
    "7",
    "10",
    "100",
    "4294967295",
    "4294967296",
    "-9223372036854775808",
    "9223372036854775807",
    "9223372036854775808",
    "0.5",
    "1e400",
    "nan",
    "inf",
    "-0",
    "01",
    " 1",
    "EX",
    "PX",
    "EXAT",
    "NX",
    "XX",
    "GT",
    "GET",
    "KEEPTTL",
    "MATCH",
    "COUNT",
    "TYPE",
    "u8",
    "i64",
    "#1",
    "BIT",
    "AND",
    "REPLACE",
    "IDX",
    "LEN",
    "ON",
    "OFF",
    "*",
    "[a-",
    "HELP",
    "BY",
    "STORE",
    "LIMIT",
    "DESC",
    "ALPHA",
    "{0}key:*",
    "{1}key:*->7",
];

impl Grammar {
    /// Makes a grammar of all commands that a server lists.
    fn of(server: &mut Server) -> Grammar {
        let connection = server.open();
        RequestWriter::write(&[b"COMMAND"], &mut server.ends.at(connection).input);
        server.settle();
        let table = take_replies(&std::mem::take(&mut server.ends.at(connection).output));
        let mut commands = Vec::new();
        for command in items(&table[0]) {
            let (name, subcommands) = (text(&items(command)[0]), items(&items(command)[9]));
            let names = subcommands.iter().map(|below| text(&items(below)[0]));
            match subcommands.is_empty() {
                true => commands.push(name),
                false => commands.extend(names),
            }
        }
        commands.retain(|name| {
            LEFT_OUT.iter().all(|out| name != out.as_bytes() && !name.starts_with(b"debug"))
        });
        assert!(commands.len() > 100, "{}", commands.len());
        Grammar { commands, echoed: 0 }
    }

    fn request(&self, random: &mut Rng, out: &mut Vec<u8>) {
        let name = &self.commands[random.usize(..self.commands.len())];
        // Transactions are kept short, because otherwise few other commands would be executed.
        let ends = name != b"multi" && random.u8(..8) == 0;
        let name = if ends { &b"exec".to_vec() } else { name };
        let mut words: Vec<Vec<u8>> =
            name.split(|&byte| byte == b'|').map(<[u8]>::to_vec).collect();
        let count = if random.u8(..20) == 0 { random.usize(..40) } else { random.usize(..6) };
        words.extend((0..count).map(|_| word(random)));
        if name == b"hello" {
            words.truncate(2);
        }
        limit_wait(name, &mut words);
        let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
        RequestWriter::write(&words, out);
    }

    /// Writes an `ECHO` of a unique text, and returns the text.
    fn echo(&mut self, out: &mut Vec<u8>) -> Vec<u8> {
        self.echoed += 1;
        let text = format!("echo {}", self.echoed).into_bytes();
        RequestWriter::write(&[b"ECHO", &text], out);
        text
    }
}

/// Gives a request that waits for elements a short time limit.
fn limit_wait(name: &[u8], words: &mut [Vec<u8>]) {
    let at = match name {
        b"blpop" | b"brpop" | b"blmove" | b"brpoplpush" | b"bzpopmin" | b"bzpopmax" => {
            words.len() - 1
        }
        b"blmpop" | b"bzmpop" => 1,
        _ => return,
    };
    if let Some(limit) = words.get_mut(at).filter(|_| at > 0) {
        *limit = b"0.01".to_vec();
    }
}

fn word(random: &mut Rng) -> Vec<u8> {
    match random.u8(..10) {
        0..=3 => format!("{{{}}}key:{}", random.u8(..2), random.u8(..8)).into_bytes(),
        4..=7 => WORDS[random.usize(..WORDS.len())].as_bytes().to_vec(),
        8 => random.i64(..).to_string().into_bytes(),
        _ => (0..random.usize(..60)).map(|_| random.u8(..)).collect(),
    }
}

/// Parses complete replies, and fails on anything else.
fn take_replies(mut output: &[u8]) -> Vec<Value> {
    let mut parser = ReplyParser::new(ReplyLimits::default());
    let mut replies = Vec::new();
    while !output.is_empty() {
        let before = output.len();
        match parser.next(&mut output) {
            Ok(Some(received)) => replies.push(Value::from(received.reply)),
            Ok(None) => panic!("half a reply: {:?}", String::from_utf8_lossy(output)),
            Err(error) => panic!("{error}: {:?}", String::from_utf8_lossy(output)),
        }
        assert!(output.len() < before);
    }
    replies
}

fn items(value: &Value) -> &[Value] {
    match value {
        Value::Array(items) | Value::Set(items) => items,
        other => panic!("{other:?} where an array belongs"),
    }
}

fn text(value: &Value) -> Vec<u8> {
    match value {
        Value::Bulk(text) | Value::Simple(text) => text.clone(),
        other => panic!("{other:?} where a text belongs"),
    }
}

/// Delivers bytes in pieces.
fn deliver(server: &mut Server, random: &mut Rng, mut sent: Vec<VecDeque<u8>>) {
    let first = server.ends.0.len() - sent.len();
    while sent.iter().any(|bytes| !bytes.is_empty()) {
        for (number, bytes) in sent.iter_mut().enumerate() {
            let largest = [1, 40, 4_000][random.usize(..3)];
            let piece = random.usize(..=largest).min(bytes.len());
            server.ends.0[first + number].input.extend(bytes.drain(..piece));
        }
        server.turn();
    }
    server.settle();
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().expect("a number"))
}

/// Opens new connections for one round, and closes the earlier ones.
fn connect(server: &mut Server) {
    for number in 0..server.ends.0.len() {
        server.core.closed(ConnectionId::from_number(number as u64));
    }
    server.ends.0.clear();
    (0..CONNECTIONS).for_each(|_| {
        server.open();
    });
}

#[test]
fn every_request_has_one_reply_in_its_place() {
    for is_cluster in [false, true] {
        let mut random = Rng::with_seed(number("BALLAST_FUZZ_SEED", 1));
        let mut server = Server::start(is_cluster);
        let mut grammar = Grammar::of(&mut server);
        let (mut requests, enough) = (0, number("BALLAST_FUZZ_REQUESTS", 60_000) / 4);
        while requests < enough {
            connect(&mut server);
            let mut sent = vec![Vec::new(); CONNECTIONS];
            let mut echoes = vec![Vec::new(); CONNECTIONS];
            for (bytes, echoes) in sent.iter_mut().zip(&mut echoes) {
                for _ in 0..random.usize(1..60) {
                    grammar.request(&mut random, bytes);
                    echoes.push(grammar.echo(bytes));
                    requests += 2;
                }
            }
            let bytes = sent.clone().into_iter().map(VecDeque::from).collect();
            deliver(&mut server, &mut random, bytes);
            for (number, echoes) in echoes.iter().enumerate() {
                let replies = take_replies(&server.ends.0[number].output);
                judge(&replies, echoes, &sent[number]);
            }
        }
    }
}

/// Checks the pairs of replies: one to a request, and one to its `ECHO`.
fn judge(replies: &[Value], echoes: &[Vec<u8>], sent: &[u8]) {
    for (number, echo) in echoes.iter().enumerate() {
        let pair = replies.get(2 * number..2 * number + 2).unwrap_or_default();
        // Within a transaction the text returns later.
        let is_there = pair.len() == 2
            && (pair[1] == Value::Bulk(echo.clone()) || pair[1] == Value::Simple(b"QUEUED".into()));
        if !is_there {
            let sent = String::from_utf8_lossy(sent).replace("\r\n", " ");
            let at = sent.find(&*String::from_utf8_lossy(echo)).unwrap_or(sent.len());
            let before: String = sent[..at].chars().rev().take(600).collect();
            let before: String = before.chars().rev().collect();
            panic!("{pair:?} is no answer to the last two of these: {before}");
        }
    }
    assert_eq!(replies.len(), 2 * echoes.len(), "there are more replies than requests");
}

#[test]
fn what_is_no_request_is_answered_with_replies_too() {
    let mut random = Rng::with_seed(number("BALLAST_FUZZ_SEED", 1));
    let mut server = Server::start(false);
    let grammar = Grammar::of(&mut server);
    let (mut requests, enough) = (0, number("BALLAST_FUZZ_REQUESTS", 60_000) / 2);
    while requests < enough {
        connect(&mut server);
        let mut sent = Vec::new();
        for _ in 0..CONNECTIONS {
            let mut bytes = Vec::new();
            for _ in 0..random.usize(1..30) {
                grammar.request(&mut random, &mut bytes);
                requests += 1;
            }
            damage(&mut random, &mut bytes);
            sent.push(VecDeque::from(bytes));
        }
        deliver(&mut server, &mut random, sent);
        server.ends.0.iter().for_each(|end| {
            take_replies(&end.output);
        });
    }
    // The server still serves.
    connect(&mut server);
    let sent = &mut server.ends.0[0].input;
    RequestWriter::write(&[b"PING"], sent);
    server.settle();
    let alive = vec![Value::Simple(b"PONG".to_vec())];
    assert_eq!(take_replies(&server.ends.0[0].output), alive);
}

/// Changes, removes, repeats or inserts some bytes.
fn damage(random: &mut Rng, bytes: &mut Vec<u8>) {
    for _ in 0..random.usize(..6) {
        if bytes.is_empty() {
            return;
        }
        let at = random.usize(..bytes.len());
        match random.u8(..5) {
            0 => bytes[at] = random.u8(..),
            1 => bytes[at] = b"\r\n$*-0123456789 \"'"[random.usize(..18)],
            2 => {
                bytes.drain(at..(at + random.usize(1..20)).min(bytes.len()));
            }
            3 => {
                let piece = bytes[at..(at + random.usize(1..50)).min(bytes.len())].to_vec();
                bytes.splice(at..at, piece);
            }
            _ => {
                bytes.insert(at, random.u8(..));
            }
        }
    }
}
