//! The log directory of a server whose log others keep: what it says, where it stands, and what
//! follows once it is safe.
//!
//! Whoever changes the directory leaves that with the chain, and whom to tell when it counts. The
//! first reactor writes it down: one body at a time, with all that was left meanwhile, so that a
//! change waits for one round trip of the change before at most.
//!
//! It is written to every segment of the chain that the coordinator may know, and to the next one
//! from its beginning on ([`Manifest`]): a coordinator that is away stops nothing.
//!
//! What the directory says of new segments counts when it is acknowledged. What lets replicas go
//! (that a segment is whole, or no part of the log) counts when no crash can take it back.

use super::master::{Pieces, Sender, mixed};
use super::{CHAIN_REACTOR, Letter, Plan, Replication};
use crate::engine::Engine;
use protocols::Outbox;
use protocols::directory::Directory;
use protocols::replication::{
    Manifest, Misplaced, Piece, Replicator, ReplicatorEffect, ReplicatorEvent, Settings,
};
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::Ordering;
use types::{Instant, ReactorId, SegmentId, ServerId};
use wire::control::ToCoordinator;
use wire::directory::Content;
use wire::peer::PeerMessage;
use wire::replica::ReplicaKind;

/// The log directory on the disks of others, and those to tell when an entry is safe.
pub(super) struct Chain {
    directory: Directory,
    replicator: Replicator,
    pieces: Pieces,
    /// The segments that live, and whom to tell of what once they say it.
    manifest: Manifest<Notice>,
    /// What stands in the chain's segments that are kept by anybody.
    bytes: BTreeMap<SegmentId, Vec<u8>>,
    /// Bytes of a full segment.
    segment_bytes: usize,
    /// Of the last one begun.
    next: u64,
    /// The chain must go on in another segment.
    must_begin: bool,
    /// Whom to tell of what once it is written down.
    unwritten: Vec<Notice>,
    /// What other reactors have heard for the chain's replicator.
    letters: Vec<ReplicatorEvent>,
    short: usize,
    misplaced: Misplaced,
}

/// What a reactor is told when the directory says so for good.
struct Notice {
    reactor: ReactorId,
    event: ReplicatorEvent,
    /// Whether a crash must not take it back.
    must_be_stable: bool,
}

impl Chain {
    pub(super) fn new(plan: Plan, log: ServerId) -> Chain {
        let settings = Settings {
            log,
            kind: ReplicaKind::Directory,
            replicas: usize::from(plan.replicas),
            promise: plan.promise(),
        };
        Chain {
            directory: Directory::new(),
            replicator: Replicator::new(settings),
            pieces: Pieces::default(),
            manifest: Manifest::default(),
            bytes: BTreeMap::new(),
            segment_bytes: 0,
            next: 0,
            must_begin: true,
            unwritten: Vec::new(),
            letters: Vec::new(),
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

    /// The segment of which it is known that the coordinator has noted it.
    pub(super) fn noted(&self) -> Option<SegmentId> {
        self.replicator.last_listed()
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.replicator.next_deadline()
    }

    /// For the replicator, when its reactor comes to it.
    pub(super) fn post(&mut self, event: ReplicatorEvent) {
        self.letters.push(event);
    }

    /// All of a segment's backups have begun it: it is named.
    pub(super) fn open(&mut self, segment: SegmentId, reactor: ReactorId) {
        self.directory.open(segment);
        self.notify(reactor, ReplicatorEvent::Listed { segment }, false);
    }

    /// All of a segment's backups have all of it.
    pub(super) fn close(&mut self, segment: SegmentId, content: Content, reactor: ReactorId) {
        // It may have left already.
        if self.directory.contains(segment) {
            self.directory.close(segment, content);
            self.notify(reactor, ReplicatorEvent::CloseListed { segment }, true);
        }
    }

    /// A segment is no part of the log any more. `false`: it was not named.
    pub(super) fn leave_out(&mut self, segment: SegmentId, reactor: ReactorId) -> bool {
        let is_named = self.directory.contains(segment);
        if is_named {
            self.directory.drop(segment);
            self.notify(reactor, ReplicatorEvent::Dropped { segment }, true);
        }
        is_named
    }

    fn notify(&mut self, reactor: ReactorId, event: ReplicatorEvent, must_be_stable: bool) {
        self.unwritten.push(Notice { reactor, event, must_be_stable });
    }

    /// Writes down what is pending, if nothing is under way. What follows for the replicator.
    fn write(&mut self, seed: u64) -> Vec<ReplicatorEvent> {
        let is_idle = self.manifest.is_idle();
        let is_long = is_idle && self.directory.wants_segment() && !self.manifest.has_successor();
        let must_begin = self.must_begin && self.manifest.may_begin();
        if !must_begin && !is_long && !is_idle {
            return Vec::new();
        }
        let mut events = self.write_body();
        if must_begin || is_long {
            events.extend(self.begin(seed));
        }
        events
    }

    /// Writes what is pending to every living segment.
    fn write_body(&mut self) -> Vec<ReplicatorEvent> {
        let Some(body) = self.directory.body() else { return Vec::new() };
        // The first segment begins with all of it.
        let is_none = self.bytes.is_empty();
        if is_none || !self.manifest.has_room(body.len(), self.segment_bytes) {
            return Vec::new();
        }
        self.directory.written(body.len());
        let lengths = self.manifest.append(body.len() as u32);
        self.note_written();
        let appended = lengths.into_iter().map(|(segment, length)| {
            if let Some(bytes) = self.bytes.get_mut(&segment) {
                bytes.extend_from_slice(&body);
            }
            ReplicatorEvent::Appended { segment, length }
        });
        appended.collect()
    }

    /// Begins the next segment of the chain. What had no room in those before stands in its snapshot,
    /// and counts when the coordinator knows it.
    fn begin(&mut self, seed: u64) -> Vec<ReplicatorEvent> {
        self.must_begin = false;
        self.next += 1;
        let segment = self.replicator.quorum().segment(self.next);
        let body = self.directory.snapshot();
        self.directory.begun(body.len());
        let length = body.len() as u32;
        let given_up = self.manifest.begin(segment, length);
        self.bytes.insert(segment, body);
        self.forget(&given_up);
        for notice in std::mem::take(&mut self.unwritten) {
            let must_be_stable = notice.must_be_stable;
            self.manifest.wait_for_newest(notice, must_be_stable);
        }
        let given_up = given_up.into_iter().map(|segment| ReplicatorEvent::Dropped { segment });
        let random = mixed(seed ^ segment.0);
        let opened = ReplicatorEvent::Opened { segment, length, random };
        given_up.chain([opened]).collect()
    }

    /// What is written down by now counts when all living segments have it.
    fn note_written(&mut self) {
        for notice in std::mem::take(&mut self.unwritten) {
            let must_be_stable = notice.must_be_stable;
            self.manifest.wait(notice, must_be_stable);
        }
    }

    /// These segments of the chain are not needed any more.
    fn forget(&mut self, segments: &[SegmentId]) {
        for segment in segments {
            self.bytes.remove(segment);
            self.pieces.forget(*segment);
        }
    }
}

impl Engine {
    /// Lets something happen to the chain, writes down what is pending, and carries out what is wanted.
    pub(super) fn drive_chain(
        &mut self,
        replication: &Replication,
        now: Instant,
        event: Option<ReplicatorEvent>,
    ) {
        let mut chain = replication.chain();
        let mut events = VecDeque::from(std::mem::take(&mut chain.letters));
        events.extend(event);
        let seed = u64::from(self.node.me().0) << 40 ^ now.0;
        chain.segment_bytes = self.node.store().log().segment_bytes();
        loop {
            // What is written goes to the segments that live when everything before it has happened.
            if events.is_empty() {
                events.extend(chain.write(seed));
            }
            let Some(event) = events.pop_front() else { break };
            if let ReplicatorEvent::Listed { segment } = event {
                let earlier = chain.manifest.note(segment);
                chain.forget(&earlier);
            }
            let mut effects = Outbox::new();
            chain.replicator.handle(now, event, &mut effects);
            for effect in effects.drain() {
                self.carry_out_chain((replication, now), &mut chain, effect);
            }
        }
        let notices = chain.manifest.take_ready();
        drop(chain);
        self.tell(replication, now, notices);
    }

    fn carry_out_chain(
        &mut self,
        (replication, now): (&Replication, Instant),
        chain: &mut Chain,
        effect: ReplicatorEffect,
    ) {
        match effect {
            ReplicatorEffect::Send { backup, piece } => {
                self.send_directory(chain, (backup, &piece));
            }
            ReplicatorEffect::Acknowledged { segment, length } => {
                chain.manifest.acknowledged(segment, length);
            }
            ReplicatorEffect::Stable { segment, length } => chain.manifest.stable(segment, length),
            ReplicatorEffect::Close { segment } => {
                chain.must_begin |= chain.manifest.newest() == Some(segment);
            }
            ReplicatorEffect::UnderReplicated { segments } => chain.short = segments,
            ReplicatorEffect::Misplaced(misplaced) => chain.misplaced = misplaced,
            ReplicatorEffect::Release { backup, replicas } => {
                self.out.send(backup, PeerMessage::Release { replicas });
            }
            ReplicatorEffect::Lease { until } => self.set_lease(replication, now, until),
            ReplicatorEffect::Announce { segment } => {
                // One that was given up must never be known to the coordinator.
                if chain.manifest.announced(segment) {
                    self.out.control.push(ToCoordinator::Chain { number: segment });
                }
            }
            ReplicatorEffect::Probe { backup } => self.probe(backup),
            ReplicatorEffect::Silent { backup } => {
                tracing::warn!(%backup, "a backup of the log directory does not answer");
            }
            ReplicatorEffect::Suspect { backup } => {
                self.out.control.push(ToCoordinator::Suspect { server: backup });
            }
            ReplicatorEffect::Fenced => replication.fence(&self.node),
            ReplicatorEffect::Name { .. } | ReplicatorEffect::Whole { .. } => {
                unreachable!("said of the log's own segments")
            }
        }
    }

    fn send_directory(&mut self, chain: &mut Chain, (backup, piece): (ServerId, &Piece)) {
        let store = self.node.store();
        let sender = Sender {
            cluster: self.node.cluster(),
            kind: ReplicaKind::Directory,
            segment_bytes: store.log().segment_bytes() as u32,
            stamp: store.stamp(),
        };
        let Chain { bytes, pieces, .. } = chain;
        let segment = bytes.get(&piece.replica.segment);
        let part = segment.and_then(|it| it.get(piece.from as usize..piece.to as usize));
        if let Some(part) = part {
            pieces.send((backup, piece), part, &sender, &mut self.out);
        }
    }

    /// Until when operations may be executed.
    fn set_lease(&mut self, replication: &Replication, now: Instant, until: Option<Instant>) {
        let until = until.map_or(0, |until| until.0);
        let before = replication.lease.swap(until, Ordering::AcqRel);
        if before > 0 && (before < now.0 || until == 0) {
            replication.lease_lapses.fetch_add(1, Ordering::Relaxed);
        }
        if before == 0 && until > 0 {
            self.node.serves_again();
        } else if until > before && self.configuration.strict_reads {
            // Replies wait for this on every reactor.
            self.node.wake_all();
        }
    }

    /// What the directory says for good.
    fn tell(&mut self, replication: &Replication, now: Instant, notices: Vec<Notice>) {
        let mut has_others = false;
        for Notice { reactor, event, .. } in notices {
            if reactor == self.reactor {
                self.drive_master(replication, now, event);
            } else {
                replication.post(reactor, Letter::Event(event));
                has_others = true;
            }
        }
        if has_others {
            self.node.wake_all();
        }
    }

    /// The coordinator has written down how far the chain has got.
    pub(in crate::engine) fn chain_noted(&mut self, now: Instant, number: SegmentId) {
        assert_eq!(self.reactor, CHAIN_REACTOR, "what the coordinator says goes to one reactor");
        if let Some(replication) = self.replication.clone() {
            let event = ReplicatorEvent::Listed { segment: number };
            self.drive_chain(&replication, now, Some(event));
        }
    }
}
