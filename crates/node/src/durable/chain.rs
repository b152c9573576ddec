//! Segment manifest of a log on this server's own disk, and the replicas it is written to.
//!
//! The manifest (log directory in the on-disk format) is itself a log, in a chain of segments.

use super::{File, Keeper, Mode, header_of};
use backup::ReplicaWriter;
use protocols::directory::Directory;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::Arc;
use store::Store;
use store::log::LogChange;
use types::SegmentId;
use wire::directory::SegmentContent;
use wire::replica::{PieceWriter, ReplicaHeader, ReplicaId, ReplicaKind, Stamp};

/// First number of manifest segments. Numbers of the log's own segments are lower.
pub(super) const CHAIN: u64 = 1 << 63;

/// A position in the manifest log: segment and length there.
type Position = (SegmentId, u32);

/// The segment manifest of the log on this server's own disk.
pub(super) struct LocalManifest {
    directory: Directory,
    header: ReplicaHeader,
    /// Replicas of the log's segments that earlier processes have made.
    earlier: BTreeMap<SegmentId, ReplicaId>,
    /// Current manifest segment; `None` until one could be begun.
    current: Option<Current>,
    /// Number of the next manifest segment.
    next: u64,
    /// Opened segments of the log that have no replica yet.
    opening: VecDeque<SegmentId>,
    /// New replicas that their segments' writers have not taken yet.
    fresh: BTreeMap<SegmentId, Arc<ReplicaWriter>>,
    /// Replicas of removed segments, until their removal is written to the manifest.
    dropped: Vec<ReplicaId>,
    /// Replicas to free once the manifest is durable up to the position.
    leaving: VecDeque<(Position, ReplicaId)>,
}

struct Current {
    number: SegmentId,
    replica: Arc<ReplicaWriter>,
    pieces: PieceWriter,
    stable: u32,
}

impl LocalManifest {
    /// Continues a manifest in a new manifest segment with the number `next`. The `old` replicas
    /// are freed once that segment is durable; `earlier` are the replicas of the manifest's
    /// segments.
    pub(super) fn new(
        directory: Directory,
        next: u64,
        old: Vec<ReplicaId>,
        earlier: BTreeMap<SegmentId, ReplicaId>,
        header: ReplicaHeader,
    ) -> LocalManifest {
        let first = (SegmentId(CHAIN | next), 0);
        LocalManifest {
            directory,
            header,
            earlier,
            current: None,
            next,
            opening: VecDeque::new(),
            fresh: BTreeMap::new(),
            dropped: Vec::new(),
            leaving: old.into_iter().map(|replica| (first, replica)).collect(),
        }
    }

    /// Records a change of the log's segments.
    pub(super) fn note(&mut self, change: LogChange, store: &Store) {
        match change {
            LogChange::Opened(segment) => {
                assert!(segment.0 < CHAIN, "the manifest registers segments of the log");
                self.opening.push_back(segment);
            }
            // The segment's writer knows its content, and seals it with [`LocalManifest::close`].
            LogChange::Closed { .. } => {}
            LogChange::Dead(segment) => {
                self.drop(segment);
                store.log().release(segment);
            }
        }
    }

    /// Removes a segment from the manifest.
    pub(super) fn drop(&mut self, segment: SegmentId) {
        if let Some(unopened) = self.opening.iter().position(|opening| *opening == segment) {
            self.opening.remove(unopened);
            return;
        }
        self.fresh.remove(&segment);
        self.directory.drop(segment);
        let ours = header_of(self.header, segment).id;
        self.dropped.push(self.earlier.remove(&segment).unwrap_or(ours));
    }

    /// Seals a segment that is complete and durable.
    pub(super) fn close(&mut self, segment: SegmentId, content: SegmentContent) {
        // The segment may have left the log already.
        if self.directory.contains(segment) {
            self.directory.close(segment, content);
        }
    }

    /// Writes pending changes to the manifest. After an error, the next call writes them again.
    pub(super) fn write(&mut self, keeper: &Keeper, stamp: Stamp) -> io::Result<()> {
        self.open_replicas(keeper)?;
        match &mut self.current {
            Some(current) if !self.directory.wants_segment() => {
                let Some(body) = self.directory.body() else { return Ok(()) };
                current.append(&body, stamp)?;
                self.directory.written(body.len());
            }
            Some(_) | None => self.begin(keeper, stamp)?,
        }
        self.settle(keeper);
        Ok(())
    }

    /// Begins a manifest segment, which is durable when this returns.
    pub(super) fn begin_and_sync(&mut self, keeper: &Keeper, stamp: Stamp) -> io::Result<()> {
        self.write(keeper, stamp)?;
        if let Some((_, replica)) = self.to_sync() {
            let length = replica.sync()?;
            self.current.iter_mut().for_each(|current| current.stable = length);
        }
        self.free(keeper);
        Ok(())
    }

    /// Creates replicas of opened segments, before the manifest registers them. So a registered
    /// segment without a replica has lost it.
    fn open_replicas(&mut self, keeper: &Keeper) -> io::Result<()> {
        while let Some(segment) = self.opening.front().copied() {
            let replica = keeper.replicas.create(header_of(self.header, segment))?;
            self.opening.pop_front();
            self.fresh.insert(segment, replica);
            self.directory.open(segment);
        }
        Ok(())
    }

    /// Returns the new replica of a registered segment, for the segment's writer.
    pub(super) fn take_fresh(&mut self, segment: SegmentId) -> Option<Arc<ReplicaWriter>> {
        self.fresh.remove(&segment)
    }

    /// Begins the next manifest segment.
    fn begin(&mut self, keeper: &Keeper, stamp: Stamp) -> io::Result<()> {
        let number = SegmentId(CHAIN | self.next);
        let kind = ReplicaKind::Directory;
        let replica =
            keeper.replicas.create(ReplicaHeader { kind, ..header_of(self.header, number) })?;
        // A number is never used twice, even if this attempt fails.
        self.next += 1;
        let pieces = PieceWriter::new(replica.identity());
        let mut current = Current { number, replica, pieces, stable: 0 };
        let body = self.directory.snapshot();
        current.append(&body, stamp)?;
        self.directory.begun(body.len());
        let position = current.position();
        let before = self.current.replace(current);
        self.leaving.extend(before.map(|before| (position, before.replica.id())));
        Ok(())
    }

    /// Applies the effects of a successful write of all pending changes.
    fn settle(&mut self, keeper: &Keeper) {
        let Some(current) = &mut self.current else { return };
        let position = current.position();
        self.leaving.extend(self.dropped.drain(..).map(|replica| (position, replica)));
        if keeper.mode == Mode::Memory {
            current.stable = position.1;
        }
        self.free(keeper);
    }

    /// Frees the replicas that no durable part of the manifest names.
    fn free(&mut self, keeper: &Keeper) {
        let Some(stable) = self.current.as_ref().map(|it| (it.number, it.stable)) else { return };
        // The current manifest segment counts once its snapshot is durable.
        while stable.1 > 0
            && let Some((_, replica)) = self.leaving.pop_front_if(|(at, _)| *at <= stable)
        {
            if let Err(error) = keeper.replicas.free(replica) {
                tracing::warn!(%error, "cannot free an unused replica");
            }
        }
    }

    /// Returns the file to sync to make all of the manifest durable, if it is not yet.
    pub(super) fn to_sync(&self) -> Option<(File, Arc<ReplicaWriter>)> {
        let current = self.current.as_ref()?;
        let is_stable = current.stable == current.position().1;
        (!is_stable).then(|| (File::Chain(current.number), current.replica.clone()))
    }

    /// Records that a manifest segment is durable up to this length.
    pub(super) fn synced(&mut self, number: SegmentId, length: u32, keeper: &Keeper) {
        if let Some(current) = &mut self.current
            && current.number == number
        {
            current.stable = current.stable.max(length);
        }
        self.free(keeper);
    }
}

impl Current {
    fn position(&self) -> Position {
        (self.number, self.pieces.length())
    }

    fn append(&mut self, body: &[u8], stamp: Stamp) -> io::Result<()> {
        let mut pieces = self.pieces;
        let header = pieces.next(body, self.stable, stamp);
        self.replica.append(&header, body).map_err(io::Error::other)?;
        self.pieces = pieces;
        Ok(())
    }
}
