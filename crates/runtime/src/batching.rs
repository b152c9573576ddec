//! Batching of wake-ups: detects when waiting for a few requests is cheaper than waking for each.
//! See `docs/design/io-uring.md`, "Batching wake-ups". A client that is alone must never wait for
//! others, so the criterion is that different connections were each served a moment ago.

use std::time::Duration;
use types::ConnectionId;
use types::Instant;

/// Different connections that must have been served. Twice the number that is waited for, so that
/// enough requests come even if half of the clients have gone.
const CLIENTS_MIN: usize = 8;

/// Longest time in which all of them were served. One request per 12 us is more than one client,
/// or two alternating ones, send.
const CLOSE_TOGETHER: Duration = Duration::from_micros(100);

/// The most recently served connections.
#[derive(Default)]
pub(crate) struct RecentClients {
    served: [Option<(ConnectionId, Instant)>; CLIENTS_MIN],
    next: usize,
}

impl RecentClients {
    /// Records that a request of this client is being served.
    #[inline]
    pub(crate) fn served(&mut self, connection: ConnectionId, now: Instant) {
        self.served[self.next] = Some((connection, now));
        self.next = (self.next + 1) % CLIENTS_MIN;
    }

    /// Returns whether several requests are to be expected within the next few microseconds.
    pub(crate) fn are_frequent(&self, now: Instant) -> bool {
        let Some((_, oldest)) = self.served[self.next] else { return false };
        if now.since(oldest) > CLOSE_TOGETHER {
            return false;
        }
        let connections = self.served.map(|served| served.map(|(connection, _)| connection));
        (1..CLIENTS_MIN).all(|at| !connections[..at].contains(&connections[at]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::ReactorId;

    fn served(connections: usize, pause: Duration) -> (RecentClients, Instant) {
        let (mut clients, mut now) = (RecentClients::default(), Instant(0));
        for round in 0..100 {
            now = now + pause;
            clients.served(ConnectionId::new(ReactorId(0), round % connections, 1), now);
        }
        (clients, now)
    }

    #[test]
    fn many_clients_that_ask_often_are_batched_until_they_stop() {
        let (clients, now) = served(8, Duration::from_micros(10));
        assert!(clients.are_frequent(now));
        assert!(!clients.are_frequent(now + Duration::from_micros(50)));
    }

    #[test]
    fn few_clients_and_slow_clients_are_not_batched() {
        for connections in 1..8 {
            let (clients, now) = served(connections, Duration::from_nanos(100));
            assert!(!clients.are_frequent(now), "{connections} clients");
        }
        let (clients, now) = served(1_000, Duration::from_micros(20));
        assert!(!clients.are_frequent(now));
    }

    #[test]
    fn without_requests_nothing_is_batched() {
        assert!(!RecentClients::default().are_frequent(Instant(0)));
    }
}
