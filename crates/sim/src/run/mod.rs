//! One run: a cluster and its clients, driven event by event from one seed.
//!
//! A run has three phases. First, clients work while ranges move. Then all faults end, and
//! everything comes to rest. Last, clients read every register once more, and the run checks the
//! observations of the clients and the contents of the servers.

mod accidents;
mod ending;
mod judge;
mod lasting;

use crate::cluster::{ClusterParts, SimulatedCluster};
use crate::cluster_size::ClusterSize;
use crate::coordinators::Coordinators;
use crate::failure::{Report, Rule};
use crate::faults::FaultSchedule;
use crate::load::{ClientLoad, ENDURING_SLOWNESS};
use crate::monitor;
use crate::moves;
use crate::native::NativeClients;
use crate::network::Network;
use crate::planted::Planted;
use crate::profile::RunProfile;
use crate::reactor::{Inbound, Outbound, SimulatedReactor};
use crate::settings::{Knob, RunSettings};
use crate::streams::{Streams, TrafficContext};
use crate::timeline::{PlannedEvent, ReactorPlace, RunPhase, RunTimeline};
use crate::trace::Trace;
use crate::workload::Workload;
use fastrand::Rng;
use std::time::Duration;
use types::{ClusterId, HashSeed, Instant};

/// One request for a move in this many is followed by another at once.
const BURST_ONE_IN: u32 = 6;

/// Cluster and clients of one run.
struct ClusterRun {
    cluster: SimulatedCluster,
    load: ClientLoad,
    /// Time that the clients worked, once they have stopped.
    worked: Option<Duration>,
    /// Deadline for everything to come to rest.
    rest_by: Instant,
    /// Time at which everything that expires has expired by every clock.
    expired_by: Instant,
}

/// Runs one seed. A failed assertion of the real code is a failure like any other.
pub fn run(settings: &RunSettings) -> Report {
    ::planted::plant(settings.planted.and_then(Planted::inside));
    let run = std::panic::AssertUnwindSafe(|| ClusterRun::new(settings.clone()).run());
    std::panic::catch_unwind(run).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        let failure = Some(Rule::NoPanic.broken(text.unwrap_or_default()));
        Report { failure, ..Report::default() }
    })
}

/// Setup.
impl ClusterRun {
    fn new(settings: RunSettings) -> ClusterRun {
        let mut rng = Rng::with_seed(settings.seed);
        let identity = coordinator::ClusterIdentity { cluster: ClusterId(1), seed: rng.u64(..) };
        let workload = Workload::draw(&mut rng, &HashSeed::new(identity.seed), &settings);
        let size = ClusterSize::draw(&settings);
        let mut load = ClientLoad::draw(workload, &mut rng, &settings, size.servers);
        let network = Network::draw(&mut rng, &settings);
        let kinds = FaultSchedule::draw_kinds(&mut rng, &settings);
        let (profile, death_rates) = RunProfile::draw(&mut rng, settings, size, &mut load.workload);
        let mut cluster = SimulatedCluster::new(ClusterParts {
            timeline: RunTimeline::new(rng, Trace::new(profile.settings.is_printed)),
            coordinators: Coordinators::new(identity, &profile.settings),
            profile,
            network,
            faults: FaultSchedule::new(kinds, death_rates),
        });
        cluster.monitor.clocks.track(cluster.profile.replicas(), load.workload.expiring());
        let (rest_by, expired_by) = (Instant(0), Instant(0));
        let mut run = ClusterRun { cluster, load, worked: None, rest_by, expired_by };
        for place in 0..size.first {
            assert!(run.cluster.start_server(place), "a small cluster takes every server");
        }
        run.plan();
        run
    }

    /// Plans the first event of each kind.
    fn plan(&mut self) {
        let SimulatedCluster { timeline, profile, .. } = &mut self.cluster;
        // The ranges of a dead server are served again after a third of a second.
        let usual = if profile.replicas() > 0 { 400_000..2_000_000 } else { 200_000..800_000 };
        let end = timeline.micros(usual) * profile.slowness;
        let end = profile.settings.until.map_or(end, |until| end.min(until));
        timeline.plan_in(end, PlannedEvent::Rest);
        // Clients begin after the first map has arrived.
        for client in 0..self.load.clients.count() {
            self.load.clients.begins_to_think(client);
            timeline.plan_in(Duration::from_millis(5), PlannedEvent::Think(client));
        }
        if let Some(native) = &mut self.load.native {
            native.begin(timeline);
        }
        timeline.plan_in(Duration::from_millis(10), PlannedEvent::Move);
        for place in profile.size.first..profile.size.servers {
            let joins = timeline.micros(10_000..400_000) * profile.slowness;
            timeline.plan_in(joins, PlannedEvent::Start(place));
        }
        if profile.replicas() > 0 || profile.loses_power_in_memory() {
            timeline.plan_in(Duration::ZERO, PlannedEvent::Inspection);
        }
        self.cluster.begin_faults();
    }
}

/// Events.
impl ClusterRun {
    fn run(mut self) -> Report {
        while let Some(event) = self.cluster.timeline.next_event() {
            self.handle(event);
        }
        let failure = self.cluster.timeline.take_failure().or_else(|| self.judge());
        let (timeline, moves) = (&self.cluster.timeline, &self.cluster.moves);
        let moved = moves.succeeded();
        Report {
            trace: timeline.fingerprint(),
            operations: self.load.clients.operations(),
            moved,
            not_moved: moves.reports.len() - moved,
            worked: self.worked.unwrap_or(timeline.now.since(Instant(0))),
            refused: self.load.clients.refused(),
            source_values: self.load.native.as_ref().map_or(0, NativeClients::source_values),
            longest: self.load.clients.longest,
            coverage: self.cluster.faults.coverage.clone(),
            failure,
        }
    }

    fn handle(&mut self, event: PlannedEvent) {
        let cluster = &mut self.cluster;
        match event {
            PlannedEvent::Turn(at) => self.turn(at),
            PlannedEvent::Arrive(at, inbound) => {
                cluster.servers.deliver(at, inbound, &mut cluster.timeline);
            }
            PlannedEvent::Stream(at, end, input) => {
                self.on_streams(|streams, context| streams.arrive(at, end, input, context));
            }
            PlannedEvent::Room(at) => {
                self.on_streams(|streams, context| streams.resume(at, context))
            }
            PlannedEvent::Control(connection, end, input) => {
                cluster.on_control(connection, end, input);
            }
            PlannedEvent::Fenced(place) => self.kill(place, false),
            PlannedEvent::Answer(connection, bytes) => {
                self.load.receive(cluster, connection, bytes)
            }
            PlannedEvent::Think(client) => self.load.think(cluster, client),
            PlannedEvent::Broken(connection) => self.load.connection_broken(cluster, connection),
            PlannedEvent::Refused(slot) => self.load.connection_refused(cluster, slot),
            PlannedEvent::Retry(slot) => self.load.retry(cluster, slot),
            PlannedEvent::Native(event) => self.load.on_native(cluster, event),
            PlannedEvent::Move => self.request_move(),
            PlannedEvent::Fault => self.inject_fault(),
            PlannedEvent::Rejoin(place) => cluster.rejoin(place),
            PlannedEvent::Disk(at, job) => {
                let done = Inbound::Disk(job.carry_out());
                cluster.servers.deliver(at, done, &mut cluster.timeline);
            }
            PlannedEvent::Start(place) => self.start_again(place),
            PlannedEvent::Coordinator(number) => cluster.tick_coordinator(number),
            PlannedEvent::Committed(number, commit) => cluster.finish_commit(number, commit),
            PlannedEvent::Sever(connection) => {
                cluster.control.break_connection(connection, &mut cluster.timeline);
            }
            PlannedEvent::Lead => cluster.lead(),
            PlannedEvent::RestoreStore => cluster.restore_store(),
            PlannedEvent::Accident(accident) => self.strike(accident),
            PlannedEvent::Inspection => {
                cluster.inspect();
                self.check_available();
            }
            PlannedEvent::Rest => self.rest(),
        }
    }

    /// Runs a step of a reactor's turn.
    fn turn(&mut self, at: ReactorPlace) {
        if !self.cluster.begin_turn(at) {
            return;
        }
        let place = at.server;
        let mut out = Vec::new();
        let has_quantum = self.cluster.draw_quantum();
        self.cluster.run_reactor(at, false, &mut out, SimulatedReactor::listen);
        self.check_progress(place);
        let is_busy = self.cluster.run_reactor(at, has_quantum, &mut out, SimulatedReactor::turn);
        self.check_one_moment(place);
        self.cluster.servers.plan_next_turn(at, is_busy, &mut self.cluster.timeline);
        for outbound in out {
            match outbound {
                Outbound::Absent(migration, hashes) => {
                    self.cluster.monitor.record_absent(at, migration, &hashes);
                }
                Outbound::LossReported(replica) => {
                    self.cluster.faults.record_received_report(replica);
                }
                Outbound::Peer(sending) => self.cluster.send(at, sending),
                Outbound::Control(message) => self.cluster.send_up(place, message),
                Outbound::Bytes(connection, bytes) => {
                    self.load.send_reply(&mut self.cluster, connection, bytes);
                }
                Outbound::Closed(connection) => {
                    self.load.close_connection(&mut self.cluster, connection);
                }
                Outbound::Disk(job) => self.cluster.start_disk_job(at, job),
            }
        }
        self.on_streams(|streams, context| streams.flush(at, context));
        self.plant_in_store(place);
        self.check_progress(place);
        let SimulatedCluster { timeline, servers, losses, monitor, .. } = &mut self.cluster;
        monitor.check_tablets(place, servers, self.load.workload.slots(), losses, timeline);
        monitor.clocks.check_server(&servers[place], timeline);
        if servers[place].has_ended() {
            return self.kill(place, false);
        }
        servers.wake_all(place, timeline);
    }

    /// Lets the streams between servers handle an event, if there are any.
    fn on_streams(&mut self, handle: impl FnOnce(&mut Streams, &mut TrafficContext<'_>)) {
        let SimulatedCluster { streams, servers, network, losses, timeline, .. } =
            &mut self.cluster;
        if let Some(streams) = streams {
            handle(streams, &mut TrafficContext { servers, network, losses, timeline });
        }
    }

    /// Applies the planted bugs that change the records of a server.
    fn plant_in_store(&mut self, place: usize) {
        let inspector = &mut self.cluster.servers[place].inspector;
        let registers = &self.load.workload.registers;
        match self.cluster.profile.settings.planted {
            Some(Planted::ReclaimedWithoutTombstone) => {
                inspector.reclaim_without_tombstone(registers);
            }
            Some(Planted::DeleteWithoutTombstone) => inspector.drop_tombstones(registers),
            Some(Planted::PageOfOtherId) => inspector.adopt_orphans(),
            _ => {}
        }
    }

    fn check_progress(&mut self, place: usize) {
        let SimulatedCluster { timeline, servers, .. } = &mut self.cluster;
        monitor::check_progress(place, servers, &self.load.workload.registers, timeline);
    }

    /// Lets an operator ask for a move, and plans the next request.
    fn request_move(&mut self) {
        let SimulatedCluster { timeline, profile, servers, .. } = &mut self.cluster;
        let ranges_stay = profile.persistence.is_some() && !profile.persisted_ranges_move;
        let slowness = match timeline.phase {
            RunPhase::Working => profile.slowness,
            RunPhase::Enduring => ENDURING_SLOWNESS,
            RunPhase::Healing | RunPhase::Resting | RunPhase::Reading(_) => return,
        };
        if ranges_stay {
            return;
        }
        let ask = moves::draw_request(&profile.settings, &self.load.workload, servers, timeline);
        timeline.note(format_args!("request: {ask:?}"));
        self.cluster.ask(ask);
        let SimulatedCluster { timeline, profile, .. } = &mut self.cluster;
        let is_burst = timeline.rng.u32(..BURST_ONE_IN) == 0;
        let usual = if profile.settings.has(Knob::Moves) { 30_000 } else { 600_000 };
        let pause = if is_burst { Duration::ZERO } else { timeline.micros(500..usual) };
        timeline.plan_in(pause * slowness, PlannedEvent::Move);
    }
}
