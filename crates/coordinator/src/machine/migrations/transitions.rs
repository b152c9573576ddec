//! Stage transitions of migrations by messages of their sides.
//!
//! Each function processes one message. It looks up the migration, and checks that the sender is
//! the right side and that the stage waits for this message. In every other stage the message is
//! repeated or late.

use super::{Migrations, NOT_OWNED, failed};
use crate::admission::REASON_BYTES_MAX;
use crate::configuration::Edit;
use crate::machine::decision::Decision;
use crate::machine::view::ClusterView;
use crate::ranges::intersection;
use crate::records::{Ending, LineageDependency, Migration, MigrationStage, TabletRecord, Terms};
use planted::Bug;
use types::limits::PARTITIONS_MAX;
use types::{HashRange, MigrationId, ServerId};
use wire::control::{MigrationProgress, MigrationRequest};

/// The sender of a message, and the migration that it concerns.
#[derive(Clone, Copy, Debug)]
pub(in crate::machine) struct MigrationSender {
    pub(in crate::machine) server: ServerId,
    pub(in crate::machine) migration: MigrationId,
}

impl MigrationSender {
    /// Returns the migration, if the sender is its source.
    fn as_source(self, view: ClusterView<'_>) -> Option<&Migration> {
        view.configuration.of_source(self.server, self.migration)
    }

    /// Returns the migration, if the sender is its target.
    fn as_target(self, view: ClusterView<'_>) -> Option<&Migration> {
        view.configuration.of_target(self.server, self.migration)
    }
}

impl Migrations {
    /// Step 1: commits the intent, which makes it binding.
    pub(in crate::machine) fn measured(
        &mut self,
        sender: MigrationSender,
        records: u64,
        bytes: u64,
        view: ClusterView<'_>,
    ) -> Decision {
        let Some(migration) = sender.as_source(view) else { return Decision::nothing() };
        if migration.stage != MigrationStage::Measuring {
            return Decision::nothing();
        }
        let mut edit = view.configuration.edit();
        let Some(tablet) = view.configuration.tablet_to_move(migration) else {
            return Decision::commit(self.advance(edit, migration, failed(NOT_OWNED), view));
        };
        let terms = Terms {
            source_epoch: tablet.epoch,
            target_epoch: edit.counters.draw_epoch(),
            target_incarnations: edit.counters.draw_incarnations(),
            bytes,
        };
        assert!(terms.target_epoch > terms.source_epoch, "{} goes back in epochs", migration.id);
        let records_total =
            MigrationProgress { records_total: records, ..MigrationProgress::default() };
        self.progress.insert(migration.id, (records_total, view.at.wall));
        Decision::commit(self.advance(edit, migration, MigrationStage::Preparing(terms), view))
    }

    /// Step 2: allows the flip.
    pub(in crate::machine) fn prepared(
        &self,
        sender: MigrationSender,
        refused: Option<String>,
        view: ClusterView<'_>,
    ) -> Decision {
        let Some(migration) = sender.as_target(view) else { return Decision::nothing() };
        let MigrationStage::Preparing(terms) = &migration.stage else {
            return Decision::nothing();
        };
        let stage = match refused {
            None => MigrationStage::Flipping(terms.clone()),
            Some(reason) => failed(&shortened(reason)),
        };
        self.committed_stage(migration, stage, view)
    }

    /// Step 5: the source cannot determine how its flip ended.
    pub(in crate::machine) fn flip_unanswered(
        &self,
        sender: MigrationSender,
        view: ClusterView<'_>,
    ) -> Decision {
        let MigrationSender { server, migration: id } = sender;
        let Some(migration) = sender.as_source(view) else {
            // The migration ended so long ago that its record was dropped. An accepted one could
            // have ended only after this source had released its copy, so it was not accepted.
            return match view.configuration.is_forgotten(id) {
                true => Decision::nothing().then_send(server, outcome(id, false)),
                false => Decision::nothing(),
            };
        };
        match &migration.stage {
            MigrationStage::Flipping(terms) => {
                let otherwise = Ending::Failed("the flip was not answered in time".to_owned());
                let stage = MigrationStage::Deciding { terms: terms.clone(), otherwise };
                let decision = self.committed_stage(migration, stage, view);
                match planted::is(Bug::SilenceTakenForNever) {
                    true => decision.then_send(server, outcome(id, false)),
                    false => decision,
                }
            }
            MigrationStage::Orphaned { terms, otherwise } => {
                let (ending, unheard) = (otherwise.clone(), Some(terms.clone()));
                let stage = MigrationStage::Ended { ending, unheard };
                let decision = self.committed_stage(migration, stage, view);
                decision.then_send(server, outcome(id, false))
            }
            MigrationStage::Moving(_)
            | MigrationStage::Recovering(_)
            | MigrationStage::Releasing { .. }
            | MigrationStage::Ended { ending: Ending::Success, .. } => {
                Decision::nothing().then_send(server, outcome(id, true))
            }
            MigrationStage::Ended { ending: Ending::Cancelled | Ending::Failed(_), .. } => {
                Decision::nothing().then_send(server, outcome(id, false))
            }
            // The target is being asked, or the source has not been asked to flip.
            MigrationStage::Deciding { .. }
            | MigrationStage::Queued
            | MigrationStage::Measuring
            | MigrationStage::Preparing(_)
            | MigrationStage::Withdrawing { .. } => Decision::nothing(),
        }
    }

    /// Step 4: records the acceptance, reported by either side.
    pub(in crate::machine) fn flipped(
        &self,
        sender: MigrationSender,
        view: ClusterView<'_>,
    ) -> Decision {
        if let Some(migration) = sender.as_target(view) {
            return self.accepted(migration, view);
        }
        let Some(migration) = sender.as_source(view) else { return Decision::nothing() };
        match &migration.stage {
            MigrationStage::Flipping(terms)
            | MigrationStage::Deciding { terms, .. }
            | MigrationStage::Orphaned { terms, .. } => self.hand_over(migration, terms, view),
            // The coordinator gave the target up, but the source had received the answer before
            // and has redirected clients. The target's answer therefore counts.
            MigrationStage::Ended { unheard: Some(terms), .. }
                if view.configuration.is_still_there(migration, terms) =>
            {
                self.hand_over(migration, terms, view)
            }
            MigrationStage::Queued
            | MigrationStage::Measuring
            | MigrationStage::Preparing(_)
            | MigrationStage::Withdrawing { .. }
            | MigrationStage::Moving(_)
            | MigrationStage::Recovering(_)
            | MigrationStage::Releasing { .. }
            | MigrationStage::Ended { .. } => Decision::nothing(),
        }
    }

    /// Step 5: applies the target's binding decision.
    pub(in crate::machine) fn decided(
        &self,
        sender: MigrationSender,
        accepted: bool,
        view: ClusterView<'_>,
    ) -> Decision {
        let MigrationSender { server, migration: id } = sender;
        let Some(migration) = sender.as_target(view) else { return Decision::nothing() };
        if accepted {
            let decision = self.accepted(migration, view);
            return match migration.is_undecided() {
                true => decision.then_send(migration.source, outcome(id, true)),
                false => decision,
            };
        }
        let ending = match &migration.stage {
            MigrationStage::Withdrawing { ending, .. } => ending.clone(),
            MigrationStage::Deciding { otherwise, .. }
            | MigrationStage::Orphaned { otherwise, .. } => otherwise.clone(),
            MigrationStage::Ended { ending, unheard: Some(_) } => ending.clone(),
            MigrationStage::Queued
            | MigrationStage::Measuring
            | MigrationStage::Preparing(_)
            | MigrationStage::Flipping(_)
            | MigrationStage::Moving(_)
            | MigrationStage::Recovering(_)
            | MigrationStage::Releasing { .. }
            | MigrationStage::Ended { unheard: None, .. } => return Decision::nothing(),
        };
        let stage = MigrationStage::Ended { ending, unheard: None };
        self.committed_stage(migration, stage, view)
            .then_send(migration.source, outcome(id, false))
            .then_send(server, MigrationRequest::Finished { migration: id })
    }

    /// Steps 7 and 8, before the ranges are reduced: only a target that has accepted sends this,
    /// so the message may have overtaken the news of the flip.
    pub(in crate::machine) fn shrink_accepts(
        &self,
        sender: MigrationSender,
        given: &[HashRange],
        view: ClusterView<'_>,
    ) -> Decision {
        let MigrationSender { server, migration: id } = sender;
        let finished = MigrationRequest::Finished { migration: id };
        let Some(migration) = sender.as_target(view) else {
            return match view.configuration.is_forgotten(id) {
                true => Decision::nothing().then_send(server, finished),
                false => Decision::nothing(),
            };
        };
        if !is_valid(given) {
            tracing::warn!(%server, migration = %id, "invalid shrink message ignored");
            return Decision::nothing();
        }
        let is_success = MigrationStage::Ended { ending: Ending::Success, unheard: None };
        if migration.stage == is_success {
            return Decision::nothing().then_send(server, finished);
        }
        self.accepted(migration, view)
    }

    /// Steps 7 and 8: the target depends on fewer ranges of the source.
    pub(in crate::machine) fn shrink(
        &self,
        sender: MigrationSender,
        given: &[HashRange],
        view: ClusterView<'_>,
    ) -> Decision {
        let Some(migration) = sender.as_target(view) else { return Decision::nothing() };
        // A running recovery of the remaining ranges is not affected.
        if !is_valid(given) || view.configuration.has_lineage_parts(migration.id) {
            return Decision::nothing();
        }
        let Some(LineageDependency { remaining, .. }) = migration.dependency() else {
            return Decision::nothing();
        };
        // Whole slots only: a slot must have one owner even if a side dies now.
        let next = intersection(remaining, &whole_slots(given));
        let edit = self.depend(view.configuration.edit(), migration, next, view);
        edit.map_or_else(Decision::nothing, Decision::commit)
    }

    /// Returns the change that reduces the ranges that still depend on the source. `None`: they
    /// are the same.
    pub(in crate::machine) fn depend(
        &self,
        edit: Edit,
        migration: &Migration,
        remaining: Vec<HashRange>,
        view: ClusterView<'_>,
    ) -> Option<Edit> {
        let LineageDependency { remaining: before, source_incarnations } =
            migration.dependency()?;
        if remaining == *before {
            return None;
        }
        let is_within = |range: &HashRange| before.iter().any(|it| it.covers(*range));
        assert!(remaining.iter().all(is_within), "{} depends on more than before", migration.id);
        let dependency =
            LineageDependency { remaining, source_incarnations: source_incarnations.clone() };
        let stage = match (dependency.remaining.is_empty(), migration.is_recovering()) {
            (true, _) => {
                MigrationStage::Releasing { ending: view.configuration.ending_of(migration) }
            }
            (false, true) => MigrationStage::Recovering(dependency),
            (false, false) => MigrationStage::Moving(dependency),
        };
        Some(self.advance(edit, migration, stage, view))
    }

    /// Step 8: the source holds nothing of the range any more; the migration ends.
    pub(in crate::machine) fn released(
        &self,
        sender: MigrationSender,
        view: ClusterView<'_>,
    ) -> Decision {
        let Some(migration) = sender.as_source(view) else { return Decision::nothing() };
        let MigrationStage::Releasing { ending } = &migration.stage else {
            return Decision::nothing();
        };
        let stage = MigrationStage::Ended { ending: ending.clone(), unheard: None };
        let finished = MigrationRequest::Finished { migration: migration.id };
        self.committed_stage(migration, stage, view).then_send(migration.target, finished)
    }

    /// Records a target's progress.
    pub(in crate::machine) fn note_progress(
        &mut self,
        sender: MigrationSender,
        progress: MigrationProgress,
        view: ClusterView<'_>,
    ) {
        if sender.as_target(view).is_some_and(Migration::is_live) {
            self.progress.insert(sender.migration, (progress, view.at.wall));
        }
    }

    /// Applies a target's report that it serves the range.
    fn accepted(&self, migration: &Migration, view: ClusterView<'_>) -> Decision {
        match &migration.stage {
            MigrationStage::Flipping(terms)
            | MigrationStage::Deciding { terms, .. }
            | MigrationStage::Orphaned { terms, .. } => self.hand_over(migration, terms, view),
            MigrationStage::Ended { unheard: Some(_), .. } => {
                tracing::warn!(server = %migration.target, migration = %migration.id, "fenced");
                Decision::declare_dead(migration.target)
            }
            // Already known, or impossible before the flip was allowed.
            MigrationStage::Queued
            | MigrationStage::Measuring
            | MigrationStage::Preparing(_)
            | MigrationStage::Withdrawing { .. }
            | MigrationStage::Moving(_)
            | MigrationStage::Recovering(_)
            | MigrationStage::Releasing { .. }
            | MigrationStage::Ended { .. } => Decision::nothing(),
        }
    }

    /// Changes the owner, and records that the whole range depends on the source.
    pub(super) fn hand_over(
        &self,
        migration: &Migration,
        terms: &Terms,
        view: ClusterView<'_>,
    ) -> Decision {
        let configuration = view.configuration;
        assert!(configuration.is_still_there(migration, terms), "{} lost its tablet", migration.id);
        let tablet = configuration.tablet_to_move(migration);
        let is_durable = tablet.is_some_and(TabletRecord::is_durable);
        assert!(is_durable, "{} moves a range that is not durable", migration.id);
        let source_incarnations = tablet.map(|it| it.incarnations.clone()).unwrap_or_default();
        let mut edit = configuration.edit();
        edit.cut_out(migration.range, configuration);
        edit.put_tablet(TabletRecord {
            range: migration.range,
            owner: migration.target,
            epoch: terms.target_epoch,
            incarnations: terms.target_incarnations.clone(),
            is_born: false,
            depends_on: None,
        });
        let dependency =
            LineageDependency { remaining: vec![migration.range], source_incarnations };
        Decision::commit(self.advance(edit, migration, MigrationStage::Moving(dependency), view))
    }

    /// Decides to commit a migration's new stage and nothing else.
    fn committed_stage(
        &self,
        migration: &Migration,
        stage: MigrationStage,
        view: ClusterView<'_>,
    ) -> Decision {
        Decision::commit(self.advance(view.configuration.edit(), migration, stage, view))
    }
}

/// Returns the news about the end of a flip, for the source.
pub(super) fn outcome(migration: MigrationId, accepted: bool) -> MigrationRequest {
    MigrationRequest::Outcome { migration, accepted }
}

fn shortened(mut text: String) -> String {
    text.truncate(text.floor_char_boundary(REASON_BYTES_MAX));
    text
}

/// Returns whether a target's list of remaining ranges is well-formed.
fn is_valid(given: &[HashRange]) -> bool {
    let mut pairs = given.windows(2);
    given.len() <= PARTITIONS_MAX && pairs.all(|pair| pair[0].last() < pair[1].first())
}

/// Rounds ascending ranges up to whole slots.
fn whole_slots(ranges: &[HashRange]) -> Vec<HashRange> {
    let mut whole: Vec<HashRange> = Vec::new();
    for (first, last) in ranges.iter().map(|range| range.slots()) {
        match whole.last_mut().filter(|before| before.last() >= first.first_hash()) {
            Some(before) => *before = HashRange::of_slots(before.slots().0, last),
            None => whole.push(HashRange::of_slots(first, last)),
        }
    }
    whole
}
