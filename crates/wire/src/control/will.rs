//! What the ranges of a server would cost whoever recovers them.

use serde::{Deserialize, Serialize};
use std::fmt;
use types::{SLOT_COUNT, Slot};

/// Most shares of a will: a part is off by less than 1/256 of the whole.
pub const WILL_SHARES_MAX: usize = 512;

/// How the load of a server is spread over slots, in shares of about equal load. RAMCloud's word for
/// what a master leaves to those who recover it ("Fast Crash Recovery in RAMCloud", §3.9).
///
/// The unit of load is up to who says it: only shares count.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<WillShare>", into = "Vec<WillShare>")]
pub struct Will {
    shares: Vec<WillShare>,
}

/// A run of slots, over which the load counts as spread evenly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WillShare {
    /// The first slot.
    pub first: Slot,
    /// The last one.
    pub last: Slot,
    /// Of all of them together.
    pub load: u64,
}

/// The shares make up no will.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadWill;

impl fmt::Display for BadWill {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "a will has at most {WILL_SHARES_MAX} shares, in ascending order and without overlap, \
             and their loads add up to less than 2^64"
        )
    }
}

impl std::error::Error for BadWill {}

impl Will {
    /// The will of a server with these loads, slot by slot from the first on.
    ///
    /// # Panics
    /// If there are more loads than slots, or they add up to 2^64 or more.
    pub fn of(loads: &[u64]) -> Will {
        assert!(loads.len() <= usize::from(SLOT_COUNT), "{} slots", loads.len());
        let total: u64 = loads.iter().sum();
        // Two neighbors have more than this together, so that there are less than twice as many.
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

    /// In ascending order. What lies in none has no load.
    pub fn shares(&self) -> &[WillShare] {
        &self.shares
    }

    /// The load of all slots.
    pub fn total(&self) -> u64 {
        self.shares.iter().map(|share| share.load).sum()
    }

    /// The load of each slot.
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

    /// Loads from 0 to a million, most of them small.
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
