//! Replicas that are no longer needed, until their backups have confirmed their removal.
//!
//! One message is in flight to each backup; later releases go with the next one.

use super::timing::{AGAIN, BROKEN_AGAIN};
use std::collections::{BTreeMap, BTreeSet};
use types::{Instant, ServerId};
use wire::peer::REPLICAS_MAX;
use wire::replica::ReplicaId;

/// The replicas to be freed, until their backups have confirmed that.
#[derive(Clone, Debug, Default)]
pub(super) struct Releases {
    backups: BTreeMap<ServerId, PendingReleases>,
}

#[derive(Clone, Debug, Default)]
struct PendingReleases {
    replicas: BTreeSet<ReplicaId>,
    /// Time at which the request is repeated; `None`: no request is in flight.
    ask_at: Option<Instant>,
}

impl Releases {
    pub(super) fn add(&mut self, backup: ServerId, replica: ReplicaId) {
        self.backups.entry(backup).or_default().replicas.insert(replica);
    }

    pub(super) fn released(&mut self, backup: ServerId, replicas: &[ReplicaId]) {
        let Some(waiting) = self.backups.get_mut(&backup) else { return };
        for replica in replicas {
            waiting.replicas.remove(replica);
        }
        waiting.ask_at = None;
        if waiting.replicas.is_empty() {
            self.backups.remove(&backup);
        }
    }

    pub(super) fn record_death(&mut self, backup: ServerId) {
        self.backups.remove(&backup);
    }

    pub(super) fn connection_lost(&mut self, now: Instant, backup: ServerId) {
        if let Some(waiting) = self.backups.get_mut(&backup) {
            waiting.ask_at = waiting.ask_at.map(|at| at.min(now + BROKEN_AGAIN));
        }
    }

    /// Returns the messages that are to be sent now.
    pub(super) fn send(&mut self, now: Instant) -> Vec<(ServerId, Vec<ReplicaId>)> {
        let is_due = |waiting: &PendingReleases| waiting.ask_at.is_none_or(|at| at <= now);
        let due = self.backups.iter_mut().filter(|(_, waiting)| is_due(waiting));
        let messages = due.map(|(backup, waiting)| {
            assert!(!waiting.replicas.is_empty(), "nothing is to be released at {backup}");
            waiting.ask_at = Some(now + AGAIN);
            (*backup, waiting.replicas.iter().take(REPLICAS_MAX).copied().collect())
        });
        messages.collect()
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.backups.values().filter_map(|waiting| waiting.ask_at).min()
    }
}
