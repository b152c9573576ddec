//! A server that keeps its log: what its segments get is written to replicas, and the log directory
//! says which segments count. See `docs/design/durability.md`.
//!
//! - [`Keeper`]: what all reactors share: the replicas, the directory, and whether it works;
//! - [`saving`](self): one reactor's part: hands out what its turn has appended;
//! - [`loading`](self): what was kept comes back when a server starts.
//!
//! Writing happens in the turn, in [`Engine::commit`]. What may take long, [`Sync`], is left in the
//! engine's outbox: the shell does it on a thread of its own, a simulator when it likes.

mod chain;
mod loading;
mod saving;

pub use loading::{Kept, KeptError, Progress};

use super::Engine;
use backup::{Replica, Replicas};
use chain::Chain;
use loading::Loading;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use store::Store;
use types::SegmentId;
use wire::replica::{ReplicaHeader, ReplicaId};

pub(super) use saving::Saving;

/// When a write is acknowledged, and when it is stable. See `docs/design/durability.md`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Both when the system has it.
    Memory,
    /// Acknowledged when the system has it, stable when the disk has it: within about a second.
    Interval,
    /// Both when the disk has it.
    Disk,
}

impl Mode {
    /// As settings and `INFO` call it.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Memory => "memory",
            Mode::Interval => "interval",
            Mode::Disk => "disk",
        }
    }
}

/// What all reactors of a server share that keeps its log.
pub struct Keeper {
    mode: Mode,
    replicas: Replicas,
    chain: Mutex<Chain>,
    pub(super) loading: Loading,
    pub(super) acknowledgments: Acknowledgments,
    /// Whether the last attempt to write failed.
    is_failing: AtomicBool,
    /// Whether a sync has failed: what the disk has is not known any more.
    is_broken: AtomicBool,
}

/// How reactors that hold replies learn that more was acknowledged.
#[derive(Debug, Default)]
pub(super) struct Acknowledgments {
    /// Rises when more was acknowledged.
    count: AtomicU64,
    /// Reactors that hold replies.
    holders: AtomicUsize,
}

impl Acknowledgments {
    /// More has been acknowledged: whether other reactors must be woken for it than the caller, who
    /// holds replies or does not.
    pub(super) fn tell(&self, caller_holds: bool) -> bool {
        // In one order with `Engine::note_held`, which looks here once more afterwards.
        self.count.fetch_add(1, Ordering::SeqCst);
        self.holders.load(Ordering::SeqCst) > usize::from(caller_holds)
    }
}

/// Files to be synced, in this order.
#[derive(Debug)]
pub struct Sync {
    files: Vec<(File, Arc<Replica>)>,
}

/// What came of a [`Sync`].
#[derive(Debug)]
pub struct Synced {
    files: Vec<(File, io::Result<u32>)>,
}

/// What is kept in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum File {
    /// A segment of the directory's chain, by its number there.
    Chain(SegmentId),
    Segment(SegmentId),
}

impl Sync {
    /// Does it. May take milliseconds, and seconds on a busy disk.
    pub fn carry_out(self) -> Synced {
        let mut files = Vec::with_capacity(self.files.len());
        for (file, replica) in self.files {
            let synced = replica.sync();
            let has_failed = synced.is_err();
            files.push((file, synced));
            if has_failed {
                // What comes later counts only together with what comes before.
                break;
            }
        }
        Synced { files }
    }
}

impl Keeper {
    /// How it keeps what it keeps.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// How far loading is; `None`: everything is there.
    pub fn progress(&self) -> Option<Progress> {
        self.loading.progress()
    }

    /// Whether writes can be kept.
    pub fn is_working(&self) -> bool {
        !self.is_failing.load(Ordering::Relaxed) && !self.is_broken.load(Ordering::Relaxed)
    }

    fn chain(&self) -> MutexGuard<'_, Chain> {
        self.chain.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What came of an attempt to write.
    fn note(&self, result: io::Result<()>) -> bool {
        let is_new = |has_failed: bool| self.is_failing.swap(has_failed, Ordering::Relaxed);
        match result {
            Ok(()) => {
                if self.is_failing.load(Ordering::Relaxed) && is_new(false) {
                    tracing::warn!("what clients write can be kept again");
                }
                true
            }
            Err(error) => {
                if !is_new(true) {
                    tracing::error!(
                        %error,
                        "what clients write cannot be kept: writes are refused until it can"
                    );
                }
                false
            }
        }
    }

    /// A sync has failed: the system may have dropped what it could not write, and says so once.
    fn give_up(&self, error: &io::Error) {
        if !self.is_broken.swap(true, Ordering::Relaxed) {
            tracing::error!(
                %error,
                "the disk has failed: nothing more is acknowledged. Restart the server when the \
                 disk is well; what was acknowledged before is read from it then"
            );
        }
    }

    /// The segments of the log have changed: says so in the directory. Afterwards what stands in
    /// them may be written.
    fn follow(&self, store: &Store) -> bool {
        let mut chain = self.chain();
        for change in store.log().take_changes() {
            chain.note(change, store);
        }
        let written = chain.write(self, store.stamp());
        drop(chain);
        self.note(written)
    }
}

/// The same with another segment.
fn header_of(header: ReplicaHeader, segment: SegmentId) -> ReplicaHeader {
    ReplicaHeader { id: ReplicaId { segment, ..header.id }, ..header }
}

impl Engine {
    /// Whether what was kept is still being read: only what needs no data is answered.
    #[inline]
    pub(crate) fn is_loading(&self) -> bool {
        self.keeper.as_ref().is_some_and(|keeper| keeper.loading.is_on())
    }

    /// Whether writes cannot be kept at the moment.
    #[inline]
    pub(crate) fn cannot_keep(&self) -> bool {
        self.keeper.as_ref().is_some_and(|keeper| !keeper.is_working())
    }

    /// What the operations since the last call depend on, if that is not acknowledged.
    #[inline]
    pub(crate) fn take_dependency(&mut self) -> Option<store::log::Dependency> {
        self.worker.take_dependency()
    }

    /// Whether all of it is acknowledged.
    pub(crate) fn is_acknowledged(&self, dependency: &store::log::Dependency) -> bool {
        self.node.store().log().is_acknowledged(dependency)
    }

    /// Rises whenever more was acknowledged.
    pub(crate) fn acknowledgments(&self) -> u64 {
        self.acknowledgments_of_log().map_or(0, |it| it.count.load(Ordering::SeqCst))
    }

    /// Whether this reactor holds replies: then it is woken when more was acknowledged.
    pub(crate) fn note_held(&mut self, holds: bool) {
        let was_holding = std::mem::replace(&mut self.holds, holds);
        if let Some(Acknowledgments { holders, .. }) = self.acknowledgments_of_log()
            && holds != was_holding
        {
            match holds {
                true => holders.fetch_add(1, Ordering::SeqCst),
                false => holders.fetch_sub(1, Ordering::SeqCst),
            };
        }
    }

    fn acknowledgments_of_log(&self) -> Option<&Acknowledgments> {
        let replicated = self.replication.as_ref().map(|replication| &replication.acknowledgments);
        replicated.or_else(|| self.keeper.as_ref().map(|keeper| &keeper.acknowledgments))
    }
}
