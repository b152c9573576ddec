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
/// decimal unless that is much longer than the digits, otherwise with an exponent.
pub fn write_double(number: f64, out: &mut Vec<u8>) {
    if number.is_nan() {
        return out.extend_from_slice(b"nan");
    }
    if number.is_infinite() {
        return out.extend_from_slice(if number > 0.0 { b"inf" } else { b"-inf" });
    }
    // The longest text has a sign, 17 digits, a point and an exponent of 5 bytes.
    let mut buffer = [0u8; 32];
    let mut space = &mut buffer[..];
    // Cannot fail, since the buffer is long enough.
    let _ = write!(space, "{number:e}");
    let left = space.len();
    let text = &buffer[..buffer.len() - left];
    let Some(mark) = text.iter().position(|byte| *byte == b'e') else {
        unreachable!("a finite number in scientific notation has an exponent");
    };
    let (mantissa, exponent) = (&text[..mark], &text[mark + 1..]);
    let digits = mantissa.iter().filter(|byte| byte.is_ascii_digit()).count() as i64;
    let magnitude = parse_integer(exponent).unwrap_or(0);
    if is_plain(number, digits, magnitude) {
        // Writing into a Vec cannot fail.
        let _ = write!(out, "{number}");
    } else {
        out.extend_from_slice(mantissa);
        out.extend_from_slice(if magnitude < 0 { b"e-" } else { b"e+" });
        write_integer(magnitude.abs(), out);
    }
}

/// Returns whether Redis writes a number without exponent. The number has `digits` significant
/// digits, and its first digit has the weight ten to the power of `magnitude`.
fn is_plain(number: f64, digits: i64, magnitude: i64) -> bool {
    /// Integers up to 2^52 are written as integers.
    const INTEGER_MAX: f64 = 4_503_599_627_370_496.0;
    if number.fract() == 0.0 && number.abs() < INTEGER_MAX {
        return true;
    }
    // The last digit has the weight ten to the power of `last`.
    let last = magnitude - (digits - 1);
    if last >= 0 { magnitude.abs() < digits + 7 } else { last > -7 || magnitude.abs() < 4 }
}
