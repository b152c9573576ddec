//! Many runs: seed after seed until one breaks a rule, and from one that does to a smaller one.

use crate::failure::{Failure, Report, Rule};
use crate::settings::{Knob, Settings};
use crate::world::run;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

/// Runs these seeds on so many threads, until one is a hit or `each` says that it is enough. Of
/// several hits the one with the lowest seed is returned.
pub fn search(
    settings: &Settings,
    seeds: Range<u64>,
    jobs: usize,
    is_hit: impl Fn(&Failure) -> bool,
    mut each: impl FnMut(&Report) -> bool,
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
                    let report = run(&Settings { seed, ..settings.clone() });
                    if sender.send((seed, report)).is_err() {
                        break;
                    }
                }
            });
        }
        drop(sender);
        let mut found: Option<(u64, Report)> = None;
        for (seed, report) in receiver {
            if !each(&report) {
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

/// A run that breaks a rule, made smaller step by step: each step leaves something out, and looks
/// for a seed, first the same one, that breaks the same rule without it. Every smaller run is told
/// to `each`. `None`: the run breaks no rule.
pub fn minimize(
    failing: &Settings,
    tries: u64,
    jobs: usize,
    mut each: impl FnMut(&Settings),
) -> Option<(Settings, Report)> {
    let report = run(failing);
    let rule = report.failure.as_ref()?.rule;
    let mut smallest = (failing.clone(), report);
    for step in Step::all() {
        // What could be halved once can perhaps be halved again.
        while let Some(smaller) = step.apply(&smallest.0, &smallest.1)
            && let Some(smaller) = first_failing(&smaller, rule, tries, jobs)
        {
            smallest = smaller;
            each(&smallest.0);
        }
    }
    Some(smallest)
}

/// The first seed that breaks this rule with these settings.
fn first_failing(
    step: &Settings,
    rule: Rule,
    tries: u64,
    jobs: usize,
) -> Option<(Settings, Report)> {
    let is_hit = |failure: &Failure| failure.rule == rule;
    let own = search(step, step.seed..step.seed + 1, 1, is_hit, |_| true);
    let (seed, report) = own.or_else(|| search(step, 1..tries + 1, jobs, is_hit, |_| true))?;
    Some((Settings { seed, ..step.clone() }, report))
}

/// A way to make a run smaller.
#[derive(Clone, Copy, Debug)]
enum Step {
    Without(Knob),
    Clients(usize),
    Registers(usize),
    /// Clients work for such a part of the time.
    Part(u32),
}

impl Step {
    /// All ways, greater steps before smaller ones.
    fn all() -> Vec<Step> {
        let knobs = Knob::ALL.iter().map(|&knob| Step::Without(knob));
        let clients = [1, 2, 4].map(Step::Clients);
        let registers = [1, 4, 16, 64].map(Step::Registers);
        knobs.chain(clients).chain(registers).chain([4, 2].map(Step::Part)).collect()
    }

    /// The settings that are one step smaller; `None`: they are as small as that already.
    fn apply(self, settings: &Settings, report: &Report) -> Option<Settings> {
        let mut smaller = settings.clone();
        let is_smaller = match self {
            Step::Without(knob) => smaller.without.insert(knob),
            Step::Clients(clients) => {
                smaller.clients.replace(clients).is_none_or(|before| clients < before)
            }
            Step::Registers(registers) => {
                smaller.registers.replace(registers).is_none_or(|before| registers < before)
            }
            Step::Part(part) => {
                let until = settings.until.unwrap_or(report.worked) / part;
                smaller.until = Some(Duration::from_millis(until.as_millis() as u64));
                until >= SHORTEST
            }
        };
        is_smaller.then_some(smaller)
    }
}

/// Nothing has moved before.
const SHORTEST: Duration = Duration::from_millis(15);
