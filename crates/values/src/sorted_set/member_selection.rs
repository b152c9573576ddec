//! Neighboring members of a sorted set that a command asks for, in both forms of the order.

use super::{MemberOrder, MemberRange, MemberSpan, SortedSet};
use crate::packed::Damaged;
use std::ops::Range;

/// Neighboring members of a sorted set.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum MemberSelection<'a> {
    /// Those of these ranks, both included. Negative ones count from the end.
    Ranks {
        /// First rank.
        first: i64,
        /// Last rank.
        last: i64,
        /// Ranks count from the highest member.
        from_highest: bool,
    },
    /// Those within a range of scores or members.
    Within(MemberRange<'a>),
}

impl MemberSelection<'_> {
    /// Returns the selection of at most `count_max` members at the lowest end, or at the highest one.
    pub fn at_end(from_highest: bool, count_max: u64) -> MemberSelection<'static> {
        let (first, last) = match i64::try_from(count_max) {
            Ok(0) => (1, 0),
            Ok(count) => (0, count - 1),
            Err(_) => (0, i64::MAX),
        };
        MemberSelection::Ranks { first, last, from_highest }
    }

    /// Returns the selected members of a packed sorted set.
    pub fn span(&self, set: SortedSet<'_>) -> Result<MemberSpan, Damaged> {
        match self {
            MemberSelection::Ranks { first, last, from_highest } => {
                set.span_of_ranks(ranks(*first, *last, *from_highest, set.count()))
            }
            MemberSelection::Within(range) => set.span_within(range),
        }
    }

    /// Returns the ranks of the selected members.
    pub fn ranks(&self, order: &MemberOrder) -> Range<usize> {
        match self {
            MemberSelection::Ranks { first, last, from_highest } => {
                ranks(*first, *last, *from_highest, order.count())
            }
            MemberSelection::Within(range) => order.ranks_within(range),
        }
    }
}

/// Returns the ranks from the lowest member on between two of `count`, both included.
fn ranks(first: i64, last: i64, from_highest: bool, count: usize) -> Range<usize> {
    let length = count as i64;
    let inside = |rank: i64| if rank < 0 { rank.saturating_add(length) } else { rank };
    let (first, last) = (inside(first).max(0), inside(last).min(length - 1));
    let ranks = if first > last { 0..0 } else { first as usize..last as usize + 1 };
    if from_highest { count - ranks.end..count - ranks.start } else { ranks }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_counted_as_redis_counts_them() {
        for (first, last, count, expected) in [
            (0, -1, 5, 0..5),
            (1, 3, 5, 1..4),
            (-3, -2, 5, 2..4),
            (-100, 100, 5, 0..5),
            (0, -6, 5, 0..0),
            (3, 2, 5, 0..0),
            (5, 9, 5, 0..0),
            (0, 0, 0, 0..0),
            (0, -1, 0, 0..0),
            (i64::MIN, i64::MAX, 5, 0..5),
            (i64::MAX, i64::MAX, 5, 0..0),
            (i64::MIN, i64::MIN, 5, 0..0),
        ] {
            assert_eq!(ranks(first, last, false, count), expected, "{first} {last} {count}");
            let reversed = count - expected.end..count - expected.start;
            assert_eq!(ranks(first, last, true, count), reversed, "{first} {last} {count}");
        }
    }

    #[test]
    fn members_at_an_end_are_as_many_as_there_are() {
        let mut order = MemberOrder::default();
        for member in [&b"a"[..], b"b", b"c", b"d"] {
            order.insert(super::super::ScoredMember { score: 1.0, member });
        }
        for (from_highest, count, expected) in [
            (false, 0, 0..0),
            (false, 1, 0..1),
            (false, 9, 0..4),
            (false, u64::MAX, 0..4),
            (true, 0, 4..4),
            (true, 1, 3..4),
            (true, u64::MAX, 0..4),
        ] {
            let ranks = MemberSelection::at_end(from_highest, count).ranks(&order);
            assert_eq!(ranks, expected, "{from_highest} {count}");
        }
    }
}
