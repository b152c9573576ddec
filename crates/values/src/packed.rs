//! Packed values: the elements of a hash or set in the bytes of one record
//! (`docs/design/values.md`).
//!
//! The bytes are the number of elements, then the elements in the order in which they were added. An
//! element of a hash is a field and its value, one of a set is a member. Each of these parts is its
//! length and its bytes. Numbers are little-endian base 128 (LEB128): seven bits to a byte, the
//! highest bit set on all but the last byte.

use std::collections::HashMap;
use types::{TypedValue, ValueType};

/// An element: the field of a hash with its value, or the member of a set with an empty value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Element<'a> {
    /// Field or member.
    pub name: &'a [u8],
    /// Value of the field; empty for a member.
    pub value: &'a [u8],
}

/// A packed value that is read.
#[derive(Clone, Copy, Debug)]
pub struct Packed<'a> {
    value_type: ValueType,
    count: usize,
    /// The elements.
    bytes: &'a [u8],
}

/// The error for bytes that are no packed value. A checksum protects values in the log and in
/// transit, so a peer has sent them as they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Damaged;

/// Most bytes of an encoded number: enough for any length of a value.
const NUMBER_BYTES_MAX: usize = 4;

/// Reads a number. Returns it with the bytes behind it.
#[inline]
fn read_number(bytes: &[u8]) -> Option<(usize, &[u8])> {
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
fn write_number(mut number: usize, out: &mut Vec<u8>) {
    assert!(number < 1 << (7 * NUMBER_BYTES_MAX), "{number} does not fit");
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

#[inline]
fn read_part(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = read_number(bytes)?;
    rest.split_at_checked(length)
}

#[inline]
fn write_part(part: &[u8], out: &mut Vec<u8>) {
    write_number(part.len(), out);
    out.extend_from_slice(part);
}

impl<'a> Packed<'a> {
    /// Returns the value of this type without elements.
    pub const fn empty(value_type: ValueType) -> Packed<'static> {
        Packed { value_type, count: 0, bytes: &[] }
    }

    /// Returns the elements of a value other than a string.
    pub fn parse(value: TypedValue<'a>) -> Result<Packed<'a>, Damaged> {
        let (count, bytes) = read_number(value.bytes).ok_or(Damaged)?;
        Ok(Packed { value_type: value.value_type, count, bytes })
    }

    /// Returns the number of elements.
    pub fn count(self) -> usize {
        self.count
    }

    /// Returns the elements in order.
    #[inline]
    pub fn elements(self) -> PackedElements<'a> {
        let has_values = self.value_type == ValueType::Hash;
        PackedElements { left: self.count, has_values, bytes: self.bytes }
    }

    /// Returns the value of the element of this name.
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

    /// Returns the values of the elements of these names, in their order.
    pub fn get_all(self, names: &[&[u8]]) -> Result<Vec<Option<&'a [u8]>>, Damaged> {
        if names.len() < NAMES_MIN {
            return names.iter().map(|name| self.get(name)).collect();
        }
        let elements = Elements::of(self, names.len())?;
        Ok(names.iter().map(|name| elements.get(name)).collect())
    }
}

/// Iterator over the elements of a packed value. It ends with an error where the value is damaged.
pub struct PackedElements<'a> {
    left: usize,
    has_values: bool,
    bytes: &'a [u8],
}

impl<'a> Iterator for PackedElements<'a> {
    type Item = Result<Element<'a>, Damaged>;

    #[inline]
    fn next(&mut self) -> Option<Result<Element<'a>, Damaged>> {
        self.left = self.left.checked_sub(1)?;
        let read = |bytes| {
            let (name, rest) = read_part(bytes)?;
            let (value, rest) = if self.has_values { read_part(rest)? } else { (&[][..], rest) };
            Some((Element { name, value }, rest))
        };
        match read(self.bytes) {
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

/// Number of searches in one command from which a table of names is built first.
const NAMES_MIN: usize = 8;

/// The elements of a value while a command changes them.
pub struct Elements<'a> {
    value_type: ValueType,
    /// The elements in order; `None` in the place of a removed one.
    list: Vec<Option<Element<'a>>>,
    count: usize,
    /// The position of each name in `list`, if there are enough searches. It is only looked up,
    /// never iterated.
    places: Option<HashMap<&'a [u8], usize>>,
    is_changed: bool,
}

impl<'a> Elements<'a> {
    /// Reads the elements of a value, for this number of searches.
    pub fn of(packed: Packed<'a>, searches: usize) -> Result<Elements<'a>, Damaged> {
        let list = packed.elements().map(|element| element.map(Some));
        let list = list.collect::<Result<Vec<Option<Element<'a>>>, Damaged>>()?;
        let places = (searches >= NAMES_MIN).then(|| {
            let named = list.iter().flatten().enumerate();
            named.map(|(place, element)| (element.name, place)).collect()
        });
        let (value_type, count) = (packed.value_type, packed.count);
        Ok(Elements { value_type, list, count, places, is_changed: false })
    }

    /// Returns the number of elements.
    pub fn count(&self) -> usize {
        self.count
    }

    fn place(&self, name: &[u8]) -> Option<usize> {
        match &self.places {
            Some(places) => places.get(name).copied(),
            None => self.list.iter().position(|one| one.is_some_and(|one| one.name == name)),
        }
    }

    /// Returns the value of the element of this name.
    pub fn get(&self, name: &[u8]) -> Option<&'a [u8]> {
        self.list[self.place(name)?].map(|element| element.value)
    }

    /// Returns the elements in order.
    pub fn iter(&self) -> impl Iterator<Item = Element<'a>> {
        self.list.iter().flatten().copied()
    }

    /// Sets the value of the element of this name. Returns whether the element is new.
    pub fn set(&mut self, name: &'a [u8], value: &'a [u8]) -> bool {
        let element = Some(Element { name, value });
        self.is_changed = true;
        if let Some(place) = self.place(name) {
            self.list[place] = element;
            return false;
        }
        if let Some(places) = &mut self.places {
            places.insert(name, self.list.len());
        }
        self.list.push(element);
        self.count += 1;
        true
    }

    /// Adds a member, if the set does not have it.
    pub fn add(&mut self, member: &'a [u8]) {
        if self.place(member).is_none() {
            self.set(member, &[]);
        }
    }

    /// Removes the elements at these positions of a value that had all its elements when it was
    /// read. Returns their names.
    pub fn remove_at(&mut self, places: &[usize]) -> Vec<&'a [u8]> {
        debug_assert!(self.places.is_none(), "positions are for values without a table of names");
        let removed = places.iter().filter_map(|place| self.list[*place].take());
        let names: Vec<&[u8]> = removed.map(|element| element.name).collect();
        self.count -= names.len();
        self.is_changed |= !names.is_empty();
        names
    }

    /// Removes the element of this name. Returns whether there was one.
    pub fn remove(&mut self, name: &[u8]) -> bool {
        let Some(place) = self.place(name) else { return false };
        if let Some(places) = &mut self.places {
            places.remove(name);
        }
        self.list[place] = None;
        self.count -= 1;
        self.is_changed = true;
        true
    }

    /// Returns the type of the value.
    pub fn value_type(&self) -> ValueType {
        self.value_type
    }

    /// Returns whether an element was set or removed.
    pub fn is_changed(&self) -> bool {
        self.is_changed
    }

    /// Appends the elements as a packed value.
    pub fn encode(&self, out: &mut Vec<u8>) {
        debug_assert_eq!(self.count, self.iter().count(), "an element is miscounted");
        encode(self.value_type, self.count, self.iter(), out);
    }
}

/// Appends `count` elements as a packed value.
fn encode<'e>(
    value_type: ValueType,
    count: usize,
    elements: impl Iterator<Item = Element<'e>>,
    out: &mut Vec<u8>,
) {
    write_number(count, out);
    for element in elements {
        write_part(element.name, out);
        if value_type == ValueType::Hash {
            write_part(element.value, out);
        }
    }
}

/// Appends distinct elements as a packed value.
pub fn encode_new<'e>(
    value_type: ValueType,
    elements: impl ExactSizeIterator<Item = Element<'e>>,
    out: &mut Vec<u8>,
) {
    encode(value_type, elements.len(), elements, out);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

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
    fn elements_behave_like_those_of_a_map() {
        let mut random = fastrand::Rng::with_seed(11);
        let names: Vec<Vec<u8>> = (0..40).map(|n| vec![b'n'; n]).collect();
        for round in 0..2_000 {
            let value_type = if round % 2 == 0 { ValueType::Hash } else { ValueType::Set };
            let mut twin: BTreeMap<&[u8], &[u8]> = BTreeMap::new();
            let mut bytes = new_value(value_type, &[]);
            for _ in 0..4 {
                let before = bytes.clone();
                let searches = random.usize(..20);
                let mut elements = Elements::of(packed(value_type, &before), searches).unwrap();
                for _ in 0..searches {
                    let name = &names[random.usize(..names.len())][..];
                    let value = match value_type {
                        ValueType::Hash => &names[random.usize(..names.len())][..],
                        ValueType::Set | ValueType::String => &[],
                    };
                    match random.bool() {
                        true => assert_eq!(
                            elements.set(name, value),
                            twin.insert(name, value).is_none()
                        ),
                        false => assert_eq!(elements.remove(name), twin.remove(name).is_some()),
                    }
                    assert_eq!(elements.get(name), twin.get(name).copied());
                }
                bytes.clear();
                elements.encode(&mut bytes);
                let read = packed(value_type, &bytes);
                assert_eq!(read.count(), twin.len());
                let sorted: BTreeMap<_, _> =
                    read.elements().map(|one| one.map(|it| (it.name, it.value)).unwrap()).collect();
                assert_eq!(sorted, twin);
                for name in &names {
                    assert_eq!(read.get(name).unwrap(), twin.get(&name[..]).copied());
                }
            }
        }
    }

    #[test]
    fn new_elements_follow_and_old_ones_stay_in_their_places() {
        let bytes = new_value(ValueType::Hash, &[element(b"a", b"1"), element(b"b", b"2")]);
        let mut elements = Elements::of(packed(ValueType::Hash, &bytes), 1).unwrap();
        assert!(elements.set(b"c", b"3"));
        assert!(!elements.set(b"a", b"4"));
        let names: Vec<_> = elements.iter().map(|one| (one.name, one.value)).collect();
        assert_eq!(names, [(&b"a"[..], &b"4"[..]), (b"b", b"2"), (b"c", b"3")]);
    }

    #[test]
    fn bytes_that_are_no_value_are_an_error_and_nothing_else() {
        let mut random = fastrand::Rng::with_seed(12);
        let whole = new_value(ValueType::Hash, &[element(b"field", b"value"), element(b"g", b"")]);
        for length in 0..whole.len() {
            let cut = TypedValue { value_type: ValueType::Hash, bytes: &whole[..length] };
            let read = Packed::parse(cut).and_then(|packed| Elements::of(packed, 1).map(|_| ()));
            assert_eq!(read, Err(Damaged), "{length}");
        }
        let mut longer = whole.clone();
        longer.push(0);
        assert!(Elements::of(packed(ValueType::Hash, &longer), 1).is_err());
        for _ in 0..50_000 {
            let bytes: Vec<u8> = (0..random.usize(1..40)).map(|_| random.u8(..)).collect();
            for value_type in [ValueType::Hash, ValueType::Set] {
                let Ok(packed) = Packed::parse(TypedValue { value_type, bytes: &bytes }) else {
                    continue;
                };
                let _ = packed.get(b"x");
                let _ = packed.get_all(&[&b"x"[..]; NAMES_MIN]);
                if let Ok(elements) = Elements::of(packed, 0) {
                    assert_eq!(elements.count(), packed.count());
                }
            }
        }
    }
}
