//! Commands on sorted sets and their members.

use super::command::flag::{FAST, READONLY, WRITE};
use super::command::{Family, Keys, ONE, command};
use super::element_scan::ElementScanOptions;
use super::glob::glob_matches;
use super::pop_of_several::PopOfSeveral;
use super::sampling::{Sample, parse_count};
use super::{
    Call, Done, NotExecuted, Refusal, parse_integer, parse_unsigned, refused, uppercase_is,
};
use crate::core::data::{Changes, Key, Need, Record};
use resp::{Protocol, ReplyWriter};
use types::ValueType;
use values::{MemberSpan, ScoredMember, ScoredMembers, SortedSet, encode_members};

pub(super) static FAMILY: Family = Family {
    group: "sorted-set",
    category: Some("@sortedset"),
    commands: &[
        command("zcard", 2, READONLY | FAST, ONE, zcard),
        command("zmpop", -4, WRITE, Keys::Counted, zmpop),
        command("zmscore", -3, READONLY | FAST, ONE, zmscore),
        command("zpopmax", -2, WRITE | FAST, ONE, |call| pop(call, SetEnd::Highest)),
        command("zpopmin", -2, WRITE | FAST, ONE, |call| pop(call, SetEnd::Lowest)),
        command("zrandmember", -2, READONLY, ONE, zrandmember),
        command("zrank", -3, READONLY | FAST, ONE, |call| rank(call, SetEnd::Lowest)),
        command("zrem", -3, WRITE | FAST, ONE, zrem),
        command("zrevrank", -3, READONLY | FAST, ONE, |call| rank(call, SetEnd::Highest)),
        command("zscan", -3, READONLY, ONE, zscan),
        command("zscore", 3, READONLY | FAST, ONE, zscore),
    ],
};

/// Returns the sorted set of a record. A missing record has no members.
#[inline]
pub(super) fn sorted_set(record: Option<Record<'_>>) -> Result<SortedSet<'_>, Refusal> {
    let Some(record) = record else { return Ok(SortedSet::EMPTY) };
    if record.value.value_type != ValueType::SortedSet {
        return Err(Refusal::WrongType);
    }
    Ok(SortedSet::parse(record.value.bytes)?)
}

/// Removes a span of the sorted set that was read from this record, and the key at this position
/// with the last member. The record keeps its expiry.
pub(super) fn remove_span(
    set: SortedSet<'_>,
    span: &MemberSpan,
    record: Option<Record<'_>>,
    changes: &mut Changes<'_>,
    at: usize,
) {
    let expiry = record.and_then(|record| record.expiry);
    match span.count {
        0 => {}
        count if count == set.count() => changes.delete(at),
        _ => {
            let build = |out: &mut Vec<u8>| set.write_without(span, out);
            changes.put_built(at, ValueType::SortedSet, expiry, build);
        }
    }
}

/// Writes the members that were read from this record as the value of key 0, if they have changed.
/// Removes the key if there are none. The record keeps its expiry.
pub(super) fn write_members(
    members: &ScoredMembers<'_>,
    record: Option<Record<'_>>,
    changes: &mut Changes<'_>,
) {
    let expiry = record.and_then(|record| record.expiry);
    match members.count() {
        _ if !members.is_changed() => {}
        0 => changes.delete(0),
        _ => changes.put_built(0, ValueType::SortedSet, expiry, |out| members.encode(out)),
    }
}

/// Writes distinct members as the value of key 0, without expiry. Removes the key if there are
/// none.
pub(super) fn write_new_members(members: &mut [ScoredMember<'_>], changes: &mut Changes<'_>) {
    match members.len() {
        0 => changes.delete(0),
        _ => {
            let build = |out: &mut Vec<u8>| encode_members(members, out);
            changes.put_built(0, ValueType::SortedSet, None, build);
        }
    }
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
    let member = call.args[2];
    call.reply_with(1, |reply, record| {
        write_score(reply, sorted_set(record)?.score(member)?);
        Ok(())
    })
}

/// `ZMSCORE key member [member ...]`.
fn zmscore(call: &mut Call<'_>) -> Done {
    let members = &call.args[2..];
    call.reply_with(1, |reply, record| {
        let scores = sorted_set(record)?.scores(members)?;
        reply.array(scores.len());
        scores.into_iter().for_each(|score| write_score(reply, score));
        Ok(())
    })
}

/// `ZCARD key`.
fn zcard(call: &mut Call<'_>) -> Done {
    let count = call.read(|record| Ok::<_, Refusal>(sorted_set(record)?.count()))??;
    call.integer(count as i64)
}

/// `ZREM key member [member ...]`.
fn zrem(call: &mut Call<'_>) -> Done {
    let names = &call.args[2..];
    let removed = call.update(|record, changes| {
        let set = sorted_set(record)?;
        if let [name] = names {
            let span = set.span_of(name)?;
            span.iter().for_each(|span| remove_span(set, span, record, changes, 0));
            return Ok(usize::from(span.is_some()));
        }
        let mut members = ScoredMembers::of(set, names.len())?;
        let removed = names.iter().filter(|name| members.remove(name)).count();
        write_members(&members, record, changes);
        Ok::<usize, Refusal>(removed)
    })??;
    call.integer(removed as i64)
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
    let member = call.args[2];
    call.reply_with(1, |reply, record| {
        let set = sorted_set(record)?;
        let Some((rank, score)) = set.rank(member)? else {
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

/// Returns the members that are next to one end of a sorted set, at most `count_max`, beginning with
/// the one at the end; and their span.
fn members_at(
    set: SortedSet<'_>,
    end: SetEnd,
    count_max: u64,
) -> Result<(Vec<ScoredMember<'_>>, MemberSpan), Refusal> {
    let count = usize::try_from(count_max).unwrap_or(usize::MAX).min(set.count());
    let span = set.span_of_ranks(match end {
        SetEnd::Lowest => 0..count,
        SetEnd::Highest => set.count() - count..set.count(),
    })?;
    let mut members = set.part(&span).list()?;
    if end == SetEnd::Highest {
        members.reverse();
    }
    Ok((members, span))
}

/// `ZPOPMIN key [count]` and `ZPOPMAX`.
fn pop(call: &mut Call<'_>, end: SetEnd) -> Done {
    let count = match &call.args[2..] {
        [] => None,
        [count] => Some(parse_count(count)?),
        _ => return Err(Refusal::Syntax.into()),
    };
    let (key, table) = (call.key(1), call.session.status.table);
    let reply = &mut call.reply;
    call.backend.update(table, &[key], Need::Records, |records, changes| {
        let set = sorted_set(records[0])?;
        let (members, span) = members_at(set, end, count.unwrap_or(1))?;
        match (count, &members[..]) {
            (None, [ScoredMember { score, member }]) => {
                reply.array(2);
                reply.bulk(member);
                reply.double(*score);
            }
            (Some(_) | None, members) => write_scored(reply, members.iter().copied()),
        }
        remove_span(set, &span, records[0], changes, 0);
        Ok::<(), Refusal>(())
    })??;
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
    /// key and the members to `write`. Returns false if there is none.
    pub(super) fn run_on_first(
        self,
        call: &mut Call<'_>,
        keys: &[Key<'_>],
        open: &[bool],
        write: fn(&mut ReplyWriter<'_>, &[u8], &[ScoredMember<'_>]),
    ) -> Result<bool, NotExecuted> {
        let table = call.session.status.table;
        let reply = &mut call.reply;
        Ok(call.backend.update(table, keys, Need::Records, |records, changes| {
            for (at, record) in records.iter().enumerate() {
                let set = sorted_set(*record)?;
                if set.count() == 0 || !open[at] {
                    continue;
                }
                let (members, span) = members_at(set, self.end, self.count)?;
                write(reply, keys[at].bytes, &members);
                remove_span(set, &span, *record, changes, at);
                return Ok(true);
            }
            Ok::<bool, Refusal>(false)
        })??)
    }
}

/// `ZRANDMEMBER key [count [WITHSCORES]]`.
fn zrandmember(call: &mut Call<'_>) -> Done {
    let mut random = call.random();
    let [count, words @ ..] = &call.args[2..] else {
        return call.reply_with(1, |reply, record| {
            let members = sorted_set(record)?.list()?;
            let drawn = Sample::Distinct(1).draw(members.len(), &mut random)?;
            reply.bulk_or_null(drawn.first().map(|place| members[*place].member));
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
    call.reply_with(1, |reply, record| {
        let members = sorted_set(record)?.list()?;
        let drawn = sample.draw(members.len(), &mut random)?;
        let drawn = drawn.iter().map(|place| members[*place]);
        match with_scores {
            true => write_scored(reply, drawn),
            false => {
                reply.array(drawn.len());
                drawn.for_each(|one| reply.bulk(one.member));
            }
        }
        Ok(())
    })
}

/// `ZSCAN key cursor [MATCH pattern] [COUNT count] [NOSCORES]`: all members in one step, as Redis
/// does with its compact encoding.
fn zscan(call: &mut Call<'_>) -> Done {
    parse_unsigned(call.args[2]).ok_or_else(|| refused("ERR invalid cursor"))?;
    let words = &call.args[3..];
    call.reply_with(1, |reply, record| {
        let mut members = sorted_set(record)?.list()?;
        let options = match record {
            Some(_) => ElementScanOptions::parse(words, ValueType::SortedSet)?,
            None => ElementScanOptions::default(),
        };
        if let Some(pattern) = options.pattern {
            members.retain(|one| glob_matches(pattern, one.member, false));
        }
        reply.array(2);
        reply.bulk(b"0");
        reply.array(members.len() * if options.without_values { 1 } else { 2 });
        for ScoredMember { score, member } in members {
            reply.bulk(member);
            if !options.without_values {
                reply.double_as_bulk(score);
            }
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
pub(super) fn encoding(set: SortedSet<'_>) -> Result<&'static [u8], Refusal> {
    let mut is_compact = set.count() <= COMPACT_MEMBERS_MAX;
    for one in set.members() {
        is_compact &= one?.member.len() <= COMPACT_BYTES_MAX;
    }
    Ok(if is_compact { b"listpack" } else { b"skiplist" })
}
