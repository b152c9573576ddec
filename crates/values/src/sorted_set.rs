//! Sorted sets: members in the order of their scores, in the bytes of one record
//! (`docs/design/values.md`). Those that are divided into pages have their order in a
//! [`MemberOrder`].
//!
//! The bytes are the number of members, then the members by ascending score, those of one score by
//! ascending bytes. A member is its score, an IEEE double of 8 bytes, then the length and the bytes
//! of the member. Numbers are as in [`crate::Packed`].
//!
//! Members of a range are neighbors, so a range is removed, or a member inserted, by one copy of the
//! bytes before and behind it. No score is NaN or negative zero, which would be equal to zero and
//! be shown differently.

use crate::packed::{
    Damaged, Element, Packed, SCORE_BYTES, read_number, read_part, write_number, write_part,
};
use std::cmp::Ordering;
use std::ops::Range;
use types::ValueType;

mod member_order;
mod member_selection;

pub use member_order::MemberOrder;
pub use member_selection::MemberSelection;

/// A member of a sorted set with its score.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ScoredMember<'a> {
    /// The score. It is a number, or infinite.
    pub score: f64,
    /// The member.
    pub member: &'a [u8],
}

impl<'a> ScoredMember<'a> {
    /// Returns the member that an element of a sorted set is, or a member of a set with the score 1.
    #[inline]
    pub fn of(element: Element<'a>, value_type: ValueType) -> Result<ScoredMember<'a>, Damaged> {
        let score = match value_type {
            ValueType::Set => 1.0,
            ValueType::String
            | ValueType::Hash
            | ValueType::List
            | ValueType::SortedSet
            | ValueType::Stream => score_of(element.value)?,
        };
        Ok(ScoredMember { score, member: element.name })
    }

    /// Compares two members of a sorted set: by score, then by their bytes.
    #[inline]
    pub fn order(&self, other: &ScoredMember<'_>) -> Ordering {
        let scores = self.score.partial_cmp(&other.score);
        debug_assert!(scores.is_some(), "{} or {} is no score", self.score, other.score);
        scores.unwrap_or(Ordering::Equal).then_with(|| self.member.cmp(other.member))
    }
}

/// Returns the score that is the value of an element.
#[inline]
pub fn score_of(value: &[u8]) -> Result<f64, Damaged> {
    let score = f64::from_le_bytes(value.try_into().map_err(|_| Damaged)?);
    if score.is_nan() { Err(Damaged) } else { Ok(score) }
}

/// Returns the value of an element with this score.
///
/// # Panics
/// If the score is NaN, which is a bug: such a score is refused where it enters.
#[inline]
pub fn score_value(score: f64) -> [u8; SCORE_BYTES] {
    assert!(!score.is_nan(), "NaN is no score");
    // The sum is never negative zero.
    (score + 0.0).to_le_bytes()
}

/// Fewest bytes of a member: a score and the length of an empty member.
const MEMBER_BYTES_MIN: usize = 9;

/// A sorted set that is read.
#[derive(Clone, Copy, Debug)]
pub struct SortedSet<'a> {
    count: usize,
    /// The members.
    bytes: &'a [u8],
}

/// Neighboring members of a sorted set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberSpan {
    /// Number of members.
    pub count: usize,
    /// Their bytes among those of all members.
    bytes: Range<usize>,
}

/// The place of a member in a sorted set.
#[derive(Clone, Debug)]
pub struct MemberPlace {
    /// The score that the set has for the member, if it has the member.
    pub old_score: Option<f64>,
    /// Bytes of the old member; empty if there is none.
    old: Range<usize>,
    /// Position at which the member begins with its new score, while the old one is still there.
    new: usize,
}

#[inline]
fn read_member(bytes: &[u8]) -> Option<(ScoredMember<'_>, &[u8])> {
    let (score, rest) = bytes.split_first_chunk()?;
    let (member, rest) = read_part(rest)?;
    Some((ScoredMember { score: f64::from_le_bytes(*score), member }, rest))
}

/// Appends a member.
///
/// # Panics
/// If the score is NaN, which is a bug: such a score is refused where it enters.
#[inline]
fn write_member(new: ScoredMember<'_>, out: &mut Vec<u8>) {
    out.extend_from_slice(&score_value(new.score));
    write_part(new.member, out);
}

impl<'a> From<Packed<'a>> for SortedSet<'a> {
    fn from(packed: Packed<'a>) -> SortedSet<'a> {
        debug_assert_eq!(packed.value_type(), ValueType::SortedSet, "a value of another type");
        SortedSet { count: packed.count(), bytes: packed.bytes() }
    }
}

impl<'a> SortedSet<'a> {
    /// The sorted set without members.
    pub const EMPTY: SortedSet<'static> = SortedSet { count: 0, bytes: &[] };

    /// Returns the sorted set in these bytes of a value.
    pub fn parse(bytes: &'a [u8]) -> Result<SortedSet<'a>, Damaged> {
        let (count, bytes) = read_number(bytes).ok_or(Damaged)?;
        Ok(SortedSet { count, bytes })
    }

    /// Returns the number of members.
    pub fn count(self) -> usize {
        self.count
    }

    /// Returns the length of the encoded members, in bytes.
    pub fn bytes(self) -> u64 {
        self.bytes.len() as u64
    }

    /// Returns the members in order.
    #[inline]
    pub fn members(self) -> SortedMembers<'a> {
        SortedMembers { left: self.count, floor: f64::NEG_INFINITY, bytes: self.bytes }
    }

    /// Returns the members in order, as a list.
    pub fn list(self) -> Result<Vec<ScoredMember<'a>>, Damaged> {
        let mut list = Vec::with_capacity(self.count.min(self.bytes.len() / MEMBER_BYTES_MIN));
        for member in self.members() {
            list.push(member?);
        }
        Ok(list)
    }

    /// Returns the number of members before this one, and its score.
    #[inline]
    pub fn rank(self, member: &[u8]) -> Result<Option<(usize, f64)>, Damaged> {
        for (rank, one) in self.members().enumerate() {
            let one = one?;
            if one.member == member {
                return Ok(Some((rank, one.score)));
            }
        }
        Ok(None)
    }

    /// Returns the score of a member.
    #[inline]
    pub fn score(self, member: &[u8]) -> Result<Option<f64>, Damaged> {
        Ok(self.rank(member)?.map(|(_, score)| score))
    }

    /// Finds the member in the set, and its place with its new score.
    #[inline]
    pub fn locate(self, new: ScoredMember<'_>) -> Result<MemberPlace, Damaged> {
        let (mut old, mut place) = (None, None);
        let mut members = self.members();
        while old.is_none() || place.is_none() {
            let start = self.bytes.len() - members.bytes.len();
            let Some(one) = members.next() else { break };
            let one = one?;
            if old.is_none() && one.member == new.member {
                old = Some((one.score, start..self.bytes.len() - members.bytes.len()));
            }
            if place.is_none() && one.order(&new).is_ge() {
                place = Some(start);
            }
        }
        let new = place.unwrap_or(self.bytes.len());
        let (old_score, old) = old.map_or((None, new..new), |(score, old)| (Some(score), old));
        Ok(MemberPlace { old_score, old, new })
    }

    /// Appends the value with a new member, or with a new score of an old one. `place` is its place
    /// in this set.
    pub fn write_with(self, place: &MemberPlace, new: ScoredMember<'_>, out: &mut Vec<u8>) {
        let MemberPlace { old_score, old, new: at } = place;
        assert!(old.end <= self.bytes.len() && *at <= self.bytes.len(), "a place of another set");
        assert!(*at <= old.start || *at >= old.end, "a place within a member");
        write_number(self.count + usize::from(old_score.is_none()), out);
        let (before, behind) = if *at <= old.start {
            ([0..*at, 0..0], [*at..old.start, old.end..self.bytes.len()])
        } else {
            ([0..old.start, old.end..*at], [0..0, *at..self.bytes.len()])
        };
        before.into_iter().for_each(|part| out.extend_from_slice(&self.bytes[part]));
        write_member(new, out);
        behind.into_iter().for_each(|part| out.extend_from_slice(&self.bytes[part]));
    }

    /// Returns the span of these ranks, as far as there are so many members.
    pub fn span_of_ranks(self, ranks: Range<usize>) -> Result<MemberSpan, Damaged> {
        let mut members = self.members();
        let mut skip = |wanted: usize| {
            let mut skipped = 0;
            while skipped < wanted {
                let Some(one) = members.next() else { break };
                one?;
                skipped += 1;
            }
            Ok::<_, Damaged>((skipped, self.bytes.len() - members.bytes.len()))
        };
        let (_, start) = skip(ranks.start)?;
        let (count, end) = skip(ranks.len())?;
        Ok(MemberSpan { count, bytes: start..end })
    }

    /// Returns the span from the first member within the lower end of the range, to the last one
    /// before the first beyond its upper end.
    pub fn span_within(self, range: &MemberRange<'_>) -> Result<MemberSpan, Damaged> {
        let (mut start, mut count, mut end) = (0, 0, 0);
        let mut members = self.members();
        while let Some(one) = members.next() {
            let one = one?;
            let behind = self.bytes.len() - members.bytes.len();
            if count == 0 && !range.begins_before(one) {
                (start, end) = (behind, behind);
                continue;
            }
            if !range.ends_behind(one) {
                break;
            }
            (count, end) = (count + 1, behind);
        }
        Ok(MemberSpan { count, bytes: start..end })
    }

    /// Returns the members of a span of this set.
    pub fn part(self, span: &MemberSpan) -> SortedSet<'a> {
        assert!(span.bytes.end <= self.bytes.len(), "a span of another set");
        SortedSet { count: span.count, bytes: &self.bytes[span.bytes.clone()] }
    }

    /// Appends the value without the members of a span of this set. Some must be left.
    pub fn write_without(self, span: &MemberSpan, out: &mut Vec<u8>) {
        assert!(span.count < self.count, "no member of {} would be left", self.count);
        assert!(span.bytes.end <= self.bytes.len(), "a span of another set");
        write_number(self.count - span.count, out);
        out.extend_from_slice(&self.bytes[..span.bytes.start]);
        out.extend_from_slice(&self.bytes[span.bytes.end..]);
    }
}

/// Iterator over the members of a sorted set. It ends with an error where the value is damaged.
pub struct SortedMembers<'a> {
    left: usize,
    /// Score of the member before.
    floor: f64,
    bytes: &'a [u8],
}

impl<'a> Iterator for SortedMembers<'a> {
    type Item = Result<ScoredMember<'a>, Damaged>;

    #[inline]
    fn next(&mut self) -> Option<Result<ScoredMember<'a>, Damaged>> {
        self.left = self.left.checked_sub(1)?;
        match read_member(self.bytes) {
            // The comparison also excludes NaN.
            Some((member, rest))
                if member.score >= self.floor && (self.left > 0 || rest.is_empty()) =>
            {
                (self.floor, self.bytes) = (member.score, rest);
                Some(Ok(member))
            }
            Some(_) | None => {
                self.left = 0;
                Some(Err(Damaged))
            }
        }
    }
}

/// One end of a range of members in the order of their bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberBound<'a> {
    /// Before all members.
    Lowest,
    /// At this member, which belongs to the range.
    Including(&'a [u8]),
    /// At this member, which does not belong to the range.
    Excluding(&'a [u8]),
    /// Behind all members.
    Highest,
}

/// One end of a range of scores.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ScoreBound {
    /// The score.
    pub score: f64,
    /// False if members with exactly this score do not belong to the range.
    pub is_included: bool,
}

/// A range of the members of a sorted set.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum MemberRange<'a> {
    /// Members with scores between these.
    Scores {
        /// Lower end.
        low: ScoreBound,
        /// Upper end.
        high: ScoreBound,
    },
    /// Members between these, in a set whose members have one score.
    Members {
        /// Lower end.
        low: MemberBound<'a>,
        /// Upper end.
        high: MemberBound<'a>,
    },
}

impl MemberRange<'_> {
    /// Returns whether a member is not before the lower end.
    #[inline]
    fn begins_before(&self, one: ScoredMember<'_>) -> bool {
        match *self {
            MemberRange::Scores { low: ScoreBound { score, is_included }, .. } => {
                one.score > score || is_included && one.score == score
            }
            MemberRange::Members { low, .. } => match low {
                MemberBound::Lowest => true,
                MemberBound::Including(member) => one.member >= member,
                MemberBound::Excluding(member) => one.member > member,
                MemberBound::Highest => false,
            },
        }
    }

    /// Returns whether a member is not behind the upper end.
    #[inline]
    fn ends_behind(&self, one: ScoredMember<'_>) -> bool {
        match *self {
            MemberRange::Scores { high: ScoreBound { score, is_included }, .. } => {
                one.score < score || is_included && one.score == score
            }
            MemberRange::Members { high, .. } => match high {
                MemberBound::Lowest => false,
                MemberBound::Including(member) => one.member <= member,
                MemberBound::Excluding(member) => one.member < member,
                MemberBound::Highest => true,
            },
        }
    }
}

/// Sorts distinct members, and appends them as a value.
pub fn encode_members(members: &mut [ScoredMember<'_>], out: &mut Vec<u8>) {
    members.sort_by(ScoredMember::order);
    write_number(members.len(), out);
    members.iter().for_each(|one| write_member(*one, out));
}

#[cfg(test)]
mod tests;
