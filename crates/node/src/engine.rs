//! The part of a node that one reactor runs: events come in, the contents of [`Engine::out`] go
//! out.

use crate::cleaning::CleaningSchedule;
use crate::clock::ClockReader;
use crate::context::{BufferPool, Context};
use crate::entitled::SenderCheck;
use crate::evicting::EvictionSchedule;
use crate::flush::Flushes;
use crate::load_profile::LoadProfileScan;
use crate::machines::Machines;
use crate::priority_pulls::{EarlyPull, PriorityPullDriver};
use crate::pull_server::{self, PullServer};
use crate::recovering::{self, LogReads, ReadRequester};
use crate::replicated::{BackupPart, LogMaster};
use crate::requests::{self, CoordinatorRequests};
use crate::settings::LiveSettings;
use crate::source_side;
use crate::work::Background;
use crate::{DiskDone, EngineOutput, Node, Payload, Route, Sending, To, Wake};
use protocols::migration::{SourceEvent, TargetEvent};
use protocols::recovery::RecoveryMasterEvent;
use protocols::replication::{BackupEvent, ReplicatorEvent};
use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use store::{Missing, Worker};
use types::{
    BackgroundDemand, Instant, KeyHash, LatencyTarget, MigrationId, ReactorId, ServerId,
    UnixMillis, key_hash,
};
use wire::control::{
    Answer, Ask, FromCoordinator, LivenessRequest, LogRequest, LogUpdate, MigrationRequest,
    RecoveryRequest, ToCoordinator,
};
use wire::peer::PeerMessage;

/// The part of a server that one reactor runs, without sockets.
pub struct Engine {
    pub(crate) node: Arc<Node>,
    pub(crate) reactor: ReactorId,
    /// The reactor's handle to the store.
    pub worker: Worker,
    /// Output of this engine: messages, disk jobs and wakes.
    pub out: EngineOutput,
    pub(crate) turn: TurnState,
    pub(crate) priority_pulls: PriorityPullDriver,
    pub(crate) pull_server: PullServer,
    pub(crate) flushes: Flushes,
    pub(crate) requests: CoordinatorRequests,
    pub(crate) buffers: BufferPool,
    pub(crate) log_master: LogMaster,
    pub(crate) backup: BackupPart,
    /// Messages from this server to itself that are not delivered yet.
    pub(crate) to_itself: VecDeque<Sending>,
    pub(crate) reads: LogReads,
    pub(crate) senders: SenderCheck,
    pub(crate) gating: ReplyGating,
    pub(crate) cleaning: CleaningSchedule,
    pub(crate) evicting: EvictionSchedule,
    pub(crate) clock: ClockReader,
    pub(crate) load_profile: LoadProfileScan,
}

/// State of a reactor's turns.
#[derive(Default)]
pub(crate) struct TurnState {
    /// Settings in effect for this turn.
    pub(crate) live: LiveSettings,
    /// Start of the first turn.
    started: Option<Instant>,
    /// Version of the tablets with which parked operations were last retried.
    tablets_version: u64,
    /// Number of maps that were adopted by then.
    adopted_maps: u64,
    time: Option<TimeWithinTurn>,
}

/// State of the replies of a reactor that wait.
#[derive(Default)]
pub(crate) struct ReplyGating {
    /// Set, with strict reads, if data was used since the last [`Engine::take_data`].
    pub(crate) has_data: Cell<bool>,
    /// Set while replies wait until their dependencies are acknowledged.
    pub(crate) holds: bool,
}

/// Reads the monotonic clock within a turn, possibly long after the turn began.
pub type TimeWithinTurn = Box<dyn Fn() -> Instant>;

/// Borrows one component of an engine, and apart from it the [`Context`] of an event.
macro_rules! parts {
    ($engine:expr, $now:expr, $component:ident) => {{
        let context = Context {
            now: $now,
            node: &$engine.node,
            reactor: $engine.reactor,
            live: $engine.turn.live,
            holds_replies: $engine.gating.holds,
            worker: &mut $engine.worker,
            out: &mut $engine.out,
            buffers: &mut $engine.buffers,
            reads: &mut $engine.reads,
        };
        (&mut $engine.$component, context)
    }};
}

impl Engine {
    /// Makes the engine of one reactor, on the reactor's own thread or before that thread starts.
    pub fn new(node: Arc<Node>, reactor: ReactorId) -> Engine {
        assert!(reactor.0 < node.settings().reactors, "the settings count the reactors");
        let worker = node.store().worker(reactor);
        Engine {
            reactor,
            worker,
            out: EngineOutput::default(),
            turn: TurnState { live: node.live(), ..TurnState::default() },
            priority_pulls: PriorityPullDriver::default(),
            pull_server: PullServer::default(),
            flushes: Flushes::default(),
            requests: CoordinatorRequests::new(reactor),
            buffers: BufferPool::default(),
            log_master: LogMaster::new(node.durability().clone(), node.me()),
            backup: BackupPart::new(node.durability().clone()),
            to_itself: VecDeque::new(),
            reads: LogReads::default(),
            senders: SenderCheck::default(),
            gating: ReplyGating::default(),
            cleaning: CleaningSchedule::default(),
            evicting: EvictionSchedule::default(),
            clock: ClockReader::default(),
            load_profile: LoadProfileScan::default(),
            node,
        }
    }

    /// Sets how this thread reads the clock within a turn. Without it, a turn takes no time.
    pub fn set_time_within_turn(&mut self, time: TimeWithinTurn) {
        self.turn.time = Some(time);
    }

    /// Returns the current time, in a turn that began at `now`. Most work uses the start of the
    /// turn as its time. Measurements, leases and times to live must not: the process may have
    /// been stopped within the turn.
    #[inline]
    pub fn time_within_turn(&self, now: Instant) -> Instant {
        self.turn.time.as_ref().map_or(now, |time| time())
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
        now.since(self.turn.started.unwrap_or(now))
    }

    /// Returns the hash of a key, which is its place in the key space.
    #[inline]
    pub fn hash(&self, key: &[u8]) -> KeyHash {
        key_hash(self.node.store().seed(), key)
    }

    /// Begins a turn: applies changes that other reactors have made since the last one.
    pub fn begin_turn(&mut self, now: Instant, wall: UnixMillis) {
        self.turn.started.get_or_insert(now);
        self.follow_settings();
        self.cleaning.begin_turn(now, self.node.store());
        self.evicting.begin_turn(now);
        let clock = self.clock.turn_clock(now, wall, self.reactor, &self.node.clock);
        self.worker.begin_turn(clock);
        if self.node.demands.waiting.load(Ordering::Acquire) > 0 {
            self.poll_machines(now);
        }
        let version = self.node.tablets_version();
        if version != self.turn.tablets_version {
            self.turn.tablets_version = version;
            self.out.wakes.push(Wake::Tablets);
        }
        let maps = self.node.adopted_maps();
        if maps != self.turn.adopted_maps {
            self.turn.adopted_maps = maps;
            self.out.wakes.push(Wake::Map);
        }
        if !self.priority_pulls.is_idle() {
            let (pulls, mut context) = parts!(self, now, priority_pulls);
            pulls.follow_progress(&mut context);
            pulls.poll(&mut context);
        }
        if self.pull_server.is_contended() {
            let (pulls, mut context) = parts!(self, now, pull_server);
            pulls.serve_priority_again(&self.node, &mut context);
        }
    }

    /// Reloads settings that operators have replaced.
    pub fn follow_settings(&mut self) {
        let live = self.node.live();
        if live != self.turn.live {
            self.turn.live = live;
            self.log_master.follow_settings(live, &self.node);
            self.worker.follow_eviction_order();
        }
    }

    /// Resumes the machines that need not wait for reactors or backups any more.
    fn poll_machines(&mut self, now: Instant) {
        self.change_machines(now, |machines, context| {
            machines.sources.poll(context);
            machines.targets.poll(context);
            machines.poll_recoveries(context);
        });
    }

    /// Advances the store's clock to the current time, in a turn that began at `turn`. If the
    /// process was stopped within the turn, a request may have been sent long after `turn`. Returns
    /// the current time.
    pub fn refresh_clock(&self, turn: Instant) -> Instant {
        let now = self.time_within_turn(turn);
        self.node.store().raise_clock(self.clock.read(now));
        now
    }

    /// Lets the log master handle an event.
    pub(crate) fn with_log_master<T>(
        &mut self,
        now: Instant,
        handle: impl FnOnce(&mut LogMaster, &mut Context<'_>) -> T,
    ) -> T {
        let (master, mut context) = parts!(self, now, log_master);
        handle(master, &mut context)
    }

    /// Lets the backup role handle an event.
    pub(crate) fn with_backup(
        &mut self,
        now: Instant,
        handle: impl FnOnce(&mut BackupPart, &mut Context<'_>),
    ) {
        let (backup, mut context) = parts!(self, now, backup);
        handle(backup, &mut context);
    }

    /// Changes machines of migrations and recoveries, which all reactors share.
    pub(crate) fn change_machines<T>(
        &mut self,
        now: Instant,
        change: impl FnOnce(&mut Machines, &mut Context<'_>) -> T,
    ) -> T {
        let (_, mut context) = parts!(self, now, turn);
        self.node.change_machines(|machines| change(machines, &mut context))
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
        if !self.senders.admits(from, &message, &self.node) {
            return;
        }
        match message {
            // While disconnected from the coordinator, ignore new flips: the coordinator may
            // already have given this target up. A target that has already decided repeats its
            // answer, because the source may need it to make progress.
            PeerMessage::Flip(ref flip)
                if !self.node.is_linked() && self.node.machines().may_accept(flip.migration) => {}
            PeerMessage::Flip(flip) => {
                // A process that was stopped within the turn must not rely on a promise that has
                // expired, nor compare the range's clock with an old one.
                let now = self.refresh_clock(now);
                let (id, flip) = (flip.migration, Box::new(flip));
                let event = TargetEvent::Flip { from, flip };
                self.change_machines(now, |it, context| it.step_target(id, event, context));
            }
            PeerMessage::FlipAnswer { migration, accepted } => {
                let event = SourceEvent::FlipAnswered { from, accepted };
                self.change_machines(now, |it, context| it.step_source(migration, event, context));
            }
            PeerMessage::Pull(pull) => {
                let (pulls, mut context) = parts!(self, now, pull_server);
                pull_server::learn_acceptance(from, pull.migration, &self.node, &mut context);
                pulls.accept(from, route, pull, &self.node);
            }
            PeerMessage::PullReply(reply) => self.change_machines(now, |it, context| {
                it.pull_replied(from, reply, payload, context);
            }),
            PeerMessage::PriorityPull(pull) => {
                let (pulls, mut context) = parts!(self, now, pull_server);
                pull_server::learn_acceptance(from, pull.migration, &self.node, &mut context);
                pulls.serve_priority(from, route, pull, &self.node, &mut context);
            }
            PeerMessage::PriorityReply(reply) => {
                let (pulls, mut context) = parts!(self, now, priority_pulls);
                pulls.on_reply(from, reply, payload, &mut context);
            }
            PeerMessage::Append(_)
            | PeerMessage::Appended(_)
            | PeerMessage::Release { .. }
            | PeerMessage::Released { .. }
            | PeerMessage::Needed { .. } => {
                self.on_replication(now, from, route, message, payload);
            }
            PeerMessage::RecoveryRead(read) => {
                self.context(now).read(ReadRequester::There(route), read)
            }
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
                self.change_machines(now, |it, context| it.heard(from, context));
            }
        }
    }

    /// Handles a message between a log's master and its backups.
    fn on_replication(
        &mut self,
        now: Instant,
        from: ServerId,
        route: Route,
        message: PeerMessage,
        payload: Payload,
    ) {
        if !self.node.durability().exchanges_with(from, self.node.me()) {
            return;
        }
        match message {
            // The backup lets the clock of the append run on from now. If it began with a turn in
            // which the process was stopped, a recovered range would begin ahead by as long.
            PeerMessage::Append(append) => {
                self.with_backup(self.time_within_turn(now), |backup, context| {
                    backup.append_arrived(from, append, payload, route, context);
                })
            }
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
            other => unreachable!("not a message of replication: {other:?}"),
        }
    }

    /// Handles the end of a connection to a server. Messages sent on it may be lost.
    pub fn connection_lost(&mut self, now: Instant, to: ServerId) {
        let event = RecoveryMasterEvent::ConnectionLost { backup: to };
        self.change_machines(now, |it, context| it.tell_recoveries(&event, context));
        if !self.node.durability().exchanges_with(to, self.node.me()) {
            return;
        }
        let event = ReplicatorEvent::ConnectionLost { backup: to };
        self.with_log_master(now, |master, context| master.drive_all(&event, context));
    }

    /// Handles a message from the coordinator. The caller delivers an answer to the engine that
    /// asked: see [`Engine::asked_by`].
    pub fn on_control(&mut self, now: Instant, message: FromCoordinator) {
        match message {
            // The control link handles these.
            FromCoordinator::Join(_) | FromCoordinator::Mark(_) => {}
            FromCoordinator::Clock(question) => {
                self.node.raise_lease_horizon(question.lease_horizon);
                if let Some(reference) = question.reference {
                    // The turn may have begun long before the reference was sent.
                    let now = self.time_within_turn(now);
                    self.node.clock.lead_from_afar(now, reference);
                }
            }
            FromCoordinator::Liveness(request) => self.on_liveness_request(now, request),
            FromCoordinator::Map(map) => {
                for (range, epoch) in self.node.adopt(map) {
                    self.out.control.push(ToCoordinator::Holding { range, epoch });
                }
                self.flushes.begin_if_renewed(&self.node);
                self.change_machines(now, |machines, context| {
                    machines.acknowledge_flips(context);
                    machines.follow_map_of_recoveries(context);
                });
            }
            FromCoordinator::Answer { request, answer } => self.answered(request, answer),
            FromCoordinator::Migration(request) => self.on_migration_request(now, request),
            FromCoordinator::Log(request) => self.on_log_request(now, request),
            FromCoordinator::Recovery(request) => self.on_recovery_request(now, request),
        }
    }

    /// Handles a request about the liveness of servers.
    fn on_liveness_request(&mut self, now: Instant, request: LivenessRequest) {
        match request {
            // The control link answers this.
            LivenessRequest::Ping => {}
            LivenessRequest::Witness { server } if self.node.durability().is_with_others() => {
                self.with_log_master(now, |master, context| {
                    master.ask_for_coordinator(server, context);
                });
            }
            LivenessRequest::Witness { .. } => {}
        }
    }

    /// Handles a request about a migration.
    fn on_migration_request(&mut self, now: Instant, request: MigrationRequest) {
        match request {
            MigrationRequest::Measure { migration, range } => {
                source_side::measure(migration, range, &mut self.context(now));
            }
            MigrationRequest::Prepare(intent) => {
                let (id, intent) = (intent.migration, Box::new(intent));
                let event = TargetEvent::Prepare(intent);
                self.change_machines(now, |it, context| it.step_target(id, event, context));
            }
            MigrationRequest::Start(intent) => {
                let (id, intent) = (intent.migration, Box::new(intent));
                let event = SourceEvent::Start(intent);
                self.change_machines(now, |it, context| it.step_source(id, event, context));
            }
            MigrationRequest::Decide { migration } => {
                let event = TargetEvent::Decide;
                self.change_machines(now, |it, context| it.step_target(migration, event, context));
            }
            MigrationRequest::Outcome { migration, accepted } => {
                let event = SourceEvent::Outcome { accepted };
                self.change_machines(now, |it, context| it.step_source(migration, event, context));
            }
            MigrationRequest::Forget { migration, remaining } => {
                let event = SourceEvent::Forget { remaining };
                self.change_machines(now, |it, context| it.step_source(migration, event, context));
            }
            MigrationRequest::Finished { migration } => {
                let event = TargetEvent::Finished;
                self.change_machines(now, |it, context| it.step_target(migration, event, context));
            }
        }
    }

    /// Handles a request about a log.
    fn on_log_request(&mut self, now: Instant, request: LogRequest) {
        if !self.node.durability().is_with_others() {
            return self.out.control.extend(without_replicas(request));
        }
        match request {
            LogRequest::ManifestRecorded { number } => {
                self.with_log_master(now, |master, context| {
                    master.manifest_recorded(number, context);
                })
            }
            LogRequest::Fence { log } => {
                let event = BackupEvent::Fence { log };
                self.with_backup(now, |backup, context| backup.on_event(event, context));
            }
            LogRequest::FreeLog { log } => {
                let event = BackupEvent::Recovered { log };
                self.with_backup(now, |backup, context| backup.on_event(event, context));
            }
            LogRequest::ReadManifest { log, replica, first } => {
                self.backup.read_manifest(log, replica, first, &mut self.out);
            }
        }
    }

    /// Handles a request about a recovery.
    fn on_recovery_request(&mut self, now: Instant, request: RecoveryRequest) {
        match request {
            RecoveryRequest::Recover(part) if self.node.durability().is_with_others() => {
                self.refresh_clock(now); // As for a flip.
                self.change_machines(now, |it, context| it.recover(part, context));
            }
            RecoveryRequest::Recover(part) => {
                self.out.control.extend(recovering::refusal(&part));
            }
            RecoveryRequest::RecoveryConfirmed { range, epoch } => {
                self.change_machines(now, |it, context| it.part_kept(range, epoch, context));
            }
        }
    }

    /// Handles the completion of a job from [`EngineOutput::disk`].
    pub fn on_disk(&mut self, now: Instant, done: DiskDone) {
        match done {
            DiskDone::Backup(done) => {
                self.with_backup(now, |backup, context| backup.on_done(done, context));
            }
            DiskDone::Read(done) => {
                let from = self.node.me();
                if let Some((reply, payload)) = self.context(now).on_read(done) {
                    self.change_machines(now, |it, context| {
                        it.recovery_replied(from, reply, payload, context);
                    });
                }
            }
        }
    }

    /// Returns the reactor that sent this request to the coordinator.
    pub fn asked_by(request: u64) -> ReactorId {
        requests::asked_by(request)
    }

    /// Sends a request to the coordinator and returns its number. [`Wake::Answer`] follows under
    /// that number. Returns `None` if the coordinator is disconnected.
    pub fn ask(&mut self, ask: Ask) -> Option<u64> {
        if !self.node.is_linked() {
            return None;
        }
        let request = self.begin_request();
        if let Ask::Flush { .. } = &ask {
            self.requests.note_flush(request);
        }
        self.out.control.push(ToCoordinator::Ask { request, ask });
        Some(request)
    }

    /// Returns the number of a new request of this reactor. See [`Engine::asked_by`].
    pub fn begin_request(&mut self) -> u64 {
        self.requests.begin()
    }

    fn answered(&mut self, request: u64, answer: Answer) {
        match (self.requests.take_flush(request), &answer) {
            (true, Answer::Flushed { map }) => self.flushes.begin(Some(request), *map),
            _ => self.out.wakes.push(Wake::Answer(request, answer)),
        }
    }

    /// Returns the demand of background work on this reactor's time. Moves with a latency target
    /// do not slow down work that clients or machines wait for.
    pub fn background_demand(&self) -> BackgroundDemand {
        let log = self.node.store().log();
        let cleaning = match self.cleaning.may_run(log) {
            true => log.shortage_percent(),
            false => 0,
        };
        let evicting = self.node.eviction.shortage_percent(log);
        let shortage = cleaning.max(evicting).max(self.worker.reclamation_share().unwrap_or(0));
        let wanted = self.node.background_share();
        let is_awaited = self.node.demands.restless.load(Ordering::Relaxed) > 0;
        let is_urgent = shortage > 0 || is_awaited || self.is_loading();
        match self.node.latency_target() {
            None => BackgroundDemand { share: wanted.max(shortage), target: None, is_urgent },
            Some(p99) => {
                let target = Some(LatencyTarget { p99, share_max: wanted });
                BackgroundDemand { share: shortage, target, is_urgent }
            }
        }
    }

    /// Returns whether a write that has found no memory may find some later.
    pub fn may_win_memory(&self) -> bool {
        !self.node.store().log().is_exhausted()
            || self.node.eviction.may_win_memory(&self.turn.live)
            || self.node.sweeps.pages.may_win_memory(&self.worker)
    }

    /// Tells that a value with pages was removed.
    pub fn note_orphans(&self) {
        self.node.sweeps.pages.want();
    }

    /// Tells that a field of a hash has got an expiry.
    pub fn note_expiring_field(&self) {
        self.node.sweeps.fields.want();
    }

    /// Returns whether to retry requests that wait for memory: some is free, or none can be.
    pub fn has_news_of_memory(&self) -> bool {
        let log = self.node.store().log();
        log.has_free() && log.ready_segments().has_one() || !self.may_win_memory()
    }

    /// Returns whether [`Engine::quantum`] would find work.
    pub fn has_background(&self) -> bool {
        let loading = self.node.durability().loading();
        if loading.is_on() {
            return loading.may_run(&self.node.map());
        }
        !self.pull_server.is_idle()
            || self.node.work.has_work(self.node.store().log())
            || self.worker.reclamation_share().is_some()
            || !self.flushes.is_idle()
            || self.node.demands.restless.load(Ordering::Relaxed) > 0
            || self.cleaning.may_run(self.node.store().log())
            || self.cleaning.may_run_at_rest(self.node.store().log(), self.log_master.is_calm())
            || self.evicting.may_run(&self.node.eviction, &self.turn.live, self.node.store().log())
    }

    /// Runs one bounded piece of background work. Returns its purpose, or `None` if there was none.
    pub fn quantum(&mut self, now: Instant) -> Option<Background> {
        if self.is_loading() {
            let has_loaded = self.with_log_master(now, LogMaster::load_piece);
            return has_loaded.then_some(Background::Import);
        }
        let (cleaning, mut context) = parts!(self, now, cleaning);
        if let Some(done) = cleaning.run_first(&mut context) {
            return Some(done);
        }
        let (evicting, mut context) = parts!(self, now, evicting);
        if let Some(done) = evicting.run_first(&mut context) {
            return Some(done);
        }
        let (pulls, mut context) = parts!(self, now, pull_server);
        if pulls.serve(&mut context) {
            return Some(Background::Export);
        }
        let (flushes, mut context) = parts!(self, now, flushes);
        if flushes.step(&mut context) {
            return Some(Background::Flush);
        }
        let (evicting, mut context) = parts!(self, now, evicting);
        if let Some(work) = context.node.work.pop(context.node.store().log()) {
            return Some(work.run(&self.node, &mut context));
        }
        if let Some(done) = evicting.run(&mut context) {
            return Some(done);
        }
        let is_calm = self.log_master.is_calm();
        let (cleaning, mut context) = parts!(self, now, cleaning);
        if context.worker.reclaim_tombstones() {
            return Some(Background::Clean);
        }
        let log = context.node.store().log();
        if cleaning.may_run(log) {
            cleaning.run(&mut context)
        } else if cleaning.may_run_at_rest(log, is_calm) {
            cleaning.run_at_rest(&mut context)
        } else {
            None
        }
    }

    /// Returns the next time at which [`Engine::tick`] must run if no other event comes first.
    pub fn next_deadline(&self) -> Option<Instant> {
        let machines = self.node.demands.deadline.load(Ordering::Acquire);
        let machines = (machines != u64::MAX).then_some(Instant(machines));
        // Other reactors leave the locks of the walks alone, whose words all of them would share.
        let is_first = self.reactor == ReactorId(0);
        let sweeps = &self.node.sweeps;
        let expiry = match is_first {
            true => sweeps.expiry.try_lock().ok().map(|walk| walk.next),
            false => None,
        };
        let master = self.log_master.next_deadline(self.reactor);
        let backup = self.backup.next_deadline(self.reactor, self.node.store());
        let own_disk = (!self.to_itself.is_empty()).then_some(Instant(0));
        let cleaner = self.cleaning.next_deadline();
        let (state, live, log) = (&self.node.eviction, &self.turn.live, self.node.store().log());
        let evicting = match self.is_loading() {
            false => self.evicting.next_deadline(state, live, log),
            true => None,
        };
        let key_counts = self.load_profile.next_step();
        let pulls = self.priority_pulls.next_deadline();
        let sweep = match is_first {
            true => sweeps.completions.try_lock().ok().and_then(|it| it.next_step(&self.worker)),
            false => None,
        };
        let pages = match is_first && !self.is_loading() {
            true => sweeps.pages.next_step(&self.worker),
            false => None,
        };
        let [orders, fields] = match is_first && !self.is_loading() {
            true => [self.node.orders.next_step(), sweeps.fields.next_step()],
            false => [None, None],
        };
        let fields = fields.filter(|_| !self.node.sweeps.rests_expiry.load(Ordering::Relaxed));
        let scans = [expiry, sweep, pages, orders, fields, key_counts, cleaner, evicting];
        let all = [machines, pulls, master, backup, own_disk].into_iter().chain(scans);
        all.flatten().min()
    }

    /// Runs everything that is due.
    pub fn tick(&mut self, now: Instant) {
        if now.0 >= self.node.demands.deadline.load(Ordering::Acquire) {
            self.change_machines(now, |machines, context| {
                machines.sources.tick(context);
                machines.targets.tick(context);
                machines.tick_recoveries(context);
            });
        }
        let (pulls, mut context) = parts!(self, now, priority_pulls);
        pulls.tick(&mut context);
        self.with_log_master(now, LogMaster::tick);
        self.with_backup(now, BackupPart::tick);
        let (load_profile, mut context) = parts!(self, now, load_profile);
        load_profile.step(&mut context);
        let (evicting, context) = parts!(self, now, evicting);
        evicting.tick(&context);
        let rests = self.is_loading() || self.node.sweeps.rests_expiry.load(Ordering::Relaxed);
        if let Ok(mut scan) = self.node.sweeps.expiry.try_lock() {
            scan.step(now, rests, &mut self.worker, &self.node.key_counts);
        }
        if let Ok(mut sweep) = self.node.sweeps.completions.try_lock()
            && !self.is_loading()
        {
            sweep.step(now, self.node.lease_horizon(), &mut self.worker);
        }
        if !self.is_loading() {
            self.node.sweeps.pages.step(now, &mut self.worker);
            self.node.orders.step(now, &mut self.worker);
        }
        if !rests {
            self.node.sweeps.fields.step(now, &mut self.worker);
        }
    }

    /// Requests records that an operation misses. Returns `false` if they are no longer missing.
    pub fn pull_early(&mut self, now: Instant, missing: &Missing, purpose: EarlyPull) -> bool {
        let (pulls, mut context) = parts!(self, now, priority_pulls);
        pulls.pull(missing, purpose, &self.node, &mut context)
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
        let (_, context) = parts!(self, now, turn);
        context
    }
}

/// Returns the answer of a server without replication, which holds no replicas of other servers'
/// logs.
fn without_replicas(request: LogRequest) -> Option<ToCoordinator> {
    let update = match request {
        LogRequest::ManifestRecorded { .. } => return None,
        LogRequest::Fence { log } => {
            let (first, replicas, clock) = (0, Vec::new(), UnixMillis(0));
            LogUpdate::Fenced { log, first, replicas, clock, more: false }
        }
        LogRequest::FreeLog { log } => LogUpdate::LogFreed { log },
        LogRequest::ReadManifest { log, replica, first } => {
            let (bodies, next) = (Vec::new(), None);
            LogUpdate::ManifestRead { log, replica, first, bodies, next }
        }
    };
    Some(update.into())
}
