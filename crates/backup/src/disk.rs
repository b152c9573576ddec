//! What is asked of a disk: files with numbers, written at any place, synced one by one.

use std::fmt;
use std::io::{self, IoSlice};

/// A file of a [`Disk`]. Its first replica may have been freed long ago: files are used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileNumber(pub u32);

impl fmt::Display for FileNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "replica file {:06}", self.0)
    }
}

/// Numbered files on a disk that belongs to one process. Errors name the file, and what can be done.
pub trait Disk: fmt::Debug + Send + Sync {
    /// All files, in order.
    fn list(&self) -> io::Result<Vec<FileNumber>>;

    /// Makes a file that is to have about `bytes`; it has that room if the disk can promise it.
    /// When this returns, the file exists also after a loss of power. Fails if there is one of this
    /// number; after another error there may be one.
    fn create(&self, number: FileNumber, bytes: u64) -> io::Result<Box<dyn DiskFile>>;

    /// Opens a file that exists.
    fn open(&self, number: FileNumber) -> io::Result<Box<dyn DiskFile>>;

    /// Removes a file for good, if it is there.
    fn remove(&self, number: FileNumber) -> io::Result<()>;
}

/// An open file of a [`Disk`].
pub trait DiskFile: fmt::Debug + Send + Sync {
    /// Writes the parts side by side from `offset` on. After an error any of the bytes may have been
    /// written.
    fn write(&self, offset: u64, parts: &mut [IoSlice<'_>]) -> io::Result<()>;

    /// Reads from `offset` on. Returns less than asked for only at the end of the file.
    fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<usize>;

    /// When this returns, everything written before it was called survives a loss of power.
    /// After an error this will never be known, however often it is tried again: the system may have
    /// dropped what it could not write.
    fn sync(&self) -> io::Result<()>;

    /// Tells that the file is about to be read, from its beginning up to this place, or to its end if
    /// that comes first.
    fn read_ahead(&self, to: u64);

    /// Tells that what the system has in memory of the file may go, as far as the disk has it: who
    /// reads next wants to know what the disk has.
    fn forget_cached(&self) {}
}
