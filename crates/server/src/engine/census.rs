//! How many records there are, counted now and then for those who only watch.

use super::Engine;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use types::limits::TABLES_MAX;
use types::{Instant, ReactorId, TableId};

/// Counting looks at every slot: 50 us for each table that has an index.
const PAUSE: Duration = Duration::from_secs(1);

/// Records by table, as last counted.
#[derive(Debug, Default)]
pub(super) struct Census {
    records: [AtomicU64; TABLES_MAX],
    /// When they are counted next, in nanoseconds.
    due: AtomicU64,
}

impl Census {
    /// Tables that have records, and how many.
    pub(super) fn tables(&self) -> impl Iterator<Item = (TableId, u64)> {
        let counted = self.records.iter().map(|records| records.load(Ordering::Relaxed));
        let named = counted.enumerate().map(|(table, records)| (TableId(table as u8), records));
        named.filter(|(_, records)| *records > 0)
    }
}

impl Engine {
    /// Counts, if it is time. The first reactor does it for all.
    pub(super) fn take_census(&self, now: Instant) {
        let census = &self.node.census;
        if self.reactor != ReactorId(0) || now.0 < census.due.load(Ordering::Relaxed) {
            return;
        }
        census.due.store((now + PAUSE).0, Ordering::Relaxed);
        for (table, records) in census.records.iter().enumerate() {
            let counted = self.worker.table_records(TableId(table as u8));
            records.store(counted, Ordering::Relaxed);
        }
    }
}
