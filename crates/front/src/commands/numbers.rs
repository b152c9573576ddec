//! Numbers in arguments.

use super::Refusal;
use std::ops::RangeInclusive;
use values::parse_integer;

/// Parses a number that must lie within a range.
pub(crate) fn parse_integer_within(
    bytes: &[u8],
    range: RangeInclusive<i64>,
) -> Result<i64, Refusal> {
    let number = parse_integer(bytes).ok_or(Refusal::NotAnInteger)?;
    if range.contains(&number) {
        return Ok(number);
    }
    let (low, high) = (range.start(), range.end());
    let text = match (*low, *high) {
        (0, i64::MAX) => "ERR value is out of range, must be positive".to_string(),
        _ => format!("ERR value is out of range, value must between {low} and {high}"),
    };
    Err(Refusal::Because(text.into()))
}
