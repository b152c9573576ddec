//! Commands on sorted sets and their members.

use super::command::flag::{FAST, READONLY, WRITE};
use super::command::{Family, Keys, ONE, command};
use super::element_scan::scan_elements;
use super::packed::{count_elements, remove_elements};
use super::pop_of_several::PopOfSeveral;
use super::sampling::{Sample, parse_count, reply_with_sample};
use super::{Call, Done, NotExecuted, Refusal, parse_integer, refused, uppercase_is};
use crate::core::data::{Key, Record};
use crate::core::elements::{Touched, form};
use crate::core::orders::{MemberRemoval, SortedSets, SortedView};
use resp::{Protocol, ReplyWriter};
use types::ValueType;
use values::{
    Damaged, Elements, Form, MemberSelection, ScoredMember, SortedSet, score_of, score_value,
};

pub(super) static FAMILY: Family = Family {
    group: "sorted-set",
    category: Some("@sortedset"),
    commands: &[
        command("zcard", 2, READONLY | FAST, ONE, |call| {
            count_elements(call, ValueType::SortedSet)
        }),
        command("zmpop", -4, WRITE, Keys::Counted, zmpop),
        command("zmscore", -3, READONLY | FAST, ONE, zmscore),
        command("zpopmax", -2, WRITE | FAST, ONE, |call| pop(call, SetEnd::Highest)),
        command("zpopmin", -2, WRITE | FAST, ONE, |call| pop(call, SetEnd::Lowest)),
        command("zrandmember", -2, READONLY, ONE, zrandmember),
        command("zrank", -3, READONLY | FAST, ONE, |call| rank(call, SetEnd::Lowest)),
        command("zrem", -3, WRITE | FAST, ONE, |call| remove_elements(call, ValueType::SortedSet)),
        command("zrevrank", -3, READONLY | FAST, ONE, |call| rank(call, SetEnd::Highest)),
        command("zscan", -3, READONLY, ONE, |call| scan_elements(call, ValueType::SortedSet)),
        command("zscore", 3, READONLY | FAST, ONE, zscore),
    ],
};

/// Makes distinct members the members of a value that is replaced. Without members, there is none.
pub(super) fn set_members(
    new: &mut Elements<'_>,
    members: &[ScoredMember<'_>],
) -> Result<(), Damaged> {
    for ScoredMember { score, member } in members {
        new.set(member, &score_value(*score))?;
    }
    if members.is_empty() {
        new.clear();
    }
    Ok(())
}

/// Returns the score of a member.
pub(super) fn score(set: &Elements<'_>, member: &[u8]) -> Result<Option<f64>, Damaged> {
    set.get(member)?.map(score_of).transpose()
}

/// Replies about the scores of these members of the value under argument 1, in their order.
pub(super) fn reply_with_scores(
    call: &mut Call<'_>,
    members: &[&[u8]],
    write: impl FnOnce(&mut ReplyWriter<'_>, &[Option<f64>]),
) -> Done {
    let touched = Touched::Names(members);
    call.reply_with_elements(ValueType::SortedSet, touched, |reply, set| {
        let scores = members.iter().map(|member| score(set, member));
        write(reply, &scores.collect::<Result<Vec<_>, Damaged>>()?);
        Ok(())
    })
}

/// Writes an array of members with their scores: of pairs in RESP3, a flat one in RESP2.
pub(super) fn write_scored<'m>(
    reply: &mut ReplyWriter<'_>,
    members: impl ExactSizeIterator<Item = ScoredMember<'m>>,
) {
    match reply.protocol() {
        Protocol::Resp2 => {
            reply.array(2 * members.len());
            for ScoredMember { score, member } in members {
                reply.bulk(member);
                reply.double(score);
            }
        }
        Protocol::Resp3 => write_pairs(reply, members),
    }
}

/// Writes an array of pairs of a member and its score.
fn write_pairs<'m>(
    reply: &mut ReplyWriter<'_>,
    members: impl ExactSizeIterator<Item = ScoredMember<'m>>,
) {
    reply.array(members.len());
    for ScoredMember { score, member } in members {
        reply.array(2);
        reply.bulk(member);
        reply.double(score);
    }
}

fn write_score(reply: &mut ReplyWriter<'_>, score: Option<f64>) {
    match score {
        Some(score) => reply.double(score),
        None => reply.null(),
    }
}

/// `ZSCORE key member`.
fn zscore(call: &mut Call<'_>) -> Done {
    let member = &call.args[2..3];
    reply_with_scores(call, member, |reply, scores| write_score(reply, scores[0]))
}

/// `ZMSCORE key member [member ...]`.
fn zmscore(call: &mut Call<'_>) -> Done {
    let members = &call.args[2..];
    reply_with_scores(call, members, |reply, scores| {
        reply.array(scores.len());
        scores.iter().for_each(|score| write_score(reply, *score));
    })
}

/// One end of a sorted set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SetEnd {
    Lowest,
    Highest,
}

/// `ZRANK key member [WITHSCORE]` and `ZREVRANK`: the number of members between this end and the
/// member.
fn rank(call: &mut Call<'_>, from: SetEnd) -> Done {
    let with_score = match &call.args[3..] {
        [] => false,
        [word] if uppercase_is(word, b"WITHSCORE") => true,
        [_] => return Err(Refusal::Syntax.into()),
        _ => return Err(Refusal::Arity.into()),
    };
    let (key, table, member) = (call.key(1), call.session.status.table, call.args[2]);
    let reply = &mut call.reply;
    SortedSets::of(call.backend).read(table, key, Some(member), |set, score| {
        let found = match (&set, score) {
            (SortedView::Packed(set), _) => set.rank(member)?,
            (SortedView::Divided(order), Some(score)) => {
                let rank = order.rank(ScoredMember { score, member });
                // The order of this version has every member of the pages.
                Some((rank.ok_or(Damaged)?, score))
            }
            (SortedView::Divided(_), None) => None,
        };
        let Some((rank, score)) = found else {
            if with_score {
                reply.null_array()
            } else {
                reply.null()
            }
            return Ok(());
        };
        let rank = match from {
            SetEnd::Lowest => rank,
            SetEnd::Highest => set.count() - 1 - rank,
        };
        if with_score {
            reply.array(2);
        }
        reply.integer(rank as i64);
        if with_score {
            reply.double(score);
        }
        Ok(())
    })
}

/// `ZPOPMIN key [count]` and `ZPOPMAX`.
fn pop(call: &mut Call<'_>, end: SetEnd) -> Done {
    let count = match &call.args[2..] {
        [] => None,
        [count] => Some(parse_count(count)?),
        _ => return Err(Refusal::Syntax.into()),
    };
    let keys = [call.key(1)];
    let pop = MemberPop { end, count: count.unwrap_or(1) };
    let popped =
        pop.run_on_first(call, &keys, &[true], |reply, _, members| match (count, members) {
            (None, [ScoredMember { score, member }]) => {
                reply.array(2);
                reply.bulk(member);
                reply.double(*score);
            }
            (Some(_) | None, members) => write_scored(reply, members.iter().copied()),
        })?;
    if !popped {
        call.reply.array(0);
    }
    Ok(())
}

/// `ZMPOP numkeys key [key ...] MIN | MAX [COUNT count]`.
fn zmpop(call: &mut Call<'_>) -> Done {
    let several = PopOfSeveral::parse(&call.args[1..], parse_end)?;
    let keys = call.keys(2..2 + several.keys);
    if !several.run(call, &keys, &vec![true; keys.len()])? {
        call.reply.null_array();
    }
    Ok(())
}

/// Parses `MIN` or `MAX`.
pub(super) fn parse_end(word: &[u8]) -> Result<SetEnd, Refusal> {
    if uppercase_is(word, b"MIN") {
        Ok(SetEnd::Lowest)
    } else if uppercase_is(word, b"MAX") {
        Ok(SetEnd::Highest)
    } else {
        Err(Refusal::Syntax)
    }
}

impl PopOfSeveral<SetEnd> {
    /// Removes members of the first of these sorted sets that is open and has some, and replies.
    /// Returns false, without a reply, if there is none.
    pub(super) fn run(
        &self,
        call: &mut Call<'_>,
        keys: &[Key<'_>],
        open: &[bool],
    ) -> Result<bool, NotExecuted> {
        let PopOfSeveral { end, count, .. } = *self;
        MemberPop { end, count }.run_on_first(call, keys, open, |reply, key, members| {
            reply.array(2);
            reply.bulk(key);
            write_pairs(reply, members.iter().copied());
        })
    }
}

/// The removal of members at an end of a sorted set.
#[derive(Clone, Copy, Debug)]
pub(super) struct MemberPop {
    pub(super) end: SetEnd,
    /// Most members.
    pub(super) count: u64,
}

impl MemberPop {
    /// Removes members of the first of these sorted sets that is open and has some, and passes its
    /// key and the members, beginning with the one at the end, to `write`. Returns false if there is
    /// none.
    pub(super) fn run_on_first(
        self,
        call: &mut Call<'_>,
        keys: &[Key<'_>],
        open: &[bool],
        write: impl Fn(&mut ReplyWriter<'_>, &[u8], &[ScoredMember<'_>]),
    ) -> Result<bool, NotExecuted> {
        let MemberPop { end, count } = self;
        let selection = MemberSelection::at_end(end == SetEnd::Highest, count);
        let table = call.session.status.table;
        let removal = MemberRemoval { table, keys, open, selection: &selection };
        let reply = &mut call.reply;
        SortedSets::of(call.backend).remove(removal, |at, members| match end {
            SetEnd::Lowest => write(reply, keys[at].bytes, members),
            SetEnd::Highest => {
                let reversed: Vec<_> = members.iter().rev().copied().collect();
                write(reply, keys[at].bytes, &reversed);
            }
        })
    }
}

/// `ZRANDMEMBER key [count [WITHSCORES]]`.
fn zrandmember(call: &mut Call<'_>) -> Done {
    let sorted_set = ValueType::SortedSet;
    let [count, words @ ..] = &call.args[2..] else {
        return reply_with_sample(call, sorted_set, Sample::Distinct(1), |reply, drawn| {
            reply.bulk_or_null(drawn.first().map(|element| element.name));
            Ok(())
        });
    };
    let sample = Sample::parse(count)?;
    let with_scores = match words {
        [] => false,
        [word] if uppercase_is(word, b"WITHSCORES") => true,
        _ => return Err(Refusal::Syntax.into()),
    };
    let number = parse_integer(count).ok_or(Refusal::NotAnInteger)?;
    if with_scores && number.unsigned_abs() > i64::MAX as u64 / 2 {
        return Err(refused("ERR value is out of range"));
    }
    reply_with_sample(call, sorted_set, sample, |reply, drawn| {
        if with_scores {
            let members = drawn.iter().map(|element| ScoredMember::of(*element, sorted_set));
            let members = members.collect::<Result<Vec<_>, Damaged>>()?;
            write_scored(reply, members.into_iter());
        } else {
            reply.array(drawn.len());
            drawn.iter().for_each(|element| reply.bulk(element.name));
        }
        Ok(())
    })
}

/// Most members, and longest member, that Redis stores in its compact encoding (the defaults of
/// `zset-max-listpack-entries` and so on).
const COMPACT_MEMBERS_MAX: usize = 128;
const COMPACT_BYTES_MAX: usize = 64;

/// Returns Redis's name for the encoding of a sorted set, if it had been built there by additions
/// only.
pub(super) fn encoding(record: Record<'_>) -> Result<&'static [u8], Refusal> {
    let Form::Packed(packed) = form(Some(record), ValueType::SortedSet)? else {
        return Ok(b"skiplist");
    };
    let set = SortedSet::from(packed);
    let mut is_compact = set.count() <= COMPACT_MEMBERS_MAX;
    for one in set.members() {
        is_compact &= one?.member.len() <= COMPACT_BYTES_MAX;
    }
    Ok(if is_compact { b"listpack" } else { b"skiplist" })
}
