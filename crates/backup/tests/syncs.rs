//! A failed sync, which the system reports only once, to one of the concurrent callers.

mod common;

use backup::{Disk, DiskFile, Faults, FileNumber, MemoryDisk, Replicas};
use common::{BOOT, LOG, Writing, id, open};
use std::io::{self, IoSlice};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// A disk on which one sync fails, on request.
#[derive(Clone, Debug, Default)]
struct FailsOnce {
    disk: MemoryDisk,
    fails: Arc<AtomicBool>,
}

struct File {
    file: Box<dyn DiskFile>,
    fails: Arc<AtomicBool>,
}

impl Disk for FailsOnce {
    fn list(&self) -> io::Result<Vec<FileNumber>> {
        self.disk.list()
    }

    fn create(&self, number: FileNumber, bytes: u64) -> io::Result<Box<dyn DiskFile>> {
        let file = self.disk.create(number, bytes)?;
        Ok(Box::new(File { file, fails: Arc::clone(&self.fails) }))
    }

    fn open(&self, number: FileNumber) -> io::Result<Box<dyn DiskFile>> {
        self.disk.open(number)
    }

    fn remove(&self, number: FileNumber) -> io::Result<()> {
        self.disk.remove(number)
    }
}

impl DiskFile for File {
    fn write(&self, offset: u64, parts: &mut [IoSlice<'_>]) -> io::Result<()> {
        self.file.write(offset, parts)
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        self.file.read(offset, into)
    }

    fn sync(&self) -> io::Result<()> {
        if self.fails.swap(false, Ordering::AcqRel) {
            // Gives other syncs time to succeed.
            (0..100).for_each(|_| thread::yield_now());
            return Err(io::Error::other("the disk has failed"));
        }
        self.file.sync()
    }

    fn read_ahead(&self, _to: u64) {}
}

#[test]
fn of_several_syncs_at_a_time_none_succeeds_if_one_of_them_fails() {
    let disk = FailsOnce::default();
    let replicas = Replicas::open(Arc::new(disk.clone()), BOOT).unwrap().replicas;
    for segment in 0..200 {
        let mut writing = Writing::new(&replicas, id(segment));
        writing.append(b"will it be synced?").unwrap();
        disk.fails.store(true, Ordering::Release);
        let succeeded: usize = thread::scope(|scope| {
            let sync = || usize::from(writing.replica.sync().is_ok());
            let syncs: Vec<_> = (0..3).map(|_| scope.spawn(sync)).collect();
            syncs.into_iter().map(|sync| sync.join().unwrap()).sum()
        });
        assert_eq!((succeeded, writing.replica.synced()), (0, 0), "segment {segment}");
    }
}

#[test]
fn a_replica_is_measured_without_the_bytes_that_a_failed_sync_has_lost() {
    let disk = MemoryDisk::new();
    let mut writing = Writing::new(&open(&disk), id(1));
    writing.append(b"synced").unwrap();
    writing.replica.sync().unwrap();
    writing.append(b"lost").unwrap();
    disk.kill_process();
    let replicas = open(&disk);
    let measured = || replicas.measure(id(1)).map(|(may_be_short, end)| (may_be_short, end.length));
    assert_eq!(measured().unwrap(), (false, 10), "the system has all bytes");
    disk.set_faults(Faults { syncs_fail: true, ..Faults::default() });
    assert!(replicas.sync(id(1)).is_err());
    disk.set_faults(Faults::default());
    replicas.sync(id(1)).expect("a disk without faults");
    assert_eq!(measured().unwrap(), (true, 6));
    assert_eq!(replicas.list_short(LOG), [id(1)].into());
}

#[test]
fn the_bytes_that_a_failed_sync_has_lost_do_not_count_as_damage() {
    let disk = MemoryDisk::new();
    let replicas = open(&disk);
    let mut writing = Writing::new(&replicas, id(1));
    writing.append(b"lost").unwrap();
    disk.set_faults(Faults { syncs_fail: true, ..Faults::default() });
    assert!(writing.replica.sync().is_err());
    assert!(replicas.scrub(id(1)).is_err(), "its writer reports the loss");
}
