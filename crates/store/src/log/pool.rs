//! The free segments, and for whom they are kept.
//!
//! Freeing memory needs memory: the cleaner copies what lives before it frees a segment. So the
//! pool keeps one segment per cleaning reactor and one more that nobody else gets, and refills
//! these before it gives ordinary takers anything. (A pass over one victim fills at most one fresh
//! segment, since all that lives in a segment fits into one: whoever cleans needs no second one
//! before it has given one back.) What migrations have reserved is set aside in the same way.
//!
//! Segments are counted, not marked: which free segment a taker gets does not matter, except that
//! one that has been touched already is better than one whose pages are still to come.
#![forbid(unsafe_code)]

use super::segment::Place;

/// For what a segment is taken, hence how deep the taker may reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Writes of clients, chunks of the index, side logs without a reservation.
    Ordinary,
    /// Survivors of the cleaner.
    Cleaning,
    /// A side log with a reservation: [`Pool::reserve`] came before.
    Reserved,
}

/// Free segments.
#[derive(Debug)]
pub(super) struct Pool {
    /// The last one is taken first: given back lately, so its pages are there.
    free: Vec<Place>,
    /// Promised to reservations and not taken yet; never more than are free.
    reserved: usize,
    /// How many the cleaner finds when nobody else gets one.
    kept_for_cleaning: usize,
}

impl Pool {
    /// All places from 0 to `places - 1`, the lowest first.
    pub(super) fn new(places: u32, kept_for_cleaning: usize) -> Pool {
        Pool { free: (0..places).rev().map(Place).collect(), reserved: 0, kept_for_cleaning }
    }

    /// One free segment, if the purpose may have one.
    pub(super) fn take(&mut self, purpose: Purpose) -> Option<Place> {
        let may_have = match purpose {
            Purpose::Ordinary => self.ordinary() > 0,
            Purpose::Cleaning => self.free.len() > self.reserved,
            Purpose::Reserved => {
                assert!(self.reserved > 0, "more is taken than was reserved");
                self.reserved -= 1;
                true
            }
        };
        may_have.then(|| self.free.pop().expect("no more is promised than is free"))
    }

    /// Takes a segment back.
    pub(super) fn give(&mut self, place: Place) {
        self.free.push(place);
    }

    /// Sets `count` aside; whether they are there. Leaves `margin` for ordinary takers.
    pub(super) fn reserve(&mut self, count: usize, margin: usize) -> bool {
        let is_there = count.checked_add(margin).is_some_and(|needed| needed <= self.ordinary());
        if is_there {
            self.reserved += count;
        }
        is_there
    }

    /// Ends the setting aside of `count` that were not taken.
    pub(super) fn unreserve(&mut self, count: usize) {
        assert!(count <= self.reserved, "more is returned than was reserved");
        self.reserved -= count;
    }

    /// How many an ordinary taker could have.
    pub(super) fn ordinary(&self) -> usize {
        self.free.len().saturating_sub(self.reserved + self.kept_for_cleaning)
    }

    /// The places that are taken next, in that order.
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
        assert!(pool.take(Purpose::Ordinary).is_some());
        assert!(pool.take(Purpose::Ordinary).is_some());
        assert_eq!(pool.take(Purpose::Ordinary), None);
        let survivors = pool.take(Purpose::Cleaning).unwrap();
        pool.give(survivors);
        assert_eq!(pool.take(Purpose::Ordinary), None, "what comes back refills the reserve");
        pool.give(Place(0));
        assert!(pool.take(Purpose::Ordinary).is_some());
    }

    #[test]
    fn a_reservation_is_kept_from_everybody() {
        let mut pool = Pool::new(6, 1);
        assert!(!pool.reserve(5, 1));
        assert!(pool.reserve(4, 1));
        assert!(pool.take(Purpose::Ordinary).is_some());
        assert_eq!(pool.take(Purpose::Ordinary), None);
        assert!(pool.take(Purpose::Cleaning).is_some());
        assert_eq!(pool.take(Purpose::Cleaning), None);
        for _ in 0..3 {
            assert!(pool.take(Purpose::Reserved).is_some());
        }
        pool.unreserve(1);
        assert!(pool.take(Purpose::Cleaning).is_some());
    }

    #[test]
    fn the_segment_given_back_last_is_taken_first() {
        let mut pool = Pool::new(4, 0);
        let first = pool.take(Purpose::Ordinary).unwrap();
        assert_eq!(first, Place(0));
        pool.take(Purpose::Ordinary).unwrap();
        pool.give(first);
        assert_eq!(pool.next().next(), Some(first));
        assert_eq!(pool.take(Purpose::Ordinary), Some(first));
    }
}
