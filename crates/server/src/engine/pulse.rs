//! Whether a server serves, as its coordinator wants to know it ten times a second.
//!
//! The thread that answers the coordinator has nothing to do with serving: it would go on answering
//! while a reactor hangs in a loop, behind a lock, or in a write to a disk that does not come back.
//! So an answer says whether all reactors have begun a turn since an earlier question, or slept, in
//! which case the kernel wakes them. That is what a grace period of the store tells, for one store
//! per question and reactor, and nothing for an operation.
//!
//! And what it holds, for a coordinator that has lost its file.

use super::Node;
use std::sync::Arc;
use store::log::GracePeriod;
use types::{Instant, UnixMillis};
use wire::control::{ClusterMap, Holdings};

/// Judges whether every reactor still begins turns.
pub struct Pulse {
    node: Arc<Node>,
    /// Begun with an earlier question. `None`: it is over.
    period: Option<GracePeriod>,
}

impl Pulse {
    /// Of this server.
    pub fn new(node: Arc<Node>) -> Pulse {
        Pulse { node, period: None }
    }

    /// A question. Whether some reactor has neither begun a turn nor slept since an earlier one.
    pub fn is_stalled(&mut self) -> bool {
        let store = self.node.store();
        self.period.take_if(|period| store.is_over(period));
        let is_stalled = self.period.is_some();
        self.period.get_or_insert_with(|| store.grace_period());
        is_stalled
    }

    /// The expiry clock; `None` before the first turn.
    pub fn clock(&self, now: Instant) -> Option<UnixMillis> {
        self.node.clock.read(now)
    }

    /// The newest map, and what the server holds.
    pub fn holdings(&self) -> (Arc<ClusterMap>, Holdings) {
        // The map last: what is in it is not older than what is held.
        let holdings = self.node.holdings();
        (self.node.map(), holdings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Settings;
    use crate::engine::Identity;
    use store::{Store, StoreConfig};
    use types::{ClusterId, HashSeed, ReactorId, ServerId};

    #[test]
    fn a_server_is_stalled_as_long_as_one_reactor_begins_no_turn() {
        let config = StoreConfig {
            memory_bytes: 64 << 20,
            reactors: 2,
            seed: HashSeed::new(1),
            huge_pages: false,
            durable: false,
            segment_bytes: None,
        };
        let store = Store::new(config).unwrap();
        let mut workers = [0, 1].map(|reactor| store.worker(ReactorId(reactor)));
        let settings = Settings {
            host: "here".into(),
            client_port: 1,
            bus_port: 2,
            memory_bytes: 64 << 20,
            reactors: 2,
            is_cluster: true,
            cuts: crate::Cuts::default(),
        };
        let identity = Identity { cluster: ClusterId(1), server: ServerId(1) };
        let node = Node::new(settings, identity, store, Arc::default());
        let mut pulse = Pulse::new(node);
        assert!(!pulse.is_stalled() && !pulse.is_stalled(), "who sleeps is woken when needed");
        workers.iter_mut().for_each(|worker| worker.begin_turn(UnixMillis(1)));
        assert!(!pulse.is_stalled(), "both have begun a turn");
        workers[0].begin_turn(UnixMillis(2));
        assert!(pulse.is_stalled(), "the second one has not since");
        workers[0].begin_turn(UnixMillis(3));
        assert!(pulse.is_stalled());
        workers[1].sleep();
        assert!(!pulse.is_stalled(), "nobody has to wait for who sleeps");
        assert!(pulse.is_stalled(), "the first one is awake and has begun no turn");
    }
}
