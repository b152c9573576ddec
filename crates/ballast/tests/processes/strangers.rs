//! Disks and coordinators of different clusters: a process of another cluster is refused, and its
//! disk is not changed.

use crate::client::until;
use crate::servers::{MODEST, Process, Starting, binary};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn operate(coordinator: &Process, words: &[&str]) -> String {
    let address = coordinator.address.to_string();
    let mut command = Command::new(binary());
    command.arg("cluster").args(words).args(["--coordinator", &address]);
    let output = command.output().expect("the binary starts");
    String::from_utf8([output.stdout, output.stderr].concat()).expect("words")
}

fn status(coordinator: &Process) -> String {
    operate(coordinator, &["status"])
}

/// Starts a server whose log has one replica on another server.
fn start(coordinator: &Process, folder: &Path) -> Starting {
    let address = coordinator.address.to_string();
    let mut command = Command::new(binary());
    command.args(["serve", "--port", "0", "--join", &address]).args(MODEST);
    command.args(["--durability", "memory", "--replicas", "1", "--memory", "64mb"]);
    command.arg("--data-dir").arg(folder);
    Starting::new(command)
}

/// Returns the replica files of a server, by path.
fn replicas(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let files = fs::read_dir(folder.join("replicas")).expect("it is there").flatten();
    files.map(|file| (file.path(), fs::read(file.path()).expect("a test may read it"))).collect()
}

/// Two servers that replicate each other's logs, with a key.
struct Cluster {
    folder: tempfile::TempDir,
    coordinator: Option<Process>,
    servers: Vec<Process>,
}

impl Cluster {
    fn start() -> Cluster {
        let folder = tempfile::tempdir().expect("a folder");
        let coordinator = Process::coordinator_in(&folder.path().join("coordinator"), 0, &[]);
        let mut cluster = Cluster { folder, coordinator: Some(coordinator), servers: Vec::new() };
        cluster.start_servers();
        until("a key is written", || cluster.is_answered(&["SET", "key", "value"], "OK"));
        // The log of the server without data need not be acknowledged by then.
        let has_one = |place| {
            let files = replicas(&cluster.disk(place));
            files.values().any(|file| file.starts_with(b"BALLASTR"))
        };
        until("each has a replica of the other's log", || has_one(0) && has_one(1));
        cluster
    }

    fn coordinator(&self) -> &Process {
        self.coordinator.as_ref().expect("it is there")
    }

    fn disk(&self, place: usize) -> PathBuf {
        self.folder.path().join(place.to_string())
    }

    /// Starts both servers at the same time, because one alone may not be accepted.
    fn start_servers(&mut self) {
        let starting: Vec<_> =
            (0..2).map(|place| start(self.coordinator(), &self.disk(place))).collect();
        self.servers = starting.into_iter().map(Starting::ready).collect();
    }

    fn is_answered(&self, words: &[&str], answer: &str) -> bool {
        self.servers.iter().any(|server| server.client().ask(words).text() == answer)
    }

    /// Kills all processes at once.
    fn kill(&mut self) {
        Process::kill_together(self.servers.drain(..).chain(self.coordinator.take()));
    }
}

#[test]
fn disks_with_data_are_left_alone_by_a_coordinator_that_has_lost_its_folder() {
    let mut cluster = Cluster::start();
    let port = cluster.coordinator().address.port();
    cluster.kill();
    let before = [0, 1].map(|place| replicas(&cluster.disk(place)));
    let mistake = cluster.folder.path().join("mistake");
    let coordinator = Process::coordinator_in(&mistake, port, &[]);
    // A server without data is accepted, as long as no server with data has come.
    let first = start(&coordinator, &cluster.folder.path().join("first")).ready();
    for place in [0, 1] {
        let said = start(&coordinator, &cluster.disk(place)).refused();
        for word in ["belongs to cluster", "--rebuild", "--data-dir"] {
            assert!(said.contains(word), "{said}");
        }
        assert_eq!(replicas(&cluster.disk(place)), before[place]);
    }
    let said = start(&coordinator, &cluster.folder.path().join("second")).refused();
    assert!(said.contains("no new servers are admitted"), "{said}");
    let text = status(&coordinator);
    assert!(text.contains("warning: ") && text.contains("--rebuild"), "{text}");
    first.kill();
    coordinator.kill();
    // The refusal persists over restarts.
    let coordinator = Process::coordinator_in(&mistake, port, &[]);
    let said = start(&coordinator, &cluster.folder.path().join("third")).refused();
    assert!(said.contains("no new servers are admitted"), "{said}");
    coordinator.kill();

    let real = Process::coordinator_in(&cluster.folder.path().join("coordinator"), port, &[]);
    cluster.coordinator = Some(real);
    cluster.start_servers();
    until("the key is read", || cluster.is_answered(&["GET", "key"], "value"));
}

#[test]
fn a_disk_of_another_cluster_is_refused_and_disturbs_nobody() {
    let (mut ours, mut theirs) = (Cluster::start(), Cluster::start());
    let port = ours.coordinator().address.port();
    // Only a newly created cluster can have been created by mistake.
    ours.coordinator.take().into_iter().for_each(Process::kill);
    let coordinator = ours.folder.path().join("coordinator");
    ours.coordinator = Some(Process::coordinator_in(&coordinator, port, &[]));
    until("our servers are back", || status(ours.coordinator()).matches(" connected").count() == 2);
    theirs.kill();
    let before = replicas(&theirs.disk(0));
    let said = start(ours.coordinator(), &theirs.disk(0)).refused();
    assert!(said.matches("cluster c").count() >= 2, "both clusters are named: {said}");
    assert_eq!(replicas(&theirs.disk(0)), before);
    let another = start(ours.coordinator(), &ours.folder.path().join("another")).ready();
    assert!(!status(ours.coordinator()).contains("warning"));
    another.kill();
    assert!(ours.is_answered(&["GET", "key"], "value"));
}
