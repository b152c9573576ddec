//! `SORT`: its options, and the order of elements that they describe.

use crate::numbers::parse_integer;
use crate::scores::parse_score;
use crate::stream_options::ArgumentError;
use std::borrow::Cow;
use std::cmp::Ordering;
use std::ops::Range;
use types::{Slot, hash_tag, slot_of};

/// The options of `SORT`.
#[derive(Clone, Debug)]
pub struct SortQuery<'a> {
    by: SortWeight<'a>,
    /// Set if the elements stay in the order of the list or sorted set.
    is_unsorted: bool,
    is_descending: bool,
    /// Weights are compared as texts, not as numbers.
    is_textual: bool,
    /// Number of elements to skip, and most elements; a negative number is no limit.
    limit: [i64; 2],
    /// The strings that are returned for each element; none: the element.
    pub outputs: Vec<SortOutput<'a>>,
    /// Position of the key under which the result is stored, among the options.
    pub stored: Option<usize>,
}

/// The weights by which elements are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SortWeight<'a> {
    /// The elements themselves.
    Element,
    /// The values of these keys.
    Values(KeyPattern<'a>),
}

/// A string that is returned for an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SortOutput<'a> {
    /// The element.
    Element,
    /// The value of this key.
    Value(KeyPattern<'a>),
    /// None: the pattern has no place for the element.
    Nothing,
}

/// A key for each element, or a field of a hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyPattern<'a> {
    prefix: &'a [u8],
    suffix: &'a [u8],
    /// The field.
    pub field: Option<&'a [u8]>,
}

impl<'a> KeyPattern<'a> {
    /// Parses a pattern: the first `*` is the place of the element, and `->` may precede a field. As
    /// in Redis, both are searched up to the first zero byte.
    fn parse(pattern: &'a [u8]) -> Option<KeyPattern<'a>> {
        let text = pattern.split(|byte| *byte == 0).next().unwrap_or_default();
        let place = text.iter().position(|byte| *byte == b'*')?;
        let behind = &text[place + 1..];
        let arrow = behind.windows(2).position(|pair| pair == b"->");
        let arrow = arrow.map(|at| place + 1 + at).filter(|at| at + 2 < text.len());
        let end = arrow.unwrap_or(pattern.len());
        Some(KeyPattern {
            prefix: &pattern[..place],
            suffix: &pattern[place + 1..end],
            field: arrow.map(|at| &pattern[at + 2..]),
        })
    }

    /// Returns the key of an element.
    pub fn key(&self, element: &[u8]) -> Vec<u8> {
        [self.prefix, element, self.suffix].concat()
    }
}

/// An option of `SORT` with a key or keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SortKey {
    /// The key under which the result is stored is the argument at this position.
    Stored(usize),
    /// Keys of a pattern are read.
    Pattern,
}

impl SortKey {
    /// Returns the position of the key under which the result is stored.
    pub fn stored(self) -> Option<usize> {
        match self {
            SortKey::Stored(at) => Some(at),
            SortKey::Pattern => None,
        }
    }

    /// Returns whether keys of a pattern are read.
    pub fn is_pattern(self) -> bool {
        self == SortKey::Pattern
    }
}

/// Returns the keys in the options of `SORT`, in a request of `arguments` arguments, whose name is
/// argument 0.
pub fn sort_keys<'r>(
    arguments: usize,
    argument: impl Fn(usize) -> Option<&'r [u8]>,
) -> impl Iterator<Item = SortKey> {
    let mut at = 2;
    std::iter::from_fn(move || {
        while at < arguments {
            let (word, value) = (argument(at)?, at + 1);
            let is = |name: &[u8]| word.eq_ignore_ascii_case(name);
            let (stores, reads) = (is(b"STORE"), is(b"BY") || is(b"GET"));
            at = value + if is(b"LIMIT") { 2 } else { usize::from(stores || reads) };
            if stores && value < arguments {
                return Some(SortKey::Stored(value));
            }
            if reads && argument(value).is_some_and(|pattern| pattern.contains(&b'*')) {
                return Some(SortKey::Pattern);
            }
        }
        None
    })
}

/// Returns whether all keys of a pattern are in this slot: its hash tag ends before the element.
pub fn is_pattern_within(pattern: &[u8], slot: Slot) -> bool {
    let is_wild = |byte: &u8| matches!(byte, b'*' | b'?' | b'[' | b'\\');
    let fixed = match pattern.iter().position(is_wild) {
        Some(at) => &pattern[..at],
        None => return slot_of(pattern) == slot,
    };
    hash_tag(fixed).len() < fixed.len() && slot_of(fixed) == slot
}

/// The elements of a value that is sorted.
#[derive(Clone, Debug, Default)]
pub struct SortElements {
    bytes: Vec<u8>,
    /// End of each element in `bytes`.
    ends: Vec<usize>,
}

impl SortElements {
    /// Adds an element behind the others.
    pub fn push(&mut self, element: &[u8]) {
        self.bytes.extend_from_slice(element);
        self.ends.push(self.bytes.len());
    }

    /// Removes all elements.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }

    /// Returns the elements in the order in which they were added.
    pub fn list(&self) -> Vec<&[u8]> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, end)| &self.bytes[start..*end]).collect()
    }
}

impl<'a> SortQuery<'a> {
    /// Parses the options behind the key. `is_near` tells which patterns only name keys that are on
    /// the same server as the key.
    pub fn parse(
        options: &[&'a [u8]],
        may_store: bool,
        is_near: impl Fn(&[u8]) -> bool,
    ) -> Result<SortQuery<'a>, ArgumentError> {
        let mut query = SortQuery {
            by: SortWeight::Element,
            is_unsorted: false,
            is_descending: false,
            is_textual: false,
            limit: [0, -1],
            outputs: Vec::new(),
            stored: None,
        };
        let mut at = 0;
        while let Some(word) = options.get(at) {
            let behind = &options[at + 1..];
            at += match (&word.to_ascii_uppercase()[..], behind) {
                (b"ASC", _) => query.set_descending(false),
                (b"DESC", _) => query.set_descending(true),
                (b"ALPHA", _) => {
                    query.is_textual = true;
                    1
                }
                (b"LIMIT", [skipped, count, ..]) => {
                    let number = |word| parse_integer(word).ok_or(ArgumentError::NotAnInteger);
                    query.limit = [number(skipped)?, number(count)?];
                    3
                }
                (b"STORE", [_, ..]) if may_store => {
                    query.stored = Some(at + 1);
                    2
                }
                (b"BY", [pattern, ..]) => query.take_weight(pattern, &is_near)?,
                (b"GET", [pattern, ..]) => query.take_output(pattern, &is_near)?,
                _ => return Err(ArgumentError::Syntax),
            };
        }
        Ok(query)
    }

    fn set_descending(&mut self, is_descending: bool) -> usize {
        self.is_descending = is_descending;
        1
    }

    fn take_weight(
        &mut self,
        pattern: &'a [u8],
        is_near: impl Fn(&[u8]) -> bool,
    ) -> Result<usize, ArgumentError> {
        match KeyPattern::parse(pattern) {
            Some(_) if !is_near(pattern) => return Err(denied("BY")),
            Some(pattern) => self.by = SortWeight::Values(pattern),
            None => self.is_unsorted = true,
        }
        Ok(2)
    }

    fn take_output(
        &mut self,
        pattern: &'a [u8],
        is_near: impl Fn(&[u8]) -> bool,
    ) -> Result<usize, ArgumentError> {
        let output = match KeyPattern::parse(pattern) {
            _ if pattern == b"#" => SortOutput::Element,
            _ if !is_near(pattern) => return Err(denied("GET")),
            Some(pattern) => SortOutput::Value(pattern),
            None => SortOutput::Nothing,
        };
        self.outputs.push(output);
        Ok(2)
    }

    /// Sorts a set by its members, if it would be stored in no order.
    pub fn order_set(&mut self) {
        if self.is_unsorted && self.stored.is_some() {
            (self.is_unsorted, self.is_textual) = (false, true);
            self.by = SortWeight::Element;
        }
    }

    /// Returns whether the elements stay in the order of the list or sorted set.
    pub fn is_unsorted(&self) -> bool {
        self.is_unsorted
    }

    /// Returns whether the order is reversed.
    pub fn is_descending(&self) -> bool {
        self.is_descending
    }

    /// Returns the keys of the weights, if elements are sorted by values of keys.
    pub fn weights(&self) -> Option<KeyPattern<'a>> {
        match self.by {
            SortWeight::Values(pattern) if !self.is_unsorted => Some(pattern),
            SortWeight::Values(_) | SortWeight::Element => None,
        }
    }

    /// Returns whether values of other keys are read.
    pub fn reads_values(&self) -> bool {
        let is_value = |output: &SortOutput<'_>| matches!(output, SortOutput::Value(_));
        self.weights().is_some() || self.outputs.iter().any(is_value)
    }

    /// Returns the positions of the result among so many elements in order.
    pub fn window(&self, count: usize) -> Range<usize> {
        let within = |number: i64| usize::try_from(number).unwrap_or(usize::MAX).min(count);
        let [skipped, limit] = self.limit;
        let start = within(skipped.max(0));
        let length = if limit < 0 { count } else { within(limit) };
        start..start.saturating_add(length).min(count)
    }

    /// Returns the positions of the elements of the result, in order. `weights` are the values of the
    /// keys of [`SortQuery::weights`].
    pub fn order(
        &self,
        elements: &[&[u8]],
        weights: Option<&[Option<Vec<u8>>]>,
    ) -> Result<Vec<usize>, ArgumentError> {
        assert!(weights.is_none_or(|it| it.len() == elements.len()), "each element has a weight");
        let window = self.window(elements.len());
        if self.is_unsorted {
            return Ok(window.collect());
        }
        let weight = |at: usize| match weights {
            Some(weights) => weights[at].as_deref(),
            None => Some(elements[at]),
        };
        let directed = |order: Ordering| if self.is_descending { order.reverse() } else { order };
        if self.is_textual {
            let mut all: Vec<(Option<&[u8]>, usize)> =
                (0..elements.len()).map(|at| (weight(at), at)).collect();
            sort_window(&mut all, window, |(a, first), (b, second)| {
                directed(a.cmp(b)).then(first.cmp(second))
            });
            return Ok(all.into_iter().map(|(_, at)| at).collect());
        }
        let number = |at: usize| Some((weight(at).map_or(Some(0.0), parse_weight)?, at));
        let all: Option<Vec<(f64, usize)>> = (0..elements.len()).map(number).collect();
        let mut all = all.ok_or(NOT_NUMBERS)?;
        sort_window(&mut all, window, |(a, first), (b, second)| {
            let order = a.partial_cmp(b).unwrap_or(Ordering::Equal);
            let order = order.then_with(|| elements[*first].cmp(elements[*second]));
            directed(order).then(first.cmp(second))
        });
        Ok(all.into_iter().map(|(_, at)| at).collect())
    }
}

const NOT_NUMBERS: ArgumentError =
    ArgumentError::Because(Cow::Borrowed("ERR One or more scores can't be converted into double"));

fn denied(option: &str) -> ArgumentError {
    ArgumentError::Because(Cow::Owned(format!(
        "ERR {option} option of SORT denied in Cluster mode when keys formed by the pattern may be \
         in different slots."
    )))
}

/// Sorts only the elements within a range of the result, and drops the others.
fn sort_window<T>(
    all: &mut Vec<T>,
    window: Range<usize>,
    compare: impl Fn(&T, &T) -> Ordering + Copy,
) {
    assert!(window.end <= all.len(), "a result has no more elements than there are");
    if window.end < all.len() {
        all.select_nth_unstable_by(window.end, compare);
        all.truncate(window.end);
    }
    if window.start > 0 && window.start < all.len() {
        all.select_nth_unstable_by(window.start, compare);
    }
    all.drain(..window.start);
    all.sort_unstable_by(compare);
}

/// Parses the number by which an element is sorted: a score, which as in Redis ends at a zero byte.
fn parse_weight(text: &[u8]) -> Option<f64> {
    parse_score(text.split(|byte| *byte == 0).next().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse<'a>(words: &[&'a str]) -> Result<SortQuery<'a>, ArgumentError> {
        let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
        SortQuery::parse(&words, true, |pattern| pattern.starts_with(b"{a}"))
    }

    #[test]
    fn patterns_have_a_place_and_perhaps_a_field() {
        for (pattern, parts) in [
            ("w_*", Some(("w_", "", None))),
            ("*", Some(("", "", None))),
            ("a*b*c", Some(("a", "b*c", None))),
            ("h*->f", Some(("h", "", Some("f")))),
            ("h*x->f->g", Some(("h", "x", Some("f->g")))),
            ("h*->", Some(("h", "->", None))),
            ("a->b*c", Some(("a->b", "c", None))),
            ("nosort", None),
            ("#", None),
            ("", None),
            ("a\0*", None),
            ("a*\0->f", Some(("a", "\0->f", None))),
        ] {
            let parsed = KeyPattern::parse(pattern.as_bytes());
            let parts =
                parts.map(|(prefix, suffix, field): (&str, &str, Option<&str>)| KeyPattern {
                    prefix: prefix.as_bytes(),
                    suffix: suffix.as_bytes(),
                    field: field.map(str::as_bytes),
                });
            assert_eq!(parsed, parts, "{pattern:?}");
        }
        let pattern = KeyPattern::parse(b"w_*x->f").unwrap();
        assert_eq!(pattern.key(b"17"), b"w_17x");
    }

    #[test]
    fn limits_are_those_of_redis() {
        for (limit, count, window) in [
            (["0", "-1"], 5, 0..5),
            (["1", "2"], 5, 1..3),
            (["-3", "2"], 5, 0..2),
            (["4", "10"], 5, 4..5),
            (["5", "1"], 5, 5..5),
            (["9", "-5"], 5, 5..5),
            (["2", "0"], 5, 2..2),
            (["0", "-1"], 0, 0..0),
            (["9223372036854775807", "9223372036854775807"], 3, 3..3),
            (["1", "9223372036854775807"], 3, 1..3),
        ] {
            let query = parse(&["LIMIT", limit[0], limit[1]]).unwrap();
            assert_eq!(query.window(count), window, "{limit:?} of {count}");
        }
    }

    #[test]
    fn options_are_refused_where_redis_refuses_them() {
        for words in [&["LIMIT", "1"][..], &["BY"], &["GET"], &["STORE"], &["x"], &["ASC", "LIMIT"]]
        {
            assert_eq!(parse(words).err(), Some(ArgumentError::Syntax), "{words:?}");
        }
        assert_eq!(parse(&["LIMIT", "x", "1"]).err(), Some(ArgumentError::NotAnInteger));
        assert_eq!(
            SortQuery::parse(&[b"STORE", b"a"], false, |_| true).err(),
            Some(ArgumentError::Syntax)
        );
        let is_denied = |words: &[&str]| matches!(parse(words), Err(ArgumentError::Because(_)));
        assert!(
            is_denied(&["BY", "w_*"]) && is_denied(&["GET", "w_*"]) && is_denied(&["GET", "x"])
        );
        let query = parse(&["BY", "x", "GET", "#", "GET", "{a}*", "GET", "{a}", "STORE", "to"]);
        let query = query.unwrap();
        assert!(query.is_unsorted() && query.weights().is_none() && query.reads_values());
        assert_eq!(query.stored, Some(9));
        assert!(matches!(
            query.outputs[..],
            [SortOutput::Element, SortOutput::Value(_), SortOutput::Nothing]
        ));
    }

    /// Recorded from Valkey 9.1.2.
    #[test]
    fn weights_are_scores_up_to_a_zero_byte() {
        for (text, weight) in [
            (&b"1\0x"[..], Some(1.0)),
            (b"\0", None),
            (b"", None),
            (b" 1", None),
            (b"+inf", Some(f64::INFINITY)),
            (b"nan", None),
            (b"1e400", None),
            (b"2e-324", None),
        ] {
            assert_eq!(parse_weight(text), weight, "{}", text.escape_ascii());
        }
    }

    /// Returns the order by a stable sort of all elements.
    fn naive(
        query: &SortQuery<'_>,
        elements: &[&[u8]],
        weights: Option<&[Option<Vec<u8>>]>,
    ) -> Vec<usize> {
        let number = |text: &[u8]| std::str::from_utf8(text).unwrap().parse::<i64>().unwrap();
        let mut all: Vec<usize> = (0..elements.len()).collect();
        all.sort_by(|&a, &b| {
            let order = match (weights, query.is_textual) {
                (None, true) => elements[a].cmp(elements[b]),
                (None, false) => number(elements[a]).cmp(&number(elements[b])),
                (Some(weights), true) => weights[a].cmp(&weights[b]),
                (Some(weights), false) => {
                    let weight = |at: usize| weights[at].as_deref().map_or(0, number);
                    weight(a).cmp(&weight(b)).then_with(|| elements[a].cmp(elements[b]))
                }
            };
            if query.is_descending { order.reverse() } else { order }
        });
        all[query.window(elements.len())].to_vec()
    }

    #[test]
    fn a_part_of_the_order_is_that_part_of_the_whole_order() {
        let mut random = fastrand::Rng::with_seed(5);
        for _ in 0..3_000 {
            let count = random.usize(..12);
            let mut text = |_| random.i64(-4..12).to_string().into_bytes();
            let owned: Vec<Vec<u8>> = (0..count).map(&mut text).collect();
            let weights: Vec<Option<Vec<u8>>> = (0..count).map(|at| Some(text(at))).collect();
            let elements: Vec<&[u8]> = owned.iter().map(Vec::as_slice).collect();
            let weights: Vec<Option<Vec<u8>>> =
                weights.into_iter().map(|it| it.filter(|_| random.u8(..5) > 0)).collect();
            let mut words = vec![];
            if random.bool() {
                words.extend([
                    "LIMIT",
                    ["0", "2", "5"][random.usize(..3)],
                    ["1", "4", "-1"][random.usize(..3)],
                ]);
            }
            words.extend(random.bool().then_some("DESC"));
            words.extend(random.bool().then_some("ALPHA"));
            let query = parse(&words).unwrap();
            let weights = random.bool().then_some(&weights[..]);
            let order = query.order(&elements, weights).unwrap();
            assert_eq!(order, naive(&query, &elements, weights), "{words:?} {owned:?} {weights:?}");
        }
    }
}
