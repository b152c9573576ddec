//! Counts of this server's disk as a backup, for operators.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts since the process began. Written seldom, read at any time.
#[derive(Debug, Default)]
pub struct DiskCounts {
    scrubbed_replicas: AtomicU64,
    scrubbed_bytes: AtomicU64,
    damaged_replicas: AtomicU64,
    errors: AtomicU64,
}

impl DiskCounts {
    /// Replicas that were read again and are as they were written.
    pub fn scrubbed_replicas(&self) -> u64 {
        self.scrubbed_replicas.load(Ordering::Relaxed)
    }

    /// Their bytes.
    pub fn scrubbed_bytes(&self) -> u64 {
        self.scrubbed_bytes.load(Ordering::Relaxed)
    }

    /// Replicas that were found damaged, or could not be read.
    pub fn damaged_replicas(&self) -> u64 {
        self.damaged_replicas.load(Ordering::Relaxed)
    }

    /// Operations of the disk that have failed.
    pub fn errors(&self) -> u64 {
        self.errors.load(Ordering::Relaxed)
    }

    pub(super) fn note_scrubbed(&self, bytes: u32) {
        self.scrubbed_replicas.fetch_add(1, Ordering::Relaxed);
        self.scrubbed_bytes.fetch_add(u64::from(bytes), Ordering::Relaxed);
    }

    pub(in crate::engine) fn note_damaged(&self) {
        self.damaged_replicas.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn note_error(&self) {
        self.errors.fetch_add(1, Ordering::Relaxed);
    }
}
