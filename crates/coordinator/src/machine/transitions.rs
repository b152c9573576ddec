//! Stage transitions of migrations, and the demand of each stage.
//!
//! Each function processes one message. It looks up the migration, and checks that the sender is
//! the right side and that the stage waits for this message. In every other stage the message is
//! repeated or late.

use super::Coordinator;
use crate::admission::REASON_BYTES_MAX;
use crate::ledger::{Edit, Stopped};
use crate::outbox::{Moment, Outbox};
use crate::records::{Dependency, Ending, Migration, Stage, Tablet, Terms};
use crate::store::MetaStore;
use std::collections::BTreeSet;
use std::time::Duration;
use types::limits::PARTITIONS_MAX;
use types::{HashRange, MigrationId, ServerId};
use wire::control::{FromCoordinator, MigrationProgress};

/// Interval between two questions to a target about its decision. Clients of the range wait for it.
const DECIDE_AGAIN: Duration = Duration::from_millis(100);
/// Interval between two sends of any other demand. It is lost only with its connection.
pub(super) const DEMAND_AGAIN: Duration = Duration::from_secs(1);

/// The sender of a message, and the migration that it concerns.
pub(super) type About = (ServerId, MigrationId);

/// The demand of a stage: its receiver, message and repetition interval.
pub(super) struct Demand {
    pub(super) server: ServerId,
    pub(super) message: FromCoordinator,
    pub(super) again: Duration,
}

/// Returns the message whose answer changes the migration's stage.
pub(super) fn demand(migration: &Migration) -> Option<Demand> {
    let id = migration.id;
    let (server, message, again) = match &migration.stage {
        Stage::Queued => return None,
        Stage::Measuring => {
            let message = FromCoordinator::Measure { migration: id, range: migration.range };
            (migration.source, message, DEMAND_AGAIN)
        }
        Stage::Preparing(terms) => {
            let message = FromCoordinator::Prepare(migration.intent(terms));
            (migration.target, message, DEMAND_AGAIN)
        }
        Stage::Flipping(terms) => {
            let message = FromCoordinator::Start(migration.intent(terms));
            (migration.source, message, DEMAND_AGAIN)
        }
        Stage::Withdrawing { .. } | Stage::Deciding { .. } => {
            (migration.target, FromCoordinator::Decide { migration: id }, DECIDE_AGAIN)
        }
        // Repeats the start message: the source answers it with the outcome that it knows.
        Stage::Orphaned { terms, .. } => {
            let message = FromCoordinator::Start(migration.intent(terms));
            (migration.source, message, DEMAND_AGAIN)
        }
        Stage::Moving(Dependency { remaining, .. }) => {
            let message = FromCoordinator::Forget { migration: id, remaining: remaining.clone() };
            (migration.source, message, DEMAND_AGAIN)
        }
        // The demands of the recovery apply.
        Stage::Recovering(_) | Stage::Securing(_) => return None,
        Stage::Releasing { .. } => {
            let message = FromCoordinator::Forget { migration: id, remaining: Vec::new() };
            (migration.source, message, DEMAND_AGAIN)
        }
        Stage::Ended { unheard: Some(_), .. } => {
            (migration.target, FromCoordinator::Decide { migration: id }, DECIDE_AGAIN)
        }
        Stage::Ended { unheard: None, .. } => return None,
    };
    Some(Demand { server, message, again })
}

impl<S: MetaStore> Coordinator<S> {
    /// Step 1: commits the intent, which makes it binding.
    pub(super) fn measured(
        &mut self,
        at: Moment,
        (server, id): About,
        records: u64,
        bytes: u64,
    ) -> Result<(), Stopped> {
        let Some(migration) = self.of_source(server, id) else { return Ok(()) };
        if migration.stage != Stage::Measuring {
            return Ok(());
        }
        let mut edit = self.ledger.edit();
        let Some(tablet) = self.tablet_to_move(&migration) else {
            return self.advance(at, edit, &migration, failed(NOT_OWNED));
        };
        let terms = Terms {
            source_epoch: tablet.epoch,
            target_epoch: edit.counters.draw_epoch(),
            target_tenures: edit.counters.draw_tenures(),
            bytes,
        };
        let records_total =
            MigrationProgress { records_total: records, ..MigrationProgress::default() };
        self.progress.insert(id, (records_total, at.wall));
        self.advance(at, edit, &migration, Stage::Preparing(terms))
    }

    /// Step 2: allows the flip.
    pub(super) fn prepared(
        &mut self,
        at: Moment,
        (server, id): About,
        refused: Option<String>,
    ) -> Result<(), Stopped> {
        let Some(migration) = self.of_target(server, id) else { return Ok(()) };
        let Stage::Preparing(terms) = &migration.stage else { return Ok(()) };
        let stage = match refused {
            None => Stage::Flipping(terms.clone()),
            Some(reason) => failed(&shortened(reason)),
        };
        self.advance(at, self.ledger.edit(), &migration, stage)
    }

    /// Step 5: the source cannot determine how its flip ended.
    pub(super) fn flip_unanswered(
        &mut self,
        at: Moment,
        (server, id): About,
        out: &mut Outbox,
    ) -> Result<(), Stopped> {
        let Some(migration) = self.of_source(server, id) else {
            // The migration ended so long ago that its record was dropped. An accepted one could
            // have ended only after this source had released its copy, so it was not accepted.
            if self.is_forgotten(id) {
                self.send(server, outcome(id, false), out);
            }
            return Ok(());
        };
        match &migration.stage {
            Stage::Flipping(terms) => {
                let otherwise = Ending::Failed("the flip was not answered in time".to_owned());
                let stage = Stage::Deciding { terms: terms.clone(), otherwise };
                self.advance(at, self.ledger.edit(), &migration, stage)?;
            }
            Stage::Orphaned { terms, otherwise } => {
                let (ending, unheard) = (otherwise.clone(), Some(terms.clone()));
                let stage = Stage::Ended { ending, unheard };
                self.advance(at, self.ledger.edit(), &migration, stage)?;
                self.send(server, outcome(id, false), out);
            }
            Stage::Moving(_)
            | Stage::Recovering(_)
            | Stage::Securing(_)
            | Stage::Releasing { .. } => {
                self.send(server, outcome(id, true), out);
            }
            Stage::Ended { ending: Ending::Success, .. } => {
                self.send(server, outcome(id, true), out);
            }
            Stage::Ended { ending: Ending::Cancelled | Ending::Failed(_), .. } => {
                self.send(server, outcome(id, false), out);
            }
            // The target is being asked, or the source has not been asked to flip.
            Stage::Deciding { .. }
            | Stage::Queued
            | Stage::Measuring
            | Stage::Preparing(_)
            | Stage::Withdrawing { .. } => {}
        }
        Ok(())
    }

    /// Step 4: records the acceptance, reported by either side.
    pub(super) fn flipped(
        &mut self,
        at: Moment,
        (server, id): About,
        out: &mut Outbox,
    ) -> Result<(), Stopped> {
        if let Some(migration) = self.of_target(server, id) {
            return self.accepted(at, &migration, out);
        }
        let Some(migration) = self.of_source(server, id) else { return Ok(()) };
        match &migration.stage {
            Stage::Flipping(terms)
            | Stage::Deciding { terms, .. }
            | Stage::Orphaned { terms, .. } => self.hand_over(at, &migration, terms),
            // The coordinator gave the target up, but the source had received the answer before
            // and has redirected clients. The target's answer therefore counts.
            Stage::Ended { unheard: Some(terms), .. } if self.is_still_there(&migration, terms) => {
                self.hand_over(at, &migration, terms)
            }
            Stage::Queued
            | Stage::Measuring
            | Stage::Preparing(_)
            | Stage::Withdrawing { .. }
            | Stage::Moving(_)
            | Stage::Recovering(_)
            | Stage::Securing(_)
            | Stage::Releasing { .. }
            | Stage::Ended { .. } => Ok(()),
        }
    }

    /// Step 5: applies the target's binding decision.
    pub(super) fn decided(
        &mut self,
        at: Moment,
        (server, id): About,
        accepted: bool,
        out: &mut Outbox,
    ) -> Result<(), Stopped> {
        let Some(migration) = self.of_target(server, id) else { return Ok(()) };
        if accepted {
            self.accepted(at, &migration, out)?;
            if migration.is_undecided() {
                self.send(migration.source, outcome(id, true), out);
            }
            return Ok(());
        }
        let ending = match &migration.stage {
            Stage::Withdrawing { ending, .. } => ending.clone(),
            Stage::Deciding { otherwise, .. } | Stage::Orphaned { otherwise, .. } => {
                otherwise.clone()
            }
            Stage::Ended { ending, unheard: Some(_) } => ending.clone(),
            Stage::Queued
            | Stage::Measuring
            | Stage::Preparing(_)
            | Stage::Flipping(_)
            | Stage::Moving(_)
            | Stage::Recovering(_)
            | Stage::Securing(_)
            | Stage::Releasing { .. }
            | Stage::Ended { unheard: None, .. } => return Ok(()),
        };
        let stage = Stage::Ended { ending, unheard: None };
        self.advance(at, self.ledger.edit(), &migration, stage)?;
        self.send(migration.source, outcome(id, false), out);
        self.send(server, FromCoordinator::Finished { migration: id }, out);
        Ok(())
    }

    /// Steps 7 and 8: the target depends on fewer ranges of the source.
    pub(super) fn shrink(
        &mut self,
        at: Moment,
        (server, id): About,
        given: &[HashRange],
        out: &mut Outbox,
    ) -> Result<(), Stopped> {
        let Some(migration) = self.of_target(server, id) else {
            if self.is_forgotten(id) {
                self.send(server, FromCoordinator::Finished { migration: id }, out);
            }
            return Ok(());
        };
        if given.len() > PARTITIONS_MAX || !is_ascending(given) {
            tracing::warn!(%server, migration = %id, "invalid shrink message ignored");
            return Ok(());
        }
        if migration.stage == (Stage::Ended { ending: Ending::Success, unheard: None }) {
            self.send(server, FromCoordinator::Finished { migration: id }, out);
            return Ok(());
        }
        if migration.is_inheritance {
            return Ok(());
        }
        // Only a target that has accepted sends this: the message overtook the news of the flip.
        self.accepted(at, &migration, out)?;
        let Some(migration) = self.of_target(server, id) else { return Ok(()) };
        // A running recovery of the remaining ranges is not affected.
        if self.has_lineage_parts(id) {
            return Ok(());
        }
        match migration.dependency() {
            Some(Dependency { remaining, .. }) => {
                // Whole slots only: a slot must have one owner even if a side dies now.
                let next = intersection(remaining, &whole_slots(given));
                self.depend(at, self.ledger.edit(), &migration, next)
            }
            None => Ok(()),
        }
    }

    /// Reduces the ranges that still depend on the source.
    pub(super) fn depend(
        &mut self,
        at: Moment,
        edit: Edit,
        migration: &Migration,
        remaining: Vec<HashRange>,
    ) -> Result<(), Stopped> {
        let Some(Dependency { remaining: before, source_tenures }) = migration.dependency() else {
            return Ok(());
        };
        if remaining == *before {
            return Ok(());
        }
        let dependency = Dependency { remaining, source_tenures: source_tenures.clone() };
        let stage = match (dependency.remaining.is_empty(), migration.is_recovering()) {
            (true, _) => Stage::Releasing { ending: self.ending_of(migration) },
            (false, true) => Stage::Recovering(dependency),
            (false, false) => Stage::Moving(dependency),
        };
        self.advance(at, edit, migration, stage)
    }

    /// Returns the ending of a flipped migration, given the servers that are dead now.
    pub(super) fn ending_of(&self, migration: &Migration) -> Ending {
        let Migration { source, target, .. } = *migration;
        match (self.is_dead(source), self.is_dead(target)) {
            (_, false) => Ending::Success,
            (false, true) => {
                let message = format!("{target} died; the part it lacked returned to {source}");
                Ending::Failed(message)
            }
            (true, true) => Ending::Failed(format!("{source} and {target} died")),
        }
    }

    /// Step 8: the source holds nothing of the range any more; the migration ends.
    pub(super) fn released(
        &mut self,
        at: Moment,
        (server, id): About,
        out: &mut Outbox,
    ) -> Result<(), Stopped> {
        let Some(migration) = self.of_source(server, id) else { return Ok(()) };
        let Stage::Releasing { ending } = &migration.stage else { return Ok(()) };
        let stage = Stage::Ended { ending: ending.clone(), unheard: None };
        self.advance(at, self.ledger.edit(), &migration, stage)?;
        self.send(migration.target, FromCoordinator::Finished { migration: id }, out);
        Ok(())
    }

    pub(super) fn note_progress(
        &mut self,
        at: Moment,
        (server, id): About,
        progress: MigrationProgress,
    ) {
        if self.of_target(server, id).is_some_and(|migration| migration.is_live()) {
            self.progress.insert(id, (progress, at.wall));
        }
    }

    /// Applies a target's report that it serves the range.
    fn accepted(
        &mut self,
        at: Moment,
        migration: &Migration,
        out: &mut Outbox,
    ) -> Result<(), Stopped> {
        match &migration.stage {
            Stage::Flipping(terms)
            | Stage::Deciding { terms, .. }
            | Stage::Orphaned { terms, .. } => self.hand_over(at, migration, terms),
            Stage::Ended { unheard: Some(_), .. } => {
                tracing::warn!(server = %migration.target, migration = %migration.id, "fenced");
                self.declare_dead(at, &BTreeSet::from([migration.target]), out)
            }
            // Already known, or impossible before the flip was allowed.
            Stage::Queued
            | Stage::Measuring
            | Stage::Preparing(_)
            | Stage::Withdrawing { .. }
            | Stage::Moving(_)
            | Stage::Recovering(_)
            | Stage::Securing(_)
            | Stage::Releasing { .. }
            | Stage::Ended { .. } => Ok(()),
        }
    }

    /// Changes the owner, and records that the whole range depends on the source.
    pub(super) fn hand_over(
        &mut self,
        at: Moment,
        migration: &Migration,
        terms: &Terms,
    ) -> Result<(), Stopped> {
        assert!(self.is_still_there(migration, terms), "{} lost its tablet", migration.id);
        let held = self.tablet_to_move(migration).map(|tablet| tablet.tenures.clone());
        let source_tenures = held.unwrap_or_default();
        let mut edit = self.ledger.edit();
        self.cut_out(&mut edit, migration.range);
        edit.put_tablet(Tablet {
            range: migration.range,
            owner: migration.target,
            epoch: terms.target_epoch,
            tenures: terms.target_tenures.clone(),
            is_born: false,
        });
        let dependency = Dependency { remaining: vec![migration.range], source_tenures };
        self.advance(at, edit, migration, Stage::Moving(dependency))
    }

    /// Removes a range from the tablets that contain it. Their remaining parts keep epoch and
    /// incarnations.
    pub(super) fn cut_out(&self, edit: &mut Edit, range: HashRange) {
        let cut = |tablet: &&Tablet| tablet.range.overlaps(range);
        for tablet in self.ledger.tablets().values().filter(cut) {
            edit.remove_tablet(tablet.range.first());
            for part in tablet.range.without(range).into_iter().flatten() {
                edit.put_tablet(Tablet { range: part, ..tablet.clone() });
            }
        }
    }

    /// Returns whether the source's tablet is unchanged since the intent was written, and no
    /// other migration is changing it.
    fn is_still_there(&self, migration: &Migration, terms: &Terms) -> bool {
        let mut others = self.ledger.migrations().values().filter(|m| m.id != migration.id);
        self.tablet_to_move(migration).is_some_and(|tablet| tablet.epoch == terms.source_epoch)
            && !others.any(|m| m.is_under_way() && m.range.overlaps(migration.range))
    }

    /// Returns the source's tablet that contains the range.
    pub(super) fn tablet_to_move(&self, migration: &Migration) -> Option<&Tablet> {
        let up_to = self.ledger.tablets().range(..=migration.range.first());
        let (_, tablet) = up_to.last()?;
        let fits = tablet.owner == migration.source && tablet.range.covers(migration.range);
        fits.then_some(tablet)
    }

    fn of_source(&self, server: ServerId, id: MigrationId) -> Option<Migration> {
        self.ledger.migrations().get(&id).filter(|migration| migration.source == server).cloned()
    }

    fn of_target(&self, server: ServerId, id: MigrationId) -> Option<Migration> {
        self.ledger.migrations().get(&id).filter(|migration| migration.target == server).cloned()
    }

    /// Returns whether the migration existed and was dropped from the history.
    fn is_forgotten(&self, id: MigrationId) -> bool {
        id < self.ledger.counters().migration && !self.ledger.migrations().contains_key(&id)
    }
}

pub(super) const NOT_OWNED: &str = "Slots are not served by the source node";

pub(super) fn outcome(migration: MigrationId, accepted: bool) -> FromCoordinator {
    FromCoordinator::Outcome { migration, accepted }
}

/// Returns the ending of a migration that the target does not know of, or has refused.
pub(super) fn failed(reason: &str) -> Stage {
    Stage::Ended { ending: Ending::Failed(reason.to_owned()), unheard: None }
}

fn shortened(mut text: String) -> String {
    text.truncate(text.floor_char_boundary(REASON_BYTES_MAX));
    text
}

fn is_ascending(ranges: &[HashRange]) -> bool {
    ranges.windows(2).all(|pair| pair[0].last() < pair[1].first())
}

/// Returns the ranges that are in both lists.
pub(super) fn intersection(one: &[HashRange], other: &[HashRange]) -> Vec<HashRange> {
    let with_other = |&range: &HashRange| other.iter().filter_map(move |o| range.intersection(*o));
    one.iter().flat_map(with_other).collect()
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
