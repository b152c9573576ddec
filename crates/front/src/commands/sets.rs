//! Commands on sets.

use super::command::flag::{DENYOOM, FAST, READONLY, WRITE};
use super::command::{ALL, Family, Keys, ONE, TWO, command};
use super::element_scan::scan_elements;
use super::packed::{
    count_elements, has_element, packed, read_elements, remove_elements, write_elements, write_new,
};
use super::sampling::{Sample, parse_count};
use super::{Call, Done, Refusal, parse_integer, refused, uppercase_is};
use crate::core::data::{Need, Record};
use crate::operators::counts::Found;
use std::collections::HashSet;
use types::ValueType;
use values::{Element, Packed};

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
    let added = call.update(|record, changes| {
        let mut set = read_elements(record, ValueType::Set, members.len())?;
        let before = set.count();
        for member in members {
            set.add(member);
        }
        write_elements(&set, record, changes, 0);
        Ok::<usize, Refusal>(set.count() - before)
    })??;
    call.integer(added as i64)
}

/// `SMISMEMBER key member [member ...]`.
fn smismember(call: &mut Call<'_>) -> Done {
    let members = &call.args[2..];
    call.reply_with(1, |reply, record| {
        let found = packed(record, ValueType::Set)?.get_all(members)?;
        reply.array(found.len());
        found.iter().for_each(|found| reply.integer(found.is_some().into()));
        Ok(())
    })
}

/// `SMEMBERS key`.
fn smembers(call: &mut Call<'_>) -> Done {
    call.reply_with(1, |reply, record| {
        let members = names(packed(record, ValueType::Set)?)?;
        reply.set(members.len());
        members.iter().for_each(|member| reply.bulk(member));
        Ok(())
    })
}

/// Returns the members of a set in order.
fn names(set: Packed<'_>) -> Result<Vec<&[u8]>, Refusal> {
    set.elements().map(|element| Ok(element?.name)).collect()
}

/// `SMOVE source destination member`.
fn smove(call: &mut Call<'_>) -> Done {
    let member = call.args[3];
    let keys = [call.key(1), call.key(2)];
    let moved = call.update_keys(&keys, Need::Records, |records, changes| {
        if records[0].is_none() {
            return Ok(false);
        }
        let mut from = read_elements(records[0], ValueType::Set, 1)?;
        let mut to = read_elements(records[1], ValueType::Set, 1)?;
        if keys[0] == keys[1] {
            return Ok(from.get(member).is_some());
        }
        let moved = from.remove(member);
        if moved {
            to.add(member);
            write_elements(&from, records[0], changes, 0);
            write_elements(&to, records[1], changes, 1);
        }
        Ok::<bool, Refusal>(moved)
    })??;
    call.integer(moved)
}

/// `SPOP key [count]`.
fn spop(call: &mut Call<'_>) -> Done {
    let count = match &call.args[2..] {
        [] => None,
        [count] => Some(parse_count(count)?),
        _ => return Err(Refusal::Syntax.into()),
    };
    let mut random = call.random();
    let (key, table) = (call.key(1), call.session.status.table);
    let reply = &mut call.reply;
    let exists = call.backend.update(table, &[key], Need::Records, |records, changes| {
        let mut set = read_elements(records[0], ValueType::Set, 0)?;
        let sample = Sample::Distinct(count.unwrap_or(1));
        let members = set.remove_at(&sample.draw(set.count(), &mut random)?);
        match (count, members.first()) {
            (Some(_), _) => reply.set(members.len()),
            (None, Some(_)) => {}
            (None, None) => reply.null(),
        }
        members.iter().for_each(|member| reply.bulk(member));
        write_elements(&set, records[0], changes, 0);
        Ok::<bool, Refusal>(records[0].is_some())
    })??;
    call.backend.count(Found::key(exists));
    Ok(())
}

/// `SRANDMEMBER key [count]`.
fn srandmember(call: &mut Call<'_>) -> Done {
    let sample = match &call.args[2..] {
        [] => None,
        [count] => Some(Sample::parse(count)?),
        _ => return Err(Refusal::Syntax.into()),
    };
    let mut random = call.random();
    call.reply_with(1, |reply, record| {
        let members = names(packed(record, ValueType::Set)?)?;
        let drawn = sample.unwrap_or(Sample::Distinct(1)).draw(members.len(), &mut random)?;
        match (sample, drawn.first()) {
            (Some(_), _) => reply.array(drawn.len()),
            (None, Some(_)) => {}
            (None, None) => reply.null(),
        }
        drawn.iter().for_each(|place| reply.bulk(members[*place]));
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
    /// Returns the distinct members of the combination of these records, at most `count_max`.
    fn of<'r>(
        self,
        records: &[Option<Record<'r>>],
        count_max: usize,
    ) -> Result<Vec<&'r [u8]>, Refusal> {
        let sets = records.iter().map(|record| names(packed(*record, ValueType::Set)?));
        let sets: Vec<Vec<&[u8]>> = sets.collect::<Result<_, Refusal>>()?;
        let first = match self {
            Combination::Intersection => sets.iter().min_by_key(|set| set.len()),
            Combination::Union | Combination::Difference => sets.first(),
        };
        let Some(first) = first else { return Ok(Vec::new()) };
        let table = |set: &Vec<&'r [u8]>| set.iter().copied().collect::<HashSet<&[u8]>>();
        let others = sets.iter().filter(|set| !std::ptr::eq(*set, first));
        Ok(match self {
            Combination::Union => {
                let mut seen = HashSet::new();
                sets.iter().flatten().copied().filter(|member| seen.insert(*member)).collect()
            }
            Combination::Intersection => {
                let others: Vec<HashSet<&[u8]>> = others.map(table).collect();
                let is_in_all = |member: &&[u8]| others.iter().all(|set| set.contains(*member));
                first.iter().copied().filter(is_in_all).take(count_max).collect()
            }
            Combination::Difference => {
                let others: HashSet<&[u8]> = others.flatten().copied().collect();
                first.iter().copied().filter(|member| !others.contains(member)).collect()
            }
        })
    }
}

/// `SUNION`, `SINTER` and `SDIFF key [key ...]`.
fn combine(call: &mut Call<'_>, combination: Combination) -> Done {
    let keys = call.keys(1..call.args.len());
    let reply = &mut call.reply;
    call.backend.read(call.session.status.table, &keys, |records| {
        let members = combination.of(records, usize::MAX)?;
        reply.set(members.len());
        members.iter().for_each(|member| reply.bulk(member));
        Ok::<(), Refusal>(())
    })??;
    Ok(())
}

/// `SUNIONSTORE`, `SINTERSTORE` and `SDIFFSTORE destination key [key ...]`.
fn store(call: &mut Call<'_>, combination: Combination) -> Done {
    let keys = call.keys(1..call.args.len());
    let mut found = Found::default();
    let count = call.update_keys(&keys, Need::Records, |records, changes| {
        found = Found::keys(&records[1..]);
        let members = combination.of(&records[1..], usize::MAX)?;
        let elements = members.iter().map(|name| Element { name, value: &[] });
        write_new(ValueType::Set, elements, changes, 0);
        Ok::<usize, Refusal>(members.len())
    })??;
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
    let keys = call.keys(2..2 + count);
    let members = call.backend.read(call.session.status.table, &keys, |records| {
        Ok::<usize, Refusal>(Combination::Intersection.of(records, count_max)?.len())
    })??;
    call.integer(members as i64)
}
