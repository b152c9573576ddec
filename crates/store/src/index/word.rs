//! The index word of a record: 64 bits.
//!
//! | bits | field |
//! | --- | --- |
//! | 40-63 | tag: the 24 hash bits right below the slot's |
//! | 2-39 | address of the entry in the log, in units of 8 bytes |
//! | 0-1 | kind; 0 only in a place without a word |
//!
//! An empty place is 0. A place that is held for a later word has its tag and no kind.

use crate::address::{ADDRESS_BITS, Address};
use std::{fmt, num::NonZeroU64};
use types::{KeyHash, Slot};

pub(super) const TAG_BITS: u32 = 24;
/// Bits of a key hash below its tag, which the index does not store.
pub(crate) const UNSEEN_BITS: u32 = 50 - TAG_BITS;

const KIND_BITS: u32 = 2;
const KIND_MASK: u64 = (1 << KIND_BITS) - 1;
const OBJECT: u64 = 1;
const EXPIRING: u64 = 2;
const TOMBSTONE: u64 = 3;
/// Distinguishes a place that is held for a word with tag 0 from an empty one.
const HELD: u64 = 1 << KIND_BITS;
const TAG_SHIFT: u32 = KIND_BITS + ADDRESS_BITS;

const _: () = assert!(TAG_SHIFT + TAG_BITS == u64::BITS);

/// Kind of a word's entry, available without loading the entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WordKind {
    /// An existing record without expiry.
    Object,
    /// A record that exists until it expires; its entry contains the time.
    Expiring,
    /// A deleted record that must be remembered for a while.
    Tombstone,
}

/// One word of the index: tag, kind and address.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Word(NonZeroU64);

impl Word {
    /// Creates the word of the entry at `address`. The entry's key has this hash.
    #[inline]
    pub fn new(hash: KeyHash, kind: WordKind, address: Address) -> Word {
        let kind = match kind {
            WordKind::Object => OBJECT,
            WordKind::Expiring => EXPIRING,
            WordKind::Tombstone => TOMBSTONE,
        };
        let raw = u64::from(Tag::of(hash).0) << TAG_SHIFT | address.units() << KIND_BITS | kind;
        Word(NonZeroU64::new(raw).expect("no kind is zero"))
    }

    /// Returns the kind of the entry.
    #[inline]
    pub fn kind(self) -> WordKind {
        match self.0.get() & KIND_MASK {
            OBJECT => WordKind::Object,
            EXPIRING => WordKind::Expiring,
            TOMBSTONE => WordKind::Tombstone,
            other => unreachable!("no word is made with kind {other}"),
        }
    }

    /// Returns the address of the entry.
    #[inline]
    pub fn address(self) -> Address {
        Address::from_units(self.0.get() << TAG_BITS >> (TAG_BITS + KIND_BITS))
    }

    /// Returns whether the word may belong to a key with this hash. Only a comparison of keys can
    /// confirm it.
    #[inline]
    pub fn may_be(self, hash: KeyHash) -> bool {
        self.tag() == Tag::of(hash)
    }

    /// Returns whether the word counts as a record. A tombstone does not.
    #[inline]
    pub(super) fn is_record(self) -> bool {
        match self.kind() {
            WordKind::Object | WordKind::Expiring => true,
            WordKind::Tombstone => false,
        }
    }

    #[inline]
    pub(super) fn tag(self) -> Tag {
        Tag::of_raw(self.0.get())
    }

    #[inline]
    pub(super) fn raw(self) -> u64 {
        self.0.get()
    }

    /// Returns the word in a place of a leaf; `None` if the place is empty or held for a later
    /// word.
    #[inline]
    pub(super) fn from_raw(raw: u64) -> Option<Word> {
        NonZeroU64::new(raw).filter(|raw| raw.get() & KIND_MASK != 0).map(Word)
    }
}

impl fmt::Debug for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {:06x} {:?}", self.kind(), self.tag().0, self.address())
    }
}

/// The 24 hash bits right below the slot's. Together with the slot, this is all that the index
/// stores of a hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Tag(pub(super) u32);

impl Tag {
    /// Highest tag of a slot.
    pub(super) const LAST: Tag = Tag((1 << TAG_BITS) - 1);

    #[inline]
    pub(super) fn of(hash: KeyHash) -> Tag {
        Tag((hash.0 >> UNSEEN_BITS) as u32 & Tag::LAST.0)
    }

    /// Returns the tag in a place that is not empty.
    #[inline]
    pub(super) fn of_raw(raw: u64) -> Tag {
        Tag((raw >> TAG_SHIFT) as u32)
    }

    /// Returns a raw word with this tag and nothing else.
    #[inline]
    pub(super) fn raw(self) -> u64 {
        u64::from(self.0) << TAG_SHIFT
    }

    /// Returns the lowest hash with this tag in the slot.
    #[inline]
    pub(super) fn first_hash(self, slot: Slot) -> KeyHash {
        KeyHash(slot.first_hash().0 | u64::from(self.0) << UNSEEN_BITS)
    }
}

/// Returns whether a raw word has this tag, given as [`Tag::raw`]. An empty place may be mistaken
/// for tag 0; [`Word::from_raw`] distinguishes them.
#[inline]
pub(super) fn has_tag(raw: u64, tag: u64) -> bool {
    raw ^ tag < 1 << TAG_SHIFT
}

/// Returns the content of a place that is held for a word with this tag.
#[inline]
pub(super) fn held(tag: Tag) -> u64 {
    tag.raw() | HELD
}

/// Returns whether the place is held for a later word.
#[inline]
pub(super) fn is_held(raw: u64) -> bool {
    raw != 0 && raw & KIND_MASK == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_gives_back_what_it_was_made_of() {
        for hash in [0, u64::MAX, 0xbe58_7b18_b91b_bb76, 1 << 26, (1 << 26) - 1] {
            for units in [0, 1, (1 << ADDRESS_BITS) - 1] {
                for kind in [WordKind::Object, WordKind::Expiring, WordKind::Tombstone] {
                    let word = Word::new(KeyHash(hash), kind, Address::from_units(units));
                    assert_eq!((word.kind(), word.address().units()), (kind, units));
                    assert!(word.may_be(KeyHash(hash)));
                    assert!(!word.may_be(KeyHash(hash ^ 1 << 26)));
                    assert!(!word.may_be(KeyHash(hash ^ 1 << 49)));
                    assert!(word.may_be(KeyHash(hash ^ 1)), "the lowest bits are not kept");
                    assert_eq!(Word::from_raw(word.raw()), Some(word));
                    assert!(has_tag(word.raw(), Tag::of(KeyHash(hash)).raw()));
                }
            }
        }
    }

    #[test]
    fn a_tag_begins_at_its_first_hash() {
        let hash = KeyHash(0xbe58_7b18_b91b_bb76);
        let first = Tag::of(hash).first_hash(hash.slot());
        assert!(first <= hash && hash.0 - first.0 < 1 << UNSEEN_BITS);
        assert_eq!(Tag::of(first), Tag::of(hash));
        assert_ne!(Tag::of(KeyHash(first.0 - 1)), Tag::of(hash));
    }
}
