//! Numbers in Redis's strict format: no plus sign, no leading zeros, no white space.

/// Parses a signed 64-bit decimal number in canonical form.
pub fn parse_integer(bytes: &[u8]) -> Option<i64> {
    match bytes {
        [b'-', digits @ ..] => {
            let magnitude = parse_unsigned(digits)?;
            match magnitude {
                0 => None,
                1..=0x7fff_ffff_ffff_ffff => Some(-(magnitude as i64)),
                0x8000_0000_0000_0000 => Some(i64::MIN),
                0x8000_0000_0000_0001.. => None,
            }
        }
        digits => i64::try_from(parse_unsigned(digits)?).ok(),
    }
}

/// Parses an unsigned 64-bit decimal number in canonical form.
pub fn parse_unsigned(bytes: &[u8]) -> Option<u64> {
    match bytes {
        [] => None,
        [b'0'] => Some(0),
        [b'0', ..] => None,
        digits => digits.iter().try_fold(0u64, |number, &digit| {
            let digit = digit.checked_sub(b'0').filter(|&digit| digit <= 9)?;
            number.checked_mul(10)?.checked_add(u64::from(digit))
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_canonical_spelling_of_a_number_is_one() {
        for (text, number) in [
            ("0", Some(0)),
            ("-1", Some(-1)),
            ("9223372036854775807", Some(i64::MAX)),
            ("-9223372036854775808", Some(i64::MIN)),
            ("9223372036854775808", None),
            ("-9223372036854775809", None),
            ("-0", None),
            ("01", None),
            ("+1", None),
            (" 1", None),
            ("1 ", None),
            ("", None),
            ("-", None),
            ("1.0", None),
            ("99999999999999999999", None),
        ] {
            assert_eq!(parse_integer(text.as_bytes()), number, "{text:?}");
        }
    }
}
