//! Consecutive entries, as stored in a segment.

use crate::Corrupt;
use crate::entry::Entry;

/// A reader of consecutive entries. It does not advance past an error.
#[derive(Clone, Debug)]
pub struct EntryReader<'a> {
    bytes: &'a [u8],
    offset: usize,
}

/// An entry with its position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadEntry<'a> {
    /// Offset of the entry in bytes.
    pub offset: usize,
    /// Its fields.
    pub entry: Entry<'a>,
    /// Its bytes, padding included.
    pub encoded: &'a [u8],
}

impl<'a> EntryReader<'a> {
    /// Creates a reader that begins at `offset`: the start of an entry or the end of the bytes.
    pub fn from(bytes: &'a [u8], offset: usize) -> EntryReader<'a> {
        EntryReader { bytes, offset }
    }

    /// Returns the offset of the next entry.
    #[inline]
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Returns whether no entries are left.
    #[inline]
    pub fn is_at_end(&self) -> bool {
        self.offset >= self.bytes.len()
    }

    /// Reads the next entry without its checksum, for bytes that were verified as a whole.
    #[inline]
    pub fn next_unchecked(&mut self) -> Option<Result<ReadEntry<'a>, Corrupt>> {
        self.next_with(|rest| {
            let entry = Entry::parse(rest)?;
            Ok((entry, entry.encoded_bytes()))
        })
    }

    /// Reads the next entry and verifies its checksum.
    #[inline]
    pub fn next_checked(&mut self) -> Option<Result<ReadEntry<'a>, Corrupt>> {
        self.next_with(Entry::parse_checked)
    }

    #[inline]
    fn next_with(
        &mut self,
        parse: impl FnOnce(&'a [u8]) -> Result<(Entry<'a>, usize), Corrupt>,
    ) -> Option<Result<ReadEntry<'a>, Corrupt>> {
        let offset = self.offset;
        let rest = self.bytes.get(offset..).filter(|rest| !rest.is_empty())?;
        let read = parse(rest).and_then(|(entry, taken)| {
            let encoded = rest.get(..taken).ok_or(Corrupt::Short { what: "log entry" })?;
            self.offset += taken;
            Ok(ReadEntry { offset, entry, encoded })
        });
        Some(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::Body;
    use types::{Incarnation, SegmentId, TypedValue, Version};

    fn segment() -> (Vec<u8>, Vec<usize>) {
        let object =
            |value| Body::Object { expiry: None, replaces: None, value: TypedValue::string(value) };
        let bodies = [object(&b"value"[..]), Body::CopiesOf(SegmentId(3)), object(b"")];
        let (mut bytes, mut offsets) = (Vec::new(), Vec::new());
        for body in bodies {
            let entry = match body {
                Body::CopiesOf(segment) => Entry::note(segment),
                body @ (Body::Object { .. } | Body::Tombstone { .. }) => Entry {
                    incarnation: Incarnation(1),
                    version: Version(2),
                    key: b"some key",
                    body,
                },
            };
            offsets.push(bytes.len());
            bytes.resize(bytes.len() + entry.encoded_bytes(), 0);
            entry.encode(&mut bytes[offsets[offsets.len() - 1]..]);
        }
        (bytes, offsets)
    }

    #[test]
    fn entries_are_met_in_order_from_wherever_one_begins() {
        let (bytes, offsets) = segment();
        for (number, &from) in offsets.iter().enumerate() {
            let mut reader = EntryReader::from(&bytes, from);
            for &offset in &offsets[number..] {
                assert_eq!(reader.offset(), offset);
                let mut other = reader.clone();
                let read = reader.next_checked().unwrap().unwrap();
                assert_eq!(Some(Ok(read)), other.next_unchecked());
                assert_eq!((read.offset, reader.offset()), (offset, offset + read.encoded.len()));
            }
            assert!(reader.is_at_end() && reader.next_checked().is_none());
        }
        assert!(EntryReader::from(&bytes, bytes.len() + 8).next_checked().is_none());
    }

    #[test]
    fn what_is_cut_or_changed_is_told_and_not_passed() {
        let (bytes, offsets) = segment();
        for length in offsets[1] + 1..offsets[2] {
            let mut reader = EntryReader::from(&bytes[..length], offsets[1]);
            assert!(reader.next_unchecked().unwrap().is_err());
            assert!(reader.next_checked().unwrap().is_err());
            assert_eq!(reader.offset(), offsets[1]);
        }
        let mut changed = bytes.clone();
        changed[offsets[2] - 1 - 7] ^= 1;
        let mut reader = EntryReader::from(&changed, offsets[1]);
        assert!(reader.next_checked().unwrap().is_err(), "its note names another segment");
    }
}
