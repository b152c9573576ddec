//! The backup's side of replication: which appends a server accepts for other logs, how it
//! answers, and which replicas it frees. The driver owns the disk.
//!
//! The answers about a replica stay true: a replica that was refused or spoiled is never accepted
//! later, even if a repeated message arrives. Refused and found replicas are treated as rule 3 of
//! `docs/design/replication.md` says.
//!
//! Nothing waits for the disk to be read at the start. Replicas that were found are measured
//! later, one at a time, and several at a time once their log is fenced. The backup reports a log
//! only when all of its replicas are measured and synced: a recovery shows what it reads to
//! clients, and the next recovery must find it even after a loss of power. A replica that the disk
//! fails to measure is left out, so that it does not delay the others. It is tried again, and the
//! log is reported again once the replica is measured.
//!
//! **Invariant:** a log that is fenced here stays fenced: from then on the backup acknowledges,
//! writes and frees nothing for its master.
//! **Invariant:** the bytes of a fenced log that were reported do not change until it is freed.
//! **Invariant:** the disk handles at most one piece per replica at a time.

mod events;
mod reading;
mod retries;

pub use events::{AppendHeader, BackupEffect, BackupEvent, ScrubResult};

use super::scrub::Scrub;
use super::timing::{READ_IN_HASTE, UNHEARD_MAX};
use crate::{Outbox, Ticket};
use planted::Bug;
use retries::Retries;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use types::{Instant, SegmentId, ServerId, UnixMillis};
use wire::peer::{AppendRefusal, AppendResult, Appended, REPLICAS_MAX};
use wire::replica::{ReplicaEpoch, ReplicaId};

/// The backup's side of replication, without its disk.
#[derive(Debug, Default)]
pub struct Backup {
    fenced: BTreeSet<ServerId>,
    /// Logs that are fenced and not reported yet, because the disk is still working on them, each
    /// with the replica that it was last seen to work on.
    unreported: BTreeMap<ServerId, ReplicaId>,
    /// Logs that are recovered and not freed yet.
    recovered: BTreeSet<ServerId>,
    replicas: BTreeMap<ReplicaId, BackupReplica>,
    /// Replicas that were found at the start and are not measured yet.
    unmeasured: BTreeSet<ReplicaId>,
    /// Number of replicas that the disk is measuring.
    measuring: usize,
    /// Replicas that the disk has failed to measure.
    retries: Retries,
    scrub: Scrub,
    /// The latest expiry clock of each log's master, from its appends or from pieces on the disk.
    clocks: BTreeMap<ServerId, MasterClock>,
    /// Set if this is the backup of a standalone server, for its own log. It asks nobody
    /// about replicas, since their master is the same process.
    is_standalone: bool,
    /// Times at which each replica is checked for news from its master; one entry per replica.
    checks: BTreeSet<(Instant, ReplicaId)>,
}

/// The expiry clock of another server.
#[derive(Clone, Copy, Debug, Default)]
struct MasterClock {
    shown: UnixMillis,
    /// Time at which the clock value arrived. `None`: the clock does not advance, because the log
    /// is fenced, or because the value was read from the disk and the time of its writing is
    /// unknown.
    heard: Option<Instant>,
}

impl MasterClock {
    /// Advances the clock to `now` and stops it there.
    fn stop(&mut self, now: Instant) {
        let passed = self.heard.take().map_or(0, |heard| now.since(heard).as_millis());
        let passed = u64::try_from(passed).unwrap_or(u64::MAX);
        self.shown = UnixMillis(self.shown.0.saturating_add(passed));
        assert!(self.heard.is_none(), "the clock of a fenced log stands still");
    }
}

/// The state of one replica at its backup.
#[derive(Debug)]
struct BackupReplica {
    state: ReplicaState,
    /// Set if an earlier process made the replica.
    is_found: bool,
    /// Time of the last message about the replica, from or to its master.
    heard: Instant,
    /// Send time of the newest append that was, or will be, acknowledged (by the master's clock).
    sent: Instant,
    /// The replica's entry in `checks`.
    check_at: Instant,
    /// The replica's entry in the scrub schedule.
    scrub_at: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReplicaState {
    /// An earlier process wrote the replica; its length is not known yet.
    Found,
    /// An earlier process wrote the replica, and the disk is reading it.
    Measuring { then: DiskFollowUp },
    /// An earlier process wrote the replica, and the disk has failed to read or sync it.
    NotMeasured,
    /// The disk is creating the replica with its first piece.
    Creating { then: DiskFollowUp },
    /// The replica exists.
    Written { length: u32, synced: u32 },
    /// The replica exists, and the disk is writing a piece.
    Writing { length: u32, synced: u32, then: DiskFollowUp },
    /// The replica exists and takes no more pieces.
    Stopped { length: u32, synced: u32 },
    /// The disk had no room to create the replica.
    Full,
    /// The replica takes no more pieces; parts of it may be on the disk.
    Failed,
    /// The disk is freeing the replica.
    Freeing,
}

/// The step that follows when the disk has finished a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DiskFollowUp {
    Answer,
    /// Answers the master and syncs the replica, because the master wants that without delay.
    AnswerAndSync,
    /// Frees the replica, which is no longer needed.
    Free,
}

/// Maximum number of known replicas: those of 8 TiB, far more than a disk has files. Tests reach
/// a lower one.
const BACKUP_REPLICAS_MAX: usize = if cfg!(test) { 1 << 5 } else { 1 << 20 };

impl Backup {
    /// Creates a backup without replicas.
    pub fn new() -> Backup {
        Backup::default()
    }

    /// Creates a backup without replicas that scrubs each replica once per interval.
    pub fn scrubbing(interval: Option<Duration>) -> Backup {
        Backup { scrub: Scrub::every(interval), ..Backup::default() }
    }

    /// Creates the backup of a server without a cluster: its only replicas are those of the
    /// server's own log.
    pub fn of_own_log() -> Backup {
        Backup { is_standalone: true, ..Backup::default() }
    }

    /// Processes one event and appends the resulting effects to `out`.
    pub fn handle(&mut self, now: Instant, event: BackupEvent, out: &mut Outbox<BackupEffect>) {
        match event {
            BackupEvent::Found { replica } => {
                self.insert(now, replica, ReplicaState::Found, Instant::default());
                self.replicas.get_mut(&replica).into_iter().for_each(|held| held.is_found = true);
                self.unmeasured.insert(replica);
                return;
            }
            BackupEvent::Adopted { replica, length } => {
                assert!(self.is_standalone, "{replica} is adopted by a server that has a cluster");
                let state = ReplicaState::Written { length, synced: length };
                self.insert(now, replica, state, Instant::default());
                return;
            }
            BackupEvent::Measured { replica, length, synced, clock } => {
                self.record_clock(replica.log, clock, None);
                let written = ReplicaState::Written { length, synced };
                self.measured(now, replica, Some(written), out);
            }
            BackupEvent::Damaged { replica } => self.measured(now, replica, None, out),
            BackupEvent::NotMeasured { replica } => {
                self.measured(now, replica, Some(ReplicaState::NotMeasured), out);
            }
            BackupEvent::Append { from, header, payload } => {
                self.append(now, from, &header, payload, out);
            }
            BackupEvent::Taken { replica, length, synced } => {
                self.taken(replica, length, synced, out);
            }
            BackupEvent::Synced { replica, synced } => self.synced(replica, synced, out),
            BackupEvent::Stopped { replica, length, synced } => {
                self.spoiled(replica, ReplicaState::Stopped { length, synced }, out);
            }
            BackupEvent::Full { replica } => self.spoiled(replica, ReplicaState::Full, out),
            BackupEvent::Failed { replica } => self.spoiled(replica, ReplicaState::Failed, out),
            BackupEvent::Scrubbed { replica, found } => self.scrubbed(now, replica, found, out),
            BackupEvent::Freed { replica } => {
                let state = self.replicas.get(&replica).map(|held| held.state);
                assert!(
                    state.is_none_or(|state| state == ReplicaState::Freeing),
                    "{replica} is freed without a request: {state:?}"
                );
                self.freed(replica, out);
            }
            BackupEvent::Release { log, replicas } => self.release(log, &replicas, out),
            BackupEvent::Fence { log } => {
                self.clocks.entry(log).or_default().stop(now);
                self.fenced.insert(log);
                self.unreported.insert(log, first_of(log));
                self.sync_log(log, out);
            }
            BackupEvent::Recovered { log } => self.free_all(log, out),
            BackupEvent::Tick => {
                if !self.is_standalone {
                    self.ask(now, out);
                }
                self.scrub(now, out);
            }
        }
        self.measure(now, out);
        self.report(out);
        self.report_freed(out);
        self.check();
    }

    /// Returns when [`BackupEvent::Tick`] is due, if no other event comes first.
    pub fn next_deadline(&self) -> Option<Instant> {
        let can_measure = self.measuring == 0 && !self.unmeasured.is_empty();
        let check = self.checks.first().filter(|_| !self.is_standalone).map(|(at, _)| *at);
        let retry = self.retries.next_deadline().filter(|_| self.measuring == 0);
        let next = [check, retry, self.scrub.next_deadline()].into_iter().flatten().min();
        if can_measure { Some(Instant::default()) } else { next }
    }

    /// Returns whether the backup knows this replica.
    pub fn knows(&self, replica: ReplicaId) -> bool {
        self.replicas.contains_key(&replica)
    }

    /// Returns the number of replicas and the sum of their lengths in bytes. Replicas that are
    /// not measured yet count with length 0.
    pub fn totals(&self) -> (usize, u64) {
        let bytes = |held: &BackupReplica| match held.state {
            ReplicaState::Found
            | ReplicaState::Measuring { .. }
            | ReplicaState::NotMeasured
            | ReplicaState::Creating { .. } => Some(0),
            ReplicaState::Written { length, .. }
            | ReplicaState::Writing { length, .. }
            | ReplicaState::Stopped { length, .. } => Some(u64::from(length)),
            ReplicaState::Full | ReplicaState::Failed | ReplicaState::Freeing => None,
        };
        let held = self.replicas.values().filter_map(bytes);
        held.fold((0, 0), |(count, sum), bytes| (count + 1, sum + bytes))
    }

    /// Returns whether this log is fenced here.
    pub fn is_fenced(&self, log: ServerId) -> bool {
        self.fenced.contains(&log)
    }

    /// Returns the latest known expiry clock of a log's master; 0 if none is known. For a fenced
    /// log the value includes the time from its arrival until the fence.
    pub fn clock(&self, log: ServerId) -> UnixMillis {
        self.clocks.get(&log).copied().unwrap_or_default().shown
    }

    /// Returns the replicas of a log, each with its length and its synced length in bytes.
    pub fn kept(&self, log: ServerId) -> impl Iterator<Item = (ReplicaId, u32, u32)> {
        self.of_log(log)
            .filter_map(|(id, held)| held.extent().map(|(length, synced)| (*id, length, synced)))
    }

    /// Returns the length of a replica in bytes, if it is known.
    pub fn length(&self, replica: ReplicaId) -> Option<u32> {
        self.replicas.get(&replica)?.extent().map(|(length, _)| length)
    }
}

impl Backup {
    /// Checks the invariants that relate the replicas to the schedules and counts.
    fn check(&self) {
        assert_eq!(self.checks.len(), self.replicas.len(), "each replica is checked for news");
        assert!(self.measuring <= READ_IN_HASTE, "{} replicas are measured", self.measuring);
        assert!(
            self.unmeasured.len() + self.measuring + self.retries.len() <= self.replicas.len(),
            "a replica that is gone is to be measured"
        );
        let is_fenced = |log: &ServerId| self.fenced.contains(log);
        assert!(self.unreported.keys().all(is_fenced), "only fenced logs are reported");
        assert!(self.recovered.is_subset(&self.fenced), "a recovered log is fenced");
        debug_assert_eq!(
            self.replicas.values().filter(|it| it.is_being_measured()).count(),
            self.measuring,
            "the disk measures other replicas: {self:?}"
        );
    }

    fn of_log(&self, log: ServerId) -> impl Iterator<Item = (&ReplicaId, &BackupReplica)> {
        self.replicas.range(first_of(log)..).take_while(move |(id, _)| id.log == log)
    }

    fn insert(&mut self, now: Instant, replica: ReplicaId, state: ReplicaState, sent: Instant) {
        let check_at = now + UNHEARD_MAX;
        let scrub_at = self.scrub.plan(now, replica);
        let held = BackupReplica { state, is_found: false, heard: now, sent, check_at, scrub_at };
        let before = self.replicas.insert(replica, held);
        assert!(before.is_none(), "{replica} is there twice");
        self.checks.insert((check_at, replica));
    }

    fn record_clock(&mut self, log: ServerId, shown: UnixMillis, heard: Option<Instant>) {
        let latest = self.clocks.entry(log).or_default();
        if shown >= latest.shown {
            *latest = MasterClock { shown, heard };
        }
    }

    fn drop(&mut self, replica: ReplicaId) {
        if let Some(held) = self.replicas.remove(&replica) {
            self.checks.remove(&(held.check_at, replica));
            self.scrub.forget(held.scrub_at, replica);
        }
    }

    fn append(
        &mut self,
        now: Instant,
        from: ServerId,
        header: &AppendHeader,
        payload: Option<Ticket>,
        out: &mut Outbox<BackupEffect>,
    ) {
        let AppendHeader { replica, sent, .. } = *header;
        if from != replica.log {
            return;
        }
        if self.is_fenced(from) {
            return refuse(replica, sent, AppendRefusal::Fenced, out);
        }
        self.record_clock(from, header.clock, Some(now));
        let has_room = self.replicas.len() < BACKUP_REPLICAS_MAX;
        match self.replicas.get_mut(&replica) {
            Some(held) if held.is_found => refuse(replica, sent, AppendRefusal::Failed, out),
            Some(held) => {
                held.heard = now;
                held.sent = held.sent.max(sent);
                held.append(header, payload, out);
            }
            // Not `Full`: the backup could not remember that refusal, and a repeated append could
            // create the replica later. After a loss the master closes the segment, so that such
            // a replica would be exposed by its length.
            None if !has_room => refuse(replica, sent, AppendRefusal::Failed, out),
            None if header.from > 0 => {
                // The replica that the master believes to be here has been lost.
                self.insert(now, replica, ReplicaState::Failed, sent);
                refuse(replica, sent, AppendRefusal::Failed, out);
            }
            None => {
                let state = ReplicaState::Creating { then: DiskFollowUp::after(header) };
                self.insert(now, replica, state, sent);
                out.push(BackupEffect::Take { replica, is_new: true, payload });
            }
        }
    }

    fn taken(
        &mut self,
        replica: ReplicaId,
        length: u32,
        synced: u32,
        out: &mut Outbox<BackupEffect>,
    ) {
        let is_fenced = self.is_fenced(replica.log);
        let Some(held) = self.replicas.get_mut(&replica) else { return };
        let (ReplicaState::Creating { then } | ReplicaState::Writing { then, .. }) = held.state
        else {
            return;
        };
        assert!(synced <= length, "{replica} has {length} bytes, and {synced} are synced");
        let mut synced = synced;
        if let ReplicaState::Writing { length: before, synced: earlier, .. } = held.state {
            assert!(before <= length, "{replica} has shrunk from {before} to {length}");
            // A sync may have ended between the write and this event.
            synced = synced.max(earlier.min(length));
        }
        held.state = ReplicaState::Written { length, synced };
        match then {
            DiskFollowUp::Free => {
                held.state = ReplicaState::Freeing;
                out.push(BackupEffect::Free { replica });
            }
            DiskFollowUp::Answer | DiskFollowUp::AnswerAndSync => {
                if !is_fenced {
                    held.answer(replica, out);
                }
                let is_to_sync = is_fenced || then == DiskFollowUp::AnswerAndSync;
                if is_to_sync && synced < length {
                    out.push(BackupEffect::Sync { replica });
                }
            }
        }
    }

    fn synced(&mut self, replica: ReplicaId, now_synced: u32, out: &mut Outbox<BackupEffect>) {
        let is_fenced = self.is_fenced(replica.log);
        let Some(held) = self.replicas.get_mut(&replica) else { return };
        if let ReplicaState::Writing { synced, .. } = &mut held.state {
            *synced = now_synced.max(*synced);
        } else if let ReplicaState::Stopped { length, synced } = &mut held.state {
            *synced = now_synced.min(*length).max(*synced);
        } else if let ReplicaState::Written { length, synced } = &mut held.state
            && *synced < now_synced
        {
            assert!(now_synced <= *length, "{replica} has {length} bytes, not {now_synced}");
            *synced = now_synced;
            if !is_fenced {
                held.answer(replica, out);
            }
        }
    }

    fn spoiled(&mut self, replica: ReplicaId, state: ReplicaState, out: &mut Outbox<BackupEffect>) {
        assert!(
            matches!(
                state,
                ReplicaState::Stopped { .. } | ReplicaState::Full | ReplicaState::Failed
            ),
            "{replica} takes more bytes: {state:?}"
        );
        let is_fenced = self.is_fenced(replica.log);
        let Some(held) = self.replicas.get_mut(&replica) else { return };
        match held.state {
            // The unsynced bytes of a replica that takes no more pieces could not be synced. Its
            // master does not count on it any more.
            ReplicaState::Stopped { .. } if state != ReplicaState::Full => {
                held.state = state;
                return;
            }
            ReplicaState::Found
            | ReplicaState::Measuring { .. }
            | ReplicaState::NotMeasured
            | ReplicaState::Stopped { .. }
            | ReplicaState::Full
            | ReplicaState::Failed
            | ReplicaState::Freeing => return,
            ReplicaState::Creating { then: DiskFollowUp::Free } if state == ReplicaState::Full => {
                return self.freed(replica, out);
            }
            ReplicaState::Creating { then: DiskFollowUp::Free }
            | ReplicaState::Writing { then: DiskFollowUp::Free, .. } => {
                held.state = ReplicaState::Freeing;
                return out.push(BackupEffect::Free { replica });
            }
            ReplicaState::Creating { .. } => held.state = state,
            // Some bytes of the replica exist, so this is a loss, not a mere refusal.
            ReplicaState::Written { .. } | ReplicaState::Writing { .. }
                if state == ReplicaState::Full =>
            {
                held.state = ReplicaState::Failed;
            }
            ReplicaState::Written { .. } | ReplicaState::Writing { .. } => held.state = state,
        }
        if !is_fenced {
            held.answer(replica, out);
        }
    }

    fn freed(&mut self, replica: ReplicaId, out: &mut Outbox<BackupEffect>) {
        self.drop(replica);
        if !self.is_fenced(replica.log) {
            out.push(BackupEffect::Released { log: replica.log, replicas: vec![replica] });
        }
    }

    /// Syncs all replicas of a log that have unsynced bytes.
    fn sync_log(&self, log: ServerId, out: &mut Outbox<BackupEffect>) {
        for (replica, held) in self.of_log(log) {
            if let ReplicaState::Written { length, synced }
            | ReplicaState::Stopped { length, synced } = held.state
                && synced < length
            {
                out.push(BackupEffect::Sync { replica: *replica });
            }
        }
    }

    fn release(&mut self, log: ServerId, replicas: &[ReplicaId], out: &mut Outbox<BackupEffect>) {
        if self.is_fenced(log) {
            return;
        }
        let mut gone = Vec::new();
        for replica in replicas.iter().filter(|replica| replica.log == log) {
            if self.mark_unneeded(*replica, out) {
                gone.push(*replica);
            }
        }
        if !gone.is_empty() {
            out.push(BackupEffect::Released { log, replicas: gone });
        }
    }

    fn free_all(&mut self, log: ServerId, out: &mut Outbox<BackupEffect>) {
        self.fenced.insert(log);
        self.recovered.insert(log);
        let replicas: Vec<ReplicaId> = self.of_log(log).map(|(id, _)| *id).collect();
        for replica in replicas {
            self.mark_unneeded(replica, out);
        }
    }

    /// Marks a replica as no longer needed. Returns whether nothing of it is left.
    fn mark_unneeded(&mut self, replica: ReplicaId, out: &mut Outbox<BackupEffect>) -> bool {
        let Some(held) = self.replicas.get_mut(&replica) else { return true };
        match &mut held.state {
            ReplicaState::Creating { then }
            | ReplicaState::Writing { then, .. }
            | ReplicaState::Measuring { then } => {
                *then = DiskFollowUp::Free;
            }
            ReplicaState::Found => {
                self.unmeasured.remove(&replica);
                held.state = ReplicaState::Freeing;
                out.push(BackupEffect::Free { replica });
            }
            ReplicaState::NotMeasured => {
                self.retries.remove(replica);
                held.state = ReplicaState::Freeing;
                out.push(BackupEffect::Free { replica });
            }
            ReplicaState::Written { .. } | ReplicaState::Stopped { .. } | ReplicaState::Failed => {
                held.state = ReplicaState::Freeing;
                out.push(BackupEffect::Free { replica });
            }
            ReplicaState::Full => {
                self.drop(replica);
                return true;
            }
            ReplicaState::Freeing => {}
        }
        false
    }

    /// Asks about replicas without recent messages. The answer is a release, or none.
    fn ask(&mut self, now: Instant, out: &mut Outbox<BackupEffect>) {
        let mut unheard: BTreeMap<ServerId, Vec<ReplicaId>> = BTreeMap::new();
        while let Some((at, replica)) = self.checks.first().copied().filter(|(at, _)| *at <= now) {
            self.checks.remove(&(at, replica));
            let is_fenced = self.fenced.contains(&replica.log);
            let Some(held) = self.replicas.get_mut(&replica) else { continue };
            if held.heard + UNHEARD_MAX <= now {
                held.heard = now;
                // The coordinator reports when a fenced log is no longer needed.
                if !is_fenced {
                    unheard.entry(replica.log).or_default().push(replica);
                    held.complain(replica, out);
                }
            }
            held.check_at = held.heard + UNHEARD_MAX;
            self.checks.insert((held.check_at, replica));
        }
        for (log, replicas) in unheard {
            for some in replicas.chunks(REPLICAS_MAX) {
                out.push(BackupEffect::Ask { log, replicas: some.to_vec() });
            }
        }
    }

    /// Reports the fenced logs on which the disk has no more work.
    fn report(&mut self, out: &mut Outbox<BackupEffect>) {
        let logs: Vec<ServerId> = self.unreported.keys().copied().collect();
        for log in logs {
            if let Some(awaited) = self.awaited_replica(log)
                && !planted::is(Bug::ReportedBeforeMeasured)
            {
                self.unreported.insert(log, awaited);
                continue;
            }
            self.unreported.remove(&log);
            out.push(BackupEffect::Report { log });
        }
    }

    /// Returns a replica of an unreported log that the disk works on. The search begins at the one
    /// found last: a log has thousands of replicas, and each event of the disk concerns one.
    fn awaited_replica(&self, log: ServerId) -> Option<ReplicaId> {
        let last = *self.unreported.get(&log)?;
        assert_eq!(last.log, log, "the report of {log} waits for {last}");
        let later = self.replicas.range(last..).take_while(|(id, _)| id.log == log);
        let earlier = self.replicas.range(first_of(log)..last);
        let mut awaited = later.chain(earlier).filter(|(_, held)| !held.is_final());
        awaited.next().map(|(id, _)| *id)
    }

    fn report_freed(&mut self, out: &mut Outbox<BackupEffect>) {
        let is_freed = |log: &ServerId| self.of_log(*log).next().is_none();
        let freed: Vec<ServerId> = self.recovered.iter().copied().filter(is_freed).collect();
        for log in freed {
            self.recovered.remove(&log);
            self.clocks.remove(&log);
            out.push(BackupEffect::LogFreed { log });
        }
    }
}

impl DiskFollowUp {
    fn after(header: &AppendHeader) -> DiskFollowUp {
        if header.syncs_at_once { DiskFollowUp::AnswerAndSync } else { DiskFollowUp::Answer }
    }
}

impl BackupReplica {
    /// Processes an append for a known replica.
    fn append(
        &mut self,
        header: &AppendHeader,
        payload: Option<Ticket>,
        out: &mut Outbox<BackupEffect>,
    ) {
        let replica = header.replica;
        match &mut self.state {
            // The answer follows when the disk has finished; the master repeats missing bytes.
            ReplicaState::Creating { then } | ReplicaState::Writing { then, .. } => {
                if *then == DiskFollowUp::Answer {
                    *then = DiskFollowUp::after(header);
                }
            }
            ReplicaState::Written { length, .. } if header.from > *length => {
                self.state = ReplicaState::Failed;
                self.answer(replica, out);
            }
            ReplicaState::Written { length, synced }
                if header.from == *length && header.to > header.from =>
            {
                let (length, synced) = (*length, *synced);
                self.state =
                    ReplicaState::Writing { length, synced, then: DiskFollowUp::after(header) };
                out.push(BackupEffect::Take { replica, is_new: false, payload });
            }
            ReplicaState::Written { length, synced } => {
                if header.syncs_at_once && synced < length {
                    out.push(BackupEffect::Sync { replica });
                }
                self.answer(replica, out);
            }
            ReplicaState::Stopped { .. } | ReplicaState::Full | ReplicaState::Failed => {
                self.answer(replica, out)
            }
            // Found replicas are handled in `Backup::append`.
            ReplicaState::Found
            | ReplicaState::Measuring { .. }
            | ReplicaState::NotMeasured
            | ReplicaState::Freeing => {}
        }
    }

    fn answer(&self, replica: ReplicaId, out: &mut Outbox<BackupEffect>) {
        let result = match self.state {
            ReplicaState::Written { length, synced } => AppendResult::Has { length, synced },
            ReplicaState::Full => AppendResult::Refused(AppendRefusal::Full),
            ReplicaState::Stopped { .. } | ReplicaState::Failed => {
                AppendResult::Refused(AppendRefusal::Failed)
            }
            ReplicaState::Found
            | ReplicaState::Measuring { .. }
            | ReplicaState::NotMeasured
            | ReplicaState::Creating { .. }
            | ReplicaState::Writing { .. }
            | ReplicaState::Freeing => return,
        };
        out.push(BackupEffect::Answer(Appended { replica, sent: self.sent, result }));
    }

    /// Reports a failed replica to its master unasked, because the last append may be long ago.
    fn complain(&self, replica: ReplicaId, out: &mut Outbox<BackupEffect>) {
        if let ReplicaState::Stopped { .. } | ReplicaState::Failed = self.state {
            let result = AppendResult::Refused(AppendRefusal::Failed);
            out.push(BackupEffect::Complain(Appended { replica, sent: self.sent, result }));
        }
    }

    /// Returns the length of the replica and its synced length, in bytes.
    fn extent(&self) -> Option<(u32, u32)> {
        let (ReplicaState::Written { length, synced }
        | ReplicaState::Writing { length, synced, .. }
        | ReplicaState::Stopped { length, synced }) = self.state
        else {
            return None;
        };
        Some((length, synced))
    }

    fn is_being_measured(&self) -> bool {
        matches!(self.state, ReplicaState::Measuring { .. })
    }

    /// Returns whether the report of a fenced log need not wait for the replica: its bytes are
    /// known, and survive a loss of power, or the disk fails.
    fn is_final(&self) -> bool {
        #[cfg(test)]
        tests::REPLICAS_JUDGED.set(tests::REPLICAS_JUDGED.get() + 1);
        match self.state {
            ReplicaState::Found
            | ReplicaState::Measuring { .. }
            | ReplicaState::Creating { .. }
            | ReplicaState::Writing { .. } => false,
            ReplicaState::Written { length, synced } | ReplicaState::Stopped { length, synced } => {
                synced == length || planted::is(Bug::ReportedBeforeSynced)
            }
            ReplicaState::NotMeasured
            | ReplicaState::Full
            | ReplicaState::Failed
            | ReplicaState::Freeing => true,
        }
    }
}

/// Returns a lower bound of all replica ids of the log.
fn first_of(log: ServerId) -> ReplicaId {
    ReplicaId { log, segment: SegmentId(0), epoch: ReplicaEpoch(0) }
}

fn refuse(replica: ReplicaId, sent: Instant, why: AppendRefusal, out: &mut Outbox<BackupEffect>) {
    out.push(BackupEffect::Answer(Appended { replica, sent, result: AppendResult::Refused(why) }));
}

#[cfg(test)]
mod tests;
