//! Unions, intersections and differences of sorted sets. Sets count as sorted sets in which every
//! member has the score 1.

use super::command::flag::{DENYOOM, READONLY, WRITE};
use super::command::{Family, Keys, command};
use super::packed::SizeChange;
use super::sorted_sets::{set_members, write_scored};
use super::{Call, Done, NotExecuted, Refusal, parse_integer, refused, uppercase_is};
use crate::core::data::{Key, TableKey};
use crate::core::elements::{NewExpiry, Touched, ValueChange};
use crate::operators::counts::Found;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use types::ValueType;
use values::{Elements, ScoredMember, parse_score};

pub(super) static FAMILY: Family = Family {
    group: "sorted-set",
    category: Some("@sortedset"),
    commands: &[
        command("zdiff", -3, READONLY, Keys::Counted, |call| {
            combine(call, SortedOperation::Difference)
        }),
        command("zdiffstore", -4, WRITE | DENYOOM, Keys::CountedBehindOne, |call| {
            store(call, SortedOperation::Difference)
        }),
        command("zinter", -3, READONLY, Keys::Counted, |call| {
            combine(call, SortedOperation::Intersection)
        }),
        command("zintercard", -3, READONLY, Keys::Counted, zintercard),
        command("zinterstore", -4, WRITE | DENYOOM, Keys::CountedBehindOne, |call| {
            store(call, SortedOperation::Intersection)
        }),
        command("zunion", -3, READONLY, Keys::Counted, |call| {
            combine(call, SortedOperation::Union)
        }),
        command("zunionstore", -4, WRITE | DENYOOM, Keys::CountedBehindOne, |call| {
            store(call, SortedOperation::Union)
        }),
    ],
};

/// A way to combine sorted sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SortedOperation {
    Union,
    Intersection,
    /// The members of the first set that no other set has, with their scores.
    Difference,
}

/// The score of a member that several sets have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ScoreAggregate {
    #[default]
    Sum,
    Lowest,
    Highest,
}

impl ScoreAggregate {
    /// Adds the score of one more set. Infinities of different signs have the sum 0.
    fn add(self, so_far: f64, score: f64) -> f64 {
        match self {
            ScoreAggregate::Sum => or_zero(so_far + score),
            ScoreAggregate::Lowest if score < so_far => score,
            ScoreAggregate::Highest if score > so_far => score,
            ScoreAggregate::Lowest | ScoreAggregate::Highest => so_far,
        }
    }
}

/// Returns 0 instead of NaN.
fn or_zero(score: f64) -> f64 {
    if score.is_nan() { 0.0 } else { score }
}

/// The options of a combination.
#[derive(Clone, Debug, Default)]
struct CombinationOptions {
    /// A factor for the scores of each set; empty if all are 1.
    weights: Vec<f64>,
    aggregate: ScoreAggregate,
    with_scores: bool,
    /// Most members that `ZINTERCARD` counts.
    limit: Option<u64>,
}

/// The commands that combine sorted sets, as far as they accept different options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CombinationPurpose {
    Reply,
    Store,
    Count,
}

/// The set keys of a combination and its options.
struct CombinationQuery {
    operation: SortedOperation,
    /// Number of sets.
    sets: usize,
    /// The error in the options if there is one, which counts after errors about the sets.
    options: Result<CombinationOptions, Refusal>,
}

/// The keys of the sets that a command names, each once.
struct NamedSets<'k> {
    keys: Vec<Key<'k>>,
    /// Per name, the position of its key.
    places: Vec<usize>,
}

impl<'k> NamedSets<'k> {
    fn new(names: impl Iterator<Item = Key<'k>>) -> NamedSets<'k> {
        let (mut keys, mut places, mut known) = (Vec::new(), Vec::new(), HashMap::new());
        for key in names {
            let place = *known.entry(key.bytes).or_insert(keys.len());
            if place == keys.len() {
                keys.push(key);
            }
            places.push(place);
        }
        NamedSets { keys, places }
    }
}

impl CombinationQuery {
    /// Parses the arguments from the number of keys on.
    fn parse(
        call: &Call<'_>,
        from: usize,
        operation: SortedOperation,
        purpose: CombinationPurpose,
        command: &str,
    ) -> Result<CombinationQuery, NotExecuted> {
        let count = parse_integer(call.args[from]).ok_or(Refusal::NotAnInteger)?;
        let sets = usize::try_from(count).ok().filter(|sets| *sets > 0).ok_or_else(|| {
            refused(format!("ERR at least 1 input key is needed for '{command}' command"))
        })?;
        let words = call.args.get(sets.saturating_add(from + 1)..).ok_or(Refusal::Syntax)?;
        let options = CombinationOptions::parse(words, sets, operation, purpose);
        Ok(CombinationQuery { operation, sets, options })
    }

    /// Combines the sets of these keys, as they were named. Returns the members in order.
    ///
    /// Refuses keys that are named again if their sets have too many members: a request of a few bytes
    /// could ask for any amount of work.
    fn members<'r>(
        &self,
        named: &NamedSets<'_>,
        sets: &'r [Elements<'_>],
    ) -> Result<Vec<ScoredMember<'r>>, Refusal> {
        let all: u64 = named.places.iter().map(|&place| sets[place].count()).sum();
        let distinct: u64 = sets.iter().map(Elements::count).sum();
        if all - distinct > REPEATED_MAX {
            return Err(TOO_MANY_REPEATED);
        }
        let mut sources = Vec::with_capacity(named.places.len());
        for set in named.places.iter().map(|&place| &sets[place]) {
            sources.push(WeightedSet { members: set.sorted_members()?, weight: 1.0 });
        }
        let options = self.options.as_ref().map_err(Refusal::clone)?;
        for (source, weight) in sources.iter_mut().zip(&options.weights) {
            source.weight = *weight;
        }
        if self.operation != SortedOperation::Difference {
            // The order in which Redis adds scores, which shows in sums of fractions.
            sources.sort_by_key(|source| source.members.len());
        }
        let mut members = match self.operation {
            SortedOperation::Union => union(&sources, options.aggregate),
            SortedOperation::Intersection => intersection(&sources, options.aggregate),
            SortedOperation::Difference => difference(&sources),
        };
        members.sort_by(ScoredMember::order);
        Ok(members)
    }
}

impl CombinationOptions {
    fn parse(
        words: &[&[u8]],
        sets: usize,
        operation: SortedOperation,
        purpose: CombinationPurpose,
    ) -> Result<CombinationOptions, Refusal> {
        let mut options = CombinationOptions::default();
        let combines =
            operation != SortedOperation::Difference && purpose != CombinationPurpose::Count;
        let mut rest = words;
        while let [word, behind @ ..] = rest {
            rest = behind;
            if combines && uppercase_is(word, b"WEIGHTS") && behind.len() >= sets {
                let (weights, behind) = behind.split_at(sets);
                let weights = weights.iter().map(|weight| parse_score(weight));
                options.weights = weights.collect::<Option<_>>().ok_or(BAD_WEIGHT)?;
                rest = behind;
            } else if combines && uppercase_is(word, b"AGGREGATE") {
                let [how, behind @ ..] = behind else { return Err(Refusal::Syntax) };
                options.aggregate = match &how.to_ascii_uppercase()[..] {
                    b"SUM" => ScoreAggregate::Sum,
                    b"MIN" => ScoreAggregate::Lowest,
                    b"MAX" => ScoreAggregate::Highest,
                    _ => return Err(Refusal::Syntax),
                };
                rest = behind;
            } else if purpose == CombinationPurpose::Reply && uppercase_is(word, b"WITHSCORES") {
                options.with_scores = true;
            } else if purpose == CombinationPurpose::Count && uppercase_is(word, b"LIMIT") {
                let [limit, behind @ ..] = behind else { return Err(Refusal::Syntax) };
                let limit = parse_integer(limit).and_then(|limit| u64::try_from(limit).ok());
                let limit = limit.ok_or(BAD_LIMIT)?;
                options.limit = Some(limit).filter(|limit| *limit > 0);
                rest = behind;
            } else {
                return Err(Refusal::Syntax);
            }
        }
        Ok(options)
    }
}

/// Most members in sets that a command names again.
const REPEATED_MAX: u64 = 1 << 22;
const TOO_MANY_REPEATED: Refusal =
    Refusal::because("ERR the sets that the command names more than once have too many members");
const BAD_WEIGHT: Refusal = Refusal::because("ERR weight value is not a float");
const BAD_LIMIT: Refusal = Refusal::because("ERR LIMIT can't be negative");

/// One of the sets that are combined.
struct WeightedSet<'r> {
    members: Vec<ScoredMember<'r>>,
    weight: f64,
}

impl WeightedSet<'_> {
    /// Returns a score of this set with the weight.
    fn weighted(&self, score: f64) -> f64 {
        or_zero(self.weight * score)
    }
}

fn union<'r>(sources: &[WeightedSet<'r>], aggregate: ScoreAggregate) -> Vec<ScoredMember<'r>> {
    let mut members: Vec<ScoredMember<'r>> = Vec::new();
    let mut places: HashMap<&'r [u8], usize> = HashMap::new();
    for source in sources {
        for one in &source.members {
            let score = source.weighted(one.score);
            match places.entry(one.member) {
                Entry::Vacant(entry) => {
                    entry.insert(members.len());
                    members.push(ScoredMember { score, ..*one });
                }
                Entry::Occupied(entry) => {
                    let so_far = &mut members[*entry.get()].score;
                    *so_far = aggregate.add(*so_far, score);
                }
            }
        }
    }
    members
}

fn intersection<'r>(
    sources: &[WeightedSet<'r>],
    aggregate: ScoreAggregate,
) -> Vec<ScoredMember<'r>> {
    let [first, others @ ..] = sources else { return Vec::new() };
    let table = |source: &WeightedSet<'r>| {
        let scores = source.members.iter().map(|one| (one.member, source.weight * one.score));
        scores.collect::<HashMap<&[u8], f64>>()
    };
    let others: Vec<HashMap<&[u8], f64>> = others.iter().map(table).collect();
    let common = |one: &ScoredMember<'r>| {
        let mut score = first.weighted(one.score);
        for other in &others {
            score = aggregate.add(score, *other.get(one.member)?);
        }
        Some(ScoredMember { score, ..*one })
    };
    first.members.iter().filter_map(common).collect()
}

fn difference<'r>(sources: &[WeightedSet<'r>]) -> Vec<ScoredMember<'r>> {
    let [first, others @ ..] = sources else { return Vec::new() };
    let others = others.iter().flat_map(|other| &other.members).map(|one| one.member);
    let others: HashSet<&[u8]> = others.collect();
    first.members.iter().filter(|one| !others.contains(one.member)).copied().collect()
}

/// `ZUNION`, `ZINTER` and `ZDIFF numkeys key [key ...] [WEIGHTS weight [weight ...]] [AGGREGATE SUM
/// | MIN | MAX] [WITHSCORES]`.
fn combine(call: &mut Call<'_>, operation: SortedOperation) -> Done {
    let name = match operation {
        SortedOperation::Union => "zunion",
        SortedOperation::Intersection => "zinter",
        SortedOperation::Difference => "zdiff",
    };
    let query = CombinationQuery::parse(call, 1, operation, CombinationPurpose::Reply, name)?;
    let named = NamedSets::new(call.keys(2..2 + query.sets).into_iter());
    let (table, touched) = (call.session.status.table, Touched::Scores);
    let reply = &mut call.reply;
    call.backend.read_values(table, &named.keys, ValueType::SortedSet, touched, |sets| {
        let members = query.members(&named, sets)?;
        match query.options.as_ref().is_ok_and(|options| options.with_scores) {
            true => write_scored(reply, members.into_iter()),
            false => {
                reply.array(members.len());
                members.iter().for_each(|one| reply.bulk(one.member));
            }
        }
        Ok(())
    })
}

/// `ZUNIONSTORE`, `ZINTERSTORE` and `ZDIFFSTORE destination numkeys key [key ...] [WEIGHTS weight
/// [weight ...]] [AGGREGATE SUM | MIN | MAX]`.
fn store(call: &mut Call<'_>, operation: SortedOperation) -> Done {
    let name = match operation {
        SortedOperation::Union => "zunionstore",
        SortedOperation::Intersection => "zinterstore",
        SortedOperation::Difference => "zdiffstore",
    };
    let query = CombinationQuery::parse(call, 2, operation, CombinationPurpose::Store, name)?;
    let table = call.session.status.table;
    let named = NamedSets::new((3..3 + query.sets).map(|at| call.key(at)));
    let keys = std::iter::once(call.key(1)).chain(named.keys.iter().copied());
    let keys = keys.map(|key| TableKey { table, key });
    let none = SizeChange::Adds(0);
    let values = keys.enumerate().map(|(at, key)| match at {
        0 => ValueChange { expiry: NewExpiry::Is(None), ..none.of(key, Touched::Replaced) },
        _ => none.of(key, Touched::Scores),
    });
    let values: Vec<ValueChange<'_>> = values.collect();
    let mut found = Found::default();
    let count = call.backend.update_values(ValueType::SortedSet, &values, |sets, records| {
        found = Found::keys(&records[1..]);
        let Some((new, sets)) = sets.split_first_mut() else { return Ok(0) };
        let members = query.members(&named, sets)?;
        set_members(new, &members)?;
        Ok(members.len())
    })?;
    call.backend.count(found);
    call.integer(count as i64)
}

/// `ZINTERCARD numkeys key [key ...] [LIMIT limit]`.
fn zintercard(call: &mut Call<'_>) -> Done {
    let (operation, purpose) = (SortedOperation::Intersection, CombinationPurpose::Count);
    let query = CombinationQuery::parse(call, 1, operation, purpose, "zintercard")?;
    let named = NamedSets::new(call.keys(2..2 + query.sets).into_iter());
    let (table, touched) = (call.session.status.table, Touched::Scores);
    let keys = &named.keys;
    let count = call.backend.read_values(table, keys, ValueType::SortedSet, touched, |sets| {
        Ok(query.members(&named, sets)?.len())
    })?;
    let limit = query.options?.limit.unwrap_or(u64::MAX);
    call.integer((count as u64).min(limit) as i64)
}
