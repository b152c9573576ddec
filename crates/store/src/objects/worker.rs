//! The [`Worker`]: the handle through which one reactor uses the store.
//!
//! A worker owns the data that only its reactor touches: the log head, its side logs, the tablet
//! map of the current turn, and reusable buffers. Its operations are spread over the files of
//! this folder, one file per kind of work.

use super::changes::Scratch;
use super::evictor::Evictor;
use super::expired::Expiring;
use super::side_logs::SideLogs;
use super::store::Store;
use super::tablets::TabletMap;
use super::tombstones::TombstoneQueue;
use super::view::ReplyDependency;
use crate::index::Word;
use crate::log::{Head, Participant, Survivors, VictimSegment};
use std::sync::Arc;
use types::{KeyHash, ReactorId, UnixMillis};

/// Number of retired items freed at the start of a turn. Arbitrary: enough to keep up with a
/// writer that retires a leaf every few hundred inserts.
const RECLAIMED_PER_TURN: usize = 16;

/// Maximum number of synced tombstones reclaimed at the start of a turn: an estimated 10 µs.
pub(super) const RECLAIMED_TOMBSTONES: usize = 64;

/// Handle of one reactor to the store.
pub struct Worker {
    pub(super) store: Arc<Store>,
    pub(super) participant: Participant,
    pub(super) head: Head,
    /// Destinations of records that arrive or are recovered.
    pub(super) side_logs: SideLogs,
    /// Tablet map that was current when the turn began.
    pub(super) tablets: Arc<TabletMap>,
    generation: u64,
    pub(super) scratch: Scratch,
    /// Destination of the cleaner's copies.
    pub(super) survivors: Survivors,
    /// Unacknowledged log positions on which replies to clients depend.
    pub(super) dependency: ReplyDependency,
    /// Tombstones with index words that are to be removed.
    pub(super) tombstones: TombstoneQueue,
    /// Segment that this worker is cleaning.
    pub(super) victim: Option<VictimSegment>,
    /// Counts of the records with an expiry that the expiry walk has met.
    pub(super) expiring: Expiring,
    /// Words that a walk has collected, each with the lowest hash that it may have. A reusable
    /// buffer.
    pub(super) words: Vec<(KeyHash, Word)>,
    /// Accesses of clients, and candidates for eviction.
    pub(super) evictor: Evictor,
}

impl Store {
    /// Returns the worker of a reactor. Each reactor takes exactly one.
    pub fn worker(self: &Arc<Self>, reactor: ReactorId) -> Worker {
        Worker::new(Arc::clone(self), reactor)
    }
}

impl Worker {
    fn new(store: Arc<Store>, reactor: ReactorId) -> Worker {
        let participant = store.log.reclamation().participant(reactor);
        let head = store.log.head();
        let survivors = store.log.survivors();
        let generation = store.generation();
        let tablets = store.tablets();
        let evictor = Evictor::new(&store, reactor);
        Worker {
            store,
            participant,
            head,
            side_logs: SideLogs::default(),
            tablets,
            generation,
            scratch: Scratch::default(),
            survivors,
            dependency: ReplyDependency::default(),
            tombstones: TombstoneQueue::default(),
            victim: None,
            expiring: Expiring::default(),
            words: Vec::new(),
            evictor,
        }
    }

    /// Begins a turn. Drops all references into the store, adopts the newest tablets, and raises
    /// the store's clock to at least `clock`. A worker calls this before its first operation and
    /// after sleeping.
    #[inline]
    pub fn begin_turn(&mut self, clock: UnixMillis) {
        self.participant.begin_turn();
        // After `begin_turn`: a thread that sees this turn begin relies on the worker using the
        // tablets published before.
        let generation = self.store.generation();
        debug_assert!(generation >= self.generation, "tablets of generation {generation} return");
        if generation != self.generation {
            self.tablets = self.store.tablets();
            self.generation = generation;
            self.follow_eviction_order();
            self.side_logs.adopt_tablets(&self.tablets);
        }
        self.store.raise_clock(clock);
        self.store.log.reclamation().collect(RECLAIMED_PER_TURN);
        self.tombstones.reclaim(RECLAIMED_TOMBSTONES, &self.store, &self.participant);
    }

    /// Returns the clock that decides expiry at this hash. A relative time to live counts from
    /// it.
    pub fn clock_at(&self, hash: KeyHash) -> UnixMillis {
        let own = self.store.clock();
        self.tablets.at(hash).map_or(own, |tablet| tablet.clock.read(own))
    }

    /// Marks the worker as asleep: it holds no reference and begins no operation before its next
    /// turn. So no grace period waits for it.
    pub fn sleep(&mut self) {
        self.participant.sleep();
    }

    /// Returns the store of this worker.
    pub fn store(&self) -> &Arc<Store> {
        &self.store
    }
}
