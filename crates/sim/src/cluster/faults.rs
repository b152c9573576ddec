//! Faults beside those of messages: servers are partitioned or paused, clocks jump, disks fail.

use super::SimulatedCluster;
use crate::clock_faults::ClockFaults;
use crate::settings::Knob;
use crate::streams::Streams;
use crate::timeline::{Accident, PlannedEvent};
use std::time::Duration;
use types::{Instant, Version};

impl SimulatedCluster {
    /// Starts the faults: clocks differ from the beginning, all others come later.
    pub(crate) fn begin_faults(&mut self) {
        if self.faults.has(Knob::Clock) {
            self.faults.clocks = ClockFaults::draw(&mut self.timeline.rng, &self.profile.settings);
            (0..self.servers.len()).for_each(|place| self.jump_clock(place));
        }
        if self.faults.has(Knob::Store) {
            let one_in = [10, 40, 200][self.timeline.rng.usize(..3)];
            self.coordinators.set_store_failures(one_in);
        }
        self.faults.add_persistent(&self.profile, &mut self.timeline.rng);
        let delay = self.timeline.micros(20_000..200_000);
        self.timeline.plan_in(delay, PlannedEvent::Fault);
    }

    pub(crate) fn plan_fault(&mut self) {
        let again = self.timeline.micros(5_000..200_000) * self.profile.slowness;
        self.timeline.plan_in(again, PlannedEvent::Fault);
    }

    /// Ends all faults, so that everything can come to rest.
    pub(crate) fn end_faults(&mut self) {
        self.network.repair();
        self.streams.iter_mut().for_each(Streams::repair);
        self.control.repair();
        self.disks.repair_all();
        self.faults.end();
        self.coordinators.set_store_failures(0);
        self.end_former_coordinators();
    }

    /// Partitions two servers, in one direction or in both.
    pub(crate) fn partition_pair(&mut self, from: usize) {
        let servers = self.servers.len();
        let to = (from + self.timeline.rng.usize(1..servers)) % servers;
        let until = self.timeline.now + self.draw_outage(600_000);
        let is_both_ways = self.timeline.rng.bool();
        let (one, other) = (self.servers[from].id, self.servers[to].id);
        let way = if is_both_ways { "and back" } else { "one way" };
        self.timeline.note(format_args!("cut from {one} to {other} {way} until {until}"));
        self.network.partition(from, to, until);
        self.losses.silent.extend([from, to]);
        if is_both_ways {
            self.network.partition(to, from, until);
        }
    }

    /// Partitions a server from the coordinator and all servers, but not from its clients, until
    /// the given time or for a while.
    pub(crate) fn partition_server(&mut self, place: usize, until: Option<Instant>) {
        if !self.servers[place].link.is_connected {
            return;
        }
        let until = until.unwrap_or_else(|| self.timeline.now + self.draw_outage(1_000_000));
        let id = self.servers[place].id;
        self.timeline.note(format_args!("{id} is cut off until {until}"));
        self.losses.silent.insert(place);
        self.control.cut(place, until);
        for other in (0..self.profile.size.servers).filter(|other| *other != place) {
            self.network.partition(place, other, until);
            self.network.partition(other, place, until);
        }
    }

    /// Pauses a server without its knowledge, until the given time or for a while.
    pub(crate) fn pause(&mut self, place: usize, until: Option<Instant>) {
        let until = until.unwrap_or_else(|| self.timeline.now + self.draw_outage(700_000));
        let server = &mut self.servers[place];
        self.timeline.note(format_args!("{} pauses until {until}", server.id));
        self.losses.silent.insert(place);
        server.paused_until = until;
    }

    /// Sets a server's wall clock forward or back.
    pub(crate) fn jump_clock(&mut self, place: usize) {
        let ahead = self.faults.clocks.draw_ahead(&mut self.timeline.rng);
        let server = &mut self.servers[place];
        self.timeline.note(format_args!("the clock of {} is {ahead} ms ahead", server.id));
        server.clock_ahead_millis = ahead;
    }

    /// Lets a disk fail for a while, or damages a block of it for good.
    pub(crate) fn trouble_disk(&mut self, place: usize) {
        let id = self.servers[place].id;
        if !self.faults.is_one_at_a_time() {
            let Some(mode) = self.profile.mode() else { return };
            let faults = self.disks.disk_mut(place).inject_faults(&mut self.timeline.rng, mode);
            self.timeline.note(format_args!("the disk of {id} fails: {faults:?}"));
            self.losses.failing.insert(place);
            let until = self.timeline.micros(1_000..200_000);
            self.faults.extend_outages(self.timeline.now + until);
            let repair = PlannedEvent::Accident(Accident::DiskRecovers(place));
            return self.timeline.plan_in(until, repair);
        }
        if self.faults.damage.is_none() && self.is_whole() {
            let damaged = self.disks.disk_mut(place).damage(&mut self.timeline.rng, |_| true);
            if let Some(replica) = damaged {
                self.faults.record_damage(replica, id, &mut self.timeline);
            }
        }
    }

    /// Records up to which version each server has drawn, if its machine loses power in mode
    /// `memory` and nothing disturbs its syncs.
    pub(crate) fn note_versions(&mut self) {
        if !self.profile.loses_power_in_memory() {
            return;
        }
        let SimulatedCluster { servers, disks, faults, losses, timeline, .. } = self;
        let now = timeline.now;
        let have_caught_up = disks.have_caught_up(now);
        for (place, server) in servers.iter_mut().enumerate() {
            let is_well = !server.is_dead
                && server.paused_until <= now
                && server.node.durability().load_progress().is_none()
                && !losses.failing.contains(&place)
                && faults.is_disk_slow(place, now) != Some(true);
            match is_well && have_caught_up {
                true => server.drawn.add(now, server.node.store().version()),
                false => server.drawn.clear(),
            }
        }
    }

    /// Returns a version up to which a server in mode `memory` must have synced everything by now.
    pub(crate) fn due_version(&self, place: usize) -> Option<Version> {
        let unsynced_max = self.profile.unsynced_max().filter(|max| {
            self.profile.loses_power_in_memory() && self.timeline.now.0 > max.as_nanos() as u64
        })?;
        let moment = Instant(self.timeline.now.0 - unsynced_max.as_nanos() as u64);
        self.servers[place].drawn.at(moment)
    }

    /// Returns whether every server serves its ranges and has all the replicas that it needs.
    pub(crate) fn is_whole(&self) -> bool {
        let now = self.timeline.now;
        self.servers.is_whole(now) && self.disks.have_caught_up(now)
    }

    /// Draws the duration of an outage, usually up to `usual` microseconds.
    pub(super) fn draw_outage(&mut self, usual: u64) -> Duration {
        self.faults.draw_outage(usual, &self.profile, &mut self.timeline)
    }
}
