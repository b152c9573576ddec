//! Orphaned ranges of a dead server, in particular ranges that were moving when it died.
//!
//! After its flip, a migration has *remaining* ranges, which its target does not have durably. When
//! a side dies, the data of these ranges is in two places. Each kind is an orphaned range
//! ([`OrphanedRange`]) of its own:
//!
//! | dead | remaining ranges | read from | rest of the migration's range |
//! | --- | --- | --- | --- |
//! | target | to the source, which keeps its copy | target's log | to any but the source (1) |
//! | source | to the target, which keeps what it has | source's log | stays with the target |
//! | both | to any server | both logs | to any, from the target's log |
//!
//! (1) From the target's log; the source must release its copy of it first.
//!
//! A served-before-durable tablet is in two logs, too: its owner's, and the dead server's from
//! which it was recovered ([`RecoveryDependency`]). If the owner dies, any server recovers it from
//! both.
//!
//! The row follows from the set of dead servers. A survivor that dies before it has recovered its
//! ranges therefore changes only the row. A server that keeps its data keeps its incarnations. A
//! table flushed by the target is the exception: the source gets a new incarnation for it, and the
//! source's records of that table are invalid.

use crate::configuration::ClusterConfiguration;
use crate::ranges::{intersection, without};
use crate::records::{
    AssignedPartition, LineageDependency, Migration, RecoveryDependency, RecoveryRecord, Sequences,
};
use planted::Bug;
use types::{HashRange, Incarnation, MigrationId, ServerId};
use wire::control::RecoveryLog;

/// An orphaned range: left by a dead server and not yet assigned to a recovery master.
#[derive(Debug)]
pub(super) struct OrphanedRange {
    /// The dead server; its recovery assigns the range.
    dead: ServerId,
    /// The range. It lies within one tablet.
    pub(super) range: HashRange,
    pub(super) lineage: Option<MigrationId>,
    pub(super) permitted: PermittedMasters,
}

/// The candidate recovery masters of an orphaned range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum PermittedMasters {
    /// The living side of its migration.
    Only(ServerId),
    Anybody,
    /// Any server but this one, which still holds some of the range and is about to drop it.
    AllBut(ServerId),
}

impl OrphanedRange {
    /// Returns every range that this recovery has still to assign.
    pub(super) fn all_of(
        recovery: &RecoveryRecord,
        configuration: &ClusterConfiguration,
    ) -> Vec<OrphanedRange> {
        let dead = recovery.dead;
        assert!(configuration.is_dead(dead), "{dead} is recovered and lives");
        let mut orphaned = Vec::new();
        let mut free: Vec<HashRange> = configuration.owned_by(dead).collect();
        for migration in configuration.under_way() {
            let inside = intersection(&free, &[migration.range]);
            free = without(&free, &[migration.range]);
            orphaned.extend(OrphanedRange::left_by(migration, dead, &inside, configuration));
        }
        let of_nobody = |range| OrphanedRange {
            dead,
            range,
            lineage: None,
            permitted: PermittedMasters::Anybody,
        };
        orphaned.extend(free.into_iter().map(of_nobody));
        let given: Vec<HashRange> = recovery.parts().iter().map(|part| part.range).collect();
        let rest = |orphan: OrphanedRange| {
            let ranges = without(&[orphan.range], &given).into_iter();
            ranges.map(move |range| OrphanedRange { range, ..orphan })
        };
        orphaned.into_iter().flat_map(rest).collect()
    }

    /// Returns the ranges that a recovering migration has left to a dead server. `inside` are the
    /// dead server's ranges within the migration.
    fn left_by(
        migration: &Migration,
        dead: ServerId,
        inside: &[HashRange],
        configuration: &ClusterConfiguration,
    ) -> Vec<OrphanedRange> {
        let Some(LineageDependency { remaining, .. }) = recovering(migration) else {
            return Vec::new();
        };
        let remaining: &[HashRange] = match planted::is(Bug::DependencyDroppedEarly) {
            true => &[],
            false => remaining,
        };
        let Migration { id, source, target, .. } = *migration;
        let is_target_dead = configuration.is_dead(target);
        let (permitted, rest) = match (configuration.is_dead(source), is_target_dead) {
            (_, false) => (PermittedMasters::Only(target), PermittedMasters::Anybody),
            (false, true) => (PermittedMasters::Only(source), PermittedMasters::AllBut(source)),
            (true, true) => (PermittedMasters::Anybody, PermittedMasters::Anybody),
        };
        let moving = match (target == dead, source == dead && !is_target_dead) {
            (true, _) => intersection(inside, remaining),
            (false, true) => remaining.to_vec(),
            (false, false) => Vec::new(),
        };
        let moving = moving.into_iter().map(|range| OrphanedRange {
            dead,
            range,
            lineage: Some(id),
            permitted,
        });
        // Parts recovered by other servers that died since are treated like the target's own.
        let arrived = without(inside, remaining).into_iter();
        let arrived =
            arrived.map(|range| OrphanedRange { dead, range, lineage: None, permitted: rest });
        moving.chain(arrived).collect()
    }

    /// Returns the dead servers whose logs contain the range.
    pub(super) fn logs(&self, configuration: &ClusterConfiguration) -> Vec<ServerId> {
        let migration = self.lineage.and_then(|id| configuration.migrations().get(&id));
        match (migration, self.permitted) {
            (Some(migration), PermittedMasters::Anybody) => {
                vec![migration.target, migration.source]
            }
            (Some(_), PermittedMasters::Only(_) | PermittedMasters::AllBut(_)) => vec![self.dead],
            (None, _) => {
                let dependency = dependency_of(self.range, configuration);
                std::iter::once(self.dead).chain(dependency.map(|on| on.dead)).collect()
            }
        }
    }
}

/// Returns the dependency of a dead server's range on the log of an earlier dead server.
fn dependency_of(
    range: HashRange,
    configuration: &ClusterConfiguration,
) -> Option<&RecoveryDependency> {
    let dependency = configuration.tablet_around(range).depends_on.as_ref();
    dependency.filter(|_| !planted::is(Bug::DependencyDroppedEarly))
}

/// Returns the logs from which a partition is recovered.
pub(super) fn logs_of_part(
    dead: ServerId,
    part: &AssignedPartition,
    configuration: &ClusterConfiguration,
) -> Vec<RecoveryLog> {
    let held = configuration.tablet_around(part.range).incarnations.clone();
    let migration = part.lineage.and_then(|id| configuration.migrations().get(&id));
    let lineage = migration.and_then(|migration| Some((migration, migration.dependency()?)));
    let Some((migration, dependency)) = lineage else {
        let earlier = dependency_of(part.range, configuration)
            .map(|on| RecoveryLog { dead: on.dead, old_incarnations: on.old_incarnations.clone() });
        let own = RecoveryLog { dead, old_incarnations: held };
        return std::iter::once(own).chain(earlier).collect();
    };
    assert!(migration.has_side(dead), "{dead} is no side of the lineage of {}", part.range);
    let of_target = RecoveryLog { dead: migration.target, old_incarnations: held };
    let old_incarnations = dependency.source_incarnations.clone();
    let of_source = RecoveryLog { dead: migration.source, old_incarnations };
    match part.master {
        master if master == migration.source => match planted::is(Bug::TakenBackWithoutTarget) {
            true => vec![RecoveryLog { old_incarnations: Vec::new(), ..of_target }],
            false => vec![of_target],
        },
        master if master == migration.target => vec![of_source],
        _ => vec![of_target, of_source],
    }
}

/// Returns whether the partition's recovery master already has some of its data.
pub(super) fn is_kept(part: &AssignedPartition, configuration: &ClusterConfiguration) -> bool {
    let migration = part.lineage.and_then(|id| configuration.migrations().get(&id));
    migration.is_some_and(|migration| migration.has_side(part.master))
}

/// Returns the incarnations under which a master serves a range again.
pub(super) fn incarnations_for(
    master: ServerId,
    range: HashRange,
    lineage: Option<MigrationId>,
    counters: &mut Sequences,
    configuration: &ClusterConfiguration,
) -> Vec<Incarnation> {
    let migration = lineage.and_then(|id| configuration.migrations().get(&id));
    match migration.and_then(|migration| Some((migration, migration.dependency()?))) {
        Some((migration, dependency)) if master == migration.source => {
            let held = dependency.source_incarnations.iter();
            held.map(|&held| if held.0 == 0 { counters.draw_incarnation() } else { held }).collect()
        }
        Some((migration, _)) if master == migration.target => {
            configuration.tablet_around(range).incarnations.clone()
        }
        Some(_) | None => counters.draw_incarnations(),
    }
}

/// Returns the ranges of a migration whose data is in two places.
fn recovering(migration: &Migration) -> Option<&LineageDependency> {
    migration.dependency().filter(|_| migration.is_recovering())
}
