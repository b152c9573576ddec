//! The names of connections, and what sets them apart.

use crate::buffers::BUFFER_BYTES;
use std::fmt;
use types::ReactorId;

/// A connection of one of this process's reactors. Never given twice while the old holder could
/// still use it: a slot of the reactor's table, and how often the slot was given before.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(u64);

const SLOT_BITS: u32 = 24;
const GENERATION_BITS: u32 = 24;

impl ConnectionId {
    /// Connections that one reactor can hold.
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

    /// The reactor that holds it: mail about this connection goes there.
    pub fn reactor(self) -> ReactorId {
        ReactorId((self.0 >> (SLOT_BITS + GENERATION_BITS)) as u16)
    }

    /// Its number, unique in this process.
    pub fn number(self) -> u64 {
        self.0
    }

    /// The connection of this [`Self::number`], for who kept only that.
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

/// Names a listener to the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Port(pub u8);

/// Names an outgoing connection to the service that asked for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConnectTag(pub u64);

/// Bytes read from all connections of a class in one turn: about 30 us of copying for bulk, and a
/// thousand small requests.
pub(crate) const TURN_BYTES_MAX: usize = 128 << 10;

/// What a connection is for: in which order it is served, how much of it in one turn, and how its
/// socket is set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Between servers, and somebody waits for it: served first in every turn.
    Priority,
    /// Between servers: bulk.
    Bus,
    /// From a client.
    Client,
}

impl Class {
    /// All classes, in the order in which a turn serves them.
    pub(crate) const ALL: [Class; 3] = [Class::Priority, Class::Bus, Class::Client];

    /// Bytes read from one connection in one turn, by more than one read at most. Clients: one
    /// bite, so that one with a deep pipeline takes its turn like the others. Servers: one or more
    /// whole pull replies.
    pub(crate) const fn connection_bytes_max(self) -> usize {
        match self {
            Class::Priority | Class::Bus => TURN_BYTES_MAX,
            Class::Client => BUFFER_BYTES,
        }
    }

    /// Whether the peer is a server of ours, which may be believed when it announces a size.
    pub(crate) const fn is_bus(self) -> bool {
        match self {
            Class::Priority | Class::Bus => true,
            Class::Client => false,
        }
    }
}
