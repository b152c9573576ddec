//! Replicas that a disk has lost silently are replaced while their owner lives.

use crate::client::{Client, until};
use crate::servers::{Cluster, MODEST, Process};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

const VALUES: usize = 200;
const VALUE_BYTES: usize = 256 << 10;
/// An offset within the values of a replica's file.
const PLACE: u64 = 3 << 19;

/// Starts a server that scrubs its replicas every second. One other server has replicas of its log.
fn joined(coordinator: &Process, folder: &Path) -> Process {
    let folder = folder.to_str().expect("the names of our folders are words");
    let kept = ["--durability", "memory", "--replicas", "1", "--memory", "128mb"];
    let scrubs = ["--scrub-interval", "1", "--data-dir", folder];
    Process::joined(coordinator, &[&MODEST[..], &kept, &scrubs].concat())
}

fn value(number: usize) -> String {
    format!("{}{number}", "x".repeat(VALUE_BYTES))
}

fn field(server: &Process, name: &str) -> usize {
    let info = server.client().ask(&["INFO", "everything"]).text();
    let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.and_then(|value| value.trim().parse().ok()).expect("a number")
}

/// Flips a bit of a replica that contains values. Returns its file.
fn damage(folder: &Path) -> Option<PathBuf> {
    for entry in std::fs::read_dir(folder.join("replicas")).ok()?.flatten() {
        let file = File::options().read(true).write(true).open(entry.path()).ok()?;
        let mut byte = [0];
        if file.read_at(&mut byte, PLACE).ok()? == 1 && byte == *b"x" {
            file.write_all_at(b"y", PLACE).ok()?;
            return Some(entry.path());
        }
    }
    None
}

#[test]
fn a_replica_that_the_disk_has_changed_is_made_again_from_memory() {
    let folders: Vec<_> = (0..3).map(|_| tempfile::tempdir().expect("a folder")).collect();
    let coordinator = Process::coordinator();
    let servers = folders.iter().map(|folder| joined(&coordinator, folder.path())).collect();
    let mut cluster = Cluster::around(servers, coordinator);
    let mut client = cluster.servers[0].client();
    until("the first server serves", || client.ask(&["SET", "key", "1"]).text() == "OK");
    for number in 0..VALUES {
        let key = format!("key:{number}");
        assert_eq!(client.ask(&["SET", &key, &value(number)]).text(), "OK");
    }
    // These replicas have no other copy.
    for (server, folder) in cluster.servers.iter().zip(&folders).skip(1) {
        let file = damage(folder.path()).expect("it keeps something for the first server");
        until("the damage is found", || field(server, "damaged_replicas") > 0);
        println!("{} had been damaged", file.display());
    }
    until("everything is kept by somebody again", || {
        field(&cluster.servers[0], "log_segments_under_replicated") == 0
    });
    until("what is kept has been read since", || {
        cluster.servers[1..].iter().all(|server| field(server, "scrubbed_replicas") > 20)
    });
    cluster.servers.remove(0).kill();
    for number in 0..VALUES {
        until("what the first server had is served by the others", || {
            let get = |server: &Process| {
                Client::connect(server.address).ask(&["GET", &format!("key:{number}")])
            };
            cluster
                .servers
                .iter()
                .map(get)
                .any(|answer| !answer.is_error("") && answer.text() == value(number))
        });
    }
}
