//! An old copy of the coordinator's file is put back. The cluster must not trust its outdated
//! contents.

use crate::client::until;
use crate::servers::{MODEST, Process, Starting, binary};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use wire::saved::SavedClusterState;

const KEYS: usize = 100;

/// Two servers that replicate each other's logs. The first half of the slots has moved to the
/// second one after the coordinator's file was copied.
struct Cluster {
    folder: tempfile::TempDir,
    port: u16,
    coordinator: Option<Process>,
    servers: Vec<Process>,
}

fn start(port: u16, folder: &Path) -> Starting {
    let mut command = Command::new(binary());
    command.args(["serve", "--port", "0", "--join", &format!("127.0.0.1:{port}")]).args(MODEST);
    command.args(["--durability", "memory", "--replicas", "1", "--memory", "64mb"]);
    command.arg("--data-dir").arg(folder);
    Starting::new(command)
}

impl Cluster {
    fn start() -> Cluster {
        let folder = tempfile::tempdir().expect("a folder");
        let coordinator = Process::coordinator_in(&folder.path().join("coordinator"), 0, &[]);
        let port = coordinator.address.port();
        let mut cluster = Cluster { folder, port, coordinator: Some(coordinator), servers: vec![] };
        cluster.start_servers();
        until("the first server serves", || cluster.set_all("before"));
        cluster.stop_coordinator();
        fs::copy(cluster.file("coordinator"), cluster.file("copy")).expect("it was stopped");
        cluster.start_coordinator();
        let second = cluster.servers[1].client().ask(&["CLUSTER", "MYID"]).text();
        let words = ["CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", "0", "8191", "NODE", &second];
        until("the move is taken up", || cluster.servers[0].client().ask(&words).text() == "OK");
        until("the first half has moved", || {
            let text = cluster.operate(&["status"]);
            text.contains(" connected: slots 0-8191\n") && !text.contains("moving")
        });
        until("everything is written again", || cluster.set_all("after"));
        until("both servers have saved what they know", || {
            (0..2).all(|place| cluster.has_saved_the_second_term(place))
        });
        cluster
    }

    /// Returns whether a server has saved a mark of the coordinator's second start, which the copy
    /// of the coordinator's file does not contain. Servers save at most every 100 ms.
    fn has_saved_the_second_term(&self, place: usize) -> bool {
        let folder = self.folder.path().join(place.to_string());
        let files = ["cluster-0", "cluster-1"].map(|name| fs::read(folder.join(name)));
        let saved = files.iter().flatten().filter_map(|file| SavedClusterState::parse(file).ok());
        let mut marks = saved.filter_map(|(_, saved)| saved.mark);
        marks.any(|mark| mark.term > 1)
    }

    fn file(&self, name: &str) -> PathBuf {
        match name {
            "copy" => self.folder.path().join("copy.redb"),
            folder => self.folder.path().join(folder).join("coordinator.redb"),
        }
    }

    fn start_coordinator(&mut self) {
        let folder = self.folder.path().join("coordinator");
        self.coordinator = Some(Process::coordinator_in(&folder, self.port, &[]));
    }

    fn stop_coordinator(&mut self) {
        self.coordinator.take().into_iter().for_each(Process::kill);
    }

    /// Starts the servers one after the other. The first one to join gets all slots.
    fn start_servers(&mut self) {
        for place in 0..2 {
            let disk = self.folder.path().join(place.to_string());
            self.servers.push(start(self.port, &disk).ready());
        }
    }

    fn put_the_copy_back(&mut self) {
        self.stop_coordinator();
        fs::copy(self.file("copy"), self.file("coordinator")).expect("it was stopped");
    }

    fn operate(&self, words: &[&str]) -> String {
        let mut command = Command::new(binary());
        let address = format!("127.0.0.1:{}", self.port);
        command.arg("cluster").args(words).args(["--coordinator", &address]);
        let output = command.output().expect("the binary starts");
        String::from_utf8([output.stdout, output.stderr].concat()).expect("words")
    }

    /// Writes all keys, on any server. Returns whether all writes succeeded.
    fn set_all(&self, value: &str) -> bool {
        let mut clients: Vec<_> = self.servers.iter().map(Process::client).collect();
        (0..KEYS).all(|key| {
            let key = format!("key{key}");
            clients.iter_mut().any(|client| client.ask(&["SET", &key, value]).text() == "OK")
        })
    }

    /// Checks that each key has its last value, and that no server returns another one.
    fn assert_nothing_is_lost(&self) {
        for key in 0..KEYS {
            let key = format!("key{key}");
            until("every key is served", || {
                let replies = self.servers.iter().map(|server| server.client().ask(&["GET", &key]));
                let replies: Vec<_> = replies.collect();
                let said: Vec<String> =
                    replies.iter().filter(|it| !it.is_error("")).map(|it| it.text()).collect();
                assert!(said.iter().all(|value| value == "after"), "{key}: {said:?}");
                said.len() == 1
            });
        }
    }
}

#[test]
fn a_coordinator_on_an_old_copy_of_its_file_changes_nothing_and_says_so() {
    let mut cluster = Cluster::start();
    cluster.put_the_copy_back();
    // Repeated starts of the old copy raise its term above the real one.
    for _ in 0..3 {
        cluster.start_coordinator();
        until("it is told", || {
            let text = cluster.operate(&["status"]);
            text.contains("older than the cluster") && text.contains("--rebuild")
        });
        cluster.assert_nothing_is_lost();
        cluster.stop_coordinator();
    }
    // Follow the instructions in its error message.
    let another = cluster.folder.path().join("another");
    let rebuilding = Process::coordinator_in(&another, cluster.port, &["--rebuild"]);
    until("both have told", || cluster.operate(&["rebuild"]).contains("missing: nobody"));
    assert!(cluster.operate(&["rebuild", "--go"]).contains("file was written"));
    until("both are back", || cluster.operate(&["status"]).matches(" connected").count() == 2);
    cluster.assert_nothing_is_lost();
    assert!(!cluster.operate(&["status"]).contains("warning"));
    drop(rebuilding);
}

#[test]
fn servers_that_start_on_their_disks_know_an_old_copy_of_the_file() {
    let mut cluster = Cluster::start();
    cluster.stop_coordinator();
    Process::kill_together(cluster.servers.drain(..));
    cluster.put_the_copy_back();
    cluster.start_coordinator();
    for place in 0..2 {
        let said = start(cluster.port, &cluster.folder.path().join(place.to_string())).refused();
        assert!(said.contains("older than the cluster"), "{said}");
    }
    assert!(cluster.operate(&["status"]).contains("older than the cluster"));
}

#[test]
fn a_coordinator_waits_for_more_than_half_of_its_servers_unless_it_is_told_to_trust_its_file() {
    let mut cluster = Cluster::start();
    // Not one by one, which the coordinator would have noticed.
    cluster.stop_coordinator();
    Process::kill_together(cluster.servers.drain(..));
    cluster.start_coordinator();
    let disk = |cluster: &Cluster, place: usize| cluster.folder.path().join(place.to_string());
    let first = start(cluster.port, &disk(&cluster, 0));
    until("it waits", || cluster.operate(&["status"]).contains("1 of 2 have"));
    let second = start(cluster.port, &disk(&cluster, 1));
    cluster.servers = vec![first.ready(), second.ready()];
    cluster.assert_nothing_is_lost();

    // Not one by one, which the coordinator would have noticed.
    cluster.stop_coordinator();
    Process::kill_together(cluster.servers.drain(..));
    let folder = cluster.folder.path().join("coordinator");
    cluster.coordinator = Some(Process::coordinator_in(&folder, cluster.port, &["--trust-file"]));
    drop(start(cluster.port, &disk(&cluster, 1)).ready());
}
