//! Packed lists: the items of a list in the bytes of one record (`docs/design/values.md`).
//!
//! The bytes are the number of items, then the items from left to right. An item is its length, its
//! bytes, and its length once more, with the bytes of that number in reverse order. So a list is
//! read from both ends, and what is left of it after some items at the ends is one piece of its
//! bytes. Numbers are encoded as in the other packed values.

use crate::packed::{Damaged, read_number, write_number};
use types::{TypedValue, ValueType};

/// An end of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListEnd {
    /// Where `LPUSH` adds items, at position 0.
    Left,
    /// Where `RPUSH` adds items.
    Right,
}

/// A list, or some neighbouring items of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PackedList<'a> {
    count: usize,
    /// The items.
    bytes: &'a [u8],
}

/// The parts of a list around one of its items.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SplitList<'a> {
    /// The items left of the item.
    pub before: PackedList<'a>,
    /// The item.
    pub item: &'a [u8],
    /// The items right of it.
    pub after: PackedList<'a>,
}

/// Splits a number off the end of `bytes`, where its bytes are in reverse order.
#[inline]
fn read_number_backward(bytes: &[u8]) -> Option<(usize, &[u8])> {
    let (&last, mut rest) = bytes.split_last()?;
    if last < 0x80 {
        return Some((usize::from(last), rest));
    }
    let mut number = usize::from(last & 0x7f);
    for at in 1..crate::packed::NUMBER_BYTES_MAX {
        let byte;
        (byte, rest) = rest.split_last().map(|(byte, rest)| (*byte, rest))?;
        number |= usize::from(byte & 0x7f) << (7 * at);
        if byte < 0x80 {
            return Some((number, rest));
        }
    }
    None
}

/// Appends an item.
#[inline]
fn write_item(item: &[u8], out: &mut Vec<u8>) {
    write_number(item.len(), out);
    out.extend_from_slice(item);
    let start = out.len();
    write_number(item.len(), out);
    out[start..].reverse();
}

/// Returns the bytes of an item in a list.
fn item_bytes(item: &[u8]) -> usize {
    item.len() + 2 * number_bytes(item.len())
}

fn number_bytes(number: usize) -> usize {
    (usize::BITS - (number | 1).leading_zeros()).div_ceil(7) as usize
}

impl<'a> PackedList<'a> {
    /// The list without items.
    pub const EMPTY: PackedList<'static> = PackedList { count: 0, bytes: &[] };

    /// Returns the list of a value of this type.
    ///
    /// # Panics
    /// If the value has another type, which is a bug.
    #[inline]
    pub fn parse(value: TypedValue<'a>) -> Result<PackedList<'a>, Damaged> {
        assert_eq!(value.value_type, ValueType::List, "only a list is read as one");
        let (count, bytes) = read_number(value.bytes).ok_or(Damaged)?;
        Ok(PackedList { count, bytes })
    }

    /// Returns the list of so many items in these bytes.
    #[inline]
    pub(crate) fn of_bytes(count: usize, bytes: &'a [u8]) -> PackedList<'a> {
        PackedList { count, bytes }
    }

    /// Reads a list whose items take so many bytes. Returns it with the bytes behind it.
    pub(crate) fn read(bytes: &'a [u8], item_bytes: usize) -> Option<(PackedList<'a>, &'a [u8])> {
        let (count, rest) = read_number(bytes)?;
        let (bytes, rest) = rest.split_at_checked(item_bytes)?;
        Some((PackedList { count, bytes }, rest))
    }

    /// Returns the number of items.
    #[inline]
    pub fn count(self) -> usize {
        self.count
    }

    /// Returns the bytes of all encoded items together.
    #[inline]
    pub fn byte_count(self) -> usize {
        self.bytes.len()
    }

    /// Removes the item at an end and returns it. `None` if there are no items.
    #[inline]
    pub fn pop(&mut self, end: ListEnd) -> Result<Option<&'a [u8]>, Damaged> {
        let Some(left) = self.count.checked_sub(1) else {
            return if self.bytes.is_empty() { Ok(None) } else { Err(Damaged) };
        };
        let (item, rest) = match end {
            ListEnd::Left => self.first().ok_or(Damaged)?,
            ListEnd::Right => self.last().ok_or(Damaged)?,
        };
        if left == 0 && !rest.is_empty() {
            return Err(Damaged);
        }
        *self = PackedList { count: left, bytes: rest };
        Ok(Some(item))
    }

    /// Returns the first item and the bytes of the others.
    #[inline]
    fn first(&self) -> Option<(&'a [u8], &'a [u8])> {
        let (length, rest) = read_number(self.bytes)?;
        let (item, rest) = rest.split_at_checked(length)?;
        let prefix = self.bytes.len() - item.len() - rest.len();
        let (_, rest) = rest.split_at_checked(prefix)?;
        Some((item, rest))
    }

    /// Returns the last item and the bytes of the others.
    #[inline]
    fn last(&self) -> Option<(&'a [u8], &'a [u8])> {
        let (length, rest) = read_number_backward(self.bytes)?;
        let suffix = self.bytes.len() - rest.len();
        let (rest, item) = rest.split_at_checked(rest.len().checked_sub(length)?)?;
        let (rest, _) = rest.split_at_checked(rest.len().checked_sub(suffix)?)?;
        Some((item, rest))
    }

    /// Returns the first `at` items, and the others. It passes over the items at the nearer end.
    ///
    /// # Panics
    /// If there are fewer items, which is a bug.
    pub fn split_at(self, at: usize) -> Result<[PackedList<'a>; 2], Damaged> {
        assert!(at <= self.count, "split at item {at} of {}", self.count);
        let (mut rest, end) = (self, self.nearer_end(at));
        let passed = if end == ListEnd::Left { at } else { self.count - at };
        for _ in 0..passed {
            rest.pop(end)?.ok_or(Damaged)?;
        }
        let other = self.popped(rest, end);
        assert_eq!(other.count, passed, "a split loses an item");
        Ok(if end == ListEnd::Left { [other, rest] } else { [rest, other] })
    }

    /// Splits off as many items at an end as `bytes_max` bytes hold. Returns both parts from left to
    /// right.
    pub(crate) fn split_bytes(
        self,
        end: ListEnd,
        bytes_max: usize,
    ) -> Result<[PackedList<'a>; 2], Damaged> {
        let mut rest = self;
        while rest.count > 0 {
            let mut next = rest;
            next.pop(end)?.ok_or(Damaged)?;
            if self.bytes.len() - next.bytes.len() > bytes_max {
                break;
            }
            rest = next;
        }
        let taken = self.popped(rest, end);
        Ok(if end == ListEnd::Left { [taken, rest] } else { [rest, taken] })
    }

    fn nearer_end(self, at: usize) -> ListEnd {
        if at <= self.count / 2 { ListEnd::Left } else { ListEnd::Right }
    }

    /// Returns the item at a position, with the items around it. `None` if there are fewer.
    pub fn split(self, at: usize) -> Result<Option<SplitList<'a>>, Damaged> {
        if at >= self.count {
            return Ok(None);
        }
        let [before, mut after] = self.split_at(at)?;
        let item = after.pop(ListEnd::Left)?.ok_or(Damaged)?;
        Ok(Some(SplitList { before, item, after }))
    }

    /// Returns the runs of items that remain if the first `count_max` items from an end that are
    /// equal to this one are removed, from left to right.
    pub fn without(
        self,
        item: &[u8],
        end: ListEnd,
        count_max: u64,
    ) -> Result<Vec<PackedList<'a>>, Damaged> {
        let (mut runs, mut removed) = (Vec::new(), 0);
        let (mut run, mut rest) = (self, self);
        while removed < count_max {
            let before = rest;
            let Some(next) = rest.pop(end)? else { break };
            if next == item {
                removed += 1;
                runs.push(run.popped(before, end));
                run = rest;
            }
        }
        runs.push(run);
        if end == ListEnd::Right {
            runs.reverse();
        }
        Ok(runs)
    }

    /// Returns the items that were popped from an end until `rest` was left.
    fn popped(self, rest: PackedList<'a>, end: ListEnd) -> PackedList<'a> {
        assert!(self.count >= rest.count, "the rest of a list is longer than the list");
        let bytes = self.bytes.len() - rest.bytes.len();
        PackedList {
            count: self.count - rest.count,
            bytes: match end {
                ListEnd::Left => &self.bytes[..bytes],
                ListEnd::Right => &self.bytes[rest.bytes.len()..],
            },
        }
    }

    /// Returns the items from left to right.
    #[inline]
    pub fn items(self) -> ListItems<'a> {
        ListItems { list: self, end: ListEnd::Left }
    }

    /// Returns the items from an end on.
    #[inline]
    pub fn items_from(self, end: ListEnd) -> ListItems<'a> {
        ListItems { list: self, end }
    }
}

/// Iterator over the items of a list. It ends with an error where the list is damaged.
#[derive(Clone, Debug)]
pub struct ListItems<'a> {
    list: PackedList<'a>,
    end: ListEnd,
}

impl<'a> Iterator for ListItems<'a> {
    type Item = Result<&'a [u8], Damaged>;

    #[inline]
    fn next(&mut self) -> Option<Result<&'a [u8], Damaged>> {
        let next = self.list.pop(self.end);
        if next.is_err() {
            self.list = PackedList::EMPTY;
        }
        next.transpose()
    }
}

/// A part of a list that is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListPart<'a> {
    /// Items of another list, which are copied as they are.
    Items(PackedList<'a>),
    /// One item.
    Item(&'a [u8]),
}

impl ListEnd {
    /// Returns the other end.
    pub fn other(self) -> ListEnd {
        match self {
            ListEnd::Left => ListEnd::Right,
            ListEnd::Right => ListEnd::Left,
        }
    }
}

impl ListPart<'_> {
    /// Returns the number of items.
    pub fn count(&self) -> usize {
        match self {
            ListPart::Items(list) => list.count,
            ListPart::Item(_) => 1,
        }
    }

    /// Returns the bytes that the part takes in a list.
    pub fn bytes(&self) -> usize {
        match self {
            ListPart::Items(list) => list.bytes.len(),
            ListPart::Item(item) => item_bytes(item),
        }
    }
}

/// Returns the bytes of the packed list of these parts.
pub fn list_bytes<'p>(parts: impl Iterator<Item = ListPart<'p>> + Clone) -> usize {
    let count = parts.clone().map(|part| part.count()).sum();
    parts.map(|part| part.bytes()).sum::<usize>() + number_bytes(count)
}

/// Appends these parts as a packed list.
///
/// # Panics
/// If it has more than 2^28 items, or an item more bytes, which is a bug: a value is shorter.
#[inline]
pub fn encode_list<'p>(parts: impl Iterator<Item = ListPart<'p>> + Clone, out: &mut Vec<u8>) {
    write_number(parts.clone().map(|part| part.count()).sum(), out);
    for part in parts {
        match part {
            ListPart::Items(list) => out.extend_from_slice(list.bytes),
            ListPart::Item(item) => write_item(item, out),
        }
    }
}

/// Appends the packed list of these parts together.
pub(crate) fn write_packed<'p>(
    parts: impl Iterator<Item = PackedList<'p>> + Clone,
    out: &mut Vec<u8>,
) {
    encode_list(parts.map(ListPart::Items), out);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(bytes: &[u8]) -> TypedValue<'_> {
        TypedValue { value_type: ValueType::List, bytes }
    }

    fn list(bytes: &[u8]) -> PackedList<'_> {
        PackedList::parse(value(bytes)).expect("there is a count")
    }

    fn encoded(items: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = Vec::new();
        let parts = items.iter().map(|item| ListPart::Item(item));
        encode_list(parts.clone(), &mut bytes);
        assert_eq!(bytes.len(), list_bytes(parts));
        bytes
    }

    fn items(list: PackedList<'_>) -> Vec<Vec<u8>> {
        list.items().map(|item| item.unwrap().to_vec()).collect()
    }

    /// Items whose lengths are around those where a length takes another byte.
    fn item(random: &mut fastrand::Rng) -> Vec<u8> {
        let lengths = [0, 1, 5, 126, 127, 128, 129, 300, 16_383, 16_384];
        let lengths = if random.u8(..8) == 0 { &lengths[..] } else { &lengths[..5] };
        let length = lengths[random.usize(..lengths.len())];
        vec![random.u8(..); length]
    }

    #[test]
    fn items_come_back_from_both_ends() {
        let mut random = fastrand::Rng::with_seed(31);
        for count in 0..40 {
            let all: Vec<Vec<u8>> = (0..count).map(|_| item(&mut random)).collect();
            let bytes = encoded(&all);
            let read = list(&bytes);
            assert_eq!(read.count(), count);
            assert_eq!(items(read), all);
            let backward: Vec<_> = read.items_from(ListEnd::Right).map(Result::unwrap).collect();
            assert!(backward.into_iter().rev().eq(all.iter().map(|item| &item[..])));
        }
    }

    #[test]
    fn lists_behave_like_a_queue_with_two_ends() {
        let mut random = fastrand::Rng::with_seed(32);
        let mut twin: std::collections::VecDeque<Vec<u8>> = [b"first".to_vec()].into();
        let mut bytes = encoded(twin.make_contiguous());
        for _ in 0..20_000 {
            let mut next = Vec::new();
            let mut read = list(&bytes);
            let new = item(&mut random);
            match random.u8(..6) {
                0 => {
                    let parts = [ListPart::Item(&new), ListPart::Items(read)];
                    encode_list(parts.into_iter(), &mut next);
                    twin.push_front(new);
                }
                1 => {
                    let parts = [ListPart::Items(read), ListPart::Item(&new)];
                    encode_list(parts.into_iter(), &mut next);
                    twin.push_back(new);
                }
                2 => {
                    assert_eq!(
                        read.pop(ListEnd::Left).unwrap().map(<[u8]>::to_vec),
                        twin.pop_front()
                    );
                    encode_list([ListPart::Items(read)].into_iter(), &mut next);
                }
                3 => {
                    assert_eq!(
                        read.pop(ListEnd::Right).unwrap().map(<[u8]>::to_vec),
                        twin.pop_back()
                    );
                    encode_list([ListPart::Items(read)].into_iter(), &mut next);
                }
                _ => {
                    let at = random.usize(..=twin.len());
                    let found = read.split(at).unwrap();
                    assert_eq!(found.map(|found| found.item), twin.get(at).map(|item| &item[..]));
                    let Some(SplitList { before, item: _, after }) = found else { continue };
                    let parts =
                        [ListPart::Items(before), ListPart::Item(&new), ListPart::Items(after)];
                    encode_list(parts.into_iter(), &mut next);
                    twin[at] = new;
                }
            }
            bytes = next;
            assert!(twin.iter().eq(&items(list(&bytes))));
        }
    }

    #[test]
    fn lists_are_split_everywhere() {
        let all: Vec<Vec<u8>> = (0..9).map(|length| vec![b'x'; 60 * length]).collect();
        let bytes = encoded(&all);
        for at in 0..=all.len() {
            let [before, after] = list(&bytes).split_at(at).unwrap();
            assert_eq!((items(before), items(after)), (all[..at].to_vec(), all[at..].to_vec()));
        }
        assert_eq!(list(&bytes).split(all.len()), Ok(None));
    }

    #[test]
    fn equal_items_are_removed_from_either_end() {
        let all = ["x", "a", "x", "x", "b", "x"].map(|item| item.as_bytes().to_vec());
        let bytes = encoded(&all);
        for (end, count, expected) in [
            (ListEnd::Left, u64::MAX, "ab"),
            (ListEnd::Left, 2, "axbx"),
            (ListEnd::Right, 2, "xaxb"),
            (ListEnd::Right, 3, "xab"),
            (ListEnd::Left, 0, "xaxxbx"),
        ] {
            let runs = list(&bytes).without(b"x", end, count).unwrap();
            let parts = runs.iter().map(|run| ListPart::Items(*run));
            let mut kept = Vec::new();
            encode_list(parts, &mut kept);
            assert_eq!(items(list(&kept)).concat(), expected.as_bytes(), "{end:?} {count}");
        }
    }

    /// Reads a value in all ways. Returns whether it is a list.
    fn read_in_all_ways(bytes: &[u8]) -> bool {
        let Ok(list) = PackedList::parse(value(bytes)) else { return false };
        let all = list.items().collect::<Result<Vec<_>, Damaged>>();
        let backward = list.items_from(ListEnd::Right).collect::<Result<Vec<_>, Damaged>>();
        for at in [0, 1, list.count() / 2, list.count()] {
            if at <= list.count() {
                let _ = list.split_at(at);
                let _ = list.split(at);
            }
        }
        for end in [ListEnd::Left, ListEnd::Right] {
            let _ = list.without(b"", end, 2);
        }
        all.is_ok_and(|all| all.len() == list.count()) && backward.is_ok()
    }

    #[test]
    fn bytes_that_are_no_list_are_an_error_and_nothing_else() {
        let mut random = fastrand::Rng::with_seed(33);
        let whole = encoded(&[b"item".to_vec(), Vec::new(), vec![b'y'; 200]]);
        assert!(read_in_all_ways(&whole));
        for length in 0..whole.len() {
            assert!(!read_in_all_ways(&whole[..length]), "{length}");
        }
        let mut longer = whole.clone();
        longer.push(0);
        assert!(!read_in_all_ways(&longer));
        for _ in 0..100_000 {
            let mut bytes: Vec<u8> = (0..random.usize(0..40)).map(|_| random.u8(..)).collect();
            read_in_all_ways(&bytes);
            bytes.clone_from(&whole);
            bytes[random.usize(..whole.len())] = random.u8(..);
            read_in_all_ways(&bytes);
        }
    }
}
