//! Which segments make up a durable log, and how a segment leaves it.
//!
//! After a crash exactly the segments of the log's directory are read again. So a segment may be
//! dropped from it only when nothing in it can matter any more:
//! 1. a cleaner has walked all of it, and what is needed has been copied (*visited*);
//! 2. nothing in it lives, tombstones included (see `pins.rs`);
//! 3. everything written so far is stable, because what killed its entries is among that (the
//!    *barrier*, taken when 1 and 2 hold);
//! 4. the segments from which copies came into it have been dropped: a tombstone that names the copy
//!    goes with it, while the original would still be read.
//!
//! Then the log says [`LogChange::Dead`]. When the directory has dropped the segment, and that is
//! stable, [`Log::release`](super::Log::release) makes it free after a grace period.
#![forbid(unsafe_code)]

use super::segment::{Content, Place, Position, Segments};
use crate::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};
use planted::Bug;
use std::collections::{BTreeMap, BTreeSet};
use types::SegmentId;

/// What the log's directory must be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogChange {
    /// The segment is part of the log. Said in the order of numbers, and before any of its bytes
    /// is handed out.
    Opened(SegmentId),
    /// Nothing more will be written to it.
    Closed {
        /// The segment.
        segment: SegmentId,
        /// Its bytes.
        length: u32,
    },
    /// Nothing in it is needed: it may be dropped, and then be released.
    Dead(SegmentId),
}

/// The segments of the log.
pub(super) struct Ledger {
    state: Mutex<State>,
    has_changes: AtomicBool,
    /// Segments visited and not released.
    ending: AtomicUsize,
}

struct State {
    /// The highest number that was given or adopted.
    last: SegmentId,
    places: BTreeMap<SegmentId, Place>,
    changes: Vec<LogChange>,
    /// Segments from which copies came into this one.
    origins: BTreeMap<SegmentId, BTreeSet<SegmentId>>,
    leaving: Vec<Leaving>,
    /// Those of which [`LogChange::Dead`] was said.
    dead: BTreeSet<SegmentId>,
}

/// A segment in which nothing lives.
struct Leaving {
    segment: SegmentId,
    place: Place,
    /// What has to be stable.
    barrier: Vec<Position>,
}

impl Ledger {
    pub(super) fn new() -> Ledger {
        Ledger {
            state: Mutex::new(State {
                last: SegmentId(0),
                places: BTreeMap::new(),
                changes: Vec::new(),
                origins: BTreeMap::new(),
                leaving: Vec::new(),
                dead: BTreeSet::new(),
            }),
            has_changes: AtomicBool::new(false),
            ending: AtomicUsize::new(0),
        }
    }

    /// Gives the segment in a place its number.
    pub(super) fn open(&self, segments: &Segments, place: Place, content: Content) {
        let mut state = self.lock();
        state.last = SegmentId(state.last.0 + 1);
        let id = state.last;
        segments.name(place, id, content);
        state.places.insert(id, place);
        self.say(&mut state, LogChange::Opened(id));
    }

    /// A segment read from the replicas, with the number that it has.
    pub(super) fn adopt(&self, segments: &Segments, place: Place, id: SegmentId) {
        let mut state = self.lock();
        state.last = state.last.max(id);
        segments.name(place, id, Content::Writes);
        let known = state.places.insert(id, place);
        assert!(known.is_none(), "{id} is adopted twice");
    }

    pub(super) fn close(&self, segment: SegmentId, length: u32) {
        self.say(&mut self.lock(), LogChange::Closed { segment, length });
    }

    /// Asks the segment's writer to go on in another one.
    pub(super) fn end(&self, segments: &Segments, segment: SegmentId) {
        // Under the lock: its place cannot be another segment's before.
        if let Some(place) = self.lock().places.get(&segment) {
            segments.set_ending(*place);
        }
    }

    /// Copies from the one have come into the other.
    pub(super) fn note_origin(&self, into: SegmentId, from: SegmentId) {
        let mut state = self.lock();
        if state.places.contains_key(&from) {
            state.origins.entry(into).or_default().insert(from);
        }
    }

    /// Whether copies from the one stand in the other.
    pub(super) fn is_origin(&self, into: SegmentId, from: SegmentId) -> bool {
        self.lock().origins.get(&into).is_some_and(|origins| origins.contains(&from))
    }

    /// Whether the segment would be read after a crash.
    pub(super) fn contains(&self, segment: SegmentId) -> bool {
        self.lock().places.contains_key(&segment)
    }

    pub(super) fn place(&self, segment: SegmentId) -> Option<Place> {
        self.lock().places.get(&segment).copied()
    }

    /// The segments that would be read after a crash, ascending.
    pub(super) fn all(&self) -> Vec<(SegmentId, Place)> {
        self.lock().places.iter().map(|(id, place)| (*id, *place)).collect()
    }

    /// The lowest of them.
    pub(super) fn lowest(&self) -> Option<SegmentId> {
        self.lock().places.keys().next().copied()
    }

    /// The highest number that was given or adopted.
    pub(super) fn last(&self) -> SegmentId {
        self.lock().last
    }

    /// A segment has been visited.
    pub(super) fn count_visited(&self) {
        self.ending.fetch_add(1, Ordering::Relaxed);
    }

    /// Segments that will be free without further cleaning.
    #[inline]
    pub(super) fn ending(&self) -> usize {
        self.ending.load(Ordering::Relaxed)
    }

    /// Nothing lives in the segment, which has been visited.
    pub(super) fn begin_leaving(&self, segments: &Segments, place: Place) {
        let mut state = self.lock();
        let barrier = segments.barrier();
        state.leaving.push(Leaving { segment: segments.id(place), place, barrier });
        self.report_dead(&mut state, segments);
    }

    /// Something has become stable.
    pub(super) fn advance(&self, segments: &Segments) {
        if self.ending() > 0 {
            self.report_dead(&mut self.lock(), segments);
        }
    }

    /// The directory has dropped the segment.
    ///
    /// # Panics
    /// If the log has not said that the segment is dead: our bug.
    pub(super) fn release(&self, segments: &Segments, segment: SegmentId) -> Place {
        let mut state = self.lock();
        assert!(state.dead.remove(&segment), "{segment} is released and was not said to be dead");
        let place = state.places.remove(&segment).expect("a dead segment is the log's");
        state.origins.remove(&segment);
        for origins in state.origins.values_mut() {
            origins.remove(&segment);
        }
        self.ending.fetch_sub(1, Ordering::Relaxed);
        self.report_dead(&mut state, segments);
        place
    }

    #[inline]
    pub(super) fn has_changes(&self) -> bool {
        self.has_changes.load(Ordering::Relaxed)
    }

    pub(super) fn take_changes(&self) -> Vec<LogChange> {
        let mut state = self.lock();
        self.has_changes.store(false, Ordering::Relaxed);
        std::mem::take(&mut state.changes)
    }

    fn report_dead(&self, state: &mut State, segments: &Segments) {
        let State { leaving, origins, dead, changes, .. } = state;
        leaving.retain_mut(|Leaving { segment, place, barrier }| {
            barrier.retain(|position| !segments.is_stable(position));
            if planted::is(Bug::LeftBeforeStable) {
                barrier.clear();
            }
            let has_origins = origins.get(segment).is_some_and(|origins| !origins.is_empty())
                && !planted::is(Bug::LeftBeforeOrigin);
            if !barrier.is_empty() || has_origins || !segments.is_handed_out(*place) {
                return true;
            }
            dead.insert(*segment);
            changes.push(LogChange::Dead(*segment));
            self.has_changes.store(true, Ordering::Relaxed);
            false
        });
    }

    fn say(&self, state: &mut State, change: LogChange) {
        state.changes.push(change);
        self.has_changes.store(true, Ordering::Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nothing panics while it holds the ledger's lock")
    }
}
