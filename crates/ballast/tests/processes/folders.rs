//! Data folders that are moved, unmounted, of another version or another server: a start changes
//! nothing, reports the problem, and succeeds when the right folder is back.

use crate::client::until;
use crate::servers::{MODEST, Process, Starting, binary};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A user that owns no files.
const NOBODY: u32 = 65_534;

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a folder can be made for a test")
}

fn start(folder: &Path) -> Process {
    Process::kept(folder, &[&MODEST[..], &["--memory", "64mb"]].concat())
}

fn command(folder: &Path) -> Command {
    let mut command = Command::new(binary());
    command.args(["serve", "--port", "0", "--memory", "64mb"]).args(MODEST);
    command.arg("--data-dir").arg(folder);
    command
}

/// Returns the error of a stand-alone server that refuses to start with this folder.
fn refusal(folder: &Path) -> String {
    Starting::new(command(folder)).refused()
}

/// Returns every file of a folder with its bytes, and every subfolder. The lock file is left out,
/// because its content is only informational.
fn contents(folder: &Path) -> BTreeMap<PathBuf, Option<Vec<u8>>> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir(folder).expect("the folder is there").flatten() {
        let path = entry.path();
        if path.is_dir() {
            all.extend(contents(&path));
            all.insert(path, None);
        } else if path.file_name().is_some_and(|name| name != "lock") {
            let bytes = fs::read(&path).expect("a test may read it");
            all.insert(path, Some(bytes));
        }
    }
    all
}

/// Returns a folder in which a stand-alone server has written a key.
fn folder_with_data() -> tempfile::TempDir {
    let folder = folder();
    let server = start(folder.path());
    assert_eq!(server.client().ask(&["SET", "key", "value"]).text(), "OK");
    server.kill();
    folder
}

fn assert_data_is_there(folder: &Path) {
    let server = start(folder);
    until("the key is read", || server.client().ask(&["GET", "key"]).text() == "value");
}

/// Checks that a server refuses to start with these words, and changes nothing.
fn assert_refused(folder: &Path, words: &[&str]) {
    let before = contents(folder);
    let said = refusal(folder);
    for word in words {
        assert!(said.contains(word), "{word:?} is not in: {said}");
    }
    assert_eq!(contents(folder), before, "a refused start has changed something: {said}");
}

fn replica_files(folder: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(folder.join("replicas")).expect("it is there").flatten();
    let files = files.map(|file| file.path());
    let is_number = |path: &PathBuf| {
        path.file_name()
            .and_then(|name| name.to_str())
            .is_some_and(|name| name.parse::<u32>().is_ok())
    };
    files.filter(is_number).collect()
}

#[test]
fn a_server_whose_replicas_are_moved_away_refuses_to_start_and_has_its_data_when_they_are_back() {
    let folder = folder_with_data();
    let (replicas, away) = (folder.path().join("replicas"), folder.path().join("away"));
    fs::rename(&replicas, &away).expect("nobody uses it");
    assert_refused(folder.path(), &["replicas", "missing", "mounted"]);
    assert!(!replicas.exists(), "made anew, it would be in the way of the real one");
    // An unmounted disk leaves an empty mount point.
    fs::create_dir(&replicas).expect("it is away");
    assert_refused(folder.path(), &["replicas", "mounted"]);
    fs::remove_dir(&replicas).expect("it is empty");
    fs::rename(&away, &replicas).expect("nothing is in the way");
    assert_data_is_there(folder.path());
}

#[test]
fn replicas_of_another_folder_are_refused() {
    let (folder, other) = (folder_with_data(), folder_with_data());
    let (replicas, away) = (folder.path().join("replicas"), folder.path().join("away"));
    fs::rename(&replicas, &away).expect("nobody uses it");
    fs::rename(other.path().join("replicas"), &replicas).expect("nobody uses it");
    assert_refused(folder.path(), &["replicas", "another"]);
    fs::rename(&replicas, other.path().join("replicas")).expect("nobody uses it");
    fs::rename(&away, &replicas).expect("nobody uses it");
    assert_data_is_there(folder.path());
    assert_data_is_there(other.path());
}

#[test]
fn replicas_that_are_gone_from_their_folder_are_missed() {
    let folder = folder_with_data();
    let away = folder.path().join("away");
    fs::create_dir(&away).expect("a folder can be made");
    let files = replica_files(folder.path());
    for file in &files {
        let name = file.file_name().expect("it has a name");
        fs::rename(file, away.join(name)).expect("nobody uses it");
    }
    assert_refused(folder.path(), &["replicas", "the log is missing"]);
    for file in &files {
        let name = file.file_name().expect("it has a name");
        fs::rename(away.join(name), file).expect("nobody uses it");
    }
    assert_data_is_there(folder.path());
}

#[test]
fn headers_of_another_version_are_refused_and_nothing_is_lost() {
    let folder = folder_with_data();
    let flip = || {
        for path in replica_files(folder.path()) {
            let file = fs::File::options().read(true).write(true).open(&path).expect("it is there");
            let mut header = [0; 64];
            file.read_exact_at(&mut header, 0).expect("a replica has a header");
            // A file that is prepared for a replica has no header yet.
            if header == [0; 64] {
                continue;
            }
            // Change the format version, and the checksum that covers it.
            header[8] ^= 0x40;
            let crc = wire::crc32c(&header[..60]).to_le_bytes();
            header[60..].copy_from_slice(&crc);
            file.write_all_at(&header, 0).expect("it can be written");
        }
    };
    flip();
    assert_refused(folder.path(), &["cannot be read", "another version of ballast"]);
    flip();
    assert_data_is_there(folder.path());
}

#[test]
fn one_header_that_is_damaged_is_enough_to_refuse() {
    let folder = folder_with_data();
    let path = replica_files(folder.path()).remove(0);
    let file = fs::File::options().read(true).write(true).open(&path).expect("it is there");
    let flip = || {
        let mut byte = [0];
        file.read_exact_at(&mut byte, 20).expect("a replica has a header");
        file.write_all_at(&[byte[0] ^ 1], 20).expect("it can be written");
    };
    flip();
    let name = path.file_name().and_then(|name| name.to_str()).expect("a number");
    assert_refused(folder.path(), &["cannot be read", name]);
    flip();
    assert_data_is_there(folder.path());
}

#[test]
fn a_folder_of_another_owner_is_refused_with_advice() {
    let folder = folder_with_data();
    let mut as_nobody = command(folder.path());
    if rustix::process::getuid().is_root() {
        let copy = folder.path().join("ballast");
        // Other users may be unable to access the binary's folder.
        fs::copy(binary(), &copy).expect("it can be copied");
        as_nobody = Command::new(&copy);
        as_nobody.args(["serve", "--port", "0", "--memory", "64mb"]).args(MODEST);
        as_nobody.arg("--data-dir").arg(folder.path()).uid(NOBODY).gid(NOBODY);
        as_nobody.current_dir("/");
        open_to_all(folder.path(), 0o755);
        open_to_all(&folder.path().join("replicas"), 0o700);
        open_to_all(&folder.path().join("lock"), 0o666);
    } else {
        open_to_all(&folder.path().join("replicas"), 0o000);
    }
    let said = Starting::new(as_nobody).refused();
    assert!(said.contains("must own the data directory"), "{said}");
    open_to_all(&folder.path().join("replicas"), 0o755);
    assert_data_is_there(folder.path());
}

fn open_to_all(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("a test owns its files");
}

#[test]
fn a_first_start_that_was_interrupted_is_taken_up() {
    let folder = folder_with_data();
    // Simulate an end before the log was begun: the server has a number and served no client.
    fs::remove_file(folder.path().join("folder.id")).expect("it was written");
    for file in replica_files(folder.path()) {
        fs::remove_file(file).expect("it is ours");
    }
    let server = start(folder.path());
    until("it serves", || server.client().ask(&["SET", "key", "value"]).text() == "OK");
    server.kill();
    assert_data_is_there(folder.path());
}

#[test]
fn a_folder_from_before_there_were_marks_is_taken_over() {
    let folder = folder_with_data();
    let marks = ["folder.id", "replicas/folder.id"].map(|name| folder.path().join(name));
    for mark in &marks {
        fs::remove_file(mark).expect("it was written");
    }
    assert_data_is_there(folder.path());
    assert!(marks.iter().all(|mark| mark.exists()), "from here on it is known");
    for mark in &marks {
        fs::remove_file(mark).expect("it was written");
    }
    // Without marks, the start cannot determine whether there was a log.
    let (replicas, away) = (folder.path().join("replicas"), folder.path().join("away"));
    fs::rename(&replicas, &away).expect("nobody uses it");
    assert_refused(folder.path(), &["coordinator.redb", "mounted"]);
    fs::rename(&away, &replicas).expect("nothing is in the way");
    assert_data_is_there(folder.path());
}

#[test]
fn the_folder_of_a_server_of_a_cluster_is_known_by_its_mark_too() {
    let coordinator = Process::coordinator();
    let folder = folder();
    let address = coordinator.address.to_string();
    let of_cluster = ["--join", &address, "--durability", "memory", "--replicas", "1"];
    let path = folder.path().to_str().expect("the names of our folders are words");
    let arguments = [&MODEST[..], &of_cluster, &["--memory", "64mb", "--data-dir", path]].concat();
    let start = || {
        let mut command = Command::new(binary());
        command.args(["serve", "--port", "0"]).args(&arguments);
        Starting::new(command)
    };
    start().ready().kill();
    let replicas = folder.path().join("replicas");
    fs::rename(&replicas, folder.path().join("away")).expect("nobody uses it");
    let said = start().refused();
    assert!(said.contains("mounted"), "{said}");
    assert!(!replicas.exists());
    // A stand-alone server refuses a folder of a cluster member.
    fs::rename(folder.path().join("away"), &replicas).expect("nothing is in the way");
    assert_refused(folder.path(), &["cluster member"]);
    start().ready().kill();
}
