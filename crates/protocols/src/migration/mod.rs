//! Moving a range of key hashes from one server to another while clients use it.
//!
//! The coordinator writes an *intent* and prepares the target. The [`Source`] freezes the range
//! and sends the *flip*; the [`Target`] accepts it and serves at once, although it holds nothing
//! yet. It pulls the records in the background, partition by partition; what operations need
//! before that, each reactor's [`PriorityPulls`] fetch ahead of the rest. What has been replayed
//! and committed the source may forget. When it has forgotten everything the migration is over.
//!
//! The whole protocol, who may conclude what from each message, and what the machines' driver has
//! to do: `docs/design/migration.md`.
//!
//! Invariants:
//! - at most one server serves a hash, and the target's word decides which;
//! - progress follows replay, never receipt: what is found missing below it does not exist;
//! - the source forgets only what a committed cut has made superfluous;
//! - every message may be lost, late or repeated. Whoever needs an answer asks again.
//!
//! Left out: recovery when either side dies, replication of what has been replayed, and pulls from
//! backups.

mod cuts;
mod policy;
mod priority;
mod progress;
mod pulling;
mod ranges;
mod source;
mod target;
mod text;
pub mod timing;

pub use cuts::Cuts;
pub use policy::partitions;
pub use priority::{PriorityEffect, PriorityEvent, PriorityPulls};
pub use source::{FrozenState, Source, SourceEffect, SourceEvent};
pub use target::{Acceptance, Added, Target, TargetEffect, TargetEvent};
pub use text::{from_coordinator, peer, to_coordinator};
