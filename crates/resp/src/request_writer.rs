//! A writer that appends requests to a buffer, for clients.

use crate::reply_writer::{write_bulk, write_header};

/// A writer of one request, argument by argument.
///
/// ```
/// let mut out = Vec::new();
/// resp::RequestWriter::new(3, &mut out).argument(b"SET").argument(b"key").integer(7);
/// assert_eq!(out, b"*3\r\n$3\r\nSET\r\n$3\r\nkey\r\n$1\r\n7\r\n");
/// ```
pub struct RequestWriter<'b> {
    out: &'b mut Vec<u8>,
    missing: usize,
}

impl<'b> RequestWriter<'b> {
    /// Begins a request of `arguments` arguments, including the command's name, appended to `out`.
    #[inline]
    pub fn new(arguments: usize, out: &'b mut Vec<u8>) -> RequestWriter<'b> {
        write_header(b'*', arguments, out);
        RequestWriter { out, missing: arguments }
    }

    /// Writes a whole request.
    pub fn write(arguments: &[&[u8]], out: &'b mut Vec<u8>) {
        let writer = RequestWriter::new(arguments.len(), out);
        arguments.iter().fold(writer, |writer, argument| writer.argument(argument));
    }

    /// Writes the next argument.
    #[inline]
    pub fn argument(mut self, bytes: &[u8]) -> Self {
        self.count_argument();
        write_bulk(bytes, self.out);
        self
    }

    /// Writes the next argument, a number in decimal.
    #[inline]
    pub fn integer(mut self, number: i64) -> Self {
        self.count_argument();
        write_bulk(itoa::Buffer::new().format(number).as_bytes(), self.out);
        self
    }

    #[inline]
    fn count_argument(&mut self) {
        assert!(self.missing > 0, "more arguments than announced");
        self.missing -= 1;
    }
}

impl Drop for RequestWriter<'_> {
    fn drop(&mut self) {
        // A second panic would abort the process.
        if !std::thread::panicking() {
            assert_eq!(self.missing, 0, "fewer arguments than announced");
        }
    }
}
