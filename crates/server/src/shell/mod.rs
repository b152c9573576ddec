//! Puts the server's core on a reactor: client and bus connections, mail, timers.
//!
//! All decisions are elsewhere. This file turns what the reactor brings into calls of the core,
//! and what the core leaves in its outbox into bytes.

mod bus;

use crate::engine::{Engine, Node, Wake};
use crate::front::{Client, Next, Ticket, Turn, Waits};
use bus::Bus;
use runtime::{Closed, ConnectTag, ConnectionId, Input, Io, Opened, Port, Service};
use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use types::{Instant, ReactorId, UnixMillis};
use wire::control::{Answer, FromCoordinator, ToCoordinator};

/// The listener for clients.
pub const CLIENT_PORT: Port = Port(0);
/// The listener for other servers.
pub const BUS_PORT: Port = Port(1);

/// What other threads send to a reactor.
#[derive(Debug)]
pub enum Mail {
    /// From the coordinator. See [`reactor_for`].
    Control(FromCoordinator),
}

/// The reactor that a message of the coordinator goes to.
pub fn reactor_for(message: &FromCoordinator) -> ReactorId {
    match message {
        FromCoordinator::Answer { request, .. } => Engine::asked_by(*request),
        FromCoordinator::Welcome { .. }
        | FromCoordinator::Rejected { .. }
        | FromCoordinator::Map(_)
        | FromCoordinator::Measure { .. }
        | FromCoordinator::Prepare(_)
        | FromCoordinator::Start(_)
        | FromCoordinator::Decide { .. }
        | FromCoordinator::Outcome { .. }
        | FromCoordinator::Forget { .. }
        | FromCoordinator::Finished { .. } => ReactorId(0),
    }
}

/// How messages reach the coordinator.
pub type ToControl = Arc<dyn Fn(ToCoordinator) + Send + Sync>;

/// One reactor of a server.
pub struct Server {
    engine: Engine,
    clients: HashMap<ConnectionId, Client>,
    waits: Waits,
    bus: Bus,
    control: ToControl,
    reactor: ReactorId,
    now: Instant,
    wall: UnixMillis,
}

impl Server {
    /// The service of one reactor.
    pub fn new(node: Arc<Node>, reactor: ReactorId, control: ToControl) -> Server {
        let bus = Bus::new(&node);
        Server {
            engine: Engine::new(node, reactor),
            clients: HashMap::new(),
            waits: Waits::default(),
            bus,
            control,
            reactor,
            now: Instant(0),
            wall: UnixMillis(0),
        }
    }

    fn open_client(&mut self, connection: ConnectionId, peer: String, io: &mut Io) {
        let node = self.engine.node();
        let counters = &node.counters;
        let clients: u64 = counters.iter().map(|c| c.connections.load(Ordering::Relaxed)).sum();
        let mine = &counters[usize::from(self.reactor.0)];
        if clients >= crate::CLIENTS_MAX {
            mine.refused.fetch_add(1, Ordering::Relaxed);
            io.output(connection).extend_from_slice(b"-ERR max number of clients reached\r\n");
            return io.close_after_flush(connection);
        }
        mine.connections.fetch_add(1, Ordering::Relaxed);
        mine.connections_total.fetch_add(1, Ordering::Relaxed);
        let number = node.clients_named.fetch_add(1, Ordering::Relaxed) + 1;
        self.clients.insert(connection, Client::new(connection, number, peer));
    }

    /// Runs something on a client's connection, if it is still there.
    fn with_client(
        &mut self,
        ticket: Ticket,
        io: &mut Io,
        run: impl FnOnce(&mut Client, &mut Turn<'_>, &mut Vec<u8>) -> Next,
    ) {
        let Some(client) = self.clients.get_mut(&ticket.connection) else { return };
        let mut turn = Turn {
            engine: &mut self.engine,
            waits: &mut self.waits,
            now: self.now,
            wall: self.wall,
        };
        let next = run(client, &mut turn, io.output(ticket.connection));
        go_on(ticket.connection, next, io);
    }

    fn retry(&mut self, ticket: Ticket, answer: Option<Answer>, io: &mut Io) {
        self.with_client(ticket, io, |client, turn, out| {
            client.retry(ticket.number, answer, turn, out)
        });
    }

    /// Carries out what the engine has left.
    fn carry_out(&mut self, io: &mut Io) {
        while !self.engine.out.wakes.is_empty() {
            for wake in std::mem::take(&mut self.engine.out.wakes) {
                self.wake(wake, io);
            }
        }
        for sending in std::mem::take(&mut self.engine.out.peers) {
            self.bus.send(sending, self.engine.node(), io);
        }
        for message in std::mem::take(&mut self.engine.out.control) {
            (self.control)(message);
        }
    }

    fn wake(&mut self, wake: Wake, io: &mut Io) {
        match wake {
            Wake::Record(table, hash) => {
                for ticket in self.waits.take_missing(table, hash) {
                    self.retry(ticket, None, io);
                }
            }
            Wake::Progress => {
                for ticket in self.waits.take_progress() {
                    self.retry(ticket, None, io);
                }
            }
            Wake::Tablets => {
                for ticket in self.waits.take_for_new_tablets() {
                    self.retry(ticket, None, io);
                }
            }
            Wake::Answer(request, answer) => {
                if let Some(ticket) = self.waits.take_answer(request) {
                    self.retry(ticket, Some(answer), io);
                }
            }
        }
    }
}

/// What a connection's state means for its socket.
fn go_on(connection: ConnectionId, next: Next, io: &mut Io) {
    match next {
        Next::Read => io.resume_reading(connection),
        Next::Pause => io.pause_reading(connection),
        Next::Close => io.close_after_flush(connection),
    }
}

impl Service for Server {
    type Mail = Mail;

    fn begin_turn(&mut self, now: Instant, wall: UnixMillis) {
        (self.now, self.wall) = (now, wall);
        self.engine.begin_turn(now, wall);
    }

    fn opened(&mut self, connection: ConnectionId, how: Opened, io: &mut Io) {
        match how {
            Opened::Accepted { port: CLIENT_PORT, peer } => {
                self.open_client(connection, peer.to_string(), io);
            }
            Opened::Accepted { .. } => self.bus.accepted(self.now, connection, io),
            Opened::Connected { .. } => self.bus.connected(connection, io),
        }
    }

    fn connect_failed(
        &mut self,
        connection: ConnectionId,
        _tag: ConnectTag,
        error: io::Error,
        _io: &mut Io,
    ) {
        tracing::debug!(%error, "a server cannot be reached");
        self.bus.closed(connection);
    }

    fn received(&mut self, connection: ConnectionId, input: &mut Input, io: &mut Io) {
        if let Some(client) = self.clients.get_mut(&connection) {
            let mut turn = Turn {
                engine: &mut self.engine,
                waits: &mut self.waits,
                now: self.now,
                wall: self.wall,
            };
            let received = client.receive(input.bytes(), &mut turn, io.output(connection));
            input.consume(received.consumed);
            let counters = &self.engine.node().counters[usize::from(self.reactor.0)];
            counters.commands.fetch_add(received.requests, Ordering::Relaxed);
            match received.next {
                Next::Read => {}
                next @ (Next::Pause | Next::Close) => go_on(connection, next, io),
            }
            return;
        }
        loop {
            match self.bus.receive(connection, input, io) {
                Ok(Some(arrived)) => self.engine.on_peer(
                    self.now,
                    arrived.from,
                    arrived.route,
                    arrived.message,
                    arrived.payload,
                ),
                Ok(None) => return,
                Err(error) => {
                    tracing::warn!(%error, "a bus connection is closed");
                    return io.close(connection);
                }
            }
        }
    }

    fn input_ended(&mut self, connection: ConnectionId, io: &mut Io) {
        let next = match self.clients.get_mut(&connection) {
            Some(client) => client.end(),
            None => Next::Close,
        };
        go_on(connection, next, io);
    }

    fn closed(&mut self, connection: ConnectionId, _why: Closed, _io: &mut Io) {
        if self.clients.remove(&connection).is_some() {
            let counters = &self.engine.node().counters[usize::from(self.reactor.0)];
            counters.connections.fetch_sub(1, Ordering::Relaxed);
        }
        self.bus.closed(connection);
    }

    fn mail(&mut self, mail: Mail, _io: &mut Io) {
        let Mail::Control(message) = mail;
        self.engine.on_control(self.now, message);
    }

    fn end_of_input(&mut self, io: &mut Io) {
        for ticket in self.waits.take_turn() {
            self.retry(ticket, None, io);
        }
        self.carry_out(io);
    }

    fn tick(&mut self, now: Instant, io: &mut Io) {
        self.engine.tick(now);
        self.bus.tick(now, io);
        for ticket in self.waits.take_expired(now) {
            self.with_client(ticket, io, |client, turn, out| {
                client.give_up(ticket.number, turn, out)
            });
        }
        self.carry_out(io);
    }

    fn next_deadline(&self) -> Option<Instant> {
        let turn = self.waits.has_turn().then_some(self.now);
        let others = [turn, self.bus.next_deadline(), self.engine.next_deadline()];
        others.into_iter().chain([self.waits.next_deadline()]).flatten().min()
    }

    fn has_background(&self) -> bool {
        self.engine.has_background()
    }

    fn quantum(&mut self, now: Instant, io: &mut Io) -> bool {
        if self.engine.wants_buffer() {
            self.engine.give_buffer(io.buffer(PULL_BUFFER_BYTES));
        }
        let did = self.engine.quantum(now);
        self.carry_out(io);
        while let Some(buffer) = self.engine.spare_buffer() {
            io.recycle(buffer);
        }
        did
    }

    fn background_share(&self) -> u8 {
        self.engine.node().background_share()
    }

    fn sleep(&mut self) {
        self.engine.sleep();
    }

    fn wake(&mut self) {}
}

/// A pull of the default size and the bucket that ends it.
const PULL_BUFFER_BYTES: usize = 72 << 10;
