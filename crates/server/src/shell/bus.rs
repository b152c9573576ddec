//! The bus of one reactor: its connections to other servers. [`BusLinks`] decides; this module
//! moves its bytes.

use super::Shared;
use super::addresses::AddressBook;
use handshake::Credentials;
use links::{BusDestination, BusEffect, BusEnd, BusEvent, BusLinks};
use node::{Node, Payload, Route, Sending, To};
use runtime::{Class, ConnectTag, Input, Io};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use types::{ConnectionId, Instant, ServerId};
use wire::Corrupt;
use wire::frame::{HEADER_BYTES, Header};
use wire::handshake::Nonce;
use wire::peer::PeerMessage;

/// A message and the raw bytes that follow it.
type BusMessage = (PeerMessage, Vec<u8>);

/// The bus connections of one reactor.
pub(super) struct Bus {
    links: BusLinks<BusMessage>,
    /// Effects being executed; kept for its memory.
    effects: Vec<BusEffect<BusMessage>>,
    addresses: Arc<AddressBook>,
    /// Counter of messages that were dropped because they do not fit a frame.
    too_long: Arc<AtomicU64>,
}

/// A received message.
pub(super) struct Arrived {
    pub(super) from: ServerId,
    pub(super) route: Route,
    pub(super) message: PeerMessage,
    pub(super) payload: Payload,
}

impl Bus {
    pub(super) fn new(shared: &Shared, credentials: Credentials) -> Bus {
        let Shared { node, operators, addresses } = shared;
        Bus {
            links: BusLinks::new(credentials, node.cluster(), node.me()),
            effects: Vec::new(),
            addresses: addresses.clone(),
            too_long: operators.frames_too_long.clone(),
        }
    }

    /// Starts address lookups for all servers of the map, before there are messages for them.
    pub(super) fn look_up_addresses(&self, node: &Node) {
        for server in &node.map().servers {
            self.addresses.look_up(&server.host);
        }
    }

    /// Begins the handshake of a connection accepted on the bus port.
    pub(super) fn accepted(&mut self, now: Instant, connection: ConnectionId, io: &mut Io) {
        let Some(nonce) = new_nonce() else { return io.close(connection) };
        self.handle(now, BusEvent::Accepted(connection, nonce), io);
    }

    /// Begins the handshake of a connection that this reactor opened.
    pub(super) fn connected(&mut self, now: Instant, connection: ConnectionId, io: &mut Io) {
        let Some(nonce) = new_nonce() else { return io.close(connection) };
        self.handle(now, BusEvent::Connected(connection, nonce), io);
    }

    /// Returns when [`Bus::tick`] is due, if no event happens before.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.links.next_deadline()
    }

    pub(super) fn tick(&mut self, now: Instant, io: &mut Io) {
        if self.next_deadline().is_some_and(|deadline| deadline <= now) {
            self.handle(now, BusEvent::Tick, io);
        }
    }

    /// Forgets a closed connection. Returns its server, if this reactor had opened it.
    pub(super) fn closed(
        &mut self,
        now: Instant,
        connection: ConnectionId,
        node: &Node,
    ) -> Option<ServerId> {
        self.links.handle(now, BusEvent::Closed(connection), &mut self.effects);
        let Some(BusEffect::Lost { server, unreachable }) = self.effects.pop() else { return None };
        let map = node.map();
        if let Some(address) = unreachable
            && let Some(info) = map.servers.iter().find(|info| info.id == server)
        {
            self.addresses.failed(&info.host, address);
        }
        Some(server)
    }

    /// Sends a message, or drops it if that is impossible now. Important ones are repeated.
    pub(super) fn send(&mut self, sending: Sending, now: Instant, node: &Node, io: &mut Io) {
        let Sending { to, is_priority, message, payload } = sending;
        let connection = match to {
            To::Back(route) => ConnectionId::from_number(route.0),
            To::Server(server) => {
                let to = BusDestination { server, is_priority };
                match self.connection_to(to, now, node, io) {
                    Some(connection) => connection,
                    None => return,
                }
            }
        };
        let (payload_bytes, backlog) = (payload.len(), io.output_backlog(connection));
        let message = (message, payload);
        self.handle(now, BusEvent::Send { connection, message, payload_bytes, backlog }, io);
    }

    fn connection_to(
        &mut self,
        to: BusDestination,
        now: Instant,
        node: &Node,
        io: &mut Io,
    ) -> Option<ConnectionId> {
        if let Some(connection) = self.links.connection_to(to) {
            return Some(connection);
        }
        let map = node.map();
        let info = map.servers.iter().find(|info| info.id == to.server)?;
        // Messages are dropped until the address is known.
        let address = self.addresses.look_up(&info.host)?;
        let class = if to.is_priority { Class::Priority } else { Class::Bus };
        let connection = io.connect(SocketAddr::new(address, info.bus_port), ConnectTag(0), class);
        self.handle(now, BusEvent::Connecting(connection, to, address), io);
        Some(connection)
    }

    /// Takes the next complete message off a connection's input, or returns `None` if there is
    /// none or the connection is being closed.
    pub(super) fn receive(
        &mut self,
        now: Instant,
        connection: ConnectionId,
        input: &mut Input,
        io: &mut Io,
    ) -> Option<Arrived> {
        let mut arrived = None;
        let mut goes_on = true;
        while goes_on && arrived.is_none() {
            let event = BusEvent::Input(connection, input.bytes());
            self.links.handle(now, event, &mut self.effects);
            goes_on = false;
            let mut effects = std::mem::take(&mut self.effects);
            for effect in effects.drain(..) {
                match effect {
                    BusEffect::Want(bytes) => input.want(bytes),
                    BusEffect::Consume(bytes) => {
                        input.consume(bytes);
                        goes_on = true;
                    }
                    BusEffect::Deliver(from, header) => {
                        let message = take_message(&header, input);
                        let route = Route(connection.number());
                        let received =
                            |(message, payload)| Arrived { from, route, message, payload };
                        match message {
                            Ok(message) => arrived = Some(received(message)),
                            Err(error) => close(connection, error.into(), io),
                        }
                    }
                    other => {
                        goes_on &= !matches!(other, BusEffect::CloseAfterFlush(..));
                        self.execute(other, io);
                    }
                }
            }
            self.effects = effects;
        }
        arrived
    }

    fn handle(&mut self, now: Instant, event: BusEvent<'_, BusMessage>, io: &mut Io) {
        self.links.handle(now, event, &mut self.effects);
        let mut effects = std::mem::take(&mut self.effects);
        effects.drain(..).for_each(|effect| self.execute(effect, io));
        self.effects = effects;
    }

    fn execute(&self, effect: BusEffect<BusMessage>, io: &mut Io) {
        match effect {
            BusEffect::Write(connection, frame) => io.output(connection).extend_from_slice(&frame),
            BusEffect::Send(connection, (message, payload)) => {
                self.write(connection, &message, payload, io);
            }
            BusEffect::Prioritize(connection) => io.set_class(connection, Class::Priority),
            BusEffect::Close(connection, end) => close(connection, end, io),
            BusEffect::CloseAfterFlush(connection, end) => {
                tracing::warn!(%end, "bus handshake failed");
                io.close_after_flush(connection);
            }
            BusEffect::Want(_)
            | BusEffect::Consume(_)
            | BusEffect::Deliver(..)
            | BusEffect::Lost { .. } => {
                unreachable!("an effect of input or of a closed connection")
            }
        }
    }

    /// Appends a message to a connection's output, or drops it if it does not fit a frame. Message
    /// sizes are bounded where messages are built, so this is a bug here. The connection stays
    /// open, because other messages depend on it.
    fn write(
        &self,
        connection: ConnectionId,
        message: &PeerMessage,
        payload: Vec<u8>,
        io: &mut Io,
    ) {
        match wire::frame::encode(message, payload.len(), io.output(connection)) {
            Ok(()) if payload.is_empty() => {}
            Ok(()) => io.send_owned(connection, payload),
            Err(error) => {
                self.too_long.fetch_add(1, Ordering::Relaxed);
                tracing::error!(%error, "message to a server dropped, please report this");
            }
        }
    }
}

fn close(connection: ConnectionId, end: BusEnd, io: &mut Io) {
    match end {
        BusEnd::NotConnected => tracing::debug!("connection attempt to a server timed out"),
        end => tracing::warn!(%end, "closing bus connection"),
    }
    io.close(connection);
}

/// Takes a frame off the input and returns its message and payload.
fn take_message(header: &Header, input: &mut Input) -> Result<(PeerMessage, Payload), Corrupt> {
    let start = HEADER_BYTES + header.message_bytes;
    let message = header.message(&input.bytes()[HEADER_BYTES..start])?;
    if header.payload_bytes == 0 {
        input.consume(header.frame_bytes());
        return Ok((message, Payload::default()));
    }
    Ok((message, Payload { buffer: input.take(header.frame_bytes()), start }))
}

/// Draws a nonce, or logs the error of the operating system.
fn new_nonce() -> Option<Nonce> {
    handshake::new_nonce()
        .inspect_err(
            |error: &io::Error| tracing::error!(%error, "cannot read random bytes from the system"),
        )
        .ok()
}
