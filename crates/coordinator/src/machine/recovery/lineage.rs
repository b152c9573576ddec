//! Orphaned ranges of a dead server, in particular ranges that were moving when it died.
//!
//! After its flip, a migration has *remaining* ranges, which its target does not have durably. When
//! a side dies, the data of these ranges is in two places. Each kind is an orphaned range
//! ([`Estate`]) of its own:
//!
//! | dead | remaining ranges | read from | rest of the migration's range |
//! | --- | --- | --- | --- |
//! | target | to the source, which keeps its copy | target's log | to any but the source (1) |
//! | source | to the target, which keeps what it has | source's log | stays with the target |
//! | both | to any server | both logs | to any, from the target's log |
//!
//! (1) From the target's log; the source must release its copy of it first.
//!
//! A served-before-durable recovery partition (an *inheritance* in the code) is recorded as a
//! migration from the dead server to the recovery master. If that master dies, both sides are dead.
//!
//! The row follows from the set of dead servers. A survivor that dies before it has recovered its
//! ranges therefore changes only the row. A server that keeps its data keeps its incarnations. A
//! table flushed by the target is the exception: the source gets a new incarnation for it, and the
//! source's records of that table are invalid.

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

/// An orphaned range: left by a dead server and not yet assigned to a recovery master.
#[derive(Debug)]
pub(super) struct Estate {
    /// The dead server; its recovery assigns the range.
    dead: ServerId,
    /// The range. It lies within one tablet.
    pub(super) range: HashRange,
    pub(super) lineage: Option<MigrationId>,
    pub(super) heirs: Heirs,
}

/// The candidate recovery masters of an orphaned range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Heirs {
    /// The living side of its migration.
    Only(ServerId),
    Anybody,
    /// Any server but this one, which still holds some of the range and is about to drop it.
    AllBut(ServerId),
}

impl<S: MetaStore> Coordinator<S> {
    /// Returns every range that this recovery has still to assign.
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
            // Parts recovered by other servers that died since are treated like the target's own.
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

    /// Returns the dead servers whose logs contain the orphaned range.
    pub(super) fn logs_of(&self, estate: &Estate) -> Vec<ServerId> {
        match (estate.heirs, estate.lineage.and_then(|id| self.ledger.migrations().get(&id))) {
            (Heirs::Anybody, Some(migration)) => vec![migration.target, migration.source],
            (Heirs::Only(_) | Heirs::AllBut(_) | Heirs::Anybody, _) => vec![estate.dead],
        }
    }

    /// Returns the logs from which a partition is recovered.
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

    /// Returns whether the partition's recovery master already has some of its data.
    pub(super) fn is_kept(&self, part: &Part) -> bool {
        let migration = part.lineage.and_then(|id| self.ledger.migrations().get(&id));
        migration.is_some_and(|m| part.master == m.source || part.master == m.target)
    }

    /// Returns the incarnations under which a partition is served again.
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

    /// Marks a range as recovered: it again has everything from both logs.
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

    /// Returns whether any range of the migration has been assigned to a recovery master.
    pub(in crate::machine) fn has_lineage_parts(&self, migration: MigrationId) -> bool {
        let mut parts = self.ledger.recoveries().values().flat_map(Recovery::parts);
        parts.any(|part| part.lineage == Some(migration))
    }

    /// Returns whether another dead server's recovery also assigns ranges from this log.
    pub(super) fn is_half_of_a_lineage(&self, dead: ServerId) -> bool {
        let mut migrations = self.ledger.migrations().values().filter(|m| m.is_recovering());
        migrations.any(|m| m.source == dead && self.is_dead(m.target))
    }

    /// Returns the dead servers whose recoveries may have assigned partitions read from this log.
    pub(super) fn readers_of(&self, log: ServerId) -> BTreeSet<ServerId> {
        let migrations = self.ledger.migrations().values().filter(|m| m.is_recovering());
        let targets = migrations.filter(|m| m.source == log).map(|m| m.target);
        targets.chain([log]).collect()
    }
}

/// Returns the ranges of a migration whose data is in two places.
fn recovering(migration: &Migration) -> Option<&Dependency> {
    migration.dependency().filter(|_| migration.is_recovering())
}

/// Returns the parts of the first list that are not in the second.
fn without(ranges: &[HashRange], taken: &[HashRange]) -> Vec<HashRange> {
    taken.iter().fold(ranges.to_vec(), |rest, &taken| {
        rest.iter().flat_map(|range| range.without(taken)).flatten().collect()
    })
}
