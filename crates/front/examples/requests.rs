//! Requests of one client to the core of a server without sockets.
//!
//! `requests get|set|incr|once|hget|hset|small-hget|small-hset|lpush|rpop|xadd PIPELINE OPERATIONS` runs
//! them on 100,000 keys, on one hash, list or stream of as many elements, or (`small-`) on 10,000 hashes
//! of ten fields. GET, SET, HGET and HSET have values of 100 bytes, other elements of 20; `once` is INCR
//! by BALLAST.ONCE, by a client that acknowledges all replies of the pipeline before. `rpop` is for at
//! most 100,000 operations. With `durable-` before its case, the server
//! replicates its log to its own disk, which is in memory; otherwise it has no durable log. The run
//! depends on nothing outside the process.
//! `crates/bench/scripts/instructions` counts its instructions, and subtracts those of its start.

#[path = "../tests/common/whole_map.rs"]
mod whole_map;

use backup::MemoryDisk;
use front::Operators;
use front::core::{ConnectionId, Connections, Core};
use node::{Engine, Mode, Node, NodeSettings, RecoveredLog, Replication, ServerIdentity};
use std::sync::Arc;
use std::time::Duration;
use store::{Store, StoreConfig};
use types::{ClusterId, HashSeed, Instant, ReactorId, ServerId, UnixMillis};
use whole_map::whole_map;
use wire::control::FromCoordinator;
use wire::replica::BootId;

const KEYS: u64 = 100_000;
const VALUE: [u8; 100] = [b'v'; 100];
/// Value of a field of a small hash, of an item of a list, and of an entry of a stream.
const SHORT: [u8; 20] = [b'v'; 20];
/// Initial value of counters. All counts have as many digits.
const COUNT: &str = "1000000";
/// Lease of the client.
const LEASE: &str = "4294967297";
const WALL: UnixMillis = UnixMillis(1_700_000_000_000);
/// Maximum number of turns after which a request is answered.
const TURNS_MAX: usize = 100;
/// Virtual time from one turn to the next.
const TURN: Duration = Duration::from_micros(20);

/// The output of the only connection.
#[derive(Default)]
struct Client {
    output: Vec<u8>,
}

impl Connections for Client {
    fn output(&mut self, _: ConnectionId) -> &mut Vec<u8> {
        &mut self.output
    }

    fn resume_reading(&mut self, _: ConnectionId) {}

    fn pause_reading(&mut self, _: ConnectionId) {}

    fn close_after_flush(&mut self, _: ConnectionId) {}
}

/// A server with one reactor, and its client.
struct Server {
    core: Core,
    client: Client,
    connection: ConnectionId,
    now: Instant,
}

impl Server {
    fn start(is_durable: bool) -> Server {
        let memory_bytes = 256 << 20;
        let config = StoreConfig {
            memory_bytes,
            reactors: 1,
            seed: HashSeed::new(7),
            huge_pages: false,
            durable: is_durable,
            segment_bytes: None,
        };
        let store = Store::new(config).expect("memory for the store");
        let settings = NodeSettings {
            host: "here".into(),
            client_port: 7000,
            bus_port: 7001,
            memory_bytes,
            reactors: 1,
            is_cluster: false,
            cuts: node::Cuts::default(),
        };
        let identity = ServerIdentity { cluster: ClusterId(1), server: ServerId(1) };
        let operators = Arc::new(Operators::new(1));
        let durability = if is_durable {
            let log = RecoveredLog::find(Arc::new(MemoryDisk::new()), BootId::default());
            let log = log.expect("an empty disk");
            Replication::alone(log, identity, Mode::Interval, 1, &store).expect("an empty log")
        } else {
            Replication::nowhere(identity.server, 1)
        };
        let node = Node::new(settings, identity, store, Arc::new(durability), Arc::default());
        node.set_linked(true);
        let mut core = Core::new(Engine::new(node, ReactorId(0)), operators);
        core.begin_turn(Instant(0), WALL);
        for is_born in [true, false] {
            core.on_control(FromCoordinator::Map(whole_map(ClusterId(1), ServerId(1), is_born)));
        }
        let (mut client, connection) = (Client::default(), ConnectionId::from_number(0));
        core.open(connection, "127.0.0.1:40000".into(), &mut client);
        Server { core, client, connection, now: Instant(0) }
    }

    /// Runs a turn in which these bytes arrive, and then the disk jobs that it has started.
    fn turn(&mut self, input: &[u8]) {
        self.now = self.now + TURN;
        self.core.begin_turn(self.now, UnixMillis(WALL.0 + self.now.0 / 1_000_000));
        self.core.prefetch(&mut std::iter::once(input));
        let consumed = self.core.receive(self.connection, input, &mut self.client);
        assert_eq!(consumed, Some(input.len()), "all requests are complete");
        self.core.end_of_input(&mut self.client);
        if self.core.next_deadline().is_some_and(|deadline| deadline <= self.now) {
            self.core.tick(self.now, &mut self.client);
        }
        self.core.quantum(self.now, &mut self.client);
        for job in std::mem::take(&mut self.core.engine_mut().out.disk) {
            self.core.on_disk(job.carry_out());
        }
    }

    /// Runs turns until these requests are answered, and returns the length of the replies.
    fn answer(&mut self, input: &[u8], reply_bytes: usize) -> usize {
        self.client.output.clear();
        self.turn(input);
        // The first replies to writes of a segment wait until the manifest has registered it.
        for _ in 0..TURNS_MAX {
            if self.client.output.len() >= reply_bytes {
                break;
            }
            self.turn(&[]);
        }
        self.client.output.len()
    }

    /// Returns the length of the reply to a request.
    fn reply_bytes(command: &str, number: u64) -> usize {
        match command {
            "set" | "fill" => "+OK\r\n".len(),
            "get" | "hget" => VALUE.len() + 8,
            "small-hget" | "rpop" => SHORT.len() + 7,
            "entries" | "xadd" => "$9\r\n1000000-1\r\n".len(),
            "items" => format!(":{}\r\n", number + 1).len(),
            "lpush" => format!(":{}\r\n", KEYS + number + 1).len(),
            "fields" | "hset" | "small-hset" => ":1\r\n".len(),
            _ => COUNT.len() + 3,
        }
    }

    /// Executes requests in pipelines, with keys in a fixed pseudo-random order.
    fn run(&mut self, command: &str, pipeline: u64, operations: u64) {
        let mut input = Vec::new();
        for first in (0..operations).step_by(pipeline as usize) {
            let requests = pipeline.min(operations - first);
            input.clear();
            for number in first..first + requests {
                let key = format!("key:{:012}", number.wrapping_mul(7919) % KEYS);
                let (sequence, first) = ((number + 1).to_string(), (first + 1).to_string());
                match command {
                    "fill" => request(&mut input, &[b"set", key.as_bytes(), COUNT.as_bytes()]),
                    "fields" | "hset" => {
                        request(&mut input, &[b"hset", b"h", key.as_bytes(), &VALUE])
                    }
                    "hget" => request(&mut input, &[b"hget", b"h", key.as_bytes()]),
                    "small-hget" | "small-hset" => {
                        let (hash, field) = key.split_at(key.len() - 1);
                        let (hash, field) = (hash.as_bytes(), format!("field:000{field}"));
                        match command {
                            "small-hget" => request(&mut input, &[b"hget", hash, field.as_bytes()]),
                            _ => request(&mut input, &[b"hset", hash, field.as_bytes(), &SHORT]),
                        }
                    }
                    "set" => request(&mut input, &[b"set", key.as_bytes(), &VALUE]),
                    "items" | "lpush" => request(&mut input, &[b"lpush", b"l", &SHORT]),
                    "rpop" => request(&mut input, &[b"rpop", b"l"]),
                    "entries" | "xadd" => {
                        let first = if command == "xadd" { 2_000_000 } else { 1_000_000 };
                        let id = format!("{}-1", first + number);
                        request(&mut input, &[b"xadd", b"s", id.as_bytes(), b"field", &SHORT]);
                    }
                    "once" => {
                        let numbers = [LEASE, &sequence, &first].map(str::as_bytes);
                        let [lease, sequence, first] = numbers;
                        let words =
                            [b"ballast.once", lease, sequence, first, b"incr", key.as_bytes()];
                        request(&mut input, &words);
                    }
                    _ => request(&mut input, &[command.as_bytes(), key.as_bytes()]),
                }
            }
            let numbers = first..first + requests;
            let expected = numbers.map(|number| Server::reply_bytes(command, number)).sum();
            let replies = self.answer(&input, expected);
            assert_eq!(replies, expected, "every request succeeds");
        }
    }
}

/// Appends a request to the input.
fn request(input: &mut Vec<u8>, words: &[&[u8]]) {
    input.extend_from_slice(format!("*{}\r\n", words.len()).as_bytes());
    for word in words {
        input.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        input.extend_from_slice(word);
        input.extend_from_slice(b"\r\n");
    }
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let usage = "usage: requests [durable-]CASE PIPELINE OPERATIONS, see the source";
    let [case, pipeline, operations] = &words[..] else { panic!("{usage}") };
    let [pipeline, operations] = [pipeline, operations].map(|word| word.parse().expect(usage));
    let command = case.strip_prefix("durable-").unwrap_or(case);
    let filling = match command {
        "get" | "set" => "set",
        "incr" | "once" => "fill",
        "hget" | "hset" => "fields",
        "small-hget" | "small-hset" => "small-hset",
        "lpush" | "rpop" => "items",
        "xadd" => "entries",
        _ => panic!("{usage}"),
    };
    let mut server = Server::start(command != case);
    server.run(filling, 16, KEYS);
    server.run(command, pipeline, operations);
    println!("{operations} {case} operations in pipelines of {pipeline}");
}
