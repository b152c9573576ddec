//! Recovery of a dead server's ranges by other servers, from the replicas of its log.
//!
//! This is the coordinator's side of rules 4 and 7 to 13 of `docs/design/replication.md`:
//!
//! 1. Every connected server is asked to fence the log, and reports its replicas.
//! 2. The segment manifest is read from one of them; with it the completeness check runs
//!    (`replica_inventory.rs`).
//! 3. When the dead server's read lease is over, its ranges are assigned (`partitioning.rs`) in
//!    recovery partitions of equal load (`load_profiles.rs`). A partition is a range, a recovery
//!    master, a new epoch and new incarnations.
//! 4. A recovery master reports that it has replayed its partition, and becomes the owner.
//! 5. It reports that its own log has all of the partition, which then no longer depends on the
//!    dead server's log.
//! 6. When nothing depends on the log any more, every server frees its replicas.
//!
//! The store contains the dead server, the assigned partitions, accepted losses, and the freeing
//! stage. A restarted coordinator repeats steps 1 and 2. The open demands follow from both
//! (`demands.rs`).
//!
//! A range inside a running migration is not assigned while its owner is undecided, or while its
//! source is about to release it. `lineage.rs` covers ranges that were moving when a side died.

mod demands;
mod lineage;
mod load_profiles;
mod open_questions;
mod partitioning;
mod replica_index;
mod replica_inventory;
mod reports;

pub use demands::LISTED_BYTES_MAX;
#[cfg(test)]
pub(super) use demands::{LISTED_SEGMENTS_MAX, PARTS_GIVEN_MAX};
pub(super) use load_profiles::changed_profile;
#[cfg(test)]
pub(super) use open_questions::servers_visited;
pub(super) use replica_index::ReplicaName;
#[cfg(test)]
pub(super) use replica_index::replicas_looked_at;
#[cfg(test)]
pub(super) use replica_inventory::places_looked_up;
pub(super) use replica_inventory::{FencedReport, ManifestAnswer, ManifestQuestion};

use super::view::ClusterView;
use crate::admission::{REASON_BYTES_MAX, room_for_borders, room_for_lineage};
use crate::configuration::{ClusterConfiguration, Edit, PartitionKey};
use crate::records::{
    AssignedPartition, Migration, RecoveryDependency, RecoveryRecord, RecoveryStage, TabletRecord,
};
use demands::{DemandKind, Listing, RecoveryDemand, SentDemand};
use lineage::{OrphanedRange, PermittedMasters};
use load_profiles::Loads;
use open_questions::OpenQuestions;
use planted::Bug;
use replica_inventory::{AssessmentChange, Completeness, LogFacts, ReplicaInventory};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use types::{HashRange, Instant, ServerId};
use wire::control::LogLoss;

/// First backoff after a server hands a partition back.
const REFUSED_AGAIN: Duration = Duration::from_secs(1);

/// Longest backoff. It doubles each time until the server has recovered a partition, because a
/// server short of memory reads much of the log before it notices.
const REFUSED_AGAIN_MAX: Duration = Duration::from_secs(8);

/// The volatile state of all recoveries.
#[derive(Debug)]
pub(super) struct Recoveries {
    term: u64,
    /// Replica inventory of each recovery in the configuration.
    inventories: BTreeMap<ServerId, ReplicaInventory>,
    /// Servers that have to fence or free each of these logs.
    questions: BTreeMap<ServerId, OpenQuestions>,
    /// Each other recovery demand that was sent and is still open.
    demanded: BTreeMap<RecoveryDemand, SentDemand>,
    /// Segments listed to each recovery master in the last second.
    listings: BTreeMap<ServerId, Listing>,
    /// Servers that handed a recovery partition back, with the end of their backoff.
    refusals: BTreeMap<ServerId, Instant>,
    /// Duration of each such server's last backoff.
    pauses: BTreeMap<ServerId, Duration>,
    /// Segment lists made in this term.
    lists: u64,
    /// Since a recovery was last advanced, something has changed that neither the configuration
    /// nor the connected servers show.
    may_advance: bool,
    /// Changes of the configuration, and of the connected servers, when they were last advanced.
    advanced_at: Option<(u64, u64)>,
}

impl Recoveries {
    /// Continues with every recovery of the configuration.
    pub(super) fn new(term: u64, configuration: &ClusterConfiguration) -> Recoveries {
        let mut recoveries = Recoveries {
            term,
            inventories: BTreeMap::new(),
            questions: BTreeMap::new(),
            demanded: BTreeMap::new(),
            listings: BTreeMap::new(),
            refusals: BTreeMap::new(),
            pauses: BTreeMap::new(),
            lists: 0,
            may_advance: true,
            advanced_at: None,
        };
        recoveries.committed(configuration);
        recoveries
    }

    /// Follows a commit.
    pub(super) fn committed(&mut self, configuration: &ClusterConfiguration) {
        let recoveries = configuration.recoveries();
        self.inventories.retain(|dead, _| recoveries.contains_key(dead));
        for &dead in recoveries.keys() {
            self.inventories.entry(dead).or_default();
            self.questions.entry(dead).or_default();
        }
        self.questions.retain(|dead, _| recoveries.contains_key(dead));
        assert_eq!(self.inventories.len(), recoveries.len(), "each recovery has one inventory");
    }

    /// Step 1: records the report of a fenced backup.
    pub(super) fn fenced(
        &mut self,
        backup: ServerId,
        log: ServerId,
        report: FencedReport<'_>,
        view: ClusterView<'_>,
    ) {
        let manifest_log = view.configuration.manifest_log_of(log);
        if let Some(inventory) = self.inventories.get_mut(&log) {
            inventory.fenced(view.at.now, backup, report, manifest_log);
            if !inventory.is_to_report(backup)
                && let Some(questions) = self.questions.get_mut(&log)
            {
                questions.answered(backup, false);
            }
        }
    }

    /// Excludes a replica that its backup reported but cannot read.
    pub(super) fn damaged(&mut self, backup: ServerId, log: ServerId, replica: ReplicaName) {
        if let Some(inventory) = self.inventories.get_mut(&log) {
            inventory.damaged(backup, replica);
        }
    }

    /// Step 2: takes pieces of the manifest.
    pub(super) fn manifest_read(
        &mut self,
        log: ServerId,
        question: ManifestQuestion,
        answer: ManifestAnswer,
        view: ClusterView<'_>,
    ) {
        let Some(recovery) = view.configuration.recoveries().get(&log) else { return };
        let Some(facts) = log_facts(recovery, view) else { return };
        let Some(inventory) = self.inventories.get_mut(&log) else { return };
        inventory.note_answer(question);
        if inventory.manifest_question(&facts) == Some(question) {
            let kind = DemandKind::SegmentManifest;
            self.demanded.remove(&RecoveryDemand { dead: log, server: question.backup, kind });
            inventory.manifest_read(question, answer);
        }
    }

    /// Step 4: makes the recovery master the owner of its partition. The dead server's log is
    /// needed until the new owner's log has everything; `lineage.rs` covers its death before that.
    pub(super) fn replayed(
        &mut self,
        master: ServerId,
        key: PartitionKey,
        view: ClusterView<'_>,
    ) -> Option<Edit> {
        let PartitionKey { dead, range, .. } = key;
        let (recovery, part) = view.configuration.partition_of(master, key)?;
        let before = view.configuration.tablet_around(range);
        // A range that a migration or another dependency has left in two logs is served only once
        // it is durable: it would be in three.
        let mut under_way = view.configuration.under_way();
        let is_in_two_logs = part.lineage.is_some() || before.depends_on.is_some();
        if is_in_two_logs || under_way.any(|m| m.range.overlaps(range)) {
            return None;
        }
        assert_ne!(dead, master, "{range} would depend on the log of its own master");
        let dependency = RecoveryDependency { dead, old_incarnations: before.incarnations.clone() };
        let dependency = (!planted::is(Bug::RecoveryDependencyForgotten)).then_some(dependency);
        Some(self.handed_over(recovery, part, dependency, view.configuration))
    }

    /// Step 5: the partition's owner no longer depends on the dead server's log. Returns the
    /// change, and the lineage migration whose ranges it has recovered.
    pub(super) fn recovered<'c>(
        &mut self,
        master: ServerId,
        key: PartitionKey,
        view: ClusterView<'c>,
    ) -> Option<(Edit, Option<&'c Migration>)> {
        let PartitionKey { dead, range, epoch } = key;
        let configuration = view.configuration;
        if let Some((recovery, part)) = configuration.partition_of(master, key) {
            let edit = self.handed_over(recovery, part, None, configuration);
            let lineage = part.lineage.and_then(|id| configuration.migrations().get(&id));
            return Some((edit, lineage));
        }
        let served = configuration.tablet(master, range, epoch)?;
        let dependency = served.depends_on.as_ref().filter(|dependency| dependency.dead == dead)?;
        assert!(!configuration.is_dead(master), "{master} makes {range} durable and is dead");
        assert!(configuration.is_in_recovery(dependency.dead), "{range} lost the log of {dead}");
        let mut edit = configuration.edit();
        edit.put_tablet(TabletRecord { depends_on: None, ..served.clone() });
        Some((edit, None))
    }

    /// Returns the change that makes a partition's recovery master its owner. `dependency` is the
    /// new tablet's.
    fn handed_over(
        &mut self,
        recovery: &RecoveryRecord,
        part: &AssignedPartition,
        dependency: Option<RecoveryDependency>,
        configuration: &ClusterConfiguration,
    ) -> Edit {
        let mut edit = configuration.edit();
        let AssignedPartition { range, master: owner, epoch, incarnations, lineage } = part.clone();
        self.pauses.remove(&owner);
        let before = configuration.tablet_around(range);
        let may_lose =
            before.owner == recovery.dead || (lineage.is_some() && before.owner == owner);
        assert!(may_lose, "{range} was assigned twice");
        assert!(epoch > before.epoch, "{range} goes back from {} to {epoch}", before.epoch);
        edit.cut_out(range, configuration);
        let (is_born, depends_on) = (false, dependency);
        edit.put_tablet(TabletRecord { range, owner, epoch, incarnations, is_born, depends_on });
        if let Some(recovery) = recovery.with_parts(|other| other.epoch != epoch) {
            edit.put_recovery(recovery);
        }
        edit
    }

    /// Takes a partition back from a recovery master, for another server.
    pub(super) fn not_recovered(
        &mut self,
        master: ServerId,
        key: PartitionKey,
        mut reason: String,
        view: ClusterView<'_>,
    ) -> Option<Edit> {
        let (recovery, _) = view.configuration.partition_of(master, key)?;
        let PartitionKey { dead, range, epoch } = key;
        tracing::warn!(server = %master, %dead, %range, reason, "recovery partition handed back");
        self.back_off(view.at.now, master);
        if self.masters(view).is_empty() {
            tracing::error!(%dead, reason, "no server can take over the ranges of a dead server");
        }
        if let Some(inventory) = self.inventories.get_mut(&dead) {
            reason.truncate(reason.floor_char_boundary(REASON_BYTES_MAX));
            inventory.refusal = reason;
        }
        let mut edit = view.configuration.edit();
        if let Some(recovery) = recovery.with_parts(|other| other.epoch != epoch) {
            edit.put_recovery(recovery);
        }
        Some(edit)
    }

    /// Starts a server's backoff. Returned partitions count once during one backoff.
    fn back_off(&mut self, now: Instant, server: ServerId) {
        if self.refusals.get(&server).is_none_or(|until| *until <= now) {
            let pause = self.pauses.get(&server).map_or(REFUSED_AGAIN, |last| *last * 2);
            let pause = pause.min(REFUSED_AGAIN_MAX);
            self.pauses.insert(server, pause);
            self.refusals.insert(server, now + pause);
        }
        let is_backing_off = self.refusals.get(&server).is_some_and(|until| *until > now);
        assert!(is_backing_off, "{server} hands a partition back and is asked again at once");
    }

    /// Step 6: records that a backup has freed its replicas of the log.
    pub(super) fn log_freed(
        &mut self,
        backup: ServerId,
        log: ServerId,
        configuration: &ClusterConfiguration,
    ) {
        let stage = configuration.recoveries().get(&log).map(|recovery| &recovery.stage);
        if let Some(RecoveryStage::Freeing) = stage
            && let Some(inventory) = self.inventories.get_mut(&log)
        {
            inventory.freed(backup);
            if let Some(questions) = self.questions.get_mut(&log) {
                questions.answered(backup, true);
            }
        }
    }

    /// Returns the change that continues without missing parts of a log, on an operator's
    /// decision, and the number of segments that are given up.
    ///
    /// # Errors
    /// The reason for refusing the decision.
    pub(super) fn accept_loss(
        &self,
        dead: ServerId,
        named: &LogLoss,
        view: ClusterView<'_>,
    ) -> Result<(Edit, u32), String> {
        let Some(recovery) = view.configuration.recoveries().get(&dead) else {
            return Err(format!("{dead} is not being recovered"));
        };
        let RecoveryStage::Recovering { parts, loss } = &recovery.stage else {
            return Err(format!("all ranges of {dead} are served"));
        };
        let (mut loss, parts) = (loss.clone(), parts.clone());
        match self.report(recovery, view).loss() {
            Some(missing) if missing != *named => {
                return Err(format!("the missing part of the log of {dead} is: {missing}"));
            }
            Some(_) | None => {}
        }
        let count = match self.completeness(recovery, view) {
            Completeness::SegmentsMissing(missing) => {
                assert!(!missing.is_empty(), "the loss of nothing is accepted");
                let count = missing.len() as u32;
                loss.segments.extend(missing);
                count
            }
            Completeness::ManifestMissing => {
                loss.manifest = true;
                0
            }
            Completeness::Collecting | Completeness::ReadingManifest | Completeness::Complete => {
                return Err(format!("no part of the log of {dead} is known to be missing"));
            }
        };
        tracing::warn!(%dead, segments = count, "operator accepted the loss of a part of a log");
        let mut edit = view.configuration.edit();
        let stage = RecoveryStage::Recovering { parts, loss };
        edit.put_recovery(RecoveryRecord { stage, ..recovery.clone() });
        Ok((edit, count))
    }

    /// Ends the backoffs and leases whose time is over, and judges every log. All are judged before
    /// any recovery advances: one recovery may need another one's log.
    pub(super) fn pass(&mut self, view: ClusterView<'_>) {
        let now = view.at.now;
        let refusals = self.refusals.len();
        self.refusals.retain(|_, until| *until > now);
        self.may_advance |= self.refusals.len() < refusals;
        for inventory in self.inventories.values_mut() {
            self.may_advance |= inventory.pass(now);
        }
        if view.configuration.recoveries().is_empty() {
            self.pauses.clear();
        }
        self.assess(view);
    }

    /// Checks every log whose inventory, or another fact, has changed since its last check. Each
    /// changed list of segments gets a number.
    fn assess(&mut self, view: ClusterView<'_>) {
        for (&dead, recovery) in view.configuration.recoveries() {
            let Some(facts) = log_facts(recovery, view) else { continue };
            let Some(inventory) = self.inventories.get_mut(&dead) else { continue };
            let next = (self.term << 32) + self.lists + 1;
            let AssessmentChange { is_listed_anew, is_result_new } = inventory.assess(&facts, next);
            self.may_advance |= is_result_new;
            if is_listed_anew {
                self.lists += 1;
                assert!(self.lists < 1 << 32, "the numbers of segment lists of a term are used up");
            }
        }
    }

    /// Returns the recoveries that may advance now: those that free a log, and all if anything has
    /// changed on which the others depend. `changes` counts the changes of the configuration.
    pub(super) fn take_advancing(&mut self, changes: u64, view: ClusterView<'_>) -> Vec<ServerId> {
        let advanced_at = Some((changes, view.membership.connected().revision()));
        let may_advance = std::mem::take(&mut self.may_advance) || self.advanced_at != advanced_at;
        self.advanced_at = advanced_at;
        let recoveries = view.configuration.recoveries();
        let may_step = |it: &&RecoveryRecord| match it.stage {
            RecoveryStage::Recovering { .. } => {
                debug_assert!(
                    may_advance || self.next_step(it.dead, view).is_none(),
                    "the recovery of {} can advance and nothing has changed",
                    it.dead
                );
                may_advance
            }
            RecoveryStage::Freeing => true,
        };
        recoveries.values().filter(may_step).map(|recovery| recovery.dead).collect()
    }

    /// Returns the change that advances a recovery. `None`: it has to wait.
    pub(super) fn next_step(&self, dead: ServerId, view: ClusterView<'_>) -> Option<Edit> {
        let configuration = view.configuration;
        let recovery = configuration.recoveries().get(&dead)?;
        match &recovery.stage {
            RecoveryStage::Recovering { .. } if configuration.is_log_needed(dead) => {
                self.assign(recovery, view)
            }
            RecoveryStage::Recovering { parts, .. } => {
                let is_planted = planted::is(Bug::FreedWhileDependedOn);
                assert!(parts.is_empty() || is_planted, "{dead}: {parts:?} need the log");
                let mut edit = configuration.edit();
                let (stage, recovery) = (RecoveryStage::Freeing, recovery.clone());
                edit.put_recovery(RecoveryRecord { stage, ..recovery });
                Some(edit)
            }
            RecoveryStage::Freeing if self.is_freed(dead, view) => {
                let mut edit = configuration.edit();
                edit.remove_recovery(dead);
                if configuration.load_profiles().contains_key(&dead) {
                    edit.remove_load_profile(dead);
                }
                Some(edit)
            }
            RecoveryStage::Freeing => None,
        }
    }

    /// Step 3: returns the change that assigns everything that can be assigned.
    fn assign(&self, recovery: &RecoveryRecord, view: ClusterView<'_>) -> Option<Edit> {
        let configuration = view.configuration;
        let mut orphaned = OrphanedRange::all_of(recovery, configuration);
        let readable = self.readable_logs(&orphaned, view);
        orphaned.retain(|orphan| orphan.logs(configuration).iter().all(|it| readable.contains(it)));
        let mut room = room_for_lineage(configuration);
        orphaned.retain(|orphan| {
            let borders = if orphan.lineage.is_some() { 2 } else { 0 };
            let fits = borders <= room;
            room -= if fits { borders } else { 0 };
            fits
        });
        let RecoveryStage::Recovering { parts, loss } = &recovery.stage else { return None };
        let mut parts = parts.clone();
        let before = parts.len();
        let mut edit = configuration.edit();
        for (range, master) in self.divided(recovery.dead, &orphaned, view) {
            let orphan = orphaned.iter().find(|orphan| orphan.range.covers(range));
            assert!(orphan.is_some(), "{range} is assigned and was not orphaned");
            let lineage = orphan.and_then(|orphan| orphan.lineage);
            let epoch = edit.counters.draw_epoch();
            let incarnations = lineage::incarnations_for(
                master,
                range,
                lineage,
                &mut edit.counters,
                configuration,
            );
            let is_free = |part: &AssignedPartition| !part.range.overlaps(range);
            debug_assert!(parts.iter().all(is_free), "{range} has two recovery masters");
            parts.push(AssignedPartition { range, master, epoch, incarnations, lineage });
        }
        if parts.len() == before {
            return None;
        }
        let stage = RecoveryStage::Recovering { parts, loss: loss.clone() };
        edit.put_recovery(RecoveryRecord { stage, ..recovery.clone() });
        Some(edit)
    }

    /// Assigns ranges to permitted recovery masters. Ranges without any stay unassigned.
    fn divided(
        &self,
        dead: ServerId,
        orphaned: &[OrphanedRange],
        view: ClusterView<'_>,
    ) -> Vec<(HashRange, ServerId)> {
        let masters = self.masters(view);
        let profiles = view.configuration.load_profiles();
        let loads = Loads::new(profiles.get(&dead).map(|recorded| &recorded.will));
        let mut groups: BTreeMap<PermittedMasters, Vec<HashRange>> = BTreeMap::new();
        for orphan in orphaned {
            groups.entry(orphan.permitted).or_default().push(orphan.range);
        }
        let mut room = room_for_borders(view.configuration);
        let mut divided = Vec::new();
        for (permitted, ranges) in groups {
            let masters: Vec<ServerId> = match permitted {
                PermittedMasters::Only(server) => {
                    let can = self.can_be_asked(server, view);
                    can.then_some(server).into_iter().collect()
                }
                PermittedMasters::Anybody => masters.clone(),
                PermittedMasters::AllBut(server) => {
                    masters.iter().copied().filter(|master| *master != server).collect()
                }
            };
            if !masters.is_empty() {
                let parts = partitioning::divide(&loads, &ranges, &masters, room);
                room -= parts.len() - ranges.len();
                divided.extend(parts);
            }
        }
        divided
    }

    /// Returns the logs of these ranges that are complete and whose masters' leases are over.
    fn readable_logs(
        &self,
        orphaned: &[OrphanedRange],
        view: ClusterView<'_>,
    ) -> BTreeSet<ServerId> {
        let logs = orphaned.iter().flat_map(|orphan| orphan.logs(view.configuration));
        // Usually all ranges have the same log.
        let logs: BTreeSet<ServerId> = logs.collect();
        logs.into_iter().filter(|dead| self.is_readable(*dead, view)).collect()
    }

    fn is_readable(&self, dead: ServerId, view: ClusterView<'_>) -> bool {
        let recovery = view.configuration.recoveries().get(&dead);
        let facts = recovery.and_then(|recovery| log_facts(recovery, view));
        facts.zip(self.inventories.get(&dead)).is_some_and(|(facts, inventory)| {
            inventory.is_lease_over(&facts) && inventory.is_complete(&facts)
        })
    }

    /// Returns the servers that can recover a partition: their own logs must be replicated.
    fn masters(&self, view: ClusterView<'_>) -> Vec<ServerId> {
        let servers = view.configuration.servers().values();
        let masters = servers.filter(|it| it.keeps_log() && self.can_be_asked(it.id, view));
        masters.map(|server| server.id).collect()
    }

    fn can_be_asked(&self, server: ServerId, view: ClusterView<'_>) -> bool {
        view.membership.is_connected(server) && !self.refusals.contains_key(&server)
    }

    /// Returns whether every living server has freed its replicas or is permanently absent.
    fn is_freed(&self, dead: ServerId, view: ClusterView<'_>) -> bool {
        let connected = view.membership.connected();
        if self.questions.get(&dead).is_some_and(|it| it.waits_for_freeing(connected)) {
            return false;
        }
        let given_up_at = |server| view.membership.given_up_at(server);
        let is_gone = |server| given_up_at(server).is_some_and(|by| by <= view.at.now);
        let has_freed = |server| self.inventories.get(&dead).is_some_and(|e| e.has_freed(server));
        view.configuration.living().all(|server| has_freed(server.id) || is_gone(server.id))
    }

    fn completeness(&self, recovery: &RecoveryRecord, view: ClusterView<'_>) -> Completeness {
        match (log_facts(recovery, view), self.inventories.get(&recovery.dead)) {
            (Some(facts), Some(inventory)) => inventory.completeness(&facts),
            _ => Completeness::Collecting,
        }
    }
}

/// Returns the facts for the completeness check. `None`: the log is no longer needed.
fn log_facts<'c>(recovery: &'c RecoveryRecord, view: ClusterView<'c>) -> Option<LogFacts<'c>> {
    let RecoveryStage::Recovering { loss, .. } = &recovery.stage else { return None };
    let connected = view.membership.connected();
    let record = view.configuration.servers().get(&recovery.dead);
    let replicas = record.map_or(1, |record| usize::from(record.replicas));
    let manifest_log = view.configuration.manifest_log_of(recovery.dead);
    Some(LogFacts { log: recovery.dead, manifest_log, loss, replicas, connected })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::configuration::tests::migrating;
    use crate::records::MigrationStage;
    use types::{Incarnation, OwnershipEpoch, UnixMillis};

    fn hand_over(owner_before: u32, epoch: u64) {
        let configuration = migrating(MigrationStage::Queued);
        let recovery = RecoveryRecord::new(ServerId(owner_before), UnixMillis(0));
        let part = AssignedPartition {
            range: HashRange::ALL,
            master: ServerId(3),
            epoch: OwnershipEpoch(epoch),
            incarnations: vec![Incarnation(7)],
            lineage: None,
        };
        let mut recoveries = Recoveries::new(1, &configuration);
        let edit = recoveries.handed_over(&recovery, &part, None, &configuration);
        assert!(!edit.is_empty());
    }

    #[test]
    fn a_partition_changes_its_owner() {
        hand_over(1, 2);
    }

    #[test]
    #[should_panic(expected = "was assigned twice")]
    fn only_ranges_of_the_dead_server_change_their_owner() {
        hand_over(2, 2);
    }

    #[test]
    #[should_panic(expected = "goes back from")]
    fn a_partition_has_a_later_epoch_than_its_range() {
        hand_over(1, 1);
    }
}
