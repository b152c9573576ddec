//! Clients that read at both sides of a migration work beside all others, while ranges move back and
//! forth between servers that replicate their logs.

use crate::client::comes_true;
use crate::crashes::alone;
use crate::live_migration::seed;
use crate::moves::{Ended, Mover};
use crate::servers::Cluster;
use crate::workers::under_two_sided_load;
use ballast_client::{Client, ClientOptions};
use bench::clock;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tempfile::TempDir;

/// Duration of the load, at least.
const DURATION: Duration = Duration::from_secs(10);
/// Least number of moves, and of values that came from a source, for the test to be meaningful.
const MOVES_MIN: usize = 5;
const COPIED_MIN: u64 = 20;

/// A cluster of servers that replicate their logs.
struct ReplicatedCluster {
    cluster: Cluster,
    _folder: TempDir,
}

impl ReplicatedCluster {
    fn start() -> ReplicatedCluster {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR"));
        let folder = folder.expect("a folder can be made");
        let folders = [1, 2, 3].map(|number| folder.path().join(number.to_string()));
        let arguments = folders.each_ref().map(|folder| {
            let folder = folder.to_str().expect("our names are words");
            let replicated = ["--durability", "memory", "--replicas", "1", "--data-dir", folder];
            [&replicated[..], &["--memory", "256mb", "--shared-cores", "--reactors", "2"]].concat()
        });
        let cluster = Cluster::of(&arguments.each_ref().map(|arguments| &arguments[..]));
        ReplicatedCluster { cluster, _folder: folder }
    }

    /// Moves ranges for some time, and then until `is_enough`. Returns the outcomes, unless it never
    /// was enough.
    fn move_until(&self, is_enough: impl FnMut() -> bool) -> Option<Ended> {
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let moves = scope.spawn(|| Mover::new(&self.cluster, seed()).keep_moving(&stop));
            clock::sleep(DURATION);
            let is_enough = comes_true(is_enough);
            stop.store(true, Ordering::Relaxed);
            let ended = moves.join().expect("moves go on");
            is_enough.then_some(ended)
        })
    }
}

fn assert_moved(ended: Option<Ended>) {
    println!("migrations: {ended:?}");
    let ended = ended.expect("hardly anything was read at a source");
    assert!(ended.failed.is_empty(), "migrations failed: {:?}", ended.failed);
    assert!(ended.succeeded >= MOVES_MIN, "hardly anything has moved: {ended:?}");
}

/// The checker judges the histories of all clients together.
#[test]
fn smart_and_plain_clients_see_one_history_while_ranges_move() {
    let _alone = alone();
    let seed = seed();
    println!("BALLAST_TEST_SEED={seed}");
    let replicated = ReplicatedCluster::start();
    let addresses = replicated.cluster.addresses();
    let (ended, finished) = under_two_sided_load(&addresses, seed, |crowd| {
        let ended = replicated.move_until(|| crowd.copied() >= COPIED_MIN);
        println!("{} values from a source", crowd.copied());
        ended
    });
    assert_moved(ended);
    finished.check(&addresses);
}

/// Number of keys that are written, and of keys that are only read.
const WRITTEN: usize = 40;
const CONSTANTS: usize = 20_000;
const READERS: usize = 12;

/// A key with one writer. Operation `n` deletes the key if `n` is a multiple of 5, and else sets it to
/// `n`.
#[derive(Default)]
struct Written {
    /// Last operation that has begun, and last one that has ended.
    begun: AtomicU64,
    ended: AtomicU64,
}

/// The state that all tasks of the test share.
struct Watched {
    keys: Vec<Written>,
    may_stop: AtomicBool,
}

impl Watched {
    fn goes_on(&self) -> bool {
        !self.may_stop.load(Ordering::SeqCst)
    }
}

async fn write(client: Client, key: usize, watched: Arc<Watched>) {
    let name = format!("written {key}");
    let written = &watched.keys[key];
    while watched.goes_on() {
        let number = written.begun.fetch_add(1, Ordering::SeqCst) + 1;
        match number % 5 {
            0 => drop(client.delete(&name).await.expect("no write fails")),
            _ => client.set(&name, number.to_string()).await.expect("no write fails"),
        }
        written.ended.store(number, Ordering::SeqCst);
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Reads keys. A value must be at least as new as the last write that had ended before.
async fn read(client: Client, number: usize, watched: Arc<Watched>) -> u64 {
    let mut random = fastrand::Rng::with_seed(seed() + number as u64);
    let mut reads = 0;
    while watched.goes_on() {
        reads += 1;
        if random.bool() {
            let name = format!("constant {}", random.usize(..CONSTANTS));
            let value = client.get(&name).await.expect("no read fails");
            assert_eq!(value.as_deref(), Some(name.as_bytes()));
            continue;
        }
        let key = random.usize(..WRITTEN);
        let oldest = watched.keys[key].ended.load(Ordering::SeqCst);
        let value = client.get(format!("written {key}")).await.expect("no read fails");
        let newest = watched.keys[key].begun.load(Ordering::SeqCst);
        match value.map(|digits| String::from_utf8_lossy(&digits).parse::<u64>()) {
            Some(Ok(number)) => {
                assert!((oldest..=newest).contains(&number), "{number} after {oldest}");
            }
            Some(Err(error)) => panic!("nobody wrote that: {error}"),
            None => {
                let is_absent = |number: u64| number.is_multiple_of(5);
                assert!((oldest..=newest).any(is_absent), "absent after {oldest}, up to {newest}");
            }
        }
    }
    reads
}

/// Writes all keys that are only read.
async fn write_constants(client: &Client) {
    let names: Vec<String> = (0..CONSTANTS).map(|number| format!("constant {number}")).collect();
    let records: Vec<(&str, &str)> = names.iter().map(|name| (&**name, &**name)).collect();
    client.set_many(&records).await.expect("no write fails");
}

/// Runs the writers and readers until they may stop. Returns the number of reads.
async fn work(smart: &Client, plain: &Client, watched: &Arc<Watched>) -> u64 {
    let mut writers = tokio::task::JoinSet::new();
    for key in 0..WRITTEN {
        writers.spawn(write(plain.clone(), key, watched.clone()));
    }
    let mut readers = tokio::task::JoinSet::new();
    for number in 0..READERS {
        let client = if number % 2 == 0 { smart } else { plain };
        readers.spawn(read(client.clone(), number, watched.clone()));
    }
    let mut reads = 0;
    while let Some(reader) = readers.join_next().await {
        reads += reader.expect("no read is outdated");
    }
    while let Some(writer) = writers.join_next().await {
        writer.expect("no write fails");
    }
    reads
}

#[test]
fn the_native_client_reads_nothing_that_is_outdated() {
    let _alone = alone();
    let replicated = ReplicatedCluster::start();
    let addresses = replicated.cluster.addresses();
    let seeds: Vec<String> = addresses.iter().map(ToString::to_string).collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime can be built");
    let connect = |two_sided_reads| {
        let options = ClientOptions { two_sided_reads, ..ClientOptions::default() };
        runtime.block_on(Client::connect(&seeds, options)).expect("the servers accept a client")
    };
    let (smart, plain) = (connect(true), connect(false));
    runtime.block_on(write_constants(&smart));
    let keys = (0..WRITTEN).map(|_| Written::default()).collect();
    let watched = Arc::new(Watched { keys, may_stop: AtomicBool::new(false) });
    let (ended, reads) = std::thread::scope(|scope| {
        let load = scope.spawn(|| runtime.block_on(work(&smart, &plain, &watched)));
        let ended = replicated.move_until(|| smart.two_sided_reads() >= COPIED_MIN);
        watched.may_stop.store(true, Ordering::SeqCst);
        (ended, load.join().expect("no read is outdated"))
    });
    println!("{reads} reads, {} at both sides", smart.two_sided_reads());
    assert_moved(ended);
    assert_eq!(plain.two_sided_reads(), 0);
}
