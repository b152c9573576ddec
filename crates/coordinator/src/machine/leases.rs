//! Leases of the clients of exactly-once requests.
//!
//! A client renews its lease through any server. A lease whose client does not is dropped after its
//! term, and the **horizon** rises: leases below it have ended, and servers may drop the completion
//! records of their clients. Servers learn of the horizon with the clock questions.
//!
//! Nothing here is durable. A lease number consists of the coordinator's term, which no other
//! coordinator has, and a counter. A coordinator that starts knows none of the earlier leases, so it
//! names no horizon before a whole lease term has passed, in which their clients renew them. Servers
//! never lower the horizon, and no server executes a request of a lease of which a record may have
//! been dropped, whatever this coordinator says (`docs/design/exactly-once.md`).

use std::collections::BTreeMap;
use std::time::Duration;
use types::{Instant, LeaseId};
use wire::control::LeaseGrant;

/// Most leases at a time.
const LEASES_MAX: usize = 1 << 20;

/// Terms for which a lease can be renewed: an hour. The horizon cannot rise above the oldest lease,
/// so clients replace theirs sooner.
const AGE_MAX_TERMS: u32 = 12;

/// Shortest time between two examinations of all leases. There may be a million.
const EXAMINE_PAUSE: Duration = Duration::from_secs(1);

/// Bits of a lease number below the coordinator's term.
const COUNTER_BITS: u32 = 32;

/// The leases that have not ended, as far as this coordinator knows.
#[derive(Debug)]
pub(super) struct Leases {
    /// Time that a lease lasts after it was granted or renewed.
    term: Duration,
    /// Number of the next lease.
    next: LeaseId,
    /// First number of this coordinator. Earlier leases are known once they were renewed.
    first: LeaseId,
    leases: BTreeMap<LeaseId, ClientLease>,
    /// Time before which no lease ends: clients may have been unable to renew theirs.
    lenient_until: Instant,
    /// Time of the last event.
    last: Instant,
    /// Time from which on all leases are examined again: none ends before.
    examine_at: Instant,
    horizon: LeaseId,
}

#[derive(Clone, Copy, Debug)]
struct ClientLease {
    ends: Instant,
    /// Time after which it is not renewed.
    renewable_until: Instant,
}

/// The result of a request for a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LeaseOutcome {
    Granted(LeaseGrant),
    /// The lease to renew has ended, or is too old.
    Ended,
    /// There are too many leases.
    TooMany,
}

impl Leases {
    /// Creates the leases of a coordinator of this term of office, which starts `now`.
    pub(super) fn new(coordinator_term: u64, term: Duration, now: Instant) -> Leases {
        // Terms stay below 2^31: a coordinator that is started every second for a lifetime.
        let first = LeaseId(((coordinator_term & 0x7fff_ffff) << COUNTER_BITS) + 1);
        Leases {
            term,
            next: first,
            first,
            leases: BTreeMap::new(),
            lenient_until: now + term,
            last: now,
            examine_at: now,
            horizon: LeaseId(0),
        }
    }

    /// Returns the lowest lease that may not have ended; 0 if this is not known.
    pub(super) fn horizon(&self) -> LeaseId {
        self.horizon
    }

    /// Grants a lease, or renews this one.
    pub(super) fn grant(&mut self, now: Instant, renewed: Option<LeaseId>) -> LeaseOutcome {
        let (lease, renewable_until) = match renewed {
            None if self.leases.len() >= LEASES_MAX => return LeaseOutcome::TooMany,
            None => {
                let lease = self.next;
                self.next = LeaseId(lease.0 + 1);
                (lease, now + self.term * AGE_MAX_TERMS)
            }
            Some(lease) => match self.leases.get(&lease) {
                Some(known) => (lease, known.renewable_until),
                // A lease of an earlier coordinator, or dropped below the horizon's reach.
                None if lease >= self.horizon && lease < self.next => {
                    if self.leases.len() >= LEASES_MAX {
                        return LeaseOutcome::TooMany;
                    }
                    (lease, now + self.term * AGE_MAX_TERMS)
                }
                None => return LeaseOutcome::Ended,
            },
        };
        if now >= renewable_until {
            return LeaseOutcome::Ended;
        }
        let ends = now + self.term;
        self.leases.insert(lease, ClientLease { ends, renewable_until });
        self.examine_at = self.examine_at.min(ends);
        assert!(lease >= self.horizon, "{lease} is granted below the horizon");
        let term = u32::try_from(self.term.as_millis()).unwrap_or(u32::MAX);
        LeaseOutcome::Granted(LeaseGrant { lease, term })
    }

    /// Drops the leases that have ended, and raises the horizon. `is_reachable`: clients can reach
    /// this coordinator, through some server.
    pub(super) fn pass(&mut self, now: Instant, is_reachable: bool) {
        // Events come at least once a second while a server is connected. A longer pause is one of
        // this process, or of all links.
        let was_away = now.since(self.last) > self.term / 4;
        self.last = now;
        if was_away || !is_reachable {
            self.lenient_until = now + self.term;
        }
        if now < self.lenient_until {
            return;
        }
        if now >= self.examine_at {
            self.leases.retain(|_, lease| lease.ends > now);
            let first_end = self.leases.values().map(|lease| lease.ends).min();
            self.examine_at = first_end.unwrap_or(now + self.term).max(now + EXAMINE_PAUSE);
        }
        let lowest = self.leases.keys().next().copied().unwrap_or(self.next);
        // Lease numbers are not used twice, so what was dropped in the middle stays renewable until
        // the horizon passes it.
        self.horizon = lowest.max(self.horizon);
        assert!(self.horizon <= self.next && self.first <= self.next, "a horizon above all leases");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TERM: Duration = Duration::from_secs(60);

    fn at(seconds: u64) -> Instant {
        Instant(seconds * 1_000_000_000)
    }

    fn leases() -> Leases {
        Leases::new(3, TERM, at(0))
    }

    fn granted(leases: &mut Leases, now: u64) -> LeaseId {
        match leases.grant(at(now), None) {
            LeaseOutcome::Granted(grant) => grant.lease,
            other => panic!("{other:?}"),
        }
    }

    /// Lets time pass in steps of ten seconds, with reachable clients.
    fn pass(leases: &mut Leases, from: u64, to: u64) {
        (from..=to).step_by(10).for_each(|now| leases.pass(at(now), true));
    }

    fn is_renewed(leases: &mut Leases, now: u64, lease: LeaseId) -> bool {
        matches!(leases.grant(at(now), Some(lease)), LeaseOutcome::Granted(_))
    }

    #[test]
    fn a_lease_ends_when_its_client_does_not_renew_it() {
        let mut leases = leases();
        pass(&mut leases, 0, 60);
        let (one, two) = (granted(&mut leases, 60), granted(&mut leases, 60));
        assert!(one < two && leases.horizon() <= one);
        pass(&mut leases, 70, 110);
        assert!(is_renewed(&mut leases, 110, two));
        pass(&mut leases, 120, 160);
        assert_eq!(leases.horizon(), two, "the other one is renewed");
        assert!(!is_renewed(&mut leases, 160, one));
        pass(&mut leases, 170, 180);
        assert!(leases.horizon() > two && !is_renewed(&mut leases, 180, two));
    }

    #[test]
    fn the_oldest_lease_holds_the_horizon_and_keeps_later_ones_renewable() {
        let mut leases = leases();
        let (one, two) = (granted(&mut leases, 0), granted(&mut leases, 0));
        for now in (0..300).step_by(50) {
            assert!(is_renewed(&mut leases, now, one));
            pass(&mut leases, now, now + 40);
        }
        assert_eq!(leases.horizon(), one);
        assert!(is_renewed(&mut leases, 300, two), "no record of it was dropped");
    }

    #[test]
    fn no_lease_ends_within_a_term_after_a_coordinator_has_started() {
        let mut before = Leases::new(2, TERM, at(0));
        let old = granted(&mut before, 0);
        let mut leases = leases();
        pass(&mut leases, 0, 50);
        assert_eq!(leases.horizon(), LeaseId(0), "earlier leases are unknown");
        assert!(is_renewed(&mut leases, 50, old));
        pass(&mut leases, 60, 100);
        assert_eq!(leases.horizon(), old);
        pass(&mut leases, 110, 120);
        assert!(leases.horizon() > old && !is_renewed(&mut leases, 120, old));
    }

    #[test]
    fn no_lease_ends_while_its_client_cannot_reach_the_coordinator_or_within_a_term_after() {
        let mut leases = leases();
        pass(&mut leases, 0, 60);
        let lease = granted(&mut leases, 60);
        (60..200).step_by(10).for_each(|now| leases.pass(at(now), false));
        pass(&mut leases, 200, 240);
        assert!(is_renewed(&mut leases, 240, lease));
        // The process is stopped for six minutes.
        pass(&mut leases, 600, 650);
        assert!(is_renewed(&mut leases, 650, lease));
    }

    #[test]
    fn an_old_lease_is_not_renewed_forever() {
        let mut leases = leases();
        let lease = granted(&mut leases, 0);
        let last = (0..10_000).step_by(30).take_while(|now| is_renewed(&mut leases, *now, lease));
        assert_eq!(last.last(), Some(u64::from(AGE_MAX_TERMS) * 60 - 30));
    }

    #[test]
    fn leases_that_no_coordinator_has_granted_are_refused() {
        let mut leases = leases();
        let next = LeaseId(granted(&mut leases, 0).0 + 1);
        assert_eq!(leases.grant(at(0), Some(next)), LeaseOutcome::Ended);
    }

    #[test]
    fn leases_are_examined_only_when_one_may_have_ended() {
        let mut leases = leases();
        pass(&mut leases, 0, 60);
        let (one, two) = (granted(&mut leases, 60), granted(&mut leases, 70));
        leases.pass(at(70), true);
        assert_eq!(leases.examine_at, at(120), "the end of the first one");
        assert!(is_renewed(&mut leases, 80, one));
        pass(&mut leases, 80, 120);
        assert_eq!(leases.examine_at, at(130), "the end of the second one");
        pass(&mut leases, 130, 130);
        assert_eq!((leases.horizon(), leases.leases.len()), (one, 1));
        assert!(is_renewed(&mut leases, 130, two), "its number is above the horizon");
    }
}
