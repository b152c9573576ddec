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
//! The files stand in layers; each imports only from the layers above it:
//! - Plain data: `record`, `stall`, `changes`, `range_clock`, `table_set`, `estimate`,
//!   `publications`, `replay_counters`, `sketch`.
//! - State of a range: `arrival`, `recovery`, `tablets`. Then `store`, the state of all ranges, and
//!   `version_mark`, versions up to which it is synced.
//! - Access to entries: `view`, `leaves`, `access`.
//! - Changes of entries: `tombstones`, `write`, `expired`, `side_logs`.
//! - `evictor`, the state of eviction at one reactor.
//! - `worker`, the state of one reactor. All other files implement operations of the worker.
//!
//! Outside this module: ownership decisions (`protocols`), waiting and retrying (`server`).

mod access;
mod arrival;
mod batch;
mod changes;
mod clean;
mod collect;
mod counts;
mod drop;
mod durability;
mod estimate;
mod evict;
mod evictor;
mod expire;
mod expired;
mod leaves;
mod own_records;
mod prefetch;
mod publications;
mod range_clock;
mod read;
mod reclaim;
mod record;
mod recover;
mod recovery;
mod replay;
mod replay_counters;
mod replay_log;
mod scan;
mod side_logs;
mod sketch;
mod stall;
mod store;
mod sweep;
mod table_set;
mod tablets;
mod tombstones;
mod update;
mod version_mark;
mod view;
mod worker;
mod write;

pub use arrival::{Arrival, ArrivalPlan};
pub use changes::{Changes, NewValue, Scratch, UpdatedKeys};
pub use clean::CleaningOccasion;
pub use evict::Evicted;
pub use evictor::EvictionRule;
pub use expired::Expiring;
pub use own_records::OwnTable;
pub use range_clock::{BEHIND_MAX_MILLIS, RangeClock};
pub use record::{Key, Need, Record, TableKey};
pub use recover::RecoverError;
pub use recovery::{Recovery, RecoveryPlan};
pub use replay::{ReplayError, Replayed};
pub use replay_counters::ReplayCounters;
pub use sketch::Accessed;
pub use stall::{Missing, NotHereYet, Stall};
pub use store::{Store, StoreConfig, StoreError, StoreUsage};
pub use table_set::TableSet;
pub use tablets::{Tablet, TabletMap, TabletState};
pub use version_mark::PendingMark;
pub use worker::Worker;
