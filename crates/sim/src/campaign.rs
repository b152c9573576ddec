//! A campaign: plain and replicated runs in turns, for hours, with a report that grows.
//!
//! A run that breaks a rule does not end the campaign. Its settings are minimized, and both are
//! part of the report.

use crate::totals::{self, RunTotals};
use sim::{COVERED_FAULTS, Failure, Knob, ProtocolStep, RunSettings, minimize, search};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};
use std::{fs, io};

/// Runs plain and replicated seeds in turns, and writes a report.
#[derive(clap::Args)]
pub(crate) struct CampaignArguments {
    /// Start no new seed after this many minutes.
    #[arg(long, default_value_t = 60)]
    minutes: u64,
    /// First seed of each kind of run. Choose one that no campaign had before.
    #[arg(long)]
    first_seed: u64,
    /// Number of runs in parallel. Default: one per processor.
    #[arg(long)]
    jobs: Option<usize>,
    /// File of the report. It is rewritten after each block of seeds.
    #[arg(long, default_value = "campaign.md")]
    report: PathBuf,
}

/// Time for a block of seeds of one kind.
const BLOCK: Duration = Duration::from_secs(60);

/// Number of seeds that each step of the minimizer tries.
const TRIES: u64 = 20;

/// Number of failures after which the campaign ends: more show the same bug.
const FAILURES_MAX: usize = 10;

/// Kind of the runs of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum RunKind {
    Plain,
    Replicated,
}

/// Sums over the runs of one kind.
#[derive(Default)]
struct KindTotals {
    runs: RunTotals,
    /// Time of all jobs together.
    worked: Duration,
}

/// Run that has broken a rule.
struct FailedRun {
    settings: RunSettings,
    failure: Failure,
    smallest: RunSettings,
}

struct Campaign {
    /// Commit of the working directory when the campaign began.
    commit: String,
    jobs: usize,
    first_seed: u64,
    totals: BTreeMap<RunKind, KindTotals>,
    /// Number of seeds in which a fault has met a step.
    coverage: BTreeMap<(Knob, ProtocolStep), u64>,
    failed: Vec<FailedRun>,
}

/// Runs a campaign. Fails if a run breaks a rule.
pub(crate) fn run(arguments: &CampaignArguments) -> ExitCode {
    let mut campaign = Campaign {
        commit: commit(),
        jobs: totals::jobs(arguments.jobs),
        first_seed: arguments.first_seed,
        totals: BTreeMap::new(),
        coverage: BTreeMap::new(),
        failed: Vec::new(),
    };
    match campaign.run(Duration::from_secs(60 * arguments.minutes), &arguments.report) {
        Ok(()) if campaign.failed.is_empty() => ExitCode::SUCCESS,
        Ok(()) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("cannot write {}: {error}", arguments.report.display());
            ExitCode::FAILURE
        }
    }
}

impl Campaign {
    #[expect(clippy::disallowed_methods, reason = "how long to go on is asked of the real clock")]
    fn run(&mut self, limit: Duration, file: &Path) -> io::Result<()> {
        let begin = Instant::now();
        // An unusable file is noticed before hours of work.
        write_whole(file, &self.report())?;
        for kind in [RunKind::Plain, RunKind::Replicated].into_iter().cycle() {
            let left = limit.saturating_sub(begin.elapsed());
            if left.is_zero() || self.failed.len() >= FAILURES_MAX {
                break;
            }
            self.run_block(kind, left.min(BLOCK));
            write_whole(file, &self.report())?;
            let seeds: u64 = self.totals.values().map(|totals| totals.runs.seeds).sum();
            let operations: usize = self.totals.values().map(|totals| totals.runs.operations).sum();
            eprintln!("{seeds} seeds, {operations} operations, {} failures", self.failed.len());
        }
        print!("{}", self.report());
        Ok(())
    }

    /// Runs seeds of one kind for some time, and minimizes the runs that break a rule.
    #[expect(clippy::disallowed_methods, reason = "how long to go on is asked of the real clock")]
    fn run_block(&mut self, kind: RunKind, time: Duration) {
        let begin = Instant::now();
        let totals = self.totals.entry(kind).or_default();
        let settings = RunSettings {
            is_replicated: kind == RunKind::Replicated,
            ..RunSettings::new(self.first_seed + totals.runs.seeds)
        };
        let mut failed = Vec::new();
        let coverage = &mut self.coverage;
        search(
            &settings,
            settings.seed..u64::MAX,
            self.jobs,
            |_| false,
            |seed, report| {
                totals.runs.add(report);
                for pair in report.coverage.pairs() {
                    *coverage.entry(pair).or_default() += 1;
                }
                failed.extend(report.failure.clone().map(|failure| (seed, failure)));
                begin.elapsed() < time
            },
        );
        totals.worked += begin.elapsed() * self.jobs as u32;
        for (seed, failure) in failed {
            let settings = RunSettings { seed, ..settings.clone() };
            eprintln!("seed {seed}: {failure}");
            let smallest = minimize(&settings, TRIES, self.jobs, |smaller| {
                eprintln!("smaller: {smaller}");
            });
            let smallest = smallest.map_or_else(|| settings.clone(), |(smallest, _)| smallest);
            self.failed.push(FailedRun { settings, failure, smallest });
        }
    }

    fn report(&self) -> String {
        let mut text = format!("# Campaign at commit {}\n\n", self.commit);
        text.push_str(
            "| runs | seeds | operations answered | refused | moves | moves without effect | \
             answered per second and core |\n| --- | --- | --- | --- | --- | --- | --- |\n",
        );
        for (kind, totals) in &self.totals {
            let RunTotals { seeds, operations, refused, moved, not_moved, .. } = &totals.runs;
            let (first, next) = (self.first_seed, self.first_seed + seeds);
            let rate = *operations as f64 / totals.worked.as_secs_f64().max(1.0);
            line(
                &mut text,
                format_args!(
                    "| {kind:?} | {seeds} ({first} to {}) | {operations} | {refused} | {moved} | \
                 {not_moved} | {rate:.0} |",
                    next.saturating_sub(1)
                ),
            );
        }
        line(&mut text, format_args!("\n{} runs have broken a rule.\n", self.failed.len()));
        for FailedRun { settings, failure, smallest } in &self.failed {
            let rule = failure.rule;
            let first = failure.text.lines().next().unwrap_or_default();
            line(&mut text, format_args!("- `{settings}` breaks {rule}: {first}"));
            line(&mut text, format_args!("  - smallest run: `{smallest}`"));
        }
        self.describe_coverage(&mut text);
        text
    }

    /// Appends the table of seeds in which each fault has met each step.
    fn describe_coverage(&self, text: &mut String) {
        let pairs = COVERED_FAULTS.len() * ProtocolStep::ALL.len();
        let met = self.coverage.len();
        line(text, format_args!("\n{met} of {pairs} pairs of a fault and a step have met.\n"));
        let steps: Vec<String> = ProtocolStep::ALL.iter().map(ProtocolStep::to_string).collect();
        line(text, format_args!("| fault | {} |", steps.join(" | ")));
        line(text, format_args!("| --- |{}", " --- |".repeat(steps.len())));
        for fault in COVERED_FAULTS {
            let seeds = ProtocolStep::ALL.iter().map(|step| {
                self.coverage.get(&(fault, *step)).map_or("0".to_owned(), u64::to_string)
            });
            line(text, format_args!("| {fault} | {} |", seeds.collect::<Vec<_>>().join(" | ")));
        }
    }
}

fn line(text: &mut String, line: std::fmt::Arguments<'_>) {
    writeln!(text, "{line}").expect("a string takes every line");
}

/// Replaces a file, so that a reader never finds half of it.
fn write_whole(file: &Path, text: &str) -> io::Result<()> {
    let mut name = file.as_os_str().to_owned();
    name.push(".new");
    fs::write(&name, text)?;
    fs::rename(&name, file)
}

/// Returns the commit of the working directory, if it can be found.
fn commit() -> String {
    let output = Command::new("git").args(["describe", "--always", "--dirty"]).output();
    let text = output.ok().filter(|output| output.status.success()).map(|output| output.stdout);
    let text = text.map(|text| String::from_utf8_lossy(&text).trim().to_owned());
    text.unwrap_or_else(|| "unknown".to_owned())
}
