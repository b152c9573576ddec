//! Bugs on purpose: each breaks one rule of the protocol, and a run must find it.
//!
//! Most are built in from outside, by what a wrong implementation would do at that place: a message
//! is changed on its way, an answer taken from the wrong source, or the store told something
//! untrue. Where the rule is inside, the real code has a place that asks for it ([`Bug`]), of which
//! nothing is left where bugs cannot be planted.

use crate::workload::TABLE;
use ::planted::Bug;
use std::fmt;
use store::{Key, TabletState, Worker};
use types::{HashRange, UnixMillis, Version, key_hash};
use wire::batch::BatchReader;
use wire::entry::Body;
use wire::peer::{PeerMessage, PriorityAnswer, PullReply};

/// A rule that is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Planted {
    /// The progress is advanced when a reply is received, before it is replayed.
    ProgressOnReceipt,
    /// The target goes on counting versions where it was, as Rocksteady does with a safe version
    /// that is no upper bound.
    FloorNotRaised,
    /// A delete above the progress leaves no tombstone.
    DeleteWithoutTombstone,
    /// The source forgets what it has sent, before it is replayed and committed.
    ForgottenWhenSent,
    /// The source is told to forget everything at the first cut.
    ForgottenBeforeCut,
    /// A target that has said never accepts the flip when it comes after all.
    NeverNotKept,
    /// A source whose flip is not answered serves again without asking how it ended.
    ThawedWithoutAsking,
    /// A conditional write, increment or delete takes a record that has not arrived for absent.
    DecidedOnMissing,
    /// A read takes a record that has not arrived for absent.
    MissingReadAsAbsent,
    /// A source that has left a range still serves it from its copy.
    CopyServedAfterLeaving,
    /// The answer to a priority pull, come late, is inserted below the progress.
    LateReplyInserted,
    /// A command on several keys takes those that have not arrived for absent.
    PartnerReadAsAbsent,
    /// A source that cannot look at once answers that there is no record.
    BusyReadAsAbsent,
    /// That the source has no such record is not remembered.
    AbsentNotRemembered,
    /// A map that is older than the one known is taken.
    StaleMapAccepted,
    /// Clients are redirected while it is open who will own the range.
    RedirectedWhileHeld,
    /// A pull whose answer is lost counts as answered.
    LostReplyTakenForEmpty,
    /// A record that has expired is reclaimed above the progress, and no tombstone is left.
    ReclaimedWithoutTombstone,
    /// The target judges expiry by its own clock, whatever the source's was.
    ClockGoesBack,
    /// A relative time to live counts from the wall clock, whatever clock expiry is judged by.
    LifeFromWallClock,
    /// Operations that were held are not woken when it is known who owns the range.
    HeldForgotten,
    /// The metadata store carries out transactions whatever they expect.
    StoreWithoutCompare,
    /// The reply to a request that has overtaken a parked one leaves before the other's.
    ReplyOvertakes,
    /// A request overtakes a parked one of the same key.
    KeyOvertaken,
    /// A request that waited for its turn behind another is not started when the other is done.
    TurnForgotten,
    /// What the source still has of a table that was flushed arrives nevertheless.
    FlushedArrives,
    /// A walk does not wait for what has not arrived.
    WalkNotWaiting,
    /// A source that has left keeps its copy, and serves it when the range has come back.
    OldCopyKept,
    /// What a segment got is acknowledged before its backups have it.
    AcknowledgedBeforeReplicas,
    /// What a segment got is acknowledged before the log directory names it.
    DataBeforeOpen,
    /// A segment leaves the log before what killed its entries is safe.
    DroppedBeforeSafe,
    /// The cleaner drops tombstones whose dead versions a recovery would still read.
    TombstoneDroppedEarly,
    /// A recovery reads replicas that lack what was acknowledged.
    StaleReplicaUsed,
    /// When a side of a migration dies, what its source still had is forgotten.
    DependencyDroppedEarly,
    /// A source takes back what had not arrived, without what its target has written.
    TakenBackWithoutTarget,
    /// A range that is being recovered is served.
    ServedBeforeReplayed,
    /// That a key is absent is told before its tombstone is safe.
    NilBeforeTombstoneIsSafe,
    /// A cut counts before what was replayed is safe.
    CutBeforeHeadsAreSafe,
    /// A master serves without a lease.
    ZombieServes,
    /// A recovery does not raise the counter of versions.
    VersionsGoBack,
    /// Recovered records are judged by their new owner's clock, whatever the dead server's was.
    RecoveredWithoutClock,
    /// A log is freed while a migration may need it.
    FreedWhileDependedOn,
    /// A part counts as recovered before what was replayed is safe.
    FreedBeforeCommit,
    /// A part that is served before it is safe does not hang on the dead server's log.
    InheritanceForgotten,
    /// What not every replica of an open segment has is served before it is safe elsewhere.
    UnsettledShown,
    /// A coordinator waits for nobody when it starts, and no server tells it what it has heard.
    OldStoreTrusted,
}

impl Planted {
    /// All of them.
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

    /// The place inside of the real code, for a bug that cannot be built in from outside.
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
            Planted::WalkNotWaiting => Some(Bug::WalkNotWaiting),
            Planted::OldCopyKept => Some(Bug::OldCopyKept),
            Planted::AcknowledgedBeforeReplicas => Some(Bug::AcknowledgedBeforeReplicas),
            Planted::DataBeforeOpen => Some(Bug::DataBeforeOpen),
            Planted::DroppedBeforeSafe => Some(Bug::LeftBeforeStable),
            Planted::TombstoneDroppedEarly => Some(Bug::TombstoneDroppedEarly),
            Planted::StaleReplicaUsed => Some(Bug::StaleReplicaUsed),
            Planted::DependencyDroppedEarly => Some(Bug::DependencyDroppedEarly),
            Planted::TakenBackWithoutTarget => Some(Bug::TakenBackWithoutTarget),
            Planted::ServedBeforeReplayed => Some(Bug::ServedBeforeReplayed),
            Planted::NilBeforeTombstoneIsSafe => Some(Bug::GraveClosedEarly),
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

    /// Whether it breaks a rule of servers that keep each other's logs: only runs of such find it.
    pub fn is_of_clusters(self) -> bool {
        self >= Planted::AcknowledgedBeforeReplicas
    }

    /// Whether the bug can be planted in this build.
    pub fn is_possible(self) -> bool {
        ::planted::IS_ON || self.inside().is_none()
    }

    /// The bug of this name, as it is printed.
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

/// A flip whose floor says nothing.
pub(crate) fn without_floor(message: &mut PeerMessage) {
    if let PeerMessage::Flip(flip) = message {
        flip.version_floor = Version(0);
    }
}

/// A flip that does not say how late it is at the source.
pub(crate) fn without_clock(message: &mut PeerMessage) {
    if let PeerMessage::Flip(flip) = message {
        flip.expiry_clock = UnixMillis(0);
    }
}

/// Everything of a reply counts as replayed.
pub(crate) fn advance_on_receipt(worker: &Worker, reply: &PullReply) {
    let tablets = worker.store().tablets();
    if let Some(TabletState::Arriving(arrival)) = tablets.at(reply.cursor).map(|t| &t.state)
        && arrival.migration() == reply.migration
    {
        arrival.advance(reply.partition, reply.next);
    }
}

/// The records of a range are dropped.
pub(crate) fn drop_range(worker: &mut Worker, range: HashRange) {
    let mut cursor = Some(range.first());
    while let Some(at) = cursor {
        cursor = worker.forget(range, at, 1 << 16);
    }
}

/// Records below the progress that are not here, any more, are put back.
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

/// All that was found counts as not found.
pub(crate) fn without_records(message: &mut PeerMessage, payload: &mut Vec<u8>) {
    if let PeerMessage::PriorityReply(reply) = message {
        reply.answers.iter_mut().for_each(|(_, _, answer)| *answer = PriorityAnswer::Absent);
        payload.clear();
    }
}

/// What does not exist counts as gone to the target already.
pub(crate) fn without_absence(message: &mut PeerMessage) {
    if let PeerMessage::PriorityReply(reply) = message {
        let absent =
            reply.answers.iter_mut().filter(|(_, _, answer)| *answer == PriorityAnswer::Absent);
        absent.for_each(|(_, _, answer)| *answer = PriorityAnswer::Gone);
    }
}

/// An answer that says that there is nothing more.
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
