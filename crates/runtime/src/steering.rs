//! Steering of background work by the latency of clients: the bound of what a reactor's clients
//! see, the share that a target allows, and the limit of idle time that background work uses.
//! `docs/design/closed-loop.md` explains it. Nothing here reads a clock.

mod arrivals;
mod controller;
mod delays;

use crate::turns::WINDOW;
use arrivals::UnservedClients;
use controller::ShareController;
use std::time::Duration;
use types::{BackgroundDemand, Instant, LatencyTarget};

/// Shortest wait after which the requests of a turn count as arrived during the wait. A poll that
/// returns sooner has found them at the socket, where they may have been since the poll before.
const WAIT_MIN: Duration = Duration::from_micros(20);

/// The steering of one reactor.
#[derive(Default)]
pub(crate) struct Steering {
    /// The service's demand at the end of the last turn.
    pub(crate) demand: BackgroundDemand,
    /// Return of the last poll.
    polled: Instant,
    /// Begin of the wait with which this turn's poll begins.
    waits_since: Option<Instant>,
    steered: Option<SteeredShare>,
}

/// State while there is a latency target.
struct SteeredShare {
    target: LatencyTarget,
    controller: ShareController,
    unserved: UnservedClients,
    /// Arrival of the newly readable connections of this turn, at the earliest.
    since: Instant,
    allowance: Allowance,
}

impl Steering {
    /// Returns whether there is a latency target.
    pub(crate) fn is_on(&self) -> bool {
        self.steered.is_some()
    }

    /// Records that the reactor begins to wait for events.
    pub(crate) fn begin_wait(&mut self, now: Instant) {
        self.waits_since = Some(now);
    }

    /// Begins a turn whose poll has returned at `now`. The controller decides if an interval has
    /// ended. `wake_up` is the mean time for which this thread waits for a processor at a
    /// wake-up. Returns share and p99 if they have changed: percent, and zeros without a target.
    pub(crate) fn begin_turn(&mut self, now: Instant, wake_up: Duration) -> Option<(u8, Duration)> {
        let polled = std::mem::replace(&mut self.polled, now);
        let waits_since = self.waits_since.take();
        let Some(target) = self.demand.target else {
            return self.steered.take().map(|_| (0, Duration::ZERO));
        };
        let mut is_changed = self.steered.is_none();
        let steered = self.steered.get_or_insert_with(|| SteeredShare::new(now, target));
        steered.target = target;
        steered.since = match waits_since {
            Some(began) if now.since(began) >= WAIT_MIN => now - wake_up,
            Some(_) | None => polled,
        };
        steered.allowance.earn(now, self.demand.share.max(steered.controller.share()));
        is_changed |= steered.controller.step(now, target);
        is_changed.then(|| (steered.controller.share(), steered.controller.p99()))
    }

    /// Returns the share of the running time that background work must get, in percent.
    pub(crate) fn share(&self) -> u8 {
        let steered = self.steered.as_ref().map_or(0, |it| it.controller.share());
        self.demand.share.max(steered)
    }

    /// Records that the output of a turn was sent at `sent`. The turn has read `served` client
    /// connections and left `left` readable ones.
    #[inline]
    pub(crate) fn answered(&mut self, sent: Instant, served: usize, left: usize) {
        let Some(steered) = &mut self.steered else { return };
        let oldest = steered.unserved.after_turn(steered.since, served, left);
        if served > 0 {
            let count = u32::try_from(served).unwrap_or(u32::MAX);
            steered.controller.answered(sent.since(oldest), count, steered.target);
        }
    }

    /// Records a quantum.
    pub(crate) fn ran(&mut self, spent: Duration) {
        let share = self.share();
        if let Some(steered) = &mut self.steered {
            steered.allowance.spend(spent, share);
        }
    }

    /// Returns the time until which background work must leave idle time unused; `None` if it may
    /// run.
    pub(crate) fn rests_until(&self, now: Instant) -> Option<Instant> {
        let is_limited = self.demand.target.is_some() && !self.demand.is_urgent;
        let steered = self.steered.as_ref().filter(|_| is_limited)?;
        steered.allowance.rests_until(now, self.share())
    }
}

impl SteeredShare {
    fn new(now: Instant, target: LatencyTarget) -> SteeredShare {
        SteeredShare {
            target,
            controller: ShareController::new(now, target),
            unserved: UnservedClients::default(),
            since: now,
            allowance: Allowance { left: 0, at: now },
        }
    }
}

/// The time that background work may still use, idle time included.
#[derive(Clone, Copy, Debug)]
struct Allowance {
    /// In hundredths of a nanosecond; negative after an overrun. At most that of [`WINDOW`] in both
    /// directions.
    left: i64,
    /// Time up to which it has grown.
    at: Instant,
}

impl Allowance {
    fn earn(&mut self, now: Instant, share: u8) {
        self.left = self.left_at(now, share);
        self.at = now;
    }

    fn spend(&mut self, spent: Duration, share: u8) {
        let limit = limit(share);
        self.left = (self.left - 100 * bounded_nanoseconds(spent)).max(-limit);
    }

    fn left_at(&self, now: Instant, share: u8) -> i64 {
        let earned = i64::from(share) * bounded_nanoseconds(now.since(self.at));
        (self.left + earned).min(limit(share))
    }

    fn rests_until(&self, now: Instant, share: u8) -> Option<Instant> {
        assert!(share > 0, "every target leaves a share");
        let left = self.left_at(now, share);
        if share >= 100 || left > 0 {
            return None;
        }
        let missing = (1 - left).unsigned_abs().div_ceil(u64::from(share));
        Some(now + Duration::from_nanos(missing))
    }
}

fn limit(share: u8) -> i64 {
    i64::from(share) * bounded_nanoseconds(WINDOW)
}

/// Converts to nanoseconds, limited to a second: longer times change no allowance.
fn bounded_nanoseconds(duration: Duration) -> i64 {
    duration.as_nanos().min(1_000_000_000) as i64
}

#[cfg(test)]
mod tests;
