//! A histogram of the delays of the last requests.

use std::time::Duration;

/// Nanoseconds of the unit of the first buckets, as a power of two: 4 us.
const UNIT_BITS: u32 = 12;

/// Buckets for each power of two.
const BUCKETS_PER_OCTAVE: usize = 4;

/// Number of buckets: delays from 4 us to 34 s.
const BUCKETS: usize = 88;

/// Weight of a new sample. Weights decay, so that a sample counts for several intervals.
const WEIGHT: u32 = 64;

/// Delays by logarithmic buckets, with weights that decay.
#[derive(Clone, Debug)]
pub(super) struct RecentDelays {
    weights: [u32; BUCKETS],
}

impl RecentDelays {
    pub(super) fn new() -> RecentDelays {
        RecentDelays { weights: [0; BUCKETS] }
    }

    /// Adds the delay of `count` requests.
    #[inline]
    pub(super) fn add(&mut self, delay: Duration, count: u32) {
        let weight = &mut self.weights[bucket(delay)];
        *weight = weight.saturating_add(count.saturating_mul(WEIGHT));
    }

    /// Lets an interval pass: each weight loses an eighth, rounded up.
    pub(super) fn decay(&mut self) {
        for weight in &mut self.weights {
            *weight -= weight.div_ceil(8);
        }
    }

    /// Returns an upper bound of the delay that 99 % of the requests have not exceeded, at most a
    /// quarter too high; zero without requests.
    pub(super) fn p99(&self) -> Duration {
        let total: u64 = self.weights.iter().map(|weight| u64::from(*weight)).sum();
        let mut above = 0;
        for (bucket, weight) in self.weights.iter().enumerate().rev() {
            above += u64::from(*weight);
            if above * 100 > total {
                return end(bucket);
            }
        }
        assert_eq!(total, 0, "some bucket contains the percentile of all requests");
        Duration::ZERO
    }
}

fn bucket(delay: Duration) -> usize {
    let nanoseconds = u64::try_from(delay.as_nanos()).unwrap_or(u64::MAX);
    let units = nanoseconds >> UNIT_BITS;
    if units < BUCKETS_PER_OCTAVE as u64 {
        return units as usize;
    }
    let octave = units.ilog2();
    let quarter = (units >> (octave - 2)) as usize % BUCKETS_PER_OCTAVE;
    (BUCKETS_PER_OCTAVE * (octave as usize - 1) + quarter).min(BUCKETS - 1)
}

/// Returns the first delay above a bucket.
fn end(bucket: usize) -> Duration {
    assert!(bucket < BUCKETS, "a bucket of the histogram");
    let quarter = (bucket % BUCKETS_PER_OCTAVE) as u64;
    let units = match bucket / BUCKETS_PER_OCTAVE {
        0 => quarter + 1,
        octave => (BUCKETS_PER_OCTAVE as u64 + quarter + 1) << (octave - 1),
    };
    Duration::from_nanos(units << UNIT_BITS)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn micros(count: u64) -> Duration {
        Duration::from_micros(count)
    }

    #[test]
    fn buckets_ascend_without_gaps_and_are_at_most_a_quarter_wide() {
        for bucket_before in 0..BUCKETS - 1 {
            let first = end(bucket_before);
            assert_eq!(bucket(first), bucket_before + 1, "{first:?}");
            assert_eq!(bucket(first - Duration::from_nanos(1)), bucket_before, "{first:?}");
            let is_narrow = end(bucket_before + 1) - first <= first / 4 || bucket_before < 3;
            assert!(is_narrow, "{first:?}");
        }
        assert_eq!(bucket(Duration::MAX), BUCKETS - 1);
        assert_eq!(bucket(Duration::ZERO), 0);
        assert!(end(BUCKETS - 1) > Duration::from_secs(30));
    }

    #[test]
    fn one_request_in_a_hundred_may_be_later_than_the_percentile() {
        let mut delays = RecentDelays::new();
        assert_eq!(delays.p99(), Duration::ZERO);
        delays.add(micros(100), 99);
        delays.add(micros(5_000), 1);
        assert!(delays.p99() > micros(100) && delays.p99() <= micros(125), "{:?}", delays.p99());
        delays.add(micros(5_000), 1);
        assert!(delays.p99() > micros(5_000) && delays.p99() <= micros(6_250));
    }

    #[test]
    fn delays_are_forgotten_within_a_few_intervals_of_others() {
        let mut delays = RecentDelays::new();
        delays.add(micros(9_000), 50);
        let mut intervals = 0;
        while delays.p99() > micros(9_000) {
            delays.decay();
            delays.add(micros(50), 50);
            intervals += 1;
        }
        assert!((10..25).contains(&intervals), "{intervals} intervals of 10 ms");
        for _ in 0..100 {
            delays.decay();
        }
        assert_eq!(delays.p99(), Duration::ZERO, "nothing is left without requests");
    }

    #[test]
    fn many_requests_do_not_overflow() {
        let mut delays = RecentDelays::new();
        delays.add(micros(20), u32::MAX);
        delays.add(micros(20), u32::MAX);
        assert!(delays.p99() <= micros(25));
    }
}
