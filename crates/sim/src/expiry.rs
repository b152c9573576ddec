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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::{OperationOutcome, RequestPlace};
    use types::UnixMillis;

    /// Returns the life of a value that is written from moment 1 to moment 2 and lives for 100 ms.
    fn life(readings: &[(u64, Option<u64>)]) -> Option<(u64, u64)> {
        let mut clocks = ClockReadings::default();
        for (moment, &(low, high)) in (1..).zip(readings) {
            let high = high.map(UnixMillis);
            clocks.add(moment, RangeClockBounds { low: UnixMillis(low), high });
        }
        let write = RegisterOperation {
            client: 0,
            begun: 1,
            ended: 2,
            place: RequestPlace::default(),
            action: RegisterAction::WriteExpiring(7),
            outcome: Some(OperationOutcome::Done),
        };
        let lives = clocks.lives(&[write], |_| 100);
        lives.get(&7).map(|life| (*life.start(), *life.end()))
    }

    #[test]
    fn a_value_lives_as_long_as_the_clock_of_its_range_says() {
        let written = [(1_000, Some(1_001)), (1_002, Some(1_003))];
        let with = |later: &[(u64, Option<u64>)]| life(&[&written[..], later].concat());
        // It may be gone when the clock can show 1100, and is gone when it certainly shows 1103.
        let later = [(1_098, Some(1_099)), (1_099, Some(1_100)), (1_102, Some(1_102))];
        assert_eq!(with(&later), Some((4, u64::MAX - 1)));
        assert_eq!(with(&[&later[..], &[(1_103, Some(1_103))]].concat()), Some((4, 5)));
        // While nobody serves the range, the next reading bounds the clock.
        assert_eq!(with(&[(1_050, None), (1_200, Some(1_201))]), Some((3, 3)));
        assert_eq!(with(&[(1_050, None)]), Some((3, u64::MAX - 1)));
    }

    #[test]
    fn nothing_is_known_of_values_whose_clock_is_unknown() {
        let unknown = RangeClockBounds::UNKNOWN;
        let unknown = (unknown.low.0, unknown.high.map(|high| high.0));
        assert_eq!(life(&[(1_000, Some(1_001)), (1_002, Some(1_003)), unknown]), None);
    }
}
