//! Keys and records, as operations take and return them.

use smallvec::SmallVec;
use types::{KeyHash, TableId, TypedValue, UnixMillis, Version};

/// A key with its hash, which the caller computes once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key<'a> {
    /// Position in the key space.
    pub hash: KeyHash,
    /// Key bytes.
    pub bytes: &'a [u8],
}

/// Something for each key of an operation. Operations on a few keys do not allocate.
pub(super) type PerKey<T> = SmallVec<[T; 4]>;

/// A key of one table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableKey<'a> {
    /// Table of the key.
    pub table: TableId,
    /// The key.
    pub key: Key<'a>,
}

/// An existing record as the store returns it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// The value, in the log.
    pub value: TypedValue<'a>,
    /// Version of the write that produced the record.
    pub version: Version,
    /// Expiry time; `None` if the record does not expire.
    pub expiry: Option<UnixMillis>,
    /// Clock of the record's range by which it has not expired. It also judges what expires within
    /// the value.
    pub clock: UnixMillis,
}

/// Dependency of a write on the records that it replaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// The write decides by the records, so all of them must have arrived.
    Records,
    /// The write is blind. It sees the records that happen to be present and must not depend on
    /// them.
    Nothing,
}
