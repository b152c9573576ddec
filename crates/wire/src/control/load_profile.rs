//! The load profile of a server's ranges, by which the coordinator divides them after its death.

use serde::{Deserialize, Serialize};
use std::fmt;
use types::{SLOT_COUNT, Slot};

/// Maximum number of shares: the error of a part is then below 1/256 of the total load.
pub const LOAD_SHARES_MAX: usize = 512;

/// The load profile of a server over slots, in shares of about equal load. RAMCloud calls it the
/// *will* of a master ("Fast Crash Recovery in RAMCloud", §3.9).
///
/// The sender chooses the unit of load, because only proportions count.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<LoadShare>", into = "Vec<LoadShare>")]
pub struct LoadProfile {
    shares: Vec<LoadShare>,
}

/// A run of slots over which the load is assumed to be uniform.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoadShare {
    /// The first slot.
    pub first: Slot,
    /// The last slot.
    pub last: Slot,
    /// The load of all slots together.
    pub load: u64,
}

/// An error: the shares do not form a valid load profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadLoadProfile;

impl fmt::Display for BadLoadProfile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "a load profile has at most {LOAD_SHARES_MAX} ranges, in ascending order and without \
             overlap, and their loads add up to less than 2^64"
        )
    }
}

impl std::error::Error for BadLoadProfile {}

impl LoadProfile {
    /// Creates the load profile of a server from the loads of consecutive slots, starting at slot
    /// 0.
    ///
    /// # Panics
    /// If there are more loads than slots, or the sum of the loads is 2^64 or more.
    pub fn of(loads: &[u64]) -> LoadProfile {
        assert!(loads.len() <= usize::from(SLOT_COUNT), "{} slots", loads.len());
        let total: u64 = loads.iter().sum();
        // Two neighboring shares together exceed this, which bounds their number by
        // `LOAD_SHARES_MAX`.
        let most = total / (LOAD_SHARES_MAX as u64 / 2 - 1) + 1;
        let mut shares: Vec<LoadShare> = Vec::new();
        for (slot, &load) in loads.iter().enumerate().filter(|(_, load)| **load > 0) {
            let slot = Slot(slot as u16);
            match shares.last_mut() {
                Some(share) if share.load + load <= most => {
                    share.last = slot;
                    share.load += load;
                }
                Some(_) | None => shares.push(LoadShare { first: slot, last: slot, load }),
            }
        }
        LoadProfile { shares }
    }

    /// Returns the shares, ascending. Slots outside of all shares have no load.
    pub fn shares(&self) -> &[LoadShare] {
        &self.shares
    }

    /// Returns the load of all slots together.
    pub fn total(&self) -> u64 {
        self.shares.iter().map(|share| share.load).sum()
    }

    /// Returns the load of each slot.
    pub fn slots(&self) -> Vec<u64> {
        let mut loads = vec![0; usize::from(SLOT_COUNT)];
        for &LoadShare { first, last, load } in &self.shares {
            let slots = &mut loads[usize::from(first.0)..=usize::from(last.0)];
            let count = slots.len() as u64;
            slots.fill(load / count);
            slots[..(load % count) as usize].iter_mut().for_each(|load| *load += 1);
        }
        loads
    }
}

impl TryFrom<Vec<LoadShare>> for LoadProfile {
    type Error = BadLoadProfile;

    fn try_from(shares: Vec<LoadShare>) -> Result<LoadProfile, BadLoadProfile> {
        let are_ascending = shares.windows(2).all(|pair| pair[0].last < pair[1].first);
        let are_ranges = shares.iter().all(|it| it.first <= it.last && it.last.0 < SLOT_COUNT);
        let total = shares.iter().try_fold(0u64, |total, share| total.checked_add(share.load));
        let is_one = shares.len() <= LOAD_SHARES_MAX && are_ascending && are_ranges;
        if is_one && total.is_some() { Ok(LoadProfile { shares }) } else { Err(BadLoadProfile) }
    }
}

impl From<LoadProfile> for Vec<LoadShare> {
    fn from(profile: LoadProfile) -> Vec<LoadShare> {
        profile.shares
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns random loads from 0 to a million, most of them small.
    fn random_loads(seed: u64) -> Vec<u64> {
        let mut state = seed;
        let mut draw = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % below
        };
        let loads = (0..SLOT_COUNT).map(|_| {
            let digits = draw(7) as u32;
            draw(10u64.pow(digits))
        });
        loads.collect()
    }

    #[test]
    fn a_profile_contains_every_load_to_less_than_a_256th_of_the_whole() {
        for seed in 1..20 {
            let loads = random_loads(seed);
            let profile = LoadProfile::of(&loads);
            let shares: Vec<LoadShare> = profile.clone().into();
            assert_eq!(LoadProfile::try_from(shares), Ok(profile.clone()));
            assert_eq!(profile.total(), loads.iter().sum::<u64>());
            let spread = profile.slots();
            let (mut reported, mut exact) = (0u64, 0u64);
            for slot in 0..usize::from(SLOT_COUNT) {
                reported += spread[slot];
                exact += loads[slot];
                assert!(reported.abs_diff(exact) <= profile.total() / 255 + 1, "up to slot {slot}");
            }
            assert_eq!(reported, exact);
        }
    }

    #[test]
    fn a_slot_that_is_more_than_a_share_stands_alone() {
        let mut loads = vec![1; usize::from(SLOT_COUNT)];
        loads[77] = 1 << 40;
        let profile = LoadProfile::of(&loads);
        let alone = LoadShare { first: Slot(77), last: Slot(77), load: 1 << 40 };
        assert!(profile.shares().contains(&alone));
        assert_eq!(profile.slots(), loads);
        assert_eq!(LoadProfile::of(&[]), LoadProfile::default());
    }

    #[test]
    fn invalid_profiles_are_refused() {
        let share = |first, last, load| LoadShare { first: Slot(first), last: Slot(last), load };
        let bad = [
            vec![share(3, 2, 1)],
            vec![share(0, 4, 1), share(4, 5, 1)],
            vec![share(5, 6, 1), share(0, 1, 1)],
            vec![share(0, SLOT_COUNT, 1)],
            vec![share(0, 1, u64::MAX), share(2, 3, 1)],
            (0..=LOAD_SHARES_MAX as u16).map(|slot| share(slot, slot, 1)).collect(),
        ];
        for shares in bad {
            let encoded = postcard::to_stdvec(&shares).unwrap();
            assert!(postcard::from_bytes::<LoadProfile>(&encoded).is_err(), "{shares:?}");
        }
    }
}
