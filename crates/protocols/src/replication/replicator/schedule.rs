//! The times at which a replicator has work without an event, computed in one pass over the
//! active segments.
//!
//! Nearly all events change lengths of one segment only. [`ReplicatorSchedule::is_rest_idle`] tells when
//! the other segments need no pass: a server with many heads would otherwise visit all of them for
//! each of its turns.

use super::Replicator;
use crate::replication::replica::Replica;
use crate::replication::segment::SegmentStage;
use crate::replication::silence::LateTimes;
use types::Instant;

/// The next times at which a replicator has work, and its reach.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ReplicatorSchedule {
    /// Time of the next tick.
    pub(super) deadline: Option<Instant>,
    /// Next time at which a backup becomes late.
    pub(super) late_check_at: Option<Instant>,
    /// Time from which each event may concern any segment; `None` if there is none.
    all_from: Option<Instant>,
    /// Result of [`Replicator::reach`].
    pub(super) reach: usize,
}

/// The earliest of some times.
#[derive(Clone, Copy, Debug, Default)]
struct EarliestTime(Option<Instant>);

impl EarliestTime {
    fn add(&mut self, at: Option<Instant>) {
        self.0 = match (self.0, at) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        };
    }
}

impl ReplicatorSchedule {
    /// Returns whether an event that changes lengths of one segment leaves all others as they are.
    pub(super) fn is_rest_idle(&self, now: Instant) -> bool {
        self.all_from.is_none_or(|from| now < from)
    }
}

impl Replicator {
    /// Computes the times of the next work and the reach from the state after an event at `now`.
    pub(super) fn find_schedule(&self, now: Instant) -> ReplicatorSchedule {
        let policy = self.poll_policy();
        let is_standalone = self.settings.is_standalone;
        let uncounted = Some(self.settings.log).filter(|_| !is_standalone);
        let (mut deadline, mut late_check_at, mut all_from) =
            (EarliestTime::default(), EarliestTime::default(), EarliestTime::default());
        let mut reach = None;
        for segment in self.active.iter().map(|id| &self.segments[id]) {
            deadline.add(segment.announce_at);
            deadline.add(segment.review_at);
            for replica in &segment.replicas {
                deadline.add(replica.next_deadline(policy));
                if !is_standalone {
                    all_from.add(replica.suspect_at());
                    let late = self.late_times(replica);
                    all_from.add(late.map(|it| it.spare));
                    late_check_at.add(late.map(|it| it.spare).filter(|at| *at > now));
                    late_check_at.add(late.map(|it| it.needed).filter(|at| *at > now));
                }
            }
            if segment.wants_originals {
                all_from.add(Some(now));
            }
            if segment.stage == SegmentStage::Open && !segment.replicas.is_empty() {
                let placed = segment.placed(uncounted).count();
                reach = Some(reach.map_or(placed, |reach: usize| reach.min(placed)));
            }
        }
        if !self.short.is_empty() {
            deadline.add(self.placement.next_deadline(self.backups_needed));
            deadline.add(self.rests_until());
        }
        // The announcement of a manifest segment may concern the other ones.
        if !self.short.is_empty() || self.silence.awaits_return() || self.is_manifest_log() {
            all_from.add(Some(now));
        }
        deadline.add(self.releases.next_deadline());
        deadline.add(late_check_at.0);
        deadline.add(self.silence.next_deadline(now));
        deadline.add(self.reported.lease);
        all_from.add(deadline.0);
        all_from.add(self.placement.next_deadline(self.backups_needed));
        all_from.add(self.rests_until());
        let reach = reach.unwrap_or_else(|| self.answering_backups());
        let (deadline, late_check_at, all_from) = (deadline.0, late_check_at.0, all_from.0);
        ReplicatorSchedule { deadline, late_check_at, all_from, reach }
    }

    /// Returns the times from which the backup of a replica is late; `None` if nothing is expected
    /// from it, or if it was replaced.
    pub(super) fn late_times(&self, replica: &Replica) -> Option<LateTimes> {
        let since = replica.late_since(self.poll_policy())?;
        let is_silent = self.silence.is_silent(replica.backup);
        (!is_silent).then(|| self.silence.late_times(since))
    }
}
