//! Servers with slow or failing disks, or with wrong clocks, in a binary that can inject such
//! faults (`--features faults`).

use crate::client::{Answer, Client, until};
use crate::servers::{MODEST, Process, Starting, binary};
use bench::clock;
use resp::Value;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;
use types::Instant;

const VALUE_BYTES: usize = 256 << 10;

/// A cluster whose servers replicate each other's logs, and the scripts of their faults.
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

    /// Returns the path of a server's fault script.
    fn script(&self, number: usize) -> PathBuf {
        self.folders.path().join(format!("faults-{number}"))
    }

    /// Sets the faults of a server's disk.
    fn let_suffer(&self, number: usize, faults: &str) {
        let line = format!("disk {} {faults}\n", self.folder(number).join("replicas").display());
        std::fs::write(self.script(number), line).expect("a file can be written");
    }

    /// Sets the lead of a server's wall clock.
    fn set_ahead(&self, number: usize, ahead: Duration) {
        let line = format!("clock ahead-ms={}\n", ahead.as_millis());
        std::fs::write(self.script(number), line).expect("a file can be written");
    }

    /// Returns the output of `ballast cluster status`.
    fn status(&self) -> String {
        let address = self.coordinator.address.to_string();
        let words = ["cluster", "status", "--coordinator", &address];
        let output = Command::new(binary()).args(words).output().expect("the binary starts");
        String::from_utf8(output.stdout).expect("words")
    }

    /// Requests a move of slots, and returns the reply.
    fn move_slots(&self, from: usize, slots: [u16; 2], to: usize) -> String {
        let target = self.server(to).client().ask(&["CLUSTER", "MYID"]).text();
        let [first, last] = slots.map(|slot| slot.to_string());
        let words = ["CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", &first, &last, "NODE", &target];
        self.server(from).client().ask(&words).text()
    }

    fn starting(&self, number: usize, replicas: &str) -> Starting {
        let mut command = Command::new(binary());
        let join = self.coordinator.address.to_string();
        command.args(["serve", "--port", "0", "--join", &join, "--memory", "192mb"]);
        command.args(["--durability", "memory", "--replicas", replicas]);
        command.arg("--data-dir").arg(self.folder(number)).args(MODEST);
        command.env("BALLAST_FAULTS", self.script(number));
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

/// Writes these values one after the other.
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
    // Reading all replicas takes longer than any client waits.
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
    until("it was noticed", || field(cluster.server(3), "replica_disk_errors") > 0);
    // The segment manifest stays under-replicated: its third replica would be on this disk.
    until("the others keep new writes", || field(cluster.server(0), "log_backups_reachable") == 2);
    write(cluster.server(0), 0..100);
    cluster.server(3).assert_serves("its disk has failed");
    // The other disks have new replicas in place of those that this disk has lost.
    cluster.kill(3);
    write(cluster.server(0), 0..20);
}

const HOUR: Duration = Duration::from_secs(3600);

/// The slots of the first and second server in tests of clocks.
const SLOTS: [[u16; 2]; 2] = [[8192, 16383], [0, 8191]];

/// Returns a key in these slots.
fn key_in(client: &mut Client, name: &str, slots: [u16; 2]) -> String {
    let keys = (0..1000).map(|number| format!("{name}:{number}"));
    let mut there = keys.filter(|key| {
        let slot = client.ask(&["CLUSTER", "KEYSLOT", key]).number();
        (i64::from(slots[0])..=i64::from(slots[1])).contains(&slot)
    });
    there.next().expect("every slot has keys")
}

fn is_told(client: &mut Client, key: &str, exists: bool) -> bool {
    client.ask(&["EXISTS", key]) == Answer(Value::Integer(exists.into()))
}

fn keep_for_ten_minutes(client: &mut Client, key: &str) {
    assert_eq!(client.ask(&["SET", key, "v", "EX", "600"]).text(), "OK");
}

/// Checks keys that have a time to live of ten minutes and were created recently.
fn assert_live(client: &mut Client, keys: &[&str]) {
    for key in keys {
        let left = client.ask(&["PTTL", key]).number();
        assert!((500_000..=600_000).contains(&left), "{key} has {left} ms left");
    }
}

/// A lock with a time to live. It must be held for that time by the test's clock, and not for ever.
struct Lock {
    key: String,
    taken: Instant,
    held: Duration,
}

impl Lock {
    fn take(client: &mut Client, key: &str, held: Duration) -> Lock {
        let millis = held.as_millis().to_string();
        let taken = clock::now();
        assert_eq!(client.ask(&["SET", key, "v", "NX", "PX", &millis]).text(), "OK", "{key}");
        Lock { key: key.to_owned(), taken, held }
    }

    fn ends_in_time(&self, client: &mut Client) {
        until("a lock ends", || is_told(client, &self.key, false));
        let held = clock::now().since(self.taken);
        // A server's clock may be a twentieth fast, and a moved range's by another one.
        assert!(held >= self.held * 400 / 441, "{} was held for {held:?} only", self.key);
    }
}

/// Starts three servers. The first two own half of the slots each.
fn halves() -> Suffering {
    let cluster = Suffering::start(3, "1");
    until("the first server serves", || {
        cluster.server(0).client().ask(&["SET", "key", "1"]).text() == "OK"
    });
    until("the move is taken", || cluster.move_slots(0, SLOTS[1], 1) == "OK");
    until("it has moved", || {
        let status = cluster.status();
        status.contains("slots 0-8191\n") && !status.contains("moving")
    });
    cluster
}

#[test]
fn a_server_whose_clock_is_an_hour_ahead_changes_no_key_s_time() {
    let cluster = halves();
    let mut clients = [0, 1].map(|number| cluster.server(number).client());
    let before = [0, 1].map(|at| key_in(&mut clients[at], "before", SLOTS[at]));
    let [meanwhile, lock] =
        ["meanwhile", "lock"].map(|name| key_in(&mut clients[1], name, SLOTS[1]));
    (0..2).for_each(|at| keep_for_ten_minutes(&mut clients[at], &before[at]));

    cluster.set_ahead(1, HOUR);
    until("people are told", || cluster.status().contains("ms ahead of the others'"));
    let [right, wrong] = clients.each_mut().map(|client| {
        client.ask(&["TIME"]).items()[0].text().parse::<i64>().expect("seconds are a number")
    });
    assert!(wrong - right > 3_500, "{wrong} is right");
    keep_for_ten_minutes(&mut clients[1], &meanwhile);
    let held = Duration::from_millis(800);
    for _ in 0..2 {
        Lock::take(&mut clients[1], &lock, held).ends_in_time(&mut clients[1]);
    }
    assert_live(&mut clients[0], &[&before[0]]);
    assert_live(&mut clients[1], &[&before[1], &meanwhile]);
    let refused = cluster.move_slots(1, SLOTS[1], 2);
    assert!(refused.contains("no slots can be moved to or from it"), "{refused}");
    cluster.set_ahead(3, HOUR);
    let refused = cluster.starting(3, "1").refused();
    assert!(refused.contains("the clock of this machine is"), "{refused}");

    cluster.set_ahead(1, Duration::ZERO);
    until("the clocks agree", || !cluster.status().contains("the others'"));
    let lock = Lock::take(&mut clients[1], &lock, 5 * held);
    assert_eq!(cluster.move_slots(1, SLOTS[1], 2), "OK");
    let mut third = cluster.server(2).client();
    until("the third server has the range", || is_told(&mut third, &meanwhile, true));
    lock.ends_in_time(&mut third);
    assert_live(&mut third, &[&before[1], &meanwhile]);
}

#[test]
fn what_a_server_with_a_wrong_clock_had_is_recovered_with_the_time_that_is_left() {
    let mut cluster = halves();
    let mut second = cluster.server(1).client();
    let [kept, lock] = ["kept", "lock"].map(|name| key_in(&mut second, name, SLOTS[1]));
    cluster.set_ahead(1, HOUR);
    until("people are told", || cluster.status().contains("ms ahead of the others'"));
    keep_for_ten_minutes(&mut second, &kept);
    let lock = Lock::take(&mut second, &lock, Duration::from_secs(4));
    cluster.kill(1);
    let mut survivors = [0, 2].map(|number| cluster.server(number).client());
    let mut heir = None;
    until("somebody has recovered the range", || {
        heir = survivors.iter_mut().position(|client| is_told(client, &kept, true));
        heir.is_some()
    });
    let heir = &mut survivors[heir.expect("it was found")];
    assert_live(heir, &[&kept]);
    // Another server may have recovered this part of the range.
    let is_owner = |client: &mut Client| !client.ask(&["EXISTS", &lock.key]).is_error("MOVED");
    let owner = survivors.iter_mut().position(is_owner).expect("somebody has it");
    lock.ends_in_time(&mut survivors[owner]);
}

/// A standalone server that believes what its fault file says about its machine.
struct OnMachine {
    folder: TempDir,
}

impl OnMachine {
    fn start(&self, boot: u32) -> (Process, Client) {
        self.set(boot, "");
        let mut command = Command::new(binary());
        command.args(["serve", "--port", "0", "--durability", "interval", "--memory", "192mb"]);
        command.arg("--data-dir").arg(self.folder.path().join("data")).args(MODEST);
        command.env("BALLAST_FAULTS", self.folder.path().join("faults"));
        let server = Starting::new(command).ready();
        let mut client = server.client();
        until("the log is loaded", || !client.ask(&["DBSIZE"]).is_error("LOADING"));
        (server, client)
    }

    /// Sets the boot of the machine, and the faults of the disk.
    fn set(&self, boot: u32, faults: &str) {
        let replicas = self.folder.path().join("data/replicas");
        let script = format!("machine boot={boot}\ndisk {} {faults}\n", replicas.display());
        std::fs::write(self.folder.path().join("faults"), script).expect("a file can be written");
    }
}

/// Waits until everything that was written is below a version mark.
fn marked(client: &mut Client) {
    until("all is marked", || {
        let info = client.ask(&["INFO", "persistence"]).text();
        let number = |name: &str| {
            let line = info.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|number| number.parse::<u64>().ok()).expect("the server has marks")
        };
        number("log_version_mark:") + 1 >= number("log_version:")
    });
}

#[test]
fn writes_above_the_mark_are_lost_only_with_the_power_of_the_machine() {
    let machine =
        OnMachine { folder: tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder") };
    let (server, mut client) = machine.start(1);
    assert_eq!(client.ask(&["SET", "first", "1"]).text(), "OK");
    marked(&mut client);
    // No mark follows while the disk syncs.
    machine.set(1, "sync-ms=600000");
    assert_eq!(client.ask(&["MSET", "second", "2", "third", "2"]).text(), "OK");
    server.kill();
    let (server, mut client) = machine.start(1);
    let values = |client: &mut Client| {
        ["first", "second", "third", "fourth"].map(|key| match client.ask(&["GET", key]).0 {
            Value::Null => None,
            value => Some(Answer(value).text()),
        })
    };
    let [one, two] = ["1", "2"].map(|value| Some(value.to_owned()));
    let after_kill = [one.clone(), two.clone(), two.clone(), None];
    assert_eq!(values(&mut client), after_kill, "only the process has ended");
    assert_eq!(client.ask(&["SET", "other", "1"]).text(), "OK");
    marked(&mut client);
    machine.set(1, "sync-ms=600000");
    assert_eq!(client.ask(&["MSET", "first", "3", "fourth", "3"]).text(), "OK");
    server.kill();
    let (mut server, mut client) = machine.start(2);
    assert_eq!(values(&mut client), after_kill, "the state at the mark counts, and no more");
    assert_eq!(client.ask(&["SET", "fourth", "4"]).text(), "OK");
    server.terminate();
    server.wait();
    let (_server, mut client) = machine.start(3);
    let four = Some("4".to_owned());
    assert_eq!(values(&mut client), [one, two.clone(), two, four], "the server ended in order");
}
