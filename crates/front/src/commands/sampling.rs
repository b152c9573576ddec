//! Random elements of a collection, for `HRANDFIELD`, `SRANDMEMBER` and `SPOP`.

use super::Refusal;
use super::numbers::parse_integer_within;
use fastrand::Rng;

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
