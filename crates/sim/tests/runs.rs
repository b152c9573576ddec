//! Runs of the real code, without a bug built in.

#![forbid(unsafe_code)]

use sim::{Report, Settings, run};

fn run_seed(seed: u64) -> Report {
    run(&Settings::new(seed))
}

#[test]
fn a_seed_gives_the_same_run_twice_and_another_seed_another() {
    for seed in [5, 6] {
        let (one, two) = (run_seed(seed), run_seed(seed));
        assert_eq!(one.failure, None);
        assert_eq!(one.trace, two.trace, "seed {seed}");
        assert_eq!((one.operations, one.moved), (two.operations, two.moved));
        assert_ne!(one.trace, run_seed(seed + 100).trace);
    }
}

#[test]
fn ranges_move_under_load_and_every_rule_holds() {
    let reports: Vec<Report> = (1..=20).map(run_seed).collect();
    for (seed, report) in (1..).zip(&reports) {
        assert_eq!(report.failure, None, "seed {seed}");
    }
    // What would pass because nothing happens is no test.
    let operations: usize = reports.iter().map(|report| report.operations).sum();
    let moved: usize = reports.iter().map(|report| report.moved).sum();
    assert!(operations > 50_000 && moved > 50, "{operations} operations, {moved} moves");
}

/// Seeds that once failed, and of what: of the real code unless it says otherwise.
const KEPT: [(u64, &str); 9] = [
    (73, "a list of migrations from before all links broke was believed (the simulator's own)"),
    (184, "values expired between the last reads and the walk, by clocks that differ (its own)"),
    (50, "the same, in a run that was at rest when the weather cleared (its own)"),
    (784, "a target had not heard yet that its migration had ended (its own)"),
    (4467, "a server still stood still when the weather had cleared (its own)"),
    (1795372805243, "a log was loaded by the tablets of a turn that began before there were any"),
    (1795369544711, "the same"),
    (444, "the owner of a born range died before the coordinator had heard of it (its own)"),
    (
        800788,
        "writes were refused while one backup's disk failed and the other was cut off (its own)",
    ),
];

/// The same with servers that keep each other's logs.
const KEPT_REPLICATED: [(u64, &str); 6] = [
    (45, "a segment of the log directory was written when the coordinator had noted the next one"),
    (160, "writes were refused for lack of backups since the coordinator had just started"),
    (281, "writes were refused while the disks of all backups had failed (its own)"),
    (908, "a backup that had been silent was not used when the other one's disk had failed"),
    (
        700040,
        "a lock ended early: a recovered range's clock began where the dead server last told it",
    ),
    (700305, "the same after two deaths within 20 s, which may cost a second (its own)"),
];

#[test]
fn seeds_that_failed_once_do_so_no_more() {
    for (seed, of) in KEPT {
        assert_eq!(run_seed(seed).failure, None, "seed {seed}, which failed once: {of}");
    }
    for (seed, of) in KEPT_REPLICATED {
        let report = run(&Settings { is_replicated: true, ..Settings::new(seed) });
        assert_eq!(report.failure, None, "seed {seed}, replicated, which failed once: {of}");
    }
}
