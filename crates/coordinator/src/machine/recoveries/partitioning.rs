//! Division of a dead server's ranges among recovery masters.

use super::load_profiles::Loads;
use std::cmp::Reverse;
use types::HashRange;
use types::ServerId;

/// Divides ranges into recovery partitions, and assigns each to a recovery master.
///
/// A range becomes as many partitions of equal load as its share of the total load requires,
/// rounded up. The heaviest partition goes first, to the least loaded master. One range thus
/// becomes one partition per master, and many ranges become hardly more. Tablets are never
/// merged; dividing each range among all masters would exhaust their number after a few deaths.
/// `room` limits the number of additional ranges.
pub(super) fn divide(
    loads: &Loads,
    ranges: &[HashRange],
    masters: &[ServerId],
    mut room: usize,
) -> Vec<(HashRange, ServerId)> {
    assert!(!masters.is_empty(), "ranges are divided among no masters");
    let before = room;
    let total: u128 = ranges.iter().map(|&range| loads.of(range)).sum();
    let mut parts = Vec::new();
    for &range in ranges {
        // A load is below 2^115, and there may be 8,192 masters.
        let wanted = (masters.len() as u128 * loads.of(range)).div_ceil(total) as usize;
        let count = wanted.min(slots(range)).min(room + 1);
        assert!(count > 0, "{range} has a load and becomes no partition");
        room -= count - 1;
        match count {
            1 => parts.push(range),
            _ => parts.extend(loads.cut(range, count)),
        }
    }
    assert!(parts.len() - ranges.len() <= before, "more borders than there is room for");
    let mut shares: Vec<(u128, ServerId)> = masters.iter().map(|&master| (0, master)).collect();
    let mut given: Vec<(HashRange, ServerId)> = parts.iter().map(|&p| (p, masters[0])).collect();
    // Partitions of about equal load keep their order, so the result is deterministic.
    let mut by_load: Vec<usize> = (0..parts.len()).collect();
    by_load.sort_by_key(|&part| Reverse((loads.of(parts[part]) * 256 + total / 2) / total));
    for part in by_load {
        let least = shares.iter_mut().min_by_key(|(load, _)| *load);
        let (share, master) = least.expect("at least one recovery master takes partitions");
        *share += loads.of(parts[part]);
        given[part].1 = *master;
    }
    given
}

/// Returns the number of partitions that a range allows without splitting a slot.
fn slots(range: HashRange) -> usize {
    let (first, last) = range.slots();
    if range.is_whole_slots() { usize::from(last.0 - first.0) + 1 } else { 1 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::Slot;
    use wire::control::LoadProfile;

    fn divide(
        ranges: &[HashRange],
        masters: &[ServerId],
        room: usize,
    ) -> Vec<(HashRange, ServerId)> {
        super::divide(&Loads::new(None), ranges, masters, room)
    }

    fn slots_of(first: u16, last: u16) -> HashRange {
        HashRange::of_slots(Slot(first), Slot(last))
    }

    fn masters(count: u32) -> Vec<ServerId> {
        (1..=count).map(ServerId).collect()
    }

    fn check(ranges: &[HashRange], parts: &[(HashRange, ServerId)]) {
        let width = |range: HashRange| u128::from(range.last().0 - range.first().0) + 1;
        let covered: u128 = parts.iter().map(|part| width(part.0)).sum();
        assert_eq!(
            covered,
            ranges.iter().map(|&range| width(range)).sum(),
            "all ranges are assigned"
        );
        for (at, (part, _)) in parts.iter().enumerate() {
            assert!(ranges.iter().any(|range| range.covers(*part)), "within one range");
            assert!(!parts[..at].iter().any(|(other, _)| other.overlaps(*part)), "once");
        }
    }

    #[test]
    fn one_range_becomes_one_part_for_each_master() {
        let parts = divide(&[HashRange::ALL], &masters(3), 100);
        check(&[HashRange::ALL], &parts);
        let who: Vec<u32> = parts.iter().map(|part| part.1.0).collect();
        assert_eq!(who, [1, 2, 3]);
        assert!(parts.iter().all(|part| part.0.is_whole_slots()));
    }

    #[test]
    fn many_ranges_become_hardly_more() {
        let ranges: Vec<HashRange> = (0..100).map(|n| slots_of(100 * n, 100 * n + 50)).collect();
        let parts = divide(&ranges, &masters(10), 1000);
        check(&ranges, &parts);
        assert_eq!(parts.len(), 100);
        for master in masters(10) {
            assert_eq!(parts.iter().filter(|part| part.1 == master).count(), 10);
        }
    }

    #[test]
    fn a_range_is_not_divided_further_than_its_slots_and_the_room_allow() {
        assert_eq!(divide(&[slots_of(7, 8)], &masters(5), 100).len(), 2);
        assert_eq!(divide(&[HashRange::ALL], &masters(5), 0).len(), 1);
        assert_eq!(divide(&[slots_of(0, 9), slots_of(20, 29)], &masters(8), 2).len(), 4);
        let half_a_slot = HashRange::new(Slot(3).first_hash(), types::KeyHash((3 << 50) + 9));
        assert_eq!(divide(&[half_a_slot], &masters(5), 100), [(half_a_slot, ServerId(1))]);
    }

    #[test]
    fn masters_get_equal_loads_not_equal_widths() {
        let mut slots = vec![0; 16_384];
        slots[..1000].fill(1 << 20);
        slots[9000] = 500 << 20;
        let loads = Loads::new(Some(&LoadProfile::of(&slots)));
        let ranges = [slots_of(0, 8191), slots_of(8192, 16_383)];
        let parts = super::divide(&loads, &ranges, &masters(3), 100);
        check(&ranges, &parts);
        for master in masters(3) {
            let ranges = parts.iter().filter(|part| part.1 == master).map(|part| part.0);
            let share: u128 = ranges.map(|range| loads.of(range)).sum();
            let whole = loads.of(HashRange::ALL);
            assert!(share * 10 > whole * 3 && share * 10 < whole * 4, "{share} of {whole}");
        }
    }
}
