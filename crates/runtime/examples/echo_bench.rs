//! Benchmark: round trips of small messages through a reactor, compared with a blocking thread.
//!
//! cargo run --release -p runtime --example echo_bench [SECONDS_PER_ROW]
//!
//! First, the cost of an empty turn, and the rate of received frames of the size of a pull reply,
//! each into its own buffer. Columns: round trips per second; median and p99 in microseconds; CPU
//! time of the serving thread per message in nanoseconds. The client runs on the same machine, so
//! compare rows, not absolute values.
#![expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

use runtime::{
    Class, Clock, Closed, Config, ConnectTag, Input, Io, Listener, Opened, Port, Reactors, Service,
};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use types::{BackgroundDemand, ConnectionId, Instant, PollPolicy, UnixMillis};

const MESSAGE_BYTES: usize = 64;

struct Echo {
    /// Size of frames that are taken whole and discarded; `None` echoes the input.
    frame_bytes: Option<usize>,
    /// CPU time of the reactor's thread, published once per millisecond.
    cpu_ns: Arc<AtomicU64>,
    told: Instant,
}

impl Service for Echo {
    type Mail = ();
    fn begin_turn(&mut self, now: Instant, _wall: UnixMillis) {
        if now.since(self.told) > Duration::from_millis(1) {
            self.told = now;
            self.cpu_ns.store(thread_cpu_ns(), Ordering::Relaxed);
        }
    }
    fn opened(&mut self, _connection: ConnectionId, _how: Opened, _io: &mut Io) {}
    fn connect_failed(
        &mut self,
        _connection: ConnectionId,
        _tag: ConnectTag,
        _error: std::io::Error,
        _io: &mut Io,
    ) {
    }
    fn received(&mut self, connection: ConnectionId, input: &mut Input, io: &mut Io) {
        if let Some(bytes) = self.frame_bytes {
            while input.len() >= bytes {
                io.recycle(input.take(bytes));
            }
            return input.want(bytes);
        }
        let whole = input.len() / MESSAGE_BYTES * MESSAGE_BYTES;
        io.output(connection).extend_from_slice(&input.bytes()[..whole]);
        input.consume(whole);
    }
    fn closed(&mut self, _connection: ConnectionId, _why: Closed, _io: &mut Io) {}
    fn mail(&mut self, _mail: (), _io: &mut Io) {}
    fn end_of_input(&mut self, _io: &mut Io) {}
    fn tick(&mut self, _now: Instant, _io: &mut Io) {}
    fn next_deadline(&self) -> Option<Instant> {
        None
    }
    fn has_background(&self) -> bool {
        false
    }
    fn quantum(&mut self, _now: Instant, _io: &mut Io) -> bool {
        false
    }
    fn background_demand(&self) -> BackgroundDemand {
        BackgroundDemand::default()
    }
    fn sleep(&mut self) {}
    fn wake(&mut self) {}
}

fn thread_cpu_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// The load: connections driven by one thread each, `pipeline` messages at a time.
#[derive(Clone, Copy)]
struct Load {
    connections: usize,
    pipeline: usize,
}

fn main() {
    let seconds = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(1.0);
    let time = Duration::from_secs_f64(seconds);
    empty_turns(time);
    for frame_bytes in [16 << 10, 64 << 10, 1 << 20] {
        bulk(frame_bytes, time);
    }
    println!("{:<34}{:>12}{:>10}{:>10}{:>14}", "", "messages/s", "p50 us", "p99 us", "CPU ns/msg");
    let loads = [(1, 1), (8, 1), (1, 16), (8, 16)];
    for (connections, pipeline) in loads {
        let load = Load { connections, pipeline };
        println!("{connections} connections, {pipeline} in flight each");
        blocking(load, time);
        for poll in [PollPolicy::Sleep, PollPolicy::Adaptive, PollPolicy::Busy] {
            reactor(poll, load, time);
        }
    }
}

fn reactor(poll: PollPolicy, load: Load, time: Duration) {
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let listener = Listener::bind(any, Port(0), Class::Client).expect("a free port");
    let address = listener.address();
    let cpu_ns = Arc::new(AtomicU64::new(0));
    let shared = Arc::clone(&cpu_ns);
    let config = Config { reactors: 1, poll, cores_shared: false, pin: false, driver: None };
    let make =
        move |_, _| Echo { frame_bytes: None, cpu_ns: Arc::clone(&shared), told: Instant(0) };
    let reactors = Reactors::start(&config, vec![listener], make).expect("the reactor starts");
    drive(&format!("  reactor, {poll:?}"), address, load, time, &cpu_ns);
    reactors.stop();
}

/// Measures a reactor that spins without a connection.
fn empty_turns(time: Duration) {
    let config = Config {
        reactors: 1,
        poll: PollPolicy::Busy,
        cores_shared: false,
        pin: false,
        driver: None,
    };
    let cpu_ns = Arc::new(AtomicU64::new(0));
    let shared = Arc::clone(&cpu_ns);
    let make =
        move |_, _| Echo { frame_bytes: None, cpu_ns: Arc::clone(&shared), told: Instant(0) };
    let reactors = Reactors::start(&config, Vec::new(), make).expect("the reactor starts");
    wait(time);
    let (turns, cpu_ns) = (reactors.counts()[0].turns, cpu_ns.load(Ordering::Relaxed));
    println!("an empty turn: {} ns", cpu_ns / turns.max(1));
    reactors.stop();
}

/// Measures a reactor that receives frames from one thread at full speed.
fn bulk(frame_bytes: usize, time: Duration) {
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let listener = Listener::bind(any, Port(0), Class::Bus).expect("a free port");
    let mut stream = TcpStream::connect(listener.address()).expect("it listens");
    let cpu_ns = Arc::new(AtomicU64::new(0));
    let shared = Arc::clone(&cpu_ns);
    let config = Config {
        reactors: 1,
        poll: PollPolicy::Sleep,
        cores_shared: false,
        pin: false,
        driver: None,
    };
    let frame_of = Some(frame_bytes);
    let make =
        move |_, _| Echo { frame_bytes: frame_of, cpu_ns: Arc::clone(&shared), told: Instant(0) };
    let reactors = Reactors::start(&config, vec![listener], make).expect("the reactor starts");
    let (clock, frame) = (Clock::new(), vec![7; frame_bytes]);
    let end = clock.now() + time;
    while clock.now() < end {
        stream.write_all(&frame).expect("the reactor takes it");
    }
    let bytes = reactors.counts()[0].bytes_in as f64;
    reactors.stop();
    let rate = bytes / time.as_secs_f64() / 1e9;
    let per_kib = cpu_ns.load(Ordering::Relaxed) as f64 / (bytes / 1024.0);
    println!("frames of {} KiB: {rate:.2} GB/s, {per_kib:.0} CPU ns per KiB", frame_bytes >> 10);
}

fn wait(time: Duration) {
    let clock = Clock::new();
    let end = clock.now() + time;
    while clock.now() < end {
        std::thread::park_timeout(end.since(clock.now()));
    }
}

/// Measures the reference: a thread per connection that alternates between reading and writing.
fn blocking(load: Load, time: Duration) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("it is bound");
    let cpu_ns = Arc::new(AtomicU64::new(0));
    let total = Arc::clone(&cpu_ns);
    let connections = load.connections;
    std::thread::spawn(move || {
        for stream in listener.incoming().take(connections).flatten() {
            let total = Arc::clone(&total);
            std::thread::spawn(move || echo_until_closed(stream, &total));
        }
    });
    drive("  blocking thread per connection", address, load, time, &cpu_ns);
}

fn echo_until_closed(mut stream: TcpStream, cpu_ns: &AtomicU64) {
    stream.set_nodelay(true).expect("a TCP socket");
    let mut buffer = [0; 16 << 10];
    let mut told = 0;
    for round in 0u64.. {
        let Ok(count @ 1..) = stream.read(&mut buffer) else { return };
        if stream.write_all(&buffer[..count]).is_err() {
            return;
        }
        if round.is_multiple_of(256) {
            let now = thread_cpu_ns();
            cpu_ns.fetch_add(now - told, Ordering::Relaxed);
            told = now;
        }
    }
}

fn drive(name: &str, address: SocketAddr, load: Load, time: Duration, cpu_ns: &AtomicU64) {
    let stop = AtomicBool::new(false);
    let cpu_before = cpu_ns.load(Ordering::Relaxed);
    let mut laps: Vec<u64> = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..load.connections)
            .map(|_| scope.spawn(|| round_trips(address, load.pipeline, &stop)))
            .collect();
        wait(time);
        stop.store(true, Ordering::Relaxed);
        clients.into_iter().flat_map(|client| client.join().expect("a client ends")).collect()
    });
    let cpu = cpu_ns.load(Ordering::Relaxed) - cpu_before;
    laps.sort_unstable();
    let messages = laps.len() * load.pipeline;
    let percentile = |of_thousand: usize| laps[laps.len() * of_thousand / 1000] as f64 / 1000.0;
    println!(
        "{name:<34}{:>12.0}{:>10.1}{:>10.1}{:>14.0}",
        messages as f64 / time.as_secs_f64(),
        percentile(500),
        percentile(990),
        cpu as f64 / messages as f64,
    );
}

/// Returns the durations of all round trips, in nanoseconds.
fn round_trips(address: SocketAddr, pipeline: usize, stop: &AtomicBool) -> Vec<u64> {
    let mut stream = TcpStream::connect(address).expect("the server accepts");
    stream.set_nodelay(true).expect("a TCP socket");
    let request = vec![7; MESSAGE_BYTES * pipeline];
    let mut answer = vec![0; request.len()];
    let clock = Clock::new();
    let mut laps = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let begun = clock.now();
        stream.write_all(&request).expect("the server takes it");
        stream.read_exact(&mut answer).expect("the server answers");
        laps.push(clock.now().since(begun).as_nanos() as u64);
    }
    laps
}
