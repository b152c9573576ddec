//! A reply as slices of the bytes it arrived in.

use crate::item::{Aggregate, Item, ItemReader, read_usual};

/// A reply and what the server had to say about it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Received<'a> {
    /// The reply; a [`Reply::Push`] answers no request.
    pub reply: Reply<'a>,
    /// Its attributes, a key and a value each: usually none. Of several groups of attributes in
    /// front of one reply, the last.
    pub attributes: Items<'a>,
}

/// One reply, or one part of a reply. Attributes within a reply are left out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Reply<'a> {
    /// A short text, such as `OK`.
    Simple(&'a [u8]),
    /// An error, beginning with its code.
    Error(&'a [u8]),
    /// A number.
    Integer(i64),
    /// Any bytes.
    Bulk(&'a [u8]),
    /// No value: the null of RESP3, or either one of RESP2.
    Null,
    /// A floating-point number.
    Double(f64),
    /// Yes or no.
    Boolean(bool),
    /// An integer of any length, in decimal.
    BigNumber(&'a [u8]),
    /// A text to be shown as it is.
    Verbatim {
        /// `txt` or `mkd`.
        format: [u8; 3],
        /// The text.
        text: &'a [u8],
    },
    /// Replies in order.
    Array(Items<'a>),
    /// Keys and values in turn.
    Map(Items<'a>),
    /// Replies in no order.
    Set(Items<'a>),
    /// Parts of a message that answers no request.
    Push(Items<'a>),
}

/// The parts of a reply, in turn.
///
/// **Invariant:** its bytes were parsed when the whole reply was, and are exactly its items.
#[derive(Clone, Copy, Default, PartialEq)]
pub struct Items<'a> {
    count: usize,
    bytes: &'a [u8],
}

impl<'a> Received<'a> {
    /// Takes the reply off the front of bytes that hold at least one whole, parsed reply.
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
    /// Takes `count` items with all that is in them off the front of `bytes`.
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

    /// Whether there is nothing left.
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

/// Takes one item, without what follows and belongs to it, off the front of parsed bytes.
fn take_item<'a>(bytes: &mut &'a [u8]) -> Item<'a> {
    match (ItemReader { bytes_max: isize::MAX as usize, searched: 0 }).read(bytes) {
        Ok(Some((item, taken))) => {
            *bytes = &bytes[taken..];
            item
        }
        Ok(None) | Err(_) => unreachable!("bytes of a reply were parsed before"),
    }
}
