//! Arithmetic on ascending lists of disjoint ranges.

use types::HashRange;

/// Returns whether the list is ascending and contains no hash twice.
pub(super) fn are_disjoint(list: &[HashRange]) -> bool {
    list.is_sorted_by(|one, next| one.last() < next.first())
}

/// Returns the hashes of `list` that are not in `taken`. `list` is disjoint; `taken`, which may
/// come from another process, need not be.
pub(super) fn without(list: &[HashRange], taken: &[HashRange]) -> Vec<HashRange> {
    assert!(are_disjoint(list), "a hash would be forgotten twice: {list:?}");
    let mut rest = list.to_vec();
    for &cut in taken {
        rest = rest.iter().flat_map(|range| range.without(cut)).flatten().collect();
    }
    rest
}

/// Returns the same hashes in as few ranges as possible.
pub(super) fn merged(list: impl IntoIterator<Item = HashRange>) -> Vec<HashRange> {
    let mut merged: Vec<HashRange> = Vec::new();
    for range in list {
        assert!(
            merged.last().is_none_or(|last| last.last() < range.first()),
            "ranges are merged in ascending order"
        );
        match merged.last_mut() {
            Some(last) if last.last().0.checked_add(1) == Some(range.first().0) => {
                *last = HashRange::new(last.first(), range.last());
            }
            _ => merged.push(range),
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::KeyHash;

    fn list(ends: &[(u64, u64)]) -> Vec<HashRange> {
        ends.iter().map(|&(first, last)| HashRange::new(KeyHash(first), KeyHash(last))).collect()
    }

    #[test]
    #[should_panic(expected = "a hash would be forgotten twice")]
    fn a_list_that_contains_a_hash_twice_is_not_cut() {
        without(&list(&[(0, 9), (5, 12)]), &[]);
    }

    #[test]
    fn a_list_may_be_cut_by_ranges_that_overlap() {
        let kept = list(&[(0, 99)]);
        let unneeded = without(&kept, &list(&[(10, 30), (20, 40)]));
        assert_eq!(unneeded, list(&[(0, 9), (41, 99)]));
        assert_eq!(without(&kept, &unneeded), list(&[(10, 40)]));
    }

    #[test]
    fn lists_are_cut_and_joined_as_sets_of_hashes() {
        let kept = list(&[(0, 9), (20, 29)]);
        let remaining = list(&[(5, 22), (28, 40)]);
        assert_eq!(without(&kept, &remaining), list(&[(0, 4), (23, 27)]));
        assert_eq!(without(&kept, &[]), kept);
        assert_eq!(merged(list(&[(0, 4), (5, 9), (11, 12)])), list(&[(0, 9), (11, 12)]));
        let end = list(&[(0, 4), (5, u64::MAX)]);
        assert_eq!(merged(end), list(&[(0, u64::MAX)]));
    }
}
