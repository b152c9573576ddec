//! Replies as slices of the bytes they arrived in.

use crate::item::{Aggregate, Item, ItemReader, read_usual};

/// A reply and its attributes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Received<'a> {
    /// The reply. A [`Reply::Push`] answers no request.
    pub reply: Reply<'a>,
    /// The attributes, alternating keys and values; usually none. If several groups of attributes
    /// precede a reply, only the last is kept.
    pub attributes: Items<'a>,
}

/// A reply, or a part of one. Attributes inside a reply are skipped.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Reply<'a> {
    /// A short text, such as `OK`.
    Simple(&'a [u8]),
    /// An error, beginning with its code.
    Error(&'a [u8]),
    /// A signed 64-bit integer.
    Integer(i64),
    /// Arbitrary bytes.
    Bulk(&'a [u8]),
    /// No value: the null of RESP3, or either null of RESP2.
    Null,
    /// A floating-point number.
    Double(f64),
    /// A boolean.
    Boolean(bool),
    /// An integer of any length, in decimal.
    BigNumber(&'a [u8]),
    /// A text for unmodified display.
    Verbatim {
        /// `txt` or `mkd`.
        format: [u8; 3],
        /// The text.
        text: &'a [u8],
    },
    /// An ordered list of replies.
    Array(Items<'a>),
    /// Alternating keys and values.
    Map(Items<'a>),
    /// An unordered collection of replies.
    Set(Items<'a>),
    /// The parts of a message that answers no request.
    Push(Items<'a>),
}

/// An iterator over the parts of a reply.
///
/// **Invariant:** the bytes were validated with the whole reply, and contain exactly the items.
#[derive(Clone, Copy, Default, PartialEq)]
pub struct Items<'a> {
    count: usize,
    bytes: &'a [u8],
}

impl<'a> Received<'a> {
    /// Takes a reply off the front of bytes that begin with a complete, validated reply.
    pub(crate) fn take_parsed(bytes: &mut &'a [u8]) -> Received<'a> {
        let mut attributes = Items::default();
        if let Some((reply, taken)) = read_usual(bytes) {
            *bytes = &bytes[taken..];
            return Received { reply, attributes };
        }
        loop {
            let reply = match take_item(bytes) {
                Item::Scalar(reply) => reply,
                Item::Aggregate(Aggregate::Array, count) => Reply::Array(Items::take(count, bytes)),
                Item::Aggregate(Aggregate::Map, count) => Reply::Map(Items::take(count, bytes)),
                Item::Aggregate(Aggregate::Set, count) => Reply::Set(Items::take(count, bytes)),
                Item::Aggregate(Aggregate::Push, count) => Reply::Push(Items::take(count, bytes)),
                Item::Aggregate(Aggregate::Attribute, count) => {
                    attributes = Items::take(count - 1, bytes);
                    continue;
                }
            };
            return Received { reply, attributes };
        }
    }
}

impl<'a> Items<'a> {
    /// Takes `count` items, including nested ones, off the front of `bytes`.
    fn take(count: usize, bytes: &mut &'a [u8]) -> Items<'a> {
        let whole = *bytes;
        let mut missing = count;
        while missing > 0 {
            missing -= 1;
            match read_usual(bytes) {
                Some((_, taken)) => *bytes = &bytes[taken..],
                None => missing += take_item(bytes).children(),
            }
        }
        Items { count, bytes: &whole[..whole.len() - bytes.len()] }
    }

    /// Returns whether no item is left.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }
}

impl<'a> Iterator for Items<'a> {
    type Item = Reply<'a>;

    #[inline]
    fn next(&mut self) -> Option<Reply<'a>> {
        self.count = self.count.checked_sub(1)?;
        Some(Received::take_parsed(&mut self.bytes).reply)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.count, Some(self.count))
    }
}

impl ExactSizeIterator for Items<'_> {}

impl std::fmt::Debug for Items<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(*self).finish()
    }
}

/// Takes one item, without its children, off the front of validated bytes.
fn take_item<'a>(bytes: &mut &'a [u8]) -> Item<'a> {
    match (ItemReader { bytes_max: isize::MAX as usize, searched: 0 }).read(bytes) {
        Ok(Some((item, taken))) => {
            *bytes = &bytes[taken..];
            item
        }
        Ok(None) | Err(_) => unreachable!("bytes of a reply were parsed before"),
    }
}
