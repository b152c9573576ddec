//! The service's view of one reactor's connections: output buffers and requested effects. It is
//! plain data; the reactor executes the effects after the service has returned.
//!
//! Invariant: no call can fail. An invalid id (the peer has gone meanwhile) discards output and
//! ignores requests, so a late reply needs no special case in the service.

use crate::buffers::Buffers;
use crate::connection::{Class, Closed, ConnectTag};
use crate::input::Input;
use crate::output::Output;
use std::collections::VecDeque;
use std::net::SocketAddr;
use types::ConnectionId;
use types::ReactorId;
use types::limits::CLIENT_BACKLOG_MAX;

/// Phase in the life of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectionPhase {
    /// `connect` was called; the connection is neither established nor failed.
    Connecting { tag: ConnectTag, address: SocketAddr },
    /// In use.
    Open,
    /// Remaining output is sent, then the connection is closed. It is no longer read.
    Draining,
    /// The connection is closed at the end of the turn.
    Closing { why: Closed },
}

/// The reactor's state of one connection.
pub(crate) struct Connection {
    pub(crate) class: Class,
    pub(crate) phase: ConnectionPhase,
    /// Class under which it was counted when it was accepted; `None` for outgoing ones.
    pub(crate) placed_as: Option<Class>,
    pub(crate) input: Input,
    pub(crate) output: Output,
    /// The driver may have more to read.
    pub(crate) is_readable: bool,
    /// The last `send` could not send everything. The driver reports when sending can continue.
    pub(crate) is_blocked: bool,
    /// The service does not want input at present.
    pub(crate) is_paused: bool,
    /// Buffered input must be passed to the service again although nothing was read.
    pub(crate) is_resumed: bool,
    /// State of the peer's end of input.
    pub(crate) end: InputEnd,
    /// Membership in `Io::ready`, and in `Io::dirty`.
    pub(crate) is_queued: bool,
    pub(crate) is_dirty: bool,
}

/// State of a peer's input stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InputEnd {
    /// More bytes may come.
    Open,
    /// The last byte was read; the service does not know yet.
    Reached,
    /// The service was notified.
    Reported,
}

impl Connection {
    pub(crate) fn new(class: Class, phase: ConnectionPhase) -> Connection {
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

    /// Returns whether the peer has so many unread replies that it receives no more at present.
    pub(crate) fn is_congested(&self) -> bool {
        !self.class.is_bus() && self.output.backlog() > CLIENT_BACKLOG_MAX
    }

    /// Returns whether input may be read and passed to the service.
    pub(crate) fn may_receive(&self) -> bool {
        self.phase == ConnectionPhase::Open && !self.is_paused && !self.is_congested()
    }
}

/// One slot of the connection table.
#[derive(Default)]
struct ConnectionSlot {
    generation: u32,
    connection: Option<Box<Connection>>,
}

/// The connections of one reactor, and the effects that the service has requested.
pub struct Io {
    reactor: ReactorId,
    slots: Vec<ConnectionSlot>,
    /// Free slots, oldest first, so that a slot stays unused as long as possible.
    free: VecDeque<usize>,
    pub(crate) buffers: Buffers,
    /// Connections with input for the service, by class.
    pub(crate) ready: [VecDeque<ConnectionId>; Class::ALL.len()],
    /// Connections with output to send.
    pub(crate) dirty: Vec<ConnectionId>,
    /// Connections to close.
    pub(crate) closing: Vec<ConnectionId>,
    /// Connections to close once their output is sent, or at a deadline.
    pub(crate) draining: Vec<ConnectionId>,
    /// Connections to establish.
    pub(crate) connecting: Vec<ConnectionId>,
    /// Receives the output for closed connections.
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

    /// Returns whether the connection can still be written to.
    pub fn is_open(&self, connection: ConnectionId) -> bool {
        self.get(connection).is_some_and(|found| match found.phase {
            ConnectionPhase::Open => true,
            ConnectionPhase::Connecting { .. }
            | ConnectionPhase::Draining
            | ConnectionPhase::Closing { .. } => false,
        })
    }

    /// Returns the buffer to which output is appended. It is sent at the end of the turn.
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

    /// Sends a whole buffer after the output appended so far, without copying it. Worthwhile from
    /// a few KiB on; append smaller ones to `output`.
    pub fn send_owned(&mut self, connection: ConnectionId, buffer: Vec<u8>) {
        if !self.is_open(connection) || buffer.is_empty() {
            return self.buffers.give(buffer);
        }
        self.mark_dirty(connection);
        if let Some(found) = self.get_mut(connection) {
            found.output.push(buffer);
        }
    }

    /// Returns the number of bytes appended but not yet accepted by the operating system.
    pub fn output_backlog(&self, connection: ConnectionId) -> usize {
        self.get(connection).map_or(0, |found| found.output.backlog())
    }

    /// Returns whether a client has so many unread replies that it is not read. A service leaves
    /// further complete requests in the input; they are passed again when enough output has been
    /// sent. Always false for servers, whose protocols limit outstanding data.
    pub fn is_congested(&self, connection: ConnectionId) -> bool {
        self.get(connection).is_some_and(Connection::is_congested)
    }

    /// Returns an empty buffer of at least `bytes`, to be filled and passed to `send_owned`.
    pub fn buffer(&mut self, bytes: usize) -> Vec<u8> {
        self.buffers.take_large(bytes)
    }

    /// Takes back a buffer from [`Input::take`] or `buffer`, for reuse.
    pub fn recycle(&mut self, buffer: Vec<u8>) {
        self.buffers.give(buffer);
    }

    /// Stops reading and passing input until `resume_reading`. Meanwhile the end of the input is
    /// not noticed either, unless the connection breaks.
    pub fn pause_reading(&mut self, connection: ConnectionId) {
        if let Some(found) = self.get_mut(connection) {
            found.is_paused = true;
        }
    }

    /// Resumes reading. Unconsumed input is passed again, in the next turn at the latest.
    pub fn resume_reading(&mut self, connection: ConnectionId) {
        if let Some(found) = self.get_mut(connection)
            && found.is_paused
        {
            found.is_paused = false;
            found.is_resumed = true;
            self.mark_ready(connection);
        }
    }

    /// Changes the class of the connection, for instance when a handshake has determined it.
    pub fn set_class(&mut self, connection: ConnectionId, class: Class) {
        if let Some(found) = self.get_mut(connection) {
            found.class = class;
        }
    }

    /// Closes the connection at the end of the turn; unsent output is lost. `closed` follows.
    pub fn close(&mut self, connection: ConnectionId) {
        self.end(connection, Closed::ByService);
    }

    /// Stops reading, sends the appended output, then closes. `closed` follows within a second.
    pub fn close_after_flush(&mut self, connection: ConnectionId) {
        let Some(found) = self.get_mut(connection) else { return };
        match found.phase {
            ConnectionPhase::Open => {
                found.phase = ConnectionPhase::Draining;
                self.draining.push(connection);
                self.mark_dirty(connection);
            }
            ConnectionPhase::Connecting { .. } => self.close(connection),
            ConnectionPhase::Draining | ConnectionPhase::Closing { .. } => {}
        }
    }

    /// Starts connecting to a server. `opened` or `connect_failed` follows, never within this call.
    /// The only time limit is the system's; a service with a shorter one closes the connection.
    pub fn connect(&mut self, address: SocketAddr, tag: ConnectTag, class: Class) -> ConnectionId {
        let phase = ConnectionPhase::Connecting { tag, address };
        let connection = self.insert(Connection::new(class, phase));
        self.connecting.push(connection);
        connection
    }

    pub(crate) fn end(&mut self, connection: ConnectionId, why: Closed) {
        let Some(found) = self.get_mut(connection) else { return };
        match found.phase {
            ConnectionPhase::Closing { .. } => {}
            ConnectionPhase::Connecting { .. }
            | ConnectionPhase::Open
            | ConnectionPhase::Draining => {
                found.phase = ConnectionPhase::Closing { why };
                self.closing.push(connection);
            }
        }
    }

    pub(crate) fn insert(&mut self, connection: Connection) -> ConnectionId {
        let slot = self.free.pop_front().unwrap_or_else(|| {
            self.slots.push(ConnectionSlot::default());
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

    /// Returns whether there is no connection at all.
    pub(crate) fn is_empty(&self) -> bool {
        assert!(self.free.len() <= self.slots.len(), "a slot is free twice");
        self.slots.len() == self.free.len()
    }

    /// Returns whether any connection has input for the service.
    pub(crate) fn has_ready(&self) -> bool {
        self.ready.iter().any(|queue| !queue.is_empty())
    }

    /// Returns whether any connection has pending work.
    pub(crate) fn has_work(&self) -> bool {
        let idle = self.dirty.is_empty() && self.closing.is_empty() && self.connecting.is_empty();
        !idle || self.has_ready()
    }

    /// Returns the ids of all connections.
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
