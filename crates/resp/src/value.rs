//! Replies that own their bytes.

use crate::{Items, Reply};

/// A reply as a tree, for code that does not need borrowed replies.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "each is the variant of `Reply` with its name")]
pub enum Value {
    Simple(Vec<u8>),
    Error(Vec<u8>),
    Integer(i64),
    Bulk(Vec<u8>),
    Null,
    Double(f64),
    Boolean(bool),
    BigNumber(Vec<u8>),
    Verbatim { format: [u8; 3], text: Vec<u8> },
    Array(Vec<Value>),
    Map(Vec<(Value, Value)>),
    Set(Vec<Value>),
    Push(Vec<Value>),
}

impl From<Reply<'_>> for Value {
    fn from(reply: Reply<'_>) -> Value {
        match reply {
            Reply::Simple(text) => Value::Simple(text.to_vec()),
            Reply::Error(text) => Value::Error(text.to_vec()),
            Reply::Integer(number) => Value::Integer(number),
            Reply::Bulk(bytes) => Value::Bulk(bytes.to_vec()),
            Reply::Null => Value::Null,
            Reply::Double(number) => Value::Double(number),
            Reply::Boolean(is_true) => Value::Boolean(is_true),
            Reply::BigNumber(digits) => Value::BigNumber(digits.to_vec()),
            Reply::Verbatim { format, text } => Value::Verbatim { format, text: text.to_vec() },
            Reply::Array(items) => Value::Array(items.map(Value::from).collect()),
            Reply::Map(items) => Value::Map(pairs(items)),
            Reply::Set(items) => Value::Set(items.map(Value::from).collect()),
            Reply::Push(items) => Value::Push(items.map(Value::from).collect()),
        }
    }
}

fn pairs(mut items: Items<'_>) -> Vec<(Value, Value)> {
    let mut pairs = Vec::with_capacity(items.len() / 2);
    while let (Some(key), Some(value)) = (items.next(), items.next()) {
        pairs.push((key.into(), value.into()));
    }
    pairs
}
