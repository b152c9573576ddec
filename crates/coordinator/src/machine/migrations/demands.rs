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

/// The demand of a stage, without its message.
#[derive(Clone, Copy, Debug)]
pub(super) struct Demand {
    pub(super) server: ServerId,
    /// Repetition interval.
    again: Duration,
}

/// Returns the receiver of the message whose answer changes the migration's stage.
pub(super) fn demand(migration: &Migration) -> Option<Demand> {
    let (server, again) = match &migration.stage {
        MigrationStage::Queued => return None,
        MigrationStage::Measuring
        | MigrationStage::Flipping(_)
        | MigrationStage::Orphaned { .. }
        | MigrationStage::Moving(_)
        | MigrationStage::Releasing { .. } => (migration.source, DEMAND_AGAIN),
        MigrationStage::Preparing(_) => (migration.target, DEMAND_AGAIN),
        MigrationStage::Withdrawing { .. }
        | MigrationStage::Deciding { .. }
        | MigrationStage::Ended { unheard: Some(_), .. } => (migration.target, DECIDE_AGAIN),
        // The demands of the recovery apply.
        MigrationStage::Recovering(_) => return None,
        MigrationStage::Ended { unheard: None, .. } => return None,
    };
    let id = migration.id;
    assert!(migration.has_side(server), "the demand of {id} is for {server}, which is no side");
    Some(Demand { server, again })
}

/// Returns the message whose answer changes the migration's stage.
fn request(migration: &Migration) -> Option<MigrationRequest> {
    let id = migration.id;
    Some(match &migration.stage {
        MigrationStage::Measuring => {
            MigrationRequest::Measure { migration: id, range: migration.range }
        }
        MigrationStage::Preparing(terms) => MigrationRequest::Prepare(migration.intent(terms)),
        // The source of an orphaned migration answers with the outcome that it knows.
        MigrationStage::Flipping(terms) | MigrationStage::Orphaned { terms, .. } => {
            MigrationRequest::Start(migration.intent(terms))
        }
        MigrationStage::Withdrawing { .. }
        | MigrationStage::Deciding { .. }
        | MigrationStage::Ended { unheard: Some(_), .. } => {
            MigrationRequest::Decide { migration: id }
        }
        MigrationStage::Moving(LineageDependency { remaining, .. }) => {
            MigrationRequest::Forget { migration: id, remaining: remaining.clone() }
        }
        MigrationStage::Releasing { .. } => {
            MigrationRequest::Forget { migration: id, remaining: Vec::new() }
        }
        MigrationStage::Queued
        | MigrationStage::Recovering(_)
        | MigrationStage::Ended { unheard: None, .. } => return None,
    })
}

impl Migrations {
    /// Sends the demands that are due.
    pub(in crate::machine) fn send_demands(&mut self, view: ClusterView<'_>, out: &mut Effects) {
        let migrations = view.configuration.migrations();
        self.due.retain(|id, _| migrations.get(id).is_some_and(|m| demand(m).is_some()));
        let now = view.at.now;
        for (id, due) in self.due.iter_mut().filter(|(_, due)| **due <= now) {
            if let Some(migration) = migrations.get(id)
                && let Some(Demand { server, again }) = demand(migration)
                && view.membership.is_connected(server)
                && let Some(request) = request(migration)
            {
                view.membership.send(server, request, out);
                *due = now + again;
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
    pub(super) fn demand_times(
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
