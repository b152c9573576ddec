//! The metadata store in memory: for a server that is its own coordinator, and for simulations.
//!
//! Clones share one map. A test can thus crash a coordinator and open the same store with another
//! one.

use super::{MetaEntry, MetaStore, MetaStoreError, Revision, Transaction, Verdict};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A metadata store that lives as long as its last clone.
#[derive(Clone, Debug, Default)]
pub struct MemoryStore {
    shared: Arc<Mutex<SharedEntries>>,
}

#[derive(Clone, Debug, Default)]
struct SharedEntries {
    revision: Revision,
    entries: BTreeMap<String, MetaEntry>,
}

impl MemoryStore {
    /// Returns an empty store.
    pub fn new() -> MemoryStore {
        MemoryStore::default()
    }

    /// Returns an independent copy of the store.
    pub fn copy(&self) -> MemoryStore {
        let contents = self.contents().clone();
        MemoryStore { shared: Arc::new(Mutex::new(contents)) }
    }

    /// Returns the newest transaction.
    pub fn newest(&self) -> Revision {
        self.contents().revision
    }

    fn contents(&self) -> MutexGuard<'_, SharedEntries> {
        // No code below panics within a transaction, so a poisoned lock still guards a consistent
        // map.
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl MetaStore for MemoryStore {
    fn read(&self, key: &str) -> Result<Option<MetaEntry>, MetaStoreError> {
        Ok(self.contents().entries.get(key).cloned())
    }

    fn list(&self, prefix: &str) -> Result<Vec<(String, MetaEntry)>, MetaStoreError> {
        let contents = self.contents();
        let from_prefix = contents.entries.range(prefix.to_owned()..);
        let matching = from_prefix.take_while(|(key, _)| key.starts_with(prefix));
        Ok(matching.map(|(key, entry)| (key.clone(), entry.clone())).collect())
    }

    fn transact(&mut self, transaction: &Transaction) -> Result<Verdict, MetaStoreError> {
        let mut contents = self.contents();
        for (key, expected) in &transaction.expected {
            let found = contents.entries.get(key).map_or(Revision::ABSENT, |entry| entry.revision);
            if found != *expected {
                return Ok(Verdict::Conflict(key.clone()));
            }
        }
        let revision = Revision(contents.revision.0 + 1);
        let is_newest = contents.entries.values().all(|entry| entry.revision < revision);
        debug_assert!(is_newest, "an entry is newer than the newest transaction");
        contents.revision = revision;
        for (key, value) in &transaction.writes {
            match value {
                Some(value) => {
                    let entry = MetaEntry { revision, value: value.clone() };
                    contents.entries.insert(key.clone(), entry);
                }
                None => {
                    contents.entries.remove(key);
                }
            }
        }
        Ok(Verdict::Committed(revision))
    }
}
