//! Changes of a leaf through its guard, which is the leaf's only writer.

use super::bucket::Cell;
use super::growth::{Builder, larger};
use super::leaf::Leaf;
use super::tree::{TreePosition, descend, for_each_leaf};
use super::word::{TAG_BITS, Tag, UNSEEN_BITS, Word};
use super::{Index, NoRoom};
use crate::address::Address;
use crate::log::Turn;
use types::{HashRange, KeyHash};

/// Lock of one leaf of the index. Dropping it unlocks the leaf, so that a reader's miss counts
/// again.
///
/// The guard covers the same hashes throughout its life. If the leaf is replaced by a directory
/// of leaves, the guard holds all of those.
pub struct LeafGuard<'t> {
    index: &'t Index,
    turn: &'t Turn<'t>,
    cell: &'t Cell,
    depth: u32,
    /// Hashes that belong to the cell.
    range: HashRange,
    /// Set if places may be held for later words.
    has_held: bool,
}

impl<'t> LeafGuard<'t> {
    /// Creates the guard of a leaf that was just locked.
    pub(super) fn new(
        index: &'t Index,
        turn: &'t Turn<'t>,
        place: &TreePosition<'t>,
        hash: KeyHash,
    ) -> LeafGuard<'t> {
        let width = (1u64 << (TAG_BITS - place.depth + UNSEEN_BITS)) - 1;
        let range = HashRange::new(KeyHash(hash.0 & !width), KeyHash(hash.0 | width));
        LeafGuard { index, turn, cell: place.cell, depth: place.depth, range, has_held: false }
    }

    /// Returns whether this guard protects the hash's records.
    #[inline]
    pub fn covers(&self, hash: KeyHash) -> bool {
        self.range.contains(hash)
    }

    /// Returns the hashes that the guard covers.
    pub fn range(&self) -> HashRange {
        self.range
    }

    /// Searches for a word of this hash that `is_it` accepts.
    #[inline(always)]
    pub fn find(&self, hash: KeyHash, is_it: impl FnMut(Word) -> bool) -> Option<Word> {
        let tag = Tag::of(hash);
        self.leaf(hash).find(tag, is_it)
    }

    /// Makes room for one word per hash, so that their insertion cannot fail. Must be called
    /// before any write that could not be undone.
    pub fn make_room(&mut self, hashes: &[KeyHash]) -> Result<(), NoRoom> {
        debug_assert!(hashes.is_sorted(), "room is made for hashes out of order");
        self.has_held = true;
        let mut at = 0;
        while let Some(&hash) = hashes.get(at) {
            let place = self.place(hash);
            if leaf_in(&place).hold(Tag::of(hash)) {
                at += 1;
            } else {
                self.grow(place)?;
                // The larger leaf does not contain the held places of the old one.
                for_each_leaf(self.cell, self.depth, self.turn, &mut Leaf::give_up_held);
                at = 0;
            }
        }
        Ok(())
    }

    /// Inserts the word of a record with this length in the log, in bytes. Grows the leaf if
    /// necessary, and fails only then.
    pub fn insert(&mut self, hash: KeyHash, word: Word, bytes: u32) -> Result<(), NoRoom> {
        debug_assert!(word.may_be(hash), "{word:?} is not of {hash}");
        loop {
            let place = self.place(hash);
            let leaf = leaf_in(&place);
            if self.has_held && leaf.place_held(word) || leaf.place(word) {
                change_totals(leaf, None, Some((word, bytes)));
                return Ok(());
            }
            self.grow(place)?;
        }
    }

    /// Replaces `old` by `new`. Both words belong to this hash; the numbers are the lengths of
    /// their entries in bytes.
    pub fn replace(&mut self, hash: KeyHash, old: (Word, u32), new: (Word, u32)) {
        debug_assert!(new.0.may_be(hash), "{new:?} is not of {hash}");
        debug_assert!(old.0.may_be(hash), "{old:?} is not of {hash}");
        let leaf = self.leaf(hash);
        leaf.replace(old.0, Some(new.0));
        change_totals(leaf, Some(old), Some(new));
    }

    /// Points the word of the entry at `from` at the copy that `copy` makes of it. Returns `false`,
    /// without a call of `copy`, if no word points at `from`.
    #[inline]
    pub fn redirect<E>(
        &mut self,
        hash: KeyHash,
        from: Address,
        copy: impl FnOnce() -> Result<Address, E>,
    ) -> Result<bool, E> {
        let leaf = self.leaf(hash);
        debug_assert!(leaf.is_locked(), "a word is redirected in a leaf that is not locked");
        let found = leaf.find_cell(Tag::of(hash), |word| word.address() == from);
        let Some((cell, word)) = found else { return Ok(false) };
        let to = copy()?;
        debug_assert!(to != from, "an entry at {from:?} is copied to itself");
        cell.store(Word::new(hash, word.kind(), to).raw());
        Ok(true)
    }

    /// Removes the word of a record with this length in the log, in bytes.
    pub fn remove(&mut self, hash: KeyHash, word: Word, bytes: u32) {
        debug_assert!(word.may_be(hash), "{word:?} is not of {hash}");
        let leaf = self.leaf(hash);
        leaf.replace(word, None);
        change_totals(leaf, Some((word, bytes)), None);
    }

    #[inline]
    fn leaf(&self, hash: KeyHash) -> Leaf<'t> {
        leaf_in(&self.place(hash))
    }

    /// Returns the position of the hash: usually the guard's own cell, otherwise a leaf below it.
    #[inline]
    fn place(&self, hash: KeyHash) -> TreePosition<'t> {
        assert!(self.covers(hash), "{hash} is not in {}", self.range);
        descend(self.cell, self.depth, Tag::of(hash), self.turn)
    }

    /// Replaces a leaf of this guard by a larger one or by a directory.
    fn grow(&self, place: TreePosition<'t>) -> Result<(), NoRoom> {
        let (node, leaf) = place.leaf.expect("a guard holds a leaf");
        assert!(leaf.is_locked(), "a leaf grows that is not locked");
        let mut words: Vec<Word> = leaf.words().collect();
        let mut builder = Builder::new(&self.index.slab, self.turn);
        let buckets = larger(node.buckets(), place.depth);
        let grown = builder.build(&mut words, leaf.totals(), place.depth, buckets)?;
        assert!(builder.bytes() >= grown.bytes(), "a node is larger than all that was built");
        self.index.publish(place.cell, grown, builder.bytes());
        self.index.retire(node);
        Ok(())
    }
}

impl Drop for LeafGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.has_held {
            for_each_leaf(self.cell, self.depth, self.turn, &mut Leaf::give_up_held);
        }
        for_each_leaf(self.cell, self.depth, self.turn, &mut Leaf::unlock);
    }
}

fn leaf_in<'t>(place: &TreePosition<'t>) -> Leaf<'t> {
    place.leaf.expect("a guard holds a leaf").1
}

/// Updates the totals in the leaf's header for a removed and an added word.
fn change_totals(leaf: Leaf<'_>, went: Option<(Word, u32)>, came: Option<(Word, u32)>) {
    let mut totals = leaf.totals();
    if let Some((word, bytes)) = went {
        totals.records -= u64::from(word.is_record());
        totals.bytes -= i64::from(bytes);
    }
    if let Some((word, bytes)) = came {
        totals.records += u64::from(word.is_record());
        totals.bytes += i64::from(bytes);
    }
    leaf.set_totals(totals);
}
