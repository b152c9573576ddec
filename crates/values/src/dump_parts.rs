//! The parts of a dump: lengths and strings in the encodings of Redis's RDB files, and the footer.

use crc_fast::CrcAlgorithm;
use types::limits::VALUE_BYTES_MAX;

/// The RDB version that Valkey 9 writes.
pub(crate) const VERSION: u16 = 80;
/// Size of version and checksum, in bytes.
pub(crate) const FOOTER_BYTES: usize = 10;

/// Length encodings, in the upper two bits of the first byte.
const LENGTH_6: u8 = 0;
const LENGTH_14: u8 = 1;
const LENGTH_LONG: u8 = 2;
const LENGTH_32: u8 = 0x80;
const LENGTH_64: u8 = 0x81;
/// First bytes of encodings other than a plain string.
const INTEGER_8: u8 = 0xc0;
const INTEGER_16: u8 = 0xc1;
const INTEGER_32: u8 = 0xc2;
pub(crate) const COMPRESSED: u8 = 0xc3;

/// Returns the dump of this type and value.
pub(crate) fn with_footer(mut out: Vec<u8>) -> Vec<u8> {
    out.extend_from_slice(&VERSION.to_le_bytes());
    let checksum = crc64(&out);
    out.extend_from_slice(&checksum.to_le_bytes());
    out
}

/// Appends a string, as an integer if it is one.
pub(crate) fn put_string(value: &[u8], out: &mut Vec<u8>) {
    match small_integer(value) {
        Some(number) => put_integer(number, out),
        None => put_bytes(value, out),
    }
}

/// Appends a string that is not encoded as an integer.
pub(crate) fn put_bytes(value: &[u8], out: &mut Vec<u8>) {
    put_length(value.len(), out);
    out.extend_from_slice(value);
}

/// Returns the number that the value represents in canonical form, if it fits 32 bits.
fn small_integer(value: &[u8]) -> Option<i32> {
    i32::try_from(crate::parse_integer(value)?).ok()
}

fn put_integer(number: i32, out: &mut Vec<u8>) {
    if let Ok(number) = i8::try_from(number) {
        out.push(INTEGER_8);
        out.extend_from_slice(&number.to_le_bytes());
    } else if let Ok(number) = i16::try_from(number) {
        out.push(INTEGER_16);
        out.extend_from_slice(&number.to_le_bytes());
    } else {
        out.push(INTEGER_32);
        out.extend_from_slice(&number.to_le_bytes());
    }
}

/// Appends a length.
pub(crate) fn put_length(length: usize, out: &mut Vec<u8>) {
    put_long_length(length as u64, out);
}

/// Appends a length or another number of up to 64 bits.
pub(crate) fn put_long_length(length: u64, out: &mut Vec<u8>) {
    match length {
        0..0x40 => out.push(length as u8),
        0x40..0x4000 => {
            out.extend_from_slice(&((length as u16) | u16::from(LENGTH_14) << 14).to_be_bytes());
        }
        0x4000..0x1_0000_0000 => {
            out.push(LENGTH_32);
            out.extend_from_slice(&(length as u32).to_be_bytes());
        }
        0x1_0000_0000.. => {
            out.push(LENGTH_64);
            out.extend_from_slice(&length.to_be_bytes());
        }
    }
}

/// Decodes a string in any encoding. Also returns the remaining bytes.
pub(crate) fn read_string(bytes: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    let number = |number: i32| itoa::Buffer::new().format(number).as_bytes().to_vec();
    Some(match bytes {
        [INTEGER_8, rest @ ..] => {
            let (bytes, rest) = rest.split_first_chunk()?;
            (number(i8::from_le_bytes(*bytes).into()), rest)
        }
        [INTEGER_16, rest @ ..] => {
            let (bytes, rest) = rest.split_first_chunk()?;
            (number(i16::from_le_bytes(*bytes).into()), rest)
        }
        [INTEGER_32, rest @ ..] => {
            let (bytes, rest) = rest.split_first_chunk()?;
            (number(i32::from_le_bytes(*bytes)), rest)
        }
        [COMPRESSED, rest @ ..] => {
            let (packed, rest) = read_length(rest)?;
            let (length, rest) = read_length(rest)?;
            let (packed, rest) = rest.split_at_checked(packed)?;
            (decompress(packed, length)?, rest)
        }
        bytes => {
            let (length, rest) = read_length(bytes)?;
            let (string, rest) = rest.split_at_checked(length)?;
            (string.to_vec(), rest)
        }
    })
}

/// Adds the length of a string to a total. `None`: together they do not fit into a value. A short
/// compressed string may contain millions of bytes, so a payload is refused before all are unpacked.
pub(crate) fn add_within_limit(total: &mut usize, string: &[u8]) -> Option<()> {
    *total += string.len();
    (*total <= VALUE_BYTES_MAX).then_some(())
}

/// Decodes a length up to the maximum value size. Also returns the remaining bytes.
pub(crate) fn read_length(bytes: &[u8]) -> Option<(usize, &[u8])> {
    let (length, rest) = read_long_length(bytes)?;
    let length = usize::try_from(length).ok().filter(|length| *length <= VALUE_BYTES_MAX)?;
    Some((length, rest))
}

/// Decodes a length or another number of up to 64 bits. Also returns the remaining bytes.
pub(crate) fn read_long_length(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let (&first, rest) = bytes.split_first()?;
    Some(match (first >> 6, first) {
        (LENGTH_6, _) => (first.into(), rest),
        (LENGTH_14, _) => {
            let (&second, rest) = rest.split_first()?;
            (u64::from(first & 0x3f) << 8 | u64::from(second), rest)
        }
        (LENGTH_LONG, LENGTH_32) => {
            let (length, rest) = rest.split_first_chunk()?;
            (u32::from_be_bytes(*length).into(), rest)
        }
        (LENGTH_LONG, LENGTH_64) => {
            let (length, rest) = rest.split_first_chunk()?;
            (u64::from_be_bytes(*length), rest)
        }
        _ => return None,
    })
}

/// Unpacks LZF: runs of bytes as they are, and references to bytes that were unpacked before.
fn decompress(packed: &[u8], length: usize) -> Option<Vec<u8>> {
    lzf::decompress(packed, length).ok().filter(|value| value.len() == length)
}

/// Returns the checksum of a dump.
pub(crate) fn crc64(bytes: &[u8]) -> u64 {
    crc_fast::checksum(CrcAlgorithm::Crc64Redis, bytes)
}
