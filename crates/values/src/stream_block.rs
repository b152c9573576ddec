//! Consecutive entries of a stream: the contents of a page, or the end of the stream in its root.
//!
//! A block begins with the number of entries and a *base*, an id that is at most that of the first
//! entry and higher than that of every entry before the block. The field names of one entry follow. An
//! entry with the same names contains only its values. Ids are relative to the base, so an entry can
//! be removed without a change of the others.
//!
//! Numbers are little-endian base 128. A block is the number of entries, the base (2 numbers), the
//! number of common names, the names, and the entries. A block that never had an entry ends behind
//! its base. An entry is the milliseconds since the base; its sequence number, or the distance from
//! that of the base if the milliseconds are 0; and the number of its fields, followed by names and
//! values in turn. That number is 0 if the names are the common ones: then only the values follow.

use crate::packed::{Damaged, read_part, write_part};
use crate::stream_id::{StreamId, read_id, read_long, write_id, write_long};
use std::borrow::Cow;

/// Consecutive entries of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryBlock<'a> {
    count: u64,
    base: StreamId,
    /// The common names and the entries; empty if the block never had an entry.
    body: Cow<'a, [u8]>,
}

/// An entry of a stream.
#[derive(Clone, Copy, Debug)]
pub struct StreamEntry<'a> {
    /// The id.
    pub id: StreamId,
    names: FieldNames<'a>,
    /// The values, or names and values in turn.
    body: &'a [u8],
}

/// The names of an entry's fields.
#[derive(Clone, Copy, Debug)]
enum FieldNames<'a> {
    /// This number, in turn with the values.
    Own(u64),
    /// The common ones of the block.
    Common { count: u64, bytes: &'a [u8] },
}

impl<'a> StreamEntry<'a> {
    /// Returns the number of fields.
    pub fn field_count(&self) -> usize {
        match self.names {
            FieldNames::Own(count) | FieldNames::Common { count, .. } => count as usize,
        }
    }

    /// Returns the names and values of the fields, in order.
    pub fn fields(&self) -> EntryFields<'a> {
        let left = self.field_count();
        let names = match self.names {
            FieldNames::Own(_) => None,
            FieldNames::Common { bytes, .. } => Some(bytes),
        };
        EntryFields { left, names, rest: self.body }
    }
}

/// Iterator over the names and values of an entry.
#[derive(Clone, Debug)]
pub struct EntryFields<'a> {
    left: usize,
    /// The names that are left, if they are not among `rest`.
    names: Option<&'a [u8]>,
    rest: &'a [u8],
}

impl<'a> Iterator for EntryFields<'a> {
    type Item = (&'a [u8], &'a [u8]);

    fn next(&mut self) -> Option<(&'a [u8], &'a [u8])> {
        self.left = self.left.checked_sub(1)?;
        let name = match &mut self.names {
            Some(names) => next_part(names)?,
            None => next_part(&mut self.rest)?,
        };
        Some((name, next_part(&mut self.rest)?))
    }
}

fn next_part<'a>(bytes: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (part, rest) = read_part(bytes)?;
    *bytes = rest;
    Some(part)
}

/// Passes over so many parts. Returns the bytes behind them.
fn skip_parts(mut bytes: &[u8], parts: u64) -> Option<&[u8]> {
    for _ in 0..parts {
        (_, bytes) = read_part(bytes)?;
    }
    Some(bytes)
}

/// Iterator over the entries of a block.
#[derive(Clone, Debug)]
pub struct StreamEntries<'a> {
    left: u64,
    base: StreamId,
    last: Option<StreamId>,
    /// The common names; `None`: they are damaged.
    names: Option<CommonNames<'a>>,
    rest: &'a [u8],
}

#[derive(Clone, Copy, Debug)]
struct CommonNames<'a> {
    count: u64,
    bytes: &'a [u8],
}

impl<'a> StreamEntries<'a> {
    fn read(&mut self) -> Option<StreamEntry<'a>> {
        let common = self.names?;
        let (ms, rest) = read_long(self.rest)?;
        let (seq, rest) = read_long(rest)?;
        let (own, body) = read_long(rest)?;
        let seq = if ms == 0 { self.base.seq.checked_add(seq)? } else { seq };
        let id = StreamId { ms: self.base.ms.checked_add(ms)?, seq };
        if self.last.is_some_and(|last| id <= last) {
            return None;
        }
        let (names, parts) = match own {
            0 => (FieldNames::Common { count: common.count, bytes: common.bytes }, common.count),
            own => (FieldNames::Own(own), own.checked_mul(2)?),
        };
        let rest = skip_parts(body, parts)?;
        let body = &body[..body.len() - rest.len()];
        (self.rest, self.last) = (rest, Some(id));
        Some(StreamEntry { id, names, body })
    }
}

impl<'a> Iterator for StreamEntries<'a> {
    type Item = Result<StreamEntry<'a>, Damaged>;

    fn next(&mut self) -> Option<Result<StreamEntry<'a>, Damaged>> {
        self.left = self.left.checked_sub(1)?;
        let entry = self.read().ok_or(Damaged);
        if entry.is_err() {
            self.left = 0;
        }
        Some(entry)
    }
}

impl<'a> EntryBlock<'a> {
    /// The block without entries.
    pub const EMPTY: EntryBlock<'static> =
        EntryBlock { count: 0, base: StreamId::MIN, body: Cow::Borrowed(&[]) };

    /// Returns the block of these bytes.
    pub fn parse(bytes: &'a [u8]) -> Result<EntryBlock<'a>, Damaged> {
        let (count, rest) = read_long(bytes).ok_or(Damaged)?;
        let (base, body) = read_id(rest).ok_or(Damaged)?;
        Ok(EntryBlock { count, base, body: Cow::Borrowed(body) })
    }

    /// Appends the block.
    pub fn encode(&self, out: &mut Vec<u8>) {
        write_long(self.count, out);
        write_id(self.base, out);
        out.extend_from_slice(&self.body);
    }

    /// Returns the number of entries.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns an id that is at most that of the first entry, and higher than those before the block.
    pub fn base(&self) -> StreamId {
        self.base
    }

    /// Returns about the length of the block in bytes: without its count and base.
    pub fn byte_count(&self) -> usize {
        self.body.len()
    }

    /// Returns the entries in order.
    pub fn entries(&self) -> StreamEntries<'_> {
        let body: &[u8] = &self.body;
        let (names, rest) = match common_names(body) {
            Some((names, rest)) => (Some(names), rest),
            None => (None, body),
        };
        StreamEntries { left: self.count, base: self.base, last: None, names, rest }
    }

    /// Returns the lowest id of an entry.
    pub fn first_id(&self) -> Result<Option<StreamId>, Damaged> {
        Ok(self.entries().next().transpose()?.map(|entry| entry.id))
    }

    /// Returns the highest id of an entry.
    pub fn last_id(&self) -> Result<Option<StreamId>, Damaged> {
        let mut last = None;
        for entry in self.entries() {
            last = Some(entry?.id);
        }
        Ok(last)
    }

    /// Returns the bytes that an entry with these fields takes at most.
    pub fn entry_bytes<'f>(fields: impl Iterator<Item = (&'f [u8], &'f [u8])>) -> usize {
        let part = |part: &[u8]| part.len() + 4;
        fields.map(|(name, value)| part(name) + part(value)).sum::<usize>() + 24
    }

    /// Adds an entry behind the others. Its id is higher than theirs.
    pub fn push<'f>(
        &mut self,
        id: StreamId,
        fields: impl Iterator<Item = (&'f [u8], &'f [u8])> + Clone,
    ) {
        let count = fields.clone().count() as u64;
        assert!(count > 0, "an entry has fields");
        if self.count == 0 {
            // The base and the names of entries that were removed do not fit the new one.
            self.body.to_mut().clear();
            self.begin(id, count, fields.clone().map(|(name, _)| name));
        }
        let has_common = common_names(&self.body).is_some_and(|(names, _)| {
            let mut bytes = names.bytes;
            names.count == count
                && fields.clone().all(|(name, _)| next_part(&mut bytes) == Some(name))
        });
        match has_common {
            true => self.push_values(id, fields.map(|(_, value)| value)),
            false => self.push_fields(id, count, fields.flat_map(|(name, value)| [name, value])),
        }
    }

    /// Gives a block that never had an entry its base and its common names.
    pub(crate) fn begin<'f>(
        &mut self,
        base: StreamId,
        count: u64,
        names: impl Iterator<Item = &'f [u8]>,
    ) {
        assert!(self.body.is_empty() && self.count == 0, "a block begins once");
        assert!(count > 0, "an entry has fields");
        self.base = base;
        let body = self.body.to_mut();
        write_long(count, body);
        for name in names {
            write_part(name, body);
        }
    }

    /// Adds an entry with the common names of the block, and these values.
    pub(crate) fn push_values<'f>(&mut self, id: StreamId, values: impl Iterator<Item = &'f [u8]>) {
        self.push_parts(id, 0, values);
    }

    /// Adds an entry with names of its own: `count` names and values in turn.
    pub(crate) fn push_fields<'f>(
        &mut self,
        id: StreamId,
        count: u64,
        fields: impl Iterator<Item = &'f [u8]>,
    ) {
        assert!(count > 0, "an entry has fields");
        self.push_parts(id, count, fields);
    }

    fn push_parts<'f>(&mut self, id: StreamId, own: u64, parts: impl Iterator<Item = &'f [u8]>) {
        assert!(!self.body.is_empty(), "a block begins before its first entry");
        assert!(id >= self.base, "the entries of a block have ids from its base on");
        let ms = id.ms - self.base.ms;
        let seq = if ms == 0 { id.seq - self.base.seq } else { id.seq };
        let body = self.body.to_mut();
        write_long(ms, body);
        write_long(seq, body);
        write_long(own, body);
        for part in parts {
            write_part(part, body);
        }
        self.count += 1;
    }

    /// Removes the entries that `keeps` does not want. Returns their number.
    pub fn retain(&mut self, mut keeps: impl FnMut(StreamId) -> bool) -> Result<u64, Damaged> {
        let mut entries = self.entries();
        let length = self.body.len();
        let mut start = length - entries.rest.len();
        let (mut kept, mut count) = (self.body[..start].to_vec(), 0);
        while let Some(entry) = entries.next() {
            let end = length - entries.rest.len();
            if keeps(entry?.id) {
                kept.extend_from_slice(&self.body[start..end]);
                count += 1;
            }
            start = end;
        }
        let removed = self.count - count;
        if removed > 0 {
            (self.body, self.count) = (Cow::Owned(kept), count);
        }
        Ok(removed)
    }

    /// Returns the block with bytes of its own.
    pub fn into_owned(self) -> EntryBlock<'static> {
        EntryBlock { body: Cow::Owned(self.body.into_owned()), ..self }
    }
}

/// Reads the common names of a block. Returns them with the entries behind them.
fn common_names(body: &[u8]) -> Option<(CommonNames<'_>, &[u8])> {
    let (count, bytes) = read_long(body)?;
    let rest = skip_parts(bytes, count)?;
    Some((CommonNames { count, bytes: &bytes[..bytes.len() - rest.len()] }, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    type Fields = Vec<(Vec<u8>, Vec<u8>)>;

    fn listed(block: &EntryBlock<'_>) -> Result<Vec<(StreamId, Fields)>, Damaged> {
        let fields = |entry: StreamEntry<'_>| {
            let fields = entry.fields().map(|(name, value)| (name.to_vec(), value.to_vec()));
            (entry.id, fields.collect())
        };
        block.entries().map(|entry| entry.map(fields)).collect()
    }

    fn random_fields(random: &mut fastrand::Rng) -> Fields {
        let name = |random: &mut fastrand::Rng| vec![random.u8(b'a'..b'd'); random.usize(0..3)];
        let value = |random: &mut fastrand::Rng| vec![b'v'; random.usize(0..200)];
        (0..random.usize(1..3)).map(|_| (name(random), value(random))).collect()
    }

    #[test]
    fn a_block_has_the_entries_that_were_added_and_not_removed() {
        let mut random = fastrand::Rng::with_seed(1);
        for _ in 0..300 {
            let (mut block, mut twin) = (EntryBlock::EMPTY, Vec::new());
            let mut id = StreamId { ms: random.u64(..1 << 50), seq: random.u64(..) };
            for _ in 0..random.usize(..40) {
                if random.u8(..) < 200 {
                    let (ms, seq) = (random.u64(..3), random.u64(1..5));
                    id = match ms {
                        0 => StreamId { seq: id.seq.saturating_add(seq), ..id },
                        ms => StreamId { ms: id.ms + ms, seq },
                    };
                    let fields = random_fields(&mut random);
                    let pairs = fields.iter().map(|(name, value)| (&name[..], &value[..]));
                    let before = block.byte_count();
                    let bytes = EntryBlock::entry_bytes(pairs.clone());
                    let names: usize = pairs.clone().map(|(name, _)| name.len() + 4).sum();
                    block.push(id, pairs);
                    assert!(block.byte_count() - before <= bytes + names + 4);
                    twin.push((id, fields));
                } else if let Some(at) = (!twin.is_empty()).then(|| random.usize(..twin.len())) {
                    let (gone, _) = twin.remove(at);
                    assert_eq!(block.retain(|id| id != gone), Ok(1));
                }
                let mut bytes = Vec::new();
                block.encode(&mut bytes);
                let read = EntryBlock::parse(&bytes).unwrap();
                assert_eq!(listed(&read).unwrap(), twin);
                assert_eq!(read.count(), twin.len() as u64);
                assert_eq!(read.first_id(), Ok(twin.first().map(|(id, _)| *id)));
                assert_eq!(read.last_id(), Ok(twin.last().map(|(id, _)| *id)));
                assert!(twin.first().is_none_or(|(id, _)| *id >= read.base()));
                block = read.into_owned();
            }
        }
    }

    #[test]
    fn common_names_are_stored_once() {
        let mut block = EntryBlock::EMPTY;
        for ms in 0..100 {
            let fields = [(&b"temperature"[..], &b"21"[..]), (b"humidity", b"60")];
            block.push(StreamId { ms: 1_700_000_000_000 + ms, seq: 0 }, fields.into_iter());
        }
        assert!(block.byte_count() < 100 * 9 + 40, "{} bytes", block.byte_count());
    }

    #[test]
    fn other_bytes_are_a_block_or_an_error_and_nothing_else() {
        let mut random = fastrand::Rng::with_seed(2);
        let mut block = EntryBlock::EMPTY;
        for ms in 1..20 {
            let fields = random_fields(&mut random);
            let fields = fields.iter().map(|(name, value)| (&name[..], &value[..]));
            block.push(StreamId { ms, seq: 0 }, fields);
        }
        let mut whole = Vec::new();
        block.encode(&mut whole);
        for length in 0..whole.len() {
            let cut = EntryBlock::parse(&whole[..length]);
            assert!(cut.is_err() || listed(&cut.unwrap()).is_err(), "{length}");
        }
        for _ in 0..20_000 {
            let mut bytes = whole.clone();
            for _ in 0..random.usize(1..4) {
                let at = random.usize(..bytes.len());
                bytes[at] = random.u8(..);
            }
            let Ok(mut block) = EntryBlock::parse(&bytes) else { continue };
            let read = listed(&block);
            let ascends = |entries: &Vec<(StreamId, Fields)>| {
                entries.windows(2).all(|pair| pair[0].0 < pair[1].0)
            };
            assert!(read.as_ref().is_ok_and(ascends) || read.is_err());
            assert_eq!(block.retain(|id| id.ms % 2 == 0).is_ok(), read.is_ok());
        }
    }
}
