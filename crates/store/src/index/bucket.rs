//! The memory layout of an index: cells of 64 bits, eight cells per bucket, and blocks of
//! buckets.
//!
//! A [`Node`] describes a block in one word, so that it can be stored and loaded atomically. This
//! file is the only place of the index that turns such a word into a reference.
//!
//! Memory order of the whole index: every load acquires and every store releases. This is free on
//! x86-64 and selects another instruction variant on ARM. So a thread that reads a cell sees the
//! log entry and the block that were written before it. A thread that reads a word written under
//! a lock finds, in a later load of the leaf's sequence, that the leaf was locked.
#![expect(unsafe_code, reason = "buckets are cells in the memory of a chunk")]

use crate::log::Turn;
use std::sync::atomic::{AtomicU64, Ordering};

/// Words per bucket: one cache line.
pub(super) const WORDS: usize = 8;
/// Bytes per bucket.
pub(super) const BUCKET_BYTES: usize = 64;

/// A word of 64 bits that threads share.
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

    /// Stores `new` if the cell contains `old`, and returns whether it did.
    #[inline(always)]
    pub(super) fn exchange(&self, old: u64, new: u64) -> bool {
        interleave();
        self.0.compare_exchange(old, new, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
}

/// Scheduling point for another thread when interleavings are explored. The cells are in plain
/// memory, so they cannot be shuttle's own atomics; the load of one represents each access. (A
/// yield is not suitable: it asks the scheduler to run other threads first.)
#[inline(always)]
fn interleave() {
    #[cfg(feature = "shuttle")]
    shuttle::sync::atomic::AtomicBool::new(false).load(Ordering::Relaxed);
}

/// Pauses between two checks of a lock that another thread holds.
#[inline]
pub(super) fn pause() {
    #[cfg(feature = "shuttle")]
    shuttle::thread::yield_now();
    #[cfg(not(feature = "shuttle"))]
    std::hint::spin_loop();
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BlockUse {
    /// Buckets of words, with the header in the last one.
    Leaf,
    /// One bucket of nodes.
    Directory,
}

/// A reference to a block: its address, length and use.
///
/// | bits | field |
/// | --- | --- |
/// | 63 | 1 for a directory |
/// | 48-55 | number of buckets, less 1 |
/// | 0-47 | address, a multiple of 64 |
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Node(u64);

/// Content of a node's block.
pub(super) enum Child<'t> {
    Leaf(&'t [Bucket]),
    /// Eight cells, one for each value of the next three hash bits.
    Directory(&'t [Cell; WORDS]),
}

const DIRECTORY: u64 = 1 << 63;
const BUCKETS_SHIFT: u32 = 48;
const ADDRESS_MASK: u64 = (1 << BUCKETS_SHIFT) - 1;

/// Maximum number of buckets of a node.
pub(super) const NODE_BUCKETS_MAX: usize = 256;

impl Node {
    /// Creates a node for a block that the slab has allocated.
    pub(super) fn new(purpose: BlockUse, address: usize, buckets: usize) -> Node {
        let address = address as u64;
        assert!(address.is_multiple_of(BUCKET_BYTES as u64) && address & !ADDRESS_MASK == 0);
        assert!((1..=NODE_BUCKETS_MAX).contains(&buckets), "a block of {buckets} buckets");
        let purpose = match purpose {
            BlockUse::Leaf => 0,
            BlockUse::Directory => DIRECTORY,
        };
        Node(purpose | (buckets as u64 - 1) << BUCKETS_SHIFT | address)
    }

    pub(super) fn raw(self) -> u64 {
        self.0
    }

    /// Creates a node from a value of [`Node::raw`].
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

    /// Returns the size of the block in bytes.
    pub(super) fn bytes(self) -> u64 {
        (self.buckets() * BUCKET_BYTES) as u64
    }

    /// Returns the node in the cell; `None` if it is empty.
    #[inline]
    pub(super) fn in_cell(cell: &Cell) -> Option<Node> {
        let raw = cell.load();
        (raw != 0).then_some(Node(raw))
    }

    /// Returns the content of the node's block.
    #[inline]
    pub(super) fn open<'t>(self, turn: &'t Turn<'_>) -> Child<'t> {
        let buckets = self.block(turn);
        if self.0 & DIRECTORY == 0 {
            Child::Leaf(buckets)
        } else {
            Child::Directory(&buckets[0].cells)
        }
    }

    /// Returns the block's buckets.
    ///
    /// The slab creates a node, a cell stores it, then it is unlinked and retired; or it is freed
    /// without ever having been in a cell. So a thread that has a node within a turn may read its
    /// block until the turn ends. Callers follow this rule by taking nodes only from cells and
    /// from the slab.
    #[inline]
    pub(super) fn block<'t>(self, _turn: &'t Turn<'_>) -> &'t [Bucket] {
        let first = std::ptr::with_exposed_provenance::<Bucket>(self.address());
        // SAFETY: the slab made the node from a chunk with an exposed provenance: the address is
        // that of `buckets` whole buckets within the chunk, a multiple of 64, and no other block
        // overlaps them. Every bit pattern is a valid cell, chunks come zeroed, and all accesses
        // are atomic. The chunk is kept until the block has been reclaimed, which waits until
        // every turn that could have loaded the node has ended; the reference ends with the turn.
        unsafe { std::slice::from_raw_parts(first, self.buckets()) }
    }
}

/// Prefetches the cache line of a bucket.
#[inline]
pub(super) fn prefetch(bucket: &Bucket) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch has no effect that the program can see, and cannot fault.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(bucket).cast()) };
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = bucket;
}
