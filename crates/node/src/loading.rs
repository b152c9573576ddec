//! Recovery of a persisted log at start. All reactors read the segments that the manifest names
//! into memory, and insert their entries into the index, in any order.
//!
//! 1. [`RecoveredLog::find`] examines the disk, before there is a server.
//! 2. [`RecoveredLog::adopt`] takes the log over for this server. All segments in the manifest
//!    must exist.
//! 3. Once the coordinator has assigned ranges, each quantum reads a segment or inserts a part of
//!    one. The highest version of a key wins, so the order does not matter.
//! 4. Finally, tombstones are removed from the index, and the server serves.
//!
//! Each segment keeps its number and its replica. The reactor that has read it hands it over to
//! its replicator, which replicates new segments in the same way.
//!
//! **Invariant:** replicas are freed only when a synced manifest does not name their segments.

use crate::replicated::{Mode, free};
use crate::settings::ServerIdentity;
use backup::{Disk, FileNumber, OpenedReplicas, Replicas, UnreadableFile};
use protocols::replication::Quorum;
use protocols::segment_manifest::SegmentManifest;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use store::{Store, Worker};
use types::{ClusterId, KeyHash, SegmentId, ServerId};
use wire::Corrupt;
use wire::control::ClusterMap;
use wire::manifest::SegmentContent;
use wire::replica::{
    BootId, PieceWriter, ReadEnd, ReplicaEnd, ReplicaEpoch, ReplicaFormat, ReplicaHeader,
    ReplicaId, ReplicaKind, Stamp,
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
    NoManifest {
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
    /// All replicas, by segment and epoch.
    headers: Vec<ReplicaHeader>,
}

/// A log that this server has taken over from its earlier process.
pub(crate) struct AdoptedLog {
    pub(crate) replicas: Replicas,
    pub(crate) manifest: SegmentManifest,
    pub(crate) segment: AdoptedManifest,
    pub(crate) loading: Loading,
}

/// The manifest segment with which a server takes its log over: a synced snapshot.
pub(crate) struct AdoptedManifest {
    pub(crate) replica: ReplicaId,
    /// Length of the snapshot in bytes.
    pub(crate) length: u32,
}

/// A manifest segment that consists of a snapshot.
pub(crate) struct WholeManifest {
    pub(crate) segment: SegmentId,
    /// The snapshot.
    pub(crate) body: Vec<u8>,
    pub(crate) stamp: Stamp,
    /// Size of a full segment, in bytes.
    pub(crate) segment_bytes: usize,
}

impl WholeManifest {
    /// Writes the segment to the server's own disk, and syncs it.
    pub(crate) fn write(
        self,
        identity: ServerIdentity,
        replicas: &Replicas,
    ) -> io::Result<AdoptedManifest> {
        let WholeManifest { segment, body, stamp, segment_bytes } = self;
        assert!(segment.is_manifest(), "{segment} is a segment of data");
        let id = ReplicaId { log: identity.server, segment, epoch: ReplicaEpoch(0) };
        let header = ReplicaHeader {
            format: ReplicaFormat::CURRENT,
            cluster: identity.cluster,
            id,
            kind: ReplicaKind::Manifest,
            segment_bytes: segment_bytes as u32,
            boot: replicas.boot(),
        };
        let length = write_whole(replicas, header, &body, stamp)?;
        Ok(AdoptedManifest { replica: id, length })
    }
}

/// Writes a replica of one piece, and syncs it. Returns its length in bytes.
fn write_whole(
    replicas: &Replicas,
    header: ReplicaHeader,
    body: &[u8],
    stamp: Stamp,
) -> io::Result<u32> {
    let replica = replicas.create(header)?;
    let piece = PieceWriter::new(replica.identity()).next(body, 0, stamp);
    replica.append(&piece, body).map_err(io::Error::other)?;
    let length = replica.sync()?;
    assert_eq!(length as usize, body.len(), "the log relies on a synced replica");
    Ok(length)
}

/// The segment manifest found on the disk.
#[derive(Default)]
struct FoundManifest {
    manifest: SegmentManifest,
    /// The manifest segment from which it was read; `None` if there is no log.
    segment: Option<SegmentId>,
    /// Version counter and expiry clock of its last piece.
    stamp: Stamp,
    /// Set if the machine was restarted since the last process began.
    power_was_lost: bool,
    /// Highest number of a segment that a process may have written.
    last: SegmentId,
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
        let is_possible = |header: &&ReplicaHeader| {
            let ReplicaId { segment, .. } = header.id;
            let is_manifest = header.kind == ReplicaKind::Manifest;
            is_manifest == segment.is_manifest() && Quorum::has_next(segment)
        };
        if let Some(header) = headers.iter().find(|header| !is_possible(header)) {
            let how = format!("no server writes its header ({:?} as {})", header.kind, header.id);
            return Err(KeptError::Damaged { segment: header.id.segment, how });
        }
        Ok(RecoveredLog { replicas, headers })
    }

    /// Returns the cluster and server that wrote the log; `None` if there is no log.
    pub fn owner(&self) -> Option<(ClusterId, ServerId)> {
        self.headers.first().map(|header| (header.cluster, header.id.log))
    }

    /// Limits the number of open files of replicas: see [`Replicas::limit_open_files`].
    pub fn limit_open_files(&self, max: usize) {
        self.replicas.limit_open_files(max, true);
    }

    /// Returns the size of this log's segments, in bytes, if there is a segment.
    pub fn segment_bytes(&self) -> Option<usize> {
        let mut data = self.headers.iter().filter(|header| header.kind == ReplicaKind::Data);
        data.next().map(|header| header.segment_bytes as usize)
    }

    /// Takes the log over for this server, into its empty store: begins a new manifest segment,
    /// and frees the replicas that it does not name.
    pub(crate) fn adopt(
        self,
        identity: ServerIdentity,
        mode: Mode,
        store: &Store,
    ) -> Result<AdoptedLog, KeptError> {
        let FoundManifest { mut manifest, segment: previous, stamp, power_was_lost, last } =
            self.manifest()?;
        store.log().skip_segment_numbers(last);
        self.sync_named(&manifest)?;
        let mark = manifest.last_mark().filter(|_| power_was_lost);
        if let Some(mark) = mark {
            tracing::warn!(
                version = mark.version.0,
                last_segment = last.0,
                "the machine was restarted without an orderly end of the server: ignoring all \
                 entries above the last version up to which all were synced"
            );
        }
        manifest.adopt(last, power_was_lost, mode == Mode::Interval);
        store.ignore(manifest.cuts().collect());
        if mode == Mode::Interval {
            store.require_marks();
        }
        let (mut named, unnamed): (Vec<ReplicaHeader>, Vec<ReplicaHeader>) =
            self.headers.iter().partition(|header| manifest.contains(header.id.segment));
        if previous.is_none_or(|it| Quorum::of_segment(it) != Some(Quorum::OWN_DISK)) {
            self.give_up_outdated(&mut named)?;
        }
        let segment = self.begin_manifest(identity, &manifest, stamp, store);
        let what = "cannot write the segment manifest".into();
        let segment = segment.map_err(|error| KeptError::Disk { what, error })?;
        unnamed.iter().for_each(|header| free(&self.replicas, header.id));
        let mut headers: BTreeMap<SegmentId, Vec<ReplicaHeader>> = BTreeMap::new();
        for header in named {
            headers.entry(header.id.segment).or_default().push(header);
        }
        let to_read: Vec<_> = manifest.segments().collect();
        let loading = Loading::new(to_read, stamp, headers);
        Ok(AdoptedLog { replicas: self.replicas, manifest, segment, loading })
    }

    /// Syncs the segments of the log: bytes that this process finds must not be lost later. That the
    /// manifest has the content of a segment does not tell that it is synced: the last process may
    /// have run in a mode that does not sync, or the folder may be a copy.
    fn sync_named(&self, manifest: &SegmentManifest) -> Result<(), KeptError> {
        let named = self.headers.iter().map(|header| header.id);
        let named: Vec<ReplicaId> = named.filter(|id| manifest.contains(id.segment)).collect();
        assert!(!named.iter().any(|id| id.segment.is_manifest()), "a manifest names data");
        self.replicas.sync_all(&named).map_err(|(id, error)| KeptError::Disk {
            what: format!("cannot sync segment {} of the log", id.segment),
            error,
        })
    }

    /// Removes the replicas that earlier versions of this program have left. These used the number
    /// of a segment again, with a higher epoch, so only the last replica of a segment counts. The
    /// next start would not know that, so none may be found then.
    fn give_up_outdated(&self, named: &mut Vec<ReplicaHeader>) -> Result<(), KeptError> {
        let all = std::mem::take(named);
        let segments = all.chunk_by(|one, other| one.id.segment == other.id.segment);
        for replicas in segments {
            let Some((last, outdated)) = replicas.split_last() else { continue };
            assert!(
                outdated.iter().all(|it| it.id.epoch < last.id.epoch),
                "replicas are listed in order of their epochs"
            );
            named.push(*last);
            for header in outdated {
                self.replicas.give_up(header.id).map_err(|error| KeptError::Disk {
                    what: format!("cannot remove {}, which is not needed any more", header.id),
                    error,
                })?;
            }
        }
        Ok(())
    }

    /// Begins a manifest segment, which is synced when this returns. From then on there is always
    /// a manifest: a folder with segments and none has lost it.
    fn begin_manifest(
        &self,
        identity: ServerIdentity,
        manifest: &SegmentManifest,
        stamp: Stamp,
        store: &Store,
    ) -> io::Result<AdoptedManifest> {
        let of_manifest = self.headers.iter().filter(|it| it.kind == ReplicaKind::Manifest);
        let places = of_manifest.map(|header| Quorum::place(header.id.segment));
        let segment = Quorum::OWN_DISK.segment(places.max().unwrap_or(0) + 1);
        assert!(
            self.headers.iter().all(|header| header.id.segment < segment),
            "{segment} is not the newest segment of the manifest"
        );
        let segment_bytes = store.log().segment_bytes();
        let manifest = WholeManifest { segment, body: manifest.snapshot(), stamp, segment_bytes };
        manifest.write(identity, &self.replicas)
    }

    /// Reads the manifest from the newest manifest segment that begins with a complete snapshot.
    fn manifest(&self) -> Result<FoundManifest, KeptError> {
        let of_manifest = self.headers.iter().filter(|it| it.kind == ReplicaKind::Manifest);
        for header in of_manifest.rev() {
            let damaged = |how| KeptError::Damaged { segment: header.id.segment, how };
            let mut bodies: Vec<Vec<u8>> = Vec::new();
            let read = self.replicas.read(header.id, |body| bodies.push(body.to_vec()));
            let end = read.map_err(|error| damaged(error.to_string()))?;
            check_end(header, &end, self.replicas.boot())?;
            if bodies.is_empty() {
                // This manifest segment was begun and never relied on.
                continue;
            }
            let manifest = SegmentManifest::read(bodies.iter().map(|body| &body[..]))
                .map_err(|error| damaged(error.to_string()))?;
            let power_was_lost = header.boot != self.replicas.boot();
            let named = manifest.segments().map(|(segment, _)| segment).max();
            let last = self.last_found().max(named.unwrap_or_default());
            let manifest = self.with_all(manifest, power_was_lost)?;
            let (segment, stamp) = (Some(header.id.segment), end.stamp);
            return Ok(FoundManifest { manifest, segment, stamp, power_was_lost, last });
        }
        let data = self.headers.iter().filter(|it| it.kind == ReplicaKind::Data);
        match data.count() {
            0 => Ok(FoundManifest::default()),
            segments => Err(KeptError::NoManifest { segments }),
        }
    }

    /// Returns the highest number of a segment that has, or had, a replica on this disk.
    fn last_found(&self) -> SegmentId {
        let found = self.headers.iter().map(|header| header.id.segment);
        found.filter(|segment| !segment.is_manifest()).max().unwrap_or_default()
    }

    /// Checks that every segment has a replica. A loss of power can remove a new replica; then
    /// none of its bytes had been synced, and the segment is dropped.
    fn with_all(
        &self,
        mut manifest: SegmentManifest,
        power_was_lost: bool,
    ) -> Result<SegmentManifest, KeptError> {
        let found: BTreeSet<SegmentId> = self.headers.iter().map(|it| it.id.segment).collect();
        let missing = manifest.segments().filter(|(it, _)| !found.contains(it));
        let (unsynced, lost): (Vec<_>, Vec<_>) =
            missing.partition(|(_, content)| content.is_none() && power_was_lost);
        if let Some((first, _)) = lost.first() {
            return Err(KeptError::Missing { count: lost.len(), first: *first });
        }
        unsynced.into_iter().for_each(|(segment, _)| manifest.drop(segment));
        Ok(manifest)
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

/// Loading of a log, shared by all reactors.
pub(crate) struct Loading {
    is_on: AtomicBool,
    segments: usize,
    /// Total bytes of the segments with a length in the manifest.
    expected_bytes: u64,
    entered: AtomicUsize,
    bytes: AtomicU64,
    /// Queues of the remaining work.
    state: Mutex<LoadingState>,
    /// The replicas of each segment, by epoch.
    headers: BTreeMap<SegmentId, Vec<ReplicaHeader>>,
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
    /// Replicas that are not used, of segments without recorded content.
    superseded: BTreeMap<SegmentId, Vec<ReplicaId>>,
}

/// A piece of loading work.
pub(crate) enum LoadingWork {
    Read(SegmentId, Option<SegmentContent>),
    Enter(SegmentId, u32),
    Sweep(KeyHash),
}

impl Loading {
    /// Returns the loading of a server that has no log of an earlier process.
    pub(crate) fn none() -> Loading {
        Loading::new(Vec::new(), Stamp::default(), BTreeMap::new())
    }

    fn new(
        to_read: Vec<(SegmentId, Option<SegmentContent>)>,
        stamp: Stamp,
        headers: BTreeMap<SegmentId, Vec<ReplicaHeader>>,
    ) -> Loading {
        assert!(
            to_read.iter().all(|(segment, _)| headers.contains_key(segment)),
            "a log is loaded whose segments all have replicas"
        );
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
                superseded: BTreeMap::new(),
            }),
            headers,
        }
    }

    /// Returns whether loading is incomplete.
    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Acquire)
    }

    pub(crate) fn progress(&self) -> Option<Progress> {
        self.is_on().then(|| Progress {
            segments: self.segments,
            entered: self.entered.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
        })
    }

    /// Returns whether a quantum may load. Loading begins with the first map.
    pub(crate) fn may_run(&self, map: &ClusterMap) -> bool {
        self.is_on() && map.version > 0
    }

    fn state(&self) -> MutexGuard<'_, LoadingState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the next piece of work, which ends with [`Loading::end_piece`].
    pub(crate) fn take(&self) -> Option<LoadingWork> {
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

    pub(crate) fn end_piece(&self) {
        let mut state = self.state();
        assert!(state.busy > 0, "a piece of loading ends once");
        state.busy -= 1;
    }
}

impl Loading {
    /// Queues a segment that is in memory for insertion into the index.
    pub(crate) fn queue_segment(&self, segment: SegmentId, stamp: Stamp) {
        let mut state = self.state();
        state.stamp.version = state.stamp.version.max(stamp.version);
        state.stamp.clock = state.stamp.clock.max(stamp.clock);
        state.to_enter.push_back((segment, 0));
    }

    /// Reads a segment into memory. Frees its other replicas at once if the manifest has its content,
    /// otherwise when it has: see [`Loading::take_superseded`]. If it cannot be read, nothing is
    /// freed.
    pub(crate) fn read_replica(
        &self,
        disk: &Replicas,
        segment: SegmentId,
        content: Option<SegmentContent>,
        store: &Store,
    ) -> Result<(ReplicaHeader, ReadEnd), KeptError> {
        store.foresee(self.expected_bytes);
        let replicas = self.headers.get(&segment).map_or(&[][..], |headers| headers);
        let mut read = Err(KeptError::damaged(segment, "it has no replica".into()));
        let adopted = store.log().adopt(segment, |memory| {
            read = match content {
                Some(content) => read_sealed(disk, segment, replicas, content, memory),
                None => read_unsealed(disk, segment, replicas, memory),
            };
            read.as_ref().map_or(0, |(_, end)| end.length as usize)
        });
        adopted.map_err(|_| self.too_small(store))?;
        let (header, end) = read?;
        assert_eq!(header.id.segment, segment, "a replica of the segment was read");
        let others = replicas.iter().map(|other| other.id).filter(|id| *id != header.id);
        match content {
            Some(_) => others.for_each(|other| free(disk, other)),
            None => {
                let before = self.state().superseded.insert(segment, others.collect());
                assert!(before.is_none(), "{segment} is read once");
            }
        }
        Ok((header, end))
    }

    /// Returns the replicas of a segment that are not needed any more because the manifest has its
    /// content. Before, the next start would need them.
    pub(crate) fn take_superseded(&self, segment: SegmentId) -> Vec<ReplicaId> {
        self.state().superseded.remove(&segment).unwrap_or_default()
    }

    /// Inserts some entries of a segment into the index.
    pub(crate) fn enter_segment(
        &self,
        segment: SegmentId,
        from: u32,
        worker: &mut Worker,
    ) -> Result<(), KeptError> {
        let entered = worker.recover(segment, from, QUANTUM_ENTRIES);
        match entered.map_err(|error| KeptError::damaged(segment, error.to_string()))? {
            Some(next) => {
                assert!(next >= from, "{segment} is inserted from front to back");
                self.bytes.fetch_add(u64::from(next - from), Ordering::Relaxed);
                self.state().to_enter.push_front((segment, next));
            }
            None => {
                let before = self.entered.fetch_add(1, Ordering::Relaxed);
                assert!(before < self.segments, "{segment} is inserted once");
            }
        }
        Ok(())
    }

    /// Removes some tombstones from the index. Returns the last version and clock of the log when
    /// none is left.
    pub(crate) fn sweep(
        &self,
        cursor: KeyHash,
        store: &Store,
        worker: &mut Worker,
    ) -> Result<Option<Stamp>, KeptError> {
        let next = worker.finish_recovery(cursor, QUANTUM_BUCKETS);
        let next = next.map_err(|_| self.too_small(store))?;
        let mut state = self.state();
        assert_eq!(state.busy, 1, "nothing else is loaded during the sweep");
        state.sweep = next;
        Ok(next.is_none().then_some(state.stamp))
    }

    /// Ends loading.
    pub(crate) fn end(&self) {
        self.is_on.store(false, Ordering::Release);
    }

    fn too_small(&self, store: &Store) -> KeptError {
        KeptError::Memory { segments: self.segments, segment_bytes: store.log().segment_bytes() }
    }
}

impl KeptError {
    fn damaged(segment: SegmentId, how: String) -> KeptError {
        KeptError::Damaged { segment, how }
    }
}

/// Reads a segment whose content is in the manifest from the newest replica with this content.
fn read_sealed(
    disk: &Replicas,
    segment: SegmentId,
    replicas: &[ReplicaHeader],
    content: SegmentContent,
    memory: &mut [u8],
) -> Result<(ReplicaHeader, ReadEnd), KeptError> {
    let mut read = Err(KeptError::damaged(segment, "it has no replica".into()));
    for header in replicas.iter().rev() {
        read = read_content(disk, header, Some(content), memory).map(|end| (*header, end));
        if read.is_ok() {
            break;
        }
    }
    read
}

/// Reads a segment whose content is not in the manifest.
///
/// It has several replicas if syncs of all but the last one have failed, and the last process was
/// making a copy. The oldest one has had all acknowledged bytes, but the disk may have lost some;
/// the copy may be incomplete. So the longest one counts. Of all but the last one the disk may lack
/// bytes that the system still returns: then the segment is written again.
fn read_unsealed(
    disk: &Replicas,
    segment: SegmentId,
    replicas: &[ReplicaHeader],
    memory: &mut [u8],
) -> Result<(ReplicaHeader, ReadEnd), KeptError> {
    let Some((original, copies)) = replicas.split_first() else {
        return Err(KeptError::damaged(segment, "it has no replica".into()));
    };
    // No copy is known to be complete, so none replaces an original that cannot be read.
    let end = read_content(disk, original, None, memory)?;
    let Some(last) = copies.last() else { return Ok((*original, end)) };
    let (mut longest, mut length) = (original, end.length);
    for copy in copies {
        match read_content(disk, copy, None, memory) {
            Ok(end) if end.length >= length => (longest, length) = (copy, end.length),
            Ok(_) => {}
            Err(error) => tracing::warn!(replica = %copy.id, %error, "not using a copy"),
        }
    }
    let end = read_content(disk, longest, None, memory)?;
    if longest.id == last.id {
        return Ok((*longest, end));
    }
    let Some(epoch) = last.id.epoch.0.checked_add(1).map(ReplicaEpoch) else {
        return Err(KeptError::damaged(segment, format!("no server writes {}", last.id)));
    };
    let header = ReplicaHeader { id: ReplicaId { epoch, ..longest.id }, ..*longest };
    write_whole(disk, header, &memory[..end.length as usize], end.stamp).map_err(|error| {
        KeptError::Disk { what: format!("cannot write segment {segment} of the log again"), error }
    })?;
    Ok((header, end))
}

/// Reads a replica of a segment into memory, and checks its content.
fn read_content(
    disk: &Replicas,
    header: &ReplicaHeader,
    content: Option<SegmentContent>,
    memory: &mut [u8],
) -> Result<ReadEnd, KeptError> {
    let damaged = |how| KeptError::damaged(header.id.segment, how);
    let (mut length, mut is_too_long) = (0, false);
    let end = disk.read(header.id, |body| {
        match memory.get_mut(length..length + body.len()) {
            Some(place) => place.copy_from_slice(body),
            None => is_too_long = true,
        }
        length += body.len();
    });
    let end = end.map_err(|error| damaged(error.to_string()))?;
    if is_too_long {
        return Err(damaged("it is longer than a segment".into()));
    }
    match content {
        Some(content) if (content.length, content.crc) != (end.length, end.crc) => {
            Err(damaged(format!(
                "the segment manifest records {} bytes with the checksum {:08x}, but its file has \
                 {} with {:08x}",
                content.length, content.crc, end.length, end.crc
            )))
        }
        Some(_) => Ok(end),
        None => check_end(header, &end, disk.boot()).map(|()| end),
    }
}

#[cfg(test)]
mod tests;
