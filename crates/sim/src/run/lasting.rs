//! The phase of a run in which one fault lasts and clients must be served.

use super::ClusterRun;
use crate::cluster::SimulatedCluster;
use crate::failure::Rule;
use crate::lasting::{LastingFault, LastingKind};
use crate::redundancy;
use crate::timeline::{PlannedEvent, RunPhase};
use crate::workload::ClientJob;
use node::Mode;
use std::time::Duration;

impl ClusterRun {
    /// Begins the fault that lasts. The cluster is whole, and has no other fault.
    pub(super) fn begin_lasting_fault(&mut self, kind: LastingKind) {
        let cluster = &mut self.cluster;
        let SimulatedCluster { timeline, profile, servers, disks, network, faults, losses, .. } =
            cluster;
        let (count, now) = (servers.len(), timeline.now);
        if let Err(failure) = redundancy::check(servers, disks, faults, profile, now) {
            timeline.fail(failure);
        }
        // Without the server and its master, the others may be too few for all replicas.
        let is_needed = count - 2 < usize::from(profile.replicas()) || profile.has_small_segments();
        let awaits_syncs = profile.mode() == Some(Mode::Disk);
        let rng = &mut timeline.rng;
        let fault = LastingFault::draw(kind, count, is_needed, awaits_syncs, now, rng);
        let LastingFault { place, other, until, .. } = fault;
        let id = servers[place].id;
        timeline.note(format_args!("until {until}: {kind} at {id} ({})", servers[other].id));
        timeline.phase = RunPhase::Enduring;
        faults.lasting = Some(fault);
        match kind {
            LastingKind::PairPartition => {
                losses.silent.extend([place, other]);
                network.partition(place, other, until);
                if timeline.rng.bool() {
                    network.partition(other, place, until);
                }
            }
            LastingKind::CoordinatorPartition => {
                cluster.break_link(place);
                cluster.control.cut(place, until);
            }
            LastingKind::CoordinatorAway => cluster.restart_coordinator(until),
            LastingKind::DeadServer => self.kill(place, false),
            LastingKind::Partition => cluster.partition_server(place, Some(until)),
            LastingKind::PausedServer => cluster.pause(place, Some(until)),
            LastingKind::SlowDisk => {
                losses.failing.insert(place);
                faults.slow_disk(place, until);
            }
            LastingKind::FullDisk => {
                losses.failing.insert(place);
                cluster.disks.disk(place).fill();
            }
        }
        let SimulatedCluster { timeline, .. } = &mut self.cluster;
        timeline.plan_in(Duration::ZERO, PlannedEvent::Move);
        self.load.wake_native(timeline);
        for client in 0..self.load.clients.count() {
            if self.load.clients.begins_to_think(client) {
                timeline.plan_in(Duration::ZERO, PlannedEvent::Think(client));
            }
        }
    }

    /// Checks that every open operation still has some of its budget. Before that, clients notice
    /// at the end of the adaptation that a server is silent, as by time-outs.
    pub(super) fn check_available(&mut self) {
        let SimulatedCluster { timeline, faults, .. } = &mut self.cluster;
        let is_enduring = timeline.phase == RunPhase::Enduring;
        let Some(fault) = faults.lasting.as_mut().filter(|_| is_enduring) else { return };
        let was_noticed = fault.is_noticed;
        fault.is_noticed = fault.adapted_at() <= timeline.now;
        let fault = *fault;
        if let Some(place) = fault.mute_place().filter(|_| fault.is_noticed && !was_noticed) {
            self.load.give_up_server(&mut self.cluster, place);
        }
        let timeline = &mut self.cluster.timeline;
        let late = self.load.clients.open().find(|open| {
            matches!(open.job, ClientJob::Operation(..))
                && fault.deadline(open.since) < timeline.now
        });
        let native = self.load.native.iter().flat_map(|native| native.open());
        let mut native = native.filter(|job| fault.native_deadline(job.since) < timeline.now);
        if let Some(job) = native.next() {
            timeline.fail(Rule::Available.broken(format!("{job:?}, during {fault:?}")));
        }
        if let Some(open) = late {
            let text = format!("{:?}, begun at {}, during {fault:?}", open.job, open.since);
            timeline.fail(Rule::Available.broken(text));
        }
    }
}
