//! Servers with few file descriptors: replicas of other servers' logs precede clients.

use crate::client::{Client, until};
use crate::servers::{Cluster, MODEST, Process, Starting, binary};
use std::path::Path;
use std::process::Command;

/// Fewer files than there are replicas at the end.
const FILES_MAX: usize = 80;
const SEGMENT_BYTES: usize = 4 << 20;
const VALUE_BYTES: usize = 256 << 10;

/// Starts a server that may open this number of files, and cannot raise the limit.
fn joined(coordinator: &Process, folder: &Path, memory: &str) -> Process {
    let mut command = Command::new("sh");
    let limited = format!("ulimit -n {FILES_MAX} && exec \"$0\" \"$@\"");
    command.args(["-c", &limited]).arg(binary());
    let join = coordinator.address.to_string();
    command.args(["serve", "--port", "0", "--join", &join, "--memory", memory]);
    command.args(["--durability", "memory", "--replicas", "2", "--data-dir"]).arg(folder);
    Starting::new({
        command.args(MODEST);
        command
    })
    .ready()
}

fn replicas(folder: &Path) -> usize {
    std::fs::read_dir(folder.join("replicas")).map_or(0, Iterator::count)
}

#[test]
#[ignore = "writes 1.2 GB on one machine, and needs it to itself: run it alone with --ignored"]
fn more_replicas_than_descriptors_stop_nobody_s_writes() {
    let folders: Vec<_> = (0..3).map(|_| tempfile::tempdir().expect("a folder")).collect();
    let coordinator = Process::coordinator();
    let memory = ["500mb", "64mb", "64mb"];
    let servers: Vec<Process> = folders
        .iter()
        .zip(memory)
        .map(|(folder, memory)| joined(&coordinator, folder.path(), memory))
        .collect();
    let cluster = Cluster::around(servers, coordinator);
    let mut client = cluster.servers[0].client();
    let value = "x".repeat(VALUE_BYTES);
    until("the first server serves", || client.ask(&["SET", "key:0", &value]).text() == "OK");
    for number in 0..FILES_MAX * (SEGMENT_BYTES / VALUE_BYTES) * 5 / 4 {
        let answer = client.ask(&["SET", &format!("key:{number}"), &value]);
        assert_eq!(answer.text(), "OK", "write {number}");
    }
    for folder in &folders[1..] {
        assert!(replicas(folder.path()) > FILES_MAX, "{}", replicas(folder.path()));
    }
    // Clients get the remaining descriptors, and `CONFIG` reports the reduced limit.
    let clients = client.ask(&["CONFIG", "GET", "maxclients"]).items()[1].text();
    assert_eq!(clients, (FILES_MAX - 40 - FILES_MAX / 8 - FILES_MAX / 4).to_string());
    let mut others: Vec<Client> = (0..FILES_MAX).map(|_| cluster.servers[1].client()).collect();
    // The error arrives without a request.
    let refused = others.last_mut().expect("there are some").answer();
    assert!(refused.is_error("ERR max number of clients reached"), "{refused:?}");
    assert_eq!(client.ask(&["SET", "key:0", "last"]).text(), "OK");
}
