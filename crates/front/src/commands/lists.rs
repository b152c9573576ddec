//! Commands on lists.

use super::command::flag::{DENYOOM, FAST, READONLY, WRITE};
use super::command::{Family, Keys, ONE, TWO, command};
use super::numbers::parse_integer_within;
use super::sampling::parse_count;
use super::{Call, Done, NotExecuted, Refusal, parse_integer, uppercase_is};
use crate::core::data::{Changes, Key, Need, Record};
use planted::Bug;
use resp::ReplyWriter;
use std::ops::Range;
use types::limits::VALUE_BYTES_MAX;
use types::{TypedValue, ValueType};
use values::{ListEnd, ListPart, PackedList, SplitList, encode_list, fits_listpack, list_bytes};

pub(super) static FAMILY: Family = Family {
    group: "list",
    category: Some("@list"),
    commands: &[
        command("lindex", 3, READONLY, ONE, lindex),
        command("linsert", 5, WRITE | DENYOOM, ONE, linsert),
        command("llen", 2, READONLY | FAST, ONE, llen),
        command("lmove", 5, WRITE | DENYOOM, TWO, lmove),
        command("lmpop", -4, WRITE, Keys::Counted, lmpop),
        command("lpop", -2, WRITE | FAST, ONE, |call| pop(call, ListEnd::Left)),
        command("lpos", -3, READONLY, ONE, lpos),
        command("lpush", -3, WRITE | DENYOOM | FAST, ONE, |call| push(call, ListEnd::Left)),
        command("lpushx", -3, WRITE | DENYOOM | FAST, ONE, |call| push_to(call, ListEnd::Left)),
        command("lrange", 4, READONLY, ONE, lrange),
        command("lrem", 4, WRITE, ONE, lrem),
        command("lset", 4, WRITE | DENYOOM, ONE, lset),
        command("ltrim", 4, WRITE, ONE, ltrim),
        command("rpop", -2, WRITE | FAST, ONE, |call| pop(call, ListEnd::Right)),
        command("rpoplpush", 3, WRITE | DENYOOM, TWO, rpoplpush),
        command("rpush", -3, WRITE | DENYOOM | FAST, ONE, |call| push(call, ListEnd::Right)),
        command("rpushx", -3, WRITE | DENYOOM | FAST, ONE, |call| push_to(call, ListEnd::Right)),
    ],
};

/// Returns the list of a record. A missing record is a list without items.
#[inline]
pub(super) fn list(record: Option<Record<'_>>) -> Result<PackedList<'_>, Refusal> {
    let Some(record) = record else { return Ok(PackedList::EMPTY) };
    if record.value.value_type != ValueType::List {
        return Err(Refusal::WrongType);
    }
    Ok(PackedList::parse(record.value)?)
}

/// Writes a list of these parts as the value of the key at this position, whose record was `old`.
/// Removes the key if there are no items. The record keeps its expiry.
#[inline]
fn write<'p>(
    parts: impl Iterator<Item = ListPart<'p>> + Clone,
    old: Option<Record<'_>>,
    changes: &mut Changes<'_>,
    at: usize,
) -> Result<(), Refusal> {
    let bytes = list_bytes(parts.clone());
    if bytes >= VALUE_BYTES_MAX {
        return Err(Refusal::TooLarge);
    }
    if parts.clone().all(|part| part.count() == 0) {
        changes.delete(at);
        return Ok(());
    }
    let expiry = old.and_then(|record| record.expiry);
    changes.put_built(at, ValueType::List, expiry, |out| encode_list(parts, out));
    Ok(())
}

/// Returns the name of Redis for the encoding of a list, if it had been built there by additions to
/// its right end.
pub(super) fn encoding(value: TypedValue<'_>) -> Result<&'static [u8], Refusal> {
    Ok(match fits_listpack(PackedList::parse(value)?.items())? {
        true => b"listpack",
        false => b"quicklist",
    })
}

/// `LPUSH key item [item ...]` and `RPUSH`.
fn push(call: &mut Call<'_>, end: ListEnd) -> Done {
    push_items(call, end, false)
}

/// `LPUSHX key item [item ...]` and `RPUSHX`: only to a list that exists.
fn push_to(call: &mut Call<'_>, end: ListEnd) -> Done {
    push_items(call, end, true)
}

fn push_items(call: &mut Call<'_>, end: ListEnd, must_exist: bool) -> Done {
    let items = &call.args[2..];
    let length = call.update(|record, changes| {
        let old = list(record)?;
        if record.is_none() && must_exist {
            return Ok(0);
        }
        let (rest, items) = (std::iter::once(ListPart::Items(old)), items.iter());
        let items = items.map(|item| ListPart::Item(item));
        let end = match planted::is(Bug::PushedAtOtherEnd) && old.count() == 2 {
            true => ListEnd::Left,
            false => end,
        };
        match end {
            ListEnd::Left => write(items.rev().chain(rest), record, changes, 0)?,
            ListEnd::Right => write(rest.chain(items), record, changes, 0)?,
        }
        Ok::<usize, Refusal>(old.count() + call.args.len() - 2)
    })??;
    call.integer(length as i64)
}

/// `LPOP key [count]` and `RPOP`.
fn pop(call: &mut Call<'_>, end: ListEnd) -> Done {
    let count = match &call.args[2..] {
        [] => None,
        [count] => Some(parse_count(count)?),
        _ => return Err(Refusal::Arity.into()),
    };
    let (key, table) = (call.key(1), call.session.status.table);
    let reply = &mut call.reply;
    call.backend.update(table, &[key], Need::Records, |records, changes| {
        let record = records[0];
        match (record, count) {
            (None, None) => reply.null(),
            (None, Some(_)) => reply.null_array(),
            (Some(_), None) => {
                let mut rest = list(record)?;
                reply.bulk_or_null(rest.pop(end)?);
                if planted::is(Bug::PoppedItemKept) {
                    return Ok(());
                }
                write([ListPart::Items(rest)].into_iter(), record, changes, 0)?;
            }
            (Some(_), Some(count)) => {
                reply.array(pop_count(record, count)?);
                pop_items(record, end, count, reply, changes, 0)?;
            }
        }
        Ok::<(), Refusal>(())
    })??;
    Ok(())
}

/// Returns how many items of a record there are, up to `count`.
fn pop_count(record: Option<Record<'_>>, count: u64) -> Result<usize, Refusal> {
    let items = list(record)?.count();
    Ok(usize::try_from(count).map_or(items, |count| count.min(items)))
}

/// Removes up to `count` items of a record at an end, and replies with each of them.
pub(super) fn pop_items(
    record: Option<Record<'_>>,
    end: ListEnd,
    count: u64,
    reply: &mut ReplyWriter<'_>,
    changes: &mut Changes<'_>,
    at: usize,
) -> Result<(), Refusal> {
    let mut rest = list(record)?;
    let count = pop_count(record, count)?;
    for _ in 0..count {
        reply.bulk_or_null(rest.pop(end)?);
    }
    match count {
        0 => Ok(()),
        _ => write([ListPart::Items(rest)].into_iter(), record, changes, at),
    }
}

/// `LLEN key`.
fn llen(call: &mut Call<'_>) -> Done {
    let count = call.read(|record| Ok::<_, Refusal>(list(record)?.count()))??;
    call.integer(count as i64)
}

/// Returns the position of an item that an argument names: a negative one counts from the end.
/// `None` if it is outside.
fn position(argument: &[u8], list: PackedList<'_>) -> Result<Option<usize>, Refusal> {
    let at = parse_integer(argument).ok_or(Refusal::NotAnInteger)?;
    let at = if at < 0 { at.saturating_add(list.count() as i64) } else { at };
    Ok(usize::try_from(at).ok().filter(|at| *at < list.count()))
}

/// `LINDEX key position`.
fn lindex(call: &mut Call<'_>) -> Done {
    let at = call.args[2];
    call.reply_with(1, |reply, record| {
        let list = list(record)?;
        let at = if record.is_some() { position(at, list)? } else { None };
        let split = at.map(|at| list.split(at)).transpose()?.flatten();
        reply.bulk_or_null(split.map(|split| split.item));
        Ok(())
    })
}

/// Returns the range between two inclusive positions: negative positions count from the end, and
/// positions outside are clamped.
fn range(first: i64, last: i64, length: usize) -> Range<usize> {
    let length = i64::try_from(length).unwrap_or(i64::MAX);
    let from_end = |at: i64| if at < 0 { at.saturating_add(length) } else { at };
    let (first, last) = (from_end(first).max(0), from_end(last).min(length - 1));
    if first > last { 0..0 } else { first as usize..last as usize + 1 }
}

/// Returns the items at these positions.
fn slice(list: PackedList<'_>, range: Range<usize>) -> Result<PackedList<'_>, Refusal> {
    let [_, rest] = list.split_at(range.start)?;
    let [items, _] = rest.split_at(range.len())?;
    Ok(items)
}

/// `LRANGE key first last`.
fn lrange(call: &mut Call<'_>) -> Done {
    let first = parse_integer(call.args[2]).ok_or(Refusal::NotAnInteger)?;
    let last = parse_integer(call.args[3]).ok_or(Refusal::NotAnInteger)?;
    call.reply_with(1, |reply, record| {
        let list = list(record)?;
        let items = slice(list, range(first, last, list.count()))?;
        reply.array(items.count());
        for item in items.items() {
            reply.bulk(item?);
        }
        Ok(())
    })
}

/// `LTRIM key first last`.
fn ltrim(call: &mut Call<'_>) -> Done {
    let first = parse_integer(call.args[2]).ok_or(Refusal::NotAnInteger)?;
    let last = parse_integer(call.args[3]).ok_or(Refusal::NotAnInteger)?;
    call.update(|record, changes| {
        let list = list(record)?;
        let kept = slice(list, range(first, last, list.count()))?;
        match kept.count() == list.count() {
            true => Ok(()),
            false => write([ListPart::Items(kept)].into_iter(), record, changes, 0),
        }
    })??;
    call.ok()
}

/// `LSET key position item`.
fn lset(call: &mut Call<'_>) -> Done {
    let (at, item) = (call.args[2], call.args[3]);
    call.update(|record, changes| {
        let list = list(record)?;
        if record.is_none() {
            return Err(NO_SUCH_KEY);
        }
        let split = position(at, list)?.map(|at| list.split(at)).transpose()?.flatten();
        let SplitList { before, after, .. } = split.ok_or(OUT_OF_RANGE)?;
        let parts = [ListPart::Items(before), ListPart::Item(item), ListPart::Items(after)];
        write(parts.into_iter(), record, changes, 0)
    })??;
    call.ok()
}

const NO_SUCH_KEY: Refusal = Refusal::because("ERR no such key");
const OUT_OF_RANGE: Refusal = Refusal::because("ERR index out of range");

/// `LINSERT key BEFORE|AFTER pivot item`. Replies with the new length, -1 without pivot, and 0
/// without list.
fn linsert(call: &mut Call<'_>) -> Done {
    let (is_after, pivot, item) = match (call.args[2], call.args[3], call.args[4]) {
        (word, pivot, item) if uppercase_is(word, b"AFTER") => (true, pivot, item),
        (word, pivot, item) if uppercase_is(word, b"BEFORE") => (false, pivot, item),
        _ => return Err(Refusal::Syntax.into()),
    };
    let length = call.update(|record, changes| {
        let list = list(record)?;
        let Some(at) = find(list, pivot)? else { return Ok(record.map_or(0, |_| -1)) };
        let [before, after] = list.split_at(at + usize::from(is_after))?;
        let parts = [ListPart::Items(before), ListPart::Item(item), ListPart::Items(after)];
        write(parts.into_iter(), record, changes, 0)?;
        Ok::<i64, Refusal>(list.count() as i64 + 1)
    })??;
    call.integer(length)
}

/// Returns the position of the first item that is equal to this one.
fn find(list: PackedList<'_>, wanted: &[u8]) -> Result<Option<usize>, Refusal> {
    for (at, item) in list.items().enumerate() {
        if item? == wanted {
            return Ok(Some(at));
        }
    }
    Ok(None)
}

/// `LREM key count item`: removes up to `count` items that are equal to this one, all if it is 0,
/// and from the right end if it is negative.
fn lrem(call: &mut Call<'_>) -> Done {
    let count = parse_integer_within(call.args[2], -i64::MAX..=i64::MAX)?;
    let item = call.args[3];
    let end = if count < 0 { ListEnd::Right } else { ListEnd::Left };
    let count_max = if count == 0 { u64::MAX } else { count.unsigned_abs() };
    let removed = call.update(|record, changes| {
        let list = list(record)?;
        let kept = list.without(item, end, count_max)?;
        let left: usize = kept.iter().map(|run| run.count()).sum();
        if left < list.count() {
            write(kept.iter().map(|run| ListPart::Items(*run)), record, changes, 0)?;
        }
        Ok::<usize, Refusal>(list.count() - left)
    })??;
    call.integer(removed as i64)
}

/// The options of `LPOS`.
#[derive(Debug)]
struct Search {
    end: ListEnd,
    /// Number of the first match that counts, from 1 on.
    rank: u64,
    /// Most matches, 0 for all; `None` if the reply is one position.
    count: Option<u64>,
    /// Most items that are compared, 0 for all.
    compared_max: u64,
}

impl Search {
    fn parse(words: &[&[u8]]) -> Result<Search, Refusal> {
        let mut search = Search { end: ListEnd::Left, rank: 1, count: None, compared_max: 0 };
        let (pairs, odd) = words.as_chunks::<2>();
        for [word, value] in pairs {
            let number = |refusal| {
                let number = parse_integer(value).and_then(|number| u64::try_from(number).ok());
                number.ok_or(Refusal::because(refusal))
            };
            if uppercase_is(word, b"RANK") {
                let rank = parse_integer_within(value, -i64::MAX..=i64::MAX)?;
                search.end = if rank < 0 { ListEnd::Right } else { ListEnd::Left };
                search.rank = rank.unsigned_abs();
                if rank == 0 {
                    return Err(NO_RANK);
                }
            } else if uppercase_is(word, b"COUNT") {
                search.count = Some(number("ERR COUNT can't be negative")?);
            } else if uppercase_is(word, b"MAXLEN") {
                search.compared_max = number("ERR MAXLEN can't be negative")?;
            } else {
                return Err(Refusal::Syntax);
            }
        }
        if odd.is_empty() { Ok(search) } else { Err(Refusal::Syntax) }
    }

    /// Returns the positions of the matching items, in the order of the search.
    fn find(&self, list: PackedList<'_>, wanted: &[u8]) -> Result<Vec<usize>, Refusal> {
        let or_all = |number: u64| if number == 0 { u64::MAX } else { number };
        let count_max = or_all(self.count.unwrap_or(1));
        let compared_max = usize::try_from(or_all(self.compared_max)).unwrap_or(usize::MAX);
        let (mut found, mut rank) = (Vec::new(), 0);
        for (passed, item) in list.items_from(self.end).take(compared_max).enumerate() {
            if item? != wanted {
                continue;
            }
            rank += 1;
            if rank >= self.rank {
                found.push(match self.end {
                    ListEnd::Left => passed,
                    ListEnd::Right => list.count() - 1 - passed,
                });
            }
            if found.len() as u64 >= count_max {
                break;
            }
        }
        Ok(found)
    }
}

const NO_RANK: Refusal = Refusal::because(
    "ERR RANK can't be zero: use 1 to start from the first match, 2 from the second ... or use \
     negative to start from the end of the list",
);

/// `LPOS key item [RANK rank] [COUNT count] [MAXLEN items]`.
fn lpos(call: &mut Call<'_>) -> Done {
    let search = Search::parse(&call.args[3..])?;
    let wanted = call.args[2];
    call.reply_with(1, |reply, record| {
        let found = search.find(list(record)?, wanted)?;
        match (search.count, found.first()) {
            (Some(_), _) => {
                reply.array(found.len());
                found.iter().for_each(|at| reply.integer(*at as i64));
            }
            (None, Some(at)) => reply.integer(*at as i64),
            (None, None) => reply.null(),
        }
        Ok(())
    })
}

/// Parses `LEFT` or `RIGHT`.
pub(super) fn parse_end(word: &[u8]) -> Result<ListEnd, Refusal> {
    if uppercase_is(word, b"LEFT") {
        Ok(ListEnd::Left)
    } else if uppercase_is(word, b"RIGHT") {
        Ok(ListEnd::Right)
    } else {
        Err(Refusal::Syntax)
    }
}

/// A move of an item from an end of one list to an end of another one, or of the same.
#[derive(Clone, Copy, Debug)]
pub(super) struct ItemMove<'a> {
    pub(super) keys: [Key<'a>; 2],
    pub(super) ends: [ListEnd; 2],
    /// False if another request has waited for the item for longer.
    pub(super) may_take: bool,
}

impl ItemMove<'_> {
    /// Moves the item, and replies with it. Returns false, without a reply, if there is none.
    pub(super) fn run(self, call: &mut Call<'_>) -> Result<bool, NotExecuted> {
        let ItemMove { keys, ends, may_take } = self;
        let table = call.session.status.table;
        let reply = &mut call.reply;
        Ok(call.backend.update(table, &keys, Need::Records, |records, changes| {
            if records[0].is_none() {
                return Ok(false);
            }
            let mut source = list(records[0])?;
            if !may_take {
                return Ok(false);
            }
            let target = list(records[1])?;
            let Some(item) = source.pop(ends[0])? else { return Ok(false) };
            reply.bulk(item);
            let (item, rest) = (ListPart::Item(item), ListPart::Items(source));
            let target = if keys[0] == keys[1] { rest } else { ListPart::Items(target) };
            if keys[0] != keys[1] {
                write([rest].into_iter(), records[0], changes, 0)?;
            }
            let parts = if ends[1] == ListEnd::Left { [item, target] } else { [target, item] };
            write(parts.into_iter(), records[1], changes, 1)?;
            Ok::<bool, Refusal>(true)
        })??)
    }
}

/// `LMOVE source target LEFT|RIGHT LEFT|RIGHT`.
fn lmove(call: &mut Call<'_>) -> Done {
    let ends = [parse_end(call.args[3])?, parse_end(call.args[4])?];
    move_item(call, ends)
}

/// `RPOPLPUSH source target`.
fn rpoplpush(call: &mut Call<'_>) -> Done {
    move_item(call, [ListEnd::Right, ListEnd::Left])
}

fn move_item(call: &mut Call<'_>, ends: [ListEnd; 2]) -> Done {
    let keys = [call.key(1), call.key(2)];
    if !(ItemMove { keys, ends, may_take: true }).run(call)? {
        call.reply.null();
    }
    Ok(())
}

/// The arguments of `LMPOP` from the number of keys on.
#[derive(Debug)]
pub(super) struct PopOfSeveral {
    /// Number of the keys, which are behind their number.
    pub(super) keys: usize,
    end: ListEnd,
    count: u64,
}

impl PopOfSeveral {
    /// Parses `numkeys key [key ...] LEFT|RIGHT [COUNT count]`.
    pub(super) fn parse(words: &[&[u8]]) -> Result<PopOfSeveral, Refusal> {
        let positive = |word, refusal| {
            let number = parse_integer(word).and_then(|number| u64::try_from(number).ok());
            number.filter(|number| *number > 0).ok_or(Refusal::because(refusal))
        };
        let number = words.first().ok_or(Refusal::Syntax)?;
        let keys = positive(number, "ERR numkeys should be greater than 0")?;
        let keys = usize::try_from(keys).unwrap_or(usize::MAX);
        let rest = words.get(keys.saturating_add(1)..).unwrap_or(&[]);
        let (end, options) = rest.split_first().ok_or(Refusal::Syntax)?;
        let end = parse_end(end)?;
        let count = match options {
            [] => 1,
            [word, count, rest @ ..] if uppercase_is(word, b"COUNT") => {
                let count = positive(count, "ERR count should be greater than 0")?;
                if !rest.is_empty() {
                    return Err(Refusal::Syntax);
                }
                count
            }
            _ => return Err(Refusal::Syntax),
        };
        Ok(PopOfSeveral { keys, end, count })
    }

    /// Takes items from the first of these keys that is open and has some. Returns false, without a
    /// reply, if there is none.
    pub(super) fn run(
        &self,
        call: &mut Call<'_>,
        keys: &[Key<'_>],
        open: &[bool],
    ) -> Result<bool, NotExecuted> {
        let table = call.session.status.table;
        let reply = &mut call.reply;
        Ok(call.backend.update(table, keys, Need::Records, |records, changes| {
            let at = first_with_items(records, open)?;
            if let Some(at) = at {
                reply.array(2);
                reply.bulk(keys[at].bytes);
                reply.array(pop_count(records[at], self.count)?);
                pop_items(records[at], self.end, self.count, reply, changes, at)?;
            }
            Ok::<bool, Refusal>(at.is_some())
        })??)
    }
}

/// Returns the position of the first record that is open and has items.
pub(super) fn first_with_items(
    records: &[Option<Record<'_>>],
    open: &[bool],
) -> Result<Option<usize>, Refusal> {
    assert_eq!(records.len(), open.len(), "each record is open or not");
    for (at, record) in records.iter().enumerate() {
        if list(*record)?.count() > 0 && open[at] {
            return Ok(Some(at));
        }
    }
    Ok(None)
}

/// `LMPOP numkeys key [key ...] LEFT|RIGHT [COUNT count]`.
fn lmpop(call: &mut Call<'_>) -> Done {
    let several = PopOfSeveral::parse(&call.args[1..])?;
    let keys = call.keys(2..2 + several.keys);
    if !several.run(call, &keys, &vec![true; keys.len()])? {
        call.reply.null_array();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_clamped_as_in_redis() {
        for (first, last, length, expected) in [
            (0, -1, 5, 0..5),
            (1, 3, 5, 1..4),
            (-3, -2, 5, 2..4),
            (-100, 100, 5, 0..5),
            (0, -100, 5, 0..0),
            (-1, -2, 5, 0..0),
            (5, 9, 5, 0..0),
            (0, -1, 0, 0..0),
            (i64::MIN, i64::MAX, 5, 0..5),
            (i64::MAX, i64::MIN, 5, 0..0),
        ] {
            assert_eq!(range(first, last, length), expected, "{first} {last} {length}");
        }
    }
}
