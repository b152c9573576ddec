//! Numbers as `INCRBYFLOAT` adds them: binary floating point with a significand of 64 bits, which
//! is C's `long double` on x86. Redis prints 17 decimals of the exact sum, so the last bits of a
//! sum are visible in replies; an `f64` would give other replies.

use num_bigint::BigUint;
use rustc_apfloat::ieee::{Double, X87DoubleExtended};
use rustc_apfloat::{Float, FloatConvert, Round, Status};

/// A number of x86's extended precision, or infinity.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Extended(X87DoubleExtended);

/// Longest text of a number.
const TEXT_BYTES_MAX: usize = 5 * 1024 - 1;
/// Digits that are printed behind the point.
const DECIMALS: usize = 17;
/// Bits of the significand behind its highest one, and the exponent's bias.
const FRACTION_BITS: i32 = 63;
const BIAS: i32 = 16_383;

impl Extended {
    /// Reads the texts that C's `strtold` reads: decimal, hexadecimal, or infinity. `None` if the
    /// text is no number, or its number is too large, or too small to be told from zero.
    pub fn parse(text: &[u8]) -> Option<Extended> {
        if text.len() > TEXT_BYTES_MAX {
            return None;
        }
        let text = std::str::from_utf8(text).ok()?;
        let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
        let is_negative = text.starts_with('-');
        let lower = unsigned.to_ascii_lowercase();
        let magnitude = match lower.as_str() {
            "inf" | "infinity" => X87DoubleExtended::INFINITY,
            _ => parse_magnitude(lower)?,
        };
        Some(Extended(if is_negative { -magnitude } else { magnitude }))
    }

    /// Returns the number of a double, which it has exactly.
    pub fn of(number: f64) -> Extended {
        Extended(Double::from_bits(number.to_bits().into()).convert(&mut false).value)
    }

    /// Returns whether the number is not infinite.
    pub fn is_finite(self) -> bool {
        self.0.is_finite()
    }

    /// Returns the sum; `None` if it is infinite or undefined.
    pub fn checked_add(self, other: Extended) -> Option<Extended> {
        let both_finite = self.0.is_finite() && other.0.is_finite();
        let sum = (self.0 + other.0).value;
        (both_finite && sum.is_finite()).then_some(Extended(sum))
    }

    /// Returns the number with all its digits, without zeros at the end, rounded behind the 17th
    /// decimal.
    pub fn format(self) -> String {
        if !self.0.is_finite() {
            return "inf".into();
        }
        let bits = self.0.to_bits();
        let (significand, exponent) = (bits as u64, (bits >> 64) as i32 & 0x7fff);
        // Subnormal numbers have the exponent of the smallest normal ones.
        let exponent = exponent.max(1) - BIAS - FRACTION_BITS;
        let text = match u32::try_from(exponent) {
            Ok(exponent) => (BigUint::from(significand) << exponent).to_string(),
            Err(_) => format_fraction(significand, exponent.unsigned_abs()),
        };
        if self.0.is_negative() && text != "0" { format!("-{text}") } else { text }
    }
}

/// Reads a number without a sign, in lower case.
fn parse_magnitude(mut text: String) -> Option<X87DoubleExtended> {
    if !text.starts_with(|first: char| first.is_ascii_digit() || first == '.') {
        return None;
    }
    let is_hexadecimal = text.starts_with("0x");
    match text.split_once(if is_hexadecimal { 'p' } else { 'e' }) {
        Some((_, exponent)) => {
            let digits = exponent.strip_prefix(['-', '+']).unwrap_or(exponent);
            if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
                return None;
            }
        }
        None if is_hexadecimal => text.push_str("p0"),
        None => {}
    }
    let read = X87DoubleExtended::from_str_r(&text, Round::NearestTiesToEven).ok()?;
    let is_lost = read.value.is_zero() && read.status.contains(Status::UNDERFLOW);
    (read.value.is_finite() && !is_lost).then_some(read.value)
}

/// Returns `significand / 2^shift` as decimal digits.
fn format_fraction(significand: u64, shift: u32) -> String {
    let scaled = u128::from(significand) * 10u128.pow(DECIMALS as u32);
    let digits = format!("{:0>18}", shift_rounding(scaled, shift));
    let (whole, decimals) = digits.split_at(digits.len() - DECIMALS);
    match decimals.trim_end_matches('0') {
        "" => whole.to_owned(),
        decimals => format!("{whole}.{decimals}"),
    }
}

/// Returns `number / 2^shift`, rounded to the nearest integer, of two equally near ones to the even
/// one.
fn shift_rounding(number: u128, shift: u32) -> u128 {
    if shift > 128 {
        return 0;
    }
    let kept = number.checked_shr(shift).unwrap_or(0);
    let rest = number - kept.checked_shl(shift).unwrap_or(0);
    let half = 1u128 << (shift - 1);
    kept + u128::from(rest > half || rest == half && kept & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(first: &str, second: &str) -> Option<String> {
        let [first, second] = [first, second].map(|text| Extended::parse(text.as_bytes()));
        Some(first?.checked_add(second?)?.format())
    }

    /// Recorded from a server that uses the processor's own numbers.
    #[test]
    fn sums_are_those_of_the_processor() {
        for (first, second, expected) in [
            ("3.0", "0", "3"),
            ("3", "1.1", "4.1"),
            ("4.1", "0.1", "4.2"),
            ("-0.8", "1e17", "99999999999999999.203125"),
            ("99999999999999999.203125", "0.123", "99999999999999999.328125"),
            ("99999999999999999.328125", "-1e17", "-0.671875"),
            ("-0.671875", "0x10", "15.328125"),
            ("0", "-0.0", "0"),
            ("0", "1e-18", "0"),
            ("5.5", "1.5e+3", "1505.5"),
            (".5", "5.", "5.5"),
            ("1e400", "-1e400", "0"),
            ("0x.8p1", "0xap-1", "6"),
        ] {
            assert_eq!(sum(first, second).as_deref(), Some(expected), "{first} + {second}");
        }
        let long = sum("1e400", "16.328125").unwrap();
        assert!(long.starts_with("100000000000000000002818806839475865145864534336"), "{long}");
        assert_eq!(long.len(), 401);
    }

    #[test]
    fn what_is_no_number_is_refused() {
        for text in [
            "",
            "x",
            " 1",
            "1 ",
            "nan",
            ".",
            "1e",
            "e1",
            "1_0",
            "+-1",
            "0x",
            "1e5000",
            "1e-5000",
            "--1",
            "1.2e4932",
            "1.2.3",
            "0x1p99999",
            "1e99999999999999999999",
        ] {
            assert_eq!(Extended::parse(text.as_bytes()), None, "{text:?}");
        }
        assert_eq!(Extended::parse(&[b'1'; 6000]), None);
        let infinity = Extended::parse(b"-Infinity").unwrap();
        assert_eq!(infinity.format(), "inf");
        assert_eq!(sum("inf", "1"), None);
        assert_eq!(sum("1.1e4932", "1.1e4932"), None, "the sum is infinite");
    }

    #[test]
    fn numbers_of_few_bits_are_added_exactly() {
        let mut random = fastrand::Rng::with_seed(11);
        for _ in 0..20_000 {
            // In units of 2^-16, which has 16 decimals.
            let [first, second] = [(); 2].map(|()| random.i64(-(1 << 40)..1 << 40));
            let text = |units: i64| {
                let sign = if units < 0 { "-" } else { "" };
                let units = units.unsigned_abs();
                let decimals = (u128::from(units % (1 << 16)) * 10u128.pow(16)) >> 16;
                let decimals = format!("{decimals:016}");
                let decimals = decimals.trim_end_matches('0');
                let point = if decimals.is_empty() { "" } else { "." };
                format!("{sign}{}{point}{decimals}", units >> 16)
            };
            let expected = text(first + second);
            assert_eq!(sum(&text(first), &text(second)), Some(expected), "{first} {second}");
        }
    }
}
