//! The load profile of a server's ranges, by which the coordinator divides them after its death.

use serde::{Deserialize, Serialize};
use std::fmt;
use types::{SLOT_COUNT, Slot};

/// Maximum number of shares: the error of a part is then below 1/256 of the total load.
pub const WILL_SHARES_MAX: usize = 512;

/// The load profile of a server over slots, in shares of about equal load. RAMCloud calls it the
/// *will* of a master ("Fast Crash Recovery in RAMCloud", §3.9).
///
/// The sender chooses the unit of load, because only proportions count.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<WillShare>", into = "Vec<WillShare>")]
pub struct Will {
    shares: Vec<WillShare>,
}

/// A run of slots over which the load is assumed to be uniform.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WillShare {
    /// The first slot.
    pub first: Slot,
    /// The last slot.
    pub last: Slot,
    /// The load of all slots together.
    pub load: u64,
}

/// An error: the shares do not form a valid load profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadWill;

impl fmt::Display for BadWill {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "a load profile has at most {WILL_SHARES_MAX} ranges, in ascending order and without \
             overlap, and their loads add up to less than 2^64"
        )
    }
}

impl std::error::Error for BadWill {}

impl Will {
    /// Creates the load profile of a server from the loads of consecutive slots, starting at slot
    /// 0.
    ///
    /// # Panics
    /// If there are more loads than slots, or the sum of the loads is 2^64 or more.
    pub fn of(loads: &[u64]) -> Will {
        assert!(loads.len() <= usize::from(SLOT_COUNT), "{} slots", loads.len());
        let total: u64 = loads.iter().sum();
        // Two neighboring shares together exceed this, which bounds their number by
        // `WILL_SHARES_MAX`.
        let most = total / (WILL_SHARES_MAX as u64 / 2 - 1) + 1;
        let mut shares: Vec<WillShare> = Vec::new();
        for (slot, &load) in loads.iter().enumerate().filter(|(_, load)| **load > 0) {
            let slot = Slot(slot as u16);
            match shares.last_mut() {
                Some(share) if share.load + load <= most => {
                    share.last = slot;
                    share.load += load;
                }
                Some(_) | None => shares.push(WillShare { first: slot, last: slot, load }),
            }
        }
        Will { shares }
    }

    /// Returns the shares, ascending. Slots outside of all shares have no load.
    pub fn shares(&self) -> &[WillShare] {
        &self.shares
    }

    /// Returns the load of all slots together.
    pub fn total(&self) -> u64 {
        self.shares.iter().map(|share| share.load).sum()
    }

    /// Returns the load of each slot.
    pub fn slots(&self) -> Vec<u64> {
        let mut loads = vec![0; usize::from(SLOT_COUNT)];
        for &WillShare { first, last, load } in &self.shares {
            let slots = &mut loads[usize::from(first.0)..=usize::from(last.0)];
            let count = slots.len() as u64;
            slots.fill(load / count);
            slots[..(load % count) as usize].iter_mut().for_each(|load| *load += 1);
        }
        loads
    }
}

impl TryFrom<Vec<WillShare>> for Will {
    type Error = BadWill;

    fn try_from(shares: Vec<WillShare>) -> Result<Will, BadWill> {
        let are_ascending = shares.windows(2).all(|pair| pair[0].last < pair[1].first);
        let are_ranges = shares.iter().all(|it| it.first <= it.last && it.last.0 < SLOT_COUNT);
        let total = shares.iter().try_fold(0u64, |total, share| total.checked_add(share.load));
        let is_one = shares.len() <= WILL_SHARES_MAX && are_ascending && are_ranges;
        if is_one && total.is_some() { Ok(Will { shares }) } else { Err(BadWill) }
    }
}

impl From<Will> for Vec<WillShare> {
    fn from(will: Will) -> Vec<WillShare> {
        will.shares
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
    fn a_will_tells_every_load_to_less_than_a_256th_of_the_whole() {
        for seed in 1..20 {
            let loads = random_loads(seed);
            let will = Will::of(&loads);
            let shares: Vec<WillShare> = will.clone().into();
            assert_eq!(Will::try_from(shares), Ok(will.clone()));
            assert_eq!(will.total(), loads.iter().sum::<u64>());
            let spread = will.slots();
            let (mut told, mut exact) = (0u64, 0u64);
            for slot in 0..usize::from(SLOT_COUNT) {
                told += spread[slot];
                exact += loads[slot];
                assert!(told.abs_diff(exact) <= will.total() / 255 + 1, "up to slot {slot}");
            }
            assert_eq!(told, exact);
        }
    }

    #[test]
    fn a_slot_that_is_more_than_a_share_stands_alone() {
        let mut loads = vec![1; usize::from(SLOT_COUNT)];
        loads[77] = 1 << 40;
        let will = Will::of(&loads);
        let alone = WillShare { first: Slot(77), last: Slot(77), load: 1 << 40 };
        assert!(will.shares().contains(&alone));
        assert_eq!(will.slots(), loads);
        assert_eq!(Will::of(&[]), Will::default());
    }

    #[test]
    fn what_makes_up_no_will_is_refused() {
        let share = |first, last, load| WillShare { first: Slot(first), last: Slot(last), load };
        let bad = [
            vec![share(3, 2, 1)],
            vec![share(0, 4, 1), share(4, 5, 1)],
            vec![share(5, 6, 1), share(0, 1, 1)],
            vec![share(0, SLOT_COUNT, 1)],
            vec![share(0, 1, u64::MAX), share(2, 3, 1)],
            (0..=WILL_SHARES_MAX as u16).map(|slot| share(slot, slot, 1)).collect(),
        ];
        for shares in bad {
            let encoded = postcard::to_stdvec(&shares).unwrap();
            assert!(postcard::from_bytes::<Will>(&encoded).is_err(), "{shares:?}");
        }
    }
}
