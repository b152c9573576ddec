//! Identifiers and classes of connections.

use crate::buffers::BUFFER_BYTES;
use std::fmt;
use types::ReactorId;

/// A connection of one of this process's reactors. The id combines a slot of the reactor's table
/// with a generation, so it is not reused while a former holder could still use it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(u64);

const SLOT_BITS: u32 = 24;
const GENERATION_BITS: u32 = 24;

impl ConnectionId {
    /// Most connections of one reactor.
    pub(crate) const SLOTS_MAX: usize = 1 << SLOT_BITS;

    pub(crate) fn new(reactor: ReactorId, slot: usize, generation: u32) -> ConnectionId {
        assert!(slot < Self::SLOTS_MAX, "connection slot {slot} is out of range");
        let generation = u64::from(generation) & ((1 << GENERATION_BITS) - 1);
        ConnectionId(
            u64::from(reactor.0) << (SLOT_BITS + GENERATION_BITS)
                | generation << SLOT_BITS
                | slot as u64,
        )
    }

    /// Returns the reactor that owns the connection. Mail about the connection goes there.
    pub fn reactor(self) -> ReactorId {
        ReactorId((self.0 >> (SLOT_BITS + GENERATION_BITS)) as u16)
    }

    /// Returns the id as a number, unique in this process.
    pub fn number(self) -> u64 {
        self.0
    }

    /// Returns the connection with this [`Self::number`].
    pub fn from_number(number: u64) -> ConnectionId {
        ConnectionId(number)
    }

    pub(crate) fn slot(self) -> usize {
        (self.0 & ((1 << SLOT_BITS) - 1)) as usize
    }
}

impl fmt::Debug for ConnectionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let generation = (self.0 >> SLOT_BITS) & ((1 << GENERATION_BITS) - 1);
        write!(f, "c{}.{}.{}", self.reactor().0, self.slot(), generation)
    }
}

impl fmt::Display for ConnectionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// Identifies a listener to the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Port(pub u8);

/// Identifies an outgoing connection to the service that requested it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConnectTag(pub u64);

/// Most bytes read from all connections of a class in one turn: about 30 us of copying for bulk
/// data, and a thousand small requests.
pub(crate) const TURN_BYTES_MAX: usize = 128 << 10;

/// The purpose of a connection. It determines the service order, the bytes per turn, and the
/// socket options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Between servers, with operations that wait for a reply: served first in every turn.
    Priority,
    /// Between servers: bulk data.
    Bus,
    /// From a client.
    Client,
}

impl Class {
    /// All classes, in the order in which a turn serves them.
    pub(crate) const ALL: [Class; 3] = [Class::Priority, Class::Bus, Class::Client];

    /// Returns how many bytes are read from one connection in one turn; the last read may exceed
    /// it. A client gets one bite, so that a deep pipeline does not delay other clients. A server
    /// gets one or more whole pull replies.
    pub(crate) const fn connection_bytes_max(self) -> usize {
        match self {
            Class::Priority | Class::Bus => TURN_BYTES_MAX,
            Class::Client => BUFFER_BYTES,
        }
    }

    /// Returns whether the peer is a server of the cluster, whose announced sizes are trusted.
    pub(crate) const fn is_bus(self) -> bool {
        match self {
            Class::Priority | Class::Bus => true,
            Class::Client => false,
        }
    }
}
