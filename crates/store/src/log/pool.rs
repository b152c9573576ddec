//! The free segments, and for whom they are kept.
//!
//! Freeing memory needs memory: the cleaner copies what lives before it frees a segment. So the
//! pool keeps one segment per cleaning reactor and one more that nobody else gets, and refills
//! these before it gives ordinary takers anything. (A pass over one victim fills at most one fresh
//! segment, since all that lives in a segment fits into one: whoever cleans needs no second one
//! before it has given one back.) What migrations have reserved is set aside in the same way.
//!
//! **After a crash** there may be more segments than before it: those that were about to be free, and
//! nothing has been set aside yet. So the arena of a durable log has spare places behind the memory
//! that it may use. Only segments of before a crash come into them, and these first; as long as they
//! are used, writers get so many segments less. So a log that fitted before a crash fits after it, and
//! the cleaner finds its segments. (A server that crashes again and again before it has cleaned anything
//! uses them up in the end, and needs more memory once.)
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
    /// Segments of before a crash: nothing is served before they are here.
    Adoption,
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
    /// Places from here on are spare.
    first_spare: Place,
    spare: Vec<Place>,
    /// Spare places that are used, as far as they count against the writers.
    debt: usize,
    is_adopting: bool,
}

impl Pool {
    /// All places from 0 to `places - 1`, the lowest first.
    pub(super) fn new(places: u32, kept_for_cleaning: usize) -> Pool {
        Pool {
            free: (0..places).rev().map(Place).collect(),
            reserved: 0,
            kept_for_cleaning,
            first_spare: Place(places),
            spare: Vec::new(),
            debt: 0,
            is_adopting: false,
        }
    }

    /// So many spare places more, behind the others.
    pub(super) fn with_spare(mut self, count: u32) -> Pool {
        let first = self.first_spare.0;
        self.spare = (first..first + count).rev().map(Place).collect();
        self
    }

    /// Places from here on are spare.
    pub(super) fn first_spare(&self) -> Place {
        self.first_spare
    }

    /// While segments of before a crash are adopted, the index may grow as if none were spare.
    pub(super) fn set_adopting(&mut self, is_adopting: bool) {
        self.is_adopting = is_adopting;
    }

    /// One free segment, if the purpose may have one.
    pub(super) fn take(&mut self, purpose: Purpose) -> Option<Place> {
        let may_have = match purpose {
            Purpose::Ordinary => self.ordinary() > 0,
            Purpose::Adoption if !self.spare.is_empty() => {
                self.debt += 1;
                return self.spare.pop();
            }
            Purpose::Cleaning | Purpose::Adoption => self.free.len() > self.reserved,
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
        if place < self.first_spare {
            self.free.push(place);
        } else {
            self.spare.push(place);
            self.debt -= 1;
        }
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
        let debt = if self.is_adopting { 0 } else { self.debt };
        self.free.len().saturating_sub(self.reserved + self.kept_for_cleaning + debt)
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
    fn what_is_adopted_comes_into_spare_places_which_writers_pay_for() {
        let mut pool = Pool::new(6, 1).with_spare(2);
        pool.set_adopting(true);
        let adopted = [(); 3].map(|()| pool.take(Purpose::Adoption).unwrap());
        assert_eq!(adopted, [Place(6), Place(7), Place(0)]);
        assert_eq!(pool.ordinary(), 4);
        pool.set_adopting(false);
        assert_eq!(pool.ordinary(), 2);
        pool.give(Place(7));
        assert_eq!(pool.ordinary(), 3);
        let taken = std::iter::from_fn(|| pool.take(Purpose::Cleaning));
        assert!(taken.eq((1..6).map(Place)), "a spare place is nobody else's");
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
