//! What is gone with disks and files, and what operators do about it.

use crate::client::until;
use crate::servers::{MODEST, Process};
use std::path::Path;
use std::process::{Command, Output};

/// A server whose log one other server keeps.
fn joined(coordinator: &Process, folder: &Path) -> Process {
    let folder = folder.to_str().expect("the names of our folders are words");
    let kept = ["--durability", "memory", "--replicas", "1", "--memory", "128mb"];
    let folder = ["--data-dir", folder];
    Process::joined(coordinator, &[&MODEST[..], &kept, &folder].concat())
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

/// Whether one of the servers takes a write of this key.
fn is_served(servers: &[&Process], key: &str) -> bool {
    servers.iter().any(|server| server.client().ask(&["SET", key, "new"]).text() == "OK")
}

#[test]
fn what_nobody_has_any_more_is_waited_for_until_an_operator_gives_it_up_by_name() {
    let folders: Vec<_> = (0..4).map(|_| tempfile::tempdir().expect("a folder")).collect();
    let coordinator = Process::coordinator();
    let [first, second] = [0, 1].map(|place| joined(&coordinator, folders[place].path()));
    // There is nobody else yet: the second one has all of the first one's log.
    until("the first server serves", || is_served(&[&first], "key"));
    let [third, fourth] = [2, 3].map(|place| joined(&coordinator, folders[place].path()));
    until("everybody is there", || status(&coordinator).matches("connected").count() == 4);
    assert!(status(&coordinator).contains(" connected: slots 0-16383\n"));

    first.kill();
    second.kill();
    std::fs::remove_dir_all(folders[1].path()).expect("nobody uses it");
    until("it is known what is missing", || status(&coordinator).contains("missing: directory"));
    let text = status(&coordinator);
    let way = "ballast cluster accept-loss s1 --lost 'directory' --coordinator ";
    assert!(text.contains("not served yet: slots 0-16383") && text.contains(way), "{text}");
    assert!(!is_served(&[&third, &fourth], "key"));

    for (words, said) in [
        (["accept-loss", "s1", "--lost", "segments 1"], "is: directory"),
        (["accept-loss", "s3", "--lost", "directory"], "s3 is not being recovered"),
    ] {
        let refused = operate(&coordinator, &words);
        let text = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(!refused.status.success() && text.contains(said), "{text}");
    }
    let accepted = operate(&coordinator, &["accept-loss", "s1", "--lost", "directory"]);
    assert!(accepted.status.success(), "{accepted:?}");
    for key in ["key", "a", "b", "c"] {
        until("everything is served again", || is_served(&[&third, &fourth], key));
    }
    until("nothing is left to do", || !status(&coordinator).contains("recovery of"));
}
