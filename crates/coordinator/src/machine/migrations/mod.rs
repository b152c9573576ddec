//! Migrations: when they start, which demand is open, and their reports for operators.
//!
//! A migration's stage is durable; `transitions.rs` changes it by messages of its sides, and
//! `absences.rs` by the absence or death of a side. This component keeps only the state that a
//! restarted coordinator does without: send times of demands, and progress.

mod absences;
mod demands;
mod reports;
mod transitions;

pub(super) use demands::DEMAND_AGAIN;
pub(super) use transitions::MigrationSender;

use super::decision::Decision;
use super::membership::Membership;
use super::view::ClusterView;
use crate::admission::{HISTORY_MAX, MoveRequest, plan};
use crate::configuration::{ClusterConfiguration, Edit};
use crate::records::{Ending, Migration, MigrationStage};
use std::collections::{BTreeMap, BTreeSet};
use types::{HashRange, Instant, MigrationId, ServerId, UnixMillis};
use wire::control::MigrationProgress;

/// The volatile state of all migrations.
#[derive(Debug)]
pub(super) struct Migrations {
    /// Next send time of each migration's demand. Contains only migrations that have one.
    due: BTreeMap<MigrationId, Instant>,
    /// Newest reported progress of live migrations, shown to operators.
    progress: BTreeMap<MigrationId, (MigrationProgress, UnixMillis)>,
    /// A queued migration may have become startable.
    queue_is_stale: bool,
    /// Time at which a queued migration no longer waits for a side that is away.
    queue_waits_until: Option<Instant>,
    /// Time of the next demand or of the end of a wait, as of the last pass over all migrations.
    deadline: Option<Instant>,
}

impl Migrations {
    /// Continues with every migration of the configuration.
    pub(super) fn new(
        configuration: &ClusterConfiguration,
        membership: &Membership,
        now: Instant,
    ) -> Migrations {
        let due = configuration.migrations().keys().map(|&migration| (migration, now)).collect();
        let mut migrations = Migrations {
            due,
            progress: BTreeMap::new(),
            queue_is_stale: true,
            queue_waits_until: None,
            deadline: None,
        };
        migrations.find_deadline(configuration, membership);
        migrations
    }

    /// Computes the next time at which a demand is due, or a migration stops waiting for an absent
    /// side. Every event after which this time may be earlier is followed by another computation.
    pub(super) fn find_deadline(
        &mut self,
        configuration: &ClusterConfiguration,
        membership: &Membership,
    ) {
        let demands = self.demand_times(configuration, membership);
        let absences = self.absence_times(configuration, membership);
        self.deadline = demands.chain(absences).chain(self.queue_waits_until).min();
    }

    /// Returns the time found by the last [`Migrations::find_deadline`].
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Follows a commit that changed these migrations.
    pub(super) fn committed(
        &mut self,
        now: Instant,
        changed: Vec<MigrationId>,
        configuration: &ClusterConfiguration,
    ) {
        self.queue_is_stale |= !changed.is_empty();
        for id in changed {
            // The stage has changed, so the next demand is due at once.
            self.due.insert(id, now);
            if !configuration.migrations().get(&id).is_some_and(Migration::is_live) {
                self.progress.remove(&id);
            }
        }
        let is_live = |id| configuration.migrations().get(id).is_some_and(Migration::is_live);
        debug_assert!(self.progress.keys().all(is_live), "progress of a migration that has ended");
    }

    /// Records that a queued migration may have become startable.
    pub(super) fn mark_queue_stale(&mut self) {
        self.queue_is_stale = true;
    }

    /// Queues all moves of a request, or none. `objection` gives the reason why no range may move
    /// to or from a server.
    ///
    /// # Errors
    /// The reason for refusing the request.
    pub(super) fn queue(
        &self,
        request: &MoveRequest<'_>,
        objection: impl Fn(ServerId) -> Option<String>,
        view: ClusterView<'_>,
    ) -> Result<(Edit, Vec<MigrationId>), String> {
        let is_connected = |server| view.membership.is_connected(server);
        let moves = plan(view.configuration, request, is_connected)?;
        let mut sides = moves.iter().map(|(_, source)| *source).chain([request.target]);
        if let Some(reason) = sides.find_map(objection) {
            return Err(reason);
        }
        let mut edit = view.configuration.edit();
        let mut started: Vec<MigrationId> = Vec::with_capacity(moves.len());
        for (range, source) in moves {
            assert_ne!(source, request.target, "{range} moves to its own server");
            let id = edit.counters.draw_migration();
            edit.put_migration(Migration {
                id,
                task: started.first().copied().unwrap_or(id),
                range,
                source,
                target: request.target,
                policy: *request.policy,
                created: view.at.wall,
                updated: view.at.wall,
                progress: MigrationProgress::default(),
                stage: MigrationStage::Queued,
            });
            started.push(id);
        }
        Ok((edit, started))
    }

    /// Cancels migrations. Those unknown to their target end at once; the others end after the
    /// target has been asked. Returns the number of cancelled migrations as well.
    pub(super) fn cancel(
        &self,
        is_meant: impl Fn(&Migration) -> bool,
        view: ClusterView<'_>,
    ) -> (u32, Edit) {
        let mut edit = view.configuration.edit();
        let mut cancelled = 0;
        for migration in view.configuration.migrations().values().filter(|m| is_meant(m)) {
            let stage = match &migration.stage {
                MigrationStage::Queued | MigrationStage::Measuring => {
                    MigrationStage::Ended { ending: Ending::Cancelled, unheard: None }
                }
                MigrationStage::Preparing(terms) | MigrationStage::Withdrawing { terms, .. } => {
                    let (terms, ending) = (terms.clone(), Ending::Cancelled);
                    MigrationStage::Withdrawing { terms, ending }
                }
                MigrationStage::Flipping(terms) | MigrationStage::Deciding { terms, .. } => {
                    let (terms, otherwise) = (terms.clone(), Ending::Cancelled);
                    MigrationStage::Deciding { terms, otherwise }
                }
                MigrationStage::Orphaned { terms, .. } => {
                    let (terms, otherwise) = (terms.clone(), Ending::Cancelled);
                    MigrationStage::Orphaned { terms, otherwise }
                }
                MigrationStage::Moving(_)
                | MigrationStage::Recovering(_)
                | MigrationStage::Releasing { .. }
                | MigrationStage::Ended { .. } => continue,
            };
            cancelled += 1;
            edit.put_migration(Migration { stage, updated: view.at.wall, ..migration.clone() });
        }
        (cancelled, edit)
    }

    /// Returns a change that starts every queued migration that is no longer blocked. After its
    /// commit others may be blocked or startable: it is asked for again until there is none.
    pub(super) fn next_start(&mut self, view: ClusterView<'_>) -> Option<Edit> {
        let is_over = self.queue_waits_until.is_some_and(|until| until <= view.at.now);
        if !std::mem::take(&mut self.queue_is_stale) && !is_over {
            return None;
        }
        let QueueStarts { edit, waits_until } = start_free(view);
        assert!(waits_until.is_none_or(|until| until > view.at.now), "the queue waits in vain");
        self.queue_waits_until = waits_until;
        (!edit.is_empty()).then_some(edit)
    }

    /// Drops the oldest ended migrations from the history. `None`: the history is short enough.
    pub(super) fn prune_history(&self, view: ClusterView<'_>) -> Option<Decision> {
        let ended = || view.configuration.migrations().values().filter(|m| !m.is_live());
        let surplus = ended().count().saturating_sub(HISTORY_MAX);
        if surplus == 0 {
            return None;
        }
        let mut edit = view.configuration.edit();
        let mut unheard_of = BTreeSet::new();
        for migration in ended().take(surplus) {
            assert!(!migration.is_live(), "{} is dropped before it has ended", migration.id);
            edit.remove_migration(migration.id);
            // The question for the target is lost with the record, so the target is never
            // admitted again.
            if let MigrationStage::Ended { unheard: Some(_), .. } = migration.stage {
                unheard_of.insert(migration.target);
            }
        }
        Some(Decision { edit: Some(edit), dead: unheard_of, messages: Vec::new() })
    }

    /// Returns the change to a migration's new stage, together with the other changes of the edit.
    fn advance(
        &self,
        mut edit: Edit,
        migration: &Migration,
        stage: MigrationStage,
        view: ClusterView<'_>,
    ) -> Edit {
        migration.stage.assert_leads_to(&stage, migration.id);
        let progress = self.progress_of(migration).0;
        let mut next = Migration { updated: view.at.wall, progress, ..migration.clone() };
        next.stage = stage;
        edit.put_migration(next);
        edit
    }

    fn progress_of(&self, migration: &Migration) -> (MigrationProgress, UnixMillis) {
        let written = (migration.progress, migration.updated);
        self.progress
            .get(&migration.id)
            .map_or(written, |heard| (heard.0, heard.1.max(migration.updated)))
    }
}

/// Most migrations under way from one server, and most to one.
///
/// The target of each one reserves two segments per reactor besides the bytes that move: 128 MiB
/// for segments of 8 MiB and eight reactors. A hundred small migrations at once would find no room
/// on a server with gigabytes of free memory; eight reserve 1 GiB. They pull 64 partitions at a
/// time, more than a target has processors for, and hide the round trips of small migrations.
pub(super) const MIGRATIONS_OF_SIDE_MAX: usize = 8;

/// The sides of the migrations under way, with the number of these migrations. Migrations of which
/// a side is away do not count: they may stay as they are for ever.
struct BusySides {
    sources: BTreeMap<ServerId, usize>,
    targets: BTreeMap<ServerId, usize>,
}

impl BusySides {
    fn of(view: ClusterView<'_>) -> BusySides {
        let mut busy = BusySides { sources: BTreeMap::new(), targets: BTreeMap::new() };
        let is_here = |server: ServerId| view.membership.is_connected(server);
        let under_way = view.configuration.under_way();
        under_way.filter(|m| is_here(m.source) && is_here(m.target)).for_each(|m| busy.add(m));
        busy
    }

    fn add(&mut self, migration: &Migration) {
        *self.sources.entry(migration.source).or_default() += 1;
        *self.targets.entry(migration.target).or_default() += 1;
    }

    /// Returns whether both sides can take part in one more migration.
    fn have_room_for(&self, migration: &Migration) -> bool {
        let has_room = |count: Option<&usize>| count.is_none_or(|it| *it < MIGRATIONS_OF_SIDE_MAX);
        has_room(self.sources.get(&migration.source))
            && has_room(self.targets.get(&migration.target))
    }
}

/// The queued migrations that start.
struct QueueStarts {
    edit: Edit,
    /// Time at which another one no longer waits for a side that is away.
    waits_until: Option<Instant>,
}

/// Starts the unblocked migrations. A migration is blocked by another one with a shared hash that
/// is under way or queued before it, by a tablet that its owner does not hold durably, and while a
/// side is away or takes part in many others. If a side is dead or away for too long the migration
/// starts, and ends at once.
fn start_free(view: ClusterView<'_>) -> QueueStarts {
    let configuration = view.configuration;
    let tablets = configuration.tablets().values().filter(|tablet| !tablet.is_durable());
    let under_way = configuration.under_way().map(|migration| migration.range);
    let mut taken: Vec<HashRange> = under_way.chain(tablets.map(|tablet| tablet.range)).collect();
    let mut busy = BusySides::of(view);
    let (mut edit, mut waits_until) = (configuration.edit(), None);
    let queued = configuration.migrations().values();
    for migration in queued.filter(|m| m.stage == MigrationStage::Queued) {
        let sides = [migration.source, migration.target];
        let dead = sides.into_iter().find(|&side| configuration.is_dead(side));
        let given_up = sides.into_iter().filter_map(|side| view.membership.given_up_at(side)).min();
        let may_start = match given_up.filter(|_| dead.is_none()) {
            Some(at) if at > view.at.now => {
                waits_until = waits_until.into_iter().chain([at]).min();
                false
            }
            Some(_) => true,
            None => dead.is_some() || busy.have_room_for(migration),
        };
        let is_free = may_start && !taken.iter().any(|range| range.overlaps(migration.range));
        taken.push(migration.range);
        if is_free {
            assert!(!migration.is_under_way(), "{} starts twice", migration.id);
            // An earlier migration of the range may have changed the preconditions.
            let stage = match dead {
                Some(dead) => failed(&format!("{dead} died")),
                None if configuration.tablet_to_move(migration).is_none() => failed(NOT_OWNED),
                None => MigrationStage::Measuring,
            };
            if stage == MigrationStage::Measuring && given_up.is_none() {
                busy.add(migration);
            }
            edit.put_migration(Migration { stage, updated: view.at.wall, ..migration.clone() });
        }
    }
    QueueStarts { edit, waits_until }
}

const NOT_OWNED: &str = "Slots are not served by the source node";

/// Returns the ending of a migration that the target does not know of, or has refused.
fn failed(reason: &str) -> MigrationStage {
    MigrationStage::Ended { ending: Ending::Failed(reason.to_owned()), unheard: None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::configuration::tests::{empty, migrating, migration, terms};
    use crate::machine::CoordinatorSettings;
    use crate::outbox::Moment;

    /// Makes a migration go from one stage to another.
    fn advance(before: MigrationStage, after: MigrationStage) -> Edit {
        let now = Instant(0);
        let configuration = migrating(before.clone());
        let settings = CoordinatorSettings::default();
        let membership = Membership::new(&settings, &configuration, now);
        let at = Moment { now, wall: UnixMillis(0) };
        let view = ClusterView::new(at, &configuration, &membership);
        let migrations = Migrations::new(&configuration, &membership, now);
        migrations.advance(configuration.edit(), &migration(before), after, view)
    }

    #[test]
    fn a_prepared_migration_may_flip() {
        let (before, after) =
            (MigrationStage::Preparing(terms()), MigrationStage::Flipping(terms()));
        assert_eq!(advance(before, after).touched_migrations(), [MigrationId(1)]);
        let membership = Membership::new(&CoordinatorSettings::default(), &empty(), Instant(0));
        let migrations = Migrations::new(&empty(), &membership, Instant(0));
        assert!(migrations.due.is_empty() && migrations.next_deadline().is_none());
    }

    #[test]
    #[should_panic(expected = "goes from Measuring to Flipping")]
    fn a_migration_does_not_flip_before_it_is_prepared() {
        advance(MigrationStage::Measuring, MigrationStage::Flipping(terms()));
    }
}
