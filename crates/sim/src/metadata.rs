//! The coordinators' metadata store: the real in-memory store, with injected failures.
//!
//! A failed call leaves open if the transaction was applied. An injected failure therefore
//! happens either before the transaction, or after it (the acknowledgement is lost).
//!
//! In a share of the runs a commit takes time. A coordinator that ends meanwhile leaves open, too,
//! if the transaction was applied: the store applies it at the beginning or at the end.

use coordinator::{MemoryStore, MetaEntry, MetaStore, MetaStoreError, Transaction, Verdict};
use fastrand::Rng;
use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

/// Time of a commit in runs with a slow store, in microseconds.
const COMMIT_MICROS: Range<u64> = 0..50_000;

/// One run in this many has a slow store.
const SLOW_ONE_IN: u32 = 4;

/// Mixed into the seed for the separate random numbers of commit times.
const SLOW: u64 = 0x736c_6f77_636f_6d6d;

/// Handle of the store. Clones share everything.
#[derive(Clone)]
pub(crate) struct FaultyMetaStore {
    store: MemoryStore,
    failures: Rc<RefCell<StoreFailures>>,
}

struct StoreFailures {
    rng: Rng,
    /// One call in this many fails; 0: none.
    one_in: u32,
    /// For a planted bug: transactions are applied without checking their expectations.
    is_blind: bool,
}

/// Times of commits in a run with a slow store.
pub(crate) struct CommitTimes {
    rng: Rng,
}

impl CommitTimes {
    /// Draws if the store is slow. The numbers come from a separate generator, so that other runs
    /// stay the same.
    pub(crate) fn draw(seed: u64) -> Option<CommitTimes> {
        let mut rng = Rng::with_seed(seed ^ SLOW);
        (rng.u32(..SLOW_ONE_IN) == 0).then_some(CommitTimes { rng })
    }

    /// Draws the time of a commit.
    pub(crate) fn draw_time(&mut self) -> Duration {
        Duration::from_micros(self.rng.u64(COMMIT_MICROS))
    }

    /// Draws if a transaction is applied at the beginning of this time.
    pub(crate) fn draw_is_applied_first(&mut self) -> bool {
        self.rng.bool()
    }
}

impl FaultyMetaStore {
    /// Creates an empty store without failures.
    pub(crate) fn new(seed: u64, is_blind: bool) -> FaultyMetaStore {
        let failures = StoreFailures { rng: Rng::with_seed(seed), one_in: 0, is_blind };
        FaultyMetaStore { store: MemoryStore::new(), failures: Rc::new(RefCell::new(failures)) }
    }

    /// Creates an empty store with the failures of this one.
    pub(crate) fn empty(&self) -> FaultyMetaStore {
        FaultyMetaStore { store: MemoryStore::new(), failures: self.failures.clone() }
    }

    /// Copies the contents, as a backup tool does.
    pub(crate) fn copy(&self) -> FaultyMetaStore {
        FaultyMetaStore { store: self.store.copy(), failures: self.failures.clone() }
    }

    /// Returns the number of the newest transaction.
    pub(crate) fn newest(&self) -> u64 {
        self.store.newest().0
    }

    /// Lets one call in this many fail from now on; 0: none.
    pub(crate) fn set_failures(&self, one_in: u32) {
        self.failures.borrow_mut().one_in = one_in;
    }

    fn fails(&self) -> bool {
        let failures = &mut *self.failures.borrow_mut();
        failures.one_in > 0 && failures.rng.u32(..failures.one_in) == 0
    }

    fn check(&self) -> Result<(), MetaStoreError> {
        if self.fails() { Err(MetaStoreError("drawn".into())) } else { Ok(()) }
    }
}

impl MetaStore for FaultyMetaStore {
    fn read(&self, key: &str) -> Result<Option<MetaEntry>, MetaStoreError> {
        self.check()?;
        self.store.read(key)
    }

    fn list(&self, prefix: &str) -> Result<Vec<(String, MetaEntry)>, MetaStoreError> {
        self.check()?;
        self.store.list(prefix)
    }

    fn transact(&mut self, transaction: &Transaction) -> Result<Verdict, MetaStoreError> {
        self.check()?;
        let mut transaction = transaction.clone();
        if self.failures.borrow().is_blind {
            transaction.expected.clear();
        }
        let verdict = self.store.transact(&transaction)?;
        self.check()?;
        Ok(verdict)
    }
}
