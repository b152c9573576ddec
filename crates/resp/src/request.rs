//! A request as its arguments; the first one is the command's name.

use std::ops::Index;

/// Where an argument stands in the bytes of its request. Four bytes per number: a connection that
/// sends a million arguments makes us keep a million of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) start: u32,
    pub(crate) end: u32,
}

/// One request, borrowed from the bytes it arrived in. Has at least one argument.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    bytes: &'a [u8],
    spans: &'a [Span],
}

impl<'a> Request<'a> {
    #[inline]
    pub(crate) fn new(bytes: &'a [u8], spans: &'a [Span]) -> Request<'a> {
        assert!(!spans.is_empty(), "a request without arguments is skipped by the parser");
        Request { bytes, spans }
    }

    /// The command's name as sent, in any case.
    #[inline]
    pub fn name(&self) -> &'a [u8] {
        self.slice(self.spans[0])
    }

    /// Number of arguments, the name included.
    #[inline]
    #[expect(clippy::len_without_is_empty, reason = "there is always a name")]
    pub fn len(&self) -> usize {
        self.spans.len()
    }

    /// An argument by its number; 0 is the name.
    #[inline]
    pub fn get(&self, number: usize) -> Option<&'a [u8]> {
        self.spans.get(number).map(|span| self.slice(*span))
    }

    /// All arguments, the name included.
    #[inline]
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &'a [u8]> + DoubleEndedIterator + use<'a> {
        let bytes = self.bytes;
        self.spans.iter().map(move |span| &bytes[span.start as usize..span.end as usize])
    }

    /// Copies the request, for an operation that cannot finish in this turn.
    pub fn to_owned(&self) -> OwnedRequest {
        let used = self.spans.iter().map(|span| span.end).max().unwrap_or(0);
        OwnedRequest { bytes: self.bytes[..used as usize].into(), spans: self.spans.into() }
    }

    #[inline]
    fn slice(&self, span: Span) -> &'a [u8] {
        &self.bytes[span.start as usize..span.end as usize]
    }
}

impl Index<usize> for Request<'_> {
    type Output = [u8];

    /// # Panics
    /// If there is no such argument: compare with [`Request::len`] first.
    #[inline]
    fn index(&self, number: usize) -> &[u8] {
        self.slice(self.spans[number])
    }
}

impl std::fmt::Debug for Request<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list()
            .entries(self.iter().map(|argument| argument.escape_ascii().to_string()))
            .finish()
    }
}

/// A request that owns its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnedRequest {
    bytes: Box<[u8]>,
    spans: Box<[Span]>,
}

impl OwnedRequest {
    /// The request itself.
    #[inline]
    pub fn request(&self) -> Request<'_> {
        Request::new(&self.bytes, &self.spans)
    }

    /// Bytes of memory it holds.
    pub fn held_bytes(&self) -> usize {
        size_of::<Self>() + self.bytes.len() + size_of_val(&*self.spans)
    }
}
