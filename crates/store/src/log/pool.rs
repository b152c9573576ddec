//! The pool of free segments, and the parts of it that are kept for special purposes.
//!
//! Freeing memory needs memory, so some segments are kept for the cleaner, and some are reserved
//! for migrations. After a crash there may be more segments than before it, for which a durable
//! log has spare places. `docs/design/log.md` explains why a full server makes progress, and the
//! spare places ("After a crash").
//!
//! Segments are counted, not marked. It does not matter which free segment a writer gets, except
//! that one with resident pages is better than an untouched one.

use super::state::Place;

/// Purpose of a segment, which decides how many free segments must remain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SegmentPurpose {
    /// Writes of clients, chunks of the index, side logs without a reservation.
    Ordinary,
    /// The cleaner's survivors.
    Cleaning,
    /// A side log with a reservation, which requires a prior [`Pool::reserve`].
    Reserved,
    /// Segments from before a crash; the server does not serve clients until all are adopted.
    Adoption,
}

/// The free segments.
pub(super) struct Pool {
    /// Free places. The last one is taken first: it was freed most recently, so its pages are
    /// resident.
    free: Vec<Place>,
    /// Segments promised to reservations and not taken yet; never more than are free.
    reserved: usize,
    /// Number of segments that only the cleaner may take.
    kept_for_cleaning: usize,
    first_spare: Place,
    spare: Vec<Place>,
    /// Number of spare places, used or not.
    spare_count: usize,
    /// Number of used spare places, which reduce the segments of ordinary writers.
    debt: usize,
    is_adopting: bool,
}

impl Pool {
    /// Creates a pool of the places from 0 to `places - 1`, the lowest first.
    pub(super) fn new(places: u32, kept_for_cleaning: usize) -> Pool {
        Pool {
            free: (0..places).rev().map(Place).collect(),
            reserved: 0,
            kept_for_cleaning,
            first_spare: Place(places),
            spare: Vec::new(),
            spare_count: 0,
            debt: 0,
            is_adopting: false,
        }
    }

    /// Adds `count` spare places behind the others.
    pub(super) fn with_spare(mut self, count: u32) -> Pool {
        assert!(self.spare_count == 0, "spare places are added twice");
        let first = self.first_spare.0;
        self.spare_count = count as usize;
        self.spare = (first..first + count).rev().map(Place).collect();
        self
    }

    pub(super) fn first_spare(&self) -> Place {
        self.first_spare
    }

    /// Begins or ends adoption. During adoption the index may grow as if no spare place were in
    /// use.
    pub(super) fn set_adopting(&mut self, is_adopting: bool) {
        self.is_adopting = is_adopting;
    }

    /// Takes a free segment, if the purpose permits it.
    pub(super) fn take(&mut self, purpose: SegmentPurpose) -> Option<Place> {
        let may_have = match purpose {
            SegmentPurpose::Ordinary => self.ordinary() > 0,
            SegmentPurpose::Adoption if !self.spare.is_empty() => {
                self.debt += 1;
                let place = self.spare.pop();
                self.check();
                return place;
            }
            SegmentPurpose::Cleaning | SegmentPurpose::Adoption => self.free.len() > self.reserved,
            SegmentPurpose::Reserved => {
                assert!(self.reserved > 0, "more is taken than was reserved");
                self.reserved -= 1;
                true
            }
        };
        let place = may_have.then(|| self.free.pop().expect("no more is promised than is free"));
        self.check();
        place
    }

    /// Returns a segment to the pool.
    pub(super) fn give(&mut self, place: Place) {
        debug_assert!(!self.free.contains(&place), "{place:?} is returned twice");
        if place < self.first_spare {
            self.free.push(place);
        } else {
            assert!(self.debt > 0, "{place:?} is returned, but no spare place is in use");
            self.spare.push(place);
            self.debt -= 1;
        }
        self.check();
    }

    /// Reserves `count` segments and returns whether there are enough. Leaves `margin` for
    /// ordinary writers.
    pub(super) fn reserve(&mut self, count: usize, margin: usize) -> bool {
        let is_there = count.checked_add(margin).is_some_and(|needed| needed <= self.ordinary());
        if is_there {
            self.reserved += count;
        }
        self.check();
        is_there
    }

    /// Returns `count` reserved segments that were not taken.
    pub(super) fn unreserve(&mut self, count: usize) {
        assert!(count <= self.reserved, "more is returned than was reserved");
        self.reserved -= count;
    }

    /// Checks the counts against each other after a change.
    fn check(&self) {
        let (free, reserved) = (self.free.len(), self.reserved);
        assert!(reserved <= free, "{reserved} segments are reserved of {free} free ones");
        assert!(
            self.debt + self.spare.len() == self.spare_count,
            "{} of {} spare places are in use, and {} are not",
            self.debt,
            self.spare_count,
            self.spare.len()
        );
    }

    /// Returns the number of segments that ordinary writers may take.
    pub(super) fn ordinary(&self) -> usize {
        let debt = if self.is_adopting { 0 } else { self.debt };
        self.free.len().saturating_sub(self.reserved + self.kept_for_cleaning + debt)
    }

    /// Returns the free places in the order in which they will be taken.
    pub(super) fn next(&self) -> impl Iterator<Item = Place> {
        self.free.iter().rev().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cleaner_finds_a_segment_when_writers_find_none() {
        let mut pool = Pool::new(4, 2);
        assert!(pool.take(SegmentPurpose::Ordinary).is_some());
        assert!(pool.take(SegmentPurpose::Ordinary).is_some());
        assert_eq!(pool.take(SegmentPurpose::Ordinary), None);
        let survivors = pool.take(SegmentPurpose::Cleaning).unwrap();
        pool.give(survivors);
        assert_eq!(
            pool.take(SegmentPurpose::Ordinary),
            None,
            "returned segments refill the reserve"
        );
        pool.give(Place(0));
        assert!(pool.take(SegmentPurpose::Ordinary).is_some());
    }

    #[test]
    fn what_is_adopted_comes_into_spare_places_which_writers_pay_for() {
        let mut pool = Pool::new(6, 1).with_spare(2);
        pool.set_adopting(true);
        let adopted = [(); 3].map(|()| pool.take(SegmentPurpose::Adoption).unwrap());
        assert_eq!(adopted, [Place(6), Place(7), Place(0)]);
        assert_eq!(pool.ordinary(), 4);
        pool.set_adopting(false);
        assert_eq!(pool.ordinary(), 2);
        pool.give(Place(7));
        assert_eq!(pool.ordinary(), 3);
        let taken = std::iter::from_fn(|| pool.take(SegmentPurpose::Cleaning));
        assert!(taken.eq((1..6).map(Place)), "a spare place has no other owner");
    }

    #[test]
    fn a_reservation_is_kept_from_everybody() {
        let mut pool = Pool::new(6, 1);
        assert!(!pool.reserve(5, 1));
        assert!(pool.reserve(4, 1));
        assert!(pool.take(SegmentPurpose::Ordinary).is_some());
        assert_eq!(pool.take(SegmentPurpose::Ordinary), None);
        assert!(pool.take(SegmentPurpose::Cleaning).is_some());
        assert_eq!(pool.take(SegmentPurpose::Cleaning), None);
        for _ in 0..3 {
            assert!(pool.take(SegmentPurpose::Reserved).is_some());
        }
        pool.unreserve(1);
        assert!(pool.take(SegmentPurpose::Cleaning).is_some());
    }

    #[test]
    #[should_panic = "more is returned than was reserved"]
    fn returning_more_than_was_reserved_is_our_bug() {
        let mut pool = Pool::new(6, 1);
        assert!(pool.reserve(2, 1));
        pool.unreserve(3);
    }

    #[test]
    #[should_panic = "no spare place is in use"]
    fn returning_a_spare_place_that_was_not_taken_is_our_bug() {
        Pool::new(6, 1).with_spare(2).give(Place(6));
    }

    #[test]
    fn the_segment_given_back_last_is_taken_first() {
        let mut pool = Pool::new(4, 0);
        let first = pool.take(SegmentPurpose::Ordinary).unwrap();
        assert_eq!(first, Place(0));
        pool.take(SegmentPurpose::Ordinary).unwrap();
        pool.give(first);
        assert_eq!(pool.next().next(), Some(first));
        assert_eq!(pool.take(SegmentPurpose::Ordinary), Some(first));
    }
}
