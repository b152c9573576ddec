//! The choice of segments to clean, and the iteration over their entries: see `docs/design/log.md`,
//! "Cleaning". Only the index knows which entries are live, so `objects` does the copying.

use super::state::{Place, SegmentSnapshot, SegmentState};
use super::{Log, Turn};
use crate::address::Address;
use crate::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::Arc;
use types::SegmentId;
use wire::entry::Entry;

/// Percentage of free segments below which the cleaner works. What is kept free makes the rest
/// fuller, and each freed byte dearer: at 84 % live of 1 GiB, 3 % copies a fifth more than 1 %
/// (`docs/design/cleaner.md`).
const LOW_PERCENT: usize = 1;

/// The same as an upper bound where a few percent are fewer segments than reactors, each of which
/// may take one at the same time.
const LOW_PERCENT_MAX: usize = 15;

/// Segments kept for cleaning beyond one per reactor. The cleaner may abandon a victim halfway if
/// it cannot lock a leaf; its copies have then freed nothing yet.
pub(super) const KEPT_MORE: usize = 1;

/// Number of segments that one search for a victim checks: 4 µs (measured: `docs/design/log.md`).
/// This covers all of a 16 GiB arena. A larger one is searched in consecutive windows.
pub(super) const SEARCH_SEGMENTS: usize = 2048;

/// Minimum yield of a victim as a part of a segment: copying more than 31 bytes to win one is not
/// worthwhile.
const YIELD_MIN_DIVISOR: usize = 32;

/// A closed segment claimed for cleaning: no other thread cleans or frees it. Dropping it ends
/// the claim, and frees the segment if it has no live entries.
pub struct VictimSegment {
    log: Arc<Log>,
    place: Place,
    /// Offset of the next entry.
    offset: usize,
    length: usize,
}

/// An entry of a victim. Only the index knows whether it is live.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<'t> {
    /// Address of the entry.
    pub address: Address,
    /// Parsed entry.
    pub entry: Entry<'t>,
    /// Encoded entry, with padding.
    pub encoded: &'t [u8],
}

impl VictimSegment {
    pub(super) fn new(log: Arc<Log>, place: Place) -> VictimSegment {
        let SegmentSnapshot { state, written, .. } = log.segments.glance(place);
        assert!(state == SegmentState::Cleaning, "{place:?} is {state:?} and was not claimed");
        let length = written as usize;
        VictimSegment { log, place, offset: 0, length }
    }

    /// Returns the number of the segment.
    pub fn id(&self) -> SegmentId {
        self.log.segments.id(self.place)
    }

    /// Returns the next entry; `None` at the end, or when the segment has no live entries.
    #[inline]
    pub fn peek<'t>(&self, turn: &'t Turn<'_>) -> Option<Candidate<'t>> {
        // In a durable log, dead entries must be processed, too: they may keep older versions
        // superseded.
        if self.offset == self.length || !self.log.is_durable() && self.live_bytes() == 0 {
            return None;
        }
        let address = self.log.segments.address(self.place, self.offset);
        let encoded = self.log.segments.encoded(address, turn);
        Some(Candidate { address, entry: super::parse(encoded), encoded })
    }

    /// Moves past the entry that [`VictimSegment::peek`] returned.
    #[inline]
    pub fn advance(&mut self, past: &Candidate<'_>) {
        assert!(past.address == self.log.segments.address(self.place, self.offset));
        self.offset += past.encoded.len();
        debug_assert!(self.offset <= self.length, "an entry extends past the segment's end");
    }

    /// Moves back to an earlier entry.
    pub(crate) fn go_back(&mut self, to: &Candidate<'_>) {
        let offset = self.log.segments.offset(to.address) as usize;
        assert!(
            self.log.segments.place_of(to.address) == self.place,
            "an entry of another segment"
        );
        assert!(offset <= self.offset, "the cleaner goes back from {} to {offset}", self.offset);
        self.offset = offset;
    }

    /// Marks the originals of copies as dead, several at a time.
    pub(crate) fn mark_moved(&mut self, bytes: u32) {
        if bytes > 0 {
            self.log.mark_dead_in(self.place, bytes);
        }
    }

    /// Returns the number of live bytes.
    #[inline]
    pub fn live_bytes(&self) -> u64 {
        u64::from(self.log.segments.glance(self.place).live())
    }
}

impl Drop for VictimSegment {
    /// Ends the claim. The segment is freed if it has no live entries; otherwise it is cleaned
    /// again later. A segment of a durable log becomes visited if the iteration has reached its
    /// end.
    fn drop(&mut self) {
        if self.offset == self.length && self.log.is_durable() {
            self.log.end_visit(self.place);
        } else {
            self.log.unclaim(self.place);
        }
    }
}

/// Number of free segments that the cleaner must provide, and the results of its searches.
pub(super) struct CleaningDemand {
    /// Number of free segments below which the cleaner works.
    low: usize,
    /// Number of free segments that a refused reservation or demand needs. Reset when a
    /// reservation is granted or the cleaner finds no more victims.
    asked: AtomicUsize,
    /// Place at which the next search for a victim begins.
    search_from: AtomicU32,
    /// Number of consecutive table windows without a victim.
    vain_searches: AtomicU32,
    /// Result of the last complete search for victims: see [`Log::is_exhausted`].
    is_exhausted: AtomicBool,
}

impl CleaningDemand {
    /// Creates the demand of a log whose memory has `count` segments.
    pub(super) fn new(count: usize, reactors: u16) -> CleaningDemand {
        let percent = |percent: usize| (count * percent).div_ceil(100);
        CleaningDemand {
            low: percent(LOW_PERCENT).max(percent(LOW_PERCENT_MAX).min(usize::from(reactors) + 1)),
            asked: AtomicUsize::new(0),
            search_from: AtomicU32::new(0),
            vain_searches: AtomicU32::new(0),
            is_exhausted: AtomicBool::new(false),
        }
    }

    /// Returns the number of free segments below which the cleaner works.
    #[inline]
    pub(super) fn segments(&self) -> usize {
        self.low.max(self.asked.load(Ordering::Relaxed))
    }

    /// Raises the demand to at least this number of free segments.
    pub(super) fn raise(&self, segments: usize) {
        self.asked.fetch_max(segments, Ordering::Relaxed);
    }

    /// Replaces an earlier demand; 0 withdraws it.
    pub(super) fn set(&self, segments: usize) {
        self.asked.store(segments, Ordering::Relaxed);
    }

    /// Returns the memory shortage in percent: 0 while half of the target is free, 100 when
    /// nothing is.
    #[inline]
    pub(super) fn shortage_percent(&self, free: usize) -> u8 {
        let half = self.low.div_ceil(2);
        let missing = half.saturating_sub(free);
        (100 * missing / half) as u8
    }

    /// Returns whether the last complete search found no victim while nothing was free.
    #[inline]
    pub(super) fn is_exhausted(&self) -> bool {
        self.is_exhausted.load(Ordering::Relaxed)
    }

    /// Returns the places that the next search checks, of a table of `count` places.
    pub(super) fn next_window(&self, count: u32) -> impl Iterator<Item = Place> + use<> {
        let window = window_of(count);
        let from = self.search_from.fetch_add(window, Ordering::Relaxed) % count;
        (0..window).map(move |i| Place((from + i) % count))
    }

    /// Resets the search results: segments that were not worth cleaning may be now.
    pub(super) fn reset_searches(&self) {
        self.vain_searches.store(0, Ordering::Relaxed);
        self.is_exhausted.store(false, Ordering::Relaxed);
    }

    /// Records a search without a victim. After one in every window of the table, the demand is
    /// withdrawn. `free` is the number of free segments.
    pub(super) fn record_vain_search(&self, count: u32, free: usize) {
        let vain = self.vain_searches.fetch_add(1, Ordering::Relaxed) + 1;
        if vain >= count.div_ceil(window_of(count)) {
            self.reset_searches();
            self.set(0);
            self.is_exhausted.store(free == 0, Ordering::Relaxed);
        }
    }
}

/// Returns the number of places that one search checks.
fn window_of(count: u32) -> u32 {
    count.min(SEARCH_SEGMENTS as u32)
}

/// Criteria of the choice of a victim.
pub(super) struct VictimCriteria {
    pub(super) segment_bytes: usize,
}

/// Result of a search in one window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum VictimChoice {
    /// The segment of the window that is most worth cleaning.
    Victim(Place),
    /// No victim, but other segments are being cleaned, or wait for their grace period or for
    /// acknowledgment.
    UnderWay,
    /// Nothing to win.
    Nothing,
}

/// Benefit of cleaning a segment, as a fraction: won bytes times age, divided by copied bytes.
#[derive(Clone, Copy, Debug)]
struct Worth {
    benefit: u64,
    cost: u32,
}

impl Worth {
    fn exceeds(self, other: Worth) -> bool {
        let product = |benefit: u64, cost: u32| u128::from(benefit) * u128::from(cost);
        product(self.benefit, other.cost) > product(other.benefit, self.cost)
    }
}

impl VictimCriteria {
    /// Searches a window of the table. `age` returns the age of a closed segment; `None` if it may
    /// not be cleaned yet.
    pub(super) fn choose(
        &self,
        window: impl Iterator<Item = Place>,
        age: impl Fn(Place) -> Option<u64>,
        glance: impl Fn(Place) -> SegmentSnapshot,
    ) -> VictimChoice {
        let mut best: Option<(Worth, Place)> = None;
        let mut is_under_way = false;
        for place in window {
            let glance = glance(place);
            match glance.state {
                SegmentState::Closed if self.is_worth_it(&glance) => match age(place) {
                    Some(age) => {
                        let worth = self.worth(&glance, age);
                        if best.is_none_or(|(best, _)| worth.exceeds(best)) {
                            best = Some((worth, place));
                        }
                    }
                    None => is_under_way = true,
                },
                SegmentState::Cleaning
                | SegmentState::Visited
                | SegmentState::Leaving
                | SegmentState::Retired => is_under_way = true,
                SegmentState::Free
                | SegmentState::Open
                | SegmentState::Side
                | SegmentState::Closed
                | SegmentState::Chunks => {}
            }
        }
        match best {
            Some((_, place)) => VictimChoice::Victim(place),
            None if is_under_way => VictimChoice::UnderWay,
            None => VictimChoice::Nothing,
        }
    }

    /// Returns whether copying the live entries wins memory. Dead bytes are won. An unused tail
    /// comes back in the copy, unless it is at least half of the segment. Then the contents of
    /// two such segments fit into one, if no entry is longer than half a segment.
    fn is_worth_it(&self, glance: &SegmentSnapshot) -> bool {
        glance.dead as usize >= self.segment_bytes / YIELD_MIN_DIVISOR || self.won_tail(glance) > 0
    }

    /// Returns the benefit of cleaning a segment of this age. An old segment of which as much is
    /// live as of a young one loses more slowly, so waiting wins less (`docs/design/cleaner.md`).
    fn worth(&self, glance: &SegmentSnapshot, age: u64) -> Worth {
        let won = u64::from(glance.dead) + self.won_tail(glance) as u64;
        Worth { benefit: won.saturating_mul(age), cost: glance.live() }
    }

    fn won_tail(&self, glance: &SegmentSnapshot) -> usize {
        let tail = self.segment_bytes - glance.written as usize;
        if tail >= self.segment_bytes / 2 { tail } else { 0 }
    }
}
