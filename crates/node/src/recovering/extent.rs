//! Estimate of the bytes to be replayed into a recovery partition, by which the index is sized.
//!
//! Only the backups see how many bytes are in the partition's range. The estimate assumes that
//! the range's share of all segments equals its share of those read so far.

use wire::peer::RecoveryNext;

/// Estimate of the bytes that one partition receives.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Extent {
    /// Total bytes of all segments, of every range.
    log: u64,
    /// Bytes of segments that have been read for this partition.
    read: u64,
    /// Bytes of those that lie in the range.
    received: u64,
}

impl Extent {
    /// Sets the total bytes of the segments.
    pub(super) fn set_log(&mut self, bytes: u64) {
        self.log = bytes;
    }

    /// Records that a read of a segment, beginning at `from`, returned `bytes` bytes of entries.
    pub(super) fn note(&mut self, from: u32, next: RecoveryNext, bytes: usize) {
        let to = match next {
            RecoveryNext::From(next) => next,
            RecoveryNext::End { length, .. } => length,
            RecoveryNext::Missing => return,
        };
        self.read += u64::from(to.saturating_sub(from));
        self.received += bytes as u64;
    }

    /// Returns the estimated bytes of all entries in the range.
    pub(super) fn of_range(&self) -> u64 {
        let all = u128::from(self.log) * u128::from(self.received) / u128::from(self.read.max(1));
        u64::try_from(all).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::Version;

    #[test]
    fn what_was_read_stands_for_the_rest() {
        let mut extent = Extent::default();
        assert_eq!(extent.of_range(), 0, "nothing is known");
        extent.set_log(10_000);
        extent.note(0, RecoveryNext::From(800), 100);
        extent.note(0, RecoveryNext::Missing, 0);
        assert_eq!(extent.of_range(), 1250);
        extent.note(800, RecoveryNext::End { length: 1000, crc: 0, version: Version(1) }, 150);
        assert_eq!(extent.of_range(), 2500);
    }
}
