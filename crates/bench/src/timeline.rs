//! Timeline of a run: intervals and phases of all threads together.

use crate::recorder::{INTERVAL, Interval, LoadPhase, Recording};
use hdrhistogram::{Counter, Histogram};
use serde::Serialize;
use std::time::Duration;
use types::Instant;

/// All measurements of a run.
pub struct Timeline {
    /// Time at which the first operation was due.
    pub start: Instant,
    /// Time of the last answer.
    pub end: Instant,
    /// Begin of each phase in [`LoadPhase::ALL`], if it has begun.
    pub begins: [Option<Instant>; 4],
    /// Recordings of all threads together: a gap is a period in which no thread got an answer.
    pub recording: Recording,
}

/// Percentiles of latencies, in milliseconds.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub struct Percentiles {
    /// Number of operations.
    pub count: u64,
    /// Median.
    pub p50: f64,
    /// Latency that 99 of 100 operations stay below.
    pub p99: f64,
    /// Latency that 999 of 1000 operations stay below.
    pub p99_9: f64,
    /// Highest latency.
    pub max: f64,
}

/// Point of the timeline in plain numbers.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Point {
    /// Begin of the interval in seconds since the start of the run.
    pub second: f64,
    /// Operations answered per second.
    pub throughput: f64,
    /// Latencies of the operations with an intended start in the interval, in milliseconds.
    pub latency: Percentiles,
    /// Number of failed operations.
    pub errors: u64,
    /// Number of redirects.
    pub redirects: u64,
}

/// Phase in plain numbers.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct PhaseSummary {
    /// The phase.
    pub phase: LoadPhase,
    /// Duration in seconds.
    pub seconds: f64,
    /// Operations per second.
    pub throughput: f64,
    /// Latencies of all operations with an intended start in the phase.
    pub all: Percentiles,
    /// Latencies of the reads.
    pub reads: Percentiles,
    /// Latencies of the writes and read-modify-writes.
    pub writes: Percentiles,
    /// Longest period without any answer that overlaps the phase, in milliseconds.
    pub longest_gap: f64,
}

impl Timeline {
    /// Merges the recordings of several threads.
    pub fn merge(
        start: Instant,
        end: Instant,
        begins: [Option<Instant>; 4],
        recordings: Vec<Recording>,
    ) -> Timeline {
        let Some(recording) = recordings.into_iter().reduce(together) else {
            unreachable!("a run has at least one thread")
        };
        Timeline { start, end, begins, recording }
    }

    /// Returns the processor microseconds of the load generator per operation.
    pub fn generator_us_per_operation(&self) -> f64 {
        let Recording { cpu, findings, .. } = &self.recording;
        cpu.as_secs_f64() * 1e6 / findings.completed.max(1) as f64
    }

    /// Returns the complete points of the timeline. The last answers of a run fall into an
    /// incomplete interval, which would look like a drop in throughput.
    pub fn points(&self) -> Vec<Point> {
        let whole = self.end.since(self.start).as_nanos() / INTERVAL.as_nanos();
        let point = |(position, interval): (usize, &Interval)| Point {
            second: position as f64 * INTERVAL.as_secs_f64(),
            throughput: interval.completed as f64 / INTERVAL.as_secs_f64(),
            latency: percentiles(&interval.latency),
            errors: interval.errors,
            redirects: interval.redirects,
        };
        self.recording.intervals.iter().enumerate().take(whole as usize).map(point).collect()
    }

    /// Returns a phase, if the run had it.
    pub fn phase(&self, phase: LoadPhase) -> Option<PhaseSummary> {
        let from = self.begins[phase as usize]?.max(self.start);
        let until = self.begins[phase as usize + 1..].iter().flatten().next();
        let until = until.map_or(self.end, |until| (*until).min(self.end));
        let seconds = until.since(from).as_secs_f64();
        let latencies = &self.recording.phases[phase as usize];
        let all = percentiles(&latencies.all());
        Some(PhaseSummary {
            phase,
            seconds,
            throughput: if seconds > 0.0 { all.count as f64 / seconds } else { 0.0 },
            all,
            reads: percentiles(&latencies.reads),
            writes: percentiles(&latencies.writes),
            longest_gap: milliseconds(self.longest_gap(from, until)),
        })
    }

    /// Returns the longest period without any answer that overlaps `from` to `until`. Periods
    /// below half a millisecond count as zero.
    pub fn longest_gap(&self, from: Instant, until: Instant) -> Duration {
        longest(&self.recording.gaps, from, until).map_or(Duration::ZERO, |gap| gap.1.since(gap.0))
    }

    /// Returns the longest period without any answer from the watched slots that overlaps `from`
    /// to `until`: the last answer before it and the first one after it. Returns `None` if all
    /// periods were below half a millisecond.
    pub fn watched_gap(&self, from: Instant, until: Instant) -> Option<(Instant, Instant)> {
        longest(&self.recording.watched_gaps, from, until)
    }
}

/// Returns the recording of two threads together.
fn together(mut one: Recording, other: Recording) -> Recording {
    let begun = one.intervals.len().min(other.intervals.len());
    one.intervals.iter_mut().zip(&other.intervals).for_each(|(mine, theirs)| mine.add(theirs));
    one.intervals.extend(other.intervals.into_iter().skip(begun));
    one.phases.iter_mut().zip(&other.phases).for_each(|(mine, theirs)| mine.add(theirs));
    one.findings.add(&other.findings);
    one.gaps = intersect(&one.gaps, &other.gaps);
    one.watched_gaps = intersect(&one.watched_gaps, &other.watched_gaps);
    one.cpu += other.cpu;
    one
}

fn longest(
    gaps: &[(Instant, Instant)],
    from: Instant,
    until: Instant,
) -> Option<(Instant, Instant)> {
    let overlapping = gaps.iter().filter(|gap| gap.0 < until && gap.1 > from);
    overlapping.copied().max_by_key(|gap| gap.1.since(gap.0))
}

/// Returns the periods that are in both lists. Each list is sorted and without overlap.
fn intersect(left: &[(Instant, Instant)], right: &[(Instant, Instant)]) -> Vec<(Instant, Instant)> {
    let (mut left, mut right) = (left.iter().peekable(), right.iter().peekable());
    let mut both = Vec::new();
    while let (Some(a), Some(b)) = (left.peek(), right.peek()) {
        let (from, until) = (a.0.max(b.0), a.1.min(b.1));
        if from < until {
            both.push((from, until));
        }
        if a.1 < b.1 {
            left.next()
        } else {
            right.next()
        };
    }
    both
}

fn percentiles<C: Counter>(latencies: &Histogram<C>) -> Percentiles {
    if latencies.is_empty() {
        return Percentiles::default();
    }
    let at = |quantile| latencies.value_at_quantile(quantile) as f64 / 1e6;
    Percentiles {
        count: latencies.len(),
        p50: at(0.5),
        p99: at(0.99),
        p99_9: at(0.999),
        max: latencies.max() as f64 / 1e6,
    }
}

fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recorder::Recorder;
    use crate::workload::RecordAction;

    fn ms(milliseconds: u64) -> Instant {
        Instant(milliseconds * 1_000_000)
    }

    #[test]
    fn nobody_is_answered_only_when_no_thread_is() {
        let left = [(ms(0), ms(10)), (ms(20), ms(40))];
        let right = [(ms(5), ms(25)), (ms(30), ms(31)), (ms(35), ms(50))];
        let both = [(ms(5), ms(10)), (ms(20), ms(25)), (ms(30), ms(31)), (ms(35), ms(40))];
        assert_eq!(intersect(&left, &right), both);
    }

    #[test]
    fn threads_are_merged_and_phases_have_their_own_figures() {
        let recording = |latency| {
            let mut recorder = Recorder::new(ms(0));
            for at in 0..100 {
                let phase = if at < 50 { LoadPhase::Before } else { LoadPhase::During };
                recorder.completed_one(RecordAction::Read, phase, ms(at), ms(at + latency));
            }
            recorder.finish(ms(110), Duration::ZERO)
        };
        let begins = [Some(ms(0)), Some(ms(0)), Some(ms(50)), None];
        let timeline = Timeline::merge(ms(0), ms(110), begins, vec![recording(1), recording(2)]);
        assert_eq!(timeline.recording.findings.completed, 200);
        assert_eq!(timeline.points()[0].latency.count, 200);
        let during = timeline.phase(LoadPhase::During).unwrap();
        assert_eq!(during.all.count, 100);
        assert!((during.seconds - 0.06).abs() < 1e-9);
        assert!((during.all.max - 2.0).abs() < 0.01);
        // The last answers came after 101 ms; the rest of the run has none.
        assert!((during.longest_gap - 9.0).abs() < 0.01, "{}", during.longest_gap);
        assert_eq!(timeline.phase(LoadPhase::After), None);
    }
}
