//! The main promise of the project, tested with real processes: ranges move back and forth, and
//! clients see only redirects.
//!
//! The simulator's checker judges the recorded operations and results. For each register (a key, or
//! two keys of a slot that are only written together), there must be an order in which all
//! operations can have happened. A lost write makes later reads inexplicable. The last operations
//! read every register.

use crate::moves::{Ended, Mover};
use crate::servers::Cluster;
use crate::workers::under_load;
use bench::clock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const MEMORY_BYTES: u64 = 256 << 20;
/// Memory for code, stacks, and buffers of connections and pulls.
const MEMORY_BESIDE_BYTES: u64 = 128 << 20;

/// Returns the duration of the load: 20 s, or the value in the environment.
fn duration() -> Duration {
    let seconds = std::env::var("BALLAST_TEST_SECONDS").ok().map(|text| text.parse());
    Duration::from_secs(seconds.map_or(20, |number| number.expect("a number of seconds")))
}

/// Returns the seed of migrations and client operations: 1, or the value in the environment.
pub(crate) fn seed() -> u64 {
    let seed = std::env::var("BALLAST_TEST_SEED").ok().map(|text| text.parse());
    seed.map_or(1, |number| number.expect("a seed is a number"))
}

#[test]
fn clients_see_nothing_but_redirects_while_ranges_move_back_and_forth() {
    let seed = seed();
    println!("BALLAST_TEST_SEED={seed}");
    let memory = MEMORY_BYTES.to_string();
    let arguments = |reactors| ["--memory", &memory, "--shared-cores", "--reactors", reactors];
    let cluster = Cluster::of(&[&arguments("1"), &arguments("2"), &arguments("3")]);
    let addresses = cluster.addresses();
    let stop_moves = AtomicBool::new(false);
    let (ended, finished) = under_load(&addresses, seed, Duration::ZERO, |_| {
        std::thread::scope(|scope| {
            let moves = scope.spawn(|| Mover::new(&cluster, seed).keep_moving(&stop_moves));
            watch_memory(&cluster);
            stop_moves.store(true, Ordering::Relaxed);
            moves.join().expect("moves go on")
        })
    });
    assert_moved(&ended);
    finished.check(&addresses);
    println!("migrations: {ended:?}");
}

fn watch_memory(cluster: &Cluster) {
    let end = clock::now() + duration();
    while clock::now() < end {
        clock::sleep(Duration::from_millis(100));
        for server in &cluster.servers {
            let resident = server.resident_bytes();
            let most = MEMORY_BYTES + MEMORY_BESIDE_BYTES;
            assert!(resident < most, "{} holds {resident} bytes", server.address);
        }
    }
}

fn assert_moved(ended: &Ended) {
    assert!(ended.failed.is_empty(), "migrations failed: {:?}", ended.failed);
    assert!(ended.succeeded >= 10, "hardly anything has moved: {ended:?}");
    let refused = ended.given_up + ended.refused.len();
    assert!(ended.succeeded > 20 * refused, "moves are given up too often: {ended:?}");
}
