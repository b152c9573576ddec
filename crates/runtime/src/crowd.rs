//! Batching of wake-ups: detects when waiting for a few requests is cheaper than waking for each.
//!
//! Sleeping and waking costs about as much as serving a small request. A request that arrives
//! alone must pay for it. When many clients are active, the next requests are microseconds away.
//! Four of them can then share one wake-up, the prefetching of their records, and the call that
//! sends their replies. A client that is alone must never wait for others. A crowd therefore
//! means different connections, one after the other, each served a moment ago.

use std::time::Duration;
use types::ConnectionId;
use types::Instant;

/// Different connections that make a crowd. Twice the number that is waited for, so that enough
/// requests come even if half of the crowd has gone.
const CROWD: usize = 8;

/// Longest time in which all of them were served. One request per 12 us is more than one client,
/// or two alternating ones, send.
const CLOSE_TOGETHER: Duration = Duration::from_micros(100);

/// The most recently served connections.
#[derive(Default)]
pub(crate) struct Crowd {
    served: [Option<(ConnectionId, Instant)>; CROWD],
    next: usize,
}

impl Crowd {
    /// Records that a request of this client is being served.
    #[inline]
    pub(crate) fn served(&mut self, connection: ConnectionId, now: Instant) {
        self.served[self.next] = Some((connection, now));
        self.next = (self.next + 1) % CROWD;
    }

    /// Returns whether several requests are to be expected within the next few microseconds.
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
