//! The connections of one reactor as a service sees them: where replies are appended and effects
//! are asked for. Plain data: the reactor carries the effects out after the service has returned.
//!
//! Invariant: no call can fail. An id that names nothing (the peer has gone meanwhile) swallows
//! output and ignores requests, so that a service needs no special case for a reply that comes
//! too late.

use crate::buffers::Buffers;
use crate::connection::{Class, ConnectTag, ConnectionId};
use crate::input::Input;
use crate::output::Output;
use crate::service::Closed;
use std::collections::VecDeque;
use std::net::SocketAddr;
use types::ReactorId;

/// Unsent output above which a client is congested: it asks faster than it takes the answers, is
/// not read, and a service leaves its further requests in the input ([`Io::is_congested`]).
pub const CLIENT_BACKLOG_MAX: usize = 1 << 20;

/// How far a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// `connect` was called; neither established nor failed.
    Connecting { tag: ConnectTag, address: SocketAddr },
    /// In use.
    Open,
    /// Sends what it has and is closed then; no longer read.
    Draining,
    /// To be closed at the end of the turn.
    Closing { why: Closed },
}

/// What the reactor knows of one connection.
pub(crate) struct Connection {
    pub(crate) class: Class,
    pub(crate) phase: Phase,
    /// As what it was counted when it was accepted; `None` for outgoing ones.
    pub(crate) placed_as: Option<Class>,
    pub(crate) input: Input,
    pub(crate) output: Output,
    /// The driver may have more to read.
    pub(crate) is_readable: bool,
    /// The last `send` could not send everything: the driver says when to go on.
    pub(crate) is_blocked: bool,
    /// The service does not want input for now.
    pub(crate) is_paused: bool,
    /// Buffered input is to be given again although nothing was read.
    pub(crate) is_resumed: bool,
    /// The peer has sent its last byte, and whether the service knows.
    pub(crate) end: InputEnd,
    /// Stands in `Io::ready`, and in `Io::dirty`.
    pub(crate) is_queued: bool,
    pub(crate) is_dirty: bool,
}

/// Whether more can come from a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InputEnd {
    /// More may come.
    Open,
    /// The last byte was read; the service has not been told.
    Reached,
    /// The service has been told.
    Told,
}

impl Connection {
    pub(crate) fn new(class: Class, phase: Phase) -> Connection {
        Connection {
            class,
            phase,
            placed_as: None,
            input: Input::default(),
            output: Output::default(),
            is_readable: false,
            is_blocked: false,
            is_paused: false,
            is_resumed: false,
            end: InputEnd::Open,
            is_queued: false,
            is_dirty: false,
        }
    }

    /// Whether the peer has so many answers to take that it gets no more for now.
    pub(crate) fn is_congested(&self) -> bool {
        !self.class.is_bus() && self.output.backlog() > CLIENT_BACKLOG_MAX
    }

    /// Whether input may be read and given to the service.
    pub(crate) fn may_receive(&self) -> bool {
        self.phase == Phase::Open && !self.is_paused && !self.is_congested()
    }
}

/// One place of the table.
#[derive(Default)]
struct Slot {
    generation: u32,
    connection: Option<Box<Connection>>,
}

/// The connections of one reactor, and what the service wants done with them.
pub struct Io {
    reactor: ReactorId,
    slots: Vec<Slot>,
    /// Free slots, oldest first, so that a slot rests as long as possible.
    free: VecDeque<usize>,
    pub(crate) buffers: Buffers,
    /// Connections with input to give, by class.
    pub(crate) ready: [VecDeque<ConnectionId>; Class::ALL.len()],
    /// Connections with output to send.
    pub(crate) dirty: Vec<ConnectionId>,
    /// Connections to be closed.
    pub(crate) closing: Vec<ConnectionId>,
    /// Connections to be closed when their output has left, or in time.
    pub(crate) draining: Vec<ConnectionId>,
    /// Connections to be established.
    pub(crate) connecting: Vec<ConnectionId>,
    /// Takes the output for connections that are gone.
    sink: Vec<u8>,
}

impl Io {
    pub(crate) fn new(reactor: ReactorId) -> Io {
        Io {
            reactor,
            slots: Vec::new(),
            free: VecDeque::new(),
            buffers: Buffers::default(),
            ready: Default::default(),
            dirty: Vec::new(),
            closing: Vec::new(),
            draining: Vec::new(),
            connecting: Vec::new(),
            sink: Vec::new(),
        }
    }

    /// The reactor whose connections these are.
    pub fn reactor(&self) -> ReactorId {
        self.reactor
    }

    /// Whether the connection can still be written to.
    pub fn is_open(&self, connection: ConnectionId) -> bool {
        self.get(connection).is_some_and(|found| match found.phase {
            Phase::Open => true,
            Phase::Connecting { .. } | Phase::Draining | Phase::Closing { .. } => false,
        })
    }

    /// Where to append what is to be sent. It leaves at the end of the turn.
    pub fn output(&mut self, connection: ConnectionId) -> &mut Vec<u8> {
        if !self.is_open(connection) {
            self.sink.clear();
            return &mut self.sink;
        }
        self.mark_dirty(connection);
        match self.slots[connection.slot()].connection.as_deref_mut() {
            Some(found) => found.output.tail(&mut self.buffers),
            None => &mut self.sink,
        }
    }

    /// Sends a whole buffer after what was appended so far, without copying it. Good from a few
    /// KiB on; below, append to `output`.
    pub fn send_owned(&mut self, connection: ConnectionId, buffer: Vec<u8>) {
        if !self.is_open(connection) || buffer.is_empty() {
            return self.buffers.give(buffer);
        }
        self.mark_dirty(connection);
        if let Some(found) = self.get_mut(connection) {
            found.output.push(buffer);
        }
    }

    /// Bytes appended but not yet taken by the operating system.
    pub fn output_backlog(&self, connection: ConnectionId) -> usize {
        self.get(connection).map_or(0, |found| found.output.backlog())
    }

    /// Whether a client has so many answers to take that it is not read. A service that finds
    /// another whole request in the input leaves it there: it is given again when enough has left.
    /// Never true for servers, whose protocols limit what is under way.
    pub fn is_congested(&self, connection: ConnectionId) -> bool {
        self.get(connection).is_some_and(Connection::is_congested)
    }

    /// An empty buffer of at least `bytes`, to be filled and given to `send_owned`.
    pub fn buffer(&mut self, bytes: usize) -> Vec<u8> {
        self.buffers.take_large(bytes)
    }

    /// Gives back a buffer that came from [`Input::take`] or `buffer`.
    pub fn recycle(&mut self, buffer: Vec<u8>) {
        self.buffers.give(buffer);
    }

    /// Stops reading and giving input, until `resume_reading`. Meanwhile the end of the input is
    /// not noticed either, unless the connection breaks.
    pub fn pause_reading(&mut self, connection: ConnectionId) {
        if let Some(found) = self.get_mut(connection) {
            found.is_paused = true;
        }
    }

    /// Goes on reading. What was not consumed is given again, in the next turn at the latest.
    pub fn resume_reading(&mut self, connection: ConnectionId) {
        if let Some(found) = self.get_mut(connection)
            && found.is_paused
        {
            found.is_paused = false;
            found.is_resumed = true;
            self.mark_ready(connection);
        }
    }

    /// Changes what the connection is for, as when a handshake has told it.
    pub fn set_class(&mut self, connection: ConnectionId, class: Class) {
        if let Some(found) = self.get_mut(connection) {
            found.class = class;
        }
    }

    /// Closes at the end of the turn; unsent output is lost. `closed` follows.
    pub fn close(&mut self, connection: ConnectionId) {
        self.end(connection, Closed::ByService);
    }

    /// Reads no more, sends what was appended, then closes. `closed` follows, after a second at
    /// the latest.
    pub fn close_after_flush(&mut self, connection: ConnectionId) {
        let Some(found) = self.get_mut(connection) else { return };
        match found.phase {
            Phase::Open => {
                found.phase = Phase::Draining;
                self.draining.push(connection);
                self.mark_dirty(connection);
            }
            Phase::Connecting { .. } => self.close(connection),
            Phase::Draining | Phase::Closing { .. } => {}
        }
    }

    /// Begins to connect to a server. `opened` or `connect_failed` follows, never within this call.
    /// There is no time limit but the system's: a service in a hurry closes the connection.
    pub fn connect(&mut self, address: SocketAddr, tag: ConnectTag, class: Class) -> ConnectionId {
        let phase = Phase::Connecting { tag, address };
        let connection = self.insert(Connection::new(class, phase));
        self.connecting.push(connection);
        connection
    }

    pub(crate) fn end(&mut self, connection: ConnectionId, why: Closed) {
        let Some(found) = self.get_mut(connection) else { return };
        match found.phase {
            Phase::Closing { .. } => {}
            Phase::Connecting { .. } | Phase::Open | Phase::Draining => {
                found.phase = Phase::Closing { why };
                self.closing.push(connection);
            }
        }
    }

    pub(crate) fn insert(&mut self, connection: Connection) -> ConnectionId {
        let slot = self.free.pop_front().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            self.slots.len() - 1
        });
        let place = &mut self.slots[slot];
        assert!(place.connection.is_none(), "slot {slot} is in use");
        place.generation = place.generation.wrapping_add(1);
        place.connection = Some(Box::new(connection));
        ConnectionId::new(self.reactor, slot, place.generation)
    }

    pub(crate) fn remove(&mut self, connection: ConnectionId) -> Option<Box<Connection>> {
        self.get(connection)?;
        self.free.push_back(connection.slot());
        let mut removed = self.slots[connection.slot()].connection.take()?;
        removed.output.release(&mut self.buffers);
        Some(removed)
    }

    pub(crate) fn get(&self, connection: ConnectionId) -> Option<&Connection> {
        let slot = self.slots.get(connection.slot())?;
        let same = ConnectionId::new(self.reactor, connection.slot(), slot.generation);
        slot.connection.as_deref().filter(|_| same == connection)
    }

    pub(crate) fn get_mut(&mut self, connection: ConnectionId) -> Option<&mut Connection> {
        let slot = self.slots.get_mut(connection.slot())?;
        let same = ConnectionId::new(self.reactor, connection.slot(), slot.generation);
        slot.connection.as_deref_mut().filter(|_| same == connection)
    }

    /// Whether there is not a single connection.
    pub(crate) fn is_empty(&self) -> bool {
        self.slots.len() == self.free.len()
    }

    /// Whether some connection has input to be given.
    pub(crate) fn has_ready(&self) -> bool {
        self.ready.iter().any(|queue| !queue.is_empty())
    }

    /// Whether something is to be done for some connection.
    pub(crate) fn has_work(&self) -> bool {
        let idle = self.dirty.is_empty() && self.closing.is_empty() && self.connecting.is_empty();
        !idle || self.has_ready()
    }

    /// All connections there are.
    pub(crate) fn all(&self) -> Vec<ConnectionId> {
        let used = self.slots.iter().enumerate().filter(|(_, slot)| slot.connection.is_some());
        used.map(|(slot, place)| ConnectionId::new(self.reactor, slot, place.generation)).collect()
    }

    pub(crate) fn mark_ready(&mut self, connection: ConnectionId) {
        let Some(found) = self.get_mut(connection) else { return };
        if !found.is_queued {
            found.is_queued = true;
            let class = found.class;
            self.ready[class as usize].push_back(connection);
        }
    }

    pub(crate) fn mark_dirty(&mut self, connection: ConnectionId) {
        let Some(found) = self.get_mut(connection) else { return };
        if !found.is_dirty {
            found.is_dirty = true;
            self.dirty.push(connection);
        }
    }
}
