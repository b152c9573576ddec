//! Runs the server's [core](front::core) on a reactor: sockets, the bus, messages from threads.
//!
//! This module makes no decisions. It turns events of the reactor into calls of the core, and the
//! engine's outbox into bytes.

mod addresses;
mod disk;
mod sockets;
mod syncing;

pub use addresses::AddressBook;
pub use disk::FileDisk;

use bus::{Arrived, Bus};
use front::Operators;
use front::core::Core;
use handshake::Credentials;
use node::{DiskDone, DiskJob, Engine, Node};
use runtime::{
    Clock, Closed, ConnectTag, Input, Io, LARGE_MESSAGE_BYTES, Mailbox, Opened, Port, Service,
};
use sockets::{BusInput, BusSockets, ClientSockets};
use std::io;
use std::sync::Arc;
use syncing::DiskThread;
use types::{BackgroundDemand, ConnectionId, Instant, ReactorId, ServerId, UnixMillis};
use wire::control::{FromCoordinator, ToCoordinator};

/// The listener for clients.
pub const CLIENT_PORT: Port = Port(0);
/// The listener for other servers.
pub const BUS_PORT: Port = Port(1);

/// A message from another thread to a reactor.
pub enum Mail {
    /// A message from the coordinator. See [`node::reactor_for`].
    Control(FromCoordinator),
    /// The completion or failure of a disk job.
    Disk(DiskDone),
}

/// The function that sends messages to the coordinator.
pub type ToControl = Arc<dyn Fn(ToCoordinator) + Send + Sync>;

/// The parts of a server that all of its reactors share.
#[derive(Clone)]
pub struct Shared {
    /// The server without sockets.
    pub node: Arc<Node>,
    /// The state that operators see and change.
    pub operators: Arc<Operators>,
    /// The addresses of other servers.
    pub addresses: Arc<AddressBook>,
}

/// One reactor of a server.
pub struct ServerReactor {
    core: Core,
    bus: Bus,
    addresses: Arc<AddressBook>,
    disk: DiskThread,
    /// Thread for jobs that no acknowledgment depends on, so that others do not wait for them.
    housekeeping: DiskThread,
    /// Threads for reads, so that other disk jobs do not wait for reads. They are used in turn.
    readers: [DiskThread; READERS],
    next_reader: usize,
    control: ToControl,
}

impl ServerReactor {
    /// Creates the service of the reactor that owns `mailbox`.
    pub fn new(
        shared: &Shared,
        reactor: ReactorId,
        control: ToControl,
        mailbox: Mailbox<Mail>,
        credentials: Credentials,
    ) -> ServerReactor {
        let too_long = shared.operators.frames_too_long.clone();
        let bus = Bus::new(&shared.node, credentials, too_long);
        let mut engine = Engine::new(shared.node.clone(), reactor);
        let clock = Clock::new();
        engine.set_time_within_turn(Box::new(move || clock.now()));
        ServerReactor {
            core: Core::new(engine, shared.operators.clone()),
            bus,
            addresses: shared.addresses.clone(),
            disk: DiskThread::new(mailbox.clone()),
            housekeeping: DiskThread::new(mailbox.clone()),
            readers: std::array::from_fn(|_| DiskThread::new(mailbox.clone())),
            next_reader: 0,
            control,
        }
    }

    /// Starts address lookups for all servers of the map, before there are messages for them.
    fn look_up_addresses(&self) {
        for server in &self.core.engine().node().map().servers {
            self.addresses.look_up(&server.host);
        }
    }

    /// Forgets a bus connection that has ended. Returns its server, if this reactor had opened it.
    fn bus_closed(&mut self, connection: ConnectionId, io: &mut Io) -> Option<ServerId> {
        let sockets = &mut BusSockets { io, addresses: &self.addresses };
        self.bus.closed(self.core.now(), connection, self.core.engine().node(), sockets)
    }

    /// Sends the messages and starts the disk jobs in the engine's outbox.
    fn carry_out(&mut self, io: &mut Io) {
        let now = self.core.now();
        for sending in std::mem::take(&mut self.core.engine_mut().out.peers) {
            let sockets = &mut BusSockets { io, addresses: &self.addresses };
            self.bus.send(now, sending, self.core.engine().node(), sockets);
        }
        for message in std::mem::take(&mut self.core.engine_mut().out.control) {
            (self.control)(message);
        }
        for job in std::mem::take(&mut self.core.engine_mut().out.disk) {
            match &job {
                // Consecutive reads concern the same replicas, so one thread runs them.
                DiskJob::Read(_) => self.readers[0].begin(job),
                _ if job.is_reading() => {
                    self.next_reader = (self.next_reader + 1) % READERS;
                    self.readers[self.next_reader].begin(job);
                }
                _ if job.is_housekeeping() => self.housekeeping.begin(job),
                DiskJob::Backup(_) => self.disk.begin(job),
            }
        }
    }
}

impl Service for ServerReactor {
    type Mail = Mail;

    fn begin_turn(&mut self, now: Instant, wall: UnixMillis) {
        self.core.begin_turn(now, wall);
    }

    fn opened(&mut self, connection: ConnectionId, how: Opened, io: &mut Io) {
        let now = self.core.now();
        match how {
            Opened::Accepted { port: CLIENT_PORT, peer } => {
                self.core.open(connection, peer.to_string(), &mut ClientSockets(io));
            }
            Opened::Accepted { .. } => {
                let sockets = &mut BusSockets { io, addresses: &self.addresses };
                self.bus.accepted(now, connection, sockets);
            }
            Opened::Connected { .. } => {
                let sockets = &mut BusSockets { io, addresses: &self.addresses };
                self.bus.connected(now, connection, sockets);
            }
        }
    }

    fn connect_failed(
        &mut self,
        connection: ConnectionId,
        _tag: ConnectTag,
        error: io::Error,
        io: &mut Io,
    ) {
        tracing::debug!(%error, "cannot reach a server");
        self.bus_closed(connection, io);
    }

    fn prefetch(&mut self, inputs: &mut dyn Iterator<Item = &[u8]>) {
        self.core.prefetch(inputs);
    }

    fn received(&mut self, connection: ConnectionId, input: &mut Input, io: &mut Io) {
        if let Some(consumed) = self.core.receive(connection, input.bytes(), &mut ClientSockets(io))
        {
            input.consume(consumed);
            if consumed >= LARGE_MESSAGE_BYTES {
                input.expect_message(self.core.request_bytes(connection, consumed));
            }
            if !input.is_empty() {
                input.want(self.core.wanted(connection));
            }
            return;
        }
        loop {
            let sockets = &mut BusSockets { io, addresses: &self.addresses };
            let input = &mut BusInput(input);
            let arrived = self.bus.receive(self.core.now(), connection, input, sockets);
            let Some(Arrived { from, route, message, payload }) = arrived else { return };
            self.core.on_peer(from, route, message, payload);
        }
    }

    fn input_ended(&mut self, connection: ConnectionId, io: &mut Io) {
        self.core.input_ended(connection, &mut ClientSockets(io));
    }

    fn closed(&mut self, connection: ConnectionId, _why: Closed, io: &mut Io) {
        self.core.closed(connection);
        if let Some(server) = self.bus_closed(connection, io) {
            self.core.peer_lost(server);
        }
    }

    fn mail(&mut self, mail: Mail, _io: &mut Io) {
        match mail {
            Mail::Control(message) => {
                let is_map = matches!(message, FromCoordinator::Map(_));
                self.core.on_control(message);
                if is_map {
                    self.look_up_addresses();
                }
            }
            Mail::Disk(done) => self.core.on_disk(done),
        }
    }

    fn end_of_input(&mut self, io: &mut Io) {
        self.core.end_of_input(&mut ClientSockets(io));
        self.carry_out(io);
    }

    fn tick(&mut self, now: Instant, io: &mut Io) {
        self.bus.tick(now, &mut BusSockets { io, addresses: &self.addresses });
        self.core.tick(now, &mut ClientSockets(io));
        self.carry_out(io);
    }

    fn next_deadline(&self) -> Option<Instant> {
        [self.core.next_deadline(), self.bus.next_deadline()].into_iter().flatten().min()
    }

    fn has_background(&self) -> bool {
        self.core.has_background()
    }

    fn quantum(&mut self, now: Instant, io: &mut Io) -> bool {
        if self.core.engine().wants_buffer() {
            self.core.engine_mut().give_buffer(io.buffer(PULL_BUFFER_BYTES));
        }
        let did = self.core.quantum(now, &mut ClientSockets(io));
        self.carry_out(io);
        while let Some(buffer) = self.core.engine_mut().spare_buffer() {
            io.recycle(buffer);
        }
        did
    }

    fn background_demand(&self) -> BackgroundDemand {
        self.core.engine().background_demand()
    }

    fn sleep(&mut self) {
        self.core.sleep();
    }

    fn wake(&mut self) {}
}

/// Concurrent disk reads per reactor.
const READERS: usize = 4;

/// Bytes of a pull reply of default size, including the bucket that completes it.
const PULL_BUFFER_BYTES: usize = 72 << 10;
