//! Reports of migrations for operators.

use super::Migrations;
use crate::configuration::ClusterConfiguration;
use crate::records::{Ending, Migration, MigrationStage};
use wire::control::{MigrationReport, MigrationState};

impl Migrations {
    /// Returns reports of the matching migrations, newest first.
    pub(in crate::machine) fn reports(
        &self,
        is_meant: impl Fn(&Migration) -> bool,
        configuration: &ClusterConfiguration,
    ) -> Vec<MigrationReport> {
        let newest_first = configuration.migrations().values().rev();
        newest_first
            .filter(|migration| is_meant(migration))
            .map(|migration| {
                let (state, message) = state_of(migration, configuration);
                let (progress, updated) = self.progress_of(migration);
                MigrationReport {
                    migration: migration.id,
                    task: migration.task,
                    range: migration.range,
                    source: migration.source,
                    target: migration.target,
                    state,
                    message,
                    created: migration.created,
                    updated,
                    progress,
                }
            })
            .collect()
    }
}

/// Returns a migration's state for operators, and the reason for a failure.
fn state_of(
    migration: &Migration,
    configuration: &ClusterConfiguration,
) -> (MigrationState, String) {
    let state = match &migration.stage {
        MigrationStage::Queued => MigrationState::Queued,
        MigrationStage::Measuring
        | MigrationStage::Preparing(_)
        | MigrationStage::Flipping(_)
        | MigrationStage::Withdrawing { .. }
        | MigrationStage::Deciding { .. }
        | MigrationStage::Orphaned { .. } => MigrationState::Preparing,
        MigrationStage::Moving(_) => MigrationState::Moving,
        // The target will not get the range.
        MigrationStage::Recovering(_) => match configuration.ending_of(migration) {
            Ending::Success => MigrationState::Moving,
            ending @ (Ending::Cancelled | Ending::Failed(_)) => return ending.state(),
        },
        MigrationStage::Releasing { ending: Ending::Success } => MigrationState::Releasing,
        MigrationStage::Releasing { ending } | MigrationStage::Ended { ending, .. } => {
            return ending.state();
        }
    };
    (state, String::new())
}
