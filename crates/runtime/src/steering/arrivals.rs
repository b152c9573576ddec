//! Bounds of the times at which the requests of a turn arrived.

use types::Instant;

/// The connections that turns have left unserved. They are served in order, so two times bound
/// their arrivals.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct UnservedClients {
    /// Number of connections in front of the queue that have waited since `front_since`.
    front: usize,
    front_since: Instant,
    /// Earliest arrival of those behind them, if there may be any.
    behind_since: Option<Instant>,
}

impl UnservedClients {
    /// Processes a turn that has served `served` connections and left `left`. Newly readable ones
    /// arrived at `since` or later. Returns a time before which no served request arrived.
    pub(super) fn after_turn(&mut self, since: Instant, served: usize, left: usize) -> Instant {
        if self.front == 0 {
            assert!(self.behind_since.is_none(), "nobody waits behind an empty queue");
            (self.front, self.front_since) = (left, since);
            return since;
        }
        let oldest = self.front_since.min(since);
        let behind = *self.behind_since.get_or_insert(since);
        if served < self.front {
            self.front -= served;
            return oldest;
        }
        self.behind_since = None;
        (self.front, self.front_since) = (left, behind);
        oldest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_unserved_connections_requests_arrived_after_the_poll_before() {
        let mut clients = UnservedClients::default();
        assert_eq!(clients.after_turn(Instant(10), 3, 0), Instant(10));
        assert_eq!(clients.after_turn(Instant(20), 3, 0), Instant(20));
    }

    #[test]
    fn unserved_connections_keep_their_time_until_all_are_served() {
        let mut clients = UnservedClients::default();
        assert_eq!(clients.after_turn(Instant(10), 32, 40), Instant(10), "40 are left from 10 on");
        assert_eq!(clients.after_turn(Instant(20), 32, 9), Instant(10), "8 are left from 10 on");
        assert_eq!(clients.after_turn(Instant(30), 9, 2), Instant(10), "the last of them");
        assert_eq!(clients.after_turn(Instant(40), 2, 0), Instant(20), "2 were behind, from 20 on");
        assert_eq!(clients.after_turn(Instant(50), 1, 0), Instant(50));
    }

    #[test]
    fn a_queue_that_never_empties_does_not_make_its_requests_older() {
        let mut clients = UnservedClients::default();
        for turn in 1..1_000 {
            let oldest = clients.after_turn(Instant(10 * turn), 32, 8);
            assert!(oldest >= Instant(10 * (turn.max(3) - 2)), "turn {turn}: {oldest:?}");
        }
    }
}
