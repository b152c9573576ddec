//! The [`Worker`]: the handle through which one reactor uses the store.
//!
//! A worker owns the data that only its reactor touches: the log head, its side logs, the tablet
//! map of the current turn, and reusable buffers. Its operations are spread over the files of
//! this folder, one file per kind of work.

use super::changes::Scratch;
use super::expire::Expiring;
use super::graves::Graves;
use super::range_clock::RangeClock;
use super::store::Store;
use super::tablets::{Tablet, TabletMap, TabletState};
use super::view::{Shown, View};
use super::{Arrival, Key, Recovery, Stall};
use crate::index::Word;
use crate::log::{Head, Participant, SideLog, Spliced, Survivors, VictimSegment};
use planted::Bug;
use std::fmt;
use std::sync::Arc;
use types::limits::{KEY_BYTES_MAX, VALUE_BYTES_MAX};
use types::{KeyHash, MigrationId, ReactorId, TableId, Tenure, UnixMillis};

/// Number of retired items freed at the start of a turn. Arbitrary: enough to keep up with a
/// writer that retires a leaf every few hundred inserts.
const RECLAIMED_PER_TURN: usize = 16;

/// Handle of one reactor to the store.
pub struct Worker {
    pub(super) store: Arc<Store>,
    pub(super) participant: Participant,
    pub(super) head: Head,
    /// One side log per migration with replayed but unspliced records, and up to two for
    /// recoveries (see [`Cause`]).
    pub(super) side_logs: Vec<(Cause, SideLog)>,
    pub(super) keeps_recovered_back: bool,
    /// Tablet map that was current when the turn began.
    pub(super) tablets: Arc<TabletMap>,
    generation: u64,
    pub(super) scratch: Scratch,
    /// Destination of the cleaner's copies.
    pub(super) survivors: Survivors,
    /// Segments of spliced side logs that are not completely replicated.
    pub(super) spliced: Spliced,
    /// Unacknowledged log positions on which replies to clients depend.
    pub(super) shown: Shown,
    /// Tombstones with index words that are to be removed.
    pub(super) graves: Graves,
    /// Segment that this worker is cleaning.
    pub(super) victim: Option<VictimSegment>,
    /// Counts of the records with an expiry that the expiry walk has met.
    pub(super) expiring: Expiring,
    /// Words that a walk has collected, each with the lowest hash that it may have. A reusable
    /// buffer.
    pub(super) words: Vec<(KeyHash, Word)>,
}

/// Purpose of a side log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// Records of a migration.
    Migration(MigrationId),
    /// Recovered records that the dead server's log still holds durably.
    Recoveries,
    /// Recovered records that the dead server's log may lose. They must be durable here before a
    /// client sees them.
    Unsettled,
}

/// Permission of an operation on a hash that this server owns.
#[derive(Clone, Copy)]
pub(super) struct Access<'m> {
    /// Incarnation that is written into new entries.
    pub(super) tenure: Tenure,
    clock: &'m RangeClock,
    /// Set where records may still arrive.
    pub(super) arrival: Option<&'m Arc<Arrival>>,
    /// Set where recovered records depend on another log.
    pub(super) recovery: Option<&'m Recovery>,
}

impl Worker {
    pub(super) fn new(store: Arc<Store>, reactor: ReactorId) -> Worker {
        let participant = store.log.reclamation().participant(reactor);
        let head = store.log.head();
        let survivors = store.log.survivors();
        let generation = store.generation();
        let tablets = store.tablets();
        Worker {
            store,
            participant,
            head,
            side_logs: Vec::new(),
            keeps_recovered_back: false,
            tablets,
            generation,
            scratch: Scratch::default(),
            survivors,
            spliced: Spliced::default(),
            shown: Shown::default(),
            graves: Graves::new(),
            victim: None,
            expiring: Expiring::default(),
            words: Vec::new(),
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
        if generation != self.generation {
            self.tablets = self.store.tablets();
            self.generation = generation;
            self.end_recoveries();
            self.end_arrivals();
        }
        self.store.raise_clock(clock);
        self.store.log.reclamation().collect(RECLAIMED_PER_TURN);
        self.close_graves();
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

impl TabletMap {
    /// Returns the permission of an operation on this hash, by the tablet's state alone.
    #[inline]
    pub(super) fn access(&self, table: TableId, hash: KeyHash) -> Result<Access<'_>, Stall> {
        self.at(hash).ok_or(Stall::NotOwned)?.access(table)
    }

    /// Returns [`TabletMap::access`] for each of these keys.
    pub(super) fn accesses(
        &self,
        table: TableId,
        keys: &[Key<'_>],
    ) -> Result<Vec<Access<'_>>, Stall> {
        keys.iter().map(|key| self.access(table, key.hash)).collect()
    }
}

impl Tablet {
    /// Returns the same permission as [`TabletMap::access`], for any hash of the tablet.
    #[inline]
    pub(super) fn access(&self, table: TableId) -> Result<Access<'_>, Stall> {
        let (arrival, recovery) = match &self.state {
            TabletState::Serving => (None, None),
            TabletState::Arriving(arrival) if arrival.is_suspended() => return Err(Stall::Held),
            TabletState::Arriving(arrival) => (Some(arrival), None),
            TabletState::Securing(recovery) => (None, Some(&**recovery)),
            TabletState::Recovering(_) if planted::is(Bug::ServedBeforeReplayed) => (None, None),
            TabletState::Frozen | TabletState::Recovering(_) => return Err(Stall::Held),
            TabletState::Leaving if planted::is(Bug::CopyServedAfterLeaving) => (None, None),
            TabletState::Leaving => return Err(Stall::NotOwned),
        };
        if self.flushing.contains(table) {
            return Err(Stall::Held);
        }
        let tenure = self.tenures[usize::from(table.0)];
        Ok(Access { tenure, clock: &self.clock, arrival, recovery })
    }
}

impl Access<'_> {
    /// Returns the range's clock, which decides expiry. It is loaded anew for each decision: see
    /// [`Store::clock`].
    #[inline]
    pub(super) fn clock(&self, store: &Store) -> UnixMillis {
        self.clock.read(store.clock())
    }

    /// Returns whether another log may hold an older version of a record. If so, a removal must
    /// leave a tombstone.
    #[inline]
    pub(super) fn is_inherited(&self) -> bool {
        self.arrival.is_some() || self.recovery.is_some()
    }

    /// Returns whether an absent record may still arrive.
    #[inline]
    pub(super) fn may_arrive(&self, table: TableId, hash: KeyHash) -> bool {
        self.arrival.is_some_and(|arrival| arrival.may_arrive(table, hash))
    }

    /// Creates the slot's leaf at its expected final size, if records arrive and there is no
    /// leaf.
    #[inline]
    pub(super) fn make_leaf(&self, view: &View<'_>, hash: KeyHash) {
        if let Some(arrival) = self.arrival {
            arrival.make_leaf(view, hash.slot());
        }
    }
}

/// Rejects a key or value that is too long for a log entry.
#[inline]
pub(super) fn check_size(key: &[u8], value: usize) -> Result<(), Stall> {
    if key.len() > KEY_BYTES_MAX || value > VALUE_BYTES_MAX { Err(Stall::TooLarge) } else { Ok(()) }
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker").field("tablets", &self.tablets).finish_non_exhaustive()
    }
}
