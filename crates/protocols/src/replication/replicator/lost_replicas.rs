//! Lost replicas: the backup refuses the replica, gives it up, is silent, or dies.

use super::Replicator;
use crate::Outbox;
use crate::replication::events::ReplicatorEffect;
use crate::replication::replica::Replica;
use crate::replication::segment::{ReplicatedSegment, SegmentStage};
use crate::replication::silence::LateTimes;
use crate::replication::timing::{BEAT, SILENT_LATE_LOOK};
use planted::Bug;
use std::collections::BTreeSet;
use types::{Instant, SegmentId, ServerId};

/// The way in which a replica was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LossCause {
    /// The backup's server died.
    Died,
    /// The backup takes no more bytes for the replica.
    Failed,
}

/// The backups that are late.
struct LateBackups {
    late: BTreeSet<ServerId>,
    /// Set if some backup would be late, but is tolerated for longer because too few are left
    /// without it.
    lacks_others: bool,
}

impl Replicator {
    /// Handles a refusal. The backup holds nothing of the segment and remembers the refusal, so
    /// another backup takes its place as if the first had never been asked.
    pub(super) fn refused(&mut self, now: Instant, id: SegmentId, backup: ServerId) {
        self.placement.record_refusal(now, backup);
        let Some(segment) = self.segments.get_mut(&id) else { return };
        if segment.remove(backup).is_some() {
            self.replica_counts.remove(backup);
        }
        segment.former.push(backup);
        segment.wants_originals = true;
    }

    /// Handles a backup that takes no more bytes for its replica of the segment.
    pub(super) fn replica_failed(
        &mut self,
        now: Instant,
        id: SegmentId,
        backup: ServerId,
        out: &mut Outbox<ReplicatorEffect>,
    ) {
        self.placement.record_refusal(now, backup);
        self.record_loss(id, backup, LossCause::Failed, out);
    }

    fn record_loss(
        &mut self,
        id: SegmentId,
        backup: ServerId,
        loss: LossCause,
        out: &mut Outbox<ReplicatorEffect>,
    ) {
        let Some(segment) = self.segments.get_mut(&id) else { return };
        let Some(replica) = segment.remove(backup) else { return };
        self.replica_counts.remove(backup);
        let may_count = replica.is_original() && segment.stage < SegmentStage::Sealed;
        if may_count {
            segment.record_loss();
            segment.request_close(id, out);
        }
        match loss {
            LossCause::Died => {}
            LossCause::Failed if may_count => segment.former.push(backup),
            LossCause::Failed => self.release(id, [(backup, replica.epoch)].into_iter()),
        }
        self.update_short(id);
        self.may_copy = true;
    }

    pub(super) fn died(&mut self, backup: ServerId, out: &mut Outbox<ReplicatorEffect>) {
        self.askers.remove(&backup);
        self.placement.record_death(backup);
        self.releases.record_death(backup);
        self.suspicions.record_death(backup);
        self.silence.record_death(backup);
        let holds =
            |segment: &ReplicatedSegment| segment.replicas.iter().any(|it| it.backup == backup);
        let held: Vec<SegmentId> =
            self.segments.iter().filter(|(_, segment)| holds(segment)).map(|(id, _)| *id).collect();
        if planted::is(Bug::DeadBackupKept) {
            return;
        }
        held.into_iter().for_each(|id| self.record_loss(id, backup, LossCause::Died, out));
        self.segments.values_mut().for_each(|it| it.former.retain(|former| *former != backup));
    }
}

/// Handling of backups that do not answer.
impl Replicator {
    /// Grants every backup one more beat if this master was suspended until now: it has not read
    /// the answers that arrived meanwhile.
    pub(super) fn forgive_own_pause(&mut self, now: Instant) {
        if self.schedule.late_check_at.is_none_or(|at| now.since(at) <= SILENT_LATE_LOOK) {
            return;
        }
        self.silence.excuse(now + BEAT);
        let since = now + BEAT - self.silence.limit();
        for id in &self.active {
            let segment = self.segments.get_mut(id).into_iter();
            segment.flat_map(|it| &mut it.replicas).for_each(|replica| replica.excuse(since));
        }
    }

    /// Returns the backups that are late. While others are enough for all replicas, the usual limit
    /// counts, even if it was raised: it rises for backups that are needed.
    fn late_backups(&self, now: Instant, replicas: usize) -> LateBackups {
        let all = self.active.iter().flat_map(|id| &self.segments[id].replicas);
        let times = all.filter_map(|it| Some((it.backup, self.late_times(it)?)));
        let late: Vec<(ServerId, LateTimes)> = times.filter(|it| it.1.spare <= now).collect();
        let spare: BTreeSet<ServerId> = late.iter().map(|it| it.0).collect();
        if spare.is_empty() || self.placement.others_than(&spare) >= replicas {
            return LateBackups { late: spare, lacks_others: false };
        }
        let needed = late.iter().filter(|it| it.1.needed <= now).map(|it| it.0);
        LateBackups { late: needed.collect(), lacks_others: true }
    }

    /// Replaces a backup that does not answer, and readmits backups that answer again.
    pub(super) fn replace_silent_backups(
        &mut self,
        now: Instant,
        out: &mut Outbox<ReplicatorEffect>,
    ) {
        let is_manifest = self.is_manifest_log();
        let replicas = if is_manifest { self.quorum().needed } else { self.settings.replicas };
        let LateBackups { mut late, lacks_others } = self.late_backups(now, replicas);
        let needed = self.backups_needed;
        let has_enough = || self.placement.others_than(&late) >= needed;
        let back = self.silence.readmit(now, lacks_others, has_enough);
        for backup in &back {
            self.placement.set_silent(*backup, false);
            self.may_copy = true;
            self.review_all_at(now);
        }
        // A backup that is used again may still be late: then no other one is replaced in its favor.
        if !back.is_empty() {
            LateBackups { late, .. } = self.late_backups(now, replicas);
        }
        let others = || self.placement.others_than(&late);
        let silent = self.silence.backup_to_replace(now, &late, replicas, others);
        let Some(backup) = silent else { return };
        out.push(ReplicatorEffect::Silent { backup });
        self.placement.set_silent(backup, true);
        let hangs = |id: &SegmentId| self.segments[id].hangs_on(backup);
        let hanging: Vec<SegmentId> = self.active.iter().copied().filter(hangs).collect();
        for id in hanging {
            if !self.is_manifest_log() {
                self.record_loss(id, backup, LossCause::Failed, out);
            } else if self.is_better_restarted(id) {
                let segment = self.segments.get_mut(&id);
                segment.into_iter().for_each(|segment| segment.request_close(id, out));
            }
        }
    }

    /// Returns whether a new manifest segment on answering backups would be better than this one:
    /// too few of this one's backups answer, or as many others answer as this one has replicas.
    fn is_better_restarted(&self, id: SegmentId) -> bool {
        let segment = &self.segments[&id];
        let answers = |it: &&Replica| !self.silence.is_silent(it.backup);
        let answering = segment.replicas.iter().filter(answers).count();
        let lacks_quorum = answering < segment.needed();
        lacks_quorum || self.quorum().replicas >= segment.replicas.len()
    }
}
