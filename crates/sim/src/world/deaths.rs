//! Deaths of replicated servers at the worst moments: right after a protocol message, several at
//! a time, all servers at once, and machines with everything that their disks had not synced.
//!
//! The durability mode decides which accidents a run may have. In every mode processes may die in
//! any number and order: their disks survive, with the bytes that the operating system had not
//! written. In `disk`, machines may fail as well. In the other modes a machine that loses power
//! loses its unsynced bytes, and a damaged block loses a replica; these modes promise durability
//! only while fewer servers than replicas are down at once. Such accidents therefore happen one
//! at a time, and the next one only when everything is whole again.

use super::{Next, Part, SERVERS, World};
use crate::settings::{Knob, Settings};
use fastrand::Rng;
use node::{Mode, Plan};
use store::TabletState;
use wire::control::{FromCoordinator, ToCoordinator};
use wire::peer::PeerMessage;

/// Death settings of a run with replicated servers.
#[derive(Debug, Default)]
pub(super) struct Deaths {
    /// One in this many messages that change agreed state triggers a death; 0: none.
    struck_one_in: u32,
    /// One death in this many triggers another one shortly after; 0: none.
    twin_one_in: u32,
    /// Set if servers die only while all others are whole; then machines and disks may fail as
    /// well.
    pub(super) is_one_at_a_time: bool,
    /// Set once a disk has a damaged block.
    has_damage: bool,
}

/// Planned accident or repair.
#[derive(Clone, Copy, Debug)]
pub(super) enum Strike {
    Server(usize),
    Coordinator,
    /// A disk works again.
    Mend(usize),
}

impl Deaths {
    pub(super) fn draw(rng: &mut Rng, settings: &Settings, plan: Plan) -> Deaths {
        let struck_one_in = [0, 60, 400][rng.usize(..3)];
        let twin_one_in = [0, 2, 6][rng.usize(..3)];
        let is_one_at_a_time = rng.u32(..3) == 0 && plan.replicas > 1;
        let has = |knob, number| if settings.has(knob) { number } else { 0 };
        Deaths {
            struck_one_in: has(Knob::Deaths, struck_one_in),
            twin_one_in: has(Knob::Deaths, twin_one_in),
            is_one_at_a_time: is_one_at_a_time && settings.has(Knob::Machines),
            has_damage: false,
        }
    }
}

impl World {
    /// Adds the faults that only replicated runs have.
    pub(super) fn add_faults_of_the_replicated(&mut self) {
        if self.replicas() == 0 {
            return;
        }
        if self.deaths.is_one_at_a_time {
            self.faults.retain(|fault| matches!(fault, Knob::Crash | Knob::Clock));
        } else {
            for fault in [Knob::Blackout, Knob::Island] {
                if self.rng.u32(..3) == 0 && self.settings.has(fault) {
                    self.faults.push(fault);
                }
            }
        }
        if self.rng.bool() && self.settings.has(Knob::Disk) {
            self.faults.push(Knob::Disk);
        }
        if self.rng.u32(..3) == 0 && self.settings.has(Knob::Rollback) {
            self.faults.push(Knob::Rollback);
        }
    }

    /// May plan a death, since a message that changes agreed state was just sent between these
    /// places.
    pub(super) fn tempt(&mut self, places: [usize; 2]) {
        let one_in = self.deaths.struck_one_in;
        let may_strike = one_in > 0
            && self.part == Part::Working
            && self.replicas() > 0
            && self.faults.contains(&Knob::Crash);
        if !may_strike || self.rng.u32(..one_in) != 0 {
            return;
        }
        let soon = [10, 300, 3_000][self.rng.usize(..3)];
        let soon = self.micros(0..soon);
        let is_coordinator = self.faults.contains(&Knob::Restart) && self.rng.u32(..3) == 0;
        let strike = match is_coordinator {
            true => Strike::Coordinator,
            false => Strike::Server(places[self.rng.usize(..2)]),
        };
        self.plan_in(soon, Next::Strike(strike));
    }

    /// Does the same for a message to or from the coordinator.
    pub(super) fn tempt_any(&mut self, place: usize) {
        if self.deaths.struck_one_in > 0 {
            let other = (place + self.rng.usize(1..SERVERS)) % SERVERS;
            self.tempt([place, other]);
        }
    }

    pub(super) fn strike(&mut self, strike: Strike) {
        match strike {
            Strike::Mend(place) => self.disks[place].mend(),
            Strike::Server(_) | Strike::Coordinator if self.part != Part::Working => {}
            Strike::Server(place) => self.crash(place),
            Strike::Coordinator => self.restart_coordinator(),
        }
    }

    /// Kills a server as one of the run's faults: its process, or its machine.
    pub(super) fn crash(&mut self, place: usize) {
        if self.servers[place].is_dead || self.deaths.is_one_at_a_time && !self.is_whole() {
            return;
        }
        let mode = self.kept.map(|keeps| keeps.mode());
        let may_lose_power = mode == Some(Mode::Disk) || self.deaths.is_one_at_a_time;
        let loses_power = may_lose_power && self.rng.bool();
        self.die(place, loses_power);
        let twin = self.deaths.twin_one_in;
        if twin > 0 && self.replicas() > 0 && self.rng.u32(..twin) == 0 {
            let other = (place + self.rng.usize(1..SERVERS)) % SERVERS;
            let soon = self.micros(0..20_000);
            self.plan_in(soon, Next::Strike(Strike::Server(other)));
        }
    }

    /// Kills all servers at once; in `disk`, mostly by a power failure.
    pub(super) fn black_out(&mut self) {
        let mode = self.kept.map(|keeps| keeps.mode());
        let loses_power = mode == Some(Mode::Disk) && self.rng.u32(..4) != 0;
        self.trace.note(self.now, format_args!("all servers die"));
        (0..SERVERS).for_each(|place| self.die(place, loses_power));
        if self.rng.bool() {
            self.faults.retain(|fault| *fault != Knob::Blackout);
        }
    }

    /// Cuts a server off from the coordinator and all servers, but not from its clients.
    pub(super) fn isolate(&mut self, place: usize) {
        let Some(connection) = self.servers[place].link.connection.take() else { return };
        let until = self.now + self.absence(1_000_000);
        let id = self.servers[place].id;
        self.trace.note(self.now, format_args!("{id} is cut off until {until}"));
        self.losses.silent.insert(place);
        self.servers[place].node.set_linked(false);
        self.hang_up(connection);
        self.plan_at(until, Next::Rejoin(place));
        for other in (0..SERVERS).filter(|other| *other != place) {
            self.cuts[place][other] = until;
            self.cuts[other][place] = until;
        }
    }

    /// Lets a disk fail for a while, or damages a block of it for good.
    pub(super) fn trouble_disk(&mut self, place: usize) {
        if !self.deaths.is_one_at_a_time {
            let id = self.servers[place].id;
            let Some(mode) = self.kept.map(|keeps| keeps.mode()) else { return };
            let faults = self.disks[place].trouble(&mut self.rng, mode);
            self.trace.note(self.now, format_args!("the disk of {id} fails: {faults:?}"));
            self.losses.failing.insert(place);
            let until = self.micros(1_000..200_000);
            self.away_until = self.away_until.max(self.now + until);
            return self.plan_in(until, Next::Strike(Strike::Mend(place)));
        }
        if !self.deaths.has_damage && self.is_whole() {
            self.deaths.has_damage = self.disks[place].damage(&mut self.rng);
            let id = self.servers[place].id;
            self.trace.note(self.now, format_args!("a block of {id}'s disk is damaged"));
        }
    }

    /// Returns whether every server serves its ranges and has all the replicas that it needs.
    pub(super) fn is_whole(&self) -> bool {
        let newest = self.servers.iter().map(|server| server.node.map().version).max();
        self.servers.iter().all(|server| {
            let replication = server.node.replication();
            let has_replicas = replication.is_some_and(|replication| {
                replication.is_leased(self.now) && replication.under_replicated() == 0
            });
            let (map, tablets) = (server.node.map(), server.node.store().tablets());
            let is_recovering =
                tablets.iter().any(|tablet| matches!(tablet.state, TabletState::Recovering(_)));
            let are_there = map.servers.iter().all(|other| self.place(other.id).is_some());
            !server.is_dead
                && server.link.connection.is_some()
                && has_replicas
                && Some(map.version) == newest
                && are_there
                && !is_recovering
        })
    }
}

/// Returns whether a message between servers changes agreed state.
pub(super) fn is_telling(message: &PeerMessage) -> bool {
    match message {
        PeerMessage::Append(append) => {
            append.header.is_some() && (append.from == 0 || append.is_last || is_chain(append))
        }
        PeerMessage::Flip(_)
        | PeerMessage::FlipAnswer { .. }
        | PeerMessage::Release { .. }
        | PeerMessage::Released { .. }
        | PeerMessage::RecoveryReply(_) => true,
        PeerMessage::Pull(_)
        | PeerMessage::PullReply(_)
        | PeerMessage::PriorityPull(_)
        | PeerMessage::PriorityReply(_)
        | PeerMessage::Appended(_)
        | PeerMessage::Needed { .. }
        | PeerMessage::RecoveryRead(_)
        | PeerMessage::Ping
        | PeerMessage::Pong => false,
    }
}

fn is_chain(append: &wire::peer::Append) -> bool {
    append.kind == wire::replica::ReplicaKind::Directory
}

/// Returns whether a message from a server to the coordinator changes agreed state.
pub(super) fn is_telling_up(message: &ToCoordinator) -> bool {
    match message {
        ToCoordinator::Prepared { .. }
        | ToCoordinator::Flipped { .. }
        | ToCoordinator::Decided { .. }
        | ToCoordinator::Shrink { .. }
        | ToCoordinator::Released { .. }
        | ToCoordinator::Chain { .. }
        | ToCoordinator::Fenced { .. }
        | ToCoordinator::DirectoryRead { .. }
        | ToCoordinator::Replayed { .. }
        | ToCoordinator::Recovered { .. }
        | ToCoordinator::NotRecovered { .. }
        | ToCoordinator::Damaged { .. }
        | ToCoordinator::LogFreed { .. } => true,
        ToCoordinator::Join(_)
        | ToCoordinator::Measured { .. }
        | ToCoordinator::FlipUnanswered { .. }
        | ToCoordinator::Progress { .. }
        | ToCoordinator::Ask { .. }
        | ToCoordinator::IsNeeded { .. }
        | ToCoordinator::Pong { .. }
        | ToCoordinator::Clock(_)
        | ToCoordinator::Suspect { .. }
        | ToCoordinator::Witnessed { .. }
        | ToCoordinator::KnownMap(_)
        | ToCoordinator::Holds(_)
        | ToCoordinator::Holding { .. }
        | ToCoordinator::LoadProfile(_) => false,
    }
}

/// Returns whether a message from the coordinator to a server changes agreed state.
pub(super) fn is_telling_down(message: &FromCoordinator) -> bool {
    match message {
        FromCoordinator::Prepare(_)
        | FromCoordinator::Start(_)
        | FromCoordinator::Decide { .. }
        | FromCoordinator::Outcome { .. }
        | FromCoordinator::Forget { .. }
        | FromCoordinator::Finished { .. }
        | FromCoordinator::ChainNoted { .. }
        | FromCoordinator::Fence { .. }
        | FromCoordinator::ReadDirectory { .. }
        | FromCoordinator::Recover(_)
        | FromCoordinator::RecoveryConfirmed { .. }
        | FromCoordinator::FreeLog { .. } => true,
        FromCoordinator::Welcome { .. }
        | FromCoordinator::Rejected { .. }
        | FromCoordinator::Map(_)
        | FromCoordinator::Measure { .. }
        | FromCoordinator::Answer { .. }
        | FromCoordinator::Ping
        | FromCoordinator::Clock(_)
        | FromCoordinator::Witness { .. }
        | FromCoordinator::Describe
        | FromCoordinator::Mark(_)
        | FromCoordinator::Waiting { .. } => false,
    }
}
