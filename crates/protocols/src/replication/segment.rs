//! One segment, as its master sees it: where its life stands, who holds it, and what of it is
//! acknowledged.
//!
//! **Invariant:** while the log directory says that the segment is open, every backup that ever was
//! one of its originals has everything that was acknowledged. So nothing that came after a loss is
//! acknowledged before the directory says that it is closed.
//! **Invariant:** copies never count for what is acknowledged.

use super::events::Promise;
use super::placement::Draws;
use super::quorum::Quorum;
use super::replica::{Extent, Replica};
use planted::Bug;
use types::{Instant, ServerId};
use wire::replica::ReplicaEpoch;

/// The state of one segment at its master.
#[derive(Debug)]
pub(super) struct Segment {
    pub(super) stage: Stage,
    length: u32,
    /// Its end after what was appended first.
    first: u32,
    /// The driver has been asked to have the directory name it.
    pub(super) is_named: bool,
    /// The directory names it; of the directory's own segments: the coordinator does.
    pub(super) is_listed: bool,
    /// An original was lost: nothing more is acknowledged while the directory says *open*.
    has_loss: bool,
    /// It is looking for its first backups, or for another one in place of one that refused.
    pub(super) wants_originals: bool,
    pub(super) replicas: Vec<Replica>,
    /// Backups that were asked for an original and hold none that counts. What they know of it is
    /// what keeps a late message from making one, so they are to keep it while that would count.
    pub(super) former: Vec<ServerId>,
    acknowledged: u32,
    stable: u32,
    /// Of the directory's own segments: when the coordinator is told again.
    pub(super) announce_at: Option<Instant>,
    /// While it is open with too few replicas: when to see whether it could have more.
    pub(super) review_at: Option<Instant>,
    pub(super) draws: Draws,
    epochs: u32,
    /// Of the directory's own segments, if their number tells it.
    pub(super) quorum: Option<Quorum>,
}

/// Where a segment's life stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Stage {
    Open,
    /// The driver has been asked to close it.
    Ending,
    /// It has got its last byte.
    Closed,
    /// Everybody has all of it, and the driver has been told so.
    Whole,
    /// The directory says that it is closed.
    Kept,
    /// Its memory is used for something else: there is nothing to send any more.
    Leaving,
}

/// How far a segment has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reached {
    pub(super) acknowledged: u32,
    pub(super) stable: u32,
}

impl Segment {
    pub(super) fn new(length: u32, random: u64, quorum: Option<Quorum>) -> Segment {
        Segment {
            stage: Stage::Open,
            length,
            first: length,
            is_named: false,
            is_listed: false,
            has_loss: false,
            wants_originals: true,
            replicas: Vec::new(),
            former: Vec::new(),
            acknowledged: 0,
            stable: 0,
            announce_at: None,
            review_at: None,
            draws: Draws(random),
            epochs: 0,
            quorum,
        }
    }

    pub(super) fn extent(&self) -> Extent {
        Extent { length: self.length, is_closed: self.is_closed() }
    }

    pub(super) fn is_closed(&self) -> bool {
        self.stage >= Stage::Closed
    }

    pub(super) fn append(&mut self, length: u32) {
        assert!(!self.is_closed(), "a closed segment grows");
        assert!(length >= self.length, "a segment shrinks to {length}");
        self.length = length;
        if self.first == 0 {
            self.first = length;
        }
    }

    pub(super) fn add_original(&mut self, backup: ServerId, promise: Promise) {
        self.replicas.push(Replica::new(backup, ReplicaEpoch::default(), promise));
    }

    pub(super) fn add_copy(&mut self, backup: ServerId, promise: Promise) {
        self.epochs += 1;
        self.replicas.push(Replica::new(backup, ReplicaEpoch(self.epochs), promise));
    }

    pub(super) fn remove(&mut self, backup: ServerId) -> Option<Replica> {
        let at = self.replicas.iter().position(|replica| replica.backup == backup)?;
        Some(self.replicas.remove(at))
    }

    /// Whether what this backup has to do for the segment is not done: it is to get more, or lacks
    /// something.
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

    /// Whether this backup has, or had, a replica of this epoch that it must not forget.
    pub(super) fn needs(&self, backup: ServerId, epoch: ReplicaEpoch) -> bool {
        let is_it = |it: &Replica| it.backup == backup && it.epoch == epoch;
        let is_former = epoch == ReplicaEpoch::default() && self.former.contains(&backup);
        is_former || self.replicas.iter().any(is_it)
    }

    /// An original is lost.
    pub(super) fn note_loss(&mut self) {
        self.has_loss = true;
        self.wants_originals = false;
    }

    pub(super) fn holders(&self) -> Vec<ServerId> {
        self.replicas.iter().map(|replica| replica.backup).collect()
    }

    /// Replicas that count, or will without anything having to be copied, but for those of `less`.
    pub(super) fn count(&self, less: Option<ServerId>) -> usize {
        let of = self.extent();
        let counts = |it: &&Replica| it.is_original() || it.is_complete(of);
        self.placed(less).filter(counts).count()
    }

    /// Replicas that are there or are made, but for those of `less`.
    pub(super) fn placed(&self, less: Option<ServerId>) -> impl Iterator<Item = &Replica> {
        self.replicas.iter().filter(move |it| Some(it.backup) != less)
    }

    pub(super) fn is_copied(&self) -> bool {
        self.count(None) < self.replicas.len()
    }

    /// Whether every replica has all of it.
    pub(super) fn is_complete(&self) -> bool {
        let of = self.extent();
        !self.replicas.is_empty() && self.replicas.iter().all(|it| it.is_complete(of))
    }

    /// Whether every backup has begun its original. After a loss the directory will name it when it
    /// has been copied.
    pub(super) fn is_begun(&self) -> bool {
        let mut originals = self.replicas.iter().filter(|it| it.is_original()).peekable();
        !self.has_loss && originals.peek().is_some() && originals.all(Replica::is_open)
    }

    /// How many of its originals must have what is acknowledged.
    pub(super) fn needed(&self) -> usize {
        self.quorum.map_or(self.replicas.len(), |quorum| quorum.needed)
    }

    /// Whether the coordinator may be told of this segment of the directory: its quorum has the
    /// snapshot. After a loss another one takes its place.
    pub(super) fn can_be_announced(&self, promise: Promise) -> bool {
        let reached = self.common(promise);
        !self.is_listed && !self.has_loss && self.first > 0 && reached >= self.first
    }

    /// What all originals have; of the directory's own segments, so many as are needed.
    fn common(&self, promise: Promise) -> u32 {
        let amount = |replica: &Replica| match promise {
            Promise::Taken => replica.has(),
            Promise::Stable => replica.stable(),
        };
        let originals = self.replicas.iter().filter(|it| it.is_original()).map(amount);
        let Some(Quorum { needed, .. }) = self.quorum else { return originals.min().unwrap_or(0) };
        let mut amounts: Vec<u32> = originals.collect();
        amounts.sort_unstable_by(|one, other| other.cmp(one));
        amounts.get(needed - 1).copied().unwrap_or(0)
    }

    /// Takes note of how far it has come. A quorum has what it has, whatever is lost, and whether or
    /// not the coordinator knows the segment yet: what follows from that is the driver's.
    pub(super) fn reach(&mut self, promise: Promise) -> Reached {
        if self.stage == Stage::Kept {
            (self.acknowledged, self.stable) = (self.length, self.length);
        } else if self.quorum.is_some() || self.is_listed && !self.has_loss {
            let common = match planted::is(Bug::AcknowledgedBeforeReplicas) {
                true => self.length,
                false => self.common(promise),
            };
            self.acknowledged = self.acknowledged.max(common);
            self.stable = self.stable.max(self.common(Promise::Stable));
        }
        self.reached()
    }

    pub(super) fn reached(&self) -> Reached {
        Reached { acknowledged: self.acknowledged, stable: self.stable }
    }
}
