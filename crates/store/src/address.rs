//! Addresses of entries in the arena.
//!
//! The index stores an address per record. It counts units of 8 bytes from the start of the
//! arena, so that 38 bits reach 2 TiB. An address does not keep its entry alive: its holder must
//! be within a turn (see [`Turn`](crate::log::Turn)) that began before the entry was released.

use std::fmt;

/// Bits of an address in an index word.
pub(crate) const ADDRESS_BITS: u32 = 38;

/// Bytes per unit: the alignment of entries.
pub(crate) const ADDRESS_UNIT: usize = wire::entry::ALIGNMENT;

/// Maximum size of an arena in bytes.
pub(crate) const ARENA_BYTES_MAX: usize = ADDRESS_UNIT << ADDRESS_BITS;

/// Position of an entry in the arena, in units of 8 bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address(u64);

impl Address {
    /// Returns the address with this number of units. Only a number from [`Address::units`] is
    /// meaningful.
    ///
    /// # Panics
    /// If the number has more than 38 bits.
    #[inline]
    pub fn from_units(units: u64) -> Address {
        assert!(units < 1 << ADDRESS_BITS, "address of {units} units");
        Address(units)
    }

    /// Returns the number of units, below 2^38.
    #[inline]
    pub const fn units(self) -> u64 {
        self.0
    }

    /// Returns the address `bytes` behind this one. `bytes` is a multiple of the unit.
    #[inline]
    pub(crate) fn plus(self, bytes: u32) -> Address {
        Address::from_units(self.0 + u64::from(bytes) / ADDRESS_UNIT as u64)
    }

    /// Returns the offset from the start of the arena, in bytes.
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
