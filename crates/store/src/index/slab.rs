//! Memory for leaves and directories: blocks of up to 256 buckets, cut from chunks of the arena.
//! See `docs/design/index.md`, "Slab". Blocks that readers may still see are retired and come
//! back through reclamation.

use super::bucket::{BUCKET_BYTES, BlockUse, Node};
use super::runs::Runs;
use crate::log::{Chunk, Log, Reclaim, Turn};
use crate::sync::{Mutex, MutexGuard};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const _: () = assert!(super::runs::UNITS * BUCKET_BYTES == Chunk::BYTES);

/// The blocks of all indexes of a store.
pub struct Slab {
    log: Arc<Log>,
    chunks: Mutex<SlabChunks>,
    /// Bytes of `chunks`, readable without the lock.
    bytes: AtomicU64,
}

#[derive(Default)]
struct SlabChunks {
    by_address: BTreeMap<usize, (Chunk, Runs)>,
    /// Length of the longest free run, and address.
    by_longest_run: BTreeSet<(usize, usize)>,
}

impl Slab {
    /// Creates a slab that takes its memory from this log's arena.
    pub fn new(log: Arc<Log>) -> Arc<Slab> {
        Arc::new(Slab { log, chunks: Mutex::default(), bytes: AtomicU64::new(0) })
    }

    /// Returns the bytes of the arena that the slab uses, including free blocks.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Returns whether blocks that are unlinked during this turn are kept until the turn ends.
    #[inline]
    pub(super) fn vouches_for(&self, turn: &Turn<'_>) -> bool {
        self.log.vouches_for(turn)
    }

    /// Returns a block that no other thread knows, with arbitrary content. `None` if the arena
    /// has no more memory.
    pub(super) fn allocate(&self, purpose: BlockUse, buckets: usize) -> Option<Node> {
        let mut chunks = self.lock();
        let address = match chunks.cut(buckets) {
            Some(address) => address,
            None => {
                chunks.add(self.log.take_chunk()?);
                self.bytes.fetch_add(Chunk::BYTES as u64, Ordering::Relaxed);
                chunks.cut(buckets).expect("an empty chunk suffices")
            }
        };
        drop(chunks);
        Some(Node::new(purpose, address, buckets))
    }

    /// Frees a block that was never published, or that no reader can see any more.
    pub(super) fn free(&self, node: Node) {
        let emptied = self.lock().give(node.address(), node.buckets());
        if let Some(chunk) = emptied {
            self.bytes.fetch_sub(Chunk::BYTES as u64, Ordering::Relaxed);
            self.log.give_chunk(chunk);
        }
    }

    /// Frees an unlinked block once no reader can see it.
    pub(super) fn retire(self: &Arc<Self>, node: Node) {
        let owner = Arc::clone(self) as Arc<dyn Reclaim>;
        self.log.reclamation().retire(owner, node.raw());
    }

    fn lock(&self) -> MutexGuard<'_, SlabChunks> {
        self.chunks.lock().expect("nothing panics while it holds the slab's lock")
    }
}

impl Reclaim for Slab {
    fn reclaim(&self, number: u64) {
        self.free(Node::from_raw(number));
    }
}

impl SlabChunks {
    fn add(&mut self, chunk: Chunk) {
        // Nodes refer to blocks by number; `bucket.rs` turns the numbers into references.
        let base = chunk.base().expose_provenance().get();
        assert!(base.is_multiple_of(Chunk::BYTES), "a chunk at {base:#x} is not aligned");
        let runs = Runs::new();
        self.by_longest_run.insert((runs.longest(), base));
        self.by_address.insert(base, (chunk, runs));
    }

    /// Allocates `buckets` free buckets and returns their address.
    fn cut(&mut self, buckets: usize) -> Option<usize> {
        let &(longest, base) = self.by_longest_run.range((buckets, 0)..).next()?;
        let (_, runs) = self.by_address.get_mut(&base).expect("a listed chunk is known");
        let first = runs.take(buckets);
        let now = runs.longest();
        debug_assert!(now <= longest, "a run grew from {longest} to {now} by an allocation");
        if now != longest {
            self.by_longest_run.remove(&(longest, base));
            self.by_longest_run.insert((now, base));
        }
        Some(base + first * BUCKET_BYTES)
    }

    /// Frees a block. Returns its chunk if no other block of the chunk is in use.
    fn give(&mut self, address: usize, buckets: usize) -> Option<Chunk> {
        let base = address & !(Chunk::BYTES - 1);
        let (_, runs) = self.by_address.get_mut(&base).expect("a block's chunk is known");
        let before = runs.longest();
        runs.give((address - base) / BUCKET_BYTES, buckets);
        let now = runs.longest();
        if now != before {
            let was_listed = self.by_longest_run.remove(&(before, base));
            assert!(was_listed, "a chunk is not listed by its longest run of {before}");
            self.by_longest_run.insert((now, base));
        }
        if now < super::runs::UNITS {
            return None;
        }
        self.by_longest_run.remove(&(now, base));
        let emptied = self.by_address.remove(&base).map(|(chunk, _)| chunk);
        assert!(
            self.by_address.len() == self.by_longest_run.len(),
            "a chunk is listed twice, or not at all"
        );
        emptied
    }
}
