//! Where the configuration is kept: a small map from text keys to bytes, changed by compare-and-swap.
//!
//! The one idea: every key carries the *revision* at which it was last written, revisions come from
//! one counter that only rises, and a transaction names the revisions it has read. So whoever
//! writes on top of something stale is told, whatever it was that changed. This is the part of
//! etcd's interface that a leader needs, no more.
//!
//! Invariants, which `tests/meta_store.rs` checks on every implementation:
//! - a transaction applies whole or not at all, and when it is reported as committed it survives
//!   whatever the implementation survives;
//! - a key that is absent has [`Revision::ABSENT`]; a key written again after a removal gets a
//!   higher revision than it ever had;
//! - [`MetaStore::list`] is in ascending order of key.

mod file;
mod memory;

pub use file::FileStore;
pub use memory::MemoryStore;

use std::error::Error;

/// A map with revisions. One writer at a time is enough: calls block until they are done.
pub trait MetaStore {
    /// What stands under a key.
    fn read(&self, key: &str) -> Result<Option<Entry>, StoreError>;

    /// Everything whose key begins with `prefix`, in ascending order of key.
    fn list(&self, prefix: &str) -> Result<Vec<(String, Entry)>, StoreError>;

    /// Carries out all writes if all expectations hold, else nothing.
    fn transact(&mut self, transaction: &Transaction) -> Result<Verdict, StoreError>;
}

impl<S: MetaStore + ?Sized> MetaStore for Box<S> {
    fn read(&self, key: &str) -> Result<Option<Entry>, StoreError> {
        (**self).read(key)
    }

    fn list(&self, prefix: &str) -> Result<Vec<(String, Entry)>, StoreError> {
        (**self).list(prefix)
    }

    fn transact(&mut self, transaction: &Transaction) -> Result<Verdict, StoreError> {
        (**self).transact(transaction)
    }
}

/// Number of a committed transaction, from 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Revision(pub u64);

impl Revision {
    /// What a key that is not there is expected to have.
    pub const ABSENT: Revision = Revision(0);
}

/// What stands under a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The transaction that wrote it.
    pub revision: Revision,
    /// As written.
    pub value: Vec<u8>,
}

/// Expectations and writes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Transaction {
    /// Keys and the revisions that they must have.
    pub expected: Vec<(String, Revision)>,
    /// Keys and their new values; `None` removes the key. A key stands here at most once.
    pub writes: Vec<(String, Option<Vec<u8>>)>,
}

/// What became of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// All writes stand, and have this revision.
    Committed(Revision),
    /// This key had another revision than expected. Nothing was written.
    Conflict(String),
}

/// The store cannot do what it is for. Whether the last transaction stands is unknown: the caller
/// opens the store again and reads.
#[derive(Debug, thiserror::Error)]
#[error("the metadata store failed: {0}")]
pub struct StoreError(#[source] pub Box<dyn Error + Send + Sync>);
