//! The disk of the `backup` crate, implemented by files of a data directory.

use backup::{Disk, DiskFile, FileNumber};
use runtime::files::{DataDirectory, Folder, NumberedFile};
use std::io::{self, IoSlice};

/// The replicas in the folder `replicas` of a data directory.
pub struct FileDisk(Folder);

impl FileDisk {
    /// Opens the replicas of this data directory.
    pub fn open(directory: &DataDirectory) -> io::Result<FileDisk> {
        directory.folder("replicas").map(FileDisk)
    }
}

impl Disk for FileDisk {
    fn list(&self) -> io::Result<Vec<FileNumber>> {
        Ok(self.0.list()?.into_iter().map(FileNumber).collect())
    }

    fn create(&self, number: FileNumber, bytes: u64) -> io::Result<Box<dyn DiskFile>> {
        Ok(Box::new(OpenFile(self.0.create(number.0, bytes)?)))
    }

    fn open(&self, number: FileNumber) -> io::Result<Box<dyn DiskFile>> {
        Ok(Box::new(OpenFile(self.0.open(number.0)?)))
    }

    fn remove(&self, number: FileNumber) -> io::Result<()> {
        self.0.remove(number.0)
    }
}

struct OpenFile(NumberedFile);

impl DiskFile for OpenFile {
    fn write(&self, offset: u64, parts: &mut [IoSlice<'_>]) -> io::Result<()> {
        self.0.write(offset, parts)
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        self.0.read(offset, into)
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync()
    }

    fn read_ahead(&self, to: u64) {
        self.0.read_ahead(to);
    }

    fn forget_cached(&self) {
        self.0.forget_cached();
    }
}
