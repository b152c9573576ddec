//! How often a target makes what has arrived its own.

use std::time::Duration;

/// When the next cut is made, by what has been replayed since the last one.
///
/// Giving it to the backups takes several times the processor time that moving it took, and before
/// the cut nothing of that is done. So with seldom cuts most moves are over as soon as if nothing
/// was replicated, and what arrived becomes safe behind them. What they cost: after a crash so much
/// more is read from the source's log, and so long the source keeps its copy in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cuts {
    /// After so many bytes ...
    pub bytes: u64,
    /// ... or after this time, if anything has been replayed.
    pub after: Duration,
}

impl Default for Cuts {
    fn default() -> Cuts {
        Cuts { bytes: 1 << 30, after: Duration::from_secs(2) }
    }
}
