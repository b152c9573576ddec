//! Takes requests off the front of what a client has sent.
//!
//! A request is an array of bulk strings (`*2 $3 GET $1 x`, each part ended by CR LF) or, for
//! people with a terminal, one line of words ("inline"). Empty ones are skipped, as Redis does.
//!
//! All that is remembered between two calls are the arguments found so far, how many are missing,
//! and how far an unfinished line has been searched. The length of an unfinished argument is read
//! again with each call.
//!
//! A request with an argument that is longer than may be kept passes by without being kept: its
//! bytes are taken off as they arrive, and at its end comes an error after which the connection goes
//! on.
//!
//! The CR LF behind each part is checked, as in Valkey 9. Redis skips two bytes there, whatever they
//! are.

use crate::{
    inline,
    number::{parse_integer, short_line},
    request::{Request, Span},
};

/// Arguments whose places stay allocated between two requests: few, since most connections are
/// idle.
const SPANS_KEPT: usize = 128;
/// Bytes for the words of inline requests that stay allocated between two requests.
const UNQUOTED_BYTES_KEPT: usize = 1_024;

/// Bytes that any line may have: the longest number with its marker and sign.
const NUMBER_BYTES_MAX: usize = 21;

/// What a client did wrong, in Redis's words (without the leading `ERR `). As a rule the connection
/// cannot be used any longer: where the next request begins is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// The number of arguments is not a number, or above the limit.
    #[error("Protocol error: invalid multibulk length")]
    InvalidMultibulkLength,
    /// An argument's length is not a number, or above the limit.
    #[error("Protocol error: invalid bulk length")]
    InvalidBulkLength,
    /// An argument has another length than was announced.
    #[error("Protocol error: invalid CRLF in request")]
    InvalidLineEnd,
    /// An argument does not begin as one.
    #[error("Protocol error: expected '$', got '{}'", printable(*got))]
    ExpectedBulk {
        /// The byte in the place of `$`.
        got: u8,
    },
    /// A line of words does not end.
    #[error("Protocol error: too big inline request")]
    TooBigInline,
    /// The line with the number of arguments does not end.
    #[error("Protocol error: too big mbulk count string")]
    TooBigMultibulkCount,
    /// The line with an argument's length does not end.
    #[error("Protocol error: too big bulk count string")]
    TooBigBulkCount,
    /// A line of words has a quote that is not closed.
    #[error("Protocol error: unbalanced quotes in request")]
    UnbalancedQuotes,
    /// All arguments together are above the limit. (Redis closes the connection without a word.)
    #[error("Protocol error: too big request")]
    TooBigRequest,
    /// An argument is longer than may be kept. The whole request has been taken off the input.
    #[error("argument of {bytes} bytes is longer than the maximum of {bytes_max} bytes")]
    TooLongArgument {
        /// Its length: of the first one, if there are several.
        bytes: u32,
        /// What it may have.
        bytes_max: u32,
    },
}

impl ProtocolError {
    /// Returns whether the connection cannot be used any longer.
    pub fn ends_connection(&self) -> bool {
        !matches!(self, ProtocolError::TooLongArgument { .. })
    }
}

/// A line end in an error text would end the reply.
fn printable(byte: u8) -> char {
    match byte {
        b'\r' | b'\n' => ' ',
        other => char::from(other),
    }
}

/// What a request may have at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestLimits {
    /// Bytes of one argument.
    pub bulk_bytes_max: usize,
    /// Bytes of an argument that is not kept. A longer one ends the connection.
    pub skipped_bytes_max: usize,
    /// Arguments, the command's name included.
    pub arguments_max: usize,
    /// Bytes of an inline request, and of the lines that announce lengths.
    pub line_bytes_max: usize,
    /// Bytes of the whole request. At most `u32::MAX`.
    pub request_bytes_max: usize,
}

impl Default for RequestLimits {
    /// As Redis by default.
    fn default() -> RequestLimits {
        RequestLimits {
            bulk_bytes_max: 512 << 20,
            skipped_bytes_max: 512 << 20,
            arguments_max: 1_048_576,
            line_bytes_max: 64 << 10,
            request_bytes_max: 1 << 30,
        }
    }
}

/// The parser of one connection's requests.
#[derive(Debug)]
pub struct RequestParser {
    limits: RequestLimits,
    /// Arguments found so far of the request at the front of the input.
    spans: Vec<Span>,
    /// Arguments not found yet. 0: the request's first line has not been read.
    missing: usize,
    /// Where in the input the first missing argument begins.
    position: usize,
    /// Bytes from there on that hold no line end.
    searched: usize,
    /// Bytes of the input up to the end of the first missing argument; 0: not known.
    wanted: usize,
    /// Words of an inline request, without their quotes.
    unquoted: Vec<u8>,
    /// Of a request with an argument that is too long; only while arguments are missing.
    skipped: Option<Skipped>,
}

/// A request that passes by without being kept.
#[derive(Debug)]
struct Skipped {
    /// Length of its first argument that is too long.
    bytes: u32,
    /// Bytes of the argument at the front that have not passed, those of its line end included.
    /// `None`: the line with its length has not.
    left: Option<usize>,
}

/// Bytes of a line end.
const LINE_END: usize = 2;

/// Where the arguments of a finished request stand.
enum Place {
    Input,
    Unquoted,
}

/// What has been learnt of the line at some position.
enum Line {
    Unfinished,
    /// Its number, and its bytes with the line end.
    Number(i64, usize),
}

/// See [`RequestParser::new`].
fn check(limits: &RequestLimits) {
    let &RequestLimits { bulk_bytes_max, skipped_bytes_max, line_bytes_max, .. } = limits;
    let longest = bulk_bytes_max.max(skipped_bytes_max);
    let highest = limits.request_bytes_max.max(line_bytes_max).max(longest);
    assert!(u32::try_from(highest).is_ok(), "requests of {highest} bytes cannot be handled");
    assert!(line_bytes_max >= NUMBER_BYTES_MAX, "lines of {line_bytes_max} bytes are too short");
}

impl RequestParser {
    /// The parser of a new connection.
    ///
    /// # Panics
    /// If a limit is above `u32::MAX` (positions in a request are kept in four bytes), or if lines
    /// are too short for a number.
    pub fn new(limits: RequestLimits) -> RequestParser {
        check(&limits);
        RequestParser {
            limits,
            spans: Vec::new(),
            missing: 0,
            position: 0,
            searched: 0,
            wanted: 0,
            unquoted: Vec::new(),
            skipped: None,
        }
    }

    /// What may be sent from the next request on.
    ///
    /// # Panics
    /// As [`RequestParser::new`].
    pub fn set_limits(&mut self, limits: RequestLimits) {
        check(&limits);
        self.limits = limits;
    }

    /// Takes the next request off the front of `input`, which holds everything that was received
    /// and not taken. `None`: it is not complete, call again with the same bytes and more. Even
    /// then something may have been taken: empty requests are, and what is too long to be kept.
    ///
    /// After an error the connection is to be closed, unless it goes on
    /// ([`ProtocolError::ends_connection`]): then call again.
    #[inline]
    pub fn next<'p, 'i: 'p>(
        &'p mut self,
        input: &mut &'i [u8],
    ) -> Result<Option<Request<'p>>, ProtocolError> {
        let Some((place, taken)) = self.advance(input)? else { return Ok(None) };
        let (bytes, rest) = input.split_at(taken);
        *input = rest;
        Ok(Some(match place {
            Place::Input => Request::new(bytes, &self.spans),
            Place::Unquoted => Request::new(&self.unquoted, &self.spans),
        }))
    }

    /// How many bytes of input [`RequestParser::next`] must be given to find more than it did the
    /// last time, counted from where it stopped. 0: any byte may help.
    #[inline]
    pub fn wanted(&self) -> usize {
        self.wanted
    }

    /// Bytes of memory it holds, apart from itself.
    pub fn held_bytes(&self) -> usize {
        self.spans.capacity() * size_of::<Span>() + self.unquoted.capacity()
    }

    /// Finds the end of the next request that is not empty.
    #[inline]
    fn advance(&mut self, input: &mut &[u8]) -> Result<Option<(Place, usize)>, ProtocolError> {
        self.wanted = 0;
        if self.missing > 0 && self.skipped.is_some() {
            return self.skip(input);
        }
        while self.missing == 0 {
            match input.first() {
                None => {
                    self.forget_arguments();
                    return Ok(None);
                }
                Some(b'*') => match self.read_count(input)? {
                    None => return Ok(None),
                    Some(taken) if self.missing == 0 => *input = &input[taken..],
                    Some(taken) => self.position = taken,
                },
                Some(_) => match self.read_inline(input)? {
                    None => return Ok(None),
                    Some(taken) if self.spans.is_empty() => *input = &input[taken..],
                    Some(taken) => return Ok(Some((Place::Unquoted, taken))),
                },
            }
        }
        match self.read_arguments(input)? {
            Some(taken) => Ok(Some((Place::Input, taken))),
            None if self.skipped.is_some() => self.skip(input),
            None => Ok(None),
        }
    }

    /// Reads `*2`, the first line of a request, and returns its length.
    #[inline]
    fn read_count(&mut self, input: &[u8]) -> Result<Option<usize>, ProtocolError> {
        let (count, taken) = match short_line(&input[1..]) {
            Some((count, taken)) => (count as i64, taken + 1),
            None => match self.read_odd_line(input, ProtocolError::TooBigMultibulkCount)? {
                Line::Unfinished => return Ok(None),
                Line::Number(count, taken) => (count, taken),
            },
        };
        // Less than none is none.
        let count = usize::try_from(count).unwrap_or(0);
        if count > self.limits.arguments_max {
            return Err(ProtocolError::InvalidMultibulkLength);
        }
        self.missing = count;
        self.searched = 0;
        self.forget_arguments();
        Ok(Some(taken))
    }

    /// Reads the missing arguments and returns the length of the whole request.
    #[inline]
    fn read_arguments(&mut self, input: &[u8]) -> Result<Option<usize>, ProtocolError> {
        while self.missing > 0 {
            let rest = &input[self.position..];
            let (length, header) = match short_length(rest) {
                Some(read) => read,
                None => match self.read_odd_length(rest)? {
                    Some(read) => read,
                    None => return Ok(None),
                },
            };
            if length > self.limits.bulk_bytes_max {
                self.begin_to_skip(length, header)?;
                return Ok(None);
            }
            let start = self.position + header;
            let end = start + length;
            if end > self.limits.request_bytes_max {
                return Err(ProtocolError::TooBigRequest);
            }
            match input.get(end..end + 2) {
                None => {
                    self.wanted = end + 2;
                    return Ok(None);
                }
                Some(b"\r\n") => {}
                Some(_) => return Err(ProtocolError::InvalidLineEnd),
            }
            self.spans.push(Span { start: start as u32, end: end as u32 });
            self.position = end + 2;
            self.searched = 0;
            self.missing -= 1;
        }
        Ok(Some(self.position))
    }

    /// Reads the line before an argument if it is unfinished, wrong, or merely unusual, and returns
    /// the argument's length and the line's.
    #[cold]
    fn read_odd_length(&mut self, rest: &[u8]) -> Result<Option<(usize, usize)>, ProtocolError> {
        match self.read_odd_line(rest, ProtocolError::TooBigBulkCount)? {
            Line::Unfinished => Ok(None),
            Line::Number(length, taken) => {
                let length = usize::try_from(length);
                Ok(Some((length.map_err(|_| ProtocolError::InvalidBulkLength)?, taken)))
            }
        }
    }

    /// The first missing argument is too long; behind the line with its length, which has so many
    /// bytes, the request is not kept any more.
    #[cold]
    fn begin_to_skip(&mut self, length: usize, header: usize) -> Result<(), ProtocolError> {
        let left = Some(self.left_of(length)?);
        self.skipped = Some(Skipped { bytes: length as u32, left });
        self.position += header;
        self.searched = 0;
        self.forget_arguments();
        Ok(())
    }

    /// Bytes of an argument of this length, with its line end, if it may pass by.
    fn left_of(&self, length: usize) -> Result<usize, ProtocolError> {
        match length <= self.limits.skipped_bytes_max {
            true => Ok(length + LINE_END),
            false => Err(ProtocolError::InvalidBulkLength),
        }
    }

    /// Takes off what there is of a request that is too long; its end is an error.
    #[cold]
    fn skip(&mut self, input: &mut &[u8]) -> Result<Option<(Place, usize)>, ProtocolError> {
        *input = &input[std::mem::take(&mut self.position)..];
        let Some(mut skipped) = self.skipped.take() else { return Ok(None) };
        while self.missing > 0 {
            if skipped.left.is_none() {
                let short = short_length(input).map(|read| Ok(Some(read)));
                let read = short.unwrap_or_else(|| self.read_odd_length(input))?;
                let Some((length, header)) = read else { break };
                skipped.left = Some(self.left_of(length)?);
                self.searched = 0;
                *input = &input[header..];
            }
            skipped.left = pass(skipped.left, input)?;
            if skipped.left.is_some() {
                break;
            }
            self.missing -= 1;
        }
        if self.missing == 0 {
            let bytes_max = self.limits.bulk_bytes_max as u32;
            return Err(ProtocolError::TooLongArgument { bytes: skipped.bytes, bytes_max });
        }
        self.skipped = Some(skipped);
        Ok(None)
    }

    /// Reads a line that is unfinished, wrong, or merely unusual, such as `*-1`.
    #[cold]
    fn read_odd_line(
        &mut self,
        rest: &[u8],
        too_big: ProtocolError,
    ) -> Result<Line, ProtocolError> {
        let Some(end) = self.find_in_line(b'\r', rest, too_big)? else {
            return Ok(Line::Unfinished);
        };
        let Some(next) = rest.get(end + 1) else { return Ok(Line::Unfinished) };
        let (marker, number) = (rest[0], &rest[1..end.max(1)]);
        let invalid = match marker {
            b'*' if self.missing == 0 => ProtocolError::InvalidMultibulkLength,
            b'$' => ProtocolError::InvalidBulkLength,
            got => return Err(ProtocolError::ExpectedBulk { got }),
        };
        match parse_integer(number) {
            _ if *next != b'\n' => Err(ProtocolError::InvalidLineEnd),
            Some(number) => Ok(Line::Number(number, end + 2)),
            None => Err(invalid),
        }
    }

    /// Reads a line of words and returns its length. An empty one leaves no arguments.
    #[cold]
    fn read_inline(&mut self, input: &[u8]) -> Result<Option<usize>, ProtocolError> {
        let Some(end) = self.find_in_line(b'\n', input, ProtocolError::TooBigInline)? else {
            return Ok(None);
        };
        self.searched = 0;
        self.forget_arguments();
        inline::split_words(&input[..end], &mut self.unquoted, &mut self.spans)
            .map_err(|_| ProtocolError::UnbalancedQuotes)?;
        Ok(Some(end + 1))
    }

    /// Finds the end of the line at the front of `rest`, and remembers how far it has looked.
    fn find_in_line(
        &mut self,
        end: u8,
        rest: &[u8],
        too_big: ProtocolError,
    ) -> Result<Option<usize>, ProtocolError> {
        // The end of the longest line stands right behind it. Nothing beyond that is looked at, so
        // that a line is too long whether it arrives in pieces or at once.
        let window = &rest[..rest.len().min(self.limits.line_bytes_max + 1)];
        if let Some(found) = memchr::memchr(end, &window[self.searched..]) {
            self.searched += found;
            return Ok(Some(self.searched));
        }
        if window.len() > self.limits.line_bytes_max {
            return Err(too_big);
        }
        self.searched = window.len();
        Ok(None)
    }

    #[inline]
    fn forget_arguments(&mut self) {
        self.spans.clear();
        self.unquoted.clear();
        if self.spans.capacity() > SPANS_KEPT {
            self.spans = Vec::new();
        }
        if self.unquoted.capacity() > UNQUOTED_BYTES_KEPT {
            self.unquoted = Vec::new();
        }
    }
}

/// Reads `$3`, the line before an argument, and returns the argument's length and the line's; `None`: it
/// is not as usual.
#[inline]
fn short_length(rest: &[u8]) -> Option<(usize, usize)> {
    let (b'$', number) = rest.split_first()? else { return None };
    short_line(number).map(|(length, taken)| (length, taken + 1))
}

/// Takes off what there is of an argument and its line end, and returns how much of it is to come.
/// `None`: nothing.
fn pass(left: Option<usize>, input: &mut &[u8]) -> Result<Option<usize>, ProtocolError> {
    let Some(left) = left else { return Ok(None) };
    let body = (left - LINE_END).min(input.len());
    *input = &input[body..];
    let left = left - body;
    match input.get(..LINE_END) {
        _ if left > LINE_END => Ok(Some(left)),
        None => Ok(Some(left)),
        Some(b"\r\n") => {
            *input = &input[LINE_END..];
            Ok(None)
        }
        Some(_) => Err(ProtocolError::InvalidLineEnd),
    }
}
