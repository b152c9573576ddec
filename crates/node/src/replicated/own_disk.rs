//! The last living server keeps its log on its own disk, as a backup of itself.
//!
//! Its replicator and its backup machine work as with other servers, and exchange the same
//! messages. This module delivers them within the turn. See `docs/design/solo.md`.

use super::{LogMaster, Replication};
use crate::outgoing::Sending;
use crate::{Engine, Payload, Route};
use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use types::{Instant, ServerId};
use wire::control::ClusterMap;

/// Maximum bytes of pieces that a turn delivers to this server itself; the rest waits for the
/// next turn. A backup takes as much of a copy in one turn (1 ms), while its clients wait.
const BYTES_PER_TURN: usize = 256 << 10;

/// Returns whether `me` is the only living server, and has been in a cluster with another one.
/// The first server of a cluster is not the last one: it waits for others, so that its log is on
/// their disks from the beginning.
pub(super) fn is_last(map: &ClusterMap, me: ServerId, dead: &BTreeSet<ServerId>) -> bool {
    let mut living = map.servers.iter().filter(|server| !server.is_dead).map(|server| server.id);
    !dead.is_empty() && living.next() == Some(me) && living.next().is_none()
}

impl Replication {
    /// Returns whether this server's log is on its own disk because no other server lives.
    pub fn is_on_own_disk(&self) -> bool {
        self.is_on_own_disk.load(Ordering::Relaxed)
    }

    /// Records whether the log is on this server's own disk. Each reactor calls this when it sees
    /// a new map; only a change is logged.
    pub(super) fn set_on_own_disk(&self, is_last: bool) {
        let before = self.is_on_own_disk.swap(is_last, Ordering::Relaxed);
        match (before, is_last) {
            (false, true) => tracing::warn!(
                "no other server is alive, keeping the log on this disk only. Start another \
                 server: until it has joined and has copies, new writes are lost with this disk"
            ),
            (true, false) => tracing::info!(
                "another server is alive, copying data that is only on this disk to other servers"
            ),
            (false, false) | (true, true) => {}
        }
    }
}

impl Engine {
    /// Runs [`LogMaster::replicate`], and delivers the messages that this server sends to itself.
    pub(crate) fn replicate_all(&mut self, now: Instant) {
        self.with_log_master(now, LogMaster::replicate);
        let mut room = BYTES_PER_TURN;
        while self.deliver_to_itself(now, &mut room) {
            self.with_log_master(now, LogMaster::replicate);
        }
    }

    /// Delivers messages of this server to itself. Returns whether there were any; then the
    /// caller must call again, because the delivery may have produced more.
    fn deliver_to_itself(&mut self, now: Instant, room: &mut usize) -> bool {
        let me = self.node.me();
        if self.out.peers.iter().any(|sending| sending.to.is_here(me)) {
            self.to_itself.extend(self.out.peers.extract_if(.., |sending| sending.to.is_here(me)));
        }
        let mut has_delivered = false;
        // Messages without a payload are few, and do not count against the limit.
        let fits = |sending: &mut Sending, room: usize| room > 0 || sending.payload.is_empty();
        while let Some(sending) = self.to_itself.pop_front_if(|sending| fits(sending, *room)) {
            assert!(sending.to.is_here(me), "only its own messages are delivered here");
            let Sending { message, payload, .. } = sending;
            *room = room.saturating_sub(payload.len());
            let payload = Payload { buffer: payload, start: 0 };
            self.on_peer(now, me, Route::HERE, message, payload);
            has_delivered = true;
        }
        has_delivered
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::ClusterId;
    use wire::control::ServerInfo;

    fn map(servers: &[(u32, bool)]) -> ClusterMap {
        let server = |(id, is_dead): &(u32, bool)| ServerInfo {
            id: ServerId(*id),
            host: "here".into(),
            client_port: 1,
            bus_port: 2,
            connected: !is_dead,
            rack: String::new(),
            is_dead: *is_dead,
            in_recovery: false,
        };
        let servers = servers.iter().map(server).collect();
        let (cluster, tablets, moving) = (ClusterId(1), Vec::new(), Vec::new());
        ClusterMap { version: 1, cluster, servers, tablets, moving }
    }

    #[test]
    fn a_server_is_the_last_one_when_all_others_that_it_knew_are_dead() {
        let is_last = |servers: &[(u32, bool)], dead: &[u32]| {
            let dead = dead.iter().copied().map(ServerId).collect();
            super::is_last(&map(servers), ServerId(3), &dead)
        };
        assert!(!is_last(&[(3, false)], &[]), "the first one waits for others");
        assert!(!is_last(&[], &[2]), "no map has come yet");
        assert!(!is_last(&[(2, false), (3, false)], &[1]));
        assert!(is_last(&[(2, true), (3, false)], &[2]));
        assert!(is_last(&[(3, false)], &[1, 2]), "dead servers do not count");
        assert!(!is_last(&[(2, true), (4, false)], &[2, 3]), "it is not one of them itself");
    }

    #[test]
    fn the_own_disk_is_used_only_if_there_is_no_other() {
        let candidates = |servers: &[(u32, bool)], is_last| {
            let (_, candidates) = super::super::candidates(&map(servers), ServerId(3), is_last);
            candidates.iter().map(|it| (it.server.0, it.is_usable)).collect::<Vec<_>>()
        };
        assert_eq!(candidates(&[(2, false), (3, false), (4, true)], false), [(2, true)]);
        assert_eq!(candidates(&[(2, true), (3, false)], false), []);
        assert_eq!(candidates(&[(2, true), (3, false)], true), [(3, true)]);
    }
}
