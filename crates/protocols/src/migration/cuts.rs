//! The frequency at which a target commits replayed records.

use std::time::Duration;

/// The thresholds for the next cut, measured from the last one.
///
/// Replicating records takes several times the processor time of moving them, and happens only at
/// a cut. With infrequent cuts most moves therefore finish as fast as without replication, and
/// the records become durable shortly afterwards. The cost: a crash recovery reads more from the
/// source's log, and the source keeps its copy in memory for longer.
///
/// A cut also ends the open segment of every reactor's side log, however empty it is. So a slow move
/// waits until the segments are filled well enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cuts {
    /// Replayed bytes after which a cut is made.
    pub bytes: u64,
    /// Time after which a cut is made if `bytes_min` have been replayed.
    pub after: Duration,
    /// Replayed bytes below which a cut is not worth its segments.
    pub bytes_min: u64,
    /// Time after which a cut is made if anything has been replayed.
    pub after_max: Duration,
}

impl Cuts {
    /// Returns the time after which a cut is made if so many bytes have been replayed.
    pub(super) fn due_after(&self, bytes: u64) -> Duration {
        debug_assert!(self.after <= self.after_max, "small cuts are no more frequent: {self:?}");
        if bytes >= self.bytes_min { self.after } else { self.after_max }
    }

    /// Returns these thresholds for a server with so many reactors and segments of this size: half
    /// a segment of each reactor is worth a cut.
    pub fn for_segments(self, reactors: u16, segment_bytes: usize) -> Cuts {
        Cuts { bytes_min: u64::from(reactors) * (segment_bytes as u64 / 2), ..self }
    }
}

impl Default for Cuts {
    fn default() -> Cuts {
        Cuts {
            bytes: 1 << 30,
            after: Duration::from_secs(2),
            bytes_min: 0,
            after_max: Duration::from_secs(30),
        }
    }
}
