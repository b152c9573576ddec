//! The log directory of a server whose log others keep: what it says, where it stands, and what
//! follows once it is safe.
//!
//! Whoever changes the directory leaves that with the chain, and whom to tell when it counts. The
//! first reactor writes it down: one body at a time, with all that was left meanwhile, so that a
//! change waits for one round trip of the change before at most.
//!
//! What the directory says of new segments counts when it is acknowledged. What lets replicas go
//! (that a segment is whole, or no part of the log) counts when no crash can take it back.

use super::master::{Pieces, Sender, mixed};
use super::{CHAIN, CHAIN_REACTOR, Letter, Plan, Replication};
use crate::engine::Engine;
use protocols::Outbox;
use protocols::directory::Directory;
use protocols::replication::{Piece, Replicator, ReplicatorEffect, ReplicatorEvent, Settings};
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::Ordering;
use types::{Instant, ReactorId, SegmentId, ServerId};
use wire::control::ToCoordinator;
use wire::directory::Content;
use wire::peer::PeerMessage;
use wire::replica::ReplicaKind;

/// How far the chain has got, or a part of it: segment and length there.
type Position = (SegmentId, u32);

/// The log directory on the disks of others, and those to tell when an entry is safe.
pub(super) struct Chain {
    directory: Directory,
    replicator: Replicator,
    pieces: Pieces,
    /// What stands in the chain's segments that are kept by anybody.
    bytes: BTreeMap<SegmentId, Vec<u8>>,
    /// Of the last one begun.
    next: u64,
    /// The chain must go on in another segment.
    must_begin: bool,
    /// Up to where everything counts, and up to where no crash takes it back.
    acknowledged: Position,
    stable: Position,
    /// Whom to tell of what once it is written down.
    unwritten: Vec<Notice>,
    /// And of what was written down, from where on it counts.
    written: VecDeque<(Position, Notice)>,
    /// What other reactors have heard for the chain's replicator.
    letters: Vec<ReplicatorEvent>,
    short: usize,
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
            bytes: BTreeMap::new(),
            next: 0,
            must_begin: true,
            acknowledged: (SegmentId(0), 0),
            stable: (SegmentId(0), 0),
            unwritten: Vec::new(),
            written: VecDeque::new(),
            letters: Vec::new(),
            short: 0,
        }
    }

    pub(super) fn short(&self) -> usize {
        self.short
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

    fn position(&self) -> Option<Position> {
        self.bytes.last_key_value().map(|(segment, bytes)| (*segment, bytes.len() as u32))
    }

    /// Writes down what is pending, if nothing is under way. What follows for the replicator.
    fn write(&mut self, seed: u64) -> Vec<ReplicatorEvent> {
        let position = self.position();
        let is_idle = position.is_none_or(|position| position <= self.acknowledged);
        if self.must_begin || is_idle && self.directory.wants_segment() {
            return self.begin(seed);
        }
        let Some(body) = self.directory.body().filter(|_| is_idle) else { return Vec::new() };
        self.directory.written(body.len());
        let Some(mut current) = self.bytes.last_entry() else { return Vec::new() };
        current.get_mut().extend_from_slice(&body);
        let (segment, length) = (*current.key(), current.get().len() as u32);
        self.note_written((segment, length));
        vec![ReplicatorEvent::Appended { segment, length }]
    }

    fn begin(&mut self, seed: u64) -> Vec<ReplicatorEvent> {
        let before = self.position().map(|(segment, _)| ReplicatorEvent::Closed { segment });
        self.must_begin = false;
        self.next += 1;
        let segment = SegmentId(CHAIN | self.next);
        let body = self.directory.snapshot();
        self.directory.begun(body.len());
        let length = body.len() as u32;
        self.bytes.insert(segment, body);
        self.note_written((segment, length));
        let random = mixed(seed ^ segment.0);
        let opened = ReplicatorEvent::Opened { segment, length, random };
        before.into_iter().chain([opened]).collect()
    }

    fn note_written(&mut self, at: Position) {
        let notices = std::mem::take(&mut self.unwritten);
        self.written.extend(notices.into_iter().map(|notice| (at, notice)));
    }

    /// The notices that count by now.
    fn take_notices(&mut self) -> Vec<Notice> {
        let (acknowledged, stable) = (self.acknowledged, self.stable);
        let counts = |(at, notice): &(Position, Notice)| {
            *at <= if notice.must_be_stable { stable } else { acknowledged }
        };
        // A segment is listed before it is said to be closed, and that before it is dropped: notices
        // of one segment stay in order although others overtake them.
        let (ready, waiting) =
            std::mem::take(&mut self.written).into_iter().partition::<VecDeque<_>, _>(counts);
        self.written = waiting;
        ready.into_iter().map(|(_, notice)| notice).collect()
    }

    fn reached(&mut self, segment: SegmentId, length: u32) {
        self.acknowledged = self.acknowledged.max((segment, length));
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
        loop {
            events.extend(chain.write(seed));
            let Some(event) = events.pop_front() else { break };
            if let ReplicatorEvent::Listed { segment } = event {
                forget_before(&mut chain, segment);
            }
            let mut effects = Outbox::new();
            chain.replicator.handle(now, event, &mut effects);
            for effect in effects.drain() {
                self.carry_out_chain((replication, now), &mut chain, effect);
            }
        }
        let notices = chain.take_notices();
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
            ReplicatorEffect::Acknowledged { segment, length } => chain.reached(segment, length),
            ReplicatorEffect::Stable { segment, length } => {
                chain.reached(segment, length);
                chain.stable = chain.stable.max((segment, length));
            }
            ReplicatorEffect::Close { segment } => {
                chain.must_begin |= chain.position().is_some_and(|(last, _)| last == segment);
            }
            ReplicatorEffect::UnderReplicated { segments } => chain.short = segments,
            ReplicatorEffect::Release { backup, replicas } => {
                self.out.send(backup, PeerMessage::Release { replicas });
            }
            ReplicatorEffect::Lease { until } => self.set_lease(replication, now, until),
            ReplicatorEffect::Announce { segment } => {
                self.out.control.push(ToCoordinator::Chain { number: segment });
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

/// Earlier segments of the chain are not needed any more.
fn forget_before(chain: &mut Chain, segment: SegmentId) {
    // An answer of the coordinator may be about a segment that another one has followed.
    if chain.bytes.contains_key(&segment) {
        let kept = chain.bytes.split_off(&segment);
        let earlier = std::mem::replace(&mut chain.bytes, kept);
        earlier.keys().for_each(|earlier| chain.pieces.forget(*earlier));
    }
}
