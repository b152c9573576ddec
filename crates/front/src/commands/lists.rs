//! Commands on lists.

use super::command::flag::{DENYOOM, FAST, READONLY, WRITE};
use super::command::{Family, Keys, ONE, TWO, command};
use super::numbers::parse_integer_within;
use super::pop_of_several::PopOfSeveral;
use super::sampling::parse_count;
use super::{Call, Done, NotExecuted, Refusal, parse_integer, uppercase_is};
use crate::core::data::{Changes, Key, Need, Record, TableKey};
use crate::core::lists::{ExpectedList, ListChange, ListStop, list_form, root_of};
use planted::Bug;
use resp::ReplyWriter;
use std::ops::Range;
use types::{TypedValue, ValueType};
use values::{
    Damaged, LISTPACK_ITEM_BYTES_MAX, ListEnd, ListForm, ListGap, ListPart, ListRoot, PackedList,
    PagedList, SplitList, ValueLayout, encode_list, fits_listpack,
};

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

/// Returns the list of a record, if it is packed; `None`: it has pages. A missing record is a list
/// without items.
#[inline]
fn packed(record: Option<Record<'_>>) -> Result<Option<PackedList<'_>>, Refusal> {
    match list_form(record)? {
        ListForm::Packed(list) => Ok(Some(list)),
        ListForm::Split(_) => Ok(None),
    }
}

/// Writes a list of these parts as the value of the key at this position, whose record was `old`.
/// Removes the key if there are no items. The record keeps its expiry. Returns false, without
/// effect, if the list must be divided into pages.
#[inline]
fn write<'p>(
    parts: impl Iterator<Item = ListPart<'p>> + Clone,
    old: Option<Record<'_>>,
    layout: &ValueLayout,
    changes: &mut Changes<'_>,
    at: usize,
) -> bool {
    if !may_be_packed(parts.clone(), layout) {
        return false;
    }
    if parts.clone().all(|part| part.count() == 0) {
        changes.delete(at);
    } else {
        let expiry = old.and_then(|record| record.expiry);
        changes.put_built(at, ValueType::List, expiry, |out| encode_list(parts, out));
    }
    true
}

/// Returns whether a list of these parts may be in one record.
#[inline]
fn may_be_packed<'p>(
    parts: impl Iterator<Item = ListPart<'p>> + Clone,
    layout: &ValueLayout,
) -> bool {
    let bytes: usize = parts.clone().map(|part| part.bytes()).sum();
    bytes <= layout.packed_bytes_max || parts.map(|part| part.count()).sum::<usize>() <= 1
}

impl Call<'_> {
    /// Passes the list under the key of argument `position`, with those of its pages that are needed,
    /// to `f`.
    fn read_list<T>(
        &mut self,
        position: usize,
        f: impl FnMut(&PagedList<'_>) -> Result<T, ListStop>,
    ) -> Result<T, NotExecuted> {
        let (key, table) = (self.key(position), self.session.status.table);
        self.backend.read_list(table, key, f)
    }

    /// Changes the list under the key of argument 1, which has pages or gets some, with new items.
    fn update_list<T>(
        &mut self,
        new: &[&[u8]],
        f: impl for<'x> FnMut(&mut PagedList<'x>, PackedList<'x>) -> Result<T, ListStop>,
    ) -> Result<T, NotExecuted> {
        self.update_expected_list(new, ExpectedList::Root, f)
    }

    /// The same, with the pages in the first attempt that the command probably needs.
    fn update_expected_list<T>(
        &mut self,
        new: &[&[u8]],
        expected: ExpectedList,
        mut f: impl for<'x> FnMut(&mut PagedList<'x>, PackedList<'x>) -> Result<T, ListStop>,
    ) -> Result<T, NotExecuted> {
        let key = TableKey { table: self.session.status.table, key: self.key(1) };
        let new = encoded(new.iter());
        let new = packed_items(&new)?;
        let lists = [ListChange::of(key)];
        self.backend.update_expected_lists(&lists, vec![expected], new, |lists, _| {
            let new = lists.new;
            f(lists.get(0)?, new)
        })
    }
}

/// Returns the packed list of these items.
fn encoded<'i>(items: impl Iterator<Item = &'i &'i [u8]> + Clone) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode_list(items.map(|item| ListPart::Item(item)), &mut bytes);
    bytes
}

fn packed_items(bytes: &[u8]) -> Result<PackedList<'_>, Refusal> {
    Ok(PackedList::parse(TypedValue { value_type: ValueType::List, bytes })?)
}

/// Returns the name of Redis for the encoding of a list, if it had been built there by additions to
/// its right end.
pub(super) fn encoding(call: &mut Call<'_>) -> Result<&'static [u8], NotExecuted> {
    let is_compact = call.read_list(2, |list| match list.byte_count() {
        ..=LISTPACK_ITEM_BYTES_MAX => Ok(fits_listpack(list.slice(0..list.count())?.items())?),
        _ => Ok(false),
    });
    Ok(if is_compact? { b"listpack" } else { b"quicklist" })
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
    let layout = call.backend.layout();
    let items = &call.args[2..];
    let mut expected = ExpectedList::Root;
    let pushed = call.update(|record, changes| {
        if record.is_none() && must_exist {
            return Ok(Some(0));
        }
        let parts = items.iter().map(|item| ListPart::Item(item));
        let added: usize = parts.clone().map(|part| part.bytes()).sum();
        let form = list_form(record)?;
        let length = form.count() + items.len() as u64;
        let end = match planted::is(Bug::PushedAtOtherEnd) && form.count() == 2 {
            true => ListEnd::Left,
            false => end,
        };
        let is_written = match form {
            ListForm::Packed(old) => {
                let rest = std::iter::once(ListPart::Items(old));
                match end {
                    ListEnd::Left => {
                        write(parts.clone().rev().chain(rest), record, &layout, changes, 0)
                    }
                    ListEnd::Right => write(rest.chain(parts.clone()), record, &layout, changes, 0),
                }
            }
            ListForm::Split(root) => {
                let is_short = root.end(end).byte_count() + added <= layout.list_end_bytes();
                if is_short {
                    let expiry = record.and_then(|record| record.expiry);
                    changes.put_built(0, ValueType::List, expiry, |out| match end {
                        ListEnd::Left => root.encode_pushed(end, parts.clone().rev(), out),
                        ListEnd::Right => root.encode_pushed(end, parts.clone(), out),
                    });
                } else {
                    expected = ExpectedList::of_push(&root, end);
                }
                is_short
            }
        };
        Ok::<_, Refusal>(is_written.then_some(length))
    })??;
    let length = match (pushed, end) {
        (Some(length), _) => length,
        (None, ListEnd::Left) => {
            let reversed: Vec<&[u8]> = items.iter().rev().copied().collect();
            push_beyond(call, &reversed, end, must_exist, expected)?
        }
        (None, ListEnd::Right) => push_beyond(call, items, end, must_exist, expected)?,
    };
    call.integer(length as i64)
}

/// Adds items, from left to right, to a list that has pages or gets some.
fn push_beyond(
    call: &mut Call<'_>,
    items: &[&[u8]],
    end: ListEnd,
    must_exist: bool,
    expected: ExpectedList,
) -> Result<u64, NotExecuted> {
    call.update_expected_list(items, expected, |list, new| {
        if list.count() > 0 || !must_exist {
            list.push(end, new);
        }
        Ok(list.count())
    })
}

/// `LPOP key [count]` and `RPOP`.
fn pop(call: &mut Call<'_>, end: ListEnd) -> Done {
    let count = match &call.args[2..] {
        [] => None,
        [count] => Some(parse_count(count)?),
        _ => return Err(Refusal::Arity.into()),
    };
    let (key, table) = (call.key(1), call.session.status.table);
    let pop = ItemPop { end, count: count.unwrap_or(1) };
    let header = |reply: &mut ReplyWriter<'_>, items| {
        if count.is_some() {
            reply.array(items);
        }
    };
    let reply = &mut call.reply;
    let mut expected = ExpectedList::Root;
    let is_done = call.backend.update(table, &[key], Need::Records, |records, changes| {
        match (records[0], count) {
            (None, None) => reply.null(),
            (None, Some(_)) => reply.null_array(),
            (Some(_), _) => {
                let is_done = pop.run(records[0], reply, header, changes, 0)?;
                if let (false, Some(root)) = (is_done, root_of(records[0])) {
                    expected = ExpectedList::of_pop(&root, end, pop.count.min(root.count));
                }
                return Ok(is_done);
            }
        }
        Ok::<bool, Refusal>(true)
    })??;
    if is_done {
        return Ok(());
    }
    match (pop.run_beyond(call, &[key], &[true], vec![expected])?, count) {
        (Some(popped), _) => popped.reply(&mut call.reply, end, header)?,
        (None, None) => call.reply.null(),
        (None, Some(_)) => call.reply.null_array(),
    }
    Ok(())
}

/// The removal of items at an end of a list.
#[derive(Clone, Copy, Debug)]
pub(super) struct ItemPop {
    pub(super) end: ListEnd,
    /// Most items.
    pub(super) count: u64,
}

impl ItemPop {
    /// Removes items of a list, and replies with each of them after `header`, which gets their
    /// number. Returns false, without effect, if it needs pages.
    pub(super) fn run(
        self,
        record: Option<Record<'_>>,
        reply: &mut ReplyWriter<'_>,
        header: impl FnOnce(&mut ReplyWriter<'_>, usize),
        changes: &mut Changes<'_>,
        at: usize,
    ) -> Result<bool, Refusal> {
        let form = list_form(record)?;
        let count = self.count.min(form.count()) as usize;
        let mut rest = match form {
            ListForm::Packed(list) => list,
            ListForm::Split(root) => root.end(self.end),
        };
        let is_in_root = |root: &ListRoot<'_>| {
            count <= root.end(self.end).count() && (count as u64) < root.count
        };
        if let ListForm::Split(root) = &form
            && !is_in_root(root)
        {
            return Ok(false);
        }
        header(reply, count);
        for _ in 0..count {
            reply.bulk_or_null(rest.pop(self.end)?);
        }
        if planted::is(Bug::PoppedItemKept) {
            return Ok(true);
        }
        let expiry = record.and_then(|record| record.expiry);
        match form {
            _ if count == 0 => {}
            ListForm::Packed(_) if rest.count() == 0 => changes.delete(at),
            ListForm::Packed(_) => changes.put_built(at, ValueType::List, expiry, |out| {
                encode_list([ListPart::Items(rest)].into_iter(), out);
            }),
            ListForm::Split(root) => {
                let root = root.with_end(self.end, rest).ok_or(Damaged)?;
                changes.put_built(at, ValueType::List, expiry, |out| root.encode(out));
            }
        }
        Ok(true)
    }

    /// Removes items of the first of these lists that is open and has some, and replies with each of
    /// them after `header`, which gets the key and the number of items. Returns false, without a
    /// reply, if there is none.
    pub(super) fn run_on_first(
        self,
        call: &mut Call<'_>,
        keys: &[Key<'_>],
        open: &[bool],
        header: fn(&mut ReplyWriter<'_>, &[u8], usize),
    ) -> Result<bool, NotExecuted> {
        let table = call.session.status.table;
        let reply = &mut call.reply;
        let popped = call.backend.update(table, keys, Need::Records, |records, changes| {
            let Some(at) = first_with_items(records, open)? else { return Ok(Some(false)) };
            let of_key = |reply: &mut ReplyWriter<'_>, items| header(reply, keys[at].bytes, items);
            let is_done = self.run(records[at], reply, of_key, changes, at)?;
            Ok::<_, Refusal>(is_done.then_some(true))
        })??;
        if let Some(popped) = popped {
            return Ok(popped);
        }
        let expected = vec![ExpectedList::Root; keys.len()];
        let Some(popped) = self.run_beyond(call, keys, open, expected)? else { return Ok(false) };
        let key = keys[popped.at].bytes;
        popped.reply(&mut call.reply, self.end, |reply, items| header(reply, key, items))?;
        Ok(true)
    }

    /// Removes items of the first of these lists that is open and has some, which may have pages.
    pub(super) fn run_beyond(
        self,
        call: &mut Call<'_>,
        keys: &[Key<'_>],
        open: &[bool],
        expected: Vec<ExpectedList>,
    ) -> Result<Option<PoppedItems>, NotExecuted> {
        let ItemPop { end, count } = self;
        let table = call.session.status.table;
        let keys = keys.iter().map(|&key| TableKey { table, key });
        let lists: Vec<ListChange<'_>> = keys.map(ListChange::of).collect();
        call.backend.update_expected_lists(&lists, expected, PackedList::EMPTY, |lists, _| {
            for (at, open) in open.iter().enumerate() {
                if lists.get(at)?.count() > 0 && *open {
                    let mut items = Vec::new();
                    lists.on(at, |list| list.pop(end, count))?.encode(&mut items);
                    return Ok(Some(PoppedItems { at, items }));
                }
            }
            Ok(None)
        })
    }
}

/// Items that were removed from a list.
pub(super) struct PoppedItems {
    /// Position of the key.
    pub(super) at: usize,
    /// The items as a packed list, from left to right.
    items: Vec<u8>,
}

impl PoppedItems {
    /// Replies with the items, in the order in which they were removed.
    pub(super) fn reply(
        &self,
        reply: &mut ReplyWriter<'_>,
        end: ListEnd,
        header: impl FnOnce(&mut ReplyWriter<'_>, usize),
    ) -> Result<(), Refusal> {
        let items = packed_items(&self.items)?;
        header(reply, items.count());
        for item in items.items_from(end) {
            reply.bulk(item?);
        }
        Ok(())
    }
}

/// `LLEN key`.
fn llen(call: &mut Call<'_>) -> Done {
    let count = call.read(|record| Ok::<_, Refusal>(list_form(record)?.count()))??;
    call.integer(count as i64)
}

/// Returns the position of an item that an argument names in a list of so many: a negative one
/// counts from the end. `None` if it is outside.
fn position(argument: &[u8], count: u64) -> Result<Option<u64>, Refusal> {
    let at = parse_integer(argument).ok_or(Refusal::NotAnInteger)?;
    let at = if at < 0 { at.saturating_add(count as i64) } else { at };
    Ok(u64::try_from(at).ok().filter(|at| *at < count))
}

/// `LINDEX key position`.
fn lindex(call: &mut Call<'_>) -> Done {
    let (argument, key, table) = (call.args[2], call.key(1), call.session.status.table);
    let reply = &mut call.reply;
    call.backend.read_list(table, key, |list| {
        let exists = list.count() > 0;
        let at = if exists { position(argument, list.count())? } else { None };
        let item = at.map(|at| list.item(at)).transpose()?.flatten();
        reply.bulk_or_null(item);
        Ok(())
    })
}

/// Returns the range between two inclusive positions: negative positions count from the end, and
/// positions outside are clamped.
fn range(first: i64, last: i64, length: u64) -> Range<u64> {
    let length = i64::try_from(length).unwrap_or(i64::MAX);
    let from_end = |at: i64| if at < 0 { at.saturating_add(length) } else { at };
    let (first, last) = (from_end(first).max(0), from_end(last).min(length - 1));
    if first > last { 0..0 } else { first as u64..last as u64 + 1 }
}

/// Returns the items at these positions.
fn slice(list: PackedList<'_>, range: Range<u64>) -> Result<PackedList<'_>, Refusal> {
    let [_, rest] = list.split_at(range.start as usize)?;
    let [items, _] = rest.split_at((range.end - range.start) as usize)?;
    Ok(items)
}

/// `LRANGE key first last`.
fn lrange(call: &mut Call<'_>) -> Done {
    let first = parse_integer(call.args[2]).ok_or(Refusal::NotAnInteger)?;
    let last = parse_integer(call.args[3]).ok_or(Refusal::NotAnInteger)?;
    let (key, table) = (call.key(1), call.session.status.table);
    let reply = &mut call.reply;
    call.backend.read_list(table, key, |list| {
        let items = list.slice(range(first, last, list.count()))?;
        reply.array(items.count() as usize);
        for item in items.parts().flat_map(PackedList::items) {
            reply.bulk(item?);
        }
        Ok(())
    })
}

/// `LTRIM key first last`.
fn ltrim(call: &mut Call<'_>) -> Done {
    let first = parse_integer(call.args[2]).ok_or(Refusal::NotAnInteger)?;
    let last = parse_integer(call.args[3]).ok_or(Refusal::NotAnInteger)?;
    let layout = call.backend.layout();
    let is_done = call.update(|record, changes| {
        let Some(list) = packed(record)? else { return Ok(false) };
        let kept = slice(list, range(first, last, list.count() as u64))?;
        if kept.count() == list.count() {
            return Ok(true);
        }
        Ok::<_, Refusal>(write([ListPart::Items(kept)].into_iter(), record, &layout, changes, 0))
    })??;
    if !is_done {
        call.update_list(&[], |list, _| {
            let kept = range(first, last, list.count());
            if kept.is_empty() {
                list.clear();
                return Ok(());
            }
            list.cut(ListEnd::Right, list.count() - kept.end)?;
            Ok(list.cut(ListEnd::Left, kept.start)?)
        })?;
    }
    call.ok()
}

/// `LSET key position item`.
fn lset(call: &mut Call<'_>) -> Done {
    let (argument, item) = (call.args[2], call.args[3]);
    let layout = call.backend.layout();
    let is_done = call.update(|record, changes| {
        let Some(list) = packed(record)? else { return Ok(false) };
        if record.is_none() {
            return Err(NO_SUCH_KEY);
        }
        let at = position(argument, list.count() as u64)?.ok_or(OUT_OF_RANGE)?;
        let SplitList { before, after, .. } = list.split(at as usize)?.ok_or(OUT_OF_RANGE)?;
        let parts = [ListPart::Items(before), ListPart::Item(item), ListPart::Items(after)];
        Ok(write(parts.into_iter(), record, &layout, changes, 0))
    })??;
    if !is_done {
        call.update_list(&[item], |list, item| {
            if list.count() == 0 {
                return Err(NO_SUCH_KEY.into());
            }
            let at = position(argument, list.count())?.ok_or(OUT_OF_RANGE)?;
            Ok(list.set(at, item)?)
        })?;
    }
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
    let layout = call.backend.layout();
    let inserted = call.update(|record, changes| {
        let Some(list) = packed(record)? else { return Ok(None) };
        let Some(at) = find(list, pivot)? else { return Ok(Some(record.map_or(0, |_| -1))) };
        let [before, after] = list.split_at(at + usize::from(is_after))?;
        let parts = [ListPart::Items(before), ListPart::Item(item), ListPart::Items(after)];
        let is_written = write(parts.into_iter(), record, &layout, changes, 0);
        Ok::<_, Refusal>(is_written.then_some(list.count() as i64 + 1))
    })??;
    let length = match inserted {
        Some(length) => length,
        None => call.update_list(&[item], |list, item| {
            let mut place = None;
            list.search(ListEnd::Left, |at, item| {
                place = (item == pivot).then_some(at);
                place.is_some()
            })?;
            match place {
                _ if list.count() == 0 => Ok(0),
                None => Ok(-1),
                Some(at) => {
                    list.insert(at, is_after, item)?;
                    Ok(list.count() as i64)
                }
            }
        })?,
    };
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
    let layout = call.backend.layout();
    let removed = call.update(|record, changes| {
        let Some(list) = packed(record)? else { return Ok(None) };
        let kept = list.without(item, end, count_max)?;
        let left: usize = kept.iter().map(|run| run.count()).sum();
        let parts = kept.iter().map(|run| ListPart::Items(*run));
        let is_done = left == list.count() || write(parts, record, &layout, changes, 0);
        Ok::<_, Refusal>(is_done.then_some((list.count() - left) as u64))
    })??;
    let removed = match removed {
        Some(removed) => removed,
        None => call.update_list(&[], |list, _| Ok(list.remove(item, end, count_max)?))?,
    };
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
    fn find(&self, list: &PagedList<'_>, wanted: &[u8]) -> Result<Vec<u64>, ListGap> {
        let or_all = |number: u64| if number == 0 { u64::MAX } else { number };
        let count_max = or_all(self.count.unwrap_or(1));
        let compared_max = or_all(self.compared_max);
        let (mut found, mut rank) = (Vec::new(), 0);
        list.search(self.end, |passed, item| {
            if item == wanted {
                rank += 1;
                if rank >= self.rank {
                    found.push(match self.end {
                        ListEnd::Left => passed,
                        ListEnd::Right => list.count() - 1 - passed,
                    });
                }
            }
            found.len() as u64 >= count_max || passed + 1 >= compared_max
        })?;
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
    let found = call.read_list(1, |list| Ok(search.find(list, wanted)?))?;
    match (search.count, found.first()) {
        (Some(_), _) => {
            call.reply.array(found.len());
            found.iter().for_each(|at| call.reply.integer(*at as i64));
        }
        (None, Some(at)) => call.reply.integer(*at as i64),
        (None, None) => call.reply.null(),
    }
    Ok(())
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
        let layout = call.backend.layout();
        let reply = &mut call.reply;
        let moved = call.backend.update(table, &keys, Need::Records, |records, changes| {
            if records[0].is_none() {
                return Ok(Some(false));
            }
            let source = packed(records[0])?;
            if !may_take {
                return Ok(Some(false));
            }
            let target = packed(records[1])?;
            let (Some(mut source), Some(target)) = (source, target) else { return Ok(None) };
            let Some(item) = source.pop(ends[0])? else { return Ok(Some(false)) };
            let (part, rest) = (ListPart::Item(item), ListPart::Items(source));
            let target = if keys[0] == keys[1] { rest } else { ListPart::Items(target) };
            let parts = if ends[1] == ListEnd::Left { [part, target] } else { [target, part] };
            let is_one = keys[0] == keys[1];
            // One list must not be written if the other one has to be divided.
            if !is_one && !may_be_packed([rest].into_iter(), &layout)
                || !write(parts.into_iter(), records[1], &layout, changes, 1)
            {
                return Ok(None);
            }
            if !is_one {
                let is_written = write([rest].into_iter(), records[0], &layout, changes, 0);
                assert!(is_written, "a list that may be packed is not written");
            }
            reply.bulk(item);
            Ok::<_, Refusal>(Some(true))
        })??;
        match moved {
            Some(moved) => Ok(moved),
            None => self.run_beyond(call),
        }
    }

    /// Moves an item between lists of which one has pages or gets some.
    fn run_beyond(self, call: &mut Call<'_>) -> Result<bool, NotExecuted> {
        let ItemMove { keys, ends, .. } = self;
        let table = call.session.status.table;
        let lists = keys.map(|key| ListChange::of(TableKey { table, key }));
        let is_one = keys[0] == keys[1];
        let (lists, to) = if is_one { (&lists[..1], 0) } else { (&lists[..], 1) };
        let moved = call.backend.update_lists(lists, PackedList::EMPTY, |lists, _| {
            if lists.get(0)?.count() == 0 {
                return Ok(None);
            }
            lists.get(to)?;
            let popped = lists.on(0, |list| list.pop(ends[0], 1))?;
            let item = popped.items().next().ok_or(Damaged)??.to_vec();
            popped.parts().try_for_each(|part| {
                lists.get(to)?.push(ends[1], part);
                Ok::<_, ListStop>(())
            })?;
            Ok(Some(item))
        })?;
        if let Some(item) = &moved {
            call.reply.bulk(item);
        }
        Ok(moved.is_some())
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

impl PopOfSeveral<ListEnd> {
    /// Takes items from the first of these keys that is open and has some. Returns false, without a
    /// reply, if there is none.
    pub(super) fn run(
        &self,
        call: &mut Call<'_>,
        keys: &[Key<'_>],
        open: &[bool],
    ) -> Result<bool, NotExecuted> {
        let PopOfSeveral { end, count, .. } = *self;
        ItemPop { end, count }.run_on_first(call, keys, open, |reply, key, items| {
            reply.array(2);
            reply.bulk(key);
            reply.array(items);
        })
    }
}

/// Returns the position of the first record that is open and has items.
fn first_with_items(
    records: &[Option<Record<'_>>],
    open: &[bool],
) -> Result<Option<usize>, Refusal> {
    assert_eq!(records.len(), open.len(), "each record is open or not");
    for (at, record) in records.iter().enumerate() {
        if list_form(*record)?.count() > 0 && open[at] {
            return Ok(Some(at));
        }
    }
    Ok(None)
}

/// `LMPOP numkeys key [key ...] LEFT|RIGHT [COUNT count]`.
fn lmpop(call: &mut Call<'_>) -> Done {
    let several = PopOfSeveral::parse(&call.args[1..], parse_end)?;
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
