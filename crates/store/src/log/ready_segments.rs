//! Calls for the helper threads that touch memory, and for those that wait for ready segments. See
//! `docs/design/memory.md`.

use super::Log;
use super::readiness::{Helpers, Preparation, WakeHelpers};
use super::segment::Segments;
use crate::sync::atomic::Ordering;

/// The ready segments of a log.
#[derive(Clone, Copy)]
pub struct ReadySegments<'l> {
    segments: &'l Segments,
}

impl Log {
    /// Returns the ready segments, for helper threads and for those that wait for them.
    #[inline]
    pub fn ready_segments(&self) -> ReadySegments<'_> {
        ReadySegments { segments: &self.segments }
    }

    /// Makes up to `most` free segments ready: for benchmarks and tests.
    pub fn prepare_segments(&self, most: usize) -> usize {
        (0..most).take_while(|_| self.segments.prepare_next(usize::MAX, false)).count()
    }
}

impl ReadySegments<'_> {
    /// Sets the function that wakes the helper threads, which call [`ReadySegments::prepare`]. From now on
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
    pub fn lack(&self, why: Preparation) -> bool {
        self.segments.readiness.lacks(why)
    }

    /// Makes one more segment ready, if fewer are ready than wanted. Returns `false` if there is
    /// nothing to do. For a helper thread: takes a millisecond or more.
    pub fn prepare(&self, why: Preparation) -> bool {
        let wanted = self.segments.readiness.target(why);
        self.lack(why) && self.segments.prepare_next(wanted, why == Preparation::Needed)
    }

    /// Returns whether a caller has waited for a ready segment since the last call. Then the
    /// reactors must be woken.
    pub fn take_awaited(&self) -> bool {
        self.segments.readiness.is_awaited.swap(false, Ordering::SeqCst)
    }

    /// Returns whether a writer would get a ready segment, or could get a fresh one.
    #[inline]
    pub fn has_one(&self) -> bool {
        self.segments.readiness.has_ready(1)
    }

    /// Returns whether a replay may begin a quantum: one segment is ready for each reactor and
    /// one more, or no more can become ready. If not, [`ReadySegments::take_awaited`] returns `true` when
    /// there are some.
    #[inline]
    pub fn suffice_for_replay(&self) -> bool {
        let readiness = &self.segments.readiness;
        let count = readiness.needed_min;
        readiness.has_ready(count) || {
            readiness.await_ready();
            // A helper may have made the last one ready before it could see the flag.
            readiness.has_ready(count)
        }
    }

    /// Returns whether a caller waits for a ready segment: see [`ReadySegments::take_awaited`].
    pub fn is_awaited(&self) -> bool {
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
}
