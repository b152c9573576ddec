//! Counters of recoveries, over all recovery partitions since the server began.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use store::ReplayCounters;

/// Counters of all recovered parts.
#[derive(Debug, Default)]
pub(crate) struct RecoveryCounts {
    parts_recovered: AtomicU64,
    parts_given_up: AtomicU64,
    /// Records and bytes replayed for partitions that are over.
    records: AtomicU64,
    bytes: AtomicU64,
    /// Bytes of entries received from backups.
    received_bytes: AtomicU64,
    /// Reads served to recovery masters, their bytes, and the time until they were answered.
    reads: AtomicU64,
    read_bytes: AtomicU64,
    read_ns: AtomicU64,
}

fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}

impl RecoveryCounts {
    pub(super) fn read(&self, bytes: usize, spent: Duration) {
        add(&self.reads, 1);
        add(&self.read_bytes, bytes as u64);
        add(&self.read_ns, spent.as_nanos() as u64);
    }

    pub(super) fn received(&self, bytes: usize) {
        add(&self.received_bytes, bytes as u64);
    }

    /// Counts a partition that this server now owns.
    pub(super) fn recovered(&self, counters: ReplayCounters) {
        add(&self.parts_recovered, 1);
        self.over(counters);
    }

    /// Counts a partition that was handed back or reassigned.
    pub(super) fn given_up(&self, counters: ReplayCounters) {
        add(&self.parts_given_up, 1);
        self.over(counters);
    }

    fn over(&self, counters: ReplayCounters) {
        add(&self.records, counters.records);
        add(&self.bytes, counters.bytes);
    }

    /// Returns the fields for `INFO`, including the counts `now` of current partitions.
    pub(super) fn fields(&self, now: ReplayCounters) -> Vec<(String, String)> {
        let fields = [
            ("recovery_parts_recovered", &self.parts_recovered, 0),
            ("recovery_parts_given_up", &self.parts_given_up, 0),
            ("recovery_records", &self.records, now.records),
            ("recovery_bytes", &self.bytes, now.bytes),
            ("recovery_received_bytes", &self.received_bytes, 0),
            ("recovery_reads_served", &self.reads, 0),
            ("recovery_read_bytes", &self.read_bytes, 0),
        ];
        let field = |(name, counter, more): (&str, &AtomicU64, u64)| {
            (name.to_owned(), (counter.load(Ordering::Relaxed) + more).to_string())
        };
        let micros = self.read_ns.load(Ordering::Relaxed) / 1000;
        let spent = ("recovery_read_usec".to_owned(), micros.to_string());
        fields.into_iter().map(field).chain([spent]).collect()
    }
}
