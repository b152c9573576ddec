//! Numbers of records by table, for operators.

use std::sync::atomic::{AtomicU64, Ordering};
use store::Expiring;
use types::TableId;
use types::limits::TABLES_MAX;

/// Numbers of records, as of the last scans.
#[derive(Debug, Default)]
pub(crate) struct KeyCounts {
    /// Number of records, by table.
    records: [AtomicU64; TABLES_MAX],
    /// Number of records with an expiry time that the last expiry scan has met, and their mean
    /// remaining time in milliseconds, by table.
    expiring: [(AtomicU64, AtomicU64); TABLES_MAX],
}

impl KeyCounts {
    /// Records the number of records of each table.
    pub(crate) fn note_records(&self, counted: &[u64; TABLES_MAX]) {
        for (records, counted) in self.records.iter().zip(counted) {
            records.store(*counted, Ordering::Relaxed);
        }
    }

    /// Records the result of a complete expiry scan of a table.
    pub(crate) fn note_expiring(&self, table: TableId, met: Expiring) {
        let (records, mean_left) = &self.expiring[usize::from(table.0)];
        records.store(met.records, Ordering::Relaxed);
        let mean = met.left_millis.checked_div(met.records).unwrap_or(0);
        mean_left.store(mean, Ordering::Relaxed);
    }

    /// Returns the number of records of a table that have an expiry time, and their mean
    /// remaining time in milliseconds, as of the last expiry scan.
    pub(crate) fn expiring(&self, table: TableId) -> (u64, u64) {
        let (records, mean_left) = &self.expiring[usize::from(table.0)];
        (records.load(Ordering::Relaxed), mean_left.load(Ordering::Relaxed))
    }

    /// Returns the databases that have records, with the number of records.
    pub(crate) fn tables(&self) -> impl Iterator<Item = (TableId, u64)> {
        let counted = self.records.iter().map(|records| records.load(Ordering::Relaxed));
        let named = counted.enumerate().map(|(table, records)| (TableId(table as u8), records));
        named.filter(|(table, records)| table.is_database() && *records > 0)
    }
}
