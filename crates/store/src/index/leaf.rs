//! A leaf: buckets of words in hash order, with a header of 16 bytes. `docs/design/index.md`,
//! "Insertion" and "The last bucket", explains where a word is and how others make room for it.
//!
//! The header consists of a sequence and the totals of the leaf's content. The sequence is odd
//! while a writer holds the leaf, and forever once the leaf has been replaced.
//!
//! Invariants:
//! - A word stays in its place, or is copied from its home to the bucket after it before it is
//!   removed at home. So a lock-free reader that reads the home first and the next bucket then
//!   meets every record that stays, though perhaps twice. (So no word moves back home.)
//! - Words change only while the sequence is odd. So a reader that saw the same even sequence
//!   before and after has seen everything.

use super::bucket::{Bucket, Cell, NODE_BUCKETS_MAX, WORDS};
use super::word::{TAG_BITS, Tag, Word, has_tag, held, is_held};

/// Cells of the last bucket that the header takes.
const HEADER_WORDS: usize = 2;
const SEQUENCE: usize = WORDS - 2;
const TOTALS: usize = WORDS - 1;

/// Sequence of a leaf that is created locked.
const MADE_LOCKED: u64 = 1;

/// A leaf as seen within a turn.
#[derive(Clone, Copy)]
pub(super) struct Leaf<'t> {
    buckets: &'t [Bucket],
    /// Number of tag bits that all words of the leaf share: those decided by directories above
    /// it.
    depth: u32,
}

/// Totals of a leaf's content.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LeafTotals {
    /// Number of words that represent a record.
    pub(super) records: u64,
    /// Log bytes of all words, as reported at their insertion. Exact over a whole slot. A divided
    /// leaf gives each part a share by count, so a part's bytes may fall below zero.
    pub(super) bytes: i64,
}

impl<'t> Leaf<'t> {
    pub(super) fn new(buckets: &'t [Bucket], depth: u32) -> Leaf<'t> {
        debug_assert!(!buckets.is_empty() && depth < TAG_BITS, "a leaf at depth {depth}");
        Leaf { buckets, depth }
    }

    /// Returns the number of words that a leaf of this many buckets can hold.
    pub(super) const fn capacity(buckets: usize) -> usize {
        buckets * WORDS - HEADER_WORDS
    }

    /// Makes the leaf empty and locked. Its memory may have any content.
    pub(super) fn clear(self) {
        for cell in self.buckets.iter().flat_map(|bucket| &bucket.cells) {
            cell.store(0);
        }
        self.sequence_cell().store(MADE_LOCKED);
    }

    /// Returns the first word with the tag that `is_it` accepts.
    #[inline]
    pub(super) fn find(self, tag: Tag, mut is_it: impl FnMut(Word) -> bool) -> Option<Word> {
        self.find_cell(tag, &mut is_it).map(|(_, word)| word)
    }

    /// Returns the first word with the tag that `is_it` accepts, and its place.
    #[inline]
    pub(super) fn find_cell(
        self,
        tag: Tag,
        mut is_it: impl FnMut(Word) -> bool,
    ) -> Option<(&'t Cell, Word)> {
        let home = self.home(tag);
        self.find_in(home, tag, &mut is_it).or_else(|| self.find_in(home + 1, tag, &mut is_it))
    }

    /// Puts the words into the empty leaf. Returns `false` if they do not fit: then some are
    /// missing.
    pub(super) fn fill(self, words: &[Word]) -> bool {
        // Words per bucket, so that most words need no search.
        let mut filled = [0u8; NODE_BUCKETS_MAX];
        words.iter().all(|&word| {
            let home = self.home(word.tag());
            let cell = self.places(home).get(usize::from(filled[home]));
            match cell.filter(|cell| cell.load() == 0) {
                Some(cell) => {
                    filled[home] += 1;
                    cell.store(word.raw());
                    true
                }
                None => self.place(word),
            }
        })
    }

    /// Puts the word into an empty place. Returns `false` if there is none and none can be made.
    pub(super) fn place(self, word: Word) -> bool {
        self.place_raw(word.raw())
    }

    /// Holds a place for a word with this tag, which will be inserted before the leaf is
    /// unlocked. Readers treat the place as empty. Returns `false` as [`Leaf::place`] does.
    pub(super) fn hold(self, tag: Tag) -> bool {
        self.place_raw(held(tag))
    }

    /// Puts the word into a place that is held for its tag. Returns `false` if there is none.
    pub(super) fn place_held(self, word: Word) -> bool {
        let held = held(word.tag());
        let found = self.pair(self.home(word.tag())).find(|cell| cell.load() == held);
        found.inspect(|cell| cell.store(word.raw())).is_some()
    }

    /// Empties the places that are still held.
    pub(super) fn give_up_held(self) {
        let places = (0..self.buckets.len()).flat_map(|bucket| self.places(bucket));
        places.filter(|cell| is_held(cell.load())).for_each(|cell| cell.store(0));
    }

    /// Replaces `old` by `new`, or removes it.
    ///
    /// # Panics
    /// If `old` is not here: the caller holds the leaf's lock and has just found it.
    pub(super) fn replace(self, old: Word, new: Option<Word>) {
        let home = self.home(old.tag());
        let cell = self.pair(home).find(|cell| cell.load() == old.raw());
        let cell = cell.unwrap_or_else(|| panic!("{old:?} is to be replaced but is not here"));
        debug_assert!(self.is_locked(), "{old:?} is replaced in a leaf that is not locked");
        cell.store(new.map_or(0, Word::raw));
    }

    /// Returns the words in the bucket, whatever their home.
    #[inline]
    pub(super) fn words_in(self, bucket: usize) -> impl Iterator<Item = Word> + use<'t> {
        self.places(bucket).iter().filter_map(|cell| Word::from_raw(cell.load()))
    }

    pub(super) fn words(self) -> impl Iterator<Item = Word> + use<'t> {
        (0..self.buckets.len()).flat_map(move |bucket| self.words_in(bucket))
    }

    pub(super) fn bucket(self, index: usize) -> &'t Bucket {
        &self.buckets[index]
    }

    /// Returns the buckets that a change of a word with this tag usually touches.
    #[inline]
    pub(super) fn touched_by(self, tag: Tag) -> impl Iterator<Item = &'t Bucket> {
        let home = self.home(tag);
        let next = self.buckets.get(home + 1);
        [Some(self.bucket(home)), next, Some(self.header())].into_iter().flatten()
    }

    /// Returns the home bucket of a tag: the bucket of its words if there is room.
    #[inline]
    pub(super) fn home(self, tag: Tag) -> usize {
        let bits = TAG_BITS - self.depth;
        let below = u64::from(tag.0 & ((1 << bits) - 1));
        ((below * self.halves()) >> (bits + 1)) as usize
    }

    /// Returns the lowest tag with a home at or after this bucket; `None` if that is above every
    /// tag of the leaf. `like` is any tag of the leaf.
    pub(super) fn first_tag(self, home: usize, like: Tag) -> Option<Tag> {
        let bits = TAG_BITS - self.depth;
        let below = ((home as u64) << (bits + 1)).div_ceil(self.halves());
        (below < 1 << bits).then(|| Tag(like.0 >> bits << bits | below as u32))
    }

    /// Returns the highest tag that belongs to the leaf. `like` is any tag of the leaf.
    pub(super) fn last_tag(self, like: Tag) -> Tag {
        Tag(like.0 | ((1 << (TAG_BITS - self.depth)) - 1))
    }

    /// Returns the current sequence: odd while words may change.
    #[inline]
    pub(super) fn sequence(self) -> u64 {
        self.sequence_cell().load()
    }

    /// Returns whether a writer holds the leaf, or the leaf has been replaced.
    pub(super) fn is_locked(self) -> bool {
        !self.sequence().is_multiple_of(2)
    }

    /// Takes the lock if it is free.
    #[inline]
    pub(super) fn try_lock(self) -> bool {
        let sequence = self.sequence();
        sequence.is_multiple_of(2) && self.sequence_cell().exchange(sequence, sequence + 1)
    }

    /// Ends the change that [`Leaf::try_lock`] or [`Leaf::clear`] began.
    #[inline]
    pub(super) fn unlock(self) {
        let sequence = self.sequence();
        assert!(!sequence.is_multiple_of(2), "a leaf is unlocked that was not locked");
        self.sequence_cell().store(sequence + 1);
    }

    pub(super) fn totals(self) -> LeafTotals {
        let raw = self.totals_cell().load();
        LeafTotals {
            records: raw >> BYTES_BITS,
            bytes: (raw << RECORDS_BITS) as i64 >> RECORDS_BITS,
        }
    }

    /// Sets the totals. Only the leaf's writer may call this.
    pub(super) fn set_totals(self, totals: LeafTotals) {
        debug_assert!(self.is_locked(), "totals of a leaf that is not locked");
        let LeafTotals { records, bytes } = totals;
        let fits = bytes << RECORDS_BITS >> RECORDS_BITS == bytes && records >> RECORDS_BITS == 0;
        assert!(fits, "{totals:?} in one leaf");
        self.totals_cell().store(records << BYTES_BITS | bytes as u64 & BYTES_MASK);
    }

    #[inline]
    fn find_in(
        self,
        bucket: usize,
        tag: Tag,
        is_it: &mut impl FnMut(Word) -> bool,
    ) -> Option<(&'t Cell, Word)> {
        let cells = &self.buckets.get(bucket)?.cells;
        let wanted = tag.raw();
        let mut found = 0u32;
        for (place, cell) in cells.iter().enumerate() {
            found |= u32::from(has_tag(cell.load(), wanted)) << place;
        }
        found &= (1 << self.places(bucket).len()) - 1;
        while found != 0 {
            let place = found.trailing_zeros() as usize;
            found &= found - 1;
            // Loaded again: if the word has changed since, the new one is equally valid.
            match Word::from_raw(cells[place].load()) {
                Some(word) if word.tag() == tag && is_it(word) => {
                    return Some((&cells[place], word));
                }
                Some(_) | None => {}
            }
        }
        None
    }

    fn place_raw(self, raw: u64) -> bool {
        debug_assert!(self.is_locked(), "a word is placed into a leaf that is not locked");
        let home = self.home(Tag::of_raw(raw));
        let empty = self.empty_in(home).or_else(|| self.make_empty_in(home + 1));
        empty.inspect(|cell| cell.store(raw)).is_some()
    }

    fn empty_in(self, bucket: usize) -> Option<&'t Cell> {
        self.places(bucket).iter().find(|cell| cell.load() == 0)
    }

    /// Returns an empty place of the bucket. If necessary, moves a word that has its home here to
    /// the next bucket.
    fn make_empty_in(self, bucket: usize) -> Option<&'t Cell> {
        self.empty_in(bucket).or_else(|| {
            let is_at_home = |cell: &&Cell| self.home(Tag::of_raw(cell.load())) == bucket;
            let left = self.places(bucket).iter().find(is_at_home)?;
            let taken = self.make_empty_in(bucket + 1)?;
            taken.store(left.load());
            left.store(0);
            Some(left)
        })
    }

    /// Returns the places of the home and of the bucket after it.
    fn pair(self, home: usize) -> impl Iterator<Item = &'t Cell> {
        self.places(home).iter().chain(self.places(home + 1))
    }

    /// Returns the places of a bucket; none past the last one.
    #[inline]
    fn places(self, bucket: usize) -> &'t [Cell] {
        let Some(found) = self.buckets.get(bucket) else { return &[] };
        let is_last = bucket + 1 == self.buckets.len();
        &found.cells[..if is_last { WORDS - HEADER_WORDS } else { WORDS }]
    }

    /// Returns the total width of all homes in halves: the last bucket has one, the others two.
    #[inline]
    fn halves(self) -> u64 {
        self.buckets.len() as u64 * 2 - 1
    }

    #[inline]
    fn header(self) -> &'t Bucket {
        self.buckets.last().expect("a leaf has a bucket")
    }

    #[inline]
    fn sequence_cell(self) -> &'t Cell {
        &self.header().cells[SEQUENCE]
    }

    #[inline]
    fn totals_cell(self) -> &'t Cell {
        &self.header().cells[TOTALS]
    }
}

const RECORDS_BITS: u32 = 16;
const BYTES_BITS: u32 = u64::BITS - RECORDS_BITS;
const BYTES_MASK: u64 = (1 << BYTES_BITS) - 1;
