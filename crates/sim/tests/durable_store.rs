//! Planted bugs in a durable store: crashes at random moments find each of them.

#[path = "../../store/tests/common/mod.rs"]
mod common;
#[path = "../../store/tests/durable/disk.rs"]
mod disk;
#[path = "../../store/tests/durable/marked.rs"]
mod marked;
#[path = "../../store/tests/durable/scenario.rs"]
mod scenario;
#[path = "../../store/tests/durable/transfers.rs"]
mod transfers;
#[path = "../../store/tests/durable/world.rs"]
mod world;

use marked::MarkedWorld;
use planted::Bug;
use std::panic::{AssertUnwindSafe, catch_unwind};
use world::{Scale, World};

/// Number of seeds that are tried before the bug counts as not found.
const SEEDS: u64 = 400;

const STEPS: usize = 20_000;

const BUGS: [Bug; 7] = [
    Bug::TombstoneDroppedEarly,
    Bug::OverwriteForgotten,
    Bug::LeftBeforeSynced,
    Bug::TieToObject,
    Bug::LostLinkIgnored,
    Bug::TombstoneRemovedEarly,
    Bug::ReclaimedUnsynced,
];

/// Bugs of version marks.
const BUGS_OF_MARKS: [Bug; 3] = [Bug::MarkedBeforeSynced, Bug::KeptAboveMark, Bug::LeftBeforeMark];

/// Runs a world and returns the failure, if any.
fn run(seed: u64) -> Option<String> {
    failure_of(|| {
        let mut world = World::new(seed, Scale::of(seed));
        (0..STEPS).for_each(|_| world.step());
    })
}

/// Runs a world with version marks and returns the failure, if any.
fn run_marked(seed: u64) -> Option<String> {
    failure_of(|| {
        let mut world = MarkedWorld::new(seed);
        (0..STEPS).for_each(|_| world.step());
    })
}

fn failure_of(run: impl FnOnce()) -> Option<String> {
    let ran = catch_unwind(AssertUnwindSafe(run));
    let message = |panic: Box<dyn std::any::Any + Send>| match panic.downcast::<String>() {
        Ok(text) => *text,
        Err(panic) => panic.downcast::<&str>().map_or("?".into(), |text| (*text).to_owned()),
    };
    ran.err().map(message)
}

#[test]
fn every_planted_bug_of_a_durable_store_is_found() {
    find_all(&BUGS, run);
}

#[test]
fn every_planted_bug_of_version_marks_is_found() {
    find_all(&BUGS_OF_MARKS, run_marked);
}

fn find_all(bugs: &[Bug], run: impl Fn(u64) -> Option<String>) {
    let mut missed = Vec::new();
    for &bug in bugs {
        planted::plant(Some(bug));
        let found = (0..SEEDS).find_map(|seed| run(seed).map(|message| (seed, message)));
        planted::plant(None);
        match found {
            Some((seed, message)) => println!("{bug:?}: seed {seed}: {message}"),
            None => missed.push(bug),
        }
    }
    assert!(missed.is_empty(), "not found: {missed:?}");
}

#[test]
fn a_copy_that_leaves_the_log_before_its_original_is_found() {
    planted::plant(Some(Bug::LeftBeforeOrigin));
    let is_back = scenario::an_original_outlives_its_copy();
    planted::plant(None);
    assert!(is_back, "the bug is not found");
}

#[test]
fn a_restart_that_forgets_the_originals_of_copies_is_found() {
    planted::plant(Some(Bug::OriginForgotten));
    let is_back = scenario::an_original_is_read_after_its_copy();
    planted::plant(None);
    assert!(is_back, "the bug is not found");
}

#[test]
fn a_write_that_is_sent_before_the_entries_that_it_has_read_is_found() {
    planted::plant(Some(Bug::SentBeforeItsSource));
    let found = (0..20).find(|&seed| transfers::has_halved_a_transfer(seed));
    planted::plant(None);
    assert!(found.is_some(), "the bug is not found");
}
