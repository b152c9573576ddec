//! Which ranges of key hashes this server holds, and what it may do with each.
//!
//! A [`TabletMap`] is an immutable picture. It is replaced as a whole, and each worker goes on to
//! the newest at the top of its turn, so that within one turn ownership stands still. Whoever
//! must know that nobody uses the previous picture waits for a grace period after publishing.
//!
//! Invariants: tablets are sorted and never overlap; a hash outside of all of them is not ours.

use super::arrival::Arrival;
use super::range_clock::RangeClock;
use super::recovery::Recovery;
use std::sync::Arc;
use types::limits::TABLES_MAX;
use types::{HashRange, KeyHash, OwnershipEpoch, SLOT_COUNT, TableId, Tenure};

/// What a server may do with a tablet.
#[derive(Clone, Debug)]
pub enum TabletState {
    /// Every operation is served.
    Serving,
    /// Source of a migration, from the freeze to its outcome: operations are held, nothing
    /// changes.
    Frozen,
    /// Source after an accepted flip: the copy is kept for pulls, operations are not ours.
    Leaving,
    /// Target of a migration: operations are served, but records above the progress may be
    /// missing.
    Arriving(Arc<Arrival>),
    /// Of a dead server, and to be ours when its log has been replayed: operations are held.
    Recovering(Arc<Recovery>),
    /// All of it has been replayed, and operations are served. But it depends on the dead server's
    /// log: a tombstone must stay, since an older record may be read there once more.
    Securing(Arc<Recovery>),
}

/// A range of key hashes that this server holds, in all tables.
#[derive(Clone, Debug)]
pub struct Tablet {
    /// The hashes.
    pub range: HashRange,
    /// Rises at every change of owner.
    pub epoch: OwnershipEpoch,
    /// The stay under which each table's entries of the range are written.
    pub tenures: [Tenure; TABLES_MAX],
    /// What may be done with it.
    pub state: TabletState,
    /// By which clock expiry is judged in the range.
    pub clock: RangeClock,
    /// Tables that are being flushed: operations on them are held, and what arrives for them is
    /// dropped.
    pub flushing: TableSet,
}

/// A set of tables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableSet(u16);

const _: () = assert!(TABLES_MAX <= u16::BITS as usize);

impl TableSet {
    /// No table.
    pub const NONE: TableSet = TableSet(0);

    /// Every table.
    pub const ALL: TableSet = TableSet(u16::MAX);

    /// The set of one table.
    pub fn of(table: TableId) -> TableSet {
        TableSet(1 << table.0)
    }

    /// This set and that table.
    #[must_use]
    pub fn with(self, table: TableId) -> TableSet {
        TableSet(self.0 | TableSet::of(table).0)
    }

    /// What is in either set.
    #[must_use]
    pub fn union(self, other: TableSet) -> TableSet {
        TableSet(self.0 | other.0)
    }

    /// What is in this set and not in the other.
    #[must_use]
    pub fn without(self, other: TableSet) -> TableSet {
        TableSet(self.0 & !other.0)
    }

    /// Whether the table is in the set.
    #[inline]
    pub fn contains(self, table: TableId) -> bool {
        self.0 & TableSet::of(table).0 != 0
    }

    /// Whether no table is in the set.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The set as bits, table 0 lowest.
    pub(super) fn bits(self) -> u16 {
        self.0
    }

    /// The set with these bits.
    pub(super) fn from_bits(bits: u16) -> TableSet {
        TableSet(bits)
    }
}

/// All tablets of a server at one moment.
#[derive(Debug)]
pub struct TabletMap {
    tablets: Vec<Tablet>,
    /// Per slot the first tablet that does not end below it.
    first_of_slot: Box<[u16]>,
}

impl TabletMap {
    /// The map of these tablets, given in any order.
    ///
    /// # Panics
    /// If two tablets overlap: our bug.
    pub fn new(mut tablets: Vec<Tablet>) -> TabletMap {
        tablets.sort_by_key(|tablet| tablet.range.first());
        for pair in tablets.windows(2) {
            let (low, high) = (pair[0].range, pair[1].range);
            assert!(low.last() < high.first(), "tablets overlap: {low} and {high}");
        }
        assert!(tablets.len() < usize::from(u16::MAX), "{} tablets", tablets.len());
        let mut first = 0;
        let first_of_slot = (0..SLOT_COUNT)
            .map(|slot| {
                let start = types::Slot(slot).first_hash();
                while tablets.get(first).is_some_and(|tablet| tablet.range.last() < start) {
                    first += 1;
                }
                first as u16
            })
            .collect();
        TabletMap { tablets, first_of_slot }
    }

    /// The tablet that the hash lies in.
    #[inline]
    pub fn at(&self, hash: KeyHash) -> Option<&Tablet> {
        let mut index = usize::from(self.first_of_slot[usize::from(hash.slot().0)]);
        // One round for every border inside of the slot: none for tablets of whole slots.
        loop {
            let tablet = self.tablets.get(index)?;
            if hash <= tablet.range.last() {
                return (tablet.range.first() <= hash).then_some(tablet);
            }
            index += 1;
        }
    }

    /// The lowest tablet that does not end below the hash.
    pub fn at_or_after(&self, hash: KeyHash) -> Option<&Tablet> {
        let first = usize::from(self.first_of_slot[usize::from(hash.slot().0)]);
        self.tablets[first..].iter().find(|tablet| hash <= tablet.range.last())
    }

    /// The tablets that have a hash of the slot, in ascending order.
    pub fn of_slot(&self, slot: types::Slot) -> impl Iterator<Item = &Tablet> {
        let first = usize::from(self.first_of_slot[usize::from(slot.0)]);
        let last = slot.last_hash();
        self.tablets[first..].iter().take_while(move |tablet| tablet.range.first() <= last)
    }

    /// All tablets, in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = &Tablet> {
        self.tablets.iter()
    }
}

impl Default for TabletMap {
    fn default() -> TabletMap {
        TabletMap::new(Vec::new())
    }
}
