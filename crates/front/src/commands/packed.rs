//! Commands on the elements of hashes, sets and sorted sets.

use super::{Call, Cause, Done, NotExecuted, Refusal};
use crate::core::data::{Record, TableKey};
use crate::core::elements::{NewExpiry, Touched, ValueChange};
use resp::ReplyWriter;
use types::{TypedValue, ValueType};
use values::{Damaged, Element, Elements, Form, Root, parse_integer};

impl From<Damaged> for Refusal {
    fn from(Damaged: Damaged) -> Refusal {
        Refusal::because("ERR the value is damaged: DEL this key")
    }
}

/// Longest encoding of the lengths of an element, in bytes.
const LENGTHS_BYTES_MAX: usize = 8;

/// Returns the most bytes that an element of these parts takes.
pub(super) fn element_bytes(parts: &[&[u8]]) -> u64 {
    parts.iter().map(|part| part.len()).sum::<usize>() as u64 + LENGTHS_BYTES_MAX as u64
}

impl Call<'_> {
    /// Passes those elements of the value under argument 1 that the command needs to `f`.
    #[inline]
    pub(super) fn read_elements<T>(
        &mut self,
        value_type: ValueType,
        touched: Touched<'_>,
        f: impl FnOnce(&Elements<'_>) -> Result<T, Refusal>,
    ) -> Result<T, NotExecuted> {
        let (key, table) = (self.key(1), self.session.status.table);
        self.backend.read_elements(table, key, value_type, touched, f)
    }

    /// Replies about elements of the value under argument 1. If `f` returns an error, it has written
    /// nothing.
    #[inline]
    pub(super) fn reply_with_elements(
        &mut self,
        value_type: ValueType,
        touched: Touched<'_>,
        f: impl FnOnce(&mut resp::ReplyWriter<'_>, &Elements<'_>) -> Result<(), Refusal>,
    ) -> Done {
        let (key, table) = (self.key(1), self.session.status.table);
        let reply = &mut self.reply;
        self.backend.read_elements(table, key, value_type, touched, |elements| f(reply, elements))
    }

    /// Changes elements of the value under argument 1. If `f` adds elements, it may be called several
    /// times.
    #[inline]
    pub(super) fn update_elements<T>(
        &mut self,
        value_type: ValueType,
        touched: Touched<'_>,
        size: SizeChange,
        mut f: impl FnMut(&mut Elements<'_>) -> Result<T, Refusal>,
    ) -> Result<T, NotExecuted> {
        let key = TableKey { table: self.session.status.table, key: self.key(1) };
        let change = size.of(key, touched);
        self.backend.update_elements(value_type, change, |elements, _| f(elements))
    }

    /// Changes elements of a value and writes the reply. `f` may be called several times: the reply
    /// is that of the last one.
    pub(super) fn update_and_reply<T>(
        &mut self,
        value_type: ValueType,
        change: ValueChange<'_>,
        mut f: impl FnMut(
            &mut Elements<'_>,
            Option<Record<'_>>,
            &mut ReplyWriter<'_>,
        ) -> Result<T, Refusal>,
    ) -> Result<T, NotExecuted> {
        let reply = &mut self.reply;
        let begin = reply.length();
        self.backend.update_elements(value_type, change, |elements, record| {
            reply.rewind(begin);
            f(elements, record, reply)
        })
    }
}

/// The change in the size of a value that a command may cause.
#[derive(Clone, Copy)]
pub(super) enum SizeChange {
    /// Elements of at most so many bytes are added.
    Adds(u64),
    /// Elements are removed.
    Removes,
}

impl SizeChange {
    /// Returns the change of a value that touches these elements.
    pub(super) fn of<'k>(self, key: TableKey<'k>, touched: Touched<'k>) -> ValueChange<'k> {
        let (added, removes) = match self {
            SizeChange::Adds(bytes) => (bytes, false),
            SizeChange::Removes => (0, true),
        };
        ValueChange { key, touched, expiry: NewExpiry::Kept, added, removes }
    }
}

/// Lets a command start again whose value had another type at its second look: another command has
/// replaced the value in between.
pub(super) fn again_if_replaced<T>(outcome: Result<T, NotExecuted>) -> Result<T, NotExecuted> {
    match outcome {
        Err(NotExecuted::Reject(Refusal::WrongType)) => Err(NotExecuted::Retry(Cause::Turn)),
        outcome => outcome,
    }
}

/// Returns the elements that were read.
pub(super) fn listed<'e>(elements: &'e Elements<'_>) -> Result<Vec<Element<'e>>, Refusal> {
    Ok(elements.iter().collect::<Result<Vec<Element<'e>>, Damaged>>()?)
}

/// Replies with the number of elements of the value under argument 1: `HLEN`, `SCARD` and `ZCARD`.
pub(super) fn count_elements(call: &mut Call<'_>, value_type: ValueType) -> Done {
    let none = Touched::Names(&[]);
    let count = call.read_elements(value_type, none, |elements| Ok(elements.count()))?;
    call.integer(count as i64)
}

/// Replies whether the value under argument 1 has the element of argument 2: `HEXISTS` and
/// `SISMEMBER`.
pub(super) fn has_element(call: &mut Call<'_>, value_type: ValueType) -> Done {
    let names = &call.args[2..3];
    let found = call.read_elements(value_type, Touched::Names(names), |elements| {
        Ok(elements.get(names[0])?.is_some())
    })?;
    call.integer(found)
}

/// Removes the elements of these names from the value under argument 1: `HDEL`, `SREM` and `ZREM`.
pub(super) fn remove_elements(call: &mut Call<'_>, value_type: ValueType) -> Done {
    let names = &call.args[2..];
    let touched = Touched::Names(names);
    let removed = call.update_elements(value_type, touched, SizeChange::Removes, |elements| {
        let mut removed = 0;
        for name in names {
            removed += i64::from(elements.remove(name)?);
        }
        Ok(removed)
    })?;
    call.integer(removed)
}

/// Most elements of a hash, of a set, and of a set of integers, and longest element, that Redis
/// stores in its compact encodings (the defaults of `hash-max-listpack-entries` and so on).
const COMPACT_FIELDS_MAX: usize = 512;
const COMPACT_MEMBERS_MAX: usize = 128;
const COMPACT_INTEGERS_MAX: usize = 512;
const COMPACT_BYTES_MAX: usize = 64;

/// Returns Redis's name for the encoding of a value other than a string, if it had been built there
/// by additions only.
pub(super) fn encoding_name(value: TypedValue<'_>) -> Result<&'static [u8], Refusal> {
    let packed = match Form::of(value)? {
        Form::Packed(packed) => packed,
        Form::Split(Root { .. }) => return Ok(b"hashtable"),
    };
    let (mut is_short, mut is_integers) = (true, true);
    // Redis has a table for expiring fields.
    is_short &= !packed.has_expiries();
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
        ValueType::String | ValueType::List | ValueType::SortedSet | ValueType::Stream => b"raw",
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use values::encode_new;

    #[test]
    fn encodings_are_named_as_in_redis() {
        let long = [b'x'; COMPACT_BYTES_MAX + 1];
        let element = |name, value| Element { name, value };
        let name = |value_type, elements: &[Element<'_>]| {
            let mut bytes = Vec::new();
            encode_new(value_type, elements.iter().copied(), &mut bytes);
            encoding_name(TypedValue { value_type, bytes: &bytes }).unwrap()
        };
        assert_eq!(name(ValueType::Hash, &[element(b"a", b"b")]), b"listpack");
        assert_eq!(name(ValueType::Hash, &[element(b"a", &long)]), b"hashtable");
        assert_eq!(name(ValueType::Set, &[element(b"1", b"")]), b"intset");
        assert_eq!(name(ValueType::Set, &[element(b"1", b""), element(b"x", b"")]), b"listpack");
        assert_eq!(name(ValueType::Set, &[element(&long, b"")]), b"hashtable");
    }
}
