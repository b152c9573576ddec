//! Load of the clients: their jobs, and the requests and replies of each.

mod follower;
mod native;
mod repetitions;
mod replies;
mod requests;

use crate::clients::{JobState, OpenJob, OpenScan, SimulatedClients};
use crate::cluster::SimulatedCluster;
use crate::history::RegisterAction;
use crate::native::NativeClients;
use crate::once::OnceRequests;
use crate::settings::{Knob, RunSettings};
use crate::timeline::{PlannedEvent, RunPhase, RunTimeline};
use crate::versions::{self, SeenVersions};
use crate::workload::{ClientJob, FLUSHED_TABLE, RegisterKind, TABLE, Workload};
use fastrand::Rng;
use follower::Follower;
pub(crate) use follower::is_followed;
use types::Instant;

/// Factor by which clients think longer while a fault lasts, and ranges move more rarely: the fault
/// lasts many times as long as the usual working time.
pub(crate) const ENDURING_SLOWNESS: u32 = 40;

/// Clients of a run, with their work.
pub(crate) struct ClientLoad {
    pub(crate) workload: Workload,
    pub(crate) clients: SimulatedClients,
    pub(crate) follower: Follower,
    /// Clients with the real client core, if the run has some.
    pub(crate) native: Option<NativeClients>,
    /// Versions that clients have seen, if they use commands with versions.
    versions: Option<SeenVersions>,
    /// Exactly-once requests, if the run has them.
    once: Option<OnceRequests>,
    /// Number of `ECHO` requests so far.
    echoes: u64,
    /// Final jobs of the clients.
    closing: Vec<ClientJob>,
}

impl ClientLoad {
    pub(crate) fn draw(
        workload: Workload,
        rng: &mut Rng,
        settings: &RunSettings,
        servers: usize,
    ) -> ClientLoad {
        let depths = draw_depths(rng, settings);
        let clients = SimulatedClients::new(&depths, servers, workload.registers.len());
        let closing = draw_closing(rng, &workload, servers);
        let follower = Follower::draw(settings);
        let versions = versions::are_used(settings).then(SeenVersions::default);
        let native = NativeClients::draw(settings, servers);
        let once = OnceRequests::draw(settings);
        ClientLoad { workload, clients, follower, native, versions, once, echoes: 0, closing }
    }

    /// Lets clients read the registers that they are changing at a server that has died.
    pub(crate) fn follow_death(&mut self, place: usize, now: Instant) {
        let changed = |open: &OpenJob| match open.job {
            ClientJob::Operation(_, action) if action.is_read() => None,
            ClientJob::Operation(register, _) => Some(register),
            ClientJob::Repetition(_)
            | ClientJob::Flush(_)
            | ClientJob::Walk(_)
            | ClientJob::Count(..) => None,
        };
        self.follower.server_died(now, self.clients.open_at(place).filter_map(changed));
    }

    pub(crate) fn begin_last_reads(&mut self, cluster: &mut SimulatedCluster) {
        cluster.timeline.phase = RunPhase::Reading(0);
        self.clients.begin_last_reads();
        self.draw_native_closing(cluster);
        (0..self.clients.count()).for_each(|client| self.think_soon(cluster, client));
    }

    /// Returns whether no job is unfinished.
    pub(crate) fn is_idle(&self) -> bool {
        let is_native_idle = self.native.as_ref().is_none_or(NativeClients::is_idle);
        self.clients.open().next().is_none() && is_native_idle
    }

    /// Breaks the clients' connections to a server; on some, its last replies still arrive.
    pub(crate) fn break_connections(&self, place: usize, timeline: &mut RunTimeline) {
        for (connection, last) in self.clients.connections_to(place) {
            let is_silent = timeline.rng.bool();
            if is_silent {
                timeline.cancel_replies_on(connection);
            }
            let end = if is_silent { timeline.now } else { last.max(timeline.now) };
            timeline.plan_at(end, PlannedEvent::Broken(connection));
        }
    }

    /// Lets a client start jobs in some or all of its free slots.
    pub(crate) fn think(&mut self, cluster: &mut SimulatedCluster, client: usize) {
        self.clients.has_thought(client);
        let mut has_begun = false;
        for slot in self.clients.slots(client) {
            if !self.clients.is_free(slot) || has_begun && cluster.timeline.rng.u32(..4) == 0 {
                continue;
            }
            if let Some((job, state)) = self.next_repetition(cluster, slot) {
                self.clients.begin(cluster.timeline.now, slot, job, state);
                self.send_request(cluster, slot);
                has_begun = true;
            } else if let Some(job) = self.next_job(cluster) {
                self.begin_job(cluster, slot, job);
                has_begun = true;
            }
        }
        self.flush_outputs(cluster, client);
        let is_idle = self.clients.slots(client).all(|slot| self.clients.is_free(slot));
        if is_idle {
            self.think_soon(cluster, client);
        }
    }

    pub(crate) fn think_soon(&mut self, cluster: &mut SimulatedCluster, client: usize) {
        if !self.is_closed(cluster) && self.clients.begins_to_think(client) {
            let pause =
                cluster.timeline.micros(1..300) * cluster.profile.slowness.pow(2).div_ceil(4);
            let pause = match cluster.timeline.phase {
                RunPhase::Enduring => pause * ENDURING_SLOWNESS,
                _ => pause,
            };
            cluster.timeline.plan_in(pause, PlannedEvent::Think(client));
        }
    }

    /// Returns whether clients have nothing more to do.
    pub(crate) fn is_closed(&self, cluster: &SimulatedCluster) -> bool {
        match cluster.timeline.phase {
            RunPhase::Working | RunPhase::Enduring => false,
            RunPhase::Healing | RunPhase::Resting => true,
            RunPhase::Reading(next) => {
                let have_native_read = self.native.as_ref().is_none_or(NativeClients::has_read);
                next == self.closing.len() && have_native_read
            }
        }
    }

    fn next_job(&mut self, cluster: &mut SimulatedCluster) -> Option<ClientJob> {
        match cluster.timeline.phase {
            RunPhase::Working | RunPhase::Enduring => {
                let clients = &self.clients;
                let followed = self.follower.next(cluster.timeline.now);
                if let Some(register) = followed.filter(|&number| !clients.is_crowded(number)) {
                    return Some(ClientJob::Operation(register, RegisterAction::Read));
                }
                let is_crowded = |number| clients.is_crowded(number);
                let servers = cluster.servers.len();
                let wall = cluster.servers[0].wall(cluster.timeline.wall());
                let rng = &mut cluster.timeline.rng;
                let room = |number| clients.room(number);
                let job = self.workload.next(rng, servers, wall, is_crowded, room)?;
                match job {
                    ClientJob::Operation(register, _) if is_avoided(cluster, register) => None,
                    // A flush needs the coordinator, and holds up the requests behind it.
                    ClientJob::Flush(_) if !cluster.timeline.is_working() => None,
                    ClientJob::Flush(_) if self.clients.has_many_flushes() => None,
                    ClientJob::Flush(place) => {
                        Some(ClientJob::Flush(self.flush_target(cluster, place)))
                    }
                    ClientJob::Operation(..)
                    | ClientJob::Repetition(_)
                    | ClientJob::Walk(_)
                    | ClientJob::Count(..) => Some(job),
                }
            }
            RunPhase::Healing | RunPhase::Resting => None,
            RunPhase::Reading(next) => self.next_closing_job(cluster, next),
        }
    }

    /// Prefers a server with an arriving range, where a flush has most to do.
    fn flush_target(&mut self, cluster: &mut SimulatedCluster, place: usize) -> usize {
        let better = cluster.servers.place_of_arrival();
        better.filter(|_| cluster.timeline.rng.u32(..4) != 0).unwrap_or(place)
    }

    fn next_closing_job(
        &mut self,
        cluster: &mut SimulatedCluster,
        mut next: usize,
    ) -> Option<ClientJob> {
        while let Some(&job) = self.closing.get(next) {
            // A job that counts or changes everything waits for all earlier jobs, and the next
            // job for it.
            let is_barrier =
                |job: &ClientJob| matches!(job, ClientJob::Flush(_) | ClientJob::Count(..));
            let before = next.checked_sub(1).map(|before| &self.closing[before]);
            let must_wait = is_barrier(&job) || before.is_some_and(is_barrier);
            if must_wait && !self.is_idle() {
                return None;
            }
            next += 1;
            cluster.timeline.phase = RunPhase::Reading(next);
            let is_wanted = match job {
                ClientJob::Operation(register, _) => {
                    // A flush may have emptied the register since its earlier read.
                    self.clients.forget_last_read(register);
                    cluster.losses.is_worth_reading(register)
                }
                ClientJob::Repetition(_) => unreachable!("no repetition is a final job"),
                ClientJob::Flush(place) | ClientJob::Walk(place) | ClientJob::Count(place, _) => {
                    cluster.servers.get(place).is_some_and(|server| !server.is_dead)
                }
            };
            if is_wanted {
                return Some(job);
            }
        }
        None
    }

    fn begin_job(&mut self, cluster: &mut SimulatedCluster, slot: usize, job: ClientJob) {
        let state = match job {
            ClientJob::Operation(..) => JobState::Operation,
            ClientJob::Repetition(_) => unreachable!("a repetition begins with its request"),
            ClientJob::Flush(place) => {
                let registers = self.workload.flushed();
                let held = |number: usize| {
                    cluster.serving_epoch(place, self.workload.registers[number].keys[0].0)
                };
                JobState::Flush(registers.map(|number| (number, held(number))).collect())
            }
            ClientJob::Walk(place) => {
                let registers = self.workload.registers.iter().enumerate();
                let expected = registers
                    .filter(|(number, register)| {
                        register.kind == RegisterKind::Permanent && self.clients.is_written(*number)
                    })
                    .filter_map(|(number, register)| {
                        let hash = register.keys[0].0;
                        Some((number, hash, cluster.serving_epoch(place, hash)?))
                    });
                JobState::Scan(OpenScan { expected: expected.collect(), ..OpenScan::default() })
            }
            ClientJob::Count(place, table) => {
                JobState::Count(cluster.servers.count_records(place, table))
            }
        };
        self.clients.begin(cluster.timeline.now, slot, job, state);
        self.begin_once(slot, job);
        self.read_clock(cluster, job);
        self.send_request(cluster, slot);
    }

    /// Reads the clock of an operation's register at its beginning or end.
    fn read_clock(&mut self, cluster: &mut SimulatedCluster, job: ClientJob) {
        let ClientJob::Operation(register, _) = job else { return };
        let SimulatedCluster { monitor, servers, timeline, .. } = cluster;
        if let Some(bounds) = monitor.clocks.read(register, servers, timeline) {
            self.clients.add_clock(register, bounds);
        }
    }

    fn think_later(&mut self, cluster: &mut SimulatedCluster, client: usize) {
        if !self.is_closed(cluster) && self.clients.begins_to_think(client) {
            let pause = cluster.timeline.micros(100..5_000);
            cluster.timeline.plan_in(pause, PlannedEvent::Think(client));
        }
    }
}

/// Returns whether a client should choose another register, since this one may never be answered.
fn is_avoided(cluster: &mut SimulatedCluster, register: usize) -> bool {
    cluster.timeline.is_working()
        && cluster.losses.is_excused(register)
        && cluster.timeline.rng.u32(..10) != 0
}

/// Returns the final jobs, which begin when everything has come to rest.
fn draw_closing(rng: &mut Rng, workload: &Workload, servers: usize) -> Vec<ClientJob> {
    let read = |number: usize| ClientJob::Operation(number, RegisterAction::Read);
    let mut jobs: Vec<ClientJob> = (0..workload.registers.len()).map(read).collect();
    let tables = [TABLE, FLUSHED_TABLE];
    jobs.extend((0..servers).flat_map(|place| tables.map(|table| ClientJob::Count(place, table))));
    if rng.bool() {
        jobs.extend((0..servers).map(ClientJob::Flush));
        jobs.extend(workload.flushed().map(read));
    }
    jobs
}

/// Draws the number of concurrent jobs of each client.
fn draw_depths(rng: &mut Rng, settings: &RunSettings) -> Vec<usize> {
    let most = [1, 4, 16][rng.usize(..3)];
    let most = if settings.has(Knob::Pipelines) { most } else { 1 };
    let clients = rng.usize(2..10);
    let clients = settings.clients.map_or(clients, |clients| clients.clamp(1, 10));
    (0..clients).map(|_| rng.usize(1..=most)).collect()
}
