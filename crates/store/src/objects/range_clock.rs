//! The clock of a range, which goes on without a step when the range changes its owner.

use types::UnixMillis;

/// How far behind a range's clock may begin, in milliseconds: the clocks of two members are each
/// within half a second of the others'. What is beyond that is no difference of clocks but the time
/// that the change of owner took.
pub const BEHIND_MAX_MILLIS: u64 = 1_000;

/// While the clock is behind it gains one part in so many.
const GAIN_PARTS: u64 = 20;

/// By which clock expiry is judged in one range: by the store's, but not before the time by which
/// an earlier owner has judged, and not by a jump ahead of that.
///
/// The clock of the owner before was ahead of ours: the range's clock stands still until ours has
/// passed it, so that what was seen expired stays expired. It was behind: the range's clock begins
/// where that one was, and gains a twentieth until it is where ours is, so that no key lives
/// shorter than it was told, by more than that. No other range notices either.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RangeClock {
    /// The latest time by which an earlier owner can have judged.
    floor: UnixMillis,
    /// How far behind the store's clock it began.
    behind: u64,
    /// The store's clock then.
    since: UnixMillis,
}

impl RangeClock {
    /// The store's clock.
    pub const OWN: RangeClock =
        RangeClock { floor: UnixMillis(0), behind: 0, since: UnixMillis(0) };

    /// The clock that shows `at`, the latest time by which an earlier owner can have judged, when
    /// the store's clock shows `own`.
    pub fn going_on_from(at: UnixMillis, own: UnixMillis) -> RangeClock {
        let behind = own.0.saturating_sub(at.0).min(BEHIND_MAX_MILLIS);
        RangeClock { floor: at, behind, since: own }
    }

    /// The range's clock when the store's shows `own`.
    #[inline]
    pub fn read(&self, own: UnixMillis) -> UnixMillis {
        if self.behind == 0 {
            return own.max(self.floor);
        }
        self.read_behind(own)
    }

    fn read_behind(&self, own: UnixMillis) -> UnixMillis {
        let gained = own.0.saturating_sub(self.since.0) / GAIN_PARTS;
        let left = self.behind.saturating_sub(gained);
        UnixMillis(own.0.saturating_sub(left)).max(self.floor)
    }

    /// Not behind the range's clock, as long as the store's shows no more than this or `own`.
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
            // The change itself took longer than clocks differ.
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
