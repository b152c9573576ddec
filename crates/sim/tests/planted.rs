//! Test of the simulator itself: it finds every planted bug, within a limited number of seeds.

use sim::{LastingKind, Planted, RunSettings, minimize, run};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Returns the number of seeds within which the bug must be found: two to three times the
/// measured number (`docs/design/simulator.md`), since any change to the drawing of runs shifts
/// it.
fn seeds_max(planted: Planted) -> u64 {
    match planted {
        Planted::ProgressOnReceipt
        | Planted::ForgottenBeforeCut
        | Planted::StaleMapAccepted
        | Planted::HeldForgotten
        | Planted::OlderVersionReplayed
        | Planted::PullNotRepeated
        | Planted::LeavingTabletKept => 10,
        Planted::FloorNotRaised
        | Planted::DeleteWithoutTombstone
        | Planted::DecidedOnMissing
        | Planted::MissingReadAsAbsent
        | Planted::CopyServedAfterLeaving
        | Planted::PartnerReadAsAbsent
        | Planted::RedirectedWhileHeld
        | Planted::ReplyOvertakes
        | Planted::TurnForgotten
        | Planted::RangeClockIgnored
        | Planted::BarrierOvertaken => 30,
        Planted::ForgottenWhenSent
        | Planted::ThawedWithoutAsking
        | Planted::AbsentNotRemembered
        | Planted::BusyReadAsAbsent
        | Planted::WalkNotWaiting
        | Planted::OldCopyKept
        | Planted::LifeFromWallClock
        | Planted::PulledExpireLate
        | Planted::ClockGoesBack
        | Planted::EndToldOnce
        | Planted::TombstonesLeft
        | Planted::LifetimeNotKept
        | Planted::LifetimeNotChanged
        | Planted::RemainingFromWallClock
        | Planted::FieldsNotJudged
        | Planted::FieldLifetimeLost
        | Planted::FieldLifetimeKept
        | Planted::FieldsSweptEarly
        | Planted::FieldLifetimeNotMoved
        | Planted::VersionNotChecked
        | Planted::BarrierTooEarly => 100,
        Planted::LateReplyInserted
        | Planted::ReclaimedWithoutTombstone
        | Planted::FlushedArrives
        | Planted::LostReplyTakenForEmpty
        | Planted::NeverNotKept
        | Planted::KeyOvertaken
        | Planted::OutcomeAskedOnce
        | Planted::SilenceTakenForNever
        | Planted::AbsentSideAwaited
        | Planted::ClockJumpsAhead => 399,
        Planted::LostWriteRepeated
        | Planted::SentTakenForUnsent
        | Planted::OverdueReplyNotExpected
        | Planted::RedirectionIgnored
        | Planted::DeadlineForgotten => 30,
        Planted::OlderMapAdopted | Planted::EarlierConnectionHeard => 120,
        Planted::MarkedBeforeSynced | Planted::KeptAboveMark | Planted::MemoryNotSynced => 60,
        Planted::AmbiguityForgotten
        | Planted::AbsenceRepeated
        | Planted::AmbiguousTakenForRefused => 999,
        Planted::AcknowledgedBeforeReplicas
        | Planted::DependencyDroppedEarly
        | Planted::RecoveryDependencyForgotten
        | Planted::FreedWhileDependedOn
        | Planted::WriteNotGated
        | Planted::ReadNotGated
        | Planted::TombstoneNotReplayed
        | Planted::IncarnationOfSource
        | Planted::SealedBeforeReplicated
        | Planted::LostReplicaNotCopied
        | Planted::HeartbeatForgotten
        | Planted::ReportedBeforeMeasured
        | Planted::ReportedBeforeSynced
        | Planted::DamageNotReported => 30,
        Planted::TypeLost | Planted::PageNotMoved | Planted::PageNotRecovered => 100,
        Planted::IdReused
        | Planted::PageOfOtherId
        | Planted::PoppedItemKept
        | Planted::PushedAtOtherEnd
        | Planted::EqualScoresUnordered
        | Planted::LastIdForgotten
        | Planted::DeliveredAgain
        | Planted::PendingNotCopied
        | Planted::PagesRemovedAlone
        | Planted::OrderNotFollowed => 100,
        Planted::ArrivingPageSwept | Planted::OrderVersionIgnored => 999,
        Planted::CompletionNotMoved
        | Planted::CompletionNotRecovered
        | Planted::CompletionsFlushed => 100,
        Planted::ServedBeforeReplayed
        | Planted::RefusedAfterRecovery
        | Planted::StaleReplicaUsed
        | Planted::VersionsGoBack
        | Planted::DataBeforeOpen
        | Planted::RecoveredClockAhead
        | Planted::IncarnationNotRenewed => 100,
        Planted::SilentBackupKept | Planted::LapsedLeaseWaits | Planted::OrphanNotReassigned => 60,
        Planted::CutBeforeSplice
        | Planted::LostPieceForgotten
        | Planted::PromisedUnreached
        | Planted::CompletionDroppedEarly
        | Planted::ArrivalWithoutEnd => 180,
        Planted::FreedBeforeCommit
        | Planted::ZombieServes
        | Planted::OldStoreTrusted
        | Planted::ForeignDiskAdmitted
        | Planted::SentBeforeCommit
        | Planted::RecoveryReadNotRepeated
        | Planted::GateReleasesAll
        | Planted::ShortestManifestUsed
        | Planted::ReplacedStaysLive => 300,
        Planted::TakenBackWithoutTarget
        | Planted::RecoveredWithoutClock
        | Planted::CutBeforeHeadsAreSafe => 400,
        Planted::StoreWithoutCompare
        | Planted::NilBeforeTombstoneIsSafe
        | Planted::DroppedBeforeSafe
        | Planted::TombstoneDroppedEarly
        | Planted::DeadBackupKept
        | Planted::SlowBackupCleaned
        | Planted::RefusalForgotten
        | Planted::FrozenWithoutGrace => 999,
        Planted::DivergentShown | Planted::SentBeforeItsSource | Planted::LeftBeforeMark => {
            unreachable!("it is not looked for")
        }
    }
}

/// Bugs that need hundreds of runs, since a death must fall into the right tenth of a millisecond,
/// or long runs, since nothing comes to rest.
const RARE: [Planted; 11] = [
    Planted::RefusalForgotten,
    Planted::OrderVersionIgnored,
    Planted::SlowBackupCleaned,
    Planted::NilBeforeTombstoneIsSafe,
    Planted::DroppedBeforeSafe,
    Planted::TombstoneDroppedEarly,
    Planted::OutcomeAskedOnce,
    Planted::SilenceTakenForNever,
    Planted::RecoveryReadNotRepeated,
    Planted::DeadBackupKept,
    Planted::FrozenWithoutGrace,
];

/// Bugs that need more than an hour of runs: two deaths at the right moments, or one within the round
/// trip between two reactors, or while a segment leaves the log. Other tests find them
/// (`docs/design/simulator.md`).
const RAREST: [Planted; 3] =
    [Planted::DivergentShown, Planted::SentBeforeItsSource, Planted::LeftBeforeMark];

/// Returns the lasting fault during which the bug shows; other runs need not be searched for it.
fn lasting(planted: Planted) -> Option<LastingKind> {
    match planted {
        Planted::SilentBackupKept => Some(LastingKind::PairPartition),
        Planted::RefusalForgotten => Some(LastingKind::FullDisk),
        Planted::SlowBackupCleaned => Some(LastingKind::SlowDisk),
        Planted::LapsedLeaseWaits => Some(LastingKind::Partition),
        Planted::PromisedUnreached => Some(LastingKind::PairPartition),
        _ => None,
    }
}

/// Seeds that have shown the bugs, a line each. They are tried first, so a search is short unless a
/// change has shifted the drawing of runs. `UPDATE_GOLDENFILES=1` writes those that are found.
const SEEDS_FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/planted_seeds.txt");

/// Returns the seeds of a file, by the names of the bugs.
fn known_seeds() -> BTreeMap<String, u64> {
    let text = std::fs::read_to_string(SEEDS_FILE).expect("the seeds of the planted bugs");
    let seeds = text.lines().map(|line| {
        let (bug, seed) = line.split_once(' ').expect("a bug and its seed");
        (bug.to_owned(), seed.parse().expect("a seed"))
    });
    seeds.collect()
}

/// Returns a seed that shows the bug, and the description of the failure.
fn find(planted: Planted, known: Option<u64>) -> Option<(u64, String)> {
    let all = 1..=seeds_max(planted);
    let known = known.filter(|seed| all.contains(seed));
    known.into_iter().chain(all).find_map(|seed| {
        let is_replicated = planted.is_of_clusters();
        let settings = RunSettings {
            planted: Some(planted),
            is_replicated,
            has_native: planted.is_of_clients(),
            loses_power: planted.is_of_marks(),
            lasting: lasting(planted),
            ..RunSettings::new(seed)
        };
        let report = run(&settings);
        report.failure.map(|failure| (seed, failure.to_string()))
    })
}

#[test]
fn every_planted_bug_is_found_within_its_number_of_seeds() {
    let is_frequent = |bug: &Planted| !RARE.contains(bug) && !RAREST.contains(bug);
    find_all(&Planted::ALL.iter().copied().filter(is_frequent).collect::<Vec<_>>());
}

#[test]
#[ignore = "takes minutes: cargo test --release -p sim --features plant --test planted -- --ignored"]
fn rare_bugs_are_found_as_well() {
    find_all(&RARE);
}

fn find_all(bugs: &[Planted]) {
    let (next, known) = (AtomicUsize::new(0), known_seeds());
    let search = || {
        let bugs = std::iter::from_fn(|| bugs.get(next.fetch_add(1, Relaxed)));
        bugs.map(|&bug| (bug, find(bug, known.get(&bug.to_string()).copied()))).collect::<Vec<_>>()
    };
    let found = std::thread::scope(|scope| {
        let one = scope.spawn(search);
        let mut found = search();
        found.extend(one.join().expect("a run catches its own panics"));
        found
    });
    for (planted, found) in &found {
        let text = found.as_ref().map_or("not found".to_owned(), |(seed, failure)| {
            format!("seed {seed}: {}", failure.lines().next().unwrap_or_default())
        });
        println!("{planted}: {text}");
    }
    if std::env::var_os("UPDATE_GOLDENFILES").is_some() {
        let seeds =
            found.iter().filter_map(|(bug, found)| Some((bug.to_string(), found.as_ref()?.0)));
        let all: BTreeMap<_, _> = known.into_iter().chain(seeds).collect();
        let text: String = all.iter().map(|(bug, seed)| format!("{bug} {seed}\n")).collect();
        std::fs::write(SEEDS_FILE, text).expect("a file that can be written");
    }
    let missed: Vec<_> = found.iter().filter(|(_, found)| found.is_none()).collect();
    assert!(missed.is_empty(), "not found: {missed:?}");
}

#[test]
fn a_failing_run_is_made_smaller_and_still_breaks_the_same_rule() {
    let planted = Some(Planted::ProgressOnReceipt);
    let mut runs = (1..=10).map(|seed| RunSettings { planted, ..RunSettings::new(seed) });
    let failing = runs.find(|settings| run(settings).failure.is_some());
    let failing = failing.expect("this bug is found at once");
    let rule = |settings: &RunSettings| run(settings).failure.map(|failure| failure.rule);
    let mut steps = 0;
    let (smallest, report) = minimize(&failing, 5, 2, |_| steps += 1).expect("it breaks a rule");
    assert_eq!(report.failure.map(|failure| failure.rule), rule(&failing));
    assert_eq!(rule(&smallest), rule(&failing), "{smallest}");
    assert!(steps >= 10 && smallest.without.len() >= 8, "{smallest}");
}
