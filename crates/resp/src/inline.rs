//! Inline requests, as typed by a person: words separated by blanks, with Redis's quoting rules.
//!
//! - A word ends at a space, tab or line end outside quotes. Quotes may begin and end within a
//!   word, as in Valkey 9: `a"b c"d` is one word.
//! - Between double quotes, `\n \r \t \b \a` and `\xHH` represent one byte, and `\` before any
//!   other byte represents that byte. Between single quotes, only `\'` is special.

use crate::request::ArgumentSpan;

/// The error of a missing closing quote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UnbalancedQuotes;

/// Appends the words of `line` to `words`, as spans of `unquoted`, which gets their bytes.
pub(crate) fn split_words(
    mut line: &[u8],
    unquoted: &mut Vec<u8>,
    words: &mut Vec<ArgumentSpan>,
) -> Result<(), UnbalancedQuotes> {
    loop {
        let blanks = line.iter().take_while(|byte| is_blank(**byte)).count();
        line = &line[blanks..];
        if line.is_empty() {
            return Ok(());
        }
        let start = unquoted.len() as u32;
        line = take_word(line, unquoted)?;
        words.push(ArgumentSpan { start, end: unquoted.len() as u32 });
    }
}

/// Appends the first word of `line` to `word`, and returns the rest of the line.
fn take_word<'a>(mut line: &'a [u8], word: &mut Vec<u8>) -> Result<&'a [u8], UnbalancedQuotes> {
    loop {
        match line {
            [] | [b' ' | b'\n' | b'\r' | b'\t', ..] => return Ok(line),
            [quote @ (b'"' | b'\''), rest @ ..] => line = take_quoted(*quote, rest, word)?,
            [byte, rest @ ..] => {
                word.push(*byte);
                line = rest;
            }
        }
    }
}

/// Appends the text up to the closing quote, and returns the rest of the line.
fn take_quoted<'a>(
    quote: u8,
    mut line: &'a [u8],
    word: &mut Vec<u8>,
) -> Result<&'a [u8], UnbalancedQuotes> {
    let is_double = quote == b'"';
    loop {
        let (byte, rest) = match line {
            [] => return Err(UnbalancedQuotes),
            [byte, rest @ ..] if *byte == quote => return Ok(rest),
            [b'\\', b'x', high, low, rest @ ..]
                if is_double && high.is_ascii_hexdigit() && low.is_ascii_hexdigit() =>
            {
                (hex_digit(*high) << 4 | hex_digit(*low), rest)
            }
            [b'\\', escaped, rest @ ..] if is_double => (unescape(*escaped), rest),
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

/// Returns the value of a hexadecimal digit. The caller has checked the byte.
fn hex_digit(digit: u8) -> u8 {
    match digit {
        b'0'..=b'9' => digit - b'0',
        _ => (digit | 0x20) - b'a' + 10,
    }
}

/// Returns whether C's `isspace` accepts the byte. Vertical tab and form feed are skipped before a
/// word but do not end one, as in Redis.
fn is_blank(byte: u8) -> bool {
    byte.is_ascii_whitespace() || byte == 0x0b
}
