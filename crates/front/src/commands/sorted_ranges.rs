//! Commands on ranges of sorted sets: by rank, by score, or by member.

use super::command::flag::{DENYOOM, FAST, READONLY, WRITE};
use super::command::{Family, ONE, TWO, command};
use super::sorted_sets::{remove_span, sorted_set, write_new_members, write_scored};
use super::{Call, Done, Refusal, parse_integer};
use crate::core::data::Need;
use crate::operators::counts::Found;
use std::ops::Range;
use values::{MemberBound, MemberRange, ScoreBound, ScoredMember, SortedSet, parse_score_bound};

pub(super) static FAMILY: Family = Family {
    group: "sorted-set",
    category: Some("@sortedset"),
    commands: &[
        command("zcount", 4, READONLY | FAST, ONE, |call| count_range(call, &SCORES)),
        command("zlexcount", 4, READONLY | FAST, ONE, |call| count_range(call, &MEMBERS)),
        command("zrange", -4, READONLY, ONE, |call| reply_range(call, &ANY)),
        command("zrangebylex", -4, READONLY, ONE, |call| reply_range(call, &MEMBERS)),
        command("zrangebyscore", -4, READONLY, ONE, |call| reply_range(call, &SCORES)),
        command("zrangestore", -5, WRITE | DENYOOM, TWO, zrangestore),
        command("zremrangebylex", 4, WRITE, ONE, |call| remove_range(call, &MEMBERS)),
        command("zremrangebyrank", 4, WRITE, ONE, remove_ranks),
        command("zremrangebyscore", 4, WRITE, ONE, |call| remove_range(call, &SCORES)),
        command("zrevrange", -4, READONLY, ONE, |call| reply_range(call, &RANKS_REVERSED)),
        command("zrevrangebylex", -4, READONLY, ONE, |call| reply_range(call, &MEMBERS_REVERSED)),
        command("zrevrangebyscore", -4, READONLY, ONE, |call| reply_range(call, &SCORES_REVERSED)),
    ],
};

/// Kind of the ends of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RangeBy {
    Rank,
    Score,
    Member,
}

/// The parts of a range that a command decides by its name. Options decide the others.
struct RangeDialect {
    by: Option<RangeBy>,
    is_reversed: Option<bool>,
    /// The command stores its result, so it does not accept `WITHSCORES`.
    stores: bool,
}

const fn dialect(by: RangeBy, is_reversed: bool) -> RangeDialect {
    RangeDialect { by: Some(by), is_reversed: Some(is_reversed), stores: false }
}

const ANY: RangeDialect = RangeDialect { by: None, is_reversed: None, stores: false };
const STORED: RangeDialect = RangeDialect { stores: true, ..ANY };
const RANKS_REVERSED: RangeDialect = dialect(RangeBy::Rank, true);
const SCORES: RangeDialect = dialect(RangeBy::Score, false);
const SCORES_REVERSED: RangeDialect = dialect(RangeBy::Score, true);
const MEMBERS: RangeDialect = dialect(RangeBy::Member, false);
const MEMBERS_REVERSED: RangeDialect = dialect(RangeBy::Member, true);

/// Members between two ends.
#[derive(Clone, Copy, Debug)]
enum RangeEnds<'a> {
    /// Ranks, both included. Negative ones count from the end.
    Ranks { first: i64, last: i64 },
    /// Scores or members.
    Within(MemberRange<'a>),
}

/// A range of a sorted set as a command asks for it.
#[derive(Clone, Copy, Debug)]
struct RangeQuery<'a> {
    ends: RangeEnds<'a>,
    /// The highest member comes first, and ranks count from it.
    is_reversed: bool,
    with_scores: bool,
    /// Number of members to skip. A negative one skips all.
    offset: i64,
    /// Most members. A negative number is no limit.
    count_max: i64,
}

const NOT_A_FLOAT: Refusal = Refusal::because("ERR min or max is not a float");
const NOT_A_MEMBER: Refusal = Refusal::because("ERR min or max not valid string range item");
const LIMIT_OF_RANKS: Refusal = Refusal::because(
    "ERR syntax error, LIMIT is only supported in combination with either BYSCORE or BYLEX",
);
const SCORES_OF_MEMBERS: Refusal =
    Refusal::because("ERR syntax error, WITHSCORES not supported in combination with BYLEX");

impl<'a> RangeQuery<'a> {
    /// Parses the two ends and the options behind them.
    fn parse(
        first: &'a [u8],
        last: &'a [u8],
        options: &[&'a [u8]],
        dialect: &RangeDialect,
    ) -> Result<RangeQuery<'a>, Refusal> {
        let (mut by, mut is_reversed) = (dialect.by, dialect.is_reversed);
        let (mut offset, mut count_max, mut with_scores) = (0, -1, false);
        let mut options = options;
        while let [word, behind @ ..] = options {
            options = behind;
            match (&word.to_ascii_uppercase()[..], behind) {
                (b"WITHSCORES", _) if !dialect.stores => with_scores = true,
                (b"LIMIT", [skipped, limit, behind @ ..]) => {
                    offset = parse_integer(skipped).ok_or(Refusal::NotAnInteger)?;
                    count_max = parse_integer(limit).ok_or(Refusal::NotAnInteger)?;
                    options = behind;
                }
                (b"REV", _) if is_reversed.is_none() => is_reversed = Some(true),
                (b"BYLEX", _) if by.is_none() => by = Some(RangeBy::Member),
                (b"BYSCORE", _) if by.is_none() => by = Some(RangeBy::Score),
                _ => return Err(Refusal::Syntax),
            }
        }
        let (by, is_reversed) = (by.unwrap_or(RangeBy::Rank), is_reversed.unwrap_or(false));
        if by == RangeBy::Rank && count_max != -1 {
            return Err(LIMIT_OF_RANKS);
        }
        if by == RangeBy::Member && with_scores {
            return Err(SCORES_OF_MEMBERS);
        }
        let (low, high) = if is_reversed { (last, first) } else { (first, last) };
        let ends = match by {
            RangeBy::Rank => RangeEnds::Ranks {
                first: parse_integer(first).ok_or(Refusal::NotAnInteger)?,
                last: parse_integer(last).ok_or(Refusal::NotAnInteger)?,
            },
            RangeBy::Score => RangeEnds::Within(parse_scores(low, high)?),
            RangeBy::Member => RangeEnds::Within(parse_members(low, high)?),
        };
        Ok(RangeQuery { ends, is_reversed, with_scores, offset, count_max })
    }

    /// Returns the members of the range, in the order of the reply.
    fn members<'s>(&self, set: SortedSet<'s>) -> Result<Vec<ScoredMember<'s>>, Refusal> {
        let span = match self.ends {
            RangeEnds::Ranks { first, last } => {
                let ranks = ranks(first, last, set.count());
                let end = set.count();
                set.span_of_ranks(match self.is_reversed {
                    true => end - ranks.end..end - ranks.start,
                    false => ranks,
                })?
            }
            RangeEnds::Within(range) => set.span_within(&range)?,
        };
        let mut members = set.part(&span).list()?;
        if self.is_reversed {
            members.reverse();
        }
        if let RangeEnds::Within(_) = self.ends {
            let skipped = usize::try_from(self.offset).unwrap_or(usize::MAX).min(members.len());
            members.drain(..skipped);
            members.truncate(usize::try_from(self.count_max).unwrap_or(usize::MAX));
        }
        Ok(members)
    }
}

/// Returns the ranks between two of `count`, both included. Negative ones count from the end.
fn ranks(first: i64, last: i64, count: usize) -> Range<usize> {
    let count = count as i64;
    let inside = |rank: i64| if rank < 0 { rank.saturating_add(count) } else { rank };
    let (first, last) = (inside(first).max(0), inside(last).min(count - 1));
    if first > last { 0..0 } else { first as usize..last as usize + 1 }
}

/// Parses the ends of a range of scores: numbers, with `(` in front if they are excluded.
fn parse_scores<'a>(low: &[u8], high: &[u8]) -> Result<MemberRange<'a>, Refusal> {
    let bound = |text: &[u8]| {
        let excluded = text.strip_prefix(b"(");
        let score = parse_score_bound(excluded.unwrap_or(text)).ok_or(NOT_A_FLOAT)?;
        Ok::<_, Refusal>(ScoreBound { score, is_included: excluded.is_none() })
    };
    Ok(MemberRange::Scores { low: bound(low)?, high: bound(high)? })
}

/// Parses the ends of a range of members: `-`, `+`, or a member behind `[` or `(`.
fn parse_members<'a>(low: &'a [u8], high: &'a [u8]) -> Result<MemberRange<'a>, Refusal> {
    let bound = |text: &'a [u8]| match text {
        b"-" => Ok(MemberBound::Lowest),
        b"+" => Ok(MemberBound::Highest),
        [b'[', member @ ..] => Ok(MemberBound::Including(member)),
        [b'(', member @ ..] => Ok(MemberBound::Excluding(member)),
        _ => Err(NOT_A_MEMBER),
    };
    Ok(MemberRange::Members { low: bound(low)?, high: bound(high)? })
}

/// Parses the range of a command without options, whose ends are arguments 2 and 3.
fn parse_within<'a>(args: &[&'a [u8]], dialect: &RangeDialect) -> Result<MemberRange<'a>, Refusal> {
    match RangeQuery::parse(args[2], args[3], &[], dialect)?.ends {
        RangeEnds::Within(range) => Ok(range),
        RangeEnds::Ranks { .. } => unreachable!("ranks have a command of their own"),
    }
}

/// `ZRANGE key first last [BYSCORE | BYLEX] [REV] [LIMIT offset count] [WITHSCORES]`, and the
/// commands before it that do parts of this.
fn reply_range(call: &mut Call<'_>, dialect: &RangeDialect) -> Done {
    let query = RangeQuery::parse(call.args[2], call.args[3], &call.args[4..], dialect)?;
    call.reply_with(1, |reply, record| {
        let members = query.members(sorted_set(record)?)?;
        match query.with_scores {
            true => write_scored(reply, members.into_iter()),
            false => {
                reply.array(members.len());
                members.iter().for_each(|one| reply.bulk(one.member));
            }
        }
        Ok(())
    })
}

/// `ZRANGESTORE destination source first last [BYSCORE | BYLEX] [REV] [LIMIT offset count]`.
fn zrangestore(call: &mut Call<'_>) -> Done {
    let query = RangeQuery::parse(call.args[3], call.args[4], &call.args[5..], &STORED)?;
    let mut found = Found::default();
    let keys = [call.key(1), call.key(2)];
    let count = call.update_keys(&keys, Need::Records, |records, changes| {
        found = Found::keys(&records[1..]);
        let mut members = query.members(sorted_set(records[1])?)?;
        write_new_members(&mut members, changes);
        Ok::<usize, Refusal>(members.len())
    })??;
    call.backend.count(found);
    call.integer(count as i64)
}

/// `ZCOUNT key low high` and `ZLEXCOUNT`.
fn count_range(call: &mut Call<'_>, dialect: &RangeDialect) -> Done {
    let range = parse_within(call.args, dialect)?;
    let count =
        call.read(|record| Ok::<usize, Refusal>(sorted_set(record)?.span_within(&range)?.count))??;
    call.integer(count as i64)
}

/// `ZREMRANGEBYSCORE key low high` and `ZREMRANGEBYLEX`.
fn remove_range(call: &mut Call<'_>, dialect: &RangeDialect) -> Done {
    let range = parse_within(call.args, dialect)?;
    let removed = call.update(|record, changes| {
        let set = sorted_set(record)?;
        let span = set.span_within(&range)?;
        remove_span(set, &span, record, changes, 0);
        Ok::<usize, Refusal>(span.count)
    })??;
    call.integer(removed as i64)
}

/// `ZREMRANGEBYRANK key first last`.
fn remove_ranks(call: &mut Call<'_>) -> Done {
    let first = parse_integer(call.args[2]).ok_or(Refusal::NotAnInteger)?;
    let last = parse_integer(call.args[3]).ok_or(Refusal::NotAnInteger)?;
    let removed = call.update(|record, changes| {
        let set = sorted_set(record)?;
        let span = set.span_of_ranks(ranks(first, last, set.count()))?;
        remove_span(set, &span, record, changes, 0);
        Ok::<usize, Refusal>(span.count)
    })??;
    call.integer(removed as i64)
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
            assert_eq!(ranks(first, last, count), expected, "{first} {last} {count}");
        }
    }
}
