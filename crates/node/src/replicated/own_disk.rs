//! The log on the server's own disk: the server is a backup of itself. So is a server without a
//! cluster, always, and the last living server of a cluster.
//!
//! Its replicator and its backup machine work as with other servers, and exchange the same
//! messages. This module delivers them within the turn. It also loads the log of an earlier
//! process, piece by piece (`loading`). See `docs/design/solo.md` and `docs/design/durability.md`.

use super::backup_jobs::{BackupJob, BackupWork};
use super::{BackupPart, LogMaster, LogPlacement, MANIFEST_REACTOR, Mode, Replication, lock};
use crate::Engine;
use crate::context::Context;
use crate::loading::{KeptError, LoadingWork};
use crate::messages::{Payload, Route, Sending};
use crate::outgoing::{DiskJob, EngineOutput};
use crate::settings::ServerIdentity;
use crate::state::NodeState;
use protocols::Outbox;
use protocols::replication::{
    BackupCandidate, Rack, Replicator, ReplicatorEvent, ReplicatorSettings,
};
use std::collections::BTreeSet;
use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use store::Store;
use types::{Instant, SegmentId, ServerId};
use wire::control::ClusterMap;
use wire::manifest::SegmentContent;
use wire::replica::{ReplicaEpoch, ReplicaId};

/// Maximum bytes of pieces that a turn delivers to this server itself; the rest waits for the
/// next turn. A backup takes as much of a copy in one turn (1 ms), while its clients wait.
const BYTES_PER_TURN: usize = 256 << 10;

/// State of a standalone server: its own disk is its only backup.
#[derive(Default)]
pub(super) struct StandaloneState {
    /// Set while the disk takes no segment of the manifest.
    refuses_manifest: AtomicBool,
    /// Set while writes are refused because the disk takes no replica.
    is_refusing: AtomicBool,
    /// Serializes changes of `is_refusing`, so that the last one considers all reactors.
    changing: Mutex<()>,
    /// Set if the replicas are to be synced now, not at the end of the interval.
    wants_sync: AtomicBool,
    /// Time at which sleeping reactors were last woken to sync.
    woken: Mutex<Instant>,
}

/// Makes a replicator. That of a server without a cluster has its own disk as only backup.
pub(super) fn replicator(settings: ReplicatorSettings) -> Replicator {
    let mut replicator = Replicator::new(settings);
    if settings.is_standalone {
        let (server, own) = (settings.log, Rack(0));
        let servers = vec![BackupCandidate { server, rack: Rack(1), is_usable: true }];
        let event = ReplicatorEvent::Candidates { own, servers };
        let mut effects = Outbox::new();
        replicator.handle(Instant(0), event, &mut effects);
        assert!(effects.drain().next().is_none(), "a replicator without segments does nothing");
    }
    replicator
}

impl LogMaster {
    /// Loads one piece. Any error ends the process: a server must not serve with records missing.
    pub(crate) fn load_piece(&mut self, context: &mut Context<'_>) -> bool {
        let replication = self.replication.clone();
        let loading = replication.loading();
        if !loading.may_run(&context.node.map()) {
            return false;
        }
        let Some(piece) = loading.take() else { return false };
        let (node, now) = (context.node, context.now);
        let done = match piece {
            LoadingWork::Read(segment, content) => self.read_segment(segment, content, context),
            LoadingWork::Enter(segment, from) => {
                loading.enter_segment(segment, from, context.worker)
            }
            LoadingWork::Sweep(cursor) => {
                let swept = loading.sweep(cursor, node.store(), context.worker);
                swept.map(|last| last.into_iter().for_each(|stamp| node.loaded(now, stamp)))
            }
        };
        loading.end_piece();
        if let Err(error) = done {
            node.fail(error.to_string());
        }
        true
    }

    /// Reads a segment into memory, and hands it over to this reactor's replicator.
    fn read_segment(
        &mut self,
        segment: SegmentId,
        content: Option<SegmentContent>,
        context: &mut Context<'_>,
    ) -> Result<(), KeptError> {
        let replication = self.replication.clone();
        let (loading, disk) = (replication.loading(), replication.disk());
        let (header, end) = loading.read_replica(disk, segment, content, context.node.store())?;
        let found = SegmentContent { length: end.length, crc: end.crc };
        // The segment receives no more bytes, and is synced: seal it with this content.
        self.adopt(header.id, found, content.is_some(), context);
        loading.queue_segment(segment, end.stamp);
        Ok(())
    }

    /// Takes over a segment that an earlier process has written. Its replica is synced. If the
    /// segment is not sealed, the manifest records its content now.
    fn adopt(
        &mut self,
        replica: ReplicaId,
        content: SegmentContent,
        is_sealed: bool,
        context: &mut Context<'_>,
    ) {
        let replication = self.replication.clone();
        let ReplicaId { segment, epoch, .. } = replica;
        assert!(!segment.is_manifest(), "{segment} of the manifest is not loaded as data");
        let before = replication.owners().insert(segment, context.reactor);
        assert!(before.is_none(), "{segment} is adopted twice");
        assert!(replication.loading().is_on(), "{segment} is adopted after loading");
        replication.backup().adopt(replica, content.length);
        let length = content.length;
        self.drive_master(ReplicatorEvent::Adopted { segment, epoch, length }, context);
        if is_sealed {
            self.drive_master(ReplicatorEvent::Sealed { segment }, context);
        } else {
            replication.manifest_log().close(segment, content, context.reactor);
            replication.call_chain(context.node, context.reactor);
        }
    }
}

impl Replication {
    /// Returns whether writes are refused, because the own disk, as the only backup, takes none.
    #[inline]
    pub fn refuses_writes(&self) -> bool {
        self.placement == LogPlacement::OwnDisk
            && self.standalone.is_refusing.load(Ordering::Relaxed)
    }

    /// Records whether the own disk takes segments of the manifest.
    pub(super) fn note_manifest_reach(&self, reach: usize) {
        let state = &self.standalone.refuses_manifest;
        if state.load(Ordering::Relaxed) != (reach == 0) {
            state.store(reach == 0, Ordering::Relaxed);
            self.note_refusal();
        }
    }

    /// Recomputes whether the own disk takes writes, and logs each change.
    pub(super) fn note_refusal(&self) {
        if self.placement != LogPlacement::OwnDisk {
            return;
        }
        let state = &self.standalone;
        let _changing = lock(&state.changing);
        let is_refusing = state.refuses_manifest.load(Ordering::Relaxed) || self.reach() == 0;
        match (state.is_refusing.swap(is_refusing, Ordering::Relaxed), is_refusing) {
            (false, true) => {
                tracing::error!("cannot write the log: refusing writes until the disk works again")
            }
            (true, false) => tracing::warn!("the log can be written again, accepting writes"),
            (false, false) | (true, true) => {}
        }
    }

    /// Asks for a sync of the replicas on the own disk at the end of this turn.
    pub(super) fn hurry_sync(&self) {
        let is_standalone = self.placement == LogPlacement::OwnDisk;
        assert!(is_standalone, "only a standalone server waits for its own sync");
        self.standalone.wants_sync.store(true, Ordering::Relaxed);
    }

    /// Wakes the reactors to sync, once per interval, while memory is low: segments that leave wait
    /// for the bytes of all reactors. A version mark does the same.
    fn wake_to_sync(&self, now: Instant, node: &NodeState) {
        let mut woken = lock(&self.standalone.woken);
        if self.plan.mode == Mode::Memory && now.since(*woken) >= self.sync_interval {
            *woken = now;
            node.wake_all();
        }
    }

    /// Frees the replicas of a segment that were not used at the start. The manifest has its content.
    pub(super) fn free_superseded(&self, segment: SegmentId, out: &mut EngineOutput) {
        for replica in self.loading.take_superseded(segment) {
            assert_eq!(replica.segment, segment, "a replica of another segment is freed");
            let (disk, work) = (self.disk.clone(), BackupWork::Free(replica));
            out.disk.push(DiskJob::Backup(BackupJob { disk, work }));
        }
    }

    /// Syncs the log of a standalone server with version marks, and records that all of it is
    /// complete, at the orderly end of the process. No reactor runs any more. Without this, the
    /// next start would ignore the entries above the last mark if the machine is restarted
    /// meanwhile.
    ///
    /// Fails if the disk may have lost bytes of a segment whose copy is not in the manifest: then
    /// the entries above the last mark do not count.
    pub fn end_in_order(&self, store: &Store, identity: ServerIdentity) -> io::Result<()> {
        if !self.has_marks() {
            return Ok(());
        }
        assert_eq!(self.placement, LogPlacement::OwnDisk, "only a standalone server has marks");
        let open: Vec<_> = self.backup().open_data().collect();
        let mut synced = BTreeSet::new();
        for replica in open {
            replica.sync()?;
            let ReplicaId { segment, epoch, .. } = replica.id();
            // A copy may be incomplete.
            synced.extend((epoch == ReplicaEpoch::default()).then_some(segment));
        }
        if let Some(segment) = self.manifest_log().unsealed().find(|it| !synced.contains(it)) {
            let why = "a sync of it has failed, and it is not copied yet";
            return Err(io::Error::other(format!("segment {segment} of the log: {why}")));
        }
        let segment_bytes = store.log().segment_bytes();
        let manifest = self.manifest_log().last_segment(store.stamp(), segment_bytes);
        manifest.write(identity, self.disk())?;
        Ok(())
    }

    /// Returns whether no other server of the cluster lives, so that the log is on the own disk.
    pub fn is_last_server(&self) -> bool {
        self.is_last_server.load(Ordering::Relaxed)
    }

    /// Records whether no other server of the cluster lives. Each reactor calls this when it sees
    /// a new map; only a change is logged.
    pub(super) fn set_last_server(&self, is_last: bool) {
        assert!(self.is_with_others(), "only a server of a cluster is its last one");
        let before = self.is_last_server.swap(is_last, Ordering::Relaxed);
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

/// Returns whether `me` is the only living server, and has been in a cluster with another one.
/// The first server of a cluster is not the last one: it waits for others, so that its log is on
/// their disks from the beginning.
pub(super) fn is_last(map: &ClusterMap, me: ServerId, dead: &BTreeSet<ServerId>) -> bool {
    let mut living = map.servers.iter().filter(|server| !server.is_dead).map(|server| server.id);
    !dead.is_empty() && living.next() == Some(me) && living.next().is_none()
}

impl Engine {
    /// Runs [`LogMaster::replicate`], and delivers the messages that this server sends to itself.
    pub(crate) fn replicate_all(&mut self, now: Instant) {
        self.replicate_and_deliver(now);
        if self.node.durability().placement() == LogPlacement::OwnDisk {
            if self.node.durability().advance_mark(now, self.reactor, &self.node) {
                self.replicate_and_deliver(now);
            }
            self.sync_if_wanted(now);
        }
    }

    fn replicate_and_deliver(&mut self, now: Instant) {
        self.with_log_master(now, LogMaster::replicate);
        let mut room = BYTES_PER_TURN;
        while self.deliver_to_itself(now, &mut room)
            && self.log_master.has_work(self.reactor, &self.node)
        {
            self.with_log_master(now, LogMaster::replicate);
        }
    }

    /// Syncs the replicas on the own disk ahead of time, if the manifest or a version mark waits for
    /// that or memory is low: memory of dead entries is reusable once the entries that superseded them are
    /// synced.
    fn sync_if_wanted(&mut self, now: Instant) {
        let replication = &self.log_master.replication;
        let wanted = &replication.standalone.wants_sync;
        let is_wanted = wanted.load(Ordering::Relaxed) && wanted.swap(false, Ordering::Relaxed);
        let log = self.node.store().log();
        let is_low = log.is_low() || log.shortage_percent() > 0;
        replication.mark_for_leaving(is_low, now, &self.node);
        if is_low {
            replication.wake_to_sync(now, &self.node);
        }
        let syncs_manifest =
            self.reactor == MANIFEST_REACTOR && replication.marks.wants_manifest_sync();
        let is_marked = self.backup.follow_marks(replication.marks.rounds());
        if is_wanted || is_low || is_marked {
            self.with_backup(now, BackupPart::sync_now);
        }
        if syncs_manifest {
            self.with_backup(now, BackupPart::sync_manifest);
        }
    }

    /// Delivers messages of this server to itself. Returns whether there were any; then the
    /// caller must call again, because the delivery may have produced more.
    fn deliver_to_itself(&mut self, now: Instant, room: &mut usize) -> bool {
        let me = self.node.me();
        let mut has_delivered = false;
        // Messages without a payload are few, and do not count against the limit.
        let fits = |sending: &mut Sending, room: usize| room > 0 || sending.payload.is_empty();
        loop {
            if self.out.peers.iter().any(|sending| sending.to.is_here(me)) {
                let own = self.out.peers.extract_if(.., |sending| sending.to.is_here(me));
                self.to_itself.extend(own);
            }
            let Some(sending) = self.to_itself.pop_front_if(|sending| fits(sending, *room)) else {
                return has_delivered;
            };
            assert!(sending.to.is_here(me), "only its own messages are delivered here");
            let Sending { message, payload, .. } = sending;
            *room = room.saturating_sub(payload.len());
            let payload = Payload { buffer: payload, start: 0 };
            self.on_peer(now, me, Route::HERE, message, payload);
            has_delivered = true;
        }
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
    #[should_panic(expected = "only a server of a cluster is its last one")]
    fn a_server_without_a_cluster_is_not_the_last_one() {
        Replication::nowhere(ServerId(1), 1).set_last_server(true);
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
