//! Ids of stream entries: a time in milliseconds and a number within it.

use crate::numbers::parse_unsigned;

/// The id of a stream entry. Ids of a stream ascend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId {
    /// Time in milliseconds since 1970, if the server has chosen the id.
    pub ms: u64,
    /// Number among the entries of the same millisecond.
    pub seq: u64,
}

/// The id that a new entry gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NewStreamId {
    /// The time of the server.
    Generated,
    /// The next one of this millisecond.
    OfTime(u64),
    /// This one.
    Given(StreamId),
}

/// Longest argument that is read as an id, in bytes.
const ARGUMENT_BYTES_MAX: usize = 127;

impl StreamId {
    /// The lowest id, which no entry has.
    pub const MIN: StreamId = StreamId { ms: 0, seq: 0 };
    /// The highest id.
    pub const MAX: StreamId = StreamId { ms: u64::MAX, seq: u64::MAX };

    /// Returns the id after this one; `None` after the highest.
    pub fn next(self) -> Option<StreamId> {
        match self.seq.checked_add(1) {
            Some(seq) => Some(StreamId { seq, ..self }),
            None => Some(StreamId { ms: self.ms.checked_add(1)?, seq: 0 }),
        }
    }

    /// Returns the id before this one; `None` before the lowest.
    pub fn previous(self) -> Option<StreamId> {
        match self.seq.checked_sub(1) {
            Some(seq) => Some(StreamId { seq, ..self }),
            None => Some(StreamId { ms: self.ms.checked_sub(1)?, seq: u64::MAX }),
        }
    }

    /// Parses `ms-seq`, or `ms`, which gets `missing` as its number.
    pub fn parse(text: &[u8], missing: u64) -> Option<StreamId> {
        match NewStreamId::parse(text, missing)? {
            NewStreamId::Given(id) => Some(id),
            NewStreamId::Generated | NewStreamId::OfTime(_) => None,
        }
    }

    /// Parses an end of a range: like [`StreamId::parse`], or `-` or `+` for the lowest and highest
    /// id.
    pub fn parse_end(text: &[u8], missing: u64) -> Option<StreamId> {
        match text {
            b"-" => Some(StreamId::MIN),
            b"+" => Some(StreamId::MAX),
            text => StreamId::parse(text, missing),
        }
    }

    /// Returns the id as text.
    pub fn text(self) -> StreamIdText {
        let mut text = StreamIdText { bytes: [0; ID_TEXT_BYTES_MAX], length: 0 };
        let (mut ms, mut seq) = (itoa::Buffer::new(), itoa::Buffer::new());
        text.push(ms.format(self.ms).as_bytes());
        text.push(b"-");
        text.push(seq.format(self.seq).as_bytes());
        text
    }
}

impl NewStreamId {
    /// Parses `ms-seq`, `ms`, which gets `missing` as its number, or `ms-*`.
    pub fn parse(text: &[u8], missing: u64) -> Option<NewStreamId> {
        if text.len() > ARGUMENT_BYTES_MAX {
            return None;
        }
        match text.iter().position(|byte| *byte == b'-') {
            None => Some(NewStreamId::Given(StreamId { ms: parse_part(text)?, seq: missing })),
            Some(at) => {
                let ms = parse_part(&text[..at])?;
                match &text[at + 1..] {
                    b"*" => Some(NewStreamId::OfTime(ms)),
                    seq => Some(NewStreamId::Given(StreamId { ms, seq: parse_part(seq)? })),
                }
            }
        }
    }

    /// Returns the id of a new entry behind this last id, at this time. `None`: it is not higher.
    pub fn after(self, last: StreamId, now: u64) -> Option<StreamId> {
        let id = match self {
            NewStreamId::Generated if now > last.ms => StreamId { ms: now, seq: 0 },
            NewStreamId::Generated => last.next()?,
            NewStreamId::OfTime(ms) if ms == last.ms => {
                StreamId { ms, seq: last.seq.checked_add(1)? }
            }
            NewStreamId::OfTime(ms) => StreamId { ms, seq: 0 },
            NewStreamId::Given(id) => id,
        };
        (id > last).then_some(id)
    }
}

/// Parses a part of an id. Unlike other numbers it may have zeros, white space or a plus sign in
/// front, as in Redis.
fn parse_part(text: &[u8]) -> Option<u64> {
    if let Some(number) = parse_unsigned(text) {
        return Some(number);
    }
    let text = text.trim_ascii_start();
    let digits = text.strip_prefix(b"+").unwrap_or(text);
    let first = digits.iter().position(|digit| *digit != b'0')?;
    match &digits[first..] {
        [] => None,
        significant => parse_unsigned(significant),
    }
}

/// Most bytes of an id as text: two numbers of 20 digits.
const ID_TEXT_BYTES_MAX: usize = 41;

/// An id as text.
#[derive(Clone, Copy, Debug)]
pub struct StreamIdText {
    bytes: [u8; ID_TEXT_BYTES_MAX],
    length: usize,
}

impl StreamIdText {
    fn push(&mut self, part: &[u8]) {
        self.bytes[self.length..self.length + part.len()].copy_from_slice(part);
        self.length += part.len();
    }
}

impl AsRef<[u8]> for StreamIdText {
    fn as_ref(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

/// Reads a number of 64 bits in base 128. Returns it with the bytes behind it.
#[inline]
pub(crate) fn read_long(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let mut number = 0_u64;
    for (at, &byte) in bytes.iter().take(LONG_BYTES_MAX).enumerate() {
        let part = u64::from(byte & 0x7f);
        let shift = 7 * at as u32;
        if part << shift >> shift != part {
            return None;
        }
        number |= part << shift;
        if byte < 0x80 {
            return Some((number, &bytes[at + 1..]));
        }
    }
    None
}

/// Appends a number of 64 bits in base 128.
#[inline]
pub(crate) fn write_long(mut number: u64, out: &mut Vec<u8>) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Most bytes of a number of 64 bits in base 128.
const LONG_BYTES_MAX: usize = 10;

/// Reads an id. Returns it with the bytes behind it.
#[inline]
pub(crate) fn read_id(bytes: &[u8]) -> Option<(StreamId, &[u8])> {
    let (ms, rest) = read_long(bytes)?;
    let (seq, rest) = read_long(rest)?;
    Some((StreamId { ms, seq }, rest))
}

/// Appends an id.
#[inline]
pub(crate) fn write_id(id: StreamId, out: &mut Vec<u8>) {
    write_long(id.ms, out);
    write_long(id.seq, out);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(ms: u64, seq: u64) -> StreamId {
        StreamId { ms, seq }
    }

    #[test]
    fn ids_are_read_as_redis_reads_them() {
        let highest = format!("{0}-{0}", u64::MAX);
        for (text, expected) in [
            ("5-7", Some(id(5, 7))),
            ("5", Some(id(5, 9))),
            ("0", Some(id(0, 9))),
            ("007-+3", Some(id(7, 3))),
            (" 5-0", Some(id(5, 0))),
            (highest.as_str(), Some(StreamId::MAX)),
            ("18446744073709551616-1", None),
            ("5-", None),
            ("-5", None),
            ("5-*", None),
            ("5-x", None),
            ("5-6-7", None),
            ("", None),
            ("-", None),
            ("+", None),
            ("*", None),
        ] {
            assert_eq!(StreamId::parse(text.as_bytes(), 9), expected, "{text:?}");
        }
        assert_eq!(StreamId::parse(&[b'1'; 128], 0), None);
        assert_eq!(StreamId::parse_end(b"-", 9), Some(StreamId::MIN));
        assert_eq!(StreamId::parse_end(b"+", 9), Some(StreamId::MAX));
        assert_eq!(NewStreamId::parse(b"5-*", 0), Some(NewStreamId::OfTime(5)));
        assert_eq!(id(12, 0).text().as_ref(), b"12-0");
        assert_eq!(StreamId::MAX.text().as_ref(), highest.as_bytes());
    }

    #[test]
    fn a_new_id_is_higher_than_the_last() {
        use NewStreamId::{Generated, Given, OfTime};
        let full = id(5, u64::MAX);
        for (new, last, expected) in [
            (Generated, id(5, 3), Some(id(10, 0))),
            (Generated, id(10, 3), Some(id(10, 4))),
            (Generated, id(11, u64::MAX), Some(id(12, 0))),
            (Generated, StreamId::MAX, None),
            (OfTime(5), id(5, 3), Some(id(5, 4))),
            (OfTime(6), id(5, 3), Some(id(6, 0))),
            (OfTime(5), full, None),
            (OfTime(4), full, None),
            (OfTime(0), StreamId::MIN, Some(id(0, 1))),
            (Given(id(5, 4)), id(5, 3), Some(id(5, 4))),
            (Given(id(5, 3)), id(5, 3), None),
        ] {
            assert_eq!(new.after(last, 10), expected, "{new:?} after {last:?}");
        }
    }

    #[test]
    fn neighbors_of_ids_carry() {
        assert_eq!(id(1, u64::MAX).next(), Some(id(2, 0)));
        assert_eq!(id(2, 0).previous(), Some(id(1, u64::MAX)));
        assert_eq!((StreamId::MAX.next(), StreamId::MIN.previous()), (None, None));
    }

    #[test]
    fn long_numbers_come_back_and_longer_ones_are_refused() {
        for number in [0, 1, 127, 128, 1 << 40, u64::MAX - 1, u64::MAX] {
            let mut bytes = Vec::new();
            write_long(number, &mut bytes);
            bytes.push(9);
            assert_eq!(read_long(&bytes), Some((number, &[9][..])));
        }
        assert_eq!(read_long(&[0xff; 9]), None);
        assert_eq!(read_long(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2]), None);
    }
}
