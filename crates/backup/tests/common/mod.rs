//! Test helpers: replicas of one log on a memory disk.

#![allow(dead_code, reason = "each test uses a part of it")]

use backup::{AppendError, Disk, MemoryDisk, OpenedReplicas, ReplicaWriter, Replicas};
use std::sync::Arc;
use types::{ClusterId, SegmentId, ServerId, UnixMillis, Version};
use wire::replica::{
    BootId, PieceWriter, ReadEnd, ReplicaEpoch, ReplicaFormat, ReplicaHeader, ReplicaId,
    ReplicaKind, Stamp,
};

pub(crate) const LOG: ServerId = ServerId(3);
pub(crate) const BOOT: BootId = BootId([1; 16]);
pub(crate) const SEGMENT_BYTES: u32 = 1 << 16;

pub(crate) fn id(segment: u64) -> ReplicaId {
    ReplicaId { log: LOG, segment: SegmentId(segment), epoch: ReplicaEpoch(0) }
}

/// Version counter and clock of the server that writes the pieces.
pub(crate) const STAMP: Stamp = Stamp { version: Version(5), clock: UnixMillis(6) };

pub(crate) fn header(id: ReplicaId) -> ReplicaHeader {
    let (cluster, kind) = (ClusterId(7), ReplicaKind::Data);
    ReplicaHeader {
        format: ReplicaFormat::CURRENT,
        cluster,
        id,
        kind,
        segment_bytes: SEGMENT_BYTES,
        boot: BOOT,
    }
}

pub(crate) fn try_open(disk: &MemoryDisk, boot: BootId) -> std::io::Result<OpenedReplicas> {
    Replicas::open(Arc::new(disk.clone()), boot)
}

pub(crate) fn open(disk: &MemoryDisk) -> Replicas {
    let OpenedReplicas { replicas, unreadable } = try_open(disk, BOOT).unwrap();
    assert_eq!(unreadable, []);
    replicas
}

pub(crate) fn files(disk: &MemoryDisk) -> usize {
    disk.list().unwrap().len()
}

/// A replica with the writer of its pieces.
pub(crate) struct Writing {
    pub(crate) replica: Arc<ReplicaWriter>,
    pub(crate) writer: PieceWriter,
}

impl Writing {
    pub(crate) fn new(replicas: &Replicas, id: ReplicaId) -> Writing {
        Writing::of(replicas.create(header(id)).unwrap())
    }

    pub(crate) fn of(replica: Arc<ReplicaWriter>) -> Writing {
        let writer = PieceWriter::new(replica.identity());
        Writing { replica, writer }
    }

    pub(crate) fn append(&mut self, body: &[u8]) -> Result<(), AppendError> {
        let mut next = self.writer;
        self.replica.append(&next.next(body, self.replica.synced(), STAMP), body)?;
        self.writer = next;
        Ok(())
    }
}

pub(crate) fn read(replicas: &Replicas, id: ReplicaId) -> (Vec<u8>, ReadEnd) {
    let mut bytes = Vec::new();
    let end = replicas.read(id, |body| bytes.extend_from_slice(body)).unwrap();
    assert_eq!(bytes.len(), end.length as usize);
    assert_eq!(wire::crc32c(&bytes), end.crc);
    (bytes, end)
}
