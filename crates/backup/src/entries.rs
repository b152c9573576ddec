//! Reads of recoveries: the entries of a range in a replica.
//!
//! Several masters each recover a range of a log and request different ranges of the same
//! segments, often at the same time. So a replica is read from the disk and checked once, and
//! cached for a while together with the key hash of each entry. A range is then found without
//! parsing the entries. Requests that arrive while a replica is being read wait for that read,
//! but not for reads of other replicas.
//!
//! When every entry has been delivered, no further request is expected and the memory is reused
//! for the next replica. Fresh memory costs more than all the other work.
//!
//! **Invariant:** no bytes are appended to a cached replica: its log is fenced, and its server is
//! dead.

use crate::Replicas;
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
const KEPT_BYTES_MAX: usize = 128 << 20;

/// Maximum number of released buffers that are kept for reuse.
const SPARE_MAX: usize = 8;

/// Cache of replicas.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    /// Cached replicas, the most recently requested at the end.
    all: Mutex<VecDeque<(ReplicaId, Arc<Reading>)>>,
    spare: Mutex<Vec<Content>>,
}

/// Cache slot of a replica, created at the first request.
#[derive(Debug, Default)]
struct Reading {
    /// Content of the replica. Locked during the read; `None` before it and after a failure.
    whole: Mutex<Option<Arc<Whole>>>,
}

/// A replica that was read completely.
#[derive(Debug)]
struct Whole {
    content: Content,
    end: ReadEnd,
    /// Seed of the key hashes.
    seed: u64,
    /// Number of entries that were not delivered yet. An entry that is requested twice counts
    /// twice, so a later request may have to read the replica again.
    left: AtomicUsize,
}

/// Content of a replica.
#[derive(Debug, Default)]
struct Content {
    bytes: Vec<u8>,
    /// Offsets of records and tombstones, ascending.
    offsets: Vec<u32>,
    /// Key hash of each entry.
    hashes: Vec<KeyHash>,
}

impl Kept {
    /// Returns the cache slot of the replica and marks it as most recently used.
    fn place(&self, id: ReplicaId) -> Arc<Reading> {
        let mut all = lock(&self.all);
        let at = all.iter().position(|(kept, _)| *kept == id);
        let known = at.and_then(|at| all.remove(at)).unwrap_or_else(|| (id, Arc::default()));
        let reading = Arc::clone(&known.1);
        all.push_back(known);
        reading
    }

    /// Drops a replica from the cache after all entries were delivered.
    fn let_go(&self, id: ReplicaId) {
        let mut all = lock(&self.all);
        let at = all.iter().position(|(kept, _)| *kept == id);
        let gone = at.and_then(|at| all.remove(at));
        drop(all);
        if let Some((_, reading)) = gone {
            self.take_back(reading);
        }
    }

    /// Drops the least recently used replicas, if too many are cached.
    fn trim(&self, segment_bytes: u32) {
        let most = (KEPT_BYTES_MAX / segment_bytes.max(1) as usize).max(1);
        let mut all = lock(&self.all);
        let surplus = all.len().saturating_sub(most);
        let gone: Vec<_> = all.drain(..surplus).collect();
        drop(all);
        gone.into_iter().for_each(|(_, reading)| self.take_back(reading));
    }

    /// Keeps the buffers of a dropped replica for reuse, unless a reader still uses them.
    fn take_back(&self, reading: Arc<Reading>) {
        let Some(reading) = Arc::into_inner(reading) else { return };
        let whole = reading.whole.into_inner().unwrap_or_else(PoisonError::into_inner);
        let mut spare = lock(&self.spare);
        if let Some(whole) = whole.and_then(Arc::into_inner)
            && spare.len() < SPARE_MAX
        {
            spare.push(whole.content);
        }
    }

    /// Returns empty buffers for a replica that is about to be read.
    fn empty(&self) -> Content {
        let mut content = lock(&self.spare).pop().unwrap_or_default();
        content.bytes.clear();
        content.offsets.clear();
        content.hashes.clear();
        content
    }

    /// Drops a replica that is not needed any more.
    pub(crate) fn forget(&self, id: ReplicaId) {
        let mut all = lock(&self.all);
        all.retain(|(kept, _)| *kept != id);
        if all.is_empty() {
            lock(&self.spare).clear();
        }
    }
}

impl Replicas {
    /// Appends the entries of a range in a replica to `out`, starting at an offset, up to
    /// `bytes_max` bytes but at least one entry. Returns the position of the next entry, or the
    /// end of the replica.
    ///
    /// Waits for the disk if the replica is not cached. Fails with [`ErrorKind::NotFound`] if it
    /// is not on this disk, and with [`ErrorKind::InvalidData`] if it contains an invalid entry.
    pub fn entries(
        &self,
        read: &RecoveryRead,
        seed: &HashSeed,
        bytes_max: usize,
        out: &mut Vec<u8>,
    ) -> io::Result<RecoveryNext> {
        let whole = self.whole(read.replica, seed)?;
        let (copied, next) = whole.copy(read, bytes_max, out);
        let left = whole.left.fetch_sub(copied, Ordering::Relaxed);
        drop(whole);
        if copied > 0 && left <= copied {
            self.kept().let_go(read.replica);
        }
        Ok(next)
    }

    fn whole(&self, id: ReplicaId, seed: &HashSeed) -> io::Result<Arc<Whole>> {
        let segment_bytes = self.find(id)?.header.segment_bytes;
        let reading = self.kept().place(id);
        self.kept().trim(segment_bytes);
        let mut place = lock(&reading.whole);
        match place.as_ref().filter(|whole| whole.seed == seed.number()) {
            Some(whole) => Ok(Arc::clone(whole)),
            None => {
                let whole = Arc::new(self.read_whole(id, seed, segment_bytes as usize)?);
                Ok(Arc::clone(place.insert(whole)))
            }
        }
    }

    fn read_whole(&self, id: ReplicaId, seed: &HashSeed, bytes_max: usize) -> io::Result<Whole> {
        let mut content = self.kept().empty();
        content.bytes.reserve(bytes_max);
        let end = self.read(id, |body| content.bytes.extend_from_slice(body))?;
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
        let left = AtomicUsize::new(content.offsets.len());
        Ok(Whole { content, end, seed: seed.number(), left })
    }
}

impl Whole {
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
