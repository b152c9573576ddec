//! A reactor's bus: the real one, on simulated sockets.

use crate::reactor::OutputSink;
use crate::servers::place_of_bus_port;
use bus::{Arrived, Bus, ReceivedBytes, Sockets};
use fastrand::Rng;
use node::{Node, Sending};
use std::collections::BTreeMap;
use std::mem;
use std::net::{IpAddr, Ipv4Addr};
use types::{ConnectionId, Instant, ServerId};
use wire::control::ServerInfo;
use wire::handshake::{NONCE_BYTES, Nonce};

/// Address of all servers: the port decides.
const ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// Event at one end of a stream.
#[derive(Debug)]
pub(crate) enum StreamInput {
    /// A connection was accepted.
    Accepted,
    /// A connection that this end has opened is established.
    Connected,
    /// A connection could not be established.
    Refused,
    Bytes(Vec<u8>),
    /// The connection has ended.
    Closed,
}

/// Request of a reactor to the network.
pub(crate) enum StreamRequest {
    /// Connect to the process at this place.
    Connect(ConnectionId, usize),
    /// This many bytes were taken off the connection.
    Taken(ConnectionId, usize),
    /// End the connection at once.
    Close(ConnectionId),
}

/// A reactor's bus and its ends of the streams to other servers.
pub(crate) struct ReactorBus {
    bus: Bus,
    sockets: SimulatedSockets,
}

struct SimulatedSockets {
    /// Number that no other reactor of the run has, whichever process it belongs to.
    owner: u64,
    /// Number of connections that the reactor has opened.
    opened: u64,
    ends: BTreeMap<ConnectionId, StreamEnd>,
    requests: Vec<StreamRequest>,
    /// Nonces of handshakes.
    nonces: Rng,
    sink: OutputSink,
}

/// One end of a stream, in the memory of the process.
#[derive(Debug, Default)]
struct StreamEnd {
    input: Vec<u8>,
    /// Bytes required before the bus looks at the input again.
    wanted: usize,
    output: Vec<u8>,
    /// Set if the connection ends when the output is sent.
    closes_after_flush: bool,
}

/// Returns the other end of a stream. The end that opens has an even number.
pub(crate) fn other_end(end: ConnectionId) -> ConnectionId {
    ConnectionId::from_number(end.number() ^ 1)
}

impl ReceivedBytes for StreamEnd {
    fn bytes(&self) -> &[u8] {
        &self.input
    }

    fn want(&mut self, bytes: usize) {
        self.wanted = bytes;
    }

    fn consume(&mut self, bytes: usize) {
        self.input.drain(..bytes);
        self.wanted = 0;
    }

    fn take(&mut self, bytes: usize) -> Vec<u8> {
        self.wanted = 0;
        let rest = self.input.split_off(bytes);
        mem::replace(&mut self.input, rest)
    }
}

impl Sockets for SimulatedSockets {
    fn connect(&mut self, to: &ServerInfo, _is_priority: bool) -> Option<(ConnectionId, IpAddr)> {
        let place = place_of_bus_port(to.bus_port)?;
        self.opened += 1;
        let connection = ConnectionId::from_number((self.owner << 24 | self.opened) << 1);
        self.ends.insert(connection, StreamEnd::default());
        self.requests.push(StreamRequest::Connect(connection, place));
        Some((connection, ADDRESS))
    }

    fn avoid(&mut self, _server: &ServerInfo, _address: IpAddr) {}

    fn output(&mut self, connection: ConnectionId) -> &mut Vec<u8> {
        self.sink.or(self.ends.get_mut(&connection).map(|end| &mut end.output))
    }

    fn send_payload(&mut self, connection: ConnectionId, payload: Vec<u8>) {
        self.output(connection).extend_from_slice(&payload);
    }

    fn backlog(&self, connection: ConnectionId) -> usize {
        self.ends.get(&connection).map_or(0, |end| end.output.len())
    }

    fn prioritize(&mut self, _connection: ConnectionId) {}

    fn close(&mut self, connection: ConnectionId) {
        self.requests.push(StreamRequest::Close(connection));
    }

    fn close_after_flush(&mut self, connection: ConnectionId) {
        if let Some(end) = self.ends.get_mut(&connection) {
            end.closes_after_flush = true;
        }
    }

    fn draw_nonce(&mut self) -> Option<Nonce> {
        let mut nonce = [0; NONCE_BYTES];
        self.nonces.fill(&mut nonce);
        Some(Nonce::new(nonce))
    }
}

impl ReactorBus {
    /// Runs the bus of a reactor. `owner` is a number that no other reactor of the run has.
    pub(crate) fn new(bus: Bus, owner: u64) -> ReactorBus {
        let sockets = SimulatedSockets {
            owner,
            opened: 0,
            ends: BTreeMap::new(),
            requests: Vec::new(),
            nonces: Rng::with_seed(owner),
            sink: OutputSink::default(),
        };
        ReactorBus { bus, sockets }
    }

    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.bus.next_deadline()
    }

    pub(crate) fn tick(&mut self, now: Instant) {
        self.bus.tick(now, &mut self.sockets);
    }

    pub(crate) fn send(&mut self, now: Instant, sending: Sending, node: &Node) {
        self.bus.send(now, sending, node, &mut self.sockets);
    }

    pub(crate) fn accepted(&mut self, now: Instant, connection: ConnectionId) {
        self.sockets.ends.insert(connection, StreamEnd::default());
        self.bus.accepted(now, connection, &mut self.sockets);
    }

    pub(crate) fn connected(&mut self, now: Instant, connection: ConnectionId) {
        if self.sockets.ends.contains_key(&connection) {
            self.bus.connected(now, connection, &mut self.sockets);
        }
    }

    /// Forgets a connection that has ended or was not established. Returns its server, if this
    /// reactor had opened it.
    pub(crate) fn closed(
        &mut self,
        now: Instant,
        connection: ConnectionId,
        node: &Node,
    ) -> Option<ServerId> {
        self.sockets.ends.remove(&connection)?;
        self.bus.closed(now, connection, node, &mut self.sockets)
    }

    /// Adds received bytes to the input of a connection.
    pub(crate) fn add_input(&mut self, connection: ConnectionId, bytes: &[u8]) {
        if let Some(end) = self.sockets.ends.get_mut(&connection) {
            end.input.extend_from_slice(bytes);
            self.sockets.requests.push(StreamRequest::Taken(connection, bytes.len()));
        }
    }

    /// Takes the next complete message off the input of a connection.
    pub(crate) fn receive(&mut self, now: Instant, connection: ConnectionId) -> Option<Arrived> {
        let end = self.sockets.ends.get_mut(&connection)?;
        if end.input.is_empty() || end.input.len() < end.wanted {
            return None;
        }
        let mut input = mem::take(end);
        let arrived = self.bus.receive(now, connection, &mut input, &mut self.sockets);
        if let Some(end) = self.sockets.ends.get_mut(&connection) {
            // The bus may have written meanwhile.
            input.output.append(&mut end.output);
            input.closes_after_flush |= end.closes_after_flush;
            *end = input;
        }
        arrived
    }

    /// Removes and returns what the reactor wants of the network.
    pub(crate) fn take_requests(&mut self) -> Vec<StreamRequest> {
        mem::take(&mut self.sockets.requests)
    }

    /// Returns the connections that have output, with its length in bytes.
    pub(crate) fn with_output(&self) -> Vec<(ConnectionId, usize)> {
        let ends = self.sockets.ends.iter().filter(|(_, end)| !end.output.is_empty());
        ends.map(|(connection, end)| (*connection, end.output.len())).collect()
    }

    /// Removes and returns the first bytes of a connection's output, at most this many.
    pub(crate) fn take_output(&mut self, connection: ConnectionId, most: usize) -> Vec<u8> {
        let Some(end) = self.sockets.ends.get_mut(&connection) else { return Vec::new() };
        let rest = end.output.split_off(most.min(end.output.len()));
        let taken = mem::replace(&mut end.output, rest);
        if end.output.is_empty() && end.closes_after_flush {
            self.sockets.requests.push(StreamRequest::Close(connection));
        }
        taken
    }
}
