//! A replica that is being written.
//!
//! Every page of a file is touched for the first time by a write that covers it whole: a piece that
//! reaches into a new page takes zeros with it up to the page's end. Otherwise the system would have
//! to read the page of a file that is used again before it could change a part of it, and the
//! writer would wait for the disk.

use crate::files::{Held, lock};
use crate::open::OpenFiles;
use crate::{Disk, DiskFile};
use std::io::{self, IoSlice};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, TryLockError};
use wire::Corrupt;
use wire::replica::{
    HEADER_BYTES, Identity, PIECE_HEADER_BYTES, PIECES_FROM, PieceHeader, ReplicaId, piece_bytes,
};

/// What the system reads and writes at once.
const PAGE_BYTES: u64 = 4096;
const ZEROS: [u8; PAGE_BYTES as usize] = [0; PAGE_BYTES as usize];

const _: () = assert!(PIECES_FROM == PAGE_BYTES && HEADER_BYTES < ZEROS.len());

/// Why a piece was not taken, which says what to do.
#[derive(Debug, thiserror::Error)]
pub enum AppendError {
    /// It is not what comes next: send what stands from `expected` on.
    #[error("a piece at {offset} was sent to {id}, which ends at {expected}")]
    Misplaced {
        /// Which replica.
        id: ReplicaId,
        /// Where the replica ends.
        expected: u32,
        /// Where the piece begins.
        offset: u32,
    },
    /// It is not what was sent, or not for this replica: send it again.
    #[error("a piece for {id} was changed on its way: {why}")]
    Corrupt {
        /// Which replica.
        id: ReplicaId,
        /// What is wrong.
        why: Corrupt,
    },
    /// The replica cannot be written any more: make another one.
    #[error("{id} is lost: it was freed, or a sync of it has failed")]
    Lost {
        /// Which replica.
        id: ReplicaId,
    },
    /// The disk did not take it: send it again later, or make another replica elsewhere.
    #[error(transparent)]
    Disk(#[from] io::Error),
}

/// A replica that is being written, by one thread or several: pieces are taken in order.
#[derive(Debug)]
pub struct Replica {
    held: Arc<Held>,
    opener: Opener,
    identity: Identity,
    written: Mutex<Written>,
    /// It was written since [`OpenFiles`] last looked.
    is_in_use: AtomicBool,
    /// Held while the file is being synced: the system tells a failure once, to one of those who
    /// sync at the time, and the others must not take their success for true.
    syncing: Mutex<()>,
    /// Bytes of the segment that survive a loss of power.
    stable: AtomicU32,
}

/// How a replica's file is opened again after it was closed.
#[derive(Clone, Debug)]
pub(crate) struct Opener {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) open: Arc<OpenFiles>,
}

/// Up to where it is written.
#[derive(Debug)]
struct Written {
    /// `None`: it was closed, see [`OpenFiles`].
    file: Option<Arc<dyn DiskFile>>,
    /// Bytes of the segment.
    length: u32,
    /// Their checksum.
    crc: u32,
    /// Where the next piece begins in the file.
    place: u64,
    is_lost: bool,
}

impl Replica {
    /// Begins a replica in a file. Its header is on the disk with the first sync.
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

    /// Which replica it is.
    pub fn id(&self) -> ReplicaId {
        self.held.header.id
    }

    /// What its pieces are bound to.
    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// The header is on the disk when this returns.
    pub(crate) fn sync_header(self: &Arc<Self>) -> io::Result<()> {
        let file = self.file(&mut lock(&self.written))?;
        file.sync()
    }

    /// The file, opened if it was closed.
    fn file(self: &Arc<Self>, written: &mut Written) -> io::Result<Arc<dyn DiskFile>> {
        if let Some(file) = &written.file {
            return Ok(Arc::clone(file));
        }
        let opened = Arc::from(self.opener.disk.open(self.held.number)?);
        let file = Arc::clone(written.file.insert(opened));
        self.opener.open.opened(self);
        Ok(file)
    }

    /// Closes the file if nothing was written to it since the last call and nothing of it is to be
    /// synced. Returns whether it is closed.
    pub(crate) fn close_idle(&self, is_synced: bool) -> bool {
        // Whoever holds the lock is writing to it.
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

    /// Takes the next piece: a header, as `wire::replica::PieceWriter` makes it, and its bytes.
    /// A piece that it has is taken again without being written.
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

    /// Bytes of the segment that it has.
    pub fn length(&self) -> u32 {
        lock(&self.written).length
    }

    /// Bytes of the segment that survive a loss of power.
    pub fn stable(&self) -> u32 {
        self.stable.load(Ordering::Acquire)
    }

    /// Makes everything that was taken before the call survive a loss of power, and returns up to
    /// where that is. Pieces are taken meanwhile. If it fails the replica is lost: nobody can know
    /// what of it is on the disk.
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

/// Up to where a piece from `place` to `end` is written: to its page's end if it begins that page.
fn zeros_until(place: u64, end: u64) -> u64 {
    // The byte before `place` has touched its page.
    let is_touched = (end - 1) / PAGE_BYTES == (place - 1) / PAGE_BYTES;
    if is_touched { end } else { end.next_multiple_of(PAGE_BYTES) }
}
