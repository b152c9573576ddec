//! The backup role of this server: it takes, stores and frees replicas of other servers' logs.
//!
//! All reactors share the machine that decides, and lock it for a fraction of a microsecond per
//! message. Disk work runs outside the lock: the machine allows one piece per replica in
//! progress. An answer leaves on the connection of its request.

use super::backup_jobs::{
    BackupDone, BackupJob, BackupWork, Done, FILES_READY, ManifestRead, MeasureResult,
    OWN_FILES_READY, StagedPiece, give_up, not_begun,
};
use super::routes::Routes;
use super::{LogPlacement, Mode, Replication, lock};
use crate::context::Context;
use crate::loading::AdoptedManifest;
use crate::messages::{Payload, Route, Sending, To};
use crate::outgoing::{DiskJob, EngineOutput};
use ::backup::{AppendError, ReplicaWriter, Replicas};
use planted::Bug;
use protocols::replication::{AppendHeader, Backup, BackupEffect, BackupEvent, ScrubResult};
use protocols::{Outbox, Ticket};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use store::Store;
use types::{Instant, ReactorId, SegmentId, ServerId};
use wire::control::{
    LogUpdate, MANIFEST_BYTES_PER_MESSAGE, ManifestPosition, REPLICAS_PER_MESSAGE, ReplicaInfo,
};
use wire::peer::{Append, PeerMessage};
use wire::replica::{ReplicaEpoch, ReplicaFormat, ReplicaHeader, ReplicaId};

/// Longest time that taken bytes stay unsynced in [`Mode::Interval`]. The second is Redis's.
pub(super) const INTERVAL: Duration = Duration::from_secs(1);

/// Number of such intervals after which a standalone server in [`Mode::Memory`] syncs, unless a
/// segment ends or memory is low before. Words of tombstones and segments that leave wait as long.
const MEMORY_INTERVALS: u32 = 5;

/// Pause until a sync that waits for a version mark is tried again, if nothing calls for it before.
const MARK_PAUSE: Duration = Duration::from_millis(10);

/// Backup state shared by all reactors.
pub(super) struct BackupSide {
    machine: Backup,
    /// Replicas that take pieces, and those that take no more and are not freed yet.
    open: BTreeMap<ReplicaId, Arc<ReplicaWriter>>,
}

/// Backup state of one reactor, for the replicas with pieces that arrive here.
pub(crate) struct BackupPart {
    replication: Arc<Replication>,
    routes: Routes,
    /// Replicas with unsynced bytes, and the time of their next sync.
    unsynced: BTreeMap<ReplicaId, Arc<ReplicaWriter>>,
    sync_at: Option<Instant>,
    is_syncing: bool,
    /// Number of version marks after which this reactor has synced.
    rounds: u64,
    next_ticket: u64,
    /// Buffers of the events that result from effects, and of the effects.
    events: VecDeque<BackupEvent>,
    effects: Outbox<BackupEffect>,
    /// Pieces of the manifest that the coordinator is reading, until it has received all of them.
    manifest: Option<(ReplicaId, Vec<Vec<u8>>)>,
}

/// The message being handled, of which the machine sees only the lengths.
#[derive(Default)]
struct StagedAppend {
    /// Header of the replica that the message is for.
    header: Option<ReplicaHeader>,
    piece: Option<StagedPiece>,
}

impl BackupSide {
    /// Registers all replicas found on the disk. Only their headers have been read so far.
    pub(super) fn new(disk: &Replicas, scrub: Option<Duration>) -> BackupSide {
        let mut machine = Backup::scrubbing(scrub);
        for replica in disk.ids() {
            machine.handle(Instant(0), BackupEvent::Found { replica }, &mut Outbox::new());
        }
        BackupSide { machine, open: BTreeMap::new() }
    }

    /// Returns whether the replica of this writer takes pieces.
    fn is_open(&self, writer: &Arc<ReplicaWriter>) -> bool {
        self.open.get(&writer.id()).is_some_and(|open| Arc::ptr_eq(open, writer))
    }

    /// Adds a replica that takes pieces from now on.
    fn begun(&mut self, writer: Arc<ReplicaWriter>) {
        let replica = writer.id();
        let before = self.open.insert(replica, writer);
        assert!(before.is_none(), "{replica} is begun while it takes pieces");
    }

    /// Returns the replicas of this manifest log that have unsynced bytes.
    fn unsynced_manifest(&self, log: ServerId) -> Vec<Arc<ReplicaWriter>> {
        let first =
            ReplicaId { log, segment: SegmentId::FIRST_OF_MANIFEST, epoch: ReplicaEpoch(0) };
        let of_manifest = self.open.range(first..).take_while(|(id, _)| id.log == log);
        let unsynced = of_manifest.map(|(_, open)| open).filter(|it| it.synced() < it.length());
        unsynced.cloned().collect()
    }

    /// Returns the replicas of segments of data that take pieces.
    pub(super) fn open_data(&self) -> impl Iterator<Item = Arc<ReplicaWriter>> {
        self.open.values().filter(|open| !open.id().segment.is_manifest()).cloned()
    }

    /// Makes the backup of a server without a cluster, which has adopted its own log.
    pub(super) fn of_own_log(segment: &AdoptedManifest) -> BackupSide {
        let mut backup = BackupSide { machine: Backup::of_own_log(), open: BTreeMap::new() };
        backup.adopt(segment.replica, segment.length);
        backup
    }

    /// Registers a complete replica of the server's own log.
    pub(super) fn adopt(&mut self, replica: ReplicaId, length: u32) {
        let event = BackupEvent::Adopted { replica, length };
        self.machine.handle(Instant(0), event, &mut Outbox::new());
    }

    pub(super) fn machine(&self) -> &Backup {
        &self.machine
    }
}

/// Returns as much of the pieces from `first` on as fits into a message, and the rest's position.
fn manifest_part(
    pieces: &[Vec<u8>],
    first: ManifestPosition,
) -> (Vec<Vec<u8>>, Option<ManifestPosition>) {
    let mut place = first;
    let (mut bodies, mut room) = (Vec::new(), MANIFEST_BYTES_PER_MESSAGE);
    for piece in pieces.iter().skip(first.pieces as usize) {
        let rest = piece.get(place.bytes as usize..).unwrap_or_default();
        if room == 0 {
            return (bodies, Some(place));
        }
        let taken = rest.len().min(room);
        bodies.push(rest[..taken].to_vec());
        room -= taken;
        if taken < rest.len() {
            return (bodies, Some(ManifestPosition { bytes: place.bytes + taken as u32, ..place }));
        }
        place = ManifestPosition { pieces: place.pieces + 1, bytes: 0 };
    }
    (bodies, None)
}

impl BackupPart {
    /// Makes the part of one reactor.
    pub(crate) fn new(replication: Arc<Replication>) -> BackupPart {
        BackupPart {
            replication,
            routes: Routes::default(),
            unsynced: BTreeMap::new(),
            sync_at: None,
            is_syncing: false,
            rounds: 0,
            next_ticket: 0,
            events: VecDeque::new(),
            effects: Outbox::new(),
            manifest: None,
        }
    }

    /// Handles a master's append.
    pub(crate) fn append_arrived(
        &mut self,
        from: ServerId,
        append: Append,
        payload: Payload,
        route: Route,
        context: &mut Context<'_>,
    ) {
        let bytes = payload.bytes().len() as u32;
        let Some(to) = append.from.checked_add(bytes) else { return };
        let header = AppendHeader {
            replica: append.replica,
            from: append.from,
            to,
            syncs_at_once: append.syncs_at_once,
            sent: append.sent,
            clock: append.clock,
        };
        // Only the log's master may append; other senders get no answer.
        if from != append.replica.log {
            return context.buffers.give(payload.buffer);
        }
        if route != Route::HERE {
            self.note_route(append.replica, route);
        }
        self.next_ticket += 1;
        let ticket = Ticket(self.next_ticket);
        let piece =
            append.header.filter(|_| bytes > 0).map(|header| StagedPiece { header, payload });
        let payload = piece.as_ref().map(|_| ticket);
        let replica_header = ReplicaHeader {
            format: ReplicaFormat::CURRENT,
            cluster: context.node.cluster(),
            id: append.replica,
            kind: append.kind,
            segment_bytes: append.segment_bytes,
            boot: self.replication.disk.boot(),
        };
        let event = BackupEvent::Append { from, header, payload };
        let staged = StagedAppend { header: Some(replica_header), piece };
        self.drive(event, staged, context);
    }

    fn note_route(&mut self, replica: ReplicaId, route: Route) {
        let replication = &self.replication;
        self.routes.note(replica, route, || {
            let backup = replication.backup();
            move |replica| backup.machine.knows(replica)
        });
    }

    /// Handles a master's release of replicas.
    pub(crate) fn release_arrived(
        &mut self,
        log: ServerId,
        replicas: Vec<ReplicaId>,
        context: &mut Context<'_>,
    ) {
        self.on_event(BackupEvent::Release { log, replicas }, context);
    }

    /// Passes an event other than an append to the backup's machine.
    pub(crate) fn on_event(&mut self, event: BackupEvent, context: &mut Context<'_>) {
        self.drive(event, StagedAppend::default(), context);
    }

    fn drive(&mut self, event: BackupEvent, staged: StagedAppend, context: &mut Context<'_>) {
        let StagedAppend { header, mut piece } = staged;
        let mut events = std::mem::take(&mut self.events);
        let mut effects = std::mem::take(&mut self.effects);
        assert!(events.is_empty() && effects.is_empty(), "one event is handled at a time");
        events.push_back(event);
        while let Some(event) = events.pop_front() {
            self.replication.backup().machine.handle(context.now, event, &mut effects);
            for effect in effects.drain() {
                let piece = piece.take_if(|_| matches!(effect, BackupEffect::Take { .. }));
                events.extend(self.apply(effect, StagedAppend { header, piece }, context));
            }
        }
        (self.events, self.effects) = (events, effects);
        if let Some(piece) = piece {
            context.buffers.give(piece.payload.buffer);
        }
    }

    /// Applies an effect. Returns the event that results at once, if any.
    fn apply(
        &mut self,
        effect: BackupEffect,
        staged: StagedAppend,
        context: &mut Context<'_>,
    ) -> Option<BackupEvent> {
        let StagedAppend { header, piece } = staged;
        match effect {
            BackupEffect::Take { replica, is_new: true, .. } => match header {
                Some(header) => return self.begin_replica(header, piece, context),
                None => return Some(BackupEvent::Full { replica }),
            },
            BackupEffect::Take { replica, is_new: false, .. } => {
                return self.take_piece(replica, piece, context);
            }
            BackupEffect::Sync { replica } => {
                let open = self.replication.backup().open.get(&replica).cloned();
                if let Some(open) = open {
                    self.sync_soon(open, Duration::ZERO, context);
                }
            }
            BackupEffect::Measure { replica } => {
                let is_synced = self.replication.plan.mode != Mode::Memory
                    && !planted::is(Bug::ReportedBeforeSynced);
                self.leave_job(context.out, BackupWork::Measure { replica, is_synced });
            }
            BackupEffect::Scrub { replica } => {
                self.leave_job(context.out, BackupWork::Scrub(replica));
            }
            BackupEffect::GiveUp { replica } => {
                self.replication.disk_counts.note_damaged();
                self.replication.backup().open.remove(&replica);
                self.leave_job(context.out, BackupWork::GiveUp(replica));
            }
            BackupEffect::Complain(answer) => {
                context.out.send(answer.replica.log, PeerMessage::Appended(answer));
            }
            BackupEffect::Free { replica } => {
                self.replication.backup().open.remove(&replica);
                self.leave_job(context.out, BackupWork::Free(replica));
            }
            BackupEffect::Answer(answer) => {
                let is_own = answer.replica.log == context.node.me();
                let here = is_own.then_some(Route::HERE);
                if let Some(route) = here.or_else(|| self.routes.get(answer.replica)) {
                    let message = PeerMessage::Appended(answer);
                    let to = To::Back(route);
                    let payload = Vec::new();
                    context.out.peers.push(Sending { to, is_priority: false, message, payload });
                }
            }
            BackupEffect::Released { log, replicas } => {
                for replica in &replicas {
                    self.routes.remove(*replica);
                }
                context.out.send(log, PeerMessage::Released { replicas });
            }
            BackupEffect::Ask { log, replicas } => ask_about(log, replicas, context),
            BackupEffect::Report { log } => self.report_kept(log, context.out),
            BackupEffect::LogFreed { log } => {
                context.out.control.push(LogUpdate::LogFreed { log }.into());
            }
        }
        None
    }

    /// Begins a replica: at once if a prepared file is available, else as a job.
    fn begin_replica(
        &mut self,
        header: ReplicaHeader,
        first: Option<StagedPiece>,
        context: &mut Context<'_>,
    ) -> Option<BackupEvent> {
        // The manifest registers a segment once its replicas have begun. If the manifest must
        // survive a loss of power, so must the replicas: a job begins them and waits for the
        // disk.
        let is_elsewhere = self.replication.placement() == LogPlacement::OtherServers;
        let begun = match self.replication.plan.mode {
            Mode::Memory if is_elsewhere && !self.replication.disk.is_slow(context.now) => {
                self.replication.disk.create_at_once(header)
            }
            // After a loss of power an own replica without its header would look damaged.
            Mode::Memory | Mode::Interval | Mode::Disk => Ok(None),
        };
        let segment_bytes = header.segment_bytes;
        let stock = match self.replication.placement() {
            LogPlacement::OwnDisk => OWN_FILES_READY,
            LogPlacement::Nowhere | LogPlacement::OtherServers => FILES_READY,
        };
        let Ok(Some(replica)) = begun else {
            self.leave_job(context.out, BackupWork::Begin { header, first });
            self.leave_job(context.out, BackupWork::Prepare { segment_bytes, stock });
            return None;
        };
        self.leave_job(context.out, BackupWork::Prepare { segment_bytes, stock });
        if let Some(piece) = first {
            let taken = replica.append(&piece.header, piece.payload.bytes());
            context.buffers.give(piece.payload.buffer);
            if let Err(error) = taken {
                let not_begun = not_begun(&self.replication.disk, header.id, &error.to_string());
                return Some(not_begun.event(header.id));
            }
        }
        self.replication.backup().begun(replica.clone());
        Some(self.taken(replica, context))
    }

    fn leave_job(&self, out: &mut EngineOutput, work: BackupWork) {
        let disk = self.replication.disk.clone();
        out.disk.push(DiskJob::Backup(BackupJob { disk, work }));
    }

    fn take_piece(
        &mut self,
        id: ReplicaId,
        piece: Option<StagedPiece>,
        context: &mut Context<'_>,
    ) -> Option<BackupEvent> {
        let open = self.replication.backup().open.get(&id).cloned();
        let (Some(replica), Some(piece)) = (open, piece) else {
            return Some(self.spoil(id, "this process did not create the replica"));
        };
        assert_eq!(replica.id(), id, "a replica takes pieces under its own id");
        // A write to a slow disk would keep the whole reactor waiting.
        if self.replication.disk.is_slow(context.now) {
            self.leave_job(context.out, BackupWork::Append { replica, piece });
            return None;
        }
        let taken = replica.append(&piece.header, piece.payload.bytes());
        context.buffers.give(piece.payload.buffer);
        Some(self.appended(replica, taken, context))
    }

    /// Handles the result of a write.
    fn appended(
        &mut self,
        replica: Arc<ReplicaWriter>,
        result: Result<(), AppendError>,
        context: &mut Context<'_>,
    ) -> BackupEvent {
        match result {
            Ok(()) => self.taken(replica, context),
            // The writer stays: bytes that were taken before may have to be synced.
            Err(error) => self.stop(&replica, replica.length(), &error.to_string()),
        }
    }

    /// Stops a replica that can take no more bytes. Its acknowledged bytes stay on the disk: a
    /// recovery may need them until the segment is sealed in the manifest.
    fn stop(&mut self, open: &ReplicaWriter, length: u32, why: &str) -> BackupEvent {
        let replica = open.id();
        tracing::warn!(%replica, why, "replica accepts no more data");
        self.replication.disk_counts.note_error();
        BackupEvent::Stopped { replica, length, synced: self.synced(open) }
    }

    /// Returns the length of the part of a replica that counts as synced. Of the own log this is
    /// the real one in every mode: no other server has the log if the disk lacks a segment that the
    /// manifest names, or if a segment has left whose copies the disk lacks.
    fn synced(&self, open: &ReplicaWriter) -> u32 {
        let is_elsewhere = self.replication.placement() != LogPlacement::OwnDisk;
        match self.replication.plan.mode {
            Mode::Memory if is_elsewhere => open.length(),
            Mode::Memory | Mode::Interval | Mode::Disk => open.synced(),
        }
    }

    /// Records that a replica has taken a piece, or has begun.
    fn taken(&mut self, open: Arc<ReplicaWriter>, context: &mut Context<'_>) -> BackupEvent {
        let (replica, length) = (open.id(), open.length());
        let synced = self.synced(&open);
        if synced < length {
            let pause = match self.replication.plan.mode {
                Mode::Memory if planted::is(Bug::MemoryNotSynced) => Duration::from_secs(3_600),
                Mode::Memory => self.replication.sync_interval * MEMORY_INTERVALS,
                Mode::Interval => self.replication.sync_interval,
                Mode::Disk => Duration::ZERO,
            };
            self.sync_soon(open, pause, context);
        }
        BackupEvent::Taken { replica, length, synced }
    }

    /// Discards a replica with unknown content, so that the next start does not find it.
    fn spoil(&mut self, replica: ReplicaId, why: &str) -> BackupEvent {
        tracing::warn!(%replica, why, "replica discarded");
        self.replication.disk_counts.note_error();
        self.replication.backup().open.remove(&replica);
        self.unsynced.remove(&replica);
        give_up(&self.replication.disk, replica);
        BackupEvent::Failed { replica }
    }

    /// Handles a failed sync: the bytes it covered may be lost. Bytes synced earlier are intact,
    /// which is enough if only those were acknowledged.
    fn not_synced(&mut self, replica: ReplicaId, why: &str) -> Option<BackupEvent> {
        let open = self.replication.backup().open.remove(&replica);
        match self.replication.plan.mode {
            // `None` if an event on another reactor has closed the replica before.
            Mode::Disk => open.map(|open| self.stop(&open, open.synced(), why)),
            // No other server has the acknowledged bytes, and the disk may still return them.
            Mode::Memory | Mode::Interval
                if self.replication.placement() == LogPlacement::OwnDisk =>
            {
                open.map(|open| self.stop(&open, open.length(), why))
            }
            Mode::Memory | Mode::Interval => Some(self.spoil(replica, why)),
        }
    }

    fn sync_soon(&mut self, open: Arc<ReplicaWriter>, pause: Duration, context: &mut Context<'_>) {
        self.unsynced.insert(open.id(), open);
        let at = context.now + pause;
        let planned = self.sync_at.get_or_insert(at);
        *planned = at.min(*planned);
        self.sync(context);
    }

    /// Syncs all replicas with unsynced bytes, without waiting for the end of the interval.
    pub(crate) fn sync_now(&mut self, context: &mut Context<'_>) {
        if self.sync_at.is_some() {
            self.sync_at = Some(context.now);
            self.sync(context);
        }
    }

    /// Returns whether a version mark waits for a sync of this reactor that has not been begun.
    pub(crate) fn follow_marks(&mut self, rounds: u64) -> bool {
        std::mem::replace(&mut self.rounds, rounds) != rounds
    }

    /// Syncs the own manifest alone, which has a new version mark. Does nothing if a sync is in
    /// progress: the next one includes the manifest.
    pub(crate) fn sync_manifest(&mut self, context: &mut Context<'_>) {
        let manifest = self.replication.backup().unsynced_manifest(context.node.me());
        assert_eq!(context.reactor, super::MANIFEST_REACTOR, "it has written the manifest");
        if self.is_syncing || manifest.is_empty() {
            return;
        }
        self.unsynced.retain(|id, _| manifest.iter().all(|it| it.id() != *id));
        if self.unsynced.is_empty() {
            self.sync_at = None;
        }
        self.is_syncing = true;
        self.leave_job(context.out, BackupWork::Sync(manifest));
    }

    fn sync(&mut self, context: &mut Context<'_>) {
        let is_due = self.sync_at.is_some_and(|at| at <= context.now);
        if is_due && !self.is_syncing {
            if !self.replication.may_sync(context.now, context.node) {
                self.sync_at = Some(context.now + MARK_PAUSE);
                return;
            }
            self.sync_at = None;
            assert!(!self.is_syncing, "one sync runs at a time");
            self.is_syncing = true;
            let unsynced = std::mem::take(&mut self.unsynced);
            // The own manifest comes first: synced data must belong to a segment that it names.
            let me = context.node.me();
            let manifest = self.replication.backup().unsynced_manifest(me);
            let is_first = |it: &Arc<ReplicaWriter>| manifest.iter().any(|at| at.id() == it.id());
            let others: Vec<_> = unsynced.into_values().filter(|it| !is_first(it)).collect();
            let replicas = manifest.into_iter().chain(others).collect();
            self.leave_job(context.out, BackupWork::Sync(replicas));
        }
    }

    /// Handles the result of a disk job.
    pub(crate) fn on_done(&mut self, done: BackupDone, context: &mut Context<'_>) {
        let events = match done.0 {
            Done::Begun(_, Ok(open)) => {
                self.replication.backup().begun(open.clone());
                vec![self.taken(open, context)]
            }
            Done::Begun(replica, Err(not_begun)) => {
                self.replication.disk_counts.note_error();
                vec![not_begun.event(replica)]
            }
            Done::Appended(replica, result) => vec![self.appended(replica, result, context)],
            Done::Freed(replica) => {
                let takes_pieces = self.replication.backup().open.contains_key(&replica);
                assert!(!takes_pieces, "{replica} is freed while it takes pieces");
                vec![BackupEvent::Freed { replica }]
            }
            Done::Measured(replica, measured) => vec![self.measured(replica, measured)],
            Done::Scrubbed(replica, found) => {
                match found {
                    ScrubResult::Intact(length) => {
                        self.replication.disk_counts.note_scrubbed(length)
                    }
                    // The machine reports the fault: the replica may only have become shorter.
                    ScrubResult::Damaged | ScrubResult::Unknown => {}
                }
                vec![BackupEvent::Scrubbed { replica, found }]
            }
            Done::ManifestRead(read, bodies) => {
                self.manifest = Some((read.id(), bodies));
                self.report_manifest(read, context.out);
                Vec::new()
            }
            Done::Prepared | Done::GivenUp => Vec::new(),
            Done::Synced(synced) => {
                assert!(self.is_syncing, "a sync ends once");
                self.is_syncing = false;
                let event = |(writer, result): (Arc<ReplicaWriter>, Result<u32, String>)| {
                    let replica = writer.id();
                    // A late message may have begun a replica of the same id after this one was
                    // freed.
                    if !self.replication.backup().is_open(&writer) {
                        return None;
                    }
                    match result {
                        Ok(synced) => Some(BackupEvent::Synced { replica, synced }),
                        Err(why) => self.not_synced(replica, &why),
                    }
                };
                synced.into_iter().filter_map(event).collect()
            }
        };
        for event in events {
            self.on_event(event, context);
        }
        self.sync(context);
    }

    fn measured(&self, replica: ReplicaId, measured: MeasureResult) -> BackupEvent {
        match measured {
            MeasureResult::Intact { length, clock } => {
                BackupEvent::Measured { replica, length, synced: length, clock }
            }
            MeasureResult::Damaged => {
                self.replication.disk_counts.note_damaged();
                BackupEvent::Damaged { replica }
            }
            MeasureResult::Unknown => {
                self.replication.disk_counts.note_error();
                BackupEvent::NotMeasured { replica }
            }
        }
    }

    /// Reports the replicas of a fenced log to the coordinator.
    fn report_kept(&self, log: ServerId, out: &mut EngineOutput) {
        let short = self.replication.may_be_short(log);
        let info = |(id, length, _): (ReplicaId, u32, u32)| ReplicaInfo {
            segment: id.segment,
            epoch: id.epoch,
            is_manifest: id.segment.is_manifest(),
            length,
            may_be_short: short.contains(&id),
        };
        let backup = lock(&self.replication.backup);
        let clock = backup.machine.clock(log);
        let kept: Vec<ReplicaInfo> = backup.machine.kept(log).map(info).collect();
        drop(backup);
        let mut reported = 0;
        loop {
            let rest = &kept[reported..];
            let replicas = rest[..rest.len().min(REPLICAS_PER_MESSAGE)].to_vec();
            let first = reported as u32;
            reported += replicas.len();
            let more = reported < kept.len();
            out.control.push(LogUpdate::Fenced { log, first, replicas, clock, more }.into());
            if !more {
                return;
            }
        }
    }

    /// Reads a replica of a log's manifest, and sends it to the coordinator from `first` on.
    pub(crate) fn read_manifest(
        &mut self,
        log: ServerId,
        replica: (SegmentId, ReplicaEpoch),
        first: ManifestPosition,
        out: &mut EngineOutput,
    ) {
        let read = ManifestRead { log, replica, first };
        // The log is fenced, so the pieces read a moment ago have not changed.
        if self.manifest.as_ref().is_some_and(|it| it.0 == read.id()) {
            self.report_manifest(read, out);
        } else {
            self.leave_job(out, BackupWork::ReadManifest(read));
        }
    }

    /// Sends as much of the manifest as fits into a message. The coordinator asks for the rest.
    fn report_manifest(&mut self, read: ManifestRead, out: &mut EngineOutput) {
        let Some((_, all)) = self.manifest.take() else { return };
        let ManifestRead { log, replica, first } = read;
        let (bodies, next) = manifest_part(&all, first);
        let bytes: usize = bodies.iter().map(Vec::len).sum();
        assert!(bytes <= MANIFEST_BYTES_PER_MESSAGE, "a part of a manifest fits into a message");
        if next.is_some() {
            self.manifest = Some((read.id(), all));
        }
        out.control.push(LogUpdate::ManifestRead { log, replica, first, bodies, next }.into());
    }

    /// Runs the parts of the backup that are due.
    pub(crate) fn tick(&mut self, context: &mut Context<'_>) {
        self.sync(context);
        let now = context.now;
        let is_due = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        if context.reactor == super::MANIFEST_REACTOR
            && is_due(self.replication.backup().machine.next_deadline())
        {
            self.on_event(BackupEvent::Tick, context);
        }
    }

    pub(crate) fn next_deadline(&self, reactor: ReactorId, store: &Store) -> Option<Instant> {
        let is_first = reactor == super::MANIFEST_REACTOR;
        let machine = is_first.then(|| self.replication.backup().machine.next_deadline()).flatten();
        let sync = self.sync_at.filter(|_| !self.is_syncing);
        let mark = is_first.then(|| self.replication.mark_deadline(store)).flatten();
        [machine, sync, mark].into_iter().flatten().min()
    }
}

/// Asks the master, or the coordinator if that is dead, whether silent replicas are needed.
fn ask_about(log: ServerId, replicas: Vec<ReplicaId>, context: &mut Context<'_>) {
    let map = context.node.map();
    let is_alive = map.servers.iter().any(|server| server.id == log && !server.is_dead);
    match is_alive {
        true => context.out.send(log, PeerMessage::Needed { replicas }),
        false => context.out.control.push(LogUpdate::IsNeeded { log }.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ::backup::MemoryDisk;
    use types::ClusterId;
    use wire::replica::{BootId, ReplicaKind};

    #[test]
    #[should_panic(expected = "is begun while it takes pieces")]
    fn a_replica_is_begun_once() {
        let opened = Replicas::open(Arc::new(MemoryDisk::new()), BootId::default());
        let disk = opened.expect("an empty disk").replicas;
        let header = ReplicaHeader {
            format: ReplicaFormat::CURRENT,
            cluster: ClusterId(1),
            id: ReplicaId { log: ServerId(1), segment: SegmentId(7), epoch: ReplicaEpoch(0) },
            kind: ReplicaKind::Data,
            segment_bytes: 1 << 16,
            boot: disk.boot(),
        };
        let writer = disk.create(header).expect("a disk with room");
        let mut backup = BackupSide::new(&disk, None);
        backup.begun(writer.clone());
        backup.begun(writer);
    }

    #[test]
    fn a_manifest_comes_in_parts_however_long_its_pieces_are() {
        let lengths = [3, 0, MANIFEST_BYTES_PER_MESSAGE * 2 + 7, 5, MANIFEST_BYTES_PER_MESSAGE];
        let pieces: Vec<Vec<u8>> =
            lengths.into_iter().zip(1..).map(|(length, byte)| vec![byte; length]).collect();
        let (mut place, mut read, mut parts) = (ManifestPosition::default(), Vec::new(), 0);
        loop {
            let (bodies, next) = manifest_part(&pieces, place);
            let bytes: usize = bodies.iter().map(Vec::len).sum();
            assert!(0 < bytes && bytes <= MANIFEST_BYTES_PER_MESSAGE);
            read.extend(bodies.concat());
            parts += 1;
            let Some(next) = next else { break };
            assert!(place < next, "{next} comes behind {place}");
            place = next;
        }
        assert!(read == pieces.concat(), "the parts are the whole");
        assert_eq!(parts, 4);
        let beyond = ManifestPosition { pieces: u32::MAX, bytes: u32::MAX };
        assert_eq!(manifest_part(&pieces, beyond), (Vec::new(), None));
    }
}
