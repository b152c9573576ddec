//! `ZADD` and `ZINCRBY`: members get scores.

use super::command::flag::{DENYOOM, FAST, WRITE};
use super::command::{Family, ONE, command};
use super::packed::{SizeChange, element_bytes};
use super::sorted_sets::score;
use super::{Call, Done, NotExecuted, Refusal};
use crate::core::data::{Record, TableKey};
use crate::core::elements::{Touched, form};
use planted::Bug;
use types::ValueType;
use values::{Elements, Form, Root, ScoredMember, SortedSet, parse_score, score_value};

pub(super) static FAMILY: Family = Family {
    group: "sorted-set",
    category: Some("@sortedset"),
    commands: &[
        command("zadd", -4, WRITE | DENYOOM | FAST, ONE, zadd),
        command("zincrby", 4, WRITE | DENYOOM | FAST, ONE, zincrby),
    ],
};

/// A score and its member, as arguments.
type ScorePair<'a> = [&'a [u8]; 2];

/// Options of `ZADD`.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct AddOptions {
    /// Members that exist keep their scores.
    pub(super) only_new: bool,
    /// No member is added.
    pub(super) only_old: bool,
    /// Scores only rise.
    only_greater: bool,
    /// Scores only fall.
    only_lower: bool,
    /// The reply also counts members whose scores have changed.
    pub(super) counts_changed: bool,
    /// The score is added to the old one, and the reply is the sum.
    increments: bool,
}

const NOT_A_FLOAT: Refusal = Refusal::because("ERR value is not a valid float");
const NOT_A_NUMBER: Refusal = Refusal::because("ERR resulting score is not a number (NaN)");
const NEW_AND_OLD: Refusal =
    Refusal::because("ERR XX and NX options at the same time are not compatible");
const SEVERAL_CONDITIONS: Refusal =
    Refusal::because("ERR GT, LT, and/or NX options at the same time are not compatible");
const SEVERAL_INCREMENTS: Refusal =
    Refusal::because("ERR INCR option supports a single increment-element pair");

impl AddOptions {
    /// Parses the options. Returns them with the pairs of score and member behind them.
    fn parse<'w, 'a>(words: &'w [&'a [u8]]) -> Result<(AddOptions, &'w [ScorePair<'a>]), Refusal> {
        let mut options = AddOptions::default();
        let mut rest = words;
        while let [word, behind @ ..] = rest {
            match &word.to_ascii_uppercase()[..] {
                b"NX" => options.only_new = true,
                b"XX" => options.only_old = true,
                b"GT" => options.only_greater = true,
                b"LT" => options.only_lower = true,
                b"CH" => options.counts_changed = true,
                b"INCR" => options.increments = true,
                _ => break,
            }
            rest = behind;
        }
        let (pairs, odd) = rest.as_chunks::<2>();
        if pairs.is_empty() || !odd.is_empty() {
            return Err(Refusal::Syntax);
        }
        if options.only_new && options.only_old {
            return Err(NEW_AND_OLD);
        }
        let conditions = [options.only_new, options.only_greater, options.only_lower];
        if conditions.into_iter().filter(|is_set| *is_set).count() > 1 {
            return Err(SEVERAL_CONDITIONS);
        }
        if options.increments && pairs.len() > 1 {
            return Err(SEVERAL_INCREMENTS);
        }
        Ok((options, pairs))
    }

    /// Returns the addition of a member with this old score.
    fn addition(self, old: Option<f64>, score: f64) -> Result<Addition, Refusal> {
        let Some(before) = old else {
            return Ok(Addition { old, new: (!self.only_old).then_some(score) });
        };
        if self.only_new {
            return Ok(Addition { old, new: None });
        }
        let new = if self.increments { before + score } else { score };
        if new.is_nan() {
            return Err(NOT_A_NUMBER);
        }
        let is_excluded = self.only_greater && new <= before || self.only_lower && new >= before;
        Ok(Addition { old, new: (!is_excluded).then_some(new) })
    }

    /// Returns whether the reply counts an addition.
    fn counts(self, addition: Addition) -> bool {
        addition.written().is_some() && (addition.old.is_none() || self.counts_changed)
    }
}

/// The effect of an addition.
#[derive(Clone, Copy, Debug)]
struct Addition {
    /// The member's score before.
    old: Option<f64>,
    /// The member's score after; `None` if the options exclude the addition.
    new: Option<f64>,
}

impl Addition {
    /// Returns the new score if it is not the old one.
    fn written(self) -> Option<f64> {
        self.new.filter(|_| self.new != self.old)
    }
}

fn parse_pair<'a>([score, member]: &ScorePair<'a>) -> Result<ScoredMember<'a>, Refusal> {
    Ok(ScoredMember { score: parse_score(score).ok_or(NOT_A_FLOAT)?, member })
}

/// `ZADD key [NX | XX] [GT | LT] [CH] [INCR] score member [score member ...]`.
fn zadd(call: &mut Call<'_>) -> Done {
    let (options, pairs) = AddOptions::parse(&call.args[2..])?;
    if let [pair] = pairs {
        return add_one(call, options, parse_pair(pair)?);
    }
    let given = pairs.iter().map(parse_pair).collect::<Result<Vec<_>, Refusal>>()?;
    add_members(call, options, &given)
}

/// Adds members, or changes their scores, and replies with the number of those that count.
pub(super) fn add_members(
    call: &mut Call<'_>,
    options: AddOptions,
    given: &[ScoredMember<'_>],
) -> Done {
    if let [one] = given {
        return add_one(call, options, *one);
    }
    let members: Vec<&[u8]> = given.iter().map(|one| one.member).collect();
    let size = SizeChange::Adds(members.iter().map(|member| member_bytes(member)).sum());
    let (sorted_set, touched) = (ValueType::SortedSet, Touched::Names(&members));
    let counted = call.update_elements(sorted_set, touched, size, |set| {
        let mut counted = 0;
        for one in given {
            let addition = options.addition(score(set, one.member)?, one.score)?;
            if let Some(score) = addition.written() {
                set.set(one.member, &score_value(score))?;
            }
            counted += i64::from(options.counts(addition));
        }
        Ok(counted)
    })?;
    call.integer(counted)
}

/// Returns the most bytes that a member takes with its score.
fn member_bytes(member: &[u8]) -> u64 {
    element_bytes(&[member, &score_value(0.0)])
}

/// `ZINCRBY key increment member`. As in Redis, an increment that is an option of `ZADD` is taken for
/// one, so that a number is missing.
fn zincrby(call: &mut Call<'_>) -> Done {
    let (options, pairs) = AddOptions::parse(&call.args[2..])?;
    let [pair] = pairs else { return Err(Refusal::Syntax.into()) };
    add_one(call, AddOptions { increments: true, ..options }, parse_pair(pair)?)
}

/// Adds one member, and replies.
fn add_one(call: &mut Call<'_>, options: AddOptions, given: ScoredMember<'_>) -> Done {
    let addition = write_one(call, options, given)?;
    match (options.increments, addition.new) {
        (false, _) => call.reply.integer(options.counts(addition).into()),
        (true, Some(sum)) => call.reply.double(sum),
        (true, None) => call.reply.null(),
    }
    Ok(())
}

/// Adds one member, without a table of the others.
fn write_one(
    call: &mut Call<'_>,
    options: AddOptions,
    given: ScoredMember<'_>,
) -> Result<Addition, NotExecuted> {
    let packed_bytes_max = call.backend.layout().packed_bytes_max as u64;
    let added = member_bytes(given.member);
    let written = call.update(|record, changes| {
        let set = match form(record, ValueType::SortedSet)? {
            Form::Packed(packed) => SortedSet::from(packed),
            Form::Split(root) => return Ok(Err(Some(root))),
        };
        if set.bytes() + added > packed_bytes_max {
            return Ok(Err(None));
        }
        // The place of a sum is known only with the old score.
        let locate = |new: ScoredMember<'_>| {
            let behind = if planted::is(Bug::EqualScoresUnordered) { 0.5 } else { 0.0 };
            set.locate(ScoredMember { score: new.score + behind, ..new })
        };
        let place = if options.increments { None } else { Some(locate(given)?) };
        let old = match &place {
            Some(place) => place.old_score,
            None => set.score(given.member)?,
        };
        let addition = options.addition(old, given.score)?;
        if let Some(score) = addition.written() {
            let new = ScoredMember { score, ..given };
            let place = place.map_or_else(|| locate(new), Ok)?;
            let expiry = record.and_then(|record| record.expiry);
            let build = |out: &mut Vec<u8>| set.write_with(&place, new, out);
            changes.put_built(0, ValueType::SortedSet, expiry, build);
        }
        Ok::<Result<Addition, Option<Root>>, Refusal>(Ok(addition))
    })??;
    match written {
        Ok(addition) => Ok(addition),
        Err(root) => write_one_element(call, options, given, root),
    }
}

/// Adds one member to a set that has this root, or that may need one.
fn write_one_element(
    call: &mut Call<'_>,
    options: AddOptions,
    given: ScoredMember<'_>,
    root: Option<Root>,
) -> Result<Addition, NotExecuted> {
    let members = [given.member];
    let key = TableKey { table: call.session.status.table, key: call.key(1) };
    let size = SizeChange::Adds(member_bytes(given.member));
    let change = size.of(key, Touched::Names(&members));
    let add = |set: &mut Elements<'_>, _: Option<Record<'_>>| {
        let addition = options.addition(score(set, given.member)?, given.score)?;
        if let Some(score) = addition.written() {
            set.set(given.member, &score_value(score))?;
        }
        Ok(addition)
    };
    match root {
        Some(root) => change.update_pages(call.backend, ValueType::SortedSet, root, add),
        None => call.backend.update_elements(ValueType::SortedSet, change, add),
    }
}
