//! The client of `crates/client` against real servers: all its commands, and a cluster whose slots
//! move under load.

use crate::crashes::alone;
use crate::live_migration::seed;
use crate::seats::{Plan, Seats};
use crate::servers::{Cluster, MODEST, Process};
use crate::stock_clients::while_ranges_move;
use ballast_client::{
    Client, ClientError, ClientOptions, FailureCause, KeyScanOptions, Request, TimeToLive, Value,
    WriteOutcome,
};
use bench::clock;
use std::collections::BTreeSet;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Runs a test with a runtime of one thread.
fn run<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime can be built").block_on(test)
}

async fn client_of(addresses: &[SocketAddr]) -> Client {
    let seeds: Vec<String> = addresses.iter().map(ToString::to_string).collect();
    Client::connect(&seeds, ClientOptions::default()).await.expect("the servers accept a client")
}

#[test]
fn all_commands_of_the_client_work_at_one_server() {
    let server = Process::alone(&MODEST);
    run(async {
        let client = client_of(&[server.address]).await;
        assert_eq!(client.get("k").await, Ok(None));
        assert_eq!(client.set("k", "1").await, Ok(()));
        assert_eq!(client.get("k").await, Ok(Some(b"1".to_vec())));
        assert_eq!(client.increment_by("k", 41).await, Ok(42));
        assert_eq!(client.increment("k").await, Ok(43));
        assert_eq!(client.decrement("k").await, Ok(42));
        assert_eq!(client.append("k", "!").await, Ok(3));
        let refused = client.increment("k").await;
        assert!(matches!(refused, Err(ClientError::Refused(text)) if text.starts_with("ERR ")));
        assert_eq!(client.time_to_live("k").await, Ok(TimeToLive::Endless));
        assert_eq!(client.expire("k", Duration::from_secs(1000)).await, Ok(true));
        let left = client.time_to_live("k").await.unwrap();
        assert!(matches!(left, TimeToLive::Left(left) if left <= Duration::from_secs(1000)));
        assert_eq!(client.set_for("k", "2", Duration::from_secs(1000)).await, Ok(()));
        assert!(matches!(client.time_to_live("k").await, Ok(TimeToLive::Left(_))));
        assert_eq!(client.exists("k").await, Ok(true));
        assert_eq!(client.delete("k").await, Ok(true));
        assert_eq!(client.delete("k").await, Ok(false));
        assert_eq!(client.time_to_live("k").await, Ok(TimeToLive::NoKey));
        let records: Vec<(String, String)> =
            (0..500).map(|n| (format!("key {n}"), format!("value {n}"))).collect();
        assert_eq!(client.set_many(&records).await, Ok(()));
        let keys: Vec<&str> = records.iter().map(|(key, _)| key.as_str()).collect();
        let values = client.get_many(&keys).await.unwrap();
        let expected = records.iter().map(|(_, value)| Some(value.clone().into_bytes()));
        assert_eq!(values, expected.collect::<Vec<_>>());
        let scanned = client.scan(KeyScanOptions { count: 7, pattern: None }).collect().await;
        let scanned: BTreeSet<Vec<u8>> = scanned.unwrap().into_iter().collect();
        assert_eq!(scanned, keys.iter().map(|key| key.as_bytes().to_vec()).collect());
        let pattern = Some(b"key 49*".to_vec());
        let some = client.scan(KeyScanOptions { pattern, count: 0 }).collect().await.unwrap();
        assert_eq!(some.len(), 11);
        assert_eq!(client.delete_many(&keys).await, Ok(500));
        let sizes = client.command_at_each(Request::new("DBSIZE")).await.unwrap();
        assert_eq!(sizes.len(), 1);
        assert_eq!(sizes[0].1, Ok(Value::Integer(0)));
        let stateful = client.command(Request::new("MULTI")).await;
        assert_eq!(stateful, Err(ClientError::NotExecuted(FailureCause::Unsupported)));
    });
}

#[test]
fn versions_guard_writes() {
    let server = Process::alone(&MODEST);
    run(async {
        let client = client_of(&[server.address]).await;
        let first = client.set_if("k", "1", 0).await.unwrap();
        let WriteOutcome::Written { version } = first else { panic!("{first:?}") };
        assert_eq!(client.set_if("k", "2", 0).await, Ok(WriteOutcome::Conflict { version }));
        let read = client.get_versioned("k").await.unwrap();
        assert_eq!((read.value, read.version), (Some(b"1".to_vec()), version));
        let second = client.set_versioned("k", "2").await.unwrap();
        assert!(second > version);
        let conflict = Ok(WriteOutcome::Conflict { version: second });
        assert_eq!(client.delete_if("k", version).await, conflict);
        assert_eq!(client.delete_if("k", second).await, Ok(WriteOutcome::Written { version: 0 }));
        assert_eq!(client.get_versioned("k").await.map(|read| read.version), Ok(0));
    });
}

#[test]
fn a_password_is_needed_and_used() {
    let server = Process::alone(&[&MODEST[..], &["--requirepass", "secret"]].concat());
    run(async {
        let seeds = [server.address.to_string()];
        let refused = Client::connect(&seeds, ClientOptions::default()).await;
        assert!(matches!(refused, Err(ClientError::Refused(text)) if text.starts_with("NOAUTH")));
        let with = |password: &str| ClientOptions {
            password: Some(password.into()),
            database: 2,
            ..ClientOptions::default()
        };
        let refused = Client::connect(&seeds, with("wrong")).await;
        assert!(
            matches!(refused, Err(ClientError::Refused(text)) if text.starts_with("WRONGPASS"))
        );
        let client = Client::connect(&seeds, with("secret")).await.unwrap();
        assert_eq!(client.set("k", "v").await, Ok(()));
        let mut other = server.client();
        assert_eq!(other.ask(&["AUTH", "secret"]).text(), "OK");
        assert_eq!(other.ask(&["EXISTS", "k"]).number(), 0);
        assert_eq!(other.ask(&["SELECT", "2"]).text(), "OK");
        assert_eq!(other.ask(&["GET", "k"]).text(), "v");
        // The map names servers, so it needs the password too.
        assert!(server.client().ask(&["BALLAST.MAP"]).is_error("NOAUTH"));
    });
}

#[test]
fn nobody_listening_is_an_error_soon() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let seeds = [listener.local_addr().expect("it is bound").to_string()];
    drop(listener);
    run(async {
        let outcome = Client::connect(&seeds, ClientOptions::default()).await;
        let unreachable = ClientError::NotExecuted(FailureCause::Unreachable);
        assert_eq!(outcome.err(), Some(unreachable));
    });
}

/// Numbers of keys of each kind, and of tasks.
const COUNTERS: usize = 40;
const REGISTERS: usize = 20;
const CONSTANTS: usize = 2_000;
const TASKS: usize = 24;

/// Duration of the load, and least number of complete scans in it.
const DURATION: Duration = Duration::from_secs(6);
const SCANS_MIN: u64 = 3;

/// Results of all tasks.
struct Done {
    until: types::Instant,
    increments: AtomicU64,
    swaps: AtomicU64,
    conflicts: AtomicU64,
    scans: AtomicU64,
}

impl Done {
    fn is_enough(&self) -> bool {
        clock::now() >= self.until && self.scans.load(Ordering::Relaxed) >= SCANS_MIN
    }
}

/// Increments counters and registers until enough is done. No error is allowed: no server dies.
async fn work(client: Client, number: usize, done: Arc<Done>) -> Result<(), ClientError> {
    let mut random = fastrand::Rng::with_seed(seed() + number as u64);
    while !done.is_enough() {
        match random.u8(..3) {
            0 => {
                client.increment(format!("counter {}", random.usize(..COUNTERS))).await?;
                done.increments.fetch_add(1, Ordering::Relaxed);
            }
            1 => {
                let key = format!("register {}", random.usize(..REGISTERS));
                let read = client.get_versioned(&key).await?;
                let before = number_in(&read.value);
                let after = (before + 1).to_string();
                match client.set_if(&key, after, read.version).await? {
                    WriteOutcome::Written { version } => {
                        assert!(version > read.version, "versions of a key rise");
                        done.swaps.fetch_add(1, Ordering::Relaxed);
                    }
                    WriteOutcome::Conflict { version } => {
                        assert_ne!(version, read.version, "a conflict shows another version");
                        done.conflicts.fetch_add(1, Ordering::Relaxed);
                    }
                }
            }
            _ => {
                let keys: Vec<String> =
                    (0..10).map(|_| format!("constant {}", random.usize(..CONSTANTS))).collect();
                let values = client.get_many(&keys).await?;
                for (key, value) in keys.iter().zip(values) {
                    assert_eq!(value.as_deref(), Some(key.as_bytes()));
                }
            }
        }
    }
    Ok(())
}

fn number_in(value: &Option<Vec<u8>>) -> u64 {
    let digits = value.as_deref().map(String::from_utf8_lossy);
    digits.map_or(0, |digits| digits.parse().expect("a register is a number"))
}

/// Scans all keys, again and again: every constant must be found each time.
async fn scan(client: Client, done: Arc<Done>) -> Result<(), ClientError> {
    while !done.is_enough() {
        let pattern = Some(b"constant *".to_vec());
        let keys = client.scan(KeyScanOptions { pattern, count: 50 }).collect().await?;
        let keys: BTreeSet<Vec<u8>> = keys.into_iter().collect();
        assert_eq!(keys.len(), CONSTANTS, "a scan has missed keys");
        done.scans.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

/// Returns the sum of the numbers of these keys.
async fn sum(client: &Client, name: &str, count: usize) -> u64 {
    let keys: Vec<String> = (0..count).map(|number| format!("{name} {number}")).collect();
    client.get_many(&keys).await.unwrap().iter().map(number_in).sum()
}

#[test]
fn while_slots_move_nothing_is_lost_and_nothing_is_counted_twice() {
    let cluster = Cluster::start(3, &["--shared-cores", "--reactors", "2", "--memory", "128mb"]);
    let addresses = cluster.addresses();
    while_ranges_move(&cluster, || run(load(&addresses[..1])));
}

/// Runs all tasks, and checks the sums of what they have added.
async fn load(seeds: &[SocketAddr]) {
    let client = client_of(seeds).await;
    let constant = |number: usize| (format!("constant {number}"), format!("constant {number}"));
    let constants: Vec<(String, String)> = (0..CONSTANTS).map(constant).collect();
    client.set_many(&constants).await.unwrap();
    let done = Arc::new(Done {
        until: clock::now() + DURATION,
        increments: AtomicU64::new(0),
        swaps: AtomicU64::new(0),
        conflicts: AtomicU64::new(0),
        scans: AtomicU64::new(0),
    });
    let mut tasks = tokio::task::JoinSet::new();
    (0..TASKS).for_each(|number| drop(tasks.spawn(work(client.clone(), number, done.clone()))));
    tasks.spawn(scan(client.clone(), done.clone()));
    while let Some(ended) = tasks.join_next().await {
        ended.expect("no task panics").expect("no request fails");
    }
    let [increments, swaps, conflicts, scans] =
        [&done.increments, &done.swaps, &done.conflicts, &done.scans]
            .map(|count| count.load(Ordering::Relaxed));
    println!("{increments} increments, {swaps} swaps, {conflicts} conflicts, {scans} scans");
    assert_eq!(sum(&client, "counter", COUNTERS).await, increments);
    assert_eq!(sum(&client, "register", REGISTERS).await, swaps);
    assert!(swaps > 0 && conflicts > 0, "the registers are hardly used");
    assert_eq!(client.servers().len(), 3);
}

/// Clients may know versions of writes that a power cut has taken back. After a restart, versions
/// begin far above them.
#[test]
fn versions_after_a_restart_are_above_those_of_lost_writes() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder can be made");
    let server = Process::kept(folder.path(), &MODEST);
    let before = run(async { client_of(&[server.address]).await.set_versioned("k", "1").await });
    let before = before.unwrap();
    server.kill();
    let server = Process::kept(folder.path(), &MODEST);
    run(async {
        // The client waits until the log is loaded.
        let client = client_of(&[server.address]).await;
        let read = client.get_versioned("k").await.unwrap();
        assert_eq!((read.value, read.version), (Some(b"1".to_vec()), before));
        let after = client.set_versioned("k", "2").await.unwrap();
        assert!(after > before + (1 << 32), "{before}, then {after}");
    });
}

/// Results of the tasks while servers die. The outcome of some writes stays unknown.
#[derive(Default)]
struct Survived {
    reads: AtomicU64,
    increments: AtomicU64,
    swaps: AtomicU64,
    uncertain_increments: AtomicU64,
    uncertain_swaps: AtomicU64,
    may_stop: AtomicBool,
}

/// Counts a write by its outcome. A server may refuse a write while it lacks backups.
fn count<T>(outcome: Result<T, ClientError>, certain: &AtomicU64, uncertain: &AtomicU64) {
    match outcome {
        Ok(_) => certain.fetch_add(1, Ordering::Relaxed),
        Err(ClientError::MaybeExecuted(_)) => uncertain.fetch_add(1, Ordering::Relaxed),
        Err(ClientError::Refused(text)) if text.starts_with("NOREPLICAS") => 0,
        Err(error) => panic!("a write fails although the cluster heals: {error}"),
    };
}

async fn survive(client: Client, number: usize, done: Arc<Survived>) {
    let mut random = fastrand::Rng::with_seed(seed() + number as u64);
    while !done.may_stop.load(Ordering::Relaxed) {
        let register = format!("register {}", random.usize(..REGISTERS));
        let read = client.get_versioned(&register).await.expect("reads are repeated");
        done.reads.fetch_add(1, Ordering::Relaxed);
        if random.bool() {
            let key = format!("counter {}", random.usize(..COUNTERS));
            let outcome = client.increment(key).await;
            count(outcome, &done.increments, &done.uncertain_increments);
            continue;
        }
        let after = (number_in(&read.value) + 1).to_string();
        match client.set_if(&register, after, read.version).await {
            Ok(WriteOutcome::Conflict { version }) => assert_ne!(version, read.version),
            outcome => count(outcome, &done.swaps, &done.uncertain_swaps),
        }
    }
}

/// Kills a server and stops another, each until the rest serves its slots, and lets them return.
fn strike(seats: &mut Seats) {
    seats.servers[0].kill();
    seats.until_served();
    seats.servers[0].start();
    seats.servers[0].ready();
    seats.until_whole();
    seats.servers[1].stop();
    seats.until_served();
    seats.servers[1].resume();
    seats.until_whole();
}

#[test]
fn when_servers_die_reads_go_on_and_uncertain_writes_are_reported() {
    let _alone = alone();
    let plan = Plan { servers: 3, replicas: 1, durability: "memory", network: None };
    let mut seats = Seats::start(plan, |_| ());
    seats.spread();
    let addresses = seats.addresses();
    let done = Arc::new(Survived::default());
    std::thread::scope(|scope| {
        let load = scope.spawn(|| {
            run(async {
                let client = client_of(&addresses).await;
                let mut tasks = tokio::task::JoinSet::new();
                for number in 0..TASKS {
                    tasks.spawn(survive(client.clone(), number, done.clone()));
                }
                while let Some(ended) = tasks.join_next().await {
                    ended.expect("no task panics");
                }
                (sum(&client, "counter", COUNTERS).await, sum(&client, "register", REGISTERS).await)
            })
        });
        let struck = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| strike(&mut seats)));
        done.may_stop.store(true, Ordering::Relaxed);
        let sums = load.join().expect("the load ends");
        struck.expect("the cluster heals");
        let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
        for (name, sum, certain, uncertain) in [
            ("increments", sums.0, count(&done.increments), count(&done.uncertain_increments)),
            ("swaps", sums.1, count(&done.swaps), count(&done.uncertain_swaps)),
        ] {
            println!("{certain} {name}, {uncertain} uncertain, {sum} counted");
            assert!((certain..=certain + uncertain).contains(&sum), "{name}");
            assert!(certain > 0, "no {name}");
        }
        println!("{} reads", count(&done.reads));
    });
}
