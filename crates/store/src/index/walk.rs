//! Lock-free walk over a range of hashes, bucket by bucket.
//!
//! The cursor is a key hash: the lowest hash of the next home bucket. It keeps its meaning when
//! the leaf grows or is divided, because it does not depend on the number of buckets.
//!
//! A walk meets every record that exists throughout: it reads a home before the bucket after it
//! (see [`super::leaf`]), and a replaced leaf keeps its words unchanged. During concurrent
//! inserts a record may be met twice. A record that is inserted or removed meanwhile may be met
//! or not. A word may be outdated when it is met; its entry is readable until the turn ends.

use super::Index;
use super::leaf::Leaf;
use super::tree::{TreePosition, descend};
use super::word::{TAG_BITS, Tag, Word};
use crate::log::Turn;
use std::ops::ControlFlow;
use types::{HashRange, KeyHash, SLOT_COUNT, Slot};

/// Limits of one step of a walk. They are checked between buckets: a step walks at least one
/// bucket, and always whole buckets.
#[derive(Clone, Copy, Debug)]
pub struct WalkBudget {
    /// Words to visit.
    pub entries: usize,
    /// Buckets to read. Eight empty slots count as one.
    pub buckets: usize,
}

/// Number of empty slots that cost as much as one bucket: their cells fill a cache line.
const EMPTY_SLOTS_PER_BUCKET: usize = 8;

struct WalkStep<'v, V> {
    budget: WalkBudget,
    visited: usize,
    /// Effort so far: buckets times [`EMPTY_SLOTS_PER_BUCKET`].
    effort: usize,
    is_stopped: bool,
    visit: &'v mut V,
}

/// The tags of a range within one slot.
#[derive(Clone, Copy)]
struct TagSpan {
    slot: Slot,
    first: Tag,
    last: Tag,
}

impl Index {
    /// Visits the words with hashes in the range, as far as the index knows the hashes, in the
    /// order of their buckets. Returns where to resume; `None` at the end of the range.
    ///
    /// `visit` receives the lowest hash that the word may have, exact in its first 38 bits. So at
    /// both ends of the range, the lower bits of a record may lie outside. `Break` stops the walk
    /// after the bucket.
    pub fn walk(
        &self,
        range: HashRange,
        budget: WalkBudget,
        turn: &Turn<'_>,
        mut visit: impl FnMut(KeyHash, Word) -> ControlFlow<()>,
    ) -> Option<KeyHash> {
        self.check(turn);
        let mut step =
            WalkStep { budget, visited: 0, effort: 0, is_stopped: false, visit: &mut visit };
        let (first_slot, last_slot) = range.slots();
        for number in first_slot.0..=last_slot.0 {
            let slot = Slot(number);
            let first = if slot == first_slot { Tag::of(range.first()) } else { Tag(0) };
            let last = if slot == last_slot { Tag::of(range.last()) } else { Tag::LAST };
            let next = match self.walk_slot(TagSpan { slot, first, last }, turn, &mut step) {
                Some(tag) => tag.first_hash(slot),
                None if !step.is_spent() => continue,
                None if number + 1 < SLOT_COUNT => Slot(number + 1).first_hash(),
                None => return None,
            };
            assert!(next > range.first(), "a walk from {} stands still", range.first());
            return (next <= range.last()).then_some(next);
        }
        None
    }

    /// Walks a span. Returns the tag at which to resume; `None` at the end of the span.
    fn walk_slot<V>(
        &self,
        mut span: TagSpan,
        turn: &Turn<'_>,
        step: &mut WalkStep<'_, V>,
    ) -> Option<Tag>
    where
        V: FnMut(KeyHash, Word) -> ControlFlow<()>,
    {
        loop {
            let TreePosition { depth, leaf, .. } =
                descend(self.cell(span.slot), 0, span.first, turn);
            let end = match leaf {
                Some((_, leaf)) => {
                    if let Some(tag) = step.walk_leaf(leaf, span) {
                        return Some(tag);
                    }
                    leaf.last_tag(span.first)
                }
                None => {
                    step.effort += 1;
                    last_tag_below(depth, span.first)
                }
            };
            if end >= span.last {
                return None;
            }
            span.first = Tag(end.0 + 1);
            if step.is_spent() {
                return Some(span.first);
            }
        }
    }
}

impl<V: FnMut(KeyHash, Word) -> ControlFlow<()>> WalkStep<'_, V> {
    /// Walks the part of the span that lies in the leaf. Returns the tag at which to resume if
    /// the budget ends within the leaf.
    fn walk_leaf(&mut self, leaf: Leaf<'_>, span: TagSpan) -> Option<Tag> {
        let last = span.last.min(leaf.last_tag(span.first));
        let last_home = leaf.home(last);
        for home in leaf.home(span.first)..=last_home {
            self.effort += EMPTY_SLOTS_PER_BUCKET;
            for word in leaf.words_in(home).chain(leaf.words_in(home + 1)) {
                let is_due =
                    leaf.home(word.tag()) == home && (span.first..=last).contains(&word.tag());
                if is_due {
                    self.visited += 1;
                    let hash = word.tag().first_hash(span.slot);
                    self.is_stopped |= (self.visit)(hash, word).is_break();
                }
            }
            if home < last_home && self.is_spent() {
                return leaf.first_tag(home + 1, span.first);
            }
        }
        None
    }

    fn is_spent(&self) -> bool {
        self.is_stopped
            || self.visited >= self.budget.entries
            || self.effort >= self.budget.buckets.saturating_mul(EMPTY_SLOTS_PER_BUCKET)
    }
}

/// Returns the highest tag that shares the first `depth` bits with this one.
fn last_tag_below(depth: u32, tag: Tag) -> Tag {
    Tag(tag.0 | ((1 << (TAG_BITS - depth)) - 1))
}
