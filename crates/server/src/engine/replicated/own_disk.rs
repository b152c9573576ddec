//! The last living server keeps its log on its own disk: it is a backup of itself.
//!
//! Its replicator and the backup's machine are those of a server with others, and speak to each
//! other by the same messages. These are delivered here, within the turn, and never reach a socket.
//! See `docs/design/solo.md`.

use super::Replication;
use crate::engine::outgoing::Sending;
use crate::engine::{Engine, Payload, Route};
use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use types::{Instant, ServerId};
use wire::control::ClusterMap;

/// Bytes of pieces that a turn takes for this server's own log before it leaves the rest to the
/// next one: as many as a backup takes of a copy in one turn (1 ms). Clients wait for that.
const BYTES_PER_TURN: usize = 256 << 10;

/// Returns whether no other server lives, and one has lived that was in the cluster with `me`. The
/// first server of a cluster waits for others: its log is to be on their disks from the beginning.
pub(super) fn is_last(map: &ClusterMap, me: ServerId, dead: &BTreeSet<ServerId>) -> bool {
    let mut living = map.servers.iter().filter(|server| !server.is_dead).map(|server| server.id);
    !dead.is_empty() && living.next() == Some(me) && living.next().is_none()
}

impl Replication {
    /// Returns whether this server's log is kept on its own disk, since no other server lives.
    pub fn is_on_own_disk(&self) -> bool {
        self.is_on_own_disk.load(Ordering::Relaxed)
    }

    /// Sets it. Each reactor calls this when it sees a new map; only a change is logged.
    pub(super) fn set_on_own_disk(&self, is_last: bool) {
        let before = self.is_on_own_disk.swap(is_last, Ordering::Relaxed);
        match (before, is_last) {
            (false, true) => tracing::warn!(
                "no other server lives: this one keeps its log on its own disk only. Start another \
                 one: until it has joined and has copies, what is written is lost with this disk"
            ),
            (true, false) => tracing::info!(
                "another server lives: what stands on this disk only is copied to others"
            ),
            (false, false) | (true, true) => {}
        }
    }
}

impl Engine {
    /// As [`Engine::replicate`], and delivers what this server sends to itself.
    pub(in crate::engine) fn replicate_all(&mut self, replication: &Replication, now: Instant) {
        self.replicate(replication, now);
        let mut room = BYTES_PER_TURN;
        while self.deliver_to_itself(now, &mut room) {
            self.replicate(replication, now);
        }
    }

    /// Returns whether there was something. The next call delivers what has come of it.
    fn deliver_to_itself(&mut self, now: Instant, room: &mut usize) -> bool {
        let me = self.node.me();
        if self.out.peers.iter().any(|sending| sending.to.is_here(me)) {
            self.to_itself.extend(self.out.peers.extract_if(.., |sending| sending.to.is_here(me)));
        }
        let mut has_delivered = false;
        // Questions and answers are few, and do not wait behind the pieces of the next turn alone.
        let fits = |sending: &mut Sending, room: usize| room > 0 || sending.payload.is_empty();
        while let Some(sending) = self.to_itself.pop_front_if(|sending| fits(sending, *room)) {
            let Sending { message, payload, .. } = sending;
            *room = room.saturating_sub(payload.len());
            let payload = Payload { buffer: payload, start: 0 };
            self.on_peer(now, me, Route::HERE, message, payload);
            has_delivered = true;
        }
        has_delivered
    }

    /// Returns when the rest is delivered that had to be left, if there is any: at once.
    pub(super) fn own_disk_deadline(&self) -> Option<Instant> {
        (!self.to_itself.is_empty()).then_some(Instant(0))
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
        assert!(is_last(&[(3, false)], &[1, 2]), "nobody asks for the dead any more");
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
