//! One reactor's way into the store.
//!
//! A worker owns what only its reactor touches: the log head, the side logs of what it replays, the
//! picture of the tablets for this turn, and memory that operations use again and again. What it
//! can do is spread over the files of this folder, one per kind of work.

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

/// Retired things freed at the top of a turn. Arbitrary: enough to keep up with a writer that
/// retires a leaf every few hundred inserts.
const RECLAIMED_PER_TURN: usize = 16;

/// One reactor's way into the store.
pub struct Worker {
    pub(super) store: Arc<Store>,
    pub(super) participant: Participant,
    pub(super) head: Head,
    /// One per migration of which this worker has replayed something and not spliced, and one for
    /// all that is being recovered.
    pub(super) side_logs: Vec<(Cause, SideLog)>,
    pub(super) keeps_recovered_back: bool,
    /// As published when the turn began.
    pub(super) tablets: Arc<TabletMap>,
    generation: u64,
    pub(super) scratch: Scratch,
    /// Where the cleaner puts what lives.
    pub(super) survivors: Survivors,
    /// What spliced side logs owe the replicas.
    pub(super) spliced: Spliced,
    /// What operations showed that is not safe yet.
    pub(super) shown: Shown,
    /// Tombstones whose words are to go.
    pub(super) graves: Graves,
    /// The segment that this worker is cleaning.
    pub(super) victim: Option<VictimSegment>,
    /// Counts of what the walk that reclaims expired records has met.
    pub(super) expiring: Expiring,
    /// Words of a walk, with the lowest hashes that they may have, until it has been decided what becomes of them.
    pub(super) words: Vec<(KeyHash, Word)>,
}

/// What a side log is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// A migration.
    Migration(MigrationId),
    /// Recoveries.
    Recoveries,
    /// What of recoveries must be safe here before anybody is shown it.
    Unsettled,
}

/// What an operation may do with a hash that is ours.
#[derive(Clone, Copy)]
pub(super) struct Access<'m> {
    /// Written into its entries.
    pub(super) tenure: Tenure,
    clock: &'m RangeClock,
    /// Set where records may still arrive.
    pub(super) arrival: Option<&'m Arc<Arrival>>,
    /// Set where what was recovered depends on another log.
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

    /// Begins a turn: nothing of the store is held from before, the newest tablets count, and the
    /// store's clock is not behind `clock`. Also what a worker does first, and after sleeping.
    #[inline]
    pub fn begin_turn(&mut self, clock: UnixMillis) {
        self.participant.begin_turn();
        // After the line above: who has seen this turn begin relies on its seeing the tablets.
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

    /// The clock by which expiry is judged at this hash: what a relative time to live counts from.
    pub fn clock_at(&self, hash: KeyHash) -> UnixMillis {
        let own = self.store.clock();
        self.tablets.at(hash).map_or(own, |tablet| tablet.clock.read(own))
    }

    /// The worker holds nothing and begins no operation before its next turn: nobody waits for it.
    pub fn sleep(&mut self) {
        self.participant.sleep();
    }

    /// The store that this is a way into.
    pub fn store(&self) -> &Arc<Store> {
        &self.store
    }
}

impl TabletMap {
    /// Whether an operation on this hash may be carried out here, by the tablet's state alone.
    #[inline]
    pub(super) fn access(&self, table: TableId, hash: KeyHash) -> Result<Access<'_>, Stall> {
        self.at(hash).ok_or(Stall::NotOwned)?.access(table)
    }

    /// As [`TabletMap::access`], for each of these keys.
    pub(super) fn accesses(
        &self,
        table: TableId,
        keys: &[Key<'_>],
    ) -> Result<Vec<Access<'_>>, Stall> {
        keys.iter().map(|key| self.access(table, key.hash)).collect()
    }
}

impl Tablet {
    /// As [`TabletMap::access`], for any hash of the tablet.
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
    /// The range's clock, by which expiry is judged. Loaded anew for each judgment: see
    /// [`Store::clock`].
    #[inline]
    pub(super) fn clock(&self, store: &Store) -> UnixMillis {
        self.clock.read(store.clock())
    }

    /// Whether another log may have an older version of any record, so that what is removed leaves
    /// a tombstone.
    #[inline]
    pub(super) fn is_inherited(&self) -> bool {
        self.arrival.is_some() || self.recovery.is_some()
    }

    /// Whether a record that is not here may still come.
    #[inline]
    pub(super) fn may_arrive(&self, table: TableId, hash: KeyHash) -> bool {
        self.arrival.is_some_and(|arrival| arrival.may_arrive(table, hash))
    }

    /// Where records arrive: makes the slot's leaf at the size that it will have, if there is none.
    #[inline]
    pub(super) fn make_leaf(&self, view: &View<'_>, hash: KeyHash) {
        if let Some(arrival) = self.arrival {
            arrival.make_leaf(view, hash.slot());
        }
    }
}

/// Refuses what no log entry can hold.
#[inline]
pub(super) fn check_size(key: &[u8], value: usize) -> Result<(), Stall> {
    if key.len() > KEY_BYTES_MAX || value > VALUE_BYTES_MAX { Err(Stall::TooLarge) } else { Ok(()) }
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker").field("tablets", &self.tablets).finish_non_exhaustive()
    }
}
