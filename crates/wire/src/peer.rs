//! Messages between two servers. What each permits its receiver to conclude stands with it; the
//! protocol as a whole is told in `protocols::migration`.

use serde::{Deserialize, Serialize};
use types::{
    ClusterId, HashRange, KeyHash, MigrationId, OwnershipEpoch, ServerId, Slot, TableId,
    UnixMillis, Version,
};

/// One message on a bus connection between servers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PeerMessage {
    /// First on every connection, from the side that opened it. A receiver of another cluster or
    /// protocol version closes the connection.
    Hello(Hello),
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
}

/// Who opened a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// Its cluster.
    pub cluster: ClusterId,
    /// Its number.
    pub server: ServerId,
    /// Its [`crate::PROTOCOL_VERSION`].
    pub protocol: u16,
    /// Whether the connection carries priority traffic only.
    pub priority: bool,
}

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
    /// The clock by which the source last judged expiry: the target's must not be behind it.
    pub expiry_clock: UnixMillis,
    /// Records per table and slot, of those that have any, in ascending order.
    pub records: Vec<(TableId, Slot, u32)>,
}

/// Asks for whole buckets of a frozen range. The source keeps no state about it.
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
    /// The reply ends with the bucket in which it reaches this many bytes.
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
    /// What is wanted.
    pub hashes: Vec<(TableId, KeyHash)>,
}

/// One answer per hash asked for; the records of the found ones are the payload.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PriorityReply {
    /// The migration.
    pub migration: MigrationId,
    /// The target's epoch.
    pub epoch: OwnershipEpoch,
    /// As asked.
    pub request: u64,
    /// In the order asked.
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
