//! Servers whose disks are slow or fail, in a binary that can play that (`--features faults`).

use crate::client::until;
use crate::servers::{MODEST, Process, Starting, binary};
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

const VALUE_BYTES: usize = 256 << 10;

/// A cluster whose servers keep each other's logs, and what their disks suffer.
struct Suffering {
    coordinator: Process,
    servers: Vec<Option<Process>>,
    folders: TempDir,
}

impl Suffering {
    fn start(count: usize, replicas: &str) -> Suffering {
        let folders = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
        let coordinator = Process::coordinator();
        let mut cluster = Suffering { coordinator, servers: Vec::new(), folders };
        for number in 0..count {
            cluster.servers.push(None);
            let started = cluster.starting(number, replicas).ready();
            cluster.servers[number] = Some(started);
        }
        cluster
    }

    fn folder(&self, number: usize) -> PathBuf {
        self.folders.path().join(format!("server-{number}"))
    }

    fn script(&self) -> PathBuf {
        self.folders.path().join("faults")
    }

    /// From now on a server's disk does this.
    fn let_suffer(&self, number: usize, faults: &str) {
        let line = format!("disk {} {faults}\n", self.folder(number).join("replicas").display());
        std::fs::write(self.script(), line).expect("a file can be written");
    }

    fn starting(&self, number: usize, replicas: &str) -> Starting {
        let mut command = Command::new(binary());
        let join = self.coordinator.address.to_string();
        command.args(["serve", "--port", "0", "--join", &join, "--memory", "192mb"]);
        command.args(["--durability", "memory", "--replicas", replicas]);
        command.arg("--data-dir").arg(self.folder(number)).args(MODEST);
        command.env("BALLAST_FAULTS", self.script());
        Starting::new(command)
    }

    fn server(&self, number: usize) -> &Process {
        self.servers[number].as_ref().expect("it runs")
    }

    fn kill(&mut self, number: usize) {
        self.servers[number].take().expect("it runs").kill();
    }
}

fn replicas(folder: &Path) -> usize {
    std::fs::read_dir(folder.join("replicas")).map_or(0, Iterator::count)
}

/// Writes of a value each, one after the other.
fn write(server: &Process, numbers: std::ops::Range<usize>) {
    let mut client = server.client();
    let value = "x".repeat(VALUE_BYTES);
    for number in numbers {
        let answer = client.ask(&["SET", &format!("key:{number}"), &value]);
        assert_eq!(answer.text(), "OK", "write {number}");
    }
}

#[test]
fn a_server_that_reads_a_slow_disk_at_its_start_keeps_nobody_waiting() {
    let mut cluster = Suffering::start(3, "2");
    until("the first server serves", || {
        cluster.server(0).client().ask(&["SET", "key", "1"]).text() == "OK"
    });
    write(cluster.server(0), 0..400);
    let held = replicas(&cluster.folder(2));
    assert!(held >= 24, "{held} replicas");
    cluster.kill(2);
    // To read all of them takes longer than any client waits.
    cluster.let_suffer(2, "read-ms=1000");
    write(cluster.server(0), 0..20);
    let back = cluster.starting(2, "2").ready();
    write(cluster.server(0), 0..200);
    cluster.servers[2] = Some(back);
    let replaced = ["INFO", "everything"];
    until("the server that is back takes replicas", || {
        let info = cluster.server(0).client().ask(&replaced).text();
        info.contains("log_segments_under_replicated:0\r\n")
    });
    write(cluster.server(0), 0..20);
}

#[test]
fn a_disk_that_fails_takes_nobody_s_writes_with_it() {
    let mut cluster = Suffering::start(4, "2");
    until("the first server serves", || {
        cluster.server(0).client().ask(&["SET", "key", "1"]).text() == "OK"
    });
    write(cluster.server(0), 0..100);
    cluster.let_suffer(3, "read=eio write=eio sync=eio");
    write(cluster.server(0), 0..200);
    let field = |server: &Process, name: &str| {
        let info = server.client().ask(&["INFO", "everything"]).text();
        let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.and_then(|value| value.trim().parse::<usize>().ok()).expect("a number")
    };
    until("the others keep everything", || {
        field(cluster.server(0), "log_segments_under_replicated") == 0
    });
    until("it was noticed", || field(cluster.server(3), "replica_disk_errors") > 0);
    cluster.server(3).assert_serves("its disk has failed");
    // The other disks hold the replicas that this disk has lost.
    cluster.kill(3);
    write(cluster.server(0), 0..20);
}
