//! The [`DurableLog`]: the part of a log that is read again after a crash. It knows which segments
//! are in the log, and which tombstones must stay in them.

use super::marks::MarkBarrier;
use super::pins::{Pin, Pins};
use super::reclamation::Turn;
use super::registry::SegmentRegistry;
use super::segment::Segments;
use super::state::Place;
use crate::address::Address;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::{Mutex, MutexGuard};
use planted::Bug;
use std::sync::OnceLock;
use std::{collections::BTreeMap, sync::Arc};
use types::{SegmentId, Version};
use wire::entry::{Dead, Location};
use wire::manifest::VersionCut;

/// State that exists only for a durable log.
pub(crate) struct DurableLog {
    segments: Arc<Segments>,
    pub(crate) registry: SegmentRegistry,
    pub(super) pins: Pins,
    /// Set while segments from before a crash are adopted: the set of segments is incomplete
    /// until the end.
    is_adopting: AtomicBool,
    /// Per segment, the farthest offset that adopted entries name.
    named: Mutex<BTreeMap<SegmentId, u32>>,
    /// Adopted entries that do not count.
    cuts: OnceLock<Vec<VersionCut>>,
    /// Number of such entries in the segments entered so far.
    ignored: AtomicU64,
}

impl DurableLog {
    pub(super) fn new(segments: Arc<Segments>) -> DurableLog {
        DurableLog {
            segments,
            registry: SegmentRegistry::new(),
            pins: Pins::new(),
            is_adopting: AtomicBool::new(false),
            named: Mutex::new(BTreeMap::new()),
            cuts: OnceLock::new(),
            ignored: AtomicU64::new(0),
        }
    }

    /// Sets the entries that do not count, before any segment is adopted.
    pub(crate) fn ignore(&self, cuts: Vec<VersionCut>) {
        assert!(!self.is_adopting.load(Ordering::Relaxed), "segments were adopted before");
        assert!(self.cuts.set(cuts).is_ok(), "the cuts are set once");
    }

    /// Returns whether an entry does not count, because a loss of power may have taken entries
    /// before it.
    #[inline]
    pub(crate) fn ignores(&self, segment: SegmentId, version: Version) -> bool {
        let cuts = self.cuts.get().map_or(&[][..], |cuts| cuts);
        cuts.iter().any(|cut| cut.ignores(segment, version)) && !planted::is(Bug::KeptAboveMark)
    }

    /// Returns how many adopted entries were ignored.
    pub(crate) fn ignored(&self) -> u64 {
        self.ignored.load(Ordering::Relaxed)
    }

    /// Records that an adopted entry was ignored.
    pub(crate) fn count_ignored(&self) {
        self.ignored.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the barrier of a mark whose entries are all appended.
    pub(crate) fn mark_barrier(&self) -> MarkBarrier {
        MarkBarrier::of(&self.segments)
    }

    /// Returns whether everything before the barrier is synced.
    pub(crate) fn is_synced(&self, barrier: &mut MarkBarrier) -> bool {
        barrier.is_synced(&self.segments)
    }

    /// Records that a mark is in the manifest: segments may leave the log.
    pub(crate) fn note_marked(&self, number: u64) {
        self.registry.note_marked(&self.segments, number);
    }

    /// Begins or continues the adoption of segments from before a crash.
    pub(super) fn begin_adoption(&self) {
        if !self.is_adopting.swap(true, Ordering::Relaxed) {
            self.segments.set_adopting(true);
        }
    }

    /// Ends adoption, after all segments have been entered. Removes the pins on segments that are
    /// not in the log, and the origins of copies that are not.
    pub(crate) fn end_adoption(&self) {
        let DurableLog { registry, pins, is_adopting, .. } = self;
        is_adopting.store(false, Ordering::Relaxed);
        self.segments.set_adopting(false);
        registry.end_adoption(&self.segments);
        let released = pins.release_absent(|segment| registry.contains(segment));
        released.into_iter().for_each(|(holder, bytes)| self.mark_dead(holder, bytes));
        let released = pins.release_below(registry.lowest());
        released.into_iter().for_each(|(holder, bytes)| self.mark_dead(holder, bytes));
    }

    /// Removes a segment that was reported as dead, and the pins on it. Returns its place.
    pub(super) fn release(&self, segment: SegmentId) -> Place {
        let place = self.registry.release(&self.segments, segment);
        // Later calls of `pin` find that the segment is not in the log.
        let mut unpinned = self.pins.release(segment);
        for (holder, bytes) in self.pins.release_below(self.registry.lowest()) {
            *unpinned.entry(holder).or_default() += bytes;
        }
        unpinned.into_iter().for_each(|(holder, bytes)| self.mark_dead(holder, bytes));
        self.segments.end_leaving(place);
        place
    }

    /// Processes new acknowledgments or syncs: segments may have become dead.
    pub(super) fn advance(&self) {
        self.registry.advance(&self.segments);
    }

    /// Pins a tombstone that no index word points at any more, if it is still needed, and marks
    /// it as dead otherwise. The caller must hold the leaf's lock.
    pub(crate) fn retire_tombstone(&self, tombstone: Address, bytes: u32, dead: Dead) {
        let holder = self.segments.place_of(tombstone);
        if !self.pin(holder, bytes, dead) {
            self.mark_dead(holder, bytes);
        }
    }

    /// Moves the pin of a tombstone without an index word to its copy. A tombstone that is not
    /// needed is marked as dead.
    pub(crate) fn move_tombstone(&self, from: Address, to: Address, bytes: u32, dead: Dead) {
        assert!(from != to, "a tombstone at {from:?} is moved to itself");
        self.retire_tombstone(to, bytes, dead);
        self.unpin_tombstone(from, bytes, dead);
    }

    /// Unpins a tombstone without an index word that is not needed at this place, and marks it as
    /// dead.
    pub(crate) fn unpin_tombstone(&self, tombstone: Address, bytes: u32, dead: Dead) {
        let holder = self.segments.place_of(tombstone);
        if let Some(pin) = self.pin_of(holder, dead)
            && self.pins.unpin(pin, holder, bytes)
        {
            self.mark_dead(holder, bytes);
        }
    }

    /// Returns whether a tombstone in this place must stay when no index word points at it.
    pub(crate) fn needs_tombstone(&self, at: Address, dead: Dead) -> bool {
        match self.pin_of(self.segments.place_of(at), dead) {
            None => false,
            Some(Pin::At(segment)) => self.registry.contains(segment),
            Some(Pin::UpTo(segment)) => self.reaches_down_to(segment),
        }
    }

    /// Returns the address and the sent bytes of a segment; `None` if it is not in the log.
    pub(crate) fn handed_out<'p>(
        &self,
        segment: SegmentId,
        turn: &Turn<'p>,
    ) -> Option<(Address, &'p [u8])> {
        let place = self.registry.place(segment)?;
        Some((self.segments.address(place, 0), self.segments.handed_out(place, turn)))
    }

    /// Merges the farthest offsets, per segment, that the entries of an adopted segment name.
    pub(crate) fn note_named(&self, named: &BTreeMap<SegmentId, u32>) {
        let mut all = self.named();
        for (segment, offset) in named {
            let farthest = all.entry(*segment).or_default();
            *farthest = offset.max(farthest).to_owned();
        }
    }

    /// Returns the segments that adopted entries name beyond the adopted length, with that
    /// length. A segment that was dropped before the crash is not lost.
    pub(crate) fn lost_links(&self) -> BTreeMap<SegmentId, u32> {
        let registry = &self.registry;
        let length = |segment: SegmentId| match registry.place(segment) {
            Some(place) => Some(self.segments.glance(place).written),
            None if segment > registry.last() => Some(0),
            None => None,
        };
        let named = self.named();
        let lengths = named.iter().filter_map(|(segment, farthest)| {
            length(*segment).filter(|length| length <= farthest).map(|length| (*segment, length))
        });
        lengths.collect()
    }

    fn pin(&self, holder: Place, bytes: u32, dead: Dead) -> bool {
        let Some(pin) = self.pin_of(holder, dead) else { return false };
        self.pins.pin(pin, holder, bytes, || match pin {
            Pin::At(segment) => self.may_contain(segment),
            Pin::UpTo(segment) => self.may_reach_down_to(segment),
        })
    }

    /// Returns the pin of a tombstone in this place. A tombstone in the same segment as the
    /// superseded version needs none, because both leave together.
    fn pin_of(&self, holder: Place, dead: Dead) -> Option<Pin> {
        match dead {
            Dead::Nothing => None,
            Dead::At(Location { segment, .. }) => {
                (segment != self.segments.id(holder)).then_some(Pin::At(segment))
            }
            Dead::UpTo(segment) => Some(Pin::UpTo(segment)),
        }
    }

    /// Returns whether a segment would be read after a crash, as far as is known.
    fn may_contain(&self, segment: SegmentId) -> bool {
        self.is_adopting.load(Ordering::Relaxed) || self.registry.contains(segment)
    }

    /// Returns whether any segment up to this one is in the log, as far as is known.
    fn may_reach_down_to(&self, segment: SegmentId) -> bool {
        self.is_adopting.load(Ordering::Relaxed) || self.reaches_down_to(segment)
    }

    /// Returns whether any segment up to this one is in the log.
    fn reaches_down_to(&self, segment: SegmentId) -> bool {
        self.registry.lowest().is_some_and(|lowest| lowest <= segment)
    }

    /// Counts bytes of a segment as dead, and begins to remove the segment if all are.
    fn mark_dead(&self, holder: Place, bytes: u32) {
        if self.segments.mark_dead(holder, bytes) {
            self.registry.begin_leaving(&self.segments, holder);
        }
    }

    fn named(&self) -> MutexGuard<'_, BTreeMap<SegmentId, u32>> {
        self.named.lock().expect("nothing panics while it holds this lock")
    }
}
