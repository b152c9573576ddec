//! Identifiers of connections.

use crate::ReactorId;
use std::fmt;

/// A connection of one of this process's reactors. The id combines a slot of the reactor's table
/// with a generation, so it is not reused while a former holder could still use it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(u64);

const SLOT_BITS: u32 = 24;
const GENERATION_BITS: u32 = 24;

impl ConnectionId {
    /// Most connections of one reactor.
    pub const SLOTS_MAX: usize = 1 << SLOT_BITS;

    /// Creates the id of a connection in this slot of the reactor's table.
    pub fn new(reactor: ReactorId, slot: usize, generation: u32) -> ConnectionId {
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
    pub const fn from_number(number: u64) -> ConnectionId {
        ConnectionId(number)
    }

    /// Returns the connection's slot in the reactor's table.
    pub fn slot(self) -> usize {
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
