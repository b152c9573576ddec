//! The log directory and the replicas that it is written to, one after the other.

use super::{File, Keeper, Mode, header_of};
use backup::Replica;
use protocols::directory::Directory;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::Arc;
use store::Store;
use store::log::LogChange;
use types::SegmentId;
use wire::directory::Content;
use wire::replica::{PieceWriter, ReplicaHeader, ReplicaId, ReplicaKind, Stamp};

/// Segments of the chain are numbered from here, so that no number is one of the log's as well.
pub(super) const CHAIN: u64 = 1 << 63;

/// How far the chain has got, or a part of it: segment and length there.
type Position = (SegmentId, u32);

/// The log directory on this server's own disk.
pub(super) struct Chain {
    directory: Directory,
    header: ReplicaHeader,
    /// Replicas that earlier processes have made of the log's segments.
    earlier: BTreeMap<SegmentId, ReplicaId>,
    /// The chain's current segment; `None`: there was no way yet to begin one.
    current: Option<Current>,
    /// The number of the next segment of the chain.
    next: u64,
    /// Segments that have been opened and have no replica yet.
    opening: VecDeque<SegmentId>,
    /// Replicas that wait for their segments' writers.
    fresh: BTreeMap<SegmentId, Arc<Replica>>,
    /// Replicas of segments that the directory will not name any more once what is pending is written.
    dropped: Vec<ReplicaId>,
    /// Replicas that go when the chain is stable up to the place beside.
    leaving: VecDeque<(Position, ReplicaId)>,
}

struct Current {
    number: SegmentId,
    replica: Arc<Replica>,
    pieces: PieceWriter,
    stable: u32,
}

impl Chain {
    /// Goes on with a directory, in a new segment of the chain with this number. The `old` replicas
    /// go when that is stable; `earlier` are those of the directory's segments.
    pub(super) fn new(
        directory: Directory,
        next: u64,
        (old, earlier): (Vec<ReplicaId>, BTreeMap<SegmentId, ReplicaId>),
        header: ReplicaHeader,
    ) -> Chain {
        let first = (SegmentId(CHAIN | next), 0);
        Chain {
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

    /// A segment of the log was opened or may leave.
    pub(super) fn note(&mut self, change: LogChange, store: &Store) {
        match change {
            LogChange::Opened(segment) => self.opening.push_back(segment),
            // What it holds is known to who writes it.
            LogChange::Closed { .. } => {}
            LogChange::Dead(segment) => {
                self.drop(segment);
                store.log().release(segment);
            }
        }
    }

    /// The segment is no part of the log any more.
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

    /// The segment is whole and stable.
    pub(super) fn close(&mut self, segment: SegmentId, content: Content) {
        // It may have left already.
        if self.directory.contains(segment) {
            self.directory.close(segment, content);
        }
    }

    /// Writes down what is pending. What could not be written is written the next time.
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

    /// Begins a segment of the chain, which is stable when this returns.
    pub(super) fn begin_and_sync(&mut self, keeper: &Keeper, stamp: Stamp) -> io::Result<()> {
        self.write(keeper, stamp)?;
        if let Some((_, replica)) = self.to_sync() {
            let length = replica.sync()?;
            self.current.iter_mut().for_each(|current| current.stable = length);
        }
        self.free(keeper);
        Ok(())
    }

    /// A segment has its replica before the directory names it: one that is named and has none has
    /// lost it.
    fn open_replicas(&mut self, keeper: &Keeper) -> io::Result<()> {
        while let Some(segment) = self.opening.front().copied() {
            let replica = keeper.replicas.create(header_of(self.header, segment))?;
            self.opening.pop_front();
            self.fresh.insert(segment, replica);
            self.directory.open(segment);
        }
        Ok(())
    }

    /// The replica of a segment that the directory names by now, for the segment's writer.
    pub(super) fn take_fresh(&mut self, segment: SegmentId) -> Option<Arc<Replica>> {
        self.fresh.remove(&segment)
    }

    /// Begins the next segment of the chain.
    fn begin(&mut self, keeper: &Keeper, stamp: Stamp) -> io::Result<()> {
        let number = SegmentId(CHAIN | self.next);
        let kind = ReplicaKind::Directory;
        let replica =
            keeper.replicas.create(ReplicaHeader { kind, ..header_of(self.header, number) })?;
        // A number is not used twice, whatever comes of it.
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

    /// What is pending has been written.
    fn settle(&mut self, keeper: &Keeper) {
        let Some(current) = &mut self.current else { return };
        let position = current.position();
        self.leaving.extend(self.dropped.drain(..).map(|replica| (position, replica)));
        if keeper.mode == Mode::Memory {
            current.stable = position.1;
        }
        self.free(keeper);
    }

    /// Frees the replicas that nothing stable names.
    fn free(&mut self, keeper: &Keeper) {
        let Some(stable) = self.current.as_ref().map(|it| (it.number, it.stable)) else { return };
        // What the current segment says counts when its snapshot is stable.
        while stable.1 > 0
            && let Some((_, replica)) = self.leaving.pop_front_if(|(at, _)| *at <= stable)
        {
            if let Err(error) = keeper.replicas.free(replica) {
                tracing::warn!(%error, "a replica that is not needed any more cannot be freed");
            }
        }
    }

    /// What has to be synced for everything written to be stable.
    pub(super) fn to_sync(&self) -> Option<(File, Arc<Replica>)> {
        let current = self.current.as_ref()?;
        let is_stable = current.stable == current.position().1;
        (!is_stable).then(|| (File::Chain(current.number), current.replica.clone()))
    }

    /// A segment of the chain is stable up to this length.
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
