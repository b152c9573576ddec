//! Local persistence on one reactor: writes the bytes that each turn has appended, in pieces.

use super::{File, Keeper, Mode, Sync, Synced};
use crate::context::Context;
use crate::outgoing::{DiskJob, EngineOutput};
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
pub(crate) struct LocalPersistence {
    pub(crate) keeper: Arc<Keeper>,
    segments: BTreeMap<SegmentId, SavedSegment>,
    /// Set while a [`Sync`] is in progress.
    is_syncing: bool,
    /// Time at which the next sync begins.
    next_sync: Option<Instant>,
    /// Time at which a failed write is retried.
    again: Option<Instant>,
}

struct SavedSegment {
    replica: Arc<ReplicaWriter>,
    pieces: PieceWriter,
    stable: u32,
    is_closed: bool,
}

impl SavedSegment {
    fn content(&self) -> SegmentContent {
        SegmentContent { length: self.pieces.length(), crc: self.pieces.crc() }
    }

    fn is_stable(&self) -> bool {
        self.stable == self.pieces.length()
    }
}

impl LocalPersistence {
    /// Makes the part of one reactor.
    pub(crate) fn new(keeper: Arc<Keeper>) -> LocalPersistence {
        LocalPersistence {
            keeper,
            segments: BTreeMap::new(),
            is_syncing: false,
            next_sync: None,
            again: None,
        }
    }

    /// Returns the next time at which [`LocalPersistence::commit`] has work to do.
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
                let fresh = SavedSegment { replica, pieces, stable: 0, is_closed: false };
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
            |_: &SegmentId, segment: &mut SavedSegment| segment.is_closed && segment.is_stable();
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

impl LocalPersistence {
    /// Writes the bytes appended since the last call, and queues a sync when one is due.
    pub(crate) fn commit(&mut self, context: &mut Context<'_>) {
        let (keeper, now) = (&*self.keeper.clone(), context.now);
        let is_broken = || keeper.is_broken.load(Ordering::Relaxed);
        if self.again.is_some_and(|again| again > now) || is_broken() {
            return;
        }
        let store = context.node.store();
        let has_changes = store.log().has_changes() || !keeper.is_working();
        let is_told = !has_changes || keeper.follow(store);
        let handed_out = if is_told { self.hand_out(keeper, context) } else { HandedOut::Failed };
        self.again = (handed_out == HandedOut::Failed).then_some(now + AGAIN);
        let is_due = || self.next_sync.is_some_and(|at| at <= now || store.log().is_low());
        if has_changes || handed_out != HandedOut::Nothing || is_due() {
            self.plan_sync(keeper, context);
        }
    }

    /// Writes the new bytes of this reactor's segments.
    fn hand_out(&mut self, keeper: &Keeper, context: &mut Context<'_>) -> HandedOut {
        let store = context.node.store();
        let to = Destination { keeper, log: store.log(), stamp: store.stamp() };
        let mut saved = None;
        context.worker.hand_out(|unsaved| {
            let result = saved.get_or_insert(Ok(()));
            if result.is_ok() {
                *result = self.save(&unsaved, &to);
            }
            result.is_ok()
        });
        let Some(result) = saved else { return HandedOut::Nothing };
        self.close_done(keeper);
        if keeper.mode != Mode::Disk {
            tell_acknowledged(keeper, context);
        }
        if keeper.note(result) { HandedOut::All } else { HandedOut::Failed }
    }

    /// Seals complete and durable segments in the manifest.
    fn close_done(&mut self, keeper: &Keeper) {
        let done = self.take_done();
        if !done.is_empty() {
            let mut chain = keeper.chain();
            done.into_iter().for_each(|(segment, content)| chain.close(segment, content));
        }
    }

    fn plan_sync(&mut self, keeper: &Keeper, context: &mut Context<'_>) {
        let now = context.now;
        if keeper.mode == Mode::Memory || self.is_syncing {
            return;
        }
        if self.next_sync.is_none() {
            if self.to_sync().next().is_none() && keeper.chain().to_sync().is_none() {
                return;
            }
            let pause = match keeper.mode {
                Mode::Disk | Mode::Memory => Duration::ZERO,
                Mode::Interval => INTERVAL,
            };
            self.next_sync = Some(now + pause);
        }
        // Memory of dead entries is reusable once the entries that superseded them are durable.
        let is_due = self.next_sync.is_some_and(|at| at <= now);
        if is_due || context.node.store().log().is_low() {
            self.begin_sync(keeper, context.out);
        }
    }

    fn begin_sync(&mut self, keeper: &Keeper, out: &mut EngineOutput) {
        // The manifest comes first: synced data must belong to a segment that the manifest names.
        let files: Vec<_> = keeper.chain().to_sync().into_iter().chain(self.to_sync()).collect();
        self.next_sync = None;
        if !files.is_empty() {
            assert!(!self.is_syncing, "one sync runs at a time");
            self.is_syncing = true;
            out.disk.push(DiskJob::Sync(Sync { files }));
        }
    }

    /// Handles the result of a sync.
    pub(crate) fn on_synced(&mut self, synced: Synced, context: &mut Context<'_>) {
        let keeper = &*self.keeper.clone();
        assert!(self.is_syncing, "a sync ends once");
        self.is_syncing = false;
        let store = context.node.store();
        let log = store.log();
        for (file, result) in synced.files {
            match (file, result) {
                (_, Err(error)) => return keeper.give_up(&error),
                (File::Chain(number), Ok(length)) => keeper.chain().synced(number, length, keeper),
                (File::Segment(number), Ok(length)) => {
                    if let Some(segment) = self.segments.get_mut(&number) {
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
            tell_acknowledged(keeper, context);
        }
        self.plan_sync(keeper, context);
    }
}

/// Wakes the reactors that wait for acknowledgments.
fn tell_acknowledged(keeper: &Keeper, context: &Context<'_>) {
    if keeper.acknowledgments.tell(context.holds_replies) {
        context.node.wake_all();
    }
}
