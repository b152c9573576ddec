//! Arguments of `LMPOP`, `ZMPOP` and their blocking forms.

use super::{Refusal, parse_integer, uppercase_is};

/// The removal of elements at an end of the first of several values that has some.
#[derive(Clone, Copy, Debug)]
pub(super) struct PopOfSeveral<E> {
    /// Number of the keys, which are behind their number.
    pub(super) keys: usize,
    pub(super) end: E,
    /// Most elements.
    pub(super) count: u64,
}

impl<E> PopOfSeveral<E> {
    /// Parses `numkeys key [key ...] END [COUNT count]`. `parse_end` parses the end.
    pub(super) fn parse(
        words: &[&[u8]],
        parse_end: impl FnOnce(&[u8]) -> Result<E, Refusal>,
    ) -> Result<PopOfSeveral<E>, Refusal> {
        let number = words.first().ok_or(Refusal::Syntax)?;
        let keys = parse_positive(number, "ERR numkeys should be greater than 0")?;
        let keys = usize::try_from(keys).unwrap_or(usize::MAX);
        let rest = words.get(keys.saturating_add(1)..).unwrap_or(&[]);
        let (end, options) = rest.split_first().ok_or(Refusal::Syntax)?;
        let end = parse_end(end)?;
        let count = match options {
            [] => 1,
            [word, count, rest @ ..] if uppercase_is(word, b"COUNT") => {
                let count = parse_positive(count, "ERR count should be greater than 0")?;
                if !rest.is_empty() {
                    return Err(Refusal::Syntax);
                }
                count
            }
            _ => return Err(Refusal::Syntax),
        };
        Ok(PopOfSeveral { keys, end, count })
    }
}

/// Parses a number that must be positive.
fn parse_positive(text: &[u8], refusal: &'static str) -> Result<u64, Refusal> {
    let number = parse_integer(text).and_then(|number| u64::try_from(number).ok());
    number.filter(|number| *number > 0).ok_or(Refusal::because(refusal))
}
