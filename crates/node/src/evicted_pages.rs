//! Pages of evicted values. They are removed before anything else is evicted: until then they take the
//! memory that the eviction should have won.
//!
//! The root has gone under the lock of its leaf, and every change of a value writes root and pages in
//! one atomic step. So no page of this id appears any more, and each can be removed by its name at
//! once, without the grace period that a page needs of which only the absence of a root is known
//! (`page_sweep.rs`). A page that cannot be removed now is left to that walk.

use std::collections::VecDeque;
use store::{Key, Stall, Worker};
use types::{KeyHash, TableId, TypedValue, Version};
use values::{PAGE_NAME_BYTES, PageInterval, PageName, ValuePages};

/// Pages that one quantum looks for: 30 us.
const QUANTUM_PAGES: u32 = 64;

/// Most bytes that count of one value: a root that another server has sent may claim any number.
const VALUE_BYTES_MAX: u64 = 1 << 40;

/// The pages of values that one reactor has evicted, as far as they have not been removed.
#[derive(Debug, Default)]
pub(crate) struct EvictedPages {
    values: VecDeque<EvictedValue>,
}

#[derive(Debug)]
struct EvictedValue {
    table: TableId,
    root: KeyHash,
    /// Ids with the numbers of pages to remove.
    runs: Vec<(Version, PageInterval)>,
    /// Log bytes of the pages, as far as they have not been removed.
    bytes: u64,
    pages: u64,
}

/// The result of a quantum of [`EvictedPages::remove`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RemovedPages {
    /// Bytes that do not have to be removed any more.
    pub(crate) bytes: u64,
    /// Set if pages are left that only a walk over all pages removes.
    pub(crate) leaves_orphans: bool,
}

impl EvictedPages {
    pub(crate) fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// Adds the pages of a value whose root was evicted. Returns their log bytes, about.
    pub(crate) fn add(&mut self, table: TableId, root: KeyHash, value: TypedValue<'_>) -> u64 {
        let Some(found) = ValuePages::of(value) else { return 0 };
        let (pages, page) = (found.count(), wire::entry::encoded_bytes(PAGE_NAME_BYTES, 0, 0));
        let bytes =
            found.bytes.saturating_add(pages.saturating_mul(page as u64)).min(VALUE_BYTES_MAX);
        self.values.push_back(EvictedValue { table, root, runs: found.runs, bytes, pages });
        bytes
    }

    /// Removes some pages.
    pub(crate) fn remove(&mut self, worker: &mut Worker) -> RemovedPages {
        let mut removed = RemovedPages::default();
        let Some(value) = self.values.front_mut() else { return removed };
        let before = value.bytes;
        match value.remove(QUANTUM_PAGES, worker) {
            Ok(true) => removed.bytes = before - value.bytes,
            // All pages have gone, or the others are left to the walk.
            outcome @ (Ok(false) | Err(_)) => {
                removed = RemovedPages { bytes: before, leaves_orphans: outcome.is_err() };
                self.values.pop_front();
            }
        }
        removed
    }
}

impl EvictedValue {
    /// Removes at most so many pages. Returns whether some are left.
    fn remove(&mut self, pages_max: u32, worker: &mut Worker) -> Result<bool, Stall> {
        for _ in 0..pages_max {
            let Some((id, interval)) = self.runs.last_mut() else { return Ok(false) };
            if interval.pages == 0 {
                self.runs.pop();
                continue;
            }
            let name =
                PageName { table: self.table, root: self.root, id: *id, page: interval.first };
            let (hash, bytes) = name.key(worker.store().seed());
            worker.own_table(TableId::PAGES).unlink_any(Key { hash, bytes: &bytes })?;
            (interval.first, interval.pages) = (interval.first.wrapping_add(1), interval.pages - 1);
            // An equal part for each page.
            self.bytes -= self.bytes / self.pages;
            self.pages -= 1;
        }
        Ok(true)
    }
}
