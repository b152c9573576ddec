//! Random elements of a collection, for `HRANDFIELD`, `SRANDMEMBER`, `SPOP` and `ZRANDMEMBER`.
//!
//! A sample of a split value reads random pages only. Pages have different numbers of elements, so
//! each page has the same number of places, more than any page has elements, and a sample draws one
//! place per page: the elements that it hits are all equally likely. If too few places are occupied,
//! the whole value is read.

use super::numbers::parse_integer_within;
use super::{Call, Done, Refusal};
use crate::core::elements::Touched;
use fastrand::Rng;
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use types::ValueType;
use values::{Damaged, Element, Elements, Root};

/// Most elements of a sample that may repeat. Redis has no limit, and builds the reply however long
/// it is.
const REPEATED_MAX: u64 = 1 << 20;

/// The number of random elements that a command asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sample {
    /// Distinct elements; fewer if the collection has fewer.
    Distinct(u64),
    /// Elements that may repeat.
    Repeated(u64),
}

impl Sample {
    /// Parses the argument `count`: a negative number asks for elements that may repeat.
    pub(super) fn parse(count: &[u8]) -> Result<Sample, Refusal> {
        let count = parse_integer_within(count, -i64::MAX..=i64::MAX)?;
        Ok(match u64::try_from(count) {
            Ok(count) => Sample::Distinct(count),
            Err(_) => Sample::Repeated(count.unsigned_abs()),
        })
    }

    /// Draws positions among `length` elements.
    pub(super) fn draw(self, length: usize, random: &mut Rng) -> Result<Vec<usize>, Refusal> {
        Ok(match self {
            _ if length == 0 => Vec::new(),
            Sample::Repeated(count) if count > REPEATED_MAX => return Err(TOO_MANY),
            Sample::Repeated(count) => (0..count).map(|_| random.usize(..length)).collect(),
            Sample::Distinct(count) if count >= length as u64 => (0..length).collect(),
            Sample::Distinct(count) => distinct(count as usize, length, random),
        })
    }
}

/// Pages that are read per wanted element, relative to the expected number of tries.
const SPARE: u64 = 3;

/// Places of a page above four times its average number of elements.
const SPARE_PLACES: u64 = 8;

/// A sample of a value, which may be split.
pub(super) struct PageSample {
    sample: Sample,
    random: RefCell<Rng>,
    /// Places of each page.
    places: Cell<usize>,
}

impl PageSample {
    pub(super) fn new(sample: Sample, random: Rng) -> PageSample {
        PageSample { sample, random: RefCell::new(random), places: Cell::new(0) }
    }

    /// Chooses the pages that are read.
    pub(super) fn choose(&self, root: &Root) -> Vec<u32> {
        let (Sample::Distinct(wanted) | Sample::Repeated(wanted)) = self.sample;
        let pages = u64::from(root.pages);
        let places = root.count.div_ceil(pages).saturating_mul(4).saturating_add(SPARE_PLACES);
        let tries = places.saturating_mul(pages) / root.count + 1;
        let chosen = wanted.saturating_mul(tries).saturating_mul(SPARE).saturating_add(tries);
        self.places.set(usize::try_from(places).unwrap_or(usize::MAX));
        if chosen >= pages / 2 {
            return (0..root.pages).collect();
        }
        let mut random = self.random.borrow_mut();
        let mut drawn = BTreeSet::new();
        while (drawn.len() as u64) < chosen {
            drawn.insert(random.u32(..root.pages));
        }
        drawn.into_iter().collect()
    }

    /// Draws the sample from the elements that were read. `None`: they are too few.
    pub(super) fn draw<'e>(
        &self,
        elements: &Elements<'e>,
    ) -> Result<Option<Vec<Element<'e>>>, Refusal> {
        let mut random = self.random.borrow_mut();
        if elements.is_whole() {
            let all = elements.by_page().collect::<Result<Vec<_>, Damaged>>()?.concat();
            let drawn = self.sample.draw(all.len(), &mut random)?;
            return Ok(Some(drawn.into_iter().map(|place| all[place]).collect()));
        }
        let mut hit = Vec::new();
        for page in elements.by_page() {
            let page = page?;
            hit.extend(page.get(random.usize(..self.places.get().max(page.len()))));
        }
        let (Sample::Distinct(wanted) | Sample::Repeated(wanted)) = self.sample;
        random.shuffle(&mut hit);
        let is_enough = hit.len() as u64 >= wanted;
        hit.truncate(usize::try_from(wanted).unwrap_or(usize::MAX));
        Ok(is_enough.then_some(hit))
    }
}

/// Replies with a sample of the value under argument 1.
pub(super) fn reply_with_sample(
    call: &mut Call<'_>,
    value_type: ValueType,
    sample: Sample,
    reply_with: impl Fn(&mut resp::ReplyWriter<'_>, &[Element<'_>]) -> Result<(), Damaged>,
) -> Done {
    let sample = PageSample::new(sample, call.random());
    let choose = |root: &Root| sample.choose(root);
    for touched in [Touched::Pages(&choose), Touched::All] {
        let (key, table) = (call.key(1), call.session.status.table);
        let reply = &mut call.reply;
        let read = |elements: &Elements<'_>| {
            let drawn = sample.draw(elements)?;
            let replied = drawn.map(|drawn| reply_with(reply, &drawn)).transpose()?;
            Ok(replied.is_some())
        };
        if call.backend.read_elements(table, key, value_type, touched, read)? {
            return Ok(());
        }
    }
    unreachable!("the whole value has every sample")
}

const TOO_MANY: Refusal =
    Refusal::because("ERR value is out of range: at most 1048576 elements that may repeat");

/// Draws distinct positions below `length` in random order, by the first steps of a Fisher-Yates
/// shuffle.
fn distinct(count: usize, length: usize, random: &mut Rng) -> Vec<usize> {
    debug_assert!(count <= length, "{count} of {length}");
    let mut places: Vec<usize> = (0..length).collect();
    for at in 0..count {
        places.swap(at, random.usize(at..length));
    }
    places.truncate(count);
    places
}

/// Parses the count of `SPOP`, which must not be negative.
pub(super) fn parse_count(count: &[u8]) -> Result<u64, Refusal> {
    let range = Refusal::because("ERR value is out of range, must be positive");
    super::parse_integer(count).and_then(|count| u64::try_from(count).ok()).ok_or(range)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn distinct_samples_have_no_element_twice_and_reach_every_one() {
        let mut random = Rng::with_seed(5);
        let mut reached = BTreeSet::new();
        for count in [1, 2, 9, 10, 11, 1000] {
            for _ in 0..200 {
                let drawn = Sample::Distinct(count).draw(10, &mut random).unwrap();
                let different: BTreeSet<usize> = drawn.iter().copied().collect();
                assert_eq!(drawn.len() as u64, count.min(10));
                assert_eq!(different.len(), drawn.len());
                reached.extend(different);
            }
        }
        assert!(reached.into_iter().eq(0..10));
    }

    #[test]
    fn repeated_samples_have_any_length() {
        let mut random = Rng::with_seed(6);
        let drawn = Sample::Repeated(500).draw(3, &mut random).unwrap();
        assert_eq!(drawn.len(), 500);
        assert_eq!(drawn.into_iter().collect::<BTreeSet<_>>().len(), 3);
        assert_eq!(Sample::Repeated(u64::MAX).draw(0, &mut random), Ok(vec![]));
        assert_eq!(Sample::Repeated(REPEATED_MAX + 1).draw(1, &mut random), Err(TOO_MANY));
        assert!(TOO_MANY.text("").contains(&REPEATED_MAX.to_string()));
    }
}
