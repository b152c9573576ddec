//! Version marks of a standalone server in the mode `interval`: after a loss of power, a restart
//! ignores the entries above the last mark (`docs/design/durability.md`, hard part 4).
//!
//! A mark begins when a sync is due on any reactor. The sync waits until all entries up to the
//! mark are appended, which takes one turn of every reactor, and then all reactors sync. When
//! everything is synced the manifest records the mark, and is synced in turn. So the marks need no
//! syncs of the data besides those of the interval.

use super::{Mode, Plan, Replication, lock};
use crate::state::NodeState;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use store::{PendingMark, Store};
use types::{Instant, ReactorId, Version};

/// Longest time that a due sync waits for the entries up to a mark. A reactor that begins no turn
/// for so long must not keep the others from syncing.
const APPENDING_MAX: Duration = Duration::from_millis(100);

/// Shortest time between two syncs of the manifest for marks alone, as a part of the interval.
const MANIFEST_SYNC_PART: u32 = 2;

/// The version marks of this server, shared by all reactors.
pub(super) struct VersionMarks {
    is_on: bool,
    state: Mutex<MarksState>,
    is_pending: AtomicBool,
    /// Number of marks whose entries were all appended: every reactor syncs after each.
    rounds: AtomicU64,
    /// The last mark for which the manifest is to be synced at once.
    hurried: AtomicU64,
    /// The last mark that is synced.
    safe: AtomicU64,
}

#[derive(Default)]
struct MarksState {
    pending: Option<PendingMark>,
    /// Time at which the last mark began.
    begun: Instant,
    /// Value of the version counter since which there is nothing new to mark.
    marked: Version,
    /// Time at which the manifest was last to be synced for a mark.
    manifest_synced: Instant,
}

impl VersionMarks {
    /// Makes the marks of a standalone server, or those of another one, which has none.
    pub(super) fn new(plan: Plan, is_standalone: bool) -> VersionMarks {
        VersionMarks {
            is_on: is_standalone && plan.mode == Mode::Interval,
            state: Mutex::default(),
            is_pending: AtomicBool::new(false),
            rounds: AtomicU64::new(0),
            hurried: AtomicU64::new(0),
            safe: AtomicU64::new(0),
        }
    }

    /// Returns the number of marks whose entries were all appended. Every reactor syncs when it
    /// has risen.
    #[inline]
    pub(super) fn rounds(&self) -> u64 {
        self.rounds.load(Ordering::Relaxed)
    }

    /// Returns whether the manifest is to be synced now.
    #[inline]
    pub(super) fn wants_manifest_sync(&self) -> bool {
        self.hurried.load(Ordering::Relaxed) > self.safe.load(Ordering::Relaxed)
    }

    /// Returns the last mark that survives a loss of power.
    pub(super) fn safe(&self) -> Version {
        Version(self.safe.load(Ordering::Relaxed))
    }

    /// Records that a mark survives a loss of power.
    pub(super) fn note_safe(&self, version: Version) {
        let before = self.safe.fetch_max(version.0, Ordering::Relaxed);
        assert!(before <= version.0, "mark {version} is synced behind {before}");
    }
}

impl Replication {
    /// Returns whether this server has version marks.
    #[inline]
    pub(super) fn has_marks(&self) -> bool {
        self.marks.is_on && !self.loading.is_on()
    }

    /// Returns whether a sync that is due may begin now. Otherwise a mark is pending, and the sync
    /// follows when its entries are appended.
    pub(super) fn may_sync(&self, now: Instant, node: &NodeState) -> bool {
        if !self.has_marks() {
            return true;
        }
        let (store, mut state) = (node.store(), lock(&self.marks.state));
        match &state.pending {
            Some(mark) => mark.is_appended() || now.since(state.begun) >= APPENDING_MAX,
            None if store.version() == state.marked && !store.awaits_mark() => true,
            None => {
                self.begin_mark(&mut state, now, node);
                false
            }
        }
    }

    /// Begins a mark for segments that wait for one to leave the log. `is_urgent`: memory is low.
    pub(super) fn mark_for_leaving(&self, is_urgent: bool, now: Instant, node: &NodeState) {
        if !self.has_marks() || !node.store().awaits_mark() {
            return;
        }
        let mut state = lock(&self.marks.state);
        let is_due = is_urgent || now.since(state.begun) >= self.sync_interval;
        if is_due && state.pending.is_none() {
            self.begin_mark(&mut state, now, node);
        }
    }

    /// Returns the time at which [`Replication::mark_for_leaving`] must be called.
    pub(super) fn mark_deadline(&self, store: &Store) -> Option<Instant> {
        if !self.has_marks() || !store.awaits_mark() {
            return None;
        }
        let state = lock(&self.marks.state);
        state.pending.is_none().then_some(state.begun + self.sync_interval)
    }

    fn begin_mark(&self, state: &mut MarksState, now: Instant, node: &NodeState) {
        assert!(state.pending.is_none(), "one mark is pending at a time");
        assert!(self.marks.is_on, "only a server with marks begins one");
        let mark = node.store().begin_mark();
        assert!(state.marked <= mark.version(), "a mark goes back");
        state.marked = Version(mark.version().0 + 1);
        (state.pending, state.begun) = (Some(mark), now);
        self.marks.is_pending.store(true, Ordering::Release);
        // The mark is appended when every reactor has begun a turn, and the last one notices it.
        node.wake_all();
    }

    /// Lets the pending mark go on. Called at the end of each turn of each reactor, so that the
    /// last one to do what the mark waits for notices it. Returns whether the manifest has changed.
    #[inline]
    pub(super) fn advance_mark(&self, now: Instant, reactor: ReactorId, node: &NodeState) -> bool {
        self.marks.is_pending.load(Ordering::Acquire) && self.advance_pending(now, reactor, node)
    }

    fn advance_pending(&self, now: Instant, reactor: ReactorId, node: &NodeState) -> bool {
        let (marks, store) = (&self.marks, node.store());
        let mut state = lock(&marks.state);
        let Some(mark) = &mut state.pending else { return false };
        let was_appended = mark.is_appended();
        let is_reached = store.is_mark_reached(mark);
        assert!(mark.is_appended() || !was_appended, "appended entries have disappeared");
        if !was_appended && mark.is_appended() && !is_reached {
            marks.rounds.fetch_add(1, Ordering::Relaxed);
            node.wake_all();
        }
        let Some(mark) = state.pending.take_if(|_| is_reached) else { return false };
        assert!(marks.safe() <= mark.version(), "a later mark is synced already");
        marks.is_pending.store(false, Ordering::Release);
        // The drops of segments that leave because of the mark come behind it in the manifest.
        self.manifest_log().mark(mark.version(), reactor);
        store.note_marked(&mark);
        if now.since(state.manifest_synced) >= self.sync_interval / MANIFEST_SYNC_PART {
            state.manifest_synced = now;
            marks.hurried.store(mark.version().0, Ordering::Relaxed);
        }
        if store.log().has_changes() {
            node.wake_all();
        }
        self.call_chain(node, reactor);
        true
    }
}
