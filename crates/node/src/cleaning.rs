//! Scheduling of the cleaner on this reactor, and its backpressure on writers.
//!
//! While enough memory is free, cleaning is background work like any other. When free memory
//! falls below half of the cleaner's target, the cleaner's share of every reactor rises. It
//! reaches one quantum per turn when nothing is free. This slows writers down to the rate of
//! cleaning. A write that finds no memory waits. It is refused only when nothing more can be
//! freed.

use crate::context::Context;
use crate::work::Background;
use std::time::Duration;
use store::log::Log;
use types::Instant;

/// Pause of the cleaner when it finds nothing worth cleaning. It lets a full server without
/// writes sleep; at 1 GB/s, writers overwrite a quarter of a segment in this time.
const PAUSE: Duration = Duration::from_millis(2);

/// Pause of the cleaner when it must wait for other reactors: one quantum of theirs.
const PAUSE_FOR_OTHERS: Duration = Duration::from_micros(50);

/// Cleaning state of a reactor.
#[derive(Debug, Default)]
pub(crate) struct CleaningSchedule {
    /// End of the current pause, which applies although memory is low.
    rests: Option<Instant>,
    /// Set if the previous quantum was cleaning ahead of other work.
    was_first: bool,
}

impl CleaningSchedule {
    pub(crate) fn begin_turn(&mut self, now: Instant) {
        self.rests = self.rests.filter(|until| *until > now);
    }

    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.rests
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
        let is_exhausted = context.node.store().log().is_exhausted();
        let pause = if is_exhausted { PAUSE } else { PAUSE_FOR_OTHERS };
        self.rests = Some(context.now + pause);
        None
    }

    /// Cleans ahead of other background work, every other time, while writers find no memory.
    pub(crate) fn run_first(&mut self, context: &mut Context<'_>) -> Option<Background> {
        let is_turn = !std::mem::take(&mut self.was_first);
        let log = context.node.store().log();
        if !is_turn || log.has_free() || !self.may_run(log) {
            return None;
        }
        self.was_first = true;
        self.run(context)
    }
}
