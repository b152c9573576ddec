//! The copies of records that a transaction works on, and their positions by keys.
//!
//! Most transactions have a few small records. Their copies are found by comparison, and their buffers
//! are used again by the next transaction, so that they allocate nothing.

use std::collections::HashMap;
use store::{Key, NewValue, Record, TableKey};
use types::{KeyHash, TableId, TypedValue, UnixMillis, ValueType, Version};

/// Most copies that are found by comparison with each one. More are found in maps.
const COMPARED_MAX: usize = 8;

/// Most bytes of a buffer that is used again.
const KEPT_BYTES_MAX: usize = 4 << 10;

/// Copies of records, in the order in which they were added.
#[derive(Default)]
pub(super) struct Copies {
    records: Vec<RecordCopy>,
    /// Position of each key's record, and of each page's, if there are more than [`COMPARED_MAX`]. Only
    /// looked up, never iterated.
    places: HashMap<Box<[u8]>, usize>,
    pages: HashMap<Box<[u8]>, usize>,
    /// Copies of ended transactions, whose buffers are used again.
    spare: Vec<RecordCopy>,
}

/// The copy of one record, or of its absence.
pub(super) struct RecordCopy {
    table: TableId,
    hash: KeyHash,
    key: Vec<u8>,
    /// Version of the record that was read; `None` if there was no record.
    pub(super) version: Option<Version>,
    /// The value's type and expiry; `None` if there is no record now.
    now: Option<(ValueType, Option<UnixMillis>)>,
    value: Vec<u8>,
    pub(super) is_changed: bool,
    /// Set for a page that a command creates: no command reads a former record of it.
    pub(super) is_new: bool,
}

impl Copies {
    /// Returns the copies by their positions.
    pub(super) fn all(&self) -> &[RecordCopy] {
        &self.records
    }

    /// Returns the copy at this position.
    pub(super) fn at_mut(&mut self, place: usize) -> &mut RecordCopy {
        &mut self.records[place]
    }

    /// Returns the position of the copy of the record with this key.
    pub(super) fn find(&self, TableKey { table, key }: TableKey<'_>) -> Option<usize> {
        if self.records.len() <= COMPARED_MAX {
            return self.records.iter().position(|copy| copy.is_of(TableKey { table, key }));
        }
        let place = self.map_of(table).get(key.bytes).copied();
        place.filter(|&place| self.records[place].table == table)
    }

    /// Copies a record that has not been copied yet, or its absence. Returns the copy.
    pub(super) fn add(&mut self, key: TableKey<'_>, record: Option<Record<'_>>) -> &mut RecordCopy {
        assert!(self.find(key).is_none(), "a record is copied twice");
        let mut copy = self.spare.pop().unwrap_or_else(|| RecordCopy::none(key.table));
        copy.fill(key, record);
        self.records.push(copy);
        if self.records.len() == COMPARED_MAX + 1 {
            (0..=COMPARED_MAX).for_each(|place| self.enter(place));
        } else if self.records.len() > COMPARED_MAX {
            self.enter(self.records.len() - 1);
        }
        let last = self.records.len() - 1;
        &mut self.records[last]
    }

    /// Enters the copy at this position into its map.
    fn enter(&mut self, place: usize) {
        let RecordCopy { table, key, .. } = &self.records[place];
        let map = if *table == TableId::PAGES { &mut self.pages } else { &mut self.places };
        let before = map.insert(key.as_slice().into(), place);
        assert!(before.is_none(), "two copies of one table have the same key");
    }

    fn map_of(&self, table: TableId) -> &HashMap<Box<[u8]>, usize> {
        if table == TableId::PAGES { &self.pages } else { &self.places }
    }

    /// Removes all copies. Retains buffers for the next ones.
    pub(super) fn clear(&mut self) {
        self.places.clear();
        self.pages.clear();
        let copies = self.records.drain(..).take(COMPARED_MAX - self.spare.len());
        self.spare.extend(copies.filter(|copy| {
            copy.value.capacity() <= KEPT_BYTES_MAX && copy.key.capacity() <= KEPT_BYTES_MAX
        }));
        debug_assert!(self.spare.len() <= COMPARED_MAX, "too many buffers are kept");
    }
}

impl RecordCopy {
    /// Returns a copy of no record.
    fn none(table: TableId) -> RecordCopy {
        RecordCopy {
            table,
            hash: KeyHash(0),
            key: Vec::new(),
            version: None,
            now: None,
            value: Vec::new(),
            is_changed: false,
            is_new: false,
        }
    }

    /// Makes this the copy of a record, or of its absence.
    fn fill(&mut self, TableKey { table, key }: TableKey<'_>, record: Option<Record<'_>>) {
        (self.table, self.hash) = (table, key.hash);
        self.key.clear();
        self.key.extend_from_slice(key.bytes);
        self.version = record.map(|record| record.version);
        self.set(record.map(|record| (record.value, record.expiry)));
        (self.is_changed, self.is_new) = (false, false);
    }

    #[inline]
    fn is_of(&self, TableKey { table, key }: TableKey<'_>) -> bool {
        self.hash == key.hash && self.table == table && self.key == key.bytes
    }

    pub(super) fn table_key(&self) -> TableKey<'_> {
        TableKey { table: self.table, key: Key { hash: self.hash, bytes: &self.key } }
    }

    /// Returns the value with its expiry; `None` if there is no record now.
    pub(super) fn now(&self) -> NewValue<'_> {
        let (value_type, expiry) = self.now?;
        Some((TypedValue { value_type, bytes: &self.value }, expiry))
    }

    /// Replaces the value.
    pub(super) fn set(&mut self, new: NewValue<'_>) {
        self.now = new.map(|(value, expiry)| (value.value_type, expiry));
        self.value.clear();
        self.value.extend_from_slice(new.map_or(&[], |(value, _)| value.bytes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Copies `count` absent records of two tables, and checks that each is found.
    fn fill(copies: &mut Copies, count: u64) {
        for number in 0..count {
            let bytes = (number / 2).to_le_bytes();
            let table = if number % 2 == 0 { TableId(0) } else { TableId::PAGES };
            // All have the same hash, so only the keys differ.
            let key = TableKey { table, key: Key { hash: KeyHash(7), bytes: &bytes } };
            assert_eq!(copies.find(key), None, "{number} of {count}");
            copies.add(key, None).is_changed = true;
            assert_eq!(copies.find(key), Some(number as usize), "{number} of {count}");
        }
        for (place, copy) in copies.all().iter().enumerate() {
            assert_eq!(copies.find(copy.table_key()), Some(place), "{place} of {count}");
        }
    }

    #[test]
    fn copies_are_found_by_table_and_key_however_many_there_are() {
        let mut copies = Copies::default();
        for count in [1, 2, COMPARED_MAX as u64, COMPARED_MAX as u64 + 1, 100, 3] {
            fill(&mut copies, count);
            copies.clear();
            assert!(copies.all().is_empty() && copies.spare.len() <= COMPARED_MAX);
        }
    }

    #[test]
    fn a_used_buffer_shows_nothing_of_the_record_before() {
        let mut copies = Copies::default();
        let key = |bytes| TableKey { table: TableId(0), key: Key { hash: KeyHash(7), bytes } };
        let value = TypedValue { value_type: ValueType::Hash, bytes: b"fields" };
        let record = Record {
            value,
            version: Version(9),
            expiry: Some(UnixMillis(5)),
            clock: UnixMillis(1),
        };
        let copy = copies.add(key(b"first"), Some(record));
        assert_eq!(copy.now(), Some((value, Some(UnixMillis(5)))));
        (copy.is_changed, copy.is_new) = (true, true);
        copies.clear();
        let copy = copies.add(key(b"second"), None);
        assert_eq!((copy.now(), copy.version), (None, None));
        assert!(!copy.is_changed && !copy.is_new);
        copy.set(Some((value, None)));
        assert_eq!(copies.all()[0].now(), Some((value, None)));
    }

    #[test]
    fn long_buffers_are_not_kept() {
        let mut copies = Copies::default();
        let key = TableKey { table: TableId(0), key: Key { hash: KeyHash(7), bytes: b"long" } };
        let long = vec![0; KEPT_BYTES_MAX + 1];
        copies.add(key, None).set(Some((TypedValue::string(&long), None)));
        copies.clear();
        assert!(copies.spare.is_empty());
    }
}
