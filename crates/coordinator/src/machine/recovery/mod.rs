//! Recovery of a dead server's ranges by other servers, from the replicas of its log.
//!
//! This is the coordinator's side of rules 4 and 7 to 13 of `docs/design/replication.md`:
//!
//! 1. Every connected server is asked to fence the log, and reports its replicas.
//! 2. The segment manifest is read from one of them; with it the completeness check runs
//!    (`evidence.rs`).
//! 3. When the dead server's read lease is over, its ranges are assigned (`dividing.rs`) in
//!    recovery partitions of equal load (`wills.rs`). A partition is a range, a recovery master,
//!    a new epoch and new incarnations.
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
mod dividing;
mod evidence;
mod lineage;
mod wills;

pub(super) use demands::Wanted;
pub(super) use evidence::{DirectoryQuestion, Evidence, FencedReport};

use super::Coordinator;
use crate::admission::{REASON_BYTES_MAX, room_for_borders, room_for_lineage};
use crate::ledger::{Edit, Stopped};
use crate::outbox::{Moment, Outbox};
use crate::records::{Dependency, Migration, Part, Recovery, RecoveryStage, Server, Stage, Tablet};
use crate::store::MetaStore;
use demands::What;
use evidence::{Judged, Proof};
use lineage::{Estate, Heirs};
use planted::Bug;
use std::collections::BTreeMap;
use std::time::Duration;
use types::{HashRange, OwnershipEpoch, SegmentId, ServerId};
use wills::Loads;
use wire::control::{
    Answer, DirectoryPlace, FromCoordinator, LogLoss, MISSING_SHOWN_MAX, MigrationPolicy,
    MigrationProgress, RecoveryReport, RecoveryState,
};
use wire::replica::ReplicaEpoch;

/// A recovery master's name for its partition: the dead server, the range, the epoch.
type PartKey = (ServerId, HashRange, OwnershipEpoch);

/// First backoff after a server hands a partition back.
const REFUSED_AGAIN: Duration = Duration::from_secs(1);

/// Longest backoff. It doubles each time until the server has recovered a partition, because a
/// server short of memory reads much of the log before it notices.
const REFUSED_AGAIN_MAX: Duration = Duration::from_secs(8);

impl<S: MetaStore> Coordinator<S> {
    /// Records the newest segment of a master's manifest log, and confirms it to the master.
    pub(super) fn chain(
        &mut self,
        at: Moment,
        server: ServerId,
        number: SegmentId,
        out: &mut Outbox,
    ) -> Result<(), Stopped> {
        let Some(record) = self.ledger.servers().get(&server).cloned() else { return Ok(()) };
        let number = record.chain.map_or(number, |noted| noted.max(number));
        if record.chain != Some(number) {
            let mut edit = self.ledger.edit();
            edit.put_server(Server { chain: Some(number), ..record });
            self.commit(at, edit)?;
        }
        self.send(server, FromCoordinator::ChainNoted { number }, out);
        Ok(())
    }

    /// Step 1: records the report of a fenced backup.
    pub(super) fn fenced(
        &mut self,
        at: Moment,
        (server, log): (ServerId, ServerId),
        report: FencedReport<'_>,
    ) {
        let chain = self.chain_of(log);
        if let Some(evidence) = self.evidence.get_mut(&log) {
            evidence.fenced(at.now, server, report, chain);
            self.tell_masters(log);
        }
    }

    /// Excludes a replica that its backup reported but cannot read.
    pub(super) fn damaged(
        &mut self,
        server: ServerId,
        log: ServerId,
        replica: (SegmentId, ReplicaEpoch),
    ) {
        if let Some(evidence) = self.evidence.get_mut(&log)
            && evidence.damaged(server, replica)
        {
            self.tell_masters(log);
        }
    }

    /// Step 2: takes pieces of the manifest.
    pub(super) fn directory_read(
        &mut self,
        log: ServerId,
        question: DirectoryQuestion,
        bodies: Vec<Vec<u8>>,
        next: Option<DirectoryPlace>,
    ) {
        let Some(recovery) = self.ledger.recoveries().get(&log) else { return };
        let Some(judged) = self.judged(recovery) else { return };
        let Some(evidence) = self.evidence.get(&log) else { return };
        if evidence.directory_question(&judged) == Some(question) {
            let wanted = Wanted { dead: log, server: question.backup, what: What::Directory };
            self.demanded.remove(&wanted);
            if let Some(evidence) = self.evidence.get_mut(&log) {
                evidence.directory_read(question, (bodies, next));
            }
            self.tell_masters(log);
        }
    }

    /// Step 4: makes the recovery master the owner of its partition. The dead server's log is
    /// needed until the new owner's log has everything; `lineage.rs` covers its death before that.
    pub(super) fn replayed(
        &mut self,
        at: Moment,
        server: ServerId,
        (dead, range, epoch): PartKey,
    ) -> Result<(), Stopped> {
        let Some((recovery, part)) = self.part_of(server, (dead, range, epoch)) else {
            return Ok(());
        };
        // A range of a migration is served only once it is durable: no range may belong to two
        // migrations.
        let mut under_way = self.ledger.migrations().values().filter(|m| m.is_under_way());
        if part.lineage.is_some() || under_way.any(|m| m.range.overlaps(range)) {
            return Ok(());
        }
        let mut edit = self.ledger.edit();
        let source_tenures = self.tablet_around(range).tenures.clone();
        let id = edit.counters.draw_migration();
        let inheritance = Migration {
            id,
            task: id,
            range,
            source: dead,
            target: server,
            policy: MigrationPolicy::default(),
            created: at.wall,
            updated: at.wall,
            progress: MigrationProgress::default(),
            is_inheritance: true,
            stage: Stage::Securing(Dependency { remaining: vec![range], source_tenures }),
        };
        if !planted::is(Bug::InheritanceForgotten) {
            edit.put_migration(inheritance);
        }
        self.hand_part_over(&mut edit, (&recovery, &part));
        self.commit(at, edit)
    }

    /// Step 5: the partition's owner no longer depends on the dead server's log.
    pub(super) fn recovered(
        &mut self,
        at: Moment,
        server: ServerId,
        (dead, range, epoch): PartKey,
        out: &mut Outbox,
    ) -> Result<(), Stopped> {
        let is_it = |m: &&Migration| {
            matches!(m.stage, Stage::Securing(_))
                && (m.source, m.target, m.range) == (dead, server, range)
        };
        let inheritance = self.ledger.migrations().values().find(is_it).map(|m| m.id);
        if let Some((recovery, part)) = self.part_of(server, (dead, range, epoch)) {
            let mut edit = self.ledger.edit();
            self.hand_part_over(&mut edit, (&recovery, &part));
            let lineage = part.lineage.and_then(|id| self.ledger.migrations().get(&id).cloned());
            match lineage {
                Some(migration) => self.inherit(at, edit, &migration, range)?,
                None => self.commit(at, edit)?,
            }
        } else if let Some(id) = inheritance {
            let mut edit = self.ledger.edit();
            edit.remove_migration(id);
            self.commit(at, edit)?;
        }
        if self.owns(server, range, epoch) {
            self.send(server, FromCoordinator::RecoveryConfirmed { range, epoch }, out);
        }
        Ok(())
    }

    /// Returns whether a tablet of this server and epoch overlaps the range.
    fn owns(&self, server: ServerId, range: HashRange, epoch: OwnershipEpoch) -> bool {
        let mut tablets = self.ledger.tablets().values();
        tablets.any(|it| it.range.overlaps(range) && (it.owner, it.epoch) == (server, epoch))
    }

    /// Makes a partition's recovery master its owner.
    fn hand_part_over(&mut self, edit: &mut Edit, (recovery, part): (&Recovery, &Part)) {
        let Part { range, master: owner, epoch, tenures, lineage } = part.clone();
        self.pauses.remove(&owner);
        let before = self.tablet_around(range).owner;
        let may_lose = before == recovery.dead || (lineage.is_some() && before == owner);
        assert!(may_lose, "{range} was assigned twice");
        self.cut_out(edit, range);
        edit.put_tablet(Tablet { range, owner, epoch, tenures, is_born: false });
        if let Some(recovery) = recovery.with_parts(|other| other.epoch != epoch) {
            edit.put_recovery(recovery);
        }
    }

    /// Takes a partition back from a recovery master, for another server.
    pub(super) fn not_recovered(
        &mut self,
        at: Moment,
        server: ServerId,
        part: PartKey,
        mut reason: String,
    ) -> Result<(), Stopped> {
        let Some((recovery, _)) = self.part_of(server, part) else { return Ok(()) };
        let (dead, range, epoch) = part;
        tracing::warn!(%server, %dead, %range, reason, "recovery partition handed back");
        self.leave_in_peace(at, server);
        if self.recovery_masters().is_empty() {
            tracing::error!(%dead, reason, "no server can take over the ranges of a dead server");
        }
        if let Some(evidence) = self.evidence.get_mut(&dead) {
            reason.truncate(reason.floor_char_boundary(REASON_BYTES_MAX));
            evidence.refusal = reason;
        }
        let mut edit = self.ledger.edit();
        if let Some(recovery) = recovery.with_parts(|other| other.epoch != epoch) {
            edit.put_recovery(recovery);
        }
        self.commit(at, edit)
    }

    /// Starts a server's backoff. Returned partitions count once during one backoff.
    fn leave_in_peace(&mut self, at: Moment, server: ServerId) {
        if self.refusals.get(&server).is_none_or(|until| *until <= at.now) {
            let pause = self.pauses.get(&server).map_or(REFUSED_AGAIN, |last| *last * 2);
            let pause = pause.min(REFUSED_AGAIN_MAX);
            self.pauses.insert(server, pause);
            self.refusals.insert(server, at.now + pause);
        }
    }

    /// Step 6: records that a backup has freed its replicas of the log.
    pub(super) fn log_freed(&mut self, server: ServerId, log: ServerId) {
        let stage = self.ledger.recoveries().get(&log).map(|recovery| &recovery.stage);
        if let Some(RecoveryStage::Freeing) = stage
            && let Some(evidence) = self.evidence.get_mut(&log)
        {
            evidence.freed(server);
        }
    }

    /// Answers a backup that asks about a log which it was not asked to free, possibly because it
    /// was away.
    pub(super) fn is_needed(&mut self, server: ServerId, log: ServerId, out: &mut Outbox) {
        let was_given = log < self.ledger.counters().server;
        let lives = self.ledger.servers().get(&log).is_some_and(|record| !record.fenced);
        if was_given && !lives && !self.ledger.recoveries().contains_key(&log) {
            self.send(server, FromCoordinator::FreeLog { log }, out);
        }
    }

    /// Continues without missing parts of a log, on an operator's decision.
    pub(super) fn accept_loss(
        &mut self,
        at: Moment,
        dead: ServerId,
        named: &LogLoss,
    ) -> Result<Answer, Stopped> {
        let Some(recovery) = self.ledger.recoveries().get(&dead) else {
            return Ok(Answer::Refused(format!("{dead} is not being recovered")));
        };
        let RecoveryStage::Recovering { parts, loss } = &recovery.stage else {
            return Ok(Answer::Refused(format!("all ranges of {dead} are served")));
        };
        let (mut loss, parts) = (loss.clone(), parts.clone());
        match self.recovery_report(recovery).loss() {
            Some(missing) if missing != *named => {
                let reason = format!("the missing part of the log of {dead} is: {missing}");
                return Ok(Answer::Refused(reason));
            }
            Some(_) | None => {}
        }
        let count = match self.proof(recovery) {
            Proof::SegmentsMissing(missing) => {
                let count = missing.len() as u32;
                loss.segments.extend(missing);
                count
            }
            Proof::DirectoryMissing => {
                loss.directory = true;
                0
            }
            Proof::Collecting | Proof::ReadingDirectory | Proof::Whole => {
                let reason = format!("no part of the log of {dead} is known to be missing");
                return Ok(Answer::Refused(reason));
            }
        };
        tracing::warn!(%dead, segments = count, "operator accepted the loss of a part of a log");
        let mut edit = self.ledger.edit();
        let stage = RecoveryStage::Recovering { parts, loss };
        edit.put_recovery(Recovery { stage, ..recovery.clone() });
        self.commit(at, edit)?;
        self.tell_masters(dead);
        Ok(Answer::LossAccepted(count))
    }

    /// Advances every recovery as far as possible.
    pub(super) fn advance_recoveries(&mut self, at: Moment) -> Result<(), Stopped> {
        self.refusals.retain(|_, until| *until > at.now);
        // All leases first: one recovery may need another one's log.
        self.evidence.values_mut().for_each(|evidence| evidence.pass(at.now));
        let dead: Vec<ServerId> = self.ledger.recoveries().keys().copied().collect();
        if dead.is_empty() {
            self.pauses.clear();
        }
        for dead in dead {
            let recovery = self.ledger.recoveries()[&dead].clone();
            match &recovery.stage {
                RecoveryStage::Recovering { .. } if self.is_log_needed(dead) => {
                    self.hand_out(at, recovery)?;
                }
                RecoveryStage::Recovering { .. } => {
                    let mut edit = self.ledger.edit();
                    edit.put_recovery(Recovery { stage: RecoveryStage::Freeing, ..recovery });
                    self.commit(at, edit)?;
                }
                RecoveryStage::Freeing if self.is_freed(at, dead) => {
                    let mut edit = self.ledger.edit();
                    edit.remove_recovery(dead);
                    if self.ledger.wills().contains_key(&dead) {
                        edit.remove_will(dead);
                    }
                    self.commit(at, edit)?;
                }
                RecoveryStage::Freeing => {}
            }
        }
        Ok(())
    }

    /// Step 3: assigns everything that can be assigned.
    fn hand_out(&mut self, at: Moment, recovery: Recovery) -> Result<(), Stopped> {
        let is_ready = |estate: &Estate| self.may_be_handed_out(&self.logs_of(estate));
        let mut estates = self.estates(&recovery);
        estates.retain(is_ready);
        let mut room = room_for_lineage(&self.ledger);
        estates.retain(|estate| {
            let borders = if estate.lineage.is_some() { 2 } else { 0 };
            let fits = borders <= room;
            room -= if fits { borders } else { 0 };
            fits
        });
        let RecoveryStage::Recovering { mut parts, loss } = recovery.stage else { return Ok(()) };
        let before = parts.len();
        let mut edit = self.ledger.edit();
        for (range, master) in self.divided(recovery.dead, &estates) {
            let estate = estates.iter().find(|estate| estate.range.covers(range));
            let lineage = estate.and_then(|estate| estate.lineage);
            let epoch = edit.counters.draw_epoch();
            let tenures = self.tenures_for(&mut edit.counters, lineage, (range, master));
            parts.push(Part { range, master, epoch, tenures, lineage });
        }
        if parts.len() == before {
            return Ok(());
        }
        let stage = RecoveryStage::Recovering { parts, loss };
        edit.put_recovery(Recovery { stage, ..recovery });
        self.commit(at, edit)
    }

    /// Assigns ranges to permitted recovery masters. Ranges without any stay unassigned.
    fn divided(&self, dead: ServerId, estates: &[Estate]) -> Vec<(HashRange, ServerId)> {
        let masters = self.recovery_masters();
        let loads = Loads::new(self.ledger.wills().get(&dead).map(|noted| &noted.will));
        let mut groups: BTreeMap<Heirs, Vec<HashRange>> = BTreeMap::new();
        for estate in estates {
            groups.entry(estate.heirs).or_default().push(estate.range);
        }
        let mut room = room_for_borders(&self.ledger);
        let mut divided = Vec::new();
        for (heirs, ranges) in groups {
            let masters: Vec<ServerId> = match heirs {
                Heirs::Only(server) => {
                    let can = self.can_be_asked(server);
                    can.then_some(server).into_iter().collect()
                }
                Heirs::Anybody => masters.clone(),
                Heirs::AllBut(server) => {
                    masters.iter().copied().filter(|master| *master != server).collect()
                }
            };
            if !masters.is_empty() {
                let parts = dividing::divide(&loads, &ranges, &masters, room);
                room -= parts.len() - ranges.len();
                divided.extend(parts);
            }
        }
        divided
    }

    /// Returns whether each of these logs is complete and its master's lease is over.
    fn may_be_handed_out(&self, logs: &[ServerId]) -> bool {
        logs.iter().all(|dead| {
            let recovery = self.ledger.recoveries().get(dead);
            let judged = recovery.and_then(|recovery| self.judged(recovery));
            judged.zip(self.evidence.get(dead)).is_some_and(|(judged, evidence)| {
                evidence.is_lease_over(&judged) && evidence.proof(&judged) == Proof::Whole
            })
        })
    }

    fn owned_by(&self, server: ServerId) -> impl Iterator<Item = HashRange> {
        let tablets = self.ledger.tablets().values();
        tablets.filter(move |tablet| tablet.owner == server).map(|tablet| tablet.range)
    }

    /// Returns the servers that can recover a partition: their own logs must be replicated.
    fn recovery_masters(&self) -> Vec<ServerId> {
        let can = |server: &&Server| server.keeps_log() && self.can_be_asked(server.id);
        self.ledger.servers().values().filter(can).map(|server| server.id).collect()
    }

    fn can_be_asked(&self, server: ServerId) -> bool {
        self.connection_of(server).is_some() && !self.refusals.contains_key(&server)
    }

    /// Returns whether some data is available only from the dead server's log.
    fn is_log_needed(&self, dead: ServerId) -> bool {
        let mut under_way = self.ledger.migrations().values().filter(|m| m.is_under_way());
        self.owned_by(dead).next().is_some()
            || under_way.any(|m| m.source == dead || m.target == dead)
                && !planted::is(Bug::FreedWhileDependedOn)
    }

    /// Returns whether every living server has freed its replicas or is permanently absent.
    fn is_freed(&self, at: Moment, dead: ServerId) -> bool {
        let is_gone = |server| self.given_up_at(server).is_some_and(|by| by <= at.now);
        let has_freed = |server| self.evidence.get(&dead).is_some_and(|e| e.has_freed(server));
        let mut living = self.ledger.servers().values().filter(|server| !server.fenced);
        living.all(|server| has_freed(server.id) || is_gone(server.id))
    }

    fn proof(&self, recovery: &Recovery) -> Proof {
        match (self.judged(recovery), self.evidence.get(&recovery.dead)) {
            (Some(judged), Some(evidence)) => evidence.proof(&judged),
            _ => Proof::Collecting,
        }
    }

    /// Returns the facts for the completeness check. `None`: the log is no longer needed.
    fn judged<'r>(&self, recovery: &'r Recovery) -> Option<Judged<'r>> {
        let RecoveryStage::Recovering { loss, .. } = &recovery.stage else { return None };
        let connected = self.connections.values().copied().flatten().collect();
        let record = self.ledger.servers().get(&recovery.dead);
        let replicas = record.map_or(1, |record| usize::from(record.replicas));
        Some(Judged { chain: self.chain_of(recovery.dead), loss, replicas, connected })
    }

    fn chain_of(&self, server: ServerId) -> Option<SegmentId> {
        self.ledger.servers().get(&server).and_then(|record| record.chain)
    }

    fn part_of(&self, server: ServerId, (dead, range, epoch): PartKey) -> Option<(Recovery, Part)> {
        let recovery = self.ledger.recoveries().get(&dead)?;
        let is_it =
            |part: &&Part| part.master == server && part.range == range && part.epoch == epoch;
        let part = recovery.parts().iter().find(is_it)?;
        Some((recovery.clone(), part.clone()))
    }

    /// Returns the tablet that contains a partition.
    fn tablet_around(&self, range: HashRange) -> &Tablet {
        let up_to = self.ledger.tablets().range(..=range.first());
        let tablet = up_to.last().map(|(_, tablet)| tablet).filter(|t| t.range.covers(range));
        tablet.expect("a recovery partition lies within one tablet")
    }

    /// Returns reports of all recoveries, in order of the dead servers' numbers.
    pub fn recoveries(&self) -> Vec<RecoveryReport> {
        self.ledger.recoveries().values().map(|recovery| self.recovery_report(recovery)).collect()
    }

    fn recovery_report(&self, recovery: &Recovery) -> RecoveryReport {
        let Recovery { dead, created, .. } = *recovery;
        let (state, missing) = self.recovery_state(recovery);
        let is_side = |m: &&Migration| (m.source == dead || m.target == dead) && !m.is_inheritance;
        let under_way = self.ledger.migrations().values().filter(|m| m.is_under_way());
        let refusal = self.evidence.get(&dead).map(|evidence| evidence.refusal.clone());
        RecoveryReport {
            dead,
            state,
            created,
            ranges: self.owned_by(dead).collect(),
            parts: self.parts_under_way(recovery),
            missing_total: missing.len() as u32,
            missing: missing.into_iter().take(MISSING_SHOWN_MAX).collect(),
            waits_for: under_way.filter(is_side).map(|m| m.id).collect(),
            message: refusal.unwrap_or_default(),
        }
    }

    /// Returns the assigned partitions, including served-before-durable ranges.
    fn parts_under_way(&self, recovery: &Recovery) -> Vec<(HashRange, ServerId)> {
        let parts = recovery.parts().iter().map(|part| (part.range, part.master));
        let of_dead = self.ledger.migrations().values().filter(|m| m.source == recovery.dead);
        let secured = of_dead.filter(|m| matches!(m.stage, Stage::Securing(_)));
        parts.chain(secured.map(|m| (m.range, m.target))).collect()
    }

    fn recovery_state(&self, recovery: &Recovery) -> (RecoveryState, Vec<SegmentId>) {
        let Some(judged) = self.judged(recovery) else {
            return (RecoveryState::Freeing, Vec::new());
        };
        let estates = self.estates(recovery);
        let rest = !estates.is_empty();
        let is_read =
            !self.parts_under_way(recovery).is_empty() || self.is_half_of_a_lineage(recovery.dead);
        let state = match self.proof(recovery) {
            // The log is not needed until migrations proceed.
            _ if !rest && !is_read => RecoveryState::WaitingForMigrations,
            Proof::Collecting => RecoveryState::Collecting,
            Proof::ReadingDirectory => RecoveryState::ReadingDirectory,
            Proof::DirectoryMissing => RecoveryState::DirectoryMissing,
            Proof::SegmentsMissing(missing) => return (RecoveryState::SegmentsMissing, missing),
            Proof::Whole if !rest => RecoveryState::Recovering,
            Proof::Whole => match self.evidence.get(&recovery.dead) {
                Some(evidence) if evidence.is_lease_over(&judged) => {
                    let is_ready = |estate| self.may_be_handed_out(&self.logs_of(estate));
                    match estates.iter().any(is_ready) {
                        true => RecoveryState::WaitingForServers,
                        false => RecoveryState::WaitingForMigrations,
                    }
                }
                Some(_) | None => RecoveryState::WaitingForLease,
            },
        };
        (state, Vec::new())
    }
}
