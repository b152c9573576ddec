//! Latency of reads while half of the slots move between two servers: with reads at both sides of the
//! migration, and without, in turns.
//!
//! ```sh
//! cargo run --release -p ballast-client --example moving_reads -- \
//!     127.0.0.1:6379 127.0.0.1:6380 [RECORDS] [REQUESTS-PER-SECOND] [ROUNDS] [PULL-BYTES]
//! ```
//!
//! The servers are a cluster that replicates, and the first one owns slots 0 to 8191. Load: YCSB-B
//! (95 % reads), keys of a Zipf distribution with exponent 1, open loop; latency counts from the
//! intended start. Reads count that begin while records are missing at the target. With small pulls, in
//! one partition, a move of few records takes as long as one of many. Bytes are those between the client
//! and all servers, from the request to move until no record is missing.
#![expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

use ballast_client::{
    ByteStream, Client, ClientOptions, Connecting, Request, Tcp, Transport, Value,
};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::mpsc;

type Failure = Box<dyn std::error::Error>;

const VALUE_BYTES: usize = 100;
/// Requests begin in ticks of this length, the finest of the timer.
const TICK: Duration = Duration::from_millis(1);
/// Slots that move.
const LAST_SLOT: &str = "8191";

/// Bytes that all connections of a client have moved.
#[derive(Clone, Default)]
struct CountedTcp(Arc<AtomicU64>);

impl Transport for CountedTcp {
    fn connect<'t>(&'t self, address: &'t str) -> Connecting<'t> {
        Box::pin(async move {
            let stream = Tcp.connect(address).await?;
            let bytes = self.0.clone();
            Ok(Box::new(CountedStream { stream, bytes }) as Box<dyn ByteStream>)
        })
    }
}

struct CountedStream {
    stream: Box<dyn ByteStream>,
    bytes: Arc<AtomicU64>,
}

impl AsyncRead for CountedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        self.bytes.fetch_add((buffer.filled().len() - before) as u64, Ordering::Relaxed);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for CountedStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.stream).poll_write(context, bytes))?;
        self.bytes.fetch_add(written as u64, Ordering::Relaxed);
        Poll::Ready(Ok(written))
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// Latencies of the reads of one move, in microseconds, and its duration.
#[derive(Clone, Copy)]
struct MoveResult {
    mean: f64,
    p99: f64,
    longest: f64,
    took: Duration,
}

impl MoveResult {
    /// Returns `None` if there was no read.
    fn of(mut micros: Vec<f64>, took: Duration) -> Option<MoveResult> {
        micros.sort_unstable_by(f64::total_cmp);
        let count = micros.len();
        let (longest, p99) = (*micros.last()?, *micros.get((count - 1) * 99 / 100)?);
        Some(MoveResult { mean: micros.iter().sum::<f64>() / count as f64, p99, longest, took })
    }
}

/// The results of all moves of one kind of client.
#[derive(Default)]
struct Measured {
    moves: Vec<MoveResult>,
    reads: usize,
    requests: u64,
    two_sided: u64,
    bytes: u64,
}

/// Returns the median, the least and the largest number.
fn spread(numbers: impl Iterator<Item = f64>) -> String {
    let mut numbers: Vec<f64> = numbers.collect();
    numbers.sort_unstable_by(f64::total_cmp);
    match (numbers.first(), numbers.get(numbers.len() / 2), numbers.last()) {
        (Some(least), Some(median), Some(most)) => format!("{median:.0} ({least:.0}-{most:.0})"),
        _ => "-".to_owned(),
    }
}

impl Measured {
    fn print(&self, name: &str) {
        let of = |number: fn(&MoveResult) -> f64| spread(self.moves.iter().map(number));
        println!(
            "{name}: {} reads, at both sides {:.1} %; us per move: mean {}, p99 {}, longest {}; bytes per \
             request {:.0}; move {} ms",
            self.reads,
            100.0 * self.two_sided as f64 / self.reads.max(1) as f64,
            of(|it| it.mean),
            of(|it| it.p99),
            of(|it| it.longest),
            self.bytes as f64 / self.requests.max(1) as f64,
            of(|it| it.took.as_secs_f64() * 1e3),
        );
    }
}

/// A client with what it has moved.
struct Contender {
    name: &'static str,
    client: Client,
    bytes: Arc<AtomicU64>,
    measured: Measured,
}

/// Sizes of the load.
#[derive(Clone, Copy)]
struct Load {
    records: u64,
    /// Requests per second.
    rate: u64,
    /// Bytes of a pull; 0: those of a server's default.
    pull_bytes: u64,
}

/// A random number generator (xorshift).
struct Random(u64);

impl Random {
    fn draw(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Returns a record's number: rank `r` has a probability proportional to `1 / r`.
    fn record(&mut self, records: u64) -> u64 {
        let uniform = (self.draw() >> 11) as f64 / (1_u64 << 53) as f64;
        let rank = (records as f64).powf(uniform) as u64;
        // Neighboring ranks are in different slots.
        (rank.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 16) % records
    }
}

fn key(number: u64) -> String {
    format!("user{number:026}")
}

/// Sends a command to one server.
async fn ask(control: &Client, address: &str, request: Request) -> Result<Value, Failure> {
    let replies = control.command_at_each(request).await?;
    let reply = replies.into_iter().find(|(at, _)| **at == *address);
    Ok(reply.ok_or("a server is not in the map")?.1?)
}

/// Waits until the target has taken over the slots and knows that no record is missing.
/// Returns the time at which the target had taken over.
async fn until_arrived(control: &Client, target: &str) -> Result<Instant, Failure> {
    let map = Request::new("BALLAST.MAP").read_only();
    let (mut is_shown, mut has_flipped) = (false, None);
    loop {
        match missing(&ask(control, target, map.clone()).await?) {
            None => return Err("the server shows no migrations".into()),
            Some(Missing::NoMigration) if !is_shown => {}
            Some(Missing::NoMigration | Missing::Nothing) => {
                return Ok(has_flipped.unwrap_or_else(Instant::now));
            }
            Some(Missing::Unknown) => is_shown = true,
            Some(Missing::Some) => {
                is_shown = true;
                has_flipped.get_or_insert_with(Instant::now);
            }
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// The state of the migration in a map.
enum Missing {
    NoMigration,
    /// The server does not own the slots yet.
    Unknown,
    Some,
    Nothing,
}

/// Returns the state of the first migration in a map.
fn missing(map: &Value) -> Option<Missing> {
    let (Value::Map(fields), name) = (map, Value::Bulk(b"migrations".to_vec())) else {
        return None;
    };
    let (_, migrations) = fields.iter().find(|(field, _)| *field == name)?;
    let Value::Array(migrations) = migrations else { return None };
    let Some(migration) = migrations.first() else { return Some(Missing::NoMigration) };
    let Value::Array(fields) = migration else { return None };
    match fields.last()? {
        Value::Array(missing) if missing.is_empty() => Some(Missing::Nothing),
        Value::Array(_) => Some(Missing::Some),
        _ => Some(Missing::Unknown),
    }
}

/// A request that has ended.
struct Ended {
    /// Intended start and latency of a read.
    read: Option<(Instant, Duration)>,
}

/// The results of a load.
struct LoadResult {
    reads: Vec<(Instant, Duration)>,
    requests: u64,
}

/// Sends requests at the intended times until it is told to stop.
async fn run_load(
    client: Client,
    load: Load,
    seed: u64,
    mut stop: tokio::sync::oneshot::Receiver<()>,
) -> Result<LoadResult, Failure> {
    let (ended, mut results) = mpsc::unbounded_channel::<Result<Ended, String>>();
    let mut random = Random(seed);
    let (begin, mut sent) = (Instant::now(), 0_u64);
    let mut ticks = tokio::time::interval(TICK);
    while stop.try_recv().is_err() {
        // Requests are intended to begin at the tick, however late it comes.
        let intended = ticks.tick().await.into_std();
        let passed = intended.saturating_duration_since(begin);
        let due = (passed.as_nanos() * u128::from(load.rate) / 1_000_000_000) as u64;
        while sent < due {
            let (client, ended) = (client.clone(), ended.clone());
            let key = key(random.record(load.records));
            let is_read = !random.draw().is_multiple_of(20);
            tokio::spawn(async move {
                let outcome = match is_read {
                    true => client.get(&key).await.map(|value| value.is_some()),
                    false => client.set(&key, [b'w'; VALUE_BYTES]).await.map(|()| true),
                };
                let result = match outcome {
                    Ok(true) => Ok(Ended { read: is_read.then(|| (intended, intended.elapsed())) }),
                    Ok(false) => Err(format!("{key} is lost")),
                    Err(error) => Err(error.to_string()),
                };
                // Nothing receives results after the end.
                drop(ended.send(result));
            });
            sent += 1;
        }
    }
    drop(ended);
    let mut reads = Vec::new();
    while let Some(result) = results.recv().await {
        reads.extend(result?.read);
    }
    Ok(LoadResult { reads, requests: sent })
}

/// Moves the slots from one server to the other, with load while records are missing.
async fn measure_move(
    contender: &mut Contender,
    control: &Client,
    [source, target]: [&str; 2],
    load: Load,
    seed: u64,
) -> Result<(), Failure> {
    let Value::Bulk(name) = ask(control, target, Request::new("CLUSTER").argument("MYID")).await?
    else {
        return Err("a server has no name".into());
    };
    let request = Request::new("CLUSTER").argument("MIGRATESLOTS").argument("SLOTSRANGE");
    let mut request = request.argument("0").argument(LAST_SLOT).argument("NODE").argument(name);
    if load.pull_bytes > 0 {
        request = request.argument("POLICY").argument("PARTITIONS").argument("1");
        request = request.argument("PULL-BYTES").argument(load.pull_bytes.to_string());
    }
    let (stop, stopped) = tokio::sync::oneshot::channel();
    let before = (contender.bytes.load(Ordering::Relaxed), contender.client.two_sided_reads());
    let running = tokio::spawn({
        let client = contender.client.clone();
        async move { run_load(client, load, seed, stopped).await.map_err(|error| error.to_string()) }
    });
    let begin = Instant::now();
    ask(control, source, request).await?;
    let flipped = until_arrived(control, target).await?;
    let took = begin.elapsed();
    // The load may have ended by an error, which is reported below.
    let _ = stop.send(());
    let LoadResult { reads, requests } = running.await??;
    let measured = &mut contender.measured;
    let counted = reads.into_iter().filter(|(begin, _)| *begin >= flipped);
    let micros: Vec<f64> = counted.map(|(_, latency)| latency.as_secs_f64() * 1e6).collect();
    measured.reads += micros.len();
    measured.moves.extend(MoveResult::of(micros, took));
    measured.requests += requests;
    measured.bytes += contender.bytes.load(Ordering::Relaxed) - before.0;
    measured.two_sided += contender.client.two_sided_reads() - before.1;
    Ok(())
}

async fn fill(client: &Client, records: u64) -> Result<(), Failure> {
    let numbers: Vec<u64> = (0..records).collect();
    for some in numbers.chunks(2_000) {
        let batch: Vec<(String, Vec<u8>)> =
            some.iter().map(|number| (key(*number), vec![b'v'; VALUE_BYTES])).collect();
        client.set_many(&batch).await?;
    }
    Ok(())
}

async fn contender(name: &'static str, seeds: &[&str], both: bool) -> Result<Contender, Failure> {
    let transport = CountedTcp::default();
    let bytes = transport.0.clone();
    let options = ClientOptions { two_sided_reads: both, ..ClientOptions::default() };
    let client = Client::connect_over(seeds, options, transport).await?;
    Ok(Contender { name, client, bytes, measured: Measured::default() })
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [first, second, numbers @ ..] = &arguments[..] else {
        return Err("two servers, please".into());
    };
    let number = |at: usize, default: u64| numbers.get(at).map_or(Ok(default), |it| it.parse());
    let load =
        Load { records: number(0, 500_000)?, rate: number(1, 10_000)?, pull_bytes: number(3, 0)? };
    let rounds = number(2, 4)?;
    let seeds = [&**first, &**second];
    let control = Client::connect(&seeds, ClientOptions::default()).await?;
    fill(&control, load.records).await?;
    let mut contenders =
        [contender("smart", &seeds, true).await?, contender("plain", &seeds, false).await?];
    let mut sides = [&**first, &**second];
    // Four moves in a round: each contender moves once in each direction.
    for step in 0..4 * rounds {
        let at = [0, 1, 1, 0][step as usize % 4];
        measure_move(&mut contenders[at], &control, sides, load, step + 1).await?;
        sides.reverse();
        // The source forgets its copy before the range may come back.
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    println!("{} records, {} requests/s, {} moves each", load.records, load.rate, 2 * rounds);
    println!("medians, with the least and the largest value of a move");
    for contender in &mut contenders {
        contender.measured.print(contender.name);
    }
    Ok(())
}
