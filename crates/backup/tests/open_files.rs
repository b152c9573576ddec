//! The limit on open files, and replicas with closed files.

mod common;

use backup::{Disk, DiskFile, FileNumber, MemoryDisk, Replicas};
use common::{BOOT, Writing, header, id, read};
use std::io::{self, IoSlice};
use std::sync::Arc;

/// A disk that counts its open files.
#[derive(Clone, Debug, Default)]
struct Counting {
    disk: MemoryDisk,
    open: Arc<()>,
}

impl Counting {
    fn open_files(&self) -> usize {
        Arc::strong_count(&self.open) - 2
    }

    fn counted(&self, file: Box<dyn DiskFile>) -> Box<dyn DiskFile> {
        Box::new(Counted { file, _open: Arc::clone(&self.open) })
    }
}

struct Counted {
    file: Box<dyn DiskFile>,
    _open: Arc<()>,
}

impl Disk for Counting {
    fn list(&self) -> io::Result<Vec<FileNumber>> {
        self.disk.list()
    }

    fn create(&self, number: FileNumber, bytes: u64) -> io::Result<Box<dyn DiskFile>> {
        self.disk.create(number, bytes).map(|file| self.counted(file))
    }

    fn open(&self, number: FileNumber) -> io::Result<Box<dyn DiskFile>> {
        self.disk.open(number).map(|file| self.counted(file))
    }

    fn remove(&self, number: FileNumber) -> io::Result<()> {
        self.disk.remove(number)
    }
}

impl DiskFile for Counted {
    fn write(&self, offset: u64, parts: &mut [IoSlice<'_>]) -> io::Result<()> {
        self.file.write(offset, parts)
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
}

const MAX: usize = 4;

fn open(disk: &Counting, are_synced: bool) -> Replicas {
    let replicas = Replicas::open(Arc::new(disk.clone()), BOOT).unwrap().replicas;
    replicas.limit_open_files(MAX, are_synced);
    replicas
}

#[test]
fn many_replicas_need_few_descriptors_and_each_takes_pieces_at_any_time() {
    let disk = Counting::default();
    let replicas = open(&disk, true);
    let mut all: Vec<Writing> = (0..40).map(|it| Writing::new(&replicas, id(it))).collect();
    for round in 1..=3 {
        for writing in &mut all {
            writing.append(&[round; 900]).unwrap();
            assert_eq!(writing.replica.sync().unwrap(), u32::from(round) * 900);
            assert!(disk.open_files() <= MAX, "{} are open", disk.open_files());
            assert!(replicas.open_files() <= MAX);
        }
    }
    drop(all);
    assert_eq!((disk.open_files(), replicas.open_files()), (0, 0));
    for number in 0..40 {
        let (bytes, _) = read(&replicas, id(number));
        assert_eq!(bytes, [[1; 900], [2; 900], [3; 900]].concat());
    }
}

#[test]
fn what_is_still_to_be_synced_stays_open() {
    let disk = Counting::default();
    let replicas = open(&disk, true);
    let mut all: Vec<Writing> = (0..10).map(|it| Writing::new(&replicas, id(it))).collect();
    for writing in &mut all {
        writing.append(&[1; 100]).unwrap();
    }
    assert_eq!(disk.open_files(), all.len(), "all have bytes that are not synced");
    for writing in &all {
        writing.replica.sync().unwrap();
    }
    let more: Vec<Writing> = (10..13).map(|it| Writing::new(&replicas, id(it))).collect();
    assert_eq!((disk.open_files(), more.len()), (MAX, 3));
}

#[test]
fn where_nobody_syncs_nothing_stays_open_for_it() {
    let disk = Counting::default();
    let replicas = open(&disk, false);
    let mut all: Vec<Writing> = (0..10).map(|it| Writing::new(&replicas, id(it))).collect();
    for writing in &mut all {
        writing.append(&[1; 100]).unwrap();
        assert!(disk.open_files() <= MAX);
    }
    // A sync opens a closed file.
    for writing in &all {
        assert_eq!(writing.replica.sync().unwrap(), 100);
    }
    drop(all);
    disk.disk.power_cut(&mut |_| 0);
    let again = Replicas::open(Arc::new(disk.clone()), BOOT).unwrap().replicas;
    assert_eq!(again.list(header(id(0)).id.log).len(), 10);
    assert_eq!(read(&again, id(9)).0, [1; 100]);
}
