//! One reactor's way into the store.

use super::{Arrival, Changes, Key, Need, Record, Stall};
use std::sync::Arc;
use types::{HashRange, KeyHash, MigrationId, TableId, UnixMillis};
use wire::Corrupt;

/// One reactor's way into the store: its log head, its side logs, its picture of the tablets.
pub struct Worker {
    _private: (),
}

/// How far a quantum of replay came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Replayed {
    /// Where in the batch to go on; `None`: it has been replayed to its end.
    pub next: Option<usize>,
    /// Records put into the index.
    pub records: u64,
    /// Their bytes in the log.
    pub bytes: u64,
    /// Records that were not needed.
    pub dropped: u64,
}

/// Why a batch cannot be replayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReplayError {
    /// Its bytes are damaged.
    #[error(transparent)]
    Corrupt(#[from] Corrupt),
    /// There is no memory for it.
    #[error("no memory for the records that arrive")]
    OutOfMemory,
}

/// How far a step of a flush came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flushed {
    /// Go on from this hash.
    Until(KeyHash),
    /// Nothing of the table is left in the tablets that are ours.
    Done,
}

impl Worker {
    /// Begins a turn: nothing of the store is held from before, the newest tablets count, and the
    /// clock is not behind `now`. Also what a worker does first after sleeping.
    pub fn begin_turn(&mut self, now: UnixMillis) {
        unimplemented!()
    }

    /// The worker holds nothing and begins no operation before its next turn: nobody waits for it.
    pub fn sleep(&mut self) {
        unimplemented!()
    }

    /// Reads one record: `f` sees it, or that there is none.
    pub fn read_one<T>(
        &mut self,
        table: TableId,
        key: Key<'_>,
        f: impl FnOnce(Option<Record<'_>>) -> T,
    ) -> Result<T, Stall> {
        unimplemented!()
    }

    /// Reads several records as they were at one moment.
    pub fn read<T>(
        &mut self,
        table: TableId,
        keys: &[Key<'_>],
        f: impl FnOnce(&[Option<Record<'_>>]) -> T,
    ) -> Result<T, Stall> {
        unimplemented!()
    }

    /// Lets `f` see the records and decide what becomes of them, all in one moment. If the result
    /// is a stall, nothing has changed, even if `f` has run. A key that is given twice is seen
    /// twice; the last of its changes counts.
    pub fn update<T>(
        &mut self,
        table: TableId,
        keys: &[Key<'_>],
        need: Need,
        f: impl FnOnce(&[Option<Record<'_>>], &mut Changes<'_>) -> T,
    ) -> Result<T, Stall> {
        unimplemented!()
    }

    /// Gives a key a value, whatever it had.
    pub fn put(
        &mut self,
        table: TableId,
        key: Key<'_>,
        value: &[u8],
        expiry: Option<UnixMillis>,
    ) -> Result<(), Stall> {
        unimplemented!()
    }

    /// Replays a batch from an offset on, at most so many records.
    pub fn replay(
        &mut self,
        arrival: &Arc<Arrival>,
        batch: &[u8],
        from: usize,
        entries_max: usize,
    ) -> Result<Replayed, ReplayError> {
        unimplemented!()
    }

    /// What this worker has replayed of a migration joins the log.
    pub fn splice(&mut self, migration: MigrationId) {
        unimplemented!()
    }

    /// Bytes that this worker has replayed of a migration and not spliced.
    pub fn side_bytes(&self, migration: MigrationId) -> u64 {
        unimplemented!()
    }

    /// Appends to `out` (as a `wire::batch`) every record of all tables with a hash from `cursor`
    /// up to, not including, the hash that is returned; `None`: up to the end of the range. Ends
    /// with the bucket in which `out` has grown by `bytes_max`. May append a few records from
    /// beyond.
    pub fn collect(
        &mut self,
        range: HashRange,
        cursor: KeyHash,
        bytes_max: usize,
        out: &mut Vec<u8>,
    ) -> Option<KeyHash> {
        unimplemented!()
    }

    /// Appends to `out` every record with this hash. `Ok(false)`: there is none.
    pub fn collect_hash(
        &mut self,
        table: TableId,
        hash: KeyHash,
        out: &mut Vec<u8>,
    ) -> Result<bool, Stall> {
        unimplemented!()
    }

    /// Drops every record of all tables in the range, from `cursor` on, in a bounded step. Returns
    /// where to go on; `None`: nothing is left.
    pub fn forget(
        &mut self,
        range: HashRange,
        cursor: KeyHash,
        buckets_max: usize,
    ) -> Option<KeyHash> {
        unimplemented!()
    }

    /// Reclaims records whose expiry has come, of one table from `cursor` on. Returns where to go
    /// on; `None`: at the end.
    pub fn expire(
        &mut self,
        table: TableId,
        cursor: KeyHash,
        buckets_max: usize,
    ) -> Option<KeyHash> {
        unimplemented!()
    }

    /// One quantum of cleaning. `false`: there is nothing to clean.
    pub fn clean(&mut self) -> bool {
        unimplemented!()
    }

    /// Drops up to `max` tombstones that the progress has passed. `false`: there is none left.
    pub fn sweep(&mut self, arrival: &Arrival, max: usize) -> bool {
        unimplemented!()
    }

    /// Shows every record of a table in tablets that are ours, from `cursor` on, in a bounded
    /// step. Returns where to go on; `None`: at the end.
    pub fn scan(
        &mut self,
        table: TableId,
        cursor: KeyHash,
        buckets_max: usize,
        f: impl FnMut(&[u8], Record<'_>),
    ) -> Result<Option<KeyHash>, Stall> {
        unimplemented!()
    }

    /// Drops every record of a table in the tablets that hold its operations
    /// ([`super::Tablet::flushing`]), from `cursor` on, in a bounded step. To be called when a
    /// grace period has passed since those were published.
    pub fn flush_step(&mut self, table: TableId, cursor: KeyHash, buckets_max: usize) -> Flushed {
        unimplemented!()
    }
}
