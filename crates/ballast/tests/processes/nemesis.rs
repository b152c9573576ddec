//! A fault injector: makes the processes of a cluster fail while clients use it, and lets it heal.
//!
//! Every fault ends with a cluster that has become whole by itself. The only outside help is to
//! start or continue a process, to free disk space, or to restore a connection.

use crate::availability::{ADAPTATION, Demand};
use crate::client::until;
use crate::disks::SmallDisk;
use crate::moves::MoveRequests;
use crate::network::Network;
use crate::seats::{Plan, Seat, Seats};
use crate::workers::Crowd;
use bench::clock;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Kill a server, and restart it at once or after others serve its data.
    Kill,
    /// Kill two servers shortly after each other, and restart them.
    KillTwo,
    /// Kill all servers at once, and restart them in any order.
    KillAll,
    /// Kill all servers and the coordinator at once, and restart them.
    KillEverybody,
    /// Kill the coordinator, and restart it after a while.
    KillCoordinator,
    /// Kill a server while there is no coordinator.
    KillUnseen,
    /// Kill a server, and kill the coordinator during its recovery.
    KillRecovering,
    /// Stop a server until others serve its data, then continue it.
    Stop,
    /// Stop a server for a moment. It may or may not be declared dead.
    Pause,
    /// Fill a server's disk.
    FillDisk,
    /// Isolate a server, for a moment or until others serve its data.
    Isolate,
    /// Cut the connection of two servers, or of a server and the coordinator, for a while.
    Cut,
    /// Cut the connection of two servers, in one or both directions, and demand availability.
    LastingCut,
    /// Cut the connection of a server and the coordinator, and demand availability.
    LastingUnlinked,
    /// Kill the coordinator, and demand availability before it is restarted.
    LastingNoCoordinator,
    /// Kill a server, and demand availability before it is restarted.
    LastingDead,
    /// Fill a server's disk, and demand availability.
    LastingFullDisk,
    /// Make each write of a server's disk slow, and demand availability.
    LastingSlowDisk,
    /// Set a server's wall clock forward or back, and demand availability.
    LastingWrongClock,
    /// Let a server open hardly any more files or connections, and demand availability.
    LastingFewFiles,
    /// Start the coordinator on an old copy of its file, and demand availability until the newest
    /// one is back.
    LastingOldCoordinator,
}

impl Fault {
    pub(crate) const ALL: [Fault; 21] = [
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
        Fault::LastingCut,
        Fault::LastingUnlinked,
        Fault::LastingNoCoordinator,
        Fault::LastingDead,
        Fault::LastingFullDisk,
        Fault::LastingSlowDisk,
        Fault::LastingWrongClock,
        Fault::LastingFewFiles,
        Fault::LastingOldCoordinator,
    ];
}

/// Client operations between two faults.
const OPERATIONS: (u64, u64) = (200, 4_000);
/// Client operations that must succeed during a fault that a cluster should hardly notice.
const OPERATIONS_DURING: u64 = 1_000;
/// The same for a full disk: enough that new replicas must be created on other disks.
const OPERATIONS_ON_A_FULL_DISK: u64 = 15_000;
/// Shortest and longest pause, in milliseconds: around the read lease of 100 ms and the failure
/// timeout of servers.
const PAUSES_MS: (u64, u64) = (20, 1_500);
/// Shortest and longest time for which availability is demanded, in milliseconds.
const ENDURING_MS: (u64, u64) = (3_000, 6_000);
/// Shortest and longest time of a write on a slow disk, in milliseconds.
const SLOW_WRITES_MS: (u64, u64) = (50, 500);
/// Shortest and longest error of a wall clock, in milliseconds.
const WRONG_CLOCKS_MS: (u64, u64) = (700, 3_600_000);
/// Most files that a server can still open.
const MORE_FILES_MAX: u64 = 8;
/// Earliest declaration of a death, and usual end of its recovery, in milliseconds.
const RECOVERIES_MS: (u64, u64) = (150, 400);

/// Resources for faults beside the processes.
#[derive(Clone, Copy)]
pub(crate) struct Means<'m> {
    /// Small disks of servers, by the position of the server.
    pub(crate) disks: &'m [SmallDisk],
    pub(crate) network: Option<&'m Network>,
    /// Requests for migrations, if there are any.
    pub(crate) moves: Option<&'m MoveRequests>,
}

pub(crate) struct Nemesis<'c> {
    seats: Seats,
    crowd: &'c Crowd,
    random: fastrand::Rng,
    means: Means<'c>,
    replicas: usize,
}

impl<'c> Nemesis<'c> {
    pub(crate) fn new(
        plan: Plan<'_>,
        seats: Seats,
        means: Means<'c>,
        crowd: &'c Crowd,
        seed: u64,
    ) -> Nemesis<'c> {
        let (random, replicas) = (fastrand::Rng::with_seed(seed), plan.replicas);
        Nemesis { seats, crowd, random, means, replicas }
    }

    /// Injects these faults one after the other.
    pub(crate) fn strike_all(mut self, faults: &[Fault]) -> Seats {
        faults.iter().for_each(|fault| self.strike(*fault));
        self.seats
    }

    /// Waits for a random moment, injects the fault, and waits until the cluster is whole again.
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
            Fault::LastingCut => self.lasting_cut(),
            Fault::LastingUnlinked => self.lasting_unlinked(),
            Fault::LastingNoCoordinator => self.lasting_no_coordinator(),
            Fault::LastingDead => self.lasting_dead(),
            Fault::LastingFullDisk => self.lasting_full_disk(),
            Fault::LastingSlowDisk => self.lasting_slow_disk(),
            Fault::LastingWrongClock => self.lasting_wrong_clock(),
            Fault::LastingFewFiles => self.lasting_few_files(),
            Fault::LastingOldCoordinator => self.lasting_old_coordinator(),
        }
        self.seats.until_whole();
        self.crowd.next_era();
        self.tell("the cluster is whole");
    }

    fn tell(&self, what: &str) {
        let second = self.crowd.time().as_secs_f64();
        println!("{second:>7.2} s, {:>8} operations: {what}", self.crowd.operations());
    }

    /// Prints a message about a server.
    fn tell_of(&self, server: usize, what: &str) {
        self.tell(&format!("{} {what}", self.seats.servers[server].name));
    }

    fn some_server(&mut self) -> usize {
        self.random.usize(..self.seats.servers.len())
    }

    /// Waits for a random time, long enough that a server may be declared dead.
    fn some_time(&mut self) -> Duration {
        let time = Duration::from_millis(self.random.u64(PAUSES_MS.0..=PAUSES_MS.1));
        clock::sleep(time);
        time
    }

    /// Returns whether the others can recover this many servers' data and keep full replication.
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

    /// In half of the cases, waits until others serve the dead servers' data, if they can.
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
        self.start_coordinator();
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
        self.start_coordinator();
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
        // A server that holds no range misses nothing if it is continued before that.
        self.seats.until_others_are_dead();
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

    /// Waits while a fault lasts, and demands that every operation is answered in time.
    fn endure(&mut self, fault: &str) {
        self.tell(fault);
        let from = clock::now() + ADAPTATION;
        let lasts = Duration::from_millis(self.random.u64(ENDURING_MS.0..=ENDURING_MS.1));
        clock::sleep(ADAPTATION + lasts);
        self.crowd.demand(Demand { fault: fault.into(), from, until: clock::now() });
        self.tell("this fault ends");
    }

    /// Two servers that do not reach each other. A migration between them that is under way would
    /// stand still, so new ones are requested when the connection is cut only.
    fn lasting_cut(&mut self) {
        let Some(network) = self.means.network else { return };
        if let Some(moves) = self.means.moves {
            moves.pause(&self.seats.addresses());
        }
        let one = self.some_server();
        let servers = self.seats.servers.len();
        let other = (one + self.random.usize(1..servers)) % servers;
        network.cut_from(one + 1, other + 1);
        let is_mutual = self.random.bool();
        if is_mutual {
            network.cut_from(other + 1, one + 1);
        }
        if let Some(moves) = self.means.moves {
            moves.pause.store(false, Ordering::SeqCst);
        }
        let [one_name, other_name] = [one, other].map(|it| &self.seats.servers[it].name);
        let fault = match is_mutual {
            true => format!("{one_name} and {other_name} are cut off from each other"),
            false => format!("{other_name} hears nothing from {one_name}"),
        };
        self.endure(&fault);
        network.join(one + 1, other + 1);
    }

    fn lasting_unlinked(&mut self) {
        let Some(network) = self.means.network else { return };
        let victim = self.some_server();
        network.cut(0, victim + 1);
        let name = &self.seats.servers[victim].name;
        self.endure(&format!("{name} and the coordinator are cut off from each other"));
        network.join(0, victim + 1);
    }

    fn lasting_no_coordinator(&mut self) {
        self.seats.coordinator.kill();
        self.endure("the coordinator was killed");
        self.start_coordinator();
    }

    fn lasting_dead(&mut self) {
        assert!(self.can_lose(1), "others have to serve what it held");
        let victim = self.some_server();
        self.seats.servers[victim].kill();
        let name = &self.seats.servers[victim].name;
        self.endure(&format!("{name} was killed"));
        self.start(victim);
    }

    fn lasting_full_disk(&mut self) {
        let Some(victim) = self.random.choice(0..self.means.disks.len()) else { return };
        self.means.disks[victim].fill();
        let name = &self.seats.servers[victim].name;
        self.endure(&format!("{name} has a full disk"));
        self.means.disks[victim].free();
    }

    fn lasting_slow_disk(&mut self) {
        let victim = self.some_server();
        let millis = self.random.u64(SLOW_WRITES_MS.0..=SLOW_WRITES_MS.1);
        let seat = &self.seats.servers[victim];
        seat.set_faults(&seat.slow_writes(millis));
        let name = &seat.name;
        self.endure(&format!("each write of {name}'s disk takes {millis} ms"));
        self.seats.servers[victim].set_faults("");
    }

    /// A server whose wall clock is wrong. It neither gives nor takes ranges meanwhile.
    fn lasting_wrong_clock(&mut self) {
        let victim = self.some_server();
        let millis = self.random.u64(WRONG_CLOCKS_MS.0..=WRONG_CLOCKS_MS.1);
        let (sign, way) = if self.random.bool() { ("", "ahead") } else { ("-", "behind") };
        let seat = &self.seats.servers[victim];
        seat.set_faults(&format!("clock ahead-ms={sign}{millis}\n"));
        until("the wall clock is wrong", || self.is_clock_wrong(victim, millis / 2) == Some(true));
        let name = &seat.name;
        self.endure(&format!("the clock of {name} is {millis} ms {way}"));
        self.seats.servers[victim].set_faults("");
        until("the wall clock is right", || self.is_clock_wrong(victim, millis / 2) == Some(false));
    }

    /// Returns whether a server's clock differs from another one's by more milliseconds than this,
    /// if both answer.
    fn is_clock_wrong(&self, server: usize, millis: u64) -> Option<bool> {
        let other = (server + 1) % self.seats.servers.len();
        let [one, other] = [server, other].map(|it| self.seats.servers[it].clock_millis());
        Some(one?.abs_diff(other?) > millis)
    }

    fn lasting_few_files(&mut self) {
        let victim = self.some_server();
        let more = self.random.u64(..=MORE_FILES_MAX);
        self.seats.servers[victim].limit_files(Some(more));
        let name = &self.seats.servers[victim].name;
        self.endure(&format!("{name} can open {more} more files"));
        self.seats.servers[victim].limit_files(None);
    }

    /// The coordinator starts on an old copy of its file. Between the copy and that moment a server
    /// dies and begins anew, so that the copy knows other servers.
    fn lasting_old_coordinator(&mut self) {
        let file = self.seats.coordinator.disk.join("coordinator.redb");
        let [old, newest] = ["old", "newest"].map(|name| file.with_extension(name));
        let copy = |from: &Path, to: &Path| {
            std::fs::copy(from, to).expect("a coordinator that does not run keeps its file");
        };
        self.seats.coordinator.kill();
        copy(&file, &old);
        self.start_coordinator();
        self.kill();
        self.seats.until_whole();
        self.seats.coordinator.kill();
        copy(&file, &newest);
        copy(&old, &file);
        self.start_coordinator();
        self.endure("the coordinator has an old copy of its file");
        self.seats.coordinator.kill();
        copy(&newest, &file);
        self.start_coordinator();
    }

    fn start_coordinator(&mut self) {
        self.seats.coordinator.start();
        self.seats.coordinator.ready();
    }
}
