//! Tablets: the ranges of key hashes that this server holds, and the operations that it allows on
//! each.
//!
//! A [`TabletMap`] is an immutable snapshot, replaced as a whole. Each worker adopts the newest
//! map at the start of its turn, so ownership is constant within a turn. A caller that must know
//! when the previous map is unused waits for a grace period after publishing.
//!
//! Invariants: tablets are sorted and never overlap. This server does not own a hash outside all
//! tablets.

use super::arrival::Arrival;
use super::range_clock::RangeClock;
use super::recovery::Recovery;
use super::table_set::TableSet;
use std::sync::Arc;
use types::limits::TABLES_MAX;
use types::{HashRange, Incarnation, KeyHash, OwnershipEpoch, SLOT_COUNT};

/// State of a tablet, which decides the allowed operations.
#[derive(Clone, Debug)]
pub enum TabletState {
    /// The server executes every operation.
    Serving,
    /// Source of a migration, from the freeze to its outcome: operations wait and nothing
    /// changes.
    Frozen,
    /// Source after an accepted flip: the copy serves pulls, and operations are redirected.
    Leaving,
    /// Target of a migration: the server executes operations, but records above the progress may
    /// be missing.
    Arriving(Arc<Arrival>),
    /// Range of a dead server that this server takes over once its log is replayed: operations
    /// wait.
    Recovering(Arc<Recovery>),
    /// Recovered range: all of it is replayed and the server executes operations. But it still
    /// depends on the dead server's log. Tombstones must stay, because an older record may be
    /// read there again.
    Securing(Arc<Recovery>),
}

/// A range of key hashes that this server holds, in all tables.
#[derive(Clone, Debug)]
pub struct Tablet {
    /// Key hashes of the tablet.
    pub range: HashRange,
    /// Ownership epoch. Rises at every change of owner.
    pub epoch: OwnershipEpoch,
    /// Incarnation of the range, per table. The server writes it into new entries.
    pub incarnations: [Incarnation; TABLES_MAX],
    /// Allowed operations.
    pub state: TabletState,
    /// Clock that decides expiry in the range.
    pub clock: RangeClock,
    /// Tables that are being flushed: operations on them wait, and arriving records of theirs are
    /// dropped.
    pub flushing: TableSet,
}

/// All tablets of a server at one moment.
pub struct TabletMap {
    tablets: Vec<Tablet>,
    /// Per slot, the index of the first tablet that does not end below it.
    first_of_slot: Box<[u16]>,
}

impl TabletMap {
    /// Creates a map of these tablets, given in any order.
    ///
    /// # Panics
    /// If two tablets overlap: a bug of the caller.
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

    /// Returns the tablet that contains the hash.
    #[inline]
    pub fn at(&self, hash: KeyHash) -> Option<&Tablet> {
        let mut index = usize::from(self.first_of_slot[usize::from(hash.slot().0)]);
        // One iteration per tablet border inside the slot: none for tablets of whole slots.
        loop {
            let tablet = self.tablets.get(index)?;
            if hash <= tablet.range.last() {
                return (tablet.range.first() <= hash).then_some(tablet);
            }
            index += 1;
        }
    }

    /// Returns the ownership epoch of an accessible hash.
    pub(super) fn epoch_at(&self, hash: KeyHash) -> OwnershipEpoch {
        self.at(hash).expect("an accessible hash is in a tablet").epoch
    }

    /// Returns the tablets that overlap the slot, in ascending order.
    pub fn of_slot(&self, slot: types::Slot) -> impl Iterator<Item = &Tablet> {
        let first = usize::from(self.first_of_slot[usize::from(slot.0)]);
        let last = slot.last_hash();
        self.tablets[first..].iter().take_while(move |tablet| tablet.range.first() <= last)
    }

    /// Returns all tablets, in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = &Tablet> {
        self.tablets.iter()
    }
}

impl Default for TabletMap {
    fn default() -> TabletMap {
        TabletMap::new(Vec::new())
    }
}
