//! Messages between two servers. What each permits its receiver to conclude stands with it; the
//! protocols as wholes are told in `protocols::migration` and `protocols::replication`.

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

/// One message on a bus connection between servers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PeerMessage {
    /// Source to target, repeated until answered: I serve nothing of the range any more.
    Flip(Flip),
    /// Target to source: how the flip ended, for good.
    FlipAnswer {
        /// The migration that was flipped.
        migration: MigrationId,
        /// `true`: the target serves the range. `false`: it never will under this migration.
        accepted: bool,
    },
    /// Target to source: the records of a partition from a cursor on.
    Pull(Pull),
    /// Source to target, with a batch as payload.
    PullReply(PullReply),
    /// Target to source: records that operations wait for.
    PriorityPull(PriorityPull),
    /// Source to target, with a batch as payload.
    PriorityReply(PriorityReply),
    /// Master to backup, with the bytes of a piece as payload.
    Append(Append),
    /// Backup to master: answer to an append, and again when more has become stable.
    Appended(Appended),
    /// Master to backup, repeated until answered: these replicas of my log are not needed. Not more
    /// than [`REPLICAS_MAX`].
    Release {
        /// Which.
        #[serde(deserialize_with = "at_most::<_, _, REPLICAS_MAX>")]
        replicas: Vec<ReplicaId>,
    },
    /// Backup to master: these replicas are not here any more.
    Released {
        /// Which.
        #[serde(deserialize_with = "at_most::<_, _, REPLICAS_MAX>")]
        replicas: Vec<ReplicaId>,
    },
    /// Backup to master: nothing was heard about these replicas of your log for long. The answer is
    /// a release of those that are not needed. Not more than [`REPLICAS_MAX`].
    Needed {
        /// Which.
        #[serde(deserialize_with = "at_most::<_, _, REPLICAS_MAX>")]
        replicas: Vec<ReplicaId>,
    },
    /// Recovery master to backup: what a replica holds of a range.
    RecoveryRead(RecoveryRead),
    /// Backup to recovery master, with whole log entries as payload.
    RecoveryReply(RecoveryReply),
    /// To any server: are you there? Answered at once, by the reactor that reads it.
    Ping,
    /// Answer to a [`PeerMessage::Ping`].
    Pong,
}

/// Most replicas of one message: 30 KB of names, however many a backup holds.
pub const REPLICAS_MAX: usize = 1024;

/// Most bytes of one pull: what a source that is asked for more brings.
pub const PULL_BYTES_MAX: u32 = 8 << 20;

/// Bytes by which a pull's reply may go beyond twice what was asked for, for each table.
pub const PULL_OVERSHOOT_MAX: usize = 64 << 10;

/// Most hashes of one priority pull.
pub const PRIORITY_HASHES_MAX: usize = 1024;

/// Bytes at which the answer to a priority pull ends: the hashes behind are asked for again.
pub const PRIORITY_BYTES_MAX: usize = 1 << 20;

/// Most bytes of a number in a message: seven bits to a byte.
const NUMBER: usize = 10;
/// The other fields of a message take less.
const REST: usize = 1 << 10;

const _: () = assert!(REPLICAS_MAX * 3 * NUMBER + REST <= MESSAGE_BYTES_MAX);
const _: () = assert!(PRIORITY_HASHES_MAX * (NUMBER + 2) + REST <= MESSAGE_BYTES_MAX);
// A reply to a pull, and to a priority pull, which ends behind the records of one hash in a table.
const _: () = assert!(
    2 * PULL_BYTES_MAX as usize + TABLES_MAX * PULL_OVERSHOOT_MAX + RECORD_BYTES_MAX
        <= PAYLOAD_BYTES_MAX
);
const _: () = assert!(PRIORITY_BYTES_MAX + 2 * RECORD_BYTES_MAX <= PAYLOAD_BYTES_MAX);

/// The change of owner. After it has been sent, the source answers no operation on the range until
/// it knows the outcome.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Flip {
    /// The migration.
    pub migration: MigrationId,
    /// What moves.
    pub range: HashRange,
    /// Epoch under which the source owned the range.
    pub source_epoch: OwnershipEpoch,
    /// Epoch under which the target will own it.
    pub target_epoch: OwnershipEpoch,
    /// Not below any version that the source has given to a record of the range: the target draws
    /// higher ones only.
    pub version_floor: Version,
    /// The clock by which the source last judged expiry in the range: there it goes on from here.
    pub expiry_clock: UnixMillis,
    /// Records per table and slot.
    pub records: RecordCounts,
}

/// Asks for the records of a frozen range. The source keeps no state about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pull {
    /// The migration.
    pub migration: MigrationId,
    /// The target's epoch.
    pub epoch: OwnershipEpoch,
    /// Partition of the range, from 0: returned as it came.
    pub partition: u16,
    /// First hash wanted.
    pub cursor: KeyHash,
    /// Last hash of the partition.
    pub last: KeyHash,
    /// Bytes at which the reply ends, at most [`PULL_BYTES_MAX`] of them. It goes on to the end of
    /// its bucket if that is near, and has the records of at least one hash.
    pub bytes_max: u32,
}

/// Every record of the source with a hash from `cursor` up to, not including, `next`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PullReply {
    /// The migration.
    pub migration: MigrationId,
    /// The target's epoch.
    pub epoch: OwnershipEpoch,
    /// As asked.
    pub partition: u16,
    /// As asked.
    pub cursor: KeyHash,
    /// Where the next pull begins; `None`: the partition ends with this reply.
    pub next: Option<KeyHash>,
}

/// Asks for all records with these hashes, ahead of everything else.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PriorityPull {
    /// The migration.
    pub migration: MigrationId,
    /// The target's epoch.
    pub epoch: OwnershipEpoch,
    /// Number of the request, returned as it came: a late reply to a repeated request is harmless.
    pub request: u64,
    /// What is wanted: not more than [`PRIORITY_HASHES_MAX`].
    #[serde(deserialize_with = "at_most::<_, _, PRIORITY_HASHES_MAX>")]
    pub hashes: Vec<(TableId, KeyHash)>,
}

/// One answer to each of the first hashes asked for; the records of the found ones are the payload.
/// Those that are not answered are to be asked for again: the records ahead of them were many.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PriorityReply {
    /// The migration.
    pub migration: MigrationId,
    /// The target's epoch.
    pub epoch: OwnershipEpoch,
    /// As asked.
    pub request: u64,
    /// In the order asked. Never empty.
    #[serde(deserialize_with = "at_most::<_, _, PRIORITY_HASHES_MAX>")]
    pub answers: Vec<(TableId, KeyHash, PriorityAnswer)>,
}

/// What the source holds under one full hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PriorityAnswer {
    /// Records, all of them in the payload.
    Records,
    /// No record, and it has forgotten none there: nothing will arrive by a pull either.
    Absent,
    /// It has begun to forget there: whatever existed is at the target by now.
    Gone,
}

/// Gives a replica the bytes that come next; without any, asks what it has.
///
/// The first one makes the replica. Whoever answers it (other than by a refusal) was not told to
/// fence this log when it was sent: that is what a master's read lease rests on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Append {
    /// Which replica of the sender's log.
    pub replica: ReplicaId,
    /// What its bytes are.
    pub kind: ReplicaKind,
    /// Bytes of the segment when it is full: a backup sets so many aside. At most
    /// [`SEGMENT_BYTES`].
    #[serde(deserialize_with = "segment_bytes")]
    pub segment_bytes: u32,
    /// Where the payload stands in the segment: the sender was told that the replica has so much.
    pub from: u32,
    /// The segment has got its last entry, and ends with the payload: to be synced without delay.
    pub is_last: bool,
    /// When it was sent, by the sender's clock: returned as it came.
    pub sent: Instant,
    /// The sender's expiry clock: what it was answered by so far is not later.
    pub clock: UnixMillis,
    /// Header of the piece; `None` if there is no payload.
    #[serde(with = "header_bytes")]
    pub header: Option<[u8; PIECE_HEADER_BYTES]>,
}

/// Serialization of a piece's header: serde has none for arrays as long as that.
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

/// Decodes the size of a segment, and refuses one that no log has.
fn segment_bytes<'de, D: Deserializer<'de>>(decoder: D) -> Result<u32, D::Error> {
    let bytes = u32::deserialize(decoder)?;
    let is_size = (1..=SEGMENT_BYTES).contains(&(bytes as usize));
    is_size.then_some(bytes).ok_or_else(|| D::Error::custom("no log has segments of this size"))
}

/// What has become of an append.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Appended {
    /// As asked.
    pub replica: ReplicaId,
    /// Of the latest append that was seen: what is said was true when that came.
    pub sent: Instant,
    /// What the replica has, or that there is none.
    pub result: AppendResult,
}

/// What a backup says of a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AppendResult {
    /// It is there.
    Has {
        /// Bytes of the segment that it has.
        length: u32,
        /// Bytes of these that survive a loss of power, as far as the mode promises.
        stable: u32,
    },
    /// It takes nothing.
    Refused(Refusal),
}

/// Why a backup does not take a piece. Each is for good: the replica will never take anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Refusal {
    /// There was no room to begin the replica; nothing of it exists.
    Full,
    /// It cannot be written any more. What it has got may be there or not.
    Failed,
    /// The log is fenced: its master is taken for dead.
    Fenced,
}

/// Asks for the entries of a range in a dead server's segment, from a place in it on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecoveryRead {
    /// Which replica.
    pub replica: ReplicaId,
    /// Which entries.
    pub range: HashRange,
    /// Byte of the segment to begin at, where an entry begins.
    pub from: u32,
}

/// All entries of the range from `from` up to where it goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecoveryReply {
    /// As asked.
    pub replica: ReplicaId,
    /// As asked.
    pub range: HashRange,
    /// As asked.
    pub from: u32,
    /// What comes behind.
    pub next: RecoveryNext,
}

/// What comes behind the entries of a [`RecoveryReply`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RecoveryNext {
    /// More of the segment.
    From(u32),
    /// The end of the replica.
    End {
        /// Bytes of the segment that it has.
        length: u32,
        /// Their checksum.
        crc: u32,
        /// Not below any version in them.
        version: Version,
    },
    /// There is no such replica here, or it cannot be read.
    Missing,
}
