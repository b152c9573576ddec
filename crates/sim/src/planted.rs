//! Bugs on purpose: each breaks one rule of the protocol, and a run must find it.
//!
//! They are built in from outside, by what a wrong implementation would do at that place: a message
//! is changed on its way, an answer taken from the wrong source, or the store told something
//! untrue. So the real code has no switch in it, and it is the real code whose checks are tested.

use std::fmt;
use std::sync::Arc;
use store::{Arrival, ArrivalPlan, TabletState, Worker};
use types::{HashRange, MigrationId, Version};
use wire::peer::{PeerMessage, PullReply};

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
    /// A source that has left a range still answers reads from its copy.
    CopyServedAfterLeaving,
    /// The answer to a priority pull, replayed late, is inserted below the progress.
    LateReplyInserted,
    /// The answer to a priority pull answers the clients that wait, instead of waking them.
    ClientAnsweredByReply,
}

impl Planted {
    /// All of them.
    pub const ALL: [Planted; 12] = [
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
        Planted::ClientAnsweredByReply,
    ];

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
        cursor = worker.forget(range, at, usize::MAX);
    }
}

/// A batch is replayed as if nothing had arrived before.
pub(crate) fn insert_regardless(worker: &mut Worker, migration: MigrationId, batch: &[u8]) {
    let tablets = worker.store().tablets();
    let arriving = tablets.iter().find_map(|tablet| match &tablet.state {
        TabletState::Arriving(arrival) if arrival.migration() == migration => Some(arrival),
        TabletState::Arriving(_)
        | TabletState::Serving
        | TabletState::Frozen
        | TabletState::Leaving => None,
    });
    let Some(arrival) = arriving else { return };
    let (source, range) = (arrival.source(), arrival.range());
    let (partitions, expected) = (vec![range], Vec::new());
    let plan = ArrivalPlan { migration, source, range, partitions, expected, reservation: None };
    let replayed = worker.replay(&Arc::new(Arrival::new(plan)), batch, 0, usize::MAX);
    assert!(replayed.is_ok(), "the batch comes from a source");
    worker.splice(migration);
}
