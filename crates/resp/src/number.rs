//! Numbers in the formats that Redis reads and writes.

use std::io::Write;

/// Most digits of a number that [`short_line`] reads. Longer numbers may overflow.
const DIGITS_MAX: usize = 18;

/// Parses an integer in the only form that Redis writes: no blanks, no `+`, no leading zeros, no
/// `-0`. Returns `None` for any other text, and on overflow.
pub fn parse_integer(text: &[u8]) -> Option<i64> {
    let (is_negative, digits) = match text {
        [b'-', digits @ ..] => (true, digits),
        digits => (false, digits),
    };
    let first = *digits.first()?;
    if first == b'0' {
        return if digits.len() == 1 && !is_negative { Some(0) } else { None };
    }
    // The sum is negative, because `i64` has one more negative number.
    let sum = digits.iter().try_fold(0i64, |sum, digit| {
        if !digit.is_ascii_digit() {
            return None;
        }
        sum.checked_mul(10)?.checked_sub(i64::from(digit - b'0'))
    })?;
    if is_negative { Some(sum) } else { sum.checked_neg() }
}

/// Reads `digits CR LF` at the front of `bytes`; returns the number and the line's length. Returns
/// `None` unless the line is short, plain and complete: the caller then parses it carefully.
#[inline(always)]
pub(crate) fn short_line(bytes: &[u8]) -> Option<(usize, usize)> {
    let (mut number, mut at) = (0, 0);
    loop {
        let byte = *bytes.get(at)?;
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            let is_end = byte == b'\r' && bytes.get(at + 1) == Some(&b'\n');
            return if is_end && at > 0 { Some((number, at + 2)) } else { None };
        }
        let is_led_by_zero = number == 0 && at > 0;
        if is_led_by_zero || at == DIGITS_MAX {
            return None;
        }
        number = number * 10 + usize::from(digit);
        at += 1;
    }
}

/// Appends an integer in decimal.
#[inline]
pub fn write_integer(number: i64, out: &mut Vec<u8>) {
    out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

/// Appends a double in Redis's format: the fewest digits that parse to the same number, as a plain
/// decimal unless that is much longer than the digits, otherwise with an exponent. Integers have all
/// their digits.
pub fn write_double(number: f64, out: &mut Vec<u8>) {
    out.extend_from_slice(double_text(number, &mut [0; DOUBLE_BYTES_MAX]));
}

/// Longest text of a double: a sign, 17 digits, a point, and 7 zeros or an exponent of 5 bytes.
pub(crate) const DOUBLE_BYTES_MAX: usize = 32;

/// Returns the text of a double, in a buffer.
pub(crate) fn double_text(number: f64, buffer: &mut [u8; DOUBLE_BYTES_MAX]) -> &[u8] {
    if number.is_nan() {
        return b"nan";
    }
    if number.is_infinite() {
        return if number > 0.0 { b"inf" } else { b"-inf" };
    }
    if number == 0.0 {
        return if number.is_sign_negative() { b"-0" } else { b"0" };
    }
    let integer = number as i64;
    if integer as f64 == number && number.abs() <= INTEGER_MAX {
        let mut digits = itoa::Buffer::new();
        return written(buffer, |space| space.write_all(digits.format(integer).as_bytes()));
    }
    let mut scientific = [0; DOUBLE_BYTES_MAX];
    let text = written(&mut scientific, |space| write!(space, "{number:e}"));
    let Some(mark) = text.iter().position(|byte| *byte == b'e') else {
        unreachable!("a finite number in scientific notation has an exponent");
    };
    let (mantissa, exponent) = (&text[..mark], &text[mark + 1..]);
    let digits = mantissa.iter().filter(|byte| byte.is_ascii_digit()).count() as i64;
    let magnitude = parse_integer(exponent).unwrap_or(0);
    written(buffer, |space| {
        if is_plain(digits, magnitude) {
            return write!(space, "{number}");
        }
        space.write_all(mantissa)?;
        let sign = if magnitude < 0 { '-' } else { '+' };
        write!(space, "e{sign}{}", magnitude.abs())
    })
}

/// Returns the part of a buffer that `write` has written.
///
/// # Panics
/// If the buffer is too short.
fn written(
    buffer: &mut [u8; DOUBLE_BYTES_MAX],
    write: impl FnOnce(&mut &mut [u8]) -> std::io::Result<()>,
) -> &[u8] {
    let mut space = &mut buffer[..];
    let done = write(&mut space);
    assert!(done.is_ok(), "a double has more than {DOUBLE_BYTES_MAX} bytes");
    let left = space.len();
    &buffer[..DOUBLE_BYTES_MAX - left]
}

/// Integers up to 2^62 are written as integers, with digits that a double does not tell apart.
const INTEGER_MAX: f64 = 4_611_686_018_427_387_904.0;

/// Returns whether Redis writes a number without exponent. The number has `digits` significant
/// digits, and its first digit has the weight ten to the power of `magnitude`.
fn is_plain(digits: i64, magnitude: i64) -> bool {
    // The last digit has the weight ten to the power of `last`.
    let last = magnitude - (digits - 1);
    if last >= 0 { magnitude.abs() < digits + 7 } else { last > -7 || magnitude.abs() < 4 }
}
