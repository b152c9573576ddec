//! Comparison of Ballast and a rival: the same cases, in turns, in one program.
//!
//! Identical runs on one machine differ by up to 40 %, and a machine drifts over minutes. Each
//! round therefore plays each case with each contender in turn, and medians are compared. Each
//! run has a fresh cluster, since a second move is up to twice as fast as the first after
//! loading. The processor time of other processes is measured as well, to identify disturbed
//! runs.

use crate::figures::{Contender, FigureCase};
use crate::peers::{Cluster, Setup, System};
use crate::recorder::LoadPhase;
use crate::report::{ScenarioReport, median};
use crate::series::ScenarioProgress;
use crate::timeline::PhaseSummary;
use anyhow::{Context, Result};
use std::fmt::Write;

/// All runs of one case.
pub struct Row {
    /// Description of the case.
    pub name: String,
    /// Contenders, the rival last, each with its reports in the order of the rounds.
    pub played: Vec<(String, Vec<ScenarioReport>)>,
}

/// Plays all cases in rounds. `report_line` gets a line after each run.
pub fn play(
    cases: &[FigureCase],
    rounds: u32,
    setup: &Setup,
    report_line: &mut dyn FnMut(&str),
    progress: &mut dyn FnMut(ScenarioProgress),
) -> Result<Vec<Row>> {
    let mut rows: Vec<Row> = cases.iter().map(Row::new).collect();
    for round in 1..=rounds {
        for (case, row) in cases.iter().zip(&mut rows) {
            for (contender, (name, reports)) in case.contenders.iter().zip(&mut row.played) {
                let report = play_one(case, contender, setup, progress)
                    .with_context(|| format!("{name}: {}", case.name))?;
                report_line(&format!(
                    "round {round}, {name}: {}\n    {}",
                    case.name,
                    line(&report)
                ));
                reports.push(report);
            }
        }
    }
    Ok(rows)
}

fn play_one(
    case: &FigureCase,
    contender: &Contender,
    setup: &Setup,
    progress: &mut dyn FnMut(ScenarioProgress),
) -> Result<ScenarioReport> {
    let mut scenario = case.scenario.clone();
    scenario.policy.clone_from(&contender.policy);
    let data = match (&setup.data, &contender.system) {
        (Some(folder), System::Ballast { .. }) => Some(tempfile::tempdir_in(folder)?),
        (Some(_), System::Valkey { .. }) | (None, _) => None,
    };
    let folder = data.as_ref().map(|folder| folder.path().to_path_buf());
    let mut cluster = Cluster::start(&contender.system, &Setup { data: folder, ..setup.clone() })?;
    let outcome = scenario.play(&mut cluster, progress)?;
    Ok(ScenarioReport::new(&contender.name, &scenario, outcome))
}

impl Row {
    fn new(case: &FigureCase) -> Row {
        let played = |contender: &Contender| (contender.name.clone(), Vec::new());
        Row { name: case.name.clone(), played: case.contenders.iter().map(played).collect() }
    }

    /// Returns how much faster this contender moves data than the rival.
    pub fn ratio(&self, contender: usize) -> f64 {
        let rate = |position: usize| middle(&self.played[position].1, |r| r.megabytes_per_second);
        rate(contender) / rate(self.played.len() - 1)
    }
}

/// Returns the main numbers of a run as one line.
fn line(report: &ScenarioReport) -> String {
    let cost = &report.cost;
    let mut out = format!(
        "{:.0} MB/s, durable after {:.2} s, {:.0} + {:.0} (+ {:.0} later) ns CPU per record",
        report.megabytes_per_second,
        report.moved.seconds_to_success,
        cost.source_ns_per_record,
        cost.target_ns_per_record,
        cost.later_ns_per_record
    );
    if let Some(during) = report.phase(LoadPhase::During) {
        let (p99, gap) = (during.all.p99, during.longest_gap);
        let _ = write!(out, ", p99 {p99:.2} ms, longest gap {gap:.1} ms");
    }
    let (foreign, steal) = (cost.foreign_cpu_seconds, cost.steal_seconds);
    let _ = write!(out, "; other processes used {foreign:.2} s, steal {steal:.2} s");
    if !report.is_clean() {
        out.push_str("; NOT CLEAN");
    }
    out
}

/// Returns the medians as a Markdown table, with columns for latency if there was load.
pub fn table(rows: &[Row]) -> String {
    let has_load = rows.iter().flat_map(|row| &row.played).any(|(_, reports)| loaded(reports));
    let mut columns = vec![
        "case",
        "system",
        "MB/s (min-max)",
        "ratio",
        "k records/s",
        "seconds (until durable)",
        "CPU ns per record: source + target (+ later)",
    ];
    if has_load {
        columns.extend([
            "p50 / p99 / p99.9 before, ms",
            "during, ms",
            "max during, ms",
            "longest gap, ms",
            "generator, us per request",
        ]);
    }
    columns.extend([
        "resident bytes per record (in huge pages)",
        "others' CPU / steal, s",
        "lost, stale, refused",
    ]);
    let mut out = format!("| {} |\n|{}\n", columns.join(" | "), " --- |".repeat(columns.len()));
    for row in rows {
        for (position, (name, reports)) in row.played.iter().enumerate() {
            let mut cells = vec![row.name.clone(), name.clone()];
            cells.extend(rate_cells(row, position, reports));
            if has_load {
                cells.extend(latency_cells(reports));
            }
            cells.extend(health_cells(reports));
            let _ = writeln!(out, "| {} |", cells.join(" | "));
        }
    }
    out
}

fn rate_cells(row: &Row, position: usize, reports: &[ScenarioReport]) -> [String; 5] {
    let rates: Vec<f64> = reports.iter().map(|report| report.megabytes_per_second).collect();
    let lowest = rates.iter().copied().fold(f64::INFINITY, f64::min);
    let highest = rates.iter().copied().fold(0.0, f64::max);
    let is_rival = position + 1 == row.played.len();
    [
        format!("{:.0} ({lowest:.0}-{highest:.0})", median(&rates)),
        if is_rival { "1".to_string() } else { format!("**{:.1}x**", row.ratio(position)) },
        format!("{:.0}", middle(reports, |report| report.moved.records_per_second() / 1e3)),
        format!(
            "{:.3} ({:.3})",
            middle(reports, |report| report.moved.seconds),
            middle(reports, |report| report.moved.seconds_to_success)
        ),
        format!(
            "{:.0} + {:.0} (+ {:.0})",
            middle(reports, |report| report.cost.source_ns_per_record),
            middle(reports, |report| report.cost.target_ns_per_record),
            middle(reports, |report| report.cost.later_ns_per_record)
        ),
    ]
}

fn latency_cells(reports: &[ScenarioReport]) -> [String; 5] {
    if !loaded(reports) {
        return Default::default();
    }
    let at = |phase: LoadPhase, pick: fn(&PhaseSummary) -> f64| {
        middle(reports, |report| report.phase(phase).map_or(f64::NAN, pick))
    };
    let percentiles = |phase| {
        let (p50, p99) = (at(phase, |summary| summary.all.p50), at(phase, |s| s.all.p99));
        format!("{p50:.2} / {p99:.2} / {:.2}", at(phase, |summary| summary.all.p99_9))
    };
    [
        percentiles(LoadPhase::Before),
        percentiles(LoadPhase::During),
        format!("{:.1}", at(LoadPhase::During, |summary| summary.all.max)),
        format!("{:.1}", at(LoadPhase::During, |summary| summary.longest_gap)),
        format!("{:.1}", middle(reports, |report| report.generator_us_per_operation)),
    ]
}

fn health_cells(reports: &[ScenarioReport]) -> [String; 3] {
    let huge = |report: &ScenarioReport| {
        let count = f64::from(report.records.0);
        let resident = report.memory.total_bytes_per_record * count;
        100.0 * report.memory.huge_page_bytes as f64 / resident
    };
    let faults: u64 = reports.iter().map(ScenarioReport::faults).sum();
    [
        format!(
            "{:.0} ({:.0} %)",
            middle(reports, |report| report.memory.total_bytes_per_record),
            middle(reports, huge)
        ),
        format!(
            "{:.2} / {:.2}",
            middle(reports, |report| report.cost.foreign_cpu_seconds),
            middle(reports, |report| report.cost.steal_seconds)
        ),
        if faults == 0 { "0".to_string() } else { format!("**{faults}**") },
    ]
}

fn loaded(reports: &[ScenarioReport]) -> bool {
    reports.iter().any(|report| !report.phases.is_empty())
}

fn middle(reports: &[ScenarioReport], pick: impl Fn(&ScenarioReport) -> f64) -> f64 {
    median(&reports.iter().map(pick).collect::<Vec<f64>>())
}
