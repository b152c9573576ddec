//! Values with their data types.

/// Data type of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ValueType {
    /// Bytes.
    String,
    /// Fields with a value each.
    Hash,
    /// Distinct members.
    Set,
    /// Items in order.
    List,
    /// Distinct members with a score each, in the order of their scores.
    SortedSet,
    /// Entries with ascending ids, and groups of consumers.
    Stream,
}

impl ValueType {
    /// All types.
    pub const ALL: [ValueType; 6] = [
        ValueType::String,
        ValueType::Hash,
        ValueType::Set,
        ValueType::List,
        ValueType::SortedSet,
        ValueType::Stream,
    ];

    /// Returns the number of the type in log entries. Numbers never change.
    #[inline]
    pub const fn number(self) -> u8 {
        match self {
            ValueType::String => 0,
            ValueType::Hash => 1,
            ValueType::Set => 2,
            ValueType::List => 3,
            ValueType::SortedSet => 4,
            ValueType::Stream => 5,
        }
    }

    /// Returns the type with this number.
    #[inline]
    pub fn of_number(number: u8) -> Option<ValueType> {
        ValueType::ALL.into_iter().find(|known| known.number() == number)
    }

    /// Returns the name of the type, as `TYPE` shows it.
    pub const fn name(self) -> &'static str {
        match self {
            ValueType::String => "string",
            ValueType::Hash => "hash",
            ValueType::Set => "set",
            ValueType::List => "list",
            ValueType::SortedSet => "zset",
            ValueType::Stream => "stream",
        }
    }
}

/// A value: its type, and its bytes. A string's bytes are the string; those of the other types are
/// packed elements (`docs/design/values.md`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TypedValue<'a> {
    /// The type.
    pub value_type: ValueType,
    /// The bytes, without the type.
    pub bytes: &'a [u8],
}

impl<'a> TypedValue<'a> {
    /// Returns the string of these bytes.
    #[inline]
    pub const fn string(bytes: &'a [u8]) -> TypedValue<'a> {
        TypedValue { value_type: ValueType::String, bytes }
    }

    /// Returns the bytes of a string; `None` if the value has another type.
    #[inline]
    pub fn as_string(self) -> Option<&'a [u8]> {
        (self.value_type == ValueType::String).then_some(self.bytes)
    }

    /// Returns the bytes that the value takes in a log entry: a type other than string takes one.
    #[inline]
    pub const fn stored_bytes(self) -> usize {
        self.bytes.len() + !matches!(self.value_type, ValueType::String) as usize
    }
}

impl<'a> From<&'a [u8]> for TypedValue<'a> {
    #[inline]
    fn from(bytes: &'a [u8]) -> TypedValue<'a> {
        TypedValue::string(bytes)
    }
}

impl<'a, const N: usize> From<&'a [u8; N]> for TypedValue<'a> {
    #[inline]
    fn from(bytes: &'a [u8; N]) -> TypedValue<'a> {
        TypedValue::string(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_have_distinct_numbers() {
        for value_type in ValueType::ALL {
            assert_eq!(ValueType::of_number(value_type.number()), Some(value_type));
        }
        let last = ValueType::ALL.into_iter().map(ValueType::number).max().unwrap();
        assert_eq!(ValueType::of_number(last + 1), None);
    }

    #[test]
    fn only_strings_are_read_as_strings() {
        assert_eq!(TypedValue::string(b"x").as_string(), Some(&b"x"[..]));
        assert_eq!(TypedValue { value_type: ValueType::Set, bytes: b"x" }.as_string(), None);
        assert_eq!(TypedValue::string(b"x").stored_bytes(), 1);
        assert_eq!(TypedValue { value_type: ValueType::Hash, bytes: b"x" }.stored_bytes(), 2);
    }
}
