//! One item of a reply: a scalar, or the header of an aggregate whose children follow.

use crate::number::{parse_integer, short_line};
use crate::reply::Reply;

/// The error for bytes that are not a valid reply. The connection cannot be used any longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MalformedReply {
    /// No reply begins with this byte.
    #[error("a reply cannot begin with byte {0:#04x}")]
    Marker(u8),
    /// A number, boolean, null, length or verbatim text is malformed.
    #[error("invalid {0} in a reply")]
    Invalid(&'static str),
    /// The reply exceeds the size limit, or announces more than it.
    #[error("reply is too big")]
    TooBig,
    /// The nesting of the reply exceeds the limit.
    #[error("reply is nested too deeply")]
    TooDeep,
}

/// The item at the front of some bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Item<'a> {
    /// A complete reply without parts.
    Scalar(Reply<'a>),
    /// A header, with the number of items that follow.
    Aggregate(Aggregate, usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Aggregate {
    Array,
    Map,
    Set,
    Push,
    /// Attributes. The last of the items that follow is the reply that they describe.
    Attribute,
}

impl Item<'_> {
    /// Returns the number of items that follow and belong to this one.
    #[inline]
    pub(crate) fn children(&self) -> usize {
        match self {
            Item::Scalar(_) => 0,
            Item::Aggregate(_, children) => *children,
        }
    }
}

/// Returns the reply at the front of `bytes` and its length, if it is complete and of a common
/// kind. After `None`, an [`ItemReader`] must decide.
///
/// Separate from the reader, because a reply that is built in only one place stays in registers.
#[inline(always)]
pub(crate) fn read_usual(bytes: &[u8]) -> Option<(Reply<'_>, usize)> {
    let (marker, rest) = bytes.split_first()?;
    match marker {
        b'$' if rest.starts_with(b"-1\r\n") => Some((Reply::Null, 5)),
        b'$' => {
            let (length, line) = short_line(rest)?;
            let (body, end) = rest.get(line..)?.split_at_checked(length)?;
            (end.get(..2)? == b"\r\n").then_some((Reply::Bulk(body), 1 + line + length + 2))
        }
        b':' => short_line(rest).map(|(number, line)| (Reply::Integer(number as i64), 1 + line)),
        b'+' => rest.starts_with(b"OK\r\n").then(|| (Reply::Simple(&rest[..2]), 5)),
        b'_' => rest.starts_with(b"\r\n").then_some((Reply::Null, 3)),
        _ => None,
    }
}

/// A reader of items. It remembers how far it has searched an unfinished line.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ItemReader {
    /// Longest bulk string, in bytes.
    pub(crate) bytes_max: usize,
    /// Bytes of the line at the front that contain no line end. The caller sets this to 0 when it
    /// takes an item.
    pub(crate) searched: usize,
}

impl ItemReader {
    /// Reads the item at the front of `bytes`; returns it and its length. `None`: incomplete.
    pub(crate) fn read<'a>(
        &mut self,
        bytes: &'a [u8],
    ) -> Result<Option<(Item<'a>, usize)>, MalformedReply> {
        let Some((&marker, rest)) = bytes.split_first() else { return Ok(None) };
        if !b"+-:,#_($=!*%~>|".contains(&marker) {
            return Err(MalformedReply::Marker(marker));
        }
        let Some(end) = self.find_line_end(rest)? else { return Ok(None) };
        let (text, line) = (&rest[..end], end + 2);
        let item = match marker {
            b'+' => Item::Scalar(Reply::Simple(text)),
            b'-' => Item::Scalar(Reply::Error(text)),
            b':' => Item::Scalar(Reply::Integer(integer(text, "integer")?)),
            b',' => Item::Scalar(Reply::Double(double(text)?)),
            b'#' => Item::Scalar(Reply::Boolean(boolean(text)?)),
            b'_' if text.is_empty() => Item::Scalar(Reply::Null),
            b'_' => return Err(MalformedReply::Invalid("null")),
            b'(' => Item::Scalar(Reply::BigNumber(big_number(text)?)),
            b'$' | b'*' if text == b"-1" => Item::Scalar(Reply::Null),
            b'$' => return self.read_bulk(Reply::Bulk, rest, length(text)?, line),
            b'!' => return self.read_bulk(Reply::Error, rest, length(text)?, line),
            b'=' => return self.read_verbatim(rest, length(text)?, line),
            b'*' => Item::Aggregate(Aggregate::Array, length(text)?),
            b'~' => Item::Aggregate(Aggregate::Set, length(text)?),
            b'>' => Item::Aggregate(Aggregate::Push, length(text)?),
            b'%' => Item::Aggregate(Aggregate::Map, pairs(text)?),
            b'|' => Item::Aggregate(Aggregate::Attribute, pairs(text)? + 1),
            other => return Err(MalformedReply::Marker(other)),
        };
        Ok(Some((item, 1 + line)))
    }

    /// Reads the `length` bytes that follow a header line in `rest`, and their line end.
    #[inline]
    fn read_bulk<'a>(
        &self,
        kind: impl FnOnce(&'a [u8]) -> Reply<'a>,
        rest: &'a [u8],
        length: usize,
        line: usize,
    ) -> Result<Option<(Item<'a>, usize)>, MalformedReply> {
        if length > self.bytes_max {
            return Err(MalformedReply::TooBig);
        }
        let end = line + length;
        match rest.get(end..end + 2) {
            None => Ok(None),
            Some(b"\r\n") => Ok(Some((Item::Scalar(kind(&rest[line..end])), 1 + end + 2))),
            Some(_) => Err(MalformedReply::Invalid("bulk length")),
        }
    }

    fn read_verbatim<'a>(
        &self,
        rest: &'a [u8],
        length: usize,
        line: usize,
    ) -> Result<Option<(Item<'a>, usize)>, MalformedReply> {
        match self.read_bulk(Reply::Bulk, rest, length, line)? {
            Some((Item::Scalar(Reply::Bulk([a, b, c, b':', text @ ..])), taken)) => {
                Ok(Some((Item::Scalar(Reply::Verbatim { format: [*a, *b, *c], text }), taken)))
            }
            Some(_) => Err(MalformedReply::Invalid("verbatim text")),
            None => Ok(None),
        }
    }

    /// Returns the position of the CR LF that ends the line at the front of `rest`.
    fn find_line_end(&mut self, rest: &[u8]) -> Result<Option<usize>, MalformedReply> {
        let window = &rest[..rest.len().min(self.bytes_max + 1)];
        let Some(found) = memchr::memchr(b'\r', &window[self.searched..]) else {
            if window.len() > self.bytes_max {
                return Err(MalformedReply::TooBig);
            }
            self.searched = window.len();
            return Ok(None);
        };
        self.searched += found;
        let end = self.searched;
        match rest.get(end + 1) {
            None => Ok(None),
            Some(b'\n') => Ok(Some(end)),
            Some(_) => Err(MalformedReply::Invalid("line end")),
        }
    }
}

fn integer(text: &[u8], what: &'static str) -> Result<i64, MalformedReply> {
    let text = match text {
        [b'+', digits @ ..] if digits.first().is_some_and(u8::is_ascii_digit) => digits,
        text => text,
    };
    parse_integer(text).ok_or(MalformedReply::Invalid(what))
}

fn length(text: &[u8]) -> Result<usize, MalformedReply> {
    let length = integer(text, "length")?;
    usize::try_from(length).map_err(|_| MalformedReply::Invalid("length"))
}

/// Returns the number of items in the announced number of pairs.
fn pairs(text: &[u8]) -> Result<usize, MalformedReply> {
    // The limit is one below the maximum, because an attribute has one more item.
    length(text)?.checked_mul(2).filter(|items| *items < usize::MAX).ok_or(MalformedReply::TooBig)
}

fn double(text: &[u8]) -> Result<f64, MalformedReply> {
    let text = std::str::from_utf8(text).ok();
    text.and_then(|text| text.parse().ok()).ok_or(MalformedReply::Invalid("double"))
}

fn boolean(text: &[u8]) -> Result<bool, MalformedReply> {
    match text {
        b"t" => Ok(true),
        b"f" => Ok(false),
        _ => Err(MalformedReply::Invalid("boolean")),
    }
}

fn big_number(text: &[u8]) -> Result<&[u8], MalformedReply> {
    let digits = text.strip_prefix(b"-").or(text.strip_prefix(b"+")).unwrap_or(text);
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return Err(MalformedReply::Invalid("big number"));
    }
    Ok(text)
}
