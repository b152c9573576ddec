//! Recovery of a persisted log at start. All reactors read the segments that the manifest names
//! into memory, and insert their entries into the index, in any order.
//!
//! 1. [`RecoveredLog::find`] examines the disk, before there is a server.
//! 2. [`RecoveredLog::keep`] takes the log over for this server. All segments in the manifest
//!    must exist.
//! 3. Once the coordinator has assigned ranges, each quantum reads a segment or inserts a part of
//!    one. The highest version of a key wins, so the order does not matter.
//! 4. Finally, tombstones are removed from the index, and the server serves.

use super::chain::{CHAIN, LocalManifest};
use super::{Acknowledgments, Keeper, Mode};
use crate::Node;
use crate::context::Context;
use backup::{Disk, FileNumber, OpenedReplicas, Replicas, UnreadableFile};
use protocols::directory::Directory;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use store::Worker;
use types::{ClusterId, KeyHash, SegmentId, ServerId};
use wire::Corrupt;
use wire::directory::SegmentContent;
use wire::replica::{
    BootId, ReadEnd, ReplicaEnd, ReplicaEpoch, ReplicaFormat, ReplicaHeader, ReplicaId,
    ReplicaKind, Stamp,
};

/// Maximum number of entries that one quantum inserts, in half a millisecond. Meanwhile the
/// server answers only commands that need no data.
const QUANTUM_ENTRIES: usize = 2048;

/// Maximum number of buckets that one quantum scans for tombstones.
const QUANTUM_BUCKETS: usize = 1024;

/// Reason why a server cannot start from the content of its disk. The texts are for operators.
#[derive(Debug, thiserror::Error)]
pub enum KeptError {
    /// The disk cannot be read or written.
    #[error("{what}: {error}")]
    Disk {
        /// Attempted operation.
        what: String,
        /// Error of the operating system.
        error: io::Error,
    },
    /// The folder has replicas of several servers' logs.
    #[error(
        "the data directory contains the logs of several servers ({first} and {second}): give each \
         server a data directory of its own"
    )]
    Mixed {
        /// One of the servers.
        first: ServerId,
        /// Another one.
        second: ServerId,
    },
    /// The folder has replicas of several clusters' logs.
    #[error(
        "the data directory contains logs of several clusters ({first} and {second}): move the \
         files of the other cluster away"
    )]
    Clusters {
        /// One of the clusters.
        first: ClusterId,
        /// Another one.
        second: ClusterId,
    },
    /// Some files have an unreadable header, so their content is unknown.
    #[error(
        "{number} cannot be read ({why}), nor can {more} more files. If another version of ballast \
         wrote them, start that version; if the disk is damaged, restore the files from a copy"
    )]
    Unreadable {
        /// First unreadable file.
        number: FileNumber,
        /// Reason.
        why: Corrupt,
        /// Number of further unreadable files.
        more: usize,
    },
    /// The folder has segments but no manifest that names the current ones.
    #[error(
        "the data directory contains {segments} segments of a log but no complete segment \
         manifest: it is damaged. Restore it from a copy, or start with an empty data directory"
    )]
    NoDirectory {
        /// Number of segments found.
        segments: usize,
    },
    /// Segments that the manifest names are missing.
    #[error(
        "the segment manifest names {count} segments that are missing, the first of them {first}: \
         the data directory is incomplete. Restore it from a copy, or start with an empty one"
    )]
    Missing {
        /// Number of missing segments.
        count: usize,
        /// One of the missing segments.
        first: SegmentId,
    },
    /// The content of a segment differs from its record in the manifest.
    #[error(
        "segment {segment} of the log is damaged: {how}. Its file was left unchanged; restore the \
         data directory from a copy, or start with an empty data directory"
    )]
    Damaged {
        /// Damaged segment.
        segment: SegmentId,
        /// Kind of damage.
        how: String,
    },
    /// The memory is too small for the log.
    #[error(
        "the log has more segments than fit into memory ({segments} of {segment_bytes} bytes \
         each): increase --memory"
    )]
    Memory {
        /// Number of segments of the log.
        segments: usize,
        /// Size of a segment, in bytes.
        segment_bytes: usize,
    },
}

/// Persisted log found on a disk, before a server has taken it over.
pub struct RecoveredLog {
    replicas: Replicas,
    headers: BTreeMap<SegmentId, ReplicaHeader>,
}

impl RecoveredLog {
    /// Examines the disk. `boot` identifies the current run of the machine.
    pub fn find(disk: Arc<dyn Disk>, boot: BootId) -> Result<RecoveredLog, KeptError> {
        let wrong = |error| KeptError::Disk { what: "cannot read the replicas".into(), error };
        let OpenedReplicas { replicas, unreadable } = Replicas::open(disk, boot).map_err(wrong)?;
        // The newest manifest segment may be unreadable, so the other ones cannot be trusted.
        if let [UnreadableFile { number, why }, rest @ ..] = &unreadable[..] {
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
        // If a segment has two replicas, the later one counts.
        let headers = headers.into_iter().map(|header| (header.id.segment, header)).collect();
        Ok(RecoveredLog { replicas, headers })
    }

    /// Returns the cluster and server that wrote the log; `None` if there is no log.
    pub fn owner(&self) -> Option<(ClusterId, ServerId)> {
        self.headers.values().next().map(|header| (header.cluster, header.id.log))
    }

    /// Returns the size of this log's segments, in bytes, if there is a segment.
    pub fn segment_bytes(&self) -> Option<usize> {
        let mut data = self.headers.values().filter(|header| header.kind == ReplicaKind::Data);
        data.next().map(|header| header.segment_bytes as usize)
    }

    /// Takes the log over for this server, and begins a new manifest segment.
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
            chain: Mutex::new(LocalManifest::new(directory, next, unnamed, earlier, header)),
            loading,
            acknowledgments: Acknowledgments::default(),
            is_failing: AtomicBool::new(false),
            is_broken: AtomicBool::new(false),
        };
        // From here on there is always a manifest: a folder with segments and none has lost it.
        let begun = keeper.chain().begin_and_sync(&keeper, stamp);
        let what = "cannot write the segment manifest".into();
        begun.map_err(|error| KeptError::Disk { what, error })?;
        Ok(keeper)
    }

    /// Reads the manifest from the newest manifest segment that begins with a complete snapshot.
    /// Returns it with the version counter and expiry clock of its last piece.
    fn directory(&self) -> Result<(Directory, Stamp), KeptError> {
        let chain = self.headers.values().filter(|it| it.kind == ReplicaKind::Directory);
        for header in chain.rev() {
            let damaged = |how| KeptError::Damaged { segment: header.id.segment, how };
            let mut bodies: Vec<Vec<u8>> = Vec::new();
            let read = self.replicas.read(header.id, |body| bodies.push(body.to_vec()));
            let end = read.map_err(|error| damaged(error.to_string()))?;
            if bodies.is_empty() {
                // This manifest segment was begun and never relied on.
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

    /// Checks that every segment has a replica. A loss of power can remove a new replica; then
    /// none of its bytes had been synced, and the segment is dropped.
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

/// Checks that bytes missing at the end of a replica can only be bytes that were not synced.
fn check_end(header: &ReplicaHeader, end: &ReadEnd, boot: BootId) -> Result<(), KeptError> {
    let power_was_lost = header.boot != boot;
    if end.is_damaged(power_was_lost) {
        return Err(KeptError::Damaged {
            segment: header.id.segment,
            how: format!("its file has invalid data at byte {}", end.place),
        });
    }
    if power_was_lost && end.end != ReplicaEnd::Clean {
        tracing::warn!(
            segment = header.id.segment.0,
            length = end.length,
            "the machine went down before all writes were synced: the last writes to this segment \
             are lost"
        );
    }
    Ok(())
}

/// Progress of loading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Number of segments of the log.
    pub segments: usize,
    /// Number of segments with all entries in the index.
    pub entered: usize,
    /// Number of bytes of the entries in the index.
    pub bytes: u64,
}

/// LoadingState of loading.
pub(crate) struct Loading {
    is_on: AtomicBool,
    segments: usize,
    /// Total bytes of the segments with a length in the manifest.
    expected_bytes: u64,
    entered: AtomicUsize,
    bytes: AtomicU64,
    /// Queues of the remaining work.
    state: Mutex<LoadingState>,
    headers: BTreeMap<SegmentId, ReplicaHeader>,
}

struct LoadingState {
    to_read: VecDeque<(SegmentId, Option<SegmentContent>)>,
    /// Segments in memory, with the offset of the next entry to insert.
    to_enter: VecDeque<(SegmentId, u32)>,
    /// Number of pieces of work in progress on any reactor.
    busy: usize,
    /// Position of the scan that removes tombstones from the index; `None` once it is complete.
    sweep: Option<KeyHash>,
    stamp: Stamp,
}

/// A piece of loading work.
enum LoadingWork {
    Read(SegmentId, Option<SegmentContent>),
    Enter(SegmentId, u32),
    Sweep(KeyHash),
}

impl Loading {
    fn new(
        to_read: Vec<(SegmentId, Option<SegmentContent>)>,
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
            state: Mutex::new(LoadingState {
                to_read: to_read.into(),
                to_enter: VecDeque::new(),
                busy: 0,
                sweep: Some(KeyHash(0)),
                stamp,
            }),
            headers,
        }
    }

    /// Returns whether loading is incomplete.
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

    fn state(&self) -> MutexGuard<'_, LoadingState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the next piece of work, which ends with [`Loading::end_piece`].
    fn take(&self) -> Option<LoadingWork> {
        let mut state = self.state();
        // Segments in memory come first, so at most one per reactor waits there.
        let piece = if let Some((segment, from)) = state.to_enter.pop_front() {
            LoadingWork::Enter(segment, from)
        } else if let Some((segment, content)) = state.to_read.pop_front() {
            LoadingWork::Read(segment, content)
        } else if state.busy == 0 {
            LoadingWork::Sweep(state.sweep?)
        } else {
            return None;
        };
        state.busy += 1;
        Some(piece)
    }

    fn end_piece(&self) {
        let mut state = self.state();
        assert!(state.busy > 0, "a piece of loading ends once");
        state.busy -= 1;
    }
}

impl Keeper {
    /// Returns whether a quantum may load. Loading begins with the first map.
    pub(crate) fn can_load(&self, node: &Node) -> bool {
        self.loading.is_on() && node.map().version > 0
    }

    /// Loads one piece. Any error ends the process: a server must not serve with records missing.
    pub(crate) fn load_piece(&self, context: &mut Context<'_>) -> bool {
        let Some(piece) = self.loading.take() else { return false };
        let done = match piece {
            LoadingWork::Read(segment, content) => {
                self.read_segment(segment, content, context.node)
            }
            LoadingWork::Enter(segment, from) => self.enter_segment(segment, from, context.worker),
            LoadingWork::Sweep(cursor) => self.sweep(cursor, context),
        };
        self.loading.end_piece();
        if let Err(error) = done {
            context.node.fail(error.to_string());
        }
        true
    }

    fn read_segment(
        &self,
        segment: SegmentId,
        content: Option<SegmentContent>,
        node: &Node,
    ) -> Result<(), KeptError> {
        let damaged = |how: String| KeptError::Damaged { segment, how };
        let header = self.loading.headers.get(&segment);
        let header = *header.ok_or_else(|| damaged("it has no replica".into()))?;
        let store = node.store();
        store.foresee(self.loading.expected_bytes);
        let mut read = None;
        let adopted = store.log().adopt(segment, |memory| {
            let mut length = 0;
            let mut is_too_long = false;
            let result = self.replicas.read(header.id, |body| {
                match memory.get_mut(length..length + body.len()) {
                    Some(place) => place.copy_from_slice(body),
                    None => is_too_long = true,
                }
                length += body.len();
            });
            read = Some((result, is_too_long));
            if is_too_long { 0 } else { length }
        });
        adopted.map_err(|_| self.too_small(node))?;
        let (result, is_too_long) = read.ok_or_else(|| damaged("it was not read".into()))?;
        let end = result.map_err(|error| damaged(error.to_string()))?;
        if is_too_long {
            return Err(damaged("it is longer than a segment".into()));
        }
        let found = SegmentContent { length: end.length, crc: end.crc };
        match content {
            Some(content) if content != found => {
                return Err(damaged(format!(
                    "the segment manifest records {} bytes with the checksum {:08x}, but its file \
                     has {} with {:08x}",
                    content.length, content.crc, found.length, found.crc
                )));
            }
            Some(_) => {}
            None => {
                check_end(&header, &end, self.replicas.boot())?;
                // The segment receives no more bytes: sync it and seal it with this content.
                if self.mode != Mode::Memory {
                    let synced = self.replicas.sync(header.id);
                    synced.map_err(|error| KeptError::Disk {
                        what: format!("cannot sync segment {segment} of the log"),
                        error,
                    })?;
                }
                self.chain().close(segment, found);
            }
        }
        let mut state = self.loading.state();
        state.stamp.version = state.stamp.version.max(end.stamp.version);
        state.stamp.clock = state.stamp.clock.max(end.stamp.clock);
        state.to_enter.push_back((segment, 0));
        Ok(())
    }

    fn enter_segment(
        &self,
        segment: SegmentId,
        from: u32,
        worker: &mut Worker,
    ) -> Result<(), KeptError> {
        let entered = worker.recover(segment, from, QUANTUM_ENTRIES);
        let damaged = |how: String| KeptError::Damaged { segment, how };
        let next = entered.map_err(|error| damaged(error.to_string()))?;
        let loading = &self.loading;
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

    /// Removes tombstones from the index, and begins to serve when none is left.
    fn sweep(&self, cursor: KeyHash, context: &mut Context<'_>) -> Result<(), KeptError> {
        let next = context.worker.finish_recovery(cursor, QUANTUM_BUCKETS);
        let next = next.map_err(|_| self.too_small(context.node))?;
        let mut state = self.loading.state();
        state.sweep = next;
        if next.is_none() {
            context.node.store().raise_version(state.stamp.version);
            context.node.resume_clock(context.now, state.stamp.clock);
            drop(state);
            self.follow(context.node.store());
            self.loading.is_on.store(false, Ordering::Release);
            context.node.loaded();
        }
        Ok(())
    }

    fn too_small(&self, node: &Node) -> KeptError {
        KeptError::Memory {
            segments: self.loading.segments,
            segment_bytes: node.store().log().segment_bytes(),
        }
    }
}
