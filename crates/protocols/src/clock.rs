//! The clock by which a server judges expiry, and its correction ([`ClockLine`]): see
//! `docs/design/time.md`. Wall clocks only *lead* it.
//!
//! A reference sent over a network arrives late, never early, so the latest of the last few counts.
//!
//! **Invariant:** the clock never goes back, and between two steps it runs at 0.95 to 1.05 times
//! the rate of the monotonic clock. [`crate::replication::timing::CLOCK_LEASE`] relies on the
//! upper bound.

use std::collections::VecDeque;
use std::time::Duration;
use types::{Instant, UnixMillis};

/// Largest difference from the reference that is corrected at once, without a doubt.
pub const FOLLOWED_MAX: Duration = Duration::from_secs(1);

/// Time for which a larger difference must be constant before the clock follows it. Long enough
/// for a person or a time service to correct a mistake, short enough for a machine that booted
/// with a wrong clock.
pub const DOUBT: Duration = Duration::from_secs(10);

/// Divisor that bounds the correction: the clock runs at most 1/20 faster or slower.
pub const SLEW_PARTS: u64 = 20;

/// Two differences within this many nanoseconds count as the same: a quarter of [`FOLLOWED_MAX`].
const SAME: i64 = FOLLOWED_MAX.as_nanos() as i64 / 4;

/// Number of references remembered. References arrive once a second, so a few seconds of network
/// delay do not mislead the clock.
const REFERENCES: usize = 8;

const NANOS_PER_MILLI: u64 = 1_000_000;

/// The course of an expiry clock until it is led again; every reader of the clock has a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockLine {
    /// Start of the line on the monotonic clock.
    from: Instant,
    /// Value of the expiry clock at `from`, in nanoseconds since 1970.
    nanos: u64,
    /// Remaining correction in nanoseconds; a positive correction makes the clock run faster.
    error: i64,
}

/// The expiry clock of one server. It follows the monotonic clock and is led by wall clocks.
#[derive(Clone, Debug)]
pub struct ExpiryClock {
    line: ClockLine,
    doubt: Option<Doubt>,
    /// Differences between reference and monotonic clock in nanoseconds, newest last.
    references: VecDeque<i64>,
}

/// A difference that is too large to be corrected at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Doubt {
    since: Instant,
    /// Difference between reference and monotonic clock, in nanoseconds.
    reference: i64,
}

impl ClockLine {
    /// Creates the line of a clock that shows `at` at `from` and needs no correction.
    pub fn new(from: Instant, at: UnixMillis) -> ClockLine {
        ClockLine { from, nanos: at.0.saturating_mul(NANOS_PER_MILLI), error: 0 }
    }

    /// Returns the expiry clock at `now`, which must not be before the start of the line.
    #[inline]
    pub fn read(&self, now: Instant) -> UnixMillis {
        UnixMillis(self.nanos_at(now) / NANOS_PER_MILLI)
    }

    fn nanos_at(&self, now: Instant) -> u64 {
        let passed = now.since(self.from).as_nanos() as u64;
        let slew = (passed / SLEW_PARTS) as i64;
        let made_up = self.error.clamp(-slew, slew);
        self.nanos.saturating_add(passed).saturating_add_signed(made_up)
    }
}

impl ExpiryClock {
    /// Creates a clock that shows `at` at `now`.
    pub fn new(now: Instant, at: UnixMillis) -> ExpiryClock {
        ExpiryClock { line: ClockLine::new(now, at), doubt: None, references: VecDeque::new() }
    }

    /// Returns the line by which the clock runs until it is next led or raised.
    pub fn line(&self) -> ClockLine {
        self.line
    }

    /// Raises the clock to at least `at`, because an earlier process with the same log has judged
    /// expiry by that time.
    pub fn raise(&mut self, now: Instant, at: UnixMillis) {
        if self.line.read(now) < at {
            self.set(now, ClockLine::new(now, at));
        }
    }

    /// Leads the clock by the server's own wall clock.
    pub fn lead(&mut self, now: Instant, wall: UnixMillis) {
        self.follow(now, difference(wall, now));
    }

    /// Leads the clock by a reference that was sent over a network.
    pub fn lead_from_afar(&mut self, now: Instant, reference: UnixMillis) {
        if self.references.len() == REFERENCES {
            self.references.pop_front();
        }
        self.references.push_back(difference(reference, now));
        assert!(self.references.len() <= REFERENCES, "{} references", self.references.len());
        if let Some(&latest) = self.references.iter().max() {
            self.follow(now, latest);
        }
    }

    /// Returns the reference minus the clock in milliseconds while the difference is in doubt.
    pub fn doubt_millis(&self, now: Instant) -> Option<i64> {
        let doubt = self.doubt?;
        Some(self.error(now, doubt.reference) / NANOS_PER_MILLI as i64)
    }

    fn error(&self, now: Instant, reference: i64) -> i64 {
        reference.saturating_sub(self.line.nanos_at(now).wrapping_sub(now.0) as i64)
    }

    fn follow(&mut self, now: Instant, reference: i64) {
        let error = self.error(now, reference);
        if error.unsigned_abs() <= FOLLOWED_MAX.as_nanos() as u64 {
            self.doubt = None;
            return self.make_up(now, error);
        }
        let is_same = |doubt: &Doubt| doubt.reference.abs_diff(reference) <= SAME as u64;
        let Some(doubt) = self.doubt.filter(is_same) else {
            self.doubt = Some(Doubt { since: now, reference });
            return self.make_up(now, 0);
        };
        if now.since(doubt.since) < DOUBT {
            return;
        }
        if error > 0 {
            self.doubt = None;
            let nanos = self.line.nanos_at(now).saturating_add_signed(error);
            self.set(now, ClockLine { from: now, nanos, error: 0 });
        } else {
            self.make_up(now, error);
        }
    }

    fn make_up(&mut self, now: Instant, error: i64) {
        self.set(now, ClockLine { from: now, nanos: self.line.nanos_at(now), error });
    }

    fn set(&mut self, now: Instant, line: ClockLine) {
        assert!(
            self.line.nanos_at(now) <= line.nanos_at(now),
            "the clock goes back from {:?} to {line:?}",
            self.line
        );
        self.line = line;
    }
}

/// Returns wall-clock time minus monotonic time, in nanoseconds.
fn difference(wall: UnixMillis, now: Instant) -> i64 {
    (wall.0.saturating_mul(NANOS_PER_MILLI) as i64).saturating_sub(now.0 as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const STEP: Duration = Duration::from_millis(100);
    const START: UnixMillis = UnixMillis(1_700_000_000_000);
    const DAY: i64 = 86_400_000;

    /// A clock that is led every 100 ms. Each step checks the clock's invariant.
    struct Led {
        clock: ExpiryClock,
        now: Instant,
    }

    impl Led {
        fn new() -> Led {
            let now = Instant(77_000_000_000);
            Led { clock: ExpiryClock::new(now, START), now }
        }

        fn read(&self) -> UnixMillis {
            self.clock.line().read(self.now)
        }

        /// Returns the clock minus the true elapsed time, in milliseconds.
        fn ahead(&self) -> i64 {
            let passed = self.now.0 as i64 / 1_000_000 - 77_000;
            self.read().0 as i64 - START.0 as i64 - passed
        }

        /// Lets time pass while the wall clock is `wall_ahead` ms ahead of true time. Returns
        /// whether the clock took a step.
        fn run(&mut self, time: Duration, wall_ahead: i64) -> bool {
            let mut has_stepped = false;
            for _ in 0..time.as_nanos() / STEP.as_nanos() {
                let before = self.read().0;
                self.now = self.now + STEP;
                let true_time = START.0 + (self.now.0 / 1_000_000 - 77_000);
                let unled = self.read().0;
                self.clock.lead(self.now, UnixMillis(true_time.saturating_add_signed(wall_ahead)));
                assert!((94..=106).contains(&(unled - before)), "{} ms in 100", unled - before);
                assert!(unled <= self.read().0, "the clock went back");
                has_stepped |= unled < self.read().0;
            }
            has_stepped
        }
    }

    #[test]
    #[should_panic(expected = "the clock goes back")]
    fn the_clock_does_not_go_back() {
        let mut clock = ExpiryClock::new(Instant(0), START);
        clock.set(Instant(0), ClockLine::new(Instant(0), UnixMillis(START.0 - 1)));
    }

    #[test]
    fn a_small_difference_is_made_up_for_without_a_step() {
        for wall_ahead in [900, -900] {
            let mut led = Led::new();
            assert!(!led.run(10 * SECOND, wall_ahead));
            assert!((490..=510).contains(&led.ahead().abs()), "{} after 10 s", led.ahead());
            assert!(!led.run(10 * SECOND, wall_ahead));
            assert!((led.ahead() - wall_ahead).abs() <= 1, "{} ms", led.ahead());
        }
    }

    #[test]
    fn a_wall_clock_that_jumps_a_day_ahead_and_back_changes_nothing() {
        let mut led = Led::new();
        for wall_ahead in [DAY, 0, -DAY, 0] {
            assert!(!led.run(9 * SECOND, wall_ahead));
            assert_eq!(led.ahead(), 0);
        }
    }

    #[test]
    fn a_wall_clock_that_stays_ahead_is_followed_in_one_step_after_ten_seconds() {
        let mut led = Led::new();
        assert!(!led.run(10 * SECOND, DAY));
        assert_eq!(led.clock.doubt_millis(led.now), Some(DAY));
        assert!(led.run(SECOND, DAY));
        assert_eq!((led.ahead(), led.clock.doubt_millis(led.now)), (DAY, None));
    }

    #[test]
    fn a_wall_clock_that_stays_behind_is_followed_by_running_slower() {
        let mut led = Led::new();
        assert!(!led.run(10 * SECOND, -3_000));
        assert_eq!(led.ahead(), 0);
        assert!(!led.run(20 * SECOND, -3_000));
        assert!((-1_010..=-900).contains(&led.ahead()), "{} ms", led.ahead());
        assert!(!led.run(60 * SECOND, -3_000));
        assert!((led.ahead() + 3_000).abs() <= 1, "{} ms", led.ahead());
    }

    #[test]
    fn a_wall_clock_that_stands_still_is_left_behind() {
        let mut led = Led::new();
        for tenth in 1..=600 {
            assert!(!led.run(STEP, -100 * tenth));
        }
        assert!((-110..=0).contains(&led.ahead()), "{} ms behind after a minute", led.ahead());
    }

    #[test]
    fn of_references_from_afar_the_latest_counts_since_a_network_only_delays() {
        let mut clock = ExpiryClock::new(Instant(0), START);
        let mut now = Instant(0);
        for second in 1..=60 {
            now = now + SECOND;
            // Every fourth reference is on time; the others arrive up to 900 ms late.
            let late = if second % 4 == 0 { 0 } else { 300 * (second % 4) };
            clock.lead_from_afar(now, UnixMillis(START.0 + 1_000 * second - late + 200));
        }
        let ahead = clock.line().read(now).0 as i64 - (START.0 + 60_000) as i64;
        assert!((195..=200).contains(&ahead), "{ahead} ms");
    }

    #[test]
    fn what_an_earlier_process_has_judged_by_raises_the_clock_for_good() {
        let mut led = Led::new();
        led.clock.raise(led.now, UnixMillis(START.0 - 5));
        assert_eq!(led.read(), START);
        led.clock.raise(led.now, UnixMillis(START.0 + 3_600_000));
        assert_eq!(led.ahead(), 3_600_000);
        assert!(!led.run(60 * SECOND, 0));
        assert!((3_597_000..=3_598_000).contains(&led.ahead()), "{} ms", led.ahead());
    }
}
