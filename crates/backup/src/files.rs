//! The files of a disk: those that hold replicas, and those that are free.
//!
//! A file is free again when its replica was freed and no thread reads or writes it any more. All
//! users of a replica share its [`ReplicaFile`], and the last one to drop it frees the file.

use crate::disk::{Disk, FileNumber};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use wire::replica::{ReplicaHeader, ReplicaOrder};

/// Maximum number of free files per segment size that are kept for reuse; the rest is removed. A
/// server frees about as many segments as it opens, in bursts when the cleaner's conditions are
/// met.
const FREE_FILES_MAX: usize = 8;

/// Takes the lock. A panic ends the process. Until then the guarded data is consistent, since the
/// code below does not panic between changes that belong together.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A replica with its file, shared by its users.
pub(crate) struct ReplicaFile {
    pub(crate) header: ReplicaHeader,
    pub(crate) number: FileNumber,
    /// Sequence number of the replica's beginning.
    pub(crate) order: ReplicaOrder,
    /// File offset up to which the replica may have been written. The maximum value means
    /// unknown, because another process wrote it.
    written_to: AtomicU64,
    /// Set if the replica is not needed any more.
    freed: AtomicBool,
    /// Set if the disk has failed for this file.
    spoiled: AtomicBool,
    files: Arc<FileSet>,
}

impl ReplicaFile {
    /// Marks the replica as not needed: the file is free when all users have dropped it.
    pub(crate) fn free(&self) {
        self.freed.store(true, Ordering::Release);
    }

    pub(crate) fn is_freed(&self) -> bool {
        self.freed.load(Ordering::Acquire)
    }

    /// Records that the replica is about to be written up to this file offset.
    pub(crate) fn note_written(&self, place: u64) {
        self.written_to.store(place, Ordering::Release);
    }

    /// Returns the file offset up to which the file must be read.
    pub(crate) fn written_to(&self) -> u64 {
        self.written_to.load(Ordering::Acquire)
    }

    /// Excludes the file from reuse.
    pub(crate) fn spoil(&self) {
        self.spoiled.store(true, Ordering::Release);
    }

    pub(crate) fn is_spoiled(&self) -> bool {
        self.spoiled.load(Ordering::Acquire)
    }
}

impl Drop for ReplicaFile {
    fn drop(&mut self) {
        if *self.freed.get_mut() {
            self.files.give(FreeFile {
                segment_bytes: self.header.segment_bytes,
                number: self.number,
                is_good: !*self.spoiled.get_mut(),
            });
        }
    }
}

/// A file without a replica.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FreeFile {
    /// Size of the segments that it has room for.
    pub(crate) segment_bytes: u32,
    pub(crate) number: FileNumber,
    /// Set if the file may be reused; otherwise it is to be removed.
    pub(crate) is_good: bool,
}

impl FreeFile {
    pub(crate) fn to_be_removed(number: FileNumber) -> FreeFile {
        FreeFile { segment_bytes: 0, number, is_good: false }
    }
}

/// Numbers of a disk's files, and sequence numbers of the replicas begun in them.
#[derive(Debug, Default)]
pub(crate) struct FileSet {
    free: Mutex<Vec<FreeFile>>,
    /// Locked during the removal of files, so that a concurrent caller returns only after it.
    trimming: Mutex<()>,
    /// Highest number assigned to a file.
    number: Mutex<Option<FileNumber>>,
    /// Highest sequence number assigned to a replica.
    order: Mutex<ReplicaOrder>,
}

impl FileSet {
    /// Registers a found file with the sequence number of its replica.
    pub(crate) fn find(
        self: &Arc<FileSet>,
        number: FileNumber,
        header: ReplicaHeader,
        order: ReplicaOrder,
    ) -> Arc<ReplicaFile> {
        let mut highest = lock(&self.order);
        *highest = order.max(*highest);
        self.replica(number, header, order)
    }

    /// Assigns a file to a new replica, which gets the next sequence number.
    pub(crate) fn hold(
        self: &Arc<FileSet>,
        number: FileNumber,
        header: ReplicaHeader,
    ) -> Arc<ReplicaFile> {
        let mut highest = lock(&self.order);
        // Four thousand million segments of a mebibyte exceed the lifetime of a disk.
        *highest = ReplicaOrder(highest.0.saturating_add(1));
        self.replica(number, header, *highest)
    }

    fn replica(
        self: &Arc<FileSet>,
        number: FileNumber,
        header: ReplicaHeader,
        order: ReplicaOrder,
    ) -> Arc<ReplicaFile> {
        Arc::new(ReplicaFile {
            header,
            number,
            order,
            written_to: AtomicU64::new(u64::MAX),
            freed: AtomicBool::new(false),
            spoiled: AtomicBool::new(false),
            files: Arc::clone(self),
        })
    }

    /// Takes a free file for a segment of this size, if there is one.
    pub(crate) fn take(&self, segment_bytes: u32) -> Option<FileNumber> {
        let mut free = lock(&self.free);
        let at = free.iter().position(|f| f.is_good && f.segment_bytes == segment_bytes)?;
        Some(free.swap_remove(at).number)
    }

    /// Returns whether there are `count` free files for segments of this size.
    pub(crate) fn has_free(&self, segment_bytes: u32, count: usize) -> bool {
        let free = lock(&self.free);
        free.iter().filter(|f| f.is_good && f.segment_bytes == segment_bytes).count() >= count
    }

    /// Adds a file without a replica.
    pub(crate) fn give(&self, file: FreeFile) {
        let mut free = lock(&self.free);
        let is_new = |known: &FreeFile| known.number != file.number;
        debug_assert!(free.iter().all(is_new), "{} is freed twice", file.number);
        free.push(file);
    }

    /// Excludes file numbers up to this one from assignment.
    pub(crate) fn note_taken(&self, number: FileNumber) {
        let mut highest = lock(&self.number);
        *highest = (*highest).max(Some(number));
    }

    /// Returns an unused file number.
    pub(crate) fn fresh_number(&self) -> FileNumber {
        let mut highest = lock(&self.number);
        let number = FileNumber(highest.map_or(0, |highest| highest.0 + 1));
        *highest = Some(number);
        number
    }

    /// Removes surplus free files. A file that cannot be removed is retried at the next call. On
    /// success, all files are gone that were given before the call and must not be reused.
    pub(crate) fn trim(&self, disk: &dyn Disk) -> io::Result<()> {
        let _trimming = lock(&self.trimming);
        while let Some(surplus) = self.take_surplus() {
            if let Err(error) = disk.remove(surplus.number) {
                self.give(FreeFile { is_good: false, ..surplus });
                return Err(error);
            }
        }
        Ok(())
    }

    fn take_surplus(&self) -> Option<FreeFile> {
        let mut free = lock(&self.free);
        let is_surplus = |file: &FreeFile| {
            let alike = free.iter().filter(|f| f.is_good && f.segment_bytes == file.segment_bytes);
            !file.is_good || alike.count() > FREE_FILES_MAX
        };
        let at = free.iter().position(is_surplus)?;
        Some(free.swap_remove(at))
    }
}
