//! Contiguous ranges of key hashes.

use crate::{KeyHash, Slot};
use serde::{Deserialize, Serialize};
use std::fmt;

/// A contiguous, non-empty range of key hashes, both ends included.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "(KeyHash, KeyHash)", into = "(KeyHash, KeyHash)")]
pub struct HashRange {
    first: KeyHash,
    last: KeyHash,
}

/// Error: the range would end before it begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EmptyRange;

impl fmt::Display for EmptyRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a range of key hashes must not end before it begins")
    }
}

impl std::error::Error for EmptyRange {}

impl TryFrom<(KeyHash, KeyHash)> for HashRange {
    type Error = EmptyRange;
    fn try_from(ends: (KeyHash, KeyHash)) -> Result<HashRange, EmptyRange> {
        let (first, last) = ends;
        if first <= last { Ok(HashRange { first, last }) } else { Err(EmptyRange) }
    }
}

impl From<HashRange> for (KeyHash, KeyHash) {
    fn from(range: HashRange) -> Self {
        (range.first, range.last)
    }
}

impl HashRange {
    /// The range of all key hashes.
    pub const ALL: HashRange = HashRange { first: KeyHash(0), last: KeyHash(u64::MAX) };

    /// Returns the range from `first` to `last`, both included.
    ///
    /// # Panics
    /// If `first` is above `last`. Use `TryFrom` for values from outside.
    pub fn new(first: KeyHash, last: KeyHash) -> HashRange {
        assert!(first <= last, "a range must not end before it begins: {first:?} > {last:?}");
        HashRange { first, last }
    }

    /// Returns the range of the slots from `first` to `last`, both included.
    pub fn of_slots(first: Slot, last: Slot) -> HashRange {
        HashRange::new(first.first_hash(), last.last_hash())
    }

    /// Returns the lowest hash of the range.
    pub fn first(self) -> KeyHash {
        self.first
    }

    /// Returns the highest hash of the range.
    pub fn last(self) -> KeyHash {
        self.last
    }

    /// Returns whether the range contains `hash`.
    pub fn contains(self, hash: KeyHash) -> bool {
        self.first <= hash && hash <= self.last
    }

    /// Returns whether this range contains every hash of `other`.
    pub fn covers(self, other: HashRange) -> bool {
        self.first <= other.first && other.last <= self.last
    }

    /// Returns the hashes that both ranges contain.
    pub fn intersection(self, other: HashRange) -> Option<HashRange> {
        let first = self.first.max(other.first);
        let last = self.last.min(other.last);
        (first <= last).then_some(HashRange { first, last })
    }

    /// Returns whether the ranges share a hash.
    pub fn overlaps(self, other: HashRange) -> bool {
        self.intersection(other).is_some()
    }

    /// Returns the parts of this range outside `other`: below and above.
    pub fn without(self, other: HashRange) -> [Option<HashRange>; 2] {
        let Some(cut) = self.intersection(other) else { return [Some(self), None] };
        let below = (self.first < cut.first)
            .then(|| HashRange { first: self.first, last: KeyHash(cut.first.0 - 1) });
        let above = (cut.last < self.last)
            .then(|| HashRange { first: KeyHash(cut.last.0 + 1), last: self.last });
        [below, above]
    }

    /// Returns the first and the last slot that overlap the range.
    pub fn slots(self) -> (Slot, Slot) {
        (self.first.slot(), self.last.slot())
    }

    /// Returns whether the range begins and ends at slot borders.
    pub fn is_whole_slots(self) -> bool {
        self.first == self.first.slot().first_hash() && self.last == self.last.slot().last_hash()
    }

    /// Divides the range into at most `parts` ranges of about equal width, in ascending order.
    /// Their borders are slot borders if the range is of whole slots and has at least `parts`.
    pub fn divide(self, parts: usize) -> Vec<HashRange> {
        let parts = parts.max(1) as u128;
        let width = u128::from(self.last.0 - self.first.0) + 1;
        let mask = if self.is_whole_slots() && width >> 50 >= parts { !0u64 << 50 } else { !0 };
        let mut ranges: Vec<HashRange> = Vec::new();
        let mut first = self.first;
        for part in 1..=parts {
            // At most 2^64, reached only by the end of the last part of the whole space.
            let end = u128::from(self.first.0) + width * part / parts;
            let last = if part == parts {
                self.last
            } else {
                let end = (end as u64) & mask;
                if end <= first.0 {
                    continue;
                }
                KeyHash(end - 1)
            };
            ranges.push(HashRange { first, last });
            if last < self.last {
                first = KeyHash(last.0 + 1);
            }
        }
        assert!(ranges.len() as u128 <= parts, "{self} is divided into more than {parts} parts");
        assert_eq!(ranges.last().map(|range| range.last), Some(self.last), "{self} is cut short");
        ranges
    }
}

impl fmt::Debug for HashRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_whole_slots() {
            write!(f, "slots {}-{}", self.first.slot().0, self.last.slot().0)
        } else {
            write!(f, "{:016x}-{:016x}", self.first.0, self.last.0)
        }
    }
}

impl fmt::Display for HashRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(first: u64, last: u64) -> HashRange {
        HashRange::new(KeyHash(first), KeyHash(last))
    }

    #[test]
    fn dividing_covers_the_range_without_gap_or_overlap() {
        for whole in [HashRange::ALL, range(5, 5), range(10, 13), range(0, 1 << 55), {
            HashRange::of_slots(Slot(100), Slot(227))
        }] {
            for parts in [1, 2, 3, 8, 64] {
                let divided = whole.divide(parts);
                assert!(divided.len() <= parts && !divided.is_empty());
                assert_eq!(divided[0].first(), whole.first());
                assert_eq!(divided.last().unwrap().last(), whole.last());
                for pair in divided.windows(2) {
                    assert_eq!(pair[0].last().0 + 1, pair[1].first().0, "{whole} in {parts}");
                }
            }
        }
    }

    #[test]
    fn slot_ranges_are_divided_at_slot_borders() {
        for part in HashRange::of_slots(Slot(0), Slot(8191)).divide(8) {
            assert!(part.is_whole_slots(), "{part}");
        }
    }

    #[test]
    fn cutting_leaves_what_lies_outside() {
        assert_eq!(range(0, 9).without(range(3, 5)), [Some(range(0, 2)), Some(range(6, 9))]);
        assert_eq!(range(0, 9).without(range(0, 9)), [None, None]);
        assert_eq!(range(0, 9).without(range(20, 30)), [Some(range(0, 9)), None]);
        assert_eq!(range(0, 9).without(range(5, 30)), [Some(range(0, 4)), None]);
    }

    #[test]
    fn ends_in_the_wrong_order_are_refused() {
        assert_eq!(HashRange::try_from((KeyHash(2), KeyHash(1))), Err(EmptyRange));
    }
}
