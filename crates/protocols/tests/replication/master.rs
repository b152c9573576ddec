//! A writing master: two replicators, a segment manifest, and the code that connects them.

use super::manifest::{Entry, ManifestLog};
use super::scripts::append;
use super::server::Envelope;
use protocols::Outbox;
use protocols::replication::{
    ManifestSegments, Promise, Replicator, ReplicatorEffect, ReplicatorEvent, ReplicatorSettings,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use types::{Instant, SegmentId, ServerId};
use wire::peer::PeerMessage;
use wire::replica::{ReplicaId, ReplicaKind};

pub(crate) const MASTER: ServerId = ServerId(1);

/// A rule that a master can break.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Sin {
    /// Bytes count before the manifest lists their segment.
    CountsUnregistered,
    /// Bytes written after a loss count before the manifest records the close of the segment.
    CountsUnclosed,
    /// Replicas are released before the manifest has dropped their segment.
    ReleasesEarly,
    /// The manifest continues in another segment before the coordinator knows it.
    CoordinatorIsTooLate,
    /// Segments are registered before their backups have begun them.
    NamesEarly,
    /// An answer renews the lease from its arrival on, instead of its send time.
    LeaseFromAnswer,
    /// A backup forgets its refusals.
    ForgetsRefusals,
    /// A backup continues to answer after it was fenced.
    AnswersWhenFenced,
    /// A recovery treats copies as originals.
    CopiesCount,
    /// A recovery rests on any single replica of the manifest.
    RecoversFromOne,
}

#[derive(Debug)]
pub(crate) struct Master {
    pub(crate) data: Replicator,
    pub(crate) manifest_replicator: Replicator,
    pub(crate) manifest_log: ManifestLog,
    pub(crate) lengths: BTreeMap<SegmentId, u32>,
    pub(crate) acknowledged: BTreeMap<SegmentId, u32>,
    pub(crate) closed: BTreeSet<SegmentId>,
    /// Segments that are sealed: their close entries count.
    pub(crate) kept: BTreeSet<SegmentId>,
    /// Segments with reused memory, each with the manifest segment at the time of the decision.
    pub(crate) leaving: BTreeMap<SegmentId, Option<SegmentId>>,
    /// The living manifest segments, and the data replicator's events that wait for them.
    pub(crate) manifest: ManifestSegments<ReplicatorEvent>,
    pub(crate) head: Option<SegmentId>,
    next_segment: u64,
    /// Set if the manifest segment has lost a replica.
    pub(crate) wants_manifest_segment: bool,
    chain_entries: u32,
    /// Lengths of manifest segments that have not been reported to the replicator.
    untold: BTreeMap<SegmentId, u32>,
    pub(crate) lease: Option<Instant>,
    pub(crate) is_fenced: bool,
    pub(crate) under_replicated: usize,
    pub(crate) sin: Option<Sin>,
    pub(crate) messages: Vec<Envelope>,
    pub(crate) announced: Vec<SegmentId>,
    todo: VecDeque<(ReplicaKind, ReplicatorEvent)>,
}

impl Master {
    pub(crate) fn new(replicas: usize, promise: Promise, sin: Option<Sin>) -> Master {
        let (log, kind, is_standalone) = (MASTER, ReplicaKind::Data, false);
        let settings = ReplicatorSettings { log, kind, replicas, promise, is_standalone };
        Master {
            data: Replicator::new(settings),
            manifest_replicator: Replicator::new(ReplicatorSettings {
                kind: ReplicaKind::Manifest,
                ..settings
            }),
            manifest_log: ManifestLog::default(),
            lengths: BTreeMap::new(),
            acknowledged: BTreeMap::new(),
            closed: BTreeSet::new(),
            kept: BTreeSet::new(),
            leaving: BTreeMap::new(),
            manifest: ManifestSegments::default(),
            head: None,
            next_segment: 1,
            wants_manifest_segment: true,
            chain_entries: 0,
            untold: BTreeMap::new(),
            lease: None,
            is_fenced: false,
            under_replicated: 0,
            sin,
            messages: Vec::new(),
            announced: Vec::new(),
            todo: VecDeque::new(),
        }
    }

    pub(crate) fn both(&mut self, now: Instant, event: ReplicatorEvent) {
        self.todo.push_back((ReplicaKind::Manifest, event.clone()));
        self.data(now, event);
    }

    pub(crate) fn data(&mut self, now: Instant, event: ReplicatorEvent) {
        self.todo.push_back((ReplicaKind::Data, event));
        self.run(now);
    }

    /// Handles that the coordinator has stored the id of this manifest segment.
    pub(crate) fn manifest_recorded(&mut self, now: Instant, segment: SegmentId) {
        self.todo.push_back((ReplicaKind::Manifest, ReplicatorEvent::Registered { segment }));
        self.manifest.recorded(segment);
        self.tell_counted();
        self.run(now);
    }

    fn run(&mut self, now: Instant) {
        self.tell_written();
        while let Some((kind, event)) = self.todo.pop_front() {
            let mut out = Outbox::new();
            let machine = match kind {
                ReplicaKind::Data => &mut self.data,
                ReplicaKind::Manifest => &mut self.manifest_replicator,
            };
            machine.handle(now, event, &mut out);
            out.drain().for_each(|effect| self.carry_out(kind, effect));
            self.tell_written();
        }
    }

    fn carry_out(&mut self, kind: ReplicaKind, effect: ReplicatorEffect) {
        let is_manifest = kind == ReplicaKind::Manifest;
        match effect {
            ReplicatorEffect::Send { backup, piece } => {
                let message = PeerMessage::Append(append(&piece));
                self.send(backup, message, piece.to - piece.from);
            }
            ReplicatorEffect::Release { backup, replicas } => {
                self.send(backup, PeerMessage::Release { replicas }, 0);
            }
            ReplicatorEffect::Acknowledged { segment, length } if is_manifest => {
                self.manifest.acknowledged(segment, length);
                self.tell_counted();
            }
            ReplicatorEffect::Synced { segment, length } if is_manifest => {
                self.manifest.synced(segment, length);
                self.tell_counted();
            }
            ReplicatorEffect::Acknowledged { segment, length } => {
                let before = self.acknowledged.insert(segment, length);
                assert!(before.is_none_or(|before| before < length), "it grows");
            }
            ReplicatorEffect::Held { segment, length }
            | ReplicatorEffect::Synced { segment, length } => {
                assert!(length <= self.lengths[&segment]);
            }
            ReplicatorEffect::Close { segment } if is_manifest => {
                self.wants_manifest_segment |= Some(segment) == self.manifest_log.current();
            }
            // The following turn opens another segment.
            ReplicatorEffect::Close { segment } => {
                if self.head == Some(segment) {
                    self.close_head();
                }
            }
            ReplicatorEffect::Register { segment } => {
                if self.sin != Some(Sin::NamesEarly) {
                    self.write(Entry::Open(segment));
                }
            }
            ReplicatorEffect::Seal { segment } => {
                if !self.leaving.contains_key(&segment) {
                    self.write(Entry::Close(segment, self.lengths[&segment]));
                    if self.sin == Some(Sin::CountsUnclosed) {
                        self.tell_data(ReplicatorEvent::Sealed { segment });
                    }
                }
            }
            ReplicatorEffect::UnderReplicated { segments } => {
                self.under_replicated = segments;
            }
            ReplicatorEffect::Lease { until } => self.lease = until,
            ReplicatorEffect::Announce { segment } => {
                // The coordinator must not hear of a segment that was given up.
                if self.manifest.announced(segment) {
                    self.announced.push(segment);
                }
                if self.sin == Some(Sin::CoordinatorIsTooLate) {
                    self.manifest.recorded(segment);
                    self.tell_counted();
                    let event = ReplicatorEvent::Registered { segment };
                    self.todo.push_back((ReplicaKind::Manifest, event));
                }
            }
            // The world decides which servers are dead.
            ReplicatorEffect::Suspect { .. }
            | ReplicatorEffect::Misplaced(_)
            | ReplicatorEffect::Silent { .. } => {}
            ReplicatorEffect::Probe { backup } => self.send(backup, PeerMessage::Ping, 0),
            ReplicatorEffect::Fenced => self.is_fenced = true,
        }
    }

    fn send(&mut self, to: ServerId, message: PeerMessage, bytes: u32) {
        self.messages.push(Envelope { from: MASTER, to, message, bytes });
    }

    fn tell_data(&mut self, event: ReplicatorEvent) {
        self.todo.push_back((ReplicaKind::Data, event));
    }

    fn write(&mut self, entry: Entry) {
        let event = match entry {
            Entry::Open(segment) => ReplicatorEvent::Registered { segment },
            Entry::Close(segment, _) => ReplicatorEvent::Sealed { segment },
            Entry::Drop(segment) => ReplicatorEvent::Dropped { segment },
            Entry::Snapshot(_) => unreachable!("a segment begins with it"),
        };
        let bytes = self.manifest_log.write(entry, self.manifest.living());
        self.untold.extend(self.manifest.append(bytes));
        if let ReplicatorEvent::Registered { segment } = event {
            self.manifest.wait(ReplicatorEvent::RegistrationSynced { segment }, true);
        }
        self.manifest.wait(event, false);
        self.chain_entries += 1;
    }

    /// Reports the new lengths of manifest segments; writes of one turn form one piece.
    fn tell_written(&mut self) {
        for (segment, length) in std::mem::take(&mut self.untold) {
            let event = ReplicatorEvent::Appended { segment, length };
            self.todo.push_back((ReplicaKind::Manifest, event));
        }
    }

    /// Continues the manifest in another segment.
    pub(crate) fn begin_manifest_segment(&mut self, now: Instant, random: u64) {
        let (segment, length) = self.manifest_log.begin(self.manifest_replicator.quorum());
        self.wants_manifest_segment = false;
        self.chain_entries = 0;
        let given_up = self.manifest.begin(segment, length);
        let given_up = given_up.into_iter().map(|segment| ReplicatorEvent::Dropped { segment });
        let opened = ReplicatorEvent::Opened { segment, length, random };
        let events = given_up.chain([opened]);
        self.todo.extend(events.map(|event| (ReplicaKind::Manifest, event)));
        self.run(now);
    }

    pub(crate) fn is_manifest_log_long(&self) -> bool {
        self.chain_entries > 20
    }

    /// Delivers the events of manifest entries that count in all living segments.
    fn tell_counted(&mut self) {
        for event in self.manifest.take_ready() {
            if let ReplicatorEvent::Sealed { segment } = &event {
                self.kept.insert(*segment);
            }
            self.tell_data(event);
        }
    }

    /// Appends `bytes` bytes to the head.
    pub(crate) fn append(&mut self, now: Instant, bytes: u32, random: u64) {
        let (segment, length) = match self.head {
            Some(segment) => (segment, self.lengths[&segment] + bytes),
            None => (SegmentId(self.next_segment), bytes),
        };
        self.lengths.insert(segment, length);
        if self.head.is_some() {
            return self.data(now, ReplicatorEvent::Appended { segment, length });
        }
        self.next_segment += 1;
        self.head = Some(segment);
        if self.sin == Some(Sin::NamesEarly) {
            self.write(Entry::Open(segment));
        }
        self.data(now, ReplicatorEvent::Opened { segment, length, random });
        if self.sin == Some(Sin::CountsUnregistered) {
            self.data(now, ReplicatorEvent::Registered { segment });
            self.data(now, ReplicatorEvent::RegistrationSynced { segment });
        }
    }

    pub(crate) fn close(&mut self, now: Instant) {
        self.close_head();
        self.run(now);
    }

    fn close_head(&mut self) {
        if let Some(segment) = self.head.take() {
            self.closed.insert(segment);
            self.tell_data(ReplicatorEvent::Closed { segment });
        }
    }

    /// Drops a segment that is no longer needed.
    pub(crate) fn drop_segment(&mut self, now: Instant, segment: SegmentId) {
        self.leaving.insert(segment, self.manifest_log.current());
        self.closed.remove(&segment);
        self.tell_data(ReplicatorEvent::Leaving { segment });
        if self.sin == Some(Sin::ReleasesEarly) {
            self.tell_data(ReplicatorEvent::Dropped { segment });
        }
        if self.manifest_log.manifest.contains_key(&segment) {
            self.write(Entry::Drop(segment));
        } else {
            self.tell_data(ReplicatorEvent::Dropped { segment });
        }
        self.run(now);
    }

    pub(crate) fn receive(&mut self, now: Instant, envelope: Envelope) {
        let backup = envelope.from;
        match envelope.message {
            PeerMessage::Appended(mut answer) => {
                if self.sin == Some(Sin::LeaseFromAnswer) {
                    answer.sent = now;
                }
                let is_manifest = answer.replica.segment.is_manifest();
                let kind = if is_manifest { ReplicaKind::Manifest } else { ReplicaKind::Data };
                self.todo.push_back((kind, ReplicatorEvent::Answered { backup, answer }));
                self.run(now);
            }
            PeerMessage::Pong => self.both(now, ReplicatorEvent::Heard { backup }),
            PeerMessage::Released { replicas } => {
                self.both(now, ReplicatorEvent::Released { backup, replicas });
            }
            PeerMessage::Needed { replicas } => {
                let (manifest_log, data): (Vec<ReplicaId>, Vec<ReplicaId>) =
                    replicas.into_iter().partition(|replica| replica.segment.is_manifest());
                let asked = |replicas| ReplicatorEvent::Needed { backup, replicas };
                self.todo.push_back((ReplicaKind::Manifest, asked(manifest_log)));
                self.data(now, asked(data));
            }
            other => panic!("a master gets {other:?}"),
        }
    }

    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let deadlines = [self.data.next_deadline(), self.manifest_replicator.next_deadline()];
        deadlines.into_iter().flatten().min()
    }
}
