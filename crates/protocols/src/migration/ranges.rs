//! Arithmetic on ascending lists of disjoint ranges.

use types::HashRange;

/// Returns the hashes that both lists contain.
pub(super) fn intersection(left: &[HashRange], right: &[HashRange]) -> Vec<HashRange> {
    let mut both = Vec::new();
    for &range in left {
        both.extend(right.iter().filter_map(|&other| range.intersection(other)));
    }
    both
}

/// Returns the hashes of `list` that are not in `taken`.
pub(super) fn without(list: &[HashRange], taken: &[HashRange]) -> Vec<HashRange> {
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
    fn lists_are_cut_and_joined_as_sets_of_hashes() {
        let kept = list(&[(0, 9), (20, 29)]);
        let remaining = list(&[(5, 22), (28, 40)]);
        assert_eq!(intersection(&kept, &remaining), list(&[(5, 9), (20, 22), (28, 29)]));
        assert_eq!(without(&kept, &remaining), list(&[(0, 4), (23, 27)]));
        assert_eq!(without(&kept, &[]), kept);
        assert_eq!(merged(list(&[(0, 4), (5, 9), (11, 12)])), list(&[(0, 9), (11, 12)]));
        let end = list(&[(0, 4), (5, u64::MAX)]);
        assert_eq!(merged(end), list(&[(0, u64::MAX)]));
    }
}
