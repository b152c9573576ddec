//! The pool of free segments, and the parts of it that are kept for special purposes.
//!
//! Freeing memory needs memory, so some segments are kept for the cleaner, and some are reserved
//! for migrations. After a crash there may be more segments than before it, for which a durable
//! log has spare places. `docs/design/log.md` explains why a full server makes progress, and the
//! spare places ("After a crash").
//!
//! Reserved segments are counted, not marked: it does not matter which free segment a writer gets.
//! But ready segments, with resident pages, are separate from fresh ones: see
//! `docs/design/memory.md`.

use super::state::Place;
use std::collections::VecDeque;

/// Purpose of a segment, which decides how many free segments must remain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SegmentPurpose {
    /// Writes of clients.
    Writes,
    /// Chunks of the index, side logs without a reservation.
    Other,
    /// The cleaner's survivors.
    Cleaning,
    /// A side log with a reservation, which requires a prior [`Pool::reserve`].
    Reserved,
    /// Deletes of a full server, which requires a prior [`Pool::keep_for_deletes`].
    Deletes,
    /// Segments from before a crash; the server does not serve clients until all are adopted.
    Adoption,
}

/// Numbers of free segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FreeCounts {
    /// Segments whose pages are all resident.
    pub(super) ready: usize,
    /// Other free segments.
    pub(super) fresh: usize,
    /// Free segments of either kind that are promised to reservations.
    pub(super) reserved: usize,
    /// Fresh segments that were taken so far although helper threads make segments ready.
    pub(super) unready_takes: u64,
}

/// The free segments.
pub(super) struct Pool {
    /// Places of ready segments. The last one is taken first: it was freed most recently.
    ready: VecDeque<Place>,
    /// Places of fresh segments. The last one is the next.
    fresh: Vec<Place>,
    /// Fresh segments that a helper thread is making ready.
    preparing: Vec<Place>,
    /// Set if helper threads make segments ready. Then writers and cleaners never take a fresh
    /// one.
    has_helpers: bool,
    /// Number of fresh segments taken in spite of helper threads.
    unready_takes: u64,
    /// Smallest number of ready segments since the last trimming.
    least_ready: usize,
    /// Segments promised to reservations and not taken yet.
    reserved: usize,
    /// Segments promised to heads for deletes and not taken yet.
    kept_for_deletes: usize,
    /// Number of segments that only the cleaner may take.
    kept_for_cleaning: usize,
    first_spare: Place,
    spare: Vec<Place>,
    /// Number of spare places, used or not.
    spare_count: usize,
    /// Number of used spare places, which reduce the segments of ordinary writers.
    debt: usize,
    is_adopting: bool,
    /// Number of segments that ordinary writers must leave, because the memory limit was lowered.
    withheld: usize,
}

impl Pool {
    /// Creates a pool of the places from 0 to `places - 1`, the lowest first.
    pub(super) fn new(places: u32, kept_for_cleaning: usize) -> Pool {
        Pool {
            ready: VecDeque::new(),
            fresh: (0..places).rev().map(Place).collect(),
            preparing: Vec::new(),
            has_helpers: false,
            unready_takes: 0,
            least_ready: 0,
            reserved: 0,
            kept_for_deletes: 0,
            kept_for_cleaning,
            first_spare: Place(places),
            spare: Vec::new(),
            spare_count: 0,
            debt: 0,
            is_adopting: false,
            withheld: 0,
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

    /// Sets how many segments ordinary writers must leave, free or not.
    pub(super) fn set_withheld(&mut self, segments: usize) {
        assert!(segments < self.first_spare.0 as usize, "{segments} segments are withheld");
        self.withheld = segments;
    }

    /// Takes a free segment, if the purpose permits it. Takes a ready one if there is one.
    pub(super) fn take(&mut self, purpose: SegmentPurpose) -> Option<Place> {
        let may_wait = match purpose {
            SegmentPurpose::Writes | SegmentPurpose::Cleaning => self.has_helpers,
            SegmentPurpose::Other
            | SegmentPurpose::Reserved
            | SegmentPurpose::Deletes
            | SegmentPurpose::Adoption => false,
        };
        if may_wait && self.ready.is_empty() {
            return None;
        }
        let may_have = match purpose {
            SegmentPurpose::Writes | SegmentPurpose::Other => self.ordinary() > 0,
            SegmentPurpose::Adoption if !self.spare.is_empty() => {
                self.debt += 1;
                let place = self.spare.pop();
                self.check();
                return place;
            }
            SegmentPurpose::Cleaning | SegmentPurpose::Adoption => self.free() > self.promised(),
            SegmentPurpose::Reserved => {
                assert!(self.reserved > 0, "more is taken than was reserved");
                self.reserved -= 1;
                true
            }
            SegmentPurpose::Deletes => {
                assert!(self.kept_for_deletes > 0, "more is taken than was kept for deletes");
                self.kept_for_deletes -= 1;
                true
            }
        };
        let place = may_have.then(|| self.take_any());
        self.check();
        place
    }

    fn take_any(&mut self) -> Place {
        self.unready_takes += u64::from(self.ready.is_empty() && self.has_helpers);
        let place = self.ready.pop_back().or_else(|| self.fresh.pop());
        self.least_ready = self.least_ready.min(self.ready.len());
        place.expect("no more is promised than is free")
    }

    /// Returns a segment to the pool. `is_ready` is set if its pages are resident.
    pub(super) fn give(&mut self, place: Place, is_ready: bool) {
        debug_assert!(
            !self.ready.contains(&place) && !self.fresh.contains(&place),
            "{place:?} is returned twice"
        );
        if place >= self.first_spare {
            assert!(self.debt > 0, "{place:?} is returned, but no spare place is in use");
            self.spare.push(place);
            self.debt -= 1;
        } else if is_ready {
            self.ready.push_back(place);
        } else {
            self.fresh.push(place);
        }
        self.check();
    }

    /// Returns the fresh segment to make ready next if fewer than `wanted` are ready: one that no
    /// other thread prepares. Those that other threads prepare count as ready, unless the caller
    /// `shares` their work, because they may not run for long: then it gets one of them if there
    /// is no other.
    pub(super) fn begin_preparing(&mut self, wanted: usize, shares: bool) -> Option<Place> {
        let soon = if shares { 0 } else { self.preparing.len() };
        if self.ready.len() + soon >= wanted {
            return None;
        }
        let is_new = |place: &&Place| !self.preparing.contains(place);
        let next = self.fresh.iter().rev().find(is_new);
        let place = next.or_else(|| self.fresh.last().filter(|_| shares)).copied()?;
        self.preparing.push(place);
        Some(place)
    }

    /// Records that all pages of a segment are resident. Ready segments that were used before are
    /// taken first. Does nothing if the segment is not fresh any more.
    pub(super) fn set_ready(&mut self, place: Place) {
        if let Some(at) = self.preparing.iter().position(|&preparing| preparing == place) {
            self.preparing.swap_remove(at);
        }
        if let Some(at) = self.fresh.iter().rposition(|&fresh| fresh == place) {
            self.fresh.remove(at);
            self.ready.push_front(place);
        }
        self.check();
    }

    /// Takes a ready segment out of the pool, so that its memory can be given back to the
    /// operating system, if more than `level` were always ready since the last trimming, and no
    /// helper thread still touches it. The caller returns it as a fresh one.
    pub(super) fn take_to_trim(&mut self, level: usize) -> Option<Place> {
        let is_touched = self.ready.front().is_some_and(|next| self.preparing.contains(next));
        let are_spare = self.least_ready.min(self.ready.len()) > level;
        if is_touched || !are_spare || self.free() <= self.promised() {
            return None;
        }
        self.least_ready -= 1;
        let place = self.ready.pop_front();
        self.check();
        place
    }

    /// Begins a new period for [`Pool::take_to_trim`].
    pub(super) fn end_trimming(&mut self) {
        self.least_ready = self.ready.len();
    }

    /// Marks that helper threads make segments ready from now on.
    pub(super) fn set_has_helpers(&mut self) {
        self.has_helpers = true;
    }

    /// Keeps one segment for deletes and returns whether there was one.
    pub(super) fn keep_for_deletes(&mut self) -> bool {
        let is_there = self.ordinary() > 0;
        self.kept_for_deletes += usize::from(is_there);
        self.check();
        is_there
    }

    /// Returns a segment that was kept for deletes and not taken.
    pub(super) fn release_for_deletes(&mut self) {
        assert!(self.kept_for_deletes > 0, "no segment is kept for deletes");
        self.kept_for_deletes -= 1;
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
        let (free, promised) = (self.free(), self.promised());
        assert!(promised <= free, "{promised} segments are promised of {free} free ones");
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
        let left = self.promised() + self.kept_for_cleaning + debt + self.withheld;
        self.free().saturating_sub(left)
    }

    fn free(&self) -> usize {
        self.ready.len() + self.fresh.len()
    }

    fn promised(&self) -> usize {
        self.reserved + self.kept_for_deletes
    }

    /// Returns the number of free segments by readiness.
    pub(super) fn counts(&self) -> FreeCounts {
        let (ready, fresh) = (self.ready.len(), self.fresh.len());
        FreeCounts { ready, fresh, reserved: self.reserved, unready_takes: self.unready_takes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cleaner_finds_a_segment_when_writers_find_none() {
        let mut pool = Pool::new(4, 2);
        assert!(pool.take(SegmentPurpose::Other).is_some());
        assert!(pool.take(SegmentPurpose::Other).is_some());
        assert_eq!(pool.take(SegmentPurpose::Other), None);
        let survivors = pool.take(SegmentPurpose::Cleaning).unwrap();
        pool.give(survivors, true);
        assert_eq!(pool.take(SegmentPurpose::Other), None, "returned segments refill the reserve");
        pool.give(Place(0), true);
        assert!(pool.take(SegmentPurpose::Other).is_some());
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
        pool.give(Place(7), true);
        assert_eq!(pool.ordinary(), 3);
        let taken = std::iter::from_fn(|| pool.take(SegmentPurpose::Cleaning));
        assert!(taken.eq((1..6).map(Place)), "a spare place has no other owner");
    }

    #[test]
    fn a_reservation_is_kept_from_everybody() {
        let mut pool = Pool::new(6, 1);
        assert!(!pool.reserve(5, 1));
        assert!(pool.reserve(4, 1));
        assert!(pool.take(SegmentPurpose::Other).is_some());
        assert_eq!(pool.take(SegmentPurpose::Other), None);
        assert!(pool.take(SegmentPurpose::Cleaning).is_some());
        assert_eq!(pool.take(SegmentPurpose::Cleaning), None);
        for _ in 0..3 {
            assert!(pool.take(SegmentPurpose::Reserved).is_some());
        }
        pool.unreserve(1);
        assert!(pool.take(SegmentPurpose::Cleaning).is_some());
    }

    #[test]
    fn a_lower_limit_leaves_writers_less_and_cleaners_the_same() {
        let mut pool = Pool::new(6, 1);
        pool.set_withheld(4);
        assert_eq!(pool.ordinary(), 1);
        assert!(pool.take(SegmentPurpose::Writes).is_some());
        assert_eq!(pool.take(SegmentPurpose::Writes), None);
        assert!(pool.take(SegmentPurpose::Cleaning).is_some());
        pool.set_withheld(0);
        assert_eq!(pool.ordinary(), 3);
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
        Pool::new(6, 1).with_spare(2).give(Place(6), true);
    }

    #[test]
    fn the_segment_given_back_last_is_taken_first() {
        let mut pool = Pool::new(4, 0);
        let first = pool.take(SegmentPurpose::Writes).unwrap();
        assert_eq!(first, Place(0));
        pool.take(SegmentPurpose::Writes).unwrap();
        pool.give(first, true);
        pool.set_ready(Place(2));
        assert_eq!(pool.begin_preparing(9, false), Some(Place(3)));
        let taken = [(); 3].map(|()| pool.take(SegmentPurpose::Writes).unwrap());
        assert_eq!(taken, [first, Place(2), Place(3)]);
    }

    #[test]
    fn with_helpers_a_writer_gets_no_fresh_segment_but_deletes_and_the_index_do() {
        let mut pool = Pool::new(5, 0);
        assert!(pool.keep_for_deletes());
        pool.set_has_helpers();
        assert_eq!(pool.take(SegmentPurpose::Writes), None);
        assert_eq!(pool.take(SegmentPurpose::Cleaning), None);
        assert_eq!(pool.ordinary(), 4, "a fresh segment is free");
        assert!(pool.take(SegmentPurpose::Deletes).is_some());
        assert!(pool.take(SegmentPurpose::Other).is_some());
        pool.set_ready(Place(0));
        assert_eq!(pool.counts().ready, 0, "another thread had taken it");
        pool.set_ready(Place(2));
        assert_eq!(pool.counts(), FreeCounts { ready: 1, fresh: 2, reserved: 0, unready_takes: 2 });
        assert_eq!(pool.take(SegmentPurpose::Writes), Some(Place(2)));
    }

    #[test]
    fn threads_prepare_different_segments_unless_they_are_impatient() {
        let mut pool = Pool::new(2, 0);
        assert_eq!(pool.begin_preparing(9, false), Some(Place(0)));
        assert_eq!(pool.begin_preparing(1, false), None, "one is enough");
        assert_eq!(pool.begin_preparing(1, true), Some(Place(1)));
        assert_eq!(pool.begin_preparing(9, false), None);
        assert_eq!(pool.begin_preparing(9, true), Some(Place(0)), "the first may not run for long");
        pool.set_ready(Place(0));
        pool.set_ready(Place(0));
        assert_eq!(pool.counts().ready, 1, "two threads have prepared it");
        pool.set_ready(Place(1));
        assert_eq!((pool.counts().ready, pool.begin_preparing(9, true)), (2, None));
    }

    #[test]
    fn a_segment_that_a_slow_thread_still_touches_is_not_trimmed() {
        let mut pool = Pool::new(1, 0);
        assert_eq!(pool.begin_preparing(1, false), Some(Place(0)));
        assert_eq!(pool.begin_preparing(1, true), Some(Place(0)), "the first one is slow");
        pool.set_ready(Place(0));
        pool.end_trimming();
        assert_eq!(pool.take_to_trim(0), None);
        pool.set_ready(Place(0));
        assert_eq!(pool.take_to_trim(0), Some(Place(0)));
    }

    #[test]
    fn only_segments_that_were_ready_all_the_time_are_trimmed() {
        let mut pool = Pool::new(6, 0);
        (0..6).for_each(|place| pool.set_ready(Place(place)));
        assert_eq!(pool.take_to_trim(1), None, "they were not ready before");
        pool.end_trimming();
        let taken = [(); 2].map(|()| pool.take(SegmentPurpose::Writes).unwrap());
        taken.into_iter().for_each(|place| pool.give(place, true));
        let trimmed: Vec<Place> = std::iter::from_fn(|| pool.take_to_trim(1)).collect();
        assert_eq!(trimmed, [Place(5), Place(4), Place(3)], "two were used, one is kept");
        assert_eq!(pool.counts().ready, 3);
        pool.give(Place(5), false);
        assert_eq!(pool.begin_preparing(9, false), Some(Place(5)));
    }
}
