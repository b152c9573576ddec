//! The read lease: the time until which this server may execute operations, because no other
//! server serves its ranges before. The backups of the manifest renew it.

use super::Replication;
use crate::Engine;
use crate::context::Context;
use crate::state::NodeState;
use planted::Bug;
use protocols::replication::timing::LEASE;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use types::Instant;

/// The read lease, readable by all reactors.
#[derive(Default)]
pub(super) struct ReadLease {
    /// Its end, in nanoseconds: operations may run until then.
    until: AtomicU64,
    /// Number of times it ran out before the backups renewed it.
    lapses: AtomicU64,
}

const FENCED: &str = "the cluster has declared this server dead, and other servers serve its \
                      ranges: it was disconnected, or did not respond, for too long";

impl Replication {
    /// Returns whether operations may run: no other server serves the ranges of this one.
    pub fn is_leased(&self, now: Instant) -> bool {
        now.0 < self.lease.until.load(Ordering::Acquire) || planted::is(Bug::ZombieServes)
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
        let before = self.lease.until.swap(until, Ordering::AcqRel);
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

    /// Stops serving, because the coordinator has declared this server dead.
    pub(super) fn fence(&self, node: &NodeState) {
        if !self.is_fenced.swap(true, Ordering::AcqRel) {
            self.lease.until.store(0, Ordering::Release);
            node.begin_anew(FENCED);
        }
    }
}

impl Engine {
    /// Returns whether operations must wait, because another server may serve this one's ranges.
    ///
    /// The clock is read here, after the request was received. A process that was stopped in
    /// between must not serve by an outdated lease.
    #[inline]
    pub fn lacks_lease(&self, now: Instant) -> bool {
        match self.log_master.replication.is_with_others() {
            true => !self.log_master.replication.is_leased(self.time_within_turn(now)),
            false => self.node.is_limited() && self.node.is_overdue(self.time_within_turn(now)),
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
