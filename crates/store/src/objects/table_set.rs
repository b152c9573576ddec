//! Sets of tables.

use types::TableId;
use types::limits::TABLES_MAX;

/// A set of tables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableSet(u32);

const _: () = assert!(TABLES_MAX <= u32::BITS as usize);

impl TableSet {
    /// The empty set.
    pub const NONE: TableSet = TableSet(0);

    /// The set of all tables.
    pub const ALL: TableSet = TableSet(u32::MAX);

    /// Returns the set of one table.
    pub fn of(table: TableId) -> TableSet {
        debug_assert!(usize::from(table.0) < TABLES_MAX, "{table:?} of {TABLES_MAX}");
        TableSet(1 << table.0)
    }

    /// Returns this set with the table added.
    #[must_use]
    pub fn with(self, table: TableId) -> TableSet {
        TableSet(self.0 | TableSet::of(table).0)
    }

    /// Returns the union of both sets.
    #[must_use]
    pub fn union(self, other: TableSet) -> TableSet {
        TableSet(self.0 | other.0)
    }

    /// Returns whether the set contains the table.
    #[inline]
    pub fn contains(self, table: TableId) -> bool {
        self.0 & TableSet::of(table).0 != 0
    }

    /// Returns whether the set is empty.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns the set as bits, table 0 lowest.
    pub(super) fn bits(self) -> u32 {
        self.0
    }

    /// Returns the set with these bits.
    pub(super) fn from_bits(bits: u32) -> TableSet {
        TableSet(bits)
    }
}
