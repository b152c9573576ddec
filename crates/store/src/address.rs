//! Where an entry stands in the arena.
//!
//! An address is what the index keeps for a record. It counts units of 8 bytes from the arena's
//! beginning, so that 38 bits reach 2 TiB. It says nothing about lifetime: whoever holds one must
//! be within a turn (see [`Turn`](crate::log::Turn)) that began before the entry was given up.

use std::fmt;

/// Bits that an address takes in an index word.
pub(crate) const ADDRESS_BITS: u32 = 38;

/// Bytes per unit: the alignment of entries.
pub(crate) const ADDRESS_UNIT: usize = wire::entry::ALIGNMENT;

/// Most bytes that an arena may have.
pub(crate) const ARENA_BYTES_MAX: usize = ADDRESS_UNIT << ADDRESS_BITS;

/// Place of an entry in the arena, in units of 8 bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address(u64);

impl Address {
    /// The address of this number of units. Only a number that came from [`Address::units`] means
    /// anything.
    ///
    /// # Panics
    /// If the number has more than 38 bits.
    #[inline]
    pub fn from_units(units: u64) -> Address {
        assert!(units < 1 << ADDRESS_BITS, "address of {units} units");
        Address(units)
    }

    /// The address as a number of units, below 2^38.
    #[inline]
    pub const fn units(self) -> u64 {
        self.0
    }

    /// So many bytes, a multiple of a unit, behind it.
    #[inline]
    pub(crate) fn plus(self, bytes: u32) -> Address {
        Address::from_units(self.0 + u64::from(bytes) / ADDRESS_UNIT as u64)
    }

    /// Bytes from the arena's beginning.
    #[inline]
    pub(crate) const fn bytes(self) -> usize {
        self.0 as usize * ADDRESS_UNIT
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "@{:x}", self.bytes())
    }
}
