//! Planted bugs: each breaks one rule of the protocol, and a run must find it.
//!
//! Most are planted from outside, by the effect of a wrong implementation: a message is changed
//! in transit, an answer is taken from the wrong source, or the store gets wrong information. For
//! a rule inside the real code, that code has a hook ([`Bug`]), which compiles to nothing in
//! normal builds.

use crate::workload::TABLE;
use ::planted::Bug;
use std::fmt;
use store::{Key, TabletState, Worker};
use types::{HashRange, UnixMillis, Version, key_hash};
use wire::batch::BatchReader;
use wire::entry::Body;
use wire::peer::{PeerMessage, PriorityAnswer, PullReply};

/// Rule that is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Planted {
    /// The progress is advanced when a reply is received, before it is replayed.
    ProgressOnReceipt,
    /// The target continues with its own version counter, as Rocksteady does with a safe version
    /// that is no upper bound.
    FloorNotRaised,
    /// A delete above the progress leaves no tombstone.
    DeleteWithoutTombstone,
    /// The source releases entries when it has sent them, before they are replayed and committed.
    ForgottenWhenSent,
    /// The coordinator lets the source release everything at the first cut.
    ForgottenBeforeCut,
    /// A target that has answered *never* accepts the flip when it arrives after all.
    NeverNotKept,
    /// A source without an answer to its flip serves again without asking for the outcome.
    ThawedWithoutAsking,
    /// A conditional write, increment or delete treats a record that has not arrived as absent.
    DecidedOnMissing,
    /// A read treats a record that has not arrived as absent.
    MissingReadAsAbsent,
    /// A source that has left a range still serves it from its copy.
    CopyServedAfterLeaving,
    /// A late answer to a priority pull is inserted below the progress.
    LateReplyInserted,
    /// A command on several keys treats those that have not arrived as absent.
    PartnerReadAsAbsent,
    /// A source that cannot look at a leaf at once answers that there is no record.
    BusyReadAsAbsent,
    /// The target does not remember that the source has no such record.
    AbsentNotRemembered,
    /// A server accepts a map that is older than its own.
    StaleMapAccepted,
    /// Clients are redirected while the new owner of the range is undecided.
    RedirectedWhileHeld,
    /// A pull counts as answered although its reply is lost.
    LostReplyTakenForEmpty,
    /// An expired record above the progress is reclaimed without a tombstone.
    ReclaimedWithoutTombstone,
    /// The target judges expiry by its own clock instead of continuing the source's.
    ClockGoesBack,
    /// A relative time to live counts from the wall clock instead of the expiry clock.
    LifeFromWallClock,
    /// Held operations are not woken when the owner of the range is decided.
    HeldForgotten,
    /// The metadata store applies transactions without checking their expectations.
    StoreWithoutCompare,
    /// The reply to a request that has overtaken a parked one leaves before the other's.
    ReplyOvertakes,
    /// A request overtakes a parked one of the same key.
    KeyOvertaken,
    /// A request that was queued behind another one is not started when the other is done.
    TurnForgotten,
    /// The source's records of a flushed table arrive nevertheless.
    FlushedArrives,
    /// A scan does not wait for records that have not arrived.
    WalkNotWaiting,
    /// A source that has left keeps its copy, and serves it when the range has come back.
    OldCopyKept,
    /// An append to a segment is acknowledged before its backups have it.
    AcknowledgedBeforeReplicas,
    /// An append to a segment is acknowledged before the segment manifest contains the segment.
    DataBeforeOpen,
    /// A segment leaves the log before the entries that superseded its own are durable.
    DroppedBeforeSafe,
    /// The cleaner drops tombstones although a recovery would still read the superseded versions.
    TombstoneDroppedEarly,
    /// A recovery reads replicas that lack acknowledged bytes.
    StaleReplicaUsed,
    /// When a side of a migration dies, the dependency on the source's remaining data is dropped.
    DependencyDroppedEarly,
    /// A source takes back the range that had not arrived, without the target's writes.
    TakenBackWithoutTarget,
    /// A range that is being recovered is served.
    ServedBeforeReplayed,
    /// A reply reports a key as absent before its tombstone is durable.
    NilBeforeTombstoneIsSafe,
    /// A cut counts before the replayed entries are durable.
    CutBeforeHeadsAreSafe,
    /// A master serves without a lease.
    ZombieServes,
    /// A recovery does not raise the version counter.
    VersionsGoBack,
    /// Recovered records are judged by their new owner's clock instead of the dead server's.
    RecoveredWithoutClock,
    /// A log is freed while a migration may need it.
    FreedWhileDependedOn,
    /// A partition counts as recovered before the replayed entries are durable.
    FreedBeforeCommit,
    /// A partition that is served before it is durable does not depend on the dead server's log.
    InheritanceForgotten,
    /// Bytes that are not in every replica of an open segment are served before they are durable
    /// again.
    UnsettledShown,
    /// A coordinator waits for no server when it starts, and no server reports its newest mark.
    OldStoreTrusted,
}

impl Planted {
    /// All bugs.
    pub const ALL: [Planted; 46] = [
        Planted::ProgressOnReceipt,
        Planted::FloorNotRaised,
        Planted::DeleteWithoutTombstone,
        Planted::ForgottenWhenSent,
        Planted::ForgottenBeforeCut,
        Planted::NeverNotKept,
        Planted::ThawedWithoutAsking,
        Planted::DecidedOnMissing,
        Planted::MissingReadAsAbsent,
        Planted::CopyServedAfterLeaving,
        Planted::LateReplyInserted,
        Planted::PartnerReadAsAbsent,
        Planted::BusyReadAsAbsent,
        Planted::AbsentNotRemembered,
        Planted::StaleMapAccepted,
        Planted::RedirectedWhileHeld,
        Planted::LostReplyTakenForEmpty,
        Planted::ReclaimedWithoutTombstone,
        Planted::ClockGoesBack,
        Planted::LifeFromWallClock,
        Planted::HeldForgotten,
        Planted::StoreWithoutCompare,
        Planted::ReplyOvertakes,
        Planted::KeyOvertaken,
        Planted::TurnForgotten,
        Planted::FlushedArrives,
        Planted::WalkNotWaiting,
        Planted::OldCopyKept,
        Planted::AcknowledgedBeforeReplicas,
        Planted::DataBeforeOpen,
        Planted::DroppedBeforeSafe,
        Planted::TombstoneDroppedEarly,
        Planted::StaleReplicaUsed,
        Planted::DependencyDroppedEarly,
        Planted::TakenBackWithoutTarget,
        Planted::ServedBeforeReplayed,
        Planted::NilBeforeTombstoneIsSafe,
        Planted::CutBeforeHeadsAreSafe,
        Planted::ZombieServes,
        Planted::VersionsGoBack,
        Planted::RecoveredWithoutClock,
        Planted::FreedWhileDependedOn,
        Planted::FreedBeforeCommit,
        Planted::InheritanceForgotten,
        Planted::UnsettledShown,
        Planted::OldStoreTrusted,
    ];

    /// Returns the hook inside the real code, for a bug that cannot be planted from outside.
    pub(crate) fn inside(self) -> Option<Bug> {
        match self {
            Planted::LifeFromWallClock => Some(Bug::LifeFromWallClock),
            Planted::DecidedOnMissing => Some(Bug::DecidedOnMissing),
            Planted::MissingReadAsAbsent => Some(Bug::MissingReadAsAbsent),
            Planted::PartnerReadAsAbsent => Some(Bug::PartnerReadAsAbsent),
            Planted::CopyServedAfterLeaving => Some(Bug::CopyServedAfterLeaving),
            Planted::RedirectedWhileHeld => Some(Bug::RedirectedWhileHeld),
            Planted::ReplyOvertakes => Some(Bug::ReplyOvertakes),
            Planted::KeyOvertaken => Some(Bug::KeyOvertaken),
            Planted::TurnForgotten => Some(Bug::TurnForgotten),
            Planted::FlushedArrives => Some(Bug::FlushedArrives),
            Planted::WalkNotWaiting => Some(Bug::ScanNotWaiting),
            Planted::OldCopyKept => Some(Bug::OldCopyKept),
            Planted::AcknowledgedBeforeReplicas => Some(Bug::AcknowledgedBeforeReplicas),
            Planted::DataBeforeOpen => Some(Bug::DataBeforeOpen),
            Planted::DroppedBeforeSafe => Some(Bug::LeftBeforeStable),
            Planted::TombstoneDroppedEarly => Some(Bug::TombstoneDroppedEarly),
            Planted::StaleReplicaUsed => Some(Bug::StaleReplicaUsed),
            Planted::DependencyDroppedEarly => Some(Bug::DependencyDroppedEarly),
            Planted::TakenBackWithoutTarget => Some(Bug::TakenBackWithoutTarget),
            Planted::ServedBeforeReplayed => Some(Bug::ServedBeforeReplayed),
            Planted::NilBeforeTombstoneIsSafe => Some(Bug::TombstoneRemovedEarly),
            Planted::CutBeforeHeadsAreSafe => Some(Bug::CutBeforeHeadsAreSafe),
            Planted::ZombieServes => Some(Bug::ZombieServes),
            Planted::VersionsGoBack => Some(Bug::VersionsGoBack),
            Planted::FreedWhileDependedOn => Some(Bug::FreedWhileDependedOn),
            Planted::FreedBeforeCommit => Some(Bug::FreedBeforeCommit),
            Planted::InheritanceForgotten => Some(Bug::InheritanceForgotten),
            Planted::UnsettledShown => Some(Bug::UnsettledShown),
            Planted::ProgressOnReceipt
            | Planted::FloorNotRaised
            | Planted::DeleteWithoutTombstone
            | Planted::ForgottenWhenSent
            | Planted::ForgottenBeforeCut
            | Planted::NeverNotKept
            | Planted::ThawedWithoutAsking
            | Planted::LateReplyInserted
            | Planted::BusyReadAsAbsent
            | Planted::AbsentNotRemembered
            | Planted::StaleMapAccepted
            | Planted::LostReplyTakenForEmpty
            | Planted::ReclaimedWithoutTombstone
            | Planted::ClockGoesBack
            | Planted::RecoveredWithoutClock
            | Planted::HeldForgotten
            | Planted::StoreWithoutCompare
            | Planted::OldStoreTrusted => None,
        }
    }

    /// Returns whether the bug breaks a rule of replication; only replicated runs find it.
    pub fn is_of_clusters(self) -> bool {
        self >= Planted::AcknowledgedBeforeReplicas
    }

    /// Returns whether the bug can be planted in this build.
    pub fn is_possible(self) -> bool {
        ::planted::IS_ON || self.inside().is_none()
    }

    /// Returns the bug with this name, in the form of `Display`.
    pub fn named(name: &str) -> Option<Planted> {
        Planted::ALL.into_iter().find(|planted| planted.to_string() == name)
    }
}

impl fmt::Display for Planted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, letter) in format!("{self:?}").char_indices() {
            if letter.is_ascii_uppercase() && place > 0 {
                f.write_str("-")?;
            }
            write!(f, "{}", letter.to_ascii_lowercase())?;
        }
        Ok(())
    }
}

/// Removes the version floor from a flip.
pub(crate) fn without_floor(message: &mut PeerMessage) {
    if let PeerMessage::Flip(flip) = message {
        flip.version_floor = Version(0);
    }
}

/// Removes the source's expiry clock from a flip.
pub(crate) fn without_clock(message: &mut PeerMessage) {
    if let PeerMessage::Flip(flip) = message {
        flip.expiry_clock = UnixMillis(0);
    }
}

/// Advances the progress past everything in a reply.
pub(crate) fn advance_on_receipt(worker: &Worker, reply: &PullReply) {
    let tablets = worker.store().tablets();
    if let Some(TabletState::Arriving(arrival)) = tablets.at(reply.cursor).map(|t| &t.state)
        && arrival.migration() == reply.migration
    {
        arrival.advance(reply.partition, reply.next);
    }
}

/// Drops the records of a range.
pub(crate) fn drop_range(worker: &mut Worker, range: HashRange) {
    let mut cursor = Some(range.first());
    while let Some(at) = cursor {
        cursor = worker.forget(range, at, 1 << 16);
    }
}

/// Writes records below the progress again that are no longer here.
pub(crate) fn insert_regardless(worker: &mut Worker, batch: &[u8]) {
    let tablets = worker.store().tablets();
    for entry in BatchReader::new(batch).flatten() {
        let key =
            Key { hash: key_hash(worker.store().seed(), entry.entry.key), bytes: entry.entry.key };
        let is_passed = match tablets.at(key.hash).map(|tablet| &tablet.state) {
            Some(TabletState::Arriving(arrival)) => arrival.is_below_progress(key.hash),
            Some(
                TabletState::Serving
                | TabletState::Frozen
                | TabletState::Leaving
                | TabletState::Recovering(_)
                | TabletState::Securing(_),
            )
            | None => false,
        };
        let is_here = worker.collect_hash(TABLE, key.hash, &mut Vec::new()) == Ok(true);
        if let Body::Object { value, .. } = entry.entry.body
            && is_passed
            && !is_here
        {
            let _ = worker.put(TABLE, key, value, None);
        }
    }
}

/// Turns all answers of a priority reply into *absent*.
pub(crate) fn without_records(message: &mut PeerMessage, payload: &mut Vec<u8>) {
    if let PeerMessage::PriorityReply(reply) = message {
        reply.answers.iter_mut().for_each(|(_, _, answer)| *answer = PriorityAnswer::Absent);
        payload.clear();
    }
}

/// Turns the answers *absent* of a priority reply into *gone*.
pub(crate) fn without_absent(message: &mut PeerMessage) {
    if let PeerMessage::PriorityReply(reply) = message {
        let absent =
            reply.answers.iter_mut().filter(|(_, _, answer)| *answer == PriorityAnswer::Absent);
        absent.for_each(|(_, _, answer)| *answer = PriorityAnswer::Gone);
    }
}

/// Returns a reply to a pull that claims that there is nothing more.
pub(crate) fn emptied(message: &PeerMessage) -> Option<PeerMessage> {
    match message {
        PeerMessage::PullReply(reply) => {
            Some(PeerMessage::PullReply(PullReply { next: None, ..*reply }))
        }
        PeerMessage::Flip(_)
        | PeerMessage::FlipAnswer { .. }
        | PeerMessage::Pull(_)
        | PeerMessage::PriorityPull(_)
        | PeerMessage::PriorityReply(_)
        | PeerMessage::Append(_)
        | PeerMessage::Appended(_)
        | PeerMessage::Release { .. }
        | PeerMessage::Released { .. }
        | PeerMessage::Needed { .. }
        | PeerMessage::RecoveryRead(_)
        | PeerMessage::RecoveryReply(_)
        | PeerMessage::Ping
        | PeerMessage::Pong => None,
    }
}
