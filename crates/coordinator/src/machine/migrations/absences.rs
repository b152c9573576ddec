//! Migrations whose sides are absent or dead: no migration waits for a permanently lost server.

use super::transitions::outcome;
use super::{Migrations, failed};
use crate::configuration::{ClusterConfiguration, Edit};
use crate::machine::decision::Decision;
use crate::machine::membership::Membership;
use crate::machine::view::ClusterView;
use crate::records::{Ending, Migration, MigrationStage, Terms};
use planted::Bug;
use types::{Instant, MigrationId, ServerId};
use wire::control::MigrationRequest;

/// A migration that waits for a server which will not come back.
#[derive(Clone, Copy, Debug)]
pub(in crate::machine) struct StuckMigration {
    id: MigrationId,
    /// The side that is gone.
    gone: ServerId,
}

impl Migrations {
    /// Returns the migrations that a permanently absent side blocks.
    pub(in crate::machine) fn stuck(&self, view: ClusterView<'_>) -> Vec<StuckMigration> {
        let stuck = |migration: &Migration| {
            missed_side(migration, view).map(|gone| StuckMigration { id: migration.id, gone })
        };
        view.configuration.migrations().values().filter_map(stuck).collect()
    }

    /// Moves a migration on without its absent side, as far as possible.
    pub(in crate::machine) fn give_up(
        &self,
        stuck: StuckMigration,
        view: ClusterView<'_>,
    ) -> Decision {
        let StuckMigration { id, gone } = stuck;
        let migrations = view.configuration.migrations();
        let Some(migration) = migrations.get(&id) else { return Decision::nothing() };
        assert!(migration.has_side(gone), "{id} is given up for {gone}, which is no side of it");
        let is_target = gone == migration.target;
        let is_dead = view.configuration.is_dead(gone);
        let reason = match is_dead {
            true => format!("{gone} died"),
            false => format!("{gone} was disconnected for too long"),
        };
        let failure = Ending::Failed(reason.clone());
        // A dead server never returns to be asked.
        let unheard = |terms: Terms| (!is_dead).then_some(terms);
        let stage = match migration.stage.clone() {
            MigrationStage::Measuring => failed(&reason),
            MigrationStage::Preparing(terms) if is_target => {
                MigrationStage::Ended { ending: failure, unheard: unheard(terms) }
            }
            MigrationStage::Preparing(terms) => {
                MigrationStage::Withdrawing { terms, ending: failure }
            }
            MigrationStage::Withdrawing { terms, ending } => {
                MigrationStage::Ended { ending, unheard: unheard(terms) }
            }
            // The dead target may have accepted, and its log may contain acknowledged writes. It
            // therefore counts as having accepted.
            MigrationStage::Flipping(terms)
            | MigrationStage::Deciding { terms, .. }
            | MigrationStage::Orphaned { terms, .. }
                if is_target && is_dead =>
            {
                return self.hand_over(migration, &terms, view);
            }
            MigrationStage::Flipping(terms) if is_target => {
                MigrationStage::Orphaned { terms, otherwise: failure }
            }
            MigrationStage::Flipping(terms) => {
                MigrationStage::Deciding { terms, otherwise: failure }
            }
            MigrationStage::Deciding { terms, otherwise } => {
                MigrationStage::Orphaned { terms, otherwise }
            }
            // Neither side can answer. The target is absent and has no replicated log, so it is
            // never declared dead; it is asked if it returns.
            MigrationStage::Orphaned { terms, otherwise } => {
                MigrationStage::Ended { ending: otherwise, unheard: Some(terms) }
            }
            MigrationStage::Moving(dependency) => MigrationStage::Recovering(dependency),
            // The copy that the source should drop has died with it.
            MigrationStage::Releasing { ending } => MigrationStage::Ended { ending, unheard: None },
            MigrationStage::Queued
            | MigrationStage::Recovering(_)
            | MigrationStage::Ended { .. } => {
                unreachable!("{id} waits for no server")
            }
        };
        let news = news_of_end(migration, &stage);
        let edit = self.advance(view.configuration.edit(), migration, stage, view);
        let decision = Decision::commit(edit);
        match news {
            Some((server, message)) => decision.then_send(server, message),
            None => decision,
        }
    }

    /// Returns the change after which a returned target is asked itself about flips that had been
    /// left to its source.
    pub(in crate::machine) fn adopt_orphans(
        &self,
        target: ServerId,
        view: ClusterView<'_>,
    ) -> Option<Edit> {
        let mut edit = view.configuration.edit();
        for migration in view.configuration.migrations().values().filter(|m| m.target == target) {
            if let MigrationStage::Orphaned { terms, otherwise } = &migration.stage {
                let (terms, otherwise) = (terms.clone(), otherwise.clone());
                let stage = MigrationStage::Deciding { terms, otherwise };
                let updated = view.at.wall;
                edit.put_migration(Migration { stage, updated, ..migration.clone() });
            }
        }
        (!edit.is_empty()).then_some(edit)
    }

    /// Returns when migrations stop waiting for their absent sides.
    pub(super) fn absence_times(
        &self,
        configuration: &ClusterConfiguration,
        membership: &Membership,
    ) -> impl Iterator<Item = Instant> {
        let sides = configuration.migrations().values().flat_map(needed).flatten();
        sides.filter_map(|server| membership.given_up_at(server))
    }
}

/// Returns the message that tells the other side how a migration has ended.
fn news_of_end(
    migration: &Migration,
    stage: &MigrationStage,
) -> Option<(ServerId, MigrationRequest)> {
    let id = migration.id;
    let MigrationStage::Ended { ending, .. } = stage else { return None };
    Some(match ending {
        Ending::Success => (migration.target, MigrationRequest::Finished { migration: id }),
        Ending::Cancelled | Ending::Failed(_) => (migration.source, outcome(id, false)),
    })
}

/// Returns the permanently absent side that blocks the migration.
fn missed_side(migration: &Migration, view: ClusterView<'_>) -> Option<ServerId> {
    let is_dead = |server: &ServerId| view.configuration.is_dead(*server);
    let is_gone = |server: &ServerId| {
        let given_up_at = view.membership.given_up_at(*server);
        let is_missed = given_up_at.is_some_and(|by| by <= view.at.now);
        is_dead(server) || is_missed && !planted::is(Bug::AbsentSideAwaited)
    };
    let missed = needed(migration).into_iter().flatten().find(is_gone);
    let by_death = unblocked_by_death_of(migration, view.configuration);
    missed.or_else(|| by_death.into_iter().flatten().find(is_dead))
}

/// Returns the servers that a migration waits for no longer than
/// [`absence_max`](crate::CoordinatorSettings::absence_max), the target first. A migration that
/// can no longer be withdrawn waits for both sides without limit, unless one is dead: each has
/// state that no other server has.
fn needed(migration: &Migration) -> [Option<ServerId>; 2] {
    let (source, target) = (Some(migration.source), Some(migration.target));
    match migration.stage {
        MigrationStage::Measuring | MigrationStage::Preparing(_) | MigrationStage::Flipping(_) => {
            [target, source]
        }
        MigrationStage::Withdrawing { .. } | MigrationStage::Deciding { .. } => [target, None],
        MigrationStage::Queued
        | MigrationStage::Orphaned { .. }
        | MigrationStage::Moving(_)
        | MigrationStage::Recovering(_)
        | MigrationStage::Releasing { .. }
        | MigrationStage::Ended { .. } => [None, None],
    }
}

/// Returns the servers, beyond those of `needed`, whose *permanent* death also unblocks the
/// migration.
fn unblocked_by_death_of(
    migration: &Migration,
    configuration: &ClusterConfiguration,
) -> [Option<ServerId>; 2] {
    let (source, target) = (Some(migration.source), Some(migration.target));
    match migration.stage {
        // A target with a replicated log that is not declared dead may have accepted, and serve:
        // perhaps only the coordinator does not reach it. It answers when it returns, and counts
        // as having accepted when it is declared dead.
        MigrationStage::Orphaned { .. } if configuration.keeps_log(migration.target) => {
            [target, None]
        }
        MigrationStage::Orphaned { .. } | MigrationStage::Moving(_) => [target, source],
        MigrationStage::Releasing { .. } => [source, None],
        MigrationStage::Queued
        | MigrationStage::Measuring
        | MigrationStage::Preparing(_)
        | MigrationStage::Flipping(_)
        | MigrationStage::Withdrawing { .. }
        | MigrationStage::Deciding { .. }
        | MigrationStage::Recovering(_)
        | MigrationStage::Ended { .. } => [None, None],
    }
}
