//! Processor time of a client per operation, beside redis-rs in the same process. 50 requests are
//! in flight. The clients take turns, so that other load affects both.
//!
//! `cargo run --release -p ballast-client --example beside_redis_rs -- ADDRESS [OPERATIONS] [ROUNDS]`

use ballast_client::{Client, ClientOptions};
use redis::AsyncCommands;
use redis::aio::MultiplexedConnection;
use std::error::Error;
use std::future::Future;
use tokio::task::JoinSet;

/// Requests in flight, number of keys, and length of values in bytes.
const IN_FLIGHT: usize = 50;
const KEYS: usize = 10_000;
const VALUE: [u8; 100] = [7; 100];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    Get,
    Set,
}

/// Returns the processor time that this thread has used, in nanoseconds.
#[expect(clippy::disallowed_methods, reason = "a benchmark reads clocks")]
fn processor_nanos() -> i64 {
    let used = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    used.tv_sec * 1_000_000_000 + used.tv_nsec
}

fn key(task: usize, round: usize) -> String {
    format!("key:{:020}", (task * 7_919 + round) % KEYS)
}

async fn ours(client: Client, task: usize, count: usize, operation: Operation) {
    for round in 0..count {
        let key = key(task, round);
        match operation {
            Operation::Get => drop(client.get(&key).await.expect("the server answers")),
            Operation::Set => client.set(&key, VALUE).await.expect("the server answers"),
        }
    }
}

async fn theirs(
    mut client: MultiplexedConnection,
    task: usize,
    count: usize,
    operation: Operation,
) {
    for round in 0..count {
        let key = key(task, round);
        match operation {
            Operation::Get => {
                let value: Option<Vec<u8>> = client.get(&key).await.expect("the server answers");
                drop(value);
            }
            Operation::Set => {
                let done: () = client.set(&key, &VALUE).await.expect("the server answers");
                done
            }
        }
    }
}

/// Returns the processor time per operation of all tasks together.
async fn nanos_per_operation<F>(count: usize, task: impl Fn(usize, usize) -> F) -> f64
where
    F: Future<Output = ()> + Send + 'static,
{
    let before = processor_nanos();
    let each = count / IN_FLIGHT;
    let mut tasks = JoinSet::new();
    (0..IN_FLIGHT).for_each(|number| drop(tasks.spawn(task(number, each))));
    while let Some(ended) = tasks.join_next().await {
        ended.expect("no task panics");
    }
    (processor_nanos() - before) as f64 / (each * IN_FLIGHT) as f64
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next().unwrap_or_else(|| "127.0.0.1:6379".into());
    let count: usize = arguments.next().map_or(Ok(20_000), |number| number.parse())?;
    let rounds: usize = arguments.next().map_or(Ok(9), |number| number.parse())?;
    let client = Client::connect(&[&address], ClientOptions::default()).await?;
    let url = format!("redis://{address}/?protocol=resp3");
    let rival = redis::Client::open(url)?.get_multiplexed_async_connection().await?;
    for operation in [Operation::Set, Operation::Get] {
        let mut pairs = Vec::new();
        for _ in 0..rounds.max(1) {
            let work = |task, each| ours(client.clone(), task, each, operation);
            let own = nanos_per_operation(count, work).await;
            let work = |task, each| theirs(rival.clone(), task, each, operation);
            let other = nanos_per_operation(count, work).await;
            pairs.push((own / other, own, other));
        }
        pairs.sort_by(|one, other| one.0.total_cmp(&other.0));
        let (ratio, own, other) = pairs[pairs.len() / 2];
        let (least, most) = (pairs[0].0, pairs[pairs.len() - 1].0);
        println!(
            "{operation:?}: {own:.0} ns, redis-rs {other:.0} ns, {ratio:.2}x ({least:.2}-{most:.2})"
        );
    }
    Ok(())
}
