//! The choice of the backup for a replica: rule 1 of `docs/design/replication.md`. Drawing
//! spreads a log over all servers, so that all of them can serve its recovery; comparing the
//! loads of the drawn backups keeps many masters from choosing the same one.
//!
//! **Invariant:** no segment has two replicas on one server. No replica is in the master's rack
//! while a server in another rack can take it. No two replicas share a rack while a server in a
//! third rack can take one. If both rack rules cannot hold, the second is given up first.

use super::timing::{DRAWS, REFUSED_PAUSE, REFUSED_PAUSE_URGENT, SHORT_MAX};
use planted::Bug;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use types::{Instant, ServerId, SplitMix64};

/// A failure domain, numbered by the driver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rack(pub u32);

/// A living server that may hold replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackupCandidate {
    /// The server.
    pub server: ServerId,
    /// Its rack.
    pub rack: Rack,
    /// Set if the server is connected and may be asked to hold a replica.
    pub is_usable: bool,
}

/// Number of replicas of one log at one backup. Unfinished replicas compare first, because they
/// are still being written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct BackupLoad {
    pub(super) unfinished: usize,
    pub(super) all: usize,
}

/// Number of replicas that were placed against a rack rule, for lack of alternatives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Misplaced {
    /// Replicas in the master's rack.
    pub with_master: usize,
    /// Replicas in a rack that has another replica of the same segment.
    pub together: usize,
}

/// The state of a backup that has refused or given up a replica.
#[derive(Clone, Copy, Debug)]
struct RefusalPause {
    since: Instant,
    /// Length of the current pause, during which the backup is not asked.
    pause: Duration,
    /// Set once the pause is over. If the backup refuses again, the next pause is longer.
    is_over: bool,
}

impl RefusalPause {
    /// Returns the end of the pause. It is urgent while too few other backups answer.
    fn end(&self, is_urgent: bool) -> Instant {
        let longest = if is_urgent { REFUSED_PAUSE_URGENT } else { SHORT_MAX };
        self.since + self.pause.min(longest)
    }
}

/// The backups that may hold replicas of one log.
#[derive(Clone, Debug, Default)]
pub(super) struct Placement {
    /// The master's own rack.
    own: Rack,
    candidates: BTreeMap<ServerId, BackupCandidate>,
    /// Servers that were declared dead. Ids are never reused, so this is permanent.
    dead: BTreeSet<ServerId>,
    /// Backups that have refused a replica.
    refused: BTreeMap<ServerId, RefusalPause>,
    /// Backups that do not answer.
    silent: BTreeSet<ServerId>,
    misplaced: Misplaced,
    /// Set if the master is standalone: its own disk is the only candidate.
    is_standalone: bool,
}

impl Placement {
    /// Makes the choice for a master.
    pub(super) fn new(is_standalone: bool) -> Placement {
        Placement { is_standalone, ..Placement::default() }
    }

    /// Records that a backup has begun a replica.
    pub(super) fn record_success(&mut self, server: ServerId) {
        if self.is_standalone && !self.refused.is_empty() {
            self.refused.remove(&server);
        }
    }

    /// Returns whether the backup has refused a replica and has begun none since.
    pub(super) fn has_refused(&self, server: ServerId) -> bool {
        self.refused.contains_key(&server)
    }

    /// Replaces the set of living servers. Returns whether a backup may be asked now that could
    /// not be asked before.
    pub(super) fn set(&mut self, own: Rack, candidates: Vec<BackupCandidate>) -> bool {
        self.own = own;
        let living = candidates.into_iter().filter(|it| !self.dead.contains(&it.server));
        let living: BTreeMap<_, _> = living.map(|it| (it.server, it)).collect();
        let before = std::mem::replace(&mut self.candidates, living);
        let could_be_asked = |id: &ServerId| before.get(id).is_some_and(|it| it.is_usable);
        self.candidates.values().any(|it| it.is_usable && !could_be_asked(&it.server))
    }

    pub(super) fn record_death(&mut self, server: ServerId) {
        self.dead.insert(server);
        self.candidates.remove(&server);
        self.refused.remove(&server);
        self.silent.remove(&server);
        assert!(!self.contains(server), "{server} is dead and may hold replicas");
    }

    pub(super) fn set_silent(&mut self, server: ServerId, is_silent: bool) {
        if is_silent {
            self.silent.insert(server);
        } else {
            self.silent.remove(&server);
        }
    }

    /// Returns how many backups that could be asked are not in `late`.
    pub(super) fn others_than(&self, late: &BTreeSet<ServerId>) -> usize {
        self.eligible(&[]).filter(|it| !late.contains(&it.server)).count()
    }

    /// Returns how many servers other than the master live and answer, as far as the master
    /// knows. Unusable servers count too: the coordinator may have lost its connection to one or
    /// have just started, so a write that waits for that server need not be refused.
    pub(super) fn answering(&self, master: ServerId) -> usize {
        self.others(master).filter(|id| !self.is_out(*id)).count()
    }

    /// Returns how many servers other than the master live.
    pub(super) fn living(&self, master: ServerId) -> usize {
        self.others(master).count()
    }

    fn others(&self, master: ServerId) -> impl Iterator<Item = ServerId> {
        self.candidates.keys().copied().filter(move |id| *id != master)
    }

    /// Returns whether the server is one of the living candidates.
    pub(super) fn contains(&self, server: ServerId) -> bool {
        self.candidates.contains_key(&server)
    }

    /// Returns whether the backup has refused a replica recently, or does not answer.
    fn is_out(&self, server: ServerId) -> bool {
        let has_refused = self.refused.get(&server).is_some_and(|refusal| !refusal.is_over);
        has_refused || self.silent.contains(&server)
    }

    pub(super) fn record_refusal(&mut self, now: Instant, server: ServerId) {
        if planted::is(Bug::RefusalForgotten) {
            return;
        }
        let pause = match self.refused.get(&server) {
            // Refusals of appends that were in flight arrive one after the other and count once.
            Some(refusal) if !refusal.is_over => return,
            Some(refusal) => (refusal.pause * 2).min(SHORT_MAX),
            None => REFUSED_PAUSE,
        };
        assert!((REFUSED_PAUSE..=SHORT_MAX).contains(&pause), "{server} pauses {pause:?}");
        self.refused.insert(server, RefusalPause { since: now, pause, is_over: false });
    }

    /// Ends the pauses that are over; a write needs `needed` backups. Returns whether a backup may
    /// be asked again because of that.
    pub(super) fn forgive(&mut self, now: Instant, needed: usize) -> bool {
        self.refused.retain(|_, it| !it.is_over || now < it.since + it.pause + SHORT_MAX);
        let is_urgent = self.is_urgent(needed);
        let ends = self.refused.values_mut().filter(|it| !it.is_over && it.end(is_urgent) <= now);
        ends.map(|refusal| refusal.is_over = true).count() > 0
    }

    /// Returns the next time at which a backup may be asked again, if a write needs `needed`.
    pub(super) fn next_deadline(&self, needed: usize) -> Option<Instant> {
        let pausing = self.refused.values().filter(|it| !it.is_over);
        pausing.map(|it| it.end(self.is_urgent(needed))).min()
    }

    /// Returns whether fewer backups can be asked than a write needs.
    fn is_urgent(&self, needed: usize) -> bool {
        !self.refused.is_empty() && self.eligible(&[]).count() < needed
    }

    /// Returns whether a backup outside of `holders` could be asked.
    pub(super) fn has_other_than(&self, holders: &[ServerId]) -> bool {
        self.eligible(holders).next().is_some()
    }

    pub(super) fn misplaced(&self) -> Misplaced {
        self.misplaced
    }

    fn eligible(&self, holders: &[ServerId]) -> impl Iterator<Item = &BackupCandidate> {
        self.candidates
            .values()
            .filter(|it| it.is_usable && !self.is_out(it.server) && !holders.contains(&it.server))
    }

    /// Chooses a backup for one more replica beside those at `holders`.
    pub(super) fn choose(
        &mut self,
        holders: &[ServerId],
        loads: &BTreeMap<ServerId, BackupLoad>,
        draws: &mut Draws,
    ) -> Option<ServerId> {
        let rack_of = |id: &ServerId| self.candidates.get(id).map(|it| it.rack);
        let racks: BTreeSet<Rack> = holders.iter().filter_map(rack_of).collect();
        let faults = |it: &BackupCandidate| (it.rack == self.own, racks.contains(&it.rack));
        let least = self.eligible(holders).map(faults).min()?;
        let mut eligible: Vec<&BackupCandidate> =
            self.eligible(holders).filter(|it| faults(it) == least).collect();
        let load = |it: &&BackupCandidate| loads.get(&it.server).copied().unwrap_or_default();
        let mut drawn: Vec<&BackupCandidate> = Vec::new();
        while drawn.len() < DRAWS && !eligible.is_empty() {
            drawn.push(eligible.swap_remove(draws.below(eligible.len())));
        }
        let chosen = drawn.into_iter().min_by_key(load).map(|it| it.server);
        assert!(
            chosen.is_some_and(|it| !holders.contains(&it) && !self.dead.contains(&it)),
            "{chosen:?} cannot take a replica beside {holders:?}"
        );
        self.misplaced.with_master += usize::from(least.0);
        self.misplaced.together += usize::from(least.1);
        chosen
    }
}

/// A deterministic sequence of random numbers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Draws(SplitMix64);

impl Draws {
    pub(super) fn new(seed: u64) -> Draws {
        Draws(SplitMix64::new(seed))
    }

    fn below(&mut self, limit: usize) -> usize {
        assert!(limit > 0, "nothing can be drawn from nothing");
        ((u128::from(self.0.draw()) * limit as u128) >> 64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A rack without candidates, except where a test places one there.
    const MASTERS: Rack = Rack(99);

    fn candidate(server: u32, rack: u32) -> BackupCandidate {
        BackupCandidate { server: ServerId(server), rack: Rack(rack), is_usable: true }
    }

    fn placement(racks: &[u32]) -> Placement {
        let mut placement = Placement::default();
        let servers = racks.iter().enumerate().map(|(at, rack)| candidate(at as u32 + 1, *rack));
        placement.set(MASTERS, servers.collect());
        placement
    }

    fn place(
        placement: &mut Placement,
        count: usize,
        loads: &BTreeMap<ServerId, BackupLoad>,
        draws: &mut Draws,
    ) -> Vec<ServerId> {
        let mut holders = Vec::new();
        for _ in 0..count {
            holders.extend(placement.choose(&holders, loads, draws));
        }
        holders
    }

    #[test]
    #[should_panic(expected = "cannot take a replica beside")]
    fn a_dead_server_takes_no_replica() {
        let mut placement = placement(&[1]);
        placement.dead.insert(ServerId(1));
        placement.choose(&[], &BTreeMap::new(), &mut Draws::new(1));
    }

    #[test]
    fn no_two_replicas_are_in_one_rack_if_there_are_enough_racks() {
        let racks = [1, 1, 1, 1, 1, 2, 3];
        let mut placement = placement(&racks);
        let mut draws = Draws::new(7);
        let mut used = BTreeSet::new();
        for _ in 0..1_000 {
            let holders = place(&mut placement, 3, &BTreeMap::new(), &mut draws);
            let racks: BTreeSet<u32> = holders.iter().map(|it| racks[it.0 as usize - 1]).collect();
            assert_eq!(racks.len(), 3, "{holders:?}");
            used.extend(holders);
        }
        assert_eq!(used.len(), 7, "every server is used");
        assert_eq!(placement.misplaced(), Misplaced::default());
    }

    #[test]
    fn a_replica_leaves_its_masters_rack_if_there_is_another() {
        let mut placement = Placement::default();
        placement.set(Rack(1), vec![candidate(1, 1), candidate(2, 1), candidate(3, 2)]);
        for seed in 0..100 {
            let holders = place(&mut placement, 1, &BTreeMap::new(), &mut Draws::new(seed));
            assert_eq!(holders, [ServerId(3)], "the only one outside of rack 1");
        }
        assert_eq!(placement.misplaced(), Misplaced::default());
        let holders = place(&mut placement, 2, &BTreeMap::new(), &mut Draws::new(0));
        assert_eq!((holders[0], holders.len()), (ServerId(3), 2), "better there than nowhere");
        assert_eq!(placement.misplaced(), Misplaced { with_master: 1, together: 0 });
    }

    #[test]
    fn two_replicas_share_a_rack_before_one_stands_in_the_masters() {
        let mut placement = Placement::default();
        placement.set(Rack(1), vec![candidate(1, 1), candidate(2, 2), candidate(3, 2)]);
        for seed in 0..100 {
            let mut holders = place(&mut placement, 2, &BTreeMap::new(), &mut Draws::new(seed));
            holders.sort();
            assert_eq!(holders, [ServerId(2), ServerId(3)]);
        }
        assert_eq!(placement.misplaced(), Misplaced { with_master: 0, together: 100 });
    }

    #[test]
    fn servers_of_one_rack_hold_replicas_when_there_is_no_other() {
        let mut placement = placement(&[1, 1, 1]);
        let mut holders = place(&mut placement, 4, &BTreeMap::new(), &mut Draws::new(1));
        holders.sort();
        assert_eq!(holders, [ServerId(1), ServerId(2), ServerId(3)], "each once");
    }

    #[test]
    fn the_least_loaded_of_those_drawn_gets_the_replica() {
        let mut placement = placement(&[1, 2, 3]);
        let load = |unfinished, all| BackupLoad { unfinished, all };
        let loads =
            [(ServerId(1), load(2, 2)), (ServerId(2), load(1, 9)), (ServerId(3), load(2, 2))];
        let loads = loads.into();
        for seed in 0..100 {
            let chosen = placement.choose(&[], &loads, &mut Draws::new(seed));
            assert_eq!(chosen, Some(ServerId(2)), "all three are drawn");
        }
    }

    #[test]
    fn finished_replicas_stay_close_together() {
        let mut placement = placement(&[0; 20]);
        let mut loads: BTreeMap<ServerId, BackupLoad> = BTreeMap::new();
        let mut draws = Draws::new(3);
        for _ in 0..2_000 {
            let chosen = placement.choose(&[], &loads, &mut draws).unwrap();
            loads.entry(chosen).or_default().all += 1;
        }
        let (least, most) = (loads.values().min().unwrap(), loads.values().max().unwrap());
        assert!(most.all - least.all <= 10, "{loads:?}");
    }

    #[test]
    fn who_refused_is_not_asked_for_a_while_and_who_died_never() {
        let mut placement = placement(&[0; 3]);
        placement.record_refusal(Instant(5), ServerId(1));
        placement.record_death(ServerId(2));
        let only =
            |placement: &mut Placement| place(placement, 3, &BTreeMap::new(), &mut Draws::new(0));
        assert_eq!(only(&mut placement), [ServerId(3)]);
        assert!(!placement.forgive(Instant(5), 1));
        assert_eq!(placement.next_deadline(1), Some(Instant(5) + REFUSED_PAUSE));
        assert_eq!(placement.next_deadline(2), Some(Instant(5) + REFUSED_PAUSE_URGENT));
        assert!(placement.forgive(Instant(5) + REFUSED_PAUSE, 1));
        assert_eq!(placement.next_deadline(1), None);
        assert_eq!(only(&mut placement).len(), 2);
        placement.set(MASTERS, vec![candidate(1, 0), candidate(2, 0), candidate(4, 0)]);
        let mut holders = only(&mut placement);
        holders.sort();
        assert_eq!(holders, [ServerId(1), ServerId(4)], "the second is dead");
    }
}
