//! The demand of each stage: the message whose answer changes it.

use super::Migrations;
use crate::configuration::ClusterConfiguration;
use crate::machine::membership::Membership;
use crate::machine::view::ClusterView;
use crate::outbox::Effects;
use crate::records::{LineageDependency, Migration, MigrationStage};
use std::time::Duration;
use types::{Instant, ServerId};
use wire::control::MigrationRequest;

/// Interval between two questions to a target about its decision. Clients of the range wait for it.
const DECIDE_AGAIN: Duration = Duration::from_millis(100);
/// Interval between two sends of any other demand. It is lost only with its connection.
pub(in crate::machine) const DEMAND_AGAIN: Duration = Duration::from_secs(1);

/// The demand of a stage: its receiver, message and repetition interval.
pub(super) struct Demand {
    pub(super) server: ServerId,
    message: MigrationRequest,
    again: Duration,
}

/// Returns the message whose answer changes the migration's stage.
pub(super) fn demand(migration: &Migration) -> Option<Demand> {
    let id = migration.id;
    let (server, message, again) = match &migration.stage {
        MigrationStage::Queued => return None,
        MigrationStage::Measuring => {
            let message = MigrationRequest::Measure { migration: id, range: migration.range };
            (migration.source, message, DEMAND_AGAIN)
        }
        MigrationStage::Preparing(terms) => {
            let message = MigrationRequest::Prepare(migration.intent(terms));
            (migration.target, message, DEMAND_AGAIN)
        }
        MigrationStage::Flipping(terms) => {
            let message = MigrationRequest::Start(migration.intent(terms));
            (migration.source, message, DEMAND_AGAIN)
        }
        MigrationStage::Withdrawing { .. } | MigrationStage::Deciding { .. } => {
            (migration.target, MigrationRequest::Decide { migration: id }, DECIDE_AGAIN)
        }
        // Repeats the start message: the source answers it with the outcome that it knows.
        MigrationStage::Orphaned { terms, .. } => {
            let message = MigrationRequest::Start(migration.intent(terms));
            (migration.source, message, DEMAND_AGAIN)
        }
        MigrationStage::Moving(LineageDependency { remaining, .. }) => {
            let message = MigrationRequest::Forget { migration: id, remaining: remaining.clone() };
            (migration.source, message, DEMAND_AGAIN)
        }
        // The demands of the recovery apply.
        MigrationStage::Recovering(_) => return None,
        MigrationStage::Releasing { .. } => {
            let message = MigrationRequest::Forget { migration: id, remaining: Vec::new() };
            (migration.source, message, DEMAND_AGAIN)
        }
        MigrationStage::Ended { unheard: Some(_), .. } => {
            (migration.target, MigrationRequest::Decide { migration: id }, DECIDE_AGAIN)
        }
        MigrationStage::Ended { unheard: None, .. } => return None,
    };
    assert!(migration.has_side(server), "the demand of {id} is for {server}, which is no side");
    Some(Demand { server, message, again })
}

impl Migrations {
    /// Sends the demands that are due.
    pub(in crate::machine) fn send_demands(&mut self, view: ClusterView<'_>, out: &mut Effects) {
        let migrations = view.configuration.migrations();
        self.due.retain(|id, _| migrations.get(id).is_some_and(|m| demand(m).is_some()));
        let now = view.at.now;
        for (id, due) in self.due.iter_mut().filter(|(_, due)| **due <= now) {
            if let Some(demand) = migrations.get(id).and_then(demand)
                && view.membership.is_connected(demand.server)
            {
                view.membership.send(demand.server, demand.message, out);
                *due = now + demand.again;
            }
        }
    }

    /// Makes the demands on a reconnected server due at once.
    pub(in crate::machine) fn repeat_demands_on(
        &mut self,
        server: ServerId,
        now: Instant,
        configuration: &ClusterConfiguration,
    ) {
        let migrations = configuration.migrations();
        for (id, due) in &mut self.due {
            if migrations.get(id).and_then(demand).is_some_and(|d| d.server == server) {
                *due = now;
            }
        }
    }

    /// Returns the send times of the demands on connected servers.
    pub(in crate::machine) fn demand_times(
        &self,
        configuration: &ClusterConfiguration,
        membership: &Membership,
    ) -> impl Iterator<Item = Instant> {
        let migrations = configuration.migrations();
        self.due.iter().filter_map(move |(id, &due)| {
            let demand = demand(migrations.get(id)?)?;
            membership.is_connected(demand.server).then_some(due)
        })
    }
}
