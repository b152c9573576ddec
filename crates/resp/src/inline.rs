//! Requests as a person types them: words separated by blanks, with Redis's rules of quoting.
//!
//! - A word ends at a space, tab or line end outside of quotes. Quotes may begin and end within a
//!   word, as in Valkey 9: `a"b c"d` is one word.
//! - Between double quotes `\n \r \t \b \a` and `\xHH` stand for one byte, and `\` before any other
//!   byte for that byte. Between single quotes only `\'` means something.

use crate::request::Span;

/// A quote was not closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UnbalancedQuotes;

/// Appends the words of `line` to `words`, as spans of `unquoted`, where their bytes are put.
pub(crate) fn split_words(
    mut line: &[u8],
    unquoted: &mut Vec<u8>,
    words: &mut Vec<Span>,
) -> Result<(), UnbalancedQuotes> {
    loop {
        let blanks = line.iter().take_while(|byte| is_blank(**byte)).count();
        line = &line[blanks..];
        if line.is_empty() {
            return Ok(());
        }
        let start = unquoted.len() as u32;
        line = take_word(line, unquoted)?;
        words.push(Span { start, end: unquoted.len() as u32 });
    }
}

/// Puts the first word of `line` into `word` and returns what follows.
fn take_word<'a>(mut line: &'a [u8], word: &mut Vec<u8>) -> Result<&'a [u8], UnbalancedQuotes> {
    loop {
        match line {
            [] | [b' ' | b'\n' | b'\r' | b'\t', ..] => return Ok(line),
            [b'"', rest @ ..] => line = take_double_quoted(rest, word)?,
            [b'\'', rest @ ..] => line = take_single_quoted(rest, word)?,
            [byte, rest @ ..] => {
                word.push(*byte);
                line = rest;
            }
        }
    }
}

/// Returns what follows the closing quote.
fn take_double_quoted<'a>(
    mut line: &'a [u8],
    word: &mut Vec<u8>,
) -> Result<&'a [u8], UnbalancedQuotes> {
    loop {
        let (byte, rest) = match line {
            [] => return Err(UnbalancedQuotes),
            [b'"', rest @ ..] => return Ok(rest),
            [b'\\', b'x', high, low, rest @ ..]
                if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() =>
            {
                (hex_digit(*high) << 4 | hex_digit(*low), rest)
            }
            [b'\\', escaped, rest @ ..] => (unescape(*escaped), rest),
            [byte, rest @ ..] => (*byte, rest),
        };
        word.push(byte);
        line = rest;
    }
}

/// Returns what follows the closing quote.
fn take_single_quoted<'a>(
    mut line: &'a [u8],
    word: &mut Vec<u8>,
) -> Result<&'a [u8], UnbalancedQuotes> {
    loop {
        let (byte, rest) = match line {
            [] => return Err(UnbalancedQuotes),
            [b'\'', rest @ ..] => return Ok(rest),
            [b'\\', b'\'', rest @ ..] => (b'\'', rest),
            [byte, rest @ ..] => (*byte, rest),
        };
        word.push(byte);
        line = rest;
    }
}

fn unescape(byte: u8) -> u8 {
    match byte {
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        b'b' => 0x08,
        b'a' => 0x07,
        other => other,
    }
}

/// The value of a byte that is known to be a hexadecimal digit.
fn hex_digit(digit: u8) -> u8 {
    match digit {
        b'0'..=b'9' => digit - b'0',
        _ => (digit | 0x20) - b'a' + 10,
    }
}

/// What C calls a space. Vertical tab and form feed separate words but do not end one, in Redis
/// too.
fn is_blank(byte: u8) -> bool {
    byte.is_ascii_whitespace() || byte == 0x0b
}
