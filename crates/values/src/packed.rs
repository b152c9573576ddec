//! Packed values: the elements of a hash, a set or a sorted set in the bytes of one record
//! (`docs/design/values.md`).
//!
//! The bytes are the number of elements, then the elements in the order in which they were added. An
//! element of a hash is a field and its value, one of a set is a member. Each of these parts is its
//! length and its bytes. An element of a sorted set is its score in 8 bytes, then its member as a
//! part; the order of a whole sorted set is that of [`crate::SortedSet`]. Numbers are little-endian
//! base 128 (LEB128): seven bits to a byte, the highest bit set on all but the last byte.
//!
//! A hash with expiring fields begins with their expiries (`field_expiries.rs`).

use crate::field_expiries::{ExpiryTable, FieldExpiries};
use std::ops::Range;
use types::{TypedValue, UnixMillis, ValueType};

/// An element: the field of a hash with its value, the member of a set with an empty value, or the
/// member of a sorted set with the bytes of its score.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Element<'a> {
    /// Field or member.
    pub name: &'a [u8],
    /// Value of the field; empty for a member.
    pub value: &'a [u8],
}

/// An element with its own expiry, which only the fields of a hash have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimedElement<'a> {
    /// The element.
    pub element: Element<'a>,
    /// Time from which on the element does not exist; `None`: it does not expire.
    pub expiry: Option<UnixMillis>,
}

/// A packed value that is read.
#[derive(Clone, Copy, Debug)]
pub struct Packed<'a> {
    value_type: ValueType,
    count: usize,
    /// The elements.
    bytes: &'a [u8],
    expiries: FieldExpiries<'a>,
}

/// The error for bytes that are no packed value. A checksum protects values in the log and in
/// transit, so a peer has sent them as they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Damaged;

/// Most bytes of an encoded number: enough for any length of a value.
pub(crate) const NUMBER_BYTES_MAX: usize = 4;

/// Reads a number. Returns it with the bytes behind it.
#[inline]
pub(crate) fn read_number(bytes: &[u8]) -> Option<(usize, &[u8])> {
    let mut number = 0;
    for (at, &byte) in bytes.iter().take(NUMBER_BYTES_MAX).enumerate() {
        number |= usize::from(byte & 0x7f) << (7 * at);
        if byte < 0x80 {
            return Some((number, &bytes[at + 1..]));
        }
    }
    None
}

/// Appends a number.
///
/// # Panics
/// If it has more than 28 bits, which is a bug: a value is shorter.
#[inline]
pub(crate) fn write_number(mut number: usize, out: &mut Vec<u8>) {
    assert!(number < 1 << (7 * NUMBER_BYTES_MAX), "{number} does not fit");
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

#[inline]
pub(crate) fn read_part(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = read_number(bytes)?;
    rest.split_at_checked(length)
}

/// Appends a part. Returns the place of its bytes.
#[inline]
pub(crate) fn write_part(part: &[u8], out: &mut Vec<u8>) -> Range<usize> {
    write_number(part.len(), out);
    let start = out.len();
    out.extend_from_slice(part);
    start..out.len()
}

impl<'a> Packed<'a> {
    /// Returns the value of this type without elements.
    pub const fn empty(value_type: ValueType) -> Packed<'static> {
        Packed { value_type, count: 0, bytes: &[], expiries: FieldExpiries::NONE }
    }

    /// Returns the elements of a value other than a string.
    #[inline]
    pub fn parse(value: TypedValue<'a>) -> Result<Packed<'a>, Damaged> {
        let TypedValue { value_type, bytes } = value;
        match read_number(bytes) {
            Some((count, bytes)) => {
                Ok(Packed { value_type, count, bytes, expiries: FieldExpiries::NONE })
            }
            None if value_type == ValueType::Hash => Packed::parse_timed(bytes),
            None => Err(Damaged),
        }
    }

    /// Returns the elements of a hash with expiring fields.
    #[cold]
    fn parse_timed(bytes: &'a [u8]) -> Result<Packed<'a>, Damaged> {
        let (expiries, rest) = FieldExpiries::parse(bytes).ok_or(Damaged)?;
        let (count, bytes) = read_number(rest).ok_or(Damaged)?;
        match expiries.fit(count) {
            true => Ok(Packed { value_type: ValueType::Hash, count, bytes, expiries }),
            false => Err(Damaged),
        }
    }

    /// Returns the number of elements, expired ones included.
    pub fn count(self) -> usize {
        self.count
    }

    /// Returns whether any field has an expiry.
    #[inline]
    pub fn has_expiries(self) -> bool {
        !self.expiries.is_empty()
    }

    /// Returns the expiries of the elements, which are read in their order.
    pub(crate) fn expiries(self) -> ExpiryTable<'a> {
        self.expiries.table()
    }

    /// Returns the elements that exist at this time, with their expiries.
    pub fn timed(self, now: UnixMillis) -> impl Iterator<Item = Result<TimedElement<'a>, Damaged>> {
        let mut expiries = self.expiries();
        let timed = self
            .elements()
            .map(move |element| Ok(TimedElement { element: element?, expiry: expiries.take() }));
        let lasts = move |timed: &Result<TimedElement<'a>, Damaged>| match timed {
            Ok(TimedElement { expiry, .. }) => expiry.is_none_or(|expiry| expiry > now),
            Err(Damaged) => true,
        };
        timed.filter(lasts)
    }

    /// Returns the type of the value.
    #[inline]
    pub fn value_type(self) -> ValueType {
        self.value_type
    }

    /// Returns the encoded elements.
    #[inline]
    pub(crate) fn bytes(self) -> &'a [u8] {
        self.bytes
    }

    /// Returns the elements in order.
    #[inline]
    pub fn elements(self) -> PackedElements<'a> {
        PackedElements { left: self.count, value_type: self.value_type, bytes: self.bytes }
    }

    /// Returns the value of the element of this name, even if it has expired.
    #[inline]
    pub fn get(self, name: &[u8]) -> Result<Option<&'a [u8]>, Damaged> {
        for element in self.elements() {
            let element = element?;
            if element.name == name {
                return Ok(Some(element.value));
            }
        }
        Ok(None)
    }
}

/// Iterator over the elements of a packed value. It ends with an error where the value is damaged.
pub struct PackedElements<'a> {
    left: usize,
    value_type: ValueType,
    bytes: &'a [u8],
}

impl<'a> PackedElements<'a> {
    /// Returns the iterator over one encoded element.
    pub(crate) fn of_one(value_type: ValueType, bytes: &'a [u8]) -> PackedElements<'a> {
        PackedElements { left: 1, value_type, bytes }
    }

    /// Returns the elements that are left.
    #[inline]
    pub(crate) fn rest(&self) -> &'a [u8] {
        self.bytes
    }
}

impl<'a> Iterator for PackedElements<'a> {
    type Item = Result<Element<'a>, Damaged>;

    #[inline]
    fn next(&mut self) -> Option<Result<Element<'a>, Damaged>> {
        self.left = self.left.checked_sub(1)?;
        match read_element(self.value_type, self.bytes) {
            Some((element, rest)) if self.left > 0 || rest.is_empty() => {
                self.bytes = rest;
                Some(Ok(element))
            }
            Some(_) | None => {
                self.left = 0;
                Some(Err(Damaged))
            }
        }
    }
}

/// Bytes of a score.
pub(crate) const SCORE_BYTES: usize = 8;

/// Reads an element. Returns it with the bytes behind it.
#[inline]
fn read_element(value_type: ValueType, bytes: &[u8]) -> Option<(Element<'_>, &[u8])> {
    if value_type == ValueType::SortedSet {
        let (value, rest) = bytes.split_at_checked(SCORE_BYTES)?;
        let (name, rest) = read_part(rest)?;
        return Some((Element { name, value }, rest));
    }
    let (name, rest) = read_part(bytes)?;
    let has_value = value_type == ValueType::Hash;
    let (value, rest) = if has_value { read_part(rest)? } else { (&[][..], rest) };
    Some((Element { name, value }, rest))
}

/// Appends an element. Returns the places of its name and its value.
///
/// # Panics
/// If the value of a member of a sorted set is not a score, which is a bug.
#[inline]
pub(crate) fn put_element(
    value_type: ValueType,
    element: Element<'_>,
    out: &mut Vec<u8>,
) -> [Range<usize>; 2] {
    if value_type == ValueType::SortedSet {
        assert!(element.value.len() == SCORE_BYTES, "a member without a score");
        let start = out.len();
        out.extend_from_slice(element.value);
        return [write_part(element.name, out), start..start + SCORE_BYTES];
    }
    let name = write_part(element.name, out);
    let has_value = value_type == ValueType::Hash;
    let value = if has_value { write_part(element.value, out) } else { name.end..name.end };
    [name, value]
}

/// Appends distinct elements as a packed value.
pub fn encode_new<'e>(
    value_type: ValueType,
    elements: impl ExactSizeIterator<Item = Element<'e>>,
    out: &mut Vec<u8>,
) {
    write_number(elements.len(), out);
    for element in elements {
        put_element(value_type, element, out);
    }
}

/// Appends distinct elements as a packed value, with their expiries.
///
/// # Panics
/// If elements of a value other than a hash expire, which is a bug.
pub fn encode_timed(value_type: ValueType, elements: &[TimedElement<'_>], out: &mut Vec<u8>) {
    let expiries = elements.iter().map(|timed| timed.expiry);
    assert!(
        value_type == ValueType::Hash || expiries.clone().all(|expiry| expiry.is_none()),
        "only fields of hashes expire"
    );
    FieldExpiries::write(expiries, out);
    encode_new(value_type, elements.iter().map(|timed| timed.element), out);
}

/// Returns the earliest expiry of a field in the record of a hash, or of a page of one; `None`: it
/// has no expiring fields.
pub fn earliest_field_expiry(bytes: &[u8]) -> Option<UnixMillis> {
    FieldExpiries::parse(bytes)?.0.earliest()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn element<'e>(name: &'e [u8], value: &'e [u8]) -> Element<'e> {
        Element { name, value }
    }

    fn new_value(value_type: ValueType, elements: &[Element<'_>]) -> Vec<u8> {
        let mut bytes = Vec::new();
        encode_new(value_type, elements.iter().copied(), &mut bytes);
        bytes
    }

    fn packed(value_type: ValueType, bytes: &[u8]) -> Packed<'_> {
        Packed::parse(TypedValue { value_type, bytes }).expect("there is a count")
    }

    #[test]
    fn numbers_come_back() {
        for number in [0, 1, 127, 128, 16_383, 16_384, (1 << 28) - 1] {
            let mut bytes = Vec::new();
            write_number(number, &mut bytes);
            assert_eq!(read_number(&bytes), Some((number, &[][..])));
            assert_eq!(read_number(&bytes[..bytes.len() - 1]), None);
        }
        assert_eq!(read_number(&[0x80; 5]), None);
    }

    #[test]
    fn bytes_that_are_no_value_are_an_error_and_nothing_else() {
        let drop_it = |element: Result<Element<'_>, Damaged>| element.map(drop);
        let mut random = fastrand::Rng::with_seed(12);
        let whole = new_value(ValueType::Hash, &[element(b"field", b"value"), element(b"g", b"")]);
        for length in 0..whole.len() {
            let cut = TypedValue { value_type: ValueType::Hash, bytes: &whole[..length] };
            let read =
                Packed::parse(cut).and_then(|packed| packed.elements().try_for_each(drop_it));
            assert_eq!(read, Err(Damaged), "{length}");
        }
        let mut longer = whole.clone();
        longer.push(0);
        assert!(packed(ValueType::Hash, &longer).elements().any(|element| element.is_err()));
        for _ in 0..50_000 {
            let bytes: Vec<u8> = (0..random.usize(1..40)).map(|_| random.u8(..)).collect();
            for value_type in [ValueType::Hash, ValueType::Set, ValueType::SortedSet] {
                let Ok(packed) = Packed::parse(TypedValue { value_type, bytes: &bytes }) else {
                    continue;
                };
                let _ = packed.get(b"x");
                if packed.elements().all(|element| element.is_ok()) {
                    assert_eq!(packed.elements().count(), packed.count());
                }
            }
        }
    }
}
