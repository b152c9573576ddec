//! A randomized model of replication. A master writes while messages are lost, repeated and
//! delayed, and while servers die, return, fill up and spoil replicas. After every event the
//! model checks that a recovery from the current state would find everything acknowledged,
//! whichever backups remain.
//!
//! When all other servers are dead the master replicates its log to its own disk. No recovery
//! fences that disk while the master lives.

use super::manifest::SegmentManifest;
use super::master::{MASTER, Master, Sin};
use super::server::{Envelope, Outside, Server, Work};
use fastrand::Rng;
use protocols::replication::{
    BackupCandidate, BackupEvent, Promise, Rack, ReplicatorEvent, fences,
};
use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;
use types::{Instant, SegmentId, ServerId};
use wire::peer::{AppendRefusal, AppendResult, PeerMessage};
use wire::replica::{ReplicaEpoch, ReplicaId};

/// Bytes at which a segment is closed. Copies of such a segment take several pieces.
const SEGMENT_BYTES: u32 = 4 << 20;

/// Time from the fencing of the manifest's backups until other servers serve the ranges.
const FENCED_TO_SERVED: Duration = Duration::from_millis(105);

#[test]
fn a_recovery_finds_what_was_acknowledged_whatever_happens() {
    let last = (0..runs(150)).filter(|seed| World::new(*seed, None).run());
    let (last, all) = (last.count() as u64, runs(150));
    assert!(last > all / 20, "in {last} of {all} runs the master was the last server");
}

#[test]
fn everybody_who_breaks_a_rule_is_found_out() {
    let sins = [
        Sin::CountsUnregistered,
        Sin::CountsUnclosed,
        Sin::ReleasesEarly,
        Sin::CoordinatorIsTooLate,
        Sin::NamesEarly,
        Sin::LeaseFromAnswer,
        Sin::ForgetsRefusals,
        Sin::AnswersWhenFenced,
        Sin::CopiesCount,
        Sin::RecoversFromOne,
    ];
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let next = AtomicUsize::new(0);
    let search = || {
        let sins = std::iter::from_fn(|| sins.get(next.fetch_add(1, Relaxed)));
        let found = sins.map(|&sin| (sin, (0..2_000).find_map(|seed| complaint(seed, sin))));
        found.collect::<Vec<_>>()
    };
    let found = std::thread::scope(|scope| {
        let other = scope.spawn(search);
        let mut found = search();
        found.extend(other.join().expect("a complaint is a panic that was caught"));
        found
    });
    std::panic::set_hook(hook);
    assert_eq!(found.len(), sins.len(), "each is looked for once");
    for (sin, complaint) in found {
        println!("{sin:?}: {complaint:?}");
        assert!(complaint.is_some(), "{sin:?} is not noticed");
    }
}

fn complaint(seed: u64, sin: Sin) -> Option<String> {
    let run = catch_unwind(AssertUnwindSafe(|| World::new(seed, Some(sin)).run()));
    let text = run.err()?.downcast::<String>();
    Some(text.map_or("another panic".to_owned(), |text| *text))
}

/// Returns the number of runs; `REPLICATION_RUNS` overrides it for a longer search.
fn runs(usual: u64) -> u64 {
    std::env::var("REPLICATION_RUNS").map_or(usual, |text| text.parse().unwrap())
}

/// A scheduled event of the model.
#[derive(Clone, Debug)]
enum Happening {
    Deliver(Envelope),
    /// A job of a server's disk.
    Disk(ServerId, Work),
    /// A server syncs its replicas.
    Sync(ServerId),
    ToCoordinator(SegmentId),
    FromCoordinator(SegmentId),
    /// The coordinator has missed a server for long enough and declares it dead.
    Declared(ServerId),
    /// The coordinator fences the master's log at this server, repeated until it has arrived.
    Fence(ServerId),
    Turn,
    Accident,
}

/// The fault schedule: probabilities per 1,000.
#[derive(Clone, Copy, Debug)]
struct Weather {
    lost: u32,
    repeated: u32,
    late: u32,
    accidents: bool,
}

const FAIR: Weather = Weather { lost: 0, repeated: 0, late: 0, accidents: false };

/// The state of a recovery, from the reports of the fenced backups.
#[derive(Debug, Default)]
struct Recovery {
    asked: BTreeSet<ServerId>,
    reports: BTreeMap<ServerId, Vec<(ReplicaId, u32)>>,
    /// Time from which other servers may serve.
    served_from: Option<Instant>,
    /// The segments that were found, once enough backups are fenced.
    found: Option<BTreeMap<SegmentId, u32>>,
}

struct World {
    seed: u64,
    rng: Rng,
    now: Instant,
    events: BTreeMap<(Instant, u64), Happening>,
    count: u64,
    master: Master,
    servers: BTreeMap<ServerId, Server>,
    unusable: BTreeSet<ServerId>,
    declared: BTreeSet<ServerId>,
    next_server: u32,
    replicas: usize,
    weather: Weather,
    /// Set if a process that dies loses its unsynced bytes.
    loses_power: bool,
    is_synced_at_once: bool,
    sync_every: Duration,
    /// The manifest segment that the coordinator has stored.
    known: Option<SegmentId>,
    recovery: Option<Recovery>,
    is_writing: bool,
    /// Set once no other server lived at some time.
    has_been_last: bool,
    /// Set while the master's messages do not reach the coordinator.
    is_cut_off: bool,
    /// Backups that are cut off from the master.
    is_cut: BTreeSet<ServerId>,
    /// Segments of which an original was on a disk at some time.
    begun: BTreeSet<SegmentId>,
    sin: Option<Sin>,
}

impl World {
    fn new(seed: u64, sin: Option<Sin>) -> World {
        let mut rng = Rng::with_seed(seed);
        let replicas = rng.usize(1..=3);
        let mode = rng.u32(..3);
        let promise = if mode == 0 { Promise::Synced } else { Promise::Taken };
        let sync_every = [5, 1_000, 1_000][mode as usize];
        let mut world = World {
            seed,
            now: Instant(0),
            events: BTreeMap::new(),
            count: 0,
            master: Master::new(replicas, promise, sin),
            servers: BTreeMap::new(),
            unusable: BTreeSet::new(),
            declared: BTreeSet::new(),
            next_server: 2,
            replicas,
            weather: Weather {
                lost: rng.u32(..2) * rng.u32(..100),
                repeated: rng.u32(..2) * rng.u32(..100),
                late: rng.u32(..2) * rng.u32(..300),
                accidents: true,
            },
            loses_power: mode == 0,
            is_synced_at_once: mode == 2,
            sync_every: Duration::from_millis(sync_every),
            known: None,
            recovery: None,
            is_writing: true,
            has_been_last: false,
            is_cut_off: false,
            is_cut: BTreeSet::new(),
            begun: BTreeSet::new(),
            sin,
            rng,
        };
        world.start_as(MASTER, BTreeMap::new());
        for _ in 0..world.rng.usize(replicas..=replicas + 4) {
            world.start(BTreeMap::new());
        }
        world.tell_candidates();
        world.at(Duration::ZERO, Happening::Turn);
        world.at(Duration::from_millis(50), Happening::Accident);
        world
    }

    /// Runs the model. Returns whether no other server lived at some time.
    fn run(mut self) -> bool {
        let bad = Duration::from_millis(self.rng.u64(100..4_000));
        self.go_on(bad);
        if self.rng.bool() {
            self.recover();
            self.go_on(Duration::from_secs(2));
            self.judge_recovery();
        } else {
            self.clear_up();
            self.go_on(Duration::from_secs(60));
            self.judge_rest();
        }
        self.has_been_last
    }

    fn at(&mut self, delay: Duration, happening: Happening) {
        self.count += 1;
        self.events.insert((self.now + delay, self.count), happening);
    }

    /// Advances the time by `duration`.
    fn go_on(&mut self, duration: Duration) {
        let end = self.now + duration;
        loop {
            let backups = self.servers.values().filter(|it| it.is_alive);
            let ticks = backups.filter_map(|it| it.backup.next_deadline());
            let tick = ticks.chain(self.master.next_deadline()).min();
            let next = self.events.first_key_value().map(|((at, _), _)| *at);
            let Some(at) = next.into_iter().chain(tick).min().filter(|at| *at <= end) else {
                break;
            };
            self.now = self.now.max(at);
            if next == Some(at) {
                let (_, happening) = self.events.pop_first().expect("just seen");
                self.happen(happening);
            } else {
                self.tick();
            }
            self.flush();
            self.judge();
        }
        self.now = end;
    }

    fn tick(&mut self) {
        self.master.both(self.now, ReplicatorEvent::Tick);
        for id in self.servers.keys().copied().collect::<Vec<_>>() {
            self.server(id, |server, now| server.handle(now, BackupEvent::Tick));
        }
    }

    fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::Deliver(envelope) if envelope.to == MASTER && !is_for_disk(&envelope) => {
                self.master.receive(self.now, envelope);
            }
            Happening::Deliver(envelope) => {
                self.server(envelope.to, |server, now| server.receive(now, &envelope));
            }
            Happening::Disk(id, work) => self.server(id, |it, now| it.carry_out(now, work)),
            Happening::Sync(id) => self.sync(id),
            Happening::ToCoordinator(segment) => {
                if self.recovery.is_none() {
                    self.known = self.known.max(Some(segment));
                    let delay = self.travel();
                    self.at(delay, Happening::FromCoordinator(segment));
                }
            }
            Happening::FromCoordinator(segment) => self.master.manifest_recorded(self.now, segment),
            Happening::Declared(id) => self.declare(id),
            Happening::Fence(id) => self.fence(id),
            Happening::Turn => self.turn(),
            Happening::Accident => self.accident(),
        }
    }

    fn travel(&mut self) -> Duration {
        let is_late = self.rng.u32(..1_000) < self.weather.late;
        Duration::from_micros(self.rng.u64(50..if is_late { 500_000 } else { 500 }))
    }

    /// Sends the messages that the master has produced.
    fn flush(&mut self) {
        for envelope in std::mem::take(&mut self.master.messages) {
            self.send(envelope);
        }
        for segment in std::mem::take(&mut self.master.announced) {
            if !self.is_cut_off && self.rng.u32(..1_000) >= self.weather.lost {
                let delay = self.travel();
                self.at(delay, Happening::ToCoordinator(segment));
            }
        }
    }

    fn send(&mut self, envelope: Envelope) {
        if self.is_cut.contains(&envelope.from) || self.is_cut.contains(&envelope.to) {
            return;
        }
        if self.rng.u32(..1_000) < self.weather.repeated {
            let delay = self.travel();
            self.at(delay, Happening::Deliver(envelope.clone()));
        }
        if self.rng.u32(..1_000) >= self.weather.lost {
            let delay = self.travel();
            self.at(delay, Happening::Deliver(envelope));
        }
    }

    fn server(&mut self, id: ServerId, act: impl FnOnce(&mut Server, Instant) -> Outside) {
        let server = self.servers.get_mut(&id).expect("a server of the world");
        if !server.is_alive {
            return;
        }
        let out = act(server, self.now);
        if self.sin == Some(Sin::ForgetsRefusals) {
            forget_refusals(server, self.now, &out);
        }
        for work in out.work {
            let delay = Duration::from_micros(self.rng.u64(1..2_000));
            self.at(delay, Happening::Disk(id, work));
        }
        out.messages.into_iter().for_each(|envelope| self.send(envelope));
        for _ in out.reports {
            self.report(id);
        }
    }
}

/// Returns whether the receiver of a message is a backup, not a master.
fn is_for_disk(envelope: &Envelope) -> bool {
    let message = &envelope.message;
    matches!(message, PeerMessage::Append(_) | PeerMessage::Release { .. } | PeerMessage::Ping)
}

/// Makes a backup forget its refusals.
fn forget_refusals(server: &mut Server, now: Instant, out: &Outside) {
    for envelope in &out.messages {
        let PeerMessage::Appended(answer) = &envelope.message else { continue };
        if answer.result == AppendResult::Refused(AppendRefusal::Full) {
            let replicas = vec![answer.replica];
            server.handle(now, BackupEvent::Release { log: MASTER, replicas });
        }
    }
}

/// The lives of the master and the servers.
impl World {
    fn start(&mut self, disk: BTreeMap<ReplicaId, super::server::Stored>) {
        let id = ServerId(self.next_server);
        self.next_server += 1;
        self.start_as(id, disk);
        if let Some(recovery) = &mut self.recovery {
            recovery.asked.insert(id);
            self.at(Duration::ZERO, Happening::Fence(id));
        }
    }

    fn start_as(&mut self, id: ServerId, disk: BTreeMap<ReplicaId, super::server::Stored>) {
        let mut server = Server::new(self.now, id, disk);
        server.is_synced_at_once = self.is_synced_at_once;
        self.servers.insert(id, server);
        self.at(self.sync_every, Happening::Sync(id));
    }

    /// Returns the other living servers.
    fn others(&self) -> impl Iterator<Item = &Server> {
        self.servers.values().filter(|server| server.is_alive && server.id != MASTER)
    }

    fn tell_candidates(&mut self) {
        let known = || self.servers.values().filter(|it| !self.declared.contains(&it.id));
        let is_last = known().all(|server| server.id == MASTER);
        self.has_been_last |= is_last;
        let known = known().filter(|server| is_last || server.id != MASTER);
        let candidates = known.map(|server| BackupCandidate {
            server: server.id,
            rack: Rack(server.id.0 % 3),
            is_usable: server.is_alive && !self.unusable.contains(&server.id),
        });
        let servers = candidates.collect();
        let event = ReplicatorEvent::Candidates { own: Rack(MASTER.0 % 3), servers };
        self.master.both(self.now, event);
    }

    fn sync(&mut self, id: ServerId) {
        let disk = &self.servers[&id].disk;
        let unsynced = disk.iter().filter(|(_, it)| it.synced < it.length && !it.is_spoiled);
        for replica in unsynced.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.server(id, |server, now| server.carry_out(now, Work::Sync(replica)));
        }
        if self.servers[&id].is_alive {
            self.at(self.sync_every, Happening::Sync(id));
        }
    }

    fn turn(&mut self) {
        let random = self.rng.u64(..);
        let manifest = &self.master.manifest;
        let is_long =
            self.master.is_manifest_log_long() && !manifest.has_successor() && self.rng.bool();
        if self.master.wants_manifest_segment && manifest.may_begin() || is_long {
            self.master.begin_manifest_segment(self.now, random);
        }
        if self.is_writing {
            let bytes = self.rng.u32(1..400_000).next_multiple_of(8);
            self.master.append(self.now, bytes, random);
            let head = self.master.head.map_or(0, |head| self.master.lengths[&head]);
            if head >= SEGMENT_BYTES {
                self.master.close(self.now);
            }
            let any = self.rng.u32(..10) == 0;
            let closed = self.master.closed.iter().copied();
            let old: Vec<_> = closed.filter(|it| any || self.master.kept.contains(it)).collect();
            if old.len() > 6 || (!old.is_empty() && self.rng.u32(..50) == 0) {
                self.master.drop_segment(self.now, old[self.rng.usize(..old.len())]);
            }
        }
        let pause = Duration::from_micros(self.rng.u64(50..20_000));
        self.at(pause, Happening::Turn);
    }

    fn accident(&mut self) {
        if !self.weather.accidents {
            return;
        }
        let pause = Duration::from_millis(self.rng.u64(10..400));
        self.at(pause, Happening::Accident);
        let living: Vec<ServerId> = self.others().map(|server| server.id).collect();
        if self.rng.u32(..40) == 0 {
            return living.into_iter().for_each(|id| self.kill(id));
        }
        let Some(id) = living.get(self.rng.usize(..living.len().max(1))).copied() else { return };
        let server = self.servers.get_mut(&id).expect("it lives");
        match self.rng.u32(..12) {
            10 | 11 if self.is_cut.remove(&id) => {}
            10 | 11 => drop(self.is_cut.insert(id)),
            0 => self.kill(id),
            1 | 2 => self.bring_back(),
            3 => server.is_full = !server.is_full,
            4 => server.fails = !server.fails && self.rng.bool(),
            5 => self.break_connection(id),
            6 => {
                if !self.unusable.remove(&id) {
                    self.unusable.insert(id);
                }
                self.tell_candidates();
            }
            7 => self.is_cut_off = !self.is_cut_off,
            8 => self.master.both(self.now, ReplicatorEvent::Replaying { is_on: self.rng.bool() }),
            _ if living.len() < self.replicas + 3 => {
                self.start(BTreeMap::new());
                self.tell_candidates();
            }
            _ => {}
        }
    }

    fn kill(&mut self, id: ServerId) {
        let server = self.servers.get_mut(&id).expect("it lives");
        server.is_alive = false;
        if self.loses_power {
            for stored in server.disk.values_mut() {
                stored.length = self.rng.u32(stored.synced..=stored.length);
            }
        }
        // A job in progress may or may not reach the disk. A replica ends with a whole piece, so
        // either outcome equals an earlier or later time of death.
        let delay = Duration::from_millis(self.rng.u64(20..300));
        self.at(delay, Happening::Declared(id));
    }

    fn declare(&mut self, id: ServerId) {
        self.declared.insert(id);
        self.master.both(self.now, ReplicatorEvent::Died { backup: id });
        self.tell_candidates();
    }

    /// Starts a new process on the disk of a dead server.
    fn bring_back(&mut self) {
        let dead = self
            .servers
            .values_mut()
            .find(|it| !it.is_alive && self.declared.contains(&it.id) && !it.disk.is_empty());
        let Some(server) = dead else { return };
        let mut disk = std::mem::take(&mut server.disk);
        disk.retain(|_, stored| !stored.is_spoiled);
        self.start(disk);
        self.tell_candidates();
    }

    fn break_connection(&mut self, id: ServerId) {
        let rng = &mut self.rng;
        self.events.retain(|_, happening| {
            let between = |it: &Envelope| it.from == id || it.to == id;
            !matches!(happening, Happening::Deliver(envelope) if between(envelope)) || rng.bool()
        });
        self.master.both(self.now, ReplicatorEvent::ConnectionLost { backup: id });
    }

    fn clear_up(&mut self) {
        self.weather = FAIR;
        self.is_cut_off = false;
        self.is_cut.clear();
        self.unusable.clear();
        while self.others().count() < self.replicas {
            self.start(BTreeMap::new());
        }
        for server in self.servers.values_mut() {
            (server.is_full, server.fails) = (false, false);
        }
        self.tell_candidates();
        self.is_writing = false;
    }
}

/// The conditions that must hold.
impl World {
    /// Returns the replicas on all disks, of living and dead servers, that a process would find.
    fn stored(&self) -> impl Iterator<Item = (ReplicaId, u32)> {
        let disks = self.servers.values().flat_map(|server| &server.disk);
        disks.filter(|(_, it)| !it.is_spoiled).map(|(id, it)| (*id, it.length))
    }

    /// Returns how many backups with a replica of the manifest segment a recovery needs.
    fn fences(&self) -> usize {
        if self.sin == Some(Sin::RecoversFromOne) { 1 } else { self.known.map_or(1, fences) }
    }

    fn counts(&self, replica: ReplicaId) -> bool {
        replica.epoch == ReplicaEpoch(0) || self.sin == Some(Sin::CopiesCount)
    }

    fn judge(&mut self) {
        let seed = self.seed;
        if let Some(recovery) = &self.recovery {
            let lease = self.master.lease.filter(|until| *until > self.now);
            let is_late = recovery.served_from.is_some_and(|from| from <= self.now);
            assert!(lease.is_none() || !is_late, "seed {seed}: two servers serve");
            return;
        }
        let mut by_segment: BTreeMap<SegmentId, Vec<(ReplicaId, u32)>> = BTreeMap::new();
        for (replica, length) in self.stored() {
            by_segment.entry(replica.segment).or_default().push((replica, length));
        }
        let originals = by_segment.iter().filter(|(_, all)| all.iter().any(|it| self.counts(it.0)));
        self.begun = originals.map(|(it, _)| *it).chain(self.begun.iter().copied()).collect();
        let Some(known) = self.known else {
            assert!(
                self.master.acknowledged.is_empty(),
                "seed {seed}: the coordinator knows nothing"
            );
            return;
        };
        let manifest_logs = by_segment.get(&known).map_or(&[][..], |it| it);
        let mut manifests: Vec<u32> = manifest_logs.iter().map(|(_, length)| *length).collect();
        manifests.sort_unstable();
        // A recovery uses the longest of the replicas that it fences. Check every choice.
        let mut manifests = manifests.split_off((self.fences() - 1).min(manifests.len()));
        manifests.dedup();
        for length in manifests {
            let manifest = self.master.manifest_log.read(known, length);
            let Some(manifest) = manifest else {
                panic!("seed {seed}: the manifest_log has no snapshot at {length}")
            };
            self.judge_manifest(&manifest, &by_segment);
        }
    }

    /// Checks that a recovery with this manifest finds everything acknowledged.
    fn judge_manifest(
        &self,
        manifest: &SegmentManifest,
        stored: &BTreeMap<SegmentId, Vec<(ReplicaId, u32)>>,
    ) {
        let (seed, now) = (self.seed, self.now);
        let leaving = &self.master.leaving;
        for (segment, acknowledged) in &self.master.acknowledged {
            let is_named = manifest.contains_key(segment) || leaving.contains_key(segment);
            assert!(is_named, "seed {seed}, {now}: no server misses {segment}");
            let Some(Some(length)) = manifest.get(segment) else { continue };
            assert!(acknowledged <= length, "seed {seed}, {now}: {segment} grew after its end");
        }
        let nothing = Vec::new();
        for (segment, closed) in manifest {
            let replicas = stored.get(segment).unwrap_or(&nothing);
            // A segment that has left memory cannot be copied; all its replicas may be spoiled.
            let is_leaving = leaving.contains_key(segment) && self.master.data.contains(*segment);
            match closed {
                Some(end) => {
                    let is_there = replicas.iter().any(|(_, length)| length == end);
                    assert!(
                        is_there || is_leaving,
                        "seed {seed}, {now}: no replica of {segment}: {replicas:?}"
                    );
                }
                None => {
                    let acknowledged = self.master.acknowledged.get(segment).copied();
                    let acknowledged = acknowledged.filter(|_| !leaving.contains_key(segment));
                    for (replica, length) in replicas.iter().filter(|(it, _)| self.counts(*it)) {
                        assert!(
                            *length >= acknowledged.unwrap_or(0),
                            "seed {seed}, {now}: {replica} would be taken for right: {length} of \
                             {acknowledged:?}"
                        );
                    }
                    let is_begun = self.begun.contains(segment);
                    assert!(is_begun, "seed {seed}, {now}: no server has begun {segment}");
                }
            }
        }
    }

    /// Checks the state after a long time without faults.
    fn judge_rest(&mut self) {
        let seed = self.seed;
        let master = &self.master;
        assert!(!master.is_fenced && master.under_replicated == 0, "seed {seed}: replicas lack");
        for (segment, length) in &master.lengths {
            if !master.leaving.contains_key(segment) {
                let acknowledged = master.acknowledged.get(segment);
                assert_eq!(acknowledged, Some(length), "seed {seed}: {segment}");
            }
        }
        for segment in &master.closed {
            assert!(
                master.kept.contains(segment),
                "seed {seed}: {segment} is not said to be closed"
            );
        }
        let living = self.servers.values().filter(|server| server.is_alive);
        let mut full: BTreeMap<SegmentId, usize> = BTreeMap::new();
        for (server, replica, stored) in living
            .flat_map(|it| it.disk.iter().map(move |(replica, stored)| (it.id, replica, stored)))
        {
            let is_manifest = replica.segment.is_manifest();
            let keeper = if is_manifest { &master.manifest_replicator } else { &master.data };
            assert!(keeper.is_needed(server, *replica), "seed {seed}: {server} keeps {replica}");
            let end = master.lengths.get(&replica.segment);
            if end == Some(&stored.length) && !stored.is_spoiled {
                *full.entry(replica.segment).or_default() += 1;
            }
        }
        for segment in master.lengths.keys().filter(|it| !master.leaving.contains_key(it)) {
            assert_eq!(full.get(segment), Some(&self.replicas), "seed {seed}: {segment}");
        }
        assert!(master.lease.is_some_and(|until| until > self.now), "seed {seed}: no lease");
        assert_eq!(
            master.manifest_log.current(),
            self.known,
            "seed {seed}: the coordinator knows it"
        );
    }
}

/// The coordinator declares the master dead although it lives.
impl World {
    fn recover(&mut self) {
        let mut asked: Vec<ServerId> = self.others().map(|server| server.id).collect();
        self.rng.shuffle(&mut asked);
        asked.truncate(self.rng.usize(..=asked.len()));
        if self.rng.bool() {
            asked.truncate(1);
        }
        self.recovery =
            Some(Recovery { asked: asked.iter().copied().collect(), ..Recovery::default() });
        for id in asked {
            let delay = Duration::from_millis(self.rng.u64(..100));
            self.at(delay, Happening::Fence(id));
        }
    }

    fn fence(&mut self, id: ServerId) {
        if self.sin == Some(Sin::AnswersWhenFenced) {
            return self.report(id);
        }
        self.server(id, |server, now| server.handle(now, BackupEvent::Fence { log: MASTER }));
    }

    fn report(&mut self, id: ServerId) {
        let Some(recovery) = &mut self.recovery else { return };
        let kept =
            self.servers[&id].backup.kept(MASTER).map(|(replica, length, _)| (replica, length));
        let kept: Vec<_> = kept.collect();
        recovery.reports.insert(id, kept);
        let is_of_manifest_log =
            |(replica, _): &(ReplicaId, u32)| Some(replica.segment) == self.known;
        let of_manifest_log =
            recovery.reports.values().filter(|kept| kept.iter().any(is_of_manifest_log));
        if of_manifest_log.count() >= self.known.map_or(1, fences) {
            recovery.served_from.get_or_insert(self.now + FENCED_TO_SERVED);
        }
        let found = self.prove();
        if let Some(recovery) = self.recovery.as_mut().filter(|it| it.found.is_none()) {
            recovery.found = found;
        }
    }

    /// Returns the recoverable segments if the fenced backups hold everything needed.
    fn prove(&self) -> Option<BTreeMap<SegmentId, u32>> {
        let reports = &self.recovery.as_ref()?.reports;
        let all = || reports.values().flatten().copied();
        let manifest_log = all().filter(|(replica, _)| Some(replica.segment) == self.known);
        let lengths: Vec<u32> = manifest_log.map(|(_, length)| length).collect();
        let length = lengths.iter().copied().max().filter(|_| lengths.len() >= self.fences())?;
        let manifest = self.master.manifest_log.read(self.known?, length)?;
        let mut found = BTreeMap::new();
        for (segment, closed) in manifest {
            let replicas = all().filter(|(replica, _)| replica.segment == segment);
            let lengths = replicas.filter(|(replica, length)| match closed {
                Some(end) => *length == end,
                None => self.counts(*replica),
            });
            found.insert(segment, lengths.map(|(_, length)| length).max()?);
        }
        Some(found)
    }

    /// Checks the result of a recovery. The master may have continued for any time.
    fn judge_recovery(&mut self) {
        let seed = self.seed;
        let Some(recovery) = &self.recovery else { return };
        let Some(found) = &recovery.found else { return };
        assert!(recovery.asked.iter().any(|id| recovery.reports.contains_key(id)));
        for (segment, acknowledged) in &self.master.acknowledged {
            if self.master.leaving.contains_key(segment) {
                continue;
            }
            let found = found.get(segment).copied().unwrap_or(0);
            assert!(found >= *acknowledged, "seed {seed}: {segment}: {found} of {acknowledged}");
        }
    }
}
