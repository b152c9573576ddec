//! Local persistence: a server writes its own log to replicas on its disk. The segment manifest
//! (log directory) records which segments belong to the log. See `docs/design/durability.md`.
//!
//! - [`Keeper`]: state shared by all reactors: replicas, manifest, health of the disk;
//! - [`saving`](self): one reactor's writer, which persists the bytes appended in each turn;
//! - [`loading`](self): recovery of the persisted log when a server starts.
//!
//! Writes happen within the turn, in [`Engine::commit`]. A [`Sync`] may take long, so the engine
//! leaves it in its outbox: the shell runs it on a separate thread, the simulator at any time.

mod chain;
mod loading;
mod saving;

pub use loading::{KeptError, Progress, RecoveredLog};

use super::Engine;
use backup::{ReplicaWriter, Replicas};
use chain::LocalManifest;
use loading::Loading;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use store::Store;
use types::{Instant, SegmentId};
use wire::replica::{ReplicaHeader, ReplicaId};

pub(super) use saving::LocalPersistence;

/// Durability mode of a log: when a write is acknowledged, and when it is durable (`stable` in
/// identifiers). See `docs/design/durability.md`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Acknowledged and durable once the operating system has the bytes.
    Memory,
    /// Acknowledged once the operating system has the bytes, durable once synced, in about 1 s.
    Interval,
    /// Acknowledged and durable once the bytes are synced.
    Disk,
}

impl Mode {
    /// Returns the name of the mode in settings and `INFO`.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Memory => "memory",
            Mode::Interval => "interval",
            Mode::Disk => "disk",
        }
    }
}

/// Local persistence of a server's log, shared by all its reactors.
pub struct Keeper {
    mode: Mode,
    replicas: Replicas,
    chain: Mutex<LocalManifest>,
    pub(super) loading: Loading,
    pub(super) acknowledgments: Acknowledgments,
    /// Set if the last attempt to write failed.
    is_failing: AtomicBool,
    /// Set once a sync has failed: the content of the disk is unknown from then on.
    is_broken: AtomicBool,
}

/// Notifies reactors with pending replies that more bytes are acknowledged.
#[derive(Debug, Default)]
pub(super) struct Acknowledgments {
    /// Version that rises when more bytes are acknowledged.
    count: AtomicU64,
    /// Number of reactors with pending replies.
    holders: AtomicUsize,
}

impl Acknowledgments {
    /// Records that more bytes are acknowledged. Returns whether reactors other than the caller
    /// have pending replies and must be woken.
    pub(super) fn tell(&self, caller_holds: bool) -> bool {
        // Sequentially consistent with `Engine::note_held`. Its caller reads the count once more
        // afterwards, so it cannot miss a rise.
        self.count.fetch_add(1, Ordering::SeqCst);
        let holders = self.holders.load(Ordering::SeqCst);
        assert!(holders >= usize::from(caller_holds), "a reactor with pending replies is counted");
        holders > usize::from(caller_holds)
    }
}

/// Job that syncs files, in this order.
#[derive(Debug)]
pub struct Sync {
    files: Vec<(File, Arc<ReplicaWriter>)>,
}

/// Result of a [`Sync`].
#[derive(Debug)]
pub struct Synced {
    files: Vec<(File, io::Result<u32>)>,
}

/// Content of a file that is to be synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum File {
    /// A segment of the manifest log, by its number there.
    Chain(SegmentId),
    Segment(SegmentId),
}

impl Sync {
    /// Runs the sync. This may take milliseconds, and seconds on a busy disk.
    pub fn carry_out(self) -> Synced {
        let mut files = Vec::with_capacity(self.files.len());
        for (file, replica) in self.files {
            let synced = replica.sync();
            let has_failed = synced.is_err();
            files.push((file, synced));
            if has_failed {
                // A file counts as synced only together with all earlier ones.
                break;
            }
        }
        Synced { files }
    }
}

impl Keeper {
    /// Returns the durability mode.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Returns the progress of loading; `None` once everything is loaded.
    pub fn progress(&self) -> Option<Progress> {
        self.loading.progress()
    }

    /// Returns whether writes can be persisted at the moment.
    pub fn is_working(&self) -> bool {
        !self.is_failing.load(Ordering::Relaxed) && !self.is_broken.load(Ordering::Relaxed)
    }

    fn chain(&self) -> MutexGuard<'_, LocalManifest> {
        self.chain.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records the result of an attempt to write, and returns whether it succeeded.
    fn note(&self, result: io::Result<()>) -> bool {
        let is_new = |has_failed: bool| self.is_failing.swap(has_failed, Ordering::Relaxed);
        match result {
            Ok(()) => {
                if self.is_failing.load(Ordering::Relaxed) && is_new(false) {
                    tracing::warn!("the log can be written again, accepting writes");
                }
                true
            }
            Err(error) => {
                if !is_new(true) {
                    tracing::error!(
                        %error,
                        "cannot write the log: refusing writes until the disk works again"
                    );
                }
                false
            }
        }
    }

    /// Stops acknowledging after a failed sync. The operating system may have dropped the
    /// unwritten data, and reports that only once.
    fn give_up(&self, error: &io::Error) {
        if !self.is_broken.swap(true, Ordering::Relaxed) {
            tracing::error!(
                %error,
                "disk sync failed, acknowledging no more writes. Restart the server when the disk \
                 works again; it then reads everything that was acknowledged from this disk"
            );
        }
    }

    /// Writes changes of the log's segments to the manifest. Once this returns `true`, the bytes
    /// of newly registered segments may be written.
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

/// Returns the header with another segment number.
fn header_of(header: ReplicaHeader, segment: SegmentId) -> ReplicaHeader {
    ReplicaHeader { id: ReplicaId { segment, ..header.id }, ..header }
}

impl Engine {
    /// Returns whether the log is being loaded. Only commands that need no data are served then.
    #[inline]
    pub fn is_loading(&self) -> bool {
        self.persistence.as_ref().is_some_and(|it| it.keeper.loading.is_on())
    }

    /// Returns whether writes cannot be persisted at the moment.
    #[inline]
    pub fn cannot_keep(&self) -> bool {
        self.persistence.as_ref().is_some_and(|it| !it.keeper.is_working())
    }

    /// Writes the bytes appended since the last call, and queues a sync when one is due. The
    /// caller must call this before it sends any output of the turn.
    #[inline]
    pub fn commit(&mut self, now: Instant) {
        if self.persistence.is_some() {
            self.with_persistence(now, LocalPersistence::commit);
        } else if self.log_master.is_some() {
            self.replicate_all(now);
        }
    }

    /// Returns the unacknowledged entries that the operations since the last call depend on.
    #[inline]
    pub fn take_dependency(&mut self) -> Option<store::log::Dependency> {
        self.worker.take_dependency()
    }

    /// Returns whether all entries of the dependency are acknowledged.
    #[inline]
    pub fn is_acknowledged(&self, dependency: &store::log::Dependency) -> bool {
        self.node.store().log().is_acknowledged(dependency)
    }

    /// Returns a version that rises whenever more bytes are acknowledged.
    pub fn acknowledgments(&self) -> u64 {
        self.acknowledgments_of_log().map_or(0, |it| it.count.load(Ordering::SeqCst))
    }

    /// Records whether this reactor has pending replies, to wake it for acknowledgments.
    pub fn note_held(&mut self, holds: bool) {
        let was_holding = std::mem::replace(&mut self.gating.holds, holds);
        if let Some(Acknowledgments { holders, .. }) = self.acknowledgments_of_log()
            && holds != was_holding
        {
            match holds {
                true => holders.fetch_add(1, Ordering::SeqCst),
                false => {
                    let before = holders.fetch_sub(1, Ordering::SeqCst);
                    assert!(before > 0, "a reactor with pending replies was counted");
                    before
                }
            };
        }
    }

    fn acknowledgments_of_log(&self) -> Option<&Acknowledgments> {
        let replicated = self.log_master.as_ref().map(|it| &it.replication.acknowledgments);
        replicated.or_else(|| self.persistence.as_ref().map(|it| &it.keeper.acknowledgments))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "a reactor with pending replies is counted")]
    fn a_reactor_that_holds_replies_is_counted_before_it_waits() {
        let acknowledgments = Acknowledgments::default();
        assert!(!acknowledgments.tell(false), "no other reactor waits");
        acknowledgments.tell(true);
    }
}
