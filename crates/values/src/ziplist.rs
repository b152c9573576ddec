//! The ziplist, in which Redis up to version 6.2 stored small collections, as `DUMP` returns them: a
//! header, entries of a string or an integer each, and an end mark. Ballast reads ziplists and never
//! writes one. Format: "Redis RDB File Format" (rdb.fnordig.de).
//!
//! The format has most lengths twice, so that it can be read from both ends. A ziplist whose lengths
//! disagree is damaged.

use crate::dump_parts::read_string;
use crate::listpack::{integer, text};

/// Bytes of the header: total bytes (4), offset of the last entry (4) and number of entries (2).
const HEADER_BYTES: usize = 10;
/// The number of entries in the header of a ziplist with more entries than the header can count.
const COUNT_UNKNOWN: u16 = u16::MAX;
/// First byte of a length of the previous entry that takes 5 bytes; a smaller one takes this byte.
const PREVIOUS_LONG: u8 = 0xfe;
const END: u8 = 0xff;

/// Returns the entries of the ziplist in this string of a dump, integers as decimal text. `None` if
/// it is damaged.
pub(super) fn read(body: &[u8]) -> Option<Vec<Vec<u8>>> {
    read_entries(&read_string(body)?.0)
}

/// Returns the entries of a ziplist, integers as decimal text. `None` if it is damaged.
pub(super) fn read_entries(bytes: &[u8]) -> Option<Vec<Vec<u8>>> {
    let (total, rest) = bytes.split_first_chunk()?;
    let (last, rest) = rest.split_first_chunk()?;
    let (count, mut rest) = rest.split_first_chunk()?;
    assert_eq!(bytes.len() - rest.len(), HEADER_BYTES, "the header of a ziplist has other parts");
    let (mut entries, mut last_start, mut previous) = (Vec::new(), HEADER_BYTES, 0);
    while *rest.first()? != END {
        let (stated, behind) = read_previous(rest)?;
        let (entry, behind) = read_entry(behind)?;
        if stated != previous {
            return None;
        }
        entries.push(entry);
        last_start = bytes.len() - rest.len();
        previous = rest.len() - behind.len();
        assert!(previous >= 2, "an entry of a ziplist takes {previous} bytes");
        rest = behind;
    }
    let count = u16::from_le_bytes(*count);
    let agrees = rest.len() == 1
        && little_endian(*total)? == bytes.len()
        && little_endian(*last)? == last_start
        && (count == COUNT_UNKNOWN || usize::from(count) == entries.len());
    agrees.then_some(entries)
}

/// Reads the length of the previous entry. Returns it with the bytes behind it.
fn read_previous(bytes: &[u8]) -> Option<(usize, &[u8])> {
    let (&first, rest) = bytes.split_first()?;
    match first {
        0..PREVIOUS_LONG => Some((first.into(), rest)),
        PREVIOUS_LONG => {
            let (length, rest) = rest.split_first_chunk()?;
            Some((little_endian(*length)?, rest))
        }
        END => None,
    }
}

/// Reads an entry behind the length of the previous one. Returns it with the bytes behind it.
fn read_entry(bytes: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    let (&first, rest) = bytes.split_first()?;
    let string = |length: usize, rest| {
        let (string, rest) = <[u8]>::split_at_checked(rest, length)?;
        Some((string.to_vec(), rest))
    };
    let number = |width: usize| {
        let (number, rest) = rest.split_at_checked(width)?;
        Some((integer(number), rest))
    };
    match first {
        0x00..=0x3f => string(first.into(), rest),
        0x40..=0x7f => {
            let (&second, rest) = rest.split_first()?;
            string(usize::from(first & 0x3f) << 8 | usize::from(second), rest)
        }
        0x80..=0xbf => {
            let (length, rest) = rest.split_first_chunk()?;
            string(usize::try_from(u32::from_be_bytes(*length)).ok()?, rest)
        }
        0xc0 => number(2),
        0xd0 => number(4),
        0xe0 => number(8),
        0xf0 => number(3),
        0xfe => number(1),
        0xf1..=0xfd => Some((text(i64::from(first & 0x0f) - 1), rest)),
        0xc1..=0xcf | 0xd1..=0xdf | 0xe1..=0xef | END => None,
    }
}

fn little_endian(bytes: [u8; 4]) -> Option<usize> {
    usize::try_from(u32::from_le_bytes(bytes)).ok()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::parse_integer;

    /// Returns the ziplist of these entries in the shortest encodings, as Redis writes it.
    pub(crate) fn ziplist(entries: &[&[u8]]) -> Vec<u8> {
        ziplist_of(&entries.iter().map(|entry| encoded(entry)).collect::<Vec<_>>(), 0)
    }

    /// Returns the ziplist of these encoded entries. Lengths of previous entries from `long_from` on
    /// take 5 bytes, as all above 253 do.
    fn ziplist_of(entries: &[Vec<u8>], long_from: usize) -> Vec<u8> {
        let (mut bytes, mut last, mut previous) = (vec![0; HEADER_BYTES], HEADER_BYTES, 0);
        for entry in entries {
            last = bytes.len();
            if previous < 254 && (long_from == 0 || previous < long_from) {
                bytes.push(previous as u8);
            } else {
                bytes.push(PREVIOUS_LONG);
                bytes.extend_from_slice(&(previous as u32).to_le_bytes());
            }
            bytes.extend_from_slice(entry);
            previous = bytes.len() - last;
        }
        bytes.push(END);
        let count = u16::try_from(entries.len()).unwrap_or(u16::MAX);
        let total = bytes.len() as u32;
        bytes[..4].copy_from_slice(&total.to_le_bytes());
        bytes[4..8].copy_from_slice(&(last as u32).to_le_bytes());
        bytes[8..HEADER_BYTES].copy_from_slice(&count.to_le_bytes());
        bytes
    }

    /// Returns an entry without the length of the previous one.
    fn encoded(entry: &[u8]) -> Vec<u8> {
        if let Some(number) = parse_integer(entry) {
            let (first, width) = match number {
                0..=12 => return vec![0xf1 + number as u8],
                -0x80..0x80 => (0xfe, 1),
                -0x8000..0x8000 => (0xc0, 2),
                -0x80_0000..0x80_0000 => (0xf0, 3),
                -0x8000_0000..0x8000_0000 => (0xd0, 4),
                _ => (0xe0, 8),
            };
            return [&[first][..], &number.to_le_bytes()[..width]].concat();
        }
        let head = match entry.len() {
            length @ 0..0x40 => vec![length as u8],
            length @ 0x40..0x4000 => (0x4000 | length as u16).to_be_bytes().to_vec(),
            length => [&[0x80][..], &(length as u32).to_be_bytes()].concat(),
        };
        [&head, entry].concat()
    }

    /// Every encoding of an entry, with the entry.
    fn encodings() -> Vec<(Vec<u8>, Vec<u8>)> {
        let long = [&b"\x80\x00\x00\x40\x00"[..], &[b'l'; 0x4000]].concat();
        let middle = [&b"\x41\x00"[..], &[b'm'; 0x100]].concat();
        let short = [&b"\x3f"[..], &[b's'; 0x3f]].concat();
        let entries: [(&[u8], &[u8]); 20] = [
            (b"\x00", b""),
            (b"\x01a", b"a"),
            (&short, &[b's'; 0x3f]),
            (b"\x40\x02ab", b"ab"),
            (&middle, &[b'm'; 0x100]),
            (b"\x80\x00\x00\x00\x03abc", b"abc"),
            (&long, &[b'l'; 0x4000]),
            (b"\xf1", b"0"),
            (b"\xfd", b"12"),
            (b"\xfe\x0d", b"13"),
            (b"\xfe\x80", b"-128"),
            (b"\xc0\x80\x00", b"128"),
            (b"\xc0\x00\x80", b"-32768"),
            (b"\xf0\x00\x80\x00", b"32768"),
            (b"\xf0\x00\x00\x80", b"-8388608"),
            (b"\xf0\xff\xff\xff", b"-1"),
            (b"\xd0\x00\x00\x80\x00", b"8388608"),
            (b"\xd0\x00\x00\x00\x80", b"-2147483648"),
            (b"\xe0\x00\x00\x00\x80\x00\x00\x00\x00", b"2147483648"),
            (b"\xe0\x00\x00\x00\x00\x00\x00\x00\x80", b"-9223372036854775808"),
        ];
        entries.map(|(encoding, entry)| (encoding.to_vec(), entry.to_vec())).to_vec()
    }

    #[test]
    fn every_encoding_of_an_entry_is_read() {
        let (encoded, expected): (Vec<_>, Vec<_>) = encodings().into_iter().unzip();
        for (encoded, expected) in encoded.iter().zip(&expected) {
            let read = read_entries(&ziplist_of(std::slice::from_ref(encoded), 0));
            assert_eq!(read, Some(vec![expected.clone()]), "{}", encoded.escape_ascii());
        }
        for long_from in [0, 1, 3, 10] {
            let read = read_entries(&ziplist_of(&encoded, long_from));
            assert_eq!(read.as_ref(), Some(&expected), "5 bytes from {long_from} on");
        }
    }

    #[test]
    fn bytes_that_begin_no_entry_are_refused() {
        for first in (0xc1..=0xcf).chain(0xd1..=0xdf).chain(0xe1..=0xef).chain([0xff]) {
            let mut entry = vec![b'x'; 9];
            entry[0] = first;
            assert_eq!(read_entries(&ziplist_of(&[entry], 0)), None, "{first:#x}");
        }
    }

    #[test]
    fn a_ziplist_without_entries_is_read() {
        let empty = b"\x0b\x00\x00\x00\x0a\x00\x00\x00\x00\x00\xff";
        assert_eq!(ziplist(&[]), empty);
        assert_eq!(read_entries(empty), Some(Vec::new()));
    }

    #[test]
    fn random_entries_come_back() {
        let mut random = fastrand::Rng::with_seed(61);
        for _ in 0..300 {
            let entries: Vec<Vec<u8>> = (0..random.usize(0..40))
                .map(|_| match random.u8(0..3) {
                    0 => (random.i64(..) >> random.u32(0..64)).to_string().into_bytes(),
                    1 => vec![b'x'; random.usize(0..80)],
                    _ => (0..random.usize(0..400)).map(|_| random.u8(..)).collect(),
                })
                .collect();
            let encoded: Vec<Vec<u8>> = entries.iter().map(|entry| encoded(entry)).collect();
            let bytes = ziplist_of(&encoded, random.usize(0..300));
            assert_eq!(read_entries(&bytes), Some(entries));
        }
    }

    #[test]
    fn more_entries_than_the_header_can_count_are_read() {
        let mut bytes = ziplist(&[b"a", b"b"]);
        bytes[8..HEADER_BYTES].copy_from_slice(&COUNT_UNKNOWN.to_le_bytes());
        assert_eq!(read_entries(&bytes), Some(vec![b"a".to_vec(), b"b".to_vec()]));
        let bytes = ziplist(&vec![&b"7"[..]; 70_000]);
        assert_eq!(read_entries(&bytes).map(|entries| entries.len()), Some(70_000));
    }

    #[test]
    fn lengths_that_disagree_are_refused() {
        let bytes = ziplist(&[b"one", b"two", b"3"]);
        assert!(read_entries(&bytes).is_some());
        // Total bytes, offset of the last entry, number of entries, lengths of previous entries and
        // of strings.
        for at in [0, 1, 3, 4, 5, 7, 8, 9, 10, 11, 15, 16, 20] {
            for change in [1, u8::MAX] {
                let mut damaged = bytes.clone();
                damaged[at] = damaged[at].wrapping_add(change);
                assert_eq!(read_entries(&damaged), None, "byte {at} plus {change}");
            }
        }
        let huge = b"\x12\x00\x00\x00\x0a\x00\x00\x00\x01\x00\x00\x80\xff\xff\xff\xff\x61\xff";
        assert_eq!(read_entries(huge), None);
    }

    #[test]
    fn a_truncated_or_extended_ziplist_is_refused() {
        let (encoded, _): (Vec<_>, Vec<_>) =
            encodings().into_iter().filter(|(encoding, _)| encoding.len() < 0x1000).unzip();
        let bytes = ziplist_of(&encoded, 3);
        assert!(read_entries(&bytes).is_some());
        for end in 0..bytes.len() {
            let mut cut = bytes[..end].to_vec();
            assert_eq!(read_entries(&cut), None, "{end} bytes");
            // The total is that of the bytes present, so the parts of the entries are at fault.
            if let Some(total) = cut.first_chunk_mut() {
                *total = (end as u32).to_le_bytes();
            }
            assert_eq!(read_entries(&cut), None, "{end} bytes, as stated");
        }
        let mut longer = bytes;
        longer.push(END);
        let total = longer.len() as u32;
        longer[..4].copy_from_slice(&total.to_le_bytes());
        assert_eq!(read_entries(&longer), None);
    }

    #[test]
    fn random_bytes_give_entries_or_an_error() {
        let mut random = fastrand::Rng::with_seed(62);
        let mut accepted = 0;
        for _ in 0..200_000 {
            let entries: Vec<Vec<u8>> = (0..random.usize(0..4))
                .map(|_| (0..random.usize(1..12)).map(|_| random.u8(..)).collect())
                .collect();
            let mut bytes = ziplist_of(&entries, random.usize(0..12));
            if random.bool() {
                let at = random.usize(..bytes.len());
                bytes[at] = random.u8(..);
            }
            if let Some(read) = read_entries(&bytes) {
                accepted += 1;
                assert!(read.len() * 2 + HEADER_BYTES < bytes.len());
                let read: Vec<&[u8]> = read.iter().map(|entry| &entry[..]).collect();
                let again = read_entries(&ziplist(&read));
                assert!(again.is_some_and(|again| again == read));
            }
        }
        assert!((10_000..190_000).contains(&accepted), "{accepted} of the ziplists are right");
    }
}
