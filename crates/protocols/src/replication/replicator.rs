//! The master's side of replication. Every reactor has a replicator for the segments that it
//! writes; one more replicates the segments of the manifest log. A data segment counts once the
//! manifest lists it; a manifest segment counts once the coordinator knows it. A data segment
//! that has lost a replica is copied; the manifest continues in another segment.
//!
//! The machine handles lengths only. Its driver makes the pieces, and from the same segment and
//! the same lengths it always makes the same bytes.
//!
//! **Invariant:** the acknowledged length of a segment only grows. The acknowledged bytes are on
//! every backup that ever held one of its originals, or the manifest records that the segment is
//! closed.
//! **Invariant:** at most one piece is in flight to each replica.

mod backup_counts;
mod lost_replicas;
mod own_disk;
mod schedule;

pub use backup_counts::BackupCounts;

use super::events::{Piece, ReplicatorEffect, ReplicatorEvent, ReplicatorSettings};
use super::lease::Lease;
use super::placement::{BackupLoad, Misplaced, Placement};
use super::quorum::Quorum;
use super::releases::Releases;
use super::replica::{Replica, ReplicaPollPolicy};
use super::replica_counts::ReplicaCounts;
use super::segment::{ReplicatedSegment, SegmentStage};
use super::silence::SilenceDetector;
use super::suspicions::Suspicions;
use super::timing::{AGAIN, BEAT, COPIES_MAX, COPIES_REST, COPIES_REST_MAX, SHORT_MAX};
use crate::Outbox;
use planted::Bug;
use schedule::ReplicatorSchedule;
use std::collections::{BTreeMap, BTreeSet};
use types::{Instant, SegmentId, ServerId};
use wire::peer::{AppendRefusal, AppendResult, Appended};
use wire::replica::{ReplicaEpoch, ReplicaId, ReplicaKind};

/// The master's side of replication, for the segments of one writer.
#[derive(Clone, Debug)]
pub struct Replicator {
    settings: ReplicatorSettings,
    segments: BTreeMap<SegmentId, ReplicatedSegment>,
    /// Segments that need work now or may need it soon.
    active: BTreeSet<SegmentId>,
    /// Segments with fewer replicas than wanted.
    short: BTreeSet<SegmentId>,
    /// Set if copies may be possible that were not at the last pass over the segments that lack
    /// replicas: a backup may take replicas that none could take before, a segment has lost one, or
    /// the pass has ended at [`COPIES_MAX`]. Such a pass visits the whole log if too few servers
    /// live, so nothing else may cause one.
    may_copy: bool,
    /// Time of the last death, if recent. Meanwhile only copies are made that a reply waits for.
    rests_since: Option<Instant>,
    /// Set while a recovery replay that clients wait for runs on this server.
    is_replaying: bool,
    /// Number of answering backups that a write needs.
    backups_needed: usize,
    placement: Placement,
    /// Number of replicas at each backup, over all segments.
    replica_counts: ReplicaCounts,
    releases: Releases,
    suspicions: Suspicions,
    silence: SilenceDetector,
    /// Times of the next work, as computed after the last event.
    schedule: ReplicatorSchedule,
    /// The read lease; used by the replicator of the manifest only.
    lease: Lease,
    reported: ReportedValues,
    /// Backups that have asked about replicas, with the time of their first question.
    askers: BTreeMap<ServerId, Instant>,
    /// Set once a backup has fenced the log: nothing will be acknowledged any more.
    is_fenced: bool,
}

/// The segments that an event may concern.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EventScope {
    All,
    /// The event has changed only lengths of this segment or of one of its replicas.
    Lengths(SegmentId),
}

/// The values that the driver was told last.
#[derive(Clone, Debug, Default)]
struct ReportedValues {
    lease: Option<Instant>,
    short: usize,
    misplaced: Misplaced,
}

/// The kind of replica that a backup is chosen for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReplicaRole {
    Original,
    Copy,
}

impl Replicator {
    /// Creates a replicator without segments.
    pub fn new(settings: ReplicatorSettings) -> Replicator {
        assert!(settings.replicas > 0, "a log without replicas needs no replicator");
        Replicator {
            settings,
            segments: BTreeMap::new(),
            active: BTreeSet::new(),
            short: BTreeSet::new(),
            may_copy: false,
            rests_since: None,
            is_replaying: false,
            backups_needed: 1,
            placement: Placement::new(settings.is_standalone),
            replica_counts: ReplicaCounts::default(),
            releases: Releases::default(),
            suspicions: Suspicions::default(),
            silence: SilenceDetector::default(),
            schedule: ReplicatorSchedule::default(),
            lease: Lease::default(),
            reported: ReportedValues::default(),
            askers: BTreeMap::new(),
            is_fenced: false,
        }
    }

    /// Processes one event and appends the resulting effects to `out`.
    pub fn handle(
        &mut self,
        now: Instant,
        event: ReplicatorEvent,
        out: &mut Outbox<ReplicatorEffect>,
    ) {
        if self.is_fenced {
            return;
        }
        self.forgive_own_pause(now);
        let mut scope = EventScope::All;
        match event {
            ReplicatorEvent::Candidates { own, servers } => {
                self.may_copy = true;
                let is_more = self.placement.set(own, servers);
                self.review_own_replicas();
                if is_more {
                    // A manifest segment may have fewer replicas than it could have now.
                    let active: Vec<SegmentId> = self.active.iter().copied().collect();
                    for id in active {
                        self.update_short(id);
                    }
                    self.review_all_at(now);
                }
            }
            ReplicatorEvent::WritesNeed { backups } => self.backups_needed = backups.max(1),
            ReplicatorEvent::Opened { segment, length, random } => {
                let quorum = Quorum::of_segment(segment).filter(|_| self.is_manifest_log());
                self.open(segment, ReplicatedSegment::new(length, random, quorum));
            }
            ReplicatorEvent::Adopted { segment, epoch, length } => {
                self.adopt(segment, epoch, length);
            }
            ReplicatorEvent::Appended { segment, length } => {
                self.open_segment(segment).append(length);
                scope = EventScope::Lengths(segment);
            }
            ReplicatorEvent::Closed { segment } => {
                self.open_segment(segment).enter(SegmentStage::Closed);
            }
            ReplicatorEvent::Registered { segment } => self.registered(segment),
            ReplicatorEvent::RegistrationSynced { segment } => {
                let segment = self.segments.get_mut(&segment);
                segment.into_iter().for_each(|segment| segment.is_registration_synced = true);
            }
            ReplicatorEvent::Sealed { segment } => self.sealed(segment),
            ReplicatorEvent::Leaving { segment } => self.evict(segment),
            ReplicatorEvent::Dropped { segment } => self.remove_segment(segment),
            ReplicatorEvent::Answered { backup, answer } => {
                scope = self.answered(now, backup, answer, out);
            }
            ReplicatorEvent::Heard { backup } => self.silence.record_answer(now, backup),
            ReplicatorEvent::Released { backup, replicas } => {
                self.releases.released(backup, &replicas);
            }
            ReplicatorEvent::Needed { backup, replicas } => {
                self.answer_needed(now, backup, replicas, out);
            }
            ReplicatorEvent::ConnectionLost { backup } => self.connection_lost(now, backup),
            ReplicatorEvent::Died { backup } => {
                self.rests_since = Some(now);
                self.died(backup, out);
            }
            ReplicatorEvent::Replaying { is_on } => self.is_replaying = is_on,
            ReplicatorEvent::Tick => {}
        }
        self.reconcile(now, scope, out);
        self.check();
    }

    /// Returns when [`ReplicatorEvent::Tick`] is due, if no other event comes first.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.schedule.deadline.filter(|_| !self.is_fenced)
    }

    /// Returns the value of the last [`ReplicatorEvent::Replaying`].
    pub fn is_replaying(&self) -> bool {
        self.is_replaying
    }

    /// Returns whether a backup must keep its replica, as far as the state of the other replicas
    /// is known. Replicas from another server's disk are kept too while the segment is not sealed
    /// or has too few replicas elsewhere.
    pub fn is_needed(&self, backup: ServerId, replica: ReplicaId) -> bool {
        let Some(segment) = self.segments.get(&replica.segment) else { return false };
        let is_spare =
            segment.stage >= SegmentStage::Sealed && !self.short.contains(&replica.segment);
        !is_spare || segment.needs(backup, replica.epoch)
    }

    /// Returns the last segment that is registered.
    pub fn last_registered(&self) -> Option<SegmentId> {
        let mut registered =
            self.segments.iter().rev().filter(|(_, segment)| segment.is_registered);
        registered.next().map(|(id, _)| *id)
    }

    /// Returns how many other servers will receive the next write: the number for the open segment
    /// with the fewest backups or, if none is open, the number that a new segment would get. For
    /// a server without a cluster its own disk counts instead.
    pub fn reach(&self) -> usize {
        self.schedule.reach
    }

    /// Returns whether replication has nothing to make up for: no segment lacks replicas, no backup
    /// is silent or was slow within the last minute, and nothing is recovered here.
    pub fn is_calm(&self) -> bool {
        let is_whole = self.short.is_empty() && self.rests_since.is_none() && !self.is_replaying;
        is_whole && !self.is_fenced && self.silence.is_calm()
    }

    /// Returns whether this replicator manages the segment.
    pub fn contains(&self, segment: SegmentId) -> bool {
        self.segments.contains_key(&segment)
    }
}

impl Replicator {
    /// Checks the invariants that relate the segments to the values derived from them.
    fn check(&self) {
        if self.is_fenced {
            return;
        }
        assert_eq!(self.reported.short, self.short.len(), "the driver knows other numbers");
        assert!(self.active.len() <= self.segments.len(), "an active segment does not exist");
        assert!(self.short.len() <= self.segments.len(), "a removed segment lacks replicas");
        debug_assert!(
            self.active.union(&self.short).all(|id| self.segments.contains_key(id)),
            "a removed segment is active or lacks replicas: {self:?}"
        );
        debug_assert_eq!(
            self.replica_counts.total(),
            self.segments.values().map(|segment| segment.replicas.len()).sum::<usize>(),
            "a replica is counted twice or not at all: {self:?}"
        );
        debug_assert!(
            self.is_manifest_log() || self.lease.until().is_none(),
            "only the manifest log has a lease"
        );
    }

    fn is_manifest_log(&self) -> bool {
        self.settings.kind == ReplicaKind::Manifest
    }

    /// Returns whether operations of this server depend on answers to this replicator.
    fn has_lease(&self) -> bool {
        self.is_manifest_log() && !self.settings.is_standalone
    }

    fn poll_policy(&self) -> ReplicaPollPolicy {
        if self.has_lease() && !planted::is(Bug::HeartbeatForgotten) {
            ReplicaPollPolicy { interval: BEAT, is_steady: true }
        } else {
            ReplicaPollPolicy { interval: AGAIN, is_steady: false }
        }
    }

    /// Returns the quorum of a manifest segment that would begin now.
    pub fn quorum(&self) -> Quorum {
        if self.keeps_own_log() {
            return Quorum::OWN_DISK;
        }
        Quorum::of_log(self.settings.replicas, self.placement.others_than(&BTreeSet::new()))
    }

    /// Returns how many replicas the segment should have. For a manifest segment this may exceed
    /// its own quorum, if servers have joined since it began.
    fn wanted(&self, segment: &ReplicatedSegment) -> usize {
        match segment.quorum {
            Some(quorum) => quorum.replicas.max(self.quorum().replicas),
            None => self.settings.replicas,
        }
    }

    fn id(&self, segment: SegmentId, epoch: ReplicaEpoch) -> ReplicaId {
        ReplicaId { log: self.settings.log, segment, epoch }
    }

    fn open(&mut self, id: SegmentId, segment: ReplicatedSegment) {
        let before = self.segments.insert(id, segment);
        assert!(before.is_none(), "{id} is opened twice");
        self.active.insert(id);
        assert!(!self.short.contains(&id), "{id} lacked replicas before it was opened");
    }

    /// Returns a segment that its writer has not closed yet.
    fn open_segment(&mut self, id: SegmentId) -> &mut ReplicatedSegment {
        let segment = self.segments.get_mut(&id).filter(|segment| !segment.is_closed());
        segment.unwrap_or_else(|| panic!("{id} is written, but is not open"))
    }

    fn registered(&mut self, id: SegmentId) {
        // A late answer of the coordinator may refer to a segment that has been superseded.
        let Some(segment) = self.segments.get_mut(&id) else { return };
        segment.is_registered = true;
        segment.announce_at = None;
        if self.settings.kind == ReplicaKind::Manifest {
            // The coordinator has stored the segment's id durably.
            segment.is_registration_synced = true;
            let later = self.segments.split_off(&id);
            let earlier: Vec<SegmentId> = self.segments.keys().copied().collect();
            self.segments.extend(later);
            earlier.into_iter().for_each(|earlier| self.remove_segment(earlier));
            self.lease.recorded(id);
        }
    }

    fn sealed(&mut self, id: SegmentId) {
        let Some(segment) = self.segments.get_mut(&id) else { return };
        assert!(
            segment.stage >= SegmentStage::Replicated,
            "{id} is sealed, but {:?}",
            segment.stage
        );
        if segment.stage == SegmentStage::Replicated {
            segment.enter(SegmentStage::Sealed);
            self.active.insert(id);
        }
        let former = std::mem::take(&mut segment.former);
        self.release(id, former.into_iter().map(|backup| (backup, ReplicaEpoch::default())));
    }

    fn release(
        &mut self,
        segment: SegmentId,
        replicas: impl Iterator<Item = (ServerId, ReplicaEpoch)>,
    ) {
        for (backup, epoch) in replicas {
            let replica = self.id(segment, epoch);
            self.releases.add(backup, replica);
        }
    }

    fn evict(&mut self, id: SegmentId) {
        let Some(segment) = self.segments.get_mut(&id) else { return };
        assert!(segment.is_closed(), "{id} is removed while it is written");
        segment.enter(SegmentStage::Evicted);
        let of = segment.extent();
        let is_unfinished = |it: &mut Replica| !it.is_original() && !it.is_complete(of);
        let unfinished: Vec<_> = segment.replicas.extract_if(.., is_unfinished).collect();
        unfinished.iter().for_each(|it| self.replica_counts.remove(it.backup));
        self.release(id, unfinished.iter().map(|it| (it.backup, it.epoch)));
        self.active.remove(&id);
        self.short.remove(&id);
    }

    /// Removes a segment that no recovery will need again, and releases its replicas.
    fn remove_segment(&mut self, id: SegmentId) {
        let Some(segment) = self.segments.remove(&id) else { return };
        let former = segment.former.iter().map(|backup| (*backup, ReplicaEpoch::default()));
        let replicas = segment.replicas.iter().map(|it| (it.backup, it.epoch));
        segment.replicas.iter().for_each(|it| self.replica_counts.remove(it.backup));
        self.release(id, former.chain(replicas));
        self.active.remove(&id);
        self.short.remove(&id);
    }

    /// Handles an answer of a backup. Returns the segments that it may concern.
    fn answered(
        &mut self,
        now: Instant,
        backup: ServerId,
        answer: Appended,
        out: &mut Outbox<ReplicatorEffect>,
    ) -> EventScope {
        let ReplicaId { log, segment: id, epoch } = answer.replica;
        self.silence.record_answer(now, backup);
        let segment = self.segments.get_mut(&id).filter(|_| log == self.settings.log);
        let Some(replica) = segment.and_then(|it| it.replica_mut(backup, epoch)) else {
            return EventScope::All;
        };
        match answer.result {
            AppendResult::Has { length, synced } => {
                let is_new = !replica.is_open();
                if replica.answered(now, answer.sent, length, synced).is_err() {
                    self.replica_failed(now, id, backup, out);
                    return EventScope::All;
                }
                self.lease.confirm(id, backup, answer.sent);
                if !is_new {
                    return EventScope::Lengths(id);
                }
                self.placement.record_success(backup);
            }
            AppendResult::Refused(AppendRefusal::Full)
                if replica.is_original() && !replica.is_open() =>
            {
                self.refused(now, id, backup);
            }
            AppendResult::Refused(AppendRefusal::Full | AppendRefusal::Failed) => {
                self.replica_failed(now, id, backup, out);
            }
            AppendResult::Refused(AppendRefusal::Fenced) => {
                self.is_fenced = true;
                out.push(ReplicatorEffect::Fenced);
            }
        }
        EventScope::All
    }

    fn answer_needed(
        &mut self,
        now: Instant,
        backup: ServerId,
        replicas: Vec<ReplicaId>,
        out: &mut Outbox<ReplicatorEffect>,
    ) {
        let since = *self.askers.entry(backup).or_insert(now);
        let is_needless = |replica: &ReplicaId| {
            replica.log == self.settings.log && !self.must_keep(backup, since, *replica)
        };
        let needless: Vec<ReplicaId> = replicas.into_iter().filter(is_needless).collect();
        if !needless.is_empty() {
            out.push(ReplicatorEffect::Release { backup, replicas: needless });
        }
    }

    /// Returns whether a backup that asked for the first time at `since` must keep its replica.
    /// The backup may run on the very disk on which the master believes the segment to be, if the
    /// master has not heard of a server's death. All other holders of the segment must therefore
    /// have answered since then; those that have not are asked.
    fn must_keep(&mut self, backup: ServerId, since: Instant, replica: ReplicaId) -> bool {
        if self.is_needed(backup, replica) {
            return true;
        }
        let id = replica.segment;
        let Some(segment) = self.segments.get_mut(&id) else { return false };
        let is_silent =
            |it: &&mut Replica| it.backup != backup && it.confirmed().is_none_or(|at| at < since);
        let mut silent = segment.replicas.iter_mut().filter(is_silent).peekable();
        let has_silent = silent.peek().is_some();
        silent.for_each(|replica| replica.ask(since));
        if has_silent {
            self.active.insert(id);
        }
        has_silent
    }

    fn connection_lost(&mut self, now: Instant, backup: ServerId) {
        self.releases.connection_lost(now, backup);
        for id in &self.active {
            let replicas = self.segments.get_mut(id).map(|segment| &mut segment.replicas);
            let lost = replicas.into_iter().flatten().filter(|it| it.backup == backup);
            lost.for_each(|replica| replica.connection_lost(now));
        }
    }

    /// Recomputes whether the segment has fewer replicas than wanted, and returns that.
    fn update_short(&mut self, id: SegmentId) -> bool {
        let segment = &self.segments[&id];
        let count = segment.count(self.uncounted());
        let is_short = count < self.wanted(segment) && segment.stage != SegmentStage::Evicted;
        if is_short {
            self.short.insert(id);
        } else {
            self.short.remove(&id);
        }
        is_short
    }
}

/// Steps that run after every event, whatever it was.
impl Replicator {
    fn reconcile(&mut self, now: Instant, scope: EventScope, out: &mut Outbox<ReplicatorEffect>) {
        if self.is_fenced {
            return;
        }
        match scope {
            EventScope::Lengths(id) if self.schedule.is_rest_idle(now) => {
                if self.active.contains(&id) {
                    self.reconcile_segment(now, id, out);
                }
                self.report(now, out);
                self.assert_rest_was_idle(now);
            }
            EventScope::Lengths(_) | EventScope::All => {
                self.reconcile_all(now, out);
                self.report(now, out);
            }
        }
    }

    fn reconcile_all(&mut self, now: Instant, out: &mut Outbox<ReplicatorEffect>) {
        if self.placement.forgive(now, self.backups_needed) {
            self.may_copy = true;
        }
        if self.rests_until().is_some_and(|until| until <= now) {
            self.rests_since = None;
        }
        // A server without a cluster has no backup with which to replace its own disk.
        if !self.settings.is_standalone {
            self.replace_silent_backups(now, out);
        }
        self.place_originals(out);
        self.start_copies();
        let active: Vec<SegmentId> = self.active.iter().copied().collect();
        for id in active {
            self.reconcile_segment(now, id, out);
        }
        if !self.settings.is_standalone {
            for backup in self.silence.probes(now) {
                out.push(ReplicatorEffect::Probe { backup });
            }
        }
    }

    /// Sends releases and reports changed values, and computes the times of the next work.
    fn report(&mut self, now: Instant, out: &mut Outbox<ReplicatorEffect>) {
        for (backup, replicas) in self.releases.send(now) {
            out.push(ReplicatorEffect::Release { backup, replicas });
        }
        if self.is_manifest_log() {
            self.announce(now, out);
        }
        if self.reported.short != self.short.len() {
            self.reported.short = self.short.len();
            out.push(ReplicatorEffect::UnderReplicated { segments: self.reported.short });
        }
        if self.reported.misplaced != self.placement.misplaced() {
            self.reported.misplaced = self.placement.misplaced();
            out.push(ReplicatorEffect::Misplaced(self.reported.misplaced));
        }
        self.schedule = self.find_schedule(now);
    }

    /// Asserts in debug builds that a pass over all segments has no effect.
    fn assert_rest_was_idle(&self, now: Instant) {
        if cfg!(debug_assertions) {
            let (mut twin, mut effects) = (self.clone(), Outbox::new());
            twin.reconcile_all(now, &mut effects);
            twin.report(now, &mut effects);
            assert!(effects.is_empty(), "another segment had work: {effects:?} of {self:?}");
            assert_eq!(
                twin.schedule, self.schedule,
                "a pass over all segments changes the schedule"
            );
        }
    }

    fn place_originals(&mut self, out: &mut Outbox<ReplicatorEffect>) {
        let is_wanted = |id: &SegmentId| self.segments[id].wants_originals;
        let wanting: Vec<SegmentId> = self.active.iter().copied().filter(is_wanted).collect();
        for id in wanting {
            if self.is_for_another_disk(id) {
                let segment = self.segments.get_mut(&id);
                segment.into_iter().for_each(|segment| segment.request_close(id, out));
                continue;
            }
            let quorum = self.segments[&id].quorum;
            let planned = quorum.map_or(self.settings.replicas, |quorum| quorum.replicas);
            while self.segments[&id].replicas.len() < planned
                && let Some(backup) = self.choose(id, ReplicaRole::Original)
            {
                let segment = self.segments.get_mut(&id);
                segment.into_iter().for_each(|it| it.add_original(backup, self.settings.promise));
                self.replica_counts.add(backup);
            }
            let Some(segment) = self.segments.get_mut(&id) else { continue };
            segment.wants_originals = segment.replicas.is_empty();
            // A backup that has refused the segment once can be asked for copies only.
            let is_refused = segment.wants_originals && !segment.former.is_empty();
            let has_others = self.placement.has_other_than(&segment.former);
            if is_refused && !has_others {
                segment.record_loss();
                segment.request_close(id, out);
            }
            // With too few backups for its quorum the segment ends; the next quorum is smaller.
            let lacks = segment.quorum.is_some_and(|it| segment.replicas.len() < it.needed);
            if lacks && !segment.replicas.is_empty() {
                segment.request_close(id, out);
            }
        }
    }

    /// Chooses a backup that has no replica of the segment. A backup that has refused the segment
    /// is not asked for another original, because a refusal is final.
    fn choose(&mut self, id: SegmentId, what: ReplicaRole) -> Option<ServerId> {
        let mut others = self.segments[&id].holders();
        match what {
            ReplicaRole::Original => others.extend(&self.segments[&id].former),
            ReplicaRole::Copy => {}
        }
        // With few servers this is the usual case, and the loads of all backups are of no use.
        if !self.placement.has_other_than(&others) {
            return None;
        }
        let load = |(backup, all): (ServerId, usize)| (backup, BackupLoad { unfinished: 0, all });
        let mut loads: BTreeMap<ServerId, BackupLoad> =
            self.replica_counts.iter().map(load).collect();
        for segment in self.active.iter().map(|id| &self.segments[id]) {
            let of = segment.extent();
            for replica in segment.replicas.iter().filter(|it| !it.is_complete(of)) {
                loads.entry(replica.backup).or_default().unfinished += 1;
            }
        }
        let segment = self.segments.get_mut(&id)?;
        self.placement.choose(&others, &loads, &mut segment.draws)
    }

    /// Returns when copies that no reply waits for are made again.
    fn rests_until(&self) -> Option<Instant> {
        let rest = if self.is_replaying { COPIES_REST_MAX } else { COPIES_REST };
        self.rests_since.map(|since| since + rest)
    }

    /// Begins to copy closed segments that lack replicas, first those that replies wait for.
    fn start_copies(&mut self) {
        let is_copied = |id: &&SegmentId| self.segments[id].is_copied();
        let mut count = self.active.iter().filter(is_copied).count();
        let is_idle = planted::is(Bug::LostReplicaNotCopied);
        if self.is_manifest_log() || count >= COPIES_MAX || is_idle {
            return;
        }
        let lacking = |id: &SegmentId| self.short.contains(id) && self.segments[id].is_closed();
        let mut waiting: Vec<SegmentId> = self.active.iter().copied().filter(lacking).collect();
        let may_copy = self.may_copy && self.rests_since.is_none();
        if may_copy {
            waiting.extend(self.short.difference(&self.active));
        }
        for id in waiting {
            if count >= COPIES_MAX {
                return;
            }
            count += usize::from(self.start_copy(id));
        }
        self.may_copy &= !may_copy;
    }

    fn start_copy(&mut self, id: SegmentId) -> bool {
        #[cfg(test)]
        tests::COPIES_TRIED.set(tests::COPIES_TRIED.get() + 1);
        let segment = &self.segments[&id];
        let is_placed = segment.placed(self.uncounted()).count() >= self.settings.replicas;
        if is_placed || segment.is_copied() || segment.wants_originals {
            return false;
        }
        assert!(segment.stage < SegmentStage::Evicted, "{id} has left memory");
        let Some(backup) = self.choose(id, ReplicaRole::Copy) else { return false };
        if let Some(segment) = self.segments.get_mut(&id) {
            segment.add_copy(backup, self.settings.promise);
        }
        self.replica_counts.add(backup);
        self.active.insert(id);
        true
    }

    fn reconcile_segment(
        &mut self,
        now: Instant,
        id: SegmentId,
        out: &mut Outbox<ReplicatorEffect>,
    ) {
        let (policy, is_manifest_log) = (self.poll_policy(), self.is_manifest_log());
        let (log, promise) = (self.settings.log, self.settings.promise);
        let Some(segment) = self.segments.get_mut(&id) else { return };
        if !is_manifest_log && !segment.is_registration_requested && segment.is_begun() {
            segment.is_registration_requested = true;
            out.push(ReplicatorEffect::Register { segment: id });
        }
        if !is_manifest_log && planted::is(Bug::DataBeforeOpen) {
            segment.is_registered = true;
        }
        let before = segment.reached();
        let reached = segment.reach(promise);
        assert!(
            before.acknowledged <= reached.acknowledged && before.synced <= reached.synced,
            "acknowledged bytes of {id} are lost: {before:?}, now {reached:?}"
        );
        assert!(
            before.held <= reached.held,
            "held bytes of {id} are lost: {before:?}, now {reached:?}"
        );
        if reached.acknowledged > before.acknowledged {
            let length = reached.acknowledged;
            out.push(ReplicatorEffect::Acknowledged { segment: id, length });
        }
        if !is_manifest_log && reached.held > before.held.max(reached.acknowledged) {
            out.push(ReplicatorEffect::Held { segment: id, length: reached.held });
        }
        if reached.synced > before.synced {
            out.push(ReplicatorEffect::Synced { segment: id, length: reached.synced });
        }
        let of = segment.extent();
        for replica in &mut segment.replicas {
            let is_own = replica.backup == log;
            if !is_own && replica.is_suspect(now) && self.suspicions.is_news(now, replica.backup) {
                out.push(ReplicatorEffect::Suspect { backup: replica.backup });
            }
            if let Some(next) = replica.send(now, of, policy) {
                let Replica { backup, epoch, .. } = *replica;
                let id = ReplicaId { log, segment: id, epoch };
                let piece = Piece {
                    replica: id,
                    from: next.from,
                    to: next.to,
                    synced: next.synced,
                    is_last: next.is_last,
                    sent: now,
                };
                out.push(ReplicatorEffect::Send { backup, piece });
            }
        }
        let is_reviewed = segment.review_at.is_some();
        if segment.is_complete() && !is_manifest_log {
            self.finish(id, out);
        }
        if self.update_short(id) || is_reviewed {
            self.review(now, id, out);
        }
    }

    /// Schedules an immediate review of all segments with too few replicas, because a backup may
    /// now take replicas that none could take before.
    fn review_all_at(&mut self, now: Instant) {
        for id in &self.short {
            let segment = self.segments.get_mut(id);
            segment.into_iter().for_each(|segment| segment.review_at = Some(now));
        }
    }

    /// Ends an open segment that has had too few replicas for long while another backup could be
    /// asked. An open segment cannot gain replicas.
    fn review(&mut self, now: Instant, id: SegmentId, out: &mut Outbox<ReplicatorEffect>) {
        let latest = now + SHORT_MAX;
        let review_at =
            self.placement.next_deadline(self.backups_needed).map_or(latest, |at| at.min(latest));
        let Some(segment) = self.segments.get_mut(&id) else { return };
        if segment.stage > SegmentStage::Open || !self.short.contains(&id) {
            segment.review_at = None;
        } else if *segment.review_at.get_or_insert(review_at) <= now {
            segment.review_at = Some(review_at);
            if !segment.replicas.is_empty() && self.placement.has_other_than(&segment.holders()) {
                segment.review_at = None;
                segment.request_close(id, out);
            }
        }
    }

    /// Reports a closed segment that is complete everywhere, and deactivates a sealed one.
    fn finish(&mut self, id: SegmentId, out: &mut Outbox<ReplicatorEffect>) {
        let uncounted = self.uncounted();
        let Some(segment) = self.segments.get_mut(&id).filter(|it| it.is_complete()) else {
            return;
        };
        let could_have_more = segment.placed(uncounted).count() < self.settings.replicas
            && self.placement.has_other_than(&segment.holders());
        if segment.stage == SegmentStage::Closed && !could_have_more {
            segment.enter(SegmentStage::Replicated);
            if !segment.is_registration_requested {
                segment.is_registration_requested = true;
                out.push(ReplicatorEffect::Register { segment: id });
            }
            out.push(ReplicatorEffect::Seal { segment: id });
        }
        if segment.stage >= SegmentStage::Sealed {
            self.active.remove(&id);
            // One copy of a segment is made at a time; this was not the last one.
            self.may_copy |= could_have_more;
            self.release_own(id);
        }
    }

    /// Reports the end of the lease first, and then announces manifest segments to the
    /// coordinator: from the announcement on the lease depends on the announced segment too.
    fn announce(&mut self, now: Instant, out: &mut Outbox<ReplicatorEffect>) {
        assert!(self.is_manifest_log(), "the coordinator knows segments of the manifest log only");
        let promise = self.settings.promise;
        let mut ready = Vec::new();
        for (id, segment) in &mut self.segments {
            let is_due = segment.announce_at.is_none_or(|at| at <= now);
            // The coordinator may know an announced segment even if the segment has lost replicas
            // since. The replicator therefore announces it until the coordinator has recorded it
            // or a later one. It also counts towards the limit of living manifest segments.
            let may_be_known = segment.announce_at.is_some() && !segment.is_registered;
            if !may_be_known && !segment.can_be_announced(promise) {
                segment.announce_at = None;
            } else if is_due {
                if segment.announce_at.is_none() {
                    let backups = segment.replicas.iter().map(|it| (it.backup, it.confirmed()));
                    self.lease.require(*id, segment.needed(), backups);
                }
                segment.announce_at = Some(now + AGAIN);
                ready.push(*id);
            }
        }
        let until = self.lease.until().filter(|until| *until > now && self.has_lease());
        if self.reported.lease != until {
            self.reported.lease = until;
            out.push(ReplicatorEffect::Lease { until });
        }
        for segment in ready {
            out.push(ReplicatorEffect::Announce { segment });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::events::Promise;
    use super::super::placement::{BackupCandidate, Rack};
    use super::*;
    use std::cell::Cell;

    thread_local! {
        /// Number of segments that this test has tried to copy.
        pub(super) static COPIES_TRIED: Cell<u64> = const { Cell::new(0) };
    }

    const SEGMENT: SegmentId = SegmentId(1);
    const OPENED: ReplicatorEvent =
        ReplicatorEvent::Opened { segment: SEGMENT, length: 8, random: 0 };

    fn handle(events: impl IntoIterator<Item = ReplicatorEvent>) {
        let (kind, promise) = (ReplicaKind::Data, Promise::Taken);
        let (log, is_standalone) = (ServerId(1), false);
        let settings = ReplicatorSettings { log, kind, replicas: 2, promise, is_standalone };
        let mut replicator = Replicator::new(settings);
        for event in events {
            replicator.handle(Instant(0), event, &mut Outbox::new());
        }
    }

    /// Passes an event to a replicator whose only backup and whose manifest answer at once.
    fn handle_with_answers(replicator: &mut Replicator, event: ReplicatorEvent) {
        let mut out = Outbox::new();
        replicator.handle(Instant(0), event, &mut out);
        let effects: Vec<ReplicatorEffect> = out.drain().collect();
        for effect in effects {
            let answer = match effect {
                ReplicatorEffect::Send { backup, piece } => {
                    let result = AppendResult::Has { length: piece.to, synced: piece.to };
                    let Piece { replica, sent, .. } = piece;
                    let answer = Appended { replica, sent, result };
                    ReplicatorEvent::Answered { backup, answer }
                }
                ReplicatorEffect::Register { segment } => ReplicatorEvent::Registered { segment },
                ReplicatorEffect::Seal { segment } => ReplicatorEvent::Sealed { segment },
                _ => continue,
            };
            handle_with_answers(replicator, answer);
        }
    }

    #[test]
    fn a_log_with_too_few_backups_is_not_looked_through_with_each_segment() {
        let (kind, promise) = (ReplicaKind::Data, Promise::Taken);
        let (log, is_standalone) = (ServerId(1), false);
        let settings = ReplicatorSettings { log, kind, replicas: 2, promise, is_standalone };
        let mut replicator = Replicator::new(settings);
        let backup = |server, rack| BackupCandidate { server, rack, is_usable: true };
        let one = backup(ServerId(2), Rack(2));
        let candidates = |servers| ReplicatorEvent::Candidates { own: Rack(1), servers };
        handle_with_answers(&mut replicator, candidates(vec![one]));
        let mut tried = Vec::new();
        for segment in (1..=100).map(SegmentId) {
            let before = COPIES_TRIED.get();
            let random = segment.0;
            for event in [
                ReplicatorEvent::Opened { segment, length: 8, random },
                ReplicatorEvent::Appended { segment, length: 80 },
                ReplicatorEvent::Closed { segment },
            ] {
                handle_with_answers(&mut replicator, event);
            }
            assert!(!replicator.active.contains(&segment), "{segment} is sealed");
            tried.push(COPIES_TRIED.get() - before);
        }
        handle_with_answers(&mut replicator, ReplicatorEvent::Dropped { segment: SegmentId(1) });
        assert_eq!(replicator.short.len(), 99, "every segment lacks a replica");
        assert!(tried[99] <= tried[9], "attempts to copy another segment: {tried:?}");
        handle_with_answers(&mut replicator, candidates(vec![one, backup(ServerId(3), Rack(3))]));
        assert!(replicator.short.is_empty(), "the new server has a copy of each segment");
    }

    #[test]
    #[should_panic(expected = "seg1 is opened twice")]
    fn a_segment_is_opened_once() {
        handle([OPENED, OPENED]);
    }

    #[test]
    #[should_panic(expected = "seg1 is sealed, but Open")]
    fn only_a_replicated_segment_is_sealed() {
        handle([OPENED, ReplicatorEvent::Sealed { segment: SEGMENT }]);
    }

    #[test]
    #[should_panic(expected = "seg1 is removed while it is written")]
    fn an_open_segment_stays_in_memory() {
        handle([OPENED, ReplicatorEvent::Leaving { segment: SEGMENT }]);
    }
}
