//! What all reactors of a server share.

use super::tablets::TabletMap;
use super::worker::Worker;
use crate::log::{GracePeriod, Log, LogError};
use std::sync::Arc;
use types::{HashRange, HashSeed, ReactorId, Slot, TableId, UnixMillis, Version};

/// How a store is made.
#[derive(Clone, Debug)]
pub struct StoreConfig {
    /// Memory for records and index together.
    pub memory_bytes: usize,
    /// Workers there will be.
    pub reactors: u16,
    /// The cluster's secret for hashing keys.
    pub seed: HashSeed,
    /// Whether to ask the operating system for huge pages.
    pub huge_pages: bool,
}

/// Why a store cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The log cannot be made.
    #[error(transparent)]
    Log(#[from] LogError),
}

/// How much memory is used for what.
#[derive(Clone, Debug)]
pub struct StoreUsage {
    /// Of the log and the whole arena.
    pub log: crate::log::Usage,
    /// Of the indexes, which lies in the arena too.
    pub index_bytes: u64,
}

/// The store of one server.
pub struct Store {
    log: Arc<Log>,
}

impl Store {
    /// An empty store that holds no tablet.
    pub fn new(config: StoreConfig) -> Result<Arc<Store>, StoreError> {
        unimplemented!()
    }

    /// The way into the store for one reactor; each has one.
    pub fn worker(self: &Arc<Self>, reactor: ReactorId) -> Worker {
        unimplemented!()
    }

    /// The secret by which keys are hashed.
    pub fn seed(&self) -> &HashSeed {
        unimplemented!()
    }

    /// The log, for preparing memory ahead of its use.
    pub fn log(&self) -> &Arc<Log> {
        &self.log
    }

    /// Replaces all tablets. Workers see it at the top of their next turn; a
    /// [`Store::grace_period`] begun afterwards tells when all have.
    pub fn publish(&self, tablets: TabletMap) {
        unimplemented!()
    }

    /// The tablets last published.
    pub fn tablets(&self) -> Arc<TabletMap> {
        unimplemented!()
    }

    /// Begins to wait for every worker to begin a turn, or to be asleep.
    pub fn grace_period(&self) -> GracePeriod {
        unimplemented!()
    }

    /// Whether that has happened.
    pub fn is_over(&self, period: &GracePeriod) -> bool {
        unimplemented!()
    }

    /// From here on every version drawn is above this one.
    pub fn raise_version(&self, floor: Version) {
        unimplemented!()
    }

    /// Not below any version that the store holds.
    pub fn version(&self) -> Version {
        unimplemented!()
    }

    /// Expiry is judged as if it were at least this time.
    pub fn raise_clock(&self, at: UnixMillis) {
        unimplemented!()
    }

    /// The latest time by which expiry has been judged.
    pub fn clock(&self) -> UnixMillis {
        unimplemented!()
    }

    /// Records per table and slot of a range, ascending, without those that have none. A slot that
    /// the range cuts counts whole.
    pub fn counts(&self, range: HashRange) -> Vec<(TableId, Slot, u32)> {
        unimplemented!()
    }

    /// Bytes of the log that the range's records take, counted as [`Store::counts`] does.
    pub fn range_bytes(&self, range: HashRange) -> u64 {
        unimplemented!()
    }

    /// Records of a table in tablets that are ours. Approximate while records arrive or go.
    pub fn table_records(&self, table: TableId) -> u64 {
        unimplemented!()
    }

    /// Records of a table in one slot.
    pub fn slot_records(&self, table: TableId, slot: Slot) -> u64 {
        unimplemented!()
    }

    /// Whether no record, of whatever table, lies in the range.
    pub fn is_empty(&self, range: HashRange) -> bool {
        unimplemented!()
    }

    /// How much memory is used for what.
    pub fn usage(&self) -> StoreUsage {
        unimplemented!()
    }
}
