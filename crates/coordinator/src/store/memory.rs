//! The metadata store in memory: for a server that is its own coordinator, and for simulations.
//!
//! Clones share one map. A test can thus crash a coordinator and open the same store with another
//! one.

use super::{Entry, MetaStore, Revision, StoreError, Transaction, Verdict};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A metadata store that lives as long as its last clone.
#[derive(Clone, Debug, Default)]
pub struct MemoryStore {
    shared: Arc<Mutex<Contents>>,
}

#[derive(Clone, Debug, Default)]
struct Contents {
    revision: Revision,
    entries: BTreeMap<String, Entry>,
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

    fn contents(&self) -> MutexGuard<'_, Contents> {
        // No code below panics within a transaction, so a poisoned lock still guards a consistent
        // map.
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl MetaStore for MemoryStore {
    fn read(&self, key: &str) -> Result<Option<Entry>, StoreError> {
        Ok(self.contents().entries.get(key).cloned())
    }

    fn list(&self, prefix: &str) -> Result<Vec<(String, Entry)>, StoreError> {
        let contents = self.contents();
        let from_prefix = contents.entries.range(prefix.to_owned()..);
        let matching = from_prefix.take_while(|(key, _)| key.starts_with(prefix));
        Ok(matching.map(|(key, entry)| (key.clone(), entry.clone())).collect())
    }

    fn transact(&mut self, transaction: &Transaction) -> Result<Verdict, StoreError> {
        let mut contents = self.contents();
        for (key, expected) in &transaction.expected {
            let found = contents.entries.get(key).map_or(Revision::ABSENT, |entry| entry.revision);
            if found != *expected {
                return Ok(Verdict::Conflict(key.clone()));
            }
        }
        let revision = Revision(contents.revision.0 + 1);
        contents.revision = revision;
        for (key, value) in &transaction.writes {
            match value {
                Some(value) => {
                    let entry = Entry { revision, value: value.clone() };
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
