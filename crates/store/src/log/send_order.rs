//! Order in which the bytes of different segments reach the replicas.
//!
//! Replicas of different segments grow independently. So a crash may lose the last entries of one
//! segment, and keep entries of another segment that were appended later. For writes of one key
//! this does no harm: the newest version that is left counts. It does if the later entry depends
//! on a batch, or if a batch depends on the earlier entry: then a part of an atomic change would
//! be left. Such entries are *ordered*: they are sent when the earlier ones are acknowledged. See
//! `docs/design/durability.md`, hard part 4.

use super::safety::Dependency;
use super::segment::Segments;
use super::state::LogPosition;
use crate::sync::atomic::Ordering;
use std::collections::VecDeque;
use types::SegmentId;

/// A position in the segments of one head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SendLimit {
    pub(super) segment: SegmentId,
    /// Offset of the first byte that must not be sent.
    pub(super) from: u32,
}

/// The positions of one head behind which no bytes may be sent yet.
#[derive(Default)]
pub(super) struct SendBarriers(VecDeque<SendBarrier>);

/// Number of barriers, the last ones, with which a new one is compared. Positions in a segment rise, so
/// the others seldom include it.
const COMPARED: usize = 4;

/// A position, and the entries that must be acknowledged before the bytes behind it are sent.
struct SendBarrier {
    limit: SendLimit,
    after: Dependency,
}

impl SendBarriers {
    /// Adds a barrier behind all others. One that waits for nothing new is left out.
    pub(super) fn add(&mut self, limit: SendLimit, after: Dependency) {
        debug_assert!(
            self.0.back().is_none_or(|last| {
                last.limit.segment != limit.segment || last.limit.from <= limit.from
            }),
            "barriers of a segment are added in order"
        );
        let mut last = self.0.iter().rev().take(COMPARED);
        if !last.any(|barrier| barrier.after.includes(&after)) {
            self.0.push_back(SendBarrier { limit, after });
        }
    }

    /// Returns the first position behind which no bytes may be sent. Removes the barriers before
    /// it.
    #[inline]
    pub(super) fn first(&mut self, segments: &Segments) -> Option<SendLimit> {
        let is_safe = |position: &LogPosition| {
            segments.tail(position.place).held.load(Ordering::Acquire) >= position.end
                || segments.is_acknowledged(position)
        };
        let is_open = |barrier: &mut SendBarrier| barrier.after.all(is_safe);
        while self.0.pop_front_if(is_open).is_some() {}
        self.0.front().map(|barrier| barrier.limit)
    }
}
