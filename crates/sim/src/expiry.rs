//! The time ranges in which expiring values may disappear, computed from readings of the clocks by
//! which they were judged.
//!
//! A time to live t that an operation from b to e has given ends when the clock of the range shows
//! a time between `low(b) + t` and `high(e) + t`; a deadline that a client names ends at that time.
//! A value with a deadline from d to d' may be seen gone by an operation that ends at a moment m
//! with `high(m) >= d`. An operation that begins at a moment m with `low(m) >= d'` must not see it.
//! A remaining time t that was answered by an operation from b to e shows a deadline between
//! `low(b) + t` and `high(e) + t`. See `docs/design/simulator.md`.

use crate::history::{Life, Lifetime, Lives, OperationOutcome, RegisterOperation, RemainingTime};
use crate::range_clocks::RangeClockBounds;
use std::ops::RangeInclusive;

/// Readings of the clock of one register's range.
#[derive(Clone, Debug, Default)]
pub(crate) struct ClockReadings {
    /// Moments at which operations on the register have begun or ended, with the bounds of the
    /// clock in milliseconds.
    readings: Vec<(u64, RangeClockBounds)>,
}

impl ClockReadings {
    pub(crate) fn add(&mut self, moment: u64, bounds: RangeClockBounds) {
        self.readings.push((moment, bounds));
    }

    /// Returns the bounds of all times to live of a history. `millis_of` is the length of one with
    /// this number. Times of operations that were given up have none.
    pub(crate) fn lives(
        &self,
        history: &[RegisterOperation],
        millis_of: impl Fn(u64) -> u64,
    ) -> Lives {
        let mut lives = Lives::default();
        let is_unknown = |(_, bounds): &_| *bounds == RangeClockBounds::UNKNOWN;
        let answered = || history.iter().filter(|operation| operation.outcome.is_some());
        let has_lifetimes = answered().any(|operation| operation.action.lifetime().is_some());
        if !has_lifetimes || self.readings.iter().any(is_unknown) {
            return lives;
        }
        let clock = ReadClock::of(&self.readings);
        for operation in answered() {
            let deadline = match operation.action.lifetime() {
                Some(Lifetime::After(number)) => clock.deadline(operation, millis_of(number)),
                Some(Lifetime::Until(_, at)) => Some(at..=at),
                Some(Lifetime::Unknown) | None => None,
            };
            if let (Some(lifetime), Some(deadline)) = (operation.action.lifetime(), deadline) {
                let (first, last) = clock.end(&deadline).into_inner();
                let moments = first..=last.max(operation.ended);
                lives.given.insert(lifetime, Life { moments, deadline });
            }
            if let Some(OperationOutcome::Remaining(RemainingTime::Millis(millis))) =
                operation.outcome
                && let Some(deadline) = clock.deadline(operation, millis)
            {
                lives.shown.insert(operation.begun, deadline);
            }
        }
        lives
    }
}

/// The same readings by columns.
struct ReadClock {
    moments: Vec<u64>,
    lows: Vec<u64>,
    highs: Vec<u64>,
    /// Highest upper bound so far, at each reading.
    highest: Vec<u64>,
}

impl ReadClock {
    fn of(readings: &[(u64, RangeClockBounds)]) -> ReadClock {
        let mut highs = vec![u64::MAX; readings.len()];
        let mut next = u64::MAX;
        for (high, (_, bounds)) in highs.iter_mut().zip(readings).rev() {
            next = bounds.high.map_or(next, |clock| clock.0);
            *high = next;
        }
        let mut so_far = 0;
        let highest = highs.iter().map(|&high| {
            so_far = so_far.max(high);
            so_far
        });
        ReadClock {
            moments: readings.iter().map(|(moment, _)| *moment).collect(),
            lows: readings.iter().map(|(_, bounds)| bounds.low.0).collect(),
            highest: highest.collect(),
            highs,
        }
    }

    /// Returns the bounds of a deadline that was this far away when the operation was executed.
    fn deadline(&self, operation: &RegisterOperation, millis: u64) -> Option<RangeInclusive<u64>> {
        let begun = self.moments.partition_point(|moment| *moment <= operation.begun);
        let ended = self.moments.partition_point(|moment| *moment < operation.ended);
        let high = self.highs.get(ended).copied().unwrap_or(u64::MAX);
        Some(self.lows[begun.checked_sub(1)?] + millis..=high.saturating_add(millis))
    }

    /// Returns the moments between which the clock reaches a deadline. Operations that begin after
    /// the last one find the deadline passed.
    fn end(&self, deadline: &RangeInclusive<u64>) -> RangeInclusive<u64> {
        let at = |index: usize| self.moments.get(index).copied().unwrap_or(u64::MAX);
        let first = self.highest.partition_point(|high| high < deadline.start());
        let gone = self.lows.partition_point(|low| low < deadline.end());
        at(first)..=at(gone).saturating_sub(1)
    }
}

#[cfg(test)]
mod tests;
