//! One reactor: the real core, its turns, and the server's ends of the connections of clients.
//!
//! Replaces the shell and the runtime of a server: it passes bytes, messages, time and quanta to
//! the core, in the order of a turn.

use crate::planted::{self, Planted};
use crate::reactor_bus::{ReactorBus, StreamInput};
use crate::redundancy;
use bus::Arrived;
use front::Operators;
use front::core::{ConnectionId, Connections, Core};
use node::{DiskDone, DiskJob, Engine, Payload, Route, Sending, Wake};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use store::Worker;
use types::{HashRange, Instant, KeyHash, MigrationId, ServerId, UnixMillis};
use wire::control::{FromCoordinator, ToCoordinator};
use wire::peer::{PeerMessage, PriorityAnswer};
use wire::replica::ReplicaId;

/// Input of a reactor.
#[derive(Debug)]
pub(crate) enum Inbound {
    Peer(Box<FromPeer>),
    Control(Box<FromCoordinator>),
    /// A client has connected.
    Opened(ConnectionId),
    /// Bytes from a client.
    Bytes(ConnectionId, Vec<u8>),
    /// A client has closed its connection.
    HungUp(ConnectionId),
    /// Event of a stream to another server.
    Stream(ConnectionId, StreamInput),
    /// Result of a disk job.
    Disk(DiskDone),
}

/// Message from another server.
#[derive(Debug)]
pub(crate) struct FromPeer {
    from: ServerId,
    route: Route,
    message: PeerMessage,
    payload: Payload,
}

impl Inbound {
    /// Returns whether this is a message of a server.
    pub(crate) fn is_from(&self, server: ServerId) -> bool {
        matches!(self, Inbound::Peer(peer) if peer.from == server)
    }

    pub(crate) fn peer(
        from: ServerId,
        route: Route,
        message: PeerMessage,
        payload: Vec<u8>,
    ) -> Inbound {
        let payload = Payload { buffer: payload, start: 0 };
        Inbound::Peer(Box::new(FromPeer { from, route, message, payload }))
    }
}

/// Output of a reactor.
pub(crate) enum Outbound {
    /// A source has reported these hashes of a migration as absent.
    Absent(MigrationId, Vec<KeyHash>),
    /// A backup has reported that it has lost this replica.
    LossReported(ReplicaId),
    Peer(Sending),
    Control(ToCoordinator),
    Bytes(ConnectionId, Vec<u8>),
    /// The server has closed a client's connection.
    Closed(ConnectionId),
    Disk(DiskJob),
}

/// Server's end of a client's connection.
#[derive(Debug, Default)]
struct ClientEndpoint {
    /// Bytes that the core has not consumed.
    input: Vec<u8>,
    output: Vec<u8>,
    is_paused: bool,
}

/// All connections of the reactor; in a real server the runtime has them.
#[derive(Debug, Default)]
struct ClientEndpoints {
    ends: BTreeMap<ConnectionId, ClientEndpoint>,
    /// Connections that are read again and may have earlier input.
    resumed: Vec<ConnectionId>,
    /// Connections that the core has closed in this turn.
    closed: Vec<ConnectionId>,
    sink: OutputSink,
}

/// Buffer that discards output for connections that do not exist.
#[derive(Debug, Default)]
pub(crate) struct OutputSink(Vec<u8>);

impl OutputSink {
    /// Returns the output of a connection, or the buffer if there is no such connection.
    pub(crate) fn or<'o>(&'o mut self, output: Option<&'o mut Vec<u8>>) -> &'o mut Vec<u8> {
        output.unwrap_or_else(|| {
            self.0.clear();
            &mut self.0
        })
    }
}

impl Connections for ClientEndpoints {
    fn output(&mut self, connection: ConnectionId) -> &mut Vec<u8> {
        self.sink.or(self.ends.get_mut(&connection).map(|end| &mut end.output))
    }

    fn resume_reading(&mut self, connection: ConnectionId) {
        if let Some(end) = self.ends.get_mut(&connection)
            && std::mem::replace(&mut end.is_paused, false)
        {
            self.resumed.push(connection);
        }
    }

    fn pause_reading(&mut self, connection: ConnectionId) {
        if let Some(end) = self.ends.get_mut(&connection) {
            end.is_paused = true;
        }
    }

    fn close_after_flush(&mut self, connection: ConnectionId) {
        unreachable!("no client of this run closes {connection}, or sends invalid bytes");
    }

    fn close(&mut self, connection: ConnectionId) {
        if self.ends.remove(&connection).is_some() {
            self.closed.push(connection);
        }
    }
}

pub(crate) struct SimulatedReactor {
    pub(crate) core: Core,
    pub(crate) inbox: VecDeque<Inbound>,
    /// Time of the next turn (or of its second step).
    pub(crate) due: Instant,
    /// Set between the two steps of a turn; other reactors may have turns in between.
    pub(crate) is_begun: bool,
    /// Streams to other servers; `None` in runs in which whole messages travel.
    pub(crate) bus: Option<ReactorBus>,
    ends: ClientEndpoints,
    /// Input of clients in this turn.
    heard: Vec<(ConnectionId, ClientInput)>,
}

/// Input of a client.
enum ClientInput {
    Opened,
    Bytes(Vec<u8>),
    HungUp,
}

/// Conditions of one turn.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TurnInput {
    pub(crate) now: Instant,
    /// Set if background work gets a quantum in this turn.
    pub(crate) has_quantum: bool,
    pub(crate) planted: Option<Planted>,
}

/// Environment of a turn.
pub(crate) struct Surroundings<'t> {
    pub(crate) input: TurnInput,
    /// Access to the store beside the reactors', for planted bugs.
    pub(crate) inspector: &'t mut Worker,
    pub(crate) out: &'t mut Vec<Outbound>,
}

impl SimulatedReactor {
    pub(crate) fn new(
        engine: Engine,
        operators: Arc<Operators>,
        bus: Option<ReactorBus>,
    ) -> SimulatedReactor {
        SimulatedReactor {
            core: Core::new(engine, operators),
            inbox: VecDeque::new(),
            due: Instant(0),
            is_begun: false,
            bus,
            ends: ClientEndpoints::default(),
            heard: Vec::new(),
        }
    }

    /// Describes the input that was not processed, for a report.
    pub(crate) fn waiting(&self) -> String {
        let ends = self.ends.ends.iter().filter(|(_, end)| end.is_paused || !end.input.is_empty());
        format!("{:?}, {:?}", self.inbox, ends.collect::<Vec<_>>())
    }

    /// Begins a turn: takes the tablet map that the rest of the turn uses.
    pub(crate) fn begin_turn(&mut self, now: Instant, wall: UnixMillis, planted: Option<Planted>) {
        self.core.begin_turn(now, wall);
        if planted == Some(Planted::HeldForgotten) {
            let is_kept = |wake: &Wake| !matches!(wake, Wake::Tablets | Wake::Map);
            self.core.engine_mut().out.wakes.retain(is_kept);
        }
        self.is_begun = true;
    }

    /// Processes the messages of servers and the coordinator. Keeps the input of clients for
    /// later, so that the progress is checked before any client deletes below it.
    pub(crate) fn listen(&mut self, around: &mut Surroundings<'_>) {
        while let Some(inbound) = self.inbox.pop_front() {
            match inbound {
                Inbound::Peer(arrived) => self.hear(*arrived, around),
                Inbound::Stream(connection, input) => self.hear_stream(connection, input, around),
                Inbound::Control(message) => self.core.on_control(*message),
                Inbound::Disk(done) => self.core.on_disk(done),
                Inbound::Opened(connection) => {
                    self.heard.push((connection, ClientInput::Opened));
                }
                Inbound::Bytes(connection, bytes) => {
                    self.heard.push((connection, ClientInput::Bytes(bytes)));
                }
                Inbound::HungUp(connection) => {
                    self.heard.push((connection, ClientInput::HungUp));
                }
            }
        }
    }

    /// Processes a message of another server.
    fn hear(&mut self, arrived: FromPeer, around: &mut Surroundings<'_>) {
        let FromPeer { from, route, message, payload } = arrived;
        self.receive_planted(&message, payload.bytes(), around);
        if let PeerMessage::PriorityReply(reply) = &message {
            let absent = reply.answers.iter().filter(|it| it.2 != PriorityAnswer::Records);
            let absent = absent.map(|&(_, hash, _)| hash).collect();
            around.out.push(Outbound::Absent(reply.migration, absent));
        }
        let lost = redundancy::reported_loss(&message);
        around.out.extend(lost.map(Outbound::LossReported));
        self.core.on_peer(from, route, message, payload);
    }

    /// Processes an event of a stream to another server.
    fn hear_stream(
        &mut self,
        connection: ConnectionId,
        input: StreamInput,
        around: &mut Surroundings<'_>,
    ) {
        let (now, Some(bus)) = (around.input.now, &mut self.bus) else { return };
        match input {
            StreamInput::Accepted => bus.accepted(now, connection),
            StreamInput::Connected => bus.connected(now, connection),
            StreamInput::Refused => {
                bus.closed(now, connection, self.core.engine().node());
            }
            StreamInput::Bytes(bytes) => {
                bus.add_input(connection, &bytes);
                while let Some(arrived) =
                    self.bus.as_mut().and_then(|bus| bus.receive(now, connection))
                {
                    let Arrived { from, route, message, payload } = arrived;
                    self.hear(FromPeer { from, route, message, payload }, around);
                }
            }
            StreamInput::Closed => {
                let lost = bus.closed(now, connection, self.core.engine().node());
                lost.into_iter().for_each(|server| self.core.peer_lost(server));
            }
        }
    }

    /// Returns when the reactor has something to do by itself.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let bus = self.bus.as_ref().and_then(ReactorBus::next_deadline);
        [self.core.next_deadline(), bus].into_iter().flatten().min()
    }

    /// Runs the rest of the turn. Returns whether there is more to do at once.
    pub(crate) fn turn(&mut self, around: &mut Surroundings<'_>) -> bool {
        let now = around.input.now;
        self.is_begun = false;
        self.serve_clients();
        self.core.end_of_input(&mut self.ends);
        if let Some(bus) = &mut self.bus {
            bus.tick(now);
        }
        if self.core.next_deadline().is_some_and(|at| at <= now) {
            self.core.tick(now, &mut self.ends);
        }
        // The quantum comes last, so that nothing is done after it within this turn.
        let mut has_work = self.carry_out(around);
        if self.core.has_background() && around.input.has_quantum {
            self.core.quantum(now, &mut self.ends);
        }
        has_work |= self.carry_out(around);
        for (connection, end) in &mut self.ends.ends {
            if !end.output.is_empty() {
                around.out.push(Outbound::Bytes(*connection, std::mem::take(&mut end.output)));
            }
        }
        for connection in self.ends.closed.drain(..) {
            self.core.closed(connection);
            around.out.push(Outbound::Closed(connection));
        }
        has_work || self.core.has_background() || !self.ends.resumed.is_empty()
    }

    fn serve_clients(&mut self) {
        for connection in std::mem::take(&mut self.ends.resumed) {
            self.give(connection, Vec::new());
        }
        for (connection, input) in std::mem::take(&mut self.heard) {
            match input {
                ClientInput::Bytes(bytes) => self.give(connection, bytes),
                ClientInput::Opened => {
                    self.ends.ends.insert(connection, ClientEndpoint::default());
                    self.core.open(connection, "client".into(), &mut self.ends);
                }
                ClientInput::HungUp => {
                    if self.ends.ends.remove(&connection).is_some() {
                        self.core.closed(connection);
                    }
                }
            }
        }
    }

    /// Passes input of a client to the core, together with the input left from before.
    fn give(&mut self, connection: ConnectionId, bytes: Vec<u8>) {
        let Some(end) = self.ends.ends.get_mut(&connection) else { return };
        let mut input = std::mem::take(&mut end.input);
        match input.is_empty() {
            true => input = bytes,
            false => input.extend_from_slice(&bytes),
        }
        if !end.is_paused {
            let consumed = self.core.receive(connection, &input, &mut self.ends);
            input.drain(..consumed.expect("this connection is a client's"));
        }
        if let Some(end) = self.ends.ends.get_mut(&connection) {
            end.input = input;
        }
    }

    /// Applies the planted bugs that concern the receipt of a message.
    fn receive_planted(
        &mut self,
        message: &PeerMessage,
        payload: &[u8],
        around: &mut Surroundings<'_>,
    ) {
        match (around.input.planted, message) {
            (Some(Planted::ProgressOnReceipt), PeerMessage::PullReply(reply)) => {
                planted::advance_on_receipt(&self.core.engine().worker, reply);
            }
            (Some(Planted::LateReplyInserted), PeerMessage::PriorityReply(_)) => {
                planted::insert_regardless(&mut self.core.engine_mut().worker, payload);
            }
            _ => {}
        }
    }

    /// Hands over the engine's outgoing messages and jobs. Returns whether there were messages to
    /// servers.
    fn carry_out(&mut self, around: &mut Surroundings<'_>) -> bool {
        let outgoing = &mut self.core.engine_mut().out;
        around.out.extend(outgoing.control.drain(..).map(Outbound::Control));
        around.out.extend(outgoing.disk.drain(..).map(Outbound::Disk));
        let has_work = !outgoing.peers.is_empty();
        for sending in outgoing.peers.drain(..) {
            if let (Some(Planted::ForgottenWhenSent), PeerMessage::PullReply(reply)) =
                (around.input.planted, &sending.message)
                && let Some(next) = reply.next
            {
                let range = HashRange::new(reply.cursor, KeyHash(next.0 - 1));
                planted::drop_range(around.inspector, range);
            }
            around.out.push(Outbound::Peer(sending));
        }
        has_work
    }
}
