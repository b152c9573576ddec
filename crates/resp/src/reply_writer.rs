//! A writer that appends replies to a buffer, in the client's protocol version.

use crate::Protocol;
use crate::number::{DOUBLE_BYTES_MAX, double_text};

/// Output from which on a writer adds no more bulk strings. A request of a few bytes may name a long value
/// any number of times.
pub const OUTPUT_BYTES_MAX: usize = 512 << 20;

/// A writer of replies. In RESP2 it represents the types of RESP3 as Redis does: maps and sets as
/// arrays; doubles, verbatim texts and big numbers as bulk strings; booleans as 0 or 1.
pub struct ReplyWriter<'b> {
    out: &'b mut Vec<u8>,
    protocol: Protocol,
}

impl<'b> ReplyWriter<'b> {
    /// Creates a writer that appends to `out`.
    #[inline]
    pub fn new(protocol: Protocol, out: &'b mut Vec<u8>) -> ReplyWriter<'b> {
        ReplyWriter { out, protocol }
    }

    /// Returns the length of the output in bytes, for [`ReplyWriter::rewind`].
    pub fn length(&self) -> usize {
        self.out.len()
    }

    /// Removes everything that was written since the output had this length.
    pub fn rewind(&mut self, length: usize) {
        assert!(length <= self.out.len(), "the output had {length} bytes before");
        self.out.truncate(length);
    }

    /// Returns the protocol version of the replies.
    pub fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// Changes the version of subsequent output. `HELLO` does so before its own reply.
    pub fn set_protocol(&mut self, protocol: Protocol) {
        self.protocol = protocol;
    }

    /// Returns the length of the output so far, including what preceded this writer.
    pub fn position(&self) -> usize {
        self.out.len()
    }

    /// Writes a short text, such as `OK`.
    #[inline]
    pub fn simple(&mut self, text: &str) {
        self.line(b'+', text.as_bytes());
    }

    /// Writes an error, beginning with its code: `ERR syntax error`. The text may quote client
    /// input. Trailing line ends are dropped, as in Redis.
    #[inline]
    pub fn error(&mut self, text: impl AsRef<[u8]>) {
        let mut text = text.as_ref();
        while let [rest @ .., b'\r' | b'\n'] = text {
            text = rest;
        }
        self.line(b'-', text);
    }

    /// Writes complete replies that were encoded elsewhere.
    pub fn written(&mut self, replies: &[u8]) {
        self.out.extend_from_slice(replies);
    }

    /// Writes an integer.
    #[inline]
    pub fn integer(&mut self, number: i64) {
        match usize::try_from(number) {
            Ok(number) => write_header(b':', number, self.out),
            Err(_) => self.line(b':', itoa::Buffer::new().format(number).as_bytes()),
        }
    }

    /// Writes arbitrary bytes, unless the output has [`OUTPUT_BYTES_MAX`] already. The reply is then
    /// incomplete, and the caller must replace it.
    #[inline]
    pub fn bulk(&mut self, bytes: &[u8]) {
        if self.out.len() < OUTPUT_BYTES_MAX {
            write_bulk(bytes, self.out);
        }
    }

    /// Writes arbitrary bytes, or null.
    #[inline]
    pub fn bulk_or_null(&mut self, bytes: Option<&[u8]>) {
        match bytes {
            Some(bytes) => self.bulk(bytes),
            None => self.null(),
        }
    }

    /// Writes an array of bulk strings.
    pub fn bulks<T: AsRef<[u8]>>(&mut self, items: &[T]) {
        self.array(items.len());
        items.iter().for_each(|item| self.bulk(item.as_ref()));
    }

    /// Writes keys and values of a map that was begun, as bulk strings.
    pub fn texts<F: AsRef<[u8]>, T: AsRef<[u8]>>(
        &mut self,
        fields: impl IntoIterator<Item = (F, T)>,
    ) {
        for (field, text) in fields {
            self.bulk(field.as_ref());
            self.bulk(text.as_ref());
        }
    }

    /// Writes keys and values of a map that was begun; the values are integers.
    pub fn integers<'f>(&mut self, fields: impl IntoIterator<Item = (&'f str, i64)>) {
        for (field, number) in fields {
            self.bulk(field.as_bytes());
            self.integer(number);
        }
    }

    /// Writes a null.
    #[inline]
    pub fn null(&mut self) {
        self.out.extend_from_slice(match self.protocol {
            Protocol::Resp2 => b"$-1\r\n",
            Protocol::Resp3 => b"_\r\n",
        });
    }

    /// Writes a null array, where a RESP2 client expects an array.
    pub fn null_array(&mut self) {
        self.out.extend_from_slice(match self.protocol {
            Protocol::Resp2 => b"*-1\r\n",
            Protocol::Resp3 => b"_\r\n",
        });
    }

    /// Begins an array of `items` replies.
    #[inline]
    pub fn array(&mut self, items: usize) {
        write_header(b'*', items, self.out);
    }

    /// Begins a map of `pairs` keys and values.
    pub fn map(&mut self, pairs: usize) {
        match self.protocol {
            Protocol::Resp2 => write_header(b'*', 2 * pairs, self.out),
            Protocol::Resp3 => write_header(b'%', pairs, self.out),
        }
    }

    /// Begins a set of `items` replies.
    pub fn set(&mut self, items: usize) {
        match self.protocol {
            Protocol::Resp2 => write_header(b'*', items, self.out),
            Protocol::Resp3 => write_header(b'~', items, self.out),
        }
    }

    /// Begins a message of `items` parts that answers no request.
    pub fn push(&mut self, items: usize) {
        match self.protocol {
            Protocol::Resp2 => write_header(b'*', items, self.out),
            Protocol::Resp3 => write_header(b'>', items, self.out),
        }
    }

    /// Begins `pairs` keys and values that describe the reply after them.
    ///
    /// # Panics
    /// In RESP2, where a client would take the attributes for the reply.
    pub fn attribute(&mut self, pairs: usize) {
        assert_eq!(self.protocol, Protocol::Resp3, "RESP2 has no attributes");
        write_header(b'|', pairs, self.out);
    }

    /// Writes a floating-point number.
    pub fn double(&mut self, number: f64) {
        self.line_or_bulk(b',', double_text(number, &mut [0; DOUBLE_BYTES_MAX]));
    }

    /// Writes a floating-point number as a bulk string.
    #[inline]
    pub fn double_as_bulk(&mut self, number: f64) {
        self.bulk(double_text(number, &mut [0; DOUBLE_BYTES_MAX]));
    }

    /// Writes a floating-point number, given in decimal.
    pub fn decimal(&mut self, digits: &str) {
        self.line_or_bulk(b',', digits.as_bytes());
    }

    /// Writes a boolean.
    pub fn boolean(&mut self, is_true: bool) {
        self.out.extend_from_slice(match (self.protocol, is_true) {
            (Protocol::Resp2, true) => b":1\r\n",
            (Protocol::Resp2, false) => b":0\r\n",
            (Protocol::Resp3, true) => b"#t\r\n",
            (Protocol::Resp3, false) => b"#f\r\n",
        });
    }

    /// Writes an integer of any length, given in decimal.
    pub fn big_number(&mut self, digits: &str) {
        self.line_or_bulk(b'(', digits.as_bytes());
    }

    /// Writes a text for unmodified display. Its format is `txt` or `mkd`.
    pub fn verbatim(&mut self, format: [u8; 3], text: &[u8]) {
        match self.protocol {
            Protocol::Resp2 => write_bulk(text, self.out),
            Protocol::Resp3 => {
                write_header(b'=', text.len() + 4, self.out);
                self.out.extend_from_slice(&format);
                self.out.push(b':');
                self.out.extend_from_slice(text);
                self.out.extend_from_slice(b"\r\n");
            }
        }
    }

    fn line_or_bulk(&mut self, marker: u8, text: &[u8]) {
        match self.protocol {
            Protocol::Resp2 => write_bulk(text, self.out),
            Protocol::Resp3 => self.line(marker, text),
        }
    }

    /// Writes a line. Line ends within the text become spaces, since they would end the reply.
    #[inline]
    fn line(&mut self, marker: u8, text: &[u8]) {
        self.out.reserve(text.len() + 3);
        self.out.push(marker);
        let start = self.out.len();
        self.out.extend_from_slice(text);
        if memchr::memchr2(b'\r', b'\n', text).is_some() {
            for byte in &mut self.out[start..] {
                if matches!(*byte, b'\r' | b'\n') {
                    *byte = b' ';
                }
            }
        }
        self.out.extend_from_slice(b"\r\n");
    }
}

/// Appends a bulk string.
#[inline]
pub(crate) fn write_bulk(bytes: &[u8], out: &mut Vec<u8>) {
    // Marker, length and two line ends have at most 25 bytes.
    out.reserve(bytes.len() + 32);
    write_header(b'$', bytes.len(), out);
    out.extend_from_slice(bytes);
    out.extend_from_slice(b"\r\n");
}

/// Appends a line of a marker and a number.
#[inline]
pub(crate) fn write_header(marker: u8, number: usize, out: &mut Vec<u8>) {
    let tens = b'0' + (number / 10 % 10) as u8;
    let ones = b'0' + (number % 10) as u8;
    match number {
        0..=9 => out.extend_from_slice(&[marker, ones, b'\r', b'\n']),
        10..=99 => out.extend_from_slice(&[marker, tens, ones, b'\r', b'\n']),
        _ => {
            out.push(marker);
            out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
            out.extend_from_slice(b"\r\n");
        }
    }
}
