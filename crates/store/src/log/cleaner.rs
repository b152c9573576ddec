//! Which segment to clean, and what stands in it.
//!
//! The log knows where entries begin and how many bytes are dead, not which entries: that the
//! index knows. So the cleaner's copying is the objects' work; here is the choice of a victim, its
//! entries in order, and its release.
//!
//! **Which one.** The closed segment with the fewest live bytes, among those that are worth it: the
//! less memory is free, the less a victim must yield. Cleaning at 95 % live costs 20 bytes copied
//! per byte won, which is madness while a tenth of the memory is free and right while nothing is.
#![forbid(unsafe_code)]

use super::{
    Log, Turn,
    segment::{Glance, Place, SegmentState},
};
use crate::address::Address;
use std::{fmt, sync::Arc};
use types::SegmentId;
use wire::entry::Entry;

/// Below this percentage of free segments the cleaner works.
pub(super) const LOW_PERCENT: usize = 15;

/// Segments kept for cleaning beside one per reactor: a victim may be abandoned halfway (a leaf's
/// lock was not got), and what was copied from it has then won nothing yet.
pub(super) const KEPT_MORE: usize = 1;

/// Segments that one search for a victim looks at: 4 µs (measured: `docs/design/log.md`), and all
/// of a 16 GiB arena. A larger one is searched in windows, one after the other.
pub(super) const SEARCH_SEGMENTS: usize = 2048;

/// A victim yields at least this part of a segment, however little is free: copying more than 31
/// bytes to win one is giving up.
const YIELD_MIN_DIVISOR: usize = 32;

/// A closed segment claimed for cleaning: nobody else cleans or frees it. Dropping it gives it
/// back, and frees it if nothing in it lives.
pub struct VictimSegment {
    log: Arc<Log>,
    place: Place,
    /// Where the next entry begins.
    offset: usize,
    length: usize,
}

/// An entry of a victim: whether it lives is for the index to say.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<'t> {
    /// Where it stands.
    pub address: Address,
    /// What it says.
    pub entry: Entry<'t>,
    /// Its bytes, padding included.
    pub encoded: &'t [u8],
}

impl VictimSegment {
    pub(super) fn new(log: Arc<Log>, place: Place) -> VictimSegment {
        let length = log.segments.glance(place).written as usize;
        VictimSegment { log, place, offset: 0, length }
    }

    /// The segment.
    pub fn id(&self) -> SegmentId {
        self.log.segments.id(self.place)
    }

    /// The entry that comes next; `None` at the end, or when nothing in the segment lives.
    #[inline]
    pub fn peek<'t>(&self, turn: &'t Turn<'_>) -> Option<Candidate<'t>> {
        // In a durable log also what is dead may have to be kept dead.
        if self.offset == self.length || !self.log.is_durable() && self.live_bytes() == 0 {
            return None;
        }
        let address = self.log.segments.address(self.place, self.offset);
        let encoded = self.log.segments.encoded(address, turn);
        Some(Candidate { address, entry: super::parse(encoded), encoded })
    }

    /// Goes past the entry that [`VictimSegment::peek`] showed.
    #[inline]
    pub fn advance(&mut self, past: &Candidate<'_>) {
        assert!(past.address == self.log.segments.address(self.place, self.offset));
        self.offset += past.encoded.len();
    }

    /// Goes back to an entry that it has gone past.
    pub(crate) fn go_back(&mut self, to: &Candidate<'_>) {
        self.offset = self.log.segments.offset(to.address) as usize;
    }

    /// Bytes in it that still live.
    #[inline]
    pub fn live_bytes(&self) -> u64 {
        u64::from(self.log.segments.glance(self.place).live())
    }

    /// Gives it back: to be freed if nothing in it lives, else to be cleaned another time. That of
    /// a durable log counts as visited if all of it has been gone past.
    pub fn release(self) {
        drop(self);
    }
}

impl Drop for VictimSegment {
    fn drop(&mut self) {
        if self.offset == self.length && self.log.is_durable() {
            self.log.end_visit(self.place);
        } else {
            self.log.unclaim(self.place);
        }
    }
}

impl fmt::Debug for VictimSegment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VictimSegment")
            .field("id", &self.id())
            .field("offset", &self.offset)
            .field("length", &self.length)
            .finish_non_exhaustive()
    }
}

/// Most live bytes that a victim may have: all but a yield that shrinks in proportion with the free
/// memory, from half a segment when the cleaner starts to work. (A quarter copies half as much
/// again and keeps a tenth of the memory free where this keeps 7 %, at 80 % live.)
pub(super) fn live_bytes_max(segment_bytes: usize, free: usize, low: usize) -> usize {
    let wanted = segment_bytes / 2 * free.min(low) / low.max(1);
    segment_bytes - wanted.max(segment_bytes / YIELD_MIN_DIVISOR)
}

/// What a victim must be like.
pub(super) struct Search {
    pub(super) segment_bytes: usize,
    pub(super) live_bytes_max: usize,
}

/// What a search among some segments has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// The emptiest one that is worth it.
    Victim(Place),
    /// Others are cleaning, or what was cleaned waits for its grace period.
    UnderWay,
    /// Nothing can be won.
    Nothing,
}

impl Search {
    /// Searches a window of the table.
    pub(super) fn among(
        &self,
        window: impl Iterator<Item = Place>,
        glance: impl Fn(Place) -> Glance,
    ) -> Found {
        let mut emptiest: Option<(u32, Place)> = None;
        let mut is_under_way = false;
        for place in window {
            let glance = glance(place);
            match glance.state {
                SegmentState::Closed if self.is_worth_it(&glance) => {
                    let candidate = (glance.live(), place);
                    emptiest = Some(emptiest.map_or(candidate, |best| best.min(candidate)));
                }
                SegmentState::Cleaning
                | SegmentState::Visited
                | SegmentState::Leaving
                | SegmentState::Retired => is_under_way = true,
                SegmentState::Closed
                | SegmentState::Free
                | SegmentState::Open
                | SegmentState::Side
                | SegmentState::Chunks => {}
            }
        }
        match emptiest {
            Some((_, place)) => Found::Victim(place),
            None if is_under_way => Found::UnderWay,
            None => Found::Nothing,
        }
    }

    /// Whether copying what lives wins anything. What is dead is won; a tail into which the next
    /// entry did not fit would be there again, unless it is half of the segment: what is left of
    /// two such segments fits into one, if nothing in them is longer than the half.
    fn is_worth_it(&self, glance: &Glance) -> bool {
        let tail = self.segment_bytes - glance.written as usize;
        let wins = glance.dead as usize >= self.segment_bytes / YIELD_MIN_DIVISOR
            || tail >= self.segment_bytes / 2;
        wins && glance.live() as usize <= self.live_bytes_max
    }
}
