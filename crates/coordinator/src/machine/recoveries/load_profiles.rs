//! Load profiles (RAMCloud: wills): the expected recovery cost of each server's ranges.
//!
//! Only load balance depends on them (`docs/design/replication.md`, "Wills").

use crate::configuration::{ClusterConfiguration, Edit};
use crate::records::LoadProfileRecord;
use types::{HashRange, SLOT_COUNT, ServerId, Slot};
use wire::control::LoadProfile;

/// A profile is persisted if at least this fraction of the load (1/16) has moved to other slots.
const SHARE_MOVED: u128 = 16;

/// A slot unknown to the profile gets this fraction of the mean load (1/16): it may have arrived
/// since.
const SHARE_UNKNOWN: u64 = 16;

/// Key hashes per slot.
const SLOT_WIDTH: u128 = (1 << 64) / SLOT_COUNT as u128;

/// Returns the change that records a server's load profile, if it differs enough from the last
/// one.
pub(in crate::machine) fn changed_profile(
    server: ServerId,
    will: LoadProfile,
    configuration: &ClusterConfiguration,
) -> Option<Edit> {
    let last = configuration.load_profiles().get(&server);
    if will.total() == 0 || last.is_some_and(|last| is_alike(&last.will, &will)) {
        return None;
    }
    let mut edit = configuration.edit();
    edit.put_load_profile(LoadProfileRecord { server, will });
    Some(edit)
}

/// Returns whether both profiles spread their loads over the slots in about the same way.
fn is_alike(one: &LoadProfile, other: &LoadProfile) -> bool {
    let (total, other_total) = (u128::from(one.total()), u128::from(other.total()));
    let pairs = one.slots().into_iter().zip(other.slots());
    let shares = pairs.map(|(a, b)| (u128::from(a) * other_total, u128::from(b) * total));
    // Only the excess of one is summed; elsewhere the other has the same excess.
    let moved: u128 = shares.map(|(a, b)| a.saturating_sub(b)).sum();
    moved <= total * other_total / SHARE_MOVED
}

/// Cumulative load, from which the load of any range is computed.
pub(super) struct Loads {
    /// Load of all slots below each slot; the last entry is the total.
    below: Vec<u128>,
}

impl Loads {
    /// Uses the load profile. Without one all slots have equal load.
    pub(super) fn new(will: Option<&LoadProfile>) -> Loads {
        let unknown =
            will.map_or(0, LoadProfile::total) / (u64::from(SLOT_COUNT) * SHARE_UNKNOWN) + 1;
        let slots = will.map_or_else(|| vec![0; usize::from(SLOT_COUNT)], LoadProfile::slots);
        let mut below = vec![0];
        let mut sum = 0;
        below.extend(slots.into_iter().map(|load| {
            sum += u128::from(load) + u128::from(unknown);
            sum
        }));
        assert_eq!(below.len(), usize::from(SLOT_COUNT) + 1, "each slot has a load");
        Loads { below }
    }

    /// Returns the load of a range, in internal units. Never 0.
    pub(super) fn of(&self, range: HashRange) -> u128 {
        let (first, last) = (u128::from(range.first().0), u128::from(range.last().0));
        let load = self.up_to(last + 1) - self.up_to(first);
        assert!(load > 0, "{range} has no load");
        load
    }

    /// Returns the load of all key hashes below this one.
    fn up_to(&self, hash: u128) -> u128 {
        let (slot, rest) = ((hash / SLOT_WIDTH) as usize, hash % SLOT_WIDTH);
        let load = self.below.get(slot + 1).map_or(0, |next| next - self.below[slot]);
        self.below[slot] * SLOT_WIDTH + load * rest
    }

    /// Divides a range of whole slots into `count` parts of about equal load.
    ///
    /// # Panics
    /// If the range has fewer slots than `count`.
    pub(super) fn cut(&self, range: HashRange, count: usize) -> Vec<HashRange> {
        let (first, last) = range.slots();
        let (first, behind) = (usize::from(first.0), usize::from(last.0) + 1);
        assert!(count <= behind - first, "{count} parts of {range}");
        let load = self.below[behind] - self.below[first];
        let mut borders = vec![first];
        for part in 1..count {
            let wanted = self.below[first] + load * part as u128 / count as u128;
            let above = self.below.partition_point(|&sum| sum < wanted);
            let is_below_nearer = self.below[above] - wanted > wanted - self.below[above - 1];
            let nearest = if is_below_nearer { above - 1 } else { above };
            // Every part gets a slot, including the later ones.
            let lowest = borders[part - 1] + 1;
            borders.push(nearest.clamp(lowest, behind - (count - part)));
        }
        borders.push(behind);
        let slot = |number: usize| Slot(number as u16);
        let parts = borders.windows(2).map(|pair| (slot(pair[0]), slot(pair[1] - 1)));
        let parts: Vec<_> = parts.map(|(first, last)| HashRange::of_slots(first, last)).collect();
        assert_eq!(parts.len(), count, "{range} is cut into another number of parts");
        parts
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::KeyHash;

    fn will(loads: &[(u16, u64)]) -> LoadProfile {
        let mut slots = vec![0; usize::from(SLOT_COUNT)];
        for &(slot, load) in loads {
            slots[usize::from(slot)] = load;
        }
        LoadProfile::of(&slots)
    }

    fn borders(parts: &[HashRange]) -> Vec<u16> {
        parts.iter().map(|part| part.slots().0.0).collect()
    }

    #[test]
    fn parts_have_equal_load() {
        let loads = Loads::new(Some(&will(&[(10, 500), (11, 500), (12, 500), (9000, 1500)])));
        let parts = loads.cut(HashRange::ALL, 2);
        assert!((13..=9000).contains(&borders(&parts)[1]), "{parts:?}");
        let parts = loads.cut(HashRange::of_slots(Slot(0), Slot(100)), 3);
        assert_eq!(borders(&parts), [0, 11, 12]);
        let even = Loads::new(None);
        assert_eq!(borders(&even.cut(HashRange::ALL, 4)), [0, 4096, 8192, 12_288]);
    }

    #[test]
    fn every_part_has_a_slot_wherever_the_load_is() {
        let range = HashRange::of_slots(Slot(3), Slot(8));
        for heavy in 3..=8 {
            let loads = Loads::new(Some(&will(&[(heavy, 1 << 50)])));
            for count in 1..=6 {
                let parts = loads.cut(range, count);
                assert_eq!(parts.len(), count);
                assert_eq!(parts[0].first(), range.first());
                assert_eq!(parts[count - 1].last(), range.last());
                let of_all: u128 = parts.iter().map(|&part| loads.of(part)).sum();
                assert_eq!(of_all, loads.of(range));
                assert!(parts.iter().all(|&part| loads.of(part) > 0));
            }
        }
    }

    #[test]
    fn a_part_of_a_slot_has_a_part_of_its_load() {
        let loads = Loads::new(Some(&will(&[(5, 1 << 40)])));
        let slot = HashRange::of_slots(Slot(5), Slot(5));
        let middle = KeyHash(slot.first().0 + (1 << 49));
        let half = HashRange::new(middle, slot.last());
        assert_eq!(loads.of(half) * 2, loads.of(slot));
        let total: u128 = (0..4).map(|n| loads.of(HashRange::ALL.divide(4)[n])).sum();
        assert_eq!(loads.of(HashRange::ALL), total);
    }

    #[test]
    fn wills_are_alike_if_less_than_a_sixteenth_lies_elsewhere() {
        let one = will(&[(1, 1600), (2, 1600)]);
        assert!(is_alike(&one, &will(&[(1, 16_000), (2, 16_000)])), "only shares count");
        assert!(is_alike(&one, &will(&[(1, 1500), (2, 1600), (3, 100)])));
        assert!(!is_alike(&one, &will(&[(1, 1300), (2, 1600), (3, 300)])));
        assert!(!is_alike(&one, &will(&[(9, 1)])));
    }
}
