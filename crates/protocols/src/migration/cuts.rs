//! The frequency at which a target commits replayed records.

use std::time::Duration;

/// The thresholds for the next cut, measured from the last one.
///
/// Replicating records takes several times the processor time of moving them, and happens only at
/// a cut. With infrequent cuts most moves therefore finish as fast as without replication, and
/// the records become durable shortly afterwards. The cost: a crash recovery reads more from the
/// source's log, and the source keeps its copy in memory for longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cuts {
    /// Replayed bytes after which a cut is made.
    pub bytes: u64,
    /// Time after which a cut is made if anything has been replayed.
    pub after: Duration,
}

impl Default for Cuts {
    fn default() -> Cuts {
        Cuts { bytes: 1 << 30, after: Duration::from_secs(2) }
    }
}
