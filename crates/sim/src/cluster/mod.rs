//! The cluster under test: servers, coordinators and disks, with the network between them and the
//! faults that it meets.

mod control;
mod faults;
mod links;
mod messages;
mod rollback;

use crate::control_streams::ControlStreams;
use crate::coordinators::Coordinators;
use crate::disks::ServerDisks;
use crate::failure::{Failure, Rule};
use crate::faults::FaultSchedule;
use crate::fleet::ServerFleet;
use crate::losses::Losses;
use crate::monitor::RuleMonitor;
use crate::moves::MoveLog;
use crate::network::Network;
use crate::profile::RunProfile;
use crate::reactor::{Outbound, SimulatedReactor, Surroundings, TurnInput};
use crate::servers::{INSPECTION_INTERVAL, ProcessSetup, SimulatedServer};
use crate::streams::Streams;
use crate::timeline::{PlannedEvent, ReactorPlace, RunTimeline};
use node::{DiskJob, MinReplicas, ServerIdentity};
use types::{Instant, KeyHash, OwnershipEpoch};
use wire::control::{ClusterMap, FromCoordinator, JoinReply};

use links::StartingProcess;

/// Operation that a server has refused, or that no process has taken.
pub(crate) struct RefusedOperation {
    pub(crate) client: usize,
    /// Time at which the operation began.
    pub(crate) since: Instant,
    pub(crate) register: usize,
    /// Hash of the register.
    pub(crate) hash: KeyHash,
    /// Place of the server.
    pub(crate) place: Option<usize>,
}

/// Servers, coordinators and disks of a run, and everything that connects them.
pub(crate) struct SimulatedCluster {
    pub(crate) timeline: RunTimeline,
    pub(crate) profile: RunProfile,
    pub(crate) network: Network,
    /// Streams between servers; `None` if whole messages travel.
    pub(crate) streams: Option<Streams>,
    pub(crate) servers: ServerFleet,
    pub(crate) disks: ServerDisks,
    pub(crate) coordinators: Coordinators,
    pub(crate) faults: FaultSchedule,
    pub(crate) losses: Losses,
    pub(crate) moves: MoveLog,
    pub(crate) monitor: RuleMonitor,
    /// Connections between servers and coordinators.
    pub(crate) control: ControlStreams,
    /// Process that joins.
    starting: Option<StartingProcess>,
    /// For a planted bug: maps that were sent to servers.
    maps: Vec<ClusterMap>,
}

/// Components of a cluster that are drawn from the seed.
pub(crate) struct ClusterParts {
    pub(crate) timeline: RunTimeline,
    pub(crate) profile: RunProfile,
    pub(crate) network: Network,
    pub(crate) coordinators: Coordinators,
    pub(crate) faults: FaultSchedule,
}

/// Processes and their turns.
impl SimulatedCluster {
    /// Creates a cluster without servers.
    pub(crate) fn new(parts: ClusterParts) -> SimulatedCluster {
        let ClusterParts { timeline, profile, network, coordinators, faults } = parts;
        SimulatedCluster {
            timeline,
            network,
            streams: Streams::draw(&profile.settings),
            servers: ServerFleet::default(),
            disks: ServerDisks::new(profile.size.servers),
            control: ControlStreams::draw(&profile.settings),
            starting: None,
            profile,
            coordinators,
            faults,
            losses: Losses::default(),
            moves: MoveLog::default(),
            monitor: RuleMonitor::default(),
            maps: Vec::new(),
        }
    }

    /// Starts a process that joins the cluster: under its previous id if it has its own log,
    /// otherwise as a new server. Returns `false` if no coordinator admits it.
    pub(crate) fn start_server(&mut self, place: usize) -> bool {
        let identity = self.coordinators.identity();
        // A process with the log of its predecessor is the same server.
        let has_data = self.disks.saved(place).is_some();
        if self.coordinators.is_mislaid() && !has_data {
            // Another cluster admits a process without data, for good.
            return false;
        }
        let before = self.servers.get(place).filter(|_| self.profile.has_local_logs());
        let rejoin = before.map(|before| (identity.cluster, before.id));
        // The saved identity outlives the process only in runs with disks.
        let is_persistent = self.profile.persistence.is_some();
        let saved = self.disks.saved(place).filter(|_| is_persistent);
        let join = self.join_message(place, rejoin, saved);
        let Some(StartingProcess { connection, membership, delivered, .. }) =
            self.join_at_once(place, join)
        else {
            return false;
        };
        let (cluster, server) = membership.number().expect("a welcomed process has a number");
        let mark = saved.and_then(|saved| saved.mark);
        self.disks.save_identity(place, (cluster, server), mark);
        let setup = ProcessSetup {
            identity: ServerIdentity { cluster, server },
            seed: identity.seed,
            memory_bytes: self.profile.memory_bytes,
            packed_bytes: self.profile.packed_bytes,
            disk: self.profile.persistence.map(|how| self.disks.disk(place).open(how)),
            time: self.timeline.shared.clone(),
            connection,
            bus: self.streams.as_ref().map(|streams| streams.bus),
        };
        self.servers.put(place, SimulatedServer::new(place, membership, setup));
        self.servers.begin_reactors(place, &mut self.timeline);
        for message in delivered {
            if !matches!(message, FromCoordinator::Join(JoinReply::Welcome { .. })) {
                self.arrive_down(place, message);
            }
        }
        true
    }

    /// Begins a turn that is due, and plans its second step. Returns whether it is the second step
    /// that is due.
    pub(crate) fn begin_turn(&mut self, at: ReactorPlace) -> bool {
        let (now, true_wall) = (self.timeline.now, self.timeline.wall());
        let server = &mut self.servers[at.server];
        let (wall, paused_until) = (server.wall(true_wall), server.paused_until);
        let reactor = &mut server.reactors[at.reactor];
        if reactor.due != now {
            return false; // Superseded: the reactor was woken earlier, or postponed.
        }
        if paused_until > now {
            reactor.due = paused_until;
            self.timeline.plan_at(paused_until, PlannedEvent::Turn(at));
            return false;
        }
        if reactor.is_begun {
            return true;
        }
        if let Some(is_slow) = self.faults.is_disk_slow(at.server, now) {
            self.disks.disk(at.server).set_slow(is_slow);
        }
        reactor.begin_turn(now, wall, self.profile.settings.planted);
        // Now and then the operating system preempts the reactor.
        let is_taken = self.timeline.rng.u32(..1000) == 0 && self.timeline.is_working();
        let soon = self.timeline.micros(1..if is_taken { 12_000 } else { 10 });
        reactor.due = now + soon;
        self.timeline.plan_in(soon, PlannedEvent::Turn(at));
        false
    }

    /// Draws whether background work gets a quantum in this turn.
    pub(crate) fn draw_quantum(&mut self) -> bool {
        self.timeline.rng.u32(..self.profile.quantum_one_in) == 0
    }

    pub(crate) fn run_reactor<T>(
        &mut self,
        at: ReactorPlace,
        has_quantum: bool,
        out: &mut Vec<Outbound>,
        part: impl FnOnce(&mut SimulatedReactor, &mut Surroundings<'_>) -> T,
    ) -> T {
        let planted = self.profile.settings.planted;
        let input = TurnInput { now: self.timeline.now, has_quantum, planted };
        self.servers[at.server].run_reactor(at.reactor, input, out, part)
    }

    pub(crate) fn start_disk_job(&mut self, at: ReactorPlace, job: DiskJob) {
        // Now and then a disk is slow.
        let is_busy = self.timeline.rng.u32(..100) == 0;
        let delay = self.timeline.micros(20..if is_busy { 100_000 } else { 2_000 });
        let slow = self.faults.slow_job_time(at.server, &mut self.timeline);
        let (delay, now) = (slow.unwrap_or(delay), self.timeline.now);
        let disk = self.disks.disk_mut(at.server);
        let done = disk.end_of_job(at.reactor, &job, now, delay);
        self.timeline.plan_at(done, PlannedEvent::Disk(at, Box::new(job)));
    }

    /// Returns the epoch under which a server serves a hash.
    pub(crate) fn serving_epoch(&self, place: usize, hash: KeyHash) -> Option<OwnershipEpoch> {
        self.servers.serving_epoch(place, hash, &self.moves.accepted)
    }

    fn may_lack_backups(&self) -> bool {
        let servers = self.servers.len();
        let needed = MinReplicas::Auto.count(self.profile.replicas(), servers);
        self.losses.may_lack_backups(servers, needed)
    }

    /// Looks which servers are well, and plans the next time.
    pub(crate) fn inspect(&mut self) {
        self.servers.iter_mut().for_each(|server| server.inspect(self.timeline.now));
        self.note_versions();
        self.timeline.plan_in(INSPECTION_INTERVAL, PlannedEvent::Inspection);
    }

    /// Checks a refusal: while no outage is long, and no master can lack all its backups, every
    /// operation must be answered with data that began when every server lived, or when the
    /// refusing server was well.
    pub(crate) fn check_refused(&self, refusal: &RefusedOperation) -> Option<Failure> {
        let RefusedOperation { client, since, register, hash, place } = *refusal;
        let was_well = place.is_some_and(|place| self.servers[place].has_served(hash, since));
        let has_long_outages = self.profile.slowness > 1
            && (self.timeline.is_working() || since <= self.faults.outages_until);
        // The client must be answered by another one.
        let is_at_fault = self.faults.lasting.is_some_and(|fault| place == Some(fault.place));
        // Several short faults together may keep a server from its backups for a second.
        let has_lost_lease = place.is_some_and(|place| {
            let now = self.timeline.now;
            self.servers[place].has_lost_lease(since, now)
        });
        let may_be_refused = is_at_fault
            || has_lost_lease
            || self.losses.is_excused(register)
            || self.losses.is_stalled(client)
            || !(self.losses.dead.is_empty() || was_well)
            || self.may_lack_backups()
            || has_long_outages;
        (!may_be_refused).then(|| Rule::Answered.broken(format!("register {register} is refused")))
    }
}
