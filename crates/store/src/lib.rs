//! The store of one server: a log in memory, an index ordered by key hash, and the operations.
//!
//! - [`log`]: the arena, log heads, side logs, and the reclamation of memory;
//! - [`index`]: a map from key hashes to log addresses, in hash order. It does not know keys;
//! - [`objects`]: reads and writes, expiry, tablets, and the background work: replay, serving of
//!   pulls, release of migrated records, cleaning,
//!   eviction.
//!
//! Start at [`Store`] and [`Worker`]. All reactors of a server share one store, and each reactor
//! accesses it through its own worker.
//!
//! Invariants:
//! - The store uses no clock, no randomness and no sockets: time is an argument.
//! - No call waits. An operation that cannot complete in this turn returns a [`Stall`] and
//!   changes nothing.

#![warn(clippy::wildcard_enum_match_arm)]
#![cfg_attr(not(test), warn(clippy::unwrap_used))]

pub mod index;
pub mod log;
pub mod objects;

mod address;
mod sync;

pub use address::Address;
pub use log::GracePeriod;
pub use objects::{
    Accessed, Arrival, ArrivalPlan, BEHIND_MAX_MILLIS, Changes, CleaningOccasion, Evicted,
    EvictionRule, Expiring, Key, Missing, Need, NewValue, NotHereYet, OwnTable, PendingMark,
    RangeClock, Record, RecoverError, Recovery, RecoveryPlan, ReplayCounters, ReplayError,
    Replayed, Scratch, Stall, Store, StoreConfig, StoreError, StoreUsage, TableKey, TableSet,
    Tablet, TabletMap, TabletState, Worker,
};
