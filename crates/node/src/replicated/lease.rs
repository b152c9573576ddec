//! The read lease: the time until which this server may execute operations, because no other
//! server serves its ranges before. The backups of the manifest renew it.
//!
//! Operations wait for a lease that has lapsed. If it is not renewed for [`LAPSE_MAX`], others
//! probably serve the ranges of this server, and operations are refused: the client is to ask
//! another server.

use super::Replication;
use crate::Engine;
use crate::context::Context;
use crate::state::NodeState;
use planted::Bug;
use protocols::replication::timing::LEASE;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use types::Instant;

/// The read lease, readable by all reactors.
#[derive(Default)]
pub(super) struct ReadLease {
    /// Its end, in nanoseconds: operations may run until then.
    until: AtomicU64,
    /// The last end of it that is known, in nanoseconds; 0 before the first lease.
    last_until: AtomicU64,
    /// Set once the operations that waited for its renewal were woken, to be refused.
    is_given_up: AtomicBool,
    /// Number of times it ran out before the backups renewed it.
    lapses: AtomicU64,
}

/// Time for which operations wait for the renewal of a lapsed lease. Other servers serve the ranges
/// of a server that is cut off or was paused within a third of a second.
const LAPSE_MAX: Duration = Duration::from_secs(1);

/// Right of a server to execute operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseState {
    /// Operations may run.
    Valid,
    /// Operations must wait: another server may serve the ranges of this one.
    Lapsed,
    /// The lease has lapsed for so long that operations are refused.
    Lost,
}

impl ReadLease {
    /// Sets the end of the lease. Returns the previous end; 0: there was none.
    fn set(&self, until: u64, now: Instant) -> u64 {
        let before = self.until.swap(until, Ordering::AcqRel);
        let last = if until > 0 { until } else { before.min(now.0) };
        if last > 0 {
            self.last_until.store(last, Ordering::Release);
        }
        if until > 0 {
            self.is_given_up.store(false, Ordering::Release);
        }
        before
    }

    fn is_valid(&self, now: Instant) -> bool {
        now.0 < self.until.load(Ordering::Acquire) || planted::is(Bug::ZombieServes)
    }

    fn state(&self, now: Instant) -> LeaseState {
        if self.is_valid(now) {
            LeaseState::Valid
        } else if self.lost_at().is_some_and(|at| at <= now) {
            LeaseState::Lost
        } else {
            LeaseState::Lapsed
        }
    }

    /// Returns the time at which the lease is lost unless it is renewed.
    fn lost_at(&self) -> Option<Instant> {
        let last = self.last_until.load(Ordering::Acquire);
        (last > 0 && !planted::is(Bug::LapsedLeaseWaits)).then(|| Instant(last) + LAPSE_MAX)
    }
}

const FENCED: &str = "the cluster has declared this server dead, and other servers serve its \
                      ranges: it was disconnected, or did not respond, for too long";

impl Replication {
    /// Returns whether operations may run: no other server serves the ranges of this one.
    pub fn is_leased(&self, now: Instant) -> bool {
        self.lease.is_valid(now)
    }

    /// Returns whether the lease has lapsed for so long that operations are refused.
    pub fn has_lost_lease(&self, now: Instant) -> bool {
        self.lease.state(now) == LeaseState::Lost
    }

    /// Returns the remaining time of the lease; zero if it has run out.
    pub fn lease_left(&self, now: Instant) -> Duration {
        Duration::from_nanos(self.lease.until.load(Ordering::Acquire).saturating_sub(now.0))
    }

    /// Returns the number of times the lease ran out since the server began to serve.
    pub fn lease_lapses(&self) -> u64 {
        self.lease.lapses.load(Ordering::Relaxed)
    }

    /// Sets the end of the read lease.
    pub(super) fn set_lease(&self, until: Option<Instant>, context: &Context<'_>) {
        let until = until.map_or(0, |until| until.0);
        let before = self.lease.set(until, context.now);
        if before > 0 && (before < context.now.0 || until == 0) {
            self.lease.lapses.fetch_add(1, Ordering::Relaxed);
        }
        if before == 0 && until > 0 {
            context.node.serves_again();
        } else if until > before && context.live.strict_reads {
            // On every reactor, replies may wait for this heartbeat.
            context.node.wake_all();
        }
    }

    /// Returns the time at which the waiting operations are to be refused, unless the lease is
    /// renewed before.
    pub(super) fn lease_deadline(&self) -> Option<Instant> {
        let is_given_up = self.lease.is_given_up.load(Ordering::Acquire);
        self.lease.lost_at().filter(|_| !is_given_up && self.is_with_others())
    }

    /// Wakes the operations that wait for the lease, which is lost. They are refused then.
    pub(super) fn give_up_lease(&self, node: &NodeState) {
        if !self.lease.is_given_up.swap(true, Ordering::AcqRel) {
            tracing::warn!("no backup of the manifest renews the lease: operations are refused");
            node.serves_again();
        }
    }

    /// Stops serving, because the coordinator has declared this server dead.
    pub(super) fn fence(&self, node: &NodeState) {
        if !self.is_fenced.swap(true, Ordering::AcqRel) {
            self.lease.until.store(0, Ordering::Release);
            node.begin_anew(FENCED);
        }
    }
}

impl Engine {
    /// Returns whether operations may run, must wait, or are refused, because another server may
    /// serve this one's ranges.
    ///
    /// The clock is read here, after the request was received. A process that was stopped in
    /// between must not serve by an outdated lease.
    #[inline]
    pub fn lease(&self, now: Instant) -> LeaseState {
        let replication = &*self.log_master.replication;
        if replication.is_with_others() {
            return replication.lease.state(self.time_within_turn(now));
        }
        match self.node.is_limited() && self.node.is_overdue(self.time_within_turn(now)) {
            true => LeaseState::Lapsed,
            false => LeaseState::Valid,
        }
    }

    /// Returns whether replies about data wait for a confirmation of the lease.
    #[inline]
    fn is_strict(&self) -> bool {
        self.turn.live.strict_reads && self.log_master.replication.is_with_others()
    }

    /// Records that a request that reads or changes data was admitted.
    #[inline]
    pub fn note_data(&self) {
        if self.is_strict() {
            self.gating.has_data.set(true);
        }
    }

    /// Returns the time after the execution of all requests since the last call. Their replies
    /// must wait for a heartbeat sent after that time. `None`: no reply has to wait.
    #[inline]
    pub fn take_data(&self, now: Instant) -> Option<Instant> {
        (self.gating.has_data.get() && self.gating.has_data.replace(false))
            .then(|| self.time_within_turn(now))
    }

    /// Returns whether a heartbeat that was sent after `executed` has been acknowledged. If so,
    /// no other server served this one's ranges before that heartbeat was sent.
    pub fn is_confirmed(&self, executed: Instant) -> bool {
        let until = self.lease_until().unwrap_or(0);
        until > executed.0.saturating_add(LEASE.as_nanos() as u64)
    }

    /// Returns the end of the lease, in nanoseconds, which rises with every acknowledged
    /// heartbeat. Returns `None` if replies do not wait for it.
    pub fn lease_until(&self) -> Option<u64> {
        self.is_strict().then(|| self.log_master.replication.lease.until.load(Ordering::Acquire))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_that_is_not_renewed_is_lost_after_a_while() {
        let lease = ReadLease::default();
        // A server that starts has had no lease yet: operations wait, however long it takes.
        assert_eq!(lease.state(Instant(1) + LAPSE_MAX * 9), LeaseState::Lapsed);
        let until = Instant(5_000);
        assert_eq!(lease.set(until.0, Instant(1_000)), 0);
        assert_eq!(lease.state(Instant(4_999)), LeaseState::Valid);
        assert_eq!(lease.state(until), LeaseState::Lapsed);
        assert_eq!(lease.state(until + LAPSE_MAX), LeaseState::Lost);
        lease.set((until + LAPSE_MAX * 2).0, until + LAPSE_MAX);
        assert_eq!(lease.state(until + LAPSE_MAX), LeaseState::Valid);
    }

    #[test]
    fn a_lease_that_is_withdrawn_counts_from_then_on() {
        let lease = ReadLease::default();
        lease.set(5_000, Instant(1_000));
        assert_eq!(lease.set(0, Instant(2_000)), 5_000);
        // Withdrawn again: nothing changes.
        lease.set(0, Instant(3_000));
        assert_eq!(lease.lost_at(), Some(Instant(2_000) + LAPSE_MAX));
    }
}
