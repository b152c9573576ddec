//! Read-only backups: their replicas of a dead server's log, and their answers.

use std::collections::BTreeMap;
use std::ops::Range;
use types::{HashRange, OwnershipEpoch, SegmentId, ServerId, Slot, UnixMillis, Version};
use wire::control::{RecoveryLog, RecoveryPartition, RecoverySegment};
use wire::peer::{RecoveryNext, RecoveryRead, RecoveryReply};
use wire::replica::{ReplicaEpoch, ReplicaId};

/// The dead server of the log.
pub(crate) const DEAD: ServerId = ServerId(1);

/// Bytes that a backup sends at once.
pub(crate) const READ_BYTES: u32 = 100;

/// A replica on a disk. Every multiple of 10 is the offset of an entry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Replica {
    pub(crate) length: u32,
    pub(crate) crc: u32,
    /// Set if its payloads can be replayed.
    pub(crate) is_right: bool,
    /// Set if it has entries of the range.
    pub(crate) has_entries: bool,
}

/// The origin of a reply's entries.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Entries {
    pub(crate) from: (ServerId, SegmentId),
    pub(crate) bytes: Range<u32>,
    pub(crate) is_right: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Backups {
    pub(crate) replicas: BTreeMap<(ServerId, SegmentId, ReplicaEpoch), Replica>,
}

impl Backups {
    /// Returns the answer of a server with an intact disk.
    pub(crate) fn answer(
        &self,
        server: ServerId,
        read: &RecoveryRead,
    ) -> (RecoveryReply, Option<Entries>) {
        let RecoveryRead { replica, range, from } = *read;
        let ReplicaId { log, segment, epoch } = replica;
        let stored = self.replicas.get(&(server, segment, epoch)).filter(|_| log == DEAD);
        let reply = |next| RecoveryReply { replica, range, from, next };
        let Some(stored) = stored else { return (reply(RecoveryNext::Missing), None) };
        let Replica { length, crc, is_right, has_entries } = *stored;
        let to = length.min(from + READ_BYTES);
        let bytes = from..to;
        let entries = Entries { from: (server, segment), bytes, is_right };
        let next = match to < length {
            true => RecoveryNext::From(to),
            false => RecoveryNext::End { length, crc, version: Version(segment.0 * 1000) },
        };
        (reply(next), Some(entries).filter(|_| has_entries && from < to))
    }
}

pub(crate) fn range() -> HashRange {
    HashRange::of_slots(Slot(0), Slot(99))
}

/// Returns a message of the coordinator.
pub(crate) fn part(list: u64, total: usize, segments: Vec<RecoverySegment>) -> RecoveryPartition {
    RecoveryPartition {
        range: range(),
        epoch: OwnershipEpoch(9),
        incarnations: Vec::new(),
        keeps: false,
        clock_floor: UnixMillis(0),
        logs: vec![RecoveryLog { dead: DEAD, old_incarnations: Vec::new() }],
        list,
        segments_total: total as u32,
        segments,
    }
}
