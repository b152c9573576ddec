//! Lost disks and files, and the operator's remedies.

use crate::client::until;
use crate::servers::{MODEST, Process, Starting, binary};
use std::ops::RangeBounds;
use std::path::Path;
use std::process::{Command, Output};

/// Starts a server whose log has one replica on another server.
fn joined(coordinator: &Process, folder: &Path) -> Process {
    let folder = folder.to_str().expect("the names of our folders are words");
    let kept = ["--durability", "memory", "--replicas", "1", "--memory", "128mb"];
    let folder = ["--data-dir", folder];
    Process::joined(coordinator, &[&MODEST[..], &kept, &folder].concat())
}

/// The same, without waiting until it is ready.
fn starting(coordinator: &Process, folder: &Path) -> Starting {
    let address = coordinator.address.to_string();
    let mut command = Command::new(binary());
    command.args(["serve", "--port", "0", "--join", &address]).args(MODEST);
    command.args(["--durability", "memory", "--replicas", "1", "--memory", "128mb"]);
    command.arg("--data-dir").arg(folder);
    Starting::new(command)
}

fn operate(coordinator: &Process, words: &[&str]) -> Output {
    let address = coordinator.address.to_string();
    let mut command = Command::new(env!("CARGO_BIN_EXE_ballast"));
    command.arg("cluster").args(words).args(["--coordinator", &address]);
    command.output().expect("the binary starts")
}

fn status(coordinator: &Process) -> String {
    let output = operate(coordinator, &["status"]);
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).expect("words")
}

/// Returns the loss of the first server that the status asks an operator to accept.
fn missing(status: &str) -> Option<&str> {
    let after = status.split("ballast cluster accept-loss s1 --lost '").nth(1)?;
    after.split("' --coordinator ").next()
}

/// Returns whether a folder has a replica of the first server's manifest log, by the headers of its
/// files (`docs/formats.md`).
fn has_manifest_of_first(folder: &Path) -> bool {
    let files = std::fs::read_dir(folder.join("replicas")).into_iter().flatten().flatten();
    files.map(|file| std::fs::read(file.path()).unwrap_or_default()).any(|file| {
        file.starts_with(b"BALLASTR") && file.get(10) == Some(&2) && file.get(24) == Some(&1)
    })
}

/// Returns whether one of the servers accepts a write of this key.
fn is_served(servers: &[&Process], key: &str) -> bool {
    servers.iter().any(|server| server.client().ask(&["SET", key, "new"]).text() == "OK")
}

#[test]
fn what_nobody_has_any_more_is_waited_for_until_an_operator_gives_it_up_by_name() {
    let folders: Vec<_> = (0..4).map(|_| tempfile::tempdir().expect("a folder")).collect();
    let coordinator = Process::coordinator();
    let [first, second] = [0, 1].map(|place| joined(&coordinator, folders[place].path()));
    // No other server exists yet: the second one has replicas of all writes of the first. The third
    // gets the manifest log when it joins, which records the missing segments.
    until("the first server serves", || is_served(&[&first], "key"));
    let [third, fourth] = [2, 3].map(|place| joined(&coordinator, folders[place].path()));
    until("everybody is there", || status(&coordinator).matches("connected").count() == 4);
    assert!(status(&coordinator).contains(" connected: slots 0-16383\n"));
    until("another server has the manifest log of the first", || {
        [2, 3].iter().any(|place: &usize| has_manifest_of_first(folders[*place].path()))
    });

    Process::kill_together([first, second]);
    std::fs::remove_dir_all(folders[1].path()).expect("nobody uses it");
    let is_asked = || status(&coordinator).contains("accept-loss");
    until("it is known what is missing", is_asked);
    let text = status(&coordinator);
    let missing = missing(&text).expect("the status names it");
    assert!(missing.starts_with("segments "), "{text}");
    assert!(text.contains("not served yet: slots 0-16383"), "{text}");
    assert!(!is_served(&[&third, &fourth], "key"));

    let is_missing = format!("are: {missing}");
    for (words, said) in [
        (["accept-loss", "s1", "--lost", "directory"], is_missing.as_str()),
        (["accept-loss", "s3", "--lost", missing], "s3 is not being recovered"),
    ] {
        let refused = operate(&coordinator, &words);
        let text = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(!refused.status.success() && text.contains(said), "{text}");
    }
    let accepted = operate(&coordinator, &["accept-loss", "s1", "--lost", missing]);
    assert!(accepted.status.success(), "{accepted:?}");
    for key in ["key", "a", "b", "c"] {
        until("everything is served again", || is_served(&[&third, &fourth], key));
    }
    until("nothing is left to do", || !status(&coordinator).contains("recovery of"));
}

/// Three servers that replicate each other's logs, the coordinator's file, and keys in both halves
/// of the slots. The second server owns the first half.
struct Kept {
    coordinator: Process,
    servers: Vec<Process>,
    folder: tempfile::TempDir,
}

const KEYS: usize = 300;

impl Kept {
    fn start() -> Kept {
        let folder = tempfile::tempdir().expect("a folder");
        let coordinator = Process::coordinator_in(&folder.path().join("lost"), 0, &[]);
        let place = |place: usize| folder.path().join(place.to_string());
        let servers: Vec<_> = (0..3).map(|at| joined(&coordinator, &place(at))).collect();
        let kept = Kept { coordinator, servers, folder };
        until("everybody is there", || status(&kept.coordinator).matches("connected").count() == 3);
        for key in 0..KEYS {
            let (name, value) = (format!("key{key}"), format!("value{key}"));
            let set = || kept.servers[0].client().ask(&["SET", &name, &value]).text();
            until("the first server serves", || set() == "OK");
        }
        let second = kept.servers[1].client().ask(&["CLUSTER", "MYID"]).text();
        let words = ["CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", "0", "8191", "NODE", &second];
        assert_eq!(kept.servers[0].client().ask(&words).text(), "OK");
        until("the first half has moved", || {
            let text = status(&kept.coordinator);
            text.contains(" connected: slots 0-8191\n") && !text.contains("moving")
        });
        kept
    }

    /// Loses the coordinator with its file, and starts another one that rebuilds it.
    fn lose_the_file(self) -> Kept {
        self.lose_the_file_and(..0)
    }

    /// Also loses these servers, without the coordinator noticing it.
    fn lose_the_file_and(mut self, servers: impl RangeBounds<usize>) -> Kept {
        let port = self.coordinator.address.port();
        let lost = self.folder.path().join("lost");
        let another = self.folder.path().join("another");
        drop(self.coordinator);
        Process::kill_together(self.servers.drain(servers));
        std::fs::remove_dir_all(lost).expect("nobody uses it");
        self.coordinator = Process::coordinator_in(&another, port, &["--rebuild"]);
        self
    }

    fn assert_everything_is_there(&self) {
        for key in 0..KEYS {
            let (name, value) = (format!("key{key}"), format!("value{key}"));
            until("every key is served with its value", || {
                let mut replies =
                    self.servers.iter().map(|server| server.client().ask(&["GET", &name]));
                replies.any(|reply| reply.text() == value)
            });
        }
    }
}

/// Returns the coordinator's answer to `rebuild` with these arguments.
fn rebuild(coordinator: &Process, words: &[&str]) -> String {
    let output = operate(coordinator, &[&["rebuild"], words].concat());
    let said = if output.status.success() { output.stdout } else { output.stderr };
    String::from_utf8(said).expect("words")
}

#[test]
fn a_coordinator_whose_file_is_lost_gets_another_one_from_its_servers() {
    let mut kept = Kept::start().lose_the_file();
    let told = "servers that reported: s1,s2,s3\nmissing: nobody\n";
    until("all have told", || rebuild(&kept.coordinator, &[]).starts_with(told));
    assert!(
        rebuild(&kept.coordinator, &["--without", "s3", "--go"]).contains("missing is: nobody")
    );
    assert!(rebuild(&kept.coordinator, &["--go"]).contains("file was written"));
    until("all are back", || status_or_nothing(&kept).matches(" connected").count() == 3);
    kept.assert_everything_is_there();

    // The rebuilt file must support everything that a coordinator does.
    kept.servers.remove(1).kill();
    kept.assert_everything_is_there();
    let another = kept.folder.path().join("4");
    kept.servers.push(joined(&kept.coordinator, &another));
    assert!(is_served(&kept.servers.iter().collect::<Vec<_>>(), "key0"));
}

#[test]
fn a_server_that_is_lost_with_the_coordinators_file_is_recovered_when_somebody_says_that_it_is() {
    let kept = Kept::start().lose_the_file_and(1..2);
    let told = "servers that reported: s1,s3\nmissing: s2\n";
    until("two have told", || rebuild(&kept.coordinator, &[]).starts_with(told));
    assert!(rebuild(&kept.coordinator, &["--go"]).contains("missing is: s2"));
    assert!(rebuild(&kept.coordinator, &["--without", "s2", "--go"]).contains("file was written"));
    kept.assert_everything_is_there();
    until("nobody is missed", || !status_or_nothing(&kept).contains("recovery of"));
}

#[test]
fn a_cluster_of_which_only_disks_are_left_comes_back_whole() {
    let mut kept = Kept::start().lose_the_file_and(..);
    let starting: Vec<Starting> = (0..3)
        .map(|place| starting(&kept.coordinator, &kept.folder.path().join(place.to_string())))
        .collect();
    let told = "servers that reported: s1,s2,s3\nmissing: nobody\n";
    until("all disks have told", || rebuild(&kept.coordinator, &[]).starts_with(told));
    assert!(rebuild(&kept.coordinator, &["--go"]).contains("file was written"));
    kept.servers = starting.into_iter().map(Starting::ready).collect();
    kept.assert_everything_is_there();
    until("nothing is left to do", || !status_or_nothing(&kept).contains("recovery of"));
    assert!(is_served(&kept.servers.iter().collect::<Vec<_>>(), "key0"));
}

/// Returns the status, or nothing while a coordinator with a new file starts to listen.
fn status_or_nothing(kept: &Kept) -> String {
    let output = operate(&kept.coordinator, &["status"]);
    String::from_utf8(output.stdout).expect("words")
}
