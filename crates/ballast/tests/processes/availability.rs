//! Demands on availability: while a fault lasts that a cluster survives, each operation is answered
//! in time. And the rate of operations over time, drawn as a line of bars.

use crate::registers::Register;
use std::fmt::Write;
use std::time::Duration;
use types::Instant;

/// Time from the beginning of a fault within which the cluster and its clients adapt to it: a dead
/// server's data is recovered, and clients give up requests that wait for it.
pub(crate) const ADAPTATION: Duration = Duration::from_millis(2_500);

/// Time within which each operation is answered afterwards, retries included. The simulator
/// demands 1.5 s; here the processes of a whole cluster share two processors.
const BUDGET: Duration = Duration::from_secs(2);

/// Time that a bar stands for.
const BAR: Duration = Duration::from_millis(100);
const BARS_PER_LINE: usize = 50;
const BARS: [char; 9] = ['.', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// The times of an operation, from the first request to the end of the last retry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TimedOperation {
    pub(crate) register: Register,
    pub(crate) begun: Instant,
    pub(crate) ended: Instant,
    /// Not set if the client does not know the outcome.
    pub(crate) is_answered: bool,
}

/// A time in which every operation must be answered.
#[derive(Clone, Debug)]
pub(crate) struct Demand {
    /// The fault that lasts.
    pub(crate) fault: String,
    /// The end of the adaptation.
    pub(crate) from: Instant,
    pub(crate) until: Instant,
}

impl Demand {
    /// Returns whether the operation was answered too late, or not at all, although it had its
    /// whole budget while the fault lasted.
    fn is_broken_by(&self, operation: &TimedOperation) -> bool {
        let deadline = operation.begun.max(self.from) + BUDGET;
        let is_concerned = deadline <= self.until && operation.ended >= self.from;
        is_concerned && (operation.ended > deadline || !operation.is_answered)
    }
}

/// Returns a description of each demand that an operation has broken.
pub(crate) fn broken(demands: &[Demand], operations: &[TimedOperation]) -> Vec<String> {
    let first_late = |demand: &Demand| {
        let late = operations.iter().filter(|it| demand.is_broken_by(it));
        let count = late.clone().count();
        late.min_by_key(|it| it.begun).map(|first| {
            let took = first.ended.since(first.begun);
            let end = if first.is_answered { "answered" } else { "given up" };
            let (fault, register) = (&demand.fault, first.register);
            format!("{fault}: {count} operations were late; {register:?} was {end} after {took:?}")
        })
    };
    demands.iter().filter_map(first_late).collect()
}

/// Draws the number of operations that ended in each tenth of a second since `begun`.
pub(crate) fn timeline(begun: Instant, operations: &[TimedOperation]) -> String {
    let mut counts: Vec<usize> = Vec::new();
    for operation in operations.iter().filter(|it| it.is_answered) {
        let at = (operation.ended.since(begun).as_nanos() / BAR.as_nanos()) as usize;
        counts.resize(counts.len().max(at + 1), 0);
        counts[at] += 1;
    }
    let most = counts.iter().max().copied().unwrap_or(0).max(1);
    let mut text = format!("operations in {BAR:?}, up to {most}:");
    for (number, line) in counts.chunks(BARS_PER_LINE).enumerate() {
        let seconds = (BAR * (number * BARS_PER_LINE) as u32).as_secs();
        let bars = line.iter().map(|&count| BARS[(count * (BARS.len() - 1)).div_ceil(most)]);
        let bars: String = bars.collect();
        write!(text, "\n{seconds:>7} s {bars}").expect("a string takes all");
    }
    text
}

#[test]
fn an_operation_must_be_answered_within_its_budget_while_the_fault_lasts() {
    let at = |millis| Instant(0) + Duration::from_millis(millis);
    let demand = Demand { fault: "a fault".into(), from: at(10_000), until: at(15_000) };
    let operation = |begun, ended, is_answered| TimedOperation {
        register: Register::Text(1),
        begun: at(begun),
        ended: at(ended),
        is_answered,
    };
    let is_broken = |begun, ended, is_answered| {
        !broken(std::slice::from_ref(&demand), &[operation(begun, ended, is_answered)]).is_empty()
    };
    assert!(!is_broken(8_000, 9_999, false), "it ended before");
    assert!(!is_broken(8_000, 12_000, true), "the budget begins with the demand");
    assert!(is_broken(8_000, 12_001, true));
    assert!(!is_broken(12_000, 14_000, true));
    assert!(is_broken(12_000, 14_001, true));
    assert!(is_broken(12_000, 12_001, false), "its outcome is unknown");
    assert!(!is_broken(13_001, 16_000, true), "the fault ended first");
}

#[test]
fn a_timeline_shows_when_nothing_was_answered() {
    let at = |millis| Instant(0) + Duration::from_millis(millis);
    let operation = |millis| TimedOperation {
        register: Register::Text(1),
        begun: at(0),
        ended: at(millis),
        is_answered: true,
    };
    let operations = [0, 50, 250, 5_000].map(operation);
    let text = timeline(at(0), &operations);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "operations in 100ms, up to 2:");
    assert_eq!(lines[1], format!("      0 s █.▄{}", ".".repeat(47)));
    assert_eq!(lines[2], "      5 s ▄");
}
