//! What recoveries read: the entries of a range in a replica.
//!
//! Several masters recover a part of a log each and ask for different ranges of the same segments, some
//! of them at a time. So a replica is read once from the disk, checked, and kept for a while, with the
//! key hash of each entry: a range is then found without looking at the entries. Whoever comes while it
//! is being read waits for that and for no other replica.
//!
//! **Invariant:** nothing is appended to a replica that is kept here: its log is fenced, and its server
//! dead.

use crate::Replicas;
use crate::files::lock;
use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::sync::{Arc, Mutex};
use types::{HashRange, HashSeed, KeyHash, key_hash};
use wire::entries::{EntryReader, ReadEntry};
use wire::entry::Body;
use wire::peer::{RecoveryNext, RecoveryRead};
use wire::replica::{ReadEnd, ReplicaId};

/// Bytes of segments that are kept. Of a segment, one at least.
const KEPT_BYTES_MAX: usize = 64 << 20;

/// Replicas that are kept, the one last asked for at the end.
#[derive(Debug, Default)]
pub(crate) struct Kept(Mutex<VecDeque<(ReplicaId, Arc<Reading>)>>);

/// A replica, from when somebody begins to read it.
#[derive(Debug, Default)]
struct Reading {
    /// Held while it is being read. `None` also after that failed.
    whole: Mutex<Option<Arc<Whole>>>,
}

/// A replica that was read.
#[derive(Debug)]
struct Whole {
    bytes: Vec<u8>,
    end: ReadEnd,
    /// Under which the keys were hashed.
    seed: u64,
    /// Where entries of records begin, ascending.
    offsets: Vec<u32>,
    /// The hash of each.
    hashes: Vec<KeyHash>,
}

impl Kept {
    /// The replica's place, which is the last to go from now on.
    fn place(&self, id: ReplicaId) -> Arc<Reading> {
        let mut all = lock(&self.0);
        let at = all.iter().position(|(kept, _)| *kept == id);
        let known = at.and_then(|at| all.remove(at)).unwrap_or_else(|| (id, Arc::default()));
        let reading = Arc::clone(&known.1);
        all.push_back(known);
        reading
    }

    /// Lets go of what was asked for the longest time ago, if it is too much.
    fn trim(&self, segment_bytes: u32) {
        let most = (KEPT_BYTES_MAX / segment_bytes.max(1) as usize).max(1);
        let mut all = lock(&self.0);
        let surplus = all.len().saturating_sub(most);
        let _gone: Vec<_> = all.drain(..surplus).collect();
    }

    /// The replica is not needed any more.
    pub(crate) fn forget(&self, id: ReplicaId) {
        lock(&self.0).retain(|(kept, _)| *kept != id);
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
        Ok(whole.copy((read.range, read.from), bytes_max, out))
    }

    fn whole(&self, id: ReplicaId, seed: &HashSeed) -> io::Result<Arc<Whole>> {
        let segment_bytes = self.find(id)?.header.segment_bytes;
        let reading = self.kept().place(id);
        self.kept().trim(segment_bytes);
        let mut place = lock(&reading.whole);
        match place.as_ref().filter(|whole| whole.seed == seed.number()) {
            Some(whole) => Ok(Arc::clone(whole)),
            None => {
                let whole = Arc::new(self.read_whole(id, seed)?);
                Ok(Arc::clone(place.insert(whole)))
            }
        }
    }

    fn read_whole(&self, id: ReplicaId, seed: &HashSeed) -> io::Result<Whole> {
        let mut bytes = Vec::new();
        let end = self.read(id, |body| bytes.extend_from_slice(body))?;
        let (mut offsets, mut hashes) = (Vec::new(), Vec::new());
        let mut reader = EntryReader::from(&bytes, 0);
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
                    offsets.push(offset as u32);
                    hashes.push(key_hash(seed, entry.key));
                }
                Body::CopiesOf(_) => {}
            }
        }
        Ok(Whole { bytes, end, seed: seed.number(), offsets, hashes })
    }
}

impl Whole {
    /// Copies entries of a range from a place on.
    fn copy(
        &self,
        (range, from): (HashRange, u32),
        bytes_max: usize,
        out: &mut Vec<u8>,
    ) -> RecoveryNext {
        let before = out.len();
        let first = self.offsets.partition_point(|&offset| offset < from);
        for (number, hash) in self.hashes.iter().enumerate().skip(first) {
            if !range.contains(*hash) {
                continue;
            }
            let entry = self.entry(number);
            let copied = out.len() - before;
            if copied > 0 && copied + entry.len() > bytes_max {
                return RecoveryNext::From(self.offsets[number]);
            }
            out.extend_from_slice(entry);
        }
        let ReadEnd { length, crc, version, .. } = self.end;
        RecoveryNext::End { length, crc, version }
    }

    /// The bytes of an entry.
    fn entry(&self, number: usize) -> &[u8] {
        let rest = &self.bytes[self.offsets[number] as usize..];
        #[expect(clippy::expect_used, reason = "entries were parsed when they were read")]
        let header = rest.first_chunk().expect("it was parsed when the replica was read");
        &rest[..wire::entry::encoded_bytes_of(header)]
    }
}
