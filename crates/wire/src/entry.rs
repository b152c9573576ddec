//! Log entries: objects, tombstones, and notes about copies.
//!
//! | offset | bytes | field |
//! | --- | --- | --- |
//! | 0 | 4 | CRC-32C of everything from offset 10 to the end of the value |
//! | 4 | 6 | incarnation (the incarnation of the range) |
//! | 10 | 1 | kind (low four bits) and flags (high four bits) |
//! | 11 | 3 | value length, with the type |
//! | 14 | 2 | key length |
//! | 16 | 8 | version |
//! | 24 | 8 | object with the expiry flag: expiry in ms since 1970 |
//! | then | 8 | object that *replaces*, tombstone: superseded location; note: segment |
//! | then | | key, type if *typed*, value, zero to seven bytes of padding up to a multiple of 8 |
//!
//! All numbers are little-endian. The checksum does not cover the incarnation, so that a migration's
//! target stores a received entry under its own incarnation without recomputing the checksum.

use crate::Corrupt;
use crate::checksum::{copy_with_crc32c, crc32c};
use types::{Incarnation, SegmentId, TypedValue, UnixMillis, ValueType, Version};

/// Bytes of the fixed part of an entry's header.
pub const HEADER_BYTES: usize = 24;
/// The offset of every entry is a multiple of this.
pub const ALIGNMENT: usize = 8;
/// Bytes of an expiry, a location, or a segment id.
const EXTRA_BYTES: usize = 8;
/// Offset at which the checksummed part begins.
const CHECKED_FROM: usize = 10;
/// Value length from which copying and checksumming piece by piece is faster than one after the
/// other.
const PIECEWISE_BYTES_MIN: usize = 32 << 10;

const KIND_MASK: u8 = 0x0f;
const KIND_OBJECT: u8 = 1;
const KIND_TOMBSTONE: u8 = 2;
const KIND_COPIES: u8 = 3;
/// Flag of an object with an expiry.
const FLAG_EXPIRY: u8 = 0x10;
/// Flag of an object that names the version it superseded.
const FLAG_REPLACES: u8 = 0x20;
/// Flag of an object whose value is not a string: its first byte is the type's number.
const FLAG_TYPED: u8 = 0x40;
/// Flag of a tombstone: the superseded version may be in any segment up to the named one.
const FLAG_UP_TO: u8 = 0x10;

/// All flags of an object.
const FLAGS_OF_OBJECT: u8 = FLAG_EXPIRY | FLAG_REPLACES | FLAG_TYPED;

/// Encoding of "no version here" in a tombstone.
const NOTHING: u64 = u64::MAX;
/// Bits of a packed location that hold the offset in units of 8 bytes.
const OFFSET_BITS: u32 = 24;

/// Bytes of a note about copies.
pub const NOTE_BYTES: usize = encoded_bytes(0, 0, 1);

/// The position of a version in its log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Location {
    /// The segment; its number is below 2^40.
    pub segment: SegmentId,
    /// Offset in the segment in bytes: a multiple of 8, below 2^27.
    pub offset: u32,
}

impl Location {
    #[inline]
    fn packed(self) -> u64 {
        assert!(self.segment.0 < 1 << (u64::BITS - OFFSET_BITS), "{self:?} does not fit");
        (self.segment.0 << OFFSET_BITS) | (u64::from(self.offset) / ALIGNMENT as u64)
    }

    #[inline]
    fn unpacked(packed: u64) -> Location {
        let units = packed & ((1 << OFFSET_BITS) - 1);
        Location {
            segment: SegmentId(packed >> OFFSET_BITS),
            offset: units as u32 * ALIGNMENT as u32,
        }
    }
}

/// The version that a tombstone supersedes. The tombstone is needed while that version exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dead {
    /// No version existed here; one may still arrive.
    Nothing,
    /// The version at this location.
    At(Location),
    /// A version in this segment or a lower one, at an unknown position.
    UpTo(SegmentId),
}

/// The content of an entry. The set is closed: cleaning, replay, migration and recovery match on
/// it without a wildcard, so that no code path can miss a new kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body<'a> {
    /// The key has this value.
    Object {
        /// Expiry of the record; `None`: never.
        expiry: Option<UnixMillis>,
        /// The superseded version of the key, if another segment contains it.
        replaces: Option<Location>,
        /// The value.
        value: TypedValue<'a>,
    },
    /// The key is deleted as of this version.
    Tombstone {
        /// The superseded version.
        dead: Dead,
    },
    /// A note without record: later entries of the segment may be copies from this segment, which
    /// must be freed first.
    CopiesOf(SegmentId),
}

/// The decoded fields of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// The incarnation (incarnation) of the range under which the entry was written.
    pub incarnation: Incarnation,
    /// The version: its place in the order of the key's writes.
    pub version: Version,
    /// The key.
    pub key: &'a [u8],
    /// The content.
    pub body: Body<'a>,
}

impl<'a> Entry<'a> {
    /// Creates a note that later entries of its segment may be copies from segment `of`.
    pub fn note(of: SegmentId) -> Entry<'static> {
        Entry {
            incarnation: Incarnation(0),
            version: Version(0),
            key: &[],
            body: Body::CopiesOf(of),
        }
    }

    /// Returns the bytes of the encoded entry, padding included.
    #[inline]
    pub fn encoded_bytes(&self) -> usize {
        let (extras, value) = match self.body {
            Body::Object { expiry, replaces, value } => {
                let extras = usize::from(expiry.is_some()) + usize::from(replaces.is_some());
                (extras, value.stored_bytes())
            }
            Body::Tombstone { .. } | Body::CopiesOf(_) => (1, 0),
        };
        encoded_bytes(self.key.len(), value, extras)
    }

    /// Returns kind and flags, the extra numbers in order, and the value.
    #[inline]
    fn parts(&self) -> (u8, [Option<u64>; 2], TypedValue<'a>) {
        const NONE: TypedValue<'_> = TypedValue::string(&[]);
        match self.body {
            Body::Object { expiry, replaces, value } => {
                let expires = if expiry.is_some() { FLAG_EXPIRY } else { 0 };
                let names = if replaces.is_some() { FLAG_REPLACES } else { 0 };
                let typed = if value.value_type == ValueType::String { 0 } else { FLAG_TYPED };
                let extras = [expiry.map(|at| at.0), replaces.map(Location::packed)];
                (KIND_OBJECT | expires | names | typed, extras, value)
            }
            Body::Tombstone { dead: Dead::Nothing } => {
                (KIND_TOMBSTONE, [Some(NOTHING), None], NONE)
            }
            Body::Tombstone { dead: Dead::At(location) } => {
                (KIND_TOMBSTONE, [Some(location.packed()), None], NONE)
            }
            Body::Tombstone { dead: Dead::UpTo(segment) } => {
                (KIND_TOMBSTONE | FLAG_UP_TO, [Some(segment.0), None], NONE)
            }
            Body::CopiesOf(segment) => (KIND_COPIES, [Some(segment.0), None], NONE),
        }
    }

    /// Encodes the entry into the first [`Entry::encoded_bytes`] bytes of `out`.
    ///
    /// # Panics
    /// If `out` is too short, or key, value, incarnation or segment exceed their limits. That is a
    /// bug, because commands check their arguments.
    #[inline]
    pub fn encode(&self, out: &mut [u8]) {
        let bytes = self.encoded_bytes();
        let (kind, extras, value) = self.parts();
        assert!(self.key.len() <= types::limits::KEY_BYTES_MAX, "key of {} bytes", self.key.len());
        let (value_length, value_type, value) =
            (value.stored_bytes(), value.value_type, value.bytes);
        assert!(value_length <= types::limits::VALUE_BYTES_MAX, "value of {value_length} bytes");
        assert!(
            self.incarnation <= Incarnation::MAX,
            "incarnation {} does not fit",
            self.incarnation
        );
        let out = &mut out[..bytes];
        out[4..10].copy_from_slice(&self.incarnation.0.to_le_bytes()[..6]);
        out[10] = kind;
        out[11..14].copy_from_slice(&(value_length as u32).to_le_bytes()[..3]);
        out[14..16].copy_from_slice(&(self.key.len() as u16).to_le_bytes());
        out[16..24].copy_from_slice(&self.version.0.to_le_bytes());
        let mut at = HEADER_BYTES;
        for extra in extras.into_iter().flatten() {
            out[at..at + EXTRA_BYTES].copy_from_slice(&extra.to_le_bytes());
            at += EXTRA_BYTES;
        }
        out[at..at + self.key.len()].copy_from_slice(self.key);
        at += self.key.len();
        if value_type != ValueType::String {
            out[at] = value_type.number();
            at += 1;
        }
        let end = at + value.len();
        let crc = if value.len() < PIECEWISE_BYTES_MIN {
            out[at..end].copy_from_slice(value);
            crc32c(&out[CHECKED_FROM..end])
        } else {
            copy_with_crc32c(crc32c(&out[CHECKED_FROM..at]), value, &mut out[at..end])
        };
        out[end..].fill(0);
        out[0..4].copy_from_slice(&crc.to_le_bytes());
    }

    /// Decodes the entry at the beginning of `bytes` without verifying its checksum.
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Entry<'a>, Corrupt> {
        const SHORT: Corrupt = Corrupt::Short { what: "log entry" };
        const UNKNOWN: Corrupt = Corrupt::Invalid { what: "kind of log entry" };
        let header: &[u8; HEADER_BYTES] = bytes.first_chunk().ok_or(SHORT)?;
        let number = |at: usize, length: usize| {
            let mut wide = [0u8; 8];
            wide[..length].copy_from_slice(&header[at..at + length]);
            u64::from_le_bytes(wide)
        };
        let incarnation = Incarnation(number(4, 6));
        let value_length = number(11, 3) as usize;
        let key_length = number(14, 2) as usize;
        let version = Version(number(16, 8));
        let mut rest = &bytes[HEADER_BYTES..];
        let mut extra = || -> Result<u64, Corrupt> {
            let (extra, behind) = rest.split_first_chunk::<EXTRA_BYTES>().ok_or(SHORT)?;
            rest = behind;
            Ok(u64::from_le_bytes(*extra))
        };
        let kind = header[10];
        let (mut expiry, mut replaces, mut other) = (None, None, None);
        match kind & KIND_MASK {
            KIND_OBJECT if kind & !(KIND_MASK | FLAGS_OF_OBJECT) == 0 => {
                if kind & FLAG_EXPIRY != 0 {
                    expiry = Some(UnixMillis(extra()?));
                }
                if kind & FLAG_REPLACES != 0 {
                    replaces = Some(Location::unpacked(extra()?));
                }
            }
            KIND_TOMBSTONE if value_length == 0 && kind & !(KIND_MASK | FLAG_UP_TO) == 0 => {
                let dead = match extra()? {
                    segment if kind & FLAG_UP_TO != 0 => Dead::UpTo(SegmentId(segment)),
                    NOTHING => Dead::Nothing,
                    location => Dead::At(Location::unpacked(location)),
                };
                other = Some(Body::Tombstone { dead });
            }
            KIND_COPIES if value_length == 0 && key_length == 0 && kind == KIND_COPIES => {
                other = Some(Body::CopiesOf(SegmentId(extra()?)));
            }
            _ => return Err(UNKNOWN),
        }
        let (key, rest) = rest.split_at_checked(key_length).ok_or(SHORT)?;
        let value = rest.get(..value_length).ok_or(SHORT)?;
        let body = match other {
            Some(other) => other,
            None => Body::Object { expiry, replaces, value: value_of(kind, value)? },
        };
        Ok(Entry { incarnation, version, key, body })
    }

    /// Decodes like [`Entry::parse`] and verifies checksum and limits, for bytes from a network
    /// or a disk. Returns the entry and the bytes that it takes.
    #[inline]
    pub fn parse_checked(bytes: &'a [u8]) -> Result<(Entry<'a>, usize), Corrupt> {
        let entry = Entry::parse(bytes)?;
        let taken = entry.encoded_bytes();
        if bytes.len() < taken {
            return Err(Corrupt::Short { what: "log entry" });
        }
        let (_, extras, value) = entry.parts();
        // The length field could hold more, but no segment could store such an entry.
        if value.stored_bytes() > types::limits::VALUE_BYTES_MAX {
            return Err(Corrupt::Invalid { what: "value length of log entry" });
        }
        // No server draws a version outside of this range, which leaves room below and above. A
        // note has none.
        let versions = match entry.body {
            Body::Object { .. } | Body::Tombstone { .. } => 1..=Version::MAX.0,
            Body::CopiesOf(_) => 0..=0,
        };
        if !versions.contains(&entry.version.0) {
            return Err(Corrupt::Invalid { what: "version of log entry" });
        }
        let extra_bytes = extras.into_iter().flatten().count() * EXTRA_BYTES;
        let end = HEADER_BYTES + extra_bytes + entry.key.len() + value.stored_bytes();
        let stored = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        if crc32c(&bytes[CHECKED_FROM..end]) != stored {
            return Err(Corrupt::Checksum { what: "log entry" });
        }
        Ok((entry, taken))
    }

    /// Returns whether the record is expired at `now`. A tombstone does not expire.
    #[inline]
    pub fn is_expired(&self, now: UnixMillis) -> bool {
        self.expiry().is_some_and(|at| at <= now)
    }

    /// Returns the expiry of the record; `None`: it never expires, or the entry is not an object.
    #[inline]
    pub fn expiry(&self) -> Option<UnixMillis> {
        match self.body {
            Body::Object { expiry, .. } => expiry,
            Body::Tombstone { .. } | Body::CopiesOf(_) => None,
        }
    }
}

/// Returns the value of an object with these flags. A string has no type byte, so there is one
/// encoding of each value.
#[inline]
fn value_of(kind: u8, value: &[u8]) -> Result<TypedValue<'_>, Corrupt> {
    if kind & FLAG_TYPED == 0 {
        return Ok(TypedValue::string(value));
    }
    let (number, bytes) = value.split_first().ok_or(UNKNOWN_TYPE)?;
    let value_type = ValueType::of_number(*number).ok_or(UNKNOWN_TYPE)?;
    if value_type == ValueType::String {
        Err(UNKNOWN_TYPE)
    } else {
        Ok(TypedValue { value_type, bytes })
    }
}

const UNKNOWN_TYPE: Corrupt = Corrupt::Invalid { what: "value type of log entry" };

/// Returns the bytes of an entry with a key and a value of these lengths and `extras` extra
/// numbers (expiry, location).
#[inline]
pub const fn encoded_bytes(key: usize, value: usize, extras: usize) -> usize {
    (HEADER_BYTES + extras * EXTRA_BYTES + key + value).next_multiple_of(ALIGNMENT)
}

/// Returns the bytes of the entry with this header, padding included. The result for invalid
/// headers is meaningless.
#[inline]
pub const fn encoded_bytes_of(header: &[u8; HEADER_BYTES]) -> usize {
    let value = u32::from_le_bytes([header[11], header[12], header[13], 0]) as usize;
    let key = u16::from_le_bytes([header[14], header[15]]) as usize;
    let kind = header[10];
    let extras = match kind & KIND_MASK {
        KIND_OBJECT => (kind & (FLAG_EXPIRY | FLAG_REPLACES)).count_ones() as usize,
        _ => 1,
    };
    encoded_bytes(key, value, extras)
}

/// Replaces the incarnation of an encoded entry; its checksum stays valid.
///
/// # Panics
/// If `entry` is shorter than a header or the incarnation does not fit, which is a bug.
#[inline]
pub fn set_incarnation(entry: &mut [u8], incarnation: Incarnation) {
    assert!(incarnation <= Incarnation::MAX, "incarnation {incarnation} does not fit");
    entry[4..10].copy_from_slice(&incarnation.0.to_le_bytes()[..6]);
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCATION: Location = Location { segment: SegmentId(9), offset: (8 << 20) - 8 };

    fn samples() -> Vec<Entry<'static>> {
        let incarnation = Incarnation(0x0102_0304_0506);
        let version = Version(0x1112_1314_1516_1718);
        vec![
            Entry {
                incarnation,
                version,
                key: b"key",
                body: Body::Object {
                    expiry: None,
                    replaces: None,
                    value: TypedValue::string(b"value"),
                },
            },
            Entry {
                incarnation,
                version,
                key: b"",
                body: Body::Object { expiry: None, replaces: None, value: TypedValue::string(b"") },
            },
            Entry {
                incarnation,
                version,
                key: b"k",
                body: Body::Object {
                    expiry: Some(UnixMillis(1_700_000_000_000)),
                    replaces: None,
                    value: TypedValue::string(&[7; 300]),
                },
            },
            Entry {
                incarnation,
                version,
                key: b"gone",
                body: Body::Tombstone { dead: Dead::At(LOCATION) },
            },
            Entry {
                incarnation,
                version,
                key: b"never",
                body: Body::Tombstone { dead: Dead::Nothing },
            },
            Entry {
                incarnation,
                version,
                key: b"lost",
                body: Body::Tombstone { dead: Dead::UpTo(SegmentId(9)) },
            },
            Entry {
                incarnation,
                version,
                key: b"again",
                body: Body::Object {
                    expiry: None,
                    replaces: Some(LOCATION),
                    value: TypedValue::string(b"value"),
                },
            },
            Entry {
                incarnation,
                version,
                key: b"again",
                body: Body::Object {
                    expiry: Some(UnixMillis(1)),
                    replaces: Some(LOCATION),
                    value: TypedValue::string(b""),
                },
            },
            Entry {
                incarnation,
                version,
                key: b"hash",
                body: Body::Object {
                    expiry: Some(UnixMillis(1)),
                    replaces: Some(LOCATION),
                    value: TypedValue { value_type: ValueType::Hash, bytes: b"elements" },
                },
            },
            Entry {
                incarnation,
                version,
                key: b"set",
                body: Body::Object {
                    expiry: None,
                    replaces: None,
                    value: TypedValue { value_type: ValueType::Set, bytes: b"" },
                },
            },
            Entry::note(SegmentId(77)),
        ]
    }

    fn encoded(entry: &Entry<'_>) -> Vec<u8> {
        let mut bytes = vec![0xaa; entry.encoded_bytes()];
        entry.encode(&mut bytes);
        bytes
    }

    #[test]
    fn entries_come_back_as_they_went() {
        for entry in samples() {
            let bytes = encoded(&entry);
            assert_eq!(bytes.len() % ALIGNMENT, 0);
            assert_eq!(Entry::parse_checked(&bytes), Ok((entry, bytes.len())));
            assert_eq!(encoded_bytes_of(bytes.first_chunk().unwrap()), bytes.len());
        }
    }

    #[test]
    fn an_entry_under_another_incarnation_is_still_whole() {
        let mut bytes = encoded(&samples()[0]);
        set_incarnation(&mut bytes, Incarnation(5));
        let (entry, _) = Entry::parse_checked(&bytes).unwrap();
        assert_eq!(entry, Entry { incarnation: Incarnation(5), ..samples()[0] });
    }

    /// A server raises its version counter above every version that it reads.
    #[test]
    fn versions_that_no_server_draws_are_refused() {
        let wrong = Err(Corrupt::Invalid { what: "version of log entry" });
        for entry in samples() {
            let bytes = encoded(&Entry { version: Version(u64::MAX), ..entry });
            assert_eq!(Entry::parse_checked(&bytes), wrong, "{entry:?}");
        }
    }

    #[test]
    fn every_truncation_is_refused() {
        for entry in samples() {
            let bytes = encoded(&entry);
            for length in 0..bytes.len() {
                assert!(
                    Entry::parse_checked(&bytes[..length]).is_err(),
                    "{entry:?} cut at {length}"
                );
            }
        }
    }

    #[test]
    fn every_flipped_bit_outside_incarnation_and_padding_is_noticed() {
        for entry in samples() {
            let bytes = encoded(&entry);
            for bit in 0..bytes.len() * 8 {
                let mut changed = bytes.clone();
                changed[bit / 8] ^= 1 << (bit % 8);
                match Entry::parse_checked(&changed) {
                    Err(_) => {}
                    Ok((read, _)) => {
                        let same = Entry { incarnation: entry.incarnation, ..read };
                        assert_eq!(same, entry, "bit {bit} of {entry:?} changed its content");
                    }
                }
            }
        }
    }

    #[test]
    fn unknown_types_and_strings_with_a_type_are_refused() {
        let set = TypedValue { value_type: ValueType::Set, bytes: b"" };
        let body = Body::Object { expiry: None, replaces: None, value: set };
        let whole = encoded(&Entry { body, ..samples()[0] });
        let place = HEADER_BYTES + samples()[0].key.len();
        assert_eq!(whole[place], ValueType::Set.number());
        let last = ValueType::ALL.into_iter().map(ValueType::number).max().unwrap();
        for number in [ValueType::String.number(), last + 1, 255] {
            let mut changed = whole.clone();
            changed[place] = number;
            assert_eq!(Entry::parse(&changed), Err(UNKNOWN_TYPE), "{number}");
        }
    }

    #[test]
    fn long_values_have_the_checksum_of_short_ones() {
        let bytes = vec![0x5a; 3 * PIECEWISE_BYTES_MIN];
        for length in [PIECEWISE_BYTES_MIN - 1, PIECEWISE_BYTES_MIN, bytes.len() - 1] {
            let body = Body::Object {
                expiry: None,
                replaces: None,
                value: TypedValue::string(&bytes[..length]),
            };
            let entry = Entry { incarnation: Incarnation(1), version: Version(2), key: b"k", body };
            let encoded = encoded(&entry);
            assert_eq!(Entry::parse_checked(&encoded), Ok((entry, encoded.len())), "{length}");
        }
    }

    /// The test vector of docs/formats.md.
    #[test]
    fn the_documented_bytes_are_those_written() {
        let entry = Entry {
            incarnation: Incarnation(3),
            version: Version(258),
            key: b"foo",
            body: Body::Object { expiry: None, replaces: None, value: TypedValue::string(b"bar!") },
        };
        let hex: String = encoded(&entry).iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(
            hex[8..],
            *"030000000000010400000300020100000000000066 6f6f6261722100".replace(' ', "")
        );
    }
}
