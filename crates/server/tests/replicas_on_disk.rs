//! Replicas in files of the machine's disk. The tests of `backup` cover the behavior of any disk.

use backup::{Blocks, FileNumber, OpenedReplicas, Replicas};
use runtime::files::{DataDirectory, boot_id};
use server::shell::FileDisk;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use types::{ClusterId, SegmentId, ServerId, Version};
use wire::replica::{
    BootId, PieceWriter, ReadEnd, ReplicaEnd, ReplicaEpoch, ReplicaFormat, ReplicaHeader,
    ReplicaId, ReplicaKind, Stamp, piece_bytes,
};

const SEGMENT_BYTES: u32 = 1 << 20;

fn header(segment: u64) -> ReplicaHeader {
    let (log, epoch) = (ServerId(1), ReplicaEpoch(0));
    let id = ReplicaId { log, segment: SegmentId(segment), epoch };
    let (cluster, kind, boot) = (ClusterId(7), ReplicaKind::Data, BootId::default());
    ReplicaHeader {
        format: ReplicaFormat::CURRENT,
        cluster,
        id,
        kind,
        segment_bytes: SEGMENT_BYTES,
        boot,
    }
}

fn open(root: &Path) -> OpenedReplicas {
    let disk = FileDisk::open(&DataDirectory::open(root).unwrap()).unwrap();
    Replicas::open(Arc::new(disk), BootId(boot_id().unwrap())).unwrap()
}

fn write(replicas: &Replicas, segment: u64, bodies: &[&[u8]]) {
    let replica = replicas.create(header(segment)).unwrap();
    let mut writer = PieceWriter::new(replica.identity());
    for body in bodies {
        let piece = writer.next(
            body,
            replica.synced(),
            Stamp { version: Version(segment), ..Stamp::default() },
        );
        replica.append(&piece, body).unwrap();
    }
    assert_eq!(replica.sync().unwrap(), writer.length());
}

fn read(replicas: &Replicas, segment: u64) -> (Vec<u8>, ReadEnd) {
    let mut bytes = Vec::new();
    let end = replicas.read(header(segment).id, |body| bytes.extend_from_slice(body)).unwrap();
    (bytes, end)
}

#[test]
fn replicas_are_found_again_and_files_are_used_again() {
    let root = tempfile::tempdir().unwrap();
    let large = vec![5; 700_000];
    {
        let OpenedReplicas { replicas, unreadable } = open(root.path());
        assert_eq!(unreadable, []);
        write(&replicas, 1, &[b"first", &large, b"last"]);
        write(&replicas, 2, &[b"freed"]);
        replicas.free(header(2).id).unwrap();
        replicas.prepare(SEGMENT_BYTES, 1, Blocks::Written).unwrap();
        write(&replicas, 3, &[b"in the place of the second"]);
    }
    let OpenedReplicas { replicas, .. } = open(root.path());
    let found = replicas.list(ServerId(1));
    assert!(found.iter().all(|header| header.boot == replicas.boot()));
    assert_eq!(found.iter().map(|h| h.id.segment.0).collect::<Vec<_>>(), [1, 3]);
    replicas.read_ahead(header(1).id).unwrap();
    let (bytes, end) = read(&replicas, 1);
    assert_eq!(bytes, [&b"first"[..], &large, b"last"].concat());
    assert_eq!((end.end, end.stamp.version), (ReplicaEnd::Clean, Version(1)));
    assert_eq!(read(&replicas, 3).0, b"in the place of the second");
    assert_eq!(fs::read_dir(root.path().join("replicas")).unwrap().count(), 2);
}

#[test]
fn every_cut_of_a_file_leaves_whole_pieces_and_a_lost_header_is_told() {
    let root = tempfile::tempdir().unwrap();
    write(&open(root.path()).replicas, 1, &[b"first", &[7; 300], b"last"]);
    let path = root.path().join("replicas/000000");
    let whole = fs::read(&path).unwrap();
    let ends = [0, piece_bytes(5), piece_bytes(300), piece_bytes(4)];
    let pieces: Vec<usize> = ends
        .iter()
        .scan(4096, |at, bytes| {
            *at += bytes;
            Some(*at)
        })
        .collect();
    for length in (0..80).chain(4090..whole.len().min(4600)) {
        fs::write(&path, &whole[..length]).unwrap();
        let opened = open(root.path());
        if length < 64 {
            let is_empty = whole[..length].iter().all(|byte| *byte == 0);
            let unreadable: Vec<_> = opened.unreadable.iter().map(|file| file.number).collect();
            assert_eq!(unreadable, if is_empty { vec![] } else { vec![FileNumber(0)] });
            continue;
        }
        let (bytes, _) = read(&opened.replicas, 1);
        let left = pieces.iter().filter(|end| **end <= length).count().max(1);
        assert_eq!(bytes.len(), [0, 5, 305, 309][left - 1], "cut at {length}");
    }
}
