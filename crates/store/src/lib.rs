//! The store of one server: a log in memory, an index ordered by key hash, and the operations.
//!
//! - [`log`]: the arena, log heads, side logs, and when memory may be used again;
//! - [`index`]: from a key hash to a place in the log, in hash order; knows nothing of keys;
//! - [`objects`]: reads and writes, expiry, tablets, and the background work: replay, pulls served,
//!   forgetting, cleaning.
//!
//! Start at [`Store`] and [`Worker`]: one store is shared by all reactors of a server, and each
//! reactor has one worker, its own way into the store.
//!
//! **Invariant:** no clock, no randomness, no sockets: time comes in as an argument.
//! **Invariant:** nobody waits here. What cannot be done in this turn is a [`Stall`], and nothing
//! was changed.

pub mod index;
pub mod log;
pub mod objects;

mod address;
mod sync;

pub use address::Address;
pub use log::GracePeriod;
pub use objects::{
    Arrival, ArrivalPlan, BEHIND_MAX_MILLIS, Changes, Expiring, Key, Missing, Need, NewValue,
    RangeClock, Record, RecoverError, Recovery, RecoveryPlan, ReplayCounters, ReplayError,
    Replayed, Scratch, Stall, Store, StoreConfig, StoreError, StoreUsage, TableSet, Tablet,
    TabletMap, TabletState, Worker,
};
