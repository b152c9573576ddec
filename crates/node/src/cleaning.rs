//! Scheduling of the cleaner on this reactor, and its backpressure on writers.
//!
//! While less memory than the cleaner's target is free, every other quantum of background work is
//! for the cleaner: the other work may need the memory, and may go on for long. When free memory
//! falls below half of the target, the share of background work at every reactor rises. It reaches
//! one quantum per turn when nothing is free. This slows writers down to the rate of
//! cleaning. A write that finds no memory waits. It is refused only when nothing more can be
//! freed.
//!
//! While clients write, a durable log is as long as memory permits. At rest it is cleaned until it is
//! little longer than its live entries, because it takes room on disks, and time after a crash.

use crate::context::Context;
use crate::work::Background;
use std::time::Duration;
use store::Store;
use store::log::{Log, Usage};
use types::Instant;

/// Pause of the cleaner when it finds nothing worth cleaning. It lets a full server without
/// writes sleep; at 1 GB/s, writers overwrite a quarter of a segment in this time.
const PAUSE: Duration = Duration::from_millis(2);

/// Pause of the cleaner when it must wait for other reactors: one quantum of theirs.
const PAUSE_FOR_OTHERS: Duration = Duration::from_micros(50);

/// Time without more than [`WRITES_AT_REST`] writes after which a log is at rest.
const REST: Duration = Duration::from_secs(1);
const WRITES_AT_REST: u64 = 1_000;

/// Length of a log at rest, without open segments, in percent of its live bytes. The file of a
/// replica is an eighth longer than its segment: the files take less than 1.5 times the live bytes.
const LENGTH_PERCENT_MAX: u64 = 130;

/// Least time between two warnings of a reactor that memory is exhausted.
const WARNING_PAUSE: Duration = Duration::from_secs(10);

/// Cleaning state of a reactor.
#[derive(Debug, Default)]
pub(crate) struct CleaningSchedule {
    /// End of the current pause, which applies although memory is low.
    rests: Option<Instant>,
    /// Time before which no other warning is logged.
    quiet_until: Instant,
    /// Set if the previous quantum was cleaning ahead of other work.
    was_first: bool,
    rest: RestCleaning,
}

/// Detection of a durable log that is at rest and too long.
#[derive(Debug, Default)]
struct RestCleaning {
    /// Version counter at the last measurement.
    version: u64,
    /// Time of the next measurement; `None` while nothing changes.
    measure_at: Option<Instant>,
    /// Set if the last measurement has demanded free segments.
    demands: bool,
}

impl RestCleaning {
    /// Measures once per interval with writes or a demand.
    fn begin_turn(&mut self, now: Instant, store: &Store) {
        if !store.log().is_durable() || self.measure_at.is_some_and(|at| now < at) {
            return;
        }
        let version = store.version().0;
        assert!(version >= self.version, "version {version} is drawn after {}", self.version);
        let writes = version - self.version;
        if self.measure_at.is_some() {
            self.measure(writes <= WRITES_AT_REST, store.log());
        }
        self.measure_at = (writes > 0 || self.demands).then(|| now + REST);
        self.version = version;
    }

    fn measure(&mut self, is_at_rest: bool, log: &Log) {
        let usage = log.usage();
        let excess = if is_at_rest { excess_segments(&usage) } else { 0 };
        if excess > 0 {
            log.demand_segments((usage.free_bytes / usage.segment_bytes + excess) as usize);
        } else if self.demands {
            log.withdraw_demands();
        }
        self.demands = excess > 0;
    }
}

/// Returns the number of segments by which a log at rest is too long. Visited segments leave it
/// without further cleaning.
fn excess_segments(usage: &Usage) -> u64 {
    let segments = usage.segments.closed + usage.segments.side + usage.segments.cleaning;
    let needed = (usage.live_bytes * LENGTH_PERCENT_MAX / 100).div_ceil(usage.segment_bytes);
    u64::from(segments).saturating_sub(needed)
}

impl CleaningSchedule {
    pub(crate) fn begin_turn(&mut self, now: Instant, store: &Store) {
        self.rests = self.rests.filter(|until| *until > now);
        self.rest.begin_turn(now, store);
    }

    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.rests.into_iter().chain(self.rest.measure_at).min()
    }

    /// Returns whether a quantum may clean.
    pub(crate) fn may_run(&self, log: &Log) -> bool {
        self.rests.is_none() && log.is_low()
    }

    /// Runs a quantum of cleaning. Returns `None` if nothing can be cleaned now.
    pub(crate) fn run(&mut self, context: &mut Context<'_>) -> Option<Background> {
        assert!(self.rests.is_none(), "the cleaner does not run while it rests");
        if context.worker.clean() {
            return Some(Background::Clean);
        }
        let log = context.node.store().log();
        let is_exhausted = log.is_exhausted();
        let is_refusing = is_exhausted && !context.node.eviction.may_win_memory(&context.live);
        if is_refusing && context.now >= self.quiet_until {
            self.quiet_until = context.now + WARNING_PAUSE;
            tracing::warn!(usage = ?log.usage(), "no segment is free and none can be cleaned, refusing writes");
        }
        let pause = if is_exhausted { PAUSE } else { PAUSE_FOR_OTHERS };
        self.rests = Some(context.now + pause);
        None
    }

    /// Cleans ahead of other background work, every other time, while memory is low.
    pub(crate) fn run_first(&mut self, context: &mut Context<'_>) -> Option<Background> {
        if self.goes_first(context.node.store().log()) { self.run(context) } else { None }
    }

    /// Returns whether the next quantum is for the cleaner, whatever other work there is.
    fn goes_first(&mut self, log: &Log) -> bool {
        let is_urgent = !self.rest.demands || log.shortage_percent() > 0;
        self.was_first = !self.was_first && is_urgent && self.may_run(log);
        self.was_first
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use store::log::LogConfig;
    use types::limits::SEGMENT_BYTES_MIN;
    use types::{TypedValue, Version};
    use wire::entry::{Body, Entry};

    #[test]
    fn other_work_takes_every_second_quantum_at_most_while_memory_is_low() {
        let memory_bytes = 16 * SEGMENT_BYTES_MIN;
        let (huge_pages, durable, segment_bytes) = (false, false, None);
        let config = LogConfig { memory_bytes, reactors: 1, huge_pages, durable, segment_bytes };
        let log = Log::new(&config).expect("a small log");
        let mut schedule = CleaningSchedule::default();
        assert!(!schedule.goes_first(&log), "there is enough memory");
        let (mut head, value) = (log.head(), vec![1; 100_000]);
        let body = Body::Object { expiry: None, replaces: None, value: TypedValue::string(&value) };
        let incarnation = types::Incarnation(1);
        while !log.is_low() {
            let entry = Entry { incarnation, version: Version(1), key: b"key", body };
            head.append_one(&entry).expect("there is memory");
        }
        assert!(log.has_free(), "it is low before nothing is left");
        let turns: Vec<bool> = (0..4).map(|_| schedule.goes_first(&log)).collect();
        assert_eq!(turns, [true, false, true, false]);
    }

    #[test]
    fn a_log_at_rest_is_cleaned_until_it_is_little_longer_than_its_live_entries() {
        let config = LogConfig {
            memory_bytes: 64 * SEGMENT_BYTES_MIN,
            reactors: 1,
            huge_pages: false,
            durable: true,
            segment_bytes: None,
        };
        let log = Log::new(&config).expect("a small log");
        let (mut head, value) = (log.head(), vec![1; 100_000]);
        let body = Body::Object { expiry: None, replaces: None, value: TypedValue::string(&value) };
        let incarnation = types::Incarnation(1);
        while log.usage().segments.closed < 20 {
            let entry = Entry { incarnation, version: Version(1), key: b"key", body };
            let address = head.append_one(&entry).expect("there is memory");
            if log.usage().live_bytes > 5 * SEGMENT_BYTES_MIN as u64 {
                log.mark_dead(address, entry.encoded_bytes() as u32);
            }
        }
        let excess = excess_segments(&log.usage());
        assert_eq!(excess, 20 - 7, "1.3 times five segments are needed");
        let mut rest = RestCleaning::default();
        rest.measure(false, &log);
        assert!(!log.is_low() && !rest.demands, "clients write");
        rest.measure(true, &log);
        assert!(log.is_low() && rest.demands);
        rest.measure(false, &log);
        assert!(!log.is_low() && !rest.demands, "clients write again");
    }
}
