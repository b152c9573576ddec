//! Liveness of a server, which its coordinator checks ten times a second.
//!
//! The thread that answers the coordinator does not serve clients. It would continue to answer
//! while a reactor hangs in a loop, behind a lock, or in a disk write that never returns. So each
//! answer reports whether all reactors have begun a turn, or slept, since an earlier question
//! (the kernel wakes sleeping reactors). A grace period of the store provides this: it costs one
//! store per question and reactor, and nothing per operation.
//!
//! This module also reports the server's holdings, for a coordinator that has lost its file.

use crate::Node;
use std::sync::Arc;
use store::log::GracePeriod;
use types::{Instant, UnixMillis};
use wire::control::{ClusterMap, Holdings};

/// Liveness check: detects reactors that no longer begin turns.
pub struct ReactorLiveness {
    node: Arc<Node>,
    /// Grace period begun by an earlier question; `None` if it is over.
    period: Option<GracePeriod>,
}

impl ReactorLiveness {
    /// Makes the liveness check of a server.
    pub fn new(node: Arc<Node>) -> ReactorLiveness {
        ReactorLiveness { node, period: None }
    }

    /// Returns whether some reactor has neither begun a turn nor slept since an earlier call.
    pub fn is_stalled(&mut self) -> bool {
        let store = self.node.store();
        self.period.take_if(|period| store.is_over(period));
        let is_stalled = self.period.is_some();
        self.period.get_or_insert_with(|| store.grace_period());
        is_stalled
    }

    /// Returns the expiry clock; `None` before the first turn.
    pub fn clock(&self, now: Instant) -> Option<UnixMillis> {
        self.node.clock.read(now)
    }

    /// Returns the newest map and the server's holdings.
    pub fn holdings(&self) -> (Arc<ClusterMap>, Holdings) {
        // The map is read last, so that it is not older than the holdings.
        let holdings = self.node.holdings();
        (self.node.map(), holdings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::NodeSettings;
    use crate::ServerIdentity;
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
        let settings = NodeSettings {
            host: "here".into(),
            client_port: 1,
            bus_port: 2,
            memory_bytes: 64 << 20,
            reactors: 2,
            is_cluster: true,
            cuts: crate::Cuts::default(),
        };
        let identity = ServerIdentity { cluster: ClusterId(1), server: ServerId(1) };
        let durability = Arc::new(crate::Replication::nowhere(ServerId(1), 2));
        let node = Node::new(settings, identity, store, durability, Arc::default());
        let mut liveness = ReactorLiveness::new(node);
        assert!(
            !liveness.is_stalled() && !liveness.is_stalled(),
            "a sleeping reactor is woken when needed"
        );
        workers.iter_mut().for_each(|worker| worker.begin_turn(UnixMillis(1)));
        assert!(!liveness.is_stalled(), "both have begun a turn");
        workers[0].begin_turn(UnixMillis(2));
        assert!(liveness.is_stalled(), "the second one has not since");
        workers[0].begin_turn(UnixMillis(3));
        assert!(liveness.is_stalled());
        workers[1].sleep();
        assert!(!liveness.is_stalled(), "a sleeping reactor is not waited for");
        assert!(liveness.is_stalled(), "the first one is awake and has begun no turn");
    }
}
