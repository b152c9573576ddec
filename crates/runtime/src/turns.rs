//! Scheduling decisions of a turn, without a clock and without sockets: when background work is
//! due, when to stop serving clients, and how to wait when idle. `docs/design/reactor.md`, "The
//! share" and "Waiting", explains them.

use std::time::Duration;
use types::{Instant, PollPolicy};

/// The next action of an idle reactor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Idle {
    Spin,
    /// Block until several requests are present, or a few microseconds have passed.
    Gather,
    Block,
}

/// Running time over which the background's share is kept.
pub(crate) const WINDOW: Duration = Duration::from_millis(10);

/// Intended length of a quantum (20 to 50 us). Serving clients stops when this much is owed.
const QUANTUM: Duration = Duration::from_micros(30);

/// Shortest limit for a turn; below it, polling would cost more than serving.
const TURN_MIN: Duration = Duration::from_micros(20);

/// Pauses shorter than this are spun through. It is about the cost of blocking and waking: 10 us
/// until the first instruction, and two context switches on both sides.
const SPIN_PAUSE: Duration = Duration::from_micros(50);

/// Upper limit for a recorded pause: two long pauses end the spinning, and a few short ones start
/// it again.
const PAUSE_MAX: Duration = Duration::from_micros(200);

pub(crate) struct Turns {
    poll: PollPolicy,
    /// Threads outnumber cores: a spinning reactor may occupy the core of the thread that it
    /// waits for.
    cores_shared: bool,
    /// Credit of the background, in hundredths of a nanosecond; negative after an overrun.
    credit: i64,
    /// Moving average of the recent pauses, each with a weight of an eighth, in nanoseconds.
    pause: u64,
    /// Beginning of the current idle period.
    idle_since: Option<Instant>,
}

impl Turns {
    pub(crate) fn new(poll: PollPolicy, cores_shared: bool) -> Turns {
        let pause = nanoseconds(PAUSE_MAX);
        Turns { poll, cores_shared, credit: 0, pause, idle_since: None }
    }

    /// Sets whether threads outnumber cores.
    pub(crate) fn set_cores_shared(&mut self, cores_shared: bool) {
        self.cores_shared = cores_shared;
    }

    /// Records `spent` on anything but background work.
    pub(crate) fn worked(&mut self, spent: Duration, share: u8) {
        self.earn(spent, share);
    }

    /// Records `spent` on a quantum that ran because it was due.
    pub(crate) fn ran_due(&mut self, spent: Duration, share: u8) {
        self.credit -= 100 * signed_nanoseconds(spent);
        self.earn(spent, share);
    }

    /// Records `spent` on a quantum that ran because the core was otherwise idle.
    pub(crate) fn ran_idle(&mut self, spent: Duration) {
        let paid = (self.credit - 100 * signed_nanoseconds(spent)).max(0);
        self.credit = self.credit.min(paid);
    }

    /// Clears the credit: there is no background work, and later work has no claim.
    pub(crate) fn forget_background(&mut self) {
        self.credit = 0;
    }

    /// Returns whether a quantum must run although there is other work.
    pub(crate) fn is_background_due(&self, share: u8) -> bool {
        share >= 100 || self.credit > 0
    }

    /// Returns the time at which the turn that begins at `now` must stop serving clients because
    /// a quantum is owed. Each turn runs one quantum only; longer turns could not keep the share.
    pub(crate) fn serve_until(&self, now: Instant, share: u8) -> Instant {
        let missing = (100 * signed_nanoseconds(QUANTUM) - self.credit).max(0);
        let earned_in = missing / i64::from(share.max(1));
        let earned_in = Duration::from_nanos(u64::try_from(earned_in).unwrap_or(0));
        now + earned_in.clamp(TURN_MIN, WINDOW)
    }

    /// Returns how to wait when idle at `now`. `is_batched` means that several clients will
    /// probably send requests within a few microseconds, so that one wake-up can serve them
    /// together.
    pub(crate) fn idle(&mut self, now: Instant, is_batched: bool) -> Idle {
        let since = *self.idle_since.get_or_insert(now);
        match self.poll {
            PollPolicy::Busy => Idle::Spin,
            PollPolicy::Adaptive | PollPolicy::Sleep if is_batched => Idle::Gather,
            PollPolicy::Sleep => Idle::Block,
            PollPolicy::Adaptive => {
                let pays = self.pause < nanoseconds(SPIN_PAUSE) && !self.cores_shared;
                let recently = now.since(since) < 2 * SPIN_PAUSE;
                if pays && recently { Idle::Spin } else { Idle::Block }
            }
        }
    }

    /// Ends the idle period: an event arrived at `now`.
    pub(crate) fn arrived(&mut self, now: Instant) {
        if let Some(since) = self.idle_since.take() {
            let pause = nanoseconds(now.since(since).min(PAUSE_MAX));
            self.pause = (7 * self.pause + pause) / 8;
        }
    }

    /// Returns whether to yield the core between two looks of a spin.
    pub(crate) fn yields_while_spinning(&self) -> bool {
        match self.poll {
            PollPolicy::Busy => false,
            PollPolicy::Adaptive | PollPolicy::Sleep => true,
        }
    }

    /// Returns whether to yield the core after a quantum. If nobody else needs it, that costs
    /// less than a hundredth of the quantum.
    pub(crate) fn yields(&self) -> bool {
        match self.poll {
            PollPolicy::Busy => self.cores_shared,
            PollPolicy::Adaptive | PollPolicy::Sleep => true,
        }
    }

    fn earn(&mut self, spent: Duration, share: u8) {
        let limit = i64::from(share) * signed_nanoseconds(WINDOW);
        let earned = i64::from(share) * signed_nanoseconds(spent.min(WINDOW));
        self.credit = (self.credit + earned).clamp(-limit, limit);
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Converts to nanoseconds, limited to an hour so that a multiplication by 100 cannot overflow.
fn signed_nanoseconds(duration: Duration) -> i64 {
    nanoseconds(duration).min(3_600_000_000_000) as i64
}

#[cfg(test)]
mod tests;
