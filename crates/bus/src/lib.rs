//! The bus of one reactor: its connections to other servers, without the sockets.
//!
//! [`BusLinks`] decides; [`Bus`] turns messages into frames and back. The sockets are a trait with
//! two implementations: those of the operating system in a server, and simulated ones in the
//! simulator. Design: `docs/design/links.md`.
//!
//! Invariants:
//! - No socket, no clock, no randomness: times and nonces are arguments or come from [`Sockets`].
//! - Each message is sent at most once. One that cannot be sent is dropped, because the protocols
//!   repeat those that matter.

#![warn(clippy::expect_used, clippy::unwrap_used)]

use handshake::Credentials;
use links::{BusDestination, BusEffect, BusEnd, BusEvent, BusLinks};
use node::{Node, Payload, Route, Sending, To};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use types::{ConnectionId, Instant, ServerId};
use wire::Corrupt;
use wire::control::ServerInfo;
use wire::frame::{HEADER_BYTES, Header};
use wire::handshake::Nonce;
use wire::peer::PeerMessage;

/// A message and the raw bytes that follow it.
type BusMessage = (PeerMessage, Vec<u8>);

/// The sockets of a reactor, as its bus uses them.
pub trait Sockets {
    /// Begins to connect to the bus port of a server. Returns the connection and the address that
    /// is tried, or `None` if no address of the server is known yet.
    fn connect(&mut self, to: &ServerInfo, is_priority: bool) -> Option<(ConnectionId, IpAddr)>;

    /// Records that a server could not be reached at an address.
    fn avoid(&mut self, server: &ServerInfo, address: IpAddr);

    /// Returns the buffer to which frames for a connection are appended.
    fn output(&mut self, connection: ConnectionId) -> &mut Vec<u8>;

    /// Sends the payload of the frame that was appended last.
    fn send_payload(&mut self, connection: ConnectionId, payload: Vec<u8>);

    /// Returns the bytes of a connection that the operating system has not accepted yet.
    fn backlog(&self, connection: ConnectionId) -> usize;

    /// Serves a connection before others.
    fn prioritize(&mut self, connection: ConnectionId);

    /// Closes a connection. [`Bus::closed`] follows.
    fn close(&mut self, connection: ConnectionId);

    /// Closes a connection after everything written has been sent.
    fn close_after_flush(&mut self, connection: ConnectionId);

    /// Draws a number that was never used in a handshake. `None` if that fails; the failure has
    /// been logged.
    fn draw_nonce(&mut self) -> Option<Nonce>;
}

/// The received bytes of a connection that have not been handled.
pub trait ReceivedBytes {
    /// Returns the bytes.
    fn bytes(&self) -> &[u8];

    /// Postpones the next call of [`Bus::receive`] until this many bytes are present.
    fn want(&mut self, bytes: usize);

    /// Removes the first bytes.
    fn consume(&mut self, bytes: usize);

    /// Removes and returns the first bytes.
    fn take(&mut self, bytes: usize) -> Vec<u8>;
}

/// A received message.
#[derive(Debug)]
pub struct Arrived {
    /// The server that sent it.
    pub from: ServerId,
    /// The way back over the same connection.
    pub route: Route,
    /// The message.
    pub message: PeerMessage,
    /// The bytes that follow it.
    pub payload: Payload,
}

/// The bus connections of one reactor.
pub struct Bus {
    links: BusLinks<BusMessage>,
    /// Effects being executed; kept for its memory.
    effects: Vec<BusEffect<BusMessage>>,
    /// Counter of messages that were dropped because they do not fit a frame.
    too_long: Arc<AtomicU64>,
}

impl Bus {
    /// Begins without connections. `too_long` counts messages that were dropped because they do
    /// not fit a frame.
    pub fn new(node: &Node, credentials: Credentials, too_long: Arc<AtomicU64>) -> Bus {
        let links = BusLinks::new(credentials, node.cluster(), node.me());
        Bus { links, effects: Vec::new(), too_long }
    }

    /// Drops messages above this many unsent bytes of a connection: see
    /// [`BusLinks::limit_backlog`].
    pub fn limit_backlog(&mut self, bytes: usize) {
        self.links.limit_backlog(bytes);
    }

    /// Begins the handshake of a connection that was accepted on the bus port.
    pub fn accepted(&mut self, now: Instant, connection: ConnectionId, sockets: &mut impl Sockets) {
        let Some(nonce) = sockets.draw_nonce() else { return sockets.close(connection) };
        self.handle(now, BusEvent::Accepted(connection, nonce), sockets);
    }

    /// Begins the handshake of a connection that this reactor opened.
    pub fn connected(
        &mut self,
        now: Instant,
        connection: ConnectionId,
        sockets: &mut impl Sockets,
    ) {
        let Some(nonce) = sockets.draw_nonce() else { return sockets.close(connection) };
        self.handle(now, BusEvent::Connected(connection, nonce), sockets);
    }

    /// Returns when [`Bus::tick`] is due, if no event happens before.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.links.next_deadline()
    }

    /// Closes the connections whose time limits have passed.
    pub fn tick(&mut self, now: Instant, sockets: &mut impl Sockets) {
        if self.next_deadline().is_some_and(|deadline| deadline <= now) {
            self.handle(now, BusEvent::Tick, sockets);
        }
    }

    /// Forgets a connection that has ended or was not established. Returns its server, if this
    /// reactor had opened it.
    pub fn closed(
        &mut self,
        now: Instant,
        connection: ConnectionId,
        node: &Node,
        sockets: &mut impl Sockets,
    ) -> Option<ServerId> {
        self.links.handle(now, BusEvent::Closed(connection), &mut self.effects);
        let Some(BusEffect::Lost { server, unreachable }) = self.effects.pop() else { return None };
        let map = node.map();
        if let Some(address) = unreachable
            && let Some(info) = map.servers.iter().find(|info| info.id == server)
        {
            sockets.avoid(info, address);
        }
        Some(server)
    }

    /// Sends a message, or drops it if that is impossible now.
    pub fn send(
        &mut self,
        now: Instant,
        sending: Sending,
        node: &Node,
        sockets: &mut impl Sockets,
    ) {
        let Sending { to, is_priority, message, payload } = sending;
        let connection = match to {
            To::Back(route) => ConnectionId::from_number(route.0),
            To::Server(server) => {
                let to = BusDestination { server, is_priority };
                match self.connection_to(now, to, node, sockets) {
                    Some(connection) => connection,
                    None => return,
                }
            }
        };
        let (payload_bytes, backlog) = (payload.len(), sockets.backlog(connection));
        let message = (message, payload);
        let event = BusEvent::Send { connection, message, payload_bytes, backlog };
        self.handle(now, event, sockets);
    }

    fn connection_to(
        &mut self,
        now: Instant,
        to: BusDestination,
        node: &Node,
        sockets: &mut impl Sockets,
    ) -> Option<ConnectionId> {
        if let Some(connection) = self.links.connection_to(to) {
            return Some(connection);
        }
        let map = node.map();
        let info = map.servers.iter().find(|info| info.id == to.server)?;
        let (connection, address) = sockets.connect(info, to.is_priority)?;
        self.handle(now, BusEvent::Connecting(connection, to, address), sockets);
        Some(connection)
    }

    /// Takes the next complete message off a connection's input. Returns `None` if there is none
    /// or the connection is being closed.
    pub fn receive(
        &mut self,
        now: Instant,
        connection: ConnectionId,
        input: &mut impl ReceivedBytes,
        sockets: &mut impl Sockets,
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
                            Err(error) => close(connection, error.into(), sockets),
                        }
                    }
                    other => {
                        goes_on &= !matches!(other, BusEffect::CloseAfterFlush(..));
                        self.execute(other, sockets);
                    }
                }
            }
            self.effects = effects;
        }
        arrived
    }

    fn handle(
        &mut self,
        now: Instant,
        event: BusEvent<'_, BusMessage>,
        sockets: &mut impl Sockets,
    ) {
        self.links.handle(now, event, &mut self.effects);
        let mut effects = std::mem::take(&mut self.effects);
        effects.drain(..).for_each(|effect| self.execute(effect, sockets));
        self.effects = effects;
    }

    fn execute(&self, effect: BusEffect<BusMessage>, sockets: &mut impl Sockets) {
        match effect {
            BusEffect::Write(connection, frame) => {
                sockets.output(connection).extend_from_slice(&frame);
            }
            BusEffect::Send(connection, (message, payload)) => {
                self.write(connection, &message, payload, sockets);
            }
            BusEffect::Prioritize(connection) => sockets.prioritize(connection),
            BusEffect::Close(connection, end) => close(connection, end, sockets),
            BusEffect::CloseAfterFlush(connection, end) => {
                tracing::warn!(%end, "bus handshake failed");
                sockets.close_after_flush(connection);
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
        sockets: &mut impl Sockets,
    ) {
        match wire::frame::encode(message, payload.len(), sockets.output(connection)) {
            Ok(()) if payload.is_empty() => {}
            Ok(()) => sockets.send_payload(connection, payload),
            Err(error) => {
                self.too_long.fetch_add(1, Ordering::Relaxed);
                tracing::error!(%error, "message to a server dropped, please report this");
            }
        }
    }
}

fn close(connection: ConnectionId, end: BusEnd, sockets: &mut impl Sockets) {
    match end {
        BusEnd::NotConnected => tracing::debug!("connection attempt to a server timed out"),
        end => tracing::warn!(%end, "closing bus connection"),
    }
    sockets.close(connection);
}

/// Takes a frame off the input and returns its message and payload.
fn take_message(
    header: &Header,
    input: &mut impl ReceivedBytes,
) -> Result<(PeerMessage, Payload), Corrupt> {
    let start = HEADER_BYTES + header.message_bytes;
    let message = header.message(&input.bytes()[HEADER_BYTES..start])?;
    if header.payload_bytes == 0 {
        input.consume(header.frame_bytes());
        return Ok((message, Payload::default()));
    }
    Ok((message, Payload { buffer: input.take(header.frame_bytes()), start }))
}
