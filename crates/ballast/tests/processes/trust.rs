//! Clusters with a key. A process without key, with another key or with an old key is refused
//! everywhere, and nothing changes. The key can be changed while the cluster is in use.

use crate::client::until;
use crate::moves::until_all_end;
use crate::operators::{free_port, scrape};
use crate::servers::{MODEST, Process, binary};
use handshake::{ClusterKeys, Credentials, Opening, ProvenPeer};
use links::BlockingLink;
use rustix::process::Signal;
use std::io::{self, Read};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;
use types::{ClusterId, Generation, ServerId};
use wire::handshake::ConnectionPurpose;

/// Far more than a handshake takes.
const PATIENCE: Duration = Duration::from_secs(20);

/// Creates a file with a new key.
pub(crate) fn make_key(file: &str) {
    let (is_done, said) = run(&["key", file]);
    assert!(is_done, "{said}");
}

/// Runs the binary to its end. Returns whether it succeeded, and all its output.
fn run(arguments: &[&str]) -> (bool, String) {
    let output = Command::new(binary()).args(arguments).output().expect("the binary starts");
    let said = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&said).into_owned())
}

/// A folder with key files.
struct Keys(TempDir);

impl Keys {
    fn new() -> Keys {
        Keys(tempfile::tempdir().expect("a folder can be made for a test"))
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).to_str().expect("our folders have plain names").to_owned()
    }

    fn make(&self, name: &str) -> String {
        let path = self.path(name);
        make_key(&path);
        path
    }

    /// Writes a file with the keys of other files, in this order.
    fn write(&self, name: &str, keys: &[&str]) -> String {
        let texts = keys.iter().map(|key| text(&self.path(key)));
        let path = self.path(name);
        let beside = self.path("beside");
        std::fs::write(&beside, texts.collect::<String>()).expect("a key file can be written");
        std::fs::rename(&beside, &path).expect("a key file can be replaced");
        path
    }
}

fn text(path: &str) -> String {
    std::fs::read_to_string(path).expect("a key file can be read")
}

/// Returns an empty folder for a coordinator.
fn folder() -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    tempfile::tempdir_in(folder).expect("a folder can be made for a test").keep()
}

fn coordinator(key: &str) -> Process {
    Process::coordinator_in(&folder(), 0, &["--cluster-key-file", key])
}

fn joined(coordinator: &Process, key: &str) -> Process {
    Process::joined(coordinator, &[&["--cluster-key-file", key], &MODEST[..]].concat())
}

/// Returns the credentials of a test process with a key, or without one.
fn somebody(key: Option<&str>) -> Credentials {
    let keys = key.map(|key| ClusterKeys::parse(&text(key)).expect("it is a key"));
    Credentials::new(Generation(99), keys)
}

/// Connects and opens a handshake. The peer may still refuse the final proof.
fn open(
    address: SocketAddr,
    key: Option<&str>,
    opening: Opening,
) -> io::Result<(ProvenPeer, TcpStream)> {
    let stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let (proving, nonce) = (stream.try_clone()?, handshake::new_nonce()?);
    let (_, peer) = BlockingLink::<_, ()>::open(proving, &somebody(key), opening, nonce)?;
    Ok((peer, stream))
}

/// The handshake opening of an operator.
const OPERATOR: Opening =
    Opening { purpose: ConnectionPurpose::Operator, cluster: None, server: None, expected: None };

/// Connects to a coordinator as an operator.
fn operate(coordinator: &Process, key: Option<&str>) -> io::Result<ProvenPeer> {
    open(coordinator.address, key, OPERATOR).map(|(peer, _)| peer)
}

/// Returns the handshake opening of a server that belongs to no cluster.
fn opening_of_server(cluster: Option<ClusterId>, purpose: ConnectionPurpose) -> Opening {
    Opening { purpose, cluster, server: Some(ServerId(900)), expected: None }
}

/// Returns whether the peer closes a connection, before or after its own proof.
fn is_turned_away(address: SocketAddr, key: &str, opening: Opening) -> bool {
    let Ok((_, mut stream)) = open(address, Some(key), opening) else { return true };
    stream.set_read_timeout(Some(Duration::from_millis(200))).expect("a socket has a time limit");
    let is_silent = |error: io::Error| {
        matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
    };
    !stream.read_to_end(&mut Vec::new()).is_err_and(is_silent)
}

/// Connects to a server as another server of its cluster.
fn meet(
    server: &Process,
    cluster: Option<ClusterId>,
    purpose: ConnectionPurpose,
    key: Option<&str>,
) -> io::Result<ProvenPeer> {
    open(server.bus_address(), key, opening_of_server(cluster, purpose)).map(|(peer, _)| peer)
}

/// Returns the cluster of a coordinator.
fn cluster_of(coordinator: &Process, key: Option<&str>) -> Option<ClusterId> {
    operate(coordinator, key).expect("the key is right").party.cluster
}

#[test]
fn nobody_without_the_key_is_met() {
    let keys = Keys::new();
    let (key, other) = (keys.make("cluster.key"), keys.make("other.key"));
    let coordinator = coordinator(&key);
    let server = joined(&coordinator, &key);
    assert_eq!(server.client().ask(&["SET", "key", "value"]).text(), "OK");
    let cluster = cluster_of(&coordinator, Some(&key));
    for (stranger, why) in [
        (None, "has a cluster key, but this side has none"),
        (Some(&*other), "cluster key is another one"),
    ] {
        let mut refusals = vec![operate(&coordinator, stranger)];
        refusals.extend(
            [ConnectionPurpose::Bus, ConnectionPurpose::Priority]
                .map(|purpose| meet(&server, cluster, purpose, stranger)),
        );
        for refusal in refusals {
            let error = refusal.expect_err("it has no right to this").to_string();
            assert!(error.contains(why), "{error}");
        }
        let address = coordinator.address.to_string();
        let with = stranger.map_or(Vec::new(), |file| vec!["--cluster-key-file", file]);
        let status = [&["cluster", "status", "--coordinator", &address], &with[..]].concat();
        let serve = [&["serve", "--port", "0", "--join", &address], &MODEST[..], &with].concat();
        for command in [status, serve] {
            let (is_done, said) = run(&command);
            assert!(!is_done && said.contains(why), "{command:?}: {said}");
        }
    }
    // The same requests with the key are accepted.
    assert!(operate(&coordinator, Some(&key)).is_ok());
    let met = meet(&server, cluster, ConnectionPurpose::Bus, Some(&key)).expect("the key is right");
    assert_eq!((met.party.cluster, met.party.server), (cluster, Some(ServerId(1))));
    let address = coordinator.address.to_string();
    let status = run(&["cluster", "status", "--coordinator", &address, "--cluster-key-file", &key]);
    assert!(status.0 && status.1.contains("s1") && !status.1.contains("s2"), "{status:?}");
    assert_eq!(server.client().ask(&["GET", "key"]).text(), "value");
}

/// The metrics endpoint connects to its coordinator as an operator, so it must prove the key too.
#[test]
fn a_coordinator_with_a_key_tells_its_metrics() {
    let keys = Keys::new();
    let key = keys.make("cluster.key");
    let port = free_port();
    let arguments = ["--metrics-port", &port.to_string(), "--cluster-key-file", &key];
    let coordinator = Process::coordinator_in(&folder(), 0, &arguments);
    let _server = joined(&coordinator, &key);
    let at = SocketAddr::new(coordinator.address.ip(), port);
    until("the server is counted", || {
        let (status, page) = scrape(at, "/metrics");
        assert_eq!(status, "HTTP/1.1 200 OK");
        assert!(page.contains("ballast_coordinator_up 1\n"), "{page}");
        page.contains("ballast_servers{state=\"connected\"} 1\n")
    });
}

/// A cluster on one machine may run without a key. Its processes then refuse peers with a key.
#[test]
fn a_key_is_not_for_those_who_have_none() {
    let keys = Keys::new();
    let key = keys.make("cluster.key");
    let coordinator = Process::coordinator();
    let server = Process::joined(&coordinator, &MODEST);
    let cluster = cluster_of(&coordinator, None);
    let met = meet(&server, cluster, ConnectionPurpose::Bus, Some(&key));
    for refused in [operate(&coordinator, Some(&key)), met] {
        let error = refused.expect_err("nothing is negotiated").to_string();
        assert!(error.contains("the peer has no cluster key"), "{error}");
    }
}

#[test]
fn the_key_is_changed_while_the_cluster_is_used() {
    let keys = Keys::new();
    let old = keys.make("old");
    keys.make("new");
    // A file with both keys accepts both, and proves the first.
    let (with_old, with_new) =
        (keys.write("with-old", &["old", "new"]), keys.write("with-new", &["new", "old"]));
    let files = ["c", "s1", "s2"].map(|name| keys.write(name, &["old"]));
    let coordinator = coordinator(&files[0]);
    let servers = [joined(&coordinator, &files[1]), joined(&coordinator, &files[2])];
    for number in 0..100 {
        servers[0].client().ask(&["SET", &format!("key:{number}"), "value"]);
    }
    let names = servers.each_ref().map(|server| server.client().ask(&["CLUSTER", "MYID"]).text());
    let cluster = cluster_of(&coordinator, Some(&old));
    let mut slot = 0;
    // Change one file after the other, so that processes are at different steps.
    for step in [&["old", "new"][..], &["new", "old"], &["new"]] {
        for (number, name) in ["c", "s1", "s2"].into_iter().enumerate() {
            keys.write(name, step);
            let accepts = |key: &str| match number {
                0 => !is_turned_away(coordinator.address, key, OPERATOR),
                _ => {
                    let opening = opening_of_server(cluster, ConnectionPurpose::Bus);
                    !is_turned_away(servers[number - 1].bus_address(), key, opening)
                }
            };
            until("the new key is accepted", || accepts(&with_new));
            until("the old key is accepted as long as it is there", || {
                accepts(&with_old) == step.contains(&"old")
            });
            let slots = [slot, slot + 99].map(|slot| slot.to_string());
            slot += 100;
            let words =
                ["CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", &slots[0], &slots[1], "NODE", &names[1]];
            assert_eq!(servers[0].client().ask(&words).text(), "OK");
            until_all_end(&servers.each_ref().map(|server| server.address));
        }
        // A new server opens connections to all others.
        let late = joined(&coordinator, &keys.write("late", step));
        late.assert_serves("a key was changed");
    }
    let owned = format!("{:?}", servers[1].client().ask(&["CLUSTER", "SLOTS"]));
    assert!(owned.contains("Integer(899)"), "every move succeeded: {owned}");
    let (is_done, said) = run(&[
        "serve",
        "--port",
        "0",
        "--join",
        &coordinator.address.to_string(),
        "--cluster-key-file",
        &old,
    ]);
    assert!(!is_done && said.contains("cluster key is another one"), "{said}");
}

#[test]
fn addresses_that_others_reach_take_a_key() {
    for arguments in [
        &["coordinator", "--port", "0", "--bind", "0.0.0.0"][..],
        &["serve", "--port", "0", "--join", "127.0.0.1:1", "--bind", "0.0.0.0"],
        &["serve", "--port", "0", "--join", "127.0.0.1:1", "--announce", "10.0.0.1"],
        &["serve", "--port", "0", "--join", "10.0.0.1:7000"],
    ] {
        let (is_done, said) = run(arguments);
        assert!(!is_done && said.contains("ballast key"), "{arguments:?}: {said}");
    }
    // A stand-alone server has no peers, so it needs no key.
    let alone = Process::alone(&[&["--bind", "0.0.0.0"], &MODEST[..]].concat());
    let at = SocketAddr::new([127, 0, 0, 1].into(), alone.address.port());
    assert_eq!(crate::client::Client::connect(at).ask(&["PING"]).text(), "PONG");
    let keys = Keys::new();
    let key = keys.make("cluster.key");
    let arguments = ["--bind", "0.0.0.0", "--cluster-key-file", &key];
    let folder = tempfile::tempdir().expect("a folder can be made for a test");
    drop(Process::coordinator_in(folder.path(), 0, &arguments));
}

#[test]
fn a_file_without_a_good_key_is_refused_with_what_to_do() {
    let keys = Keys::new();
    let missing = keys.path("missing");
    let short = keys.path("short");
    std::fs::write(&short, "0123456789abcdef\n").expect("a file can be written");
    for (file, what) in [(&missing, "ballast key"), (&short, "has 8 bytes")] {
        let (is_done, said) = run(&["coordinator", "--port", "0", "--cluster-key-file", file]);
        assert!(!is_done && said.contains(what), "{said}");
    }
    let key = keys.make("cluster.key");
    let (is_done, said) = run(&["key", &key]);
    assert!(!is_done && said.contains("cannot create the file"), "{said}");
    let (is_done, said) = run(&["key"]);
    assert!(is_done && ClusterKeys::parse(&said).is_ok(), "{said}");
}

/// Without `--strict-reads`, the read would be answered until the lease ends.
#[test]
fn a_strict_read_is_answered_when_the_backups_have_confirmed_it() {
    let folder = tempfile::tempdir().expect("a folder can be made for a test");
    let coordinator = Process::coordinator();
    let servers = ["1", "2", "3"].map(|name| {
        let place = folder.path().join(name);
        let place = place.to_str().expect("our folders have plain names");
        let kept = ["--durability", "memory", "--replicas", "2", "--data-dir", place];
        Process::joined(&coordinator, &[&kept[..], &["--strict-reads"], &MODEST].concat())
    });
    let mut client = servers[0].client();
    until("writes are taken", || client.ask(&["SET", "key", "value"]).text() == "OK");
    assert_eq!(client.ask(&["GET", "key"]).text(), "value");
    let backups = &servers[1..];
    backups.iter().for_each(|backup| backup.signal(Signal::STOP));
    until("they stand still", || backups.iter().all(Process::is_stopped));
    client.request(&["GET", "key"]);
    assert!(client.answer_within(Duration::from_millis(150)).is_none(), "nobody has confirmed it");
    assert_eq!(servers[0].client().ask(&["PING"]).text(), "PONG", "it shows no data");
    backups.iter().for_each(|backup| backup.signal(Signal::CONT));
    assert_eq!(client.answer().text(), "value");
}
