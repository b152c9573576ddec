//! What workers do and what must come of it, whichever library carries it out; see `../README.md`.

#![forbid(unsafe_code)]

mod report;
mod worker;

use anyhow::{Context, Result};
use report::Report;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use worker::Worker;

const WORKERS: u64 = 8;

/// What the workload asks of a library. A clone shares the connections.
pub trait Store: Clone + Send + Sync + 'static {
    fn get(&self, key: &str) -> impl Future<Output = Result<Option<String>>> + Send;
    fn set(&self, key: &str, value: &str) -> impl Future<Output = Result<String>> + Send;
    fn set_for(
        &self,
        key: &str,
        value: &str,
        seconds: i64,
    ) -> impl Future<Output = Result<String>> + Send;
    fn ttl(&self, key: &str) -> impl Future<Output = Result<i64>> + Send;
    fn delete(&self, key: &str) -> impl Future<Output = Result<i64>> + Send;
    fn expire(&self, key: &str, seconds: i64) -> impl Future<Output = Result<i64>> + Send;
    fn increment(&self, key: &str) -> impl Future<Output = Result<i64>> + Send;
    fn set_both(&self, keys: [&str; 2], value: &str)
    -> impl Future<Output = Result<String>> + Send;
    fn get_both(&self, keys: [&str; 2])
    -> impl Future<Output = Result<Vec<Option<String>>>> + Send;
}

/// A command line: seconds, and addresses as `HOST:PORT`.
pub struct CommandLine {
    pub duration: Duration,
    pub addresses: Vec<String>,
}

impl CommandLine {
    pub fn read() -> Result<CommandLine> {
        let mut words = std::env::args().skip(1);
        let seconds = words.next().context("the first argument is a number of seconds")?;
        let duration = Duration::from_secs_f64(seconds.parse()?);
        Ok(CommandLine { duration, addresses: words.collect() })
    }
}

/// Lets all workers work, prints the report, and ends the program.
pub async fn run(client: &'static str, store: impl Store, duration: Duration) -> Result<()> {
    let report = Arc::new(Report::new(client));
    let workers: Vec<_> = (0..WORKERS)
        .map(|number| {
            let worker = Worker::new(number, store.clone(), Arc::clone(&report));
            tokio::spawn(worker.work(duration))
        })
        .collect();
    for worker in workers {
        worker.await?;
    }
    let lock = include_str!("../Cargo.lock");
    report.end(version(lock, client.trim_end_matches("-rs")))
}

/// The version of a package in a lock file.
fn version<'lock>(lock: &'lock str, package: &str) -> &'lock str {
    let name = format!("name = \"{package}\"\nversion = \"");
    lock.split_once(&*name).and_then(|(_, rest)| rest.split('"').next()).unwrap_or("unknown")
}
