//! The [`SegmentRegistry`]: the set of segments that make up a durable log, and the steps by which
//! a segment leaves it.
//!
//! After a crash exactly the segments in the segment manifest are read again. So the manifest may
//! drop a segment only when these conditions hold:
//! 1. A cleaner has processed all of it and copied everything needed (*visited*).
//! 2. It has no live entries, tombstones included (see `pins.rs`).
//! 3. Everything appended until then is synced, because that includes the entries that superseded
//!    its entries. The *barrier* is the list of these positions, taken when 1 and 2 hold.
//! 4. The segments from which entries were copied into it have been dropped. Otherwise a
//!    tombstone that names the copy goes with it, while the original would still be read.
//! 5. Its writer has sent all of it.
//! 6. If the log has version marks, one that was begun afterwards is recorded (`marks.rs`).
//!
//! Then the log reports [`LogChange::Dead`]. The caller queues the drop for the manifest and calls
//! [`Log::release`](super::Log::release), which frees the memory after a grace period. The memory
//! need not wait until the drop is synced, because the manifest writes every later change behind
//! the drop. Only the replicas must.

use super::marks::MarkCounts;
use super::segment::Segments;
use super::state::{ContentKind, LogPosition, Place};
use super::usage::LogLength;
use crate::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use crate::sync::{Mutex, MutexGuard};
use planted::Bug;
use std::collections::{BTreeMap, BTreeSet};
use types::SegmentId;

/// A change that must be written to the segment manifest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogChange {
    /// The segment was added to the log. Reported in the order of segment numbers, and before any
    /// of its bytes is sent.
    Opened(SegmentId),
    /// The segment is complete.
    Closed {
        /// Number of the segment.
        segment: SegmentId,
        /// Length in bytes.
        length: u32,
    },
    /// The segment is not needed: the manifest may drop it, and then it may be released.
    Dead(SegmentId),
}

/// The segments of a durable log: the store's side of the segment manifest.
pub(crate) struct SegmentRegistry {
    state: Mutex<RegistryState>,
    has_changes: AtomicBool,
    /// Number of segments that are visited and not released.
    ending: AtomicUsize,
}

struct RegistryState {
    /// Highest number that was assigned or adopted.
    last: SegmentId,
    places: BTreeMap<SegmentId, Place>,
    changes: Vec<LogChange>,
    /// Per segment, the segments from which entries were copied into it.
    origins: BTreeMap<SegmentId, BTreeSet<SegmentId>>,
    leaving: Vec<LeavingSegment>,
    /// Segments reported as [`LogChange::Dead`].
    dead: BTreeSet<SegmentId>,
    /// `None` if the log has no version marks.
    marks: Option<MarkCounts>,
}

/// A segment without live entries that waits for its barrier.
struct LeavingSegment {
    segment: SegmentId,
    place: Place,
    /// Positions that must be synced.
    barrier: Vec<LogPosition>,
    /// Number of the mark that must be recorded, if the log has marks.
    mark: u64,
}

impl SegmentRegistry {
    pub(super) fn new() -> SegmentRegistry {
        SegmentRegistry {
            state: Mutex::new(RegistryState {
                last: SegmentId(0),
                places: BTreeMap::new(),
                changes: Vec::new(),
                origins: BTreeMap::new(),
                leaving: Vec::new(),
                dead: BTreeSet::new(),
                marks: None,
            }),
            has_changes: AtomicBool::new(false),
            ending: AtomicUsize::new(0),
        }
    }

    /// Assigns the next number to the segment in a place.
    pub(super) fn open(&self, segments: &Segments, place: Place, content: ContentKind) {
        let mut state = self.lock();
        state.last = SegmentId(state.last.0 + 1);
        let id = state.last;
        segments.name(place, id, content);
        let known = state.places.insert(id, place);
        assert!(known.is_none(), "{id} is in the log before it is opened");
        self.say(&mut state, LogChange::Opened(id));
    }

    /// Adds a segment that was read from the replicas, with its existing number.
    pub(super) fn adopt(&self, segments: &Segments, place: Place, id: SegmentId) {
        let mut state = self.lock();
        state.last = state.last.max(id);
        segments.name(place, id, ContentKind::Writes);
        let known = state.places.insert(id, place);
        assert!(known.is_none(), "{id} is adopted twice");
    }

    /// Leaves out the numbers up to `last`: segments that are opened later have higher ones.
    pub(super) fn skip_to(&self, last: SegmentId) {
        let mut state = self.lock();
        state.last = state.last.max(last);
    }

    pub(super) fn close(&self, segment: SegmentId, length: u32) {
        let mut state = self.lock();
        assert!(state.places.contains_key(&segment), "{segment} is closed, but not in the log");
        self.say(&mut state, LogChange::Closed { segment, length });
    }

    /// Asks the segment's writer to continue in another one.
    pub(super) fn end(&self, segments: &Segments, segment: SegmentId) {
        // Under the lock, so that the place cannot belong to another segment meanwhile.
        if let Some(place) = self.lock().places.get(&segment) {
            segments.set_ending(*place);
        }
    }

    /// Records that entries of one segment were copied into another.
    pub(crate) fn note_origin(&self, into: SegmentId, from: SegmentId) {
        let mut state = self.lock();
        if state.places.contains_key(&from) {
            state.origins.entry(into).or_default().insert(from);
        }
    }

    /// Records that an adopted segment has copies of entries of another one. That one may be
    /// adopted later: [`SegmentRegistry::end_adoption`] removes the origins that are not.
    pub(crate) fn adopt_origin(&self, into: SegmentId, from: SegmentId) {
        let mut state = self.lock();
        assert!(state.places.contains_key(&into), "{into} is entered, but is not adopted");
        let is_forgotten = planted::is(Bug::OriginForgotten) && !state.places.contains_key(&from);
        // No cleaner copies a segment into itself. Such a note would keep the segment for ever.
        if from != into && !is_forgotten {
            state.origins.entry(into).or_default().insert(from);
        }
    }

    /// Removes the origins that are not in the log, when all segments have been adopted.
    pub(super) fn end_adoption(&self, segments: &Segments) {
        let mut state = self.lock();
        let RegistryState { places, origins, .. } = &mut *state;
        origins.retain(|into, origins| {
            assert!(places.contains_key(into), "{into} has left the log while it was adopted");
            origins.retain(|from| places.contains_key(from));
            !origins.is_empty()
        });
        self.report_dead(&mut state, segments);
    }

    /// Returns whether entries of `from` were copied into `into`.
    pub(crate) fn is_origin(&self, into: SegmentId, from: SegmentId) -> bool {
        self.lock().origins.get(&into).is_some_and(|origins| origins.contains(&from))
    }

    /// Returns whether the segment would be read after a crash.
    pub(super) fn contains(&self, segment: SegmentId) -> bool {
        self.lock().places.contains_key(&segment)
    }

    pub(super) fn place(&self, segment: SegmentId) -> Option<Place> {
        self.lock().places.get(&segment).copied()
    }

    /// Returns the segments that would be read after a crash, ascending.
    pub(super) fn all(&self) -> Vec<(SegmentId, Place)> {
        self.lock().places.iter().map(|(id, place)| (*id, *place)).collect()
    }

    /// Returns the lowest of these segments.
    pub(super) fn lowest(&self) -> Option<SegmentId> {
        self.lock().places.keys().next().copied()
    }

    /// Returns the highest number that was assigned or adopted.
    pub(crate) fn last(&self) -> SegmentId {
        self.lock().last
    }

    /// Counts a visited segment.
    pub(super) fn count_visited(&self) {
        self.ending.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the number of segments that become free without further cleaning.
    #[inline]
    pub(super) fn ending(&self) -> usize {
        self.ending.load(Ordering::Relaxed)
    }

    /// Returns the numbers of segments that are still to be visited, and that are leaving.
    pub(super) fn length(&self) -> LogLength {
        let state = self.lock();
        // A segment is counted as ending while it is in the log.
        let unvisited = state.places.len().checked_sub(self.ending());
        LogLength {
            unvisited: unvisited.expect("a visited segment is in the log"),
            leaving: state.leaving.len() + state.dead.len(),
        }
    }

    /// Begins the removal of a visited segment without live entries.
    pub(super) fn begin_leaving(&self, segments: &Segments, place: Place) {
        let mut state = self.lock();
        let segment = segments.id(place);
        assert!(state.places.get(&segment) == Some(&place), "{segment} leaves, but is not here");
        debug_assert!(
            state.leaving.iter().all(|leaving| leaving.segment != segment),
            "{segment} leaves twice"
        );
        let barrier = segments.barrier();
        let mark = state.marks.as_ref().map_or(0, MarkCounts::next);
        state.leaving.push(LeavingSegment { segment, place, barrier, mark });
        self.report_dead(&mut state, segments);
    }

    /// Makes segments wait for version marks from now on.
    pub(crate) fn require_marks(&self) {
        let before = self.lock().marks.replace(MarkCounts::default());
        assert!(before.is_none(), "marks are required once");
    }

    /// Begins a version mark, whose version is drawn afterwards. Returns its number.
    pub(crate) fn begin_mark(&self) -> u64 {
        self.lock().marks.as_mut().expect("the log has marks").begin()
    }

    /// Returns whether a segment waits for a mark that was not begun yet.
    pub(crate) fn awaits_mark(&self) -> bool {
        if self.ending() == 0 {
            return false;
        }
        let state = self.lock();
        state.marks.is_some_and(|marks| state.leaving.iter().any(|it| it.mark == marks.next()))
    }

    /// Records that a mark is in the manifest, before all later changes of it.
    pub(super) fn note_marked(&self, segments: &Segments, number: u64) {
        let mut state = self.lock();
        state.marks.as_mut().expect("the log has marks").record(number);
        self.report_dead(&mut state, segments);
    }

    /// Reports the segments that meet all conditions as dead. Called after bytes were synced.
    pub(super) fn advance(&self, segments: &Segments) {
        if self.ending() > 0 {
            self.report_dead(&mut self.lock(), segments);
        }
    }

    /// Removes a segment that was reported as dead.
    ///
    /// # Panics
    /// If the log has not reported the segment as dead: a bug of the caller.
    pub(super) fn release(&self, segments: &Segments, segment: SegmentId) -> Place {
        let mut state = self.lock();
        assert!(state.dead.remove(&segment), "{segment} is released, but was not reported dead");
        let place = state.places.remove(&segment).expect("a dead segment is the log's");
        state.origins.remove(&segment);
        for origins in state.origins.values_mut() {
            origins.remove(&segment);
        }
        let ending = self.ending.fetch_sub(1, Ordering::Relaxed);
        assert!(ending > 0, "{segment} is released, but no segment was visited");
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

    fn report_dead(&self, state: &mut RegistryState, segments: &Segments) {
        let RegistryState { leaving, origins, dead, changes, marks, .. } = state;
        leaving.retain_mut(|LeavingSegment { segment, place, barrier, mark }| {
            barrier.retain(|position| !segments.is_synced(position));
            if planted::is(Bug::LeftBeforeSynced) {
                barrier.clear();
            }
            let has_origins = origins.get(segment).is_some_and(|origins| !origins.is_empty())
                && !planted::is(Bug::LeftBeforeOrigin);
            let has_mark = marks.is_none_or(|marks| marks.has_recorded(*mark))
                || planted::is(Bug::LeftBeforeMark);
            let may_leave = barrier.is_empty() && !has_origins && has_mark;
            if !may_leave || !segments.is_handed_out(*place) {
                return true;
            }
            let is_new = dead.insert(*segment);
            assert!(is_new, "{segment} is reported dead twice");
            changes.push(LogChange::Dead(*segment));
            self.has_changes.store(true, Ordering::Relaxed);
            false
        });
    }

    fn say(&self, state: &mut RegistryState, change: LogChange) {
        state.changes.push(change);
        self.has_changes.store(true, Ordering::Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, RegistryState> {
        self.state.lock().expect("nothing panics while it holds the registry's lock")
    }
}
