//! Ready segments: the numbers that decide when helper threads touch memory, and the calls that do
//! it. See `docs/design/memory.md`.

use super::Log;
use super::pool::FreeCounts;
use crate::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use crossbeam_utils::CachePadded;
use std::sync::OnceLock;

/// Number of reserved segments that are prepared ahead of the data. The whole reservation at once
/// would take the processor from requests for as long as a second.
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
    needed_min: usize,
    helpers: OnceLock<Helpers>,
    /// Set if a write, a cleaner or a replay waits for a ready segment.
    is_awaited: AtomicBool,
    /// Number of segments that were made ready.
    prepared: AtomicU64,
}

struct ReadyCounts {
    ready: AtomicUsize,
    fresh: AtomicUsize,
    needed: AtomicUsize,
}

struct Helpers {
    stock: usize,
    wake: WakeHelpers,
}

impl Readiness {
    /// Creates the state of a log with this number of reactors.
    pub(super) fn new(reactors: u16, free: FreeCounts) -> Readiness {
        let needed_min = usize::from(reactors) + 1;
        Readiness {
            counts: CachePadded::new(ReadyCounts {
                ready: AtomicUsize::new(free.ready),
                fresh: AtomicUsize::new(free.fresh),
                needed: AtomicUsize::new(needed_min),
            }),
            needed_min,
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
        let needed = self.needed_min + reserved.min(RESERVED_AHEAD);
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

    /// Returns the number of ready segments below which a helper works.
    fn target(&self, why: Preparation) -> usize {
        let needed = self.counts.needed.load(Ordering::Relaxed);
        match why {
            Preparation::Needed => needed,
            Preparation::Stock => self.helpers.get().map_or(0, |it| it.stock).max(needed),
        }
    }
}

impl Log {
    /// Sets the function that wakes the helper threads, which call [`Log::prepare`]. From now on
    /// writers and cleaners wait for ready segments. `stock` is the number of segments to keep
    /// ready at idle times.
    ///
    /// # Panics
    /// If it was set before: a bug of the caller.
    pub fn set_helpers(&self, stock: usize, wake: WakeHelpers) {
        let is_first = self.segments.readiness.helpers.set(Helpers { stock, wake }).is_ok();
        assert!(is_first, "a log has one set of helper threads");
        self.segments.set_has_helpers();
    }

    /// Wakes the helper threads that have work.
    pub fn wake_helpers(&self) {
        self.segments.readiness.wake_helpers();
    }

    /// Returns whether fewer segments are ready than wanted, and more can be made ready.
    pub fn lacks(&self, why: Preparation) -> bool {
        let readiness = &self.segments.readiness;
        let counts = &readiness.counts;
        counts.fresh.load(Ordering::Relaxed) > 0
            && counts.ready.load(Ordering::Relaxed) < readiness.target(why)
    }

    /// Makes one more segment ready, if fewer are ready than wanted. Returns `false` if there is
    /// nothing to do. For a helper thread: takes a millisecond or more.
    pub fn prepare(&self, why: Preparation) -> bool {
        self.lacks(why) && self.segments.prepare_next()
    }

    /// Returns whether a caller has waited for a ready segment since the last call. Then the
    /// reactors must be woken.
    pub fn take_awaited(&self) -> bool {
        self.segments.readiness.is_awaited.swap(false, Ordering::SeqCst)
    }

    /// Returns whether a writer would get a ready segment, or could get a fresh one.
    #[inline]
    pub fn has_ready(&self) -> bool {
        self.segments.readiness.has_ready(1)
    }

    /// Returns whether a replay may begin a quantum: one segment is ready for each reactor and
    /// one more, or no more can become ready. If not, [`Log::take_awaited`] returns `true` when
    /// there are some.
    #[inline]
    pub fn has_ready_for_replay(&self) -> bool {
        let readiness = &self.segments.readiness;
        let count = readiness.needed_min;
        readiness.has_ready(count) || {
            readiness.await_ready();
            // A helper may have made the last one ready before it could see the flag.
            readiness.has_ready(count)
        }
    }

    /// Returns whether a caller waits for a ready segment: see [`Log::take_awaited`].
    pub fn is_ready_awaited(&self) -> bool {
        self.segments.readiness.is_awaited.load(Ordering::SeqCst)
    }

    /// Returns the number of segments that were made ready so far.
    pub fn prepared(&self) -> u64 {
        self.segments.readiness.prepared.load(Ordering::Relaxed)
    }

    /// Gives the memory of ready segments back to the operating system, except the stock and
    /// those that were used since the last call. Returns the number of segments.
    pub fn trim(&self) -> usize {
        self.segments.trim(self.segments.readiness.target(Preparation::Stock))
    }

    /// Makes up to `most` free segments ready: for benchmarks and tests.
    pub fn prepare_segments(&self, most: usize) -> usize {
        (0..most).take_while(|_| self.segments.prepare_next()).count()
    }
}
