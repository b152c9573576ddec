//! Packed values of records: hashes and sets in one record.

use super::{Call, Done, Refusal};
use crate::core::data::{Changes, Record};
use types::{TypedValue, ValueType};
use values::{Damaged, Element, Elements, Packed, encode_new, parse_integer};

impl From<Damaged> for Refusal {
    fn from(Damaged: Damaged) -> Refusal {
        Refusal::because("ERR the value is damaged: DEL this key")
    }
}

/// Returns the elements of a record, which must have this type. A missing record has none.
#[inline]
pub(super) fn packed(
    record: Option<Record<'_>>,
    value_type: ValueType,
) -> Result<Packed<'_>, Refusal> {
    let Some(record) = record else { return Ok(Packed::empty(value_type)) };
    if record.value.value_type != value_type {
        return Err(Refusal::WrongType);
    }
    Ok(Packed::parse(record.value)?)
}

/// Reads the elements of a record that a command changes. The record must have this type; a missing
/// one has no elements. The command searches for `searches` of them.
pub(super) fn read_elements(
    record: Option<Record<'_>>,
    value_type: ValueType,
    searches: usize,
) -> Result<Elements<'_>, Refusal> {
    Ok(Elements::of(packed(record, value_type)?, searches)?)
}

/// Writes the elements that were read from this record as the value of the key at this position, if
/// they have changed. Removes the key if there are none. The record keeps its expiry.
pub(super) fn write_elements(
    elements: &Elements<'_>,
    record: Option<Record<'_>>,
    changes: &mut Changes<'_>,
    at: usize,
) {
    let expiry = record.and_then(|record| record.expiry);
    match elements.count() {
        _ if !elements.is_changed() => {}
        0 => changes.delete(at),
        _ => changes.put_built(at, elements.value_type(), expiry, |out| elements.encode(out)),
    }
}

/// Replies with the number of elements of the value under argument 1: `HLEN` and `SCARD`.
pub(super) fn count_elements(call: &mut Call<'_>, value_type: ValueType) -> Done {
    let count = call.read(|record| Ok::<_, Refusal>(packed(record, value_type)?.count()))??;
    call.integer(count as i64)
}

/// Replies whether the value under argument 1 has the element of argument 2: `HEXISTS` and
/// `SISMEMBER`.
pub(super) fn has_element(call: &mut Call<'_>, value_type: ValueType) -> Done {
    let name = call.args[2];
    let found = call.read(|record| {
        let found = packed(record, value_type)?.get(name)?;
        Ok::<_, Refusal>(found.is_some())
    })??;
    call.integer(found)
}

/// Removes the elements of these names from the value under argument 1: `HDEL` and `SREM`.
pub(super) fn remove_elements(call: &mut Call<'_>, value_type: ValueType) -> Done {
    let names = &call.args[2..];
    let removed = call.update(|record, changes| {
        let mut elements = read_elements(record, value_type, names.len())?;
        let removed = names.iter().filter(|name| elements.remove(name)).count();
        write_elements(&elements, record, changes, 0);
        Ok::<usize, Refusal>(removed)
    })??;
    call.integer(removed as i64)
}

/// Writes distinct elements as the value of the key at this position, without expiry. Removes the
/// key if there are none.
pub(super) fn write_new<'e>(
    value_type: ValueType,
    elements: impl ExactSizeIterator<Item = Element<'e>>,
    changes: &mut Changes<'_>,
    at: usize,
) {
    match elements.len() {
        0 => changes.delete(at),
        _ => changes.put_built(at, value_type, None, |out| encode_new(value_type, elements, out)),
    }
}

/// Most elements of a hash, of a set, and of a set of integers, and longest element, that Redis
/// stores in its compact encodings (the defaults of `hash-max-listpack-entries` and so on).
const COMPACT_FIELDS_MAX: usize = 512;
const COMPACT_MEMBERS_MAX: usize = 128;
const COMPACT_INTEGERS_MAX: usize = 512;
const COMPACT_BYTES_MAX: usize = 64;

/// Returns Redis's name for the encoding of a value other than a string, if it had been built there
/// by additions only.
pub(super) fn encoding(value: TypedValue<'_>) -> Result<&'static [u8], Refusal> {
    let packed = Packed::parse(value)?;
    let (mut is_short, mut is_integers) = (true, true);
    for element in packed.elements() {
        let Element { name, value } = element?;
        is_short &= name.len().max(value.len()) <= COMPACT_BYTES_MAX;
        is_integers &= parse_integer(name).is_some();
    }
    Ok(match value.value_type {
        ValueType::Hash if is_short && packed.count() <= COMPACT_FIELDS_MAX => b"listpack",
        ValueType::Set if is_integers && packed.count() <= COMPACT_INTEGERS_MAX => b"intset",
        ValueType::Set if is_short && packed.count() <= COMPACT_MEMBERS_MAX => b"listpack",
        ValueType::Hash | ValueType::Set => b"hashtable",
        ValueType::String => b"raw",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encodings_are_named_as_in_redis() {
        let long = [b'x'; COMPACT_BYTES_MAX + 1];
        let element = |name, value| Element { name, value };
        let name = |value_type, elements: &[Element<'_>]| {
            let mut bytes = Vec::new();
            encode_new(value_type, elements.iter().copied(), &mut bytes);
            encoding(TypedValue { value_type, bytes: &bytes }).unwrap()
        };
        assert_eq!(name(ValueType::Hash, &[element(b"a", b"b")]), b"listpack");
        assert_eq!(name(ValueType::Hash, &[element(b"a", &long)]), b"hashtable");
        assert_eq!(name(ValueType::Set, &[element(b"1", b"")]), b"intset");
        assert_eq!(name(ValueType::Set, &[element(b"1", b""), element(b"x", b"")]), b"listpack");
        assert_eq!(name(ValueType::Set, &[element(&long, b"")]), b"hashtable");
    }
}
