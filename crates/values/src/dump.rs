//! The format of `DUMP`: the type, the value in the encoding of Redis's RDB files, the version of
//! that encoding, and a checksum over all of it.
//!
//! A value that is a small integer is encoded as one, as in Redis. Values are written without
//! compression, but compressed ones can be read, and so can the encodings of older versions of Redis.

use crate::dump_parts::{
    FOOTER_BYTES, VERSION, add_within_limit, crc64, put_length, put_string, read_length,
    read_string, with_footer,
};
use crate::list::PackedList;
use crate::packed::{Damaged, Element, Packed, TimedElement, encode_new, encode_timed};
use crate::scores::parse_score;
use crate::sorted_set::{ScoredMember, SortedSet, encode_members};
use crate::stream_dump::{
    self, RestoredStream, TYPE_STREAM, TYPE_STREAM_COUNTERS, TYPE_STREAM_TIMES,
};
use crate::{list_dump, listpack, ziplist, zipmap};
use std::collections::HashSet;
use types::{TypedValue, UnixMillis, ValueType};

const TYPE_STRING: u8 = 0;
const TYPE_LIST: u8 = 1;
const TYPE_SET: u8 = 2;
/// A sorted set whose scores are texts, as Redis wrote it before version 4.
const TYPE_SORTED_SET_TEXTS: u8 = 3;
const TYPE_HASH: u8 = 4;
/// A sorted set whose scores are doubles.
const TYPE_SORTED_SET: u8 = 5;
/// Types whose value is one string that contains all elements.
const TYPE_HASH_ZIPMAP: u8 = 9;
const TYPE_LIST_ZIPLIST: u8 = 10;
const TYPE_SET_INTEGERS: u8 = 11;
const TYPE_SORTED_SET_ZIPLIST: u8 = 12;
const TYPE_HASH_ZIPLIST: u8 = 13;
const TYPE_HASH_LISTPACK: u8 = 16;
const TYPE_SORTED_SET_LISTPACK: u8 = 17;
const TYPE_SET_LISTPACK: u8 = 20;
/// A hash whose fields have expiries.
const TYPE_HASH_TIMED: u8 = 22;
/// The expiry of a field that does not expire.
const NEVER: i64 = -1;
/// The reason why a dump is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unreadable {
    /// The dump is too short, too new, or damaged.
    Footer,
    /// The dump contains a type that is not supported.
    OtherType,
    /// The checksum is correct, but the encoding is invalid.
    Body,
}

/// A value that was read from a dump.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Restored {
    /// A value other than a stream.
    Value(RestoredValue),
    /// A stream.
    Stream(RestoredStream),
}

/// A value other than a stream that was read from a dump.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RestoredValue {
    value_type: ValueType,
    bytes: Vec<u8>,
}

impl RestoredValue {
    /// Returns the value.
    pub fn value(&self) -> TypedValue<'_> {
        TypedValue { value_type: self.value_type, bytes: &self.bytes }
    }

    /// Returns the elements of a hash, a set or a sorted set.
    pub fn elements(&self) -> Option<Packed<'_>> {
        match self.value_type {
            ValueType::String | ValueType::List | ValueType::Stream => None,
            ValueType::Hash | ValueType::Set | ValueType::SortedSet => {
                Packed::parse(self.value()).ok()
            }
        }
    }
}

impl RestoredValue {
    /// Returns the items of a list.
    pub fn list(&self) -> Option<PackedList<'_>> {
        match self.value_type {
            ValueType::String
            | ValueType::Hash
            | ValueType::Set
            | ValueType::SortedSet
            | ValueType::Stream => None,
            ValueType::List => PackedList::parse(self.value()).ok(),
        }
    }
}

/// Lengths of texts of scores that stand for numbers without text.
const SCORE_NAN: u8 = 253;
const SCORE_INFINITE: u8 = 254;
const SCORE_NEGATIVE_INFINITE: u8 = 255;

/// Encodes a value as a dump, expired fields included. Values other than strings have the encodings
/// that Redis uses for large ones, which it reads whatever the size.
///
/// # Panics
/// If the value is a stream, of which [`crate::dump_stream`] makes a dump.
pub fn dump(value: TypedValue<'_>) -> Result<Vec<u8>, Damaged> {
    let mut out = Vec::with_capacity(value.bytes.len() + 6 + FOOTER_BYTES);
    match value.value_type {
        ValueType::String => {
            out.push(TYPE_STRING);
            put_string(value.bytes, &mut out);
        }
        ValueType::Hash | ValueType::Set => {
            let elements = Packed::parse(value)?.timed(UnixMillis(0));
            let elements = elements.collect::<Result<Vec<TimedElement<'_>>, Damaged>>()?;
            put_elements(value.value_type, &elements, &mut out);
        }
        ValueType::List => return list_dump::dump_list(PackedList::parse(value)?.items()),
        ValueType::SortedSet => {
            put_scored_members(&SortedSet::parse(value.bytes)?.list()?, &mut out);
        }
        ValueType::Stream => unreachable!("a stream is dumped with its groups"),
    }
    Ok(with_footer(out))
}

/// Encodes the members of a sorted set, in order, as a dump.
pub fn dump_members(members: &[ScoredMember<'_>]) -> Vec<u8> {
    let mut out = Vec::new();
    put_scored_members(members, &mut out);
    with_footer(out)
}

/// Encodes the elements of a hash or set as a dump.
pub fn dump_elements(value_type: ValueType, elements: &[TimedElement<'_>]) -> Vec<u8> {
    let mut out = Vec::new();
    put_elements(value_type, elements, &mut out);
    with_footer(out)
}

fn put_elements(value_type: ValueType, elements: &[TimedElement<'_>], out: &mut Vec<u8>) {
    let has_values = value_type == ValueType::Hash;
    let is_timed = elements.iter().any(|timed| timed.expiry.is_some());
    out.push(match has_values {
        true if is_timed => TYPE_HASH_TIMED,
        true => TYPE_HASH,
        false => TYPE_SET,
    });
    put_length(elements.len(), out);
    for TimedElement { element: Element { name, value }, expiry } in elements {
        put_string(name, out);
        if has_values {
            put_string(value, out);
        }
        if is_timed {
            let expiry = expiry.map_or(NEVER, |at| i64::try_from(at.0).unwrap_or(i64::MAX));
            out.extend_from_slice(&expiry.to_le_bytes());
        }
    }
}

fn put_scored_members(members: &[ScoredMember<'_>], out: &mut Vec<u8>) {
    out.push(TYPE_SORTED_SET);
    put_length(members.len(), out);
    for ScoredMember { score, member } in members {
        put_string(member, out);
        out.extend_from_slice(&score.to_le_bytes());
    }
}

/// Decodes the value of a dump.
pub fn restore(dump: &[u8]) -> Result<Restored, Unreadable> {
    let (number, body) = split(dump)?;
    match number {
        TYPE_STREAM | TYPE_STREAM_COUNTERS | TYPE_STREAM_TIMES => {
            let stream = stream_dump::read_stream(number, body).ok_or(Unreadable::Body)?;
            Ok(Restored::Stream(stream))
        }
        _ => restore_value(number, body).map(Restored::Value),
    }
}

/// Returns the type and the encoding of a dump, whose checksum is correct.
fn split(dump: &[u8]) -> Result<(u8, &[u8]), Unreadable> {
    let split = dump.len().checked_sub(FOOTER_BYTES).ok_or(Unreadable::Footer)?;
    let (signed, checksum) = dump.split_at(split + 2);
    let (body, version) = signed.split_at(split);
    let version = u16::from_le_bytes(version.try_into().map_err(|_| Unreadable::Footer)?);
    if version > VERSION || crc64(signed).to_le_bytes() != checksum {
        return Err(Unreadable::Footer);
    }
    let (number, body) = body.split_first().ok_or(Unreadable::Body)?;
    Ok((*number, body))
}

/// Decodes a value of this type, other than a stream.
fn restore_value(number: u8, body: &[u8]) -> Result<RestoredValue, Unreadable> {
    let elements = |value_type, parts: Option<Vec<Vec<u8>>>| {
        restore_elements(value_type, &parts.ok_or(Unreadable::Body)?)
    };
    let list = |items: Option<Vec<Vec<u8>>>| {
        let bytes = items.and_then(|items| list_dump::pack(&items)).ok_or(Unreadable::Body)?;
        Ok(RestoredValue { value_type: ValueType::List, bytes })
    };
    match number {
        TYPE_STRING => {
            let (bytes, _) = read_string(body).ok_or(Unreadable::Body)?;
            Ok(RestoredValue { value_type: ValueType::String, bytes })
        }
        TYPE_LIST => list(read_parts(body, 1)),
        TYPE_LIST_ZIPLIST => list(ziplist::read(body)),
        list_dump::TYPE_LIST_ZIPLISTS => list(list_dump::read_ziplists(body)),
        list_dump::TYPE_LIST_NODES => list(list_dump::read_nodes(body)),
        TYPE_SET => elements(ValueType::Set, read_parts(body, 1)),
        TYPE_HASH => elements(ValueType::Hash, read_parts(body, 2)),
        TYPE_HASH_TIMED => restore_timed(&read_timed(body).ok_or(Unreadable::Body)?),
        TYPE_SET_INTEGERS => elements(ValueType::Set, read_integers(body)),
        TYPE_SET_LISTPACK => elements(ValueType::Set, listpack::read(body)),
        TYPE_HASH_ZIPMAP => elements(ValueType::Hash, zipmap::read(body)),
        TYPE_HASH_ZIPLIST => elements(ValueType::Hash, ziplist::read(body)),
        TYPE_HASH_LISTPACK => elements(ValueType::Hash, listpack::read(body)),
        TYPE_SORTED_SET => restore_scored_members(read_scored_members(body, read_score)),
        TYPE_SORTED_SET_TEXTS => restore_scored_members(read_scored_members(body, read_score_text)),
        TYPE_SORTED_SET_ZIPLIST => restore_scored_members(scored_members(ziplist::read(body))),
        TYPE_SORTED_SET_LISTPACK => restore_scored_members(scored_members(listpack::read(body))),
        _ => Err(Unreadable::OtherType),
    }
}

/// Returns the value of these parts: members, or fields and values in turns. There must be at least
/// one element, and none may be there twice.
fn restore_elements(value_type: ValueType, parts: &[Vec<u8>]) -> Result<RestoredValue, Unreadable> {
    let per_element = if value_type == ValueType::Hash { 2 } else { 1 };
    let chunks = parts.chunks_exact(per_element);
    let is_whole = chunks.remainder().is_empty();
    let elements: Vec<Element<'_>> = chunks
        .map(|parts| Element { name: &parts[0], value: parts.get(1).map_or(&[], |it| it) })
        .collect();
    let names: HashSet<&[u8]> = elements.iter().map(|element| element.name).collect();
    if elements.is_empty() || !is_whole || names.len() != elements.len() {
        return Err(Unreadable::Body);
    }
    let mut bytes = Vec::new();
    encode_new(value_type, elements.into_iter(), &mut bytes);
    Ok(RestoredValue { value_type, bytes })
}

/// A field with its value and expiry.
type TimedField = ([Vec<u8>; 2], Option<UnixMillis>);

/// Returns the hash of these fields. There must be at least one, and none may be there twice.
fn restore_timed(fields: &[TimedField]) -> Result<RestoredValue, Unreadable> {
    let elements = fields.iter().map(|([name, value], expiry)| TimedElement {
        element: Element { name, value },
        expiry: *expiry,
    });
    let elements: Vec<TimedElement<'_>> = elements.collect();
    let names: HashSet<&[u8]> = elements.iter().map(|timed| timed.element.name).collect();
    if elements.is_empty() || names.len() != elements.len() {
        return Err(Unreadable::Body);
    }
    let mut bytes = Vec::new();
    encode_timed(ValueType::Hash, &elements, &mut bytes);
    Ok(RestoredValue { value_type: ValueType::Hash, bytes })
}

/// Reads a number of fields, each with its value and expiry.
fn read_timed(body: &[u8]) -> Option<Vec<TimedField>> {
    let (count, mut rest) = read_length(body)?;
    let (mut fields, mut total) = (Vec::new(), 0);
    for _ in 0..count {
        let (name, after) = read_string(rest)?;
        let (value, after) = read_string(after)?;
        add_within_limit(&mut total, &name)?;
        add_within_limit(&mut total, &value)?;
        let (expiry, after) = after.split_first_chunk()?;
        let expiry = match i64::from_le_bytes(*expiry) {
            NEVER => None,
            expiry => Some(UnixMillis(u64::try_from(expiry).ok()?)),
        };
        fields.push(([name, value], expiry));
        rest = after;
    }
    Some(fields)
}

/// Returns the sorted set of these members. There must be at least one, and none may be there twice.
fn restore_scored_members(
    members: Option<Vec<(Vec<u8>, f64)>>,
) -> Result<RestoredValue, Unreadable> {
    let members = members.ok_or(Unreadable::Body)?;
    let names: HashSet<&[u8]> = members.iter().map(|(member, _)| &member[..]).collect();
    let has_nan = members.iter().any(|(_, score)| score.is_nan());
    if members.is_empty() || has_nan || names.len() != members.len() {
        return Err(Unreadable::Body);
    }
    let scored = members.iter().map(|(member, score)| ScoredMember { score: *score, member });
    let mut bytes = Vec::new();
    encode_members(&mut scored.collect::<Vec<_>>(), &mut bytes);
    Ok(RestoredValue { value_type: ValueType::SortedSet, bytes })
}

/// Reads a number of members, each with its score, which `read_score` reads.
fn read_scored_members(
    body: &[u8],
    read_score: impl Fn(&[u8]) -> Option<(f64, &[u8])>,
) -> Option<Vec<(Vec<u8>, f64)>> {
    let (count, mut rest) = read_length(body)?;
    let (mut members, mut total) = (Vec::new(), 0);
    for _ in 0..count {
        let (member, score);
        (member, rest) = read_string(rest)?;
        add_within_limit(&mut total, &member)?;
        (score, rest) = read_score(rest)?;
        members.push((member, score));
    }
    Some(members)
}

fn read_score(bytes: &[u8]) -> Option<(f64, &[u8])> {
    let (score, rest) = bytes.split_first_chunk()?;
    Some((f64::from_le_bytes(*score), rest))
}

fn read_score_text(bytes: &[u8]) -> Option<(f64, &[u8])> {
    let (&length, rest) = bytes.split_first()?;
    match length {
        SCORE_NAN => None,
        SCORE_INFINITE => Some((f64::INFINITY, rest)),
        SCORE_NEGATIVE_INFINITE => Some((f64::NEG_INFINITY, rest)),
        _ => {
            let (text, rest) = rest.split_at_checked(length.into())?;
            Some((parse_score(text)?, rest))
        }
    }
}

/// Returns the members with their scores, which are the entries of a listpack or ziplist in turns.
fn scored_members(entries: Option<Vec<Vec<u8>>>) -> Option<Vec<(Vec<u8>, f64)>> {
    let mut entries = entries?.into_iter();
    let mut members = Vec::with_capacity(entries.len() / 2);
    while let Some(member) = entries.next() {
        members.push((member, parse_score(&entries.next()?)?));
    }
    Some(members)
}

/// Reads a number of elements and their strings.
fn read_parts(body: &[u8], per_element: usize) -> Option<Vec<Vec<u8>>> {
    let (count, mut rest) = read_length(body)?;
    let (mut parts, mut total) = (Vec::new(), 0);
    for _ in 0..count.checked_mul(per_element)? {
        let part;
        (part, rest) = read_string(rest)?;
        add_within_limit(&mut total, &part)?;
        parts.push(part);
    }
    Some(parts)
}

/// Reads a sorted set of integers of 2, 4 or 8 bytes: width, count, integers, in one string.
fn read_integers(body: &[u8]) -> Option<Vec<Vec<u8>>> {
    let (bytes, _) = read_string(body)?;
    let (width, rest) = bytes.split_first_chunk::<4>()?;
    let (count, rest) = rest.split_first_chunk::<4>()?;
    let width = usize::try_from(u32::from_le_bytes(*width)).ok()?;
    let count = usize::try_from(u32::from_le_bytes(*count)).ok()?;
    if ![2, 4, 8].contains(&width) || rest.len() != width.checked_mul(count)? {
        return None;
    }
    Some(rest.chunks_exact(width).map(listpack::integer).collect())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::dump_parts::{COMPRESSED, put_bytes};
    use crate::ziplist::tests::ziplist;
    use crate::zipmap::tests::zipmap;
    use types::limits::VALUE_BYTES_MAX;

    /// Recorded from Valkey 9.1.2.
    const RECORDED: [(&[u8], &[u8]); 6] = [
        (b"1", b"\x00\xc0\x01P\x00\xe9R.'OSv\x08"),
        (b"-129", b"\x00\xc1\x7f\xffP\x00\xd8JK\xb9\xca\xd2\xe3t"),
        (b"40000", b"\x00\xc2@\x9c\x00\x00P\x00\xc6\xe7\xaa\x8em\xeb\xeb\x06"),
        (b"4000000000", b"\x00\n4000000000P\x00\x9bN\xd7v\x13\x14Q\xc1"),
        (b"hello", b"\x00\x05helloP\x00\xacX\x16\xe7\xfbfG\xfe"),
        (b"012", b"\x00\x03012P\x00@~\xaax\xca,\x8c\xf8"),
    ];

    /// Decodes a dump of a value other than a stream.
    pub(crate) fn restore(dump: &[u8]) -> Result<RestoredValue, Unreadable> {
        match super::restore(dump)? {
            Restored::Value(value) => Ok(value),
            Restored::Stream(stream) => panic!("{stream:?} is no stream"),
        }
    }

    fn string(bytes: &[u8]) -> RestoredValue {
        RestoredValue { value_type: ValueType::String, bytes: bytes.to_vec() }
    }

    #[test]
    fn the_checksum_is_that_of_redis() {
        assert_eq!(crc64(b"123456789"), 0xe9c6_d914_c4b8_d9ca);
    }

    #[test]
    fn dumps_are_those_of_valkey() {
        for (value, recorded) in RECORDED {
            let dumped = dump(TypedValue::string(value)).unwrap();
            assert_eq!(dumped, recorded, "{}", value.escape_ascii());
            assert_eq!(restore(recorded), Ok(string(value)));
        }
    }

    #[test]
    fn compressed_dumps_are_read() {
        let packed = b"\x00\xc3\t@\\\x01aa\xe0O\x00\x01aaP\x00u\x7f\x9f\x9eP5\xe3\xd3";
        assert_eq!(restore(packed), Ok(string(&[b'a'; 92])));
    }

    /// Dumps of hashes and sets, with their parts, recorded from Valkey 9.1.2.
    const COLLECTIONS: [(&[u8], &[&[u8]]); 5] = [
        (
            b"\x0b\x14\x04\x00\x00\x00\x03\x00\x00\x00\xd4\xfe\xff\xff\x01\x00\x00\x00p\x11\x01\x00P\x00\xf0\xe7\xccD\xab\xa48\x19",
            &[b"-300", b"1", b"70000"],
        ),
        (
            b"\x14\x13\x13\x00\x00\x00\x03\x00\x81a\x02\x0c\x01\x85hello\x06\xffP\x00\xa5\xa2DY\xa2C\x93h",
            &[b"a", b"12", b"hello"],
        ),
        (
            b"\x04\x03\x01f\x01v\x06number\xc190\x04long\xc3\t@F\x01xx\xe09\x00\x01xxP\x00Z%\xfb\x9e?\xc0iZ",
            &[b"f", b"v", b"number", b"12345", b"long", &[b'x'; 70]],
        ),
        (
            b"\x10\x16\x16\x00\x00\x00\x04\x00\x82f1\x03\x82v1\x03\x82f2\x03\xdf\xfb\x02\xffP\x00Q\x11\x86\x82\x02SCw",
            &[b"f1", b"v1", b"f2", b"-5"],
        ),
        (
            b"\x10\r\r\x00\x00\x00\x02\x00\x81f\x02\x81v\x02\xffP\x00\xef\xdb\xf4\xd5\xbd\x06oi",
            &[b"f", b"v"],
        ),
    ];

    fn parts(restored: &RestoredValue) -> Vec<Vec<u8>> {
        let has_values = restored.value_type == ValueType::Hash;
        let elements = Packed::parse(restored.value()).unwrap().elements().map(Result::unwrap);
        let parts = elements.map(|element| match has_values {
            true => vec![element.name.to_vec(), element.value.to_vec()],
            false => vec![element.name.to_vec()],
        });
        parts.flatten().collect()
    }

    #[test]
    fn hashes_and_sets_of_valkey_are_read() {
        for (recorded, expected) in COLLECTIONS {
            let restored = restore(recorded).unwrap();
            assert_eq!(parts(&restored), expected, "{}", recorded.escape_ascii());
            let again = restore(&dump(restored.value()).unwrap());
            assert_eq!(again, Ok(restored));
        }
    }

    /// Dumps of hashes with expiring fields, recorded from Valkey 9.1.2.
    const TIMED_HASHES: [&[u8]; 3] = [
        b"\x16\x01\x01f\x01v\xdc\x84v\x1c\xa2\x01\x00\x00P\x00W\xc1\x89\xc1wT!J",
        b"\x16\x03\x01a\xc0\x01\xff\xff\xff\xff\xff\xff\xff\xff\x01b\x05hello[jL\xa6,\x1e\x00\x00\x01c\xc0\x03\xff\xff\xff\xff\xff\xff\xff\xffP\x00\xcc\xda\xd46\x7f\xbc\x95\xbd",
        b"\x16\x03\x01a\xc0\x01[jL\xa6,\x1e\x00\x00\x01b\x05hello[jL\xa6,\x1e\x00\x00\x01c\xc0\x03[jL\xa6,\x1e\x00\x00P\x00\xb4\x10/\t\xb7\xd6\t2",
    ];

    #[test]
    fn hashes_with_expiring_fields_are_read_and_written_as_valkey_does() {
        let far = Some(UnixMillis(33_177_117_420_123));
        let expected = [&[Some(UnixMillis(1_795_773_859_036))][..], &[None, far, None], &[far; 3]];
        for (recorded, expiries) in TIMED_HASHES.into_iter().zip(expected) {
            let restored = restore(recorded).unwrap();
            let timed = restored.elements().unwrap().timed(UnixMillis(0)).map(Result::unwrap);
            let timed: Vec<TimedElement<'_>> = timed.collect();
            let read: Vec<_> = timed.iter().map(|field| field.expiry).collect();
            assert_eq!(read, expiries, "{}", recorded.escape_ascii());
            assert_eq!(dump(restored.value()).unwrap(), recorded);
            assert_eq!(dump_elements(ValueType::Hash, &timed), recorded);
        }
        for body in [
            &b"\x16\x00"[..],
            b"\x16\x01\x01f\x01v\x00\x00\x00\x00\x00\x00\x00",
            b"\x16\x01\x01f\x01v\xfe\xff\xff\xff\xff\xff\xff\xff",
            b"\x16\x02\x01f\x01v\x01\0\0\0\0\0\0\0\x01f\x01v\x01\0\0\0\0\0\0\0",
        ] {
            assert_eq!(restore(&with_footer(body)), Err(Unreadable::Body));
        }
    }

    /// Dumps of one sorted set, recorded from Valkey 9.1.2.
    const SORTED_SETS: [&[u8]; 2] = [
        b"\x11$$\x00\x00\x00\x08\x00\x81c\x02\x84-inf\x05\x81a\x02\x01\x01\x81b\x02\x832.5\x04\x0c\x01\xf2p\x11\x01\x04\xffP\x00\x0d\x15\xa0\x0a\x82\x94\xb2\xac",
        b"\x05\x04\xc0\x0c\x00\x00\x00\x00\x00\x17\xf1@\x01b\x00\x00\x00\x00\x00\x00\x04@\x01a\x00\x00\x00\x00\x00\x00\xf0?\x01c\x00\x00\x00\x00\x00\x00\xf0\xffP\x00T|[\xe4jN\xb2F",
    ];

    #[test]
    fn sorted_sets_of_valkey_are_read() {
        let texts = with_footer(b"\x03\x04\x02\x31\x32\x0570000\x01a\x011\x01b\x032.5\x01c\xff");
        for recorded in SORTED_SETS.into_iter().chain([&texts[..]]) {
            let restored = restore(recorded).unwrap();
            let set = SortedSet::parse(restored.value().bytes).unwrap();
            let members = set.list().unwrap().into_iter().map(|one| (one.member, one.score));
            let expected: [(&[u8], f64); 4] =
                [(b"c", f64::NEG_INFINITY), (b"a", 1.0), (b"b", 2.5), (b"12", 70_000.0)];
            assert!(members.eq(expected), "{}", recorded.escape_ascii());
            let again = restore(&dump(restored.value()).unwrap());
            assert_eq!(again, Ok(restored));
        }
    }

    #[test]
    fn sorted_sets_with_unordered_scores_are_refused() {
        let nan = [&b"\x05\x01\x01a"[..], &f64::NAN.to_le_bytes()].concat();
        for body in [&nan[..], b"\x03\x01\x01a\xfd", b"\x03\x01\x01a\x03nan", b"\x05\x00"] {
            assert_eq!(restore(&with_footer(body)), Err(Unreadable::Body));
        }
    }

    /// Dumps of a list, a hash, a sorted set and a set, recorded from Redis 6.2.14.
    const OLDER: [&[u8]; 4] = [
        b"\x0e\x01@QQ\x00\x00\x00N\x00\x00\x00\x0e\x00\x00\x01a\x03\xfd\x02\xfe\r\x03\xfe\x80\x03\xc0\x80\x00\x04\xc0\x00\x80\x04\xf0\x00\x80\x00\x05\xf0\x00\x00\x80\x05\xd0\x00\x00\x80\x00\x06\xd0\x00\x00\x00\x80\x06\xe0\x00\x00\x00\x80\x00\x00\x00\x00\n\xe0\x00\x00\x00\x00\x00\x00\x00\x80\n\x05hello\x07\x00\xff\t\x00\x99Y\xff\xdb\x8f\x94\x10\xc8",
        b"\r\x1a\x1a\x00\x00\x00\x16\x00\x00\x00\x04\x00\x00\x02f1\x04\x02v1\x04\x02f2\x04\xfe\xfb\xff\t\x00\x00\x8fErDg\x06\xf3",
        b"\x0c@SS\x00\x00\x00M\x00\x00\x00\x0e\x00\x00\x01c\x03\x04-inf\x06\x01e\x03\x02-0\x04\x01g\x03\x179.9998886718268301e-321\x19\x01a\x03\xf2\x02\x01b\x03\x032.5\x05\xfd\x02\xf0p\x11\x01\x05\x01d\x03\x03inf\xff\t\x00-\x83\xdf\x867\x02.\xa2",
        b"\x0b\x14\x04\x00\x00\x00\x03\x00\x00\x00\xd4\xfe\xff\xff\x01\x00\x00\x00p\x11\x01\x00\t\x00\xef?T\x19ap<\\",
    ];

    fn items(restored: &RestoredValue) -> Vec<Vec<u8>> {
        restored.list().unwrap().items().map(|item| item.unwrap().to_vec()).collect()
    }

    fn members(restored: &RestoredValue) -> Vec<(Vec<u8>, f64)> {
        let set = SortedSet::parse(restored.value().bytes).unwrap();
        let members = set.list().unwrap().into_iter();
        members.map(|one| (one.member.to_vec(), one.score)).collect()
    }

    #[test]
    fn collections_of_redis_6_are_read() {
        let [list, hash, sorted_set, set] = OLDER.map(|recorded| restore(recorded).unwrap());
        let expected = "a 12 13 -128 128 -32768 32768 -8388608 8388608 -2147483648 2147483648 \
                        -9223372036854775808 hello ";
        assert!(items(&list).iter().eq(expected.split(' ').map(str::as_bytes)));
        assert_eq!(hash.value_type, ValueType::Hash);
        assert_eq!(parts(&hash), [b"f1", b"v1", b"f2", b"-5"]);
        let expected = [
            ("c", f64::NEG_INFINITY),
            ("e", -0.0),
            ("g", 1e-320),
            ("a", 1.0),
            ("b", 2.5),
            ("12", 70_000.0),
            ("d", f64::INFINITY),
        ];
        let expected = expected.map(|(member, score)| (member.as_bytes().to_vec(), score));
        assert_eq!(members(&sorted_set), expected);
        assert_eq!(set.value_type, ValueType::Set);
        assert!(parts(&set).iter().eq([&b"-300"[..], b"1", b"70000"]));
    }

    /// Returns an encoding of this type whose value is one string.
    fn in_string(number: u8, value: &[u8]) -> Vec<u8> {
        let mut body = vec![number];
        put_bytes(value, &mut body);
        body
    }

    /// Returns the encoding of a list of these ziplists.
    fn in_ziplists(nodes: &[&[&[u8]]]) -> Vec<u8> {
        let mut body = vec![list_dump::TYPE_LIST_ZIPLISTS];
        put_length(nodes.len(), &mut body);
        for node in nodes {
            put_bytes(&ziplist(node), &mut body);
        }
        body
    }

    /// Encodings of types that Redis before version 7 wrote in one string or several.
    fn older_encodings() -> [Vec<u8>; 5] {
        let long = [b'l'; 300];
        let pairs: [&[u8]; 6] = [b"a", b"1", b"-70000", &long, b"", b"2.5"];
        let scored: [&[u8]; 6] = [b"a", b"-inf", &long, b"-70000", b"", b"2.5"];
        [
            in_string(TYPE_HASH_ZIPMAP, &zipmap(&pairs, 3)),
            in_string(TYPE_LIST_ZIPLIST, &ziplist(&pairs)),
            in_string(TYPE_SORTED_SET_ZIPLIST, &ziplist(&scored)),
            in_string(TYPE_HASH_ZIPLIST, &ziplist(&pairs)),
            in_ziplists(&[&pairs[..2], &[], &pairs[2..]]),
        ]
    }

    #[test]
    fn every_older_encoding_is_read() {
        let long = vec![b'l'; 300];
        let expected = [b"a", b"1", &b"-70000"[..], &long, b"", b"2.5"];
        let [zipmap, list, sorted_set, hash, nodes] =
            older_encodings().map(|body| restore(&with_footer(&body)).unwrap());
        for restored in [zipmap, hash] {
            assert_eq!(restored.value_type, ValueType::Hash);
            assert_eq!(parts(&restored), expected);
        }
        for restored in [list, nodes] {
            assert_eq!(items(&restored), expected);
        }
        let expected = [(b"a".to_vec(), f64::NEG_INFINITY), (long, -70_000.0), (vec![], 2.5)];
        assert_eq!(members(&sorted_set), expected);
    }

    #[test]
    fn damaged_older_encodings_are_refused() {
        let in_ziplist = |number, entries: &[&[u8]]| in_string(number, &ziplist(entries));
        for body in [
            in_string(TYPE_HASH_ZIPMAP, &zipmap(&[], 0)),
            in_string(TYPE_HASH_ZIPMAP, &zipmap(&[b"f", b"1", b"f", b"2"], 0)),
            in_ziplist(TYPE_HASH_ZIPMAP, &[b"f", b"1"]),
            in_ziplist(TYPE_LIST_ZIPLIST, &[]),
            in_ziplist(TYPE_HASH_ZIPLIST, &[]),
            in_ziplist(TYPE_HASH_ZIPLIST, &[b"f", b"1", b"g"]),
            in_ziplist(TYPE_HASH_ZIPLIST, &[b"f", b"1", b"f", b"2"]),
            in_ziplist(TYPE_SORTED_SET_ZIPLIST, &[]),
            in_ziplist(TYPE_SORTED_SET_ZIPLIST, &[b"m", b"1", b"n"]),
            in_ziplist(TYPE_SORTED_SET_ZIPLIST, &[b"m", b"1", b"m", b"2"]),
            in_ziplist(TYPE_SORTED_SET_ZIPLIST, &[b"m", b"nan"]),
            in_ziplist(TYPE_SORTED_SET_ZIPLIST, &[b"m", b"one"]),
            in_ziplists(&[]),
            in_ziplists(&[&[], &[]]),
            [&in_ziplists(&[&[b"a"]])[..2], b"\x01a"].concat(),
        ] {
            let read = restore(&with_footer(&body));
            assert_eq!(read, Err(Unreadable::Body), "{}", body.escape_ascii());
        }
    }

    #[test]
    fn truncated_or_changed_older_encodings_harm_nobody() {
        let mut random = fastrand::Rng::with_seed(64);
        for body in older_encodings() {
            for end in 0..body.len() {
                let read = restore(&with_footer(&body[..end]));
                assert_eq!(read, Err(Unreadable::Body), "{end} bytes of {}", body.escape_ascii());
            }
            let mut accepted = 0;
            for _ in 0..20_000 {
                let mut changed = body.clone();
                for _ in 0..random.usize(1..4) {
                    let at = random.usize(1..body.len());
                    changed[at] = random.u8(..);
                }
                if let Ok(restored) = restore(&with_footer(&changed)) {
                    accepted += 1;
                    let again = restore(&dump(restored.value()).unwrap());
                    assert_eq!(again, Ok(restored));
                }
            }
            assert!(accepted > 1_000, "{accepted} changes of {}", body.escape_ascii());
        }
    }

    /// Returns a dump with this type and encoding.
    pub(crate) fn with_footer(body: &[u8]) -> Vec<u8> {
        let mut bytes = body.to_vec();
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        let checksum = crc64(&bytes);
        bytes.extend_from_slice(&checksum.to_le_bytes());
        bytes
    }

    #[test]
    fn collections_without_elements_or_with_one_twice_are_refused() {
        for body in [&b"\x02\x00"[..], b"\x02\x02\x01a\x01a", b"\x04\x02\x01a\x01b\x01a\x01c"] {
            let dump = with_footer(body);
            assert_eq!(restore(&dump), Err(Unreadable::Body), "{}", body.escape_ascii());
        }
    }

    #[test]
    fn values_of_any_length_come_back() {
        for length in [0, 1, 63, 64, 65, 16_383, 16_384, 100_000, VALUE_BYTES_MAX] {
            let value = vec![b'x'; length];
            let dumped = dump(TypedValue::string(&value)).unwrap();
            assert_eq!(restore(&dumped), Ok(string(&value)), "{length}");
        }
    }

    #[test]
    fn damaged_dumps_are_refused_and_random_bodies_harm_nobody() {
        let mut random = fastrand::Rng::with_seed(9);
        let strings = RECORDED.map(|(_, recorded)| recorded);
        let collections = COLLECTIONS.map(|(recorded, _)| recorded);
        for recorded in strings.into_iter().chain(collections).chain(SORTED_SETS) {
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
                let types = [
                    TYPE_SET,
                    TYPE_HASH,
                    TYPE_SET_INTEGERS,
                    TYPE_SET_LISTPACK,
                    TYPE_LIST,
                    list_dump::TYPE_LIST_NODES,
                    TYPE_SORTED_SET,
                    TYPE_SORTED_SET_TEXTS,
                    TYPE_SORTED_SET_LISTPACK,
                    TYPE_HASH_ZIPMAP,
                    TYPE_LIST_ZIPLIST,
                    TYPE_SORTED_SET_ZIPLIST,
                    TYPE_HASH_ZIPLIST,
                    list_dump::TYPE_LIST_ZIPLISTS,
                    TYPE_STREAM,
                    TYPE_STREAM_COUNTERS,
                    TYPE_STREAM_TIMES,
                ];
                let number = types[random.usize(..types.len())];
                bytes.splice(0..0, [number]);
            } else {
                bytes.splice(0..0, [TYPE_STRING, COMPRESSED]);
            }
            let _ = super::restore(&with_footer(&bytes));
        }
    }
}
