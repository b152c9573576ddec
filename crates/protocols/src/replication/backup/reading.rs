//! Reads that a backup starts itself. It measures replicas of an earlier process, and it scrubs
//! its own replicas to verify that they still exist.

use super::{Backup, BackupEffect, DiskFollowUp, ReplicaState, ScrubResult, first_of};
use crate::Outbox;
use crate::replication::timing::{READ_AT_LEISURE, READ_IN_HASTE};
use planted::Bug;
use types::{Instant, ServerId};
use wire::replica::ReplicaId;

impl Backup {
    /// Has the disk measure replicas that were found, first those of logs that must be reported.
    pub(super) fn measure(&mut self, now: Instant, out: &mut Outbox<BackupEffect>) {
        let at_once = match self.unreported.is_empty() {
            true => READ_AT_LEISURE,
            false => READ_IN_HASTE,
        };
        while self.measuring < at_once {
            let Some(replica) = self.next_to_measure(now) else { return };
            if let Some(held) = self.replicas.get_mut(&replica) {
                assert!(
                    matches!(held.state, ReplicaState::Found | ReplicaState::NotMeasured),
                    "{replica} is measured once"
                );
                held.state = ReplicaState::Measuring { then: DiskFollowUp::Answer };
                self.measuring += 1;
                out.push(BackupEffect::Measure { replica });
            }
        }
    }

    fn next_to_measure(&mut self, now: Instant) -> Option<ReplicaId> {
        let of_log = |log: &ServerId| {
            let first = first_of(*log);
            self.unmeasured.range(first..).next().filter(|next| next.log == *log).copied()
        };
        let awaited = self.unreported.keys().find_map(of_log);
        let again = if awaited.is_none() { self.retries.begin(now) } else { None };
        let replica = awaited.or(again).or(self.unmeasured.first().copied())?;
        self.unmeasured.remove(&replica);
        Some(replica)
    }

    /// Processes the result of a measurement. `None`: the replica counts as absent.
    pub(super) fn measured(
        &mut self,
        now: Instant,
        replica: ReplicaId,
        state: Option<ReplicaState>,
        out: &mut Outbox<BackupEffect>,
    ) {
        let Some(held) = self.replicas.get_mut(&replica) else { return };
        let ReplicaState::Measuring { then } = held.state else { return };
        assert!(self.measuring > 0, "{replica} was not measured");
        self.measuring -= 1;
        match (then, state) {
            (DiskFollowUp::Free, _) => {
                self.retries.succeeded(replica);
                held.state = ReplicaState::Freeing;
                out.push(BackupEffect::Free { replica });
            }
            (DiskFollowUp::Answer | DiskFollowUp::AnswerAndSync, Some(state)) => {
                held.state = state;
                if state == ReplicaState::NotMeasured {
                    self.retries.failed(now, replica);
                } else if self.retries.succeeded(replica) && self.is_fenced(replica.log) {
                    // The log may have been reported without this replica.
                    self.unreported.entry(replica.log).or_insert(replica);
                }
            }
            (DiskFollowUp::Answer | DiskFollowUp::AnswerAndSync, None) => {
                self.retries.succeeded(replica);
                self.drop(replica);
            }
        }
    }

    /// Has the disk read the next replica that is due. Replicas that are being written or no
    /// longer exist are postponed, and so are those that no living master could make again:
    /// replicas that were found, and replicas of fenced logs.
    pub(super) fn scrub(&mut self, now: Instant, out: &mut Outbox<BackupEffect>) {
        while let Some(replica) = self.scrub.take(now) {
            let is_fenced = self.is_fenced(replica.log);
            let Some(held) = self.replicas.get_mut(&replica) else { continue };
            if let ReplicaState::Written { length, .. } = held.state
                && !held.is_found
                && !is_fenced
            {
                self.scrub.begin(now, replica, length);
                return out.push(BackupEffect::Scrub { replica });
            }
            held.scrub_at = self.scrub.plan(now, replica);
        }
    }

    pub(super) fn scrubbed(
        &mut self,
        now: Instant,
        replica: ReplicaId,
        found: ScrubResult,
        out: &mut Outbox<BackupEffect>,
    ) {
        let Some(wanted) = self.scrub.end(replica) else { return };
        let is_fenced = self.is_fenced(replica.log);
        let Some(held) = self.replicas.get_mut(&replica) else { return };
        let is_bad = match found {
            ScrubResult::Intact(length) => length < wanted,
            ScrubResult::Damaged => true,
            ScrubResult::Unknown => {
                held.scrub_at = self.scrub.plan_again(now, replica);
                return;
            }
        };
        let is_bad = is_bad && !planted::is(Bug::DamageNotReported);
        if is_bad && matches!(held.state, ReplicaState::Writing { .. }) {
            // The disk is writing to the replica at the moment; another read follows.
            held.scrub_at = self.scrub.plan_again(now, replica);
        } else if is_bad && !is_fenced && matches!(held.state, ReplicaState::Written { .. }) {
            held.state = ReplicaState::Failed;
            out.push(BackupEffect::GiveUp { replica });
            held.complain(replica, out);
        } else {
            held.scrub_at = self.scrub.plan(now, replica);
        }
    }
}
