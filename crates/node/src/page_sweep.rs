//! The removal of orphans: pages of split values whose root has gone.
//!
//! A command that removes or replaces a value changes its root only, and so do expiry, eviction and
//! flushes. No command can reach the pages any more. A list also leaves pages behind when many items
//! are removed at an end. A walk over all pages looks for the root of each, and removes a page that
//! no root has.
//!
//! The id of a value never returns, but a list may use the number of an orphan again: it then writes
//! the page anew. So only the version of a page that was seen is removed. A page may also become
//! visible before its root, since the index words of one batch are stored one after the other. So an
//! orphan is removed only if it is still one after every reactor has begun another turn. Ranges that
//! arrive or are recovered are left out, because their roots may not be there yet.
//!
//! Walks are slow while they find nothing and there is memory: orphans cost nothing but memory.
//! Design: `docs/design/values.md`.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use store::log::GracePeriod;
use store::{Key, Worker};
use types::{Instant, KeyHash, TableId, Version};
use values::{PageInterval, PageName};

/// Buckets that a step reads: up to about 500 pages, 100 us.
const STEP_BUCKETS: usize = 64;

/// Pause between two steps while orphans are expected: 5 % of a processor.
const FAST_PAUSE: Duration = Duration::from_millis(2);

/// Pause between two steps otherwise: at most 0.1 % of a processor.
const SLOW_PAUSE: Duration = Duration::from_millis(100);

/// The walk over the pages of a server. All reactors share it and run it in steps.
#[derive(Debug, Default)]
pub(crate) struct PageSweep {
    walk: Mutex<Walk>,
    /// Set if a value with pages has been removed since the last walk began.
    is_wanted: AtomicBool,
    /// Set while memory is exhausted and the last whole walk has removed nothing.
    is_vain: AtomicBool,
}

#[derive(Debug, Default)]
struct Walk {
    /// Position; `None` between two walks.
    cursor: Option<KeyHash>,
    /// Time of the last step.
    last: Instant,
    /// Orphans that the last step has found, until the grace period is over.
    found: Vec<SeenPage>,
    grace: Option<GracePeriod>,
    /// Set if orphans are expected in this walk.
    is_fast: bool,
    /// Set if memory was exhausted when this walk began.
    began_exhausted: bool,
    /// Number of pages that this walk has removed.
    removed: u64,
}

/// A page as a walk has seen it.
#[derive(Clone, Copy, Debug)]
struct SeenPage {
    name: PageName,
    version: Version,
}

impl PageSweep {
    /// Tells that a value with pages was removed.
    pub(crate) fn want(&self) {
        self.is_wanted.store(true, Ordering::Relaxed);
        self.is_vain.store(false, Ordering::Relaxed);
    }

    /// Returns whether a write that has found no memory may find some because orphans are removed.
    pub(crate) fn may_win_memory(&self, worker: &Worker) -> bool {
        worker.uses(TableId::PAGES) && !self.is_vain.load(Ordering::Relaxed)
    }

    /// Returns the time of the next step, if there are pages.
    pub(crate) fn next_step(&self, worker: &Worker) -> Option<Instant> {
        if !worker.uses(TableId::PAGES) {
            return None;
        }
        let walk = self.walk.try_lock().ok()?;
        Some(walk.last + walk.pause(worker))
    }

    /// Runs a step if it is due. Returns the number of pages that it has removed.
    pub(crate) fn step(&self, now: Instant, worker: &mut Worker) -> u64 {
        let Ok(mut walk) = self.walk.try_lock() else { return 0 };
        if !worker.uses(TableId::PAGES) {
            return 0;
        }
        if now < walk.last + walk.pause(worker) {
            return 0;
        }
        walk.last = now;
        let is_exhausted = worker.store().log().is_exhausted();
        match walk.grace.take() {
            Some(grace) if !worker.store().is_over(&grace) => {
                walk.grace = Some(grace);
                0
            }
            Some(_) => walk.remove(worker),
            None => {
                self.look(&mut walk, is_exhausted, worker);
                0
            }
        }
    }

    /// Looks at the next pages, and begins the grace period of the orphans among them.
    fn look(&self, walk: &mut Walk, is_exhausted: bool, worker: &mut Worker) {
        let cursor = walk.cursor.unwrap_or_else(|| {
            walk.is_fast = self.is_wanted.swap(false, Ordering::Relaxed);
            (walk.began_exhausted, walk.removed) = (is_exhausted, 0);
            KeyHash(0)
        });
        let mut pages = Vec::new();
        let next = worker.own_table(TableId::PAGES).walk(cursor, STEP_BUCKETS, |name, record| {
            let name = PageName::parse(name);
            pages.extend(name.map(|name| SeenPage { name, version: record.version }));
        });
        // The root of a value is looked at once.
        let mut known: HashMap<(TableId, KeyHash, Version), RootPages> = HashMap::new();
        for page in pages {
            let value = (page.name.table, page.name.root, page.name.id);
            let of_root = known.entry(value).or_insert_with(|| root_pages(page.name, worker));
            if !of_root.have(page.name) {
                walk.found.push(page);
            }
        }
        if !walk.found.is_empty() {
            walk.grace = Some(worker.store().grace_period());
            walk.is_fast = true;
        }
        assert!(next.is_none_or(|next| next > cursor), "a walk goes back");
        walk.cursor = next;
        if next.is_none() && walk.found.is_empty() && walk.began_exhausted {
            self.is_vain.store(is_exhausted && walk.removed == 0, Ordering::Relaxed);
        }
    }
}

impl Walk {
    /// Returns the pause between two steps.
    fn pause(&self, worker: &Worker) -> Duration {
        match self.is_fast || worker.store().log().is_exhausted() {
            true => FAST_PAUSE,
            false => SLOW_PAUSE,
        }
    }

    /// Removes the orphans that were found. Those that cannot be removed now are met by the next
    /// walk.
    fn remove(&mut self, worker: &mut Worker) -> u64 {
        let mut removed = 0;
        for page in std::mem::take(&mut self.found) {
            if root_pages(page.name, worker).have(page.name) {
                continue;
            }
            let (hash, name) = page.name.key(worker.store().seed());
            let key = Key { hash, bytes: &name };
            let unlinked = worker.own_table(TableId::PAGES).unlink(key, page.version);
            removed += u64::from(unlinked == Ok(true));
        }
        self.removed += removed;
        removed
    }
}

/// The pages of the value to which a page belongs.
#[derive(Clone, Copy, Debug)]
enum RootPages {
    /// There is no root.
    None,
    /// These.
    Are(PageInterval),
    /// It cannot be decided now.
    Unknown,
}

impl RootPages {
    /// Returns whether a root has this page. If that is not known, it counts as one that has.
    fn have(self, page: PageName) -> bool {
        match self {
            RootPages::None => false,
            RootPages::Are(pages) => pages.contains(page.page),
            RootPages::Unknown => true,
        }
    }
}

/// Looks for the root of a page.
fn root_pages(page: PageName, worker: &mut Worker) -> RootPages {
    let pages = Cell::new(None);
    let is_root = |record: store::Record<'_>| {
        let found = page.pages_of_root(record.value);
        pages.set(found);
        found.is_some()
    };
    match worker.own_table(TableId::PAGES).other_has(page.table, page.root, is_root) {
        Ok(true) => pages.get().map_or(RootPages::Unknown, RootPages::Are),
        Ok(false) => RootPages::None,
        Err(_) => RootPages::Unknown,
    }
}
