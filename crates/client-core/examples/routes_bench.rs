//! Processor time for finding the server of a key, and memory of a client:
//! `cargo run --release -p ballast-client-core --example routes_bench`.

use ballast_client_core::{
    ClientCore, ClientEffect, ClientEvent, ClientOptions, PreparedRequest, RepeatRule, RequestRoute,
};
use resp::{Protocol, ReplyWriter};
use std::hint::black_box;
use std::time::Duration;
use types::{Instant, slot_of};

/// Servers of the cluster. Each owns every eighth slot, so that the map is as long as it can be.
const SERVERS: u16 = 8;
const SLOTS: u16 = 16_384;
const KEYS: usize = 4_096;
/// Look-ups of each round, and rounds of which the median counts.
const LOOK_UPS: usize = 1_000_000;
const ROUNDS: usize = 15;
/// Clients whose memory is measured together.
const CLIENTS: usize = 200;
/// Address with which each client begins.
const SEED: &str = "10.0.0.0:6379";

/// Returns the processor time that this thread has used, in nanoseconds.
#[expect(clippy::disallowed_methods, reason = "a benchmark reads clocks")]
fn processor_nanos() -> i64 {
    let used = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    used.tv_sec * 1_000_000_000 + used.tv_nsec
}

/// Returns the resident memory of this process in bytes.
fn resident_bytes() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").expect("Linux has this file");
    let pages = text.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok());
    pages.expect("the second number is the resident memory in pages") * 4096
}

/// Returns the reply to `BALLAST.MAP`.
fn map() -> Vec<u8> {
    let mut out = Vec::new();
    let mut reply = ReplyWriter::new(Protocol::Resp3, &mut out);
    reply.map(4);
    reply.bulk(b"cluster");
    reply.bulk(b"c1");
    reply.bulk(b"version");
    reply.integer(1);
    reply.bulk(b"servers");
    reply.array(usize::from(SERVERS));
    for server in 0..SERVERS {
        reply.array(3);
        reply.bulk(b"name");
        reply.bulk(format!("10.0.0.{server}").as_bytes());
        reply.integer(6379);
    }
    reply.bulk(b"ranges");
    reply.array(usize::from(SLOTS));
    for slot in 0..SLOTS {
        reply.array(3);
        [slot, slot, slot % SERVERS].iter().for_each(|number| reply.integer(i64::from(*number)));
    }
    out
}

/// Returns a client that has received the map, and is connected to one server.
fn client(map: &[u8]) -> ClientCore<()> {
    let now = Instant(0);
    let mut core = ClientCore::new(&[SEED.to_owned()], ClientOptions::default());
    let mut effects = Vec::new();
    let ping = PreparedRequest::new(&[b"PING"], RequestRoute::Any, RepeatRule::Harmless);
    core.submit(now, ping, now + Duration::from_secs(10), (), &mut effects);
    let connect = effects.iter().find_map(|effect| match effect {
        ClientEffect::Connect { channel, .. } => Some(*channel),
        _ => None,
    });
    let channel = connect.expect("the first request opens a connection");
    core.handle(now, ClientEvent::Connected(channel), &mut effects);
    let mut output = Vec::new();
    for reply in [&b"%0\r\n"[..], map, b"+PONG\r\n"] {
        output.clear();
        core.take_output(now, channel, &mut output);
        core.handle(now, ClientEvent::Received(channel, &mut &*reply), &mut effects);
    }
    assert_eq!((core.map_version(), core.open_requests()), (Some(1), 0));
    core
}

/// Returns the median processor time of one of `count` operations.
fn nanos_per(count: usize, mut work: impl FnMut()) -> f64 {
    let mut rounds: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let before = processor_nanos();
            work();
            (processor_nanos() - before) as f64 / count as f64
        })
        .collect();
    rounds.sort_by(f64::total_cmp);
    rounds[ROUNDS / 2]
}

fn main() {
    let map = map();
    let mut core = client(&map);
    for length in [16, 24, 64] {
        let keys: Vec<String> = (0..KEYS).map(|number| format!("{number:0length$}")).collect();
        let slot = nanos_per(LOOK_UPS, || {
            for at in 0..LOOK_UPS {
                black_box(slot_of(black_box(keys[at % KEYS].as_bytes())));
            }
        });
        let server = nanos_per(LOOK_UPS, || {
            for at in 0..LOOK_UPS {
                let slot = slot_of(black_box(keys[at % KEYS].as_bytes()));
                black_box(core.server_of(RequestRoute::Slot(slot)));
            }
        });
        println!("keys of {length} bytes: slot {slot:.1} ns, slot and server {server:.1} ns");
    }
    let adopted = nanos_per(20, || (0..20).for_each(|_| core = client(&map)));
    println!("map of {} bytes, {SLOTS} ranges: {:.0} us", map.len(), adopted / 1000.0);
    let before = resident_bytes();
    let clients: Vec<ClientCore<()>> = (0..CLIENTS).map(|_| client(&map)).collect();
    let bytes = (resident_bytes() - before) / clients.len();
    println!("memory of a client: {bytes} bytes, {:.2} per slot", bytes as f64 / f64::from(SLOTS));
}
