//! What the disk has to do for the replicas of others: to begin, sync and free them, and to make files
//! ready. It may take long, so a reactor leaves it to others and is told what came of it.
//!
//! **Invariant:** of a replica whose beginning is said to have found no room nothing will be found at
//! the next start: its segment goes on without it.

use crate::engine::Payload;
use ::backup::{Blocks, Replica, Replicas};
use protocols::replication::{BackupEvent, Scrubbed};
use std::io::ErrorKind;
use std::sync::Arc;
use types::{SegmentId, ServerId, UnixMillis};
use wire::control::DirectoryPlace;
use wire::replica::{PIECE_HEADER_BYTES, ReplicaEpoch, ReplicaHeader, ReplicaId};

/// Files that are ready for replicas: several masters may go on to other segments at a time.
const FILES_READY: usize = 4;

/// A piece of a replica, on its way to the disk.
pub(super) struct Piece {
    pub(super) header: [u8; PIECE_HEADER_BYTES],
    pub(super) payload: Payload,
}

/// Work for the disk that may take long.
pub struct BackupJob {
    pub(super) disk: Arc<Replicas>,
    pub(super) work: Work,
}

/// What there is to do.
pub(super) enum Work {
    Begin {
        header: ReplicaHeader,
        first: Option<Piece>,
    },
    /// Make files ready for segments of this size.
    Prepare {
        segment_bytes: u32,
    },
    Sync(Vec<(ReplicaId, Arc<Replica>)>),
    Free(ReplicaId),
    /// Find out what a replica of an earlier process has.
    Measure(ReplicaId),
    ReadDirectory(DirectoryRead),
    /// Find out whether the disk still has a replica.
    Scrub(ReplicaId),
    /// Make sure that a replica is not found again.
    GiveUp(ReplicaId),
}

/// A part of a log's directory that the coordinator wants to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DirectoryRead {
    pub(super) log: ServerId,
    /// In which replica of a segment of the chain.
    pub(super) replica: (SegmentId, ReplicaEpoch),
    /// Where the part begins.
    pub(super) first: DirectoryPlace,
}

impl DirectoryRead {
    pub(super) fn id(self) -> ReplicaId {
        ReplicaId { log: self.log, segment: self.replica.0, epoch: self.replica.1 }
    }
}

/// What came of a [`BackupJob`].
pub struct BackupDone(pub(super) Done);

/// What came of each kind of work.
pub(super) enum Done {
    Begun(ReplicaId, Result<Arc<Replica>, NotBegun>),
    Synced(Vec<(ReplicaId, Result<u32, String>)>),
    Freed(ReplicaId),
    Prepared,
    /// Bytes of its segment, and the latest expiry clock in its pieces; `None`: what stands there
    /// is not what was written.
    Measured(ReplicaId, Option<(u32, UnixMillis)>),
    /// All pieces of the directory; none if it cannot be read.
    DirectoryRead(DirectoryRead, Vec<Vec<u8>>),
    Scrubbed(ReplicaId, Scrubbed),
    GivenUp,
}

/// Why a replica was not begun.
pub(super) struct NotBegun {
    why: String,
    /// Nothing of it is on the disk, so that it will not be found at the next start.
    is_nothing_left: bool,
}

impl std::fmt::Debug for BackupJob {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.work {
            Work::Begin { header, .. } => write!(f, "begin {}", header.id),
            Work::Prepare { .. } => f.write_str("prepare a file"),
            Work::Sync(replicas) => write!(f, "sync {} replicas", replicas.len()),
            Work::Free(replica) => write!(f, "free {replica}"),
            Work::Measure(replica) => write!(f, "measure {replica}"),
            Work::ReadDirectory(read) => write!(f, "read the directory {}", read.id()),
            Work::Scrub(replica) => write!(f, "scrub {replica}"),
            Work::GiveUp(replica) => write!(f, "give up {replica}"),
        }
    }
}

impl std::fmt::Debug for BackupDone {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.0 {
            Done::Begun(replica, _) => write!(f, "begun {replica}"),
            Done::Synced(replicas) => write!(f, "synced {} replicas", replicas.len()),
            Done::Freed(replica) => write!(f, "freed {replica}"),
            Done::Prepared => f.write_str("prepared a file"),
            Done::Measured(replica, Some((length, _))) => {
                write!(f, "measured {replica}: {length}")
            }
            Done::Measured(replica, None) => write!(f, "{replica} cannot be read"),
            Done::DirectoryRead(read, _) => write!(f, "read the directory {}", read.id()),
            Done::Scrubbed(replica, found) => write!(f, "scrubbed {replica}: {found:?}"),
            Done::GivenUp => f.write_str("gave up a replica"),
        }
    }
}

impl BackupJob {
    /// Returns whether it only reads, so that what is written need not wait for it.
    pub fn is_reading(&self) -> bool {
        match self.work {
            Work::Measure(_) | Work::ReadDirectory(_) | Work::Scrub(_) => true,
            Work::Begin { .. }
            | Work::Prepare { .. }
            | Work::Sync(_)
            | Work::Free(_)
            | Work::GiveUp(_) => false,
        }
    }

    /// Does it. May take milliseconds, and seconds on a busy disk.
    pub fn carry_out(self) -> BackupDone {
        BackupDone(match self.work {
            Work::Begin { header, first } => {
                Done::Begun(header.id, begin(&self.disk, header, first))
            }
            Work::Prepare { segment_bytes } => {
                let made = self.disk.prepare(segment_bytes, FILES_READY, Blocks::Promised);
                if let Err(error) = made {
                    tracing::warn!(%error, "no file can be made for replicas");
                }
                Done::Prepared
            }
            Work::Sync(replicas) => {
                let synced = |(id, replica): (ReplicaId, Arc<Replica>)| {
                    (id, replica.sync().map_err(|error| error.to_string()))
                };
                Done::Synced(replicas.into_iter().map(synced).collect())
            }
            Work::Free(replica) => {
                free(&self.disk, replica);
                Done::Freed(replica)
            }
            Work::Measure(replica) => Done::Measured(replica, measure(&self.disk, replica)),
            Work::Scrub(replica) => Done::Scrubbed(replica, scrub(&self.disk, replica)),
            Work::GiveUp(replica) => {
                give_up(&self.disk, replica);
                Done::GivenUp
            }
            Work::ReadDirectory(read) => {
                let bodies = self.disk.bodies(read.id()).map(|(bodies, _)| bodies);
                let bodies = bodies.unwrap_or_else(|error| {
                    tracing::warn!(%error, "a log directory cannot be read");
                    Vec::new()
                });
                Done::DirectoryRead(read, bodies)
            }
        })
    }
}

/// Makes a replica with its first piece, or nothing.
fn begin(
    disk: &Replicas,
    header: ReplicaHeader,
    first: Option<Piece>,
) -> Result<Arc<Replica>, NotBegun> {
    let replica = match disk.create(header) {
        Ok(replica) => replica,
        // What a process before has left there, and cannot be read, is not touched.
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            return Err(NotBegun { why: error.to_string(), is_nothing_left: false });
        }
        Err(error) => return Err(not_begun(disk, header.id, &error.to_string())),
    };
    if let Some(piece) = first
        && let Err(error) = replica.append(&piece.header, piece.payload.bytes())
    {
        return Err(not_begun(disk, header.id, &error.to_string()));
    }
    Ok(replica)
}

/// Takes back what there is of a replica whose beginning has failed.
pub(super) fn not_begun(disk: &Replicas, replica: ReplicaId, why: &str) -> NotBegun {
    NotBegun { why: why.to_owned(), is_nothing_left: give_up(disk, replica) }
}

impl NotBegun {
    /// If nothing is left the segment goes on without this backup. A header that is left would be
    /// found as an original that lacks what was acknowledged since, so the segment has to end.
    pub(super) fn event(&self, replica: ReplicaId) -> BackupEvent {
        let NotBegun { why, is_nothing_left } = self;
        tracing::warn!(%replica, why, is_nothing_left, "a replica cannot be begun");
        match is_nothing_left {
            true => BackupEvent::Full { replica },
            false => BackupEvent::Failed { replica },
        }
    }
}

/// Whether nothing is left of the replica, for good.
pub(super) fn give_up(disk: &Replicas, replica: ReplicaId) -> bool {
    let given_up = disk.give_up(replica);
    if let Err(error) = &given_up {
        tracing::warn!(%replica, %error, "what was given up may be found at the next start");
    }
    given_up.is_ok()
}

/// Reads a replica that an earlier process has written. Returns how long it is and up to
/// where its pieces say that the expiry clock was; `None`: what cannot be read is as good as not
/// there.
fn measure(disk: &Replicas, replica: ReplicaId) -> Option<(u32, UnixMillis)> {
    match disk.measure(replica) {
        Ok((boot, end)) if !end.is_damaged(boot != disk.boot()) => {
            return Some((end.length, end.stamp.clock));
        }
        Ok((_, end)) => tracing::warn!(
            %replica,
            "what stands at byte {} of its file is not what was written: it is not used",
            end.place
        ),
        Err(error) => tracing::warn!(%replica, %error, "it cannot be read"),
    }
    None
}

/// Reads a replica that is kept for a master which lives. It is whole up to where its pieces are,
/// since this process has written it.
fn scrub(disk: &Replicas, replica: ReplicaId) -> Scrubbed {
    match disk.scrub(replica) {
        Ok(Ok(end)) => Scrubbed::Whole(end.length),
        Ok(Err(error)) => {
            tracing::warn!(%replica, %error, "a replica cannot be read any more: it is replaced");
            Scrubbed::Damaged
        }
        Err(error) => {
            tracing::warn!(%replica, %error, "a replica cannot be read now: it is tried again");
            Scrubbed::Unknown
        }
    }
}

/// The replica is not needed any more.
fn free(disk: &Replicas, replica: ReplicaId) {
    if let Err(error) = disk.free(replica) {
        tracing::warn!(%error, "a replica that is not needed any more cannot be freed");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ::backup::{Faults, MemoryDisk, Opened};
    use types::ClusterId;
    use wire::replica::{BootId, PieceWriter, ReplicaFormat, ReplicaKind, Stamp};

    const SEGMENT_BYTES: u32 = 1 << 16;
    /// A header can be written, the first piece cannot.
    const NO_PIECE: usize = 4096;

    fn header() -> ReplicaHeader {
        let (log, segment, epoch) = (ServerId(3), SegmentId(9), ReplicaEpoch(0));
        let id = ReplicaId { log, segment, epoch };
        let (cluster, kind, boot) = (ClusterId(7), ReplicaKind::Data, BootId::default());
        let format = ReplicaFormat::CURRENT;
        ReplicaHeader { format, cluster, id, kind, segment_bytes: SEGMENT_BYTES, boot }
    }

    fn open(disk: &MemoryDisk) -> Replicas {
        let Opened { replicas, .. } =
            Replicas::open(Arc::new(disk.clone()), BootId::default()).unwrap();
        replicas
    }

    fn first() -> Piece {
        let buffer = vec![1; NO_PIECE];
        let header = PieceWriter::new(header().identity()).next(&buffer, 0, Stamp::default());
        Piece { header, payload: Payload { buffer, start: 0 } }
    }

    fn begun(disk: &MemoryDisk, faults: Faults) -> Option<BackupEvent> {
        let replicas = open(disk);
        replicas.prepare(SEGMENT_BYTES, FILES_READY, Blocks::Promised).unwrap();
        disk.set_faults(faults);
        let begun = begin(&replicas, header(), Some(first()));
        begun.err().map(|not_begun| not_begun.event(header().id))
    }

    #[test]
    fn a_segment_goes_on_without_a_backup_only_if_that_will_not_find_the_replica() {
        for removals_fail in [false, true] {
            for after in [0, 100, NO_PIECE] {
                let disk = MemoryDisk::new();
                let write_fails_after = Some(after);
                let faults = Faults { write_fails_after, removals_fail, ..Faults::default() };
                let event = begun(&disk, faults);
                let replica = header().id;
                let expected = match removals_fail {
                    false => BackupEvent::Full { replica },
                    true => BackupEvent::Failed { replica },
                };
                assert_eq!(event, Some(expected), "after {after} bytes");
                disk.kill_process();
                let is_found = !open(&disk).list(header().id.log).is_empty();
                assert_eq!(is_found, removals_fail && after > 0, "after {after} bytes");
            }
        }
    }

    #[test]
    fn what_another_process_has_left_is_not_removed_to_make_a_replica() {
        let disk = MemoryDisk::new();
        assert_eq!(begun(&disk, Faults::default()), None);
        disk.kill_process();
        let replica = header().id;
        assert_eq!(begun(&disk, Faults::default()), Some(BackupEvent::Failed { replica }));
        assert_eq!(open(&disk).list(replica.log), [header()]);
    }
}
