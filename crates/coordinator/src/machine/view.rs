//! Views of the configuration: the cluster map for servers, and reports for operators.

use super::Coordinator;
use crate::records::{Ending, Migration, RecoveryStage, Stage};
use crate::store::MetaStore;
use types::ServerId;
use wire::control::{ClusterMap, MigrationReport, MigrationState, ServerInfo, TabletInfo};

impl<S: MetaStore> Coordinator<S> {
    /// Returns the map that was last pushed to servers.
    ///
    /// Its version rises across restarts without being stored: the upper half is the term.
    pub fn map(&self) -> ClusterMap {
        let migrations = self.ledger.migrations().values();
        let live = migrations.filter(|migration| migration.is_live() && !migration.is_inheritance);
        ClusterMap {
            version: self.next_map_version() - 1,
            cluster: self.ledger.identity().cluster,
            servers: self.server_infos(),
            tablets: self
                .ledger
                .tablets()
                .values()
                .map(|tablet| TabletInfo {
                    range: tablet.range,
                    owner: tablet.owner,
                    epoch: tablet.epoch,
                    tenures: tablet.tenures.clone(),
                    is_born: tablet.is_born,
                })
                .collect(),
            moving: live.map(|m| (m.range, m.source, m.target)).collect(),
        }
    }

    /// Returns the version of the next map to be pushed.
    pub(super) fn next_map_version(&self) -> u64 {
        (self.ledger.term() << 32) + self.maps + 1
    }

    /// Returns the servers in the map. Disconnected servers without dependants are left out.
    /// Masters and backups consider a server dead if it is not in the map. One with a replicated
    /// log is therefore included until it is declared dead.
    fn server_infos(&self) -> Vec<ServerInfo> {
        let used = self.used_servers();
        let is_shown =
            |server: ServerId| self.connection_of(server).is_some() || used.contains(&server);
        self.ledger
            .servers()
            .values()
            .filter(|server| is_shown(server.id) || server.replicas > 0 && !server.fenced)
            .map(|server| ServerInfo {
                id: server.id,
                host: server.host.clone(),
                client_port: server.client_port,
                bus_port: server.bus_port,
                connected: self.connection_of(server.id).is_some()
                    || !server.fenced && self.is_reached_by_others(server.id),
                rack: server.rack.clone(),
                is_dead: server.fenced,
                in_recovery: self.is_in_recovery(server.id),
            })
            .collect()
    }

    fn is_in_recovery(&self, server: ServerId) -> bool {
        let recovery = self.ledger.recoveries().get(&server);
        recovery.is_some_and(|r| matches!(r.stage, RecoveryStage::Recovering { .. }))
    }

    /// Returns reports of all recorded migrations, newest first.
    pub fn reports(&self) -> Vec<MigrationReport> {
        self.reports_of(|_| true)
    }

    pub(super) fn reports_of(&self, is_meant: impl Fn(&Migration) -> bool) -> Vec<MigrationReport> {
        let newest_first =
            self.ledger.migrations().values().rev().filter(|m| is_meant(m) && !m.is_inheritance);
        newest_first
            .map(|migration| {
                let (state, message) = self.state_of(migration);
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

    /// Returns a migration's state for operators, and the reason for a failure.
    fn state_of(&self, migration: &Migration) -> (MigrationState, String) {
        let state = match &migration.stage {
            Stage::Queued => MigrationState::Queued,
            Stage::Measuring
            | Stage::Preparing(_)
            | Stage::Flipping(_)
            | Stage::Withdrawing { .. }
            | Stage::Deciding { .. }
            | Stage::Orphaned { .. } => MigrationState::Preparing,
            Stage::Moving(_) | Stage::Securing(_) => MigrationState::Moving,
            // The target will not get the range.
            Stage::Recovering(_) => match self.ending_of(migration) {
                Ending::Success => MigrationState::Moving,
                ending @ (Ending::Cancelled | Ending::Failed(_)) => return ending.state(),
            },
            Stage::Releasing { ending: Ending::Success } => MigrationState::Releasing,
            Stage::Releasing { ending } | Stage::Ended { ending, .. } => return ending.state(),
        };
        (state, String::new())
    }
}
