//! What all workers of a program have seen.

use anyhow::Result;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Connections are made in this time: latencies begin after it.
const WARM_UP: Duration = Duration::from_secs(1);
const COMPLAINTS_MAX: usize = 6;

pub(crate) struct Report {
    client: &'static str,
    pub(crate) start: Instant,
    seen: Mutex<Seen>,
}

#[derive(Default)]
pub(crate) struct Seen {
    pub(crate) operations: u64,
    pub(crate) latencies: Vec<Duration>,
    pub(crate) errors: BTreeMap<String, u64>,
    pub(crate) wrong: BTreeMap<String, u64>,
}

impl Report {
    pub(crate) fn new(client: &'static str) -> Report {
        Report { client, start: Instant::now(), seen: Mutex::default() }
    }

    pub(crate) fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_warm(&self, began: Instant) -> bool {
        began - self.start > WARM_UP
    }

    /// Prints the line, and ends the program.
    pub(crate) fn end(&self, version: &str) -> Result<()> {
        let mut seen = self.seen();
        seen.latencies.sort();
        let at = |share: f64| {
            let last = seen.latencies.len().saturating_sub(1);
            seen.latencies.get((last as f64 * share) as usize).copied().unwrap_or_default()
        };
        let (errors, wrong) = (self.complain(&seen.errors), self.complain(&seen.wrong));
        println!(
            r#"{{"client": "{}", "version": "{version}", "operations": {}, "errors": {errors}, "wrong": {wrong}, "p50_us": {}, "p99_us": {}, "longest_ms": {:.1}}}"#,
            self.client,
            seen.operations,
            at(0.5).as_micros(),
            at(0.99).as_micros(),
            at(1.0).as_secs_f64() * 1000.0,
        );
        std::process::exit(i32::from(errors + wrong > 0));
    }

    /// Tells some of what was seen, and how much there was in all.
    fn complain(&self, seen: &BTreeMap<String, u64>) -> u64 {
        for (what, count) in seen.iter().take(COMPLAINTS_MAX) {
            eprintln!("{}: {count} x {what}", self.client);
        }
        seen.values().sum()
    }
}
