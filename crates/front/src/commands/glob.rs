//! Glob patterns of `SCAN MATCH` and `CONFIG GET`: `*`, `?`, `[a-z]`, `[^a]`, `\x`.

use super::Refusal;
use std::cell::Cell;

/// Most bytes that the comparisons of one attempt of a command look at. Each takes about a nanosecond.
const COMPARED_MAX: u64 = 1 << 24;

const TOO_LONG: Refusal =
    Refusal::because("ERR the pattern takes too long to compare with these names");

/// A pattern that is compared with many names of clients, for a limited time.
#[derive(Debug)]
pub(super) struct BoundedPattern<'p> {
    pattern: &'p [u8],
    left: Cell<u64>,
}

impl<'p> BoundedPattern<'p> {
    pub(super) fn new(pattern: &'p [u8]) -> BoundedPattern<'p> {
        BoundedPattern { pattern, left: Cell::new(COMPARED_MAX) }
    }

    /// Returns whether a name matches; false when the time has passed.
    pub(super) fn matches(&self, name: &[u8]) -> bool {
        let mut left = self.left.get();
        let is_match = self.pattern == b"*" || matches_within(self.pattern, name, false, &mut left);
        self.left.set(left);
        is_match
    }

    /// Returns an error if names were not compared because the time had passed.
    pub(super) fn check(&self) -> Result<(), Refusal> {
        if self.left.get() > 0 { Ok(()) } else { Err(TOO_LONG) }
    }
}

/// Returns whether all of `text` matches `pattern`. Takes time proportional to the product of both
/// lengths at most: after a mismatch, only the last star is retried, one byte further.
pub(crate) fn glob_matches(pattern: &[u8], text: &[u8], ignore_case: bool) -> bool {
    let mut unlimited = u64::MAX;
    matches_within(pattern, text, ignore_case, &mut unlimited)
}

/// Does the same in this number of steps, and reduces it; false if they do not suffice.
fn matches_within(pattern: &[u8], text: &[u8], ignore_case: bool, steps: &mut u64) -> bool {
    let (mut pattern_at, mut text_at) = (0, 0);
    let mut retry: Option<(usize, usize)> = None;
    loop {
        if *steps == 0 {
            return false;
        }
        *steps -= 1;
        if pattern.get(pattern_at) == Some(&b'*') {
            pattern_at += 1;
            retry = Some((pattern_at, text_at));
            continue;
        }
        let step = match (pattern_at == pattern.len(), text.get(text_at)) {
            (true, None) => return true,
            (true, Some(_)) | (false, None) => None,
            (false, Some(&byte)) => match_one(&pattern[pattern_at..], byte, ignore_case),
        };
        match (step, retry) {
            (Some(taken), _) => {
                pattern_at += taken;
                text_at += 1;
            }
            (None, Some((star, from))) if from < text.len() => {
                retry = Some((star, from + 1));
                (pattern_at, text_at) = (star, from + 1);
            }
            (None, _) => return false,
        }
    }
}

/// Returns the length of the first element of a non-empty pattern, if it matches the byte.
fn match_one(pattern: &[u8], byte: u8, ignore_case: bool) -> Option<usize> {
    let fold = |byte: u8| if ignore_case { byte.to_ascii_lowercase() } else { byte };
    match pattern {
        [b'?', ..] => Some(1),
        [b'[', class @ ..] => {
            let (inside, taken) = match_class(class, byte, fold);
            inside.then_some(taken + 1)
        }
        [b'\\', escaped, ..] => (fold(*escaped) == fold(byte)).then_some(2),
        [literal, ..] => (fold(*literal) == fold(byte)).then_some(1),
        [] => None,
    }
}

/// Returns whether the byte is in the class that begins here, and the class's length.
fn match_class(class: &[u8], byte: u8, fold: impl Fn(u8) -> u8) -> (bool, usize) {
    let negated = class.first() == Some(&b'^');
    let mut at = usize::from(negated);
    let mut inside = false;
    loop {
        match &class[at.min(class.len())..] {
            [] => break,
            [b']', ..] => {
                at += 1;
                break;
            }
            [b'\\', escaped, ..] => {
                inside |= fold(*escaped) == fold(byte);
                at += 2;
            }
            [first, b'-', last, ..] => {
                let (low, high) = (fold(*first.min(last)), fold(*first.max(last)));
                inside |= (low..=high).contains(&fold(byte));
                at += 3;
            }
            [literal, ..] => {
                inside |= fold(*literal) == fold(byte);
                at += 1;
            }
        }
    }
    (inside != negated, at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comparison_that_takes_too_long_is_given_up() {
        let pattern = [&b"*"[..], &b"a".repeat(20_000), b"b"].concat();
        let pattern = BoundedPattern::new(&pattern);
        let name = b"a".repeat(100_000);
        assert!(pattern.check().is_ok());
        assert!(!pattern.matches(&name));
        assert_eq!(pattern.check(), Err(TOO_LONG));
        let short = BoundedPattern::new(b"*a?b");
        assert!((0..1000).all(|_| short.matches(b"aaaaacb")) && short.check().is_ok());
    }

    #[test]
    fn patterns_match_as_in_redis() {
        for (pattern, text, expected) in [
            ("*", "", true),
            ("*", "anything", true),
            ("", "", true),
            ("", "a", false),
            ("a", "", false),
            ("a?c", "abc", true),
            ("a?c", "ac", false),
            ("user:*:name", "user:17:name", true),
            ("user:*:name", "user:17:names", false),
            ("*b*b*", "abab", true),
            ("*ab", "aab", true),
            ("[a-c]x", "bx", true),
            ("[c-a]x", "bx", true),
            ("[^a-c]x", "bx", false),
            ("[^a-c]x", "dx", true),
            ("[abc", "b", true),
            ("\\*", "*", true),
            ("\\*", "a", false),
            ("[\\]]", "]", true),
            ("h*llo", "hllo", true),
            ("h*llo", "heeeello", true),
        ] {
            assert_eq!(
                glob_matches(pattern.as_bytes(), text.as_bytes(), false),
                expected,
                "{pattern} {text}"
            );
        }
        assert!(glob_matches(b"MAX*", b"maxmemory", true));
    }

    #[test]
    fn many_stars_do_not_take_for_ever() {
        let pattern = b"a*".repeat(100);
        let text = [b"a".repeat(5_000), b"b".to_vec()].concat();
        assert!(!glob_matches(&[&pattern[..], b"c"].concat(), &text, false));
    }
}
