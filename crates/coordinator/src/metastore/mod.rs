//! The metadata store: a small map from text keys to bytes, changed by compare-and-swap.
//!
//! Each key has the *revision* at which it was last written. Revisions come from one rising
//! counter. A transaction names the revisions that it has read, so a write based on stale data is
//! refused. This is the part of etcd's interface that a leader needs.
//!
//! `coordinator-server` has an implementation in a file. Invariants, which its tests check on every
//! implementation:
//! - A transaction is applied completely or not at all. Once reported as committed, it is as
//!   durable as the implementation promises.
//! - An absent key has [`Revision::ABSENT`]. A key written again after a removal gets a higher
//!   revision than it ever had.
//! - [`MetaStore::list`] returns keys in ascending order.

mod memory;

pub use memory::MemoryStore;

use std::error::Error;

/// A map with revisions. It has one writer at a time; calls block until they are done.
pub trait MetaStore {
    /// Returns the entry at a key.
    fn read(&self, key: &str) -> Result<Option<MetaEntry>, MetaStoreError>;

    /// Returns all entries whose key begins with `prefix`, in ascending order of key.
    fn list(&self, prefix: &str) -> Result<Vec<(String, MetaEntry)>, MetaStoreError>;

    /// Executes all writes if all expectations hold, otherwise none.
    fn transact(&mut self, transaction: &Transaction) -> Result<Verdict, MetaStoreError>;
}

impl<S: MetaStore + ?Sized> MetaStore for Box<S> {
    fn read(&self, key: &str) -> Result<Option<MetaEntry>, MetaStoreError> {
        (**self).read(key)
    }

    fn list(&self, prefix: &str) -> Result<Vec<(String, MetaEntry)>, MetaStoreError> {
        (**self).list(prefix)
    }

    fn transact(&mut self, transaction: &Transaction) -> Result<Verdict, MetaStoreError> {
        (**self).transact(transaction)
    }
}

/// Number of a committed transaction, from 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Revision(pub u64);

impl Revision {
    /// The expected revision of an absent key.
    pub const ABSENT: Revision = Revision(0);
}

/// The content of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetaEntry {
    /// The transaction that wrote the value.
    pub revision: Revision,
    /// The value as written.
    pub value: Vec<u8>,
}

/// Expectations and writes that are applied together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Transaction {
    /// Keys with their expected revisions.
    pub expected: Vec<(String, Revision)>,
    /// Keys with their new values; `None` removes the key. Each key occurs at most once.
    pub writes: Vec<(String, Option<Vec<u8>>)>,
}

/// The result of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// All writes were executed, with this revision.
    Committed(Revision),
    /// This key had another revision than expected. Nothing was written.
    Conflict(String),
}

/// The failure of a store. The outcome of the last transaction is unknown: the caller must open
/// the store again and read.
#[derive(Debug, thiserror::Error)]
#[error("the metadata store failed: {0}")]
pub struct MetaStoreError(#[source] pub Box<dyn Error + Send + Sync>);
