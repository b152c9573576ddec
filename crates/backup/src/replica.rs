//! A replica that is being written.
//!
//! The first write to a page of a file always covers the whole page: a piece that reaches into a
//! new page is padded with zeros up to the page's end. Otherwise the system would have to read
//! the page of a reused file before it could change a part of it, and the writer would wait for
//! the disk.

use crate::files::{Held, lock};
use crate::open::OpenFiles;
use crate::{Disk, DiskFile};
use std::io::{self, IoSlice};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, TryLockError};
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
#[derive(Debug)]
pub struct Replica {
    held: Arc<Held>,
    opener: Opener,
    identity: ReplicaIdentity,
    written: Mutex<Written>,
    /// Set if it was written since the last check by [`OpenFiles`].
    is_in_use: AtomicBool,
    /// Held during a sync of the file. The system reports a failure only once, to one of the
    /// concurrent callers; the success of the others would be wrong.
    syncing: Mutex<()>,
    /// Synced bytes of the segment, which survive a power failure.
    stable: AtomicU32,
}

/// Parts needed to reopen a replica's file after it was closed.
#[derive(Clone, Debug)]
pub(crate) struct Opener {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) open: Arc<OpenFiles>,
}

/// Write position of a replica.
#[derive(Debug)]
struct Written {
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

impl Replica {
    /// Begins a replica in a file. The first sync writes its header to the disk.
    pub(crate) fn begin(
        held: Arc<Held>,
        file: Box<dyn DiskFile>,
        opener: Opener,
    ) -> io::Result<Arc<Replica>> {
        let header = held.header.encode(held.order);
        let mut block = [IoSlice::new(&header), IoSlice::new(&ZEROS[HEADER_BYTES..])];
        held.note_written(PIECES_FROM);
        file.write(0, &mut block)?;
        let written = Written {
            file: Some(Arc::from(file)),
            length: 0,
            crc: wire::crc32c(&[]),
            place: PIECES_FROM,
            is_lost: false,
        };
        let replica = Arc::new(Replica {
            identity: held.header.identity(),
            held,
            opener,
            written: Mutex::new(written),
            is_in_use: AtomicBool::new(false),
            syncing: Mutex::default(),
            stable: AtomicU32::new(0),
        });
        replica.opener.open.opened(&replica);
        Ok(replica)
    }

    /// Returns the id of the replica.
    pub fn id(&self) -> ReplicaId {
        self.held.header.id
    }

    /// Returns the identity that its pieces carry.
    pub fn identity(&self) -> ReplicaIdentity {
        self.identity
    }

    /// Syncs the file, so that the header is on the disk.
    pub(crate) fn sync_header(self: &Arc<Self>) -> io::Result<()> {
        let file = self.file(&mut lock(&self.written))?;
        file.sync()
    }

    /// Returns the file, and opens it if it was closed.
    fn file(self: &Arc<Self>, written: &mut Written) -> io::Result<Arc<dyn DiskFile>> {
        if let Some(file) = &written.file {
            return Ok(Arc::clone(file));
        }
        let opened = Arc::from(self.opener.disk.open(self.held.number)?);
        let file = Arc::clone(written.file.insert(opened));
        self.opener.open.opened(self);
        Ok(file)
    }

    /// Closes the file if it was not written since the last call and has no unsynced bytes.
    /// Returns whether it is closed.
    pub(crate) fn close_idle(&self, is_synced: bool) -> bool {
        // Another holder of the lock is writing the file.
        let mut written = match self.written.try_lock() {
            Ok(written) => written,
            Err(TryLockError::Poisoned(written)) => written.into_inner(),
            Err(TryLockError::WouldBlock) => return false,
        };
        let is_in_use = self.is_in_use.swap(false, Ordering::Relaxed);
        let is_settled = !is_synced || written.is_lost || self.stable() == written.length;
        if is_in_use || !is_settled {
            return false;
        }
        written.file = None;
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
        let mut written = lock(&self.written);
        if written.is_lost || self.held.is_freed() {
            return Err(AppendError::Lost { id });
        }
        if piece.end() <= written.length && piece.length as usize == body.len() {
            return Ok(());
        }
        if piece.offset != written.length {
            return Err(AppendError::Misplaced {
                id,
                expected: written.length,
                offset: piece.offset,
            });
        }
        if piece.end() > self.held.header.segment_bytes {
            return Err(corrupt(Corrupt::Invalid { what: "end of piece" }));
        }
        if !piece.is_of(written.crc, body) {
            return Err(corrupt(Corrupt::Checksum { what: "piece" }));
        }
        let place = written.place;
        let end = place + piece_bytes(body.len()) as u64;
        let zeros =
            &ZEROS[..(zeros_until(place, end) - place) as usize - PIECE_HEADER_BYTES - body.len()];
        let mut parts = [IoSlice::new(header), IoSlice::new(body), IoSlice::new(zeros)];
        self.held.note_written(end);
        let file = self.file(&mut written)?;
        file.write(place, &mut parts)?;
        self.is_in_use.store(true, Ordering::Relaxed);
        let file = Some(file);
        *written =
            Written { file, length: piece.end(), crc: piece.crc, place: end, is_lost: false };
        Ok(())
    }

    /// Returns the number of accepted bytes of the segment.
    pub fn length(&self) -> u32 {
        lock(&self.written).length
    }

    /// Returns the number of synced bytes of the segment, which survive a power failure.
    pub fn stable(&self) -> u32 {
        self.stable.load(Ordering::Acquire)
    }

    /// Syncs everything that was accepted before the call, and returns that length. Pieces may be
    /// appended meanwhile. If the sync fails, the replica is lost, because its content on the
    /// disk is unknown.
    pub fn sync(self: &Arc<Self>) -> io::Result<u32> {
        let _syncing = lock(&self.syncing);
        let (length, file) = {
            let mut written = lock(&self.written);
            if written.is_lost {
                return Err(io::Error::other(AppendError::Lost { id: self.id() }));
            }
            if written.length == self.stable() {
                return Ok(written.length);
            }
            (written.length, self.file(&mut written)?)
        };
        if length > self.stable() {
            if let Err(error) = file.sync() {
                lock(&self.written).is_lost = true;
                self.held.spoil();
                return Err(error);
            }
            self.stable.store(length, Ordering::Release);
        }
        Ok(length)
    }
}

/// Returns the end of the write for a piece from `place` to `end`: the end of the page if the
/// piece begins that page.
fn zeros_until(place: u64, end: u64) -> u64 {
    // The byte before `place` has already touched its page.
    let is_touched = (end - 1) / PAGE_BYTES == (place - 1) / PAGE_BYTES;
    if is_touched { end } else { end.next_multiple_of(PAGE_BYTES) }
}
