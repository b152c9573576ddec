//! Ballast and its rival side by side: the same scenarios, in turns, in one program.
//!
//! Identical runs on one machine differ by up to 40 %, and a machine drifts over minutes. So every
//! round plays each case with both systems one after the other, each on a fresh cluster (a second
//! move is up to twice as fast as the first after loading), and the medians are compared.

use crate::peers::{Cluster, System};
use crate::recorder::Phase;
use crate::report::{Report, grouped, median};
use crate::scenario::{Progress, Scenario};
use anyhow::{Context, Result};
use std::fmt::Write;
use std::path::PathBuf;

/// What is compared.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// The systems; ratios are of the first to the second.
    pub systems: [System; 2],
    /// The scenarios; a rival is asked without their policy.
    pub cases: Vec<Scenario>,
    /// How often each is played with each.
    pub rounds: u32,
    /// First of the ports to use.
    pub port: u16,
    /// Where servers write what they say.
    pub logs: PathBuf,
}

/// All runs of one case.
#[derive(Debug)]
pub struct Row {
    /// The case in words.
    pub name: String,
    /// The reports of each system, in the order of the rounds.
    pub reports: [Vec<Report>; 2],
}

impl Comparison {
    /// Plays everything. `tell` gets a line after each run.
    pub fn run(
        &self,
        tell: &mut dyn FnMut(&str),
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Vec<Row>> {
        let mut rows: Vec<Row> = self.cases.iter().map(Row::new).collect();
        for round in 1..=self.rounds {
            for (case, row) in self.cases.iter().zip(&mut rows) {
                for (system, reports) in self.systems.iter().zip(&mut row.reports) {
                    let report = self
                        .play(case, system, progress)
                        .with_context(|| format!("{}, {}", system.name(), row.name))?;
                    tell(&format!("{round} {:<8} {:<64} {}", system.name(), row.name, line(&report)));
                    reports.push(report);
                }
            }
        }
        Ok(rows)
    }

    fn play(
        &self,
        case: &Scenario,
        system: &System,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Report> {
        let mut case = case.clone();
        match system {
            System::Ballast { .. } => {}
            System::Valkey { .. } => case.policy.clear(),
        }
        let mut cluster = Cluster::start(system, 2, self.port, &self.logs)?;
        let outcome = case.play(&mut cluster, progress)?;
        Ok(Report::new(system.name(), &case, outcome))
    }
}

impl Row {
    fn new(case: &Scenario) -> Row {
        let records = case.records;
        let name = format!(
            "{} x ({} + {} B), {}",
            grouped(u64::from(records.count())),
            records.key_bytes(),
            records.value_bytes(),
            case.load_in_words()
        );
        Row { name, reports: [Vec::new(), Vec::new()] }
    }
}

/// A run in a few numbers.
fn line(report: &Report) -> String {
    let gap = report.phase(Phase::During).map_or(String::new(), |during| {
        format!(", p99 {:.2} ms, gap {:.1} ms", during.all.p99, during.longest_gap)
    });
    let clean = if report.is_clean() { "" } else { ", NOT CLEAN" };
    format!(
        "{:.0} MB/s, {:.0} ns CPU per record, steal {:.2} s{gap}{clean}",
        report.megabytes_per_second, report.cost.cpu_ns_per_record, report.cost.steal_seconds
    )
}

/// The table of medians, in Markdown.
pub fn table(rows: &[Row]) -> String {
    let mut out = String::from(
        "| case | system | MB/s (min-max) | k records/s | CPU ns per record | p50 / p99 / p99.9 before (ms) \
         | during (ms) | longest gap (ms) | bytes per record | clean |\n\
         | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n",
    );
    for row in rows {
        for reports in &row.reports {
            let _ = writeln!(out, "{}", table_line(&row.name, reports));
        }
        let _ = writeln!(out, "| | **ratio** | **{:.1}x** | | | | | | | |", ratio(row));
    }
    out
}

/// How much faster the first system moves data than the second.
pub fn ratio(row: &Row) -> f64 {
    let [first, second] = &row.reports;
    let rate = |report: &Report| report.megabytes_per_second;
    middle(first, rate) / middle(second, rate)
}

fn table_line(name: &str, reports: &[Report]) -> String {
    let rates: Vec<f64> = reports.iter().map(|report| report.megabytes_per_second).collect();
    let lowest = rates.iter().copied().fold(f64::INFINITY, f64::min);
    let highest = rates.iter().copied().fold(0.0, f64::max);
    let has_load = reports.iter().any(|report| !report.phases.is_empty());
    let latency = |phase: Phase| {
        let at = |pick: fn(&crate::timeline::PhaseSummary) -> f64| {
            middle(reports, |report| report.phase(phase).map_or(f64::NAN, pick))
        };
        let (p50, p99, p99_9) =
            (at(|phase| phase.all.p50), at(|phase| phase.all.p99), at(|phase| phase.all.p99_9));
        if has_load { format!("{p50:.2} / {p99:.2} / {p99_9:.2}") } else { String::new() }
    };
    let gap = middle(reports, |report| {
        report.phase(Phase::During).map_or(f64::NAN, |phase| phase.longest_gap)
    });
    format!(
        "| {name} | {} | {:.0} ({lowest:.0}-{highest:.0}) | {:.0} | {:.0} | {} | {} | {} | {:.0} | {} |",
        reports.first().map_or("", |report| &report.system),
        median(&rates),
        middle(reports, |report| report.moved.records_per_second() / 1e3),
        middle(reports, |report| report.cost.cpu_ns_per_record),
        latency(Phase::Before),
        latency(Phase::During),
        if has_load { format!("{gap:.1}") } else { String::new() },
        middle(reports, |report| report.memory.resident_bytes_per_record),
        if reports.iter().all(Report::is_clean) { "yes" } else { "**no**" },
    )
}

fn middle(reports: &[Report], pick: impl Fn(&Report) -> f64) -> f64 {
    median(&reports.iter().map(pick).collect::<Vec<f64>>())
}
