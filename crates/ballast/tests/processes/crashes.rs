//! Servers that replicate each other's logs are killed, stopped, and run out of disk space under
//! load. No acknowledged write is lost, no stale value is read, and the cluster heals by itself.
//!
//! The simulator's checker judges the clients' operations, as in `live_migration.rs`. The faults
//! are those of `nemesis.rs`. `crates/bench/scripts/nemesis` runs many more of them.

use crate::client::{Answer, Client, until};
use crate::disks::SmallDisk;
use crate::lifetimes::{self, LivesSeen};
use crate::live_migration::seed;
use crate::moves::{MoveRequests, keep_asking, until_all_end};
use crate::nemesis::{Fault, Means, Nemesis};
use crate::network::Network;
use crate::seats::{Plan, Seats};
use crate::workers::{StopAtTheEnd, under_load};
use bench::clock;
use std::net::SocketAddr;
use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Time during which clients retry.
const PATIENCE: Duration = Duration::from_secs(20);

/// The cluster of the long test. It has one server more than it needs after a failure.
const SERVERS: usize = 4;
const SMALL_DISKS: usize = 2;
const SMALL_DISK_MB: u32 = 384;
/// Faults before clients begin with an empty cluster, so that the history can be judged.
const FAULTS_AT_A_TIME: usize = 8;

/// Part of a server's memory in use when the server counts as full.
const FULL: f64 = 0.85;
const FILLED_AT_ONCE: usize = 250;

/// Runs one cluster at a time: with several, two processors are too busy to meet any time limit.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Injects these faults into a cluster under load.
fn play(plan: Plan<'_>, mut seats: Seats, means: Means<'_>, faults: &[Fault]) -> Seats {
    let seed = seed();
    println!("BALLAST_TEST_SEED={seed}");
    seats.spread();
    let addresses = seats.addresses();
    let (seats, finished) = under_load(&addresses, seed, PATIENCE, |crowd| {
        Nemesis::new(plan, seats, means, crowd, seed).strike_all(faults)
    });
    finished.check(&addresses);
    seats
}

/// Does the same to a new cluster that needs nothing but processes.
fn play_with_processes(plan: Plan<'_>, faults: &[Fault]) -> Seats {
    let means = Means { disks: &[], network: None, moves: None };
    play(plan, Seats::start(plan, |_| ()), means, faults)
}

const fn plan(servers: usize, replicas: usize, durability: &str) -> Plan<'_> {
    Plan { servers, replicas, durability, network: None }
}

#[test]
fn nothing_is_lost_while_one_server_after_the_other_is_killed_and_started_again() {
    let _alone = alone();
    play_with_processes(plan(3, 2, "memory"), &[Fault::Kill; 3]);
    play_with_processes(plan(3, 1, "memory"), &[Fault::Kill; 3]);
}

#[test]
fn everything_is_back_after_all_were_killed_at_once() {
    let _alone = alone();
    let faults = [Fault::KillAll, Fault::KillEverybody];
    play_with_processes(plan(3, 1, "disk"), &faults);
}

#[test]
fn a_server_that_was_stopped_for_too_long_begins_anew_and_says_nothing_stale() {
    let _alone = alone();
    let mut seats = play_with_processes(plan(3, 1, "memory"), &[Fault::Stop]);
    let key = "somewhere";
    let owner = owner_of(&seats, key);
    let victim =
        seats.servers.iter().position(|seat| seat.address == owner).expect("it has a seat");
    let name = seats.servers[victim].identity().expect("a server has a name");
    let mut client = Client::connect(owner);
    assert_eq!(client.ask(&["SET", key, "old"]).text(), "OK");
    seats.servers[victim].stop();
    // The request is in the server's socket when the server continues.
    client.request(&["GET", key]);
    seats.until_served();
    let owner = owner_of(&seats, key);
    assert_eq!(Client::connect(owner).ask(&["GET", key]).text(), "old");
    assert_eq!(Client::connect(owner).ask(&["SET", key, "new"]).text(), "OK");
    seats.servers[victim].resume();
    let answer = client.answer_within(PATIENCE);
    assert!(answer.is_none_or(|answer| answer.is_error("") || answer.text() == "new"));
    until("the server begins anew", || {
        seats.servers[victim].identity().is_some_and(|now| now != name)
    });
    seats.until_whole();
}

#[test]
fn a_backup_whose_disk_is_full_keeps_nobody_waiting_for_long() {
    let _alone = alone();
    let plan = plan(4, 2, "interval");
    let mut disks = Vec::new();
    let seats = Seats::start(plan, |seats| match SmallDisk::mount(&seats.servers[0].disk, 256) {
        Ok(disk) => disks.push(disk),
        Err(why) => println!("skipped: no small disk can be made here: {why}"),
    });
    if !disks.is_empty() {
        let means = Means { disks: &disks, network: None, moves: None };
        play(plan, seats, means, &[Fault::FillDisk, Fault::FillDisk]);
    }
}

#[test]
fn what_does_not_fit_into_the_others_memory_waits_for_a_server_that_has_room() {
    let _alone = alone();
    let mut seats = Seats::start(plan(3, 2, "memory"), |_| ());
    seats.spread();
    let counts: Vec<usize> = (0..3).map(|server| fill(&seats, server)).collect();
    seats.servers[2].kill();
    let lost = key(2, 0);
    until("clients are told what to do", || {
        let answer = Client::connect(seats.servers[0].address).ask(&["GET", &lost]);
        answer.is_error("CLUSTERDOWN") && answer.text().contains("add a server")
    });
    for server in [0, 1] {
        let mut client = Client::connect(seats.servers[server].address);
        assert_eq!(client.ask(&["SET", &key(server, 0), &filling(0)]).text(), "OK");
    }
    seats.servers[2].start();
    seats.servers[2].ready();
    seats.until_whole();
    for (server, count) in counts.into_iter().enumerate() {
        let mut client = Client::connect(owner_of(&seats, &key(server, 0)));
        let numbers: Vec<usize> = (0..count).collect();
        for some in numbers.chunks(FILLED_AT_ONCE) {
            let reads = some.iter().map(|number| vec!["GET".into(), key(server, *number)]);
            let answers = client.ask_all(&reads.collect::<Vec<_>>());
            let answers = answers.iter().map(Answer::text);
            assert!(answers.eq(some.iter().map(|number| filling(*number))), "something is lost");
        }
    }
}

/// Injects as many kinds of faults as this machine supports, for the requested number of minutes.
#[test]
#[ignore = "takes minutes; crates/bench/scripts/nemesis runs it"]
fn a_cluster_heals_by_itself_whatever_happens_to_its_processes_disks_and_connections() {
    let _alone = alone();
    let setting = |name: &str| std::env::var(name).ok();
    let minutes =
        setting("BALLAST_TEST_MINUTES").map_or(10.0, |text| text.parse().expect("minutes"));
    let has_moves = setting("BALLAST_TEST_MIGRATIONS").is_some();
    let wanted = setting("BALLAST_TEST_FAULTS");
    let has_hooks = cfg!(feature = "faults");
    if !has_hooks {
        println!("no disk is slow and no clock wrong, since the binary lacks the feature `faults`");
    }
    let network = Network::new(SERVERS + 1)
        .inspect_err(|why| {
            println!("no connection is cut, since no network can be made here: {why}")
        })
        .ok();
    let plan =
        Plan { servers: SERVERS, replicas: 2, durability: "memory", network: network.as_ref() };
    let mut disks = Vec::new();
    let mut seats = Seats::start(plan, |seats| {
        for seat in &seats.servers[..SMALL_DISKS] {
            match SmallDisk::mount(&seat.disk, SMALL_DISK_MB) {
                Ok(disk) => disks.push(disk),
                Err(why) => {
                    println!("no disk is filled, since no small one can be made here: {why}")
                }
            }
        }
    });
    let means = Means { disks: &disks, network: network.as_ref(), moves: None };
    let is_possible = |fault: &Fault| match fault {
        Fault::FillDisk | Fault::LastingFullDisk => !disks.is_empty(),
        Fault::Isolate | Fault::Cut | Fault::LastingCut | Fault::LastingUnlinked => {
            network.is_some()
        }
        Fault::LastingSlowDisk | Fault::LastingWrongClock => has_hooks,
        _ => true,
    };
    let is_wanted = |fault: &Fault| match &wanted {
        None => true,
        Some(list) => list.split(',').any(|name| name == format!("{fault:?}")),
    };
    let faults: Vec<Fault> =
        Fault::ALL.into_iter().filter(|fault| is_possible(fault) && is_wanted(fault)).collect();
    let end = clock::now() + Duration::from_secs_f64(60.0 * minutes);
    seats.spread();
    for seed in seed().. {
        println!("BALLAST_TEST_SEED={seed}");
        let mut random = fastrand::Rng::with_seed(seed);
        let some: Vec<Fault> =
            (0..FAULTS_AT_A_TIME).filter_map(|_| random.choice(&faults).copied()).collect();
        seats = round(plan, seats, means, &some, seed, has_moves);
        if clock::now() > end {
            break;
        }
    }
}

/// Injects one of each kind of fault that lasts, as far as processes and the hooks of the feature
/// `faults` suffice. This is the short form of the test above: the part of it that the tests with
/// single faults leave out.
#[test]
#[cfg(feature = "faults")]
fn lasting_faults_leave_the_cluster_available_while_ranges_move() {
    let _alone = alone();
    let plan = plan(SERVERS, 2, "memory");
    let mut seats = Seats::start(plan, |_| ());
    seats.spread();
    let means = Means { disks: &[], network: None, moves: None };
    let faults = [
        Fault::LastingSlowDisk,
        Fault::LastingDead,
        Fault::LastingNoCoordinator,
        Fault::LastingWrongClock,
        Fault::LastingFewFiles,
        Fault::LastingOldCoordinator,
    ];
    round(plan, seats, means, &faults, seed(), true);
}

/// Injects some faults, then judges and discards the clients' history.
fn round(
    plan: Plan<'_>,
    seats: Seats,
    means: Means<'_>,
    faults: &[Fault],
    seed: u64,
    has_moves: bool,
) -> Seats {
    let addresses = seats.addresses();
    let requests = MoveRequests::new(has_moves);
    let watches = AtomicBool::new(false);
    let means = Means { moves: has_moves.then_some(&requests), ..means };
    let (seats, finished) = under_load(&addresses, seed, PATIENCE, |crowd| {
        std::thread::scope(|scope| {
            let moves = scope.spawn(|| keep_asking(&addresses, seed, &requests));
            let stop = StopAtTheEnd(&requests.stop);
            let watcher = scope.spawn(|| lifetimes::watch(&addresses, seed, &watches));
            let stop_watching = StopAtTheEnd(&watches);
            let seats = Nemesis::new(plan, seats, means, crowd, seed).strike_all(faults);
            drop((stop, stop_watching));
            println!("{} migrations were granted", moves.join().expect("asking goes on"));
            let LivesSeen { alive, gone, errors } = watcher.join().expect("watching goes on");
            println!("keys with a time to live: {alive} seen in time, {gone} gone in time");
            assert!(errors.is_empty(), "times to live were wrong: {errors:#?}");
            until_all_end(&addresses);
            seats
        })
    });
    finished.check(&addresses);
    seats.clear();
    seats
}

/// Fills a server's memory with records, and returns their number.
fn fill(seats: &Seats, server: usize) -> usize {
    let seat = &seats.servers[server];
    let mut client = Client::connect(seat.address);
    let mut count = 0;
    let memory = |field| {
        let bytes = seat.field(&["INFO", "memory"], field).expect("a server tells its memory");
        bytes.parse::<f64>().expect("bytes are a number")
    };
    while memory("used_memory") < FULL * memory("maxmemory") {
        let writes = (count..count + FILLED_AT_ONCE)
            .map(|number| vec!["SET".into(), key(server, number), filling(number)]);
        let answers = client.ask_all(&writes.collect::<Vec<_>>());
        assert!(answers.iter().all(|answer| answer.text() == "OK"), "{answers:?}");
        count += FILLED_AT_ONCE;
    }
    count
}

/// Returns a key of a slot that this server owns at the beginning, in a cluster of three.
fn key(server: usize, number: usize) -> String {
    let tag = ["b", "c", "a"][server];
    format!("{{{tag}}}:{number}")
}

fn filling(number: usize) -> String {
    format!("{number}:{:x>3000}", "")
}

/// Returns the server that serves a key, by asking all running servers.
fn owner_of(seats: &Seats, key: &str) -> SocketAddr {
    let serves = |address: &SocketAddr| {
        let seat = seats.servers.iter().find(|seat| seat.address == *address);
        seat.is_some_and(|seat| seat.is_there() && seat.ask(&["EXISTS", key]).is_some())
    };
    seats.addresses().into_iter().find(serves).expect("somebody serves every key")
}
