//! Reads of recoveries and starts, on a memory disk that counts reads.

mod common;

use backup::{Disk, DiskFile, FileNumber, MemoryDisk, OpenedReplicas, Replicas};
use common::{BOOT, Writing, header, id, open};
use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use types::{HashRange, HashSeed, Incarnation, SegmentId, TypedValue, Version, key_hash};
use wire::entries::EntryReader;
use wire::entry::{Body, Dead, Entry};
use wire::peer::{RecoveryNext, RecoveryRead};
use wire::replica::{BootId, ReplicaEnd, ReplicaHeader, ReplicaId};

const SEED: u64 = 42;

/// A disk that counts how often a file is read from its beginning to its end.
#[derive(Clone, Debug, Default)]
struct Counting {
    disk: MemoryDisk,
    readings: Arc<AtomicUsize>,
}

struct CountingFile {
    file: Box<dyn DiskFile>,
    readings: Arc<AtomicUsize>,
}

impl Disk for Counting {
    fn list(&self) -> io::Result<Vec<FileNumber>> {
        self.disk.list()
    }

    fn create(&self, number: FileNumber, bytes: u64) -> io::Result<Box<dyn DiskFile>> {
        self.disk.create(number, bytes)
    }

    fn open(&self, number: FileNumber) -> io::Result<Box<dyn DiskFile>> {
        let file = self.disk.open(number)?;
        Ok(Box::new(CountingFile { file, readings: self.readings.clone() }))
    }

    fn remove(&self, number: FileNumber) -> io::Result<()> {
        self.disk.remove(number)
    }
}

impl DiskFile for CountingFile {
    fn write(&self, offset: u64, parts: &mut [io::IoSlice<'_>]) -> io::Result<()> {
        self.file.write(offset, parts)
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        self.file.read(offset, into)
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync()
    }

    fn read_ahead(&self, _to: u64) {
        self.readings.fetch_add(1, Ordering::Relaxed);
    }
}

impl Counting {
    fn open(&self) -> Replicas {
        let OpenedReplicas { replicas, unreadable } =
            Replicas::open(Arc::new(self.clone()), BOOT).unwrap();
        assert_eq!(unreadable, []);
        replicas
    }

    fn readings(&self) -> usize {
        self.readings.load(Ordering::Relaxed)
    }
}

fn encoded(entry: &Entry<'_>) -> Vec<u8> {
    let mut bytes = vec![0; entry.encoded_bytes()];
    entry.encode(&mut bytes);
    bytes
}

/// Returns the encoded records, tombstones and notes of a segment.
fn records(count: u64) -> Vec<Vec<u8>> {
    let entry = |number: u64| {
        let (key, value) = (format!("key {number}"), vec![7; number as usize % 90]);
        let body = match number % 7 {
            0 => Body::Tombstone { dead: Dead::Nothing },
            1 => return encoded(&Entry::note(SegmentId(number))),
            _ => Body::Object { expiry: None, replaces: None, value: TypedValue::string(&value) },
        };
        // Versions are drawn from 1.
        let (incarnation, version) = (Incarnation(1), Version(number + 1));
        encoded(&Entry { incarnation, version, key: key.as_bytes(), body })
    };
    (0..count).map(entry).collect()
}

/// Writes a replica with these entries, three per piece.
fn write(replicas: &Replicas, id: ReplicaId, segment_bytes: u32, entries: &[Vec<u8>]) {
    let header = ReplicaHeader { segment_bytes, ..header(id) };
    let mut writing = Writing::of(replicas.create(header).unwrap());
    for piece in entries.chunks(3) {
        writing.append(&piece.concat()).unwrap();
    }
}

fn read(replica: ReplicaId, range: HashRange, from: u32) -> RecoveryRead {
    RecoveryRead { replica, range, from }
}

/// Returns all entries of a range, requested in steps.
fn all_of(replicas: &Replicas, range: HashRange, bytes_max: usize) -> (Vec<u8>, RecoveryNext) {
    let (mut out, mut from) = (Vec::new(), 0);
    loop {
        let before = out.len();
        let asked = read(id(1), range, from);
        let next = replicas.entries(&asked, &HashSeed::new(SEED), bytes_max, &mut out).unwrap();
        let mut reader = EntryReader::from(&out, before);
        let first = reader.next_checked().map_or(0, |first| first.unwrap().encoded.len());
        assert!(out.len() - before <= bytes_max.max(first), "more than was asked for");
        match next {
            RecoveryNext::From(next) => {
                assert!(next > from && out.len() > before, "no way forward from {from}");
                from = next;
            }
            RecoveryNext::End { .. } | RecoveryNext::Missing => return (out, next),
        }
    }
}

#[test]
fn each_range_gets_its_entries_in_order_in_steps_of_any_size() {
    let disk = Counting::default();
    let replicas = disk.open();
    let entries = records(300);
    write(&replicas, id(1), 1 << 16, &entries);
    let whole = entries.concat();
    let end = RecoveryNext::End {
        length: whole.len() as u32,
        crc: wire::crc32c(&whole),
        version: Version(5),
    };
    for (parts, bytes_max) in
        [1, 2, 5].into_iter().flat_map(|p| [0, 100, 1000, 1 << 20].map(|b| (p, b)))
    {
        let before = disk.readings();
        for range in HashRange::ALL.divide(parts) {
            let is_in_range = |encoded: &&Vec<u8>| {
                let entry = Entry::parse(encoded).unwrap();
                let is_note = matches!(entry.body, Body::CopiesOf(_));
                !is_note && range.contains(key_hash(&HashSeed::new(SEED), entry.key))
            };
            let expected: Vec<u8> = entries.iter().filter(is_in_range).flatten().copied().collect();
            assert_eq!(all_of(&replicas, range, bytes_max), (expected, end));
        }
        assert_eq!(disk.readings(), before + 1, "it is cached until every reader has its entries");
    }
    let mut out = Vec::new();
    let behind = read(id(1), HashRange::ALL, whole.len() as u32 + 8);
    let next = replicas.entries(&behind, &HashSeed::new(SEED), 100, &mut out).unwrap();
    assert_eq!((next, out.len()), (end, 0), "the replica is shorter than was asked for");
}

#[test]
fn many_who_ask_at_once_have_it_read_once() {
    let disk = Counting::default();
    let replicas = disk.open();
    let entries = records(1000);
    write(&replicas, id(1), 1 << 17, &entries);
    let parts = HashRange::ALL.divide(4);
    let all = std::thread::scope(|scope| {
        let replicas = &replicas;
        let read = |range| scope.spawn(move || all_of(replicas, range, 1000).0.len());
        let readers: Vec<_> = parts.into_iter().map(read).collect();
        readers.into_iter().map(|reader| reader.join().unwrap()).sum::<usize>()
    });
    let is_note = |bytes: &&Vec<u8>| matches!(Entry::parse(bytes).unwrap().body, Body::CopiesOf(_));
    let notes: usize = entries.iter().filter(is_note).map(Vec::len).sum();
    assert_eq!(all + notes, entries.concat().len());
    assert_eq!(disk.readings(), 1);
    all_of(&replicas, HashRange::ALL.divide(4)[0], 1000);
    assert_eq!(disk.readings(), 2, "every reader had its entries");
}

#[test]
fn what_was_not_asked_for_lately_is_read_again() {
    let disk = Counting::default();
    let replicas = disk.open();
    let ask = |segment: u64| {
        // One of its entries.
        let asked = read(id(segment), HashRange::ALL, 0);
        replicas.entries(&asked, &HashSeed::new(SEED), 1, &mut Vec::new()).unwrap();
        disk.readings()
    };
    // The cache has room for two of these.
    (1..=3).for_each(|segment| write(&replicas, id(segment), 64 << 20, &records(30)));
    assert_eq!([ask(1), ask(2), ask(1), ask(2)], [1, 2, 2, 2]);
    assert_eq!([ask(1), ask(3), ask(1)], [2, 3, 3], "2 was asked for the longest time ago");
    assert_eq!(ask(2), 4);
    replicas.free(id(2)).unwrap();
    let asked = read(id(2), HashRange::ALL, 0);
    let missing = replicas.entries(&asked, &HashSeed::new(SEED), 100, &mut Vec::new());
    assert_eq!(missing.unwrap_err().kind(), ErrorKind::NotFound, "it is freed");
    write(&replicas, id(2), 64 << 20, &records(30));
    assert_eq!(ask(2), 5, "there is another one under its name");
}

#[test]
fn bytes_that_are_no_entry_are_told_with_their_place() {
    let replicas = open(&MemoryDisk::new());
    let mut entries = records(12);
    let place: usize = entries[..8].iter().map(Vec::len).sum();
    entries[8][30] ^= 1;
    write(&replicas, id(1), 1 << 16, &entries);
    let asked = read(id(1), HashRange::ALL, 0);
    let error = replicas.entries(&asked, &HashSeed::new(SEED), 100, &mut Vec::new()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidData);
    let expected = format!(
        "{} is damaged: its pieces are intact, but at byte {place} of the segment checksum of log \
         entry is wrong",
        id(1)
    );
    assert_eq!(error.to_string(), expected);
}

#[test]
fn a_start_finds_how_much_of_each_replica_is_whole() {
    let disk = MemoryDisk::new();
    let replicas = open(&disk);
    let mut first = Writing::new(&replicas, id(1));
    first.append(b"kept").unwrap();
    first.replica.sync().unwrap();
    first.append(b"lost").unwrap();
    Writing::new(&replicas, id(2)).append(b"never synced").unwrap();
    let lengths = |replicas: &Replicas| -> Vec<(ReplicaId, u32)> {
        replicas.ids().into_iter().map(|id| (id, replicas.measure(id).unwrap().1.length)).collect()
    };
    assert_eq!(lengths(&replicas), [(id(1), 8), (id(2), 12)]);
    disk.power_cut(&mut |_| 0);
    let replicas = common::try_open(&disk, BootId([2; 16])).unwrap().replicas;
    assert_eq!(lengths(&replicas), [(id(1), 4), (id(2), 0)]);
}

#[test]
fn whole_pieces_are_read_one_by_one() {
    let disk = MemoryDisk::new();
    let replicas = open(&disk);
    let mut writing = Writing::new(&replicas, id(1));
    for body in [&b"a snapshot"[..], b"an entry", b"torn"] {
        writing.append(body).unwrap();
    }
    let file = disk.list().unwrap()[0];
    let at = disk.contents(file).windows(4).position(|bytes| bytes == b"torn").unwrap();
    disk.damage(file, at, 1);
    let (bodies, end) = replicas.bodies(id(1)).unwrap();
    assert_eq!(bodies, [b"a snapshot".to_vec(), b"an entry".to_vec()]);
    assert_eq!((end.length, end.end), (18, ReplicaEnd::Torn));
}
