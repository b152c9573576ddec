//! The time ranges in which expiring values may disappear, computed from readings of the clocks by
//! which they were judged.
//!
//! A value with a time to live t, written by an operation from b to e, expires when the clock of
//! its range shows a time between `low(b) + t` and `high(e) + t`. It may be seen gone by an
//! operation that ends at a moment m with `high(m) >= low(b) + t`. An operation that begins at a
//! moment m with `low(m) >= high(e) + t` must not see it. See `docs/design/simulator.md`.

use crate::history::{Lives, RegisterAction, RegisterOperation};
use crate::range_clocks::RangeClockBounds;

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

    /// Returns the moments between which each expiring value disappears.
    pub(crate) fn lives(
        &self,
        history: &[RegisterOperation],
        millis_of: impl Fn(u64) -> u64,
    ) -> Lives {
        let writes = history.iter().filter_map(|operation| match operation.action {
            RegisterAction::WriteExpiring(value) => Some((value, operation)),
            _ => None,
        });
        let mut writes = writes.filter(|(_, write)| write.outcome.is_some()).peekable();
        let is_unknown = |(_, bounds): &_| *bounds == RangeClockBounds::UNKNOWN;
        if writes.peek().is_none() || self.readings.iter().any(is_unknown) {
            return Lives::new();
        }
        let moments: Vec<u64> = self.readings.iter().map(|(moment, _)| *moment).collect();
        let lows: Vec<u64> = self.readings.iter().map(|(_, bounds)| bounds.low.0).collect();
        let (highs, highest) = self.highs();
        let at = |index: usize| moments.get(index).copied().unwrap_or(u64::MAX);
        let life = |(value, write): (u64, &RegisterOperation)| {
            let millis = millis_of(value);
            let begun = moments.partition_point(|moment| *moment <= write.begun).checked_sub(1)?;
            let ended = moments.partition_point(|moment| *moment < write.ended);
            let earliest = lows[begun] + millis;
            let latest = highs.get(ended).map_or(u64::MAX, |high| high.saturating_add(millis));
            let first = at(highest.partition_point(|high| *high < earliest));
            // Operations that begin at the next reading, or later, do not find the value.
            let gone = lows.partition_point(|low| *low < latest);
            Some((value, first..=at(gone).saturating_sub(1)))
        };
        writes.filter_map(life).collect()
    }

    /// Returns the upper bound at each reading, and the highest one up to there.
    fn highs(&self) -> (Vec<u64>, Vec<u64>) {
        let mut highs = vec![u64::MAX; self.readings.len()];
        let mut next = u64::MAX;
        for (high, (_, bounds)) in highs.iter_mut().zip(&self.readings).rev() {
            next = bounds.high.map_or(next, |clock| clock.0);
            *high = next;
        }
        let mut so_far = 0;
        let highest = highs.iter().map(|&high| {
            so_far = so_far.max(high);
            so_far
        });
        let highest = highest.collect();
        (highs, highest)
    }
}
