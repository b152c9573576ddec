//! Start times of operations.

use fastrand::Rng;
use serde::Serialize;
use types::Instant;

/// Rule for the start of the next operation.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LoadPace {
    /// Open loop: operations start at this rate, regardless of earlier answers. Their latency
    /// counts from the intended start, so a stalled server is charged for all operations that
    /// should have started.
    Open {
        /// Operations per second of all threads together.
        rate: f64,
        /// Distribution of the starts.
        arrivals: Arrivals,
    },
    /// Closed loop: each client sends its next operation when the previous one is answered.
    Closed {
        /// Clients of all threads together, each with one operation in flight.
        clients: u32,
    },
}

/// Gaps between the starts of an open loop.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Arrivals {
    /// Exponentially distributed gaps, as from independent users.
    Poisson,
    /// Equal gaps.
    Fixed,
}

impl LoadPace {
    /// Returns the part of one of `threads` equal threads. The first threads get the remaining
    /// clients.
    pub fn of_thread(self, thread: u32, threads: u32) -> LoadPace {
        match self {
            LoadPace::Open { rate, arrivals } => {
                LoadPace::Open { rate: rate / f64::from(threads), arrivals }
            }
            LoadPace::Closed { clients } => {
                let more = u32::from(thread < clients % threads);
                LoadPace::Closed { clients: clients / threads + more }
            }
        }
    }
}

/// Start times of an open loop.
pub struct Schedule {
    arrivals: Arrivals,
    /// Mean gap in nanoseconds.
    gap: f64,
    /// Next start in nanoseconds; a float, so that short gaps do not add up rounding errors.
    next: f64,
    random: Rng,
}

impl Schedule {
    /// Creates a schedule of `rate` starts per second, the first one a gap after `start`.
    pub fn new(rate: f64, arrivals: Arrivals, start: Instant, seed: u64) -> Schedule {
        assert!(rate > 0.0, "an open loop needs a rate");
        let random = Rng::with_seed(seed);
        let mut schedule = Schedule { arrivals, gap: 1e9 / rate, next: start.0 as f64, random };
        schedule.advance();
        schedule
    }

    /// Returns the intended start of the next operation.
    #[inline]
    pub fn next(&self) -> Instant {
        Instant(self.next as u64)
    }

    /// Advances to the next start.
    #[inline]
    pub fn advance(&mut self) {
        self.next += match self.arrivals {
            Arrivals::Fixed => self.gap,
            // 1 - f64() is in (0, 1], so the logarithm is finite.
            Arrivals::Poisson => -(1.0 - self.random.f64()).ln() * self.gap,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn starts_in_a_second(arrivals: Arrivals) -> u32 {
        let mut schedule = Schedule::new(10_000.0, arrivals, Instant(0), 5);
        let mut count = 0;
        while schedule.next() <= Instant(1_000_000_000) {
            count += 1;
            schedule.advance();
        }
        count
    }

    #[test]
    fn both_kinds_of_arrivals_keep_the_rate() {
        assert_eq!(starts_in_a_second(Arrivals::Fixed), 10_000);
        assert!((9_700..10_300).contains(&starts_in_a_second(Arrivals::Poisson)));
    }

    #[test]
    fn threads_share_rate_and_clients() {
        let clients: u32 = (0..3)
            .map(|thread| match (LoadPace::Closed { clients: 50 }).of_thread(thread, 3) {
                LoadPace::Closed { clients } => clients,
                LoadPace::Open { .. } => unreachable!("a closed loop stays one"),
            })
            .sum();
        assert_eq!(clients, 50);
    }
}
