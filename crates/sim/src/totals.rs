//! Sums over many runs, and the number of runs in parallel.

use sim::Report;

/// Sums over runs.
#[derive(Default)]
pub(crate) struct RunTotals {
    pub(crate) seeds: u64,
    pub(crate) operations: usize,
    pub(crate) refused: usize,
    pub(crate) moved: usize,
    pub(crate) not_moved: usize,
    pub(crate) source_values: u64,
}

impl RunTotals {
    pub(crate) fn add(&mut self, report: &Report) {
        self.seeds += 1;
        self.operations += report.operations;
        self.refused += report.refused;
        self.moved += report.moved;
        self.not_moved += report.not_moved;
        self.source_values += report.source_values;
    }
}

/// Returns the requested number of runs in parallel; by default one per processor.
pub(crate) fn jobs(requested: Option<usize>) -> usize {
    requested.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from))
}
