//! A replica that is being written. `docs/design/backup.md` explains why pages are written whole
//! and why few files are open.
//!
//! A file with unsynced bytes stays open: the operating system reports a write-back failure only
//! to descriptors that were open at the time, and the failure must not be missed.
//!
//! **Invariant:** an open file that is being written is in the queue of [`OpenFiles`] exactly once.

use crate::disk::{Disk, DiskFile};
use crate::files::{ReplicaFile, lock};
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, TryLockError, Weak};
use wire::Corrupt;
use wire::replica::{
    HEADER_BYTES, PIECE_HEADER_BYTES, PIECES_FROM, PieceHeader, ReplicaId, ReplicaIdentity,
    piece_bytes,
};

/// Unit in which the system reads and writes, in bytes.
const PAGE_BYTES: u64 = 4096;
const ZEROS: [u8; PAGE_BYTES as usize] = [0; PAGE_BYTES as usize];

const _: () = assert!(PIECES_FROM == PAGE_BYTES && HEADER_BYTES < ZEROS.len());

/// The reason why a piece was not accepted; it determines the sender's reaction.
#[derive(Debug, thiserror::Error)]
pub enum AppendError {
    /// Not the next piece: send the bytes from `expected` on.
    #[error("a piece at {offset} was sent to {id}, which ends at {expected}")]
    Misplaced {
        /// Replica of the piece.
        id: ReplicaId,
        /// Current length of the replica.
        expected: u32,
        /// Offset of the piece.
        offset: u32,
    },
    /// Damaged, or not for this replica: send the piece again.
    #[error("a piece for {id} was corrupted on its way: {why}")]
    Corrupt {
        /// Replica of the piece.
        id: ReplicaId,
        /// Kind of damage.
        why: Corrupt,
    },
    /// The replica cannot be written any more: create another one.
    #[error("{id} cannot be written any more: it was freed, or a sync of it has failed")]
    Lost {
        /// Replica of the piece.
        id: ReplicaId,
    },
    /// The disk did not accept it: send it again later, or create another replica elsewhere.
    #[error(transparent)]
    Disk(#[from] io::Error),
}

/// A replica that is being written, possibly by several threads. Pieces are accepted in order.
pub struct ReplicaWriter {
    replica: Arc<ReplicaFile>,
    opener: FileOpener,
    identity: ReplicaIdentity,
    state: Mutex<WriterState>,
    /// Set if it was written since the last check by [`OpenFiles`].
    is_in_use: AtomicBool,
    /// Held during a sync of the file. The system reports a failure only once, to one of the
    /// concurrent callers; the success of the others would be wrong.
    syncing: Mutex<()>,
    /// Synced bytes of the segment, which survive a power failure.
    synced: AtomicU32,
}

/// Parts needed to reopen a replica's file after it was closed.
#[derive(Clone)]
pub(crate) struct FileOpener {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) open: Arc<OpenFiles>,
}

/// Write position of a replica.
struct WriterState {
    /// Open file; `None` if it was closed, see [`OpenFiles`].
    file: Option<Arc<dyn DiskFile>>,
    /// Accepted bytes of the segment.
    length: u32,
    /// Checksum of the accepted bytes.
    crc: u32,
    /// File offset of the next piece.
    place: u64,
    is_lost: bool,
}

impl ReplicaWriter {
    /// Begins a replica in a file. The first sync writes its header to the disk.
    pub(crate) fn begin(
        replica: Arc<ReplicaFile>,
        file: Box<dyn DiskFile>,
        opener: FileOpener,
    ) -> io::Result<Arc<ReplicaWriter>> {
        let header = replica.header.encode(replica.order);
        let mut block = [IoSlice::new(&header), IoSlice::new(&ZEROS[HEADER_BYTES..])];
        replica.note_written(PIECES_FROM);
        file.write(0, &mut block)?;
        let state = WriterState {
            file: Some(Arc::from(file)),
            length: 0,
            crc: wire::crc32c(&[]),
            place: PIECES_FROM,
            is_lost: false,
        };
        let writer = Arc::new(ReplicaWriter {
            identity: replica.header.identity(),
            replica,
            opener,
            state: Mutex::new(state),
            is_in_use: AtomicBool::new(false),
            syncing: Mutex::default(),
            synced: AtomicU32::new(0),
        });
        writer.opener.open.opened(&writer);
        Ok(writer)
    }

    /// Returns the id of the replica.
    pub fn id(&self) -> ReplicaId {
        self.replica.header.id
    }

    /// Returns the identity that its pieces carry.
    pub fn identity(&self) -> ReplicaIdentity {
        self.identity
    }

    /// Syncs the file, so that the header is on the disk.
    pub(crate) fn sync_header(self: &Arc<Self>) -> io::Result<()> {
        let file = self.file(&mut lock(&self.state))?;
        file.sync()
    }

    /// Returns the file, and opens it if it was closed.
    fn file(self: &Arc<Self>, state: &mut WriterState) -> io::Result<Arc<dyn DiskFile>> {
        if let Some(file) = &state.file {
            return Ok(Arc::clone(file));
        }
        let opened = Arc::from(self.opener.disk.open(self.replica.number)?);
        let file = Arc::clone(state.file.insert(opened));
        self.opener.open.opened(self);
        Ok(file)
    }

    /// Closes the file if it was not written since the last call and has no unsynced bytes.
    /// Returns whether it is closed.
    pub(crate) fn close_idle(&self, is_synced: bool) -> bool {
        // Another holder of the lock is writing the file.
        let mut state = match self.state.try_lock() {
            Ok(state) => state,
            Err(TryLockError::Poisoned(state)) => state.into_inner(),
            Err(TryLockError::WouldBlock) => return false,
        };
        let is_in_use = self.is_in_use.swap(false, Ordering::Relaxed);
        let is_durable = !is_synced || state.is_lost || self.synced() == state.length;
        if is_in_use || !is_durable {
            return false;
        }
        state.file = None;
        true
    }

    /// Appends the next piece: a header from `wire::replica::PieceWriter`, and its bytes. A piece
    /// that the replica already has is accepted without being written.
    pub fn append(
        self: &Arc<Self>,
        header: &[u8; PIECE_HEADER_BYTES],
        body: &[u8],
    ) -> Result<(), AppendError> {
        let id = self.id();
        let corrupt = |why| AppendError::Corrupt { id, why };
        let piece = PieceHeader::parse(header, self.identity).map_err(corrupt)?;
        let mut state = lock(&self.state);
        if state.is_lost || self.replica.is_freed() {
            return Err(AppendError::Lost { id });
        }
        if piece.end() <= state.length && piece.length as usize == body.len() {
            return Ok(());
        }
        if piece.offset != state.length {
            return Err(AppendError::Misplaced {
                id,
                expected: state.length,
                offset: piece.offset,
            });
        }
        if piece.end() > self.replica.header.segment_bytes {
            return Err(corrupt(Corrupt::Invalid { what: "end of piece" }));
        }
        if !piece.is_of(state.crc, body) {
            return Err(corrupt(Corrupt::Checksum { what: "piece" }));
        }
        let place = state.place;
        let end = place + piece_bytes(body.len()) as u64;
        let zeros =
            &ZEROS[..(zeros_until(place, end) - place) as usize - PIECE_HEADER_BYTES - body.len()];
        let mut parts = [IoSlice::new(header), IoSlice::new(body), IoSlice::new(zeros)];
        self.replica.note_written(end);
        let file = self.file(&mut state)?;
        file.write(place, &mut parts)?;
        self.is_in_use.store(true, Ordering::Relaxed);
        let file = Some(file);
        *state =
            WriterState { file, length: piece.end(), crc: piece.crc, place: end, is_lost: false };
        self.check(&state);
        Ok(())
    }

    /// Asserts the relations between the positions in the segment and in the file.
    fn check(&self, state: &WriterState) {
        let (id, synced) = (self.id(), self.synced());
        let segment_bytes = self.replica.header.segment_bytes;
        assert!(state.length <= segment_bytes, "{id} is longer than its segment");
        assert!(synced <= state.length, "{id} has {synced} synced bytes of {}", state.length);
        let place_min = PIECES_FROM + u64::from(state.length);
        assert!(state.place >= place_min, "pieces of {id} overlap at byte {}", state.place);
    }

    /// Returns the number of accepted bytes of the segment.
    pub fn length(&self) -> u32 {
        lock(&self.state).length
    }

    /// Returns the number of synced bytes of the segment, which survive a power failure.
    pub fn synced(&self) -> u32 {
        self.synced.load(Ordering::Acquire)
    }

    /// Syncs everything that was accepted before the call, and returns that length. Pieces may be
    /// appended meanwhile. If the sync fails, the replica is lost, because its content on the
    /// disk is unknown.
    pub fn sync(self: &Arc<Self>) -> io::Result<u32> {
        let _syncing = lock(&self.syncing);
        let (length, file) = {
            let mut state = lock(&self.state);
            if state.is_lost {
                return Err(io::Error::other(AppendError::Lost { id: self.id() }));
            }
            if state.length == self.synced() {
                return Ok(state.length);
            }
            self.check(&state);
            (state.length, self.file(&mut state)?)
        };
        if length > self.synced() {
            if let Err(error) = file.sync() {
                lock(&self.state).is_lost = true;
                self.replica.spoil();
                return Err(error);
            }
            self.synced.store(length, Ordering::Release);
        }
        Ok(length)
    }
}

/// Default limit of open files: most of the files that a server with many masters writes at a
/// time. [`crate::Replicas::limit_open_files`] changes it.
const OPEN_MAX: usize = 1024;

/// Queue of writers with open files, so that idle files can be closed.
pub(crate) struct OpenFiles {
    max: AtomicUsize,
    /// Set if replicas are synced: then a file may be closed only if all its bytes are synced.
    are_synced: AtomicBool,
    /// Writers with open files, the most recently opened at the end.
    queue: Mutex<VecDeque<Weak<ReplicaWriter>>>,
}

impl Default for OpenFiles {
    fn default() -> OpenFiles {
        OpenFiles {
            max: AtomicUsize::new(OPEN_MAX),
            are_synced: AtomicBool::new(true),
            queue: Mutex::default(),
        }
    }
}

impl OpenFiles {
    /// Sets the maximum number of open files. If `are_synced` is false, files may be closed with
    /// unsynced bytes.
    pub(crate) fn limit(&self, max: usize, are_synced: bool) {
        self.max.store(max, Ordering::Relaxed);
        self.are_synced.store(are_synced, Ordering::Relaxed);
    }

    /// Registers a writer with a newly opened file. Closes other files if too many are open.
    pub(crate) fn opened(&self, writer: &Arc<ReplicaWriter>) {
        let (max, are_synced) =
            (self.max.load(Ordering::Relaxed), self.are_synced.load(Ordering::Relaxed));
        let mut queue = lock(&self.queue);
        queue.push_back(Arc::downgrade(writer));
        let is_this = |queued: &&Weak<ReplicaWriter>| queued.as_ptr() == Arc::as_ptr(writer);
        debug_assert_eq!(queue.iter().filter(is_this).count(), 1, "{} is open twice", writer.id());
        // The check gives each file a second chance. So two rounds find a file that can be
        // closed, if there is one.
        for _ in 0..2 * queue.len() {
            if queue.len() <= max {
                break;
            }
            let Some(oldest) = queue.pop_front() else { break };
            let is_gone = match oldest.upgrade() {
                None => true,
                // The file that was just opened is about to be written.
                Some(oldest) => !Arc::ptr_eq(&oldest, writer) && oldest.close_idle(are_synced),
            };
            if !is_gone {
                queue.push_back(oldest);
            }
        }
    }

    /// Returns the number of open files.
    pub(crate) fn count(&self) -> usize {
        let mut queue = lock(&self.queue);
        queue.retain(|writer| writer.strong_count() > 0);
        queue.len()
    }
}

/// Returns the end of the write for a piece from `place` to `end`: the end of the page if the
/// piece begins that page.
fn zeros_until(place: u64, end: u64) -> u64 {
    // The byte before `place` has already touched its page.
    let is_touched = (end - 1) / PAGE_BYTES == (place - 1) / PAGE_BYTES;
    if is_touched { end } else { end.next_multiple_of(PAGE_BYTES) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MemoryDisk, Replicas};
    use types::{ClusterId, SegmentId, ServerId};
    use wire::replica::{BootId, ReplicaEpoch, ReplicaFormat, ReplicaHeader, ReplicaKind};

    fn writer() -> Arc<ReplicaWriter> {
        let opened = Replicas::open(Arc::new(MemoryDisk::new()), BootId([1; 16]));
        let id =
            ReplicaId { log: ServerId(1), segment: SegmentId(2), epoch: ReplicaEpoch::default() };
        let header = ReplicaHeader {
            format: ReplicaFormat::CURRENT,
            kind: ReplicaKind::Data,
            segment_bytes: 4096,
            cluster: ClusterId(7),
            id,
            boot: BootId([1; 16]),
        };
        opened.unwrap().replicas.create(header).unwrap()
    }

    #[test]
    #[should_panic(expected = "has 9 synced bytes of 8")]
    fn bytes_that_were_not_accepted_cannot_be_synced() {
        let writer = writer();
        let place = PIECES_FROM + piece_bytes(8) as u64;
        let state = WriterState { file: None, length: 8, crc: 0, place, is_lost: false };
        writer.check(&state);
        writer.synced.store(9, Ordering::Release);
        writer.check(&state);
    }
}
