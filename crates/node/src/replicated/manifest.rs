//! The segment manifest of a replicated log: its
//! content and its own segments (the manifest log). Notifications follow once an entry is safe.
//!
//! A reactor that changes the manifest queues the change here, with a notification for the time
//! at which it counts. The first reactor writes one body at a time, with all changes queued
//! meanwhile. So a change waits for at most one round trip of the change before it.
//!
//! Each body goes to every manifest segment that the coordinator may know, and to the next one
//! from its beginning on ([`ManifestSegments`]). So nothing stops while the coordinator is away.
//!
//! The registration of a new segment counts when it is acknowledged. A change that lets replicas
//! go (the segment is sealed, or has left the log) counts when no crash can undo it.

use super::master::{LogMaster, PieceHeaders, Sender, probe};
use super::{
    LogMessage, LogPlacement, MANIFEST_REACTOR, Plan, Replication, own_disk, replicator_settings,
};
use crate::context::Context;
use crate::loading::{AdoptedManifest, WholeManifest};
use protocols::Outbox;
use protocols::replication::{
    ManifestSegments, Misplaced, Piece, Quorum, Replicator, ReplicatorEffect, ReplicatorEvent,
    ReplicatorSettings,
};
use protocols::segment_manifest::SegmentManifest;
use std::collections::{BTreeMap, VecDeque};
use types::{Instant, ReactorId, SegmentId, ServerId, Version};
use wire::control::{LivenessUpdate, LogUpdate};
use wire::manifest::SegmentContent;
use wire::peer::PeerMessage;
use wire::replica::{ReplicaId, ReplicaKind, Stamp};

/// The replicated segment manifest, and the notifications that wait for its entries.
pub(super) struct ReplicatedManifest {
    manifest: SegmentManifest,
    replicator: Replicator,
    pieces: PieceHeaders,
    /// The manifest segments in use, and the notifications that wait for their acknowledgment.
    segments: ManifestSegments<Notice>,
    /// Content of the manifest segments that have replicas.
    bytes: BTreeMap<SegmentId, Vec<u8>>,
    /// Size of a full segment, in bytes.
    segment_bytes: usize,
    /// Number of the last manifest segment begun.
    next: u64,
    /// Set if the manifest must continue in another segment.
    must_begin: bool,
    /// Notifications for changes that are not written yet.
    unwritten: Vec<Notice>,
    /// Events from other reactors for the manifest's replicator.
    messages: Vec<ReplicatorEvent>,
    /// The segment of a server without a cluster that is announced. There is no coordinator to
    /// record it: it counts as recorded once its snapshot is synced.
    announced: Option<SegmentId>,
    short: usize,
    misplaced: Misplaced,
}

/// Notification to a reactor that a change of the manifest is safe.
struct Notice {
    reactor: ReactorId,
    change: SafeChange,
    /// Set if a crash must not undo the change.
    must_be_synced: bool,
}

/// A change of the manifest that is safe.
enum SafeChange {
    /// An event for the replicator of the reactor.
    OfSegment(ReplicatorEvent),
    /// The mark at this version.
    Mark(Version),
}

impl ReplicatedManifest {
    /// Makes the manifest of a new log.
    pub(super) fn new(plan: Plan, log: ServerId) -> ReplicatedManifest {
        let kind = ReplicaKind::Manifest;
        ReplicatedManifest::of(replicator_settings(LogPlacement::OtherServers, plan, log, kind))
    }

    /// Continues the manifest of a server without a cluster: `last` is its newest segment, which
    /// is on the own disk.
    pub(super) fn adopted(
        plan: Plan,
        log: ServerId,
        manifest: SegmentManifest,
        last: &AdoptedManifest,
    ) -> ReplicatedManifest {
        let kind = ReplicaKind::Manifest;
        let settings = replicator_settings(LogPlacement::OwnDisk, plan, log, kind);
        let mut replicated = ReplicatedManifest::of(settings);
        let ReplicaId { segment, epoch, .. } = last.replica;
        let event = ReplicatorEvent::Adopted { segment, epoch, length: last.length };
        replicated.replicator.handle(Instant(0), event, &mut Outbox::new());
        ReplicatedManifest { manifest, next: Quorum::place(segment), ..replicated }
    }

    fn of(settings: ReplicatorSettings) -> ReplicatedManifest {
        ReplicatedManifest {
            manifest: SegmentManifest::new(),
            replicator: own_disk::replicator(settings),
            pieces: PieceHeaders::default(),
            segments: ManifestSegments::default(),
            bytes: BTreeMap::new(),
            segment_bytes: 0,
            next: 0,
            must_begin: true,
            unwritten: Vec::new(),
            messages: Vec::new(),
            announced: None,
            short: 0,
            misplaced: Misplaced::default(),
        }
    }

    pub(super) fn short(&self) -> usize {
        self.short
    }

    pub(super) fn misplaced(&self) -> Misplaced {
        self.misplaced
    }

    /// Returns the newest manifest segment that the coordinator is known to have confirmed.
    pub(super) fn recorded(&self) -> Option<SegmentId> {
        self.replicator.last_registered()
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.replicator.next_deadline()
    }

    /// Queues an event for the replicator, until its reactor drives it.
    pub(super) fn post(&mut self, event: ReplicatorEvent) {
        self.messages.push(event);
    }

    /// Registers a segment: all its backups have begun a replica.
    pub(super) fn open(&mut self, segment: SegmentId, reactor: ReactorId) {
        assert!(!segment.is_manifest(), "the manifest registers segments of the log");
        self.manifest.open(segment);
        self.notify(reactor, ReplicatorEvent::Registered { segment }, false);
        self.notify(reactor, ReplicatorEvent::RegistrationSynced { segment }, true);
    }

    /// Seals a segment: all its backups have all its bytes.
    pub(super) fn close(
        &mut self,
        segment: SegmentId,
        content: SegmentContent,
        reactor: ReactorId,
    ) {
        assert!(!segment.is_manifest(), "the manifest seals segments of the log");
        // The segment may have left the log already.
        if self.manifest.contains(segment) {
            self.manifest.close(segment, content);
            self.notify(reactor, ReplicatorEvent::Sealed { segment }, true);
        }
    }

    /// Removes a segment that has left the log. Returns `false` if it was not registered.
    pub(super) fn leave_out(&mut self, segment: SegmentId, reactor: ReactorId) -> bool {
        let is_named = self.manifest.contains(segment);
        if is_named {
            self.manifest.drop(segment);
            self.notify(reactor, ReplicatorEvent::Dropped { segment }, true);
        }
        is_named
    }

    /// Records a version up to which all entries are synced.
    pub(super) fn mark(&mut self, version: Version, reactor: ReactorId) {
        self.manifest.mark(version);
        let change = SafeChange::Mark(version);
        self.unwritten.push(Notice { reactor, change, must_be_synced: true });
    }

    /// Returns the segments that have no recorded content.
    pub(super) fn unsealed(&self) -> impl Iterator<Item = SegmentId> {
        let unsealed = self.manifest.segments().filter(|(_, content)| content.is_none());
        unsealed.map(|(segment, _)| segment)
    }

    /// Returns the next manifest segment, with all changes so far, for a server without a cluster
    /// that ends. Everything that was written is synced.
    pub(super) fn last_segment(&mut self, stamp: Stamp, segment_bytes: usize) -> WholeManifest {
        assert!(self.next > 0, "a standalone server has begun a manifest segment");
        self.next += 1;
        self.manifest.mark_whole();
        let segment = Quorum::OWN_DISK.segment(self.next);
        WholeManifest { segment, body: self.manifest.snapshot(), stamp, segment_bytes }
    }

    fn notify(&mut self, reactor: ReactorId, event: ReplicatorEvent, must_be_synced: bool) {
        let change = SafeChange::OfSegment(event);
        self.unwritten.push(Notice { reactor, change, must_be_synced });
    }

    /// Writes pending changes unless a write is in progress. Returns events for the replicator.
    fn write(&mut self, seed: u64) -> Vec<ReplicatorEvent> {
        let is_idle = self.segments.is_idle();
        let is_long = self.manifest.wants_segment();
        let must_begin = self.must_begin && self.segments.may_begin();
        if !must_begin && !is_idle {
            return Vec::new();
        }
        let mut events = self.write_body();
        // If segments are short, there is no room for a change before the manifest is long.
        let is_full = !self.unwritten.is_empty();
        let may_follow = is_idle && !self.segments.has_successor();
        if must_begin || may_follow && (is_long || is_full) {
            events.extend(self.begin(seed));
        }
        events
    }

    /// Writes pending changes to every manifest segment in use.
    fn write_body(&mut self) -> Vec<ReplicatorEvent> {
        let Some(body) = self.manifest.body() else { return Vec::new() };
        // The first manifest segment begins with a snapshot of all changes.
        let is_none = self.bytes.is_empty();
        if is_none || !self.segments.has_room(body.len(), self.segment_bytes) {
            return Vec::new();
        }
        assert!(!self.unwritten.is_empty(), "each change of the manifest has a notification");
        self.manifest.written(body.len());
        let lengths = self.segments.append(body.len() as u32);
        self.note_written();
        let appended = lengths.into_iter().map(|(segment, length)| {
            if let Some(bytes) = self.bytes.get_mut(&segment) {
                bytes.extend_from_slice(&body);
                assert_eq!(bytes.len() as u32, length, "{segment} has the bytes that it counts");
            }
            ReplicatorEvent::Appended { segment, length }
        });
        appended.collect()
    }

    /// Begins the next manifest segment. Its snapshot includes changes for which the earlier
    /// segments had no room. These count once the coordinator has confirmed the segment.
    fn begin(&mut self, seed: u64) -> Vec<ReplicatorEvent> {
        self.must_begin = false;
        self.next += 1;
        let segment = self.replicator.quorum().segment(self.next);
        let body = self.manifest.snapshot();
        self.manifest.begun(body.len());
        let length = body.len() as u32;
        let given_up = self.segments.begin(segment, length);
        let before = self.bytes.insert(segment, body);
        assert!(before.is_none(), "{segment} of the manifest is begun once");
        assert_eq!(self.segments.newest(), Some(segment), "the segment begun last is the newest");
        self.forget(&given_up);
        assert!(
            self.bytes.keys().copied().eq(self.segments.living()),
            "the bytes of exactly the living manifest segments are kept"
        );
        for notice in std::mem::take(&mut self.unwritten) {
            let must_be_synced = notice.must_be_synced;
            self.segments.wait_for_newest(notice, must_be_synced);
        }
        let given_up = given_up.into_iter().map(|segment| ReplicatorEvent::Dropped { segment });
        let random = types::mixed(seed ^ segment.0);
        let opened = ReplicatorEvent::Opened { segment, length, random };
        given_up.chain([opened]).collect()
    }

    /// Lets the notifications of written changes wait for all manifest segments in use.
    fn note_written(&mut self) {
        for notice in std::mem::take(&mut self.unwritten) {
            let must_be_synced = notice.must_be_synced;
            self.segments.wait(notice, must_be_synced);
        }
    }

    /// Drops manifest segments that are not needed any more.
    fn forget(&mut self, segments: &[SegmentId]) {
        for segment in segments {
            self.bytes.remove(segment);
            self.pieces.forget(*segment);
        }
    }
}

impl ReplicatedManifest {
    /// Applies an effect of the manifest's replicator.
    fn apply(
        &mut self,
        effect: ReplicatorEffect,
        replication: &Replication,
        context: &mut Context<'_>,
    ) {
        match effect {
            ReplicatorEffect::Send { backup, piece } => {
                self.send_piece(backup, &piece, context);
            }
            ReplicatorEffect::Acknowledged { segment, length } => {
                self.segments.acknowledged(segment, length);
            }
            ReplicatorEffect::Synced { segment, length } => {
                self.segments.synced(segment, length);
                if self.announced == Some(segment) {
                    self.announced = None;
                    self.record(segment);
                }
            }
            ReplicatorEffect::Close { segment } => {
                self.must_begin |= self.segments.newest() == Some(segment);
            }
            ReplicatorEffect::UnderReplicated { segments } => self.short = segments,
            ReplicatorEffect::Misplaced(misplaced) => self.misplaced = misplaced,
            ReplicatorEffect::Release { backup, replicas } => {
                context.out.send(backup, PeerMessage::Release { replicas });
            }
            ReplicatorEffect::Lease { until } => replication.set_lease(until, context),
            ReplicatorEffect::Announce { segment } => {
                self.announce(segment, replication, context);
            }
            ReplicatorEffect::Probe { backup } => probe(backup, context.out),
            ReplicatorEffect::Silent { backup } => {
                tracing::warn!(%backup, "backup of the segment manifest does not respond");
            }
            ReplicatorEffect::Suspect { backup } => {
                context.out.control.push(LivenessUpdate::Suspect { server: backup }.into());
            }
            ReplicatorEffect::Fenced => replication.fence(context.node),
            ReplicatorEffect::Register { .. }
            | ReplicatorEffect::Held { .. }
            | ReplicatorEffect::Seal { .. } => {
                unreachable!("only the replicator of log segments has this effect")
            }
        }
    }

    /// Lets the coordinator record a segment; without a cluster, this server itself.
    fn announce(
        &mut self,
        segment: SegmentId,
        replication: &Replication,
        context: &mut Context<'_>,
    ) {
        if replication.is_with_others() {
            // The coordinator must never learn of a manifest segment that was given up.
            if self.segments.announced(segment) {
                context.out.control.push(LogUpdate::ManifestContinues { number: segment }.into());
            }
            return;
        }
        match self.segments.is_synced(segment) {
            Some(true) => self.record(segment),
            // Until it is synced the segment can be given up in favor of another one.
            Some(false) => {
                self.announced = Some(segment);
                replication.hurry_sync();
            }
            None => {}
        }
    }

    /// Records a segment of a server without a cluster, in place of the coordinator.
    fn record(&mut self, segment: SegmentId) {
        if self.segments.announced(segment) {
            self.messages.push(ReplicatorEvent::Registered { segment });
        }
    }

    fn send_piece(&mut self, backup: ServerId, piece: &Piece, context: &mut Context<'_>) {
        let sender = Sender::new(ReplicaKind::Manifest, context.node);
        let ReplicatedManifest { bytes, pieces, .. } = self;
        let segment = bytes.get(&piece.replica.segment);
        let part = segment.and_then(|it| it.get(piece.from as usize..piece.to as usize));
        if let Some(part) = part {
            context.out.peers.push(pieces.message(backup, piece, part.to_vec(), &sender));
        }
    }
}

impl LogMaster {
    /// Passes an event to the manifest's replicator, writes changes, and applies all effects.
    pub(super) fn drive_manifest(
        &mut self,
        event: Option<ReplicatorEvent>,
        context: &mut Context<'_>,
    ) {
        assert_eq!(context.reactor, MANIFEST_REACTOR, "one reactor drives the manifest");
        let replication = self.replication.clone();
        let mut manifest = replication.manifest_log();
        manifest.messages.extend(event);
        let mut events = VecDeque::new();
        let seed = u64::from(context.node.me().0) << 40 ^ context.now.0;
        manifest.segment_bytes = context.node.store().log().segment_bytes();
        loop {
            events.extend(std::mem::take(&mut manifest.messages));
            // Write only after all events, so that the body goes to the segments in use then.
            if events.is_empty() {
                events.extend(manifest.write(seed));
            }
            let Some(event) = events.pop_front() else { break };
            if let ReplicatorEvent::Registered { segment } = event {
                let earlier = manifest.segments.recorded(segment);
                manifest.forget(&earlier);
            }
            let mut effects = Outbox::new();
            manifest.replicator.handle(context.now, event, &mut effects);
            for effect in effects.drain() {
                manifest.apply(effect, &replication, context);
            }
        }
        assert!(manifest.messages.is_empty(), "the manifest's replicator has seen all its events");
        let notices = manifest.segments.take_ready();
        replication.note_manifest_reach(manifest.replicator.reach());
        drop(manifest);
        self.tell(notices, context);
    }

    /// Delivers the notifications of changes that are safe now.
    fn tell(&mut self, notices: Vec<Notice>, context: &mut Context<'_>) {
        let mut has_others = false;
        for Notice { reactor, change, .. } in notices {
            let event = match change {
                SafeChange::OfSegment(event) => event,
                SafeChange::Mark(version) => {
                    self.replication.marks.note_safe(version);
                    // A client may wait until its writes survive a loss of power.
                    has_others = true;
                    continue;
                }
            };
            if reactor == context.reactor {
                self.drive_master(event, context);
            } else {
                self.replication.post(reactor, LogMessage::Event(event));
                has_others = true;
            }
        }
        if has_others {
            context.node.wake_all();
        }
    }

    /// Handles the coordinator's confirmation of a manifest segment.
    pub(crate) fn manifest_recorded(&mut self, number: SegmentId, context: &mut Context<'_>) {
        assert_eq!(
            context.reactor, MANIFEST_REACTOR,
            "the coordinator's replies go to one reactor"
        );
        self.drive_manifest(Some(ReplicatorEvent::Registered { segment: number }), context);
    }
}

#[cfg(test)]
mod tests {
    use super::super::Mode;
    use super::*;

    #[test]
    #[should_panic(expected = "the manifest registers segments of the log")]
    fn the_manifest_does_not_register_its_own_segments() {
        let plan = Plan { mode: Mode::Memory, replicas: 1, scrub: None };
        let mut manifest = ReplicatedManifest::new(plan, ServerId(1));
        manifest.open(SegmentId(7), MANIFEST_REACTOR);
        manifest.open(SegmentId::FIRST_OF_MANIFEST, MANIFEST_REACTOR);
    }

    #[test]
    fn a_segment_without_room_for_a_change_is_followed_by_another_one() {
        let plan = Plan { mode: Mode::Memory, replicas: 1, scrub: None };
        let mut manifest = ReplicatedManifest::new(plan, ServerId(1));
        manifest.segment_bytes = 100;
        let mut begun = 0;
        for segment in (1..50).map(SegmentId) {
            manifest.open(segment, MANIFEST_REACTOR);
            manifest.leave_out(segment, MANIFEST_REACTOR);
            for event in manifest.write(7) {
                if let ReplicatorEvent::Opened { segment, length, .. } = event {
                    begun += 1;
                    manifest.segments.acknowledged(segment, length);
                    let old = manifest.segments.recorded(segment);
                    manifest.forget(&old);
                } else if let ReplicatorEvent::Appended { segment, length } = event {
                    manifest.segments.acknowledged(segment, length);
                }
            }
            assert!(manifest.unwritten.is_empty(), "{segment} waits for room");
        }
        assert!(begun > 1, "the changes do not fit into one segment");
    }
}
