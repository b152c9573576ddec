//! Searches over many runs: for a seed that breaks a rule, and for a smaller run that breaks it.

use crate::failure::{Failure, Report, Rule};
use crate::run::run;
use crate::settings::{Knob, RunSettings};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

/// Runs these seeds on `jobs` threads until a run is a hit or `each` returns `false`. Returns the
/// hit with the lowest seed.
pub fn search(
    settings: &RunSettings,
    seeds: Range<u64>,
    jobs: usize,
    is_hit: impl Fn(&Failure) -> bool,
    mut each: impl FnMut(u64, &Report) -> bool,
) -> Option<(u64, Report)> {
    let (next, is_enough) = (AtomicU64::new(seeds.start), AtomicBool::new(false));
    let (sender, receiver) = channel();
    std::thread::scope(|scope| {
        for _ in 0..jobs.max(1) {
            let (sender, next, is_enough, seeds) = (sender.clone(), &next, &is_enough, &seeds);
            scope.spawn(move || {
                while !is_enough.load(Ordering::Relaxed) {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end {
                        break;
                    }
                    let report = run(&RunSettings { seed, ..settings.clone() });
                    if sender.send((seed, report)).is_err() {
                        break;
                    }
                }
            });
        }
        drop(sender);
        let mut found: Option<(u64, Report)> = None;
        for (seed, report) in receiver {
            if !each(seed, &report) {
                is_enough.store(true, Ordering::Relaxed);
            }
            if report.failure.as_ref().is_some_and(&is_hit) {
                is_enough.store(true, Ordering::Relaxed);
                if found.as_ref().is_none_or(|(lowest, _)| seed < *lowest) {
                    found = Some((seed, report));
                }
            }
        }
        found
    })
}

/// Makes a failing run smaller. Each step leaves something out and looks for a seed, first the
/// same seed, that still breaks the same rule. `each` gets every smaller run. Returns `None` if
/// the run breaks no rule.
pub fn minimize(
    failing: &RunSettings,
    tries: u64,
    jobs: usize,
    mut each: impl FnMut(&RunSettings),
) -> Option<(RunSettings, Report)> {
    let report = run(failing);
    let rule = report.failure.as_ref()?.rule;
    let mut smallest = (failing.clone(), report);
    for step in ReductionStep::all() {
        // A step that halves something can perhaps be applied again.
        while let Some(smaller) = step.apply(&smallest.0, &smallest.1)
            && let Some(smaller) = first_failing(&smaller, rule, tries, jobs)
        {
            smallest = smaller;
            each(&smallest.0);
        }
    }
    Some(smallest)
}

/// Returns the first seed that breaks this rule with these settings.
fn first_failing(
    step: &RunSettings,
    rule: Rule,
    tries: u64,
    jobs: usize,
) -> Option<(RunSettings, Report)> {
    let is_hit = |failure: &Failure| failure.rule == rule;
    let own = search(step, step.seed..step.seed + 1, 1, is_hit, |_, _| true);
    let (seed, report) = own.or_else(|| search(step, 1..tries + 1, jobs, is_hit, |_, _| true))?;
    Some((RunSettings { seed, ..step.clone() }, report))
}

/// Step that makes a run smaller.
#[derive(Clone, Copy, Debug)]
enum ReductionStep {
    Without(Knob),
    Clients(usize),
    Registers(usize),
    /// Fraction (one part in this many) of the time that clients work.
    Part(u32),
}

impl ReductionStep {
    /// Returns all steps, large ones before small ones.
    fn all() -> Vec<ReductionStep> {
        let knobs = Knob::ALL.iter().map(|&knob| ReductionStep::Without(knob));
        let clients = [1, 2, 4].map(ReductionStep::Clients);
        let registers = [1, 4, 16, 64].map(ReductionStep::Registers);
        knobs.chain(clients).chain(registers).chain([4, 2].map(ReductionStep::Part)).collect()
    }

    /// Returns the smaller settings, or `None` if the settings are already that small.
    fn apply(self, settings: &RunSettings, report: &Report) -> Option<RunSettings> {
        let mut smaller = settings.clone();
        let is_smaller = match self {
            ReductionStep::Without(knob) => smaller.without.insert(knob),
            ReductionStep::Clients(clients) => {
                smaller.clients.replace(clients).is_none_or(|before| clients < before)
            }
            ReductionStep::Registers(registers) => {
                smaller.registers.replace(registers).is_none_or(|before| registers < before)
            }
            ReductionStep::Part(part) => {
                let until = settings.until.unwrap_or(report.worked) / part;
                smaller.until = Some(Duration::from_millis(until.as_millis() as u64));
                until >= SHORTEST
            }
        };
        is_smaller.then_some(smaller)
    }
}

/// Shortest working time, since no range moves before it.
const SHORTEST: Duration = Duration::from_millis(15);
