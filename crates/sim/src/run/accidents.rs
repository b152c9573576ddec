//! Faults and deaths as they happen, and the processes that start in place of dead ones.

use super::ClusterRun;
use crate::cluster::SimulatedCluster;
use crate::losses::is_in_doubt;
use crate::power;
use crate::settings::Knob;
use crate::streams::ProcessEnd;
use crate::timeline::{Accident, PlannedEvent};
use node::Mode;
use store::TabletState;
use types::HashRange;

/// Faults.
impl ClusterRun {
    /// Lets one of the run's faults happen, and plans the next one.
    pub(super) fn inject_fault(&mut self) {
        let cluster = &mut self.cluster;
        if !cluster.timeline.is_working() || cluster.faults.is_empty() {
            return;
        }
        let Some(place) = cluster.servers.draw_live(&mut cluster.timeline) else {
            return cluster.plan_fault();
        };
        let fault = cluster.faults.draw_fault(&mut cluster.timeline.rng);
        let SimulatedCluster { faults, servers, coordinators, timeline, .. } = cluster;
        faults.coverage.record(fault, servers, coordinators, timeline.now);
        match fault {
            Knob::Link => cluster.break_link(place),
            Knob::PairPartition => cluster.partition_pair(place),
            Knob::Pause => cluster.pause(place, None),
            Knob::Clock => cluster.jump_clock(place),
            Knob::Restart => cluster.restart_coordinator(cluster.timeline.now),
            Knob::Absence => {
                let until = cluster.timeline.now + cluster.timeline.micros(50_000..1_500_000);
                cluster.faults.extend_outages(until);
                cluster.restart_coordinator(until);
            }
            Knob::SlowDisk => {
                let SimulatedCluster { faults, losses, timeline, .. } = cluster;
                faults.begin_slow_disk(place, losses, timeline);
            }
            Knob::Takeover => cluster.take_over(),
            Knob::Rollback => self.roll_back(place),
            // The store fails at random by itself.
            Knob::Store => {}
            Knob::Blackout => self.black_out(),
            Knob::Partition => cluster.partition_server(place, None),
            Knob::Disk => cluster.trouble_disk(place),
            Knob::Crash => self.crash_once_or_more(place),
            Knob::SlowStore
            | Knob::FarClocks
            | Knob::Memory
            | Knob::Deaths
            | Knob::Lasting
            | Knob::Machines
            | Knob::Large
            | Knob::Follower
            | Knob::Joins
            | Knob::Small
            | Knob::Long
            | Knob::MessageFaults
            | Knob::Streams
            | Knob::Moves
            | Knob::Cancels
            | Knob::Retries
            | Knob::Pipelines
            | Knob::Flushes
            | Knob::LocalLog
            | Knob::Replicated
            | Knob::Lineage
            | Knob::Expiry
            | Knob::Lifetimes
            | Knob::Types
            | Knob::Versions
            | Knob::Native
            | Knob::Collections
            | Knob::Once => unreachable!("no fault"),
        }
        self.cluster.plan_fault();
    }

    /// Kills a server. Without logs this is often the last crash of the run, because there are few
    /// servers, and lost data cannot be lost twice.
    fn crash_once_or_more(&mut self, place: usize) {
        self.crash(place);
        let cluster = &mut self.cluster;
        if cluster.profile.persistence.is_none() && cluster.timeline.rng.u32(..3) != 0 {
            cluster.faults.remove(Knob::Crash);
        }
    }

    /// Lets a planned accident or repair happen.
    pub(super) fn strike(&mut self, accident: Accident) {
        let is_working = self.cluster.timeline.is_working();
        let SimulatedCluster { faults, servers, coordinators, timeline, .. } = &mut self.cluster;
        if is_working && !matches!(accident, Accident::DiskRecovers(_)) {
            faults.coverage.record(Knob::Deaths, servers, coordinators, timeline.now);
        }
        match accident {
            Accident::DiskRecovers(place) => self.cluster.disks.disk(place).repair(),
            Accident::ServerDies(place) if is_working => self.crash(place),
            Accident::CoordinatorStops if is_working => {
                self.cluster.restart_coordinator(self.cluster.timeline.now)
            }
            Accident::ServerDies(_) | Accident::CoordinatorStops => {}
        }
    }

    /// Kills a server as one of the run's faults: its process, or its machine.
    fn crash(&mut self, place: usize) {
        let cluster = &mut self.cluster;
        let is_one_at_a_time = cluster.faults.is_one_at_a_time();
        let is_there = cluster.servers.get(place).is_some_and(|server| !server.is_dead);
        if !is_there || is_one_at_a_time && !cluster.is_whole() {
            return;
        }
        let may_lose_power = cluster.profile.mode() == Some(Mode::Disk)
            || is_one_at_a_time
            || cluster.profile.loses_power;
        let loses_power = may_lose_power && cluster.timeline.rng.bool();
        self.kill(place, loses_power);
        let SimulatedCluster { faults, profile, timeline, .. } = &mut self.cluster;
        faults.may_strike_twin(place, profile, timeline);
    }

    /// Kills all servers at once; in `disk`, mostly by a power failure.
    fn black_out(&mut self) {
        let cluster = &mut self.cluster;
        let is_durable = cluster.profile.mode() == Some(Mode::Disk);
        let loses_power = is_durable && cluster.timeline.rng.u32(..4) != 0;
        cluster.timeline.note(format_args!("all servers die"));
        (0..cluster.servers.len()).for_each(|place| self.kill(place, loses_power));
        if self.cluster.timeline.rng.bool() {
            self.cluster.faults.remove(Knob::Blackout);
        }
    }

    /// Copies a store or folder, or restores an earlier copy.
    fn roll_back(&mut self, place: usize) {
        match self.cluster.faults.is_one_at_a_time() {
            true => self.roll_back_folder(place),
            false => self.cluster.roll_back_store(),
        }
    }

    /// Copies the folder of a server; or kills the server and restores an earlier copy for the
    /// next process. The disk loses later data, which a run may do to one disk at a time.
    fn roll_back_folder(&mut self, place: usize) {
        let cluster = &mut self.cluster;
        let Some(copied) = cluster.disks.copied_place() else {
            return cluster.disks.copy_folder(place);
        };
        if cluster.is_whole() && !cluster.servers[copied].is_dead {
            let id = cluster.servers[copied].id;
            cluster.timeline.note(format_args!("an old copy of {id}'s folder is restored"));
            self.kill(copied, false);
            self.cluster.disks.restore_folder();
        }
    }
}

/// Deaths.
impl ClusterRun {
    /// Kills a process, and drops its memory and everything in transit to it. With `loses_power`,
    /// its machine fails as well.
    pub(super) fn kill(&mut self, place: usize, loses_power: bool) {
        let cluster = &mut self.cluster;
        // At least one server must remain to be asked.
        let is_last = cluster.profile.replicas() == 0 && cluster.servers.live().count() < 2;
        if cluster.servers[place].is_dead || is_last {
            return;
        }
        let id = cluster.servers[place].id;
        let is_persistent = cluster.profile.persistence.is_some();
        cluster.timeline.note(format_args!("{id} dies"));
        if cluster.profile.replicas() > 0 {
            let SimulatedCluster { monitor, servers, timeline, .. } = cluster;
            let registers = &self.load.workload.registers;
            monitor.acknowledged.remember(&mut servers[place], registers, timeline.now);
        }
        cluster.losses.dead.insert(id, place);
        let newest = cluster.servers.iter().map(|server| server.id).max().unwrap_or(id);
        let (server, now) = (&cluster.servers[place], cluster.timeline.now);
        cluster.monitor.clocks.record_death(server, newest, now);
        if loses_power && cluster.profile.loses_power {
            self.record_power_loss(place);
        }
        let cluster = &mut self.cluster;
        match is_persistent {
            true if loses_power && cluster.profile.loses_power => {
                let mode = cluster.profile.mode();
                let due = cluster.due_version(place);
                cluster.disks.lose_power((place, id), mode, due, &mut cluster.timeline)
            }
            true => cluster.disks.lose_unwritten(place, id, loses_power, &mut cluster.timeline),
            false => self.record_losses(place),
        }
        let SimulatedCluster { timeline, profile, servers, control, streams, .. } =
            &mut self.cluster;
        timeline.cancel_events_at(place);
        let mut losing = Vec::new();
        if profile.is_followed {
            self.load.follow_death(place, timeline.now);
            losing = self.load.follower.losing_places(servers.len());
            timeline.cancel_messages_from(id, &losing);
        }
        if let Some(streams) = streams {
            let how = |other| match loses_power {
                true => ProcessEnd::Silent,
                false if losing.contains(&other) => ProcessEnd::Reset,
                false => ProcessEnd::Closed,
            };
            streams.process_died(place, how, timeline);
        }
        let server = &mut servers[place];
        server.is_dead = true;
        server.reactors.clear();
        server.link.connection = None;
        server.link.is_connected = false;
        control.server_died(place, loses_power, timeline);
        self.load.break_connections(place, timeline);
        if let Some(native) = &mut self.load.native {
            native.server_died(place, loses_power, timeline);
        }
        if is_persistent || timeline.rng.u32(..4) != 0 {
            let away = timeline.micros(500..1_500_000);
            timeline.plan_in(away, PlannedEvent::Start(place));
        }
    }

    /// Starts another process at the address of a dead one, or the first one at its address.
    pub(super) fn start_again(&mut self, place: usize) {
        let cluster = &mut self.cluster;
        if let Some(fault) = cluster.faults.lasting.filter(|fault| fault.keeps_dead(place)) {
            return cluster.timeline.plan_at(fault.until, PlannedEvent::Start(place));
        }
        let ahead = cluster.servers.get(place).map(|server| server.clock_ahead_millis);
        // The first servers at their places join in order.
        if place > cluster.servers.len() || !cluster.start_server(place) {
            let again = cluster.timeline.micros(10_000..500_000);
            return cluster.timeline.plan_in(again, PlannedEvent::Start(place));
        }
        let server = &mut cluster.servers[place];
        match ahead {
            Some(ahead) => {
                server.clock_ahead_millis = ahead;
                cluster.timeline.note(format_args!("{} starts in place of a dead one", server.id));
            }
            None => cluster.timeline.note(format_args!("{} joins", server.id)),
        }
    }

    /// Records that the data of a server may have the state of an earlier moment. Their parts must
    /// be of the same moment.
    fn record_power_loss(&mut self, place: usize) {
        let cluster = &mut self.cluster;
        let tablets = cluster.servers[place].node.store().tablets();
        for tablet in tablets.iter() {
            let lost: Vec<usize> = self.load.workload.registers_in(tablet.range).collect();
            for register in lost {
                self.load.lose(register);
                cluster.monitor.clocks.ignore(register);
            }
        }
    }

    /// Checks what a server has found after a loss of power, as soon as it has loaded its log.
    pub(super) fn check_one_moment(&mut self, place: usize) {
        let SimulatedCluster { servers, disks, timeline, .. } = &mut self.cluster;
        let server = &mut servers[place];
        let is_loaded = !server.is_dead && server.node.durability().load_progress().is_none();
        if !disks.has_loss(place) || !is_loaded {
            return;
        }
        if let Some(loss) = disks.take_loss(place)
            && let Err(failure) = power::check(&loss, server)
        {
            timeline.fail(failure);
        }
    }

    /// Records the data that has died with a server that does not persist its log.
    fn record_losses(&mut self, place: usize) {
        let workload = &self.load.workload;
        let cluster = &mut self.cluster;
        let id = cluster.servers[place].id;
        let reports = cluster.coordinators.reports();
        let mut excused: Vec<HashRange> = Vec::new();
        let tablets = cluster.servers[place].node.store().tablets();
        for tablet in tablets.iter() {
            match &tablet.state {
                TabletState::Serving | TabletState::Securing(_) => {
                    cluster.losses.record_gone(tablet.range);
                }
                // The source may not know yet that the flip was accepted, and may serve again.
                TabletState::Arriving(arrival) if is_in_doubt(&reports, arrival.migration()) => {
                    for register in workload.registers_in(tablet.range) {
                        self.load.clients.lose(register);
                        cluster.monitor.clocks.ignore(register);
                    }
                    // The source then serves under its earlier epoch.
                    cluster.monitor.forget_epochs(tablet.range);
                }
                TabletState::Arriving(_) => cluster.losses.record_gone(tablet.range),
                TabletState::Frozen => {}
                // The rest has arrived at the target, or is excused below.
                TabletState::Leaving => continue,
                // The dead server never owned the range: another one recovers it.
                TabletState::Recovering(_) => continue,
            }
            excused.push(tablet.range);
        }
        // The coordinator has no confirmation from the owner, so these ranges were never served.
        let map = cluster.servers[place].node.map();
        let born = map.tablets.iter().filter(|tablet| tablet.owner == id && tablet.is_born);
        for range in born.map(|tablet| tablet.range) {
            excused.push(range);
            cluster.losses.record_unconfirmed(range);
        }
        for range in excused {
            cluster.losses.excuse(workload.registers_in(range));
        }
        cluster.losses.excuse_not_arrived(id, &mut cluster.servers, &workload.registers);
    }
}
