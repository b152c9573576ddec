//! The listpack, in which Redis stores small collections, as `DUMP` returns them: a header, entries
//! of a string or an integer each, and an end mark. Format: `listpack.md` of its author
//! (Sanfilippo, 2017).

use crate::dump_parts::read_string;
use crate::parse_integer;

/// Bytes of the header: total bytes (4) and number of entries (2).
const HEADER_BYTES: usize = 6;
const END: u8 = 0xff;

/// Returns the entries of the listpack in this string of a dump, integers as decimal text. `None` if
/// it is damaged.
pub(super) fn read(body: &[u8]) -> Option<Vec<Vec<u8>>> {
    read_entries(&read_string(body)?.0)
}

/// Returns the entries of a listpack, integers as decimal text. `None` if it is damaged.
pub(super) fn read_entries(bytes: &[u8]) -> Option<Vec<Vec<u8>>> {
    let (total, _) = bytes.split_first_chunk::<4>()?;
    if usize::try_from(u32::from_le_bytes(*total)).ok()? != bytes.len() {
        return None;
    }
    let mut rest = bytes.get(HEADER_BYTES..)?;
    let mut entries = Vec::new();
    while *rest.first()? != END {
        let (entry, behind) = read_entry(rest)?;
        entries.push(entry);
        let taken = rest.len() - behind.len();
        rest = behind.get(backward_bytes(taken)..)?;
    }
    (rest.len() == 1).then_some(entries)
}

/// Reads an entry without its length for reading backward. Returns it with the bytes behind it.
fn read_entry(bytes: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    let (&first, rest) = bytes.split_first()?;
    match first {
        0x00..=0x7f => Some((text(first.into()), rest)),
        0x80..=0xbf => {
            let (string, rest) = rest.split_at_checked(usize::from(first & 0x3f))?;
            Some((string.to_vec(), rest))
        }
        0xc0..=0xdf => {
            let (&second, rest) = rest.split_first()?;
            let number = i64::from(first & 0x1f) << 8 | i64::from(second);
            let signed = if number >= 1 << 12 { number - (1 << 13) } else { number };
            Some((text(signed), rest))
        }
        0xe0..=0xef => {
            let (&second, rest) = rest.split_first()?;
            let length = usize::from(first & 0x0f) << 8 | usize::from(second);
            let (string, rest) = rest.split_at_checked(length)?;
            Some((string.to_vec(), rest))
        }
        0xf0 => {
            let (length, rest) = rest.split_first_chunk::<4>()?;
            let length = usize::try_from(u32::from_le_bytes(*length)).ok()?;
            let (string, rest) = rest.split_at_checked(length)?;
            Some((string.to_vec(), rest))
        }
        0xf1..=0xf4 => {
            let width = [2, 3, 4, 8][usize::from(first - 0xf1)];
            let (number, rest) = rest.split_at_checked(width)?;
            Some((integer(number), rest))
        }
        0xf5..=0xff => None,
    }
}

/// Returns a little-endian two's complement integer of 1 to 8 bytes as decimal text.
pub(super) fn integer(bytes: &[u8]) -> Vec<u8> {
    let is_negative = bytes.last().is_some_and(|last| last & 0x80 != 0);
    let mut wide = [if is_negative { 0xff } else { 0 }; 8];
    for (to, from) in wide.iter_mut().zip(bytes) {
        *to = *from;
    }
    text(i64::from_le_bytes(wide))
}

/// Returns an integer as decimal text.
pub(super) fn text(number: i64) -> Vec<u8> {
    itoa::Buffer::new().format(number).as_bytes().to_vec()
}

/// Returns the bytes of the length for reading backward, behind an entry of this length.
fn backward_bytes(entry: usize) -> usize {
    match entry {
        0..0x80 => 1,
        0x80..0x3fff => 2,
        0x3fff..0x1f_ffff => 3,
        0x1f_ffff..0x0fff_ffff => 4,
        _ => 5,
    }
}

/// Most bytes of a listpack that is a list or a node of one (`list-max-listpack-size -2`).
pub(super) const LIST_BYTES_MAX: usize = 8192;

/// A listpack that is written.
#[derive(Debug, Default)]
pub(super) struct ListpackWriter {
    entries: Vec<u8>,
    count: usize,
}

impl ListpackWriter {
    /// Returns whether Redis adds a string of this list to the listpack.
    pub(super) fn has_room(&self, string: &[u8]) -> bool {
        HEADER_BYTES + self.entries.len() + 1 + string.len() <= LIST_BYTES_MAX
    }

    /// Appends a string, as an integer if it is the text of one.
    pub(super) fn push(&mut self, string: &[u8]) {
        match parse_integer(string) {
            Some(number) => self.push_number(number),
            None => {
                let start = self.entries.len();
                self.push_string(string);
                self.end_entry(start);
            }
        }
    }

    /// Appends an integer.
    pub(super) fn push_number(&mut self, number: i64) {
        let start = self.entries.len();
        self.push_integer(number);
        self.end_entry(start);
    }

    /// Appends the length of the entry that begins at `start`, for reading backward.
    fn end_entry(&mut self, start: usize) {
        let taken = self.entries.len() - start;
        let backward = backward_bytes(taken);
        for at in (0..backward).rev() {
            let more = if at + 1 == backward { 0 } else { 0x80 };
            self.entries.push((taken >> (7 * at)) as u8 & 0x7f | more);
        }
        self.count += 1;
    }

    fn push_integer(&mut self, number: i64) {
        let bytes = number.to_le_bytes();
        let (first, width) = match number {
            0..0x80 => return self.entries.push(number as u8),
            -0x1000..0x1000 => {
                let bits = (number & 0x1fff) as u16 | 0xc000;
                return self.entries.extend_from_slice(&bits.to_be_bytes());
            }
            -0x8000..0x8000 => (0xf1, 2),
            -0x80_0000..0x80_0000 => (0xf2, 3),
            -0x8000_0000..0x8000_0000 => (0xf3, 4),
            _ => (0xf4, 8),
        };
        self.entries.push(first);
        self.entries.extend_from_slice(&bytes[..width]);
    }

    fn push_string(&mut self, string: &[u8]) {
        match string.len() {
            length @ 0..0x40 => self.entries.push(0x80 | length as u8),
            length @ 0x40..0x1000 => {
                self.entries.extend_from_slice(&(0xe000 | length as u16).to_be_bytes());
            }
            length => {
                self.entries.push(0xf0);
                self.entries.extend_from_slice(&(length as u32).to_le_bytes());
            }
        }
        self.entries.extend_from_slice(string);
    }

    /// Returns the listpack; `None` if it has no entries.
    pub(super) fn end(self) -> Option<Vec<u8>> {
        let total = HEADER_BYTES + self.entries.len() + 1;
        let count = u16::try_from(self.count).unwrap_or(u16::MAX);
        let mut bytes = Vec::with_capacity(total);
        bytes.extend_from_slice(&(total as u32).to_le_bytes());
        bytes.extend_from_slice(&count.to_le_bytes());
        bytes.extend_from_slice(&self.entries);
        bytes.push(END);
        (self.count > 0).then_some(bytes)
    }
}
