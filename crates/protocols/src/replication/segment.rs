//! The master's state of one segment: its stage, its replicas, and its acknowledged length.
//!
//! **Invariant:** while the manifest lists the segment as open, every backup that ever held an
//! original has all acknowledged bytes. Bytes appended after a loss are therefore not acknowledged
//! before the manifest records the close.
//! **Invariant:** copies never count for the acknowledged length.

use super::events::{Promise, ReplicatorEffect};
use super::placement::Draws;
use super::quorum::Quorum;
use super::replica::{Replica, SegmentExtent};
use crate::Outbox;
use planted::Bug;
use types::{Instant, SegmentId, ServerId};
use wire::replica::ReplicaEpoch;

/// The state of one segment at its master.
#[derive(Clone, Debug)]
pub(super) struct ReplicatedSegment {
    pub(super) stage: SegmentStage,
    length: u32,
    /// Length after the first append (of a manifest segment: of the snapshot).
    first: u32,
    /// Set once the driver was asked to register the segment in the manifest.
    pub(super) is_registration_requested: bool,
    /// Set once the manifest (for a manifest segment: the coordinator) has registered it.
    pub(super) is_registered: bool,
    /// Set once that entry is synced: no synced byte survives a loss of power before.
    pub(super) is_registration_synced: bool,
    /// Set after the loss of an original: no acknowledgments until the manifest has the close.
    has_loss: bool,
    /// Set while the segment needs its first backups, or a replacement for one that refused.
    pub(super) wants_originals: bool,
    pub(super) replicas: Vec<Replica>,
    /// Backups that were asked for an original and hold none that counts. Each must remember the
    /// refusal or loss until the close is in the manifest, so that a late message cannot create
    /// an original there.
    pub(super) former: Vec<ServerId>,
    acknowledged: u32,
    /// Length that all replicas have that are left, at least the acknowledged length.
    held: u32,
    synced: u32,
    /// For a manifest segment: time of the next announcement to the coordinator.
    pub(super) announce_at: Option<Instant>,
    /// While the segment is open with too few replicas: time at which to check for other backups.
    pub(super) review_at: Option<Instant>,
    pub(super) draws: Draws,
    epochs: u32,
    /// The quorum encoded in the id of a manifest segment.
    pub(super) quorum: Option<Quorum>,
}

/// A stage in the life of a segment at its master.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum SegmentStage {
    Open,
    /// The driver was asked to close the segment.
    Closing,
    /// The writer appends nothing more.
    Closed,
    /// All backups have the whole segment, and the driver was told to record the close.
    Replicated,
    /// The close is synced in the manifest: the segment is sealed.
    Sealed,
    /// The segment's memory is being reused, so nothing more can be sent.
    Evicted,
}

/// The acknowledged, held and synced lengths of a segment, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reached {
    pub(super) acknowledged: u32,
    pub(super) held: u32,
    pub(super) synced: u32,
}

impl ReplicatedSegment {
    pub(super) fn new(length: u32, random: u64, quorum: Option<Quorum>) -> ReplicatedSegment {
        ReplicatedSegment {
            stage: SegmentStage::Open,
            length,
            first: length,
            is_registration_requested: false,
            is_registered: false,
            is_registration_synced: false,
            has_loss: false,
            wants_originals: true,
            replicas: Vec::new(),
            former: Vec::new(),
            acknowledged: 0,
            held: 0,
            synced: 0,
            announce_at: None,
            review_at: None,
            draws: Draws::new(random),
            epochs: 0,
            quorum,
        }
    }

    /// Returns a closed segment of an earlier process, whose only replica is complete.
    pub(super) fn adopted(
        own: ServerId,
        epoch: ReplicaEpoch,
        length: u32,
        quorum: Option<Quorum>,
    ) -> ReplicatedSegment {
        ReplicatedSegment {
            stage: SegmentStage::Replicated,
            is_registration_requested: true,
            is_registered: true,
            is_registration_synced: true,
            wants_originals: false,
            replicas: vec![Replica::adopted(own, epoch, length)],
            acknowledged: length,
            held: length,
            synced: length,
            epochs: epoch.0,
            ..ReplicatedSegment::new(length, 0, quorum)
        }
    }

    pub(super) fn extent(&self) -> SegmentExtent {
        SegmentExtent { length: self.length, is_closed: self.is_closed() }
    }

    pub(super) fn is_closed(&self) -> bool {
        self.stage >= SegmentStage::Closed
    }

    pub(super) fn append(&mut self, length: u32) {
        assert!(!self.is_closed(), "a closed segment must not grow");
        assert!(length >= self.length, "a segment must not shrink to {length}");
        self.length = length;
        if self.first == 0 {
            self.first = length;
        }
    }

    /// Moves the segment on to a later stage.
    pub(super) fn enter(&mut self, stage: SegmentStage) {
        assert!(self.stage <= stage, "a segment goes back from {:?} to {stage:?}", self.stage);
        self.stage = stage;
    }

    /// Asks the writer to close the segment, if it is open.
    pub(super) fn request_close(&mut self, id: SegmentId, out: &mut Outbox<ReplicatorEffect>) {
        if self.stage == SegmentStage::Open {
            self.enter(SegmentStage::Closing);
            out.push(ReplicatorEffect::Close { segment: id });
        }
    }

    pub(super) fn add_original(&mut self, backup: ServerId, promise: Promise) {
        assert!(!self.former.contains(&backup), "{backup} has refused the segment");
        self.assert_no_replica(backup);
        self.replicas.push(Replica::new(backup, ReplicaEpoch::default(), promise));
    }

    pub(super) fn add_copy(&mut self, backup: ServerId, promise: Promise) {
        assert!(self.is_closed(), "only a closed segment is copied, not an open one");
        self.assert_no_replica(backup);
        self.epochs += 1;
        self.replicas.push(Replica::new(backup, ReplicaEpoch(self.epochs), promise));
    }

    fn assert_no_replica(&self, backup: ServerId) {
        let has_none = self.replicas.iter().all(|replica| replica.backup != backup);
        assert!(has_none, "{backup} has a replica of the segment already");
    }

    pub(super) fn remove(&mut self, backup: ServerId) -> Option<Replica> {
        let at = self.replicas.iter().position(|replica| replica.backup == backup)?;
        Some(self.replicas.remove(at))
    }

    /// Returns whether this backup holds an incomplete replica: more bytes are to follow, or some
    /// are not acknowledged.
    pub(super) fn hangs_on(&self, backup: ServerId) -> bool {
        let of = self.extent();
        let is_unfinished = |it: &Replica| it.backup == backup && !it.is_complete(of);
        self.replicas.iter().any(is_unfinished)
    }

    pub(super) fn replica_mut(
        &mut self,
        backup: ServerId,
        epoch: ReplicaEpoch,
    ) -> Option<&mut Replica> {
        let is_it = |it: &&mut Replica| it.backup == backup && it.epoch == epoch;
        self.replicas.iter_mut().find(is_it)
    }

    /// Returns whether this backup has, or had, a replica of this epoch that it must remember.
    pub(super) fn needs(&self, backup: ServerId, epoch: ReplicaEpoch) -> bool {
        let is_it = |it: &Replica| it.backup == backup && it.epoch == epoch;
        let is_former = epoch == ReplicaEpoch::default() && self.former.contains(&backup);
        is_former || self.replicas.iter().any(is_it)
    }

    /// Records the loss of an original.
    pub(super) fn record_loss(&mut self) {
        self.has_loss = true;
        self.wants_originals = false;
    }

    pub(super) fn holders(&self) -> Vec<ServerId> {
        self.replicas.iter().map(|replica| replica.backup).collect()
    }

    /// Counts the replicas that count now or will count without copying, except those of `less`.
    pub(super) fn count(&self, less: Option<ServerId>) -> usize {
        let of = self.extent();
        let counts = |it: &&Replica| it.is_original() || it.is_complete(of);
        self.placed(less).filter(counts).count()
    }

    /// Returns the replicas that exist or are being made, except those of `less`.
    pub(super) fn placed(&self, less: Option<ServerId>) -> impl Iterator<Item = &Replica> {
        self.replicas.iter().filter(move |it| Some(it.backup) != less)
    }

    pub(super) fn is_copied(&self) -> bool {
        self.count(None) < self.replicas.len()
    }

    /// Returns whether every replica has the whole closed segment.
    pub(super) fn is_complete(&self) -> bool {
        let of = self.extent();
        let is_hasty = of.is_closed && planted::is(Bug::SealedBeforeReplicated);
        !self.replicas.is_empty() && self.replicas.iter().all(|it| it.is_complete(of) || is_hasty)
    }

    /// Returns whether every backup that is left has begun its original. Without one the segment is
    /// registered once it has been copied.
    pub(super) fn is_begun(&self) -> bool {
        let mut originals = self.replicas.iter().filter(|it| it.is_original()).peekable();
        originals.peek().is_some() && originals.all(Replica::is_open)
    }

    /// Returns how many originals must have a byte before it is acknowledged.
    pub(super) fn needed(&self) -> usize {
        self.quorum.map_or(self.replicas.len(), |quorum| quorum.needed)
    }

    /// Returns whether the coordinator may be told of this manifest segment: its quorum has the
    /// snapshot. After a loss another segment takes its place.
    pub(super) fn can_be_announced(&self, promise: Promise) -> bool {
        let reached = self.common(promise);
        !self.is_registered && !self.has_loss && self.first > 0 && reached >= self.first
    }

    /// Returns the length that all originals have; for a manifest segment, the length that its
    /// quorum has.
    fn common(&self, promise: Promise) -> u32 {
        let amount = |replica: &Replica| match promise {
            Promise::Taken => replica.has(),
            Promise::Synced => replica.synced(),
        };
        let originals = self.replicas.iter().filter(|it| it.is_original()).map(amount);
        let Some(Quorum { needed, .. }) = self.quorum else { return originals.min().unwrap_or(0) };
        let mut amounts: Vec<u32> = originals.collect();
        amounts.sort_unstable_by(|one, other| other.cmp(one));
        amounts.get(needed - 1).copied().unwrap_or(0)
    }

    /// Updates the acknowledged and synced lengths and returns them. A manifest segment advances
    /// even after a loss and before the coordinator knows it; the driver decides what that implies.
    pub(super) fn reach(&mut self, promise: Promise) -> Reached {
        if self.stage == SegmentStage::Sealed {
            (self.acknowledged, self.synced) = (self.length, self.length);
        } else if self.quorum.is_some() || self.is_registered && !self.has_loss {
            let common = match planted::is(Bug::AcknowledgedBeforeReplicas) {
                true => self.length,
                false => self.common(promise),
            };
            self.acknowledged = self.acknowledged.max(common);
            if self.quorum.is_some() || self.is_registration_synced {
                self.synced = self.synced.max(self.common(Promise::Synced));
            }
        }
        self.held = self.held.max(self.acknowledged).max(self.held_after_loss(promise));
        let Reached { acknowledged, held, synced } = self.reached();
        assert!(
            synced <= acknowledged && acknowledged <= held && held <= self.length,
            "{synced} bytes are synced, {acknowledged} acknowledged, {held} held and {} appended",
            self.length
        );
        self.reached()
    }

    /// Returns the length that counts as held after the loss of a replica: that of the replicas
    /// that are left, once the segment is registered, so that a recovery reads them. If none is left,
    /// nothing can be waited for.
    fn held_after_loss(&self, promise: Promise) -> u32 {
        let has_original = self.replicas.iter().any(Replica::is_original);
        match self.has_loss {
            true if !has_original => self.length,
            true if self.is_registered => self.common(promise),
            true | false => 0,
        }
    }

    pub(super) fn reached(&self) -> Reached {
        Reached { acknowledged: self.acknowledged, held: self.held, synced: self.synced }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BACKUP: ServerId = ServerId(2);

    #[test]
    #[should_panic(expected = "s2 has a replica of the segment already")]
    fn a_server_has_one_replica_of_a_segment() {
        let mut segment = ReplicatedSegment::new(0, 0, None);
        segment.add_original(BACKUP, Promise::Taken);
        segment.add_original(BACKUP, Promise::Taken);
    }

    #[test]
    #[should_panic(expected = "s2 has refused the segment")]
    fn a_refusal_is_final() {
        let mut segment = ReplicatedSegment::new(0, 0, None);
        segment.former.push(BACKUP);
        segment.add_original(BACKUP, Promise::Taken);
    }

    #[test]
    #[should_panic(expected = "only a closed segment is copied")]
    fn an_open_segment_is_not_copied() {
        ReplicatedSegment::new(0, 0, None).add_copy(BACKUP, Promise::Taken);
    }

    #[test]
    #[should_panic(expected = "a segment goes back from Closed to Closing")]
    fn a_closed_segment_stays_closed() {
        let mut segment = ReplicatedSegment::new(0, 0, None);
        segment.enter(SegmentStage::Closed);
        segment.enter(SegmentStage::Closing);
    }
}
