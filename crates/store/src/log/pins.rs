//! Pins: tombstones that must stay, because the segment of the version that they supersede would
//! still be read after a crash.
//!
//! A pinned tombstone counts as live in its own segment, the *holder*, until the superseded
//! version's segment has left the log. Only tombstones without an index word are pinned; the
//! others are live by their word. Pins are counted in bytes per pair of segments. There is no
//! list of tombstones: the cleaner finds that no word points at a tombstone, and that the
//! superseded version's segment is still there.

use super::state::Place;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Mutex, MutexGuard};
use std::collections::BTreeMap;
use types::SegmentId;

const SHARDS: usize = 16;

/// Pinned bytes per holder.
type PinnedBytes = BTreeMap<Place, u32>;

/// Pinned bytes by superseded segment and holder.
pub(super) struct Pins {
    /// By the superseded version's segment.
    shards: [Mutex<BTreeMap<SegmentId, PinnedBytes>>; SHARDS],
    /// Pins of tombstones that are needed while any segment up to this one is in the log.
    up_to: Mutex<BTreeMap<SegmentId, PinnedBytes>>,
    /// Sum of all pinned bytes. Changed under the lock of the changed pins.
    total: AtomicU64,
}

impl Pins {
    pub(super) fn new() -> Pins {
        Pins {
            shards: std::array::from_fn(|_| Mutex::new(BTreeMap::new())),
            up_to: Mutex::new(BTreeMap::new()),
            total: AtomicU64::new(0),
        }
    }

    /// Pins bytes of the holder if the superseded version's segment `is_here`. The check runs
    /// under the same lock.
    pub(super) fn pin(
        &self,
        dead: Pin,
        holder: Place,
        bytes: u32,
        is_here: impl FnOnce() -> bool,
    ) -> bool {
        assert!(bytes > 0, "an empty tombstone is pinned in {holder:?}");
        let mut pins = self.of(dead);
        let is_here = is_here();
        if is_here {
            *pins.entry(dead.segment()).or_default().entry(holder).or_default() += bytes;
            self.total.fetch_add(u64::from(bytes), Ordering::Relaxed);
        }
        is_here
    }

    /// Removes the pin of `bytes` in the holder. Returns `false` if they were not pinned any
    /// more.
    pub(super) fn unpin(&self, dead: Pin, holder: Place, bytes: u32) -> bool {
        let mut pins = self.of(dead);
        let Some(holders) = pins.get_mut(&dead.segment()) else { return false };
        let pinned = holders.get_mut(&holder).expect("an entry without an index word is pinned");
        *pinned = pinned.checked_sub(bytes).expect("no more is unpinned than was pinned");
        if *pinned == 0 {
            holders.remove(&holder);
        }
        self.subtract(u64::from(bytes));
        true
    }

    /// Removes all pins on a segment that has left the log, and returns them.
    pub(super) fn release(&self, gone: SegmentId) -> PinnedBytes {
        let mut pins = self.of(Pin::At(gone));
        let released = pins.remove(&gone).unwrap_or_default();
        self.subtract(sum_of(&released));
        released
    }

    /// Removes all pins on segments that are not in the log, and returns them.
    pub(super) fn release_absent(&self, is_here: impl Fn(SegmentId) -> bool) -> PinnedBytes {
        let mut released = PinnedBytes::new();
        for shard in &self.shards {
            lock(shard).retain(|dead, holders| {
                let is_needed = is_here(*dead);
                if !is_needed {
                    self.subtract(sum_of(holders));
                    add(&mut released, holders);
                }
                is_needed
            });
        }
        released
    }

    /// Removes all "up to" pins on segments below the lowest one in the log, and returns them.
    pub(super) fn release_below(&self, lowest: Option<SegmentId>) -> PinnedBytes {
        let mut pins = lock(&self.up_to);
        let needed = lowest.map_or_else(BTreeMap::new, |lowest| pins.split_off(&lowest));
        let mut released = PinnedBytes::new();
        pins.values().for_each(|holders| add(&mut released, holders));
        self.subtract(sum_of(&released));
        *pins = needed;
        released
    }

    /// Returns the total of pinned bytes.
    #[inline]
    pub(super) fn bytes(&self) -> u64 {
        self.total.load(Ordering::Relaxed)
    }

    fn subtract(&self, bytes: u64) {
        let before = self.total.fetch_sub(bytes, Ordering::Relaxed);
        assert!(before >= bytes, "{bytes} of {before} pinned bytes are released");
    }

    fn of(&self, dead: Pin) -> MutexGuard<'_, BTreeMap<SegmentId, PinnedBytes>> {
        match dead {
            Pin::At(segment) => lock(&self.shards[segment.0 as usize % SHARDS]),
            Pin::UpTo(_) => lock(&self.up_to),
        }
    }
}

/// Condition under which a tombstone must stay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pin {
    /// While this segment is in the log.
    At(SegmentId),
    /// While any segment up to this one is in the log.
    UpTo(SegmentId),
}

impl Pin {
    fn segment(self) -> SegmentId {
        match self {
            Pin::At(segment) | Pin::UpTo(segment) => segment,
        }
    }
}

fn add(sum: &mut PinnedBytes, holders: &PinnedBytes) {
    for (holder, bytes) in holders {
        *sum.entry(*holder).or_default() += bytes;
    }
}

fn sum_of(holders: &PinnedBytes) -> u64 {
    holders.values().map(|&bytes| u64::from(bytes)).sum()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("nothing panics while it holds the pins' lock")
}

#[cfg(test)]
#[cfg(not(feature = "shuttle"))]
mod tests {
    use super::*;
    use fastrand::Rng;

    impl Pins {
        /// Adds up all pins.
        fn recount(&self) -> u64 {
            let all = self.shards.iter().chain(std::iter::once(&self.up_to));
            all.map(|pins| lock(pins).values().map(sum_of).sum::<u64>()).sum()
        }
    }

    #[test]
    fn the_total_is_the_sum_of_all_pins() {
        let (mut rng, pins) = (Rng::with_seed(1), Pins::new());
        let mut pinned: Vec<(Pin, Place, u32)> = Vec::new();
        let mut largest = 0;
        for _ in 0..20_000 {
            let segment = SegmentId(rng.u64(1..40));
            match rng.u32(..1_000) {
                0 => drop(pins.release_absent(|it| it.0 % 3 != segment.0 % 3)),
                1..5 => drop(pins.release_below(Some(segment))),
                5 => drop(pins.release_below(None)),
                6..30 => drop(pins.release(segment)),
                30..600 => {
                    let dead = if rng.bool() { Pin::At(segment) } else { Pin::UpTo(segment) };
                    let (holder, bytes) = (Place(rng.u32(..8)), rng.u32(1..200));
                    if pins.pin(dead, holder, bytes, || segment.0 > 3) {
                        pinned.push((dead, holder, bytes));
                    }
                }
                _ if pinned.is_empty() => {}
                _ => {
                    let (dead, holder, bytes) = pinned.swap_remove(rng.usize(..pinned.len()));
                    pins.unpin(dead, holder, bytes);
                }
            }
            // Pins that were released are not unpinned.
            pinned.retain(|(dead, holder, _)| {
                pins.of(*dead).get(&dead.segment()).is_some_and(|it| it.contains_key(holder))
            });
            assert_eq!(pins.bytes(), pins.recount());
            largest = largest.max(pins.bytes());
        }
        assert!(largest > 1_000, "at most {largest} bytes were pinned");
    }
}
