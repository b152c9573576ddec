//! A parser that takes requests off the front of a client's input.
//!
//! A request is an array of bulk strings (`*2 $3 GET $1 x`, each part ended by CR LF), or a line of
//! words typed by a person ("inline"). Empty requests are skipped, as in Redis.
//!
//! Between two calls, the parser remembers only the arguments found so far, the number of missing
//! ones, and how far it has searched an unfinished line. Each call parses the length of an
//! unfinished argument again.
//!
//! A request with a too long argument is skipped without buffering: its bytes are consumed as they
//! arrive. Its end gives an error after which the connection continues.
//!
//! The CR LF after each part is checked, as in Valkey 9. Redis skips two arbitrary bytes there.

use crate::inline;
use crate::number::{parse_integer, short_line};
use crate::request::{ArgumentSpan, BorrowedRequest};

/// Argument positions that stay allocated between two requests. The number is small because most
/// connections are idle.
const SPANS_KEPT: usize = 128;
/// Bytes for the words of inline requests that stay allocated between two requests.
const UNQUOTED_BYTES_KEPT: usize = 1_024;

/// Length of the longest number line, with its marker and sign. Lower limits on lines are invalid.
const NUMBER_BYTES_MAX: usize = 21;

/// A protocol error of a client, in Redis's words (without the leading `ERR `). Usually the
/// connection cannot be used any longer, because the start of the next request is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// The number of arguments is not a number, or exceeds the limit.
    #[error("Protocol error: invalid multibulk length")]
    InvalidMultibulkLength,
    /// An argument's length is not a number, or exceeds the limit.
    #[error("Protocol error: invalid bulk length")]
    InvalidBulkLength,
    /// An argument's length differs from the announced one.
    #[error("Protocol error: invalid CRLF in request")]
    InvalidLineEnd,
    /// An argument begins with another byte than `$`.
    #[error("Protocol error: expected '$', got '{}'", printable(*got))]
    ExpectedBulk {
        /// The byte in the place of `$`.
        got: u8,
    },
    /// An inline request exceeds the line limit.
    #[error("Protocol error: too big inline request")]
    TooBigInline,
    /// The line with the number of arguments exceeds the limit.
    #[error("Protocol error: too big mbulk count string")]
    TooBigMultibulkCount,
    /// The line with an argument's length exceeds the limit.
    #[error("Protocol error: too big bulk count string")]
    TooBigBulkCount,
    /// An inline request has an unclosed quote.
    #[error("Protocol error: unbalanced quotes in request")]
    UnbalancedQuotes,
    /// The whole request exceeds the limit. (Redis closes the connection without an error.)
    #[error("Protocol error: too big request")]
    TooBigRequest,
    /// An argument exceeds the limit for buffering. The whole request was consumed.
    #[error("argument of {bytes} bytes is longer than the maximum of {bytes_max} bytes")]
    TooLongArgument {
        /// Length of the first such argument.
        bytes: u32,
        /// The limit.
        bytes_max: u32,
    },
}

impl ProtocolError {
    /// Returns whether the connection cannot be used any longer.
    pub fn ends_connection(&self) -> bool {
        !matches!(self, ProtocolError::TooLongArgument { .. })
    }
}

/// Replaces line ends, because they would end the error reply.
fn printable(byte: u8) -> char {
    match byte {
        b'\r' | b'\n' => ' ',
        other => char::from(other),
    }
}

/// Limits of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestLimits {
    /// Most bytes of one argument.
    pub bulk_bytes_max: usize,
    /// Most bytes of an argument that is skipped. A longer one ends the connection.
    pub skipped_bytes_max: usize,
    /// Most arguments, including the command's name.
    pub arguments_max: usize,
    /// Most bytes of an inline request, and of lines with lengths.
    pub line_bytes_max: usize,
    /// Most bytes of the whole request. At most `u32::MAX`.
    pub request_bytes_max: usize,
}

impl Default for RequestLimits {
    /// Returns Redis's default limits.
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
pub struct RequestParser {
    limits: RequestLimits,
    /// Positions of the arguments found so far of the current request.
    spans: Vec<ArgumentSpan>,
    /// Number of missing arguments; 0 if the first line of the request was not read yet.
    missing: usize,
    /// Offset in the input of the first missing argument.
    position: usize,
    /// Bytes after `position` that contain no line end.
    searched: usize,
    /// Bytes of input up to the end of the first missing argument; 0 if unknown.
    wanted: usize,
    /// Words of an inline request, without their quotes.
    unquoted: Vec<u8>,
    /// State of a request that is being skipped; only set while arguments are missing.
    skipped: Option<Skipped>,
}

/// The state of a request that is skipped without buffering.
struct Skipped {
    /// Length of its first too long argument.
    bytes: u32,
    /// Bytes of the current argument that were not consumed yet, including its line end. `None` if
    /// its length line was not consumed.
    left: Option<usize>,
}

/// Length of a line end, in bytes.
const LINE_END: usize = 2;

/// The buffer that contains the arguments of a finished request.
enum ArgumentBuffer {
    Input,
    Unquoted,
}

/// The result of reading a line.
enum NumberLine {
    Unfinished,
    /// The number in the line, and the line's length including its end.
    Number(i64, usize),
}

/// Checks limits. See [`RequestParser::new`].
fn check(limits: &RequestLimits) {
    let &RequestLimits { bulk_bytes_max, skipped_bytes_max, line_bytes_max, .. } = limits;
    let longest = bulk_bytes_max.max(skipped_bytes_max);
    let highest = limits.request_bytes_max.max(line_bytes_max).max(longest);
    assert!(
        u32::try_from(highest).is_ok(),
        "a request limit of {highest} bytes does not fit 32 bits"
    );
    assert!(
        line_bytes_max >= NUMBER_BYTES_MAX,
        "a line limit of {line_bytes_max} bytes is too small for a number"
    );
}

impl RequestParser {
    /// Creates the parser of a new connection.
    ///
    /// # Panics
    /// If a limit exceeds `u32::MAX` (positions in a request are stored in four bytes), or if the
    /// line limit is too short for a number.
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

    /// Sets the limits from the next request on.
    ///
    /// # Panics
    /// Under the conditions of [`RequestParser::new`].
    pub fn set_limits(&mut self, limits: RequestLimits) {
        check(&limits);
        self.limits = limits;
    }

    /// Takes the next request off the front of `input`, which contains all received and unconsumed
    /// bytes. Returns `None` if it is incomplete: call again with the same bytes and more. Even
    /// then, empty requests and skipped arguments may have been consumed.
    ///
    /// After an error, the caller must close the connection if [`ProtocolError::ends_connection`]
    /// returns true, and must call again otherwise.
    #[inline]
    pub fn next<'p, 'i: 'p>(
        &'p mut self,
        input: &mut &'i [u8],
    ) -> Result<Option<BorrowedRequest<'p>>, ProtocolError> {
        let Some((place, taken)) = self.advance(input)? else { return Ok(None) };
        debug_assert_eq!(self.missing, 0, "a request ends before its last argument");
        let (bytes, rest) = input.split_at(taken);
        *input = rest;
        Ok(Some(match place {
            ArgumentBuffer::Input => BorrowedRequest::new(bytes, &self.spans),
            ArgumentBuffer::Unquoted => BorrowedRequest::new(&self.unquoted, &self.spans),
        }))
    }

    /// Returns how many bytes of input [`RequestParser::next`] needs to make progress, counted from
    /// where it stopped. 0: any byte may help.
    #[inline]
    pub fn wanted(&self) -> usize {
        self.wanted
    }

    /// Returns the memory allocated by the parser, in bytes.
    pub fn held_bytes(&self) -> usize {
        self.spans.capacity() * size_of::<ArgumentSpan>() + self.unquoted.capacity()
    }

    /// Finds the end of the next request that is not empty.
    #[inline]
    fn advance(
        &mut self,
        input: &mut &[u8],
    ) -> Result<Option<(ArgumentBuffer, usize)>, ProtocolError> {
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
                    Some(taken) => return Ok(Some((ArgumentBuffer::Unquoted, taken))),
                },
            }
        }
        match self.read_arguments(input)? {
            Some(taken) => Ok(Some((ArgumentBuffer::Input, taken))),
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
                NumberLine::Unfinished => return Ok(None),
                NumberLine::Number(count, taken) => (count, taken),
            },
        };
        // A negative count means an empty request.
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
            self.spans.push(ArgumentSpan { start: start as u32, end: end as u32 });
            self.position = end + 2;
            self.searched = 0;
            self.missing -= 1;
        }
        Ok(Some(self.position))
    }

    /// Reads a length line that is unfinished, invalid, or merely unusual. Returns the argument's
    /// length and the line's length.
    #[cold]
    fn read_odd_length(&mut self, rest: &[u8]) -> Result<Option<(usize, usize)>, ProtocolError> {
        match self.read_odd_line(rest, ProtocolError::TooBigBulkCount)? {
            NumberLine::Unfinished => Ok(None),
            NumberLine::Number(length, taken) => {
                let length = usize::try_from(length);
                Ok(Some((length.map_err(|_| ProtocolError::InvalidBulkLength)?, taken)))
            }
        }
    }

    /// Begins to skip the request after a too long argument, given the argument's length and the
    /// length of its header line.
    #[cold]
    fn begin_to_skip(&mut self, length: usize, header: usize) -> Result<(), ProtocolError> {
        let left = Some(self.left_of(length)?);
        self.skipped = Some(Skipped { bytes: length as u32, left });
        self.position += header;
        self.searched = 0;
        self.forget_arguments();
        Ok(())
    }

    /// Returns the bytes of an argument including its line end, if it may be skipped.
    fn left_of(&self, length: usize) -> Result<usize, ProtocolError> {
        match length <= self.limits.skipped_bytes_max {
            true => Ok(length + LINE_END),
            false => Err(ProtocolError::InvalidBulkLength),
        }
    }

    /// Consumes the available part of a request that is skipped. Returns an error at its end.
    #[cold]
    fn skip(
        &mut self,
        input: &mut &[u8],
    ) -> Result<Option<(ArgumentBuffer, usize)>, ProtocolError> {
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

    /// Reads a line that is unfinished, invalid, or merely unusual, such as `*-1`.
    #[cold]
    fn read_odd_line(
        &mut self,
        rest: &[u8],
        too_big: ProtocolError,
    ) -> Result<NumberLine, ProtocolError> {
        let Some(end) = self.find_in_line(b'\r', rest, too_big)? else {
            return Ok(NumberLine::Unfinished);
        };
        let Some(next) = rest.get(end + 1) else { return Ok(NumberLine::Unfinished) };
        let (marker, number) = (rest[0], &rest[1..end.max(1)]);
        let invalid = match marker {
            b'*' if self.missing == 0 => ProtocolError::InvalidMultibulkLength,
            b'$' => ProtocolError::InvalidBulkLength,
            got => return Err(ProtocolError::ExpectedBulk { got }),
        };
        match parse_integer(number) {
            _ if *next != b'\n' => Err(ProtocolError::InvalidLineEnd),
            Some(number) => Ok(NumberLine::Number(number, end + 2)),
            None => Err(invalid),
        }
    }

    /// Reads an inline request and returns its length. An empty line gives no arguments.
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

    /// Finds the end of the line at the front of `rest`, and remembers how far it has searched.
    fn find_in_line(
        &mut self,
        end: u8,
        rest: &[u8],
        too_big: ProtocolError,
    ) -> Result<Option<usize>, ProtocolError> {
        // The end of a line of maximum length is directly after it. The search stops there, so that
        // a line is too long whether it arrives in pieces or at once.
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

/// Reads `$3`, the line before an argument, and returns the argument's length and the line's.
/// Returns `None` if the line is unusual or incomplete.
#[inline]
fn short_length(rest: &[u8]) -> Option<(usize, usize)> {
    let (b'$', number) = rest.split_first()? else { return None };
    short_line(number).map(|(length, taken)| (length, taken + 1))
}

/// Consumes the available part of an argument and its line end. Returns the number of bytes still
/// missing, or `None` at the end.
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
