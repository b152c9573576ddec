//! Version marks of a durable log: a server with its own disk records from time to time a version
//! up to which all entries are synced, and a restart after a loss of power ignores the entries
//! above it. See `docs/design/durability.md`, hard part 4.
//!
//! A segment may leave the log only when a mark has been recorded that was begun afterwards:
//! otherwise the entries that superseded its entries could be ignored.

use super::segment::Segments;
use super::state::LogPosition;

/// Numbers of the marks, in a log that has marks.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct MarkCounts {
    /// Number of the mark that was begun last.
    begun: u64,
    /// Number of the mark that was recorded last.
    recorded: u64,
}

impl MarkCounts {
    /// Begins the next mark. Returns its number.
    pub(super) fn begin(&mut self) -> u64 {
        self.begun += 1;
        self.begun
    }

    /// Returns the number of the first mark that is not begun yet.
    pub(super) fn next(&self) -> u64 {
        self.begun + 1
    }

    /// Records that a mark is in the manifest, before all later changes of it.
    pub(super) fn record(&mut self, number: u64) {
        assert!(self.recorded < number && number <= self.begun, "{self:?} records mark {number}");
        self.recorded = number;
    }

    pub(super) fn has_recorded(&self, number: u64) -> bool {
        self.recorded >= number
    }
}

/// The bytes that must be synced before a mark counts.
#[derive(Debug)]
pub(crate) struct MarkBarrier(Vec<LogPosition>);

impl MarkBarrier {
    /// Returns the barrier of everything that has been appended.
    pub(super) fn of(segments: &Segments) -> MarkBarrier {
        MarkBarrier(segments.barrier())
    }

    /// Returns whether everything before the barrier is synced. Forgets what is.
    pub(super) fn is_synced(&mut self, segments: &Segments) -> bool {
        self.0.retain(|position| !segments.is_synced(position));
        self.0.is_empty()
    }
}
