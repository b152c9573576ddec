//! Messages between two servers, with the conclusions that each permits to its receiver.
//! `protocols::migration` and `protocols::replication` describe the whole protocols.

mod counts;

pub use counts::{BadCounts, RecordCounts};

use crate::bounded::at_most;
use crate::frame::{MESSAGE_BYTES_MAX, PAYLOAD_BYTES_MAX};
use crate::replica::{PIECE_HEADER_BYTES, ReplicaId, ReplicaKind};
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};
use types::limits::{RECORD_BYTES_MAX, SEGMENT_BYTES, TABLES_MAX};
use types::{
    HashRange, Instant, KeyHash, MigrationId, OwnershipEpoch, TableId, UnixMillis, Version,
};

/// A message on a bus connection between servers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PeerMessage {
    /// Source to target, repeated until answered: the source no longer serves the range.
    Flip(Flip),
    /// Target to source: the final outcome of the flip.
    FlipAnswer {
        /// The migration that was flipped.
        migration: MigrationId,
        /// `true`: the target serves the range. `false`: it never will under this migration.
        accepted: bool,
    },
    /// Target to source: a request for the records of a partition from a cursor on.
    Pull(Pull),
    /// Source to target, with a batch as payload.
    PullReply(PullReply),
    /// Target to source: a request for records that operations wait for.
    PriorityPull(PriorityPull),
    /// Source to target, with a batch as payload.
    PriorityReply(PriorityReply),
    /// Master to backup, with the bytes of a piece as payload.
    Append(Append),
    /// Backup to master: the answer to an append, and another one when more bytes are synced.
    Appended(Appended),
    /// Master to backup, repeated until answered: these replicas of the master's log are no
    /// longer needed. At most [`REPLICAS_MAX`].
    Release {
        /// The replicas.
        #[serde(deserialize_with = "at_most::<_, _, REPLICAS_MAX>")]
        replicas: Vec<ReplicaId>,
    },
    /// Backup to master: these replicas are not here any more.
    Released {
        /// The replicas.
        #[serde(deserialize_with = "at_most::<_, _, REPLICAS_MAX>")]
        replicas: Vec<ReplicaId>,
    },
    /// Backup to master: no message about these replicas has arrived for long. The answer is a
    /// release of those that are not needed. At most [`REPLICAS_MAX`].
    Needed {
        /// The replicas.
        #[serde(deserialize_with = "at_most::<_, _, REPLICAS_MAX>")]
        replicas: Vec<ReplicaId>,
    },
    /// Recovery master to backup: a request for a replica's entries of a range.
    RecoveryRead(RecoveryRead),
    /// Backup to recovery master, with whole log entries as payload.
    RecoveryReply(RecoveryReply),
    /// To any server: a heartbeat request, answered at once by the reactor that reads it.
    Ping,
    /// Answer to a [`PeerMessage::Ping`].
    Pong,
}

/// Maximum replicas in one message: 30 KB of ids, however many replicas a backup holds.
pub const REPLICAS_MAX: usize = 1024;

/// Maximum bytes of one pull; a source clamps larger requests to this.
pub const PULL_BYTES_MAX: u32 = 8 << 20;

/// Bytes per table by which the reply to a pull may exceed twice the requested bytes.
pub const PULL_OVERSHOOT_MAX: usize = 64 << 10;

/// Maximum hashes of one priority pull.
pub const PRIORITY_HASHES_MAX: usize = 1024;

/// Bytes at which the answer to a priority pull ends; the remaining hashes are requested again.
pub const PRIORITY_BYTES_MAX: usize = 1 << 20;

/// Maximum bytes of an encoded number, at seven bits per byte.
const NUMBER: usize = 10;
/// Upper bound of the bytes of a message's other fields.
const REST: usize = 1 << 10;

const _: () = assert!(REPLICAS_MAX * 3 * NUMBER + REST <= MESSAGE_BYTES_MAX);
const _: () = assert!(PRIORITY_HASHES_MAX * (NUMBER + 2) + REST <= MESSAGE_BYTES_MAX);
// The reply to a pull, and to a priority pull, which ends after the records of one hash and table.
const _: () = assert!(
    2 * PULL_BYTES_MAX as usize + TABLES_MAX * PULL_OVERSHOOT_MAX + RECORD_BYTES_MAX
        <= PAYLOAD_BYTES_MAX
);
const _: () = assert!(PRIORITY_BYTES_MAX + 2 * RECORD_BYTES_MAX <= PAYLOAD_BYTES_MAX);

/// The transfer of ownership. After sending it, the source answers no operation on the range
/// until it knows the outcome.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Flip {
    /// The migration.
    pub migration: MigrationId,
    /// The range that moves.
    pub range: HashRange,
    /// Epoch under which the source owned the range.
    pub source_epoch: OwnershipEpoch,
    /// Epoch under which the target will own it.
    pub target_epoch: OwnershipEpoch,
    /// Upper bound of all versions that the source has given to records of the range. The target
    /// draws higher versions only.
    pub version_floor: Version,
    /// The source's last expiry clock of the range, from which the target continues.
    pub expiry_clock: UnixMillis,
    /// Number of records per table and slot.
    pub records: RecordCounts,
}

/// A request for the records of a frozen range. The source keeps no state about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pull {
    /// The migration.
    pub migration: MigrationId,
    /// The target's epoch.
    pub epoch: OwnershipEpoch,
    /// Partition of the range, from 0; echoed in the reply.
    pub partition: u16,
    /// First hash wanted.
    pub cursor: KeyHash,
    /// Last hash of the partition.
    pub last: KeyHash,
    /// Bytes at which the reply should end, at most [`PULL_BYTES_MAX`]. It continues to the end
    /// of its bucket if that is near, and contains the records of at least one hash.
    pub bytes_max: u32,
}

/// All records of the source with a hash from `cursor` up to, but excluding, `next`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PullReply {
    /// The migration.
    pub migration: MigrationId,
    /// The target's epoch.
    pub epoch: OwnershipEpoch,
    /// The partition, from the request.
    pub partition: u16,
    /// The cursor, from the request.
    pub cursor: KeyHash,
    /// Start of the next pull; `None`: the partition ends with this reply.
    pub next: Option<KeyHash>,
}

/// A request for all records with these hashes, ahead of all other traffic.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PriorityPull {
    /// The migration.
    pub migration: MigrationId,
    /// The target's epoch.
    pub epoch: OwnershipEpoch,
    /// Request number, echoed in the reply. A late reply to a repeated request is harmless.
    pub request: u64,
    /// The wanted hashes, at most [`PRIORITY_HASHES_MAX`].
    #[serde(deserialize_with = "at_most::<_, _, PRIORITY_HASHES_MAX>")]
    pub hashes: Vec<(TableId, KeyHash)>,
}

/// The answers for the first hashes of a request; the payload contains the records that were
/// found. The target requests the remaining hashes again: the records of the answered ones filled
/// the reply.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PriorityReply {
    /// The migration.
    pub migration: MigrationId,
    /// The target's epoch.
    pub epoch: OwnershipEpoch,
    /// Request number, from the request.
    pub request: u64,
    /// The answers in the order of the request; never empty.
    #[serde(deserialize_with = "at_most::<_, _, PRIORITY_HASHES_MAX>")]
    pub answers: Vec<(TableId, KeyHash, PriorityAnswer)>,
}

/// The state of one full hash at the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PriorityAnswer {
    /// The source has records, all of them in the payload.
    Records,
    /// The source has no record and has forgotten none, so no pull will bring one either.
    Absent,
    /// The source has begun to forget here: any record is at the target by now.
    Gone,
}

/// Appends bytes to a replica; without bytes, asks for the replica's length.
///
/// The first append creates the replica. A backup that answers it other than by a refusal had not
/// been told to fence this log when the append was sent. The master's read lease relies on that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Append {
    /// The replica of the sender's log.
    pub replica: ReplicaId,
    /// The kind of its content.
    pub kind: ReplicaKind,
    /// Bytes of a full segment, which the backup reserves. At most [`SEGMENT_BYTES`].
    #[serde(deserialize_with = "segment_bytes")]
    pub segment_bytes: u32,
    /// Offset of the payload in the segment. The replica has acknowledged all bytes before it.
    pub from: u32,
    /// Set if the backup syncs what it has without delay: the segment is closed and ends with the
    /// payload, or memory of the sender is reusable only after the sync.
    pub syncs_at_once: bool,
    /// Send time by the sender's clock; echoed in the answer.
    pub sent: Instant,
    /// The sender's expiry clock: no reply so far was judged by a later time.
    pub clock: UnixMillis,
    /// Header of the piece; `None` without a payload.
    #[serde(with = "header_bytes")]
    pub header: Option<[u8; PIECE_HEADER_BYTES]>,
}

/// Serialization of a piece's header: serde has no implementation for arrays of that length.
mod header_bytes {
    use crate::replica::PIECE_HEADER_BYTES;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    type Bytes = [u8; PIECE_HEADER_BYTES];
    type Rows = [[u8; 8]; PIECE_HEADER_BYTES / 8];

    pub(super) fn serialize<S: Serializer>(
        header: &Option<Bytes>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let rows = |bytes: &Bytes| -> Rows {
            std::array::from_fn(|row| std::array::from_fn(|at| bytes[8 * row + at]))
        };
        header.as_ref().map(rows).serialize(serializer)
    }

    pub(super) fn deserialize<'d, D: Deserializer<'d>>(
        deserializer: D,
    ) -> Result<Option<Bytes>, D::Error> {
        let rows = Option::<Rows>::deserialize(deserializer)?;
        Ok(rows.map(|rows| std::array::from_fn(|at| rows[at / 8][at % 8])))
    }
}

/// Decodes the size of a segment and rejects sizes that no log has.
fn segment_bytes<'de, D: Deserializer<'de>>(decoder: D) -> Result<u32, D::Error> {
    let bytes = u32::deserialize(decoder)?;
    let is_size = (1..=SEGMENT_BYTES).contains(&(bytes as usize));
    is_size.then_some(bytes).ok_or_else(|| D::Error::custom("no log has segments of this size"))
}

/// The answer to an append.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Appended {
    /// The replica, from the request.
    pub replica: ReplicaId,
    /// Send time of the newest append received; the result was valid when that append arrived.
    pub sent: Instant,
    /// The state of the replica, or a refusal.
    pub result: AppendResult,
}

/// The state of a replica as reported by its backup.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AppendResult {
    /// The replica exists.
    Has {
        /// Length of the replica in bytes of its segment.
        length: u32,
        /// The part of these bytes that counts as synced in the configured durability mode.
        synced: u32,
    },
    /// The replica takes no bytes.
    Refused(AppendRefusal),
}

/// The reason why a backup does not take a piece. Each is permanent for the replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AppendRefusal {
    /// The disk had no room to create the replica; nothing of it exists.
    Full,
    /// The replica cannot be written any more. Its existing bytes may or may not be there.
    Failed,
    /// The log is fenced: its master was declared dead.
    Fenced,
}

/// A request for the entries of a range in a segment of a dead server's log, from an offset on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecoveryRead {
    /// The replica.
    pub replica: ReplicaId,
    /// The range of the wanted entries.
    pub range: HashRange,
    /// Offset in the segment at which to begin, which is the start of an entry.
    pub from: u32,
}

/// All entries of the range from `from` up to the position in `next`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecoveryReply {
    /// The replica, from the request.
    pub replica: ReplicaId,
    /// The range, from the request.
    pub range: HashRange,
    /// The offset, from the request.
    pub from: u32,
    /// The position after these entries.
    pub next: RecoveryNext,
}

/// The continuation after the entries of a [`RecoveryReply`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RecoveryNext {
    /// More entries follow, from this offset.
    From(u32),
    /// The replica ends.
    End {
        /// Length of the replica in bytes of its segment.
        length: u32,
        /// Checksum of these bytes.
        crc: u32,
        /// Upper bound of the versions in these bytes.
        version: Version,
    },
    /// The replica does not exist here, or cannot be read.
    Missing,
}
