//! What came of a crash, for people and for programs.

use crate::crash::{Crash, Crashed};
use crate::draw::Drawing;
use crate::judge::NO_ANSWER;
use crate::processes;
use crate::recorder::{Findings, Phase};
use crate::report::{csv, grouped, phases, phases_table, write};
use crate::timeline::{PhaseSummary, Point};
use anyhow::Result;
use serde::Serialize;
use std::fmt::Write;
use std::path::Path;
use types::Instant;

/// Everything that was found out, ready to be written as JSON.
#[derive(Clone, Debug, Serialize)]
pub struct CrashReport {
    /// Processor and kernel.
    pub machine: String,
    /// Servers before the crash, and how many others keep each one's log.
    pub servers: (u16, u16),
    /// Records of the data set, and the bytes of a key and of a value.
    pub records: (u32, usize, usize),
    /// Load in words.
    pub load: String,
    /// Records written per second while loading.
    pub loading_rate: f64,
    /// Records that the dead server held, and the bytes of their keys and values.
    pub recovered: (u64, u64),
    /// Moments on the timeline, in seconds.
    pub moments: Moments,
    /// Before, during and after.
    pub phases: Vec<PhaseSummary>,
    /// Seconds that the host took from this machine in each of them.
    pub steal: [f64; 3],
    /// What the clients saw.
    pub seen: Findings,
    /// What reading every record back showed.
    pub verified: Findings,
    /// The timeline.
    pub points: Vec<Point>,
}

/// When what happened, in seconds since the start of the load.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Moments {
    /// The last answer from what the server held.
    pub last_answer: f64,
    /// It was killed.
    pub killed: f64,
    /// The first answer from what it had held.
    pub first_answer: f64,
    /// Every slot was served that it had held.
    pub all_served: f64,
}

impl CrashReport {
    /// The report of a crash in a cluster of so many servers, each with so many replicas.
    pub fn new(crash: &Crash, servers: (u16, u16), crashed: Crashed) -> CrashReport {
        let Crashed { load_rate, held, killed, gap, all_served, timeline, steal, verified } =
            crashed;
        let second = |at: Instant| at.since(timeline.start).as_secs_f64();
        let records = crash.records;
        CrashReport {
            machine: processes::machine(),
            servers,
            records: (records.count(), records.key_bytes(), records.value_bytes()),
            load: crash.load.in_words(),
            loading_rate: load_rate,
            recovered: (held.records, held.bytes),
            moments: Moments {
                last_answer: second(gap.0),
                killed: second(killed),
                first_answer: second(gap.1),
                all_served: second(all_served),
            },
            phases: phases(&timeline),
            steal,
            points: timeline.points(),
            seen: timeline.findings,
            verified,
        }
    }

    /// Whether nothing that was acknowledged is lost, no read was wrong, and nothing was refused
    /// for good. Operations under way at the dead server have no answer; that is no loss.
    pub fn is_clean(&self) -> bool {
        self.seen.faults() == 0
            && self.seen.errors_total() == self.seen.unanswered()
            && self.verified.is_clean()
    }

    /// Seconds from the last answer before to the first one after.
    pub fn seconds_to_first(&self) -> f64 {
        self.moments.first_answer - self.moments.last_answer
    }

    /// Seconds from the last answer before until all slots were served.
    pub fn seconds_to_all(&self) -> f64 {
        (self.moments.all_served - self.moments.last_answer).max(self.seconds_to_first())
    }

    /// User data that is served again per second since the server was killed, in millions of bytes.
    pub fn megabytes_per_second(&self) -> f64 {
        self.recovered.1 as f64 / 1e6 / (self.moments.all_served - self.moments.killed)
    }

    /// The drawing of the timeline, without its warm-up.
    pub fn drawing(&self) -> Drawing {
        let Moments { killed, first_answer, all_served, .. } = self.moments;
        let (count, key, value) = self.records;
        let (servers, replicas) = self.servers;
        let drawing = Drawing {
            title: format!("Ballast: one of {servers} servers is killed under load"),
            subtitle: format!(
                "{} · {} records of {key} + {value} bytes · {replicas} replicas · {}",
                self.load,
                grouped(u64::from(count)),
                self.machine
            ),
            verdict: self.verdict_in_words(),
            points: self.points.clone(),
            shaded: Some((killed, all_served, self.recovered_in_words())),
            marks: vec![
                (killed, "killed".to_string()),
                (first_answer, format!("first answer: {:.2} s", self.seconds_to_first())),
                (all_served, format!("all served: {:.2} s", self.seconds_to_all())),
            ],
        };
        let before = self.phases.iter().find(|phase| phase.phase == Phase::Before);
        drawing.starting_at(before.map_or(0.0, |before| killed - before.seconds))
    }

    fn recovered_in_words(&self) -> String {
        format!("{:.0} MB served by others", self.recovered.1 as f64 / 1e6)
    }

    fn verdict_in_words(&self) -> String {
        match self.is_clean() {
            true => "nothing lost, stale or refused".to_string(),
            false => "something was lost, stale or refused".to_string(),
        }
    }

    /// Writes `path` as JSON, CSV, SVG and PNG.
    pub fn save(&self, path: &Path) -> Result<()> {
        write(path, "json", &serde_json::to_string_pretty(self)?)?;
        write(path, "csv", &csv(&self.points))?;
        self.drawing().save(path)
    }

    /// The one table of a demo.
    pub fn table(&self) -> String {
        let (records, bytes) = self.recovered;
        let mut out = String::new();
        let _ = writeln!(
            out,
            "  first answer {:.0} ms after the last one before\n  all served   {:.0} ms after it\n  \
             recovered    {} records, {:.1} MB: {:.0} MB/s since the server was killed\n  \
             loaded       {} records/s\n",
            self.seconds_to_first() * 1e3,
            self.seconds_to_all() * 1e3,
            grouped(records),
            bytes as f64 / 1e6,
            self.megabytes_per_second(),
            grouped(self.loading_rate as u64),
        );
        out.push_str(&phases_table(&self.phases, &self.steal));
        let _ = write!(out, "\n{}", self.verdict());
        out
    }

    /// What was lost, stale or refused.
    fn verdict(&self) -> String {
        let seen = &self.seen;
        let mut out = format!(
            "  requests     {} answered, {} redirected, {} tried again, {} under way at the dead \
             server, {} failed\n  stale reads  {}\n  lost writes  {} (of {} records, every one \
             read back)\n",
            grouped(seen.completed),
            grouped(seen.moved + seen.asked),
            grouped(seen.retried),
            seen.unanswered(),
            seen.errors_total() - seen.unanswered(),
            seen.faults(),
            self.verified.faults(),
            grouped(u64::from(self.records.0)),
        );
        let errors = seen.errors.iter().chain(&self.verified.errors);
        for (error, count) in errors.filter(|(error, _)| *error != NO_ANSWER) {
            let _ = writeln!(out, "  error        {count} x {error}");
        }
        out
    }
}
