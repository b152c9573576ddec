//! Whether many clients ask so often that a reactor does better to let a few requests come together
//! than to be woken by each.
//!
//! To sleep and be woken costs about as much as serving a small request. When one request comes at
//! a time it has to be paid for each; when many clients ask, the next requests are microseconds
//! away, and four of them can share one waking, the fetching of their records from memory, and the
//! call that sends their replies. Nobody who is alone must ever wait for others: so a crowd is
//! different connections, one after the other, each of whom was served a moment ago.

use crate::connection::ConnectionId;
use std::time::Duration;
use types::Instant;

/// Different connections that make a crowd. Twice as many as are waited for together, so that they
/// come although half of the crowd has gone.
const CROWD: usize = 8;

/// In which time so many must have been served: one in 12 us is above what a client alone, or two
/// of them, ask by turns.
const CLOSE_TOGETHER: Duration = Duration::from_micros(100);

/// The connections served last.
#[derive(Default)]
pub(crate) struct Crowd {
    served: [Option<(ConnectionId, Instant)>; CROWD],
    next: usize,
}

impl Crowd {
    /// A request of this client is being served.
    #[inline]
    pub(crate) fn served(&mut self, connection: ConnectionId, now: Instant) {
        self.served[self.next] = Some((connection, now));
        self.next = (self.next + 1) % CROWD;
    }

    /// Whether it is to be expected that several ask within the next few microseconds.
    pub(crate) fn is_dense(&self, now: Instant) -> bool {
        let Some((_, oldest)) = self.served[self.next] else { return false };
        if now.since(oldest) > CLOSE_TOGETHER {
            return false;
        }
        let connections = self.served.map(|served| served.map(|(connection, _)| connection));
        (1..CROWD).all(|at| !connections[..at].contains(&connections[at]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::ReactorId;

    fn crowd(connections: usize, pause: Duration) -> (Crowd, Instant) {
        let (mut crowd, mut now) = (Crowd::default(), Instant(0));
        for round in 0..100 {
            now = now + pause;
            crowd.served(ConnectionId::new(ReactorId(0), round % connections, 1), now);
        }
        (crowd, now)
    }

    #[test]
    fn many_clients_that_ask_often_are_a_crowd_until_they_stop() {
        let (crowd, now) = crowd(8, Duration::from_micros(10));
        assert!(crowd.is_dense(now));
        assert!(!crowd.is_dense(now + Duration::from_micros(50)));
    }

    #[test]
    fn few_clients_are_no_crowd_however_often_they_ask_and_many_slow_ones_are_none() {
        for connections in 1..8 {
            let (crowd, now) = crowd(connections, Duration::from_nanos(100));
            assert!(!crowd.is_dense(now), "{connections} clients");
        }
        let (crowd, now) = crowd(1_000, Duration::from_micros(20));
        assert!(!crowd.is_dense(now));
    }

    #[test]
    fn nobody_served_is_nobody() {
        assert!(!Crowd::default().is_dense(Instant(0)));
    }
}
