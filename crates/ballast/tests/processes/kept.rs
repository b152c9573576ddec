//! Persistent servers that end without warning and restart.

use crate::client::{Client, until};
use crate::servers::{MODEST, Process};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

fn folder() -> TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder can be made for a test")
}

fn start(folder: &Path, durability: &str, memory: &str) -> Process {
    let of_this = ["--durability", durability, "--memory", memory];
    Process::kept(folder, &[&MODEST[..], &of_this].concat())
}

/// Waits until the server has loaded its log.
fn loaded(server: &Process) -> Client {
    let mut client = server.client();
    while client.ask(&["DBSIZE"]).is_error("LOADING") {
        std::thread::yield_now();
    }
    client
}

/// The expected records of a server.
#[derive(Default)]
struct Twin {
    records: BTreeMap<String, String>,
    random: fastrand::Rng,
    keys: usize,
    value_bytes: usize,
}

impl Twin {
    fn new(seed: u64, keys: usize, value_bytes: usize) -> Twin {
        let random = fastrand::Rng::with_seed(seed);
        Twin { records: BTreeMap::new(), random, keys, value_bytes }
    }

    /// Changes records in pipelines, and records the acknowledged changes.
    fn write(&mut self, client: &mut Client, changes: usize) {
        for _ in 0..changes.div_ceil(64) {
            let mut requests = Vec::new();
            for _ in 0..64 {
                let key = format!("key:{}", self.random.usize(..self.keys));
                if self.random.u8(..4) == 0 {
                    self.records.remove(&key);
                    requests.push(vec!["DEL".to_owned(), key]);
                } else {
                    let bytes = self.random.usize(..self.value_bytes);
                    let value = format!("{:x}", self.random.u64(..)).repeat(bytes / 16 + 1);
                    self.records.insert(key.clone(), value.clone());
                    requests.push(vec!["SET".to_owned(), key, value]);
                }
            }
            let answers = client.ask_all(&requests);
            let refused = answers.iter().find(|answer| answer.is_error(""));
            assert!(refused.is_none(), "{refused:?}");
        }
    }

    /// Checks that the server has exactly these records.
    fn check(&self, client: &mut Client, when: &str) {
        let size = client.ask(&["DBSIZE"]);
        assert_eq!(size.number(), self.records.len() as i64, "{when}: {size:?}");
        for (key, value) in &self.records {
            assert_eq!(client.ask(&["GET", key]).text(), *value, "{when}: {key}");
        }
    }
}

/// Kills a server repeatedly, and checks the recovered records.
fn survives(durability: &str, mut twin: Twin, changes: usize, memory: &str) {
    let folder = folder();
    for round in 0..4 {
        let server = start(folder.path(), durability, memory);
        let mut client = loaded(&server);
        twin.check(&mut client, &format!("{durability}, round {round}"));
        twin.write(&mut client, changes);
        twin.check(&mut client, &format!("{durability}, before the end of round {round}"));
        server.kill();
    }
}

#[test]
fn what_was_acknowledged_is_there_after_the_process_was_killed() {
    for durability in ["memory", "interval", "disk"] {
        survives(durability, Twin::new(500, 500, 200), 3_000, "64mb");
    }
}

#[test]
fn a_log_that_was_cleaned_many_times_comes_back_whole() {
    survives("interval", Twin::new(3_000, 3_000, 16_000), 12_000, "96mb");
}

#[test]
fn expiries_tables_and_transactions_come_back() {
    let folder = folder();
    let server = start(folder.path(), "interval", "64mb");
    let mut client = loaded(&server);
    for request in [
        &["SET", "long", "here", "PX", "100000000"][..],
        &["SET", "short", "gone", "PX", "1"],
        &["SELECT", "5"],
        &["SET", "five", "here"],
        &["SELECT", "6"],
        &["SET", "six", "gone"],
        &["FLUSHDB"],
        &["SELECT", "0"],
        &["MSET", "{a}1", "here", "{a}2", "here"],
    ] {
        assert_eq!(client.ask(request).text(), "OK", "{request:?}");
    }
    assert_eq!(client.ask(&["MULTI"]).text(), "OK");
    for key in ["{a}1", "{a}3"] {
        assert_eq!(client.ask(&["SET", key, "changed"]).text(), "QUEUED");
    }
    assert_eq!(client.ask(&["EXEC"]).items().len(), 2);
    server.kill();
    let server = start(folder.path(), "interval", "64mb");
    let mut client = loaded(&server);
    let left = client.ask(&["PTTL", "long"]).number();
    assert!((90_000_000..100_000_000).contains(&left), "{left}");
    for (key, value) in [("{a}1", "changed"), ("{a}2", "here"), ("{a}3", "changed")] {
        assert_eq!(client.ask(&["GET", key]).text(), value);
    }
    assert_eq!(client.ask(&["EXISTS", "short"]).number(), 0);
    for (table, size) in [("5", 1), ("6", 0)] {
        assert_eq!(client.ask(&["SELECT", table]).text(), "OK");
        assert_eq!(client.ask(&["DBSIZE"]).number(), size, "database {table}");
    }
}

#[test]
fn a_folder_that_is_in_use_is_refused() {
    let folder = folder();
    let server = start(folder.path(), "interval", "64mb");
    let text = refusal(folder.path());
    assert!(text.contains("in use"), "{text}");
    server.assert_serves("another one tried to take its folder");
}

/// Returns the output of a server that cannot start with this folder.
fn refusal(folder: &Path) -> String {
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_ballast"))
        .args(["serve", "--port", "0", "--memory", "64mb", "--data-dir"])
        .arg(folder)
        .output()
        .expect("the binary starts");
    assert!(!output.status.success());
    String::from_utf8(output.stderr).expect("words")
}

/// Returns the files of segments, the longest first.
fn files(folder: &Path) -> Vec<PathBuf> {
    let all = fs::read_dir(folder.join("replicas")).expect("there are replicas");
    let mut files: Vec<PathBuf> = all.map(|file| file.expect("it can be read").path()).collect();
    files.sort();
    files
}

#[test]
fn damage_is_named_and_nothing_is_dropped_silently() {
    let folder = folder();
    let server = start(folder.path(), "interval", "64mb");
    let mut client = loaded(&server);
    let mut twin = Twin::new(9, 100, 50_000);
    twin.write(&mut client, 640);
    server.kill();
    // Damage one byte in the middle of a record.
    let mut damaged = 0;
    for file in files(folder.path()) {
        // Each start begins a new manifest log in another file.
        let Ok(bytes) = fs::read(&file) else { continue };
        let at = 5_000;
        if bytes.len() > at && bytes[at] != 0 {
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            fs::write(&file, changed).expect("it can be written");
            let text = refusal(folder.path());
            assert!(text.contains("is damaged"), "{}: {text}", file.display());
            fs::write(&file, bytes).expect("it can be written");
            damaged += 1;
        }
    }
    assert!(damaged > 0, "something was damaged");
    let server = start(folder.path(), "interval", "64mb");
    twin.check(&mut loaded(&server), "after all is as it was");
}

/// Returns a folder written by a server of replica format 1 (commit ede026c): 20 keys, one that
/// expires in 2100, a counter, a deleted key, an expired key, and a key in table 3. Replica files
/// are truncated after their last data. Of the coordinator's file, only the non-empty blocks are
/// stored, each after its position.
fn folder_of_format_1() -> TempDir {
    const BLOCK: usize = 4096;
    let folder = folder();
    let replicas = folder.path().join("replicas");
    fs::create_dir(&replicas).expect("a folder can be made");
    let files: [(&str, &[u8]); 2] = [
        ("000000", include_bytes!("folder-of-format-1/000000")),
        ("000001", include_bytes!("folder-of-format-1/000001")),
    ];
    for (name, bytes) in files {
        fs::write(replicas.join(name), bytes).expect("there is room");
    }
    let blocks = include_bytes!("folder-of-format-1/coordinator.blocks");
    let number = |bytes: &[u8]| {
        let number = bytes.first_chunk().expect("eight bytes");
        usize::try_from(u64::from_le_bytes(*number)).expect("a file that fits into memory")
    };
    let mut file = vec![0; number(blocks)];
    for block in blocks[8..].chunks(8 + BLOCK) {
        file[number(block)..][..BLOCK].copy_from_slice(&block[8..]);
    }
    fs::write(folder.path().join("coordinator.redb"), file).expect("there is room");
    folder
}

#[test]
fn a_folder_of_the_first_format_is_read_and_gone_on_with() {
    let folder = folder_of_format_1();
    for round in 0..3 {
        let server = start(folder.path(), "interval", "64mb");
        let mut client = loaded(&server);
        until("the expired key is reclaimed", || client.ask(&["DBSIZE"]).number() == 22);
        for key in 0..20 {
            let value = client.ask(&["GET", &format!("key:{key}")]);
            let expected = if key == 0 { format!("round {round}") } else { format!("value {key}") };
            let expected = if (round, key) == (0, 0) { "value 0".to_owned() } else { expected };
            assert_eq!(value.text(), expected);
        }
        assert_eq!(client.ask(&["EXPIRETIME", "lives"]).number(), 4_102_444_800);
        assert_eq!(client.ask(&["INCR", "counter"]).number(), 3 + round);
        assert_eq!(client.ask(&["EXISTS", "gone", "short"]).number(), 0);
        assert_eq!(client.ask(&["SET", "key:0", &format!("round {}", round + 1)]).text(), "OK");
        client.ask(&["SELECT", "3"]);
        assert_eq!(client.ask(&["GET", "other"]).text(), "table");
        server.kill();
    }
}
