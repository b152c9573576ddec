//! The numbers that decide when helper threads touch memory, which are read without the pool's
//! lock. See `docs/design/memory.md`.

use super::pool::FreeCounts;
use crate::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use crossbeam_utils::CachePadded;
use std::sync::OnceLock;
use types::limits::SEGMENT_BYTES;

/// Number of reserved segments that are prepared ahead of the data, or twice as many if they are
/// not of full size. The whole reservation at once would take the processor from requests for as
/// long as a second.
const RESERVED_AHEAD: usize = 4;

/// The reason for making segments ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preparation {
    /// Writers, migrations and recoveries will soon take them.
    Needed,
    /// A stock for bursts.
    Stock,
}

/// Wakes the helper threads for this preparation. Called with no lock held.
pub type WakeHelpers = Box<dyn Fn(Preparation) + Send + Sync>;

/// State of readiness that is read without the pool's lock.
pub(super) struct Readiness {
    counts: CachePadded<ReadyCounts>,
    /// Segments needed besides the reserved ones.
    pub(super) needed_min: usize,
    /// Reserved segments that are needed at a time.
    reserved_ahead: usize,
    pub(super) helpers: OnceLock<Helpers>,
    /// Set if a write, a cleaner or a replay waits for a ready segment.
    pub(super) is_awaited: AtomicBool,
    /// Number of segments that were made ready.
    pub(super) prepared: AtomicU64,
}

struct ReadyCounts {
    ready: AtomicUsize,
    fresh: AtomicUsize,
    needed: AtomicUsize,
}

/// The helper threads of a log.
pub(super) struct Helpers {
    pub(super) stock: usize,
    pub(super) wake: WakeHelpers,
}

impl Readiness {
    /// Creates the state of a log with this number of reactors and this size of a segment.
    pub(super) fn new(reactors: u16, segment_bytes: usize, free: FreeCounts) -> Readiness {
        let needed_min = usize::from(reactors) + 1;
        let reserved_ahead = RESERVED_AHEAD * (SEGMENT_BYTES / segment_bytes).clamp(1, 2);
        Readiness {
            counts: CachePadded::new(ReadyCounts {
                ready: AtomicUsize::new(free.ready),
                fresh: AtomicUsize::new(free.fresh),
                needed: AtomicUsize::new(needed_min),
            }),
            needed_min,
            reserved_ahead,
            helpers: OnceLock::new(),
            is_awaited: AtomicBool::new(false),
            prepared: AtomicU64::new(0),
        }
    }

    /// Publishes the pool's counts. The caller holds the pool's lock.
    pub(super) fn publish(&self, counts: FreeCounts) {
        let FreeCounts { ready, fresh, reserved, .. } = counts;
        self.counts.ready.store(ready, Ordering::Relaxed);
        self.counts.fresh.store(fresh, Ordering::Relaxed);
        let needed = self.needed_min + reserved.min(self.reserved_ahead);
        self.counts.needed.store(needed, Ordering::Relaxed);
    }

    /// Wakes the helpers that have work.
    pub(super) fn wake_helpers(&self) {
        let Some(helpers) = self.helpers.get() else { return };
        let ready = self.counts.ready.load(Ordering::Relaxed);
        if self.counts.fresh.load(Ordering::Relaxed) == 0 {
            return;
        }
        if ready < self.target(Preparation::Needed) {
            (helpers.wake)(Preparation::Needed);
        } else if ready < helpers.stock / 2 {
            (helpers.wake)(Preparation::Stock);
        }
    }

    /// Counts a segment that was made ready.
    pub(super) fn count_prepared(&self) {
        self.prepared.fetch_add(1, Ordering::Relaxed);
    }

    /// Records that a caller waits for a ready segment.
    pub(super) fn await_ready(&self) {
        self.is_awaited.store(true, Ordering::SeqCst);
    }

    /// Returns whether `count` segments are ready, or no more can become ready.
    #[inline]
    pub(super) fn has_ready(&self, count: usize) -> bool {
        self.counts.ready.load(Ordering::SeqCst) >= count
            || self.counts.fresh.load(Ordering::Relaxed) == 0
            || self.helpers.get().is_none()
    }

    /// Returns whether fewer segments are ready than wanted, and more can be made ready.
    pub(super) fn lacks(&self, why: Preparation) -> bool {
        self.counts.fresh.load(Ordering::Relaxed) > 0
            && self.counts.ready.load(Ordering::Relaxed) < self.target(why)
    }

    /// Returns the number of ready segments below which a helper works.
    pub(super) fn target(&self, why: Preparation) -> usize {
        let needed = self.counts.needed.load(Ordering::Relaxed);
        match why {
            Preparation::Needed => needed,
            Preparation::Stock => self.helpers.get().map_or(0, |it| it.stock).max(needed),
        }
    }
}
