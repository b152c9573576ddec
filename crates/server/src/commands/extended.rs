//! Numbers as `INCRBYFLOAT` adds them: binary floating point with a significand of 64 bits, which is
//! C's `long double` on x86. Redis prints 17 digits behind the point, so where a sum ends up is seen
//! in replies; an `f64` would give others.
//!
//! Decimal to binary and back goes through whole numbers of any length, and rounds once.

use std::cmp::Ordering;

/// `significand * 2^exponent`, with a sign.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Extended {
    Finite { is_negative: bool, significand: u64, exponent: i32 },
    Infinite,
}

/// Longest text of a number.
const TEXT_BYTES_MAX: usize = 5 * 1024 - 1;
/// The exponent of the smallest number.
const EXPONENT_MIN: i32 = -16_445;
/// Every number is below 2 to this power.
const POWER_MAX: i32 = 16_384;
/// Decimal exponents beyond which a number of [`TEXT_BYTES_MAX`] digits is too large or too small.
const DECIMAL_EXPONENT_MAX: i64 = 12_000;
/// Digits that are printed behind the point.
const DECIMALS: usize = 17;

impl Extended {
    /// Reads what C's `strtold` reads: decimal, hexadecimal, or infinity; `None` if it is no
    /// number, or too large, or too small to be told from zero.
    pub(super) fn parse(text: &[u8]) -> Option<Extended> {
        if text.len() > TEXT_BYTES_MAX {
            return None;
        }
        let (is_negative, text) = match text {
            [b'-', rest @ ..] => (true, rest),
            [b'+', rest @ ..] => (false, rest),
            rest => (false, rest),
        };
        if text.eq_ignore_ascii_case(b"inf") || text.eq_ignore_ascii_case(b"infinity") {
            return Some(Extended::Infinite);
        }
        let (radix, marker, text) = match text {
            [b'0', b'x' | b'X', rest @ ..] => (16, b'p', rest),
            rest => (10, b'e', rest),
        };
        let end = text.iter().position(|byte| byte.to_ascii_lowercase() == marker);
        let (digits, exponent) = match end {
            Some(end) => (&text[..end], parse_exponent(&text[end + 1..])?),
            None => (text, 0),
        };
        let (digits, behind_point) = parse_digits(digits, radix)?;
        let scaled = match radix {
            16 => Scaled::binary(digits, exponent - 4 * behind_point as i64)?,
            _ => Scaled::decimal(digits, exponent - behind_point as i64)?,
        };
        scaled.round(is_negative)
    }

    /// The sum; `None` if it is infinite, or makes no sense.
    pub(super) fn add(self, other: Extended) -> Option<Extended> {
        let (mut high, mut low) = (self.normalized()?, other.normalized()?);
        if high.1 == 0 || low.1 == 0 {
            let sum = if high.1 == 0 { other } else { self };
            return Some(sum);
        }
        if high.2 < low.2 {
            (high, low) = (low, high);
        }
        let distance = (high.2 - low.2) as u32;
        let first = u128::from(high.1) << 63;
        let second = (u128::from(low.1) << 63).checked_shr(distance).unwrap_or(0);
        let is_cut = second.checked_shl(distance).unwrap_or(0) != u128::from(low.1) << 63;
        let exponent = high.2 - 63;
        if high.0 == low.0 {
            return Scaled { number: first + second, exponent, is_cut }.round(high.0);
        }
        match first.cmp(&second) {
            Ordering::Equal => {
                Some(Extended::Finite { is_negative: false, significand: 0, exponent: 0 })
            }
            // What was cut off is taken away too: the rest lies a little below.
            Ordering::Greater => {
                let number = first - second - u128::from(is_cut);
                Scaled { number, exponent, is_cut }.round(high.0)
            }
            Ordering::Less => Scaled { number: second - first, exponent, is_cut }.round(low.0),
        }
    }

    /// Sign, significand with its highest bit set (or zero), and exponent.
    fn normalized(self) -> Option<(bool, u64, i32)> {
        match self {
            Extended::Infinite => None,
            Extended::Finite { is_negative, significand: 0, .. } => Some((is_negative, 0, 0)),
            Extended::Finite { is_negative, significand, exponent } => {
                let shift = significand.leading_zeros();
                Some((is_negative, significand << shift, exponent - shift as i32))
            }
        }
    }

    /// The number with all its digits, without zeros at the end, rounded behind the 17th decimal.
    pub(super) fn format(self) -> String {
        let Extended::Finite { is_negative, significand, exponent } = self else {
            return "inf".into();
        };
        let (whole, decimals) = match u32::try_from(exponent) {
            Ok(exponent) => (Whole::from(u128::from(significand)).shifted(exponent).digits(), None),
            Err(_) => {
                let shift = exponent.unsigned_abs();
                let scaled = u128::from(significand) * 10u128.pow(DECIMALS as u32);
                let digits = format!("{:0>18}", shift_rounding(scaled, shift, false));
                let (whole, decimals) = digits.split_at(digits.len() - DECIMALS);
                (whole.to_string(), Some(decimals.trim_end_matches('0').to_string()))
            }
        };
        let decimals = decimals.filter(|decimals| !decimals.is_empty());
        let text = match decimals {
            Some(decimals) => format!("{whole}.{decimals}"),
            None => whole,
        };
        if is_negative && text != "0" { format!("-{text}") } else { text }
    }
}

/// An exponent with its sign. What is absurdly large stays so.
fn parse_exponent(text: &[u8]) -> Option<i64> {
    let (is_negative, digits) = match text {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        rest => (false, rest),
    };
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let step = |number: i64, digit: &u8| (number * 10 + i64::from(digit - b'0')).min(1 << 40);
    let number = digits.iter().fold(0, step);
    Some(if is_negative { -number } else { number })
}

/// All digits as one number, and how many of them stand behind the point.
fn parse_digits(text: &[u8], radix: u32) -> Option<(Whole, usize)> {
    let mut whole = Whole::default();
    let mut point = None;
    let mut digits = 0;
    for &byte in text {
        if byte == b'.' && point.is_none() {
            point = Some(digits);
            continue;
        }
        whole.push_digit(char::from(byte).to_digit(radix)?, radix);
        digits += 1;
    }
    (digits > 0).then(|| (whole, digits - point.unwrap_or(digits)))
}

/// `number * 2^exponent`, and a little more if something was cut off.
struct Scaled {
    number: u128,
    exponent: i32,
    is_cut: bool,
}

impl Scaled {
    /// `whole * 2^exponent`.
    fn binary(whole: Whole, exponent: i64) -> Option<Scaled> {
        let exponent = i32::try_from(exponent.clamp(-1_000_000, 1_000_000)).ok()?;
        Some(whole.over(&Whole::from(1), exponent))
    }

    /// `whole * 10^exponent`.
    fn decimal(whole: Whole, exponent: i64) -> Option<Scaled> {
        if whole.is_zero() {
            return Some(Scaled { number: 0, exponent: 0, is_cut: false });
        }
        if exponent.abs() > DECIMAL_EXPONENT_MAX {
            return None;
        }
        let power = Whole::power_of_ten(exponent.unsigned_abs());
        Some(match exponent {
            0.. => whole.times(&power).over(&Whole::from(1), 0),
            _ => whole.over(&power, 0),
        })
    }

    /// The nearest number that there is, of two equally near ones the even one.
    fn round(self, is_negative: bool) -> Option<Extended> {
        let Scaled { number, exponent, is_cut } = self;
        if number == 0 && !is_cut {
            return Some(Extended::Finite { is_negative, significand: 0, exponent: 0 });
        }
        let bits = 128 - number.leading_zeros() as i32;
        let shift = (bits - 64).max(EXPONENT_MIN - exponent);
        let (rounded, exponent) = match u32::try_from(shift) {
            Ok(shift) if shift > 0 => {
                (shift_rounding(number, shift, is_cut), exponent + shift as i32)
            }
            Ok(_) | Err(_) => (number, exponent),
        };
        // Rounding up may have made a 65th bit, and a zero behind it.
        let (rounded, exponent) =
            if rounded >> 64 != 0 { (rounded >> 1, exponent + 1) } else { (rounded, exponent) };
        let significand = u64::try_from(rounded).ok().filter(|&significand| significand != 0)?;
        let power = exponent + 64 - significand.leading_zeros() as i32;
        (power <= POWER_MAX).then_some(Extended::Finite { is_negative, significand, exponent })
    }
}

/// `number / 2^shift`, rounded to the nearest, of two equally near ones to the even one.
fn shift_rounding(number: u128, shift: u32, is_cut: bool) -> u128 {
    if shift > 128 {
        return 0;
    }
    let kept = number.checked_shr(shift).unwrap_or(0);
    let rest = number - kept.checked_shl(shift).unwrap_or(0);
    let half = 1u128 << (shift - 1);
    let up = rest > half || rest == half && (is_cut || kept & 1 == 1);
    kept + u128::from(up)
}

/// A whole number of any length: digits of 32 bits, the lowest first, none of the highest zero.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Whole(Vec<u32>);

impl From<u128> for Whole {
    fn from(number: u128) -> Whole {
        let digits = (0..4).map(|at| (number >> (32 * at)) as u32).collect();
        Whole(digits).trimmed()
    }
}

impl Whole {
    fn trimmed(mut self) -> Whole {
        while self.0.last() == Some(&0) {
            self.0.pop();
        }
        self
    }

    fn is_zero(&self) -> bool {
        self.0.is_empty()
    }

    fn bits(&self) -> i32 {
        let high = self.0.last().map_or(0, |high| 32 - high.leading_zeros() as i32);
        32 * (self.0.len() as i32 - 1).max(0) + high
    }

    fn push_digit(&mut self, digit: u32, radix: u32) {
        let mut carry = u64::from(digit);
        for place in &mut self.0 {
            carry += u64::from(*place) * u64::from(radix);
            *place = carry as u32;
            carry >>= 32;
        }
        if carry > 0 {
            self.0.push(carry as u32);
        }
    }

    fn power_of_ten(exponent: u64) -> Whole {
        let mut power = Whole::from(1);
        for _ in 0..exponent / 9 {
            power.push_digit(0, 1_000_000_000);
        }
        (0..exponent % 9).for_each(|_| power.push_digit(0, 10));
        power
    }

    fn times(&self, other: &Whole) -> Whole {
        let mut product = vec![0u32; self.0.len() + other.0.len()];
        for (at, &digit) in self.0.iter().enumerate() {
            let mut carry = 0u64;
            for (place, &factor) in product[at..].iter_mut().zip(other.0.iter().chain([&0])) {
                carry += u64::from(*place) + u64::from(digit) * u64::from(factor);
                *place = carry as u32;
                carry >>= 32;
            }
        }
        Whole(product).trimmed()
    }

    fn shifted(&self, bits: u32) -> Whole {
        let mut digits = vec![0; bits as usize / 32];
        let mut carry = 0u64;
        for &digit in &self.0 {
            carry |= u64::from(digit) << (bits % 32);
            digits.push(carry as u32);
            carry >>= 32;
        }
        digits.push(carry as u32);
        Whole(digits).trimmed()
    }

    fn halve(&mut self) {
        let mut carry = 0;
        for place in self.0.iter_mut().rev() {
            let low = *place & 1;
            *place = *place >> 1 | carry << 31;
            carry = low;
        }
        while self.0.last() == Some(&0) {
            self.0.pop();
        }
    }

    fn is_below(&self, other: &Whole) -> bool {
        let by_length = self.0.len().cmp(&other.0.len());
        by_length.then_with(|| self.0.iter().rev().cmp(other.0.iter().rev())) == Ordering::Less
    }

    /// The other is not larger.
    fn subtract(&mut self, other: &Whole) {
        let mut borrow = false;
        for (at, place) in self.0.iter_mut().enumerate() {
            let other = other.0.get(at).copied().unwrap_or(0);
            let (less, first) = place.overflowing_sub(other);
            let (less, second) = less.overflowing_sub(u32::from(borrow));
            (*place, borrow) = (less, first || second);
        }
        while self.0.last() == Some(&0) {
            self.0.pop();
        }
    }

    /// `self / divisor * 2^exponent`, with at least 66 bits of the quotient. Long division.
    fn over(&self, divisor: &Whole, exponent: i32) -> Scaled {
        if self.is_zero() {
            return Scaled { number: 0, exponent: 0, is_cut: false };
        }
        const BITS: i32 = 66;
        let shift = BITS + divisor.bits() - self.bits();
        let mut rest = self.shifted(shift.max(0) as u32);
        // Above every multiple that the quotient's highest bit could stand for.
        let steps = (rest.bits() - divisor.bits()).max(0) as u32;
        let steps_max = (BITS + 1) as u32;
        let coarse = steps.saturating_sub(steps_max);
        let mut part = divisor.shifted(steps);
        let mut number = 0u128;
        for _ in coarse..=steps {
            number <<= 1;
            if !rest.is_below(&part) {
                rest.subtract(&part);
                number |= 1;
            }
            part.halve();
        }
        Scaled {
            number,
            exponent: exponent - shift.max(0) + coarse as i32,
            is_cut: !rest.is_zero(),
        }
    }

    fn digits(mut self) -> String {
        let mut groups = Vec::new();
        while !self.is_zero() {
            let mut rest = 0u64;
            for place in self.0.iter_mut().rev() {
                rest = rest << 32 | u64::from(*place);
                (*place, rest) = ((rest / 1_000_000_000) as u32, rest % 1_000_000_000);
            }
            self = self.trimmed();
            groups.push(rest);
        }
        let Some(first) = groups.pop() else { return "0".into() };
        let rest = groups.iter().rev().map(|group| format!("{group:09}"));
        std::iter::once(first.to_string()).chain(rest).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(first: &str, second: &str) -> Option<String> {
        let [first, second] = [first, second].map(|text| Extended::parse(text.as_bytes()));
        Some(first?.add(second?)?.format())
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
        assert_eq!(Extended::parse(b"-Infinity"), Some(Extended::Infinite));
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

    #[test]
    fn long_numbers_are_divided_and_multiplied_as_short_ones_are() {
        let mut random = fastrand::Rng::with_seed(12);
        for _ in 0..20_000 {
            let first = random.u128(1..) >> random.u32(0..127);
            let second = (random.u128(1..) >> random.u32(64..127)).max(1);
            let Scaled { number, exponent, is_cut } = Whole::from(first).over(&second.into(), 0);
            let product = Whole::from(number).times(&second.into());
            let wanted = Whole::from(first).shifted(exponent.min(0).unsigned_abs());
            assert!(!wanted.is_below(&product), "{first} / {second}");
            assert!(exponent > 0 || (wanted == product) != is_cut, "{first} / {second}");
            assert_eq!(Whole::from(first).digits(), first.to_string());
        }
    }
}
