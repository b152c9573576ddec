//! Streams in dumps: nodes of entries, keyed by the id of their first entry, the counters of the
//! stream, and its consumer groups (type 21 of Redis's RDB files; types 15 and 19 are read as well).
//!
//! A node is a listpack. It begins with the number of entries, the number of deleted entries that are
//! still there, and the field names of the first entry, ended by 0. An entry is its flags, the
//! distance of its id from that of the node, its fields, or only their values if it has the names of
//! the node, and the number of these parts.

use crate::dump_parts::{
    add_within_limit, put_bytes, put_length, put_long_length, read_length, read_long_length,
    read_string, with_footer,
};
use crate::listpack::{self, ListpackWriter};
use crate::packed::Damaged;
use crate::stream_block::{EntryBlock, StreamEntry};
use crate::stream_group::{ConsumerGroup, PendingEntry, StreamConsumer};
use crate::stream_id::StreamId;
use crate::stream_root::StreamRoot;
use std::borrow::Cow;
use std::collections::BTreeMap;
use types::limits::VALUE_BYTES_MAX;

/// Types of dumps: without and with the counters of the stream, and with the times at which consumers
/// received entries.
pub(crate) const TYPE_STREAM: u8 = 15;
pub(crate) const TYPE_STREAM_COUNTERS: u8 = 19;
pub(crate) const TYPE_STREAM_TIMES: u8 = 21;

/// Size of an id, in bytes.
const ID_BYTES: usize = 16;

/// Flags of an entry.
const DELETED: i64 = 1;
const COMMON_NAMES: i64 = 2;

/// Parts of an entry beside its fields: flags and the two parts of its id.
const FIXED_PARTS: usize = 3;

/// Most entries and bytes of a node that is written (the defaults of `stream-node-max-entries` and
/// `stream-node-max-bytes`).
const NODE_ENTRIES_MAX: usize = 100;
const NODE_BYTES_MAX: usize = 4096;

/// Most bytes of the entries of a stream, the names counted with each entry. Names are stored once per
/// node, so a short dump could stand for a stream of any length.
const ENTRY_BYTES_MAX: usize = 64 * VALUE_BYTES_MAX;

/// Most bytes that an entry and a part of it take beside the bytes of its parts.
const BYTES_OF_ENTRY: usize = 24;
const BYTES_OF_PART: usize = 4;

/// Most groups of a stream in a dump.
const GROUPS_MAX: usize = 1 << 16;

/// Number of read entries that stands for an unknown one.
const READ_UNKNOWN: u64 = u64::MAX;

/// A stream that was read from a dump.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RestoredStream {
    /// The entries, in order. No block is empty.
    pub(crate) blocks: Vec<EntryBlock<'static>>,
    /// Number of entries.
    pub(crate) count: u64,
    /// Most bytes of the entries, the names counted with each entry.
    pub(crate) entry_bytes: usize,
    pub(crate) last_id: StreamId,
    pub(crate) max_deleted: StreamId,
    pub(crate) added: u64,
    /// The groups, in the order of their names.
    pub(crate) groups: BTreeMap<Vec<u8>, ConsumerGroup<'static>>,
}

/// Encodes a stream with these entries and groups as a dump. They are all that its root names, unless
/// it is damaged.
pub fn dump_stream(
    root: &StreamRoot<'_>,
    entries: &[StreamEntry<'_>],
    groups: &[(&[u8], &ConsumerGroup<'_>)],
) -> Result<Vec<u8>, Damaged> {
    let ascends = entries.windows(2).all(|pair| pair[0].id < pair[1].id);
    let has_all = root.count == entries.len() as u64 && root.groups.len() == groups.len();
    if !ascends || !has_all {
        return Err(Damaged);
    }
    let mut out = vec![TYPE_STREAM_TIMES];
    put_nodes(entries, &mut out);
    put_length(entries.len(), &mut out);
    for id in [root.last_id, root.first_id, root.max_deleted] {
        put_id(id, &mut out);
    }
    put_long_length(root.added, &mut out);
    put_length(groups.len(), &mut out);
    for (name, group) in groups {
        put_bytes(name, &mut out);
        put_group(group, &mut out);
    }
    Ok(with_footer(out))
}

fn put_id(id: StreamId, out: &mut Vec<u8>) {
    put_long_length(id.ms, out);
    put_long_length(id.seq, out);
}

fn put_raw_id(id: StreamId, out: &mut Vec<u8>) {
    out.extend_from_slice(&id.ms.to_be_bytes());
    out.extend_from_slice(&id.seq.to_be_bytes());
}

/// Appends the nodes of these entries, and their number before them.
fn put_nodes(entries: &[StreamEntry<'_>], out: &mut Vec<u8>) {
    let (mut nodes, mut count, mut rest) = (Vec::new(), 0, entries);
    while let Some(first) = rest.first() {
        let (mut bytes, mut length) = (0, 0);
        for entry in rest.iter().take(NODE_ENTRIES_MAX) {
            bytes += EntryBlock::entry_bytes(entry.fields());
            if length > 0 && bytes > NODE_BYTES_MAX {
                break;
            }
            length += 1;
        }
        let (node, behind) = rest.split_at(length);
        let mut key = Vec::with_capacity(ID_BYTES);
        put_raw_id(first.id, &mut key);
        put_bytes(&key, &mut nodes);
        put_bytes(&node_of(node), &mut nodes);
        (count, rest) = (count + 1, behind);
    }
    put_length(count, out);
    out.extend_from_slice(&nodes);
}

/// Returns the listpack of these entries, of which there is at least one.
fn node_of(entries: &[StreamEntry<'_>]) -> Vec<u8> {
    let mut node = ListpackWriter::default();
    let first = entries[0];
    let names = || first.fields().map(|(name, _)| name);
    node.push_number(entries.len() as i64);
    node.push_number(0);
    node.push_number(first.field_count() as i64);
    names().for_each(|name| node.push(name));
    node.push_number(0);
    for entry in entries {
        let (ms, seq) = (entry.id.ms - first.id.ms, entry.id.seq.wrapping_sub(first.id.seq));
        let is_common = entry.fields().map(|(name, _)| name).eq(names());
        node.push_number(if is_common { COMMON_NAMES } else { 0 });
        node.push_number(ms as i64);
        node.push_number(seq as i64);
        if !is_common {
            node.push_number(entry.field_count() as i64);
        }
        for (name, value) in entry.fields() {
            if !is_common {
                node.push(name);
            }
            node.push(value);
        }
        node.push_number(parts_of_entry(entry.field_count(), is_common) as i64);
    }
    node.end().unwrap_or_default()
}

/// Returns the number of the parts of an entry in a node.
fn parts_of_entry(fields: usize, is_common: bool) -> usize {
    FIXED_PARTS + if is_common { fields } else { 2 * fields + 1 }
}

fn put_group(group: &ConsumerGroup<'_>, out: &mut Vec<u8>) {
    put_id(group.last_id, out);
    put_long_length(group.read.unwrap_or(READ_UNKNOWN), out);
    put_length(group.pending().len(), out);
    let mut of_consumers = vec![Vec::new(); group.consumers().len()];
    for PendingEntry { id, consumer, delivered, deliveries } in group.pending() {
        put_raw_id(*id, out);
        out.extend_from_slice(&delivered.to_le_bytes());
        put_long_length(*deliveries, out);
        of_consumers[*consumer].push(*id);
    }
    put_length(group.consumers().len(), out);
    for at in group.consumers_by_name() {
        let StreamConsumer { name, seen, active } = &group.consumers()[at];
        put_bytes(name, out);
        out.extend_from_slice(&seen.to_le_bytes());
        out.extend_from_slice(&active.unwrap_or(NEVER).to_le_bytes());
        put_length(of_consumers[at].len(), out);
        of_consumers[at].iter().for_each(|id| put_raw_id(*id, out));
    }
}

/// Time that stands for no time: -1.
const NEVER: u64 = u64::MAX;

/// Reads a stream of one of the three types. `None` if it is damaged.
pub(crate) fn read_stream(number: u8, body: &[u8]) -> Option<RestoredStream> {
    let mut reader =
        StreamReader { rest: body, number, last: StreamId::MIN, bytes: 0, entry_bytes: 0 };
    let mut blocks = Vec::new();
    for _ in 0..reader.length()? {
        blocks.extend(reader.node()?);
    }
    let stored: u64 = blocks.iter().map(EntryBlock::count).sum();
    let (count, last_id) = (reader.long()?, reader.id()?);
    let (mut max_deleted, mut added) = (StreamId::MIN, count);
    if number != TYPE_STREAM {
        // The first id follows from the entries.
        reader.id()?;
        (max_deleted, added) = (reader.id()?, reader.long()?);
    }
    if count != stored || last_id < reader.last {
        return None;
    }
    let entry_bytes = reader.entry_bytes;
    let groups = BTreeMap::new();
    let mut stream =
        RestoredStream { blocks, count, entry_bytes, last_id, max_deleted, added, groups };
    let groups = reader.length()?;
    if groups > GROUPS_MAX {
        return None;
    }
    for _ in 0..groups {
        let (name, group) = (reader.string()?, reader.group()?);
        if stream.groups.insert(name, group).is_some() {
            return None;
        }
    }
    if number == TYPE_STREAM {
        stream.estimate_read();
    }
    reader.rest.is_empty().then_some(stream)
}

impl RestoredStream {
    /// Sets the numbers of entries that groups have read, as far as they follow from the entries.
    fn estimate_read(&mut self) {
        let first = self.blocks.first().and_then(|block| block.first_id().ok().flatten());
        let root = StreamRoot {
            count: self.count,
            last_id: self.last_id,
            added: self.added,
            first_id: first.unwrap_or(StreamId::MIN),
            ..StreamRoot::EMPTY
        };
        for group in self.groups.values_mut() {
            group.read = root.added_until(group.last_id);
        }
    }
}

/// A position within a dump.
struct StreamReader<'a> {
    rest: &'a [u8],
    /// Type of the dump.
    number: u8,
    /// Id of the last entry.
    last: StreamId,
    /// Bytes of the nodes so far.
    bytes: usize,
    /// Bytes of the entries so far.
    entry_bytes: usize,
}

impl StreamReader<'_> {
    fn length(&mut self) -> Option<usize> {
        let length;
        (length, self.rest) = read_length(self.rest)?;
        Some(length)
    }

    fn long(&mut self) -> Option<u64> {
        let number;
        (number, self.rest) = read_long_length(self.rest)?;
        Some(number)
    }

    fn string(&mut self) -> Option<Vec<u8>> {
        let string;
        (string, self.rest) = read_string(self.rest)?;
        add_within_limit(&mut self.bytes, &string)?;
        Some(string)
    }

    fn id(&mut self) -> Option<StreamId> {
        Some(StreamId { ms: self.long()?, seq: self.long()? })
    }

    fn raw_id(&mut self) -> Option<StreamId> {
        let id;
        (id, self.rest) = self.rest.split_first_chunk()?;
        Some(parse_raw_id(id))
    }

    fn time(&mut self) -> Option<u64> {
        let time;
        (time, self.rest) = self.rest.split_first_chunk()?;
        Some(u64::from_le_bytes(*time))
    }

    /// Reads a node. Returns its entries, unless all of them are deleted.
    fn node(&mut self) -> Option<Option<EntryBlock<'static>>> {
        let key = self.string()?;
        let master = parse_raw_id(key.as_slice().try_into().ok()?);
        let parts = listpack::read_entries(&self.string()?)?;
        let mut node = NodeReader { parts: parts.iter() };
        let (count, deleted) = (node.size()?, node.size()?);
        let names = node.size()?;
        let names = node.take(names)?;
        if node.number()? != 0 || names.is_empty() {
            return None;
        }
        let bytes_of = |parts: &[Vec<u8>]| {
            parts.iter().map(Vec::len).sum::<usize>() + parts.len() * BYTES_OF_PART
        };
        let name_bytes = bytes_of(names);
        let (mut block, mut left) = (EntryBlock::EMPTY, count);
        for _ in 0..count.checked_add(deleted)? {
            let entry = node.entry(master, names.len())?;
            if entry.is_deleted {
                continue;
            }
            if entry.id <= self.last {
                return None;
            }
            if block.count() == 0 {
                block.begin(entry.id, names.len() as u64, names.iter().map(|name| &name[..]));
            }
            self.entry_bytes += BYTES_OF_ENTRY + bytes_of(entry.parts);
            let parts = entry.parts.iter().map(|part| &part[..]);
            match entry.own {
                None => {
                    self.entry_bytes += name_bytes;
                    block.push_values(entry.id, parts);
                }
                Some(fields) => block.push_fields(entry.id, fields as u64, parts),
            }
            if self.entry_bytes > ENTRY_BYTES_MAX {
                return None;
            }
            (self.last, left) = (entry.id, left.checked_sub(1)?);
        }
        let is_whole = left == 0 && node.parts.next().is_none();
        is_whole.then(|| Some(block).filter(|block| block.count() > 0))
    }

    /// Reads a group behind its name.
    fn group(&mut self) -> Option<ConsumerGroup<'static>> {
        let last_id = self.id()?;
        let read = if self.number == TYPE_STREAM { READ_UNKNOWN } else { self.long()? };
        let read = Some(read).filter(|read| *read != READ_UNKNOWN);
        if read.is_some_and(|read| i64::try_from(read).is_err()) {
            return None;
        }
        let mut pending = BTreeMap::new();
        for _ in 0..self.length()? {
            let id = self.raw_id()?;
            let (delivered, deliveries) = (self.time()?, self.long()?);
            let entry = PendingEntry { id, consumer: usize::MAX, delivered, deliveries };
            if pending.insert(id, entry).is_some() {
                return None;
            }
        }
        let mut consumers = Vec::new();
        for consumer in 0..self.length()? {
            let (name, seen) = (Cow::Owned(self.string()?), self.time()?);
            let active = if self.number == TYPE_STREAM_TIMES { self.time()? } else { seen };
            let active = Some(active).filter(|active| *active != NEVER);
            consumers.push(StreamConsumer { name, seen, active });
            for _ in 0..self.length()? {
                let entry = pending.get_mut(&self.raw_id()?)?;
                // Each pending entry has one consumer.
                if std::mem::replace(&mut entry.consumer, consumer) != usize::MAX {
                    return None;
                }
            }
        }
        ConsumerGroup::of_parts(last_id, read, consumers, pending.into_values().collect())
    }
}

fn parse_raw_id(bytes: &[u8; ID_BYTES]) -> StreamId {
    let number = u128::from_be_bytes(*bytes);
    StreamId { ms: (number >> 64) as u64, seq: number as u64 }
}

/// The parts of a node that are left.
struct NodeReader<'n> {
    parts: std::slice::Iter<'n, Vec<u8>>,
}

/// An entry of a node.
struct NodeEntry<'n> {
    id: StreamId,
    is_deleted: bool,
    /// Number of fields, if it has names of its own.
    own: Option<usize>,
    /// Values, or names and values in turn.
    parts: &'n [Vec<u8>],
}

impl<'n> NodeReader<'n> {
    fn number(&mut self) -> Option<i64> {
        crate::parse_integer(self.parts.next()?)
    }

    fn size(&mut self) -> Option<usize> {
        self.number()?.try_into().ok()
    }

    fn take(&mut self, count: usize) -> Option<&'n [Vec<u8>]> {
        let (taken, left) = self.parts.as_slice().split_at_checked(count)?;
        self.parts = left.iter();
        Some(taken)
    }

    /// Reads an entry of a node with this id and number of common names.
    fn entry(&mut self, node: StreamId, names: usize) -> Option<NodeEntry<'n>> {
        let (flags, ms, seq) = (self.number()?, self.number()?, self.number()?);
        if flags & !(DELETED | COMMON_NAMES) != 0 {
            return None;
        }
        let is_common = flags & COMMON_NAMES != 0;
        let fields = if is_common { names } else { self.size()? };
        let parts = self.take(fields.checked_mul(if is_common { 1 } else { 2 })?)?;
        if fields == 0 || self.size()? != parts_of_entry(fields, is_common) {
            return None;
        }
        let id = StreamId {
            ms: node.ms.wrapping_add(ms as u64),
            seq: node.seq.wrapping_add(seq as u64),
        };
        let own = (!is_common).then_some(fields);
        Some(NodeEntry { id, is_deleted: flags & DELETED != 0, own, parts })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dump::{Restored, Unreadable, restore};
    use crate::paged_stream::{PagedStream, StreamGap, StreamNeeds, StreamRange, StreamRoom};
    use crate::pages::ValueLayout;
    use crate::stream_root::GroupPlace;
    use fastrand::Rng;
    use types::Version;

    type Fields = Vec<(Vec<u8>, Vec<u8>)>;

    /// The contents of a stream.
    #[derive(Clone, Debug, PartialEq, Eq)]
    struct Contents {
        entries: Vec<(StreamId, Fields)>,
        last_id: StreamId,
        max_deleted: StreamId,
        added: u64,
        groups: BTreeMap<Vec<u8>, ConsumerGroup<'static>>,
    }

    impl Contents {
        fn random(random: &mut Rng) -> Contents {
            let mut id = StreamId { ms: random.u64(1..1 << 45), seq: random.u64(..) };
            let mut entries = Vec::new();
            for _ in 0..random.usize(..300) {
                id = match random.u64(..3) {
                    0 => StreamId { seq: id.seq.saturating_add(random.u64(1..9)), ..id },
                    ms => StreamId { ms: id.ms + ms, seq: random.u64(..4) },
                };
                entries.push((id, random_fields(random)));
            }
            entries.dedup_by_key(|(id, _)| *id);
            let groups = (0..random.usize(..4)).map(|_| {
                let name = vec![random.u8(b'a'..=b'y'); random.usize(..70)];
                (name, random_group(random, &entries))
            });
            Contents {
                groups: groups.collect(),
                last_id: StreamId { ms: id.ms + random.u64(..2), ..id },
                max_deleted: StreamId { ms: random.u64(..id.ms), seq: random.u64(..) },
                added: entries.len() as u64 + random.u64(..1 << 40),
                entries,
            }
        }

        fn dump(&self) -> Vec<u8> {
            let mut block = EntryBlock::EMPTY;
            for (id, fields) in &self.entries {
                block.push(*id, fields.iter().map(|(name, value)| (&name[..], &value[..])));
            }
            let place =
                |name: &Vec<u8>| GroupPlace { id: Version(1), name: Cow::Owned(name.clone()) };
            let root = StreamRoot {
                count: self.entries.len() as u64,
                last_id: self.last_id,
                max_deleted: self.max_deleted,
                added: self.added,
                first_id: self.entries.first().map_or(StreamId::MIN, |(id, _)| *id),
                groups: self.groups.keys().map(place).collect(),
                ..StreamRoot::EMPTY
            };
            let entries: Vec<StreamEntry<'_>> = block.entries().map(Result::unwrap).collect();
            let groups: Vec<(&[u8], &ConsumerGroup<'_>)> =
                self.groups.iter().map(|(name, group)| (&name[..], group)).collect();
            dump_stream(&root, &entries, &groups).unwrap()
        }

        fn of(stream: &RestoredStream) -> Contents {
            let entries = stream.blocks.iter().flat_map(EntryBlock::entries).map(Result::unwrap);
            let RestoredStream { last_id, max_deleted, added, groups, .. } = stream.clone();
            let entries = entries.map(|entry| (entry.id, fields_of(&entry))).collect();
            Contents { entries, last_id, max_deleted, added, groups }
        }
    }

    fn fields_of(entry: &StreamEntry<'_>) -> Fields {
        entry.fields().map(|(name, value)| (name.to_vec(), value.to_vec())).collect()
    }

    fn random_fields(random: &mut Rng) -> Fields {
        let names: &[&str] =
            [&["temperature", "humidity"][..], &["7", "b"], &["b"]][random.usize(..3)];
        let value = |random: &mut Rng| match random.usize(..3) {
            0 => random.i64(..).to_string().into_bytes(),
            1 => random.i16(..).to_string().into_bytes(),
            _ => vec![random.u8(..); random.usize(..90)],
        };
        names.iter().map(|name| (name.as_bytes().to_vec(), value(random))).collect()
    }

    fn random_group(random: &mut Rng, entries: &[(StreamId, Fields)]) -> ConsumerGroup<'static> {
        let consumers = random.usize(..4);
        let consumer = |at: usize, random: &mut Rng| StreamConsumer {
            name: Cow::Owned(format!("consumer {at}").into_bytes()),
            seen: random.u64(..1 << 50),
            active: random.bool().then(|| random.u64(..1 << 50)),
        };
        let mut pending = Vec::new();
        for (id, _) in entries.iter().filter(|_| consumers > 0) {
            if random.bool() {
                let (delivered, deliveries) = (random.u64(..1 << 50), random.u64(..300));
                let consumer = random.usize(..consumers);
                pending.push(PendingEntry { id: *id, consumer, delivered, deliveries });
            }
        }
        let consumers = (0..consumers).map(|at| consumer(at, random)).collect();
        let read = random.bool().then(|| random.u64(..1 << 40));
        let last_id = StreamId { ms: random.u64(..), seq: random.u64(..) };
        ConsumerGroup::of_parts(last_id, read, consumers, pending).unwrap()
    }

    fn restored(dump: &[u8]) -> RestoredStream {
        match restore(dump) {
            Ok(Restored::Stream(stream)) => stream,
            other => panic!("{other:?} is no stream"),
        }
    }

    /// The dump of a stream from which an entry was removed, with two groups; and that of a stream
    /// without entries. Recorded from Valkey 9.1.2.
    const RECORDED: [&[u8]; 2] = [
        b"\x15\x01\x10\x00\x00\x00\x00\x00\x00\x00\x05\x00\x00\x00\x00\x00\x00\x00\x01@^^\x00\x00\x00\x1f\x00\x03\x01\x01\x01\x02\x01\x84temp\x05\x83hum\x04\x00\x01\x02\x01\x00\x01\x00\x01\x15\x01<\x01\x05\x01\x03\x01\x00\x01\x01\x01\x16\x01=\x01\x05\x01\x00\x01\x00\x01\x06\x01\x01\x01\x85other\x06\x81x\x02\x06\x01\x02\x01\x04\x01\xdf\xff\x02\xdf\xfb\x02\x8along value\x0b\x05\x01\xff\x03\x09\x00\x05\x01\x05\x02\x04\x02\x01g\x05\x07\x81\xff\xff\xff\xff\xff\xff\xff\xff\x02\x00\x00\x00\x00\x00\x00\x00\x05\x00\x00\x00\x00\x00\x00\x00\x01:\x16\xb5\x1f\xa2\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00\x05\x00\x00\x00\x00\x00\x00\x00\x07\xe8\x03\x00\x00\x00\x00\x00\x00\x07\x02\x03one:\x16\xb5\x1f\xa2\x01\x00\x00:\x16\xb5\x1f\xa2\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00\x05\x00\x00\x00\x00\x00\x00\x00\x01\x03two:\x16\xb5\x1f\xa2\x01\x00\x00:\x16\xb5\x1f\xa2\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00\x05\x00\x00\x00\x00\x00\x00\x00\x07\x01h\x07\x00\x81\xff\xff\xff\xff\xff\xff\xff\xff\x00\x00P\x00\x0d\xe9U\xc4\xe6\x1c\x89\xaf",
        b"\x15\x00\x00\x03\x03\x00\x00\x00\x00\x01\x00P\x00\xe0\xc5\x97\xfdT\x9e\xfb\xf5",
    ];

    #[test]
    fn streams_of_valkey_are_read() {
        let id = |ms, seq| StreamId { ms, seq };
        let fields = |fields: &[(&str, &str)]| -> Fields {
            let owned = |text: &str| text.as_bytes().to_vec();
            fields.iter().map(|(name, value)| (owned(name), owned(value))).collect()
        };
        let now = 1_795_828_291_130;
        let consumer = |name: &'static [u8]| StreamConsumer {
            name: Cow::Borrowed(name),
            seen: now,
            active: Some(now),
        };
        let pending = vec![
            PendingEntry { id: id(5, 1), consumer: 0, delivered: now, deliveries: 1 },
            PendingEntry { id: id(5, 7), consumer: 1, delivered: 1_000, deliveries: 7 },
        ];
        let consumers = vec![consumer(b"one"), consumer(b"two")];
        let group = |last_id, consumers, pending| {
            ConsumerGroup::of_parts(last_id, None, consumers, pending).unwrap()
        };
        let expected = Contents {
            entries: vec![
                (id(5, 1), fields(&[("temp", "21"), ("hum", "60")])),
                (id(5, 7), fields(&[("other", "x")])),
                (id(9, 0), fields(&[("temp", "-5"), ("hum", "long value")])),
            ],
            last_id: id(9, 0),
            max_deleted: id(5, 2),
            added: 4,
            groups: BTreeMap::from([
                (b"g".to_vec(), group(id(5, 7), consumers, pending)),
                (b"h".to_vec(), group(id(7, 0), Vec::new(), Vec::new())),
            ]),
        };
        assert_eq!(Contents::of(&restored(RECORDED[0])), expected);
        let empty = restored(RECORDED[1]);
        assert_eq!((empty.count, empty.last_id, empty.added), (0, id(3, 3), 1));
        assert_eq!(Contents::of(&empty).dump(), RECORDED[1]);
        for recorded in RECORDED {
            let mut damaged = recorded.to_vec();
            damaged[5] ^= 1;
            assert_eq!(restore(&damaged), Err(Unreadable::Footer));
            assert_eq!(restore(&recorded[..recorded.len() - 1]), Err(Unreadable::Footer));
        }
    }

    #[test]
    fn streams_of_any_shape_come_back() {
        for seed in 0..200 {
            let contents = Contents::random(&mut Rng::with_seed(seed));
            let stream = restored(&contents.dump());
            assert_eq!(Contents::of(&stream), contents, "seed {seed}");
            assert_eq!(stream.count, contents.entries.len() as u64);
        }
    }

    #[test]
    fn a_restored_stream_is_in_the_root_or_in_pages() {
        let none = BTreeMap::new();
        let mut pages_seen = 0;
        for seed in 0..60 {
            let contents = Contents::random(&mut Rng::with_seed(seed));
            let stream = restored(&contents.dump());
            let layout = ValueLayout::with_packed(if seed % 2 == 0 { 64 } else { 4096 });
            let room = |needs: &StreamNeeds| StreamRoom {
                ids: (0..needs.ids).map(|at| Version(100 + at as u64)).collect(),
                pages: needs.pages.clone(),
            };
            let open = |needs: &StreamNeeds| {
                PagedStream::new(None, [].into_iter(), [].into_iter(), &none, room(needs))
            };
            let mut paged = open(&StreamNeeds::default());
            if let Err(StreamGap::Needs(needs)) = paged.restore(&stream, &layout) {
                paged = open(&needs);
                assert_eq!(paged.restore(&stream, &layout), Ok(()));
            }
            pages_seen = pages_seen.max(paged.root().interval.pages);
            let all = StreamRange {
                start: StreamId::MIN,
                end: StreamId::MAX,
                count: u64::MAX,
                hint: None,
            };
            let (entries, _) = paged.range(all).unwrap();
            let entries: Vec<_> = entries.iter().map(|it| (it.id, fields_of(it))).collect();
            assert_eq!(entries, contents.entries, "seed {seed}");
            for (name, group) in &contents.groups {
                assert_eq!(paged.group(name), Ok(Some(group)));
            }
            let mut bytes = Vec::new();
            paged.root().encode(&mut bytes);
            let value = types::TypedValue { value_type: types::ValueType::Stream, bytes: &bytes };
            assert_eq!(&StreamRoot::of(value).unwrap(), paged.root());
        }
        assert!(pages_seen > 2, "{pages_seen} pages");
    }

    #[test]
    fn changed_dumps_are_a_stream_or_refused_and_nothing_else() {
        let (mut read, mut refused) = (0, 0);
        for seed in 0..400 {
            let mut random = Rng::with_seed(seed);
            let dump = Contents::random(&mut random).dump();
            let body = &dump[..dump.len() - 10];
            for _ in 0..60 {
                let mut changed = body.to_vec();
                for _ in 0..random.usize(1..4) {
                    let at = random.usize(1..changed.len());
                    match random.u8(..4) {
                        0 => drop(changed.splice(at..at, [random.u8(..)])),
                        1 if changed.len() > 2 => drop(changed.remove(at)),
                        _ => changed[at] = random.u8(..),
                    }
                }
                changed[0] = [TYPE_STREAM, TYPE_STREAM_COUNTERS, TYPE_STREAM_TIMES]
                    [if random.u8(..8) == 0 { random.usize(..2) } else { 2 }];
                match restore(&with_footer(changed)) {
                    Ok(Restored::Stream(stream)) => {
                        read += 1;
                        let contents = Contents::of(&stream);
                        // Consumers come in the order of their names.
                        let (dump, again) = (contents.dump(), restored(&contents.dump()));
                        assert_eq!(Contents::of(&again).dump(), dump, "seed {seed}");
                    }
                    Ok(Restored::Value(value)) => panic!("{value:?} is no stream"),
                    Err(error) => {
                        refused += 1;
                        assert_eq!(error, Unreadable::Body, "seed {seed}");
                    }
                }
            }
        }
        assert!(read > 1_000 && refused > 1_000, "{read} read, {refused} refused");
    }

    /// Returns the body of a dump with one node of these parts, of so many entries, and no group.
    fn one_node(count: usize, parts: impl Fn(&mut ListpackWriter)) -> Vec<u8> {
        let mut node = ListpackWriter::default();
        parts(&mut node);
        let mut out = vec![TYPE_STREAM_TIMES, 1, 16];
        put_raw_id(StreamId { ms: 1, seq: 0 }, &mut out);
        put_bytes(&node.end().unwrap(), &mut out);
        put_length(count, &mut out);
        for id in [StreamId::MAX, StreamId::MIN, StreamId::MIN] {
            put_id(id, &mut out);
        }
        out.extend_from_slice(&[0, 0]);
        with_footer(out)
    }

    #[test]
    fn short_dumps_of_long_streams_are_refused() {
        let name = vec![b'n'; 2 << 20];
        let long = |count: usize| {
            one_node(count, |node| {
                [count as i64, 0, 1].into_iter().for_each(|number| node.push_number(number));
                node.push(&name);
                node.push_number(0);
                for at in 0..count {
                    let entry = [COMMON_NAMES, at as i64, 0, 7, 4];
                    entry.into_iter().for_each(|number| node.push_number(number));
                }
            })
        };
        assert_eq!(restored(&long(50)).count, 50);
        assert_eq!(restore(&long(100_000)), Err(Unreadable::Body));
    }

    #[test]
    fn entries_without_fields_and_numbers_that_do_not_agree_are_refused() {
        let node = |count: usize, parts: &[&[u8]]| {
            restore(&one_node(count, |node| parts.iter().for_each(|part| node.push(part)))).is_ok()
        };
        let good: [&[u8]; 10] = [b"1", b"0", b"1", b"f", b"0", b"2", b"0", b"0", b"v", b"4"];
        assert!(node(1, &good));
        for (at, part) in [
            (0, &b"2"[..]),
            (0, b"x"),
            (0, b"-1"),
            (1, b"1"),
            (2, b"0"),
            (2, b"9"),
            (4, b"1"),
            (5, b"0"),
            (5, b"3"),
            (5, b"4"),
            (6, b"-1"),
            (9, b"5"),
        ] {
            let mut bad = good;
            bad[at] = part;
            assert!(!node(1, &bad), "{at} {}", part.escape_ascii());
        }
        assert!(!node(2, &good), "another number of entries");
        assert!(!node(1, &good[..9]), "a part is missing");
        assert!(!node(1, &[&good[..], &[b"1"]].concat()), "there is another part");
    }
}
