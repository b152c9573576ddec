//! The root of a stream: its record under the key (`docs/design/values.md`, "Streams").
//!
//! The root contains the newest entries. Older ones are in pages, which are numbered in order.
//! Numbers wrap around. Each consumer group is in a record of its own, named like a page.
//!
//! The value begins with a byte 1, the version of the format. Then follow numbers in base 128: the id
//! of the value, or 0 if it has neither pages nor groups; the first page, the number of pages and the
//! bytes of their entries; the number of entries; the highest id that was ever used, the highest one
//! that was deleted, and the number of entries that were ever added; the id of the first entry, and
//! the number of entries of the first page from that one on; and the number of groups. Each group is
//! its id and its name, in the order of the names. The rest is the block of the newest entries.

use crate::list_root::PageInterval;
use crate::packed::{Damaged, read_part, write_part};
use crate::stream_block::EntryBlock;
use crate::stream_id::{StreamId, read_id, read_long, write_id, write_long};
use std::borrow::Cow;
use types::{TypedValue, ValueType, Version};

/// Version of the format.
const FORMAT: u8 = 1;

/// Most pages of a stream: half of all numbers, far more than a server has memory for.
const PAGES_MAX: u32 = 1 << 31;

/// The root of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamRoot<'a> {
    /// Identifies the value among all that the key has had. Part of the names of its pages. 0: it
    /// has no pages yet.
    pub id: Version,
    /// The pages. Each has a record, even without entries.
    pub interval: PageInterval,
    /// Sum of the entries in pages, in bytes, as far as they are stored.
    pub page_bytes: u64,
    /// Number of entries.
    pub count: u64,
    /// The highest id that was ever used.
    pub last_id: StreamId,
    /// The highest id of an entry that was deleted by its id.
    pub max_deleted: StreamId,
    /// Number of entries that were ever added.
    pub added: u64,
    /// Id of the first entry; 0-0 without entries. Stored entries below it do not count.
    pub first_id: StreamId,
    /// Number of entries of the first page from [`StreamRoot::first_id`] on.
    pub first_live: u64,
    /// The consumer groups, in the order of their names.
    pub groups: Vec<GroupPlace<'a>>,
    /// The newest entries.
    pub tail: EntryBlock<'a>,
}

/// The place of a consumer group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupPlace<'a> {
    /// Identifies the group among all values. Part of the name of its record.
    pub id: Version,
    /// The name of the group.
    pub name: Cow<'a, [u8]>,
}

impl<'a> StreamRoot<'a> {
    /// The stream without entries and groups.
    pub const EMPTY: StreamRoot<'static> = StreamRoot {
        id: Version(0),
        interval: PageInterval { first: 0, pages: 0 },
        page_bytes: 0,
        count: 0,
        last_id: StreamId::MIN,
        max_deleted: StreamId::MIN,
        added: 0,
        first_id: StreamId::MIN,
        first_live: 0,
        groups: Vec::new(),
        tail: EntryBlock::EMPTY,
    };

    /// Returns the root of a stream.
    ///
    /// # Panics
    /// If the value has another type, which is a bug.
    pub fn of(value: TypedValue<'a>) -> Result<StreamRoot<'a>, Damaged> {
        assert_eq!(value.value_type, ValueType::Stream, "only a stream is read as one");
        StreamRoot::parse(value.bytes).ok_or(Damaged)
    }

    fn parse(bytes: &'a [u8]) -> Option<StreamRoot<'a>> {
        let rest = bytes.strip_prefix(&[FORMAT])?;
        let (id, rest) = read_long(rest)?;
        let (first, rest) = read_long(rest)?;
        let (pages, rest) = read_long(rest)?;
        let (page_bytes, rest) = read_long(rest)?;
        let (count, rest) = read_long(rest)?;
        let (last_id, rest) = read_id(rest)?;
        let (max_deleted, rest) = read_id(rest)?;
        let (added, rest) = read_long(rest)?;
        let (first_id, rest) = read_id(rest)?;
        let (first_live, rest) = read_long(rest)?;
        let (group_count, mut rest) = read_long(rest)?;
        let mut groups: Vec<GroupPlace<'a>> = Vec::new();
        for _ in 0..group_count {
            let (id, after) = read_long(rest)?;
            let (name, after) = read_part(after)?;
            if id == 0 || groups.last().is_some_and(|last| *last.name >= *name) {
                return None;
            }
            groups.push(GroupPlace { id: Version(id), name: Cow::Borrowed(name) });
            rest = after;
        }
        let tail = EntryBlock::parse(rest).ok()?;
        let interval =
            PageInterval { first: first.try_into().ok()?, pages: pages.try_into().ok()? };
        let has_id = id != 0 || interval.pages == 0;
        let is_possible = has_id
            && interval.pages <= PAGES_MAX
            && count >= tail.count()
            && (interval.pages > 0 || count == tail.count())
            && first_id <= last_id
            && (tail.count() == 0 || tail.base() <= last_id);
        is_possible.then_some(StreamRoot {
            id: Version(id),
            interval,
            page_bytes,
            count,
            last_id,
            max_deleted,
            added,
            first_id,
            first_live,
            groups,
            tail,
        })
    }

    /// Appends the root as the value of its key.
    pub fn encode(&self, out: &mut Vec<u8>) {
        debug_assert!(self.interval.pages == 0 || self.id != Version(0), "pages without an id");
        out.push(FORMAT);
        write_long(self.id.0, out);
        write_long(self.interval.first.into(), out);
        write_long(self.interval.pages.into(), out);
        write_long(self.page_bytes, out);
        write_long(self.count, out);
        write_id(self.last_id, out);
        write_id(self.max_deleted, out);
        write_long(self.added, out);
        write_id(self.first_id, out);
        write_long(self.first_live, out);
        write_long(self.groups.len() as u64, out);
        for group in &self.groups {
            write_long(group.id.0, out);
            write_part(&group.name, out);
        }
        self.tail.encode(out);
    }

    /// Returns whether records beside the root belong to the stream.
    pub fn has_pages(&self) -> bool {
        self.interval.pages > 0 || !self.groups.is_empty()
    }

    /// Returns the numbers of the pages that the records of this id have; `None`: they do not belong
    /// to the stream.
    pub fn pages_of(&self, id: Version) -> Option<PageInterval> {
        match self.id == id {
            true => Some(self.interval),
            false => {
                let is_group = self.groups.iter().any(|group| group.id == id);
                is_group.then_some(PageInterval { first: 0, pages: 1 })
            }
        }
    }

    /// Returns the position of a group.
    pub fn find_group(&self, name: &[u8]) -> Result<usize, usize> {
        self.groups.binary_search_by(|group| (*group.name).cmp(name))
    }

    /// Returns the mean number of entries of a page, at least 1.
    pub fn entries_per_page(&self) -> u64 {
        let in_pages = self.count.saturating_sub(self.tail.count());
        (in_pages / u64::from(self.interval.pages.max(1))).max(1)
    }

    /// Returns whether entries from an id on may have been deleted by their ids. As in Valkey, those
    /// count that were before the present first entry.
    pub fn has_deleted_from(&self, start: StreamId) -> bool {
        let is_any = self.count > 0 && self.max_deleted != StreamId::MIN;
        is_any && start <= self.max_deleted
    }

    /// Returns how many entries had been added when the one of this id was; `None`: unknown.
    pub fn added_until(&self, id: StreamId) -> Option<u64> {
        if self.added == 0 {
            return Some(0);
        }
        if self.count == 0 && id <= self.last_id {
            return Some(self.added);
        }
        if id != StreamId::MIN && id < self.max_deleted {
            return None;
        }
        if id >= self.last_id {
            return (id == self.last_id).then_some(self.added);
        }
        let has_gaps = self.max_deleted != StreamId::MIN && self.max_deleted >= self.first_id;
        if has_gaps || id > self.first_id {
            return None;
        }
        let before = self.added.saturating_sub(self.count);
        Some(before + u64::from(id == self.first_id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(bytes: &[u8]) -> TypedValue<'_> {
        TypedValue { value_type: ValueType::Stream, bytes }
    }

    #[test]
    fn roots_come_back_and_other_bytes_are_an_error_and_nothing_else() {
        let mut tail = EntryBlock::EMPTY;
        tail.push(StreamId { ms: 70, seq: 1 }, [(&b"name"[..], &b"value"[..])].into_iter());
        let group = |id, name: &'static [u8]| GroupPlace { id: Version(id), name: name.into() };
        let root = StreamRoot {
            id: Version(7),
            interval: PageInterval { first: u32::MAX, pages: 5 },
            page_bytes: 9_000,
            count: 400,
            last_id: StreamId { ms: 70, seq: 1 },
            max_deleted: StreamId { ms: 60, seq: 0 },
            added: 500,
            first_id: StreamId { ms: 3, seq: 9 },
            first_live: 12,
            groups: vec![group(9, b"a"), group(8, b"b")],
            tail,
        };
        let mut bytes = Vec::new();
        root.encode(&mut bytes);
        assert_eq!(StreamRoot::of(value(&bytes)), Ok(root.clone()));
        for length in 0..bytes.len() {
            let read = StreamRoot::of(value(&bytes[..length]));
            assert!(read.is_err() || read.is_ok_and(|root| root.tail.last_id().is_err()));
        }
        let mut random = fastrand::Rng::with_seed(3);
        for _ in 0..20_000 {
            let mut other = bytes.clone();
            let at = random.usize(..other.len());
            other[at] = random.u8(..);
            if let Ok(read) = StreamRoot::of(value(&other)) {
                let mut again = Vec::new();
                read.encode(&mut again);
                assert_eq!(StreamRoot::of(value(&again)), Ok(read));
            }
        }
        let unordered = StreamRoot { groups: vec![group(8, b"b"), group(9, b"a")], ..root };
        bytes.clear();
        unordered.encode(&mut bytes);
        assert_eq!(StreamRoot::of(value(&bytes)), Err(Damaged));
    }
}
