//! Local persistence on one reactor: writes the bytes that each turn has appended, in pieces.

use super::{File, Keeper, Mode, Sync, Synced};
use crate::Engine;
use crate::outgoing::DiskJob;
use backup::ReplicaWriter;
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use store::log::{Log, Unsaved};
use types::{Instant, SegmentId};
use wire::directory::SegmentContent;
use wire::replica::{PieceWriter, Stamp};

/// Longest time that written bytes stay unsynced in [`Mode::Interval`]. The second is Redis's.
const INTERVAL: Duration = Duration::from_secs(1);

/// Pause before a failed write is retried.
const AGAIN: Duration = Duration::from_millis(10);

/// Segments that this reactor writes, or that it has written and that are not durable yet.
#[derive(Default)]
pub(crate) struct Saving {
    segments: BTreeMap<SegmentId, Segment>,
    /// Set while a [`Sync`] is in progress.
    is_syncing: bool,
    /// Time at which the next sync begins.
    next_sync: Option<Instant>,
    /// Time at which a failed write is retried.
    again: Option<Instant>,
}

struct Segment {
    replica: Arc<ReplicaWriter>,
    pieces: PieceWriter,
    stable: u32,
    is_closed: bool,
}

impl Segment {
    fn content(&self) -> SegmentContent {
        SegmentContent { length: self.pieces.length(), crc: self.pieces.crc() }
    }

    fn is_stable(&self) -> bool {
        self.stable == self.pieces.length()
    }
}

impl Saving {
    /// Returns the next time at which [`Engine::commit`] has work to do.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        [self.next_sync.filter(|_| !self.is_syncing), self.again].into_iter().flatten().min()
    }

    /// Returns whether all appended bytes are durable, and no write has to be retried.
    pub(crate) fn is_all_stable(&self) -> bool {
        self.again.is_none() && self.to_sync().next().is_none()
    }

    /// Writes the new bytes of a segment to its replica.
    fn save(&mut self, unsaved: &Unsaved<'_>, to: &Destination<'_>) -> io::Result<()> {
        let segment = match self.segments.get_mut(&unsaved.segment) {
            Some(segment) => segment,
            None => {
                let replica = to.keeper.chain().take_fresh(unsaved.segment);
                let replica = replica.ok_or_else(|| io::Error::other("no replica is ready yet"))?;
                let pieces = PieceWriter::new(replica.identity());
                let fresh = Segment { replica, pieces, stable: 0, is_closed: false };
                self.segments.entry(unsaved.segment).or_insert(fresh)
            }
        };
        if !unsaved.bytes.is_empty() {
            let mut pieces = segment.pieces;
            let header = pieces.next(unsaved.bytes, segment.stable, to.stamp);
            segment.replica.append(&header, unsaved.bytes).map_err(io::Error::other)?;
            segment.pieces = pieces;
        }
        segment.is_closed = unsaved.is_closed;
        let length = segment.pieces.length();
        match to.keeper.mode {
            Mode::Disk => {}
            Mode::Interval => to.log.raise_acknowledged(unsaved.segment, length),
            Mode::Memory => {
                to.log.raise_acknowledged(unsaved.segment, length);
                to.log.raise_stable(unsaved.segment, length);
                segment.stable = length;
            }
        }
        Ok(())
    }

    /// Removes and returns the closed and durable segments.
    fn take_done(&mut self) -> Vec<(SegmentId, SegmentContent)> {
        let is_done =
            |_: &SegmentId, segment: &mut Segment| segment.is_closed && segment.is_stable();
        let done = self.segments.extract_if(.., is_done);
        done.map(|(number, segment)| (number, segment.content())).collect()
    }

    fn to_sync(&self) -> impl Iterator<Item = (File, Arc<ReplicaWriter>)> {
        let unstable = self.segments.iter().filter(|(_, segment)| !segment.is_stable());
        unstable.map(|(number, segment)| (File::Segment(*number), segment.replica.clone()))
    }
}

/// Result of writing the appended bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum HandedOut {
    /// There were no new bytes.
    Nothing,
    All,
    /// Some bytes could not be written; the write is retried.
    Failed,
}

/// Destination of appended bytes.
struct Destination<'k> {
    keeper: &'k Keeper,
    log: &'k Log,
    /// Version and expiry clock of the pieces, not below those of any entry in them.
    stamp: Stamp,
}

impl Engine {
    /// Writes the bytes appended since the last call, and queues a sync when one is due. The
    /// caller must call this before it sends any output of the turn.
    #[inline]
    pub fn commit(&mut self, now: Instant) {
        if let Some(keeper) = self.keeper.clone() {
            self.commit_to(&keeper, now);
        } else if self.log_master.is_some() {
            self.replicate_all(now);
        }
    }

    fn commit_to(&mut self, keeper: &Keeper, now: Instant) {
        let is_broken = || keeper.is_broken.load(Ordering::Relaxed);
        if self.saving.again.is_some_and(|again| again > now) || is_broken() {
            return;
        }
        let store = self.node.store().clone();
        let has_changes = store.log().has_changes() || !keeper.is_working();
        let is_told = !has_changes || keeper.follow(&store);
        let handed_out = if is_told { self.hand_out(keeper) } else { HandedOut::Failed };
        self.saving.again = (handed_out == HandedOut::Failed).then_some(now + AGAIN);
        let is_due = || self.saving.next_sync.is_some_and(|at| at <= now || store.log().is_low());
        if has_changes || handed_out != HandedOut::Nothing || is_due() {
            self.plan_sync(keeper, now);
        }
    }

    /// Writes the new bytes of this reactor's segments.
    fn hand_out(&mut self, keeper: &Keeper) -> HandedOut {
        let store = self.node.store().clone();
        let to = Destination { keeper, log: store.log(), stamp: store.stamp() };
        let mut saved = None;
        self.worker.hand_out(|unsaved| {
            let result = saved.get_or_insert(Ok(()));
            if result.is_ok() {
                *result = self.saving.save(&unsaved, &to);
            }
            result.is_ok()
        });
        let Some(result) = saved else { return HandedOut::Nothing };
        self.close_done(keeper);
        if keeper.mode != Mode::Disk {
            self.tell_acknowledged(keeper);
        }
        if keeper.note(result) { HandedOut::All } else { HandedOut::Failed }
    }

    /// Seals complete and durable segments in the manifest.
    fn close_done(&mut self, keeper: &Keeper) {
        let done = self.saving.take_done();
        if !done.is_empty() {
            let mut chain = keeper.chain();
            done.into_iter().for_each(|(segment, content)| chain.close(segment, content));
        }
    }

    fn tell_acknowledged(&self, keeper: &Keeper) {
        if keeper.acknowledgments.tell(self.holds) {
            self.node.wake_all();
        }
    }

    fn plan_sync(&mut self, keeper: &Keeper, now: Instant) {
        if keeper.mode == Mode::Memory || self.saving.is_syncing {
            return;
        }
        if self.saving.next_sync.is_none() {
            if self.saving.to_sync().next().is_none() && keeper.chain().to_sync().is_none() {
                return;
            }
            let pause = match keeper.mode {
                Mode::Disk | Mode::Memory => Duration::ZERO,
                Mode::Interval => INTERVAL,
            };
            self.saving.next_sync = Some(now + pause);
        }
        // Memory of dead entries is reusable once the entries that superseded them are durable.
        let is_due = self.saving.next_sync.is_some_and(|at| at <= now);
        if is_due || self.node.store().log().is_low() {
            self.begin_sync(keeper);
        }
    }

    fn begin_sync(&mut self, keeper: &Keeper) {
        // The manifest comes first: synced data must belong to a segment that the manifest names.
        let files: Vec<_> =
            keeper.chain().to_sync().into_iter().chain(self.saving.to_sync()).collect();
        self.saving.next_sync = None;
        if !files.is_empty() {
            self.saving.is_syncing = true;
            self.out.disk.push(DiskJob::Sync(Sync { files }));
        }
    }

    /// Handles the result of a sync.
    pub(crate) fn on_synced(&mut self, now: Instant, synced: Synced) {
        let Some(keeper) = self.keeper.clone() else { return };
        let keeper = &keeper;
        self.saving.is_syncing = false;
        let store = self.node.store().clone();
        let log = store.log();
        for (file, result) in synced.files {
            match (file, result) {
                (_, Err(error)) => return keeper.give_up(&error),
                (File::Chain(number), Ok(length)) => keeper.chain().synced(number, length, keeper),
                (File::Segment(number), Ok(length)) => {
                    if let Some(segment) = self.saving.segments.get_mut(&number) {
                        segment.stable = segment.stable.max(length);
                    }
                    if keeper.mode == Mode::Disk {
                        log.raise_acknowledged(number, length);
                    }
                    log.raise_stable(number, length);
                }
            }
        }
        self.close_done(keeper);
        if keeper.mode == Mode::Disk {
            self.tell_acknowledged(keeper);
        }
        self.plan_sync(keeper, now);
    }
}
