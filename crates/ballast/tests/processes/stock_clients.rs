//! A stock client in cluster mode works without errors while ranges move.
//!
//! `tests/clients/run` does this with nine clients in five languages. This test needs only Rust.

use crate::moves::Mover;
use crate::servers::{Cluster, MODEST};
use bench::clock;
use redis::Commands;
use redis::cluster::{ClusterClient, ClusterConnection};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Duration of the client's work.
const DURATION: Duration = Duration::from_secs(6);
/// Least number of moves during that time for the test to be meaningful.
const MOVES_MIN: usize = 20;

#[test]
fn redis_rs_works_through_migrations_without_an_error() {
    let cluster = Cluster::start(3, &MODEST);
    let addresses = cluster.addresses();
    let operations = while_ranges_move(&cluster, || {
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..3)
                .map(|number| {
                    let nodes = addresses.iter().map(|address| format!("redis://{address}"));
                    let client = ClusterClient::new(nodes).expect("addresses are addresses");
                    scope.spawn(move || Worker::new(number, &client).work())
                })
                .collect();
            workers.into_iter().map(|worker| worker.join().expect("no error")).sum::<u64>()
        })
    });
    assert!(operations > 1_000, "only {operations} operations");
    println!("redis-rs: {operations} operations");
}

/// Runs a function while ranges move between a cluster's servers.
pub(crate) fn while_ranges_move<T>(cluster: &Cluster, run: impl FnOnce() -> T) -> T {
    let stop = AtomicBool::new(false);
    let (result, ended) = std::thread::scope(|scope| {
        let moves = scope.spawn(|| Mover::new(cluster, 2).keep_moving(&stop));
        // Stop the mover even if the client fails.
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run));
        stop.store(true, Ordering::Relaxed);
        (result, moves.join().expect("moves go on"))
    });
    let result = result.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    assert!(ended.failed.is_empty(), "migrations failed: {:?}", ended.failed);
    assert!(ended.succeeded >= MOVES_MIN, "hardly anything has moved: {ended:?}");
    result
}

/// A user of redis-rs that knows the values of its keys, because no other client writes them.
struct Worker {
    number: u64,
    random: fastrand::Rng,
    connection: ClusterConnection,
    texts: BTreeMap<String, String>,
    counters: BTreeMap<String, i64>,
    operations: u64,
}

const KEYS: u32 = 500;

impl Worker {
    fn new(number: u64, client: &ClusterClient) -> Worker {
        Worker {
            number,
            random: fastrand::Rng::with_seed(number),
            connection: client.get_connection().expect("the cluster is there"),
            texts: BTreeMap::new(),
            counters: BTreeMap::new(),
            operations: 0,
        }
    }

    fn work(mut self) -> u64 {
        let end = clock::now() + DURATION;
        while clock::now() < end {
            self.operation();
            self.operations += 1;
        }
        for (key, value) in &self.texts {
            assert_eq!(self.connection.get::<_, Option<String>>(key), Ok(Some(value.clone())));
        }
        for (key, value) in &self.counters {
            assert_eq!(self.connection.get::<_, i64>(key), Ok(*value), "{key}");
        }
        self.operations
    }

    fn operation(&mut self) {
        let id = format!("{}:{}", self.number, self.random.u32(..KEYS));
        let (text, counter) = (format!("text:{id}"), format!("counter:{id}"));
        let connection = &mut self.connection;
        match self.random.u8(..8) {
            0 | 1 => {
                let found = connection.get::<_, Option<String>>(&text);
                assert_eq!(found, Ok(self.texts.get(&text).cloned()), "{text}");
            }
            2 | 3 => {
                let value = format!("{}:{}", self.operations, "x".repeat(self.random.usize(..900)));
                assert_eq!(connection.set(&text, &value), Ok(()), "{text}");
                self.texts.insert(text, value);
            }
            4 => {
                let existed = self.texts.remove(&text).is_some();
                assert_eq!(connection.del(&text), Ok(i64::from(existed)), "{text}");
            }
            5 => {
                let value = self.counters.entry(counter.clone()).or_default();
                *value += 1;
                assert_eq!(connection.incr(&counter, 1), Ok(*value), "{counter}");
            }
            6 => {
                let (left, right) = (format!("{{{id}}}:left"), format!("{{{id}}}:right"));
                let both = [(&left, self.operations), (&right, self.operations)];
                assert_eq!(connection.mset(&both), Ok(()), "{id}");
                let found = connection.mget::<_, Vec<u64>>(&[&left, &right]);
                assert_eq!(found, Ok(vec![self.operations; 2]), "{id}");
            }
            _ => {
                let known = self.texts.contains_key(&text);
                assert_eq!(connection.exists(&text), Ok(known), "{text}");
            }
        }
    }
}
