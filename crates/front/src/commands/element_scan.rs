//! `HSCAN`, `SSCAN` and `ZSCAN`. A packed value is in one record, so one step returns all of its elements, and
//! the cursor is 0 after it, as Redis does with its compact encodings. A step of a split value returns
//! the elements of some pages. The order of pages guarantees that a scan returns every element that
//! exists from its first to its last step, however the pages change.

use super::glob::BoundedPattern;
use super::{Call, Done, Refusal, parse_integer, parse_unsigned, refused, uppercase_is};
use crate::core::elements::Touched;
use std::cell::Cell;
use types::ValueType;
use values::{Damaged, Element, Root, page_at, score_of};

/// The options of `HSCAN`, `SSCAN` and `ZSCAN`.
#[derive(Clone, Copy, Debug)]
pub(super) struct ElementScanOptions<'a> {
    /// Pattern of the names that are returned; `None` for all.
    pub(super) pattern: Option<&'a [u8]>,
    /// Values or scores are left out.
    pub(super) without_values: bool,
    /// Number of elements that a step returns, about.
    count: u64,
}

impl Default for ElementScanOptions<'_> {
    fn default() -> Self {
        ElementScanOptions { pattern: None, without_values: false, count: 10 }
    }
}

impl<'a> ElementScanOptions<'a> {
    /// Parses the options of a command on values of this type.
    pub(super) fn parse(
        words: &[&'a [u8]],
        value_type: ValueType,
    ) -> Result<ElementScanOptions<'a>, Refusal> {
        const ONLY_FOR_HASHES: &str = "ERR NOVALUES option can only be used in HSCAN";
        const ONLY_FOR_SORTED_SETS: &str = "ERR NOSCORES option can only be used in ZSCAN";
        let mut options = ElementScanOptions::default();
        let mut words = words.iter();
        while let Some(word) = words.next() {
            if uppercase_is(word, b"NOVALUES") {
                if value_type != ValueType::Hash {
                    return Err(Refusal::because(ONLY_FOR_HASHES));
                }
                options.without_values = true;
            } else if uppercase_is(word, b"NOSCORES") {
                if value_type != ValueType::SortedSet {
                    return Err(Refusal::because(ONLY_FOR_SORTED_SETS));
                }
                options.without_values = true;
            } else if uppercase_is(word, b"MATCH") {
                let pattern = words.next().ok_or(Refusal::Syntax)?;
                options.pattern = (*pattern != b"*").then_some(pattern);
            } else if uppercase_is(word, b"COUNT") {
                let count = parse_integer(words.next().ok_or(Refusal::Syntax)?);
                let count = count.ok_or(Refusal::NotAnInteger)?;
                let count = u64::try_from(count).ok().filter(|count| *count > 0);
                options.count = count.ok_or(Refusal::Syntax)?;
            } else {
                return Err(Refusal::Syntax);
            }
        }
        Ok(options)
    }
}

/// Most pages that one step reads.
const PAGES_PER_STEP: u64 = 1024;

/// Executes `HSCAN`, `SSCAN` or `ZSCAN`: `key cursor [MATCH pattern] [COUNT count] [NOVALUES |
/// NOSCORES]`.
pub(super) fn scan_elements(call: &mut Call<'_>, value_type: ValueType) -> Done {
    let cursor = parse_unsigned(call.args[2]).ok_or_else(|| refused("ERR invalid cursor"))?;
    // Options are errors only if there is a value.
    let options = ElementScanOptions::parse(&call.args[3..], value_type);
    let count = options.as_ref().map_or(1, |options| options.count);
    let next = Cell::new(0);
    let choose = |root: &Root| {
        let pages = count.saturating_mul(u64::from(root.pages)) / root.count;
        let (mut place, mut chosen) = (place_of(cursor), Vec::new());
        for _ in 0..pages.clamp(1, PAGES_PER_STEP) {
            let (page, after) = page_at(place, root.pages);
            chosen.push(page);
            place = after;
            if place == 0 {
                break;
            }
        }
        next.set(cursor_at(place));
        chosen
    };
    call.reply_with_elements(value_type, Touched::Pages(&choose), |reply, elements| {
        let mut found = Vec::new();
        let mut without_values = value_type == ValueType::Set;
        if elements.count() > 0 {
            let options = options?;
            without_values |= options.without_values;
            let pattern = options.pattern.map(BoundedPattern::new);
            for element in elements.iter() {
                let element = element?;
                if pattern.as_ref().is_none_or(|pattern| pattern.matches(element.name)) {
                    found.push(element);
                }
            }
            pattern.map_or(Ok(()), |pattern| pattern.check())?;
        }
        let scores = scores_of(&found, value_type)?;
        reply.array(2);
        reply.bulk(itoa::Buffer::new().format(next.get()).as_bytes());
        reply.array(found.len() * if without_values { 1 } else { 2 });
        for (at, Element { name, value }) in found.iter().enumerate() {
            reply.bulk(name);
            match scores.get(at) {
                _ if without_values => {}
                Some(score) => reply.double_as_bulk(*score),
                None => reply.bulk(value),
            }
        }
        Ok(())
    })
}

/// Returns the scores of the members of a sorted set; none of another value.
fn scores_of(elements: &[Element<'_>], value_type: ValueType) -> Result<Vec<f64>, Damaged> {
    match value_type {
        ValueType::SortedSet => elements.iter().map(|element| score_of(element.value)).collect(),
        ValueType::String
        | ValueType::Hash
        | ValueType::Set
        | ValueType::List
        | ValueType::Stream => Ok(Vec::new()),
    }
}

/// Returns the place of a scan for a cursor. Cursors have the bits of places in reverse order, because
/// some clients cannot read large numbers.
fn place_of(cursor: u64) -> u64 {
    cursor.reverse_bits()
}

fn cursor_at(place: u64) -> u64 {
    place.reverse_bits()
}
