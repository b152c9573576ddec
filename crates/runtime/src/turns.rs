//! The decisions of a turn, without a clock and without sockets: is background work due, when must
//! a turn stop serving clients, and how to wait when there is nothing to do.
//!
//! **Background.** Whoever runs earns credit for the background: its minimum share of the time
//! spent. A quantum that is run because credit is there spends it; one that is run because nobody
//! else wants the core costs nothing. So on a busy core the background gets its share and at most
//! one quantum more, in any stretch of time; on an idle one it gets everything. Credit and debt
//! are limited to what 10 ms of work earn: neither a past rush nor a past overrun is felt later.
//!
//! **Waiting.** A thread that spins answers about 10 us earlier than one that must be woken, and
//! takes a core for it. Adaptive: spin while the recent pauses were so short that waking costs
//! about as much as spinning through them, and offer the core at every look: the system likes to
//! wake a client on the core of the server that has just answered it, and there it would wait for
//! the end of the spin (p99 of a round trip with two cores for both: 105 us without, 9 us with).

use std::time::Duration;
use types::Instant;

/// How a reactor waits when it has nothing to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Poll {
    /// Spins always: the lowest latency, and a core at 100 %.
    Busy,
    /// Spins while it pays, then blocks.
    #[default]
    Adaptive,
    /// Blocks at once.
    Sleep,
}

/// What to do when there is nothing to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Idle {
    Spin,
    /// Block until several requests are there, or a few microseconds are over.
    Gather,
    Block,
}

/// Over which running time the background's share is kept.
pub(crate) const WINDOW: Duration = Duration::from_millis(10);

/// How long a quantum is meant to last (20 to 50 us): clients are cut off when this much is owed.
const QUANTUM: Duration = Duration::from_micros(30);

/// A turn is not cut shorter than this: below, polling would cost more than serving.
const TURN_MIN: Duration = Duration::from_micros(20);

/// Pauses below this are spun through: about what it costs to block and be woken (10 us until the
/// first instruction, and twice a change of context on both sides).
const SPIN_PAUSE: Duration = Duration::from_micros(50);

/// A pause counts as this at most, so that two long ones end the spinning and a few short ones
/// start it again.
const PAUSE_MAX: Duration = Duration::from_micros(200);

pub(crate) struct Turns {
    poll: Poll,
    /// Threads outnumber cores: whoever spins takes the core from the one it waits for.
    cores_shared: bool,
    /// What the background is owed, in hundredths of a nanosecond; negative: it had more.
    credit: i64,
    /// Average of the recent pauses, each weighing an eighth, in nanoseconds.
    pause: u64,
    /// Since when there has been nothing to do.
    idle_since: Option<Instant>,
}

impl Turns {
    pub(crate) fn new(poll: Poll, cores_shared: bool) -> Turns {
        let pause = nanoseconds(PAUSE_MAX);
        Turns { poll, cores_shared, credit: 0, pause, idle_since: None }
    }

    /// Something other than background work took `spent`.
    pub(crate) fn worked(&mut self, spent: Duration, share: u8) {
        self.earn(spent, share);
    }

    /// A quantum took `spent` because it was due.
    pub(crate) fn ran_due(&mut self, spent: Duration, share: u8) {
        self.credit -= 100 * signed_nanoseconds(spent);
        self.earn(spent, share);
    }

    /// A quantum took `spent` because nobody else wanted the core.
    pub(crate) fn ran_idle(&mut self, spent: Duration) {
        let paid = (self.credit - 100 * signed_nanoseconds(spent)).max(0);
        self.credit = self.credit.min(paid);
    }

    /// There is no background work: nothing is owed to what comes later.
    pub(crate) fn forget_background(&mut self) {
        self.credit = 0;
    }

    /// Whether a quantum is to be run although there is other work.
    pub(crate) fn is_background_due(&self, share: u8) -> bool {
        share >= 100 || self.credit > 0
    }

    /// When to stop serving clients in the turn that begins at `now`, because a quantum is owed.
    /// There is only one quantum per turn: with longer turns the share could not be kept.
    pub(crate) fn serve_until(&self, now: Instant, share: u8) -> Instant {
        let missing = (100 * signed_nanoseconds(QUANTUM) - self.credit).max(0);
        let earned_in = missing / i64::from(share.max(1));
        let earned_in = Duration::from_nanos(u64::try_from(earned_in).unwrap_or(0));
        now + earned_in.clamp(TURN_MIN, WINDOW)
    }

    /// There is nothing to do at `now`: how to wait for something. `is_crowded`: it is to be expected
    /// that several clients ask in the next few microseconds, and they can be waited for together.
    pub(crate) fn idle(&mut self, now: Instant, is_crowded: bool) -> Idle {
        let since = *self.idle_since.get_or_insert(now);
        match self.poll {
            Poll::Busy => Idle::Spin,
            Poll::Adaptive | Poll::Sleep if is_crowded => Idle::Gather,
            Poll::Sleep => Idle::Block,
            Poll::Adaptive => {
                let pays = self.pause < nanoseconds(SPIN_PAUSE) && !self.cores_shared;
                let recently = now.since(since) < 2 * SPIN_PAUSE;
                if pays && recently { Idle::Spin } else { Idle::Block }
            }
        }
    }

    /// Something came at `now`.
    pub(crate) fn arrived(&mut self, now: Instant) {
        if let Some(since) = self.idle_since.take() {
            let pause = nanoseconds(now.since(since).min(PAUSE_MAX));
            self.pause = (7 * self.pause + pause) / 8;
        }
    }

    /// Whether the core is to be offered to others between two looks of a spin.
    pub(crate) fn yields_while_spinning(&self) -> bool {
        match self.poll {
            Poll::Busy => false,
            Poll::Adaptive | Poll::Sleep => true,
        }
    }

    /// Whether the core is to be offered to others after a quantum.
    pub(crate) fn yields(&self) -> bool {
        self.cores_shared
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

/// Limited to an hour, so that a hundred times as much is far from the end of the number.
fn signed_nanoseconds(duration: Duration) -> i64 {
    nanoseconds(duration).min(3_600_000_000_000) as i64
}

#[cfg(test)]
mod tests;
