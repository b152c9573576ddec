//! The schedule by which a backup reads its replicas again to verify that the disk still has them:
//! see "Scrubbing" in `docs/design/backup.md`. If the disk has more bytes than can be read in an
//! interval at [`SCRUB_BYTES_PER_SECOND`], a round takes longer.

use super::timing::{SCRUB_AGAIN, SCRUB_BYTES_PER_SECOND};
use std::collections::BTreeSet;
use std::time::Duration;
use types::Instant;
use wire::replica::ReplicaId;

/// The schedule of the reads that verify replicas.
#[derive(Debug, Default)]
pub(super) struct Scrub {
    /// The time between two reads of a replica; `None`: nothing is scrubbed.
    interval: Option<Duration>,
    /// The replicas by the time at which they are due.
    due: BTreeSet<(Instant, ReplicaId)>,
    /// The replica that the disk is reading, with the length in bytes that it must have.
    under_way: Option<(ReplicaId, u32)>,
    /// Earliest time of the next read, by the rate limit.
    not_before: Instant,
}

impl Scrub {
    pub(super) fn every(interval: Option<Duration>) -> Scrub {
        Scrub { interval, ..Scrub::default() }
    }

    /// Schedules a replica that was written or read at `now`. Returns when it is due;
    /// [`Scrub::forget`] needs that time.
    pub(super) fn plan(&mut self, now: Instant, replica: ReplicaId) -> Instant {
        let Some(interval) = self.interval else { return now };
        self.plan_at(now + interval, replica)
    }

    /// Schedules a replica that could not be read for a reason unrelated to its content.
    pub(super) fn plan_again(&mut self, now: Instant, replica: ReplicaId) -> Instant {
        self.plan_at(now + SCRUB_AGAIN, replica)
    }

    fn plan_at(&mut self, at: Instant, replica: ReplicaId) -> Instant {
        self.due.insert((at, replica));
        at
    }

    pub(super) fn forget(&mut self, due: Instant, replica: ReplicaId) {
        self.due.remove(&(due, replica));
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let (at, _) = self.due.first().filter(|_| self.under_way.is_none())?;
        Some(self.not_before.max(*at))
    }

    /// Takes the next replica that is due.
    pub(super) fn take(&mut self, now: Instant) -> Option<ReplicaId> {
        self.next_deadline().filter(|at| *at <= now)?;
        assert!(self.interval.is_some(), "a replica is due although nothing is scrubbed");
        self.due.pop_first().map(|(_, replica)| replica)
    }

    /// Records that the disk has begun to read a replica of `length` bytes.
    pub(super) fn begin(&mut self, now: Instant, replica: ReplicaId, length: u32) {
        assert!(self.under_way.is_none(), "one replica is scrubbed at a time");
        self.under_way = Some((replica, length));
        let pause = u64::from(length) * 1_000_000_000 / SCRUB_BYTES_PER_SECOND;
        self.not_before = now + Duration::from_nanos(pause);
    }

    /// Records that the disk has read this replica. Returns the length that it must have; `None`
    /// if no read of it was under way.
    pub(super) fn end(&mut self, replica: ReplicaId) -> Option<u32> {
        self.under_way.take_if(|(id, _)| *id == replica).map(|(_, length)| length)
    }
}
