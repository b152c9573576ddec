//! The set of replicas on a disk.

use crate::cache::ReplicaCache;
use crate::disk::{Disk, DiskFile, FileNumber, NoDisk};
use crate::files::{FileSet, FreeFile, ReplicaFile, lock};
use crate::writer::{FileOpener, OpenFiles, ReplicaWriter};
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, IoSlice};
use std::sync::{Arc, Mutex};
use types::{ClusterId, HashSeed, Instant, SegmentId, ServerId};
use wire::Corrupt;
use wire::peer::{RecoveryNext, RecoveryRead};
use wire::replica::{
    BootId, HEADER_BYTES, PIECE_HEADER_BYTES, PIECES_FROM, PieceReader, ReadEnd, ReplicaFormat,
    ReplicaHeader, ReplicaId, ReplicaKind, ReplicaOrder,
};

/// Bytes read or zeroed at once: an amount that stays in the cache until it is checked and
/// copied.
const READ_BYTES: usize = 256 << 10;

/// Number of files that are read or synced concurrently at a start.
const FILES_AT_ONCE: usize = 16;

/// All replicas on one disk, shared by all threads that write, read or free them.
pub struct Replicas {
    disk: Arc<dyn Disk>,
    boot: BootId,
    files: Arc<FileSet>,
    by_id: Mutex<BTreeMap<ReplicaId, Arc<ReplicaFile>>>,
    /// Replicas with open files.
    open: Arc<OpenFiles>,
    /// Cache of replicas for recoveries.
    cache: ReplicaCache,
}

/// Result of opening a disk.
pub struct OpenedReplicas {
    /// All replicas on the disk.
    pub replicas: Replicas,
    /// Files that hold or held a replica but cannot be read. They are not touched, and reported
    /// at each start until an operator removes them.
    pub unreadable: Vec<UnreadableFile>,
}

/// Preparation of a new file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blocks {
    /// Reserved room, if the disk supports it.
    Promised,
    /// Written blocks, so that a sync of a replica in the file never waits for the file system's
    /// journal. Worth the extra writes for a log that syncs every write.
    Written,
}

/// A file with an unreadable header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnreadableFile {
    /// Number of the file.
    pub number: FileNumber,
    /// Kind of damage.
    pub why: Corrupt,
}

impl Replicas {
    /// Reads the header of every file on the disk, and changes none. `boot` is the current boot
    /// id of the machine. Files without a replica are removed when the first replica is freed.
    pub fn open(disk: Arc<dyn Disk>, boot: BootId) -> io::Result<OpenedReplicas> {
        let files = Arc::new(FileSet::default());
        let mut by_id = BTreeMap::new();
        let mut unreadable = Vec::new();
        let numbers = disk.list()?;
        for (number, contents) in numbers.iter().copied().zip(read_headers(&*disk, &numbers)) {
            files.note_taken(number);
            match contents? {
                HeaderContent::Replica(header, order) => {
                    take_later(&mut by_id, files.find(number, header, order))?;
                }
                // The process that created it died before it began a replica.
                HeaderContent::Nothing => files.give(FreeFile::to_be_removed(number)),
                HeaderContent::Unreadable(why) => unreadable.push(UnreadableFile { number, why }),
            }
        }
        let (by_id, open) = (Mutex::new(by_id), Arc::default());
        let cache = ReplicaCache::default();
        let replicas = Replicas { disk, boot, files, by_id, open, cache };
        Ok(OpenedReplicas { replicas, unreadable })
    }

    /// Returns the replicas of a server that stores none: there are none, and none can be created.
    pub fn none() -> Replicas {
        Replicas {
            disk: Arc::new(NoDisk),
            boot: BootId::default(),
            files: Arc::default(),
            by_id: Mutex::default(),
            open: Arc::default(),
            cache: ReplicaCache::default(),
        }
    }

    /// Limits the number of open files of replicas that are being written. If `are_synced` is
    /// set, only files without unsynced bytes are closed, so the limit may be exceeded.
    pub fn limit_open_files(&self, max: usize, are_synced: bool) {
        self.open.limit(max, are_synced);
    }

    /// Returns the number of open files of replicas that are being written.
    pub fn open_files(&self) -> usize {
        self.open.count()
    }

    /// Returns the boot id of the machine.
    pub fn boot(&self) -> BootId {
        self.boot
    }

    /// Returns whether a write may take long now: see [`Disk::is_slow`].
    pub fn is_slow(&self, now: Instant) -> bool {
        self.disk.is_slow(now)
    }

    /// Returns whether bytes of a replica that were not synced may be lost: its machine has been
    /// started again since, or a sync of it has failed.
    fn may_be_short(&self, replica: &ReplicaFile) -> bool {
        replica.header.boot != self.boot || replica.is_spoiled()
    }

    /// Returns the replicas of a log that may have lost bytes that were not synced.
    pub fn list_short(&self, log: ServerId) -> BTreeSet<ReplicaId> {
        let by_id = lock(&self.by_id);
        let of_log = by_id.iter().filter(|(id, _)| id.log == log);
        of_log.filter(|(_, replica)| self.may_be_short(replica)).map(|(id, _)| *id).collect()
    }

    /// Returns all replicas of a log, in order of segment and epoch.
    pub fn list(&self, log: ServerId) -> Vec<ReplicaHeader> {
        let by_id = lock(&self.by_id);
        by_id.values().map(|replica| replica.header).filter(|header| header.id.log == log).collect()
    }

    /// Returns the logs with replicas on this disk, in order.
    pub fn logs(&self) -> Vec<ServerId> {
        let by_id = lock(&self.by_id);
        let mut logs: Vec<ServerId> = by_id.keys().map(|id| id.log).collect();
        logs.dedup();
        logs
    }

    /// Returns the logs with replicas on this disk, in order, each with the last segment of its
    /// segment manifest among these replicas.
    pub fn manifest_logs(&self) -> Vec<(ServerId, Option<SegmentId>)> {
        let by_id = lock(&self.by_id);
        let mut manifest_logs: BTreeMap<ServerId, Option<SegmentId>> = BTreeMap::new();
        for header in by_id.values().map(|replica| replica.header) {
            let last = manifest_logs.entry(header.id.log).or_default();
            if header.kind == ReplicaKind::Manifest {
                *last = (*last).max(Some(header.id.segment));
            }
        }
        manifest_logs.into_iter().collect()
    }

    /// Returns the clusters of all replicas on this disk, in order.
    pub fn clusters(&self) -> BTreeSet<ClusterId> {
        lock(&self.by_id).values().map(|replica| replica.header.cluster).collect()
    }

    /// Creates a replica. On return, the replica is found again even after a power failure. Waits
    /// for the disk, some milliseconds: call this ahead of need. Sets the header's boot and
    /// format.
    pub fn create(&self, header: ReplicaHeader) -> io::Result<Arc<ReplicaWriter>> {
        let header = self.header_now(header);
        let (replica, is_new) = self.claim(header)?;
        let file = if is_new {
            self.disk.create(replica.number, file_bytes(header.segment_bytes))
        } else {
            self.disk.open(replica.number)
        };
        let begun = file.and_then(|file| self.begin(&replica, file));
        let begun = begun.and_then(|begun| begun.sync_header().map(|()| begun));
        self.begun(replica, begun)
    }

    /// Creates a replica in a prepared file ([`Replicas::prepare`]) without waiting for the disk;
    /// returns `None` if there is no such file. A power failure before the first sync undoes the
    /// creation.
    pub fn create_at_once(&self, header: ReplicaHeader) -> io::Result<Option<Arc<ReplicaWriter>>> {
        if !self.files.has_free(header.segment_bytes, 1) {
            return Ok(None);
        }
        let header = self.header_now(header);
        let (replica, is_new) = self.claim(header)?;
        if is_new {
            // Another thread took the last prepared file.
            replica.free();
            replica.spoil();
            lock(&self.by_id).remove(&header.id);
            return Ok(None);
        }
        let file = self.disk.open(replica.number);
        let begun = file.and_then(|file| self.begin(&replica, file));
        self.begun(replica, begun).map(Some)
    }

    /// Returns the header of a replica that is created now.
    fn header_now(&self, header: ReplicaHeader) -> ReplicaHeader {
        ReplicaHeader { format: ReplicaFormat::CURRENT, boot: self.boot, ..header }
    }

    fn begin(
        &self,
        replica: &Arc<ReplicaFile>,
        file: Box<dyn DiskFile>,
    ) -> io::Result<Arc<ReplicaWriter>> {
        let opener = FileOpener { disk: Arc::clone(&self.disk), open: Arc::clone(&self.open) };
        ReplicaWriter::begin(Arc::clone(replica), file, opener)
    }

    fn begun(
        &self,
        replica: Arc<ReplicaFile>,
        begun: io::Result<Arc<ReplicaWriter>>,
    ) -> io::Result<Arc<ReplicaWriter>> {
        let header = replica.header;
        if begun.is_err() {
            replica.spoil();
            replica.free();
            lock(&self.by_id).remove(&header.id);
            drop(replica);
            // Otherwise a header that was written would be found again. The caller gets the first
            // error.
            let _ = self.files.trim(&*self.disk);
        }
        begun
    }

    /// Prepares a file for a segment of this size, if fewer than `stock` are ready. So the
    /// creation of the next replica does not wait for the disk.
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

    /// Chooses a file for a replica. Returns also whether the file must be created.
    fn claim(&self, header: ReplicaHeader) -> io::Result<(Arc<ReplicaFile>, bool)> {
        let mut by_id = lock(&self.by_id);
        if by_id.contains_key(&header.id) {
            let text = format!("a replica of {} exists already", header.id);
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, text));
        }
        let free = self.files.take(header.segment_bytes);
        let number = free.unwrap_or_else(|| self.files.fresh_number());
        let is_unused = |replica: &Arc<ReplicaFile>| replica.number != number;
        debug_assert!(by_id.values().all(is_unused), "{number} holds another replica");
        let claimed = self.files.hold(number, header);
        by_id.insert(header.id, Arc::clone(&claimed));
        Ok((claimed, free.is_none()))
    }

    /// Frees a replica that is not needed any more: its file may hold another one. Does nothing
    /// if there is no such replica.
    pub fn free(&self, id: ReplicaId) -> io::Result<()> {
        if let Some(replica) = lock(&self.by_id).remove(&id) {
            replica.free();
        }
        self.cache.forget(id);
        self.files.trim(&*self.disk)
    }

    /// Gives up a replica, which must not be found again: removes its file, even if it is in use.
    /// If the creation of the replica has failed, this removes its remains. After an error the
    /// next process may find parts of it. The removal is retried whenever a replica is freed.
    pub fn give_up(&self, id: ReplicaId) -> io::Result<()> {
        let replica = lock(&self.by_id).remove(&id);
        self.cache.forget(id);
        if let Some(replica) = replica {
            replica.spoil();
            replica.free();
            self.disk.remove(replica.number)?;
        }
        self.files.trim(&*self.disk)
    }

    /// Reads a replica from its beginning. Passes the valid bytes of its segment to `each` in
    /// order, and returns the reason for their end.
    pub fn read(&self, id: ReplicaId, each: impl FnMut(&[u8])) -> io::Result<ReadEnd> {
        let replica = self.find(id)?;
        read_file(&replica, &*self.disk.open(replica.number)?, each)
    }

    /// Reads a replica from the disk, bypassing the system's cache. The outer error means that
    /// its file could not be opened, or that a sync of it has failed and bytes are lost that its
    /// writer does not count as synced; the inner one that it could not be read.
    pub fn scrub(&self, id: ReplicaId) -> io::Result<io::Result<ReadEnd>> {
        let replica = self.find(id)?;
        let file = self.disk.open(replica.number)?;
        file.forget_cached();
        let end = read_file(&replica, &*file, |_| {});
        // No reader is expected soon.
        file.forget_cached();
        if replica.is_spoiled() {
            return Err(io::Error::other("a sync of the replica has failed"));
        }
        Ok(end)
    }

    /// Returns the bytes of each valid piece of a replica, for logs with one message per piece.
    pub fn bodies(&self, id: ReplicaId) -> io::Result<(Vec<Vec<u8>>, ReadEnd)> {
        let mut bodies = Vec::new();
        let end = self.read(id, |body| bodies.push(body.to_vec()))?;
        Ok((bodies, end))
    }

    /// Returns the ids of all replicas, in order of log, segment and epoch.
    pub fn ids(&self) -> Vec<ReplicaId> {
        lock(&self.by_id).keys().copied().collect()
    }

    /// Reads a replica to determine its valid length, which is unknown after a start. Returns
    /// also whether it may have lost bytes that were not synced.
    pub fn measure(&self, id: ReplicaId) -> io::Result<(bool, ReadEnd)> {
        let replica = self.find(id)?;
        let file = self.disk.open(replica.number)?;
        if replica.is_spoiled() {
            // The system may still have the bytes that it could not write.
            file.forget_cached();
        }
        Ok((self.may_be_short(&replica), read_file(&replica, &*file, |_| {})?))
    }

    /// Announces that a replica will be read soon.
    pub fn read_ahead(&self, id: ReplicaId) -> io::Result<()> {
        let replica = self.find(id)?;
        self.disk.open(replica.number)?.read_ahead(replica.written_to());
        Ok(())
    }

    /// Syncs a replica that another run of the server has written: the system may have parts of it
    /// only in memory. The boot in its header does not tell, because the file may be a copy that was
    /// made in this boot. After a failure, a later success does not bring back the bytes that could
    /// not be written: [`Replicas::measure`] returns those that are left.
    pub fn sync(&self, id: ReplicaId) -> io::Result<()> {
        let replica = self.find(id)?;
        let synced = self.disk.open(replica.number)?.sync();
        if synced.is_err() {
            replica.spoil();
        }
        synced
    }

    /// Syncs several replicas as [`Replicas::sync`] does, some of them concurrently. Returns the first
    /// failure, after all were tried.
    pub fn sync_all(&self, ids: &[ReplicaId]) -> Result<(), (ReplicaId, io::Error)> {
        let synced = all_at_once(ids, |id| self.sync(*id).map_err(|error| (*id, error)));
        assert_eq!(synced.len(), ids.len(), "each replica is synced once");
        synced.into_iter().collect()
    }

    /// Appends the entries of a range in a replica to `out`, starting at an offset, up to
    /// `bytes_max` bytes but at least one entry. Returns the position of the next entry, or the
    /// end of the replica.
    ///
    /// Waits for the disk if the replica is not cached. Fails with [`io::ErrorKind::NotFound`] if
    /// it is not on this disk, and with [`io::ErrorKind::InvalidData`] if it contains an invalid
    /// entry.
    pub fn entries(
        &self,
        read: &RecoveryRead,
        seed: &HashSeed,
        bytes_max: usize,
        out: &mut Vec<u8>,
    ) -> io::Result<RecoveryNext> {
        let id = read.replica;
        let segment_bytes = self.find(id)?.header.segment_bytes;
        let load = |each: &mut dyn FnMut(&[u8])| self.read(id, each);
        let replica = self.cache.get_or_read(id, segment_bytes, seed, load)?;
        Ok(self.cache.deliver(replica, read, bytes_max, out))
    }

    /// Returns the file of a replica.
    pub fn file(&self, id: ReplicaId) -> Option<FileNumber> {
        self.find(id).ok().map(|replica| replica.number)
    }

    fn find(&self, id: ReplicaId) -> io::Result<Arc<ReplicaFile>> {
        let found = lock(&self.by_id).get(&id).cloned();
        let none = || io::Error::new(io::ErrorKind::NotFound, format!("no replica of {id} here"));
        found.ok_or_else(none)
    }
}

/// Passes the valid bytes of a replica's segment to `each`, in order.
fn read_file(
    replica: &ReplicaFile,
    file: &dyn DiskFile,
    mut each: impl FnMut(&[u8]),
) -> io::Result<ReadEnd> {
    let end = replica.written_to();
    file.read_ahead(end);
    let mut reader = PieceReader::new(&replica.header);
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
            // The piece is longer than the buffer; it was not completely read yet.
            buffer.resize(2 * filled, 0);
        }
    }
}

/// Returns the file size for a full segment in pieces of a few records. With smaller pieces a
/// file grows.
fn file_bytes(segment_bytes: u32) -> u64 {
    PIECES_FROM + u64::from(segment_bytes) + u64::from(segment_bytes / 8)
}

/// Writes zeros to every block of a file.
fn write_zeros(file: &dyn DiskFile, bytes: u64) -> io::Result<()> {
    let zeros = vec![0; READ_BYTES];
    for at in (0..bytes).step_by(READ_BYTES) {
        let count = (bytes - at).min(READ_BYTES as u64) as usize;
        file.write(at, &mut [IoSlice::new(&zeros[..count])])?;
    }
    file.sync()
}

/// Content of a file's header.
enum HeaderContent {
    Replica(ReplicaHeader, ReplicaOrder),
    Nothing,
    Unreadable(Corrupt),
}

/// Reads the headers of all files.
fn read_headers(disk: &dyn Disk, numbers: &[FileNumber]) -> Vec<io::Result<HeaderContent>> {
    all_at_once(numbers, |number| read_header(&*disk.open(*number)?))
}

/// Does work that waits for the disk for each item, for several items concurrently, to keep the
/// disk busy. Returns the results in the order of the items.
fn all_at_once<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    if items.len() < FILES_AT_ONCE {
        return items.iter().map(work).collect();
    }
    let share = items.len().div_ceil(FILES_AT_ONCE);
    let work = &work;
    std::thread::scope(|scope| {
        let workers = items.chunks(share).map(|some| {
            let worker = scope.spawn(move || some.iter().map(work).collect::<Vec<_>>());
            (some, worker)
        });
        let workers: Vec<_> = workers.collect();
        let done_by = |(some, worker): (&[T], std::thread::ScopedJoinHandle<'_, Vec<R>>)| {
            // Without its thread only time is lost.
            worker.join().unwrap_or_else(|_| some.iter().map(work).collect())
        };
        workers.into_iter().flat_map(done_by).collect()
    })
}

fn read_header(file: &dyn DiskFile) -> io::Result<HeaderContent> {
    let mut header = [0; HEADER_BYTES];
    let got = file.read(0, &mut header)?;
    match ReplicaHeader::parse(&header[..got]) {
        Ok((header, order)) => Ok(HeaderContent::Replica(header, order)),
        // No piece is written before the header is on the disk.
        Err(_) if header == [0; HEADER_BYTES] && has_no_piece(file)? => Ok(HeaderContent::Nothing),
        Err(why) => Ok(HeaderContent::Unreadable(why)),
    }
}

fn has_no_piece(file: &dyn DiskFile) -> io::Result<bool> {
    let mut piece = [0; PIECE_HEADER_BYTES];
    file.read(PIECES_FROM, &mut piece)?;
    Ok(piece == [0; PIECE_HEADER_BYTES])
}

/// Adds a found replica. Of two files with one replica, the one that was begun later counts. The
/// earlier one was freed or given up, and not removed.
fn take_later(
    by_id: &mut BTreeMap<ReplicaId, Arc<ReplicaFile>>,
    found: Arc<ReplicaFile>,
) -> io::Result<()> {
    let id = found.header.id;
    let Some(other) = by_id.remove(&id) else {
        by_id.insert(id, found);
        return Ok(());
    };
    let (earlier, later) = match other.order.cmp(&found.order) {
        Ordering::Less => (other, found),
        Ordering::Equal => return Err(two_files(id, other.number, found.number)),
        Ordering::Greater => (found, other),
    };
    earlier.spoil();
    earlier.free();
    by_id.insert(id, later);
    Ok(())
}

fn two_files(id: ReplicaId, first: FileNumber, second: FileNumber) -> io::Error {
    let text = format!(
        "{first} and {second} both claim to be the replica of {id}. No server writes two such \
         files: move the one that does not belong here away"
    );
    io::Error::new(io::ErrorKind::InvalidData, text)
}
