//! The memory that an index is made of: cells of 64 bits, eight to a bucket, buckets to a block.
//!
//! A [`Node`] names a block in one word, so that it can be stored and loaded as a whole. This file
//! is the only place of the index that turns such a word into a reference.
//!
//! Memory order, once for the whole index: every load acquires and every store releases, which
//! costs nothing on x86-64 and one instruction's flavor on ARM. So whoever reads a cell sees the
//! log entry and the block that were written before it; and whoever reads a word written under a
//! lock sees, in a later load of the leaf's sequence, that the leaf was locked.

use crate::log::Turn;
use std::sync::atomic::{AtomicU64, Ordering};

/// Words of a bucket: one cache line.
pub(super) const WORDS: usize = 8;
/// Bytes of a bucket.
pub(super) const BUCKET_BYTES: usize = 64;

/// One word of 64 bits that threads share.
#[repr(transparent)]
pub(super) struct Cell(AtomicU64);

/// One cache line.
#[repr(C, align(64))]
pub(super) struct Bucket {
    pub(super) cells: [Cell; WORDS],
}

const _: () = assert!(size_of::<Bucket>() == BUCKET_BYTES && align_of::<Bucket>() == BUCKET_BYTES);

impl Cell {
    pub(super) const fn new(value: u64) -> Cell {
        Cell(AtomicU64::new(value))
    }

    #[inline(always)]
    pub(super) fn load(&self) -> u64 {
        interleave();
        self.0.load(Ordering::Acquire)
    }

    #[inline(always)]
    pub(super) fn store(&self, value: u64) {
        interleave();
        self.0.store(value, Ordering::Release);
    }

    /// Whether the cell held `old`; then it holds `new`.
    #[inline(always)]
    pub(super) fn exchange(&self, old: u64, new: u64) -> bool {
        interleave();
        self.0.compare_exchange(old, new, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
}

/// Where another thread may come in between, when interleavings are explored. The cells lie in
/// plain memory, so they cannot be shuttle's own atomics; the load of one stands for each access. (A
/// yield would not do: by that a thread asks for others to come first, however they are chosen.)
#[inline(always)]
fn interleave() {
    #[cfg(feature = "shuttle")]
    shuttle::sync::atomic::AtomicBool::new(false).load(Ordering::Relaxed);
}

/// Between two looks at a lock that somebody else holds.
#[inline]
pub(super) fn pause() {
    #[cfg(feature = "shuttle")]
    shuttle::thread::yield_now();
    #[cfg(not(feature = "shuttle"))]
    std::hint::spin_loop();
}

/// What a block is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    /// Buckets of words, and the header in the last one.
    Leaf,
    /// One bucket of nodes.
    Directory,
}

/// Names a block: its address, its length, and what it is used for.
///
/// | bits | field |
/// | --- | --- |
/// | 63 | 1 for a directory |
/// | 48-55 | buckets, less 1 |
/// | 0-47 | address, a multiple of 64 |
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Node(u64);

/// What a node names.
pub(super) enum Child<'t> {
    /// The buckets of a leaf.
    Leaf(&'t [Bucket]),
    /// Eight cells, one for each value of the next three hash bits.
    Directory(&'t [Cell; WORDS]),
}

const DIRECTORY: u64 = 1 << 63;
const BUCKETS_SHIFT: u32 = 48;
const ADDRESS_MASK: u64 = (1 << BUCKETS_SHIFT) - 1;

/// Most buckets that a node can name.
pub(super) const NODE_BUCKETS_MAX: usize = 256;

impl Node {
    /// The block at this address, as it came from the slab.
    pub(super) fn new(purpose: Use, address: usize, buckets: usize) -> Node {
        let address = address as u64;
        assert!(address.is_multiple_of(BUCKET_BYTES as u64) && address & !ADDRESS_MASK == 0);
        assert!((1..=NODE_BUCKETS_MAX).contains(&buckets), "a block of {buckets} buckets");
        let purpose = match purpose {
            Use::Leaf => 0,
            Use::Directory => DIRECTORY,
        };
        Node(purpose | (buckets as u64 - 1) << BUCKETS_SHIFT | address)
    }

    pub(super) fn raw(self) -> u64 {
        self.0
    }

    /// From a word that [`Node::raw`] gave.
    pub(super) fn from_raw(raw: u64) -> Node {
        Node(raw)
    }

    pub(super) fn address(self) -> usize {
        (self.0 & ADDRESS_MASK) as usize
    }

    #[inline]
    pub(super) fn buckets(self) -> usize {
        (self.0 >> BUCKETS_SHIFT & 0xff) as usize + 1
    }

    /// Bytes of the block.
    pub(super) fn bytes(self) -> u64 {
        (self.buckets() * BUCKET_BYTES) as u64
    }

    /// What the cell names; `None` if it is empty.
    #[inline]
    pub(super) fn in_cell(cell: &Cell) -> Option<Node> {
        let raw = cell.load();
        (raw != 0).then_some(Node(raw))
    }

    /// What the node names.
    #[inline]
    pub(super) fn open<'t>(self, turn: &'t Turn<'_>) -> Child<'t> {
        let buckets = self.block(turn);
        if self.0 & DIRECTORY == 0 {
            Child::Leaf(buckets)
        } else {
            Child::Directory(&buckets[0].cells)
        }
    }

    /// The block's buckets.
    ///
    /// A node is made by the slab, stored in a cell, unlinked, and then retired; or given back
    /// without ever having been in a cell. So whoever has one within a turn may read its block to
    /// the turn's end. Callers keep that rule by getting nodes from cells and from the slab only.
    #[inline]
    pub(super) fn block<'t>(self, _turn: &'t Turn<'_>) -> &'t [Bucket] {
        let first = std::ptr::with_exposed_provenance::<Bucket>(self.address());
        // SAFETY: the slab made the node from a chunk whose provenance it exposed: the address is
        // that of `buckets` whole buckets within the chunk, a multiple of 64, and no other block
        // overlaps them. Every bit pattern is a valid cell, chunks come zeroed, and all accesses
        // are atomic. The chunk is kept until the block has been reclaimed, which waits until
        // every turn that could have loaded the node has ended; the reference ends with the turn.
        unsafe { std::slice::from_raw_parts(first, self.buckets()) }
    }
}

/// Asks for the cache line of a bucket. A hint: changes nothing.
#[inline]
pub(super) fn prefetch(bucket: &Bucket) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch reads nothing that the program can see and cannot fault.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(bucket).cast()) };
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = bucket;
}
