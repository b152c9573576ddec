//! State of eviction that the reactors of a server share: how much to evict, as of the last
//! measurement of the live bytes.

use crate::settings::LiveSettings;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use store::Store;
use store::log::Log;
use types::{EvictionPolicy, Instant};

/// Shortest and longest time between two measurements, and the number of bytes per second that
/// the fastest writers may add meanwhile.
const MEASURE_PAUSE_MIN: Duration = Duration::from_millis(1);
const MEASURE_PAUSE_MAX: Duration = Duration::from_millis(100);
const GROWTH_BYTES_PER_MILLI: u64 = 2 << 20;

/// Pause after a round through all records that has found none to evict.
const VAIN_PAUSE: Duration = Duration::from_millis(100);

/// Number of segments of which one quantum adds up the live bytes: 10 µs.
const SEGMENTS_PER_QUANTUM: u32 = 2_048;

/// State of eviction that the reactors of a server share.
#[derive(Debug, Default)]
pub(crate) struct EvictionState {
    /// Bytes to evict, as of the last measurement.
    excess_bytes: AtomicU64,
    /// Time of the next measurement.
    measure_at: AtomicU64,
    /// Set while no record can be evicted.
    is_vain: AtomicBool,
    /// Bytes of the pages of evicted values that have not been removed yet.
    pending_bytes: AtomicU64,
    measurement: Mutex<Measurement>,
}

/// A measurement in progress.
#[derive(Debug, Default)]
struct Measurement {
    /// Segment at which it goes on.
    next: u32,
    bytes: i64,
}

impl EvictionState {
    /// Returns whether a write that found no memory may find some because records are evicted.
    pub(crate) fn may_win_memory(&self, live: &LiveSettings) -> bool {
        let may_evict = live.eviction.policy != EvictionPolicy::NoEviction;
        may_evict && !self.is_vain.load(Ordering::Relaxed)
            || self.pending_bytes.load(Ordering::Relaxed) > 0
    }

    /// Applies new settings to the store, and retries what was in vain under the old ones.
    pub(crate) fn follow(&self, live: &LiveSettings, store: &Store) {
        store.set_eviction_order(live.eviction.policy.order());
        store.log().set_limit(live.memory_limit);
        self.excess_bytes.store(0, Ordering::Relaxed);
        self.measure_at.store(0, Ordering::Relaxed);
        self.is_vain.store(false, Ordering::Relaxed);
    }

    /// Returns the missing memory in percent: 100 when the live bytes exceed their limit by a
    /// tenth of it, as much as the cleaner needs at least.
    pub(crate) fn shortage_percent(&self, log: &Log) -> u8 {
        let excess = self.excess_bytes();
        if excess == 0 {
            return 0;
        }
        (1000 * excess / log.live_bytes_max().max(1)).min(100) as u8
    }

    /// Returns whether there is something to evict, or a measurement is due.
    pub(crate) fn has_work(&self, now: Instant, log: &Log) -> bool {
        if self.excess_bytes() > 0 {
            return true;
        }
        now >= self.measure_at() && log.may_be_crowded()
    }

    /// Goes on measuring. At the end, sets the excess and the time of the next measurement.
    pub(crate) fn measure(&self, now: Instant, log: &Log) {
        let mut measurement = self.measurement.lock().unwrap_or_else(PoisonError::into_inner);
        let (bytes, next) = log.live_bytes_from(measurement.next, SEGMENTS_PER_QUANTUM);
        assert!(next == 0 || next > measurement.next, "a measurement goes on");
        let sum = measurement.bytes + bytes;
        *measurement = Measurement { next, bytes: if next == 0 { 0 } else { sum } };
        if next > 0 {
            return;
        }
        let pending = self.pending_bytes.load(Ordering::Relaxed);
        let (live, limit) = ((sum.max(0) as u64).saturating_sub(pending), log.live_bytes_max());
        let mut excess = live.saturating_sub(limit);
        if excess == 0 && log.is_exhausted() {
            excess = log.segment_bytes() as u64;
        }
        self.excess_bytes.store(excess, Ordering::Relaxed);
        assert!(excess <= live || log.is_exhausted(), "{excess} of {live} bytes exceed the limit");
        let pause = Duration::from_millis(limit.saturating_sub(live) / GROWTH_BYTES_PER_MILLI);
        let pause = match log.has_free() {
            true => pause.clamp(MEASURE_PAUSE_MIN, MEASURE_PAUSE_MAX),
            false => MEASURE_PAUSE_MIN,
        };
        self.measure_at.store((now + pause).0, Ordering::Relaxed);
    }

    /// Subtracts evicted bytes from the excess.
    pub(crate) fn evicted(&self, bytes: u64) {
        let subtract = |excess: u64| Some(excess.saturating_sub(bytes));
        let _ = self.excess_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, subtract);
        self.is_vain.store(false, Ordering::Relaxed);
    }

    /// Adds bytes of pages whose value has been evicted.
    pub(crate) fn add_pending(&self, bytes: u64) {
        self.pending_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Subtracts bytes of such pages that have been removed, or are left to the walk over all pages.
    pub(crate) fn remove_pending(&self, bytes: u64) {
        let before = self.pending_bytes.fetch_sub(bytes, Ordering::Relaxed);
        assert!(before >= bytes, "{bytes} of {before} pending bytes are removed");
    }

    /// Records that no record can be evicted.
    pub(crate) fn found_none(&self, now: Instant) {
        self.is_vain.store(true, Ordering::Relaxed);
        self.excess_bytes.store(0, Ordering::Relaxed);
        self.measure_at.store((now + VAIN_PAUSE).0, Ordering::Relaxed);
    }

    /// Returns the bytes to evict.
    pub(crate) fn excess_bytes(&self) -> u64 {
        self.excess_bytes.load(Ordering::Relaxed)
    }

    /// Returns the time of the next measurement.
    pub(crate) fn measure_at(&self) -> Instant {
        Instant(self.measure_at.load(Ordering::Relaxed))
    }
}
