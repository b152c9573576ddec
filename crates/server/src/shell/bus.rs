//! The connections between servers, as one reactor has them.
//!
//! A reactor opens its own connections to a server when it first has something for it: one for
//! bulk, one for priority traffic. Questions leave on them, and answers come back on the
//! connection of their question. The side that opened a connection says first who it is; the other
//! answers with who it is; either closes if that is not what it expected.

use super::addresses::AddressBook;
use crate::engine::{Node, Payload, Route, Sending, To};
use runtime::{Class, ConnectTag, ConnectionId, Input, Io};
use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use types::{Instant, ServerId};
use wire::frame::{HEADER_BYTES, Header};
use wire::peer::{Hello, PeerMessage};
use wire::{Corrupt, PROTOCOL_VERSION};

/// Unsent bytes of a connection above which what is sent to it is dropped: the other side is
/// stuck, and the protocols repeat what matters.
const BACKLOG_MAX: usize = 64 << 20;

/// A connection that is not there after this time is given up: what is sent next begins another one.
/// The system alone would repeat a lost packet for two minutes.
const CONNECT_MAX: Duration = Duration::from_secs(1);

/// Messages that may wait for a connection, whatever their size.
const WAITING_MAX: usize = 65_536;

/// Who connects says who it is at once. Strangers that do not are sent away.
const GREETING_TIME: Duration = Duration::from_secs(5);
/// Strangers at a time, and the most that each may say.
const STRANGERS_MAX: usize = 256;
const GREETING_BYTES_MAX: usize = 256;

/// See the module's text.
pub(super) struct Bus {
    hello: Hello,
    links: BTreeMap<ConnectionId, Link>,
    /// Connections that this reactor opened, by server and whether they are for priority traffic.
    opened: BTreeMap<(ServerId, bool), ConnectionId>,
    /// Who has connected and until when it must have said who it is, in order of time.
    strangers: VecDeque<(Instant, ConnectionId)>,
    /// Connections that were begun, and when they are given up, in order of time.
    connecting: VecDeque<(Instant, ConnectionId)>,
    addresses: Arc<AddressBook>,
    /// Messages that no frame can carry.
    too_long: Arc<AtomicU64>,
}

struct Link {
    state: State,
    /// What to connect to, if we opened it.
    opened_to: Option<(ServerId, bool)>,
}

enum State {
    /// Not established.
    Connecting(Waiting),
    /// The other side has not said who it is.
    Greeting,
    /// In use.
    Open(ServerId),
}

/// Messages to be sent once a connection is established.
struct Waiting {
    /// Where it leads.
    address: IpAddr,
    messages: Vec<(PeerMessage, Vec<u8>)>,
    payload_bytes: usize,
}

impl Waiting {
    fn new(address: IpAddr) -> Waiting {
        Waiting { address, messages: Vec::new(), payload_bytes: 0 }
    }

    /// Keeps a message, unless too many wait already.
    fn push(&mut self, message: PeerMessage, payload: Vec<u8>) {
        if self.payload_bytes < BACKLOG_MAX && self.messages.len() < WAITING_MAX {
            self.payload_bytes += payload.len();
            self.messages.push((message, payload));
        }
    }
}

/// A message that has arrived.
pub(super) struct Arrived {
    pub(super) from: ServerId,
    pub(super) route: Route,
    pub(super) message: PeerMessage,
    pub(super) payload: Payload,
}

impl Bus {
    pub(super) fn new(node: &Node, addresses: Arc<AddressBook>) -> Bus {
        let hello = Hello {
            cluster: node.cluster(),
            server: node.me(),
            protocol: PROTOCOL_VERSION,
            priority: false,
        };
        Bus {
            hello,
            links: BTreeMap::new(),
            opened: BTreeMap::new(),
            strangers: VecDeque::new(),
            connecting: VecDeque::new(),
            addresses,
            too_long: node.operators.frames_too_long.clone(),
        }
    }

    /// Begins to look for the addresses of these servers, before there is something to send to them.
    pub(super) fn foresee(&self, node: &Node) {
        for server in &node.map().servers {
            self.addresses.look_up(&server.host);
        }
    }

    /// Somebody has connected to our bus port.
    pub(super) fn accepted(&mut self, now: Instant, connection: ConnectionId, io: &mut Io) {
        if self.strangers.len() >= STRANGERS_MAX {
            tracing::warn!("{STRANGERS_MAX} strangers on the bus port: one more is sent away");
            return io.close(connection);
        }
        self.strangers.push_back((now + GREETING_TIME, connection));
        self.links.insert(connection, Link { state: State::Greeting, opened_to: None });
    }

    /// When [`Bus::tick`] is due, if nothing happens before.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        [self.strangers.front(), self.connecting.front()]
            .into_iter()
            .flatten()
            .map(|(until, _)| *until)
            .min()
    }

    /// Sends away who has not said who it is in time, and gives up connections that take too long.
    pub(super) fn tick(&mut self, now: Instant, io: &mut Io) {
        while let Some((_, connection)) = self.connecting.pop_front_if(|(until, _)| *until <= now) {
            let link = self.links.get(&connection);
            if link.is_some_and(|link| matches!(link.state, State::Connecting(_))) {
                tracing::debug!("a connection to a server takes too long: given up");
                io.close(connection);
            }
        }
        while let Some((_, connection)) = self.strangers.pop_front_if(|(until, _)| *until <= now) {
            tracing::warn!("who connected to the bus port has not said who it is: closed");
            io.close(connection);
        }
    }

    fn forget_stranger(&mut self, connection: ConnectionId) {
        self.strangers.retain(|(_, stranger)| *stranger != connection);
    }

    /// A connection that we asked for is there: say who we are, and send what has waited.
    pub(super) fn connected(&mut self, connection: ConnectionId, io: &mut Io) {
        let Some(link) = self.links.get_mut(&connection) else { return io.close(connection) };
        let Some((server, priority)) = link.opened_to else { return };
        let before = std::mem::replace(&mut link.state, State::Open(server));
        let hello = PeerMessage::Hello(Hello { priority, ..self.hello });
        self.write(connection, &hello, Vec::new(), io);
        if let State::Connecting(waiting) = before {
            for (message, payload) in waiting.messages {
                self.write(connection, &message, payload, io);
            }
        }
    }

    /// A connection is gone. To whom it led, if we had opened it.
    pub(super) fn closed(&mut self, connection: ConnectionId, node: &Node) -> Option<ServerId> {
        self.forget_stranger(connection);
        let link = self.links.remove(&connection)?;
        let to = link.opened_to?;
        if let State::Connecting(Waiting { address, .. }) = link.state
            && let Some(info) = node.map().servers.iter().find(|info| info.id == to.0)
        {
            self.addresses.failed(&info.host, address);
        }
        if self.opened.get(&to) == Some(&connection) {
            self.opened.remove(&to);
        }
        Some(to.0)
    }

    /// Sends a message. What cannot be sent is dropped: the protocols repeat what matters.
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
            Some(State::Connecting(waiting)) => waiting.push(message, payload),
            Some(State::Greeting | State::Open(_)) if is_stuck => {}
            Some(State::Greeting | State::Open(_)) => self.write(connection, &message, payload, io),
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
        // Nothing is sent until the address is known: the protocols repeat what matters.
        let address = self.addresses.look_up(&info.host)?;
        let class = if is_priority { Class::Priority } else { Class::Bus };
        let connection = io.connect(SocketAddr::new(address, info.bus_port), ConnectTag(0), class);
        self.connecting.push_back((now + CONNECT_MAX, connection));
        let state = State::Connecting(Waiting::new(address));
        self.links.insert(connection, Link { state, opened_to: Some(to) });
        self.opened.insert(to, connection);
        Some(connection)
    }

    /// Takes the next message off a connection's input; `None`: it is not complete. After an error
    /// the connection is to be closed.
    pub(super) fn receive(
        &mut self,
        connection: ConnectionId,
        input: &mut Input,
        io: &mut Io,
    ) -> Result<Option<Arrived>, Corrupt> {
        loop {
            let Some(header) = input.bytes().first_chunk::<HEADER_BYTES>() else {
                input.want(HEADER_BYTES);
                return Ok(None);
            };
            let header = Header::parse(header)?;
            let link = self.links.get(&connection).ok_or(UNEXPECTED)?;
            let (from, is_stranger) = match link.state {
                State::Open(from) => (Some(from), false),
                State::Greeting => (None, true),
                State::Connecting(_) => (None, false),
            };
            if is_stranger && header.frame_bytes() > GREETING_BYTES_MAX {
                return Err(Corrupt::Invalid { what: "length of greeting" });
            }
            if input.len() < header.frame_bytes() {
                input.want(header.frame_bytes());
                return Ok(None);
            }
            let start = HEADER_BYTES + header.message_bytes;
            let message: PeerMessage = header.message(&input.bytes()[HEADER_BYTES..start])?;
            let payload = match header.payload_bytes {
                0 => {
                    input.consume(header.frame_bytes());
                    Payload::default()
                }
                _ => Payload { buffer: input.take(header.frame_bytes()), start },
            };
            match (&message, from) {
                (PeerMessage::Hello(hello), _) => self.greeted(connection, *hello, io)?,
                (_, Some(from)) => {
                    let route = Route(connection.number());
                    return Ok(Some(Arrived { from, route, message, payload }));
                }
                (_, None) => return Err(UNEXPECTED),
            }
        }
    }

    fn greeted(
        &mut self,
        connection: ConnectionId,
        hello: Hello,
        io: &mut Io,
    ) -> Result<(), Corrupt> {
        if hello.cluster != self.hello.cluster || hello.protocol != PROTOCOL_VERSION {
            return Err(Corrupt::Invalid { what: "cluster or protocol version of greeting" });
        }
        let link = self.links.get_mut(&connection).ok_or(UNEXPECTED)?;
        match link.opened_to {
            Some((expected, _)) if expected == hello.server => {}
            Some(_) => return Err(Corrupt::Invalid { what: "server of greeting" }),
            None => {
                link.state = State::Open(hello.server);
                self.forget_stranger(connection);
                if hello.priority {
                    io.set_class(connection, Class::Priority);
                }
                let answer = PeerMessage::Hello(Hello { priority: hello.priority, ..self.hello });
                self.write(connection, &answer, Vec::new(), io);
            }
        }
        Ok(())
    }

    /// Puts a message into a connection's output. One that no frame can carry is dropped: its size
    /// is bounded where it is made, so this is a fault of ours, and no reason for the peer to lose
    /// everything else that this server has.
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
                tracing::error!(%error, "a message to a server was dropped: please report this");
            }
        }
    }
}

const UNEXPECTED: Corrupt = Corrupt::Invalid { what: "order of messages" };

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_for_a_connection_has_a_limit() {
        let hello = Hello {
            cluster: types::ClusterId(1),
            server: ServerId(1),
            protocol: PROTOCOL_VERSION,
            priority: false,
        };
        let address = IpAddr::from([127, 0, 0, 1]);
        let mut few = Waiting::new(address);
        for _ in 0..100 {
            few.push(PeerMessage::Hello(hello), vec![0; BACKLOG_MAX / 4]);
        }
        assert_eq!(few.messages.len(), 4);
        let mut many = Waiting::new(address);
        (0..WAITING_MAX + 5).for_each(|_| many.push(PeerMessage::Hello(hello), Vec::new()));
        assert_eq!(many.messages.len(), WAITING_MAX);
    }
}
