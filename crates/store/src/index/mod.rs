//! From a key hash to a place in the log, ordered by key hash.
//!
//! A slot has a leaf, or a directory of leaves of its own; a leaf has buckets of one cache line;
//! a bucket has words of {tag, address, kind}. Everything is in hash order down to the bucket, so
//! any range of hashes is a contiguous walk, and records that arrive in hash order touch
//! neighboring cache lines. Memory follows the data: a leaf grows by a quarter when two
//! neighboring buckets are full, and becomes a directory of eight beyond 64 buckets.
//!
//! - [`Index`]: one table's; [`Slab`]: the memory of all of them;
//! - [`Index::find`]: without a lock; a hit needs none, a miss counts only if nobody was writing;
//! - [`Index::lock`]: a [`LeafGuard`], to insert, replace and remove;
//! - [`Index::walk`]: any range in steps.
//!
//! Invariants:
//! - knows nothing of keys: it compares tags, the caller compares keys;
//! - what is found within a turn stays readable until the turn ends;
//! - the root and directories change only by who holds the leaf that is replaced.
//!
//! Left to others: which words belong together (versions, publication of several keys), what the
//! addresses mean, and when turns end. See `docs/design/index.md`.
//!
//! `unsafe` stands in `bucket.rs` only.

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

#[cfg(all(test, feature = "shuttle"))]
mod interleavings;
#[cfg(all(test, not(feature = "shuttle")))]
mod tests;
#[cfg(test)]
mod world;

pub use detached::DetachedLeaves;
pub use guard::LeafGuard;
pub use slab::Slab;
pub use walk::WalkBudget;
pub use word::{Kind, Word};

use crate::log::Turn;
use bucket::{Cell, Node, Use};
use growth::Builder;
use leaf::{Leaf, Totals};
use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};
use tree::{Place, descend, for_each_leaf, spin};
use types::{KeyHash, SLOT_COUNT, Slot};
use word::Tag;

/// The index of one table. Shared by all reactors. Lives as long as its store: dropping it does not
/// give its blocks back to the slab.
pub struct Index {
    /// A cell per slot.
    root: Box<[Cell]>,
    slab: Arc<Slab>,
    /// Of all leaves and directories.
    bytes: AtomicU64,
}

/// What a look without a lock found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Find {
    /// The word that the caller knew as its own.
    Hit(Word),
    /// There was no such word at some moment during the call.
    Miss,
    /// The leaf was being changed all the time. Trying again later helps.
    Contended,
}

/// Somebody else held the leaf for longer than a short wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the leaf is held by another operation")]
pub struct Contended;

/// Why a leaf was not locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LockError {
    /// Somebody else holds it. Trying again later helps.
    #[error("the leaf is held by another operation")]
    Contended,
    /// The slot had no leaf, and there is no memory for one.
    #[error("no memory for another index leaf")]
    OutOfMemory,
}

/// Why there is no place for another word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoRoom {
    /// The leaf would have to grow, and there is no memory.
    #[error("no memory for the index to grow")]
    OutOfMemory,
    /// Too many records have almost the same hash: their slot is as large as a slot can be.
    #[error("too many records with almost the same hash")]
    Full,
}

/// The state of a leaf, to find out later whether it is still the same.
#[derive(Clone, Copy)]
pub struct Sequence<'t> {
    seen: Seen<'t>,
}

#[derive(Clone, Copy)]
enum Seen<'t> {
    /// There was no leaf in this cell.
    Nothing(&'t Cell),
    Leaf(Leaf<'t>, u64),
}

/// What is in a slot, of one table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlotCount {
    /// Tombstones left out.
    pub records: u64,
    /// Those that records and tombstones take in the log.
    pub bytes: u64,
    /// Leaves that were looked at for it.
    pub leaves: usize,
}

impl Index {
    /// An empty index. Takes 128 KiB for its root.
    pub fn new(slab: Arc<Slab>) -> Index {
        let root = (0..SLOT_COUNT).map(|_| Cell::new(0)).collect();
        Index { root, slab, bytes: AtomicU64::new(0) }
    }

    /// Looks for the word of this hash that `is_it` knows as its own. `is_it` sees words with the
    /// same tag and may be asked about one more than once.
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

    /// Asks for the cache line in which the hash's word stands. A hint.
    #[inline]
    pub fn prefetch(&self, hash: KeyHash, turn: &Turn<'_>) {
        self.check(turn);
        if let Some((_, leaf)) = self.place(hash, turn).leaf {
            bucket::prefetch(leaf.bucket(leaf.home(Tag::of(hash))));
        }
    }

    /// Asks for all that a change under this hash touches. A hint.
    #[inline]
    pub fn prefetch_for_change(&self, hash: KeyHash, turn: &Turn<'_>) {
        self.check(turn);
        if let Some((_, leaf)) = self.place(hash, turn).leaf {
            leaf.touched_by(Tag::of(hash)).for_each(bucket::prefetch);
        }
    }

    /// Shows words that may be the hash's. A hint: what others change meanwhile may be missed.
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

    /// The state of the hash's leaf; `None` while somebody changes it. What is found, or not
    /// found, between this and a successful [`Index::is_unchanged`] was so at one moment; with
    /// several hashes, if all states are taken before and all looked at after.
    #[inline]
    pub fn sequence<'t>(&'t self, hash: KeyHash, turn: &'t Turn<'_>) -> Option<Sequence<'t>> {
        self.check(turn);
        let place = self.place(hash, turn);
        let seen = match place.leaf {
            None => Seen::Nothing(place.cell),
            Some((_, leaf)) => {
                let sequence = leaf.sequence();
                if !sequence.is_multiple_of(2) {
                    return None;
                }
                Seen::Leaf(leaf, sequence)
            }
        };
        Some(Sequence { seen })
    }

    /// Whether nothing has changed since the sequence was taken.
    #[inline]
    pub fn is_unchanged(&self, sequence: &Sequence<'_>) -> bool {
        match sequence.seen {
            Seen::Nothing(cell) => Node::in_cell(cell).is_none(),
            Seen::Leaf(leaf, number) => leaf.sequence() == number,
        }
    }

    /// Locks the leaf of the hash, after a wait of at most a few microseconds.
    ///
    /// Several leaves are locked in ascending order of their hashes; each covers a whole range,
    /// so look at [`LeafGuard::covers`] before locking for the next hash.
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
                // A leaf that has been replaced is never unlocked: what can be locked is current.
                Some((_, leaf)) => {
                    // Locking is a fence: without the hint its cache miss would come first.
                    bucket::prefetch(leaf.bucket(leaf.home(Tag::of(hash))));
                    leaf.try_lock().then_some(Ok(place))
                }
                None => self.add_first_leaf(place, turn).transpose(),
            }
        });
        let place = locked.ok_or(LockError::Contended)??;
        Ok(LeafGuard::new(self, turn, &place, hash))
    }

    /// Whether the slot has a leaf.
    #[inline]
    pub fn is_used(&self, slot: Slot) -> bool {
        Node::in_cell(self.cell(slot)).is_some()
    }

    /// Makes an empty slot's leaf, or its directory of leaves, large enough for this many records.
    /// Does nothing if the slot has been used already.
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

    /// What is in the slot.
    pub fn count(&self, slot: Slot, turn: &Turn<'_>) -> SlotCount {
        self.check(turn);
        let (mut sum, mut leaves) = (Totals::default(), 0);
        for_each_leaf(self.cell(slot), 0, turn, &mut |leaf| {
            let Totals { records, bytes } = leaf.totals();
            sum.records += records;
            sum.bytes += bytes;
            leaves += 1;
        });
        // While a leaf is divided the parts' shares may be read at different moments.
        SlotCount { records: sum.records, bytes: sum.bytes.max(0) as u64, leaves }
    }

    /// Records of the slot, tombstones left out.
    pub fn records(&self, slot: Slot, turn: &Turn<'_>) -> u64 {
        self.count(slot, turn).records
    }

    /// Bytes that the slot's records and tombstones take in the log.
    pub fn bytes(&self, slot: Slot, turn: &Turn<'_>) -> u64 {
        self.count(slot, turn).bytes
    }

    /// Bytes of the leaves and directories.
    pub fn memory(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// A miss counts only if nobody was writing while it was found.
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

    /// Puts a locked leaf into an empty cell. `None` if somebody else was faster.
    fn add_first_leaf<'t>(
        &self,
        place: Place<'t>,
        turn: &'t Turn<'_>,
    ) -> Result<Option<Place<'t>>, LockError> {
        let node = self.slab.allocate(Use::Leaf, 1).ok_or(LockError::OutOfMemory)?;
        let leaf = Leaf::new(node.block(turn), place.depth);
        leaf.clear();
        if !place.cell.exchange(0, node.raw()) {
            self.slab.free(node);
            return Ok(None);
        }
        self.bytes.fetch_add(node.bytes(), Ordering::Relaxed);
        Ok(Some(Place { leaf: Some((node, leaf)), ..place }))
    }

    /// Puts what was built in place of a leaf whose guard the caller holds.
    fn publish(&self, cell: &Cell, node: Node, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        cell.store(node.raw());
    }

    /// Gives up a leaf that has been replaced. It stays locked for ever.
    fn retire(&self, node: Node) {
        self.bytes.fetch_sub(node.bytes(), Ordering::Relaxed);
        self.slab.retire(node);
    }

    #[inline]
    fn place<'t>(&'t self, hash: KeyHash, turn: &'t Turn<'_>) -> Place<'t> {
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

impl fmt::Debug for Index {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Index").field("memory", &self.memory()).finish_non_exhaustive()
    }
}
