//! Counts of this server's disk as a backup, for operators.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counters since the process began. Rarely written, read at any time.
#[derive(Debug, Default)]
pub struct DiskCounts {
    scrubbed_replicas: AtomicU64,
    scrubbed_bytes: AtomicU64,
    damaged_replicas: AtomicU64,
    errors: AtomicU64,
}

impl DiskCounts {
    /// Returns the number of replicas that were reread and found intact.
    pub fn scrubbed_replicas(&self) -> u64 {
        self.scrubbed_replicas.load(Ordering::Relaxed)
    }

    /// Returns the number of bytes of those replicas.
    pub fn scrubbed_bytes(&self) -> u64 {
        self.scrubbed_bytes.load(Ordering::Relaxed)
    }

    /// Returns the number of replicas that were found damaged or unreadable.
    pub fn damaged_replicas(&self) -> u64 {
        self.damaged_replicas.load(Ordering::Relaxed)
    }

    /// Returns the number of failed disk operations.
    pub fn errors(&self) -> u64 {
        self.errors.load(Ordering::Relaxed)
    }

    pub(super) fn note_scrubbed(&self, bytes: u32) {
        self.scrubbed_replicas.fetch_add(1, Ordering::Relaxed);
        self.scrubbed_bytes.fetch_add(u64::from(bytes), Ordering::Relaxed);
    }

    pub(crate) fn note_damaged(&self) {
        self.damaged_replicas.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn note_error(&self) {
        self.errors.fetch_add(1, Ordering::Relaxed);
    }
}
