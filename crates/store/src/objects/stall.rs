//! The reasons why an operation is not executed.

use crate::index::{LockError, NoRoom};
use crate::log::OutOfMemory;
use types::limits::{KEY_BYTES_MAX, VALUE_BYTES_MAX};
use types::{KeyHash, MigrationId, OwnershipEpoch, TableId, UnixMillis};

/// The reason why an operation was not executed. Nothing was changed; the caller decides whether
/// to retry, redirect or reject the request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stall {
    /// Another server owns the hash: redirect.
    NotOwned,
    /// The tablet is frozen, or its table is being flushed: retry when the tablets change.
    Held,
    /// Records have not arrived: request them from their source, then retry.
    Missing(Missing),
    /// A scan reached hashes that have not arrived. Retry when the progress of this hash's
    /// partition has passed it.
    NotArrived {
        /// Migration that delivers the hashes.
        migration: MigrationId,
        /// First hash that the scan needs.
        from: KeyHash,
    },
    /// Other threads kept changing or locking the data: retry in a later turn.
    Contended,
    /// No memory for a write.
    OutOfMemory,
    /// A key, a value or all values of one command together exceed their limit: never retry.
    TooLarge,
}

/// Records that an operation needs and that have not arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// Table of the records.
    pub table: TableId,
    /// Migration that delivers the records.
    pub migration: MigrationId,
    /// All missing hashes of the operation, ascending and unique.
    pub hashes: Vec<KeyHash>,
}

/// The result of a read whose record may still be at the source of a migration: at that moment,
/// this server had neither the record nor a trace of a write to it since the flip. See
/// `docs/design/two-sided-reads.md`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotHereYet {
    /// Migration that delivers the record.
    pub migration: MigrationId,
    /// Epoch under which this server owns the range.
    pub epoch: OwnershipEpoch,
    /// The range's clock at that moment, which decides whether the source's record has expired.
    pub clock: UnixMillis,
}

impl Stall {
    /// Returns the stall for missing records. The hashes may be in any order.
    pub(super) fn missing(
        migration: MigrationId,
        table: TableId,
        mut hashes: Vec<KeyHash>,
    ) -> Stall {
        hashes.sort_unstable();
        hashes.dedup();
        Stall::Missing(Missing { table, migration, hashes })
    }
}

impl From<OutOfMemory> for Stall {
    fn from(_: OutOfMemory) -> Stall {
        Stall::OutOfMemory
    }
}

impl From<NoRoom> for Stall {
    fn from(_: NoRoom) -> Stall {
        Stall::OutOfMemory
    }
}

impl From<LockError> for Stall {
    fn from(error: LockError) -> Stall {
        match error {
            LockError::Contended => Stall::Contended,
            LockError::OutOfMemory => Stall::OutOfMemory,
        }
    }
}

/// Rejects a key or value that is too long for a log entry.
#[inline]
pub(super) fn check_size(key: &[u8], value: usize) -> Result<(), Stall> {
    if key.len() > KEY_BYTES_MAX || value > VALUE_BYTES_MAX { Err(Stall::TooLarge) } else { Ok(()) }
}
