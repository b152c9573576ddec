//! The clock of a range, which continues without a step when the range changes its owner.

use planted::Bug;
use types::UnixMillis;

/// Maximum distance of a range's clock behind the store's clock when it begins, in milliseconds.
/// The clocks of two members are each within half a second of the reference. A larger difference
/// is not clock skew but the time that the change of owner took.
pub const BEHIND_MAX_MILLIS: u64 = 1_000;

/// Divisor of the elapsed time that a clock which is behind gains.
const GAIN_PARTS: u64 = 20;

/// Clock that decides expiry in one range. It follows the store's clock, but never goes back
/// behind an earlier owner's clock and never jumps ahead of it.
///
/// If the previous owner's clock was ahead, the range's clock stands still until the store's
/// clock has passed it: expired records stay expired. If it was behind, the range's clock
/// continues from there and runs a twentieth faster until it has caught up: no time to live gets
/// shorter by more than that. Other ranges are not affected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RangeClock {
    /// Latest time at which an earlier owner can have decided expiry.
    floor: UnixMillis,
    /// Distance behind the store's clock at the beginning, in milliseconds.
    behind: u64,
    /// Store's clock at the beginning.
    since: UnixMillis,
}

impl RangeClock {
    /// Clock of a range without an earlier owner: the store's clock.
    pub const OWN: RangeClock =
        RangeClock { floor: UnixMillis(0), behind: 0, since: UnixMillis(0) };

    /// Creates a clock that shows `at` when the store's clock shows `own`. `at` is the latest
    /// time at which an earlier owner can have decided expiry.
    pub fn going_on_from(at: UnixMillis, own: UnixMillis) -> RangeClock {
        let behind = own.0.saturating_sub(at.0).min(BEHIND_MAX_MILLIS);
        let behind = if planted::is(Bug::ClockJumpsAhead) { 0 } else { behind };
        RangeClock { floor: at, behind, since: own }
    }

    /// Returns the range's clock when the store's clock shows `own`.
    #[inline]
    pub fn read(&self, own: UnixMillis) -> UnixMillis {
        if self.behind == 0 {
            return own.max(self.floor);
        }
        self.read_behind(own)
    }

    fn read_behind(&self, own: UnixMillis) -> UnixMillis {
        debug_assert!(self.behind <= BEHIND_MAX_MILLIS, "{self:?} is too far behind");
        let gained = own.0.saturating_sub(self.since.0) / GAIN_PARTS;
        let left = self.behind.saturating_sub(gained);
        UnixMillis(own.0.saturating_sub(left)).max(self.floor)
    }

    /// Returns the floor. The range's clock never exceeds the later of the floor and the store's
    /// clock.
    pub(super) fn floor(&self) -> UnixMillis {
        self.floor
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: u64 = 1_700_000_000_000;

    fn read(clock: &RangeClock, passed: u64) -> i64 {
        clock.read(UnixMillis(OWN + passed)).0 as i64 - OWN as i64
    }

    #[test]
    fn a_range_from_a_clock_that_was_ahead_waits_for_ours() {
        let clock = RangeClock::going_on_from(UnixMillis(OWN + 300), UnixMillis(OWN));
        for (passed, shown) in [(0, 300), (299, 300), (300, 300), (301, 301), (9_000, 9_000)] {
            assert_eq!(read(&clock, passed), shown, "after {passed} ms");
        }
    }

    #[test]
    fn a_range_from_a_clock_that_was_behind_gains_a_twentieth() {
        let clock = RangeClock::going_on_from(UnixMillis(OWN - 300), UnixMillis(OWN));
        for (passed, shown) in [(0, -300), (200, -90), (5_999, 5_998), (6_000, 6_000)] {
            assert_eq!(read(&clock, passed), shown, "after {passed} ms");
        }
    }

    #[test]
    fn it_never_goes_back_and_gains_no_more_than_a_twentieth() {
        for difference in [-5_000_i64, -1_000, -777, -1, 0, 1, 40, 5_000] {
            let at = UnixMillis(OWN.saturating_add_signed(difference));
            let clock = RangeClock::going_on_from(at, UnixMillis(OWN));
            let steps: Vec<i64> = (0..30_000).map(|passed| read(&clock, passed)).collect();
            let longest_jump = steps[0] - difference;
            // Beyond the maximum, the difference is the duration of the change of owner.
            assert_eq!(longest_jump, (-1_000 - difference).max(0), "{difference}");
            for (passed, pair) in steps.windows(2).enumerate() {
                assert!((0..=2).contains(&(pair[1] - pair[0])), "{difference}: {passed} ms");
            }
            let gained = steps[20_000] - steps[0];
            assert!(gained <= 21_000, "{difference}: {gained} ms in 20 s");
            assert!(steps[29_999] >= 29_999);
        }
    }

    #[test]
    fn a_clock_that_nobody_had_before_is_ours() {
        assert_eq!(read(&RangeClock::OWN, 7), 7);
        let same = RangeClock::going_on_from(UnixMillis(OWN), UnixMillis(OWN));
        assert_eq!(read(&same, 7), 7);
    }
}
