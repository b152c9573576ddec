//! Moving a range of key hashes from one server to another while clients use it.
//!
//! The protocol in prose: `docs/design/migration.md`.

mod policy;
mod priority;
mod progress;
mod pulling;
mod ranges;
mod source;
mod target;
mod text;
pub mod timing;

pub use policy::partitions;
pub use priority::{PriorityEffect, PriorityEvent, PriorityPulls};
pub use source::{FrozenState, Source, SourceEffect, SourceEvent};
pub use target::{Acceptance, Added, Target, TargetEffect, TargetEvent};
pub use text::{from_coordinator, peer, to_coordinator};
