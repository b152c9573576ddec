//! Which backup gets a replica: the least loaded of a few that are drawn.
//!
//! Drawing spreads a log over all servers, so that all of them help when it is recovered; looking
//! at the load of those drawn keeps many masters from meeting at one of them.
//!
//! **Invariant:** no segment has two replicas on one server, nor in one rack while there is a
//! server of another rack.

use super::timing::{DRAWS, REFUSED_PAUSE};
use std::collections::{BTreeMap, BTreeSet};
use types::{Instant, ServerId};

/// What fails together, by a number of the driver's choice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rack(pub u32);

/// A server that lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Which.
    pub server: ServerId,
    /// Where it stands.
    pub rack: Rack,
    /// Whether it can be reached and may be asked to hold something.
    pub is_usable: bool,
}

/// Who may be asked.
#[derive(Debug, Default)]
pub(super) struct Placement {
    candidates: BTreeMap<ServerId, Candidate>,
    /// Declared dead. Numbers are not used twice, so this is for good.
    dead: BTreeSet<ServerId>,
    /// Until when these are not asked again.
    refused: BTreeMap<ServerId, Instant>,
}

impl Placement {
    /// These and no others live. Whether one can be asked that could not before.
    pub(super) fn set(&mut self, candidates: Vec<Candidate>) -> bool {
        let living = candidates.into_iter().filter(|it| !self.dead.contains(&it.server));
        let living: BTreeMap<_, _> = living.map(|it| (it.server, it)).collect();
        let before = std::mem::replace(&mut self.candidates, living);
        let could_be_asked = |id: &ServerId| before.get(id).is_some_and(|it| it.is_usable);
        self.candidates.values().any(|it| it.is_usable && !could_be_asked(&it.server))
    }

    pub(super) fn note_dead(&mut self, server: ServerId) {
        self.dead.insert(server);
        self.candidates.remove(&server);
        self.refused.remove(&server);
    }

    pub(super) fn note_refused(&mut self, now: Instant, server: ServerId) {
        self.refused.insert(server, now + REFUSED_PAUSE);
    }

    /// Whether somebody may be asked again from now on.
    pub(super) fn forgive(&mut self, now: Instant) -> bool {
        let before = self.refused.len();
        self.refused.retain(|_, until| *until > now);
        self.refused.len() < before
    }

    /// When somebody may be asked again.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.refused.values().min().copied()
    }

    /// Whether somebody could be asked to hold what these hold already.
    pub(super) fn has_other_than(&self, holders: &[ServerId]) -> bool {
        self.eligible(holders).next().is_some()
    }

    fn eligible(&self, holders: &[ServerId]) -> impl Iterator<Item = &Candidate> {
        self.candidates.values().filter(|it| {
            it.is_usable && !self.refused.contains_key(&it.server) && !holders.contains(&it.server)
        })
    }

    /// Somebody for one more replica beside those that `holders` have.
    pub(super) fn choose(
        &self,
        holders: &[ServerId],
        loads: &BTreeMap<ServerId, usize>,
        draws: &mut Draws,
    ) -> Option<ServerId> {
        let rack_of = |id: &ServerId| self.candidates.get(id).map(|it| it.rack);
        let racks: BTreeSet<Rack> = holders.iter().filter_map(rack_of).collect();
        let mut eligible: Vec<&Candidate> = self.eligible(holders).collect();
        if eligible.iter().any(|it| !racks.contains(&it.rack)) {
            eligible.retain(|it| !racks.contains(&it.rack));
        }
        let load = |it: &&Candidate| loads.get(&it.server).copied().unwrap_or(0);
        let mut drawn: Vec<&Candidate> = Vec::new();
        while drawn.len() < DRAWS && !eligible.is_empty() {
            drawn.push(eligible.swap_remove(draws.below(eligible.len())));
        }
        drawn.into_iter().min_by_key(load).map(|it| it.server)
    }
}

/// A sequence of random numbers that follows from the first: `SplitMix64` (Steele, Lea, Flood
/// 2014).
#[derive(Clone, Copy, Debug)]
pub(super) struct Draws(pub(super) u64);

impl Draws {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((u128::from(z ^ (z >> 31)) * limit as u128) >> 64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(server: u32, rack: u32) -> Candidate {
        Candidate { server: ServerId(server), rack: Rack(rack), is_usable: true }
    }

    fn placement(racks: &[u32]) -> Placement {
        let mut placement = Placement::default();
        let servers = racks.iter().enumerate().map(|(at, rack)| candidate(at as u32 + 1, *rack));
        placement.set(servers.collect());
        placement
    }

    fn place(
        placement: &Placement,
        count: usize,
        loads: &BTreeMap<ServerId, usize>,
        draws: &mut Draws,
    ) -> Vec<ServerId> {
        let mut holders = Vec::new();
        for _ in 0..count {
            holders.extend(placement.choose(&holders, loads, draws));
        }
        holders
    }

    #[test]
    fn no_two_replicas_are_in_one_rack_if_there_are_enough_racks() {
        let racks = [1, 1, 1, 1, 1, 2, 3];
        let placement = placement(&racks);
        let mut draws = Draws(7);
        let mut used = BTreeSet::new();
        for _ in 0..1_000 {
            let holders = place(&placement, 3, &BTreeMap::new(), &mut draws);
            let racks: BTreeSet<u32> = holders.iter().map(|it| racks[it.0 as usize - 1]).collect();
            assert_eq!(racks.len(), 3, "{holders:?}");
            used.extend(holders);
        }
        assert_eq!(used.len(), 7, "everybody is asked");
    }

    #[test]
    fn servers_of_one_rack_hold_replicas_when_there_is_no_other() {
        let placement = placement(&[1, 1, 1]);
        let mut holders = place(&placement, 4, &BTreeMap::new(), &mut Draws(1));
        holders.sort();
        assert_eq!(holders, [ServerId(1), ServerId(2), ServerId(3)], "each once");
    }

    #[test]
    fn the_least_loaded_of_those_drawn_gets_the_replica() {
        let placement = placement(&[0; 3]);
        let loads = [(ServerId(1), 2), (ServerId(2), 1), (ServerId(3), 2)].into();
        for seed in 0..100 {
            let chosen = placement.choose(&[], &loads, &mut Draws(seed));
            assert_eq!(chosen, Some(ServerId(2)), "all three are drawn");
        }
    }

    #[test]
    fn loads_stay_close_together() {
        let placement = placement(&[0; 20]);
        let mut loads = BTreeMap::new();
        let mut draws = Draws(3);
        for _ in 0..2_000 {
            let chosen = placement.choose(&[], &loads, &mut draws).unwrap();
            *loads.entry(chosen).or_insert(0) += 1;
        }
        let (least, most) = (loads.values().min().unwrap(), loads.values().max().unwrap());
        assert!(most - least <= 10, "{loads:?}");
    }

    #[test]
    fn who_refused_is_not_asked_for_a_while_and_who_died_never() {
        let mut placement = placement(&[0; 3]);
        placement.note_refused(Instant(5), ServerId(1));
        placement.note_dead(ServerId(2));
        let only = |placement: &Placement| place(placement, 3, &BTreeMap::new(), &mut Draws(0));
        assert_eq!(only(&placement), [ServerId(3)]);
        assert!(!placement.forgive(Instant(5)));
        assert_eq!(placement.next_deadline(), Some(Instant(5) + REFUSED_PAUSE));
        assert!(placement.forgive(Instant(5) + REFUSED_PAUSE));
        assert_eq!(only(&placement).len(), 2);
        placement.set(vec![candidate(1, 0), candidate(2, 0), candidate(4, 0)]);
        let mut holders = only(&placement);
        holders.sort();
        assert_eq!(holders, [ServerId(1), ServerId(4)], "the second is dead");
    }
}
