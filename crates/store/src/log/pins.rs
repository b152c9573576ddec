//! Tombstones that must stay: each as long as the segment of the version that it keeps dead would be
//! read after a crash.
//!
//! Such a tombstone is pinned: its bytes count as live in the segment that it stands in, the *holder*,
//! until the dead version's segment is gone. Only tombstones that no index word points at are pinned;
//! the others live by their word. Which tombstone is which nobody keeps: the cleaner finds no word
//! for it, and the dead version's segment is still there.
#![forbid(unsafe_code)]

use super::segment::Place;
use crate::sync::{Mutex, MutexGuard};
use std::collections::BTreeMap;
use types::SegmentId;

const SHARDS: usize = 16;

/// Bytes per holder.
type Holders = BTreeMap<Place, u32>;

/// Which segments hold tombstones for the sake of which others.
pub(super) struct Pins {
    /// By the dead version's segment.
    shards: [Mutex<BTreeMap<SegmentId, Holders>>; SHARDS],
    /// Of tombstones that are needed as long as any segment up to this one is there.
    up_to: Mutex<BTreeMap<SegmentId, Holders>>,
}

impl Pins {
    pub(super) fn new() -> Pins {
        Pins {
            shards: std::array::from_fn(|_| Mutex::new(BTreeMap::new())),
            up_to: Mutex::new(BTreeMap::new()),
        }
    }

    /// Pins bytes of the holder if the dead version's segment `is_here`, which is asked in the
    /// same moment.
    pub(super) fn pin(
        &self,
        dead: Pin,
        holder: Place,
        bytes: u32,
        is_here: impl FnOnce() -> bool,
    ) -> bool {
        let mut pins = self.of(dead);
        let is_here = is_here();
        if is_here {
            *pins.entry(dead.segment()).or_default().entry(holder).or_default() += bytes;
        }
        is_here
    }

    /// Ends the pin of so many bytes of the holder. `false`: they were not pinned any more.
    pub(super) fn unpin(&self, dead: Pin, holder: Place, bytes: u32) -> bool {
        let mut pins = self.of(dead);
        let Some(holders) = pins.get_mut(&dead.segment()) else { return false };
        let pinned = holders.get_mut(&holder).expect("what has no word is pinned by its holder");
        *pinned = pinned.checked_sub(bytes).expect("no more is unpinned than was pinned");
        if *pinned == 0 {
            holders.remove(&holder);
        }
        true
    }

    /// Ends all pins for the sake of a segment that is gone; returns what they held.
    pub(super) fn release(&self, gone: SegmentId) -> Holders {
        self.of(Pin::At(gone)).remove(&gone).unwrap_or_default()
    }

    /// Ends all pins for the sake of segments that are not there.
    pub(super) fn release_absent(&self, is_here: impl Fn(SegmentId) -> bool) -> Holders {
        let mut released = Holders::new();
        for shard in &self.shards {
            lock(shard).retain(|dead, holders| {
                let is_needed = is_here(*dead);
                if !is_needed {
                    add(&mut released, holders);
                }
                is_needed
            });
        }
        released
    }

    /// Ends all pins for the sake of segments up to numbers below the lowest that is there.
    pub(super) fn release_below(&self, lowest: Option<SegmentId>) -> Holders {
        let mut pins = lock(&self.up_to);
        let needed = lowest.map_or_else(BTreeMap::new, |lowest| pins.split_off(&lowest));
        let mut released = Holders::new();
        pins.values().for_each(|holders| add(&mut released, holders));
        *pins = needed;
        released
    }

    /// All that is pinned.
    pub(super) fn bytes(&self) -> u64 {
        let all = self.shards.iter().chain(std::iter::once(&self.up_to));
        let sum = |pins: &Mutex<BTreeMap<SegmentId, Holders>>| {
            lock(pins)
                .values()
                .flat_map(Holders::values)
                .map(|&bytes| u64::from(bytes))
                .sum::<u64>()
        };
        all.map(sum).sum()
    }

    fn of(&self, dead: Pin) -> MutexGuard<'_, BTreeMap<SegmentId, Holders>> {
        match dead {
            Pin::At(segment) => lock(&self.shards[segment.0 as usize % SHARDS]),
            Pin::UpTo(_) => lock(&self.up_to),
        }
    }
}

/// For the sake of which segments a tombstone stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pin {
    /// Of this one.
    At(SegmentId),
    /// Of any up to this one.
    UpTo(SegmentId),
}

impl Pin {
    fn segment(self) -> SegmentId {
        match self {
            Pin::At(segment) | Pin::UpTo(segment) => segment,
        }
    }
}

fn add(sum: &mut Holders, holders: &Holders) {
    for (holder, bytes) in holders {
        *sum.entry(*holder).or_default() += bytes;
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("nothing panics while it holds the pins' lock")
}
