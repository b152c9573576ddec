//! The segments of a log directory that a recovery may rest on, and which of the master's notices
//! count by now.
//!
//! The coordinator knows one segment, the noted one. The next one is begun with a snapshot while the
//! master goes on; from then on every record goes to both, and counts when both have it: the
//! coordinator may note the new one at any moment, and the master hears of it later. So a
//! coordinator that is away stops nothing: both grow until it answers.
//!
//! A segment that the coordinator was not told of may be given up, if another one is begun at the
//! same time.
//!
//! **Invariant:** whichever of the living segments a recovery rests on says everything that counts.

use std::collections::{BTreeMap, VecDeque};
use types::SegmentId;

/// Segments that live at a time. A master that must move its directory again and again while the
/// coordinator is away stops at so many: each takes a file of every backup.
const LIVING_MAX: usize = 4;

/// The living segments of a log directory, with notices that count once all of these say so.
#[derive(Debug)]
pub struct Manifest<T> {
    living: BTreeMap<SegmentId, Living>,
    /// The last one that the coordinator has noted.
    noted: Option<SegmentId>,
    waiting: VecDeque<Waiting<T>>,
}

#[derive(Debug, Default)]
struct Living {
    length: u32,
    /// Up to where it counts, and up to where no crash takes it back.
    acknowledged: u32,
    stable: u32,
    /// The coordinator may know it.
    is_announced: bool,
}

/// A notice, and where it stands in each living segment.
#[derive(Debug)]
struct Waiting<T> {
    at: BTreeMap<SegmentId, u32>,
    /// Whether it counts only when no crash takes it back.
    must_be_stable: bool,
    notice: T,
}

impl<T> Default for Manifest<T> {
    fn default() -> Manifest<T> {
        Manifest { living: BTreeMap::new(), noted: None, waiting: VecDeque::new() }
    }
}

impl<T> Manifest<T> {
    /// The segment that was begun last.
    pub fn newest(&self) -> Option<SegmentId> {
        self.living.last_key_value().map(|(segment, _)| *segment)
    }

    /// The living segments.
    pub fn living(&self) -> impl Iterator<Item = SegmentId> {
        self.living.keys().copied()
    }

    /// Returns whether the coordinator has still to note a segment, so that no other one need be begun
    /// for its length.
    pub fn has_successor(&self) -> bool {
        self.newest() != self.noted
    }

    /// Returns whether another segment may be begun.
    pub fn may_begin(&self) -> bool {
        let is_kept = |(_, it): &(&SegmentId, &Living)| it.is_announced;
        self.living.iter().filter(is_kept).count() < LIVING_MAX
    }

    /// Returns whether nothing is under way to the segment that counts.
    pub fn is_idle(&self) -> bool {
        let counts = self.noted.or(self.newest()).and_then(|segment| self.living.get(&segment));
        counts.is_none_or(|it| it.acknowledged >= it.length)
    }

    /// Returns whether every living segment has room for so many bytes more.
    pub fn has_room(&self, bytes: usize, segment_bytes: usize) -> bool {
        self.living.values().all(|it| it.length as usize + bytes <= segment_bytes)
    }

    /// A segment is begun, with a snapshot of so many bytes that says everything, also what waits.
    /// Returns those that are given up for it: nobody was told of them.
    pub fn begin(&mut self, segment: SegmentId, length: u32) -> Vec<SegmentId> {
        let noted = self.noted;
        let is_unknown = |id: &SegmentId, it: &Living| !it.is_announced && Some(*id) != noted;
        let given_up = self.living.extract_if(.., |id, it| is_unknown(id, it));
        let given_up: Vec<SegmentId> = given_up.map(|(id, _)| id).collect();
        self.living.insert(segment, Living { length, ..Living::default() });
        for waiting in &mut self.waiting {
            waiting.at.insert(segment, length);
        }
        given_up
    }

    /// A record of so many bytes is written to every living segment. Returns their lengths.
    pub fn append(&mut self, bytes: u32) -> Vec<(SegmentId, u32)> {
        let grow = |(segment, living): (&SegmentId, &mut Living)| {
            living.length += bytes;
            (*segment, living.length)
        };
        self.living.iter_mut().map(grow).collect()
    }

    /// This counts when all that has been written so far does.
    pub fn wait(&mut self, notice: T, must_be_stable: bool) {
        let at = self.living.iter().map(|(segment, it)| (*segment, it.length)).collect();
        self.waiting.push_back(Waiting { at, must_be_stable, notice });
    }

    /// This stands in the newest segment alone, for lack of room in the others, and counts when that is
    /// the only one.
    pub fn wait_for_newest(&mut self, notice: T, must_be_stable: bool) {
        let newest = self.living.iter().next_back();
        let at = newest.map(|(segment, it)| (*segment, it.length)).into_iter().collect();
        self.waiting.push_back(Waiting { at, must_be_stable, notice });
    }

    /// The coordinator is told of the segment. `false`: it must not be, for the segment has been given up.
    #[must_use]
    pub fn announced(&mut self, segment: SegmentId) -> bool {
        let living = self.living.get_mut(&segment);
        let is_living = living.is_some();
        living.into_iter().for_each(|living| living.is_announced = true);
        is_living
    }

    /// The coordinator has noted the segment. Returns those that are not needed any more.
    pub fn note(&mut self, segment: SegmentId) -> Vec<SegmentId> {
        // An answer may be about a segment that another one has followed.
        if !self.living.contains_key(&segment) {
            return Vec::new();
        }
        self.noted = Some(segment);
        let later = self.living.split_off(&segment);
        let earlier = std::mem::replace(&mut self.living, later);
        earlier.into_keys().collect()
    }

    /// The quorum of a segment has so much of it.
    pub fn acknowledged(&mut self, segment: SegmentId, length: u32) {
        if let Some(living) = self.living.get_mut(&segment) {
            living.acknowledged = living.acknowledged.max(length);
        }
    }

    /// So much of a segment survives a loss of power.
    pub fn stable(&mut self, segment: SegmentId, length: u32) {
        self.acknowledged(segment, length);
        if let Some(living) = self.living.get_mut(&segment) {
            living.stable = living.stable.max(length);
        }
    }

    /// The notices that count by now, each once.
    pub fn take_ready(&mut self) -> Vec<T> {
        if self.noted.is_none() {
            return Vec::new();
        }
        let living = &self.living;
        let counts = |waiting: &Waiting<T>| {
            living.iter().all(|(segment, it)| {
                let reached = if waiting.must_be_stable { it.stable } else { it.acknowledged };
                waiting.at.get(segment).is_some_and(|at| *at <= reached)
            })
        };
        // A segment is listed before it is said to be closed, and that before it is dropped: notices
        // of one segment stay in order although others overtake them.
        let (ready, waiting) =
            std::mem::take(&mut self.waiting).into_iter().partition::<VecDeque<_>, _>(counts);
        self.waiting = waiting;
        ready.into_iter().map(|waiting| waiting.notice).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: SegmentId = SegmentId(1);
    const B: SegmentId = SegmentId(2);
    const C: SegmentId = SegmentId(3);

    /// Segment A is noted, and everything in it counts.
    fn noted() -> Manifest<u32> {
        let mut manifest = Manifest::default();
        assert_eq!(manifest.begin(A, 10), []);
        manifest.acknowledged(A, 10);
        assert!(manifest.announced(A));
        assert_eq!(manifest.note(A), []);
        manifest
    }

    #[test]
    fn nothing_counts_before_a_segment_is_noted() {
        let mut manifest = Manifest::default();
        manifest.begin(A, 10);
        manifest.wait(1, false);
        manifest.acknowledged(A, 10);
        assert_eq!(manifest.take_ready(), []);
        manifest.note(A);
        assert_eq!(manifest.take_ready(), [1]);
    }

    #[test]
    fn a_record_counts_when_the_noted_segment_and_the_next_one_have_it() {
        let mut manifest = noted();
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
        assert_eq!(manifest.note(B), [A]);
        assert_eq!(manifest.take_ready(), []);
        manifest.acknowledged(B, 25);
        assert_eq!(manifest.take_ready(), [2]);
        assert!(!manifest.has_successor());
    }

    #[test]
    fn a_segment_that_nobody_was_told_of_is_given_up_for_another_one() {
        let mut manifest = noted();
        manifest.begin(B, 20);
        manifest.append(5);
        manifest.wait(1, false);
        manifest.acknowledged(A, 15);
        assert_eq!(manifest.begin(C, 30), [B]);
        assert!(!manifest.announced(B), "the coordinator must not hear of it any more");
        assert_eq!(manifest.take_ready(), [], "the third one takes the second one's place");
        manifest.acknowledged(C, 30);
        assert_eq!(manifest.take_ready(), [1]);
    }

    #[test]
    fn a_segment_that_the_coordinator_was_told_of_lives_until_another_one_is_noted() {
        let mut manifest = noted();
        manifest.begin(B, 20);
        assert!(manifest.announced(B));
        assert_eq!(manifest.begin(C, 30), []);
        assert_eq!(manifest.living().collect::<Vec<_>>(), [A, B, C]);
        assert!(manifest.announced(C));
        assert_eq!(manifest.note(SegmentId(9)), [], "of an earlier time");
        assert_eq!(manifest.note(C), [A, B]);
        assert!(manifest.may_begin());
        for more in 4..7 {
            manifest.begin(SegmentId(more), 40);
            assert!(manifest.announced(SegmentId(more)));
        }
        assert!(!manifest.may_begin(), "each takes room at the backups");
    }

    #[test]
    fn what_lets_replicas_go_waits_until_no_crash_takes_it_back() {
        let mut manifest = noted();
        manifest.append(5);
        manifest.wait(1, true);
        manifest.wait(2, false);
        manifest.acknowledged(A, 15);
        assert_eq!(manifest.take_ready(), [2]);
        manifest.stable(A, 15);
        assert_eq!(manifest.take_ready(), [1]);
    }

    #[test]
    fn what_has_no_room_in_the_noted_segment_counts_when_the_next_one_is_noted() {
        let mut manifest = noted();
        manifest.begin(B, 20);
        manifest.wait_for_newest(1, false);
        manifest.acknowledged(B, 20);
        assert_eq!(manifest.take_ready(), [], "the coordinator may still know the first one");
        manifest.note(B);
        assert_eq!(manifest.take_ready(), [1]);
    }

    #[test]
    fn every_living_segment_must_have_room() {
        let mut manifest = noted();
        manifest.begin(B, 90);
        assert!(manifest.has_room(10, 100) && !manifest.has_room(11, 100));
    }
}
