//! Reports of recoveries for operators.

use super::lineage::OrphanedRange;
use super::replica_inventory::Completeness;
use super::{Recoveries, log_facts};
use crate::machine::view::ClusterView;
use crate::records::RecoveryRecord;
use types::SegmentId;
use wire::control::{MISSING_SHOWN_MAX, RecoveryReport, RecoveryState};

impl Recoveries {
    /// Returns reports of all recoveries, in order of the dead servers' numbers.
    pub(in crate::machine) fn reports(&self, view: ClusterView<'_>) -> Vec<RecoveryReport> {
        let recoveries = view.configuration.recoveries().values();
        recoveries.map(|recovery| self.report(recovery, view)).collect()
    }

    pub(super) fn report(
        &self,
        recovery: &RecoveryRecord,
        view: ClusterView<'_>,
    ) -> RecoveryReport {
        let configuration = view.configuration;
        let RecoveryRecord { dead, created, .. } = *recovery;
        let (state, missing) = self.state(recovery, view);
        let refusal = self.inventories.get(&dead).map(|inventory| inventory.refusal.clone());
        RecoveryReport {
            dead,
            state,
            created,
            ranges: configuration.owned_by(dead).collect(),
            parts: configuration.parts_under_way(recovery),
            missing_total: missing.len() as u32,
            missing: missing.into_iter().take(MISSING_SHOWN_MAX).collect(),
            waits_for: configuration
                .under_way()
                .filter(|m| m.has_side(dead))
                .map(|m| m.id)
                .collect(),
            message: refusal.unwrap_or_default(),
        }
    }

    fn state(
        &self,
        recovery: &RecoveryRecord,
        view: ClusterView<'_>,
    ) -> (RecoveryState, Vec<SegmentId>) {
        let configuration = view.configuration;
        let Some(facts) = log_facts(recovery, view) else {
            return (RecoveryState::Freeing, Vec::new());
        };
        let orphaned = OrphanedRange::all_of(recovery, configuration);
        let rest = !orphaned.is_empty();
        let is_read = !configuration.parts_under_way(recovery).is_empty()
            || configuration.is_half_of_a_lineage(recovery.dead);
        let state = match self.completeness(recovery, view) {
            // The log is not needed until migrations proceed.
            _ if !rest && !is_read => RecoveryState::WaitingForMigrations,
            Completeness::Collecting => RecoveryState::Collecting,
            Completeness::ReadingManifest => RecoveryState::ReadingManifest,
            Completeness::ManifestMissing => RecoveryState::ManifestMissing,
            Completeness::SegmentsMissing(missing) => {
                return (RecoveryState::SegmentsMissing, missing);
            }
            Completeness::Complete if !rest => RecoveryState::Recovering,
            Completeness::Complete => match self.inventories.get(&recovery.dead) {
                Some(inventory) if inventory.is_lease_over(&facts) => {
                    let readable = self.readable_logs(&orphaned, view);
                    let is_ready = |orphan: &OrphanedRange| {
                        orphan.logs(configuration).iter().all(|it| readable.contains(it))
                    };
                    match orphaned.iter().any(is_ready) {
                        true => RecoveryState::WaitingForServers,
                        false => RecoveryState::WaitingForMigrations,
                    }
                }
                Some(_) | None => RecoveryState::WaitingForLease,
            },
        };
        (state, Vec::new())
    }
}
