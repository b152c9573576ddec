//! A quick look at requests that are not parsed yet. It finds their first arguments, which are
//! usually keys, so that a server can prefetch memory for them.
//!
//! The result is only a hint. The lookahead stops at the first input that is not a plain array of
//! plain bulk strings, and does not validate requests.

use crate::number::short_line;

/// An iterator over the first argument after the command's name of each complete request in some
/// input. A request without arguments gives `None`.
#[derive(Clone, Debug)]
pub struct Lookahead<'i> {
    rest: &'i [u8],
}

impl<'i> Lookahead<'i> {
    /// Creates a lookahead over `input`, which begins with a request.
    #[inline]
    pub fn new(input: &'i [u8]) -> Lookahead<'i> {
        Lookahead { rest: input }
    }

    /// Takes a line with this marker and a number off the front, and returns the number.
    #[inline]
    fn number(&mut self, marker: u8) -> Option<usize> {
        let (first, rest) = self.rest.split_first()?;
        let (number, bytes) = short_line(rest).filter(|_| *first == marker)?;
        self.rest = &rest[bytes..];
        Some(number)
    }
}

impl<'i> Iterator for Lookahead<'i> {
    type Item = Option<&'i [u8]>;

    #[inline]
    fn next(&mut self) -> Option<Option<&'i [u8]>> {
        let count = self.number(b'*')?;
        let mut first = None;
        for number in 0..count {
            let length = self.number(b'$')?;
            let argument = self.rest.get(..length)?;
            self.rest = self.rest.get(length + 2..)?;
            if number == 1 {
                first = Some(argument);
            }
        }
        Some(first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(input: &[u8]) -> Vec<Option<&[u8]>> {
        Lookahead::new(input).collect()
    }

    #[test]
    fn the_first_argument_of_each_whole_request_is_seen() {
        let input = b"*2\r\n$3\r\nGET\r\n$1\r\nx\r\n*1\r\n$4\r\nPING\r\n\
                      *3\r\n$3\r\nSET\r\n$2\r\n\r\n\r\n$3\r\nfoo\r\n*2\r\n$3\r\nGET\r\n$5\r\nab";
        assert_eq!(seen(input), [Some(&b"x"[..]), None, Some(&b"\r\n"[..])]);
    }

    #[test]
    fn what_is_no_plain_request_ends_the_glance() {
        for odd in [&b"GET x\r\n"[..], b"*-1\r\n", b"*2\r\n:1\r\n", b"*1\r\n$99\r\n", b"*", b""] {
            assert!(seen(odd).is_empty(), "{}", odd.escape_ascii());
            let after = [b"*1\r\n$1\r\na\r\n", odd].concat();
            assert_eq!(seen(&after), [None], "{}", odd.escape_ascii());
        }
    }

    #[test]
    fn any_bytes_end_the_glance_sooner_or_later() {
        let mut random = fastrand::Rng::with_seed(5);
        for _ in 0..20_000 {
            let count = random.usize(..60);
            let bytes: Vec<u8> =
                std::iter::repeat_with(|| *random.choice(b"*$\r\n0129a").unwrap_or(&0))
                    .take(count)
                    .collect();
            assert!(seen(&bytes).len() <= bytes.len());
        }
    }
}
