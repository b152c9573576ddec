//! A leaf: buckets of words in hash order, with a header of 16 bytes.
//!
//! A word stands in its *home* bucket or in the one after it. The home is computed from the tag
//! and the number of buckets alone, so that a leaf grows without reading a record. The last bucket
//! has no bucket after it and gives two of its places to the header; so it is home to half as many
//! tags as the others.
//!
//! The header is a sequence (odd while a writer holds the leaf, and for ever once the leaf has
//! been replaced by another) and the totals of what stands in the leaf.
//!
//! When both buckets of a word are full, words make room by moving on from their home to the bucket
//! after it, as far as there is one that can. Bringing words back home would win nothing unless
//! records are removed, and would break the first invariant.
//!
//! Invariants:
//! - a word stays in its place, or is copied from its home to the bucket after it before it is
//!   removed at home. So who looks at the home first and at the next bucket then, without a lock,
//!   meets every record that stays, though perhaps twice;
//! - words change only while the sequence is odd. So a reader that saw the same even sequence
//!   before and after knows that it saw everything.

use super::{
    bucket::{Bucket, Cell, NODE_BUCKETS_MAX, WORDS},
    word::{TAG_BITS, Tag, Word, has_tag, held, is_held},
};

/// Cells of the last bucket that the header takes.
const HEADER_WORDS: usize = 2;
const SEQUENCE: usize = WORDS - 2;
const TOTALS: usize = WORDS - 1;

/// The sequence of a leaf that was made locked.
const MADE_LOCKED: u64 = 1;

/// A leaf as somebody within a turn sees it.
#[derive(Clone, Copy)]
pub(super) struct Leaf<'t> {
    buckets: &'t [Bucket],
    /// Tag bits that all words of the leaf share: those that led here through directories.
    depth: u32,
}

/// What stands in a leaf.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Totals {
    /// Words that stand for an object.
    pub(super) records: u64,
    /// Bytes that they take in the log, as those who inserted them told. Exact over a whole slot;
    /// a leaf that was divided gives each part its share by count, so a part may fall below zero.
    pub(super) bytes: i64,
}

impl<'t> Leaf<'t> {
    pub(super) fn new(buckets: &'t [Bucket], depth: u32) -> Leaf<'t> {
        Leaf { buckets, depth }
    }

    /// Words that a leaf of this many buckets can hold.
    pub(super) const fn capacity(buckets: usize) -> usize {
        buckets * WORDS - HEADER_WORDS
    }

    /// Makes the leaf empty and locked. Its memory may hold anything.
    pub(super) fn clear(self) {
        for cell in self.buckets.iter().flat_map(|bucket| &bucket.cells) {
            cell.store(0);
        }
        self.sequence_cell().store(MADE_LOCKED);
    }

    /// The first word with the tag that `is_it` knows as its own.
    #[inline]
    pub(super) fn find(self, tag: Tag, mut is_it: impl FnMut(Word) -> bool) -> Option<Word> {
        let home = self.home(tag);
        self.find_in(home, tag, &mut is_it).or_else(|| self.find_in(home + 1, tag, &mut is_it))
    }

    /// Puts the words into the empty leaf. `false` if they do not fit: then some are missing.
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

    /// Puts the word into an empty place. `false` if there is none, nor can one be made.
    pub(super) fn place(self, word: Word) -> bool {
        self.place_raw(word.raw())
    }

    /// Keeps a place for a word with this tag that will be inserted before the leaf is unlocked.
    /// Readers take it to be empty. `false` as with [`Leaf::place`].
    pub(super) fn hold(self, tag: Tag) -> bool {
        self.place_raw(held(tag))
    }

    /// Puts the word into a place that was kept for its tag. `false` if there is none.
    pub(super) fn place_held(self, word: Word) -> bool {
        let held = held(word.tag());
        let found = self.pair(self.home(word.tag())).find(|cell| cell.load() == held);
        found.inspect(|cell| cell.store(word.raw())).is_some()
    }

    /// Gives up the places that were kept and not used.
    pub(super) fn give_up_held(self) {
        let places = (0..self.buckets.len()).flat_map(|bucket| self.places(bucket));
        places.filter(|cell| is_held(cell.load())).for_each(|cell| cell.store(0));
    }

    /// Puts `new`, or nothing, where `old` stands.
    ///
    /// # Panics
    /// If `old` is not here: its leaf is locked by who says so.
    pub(super) fn replace(self, old: Word, new: Option<Word>) {
        let home = self.home(old.tag());
        let cell = self.pair(home).find(|cell| cell.load() == old.raw());
        let cell = cell.unwrap_or_else(|| panic!("{old:?} is to be replaced but is not here"));
        cell.store(new.map_or(0, Word::raw));
    }

    /// The words that stand in the bucket, whatever their home.
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

    /// The buckets that a change of a word with this tag touches, as a rule.
    #[inline]
    pub(super) fn touched_by(self, tag: Tag) -> impl Iterator<Item = &'t Bucket> {
        let home = self.home(tag);
        let next = self.buckets.get(home + 1);
        [Some(self.bucket(home)), next, Some(self.header())].into_iter().flatten()
    }

    /// The bucket in which a word with this tag stands if there is room.
    #[inline]
    pub(super) fn home(self, tag: Tag) -> usize {
        let bits = TAG_BITS - self.depth;
        let below = u64::from(tag.0 & ((1 << bits) - 1));
        ((below * self.halves()) >> (bits + 1)) as usize
    }

    /// The lowest tag whose home is this bucket or a later one; `None` if that is above every tag
    /// of the leaf. `like` is any tag of the leaf.
    pub(super) fn first_tag(self, home: usize, like: Tag) -> Option<Tag> {
        let bits = TAG_BITS - self.depth;
        let below = ((home as u64) << (bits + 1)).div_ceil(self.halves());
        (below < 1 << bits).then(|| Tag(like.0 >> bits << bits | below as u32))
    }

    /// The highest tag that belongs into the leaf. `like` is any tag of the leaf.
    pub(super) fn last_tag(self, like: Tag) -> Tag {
        Tag(like.0 | ((1 << (TAG_BITS - self.depth)) - 1))
    }

    /// The sequence as it stands: odd while words may change.
    #[inline]
    pub(super) fn sequence(self) -> u64 {
        self.sequence_cell().load()
    }

    /// Takes the lock if nobody has it.
    #[inline]
    pub(super) fn try_lock(self) -> bool {
        let sequence = self.sequence();
        sequence.is_multiple_of(2) && self.sequence_cell().exchange(sequence, sequence + 1)
    }

    /// Ends the change that [`Leaf::try_lock`] or [`Leaf::clear`] began.
    #[inline]
    pub(super) fn unlock(self) {
        let sequence = self.sequence();
        assert!(!sequence.is_multiple_of(2), "a leaf is unlocked that nobody had locked");
        self.sequence_cell().store(sequence + 1);
    }

    pub(super) fn totals(self) -> Totals {
        let raw = self.totals_cell().load();
        Totals { records: raw >> BYTES_BITS, bytes: (raw << RECORDS_BITS) as i64 >> RECORDS_BITS }
    }

    /// Only the leaf's writer calls this.
    pub(super) fn set_totals(self, totals: Totals) {
        let Totals { records, bytes } = totals;
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
    ) -> Option<Word> {
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
            // Loaded once more: if it has changed since, what stands here is as good.
            match Word::from_raw(cells[place].load()) {
                Some(word) if word.tag() == tag && is_it(word) => return Some(word),
                Some(_) | None => {}
            }
        }
        None
    }

    fn place_raw(self, raw: u64) -> bool {
        let home = self.home(Tag::of_raw(raw));
        let empty = self.empty_in(home).or_else(|| self.make_empty_in(home + 1));
        empty.inspect(|cell| cell.store(raw)).is_some()
    }

    fn empty_in(self, bucket: usize) -> Option<&'t Cell> {
        self.places(bucket).iter().find(|cell| cell.load() == 0)
    }

    /// An empty place of the bucket, made if need be by moving a word on whose home it is.
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

    /// The places of the home and of the bucket after it.
    fn pair(self, home: usize) -> impl Iterator<Item = &'t Cell> {
        self.places(home).iter().chain(self.places(home + 1))
    }

    /// The places of a bucket; none past the last one.
    #[inline]
    fn places(self, bucket: usize) -> &'t [Cell] {
        let Some(found) = self.buckets.get(bucket) else { return &[] };
        let is_last = bucket + 1 == self.buckets.len();
        &found.cells[..if is_last { WORDS - HEADER_WORDS } else { WORDS }]
    }

    /// Widths of homes are counted in halves: the last bucket has one, the others two.
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
