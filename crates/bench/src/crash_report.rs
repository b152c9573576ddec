//! Report of a crash scenario.

use crate::crash::{Crash, CrashResult};
use crate::draw::Drawing;
use crate::processes;
use crate::recorder::{Findings, LoadPhase, NO_ANSWER};
use crate::report::{grouped, phases, phases_table};
use crate::timeline::{PhaseSummary, Point};
use std::fmt::Write;
use types::Instant;

/// All results.
#[derive(Clone, Debug)]
pub struct CrashReport {
    /// Processor and kernel.
    pub machine: String,
    /// Number of servers before the crash, and number of replicas of each log.
    pub servers: (u16, u16),
    /// Number of records in the data set, and the bytes of a key and of a value.
    pub records: (u32, usize, usize),
    /// Description of the load.
    pub load: String,
    /// Records written per second while loading.
    pub loading_rate: f64,
    /// Number of records that the dead server held, and the bytes of their keys and values.
    pub recovered: (u64, u64),
    /// Moments on the timeline, in seconds.
    pub moments: OutageTimes,
    /// Phases before, during and after.
    pub phases: Vec<PhaseSummary>,
    /// Seconds of steal time in each of them.
    pub steal: [f64; 3],
    /// Findings of the clients under load.
    pub seen: Findings,
    /// Findings of reading every record back.
    pub verified: Findings,
    /// The timeline.
    pub points: Vec<Point>,
}

/// Moments in seconds since the start of the load.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct OutageTimes {
    /// Last answer from the slots of the server.
    pub last_answer: f64,
    /// Time of the kill.
    pub killed: f64,
    /// First answer from these slots after the kill.
    pub first_answer: f64,
    /// Time at which all these slots were served.
    pub all_served: f64,
}

impl CrashReport {
    /// Creates the report; `servers` is the number of servers, and of replicas of each log.
    pub fn new(crash: &Crash, servers: (u16, u16), crashed: CrashResult) -> CrashReport {
        let CrashResult { load_rate, held, killed, gap, all_served, timeline, steal, verified } =
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
            moments: OutageTimes {
                last_answer: second(gap.0),
                killed: second(killed),
                first_answer: second(gap.1),
                all_served: second(all_served),
            },
            phases: phases(&timeline),
            steal,
            points: timeline.points(),
            seen: timeline.recording.findings,
            verified,
        }
    }

    /// Returns whether no acknowledged write is lost, no read was wrong, and no operation was
    /// refused for good. Operations in flight at the dead server stay unanswered, which is no
    /// loss.
    pub fn is_clean(&self) -> bool {
        self.seen.faults() == 0
            && self.seen.errors_total() == self.seen.unanswered()
            && self.verified.is_clean()
    }

    /// Returns the seconds from the last answer before the outage to the first one after it.
    pub fn seconds_to_first(&self) -> f64 {
        self.moments.first_answer - self.moments.last_answer
    }

    /// Returns the seconds from the last answer before the outage until all slots were served.
    pub fn seconds_to_all(&self) -> f64 {
        (self.moments.all_served - self.moments.last_answer).max(self.seconds_to_first())
    }

    /// Returns the rate at which user data was served again since the kill, in millions of bytes
    /// per second.
    pub fn megabytes_per_second(&self) -> f64 {
        self.recovered.1 as f64 / 1e6 / (self.moments.all_served - self.moments.killed)
    }

    /// Draws the timeline, without its warm-up.
    pub fn drawing(&self) -> Drawing {
        let OutageTimes { killed, first_answer, all_served, .. } = self.moments;
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
        let before = self.phases.iter().find(|phase| phase.phase == LoadPhase::Before);
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

    /// Returns the table of a demo.
    pub fn table(&self) -> String {
        let (records, bytes) = self.recovered;
        let mut out = String::new();
        let _ = writeln!(
            out,
            "  first answer {:.0} ms after the last answer before the kill\n  \
             all served   {:.0} ms after that answer\n  \
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

    /// Returns the lines on lost, stale and failed operations.
    fn verdict(&self) -> String {
        let seen = &self.seen;
        let mut out = format!(
            "  requests     {} answered, {} redirected, {} retried, {} pending at the dead \
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
