//! Scheduling of the cleaner on this reactor, and its backpressure on writers.
//!
//! While less memory than the cleaner's target is free, every other quantum of background work is
//! for the cleaner: the other work may need the memory, and may go on for long. When free memory
//! falls below half of the target, the share of background work at every reactor rises. It reaches
//! one quantum per turn when nothing is free. This slows writers down to the rate of
//! cleaning. A write that finds no memory waits. It is refused only when nothing more can be
//! freed.
//!
//! Tombstones in the index are reclaimed once they are synced, in the same way: a part of the quanta,
//! whose share rises with their number. So neither a long turn nor a long queue follows many deletes.

use crate::context::Context;
use crate::rest_cleaning::RestCleaning;
use crate::work::Background;
use std::time::Duration;
use store::log::Log;
use store::{CleaningOccasion, Store};
use types::Instant;

/// Pause of the cleaner when it finds nothing worth cleaning. It lets a full server without
/// writes sleep; at 1 GB/s, writers overwrite a quarter of a segment in this time.
const PAUSE: Duration = Duration::from_millis(2);

/// Pause of the cleaner when it must wait for other reactors: one quantum of theirs.
const PAUSE_FOR_OTHERS: Duration = Duration::from_micros(50);

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
    /// Set if the previous quantum without cleaning reclaimed tombstones ahead of other work.
    has_reclaimed: bool,
    rest: RestCleaning,
}

impl CleaningSchedule {
    pub(crate) fn begin_turn(&mut self, now: Instant, store: &Store) {
        self.rests = self.rests.filter(|until| *until > now);
        self.rest.begin_turn(now, store);
    }

    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.rests.into_iter().chain(self.rest.next_deadline()).min()
    }

    /// Returns whether a quantum may clean a log that is at rest, although memory is free.
    pub(crate) fn may_run_at_rest(&self, log: &Log, is_calm: bool) -> bool {
        self.rest.may_run(log, is_calm)
    }

    /// Runs a quantum of cleaning at rest.
    pub(crate) fn run_at_rest(&mut self, context: &mut Context<'_>) -> Option<Background> {
        self.rest.run(context)
    }

    /// Returns whether a quantum may clean because memory is low.
    pub(crate) fn may_run(&self, log: &Log) -> bool {
        self.rests.is_none() && log.is_low()
    }

    /// Runs a quantum of cleaning. Returns `None` if nothing can be cleaned now.
    pub(crate) fn run(&mut self, context: &mut Context<'_>) -> Option<Background> {
        assert!(self.rests.is_none(), "the cleaner does not run while it rests");
        if context.worker.clean(CleaningOccasion::LowMemory) {
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

    /// Goes ahead of other background work: cleans every other time while memory is low, and
    /// reclaims tombstones every other time of the rest.
    pub(crate) fn run_first(&mut self, context: &mut Context<'_>) -> Option<Background> {
        if self.goes_first(context.node.store().log()) {
            return self.run(context);
        }
        self.has_reclaimed = !self.has_reclaimed && context.worker.reclaim_tombstones();
        self.has_reclaimed.then_some(Background::Clean)
    }

    /// Returns whether the next quantum is for the cleaner, whatever other work there is.
    fn goes_first(&mut self, log: &Log) -> bool {
        self.was_first = !self.was_first && self.may_run(log);
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
}
