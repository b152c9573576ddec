//! The living segments of a manifest log, on any of which a recovery may rest, and the
//! notifications that depend on them: rule 4 and G9 of `docs/design/replication.md`.
//!
//! A segment that was not announced to the coordinator may be given up when another one begins.
//!
//! **Invariant:** every living segment that a recovery may use contains everything that counts.

use std::collections::{BTreeMap, VecDeque};
use types::SegmentId;

/// Maximum number of living segments that the coordinator may know. A master that must move its
/// manifest repeatedly while the coordinator is away stops at this number, because each segment
/// takes a file at every backup.
const LIVING_MAX: usize = 4;

/// The living segments of a manifest log, and the notifications that wait until all of them have
/// the corresponding record.
#[derive(Debug)]
pub struct ManifestSegments<T> {
    living: BTreeMap<SegmentId, LivingSegment>,
    /// The last segment that the coordinator has recorded.
    recorded: Option<SegmentId>,
    waiting: VecDeque<PendingNotification<T>>,
}

#[derive(Debug, Default)]
struct LivingSegment {
    length: u32,
    /// Acknowledged length in bytes; `synced` is the synced length.
    acknowledged: u32,
    synced: u32,
    /// Set if the coordinator may know the segment.
    is_announced: bool,
}

/// A waiting notification, with the length that each living segment must reach.
#[derive(Debug)]
struct PendingNotification<T> {
    at: BTreeMap<SegmentId, u32>,
    /// Set if the record must be synced, not only acknowledged.
    must_be_synced: bool,
    notification: T,
}

impl<T> Default for ManifestSegments<T> {
    fn default() -> ManifestSegments<T> {
        ManifestSegments { living: BTreeMap::new(), recorded: None, waiting: VecDeque::new() }
    }
}

impl<T> ManifestSegments<T> {
    /// Returns the segment that was begun last.
    pub fn newest(&self) -> Option<SegmentId> {
        self.living.last_key_value().map(|(segment, _)| *segment)
    }

    /// Returns the living segments in ascending order.
    pub fn living(&self) -> impl Iterator<Item = SegmentId> {
        self.living.keys().copied()
    }

    /// Returns whether the coordinator has not yet recorded the newest segment. Until then no
    /// further segment need begin because of length.
    pub fn has_successor(&self) -> bool {
        self.newest() != self.recorded
    }

    /// Returns whether another segment may begin.
    pub fn may_begin(&self) -> bool {
        let is_kept = |(_, it): &(&SegmentId, &LivingSegment)| it.is_announced;
        self.living.iter().filter(is_kept).count() < LIVING_MAX
    }

    /// Returns whether the recorded segment has no unacknowledged bytes.
    pub fn is_idle(&self) -> bool {
        let counts = self.recorded.or(self.newest()).and_then(|segment| self.living.get(&segment));
        counts.is_none_or(|it| it.acknowledged >= it.length)
    }

    /// Returns whether every living segment has room for `bytes` more bytes.
    pub fn has_room(&self, bytes: usize, segment_bytes: usize) -> bool {
        self.living.values().all(|it| it.length as usize + bytes <= segment_bytes)
    }

    /// Begins a segment with a snapshot of `length` bytes, which also covers the waiting records.
    /// Returns the segments given up in its favor: those that the coordinator was never told of.
    pub fn begin(&mut self, segment: SegmentId, length: u32) -> Vec<SegmentId> {
        assert!(
            self.newest().is_none_or(|newest| newest < segment),
            "{segment} is not newer than the last manifest segment"
        );
        let recorded = self.recorded;
        let is_unknown =
            |id: &SegmentId, it: &LivingSegment| !it.is_announced && Some(*id) != recorded;
        let given_up = self.living.extract_if(.., |id, it| is_unknown(id, it));
        let given_up: Vec<SegmentId> = given_up.map(|(id, _)| id).collect();
        self.living.insert(segment, LivingSegment { length, ..LivingSegment::default() });
        for waiting in &mut self.waiting {
            waiting.at.insert(segment, length);
        }
        assert_eq!(self.newest(), Some(segment), "the newest segment was begun last");
        given_up
    }

    /// Adds `bytes` to the length of every living segment. Returns the new lengths.
    pub fn append(&mut self, bytes: u32) -> Vec<(SegmentId, u32)> {
        let grow = |(segment, living): (&SegmentId, &mut LivingSegment)| {
            living.length += bytes;
            (*segment, living.length)
        };
        self.living.iter_mut().map(grow).collect()
    }

    /// Queues a notification that counts once everything written so far does.
    pub fn wait(&mut self, notification: T, must_be_synced: bool) {
        let at = self.living.iter().map(|(segment, it)| (*segment, it.length)).collect();
        self.waiting.push_back(PendingNotification { at, must_be_synced, notification });
    }

    /// Queues a notification with a record that only the newest segment has room for. It counts
    /// when that segment is the only living one.
    pub fn wait_for_newest(&mut self, notification: T, must_be_synced: bool) {
        let newest = self.living.iter().next_back();
        let at = newest.map(|(segment, it)| (*segment, it.length)).into_iter().collect();
        self.waiting.push_back(PendingNotification { at, must_be_synced, notification });
    }

    /// Marks the segment as announced. Returns `false` if it was given up: the coordinator must
    /// not be told of it.
    #[must_use]
    pub fn announced(&mut self, segment: SegmentId) -> bool {
        let living = self.living.get_mut(&segment);
        let is_living = living.is_some();
        living.into_iter().for_each(|living| living.is_announced = true);
        is_living
    }

    /// Records that the coordinator knows the segment. Returns the segments that are obsolete now.
    pub fn recorded(&mut self, segment: SegmentId) -> Vec<SegmentId> {
        // A late answer may refer to a segment that has been superseded.
        if !self.living.contains_key(&segment) {
            return Vec::new();
        }
        assert!(self.recorded <= Some(segment), "{segment} is older than {:?}", self.recorded);
        self.recorded = Some(segment);
        let later = self.living.split_off(&segment);
        let earlier = std::mem::replace(&mut self.living, later);
        earlier.into_keys().collect()
    }

    /// Raises the acknowledged length of a segment: its quorum has these bytes.
    pub fn acknowledged(&mut self, segment: SegmentId, length: u32) {
        if let Some(living) = self.living.get_mut(&segment) {
            assert!(length <= living.length, "{segment} has {} bytes", living.length);
            living.acknowledged = living.acknowledged.max(length);
        }
    }

    /// Raises the synced length of a segment: these bytes survive a power loss.
    pub fn synced(&mut self, segment: SegmentId, length: u32) {
        self.acknowledged(segment, length);
        if let Some(living) = self.living.get_mut(&segment) {
            living.synced = living.synced.max(length);
            assert!(living.synced <= living.acknowledged, "{segment}: {living:?}");
        }
    }

    /// Returns whether everything in a living segment is synced; `None` if it was given up.
    pub fn is_synced(&self, segment: SegmentId) -> Option<bool> {
        self.living.get(&segment).map(|it| it.synced == it.length)
    }

    /// Removes and returns the notifications that count by now.
    pub fn take_ready(&mut self) -> Vec<T> {
        if self.recorded.is_none() {
            return Vec::new();
        }
        let living = &self.living;
        let counts = |waiting: &PendingNotification<T>| {
            living.iter().all(|(segment, it)| {
                let reached = if waiting.must_be_synced { it.synced } else { it.acknowledged };
                waiting.at.get(segment).is_some_and(|at| *at <= reached)
            })
        };
        // A segment's open, close and drop wait for increasing lengths. Notifications of one
        // segment therefore keep their order even if those of other segments overtake them.
        let (ready, waiting) =
            std::mem::take(&mut self.waiting).into_iter().partition::<VecDeque<_>, _>(counts);
        self.waiting = waiting;
        ready.into_iter().map(|waiting| waiting.notification).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: SegmentId = SegmentId(1);
    const B: SegmentId = SegmentId(2);
    const C: SegmentId = SegmentId(3);

    /// A manifest with the recorded and fully acknowledged segment A.
    fn recorded() -> ManifestSegments<u32> {
        let mut manifest = ManifestSegments::default();
        assert_eq!(manifest.begin(A, 10), []);
        manifest.acknowledged(A, 10);
        assert!(manifest.announced(A));
        assert_eq!(manifest.recorded(A), []);
        manifest
    }

    #[test]
    #[should_panic(expected = "is not newer than the last manifest segment")]
    fn a_segment_begins_once() {
        recorded().begin(A, 10);
    }

    #[test]
    #[should_panic(expected = "has 10 bytes")]
    fn no_more_is_acknowledged_than_was_appended() {
        recorded().acknowledged(A, 11);
    }

    #[test]
    fn nothing_counts_before_a_segment_is_recorded() {
        let mut manifest = ManifestSegments::default();
        manifest.begin(A, 10);
        manifest.wait(1, false);
        manifest.acknowledged(A, 10);
        assert_eq!(manifest.take_ready(), []);
        manifest.recorded(A);
        assert_eq!(manifest.take_ready(), [1]);
    }

    #[test]
    fn a_record_counts_when_the_recorded_segment_and_the_next_one_have_it() {
        let mut manifest = recorded();
        assert_eq!(manifest.append(5), [(A, 15)]);
        manifest.wait(1, false);
        assert_eq!(manifest.begin(B, 20), []);
        assert_eq!(manifest.append(5), [(A, 20), (B, 25)]);
        manifest.wait(2, false);
        manifest.acknowledged(A, 20);
        assert!(manifest.is_idle() && manifest.has_successor());
        assert_eq!(manifest.take_ready(), [], "the coordinator may note the second one");
        manifest.acknowledged(B, 20);
        assert_eq!(manifest.take_ready(), [1], "the snapshot says it");
        assert!(manifest.announced(B));
        assert_eq!(manifest.recorded(B), [A]);
        assert_eq!(manifest.take_ready(), []);
        manifest.acknowledged(B, 25);
        assert_eq!(manifest.take_ready(), [2]);
        assert!(!manifest.has_successor());
    }

    #[test]
    fn a_segment_that_nobody_was_told_of_is_given_up_for_another_one() {
        let mut manifest = recorded();
        manifest.begin(B, 20);
        manifest.append(5);
        manifest.wait(1, false);
        manifest.acknowledged(A, 15);
        assert_eq!(manifest.begin(C, 30), [B]);
        assert!(!manifest.announced(B), "the coordinator must not learn of it any more");
        assert_eq!(manifest.take_ready(), [], "the third one takes the second one's place");
        manifest.acknowledged(C, 30);
        assert_eq!(manifest.take_ready(), [1]);
    }

    #[test]
    fn a_segment_that_the_coordinator_was_told_of_lives_until_another_one_is_recorded() {
        let mut manifest = recorded();
        manifest.begin(B, 20);
        assert!(manifest.announced(B));
        assert_eq!(manifest.begin(C, 30), []);
        assert_eq!(manifest.living().collect::<Vec<_>>(), [A, B, C]);
        assert!(manifest.announced(C));
        assert_eq!(manifest.recorded(SegmentId(9)), [], "of an earlier time");
        assert_eq!(manifest.recorded(C), [A, B]);
        assert!(manifest.may_begin());
        for more in 4..7 {
            manifest.begin(SegmentId(more), 40);
            assert!(manifest.announced(SegmentId(more)));
        }
        assert!(!manifest.may_begin(), "each takes room at the backups");
    }

    #[test]
    fn what_lets_replicas_go_waits_until_no_crash_takes_it_back() {
        let mut manifest = recorded();
        manifest.append(5);
        manifest.wait(1, true);
        manifest.wait(2, false);
        manifest.acknowledged(A, 15);
        assert_eq!(manifest.take_ready(), [2]);
        manifest.synced(A, 15);
        assert_eq!(manifest.take_ready(), [1]);
    }

    #[test]
    fn what_has_no_room_in_the_recorded_segment_counts_when_the_next_one_is_recorded() {
        let mut manifest = recorded();
        manifest.begin(B, 20);
        manifest.wait_for_newest(1, false);
        manifest.acknowledged(B, 20);
        assert_eq!(manifest.take_ready(), [], "the coordinator may still know the first one");
        manifest.recorded(B);
        assert_eq!(manifest.take_ready(), [1]);
    }

    #[test]
    fn every_living_segment_must_have_room() {
        let mut manifest = recorded();
        manifest.begin(B, 90);
        assert!(manifest.has_room(10, 100) && !manifest.has_room(11, 100));
    }
}
