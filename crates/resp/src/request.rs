//! A request as its arguments. The first argument is the command's name.

use std::ops::Index;

/// The position of an argument in its request's bytes. Four bytes per number suffice, and matter
/// because a request may have a million arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ArgumentSpan {
    pub(crate) start: u32,
    pub(crate) end: u32,
}

/// A request, borrowed from the bytes it arrived in. It has at least one argument.
#[derive(Clone, Copy)]
pub struct BorrowedRequest<'a> {
    bytes: &'a [u8],
    spans: &'a [ArgumentSpan],
}

impl<'a> BorrowedRequest<'a> {
    #[inline]
    pub(crate) fn new(bytes: &'a [u8], spans: &'a [ArgumentSpan]) -> BorrowedRequest<'a> {
        assert!(!spans.is_empty(), "a request without arguments is skipped by the parser");
        BorrowedRequest { bytes, spans }
    }

    /// Returns the command's name as sent, in any case.
    #[inline]
    pub fn name(&self) -> &'a [u8] {
        self.slice(self.spans[0])
    }

    /// Returns the number of arguments, including the name.
    #[inline]
    #[expect(clippy::len_without_is_empty, reason = "there is always a name")]
    pub fn len(&self) -> usize {
        self.spans.len()
    }

    /// Returns an argument by its number; 0 is the name.
    #[inline]
    pub fn get(&self, number: usize) -> Option<&'a [u8]> {
        self.spans.get(number).map(|span| self.slice(*span))
    }

    /// Returns all arguments, including the name.
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
    fn slice(&self, span: ArgumentSpan) -> &'a [u8] {
        &self.bytes[span.start as usize..span.end as usize]
    }
}

impl Index<usize> for BorrowedRequest<'_> {
    type Output = [u8];

    /// Returns an argument by its number.
    ///
    /// # Panics
    /// If the number is not below [`BorrowedRequest::len`].
    #[inline]
    fn index(&self, number: usize) -> &[u8] {
        self.slice(self.spans[number])
    }
}

impl std::fmt::Debug for BorrowedRequest<'_> {
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
    spans: Box<[ArgumentSpan]>,
}

impl OwnedRequest {
    /// Returns the request as a borrowed view.
    #[inline]
    pub fn request(&self) -> BorrowedRequest<'_> {
        BorrowedRequest::new(&self.bytes, &self.spans)
    }

    /// Returns the memory that the request uses, in bytes.
    pub fn held_bytes(&self) -> usize {
        size_of::<Self>() + self.bytes.len() + size_of_val(&*self.spans)
    }
}
