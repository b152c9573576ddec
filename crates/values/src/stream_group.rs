//! A consumer group of a stream: its position, its consumers, and the entries that they have received
//! and not acknowledged.
//!
//! A group is one record, named like page 0 of a value of its own. It begins with a byte 1, the
//! version of the format. Then follow, in base 128: the id that was delivered last; 0, or one more than
//! the number of entries that were read; a page in which the next entry probably is; and the number of
//! consumers. Each consumer is its name, the time when it was seen last, and 0, or one more than the
//! time when it received entries last, in milliseconds since 1970. The number of pending entries
//! follows, and these in the order of their ids: the milliseconds since the one before, the sequence
//! number, the position of the consumer, the time of the last delivery, and the number of deliveries.

use crate::packed::{Damaged, read_part, write_part};
use crate::stream_id::{StreamId, read_id, read_long, write_id, write_long};
use crate::stream_root::StreamRoot;
use std::borrow::Cow;
use std::collections::{BTreeSet, HashSet};

/// Version of the format.
const FORMAT: u8 = 1;

/// Longest record of a group, in bytes. A change of the group rewrites it.
pub const GROUP_BYTES_MAX: usize = 2 << 20;

/// A consumer group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConsumerGroup<'a> {
    /// The highest id that was delivered.
    pub last_id: StreamId,
    /// Number of entries that were added up to that one; `None`: unknown.
    pub read: Option<u64>,
    /// A page in which the next entry probably is.
    pub hint: u32,
    consumers: Vec<StreamConsumer<'a>>,
    /// In the order of their ids.
    pending: Vec<PendingEntry>,
}

/// A consumer of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamConsumer<'a> {
    /// The name.
    pub name: Cow<'a, [u8]>,
    /// Time of the last attempt to read or claim entries, in milliseconds since 1970.
    pub seen: u64,
    /// Time when it received entries last.
    pub active: Option<u64>,
}

/// An entry that a consumer has received and not acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PendingEntry {
    /// Id of the entry.
    pub id: StreamId,
    /// Position of the consumer.
    pub consumer: usize,
    /// Time of the last delivery, in milliseconds since 1970.
    pub delivered: u64,
    /// Number of deliveries.
    pub deliveries: u64,
}

impl<'a> ConsumerGroup<'a> {
    /// Returns a group without consumers.
    pub fn new(last_id: StreamId, read: Option<u64>, hint: u32) -> ConsumerGroup<'static> {
        ConsumerGroup { last_id, read, hint, ..ConsumerGroup::default() }
    }

    /// Returns the group of these consumers and pending entries. `None` if two consumers have the same
    /// name, if the entries are not in the order of their ids, or if one has no consumer.
    pub(crate) fn of_parts(
        last_id: StreamId,
        read: Option<u64>,
        consumers: Vec<StreamConsumer<'a>>,
        pending: Vec<PendingEntry>,
    ) -> Option<ConsumerGroup<'a>> {
        let names: HashSet<&[u8]> = consumers.iter().map(|consumer| &*consumer.name).collect();
        let ascends = pending.windows(2).all(|pair| pair[0].id < pair[1].id);
        let have_consumers = pending.iter().all(|entry| entry.consumer < consumers.len());
        let is_possible = names.len() == consumers.len() && ascends && have_consumers;
        is_possible.then_some(ConsumerGroup { last_id, read, hint: 0, consumers, pending })
    }

    /// Returns the group of these bytes.
    pub fn parse(bytes: &'a [u8]) -> Result<ConsumerGroup<'a>, Damaged> {
        ConsumerGroup::read(bytes).ok_or(Damaged)
    }

    fn read(bytes: &'a [u8]) -> Option<ConsumerGroup<'a>> {
        let (last_id, rest) = read_id(bytes.strip_prefix(&[FORMAT])?)?;
        let (read, rest) = read_long(rest)?;
        let (hint, rest) = read_long(rest)?;
        let (consumer_count, mut rest) = read_long(rest)?;
        let mut consumers = Vec::new();
        for _ in 0..consumer_count {
            let (name, after) = read_part(rest)?;
            let (seen, after) = read_long(after)?;
            let (active, after) = read_long(after)?;
            let active = active.checked_sub(1);
            consumers.push(StreamConsumer { name: Cow::Borrowed(name), seen, active });
            rest = after;
        }
        let (pending_count, mut rest) = read_long(rest)?;
        let mut pending: Vec<PendingEntry> = Vec::new();
        for _ in 0..pending_count {
            let last = pending.last().map(|entry| entry.id);
            let (ms, after) = read_long(rest)?;
            let (seq, after) = read_long(after)?;
            let (consumer, after) = read_long(after)?;
            let (delivered, after) = read_long(after)?;
            let (deliveries, after) = read_long(after)?;
            let ms = last.map_or(0, |last| last.ms).checked_add(ms)?;
            let (id, consumer) = (StreamId { ms, seq }, usize::try_from(consumer).ok()?);
            if last.is_some_and(|last| id <= last) || consumer >= consumers.len() {
                return None;
            }
            pending.push(PendingEntry { id, consumer, delivered, deliveries });
            rest = after;
        }
        let (read, hint) = (read.checked_sub(1), u32::try_from(hint).ok()?);
        rest.is_empty().then_some(ConsumerGroup { last_id, read, hint, consumers, pending })
    }

    /// Appends the group.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.push(FORMAT);
        write_id(self.last_id, out);
        write_long(self.read.map_or(0, |read| read.saturating_add(1)), out);
        write_long(self.hint.into(), out);
        write_long(self.consumers.len() as u64, out);
        for StreamConsumer { name, seen, active } in &self.consumers {
            write_part(name, out);
            write_long(*seen, out);
            write_long(active.map_or(0, |active| active.saturating_add(1)), out);
        }
        write_long(self.pending.len() as u64, out);
        let mut last = 0;
        for PendingEntry { id, consumer, delivered, deliveries } in &self.pending {
            write_long(id.ms - last, out);
            write_long(id.seq, out);
            write_long(*consumer as u64, out);
            write_long(*delivered, out);
            write_long(*deliveries, out);
            last = id.ms;
        }
    }

    /// Returns whether the group may be stored.
    pub fn fits(&self) -> bool {
        let names: usize = self.consumers.iter().map(|consumer| consumer.name.len() + 24).sum();
        // An entry has at most five numbers of ten bytes.
        if names + 50 * self.pending.len() <= GROUP_BYTES_MAX {
            return true;
        }
        let mut bytes = Vec::new();
        self.encode(&mut bytes);
        bytes.len() <= GROUP_BYTES_MAX
    }

    /// Returns the consumers, by their positions.
    pub fn consumers(&self) -> &[StreamConsumer<'a>] {
        &self.consumers
    }

    /// Returns the positions of the consumers, in the order of their names.
    pub fn consumers_by_name(&self) -> Vec<usize> {
        let mut all: Vec<usize> = (0..self.consumers.len()).collect();
        all.sort_unstable_by_key(|at| &self.consumers[*at].name);
        all
    }

    /// Returns the position of a consumer.
    pub fn find_consumer(&self, name: &[u8]) -> Option<usize> {
        self.consumers.iter().position(|consumer| *consumer.name == *name)
    }

    /// Returns the position of a consumer, which is created if there is none, and whether it was.
    pub fn consumer(&mut self, name: &[u8], now: u64) -> (usize, bool) {
        if let Some(at) = self.find_consumer(name) {
            return (at, false);
        }
        let name = Cow::Owned(name.to_vec());
        self.consumers.push(StreamConsumer { name, seen: now, active: None });
        (self.consumers.len() - 1, true)
    }

    /// Records that a consumer has tried to read or claim entries.
    pub fn see(&mut self, consumer: usize, now: u64) {
        self.consumers[consumer].seen = now;
    }

    /// Records that a consumer has received entries.
    pub fn activate(&mut self, consumer: usize, now: u64) {
        self.consumers[consumer].active = Some(now);
    }

    /// Removes a consumer with its pending entries. Returns their number.
    pub fn remove_consumer(&mut self, consumer: usize) -> u64 {
        let before = self.pending.len();
        self.pending.retain(|entry| entry.consumer != consumer);
        for entry in self.pending.iter_mut().filter(|entry| entry.consumer > consumer) {
            entry.consumer -= 1;
        }
        self.consumers.remove(consumer);
        (before - self.pending.len()) as u64
    }

    /// Returns the pending entries in the order of their ids.
    pub fn pending(&self) -> &[PendingEntry] {
        &self.pending
    }

    /// Returns the pending entries from an id on.
    pub fn pending_from(&self, id: StreamId) -> &[PendingEntry] {
        let at = self.pending.partition_point(|entry| entry.id < id);
        &self.pending[at..]
    }

    /// Returns the pending entries of each consumer, by the consumers' positions.
    pub fn pending_by_consumer(&self) -> Vec<Vec<&PendingEntry>> {
        let mut entries = vec![Vec::new(); self.consumers.len()];
        self.pending.iter().for_each(|entry| entries[entry.consumer].push(entry));
        entries
    }

    /// Returns the pending entry of an id.
    pub fn find_pending(&self, id: StreamId) -> Option<PendingEntry> {
        let found = self.pending_from(id).first().copied();
        found.filter(|entry| entry.id == id)
    }

    /// Adds a pending entry, or replaces the one of its id.
    pub fn set_pending(&mut self, entry: PendingEntry) {
        assert!(entry.consumer < self.consumers.len(), "a pending entry has a consumer");
        match self.pending.binary_search_by_key(&entry.id, |entry| entry.id) {
            Ok(at) => self.pending[at] = entry,
            Err(at) => self.pending.insert(at, entry),
        }
    }

    /// Adds pending entries, given in the order of their ids, or replaces those of their ids.
    pub fn set_all_pending(&mut self, entries: impl IntoIterator<Item = PendingEntry>) {
        let (consumers, before) = (self.consumers.len(), self.pending.len());
        for entry in entries {
            assert!(entry.consumer < consumers, "a pending entry has a consumer");
            match self.pending[..before].binary_search_by_key(&entry.id, |entry| entry.id) {
                Ok(at) => self.pending[at] = entry,
                Err(_) => self.pending.push(entry),
            }
        }
        self.pending.sort_by_key(|entry| entry.id);
        let are_distinct = |pair: &[PendingEntry]| pair[0].id < pair[1].id;
        debug_assert!(self.pending.windows(2).all(are_distinct), "an entry is pending once");
    }

    /// Removes the pending entries of these ids. Returns their number.
    pub fn acknowledge(&mut self, ids: &BTreeSet<StreamId>) -> u64 {
        let before = self.pending.len();
        self.pending.retain(|entry| !ids.contains(&entry.id));
        (before - self.pending.len()) as u64
    }

    /// Moves the group on to an entry that it delivers.
    pub fn advance(&mut self, id: StreamId, root: &StreamRoot<'_>) {
        if id <= self.last_id {
            return;
        }
        // No entry behind the last one was removed.
        let is_counted = self.last_id >= root.first_id && !root.has_deleted_from(self.last_id);
        self.read = match self.read {
            Some(read) if is_counted => Some(read.saturating_add(1)),
            read if root.added == 0 => read,
            _ => root.added_until(id),
        };
        self.last_id = id;
    }

    /// Returns the number of entries that were not delivered yet; `None`: unknown.
    pub fn lag(&self, root: &StreamRoot<'_>) -> Option<i64> {
        if root.added == 0 {
            return Some(0);
        }
        let read = match self.read {
            Some(read) if !root.has_deleted_from(self.last_id) => read,
            _ => root.added_until(self.last_id)?,
        };
        Some((root.added as i64).wrapping_sub(read as i64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn groups_come_back_and_other_bytes_are_an_error_and_nothing_else() {
        let mut random = fastrand::Rng::with_seed(1);
        let mut group = ConsumerGroup { read: Some(4), hint: 9, ..ConsumerGroup::default() };
        group.last_id = StreamId { ms: 1 << 41, seq: 3 };
        for name in ["one", "two", ""] {
            assert!(group.consumer(name.as_bytes(), 5).1);
        }
        group.activate(1, 77);
        for _ in 0..40 {
            let id = StreamId { ms: random.u64(..20), seq: random.u64(..) };
            let (delivered, deliveries) = (random.u64(..), random.u64(..9));
            let consumer = random.usize(..3);
            group.set_pending(PendingEntry { id, consumer, delivered, deliveries });
        }
        let mut bytes = Vec::new();
        group.encode(&mut bytes);
        assert_eq!(ConsumerGroup::parse(&bytes), Ok(group.clone()));
        assert!(group.fits());
        for length in 0..bytes.len() {
            assert_eq!(ConsumerGroup::parse(&bytes[..length]), Err(Damaged), "{length}");
        }
        for _ in 0..20_000 {
            let mut other = bytes.clone();
            let at = random.usize(..other.len());
            other[at] = random.u8(..);
            if let Ok(read) = ConsumerGroup::parse(&other) {
                let mut again = Vec::new();
                read.encode(&mut again);
                assert_eq!(ConsumerGroup::parse(&again), Ok(read));
            }
        }
    }

    /// Recorded from Valkey 9.1.2: six entries, of which the first was read, and those below the fourth
    /// were trimmed.
    #[test]
    fn the_lag_is_unknown_if_an_entry_was_deleted_that_was_not_read() {
        let id = |ms| StreamId { ms, seq: 0 };
        let group = ConsumerGroup::new(id(1), Some(1), 0);
        for (deleted, lag) in [(0, Some(5)), (1, Some(3)), (3, None), (5, None)] {
            let root = StreamRoot {
                count: 3,
                last_id: id(6),
                max_deleted: id(deleted),
                added: 6,
                first_id: id(4),
                ..StreamRoot::EMPTY
            };
            assert_eq!(group.lag(&root), lag, "deleted {deleted}");
        }
    }

    #[test]
    fn entries_that_are_added_together_are_those_added_one_by_one() {
        let mut random = fastrand::Rng::with_seed(2);
        for _ in 0..200 {
            let mut one_by_one = ConsumerGroup::default();
            one_by_one.consumer(b"a", 0);
            let entry = |random: &mut fastrand::Rng| {
                let id = StreamId { ms: random.u64(..40), seq: 0 };
                PendingEntry { id, consumer: 0, delivered: random.u64(..), deliveries: 1 }
            };
            (0..random.usize(..20)).for_each(|_| one_by_one.set_pending(entry(&mut random)));
            let mut together = one_by_one.clone();
            let new: BTreeMap<StreamId, PendingEntry> =
                (0..random.usize(..20)).map(|_| entry(&mut random)).map(|it| (it.id, it)).collect();
            new.values().for_each(|entry| one_by_one.set_pending(*entry));
            together.set_all_pending(new.into_values());
            assert_eq!(together, one_by_one);
        }
    }

    #[test]
    fn a_removed_consumer_takes_its_entries_along() {
        let mut group = ConsumerGroup::default();
        for name in [b"a", b"b", b"c"] {
            group.consumer(name, 0);
        }
        for seq in 1..10 {
            let id = StreamId { ms: 0, seq };
            let consumer = seq as usize % 3;
            group.set_pending(PendingEntry { id, consumer, delivered: 0, deliveries: 1 });
        }
        assert_eq!(group.remove_consumer(1), 3);
        let counts: Vec<usize> = group.pending_by_consumer().iter().map(Vec::len).collect();
        assert_eq!(counts, [3, 3]);
        assert_eq!(group.find_consumer(b"c"), Some(1));
        let two = StreamId { ms: 0, seq: 2 };
        assert_eq!(group.find_pending(two).map(|entry| entry.consumer), Some(1));
        assert_eq!(group.acknowledge(&BTreeSet::from([two, StreamId { ms: 0, seq: 4 }])), 1);
        assert_eq!(group.find_pending(two), None);
    }
}
