//! Runs of the real code without planted bugs.

use sim::{Knob, LastingKind, Report, RunSettings, run};

fn run_seed(seed: u64) -> Report {
    run(&RunSettings::new(seed))
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
    // The runs must have done enough work for the test to mean anything.
    let operations: usize = reports.iter().map(|report| report.operations).sum();
    let moved: usize = reports.iter().map(|report| report.moved).sum();
    assert!(operations > 50_000 && moved > 50, "{operations} operations, {moved} moves");
}

#[test]
fn clients_are_answered_while_any_fault_lasts() {
    for (seed, kind) in (1..).zip(LastingKind::ALL) {
        let lasting = Some(*kind);
        let settings = RunSettings { is_replicated: true, lasting, ..RunSettings::new(seed) };
        assert_eq!(run(&settings).failure, None, "{settings}");
    }
}

#[test]
fn native_clients_work_beside_the_plain_ones_and_every_rule_holds() {
    let settings = |seed| RunSettings { has_native: true, ..RunSettings::new(seed) };
    for seed in 1..=8 {
        let (native, plain) = (run(&settings(seed)), Knob::Native);
        assert_eq!(native.failure, None, "{}", settings(seed));
        let without = RunSettings { without: [plain].into(), ..RunSettings::new(seed) };
        assert_ne!(native.trace, run(&without).trace, "seed {seed} has no native clients");
    }
    assert_eq!(run(&settings(9)).trace, run(&settings(9)).trace);
}

/// Seeds that failed once, with the reason: a bug of the real code, unless marked as the
/// simulator's. They failed before runs had values with parts, and are run without them.
const KEPT: [(u64, &str); 23] = [
    (95000731, "the absence of a page could be told by a dead source alone (its own)"),
    (93000970, "a dead source had pages of a value whose root had arrived (its own)"),
    (2609, "an exactly-once request waited for pages that it was about to create, for ever"),
    (8186, "a recovered range continued with a clock that had stood still (its own)"),
    (73, "a list of migrations from before all links broke was believed (the simulator's own)"),
    (184, "values expired between the last reads and the walk, by clocks that differ (its own)"),
    (50, "the same, in a run that was at rest when the weather cleared (its own)"),
    (784, "a target had not heard yet that its migration had ended (its own)"),
    (4467, "a server still stood still when the weather had cleared (its own)"),
    (1795372805243, "a log was loaded by the tablets of a turn that began before there were any"),
    (1795369544711, "the same"),
    (444, "the owner of a born range died before the coordinator had heard of it (its own)"),
    (703_763, "a sync of a freed replica was reported for a later one of the same id"),
    (
        800788,
        "writes were refused while one backup's disk failed and the other was cut off (its own)",
    ),
    (5000773, "a dozen flushes were open at a time, too many to be followed (its own)"),
    (7002379, "19 flushes were open at a paused server, too many to be followed (its own)"),
    (2004078, "a key expired early that was set in a turn within which its server was stopped"),
    (671, "a range's clock was read before the step of its server's clock was seen (its own)"),
    (3574, "a range's clock ran ahead by the time for which the target of its flip was stopped"),
    (1427, "a reference was compared with the beginning of a turn in which the server was stopped"),
    (
        85007299,
        "a backup dated the clock of an append before the stop of its server within the turn",
    ),
    (60000343, "the clock of a dead server had stood still for long (its own)"),
    (60002679, "the same (its own)"),
];

/// The same of replicated runs.
const KEPT_REPLICATED: [(u64, &str); 25] = [
    (770, "a native client got later replies of a connection that had lost earlier ones (its own)"),
    (66358, "a recovery showed bytes that were in a system's cache alone"),
    (
        45,
        "a segment of the segment manifest was written when the coordinator had recorded the next one",
    ),
    (160, "writes were refused for lack of backups since the coordinator had just started"),
    (281, "writes were refused while the disks of all backups had failed (its own)"),
    (908, "a backup that had been silent was not used when the other one's disk had failed"),
    (
        700040,
        "a lock ended early: a recovered range's clock began where the dead server last told it",
    ),
    (700305, "the same after two deaths within 20 s, which may cost a second (its own)"),
    (
        7009243,
        "a value that one backup alone had was shown by a recovery, and not found by the next",
    ),
    (
        7009611,
        "writes were refused while one disk failed and messages to the other were late (its own)",
    ),
    (200136, "the clock of a server that was taken for dead had stood still for long (its own)"),
    (83004956, "a backup's report of a damaged replica was lost, and not yet repeated (its own)"),
    (83005584, "the wait for a scrub began the wait for expiry again (its own)"),
    (84001212, "writes waited for memory that was reusable at the end of a backup's sync interval"),
    (85005345, "a range moved without records, and its owner died before the next beat (its own)"),
    (86001132, "jobs still queued at a disk that had been slow when another fault began (its own)"),
    (86001555, "writes were refused while a backup that answered again was left out for a second"),
    (89001379, "a source that was told to start after its range had returned waited for ever"),
    (89001384, "the simulator: replicas were compared while an append was lost"),
    (87000012, "the last server died, and its clock was known from its own disk only (its own)"),
    (83000223, "a backup gave up replicas since their disk had failed while it measured them"),
    (7200029, "a client asked for the map only the server that was cut off from the others"),
    (7043, "the same"),
    (7201652, "the only backup that had heard a clock did not reach the coordinator (its own)"),
    (7203596, "the only report of a clock was lost with its connection (its own)"),
];

#[test]
fn seeds_that_failed_once_do_so_no_more() {
    let settings =
        |seed| RunSettings { without: [Knob::Collections].into(), ..RunSettings::new(seed) };
    for (seed, of) in KEPT {
        let report = run(&settings(seed));
        assert_eq!(report.failure, None, "seed {seed}, which failed once: {of}");
    }
    for (seed, of) in KEPT_REPLICATED {
        let report = run(&RunSettings { is_replicated: true, ..settings(seed) });
        assert_eq!(report.failure, None, "seed {seed}, replicated, which failed once: {of}");
    }
}
