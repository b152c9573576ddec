//! Version marks: versions up to which all entries of the log are synced.
//!
//! Versions are drawn in the order of dependencies: whoever has seen an entry draws a higher one, so
//! the entries up to one version are a state that the store has had. All entries of a batch
//! lie on one side of a mark, because their versions are drawn in one step ([`VersionBlock`]).

use super::store::Store;
use crate::log::{GracePeriod, MarkBarrier};
use planted::Bug;
use std::cell::Cell;
use types::Version;
use wire::manifest::VersionCut;

/// A mark that does not count yet.
#[derive(Debug)]
pub struct PendingMark {
    number: u64,
    version: Version,
    stage: MarkStage,
}

#[derive(Debug)]
enum MarkStage {
    /// A reactor may have drawn a version for an entry that it has not appended yet. It has when
    /// it begins another turn.
    Appending(GracePeriod),
    /// All entries up to the mark are appended.
    Syncing(MarkBarrier),
}

impl PendingMark {
    /// Returns the version up to which all entries are synced when the mark is reached.
    pub fn version(&self) -> Version {
        self.version
    }

    /// Returns whether all entries up to the mark are appended.
    pub fn is_appended(&self) -> bool {
        matches!(self.stage, MarkStage::Syncing(_))
    }
}

impl Store {
    /// Ignores these entries in all segments that are adopted. Called once, before the first.
    pub fn ignore(&self, cuts: Vec<VersionCut>) {
        self.log.durable_log().ignore(cuts);
    }

    /// Returns how many entries of adopted segments were ignored.
    pub fn ignored_entries(&self) -> u64 {
        self.log.durable_log().ignored()
    }

    /// Makes segments stay in the log until a version mark is recorded that was begun after their
    /// last entry had died.
    pub fn require_marks(&self) {
        self.log.durable_log().registry.require_marks();
    }

    /// Returns whether a segment without live entries waits for a version mark that was not begun.
    #[inline]
    pub fn awaits_mark(&self) -> bool {
        self.log.durable_log().registry.awaits_mark()
    }

    /// Begins a mark: a version that is not below any that was drawn before.
    pub fn begin_mark(&self) -> PendingMark {
        let number = self.log.durable_log().registry.begin_mark();
        // No write gets the next version either. The tombstone that the cleaner makes of an entry
        // has its version less one, which must not be the mark if the entry is above it.
        let version = Version(self.draw_id().0 - 1);
        PendingMark { number, version, stage: MarkStage::Appending(self.grace_period()) }
    }

    /// Returns whether all entries up to the mark are synced.
    pub fn is_mark_reached(&self, mark: &mut PendingMark) -> bool {
        let durable = self.log.durable_log();
        if let MarkStage::Appending(turns) = &mark.stage
            && self.is_over(turns)
        {
            mark.stage = MarkStage::Syncing(durable.mark_barrier());
        }
        match &mut mark.stage {
            MarkStage::Appending(_) => planted::is(Bug::MarkedBeforeSynced),
            MarkStage::Syncing(barrier) => {
                durable.is_synced(barrier) || planted::is(Bug::MarkedBeforeSynced)
            }
        }
    }

    /// Records that the mark is in the manifest, before all later changes of it: segments may
    /// leave the log.
    pub fn note_marked(&self, mark: &PendingMark) {
        self.log.durable_log().note_marked(mark.number);
    }
}

/// Consecutive versions for the entries of one atomic write. Drawn in one step, so no mark can be
/// between them.
#[derive(Debug)]
pub(super) struct VersionBlock {
    next: Cell<u64>,
    end: u64,
}

impl VersionBlock {
    /// Draws `count` versions. The leaves of all keys must be locked.
    pub(super) fn draw(store: &Store, count: usize) -> VersionBlock {
        let next = if count > 0 { store.draw_versions(count as u64).0 } else { 0 };
        VersionBlock { next: Cell::new(next), end: next + count as u64 }
    }

    /// Takes the next version.
    pub(super) fn take(&self) -> Version {
        let version = self.next.get();
        assert!(version < self.end, "a batch takes more versions than it has drawn");
        self.next.set(version + 1);
        Version(version)
    }
}
