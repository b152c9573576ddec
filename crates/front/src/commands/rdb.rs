//! The format of `DUMP`: the type, the value in the encoding of Redis's RDB files, the version of
//! that encoding, and a checksum over all of it.
//!
//! A value that is a small integer is encoded as one, as in Redis. Values are written without
//! compression, but compressed ones can be read.

use crc_fast::CrcAlgorithm;
use types::limits::VALUE_BYTES_MAX;

/// The RDB version that Valkey 9 writes.
const VERSION: u16 = 80;
const TYPE_STRING: u8 = 0;
/// Size of version and checksum, in bytes.
const FOOTER_BYTES: usize = 10;

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
const COMPRESSED: u8 = 0xc3;

/// The reason why a dump is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unreadable {
    /// The dump is too short, too new, or damaged.
    Footer,
    /// The dump contains another type than a string.
    OtherType,
    /// The checksum is correct, but the encoding is invalid.
    Body,
}

/// Encodes a value as a dump.
pub(super) fn dump(value: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(value.len() + 6 + FOOTER_BYTES);
    out.push(TYPE_STRING);
    match small_integer(value) {
        Some(number) => put_integer(number, &mut out),
        None => {
            put_length(value.len(), &mut out);
            out.extend_from_slice(value);
        }
    }
    out.extend_from_slice(&VERSION.to_le_bytes());
    let checksum = crc64(&out);
    out.extend_from_slice(&checksum.to_le_bytes());
    out
}

/// Decodes the value of a dump.
pub(super) fn restore(dump: &[u8]) -> Result<Vec<u8>, Unreadable> {
    let split = dump.len().checked_sub(FOOTER_BYTES).ok_or(Unreadable::Footer)?;
    let (signed, checksum) = dump.split_at(split + 2);
    let (body, version) = signed.split_at(split);
    let version = u16::from_le_bytes(version.try_into().map_err(|_| Unreadable::Footer)?);
    if version > VERSION || crc64(signed).to_le_bytes() != checksum {
        return Err(Unreadable::Footer);
    }
    match body {
        [TYPE_STRING, string @ ..] => read_string(string).ok_or(Unreadable::Body),
        [_, ..] => Err(Unreadable::OtherType),
        [] => Err(Unreadable::Body),
    }
}

/// Returns the number that the value represents in canonical form, if it fits 32 bits.
fn small_integer(value: &[u8]) -> Option<i32> {
    i32::try_from(super::parse_integer(value)?).ok()
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

fn put_length(length: usize, out: &mut Vec<u8>) {
    match length {
        0..0x40 => out.push(length as u8),
        0x40..0x4000 => {
            out.extend_from_slice(&((length as u16) | u16::from(LENGTH_14) << 14).to_be_bytes());
        }
        // A value has fewer than 2^32 bytes.
        _ => {
            out.push(LENGTH_32);
            out.extend_from_slice(&(length as u32).to_be_bytes());
        }
    }
}

/// Decodes a string in any encoding. Ignores trailing bytes.
fn read_string(bytes: &[u8]) -> Option<Vec<u8>> {
    let number = |number: i32| Some(itoa::Buffer::new().format(number).as_bytes().to_vec());
    match bytes {
        [INTEGER_8, rest @ ..] => number(i8::from_le_bytes(*rest.first_chunk()?).into()),
        [INTEGER_16, rest @ ..] => number(i16::from_le_bytes(*rest.first_chunk()?).into()),
        [INTEGER_32, rest @ ..] => number(i32::from_le_bytes(*rest.first_chunk()?)),
        [COMPRESSED, rest @ ..] => {
            let (packed, rest) = read_length(rest)?;
            let (length, rest) = read_length(rest)?;
            decompress(rest.get(..packed)?, length)
        }
        bytes => {
            let (length, rest) = read_length(bytes)?;
            rest.get(..length).map(<[u8]>::to_vec)
        }
    }
}

/// Decodes a length up to the maximum value size. Also returns the remaining bytes.
fn read_length(bytes: &[u8]) -> Option<(usize, &[u8])> {
    let (&first, rest) = bytes.split_first()?;
    let (length, rest) = match (first >> 6, first) {
        (LENGTH_6, _) => (usize::from(first), rest),
        (LENGTH_14, _) => {
            let (&second, rest) = rest.split_first()?;
            (usize::from(first & 0x3f) << 8 | usize::from(second), rest)
        }
        (LENGTH_LONG, LENGTH_32) => {
            let (length, rest) = rest.split_first_chunk()?;
            (u32::from_be_bytes(*length) as usize, rest)
        }
        (LENGTH_LONG, LENGTH_64) => {
            let (length, rest) = rest.split_first_chunk()?;
            (usize::try_from(u64::from_be_bytes(*length)).ok()?, rest)
        }
        _ => return None,
    };
    (length <= VALUE_BYTES_MAX).then_some((length, rest))
}

/// Unpacks LZF: runs of bytes as they are, and references to bytes that were unpacked before.
fn decompress(packed: &[u8], length: usize) -> Option<Vec<u8>> {
    lzf::decompress(packed, length).ok().filter(|value| value.len() == length)
}

fn crc64(bytes: &[u8]) -> u64 {
    crc_fast::checksum(CrcAlgorithm::Crc64Redis, bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Recorded from Valkey 9.1.2.
    const RECORDED: [(&[u8], &[u8]); 6] = [
        (b"1", b"\x00\xc0\x01P\x00\xe9R.'OSv\x08"),
        (b"-129", b"\x00\xc1\x7f\xffP\x00\xd8JK\xb9\xca\xd2\xe3t"),
        (b"40000", b"\x00\xc2@\x9c\x00\x00P\x00\xc6\xe7\xaa\x8em\xeb\xeb\x06"),
        (b"4000000000", b"\x00\n4000000000P\x00\x9bN\xd7v\x13\x14Q\xc1"),
        (b"hello", b"\x00\x05helloP\x00\xacX\x16\xe7\xfbfG\xfe"),
        (b"012", b"\x00\x03012P\x00@~\xaax\xca,\x8c\xf8"),
    ];

    #[test]
    fn the_checksum_is_that_of_redis() {
        assert_eq!(crc64(b"123456789"), 0xe9c6_d914_c4b8_d9ca);
    }

    #[test]
    fn dumps_are_those_of_valkey() {
        for (value, recorded) in RECORDED {
            assert_eq!(dump(value), recorded, "{}", value.escape_ascii());
            assert_eq!(restore(recorded), Ok(value.to_vec()));
        }
    }

    #[test]
    fn compressed_dumps_are_read() {
        let packed = b"\x00\xc3\t@\\\x01aa\xe0O\x00\x01aaP\x00u\x7f\x9f\x9eP5\xe3\xd3";
        assert_eq!(restore(packed), Ok(vec![b'a'; 92]));
    }

    #[test]
    fn values_of_any_length_come_back() {
        for length in [0, 1, 63, 64, 65, 16_383, 16_384, 100_000, VALUE_BYTES_MAX] {
            let value = vec![b'x'; length];
            assert_eq!(restore(&dump(&value)), Ok(value), "{length}");
        }
    }

    #[test]
    fn damaged_dumps_are_refused_and_random_bodies_harm_nobody() {
        let mut random = fastrand::Rng::with_seed(9);
        for (_, recorded) in RECORDED {
            let mut damaged = recorded.to_vec();
            damaged[random.usize(..recorded.len())] ^= 1 << random.u8(0..8);
            assert_eq!(restore(&damaged), Err(Unreadable::Footer));
            let cut = &recorded[..recorded.len() - 1];
            assert_eq!(restore(cut), Err(Unreadable::Footer));
        }
        for _ in 0..50_000 {
            let length = random.usize(0..30);
            let mut bytes: Vec<u8> = (0..length).map(|_| random.u8(..)).collect();
            if random.bool() {
                bytes.splice(0..0, [TYPE_STRING, COMPRESSED]);
            }
            bytes.extend_from_slice(&VERSION.to_le_bytes());
            let checksum = crc64(&bytes);
            bytes.extend_from_slice(&checksum.to_le_bytes());
            let _ = restore(&bytes);
        }
    }
}
