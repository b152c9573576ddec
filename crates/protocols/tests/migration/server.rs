//! One server: a naive store, the machines, and a substitute for the server's core. It has one
//! reactor, so it has one set of priority pulls per migration.

use super::network::{Batch, Message};
use super::store::{Arrival, Operation, Outcome, Store, Tablet, TabletState};
use protocols::migration::{
    Acceptance, Added, Cuts, FrozenState, MigrationSource, MigrationTarget, PriorityEffect,
    PriorityEvent, PriorityPulls, SourceEffect, SourceEvent, TargetEffect, TargetEvent,
};
use protocols::{Machine, Outbox, Ticket};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use types::{
    HashRange, Instant, KeyHash, MigrationId, ServerId, Slot, TableId, UnixMillis, Version,
};
use wire::control::{Intent, MigrationRequest};
use wire::peer::{PeerMessage, PriorityAnswer, PriorityReply, Pull, PullReply, RecordCounts};

/// Bytes counted for every record, so that the smallest pull brings two.
const RECORD_BYTES: u32 = 512;

const TABLE: TableId = TableId(0);

/// Frequent cuts, so that scripts stay short. One record is not worth a cut.
const CUTS: Cuts = Cuts {
    bytes: 1 << 20,
    after: Duration::from_millis(200),
    bytes_min: 2 * RECORD_BYTES as u64,
    after_max: Duration::from_secs(1),
};

/// Work that a server performs asynchronously.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Work {
    CatchUp(MigrationId, u32),
    Freeze(MigrationId, u32),
    Accept(MigrationId),
    Replay(MigrationId, u16, Ticket),
    PriorityReplay(MigrationId, Ticket),
    Cut(MigrationId),
    Forget(MigrationId, HashRange),
}

/// The output of a server.
#[derive(Default)]
pub(crate) struct Outside {
    pub(crate) messages: Vec<Message>,
    pub(crate) work: Vec<Work>,
    pub(crate) lines: Vec<String>,
}

pub(crate) struct Server {
    pub(crate) id: ServerId,
    pub(crate) store: Store,
    /// Set if no memory can be reserved.
    pub(crate) is_full: bool,
    /// Maximum number of hashes in one answer to a priority pull.
    pub(crate) answers_max: usize,
    sources: BTreeMap<MigrationId, MigrationSource>,
    targets: BTreeMap<MigrationId, MigrationTarget>,
    priority: BTreeMap<MigrationId, PriorityPulls>,
    intents: BTreeMap<MigrationId, Intent>,
    payloads: BTreeMap<Ticket, Batch>,
    next_ticket: u64,
    /// Operations that wait for a frozen range.
    held: Vec<(String, Operation)>,
    /// Operations that wait for records, with the missing hashes.
    parked: Vec<(String, Operation, BTreeSet<KeyHash>)>,
}

impl Server {
    pub(crate) fn new(id: ServerId) -> Server {
        Server {
            id,
            store: Store::default(),
            is_full: false,
            answers_max: usize::MAX,
            sources: BTreeMap::new(),
            targets: BTreeMap::new(),
            priority: BTreeMap::new(),
            intents: BTreeMap::new(),
            payloads: BTreeMap::new(),
            next_ticket: 1,
            held: Vec::new(),
            parked: Vec::new(),
        }
    }

    pub(crate) fn execute(
        &mut self,
        now: Instant,
        name: String,
        operation: Operation,
        out: &mut Outside,
    ) {
        let id = self.id;
        match self.store.execute(&operation) {
            Outcome::Answer(answer) => out.lines.push(format!("{id} answers {name}: {answer}")),
            Outcome::Moved(Some(to)) => out.lines.push(format!("{id} sends {name} to {to}")),
            Outcome::Moved(None) => out.lines.push(format!("{id} does not own {name}")),
            Outcome::Held => {
                out.lines.push(format!("{id} holds {name}"));
                self.held.push((name, operation));
            }
            Outcome::Missing(migration, hashes) => {
                self.park(now, migration, name, operation, hashes, out);
            }
        }
    }

    /// Parks an operation, which may have looked up its records some time ago.
    pub(crate) fn park(
        &mut self,
        now: Instant,
        migration: MigrationId,
        name: String,
        operation: Operation,
        hashes: Vec<KeyHash>,
        out: &mut Outside,
    ) {
        out.lines.push(format!("{} parks {name}", self.id));
        self.parked.push((name, operation, hashes.iter().copied().collect()));
        self.priority(now, migration, PriorityEvent::Wanted { table: TABLE, hashes }, out);
    }

    pub(crate) fn coordinator_says(
        &mut self,
        now: Instant,
        message: MigrationRequest,
        out: &mut Outside,
    ) {
        match message {
            MigrationRequest::Prepare(intent) => {
                self.intents.insert(intent.migration, intent.clone());
                let event = TargetEvent::Prepare(Box::new(intent.clone()));
                self.target(now, intent.migration, event, out);
            }
            MigrationRequest::Start(intent) => {
                let event = SourceEvent::Start(Box::new(intent.clone()));
                self.source(now, intent.migration, event, out);
            }
            MigrationRequest::Decide { migration } => {
                self.target(now, migration, TargetEvent::Decide, out);
            }
            MigrationRequest::Outcome { migration, accepted } => {
                self.source(now, migration, SourceEvent::Outcome { accepted }, out);
            }
            MigrationRequest::Forget { migration, remaining } => {
                self.source(now, migration, SourceEvent::Forget { remaining }, out);
            }
            MigrationRequest::Finished { migration } => {
                self.target(now, migration, TargetEvent::Finished, out);
            }
            MigrationRequest::Measure { .. } => {}
        }
    }

    pub(crate) fn peer_says(
        &mut self,
        now: Instant,
        from: ServerId,
        message: PeerMessage,
        batch: Batch,
        out: &mut Outside,
    ) {
        match message {
            PeerMessage::Flip(flip) => {
                let migration = flip.migration;
                let event = TargetEvent::Flip { from, flip: Box::new(flip) };
                self.target(now, migration, event, out);
            }
            PeerMessage::FlipAnswer { migration, accepted } => {
                self.source(now, migration, SourceEvent::FlipAnswered { from, accepted }, out);
            }
            PeerMessage::Pull(pull) => {
                self.learn_acceptance(now, from, pull.migration, out);
                self.answer_pull(from, &pull, out);
            }
            PeerMessage::PriorityPull(pull) => {
                self.learn_acceptance(now, from, pull.migration, out);
                let mut answers = Vec::new();
                let mut batch = Batch::new();
                for (table, hash) in pull.hashes.into_iter().take(self.answers_max) {
                    answers.push((table, hash, self.look_up(pull.migration, hash, &mut batch)));
                }
                let (migration, epoch, request) = (pull.migration, pull.epoch, pull.request);
                let reply = PriorityReply { migration, epoch, request, answers };
                self.send(from, PeerMessage::PriorityReply(reply), batch, out);
            }
            PeerMessage::PullReply(reply) => {
                let payload = self.keep(batch);
                let event = TargetEvent::PullReply { from, reply, payload };
                self.target(now, reply.migration, event, out);
            }
            PeerMessage::PriorityReply(reply) => {
                let payload = self.keep(batch);
                let migration = reply.migration;
                let reply = Box::new(reply);
                let event = PriorityEvent::Reply { from, reply, payload };
                self.priority(now, migration, event, out);
            }
            PeerMessage::Ping => self.send(from, PeerMessage::Pong, Batch::new(), out),
            PeerMessage::Pong => {
                let awaits = |(_, target): &(&MigrationId, &MigrationTarget)| target.awaits(from);
                let waiting: Vec<_> = self.targets.iter().filter(awaits).map(|it| *it.0).collect();
                for migration in waiting {
                    self.target(now, migration, TargetEvent::Heard { from }, out);
                }
            }
            _ => {}
        }
    }

    /// Handles a map that proves that the coordinator knows of the acceptance.
    pub(crate) fn acknowledge(&mut self, now: Instant, id: MigrationId, out: &mut Outside) {
        self.target(now, id, TargetEvent::Acknowledged, out);
    }

    /// Takes a pull as the answer to the flip: a target that pulls has accepted.
    fn learn_acceptance(
        &mut self,
        now: Instant,
        from: ServerId,
        migration: MigrationId,
        out: &mut Outside,
    ) {
        if self.sources.get(&migration).is_some_and(MigrationSource::expects_answer) {
            let event = SourceEvent::FlipAnswered { from, accepted: true };
            self.source(now, migration, event, out);
        }
    }

    fn keep(&mut self, batch: Batch) -> Option<Ticket> {
        if batch.is_empty() {
            return None;
        }
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        self.payloads.insert(ticket, batch);
        Some(ticket)
    }

    fn send(&self, to: ServerId, message: PeerMessage, batch: Batch, out: &mut Outside) {
        out.messages.push(Message::Peer { from: self.id, to, message, batch });
    }

    fn answer_pull(&self, to: ServerId, pull: &Pull, out: &mut Outside) {
        if !self.keeps(pull.migration, pull.cursor) {
            return;
        }
        let mut batch = Batch::new();
        let mut next = None;
        for (&hash, record) in self.store.records.range(pull.cursor..=pull.last) {
            if batch.len() as u32 * RECORD_BYTES >= pull.bytes_max {
                next = Some(hash);
                break;
            }
            batch.push((hash, record.clone()));
        }
        let Pull { migration, epoch, partition, cursor, .. } = *pull;
        let reply = PullReply { migration, epoch, partition, cursor, next };
        self.send(to, PeerMessage::PullReply(reply), batch, out);
    }

    fn keeps(&self, migration: MigrationId, hash: KeyHash) -> bool {
        self.sources.get(&migration).is_some_and(|source| source.keeps(hash))
    }

    fn look_up(&self, migration: MigrationId, hash: KeyHash, batch: &mut Batch) -> PriorityAnswer {
        match self.store.records.get(&hash) {
            _ if !self.keeps(migration, hash) => PriorityAnswer::Gone,
            None => PriorityAnswer::Absent,
            Some(record) => {
                batch.push((hash, record.clone()));
                PriorityAnswer::Records
            }
        }
    }

    /// Performs asynchronous work.
    pub(crate) fn work(&mut self, now: Instant, work: Work, out: &mut Outside) {
        match work {
            Work::CatchUp(migration, attempt) => {
                self.source(now, migration, SourceEvent::CaughtUp { attempt }, out);
            }
            Work::Freeze(migration, attempt) => {
                let version_floor = Version(self.store.counter);
                let mut counts: BTreeMap<Slot, u32> = BTreeMap::new();
                for hash in self.store.records.keys() {
                    *counts.entry(hash.slot()).or_default() += 1;
                }
                let counts: Vec<_> = counts.into_iter().map(|(slot, n)| (TABLE, slot, n)).collect();
                let records = RecordCounts::of(&counts);
                let expiry_clock = UnixMillis(0);
                let at = Box::new(FrozenState { version_floor, expiry_clock, records });
                self.source(now, migration, SourceEvent::Frozen { attempt, at }, out);
            }
            Work::Accept(migration) => self.target(now, migration, TargetEvent::Serving, out),
            Work::Replay(migration, partition, ticket) => {
                let batch = self.payloads.remove(&ticket).expect("a replay has its payload");
                let records = self.store.replay(migration, &batch);
                let added = Added { records, bytes: records * u64::from(RECORD_BYTES) };
                let event = TargetEvent::Replayed { partition, ticket, added };
                self.target(now, migration, event, out);
            }
            Work::PriorityReplay(migration, ticket) => {
                let batch = self.payloads.remove(&ticket).expect("a replay has its payload");
                let records = self.store.replay(migration, &batch);
                let added = Added { records, bytes: records * u64::from(RECORD_BYTES) };
                self.target(now, migration, TargetEvent::PriorityReplayed { added }, out);
                self.priority(now, migration, PriorityEvent::Replayed { ticket }, out);
            }
            Work::Cut(migration) => self.target(now, migration, TargetEvent::CutCommitted, out),
            Work::Forget(migration, range) => {
                self.store.records.retain(|&hash, _| !range.contains(hash));
                self.source(now, migration, SourceEvent::Forgotten { range }, out);
            }
        }
    }

    /// Fails a replay: the payload is damaged, or memory is short.
    pub(crate) fn fail(&mut self, now: Instant, work: Work, out: &mut Outside) {
        match work {
            Work::Replay(migration, partition, ticket) => {
                let event = TargetEvent::ReplayFailed { partition, ticket };
                self.target(now, migration, event, out);
            }
            Work::PriorityReplay(migration, ticket) => {
                self.priority(now, migration, PriorityEvent::ReplayFailed { ticket }, out);
            }
            Work::CatchUp(..)
            | Work::Freeze(..)
            | Work::Accept(_)
            | Work::Cut(_)
            | Work::Forget(..) => {
                unreachable!("{work:?} cannot fail")
            }
        }
    }

    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let sources = self.sources.values().filter_map(MigrationSource::next_deadline);
        let targets = self.targets.values().filter_map(MigrationTarget::next_deadline);
        let priority = self.priority.values().filter_map(PriorityPulls::next_deadline);
        sources.chain(targets).chain(priority).min()
    }

    pub(crate) fn tick(&mut self, now: Instant, out: &mut Outside) {
        for migration in self.sources.keys().copied().collect::<Vec<_>>() {
            self.source(now, migration, SourceEvent::Tick, out);
        }
        for migration in self.targets.keys().copied().collect::<Vec<_>>() {
            self.target(now, migration, TargetEvent::Tick, out);
        }
        for migration in self.priority.keys().copied().collect::<Vec<_>>() {
            self.priority(now, migration, PriorityEvent::Tick, out);
        }
    }

    /// Returns one line per machine, then the records.
    pub(crate) fn show(&self) -> Vec<String> {
        let mut lines: Vec<String> = Vec::new();
        lines.extend(self.sources.values().map(|machine| format!("{} {machine}", self.id)));
        lines.extend(self.targets.values().map(|machine| format!("{} {machine}", self.id)));
        let records = self.store.records.iter().map(|(hash, record)| {
            format!("{hash}={}@{}", record.value.as_deref().unwrap_or("deleted"), record.version)
        });
        let records: Vec<String> = records.collect();
        lines.push(format!("{} holds [{}]", self.id, records.join(" ")));
        lines
    }
}

/// The drivers of the machines.
impl Server {
    fn source(
        &mut self,
        now: Instant,
        migration: MigrationId,
        event: SourceEvent,
        out: &mut Outside,
    ) {
        let machine =
            self.sources.entry(migration).or_insert_with(|| MigrationSource::new(migration));
        let mut effects = Outbox::new();
        machine.handle(now, event, &mut effects);
        for effect in effects.drain() {
            if !matches!(effect, SourceEffect::Send { .. } | SourceEffect::Tell(_)) {
                out.lines.push(format!("{} {effect}", self.id));
            }
            self.carry_out_source(now, migration, effect, out);
        }
    }

    fn carry_out_source(
        &mut self,
        now: Instant,
        migration: MigrationId,
        effect: SourceEffect,
        out: &mut Outside,
    ) {
        match effect {
            SourceEffect::CatchUp { attempt } => out.work.push(Work::CatchUp(migration, attempt)),
            SourceEffect::Freeze { range, epoch, attempt } => {
                match self.store.tablet(range.first()) {
                    Some(tablet) if tablet.epoch == epoch => {
                        tablet.state = TabletState::Frozen;
                        out.work.push(Work::Freeze(migration, attempt));
                    }
                    _ => self.source(now, migration, SourceEvent::FreezeRefused { attempt }, out),
                }
            }
            SourceEffect::Thaw { range } => self.set_state(now, range, TabletState::Serving, out),
            SourceEffect::Leave { range, to, .. } => {
                self.set_state(now, range, TabletState::Leaving(to), out);
            }
            SourceEffect::Send { to, message } => self.send(to, message, Batch::new(), out),
            SourceEffect::Forget { range } => out.work.push(Work::Forget(migration, range)),
            SourceEffect::Release => {
                let is_over = |tablet: &Tablet| matches!(tablet.state, TabletState::Leaving(_));
                self.store.tablets.retain(|tablet| !is_over(tablet));
            }
            SourceEffect::Tell(message) => {
                out.messages.push(Message::Up { from: self.id, message });
            }
        }
    }

    fn set_state(&mut self, now: Instant, range: HashRange, state: TabletState, out: &mut Outside) {
        self.store.tablet(range.first()).expect("the tablet is here").state = state;
        self.try_held(now, out);
    }

    fn try_held(&mut self, now: Instant, out: &mut Outside) {
        for (name, operation) in std::mem::take(&mut self.held) {
            self.execute(now, name, operation, out);
        }
    }

    fn suspend(&mut self, migration: MigrationId, is_suspended: bool) {
        let arrival = self.store.arrival(migration).expect("a target has an arrival");
        arrival.is_suspended = is_suspended;
    }

    fn target(
        &mut self,
        now: Instant,
        migration: MigrationId,
        event: TargetEvent,
        out: &mut Outside,
    ) {
        let machine =
            self.targets.entry(migration).or_insert_with(|| MigrationTarget::new(migration, CUTS));
        let mut effects = Outbox::new();
        machine.handle(now, event, &mut effects);
        for effect in effects.drain() {
            let is_shown_as_message = matches!(
                effect,
                TargetEffect::Send { .. } | TargetEffect::Tell(_) | TargetEffect::Pull { .. }
            );
            if !is_shown_as_message {
                out.lines.push(format!("{} {effect}", self.id));
            }
            self.carry_out_target(now, migration, effect, out);
        }
    }

    fn carry_out_target(
        &mut self,
        now: Instant,
        migration: MigrationId,
        effect: TargetEffect,
        out: &mut Outside,
    ) {
        match effect {
            TargetEffect::Reserve { .. } => {
                let reserved = if self.is_full { Err("no room".to_owned()) } else { Ok(()) };
                self.target(now, migration, TargetEvent::Reserved(reserved), out);
            }
            TargetEffect::Unreserve => {}
            TargetEffect::Accept(acceptance) => {
                self.accept(&acceptance);
                out.work.push(Work::Accept(migration));
            }
            TargetEffect::Suspend => self.suspend(migration, true),
            TargetEffect::Resume => {
                self.suspend(migration, false);
                self.try_held(now, out);
            }
            TargetEffect::Send { to, message } => self.send(to, message, Batch::new(), out),
            TargetEffect::Pull { to, pull } => {
                self.send(to, PeerMessage::Pull(pull), Batch::new(), out);
            }
            TargetEffect::Replay { partition, ticket } => {
                out.work.push(Work::Replay(migration, partition, ticket));
            }
            TargetEffect::Discard { ticket } => {
                self.payloads.remove(&ticket);
            }
            TargetEffect::Advance { partition, to } => {
                let arrival = self.store.arrival(migration).expect("a target has an arrival");
                let (range, progress) = &mut arrival.partitions[usize::from(partition)];
                let first = progress.expect("the end is not passed");
                let last = to.map_or(range.last(), |to| KeyHash(to.0 - 1));
                *progress = to;
                let passed = PriorityEvent::Passed { range: HashRange::new(first, last) };
                self.priority(now, migration, passed, out);
            }
            TargetEffect::Cut => out.work.push(Work::Cut(migration)),
            TargetEffect::Tell(message) => {
                out.messages.push(Message::Up { from: self.id, message });
            }
            TargetEffect::Finish => {
                self.priority.remove(&migration);
                for tablet in &mut self.store.tablets {
                    if matches!(&tablet.state, TabletState::Arriving(arrival) if arrival.migration == migration)
                    {
                        tablet.state = TabletState::Serving;
                    }
                }
                self.store.records.retain(|_, record| record.value.is_some());
            }
        }
    }

    fn accept(&mut self, acceptance: &Acceptance) {
        let intent = &acceptance.intent;
        self.priority.insert(intent.migration, PriorityPulls::new(intent));
        self.store.counter = self.store.counter.max(acceptance.flip.version_floor.0);
        let partitions = acceptance.partitions.iter().map(|&part| (part, Some(part.first())));
        let arrival = Arrival {
            migration: intent.migration,
            partitions: partitions.collect(),
            absent: BTreeSet::new(),
            is_suspended: false,
        };
        self.store.tablets.push(Tablet {
            range: intent.range,
            epoch: intent.target_epoch,
            state: TabletState::Arriving(arrival),
        });
    }

    fn priority(
        &mut self,
        now: Instant,
        migration: MigrationId,
        event: PriorityEvent,
        out: &mut Outside,
    ) {
        let mut effects = Outbox::new();
        let machine = self.priority.get_mut(&migration);
        match (machine, event) {
            (Some(machine), event) => machine.handle(now, event, &mut effects),
            (None, PriorityEvent::Reply { payload: Some(ticket), .. }) => {
                effects.push(PriorityEffect::Discard { ticket });
            }
            (None, _) => {}
        }
        for effect in effects.drain() {
            if !matches!(effect, PriorityEffect::Pull { .. }) {
                out.lines.push(format!("{} {effect}", self.id));
            }
            self.carry_out_priority(now, migration, effect, out);
        }
    }

    fn carry_out_priority(
        &mut self,
        now: Instant,
        migration: MigrationId,
        effect: PriorityEffect,
        out: &mut Outside,
    ) {
        match effect {
            PriorityEffect::Pull { to, pull } => {
                self.send(to, PeerMessage::PriorityPull(pull), Batch::new(), out);
            }
            PriorityEffect::Replay { ticket } => {
                out.work.push(Work::PriorityReplay(migration, ticket));
            }
            PriorityEffect::Discard { ticket } => {
                self.payloads.remove(&ticket);
            }
            PriorityEffect::NoteAbsent { hash, .. } => {
                if let Some(arrival) = self.store.arrival(migration) {
                    arrival.absent.insert(hash);
                }
            }
            PriorityEffect::Wake { hash, .. } => {
                let parked = std::mem::take(&mut self.parked);
                let (woken, parked) =
                    parked.into_iter().partition(|(_, _, hashes)| hashes.contains(&hash));
                self.parked = parked;
                for (name, operation, _) in woken {
                    self.execute(now, name, operation, out);
                }
            }
        }
    }
}
