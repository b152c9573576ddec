//! The disk of the `backup` crate, implemented by files of a data directory.

use backup::{Disk, DiskFile, FileNumber};
use runtime::Clock;
use runtime::files::{DataDirectory, Folder, NumberedFile};
use std::io::{self, IoSlice};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use types::Instant;

/// Time of a slow write: thousands of times the usual one. A write waits for the disk when the
/// system's cache has no room. But its thread may also have waited for a processor, so the disk
/// counts as slow only after [`STALLED_WRITE`], or after two slow writes within [`REPEATED`].
const SLOW_WRITE: Duration = Duration::from_millis(10);
const STALLED_WRITE: Duration = Duration::from_millis(100);
const REPEATED: Duration = Duration::from_secs(1);

/// Time without a slow write after which the disk does not count as slow any more.
const SLOW_CALM: Duration = Duration::from_secs(10);

/// The replicas in the folder `replicas` of a data directory.
pub struct FileDisk {
    folder: Folder,
    writes: Arc<WriteTimes>,
}

/// Measures writes, and remembers the last slow one.
#[derive(Default)]
struct WriteTimes {
    clock: Clock,
    /// Time of the last slow write; 0: there was none.
    last_at: AtomicU64,
    /// Time of the last one since which the disk counts as slow; 0: there was none.
    slow_at: AtomicU64,
}

impl WriteTimes {
    fn measure<T>(&self, write: impl FnOnce() -> T) -> T {
        let begun = self.clock.now();
        let result = write();
        self.record(begun, self.clock.now());
        result
    }

    fn record(&self, begun: Instant, ended: Instant) {
        let took = ended.since(begun);
        if took < SLOW_WRITE {
            return;
        }
        let last = self.last_at.swap(ended.0, Ordering::Relaxed);
        let is_repeated = last != 0 && ended.since(Instant(last)) < REPEATED;
        let was_slow = self.is_slow(ended);
        if !was_slow && !is_repeated && took < STALLED_WRITE {
            return;
        }
        if !was_slow {
            let millis = took.as_millis();
            tracing::warn!(millis, "the disk is slow, a thread writes replicas until it is faster");
        }
        self.slow_at.store(ended.0, Ordering::Relaxed);
    }

    fn is_slow(&self, now: Instant) -> bool {
        let at = self.slow_at.load(Ordering::Relaxed);
        at != 0 && now.since(Instant(at)) < SLOW_CALM
    }
}

impl FileDisk {
    /// Opens the replicas of this data directory.
    pub fn open(directory: &DataDirectory) -> io::Result<FileDisk> {
        Ok(FileDisk { folder: directory.folder("replicas")?, writes: Arc::default() })
    }

    fn file(&self, file: NumberedFile) -> Box<dyn DiskFile> {
        Box::new(OpenFile { file, writes: Arc::clone(&self.writes) })
    }
}

impl Disk for FileDisk {
    fn list(&self) -> io::Result<Vec<FileNumber>> {
        Ok(self.folder.list()?.into_iter().map(FileNumber).collect())
    }

    fn create(&self, number: FileNumber, bytes: u64) -> io::Result<Box<dyn DiskFile>> {
        Ok(self.file(self.folder.create(number.0, bytes)?))
    }

    fn open(&self, number: FileNumber) -> io::Result<Box<dyn DiskFile>> {
        Ok(self.file(self.folder.open(number.0)?))
    }

    fn remove(&self, number: FileNumber) -> io::Result<()> {
        self.folder.remove(number.0)
    }

    fn is_slow(&self, now: Instant) -> bool {
        self.writes.is_slow(now)
    }
}

struct OpenFile {
    file: NumberedFile,
    writes: Arc<WriteTimes>,
}

impl DiskFile for OpenFile {
    fn write(&self, offset: u64, parts: &mut [IoSlice<'_>]) -> io::Result<()> {
        self.writes.measure(|| self.file.write(offset, parts))
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        self.file.read(offset, into)
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync()
    }

    fn read_ahead(&self, to: u64) {
        self.file.read_ahead(to);
    }

    fn forget_cached(&self) {
        self.file.forget_cached();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_is_slow_until_ten_seconds_after_its_last_slow_write() {
        let writes = WriteTimes::default();
        let at = |millis| Instant(1_000_000_000) + Duration::from_millis(millis);
        writes.record(at(0), at(9));
        writes.record(at(10), at(109));
        writes.record(at(1_199), at(1_209));
        assert!(!writes.is_slow(at(1_209)), "more than a second lies between two slow writes");
        writes.record(at(2_100), at(2_110));
        assert!(writes.is_slow(at(2_110)));
        writes.record(at(5_000), at(5_020));
        assert!(writes.is_slow(at(15_019)));
        assert!(!writes.is_slow(at(15_020)));
    }

    #[test]
    fn one_write_of_a_tenth_of_a_second_is_enough() {
        let writes = WriteTimes::default();
        writes.record(Instant(5), Instant(5) + STALLED_WRITE);
        assert!(writes.is_slow(Instant(5) + STALLED_WRITE));
    }
}
