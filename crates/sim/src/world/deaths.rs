//! Deaths where they are worst: right after a message of a protocol, several at a time, of all servers
//! at once, and of machines with what their disks had not synced. For servers that keep each other's
//! logs.
//!
//! What a mode promises decides what a run may do. Whatever it is, processes may die in any number and
//! order: their disks are there, with what the system had not written. In `disk` machines may, too. In
//! the other modes a machine that loses its power takes what was not synced with it, and a replica is
//! lost with each damaged block: so much is promised while fewer servers than replicas are down at
//! once. Runs that have such accidents have one at a time, and the next one when everything is whole.

use super::{Next, Part, SERVERS, World};
use crate::settings::{Knob, Settings};
use fastrand::Rng;
use server::engine::{Mode, Plan};
use store::TabletState;
use wire::control::{FromCoordinator, ToCoordinator};
use wire::peer::PeerMessage;

/// What becomes of the servers of a run that keep each other's logs.
#[derive(Debug, Default)]
pub(super) struct Deaths {
    /// After one message in so many, of those that change what is agreed on, somebody dies; 0: none.
    struck_one_in: u32,
    /// One death in so many is followed by another one at once; 0: none.
    twin_one_in: u32,
    /// Nobody dies unless all others are whole; then it may be the machine, or its disk.
    pub(super) is_one_at_a_time: bool,
    /// A disk has a damaged block.
    has_damage: bool,
}

/// What happens soon.
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
    /// Faults beside those of other runs.
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

    /// A message has been sent that changes what is agreed on: the next moment is a bad one to die.
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

    /// The same, of a message that goes to the coordinator or comes from there.
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

    /// One of the run's deaths: of the process, or of its machine.
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

    /// Everybody dies at once; where writes wait for the disk, mostly for lack of power.
    pub(super) fn black_out(&mut self) {
        let mode = self.kept.map(|keeps| keeps.mode());
        let loses_power = mode == Some(Mode::Disk) && self.rng.u32(..4) != 0;
        self.trace.note(self.now, format_args!("everybody dies"));
        (0..SERVERS).for_each(|place| self.die(place, loses_power));
        if self.rng.bool() {
            self.faults.retain(|fault| *fault != Knob::Blackout);
        }
    }

    /// A server hears neither others nor the coordinator, and its clients do not know.
    pub(super) fn isolate(&mut self, place: usize) {
        let Some(connection) = self.servers[place].link.connection.take() else { return };
        let until = self.now + self.absence(1_000_000);
        let id = self.servers[place].id;
        self.trace.note(self.now, format_args!("{id} hears nobody until {until}"));
        self.losses.silent.insert(place);
        self.servers[place].node.set_linked(false);
        self.hang_up(connection);
        self.plan_at(until, Next::Rejoin(place));
        for other in (0..SERVERS).filter(|other| *other != place) {
            self.cuts[place][other] = until;
            self.cuts[other][place] = until;
        }
    }

    /// A disk fails for a while; or it has damaged a block for good.
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

    /// Whether every server serves what it holds, and has all the replicas that it wants.
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

/// Whether a message between servers changes what is agreed on.
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

/// Whether what a server says to the coordinator does.
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
        | ToCoordinator::Will(_) => false,
    }
}

/// Whether what the coordinator says to a server does.
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
        | FromCoordinator::Kept { .. }
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
