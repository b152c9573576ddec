//! Replies as the results of methods.

use client_core::ClientError;
use resp::Value;
use std::time::Duration;

/// A value and its version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Versioned {
    /// The value; `None` if the key does not exist.
    pub value: Option<Vec<u8>>,
    /// The version of the record. It identifies one write of the key. 0 if the key does not exist.
    pub version: u64,
}

/// The outcome of a write with a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteOutcome {
    /// The write was executed.
    Written {
        /// Version of the key now; 0 if it was removed.
        version: u64,
    },
    /// The condition did not hold, so nothing has changed.
    Conflict {
        /// Version that the key has instead.
        version: u64,
    },
}

/// The time to live of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeToLive {
    /// The key does not exist.
    NoKey,
    /// The key does not expire.
    Endless,
    /// The key expires after this time.
    Left(Duration),
}

/// Returns the error for a reply of another form.
#[cold]
fn unexpected(value: &Value) -> ClientError {
    let mut text = format!("{value:?}");
    if let Some((end, _)) = text.char_indices().nth(200) {
        text.truncate(end);
    }
    ClientError::UnexpectedReply(text)
}

pub(crate) fn optional_bytes(value: Value) -> Result<Option<Vec<u8>>, ClientError> {
    match value {
        Value::Bulk(bytes) => Ok(Some(bytes)),
        Value::Null => Ok(None),
        other => Err(unexpected(&other)),
    }
}

pub(crate) fn done(value: Value) -> Result<(), ClientError> {
    match value {
        Value::Simple(text) if text == b"OK" => Ok(()),
        other => Err(unexpected(&other)),
    }
}

pub(crate) fn integer(value: Value) -> Result<i64, ClientError> {
    match value {
        Value::Integer(number) => Ok(number),
        other => Err(unexpected(&other)),
    }
}

pub(crate) fn count(value: Value) -> Result<u64, ClientError> {
    let number = integer(value)?;
    u64::try_from(number).map_err(|_| unexpected(&Value::Integer(number)))
}

pub(crate) fn flag(value: Value) -> Result<bool, ClientError> {
    match integer(value)? {
        0 => Ok(false),
        1 => Ok(true),
        other => Err(unexpected(&Value::Integer(other))),
    }
}

pub(crate) fn time_to_live(value: Value) -> Result<TimeToLive, ClientError> {
    match integer(value)? {
        -2 => Ok(TimeToLive::NoKey),
        -1 => Ok(TimeToLive::Endless),
        millis => match u64::try_from(millis) {
            Ok(millis) => Ok(TimeToLive::Left(Duration::from_millis(millis))),
            Err(_) => Err(unexpected(&Value::Integer(millis))),
        },
    }
}

/// Returns the items of an array of this length.
pub(crate) fn list(value: Value, length: usize) -> Result<Vec<Value>, ClientError> {
    match value {
        Value::Array(items) if items.len() == length => Ok(items),
        other => Err(unexpected(&other)),
    }
}

fn pair(value: Value) -> Result<(Value, Value), ClientError> {
    let [first, second] = <[Value; 2]>::try_from(list(value, 2)?)
        .map_err(|items| unexpected(&Value::Array(items)))?;
    Ok((first, second))
}

pub(crate) fn versioned(value: Value) -> Result<Versioned, ClientError> {
    let (value, version) = pair(value)?;
    Ok(Versioned { value: optional_bytes(value)?, version: count(version)? })
}

pub(crate) fn write_outcome(value: Value) -> Result<WriteOutcome, ClientError> {
    let (is_written, version) = pair(value)?;
    let version = count(version)?;
    Ok(match flag(is_written)? {
        true => WriteOutcome::Written { version },
        false => WriteOutcome::Conflict { version },
    })
}

/// Parses a step of a scan: the next cursor, and keys.
pub(crate) fn scan_step(value: Value) -> Result<(u64, Vec<Vec<u8>>), ClientError> {
    let (cursor, keys) = pair(value)?;
    let Value::Bulk(digits) = &cursor else { return Err(unexpected(&cursor)) };
    let parsed = std::str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok());
    let next = parsed.ok_or_else(|| unexpected(&cursor))?;
    let Value::Array(keys) = keys else { return Err(unexpected(&keys)) };
    let bytes = |key| match key {
        Value::Bulk(key) => Ok(key),
        other => Err(unexpected(&other)),
    };
    let keys: Result<Vec<Vec<u8>>, ClientError> = keys.into_iter().map(bytes).collect();
    Ok((next, keys?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_become_results_and_others_are_errors() {
        let bulk = |text: &str| Value::Bulk(text.as_bytes().to_vec());
        let pair = |one, two| Value::Array(vec![one, two]);
        assert_eq!(optional_bytes(Value::Null), Ok(None));
        assert!(optional_bytes(Value::Integer(1)).is_err());
        assert_eq!(done(Value::Simple(b"OK".to_vec())), Ok(()));
        assert!(done(Value::Simple(b"QUEUED".to_vec())).is_err());
        assert!(count(Value::Integer(-1)).is_err());
        assert!(flag(Value::Integer(2)).is_err());
        assert_eq!(time_to_live(Value::Integer(-2)), Ok(TimeToLive::NoKey));
        assert!(time_to_live(Value::Integer(-3)).is_err());
        assert_eq!(
            write_outcome(pair(Value::Integer(0), Value::Integer(7))),
            Ok(WriteOutcome::Conflict { version: 7 })
        );
        assert!(write_outcome(Value::Array(vec![Value::Integer(1)])).is_err());
        assert!(versioned(pair(Value::Null, Value::Integer(-1))).is_err());
        assert_eq!(
            scan_step(pair(bulk("18446744073709551615"), Value::Array(vec![bulk("k")]))),
            Ok((u64::MAX, vec![b"k".to_vec()]))
        );
        assert!(scan_step(pair(bulk("x"), Value::Array(vec![]))).is_err());
        assert!(scan_step(pair(bulk("1"), Value::Array(vec![Value::Null]))).is_err());
    }
}
