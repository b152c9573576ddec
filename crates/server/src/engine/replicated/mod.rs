//! A server of a cluster that keeps its log on the disks of others, and theirs on its own. See
//! `docs/design/replication.md`.
//!
//! - [`Replication`]: what all reactors share;
//! - [`master`](self): one reactor's part: places and sends what its segments get;
//! - [`chain`](self): the log directory's own segments, and the read lease that hangs on them;
//! - [`own_disk`](self): the log of the last living server, on its own disk;
//! - [`backup`](self): what this server takes, keeps and frees for the logs of others;
//! - [`backup_jobs`](self): what of that the disk does meanwhile;
//! - [`routes`](self): where answers about those replicas go;
//! - [`counts`](self): what people see of the disk.
//!
//! The machines are `protocols::replication`. Each reactor drives a replicator for the segments that
//! it writes; the first one drives the chain's, too. What one has to tell another is put into its
//! [`Inbox`]. The disk is touched in the turn for pieces of replicas that exist; whatever may take
//! long is left in the engine's outbox, as a [`BackupJob`].

mod backup;
mod backup_jobs;
mod chain;
mod counts;
mod master;
mod own_disk;
mod routes;

pub use backup_jobs::{BackupDone, BackupJob};
pub use counts::DiskCounts;

use super::Engine;
use super::durable::{Acknowledgments, Mode};
use super::node::Node;
use ::backup::Replicas;
use backup::BackupSide;
use chain::Chain;
use planted::Bug;
use protocols::replication::timing::LEASE;
use protocols::replication::{Candidate, Misplaced, Promise, Rack, ReplicatorEvent};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use types::{Instant, ReactorId, SegmentId, ServerId};
use wire::control::ClusterMap;
use wire::replica::ReplicaId;

pub(super) use backup::BackupPart;
pub(super) use master::Master;

/// Segments of the chain are numbered from here, so that no number is one of the log's as well.
const CHAIN: u64 = 1 << 63;

/// How a server's log is kept by others.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// When a write is acknowledged.
    pub mode: Mode,
    /// Replicas of each segment, at least one.
    pub replicas: u16,
    /// How often what is kept for others is read again, to find out whether the disk still has it.
    /// `None`: never.
    pub scrub: Option<Duration>,
}

impl Plan {
    fn promise(self) -> Promise {
        match self.mode {
            Mode::Memory | Mode::Interval => Promise::Taken,
            Mode::Disk => Promise::Stable,
        }
    }
}

/// State of the replication of this server's log, shared by all reactors.
pub struct Replication {
    plan: Plan,
    pub(super) acknowledgments: Acknowledgments,
    /// What stands on this server's disk.
    disk: Arc<Replicas>,
    backup: Mutex<BackupSide>,
    disk_counts: DiskCounts,
    chain: Mutex<Chain>,
    /// Whether the chain has something for the first reactor to do.
    chain_waits: AtomicBool,
    /// Who writes, or has written, each segment of this log.
    owners: Mutex<BTreeMap<SegmentId, ReactorId>>,
    inboxes: Box<[Inbox]>,
    /// Until when operations may be executed, in nanoseconds.
    lease: AtomicU64,
    /// How often that time passed before the backups' next word.
    lease_lapses: AtomicU64,
    is_fenced: AtomicBool,
    /// Servers of which the coordinator wants to know whether they answer.
    asked_for: Mutex<BTreeSet<ServerId>>,
    /// By reactor: segments with fewer replicas than wanted.
    short: Box<[AtomicUsize]>,
    /// By reactor: backups that get what is written next.
    reach: Box<[AtomicUsize]>,
    /// Fewest that a write must get.
    reach_min: AtomicUsize,
    /// No other server lives: the log is kept on this server's own disk.
    is_on_own_disk: AtomicBool,
    /// By reactor: replicas that were placed against the rules about racks.
    misplaced: Box<[MisplacedCounts]>,
}

/// One reactor's [`Misplaced`], for whoever asks.
#[derive(Default)]
struct MisplacedCounts {
    with_master: AtomicUsize,
    together: AtomicUsize,
}

impl MisplacedCounts {
    fn set(&self, misplaced: Misplaced) {
        self.with_master.store(misplaced.with_master, Ordering::Relaxed);
        self.together.store(misplaced.together, Ordering::Relaxed);
    }
}

/// What others have to tell a reactor.
#[derive(Default)]
struct Inbox {
    letters: Mutex<Vec<Letter>>,
    has_letters: AtomicBool,
}

enum Letter {
    /// For its replicator.
    Event(ReplicatorEvent),
    /// Nothing in the segment is needed any more.
    Dead(SegmentId),
}

impl Replication {
    /// Of a server with this number, whose disk holds these replicas.
    pub fn new(plan: Plan, me: ServerId, reactors: u16, disk: Replicas) -> Replication {
        assert!(plan.replicas > 0, "a log that nobody keeps is not replicated");
        let disk = Arc::new(disk);
        Replication {
            plan,
            acknowledgments: Acknowledgments::default(),
            backup: Mutex::new(BackupSide::new(&disk, plan.scrub)),
            disk,
            disk_counts: DiskCounts::default(),
            chain: Mutex::new(Chain::new(plan, me)),
            chain_waits: AtomicBool::new(true),
            owners: Mutex::default(),
            inboxes: (0..reactors).map(|_| Inbox::default()).collect(),
            lease: AtomicU64::new(0),
            lease_lapses: AtomicU64::new(0),
            is_fenced: AtomicBool::new(false),
            asked_for: Mutex::default(),
            short: (0..reactors).map(|_| AtomicUsize::new(0)).collect(),
            reach: (0..reactors).map(|_| AtomicUsize::new(0)).collect(),
            reach_min: AtomicUsize::new(0),
            is_on_own_disk: AtomicBool::new(false),
            misplaced: (0..reactors).map(|_| MisplacedCounts::default()).collect(),
        }
    }

    /// How it is kept.
    pub fn plan(&self) -> Plan {
        self.plan
    }

    /// What this server keeps of others.
    pub fn disk(&self) -> &Arc<Replicas> {
        &self.disk
    }

    /// Returns whether a replica was believed to have more than this many bytes of its segment.
    pub(super) fn is_short(&self, replica: ReplicaId, length: u32) -> bool {
        self.backup().machine().length(replica).is_some_and(|expected| length < expected)
    }

    /// How many replicas are held for others, and how many bytes of segments they have.
    pub fn held(&self) -> (usize, u64) {
        self.backup().machine().totals()
    }

    /// How much longer operations may be executed; nothing if the lease has run out.
    pub fn lease_left(&self, now: Instant) -> Duration {
        Duration::from_nanos(self.lease.load(Ordering::Acquire).saturating_sub(now.0))
    }

    /// How often the lease has run out since the server began to serve.
    pub fn lease_lapses(&self) -> u64 {
        self.lease_lapses.load(Ordering::Relaxed)
    }

    /// Returns the counts of the disk.
    pub fn disk_counts(&self) -> &DiskCounts {
        &self.disk_counts
    }

    /// Whether nothing more is taken for this log.
    pub(super) fn is_log_fenced(&self, log: ServerId) -> bool {
        self.backup().machine().is_fenced(log)
    }

    /// Segments of this log with fewer replicas than wanted.
    pub fn under_replicated(&self) -> usize {
        let data: usize = self.short.iter().map(|count| count.load(Ordering::Relaxed)).sum();
        data + self.chain().short()
    }

    /// Returns how many other servers get what is written next, on the reactor where these are
    /// fewest.
    pub fn reach(&self) -> usize {
        let reach = self.reach.iter().map(|reach| reach.load(Ordering::Relaxed));
        reach.min().unwrap_or_default()
    }

    /// Returns how many it must get, or it is refused.
    pub fn reach_min(&self) -> usize {
        self.reach_min.load(Ordering::Relaxed)
    }

    fn note_reach(&self, reactor: ReactorId, reach: usize) {
        let noted = &self.reach[usize::from(reactor.0)];
        if noted.load(Ordering::Relaxed) != reach {
            noted.store(reach, Ordering::Relaxed);
        }
    }

    /// Replicas of this log that stand in this server's rack, or with another one of their segment,
    /// since there was no other place: how many were begun there.
    pub fn misplaced(&self) -> Misplaced {
        let mut all = self.chain().misplaced();
        for counts in &self.misplaced {
            all.with_master += counts.with_master.load(Ordering::Relaxed);
            all.together += counts.together.load(Ordering::Relaxed);
        }
        all
    }

    /// Replicas of a log that a loss of power may have made shorter than this server has said they were.
    /// None, if it waits for its disk before it says anything.
    fn written_before_this_boot(&self, log: ServerId) -> BTreeSet<ReplicaId> {
        let is_possible = match self.plan.mode {
            Mode::Memory | Mode::Interval => true,
            Mode::Disk => false,
        };
        let headers = if is_possible { self.disk.list(log) } else { Vec::new() };
        let earlier = headers.into_iter().filter(|header| header.boot != self.disk.boot());
        earlier.map(|header| header.id).collect()
    }

    /// The segment of the chain that the coordinator has noted, as far as is known here.
    pub(super) fn noted_chain(&self) -> Option<SegmentId> {
        self.chain().noted()
    }

    /// Logs of which the disk has something, and the last segment of each one's chain among that.
    pub(super) fn kept_logs(&self) -> Vec<(ServerId, Option<SegmentId>)> {
        self.disk.chains()
    }

    /// Whether operations may be executed: nobody else serves what this server holds.
    pub fn is_leased(&self, now: Instant) -> bool {
        now.0 < self.lease.load(Ordering::Acquire) || planted::is(Bug::ZombieServes)
    }

    fn chain(&self) -> MutexGuard<'_, Chain> {
        lock(&self.chain)
    }

    fn backup(&self) -> MutexGuard<'_, BackupSide> {
        lock(&self.backup)
    }

    fn owners(&self) -> MutexGuard<'_, BTreeMap<SegmentId, ReactorId>> {
        lock(&self.owners)
    }

    /// Tells a reactor something, which it reads when it hands out the next time.
    fn post(&self, to: ReactorId, letter: Letter) {
        let inbox = &self.inboxes[usize::from(to.0)];
        lock(&inbox.letters).push(letter);
        inbox.has_letters.store(true, Ordering::Release);
    }

    fn post_to_all(&self, event: &ReplicatorEvent) {
        let reactors = 0..self.inboxes.len() as u16;
        reactors.for_each(|to| self.post(ReactorId(to), Letter::Event(event.clone())));
    }

    fn take_letters(&self, reactor: ReactorId) -> Vec<Letter> {
        let inbox = &self.inboxes[usize::from(reactor.0)];
        let has_letters = inbox.has_letters.load(Ordering::Relaxed)
            && inbox.has_letters.swap(false, Ordering::Acquire);
        if has_letters { std::mem::take(&mut *lock(&inbox.letters)) } else { Vec::new() }
    }

    /// The chain has something to do, which its reactor does in its next turn.
    fn call_chain(&self, node: &Node, caller: ReactorId) {
        self.chain_waits.store(true, Ordering::Release);
        if caller != CHAIN_REACTOR {
            node.wake_all();
        }
    }

    /// The coordinator takes this server for dead: what it holds is served by others.
    fn fence(&self, node: &Node) {
        if !self.is_fenced.swap(true, Ordering::AcqRel) {
            self.lease.store(0, Ordering::Release);
            node.begin_anew(FENCED);
        }
    }
}

/// Who drives the chain.
const CHAIN_REACTOR: ReactorId = ReactorId(0);

const FENCED: &str = "the cluster has taken this server for dead, and others serve what it held: it \
                      was cut off, or stood still, for too long";

/// Returns the servers that can keep replicas for `me` by a map, and the rack of that one. If it
/// `is_last` that is its own disk.
fn candidates(map: &ClusterMap, me: ServerId, is_last: bool) -> (Rack, Vec<Candidate>) {
    let living = || map.servers.iter().filter(|server| !server.is_dead);
    let racks: BTreeSet<&str> =
        living().map(|it| &*it.rack).filter(|rack| !rack.is_empty()).collect();
    let rack_of = |server: &wire::control::ServerInfo| {
        // Who names none stands alone. Numbers of servers are far below half of what there is.
        let named = racks.iter().position(|rack| *rack == server.rack);
        Rack(named.map_or(server.id.0 | 1 << 31, |at| at as u32))
    };
    let own = living().find(|server| server.id == me).map(rack_of);
    let candidates = living().filter(|server| is_last || server.id != me);
    let candidates = candidates.map(|server| Candidate {
        server: server.id,
        rack: rack_of(server),
        is_usable: server.connected || server.id == me,
    });
    (own.unwrap_or(Rack(me.0 | 1 << 31)), candidates.collect())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Engine {
    /// Whether operations on data must wait: others may serve what this server holds.
    ///
    /// The clock is read here, after the request was received: a process that has stood still in
    /// between must not serve by what it knew before.
    #[inline]
    pub(crate) fn lacks_lease(&self, now: Instant) -> bool {
        match &self.replication {
            None => self.node.is_limited() && self.node.is_overdue(self.read_stopwatch(now)),
            Some(replication) => !replication.is_leased(self.read_stopwatch(now)),
        }
    }

    /// Returns whether replies about data wait for a confirmation of the lease.
    #[inline]
    fn is_strict(&self) -> bool {
        self.configuration.strict_reads && self.replication.is_some()
    }

    /// A request has been admitted that shows or changes data.
    #[inline]
    pub(crate) fn note_data(&self) {
        if self.is_strict() {
            self.has_data.set(true);
        }
    }

    /// Returns when the requests since the last call had been executed, if their replies must wait
    /// for a beat that is sent after that.
    #[inline]
    pub(crate) fn take_data(&self, now: Instant) -> Option<Instant> {
        (self.has_data.get() && self.has_data.replace(false)).then(|| self.read_stopwatch(now))
    }

    /// Returns whether a beat that was sent after `executed` has been acknowledged: nobody else served
    /// what this server holds before that was sent.
    pub(crate) fn is_confirmed(&self, executed: Instant) -> bool {
        let until = self.lease_until().unwrap_or(0);
        until > executed.0.saturating_add(LEASE.as_nanos() as u64)
    }

    /// Returns the end of the lease, which moves with every beat that is acknowledged; `None`: no
    /// reply waits for that.
    pub(crate) fn lease_until(&self) -> Option<u64> {
        let replication = self.replication.as_ref().filter(|_| self.configuration.strict_reads)?;
        Some(replication.lease.load(Ordering::Acquire))
    }

    /// A connection to a server has ended: what was sent to it may be lost.
    pub fn connection_lost(&mut self, now: Instant, to: ServerId) {
        self.recovery_connection_lost(now, to);
        if let Some(replication) = self.replication.clone() {
            let event = ReplicatorEvent::ConnectionLost { backup: to };
            self.drive_master(&replication, now, event.clone());
            if self.reactor == CHAIN_REACTOR {
                self.drive_chain(&replication, now, Some(event));
            }
        }
    }
}
