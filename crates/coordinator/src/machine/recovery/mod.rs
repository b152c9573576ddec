//! What a dead server owned comes to be served by others, from the replicas of its log.
//!
//! Rules 4 and 7 to 13 of `docs/design/replication.md`, the coordinator's side:
//!
//! 1. Whoever is connected is told to take nothing more for the log, and says what it holds.
//! 2. The directory is read from one of them, and proves that the log is whole (`evidence.rs`).
//! 3. When the read lease of the dead server is over, everything that it owns is handed out
//!    (`dividing.rs`), in parts of equal load (`wills.rs`): a part is a range, a server, a new epoch
//!    and new tenures.
//! 4. Who has replayed its part says so, and becomes the owner.
//! 5. Who has all of it in a log of its own says that, and depends on the dead server's no more.
//! 6. When nothing depends on the log any more, everybody frees it.
//!
//! Written down are the dead server, the parts that were handed out, what operators have given up,
//! and whether it is time to free. Steps 1 and 2 are made again by a coordinator that starts again.
//! What is demanded of whom follows from both (`demands.rs`).
//!
//! What lies in a migration that is under way is not handed out while it is undecided who owns it,
//! or while its source is about to release it. What a migration was moving when a side died is told
//! of in `lineage.rs`.

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
    Answer, DirectoryPlace, FromCoordinator, Loss, MISSING_SHOWN_MAX, MigrationPolicy, Progress,
    RecoveryReport, RecoveryState,
};
use wire::replica::ReplicaEpoch;

/// How a master names its part: whose it was, its range, its epoch.
type PartKey = (ServerId, HashRange, OwnershipEpoch);

/// A server that has handed a part back is not given another one for so long; ...
const REFUSED_AGAIN: Duration = Duration::from_secs(1);

/// ... for twice as long each time, until it has recovered one, and at most for this time. Whoever
/// lacks memory reads a good part of the log before it knows.
const REFUSED_AGAIN_MAX: Duration = Duration::from_secs(8);

impl<S: MetaStore> Coordinator<S> {
    /// A master's chain has come to this segment.
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

    /// Step 1: a backup is fenced.
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

    /// A backup cannot read a replica that it has told of.
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

    /// Step 2: pieces of the directory.
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

    /// Step 4: the part changes its owner. Until that one's own log has everything, the dead one's
    /// is needed, and what happens if it dies before is told of in `lineage.rs`.
    pub(super) fn replayed(
        &mut self,
        at: Moment,
        server: ServerId,
        (dead, range, epoch): PartKey,
    ) -> Result<(), Stopped> {
        let Some((recovery, part)) = self.part_of(server, (dead, range, epoch)) else {
            return Ok(());
        };
        // What a migration was moving, or had moved, is served when it is safe: nothing is in the
        // hands of two migrations.
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
            progress: Progress::default(),
            is_inheritance: true,
            stage: Stage::Securing(Dependency { remaining: vec![range], source_tenures }),
        };
        if !planted::is(Bug::InheritanceForgotten) {
            edit.put_migration(inheritance);
        }
        self.hand_part_over(&mut edit, (&recovery, &part));
        self.commit(at, edit)
    }

    /// Step 5: nothing that the part's owner has depends on the dead server's log.
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
            self.send(server, FromCoordinator::Kept { range, epoch }, out);
        }
        Ok(())
    }

    /// Whether what the server owns under this epoch shares a hash with the range.
    fn owns(&self, server: ServerId, range: HashRange, epoch: OwnershipEpoch) -> bool {
        let mut tablets = self.ledger.tablets().values();
        tablets.any(|it| it.range.overlaps(range) && (it.owner, it.epoch) == (server, epoch))
    }

    /// The master of a part owns it from here on.
    fn hand_part_over(&mut self, edit: &mut Edit, (recovery, part): (&Recovery, &Part)) {
        let Part { range, master: owner, epoch, tenures, lineage } = part.clone();
        self.pauses.remove(&owner);
        let before = self.tablet_around(range).owner;
        let may_lose = before == recovery.dead || (lineage.is_some() && before == owner);
        assert!(may_lose, "{range} was handed out twice");
        self.cut_out(edit, range);
        edit.put_tablet(Tablet { range, owner, epoch, tenures, is_born: false });
        if let Some(recovery) = recovery.with_parts(|other| other.epoch != epoch) {
            edit.put_recovery(recovery);
        }
    }

    /// The part is for somebody else.
    pub(super) fn not_recovered(
        &mut self,
        at: Moment,
        server: ServerId,
        part: PartKey,
        mut reason: String,
    ) -> Result<(), Stopped> {
        let Some((recovery, _)) = self.part_of(server, part) else { return Ok(()) };
        let (dead, range, epoch) = part;
        tracing::warn!(%server, %dead, %range, reason, "a part was handed back");
        self.leave_in_peace(at, server);
        if self.recovery_masters().is_empty() {
            tracing::error!(%dead, reason, "nobody can take what a dead server held");
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

    /// A server has handed something back. All that it hands back of what it was given at a time
    /// counts once.
    fn leave_in_peace(&mut self, at: Moment, server: ServerId) {
        if self.refusals.get(&server).is_none_or(|until| *until <= at.now) {
            let pause = self.pauses.get(&server).map_or(REFUSED_AGAIN, |last| *last * 2);
            let pause = pause.min(REFUSED_AGAIN_MAX);
            self.pauses.insert(server, pause);
            self.refusals.insert(server, at.now + pause);
        }
    }

    /// Step 6: a backup has freed what it held of the log.
    pub(super) fn log_freed(&mut self, server: ServerId, log: ServerId) {
        let stage = self.ledger.recoveries().get(&log).map(|recovery| &recovery.stage);
        if let Some(RecoveryStage::Freeing) = stage
            && let Some(evidence) = self.evidence.get_mut(&log)
        {
            evidence.freed(server);
        }
    }

    /// A backup asks about a log that it was not told to free, maybe because it was away.
    pub(super) fn is_needed(&mut self, server: ServerId, log: ServerId, out: &mut Outbox) {
        let was_given = log < self.ledger.counters().server;
        let lives = self.ledger.servers().get(&log).is_some_and(|record| !record.fenced);
        if was_given && !lives && !self.ledger.recoveries().contains_key(&log) {
            self.send(server, FromCoordinator::FreeLog { log }, out);
        }
    }

    /// Goes on with what there is of a log.
    pub(super) fn accept_loss(
        &mut self,
        at: Moment,
        dead: ServerId,
        named: &Loss,
    ) -> Result<Answer, Stopped> {
        let Some(recovery) = self.ledger.recoveries().get(&dead) else {
            return Ok(Answer::Refused(format!("{dead} is not being recovered")));
        };
        let RecoveryStage::Recovering { parts, loss } = &recovery.stage else {
            return Ok(Answer::Refused(format!("everything of {dead} is served")));
        };
        let (mut loss, parts) = (loss.clone(), parts.clone());
        match self.recovery_report(recovery).loss() {
            Some(missing) if missing != *named => {
                let reason = format!("what is missing of the log of {dead} is: {missing}");
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
                let reason = format!("nothing is known to be missing of the log of {dead}");
                return Ok(Answer::Refused(reason));
            }
        };
        tracing::warn!(%dead, segments = count, "an operator goes on without a part of a log");
        let mut edit = self.ledger.edit();
        let stage = RecoveryStage::Recovering { parts, loss };
        edit.put_recovery(Recovery { stage, ..recovery.clone() });
        self.commit(at, edit)?;
        self.tell_masters(dead);
        Ok(Answer::LossAccepted(count))
    }

    /// Takes every recovery as far as it can go.
    pub(super) fn advance_recoveries(&mut self, at: Moment) -> Result<(), Stopped> {
        self.refusals.retain(|_, until| *until > at.now);
        // Of all first: what one hands out may need the log of another.
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

    /// Step 3: everything that can be handed out is.
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

    /// Which server gets what. Nobody gets what it may not, nor what there is nobody for.
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

    /// Whether each of these logs is whole, and its master serves nothing more.
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

    /// Who can take a part: what it recovers has to outlive it.
    fn recovery_masters(&self) -> Vec<ServerId> {
        let can = |server: &&Server| server.keeps_log() && self.can_be_asked(server.id);
        self.ledger.servers().values().filter(can).map(|server| server.id).collect()
    }

    fn can_be_asked(&self, server: ServerId) -> bool {
        self.connection_of(server).is_some() && !self.refusals.contains_key(&server)
    }

    /// Whether something that the server had can still come from its log only.
    fn is_log_needed(&self, dead: ServerId) -> bool {
        let mut under_way = self.ledger.migrations().values().filter(|m| m.is_under_way());
        self.owned_by(dead).next().is_some()
            || under_way.any(|m| m.source == dead || m.target == dead)
                && !planted::is(Bug::FreedWhileDependedOn)
    }

    /// Whether nobody who may come back holds anything of the log.
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

    /// `None`: nothing of the log is needed any more.
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

    /// The tablet in which a part lies.
    fn tablet_around(&self, range: HashRange) -> &Tablet {
        let up_to = self.ledger.tablets().range(..=range.first());
        let tablet = up_to.last().map(|(_, tablet)| tablet).filter(|t| t.range.covers(range));
        tablet.expect("a part lies within one tablet")
    }

    /// All recoveries, in order of the dead servers' numbers.
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

    /// Also those that are served before they are safe.
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
            // Nothing more is needed of the log until migrations go on.
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
