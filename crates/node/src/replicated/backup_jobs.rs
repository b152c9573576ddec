//! Disk jobs for replicas of other servers' logs: begin, sync, read and free replicas, and
//! prepare files. A job may take long, so the reactor queues it and receives the result later.
//!
//! **Invariant:** if the start of a replica is reported as refused for lack of room, the next
//! process start finds nothing of it. The segment continues without this replica.

use crate::messages::Payload;
use ::backup::{AppendError, Blocks, ReplicaWriter, Replicas};
use protocols::replication::{BackupEvent, ScrubResult};
use std::io::ErrorKind;
use std::sync::Arc;
use types::{SegmentId, ServerId, UnixMillis};
use wire::control::ManifestPosition;
use wire::replica::{PIECE_HEADER_BYTES, ReplicaEpoch, ReplicaHeader, ReplicaId};

/// Number of files prepared for new replicas, because several masters may begin segments at once.
pub(super) const FILES_READY: usize = 4;

/// That number for a server without a cluster, whose writer and cleaner may begin segments.
pub(super) const OWN_FILES_READY: usize = 2;

/// A piece of a replica, on its way to the disk.
pub(super) struct StagedPiece {
    pub(super) header: [u8; PIECE_HEADER_BYTES],
    pub(super) payload: Payload,
}

/// Disk work that may take long.
pub struct BackupJob {
    pub(super) disk: Arc<Replicas>,
    pub(super) work: BackupWork,
}

/// Kinds of disk work.
pub(super) enum BackupWork {
    Begin {
        header: ReplicaHeader,
        first: Option<StagedPiece>,
    },
    /// Prepare files for segments of this size.
    Prepare {
        segment_bytes: u32,
        /// Number of files to have ready.
        stock: usize,
    },
    /// Append a piece to a replica, on a disk that is slow.
    Append {
        replica: Arc<ReplicaWriter>,
        piece: StagedPiece,
    },
    Sync(Vec<Arc<ReplicaWriter>>),
    Free(ReplicaId),
    /// Measure a replica of an earlier process.
    Measure {
        replica: ReplicaId,
        /// Set if the replica is to survive a loss of power from then on.
        is_synced: bool,
    },
    ReadManifest(ManifestRead),
    /// Check that the disk still has a replica's data.
    Scrub(ReplicaId),
    /// Make sure that a later start does not find a replica.
    GiveUp(ReplicaId),
}

/// A coordinator's request for a part of a log's manifest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ManifestRead {
    pub(super) log: ServerId,
    /// Replica of a manifest segment.
    pub(super) replica: (SegmentId, ReplicaEpoch),
    /// Position of the part's first byte.
    pub(super) first: ManifestPosition,
}

impl ManifestRead {
    pub(super) fn id(self) -> ReplicaId {
        ReplicaId { log: self.log, segment: self.replica.0, epoch: self.replica.1 }
    }
}

/// Result of a [`BackupJob`].
pub struct BackupDone(pub(super) Done);

/// Result of each kind of work.
pub(super) enum Done {
    Begun(ReplicaId, Result<Arc<ReplicaWriter>, NotBegun>),
    Appended(Arc<ReplicaWriter>, Result<(), AppendError>),
    Synced(Vec<(Arc<ReplicaWriter>, Result<u32, String>)>),
    Freed(ReplicaId),
    Prepared,
    Measured(ReplicaId, MeasureResult),
    /// All pieces of the manifest segment; none if it cannot be read.
    ManifestRead(ManifestRead, Vec<Vec<u8>>),
    Scrubbed(ReplicaId, ScrubResult),
    GivenUp,
}

/// Result of the measurement of a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MeasureResult {
    Intact {
        /// Bytes of the segment in the replica.
        length: u32,
        /// The latest expiry clock in its pieces.
        clock: UnixMillis,
    },
    /// The disk has other data than was written.
    Damaged,
    /// The disk has failed, which says nothing about the data.
    Unknown,
}

/// Failure to begin a replica.
#[derive(Debug)]
pub(super) struct NotBegun {
    why: String,
    /// Set if nothing of the replica is on the disk, so that the next start does not find it.
    is_nothing_left: bool,
}

impl std::fmt::Debug for BackupJob {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.work {
            BackupWork::Begin { header, .. } => write!(f, "begin {}", header.id),
            BackupWork::Prepare { .. } => f.write_str("prepare a file"),
            BackupWork::Append { replica, .. } => write!(f, "append to {}", replica.id()),
            BackupWork::Sync(replicas) => write!(f, "sync {} replicas", replicas.len()),
            BackupWork::Free(replica) => write!(f, "free {replica}"),
            BackupWork::Measure { replica, .. } => write!(f, "measure {replica}"),
            BackupWork::ReadManifest(read) => write!(f, "read the manifest {}", read.id()),
            BackupWork::Scrub(replica) => write!(f, "scrub {replica}"),
            BackupWork::GiveUp(replica) => write!(f, "discard {replica}"),
        }
    }
}

impl std::fmt::Debug for BackupDone {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.0 {
            Done::Begun(replica, _) => write!(f, "begun {replica}"),
            Done::Appended(replica, _) => write!(f, "appended to {}", replica.id()),
            Done::Synced(replicas) => write!(f, "synced {} replicas", replicas.len()),
            Done::Freed(replica) => write!(f, "freed {replica}"),
            Done::Prepared => f.write_str("prepared a file"),
            Done::Measured(replica, measured) => write!(f, "measured {replica}: {measured:?}"),
            Done::ManifestRead(read, _) => write!(f, "read the manifest {}", read.id()),
            Done::Scrubbed(replica, found) => write!(f, "scrubbed {replica}: {found:?}"),
            Done::GivenUp => f.write_str("discarded a replica"),
        }
    }
}

impl BackupJob {
    /// Returns whether the job only reads. Jobs that write need not wait for it.
    pub fn is_reading(&self) -> bool {
        match self.work {
            BackupWork::Measure { .. } | BackupWork::ReadManifest(_) | BackupWork::Scrub(_) => true,
            BackupWork::Begin { .. }
            | BackupWork::Append { .. }
            | BackupWork::Prepare { .. }
            | BackupWork::Sync(_)
            | BackupWork::Free(_)
            | BackupWork::GiveUp(_) => false,
        }
    }

    /// Returns whether no acknowledgment depends on the job.
    pub fn is_housekeeping(&self) -> bool {
        match self.work {
            BackupWork::Prepare { .. } | BackupWork::Free(_) => true,
            BackupWork::Begin { .. }
            | BackupWork::Append { .. }
            | BackupWork::Sync(_)
            | BackupWork::Measure { .. }
            | BackupWork::ReadManifest(_)
            | BackupWork::Scrub(_)
            | BackupWork::GiveUp(_) => false,
        }
    }

    /// Runs the job. This may take milliseconds, and seconds on a busy disk.
    pub fn carry_out(self) -> BackupDone {
        BackupDone(match self.work {
            BackupWork::Begin { header, first } => {
                Done::Begun(header.id, begin(&self.disk, header, first))
            }
            BackupWork::Prepare { segment_bytes, stock } => {
                let made = self.disk.prepare(segment_bytes, stock, Blocks::Promised);
                if let Err(error) = made {
                    tracing::warn!(%error, "cannot preallocate a replica file");
                }
                Done::Prepared
            }
            BackupWork::Append { replica, piece } => {
                let result = replica.append(&piece.header, piece.payload.bytes());
                Done::Appended(replica, result)
            }
            BackupWork::Sync(replicas) => {
                let synced = |replica: Arc<ReplicaWriter>| {
                    let result = replica.sync().map_err(|error| error.to_string());
                    (replica, result)
                };
                Done::Synced(replicas.into_iter().map(synced).collect())
            }
            BackupWork::Free(replica) => {
                free(&self.disk, replica);
                Done::Freed(replica)
            }
            BackupWork::Measure { replica, is_synced } => {
                Done::Measured(replica, measure(&self.disk, replica, is_synced))
            }
            BackupWork::Scrub(replica) => Done::Scrubbed(replica, scrub(&self.disk, replica)),
            BackupWork::GiveUp(replica) => {
                give_up(&self.disk, replica);
                Done::GivenUp
            }
            BackupWork::ReadManifest(read) => {
                let bodies = self.disk.bodies(read.id()).map(|(bodies, _)| bodies);
                let bodies = bodies.unwrap_or_else(|error| {
                    tracing::warn!(%error, "cannot read a segment manifest");
                    Vec::new()
                });
                Done::ManifestRead(read, bodies)
            }
        })
    }
}

/// Makes a replica with its first piece, or nothing.
fn begin(
    disk: &Replicas,
    header: ReplicaHeader,
    first: Option<StagedPiece>,
) -> Result<Arc<ReplicaWriter>, NotBegun> {
    let replica = match disk.create(header) {
        Ok(replica) => replica,
        // An earlier process has left an unreadable replica here. It must not be touched.
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

/// Removes the rest of a replica that could not be begun.
pub(super) fn not_begun(disk: &Replicas, replica: ReplicaId, why: &str) -> NotBegun {
    NotBegun { why: why.to_owned(), is_nothing_left: give_up(disk, replica) }
}

impl NotBegun {
    /// Returns the event for the backup's machine. If nothing is left, the segment continues
    /// without this backup. A remaining header would be found as an original that lacks later
    /// acknowledged bytes, so the segment must end.
    pub(super) fn event(&self, replica: ReplicaId) -> BackupEvent {
        let NotBegun { why, is_nothing_left } = self;
        tracing::warn!(%replica, why, is_nothing_left, "cannot create a replica");
        match is_nothing_left {
            true => BackupEvent::Full { replica },
            false => BackupEvent::Failed { replica },
        }
    }
}

/// Removes a replica. Returns whether nothing is left of it, even after a loss of power.
pub(super) fn give_up(disk: &Replicas, replica: ReplicaId) -> bool {
    let given_up = disk.give_up(replica);
    if let Err(error) = &given_up {
        tracing::warn!(%replica, %error, "cannot discard a replica, the next start may find it");
    }
    given_up.is_ok()
}

/// Reads a replica that an earlier process has written, and syncs it first if it `is_synced` from
/// then on.
fn measure(disk: &Replicas, replica: ReplicaId, is_synced: bool) -> MeasureResult {
    let synced = if is_synced { disk.sync(replica) } else { Ok(()) };
    match synced.and_then(|()| disk.measure(replica)) {
        Ok((may_be_short, end)) if !end.is_damaged(may_be_short) => {
            MeasureResult::Intact { length: end.length, clock: end.stamp.clock }
        }
        Ok((_, end)) => {
            tracing::warn!(
                %replica,
                "replica has invalid data at byte {} of its file, not using it",
                end.place
            );
            MeasureResult::Damaged
        }
        Err(error) => {
            tracing::warn!(%replica, %error, "cannot read a replica now, trying again later");
            MeasureResult::Unknown
        }
    }
}

/// Rereads a replica of a living master. This process wrote it, so all pieces must be intact.
fn scrub(disk: &Replicas, replica: ReplicaId) -> ScrubResult {
    match disk.scrub(replica) {
        Ok(Ok(end)) => ScrubResult::Intact(end.length),
        Ok(Err(error)) => {
            tracing::warn!(%replica, %error, "replica can no longer be read, replacing it");
            ScrubResult::Damaged
        }
        Err(error) => {
            tracing::warn!(%replica, %error, "cannot read a replica now, trying again later");
            ScrubResult::Unknown
        }
    }
}

/// Frees a replica that is not needed any more.
pub(crate) fn free(disk: &Replicas, replica: ReplicaId) {
    if let Err(error) = disk.free(replica) {
        tracing::warn!(%error, "cannot free an unused replica");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ::backup::{Faults, MemoryDisk, OpenedReplicas};
    use types::ClusterId;
    use wire::replica::{BootId, PieceWriter, ReplicaFormat, ReplicaKind, Stamp};

    const SEGMENT_BYTES: u32 = 1 << 16;
    /// File size at which the header can be written, and the first piece cannot.
    const NO_PIECE: usize = 4096;

    fn header() -> ReplicaHeader {
        let (log, segment, epoch) = (ServerId(3), SegmentId(9), ReplicaEpoch(0));
        let id = ReplicaId { log, segment, epoch };
        let (cluster, kind, boot) = (ClusterId(7), ReplicaKind::Data, BootId::default());
        let format = ReplicaFormat::CURRENT;
        ReplicaHeader { format, cluster, id, kind, segment_bytes: SEGMENT_BYTES, boot }
    }

    fn open(disk: &MemoryDisk) -> Replicas {
        let OpenedReplicas { replicas, .. } =
            Replicas::open(Arc::new(disk.clone()), BootId::default()).unwrap();
        replicas
    }

    fn first() -> StagedPiece {
        let buffer = vec![1; NO_PIECE];
        let header = PieceWriter::new(header().identity()).next(&buffer, 0, Stamp::default());
        StagedPiece { header, payload: Payload { buffer, start: 0 } }
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

    #[test]
    fn a_measured_replica_survives_a_loss_of_power() {
        for is_synced in [true, false] {
            let disk = MemoryDisk::new();
            let replica = begin(&open(&disk), header(), Some(first())).expect("a disk with room");
            drop(replica);
            disk.kill_process();
            let length =
                |disk: &MemoryDisk, is_synced| match measure(&open(disk), header().id, is_synced) {
                    MeasureResult::Intact { length, .. } => Some(length),
                    MeasureResult::Damaged | MeasureResult::Unknown => None,
                };
            assert_eq!(length(&disk, is_synced), Some(NO_PIECE as u32));
            // The power takes each write that is not synced.
            disk.power_cut(&mut |_| 0);
            let left = length(&disk, is_synced);
            assert_eq!(left == Some(NO_PIECE as u32), is_synced, "{left:?}");
        }
    }

    #[test]
    fn a_replica_that_cannot_be_synced_is_measured_later_without_the_bytes_that_were_lost() {
        let disk = MemoryDisk::new();
        let replica = begin(&open(&disk), header(), Some(first())).expect("a disk with room");
        replica.sync().expect("a disk without faults");
        let synced = replica.length();
        let mut pieces = PieceWriter::new(header().identity());
        let buffer = vec![1; 2 * NO_PIECE];
        pieces.next(&buffer[..NO_PIECE], 0, Stamp::default());
        let piece = pieces.next(&buffer[NO_PIECE..], synced, Stamp::default());
        replica.append(&piece, &buffer[NO_PIECE..]).expect("a disk with room");
        disk.kill_process();
        let replicas = open(&disk);
        let clock = UnixMillis(0);
        disk.set_faults(Faults { syncs_fail: true, ..Faults::default() });
        assert_eq!(measure(&replicas, header().id, true), MeasureResult::Unknown);
        disk.set_faults(Faults::default());
        let intact = MeasureResult::Intact { length: synced, clock };
        assert_eq!(measure(&replicas, header().id, true), intact);
    }
}
