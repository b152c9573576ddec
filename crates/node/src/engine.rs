//! The part of a node that one reactor runs: events come in, the contents of [`Engine::out`] go out.

use crate::census::Count;
use crate::cleaning::Cleaner;
use crate::clock::ClockReader;
use crate::context::{BufferPool, Context};
use crate::durable::Saving;
use crate::early::PriorityPullDriver;
use crate::flush::Flush;
use crate::node::Machines;
use crate::recovering::{self, Asker, LogReads};
use crate::replicated::{BackupPart, LogMaster};
use crate::settings::LiveSettings;
use crate::source_side::{self, PullServer};
use crate::work::Background;
use crate::{DiskDone, Keeper, Node, Outgoing, Payload, Route, Sending, To, Wake};
use protocols::migration::{SourceEvent, TargetEvent};
use protocols::replication::BackupEvent;
use std::cell::Cell;
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use store::{Missing, Worker};
use types::limits::TABLES_MAX;
use types::{Instant, KeyHash, MigrationId, ReactorId, ServerId, TableId, UnixMillis, key_hash};
use wire::control::{Answer, Ask, FromCoordinator, ToCoordinator};
use wire::peer::PeerMessage;

/// The part of a server that one reactor runs, without sockets.
pub struct Engine {
    pub(crate) node: Arc<Node>,
    pub(crate) reactor: ReactorId,
    /// The reactor's handle to the store.
    pub worker: Worker,
    /// Output of this engine: messages, disk jobs and wakes.
    pub out: Outgoing,
    /// Settings in effect for this turn.
    pub(crate) live: LiveSettings,
    pub(crate) time: Option<TimeWithinTurn>,
    pub(crate) priority_pulls: PriorityPullDriver,
    pub(crate) pull_server: PullServer,
    pub(crate) flushes: VecDeque<Flush>,
    /// Numbers of the outstanding coordinator requests that ask for a flush.
    pub(crate) flushing: BTreeSet<u64>,
    pub(crate) next_request: u64,
    /// Version of the tablets with which parked operations were last retried.
    pub(crate) tablets_version: u64,
    pub(crate) buffers: BufferPool,
    /// Start of the first turn.
    pub(crate) started: Option<Instant>,
    /// Local persistence of the log, if this server writes its own.
    pub(crate) keeper: Option<Arc<Keeper>>,
    pub(crate) saving: Saving,
    /// Replication of the log to other servers, if enabled.
    pub(crate) log_master: Option<LogMaster>,
    /// Replicas of other servers' logs, if replication is enabled.
    pub(crate) backup: Option<BackupPart>,
    /// Messages from this server to itself that are not delivered yet.
    pub(crate) to_itself: VecDeque<Sending>,
    pub(crate) reads: LogReads,
    /// Number of messages dropped because their senders were not entitled to send them.
    pub(crate) denied: u64,
    /// Set, with strict reads, if data was used since the last [`Engine::take_data`].
    pub(crate) has_data: Cell<bool>,
    /// Set while replies wait until their dependencies are acknowledged.
    pub(crate) holds: bool,
    pub(crate) cleaner: Cleaner,
    pub(crate) clock: ClockReader,
    /// State of the load profile scan in progress.
    pub(crate) counting: Count,
}

/// Reads the monotonic clock within a turn, possibly long after the turn began.
pub type TimeWithinTurn = Box<dyn Fn() -> Instant>;

/// Pause between two rounds of the expiry scan, and the number of buckets per round. While every
/// round finds expired records there is no pause. 300,000 keys occupy some 55,000 buckets, and
/// their scan then takes half a second, at 20 us per millisecond.
const EXPIRY_PAUSE: Duration = Duration::from_millis(100);
const EXPIRY_BUCKETS: usize = 4_096;
const EXPIRY_QUANTUM_BUCKETS: usize = 128;

/// Borrows one component of an engine, and apart from it the [`Context`] of an event.
macro_rules! parts {
    ($engine:expr, $now:expr, $component:ident) => {{
        let engine: &mut Engine = $engine;
        let context = Context {
            now: $now,
            node: &engine.node,
            reactor: engine.reactor,
            live: engine.live,
            holds_replies: engine.holds,
            worker: &mut engine.worker,
            out: &mut engine.out,
            buffers: &mut engine.buffers,
            reads: &mut engine.reads,
        };
        (&mut engine.$component, context)
    }};
}

impl Engine {
    /// Makes the engine of one reactor, on the reactor's own thread or before that thread starts.
    pub fn new(node: Arc<Node>, reactor: ReactorId) -> Engine {
        let worker = node.store().worker(reactor);
        Engine {
            reactor,
            worker,
            out: Outgoing::default(),
            live: node.live(),
            time: None,
            priority_pulls: PriorityPullDriver::default(),
            pull_server: PullServer::default(),
            flushes: VecDeque::new(),
            flushing: BTreeSet::new(),
            next_request: u64::from(reactor.0) << REQUEST_REACTOR_SHIFT,
            tablets_version: 0,
            buffers: BufferPool::default(),
            started: None,
            keeper: node.keeper().cloned(),
            saving: Saving::default(),
            log_master: node.replication().map(|it| LogMaster::new(it.clone(), node.me())),
            backup: node.replication().map(|it| BackupPart::new(it.clone())),
            to_itself: VecDeque::new(),
            reads: LogReads::default(),
            denied: 0,
            has_data: Cell::new(false),
            holds: false,
            cleaner: Cleaner::default(),
            clock: ClockReader::default(),
            counting: Count::default(),
            node,
        }
    }

    /// Sets how this thread reads the clock within a turn. Without it, a turn takes no time.
    pub fn set_time_within_turn(&mut self, time: TimeWithinTurn) {
        self.time = Some(time);
    }

    /// Returns the current time, in a turn that began at `now`. Most work uses the start of the
    /// turn as its time. Measurements, leases and times to live must not: the process may have
    /// been stopped within the turn.
    #[inline]
    pub fn time_within_turn(&self, now: Instant) -> Instant {
        self.time.as_ref().map_or(now, |time| time())
    }

    /// Returns the state that all reactors of the server share.
    pub fn node(&self) -> &Node {
        &self.node
    }

    /// Returns the id of this engine's reactor.
    pub fn reactor(&self) -> ReactorId {
        self.reactor
    }

    /// Returns the time since the first turn.
    pub fn uptime(&self, now: Instant) -> Duration {
        now.since(self.started.unwrap_or(now))
    }

    /// Returns the hash of a key, which is its place in the key space.
    #[inline]
    pub fn hash(&self, key: &[u8]) -> KeyHash {
        key_hash(self.node.store().seed(), key)
    }

    /// Begins a turn: applies changes that other reactors have made since the last one.
    pub fn begin_turn(&mut self, now: Instant, wall: UnixMillis) {
        self.started.get_or_insert(now);
        self.follow_settings();
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
        if !self.priority_pulls.is_idle() {
            let (pulls, mut context) = parts!(self, now, priority_pulls);
            pulls.follow_progress(&mut context);
            pulls.poll(&mut context);
        }
        if self.pull_server.is_contended() {
            let (pulls, mut context) = parts!(self, now, pull_server);
            pulls.serve_priority_again(&mut context);
        }
    }

    /// Reloads settings that operators have replaced.
    pub fn follow_settings(&mut self) {
        let live = self.node.live();
        if live != self.live {
            self.live = live;
            if let Some(master) = &mut self.log_master {
                master.update_reach_min(live, &self.node);
            }
        }
    }

    /// Resumes the machines that need not wait for reactors or backups any more.
    fn poll_machines(&mut self, now: Instant) {
        self.change_machines(now, |machines, context| {
            machines.poll_freezes(context);
            machines.poll_targets(context);
            machines.poll_recoveries(context);
        });
    }

    /// Lets the log master handle an event, if the log is replicated.
    pub(crate) fn with_log_master(
        &mut self,
        now: Instant,
        handle: impl FnOnce(&mut LogMaster, &mut Context<'_>),
    ) {
        let (master, mut context) = parts!(self, now, log_master);
        if let Some(master) = master {
            handle(master, &mut context);
        }
    }

    /// Lets the backup role handle an event, if the server takes replicas.
    fn with_backup(
        &mut self,
        now: Instant,
        handle: impl FnOnce(&mut BackupPart, &mut Context<'_>),
    ) {
        let (backup, mut context) = parts!(self, now, backup);
        if let Some(backup) = backup {
            handle(backup, &mut context);
        }
    }

    /// Changes machines of migrations and recoveries, which all reactors share.
    pub(crate) fn change_machines<T>(
        &mut self,
        now: Instant,
        change: impl FnOnce(&mut Machines, &mut Context<'_>) -> T,
    ) -> T {
        let mut context = self.context(now);
        context.node.change_machines(|machines| change(machines, &mut context))
    }

    /// Marks the reactor as asleep. Grace periods do not wait for a sleeping reactor.
    pub fn sleep(&mut self) {
        self.worker.sleep();
    }

    /// Handles a message from a server. `route` leads back over the connection it arrived on.
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
            // While disconnected from the coordinator, ignore new flips: the coordinator may
            // already have given this target up. A target that has already decided repeats its
            // answer, because the source may need it to make progress.
            PeerMessage::Flip(ref flip)
                if !self.node.is_linked() && self.node.machines().may_accept(flip.migration) => {}
            PeerMessage::Flip(flip) => {
                // The turn may have begun long before. A process that was stopped since then must
                // not rely on a promise that has expired.
                let now = self.time_within_turn(now);
                let (id, flip) = (flip.migration, Box::new(flip));
                let event = TargetEvent::Flip { from, flip };
                self.change_machines(now, |it, context| it.drive_target(id, event, context));
            }
            PeerMessage::FlipAnswer { migration, accepted } => {
                let event = SourceEvent::FlipAnswered { from, accepted };
                self.change_machines(now, |it, context| it.drive_source(migration, event, context));
            }
            PeerMessage::Pull(pull) => {
                let (pulls, mut context) = parts!(self, now, pull_server);
                source_side::learn_acceptance(from, pull.migration, &mut context);
                pulls.accept(from, route, pull, context.node);
            }
            PeerMessage::PullReply(reply) => self.change_machines(now, |it, context| {
                it.pull_replied(from, reply, payload, context);
            }),
            PeerMessage::PriorityPull(pull) => {
                let (pulls, mut context) = parts!(self, now, pull_server);
                source_side::learn_acceptance(from, pull.migration, &mut context);
                pulls.serve_priority(from, route, pull, &mut context);
            }
            PeerMessage::PriorityReply(reply) => {
                let (pulls, mut context) = parts!(self, now, priority_pulls);
                pulls.on_reply(from, reply, payload, &mut context);
            }
            PeerMessage::Append(append) => self.with_backup(now, |backup, context| {
                backup.append_arrived(from, append, payload, route, context);
            }),
            PeerMessage::Appended(answer) => self.with_log_master(now, |master, context| {
                master.appended(from, answer, context);
            }),
            PeerMessage::Release { replicas } => self.with_backup(now, |backup, context| {
                backup.release_arrived(from, replicas, context);
            }),
            PeerMessage::Released { replicas } => self.with_log_master(now, |master, context| {
                master.released(from, replicas, context.node);
            }),
            PeerMessage::Needed { replicas } => self.with_log_master(now, |master, context| {
                master.needed(from, replicas, context);
            }),
            PeerMessage::RecoveryRead(read) => self.context(now).read(Asker::There(route), read),
            PeerMessage::RecoveryReply(reply) => self.change_machines(now, |it, context| {
                it.recovery_replied(from, reply, payload, context);
            }),
            PeerMessage::Ping => {
                let (to, message) = (To::Back(route), PeerMessage::Pong);
                let payload = Vec::new();
                self.out.peers.push(Sending { to, is_priority: false, message, payload });
            }
            PeerMessage::Pong => {
                self.with_log_master(now, |master, context| master.heard(from, context));
            }
        }
    }

    /// Handles a message from the coordinator. The caller delivers an answer to the engine that
    /// asked: see [`Engine::asked_by`].
    pub fn on_control(&mut self, now: Instant, message: FromCoordinator) {
        match message {
            // The control link handles these.
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
            FromCoordinator::Witness { server } => self.with_log_master(now, |master, context| {
                master.ask_for_coordinator(server, context);
            }),
            FromCoordinator::Map(map) => {
                for (range, epoch) in self.node.adopt(map) {
                    self.out.control.push(ToCoordinator::Holding { range, epoch });
                }
                self.flush_if_renewed();
                let mut context = self.context(now);
                let node = context.node;
                let mut machines = node.machines();
                if machines.acknowledge_flips(&mut context) {
                    node.note_machines(&machines);
                }
                drop(machines);
                node.change_machines(|it| it.follow_map_of_recoveries(&mut context));
            }
            FromCoordinator::Measure { migration, range } => {
                source_side::measure(migration, range, &mut self.context(now));
            }
            FromCoordinator::Prepare(intent) => {
                let (id, intent) = (intent.migration, Box::new(intent));
                let event = TargetEvent::Prepare(intent);
                self.change_machines(now, |it, context| it.drive_target(id, event, context));
            }
            FromCoordinator::Start(intent) => {
                let (id, intent) = (intent.migration, Box::new(intent));
                let event = SourceEvent::Start(intent);
                self.change_machines(now, |it, context| it.drive_source(id, event, context));
            }
            FromCoordinator::Decide { migration } => {
                let event = TargetEvent::Decide;
                self.change_machines(now, |it, context| it.drive_target(migration, event, context));
            }
            FromCoordinator::Outcome { migration, accepted } => {
                let event = SourceEvent::Outcome { accepted };
                self.change_machines(now, |it, context| it.drive_source(migration, event, context));
            }
            FromCoordinator::Forget { migration, remaining } => {
                let event = SourceEvent::Forget { remaining };
                self.change_machines(now, |it, context| it.drive_source(migration, event, context));
            }
            FromCoordinator::Finished { migration } => {
                let event = TargetEvent::Finished;
                self.change_machines(now, |it, context| it.drive_target(migration, event, context));
            }
            FromCoordinator::Answer { request, answer } => self.answered(request, answer),
            FromCoordinator::ChainNoted { number } => {
                self.with_log_master(now, |master, context| {
                    master.chain_noted(number, context);
                })
            }
            FromCoordinator::Fence { log } if self.backup.is_some() => {
                let event = BackupEvent::Fence { log };
                self.with_backup(now, |backup, context| backup.on_event(event, context));
            }
            FromCoordinator::FreeLog { log } if self.backup.is_some() => {
                let event = BackupEvent::Recovered { log };
                self.with_backup(now, |backup, context| backup.on_event(event, context));
            }
            // A server without replication holds no replicas of other servers' logs.
            FromCoordinator::Fence { log } => {
                let (first, replicas, clock) = (0, Vec::new(), UnixMillis(0));
                let nothing = ToCoordinator::Fenced { log, first, replicas, clock, more: false };
                self.out.control.push(nothing);
            }
            FromCoordinator::ReadDirectory { log, replica, first } => match &mut self.backup {
                Some(backup) => backup.read_directory(log, replica, first, &mut self.out),
                None => {
                    let (bodies, next) = (Vec::new(), None);
                    let nothing =
                        ToCoordinator::DirectoryRead { log, replica, first, bodies, next };
                    self.out.control.push(nothing);
                }
            },
            FromCoordinator::Recover(part) if self.backup.is_some() => {
                self.change_machines(now, |it, context| it.recover(part, context));
            }
            FromCoordinator::Recover(part) => self.out.control.extend(recovering::refusal(&part)),
            FromCoordinator::RecoveryConfirmed { range, epoch } => {
                self.change_machines(now, |it, context| it.part_kept(range, epoch, context));
            }
            FromCoordinator::FreeLog { log } => {
                self.out.control.push(ToCoordinator::LogFreed { log });
            }
        }
    }

    /// Handles the completion of a job from [`Outgoing::disk`].
    pub fn on_disk(&mut self, now: Instant, done: DiskDone) {
        match done {
            DiskDone::Synced(synced) => self.on_synced(now, synced),
            DiskDone::Backup(done) => {
                self.with_backup(now, |backup, context| backup.on_done(done, context));
            }
            DiskDone::Read(done) => {
                let (from, mut context) = (self.node.me(), self.context(now));
                if let Some((reply, payload)) = context.on_read(done) {
                    context.node.change_machines(|it| {
                        it.recovery_replied(from, reply, payload, &mut context);
                    });
                }
            }
        }
    }

    /// Returns the reactor that sent this request to the coordinator.
    pub fn asked_by(request: u64) -> ReactorId {
        ReactorId((request >> REQUEST_REACTOR_SHIFT) as u16)
    }

    /// Sends a request to the coordinator and returns its number. [`Wake::Answer`] follows under
    /// that number. Returns `None` if the coordinator is disconnected.
    pub fn ask(&mut self, ask: Ask) -> Option<u64> {
        if !self.node.is_linked() {
            return None;
        }
        let request = self.begin_request();
        if let Ask::Flush { .. } = &ask {
            self.flushing.insert(request);
        }
        self.out.control.push(ToCoordinator::Ask { request, ask });
        Some(request)
    }

    /// Returns the number of a new request of this reactor. See [`Engine::asked_by`].
    pub fn begin_request(&mut self) -> u64 {
        self.next_request += 1;
        self.next_request
    }

    pub(crate) fn answered(&mut self, request: u64, answer: Answer) {
        match (self.flushing.remove(&request), &answer) {
            (true, Answer::Flushed { map }) => self.begin_flush(Some(request), *map),
            _ => self.out.wakes.push(Wake::Answer(request, answer)),
        }
    }

    /// Returns whether [`Engine::quantum`] would find work.
    pub fn has_background(&self) -> bool {
        if self.is_loading() {
            return self.can_load();
        }
        !self.pull_server.is_idle()
            || self.node.work.len() > 0
            || !self.flushes.is_empty()
            || self.node.restless_machines.load(Ordering::Relaxed) > 0
            || self.may_clean()
    }

    /// Runs one bounded piece of background work. Returns its purpose, or `None` if there was none.
    pub fn quantum(&mut self, now: Instant) -> Option<Background> {
        if self.is_loading() {
            return (self.can_load() && self.load_piece(now)).then_some(Background::Import);
        }
        if let Some(done) = self.clean_first(now) {
            return Some(done);
        }
        let (pulls, mut context) = parts!(self, now, pull_server);
        if pulls.serve(&mut context) {
            return Some(Background::Export);
        }
        if self.flush_quantum() {
            return Some(Background::Flush);
        }
        match self.node.work.pop() {
            Some(work) => Some(work.run(&mut self.context(now))),
            None if self.may_clean() => self.clean(now),
            None => None,
        }
    }

    /// Returns the next time at which [`Engine::tick`] must run if no other event comes first.
    pub fn next_deadline(&self) -> Option<Instant> {
        let machines = self.node.machine_deadline.load(Ordering::Acquire);
        let machines = (machines != u64::MAX).then_some(Instant(machines));
        let expiry = match self.node.expiry.try_lock() {
            Ok(walk) if self.reactor == ReactorId(0) => Some(walk.next),
            Ok(_) | Err(_) => None,
        };
        let saving = self.saving.next_deadline();
        let master = self.log_master.as_ref().and_then(|it| it.next_deadline(self.reactor));
        let backup = self.backup.as_ref().and_then(|it| it.next_deadline(self.reactor));
        let own_disk = (!self.to_itself.is_empty()).then_some(Instant(0));
        let cleaner = self.cleaner.next_deadline();
        let census = self.counting.next_step();
        [
            machines,
            self.priority_pulls.next_deadline(),
            expiry,
            census,
            cleaner,
            saving,
            master,
            backup,
            own_disk,
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Runs everything that is due.
    pub fn tick(&mut self, now: Instant) {
        if now.0 >= self.node.machine_deadline.load(Ordering::Acquire) {
            self.change_machines(now, |machines, context| {
                machines.tick_sources(context);
                machines.tick_targets(context);
                machines.tick_recoveries(context);
            });
        }
        let (pulls, mut context) = parts!(self, now, priority_pulls);
        pulls.tick(&mut context);
        self.with_log_master(now, LogMaster::tick);
        self.with_backup(now, BackupPart::tick);
        self.take_census(now);
        self.walk_expired(now);
    }

    /// Runs one step of the scan that reclaims expired records, table by table.
    pub(crate) fn walk_expired(&mut self, now: Instant) {
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

    /// Requests records that an operation misses. Returns `false` if they are no longer missing.
    pub fn pull_early(&mut self, now: Instant, table: TableId, missing: &Missing) -> bool {
        let (pulls, mut context) = parts!(self, now, priority_pulls);
        pulls.pull(table, missing, &mut context)
    }

    /// Lets a scan wait for the progress of a migration. Returns `false` if it is not in progress.
    pub fn want_progress(&mut self, migration: MigrationId, from: KeyHash) -> bool {
        self.priority_pulls.know(migration, Some(from), &self.node)
    }

    /// Returns whether the next quantum would have to allocate a buffer.
    pub fn wants_buffer(&self) -> bool {
        !self.pull_server.is_idle() && self.buffers.is_empty()
    }

    /// Returns a pooled buffer that this engine does not need.
    pub fn spare_buffer(&mut self) -> Option<Vec<u8>> {
        if self.pull_server.is_idle() { self.buffers.pop() } else { None }
    }

    /// Returns a payload's buffer to the pool.
    pub fn give_buffer(&mut self, buffer: Vec<u8>) {
        self.buffers.give(buffer);
    }

    /// Returns the surroundings of the components, for an event at `now`.
    pub(crate) fn context(&mut self, now: Instant) -> Context<'_> {
        let (_, context) = parts!(self, now, tablets_version);
        context
    }
}

/// Position of the reactor's id in a request number: the answer is routed by it.
const REQUEST_REACTOR_SHIFT: u32 = 48;

/// Returns the reactor that processes a message of the coordinator. The first reactor gets answers
/// to unknown requests, and ignores them.
pub fn reactor_for(message: &FromCoordinator, reactors: u16) -> ReactorId {
    match message {
        FromCoordinator::Answer { request, .. } => match Engine::asked_by(*request) {
            asker if asker.0 < reactors => asker,
            _ => ReactorId(0),
        },
        FromCoordinator::Welcome { .. }
        | FromCoordinator::Rejected { .. }
        | FromCoordinator::Map(_)
        | FromCoordinator::Measure { .. }
        | FromCoordinator::Prepare(_)
        | FromCoordinator::Start(_)
        | FromCoordinator::Decide { .. }
        | FromCoordinator::Outcome { .. }
        | FromCoordinator::Forget { .. }
        | FromCoordinator::Finished { .. }
        | FromCoordinator::ChainNoted { .. }
        | FromCoordinator::Fence { .. }
        | FromCoordinator::ReadDirectory { .. }
        | FromCoordinator::Recover(_)
        | FromCoordinator::RecoveryConfirmed { .. }
        | FromCoordinator::FreeLog { .. }
        | FromCoordinator::Ping
        | FromCoordinator::Clock(_)
        | FromCoordinator::Witness { .. }
        | FromCoordinator::Describe
        | FromCoordinator::Mark(_)
        | FromCoordinator::Waiting { .. } => ReactorId(0),
    }
}
