//! What recoveries read: the entries of a range in a replica.
//!
//! Several masters recover a part of a log each and ask for different ranges of the same segments, some
//! of them at a time. So a replica is read once from the disk, checked, and kept for a while, with the
//! key hash of each entry: a range is then found without looking at the entries. Whoever comes while it
//! is being read waits for that and for no other replica. When each of its entries has been asked for
//! somebody has got it, and nobody will come: its memory takes the next one. Fresh memory costs more
//! than all that is done with it.
//!
//! **Invariant:** nothing is appended to a replica that is kept here: its log is fenced, and its server
//! dead.

use crate::Replicas;
use crate::files::lock;
use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use types::{HashRange, HashSeed, KeyHash, key_hash};
use wire::entries::{EntryReader, ReadEntry};
use wire::entry::Body;
use wire::peer::{RecoveryNext, RecoveryRead};
use wire::replica::{ReadEnd, ReplicaId};

/// Bytes of segments that are kept. Of a segment, one at least. Masters of different parts are a few
/// segments apart, as many as they read from one backup at a time; more are there only if they have
/// entries that nobody needs any more.
const KEPT_BYTES_MAX: usize = 128 << 20;

/// Replicas of which the memory waits for the next ones.
const SPARE_MAX: usize = 8;

/// Replicas that are kept.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    /// The one last asked for at the end.
    all: Mutex<VecDeque<(ReplicaId, Arc<Reading>)>>,
    spare: Mutex<Vec<Content>>,
}

/// A replica, from when somebody begins to read it.
#[derive(Debug, Default)]
struct Reading {
    /// Held while it is being read. `None` also after that failed.
    whole: Mutex<Option<Arc<Whole>>>,
}

/// A replica that was read.
#[derive(Debug)]
struct Whole {
    content: Content,
    end: ReadEnd,
    /// Under which the keys were hashed.
    seed: u64,
    /// Entries that nobody has got. What is asked for twice counts twice: then somebody may have to
    /// wait until it is read again.
    left: AtomicUsize,
}

/// What was read of a replica.
#[derive(Debug, Default)]
struct Content {
    bytes: Vec<u8>,
    /// Where entries of records begin, ascending.
    offsets: Vec<u32>,
    /// The hash of each.
    hashes: Vec<KeyHash>,
}

impl Kept {
    /// The replica's place, which is the last to go from now on.
    fn place(&self, id: ReplicaId) -> Arc<Reading> {
        let mut all = lock(&self.all);
        let at = all.iter().position(|(kept, _)| *kept == id);
        let known = at.and_then(|at| all.remove(at)).unwrap_or_else(|| (id, Arc::default()));
        let reading = Arc::clone(&known.1);
        all.push_back(known);
        reading
    }

    /// Everybody has got theirs.
    fn let_go(&self, id: ReplicaId) {
        let mut all = lock(&self.all);
        let at = all.iter().position(|(kept, _)| *kept == id);
        let gone = at.and_then(|at| all.remove(at));
        drop(all);
        if let Some((_, reading)) = gone {
            self.take_back(reading);
        }
    }

    /// Lets go of what was asked for the longest time ago, if it is too much.
    fn trim(&self, segment_bytes: u32) {
        let most = (KEPT_BYTES_MAX / segment_bytes.max(1) as usize).max(1);
        let mut all = lock(&self.all);
        let surplus = all.len().saturating_sub(most);
        let gone: Vec<_> = all.drain(..surplus).collect();
        drop(all);
        gone.into_iter().for_each(|(_, reading)| self.take_back(reading));
    }

    /// Nobody will ask for it. Whoever still reads it keeps it.
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

    /// Memory for one that is going to be read, with nothing in it.
    fn empty(&self) -> Content {
        let mut content = lock(&self.spare).pop().unwrap_or_default();
        content.bytes.clear();
        content.offsets.clear();
        content.hashes.clear();
        content
    }

    /// The replica is not needed any more.
    pub(crate) fn forget(&self, id: ReplicaId) {
        let mut all = lock(&self.all);
        all.retain(|(kept, _)| *kept != id);
        if all.is_empty() {
            lock(&self.spare).clear();
        }
    }
}

impl Replicas {
    /// Appends to `out` the entries of the range that a replica has from a place on, until they have
    /// `bytes_max` bytes, at least one. Tells what comes behind them.
    ///
    /// Waits for the disk if the replica was not asked for lately. Fails with
    /// [`ErrorKind::NotFound`] if it is not here, and with [`ErrorKind::InvalidData`] if what stands
    /// in it is no entry.
    pub fn entries(
        &self,
        read: &RecoveryRead,
        seed: &HashSeed,
        bytes_max: usize,
        out: &mut Vec<u8>,
    ) -> io::Result<RecoveryNext> {
        let whole = self.whole(read.replica, seed)?;
        let (copied, next) = whole.copy((read.range, read.from), bytes_max, out);
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
                    "{id} is damaged: its pieces are whole, but at byte {} of the segment {why}",
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
    /// Copies entries of a range from a place on. Returns how many.
    fn copy(
        &self,
        (range, from): (HashRange, u32),
        bytes_max: usize,
        out: &mut Vec<u8>,
    ) -> (usize, RecoveryNext) {
        let mut count = 0;
        let before = out.len();
        let first = self.content.offsets.partition_point(|&offset| offset < from);
        for (number, hash) in self.content.hashes.iter().enumerate().skip(first) {
            if !range.contains(*hash) {
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

    /// The bytes of an entry.
    fn entry(&self, number: usize) -> &[u8] {
        let rest = &self.content.bytes[self.content.offsets[number] as usize..];
        #[expect(clippy::expect_used, reason = "entries were parsed when they were read")]
        let header = rest.first_chunk().expect("it was parsed when the replica was read");
        &rest[..wire::entry::encoded_bytes_of(header)]
    }
}
