//! Replication of the segments that one reactor writes: its replicator, and the pieces it sends.
//!
//! The replicator deals in lengths, and this module supplies the bytes. It reads a piece's bytes
//! from the segment in memory. A writer per replica makes the piece's header, and remembers the
//! beginning of the last piece so that the piece can be sent again.

use super::{
    LogMessage, LogPlacement, MANIFEST_REACTOR, Replication, candidates, lock, own_disk,
    replicator_settings,
};
use crate::context::Context;
use crate::messages::{Sending, To};
use crate::outgoing::EngineOutput;
use crate::settings::{LiveSettings, MinReplicas};
use crate::state::NodeState;
use protocols::Outbox;
use protocols::replication::{BackupCounts, Piece, Replicator, ReplicatorEffect, ReplicatorEvent};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use store::log::LogChange;
use types::{ClusterId, Instant, ReactorId, SegmentId, ServerId, Version};
use wire::control::LivenessUpdate;
use wire::manifest::SegmentContent;
use wire::peer::{Append, AppendRefusal, AppendResult, Appended, PeerMessage};
use wire::replica::{
    PIECE_HEADER_BYTES, PieceWriter, ReplicaId, ReplicaIdentity, ReplicaKind, Stamp,
};

/// The log of this server on one reactor: the replicator of the segments that it writes, with the
/// pieces that it sends, and the manifest on the first reactor.
pub(crate) struct LogMaster {
    pub(crate) replication: Arc<Replication>,
    replicator: Replicator,
    pieces: PieceHeaders,
    /// Version of the last map that the replicator was given.
    map: u64,
    dead: BTreeSet<ServerId>,
    /// Set if a segment was ended, so that its appended bytes must be collected once more.
    has_ended: bool,
    /// Version counter when bytes were last handed out: no entry in them has a higher version.
    written: Version,
    /// Buffer of events for the replicator about the bytes appended in this turn.
    handed_out: Vec<ReplicatorEvent>,
    /// Buffer of the replicator's effects.
    effects: Outbox<ReplicatorEffect>,
    /// Minimum number of backups that must receive a write.
    reach_min: usize,
}

/// Header writers for the pieces of many replicas.
#[derive(Default)]
pub(super) struct PieceHeaders {
    writers: BTreeMap<(SegmentId, ServerId), ReplicaPieces>,
}

struct ReplicaPieces {
    replica: ReplicaId,
    /// State at the beginning of the last piece, and at its end.
    before: PieceWriter,
    after: PieceWriter,
}

/// Shortage of memory from which on backups sync without delay. Asking earlier costs syncs that the
/// cleaner does not wait for; from here on, a quarter of its target is free.
const SHORTAGE_PERCENT: u8 = 50;

/// Fields that all messages of one log have in common.
#[derive(Clone, Copy)]
pub(super) struct Sender {
    pub(super) cluster: ClusterId,
    pub(super) kind: ReplicaKind,
    pub(super) segment_bytes: u32,
    /// Upper bounds of the versions and expiry clocks in the bytes sent so far.
    pub(super) stamp: Stamp,
    /// Set while so little memory is free that backups sync without delay: the memory of a cleaned
    /// segment is reusable once its survivors are synced.
    pub(super) is_short_of_memory: bool,
}

impl Sender {
    pub(super) fn new(kind: ReplicaKind, node: &NodeState) -> Sender {
        let (cluster, store) = (node.cluster(), node.store());
        let segment_bytes = store.log().segment_bytes() as u32;
        let is_short_of_memory = store.log().shortage_percent() >= SHORTAGE_PERCENT;
        Sender { cluster, kind, segment_bytes, stamp: store.stamp(), is_short_of_memory }
    }
}

impl PieceHeaders {
    /// Returns the header of a piece with these bytes; `None` for a piece without bytes.
    fn header(
        &mut self,
        backup: ServerId,
        piece: &Piece,
        bytes: &[u8],
        sender: &Sender,
    ) -> Option<[u8; PIECE_HEADER_BYTES]> {
        let key = (piece.replica.segment, backup);
        let begin = || {
            let writer = PieceWriter::new(ReplicaIdentity::of(sender.cluster, piece.replica));
            ReplicaPieces { replica: piece.replica, before: writer, after: writer }
        };
        let writer = self.writers.entry(key).or_insert_with(begin);
        if writer.replica != piece.replica {
            *writer = begin();
        }
        if bytes.is_empty() {
            return None;
        }
        if piece.from == writer.after.length() {
            writer.before = writer.after;
        }
        assert_eq!(piece.from, writer.before.length(), "{piece} begins where another one ended");
        writer.after = writer.before;
        let header = writer.after.next(bytes, piece.synced, sender.stamp);
        assert_eq!(piece.to, writer.after.length(), "{piece} ends where the next one begins");
        Some(header)
    }

    /// Returns the content of a closed segment that has been sent completely.
    fn content(&self, segment: SegmentId) -> Option<SegmentContent> {
        let writers = self.writers.range(all_of(segment));
        let longest = writers.map(|(_, writer)| writer.after).max_by_key(PieceWriter::length)?;
        Some(SegmentContent { length: longest.length(), crc: longest.crc() })
    }

    pub(super) fn forget(&mut self, segment: SegmentId) {
        self.writers.extract_if(all_of(segment), |_, _| true).for_each(drop);
        assert!(self.content(segment).is_none(), "{segment} is gone and its pieces are remembered");
    }

    /// Returns the message of a piece with these bytes.
    pub(super) fn message(
        &mut self,
        backup: ServerId,
        piece: &Piece,
        payload: Vec<u8>,
        sender: &Sender,
    ) -> Sending {
        assert_eq!(payload.len() as u32, piece.to - piece.from, "{piece} has its bytes");
        let is_of_manifest = sender.kind == ReplicaKind::Manifest;
        assert_eq!(is_of_manifest, piece.replica.segment.is_manifest(), "{piece} has its kind");
        let append = Append {
            replica: piece.replica,
            kind: sender.kind,
            segment_bytes: sender.segment_bytes,
            from: piece.from,
            syncs_at_once: piece.is_last || sender.is_short_of_memory,
            sent: piece.sent,
            clock: sender.stamp.clock,
            header: self.header(backup, piece, &payload, sender),
        };
        Sending {
            to: To::Server(backup),
            is_priority: false,
            message: PeerMessage::Append(append),
            payload,
        }
    }
}

/// Returns the range of keys of all writers for a segment: a log has many other segments.
fn all_of(segment: SegmentId) -> RangeInclusive<(SegmentId, ServerId)> {
    (segment, ServerId(0))..=(segment, ServerId(u32::MAX))
}

impl LogMaster {
    /// Makes the part of one reactor.
    pub(crate) fn new(replication: Arc<Replication>, log: ServerId) -> LogMaster {
        let Replication { placement, plan, .. } = *replication;
        let settings = replicator_settings(placement, plan, log, ReplicaKind::Data);
        LogMaster {
            replication,
            replicator: own_disk::replicator(settings),
            pieces: PieceHeaders::default(),
            map: 0,
            dead: BTreeSet::new(),
            has_ended: false,
            written: Version(0),
            handed_out: Vec::new(),
            effects: Outbox::new(),
            reach_min: 0,
        }
    }

    /// Returns the number of backups that receive the next write.
    pub(crate) fn reach(&self) -> usize {
        self.replicator.reach()
    }

    /// Returns whether all backups of this reactor's segments are in time.
    pub(crate) fn is_calm(&self) -> bool {
        self.replicator.is_calm()
    }

    /// Returns how many other servers hold all bytes that the replicator knows of.
    pub(crate) fn holders(&self) -> BackupCounts {
        self.replicator.backup_counts()
    }

    /// Reports all changes since the last call to the replicators, and applies their effects.
    pub(crate) fn replicate(&mut self, context: &mut Context<'_>) {
        let replication = &*self.replication.clone();
        if replication.is_fenced.load(Ordering::Relaxed) {
            return;
        }
        self.follow_map(context);
        if context.node.store().log().has_changes() {
            self.follow_log(context);
        }
        self.read_messages(context);
        self.hand_out_pieces(context);
        if std::mem::take(&mut self.has_ended) {
            self.hand_out_pieces(context);
        }
        let is_called = || replication.manifest_waits.swap(false, Ordering::AcqRel);
        if context.reactor == MANIFEST_REACTOR && is_called() {
            self.drive_manifest(None, context);
        }
    }

    /// Returns whether [`LogMaster::replicate`] has work besides the bytes appended in this turn.
    pub(crate) fn has_work(&self, reactor: ReactorId, node: &NodeState) -> bool {
        self.has_ended || self.replication.is_called(reactor) || node.store().log().has_changes()
    }

    /// Returns whether a write would get fewer backups than required.
    #[inline]
    pub(crate) fn lacks_replicas(&self) -> bool {
        self.reach() < self.reach_min
    }

    /// Returns whether everything that this reactor has written is synced to the own disk, and below
    /// the version mark, if there are marks: what is above it does not survive a loss of power.
    pub(crate) fn is_synced_here(&self) -> bool {
        // No write has the version behind a mark.
        let is_covered = |mark: Version| mark.0 + 1 >= self.written.0;
        self.replication.placement() == LogPlacement::OwnDisk
            && self.replicator.is_synced()
            && self.replication.version_mark().is_none_or(is_covered)
    }

    /// Follows changed settings. The replicators are told with the map, which is read again.
    pub(crate) fn follow_settings(&mut self, live: LiveSettings, node: &NodeState) {
        self.update_reach_min(live, node);
        self.map = 0;
    }

    /// Recomputes the required number of backups, after a change of settings or members.
    fn update_reach_min(&mut self, live: LiveSettings, node: &NodeState) {
        let replication = &self.replication;
        if !replication.is_with_others() {
            return;
        }
        let (wanted, members) = (replication.plan().replicas, node.map().servers.len());
        let least = match live.min_replicas {
            // There is no other server.
            MinReplicas::Auto if replication.is_last_server() => 0,
            least => least.count(wanted, members),
        };
        assert!(least <= usize::from(wanted), "a write never needs more backups than replicas");
        replication.reach_min.store(least, Ordering::Relaxed);
        self.reach_min = least;
    }

    /// Reports changes of the living and dead servers to the replicators.
    fn follow_map(&mut self, context: &mut Context<'_>) {
        if !self.replication.is_with_others() {
            return;
        }
        let map = context.node.map();
        if map.version == self.map {
            return;
        }
        self.map = map.version;
        let (me, dead) = (context.node.me(), context.node.dead());
        assert!(self.dead.is_subset(&dead), "a server that died lives again");
        let is_last = own_disk::is_last(&map, me, &dead);
        self.replication.set_last_server(is_last);
        let (own, servers) = candidates(&map, me, is_last);
        assert!(
            servers.iter().all(|it| (it.server == me) == is_last),
            "the own disk is a backup only of the last server"
        );
        let died: Vec<ServerId> = dead.difference(&self.dead).copied().collect();
        self.dead = dead;
        self.update_reach_min(context.live, context.node);
        let died = died.into_iter().map(|backup| ReplicatorEvent::Died { backup });
        let needed = ReplicatorEvent::WritesNeed { backups: self.reach_min };
        let known = [ReplicatorEvent::Candidates { own, servers }, needed];
        for event in known.into_iter().chain(died) {
            self.drive_all(&event, context);
        }
    }

    /// Processes segment state changes. New segments are discovered later, with their first
    /// bytes.
    fn follow_log(&self, context: &Context<'_>) {
        let replication = &self.replication;
        let log = context.node.store();
        for change in log.log().take_changes() {
            let LogChange::Dead(segment) = change else { continue };
            let owner = replication.owners().get(&segment).copied();
            match owner {
                Some(owner) => {
                    replication.post(owner, LogMessage::Dead(segment));
                    if owner != context.reactor {
                        context.node.wake_all();
                    }
                }
                // The segment was never written to.
                None => log.log().release(segment),
            }
        }
    }

    fn read_messages(&mut self, context: &mut Context<'_>) {
        for message in self.replication.take_messages(context.reactor) {
            match message {
                LogMessage::Event(event) => self.drive_master(event, context),
                LogMessage::Dead(segment) => self.end_segment(segment, context),
            }
        }
    }

    /// Removes a segment without live entries from the log. Its memory is free at once. Its
    /// replicas are released when the manifest no longer names the segment.
    fn end_segment(&mut self, segment: SegmentId, context: &mut Context<'_>) {
        let owner = self.replication.owners().get(&segment).copied();
        assert_eq!(owner, Some(context.reactor), "{segment} is ended by the reactor that wrote it");
        self.drive_master(ReplicatorEvent::Leaving { segment }, context);
        context.node.store().log().release(segment);
        let replication = &self.replication;
        let is_named = replication.manifest_log().leave_out(segment, context.reactor);
        if is_named {
            replication.call_chain(context.node, context.reactor);
        } else {
            self.drive_master(ReplicatorEvent::Dropped { segment }, context);
        }
    }

    /// Reports the bytes appended to this reactor's segments to the replicator.
    fn hand_out_pieces(&mut self, context: &mut Context<'_>) {
        let replication = &self.replication;
        let (now, reactor) = (context.now, context.reactor);
        let mut events = std::mem::take(&mut self.handed_out);
        let (replicator, me) = (&self.replicator, context.node.me());
        let keeps_back = context.node.demands.keeps_recovered_back.load(Ordering::Relaxed);
        context.worker.keep_recovered_back(keeps_back);
        if replicator.is_replaying() != keeps_back {
            events.push(ReplicatorEvent::Replaying { is_on: keeps_back });
        }
        context.worker.hand_out(|unsaved| {
            let (segment, length) = (unsaved.segment, unsaved.from + unsaved.bytes.len() as u32);
            let is_new = unsaved.from == 0 && !replicator.contains(segment);
            if is_new && length == 0 {
                // The segment was closed while empty, and stays so.
                return true;
            }
            if is_new {
                let before = replication.owners().insert(segment, reactor);
                assert_eq!(before, None, "{segment} is opened once, by one reactor");
                let random = types::mixed(segment.0 ^ u64::from(me.0) << 40 ^ now.0);
                events.push(ReplicatorEvent::Opened { segment, length, random });
            } else if !unsaved.bytes.is_empty() {
                events.push(ReplicatorEvent::Appended { segment, length });
            }
            if unsaved.is_closed {
                events.push(ReplicatorEvent::Closed { segment });
            }
            true
        });
        if !events.is_empty() {
            self.written = context.node.store().version();
        }
        for event in events.drain(..) {
            self.drive_master(event, context);
        }
        assert!(events.is_empty(), "the replicator has seen all bytes of the turn");
        self.handed_out = events;
    }

    /// Passes an event to this reactor's replicator, and applies its effects.
    pub(super) fn drive_master(&mut self, event: ReplicatorEvent, context: &mut Context<'_>) {
        let replication = &self.replication;
        if let ReplicatorEvent::Sealed { segment } = event {
            replication.free_superseded(segment, context.out);
        }
        if let ReplicatorEvent::Dropped { segment } = event {
            self.pieces.forget(segment);
            let owner = replication.owners().remove(&segment);
            assert!(
                owner.is_none_or(|owner| owner == context.reactor),
                "{segment} is forgotten by the reactor that wrote it"
            );
        }
        let mut effects = std::mem::take(&mut self.effects);
        self.replicator.handle(context.now, event, &mut effects);
        replication.note_reach(context.reactor, self.replicator.reach());
        let mut has_acknowledged = false;
        for effect in effects.drain() {
            has_acknowledged |= self.apply(effect, context);
        }
        self.effects = effects;
        // A freeze or a cut may wait for the acknowledgment as well.
        let is_waited_for = context.node.demands.waiting.load(Ordering::Acquire) > 0;
        if has_acknowledged
            && (self.replication.acknowledgments.tell(context.holds_replies) || is_waited_for)
        {
            context.node.wake_all();
        }
    }

    /// Applies an effect. Returns whether more bytes are acknowledged or durable now.
    fn apply(&mut self, effect: ReplicatorEffect, context: &mut Context<'_>) -> bool {
        let (replication, store) = (&self.replication, context.node.store());
        match effect {
            ReplicatorEffect::Send { backup, piece } => self.send_piece(backup, &piece, context),
            ReplicatorEffect::Register { segment } => {
                replication.manifest_log().open(segment, context.reactor);
                replication.call_chain(context.node, context.reactor);
            }
            ReplicatorEffect::Acknowledged { segment, length } => {
                store.log().raise_acknowledged(segment, length);
                return true;
            }
            ReplicatorEffect::Held { segment, length } => {
                store.log().raise_held(segment, length);
                return true;
            }
            ReplicatorEffect::Synced { segment, length } => {
                store.log().raise_synced(segment, length);
                return true;
            }
            ReplicatorEffect::Close { segment } => {
                store.log().end_segment(segment);
                self.has_ended = true;
            }
            ReplicatorEffect::Seal { segment } => {
                if let Some(content) = self.pieces.content(segment) {
                    replication.manifest_log().close(segment, content, context.reactor);
                    replication.call_chain(context.node, context.reactor);
                }
            }
            ReplicatorEffect::UnderReplicated { segments } => {
                replication.master(context.reactor).short.store(segments, Ordering::Relaxed);
            }
            ReplicatorEffect::Misplaced(misplaced) => {
                *lock(&replication.master(context.reactor).misplaced) = misplaced;
            }
            ReplicatorEffect::Release { backup, replicas } => {
                context.out.send(backup, PeerMessage::Release { replicas });
            }
            ReplicatorEffect::Probe { backup } => probe(backup, context.out),
            ReplicatorEffect::Silent { backup } => {
                tracing::warn!(%backup, "backup does not respond, replacing it");
            }
            ReplicatorEffect::Suspect { backup } => {
                context.out.control.push(LivenessUpdate::Suspect { server: backup }.into());
            }
            ReplicatorEffect::Fenced => replication.fence(context.node),
            ReplicatorEffect::Lease { .. } | ReplicatorEffect::Announce { .. } => {
                unreachable!("only the replicator of the manifest has this effect")
            }
        }
        false
    }

    fn send_piece(&mut self, backup: ServerId, piece: &Piece, context: &mut Context<'_>) {
        let sender = Sender::new(ReplicaKind::Data, context.node);
        // A released segment is not sent any more; its replicator was notified before.
        let bytes = context.worker.read_segment(piece.replica.segment, piece.from, piece.to);
        if let Some(bytes) = bytes {
            // A message to this server itself returns its buffer within the turn.
            let mut payload = match backup == context.node.me() {
                true => context.buffers.take(bytes.len()),
                false => Vec::with_capacity(bytes.len()),
            };
            payload.extend_from_slice(bytes);
            context.out.peers.push(self.pieces.message(backup, piece, payload, &sender));
        }
    }

    /// Handles a backup's answer to an append.
    pub(crate) fn appended(
        &mut self,
        backup: ServerId,
        answer: Appended,
        context: &mut Context<'_>,
    ) {
        let replication = &self.replication;
        let is_manifest = answer.replica.segment.is_manifest();
        let event = ReplicatorEvent::Answered { backup, answer };
        if let AppendResult::Refused(AppendRefusal::Failed) = answer.result
            && !is_manifest
        {
            // An unrequested report may arrive on a reactor that does not write the segment.
            let owner = replication.owners().get(&answer.replica.segment).copied();
            if let Some(owner) = owner.filter(|owner| *owner != context.reactor) {
                replication.post(owner, LogMessage::Event(event));
                return context.node.wake_all();
            }
        }
        if !is_manifest {
            self.drive_master(event, context);
        } else if context.reactor == MANIFEST_REACTOR {
            self.drive_manifest(Some(event), context);
        } else if backup == context.node.me() {
            // A sync of the own disk covers the manifest, whichever reactor began it.
            replication.manifest_log().post(event);
            replication.call_chain(context.node, context.reactor);
        }
    }

    /// Handles a server's answer to a probe of this reactor.
    pub(crate) fn heard(&mut self, backup: ServerId, context: &mut Context<'_>) {
        if !self.replication.exchanges_with(backup, context.node.me()) {
            return;
        }
        if lock(&self.replication.asked_for).remove(&backup) {
            context.out.control.push(LivenessUpdate::Witnessed { server: backup }.into());
        }
        self.drive_all(&ReplicatorEvent::Heard { backup }, context);
    }

    /// Probes a server for the coordinator, which does not hear from it.
    pub(crate) fn ask_for_coordinator(&self, server: ServerId, context: &mut Context<'_>) {
        if server != context.node.me() {
            lock(&self.replication.asked_for).insert(server);
            probe(server, context.out);
        }
    }

    /// Handles a backup's report that it has freed replicas, which any reactor may have written.
    pub(crate) fn released(&self, backup: ServerId, replicas: Vec<ReplicaId>, node: &NodeState) {
        let replication = &self.replication;
        let event = ReplicatorEvent::Released { backup, replicas };
        replication.manifest_log().post(event.clone());
        replication.post_to_all(&event);
        node.wake_all();
    }

    /// Handles a backup's question whether replicas are needed. Each reactor knows about the
    /// segments that it writes. A replica that no reactor knows is not needed.
    pub(crate) fn needed(
        &mut self,
        backup: ServerId,
        replicas: Vec<ReplicaId>,
        context: &mut Context<'_>,
    ) {
        let replication = self.replication.clone();
        // While the log is loaded, the reactors do not know all of its segments.
        if replication.is_fenced.load(Ordering::Relaxed) || replication.loading().is_on() {
            return;
        }
        let (manifest_log, data): (Vec<ReplicaId>, Vec<ReplicaId>) =
            replicas.into_iter().partition(|replica| replica.segment.is_manifest());
        let mut asked: BTreeMap<ReactorId, Vec<ReplicaId>> = BTreeMap::new();
        for replica in data {
            let owner = replication.owners().get(&replica.segment).copied();
            asked.entry(owner.unwrap_or(context.reactor)).or_default().push(replica);
        }
        if !manifest_log.is_empty() {
            replication
                .manifest_log()
                .post(ReplicatorEvent::Needed { backup, replicas: manifest_log });
            replication.call_chain(context.node, context.reactor);
        }
        for (owner, replicas) in asked {
            let event = ReplicatorEvent::Needed { backup, replicas };
            if owner == context.reactor {
                self.drive_master(event, context);
            } else {
                replication.post(owner, LogMessage::Event(event));
                context.node.wake_all();
            }
        }
    }

    /// Passes an event to both replicators that this reactor drives.
    pub(crate) fn drive_all(&mut self, event: &ReplicatorEvent, context: &mut Context<'_>) {
        self.drive_master(event.clone(), context);
        if context.reactor == MANIFEST_REACTOR {
            self.drive_manifest(Some(event.clone()), context);
        }
    }

    /// Runs the replicators of this reactor that are due.
    pub(crate) fn tick(&mut self, context: &mut Context<'_>) {
        let now = context.now;
        let is_due = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        if is_due(self.replicator.next_deadline()) {
            self.drive_master(ReplicatorEvent::Tick, context);
        }
        let is_first = context.reactor == MANIFEST_REACTOR;
        if is_first && is_due(self.replication.manifest_log().next_deadline()) {
            self.drive_manifest(Some(ReplicatorEvent::Tick), context);
        }
        if is_first && is_due(self.replication.lease_deadline()) {
            self.replication.give_up_lease(context.node);
        }
    }

    /// Returns the next time at which [`LogMaster::tick`] must run if no other event comes first.
    pub(crate) fn next_deadline(&self, reactor: ReactorId) -> Option<Instant> {
        let is_first = reactor == MANIFEST_REACTOR;
        let manifest_log =
            is_first.then(|| self.replication.manifest_log().next_deadline()).flatten();
        let lease = self.replication.lease_deadline().filter(|_| is_first);
        [manifest_log, lease, self.replicator.next_deadline()].into_iter().flatten().min()
    }
}

impl Replication {
    /// Schedules work on the manifest for the next turn of its reactor.
    pub(super) fn call_chain(&self, node: &NodeState, caller: ReactorId) {
        self.manifest_waits.store(true, Ordering::Release);
        if caller != MANIFEST_REACTOR {
            node.wake_all();
        }
    }
}

/// Probes a backup that does not answer a replicator.
pub(super) fn probe(backup: ServerId, out: &mut EngineOutput) {
    out.send(backup, PeerMessage::Ping);
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::replica::ReplicaEpoch;

    fn message_of(payload: Vec<u8>, is_last: bool, is_short_of_memory: bool) -> PeerMessage {
        let replica = ReplicaId { log: ServerId(1), segment: SegmentId(7), epoch: ReplicaEpoch(0) };
        let piece = Piece { replica, from: 0, to: 2, synced: 0, is_last, sent: Instant(0) };
        let (cluster, kind, stamp) = (ClusterId(1), ReplicaKind::Data, Stamp::default());
        let sender = Sender { cluster, kind, segment_bytes: 1 << 20, stamp, is_short_of_memory };
        PieceHeaders::default().message(ServerId(2), &piece, payload, &sender).message
    }

    #[test]
    #[should_panic(expected = "has its bytes")]
    fn a_piece_is_sent_with_all_its_bytes() {
        message_of(vec![1], false, false);
    }

    #[test]
    fn backups_sync_at_once_what_ends_a_segment_and_all_while_memory_is_short() {
        for (is_last, is_short) in [(false, false), (false, true), (true, false)] {
            let message = message_of(vec![1, 2], is_last, is_short);
            let PeerMessage::Append(append) = message else { panic!("{message:?}") };
            assert_eq!(append.syncs_at_once, is_last || is_short);
        }
    }
}
