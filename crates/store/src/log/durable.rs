//! What a log is asked and told that will be read after a crash.
#![forbid(unsafe_code)]

use super::{
    Log, OutOfMemory, SegmentState, Turn,
    ledger::{Ledger, LogChange},
    pins::{Pin, Pins},
    pool::Purpose,
    safety::{Among, Dependency},
    segment::{Place, Position},
};
use crate::address::Address;
use crate::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicBool, Ordering},
};
use std::collections::BTreeMap;
use types::SegmentId;
use wire::entry::{Dead, Location};

/// The segments of a durable log, and what must stay in them.
pub(super) struct Durable {
    pub(super) ledger: Ledger,
    pub(super) pins: Pins,
    /// Whether segments of before a crash are being adopted: which ones there are is not known.
    is_adopting: AtomicBool,
    /// The farthest places of segments that adopted entries name.
    named: Mutex<BTreeMap<SegmentId, u32>>,
}

impl Durable {
    pub(super) fn new() -> Durable {
        Durable {
            ledger: Ledger::new(),
            pins: Pins::new(),
            is_adopting: AtomicBool::new(false),
            named: Mutex::new(BTreeMap::new()),
        }
    }

    fn named(&self) -> MutexGuard<'_, BTreeMap<SegmentId, u32>> {
        self.named.lock().expect("nothing panics while it holds this lock")
    }

    /// Whether a segment would be read after a crash, as far as is known.
    fn may_contain(&self, segment: SegmentId) -> bool {
        self.is_adopting.load(Ordering::Relaxed) || self.ledger.contains(segment)
    }
}

impl Log {
    /// Whether the log will be read after a crash.
    #[inline]
    pub fn is_durable(&self) -> bool {
        self.durable.is_some()
    }

    /// Whether [`Log::take_changes`] would give something. One relaxed load.
    #[inline]
    pub fn has_changes(&self) -> bool {
        self.durable.as_ref().is_some_and(|durable| durable.ledger.has_changes())
    }

    /// What has happened to the log's segments since it was asked last, in order.
    pub fn take_changes(&self) -> Vec<LogChange> {
        self.durable.as_ref().map_or_else(Vec::new, |durable| durable.ledger.take_changes())
    }

    /// The log's directory has dropped a segment, and that is stable: its memory is free after a
    /// grace period.
    ///
    /// # Panics
    /// If the log has not said that the segment is dead: our bug.
    pub fn release(&self, segment: SegmentId) {
        let durable = self.ours();
        let place = durable.ledger.release(&self.segments, segment);
        // Whoever pins from here on is told that the segment is gone.
        let mut unpinned = durable.pins.release(segment);
        let lowest = durable.ledger.lowest();
        for (holder, bytes) in durable.pins.release_below(lowest) {
            *unpinned.entry(holder).or_default() += bytes;
        }
        unpinned.into_iter().for_each(|(holder, bytes)| self.kill_in(holder, bytes));
        self.segments.end_leaving(place);
        self.retire(place);
    }

    /// The replicas have the segment's bytes up to this length. A segment that is gone is ignored.
    pub fn raise_acknowledged(&self, segment: SegmentId, length: u32) {
        if let Some(place) = self.ours().ledger.place(segment) {
            self.segments.raise_acknowledged(place, length);
        }
    }

    /// The segment's bytes up to this length will be there after whatever crash is to be survived.
    /// They are acknowledged, too.
    pub fn raise_stable(&self, segment: SegmentId, length: u32) {
        let ledger = &self.ours().ledger;
        if let Some(place) = ledger.place(segment) {
            self.segments.raise_acknowledged(place, length);
            self.segments.raise_stable(place, length);
            ledger.advance(&self.segments);
        }
    }

    /// Whether all that it names is acknowledged.
    pub fn is_acknowledged(&self, dependency: &Dependency) -> bool {
        dependency.all(|position| self.segments.is_acknowledged(position))
    }

    /// All that is written now and not acknowledged, by whomever, also what others may be shown
    /// already since it is safe somewhere else. Looks at every segment.
    pub fn unacknowledged(&self, among: Among) -> Option<Dependency> {
        let mut ends = self.segments.unacknowledged(among);
        let mut all = Dependency::new(ends.next()?);
        ends.for_each(|end| all.note(end));
        Some(all)
    }

    /// Something may have become safe.
    pub(super) fn advance(&self) {
        self.ours().ledger.advance(&self.segments);
    }

    /// The segments that would be read after a crash, ascending.
    pub fn segments_in_log(&self) -> Vec<SegmentId> {
        self.ours().ledger.all().into_iter().map(|(segment, _)| segment).collect()
    }

    /// Takes in a segment of the log as it was before the crash: `fill` gets a whole segment's
    /// bytes, writes what was read, and returns how much that is. All of it counts as stable.
    /// Segments opened from here on have higher numbers.
    pub fn adopt(
        &self,
        segment: SegmentId,
        fill: impl FnOnce(&mut [u8]) -> usize,
    ) -> Result<(), OutOfMemory> {
        let Durable { ledger, is_adopting, .. } = self.ours();
        if !is_adopting.swap(true, Ordering::Relaxed) {
            self.segments.set_adopting(true);
        }
        let mut open =
            self.segments.open(Purpose::Adoption, SegmentState::Open).ok_or(OutOfMemory)?;
        let place = open.place();
        open.fill(fill);
        ledger.adopt(&self.segments, place, segment);
        self.segments.set_safe(place);
        open.set_closed_handed_out();
        self.close(place, SegmentState::Open);
        Ok(())
    }

    /// Where the entry stands, as others name it.
    #[inline]
    pub(crate) fn location_of(&self, address: Address) -> Location {
        self.segments.location(address)
    }

    /// Where an entry ends.
    #[inline]
    pub(crate) fn end_of(&self, address: Address, bytes: u32) -> Written {
        Written(self.segments.end_of(address, bytes))
    }

    /// Adds the entry to what an operation depends on, if it is not safe.
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

    /// Whether the entry is stable where it stands.
    #[inline]
    pub(crate) fn is_stable(&self, written: &Written) -> bool {
        self.segments.is_stable(&written.0)
    }

    /// No word of the index points at the tombstone any more: it stays as long as it is needed.
    /// To be called before the leaf is unlocked.
    pub(crate) fn bury(&self, tombstone: Address, bytes: u32, dead: Dead) {
        let holder = self.segments.place_of(tombstone);
        if !self.pin(holder, bytes, dead) {
            self.kill_in(holder, bytes);
        }
    }

    /// A tombstone that no word points at has been copied. Whichever is not needed dies.
    pub(crate) fn move_tombstone(&self, from: Address, to: Address, bytes: u32, dead: Dead) {
        self.bury(to, bytes, dead);
        self.exhume(from, bytes, dead);
    }

    /// A tombstone that no word points at is not needed where it stands.
    pub(crate) fn exhume(&self, tombstone: Address, bytes: u32, dead: Dead) {
        let holder = self.segments.place_of(tombstone);
        if let Some(pin) = self.pin_of(holder, dead)
            && self.ours().pins.unpin(pin, holder, bytes)
        {
            self.kill_in(holder, bytes);
        }
    }

    /// Whether a tombstone in this place must stay when no word points at it.
    pub(crate) fn needs_tombstone(&self, at: Address, dead: Dead) -> bool {
        let ledger = &self.ours().ledger;
        match self.pin_of(self.segments.place_of(at), dead) {
            None => false,
            Some(Pin::At(segment)) => ledger.contains(segment),
            Some(Pin::UpTo(segment)) => ledger.lowest().is_some_and(|lowest| lowest <= segment),
        }
    }

    /// Where a segment of the log begins in memory, and what of it has been handed out; `None`: it is
    /// not the log's, or no more.
    pub(crate) fn handed_out<'p>(
        &self,
        segment: SegmentId,
        turn: &Turn<'p>,
    ) -> Option<(Address, &'p [u8])> {
        let place = self.ours().ledger.place(segment)?;
        Some((self.segments.address(place, 0), self.segments.handed_out(place, turn)))
    }

    /// Asks whoever writes the segment to go on in another one, at the latest when it hands out the
    /// next time: it shows the segment as closed then. Any thread may ask; what is not open, or not
    /// the log's any more, stays as it is.
    pub fn end_segment(&self, segment: SegmentId) {
        self.ours().ledger.end(&self.segments, segment);
    }

    /// Copies from the one segment stand in the other.
    pub(crate) fn note_origin(&self, into: SegmentId, from: SegmentId) {
        self.ours().ledger.note_origin(into, from);
    }

    /// Whether copies from the one segment stand in the other.
    pub(crate) fn is_origin(&self, into: SegmentId, from: SegmentId) -> bool {
        self.ours().ledger.is_origin(into, from)
    }

    /// The highest number of a segment.
    pub(crate) fn last_segment(&self) -> SegmentId {
        self.ours().ledger.last()
    }

    /// An adopted segment's entries name others, up to these places.
    pub(crate) fn note_named(&self, named: &BTreeMap<SegmentId, u32>) {
        let mut all = self.ours().named();
        for (segment, offset) in named {
            let farthest = all.entry(*segment).or_default();
            *farthest = offset.max(farthest).to_owned();
        }
    }

    /// The segments that adopted entries name at places that were not adopted, and how much of each
    /// was. What was dropped before the crash is not lost.
    pub(crate) fn lost_links(&self) -> BTreeMap<SegmentId, u32> {
        let Durable { ledger, .. } = self.ours();
        let length = |segment: SegmentId| match ledger.place(segment) {
            Some(place) => Some(self.segments.glance(place).written),
            None if segment > ledger.last() => Some(0),
            None => None,
        };
        let named = self.ours().named();
        let lengths = named.iter().filter_map(|(segment, farthest)| {
            length(*segment).filter(|length| length <= farthest).map(|length| (*segment, length))
        });
        lengths.collect()
    }

    /// All that was a segment's of before the crash has been entered: pins for the sake of segments
    /// that are not there end.
    pub(crate) fn end_adoption(&self) {
        let Durable { ledger, pins, is_adopting, .. } = self.ours();
        is_adopting.store(false, Ordering::Relaxed);
        self.segments.set_adopting(false);
        let released = pins.release_absent(|segment| ledger.contains(segment));
        released.into_iter().for_each(|(holder, bytes)| self.kill_in(holder, bytes));
        let released = pins.release_below(ledger.lowest());
        released.into_iter().for_each(|(holder, bytes)| self.kill_in(holder, bytes));
    }

    fn pin(&self, holder: Place, bytes: u32, dead: Dead) -> bool {
        let durable @ Durable { ledger, pins, .. } = self.ours();
        let Some(pin) = self.pin_of(holder, dead) else { return false };
        pins.pin(pin, holder, bytes, || match pin {
            Pin::At(segment) => durable.may_contain(segment),
            Pin::UpTo(segment) => ledger.lowest().is_some_and(|lowest| lowest <= segment),
        })
    }

    /// For the sake of what a tombstone in this place stays. One in the segment that it is about
    /// goes with it.
    fn pin_of(&self, holder: Place, dead: Dead) -> Option<Pin> {
        match dead {
            Dead::Nothing => None,
            Dead::At(Location { segment, .. }) => {
                (segment != self.segments.id(holder)).then_some(Pin::At(segment))
            }
            Dead::UpTo(segment) => Some(Pin::UpTo(segment)),
        }
    }

    pub(super) fn ours(&self) -> &Durable {
        self.durable.as_ref().expect("the log is durable")
    }
}

/// Where an entry ends: to ask whether it is safe.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Written(Position);
