//! The count of multi-key writes that are storing their index words; see `batch.rs`.

use crate::sync::atomic::{AtomicU64, Ordering};

/// Number of multi-key writes that are storing their index words.
pub(super) struct Publications(AtomicU64);

/// One such write, until it is dropped.
pub(super) struct Publication<'p>(&'p Publications);

impl Publications {
    pub(super) const fn new() -> Publications {
        Publications(AtomicU64::new(0))
    }

    /// Returns whether a word that the caller has just found may belong to a multi-key write with
    /// words that are not all stored.
    #[inline]
    pub(super) fn may_be_partial(&self) -> bool {
        self.0.load(Ordering::Acquire) > 0
    }

    pub(super) fn begin(&self) -> Publication<'_> {
        // Ordered before the words by their release stores.
        self.0.fetch_add(1, Ordering::Relaxed);
        Publication(self)
    }
}

impl Drop for Publication<'_> {
    fn drop(&mut self) {
        let before = self.0.0.fetch_sub(1, Ordering::Release);
        debug_assert!(before > 0, "a publication ends that did not begin");
    }
}
