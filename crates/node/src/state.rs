//! State of one server that its components use.

use crate::clock::ServerClock;
use crate::completion_sweep::CompletionSweep;
use crate::demands::SharedDemands;
use crate::eviction_state::EvictionState;
use crate::expiry::ExpiryScan;
use crate::field_sweep::FieldSweep;
use crate::key_counts::KeyCounts;
use crate::orders::SortedOrders;
use crate::page_sweep::PageSweep;
use crate::recovering::RecoveryCounts;
use crate::replay_warnings::ReplayWarnings;
use crate::replicated::{LogPlacement, Mode, Replication};
use crate::settings::{LiveSettings, NodeSettings, ServerIdentity};
use crate::tablets::{self, MayBegin};
use crate::work::WorkQueue;
use arc_swap::ArcSwap;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;
use store::{Store, Tablet, TabletMap};
use types::{
    ClusterId, HashRange, Instant, LeaseId, OwnershipEpoch, ReactorId, ServerId, Slot, TableId,
    UnixMillis, Version,
};
use wire::control::ClusterMap;
use wire::replica::Stamp;

/// Upper bound for the number of versions that were drawn for writes which the log has lost.
const LOST_VERSIONS: u64 = 1 << 32;

/// State that all reactors of one server share, besides the machines of migrations and
/// recoveries. Components reach it through their context.
pub struct NodeState {
    settings: NodeSettings,
    identity: ServerIdentity,
    store: Arc<Store>,
    durability: Arc<Replication>,
    ownership: RangeOwnership,
    pub(crate) demands: SharedDemands,
    pub(crate) clock: ServerClock,
    pub(crate) work: WorkQueue,
    /// Set by the control link while the coordinator is connected.
    is_linked: Arc<AtomicBool>,
    /// Wakes a sleeping reactor, or all.
    wake: OnceLock<Box<dyn Fn(Option<ReactorId>) + Send + Sync>>,
    /// Settings that operators can change.
    live: ArcSwap<LiveSettings>,
    supervisor: OnceLock<Box<dyn Supervisor>>,
    pub(crate) sweeps: Sweeps,
    pub(crate) orders: SortedOrders,
    /// Leases below this number have ended, as far as this server knows.
    lease_horizon: AtomicU64,
    pub(crate) key_counts: KeyCounts,
    pub(crate) recovery_counts: RecoveryCounts,
    pub(crate) eviction: EvictionState,
    pub(crate) replay_warnings: ReplayWarnings,
    /// Ranges of abandoned recovery partitions while their records are being deleted, by epoch.
    forgetting: Mutex<BTreeMap<OwnershipEpoch, HashRange>>,
}

/// The walks over tables that drop what nothing needs.
#[derive(Default)]
pub(crate) struct Sweeps {
    /// Position and next deadline of the scan that reclaims expired records.
    pub(crate) expiry: Mutex<ExpiryScan>,
    /// Set while that scan is disabled.
    pub(crate) rests_expiry: AtomicBool,
    /// Position and next deadline of the walk over completion records.
    pub(crate) completions: Mutex<CompletionSweep>,
    pub(crate) pages: PageSweep,
    pub(crate) fields: FieldSweep,
}

/// The process around a node. It can end the node, or start it again.
pub trait Supervisor: Send + Sync {
    /// Ends the process because of an error that prevents it from working.
    fn fail(&self, reason: String);

    /// Restarts the process as a new member, because other servers now serve its data.
    fn begin_anew(&self, reason: String);
}

/// Ownership of the ranges, as far as this server knows.
struct RangeOwnership {
    map: ArcSwap<ClusterMap>,
    /// All servers known to be dead, including those that the newest map no longer names.
    dead: Mutex<BTreeSet<ServerId>>,
    /// Ranges that the newest map assigns to this server and that it does not hold.
    grants: Mutex<Grants>,
    /// Version that rises whenever the tablets change. Reactors then retry parked operations.
    tablets_version: AtomicU64,
    /// Number of adopted maps. After each, reactors retry the operations that a map may redirect.
    maps: AtomicU64,
    /// Serializes changes of the tablets: read, change, publish.
    changing: Mutex<()>,
}

/// Ranges that the newest map assigns to this server and that it does not hold.
#[derive(Debug, Default)]
struct Grants {
    /// New ranges that no server has served yet. Each begins with the map that clears `is_born`.
    born: BTreeSet<(HashRange, OwnershipEpoch)>,
    /// Ranges that this server must not serve: it has no data for them.
    not_held: Vec<HashRange>,
}

impl NodeState {
    pub(crate) fn new(
        settings: NodeSettings,
        identity: ServerIdentity,
        store: Arc<Store>,
        durability: Arc<Replication>,
        is_linked: Arc<AtomicBool>,
    ) -> NodeState {
        let map = ClusterMap {
            version: 0,
            cluster: identity.cluster,
            servers: Vec::new(),
            tablets: Vec::new(),
            moving: Vec::new(),
        };
        let orders = SortedOrders::of_server(settings.memory_bytes as u64);
        NodeState {
            identity,
            store,
            durability,
            ownership: RangeOwnership {
                map: ArcSwap::from_pointee(map),
                dead: Mutex::default(),
                grants: Mutex::default(),
                tablets_version: AtomicU64::new(0),
                maps: AtomicU64::new(0),
                changing: Mutex::new(()),
            },
            demands: SharedDemands::default(),
            clock: ServerClock::new(settings.is_cluster),
            settings,
            work: WorkQueue::default(),
            is_linked,
            wake: OnceLock::new(),
            live: ArcSwap::default(),
            supervisor: OnceLock::new(),
            sweeps: Sweeps::default(),
            orders,
            lease_horizon: AtomicU64::new(0),
            key_counts: KeyCounts::default(),
            recovery_counts: RecoveryCounts::default(),
            eviction: EvictionState::default(),
            replay_warnings: ReplayWarnings::default(),
            forgetting: Mutex::default(),
        }
    }

    /// Returns the settings the server was started with.
    pub fn settings(&self) -> &NodeSettings {
        &self.settings
    }

    /// Returns the settings that can change while the server runs.
    pub fn live(&self) -> LiveSettings {
        **self.live.load()
    }

    /// Replaces the settings that can change. Reactors apply them in their next turn.
    pub fn set_live(&self, live: LiveSettings) {
        self.live.store(Arc::new(live));
        self.eviction.follow(&live, &self.store);
    }

    /// Sets the interface to the surrounding process. Called once, before the first turn.
    pub fn set_supervisor(&self, supervisor: Box<dyn Supervisor>) {
        assert!(self.supervisor.set(supervisor).is_ok(), "the supervisor of a node is set once");
    }

    /// Returns the durability mode; `None` if nothing is persisted.
    pub fn persistence(&self) -> Option<Mode> {
        self.durability.mode()
    }

    /// Returns the second up to which every acknowledged write is certainly on disk: now in mode
    /// `disk`, else the start of the server.
    pub fn last_save(&self, wall: UnixMillis, uptime: Duration) -> u64 {
        let now = wall.0 / 1000;
        match self.persistence() {
            Some(Mode::Disk) => now,
            Some(Mode::Interval | Mode::Memory) | None => now.saturating_sub(uptime.as_secs()),
        }
    }

    /// Returns the number of records of a table with an expiry time, and their mean time to live.
    pub fn expiring_records(&self, table: TableId) -> (u64, u64) {
        self.key_counts.expiring(table)
    }

    /// Returns the tables that have records, with the number they had about a second ago.
    pub fn table_records(&self) -> impl Iterator<Item = (TableId, u64)> {
        self.key_counts.tables()
    }

    /// Returns the lowest lease of exactly-once requests that may not have ended.
    #[inline]
    pub fn lease_horizon(&self) -> LeaseId {
        LeaseId(self.lease_horizon.load(Ordering::Acquire))
    }

    /// Notes that leases below this one have ended. The horizon never falls.
    pub(crate) fn raise_lease_horizon(&self, horizon: LeaseId) {
        self.lease_horizon.fetch_max(horizon.0, Ordering::AcqRel);
    }

    /// Enables or disables the scan that reclaims expired records.
    pub fn set_active_expiry(&self, is_on: bool) {
        self.sweeps.rests_expiry.store(!is_on, Ordering::Relaxed);
    }

    /// Returns the store.
    pub fn store(&self) -> &Arc<Store> {
        &self.store
    }

    /// Returns the orders of sorted sets.
    pub fn orders(&self) -> &SortedOrders {
        &self.orders
    }

    /// Returns the durability of the log.
    pub fn durability(&self) -> &Arc<Replication> {
        &self.durability
    }

    /// Returns the reference minus the expiry clock, in milliseconds, while the difference is too
    /// large for the clock to follow; else 0.
    pub fn clock_doubt(&self, now: Instant) -> i64 {
        self.clock.doubt_millis(now).unwrap_or(0)
    }

    /// Makes reactors retry the operations that wait for permission to run.
    pub(crate) fn serves_again(&self) {
        self.ownership.tablets_version.fetch_add(1, Ordering::Release);
        self.wake_all();
    }

    /// Ends loading: all persisted records are in memory again, and the server begins to serve
    /// with the clock that its log had reached, and with a higher version. The end of the log may be
    /// missing after a power cut (durability `interval`). Clients may know versions of lost writes,
    /// which must not come back.
    pub(crate) fn loaded(&self, now: Instant, last: Stamp) {
        self.store.raise_version(Version(last.version.0.saturating_add(LOST_VERSIONS)));
        self.clock.resume(now, last.clock);
        self.store.raise_clock(last.clock);
        self.durability.loading().end();
        let ignored = self.store.ignored_entries();
        if ignored > 0 {
            tracing::warn!(
                entries = ignored,
                "entries were ignored that a loss of power may have left without the entries before \
                 them"
            );
        }
        let records = self.store.usage().log.live_bytes;
        tracing::info!(bytes = records, "loading complete, all persisted records are in memory");
        self.serves_again();
    }

    /// Ends the process because the server cannot continue.
    pub(crate) fn fail(&self, reason: String) {
        tracing::error!(reason, "the server cannot continue");
        if let Some(supervisor) = self.supervisor.get() {
            supervisor.fail(reason);
        }
    }

    /// Restarts the process, which rejoins as a new member: other servers serve its ranges.
    pub(crate) fn begin_anew(&self, reason: &str) {
        tracing::error!(reason, "rejoining as a new member");
        if let Some(supervisor) = self.supervisor.get() {
            supervisor.begin_anew(reason.to_owned());
        }
    }

    /// Returns the number of this server.
    pub fn me(&self) -> ServerId {
        self.identity.server
    }

    /// Returns the id of this server's cluster.
    pub fn cluster(&self) -> ClusterId {
        self.identity.cluster
    }

    /// Returns whether the server presents itself to clients as a Redis Cluster node.
    pub fn is_cluster(&self) -> bool {
        self.settings.is_cluster
    }

    /// Returns the 40 hexadecimal digits that identify a server to clients.
    pub fn name_of(&self, server: ServerId) -> String {
        server.node_name(self.identity.cluster)
    }

    /// Returns the newest map.
    pub fn map(&self) -> Arc<ClusterMap> {
        self.ownership.map.load_full()
    }

    /// Returns the version of the tablets, which rises whenever they change.
    pub fn tablets_version(&self) -> u64 {
        self.ownership.tablets_version.load(Ordering::Acquire)
    }

    /// Returns the number of maps that were adopted.
    pub fn adopted_maps(&self) -> u64 {
        self.ownership.maps.load(Ordering::Acquire)
    }

    /// Sets the function that wakes a sleeping reactor, or all. Called once, before the first turn.
    pub fn set_wake(&self, wake: impl Fn(Option<ReactorId>) + Send + Sync + 'static) {
        assert!(self.wake.set(Box::new(wake)).is_ok(), "reactors are started once");
    }

    /// Wakes every sleeping reactor, because each must see a change or may take some work.
    pub fn wake_all(&self) {
        if let Some(wake) = self.wake.get() {
            wake(None);
        }
    }

    /// Makes a reactor run a turn soon.
    pub fn wake(&self, reactor: ReactorId) {
        if let Some(wake) = self.wake.get() {
            wake(Some(reactor));
        }
    }

    /// Records whether the coordinator is connected, for a link other than
    /// the control link of the server.
    pub fn set_linked(&self, is_linked: bool) {
        self.is_linked.store(is_linked, Ordering::Relaxed);
    }

    /// Returns whether the coordinator is connected.
    pub fn is_linked(&self) -> bool {
        self.is_linked.load(Ordering::Relaxed)
    }

    /// Returns the share of a reactor's running time for background work, in percent: the minimum
    /// without a latency target, the maximum with one.
    pub fn background_share(&self) -> u8 {
        self.demands.background_share.load(Ordering::Relaxed)
    }

    /// Returns the lowest latency target of the moves under way.
    pub fn latency_target(&self) -> Option<Duration> {
        let nanoseconds = self.demands.latency_target.load(Ordering::Relaxed);
        (nanoseconds > 0).then_some(Duration::from_nanos(nanoseconds))
    }

    /// Adopts a map unless it is older than the current one, and begins to serve newly assigned
    /// ranges. Returns the new, never served ranges that the map assigns to this server, so that
    /// the caller can confirm them to the coordinator.
    pub(crate) fn adopt(&self, map: ClusterMap) -> BTreeSet<(HashRange, OwnershipEpoch)> {
        let known = self.ownership.map.load();
        if map.version < known.version {
            return BTreeSet::new();
        }
        self.note_deaths(&known, &map);
        let me = self.me();
        let mut grants = self.ownership.grants.lock().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::take(&mut *grants);
        // Most maps tell of other servers' ranges. They leave the tablets, and who waits for them.
        self.change_tablets_if(|tablets| {
            let may_begin = match self.durability.placement() {
                LogPlacement::OwnDisk => MayBegin::Any,
                LogPlacement::Nowhere | LogPlacement::OtherServers => MayBegin::Born(&before.born),
            };
            let adopted = tablets::adopt(tablets, &map, me, may_begin);
            *grants = Grants { born: adopted.births, not_held: adopted.not_held };
            adopted.is_changed.then_some(adopted.tablets)
        });
        let births = grants.born.clone();
        for range in grants.not_held.iter().filter(|range| !before.not_held.contains(range)) {
            tracing::error!(
                %range,
                "range not served: the coordinator assigns it to this server, which does not hold \
                 it. Its file may be older than the cluster, see 'ballast cluster status'"
            );
        }
        drop(grants);
        self.ownership.map.store(Arc::new(map));
        self.ownership.maps.fetch_add(1, Ordering::Release);
        self.wake_all();
        births
    }

    /// Returns the Redis error for a slot that the map assigns here and that is not held.
    pub(crate) fn not_held(&self, slot: Slot) -> Option<String> {
        let grants = self.ownership.grants.lock().unwrap_or_else(PoisonError::into_inner);
        let mut ranges = grants.not_held.iter();
        ranges.any(|range| range.contains(slot.first_hash())).then(|| {
            "CLUSTERDOWN Hash slot not served: the coordinator assigns it to this server, which \
             does not hold it"
                .to_owned()
        })
    }

    /// Records dead servers: those that a map marks as dead, and those that a newer map omits,
    /// because a server need not receive every map.
    fn note_deaths(&self, known: &ClusterMap, new: &ClusterMap) {
        let living: BTreeSet<ServerId> =
            new.servers.iter().filter(|server| !server.is_dead).map(|server| server.id).collect();
        let all = known.servers.iter().chain(&new.servers).map(|server| server.id);
        let dead = all.filter(|id| !living.contains(id));
        self.ownership.dead.lock().unwrap_or_else(PoisonError::into_inner).extend(dead);
    }

    /// Returns the servers that will never rejoin under their numbers.
    pub(crate) fn dead(&self) -> BTreeSet<ServerId> {
        self.ownership.dead.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces the tablets and notifies every reactor.
    pub(crate) fn change_tablets(&self, change: impl FnOnce(Vec<Tablet>) -> Vec<Tablet>) {
        self.change_tablets_if(|tablets| Some(change(tablets)));
    }

    /// Replaces the tablets, unless `change` returns `None`, and notifies every reactor.
    pub(crate) fn change_tablets_if(
        &self,
        change: impl FnOnce(Vec<Tablet>) -> Option<Vec<Tablet>>,
    ) {
        let guard = self.ownership.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let tablets = self.store.tablets().iter().cloned().collect();
        let Some(changed) = change(tablets) else { return };
        self.store.publish(TabletMap::new(changed));
        drop(guard);
        self.ownership.tablets_version.fetch_add(1, Ordering::Release);
        self.wake_all();
    }

    /// Limits serving to the time before `until`, unless the flip is acknowledged.
    pub(crate) fn limit_unacknowledged(&self, until: Instant) {
        self.demands.unacknowledged_until.fetch_min(until.0, Ordering::AcqRel);
    }

    /// Returns whether some range may be served for a limited time only.
    #[inline]
    pub(crate) fn is_limited(&self) -> bool {
        self.demands.unacknowledged_until.load(Ordering::Acquire) != u64::MAX
    }

    /// Returns whether the acceptance of some flip was not acknowledged in time. Nothing is
    /// served until the range of that flip is suspended.
    pub fn is_overdue(&self, now: Instant) -> bool {
        now.0 >= self.demands.unacknowledged_until.load(Ordering::Acquire)
    }

    /// Locks the ranges of abandoned recovery partitions.
    pub(crate) fn forgetting(&self) -> MutexGuard<'_, BTreeMap<OwnershipEpoch, HashRange>> {
        self.forgetting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether replayed records in the range are still being deleted.
    pub(crate) fn is_being_forgotten(&self, range: HashRange) -> bool {
        self.forgetting().values().any(|other| other.overlaps(range))
    }
}
