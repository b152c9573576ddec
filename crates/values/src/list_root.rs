//! The root of a list that is divided into pages (`docs/design/values.md`).
//!
//! The root contains the items at both ends of the list. The items between are in pages, which are
//! numbered in order. Numbers wrap around: a list whose items are added at one end and removed at
//! the other one uses all of them in turn.
//!
//! The value begins with a byte 0, which is no number of items of a packed list. Then follow the id
//! (8 bytes), the first page (4), the number of pages (4), the number of items (8) and their bytes
//! (8), all little-endian, the length of the items at the left end, and the packed lists of the items
//! at the left and at the right end.

use crate::list::{ListEnd, ListPart, PackedList, encode_list};
use crate::packed::{Damaged, read_number, write_number};
use types::{TypedValue, ValueType, Version};

/// First byte of a root.
const ROOT: u8 = 0;

/// Most pages of a list: half of all numbers, far more than a server has memory for.
const PAGES_MAX: u32 = 1 << 31;

/// Consecutive page numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageInterval {
    /// The first number.
    pub first: u32,
    /// How many there are.
    pub pages: u32,
}

impl PageInterval {
    /// Returns whether the number is one of these.
    pub fn contains(self, page: u32) -> bool {
        page.wrapping_sub(self.first) < self.pages
    }

    /// Returns the number behind the last one.
    pub fn end(self) -> u32 {
        self.first.wrapping_add(self.pages)
    }

    /// Returns the numbers in order.
    pub fn numbers(self) -> impl DoubleEndedIterator<Item = u32> + Clone {
        (0..self.pages).map(move |at| self.first.wrapping_add(at))
    }
}

/// The root of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListRoot<'a> {
    /// Identifies the value among all that the key has had. Part of the names of its pages.
    pub id: Version,
    /// The pages, at least one. Each has a record, even without items.
    pub interval: PageInterval,
    /// Number of items of the list, at least 1.
    pub count: u64,
    /// Sum of the encoded items, in bytes.
    pub bytes: u64,
    /// The items left of the pages.
    pub left: PackedList<'a>,
    /// The items right of them.
    pub right: PackedList<'a>,
}

/// A list, as its record contains it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListForm<'a> {
    /// All items are in the record.
    Packed(PackedList<'a>),
    /// Some items are in pages.
    Split(ListRoot<'a>),
}

impl<'a> ListForm<'a> {
    /// Returns the form of a list.
    ///
    /// # Panics
    /// If the value has another type, which is a bug.
    #[inline]
    pub fn of(value: TypedValue<'a>) -> Result<ListForm<'a>, Damaged> {
        match value.bytes.first() {
            Some(&ROOT) => {
                assert_eq!(value.value_type, ValueType::List, "only a list is read as one");
                Ok(ListForm::Split(ListRoot::parse(value.bytes).ok_or(Damaged)?))
            }
            Some(_) | None => Ok(ListForm::Packed(PackedList::parse(value)?)),
        }
    }

    /// Returns the number of items.
    #[inline]
    pub fn count(&self) -> u64 {
        match self {
            ListForm::Packed(list) => list.count() as u64,
            ListForm::Split(root) => root.count,
        }
    }
}

impl<'a> ListRoot<'a> {
    fn parse(bytes: &'a [u8]) -> Option<ListRoot<'a>> {
        let (id, rest) = bytes[1..].split_first_chunk()?;
        let (first, rest) = rest.split_first_chunk()?;
        let (pages, rest) = rest.split_first_chunk()?;
        let (count, rest) = rest.split_first_chunk()?;
        let (bytes, rest) = rest.split_first_chunk()?;
        let (left_bytes, rest) = read_number(rest)?;
        let (left, rest) = PackedList::read(rest, left_bytes)?;
        let (right_count, right) = read_number(rest)?;
        let root = ListRoot {
            id: Version(u64::from_le_bytes(*id)),
            interval: PageInterval {
                first: u32::from_le_bytes(*first),
                pages: u32::from_le_bytes(*pages),
            },
            count: u64::from_le_bytes(*count),
            bytes: u64::from_le_bytes(*bytes),
            left,
            right: PackedList::of_bytes(right_count, right),
        };
        let at_ends = (left.count() + right_count) as u64;
        let has_pages = (1..=PAGES_MAX).contains(&root.interval.pages);
        (has_pages && root.count >= at_ends.max(1)).then_some(root)
    }

    /// Appends the root as the value of its key.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let part = |list| std::iter::once(ListPart::Items(list));
        self.encode_with(part(self.left), part(self.right), out);
    }

    /// Appends the root with these items at its ends instead of its own.
    pub fn encode_with<'p, 'q>(
        &self,
        left: impl Iterator<Item = ListPart<'p>> + Clone,
        right: impl Iterator<Item = ListPart<'q>> + Clone,
        out: &mut Vec<u8>,
    ) {
        debug_assert!((1..=PAGES_MAX).contains(&self.interval.pages) && self.count > 0, "{self:?}");
        out.push(ROOT);
        out.extend_from_slice(&self.id.0.to_le_bytes());
        out.extend_from_slice(&self.interval.first.to_le_bytes());
        out.extend_from_slice(&self.interval.pages.to_le_bytes());
        out.extend_from_slice(&self.count.to_le_bytes());
        out.extend_from_slice(&self.bytes.to_le_bytes());
        write_number(left.clone().map(|part| part.bytes()).sum(), out);
        encode_list(left, out);
        encode_list(right, out);
    }

    /// Returns the items at an end of the root.
    #[inline]
    pub fn end(&self, end: ListEnd) -> PackedList<'a> {
        match end {
            ListEnd::Left => self.left,
            ListEnd::Right => self.right,
        }
    }

    /// Appends the root with more items at an end, from left to right.
    pub fn encode_pushed<'p>(
        &self,
        end: ListEnd,
        items: impl Iterator<Item = ListPart<'p>> + Clone,
        out: &mut Vec<u8>,
    ) where
        'a: 'p,
    {
        let count = items.clone().map(|item| item.count() as u64).sum::<u64>();
        let bytes = items.clone().map(|item| item.bytes() as u64).sum::<u64>();
        let (count, bytes) = (self.count + count, self.bytes.saturating_add(bytes));
        let root: ListRoot<'p> = ListRoot { count, bytes, ..*self };
        let part = |list: PackedList<'p>| std::iter::once(ListPart::Items(list));
        match end {
            ListEnd::Left => root.encode_with(items.chain(part(self.left)), part(self.right), out),
            ListEnd::Right => root.encode_with(part(self.left), part(self.right).chain(items), out),
        }
    }

    /// Returns the root with other items at an end. `None`: its totals are damaged.
    #[inline]
    pub fn with_end(&self, end: ListEnd, items: PackedList<'a>) -> Option<ListRoot<'a>> {
        let old = self.end(end);
        let mut root = *self;
        match end {
            ListEnd::Left => root.left = items,
            ListEnd::Right => root.right = items,
        }
        root.count = (self.count + items.count() as u64).checked_sub(old.count() as u64)?;
        let bytes = self.bytes.saturating_add(items.byte_count() as u64);
        root.bytes = bytes.checked_sub(old.byte_count() as u64)?;
        Some(root)
    }

    /// Returns the mean number of items of a page, at least 1.
    pub fn items_per_page(&self) -> u64 {
        let at_ends = (self.left.count() + self.right.count()) as u64;
        (self.count.saturating_sub(at_ends) / u64::from(self.interval.pages.max(1))).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(bytes: &[u8]) -> TypedValue<'_> {
        TypedValue { value_type: ValueType::List, bytes }
    }

    #[test]
    fn numbers_of_pages_wrap_around() {
        let interval = PageInterval { first: u32::MAX - 1, pages: 4 };
        assert!(interval.numbers().eq([u32::MAX - 1, u32::MAX, 0, 1]));
        assert!([u32::MAX - 1, u32::MAX, 0, 1].into_iter().all(|page| interval.contains(page)));
        assert!([2, 7, u32::MAX - 2].into_iter().all(|page| !interval.contains(page)));
        assert_eq!(interval.end(), 2);
    }

    #[test]
    fn roots_come_back_and_other_bytes_are_an_error_and_nothing_else() {
        let mut items = Vec::new();
        let long = [b'y'; 200];
        encode_list([ListPart::Item(b"one"), ListPart::Item(&long)].into_iter(), &mut items);
        let items = PackedList::parse(value(&items)).expect("a list");
        let [left, right] = items.split_at(1).expect("two items");
        let interval = PageInterval { first: u32::MAX, pages: 5 };
        let root = ListRoot { id: Version(7), interval, count: 40, bytes: 1_300, left, right };
        let mut bytes = Vec::new();
        root.encode(&mut bytes);
        assert_eq!(ListForm::of(value(&bytes)), Ok(ListForm::Split(root)));
        assert_eq!(root.items_per_page(), 7);
        for length in 0..bytes.len() {
            let read = ListForm::of(value(&bytes[..length]));
            let has_items = |root: ListRoot<'_>| root.right.items().all(|item| item.is_ok());
            let is_root = matches!(read, Ok(ListForm::Split(root)) if has_items(root));
            assert!(!is_root, "{length}");
        }
        for (at, number) in [(13, 0_u8), (20, 0xff)] {
            let mut other = bytes.clone();
            other[13..17].fill(0);
            other[at] = number;
            assert_eq!(ListForm::of(value(&other)), Err(Damaged), "without pages");
        }
        let mut random = fastrand::Rng::with_seed(51);
        for _ in 0..100_000 {
            let mut other = bytes.clone();
            other[random.usize(1..bytes.len())] = random.u8(..);
            other.truncate(random.usize(1..=bytes.len()));
            if let Ok(ListForm::Split(root)) = ListForm::of(value(&other)) {
                let _ = (root.left.items().count(), root.right.items().count());
                let _ = (root.items_per_page(), root.interval.contains(3));
            }
        }
    }
}
