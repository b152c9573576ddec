//! The server of one reactor without sockets: the engine, the clients of its connections, and the
//! parked requests. Bytes come in; replies go to the buffers that [`Connections`] provides.
//!
//! The shell of a server drives a core on a reactor, the simulator drives it in virtual time.
//! Both call in the order of a turn: [`Core::begin_turn`]; connections and messages;
//! [`Core::end_of_input`]; [`Core::tick`] if its deadline has passed; at most one
//! [`Core::quantum`]. After each of the last three calls, the driver sends the contents of the
//! engine's outbox ([`node::EngineOutput`]). The core itself wakes parked requests.
//!
//! **Invariant:** clients are only looked up by connection id, so no order depends on the hash map.

pub(crate) mod backend;
mod client_limits;
mod connections;
mod copying;
pub(crate) mod data;
pub(crate) mod elements;
pub(crate) mod lists;
mod order_notes;
pub(crate) mod orders;
mod reply_gating;
pub(crate) mod staged;
pub(crate) mod streams;

use crate::operators::Operators;
use crate::operators::blocked::BlockedRequest;
use crate::operators::clients::{Facts, Unblocked};
use backend::Backend;
use client_limits::ClientLimits;
use connections::{
    ConnectionAction, ConnectionTurn, RedisClient, WaiterId, Waits, prefetch_clients,
};
use node::{DiskDone, Engine, LeaseState, Payload, Route, Safety, Wake};
use reply_gating::ReplyGate;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use types::limits::CLIENT_BACKLOG_MAX;
use types::{Instant, ReactorId, UnixMillis};
use wire::control::{Answer, FromCoordinator};
use wire::peer::PeerMessage;

pub use types::ConnectionId;

/// The client connections, as a core uses them. Calls for a closed connection succeed and have no
/// effect.
pub trait Connections {
    /// Returns the buffer to which output for a client is appended.
    fn output(&mut self, connection: ConnectionId) -> &mut Vec<u8>;

    /// Passes the client's input to the core again, after [`Connections::pause_reading`].
    /// Unconsumed input is passed again together with new input.
    fn resume_reading(&mut self, connection: ConnectionId);

    /// Stops passing the client's input to the core, until [`Connections::resume_reading`].
    fn pause_reading(&mut self, connection: ConnectionId);

    /// Stops passing input; closes the connection when all output has been sent.
    fn close_after_flush(&mut self, connection: ConnectionId);

    /// Closes the connection now and discards unsent output.
    fn close(&mut self, connection: ConnectionId) {
        self.close_after_flush(connection);
    }

    /// Returns the number of bytes that were appended to the output and are not sent yet.
    fn backlog(&self, _connection: ConnectionId) -> usize {
        0
    }
}

/// The server of one reactor without sockets: the engine and its clients.
pub struct Core {
    backend: Backend,
    clients: HashMap<ConnectionId, RedisClient>,
    waits: Waits,
    client_limits: ClientLimits,
    reply_gate: ReplyGate,
    /// Replication state when requests that wait for replicas were last retried.
    safety: Safety,
    reactor: ReactorId,
    now: Instant,
    wall: UnixMillis,
}

/// The calls of one turn.
impl Core {
    /// Creates the core of one reactor around its engine.
    pub fn new(engine: Engine, operators: Arc<Operators>) -> Core {
        let settings = engine.node().settings();
        let reply_gate = ReplyGate::new(settings.memory_bytes, settings.reactors);
        Core {
            reactor: engine.reactor(),
            backend: Backend::new(engine, operators),
            clients: HashMap::new(),
            waits: Waits::default(),
            client_limits: ClientLimits::default(),
            reply_gate,
            safety: Safety::default(),
            now: Instant(0),
            wall: UnixMillis(0),
        }
    }

    /// Returns the engine, where store and protocols meet.
    #[inline]
    pub fn engine(&self) -> &Engine {
        &self.backend.engine
    }

    /// Returns the engine. The driver sends the messages in its outbox.
    #[inline]
    pub fn engine_mut(&mut self) -> &mut Engine {
        &mut self.backend.engine
    }

    /// Returns the start time of this turn.
    #[inline]
    pub fn now(&self) -> Instant {
        self.now
    }

    /// Begins a turn: takes the tablet map that is used for the rest of the turn.
    pub fn begin_turn(&mut self, now: Instant, wall: UnixMillis) {
        (self.now, self.wall) = (now, wall);
        self.backend.begin_turn(now, wall);
    }

    /// Accepts or refuses a client that has connected from this address.
    pub fn open(&mut self, connection: ConnectionId, peer: String, io: &mut impl Connections) {
        let Backend { engine, operators, counts, .. } = &self.backend;
        let configuration = &self.backend.configuration;
        if let Some(refusal) = client_limits::refusal(configuration, &operators.clients, &peer) {
            counts.refused.add(1);
            io.output(connection).extend_from_slice(refusal.as_bytes());
            return io.close_after_flush(connection);
        }
        counts.connections.add(1);
        let clients = &operators.clients;
        let settings = engine.node().settings();
        let local = format!("{}:{}", settings.host, settings.client_port);
        let facts = Arc::new(Facts::new(clients.name(), connection, (peer, local), self.now));
        clients.add(self.reactor, facts.clone());
        self.clients.insert(connection, RedisClient::new(connection, facts, configuration));
    }

    /// Prefetches the records that upcoming client input will need.
    pub fn prefetch(&mut self, inputs: &mut dyn Iterator<Item = &[u8]>) {
        prefetch_clients(inputs, &mut self.backend.engine);
    }

    /// Processes all unconsumed input of a client. Returns the number of bytes consumed, or `None`
    /// if the connection is not a client's.
    #[inline]
    pub fn receive(
        &mut self,
        connection: ConnectionId,
        input: &[u8],
        io: &mut impl Connections,
    ) -> Option<usize> {
        let client = self.clients.get_mut(&connection)?;
        if self.reply_gate.is_full() {
            self.reply_gate.stop(connection, io);
            return Some(0);
        }
        let mut turn = ConnectionTurn::new(&mut self.backend, &mut self.waits, self.now, self.wall);
        let output = io.output(connection);
        let from = output.len();
        let received = client.receive(input, &mut turn, output);
        let replies = from..output.len();
        let (is_paused, is_monitor) = (client.is_paused(), client.is_monitor());
        self.reply_gate.record(connection, replies, &mut self.backend.engine, self.now);
        match received.next {
            ConnectionAction::Read => {}
            next @ (ConnectionAction::ReadAgain
            | ConnectionAction::Pause
            | ConnectionAction::Close) => self.apply_action(connection, next, io),
        }
        if is_paused {
            self.client_limits.paused.push(connection);
        }
        if is_monitor {
            self.client_limits.watch(connection, &self.backend.operators.monitors);
        }
        self.limit_output(connection, io);
        Some(received.consumed)
    }

    /// Returns how many bytes beyond the point where [`Core::receive`] stopped must arrive before
    /// another call makes progress. 0: any number may help.
    pub fn wanted(&self, connection: ConnectionId) -> usize {
        self.clients.get(&connection).map_or(0, RedisClient::wanted)
    }

    /// Returns the average length of the requests in the `consumed` bytes that [`Core::receive`]
    /// has just consumed, as an estimate for the next request. 0: none ends there.
    pub fn request_bytes(&self, connection: ConnectionId, consumed: usize) -> usize {
        self.clients.get(&connection).map_or(0, |client| client.request_bytes(consumed))
    }

    /// Processes the end of input on a connection, a client's or another.
    pub fn input_ended(&mut self, connection: ConnectionId, io: &mut impl Connections) {
        let next = match self.clients.get_mut(&connection) {
            Some(client) => client.end(),
            None => ConnectionAction::Close,
        };
        self.apply_action(connection, next, io);
        // `CLIENT UNBLOCK` from another connection may never come, so the wait must end here.
        if self.clients.get(&connection).is_some_and(RedisClient::waits_for_ever) {
            self.with_client(connection, io, |client, turn, out| {
                client.unblock(Unblocked::TimeOut, turn, out)
            });
        }
    }

    /// Forgets a closed connection, a client's or another.
    pub fn closed(&mut self, connection: ConnectionId) {
        self.reply_gate.forget(connection);
        self.waits.forget(connection);
        let Backend { engine, operators, .. } = &self.backend;
        self.waits.blocked.forget(connection, &operators.blocked, engine.node());
        if let Some(client) = self.clients.remove(&connection) {
            let operators = &self.backend.operators;
            operators.clients.remove(self.reactor, client.id());
            self.client_limits.remove(connection, &operators.monitors);
        }
    }

    /// Processes a message from another server. `route` identifies the connection for the reply.
    pub fn on_peer(
        &mut self,
        from: types::ServerId,
        route: Route,
        message: PeerMessage,
        payload: Payload,
    ) {
        self.backend.engine.on_peer(self.now, from, route, message, payload);
    }

    /// Processes the loss of the connections to another server.
    pub fn peer_lost(&mut self, server: types::ServerId) {
        self.backend.engine.connection_lost(self.now, server);
    }

    /// Processes a message from the coordinator.
    pub fn on_control(&mut self, message: FromCoordinator) {
        self.backend.engine.on_control(self.now, message);
    }

    /// Ends the input of a turn: retries parked requests, commits appends and releases replies.
    pub fn end_of_input(&mut self, io: &mut impl Connections) {
        self.wake(io);
        self.schedule_blocked();
        if self.waits.has_congested() {
            self.schedule_congested(io);
        }
        self.end_pause(io);
        for waiter in self.waits.take_turn() {
            self.retry(waiter, None, io);
        }
        self.wake(io);
        self.retry_for_memory(io);
        self.apply_client_limits(io);
        self.reconcile(io);
        if self.waits.has_replicas() && self.retry_for_replicas(io) {
            self.reconcile(io);
        }
    }

    /// Advances the turn's time. It never goes back: an answer is never older than its question.
    fn advance(&mut self, now: Instant) {
        assert!(self.now <= now, "the time of a turn goes back");
        self.now = now;
    }

    /// Runs everything that is due at [`Core::next_deadline`].
    pub fn tick(&mut self, now: Instant, io: &mut impl Connections) {
        self.advance(now);
        self.backend.engine.tick(now);
        for waiter in self.waits.take_expired(now) {
            if !self.clients.contains_key(&waiter.connection) {
                self.waits.give_up(waiter);
            }
            self.with_client(waiter.connection, io, |client, turn, out| {
                client.give_up(waiter.number, turn, out)
            });
        }
        for waiter in self.waits.take_impatient(self.now) {
            self.retry(waiter, None, io);
        }
        for waiter in self.waits.blocked.take_late(self.now) {
            self.retry(waiter, None, io);
        }
        self.scan_clients(io);
        self.wake(io);
        self.reconcile(io);
    }

    /// Returns when [`Core::tick`] is due, if no event happens before.
    pub fn next_deadline(&self) -> Option<Instant> {
        let has_turn = self.waits.has_turn()
            || self.waits.is_memory_due(self.backend.engine.has_news_of_memory());
        let has_notified = self.backend.operators.blocked.has_notified(self.reactor);
        let turn = (has_turn || has_notified).then_some(self.now);
        let others = [
            turn,
            self.waits.has_congested().then(|| self.now + CONGESTED_PAUSE),
            self.backend.engine.next_deadline(),
            self.waits.next_deadline(),
            self.waits.blocked.next_deadline(self.now),
            self.client_limits_deadline(),
        ];
        others.into_iter().flatten().min()
    }

    /// Returns whether [`Core::quantum`] would find work.
    pub fn has_background(&self) -> bool {
        self.backend.engine.has_background()
    }

    /// Does one bounded piece of background work. Returns false if there was none.
    pub fn quantum(&mut self, now: Instant, io: &mut impl Connections) -> bool {
        self.advance(now);
        let did = self.backend.quantum(now);
        self.wake(io);
        self.reconcile(io);
        did
    }

    /// Marks the reactor as asleep, so that grace periods do not wait for it.
    pub fn sleep(&mut self) {
        self.backend.engine.sleep();
    }
}

/// Retries of parked requests.
impl Core {
    /// Runs `run` on a client's connection, if it still exists.
    pub(super) fn with_client(
        &mut self,
        connection: ConnectionId,
        io: &mut impl Connections,
        run: impl FnOnce(&mut RedisClient, &mut ConnectionTurn<'_>, &mut Vec<u8>) -> ConnectionAction,
    ) {
        let Some(client) = self.clients.get_mut(&connection) else { return };
        let mut turn = ConnectionTurn::new(&mut self.backend, &mut self.waits, self.now, self.wall);
        let output = io.output(connection);
        let from = output.len();
        let next = run(client, &mut turn, output);
        turn.meter.finish(turn.backend, turn.now);
        let replies = from..output.len();
        self.reply_gate.record(connection, replies, &mut self.backend.engine, self.now);
        self.apply_action(connection, next, io);
        self.limit_output(connection, io);
    }

    fn retry(&mut self, waiter: WaiterId, answer: Option<Answer>, io: &mut impl Connections) {
        if answer.is_none() && is_congested(waiter.connection, &self.reply_gate, io) {
            return self.waits.add_congested(waiter);
        }
        self.with_client(waiter.connection, io, |client, turn, out| {
            client.retry(waiter.number, answer, turn, out)
        });
    }

    /// Schedules the requests of clients that have read enough of their output.
    fn schedule_congested(&mut self, io: &impl Connections) {
        let Core { waits, reply_gate, clients, .. } = self;
        waits.wake_congested(|connection| {
            is_congested(connection, reply_gate, io) && clients.contains_key(&connection)
        });
    }

    /// Schedules the requests that must look at the keys for which they wait.
    fn schedule_blocked(&mut self) {
        let Backend { engine, operators, .. } = &self.backend;
        for request in operators.blocked.take_notified(self.reactor) {
            let BlockedRequest { connection, number, .. } = request;
            self.waits.schedule(WaiterId { connection, number });
        }
        for waiter in self.waits.blocked.take_recent(engine.node().store()) {
            self.waits.schedule(waiter);
        }
    }

    /// Retries requests that wait for memory, first come, first served, until one finds none.
    fn retry_for_memory(&mut self, io: &mut impl Connections) {
        let has_news = self.backend.engine.has_news_of_memory();
        for _ in 0..MEMORY_RETRIES_MAX {
            let waiting = self.waits.waiting_for_memory();
            if !self.waits.is_memory_due(has_news) {
                return;
            }
            let Some(waiter) = self.waits.take_for_memory() else { return };
            self.retry(waiter, None, io);
            let again = self.waits.waiting_for_memory() + 1 - waiting;
            if again > 0 {
                return self.waits.stay_first_for_memory(again);
            }
        }
    }

    /// Retries requests that wait for replication of earlier writes, if its state has changed. The
    /// turn's appends must have been committed before. Returns whether any request was retried.
    fn retry_for_replicas(&mut self, io: &mut impl Connections) -> bool {
        let safety = self.backend.engine.safety();
        let before = std::mem::replace(&mut self.safety, safety);
        let waiters = self.waits.take_replicas(safety != before);
        let is_any = !waiters.is_empty();
        waiters.into_iter().for_each(|waiter| self.retry(waiter, None, io));
        self.waits.have_seen_replicas();
        is_any
    }

    /// Retries the requests named by the engine's wakes, until no wake is left.
    fn wake(&mut self, io: &mut impl Connections) {
        while !self.backend.engine.out.wakes.is_empty() {
            for wake in std::mem::take(&mut self.backend.engine.out.wakes) {
                self.wake_for(wake, io);
            }
        }
    }

    fn wake_for(&mut self, wake: Wake, io: &mut impl Connections) {
        match wake {
            Wake::Record(table, hash) => {
                for waiter in self.waits.take_missing(table, hash) {
                    self.retry(waiter, None, io);
                }
            }
            Wake::Progress => self.waits.wake_for_progress(),
            Wake::Tablets => self.waits.wake_for_new_tablets(),
            Wake::Map => self.waits.wake_for_new_map(),
            Wake::Answer(request, answer) => {
                if let Some(waiter) = self.waits.take_answer(request) {
                    self.retry(waiter, Some(answer), io);
                }
            }
        }
    }
}

/// Returns whether a client has so much unsent output that no request of it is retried.
fn is_congested(connection: ConnectionId, gate: &ReplyGate, io: &impl Connections) -> bool {
    io.backlog(connection) > CLIENT_BACKLOG_MAX || gate.is_paused(connection)
}

/// Longest time until it is noticed that a congested client has read its output.
const CONGESTED_PAUSE: Duration = Duration::from_millis(10);

/// Most requests retried for memory in one turn. The limit bounds a turn's copying of arguments.
const MEMORY_RETRIES_MAX: usize = 32;

/// Results of executed requests.
impl Core {
    /// Applies a connection's state to its socket.
    fn apply_action(
        &mut self,
        connection: ConnectionId,
        next: ConnectionAction,
        io: &mut impl Connections,
    ) {
        match next {
            ConnectionAction::Read | ConnectionAction::ReadAgain
                if self.reply_gate.is_paused(connection) => {}
            ConnectionAction::Read => io.resume_reading(connection),
            ConnectionAction::ReadAgain => {
                io.pause_reading(connection);
                io.resume_reading(connection);
            }
            ConnectionAction::Pause => io.pause_reading(connection),
            ConnectionAction::Close if self.reply_gate.delays_end(connection) => {
                io.pause_reading(connection)
            }
            ConnectionAction::Close => io.close_after_flush(connection),
        }
    }

    /// Commits the turn's appends, and releases the replies whose writes are acknowledged.
    fn reconcile(&mut self, io: &mut impl Connections) {
        let engine = &mut self.backend.engine;
        loop {
            let acknowledged = engine.acknowledgments();
            engine.commit(self.now);
            self.reply_gate.reconcile(engine, io);
            // Bytes that waited for entries of another segment can be sent once these are
            // acknowledged. This reactor is woken for what is acknowledged from here on.
            if !engine.keeps_back() || engine.acknowledgments() == acknowledged {
                break;
            }
        }
        // The outcome of these requests is unknown, and probably stays so: others serve the ranges
        // of this server without a part of its last writes.
        let mut pending = self.reply_gate.pending_connections().peekable();
        if pending.peek().is_some() && self.backend.engine.lease(self.now) == LeaseState::Lost {
            pending.for_each(|connection| io.close(connection));
        }
    }

    /// Processes the completion of a disk job from [`node::EngineOutput::disk`].
    pub fn on_disk(&mut self, done: DiskDone) {
        self.backend.engine.on_disk(self.now, done);
    }
}

#[cfg(test)]
mod tests;
