//! The bus of one reactor: its connections to other servers.
//!
//! A reactor opens its own connections to a server when it first sends to it: one for bulk and one
//! for priority traffic. Requests leave on them, and each reply returns on the connection of its
//! request. Every connection begins with a [handshake](handshake). This module only transports the
//! handshake's messages, and exchanges nothing else before it is complete.

use super::Shared;
use super::addresses::AddressBook;
use handshake::{Accepting, Credentials, Handshake, HandshakeStep, Opening, SERVED_BY_SERVERS};
use node::{Node, Payload, Route, Sending, To};
use runtime::{Class, ConnectTag, Input, Io};
use serde::Serialize;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use types::ConnectionId;
use types::{ClusterId, Instant, ServerId};
use wire::Corrupt;
use wire::frame::{HEADER_BYTES, Header};
use wire::handshake::{ConnectionPurpose, HANDSHAKE_BYTES_MAX, HANDSHAKE_MAX, HandshakeMessage};
use wire::peer::PeerMessage;

/// Unsent bytes of a connection above which messages are dropped. The peer is stuck, and the
/// protocols repeat important messages.
const BACKLOG_MAX: usize = 64 << 20;

/// Time limit for connecting, after which the next message starts a new connection. The operating
/// system alone would retry a lost packet for two minutes.
const CONNECT_MAX: Duration = Duration::from_secs(1);

/// Most messages that wait for a connection, whatever their size.
const WAITING_MAX: usize = 65_536;

/// Most accepted connections with an incomplete handshake. A further one replaces the oldest. A
/// handshake takes a server one millisecond.
const UNPROVEN_MAX: usize = 256;

/// The bus connections of one reactor.
pub(super) struct Bus {
    credentials: Credentials,
    cluster: ClusterId,
    server: ServerId,
    links: BTreeMap<ConnectionId, BusConnection>,
    /// Connections that this reactor opened, by server and by priority.
    opened: BTreeMap<(ServerId, bool), ConnectionId>,
    /// Accepted connections with an incomplete handshake and their deadlines, in order of time.
    accepted: VecDeque<(Instant, ConnectionId)>,
    /// The same for connections that this reactor opened.
    opening: VecDeque<(Instant, ConnectionId)>,
    /// Connections being established and their deadlines, in order of time.
    connecting: VecDeque<(Instant, ConnectionId)>,
    addresses: Arc<AddressBook>,
    /// Counter of messages that were dropped because they do not fit a frame.
    too_long: Arc<AtomicU64>,
}

struct BusConnection {
    state: BusConnectionState,
    /// Server and priority, if this reactor opened the connection.
    opened_to: Option<(ServerId, bool)>,
}

enum BusConnectionState {
    /// Not established yet, with the address being tried.
    Connecting(IpAddr, QueuedMessages),
    /// Established, with an incomplete handshake.
    Proving(Box<Handshake>, QueuedMessages),
    /// In use.
    Open(ServerId),
}

/// Messages that wait for the end of the handshake.
#[derive(Default)]
struct QueuedMessages {
    messages: Vec<(PeerMessage, Vec<u8>)>,
    payload_bytes: usize,
}

impl QueuedMessages {
    /// Adds a message, unless too much is waiting already.
    fn push(&mut self, message: PeerMessage, payload: Vec<u8>) {
        if self.payload_bytes < BACKLOG_MAX && self.messages.len() < WAITING_MAX {
            self.payload_bytes += payload.len();
            self.messages.push((message, payload));
        }
    }
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
            credentials,
            cluster: node.cluster(),
            server: node.me(),
            links: BTreeMap::new(),
            opened: BTreeMap::new(),
            accepted: VecDeque::new(),
            opening: VecDeque::new(),
            connecting: VecDeque::new(),
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
        let Some(nonce) = drawn(handshake::new_nonce()) else { return io.close(connection) };
        if self.accepted.len() >= UNPROVEN_MAX
            && let Some((_, oldest)) = self.accepted.pop_front()
        {
            tracing::warn!(
                "{UNPROVEN_MAX} bus connections are unauthenticated, closing the oldest"
            );
            io.close(oldest);
        }
        let (cluster, server) = (Some(self.cluster), Some(self.server));
        let here = Accepting { purposes: SERVED_BY_SERVERS, cluster, server };
        let handshake = Box::new(Handshake::accept(&self.credentials, here, nonce));
        let state = BusConnectionState::Proving(handshake, QueuedMessages::default());
        self.accepted.push_back((now + HANDSHAKE_MAX, connection));
        self.links.insert(connection, BusConnection { state, opened_to: None });
    }

    /// Returns when [`Bus::tick`] is due, if no event happens before.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let first = |queue: &VecDeque<(Instant, _)>| queue.front().map(|(until, _)| *until);
        [&self.accepted, &self.opening, &self.connecting].into_iter().filter_map(first).min()
    }

    /// Closes connections that exceed the time limit for connecting or for the handshake.
    pub(super) fn tick(&mut self, now: Instant, io: &mut Io) {
        while let Some((_, connection)) = self.connecting.pop_front_if(|(until, _)| *until <= now) {
            let link = self.links.get(&connection);
            if link.is_some_and(|link| matches!(link.state, BusConnectionState::Connecting(..))) {
                tracing::debug!("connection attempt to a server timed out");
                io.close(connection);
            }
        }
        for queue in [&mut self.accepted, &mut self.opening] {
            while let Some((_, connection)) = queue.pop_front_if(|(until, _)| *until <= now) {
                tracing::warn!("bus handshake timed out, closing connection");
                io.close(connection);
            }
        }
    }

    /// Removes the deadline of a connection's handshake.
    fn forget_deadline(&mut self, connection: ConnectionId) {
        for queue in [&mut self.accepted, &mut self.opening] {
            queue.retain(|(_, waiting)| *waiting != connection);
        }
    }

    /// Begins the handshake of a connection that this reactor opened.
    pub(super) fn connected(&mut self, now: Instant, connection: ConnectionId, io: &mut Io) {
        let Some(link) = self.links.get_mut(&connection) else { return io.close(connection) };
        let Some((server, is_priority)) = link.opened_to else { return };
        let Some(nonce) = drawn(handshake::new_nonce()) else { return io.close(connection) };
        let opening = Opening {
            purpose: if is_priority { ConnectionPurpose::Priority } else { ConnectionPurpose::Bus },
            cluster: Some(self.cluster),
            server: Some(self.server),
            expected: Some(server),
        };
        let (handshake, first) = Handshake::open(&self.credentials, opening, nonce);
        if let BusConnectionState::Connecting(_, waiting) = &mut link.state {
            link.state = BusConnectionState::Proving(Box::new(handshake), std::mem::take(waiting));
            self.opening.push_back((now + HANDSHAKE_MAX, connection));
            self.write(connection, &first, Vec::new(), io);
        }
    }

    /// Forgets a closed connection. Returns its server, if this reactor had opened it.
    pub(super) fn closed(&mut self, connection: ConnectionId, node: &Node) -> Option<ServerId> {
        self.forget_deadline(connection);
        let link = self.links.remove(&connection)?;
        let to = link.opened_to?;
        if let BusConnectionState::Connecting(address, _) = link.state
            && let Some(info) = node.map().servers.iter().find(|info| info.id == to.0)
        {
            self.addresses.failed(&info.host, address);
        }
        if self.opened.get(&to) == Some(&connection) {
            self.opened.remove(&to);
        }
        Some(to.0)
    }

    /// Sends a message, or drops it if that is impossible now. Important ones are repeated.
    pub(super) fn send(&mut self, sending: Sending, now: Instant, node: &Node, io: &mut Io) {
        let Sending { to, is_priority, message, payload } = sending;
        let connection = match to {
            To::Back(route) => ConnectionId::from_number(route.0),
            To::Server(server) => match self.connection_to((server, is_priority), now, node, io) {
                Some(connection) => connection,
                None => return,
            },
        };
        let is_stuck = io.output_backlog(connection) >= BACKLOG_MAX;
        match self.links.get_mut(&connection).map(|link| &mut link.state) {
            Some(
                BusConnectionState::Connecting(_, waiting)
                | BusConnectionState::Proving(_, waiting),
            ) => {
                waiting.push(message, payload);
            }
            Some(BusConnectionState::Open(_)) if is_stuck => {}
            Some(BusConnectionState::Open(_)) => self.write(connection, &message, payload, io),
            None => {}
        }
    }

    fn connection_to(
        &mut self,
        to: (ServerId, bool),
        now: Instant,
        node: &Node,
        io: &mut Io,
    ) -> Option<ConnectionId> {
        if let Some(connection) = self.opened.get(&to) {
            return Some(*connection);
        }
        let (server, is_priority) = to;
        let map = node.map();
        let info = map.servers.iter().find(|info| info.id == server)?;
        // Messages are dropped until the address is known.
        let address = self.addresses.look_up(&info.host)?;
        let class = if is_priority { Class::Priority } else { Class::Bus };
        let connection = io.connect(SocketAddr::new(address, info.bus_port), ConnectTag(0), class);
        self.connecting.push_back((now + CONNECT_MAX, connection));
        let state = BusConnectionState::Connecting(address, QueuedMessages::default());
        self.links.insert(connection, BusConnection { state, opened_to: Some(to) });
        self.opened.insert(to, connection);
        Some(connection)
    }

    /// Takes the next complete message off a connection's input, or returns `None`. After an error,
    /// the caller must close the connection.
    pub(super) fn receive(
        &mut self,
        connection: ConnectionId,
        input: &mut Input,
        io: &mut Io,
    ) -> io::Result<Option<Arrived>> {
        loop {
            let Some(header) = input.bytes().first_chunk::<HEADER_BYTES>() else {
                input.want(HEADER_BYTES);
                return Ok(None);
            };
            let header = Header::parse(header).map_err(broken)?;
            let link = self.links.get_mut(&connection).ok_or_else(|| broken(UNEXPECTED))?;
            let from = match link.state {
                BusConnectionState::Open(from) => Some(from),
                BusConnectionState::Proving(..)
                    if header.frame_bytes() > HEADER_BYTES + HANDSHAKE_BYTES_MAX =>
                {
                    return Err(broken(Corrupt::Invalid { what: "length of handshake" }));
                }
                BusConnectionState::Proving(..) => None,
                BusConnectionState::Connecting(..) => return Err(broken(UNEXPECTED)),
            };
            if input.len() < header.frame_bytes() {
                input.want(header.frame_bytes());
                return Ok(None);
            }
            let message = &input.bytes()[HEADER_BYTES..HEADER_BYTES + header.message_bytes];
            let Some(from) = from else {
                let message: HandshakeMessage = header.message(message).map_err(broken)?;
                input.consume(header.frame_bytes());
                match self.prove(connection, message, io)? {
                    true => continue,
                    false => return Ok(None),
                }
            };
            let message: PeerMessage = header.message(message).map_err(broken)?;
            let payload = take_payload(&header, input);
            let route = Route(connection.number());
            return Ok(Some(Arrived { from, route, message, payload }));
        }
    }

    /// Processes a message of the handshake. Returns false if the handshake failed: the connection
    /// then closes after the refusal was sent.
    fn prove(
        &mut self,
        connection: ConnectionId,
        message: HandshakeMessage,
        io: &mut Io,
    ) -> io::Result<bool> {
        let link = self.links.get_mut(&connection).ok_or_else(|| broken(UNEXPECTED))?;
        let BusConnectionState::Proving(handshake, waiting) = &mut link.state else {
            return Err(broken(UNEXPECTED));
        };
        match handshake.handle(message) {
            HandshakeStep::Reply(reply) => self.write(connection, &reply, Vec::new(), io),
            HandshakeStep::Proven { peer, last } => {
                let server = peer.party.server.ok_or_else(|| broken(UNEXPECTED))?;
                let QueuedMessages { messages, .. } = std::mem::take(waiting);
                link.state = BusConnectionState::Open(server);
                if link.opened_to.is_none() && peer.purpose == ConnectionPurpose::Priority {
                    io.set_class(connection, Class::Priority);
                }
                if let Some(last) = last {
                    self.write(connection, &last, Vec::new(), io);
                }
                self.forget_deadline(connection);
                for (message, payload) in messages {
                    self.write(connection, &message, payload, io);
                }
            }
            HandshakeStep::Refused { error, refusal } => {
                tracing::warn!(%error, "bus handshake failed");
                if let Some(refusal) = refusal {
                    self.write(connection, &refusal, Vec::new(), io);
                }
                io.close_after_flush(connection);
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Appends a message to a connection's output, or drops it if it does not fit a frame. Message
    /// sizes are bounded where messages are built, so this is a bug here. The connection stays
    /// open, because other messages depend on it.
    fn write(
        &self,
        connection: ConnectionId,
        message: &impl Serialize,
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

/// Takes a frame off the input and returns its payload. The caller has parsed the message.
fn take_payload(header: &Header, input: &mut Input) -> Payload {
    if header.payload_bytes == 0 {
        input.consume(header.frame_bytes());
        return Payload::default();
    }
    let start = HEADER_BYTES + header.message_bytes;
    Payload { buffer: input.take(header.frame_bytes()), start }
}

/// Unwraps random bytes from the operating system, or logs an error.
fn drawn<T>(random: io::Result<T>) -> Option<T> {
    random
        .inspect_err(|error| tracing::error!(%error, "cannot read random bytes from the system"))
        .ok()
}

fn broken(corrupt: Corrupt) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, corrupt)
}

const UNEXPECTED: Corrupt = Corrupt::Invalid { what: "order of messages" };

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_for_a_connection_has_a_limit() {
        let message = || PeerMessage::Released { replicas: Vec::new() };
        let mut few = QueuedMessages::default();
        for _ in 0..100 {
            few.push(message(), vec![0; BACKLOG_MAX / 4]);
        }
        assert_eq!(few.messages.len(), 4);
        let mut many = QueuedMessages::default();
        (0..WAITING_MAX + 5).for_each(|_| many.push(message(), Vec::new()));
        assert_eq!(many.messages.len(), WAITING_MAX);
    }
}
