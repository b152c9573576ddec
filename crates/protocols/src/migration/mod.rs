//! Live migration of a range of key hashes from one server to another: the [`MigrationSource`], the
//! [`MigrationTarget`], and the [`PriorityPulls`] of each of the target's reactors.
//!
//! The whole protocol, its invariants, the conclusions that each message allows, and the duties of
//! the machines' driver are in `docs/design/migration.md`. Every message may be lost, delayed or
//! repeated; the side that needs an answer repeats its question.
//!
//! The coordinator handles the death of a side. These machines only process its outcome
//! ([`TargetEvent::SourceDied`], [`SourceEvent::Returned`]). Pulls from the source's backups do
//! not exist.

mod cuts;
mod policy;
mod priority;
mod progress;
mod ranges;
mod source;
mod target;
mod text;
pub mod timing;

pub use cuts::Cuts;
pub use policy::partitions;
pub use priority::{PriorityEffect, PriorityEvent, PriorityPulls};
pub use source::{FrozenState, MigrationSource, SourceEffect, SourceEvent};
pub use target::{Acceptance, Added, MigrationTarget, TargetEffect, TargetEvent};
pub use text::peer;

#[cfg(test)]
mod tests {
    use types::{HashRange, Incarnation, MigrationId, OwnershipEpoch, ServerId};
    use wire::control::{Intent, MigrationPolicy};

    /// Returns the intent to migrate all hashes from server 1 to server 2.
    pub(super) fn intent() -> Intent {
        Intent {
            migration: MigrationId(1),
            range: HashRange::ALL,
            source: ServerId(1),
            target: ServerId(2),
            source_epoch: OwnershipEpoch(1),
            target_epoch: OwnershipEpoch(2),
            target_incarnations: vec![Incarnation(1)],
            bytes: 0,
            policy: MigrationPolicy::default(),
        }
    }
}
