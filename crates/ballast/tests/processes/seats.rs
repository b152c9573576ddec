//! Clusters whose processes can be killed and restarted. Each process has an address, a disk and
//! arguments, which never change.
//!
//! Each process has its own address in the loopback network. Ports therefore need not be free, are
//! not taken by others while a server is dead, and tests can run in parallel.

use crate::client::{Client, until};
use crate::network::Network;
use crate::servers::{MODEST, Process, Starting, binary};
use rustix::process::Signal;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;
use tempfile::TempDir;

const PORT: u16 = 7_000;

/// A place for a process.
pub(crate) struct Seat {
    /// Name in the output of a test.
    pub(crate) name: String,
    pub(crate) address: SocketAddr,
    /// The process's data folder.
    pub(crate) disk: PathBuf,
    /// Words before the binary, and its arguments.
    leading: Vec<String>,
    words: Vec<String>,
    /// File with the faults that a binary with the feature `faults` injects into itself.
    faults: PathBuf,
    state: State,
    /// True if the network connection of the process is cut.
    pub(crate) is_cut_off: bool,
}

enum State {
    Empty,
    Starting(Starting),
    Running(Process),
    /// Stopped by SIGSTOP.
    Stopped(Process),
}

impl Seat {
    fn new(name: &str, at: Ipv4Addr, disk: PathBuf, words: &[&str]) -> Seat {
        let address = SocketAddr::new(at.into(), PORT);
        let (ip, port) = (at.to_string(), PORT.to_string());
        let folder = disk.to_str().expect("the names of our folders are words");
        let own = ["--bind", &ip, "--port", &port, "--data-dir", folder];
        let words = [&words[..1], &own, &words[1..]].concat();
        let words = words.into_iter().map(String::from).collect();
        let (name, leading, state) = (name.to_string(), Vec::new(), State::Empty);
        let faults = disk.with_extension("faults");
        Seat { name, address, disk, leading, words, faults, state, is_cut_off: false }
    }

    /// Sets the faults that the process injects into itself, or ends them. See `runtime::faults`.
    pub(crate) fn set_faults(&self, faults: &str) {
        std::fs::write(&self.faults, faults).expect("a file can be written");
    }

    /// Returns the line that makes each write of a replica take this long.
    pub(crate) fn slow_writes(&self, millis: u64) -> String {
        format!("disk {} write-ms={millis}\n", self.disk.join("replicas").display())
    }

    /// Returns the server's clock in milliseconds since 1970, if it answers.
    pub(crate) fn clock_millis(&self) -> Option<u64> {
        let time = self.ask(&["TIME"])?.items();
        let number = |place: usize| time[place].text().parse::<u64>().ok();
        Some(number(0)? * 1_000 + number(1)? / 1_000)
    }

    /// Lets the process open this many more files and connections than it has now, or as many as
    /// before.
    pub(crate) fn limit_files(&self, more: Option<u64>) {
        if let State::Running(process) = &self.state {
            process.limit_files(more);
        }
    }

    /// Starts a process, without waiting until it is ready.
    pub(crate) fn start(&mut self) {
        let mut command = match self.leading.split_first() {
            None => Command::new(binary()),
            Some((program, others)) => {
                let mut command = Command::new(program);
                command.args(others).arg(binary());
                command
            }
        };
        command.args(&self.words).env("BALLAST_FAULTS", &self.faults);
        assert!(matches!(self.state, State::Empty), "{} runs already", self.name);
        self.state = State::Starting(Starting::new(command));
    }

    pub(crate) fn ready(&mut self) {
        if let State::Starting(starting) = self.take() {
            self.state = State::Running(starting.ready());
        }
    }

    /// Kills the process in any state, as a machine failure does.
    pub(crate) fn kill(&mut self) {
        match self.take() {
            State::Empty => {}
            // Dropping a process kills it.
            State::Starting(starting) => drop(starting.ready()),
            State::Running(process) | State::Stopped(process) => process.kill(),
        }
    }

    /// Stops the process by SIGSTOP.
    pub(crate) fn stop(&mut self) {
        let State::Running(process) = self.take() else { panic!("{} does not run", self.name) };
        process.signal(Signal::STOP);
        until("a stopped process stands still", || process.is_stopped());
        self.state = State::Stopped(process);
    }

    /// Continues the stopped process.
    pub(crate) fn resume(&mut self) {
        let State::Stopped(process) = self.take() else { panic!("{} is not stopped", self.name) };
        process.signal(Signal::CONT);
        self.state = State::Running(process);
    }

    fn take(&mut self) -> State {
        std::mem::replace(&mut self.state, State::Empty)
    }

    /// Returns whether the process runs and can be reached.
    pub(crate) fn is_there(&self) -> bool {
        matches!(self.state, State::Running(_)) && !self.is_cut_off
    }

    /// Checks that the process has not ended by itself.
    fn assert_runs(&mut self) {
        if let State::Running(process) | State::Stopped(process) = &mut self.state {
            process.assert_runs();
        }
    }

    /// Returns the server's cluster name, if it answers. Rejoining as a new member changes it.
    pub(crate) fn identity(&self) -> Option<String> {
        Some(self.ask(&["CLUSTER", "MYID"])?.text())
    }

    /// Returns a field of the reply to this command.
    pub(crate) fn field(&self, command: &[&str], name: &str) -> Option<String> {
        let answer = self.ask(command)?;
        let (text, name) = (answer.text(), format!("{name}:"));
        text.lines().find_map(|line| line.strip_prefix(&name)).map(|value| value.trim().into())
    }

    /// Returns the reply to a command on a new connection, unless it is an error.
    pub(crate) fn ask(&self, command: &[&str]) -> Option<crate::client::Answer> {
        let patience = Duration::from_secs(1);
        Client::ask_once(self.address, command, patience, patience)
    }
}

#[derive(Clone, Copy)]
pub(crate) struct Plan<'p> {
    pub(crate) servers: usize,
    pub(crate) replicas: usize,
    pub(crate) durability: &'p str,
    /// Network of the processes, if not all of them use the loopback interface.
    pub(crate) network: Option<&'p Network>,
}

pub(crate) struct Seats {
    pub(crate) coordinator: Seat,
    pub(crate) servers: Vec<Seat>,
    _folder: TempDir,
}

impl Seats {
    /// Starts a cluster. `prepare` may change its places before.
    pub(crate) fn start(plan: Plan<'_>, prepare: impl FnOnce(&mut Seats)) -> Seats {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR"));
        let folder = folder.expect("a folder can be made for a test");
        let loopback = loopback_addresses();
        let at = |number| plan.network.map_or_else(|| loopback(number), |net| net.address(number));
        let disk = |name: &str| folder.path().join(name);
        let key = folder.path().join("cluster.key");
        let key = key.to_str().expect("the names of our folders are words");
        crate::trust::make_key(key);
        let words = ["coordinator", "--cluster-key-file", key];
        let coordinator = Seat::new("coordinator", at(0), disk("coordinator"), &words);
        let replicas = plan.replicas.to_string();
        let join = coordinator.address.to_string();
        let of_plan = ["serve", "--join", &join, "--durability", plan.durability, "--memory"];
        // Clients may run on other machines.
        let others = ["128mb", "--replicas", &replicas, "--protected-mode", "no"];
        let keyed = ["--cluster-key-file", key];
        let words = [&of_plan[..], &others, &keyed, &MODEST].concat();
        let servers = (1..=plan.servers).map(|number| {
            let name = format!("server-{number}");
            Seat::new(&name, at(number), disk(&name), &words)
        });
        let servers = servers.collect();
        let mut seats = Seats { coordinator, servers, _folder: folder };
        if let Some(network) = plan.network {
            seats.all().enumerate().for_each(|(number, seat)| {
                seat.leading = network.enter(number);
            });
        }
        prepare(&mut seats);
        // The first server to join owns all slots.
        for seat in [&mut seats.coordinator, &mut seats.servers[0]] {
            seat.start();
            seat.ready();
        }
        seats.servers[1..].iter_mut().for_each(Seat::start);
        seats.servers[1..].iter_mut().for_each(Seat::ready);
        seats.until_whole();
        seats
    }

    fn all(&mut self) -> impl Iterator<Item = &mut Seat> {
        std::iter::once(&mut self.coordinator).chain(&mut self.servers)
    }

    /// Returns the client addresses of the servers.
    pub(crate) fn addresses(&self) -> Vec<SocketAddr> {
        self.servers.iter().map(|seat| seat.address).collect()
    }

    /// Distributes the slots equally over the servers. The first one owns all of them before.
    pub(crate) fn spread(&mut self) {
        let count = self.servers.len();
        let border = |number: usize| usize::from(types::SLOT_COUNT) * number / count;
        for (number, seat) in self.servers.iter().enumerate().skip(1) {
            let (first, last) = (border(number).to_string(), (border(number + 1) - 1).to_string());
            let name = seat.identity().expect("a server has a name");
            let range = ["CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", &first, &last, "NODE", &name];
            until("slots can be moved", || self.servers[0].ask(&range).is_some());
        }
        until("every server owns something", || {
            let owners = self.servers[0].owners().unwrap_or_default();
            let names = self.servers.iter().map(Seat::identity);
            names.into_iter().flatten().filter(|name| owners.contains(name)).count() == count
        });
        self.until_whole();
    }

    /// Kills each server and starts it again, one after the other, and waits each time until all
    /// slots are served and the cluster is whole.
    pub(crate) fn kill_in_turn(&mut self) {
        for victim in 0..self.servers.len() {
            self.servers[victim].kill();
            self.until_served();
            self.servers[victim].start();
            self.servers[victim].ready();
            self.until_whole();
        }
    }

    /// Waits until the running servers serve all slots, have full replication, know no other
    /// servers, and have a link to the coordinator if it runs: a coordinator that has just started
    /// notices the death of a server at once only if it has heard of it.
    pub(crate) fn until_whole(&mut self) {
        until("the cluster is whole", || {
            self.all().for_each(Seat::assert_runs);
            self.is_whole().unwrap_or(false)
        });
    }

    /// Returns whether the cluster is whole; `None` if a server does not answer.
    fn is_whole(&self) -> Option<bool> {
        let running: Vec<&Seat> = self.servers.iter().filter(|seat| seat.is_there()).collect();
        let names: Option<Vec<String>> = running.iter().map(|seat| seat.identity()).collect();
        let names = names?;
        let count = names.len().to_string();
        let has_coordinator = self.coordinator.is_there();
        for seat in running {
            let info = |name: &str| seat.field(&["INFO", "everything"], name);
            let is_linked = !has_coordinator || info("coordinator_link")? == "up";
            let is_whole = is_linked
                && seat.owners()?.iter().all(|owner| names.contains(owner))
                && seat.field(&["CLUSTER", "INFO"], "cluster_known_nodes")? == count
                && seat.field(&["CLUSTER", "INFO"], "cluster_slots_ok")? == "16384"
                && info("log_segments_under_replicated")? == "0";
            if !is_whole {
                return Some(false);
            }
        }
        Some(true)
    }

    /// Removes all records. The cluster must be whole.
    pub(crate) fn clear(&self) {
        until("all is removed", || {
            let mut flushed = self.servers.iter().map(|seat| seat.ask(&["FLUSHALL"]).is_some());
            flushed.all(|is_done| is_done) && crate::moves::records(&self.addresses()) == 0
        });
    }

    /// Waits until the map of each running server has the running ones only.
    pub(crate) fn until_others_are_dead(&self) {
        let running: Vec<&Seat> = self.servers.iter().filter(|seat| seat.is_there()).collect();
        let count = Some(running.len().to_string());
        let known = |seat: &&Seat| seat.field(&["CLUSTER", "INFO"], "cluster_known_nodes");
        until("the others are declared dead", || running.iter().all(|seat| known(seat) == count));
    }

    /// Waits until running servers serve all slots, whatever else is wrong.
    pub(crate) fn until_served(&self) {
        let running: Vec<&Seat> = self.servers.iter().filter(|seat| seat.is_there()).collect();
        let is_served = || {
            let names: Option<Vec<String>> = running.iter().map(|seat| seat.identity()).collect();
            let names = names?;
            let mut owners = Vec::new();
            for seat in &running {
                owners.extend(seat.owners()?);
            }
            Some(owners.iter().all(|owner| names.contains(owner)))
        };
        until("the living serve everything", || is_served().unwrap_or(false));
    }
}

impl Seat {
    /// Returns the names of all slot owners in this server's map.
    fn owners(&self) -> Option<Vec<String>> {
        let ranges = self.ask(&["CLUSTER", "SLOTS"])?.items();
        let owner = |range: crate::client::Answer| range.items()[2].items()[2].text();
        Some(ranges.into_iter().map(owner).collect())
    }
}

impl Drop for Seats {
    fn drop(&mut self) {
        // Stopped processes are killed too.
        self.all().for_each(|seat| drop(seat.take()));
    }
}

/// Returns addresses in the loopback network that no other cluster uses, by place number.
fn loopback_addresses() -> impl Fn(usize) -> Ipv4Addr {
    static CLUSTERS: AtomicU8 = AtomicU8::new(0);
    let cluster = CLUSTERS.fetch_add(1, Ordering::Relaxed) % 16;
    let process = std::process::id();
    move |number| {
        assert!(number < 16, "a cluster of a test has at most 15 servers");
        let last = cluster << 4 | number as u8;
        Ipv4Addr::new(127, 64 + (process >> 8 & 63) as u8, process as u8, last)
    }
}
