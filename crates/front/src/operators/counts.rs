//! The counters of each reactor, for commands and other events.
//!
//! Only the reactor writes its counters: each update is a plain load and store, without a locked
//! instruction and without a cache line that other reactors write. Each number that a reader sees
//! is exact, but the numbers may be from different moments. A reset replaces all counters together.

use super::lock;
use crate::core::data::Record;
use node::Background;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

/// A counter written by a single thread.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    #[inline]
    pub(crate) fn read(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn add(&self, count: u64) {
        self.0.store(self.read().wrapping_add(count), Ordering::Relaxed);
    }
}

/// Upper bound of the numbers of commands and subcommands.
pub(crate) const COMMANDS_MAX: usize = 512;

/// Results of commands that `INFO` counts: keys read that existed, keys read that did not, and keys
/// deleted by an expiry in the past.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) hits: u64,
    pub(crate) misses: u64,
    pub(crate) expired: u64,
}

impl Found {
    /// Returns the counts for one key that was read.
    #[inline]
    pub(crate) fn key(exists: bool) -> Found {
        Found { hits: u64::from(exists), misses: u64::from(!exists), expired: 0 }
    }

    /// Returns the counts for keys that were read, given their records.
    pub(crate) fn keys(records: &[Option<Record<'_>>]) -> Found {
        let hits = records.iter().flatten().count();
        Found { hits: hits as u64, misses: (records.len() - hits) as u64, expired: 0 }
    }

    /// Returns the counts for `keys` that were read, of which so many existed.
    pub(crate) fn hits(hits: usize, keys: usize) -> Found {
        Found { hits: hits as u64, misses: (keys - hits) as u64, expired: 0 }
    }

    /// Returns the counts for keys that were deleted by an expiry in the past.
    pub(crate) fn expired(count: u64) -> Found {
        Found { expired: count, ..Found::default() }
    }
}

/// The counters of each command, which are created at its first call.
struct CommandTableCounts(Box<[OnceLock<Box<CommandCounts>>]>);

impl Default for CommandTableCounts {
    fn default() -> CommandTableCounts {
        CommandTableCounts((0..COMMANDS_MAX).map(|_| OnceLock::new()).collect())
    }
}

/// The counters of one reactor.
#[derive(Default)]
pub(crate) struct FrontEndCounters {
    commands: CommandTableCounts,
    /// Keys read that existed, and keys read that did not.
    pub(crate) hits: Counter,
    pub(crate) misses: Counter,
    /// Keys that commands have deleted by setting an expiry in the past.
    pub(crate) expired: Counter,
    pub(crate) requests: Counter,
    pub(crate) connections: Counter,
    /// Clients refused at connection time: too many, or from another machine in protected mode.
    pub(crate) refused: Counter,
    /// Requests that were parked.
    pub(crate) parked: Counter,
    /// Clients closed because they did not read their replies, or were idle.
    pub(crate) overflowed: Counter,
    pub(crate) timed_out: Counter,
    pub(crate) auth_failures: Counter,
    background_ns: [Counter; Background::ALL.len()],
    quanta: [Counter; Background::ALL.len()],
    pub(crate) errors: Counter,
    errors_by_kind: Mutex<BTreeMap<String, u64>>,
}

/// Most kinds of errors that are counted separately.
const ERROR_KINDS_MAX: usize = 128;

impl FrontEndCounters {
    /// Returns the counters of one command.
    #[inline]
    pub(crate) fn of_command(&self, number: usize) -> &CommandCounts {
        self.commands.0[number].get_or_init(Box::default)
    }

    /// Returns the counters of one command, if they were ever used.
    pub(crate) fn known(&self, number: usize) -> Option<&CommandCounts> {
        self.commands.0[number].get().map(|command| &**command)
    }

    /// Adds the results of a command.
    #[inline]
    pub(crate) fn found(&self, found: Found) {
        if found.hits > 0 {
            self.hits.add(found.hits);
        }
        if found.misses > 0 {
            self.misses.add(found.misses);
        }
        if found.expired > 0 {
            self.expired.add(found.expired);
        }
    }

    /// Counts an error reply by its text.
    pub(crate) fn error(&self, text: &[u8]) {
        self.errors.add(1);
        let end = text.iter().position(|byte| b" \r\n".contains(byte)).unwrap_or(text.len());
        let kind = String::from_utf8_lossy(&text[..end.min(32)]);
        let mut kinds = lock(&self.errors_by_kind);
        if let Some(count) = kinds.get_mut(&*kind) {
            *count += 1;
        } else if kinds.len() < ERROR_KINDS_MAX {
            kinds.insert(kind.into_owned(), 1);
        }
    }

    /// Counts a quantum of background work.
    pub(crate) fn background(&self, kind: Background, spent: Duration) {
        self.background_ns[kind as usize].add(nanoseconds(spent));
        self.quanta[kind as usize].add(1);
    }

    pub(crate) fn background_ns(&self, kind: Background) -> u64 {
        self.background_ns[kind as usize].read()
    }

    pub(crate) fn quanta(&self, kind: Background) -> u64 {
        self.quanta[kind as usize].read()
    }
}

/// The rate of a counter between two readings.
#[derive(Debug, Default)]
pub(crate) struct Rate {
    at: Duration,
    count: u64,
    per_second: u64,
}

/// Shortest interval of a measurement. Readings within it return the previous rate.
const RATE_PAUSE: Duration = Duration::from_millis(100);

impl Rate {
    /// Returns the rate per second since the last reading, given the current count.
    pub(crate) fn at(&mut self, now: Duration, count: u64) -> u64 {
        let spent = now.saturating_sub(self.at);
        if spent >= RATE_PAUSE {
            let more = count.saturating_sub(self.count);
            let per_second = (more as f64 / spent.as_secs_f64()) as u64;
            *self = Rate { at: now, count, per_second };
        }
        self.per_second
    }
}

/// Returns the errors of all reactors by kind.
pub(crate) fn errors(counts: &[Arc<FrontEndCounters>]) -> BTreeMap<String, u64> {
    let mut sums = BTreeMap::new();
    for counts in counts {
        for (kind, count) in &*lock(&counts.errors_by_kind) {
            *sums.entry(kind.clone()).or_default() += count;
        }
    }
    sums
}

/// The counters of one command.
pub(crate) struct CommandCounts {
    pub(crate) calls: Counter,
    pub(crate) nanoseconds: Counter,
    /// Calls refused before execution.
    pub(crate) rejected: Counter,
    /// Calls answered with an error.
    pub(crate) failed: Counter,
    times: [Counter; BUCKETS],
}

impl Default for CommandCounts {
    fn default() -> CommandCounts {
        CommandCounts {
            calls: Counter::default(),
            nanoseconds: Counter::default(),
            rejected: Counter::default(),
            failed: Counter::default(),
            times: std::array::from_fn(|_| Counter::default()),
        }
    }
}

impl CommandCounts {
    /// Counts a call and its duration.
    #[inline]
    pub(crate) fn called(&self, spent: Duration) {
        let spent = nanoseconds(spent);
        self.calls.add(1);
        self.nanoseconds.add(spent);
        self.times[bucket(spent)].add(1);
    }
}

/// Histogram buckets per power of two. A bucket's width is at most an eighth of its start.
const STEPS_BITS: u32 = 3;
const STEPS: usize = 1 << STEPS_BITS;
/// Number of buckets. The highest begins at about 68 s.
const BUCKETS: usize = (36 - STEPS_BITS as usize + 1) * STEPS;

/// Returns the bucket of a time in nanoseconds.
fn bucket(nanoseconds: u64) -> usize {
    let Some(shift) = nanoseconds.max(1).ilog2().checked_sub(STEPS_BITS) else {
        return nanoseconds as usize;
    };
    let within = (nanoseconds >> shift) as usize - STEPS;
    ((shift as usize + 1) * STEPS + within).min(BUCKETS - 1)
}

/// Returns the exclusive end of a bucket, in nanoseconds.
fn end_of(bucket: usize) -> u64 {
    let next = bucket + 1;
    match (next / STEPS).checked_sub(1) {
        None => next as u64,
        Some(shift) => ((STEPS + next % STEPS) as u64) << shift,
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// The counters of one command, over all reactors.
#[derive(Clone, Debug, Default)]
pub(crate) struct Summary {
    pub(crate) calls: u64,
    pub(crate) nanoseconds: u64,
    pub(crate) rejected: u64,
    pub(crate) failed: u64,
    times: Vec<u64>,
}

impl Summary {
    /// Returns the totals of a command, if it was ever called.
    pub(crate) fn of(counts: &[Arc<FrontEndCounters>], number: usize) -> Option<Summary> {
        let mut sum = Summary { times: vec![0; BUCKETS], ..Summary::default() };
        for command in counts.iter().filter_map(|counts| counts.known(number)) {
            sum.calls += command.calls.read();
            sum.nanoseconds += command.nanoseconds.read();
            sum.rejected += command.rejected.read();
            sum.failed += command.failed.read();
            for (sum, time) in sum.times.iter_mut().zip(&command.times) {
                *sum += time.read();
            }
        }
        (sum.calls + sum.rejected + sum.failed > 0).then_some(sum)
    }

    /// Returns an upper bound, in nanoseconds, for the fastest `percent` percent of the calls.
    pub(crate) fn percentile(&self, percent: f64) -> u64 {
        let total: u64 = self.times.iter().sum();
        let wanted = ((total as f64 * percent / 100.0).ceil() as u64).max(1);
        let mut seen = 0;
        for (bucket, count) in self.times.iter().enumerate() {
            seen += count;
            if seen >= wanted {
                return end_of(bucket);
            }
        }
        0
    }

    /// Returns how many calls took at most this time. Exact for powers of two.
    pub(crate) fn within(&self, nanoseconds: u64) -> u64 {
        let ends = (0..BUCKETS).map(end_of);
        ends.zip(&self.times).take_while(|(end, _)| *end <= nanoseconds).map(|(_, n)| n).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_follow_each_other_and_hold_their_times() {
        for time in (0..100_000_u64).chain((17..36).map(|bit| (1 << bit) + 12_345)) {
            let bucket = bucket(time);
            assert!(time < end_of(bucket), "{time} in {bucket}");
            assert!(bucket == 0 || time >= end_of(bucket - 1), "{time} in {bucket}");
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn summaries_add_what_reactors_have_counted() {
        let counts = [Arc::new(FrontEndCounters::default()), Arc::new(FrontEndCounters::default())];
        for micros in 1..=100 {
            counts[micros % 2].of_command(7).called(Duration::from_micros(micros as u64));
        }
        let sum = Summary::of(&counts, 7).unwrap();
        assert_eq!((sum.calls, sum.nanoseconds), (100, 5_050_000));
        for (percent, micros) in [(50.0, 50_000.0), (99.0, 99_000.0), (100.0, 100_000.0)] {
            let found = sum.percentile(percent) as f64;
            assert!((1.0..1.15).contains(&(found / micros)), "{percent}: {found}");
        }
        assert_eq!(sum.within(1 << 40), 100);
        assert!(Summary::of(&counts, 8).is_none());
    }

    #[test]
    fn a_rate_is_that_since_the_last_look() {
        let mut rate = Rate::default();
        let seconds = Duration::from_secs;
        assert_eq!(rate.at(seconds(10), 1_000), 100);
        assert_eq!(rate.at(seconds(10) + RATE_PAUSE / 2, 9_999), 100);
        assert_eq!(rate.at(seconds(12), 3_000), 1_000);
        assert_eq!(rate.at(seconds(13), 0), 0, "counted from 0 again");
    }

    #[test]
    fn errors_are_counted_by_their_first_word() {
        let counts = Arc::new(FrontEndCounters::default());
        counts.error(b"ERR one\r\n");
        counts.error(b"ERR\r\n");
        counts.error(b"MOVED 1 2");
        let errors = errors(&[counts]);
        assert_eq!(
            errors.into_iter().collect::<Vec<_>>(),
            [("ERR".into(), 2), ("MOVED".into(), 1)]
        );
    }
}
