//! The two clocks: monotonic time for deadlines and measurements, wall-clock time for expiry.
#![expect(clippy::disallowed_methods, reason = "the one place that reads the clock for reactors")]

use rustix::time::{ClockId, Timespec, clock_gettime};
use std::time::Duration;
use types::{Instant, UnixMillis};

/// Longest time for which the wall clock is extrapolated by the monotonic one. A change of the
/// wall clock is noticed within this time, and a turn costs one clock reading instead of two.
const WALL_AGE_MAX: Duration = Duration::from_millis(20);

/// Reads the system's clocks. One per thread.
#[derive(Clone, Debug)]
pub struct Clock {
    /// A reading of both clocks: monotonic, and nanoseconds since 1970.
    monotonic: Instant,
    wall_ns: u64,
}

impl Default for Clock {
    fn default() -> Clock {
        Clock::new()
    }
}

impl Clock {
    /// Returns a clock with current readings.
    pub fn new() -> Clock {
        let wall_ns = nanoseconds(clock_gettime(ClockId::Realtime));
        #[cfg(feature = "faults")]
        let wall_ns = wall_ns.saturating_add_signed(crate::faults::clock_ahead_nanos());
        Clock { monotonic: monotonic(), wall_ns }
    }

    /// Reads the monotonic clock, which all threads of the machine share.
    pub fn now(&self) -> Instant {
        monotonic()
    }

    /// Returns the wall-clock time at `now`, a current reading of the monotonic clock.
    pub fn wall(&mut self, now: Instant) -> UnixMillis {
        if now.since(self.monotonic) > WALL_AGE_MAX {
            *self = Clock::new();
        }
        let age = u64::try_from(now.since(self.monotonic).as_nanos()).unwrap_or(0);
        UnixMillis((self.wall_ns + age) / 1_000_000)
    }
}

fn monotonic() -> Instant {
    Instant(nanoseconds(clock_gettime(ClockId::Monotonic)))
}

fn nanoseconds(time: Timespec) -> u64 {
    // Both clocks are past their start; a value is negative only if the date is set before 1970.
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    seconds * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_monotonic_clock_never_goes_back_and_the_wall_clock_is_past_2020() {
        let mut clock = Clock::new();
        let mut last = clock.now();
        for _ in 0..1000 {
            let now = clock.now();
            assert!(now >= last);
            last = now;
        }
        assert!(clock.wall(last).0 > 1_577_836_800_000);
    }

    #[test]
    fn the_wall_clock_is_carried_on_by_the_monotonic_one() {
        let mut clock = Clock { monotonic: Instant(1_000_000_000), wall_ns: 5_000_000_000 };
        let later = Instant(1_000_000_000 + 7_000_000);
        assert_eq!(clock.wall(later), UnixMillis(5_007));
    }
}
