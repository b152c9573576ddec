//! Growth of a full leaf into a larger one, or into a directory of eight leaves.
//!
//! The replacement is built separately and created locked. It needs only the old leaf's words,
//! because their tags determine their places. The holder of the old leaf then publishes the
//! replacement in its cell.

use super::NoRoom;
use super::bucket::{BlockUse, NODE_BUCKETS_MAX, Node, WORDS};
use super::leaf::{Leaf, LeafTotals};
use super::slab::Slab;
use super::tree::{DEPTH_MAX, FAN, FAN_BITS, digit, for_each_node};
use super::word::{TAG_BITS, Word};
use crate::log::Turn;

/// Maximum number of buckets of a leaf; a full one becomes a directory. Larger leaves leave
/// larger gaps in the slab and stay locked longer when they grow. Measured by
/// `index_bench memory` at 16 million records, in bytes per record: 11.9 with 64, 11.4 with 128,
/// 14.6 with 256; at 6 million 12.5, 13.1, 13.2.
const LEAF_BUCKETS_MAX: usize = 64;
const _: () = assert!(LEAF_BUCKETS_MAX <= NODE_BUCKETS_MAX);

/// Planned fill of a new leaf in percent of its places: almost all leaves take that many words
/// before a pair of buckets is full. Measured by `index_bench`; a leaf that is too small grows.
const FILL_PERCENT: usize = 80;

/// Returns the number of buckets of a leaf for `words` words.
fn buckets_for(words: usize) -> usize {
    (words * 100).div_ceil(FILL_PERCENT * WORDS).max(1)
}

/// Returns the number of buckets to which a leaf grows. The result exceeds the maximum if the
/// leaf already has the maximum.
pub(super) fn larger(buckets: usize, depth: u32) -> usize {
    let by_a_quarter = buckets + (buckets / 4).max(1);
    if buckets < buckets_max(depth) { by_a_quarter.min(buckets_max(depth)) } else { by_a_quarter }
}

/// Builder of leaves and directories that are not published yet.
pub(super) struct Builder<'t> {
    slab: &'t Slab,
    turn: &'t Turn<'t>,
    /// Bytes of the blocks that were allocated and not freed.
    bytes: u64,
}

impl<'t> Builder<'t> {
    pub(super) fn new(slab: &'t Slab, turn: &'t Turn<'t>) -> Builder<'t> {
        Builder { slab, turn, bytes: 0 }
    }

    /// Returns the bytes of the blocks that were allocated and not freed.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Builds a locked leaf of at least `buckets` buckets with these words, or a directory of
    /// leaves.
    pub(super) fn build(
        &mut self,
        words: &mut [Word],
        totals: LeafTotals,
        depth: u32,
        mut buckets: usize,
    ) -> Result<Node, NoRoom> {
        while buckets <= buckets_max(depth) {
            if let Some(node) = self.leaf(words, totals, depth, buckets)? {
                return Ok(node);
            }
            buckets = larger(buckets, depth);
        }
        if depth >= DEPTH_MAX { Err(NoRoom::Full) } else { self.divide(words, totals, depth) }
    }

    /// Builds an empty, locked leaf for this many records, or a directory of such leaves.
    pub(super) fn build_for(&mut self, records: usize, depth: u32) -> Result<Node, NoRoom> {
        let places = Leaf::capacity(buckets_max(depth));
        if records * 100 <= places * FILL_PERCENT || depth >= DEPTH_MAX {
            return self.build(&mut [], LeafTotals::default(), depth, buckets_for(records));
        }
        self.directory(|builder, _| builder.build_for(records.div_ceil(FAN), depth + FAN_BITS))
    }

    /// Frees a node that was built and never published.
    pub(super) fn discard(&mut self, node: Node) {
        for_each_node(node, self.turn, &mut |node: Node| {
            assert!(node.bytes() <= self.bytes, "more is discarded than was built");
            self.bytes -= node.bytes();
            self.slab.free(node);
        });
    }

    /// Builds a leaf. Returns `None` if the words do not fit.
    fn leaf(
        &mut self,
        words: &[Word],
        totals: LeafTotals,
        depth: u32,
        buckets: usize,
    ) -> Result<Option<Node>, NoRoom> {
        if words.len() > Leaf::capacity(buckets) {
            return Ok(None);
        }
        let node = self.slab.allocate(BlockUse::Leaf, buckets).ok_or(NoRoom::OutOfMemory)?;
        let leaf = Leaf::new(node.block(self.turn), depth);
        leaf.clear();
        if !leaf.fill(words) {
            self.slab.free(node);
            return Ok(None);
        }
        leaf.set_totals(totals);
        self.bytes += node.bytes();
        Ok(Some(node))
    }

    fn divide(
        &mut self,
        words: &mut [Word],
        totals: LeafTotals,
        depth: u32,
    ) -> Result<Node, NoRoom> {
        words.sort_unstable_by_key(|word| word.tag());
        let mut rest: &mut [Word] = words;
        let mut shares = Shares { words: rest.len() as i64, totals };
        let divided = self.directory(|builder, place| {
            let count = rest.partition_point(|word| digit(word.tag(), depth) <= place);
            let (mine, others) = std::mem::take(&mut rest).split_at_mut(count);
            rest = others;
            let share = shares.take(mine);
            builder.build(mine, share, depth + FAN_BITS, buckets_for(mine.len()))
        })?;
        assert!(rest.is_empty(), "{} words belong to no part of the leaf", rest.len());
        assert!(shares.words == 0 && shares.totals.bytes == 0, "a part has no share of the bytes");
        Ok(divided)
    }

    /// Builds a directory of eight nodes, each made by `child`.
    fn directory(
        &mut self,
        mut child: impl FnMut(&mut Self, usize) -> Result<Node, NoRoom>,
    ) -> Result<Node, NoRoom> {
        let node = self.slab.allocate(BlockUse::Directory, 1).ok_or(NoRoom::OutOfMemory)?;
        self.bytes += node.bytes();
        let cells = &node.block(self.turn)[0].cells;
        cells.iter().for_each(|cell| cell.store(0));
        for (place, cell) in cells.iter().enumerate() {
            match child(self, place) {
                Ok(built) => cell.store(built.raw()),
                Err(error) => {
                    self.discard(node);
                    return Err(error);
                }
            }
        }
        Ok(node)
    }
}

/// Divides totals among parts that are split off one after the other.
struct Shares {
    /// Words without a share so far.
    words: i64,
    totals: LeafTotals,
}

impl Shares {
    /// Returns the share of these words. Records are counted; bytes are divided by the number of
    /// words, because the index does not know the length per word. The last part gets the exact
    /// rest, so the sum is exact.
    fn take(&mut self, words: &[Word]) -> LeafTotals {
        let count = words.len() as i64;
        let bytes = if self.words == 0 { 0 } else { self.totals.bytes * count / self.words };
        let bytes = if count == self.words { self.totals.bytes } else { bytes };
        let share = LeafTotals { records: records_among(words), bytes };
        self.words -= count;
        self.totals.bytes -= bytes;
        share
    }
}

/// Returns the number of words that represent a record.
fn records_among(words: &[Word]) -> u64 {
    words.iter().map(|word| u64::from(word.is_record())).sum()
}

/// Returns the maximum number of buckets of a leaf: no more than there are distinct tags.
fn buckets_max(depth: u32) -> usize {
    LEAF_BUCKETS_MAX.min(1 << (TAG_BITS - depth))
}
