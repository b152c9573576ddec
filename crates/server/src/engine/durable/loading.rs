//! What was kept comes back: the segments that the directory names are read into memory, and their
//! entries entered into the index, by all reactors, in any order.
//!
//! 1. [`Kept::find`] looks what there is, before there is a server.
//! 2. [`Kept::keep`] makes it this server's: all segments that the directory names must be there.
//! 3. When the coordinator has said what is ours, each quantum reads a segment or enters a part of
//!    one. Of every key the highest version counts, so the order does not matter.
//! 4. When all have been entered, tombstones leave the index, and the server serves.

use super::chain::{CHAIN, Chain};
use super::{Acknowledgments, Keeper, Mode};
use crate::engine::Engine;
use backup::{Disk, FileNumber, Opened, Replicas, Unreadable};
use protocols::directory::Directory;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use types::{ClusterId, Instant, KeyHash, SegmentId, ServerId};
use wire::Corrupt;
use wire::directory::Content;
use wire::replica::{
    BootId, End, ReadEnd, ReplicaEpoch, ReplicaFormat, ReplicaHeader, ReplicaId, ReplicaKind, Stamp,
};

/// Entries entered by one quantum: half a millisecond. Nobody is served meanwhile but those who ask
/// how far it is.
const QUANTUM_ENTRIES: usize = 2048;

/// Buckets looked at by one quantum when tombstones leave the index.
const QUANTUM_BUCKETS: usize = 1024;

/// Why a server cannot start with what it finds. The texts are for operators.
#[derive(Debug, thiserror::Error)]
pub enum KeptError {
    /// The disk does not let us.
    #[error("{what}: {error}")]
    Disk {
        /// What was tried.
        what: String,
        /// What the system said.
        error: io::Error,
    },
    /// There are replicas of several logs.
    #[error(
        "the folder holds the logs of several servers ({first} and {second}): give each server a \
         folder of its own"
    )]
    Mixed {
        /// One of them.
        first: ServerId,
        /// Another one.
        second: ServerId,
    },
    /// There are replicas of logs of several clusters.
    #[error(
        "the folder holds logs of several clusters ({first} and {second}): move what does not belong \
         here away"
    )]
    Clusters {
        /// One of them.
        first: ClusterId,
        /// Another one.
        second: ClusterId,
    },
    /// Files cannot be read, so that nobody knows what is in them.
    #[error(
        "{number} cannot be read ({why}), nor can {more} more files. If another version of ballast \
         wrote them start that one; if the disk is damaged bring the folder back from a copy"
    )]
    Unreadable {
        /// The first of them.
        number: FileNumber,
        /// The reason.
        why: Corrupt,
        /// How many there are beside it.
        more: usize,
    },
    /// There are segments and no directory that says which of them count.
    #[error(
        "the folder holds {segments} segments of a log and no whole log directory: it is damaged. \
         Bring it back from a copy, or begin anew with an empty folder"
    )]
    NoDirectory {
        /// Segments that were found.
        segments: usize,
    },
    /// The directory names segments that are not there.
    #[error(
        "the log directory names {count} segments that are not there, the first of them {first}: \
         the folder is incomplete. Bring it back from a copy, or begin anew with an empty folder"
    )]
    Missing {
        /// How many.
        count: usize,
        /// One of them.
        first: SegmentId,
    },
    /// A segment is not what the directory says.
    #[error(
        "segment {segment} of the log is damaged: {how}. What is there was left as it is; bring the \
         folder back from a copy, or begin anew with an empty folder"
    )]
    Damaged {
        /// Which.
        segment: SegmentId,
        /// In what way.
        how: String,
    },
    /// The memory is too small for the log.
    #[error(
        "the log has more segments than the memory has room for ({segments} of {segment_bytes} bytes each): give more with \
         --memory"
    )]
    Memory {
        /// Segments of the log.
        segments: usize,
        /// Bytes of each.
        segment_bytes: usize,
    },
}

/// What was found on a disk, before a server has made it its own.
pub struct Kept {
    replicas: Replicas,
    headers: BTreeMap<SegmentId, ReplicaHeader>,
}

impl Kept {
    /// Looks what there is. `boot` names this run of the machine.
    pub fn find(disk: Arc<dyn Disk>, boot: BootId) -> Result<Kept, KeptError> {
        let wrong = |error| KeptError::Disk { what: "the folder cannot be read".into(), error };
        let Opened { replicas, unreadable } = Replicas::open(disk, boot).map_err(wrong)?;
        // The newest segment of the chain may be among them: what the others say is not to be
        // trusted.
        if let [Unreadable { number, why }, rest @ ..] = &unreadable[..] {
            let (number, why, more) = (*number, *why, rest.len());
            return Err(KeptError::Unreadable { number, why, more });
        }
        let logs = replicas.logs();
        if let [first, second, ..] = logs[..] {
            return Err(KeptError::Mixed { first, second });
        }
        let headers: Vec<_> = logs.into_iter().flat_map(|log| replicas.list(log)).collect();
        let clusters: BTreeSet<ClusterId> = headers.iter().map(|header| header.cluster).collect();
        let mut clusters = clusters.into_iter();
        if let (Some(first), Some(second)) = (clusters.next(), clusters.next()) {
            return Err(KeptError::Clusters { first, second });
        }
        // Of two replicas of a segment the later one counts.
        let headers = headers.into_iter().map(|header| (header.id.segment, header)).collect();
        Ok(Kept { replicas, headers })
    }

    /// Whose log it is; `None`: there is nothing.
    pub fn owner(&self) -> Option<(ClusterId, ServerId)> {
        self.headers.values().next().map(|header| (header.cluster, header.id.log))
    }

    /// Bytes of a segment of this log, if there is one.
    pub fn segment_bytes(&self) -> Option<usize> {
        let mut data = self.headers.values().filter(|header| header.kind == ReplicaKind::Data);
        data.next().map(|header| header.segment_bytes as usize)
    }

    /// Goes on with it as this server, whose segments have so many bytes.
    pub fn keep(
        self,
        (cluster, server): (ClusterId, ServerId),
        segment_bytes: usize,
        mode: Mode,
    ) -> Result<Keeper, KeptError> {
        let (directory, stamp) = self.directory()?;
        let (named, unnamed): (Vec<ReplicaId>, Vec<ReplicaId>) = self
            .headers
            .values()
            .map(|header| header.id)
            .partition(|id| directory.contains(id.segment));
        let chain = unnamed.iter().filter(|id| id.segment.0 >= CHAIN).map(|id| id.segment.0);
        let next = chain.max().map_or(1, |last| (last & !CHAIN) + 1);
        let epochs = self.headers.values().map(|header| header.id.epoch.0 + 1);
        let id = ReplicaId {
            log: server,
            segment: SegmentId(0),
            epoch: ReplicaEpoch(epochs.max().unwrap_or(0)),
        };
        let header = ReplicaHeader {
            format: ReplicaFormat::CURRENT,
            cluster,
            id,
            kind: ReplicaKind::Data,
            segment_bytes: segment_bytes as u32,
            boot: self.replicas.boot(),
        };
        let earlier = named.into_iter().map(|id| (id.segment, id)).collect();
        let to_read: Vec<_> = directory.segments().collect();
        let loading = Loading::new(to_read, stamp, self.headers);
        let keeper = Keeper {
            mode,
            replicas: self.replicas,
            chain: Mutex::new(Chain::new(directory, next, (unnamed, earlier), header)),
            loading,
            acknowledgments: Acknowledgments::default(),
            is_failing: AtomicBool::new(false),
            is_broken: AtomicBool::new(false),
        };
        // From here on there is always a directory, whatever happens: a folder that has segments and
        // none has lost it.
        let begun = keeper.chain().begin_and_sync(&keeper, stamp);
        let what = "the log directory cannot be written".into();
        begun.map_err(|error| KeptError::Disk { what, error })?;
        Ok(keeper)
    }

    /// The directory, from the newest segment of its chain that begins with a whole snapshot, and
    /// the version counter and expiry clock of its last piece.
    fn directory(&self) -> Result<(Directory, Stamp), KeptError> {
        let chain = self.headers.values().filter(|it| it.kind == ReplicaKind::Directory);
        for header in chain.rev() {
            let damaged = |how| KeptError::Damaged { segment: header.id.segment, how };
            let mut bodies: Vec<Vec<u8>> = Vec::new();
            let read = self.replicas.read(header.id, |body| bodies.push(body.to_vec()));
            let end = read.map_err(|error| damaged(error.to_string()))?;
            if bodies.is_empty() {
                // It was begun, and nothing has relied on it.
                continue;
            }
            self.check(header, &end)?;
            let directory = Directory::read(bodies.iter().map(|body| &body[..]))
                .map_err(|error| damaged(error.to_string()))?;
            let power_was_lost = header.boot != self.replicas.boot();
            return Ok((self.with_all(directory, power_was_lost)?, end.stamp));
        }
        let data = self.headers.values().filter(|it| it.kind == ReplicaKind::Data);
        match data.count() {
            0 => Ok((Directory::new(), Stamp::default())),
            segments => Err(KeptError::NoDirectory { segments }),
        }
    }

    /// Checks that every segment has a replica. A loss of power can take one away that was new: then
    /// nothing of it had been synced.
    fn with_all(
        &self,
        mut directory: Directory,
        power_was_lost: bool,
    ) -> Result<Directory, KeptError> {
        let missing = directory.segments().filter(|(it, _)| !self.headers.contains_key(it));
        let (unsynced, lost): (Vec<_>, Vec<_>) =
            missing.partition(|(_, content)| content.is_none() && power_was_lost);
        if let Some((first, _)) = lost.first() {
            return Err(KeptError::Missing { count: lost.len(), first: *first });
        }
        unsynced.into_iter().for_each(|(segment, _)| directory.drop(segment));
        Ok(directory)
    }

    fn check(&self, header: &ReplicaHeader, end: &ReadEnd) -> Result<(), KeptError> {
        check_end(header, end, self.replicas.boot())
    }
}

/// What is missing behind the end of a replica must not have been synced.
fn check_end(header: &ReplicaHeader, end: &ReadEnd, boot: BootId) -> Result<(), KeptError> {
    let power_was_lost = header.boot != boot;
    if end.is_damaged(power_was_lost) {
        return Err(KeptError::Damaged {
            segment: header.id.segment,
            how: format!("what stands at byte {} of its file is not what was written", end.place),
        });
    }
    if power_was_lost && end.end != End::Clean {
        tracing::warn!(
            segment = header.id.segment.0,
            length = end.length,
            "the machine went down before the disk had everything: what was written to this \
             segment in the last moments is lost"
        );
    }
    Ok(())
}

/// How far loading is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Segments of the log.
    pub segments: usize,
    /// Of these, whose entries are in the index.
    pub entered: usize,
    /// Bytes that have been entered.
    pub bytes: u64,
}

/// What is still to be loaded.
pub(in crate::engine) struct Loading {
    is_on: AtomicBool,
    segments: usize,
    /// Bytes of those whose length the directory tells.
    expected_bytes: u64,
    entered: AtomicUsize,
    bytes: AtomicU64,
    /// What reactors are busy with now.
    state: Mutex<State>,
    headers: BTreeMap<SegmentId, ReplicaHeader>,
}

struct State {
    to_read: VecDeque<(SegmentId, Option<Content>)>,
    /// Segments that have been read, with where their next entry stands.
    to_enter: VecDeque<(SegmentId, u32)>,
    /// Pieces that some reactor is busy with.
    busy: usize,
    /// Where tombstones are still to be taken out of the index; `None`: nowhere.
    sweep: Option<KeyHash>,
    stamp: Stamp,
}

/// A piece of work.
enum Piece {
    Read(SegmentId, Option<Content>),
    Enter(SegmentId, u32),
    Sweep(KeyHash),
}

impl Loading {
    fn new(
        to_read: Vec<(SegmentId, Option<Content>)>,
        stamp: Stamp,
        headers: BTreeMap<SegmentId, ReplicaHeader>,
    ) -> Loading {
        let contents = to_read.iter().filter_map(|(_, content)| *content);
        Loading {
            is_on: AtomicBool::new(!to_read.is_empty()),
            expected_bytes: contents.map(|content| u64::from(content.length)).sum(),
            segments: to_read.len(),
            entered: AtomicUsize::new(0),
            bytes: AtomicU64::new(0),
            state: Mutex::new(State {
                to_read: to_read.into(),
                to_enter: VecDeque::new(),
                busy: 0,
                sweep: Some(KeyHash(0)),
                stamp,
            }),
            headers,
        }
    }

    /// Whether something is still to be loaded.
    #[inline]
    pub(super) fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Acquire)
    }

    pub(super) fn progress(&self) -> Option<Progress> {
        self.is_on().then(|| Progress {
            segments: self.segments,
            entered: self.entered.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self) -> Option<Piece> {
        let mut state = self.state();
        // What is in memory first: so no more segments wait than there are reactors.
        let piece = if let Some((segment, from)) = state.to_enter.pop_front() {
            Piece::Enter(segment, from)
        } else if let Some((segment, content)) = state.to_read.pop_front() {
            Piece::Read(segment, content)
        } else if state.busy == 0 {
            Piece::Sweep(state.sweep?)
        } else {
            return None;
        };
        state.busy += 1;
        Some(piece)
    }
}

impl Engine {
    /// Whether a quantum would find something to load.
    pub(in crate::engine) fn can_load(&self) -> bool {
        self.is_loading() && self.node.map().version > 0
    }

    /// Loads a piece. What goes wrong ends the process: nobody is served with less than there was.
    pub(in crate::engine) fn load_piece(&mut self, now: Instant) -> bool {
        let Some(keeper) = self.keeper.clone() else { return false };
        let Some(piece) = keeper.loading.take() else { return false };
        let done = match piece {
            Piece::Read(segment, content) => self.read_segment(&keeper, segment, content),
            Piece::Enter(segment, from) => self.enter_segment(&keeper, segment, from),
            Piece::Sweep(cursor) => self.sweep_loaded(&keeper, now, cursor),
        };
        keeper.loading.state().busy -= 1;
        if let Err(error) = done {
            self.node.fail(error.to_string());
        }
        true
    }

    fn read_segment(
        &mut self,
        keeper: &Keeper,
        segment: SegmentId,
        content: Option<Content>,
    ) -> Result<(), KeptError> {
        let damaged = |how: String| KeptError::Damaged { segment, how };
        let header = keeper.loading.headers.get(&segment);
        let header = *header.ok_or_else(|| damaged("it has no replica".into()))?;
        let store = self.node.store().clone();
        store.foresee(keeper.loading.expected_bytes);
        let mut read = None;
        let adopted = store.log().adopt(segment, |memory| {
            let mut length = 0;
            let mut is_too_long = false;
            let result = keeper.replicas.read(header.id, |body| {
                match memory.get_mut(length..length + body.len()) {
                    Some(place) => place.copy_from_slice(body),
                    None => is_too_long = true,
                }
                length += body.len();
            });
            read = Some((result, is_too_long));
            if is_too_long { 0 } else { length }
        });
        adopted.map_err(|_| self.too_small(keeper))?;
        let (result, is_too_long) = read.ok_or_else(|| damaged("it was not read".into()))?;
        let end = result.map_err(|error| damaged(error.to_string()))?;
        if is_too_long {
            return Err(damaged("it is longer than a segment".into()));
        }
        let found = Content { length: end.length, crc: end.crc };
        match content {
            Some(content) if content != found => {
                return Err(damaged(format!(
                    "the log directory says that it holds {} bytes with the checksum {:08x}, and \
                     its file has {} with {:08x}",
                    content.length, content.crc, found.length, found.crc
                )));
            }
            Some(_) => {}
            None => {
                check_end(&header, &end, keeper.replicas.boot())?;
                // It gets nothing more; from here on it is what the directory says that it is.
                if keeper.mode != Mode::Memory {
                    let synced = keeper.replicas.sync(header.id);
                    synced.map_err(|error| KeptError::Disk {
                        what: format!("segment {segment} of the log cannot be written to the disk"),
                        error,
                    })?;
                }
                keeper.chain().close(segment, found);
            }
        }
        let mut state = keeper.loading.state();
        state.stamp.version = state.stamp.version.max(end.stamp.version);
        state.stamp.clock = state.stamp.clock.max(end.stamp.clock);
        state.to_enter.push_back((segment, 0));
        Ok(())
    }

    fn enter_segment(
        &mut self,
        keeper: &Keeper,
        segment: SegmentId,
        from: u32,
    ) -> Result<(), KeptError> {
        let entered = self.worker.recover(segment, from, QUANTUM_ENTRIES);
        let damaged = |how: String| KeptError::Damaged { segment, how };
        let next = entered.map_err(|error| damaged(error.to_string()))?;
        let loading = &keeper.loading;
        match next {
            Some(next) => {
                loading.bytes.fetch_add(u64::from(next - from), Ordering::Relaxed);
                loading.state().to_enter.push_front((segment, next));
            }
            None => {
                loading.entered.fetch_add(1, Ordering::Relaxed);
            }
        }
        Ok(())
    }

    fn sweep_loaded(
        &mut self,
        keeper: &Keeper,
        now: Instant,
        cursor: KeyHash,
    ) -> Result<(), KeptError> {
        let next = self.worker.finish_recovery(cursor, QUANTUM_BUCKETS);
        let next = next.map_err(|_| self.too_small(keeper))?;
        let mut state = keeper.loading.state();
        state.sweep = next;
        if next.is_none() {
            self.node.store().raise_version(state.stamp.version);
            self.node.resume_clock(now, state.stamp.clock);
            drop(state);
            keeper.follow(self.node.store());
            keeper.loading.is_on.store(false, Ordering::Release);
            self.node.loaded();
        }
        Ok(())
    }

    fn too_small(&self, keeper: &Keeper) -> KeptError {
        KeptError::Memory {
            segments: keeper.loading.segments,
            segment_bytes: self.node.store().log().segment_bytes(),
        }
    }
}
