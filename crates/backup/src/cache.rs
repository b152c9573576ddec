//! Cache of the replicas that recoveries read: see "Reads for recoveries" in
//! `docs/design/backup.md`. The memory of a replica whose entries were all delivered is reused for
//! the next one: fresh memory costs more than all the other work.
//!
//! **Invariant:** no bytes are appended to a cached replica: its log is fenced, and its server is
//! dead.

use crate::files::lock;
use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use types::{HashSeed, KeyHash, key_hash};
use wire::entries::{EntryReader, ReadEntry};
use wire::entry::Body;
use wire::peer::{RecoveryNext, RecoveryRead};
use wire::replica::{ReadEnd, ReplicaId};

/// Maximum bytes of cached segments; at least one segment is cached. Masters of different ranges
/// are a few segments apart, as many as they read from one backup at a time. More segments are
/// cached only if some of their entries are needed by no master.
const CACHED_BYTES_MAX: usize = 128 << 20;

/// Maximum number of released buffers that are kept for reuse.
const SPARE_MAX: usize = 8;

#[derive(Default)]
pub(crate) struct ReplicaCache {
    /// Cached replicas, the most recently requested at the end.
    all: Mutex<VecDeque<(ReplicaId, Arc<CacheSlot>)>>,
    spare: Mutex<Vec<ReplicaContent>>,
}

/// Cache slot of a replica, created at the first request.
#[derive(Default)]
struct CacheSlot {
    /// Content of the replica. Locked during the read; `None` before it and after a failure.
    replica: Mutex<Option<Arc<CachedReplica>>>,
}

/// A replica that was read completely.
pub(crate) struct CachedReplica {
    content: ReplicaContent,
    end: ReadEnd,
    /// Seed of the key hashes.
    seed: u64,
    /// Number of entries that were not delivered yet. An entry that is requested twice counts
    /// twice, so a later request may have to read the replica again.
    left: AtomicUsize,
}

#[derive(Debug, Default)]
struct ReplicaContent {
    bytes: Vec<u8>,
    /// Offsets of records and tombstones, ascending.
    offsets: Vec<u32>,
    /// Key hash of each entry.
    hashes: Vec<KeyHash>,
}

impl ReplicaCache {
    /// Returns a replica with segments of this size from the cache. If it is not cached, reads it
    /// with `load`, while other requests for it wait.
    pub(crate) fn get_or_read(
        &self,
        id: ReplicaId,
        segment_bytes: u32,
        seed: &HashSeed,
        load: impl FnOnce(&mut dyn FnMut(&[u8])) -> io::Result<ReadEnd>,
    ) -> io::Result<Arc<CachedReplica>> {
        let slot = self.slot(id);
        self.trim(segment_bytes);
        let mut cached = lock(&slot.replica);
        match cached.as_ref().filter(|replica| replica.seed == seed.number()) {
            Some(replica) => Ok(Arc::clone(replica)),
            None => {
                let mut content = self.empty();
                content.bytes.reserve(segment_bytes as usize);
                let replica = Arc::new(CachedReplica::read(id, seed, content, load)?);
                Ok(Arc::clone(cached.insert(replica)))
            }
        }
    }

    /// Appends the requested entries to `out`, up to `bytes_max` bytes but at least one entry.
    /// Returns the position of the next entry, or the end of the replica. Drops the replica after
    /// its last entry.
    pub(crate) fn deliver(
        &self,
        replica: Arc<CachedReplica>,
        read: &RecoveryRead,
        bytes_max: usize,
        out: &mut Vec<u8>,
    ) -> RecoveryNext {
        let (copied, next) = replica.copy(read, bytes_max, out);
        let left = replica.left.fetch_sub(copied, Ordering::Relaxed);
        drop(replica);
        if copied > 0 && left <= copied {
            self.release(read.replica);
        }
        next
    }

    /// Returns the cache slot of the replica and marks it as most recently used.
    fn slot(&self, id: ReplicaId) -> Arc<CacheSlot> {
        let mut all = lock(&self.all);
        let at = all.iter().position(|(cached, _)| *cached == id);
        let known = at.and_then(|at| all.remove(at)).unwrap_or_else(|| (id, Arc::default()));
        let slot = Arc::clone(&known.1);
        all.push_back(known);
        slot
    }

    /// Drops a replica from the cache after all entries were delivered.
    fn release(&self, id: ReplicaId) {
        let mut all = lock(&self.all);
        let at = all.iter().position(|(cached, _)| *cached == id);
        let gone = at.and_then(|at| all.remove(at));
        drop(all);
        if let Some((_, slot)) = gone {
            self.take_back(slot);
        }
    }

    /// Drops the least recently used replicas, if too many are cached.
    fn trim(&self, segment_bytes: u32) {
        let most = (CACHED_BYTES_MAX / segment_bytes.max(1) as usize).max(1);
        let mut all = lock(&self.all);
        let surplus = all.len().saturating_sub(most);
        let gone: Vec<_> = all.drain(..surplus).collect();
        drop(all);
        gone.into_iter().for_each(|(_, slot)| self.take_back(slot));
    }

    /// Keeps the buffers of a dropped replica for reuse, unless a reader still uses them.
    fn take_back(&self, slot: Arc<CacheSlot>) {
        let Some(slot) = Arc::into_inner(slot) else { return };
        let replica = slot.replica.into_inner().unwrap_or_else(PoisonError::into_inner);
        let mut spare = lock(&self.spare);
        if let Some(replica) = replica.and_then(Arc::into_inner)
            && spare.len() < SPARE_MAX
        {
            spare.push(replica.content);
        }
    }

    /// Returns empty buffers for a replica that is about to be read.
    fn empty(&self) -> ReplicaContent {
        let mut content = lock(&self.spare).pop().unwrap_or_default();
        content.bytes.clear();
        content.offsets.clear();
        content.hashes.clear();
        content
    }

    /// Drops a replica that is not needed any more.
    pub(crate) fn forget(&self, id: ReplicaId) {
        let mut all = lock(&self.all);
        all.retain(|(cached, _)| *cached != id);
        if all.is_empty() {
            lock(&self.spare).clear();
        }
    }
}

impl CachedReplica {
    /// Reads a replica with `load`, which passes the bytes of the segment on and returns their end.
    fn read(
        id: ReplicaId,
        seed: &HashSeed,
        mut content: ReplicaContent,
        load: impl FnOnce(&mut dyn FnMut(&[u8])) -> io::Result<ReadEnd>,
    ) -> io::Result<CachedReplica> {
        let end = load(&mut |body| content.bytes.extend_from_slice(body))?;
        let mut reader = EntryReader::from(&content.bytes, 0);
        while let Some(read) = reader.next_checked() {
            let ReadEntry { offset, entry, .. } = read.map_err(|why| {
                let text = format!(
                    "{id} is damaged: its pieces are intact, but at byte {} of the segment {why}",
                    reader.offset()
                );
                io::Error::new(ErrorKind::InvalidData, text)
            })?;
            match entry.body {
                Body::Object { .. } | Body::Tombstone { .. } => {
                    content.offsets.push(offset as u32);
                    content.hashes.push(key_hash(seed, entry.key));
                }
                Body::CopiesOf(_) => {}
            }
        }
        assert_eq!(content.offsets.len(), content.hashes.len(), "an entry of {id} has no hash");
        let left = AtomicUsize::new(content.offsets.len());
        Ok(CachedReplica { content, end, seed: seed.number(), left })
    }

    /// Copies the requested entries. Returns their number, and the position after them.
    fn copy(
        &self,
        read: &RecoveryRead,
        bytes_max: usize,
        out: &mut Vec<u8>,
    ) -> (usize, RecoveryNext) {
        let mut count = 0;
        let before = out.len();
        let first = self.content.offsets.partition_point(|&offset| offset < read.from);
        for (number, hash) in self.content.hashes.iter().enumerate().skip(first) {
            if !read.range.contains(*hash) {
                continue;
            }
            let entry = self.entry(number);
            let copied = out.len() - before;
            if copied > 0 && copied + entry.len() > bytes_max {
                return (count, RecoveryNext::From(self.content.offsets[number]));
            }
            count += 1;
            out.extend_from_slice(entry);
        }
        let ReadEnd { length, crc, stamp, .. } = self.end;
        (count, RecoveryNext::End { length, crc, version: stamp.version })
    }

    /// Returns the bytes of an entry.
    fn entry(&self, number: usize) -> &[u8] {
        let rest = &self.content.bytes[self.content.offsets[number] as usize..];
        #[expect(clippy::expect_used, reason = "entries were parsed when they were read")]
        let header = rest.first_chunk().expect("it was parsed when the replica was read");
        &rest[..wire::entry::encoded_bytes_of(header)]
    }
}
