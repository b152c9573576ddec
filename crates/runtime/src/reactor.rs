//! One reactor: a service, a driver, and the loop of turns that connects them.
//!
//! The order of a turn is: poll or wait, priority connections, bus connections, clients, mail,
//! batched work, timers, output, closings, and at most one quantum of background work.
//! `docs/design/reactor.md` explains this order.
//!
//! Invariants:
//! - A connection leaves the table only at the end of a turn, so an id looked up once stays valid
//!   for the whole turn.
//! - A connection with pending work (input, output, a closing) is in one of the lists of [`Io`].
//!   The reactor does not wait while any of them is non-empty.

use crate::batching::RecentClients;
use crate::clock::Clock;
use crate::connection::{Class, Closed, Opened, TURN_BYTES_MAX};
use crate::counters::ReactorCounters;
use crate::driver::{Accepted, Driver, NetworkEvent};
use crate::input::Input;
use crate::io::{Connection, ConnectionPhase, InputEnd, Io};
use crate::mailbox::{MessageQueue, ReactorMessage};
use crate::placement::ConnectionPlacement;
use crate::service::Service;
use crate::sharing::Processors;
use crate::socket::{ReceiveResult, SendResult};
use crate::steering::Steering;
use crate::turns::{Idle, Turns};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use types::ConnectionId;
use types::Instant;

/// Most connections of a class served in one turn before priority traffic is polled again and the
/// replies are sent: the first reply waits for about 32 x 3 us.
const CONNECTIONS_PER_TURN_MAX: usize = 32;

/// Unconsumed input in bytes above which a connection is closed. It exceeds the largest frame of
/// the bus; a service that limits its requests pauses or closes far below it.
const INPUT_BYTES_MAX: usize = 80 << 20;

/// Time after which unneeded buffers are freed, as with free memory of the log. Long compared with
/// the pauses of a busy client: with one second, each burst paid for fresh pages.
const BUFFERS_TRIMMED_AFTER: Duration = Duration::from_secs(10);

/// Longest time for sending a connection's last output.
const DRAIN_TIME_MAX: Duration = Duration::from_secs(1);

pub(crate) struct Reactor<S: Service, D: Driver> {
    service: S,
    driver: D,
    queue: Arc<MessageQueue<ReactorMessage<S::Mail>>>,
    placement: ConnectionPlacement<S::Mail>,
    counters: Arc<ReactorCounters>,
    turns: Turns,
    steering: Steering,
    processors: Processors,
    recent: RecentClients,
    io: Io,
    clock: Clock,
    /// Time up to which this thread's running time is accounted for.
    accounted: Instant,
    events: Vec<NetworkEvent>,
    messages: Vec<ReactorMessage<S::Mail>>,
    /// Connections with their deadlines for sending their last output, earliest first.
    draining: VecDeque<(Instant, ConnectionId)>,
    /// Deadline for ending, set when the reactor must stop; remaining output is then dropped.
    stops_at: Option<Instant>,
    /// Time of the next trim of the buffers; `None` if there is nothing to trim.
    trims_at: Option<Instant>,
}

/// Connections that a turn has read.
#[derive(Clone, Copy)]
struct ServedConnections {
    prior: usize,
    clients: usize,
}

/// The parts of a new reactor.
pub(crate) struct Parts<S: Service, D: Driver> {
    pub(crate) service: S,
    pub(crate) driver: D,
    pub(crate) queue: Arc<MessageQueue<ReactorMessage<S::Mail>>>,
    pub(crate) placement: ConnectionPlacement<S::Mail>,
    pub(crate) counters: Arc<ReactorCounters>,
    pub(crate) turns: Turns,
    pub(crate) processors: Processors,
}

impl<S: Service, D: Driver> Reactor<S, D> {
    pub(crate) fn new(parts: Parts<S, D>) -> Reactor<S, D> {
        let Parts { service, driver, queue, placement, counters, turns, processors } = parts;
        let clock = Clock::new();
        let accounted = clock.now();
        let io = Io::new(placement.reactor());
        let (events, messages, draining) = (Vec::new(), Vec::new(), VecDeque::new());
        Reactor {
            service,
            driver,
            queue,
            placement,
            counters,
            turns,
            steering: Steering::default(),
            processors,
            recent: RecentClients::default(),
            io,
            clock,
            accounted,
            events,
            messages,
            draining,
            stops_at: None,
            trims_at: None,
        }
    }

    /// Runs turns until asked to stop.
    pub(crate) fn run(mut self) {
        let begun = self.driver.begin();
        // The driver was probed before the first reactor started.
        assert!(begun.is_ok(), "the driver cannot start: {begun:?}");
        while !self.has_stopped() {
            self.turn();
        }
    }

    fn turn(&mut self) {
        self.steering.demand = self.service.background_demand();
        let rests_until = self.steering.rests_until(self.accounted);
        let has_background = rests_until.is_none() && self.service.has_background();
        let has_work = self.io.has_work() || has_background;
        let idle = if has_work { None } else { Some(self.idle()) };
        self.poll_or_wait(idle, rests_until);
        let now = self.clock.now();
        let wall = self.clock.wall(now);
        self.steer(now);
        self.account_for_polling(now, idle);
        self.detect_sharing(now);

        self.service.begin_turn(now, wall);
        self.admit(now);
        let served = self.serve(now);
        self.take_messages(now);
        self.service.end_of_input(&mut self.io);
        if self.service.next_deadline().is_some_and(|deadline| deadline <= now) {
            self.service.tick(now, &mut self.io);
        }
        self.end_slow_drains(now);
        self.apply_effects();
        self.trim_buffers(now);
        self.run_background(served);
    }

    /// Lets the latency of the turns before decide on the share of background work.
    fn steer(&mut self, now: Instant) {
        if let Some((share, p99)) = self.steering.begin_turn(now, self.processors.mean_wait()) {
            self.counters.steered_share.set(share.into());
            self.counters.seen_p99_ns.set(u64::try_from(p99.as_nanos()).unwrap_or(u64::MAX));
        }
    }

    /// Frees buffers that were not needed for a while. An idle reactor wakes for it until none is
    /// left.
    fn trim_buffers(&mut self, now: Instant) {
        match self.trims_at {
            None if self.io.buffers.has_large() => {}
            Some(at) if at <= now => self.io.buffers.trim(),
            None | Some(_) => return,
        }
        self.trims_at = self.io.buffers.has_large().then(|| now + BUFFERS_TRIMMED_AFTER);
    }

    /// Returns how to wait when idle.
    fn idle(&mut self) -> Idle {
        let is_batched = self.driver.can_gather() && self.recent.are_frequent(self.accounted);
        self.turns.idle(self.accounted, is_batched)
    }

    /// Polls for events; waits for them if there is nothing else to do. Background work that must
    /// rest may run from `rests_until` on.
    fn poll_or_wait(&mut self, idle: Option<Idle>, rests_until: Option<Instant>) {
        match idle {
            Some(how @ (Idle::Block | Idle::Gather)) => self.block(how, rests_until),
            Some(Idle::Spin) => {
                self.flush();
                if self.turns.yields_while_spinning() {
                    rustix::thread::sched_yield();
                }
                self.poll(Some(Duration::ZERO));
            }
            None => self.poll(Some(Duration::ZERO)),
        }
        self.queue.take(&mut self.messages);
    }

    fn block(&mut self, how: Idle, rests_until: Option<Instant>) {
        let rests_until = rests_until.filter(|_| self.service.has_background());
        let deadlines = [
            rests_until,
            self.service.next_deadline(),
            self.draining.front().map(|&(deadline, _)| deadline),
            self.stops_at,
            self.trims_at,
        ];
        let timeout = deadlines.into_iter().flatten().min().map(|at| at.since(self.accounted));
        self.service.sleep();
        if self.steering.is_on() {
            self.steering.begin_wait(self.clock.now());
        }
        if self.queue.may_sleep() {
            self.counters.sleeps.add(1);
            match how {
                Idle::Gather => self.gather(timeout),
                Idle::Block | Idle::Spin => self.poll(timeout),
            }
            self.queue.awake();
        }
        self.service.wake();
    }

    fn detect_sharing(&mut self, now: Instant) {
        if let Some(is_shared) = self.processors.look(now) {
            self.turns.set_cores_shared(is_shared);
        }
    }

    fn poll(&mut self, timeout: Option<Duration>) {
        let polled = self.driver.poll(timeout, &mut self.events);
        // The descriptors belong to the driver and the arguments are fixed, so a failure is a
        // bug, and a reactor that cannot poll serves no connection.
        assert!(polled.is_ok(), "the driver cannot poll: {polled:?}");
    }

    fn gather(&mut self, timeout: Option<Duration>) {
        let gathered = self.driver.gather(timeout, &mut self.events);
        assert!(gathered.is_ok(), "the driver cannot poll: {gathered:?}");
    }

    /// Sends output within its own turn, so that its cost counts as work and not as waiting. The
    /// peer does not have to wait for a quantum or a spin.
    fn flush(&mut self) {
        let flushed = self.driver.flush();
        assert!(flushed.is_ok(), "the driver cannot send: {flushed:?}");
    }

    fn account_for_polling(&mut self, now: Instant, idle: Option<Idle>) {
        let something_came = !self.events.is_empty() || !self.messages.is_empty();
        let spent = now.since(self.accounted);
        self.accounted = now;
        self.counters.turns.add(1);
        match idle {
            Some(_) => self.counters.waiting_ns.add_time(spent),
            None => self.counters.work_ns.add_time(spent),
        }
        if something_came {
            self.turns.arrived(now);
        }
    }

    fn admit(&mut self, now: Instant) {
        let mut events = std::mem::take(&mut self.events);
        for event in events.drain(..) {
            match event {
                NetworkEvent::Accepted(accepted) => {
                    if let Some(ours) = self.placement.place(accepted) {
                        self.adopt(ours);
                    }
                }
                NetworkEvent::Connected(connection) => self.connected(connection),
                NetworkEvent::ConnectFailed(connection, error) => {
                    self.connect_failed(connection, error)
                }
                NetworkEvent::Readable(connection) => {
                    if let Some(found) = self.io.get_mut(connection) {
                        found.is_readable = true;
                        self.io.mark_ready(connection);
                    }
                }
                NetworkEvent::Writable(connection) => self.unblock(connection),
                NetworkEvent::Broken(connection) => self.broken(connection),
            }
        }
        assert!(self.events.is_empty(), "events arrived within a turn");
        self.events = events;
        if self.stops_at.is_some() {
            self.stop(now);
        }
    }

    fn adopt(&mut self, accepted: Accepted) {
        let Accepted { socket, port, class, peer } = accepted;
        let mut fresh = Connection::new(class, ConnectionPhase::Open);
        fresh.placed_as = Some(class);
        let connection = self.io.insert(fresh);
        if self.driver.adopt(connection, socket, class).is_err() {
            // The system cannot watch the socket; the service never learns of the connection.
            self.forget(connection);
            return;
        }
        self.counters.accepted.add(1);
        self.service.opened(connection, Opened::Accepted { port, peer }, &mut self.io);
    }

    fn connected(&mut self, connection: ConnectionId) {
        let Some(found) = self.io.get_mut(connection) else { return };
        if let ConnectionPhase::Connecting { tag, .. } = found.phase {
            found.phase = ConnectionPhase::Open;
            self.service.opened(connection, Opened::Connected { tag }, &mut self.io);
        }
    }

    fn connect_failed(&mut self, connection: ConnectionId, error: std::io::Error) {
        let Some(found) = self.io.get(connection) else { return };
        if let ConnectionPhase::Connecting { tag, .. } = found.phase {
            self.forget(connection);
            self.service.connect_failed(connection, tag, error, &mut self.io);
        }
    }

    fn unblock(&mut self, connection: ConnectionId) {
        if let Some(found) = self.io.get_mut(connection)
            && found.is_blocked
        {
            found.is_blocked = false;
            self.io.mark_dirty(connection);
        }
    }

    /// Handles a broken connection. If it is being read, the read reports the failure after its
    /// last bytes.
    fn broken(&mut self, connection: ConnectionId) {
        let Some(found) = self.io.get_mut(connection) else { return };
        if found.may_receive() {
            found.is_readable = true;
            self.io.mark_ready(connection);
        } else {
            self.io.end(connection, Closed::ByPeer);
        }
    }

    /// Passes input to the service. Returns the connections that must not wait for background
    /// work.
    fn serve(&mut self, now: Instant) -> ServedConnections {
        let prior = self.serve_class(Class::Priority, now, None);
        let share = self.steering.share();
        if prior > 0 {
            let spent = self.spend();
            self.counters.priority_ns.add_time(spent);
            self.turns.worked(spent, share);
        }
        self.serve_class(Class::Bus, now, None);
        let until = self.service.has_background().then(|| self.turns.serve_until(now, share));
        let clients = self.serve_class(Class::Client, now, until);
        ServedConnections { prior, clients }
    }

    /// Serves the currently ready connections of a class, until the turn is long enough.
    fn serve_class(&mut self, class: Class, now: Instant, until: Option<Instant>) -> usize {
        let count = self.io.ready[class as usize].len().min(CONNECTIONS_PER_TURN_MAX);
        if class == Class::Client && count > 1 {
            let clients = self.io.ready[class as usize].iter().take(count);
            self.service.prefetch(&mut clients.map(|client| self.driver.peek(*client)));
        }
        let mut read_bytes = 0;
        for served in 0..count {
            let is_late = || until.is_some_and(|until| served > 0 && self.clock.now() >= until);
            if read_bytes >= TURN_BYTES_MAX || is_late() {
                return served;
            }
            if let Some(connection) = self.io.ready[class as usize].pop_front() {
                if class == Class::Client {
                    self.recent.served(connection, now);
                }
                read_bytes += self.receive(connection);
            }
        }
        count
    }

    /// Reads from one connection and passes its input to the service. Returns the bytes read.
    fn receive(&mut self, connection: ConnectionId) -> usize {
        let Some(found) = self.io.get_mut(connection) else { return 0 };
        assert!(found.is_queued, "{connection} is read without being queued");
        found.is_queued = false;
        if !found.may_receive() {
            return 0;
        }
        let mut input = std::mem::take(&mut found.input);
        if std::mem::take(&mut found.is_resumed) && input.is_due() {
            self.service.received(connection, &mut input, &mut self.io);
        }
        let before = self.counters.bytes_in.read();
        self.read(connection, &mut input);
        let read_bytes = (self.counters.bytes_in.read() - before) as usize;
        input.release_unneeded(&mut self.io.buffers);
        let Some(found) = self.io.get_mut(connection) else { return read_bytes };
        // Input left over by a congested client is passed again as soon as the client is not
        // congested.
        found.is_resumed |= found.is_congested() && !input.is_empty();
        found.input = input;
        if found.end == InputEnd::Reached && found.may_receive() {
            found.end = InputEnd::Reported;
            self.service.input_ended(connection, &mut self.io);
        }
        read_bytes
    }

    /// Reads until nothing is left, the service stops reading, or the connection's limit is
    /// reached.
    fn read(&mut self, connection: ConnectionId, input: &mut Input) {
        let mut read_bytes = 0;
        loop {
            let Some(found) = self.io.get_mut(connection) else { return };
            if !found.is_readable || !found.may_receive() {
                return;
            }
            let is_enough = match input.is_within_message() {
                true => read_bytes >= TURN_BYTES_MAX,
                false => read_bytes >= found.class.connection_bytes_max(),
            };
            if is_enough {
                return self.io.mark_ready(connection);
            }
            let is_trusted = found.class.is_bus();
            let room = input.make_room(&mut self.io.buffers, is_trusted);
            let received = self.driver.receive(connection, room);
            let Some(found) = self.io.get_mut(connection) else { return };
            match received {
                ReceiveResult::Bytes { count, may_have_more } => {
                    read_bytes += count;
                    found.is_readable = may_have_more;
                    self.counters.bytes_in.add(count as u64);
                }
                ReceiveResult::Nothing => return found.is_readable = false,
                ReceiveResult::End => {
                    found.is_readable = false;
                    return self.reach_end(connection);
                }
                ReceiveResult::Failed => return self.io.end(connection, Closed::ByPeer),
            }
            if input.is_due() {
                self.service.received(connection, input, &mut self.io);
            }
            if input.len() >= INPUT_BYTES_MAX {
                return self.io.end(connection, Closed::InputTooLarge);
            }
        }
    }

    fn reach_end(&mut self, connection: ConnectionId) {
        let Some(found) = self.io.get_mut(connection) else { return };
        match found.end {
            InputEnd::Open | InputEnd::Reached => found.end = InputEnd::Reached,
            // It was read again because it broke meanwhile: the peer does not read either.
            InputEnd::Reported => self.io.end(connection, Closed::ByPeer),
        }
    }

    fn take_messages(&mut self, now: Instant) {
        let mut messages = std::mem::take(&mut self.messages);
        for message in messages.drain(..) {
            match message {
                ReactorMessage::Mail(mail) => self.service.mail(mail, &mut self.io),
                ReactorMessage::Connection(accepted) => self.adopt(accepted),
                ReactorMessage::Stop => {
                    self.driver.stop_listening();
                    self.stops_at.get_or_insert(now + DRAIN_TIME_MAX);
                    self.stop(now);
                }
            }
        }
        assert!(self.messages.is_empty(), "messages arrived within a turn");
        self.messages = messages;
    }

    /// Closes connections without unsent output, and lets the others send theirs.
    fn stop(&mut self, now: Instant) {
        let is_late = self.stops_at.is_some_and(|at| at <= now);
        for connection in self.io.all() {
            let has_output =
                self.io.output_backlog(connection) > 0 || self.driver.is_sending(connection);
            if is_late || !has_output {
                self.io.end(connection, Closed::Stopping);
            } else {
                self.io.close_after_flush(connection);
            }
        }
    }

    fn has_stopped(&self) -> bool {
        self.stops_at.is_some() && self.io.is_empty()
    }

    fn end_slow_drains(&mut self, now: Instant) {
        for connection in self.io.draining.drain(..) {
            self.draining.push_back((now + DRAIN_TIME_MAX, connection));
        }
        while let Some(&(deadline, connection)) = self.draining.front()
            && deadline <= now
        {
            self.draining.pop_front();
            self.io.end(connection, Closed::TooSlow);
        }
    }

    /// Executes the effects that the service has requested: connects, sends, closes.
    fn apply_effects(&mut self) {
        for connection in std::mem::take(&mut self.io.connecting) {
            self.begin_to_connect(connection);
        }
        self.send_all();
        for connection in std::mem::take(&mut self.io.closing) {
            self.close(connection);
        }
    }

    fn begin_to_connect(&mut self, connection: ConnectionId) {
        let Some(found) = self.io.get(connection) else { return };
        if let ConnectionPhase::Connecting { address, .. } = found.phase
            && let Err(error) = self.driver.connect(connection, address, found.class)
        {
            self.connect_failed(connection, error);
        }
    }

    fn send_all(&mut self) {
        let mut dirty = std::mem::take(&mut self.io.dirty);
        for connection in dirty.drain(..) {
            self.send(connection);
        }
        assert!(self.io.dirty.is_empty(), "sending has produced more output");
        self.io.dirty = dirty;
    }

    fn send(&mut self, connection: ConnectionId) {
        let Some(found) = self.io.get_mut(connection) else { return };
        assert!(found.is_dirty, "{connection} is sent without being dirty");
        found.is_dirty = false;
        if found.is_blocked {
            return;
        }
        let mut output = std::mem::take(&mut found.output);
        let is_last = found.phase == ConnectionPhase::Draining;
        let mut sent = self.driver.send(connection, &mut output, &mut self.io.buffers);
        if let (SendResult::Taken { bytes }, true) = (sent, is_last) {
            // Closing must wait until the output has left. A second call makes the driver report
            // that.
            self.counters.bytes_out.add(bytes as u64);
            sent = self.driver.send(connection, &mut output, &mut self.io.buffers);
        }
        if output.is_empty() {
            output.release(&mut self.io.buffers);
        }
        let Some(found) = self.io.get_mut(connection) else { return };
        found.output = output;
        match sent {
            SendResult::All { bytes } => {
                self.counters.bytes_out.add(bytes as u64);
                if found.phase == ConnectionPhase::Draining {
                    self.driver.finish(connection);
                    self.io.end(connection, Closed::ByService);
                }
            }
            SendResult::Taken { bytes } => self.counters.bytes_out.add(bytes as u64),
            SendResult::Blocked { bytes } => {
                self.counters.bytes_out.add(bytes as u64);
                found.is_blocked = true;
            }
            SendResult::Failed => return self.io.end(connection, Closed::ByPeer),
        }
        self.continue_reading(connection);
    }

    /// Resumes reading a client after output was sent, if its backlog had stopped the reading.
    fn continue_reading(&mut self, connection: ConnectionId) {
        let Some(found) = self.io.get(connection) else { return };
        let waits = found.is_readable || found.is_resumed || found.end == InputEnd::Reached;
        if waits && found.may_receive() {
            self.io.mark_ready(connection);
        }
    }

    fn close(&mut self, connection: ConnectionId) {
        let Some(found) = self.io.get(connection) else { return };
        if let ConnectionPhase::Closing { why } = found.phase {
            self.driver.close(connection);
            self.service.closed(connection, why, &mut self.io);
            self.counters.closed.add(1);
            self.forget(connection);
        }
    }

    fn forget(&mut self, connection: ConnectionId) {
        if let Some(removed) = self.io.remove(connection)
            && let Some(class) = removed.placed_as
        {
            self.placement.left(class);
        }
    }

    /// Accounts for the work of this turn, and runs a quantum if one is due or the core is idle.
    fn run_background(&mut self, served: ServedConnections) {
        self.flush();
        let share = self.steering.share();
        let worked = self.spend();
        self.counters.work_ns.add_time(worked);
        self.turns.worked(worked, share);
        let left = self.io.ready[Class::Client as usize].len();
        self.steering.answered(self.accounted, served.clients, left);
        if !self.service.has_background() {
            return self.turns.forget_background();
        }
        let has_served = served.prior + served.clients > 0;
        let may_run = match has_served {
            true => self.turns.is_background_due(share),
            false => self.steering.rests_until(self.accounted).is_none(),
        };
        if !may_run {
            return;
        }
        let has_run = self.service.quantum(self.accounted, &mut self.io);
        self.send_all();
        let spent = self.spend();
        self.counters.background_ns.add_time(spent);
        self.counters.quanta.add(u64::from(has_run));
        self.steering.ran(spent);
        if has_served {
            self.turns.ran_due(spent, share);
        } else {
            self.turns.ran_idle(spent);
        }
        if self.turns.yields() {
            rustix::thread::sched_yield();
        }
    }

    /// Returns the time since the last accounted moment, and accounts for it.
    fn spend(&mut self) -> Duration {
        let now = self.clock.now();
        let spent = now.since(self.accounted);
        self.accounted = now;
        spent
    }
}

#[cfg(test)]
mod tests;
