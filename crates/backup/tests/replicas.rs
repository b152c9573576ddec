//! What replicas promise, on a disk in memory: one sentence after the other.

use backup::{AppendError, MemoryDisk, Opened, Replica, Replicas};
use std::sync::Arc;
use types::{ClusterId, SegmentId, ServerId, Version};
use wire::replica::{
    BootId, End, PieceWriter, ReadEnd, ReplicaEpoch, ReplicaHeader, ReplicaId, ReplicaKind,
};

const BOOT: BootId = BootId([1; 16]);
const SEGMENT_BYTES: u32 = 1 << 16;

fn header(segment: u64) -> ReplicaHeader {
    let id = ReplicaId { log: ServerId(3), segment: SegmentId(segment), epoch: ReplicaEpoch(0) };
    let (cluster, kind) = (ClusterId(7), ReplicaKind::Data);
    ReplicaHeader { cluster, id, kind, segment_bytes: SEGMENT_BYTES, boot: BOOT }
}

fn open(disk: &MemoryDisk) -> Replicas {
    let Opened { replicas, unreadable } = Replicas::open(Arc::new(disk.clone()), BOOT).unwrap();
    assert_eq!(unreadable, []);
    replicas
}

fn append(replica: &Replica, writer: &mut PieceWriter, body: &[u8]) -> Result<(), AppendError> {
    let mut next = *writer;
    replica.append(&next.next(body, replica.stable(), Version(5)), body)?;
    *writer = next;
    Ok(())
}

fn read(replicas: &Replicas, segment: u64) -> (Vec<u8>, ReadEnd) {
    let mut bytes = Vec::new();
    let end = replicas.read(header(segment).id, |body| bytes.extend_from_slice(body)).unwrap();
    assert_eq!(bytes.len(), end.length as usize);
    assert_eq!(wire::crc32c(&bytes), end.crc);
    (bytes, end)
}

#[test]
fn what_was_appended_is_read_also_by_the_next_process() {
    let disk = MemoryDisk::new();
    let replicas = open(&disk);
    let replica = replicas.create(header(1)).unwrap();
    let mut writer = PieceWriter::new(replica.identity());
    for body in [&b"first"[..], b"second piece", &[9; 5000]] {
        append(&replica, &mut writer, body).unwrap();
    }
    assert_eq!((replica.length(), replica.stable()), (5017, 0));
    let expected = [&b"firstsecond piece"[..], &[9; 5000]].concat();
    assert_eq!(read(&replicas, 1).0, expected);
    disk.kill_process();
    let replicas = open(&disk);
    assert_eq!(replicas.list(ServerId(3)), [header(1)]);
    let (bytes, end) = read(&replicas, 1);
    assert_eq!(bytes, expected);
    assert_eq!((end.end, end.version), (End::Clean, Version(5)));
}
