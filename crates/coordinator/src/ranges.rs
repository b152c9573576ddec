//! Lists of hash ranges.

use types::HashRange;

/// Returns the ranges that are in both lists.
pub(crate) fn intersection(one: &[HashRange], other: &[HashRange]) -> Vec<HashRange> {
    let with_other = |&range: &HashRange| other.iter().filter_map(move |o| range.intersection(*o));
    one.iter().flat_map(with_other).collect()
}

/// Returns the parts of the first list that are not in the second.
pub(crate) fn without(ranges: &[HashRange], taken: &[HashRange]) -> Vec<HashRange> {
    taken.iter().fold(ranges.to_vec(), |rest, &taken| {
        rest.iter().flat_map(|range| range.without(taken)).flatten().collect()
    })
}
