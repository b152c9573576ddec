//! Operations on records, and the background work that keeps them where they belong.
//!
//! An operation asks three things, in this order: is the hash ours ([`TabletMap`]), is the record
//! here (index, then log), and if not, may it still arrive ([`Arrival`]). The word migration does
//! not occur in it.
//!
//! Rules, each found by building the interleaving that breaks its weaker form:
//! - a version is drawn while the key's leaf is locked, so that order of versions = order of
//!   writes of a key, and the counter bounds every version the server holds;
//! - a read that finds nothing asks whether the record may arrive and then looks *once more*;
//!   the second miss is judged by the answer from before it. Under a leaf's lock one look is
//!   enough, because replay needs that lock;
//! - replay inserts only if the tablet is still arriving under this migration, the hash is not
//!   below the progress and the version is higher;
//! - what is removed where something may still arrive leaves a tombstone: a client's delete as
//!   well as expiry. Elsewhere the index entry just goes: without replicas there is no replay of
//!   the log that would have to know;
//! - a record whose expiry has come is invisible at once, by a clock that is shared by all
//!   workers and never goes back;
//! - a frozen or leaving range is changed by nobody; the cleaner may relocate its entries.
//!
//! Functions on the path of every read and write, here, in the index and in the log, are
//! `#[inline(always)]`. With `#[inline]` the compiler stopped inlining some of them when they got more
//! callers, which added 150 instructions to the 3,700 of a SET.
//!
//! Left to others: who owns what (`protocols`), waiting and retrying (`server`).

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

/// A key and its hash, which the caller has computed once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key<'a> {
    /// Its place in the key space.
    pub hash: KeyHash,
    /// Its bytes.
    pub bytes: &'a [u8],
}

/// What the store knows of a key that exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// The value, in the log.
    pub value: &'a [u8],
    /// Which write of the key it is.
    pub version: Version,
    /// When it stops existing; `None`: never.
    pub expiry: Option<UnixMillis>,
}

/// Whether a write must see what it replaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// It decides by the records, so all of them must have arrived.
    Records,
    /// It is blind: it sees what happens to be here and must not depend on it.
    Nothing,
}

/// Why an operation was not carried out. Nothing was changed; the caller decides whether it waits,
/// redirects or refuses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stall {
    /// The hash is not ours: another server knows.
    NotOwned,
    /// The tablet is frozen, or its table is being flushed: try again when the tablets change.
    Held,
    /// Records have not arrived: ask their source, then start again.
    Missing(Missing),
    /// A walk has come to hashes that have not arrived: start again when the progress of this
    /// hash's partition has passed it.
    NotArrived {
        /// The migration that brings them.
        migration: MigrationId,
        /// The first hash that the walk must know of.
        from: KeyHash,
    },
    /// Others kept changing or holding what this wanted: try again in a later turn.
    Contended,
    /// No memory for a write.
    OutOfMemory,
    /// A key, a value or all values of one command together are above their limit: never.
    TooLarge,
}

/// Records that have not arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// The table that they belong to.
    pub table: TableId,
    /// The migration that brings them.
    pub migration: MigrationId,
    /// All hashes of the operation that are missing, ascending, each once.
    pub hashes: Vec<KeyHash>,
}

impl Stall {
    /// These hashes, ascending or not, have to arrive first.
    fn missing(arrival: &Arrival, table: TableId, mut hashes: Vec<KeyHash>) -> Stall {
        hashes.sort_unstable();
        hashes.dedup();
        Stall::Missing(Missing { table, migration: arrival.migration(), hashes })
    }
}
