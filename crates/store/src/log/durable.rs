//! Persistence interface of a durable log: manifest changes, acknowledgment, adoption after a
//! restart, release of segments, and pinned tombstones.
#![forbid(unsafe_code)]

use super::{
    Log, OutOfMemory, SegmentState, Turn,
    pins::{Pin, Pins},
    pool::SegmentPurpose,
    registry::{LogChange, SegmentRegistry},
    safety::{Among, Dependency},
    state::{LogPosition, Place},
};
use crate::address::Address;
use crate::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicBool, Ordering},
};
use std::collections::BTreeMap;
use types::SegmentId;
use wire::entry::{Dead, Location};

/// State that exists only for a durable log.
pub(super) struct DurableLog {
    pub(super) registry: SegmentRegistry,
    pub(super) pins: Pins,
    /// Set while segments from before a crash are adopted: the set of segments is incomplete
    /// until the end.
    is_adopting: AtomicBool,
    /// Per segment, the farthest offset that adopted entries name.
    named: Mutex<BTreeMap<SegmentId, u32>>,
}

impl DurableLog {
    pub(super) fn new() -> DurableLog {
        DurableLog {
            registry: SegmentRegistry::new(),
            pins: Pins::new(),
            is_adopting: AtomicBool::new(false),
            named: Mutex::new(BTreeMap::new()),
        }
    }

    fn named(&self) -> MutexGuard<'_, BTreeMap<SegmentId, u32>> {
        self.named.lock().expect("nothing panics while it holds this lock")
    }

    /// Returns whether a segment would be read after a crash, as far as is known.
    fn may_contain(&self, segment: SegmentId) -> bool {
        self.is_adopting.load(Ordering::Relaxed) || self.registry.contains(segment)
    }
}

impl Log {
    /// Returns whether the log is read again after a crash.
    #[inline]
    pub fn is_durable(&self) -> bool {
        self.durable.is_some()
    }

    /// Returns whether [`Log::take_changes`] would return something. One relaxed load.
    #[inline]
    pub fn has_changes(&self) -> bool {
        self.durable.as_ref().is_some_and(|durable| durable.registry.has_changes())
    }

    /// Returns the changes of the log's segments since the last call, in order.
    pub fn take_changes(&self) -> Vec<LogChange> {
        self.durable.as_ref().map_or_else(Vec::new, |durable| durable.registry.take_changes())
    }

    /// Releases a segment that the manifest has dropped, once that is synced: its memory is free
    /// after a grace period.
    ///
    /// # Panics
    /// If the log has not reported the segment as dead: a bug of the caller.
    pub fn release(&self, segment: SegmentId) {
        let durable = self.ours();
        let place = durable.registry.release(&self.segments, segment);
        // Later calls of `pin` find that the segment is not in the log.
        let mut unpinned = durable.pins.release(segment);
        let lowest = durable.registry.lowest();
        for (holder, bytes) in durable.pins.release_below(lowest) {
            *unpinned.entry(holder).or_default() += bytes;
        }
        unpinned.into_iter().for_each(|(holder, bytes)| self.kill_in(holder, bytes));
        self.segments.end_leaving(place);
        self.retire(place);
    }

    /// Records that the replicas have acknowledged the segment up to this length. Ignores a
    /// segment that has left the log.
    pub fn raise_acknowledged(&self, segment: SegmentId, length: u32) {
        if let Some(place) = self.ours().registry.place(segment) {
            self.segments.raise_acknowledged(place, length);
        }
    }

    /// Records that the segment is synced up to this length: it survives every crash that the
    /// `durability` setting covers. The bytes are acknowledged, too.
    pub fn raise_stable(&self, segment: SegmentId, length: u32) {
        let registry = &self.ours().registry;
        if let Some(place) = registry.place(segment) {
            self.segments.raise_acknowledged(place, length);
            self.segments.raise_stable(place, length);
            registry.advance(&self.segments);
        }
    }

    /// Returns whether all positions of a dependency are acknowledged.
    pub fn is_acknowledged(&self, dependency: &Dependency) -> bool {
        dependency.all(|position| self.segments.is_acknowledged(position))
    }

    /// Returns the positions of everything appended and unacknowledged, by all writers. This
    /// includes copies that readers may already see because they are durable elsewhere. Scans
    /// every segment.
    pub fn unacknowledged(&self, among: Among) -> Option<Dependency> {
        let mut ends = self.segments.unacknowledged(among);
        let mut all = Dependency::new(ends.next()?);
        ends.for_each(|end| all.note(end));
        Some(all)
    }

    /// Processes new acknowledgments or syncs: segments may have become dead.
    pub(super) fn advance(&self) {
        self.ours().registry.advance(&self.segments);
    }

    /// Returns the segments that would be read after a crash, ascending.
    pub fn segments_in_log(&self) -> Vec<SegmentId> {
        self.ours().registry.all().into_iter().map(|(segment, _)| segment).collect()
    }

    /// Adopts a segment of the log from before the crash. `fill` receives the bytes of a whole
    /// segment, writes the recovered data and returns its length. All of it counts as synced.
    /// Segments opened later have higher numbers.
    pub fn adopt(
        &self,
        segment: SegmentId,
        fill: impl FnOnce(&mut [u8]) -> usize,
    ) -> Result<(), OutOfMemory> {
        let DurableLog { registry, is_adopting, .. } = self.ours();
        if !is_adopting.swap(true, Ordering::Relaxed) {
            self.segments.set_adopting(true);
        }
        let mut open =
            self.segments.open(SegmentPurpose::Adoption, SegmentState::Open).ok_or(OutOfMemory)?;
        let place = open.place();
        open.fill(fill);
        registry.adopt(&self.segments, place, segment);
        self.segments.set_safe(place);
        open.set_closed_handed_out();
        self.close(place, SegmentState::Open);
        Ok(())
    }

    /// Returns the location of the entry, as other entries name it.
    #[inline]
    pub(crate) fn location_of(&self, address: Address) -> Location {
        self.segments.location(address)
    }

    /// Returns the end of an entry.
    #[inline]
    pub(crate) fn end_of(&self, address: Address, bytes: u32) -> EntryEnd {
        EntryEnd(self.segments.end_of(address, bytes))
    }

    /// Adds the entry to an operation's dependency, if it is neither acknowledged nor durable
    /// elsewhere.
    #[inline]
    pub(crate) fn note_shown(&self, address: Address, bytes: u32, to: &mut Option<Dependency>) {
        if !self.segments.may_be_shown(address, bytes) {
            let position = self.segments.end_of(address, bytes);
            match to {
                Some(dependency) => dependency.note(position),
                None => *to = Some(Dependency::new(position)),
            }
        }
    }

    /// Returns whether the entry is synced at its place.
    #[inline]
    pub(crate) fn is_stable(&self, written: &EntryEnd) -> bool {
        self.segments.is_stable(&written.0)
    }

    /// Pins a tombstone that no index word points at any more, if it is still needed, and marks
    /// it as dead otherwise. The caller must hold the leaf's lock.
    pub(crate) fn bury(&self, tombstone: Address, bytes: u32, dead: Dead) {
        let holder = self.segments.place_of(tombstone);
        if !self.pin(holder, bytes, dead) {
            self.kill_in(holder, bytes);
        }
    }

    /// Moves the pin of a tombstone without an index word to its copy. A tombstone that is not
    /// needed is marked as dead.
    pub(crate) fn move_tombstone(&self, from: Address, to: Address, bytes: u32, dead: Dead) {
        self.bury(to, bytes, dead);
        self.exhume(from, bytes, dead);
    }

    /// Unpins a tombstone without an index word that is not needed at this place, and marks it as
    /// dead.
    pub(crate) fn exhume(&self, tombstone: Address, bytes: u32, dead: Dead) {
        let holder = self.segments.place_of(tombstone);
        if let Some(pin) = self.pin_of(holder, dead)
            && self.ours().pins.unpin(pin, holder, bytes)
        {
            self.kill_in(holder, bytes);
        }
    }

    /// Returns whether a tombstone in this place must stay when no index word points at it.
    pub(crate) fn needs_tombstone(&self, at: Address, dead: Dead) -> bool {
        let registry = &self.ours().registry;
        match self.pin_of(self.segments.place_of(at), dead) {
            None => false,
            Some(Pin::At(segment)) => registry.contains(segment),
            Some(Pin::UpTo(segment)) => registry.lowest().is_some_and(|lowest| lowest <= segment),
        }
    }

    /// Returns the address and the sent bytes of a segment; `None` if it is not in the log.
    pub(crate) fn handed_out<'p>(
        &self,
        segment: SegmentId,
        turn: &Turn<'p>,
    ) -> Option<(Address, &'p [u8])> {
        let place = self.ours().registry.place(segment)?;
        Some((self.segments.address(place, 0), self.segments.handed_out(place, turn)))
    }

    /// Asks the segment's writer to continue in another one, at the latest when it sends the next
    /// bytes. It then also sends the end of the segment. Any thread may call this. A segment that
    /// is not open, or not in the log, is not affected.
    pub fn end_segment(&self, segment: SegmentId) {
        self.ours().registry.end(&self.segments, segment);
    }

    /// Records that entries of one segment were copied into another.
    pub(crate) fn note_origin(&self, into: SegmentId, from: SegmentId) {
        self.ours().registry.note_origin(into, from);
    }

    /// Returns whether entries of `from` were copied into `into`.
    pub(crate) fn is_origin(&self, into: SegmentId, from: SegmentId) -> bool {
        self.ours().registry.is_origin(into, from)
    }

    /// Returns the highest segment number.
    pub(crate) fn last_segment(&self) -> SegmentId {
        self.ours().registry.last()
    }

    /// Merges the farthest offsets, per segment, that the entries of an adopted segment name.
    pub(crate) fn note_named(&self, named: &BTreeMap<SegmentId, u32>) {
        let mut all = self.ours().named();
        for (segment, offset) in named {
            let farthest = all.entry(*segment).or_default();
            *farthest = offset.max(farthest).to_owned();
        }
    }

    /// Returns the segments that adopted entries name beyond the adopted length, with that
    /// length. A segment that was dropped before the crash is not lost.
    pub(crate) fn lost_links(&self) -> BTreeMap<SegmentId, u32> {
        let DurableLog { registry, .. } = self.ours();
        let length = |segment: SegmentId| match registry.place(segment) {
            Some(place) => Some(self.segments.glance(place).written),
            None if segment > registry.last() => Some(0),
            None => None,
        };
        let named = self.ours().named();
        let lengths = named.iter().filter_map(|(segment, farthest)| {
            length(*segment).filter(|length| length <= farthest).map(|length| (*segment, length))
        });
        lengths.collect()
    }

    /// Ends adoption, after all segments have been entered. Removes the pins on segments that are
    /// not in the log.
    pub(crate) fn end_adoption(&self) {
        let DurableLog { registry, pins, is_adopting, .. } = self.ours();
        is_adopting.store(false, Ordering::Relaxed);
        self.segments.set_adopting(false);
        let released = pins.release_absent(|segment| registry.contains(segment));
        released.into_iter().for_each(|(holder, bytes)| self.kill_in(holder, bytes));
        let released = pins.release_below(registry.lowest());
        released.into_iter().for_each(|(holder, bytes)| self.kill_in(holder, bytes));
    }

    fn pin(&self, holder: Place, bytes: u32, dead: Dead) -> bool {
        let durable @ DurableLog { registry, pins, .. } = self.ours();
        let Some(pin) = self.pin_of(holder, dead) else { return false };
        pins.pin(pin, holder, bytes, || match pin {
            Pin::At(segment) => durable.may_contain(segment),
            Pin::UpTo(segment) => registry.lowest().is_some_and(|lowest| lowest <= segment),
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

    pub(super) fn ours(&self) -> &DurableLog {
        self.durable.as_ref().expect("the log is durable")
    }
}

/// End of an entry, for checking its durability.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EntryEnd(LogPosition);
