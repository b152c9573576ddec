//! Whoever makes the processes of a cluster fail while clients use it, and lets it heal.
//!
//! Every fault ends with a cluster that is whole again by itself: all that happens from outside is
//! that a process is started, goes on, gets space or is reached again.

use crate::client::until;
use crate::disks::SmallDisk;
use crate::network::Network;
use crate::seats::{Plan, Seat, Seats};
use crate::workers::Crowd;
use bench::clock;
use std::time::Duration;
use types::Instant;

/// What can happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// A server is killed, and started again: at once, or when others serve what it held.
    Kill,
    /// Two servers are killed, one soon after the other, and started again.
    KillTwo,
    /// All servers are killed at once, and started again in any order.
    KillAll,
    /// The same with the coordinator.
    KillEverybody,
    /// The coordinator is killed, and started again after a while.
    KillCoordinator,
    /// A server is killed while there is no coordinator.
    KillUnseen,
    /// A server is killed, and the coordinator while others recover what it held.
    KillRecovering,
    /// A server is stopped until others serve what it held, and goes on.
    Stop,
    /// A server is stopped for a moment: it may or may not have been missed.
    Pause,
    /// A server's disk gets full.
    FillDisk,
    /// Nobody hears of a server, for a moment or until others serve what it held.
    Isolate,
    /// Two servers, or a server and the coordinator, do not hear of each other for a while.
    Cut,
}

impl Fault {
    pub(crate) const ALL: [Fault; 12] = [
        Fault::Kill,
        Fault::KillTwo,
        Fault::KillAll,
        Fault::KillEverybody,
        Fault::KillCoordinator,
        Fault::KillUnseen,
        Fault::KillRecovering,
        Fault::Stop,
        Fault::Pause,
        Fault::FillDisk,
        Fault::Isolate,
        Fault::Cut,
    ];
}

/// Operations that clients do between two faults.
const OPERATIONS: (u64, u64) = (200, 4_000);
/// Operations that must be possible while a fault lasts that a cluster should hardly notice.
const OPERATIONS_DURING: u64 = 1_000;
/// The same for a disk that is full: so many that new replicas have to be begun, on other disks.
const OPERATIONS_ON_A_FULL_DISK: u64 = 15_000;
/// How long a pause lasts at least and at most: around the read lease of 100 ms and the time after
/// which a server counts as dead.
const PAUSES_MS: (u64, u64) = (20, 1_500);
/// When a server is missed at the earliest, and when others usually serve what it held.
const RECOVERIES_MS: (u64, u64) = (150, 400);

/// What faults need beside the processes.
#[derive(Clone, Copy)]
pub(crate) struct Means<'m> {
    /// Small disks of servers, by the position of the server.
    pub(crate) disks: &'m [SmallDisk],
    pub(crate) network: Option<&'m Network>,
}

pub(crate) struct Nemesis<'c> {
    seats: Seats,
    crowd: &'c Crowd,
    random: fastrand::Rng,
    means: Means<'c>,
    replicas: usize,
    begun: Instant,
}

impl<'c> Nemesis<'c> {
    pub(crate) fn new(
        (plan, seats): (Plan<'_>, Seats),
        means: Means<'c>,
        crowd: &'c Crowd,
        seed: u64,
    ) -> Nemesis<'c> {
        let (random, replicas) = (fastrand::Rng::with_seed(seed), plan.replicas);
        Nemesis { seats, crowd, random, means, replicas, begun: clock::now() }
    }

    /// Lets these things happen one after the other.
    pub(crate) fn strike_all(mut self, faults: &[Fault]) -> Seats {
        faults.iter().for_each(|fault| self.strike(*fault));
        self.seats
    }

    /// Waits for a random moment, makes this happen, and waits until all is well again.
    fn strike(&mut self, fault: Fault) {
        self.crowd.until_operations(self.random.u64(OPERATIONS.0..=OPERATIONS.1));
        self.crowd.next_era();
        match fault {
            Fault::Kill => self.kill(),
            Fault::KillTwo => self.kill_two(),
            Fault::KillAll => self.kill_all(false),
            Fault::KillEverybody => self.kill_all(true),
            Fault::KillCoordinator => self.kill_coordinator(false),
            Fault::KillUnseen => self.kill_coordinator(true),
            Fault::KillRecovering => self.kill_recovering(),
            Fault::Stop => self.stop(),
            Fault::Pause => self.pause(),
            Fault::FillDisk => self.fill_disk(),
            Fault::Isolate => self.isolate(),
            Fault::Cut => self.cut(),
        }
        self.seats.until_whole();
        self.crowd.next_era();
        self.tell("the cluster is whole");
    }

    fn tell(&self, what: &str) {
        let second = clock::now().since(self.begun).as_secs_f64();
        println!("{second:>7.2} s, {:>8} operations: {what}", self.crowd.operations());
    }

    /// The same about a server.
    fn tell_of(&self, server: usize, what: &str) {
        self.tell(&format!("{} {what}", self.seats.servers[server].name));
    }

    fn some_server(&mut self) -> usize {
        self.random.usize(..self.seats.servers.len())
    }

    /// Lasts so long that a server may be missed.
    fn some_time(&mut self) -> Duration {
        let time = Duration::from_millis(self.random.u64(PAUSES_MS.0..=PAUSES_MS.1));
        clock::sleep(time);
        time
    }

    /// Whether the others can recover what so many servers held, and keep their own logs.
    fn can_lose(&self, servers: usize) -> bool {
        self.seats.servers.len() > self.replicas + servers
    }

    fn kill(&mut self) {
        let victim = self.some_server();
        self.seats.servers[victim].kill();
        self.tell_of(victim, "was killed");
        self.perhaps_until_served(1);
        self.start(victim);
    }

    fn kill_two(&mut self) {
        let first = self.some_server();
        let others = self.seats.servers.len() - 1;
        let second = (first + 1 + self.random.usize(..others)) % (others + 1);
        self.seats.servers[first].kill();
        if self.random.bool() {
            self.some_time();
        }
        self.seats.servers[second].kill();
        self.tell_of(first, &format!("and {} were killed", self.seats.servers[second].name));
        self.perhaps_until_served(2);
        self.start(second);
        self.start(first);
    }

    /// Waits every other time until others serve what dead servers held, if they can.
    fn perhaps_until_served(&mut self, dead: usize) {
        if self.can_lose(dead) && self.random.bool() {
            self.seats.until_served();
            self.tell("others serve everything");
        }
    }

    fn start(&mut self, server: usize) {
        self.seats.servers[server].start();
        self.seats.servers[server].ready();
        self.tell_of(server, "was started");
    }

    fn kill_all(&mut self, with_coordinator: bool) {
        let Seats { coordinator, servers, .. } = &mut self.seats;
        let mut all: Vec<&mut Seat> = servers.iter_mut().collect();
        if with_coordinator {
            all.push(coordinator);
        }
        self.random.shuffle(&mut all);
        all.iter_mut().for_each(|seat| seat.kill());
        self.random.shuffle(&mut all);
        let names: Vec<&str> = all.iter().map(|seat| &*seat.name).collect();
        let names = names.join(", ");
        all.iter_mut().for_each(|seat| seat.start());
        all.iter_mut().for_each(|seat| seat.ready());
        self.tell(&format!("all were killed, and started in this order: {names}"));
    }

    fn kill_coordinator(&mut self, with_server: bool) {
        self.seats.coordinator.kill();
        self.tell("the coordinator was killed");
        self.crowd.until_operations(OPERATIONS_DURING);
        let victim = self.some_server();
        if with_server {
            self.seats.servers[victim].kill();
            self.tell_of(victim, "was killed");
            self.some_time();
        }
        self.seats.coordinator.start();
        self.seats.coordinator.ready();
        self.tell("the coordinator was started");
        if with_server {
            self.start(victim);
        }
    }

    fn kill_recovering(&mut self) {
        let victim = self.some_server();
        self.seats.servers[victim].kill();
        clock::sleep(Duration::from_millis(self.random.u64(RECOVERIES_MS.0..=RECOVERIES_MS.1)));
        self.seats.coordinator.kill();
        self.tell_of(victim, "was killed, and then the coordinator");
        self.seats.coordinator.start();
        self.seats.coordinator.ready();
        self.tell("the coordinator was started");
        self.perhaps_until_served(1);
        self.start(victim);
    }

    fn stop(&mut self) {
        assert!(self.can_lose(1), "others have to serve what it held");
        let victim = self.some_server();
        let name = self.seats.servers[victim].identity();
        self.seats.servers[victim].stop();
        self.tell_of(victim, "was stopped");
        self.seats.until_served();
        self.tell("others serve what it held");
        self.seats.servers[victim].resume();
        until("a server that stood still begins anew", || {
            let now = self.seats.servers[victim].identity();
            now.is_some() && now != name
        });
    }

    fn pause(&mut self) {
        let victim = self.some_server();
        self.seats.servers[victim].stop();
        let pause = self.some_time();
        self.seats.servers[victim].resume();
        self.tell_of(victim, &format!("was stopped for {pause:?}"));
    }

    fn fill_disk(&mut self) {
        let Some(victim) = self.random.choice(0..self.means.disks.len()) else { return };
        self.means.disks[victim].fill();
        self.tell_of(victim, "has a full disk");
        self.crowd.until_operations(OPERATIONS_ON_A_FULL_DISK);
        self.means.disks[victim].free();
        self.tell_of(victim, "has space again");
    }

    fn isolate(&mut self) {
        let Some(network) = self.means.network else { return };
        let victim = self.some_server();
        network.isolate(victim + 1);
        self.seats.servers[victim].is_cut_off = true;
        self.tell_of(victim, "was cut off");
        self.some_time();
        self.perhaps_until_served(1);
        network.connect(victim + 1);
        self.seats.servers[victim].is_cut_off = false;
        self.tell_of(victim, "is reached again");
    }

    fn cut(&mut self) {
        let Some(network) = self.means.network else { return };
        // The coordinator has place 0.
        let one = self.some_server() + 1;
        let other = (one + 1 + self.random.usize(..self.seats.servers.len()))
            % (self.seats.servers.len() + 1);
        network.cut(one, other);
        let time = self.some_time();
        network.join(one, other);
        let other = match other.checked_sub(1) {
            None => &self.seats.coordinator.name,
            Some(server) => &self.seats.servers[server].name,
        };
        self.tell_of(one - 1, &format!("and {other} were cut off from each other for {time:?}"));
    }
}
