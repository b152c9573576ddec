//! How far segments are safe, and what waits for that.
#![forbid(unsafe_code)]

use super::segment::{Place, Position, SegmentState, Segments};
use crate::address::Address;
use crate::sync::atomic::Ordering;
use types::SegmentId;
use wire::entry::Location;

impl Segments {
    /// Where an entry stands, as other entries name it.
    #[inline]
    pub(super) fn location(&self, address: Address) -> Location {
        let segment = self.id(self.place_of(address));
        Location { segment, offset: self.offset(address) }
    }

    /// The end of an entry of so many bytes.
    #[inline]
    pub(super) fn end_of(&self, address: Address, bytes: u32) -> Position {
        let place = self.place_of(address);
        Position { place, segment: self.id(place), end: self.offset(address) + bytes }
    }

    /// Whether whoever shows this entry need not wait for anything.
    #[inline]
    pub(super) fn may_be_shown(&self, address: Address, bytes: u32) -> bool {
        let tail = self.tail(self.place_of(address));
        let end = self.offset(address) + bytes;
        tail.acknowledged.load(Ordering::Acquire) >= end || tail.is_copy.load(Ordering::Relaxed)
    }

    /// Whether all up to the position is acknowledged. A segment that is gone counts as such.
    pub(super) fn is_acknowledged(&self, position: &Position) -> bool {
        let end = self.tail(position.place).acknowledged.load(Ordering::Acquire);
        end >= position.end || self.id(position.place) != position.segment
    }

    /// Whether all up to the position is stable. A segment that is gone counts as such.
    #[inline]
    pub(super) fn is_stable(&self, position: &Position) -> bool {
        let end = self.tail(position.place).stable.load(Ordering::Acquire);
        end >= position.end || self.id(position.place) != position.segment
    }

    /// Whether all that will ever stand in the closed segment is acknowledged.
    pub(super) fn is_wholly_acknowledged(&self, place: Place) -> bool {
        let tail = self.tail(place);
        tail.acknowledged.load(Ordering::Acquire) >= tail.written.load(Ordering::Acquire)
    }

    pub(super) fn raise_acknowledged(&self, place: Place, length: u32) {
        self.tail(place).acknowledged.fetch_max(length, Ordering::AcqRel);
    }

    pub(super) fn raise_stable(&self, place: Place, length: u32) {
        self.tail(place).stable.fetch_max(length, Ordering::AcqRel);
    }

    /// The present end of every segment that is not wholly stable: what was written before is safe
    /// when all of these are.
    pub(super) fn barrier(&self) -> Vec<Position> {
        self.ends().filter(|end| !self.is_stable(end)).collect()
    }

    /// The present end of every segment among these that is not wholly acknowledged.
    pub(super) fn unacknowledged(&self, among: Among) -> impl Iterator<Item = Position> {
        let counts = move |end: &Position| match among {
            Among::Everything => true,
            Among::Log => self.glance(end.place).state != SegmentState::Side,
            Among::Writes => !self.tail(end.place).is_copy.load(Ordering::Relaxed),
        };
        self.ends().filter(counts).filter(|end| !self.is_acknowledged(end))
    }

    /// The present end of every segment that holds entries.
    fn ends(&self) -> impl Iterator<Item = Position> {
        let places = (0..self.count() as u32).map(Place);
        places.filter_map(|place| {
            let glance = self.glance(place);
            let holds_entries = match glance.state {
                SegmentState::Open
                | SegmentState::Side
                | SegmentState::Closed
                | SegmentState::Cleaning
                | SegmentState::Visited
                | SegmentState::Leaving => true,
                SegmentState::Free | SegmentState::Retired | SegmentState::Chunks => false,
            };
            let position = Position { place, segment: self.id(place), end: glance.written };
            holds_entries.then_some(position)
        })
    }

    /// Everything in it is safe: it was read from the replicas.
    pub(super) fn set_safe(&self, place: Place) {
        let written = self.tail(place).written.load(Ordering::Relaxed);
        self.raise_acknowledged(place, written);
        self.raise_stable(place, written);
    }
}

/// Which segments are meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Among {
    /// All of them.
    Everything,
    /// Those that are the log's: no open side logs, no closed ones that have not been spliced.
    Log,
    /// What clients wrote here: no copies of what is safe elsewhere until they are.
    Writes,
}

/// What an operation showed or made that is not safe yet.
#[derive(Clone, Debug)]
pub struct Dependency {
    first: Position,
    more: Vec<Position>,
}

impl Dependency {
    pub(super) fn new(first: Position) -> Dependency {
        Dependency { first, more: Vec::new() }
    }

    /// Adds what another operation depends on.
    pub fn merge(&mut self, other: &Dependency) {
        self.note(other.first);
        other.more.iter().for_each(|position| self.note(*position));
    }

    /// The segments, and up to where each must be acknowledged.
    pub fn positions(&self) -> impl Iterator<Item = (SegmentId, u32)> {
        let all = std::iter::once(&self.first).chain(&self.more);
        all.map(|position| (position.segment, position.end))
    }

    pub(super) fn note(&mut self, new: Position) {
        let mut all = std::iter::once(&mut self.first).chain(&mut self.more);
        match all.find(|known| known.segment == new.segment) {
            Some(known) => known.end = known.end.max(new.end),
            None => self.more.push(new),
        }
    }

    pub(super) fn all(&self, mut holds: impl FnMut(&Position) -> bool) -> bool {
        holds(&self.first) && self.more.iter().all(holds)
    }
}
