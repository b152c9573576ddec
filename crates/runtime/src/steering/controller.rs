//! The share of background work that keeps clients within a latency target: additive increase and
//! multiplicative decrease. It has no clock.

use super::delays::RecentDelays;
use std::time::Duration;
use types::{Instant, LatencyTarget};

/// Time after which the controller decides again.
pub(super) const INTERVAL: Duration = Duration::from_millis(10);

/// Share of background work that every target leaves, in percent: each move makes progress.
pub(super) const SHARE_MIN: u8 = 2;

/// First share, in percent: that of a move without a target.
const SHARE_FIRST: u8 = 10;

/// Points by which the share rises after an interval near the target, and far below it.
const INCREASE: u8 = 1;
const INCREASE_FAR: u8 = 4;

/// Intervals that are made up for after a pause. They leave nothing of any histogram.
const INTERVALS_MAX: u128 = 200;

/// Requests of an interval.
#[derive(Clone, Copy, Debug, Default)]
struct IntervalRequests {
    answered: u64,
    /// Those that exceeded three quarters of the target.
    near: u64,
    /// Those that exceeded the target.
    late: u64,
}

impl IntervalRequests {
    /// Returns whether `count` is more than 1 % of the requests.
    fn is_many(&self, count: u64) -> bool {
        100 * count > self.answered
    }
}

/// The share that a latency target allows.
#[derive(Clone, Debug)]
pub(super) struct ShareController {
    share: u8,
    /// No interval has come near the target yet, and the share doubles.
    is_exploring: bool,
    interval_began: Instant,
    requests: IntervalRequests,
    delays: RecentDelays,
}

impl ShareController {
    pub(super) fn new(now: Instant, target: LatencyTarget) -> ShareController {
        ShareController {
            share: SHARE_FIRST.min(target.share_max).max(SHARE_MIN),
            is_exploring: true,
            interval_began: now,
            requests: IntervalRequests::default(),
            delays: RecentDelays::new(),
        }
    }

    /// Returns the share of background work, in percent.
    pub(super) fn share(&self) -> u8 {
        self.share
    }

    /// Returns the delay that 99 % of the last requests have not exceeded.
    pub(super) fn p99(&self) -> Duration {
        self.delays.p99()
    }

    /// Records the delay of `count` requests.
    #[inline]
    pub(super) fn answered(&mut self, delay: Duration, count: u32, target: LatencyTarget) {
        self.delays.add(delay, count);
        let count = u64::from(count);
        self.requests.answered += count;
        self.requests.near += if delay > target.p99 * 3 / 4 { count } else { 0 };
        self.requests.late += if delay > target.p99 { count } else { 0 };
    }

    /// Decides at the end of an interval. Returns whether this was one.
    pub(super) fn step(&mut self, now: Instant, target: LatencyTarget) -> bool {
        let intervals = now.since(self.interval_began).as_nanos() / INTERVAL.as_nanos();
        if intervals == 0 {
            return false;
        }
        let requests = std::mem::take(&mut self.requests);
        self.share = self.next_share(requests, target).min(target.share_max).max(SHARE_MIN);
        assert!((SHARE_MIN..=100).contains(&self.share), "the share is one of a whole");
        (0..intervals.min(INTERVALS_MAX)).for_each(|_| self.delays.decay());
        self.interval_began = now;
        true
    }

    /// Returns the share after an interval with these requests.
    fn next_share(&mut self, requests: IntervalRequests, target: LatencyTarget) -> u8 {
        assert!(requests.late <= requests.near, "late requests are near the target as well");
        assert!(requests.near <= requests.answered, "requests near the target are requests");
        let (share, p99) = (self.share, self.delays.p99());
        if requests.is_many(requests.late) {
            self.is_exploring = false;
            share / 2
        } else if requests.is_many(requests.near) {
            self.is_exploring = false;
            share - share.div_ceil(8)
        } else if p99 > target.p99 && requests.answered > 0 {
            share
        } else if self.is_exploring {
            share.saturating_mul(2)
        } else if p99 <= target.p99 / 2 {
            share.saturating_add(INCREASE_FAR)
        } else {
            share.saturating_add(INCREASE)
        }
    }
}
