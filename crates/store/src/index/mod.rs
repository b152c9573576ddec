//! The index: a map from key hashes to log addresses, ordered by key hash. Its layout and its
//! invariants are in `docs/design/index.md`.
//!
//! - [`Index`]: the index of one table; [`Slab`]: the memory of all indexes;
//! - [`Index::find`]: search without a lock. A hit is always valid; a miss counts only if no
//!   thread was writing;
//! - [`Index::lock`]: returns a [`LeafGuard`], to insert, replace and remove;
//! - [`Index::walk`]: walks any range in steps.
//!
//! The index knows no keys: it compares tags, and the caller compares keys. Outside this module:
//! versions, publication of several keys, the meaning of addresses, and the end of turns.
//!
//! Only `bucket.rs` contains `unsafe`.

mod bucket;
mod detached;
mod growth;
mod guard;
mod leaf;
mod runs;
mod slab;
mod tree;
mod walk;
mod word;

#[cfg(test)]
mod fixture;
#[cfg(all(test, feature = "shuttle"))]
mod interleavings;
#[cfg(all(test, not(feature = "shuttle")))]
mod tests;

pub use detached::DetachedLeaves;
pub use guard::LeafGuard;
pub use slab::Slab;
pub use walk::WalkBudget;
pub(crate) use word::UNSEEN_BITS;
pub use word::{Word, WordKind};

use crate::log::Turn;
use bucket::{BlockUse, Cell, Node};
use growth::Builder;
use leaf::{Leaf, LeafTotals};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tree::{TreePosition, descend, for_each_leaf, spin};
use types::{KeyHash, SLOT_COUNT, Slot};
use word::Tag;

/// The index of one table, shared by all reactors. It lives as long as its store: dropping it
/// does not return its blocks to the slab.
pub struct Index {
    /// One cell per slot.
    root: Box<[Cell]>,
    slab: Arc<Slab>,
    /// Total bytes of leaves and directories.
    bytes: AtomicU64,
}

/// Result of a search without a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Find {
    /// A word that the caller has accepted.
    Hit(Word),
    /// There was no such word at some moment during the call.
    Miss,
    /// The leaf was being changed throughout the search. A later retry may succeed.
    Contended,
}

/// Error of a lock attempt: another operation held the leaf for longer than a short wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the leaf is held by another operation")]
pub struct Contended;

/// The reason why a leaf was not locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LockError {
    /// Another operation holds it. A later retry may succeed.
    #[error("the leaf is held by another operation")]
    Contended,
    /// The slot had no leaf, and there is no memory for one.
    #[error("no memory for another index leaf")]
    OutOfMemory,
}

/// The reason why there is no room for another word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoRoom {
    /// The leaf would have to grow, and there is no memory.
    #[error("no memory for the index to grow")]
    OutOfMemory,
    /// Too many records have almost the same hash: their slot has its maximum size.
    #[error("too many records with almost the same hash")]
    Full,
}

/// Sequence of a leaf, for checking later whether the leaf has changed.
#[derive(Clone, Copy)]
pub struct LeafSequence<'t> {
    seen: SequenceState<'t>,
}

#[derive(Clone, Copy)]
enum SequenceState<'t> {
    /// The cell had no leaf.
    Nothing(&'t Cell),
    Leaf(Leaf<'t>, u64),
}

/// Contents of a slot in one table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlotCount {
    /// Number of records, without tombstones.
    pub records: u64,
    /// Log bytes of records and tombstones.
    pub bytes: u64,
    /// Number of leaves that were read for this count.
    pub leaves: usize,
}

impl Index {
    /// Creates an empty index. Takes 128 KiB for its root.
    pub fn new(slab: Arc<Slab>) -> Index {
        let root = (0..SLOT_COUNT).map(|_| Cell::new(0)).collect();
        Index { root, slab, bytes: AtomicU64::new(0) }
    }

    /// Searches for a word of this hash that `is_it` accepts. `is_it` receives words with the
    /// same tag, possibly repeatedly.
    #[inline]
    pub fn find(
        &self,
        hash: KeyHash,
        turn: &Turn<'_>,
        mut is_it: impl FnMut(Word) -> bool,
    ) -> Find {
        self.check(turn);
        let tag = Tag::of(hash);
        let Some((_, leaf)) = self.place(hash, turn).leaf else { return Find::Miss };
        match leaf.find(tag, &mut is_it) {
            Some(word) => Find::Hit(word),
            None => self.find_carefully(hash, turn, is_it),
        }
    }

    /// Prefetches the cache line of the hash's home bucket.
    #[inline]
    pub fn prefetch(&self, hash: KeyHash, turn: &Turn<'_>) {
        self.check(turn);
        if let Some((_, leaf)) = self.place(hash, turn).leaf {
            bucket::prefetch(leaf.bucket(leaf.home(Tag::of(hash))));
        }
    }

    /// Prefetches all cache lines that a change under this hash touches.
    #[inline]
    pub fn prefetch_for_change(&self, hash: KeyHash, turn: &Turn<'_>) {
        self.check(turn);
        if let Some((_, leaf)) = self.place(hash, turn).leaf {
            leaf.touched_by(Tag::of(hash)).for_each(bucket::prefetch);
        }
    }

    /// Passes words that may have this hash to `see`. A hint: concurrent changes may be missed.
    #[inline]
    pub fn candidates(&self, hash: KeyHash, turn: &Turn<'_>, mut see: impl FnMut(Word)) {
        self.check(turn);
        if let Some((_, leaf)) = self.place(hash, turn).leaf {
            leaf.find(Tag::of(hash), |word| {
                see(word);
                false
            });
        }
    }

    /// Returns the sequence of the hash's leaf; `None` while another thread changes it. All
    /// search results between this call and a successful [`Index::is_unchanged`] were valid at
    /// one moment. For several hashes, take all sequences before the searches and check all of
    /// them after.
    #[inline]
    pub fn sequence<'t>(&'t self, hash: KeyHash, turn: &'t Turn<'_>) -> Option<LeafSequence<'t>> {
        self.check(turn);
        let place = self.place(hash, turn);
        let seen = match place.leaf {
            None => SequenceState::Nothing(place.cell),
            Some((_, leaf)) => {
                let sequence = leaf.sequence();
                if !sequence.is_multiple_of(2) {
                    return None;
                }
                SequenceState::Leaf(leaf, sequence)
            }
        };
        Some(LeafSequence { seen })
    }

    /// Returns whether the leaf has not changed since the sequence was taken.
    #[inline]
    pub fn is_unchanged(&self, sequence: &LeafSequence<'_>) -> bool {
        match sequence.seen {
            SequenceState::Nothing(cell) => Node::in_cell(cell).is_none(),
            SequenceState::Leaf(leaf, number) => leaf.sequence() == number,
        }
    }

    /// Locks the leaf of the hash, after a wait of at most a few microseconds.
    ///
    /// Several leaves must be locked in ascending order of their hashes. Each leaf covers a whole
    /// range, so check [`LeafGuard::covers`] before locking for the next hash.
    #[inline(always)]
    pub fn lock<'t>(
        &'t self,
        hash: KeyHash,
        turn: &'t Turn<'_>,
    ) -> Result<LeafGuard<'t>, LockError> {
        self.check(turn);
        let locked = spin(|| {
            let place = self.place(hash, turn);
            match place.leaf {
                // A replaced leaf is never unlocked: a leaf that can be locked is current.
                Some((_, leaf)) => {
                    // The lock operation is a fence: without this prefetch it would delay the
                    // bucket's cache miss.
                    bucket::prefetch(leaf.bucket(leaf.home(Tag::of(hash))));
                    leaf.try_lock().then_some(Ok(place))
                }
                None => self.add_first_leaf(place, turn).transpose(),
            }
        });
        let place = locked.ok_or(LockError::Contended)??;
        Ok(LeafGuard::new(self, turn, &place, hash))
    }

    /// Does the same as [`Index::lock`] if the hash has a leaf; `None` if there is none. For
    /// callers that have prefetched what they touch.
    #[inline]
    pub fn lock_existing<'t>(
        &'t self,
        hash: KeyHash,
        turn: &'t Turn<'_>,
    ) -> Result<Option<LeafGuard<'t>>, LockError> {
        self.check(turn);
        let locked = spin(|| {
            let place = self.place(hash, turn);
            match place.leaf {
                Some((_, leaf)) => leaf.try_lock().then_some(Some(place)),
                None => Some(None),
            }
        });
        let place = locked.ok_or(LockError::Contended)?;
        Ok(place.map(|place| LeafGuard::new(self, turn, &place, hash)))
    }

    /// Returns whether the slot has a leaf.
    #[inline]
    pub fn is_used(&self, slot: Slot) -> bool {
        Node::in_cell(self.cell(slot)).is_some()
    }

    /// Creates an empty slot's leaf, or its directory of leaves, large enough for `records`
    /// records. Does nothing if the slot already has a leaf.
    pub fn reserve(&self, slot: Slot, records: u32, turn: &Turn<'_>) -> Result<(), NoRoom> {
        self.check(turn);
        let cell = self.cell(slot);
        if records == 0 || self.is_used(slot) {
            return Ok(());
        }
        let mut builder = Builder::new(&self.slab, turn);
        let made = builder.build_for(records as usize, 0)?;
        if cell.exchange(0, made.raw()) {
            self.bytes.fetch_add(builder.bytes(), Ordering::Relaxed);
            for_each_leaf(cell, 0, turn, &mut Leaf::unlock);
        } else {
            builder.discard(made);
        }
        Ok(())
    }

    /// Returns the contents of the slot.
    pub fn count(&self, slot: Slot, turn: &Turn<'_>) -> SlotCount {
        self.check(turn);
        let (mut sum, mut leaves) = (LeafTotals::default(), 0);
        for_each_leaf(self.cell(slot), 0, turn, &mut |leaf| {
            let LeafTotals { records, bytes } = leaf.totals();
            sum.records += records;
            sum.bytes += bytes;
            leaves += 1;
        });
        // While a leaf is divided, the parts' shares may be read at different moments.
        SlotCount { records: sum.records, bytes: sum.bytes.max(0) as u64, leaves }
    }

    /// Returns the number of records of the slot, without tombstones.
    pub fn records(&self, slot: Slot, turn: &Turn<'_>) -> u64 {
        self.count(slot, turn).records
    }

    /// Returns the log bytes of the slot's records and tombstones.
    pub fn bytes(&self, slot: Slot, turn: &Turn<'_>) -> u64 {
        self.count(slot, turn).bytes
    }

    /// Returns the total bytes of leaves and directories.
    pub fn memory(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Repeats a search that missed. A miss counts only if no thread was writing meanwhile.
    #[cold]
    fn find_carefully(
        &self,
        hash: KeyHash,
        turn: &Turn<'_>,
        mut is_it: impl FnMut(Word) -> bool,
    ) -> Find {
        let found = spin(|| {
            let Some((_, leaf)) = self.place(hash, turn).leaf else { return Some(Find::Miss) };
            let before = leaf.sequence();
            if let Some(word) = leaf.find(Tag::of(hash), &mut is_it) {
                return Some(Find::Hit(word));
            }
            let is_whole = before.is_multiple_of(2) && leaf.sequence() == before;
            is_whole.then_some(Find::Miss)
        });
        found.unwrap_or(Find::Contended)
    }

    /// Puts a locked leaf into an empty cell. Returns `None` if another thread was faster.
    fn add_first_leaf<'t>(
        &self,
        place: TreePosition<'t>,
        turn: &'t Turn<'_>,
    ) -> Result<Option<TreePosition<'t>>, LockError> {
        let node = self.slab.allocate(BlockUse::Leaf, 1).ok_or(LockError::OutOfMemory)?;
        let leaf = Leaf::new(node.block(turn), place.depth);
        leaf.clear();
        if !place.cell.exchange(0, node.raw()) {
            self.slab.free(node);
            return Ok(None);
        }
        self.bytes.fetch_add(node.bytes(), Ordering::Relaxed);
        Ok(Some(TreePosition { leaf: Some((node, leaf)), ..place }))
    }

    /// Replaces a leaf by a newly built node. The caller holds the leaf's guard.
    fn publish(&self, cell: &Cell, node: Node, bytes: u64) {
        let old = Node::in_cell(cell);
        assert!(old.is_some_and(|old| old != node), "a leaf is replaced by itself or by nothing");
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        cell.store(node.raw());
    }

    /// Retires a leaf that has been replaced. It stays locked forever.
    fn retire(&self, node: Node) {
        let before = self.bytes.fetch_sub(node.bytes(), Ordering::Relaxed);
        assert!(before >= node.bytes(), "{} bytes retire of {before}", node.bytes());
        self.slab.retire(node);
    }

    #[inline]
    fn place<'t>(&'t self, hash: KeyHash, turn: &'t Turn<'_>) -> TreePosition<'t> {
        descend(self.cell(hash.slot()), 0, Tag::of(hash), turn)
    }

    #[inline]
    fn cell(&self, slot: Slot) -> &Cell {
        &self.root[usize::from(slot.0)]
    }

    #[inline]
    fn check(&self, turn: &Turn<'_>) {
        assert!(self.slab.vouches_for(turn), "a turn of another store");
    }
}
