//! Measurements of one thread of the generator.
//!
//! Throughput counts at the time of the answer, latency from the intended start. If a server
//! stalls for a second, that second shows no answers, and the operations that should have started
//! in it show how long they waited.

use crate::ledger::Fault;
use crate::workload::RecordAction;
use hdrhistogram::Histogram;
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use types::Instant;

/// Width of one point of a timeline.
pub const INTERVAL: Duration = Duration::from_millis(100);
/// Range of recorded latencies in nanoseconds; longer ones count as the maximum.
const LATENCY_NS: (u64, u64) = (1_000, 100_000_000_000);
/// Error under which an operation is counted if its connection broke before the answer.
pub(crate) const NO_ANSWER: &str = "(no answer)";
/// Shortest recorded gap between two answers. The target for the longest is 10 ms.
const GAP_MIN: Duration = Duration::from_micros(500);

/// Part of a run, between boundaries that are set while it runs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LoadPhase {
    /// The first moments, for connections, caches and clocks. In no figure.
    WarmUp,
    /// Until the event that the run is about, or the whole run if there is no event.
    Before,
    /// During the event.
    During,
    /// After the event.
    After,
}

impl LoadPhase {
    /// All phases, in order.
    pub const ALL: [LoadPhase; 4] =
        [LoadPhase::WarmUp, LoadPhase::Before, LoadPhase::During, LoadPhase::After];
}

/// Moments that divide a run into phases, shared by all its threads.
pub struct PhaseBoundaries {
    /// Begin of [`LoadPhase::Before`], `During` and `After`; `u64::MAX` until it is known.
    begins: [AtomicU64; 3],
}

impl PhaseBoundaries {
    /// Creates the boundaries of a run with a warm-up until `warm`.
    pub fn new(warm: Instant) -> PhaseBoundaries {
        PhaseBoundaries { begins: [warm.0, u64::MAX, u64::MAX].map(AtomicU64::new) }
    }

    /// Marks the begin of the event.
    pub fn begin(&self, now: Instant) {
        self.begins[1].store(now.0, Relaxed);
    }

    /// Marks the end of the event.
    pub fn end(&self, now: Instant) {
        self.begins[2].store(now.0, Relaxed);
    }

    /// Returns the phase of an operation with the intended start `at`. Exact for all moments
    /// before the call, since a mark is always set to the current time.
    #[inline]
    pub fn phase(&self, at: Instant) -> LoadPhase {
        if at.0 < self.begins[1].load(Relaxed) {
            return if at.0 < self.begins[0].load(Relaxed) {
                LoadPhase::WarmUp
            } else {
                LoadPhase::Before
            };
        }
        if at.0 < self.begins[2].load(Relaxed) { LoadPhase::During } else { LoadPhase::After }
    }

    /// Returns the begin of a phase, if it has begun.
    pub fn begin_of(&self, phase: LoadPhase) -> Option<Instant> {
        let begin = match phase {
            LoadPhase::WarmUp => return Some(Instant(0)),
            LoadPhase::Before => self.begins[0].load(Relaxed),
            LoadPhase::During => self.begins[1].load(Relaxed),
            LoadPhase::After => self.begins[2].load(Relaxed),
        };
        (begin != u64::MAX).then_some(Instant(begin))
    }
}

/// One point of a timeline.
#[derive(Clone, Debug)]
pub struct Interval {
    /// Number of operations answered in the interval.
    pub completed: u64,
    /// Number of errors (other than redirects) and abandoned operations in the interval.
    pub errors: u64,
    /// Number of redirects in the interval.
    pub redirects: u64,
    /// Latencies in nanoseconds of the operations with an intended start in the interval, to 1 %.
    pub latency: Histogram<u32>,
}

impl Interval {
    fn new() -> Interval {
        Interval { completed: 0, errors: 0, redirects: 0, latency: histogram(2) }
    }

    /// Adds the same interval of another thread.
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

    /// Adds the latencies of another thread.
    pub fn add(&mut self, other: &Latencies) {
        add(&mut self.reads, &other.reads);
        add(&mut self.writes, &other.writes);
    }

    /// Returns the latencies of all kinds together.
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

/// Correctness of the answers, and errors.
#[derive(Clone, Default, PartialEq, Eq, Debug, Serialize)]
pub struct Findings {
    /// Number of successful operations.
    pub completed: u64,
    /// Number of reads that showed a write that was overwritten before they were issued.
    pub stale: u64,
    /// Number of reads that found nothing although a write had been acknowledged.
    pub missing: u64,
    /// Number of reads that showed bytes that were never written to the key.
    pub wrong: u64,
    /// Number of `MOVED` answers.
    pub moved: u64,
    /// Number of `ASK` answers.
    pub asked: u64,
    /// Number of times that an operation had to wait before a retry.
    pub retried: u64,
    /// Numbers of failed operations, by error.
    pub errors: BTreeMap<String, u64>,
}

impl Findings {
    /// Adds the findings of another thread.
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

    /// Returns the number of failed operations.
    pub fn errors_total(&self) -> u64 {
        self.errors.values().sum()
    }

    /// Returns the number of failed operations that lost their connection before the answer.
    pub fn unanswered(&self) -> u64 {
        self.errors.get(NO_ANSWER).copied().unwrap_or(0)
    }

    /// Returns the number of wrong reads.
    pub fn faults(&self) -> u64 {
        self.stale + self.missing + self.wrong
    }

    /// Returns whether every operation succeeded and every read was right.
    pub fn is_clean(&self) -> bool {
        self.errors.is_empty() && self.faults() == 0
    }
}

/// Recorder of one thread.
pub struct Recorder {
    start: Instant,
    intervals: Vec<Interval>,
    phases: [Latencies; 4],
    findings: Findings,
    gaps: Gaps,
    watched_gaps: Gaps,
}

/// Periods without an answer.
struct Gaps {
    last_answer: Instant,
    list: Vec<(Instant, Instant)>,
}

impl Gaps {
    fn new(start: Instant) -> Gaps {
        Gaps { last_answer: start, list: Vec::new() }
    }

    /// Records an answer, and the gap before it if it is long enough.
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

/// Result of a recorder.
pub struct Recording {
    /// Intervals in order, from the start of the run.
    pub intervals: Vec<Interval>,
    /// Latencies in the order of [`LoadPhase::ALL`].
    pub phases: [Latencies; 4],
    /// Counts over the whole run.
    pub findings: Findings,
    /// Periods of at least half a millisecond without an answer, in order.
    pub gaps: Vec<(Instant, Instant)>,
    /// The same for answers from the watched slots only.
    pub watched_gaps: Vec<(Instant, Instant)>,
    /// Processor time of the recording thread.
    pub cpu: Duration,
}

impl Recorder {
    /// Creates a recorder of a run that starts at `start`.
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

    /// Records a successful operation with the intended start `intended`.
    #[inline]
    pub fn completed_one(
        &mut self,
        action: RecordAction,
        phase: LoadPhase,
        intended: Instant,
        now: Instant,
    ) {
        self.gaps.answered(now);
        let latency = now.since(intended).as_nanos() as u64;
        let latencies = &mut self.phases[phase as usize];
        let latencies = match action {
            RecordAction::Read | RecordAction::Adopt => &mut latencies.reads,
            RecordAction::Write | RecordAction::ReadModifyWrite => &mut latencies.writes,
        };
        latencies.saturating_record(latency);
        self.findings.completed += 1;
        self.interval(now).completed += 1;
        self.interval(intended).latency.saturating_record(latency);
    }

    /// Records that the operation just completed was on a watched slot.
    #[inline]
    pub fn watched_one(&mut self, now: Instant) {
        self.watched_gaps.answered(now);
    }

    /// Records that an operation has to wait before a retry.
    pub fn retried(&mut self) {
        self.findings.retried += 1;
    }

    /// Records a failed operation.
    pub fn failed(&mut self, error: &str, now: Instant) {
        self.interval(now).errors += 1;
        match self.findings.errors.get_mut(error) {
            Some(count) => *count += 1,
            None => {
                self.findings.errors.insert(error.to_string(), 1);
            }
        }
    }

    /// Records a wrong read.
    pub fn faulty(&mut self, fault: Fault) {
        match fault {
            Fault::Missing => self.findings.missing += 1,
            Fault::Stale => self.findings.stale += 1,
            Fault::Invented => self.findings.wrong += 1,
        }
    }

    /// Records a redirect: `MOVED` if `for_good`, otherwise `ASK`.
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

    /// Ends the recording and the last gap. `cpu` is the processor time of the thread.
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
        recorder.completed_one(RecordAction::Read, LoadPhase::Before, ms(1_050), ms(1_250));
        let recording = recorder.finish(ms(1_250), Duration::ZERO);
        let completed: Vec<u64> = recording.intervals.iter().map(|i| i.completed).collect();
        let timed: Vec<u64> = recording.intervals.iter().map(|i| i.latency.len()).collect();
        assert_eq!(completed, [0, 0, 1]);
        assert_eq!(timed, [1, 0, 0]);
        assert_eq!(recording.gaps, [(ms(1_000), ms(1_250))]);
    }

    #[test]
    fn marks_divide_a_run() {
        let boundaries = PhaseBoundaries::new(ms(10));
        assert_eq!(boundaries.phase(ms(9)), LoadPhase::WarmUp);
        assert_eq!(boundaries.phase(ms(999)), LoadPhase::Before);
        boundaries.begin(ms(20));
        boundaries.end(ms(30));
        let phases: Vec<LoadPhase> =
            [5, 10, 20, 29, 30].map(|at| boundaries.phase(ms(at))).to_vec();
        use LoadPhase::*;
        assert_eq!(phases, [WarmUp, Before, During, During, After]);
    }

    #[test]
    fn percentiles_are_those_of_the_sorted_latencies_to_a_thousandth_or_a_microsecond() {
        let mut random = fastrand::Rng::with_seed(3);
        let mut recorder = Recorder::new(ms(0));
        let mut naive: Vec<u64> = Vec::new();
        for _ in 0..20_000 {
            // Latencies from a microsecond to ten seconds; every magnitude is equally likely.
            let latency = 10f64.powf(3.0 + 7.0 * random.f64()) as u64;
            let action = if random.bool() { RecordAction::Read } else { RecordAction::Write };
            recorder.completed_one(action, LoadPhase::Before, ms(0), Instant(latency));
            naive.push(latency);
        }
        naive.sort_unstable();
        let all = recorder.finish(ms(0), Duration::ZERO).phases[LoadPhase::Before as usize].all();
        for quantile in [0.01, 0.5, 0.9, 0.99, 0.999, 1.0] {
            let exact = naive[((naive.len() as f64 * quantile).ceil() as usize).max(1) - 1] as f64;
            let shown = all.value_at_quantile(quantile) as f64;
            let off = (shown - exact).abs();
            assert!(off < exact / 1000.0 + 1000.0, "{quantile}: {shown} for {exact}");
        }
    }
}
