//! Durability of positions in segments, and the dependencies that wait for it.

use super::segment::Segments;
use super::state::{LogPosition, Place, SegmentState};
use crate::address::Address;
use crate::sync::atomic::Ordering;
use types::SegmentId;
use wire::entry::Location;

impl Segments {
    /// Returns the location of an entry, as other entries name it.
    #[inline]
    pub(super) fn location(&self, address: Address) -> Location {
        let segment = self.id(self.place_of(address));
        Location { segment, offset: self.offset(address) }
    }

    /// Returns the end position of an entry of `bytes` bytes.
    #[inline]
    pub(super) fn end_of(&self, address: Address, bytes: u32) -> LogPosition {
        let (place, end) = (self.place_of(address), self.offset(address) + bytes);
        debug_assert!(end as usize <= self.segment_bytes(), "{address:?} ends at {end}");
        LogPosition { place, segment: self.id(place), end }
    }

    /// Returns whether a reply may reveal the entry without waiting for an acknowledgment.
    #[inline]
    pub(super) fn may_be_shown(&self, address: Address, bytes: u32) -> bool {
        let tail = self.tail(self.place_of(address));
        let end = self.offset(address) + bytes;
        tail.acknowledged.load(Ordering::Acquire) >= end || tail.is_copy.load(Ordering::Relaxed)
    }

    /// Returns whether all bytes up to the position are acknowledged. A segment that has left the
    /// log counts as acknowledged.
    pub(super) fn is_acknowledged(&self, position: &LogPosition) -> bool {
        let end = self.tail(position.place).acknowledged.load(Ordering::Acquire);
        end >= position.end || self.id(position.place) != position.segment
    }

    /// Returns whether all bytes up to the position are synced. A segment that has left the log
    /// counts as synced.
    #[inline]
    pub(super) fn is_synced(&self, position: &LogPosition) -> bool {
        let end = self.tail(position.place).synced.load(Ordering::Acquire);
        end >= position.end || self.id(position.place) != position.segment
    }

    /// Returns whether a closed segment is completely acknowledged.
    pub(super) fn is_wholly_acknowledged(&self, place: Place) -> bool {
        let tail = self.tail(place);
        tail.acknowledged.load(Ordering::Acquire) >= tail.written.load(Ordering::Acquire)
    }

    /// Records that entries up to this offset are ordered (see `send_order.rs`). Only the
    /// segment's writer calls this, before an index word points at them.
    pub(super) fn set_ordered(&self, place: Place, end: u32) {
        let before = self.ordered(place).swap(end, Ordering::Relaxed);
        debug_assert!(before <= end, "{before} bytes of {place:?} are ordered, then {end}");
    }

    /// Returns whether an entry may be ordered: it is, or an entry behind it is.
    #[inline]
    pub(super) fn may_be_ordered(&self, address: Address, bytes: u32) -> bool {
        let end = self.offset(address) + bytes;
        end <= self.ordered(self.place_of(address)).load(Ordering::Relaxed)
    }

    pub(super) fn raise_acknowledged(&self, place: Place, length: u32) {
        self.tail(place).acknowledged.fetch_max(length, Ordering::AcqRel);
    }

    pub(super) fn raise_synced(&self, place: Place, length: u32) {
        self.tail(place).synced.fetch_max(length, Ordering::AcqRel);
    }

    /// Returns the current end of every segment that is not completely synced. Everything written
    /// before is synced when all of these are.
    pub(super) fn barrier(&self) -> Vec<LogPosition> {
        self.ends().filter(|end| !self.is_synced(end)).collect()
    }

    /// Returns the current end of every selected segment that is not completely acknowledged.
    pub(super) fn unacknowledged(&self, among: Among) -> impl Iterator<Item = LogPosition> {
        let counts = move |end: &LogPosition| match among {
            Among::Everything => true,
            Among::Log => self.glance(end.place).state != SegmentState::Side,
            Among::Writes => !self.tail(end.place).is_copy.load(Ordering::Relaxed),
        };
        self.ends().filter(counts).filter(|end| !self.is_acknowledged(end))
    }

    /// Returns the current end of every segment with entries.
    fn ends(&self) -> impl Iterator<Item = LogPosition> {
        let places = (0..self.count() as u32).map(Place);
        places.filter_map(|place| {
            let glance = self.glance(place);
            let is_gone = matches!(
                glance.state,
                SegmentState::Free | SegmentState::Retired | SegmentState::Chunks
            );
            let position = LogPosition { place, segment: self.id(place), end: glance.written };
            (!is_gone).then_some(position)
        })
    }

    /// Marks an adopted segment as completely acknowledged and synced: it was read from the
    /// replicas.
    pub(super) fn set_safe(&self, place: Place) {
        let written = self.tail(place).written.load(Ordering::Relaxed);
        self.raise_acknowledged(place, written);
        self.raise_synced(place, written);
    }
}

/// Selection of segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Among {
    /// All segments.
    Everything,
    /// Segments that belong to the log: neither open nor closed segments of unspliced side logs.
    Log,
    /// Segments with writes of clients, without copies of entries that are durable elsewhere.
    Writes,
}

/// Durability dependency of an operation: unacknowledged positions that it read or wrote.
#[derive(Clone, Debug)]
pub struct Dependency {
    first: LogPosition,
    more: Vec<LogPosition>,
}

impl Dependency {
    fn new(first: LogPosition) -> Dependency {
        Dependency { first, more: Vec::new() }
    }

    /// Returns the segments, with the length up to which each must be acknowledged.
    pub fn positions(&self) -> impl Iterator<Item = (SegmentId, u32)> {
        let all = std::iter::once(&self.first).chain(&self.more);
        all.map(|position| (position.segment, position.end))
    }

    /// Adds a position to a dependency that may have none yet.
    pub(super) fn add(to: &mut Option<Dependency>, position: LogPosition) {
        match to {
            Some(dependency) => dependency.note(position),
            None => *to = Some(Dependency::new(position)),
        }
    }

    fn note(&mut self, new: LogPosition) {
        let mut all = std::iter::once(&mut self.first).chain(&mut self.more);
        match all.find(|known| known.segment == new.segment) {
            Some(known) => {
                debug_assert!(known.place == new.place, "{known:?} and {new:?} are one segment");
                known.end = known.end.max(new.end);
            }
            None => self.more.push(new),
        }
    }

    /// Returns whether everything that `other` waits for is waited for here as well.
    pub(super) fn includes(&self, other: &Dependency) -> bool {
        other.all(|needed| {
            let is_here = |here: &LogPosition| {
                (here.place, here.segment) == (needed.place, needed.segment)
                    && here.end >= needed.end
            };
            !self.all(|here| !is_here(here))
        })
    }

    pub(super) fn all(&self, mut holds: impl FnMut(&LogPosition) -> bool) -> bool {
        holds(&self.first) && self.more.iter().all(holds)
    }
}
