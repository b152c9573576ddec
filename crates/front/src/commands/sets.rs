//! Commands on sets.

use super::command::flag::{DENYOOM, FAST, READONLY, WRITE};
use super::command::{ALL, Family, Keys, ONE, TWO, command};
use super::element_scan::scan_elements;
use super::packed::{
    SizeChange, count_elements, element_bytes, has_element, listed, remove_elements,
};
use super::sampling::{PageSample, Sample, parse_count, reply_with_sample};
use super::transactions::each_once;
use super::{Call, Done, Refusal, parse_integer, refused, uppercase_is};
use crate::core::data::{Key, TableKey};
use crate::core::elements::{NewExpiry, Touched, ValueChange};
use crate::operators::counts::Found;
use std::collections::HashSet;
use types::ValueType;
use values::{Damaged, Elements, Root};

pub(super) static FAMILY: Family = Family {
    group: "set",
    category: Some("@set"),
    commands: &[
        command("sadd", -3, WRITE | DENYOOM | FAST, ONE, sadd),
        command("scard", 2, READONLY | FAST, ONE, |call| count_elements(call, ValueType::Set)),
        command("sdiff", -2, READONLY, ALL, |call| combine(call, Combination::Difference)),
        command("sdiffstore", -3, WRITE | DENYOOM, ALL, |call| {
            store(call, Combination::Difference)
        }),
        command("sinter", -2, READONLY, ALL, |call| combine(call, Combination::Intersection)),
        command("sintercard", -3, READONLY, Keys::Counted, sintercard),
        command("sinterstore", -3, WRITE | DENYOOM, ALL, |call| {
            store(call, Combination::Intersection)
        }),
        command("sismember", 3, READONLY | FAST, ONE, |call| has_element(call, ValueType::Set)),
        command("smembers", 2, READONLY, ONE, smembers),
        command("smismember", -3, READONLY | FAST, ONE, smismember),
        command("smove", 4, WRITE | FAST, TWO, smove),
        command("spop", -2, WRITE | FAST, ONE, spop),
        command("srandmember", -2, READONLY, ONE, srandmember),
        command("srem", -3, WRITE | FAST, ONE, |call| remove_elements(call, ValueType::Set)),
        command("sscan", -3, READONLY, ONE, |call| scan_elements(call, ValueType::Set)),
        command("sunion", -2, READONLY, ALL, |call| combine(call, Combination::Union)),
        command("sunionstore", -3, WRITE | DENYOOM, ALL, |call| store(call, Combination::Union)),
    ],
};

/// `SADD key member [member ...]`.
fn sadd(call: &mut Call<'_>) -> Done {
    let members = &call.args[2..];
    let size = SizeChange::Adds(members.iter().map(|member| element_bytes(&[member])).sum());
    let added = call.update_elements(ValueType::Set, Touched::Names(members), size, |set| {
        let mut added = 0;
        for member in members {
            added += i64::from(set.add(member)?);
        }
        Ok(added)
    })?;
    call.integer(added)
}

/// `SMISMEMBER key member [member ...]`.
fn smismember(call: &mut Call<'_>) -> Done {
    let members = &call.args[2..];
    call.reply_with_elements(ValueType::Set, Touched::Names(members), |reply, set| {
        let found = members.iter().map(|member| set.get(member));
        let found = found.collect::<Result<Vec<Option<&[u8]>>, Damaged>>()?;
        reply.array(found.len());
        found.iter().for_each(|found| reply.integer(found.is_some().into()));
        Ok(())
    })
}

/// `SMEMBERS key`.
fn smembers(call: &mut Call<'_>) -> Done {
    call.reply_with_elements(ValueType::Set, Touched::All, |reply, set| {
        let members = listed(set)?;
        reply.set(members.len());
        members.iter().for_each(|member| reply.bulk(member.name));
        Ok(())
    })
}

/// `SMOVE source destination member`.
fn smove(call: &mut Call<'_>) -> Done {
    let (table, member) = (call.session.status.table, &call.args[3..4]);
    let keys = [1, 2].map(|at| TableKey { table, key: call.key(at) });
    // The type of the destination is an error only if there is a source.
    if !call.backend.read_one(table, keys[0].key, |record| record.is_some())? {
        return call.integer(false);
    }
    let touched = Touched::Names(member);
    let size = SizeChange::Adds(element_bytes(member));
    let values = [SizeChange::Removes.of(keys[0], touched), size.of(keys[1], touched)];
    let moved = call.backend.update_values(ValueType::Set, &values, |sets, _| {
        let [from, to] = sets else { unreachable!("there are two sets") };
        if keys[0] == keys[1] {
            return Ok(from.get(member[0])?.is_some());
        }
        let moved = from.remove(member[0])?;
        if moved {
            to.add(member[0])?;
        }
        Ok(moved)
    })?;
    call.integer(moved)
}

/// `SPOP key [count]`.
fn spop(call: &mut Call<'_>) -> Done {
    let count = match &call.args[2..] {
        [] => None,
        [count] => Some(parse_count(count)?),
        _ => return Err(Refusal::Syntax.into()),
    };
    let key = TableKey { table: call.session.status.table, key: call.key(1) };
    let sample = PageSample::new(Sample::Distinct(count.unwrap_or(1)), call.random());
    let choose = |root: &Root| sample.choose(root);
    for touched in [Touched::Pages(&choose), Touched::All] {
        let change = SizeChange::Removes.of(key, touched);
        let popped = call.update_and_reply(ValueType::Set, change, |set, record, reply| {
            let Some(members) = sample.draw(set)? else { return Ok(None) };
            set.prepare(members.len())?;
            for member in &members {
                set.remove(member.name)?;
            }
            match (count, members.first()) {
                (Some(_), _) => reply.set(members.len()),
                (None, Some(_)) => {}
                (None, None) => reply.null(),
            }
            members.iter().for_each(|member| reply.bulk(member.name));
            Ok(Some(record.is_some()))
        })?;
        if let Some(exists) = popped {
            call.backend.count(Found::key(exists));
            return Ok(());
        }
    }
    unreachable!("the whole value has every sample")
}

/// `SRANDMEMBER key [count]`.
fn srandmember(call: &mut Call<'_>) -> Done {
    let sample = match &call.args[2..] {
        [] => None,
        [count] => Some(Sample::parse(count)?),
        _ => return Err(Refusal::Syntax.into()),
    };
    let drawn = sample.unwrap_or(Sample::Distinct(1));
    reply_with_sample(call, ValueType::Set, drawn, |reply, members| {
        match (sample, members.first()) {
            (Some(_), _) => reply.array(members.len()),
            (None, Some(_)) => {}
            (None, None) => reply.null(),
        }
        members.iter().for_each(|member| reply.bulk(member.name));
        Ok(())
    })
}

/// A way to combine sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Combination {
    Union,
    Intersection,
    /// The members of the first set that no other set has.
    Difference,
}

impl Combination {
    /// Returns the distinct members of the combination of these sets, at most `count_max`.
    fn of<'r>(self, sets: &'r [Elements<'_>], count_max: usize) -> Result<Vec<&'r [u8]>, Refusal> {
        let first = match self {
            Combination::Intersection => sets.iter().min_by_key(|set| set.count()),
            Combination::Union | Combination::Difference => sets.first(),
        };
        let Some(first) = first else { return Ok(Vec::new()) };
        let mut members: Vec<&'r [u8]> = names(first)?;
        let mut seen = match self {
            Combination::Union => members.iter().copied().collect(),
            Combination::Intersection | Combination::Difference => HashSet::new(),
        };
        // One set at a time: only the result grows with the number of sets.
        for other in sets.iter().filter(|set| !std::ptr::eq(*set, first)) {
            let other = names(other)?;
            match self {
                Combination::Union => {
                    members.extend(other.into_iter().filter(|member| seen.insert(*member)));
                }
                Combination::Intersection => {
                    let other: HashSet<&[u8]> = other.into_iter().collect();
                    members.retain(|member| other.contains(member));
                }
                Combination::Difference => {
                    let other: HashSet<&[u8]> = other.into_iter().collect();
                    members.retain(|member| !other.contains(member));
                }
            }
        }
        members.truncate(count_max);
        Ok(members)
    }

    /// Returns the keys whose sets are combined: a set that is named again changes nothing, unless it
    /// is the first of a difference.
    fn distinct<'k>(self, call: &Call<'_>, names: &[&'k [u8]]) -> Vec<Key<'k>> {
        let (first, others) = names.split_at(usize::from(self == Combination::Difference));
        let mut keys = each_once(call, first.iter().copied());
        keys.extend(each_once(call, others.iter().copied()));
        keys
    }
}

/// Returns the names of all members.
fn names<'r>(set: &'r Elements<'_>) -> Result<Vec<&'r [u8]>, Refusal> {
    Ok(listed(set)?.into_iter().map(|member| member.name).collect())
}

/// `SUNION`, `SINTER` and `SDIFF key [key ...]`.
fn combine(call: &mut Call<'_>, combination: Combination) -> Done {
    let keys = combination.distinct(call, &call.args[1..]);
    let reply = &mut call.reply;
    let (table, touched) = (call.session.status.table, Touched::All);
    call.backend.read_values(table, &keys, ValueType::Set, touched, |sets| {
        let members = combination.of(sets, usize::MAX)?;
        reply.set(members.len());
        members.iter().for_each(|member| reply.bulk(member));
        Ok(())
    })
}

/// `SUNIONSTORE`, `SINTERSTORE` and `SDIFFSTORE destination key [key ...]`.
fn store(call: &mut Call<'_>, combination: Combination) -> Done {
    let table = call.session.status.table;
    let sources = combination.distinct(call, &call.args[2..]);
    let keys = std::iter::once(call.key(1)).chain(sources).map(|key| TableKey { table, key });
    let replaced = |key| ValueChange {
        expiry: NewExpiry::Is(None),
        ..SizeChange::Adds(0).of(key, Touched::Replaced)
    };
    let values = keys.enumerate().map(|(at, key)| match at {
        0 => replaced(key),
        _ => SizeChange::Adds(0).of(key, Touched::All),
    });
    let values: Vec<ValueChange<'_>> = values.collect();
    let mut found = Found::default();
    let count = call.backend.update_values(ValueType::Set, &values, |sets, records| {
        found = Found::keys(&records[1..]);
        let Some((new, sets)) = sets.split_first_mut() else { return Ok(0) };
        let members = combination.of(sets, usize::MAX)?;
        for member in &members {
            new.add(member)?;
        }
        if members.is_empty() {
            new.clear();
        }
        Ok(members.len())
    })?;
    call.backend.count(found);
    call.integer(count as i64)
}

/// `SINTERCARD numkeys key [key ...] [LIMIT limit]`.
fn sintercard(call: &mut Call<'_>) -> Done {
    let count = parse_integer(call.args[1]).and_then(|count| usize::try_from(count).ok());
    let count = count.filter(|count| *count > 0);
    let count = count.ok_or_else(|| refused("ERR numkeys should be greater than 0"))?;
    let words = call.args.get(count.saturating_add(2)..);
    let words =
        words.ok_or_else(|| refused("ERR Number of keys can't be greater than number of args"))?;
    let mut limit = 0;
    for option in words.chunks(2) {
        limit = match option {
            [word, limit] if uppercase_is(word, b"LIMIT") => {
                let limit = parse_integer(limit).and_then(|limit| usize::try_from(limit).ok());
                limit.ok_or_else(|| refused("ERR LIMIT can't be negative"))?
            }
            _ => return Err(Refusal::Syntax.into()),
        };
    }
    let count_max = if limit == 0 { usize::MAX } else { limit };
    let keys = Combination::Intersection.distinct(call, &call.args[2..2 + count]);
    let table = call.session.status.table;
    let touched = Touched::All;
    let members = call.backend.read_values(table, &keys, ValueType::Set, touched, |sets| {
        Ok(Combination::Intersection.of(sets, count_max)?.len())
    })?;
    call.integer(members as i64)
}
