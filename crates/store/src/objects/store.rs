//! The [`Store`]: the state that all reactors of a server share. It consists of the log, one
//! index per table, the tablets, and two monotonic numbers: the version counter and the expiry
//! clock.

use super::estimate::RecordEstimate;
use super::publications::Publications;
use super::sketch::AccessSketch;
use super::tablets::TabletMap;
use crate::index::{Index, Slab};
use crate::log::{GracePeriod, Log, LogConfig, LogError, Usage};
use crate::sync::atomic::{AtomicU64, Ordering};
use arc_swap::{ArcSwap, ArcSwapOption};
use crossbeam_utils::CachePadded;
use std::sync::{Arc, OnceLock};
use types::limits::TABLES_MAX;
use types::{HashSeed, KeyHash, TableId, UnixMillis, Version};
use wire::replica::Stamp;

/// Configuration of a store.
#[derive(Clone, Debug)]
pub struct StoreConfig {
    /// Memory for records and index together, in bytes.
    pub memory_bytes: usize,
    /// Number of workers.
    pub reactors: u16,
    /// The cluster's secret seed of the key hash.
    pub seed: HashSeed,
    /// Set if the store requests huge pages from the operating system.
    pub huge_pages: bool,
    /// Set if the log is read again after a crash; see [`LogConfig::durable`].
    pub durable: bool,
    /// Segment size of the log in bytes; `None` derives it from the memory size.
    pub segment_bytes: Option<usize>,
}

/// The reason why a store cannot be created.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The log cannot be created.
    #[error(transparent)]
    Log(#[from] LogError),
}

/// Memory usage of a store.
#[derive(Clone, Debug)]
pub struct StoreUsage {
    /// Usage of the log and of the whole arena.
    pub log: Usage,
    /// Bytes that the indexes use.
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
    /// Accesses of clients; `None` if no policy of eviction needs them.
    sketch: ArcSwapOption<AccessSketch>,
    /// Number of published maps and sketches. Rises after the new one can be loaded.
    generation: CachePadded<AtomicU64>,
    /// Highest version that was drawn or ruled out for later draws.
    version: CachePadded<AtomicU64>,
    /// Expiry clock, in milliseconds since 1970.
    clock: CachePadded<AtomicU64>,
    /// Highest floor of the tablets' clocks.
    clock_floor: AtomicU64,
    /// Number of expired records that were reclaimed.
    pub(super) expired: CachePadded<AtomicU64>,
    /// Number of records that were evicted.
    pub(super) evicted: CachePadded<AtomicU64>,
    /// Expected size of the log that is recovered after a crash.
    pub(super) estimate: RecordEstimate,
}

impl Store {
    /// Creates an empty store without tablets.
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
            sketch: ArcSwapOption::empty(),
            generation: CachePadded::new(AtomicU64::new(0)),
            version: CachePadded::new(AtomicU64::new(0)),
            clock: CachePadded::new(AtomicU64::new(0)),
            clock_floor: AtomicU64::new(0),
            expired: CachePadded::new(AtomicU64::new(0)),
            evicted: CachePadded::new(AtomicU64::new(0)),
            estimate: RecordEstimate::default(),
        }))
    }

    /// Returns the secret seed of the key hash.
    pub fn seed(&self) -> &HashSeed {
        &self.seed
    }

    /// Returns the log, for preparing memory ahead of its use and for reservations.
    pub fn log(&self) -> &Arc<Log> {
        &self.log
    }

    /// Replaces all tablets. Each worker adopts them at the start of its next turn. A
    /// [`Store::grace_period`] that begins afterwards ends when all workers have.
    pub fn publish(&self, tablets: TabletMap) {
        let floors = tablets.iter().map(|tablet| tablet.clock.floor().0);
        let floor = floors.max().unwrap_or(0);
        // The floor covers both maps while some workers still use the older one.
        self.clock_floor.fetch_max(floor, Ordering::AcqRel);
        self.tablets.store(Arc::new(tablets));
        self.generation.fetch_add(1, Ordering::Release);
    }

    /// Returns the tablets that were published last.
    pub fn tablets(&self) -> Arc<TabletMap> {
        self.tablets.load_full()
    }

    /// Replaces the access sketch. Each worker adopts it at the start of its next turn.
    pub(super) fn replace_sketch(&self, sketch: Option<Arc<AccessSketch>>) {
        self.sketch.store(sketch);
        self.generation.fetch_add(1, Ordering::Release);
    }

    /// Returns the newest access sketch.
    pub(super) fn sketch(&self) -> Option<Arc<AccessSketch>> {
        self.sketch.load_full()
    }

    /// Returns the number of published maps and sketches.
    #[inline]
    pub(super) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Begins a grace period: it ends when every worker has begun a turn or was asleep.
    pub fn grace_period(&self) -> GracePeriod {
        self.log.reclamation().grace_period()
    }

    /// Returns whether the grace period has ended.
    pub fn is_over(&self, period: &GracePeriod) -> bool {
        self.log.reclamation().is_over(period)
    }

    /// Raises the version counter: every version drawn from now on is above `floor`.
    pub fn raise_version(&self, floor: Version) {
        self.version.fetch_max(floor.0, Ordering::AcqRel);
    }

    /// Announces the approximate size, in bytes, of the log that is recovered after a crash
    /// ([`super::Worker::recover`]). The index uses this hint to avoid most of its growth.
    pub fn foresee(&self, bytes: u64) {
        self.estimate.foresee(bytes);
    }

    /// Returns the version counter. No version in the store is higher.
    pub fn version(&self) -> Version {
        Version(self.version.load(Ordering::Acquire))
    }

    /// Draws a number that is higher than the version of every write so far, and that no write gets.
    pub fn draw_id(&self) -> Version {
        self.draw_version()
    }

    /// Draws the version of a write. The caller must hold the lock of the key's leaf.
    #[inline]
    pub(super) fn draw_version(&self) -> Version {
        self.draw_versions(1)
    }

    /// Draws this many consecutive versions of one atomic write, and returns the first. The caller
    /// must hold the locks of the keys' leaves.
    #[inline]
    pub(super) fn draw_versions(&self, count: u64) -> Version {
        Version(self.version.fetch_add(count, Ordering::Relaxed) + 1)
    }

    /// Raises the expiry clock of all ranges to at least this time. Only the server's own clock
    /// is passed here. Another server's clock affects only the range that came from there
    /// ([`super::RangeClock`]).
    #[inline]
    pub fn raise_clock(&self, at: UnixMillis) {
        if self.clock.load(Ordering::Relaxed) < at.0 {
            self.clock.fetch_max(at.0, Ordering::AcqRel);
        }
    }

    /// Returns the expiry clock. It is loaded anew for each decision: a worker that began its
    /// turn earlier must not return a record that another worker has treated as expired.
    #[inline]
    pub fn clock(&self) -> UnixMillis {
        UnixMillis(self.clock.load(Ordering::Acquire))
    }

    /// Returns a time that is not behind the clock of any range: see [`super::RangeClock`].
    pub fn latest_clock(&self) -> UnixMillis {
        self.clock().max(UnixMillis(self.clock_floor.load(Ordering::Acquire)))
    }

    /// Returns the version counter and the latest clock, for the headers of log pieces.
    pub fn stamp(&self) -> Stamp {
        Stamp { version: self.version(), clock: self.latest_clock() }
    }

    /// Returns how many expired records were reclaimed.
    pub fn expired(&self) -> u64 {
        self.expired.load(Ordering::Relaxed)
    }

    /// Returns the table's index, if it has one.
    #[inline]
    pub(super) fn index(&self, table: TableId) -> Option<&Index> {
        self.tables[usize::from(table.0)].get()
    }

    /// Returns the table's index and creates it on first use.
    #[inline]
    pub(super) fn index_or_new(&self, table: TableId) -> &Index {
        self.tables[usize::from(table.0)].get_or_init(|| Index::new(Arc::clone(&self.slab)))
    }

    /// Returns every table that has an index, in order.
    pub(super) fn indexes(&self) -> impl Iterator<Item = (TableId, &Index)> {
        let numbered = self.tables.iter().enumerate();
        numbered.filter_map(|(table, index)| Some((TableId(table as u8), index.get()?)))
    }

    /// Returns the memory usage.
    pub fn usage(&self) -> StoreUsage {
        let index_bytes = self.indexes().map(|(_, index)| index.memory()).sum();
        StoreUsage { log: self.log.usage(), index_bytes }
    }
}

/// Returns the next higher hash; `None` after the highest.
pub(super) fn behind(hash: KeyHash) -> Option<KeyHash> {
    hash.0.checked_add(1).map(KeyHash)
}
