//! One reactor's part of a server, without sockets: the place where store and protocols meet.
//!
//! An engine has its reactor's way into the store ([`Engine::worker`]), on which commands run
//! directly; it carries out what the machines of migrations want ([`source_side`], [`target_side`],
//! [`early`]); and it does background work in bounded quanta. What goes to other servers, to the
//! coordinator and to parked operations is left in [`Engine::out`].
//!
//! All that reactors share is in [`Node`]. The machines there are behind one lock, which messages
//! and quanta take for well under a microsecond, and operations never.
//!
//! A simulator drives it as the shell does: turns, messages, quanta, time.
//!
//! [`source_side`]: self
//! [`target_side`]: self
//! [`early`]: self

mod census;
mod cleaning;
mod clock;
mod durable;
mod early;
mod entitled;
mod flush;
mod info;
mod node;
mod outgoing;
mod pulse;
mod recovering;
mod replicated;
mod safety;
mod source_side;
mod tablets;
mod target_side;
mod work;

pub use durable::{Keeper, Kept, KeptError, Mode, Progress};
pub(crate) use info::{Section, called, expired};
pub use node::{Identity, Keeping, Node};
pub use outgoing::{DiskDone, DiskJob, Outgoing, Payload, Route, Sending, To, Wake};
pub use pulse::Pulse;
pub use recovering::{ReadDone, ReadJob};
pub use replicated::{BackupDone, BackupJob, DiskCounts, Plan, Replication};
pub(crate) use safety::Safety;

use crate::Configuration;
use crate::data::{Data, Staged};
use crate::operators::counts::{Background, Counts};
use crate::operators::host::Job;
use census::Count;
use cleaning::Cleaner;
use clock::ClockReader;
use durable::Saving;
use early::Early;
use flush::Flush;
use protocols::migration::{SourceEvent, TargetEvent};
use protocols::replication::BackupEvent;
use recovering::Reading;
use replicated::{BackupPart, Master};
use source_side::{PriorityToServe, PullToServe};
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use store::Worker;
use types::limits::TABLES_MAX;
use types::{Instant, KeyHash, MigrationId, ReactorId, ServerId, TableId, UnixMillis, key_hash};
use wire::control::{Answer, Ask, FromCoordinator, ToCoordinator};
use wire::peer::PeerMessage;
use work::Work;

/// The part of a server that one reactor runs, without sockets.
pub struct Engine {
    node: Arc<Node>,
    reactor: ReactorId,
    /// This reactor's way into the store.
    pub worker: Worker,
    /// What the transaction at hand works on.
    pub(crate) staged: Option<Staged>,
    /// What is to be done outside.
    pub out: Outgoing,
    /// The settings that this turn goes by.
    pub(crate) configuration: Arc<Configuration>,
    /// What this reactor counts.
    pub(crate) counts: Arc<Counts>,
    /// The operators' version that both are of.
    operators_version: u64,
    stopwatch: Option<Stopwatch>,
    early: BTreeMap<MigrationId, Early>,
    pulls_to_serve: VecDeque<PullToServe>,
    priority_to_serve: Vec<(ServerId, PriorityToServe)>,
    flushes: VecDeque<Flush>,
    /// Requests to the coordinator that ask for a flush, by number.
    flushing: BTreeSet<u64>,
    next_request: u64,
    /// The tablets' version that parked operations were last tried with.
    tablets_version: u64,
    /// Buffers of payloads, to be used again.
    buffers: Vec<Vec<u8>>,
    /// When the first turn began.
    started: Option<Instant>,
    /// What keeps the log, if it is kept.
    keeper: Option<Arc<Keeper>>,
    saving: Saving,
    /// What keeps the log on other servers, if they keep it.
    replication: Option<Arc<Replication>>,
    master: Option<Master>,
    backups: BackupPart,
    /// Messages to this server itself that have not been delivered.
    to_itself: VecDeque<Sending>,
    /// What masters of recoveries wait for.
    readings: Vec<Reading>,
    /// Messages that their senders were not entitled to.
    denied: u64,
    /// Data was shown or changed since [`Engine::take_data`]. Only noted where reads are strict.
    has_data: Cell<bool>,
    /// Whether replies wait for what they tell of to be acknowledged.
    holds: bool,
    cleaner: Cleaner,
    clock: ClockReader,
    /// The census that goes on.
    counting: Count,
}

/// Tells the time within a turn, for measurements.
pub type Stopwatch = Box<dyn Fn() -> Instant>;

/// Buffers kept for pulls' payloads: some more than one migration has in flight.
const BUFFERS_MAX: usize = 32;

/// Pause between two rounds of the walk that reclaims expired records, and the buckets of one.
/// There is no pause while each round finds something: 300,000 keys stand in some 55,000 buckets,
/// which then take half a second, 20 us of each millisecond.
const EXPIRY_PAUSE: Duration = Duration::from_millis(100);
const EXPIRY_BUCKETS: usize = 4_096;
const EXPIRY_QUANTUM_BUCKETS: usize = 128;

impl Engine {
    /// The engine of one reactor. Each reactor has one, made on its own thread or before.
    pub fn new(node: Arc<Node>, reactor: ReactorId) -> Engine {
        let worker = node.store().worker(reactor);
        Engine {
            reactor,
            worker,
            staged: None,
            out: Outgoing::default(),
            configuration: node.operators.configuration(),
            counts: node.operators.counts_of(reactor),
            operators_version: node.operators.version(),
            stopwatch: None,
            early: BTreeMap::new(),
            pulls_to_serve: VecDeque::new(),
            priority_to_serve: Vec::new(),
            flushes: VecDeque::new(),
            flushing: BTreeSet::new(),
            next_request: u64::from(reactor.0) << REQUEST_REACTOR_SHIFT,
            tablets_version: 0,
            buffers: Vec::new(),
            started: None,
            keeper: node.keeper().cloned(),
            saving: Saving::default(),
            master: node.replication().map(|it| Master::new(it.plan(), node.me())),
            replication: node.replication().cloned(),
            backups: BackupPart::default(),
            to_itself: VecDeque::new(),
            readings: Vec::new(),
            denied: 0,
            has_data: Cell::new(false),
            holds: false,
            cleaner: Cleaner::default(),
            clock: ClockReader::default(),
            counting: Count::default(),
            node,
        }
    }

    /// How this thread measures. Without it, what happens within a turn takes no time.
    pub fn set_stopwatch(&mut self, stopwatch: Stopwatch) {
        self.stopwatch = Some(stopwatch);
    }

    /// The time, for measurements alone; in a turn that began at `now`.
    #[inline]
    pub(crate) fn read_stopwatch(&self, now: Instant) -> Instant {
        self.stopwatch.as_ref().map_or(now, |stopwatch| stopwatch())
    }

    /// What all reactors share.
    pub fn node(&self) -> &Node {
        &self.node
    }

    /// Which reactor's it is.
    pub fn reactor(&self) -> ReactorId {
        self.reactor
    }

    /// Where commands find records.
    #[inline]
    pub(crate) fn data(&mut self) -> Data<'_> {
        match &mut self.staged {
            None => Data::Store(&mut self.worker, &self.counts),
            Some(staged) => Data::Staged(staged),
        }
    }

    /// What `INFO` says, in the sections that are wanted.
    pub(crate) fn info(
        &self,
        now: Instant,
        wall: UnixMillis,
        is_wanted: impl Fn(&Section) -> bool,
    ) -> String {
        info::text(self, now, wall, is_wanted)
    }

    /// How long it has run.
    pub(crate) fn uptime(&self, now: Instant) -> Duration {
        now.since(self.started.unwrap_or(now))
    }

    /// The place of a key in the key space.
    #[inline]
    pub fn hash(&self, key: &[u8]) -> KeyHash {
        key_hash(self.node.store().seed(), key)
    }

    /// Begins a turn: takes over what other reactors have changed.
    pub fn begin_turn(&mut self, now: Instant, wall: UnixMillis) {
        self.started.get_or_insert(now);
        self.follow_operators();
        self.cleaner.begin_turn(now);
        let clock = self.turn_clock(now, wall);
        self.worker.begin_turn(clock);
        if self.node.waiting_machines.load(Ordering::Acquire) > 0 {
            self.poll_machines(now);
        }
        let version = self.node.tablets_version();
        if version != self.tablets_version {
            self.tablets_version = version;
            self.out.wakes.push(Wake::Tablets);
        }
        if !self.early.is_empty() {
            self.follow_progress(now);
            self.poll_early(now);
        }
        if !self.priority_to_serve.is_empty() {
            self.serve_priority_again();
        }
    }

    /// Takes over settings and counts that operators have replaced.
    pub(crate) fn follow_operators(&mut self) {
        let operators = &self.node.operators;
        if operators.version() != self.operators_version {
            self.operators_version = operators.version();
            self.configuration = operators.configuration();
            self.counts = operators.counts_of(self.reactor);
            self.update_reach_min();
        }
    }

    fn poll_machines(&mut self, now: Instant) {
        let node = self.node.clone();
        let mut machines = node.machines();
        self.poll_freezes(&mut machines, now);
        self.poll_targets(&mut machines, now);
        self.poll_recoveries(&mut machines, now);
        node.note_machines(&machines);
    }

    /// The reactor is about to wait: nobody need wait for it.
    pub fn sleep(&mut self) {
        self.worker.sleep();
    }

    /// A message from a server. `route` leads back on the connection that it came on.
    pub fn on_peer(
        &mut self,
        now: Instant,
        from: ServerId,
        route: Route,
        message: PeerMessage,
        payload: Payload,
    ) {
        if !self.may_say(from, &message) {
            return;
        }
        match message {
            // A target that the coordinator misses may be given up there: it accepts nothing. What it has
            // decided it says again: its source may be asked for that, or waits for it to go on alone.
            PeerMessage::Flip(ref flip)
                if !self.node.is_linked() && self.may_accept(flip.migration) => {}
            PeerMessage::Flip(flip) => {
                // The turn may have begun long before: a machine that stood still since then has
                // promised nothing any more.
                let now = self.read_stopwatch(now);
                let (id, flip) = (flip.migration, Box::new(flip));
                self.drive_target(now, id, TargetEvent::Flip { from, flip });
            }
            PeerMessage::FlipAnswer { migration, accepted } => {
                let event = SourceEvent::FlipAnswered { from, accepted };
                self.drive_source(now, migration, event);
            }
            PeerMessage::Pull(pull) => {
                self.learn_acceptance(now, from, pull.migration);
                self.accept_pull(from, route, pull);
            }
            PeerMessage::PullReply(reply) => self.pull_replied(now, from, reply, payload),
            PeerMessage::PriorityPull(pull) => {
                self.learn_acceptance(now, from, pull.migration);
                self.serve_priority(from, route, pull);
            }
            PeerMessage::PriorityReply(reply) => self.priority_replied(now, from, reply, payload),
            PeerMessage::Append(append) => {
                self.append_arrived(now, (from, route), append, payload);
            }
            PeerMessage::Appended(answer) => self.appended(now, from, answer),
            PeerMessage::Release { replicas } => self.release_arrived(now, from, replicas),
            PeerMessage::Released { replicas } => self.released(from, replicas),
            PeerMessage::Needed { replicas } => self.needed(now, from, replicas),
            PeerMessage::RecoveryRead(read) => self.recovery_read_arrived(now, route, read),
            PeerMessage::RecoveryReply(reply) => self.recovery_replied(now, from, reply, payload),
            PeerMessage::Ping => self.pinged(route),
            PeerMessage::Pong => self.heard(now, from),
        }
    }

    /// Whether a flip of this migration would be accepted here.
    fn may_accept(&self, migration: MigrationId) -> bool {
        let machines = self.node.machines();
        machines.targets.get(&migration).is_some_and(|side| side.machine.may_accept())
    }

    /// A message from the coordinator. Answers go to the engine that asked: see
    /// [`Engine::asked_by`].
    pub fn on_control(&mut self, now: Instant, message: FromCoordinator) {
        match message {
            // The link's business.
            FromCoordinator::Welcome { .. }
            | FromCoordinator::Rejected { .. }
            | FromCoordinator::Ping
            | FromCoordinator::Describe
            | FromCoordinator::Mark(_)
            | FromCoordinator::Waiting { .. } => {}
            FromCoordinator::Clock(question) => {
                if let Some(reference) = question.reference {
                    self.lead_clock_from_afar(now, reference);
                }
            }
            FromCoordinator::Witness { server } => self.ask_for_coordinator(server),
            FromCoordinator::Map(map) => {
                for (range, epoch) in self.node.adopt(map) {
                    self.out.control.push(ToCoordinator::Holding { range, epoch });
                }
                self.flush_if_renewed();
                self.acknowledge_flips(now);
                self.follow_map_of_recoveries(now);
            }
            FromCoordinator::Measure { migration, range } => self.measure(migration, range),
            FromCoordinator::Prepare(intent) => {
                let (id, intent) = (intent.migration, Box::new(intent));
                self.drive_target(now, id, TargetEvent::Prepare(intent));
            }
            FromCoordinator::Start(intent) => {
                let (id, intent) = (intent.migration, Box::new(intent));
                self.drive_source(now, id, SourceEvent::Start(intent));
            }
            FromCoordinator::Decide { migration } => {
                self.drive_target(now, migration, TargetEvent::Decide);
            }
            FromCoordinator::Outcome { migration, accepted } => {
                self.drive_source(now, migration, SourceEvent::Outcome { accepted });
            }
            FromCoordinator::Forget { migration, remaining } => {
                self.drive_source(now, migration, SourceEvent::Forget { remaining });
            }
            FromCoordinator::Finished { migration } => {
                self.drive_target(now, migration, TargetEvent::Finished);
            }
            FromCoordinator::Answer { request, answer } => self.answered(request, answer),
            FromCoordinator::ChainNoted { number } => self.chain_noted(now, number),
            FromCoordinator::Fence { log } if self.replication.is_some() => {
                self.on_backup(now, BackupEvent::Fence { log });
            }
            FromCoordinator::FreeLog { log } if self.replication.is_some() => {
                self.on_backup(now, BackupEvent::Recovered { log });
            }
            // Who keeps no logs of others has nothing of them.
            FromCoordinator::Fence { log } => {
                let (first, replicas, clock) = (0, Vec::new(), UnixMillis(0));
                let nothing = ToCoordinator::Fenced { log, first, replicas, clock, more: false };
                self.out.control.push(nothing);
            }
            FromCoordinator::ReadDirectory { log, replica, first } => {
                self.read_directory(log, replica, first);
            }
            FromCoordinator::Recover(part) => self.recover(now, part),
            FromCoordinator::Kept { range, epoch } => self.part_kept(now, range, epoch),
            FromCoordinator::FreeLog { log } => {
                self.out.control.push(ToCoordinator::LogFreed { log });
            }
        }
    }

    /// What was left in [`Outgoing::disk`] has been done.
    pub fn on_disk(&mut self, now: Instant, done: DiskDone) {
        match done {
            DiskDone::Synced(synced) => self.on_synced(now, synced),
            DiskDone::Backup(done) => self.on_backup_done(now, done),
            DiskDone::Read(done) => self.on_read(now, done),
        }
    }

    /// The reactor whose engine asked this of the coordinator.
    pub fn asked_by(request: u64) -> ReactorId {
        ReactorId((request >> REQUEST_REACTOR_SHIFT) as u16)
    }

    /// Asks the coordinator; [`Wake::Answer`] follows under the number returned. `None`: it cannot
    /// be reached.
    pub(crate) fn ask(&mut self, ask: Ask) -> Option<u64> {
        if !self.node.is_linked() {
            return None;
        }
        self.next_request += 1;
        let request = self.next_request;
        if let Ask::Flush { .. } = &ask {
            self.flushing.insert(request);
        }
        self.out.control.push(ToCoordinator::Ask { request, ask });
        Some(request)
    }

    /// Has the process do something; [`Wake::Answer`] follows under the number returned. `None`:
    /// there is no process.
    pub(crate) fn begin(&mut self, job: Job) -> Option<u64> {
        let host = self.node.operators.host()?;
        self.next_request += 1;
        host.begin(self.next_request, job);
        Some(self.next_request)
    }

    fn answered(&mut self, request: u64, answer: Answer) {
        match (self.flushing.remove(&request), &answer) {
            (true, Answer::Flushed { map }) => self.begin_flush(Some(request), *map),
            _ => self.out.wakes.push(Wake::Answer(request, answer)),
        }
    }

    /// Whether [`Engine::quantum`] would find work.
    pub fn has_background(&self) -> bool {
        if self.is_loading() {
            return self.can_load();
        }
        !self.pulls_to_serve.is_empty()
            || self.node.work.len() > 0
            || !self.flushes.is_empty()
            || self.node.restless_machines.load(Ordering::Relaxed) > 0
            || self.may_clean()
    }

    /// Does one bounded piece of background work. `false`: there was none.
    pub fn quantum(&mut self, now: Instant) -> bool {
        let before = self.read_stopwatch(now);
        let done = self.background_work(now);
        if let Some(kind) = done {
            self.counts.background(kind, self.read_stopwatch(now).since(before));
        }
        done.is_some()
    }

    /// Does one bounded piece of background work, and says what it was for.
    fn background_work(&mut self, now: Instant) -> Option<Background> {
        if self.is_loading() {
            return (self.can_load() && self.load_piece(now)).then_some(Background::Import);
        }
        if let Some(done) = self.clean_first(now) {
            return Some(done);
        }
        if self.serve_pull() {
            return Some(Background::Export);
        }
        if self.flush_quantum() {
            return Some(Background::Flush);
        }
        match self.node.work.pop() {
            Some(Work::Pull(to, pull)) => self.out.send(to, PeerMessage::Pull(pull)),
            Some(Work::Replay(replay)) => self.replay(now, replay),
            Some(Work::Forget { migration, range, cursor }) => {
                self.forget(now, migration, range, cursor);
                return Some(Background::Export);
            }
            Some(Work::ReplayLog(replay)) => {
                self.replay_log(now, replay);
                return Some(Background::Recover);
            }
            Some(Work::ForgetReplayed { epoch, range, cursor }) => {
                self.forget_replayed(epoch, range, cursor);
                return Some(Background::Recover);
            }
            Some(Work::SweepRecovery(recovery)) => {
                self.sweep_recovered(recovery);
                return Some(Background::Recover);
            }
            Some(Work::Sweep(arrival)) => {
                if self.worker.sweep(&arrival, SWEEP_MAX) || !arrival.is_complete() {
                    self.node.work.push(Work::Sweep(arrival));
                }
            }
            None if self.may_clean() => return self.clean(now),
            None => return None,
        }
        Some(Background::Import)
    }

    /// When [`Engine::tick`] is due, if nothing happens before.
    pub fn next_deadline(&self) -> Option<Instant> {
        let machines = self.node.machine_deadline.load(Ordering::Acquire);
        let machines = (machines != u64::MAX).then_some(Instant(machines));
        let expiry = match self.node.expiry.try_lock() {
            Ok(walk) if self.reactor == ReactorId(0) => Some(walk.next),
            Ok(_) | Err(_) => None,
        };
        let saving = self.saving.next_deadline();
        let replication = self.replication_deadline();
        let cleaner = self.cleaner.next_deadline();
        let census = self.counting.next_step();
        [machines, self.early_deadline(), expiry, census, cleaner, saving, replication]
            .into_iter()
            .flatten()
            .min()
    }

    /// Time has passed.
    pub fn tick(&mut self, now: Instant) {
        if now.0 >= self.node.machine_deadline.load(Ordering::Acquire) {
            let node = self.node.clone();
            let mut machines = node.machines();
            self.tick_sources(&mut machines, now);
            self.tick_targets(&mut machines, now);
            self.tick_recoveries(&mut machines, now);
            node.note_machines(&machines);
        }
        self.tick_early(now);
        self.tick_replication(now);
        // As often as the walk has a step to make, at most.
        self.take_census(now);
        self.walk_expired(now);
    }

    /// A step of the walk that reclaims expired records, table by table.
    fn walk_expired(&mut self, now: Instant) {
        let Ok(mut walk) = self.node.expiry.try_lock() else { return };
        if now < walk.next {
            return;
        }
        if self.node.rests_expiry.load(Ordering::Relaxed) || self.is_loading() {
            walk.next = now + EXPIRY_PAUSE;
            return;
        }
        if walk.buckets_left == 0 {
            walk.buckets_left = EXPIRY_BUCKETS;
        }
        let table = TableId(walk.table);
        let next = self.worker.expire(table, KeyHash(walk.cursor), EXPIRY_QUANTUM_BUCKETS);
        let met = self.worker.take_expiring();
        walk.met.add(met);
        walk.eager_left = match met.expired {
            0 => walk.eager_left.saturating_sub(EXPIRY_QUANTUM_BUCKETS),
            _ => EXPIRY_BUCKETS,
        };
        match next {
            Some(cursor) => {
                walk.cursor = cursor.0;
                walk.buckets_left = walk.buckets_left.saturating_sub(EXPIRY_QUANTUM_BUCKETS);
            }
            None => {
                self.node.census.note_expiring(table, std::mem::take(&mut walk.met));
                walk.cursor = 0;
                walk.table = (walk.table + 1) % TABLES_MAX as u8;
                walk.buckets_left = if walk.table == 0 { 0 } else { walk.buckets_left };
            }
        }
        let rests = walk.buckets_left == 0 && walk.eager_left == 0;
        let pause = if rests { EXPIRY_PAUSE } else { Duration::from_millis(1) };
        walk.next = now + pause;
    }

    fn take_buffer(&mut self, bytes: usize) -> Vec<u8> {
        let mut buffer = self.buffers.pop().unwrap_or_default();
        buffer.clear();
        buffer.reserve(bytes);
        buffer
    }

    /// Whether a buffer would be allocated by the next quantum.
    pub fn wants_buffer(&self) -> bool {
        !self.pulls_to_serve.is_empty() && self.buffers.is_empty()
    }

    /// A buffer that this engine has no use for.
    pub fn spare_buffer(&mut self) -> Option<Vec<u8>> {
        if self.pulls_to_serve.is_empty() { self.buffers.pop() } else { None }
    }

    /// Gives a payload's buffer back once it is not needed.
    pub fn give_buffer(&mut self, buffer: Vec<u8>) {
        if self.buffers.len() < BUFFERS_MAX {
            self.buffers.push(buffer);
        }
    }
}

/// Tombstones that one quantum drops.
const SWEEP_MAX: usize = 256;

/// A request's number begins with its reactor's, so that the answer finds back.
const REQUEST_REACTOR_SHIFT: u32 = 48;
