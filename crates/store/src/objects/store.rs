//! What all reactors of a server share: the log, an index per table, the tablets, and the two
//! numbers that never go back: the version counter and the expiry clock.

use super::batch::Publications;
use super::expected::Expected;
use super::tablets::TabletMap;
use super::worker::Worker;
use crate::index::{Index, Slab};
use crate::log::{GracePeriod, Log, LogConfig, LogError, Usage};
use crate::sync::atomic::{AtomicU64, Ordering};
use arc_swap::ArcSwap;
use crossbeam_utils::CachePadded;
use std::fmt;
use std::sync::{Arc, OnceLock};
use types::limits::TABLES_MAX;
use types::{HashSeed, KeyHash, ReactorId, TableId, UnixMillis, Version};
use wire::replica::Stamp;

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
    /// Whether the log will be read after a crash; see [`LogConfig::durable`].
    pub durable: bool,
    /// Size of the log's segments; `None`: by the memory that there is.
    pub segment_bytes: Option<usize>,
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
    pub log: Usage,
    /// Of the indexes.
    pub index_bytes: u64,
}

/// The store of one server.
pub struct Store {
    pub(super) log: Arc<Log>,
    seed: HashSeed,
    slab: Arc<Slab>,
    tables: [OnceLock<Index>; TABLES_MAX],
    pub(super) publications: CachePadded<Publications>,
    tablets: ArcSwap<TabletMap>,
    /// Rises with each map published, after it can be loaded.
    generation: CachePadded<AtomicU64>,
    /// The highest version drawn or promised not to be drawn.
    version: CachePadded<AtomicU64>,
    /// Milliseconds since 1970.
    clock: CachePadded<AtomicU64>,
    /// The highest floor of the tablets' clocks.
    clock_floor: AtomicU64,
    /// Records reclaimed since their time had come.
    pub(super) expired: CachePadded<AtomicU64>,
    /// Of the log of before a crash.
    pub(super) expected: Expected,
}

impl Store {
    /// An empty store that holds no tablet.
    pub fn new(config: StoreConfig) -> Result<Arc<Store>, StoreError> {
        let log = Log::new(&LogConfig {
            memory_bytes: config.memory_bytes,
            reactors: config.reactors,
            huge_pages: config.huge_pages,
            durable: config.durable,
            segment_bytes: config.segment_bytes,
        })?;
        Ok(Arc::new(Store {
            slab: Slab::new(Arc::clone(&log)),
            log,
            seed: config.seed,
            tables: Default::default(),
            publications: CachePadded::new(Publications::new()),
            tablets: ArcSwap::from_pointee(TabletMap::default()),
            generation: CachePadded::new(AtomicU64::new(0)),
            version: CachePadded::new(AtomicU64::new(0)),
            clock: CachePadded::new(AtomicU64::new(0)),
            clock_floor: AtomicU64::new(0),
            expired: CachePadded::new(AtomicU64::new(0)),
            expected: Expected::default(),
        }))
    }

    /// The way into the store for one reactor; each has one.
    pub fn worker(self: &Arc<Self>, reactor: ReactorId) -> Worker {
        Worker::new(Arc::clone(self), reactor)
    }

    /// The secret by which keys are hashed.
    pub fn seed(&self) -> &HashSeed {
        &self.seed
    }

    /// The log, for preparing memory ahead of its use and for setting some aside.
    pub fn log(&self) -> &Arc<Log> {
        &self.log
    }

    /// Replaces all tablets. Workers see it at the top of their next turn; a
    /// [`Store::grace_period`] begun afterwards tells when all have.
    pub fn publish(&self, tablets: TabletMap) {
        let floors = tablets.iter().map(|tablet| tablet.clock.floor().0);
        let floor = floors.max().unwrap_or(0);
        // Not behind what is judged by either map while some workers use the older one.
        self.clock_floor.fetch_max(floor, Ordering::AcqRel);
        self.tablets.store(Arc::new(tablets));
        self.generation.fetch_add(1, Ordering::Release);
    }

    /// The tablets last published.
    pub fn tablets(&self) -> Arc<TabletMap> {
        self.tablets.load_full()
    }

    /// Rises with each map published.
    #[inline]
    pub(super) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Begins to wait for every worker to begin a turn, or to be asleep.
    pub fn grace_period(&self) -> GracePeriod {
        self.log.reclamation().grace_period()
    }

    /// Whether that has happened.
    pub fn is_over(&self, period: &GracePeriod) -> bool {
        self.log.reclamation().is_over(period)
    }

    /// From here on every version drawn is above this one.
    pub fn raise_version(&self, floor: Version) {
        self.version.fetch_max(floor.0, Ordering::AcqRel);
    }

    /// About so many bytes of the log of before a crash will be entered ([`super::Worker::recover`]). A
    /// hint that spares the index much of its growing.
    pub fn foresee(&self, bytes: u64) {
        self.expected.foresee(bytes);
    }

    /// Not below any version that the store holds.
    pub fn version(&self) -> Version {
        Version(self.version.load(Ordering::Acquire))
    }

    /// The version of a write. Called while the key's leaf is locked, and only then.
    #[inline]
    pub(super) fn draw_version(&self) -> Version {
        Version(self.version.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// Expiry is judged as if it were at least this time, in all ranges: by this server's own clock
    /// and no other. The clock of another server concerns the range that came from there alone
    /// ([`super::RangeClock`]).
    #[inline]
    pub fn raise_clock(&self, at: UnixMillis) {
        if self.clock.load(Ordering::Relaxed) < at.0 {
            self.clock.fetch_max(at.0, Ordering::AcqRel);
        }
    }

    /// The latest time by which expiry has been judged. Loaded anew for each judgment: a worker
    /// that began its turn earlier must not see a record that another has declared expired.
    #[inline]
    pub fn clock(&self) -> UnixMillis {
        UnixMillis(self.clock.load(Ordering::Acquire))
    }

    /// Not behind the clock of any range: [`super::RangeClock`].
    pub fn latest_clock(&self) -> UnixMillis {
        self.clock().max(UnixMillis(self.clock_floor.load(Ordering::Acquire)))
    }

    /// The version counter and the latest clock, for what is written about this store's log.
    pub fn stamp(&self) -> Stamp {
        Stamp { version: self.version(), clock: self.latest_clock() }
    }

    /// Records that were reclaimed since their time had come.
    pub fn expired(&self) -> u64 {
        self.expired.load(Ordering::Relaxed)
    }

    /// The table's index, if it has one.
    #[inline]
    pub(super) fn index(&self, table: TableId) -> Option<&Index> {
        self.tables[usize::from(table.0)].get()
    }

    /// The table's index, made when first used.
    #[inline]
    pub(super) fn index_or_new(&self, table: TableId) -> &Index {
        self.tables[usize::from(table.0)].get_or_init(|| Index::new(Arc::clone(&self.slab)))
    }

    /// Every table that has an index, in order.
    pub(super) fn indexes(&self) -> impl Iterator<Item = (TableId, &Index)> {
        let numbered = self.tables.iter().enumerate();
        numbered.filter_map(|(table, index)| Some((TableId(table as u8), index.get()?)))
    }

    /// How much memory is used for what.
    pub fn usage(&self) -> StoreUsage {
        let index_bytes = self.indexes().map(|(_, index)| index.memory()).sum();
        StoreUsage { log: self.log.usage(), index_bytes }
    }
}

/// The hash behind this one; `None` behind the highest.
pub(super) fn behind(hash: KeyHash) -> Option<KeyHash> {
    hash.0.checked_add(1).map(KeyHash)
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").field("version", &self.version()).finish_non_exhaustive()
    }
}
