//! The files of a disk that hold replicas, and those that are free to hold others.
//!
//! A file is free again when its replica was freed and nobody reads or writes it any more: whoever
//! uses a replica shares its [`Held`], and the last one to let go gives the file back.

use crate::{Disk, FileNumber};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use wire::replica::{ReplicaHeader, ReplicaOrder};

/// Free files kept per size of segment, to be used again; the rest is removed. A server frees about
/// as many segments as it opens, in bursts of what the cleaner has been waiting for.
const FREE_FILES_MAX: usize = 8;

/// Takes the lock. A panic ends the process; until then what the lock guards is whole, since nothing
/// below panics between two changes that belong together.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A replica's file, while somebody uses it.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) header: ReplicaHeader,
    pub(crate) number: FileNumber,
    /// When the replica was begun.
    pub(crate) order: ReplicaOrder,
    /// Behind it nothing of the replica was written. The highest number: another process wrote it, and
    /// nobody knows.
    written_to: AtomicU64,
    /// The replica is not needed any more.
    freed: AtomicBool,
    /// The disk has failed here.
    spoiled: AtomicBool,
    files: Arc<Files>,
}

impl Held {
    /// The replica is not needed any more: the file is free when everybody has let go.
    pub(crate) fn free(&self) {
        self.freed.store(true, Ordering::Release);
    }

    pub(crate) fn is_freed(&self) -> bool {
        self.freed.load(Ordering::Acquire)
    }

    /// The replica is about to be written up to this place of its file.
    pub(crate) fn note_written(&self, place: u64) {
        self.written_to.store(place, Ordering::Release);
    }

    /// Up to where the file has to be read.
    pub(crate) fn written_to(&self) -> u64 {
        self.written_to.load(Ordering::Acquire)
    }

    /// The file is not to be used again.
    pub(crate) fn spoil(&self) {
        self.spoiled.store(true, Ordering::Release);
    }
}

impl Drop for Held {
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
    /// What it has room for.
    pub(crate) segment_bytes: u32,
    pub(crate) number: FileNumber,
    /// It may be used again; else it is to be removed.
    pub(crate) is_good: bool,
}

impl FreeFile {
    pub(crate) fn to_be_removed(number: FileNumber) -> FreeFile {
        FreeFile { segment_bytes: 0, number, is_good: false }
    }
}

/// The numbers of a disk's files, and the order in which replicas are begun in them.
#[derive(Debug, Default)]
pub(crate) struct Files {
    free: Mutex<Vec<FreeFile>>,
    /// Held while files are removed: who comes then knows afterwards what was.
    trimming: Mutex<()>,
    /// The highest number that was given to a file.
    number: Mutex<Option<FileNumber>>,
    /// The highest order that was given to a replica.
    order: Mutex<ReplicaOrder>,
}

impl Files {
    /// A file that was found, with a replica that was begun at this place of the order.
    pub(crate) fn find(
        self: &Arc<Files>,
        number: FileNumber,
        header: ReplicaHeader,
        order: ReplicaOrder,
    ) -> Arc<Held> {
        let mut highest = lock(&self.order);
        *highest = order.max(*highest);
        self.held(number, header, order)
    }

    /// The file is about to hold this replica, which is begun after all others.
    pub(crate) fn hold(self: &Arc<Files>, number: FileNumber, header: ReplicaHeader) -> Arc<Held> {
        let mut highest = lock(&self.order);
        // Four thousand million segments of a mebibyte are more than a disk lives to see.
        *highest = ReplicaOrder(highest.0.saturating_add(1));
        self.held(number, header, *highest)
    }

    fn held(
        self: &Arc<Files>,
        number: FileNumber,
        header: ReplicaHeader,
        order: ReplicaOrder,
    ) -> Arc<Held> {
        Arc::new(Held {
            header,
            number,
            order,
            written_to: AtomicU64::new(u64::MAX),
            freed: AtomicBool::new(false),
            spoiled: AtomicBool::new(false),
            files: Arc::clone(self),
        })
    }

    /// A free file with room for such a segment, if there is one.
    pub(crate) fn take(&self, segment_bytes: u32) -> Option<FileNumber> {
        let mut free = lock(&self.free);
        let at = free.iter().position(|f| f.is_good && f.segment_bytes == segment_bytes)?;
        Some(free.swap_remove(at).number)
    }

    /// Whether there are so many free files with room for such a segment.
    pub(crate) fn has_free(&self, segment_bytes: u32, count: usize) -> bool {
        let free = lock(&self.free);
        free.iter().filter(|f| f.is_good && f.segment_bytes == segment_bytes).count() >= count
    }

    /// This file holds nothing.
    pub(crate) fn give(&self, file: FreeFile) {
        lock(&self.free).push(file);
    }

    /// Numbers up to this one are taken.
    pub(crate) fn note_taken(&self, number: FileNumber) {
        let mut highest = lock(&self.number);
        *highest = (*highest).max(Some(number));
    }

    /// A number that no file has.
    pub(crate) fn fresh_number(&self) -> FileNumber {
        let mut highest = lock(&self.number);
        let number = FileNumber(highest.map_or(0, |highest| highest.0 + 1));
        *highest = Some(number);
        number
    }

    /// Removes free files that are not worth keeping. One that cannot be removed stays for the next
    /// time. What was given before the call, and is not to be used again, is gone if it succeeds.
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
