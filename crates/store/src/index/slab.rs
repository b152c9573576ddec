//! Memory for leaves and directories: blocks of 1 to 256 buckets, cut from chunks of the arena.
//!
//! A chunk is cut into blocks of one size. The sizes are chosen so that a chunk is used almost
//! whole, and so that each is about a fifth to a quarter above the one before: a leaf that grows
//! takes the next size. A block comes from the lowest chunk that has room, so that others run
//! empty; a chunk without a block in use goes back to the arena.
//!
//! Blocks that readers may still see are retired and come back through reclamation.

use super::bucket::{BUCKET_BYTES, NODE_BUCKETS_MAX, Node, Use};
use crate::{
    log::{Chunk, Log, Reclaim, Retired, Turn},
    sync::{Mutex, MutexGuard},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

const CHUNK_BUCKETS: usize = Chunk::BYTES / BUCKET_BYTES;

/// Buckets of a block, by class.
const SIZES: [usize; 25] = [
    1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 15, 18, 22, 28, 34, 42, 51, 64, 78, 93, 113, 146, 170, 204, 256,
];

const _: () = {
    let mut class = 0;
    while class < SIZES.len() {
        assert!(CHUNK_BUCKETS % SIZES[class] <= CHUNK_BUCKETS / 40, "a size wastes its chunks");
        assert!(class == 0 || SIZES[class - 1] < SIZES[class]);
        class += 1;
    }
    assert!(SIZES[SIZES.len() - 1] == NODE_BUCKETS_MAX);
};

/// A size of block, as a position in the list of sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Class(u8);

impl Class {
    pub(super) const SMALLEST: Class = Class(0);

    /// The smallest class with at least this many buckets; the largest if there is none.
    pub(super) fn with_buckets(buckets: usize) -> Class {
        Class(SIZES.partition_point(|&size| size < buckets).min(SIZES.len() - 1) as u8)
    }

    /// The next larger one.
    pub(super) fn next(self) -> Option<Class> {
        (usize::from(self.0) + 1 < SIZES.len()).then(|| Class(self.0 + 1))
    }

    pub(super) fn buckets(self) -> usize {
        SIZES[usize::from(self.0)]
    }

    fn bytes(self) -> usize {
        self.buckets() * BUCKET_BYTES
    }
}

/// The blocks of all indexes of a store.
pub struct Slab {
    log: Arc<Log>,
    classes: [Mutex<Chunks>; SIZES.len()],
    chunks: AtomicU64,
}

/// The chunks that are cut into blocks of one class.
#[derive(Default)]
struct Chunks {
    by_address: BTreeMap<usize, Blocks>,
    /// Addresses of chunks with a free block.
    with_room: BTreeSet<usize>,
}

/// A chunk that is cut into blocks.
struct Blocks {
    chunk: Chunk,
    /// One bit per block.
    free: Box<[u64]>,
    used: usize,
}

impl Slab {
    /// A slab that takes its memory from this log's arena.
    pub fn new(log: Arc<Log>) -> Arc<Slab> {
        let classes = std::array::from_fn(|_| Mutex::default());
        Arc::new(Slab { log, classes, chunks: AtomicU64::new(0) })
    }

    /// Bytes of the arena that are the slab's, free blocks included.
    pub fn bytes(&self) -> u64 {
        self.chunks.load(Ordering::Relaxed) * Chunk::BYTES as u64
    }

    /// Whether what is unlinked during this turn waits for the turn to end.
    #[inline]
    pub(super) fn vouches_for(&self, turn: &Turn<'_>) -> bool {
        self.log.vouches_for(turn)
    }

    /// A block that nobody else knows. It may hold anything. `None`: the arena has no more memory.
    pub(super) fn allocate(&self, purpose: Use, class: Class) -> Option<Node> {
        let mut chunks = self.chunks_of(class);
        let base = match chunks.with_room.first() {
            Some(&base) => base,
            None => {
                let chunk = self.log.take_chunk()?;
                self.chunks.fetch_add(1, Ordering::Relaxed);
                chunks.add(chunk, class)
            }
        };
        let block = chunks.take_block(base);
        drop(chunks);
        Some(Node::new(purpose, base + block * class.bytes(), class.buckets()))
    }

    /// Takes back a block that nobody else has ever known, or that nobody can see any more.
    pub(super) fn free(&self, node: Node) {
        let class = Class::with_buckets(node.buckets());
        let emptied = self.chunks_of(class).give_block(node.address(), class);
        if let Some(chunk) = emptied {
            self.chunks.fetch_sub(1, Ordering::Relaxed);
            self.log.give_chunk(chunk);
        }
    }

    /// Takes back a block that has been unlinked, once no reader can see it.
    pub(super) fn retire(self: &Arc<Self>, node: Node) {
        let owner = Arc::clone(self) as Arc<dyn Reclaim>;
        self.log.reclamation().retire(Retired::Numbered { owner, number: node.raw() });
    }

    fn chunks_of(&self, class: Class) -> MutexGuard<'_, Chunks> {
        let chunks = self.classes[usize::from(class.0)].lock();
        chunks.expect("nothing panics while it holds a class's lock")
    }
}

impl Reclaim for Slab {
    fn reclaim(&self, number: u64) {
        self.free(Node::from_raw(number));
    }
}

impl fmt::Debug for Slab {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slab").field("bytes", &self.bytes()).finish_non_exhaustive()
    }
}

impl Chunks {
    /// Returns the chunk's address.
    fn add(&mut self, chunk: Chunk, class: Class) -> usize {
        let count = CHUNK_BUCKETS / class.buckets();
        let mut free = vec![u64::MAX; count.div_ceil(64)];
        if !count.is_multiple_of(64) {
            free[count / 64] = (1 << (count % 64)) - 1;
        }
        // Nodes name blocks by number; `bucket.rs` makes references of them.
        let base = chunk.base().expose_provenance().get();
        self.by_address.insert(base, Blocks { chunk, free: free.into_boxed_slice(), used: 0 });
        self.with_room.insert(base);
        base
    }

    /// Takes the first free block of the chunk.
    fn take_block(&mut self, base: usize) -> usize {
        let blocks = self.by_address.get_mut(&base).expect("a chunk with room is known");
        let group = blocks.free.iter().position(|&bits| bits != 0).expect("the chunk has room");
        let block = group * 64 + blocks.free[group].trailing_zeros() as usize;
        blocks.free[group] &= blocks.free[group] - 1;
        blocks.used += 1;
        if blocks.free[group..].iter().all(|&bits| bits == 0) {
            self.with_room.remove(&base);
        }
        block
    }

    /// Returns the block's chunk if nothing of it is in use any more.
    fn give_block(&mut self, address: usize, class: Class) -> Option<Chunk> {
        let base = address & !(Chunk::BYTES - 1);
        let blocks = self.by_address.get_mut(&base).expect("a block's chunk is known");
        let block = (address - base) / class.bytes();
        assert!((address - base).is_multiple_of(class.bytes()), "a block of another class");
        assert!(blocks.free[block / 64] & 1 << (block % 64) == 0, "a block is freed twice");
        blocks.free[block / 64] |= 1 << (block % 64);
        blocks.used -= 1;
        if blocks.used > 0 {
            self.with_room.insert(base);
            return None;
        }
        self.with_room.remove(&base);
        self.by_address.remove(&base).map(|blocks| blocks.chunk)
    }
}
