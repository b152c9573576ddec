//! Clients that read at both sides of a migration work beside all others, while ranges move back and
//! forth between servers that replicate their logs. All histories are judged together.

use crate::client::comes_true;
use crate::crashes::alone;
use crate::live_migration::seed;
use crate::moves::Mover;
use crate::servers::Cluster;
use crate::workers::under_two_sided_load;
use bench::clock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Duration of the load.
const DURATION: Duration = Duration::from_secs(10);
/// Least number of moves, and of values that came from a source, for the test to be meaningful.
const MOVES_MIN: usize = 5;
const COPIED_MIN: u64 = 20;

#[test]
fn smart_and_plain_clients_see_one_history_while_ranges_move() {
    let _alone = alone();
    let seed = seed();
    println!("BALLAST_TEST_SEED={seed}");
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder can be made");
    let folders = [1, 2, 3].map(|number| folder.path().join(number.to_string()));
    let folders = folders.each_ref().map(|path| path.to_str().expect("our names are words"));
    let arguments = folders.map(|folder| {
        let replicated = ["--durability", "memory", "--replicas", "1", "--data-dir", folder];
        [&replicated[..], &["--memory", "256mb", "--shared-cores", "--reactors", "2"]].concat()
    });
    let cluster = Cluster::of(&arguments.each_ref().map(|arguments| &arguments[..]));
    let addresses = cluster.addresses();
    let stop_moves = AtomicBool::new(false);
    let ((ended, copied), finished) = under_two_sided_load(&addresses, seed, |crowd| {
        std::thread::scope(|scope| {
            let moves = scope.spawn(|| Mover::new(&cluster, seed).keep_moving(&stop_moves));
            clock::sleep(DURATION);
            let is_enough = comes_true(|| crowd.copied() >= COPIED_MIN);
            stop_moves.store(true, Ordering::Relaxed);
            let ended = moves.join().expect("moves go on");
            (ended, is_enough.then(|| crowd.copied()))
        })
    });
    println!("migrations: {ended:?}; values from a source: {copied:?}");
    assert!(ended.failed.is_empty(), "migrations failed: {:?}", ended.failed);
    assert!(ended.succeeded >= MOVES_MIN, "hardly anything has moved: {ended:?}");
    assert!(copied.is_some(), "hardly anything was read at a source");
    finished.check(&addresses);
}
