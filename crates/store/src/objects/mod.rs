//! Operations on records, and the background work on them.
//!
//! An operation makes three checks in this order. Does this server own the hash ([`TabletMap`])?
//! Is the record present (index, then log)? If it is absent, may a migration still deliver it
//! ([`Arrival`])? Operations know nothing else about migration.
//!
//! Rules. Each was found by constructing the interleaving that breaks its weaker form:
//! - A write draws its version while it holds the lock of the key's leaf. So the order of
//!   versions is the order of writes of a key, and the counter bounds every version on the
//!   server.
//! - A read that misses checks [`Arrival`] and then searches *once more*. The answer from before
//!   the second search decides. Under a leaf lock one search is enough, because replay needs the
//!   same lock.
//! - Replay inserts a record only if the tablet is still arriving under this migration, the hash
//!   is not below the progress, and the version is higher than the present one.
//! - A removal (client delete or expiry) leaves a tombstone in the index where records may still
//!   arrive. A durable store leaves one for every delete (`write.rs`). Otherwise the index word
//!   is just removed.
//! - An expired record is invisible immediately. All workers share one expiry clock, which never
//!   goes back.
//! - A frozen or leaving range does not change. Only the cleaner may relocate its entries.
//!
//! Functions on the path of every read and write, here, in the index and in the log, are
//! `#[inline(always)]`. With `#[inline]` the compiler stopped inlining some of them when they got
//! more callers, which added 150 instructions to the 3,700 of a SET.
//!
//! Outside this module: ownership decisions (`protocols`), waiting and retrying (`server`).

mod arrival;
mod batch;
mod changes;
mod clean;
mod collect;
mod counts;
mod drop;
mod expected;
mod expire;
mod foresee;
mod graves;
mod leaves;
mod range_clock;
mod read;
mod recover;
mod recovery;
mod replay;
mod replay_log;
mod saving;
mod scan;
mod store;
mod sweep;
mod tablets;
mod update;
mod view;
mod worker;
mod write;

pub use arrival::{Arrival, ArrivalPlan};
pub use changes::{Changes, NewValue, Scratch};
pub use expire::Expiring;
pub use range_clock::{BEHIND_MAX_MILLIS, RangeClock};
pub use recover::RecoverError;
pub use recovery::{Recovery, RecoveryPlan};
pub use replay::{ReplayCounters, ReplayError, Replayed};
pub use store::{Store, StoreConfig, StoreError, StoreUsage};
pub use tablets::{TableSet, Tablet, TabletMap, TabletState};
pub use worker::Worker;

use types::{KeyHash, MigrationId, TableId, UnixMillis, Version};

/// A key with its hash, which the caller computes once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key<'a> {
    /// Position in the key space.
    pub hash: KeyHash,
    /// Key bytes.
    pub bytes: &'a [u8],
}

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
    pub value: &'a [u8],
    /// Version of the write that produced the record.
    pub version: Version,
    /// Expiry time; `None` if the record does not expire.
    pub expiry: Option<UnixMillis>,
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

impl Stall {
    /// Returns the stall for missing records. The hashes may be in any order.
    fn missing(arrival: &Arrival, table: TableId, mut hashes: Vec<KeyHash>) -> Stall {
        hashes.sort_unstable();
        hashes.dedup();
        Stall::Missing(Missing { table, migration: arrival.migration(), hashes })
    }
}
