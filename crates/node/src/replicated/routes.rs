//! Routes of answers about replicas: the connections on which they are sent.

use crate::messages::Route;
use std::collections::BTreeMap;
use wire::replica::ReplicaId;

/// Number of routes below which routes of missing replicas are not removed.
const ROUTES_MIN: usize = 256;

/// The connection on which the last request about each replica arrived.
///
/// **Invariant:** the number of routes is at most [`ROUTES_MIN`], or twice the number that was
/// left when the routes of missing replicas were last removed.
#[derive(Default)]
pub(super) struct Routes {
    by_replica: BTreeMap<ReplicaId, Route>,
    /// Number of routes at which the routes of missing replicas are removed.
    full_at: usize,
}

impl Routes {
    /// Records the route of answers about a replica. Other reactors are not notified when a
    /// replica is freed, so each removes the routes of missing replicas when the number has
    /// doubled. It then calls `knows` for a function that returns whether a replica exists.
    pub(super) fn note<K: Fn(ReplicaId) -> bool>(
        &mut self,
        replica: ReplicaId,
        route: Route,
        knows: impl FnOnce() -> K,
    ) {
        if self.by_replica.len() >= self.full_at.max(ROUTES_MIN) {
            let is_there = knows();
            self.by_replica.retain(|replica, _| is_there(*replica));
            self.full_at = 2 * self.by_replica.len();
        }
        self.by_replica.insert(replica, route);
        let max = self.full_at.max(ROUTES_MIN);
        assert!(self.by_replica.len() <= max, "the number of routes is bounded");
    }

    pub(super) fn get(&self, replica: ReplicaId) -> Option<Route> {
        self.by_replica.get(&replica).copied()
    }

    pub(super) fn remove(&mut self, replica: ReplicaId) {
        self.by_replica.remove(&replica);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::{SegmentId, ServerId};
    use wire::replica::ReplicaEpoch;

    fn replica(segment: u64) -> ReplicaId {
        ReplicaId { log: ServerId(2), segment: SegmentId(segment), epoch: ReplicaEpoch(0) }
    }

    #[test]
    fn routes_of_replicas_that_are_gone_do_not_stay() {
        let mut routes = Routes::default();
        let living = 300;
        for segment in 0..100_000 {
            let is_there = move |it: ReplicaId| it.segment.0 + living > segment;
            routes.note(replica(segment), Route::HERE, || is_there);
            assert!(routes.by_replica.len() <= 2 * living as usize, "at segment {segment}");
            let oldest = replica((segment + 1).saturating_sub(living));
            assert_eq!(routes.get(oldest), Some(Route::HERE), "a replica that is there");
        }
        routes.remove(replica(99_999));
        assert_eq!(routes.get(replica(99_999)), None);
    }
}
