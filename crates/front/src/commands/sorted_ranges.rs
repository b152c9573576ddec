//! Commands on ranges of sorted sets: by rank, by score, or by member.

use super::command::flag::{DENYOOM, FAST, READONLY, WRITE};
use super::command::{Family, ONE, TWO, command};
use super::packed::SizeChange;
use super::sorted_sets::{set_members, write_scored};
use super::{Call, Done, Refusal, parse_integer};
use crate::core::data::TableKey;
use crate::core::elements::{NewExpiry, Touched, ValueChange};
use crate::core::orders::{MemberRemoval, SortedSets, SortedView};
use crate::operators::counts::Found;
use types::ValueType;
use values::{
    MemberBound, MemberRange, MemberSelection, ScoreBound, ScoredMember, SortedSet, encode_members,
    parse_score_bound,
};

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

/// A range of a sorted set as a command asks for it.
#[derive(Clone, Copy, Debug)]
struct RangeQuery<'a> {
    selection: MemberSelection<'a>,
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
        let selection = match by {
            RangeBy::Rank => MemberSelection::Ranks {
                first: parse_integer(first).ok_or(Refusal::NotAnInteger)?,
                last: parse_integer(last).ok_or(Refusal::NotAnInteger)?,
                from_highest: is_reversed,
            },
            RangeBy::Score => MemberSelection::Within(parse_scores(low, high)?),
            RangeBy::Member => MemberSelection::Within(parse_members(low, high)?),
        };
        Ok(RangeQuery { selection, is_reversed, with_scores, offset, count_max })
    }

    /// Returns the members of the range, in the order of the reply.
    fn members<'s>(&self, set: &SortedView<'s>) -> Result<Vec<ScoredMember<'s>>, Refusal> {
        let mut members = set.selected(&self.selection)?;
        if self.is_reversed {
            members.reverse();
        }
        if let MemberSelection::Within(_) = self.selection {
            let skipped = usize::try_from(self.offset).unwrap_or(usize::MAX).min(members.len());
            members.drain(..skipped);
            members.truncate(usize::try_from(self.count_max).unwrap_or(usize::MAX));
        }
        Ok(members)
    }
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

/// Returns the selection of a command without options, whose ends are arguments 2 and 3.
fn parse_within<'a>(
    args: &[&'a [u8]],
    dialect: &RangeDialect,
) -> Result<MemberSelection<'a>, Refusal> {
    Ok(RangeQuery::parse(args[2], args[3], &[], dialect)?.selection)
}

/// `ZRANGE key first last [BYSCORE | BYLEX] [REV] [LIMIT offset count] [WITHSCORES]`, and the
/// commands before it that do parts of this.
fn reply_range(call: &mut Call<'_>, dialect: &RangeDialect) -> Done {
    let query = RangeQuery::parse(call.args[2], call.args[3], &call.args[4..], dialect)?;
    let (key, table) = (call.key(1), call.session.status.table);
    let reply = &mut call.reply;
    SortedSets::of(call.backend).read(table, key, None, |set, _| {
        let members = query.members(&set)?;
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
    let table = call.session.status.table;
    let [new, source] = [1, 2].map(|at| TableKey { table, key: call.key(at) });
    let expiry = NewExpiry::Is(None);
    let values = [
        ValueChange { expiry, ..SizeChange::Adds(0).of(new, Touched::Replaced) },
        SizeChange::Adds(0).of(source, Touched::All),
    ];
    let mut found = Found::default();
    let count = call.backend.update_values(ValueType::SortedSet, &values, |sets, records| {
        found = Found::keys(&records[1..]);
        let [new, source] = sets else { unreachable!("there are two sets") };
        let mut packed = Vec::new();
        encode_members(&mut source.sorted_members()?, &mut packed);
        let members = query.members(&SortedView::Packed(SortedSet::parse(&packed)?))?;
        set_members(new, &members)?;
        Ok(members.len())
    })?;
    call.backend.count(found);
    call.integer(count as i64)
}

/// `ZCOUNT key low high` and `ZLEXCOUNT`.
fn count_range(call: &mut Call<'_>, dialect: &RangeDialect) -> Done {
    let selection = parse_within(call.args, dialect)?;
    let (key, table) = (call.key(1), call.session.status.table);
    let count = SortedSets::of(call.backend)
        .read(table, key, None, |set, _| Ok(set.count_selected(&selection)?))?;
    call.integer(count as i64)
}

/// `ZREMRANGEBYSCORE key low high` and `ZREMRANGEBYLEX`.
fn remove_range(call: &mut Call<'_>, dialect: &RangeDialect) -> Done {
    let selection = parse_within(call.args, dialect)?;
    remove_selected(call, &selection)
}

/// `ZREMRANGEBYRANK key first last`.
fn remove_ranks(call: &mut Call<'_>) -> Done {
    let first = parse_integer(call.args[2]).ok_or(Refusal::NotAnInteger)?;
    let last = parse_integer(call.args[3]).ok_or(Refusal::NotAnInteger)?;
    remove_selected(call, &MemberSelection::Ranks { first, last, from_highest: false })
}

/// Removes the selected members, and replies with their number.
fn remove_selected(call: &mut Call<'_>, selection: &MemberSelection<'_>) -> Done {
    let (keys, table) = ([call.key(1)], call.session.status.table);
    let mut removed = 0;
    let removal = MemberRemoval { table, keys: &keys, open: &[true], selection };
    SortedSets::of(call.backend).remove(removal, |_, members| removed = members.len())?;
    call.integer(removed as i64)
}
