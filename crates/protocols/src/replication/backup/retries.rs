//! Replicas of an earlier process that the disk has failed to measure. One at a time is tried
//! again, after a pause; when it is measured, the disk works again and the next one follows at
//! once. So a disk that fails for all replicas is not asked more often than for one.

use crate::replication::timing::MEASURE_AGAIN;
use std::collections::VecDeque;
use types::Instant;
use wire::replica::ReplicaId;

/// The replicas that are to be measured again.
#[derive(Debug, Default)]
pub(super) struct Retries {
    /// The one that failed first is tried first.
    waiting: VecDeque<ReplicaId>,
    /// Earliest time of the next attempt.
    not_before: Instant,
    /// The replica that the disk is measuring again.
    under_way: Option<ReplicaId>,
}

impl Retries {
    /// Returns the number of replicas that wait for another attempt.
    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Records that the disk has failed to measure a replica.
    pub(super) fn failed(&mut self, now: Instant, replica: ReplicaId) {
        if self.end(replica) || self.waiting.is_empty() {
            self.not_before = now + MEASURE_AGAIN;
        }
        debug_assert!(!self.waiting.contains(&replica), "{replica} has failed twice");
        self.waiting.push_back(replica);
    }

    /// Records that the disk has read a replica. Returns whether an earlier attempt had failed.
    pub(super) fn succeeded(&mut self, replica: ReplicaId) -> bool {
        debug_assert!(!self.waiting.contains(&replica), "{replica} waits and is measured");
        let is_retry = self.end(replica);
        if is_retry {
            self.not_before = Instant::default();
        }
        is_retry
    }

    fn end(&mut self, replica: ReplicaId) -> bool {
        self.under_way.take_if(|under_way| *under_way == replica).is_some()
    }

    /// Removes a replica that is not needed any more.
    pub(super) fn remove(&mut self, replica: ReplicaId) {
        self.waiting.retain(|waiting| *waiting != replica);
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let is_due = self.under_way.is_none() && !self.waiting.is_empty();
        is_due.then_some(self.not_before)
    }

    /// Begins the next attempt, if it is due. Returns its replica.
    pub(super) fn begin(&mut self, now: Instant) -> Option<ReplicaId> {
        self.next_deadline().filter(|at| *at <= now)?;
        assert!(self.under_way.is_none(), "two replicas are measured again");
        self.under_way = self.waiting.pop_front();
        self.under_way
    }
}
