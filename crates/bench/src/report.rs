//! Report of a scenario, for people and for programs.

use crate::draw::{Drawing, write};
use crate::migrate::Moved;
use crate::processes;
use crate::recorder::{Findings, LoadPhase};
use crate::scenario::{Cost, Memory, Scenario, ScenarioResult};
use crate::series::OfferedLoad;
use crate::timeline::{PhaseSummary, Point, Timeline};
use anyhow::Result;
use serde::Serialize;
use std::fmt::Write;
use std::path::Path;
use std::time::Duration;

/// All results, ready to be written as JSON.
#[derive(Clone, Debug, Serialize)]
pub struct ScenarioReport {
    /// Name of the system.
    pub system: String,
    /// Processor and kernel.
    pub machine: String,
    /// Number of records in the data set, and the bytes of a key and of a value.
    pub records: (u32, usize, usize),
    /// Description of the load.
    pub load: String,
    /// Records written per second while loading.
    pub loading_rate: f64,
    /// Memory of the server with all records.
    pub memory: Memory,
    /// The move.
    pub moved: Moved,
    /// Moved user data in millions of bytes per second.
    pub megabytes_per_second: f64,
    /// Processor time of the move.
    pub cost: Cost,
    /// Phases before, during and after, if there was load.
    pub phases: Vec<PhaseSummary>,
    /// Seconds of steal time in each of them.
    pub steal: Option<[f64; 3]>,
    /// Findings of the clients under load.
    pub seen: Findings,
    /// Findings of reading every record back.
    pub verified: Findings,
    /// Processor microseconds of the load generator per operation.
    pub generator_us_per_operation: f64,
    /// The timeline.
    pub points: Vec<Point>,
    /// Begin and end of the move on the timeline, in seconds.
    pub moving: Option<(f64, f64)>,
}

impl ScenarioReport {
    /// Creates the report of a scenario that was played on `system`.
    pub fn new(system: &str, scenario: &Scenario, outcome: ScenarioResult) -> ScenarioReport {
        let ScenarioResult { load_rate, memory, moved, cost, under_load, verified } = outcome;
        let steal = under_load.as_ref().map(|loaded| loaded.steal);
        let timeline = under_load.map(|loaded| loaded.timeline);
        let records = scenario.records;
        let seen = timeline.as_ref().map(|it| it.recording.findings.clone()).unwrap_or_default();
        ScenarioReport {
            system: system.to_string(),
            machine: processes::machine(),
            records: (records.count(), records.key_bytes(), records.value_bytes()),
            load: scenario.load_in_words(),
            loading_rate: load_rate,
            memory,
            megabytes_per_second: moved.megabytes_per_second(),
            moved,
            cost,
            phases: timeline.as_ref().map(phases).unwrap_or_default(),
            steal,
            seen,
            verified,
            generator_us_per_operation: timeline
                .as_ref()
                .map_or(0.0, Timeline::generator_us_per_operation),
            points: timeline.as_ref().map(Timeline::points).unwrap_or_default(),
            moving: timeline.as_ref().and_then(moving),
        }
    }

    /// Returns whether no operation failed, no read was wrong and every record is there.
    pub fn is_clean(&self) -> bool {
        self.seen.is_clean() && self.verified.is_clean()
    }

    /// Returns the number of failed operations, wrong reads, and missing records.
    pub fn faults(&self) -> u64 {
        let count = |findings: &Findings| findings.errors_total() + findings.faults();
        count(&self.seen) + count(&self.verified)
    }

    /// Returns a phase, if there was load in it.
    pub fn phase(&self, phase: LoadPhase) -> Option<&PhaseSummary> {
        self.phases.iter().find(|summary| summary.phase == phase)
    }

    /// Draws the timeline, without its warm-up.
    pub fn drawing(&self) -> Drawing {
        let (count, key, value) = self.records;
        let moved = format!(
            "{:.0} MB moved in {:.2} s: {:.0} MB/s",
            self.moved.bytes as f64 / 1e6,
            self.moved.seconds,
            self.megabytes_per_second
        );
        let drawing = Drawing {
            title: format!("{}: data changes servers under load", self.system),
            subtitle: format!(
                "{} · {} records of {key} + {value} bytes · {}",
                self.load,
                grouped(u64::from(count)),
                self.machine
            ),
            verdict: self.verdict_in_words(),
            points: self.points.clone(),
            shaded: self.moving.map(|(from, until)| (from, until, moved)),
            marks: Vec::new(),
        };
        let before = self.phase(LoadPhase::Before).zip(self.moving);
        drawing.starting_at(before.map_or(0.0, |(before, moving)| moving.0 - before.seconds))
    }

    fn verdict_in_words(&self) -> String {
        let faults = match self.faults() {
            0 => "nothing lost, stale or refused".to_string(),
            faults => format!("{} lost, stale or refused", grouped(faults)),
        };
        match self.phase(LoadPhase::During) {
            Some(during) => format!("{faults} · longest gap {:.1} ms", during.longest_gap),
            None => faults,
        }
    }

    /// Writes `path` as JSON, CSV and SVG.
    pub fn save(&self, path: &Path) -> Result<()> {
        save(path, self, &self.points, &self.drawing())
    }

    /// Returns the table of a demo.
    pub fn table(&self) -> String {
        let mut out = String::new();
        let _ = writeln!(
            out,
            "  moved        {} records, {:.1} MB in {:.3} s\n  rate         {:.0} MB/s, {} records/s\n  \
             new owner    after {:.1} ms\n  loaded       {} records/s, {:.0} bytes of memory per record\n",
            grouped(self.moved.records),
            self.moved.bytes as f64 / 1e6,
            self.moved.seconds,
            self.megabytes_per_second,
            grouped(self.moved.records_per_second() as u64),
            self.moved.seconds_to_ownership * 1e3,
            grouped(self.loading_rate as u64),
            self.memory.total_bytes_per_record,
        );
        out.push_str(&phases_table(&self.phases, &self.steal.unwrap_or_default()));
        let _ = write!(out, "\n{}", self.verdict());
        out
    }

    /// Returns the lines on lost, stale and failed operations.
    fn verdict(&self) -> String {
        let mut out = format!(
            "  requests     {} answered, {} redirected, {} failed\n  stale reads  {}\n  \
             lost writes  {} (of {} records, every one read back)\n",
            grouped(self.seen.completed),
            grouped(self.seen.moved + self.seen.asked),
            self.seen.errors_total(),
            self.seen.faults(),
            self.verified.faults(),
            grouped(u64::from(self.records.0)),
        );
        for (error, count) in self.seen.errors.iter().chain(&self.verified.errors) {
            let _ = writeln!(out, "  error        {count} x {error}");
        }
        out
    }
}

/// Returns a table with a line for each phase and its steal time.
pub(crate) fn phases_table(phases: &[PhaseSummary], steal: &[f64; 3]) -> String {
    let mut out = String::new();
    if !phases.is_empty() {
        let _ = writeln!(
            out,
            "  {:<9}{:>9}{:>13}{:>10}{:>10}{:>10}{:>10}{:>15}{:>11}",
            "",
            "seconds",
            "requests/s",
            "p50 ms",
            "p99 ms",
            "p99.9 ms",
            "max ms",
            "longest gap ms",
            "stolen ms"
        );
    }
    for (phase, steal) in phases.iter().zip(steal) {
        let _ = writeln!(
            out,
            "  {:<9}{:>9.2}{:>13}{:>10.3}{:>10.3}{:>10.3}{:>10.3}{:>15.1}{:>11.0}",
            format!("{:?}", phase.phase).to_lowercase(),
            phase.seconds,
            grouped(phase.throughput as u64),
            phase.all.p50,
            phase.all.p99,
            phase.all.p99_9,
            phase.all.max,
            phase.longest_gap,
            steal * 1e3,
        );
    }
    out
}

/// Writes the timeline of a run without a move as JSON, CSV and SVG.
pub fn save_timeline(timeline: &Timeline, title: &str, path: &Path) -> Result<()> {
    let (title, subtitle) = (title.to_string(), processes::machine());
    let (verdict, shaded, marks) = (String::new(), None, Vec::new());
    let points = timeline.points();
    let drawing = Drawing { title, subtitle, verdict, points, shaded, marks };
    save(path, &(phases(timeline), &drawing.points), &drawing.points, &drawing)
}

/// Writes `path` as JSON, CSV and SVG.
fn save(path: &Path, results: &impl Serialize, points: &[Point], drawing: &Drawing) -> Result<()> {
    write(path, "json", serde_json::to_string_pretty(results)?.as_bytes())?;
    write(path, "csv", csv(points).as_bytes())?;
    drawing.save(path)
}

/// Returns a timeline as comma-separated values.
fn csv(points: &[Point]) -> String {
    let mut out = "second,throughput,p50_ms,p99_ms,p99_9_ms,max_ms,errors,redirects\n".to_string();
    for point in points {
        let Point { second, throughput, latency, errors, redirects } = point;
        let _ = writeln!(
            out,
            "{second:.1},{throughput:.0},{:.4},{:.4},{:.4},{:.4},{errors},{redirects}",
            latency.p50, latency.p99, latency.p99_9, latency.max,
        );
    }
    out
}

impl Scenario {
    /// Returns a description of data set, load and slots.
    pub fn in_words(&self) -> String {
        let slots = usize::from(self.slots.1.0 - self.slots.0.0) + 1;
        let part = match usize::from(types::SLOT_COUNT).checked_div(slots) {
            Some(part) if part * slots == usize::from(types::SLOT_COUNT) => format!("1/{part}"),
            _ => format!("{slots}"),
        };
        format!(
            "{} x ({} + {} B), {}, {part} of the slots",
            grouped(u64::from(self.records.count())),
            self.records.key_bytes(),
            self.records.value_bytes(),
            self.load_in_words()
        )
    }

    /// Returns a description of the load.
    pub fn load_in_words(&self) -> String {
        self.load.map_or("no load".to_string(), OfferedLoad::in_words)
    }
}

impl OfferedLoad {
    /// Returns a description of the load.
    pub fn in_words(self) -> String {
        use crate::{distribution::Distribution, pace::LoadPace};
        let distribution = match self.distribution {
            Distribution::Zipf => "Zipf 0.99",
            Distribution::Uniform => "uniform",
        };
        let mix = self.mix.name();
        match self.pace {
            LoadPace::Open { rate, arrivals: _ } => {
                format!("{} {mix} requests/s, {distribution}", grouped(rate as u64))
            }
            LoadPace::Closed { clients } => format!("{clients} clients, {mix}, {distribution}"),
        }
    }
}

pub(crate) fn phases(timeline: &Timeline) -> Vec<PhaseSummary> {
    let shown = [LoadPhase::Before, LoadPhase::During, LoadPhase::After];
    shown.into_iter().filter_map(|phase| timeline.phase(phase)).collect()
}

fn moving(timeline: &Timeline) -> Option<(f64, f64)> {
    let second = |phase: LoadPhase| {
        let begin = timeline.begins[phase as usize]?;
        Some(begin.since(timeline.start).as_secs_f64())
    };
    Some((second(LoadPhase::During)?, second(LoadPhase::After)?))
}

/// Returns a number with its digits in groups of three.
pub fn grouped(number: u64) -> String {
    indicatif::HumanCount(number).to_string()
}

/// Returns the median; the mean of the middle two for an even count.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.as_slice() {
        [] => f64::NAN,
        sorted if sorted.len() % 2 == 1 => sorted[sorted.len() / 2],
        sorted => f64::midpoint(sorted[sorted.len() / 2 - 1], sorted[sorted.len() / 2]),
    }
}

/// Converts seconds to a duration, for flags.
pub fn seconds(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds.clamp(0.0, 1e6))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped_and_medians_are_in_the_middle() {
        assert_eq!(grouped(0), "0");
        assert_eq!(grouped(65_000), "65,000");
        assert_eq!(grouped(1_234_567), "1,234,567");
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median(&[]).is_nan());
    }
}
