//! The bus connections of one reactor. See `docs/design/links.md`.
//!
//! A reactor opens its own connections to a server: one for bulk and one for priority traffic.
//! Requests leave on them, and each reply returns on the connection of its request.

use crate::frames::{FrameLimits, NextFrame, encoded_handshake, next_frame};
use crate::link::CONNECT_MAX;
use crate::unproven::UnprovenConnections;
use handshake::{
    Accepting, Credentials, Handshake, HandshakeError, HandshakeStep, Opening, SERVED_BY_SERVERS,
};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use types::{ClusterId, ConnectionId, Instant, ServerId};
use wire::Corrupt;
use wire::frame::{HEADER_BYTES, Header};
use wire::handshake::{ConnectionPurpose, HANDSHAKE_MAX, Nonce};

/// Unsent bytes of a connection above which messages are dropped. The peer is stuck, and the
/// protocols repeat important messages.
const BACKLOG_MAX: usize = 64 << 20;

/// Most messages that wait for a connection, whatever their size.
const WAITING_MAX: usize = 65_536;

/// The purpose of a connection that a reactor opens: at most one at a time for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BusDestination {
    /// The server at the other end.
    pub server: ServerId,
    /// Set for traffic that precedes all other.
    pub is_priority: bool,
}

/// An input of the connections of a reactor. `M` is a message with its payload.
pub enum BusEvent<'b, M> {
    /// A connection was accepted. The nonce must be new.
    Accepted(ConnectionId, Nonce),
    /// A connection is being established to an address of a server. Permitted only if there is
    /// none ([`BusLinks::connection_to`]).
    Connecting(ConnectionId, BusDestination, IpAddr),
    /// A connection that was being established is so now. The nonce must be new.
    Connected(ConnectionId, Nonce),
    /// The unconsumed bytes of a connection. The shell repeats the event until an effect wants
    /// more bytes or closes the connection.
    Input(ConnectionId, &'b [u8]),
    /// A message is to be sent.
    Send {
        /// The connection.
        connection: ConnectionId,
        /// The message.
        message: M,
        /// Bytes of its payload.
        payload_bytes: usize,
        /// Unsent bytes of the connection.
        backlog: usize,
    },
    /// A connection has ended, or could not be established.
    Closed(ConnectionId),
    /// Time has passed; see [`BusLinks::next_deadline`].
    Tick,
}

/// An output of the connections of a reactor. The shell executes effects in order.
#[derive(Debug, PartialEq)]
pub enum BusEffect<M> {
    /// Write this frame.
    Write(ConnectionId, Vec<u8>),
    /// Write this message. Messages that cannot be sent are dropped; important ones are repeated.
    Send(ConnectionId, M),
    /// Call again when this many bytes of input are present.
    Want(usize),
    /// Remove these bytes from the input: they are handled.
    Consume(usize),
    /// Take the frame with this header off the input: it is a message of this server.
    Deliver(ServerId, Header),
    /// Serve the connection before others.
    Prioritize(ConnectionId),
    /// Close the connection. [`BusEvent::Closed`] follows.
    Close(ConnectionId, BusEnd),
    /// Close the connection after everything written has been sent.
    CloseAfterFlush(ConnectionId, BusEnd),
    /// A connection that this reactor opened to the server has ended. `unreachable` is the address
    /// to which it was not established.
    Lost {
        /// The server.
        server: ServerId,
        /// Address to avoid for some time.
        unreachable: Option<IpAddr>,
    },
}

/// The reason for closing a bus connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BusEnd {
    /// The connection was not established in time.
    #[error("the server cannot be reached")]
    NotConnected,
    /// The handshake was not complete in time.
    #[error("the handshake timed out")]
    NotProven,
    /// A newer connection with an incomplete handshake has displaced it.
    #[error("too many connections are unauthenticated")]
    Displaced,
    /// One side has refused the handshake.
    #[error(transparent)]
    Refused(#[from] HandshakeError),
    /// The received bytes are invalid.
    #[error(transparent)]
    Corrupt(#[from] Corrupt),
}

/// The bus connections of one reactor.
pub struct BusLinks<M> {
    credentials: Credentials,
    cluster: ClusterId,
    server: ServerId,
    links: BTreeMap<ConnectionId, BusLink<M>>,
    /// Connections that this reactor opened.
    opened: BTreeMap<BusDestination, ConnectionId>,
    /// Accepted connections with an incomplete handshake.
    unproven: UnprovenConnections<ConnectionId>,
    /// Time limits of connections that are not open, in order of time.
    limits: BTreeSet<(Instant, ConnectionId)>,
    /// Unsent bytes of a connection above which messages are dropped.
    backlog_max: usize,
}

struct BusLink<M> {
    state: BusLinkState<M>,
    /// Set if this reactor opened the connection.
    opened_to: Option<BusDestination>,
    /// Time limit of the state. An entry of [`BusLinks::limits`].
    limit: Option<Instant>,
}

enum BusLinkState<M> {
    /// Not established yet, with the address being tried.
    Connecting(IpAddr, WaitingMessages<M>),
    /// Established, with an incomplete handshake.
    Proving(Box<Handshake>, WaitingMessages<M>),
    /// In use.
    Open(ServerId),
}

/// Messages that wait for the end of the handshake.
struct WaitingMessages<M> {
    messages: Vec<M>,
    payload_bytes: usize,
}

impl<M> WaitingMessages<M> {
    fn new() -> WaitingMessages<M> {
        WaitingMessages { messages: Vec::new(), payload_bytes: 0 }
    }

    /// Adds a message, unless too much is waiting already.
    fn push(&mut self, message: M, payload_bytes: usize, backlog_max: usize) {
        if self.payload_bytes < backlog_max && self.messages.len() < WAITING_MAX {
            self.payload_bytes += payload_bytes;
            self.messages.push(message);
        }
    }
}

const OUT_OF_ORDER: BusEnd = BusEnd::Corrupt(Corrupt::Invalid { what: "order of messages" });

impl<M> BusLinks<M> {
    /// Begins without connections, as a server of a cluster.
    pub fn new(credentials: Credentials, cluster: ClusterId, server: ServerId) -> BusLinks<M> {
        BusLinks {
            credentials,
            cluster,
            server,
            links: BTreeMap::new(),
            opened: BTreeMap::new(),
            unproven: UnprovenConnections::new(),
            limits: BTreeSet::new(),
            backlog_max: BACKLOG_MAX,
        }
    }

    /// Drops messages above this many unsent bytes of a connection instead of 64 MiB. For tests
    /// with small messages.
    pub fn limit_backlog(&mut self, bytes: usize) {
        self.backlog_max = bytes;
    }

    /// Returns the connection for messages to a server.
    pub fn connection_to(&self, to: BusDestination) -> Option<ConnectionId> {
        self.opened.get(&to).copied()
    }

    /// Applies one event; the only way to change the connections.
    pub fn handle(&mut self, now: Instant, event: BusEvent<'_, M>, out: &mut Vec<BusEffect<M>>) {
        match event {
            BusEvent::Accepted(connection, nonce) => self.accepted(now, connection, nonce, out),
            BusEvent::Connecting(connection, to, address) => {
                let state = BusLinkState::Connecting(address, WaitingMessages::new());
                self.insert(connection, BusLink { state, opened_to: Some(to), limit: None });
                self.set_limit(connection, Some(now + CONNECT_MAX));
                let before = self.opened.insert(to, connection);
                assert!(before.is_none(), "two connections are opened for one destination");
            }
            BusEvent::Connected(connection, nonce) => self.connected(now, connection, nonce, out),
            BusEvent::Input(connection, bytes) => {
                if let Err(end) = self.input(connection, bytes, out) {
                    out.push(BusEffect::Close(connection, end));
                }
            }
            BusEvent::Send { connection, message, payload_bytes, backlog } => {
                let most = self.backlog_max;
                let Some(link) = self.links.get_mut(&connection) else { return };
                match &mut link.state {
                    BusLinkState::Connecting(_, waiting) | BusLinkState::Proving(_, waiting) => {
                        waiting.push(message, payload_bytes, most);
                    }
                    BusLinkState::Open(_) if backlog >= most => {}
                    BusLinkState::Open(_) => out.push(BusEffect::Send(connection, message)),
                }
            }
            BusEvent::Closed(connection) => self.closed(connection, out),
            BusEvent::Tick => self.tick(now, out),
        }
    }

    /// Returns when [`BusEvent::Tick`] is due, if no event happens before.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.limits.first().map(|(limit, _)| *limit)
    }

    fn insert(&mut self, connection: ConnectionId, link: BusLink<M>) {
        let before = self.links.insert(connection, link);
        assert!(before.is_none(), "a connection begins while it exists");
    }

    fn set_limit(&mut self, connection: ConnectionId, limit: Option<Instant>) {
        let Some(link) = self.links.get_mut(&connection) else { return };
        let before = std::mem::replace(&mut link.limit, limit);
        if let Some(before) = before {
            self.limits.remove(&(before, connection));
        }
        self.limits.extend(limit.map(|limit| (limit, connection)));
    }

    fn accepted(
        &mut self,
        now: Instant,
        connection: ConnectionId,
        nonce: Nonce,
        out: &mut Vec<BusEffect<M>>,
    ) {
        if let Some(oldest) = self.unproven.add(connection) {
            self.set_limit(oldest, None);
            out.push(BusEffect::Close(oldest, BusEnd::Displaced));
        }
        let (cluster, server) = (Some(self.cluster), Some(self.server));
        let here = Accepting { purposes: SERVED_BY_SERVERS, cluster, server };
        let handshake = Box::new(Handshake::accept(&self.credentials, here, nonce));
        let state = BusLinkState::Proving(handshake, WaitingMessages::new());
        self.insert(connection, BusLink { state, opened_to: None, limit: None });
        self.set_limit(connection, Some(now + HANDSHAKE_MAX));
    }

    fn connected(
        &mut self,
        now: Instant,
        connection: ConnectionId,
        nonce: Nonce,
        out: &mut Vec<BusEffect<M>>,
    ) {
        let Some(link) = self.links.get_mut(&connection) else {
            return out.push(BusEffect::Close(connection, OUT_OF_ORDER));
        };
        let (BusLinkState::Connecting(_, waiting), Some(to)) = (&mut link.state, link.opened_to)
        else {
            return;
        };
        let purpose = match to.is_priority {
            true => ConnectionPurpose::Priority,
            false => ConnectionPurpose::Bus,
        };
        let (cluster, server) = (Some(self.cluster), Some(self.server));
        let opening = Opening { purpose, cluster, server, expected: Some(to.server) };
        let (handshake, first) = Handshake::open(&self.credentials, opening, nonce);
        let waiting = std::mem::replace(waiting, WaitingMessages::new());
        link.state = BusLinkState::Proving(Box::new(handshake), waiting);
        self.set_limit(connection, Some(now + HANDSHAKE_MAX));
        out.push(BusEffect::Write(connection, encoded_handshake(&first)));
    }

    fn input(
        &mut self,
        connection: ConnectionId,
        bytes: &[u8],
        out: &mut Vec<BusEffect<M>>,
    ) -> Result<(), BusEnd> {
        let link = self.links.get_mut(&connection).ok_or(OUT_OF_ORDER)?;
        let limits = match link.state {
            BusLinkState::Connecting(..) => return Err(OUT_OF_ORDER),
            BusLinkState::Proving(..) => FrameLimits::HANDSHAKE,
            BusLinkState::Open(_) => FrameLimits::BUS,
        };
        let header = match next_frame(bytes, limits)? {
            NextFrame::Complete(header) => header,
            NextFrame::Incomplete { wanted_bytes } => {
                out.push(BusEffect::Want(wanted_bytes));
                return Ok(());
            }
        };
        match &mut link.state {
            BusLinkState::Connecting(..) => return Err(OUT_OF_ORDER),
            BusLinkState::Open(from) => out.push(BusEffect::Deliver(*from, header)),
            BusLinkState::Proving(handshake, _) => {
                let message = &bytes[HEADER_BYTES..header.frame_bytes()];
                let step = handshake.handle(header.message(message)?);
                out.push(BusEffect::Consume(header.frame_bytes()));
                self.prove(connection, step, out)?;
            }
        }
        Ok(())
    }

    fn prove(
        &mut self,
        connection: ConnectionId,
        step: HandshakeStep,
        out: &mut Vec<BusEffect<M>>,
    ) -> Result<(), BusEnd> {
        let mut write =
            |message| out.push(BusEffect::Write(connection, encoded_handshake(&message)));
        match step {
            HandshakeStep::Reply(reply) => write(reply),
            HandshakeStep::Proven { peer, last } => {
                let server = peer.party.server.ok_or(OUT_OF_ORDER)?;
                last.into_iter().for_each(write);
                let link = self.links.get_mut(&connection).ok_or(OUT_OF_ORDER)?;
                if link.opened_to.is_none() && peer.purpose == ConnectionPurpose::Priority {
                    out.push(BusEffect::Prioritize(connection));
                }
                let before = std::mem::replace(&mut link.state, BusLinkState::Open(server));
                if let BusLinkState::Proving(_, WaitingMessages { messages, .. }) = before {
                    let messages = messages.into_iter();
                    out.extend(messages.map(|message| BusEffect::Send(connection, message)));
                }
                self.set_limit(connection, None);
                self.unproven.remove(connection);
            }
            HandshakeStep::Refused { error, refusal } => {
                refusal.into_iter().for_each(write);
                out.push(BusEffect::CloseAfterFlush(connection, error.into()));
            }
        }
        Ok(())
    }

    fn closed(&mut self, connection: ConnectionId, out: &mut Vec<BusEffect<M>>) {
        self.set_limit(connection, None);
        self.unproven.remove(connection);
        let Some(BusLink { state, opened_to, .. }) = self.links.remove(&connection) else { return };
        let Some(to) = opened_to else { return };
        let opened = self.opened.remove(&to);
        assert_eq!(opened, Some(connection), "another connection is open for one destination");
        let unreachable = match state {
            BusLinkState::Connecting(address, _) => Some(address),
            BusLinkState::Proving(..) | BusLinkState::Open(_) => None,
        };
        out.push(BusEffect::Lost { server: to.server, unreachable });
    }

    fn tick(&mut self, now: Instant, out: &mut Vec<BusEffect<M>>) {
        while let Some((_, connection)) =
            self.limits.first().copied().filter(|(limit, _)| *limit <= now)
        {
            self.set_limit(connection, None);
            let end = match self.links.get(&connection).map(|link| &link.state) {
                Some(BusLinkState::Connecting(..)) => BusEnd::NotConnected,
                Some(BusLinkState::Proving(..) | BusLinkState::Open(_)) | None => BusEnd::NotProven,
            };
            out.push(BusEffect::Close(connection, end));
        }
    }
}
