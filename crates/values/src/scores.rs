//! Scores of sorted sets as text.

/// Parses a score: a decimal number, or infinity. `None` if the text is anything else, or if the
/// number is too large, or too small to be told from zero.
pub fn parse_score(text: &[u8]) -> Option<f64> {
    let score = parse_double(text)?;
    let is_spelled_out = text.iter().any(|byte| byte.eq_ignore_ascii_case(&b'n'));
    let is_too_large = score.is_infinite() && !is_spelled_out;
    let is_too_small = score == 0.0 && has_digit_above_zero(text);
    (!is_too_large && !is_too_small).then_some(score)
}

/// Parses an end of a range of scores. A number that is too large is infinity there, one that is too
/// small is zero, and so is the empty text.
pub fn parse_score_bound(text: &[u8]) -> Option<f64> {
    if text.is_empty() { Some(0.0) } else { parse_double(text) }
}

/// Parses a number other than NaN, rounded to the nearest double.
fn parse_double(text: &[u8]) -> Option<f64> {
    let number: f64 = std::str::from_utf8(text).ok()?.parse().ok()?;
    (!number.is_nan()).then_some(number)
}

/// Returns whether the text of a number has a digit other than 0 in front of its exponent.
fn has_digit_above_zero(text: &[u8]) -> bool {
    let mut digits = text.iter().take_while(|byte| !byte.eq_ignore_ascii_case(&b'e'));
    digits.any(|byte| matches!(byte, b'1'..=b'9'))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Recorded from Valkey 9.1.2.
    #[test]
    fn scores_are_read_as_valkey_reads_them() {
        for (text, expected) in [
            ("1", Some(1.0)),
            ("+1", Some(1.0)),
            ("-2.5", Some(-2.5)),
            (".5", Some(0.5)),
            ("5.", Some(5.0)),
            ("1e5", Some(100_000.0)),
            ("00012", Some(12.0)),
            ("inf", Some(f64::INFINITY)),
            ("+INFINITY", Some(f64::INFINITY)),
            ("-Infinity", Some(f64::NEG_INFINITY)),
            ("5e-324", Some(5e-324)),
            ("0e400", Some(0.0)),
            ("0e-400", Some(0.0)),
            ("123456789012345678901234567890", Some(1.2345678901234568e29)),
            ("1e400", None),
            ("-1e400", None),
            ("1.7976931348623159e308", None),
            ("1e-400", None),
            ("2e-324", None),
            ("nan", None),
            ("infin", None),
            ("0x10", None),
            ("1_0", None),
            (" 1", None),
            ("1 ", None),
            ("", None),
            (".", None),
            ("1e", None),
            ("-", None),
            ("--1", None),
        ] {
            assert_eq!(parse_score(text.as_bytes()), expected, "{text:?}");
        }
        assert_eq!(parse_score(b"\xff"), None);
    }

    #[test]
    fn ends_of_ranges_may_be_beyond_all_scores() {
        for (text, expected) in [
            ("1e400", Some(f64::INFINITY)),
            ("-1e400", Some(f64::NEG_INFINITY)),
            ("1e-400", Some(0.0)),
            ("", Some(0.0)),
            ("nan", None),
            ("0x1", None),
        ] {
            assert_eq!(parse_score_bound(text.as_bytes()), expected, "{text:?}");
        }
    }
}
