//! What a dead server leaves, and to whom: above all of what was moving when it died.
//!
//! A migration that has flipped has *remaining* ranges, which its target does not have for good. When
//! a side dies, what there is of them is in two places, and each is an estate of its own:
//!
//! | who died | the remaining ranges go | from | the rest of the migration's range |
//! | --- | --- | --- | --- |
//! | the target | back to the source, which keeps its copy | the target's log | to anybody but the source, which has to release it first |
//! | the source | to the target, which keeps what has arrived | the source's log | is served by the target |
//! | both | to anybody | both logs | to anybody, from the target's log |
//!
//! A part that is served before it is safe is an *inheritance*, and is written down as a migration
//! from the dead server to the part's master: if that one dies, too, then both sides have died.
//!
//! Which of these it is follows from who is dead, so that a survivor that dies before it has what it
//! was given changes the row, and nothing else. Whoever keeps what it has keeps its tenures; of a
//! table that the target has flushed the source gets another one, and what it has of it is void.

use super::Coordinator;
use crate::ledger::{Edit, Stopped};
use crate::machine::transitions::intersection;
use crate::outbox::Moment;
use crate::records::{Counters, Dependency, Migration, Part, Recovery};
use crate::store::MetaStore;
use planted::Bug;
use std::collections::BTreeSet;
use types::{HashRange, MigrationId, ServerId, Tenure};
use wire::control::RecoveryLog;

/// A range that a dead server leaves, and that nobody has been given.
#[derive(Debug)]
pub(super) struct Estate {
    /// Whose recovery hands it out.
    dead: ServerId,
    /// Within one tablet.
    pub(super) range: HashRange,
    pub(super) lineage: Option<MigrationId>,
    pub(super) heirs: Heirs,
}

/// Who may be given an estate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Heirs {
    /// The living side of its migration.
    Only(ServerId),
    Anybody,
    /// This server still has something of the range, and is about to forget it.
    AllBut(ServerId),
}

impl<S: MetaStore> Coordinator<S> {
    /// Everything that this recovery has still to hand out.
    pub(super) fn estates(&self, recovery: &Recovery) -> Vec<Estate> {
        let dead = recovery.dead;
        let mut estates = Vec::new();
        let mut free: Vec<HashRange> = self.owned_by(dead).collect();
        for migration in self.ledger.migrations().values().filter(|m| m.is_under_way()) {
            let inside = intersection(&free, &[migration.range]);
            free = without(&free, &[migration.range]);
            let Some(Dependency { remaining, .. }) = recovering(migration) else { continue };
            let remaining: &[HashRange] = match planted::is(Bug::DependencyDroppedEarly) {
                true => &[],
                false => remaining,
            };
            let Migration { id, source, target, .. } = *migration;
            let (heirs, rest) = match (self.is_dead(source), self.is_dead(target)) {
                (_, false) => (Heirs::Only(target), Heirs::Anybody),
                (false, true) => (Heirs::Only(source), Heirs::AllBut(source)),
                (true, true) => (Heirs::Anybody, Heirs::Anybody),
            };
            let moving = match (target == dead, source == dead && !self.is_dead(target)) {
                (true, _) => intersection(&inside, remaining),
                (false, true) => remaining.to_vec(),
                (false, false) => Vec::new(),
            };
            let estate = |range| Estate { dead, range, lineage: Some(id), heirs };
            estates.extend(moving.into_iter().map(estate));
            // What others have recovered of it, before they died, is like what the target had.
            let arrived = without(&inside, remaining).into_iter();
            estates.extend(arrived.map(|range| Estate { dead, range, lineage: None, heirs: rest }));
        }
        let estate = |range| Estate { dead, range, lineage: None, heirs: Heirs::Anybody };
        estates.extend(free.into_iter().map(estate));
        let given: Vec<HashRange> = recovery.parts().iter().map(|part| part.range).collect();
        let rest = |estate: Estate| {
            let ranges = without(&[estate.range], &given).into_iter();
            ranges.map(move |range| Estate { range, ..estate })
        };
        estates.into_iter().flat_map(rest).collect()
    }

    /// The dead servers whose logs have it.
    pub(super) fn logs_of(&self, estate: &Estate) -> Vec<ServerId> {
        match (estate.heirs, estate.lineage.and_then(|id| self.ledger.migrations().get(&id))) {
            (Heirs::Anybody, Some(migration)) => vec![migration.target, migration.source],
            (Heirs::Only(_) | Heirs::AllBut(_) | Heirs::Anybody, _) => vec![estate.dead],
        }
    }

    /// The logs that a part is recovered from.
    pub(super) fn logs_of_part(&self, dead: ServerId, part: &Part) -> Vec<RecoveryLog> {
        let held = self.tablet_around(part.range).tenures.clone();
        let migration = part.lineage.and_then(|id| self.ledger.migrations().get(&id));
        let lineage = migration.and_then(|migration| Some((migration, migration.dependency()?)));
        let Some((migration, dependency)) = lineage else {
            return vec![RecoveryLog { dead, old_tenures: held }];
        };
        let of_target = RecoveryLog { dead: migration.target, old_tenures: held };
        let old_tenures = dependency.source_tenures.clone();
        let of_source = RecoveryLog { dead: migration.source, old_tenures };
        match part.master {
            master if master == migration.source => {
                match planted::is(Bug::TakenBackWithoutTarget) {
                    true => vec![RecoveryLog { old_tenures: Vec::new(), ..of_target }],
                    false => vec![of_target],
                }
            }
            master if master == migration.target => vec![of_source],
            _ => vec![of_target, of_source],
        }
    }

    /// Whether the part's master has something of it already.
    pub(super) fn is_kept(&self, part: &Part) -> bool {
        let migration = part.lineage.and_then(|id| self.ledger.migrations().get(&id));
        migration.is_some_and(|m| part.master == m.source || part.master == m.target)
    }

    /// Under which tenures a part is served again.
    pub(super) fn tenures_for(
        &self,
        counters: &mut Counters,
        lineage: Option<MigrationId>,
        (range, master): (HashRange, ServerId),
    ) -> Vec<Tenure> {
        let migration = lineage.and_then(|id| self.ledger.migrations().get(&id));
        match migration.and_then(|migration| Some((migration, migration.dependency()?))) {
            Some((migration, dependency)) if master == migration.source => {
                let held = dependency.source_tenures.iter();
                held.map(|&held| if held.0 == 0 { counters.draw_tenure() } else { held }).collect()
            }
            Some((migration, _)) if master == migration.target => {
                self.tablet_around(range).tenures.clone()
            }
            Some(_) | None => counters.draw_tenures(),
        }
    }

    /// The range has everything again that was in either log.
    pub(super) fn inherit(
        &mut self,
        at: Moment,
        edit: Edit,
        migration: &Migration,
        range: HashRange,
    ) -> Result<(), Stopped> {
        let remaining = migration.dependency().map(|dependency| &dependency.remaining[..]);
        let rest = without(remaining.unwrap_or_default(), &[range]);
        self.depend(at, edit, migration, rest)
    }

    /// Whether something of the migration has been handed out.
    pub(in crate::machine) fn has_lineage_parts(&self, migration: MigrationId) -> bool {
        let mut parts = self.ledger.recoveries().values().flat_map(Recovery::parts);
        parts.any(|part| part.lineage == Some(migration))
    }

    /// Whether another dead server's recovery hands out what is in this log, too.
    pub(super) fn is_half_of_a_lineage(&self, dead: ServerId) -> bool {
        let mut migrations = self.ledger.migrations().values().filter(|m| m.is_recovering());
        migrations.any(|m| m.source == dead && self.is_dead(m.target))
    }

    /// Whose recoveries may have handed out parts that are read from this log.
    pub(super) fn readers_of(&self, log: ServerId) -> BTreeSet<ServerId> {
        let migrations = self.ledger.migrations().values().filter(|m| m.is_recovering());
        let targets = migrations.filter(|m| m.source == log).map(|m| m.target);
        targets.chain([log]).collect()
    }
}

/// What of a migration is in two places.
fn recovering(migration: &Migration) -> Option<&Dependency> {
    migration.dependency().filter(|_| migration.is_recovering())
}

/// What lies in the first list only.
fn without(ranges: &[HashRange], taken: &[HashRange]) -> Vec<HashRange> {
    taken.iter().fold(ranges.to_vec(), |rest, &taken| {
        rest.iter().flat_map(|range| range.without(taken)).flatten().collect()
    })
}
