//! Durability of a server's log. A server of a cluster writes it to other servers' disks, and
//! holds replicas of their logs on its own. A server without a cluster is a backup of its own log.
//! See `docs/design/durability.md` and `docs/design/replication.md`.
//!
//! - `plan`: where the replicas are, and when a write is acknowledged;
//! - [`Replication`]: state shared by all reactors;
//! - `master`: the replicator of one reactor, which places and sends segment bytes;
//! - `manifest`: the segment manifest;
//! - `lease`: the read lease, which depends on the backups of the manifest;
//! - `acknowledgments`: the reactors whose replies wait for acknowledgments;
//! - `version_mark`: the version up to which a standalone server's log is complete after a loss of
//!   power;
//! - `own_disk`: the log on the server's own disk: of a server without a cluster, and of the last
//!   living server of a cluster;
//! - `backup`: the replicas that this server holds;
//! - `backup_jobs`: the disk work for those replicas;
//! - `routes`: the connections for answers about those replicas;
//! - `counts`: counters of the disk, for operators.
//!
//! The machines are in `protocols::replication`. Each reactor drives a replicator for the
//! segments that it writes; the first reactor also drives the one of the manifest. Reactors
//! notify each other through [`SharedMaster`]. Within a turn, only pieces of existing replicas are
//! written to disk. All work that may take long is left in the engine's outbox, as a
//! [`BackupJob`].

mod acknowledgments;
mod backup;
mod backup_jobs;
mod counts;
mod lease;
mod manifest;
mod master;
mod own_disk;
mod plan;
mod routes;
mod version_mark;

pub(crate) use backup_jobs::free;
pub use backup_jobs::{BackupDone, BackupJob};
pub use counts::DiskCounts;
pub use lease::LeaseState;
pub use plan::{LogPlacement, Mode, Plan};

use super::loading::{AdoptedLog, KeptError, Loading, Progress, RecoveredLog};
use super::settings::ServerIdentity;
use ::backup::Replicas;
use acknowledgments::Acknowledgments;
use backup::{BackupSide, INTERVAL};
use lease::ReadLease;
use manifest::ReplicatedManifest;
use own_disk::StandaloneState;
use protocols::replication::{
    BackupCandidate, Misplaced, Rack, ReplicatorEvent, ReplicatorSettings,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use store::Store;
use types::{ReactorId, SegmentId, ServerId, Version};
use version_mark::VersionMarks;
use wire::control::ClusterMap;
use wire::replica::{ReplicaId, ReplicaKind};

pub(super) use backup::BackupPart;
pub(super) use master::LogMaster;

/// State of the durability of this server's log, shared by all reactors.
pub struct Replication {
    placement: LogPlacement,
    plan: Plan,
    pub(super) acknowledgments: Acknowledgments,
    /// The log of an earlier process, while it is being loaded.
    loading: Loading,
    /// Replicas on this server's disk.
    disk: Arc<Replicas>,
    backup: Mutex<BackupSide>,
    disk_counts: DiskCounts,
    manifest_log: Mutex<ReplicatedManifest>,
    /// Set if the manifest has work for the first reactor.
    manifest_waits: AtomicBool,
    /// The reactor that writes, or has written, each segment of this log.
    owners: Mutex<BTreeMap<SegmentId, ReactorId>>,
    reactors: Box<[SharedMaster]>,
    lease: ReadLease,
    is_fenced: AtomicBool,
    /// Servers that the coordinator wants this server to probe.
    asked_for: Mutex<BTreeSet<ServerId>>,
    /// Minimum number of backups that must receive a write.
    reach_min: AtomicUsize,
    /// Set if no other server of the cluster lives: the log is on the own disk.
    is_last_server: AtomicBool,
    /// State of the own disk as the only backup of a standalone server.
    standalone: StandaloneState,
    /// Version marks of a standalone server.
    marks: VersionMarks,
    /// Longest time that taken bytes stay unsynced in [`Mode::Interval`].
    sync_interval: Duration,
}

/// The parts of a server's durability that depend on its placement.
struct LogParts {
    disk: Arc<Replicas>,
    backup: BackupSide,
    manifest: ReplicatedManifest,
    loading: Loading,
}

/// The part of a reactor's [`LogMaster`] that other reactors use.
#[derive(Default)]
struct SharedMaster {
    /// Messages from other reactors.
    messages: Mutex<Vec<LogMessage>>,
    has_mail: AtomicBool,
    /// Number of under-replicated segments.
    short: AtomicUsize,
    /// Number of backups that receive the next write.
    reach: AtomicUsize,
    /// Number of replicas placed against the rack rules.
    misplaced: Mutex<Misplaced>,
}

impl SharedMaster {
    fn of(reach: usize) -> SharedMaster {
        SharedMaster { reach: AtomicUsize::new(reach), ..SharedMaster::default() }
    }
}

enum LogMessage {
    /// For the reactor's replicator.
    Event(ReplicatorEvent),
    /// No entry of the segment is needed any more.
    Dead(SegmentId),
}

impl Replication {
    /// Makes the replication of server `me` to other servers, with the replicas on its disk.
    pub fn new(plan: Plan, me: ServerId, reactors: u16, disk: Replicas) -> Replication {
        let disk = Arc::new(disk);
        let backup = BackupSide::new(&disk, plan.scrub);
        let manifest = ReplicatedManifest::new(plan, me);
        let log = LogParts { disk, backup, manifest, loading: Loading::none() };
        Replication::of(LogPlacement::OtherServers, plan, reactors, log)
    }

    /// Makes the durability of a server without a cluster, which continues the log on its disk.
    /// `store` is the empty store of the server.
    pub fn alone(
        log: RecoveredLog,
        identity: ServerIdentity,
        mode: Mode,
        reactors: u16,
        store: &Store,
    ) -> Result<Replication, KeptError> {
        let AdoptedLog { replicas, manifest, segment, loading } =
            log.adopt(identity, mode, store)?;
        let plan = Plan { mode, replicas: 1, scrub: None };
        let backup = BackupSide::of_own_log(&segment);
        let manifest = ReplicatedManifest::adopted(plan, identity.server, manifest, &segment);
        let log = LogParts { disk: Arc::new(replicas), backup, manifest, loading };
        Ok(Replication::of(LogPlacement::OwnDisk, plan, reactors, log))
    }

    /// Changes the time that bytes stay unsynced in [`Mode::Interval`], for simulations.
    pub fn with_sync_interval(self, sync_interval: Duration) -> Replication {
        Replication { sync_interval, ..self }
    }

    /// Makes the durability of a server whose log is in memory only.
    pub fn nowhere(me: ServerId, reactors: u16) -> Replication {
        let plan = Plan { mode: Mode::Memory, replicas: 1, scrub: None };
        let replication = Replication::new(plan, me, reactors, Replicas::none());
        Replication { placement: LogPlacement::Nowhere, ..replication }
    }

    fn of(placement: LogPlacement, plan: Plan, reactors: u16, log: LogParts) -> Replication {
        assert!(plan.replicas > 0, "a replicated log needs at least one replica");
        assert!(reactors > MANIFEST_REACTOR.0, "a reactor of the server drives the manifest");
        let LogParts { disk, backup, manifest, loading } = log;
        assert!(
            placement == LogPlacement::OwnDisk || !loading.is_on(),
            "only a standalone server continues its own log"
        );
        // Until the replicators report something else, the own disk takes writes.
        let reach = usize::from(placement == LogPlacement::OwnDisk);
        Replication {
            placement,
            plan,
            acknowledgments: Acknowledgments::default(),
            loading,
            backup: Mutex::new(backup),
            disk,
            disk_counts: DiskCounts::default(),
            manifest_log: Mutex::new(manifest),
            manifest_waits: AtomicBool::new(true),
            owners: Mutex::default(),
            reactors: (0..reactors).map(|_| SharedMaster::of(reach)).collect(),
            lease: ReadLease::default(),
            is_fenced: AtomicBool::new(false),
            asked_for: Mutex::default(),
            reach_min: AtomicUsize::new(0),
            is_last_server: AtomicBool::new(false),
            standalone: StandaloneState::default(),
            marks: VersionMarks::new(plan, placement == LogPlacement::OwnDisk),
            sync_interval: INTERVAL,
        }
    }

    /// Returns where the replicas of the log are.
    #[inline]
    pub fn placement(&self) -> LogPlacement {
        self.placement
    }

    /// Returns whether other servers have the log, and this one holds replicas of theirs.
    #[inline]
    pub fn is_with_others(&self) -> bool {
        self.placement == LogPlacement::OtherServers
    }

    /// Returns the durability mode; `None` if the log is in memory only.
    pub fn mode(&self) -> Option<Mode> {
        (self.placement != LogPlacement::Nowhere).then_some(self.plan.mode)
    }

    #[inline]
    pub(super) fn loading(&self) -> &Loading {
        &self.loading
    }

    /// Returns the progress of loading; `None` once everything is loaded.
    pub fn load_progress(&self) -> Option<Progress> {
        self.loading.progress()
    }

    /// Returns whether this server takes messages about replicas from `server`.
    pub(super) fn exchanges_with(&self, server: ServerId, me: ServerId) -> bool {
        match self.placement {
            LogPlacement::Nowhere => false,
            LogPlacement::OwnDisk => server == me,
            LogPlacement::OtherServers => true,
        }
    }

    /// Returns the parameters.
    pub fn plan(&self) -> Plan {
        self.plan
    }

    /// Returns the replicas that this server holds on its disk.
    pub fn disk(&self) -> &Arc<Replicas> {
        &self.disk
    }

    /// Returns whether the backup's machine expects more than `length` bytes in a replica.
    pub(super) fn is_short(&self, replica: ReplicaId, length: u32) -> bool {
        self.backup().machine().length(replica).is_some_and(|expected| length < expected)
    }

    /// Returns the number of replicas held for other servers, and their total bytes.
    pub fn held(&self) -> (usize, u64) {
        self.backup().machine().totals()
    }

    /// Returns the counters of the disk.
    pub fn disk_counts(&self) -> &DiskCounts {
        &self.disk_counts
    }

    /// Returns whether this backup has fenced a log: it takes nothing more for it.
    pub(super) fn is_log_fenced(&self, log: ServerId) -> bool {
        self.backup().machine().is_fenced(log)
    }

    /// Returns the number of under-replicated segments of this log.
    pub fn under_replicated(&self) -> usize {
        let data: usize = self.reactors.iter().map(|it| it.short.load(Ordering::Relaxed)).sum();
        data + self.manifest_log().short()
    }

    /// Returns the lowest number, of all reactors, of backups that receive the next write.
    pub fn reach(&self) -> usize {
        let reach = self.reactors.iter().map(|it| it.reach.load(Ordering::Relaxed));
        reach.min().unwrap_or_default()
    }

    /// Returns the minimum of that number. Writes are refused below it.
    pub fn reach_min(&self) -> usize {
        self.reach_min.load(Ordering::Relaxed)
    }

    /// Records how many backups receive the next write of a reactor.
    fn note_reach(&self, reactor: ReactorId, reach: usize) {
        let recorded = &self.master(reactor).reach;
        if recorded.load(Ordering::Relaxed) != reach {
            recorded.store(reach, Ordering::Relaxed);
            self.note_refusal();
        }
    }

    /// Returns the number of replicas of this log that were placed against the rack rules: in
    /// this server's rack, or in the rack of another replica of the same segment.
    pub fn misplaced(&self) -> Misplaced {
        let mut all = self.manifest_log().misplaced();
        for reactor in &self.reactors {
            let misplaced = *lock(&reactor.misplaced);
            all.with_master += misplaced.with_master;
            all.together += misplaced.together;
        }
        all
    }

    /// Returns the replicas of a log that a loss of power or a failed sync may have made shorter
    /// than this server has reported. There are none in a mode that syncs before it acknowledges.
    fn may_be_short(&self, log: ServerId) -> BTreeSet<ReplicaId> {
        match self.plan.mode {
            Mode::Memory | Mode::Interval => self.disk.list_short(log),
            Mode::Disk => BTreeSet::new(),
        }
    }

    /// Returns the version up to which all entries survive a loss of power together; `None` if this
    /// server records none.
    pub fn version_mark(&self) -> Option<Version> {
        self.has_marks().then(|| self.marks.safe())
    }

    /// Returns the newest manifest segment that the coordinator is known to have confirmed.
    pub(super) fn recorded_manifest(&self) -> Option<SegmentId> {
        self.manifest_log().recorded()
    }

    /// Returns the logs with replicas on this disk, and the last manifest segment of each.
    pub(super) fn kept_logs(&self) -> Vec<(ServerId, Option<SegmentId>)> {
        self.disk.manifest_logs()
    }

    fn manifest_log(&self) -> MutexGuard<'_, ReplicatedManifest> {
        lock(&self.manifest_log)
    }

    fn backup(&self) -> MutexGuard<'_, BackupSide> {
        lock(&self.backup)
    }

    fn owners(&self) -> MutexGuard<'_, BTreeMap<SegmentId, ReactorId>> {
        lock(&self.owners)
    }

    fn master(&self, reactor: ReactorId) -> &SharedMaster {
        &self.reactors[usize::from(reactor.0)]
    }

    /// Sends a message to a reactor, which reads it at its next commit.
    fn post(&self, to: ReactorId, message: LogMessage) {
        let inbox = self.master(to);
        lock(&inbox.messages).push(message);
        inbox.has_mail.store(true, Ordering::Release);
    }

    fn post_to_all(&self, event: &ReplicatorEvent) {
        let reactors = 0..self.reactors.len() as u16;
        reactors.for_each(|to| self.post(ReactorId(to), LogMessage::Event(event.clone())));
    }

    /// Returns whether there are messages for a reactor, or work on the manifest.
    fn is_called(&self, reactor: ReactorId) -> bool {
        let has_mail = self.master(reactor).has_mail.load(Ordering::Relaxed);
        has_mail || reactor == MANIFEST_REACTOR && self.manifest_waits.load(Ordering::Relaxed)
    }

    fn take_messages(&self, reactor: ReactorId) -> Vec<LogMessage> {
        let inbox = self.master(reactor);
        let has_mail =
            inbox.has_mail.load(Ordering::Relaxed) && inbox.has_mail.swap(false, Ordering::Acquire);
        if has_mail { std::mem::take(&mut *lock(&inbox.messages)) } else { Vec::new() }
    }
}

fn replicator_settings(
    placement: LogPlacement,
    plan: Plan,
    log: ServerId,
    kind: ReplicaKind,
) -> ReplicatorSettings {
    ReplicatorSettings {
        log,
        kind,
        replicas: usize::from(plan.replicas),
        promise: plan.promise(),
        is_standalone: placement == LogPlacement::OwnDisk,
    }
}

/// The reactor that drives the manifest.
const MANIFEST_REACTOR: ReactorId = ReactorId(0);

/// Returns the candidate backups of `me` by a map, and the rack of `me`. The only candidate of
/// the last server (`is_last`) is its own disk.
fn candidates(map: &ClusterMap, me: ServerId, is_last: bool) -> (Rack, Vec<BackupCandidate>) {
    let living = || map.servers.iter().filter(|server| !server.is_dead);
    let racks: BTreeSet<&str> =
        living().map(|it| &*it.rack).filter(|rack| !rack.is_empty()).collect();
    let rack_of = |server: &wire::control::ServerInfo| {
        // A server without a rack is its own failure domain. The high bit keeps its id apart from
        // rack indices: server numbers are far below 2^31.
        let named = racks.iter().position(|rack| *rack == server.rack);
        Rack(named.map_or(server.id.0 | 1 << 31, |at| at as u32))
    };
    let own = living().find(|server| server.id == me).map(rack_of);
    let candidates = living().filter(|server| is_last || server.id != me);
    let candidates = candidates.map(|server| BackupCandidate {
        server: server.id,
        rack: rack_of(server),
        is_usable: server.connected || server.id == me,
    });
    (own.unwrap_or(Rack(me.0 | 1 << 31)), candidates.collect())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
