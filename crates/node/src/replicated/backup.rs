//! The backup role of this server: it takes, stores and frees replicas of other servers' logs.
//!
//! All reactors share the machine that decides, and lock it for a fraction of a microsecond per
//! message. Disk work runs outside the lock: the machine allows one piece per replica in
//! progress. An answer leaves on the connection of its request.

use super::backup_jobs::{
    BackupDone, BackupJob, DirectoryRead, Done, Piece, Work, give_up, not_begun,
};
use super::routes::Routes;
use super::{CHAIN, Mode, Replication, lock};
use crate::outgoing::{DiskJob, Sending, To};
use crate::{Engine, Payload, Route};
use ::backup::{AppendError, ReplicaWriter, Replicas};
use protocols::replication::{AppendHeader, Backup, BackupEffect, BackupEvent, ScrubResult};
use protocols::{Outbox, Ticket};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use types::{Instant, SegmentId, ServerId};
use wire::control::{
    DIRECTORY_BYTES_PER_MESSAGE, DirectoryPlace, REPLICAS_PER_MESSAGE, ReplicaInfo, ToCoordinator,
};
use wire::peer::{Append, PeerMessage};
use wire::replica::{ReplicaEpoch, ReplicaFormat, ReplicaHeader, ReplicaId};

/// Longest time that taken bytes stay unsynced in [`Mode::Interval`]. The second is Redis's.
const INTERVAL: Duration = Duration::from_secs(1);

/// Backup state shared by all reactors.
pub(super) struct BackupSide {
    machine: Backup,
    /// Replicas that take pieces.
    open: BTreeMap<ReplicaId, Arc<ReplicaWriter>>,
}

/// Backup state of one reactor, for the replicas with pieces that arrive here.
#[derive(Default)]
pub(crate) struct BackupPart {
    routes: Routes,
    /// Replicas with unsynced bytes, and the time of their next sync.
    unsynced: BTreeMap<ReplicaId, Arc<ReplicaWriter>>,
    sync_at: Option<Instant>,
    is_syncing: bool,
    next_ticket: u64,
    /// Pieces of the manifest that the coordinator is reading, until it has received all of them.
    directory: Option<(ReplicaId, Vec<Vec<u8>>)>,
}

/// The piece of the message being handled.
type Staged = Option<(Ticket, Piece)>;

impl BackupSide {
    /// Registers all replicas found on the disk. Only their headers have been read so far.
    pub(super) fn new(disk: &Replicas, scrub: Option<Duration>) -> BackupSide {
        let mut machine = Backup::scrubbing(scrub);
        for replica in disk.ids() {
            machine.handle(Instant(0), BackupEvent::Found { replica }, &mut Outbox::new());
        }
        BackupSide { machine, open: BTreeMap::new() }
    }

    pub(super) fn machine(&self) -> &Backup {
        &self.machine
    }
}

/// Returns as much of the pieces from `first` on as fits into a message, and the rest's position.
fn directory_part(
    pieces: &[Vec<u8>],
    first: DirectoryPlace,
) -> (Vec<Vec<u8>>, Option<DirectoryPlace>) {
    let mut place = first;
    let (mut bodies, mut room) = (Vec::new(), DIRECTORY_BYTES_PER_MESSAGE);
    for piece in pieces.iter().skip(first.pieces as usize) {
        let rest = piece.get(place.bytes as usize..).unwrap_or_default();
        if room == 0 {
            return (bodies, Some(place));
        }
        let taken = rest.len().min(room);
        bodies.push(rest[..taken].to_vec());
        room -= taken;
        if taken < rest.len() {
            return (bodies, Some(DirectoryPlace { bytes: place.bytes + taken as u32, ..place }));
        }
        place = DirectoryPlace { pieces: place.pieces + 1, bytes: 0 };
    }
    (bodies, None)
}

impl Engine {
    /// Handles a master's append.
    pub(crate) fn append_arrived(
        &mut self,
        now: Instant,
        (from, route): (ServerId, Route),
        append: Append,
        payload: Payload,
    ) {
        let Some(replication) = self.replication.clone() else { return };
        let bytes = payload.bytes().len() as u32;
        let Some(to) = append.from.checked_add(bytes) else { return };
        let header = AppendHeader {
            replica: append.replica,
            from: append.from,
            to,
            is_last: append.is_last,
            sent: append.sent,
            clock: append.clock,
        };
        // Only the log's master may append; other senders get no answer.
        if from != append.replica.log {
            return self.give_buffer(payload.buffer);
        }
        self.note_route(&replication, append.replica, route);
        self.backups.next_ticket += 1;
        let ticket = Ticket(self.backups.next_ticket);
        let piece = append.header.filter(|_| bytes > 0).map(|header| Piece { header, payload });
        let staged = piece.map(|piece| (ticket, piece));
        let payload = staged.as_ref().map(|(ticket, _)| *ticket);
        let replica_header = ReplicaHeader {
            format: ReplicaFormat::CURRENT,
            cluster: self.node.cluster(),
            id: append.replica,
            kind: append.kind,
            segment_bytes: append.segment_bytes,
            boot: replication.disk.boot(),
        };
        let event = BackupEvent::Append { from, header, payload };
        self.drive_backup(&replication, now, event, (Some(replica_header), staged));
    }

    fn note_route(&mut self, replication: &Replication, replica: ReplicaId, route: Route) {
        self.backups.routes.note(replica, route, || {
            let backup = replication.backup();
            move |replica| backup.machine.knows(replica)
        });
    }

    /// Handles a master's release of replicas.
    pub(crate) fn release_arrived(
        &mut self,
        now: Instant,
        log: ServerId,
        replicas: Vec<ReplicaId>,
    ) {
        self.on_backup(now, BackupEvent::Release { log, replicas });
    }

    /// Passes an event other than an append to the backup's machine.
    pub(crate) fn on_backup(&mut self, now: Instant, event: BackupEvent) {
        if let Some(replication) = self.replication.clone() {
            self.drive_backup(&replication, now, event, (None, None));
        }
    }

    fn drive_backup(
        &mut self,
        replication: &Replication,
        now: Instant,
        event: BackupEvent,
        (header, mut staged): (Option<ReplicaHeader>, Staged),
    ) {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            let mut effects = Outbox::new();
            replication.backup().machine.handle(now, event, &mut effects);
            for effect in effects.drain() {
                let piece = staged.take_if(|_| matches!(effect, BackupEffect::Take { .. }));
                let piece = piece.map(|(_, piece)| piece);
                events.extend(self.carry_out_backup(replication, now, effect, (header, piece)));
            }
        }
        if let Some((_, piece)) = staged {
            self.give_buffer(piece.payload.buffer);
        }
    }

    /// Applies an effect. Returns the event that results at once, if any.
    fn carry_out_backup(
        &mut self,
        replication: &Replication,
        now: Instant,
        effect: BackupEffect,
        (header, piece): (Option<ReplicaHeader>, Option<Piece>),
    ) -> Option<BackupEvent> {
        match effect {
            BackupEffect::Take { replica, is_new: true, .. } => match header {
                Some(header) => return self.begin_replica(replication, now, header, piece),
                None => return Some(BackupEvent::Full { replica }),
            },
            BackupEffect::Take { replica, is_new: false, .. } => {
                return Some(self.take_piece(replication, now, replica, piece));
            }
            BackupEffect::Sync { replica } => {
                if let Some(open) = replication.backup().open.get(&replica).cloned() {
                    self.sync_soon(replication, now, open, Duration::ZERO);
                }
            }
            BackupEffect::Measure { replica } => {
                self.leave_job(replication, Work::Measure(replica));
            }
            BackupEffect::Scrub { replica } => {
                self.leave_job(replication, Work::Scrub(replica));
            }
            BackupEffect::GiveUp { replica } => {
                replication.disk_counts.note_damaged();
                replication.backup().open.remove(&replica);
                self.leave_job(replication, Work::GiveUp(replica));
            }
            BackupEffect::Complain(answer) => {
                self.out.send(answer.replica.log, PeerMessage::Appended(answer));
            }
            BackupEffect::Free { replica } => {
                replication.backup().open.remove(&replica);
                self.leave_job(replication, Work::Free(replica));
            }
            BackupEffect::Answer(answer) => {
                if let Some(route) = self.backups.routes.get(answer.replica) {
                    let message = PeerMessage::Appended(answer);
                    let to = To::Back(route);
                    let payload = Vec::new();
                    self.out.peers.push(Sending { to, is_priority: false, message, payload });
                }
            }
            BackupEffect::Released { log, replicas } => {
                for replica in &replicas {
                    self.backups.routes.remove(*replica);
                }
                self.out.send(log, PeerMessage::Released { replicas });
            }
            BackupEffect::Ask { log, replicas } => self.ask_about(log, replicas),
            BackupEffect::Report { log } => self.report_kept(replication, log),
            BackupEffect::LogFreed { log } => {
                self.out.control.push(ToCoordinator::LogFreed { log });
            }
        }
        None
    }

    /// Begins a replica: at once if a prepared file is available, else as a job.
    fn begin_replica(
        &mut self,
        replication: &Replication,
        now: Instant,
        header: ReplicaHeader,
        first: Option<Piece>,
    ) -> Option<BackupEvent> {
        // The manifest registers a segment once its replicas have begun. If the manifest must
        // survive a loss of power, so must the replicas: a job begins them and waits for the
        // disk.
        let begun = match replication.plan.mode {
            Mode::Memory => replication.disk.create_at_once(header),
            Mode::Interval | Mode::Disk => Ok(None),
        };
        let segment_bytes = header.segment_bytes;
        let Ok(Some(replica)) = begun else {
            self.leave_job(replication, Work::Begin { header, first });
            self.leave_job(replication, Work::Prepare { segment_bytes });
            return None;
        };
        self.leave_job(replication, Work::Prepare { segment_bytes });
        if let Some(piece) = first {
            let taken = replica.append(&piece.header, piece.payload.bytes());
            self.give_buffer(piece.payload.buffer);
            if let Err(error) = taken {
                let not_begun = not_begun(&replication.disk, header.id, &error.to_string());
                return Some(not_begun.event(header.id));
            }
        }
        replication.backup().open.insert(header.id, replica.clone());
        Some(self.taken(replication, now, replica))
    }

    fn leave_job(&mut self, replication: &Replication, work: Work) {
        let disk = replication.disk.clone();
        self.out.disk.push(DiskJob::Backup(BackupJob { disk, work }));
    }

    fn take_piece(
        &mut self,
        replication: &Replication,
        now: Instant,
        id: ReplicaId,
        piece: Option<Piece>,
    ) -> BackupEvent {
        let open = replication.backup().open.get(&id).cloned();
        let (Some(replica), Some(piece)) = (open, piece) else {
            return self.spoil(replication, id, "this process did not create the replica");
        };
        let taken: Result<(), AppendError> = replica.append(&piece.header, piece.payload.bytes());
        self.give_buffer(piece.payload.buffer);
        match taken {
            Ok(()) => self.taken(replication, now, replica),
            Err(error) => {
                let length = replica.length();
                self.stop(replication, &replica, length, &error.to_string())
            }
        }
    }

    /// Stops a replica that can take no more bytes. Its acknowledged bytes stay on the disk: a
    /// recovery may need them until the segment is sealed in the manifest.
    fn stop(
        &mut self,
        replication: &Replication,
        open: &ReplicaWriter,
        length: u32,
        why: &str,
    ) -> BackupEvent {
        let replica = open.id();
        tracing::warn!(%replica, why, "replica accepts no more data");
        replication.disk_counts.note_error();
        replication.backup().open.remove(&replica);
        self.backups.unsynced.remove(&replica);
        BackupEvent::Stopped { replica, length, stable: open.stable() }
    }

    /// Records that a replica has taken a piece, or has begun.
    fn taken(
        &mut self,
        replication: &Replication,
        now: Instant,
        open: Arc<ReplicaWriter>,
    ) -> BackupEvent {
        let (replica, length) = (open.id(), open.length());
        let stable = match replication.plan.mode {
            Mode::Memory => length,
            Mode::Interval | Mode::Disk => open.stable(),
        };
        if stable < length {
            let pause = match replication.plan.mode {
                Mode::Interval => INTERVAL,
                Mode::Memory | Mode::Disk => Duration::ZERO,
            };
            self.sync_soon(replication, now, open, pause);
        }
        BackupEvent::Taken { replica, length, stable }
    }

    /// Discards a replica with unknown content, so that the next start does not find it.
    fn spoil(&mut self, replication: &Replication, replica: ReplicaId, why: &str) -> BackupEvent {
        tracing::warn!(%replica, why, "replica discarded");
        replication.disk_counts.note_error();
        replication.backup().open.remove(&replica);
        self.backups.unsynced.remove(&replica);
        give_up(&replication.disk, replica);
        BackupEvent::Failed { replica }
    }

    /// Handles a failed sync: the bytes it covered may be lost. Bytes synced earlier are intact,
    /// which is enough if only those were acknowledged.
    fn not_synced(
        &mut self,
        replication: &Replication,
        replica: ReplicaId,
        why: &str,
    ) -> Option<BackupEvent> {
        let open = replication.backup().open.get(&replica).cloned();
        match replication.plan.mode {
            // `None` if an event on another reactor has closed the replica before.
            Mode::Disk => open.map(|open| self.stop(replication, &open, open.stable(), why)),
            Mode::Memory | Mode::Interval => Some(self.spoil(replication, replica, why)),
        }
    }

    fn sync_soon(
        &mut self,
        replication: &Replication,
        now: Instant,
        open: Arc<ReplicaWriter>,
        pause: Duration,
    ) {
        self.backups.unsynced.insert(open.id(), open);
        let at = now + pause;
        let planned = self.backups.sync_at.get_or_insert(at);
        *planned = at.min(*planned);
        self.sync_backups(replication, now);
    }

    fn sync_backups(&mut self, replication: &Replication, now: Instant) {
        let is_due = self.backups.sync_at.is_some_and(|at| at <= now);
        if is_due && !self.backups.is_syncing {
            self.backups.sync_at = None;
            self.backups.is_syncing = true;
            let unsynced = std::mem::take(&mut self.backups.unsynced);
            self.leave_job(replication, Work::Sync(unsynced.into_iter().collect()));
        }
    }

    /// Handles the result of a disk job.
    pub(crate) fn on_backup_done(&mut self, now: Instant, done: BackupDone) {
        let Some(replication) = self.replication.clone() else { return };
        let replication = &replication;
        let events = match done.0 {
            Done::Begun(_, Ok(open)) => {
                replication.backup().open.insert(open.id(), open.clone());
                vec![self.taken(replication, now, open)]
            }
            Done::Begun(replica, Err(not_begun)) => {
                replication.disk_counts.note_error();
                vec![not_begun.event(replica)]
            }
            Done::Freed(replica) => vec![BackupEvent::Freed { replica }],
            Done::Measured(replica, Some((length, clock))) => {
                vec![BackupEvent::Measured { replica, length, stable: length, clock }]
            }
            Done::Measured(replica, None) => {
                replication.disk_counts.note_damaged();
                vec![BackupEvent::Unreadable { replica }]
            }
            Done::Scrubbed(replica, found) => {
                match found {
                    ScrubResult::Whole(length) => replication.disk_counts.note_scrubbed(length),
                    // The machine reports the fault: the replica may only have become shorter.
                    ScrubResult::Damaged | ScrubResult::Unknown => {}
                }
                vec![BackupEvent::Scrubbed { replica, found }]
            }
            Done::DirectoryRead(read, bodies) => {
                self.directory_read(read, bodies);
                Vec::new()
            }
            Done::Prepared | Done::GivenUp => Vec::new(),
            Done::Synced(synced) => {
                self.backups.is_syncing = false;
                let event = |(replica, result): (ReplicaId, Result<u32, String>)| match result {
                    Ok(stable) => Some(BackupEvent::Synced { replica, stable }),
                    Err(why) => self.not_synced(replication, replica, &why),
                };
                synced.into_iter().filter_map(event).collect()
            }
        };
        for event in events {
            self.drive_backup(replication, now, event, (None, None));
        }
        self.sync_backups(replication, now);
    }

    /// Asks the master, or the coordinator if that is dead, whether silent replicas are needed.
    fn ask_about(&mut self, log: ServerId, replicas: Vec<ReplicaId>) {
        let map = self.node.map();
        let is_alive = map.servers.iter().any(|server| server.id == log && !server.is_dead);
        match is_alive {
            true => self.out.send(log, PeerMessage::Needed { replicas }),
            false => self.out.control.push(ToCoordinator::IsNeeded { log }),
        }
    }

    /// Reports the replicas of a fenced log to the coordinator.
    fn report_kept(&mut self, replication: &Replication, log: ServerId) {
        let of_earlier_boots = replication.written_before_this_boot(log);
        let info = |(id, length, _): (ReplicaId, u32, u32)| ReplicaInfo {
            segment: id.segment,
            epoch: id.epoch,
            is_directory: id.segment.0 >= CHAIN,
            length,
            may_be_short: of_earlier_boots.contains(&id),
        };
        let backup = lock(&replication.backup);
        let clock = backup.machine.clock(log);
        let kept: Vec<ReplicaInfo> = backup.machine.kept(log).map(info).collect();
        drop(backup);
        let mut messages = kept.chunks(REPLICAS_PER_MESSAGE).peekable();
        if messages.peek().is_none() {
            let (first, replicas) = (0, Vec::new());
            let nothing = ToCoordinator::Fenced { log, first, replicas, clock, more: false };
            return self.out.control.push(nothing);
        }
        let mut first = 0;
        while let Some(replicas) = messages.next() {
            let (replicas, more) = (replicas.to_vec(), messages.peek().is_some());
            let count = replicas.len() as u32;
            self.out.control.push(ToCoordinator::Fenced { log, first, replicas, clock, more });
            first += count;
        }
    }

    /// Reads a replica of a log's manifest, and sends it to the coordinator from `first` on.
    pub(crate) fn read_directory(
        &mut self,
        log: ServerId,
        replica: (SegmentId, ReplicaEpoch),
        first: DirectoryPlace,
    ) {
        let read = DirectoryRead { log, replica, first };
        match self.replication.clone() {
            // The log is fenced, so the pieces read a moment ago have not changed.
            Some(_) if self.backups.directory.as_ref().is_some_and(|it| it.0 == read.id()) => {
                self.report_directory(read);
            }
            Some(replication) => self.leave_job(&replication, Work::ReadDirectory(read)),
            None => self.directory_read(read, Vec::new()),
        }
    }

    fn directory_read(&mut self, read: DirectoryRead, bodies: Vec<Vec<u8>>) {
        self.backups.directory = Some((read.id(), bodies));
        self.report_directory(read);
    }

    /// Sends as much of the manifest as fits into a message. The coordinator asks for the rest.
    fn report_directory(&mut self, read: DirectoryRead) {
        let Some((_, all)) = self.backups.directory.take() else { return };
        let DirectoryRead { log, replica, first } = read;
        let (bodies, next) = directory_part(&all, first);
        if next.is_some() {
            self.backups.directory = Some((read.id(), all));
        }
        self.out.control.push(ToCoordinator::DirectoryRead { log, replica, first, bodies, next });
    }

    /// Runs the parts of the backup that are due.
    pub(super) fn tick_backup(&mut self, replication: &Replication, now: Instant) {
        self.sync_backups(replication, now);
        let is_due = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        if self.reactor == super::CHAIN_REACTOR
            && is_due(replication.backup().machine.next_deadline())
        {
            self.drive_backup(replication, now, BackupEvent::Tick, (None, None));
        }
    }

    pub(super) fn backup_deadline(&self, replication: &Replication) -> Option<Instant> {
        let is_first = self.reactor == super::CHAIN_REACTOR;
        let machine = is_first.then(|| replication.backup().machine.next_deadline()).flatten();
        let sync = self.backups.sync_at.filter(|_| !self.backups.is_syncing);
        [machine, sync].into_iter().flatten().min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_comes_in_parts_however_long_its_pieces_are() {
        let lengths = [3, 0, DIRECTORY_BYTES_PER_MESSAGE * 2 + 7, 5, DIRECTORY_BYTES_PER_MESSAGE];
        let pieces: Vec<Vec<u8>> =
            lengths.into_iter().zip(1..).map(|(length, byte)| vec![byte; length]).collect();
        let (mut place, mut read, mut parts) = (DirectoryPlace::default(), Vec::new(), 0);
        loop {
            let (bodies, next) = directory_part(&pieces, place);
            let bytes: usize = bodies.iter().map(Vec::len).sum();
            assert!(0 < bytes && bytes <= DIRECTORY_BYTES_PER_MESSAGE);
            read.extend(bodies.concat());
            parts += 1;
            let Some(next) = next else { break };
            assert!(place < next, "{next} comes behind {place}");
            place = next;
        }
        assert!(read == pieces.concat(), "the parts are the whole");
        assert_eq!(parts, 4);
        let beyond = DirectoryPlace { pieces: u32::MAX, bytes: u32::MAX };
        assert_eq!(directory_part(&pieces, beyond), (Vec::new(), None));
    }
}
