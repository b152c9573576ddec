//! The gate between the machine and its connections: nothing leaves before the commit of the
//! changes that it may depend on.
//!
//! The in-memory configuration runs ahead of the metadata store while a transaction is in flight.
//! An effect that is produced meanwhile is held, whatever it says, until all earlier changes are
//! committed. Exempt are messages that promise nothing ([`promises_nothing`]), so that a slow store
//! delays no ping.
//!
//! Invariants:
//! - The effects that are not exempt leave in the order in which they were produced, but for maps:
//!   a newer map takes the place of a held one, and so leaves before messages between the two.
//! - Nothing is held while memory equals the store.

use crate::configuration_store::CommitProgress;
use crate::outbox::{Effect, Effects, LinkId};
use planted::Bug;
use std::collections::{BTreeMap, BTreeSet};
use wire::control::{FromCoordinator, JoinReply, LogRequest};

/// Effects that wait for a commit.
#[derive(Debug, Default)]
pub(super) struct CommitGate {
    /// Effects that depend on the transaction in flight.
    in_flight: HeldEffects,
    /// Effects that depend on the transaction after it.
    next: HeldEffects,
}

/// Effects that wait for the same transaction, in order.
#[derive(Debug, Default)]
struct HeldEffects {
    effects: Vec<Effect>,
    /// The held map of each connection. A later one takes its place: maps are by far the longest
    /// messages, and the last one counts.
    maps: BTreeMap<LinkId, usize>,
    /// Connections with a held welcome. A server accepts nothing before it.
    welcomed: BTreeSet<LinkId>,
}

impl HeldEffects {
    fn push(&mut self, effect: Effect) {
        if let Effect::Send { connection, message: FromCoordinator::Map(_) } = &effect {
            if let Some(&place) = self.maps.get(connection) {
                self.effects[place] = effect;
                return;
            }
            self.maps.insert(*connection, self.effects.len());
        }
        if let Effect::Send {
            connection,
            message: FromCoordinator::Join(JoinReply::Welcome { .. }),
        } = &effect
        {
            self.welcomed.insert(*connection);
        }
        self.effects.push(effect);
    }
}

impl CommitGate {
    /// Returns the effects that depend on no pending commit, and holds the others.
    pub(super) fn pass(&mut self, mut effects: Effects, progress: CommitProgress) -> Vec<Effect> {
        let is_empty = self.in_flight.effects.is_empty() && self.next.effects.is_empty();
        assert!(
            is_empty || progress != CommitProgress::Committed,
            "effects wait for no transaction"
        );
        let mut passed = Vec::new();
        for effect in effects.drain() {
            match progress {
                _ if self.is_exempt(&effect) || planted::is(Bug::SentBeforeCommit) => {
                    passed.push(effect);
                }
                CommitProgress::Committed => passed.push(effect),
                CommitProgress::InFlight => self.in_flight.push(effect),
                CommitProgress::Ahead => self.next.push(effect),
            }
        }
        passed
    }

    /// Records that the next transaction is in flight now.
    pub(super) fn begin(&mut self) {
        assert!(self.in_flight.effects.is_empty(), "effects of an earlier transaction are held");
        self.in_flight = std::mem::take(&mut self.next);
    }

    /// Releases the effects that waited for the transaction in flight, which is committed.
    pub(super) fn release(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.in_flight).effects
    }

    /// Returns the connections whose welcome is held. Nothing is sent to them before it.
    pub(super) fn held_welcomes(&self) -> impl Iterator<Item = LinkId> {
        self.in_flight.welcomed.iter().chain(&self.next.welcomed).copied()
    }

    fn is_exempt(&self, effect: &Effect) -> bool {
        match effect {
            Effect::Send { connection, message } => {
                let is_welcomed = |held: &HeldEffects| held.welcomed.contains(connection);
                promises_nothing(message)
                    && !is_welcomed(&self.in_flight)
                    && !is_welcomed(&self.next)
            }
            Effect::Close { .. } => false,
            Effect::Commit(_) => unreachable!("a transaction is no effect of a component"),
        }
    }
}

/// Returns whether a message neither promises anything nor tells of the configuration.
fn promises_nothing(message: &FromCoordinator) -> bool {
    match message {
        FromCoordinator::Liveness(_)
        | FromCoordinator::Clock(_)
        | FromCoordinator::Join(JoinReply::Describe)
        | FromCoordinator::Log(LogRequest::ReadManifest { .. }) => true,
        FromCoordinator::Join(
            JoinReply::Welcome { .. } | JoinReply::Rejected { .. } | JoinReply::Waiting { .. },
        )
        | FromCoordinator::Log(
            LogRequest::ManifestRecorded { .. } | LogRequest::Fence { .. } | LogRequest::FreeLog { .. },
        )
        | FromCoordinator::Mark(_)
        | FromCoordinator::Map(_)
        | FromCoordinator::Answer { .. }
        // The number of a migration that is measured may be drawn again if it is not committed.
        | FromCoordinator::Migration(_)
        | FromCoordinator::Recovery(_) => false,
    }
}
