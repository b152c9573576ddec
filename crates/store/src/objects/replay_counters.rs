//! Totals of a replay.

use crate::sync::atomic::{AtomicU64, Ordering};

/// Totals of replay so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplayCounters {
    /// Number of records inserted into the index by replay.
    pub records: u64,
    /// Bytes of these records in the log.
    pub bytes: u64,
    /// Number of records not needed, because a newer version or the record itself was present.
    pub dropped: u64,
}

/// Totals of replay, updated by all workers.
#[derive(Debug, Default)]
pub(super) struct ReplayCounts {
    records: AtomicU64,
    bytes: AtomicU64,
    dropped: AtomicU64,
}

impl ReplayCounts {
    pub(super) fn add(&self, new: &ReplayCounters) {
        self.records.fetch_add(new.records, Ordering::Relaxed);
        self.bytes.fetch_add(new.bytes, Ordering::Relaxed);
        self.dropped.fetch_add(new.dropped, Ordering::Relaxed);
    }

    pub(super) fn load(&self) -> ReplayCounters {
        ReplayCounters {
            records: self.records.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
            dropped: self.dropped.load(Ordering::Relaxed),
        }
    }
}
