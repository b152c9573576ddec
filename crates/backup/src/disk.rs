//! The interface to a disk: numbered files, written at any offset, synced individually.

use std::fmt;
use std::io::{self, IoSlice};
use types::Instant;

/// Number of a file of a [`Disk`]. Files are reused: the first replica of a file may have been
/// freed long ago.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileNumber(pub u32);

impl fmt::Display for FileNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "replica file {:06}", self.0)
    }
}

/// Numbered files on a disk that belongs to one process. Errors name the file and a remedy.
pub trait Disk: Send + Sync {
    /// Returns all files, in order.
    fn list(&self) -> io::Result<Vec<FileNumber>>;

    /// Creates a file for about `bytes` bytes, reserved if the disk can do so. On return, the
    /// file survives a power failure. Fails if the number is in use; after another error the file
    /// may exist.
    fn create(&self, number: FileNumber, bytes: u64) -> io::Result<Box<dyn DiskFile>>;

    /// Opens an existing file.
    fn open(&self, number: FileNumber) -> io::Result<Box<dyn DiskFile>>;

    /// Removes a file durably, if it exists.
    fn remove(&self, number: FileNumber) -> io::Result<()>;

    /// Returns whether a write may take long now, so that a thread that must not wait should leave
    /// it to another one.
    fn is_slow(&self, _now: Instant) -> bool {
        false
    }
}

/// An open file of a [`Disk`].
pub trait DiskFile: Send + Sync {
    /// Writes the parts contiguously from `offset` on. After an error any of the bytes may have
    /// been written.
    fn write(&self, offset: u64, parts: &mut [IoSlice<'_>]) -> io::Result<()>;

    /// Reads from `offset` on. Returns less than requested only at the end of the file.
    fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<usize>;

    /// Syncs the file: on return, everything written before the call survives a power failure.
    /// After an error this is unknown forever, even if a retry succeeds, because the system may
    /// have dropped the bytes that it could not write.
    fn sync(&self) -> io::Result<()>;

    /// Announces that the file will be read from its beginning to the offset `to`, or to its end
    /// if that comes first.
    fn read_ahead(&self, to: u64);

    /// Drops the file's cached pages as far as they are on the disk, so that the next read reads
    /// the disk.
    fn forget_cached(&self) {}
}

/// The disk of a server that stores nothing.
pub(crate) struct NoDisk;

impl NoDisk {
    fn error<T>() -> io::Result<T> {
        Err(io::Error::new(io::ErrorKind::Unsupported, "this server stores no replicas"))
    }
}

impl Disk for NoDisk {
    fn list(&self) -> io::Result<Vec<FileNumber>> {
        Ok(Vec::new())
    }

    fn create(&self, _: FileNumber, _: u64) -> io::Result<Box<dyn DiskFile>> {
        NoDisk::error()
    }

    fn open(&self, _: FileNumber) -> io::Result<Box<dyn DiskFile>> {
        NoDisk::error()
    }

    fn remove(&self, _: FileNumber) -> io::Result<()> {
        Ok(())
    }
}
