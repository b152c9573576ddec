//! One reactor: the real core, its turns, and the server's ends of the connections of clients.
//!
//! Stands where the shell and the runtime stand in a server: it gives the core bytes, messages, time
//! and quanta, in the order of a turn.

use crate::planted::{self, Planted};
use server::core::{ConnectionId, Connections, Core};
use server::engine::{DiskDone, DiskJob, Engine, Payload, Route, Sending, Wake};
use std::collections::{BTreeMap, VecDeque};
use store::Worker;
use types::{HashRange, Instant, KeyHash, ServerId, UnixMillis};
use wire::control::{FromCoordinator, ToCoordinator};
use wire::peer::PeerMessage;

/// Something that arrives at a reactor.
#[derive(Debug)]
pub(crate) enum Inbound {
    Peer(Box<FromPeer>),
    Control(Box<FromCoordinator>),
    /// A client has connected.
    Opened(ConnectionId),
    /// What a client has sent.
    Bytes(ConnectionId, Vec<u8>),
    /// What came of work for the disk.
    Disk(DiskDone),
}

/// A message from another server.
#[derive(Debug)]
pub(crate) struct FromPeer {
    from: ServerId,
    route: Route,
    pub(crate) message: PeerMessage,
    payload: Vec<u8>,
}

impl Inbound {
    pub(crate) fn peer(
        from: ServerId,
        route: Route,
        message: PeerMessage,
        payload: Vec<u8>,
    ) -> Inbound {
        Inbound::Peer(Box::new(FromPeer { from, route, message, payload }))
    }
}

/// Something that leaves a reactor.
#[derive(Debug)]
pub(crate) enum Outbound {
    Peer(Sending),
    Control(ToCoordinator),
    Bytes(ConnectionId, Vec<u8>),
    Disk(DiskJob),
}

/// The server's end of a client's connection.
#[derive(Debug, Default)]
struct End {
    /// Bytes that the core has not dealt with.
    input: Vec<u8>,
    output: Vec<u8>,
    is_paused: bool,
}

/// What the runtime's connections are to the shell.
#[derive(Debug, Default)]
struct Ends {
    ends: BTreeMap<ConnectionId, End>,
    /// Those that are read again, and may have input from before.
    resumed: Vec<ConnectionId>,
    /// Takes what is for nobody.
    sink: Vec<u8>,
}

impl Connections for Ends {
    fn output(&mut self, connection: ConnectionId) -> &mut Vec<u8> {
        match self.ends.get_mut(&connection) {
            Some(end) => &mut end.output,
            None => {
                self.sink.clear();
                &mut self.sink
            }
        }
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
        unreachable!("no client of this run ends {connection}, or sends what makes no sense");
    }
}

pub(crate) struct Reactor {
    pub(crate) core: Core,
    pub(crate) inbox: VecDeque<Inbound>,
    /// When its next turn begins.
    pub(crate) due: Instant,
    /// Whether its turn has begun: until it goes on, other reactors may have turns of their own.
    pub(crate) is_begun: bool,
    ends: Ends,
    /// What clients have sent in this turn.
    heard: Vec<(ConnectionId, Option<Vec<u8>>)>,
}

/// What a turn is given.
pub(crate) struct Surroundings<'t> {
    pub(crate) now: Instant,
    /// Whether background work gets its quantum in this turn.
    pub(crate) has_quantum: bool,
    pub(crate) planted: Option<Planted>,
    /// A way into the store beside the reactors', for what planted bugs do.
    pub(crate) inspector: &'t mut Worker,
    pub(crate) out: &'t mut Vec<Outbound>,
}

impl Reactor {
    pub(crate) fn new(engine: Engine) -> Reactor {
        Reactor {
            core: Core::new(engine),
            inbox: VecDeque::new(),
            due: Instant(0),
            is_begun: false,
            ends: Ends::default(),
            heard: Vec::new(),
        }
    }

    /// What has arrived and was not dealt with, for a report.
    pub(crate) fn waiting(&self) -> String {
        let ends = self.ends.ends.iter().filter(|(_, end)| end.is_paused || !end.input.is_empty());
        format!("{:?}, {:?}", self.inbox, ends.collect::<Vec<_>>())
    }

    /// A turn begins: the picture of the tablets is taken by which the rest of it goes.
    pub(crate) fn begin_turn(&mut self, now: Instant, wall: UnixMillis, planted: Option<Planted>) {
        self.core.begin_turn(now, wall);
        if planted == Some(Planted::HeldForgotten) {
            self.core.engine.out.wakes.retain(|wake| *wake != Wake::Tablets);
        }
        self.is_begun = true;
    }

    /// What has come from servers and the coordinator. What clients have sent is put aside: it
    /// comes afterwards, so that nothing is deleted behind a progress before it was looked at.
    pub(crate) fn listen(&mut self, around: &mut Surroundings<'_>) {
        while let Some(inbound) = self.inbox.pop_front() {
            match inbound {
                Inbound::Peer(arrived) => {
                    let FromPeer { from, route, message, payload } = *arrived;
                    self.receive_planted(&message, &payload, around);
                    let payload = Payload { buffer: payload, start: 0 };
                    self.core.on_peer(from, route, message, payload);
                }
                Inbound::Control(message) => self.core.on_control(*message),
                Inbound::Disk(done) => self.core.on_disk(done),
                Inbound::Opened(connection) => self.heard.push((connection, None)),
                Inbound::Bytes(connection, bytes) => self.heard.push((connection, Some(bytes))),
            }
        }
    }

    /// The rest of the turn. `true`: there is more to do at once.
    pub(crate) fn turn(&mut self, around: &mut Surroundings<'_>) -> bool {
        let now = around.now;
        self.is_begun = false;
        self.serve_clients();
        self.core.end_of_input(&mut self.ends);
        if self.core.next_deadline().is_some_and(|at| at <= now) {
            self.core.tick(now, &mut self.ends);
        }
        // A quantum comes last, so that nothing is done after it within this turn.
        let mut has_work = self.carry_out(around);
        if self.core.has_background() && around.has_quantum {
            self.core.quantum(now, &mut self.ends);
        }
        has_work |= self.carry_out(around);
        for (connection, end) in &mut self.ends.ends {
            if !end.output.is_empty() {
                around.out.push(Outbound::Bytes(*connection, std::mem::take(&mut end.output)));
            }
        }
        has_work || self.core.has_background() || !self.ends.resumed.is_empty()
    }

    fn serve_clients(&mut self) {
        for connection in std::mem::take(&mut self.ends.resumed) {
            self.give(connection, Vec::new());
        }
        for (connection, bytes) in std::mem::take(&mut self.heard) {
            match bytes {
                Some(bytes) => self.give(connection, bytes),
                None => {
                    self.ends.ends.insert(connection, End::default());
                    self.core.open(connection, "client".into(), &mut self.ends);
                }
            }
        }
    }

    /// Gives the core what a client has sent, together with what is left from before.
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

    /// What planted bugs do with a message, before it is dealt with.
    fn receive_planted(
        &mut self,
        message: &PeerMessage,
        payload: &[u8],
        around: &mut Surroundings<'_>,
    ) {
        match (around.planted, message) {
            (Some(Planted::ProgressOnReceipt), PeerMessage::PullReply(reply)) => {
                planted::advance_on_receipt(&self.core.engine.worker, reply);
            }
            (Some(Planted::LateReplyInserted), PeerMessage::PriorityReply(_)) => {
                planted::insert_regardless(&mut self.core.engine.worker, payload);
            }
            _ => {}
        }
    }

    /// Carries out what the engine wants done outside. `true`: there was something.
    fn carry_out(&mut self, around: &mut Surroundings<'_>) -> bool {
        let outgoing = &mut self.core.engine.out;
        around.out.extend(outgoing.control.drain(..).map(Outbound::Control));
        around.out.extend(outgoing.disk.drain(..).map(Outbound::Disk));
        let has_work = !outgoing.peers.is_empty();
        for sending in outgoing.peers.drain(..) {
            if let (Some(Planted::ForgottenWhenSent), PeerMessage::PullReply(reply)) =
                (around.planted, &sending.message)
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
