//! Which replicas a disk holds.

use crate::entries::Kept;
use crate::files::{Files, FreeFile, Held, lock};
use crate::open::OpenFiles;
use crate::replica::Opener;
use crate::{Disk, DiskFile, FileNumber, Replica};
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, IoSlice};
use std::sync::{Arc, Mutex};
use types::{ClusterId, SegmentId, ServerId};
use wire::Corrupt;
use wire::replica::{
    BootId, HEADER_BYTES, PIECE_HEADER_BYTES, PIECES_FROM, PieceReader, ReadEnd, ReplicaFormat,
    ReplicaHeader, ReplicaId, ReplicaKind, ReplicaOrder,
};

/// Read at once, or cleared: what stays in the cache until it has been checked and copied.
const READ_BYTES: usize = 256 << 10;

/// Headers that are read at the same time when a disk is opened.
const HEADERS_AT_ONCE: usize = 16;

/// All replicas on one disk. Shared by everybody who writes, reads or frees some.
#[derive(Debug)]
pub struct Replicas {
    disk: Arc<dyn Disk>,
    boot: BootId,
    files: Arc<Files>,
    held: Mutex<BTreeMap<ReplicaId, Arc<Held>>>,
    /// Those that are written.
    open: Arc<OpenFiles>,
    /// What recoveries have read.
    kept: Kept,
}

/// What opening a disk has found.
#[derive(Debug)]
pub struct Opened {
    /// All replicas on it.
    pub replicas: Replicas,
    /// Files that have a replica, or had one, but cannot be read. They are not touched, and found
    /// again each time, until somebody removes them.
    pub unreadable: Vec<Unreadable>,
}

/// What a file has that is made ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blocks {
    /// Room, if the disk can promise it.
    Promised,
    /// Blocks that are on the disk, so that a sync of a replica in it never has to wait for the file
    /// system's journal. It is worth its writing for a log whose every write is synced.
    Written,
}

/// A file whose header cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unreadable {
    /// Which file.
    pub number: FileNumber,
    /// What is wrong.
    pub why: Corrupt,
}

impl Replicas {
    /// Looks at every file of the disk, and changes none. `boot` is the boot id of the machine now.
    /// Files that hold nothing any more are removed when the first replica is freed.
    pub fn open(disk: Arc<dyn Disk>, boot: BootId) -> io::Result<Opened> {
        let files = Arc::new(Files::default());
        let mut held = BTreeMap::new();
        let mut unreadable = Vec::new();
        let numbers = disk.list()?;
        for (number, contents) in numbers.iter().copied().zip(read_headers(&*disk, &numbers)) {
            files.note_taken(number);
            match contents? {
                Contents::Replica(header, order) => {
                    take_later(&mut held, files.find(number, header, order))?;
                }
                // Its maker did not live to begin a replica.
                Contents::Nothing => files.give(FreeFile::to_be_removed(number)),
                Contents::Unreadable(why) => unreadable.push(Unreadable { number, why }),
            }
        }
        let (held, open, kept) = (Mutex::new(held), Arc::default(), Kept::default());
        let replicas = Replicas { disk, boot, files, held, open, kept };
        Ok(Opened { replicas, unreadable })
    }

    /// Keeps at most so many files open that replicas are written to, as far as that can be:
    /// replicas that are synced are closed only when all that they have taken is stable.
    pub fn limit_open_files(&self, max: usize, are_synced: bool) {
        self.open.limit(max, are_synced);
    }

    /// Files that are open because replicas are written to them.
    pub fn open_files(&self) -> usize {
        self.open.count()
    }

    /// The boot id of the machine.
    pub fn boot(&self) -> BootId {
        self.boot
    }

    /// All replicas of a log, in order of segment and epoch.
    pub fn list(&self, log: ServerId) -> Vec<ReplicaHeader> {
        let held = lock(&self.held);
        held.values().map(|held| held.header).filter(|header| header.id.log == log).collect()
    }

    /// Logs that have replicas here, in order.
    pub fn logs(&self) -> Vec<ServerId> {
        let held = lock(&self.held);
        let mut logs: Vec<ServerId> = held.keys().map(|id| id.log).collect();
        logs.dedup();
        logs
    }

    /// Logs that have replicas here, in order, and the last segment of each one's directory among
    /// these.
    pub fn chains(&self) -> Vec<(ServerId, Option<SegmentId>)> {
        let held = lock(&self.held);
        let mut chains: BTreeMap<ServerId, Option<SegmentId>> = BTreeMap::new();
        for header in held.values().map(|held| held.header) {
            let last = chains.entry(header.id.log).or_default();
            if header.kind == ReplicaKind::Directory {
                *last = (*last).max(Some(header.id.segment));
            }
        }
        chains.into_iter().collect()
    }

    /// Clusters of whose logs there are replicas here, in order.
    pub fn clusters(&self) -> BTreeSet<ClusterId> {
        lock(&self.held).values().map(|held| held.header.cluster).collect()
    }

    /// Makes a replica. When this returns, it will be found again also after a loss of power.
    /// Waits for the disk, some milliseconds: do it ahead. The header's boot and format are set here.
    pub fn create(&self, header: ReplicaHeader) -> io::Result<Arc<Replica>> {
        let header = self.header_now(header);
        let (held, is_new) = self.claim(header)?;
        let file = if is_new {
            self.disk.create(held.number, file_bytes(header.segment_bytes))
        } else {
            self.disk.open(held.number)
        };
        let begun = file.and_then(|file| self.begin(&held, file));
        let begun = begun.and_then(|begun| begun.sync_header().map(|()| begun));
        self.begun(held, begun)
    }

    /// Makes a replica in a file that is ready ([`Replicas::prepare`]), without waiting for the disk;
    /// `None`: there is none. A loss of power before the first sync takes it back.
    pub fn create_at_once(&self, header: ReplicaHeader) -> io::Result<Option<Arc<Replica>>> {
        if !self.files.has_free(header.segment_bytes, 1) {
            return Ok(None);
        }
        let header = self.header_now(header);
        let (held, is_new) = self.claim(header)?;
        if is_new {
            // Somebody else was faster.
            held.free();
            held.spoil();
            lock(&self.held).remove(&header.id);
            return Ok(None);
        }
        let file = self.disk.open(held.number);
        let begun = file.and_then(|file| self.begin(&held, file));
        self.begun(held, begun).map(Some)
    }

    /// The header of a replica that is made now.
    fn header_now(&self, header: ReplicaHeader) -> ReplicaHeader {
        ReplicaHeader { format: ReplicaFormat::CURRENT, boot: self.boot, ..header }
    }

    fn begin(&self, held: &Arc<Held>, file: Box<dyn DiskFile>) -> io::Result<Arc<Replica>> {
        let opener = Opener { disk: Arc::clone(&self.disk), open: Arc::clone(&self.open) };
        Replica::begin(Arc::clone(held), file, opener)
    }

    fn begun(&self, held: Arc<Held>, begun: io::Result<Arc<Replica>>) -> io::Result<Arc<Replica>> {
        let header = held.header;
        if begun.is_err() {
            held.spoil();
            held.free();
            lock(&self.held).remove(&header.id);
            drop(held);
            // Else a header that was written would be found again. What is told is the first error.
            let _ = self.files.trim(&*self.disk);
        }
        begun
    }

    /// Makes a file for a segment of this size ready, if fewer than `stock` are: the next replica need
    /// not wait for that.
    pub fn prepare(&self, segment_bytes: u32, stock: usize, blocks: Blocks) -> io::Result<()> {
        if self.files.has_free(segment_bytes, stock) {
            return Ok(());
        }
        let number = self.files.fresh_number();
        let bytes = file_bytes(segment_bytes);
        let made = self.disk.create(number, bytes).and_then(|file| match blocks {
            Blocks::Promised => Ok(()),
            Blocks::Written => write_zeros(&*file, bytes),
        });
        self.files.give(FreeFile { segment_bytes, number, is_good: made.is_ok() });
        if made.is_err() {
            self.files.trim(&*self.disk)?;
        }
        made
    }

    /// Chooses a file for a replica, and tells whether it has yet to be made.
    fn claim(&self, header: ReplicaHeader) -> io::Result<(Arc<Held>, bool)> {
        let mut held = lock(&self.held);
        if held.contains_key(&header.id) {
            let text = format!("there is a replica of {} already", header.id);
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, text));
        }
        let free = self.files.take(header.segment_bytes);
        let number = free.unwrap_or_else(|| self.files.fresh_number());
        let claimed = self.files.hold(number, header);
        held.insert(header.id, Arc::clone(&claimed));
        Ok((claimed, free.is_none()))
    }

    /// The replica is not needed any more: its file may hold another one. Freeing what is not there
    /// does nothing.
    pub fn free(&self, id: ReplicaId) -> io::Result<()> {
        if let Some(held) = lock(&self.held).remove(&id) {
            held.free();
        }
        self.kept.forget(id);
        self.files.trim(&*self.disk)
    }

    /// The replica must not be found again: its file is removed, whoever still uses it. Of one that is
    /// not there, since making it has failed, nothing is left either. After an error some of it may
    /// be found by the next process; it is tried again whenever something is freed.
    pub fn give_up(&self, id: ReplicaId) -> io::Result<()> {
        let held = lock(&self.held).remove(&id);
        self.kept.forget(id);
        if let Some(held) = held {
            held.spoil();
            held.free();
            self.disk.remove(held.number)?;
        }
        self.files.trim(&*self.disk)
    }

    /// Reads a replica from its beginning: hands out the bytes of its segment in order, as far as
    /// they are whole, and says why they end.
    pub fn read(&self, id: ReplicaId, each: impl FnMut(&[u8])) -> io::Result<ReadEnd> {
        let held = self.find(id)?;
        read_file(&held, &*self.disk.open(held.number)?, each)
    }

    /// Reads a replica from the disk, whatever the system has in memory of it. The outer error says
    /// that its file could not be opened, the inner one that it could not be read.
    pub fn scrub(&self, id: ReplicaId) -> io::Result<io::Result<ReadEnd>> {
        let held = self.find(id)?;
        let file = self.disk.open(held.number)?;
        file.forget_cached();
        let end = read_file(&held, &*file, |_| {});
        // Nobody else is going to read it soon.
        file.forget_cached();
        Ok(end)
    }

    /// The bytes of each whole piece of a replica, for those who write one thing in each.
    pub fn bodies(&self, id: ReplicaId) -> io::Result<(Vec<Vec<u8>>, ReadEnd)> {
        let mut bodies = Vec::new();
        let end = self.read(id, |body| bodies.push(body.to_vec()))?;
        Ok((bodies, end))
    }

    /// The names of all replicas, in order of log, segment and epoch.
    pub fn ids(&self) -> Vec<ReplicaId> {
        lock(&self.held).keys().copied().collect()
    }

    /// Reads a replica to find out up to where it is whole: at a start that is not known. Tells in
    /// which boot of the machine it was made.
    pub fn measure(&self, id: ReplicaId) -> io::Result<(BootId, ReadEnd)> {
        let boot = self.find(id)?.header.boot;
        Ok((boot, self.read(id, |_| {})?))
    }

    /// Tells that a replica is going to be read soon.
    pub fn read_ahead(&self, id: ReplicaId) -> io::Result<()> {
        let held = self.find(id)?;
        self.disk.open(held.number)?.read_ahead(held.written_to());
        Ok(())
    }

    /// Makes a replica that another run of the server has written survive a loss of power. Needed
    /// if it was made in this boot: the system may still have it in memory alone.
    pub fn sync(&self, id: ReplicaId) -> io::Result<()> {
        self.disk.open(self.find(id)?.number)?.sync()
    }

    pub(crate) fn kept(&self) -> &Kept {
        &self.kept
    }

    pub(crate) fn find(&self, id: ReplicaId) -> io::Result<Arc<Held>> {
        let found = lock(&self.held).get(&id).cloned();
        let none = || io::Error::new(io::ErrorKind::NotFound, format!("no replica of {id} here"));
        found.ok_or_else(none)
    }
}

/// Hands out the bytes of a replica's segment in order, as far as they are whole.
fn read_file(held: &Held, file: &dyn DiskFile, mut each: impl FnMut(&[u8])) -> io::Result<ReadEnd> {
    let end = held.written_to();
    file.read_ahead(end);
    let mut reader = PieceReader::new(&held.header);
    let mut buffer = vec![0; READ_BYTES];
    let (mut place, mut filled) = (PIECES_FROM, 0);
    loop {
        let room = buffer.len() - filled;
        let wanted = usize::try_from(end - place).map_or(room, |left| left.min(room));
        let got = file.read(place, &mut buffer[filled..filled + wanted])?;
        place += got as u64;
        filled += got;
        if got == 0 {
            return Ok(reader.finish(&buffer[..filled], &mut each));
        }
        let taken = reader.read(&buffer[..filled], &mut each);
        buffer.copy_within(taken..filled, 0);
        filled -= taken;
        if filled == buffer.len() {
            // A piece longer than that; it has no more bytes than were there to be read.
            buffer.resize(2 * filled, 0);
        }
    }
}

/// Room for a full segment in pieces of a few records. With smaller pieces a file grows.
fn file_bytes(segment_bytes: u32) -> u64 {
    PIECES_FROM + u64::from(segment_bytes) + u64::from(segment_bytes / 8)
}

/// Writes every block of a file.
fn write_zeros(file: &dyn DiskFile, bytes: u64) -> io::Result<()> {
    let zeros = vec![0; READ_BYTES];
    for at in (0..bytes).step_by(READ_BYTES) {
        let count = (bytes - at).min(READ_BYTES as u64) as usize;
        file.write(at, &mut [IoSlice::new(&zeros[..count])])?;
    }
    file.sync()
}

/// What stands at the beginning of a file.
enum Contents {
    Replica(ReplicaHeader, ReplicaOrder),
    Nothing,
    Unreadable(Corrupt),
}

/// Reads the headers of all files, several at a time: a disk has more to do than to wait for one.
fn read_headers(disk: &dyn Disk, numbers: &[FileNumber]) -> Vec<io::Result<Contents>> {
    let read = |number: &FileNumber| read_header(&*disk.open(*number)?);
    if numbers.len() < HEADERS_AT_ONCE {
        return numbers.iter().map(read).collect();
    }
    let share = numbers.len().div_ceil(HEADERS_AT_ONCE);
    std::thread::scope(|scope| {
        let readers = numbers.chunks(share).map(|some| {
            let reader = scope.spawn(move || some.iter().map(read).collect::<Vec<_>>());
            (some, reader)
        });
        let readers: Vec<_> = readers.collect();
        let read_by =
            |(some, reader): (&[FileNumber], std::thread::ScopedJoinHandle<'_, Vec<_>>)| {
                // Without its thread nothing is lost but time.
                reader.join().unwrap_or_else(|_| some.iter().map(read).collect())
            };
        readers.into_iter().flat_map(read_by).collect()
    })
}

fn read_header(file: &dyn DiskFile) -> io::Result<Contents> {
    let mut header = [0; HEADER_BYTES];
    let got = file.read(0, &mut header)?;
    match ReplicaHeader::parse(&header[..got]) {
        Ok((header, order)) => Ok(Contents::Replica(header, order)),
        // No piece is written before the header is on the disk.
        Err(_) if header == [0; HEADER_BYTES] && has_no_piece(file)? => Ok(Contents::Nothing),
        Err(why) => Ok(Contents::Unreadable(why)),
    }
}

fn has_no_piece(file: &dyn DiskFile) -> io::Result<bool> {
    let mut piece = [0; PIECE_HEADER_BYTES];
    file.read(PIECES_FROM, &mut piece)?;
    Ok(piece == [0; PIECE_HEADER_BYTES])
}

/// Of two files with one replica the one that was begun later counts. The other one was freed or given
/// up before, and not removed.
fn take_later(held: &mut BTreeMap<ReplicaId, Arc<Held>>, found: Arc<Held>) -> io::Result<()> {
    let id = found.header.id;
    let Some(other) = held.remove(&id) else {
        held.insert(id, found);
        return Ok(());
    };
    let (earlier, later) = match other.order.cmp(&found.order) {
        Ordering::Less => (other, found),
        Ordering::Equal => return Err(two_files(id, other.number, found.number)),
        Ordering::Greater => (found, other),
    };
    earlier.spoil();
    earlier.free();
    held.insert(id, later);
    Ok(())
}

fn two_files(id: ReplicaId, first: FileNumber, second: FileNumber) -> io::Error {
    let text = format!(
        "{first} and {second} both say that they are the replica of {id}; no server writes that, so \
         move the one that does not belong here away"
    );
    io::Error::new(io::ErrorKind::InvalidData, text)
}
