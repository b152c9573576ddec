//! When a backup reads its replicas again, to find out whether the disk still has them.
//!
//! The master has the bytes in memory, so what a disk has lost can be made again, as long as it is
//! noticed before the master dies. Each replica is read once per interval, one at a time, and no
//! faster than [`SCRUB_BYTES_PER_SECOND`]: with more on the disk than that reads in an interval, it
//! takes longer.

use super::timing::{SCRUB_AGAIN, SCRUB_BYTES_PER_SECOND};
use std::collections::BTreeSet;
use std::time::Duration;
use types::Instant;
use wire::replica::ReplicaId;

/// Schedule of the reads that verify replicas.
#[derive(Debug, Default)]
pub(super) struct Scrub {
    /// `None`: nothing is scrubbed.
    interval: Option<Duration>,
    /// When each replica is due.
    due: BTreeSet<(Instant, ReplicaId)>,
    /// The replica that the disk is reading, and how much of it must be there.
    under_way: Option<(ReplicaId, u32)>,
    /// Before this nothing more is read.
    not_before: Instant,
}

impl Scrub {
    pub(super) fn every(interval: Option<Duration>) -> Scrub {
        Scrub { interval, ..Scrub::default() }
    }

    /// Plans a replica that was written or read at `now`. Returns when it is due, which
    /// [`Scrub::forget`] is to be told.
    pub(super) fn plan(&mut self, now: Instant, replica: ReplicaId) -> Instant {
        let Some(interval) = self.interval else { return now };
        self.plan_at(now + interval, replica)
    }

    /// Plans a replica that could not be read for a reason that says nothing about it.
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
        self.due.pop_first().map(|(_, replica)| replica)
    }

    /// The disk reads a replica that has so many bytes.
    pub(super) fn begin(&mut self, now: Instant, replica: ReplicaId, length: u32) {
        assert!(self.under_way.is_none(), "one replica is scrubbed at a time");
        self.under_way = Some((replica, length));
        let pause = u64::from(length) * 1_000_000_000 / SCRUB_BYTES_PER_SECOND;
        self.not_before = now + Duration::from_nanos(pause);
    }

    /// The disk has read this replica: how much of it must be there. `None`: nobody has asked for
    /// it.
    pub(super) fn end(&mut self, replica: ReplicaId) -> Option<u32> {
        self.under_way.take_if(|(id, _)| *id == replica).map(|(_, length)| length)
    }
}
