//! What one thread of the generator writes down while it runs.
//!
//! Throughput belongs to the moment of the answer, latency to the intended start: a server that
//! stands still for a second shows no answers in that second, and the operations that should have
//! started in it show how long they had to wait.

use crate::judge::NO_ANSWER;
use crate::ledger::Fault;
use hdrhistogram::Histogram;
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use types::Instant;

/// Width of one point of a timeline.
pub const INTERVAL: Duration = Duration::from_millis(100);
/// Latencies are kept from a microsecond to a hundred seconds; longer ones count as that.
const LATENCY_NS: (u64, u64) = (1_000, 100_000_000_000);
/// Times without any answer that are worth keeping. The target for the longest is 10 ms.
const GAP_MIN: Duration = Duration::from_micros(500);

/// An operation as the figures divide them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A read.
    Read,
    /// A write.
    Write,
    /// A read and a write of the same record, timed as one.
    ReadModifyWrite,
}

/// Part of a run, told by marks that somebody sets while it runs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// The first moments: connections, caches and clocks get going. In no figure.
    WarmUp,
    /// Until the event that the run is about, or all of a run without one.
    Before,
    /// While it goes on.
    During,
    /// Once it is over.
    After,
}

impl Phase {
    /// All of them in order.
    pub const ALL: [Phase; 4] = [Phase::WarmUp, Phase::Before, Phase::During, Phase::After];
}

/// Moments that divide a run into phases. Shared by all threads of it.
#[derive(Debug)]
pub struct Marks {
    /// Begin of [`Phase::Before`], `During` and `After`; `u64::MAX` until it is known.
    begins: [AtomicU64; 3],
}

impl Marks {
    /// Marks of a run whose warm-up ends at `warm`.
    pub fn new(warm: Instant) -> Marks {
        Marks { begins: [warm.0, u64::MAX, u64::MAX].map(AtomicU64::new) }
    }

    /// The event that the run is about begins.
    pub fn begin(&self, now: Instant) {
        self.begins[1].store(now.0, Relaxed);
    }

    /// It is over.
    pub fn end(&self, now: Instant) {
        self.begins[2].store(now.0, Relaxed);
    }

    /// Which phase an operation belongs to that should have started at `at`. Exact for every
    /// moment before the call: a mark is set to the time at which it is set.
    #[inline]
    pub fn phase(&self, at: Instant) -> Phase {
        if at.0 < self.begins[1].load(Relaxed) {
            return if at.0 < self.begins[0].load(Relaxed) { Phase::WarmUp } else { Phase::Before };
        }
        if at.0 < self.begins[2].load(Relaxed) { Phase::During } else { Phase::After }
    }

    /// When a phase began, if it has.
    pub fn begin_of(&self, phase: Phase) -> Option<Instant> {
        let begin = match phase {
            Phase::WarmUp => return Some(Instant(0)),
            Phase::Before => self.begins[0].load(Relaxed),
            Phase::During => self.begins[1].load(Relaxed),
            Phase::After => self.begins[2].load(Relaxed),
        };
        (begin != u64::MAX).then_some(Instant(begin))
    }
}

/// One point of a timeline.
#[derive(Clone, Debug)]
pub struct Interval {
    /// Operations answered in it.
    pub completed: u64,
    /// Answers in it that were an error other than a redirect, and operations given up in it.
    pub errors: u64,
    /// Answers in it that sent an operation elsewhere.
    pub redirects: u64,
    /// Latencies in nanoseconds of the operations that should have started in it, to 1 %.
    pub latency: Histogram<u32>,
}

impl Interval {
    fn new() -> Interval {
        Interval { completed: 0, errors: 0, redirects: 0, latency: histogram(2) }
    }

    /// Adds what another thread saw in the same interval.
    pub fn add(&mut self, other: &Interval) {
        self.completed += other.completed;
        self.errors += other.errors;
        self.redirects += other.redirects;
        add(&mut self.latency, &other.latency);
    }
}

/// Latencies of one phase in nanoseconds, to 0.1 %.
#[derive(Clone, Debug)]
pub struct Latencies {
    /// Reads.
    pub reads: Histogram<u64>,
    /// Writes and read-modify-writes.
    pub writes: Histogram<u64>,
}

impl Latencies {
    fn new() -> Latencies {
        Latencies { reads: histogram(3), writes: histogram(3) }
    }

    /// Adds those of another thread.
    pub fn add(&mut self, other: &Latencies) {
        add(&mut self.reads, &other.reads);
        add(&mut self.writes, &other.writes);
    }

    /// All kinds together.
    pub fn all(&self) -> Histogram<u64> {
        let mut all = self.reads.clone();
        add(&mut all, &self.writes);
        all
    }
}

fn histogram<C: hdrhistogram::Counter>(digits: u8) -> Histogram<C> {
    match Histogram::new_with_bounds(LATENCY_NS.0, LATENCY_NS.1, digits) {
        Ok(histogram) => histogram,
        Err(error) => unreachable!("constant bounds: {error:?}"),
    }
}

fn add<C: hdrhistogram::Counter>(to: &mut Histogram<C>, from: &Histogram<C>) {
    assert!(to.add(from).is_ok(), "all histograms of a kind have the same bounds");
}

/// What the answers showed about the data, and what went wrong.
#[derive(Clone, Default, PartialEq, Eq, Debug, Serialize)]
pub struct Findings {
    /// Operations answered with success.
    pub completed: u64,
    /// Reads that showed a write which had been overwritten before they were issued.
    pub stale: u64,
    /// Reads that found nothing although a write had been acknowledged.
    pub missing: u64,
    /// Reads that showed bytes nobody had written to the key.
    pub wrong: u64,
    /// Answers `MOVED`.
    pub moved: u64,
    /// Answers `ASK`.
    pub asked: u64,
    /// How often an operation had to wait and be tried again.
    pub retried: u64,
    /// Operations that failed, by what was answered or happened.
    pub errors: BTreeMap<String, u64>,
}

impl Findings {
    /// Adds those of another thread.
    pub fn add(&mut self, other: &Findings) {
        self.completed += other.completed;
        self.stale += other.stale;
        self.missing += other.missing;
        self.wrong += other.wrong;
        self.moved += other.moved;
        self.asked += other.asked;
        self.retried += other.retried;
        for (error, count) in &other.errors {
            *self.errors.entry(error.clone()).or_default() += count;
        }
    }

    /// Operations that failed.
    pub fn errors_total(&self) -> u64 {
        self.errors.values().sum()
    }

    /// Those of them whose connection broke before they were answered.
    pub fn unanswered(&self) -> u64 {
        self.errors.get(NO_ANSWER).copied().unwrap_or(0)
    }

    /// Reads that showed what they should not have.
    pub fn faults(&self) -> u64 {
        self.stale + self.missing + self.wrong
    }

    /// Whether every operation succeeded and every read was right.
    pub fn is_clean(&self) -> bool {
        self.errors.is_empty() && self.faults() == 0
    }
}

/// The recorder of one thread.
#[derive(Debug)]
pub struct Recorder {
    start: Instant,
    intervals: Vec<Interval>,
    phases: [Latencies; 4],
    findings: Findings,
    gaps: Gaps,
    watched_gaps: Gaps,
}

/// Times without an answer.
#[derive(Debug)]
struct Gaps {
    last_answer: Instant,
    list: Vec<(Instant, Instant)>,
}

impl Gaps {
    fn new(start: Instant) -> Gaps {
        Gaps { last_answer: start, list: Vec::new() }
    }

    /// Notes that a server has answered, to know for how long none did.
    #[inline]
    fn answered(&mut self, now: Instant) {
        if now.since(self.last_answer) >= GAP_MIN {
            self.list.push((self.last_answer, now));
        }
        self.last_answer = now;
    }

    fn finish(mut self, now: Instant) -> Vec<(Instant, Instant)> {
        self.answered(now);
        self.list
    }
}

/// What is left of a recorder at the end.
#[derive(Debug)]
pub struct Recording {
    /// From the start of the run, one after the other.
    pub intervals: Vec<Interval>,
    /// In the order of [`Phase::ALL`].
    pub phases: [Latencies; 4],
    /// Counts over the whole run.
    pub findings: Findings,
    /// Times of at least half a millisecond without an answer, in order.
    pub gaps: Vec<(Instant, Instant)>,
    /// The same, looking only at the watched slots.
    pub watched_gaps: Vec<(Instant, Instant)>,
    /// Processor time of the thread that recorded.
    pub cpu: Duration,
}

impl Recorder {
    /// A recorder of a run that starts at `start`.
    pub fn new(start: Instant) -> Recorder {
        Recorder {
            start,
            intervals: Vec::new(),
            phases: std::array::from_fn(|_| Latencies::new()),
            findings: Findings::default(),
            gaps: Gaps::new(start),
            watched_gaps: Gaps::new(start),
        }
    }

    /// Operations completed so far.
    pub fn completed(&self) -> u64 {
        self.findings.completed
    }

    /// An operation that should have started at `intended` has succeeded.
    #[inline]
    pub fn completed_one(&mut self, kind: Kind, phase: Phase, intended: Instant, now: Instant) {
        self.gaps.answered(now);
        let latency = now.since(intended).as_nanos() as u64;
        let latencies = &mut self.phases[phase as usize];
        match kind {
            Kind::Read => latencies.reads.saturating_record(latency),
            Kind::Write | Kind::ReadModifyWrite => latencies.writes.saturating_record(latency),
        }
        self.findings.completed += 1;
        self.interval(now).completed += 1;
        self.interval(intended).latency.saturating_record(latency);
    }

    /// The operation just completed was on a watched slot.
    #[inline]
    pub fn watched_one(&mut self, now: Instant) {
        self.watched_gaps.answered(now);
    }

    /// An operation has to wait and be tried again.
    pub fn held(&mut self) {
        self.findings.retried += 1;
    }

    /// An operation has failed.
    pub fn failed(&mut self, error: &str, now: Instant) {
        self.interval(now).errors += 1;
        match self.findings.errors.get_mut(error) {
            Some(count) => *count += 1,
            None => {
                self.findings.errors.insert(error.to_string(), 1);
            }
        }
    }

    /// A read returned what it should not have.
    pub fn faulty(&mut self, fault: Fault) {
        match fault {
            Fault::Missing => self.findings.missing += 1,
            Fault::Stale => self.findings.stale += 1,
            Fault::Invented => self.findings.wrong += 1,
        }
    }

    /// An operation was sent elsewhere; `for_good` tells `MOVED` from `ASK`.
    pub fn redirected(&mut self, for_good: bool, now: Instant) {
        self.interval(now).redirects += 1;
        if for_good {
            self.findings.moved += 1;
        } else {
            self.findings.asked += 1;
        }
    }

    #[inline]
    fn interval(&mut self, at: Instant) -> &mut Interval {
        let position = (at.since(self.start).as_nanos() / INTERVAL.as_nanos()) as usize;
        if position >= self.intervals.len() {
            self.intervals.resize_with(position + 1, Interval::new);
        }
        &mut self.intervals[position]
    }

    /// Ends the recording, and the last gap with it. `cpu` is what the thread has used.
    pub fn finish(self, now: Instant, cpu: Duration) -> Recording {
        Recording {
            intervals: self.intervals,
            phases: self.phases,
            findings: self.findings,
            gaps: self.gaps.finish(now),
            watched_gaps: self.watched_gaps.finish(now),
            cpu,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(milliseconds: u64) -> Instant {
        Instant(milliseconds * 1_000_000)
    }

    #[test]
    fn throughput_counts_at_the_answer_and_latency_at_the_intended_start() {
        let mut recorder = Recorder::new(ms(1_000));
        recorder.completed_one(Kind::Read, Phase::Before, ms(1_050), ms(1_250));
        let recording = recorder.finish(ms(1_250), Duration::ZERO);
        let completed: Vec<u64> = recording.intervals.iter().map(|i| i.completed).collect();
        let timed: Vec<u64> = recording.intervals.iter().map(|i| i.latency.len()).collect();
        assert_eq!(completed, [0, 0, 1]);
        assert_eq!(timed, [1, 0, 0]);
        assert_eq!(recording.gaps, [(ms(1_000), ms(1_250))]);
    }

    #[test]
    fn marks_divide_a_run() {
        let marks = Marks::new(ms(10));
        assert_eq!(marks.phase(ms(9)), Phase::WarmUp);
        assert_eq!(marks.phase(ms(999)), Phase::Before);
        marks.begin(ms(20));
        marks.end(ms(30));
        let phases: Vec<Phase> = [5, 10, 20, 29, 30].map(|at| marks.phase(ms(at))).to_vec();
        use Phase::*;
        assert_eq!(phases, [WarmUp, Before, During, During, After]);
    }

    #[test]
    fn percentiles_are_those_of_the_sorted_latencies_to_a_thousandth_or_a_microsecond() {
        let mut random = fastrand::Rng::with_seed(3);
        let mut recorder = Recorder::new(ms(0));
        let mut naive: Vec<u64> = Vec::new();
        for _ in 0..20_000 {
            // From a microsecond to ten seconds, all magnitudes alike.
            let latency = 10f64.powf(3.0 + 7.0 * random.f64()) as u64;
            let kind = if random.bool() { Kind::Read } else { Kind::Write };
            recorder.completed_one(kind, Phase::Before, ms(0), Instant(latency));
            naive.push(latency);
        }
        naive.sort_unstable();
        let all = recorder.finish(ms(0), Duration::ZERO).phases[Phase::Before as usize].all();
        for quantile in [0.01, 0.5, 0.9, 0.99, 0.999, 1.0] {
            let exact = naive[((naive.len() as f64 * quantile).ceil() as usize).max(1) - 1] as f64;
            let shown = all.value_at_quantile(quantile) as f64;
            let off = (shown - exact).abs();
            assert!(off < exact / 1000.0 + 1000.0, "{quantile}: {shown} for {exact}");
        }
    }
}
