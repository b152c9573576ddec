//! The basic types of Ballast: identifiers, key hashes and their ranges, versions, epochs, time,
//! limits.
//!
//! Every kind of number has its own type here, so that a wrong argument does not compile. The
//! crate does no input or output and allocates nothing on the data path.
//!
//! Start at [`KeyHash`] and [`HashRange`]: a key's hash determines its slot, its place in the
//! index, and the server that owns it.

#![warn(clippy::unwrap_used, clippy::wildcard_enum_match_arm)]

mod connection;
mod eviction;
mod hash;
mod ids;
pub mod limits;
mod random;
mod range;
mod reactor;
mod time;
mod value;

pub use connection::ConnectionId;
pub use eviction::{EvictionOrder, EvictionPolicy};
pub use hash::{
    HashSeed, KeyHash, SLOT_COUNT, Slot, element_hash, hash_tag, key_hash, key_hash_in_slot,
    slot_of,
};
pub use ids::{
    ClusterId, Generation, Incarnation, LeaseId, MigrationId, OutOfBounds, OwnershipEpoch,
    ReactorId, SegmentId, ServerId, TableId, Version,
};
pub use random::{SplitMix64, mixed};
pub use range::HashRange;
pub use reactor::{BackgroundDemand, LatencyTarget, PollPolicy, ReactorCounts};
pub use time::{Instant, UnixMillis};
pub use value::{TypedValue, ValueType};
