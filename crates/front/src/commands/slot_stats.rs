//! `CLUSTER SLOT-STATS`: the number of keys of each slot on this server. Other metrics of slots are
//! not measured, as in a Valkey without `cluster-slot-stats-enabled`.

use super::migrate::slot_range;
use super::slots::{cluster_node, slot_ranges};
use super::{Call, Done, NotExecuted, Refusal, parse_integer, refused, uppercase_is};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use types::{HashRange, SLOT_COUNT, Slot};

/// A slot and its number of keys.
type Stat = (Slot, u64);

/// `CLUSTER SLOT-STATS SLOTSRANGE first last | ORDERBY metric [LIMIT count] [ASC | DESC]`.
pub(super) fn slot_stats(call: &mut Call<'_>) -> Done {
    cluster_node(call)?;
    let stats = match call.args[2..] {
        [word, first, last] if uppercase_is(word, b"SLOTSRANGE") => {
            let range = slot_range(first, last);
            // The same error of `MIGRATESLOTS` ends with a dot, in Valkey too.
            stats_of(call, range.map_err(|text| refused(text.trim_end_matches('.').to_owned()))?)
        }
        [word, metric, ref options @ ..] if uppercase_is(word, b"ORDERBY") => {
            if !uppercase_is(metric, b"KEY-COUNT") {
                return Err(refused("ERR Unrecognized sort metric for ORDERBY."));
            }
            let (limit, is_ascending) = parse_order(options)?;
            let mut stats = stats_of(call, HashRange::ALL);
            match is_ascending {
                true => stats.sort_by_key(|(slot, keys)| (*keys, *slot)),
                false => stats.sort_by_key(|(slot, keys)| (Reverse(*keys), *slot)),
            }
            stats.truncate(limit);
            stats
        }
        _ => return Err(Refusal::Syntax.into()),
    };
    call.reply.array(stats.len());
    for (slot, keys) in stats {
        call.reply.array(2);
        call.reply.integer(i64::from(slot.0));
        call.reply.map(1);
        call.reply.bulk(b"key-count");
        call.reply.integer(keys as i64);
    }
    Ok(())
}

/// Parses the number of slots to return, and the direction: true for ascending.
fn parse_order(mut options: &[&[u8]]) -> Result<(usize, bool), NotExecuted> {
    const TWICE: Refusal =
        Refusal::because("ERR Multiple filters of the same type are disallowed.");
    let (mut limit, mut is_ascending) = (None, None);
    loop {
        options = match options {
            [] => {
                let limit = limit.unwrap_or(usize::from(SLOT_COUNT));
                return Ok((limit, is_ascending.unwrap_or(false)));
            }
            [word, ..] if limit.is_some() && uppercase_is(word, b"LIMIT") => {
                return Err(TWICE.into());
            }
            [word, count, rest @ ..] if uppercase_is(word, b"LIMIT") => {
                let count = parse_integer(count).and_then(|count| usize::try_from(count).ok());
                let allowed = 1..=usize::from(SLOT_COUNT);
                let count = count.filter(|count| allowed.contains(count)).ok_or_else(|| {
                    refused(
                        "ERR Limit has to lie in between 1 and 16384 (maximum number of slots).",
                    )
                })?;
                limit = Some(count);
                rest
            }
            [word, rest @ ..] if uppercase_is(word, b"ASC") || uppercase_is(word, b"DESC") => {
                if is_ascending.replace(uppercase_is(word, b"ASC")).is_some() {
                    return Err(TWICE.into());
                }
                rest
            }
            _ => return Err(Refusal::Syntax.into()),
        };
    }
}

/// Returns the counts of all slots of a range that this server owns, in slot order.
fn stats_of(call: &Call<'_>, range: HashRange) -> Vec<Stat> {
    let mut keys: BTreeMap<Slot, u64> = BTreeMap::new();
    let counts = call.backend.record_counts(range).into_iter();
    for (_, slot, records) in counts.filter(|(table, ..)| table.is_database()) {
        *keys.entry(slot).or_default() += u64::from(records);
    }
    let node = call.backend.node();
    let (first, last) = range.slots();
    slot_ranges(&node.map())
        .into_iter()
        .filter(|(_, _, owner)| *owner == node.me())
        .flat_map(|(from, to, _)| from.0.max(first.0)..=to.0.min(last.0))
        .map(|slot| (Slot(slot), keys.get(&Slot(slot)).copied().unwrap_or(0)))
        .collect()
}
