//! Replies as slices of the bytes they arrived in.

/// A reply and its attributes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ReceivedReply<'a> {
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

/// An iterator over the parts of a reply, see `parts.rs`.
///
/// **Invariant:** the bytes were validated with the whole reply, and contain exactly the items.
#[derive(Clone, Copy, Default, PartialEq)]
pub struct Items<'a> {
    pub(crate) count: usize,
    pub(crate) bytes: &'a [u8],
}

impl std::fmt::Debug for Items<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(*self).finish()
    }
}
