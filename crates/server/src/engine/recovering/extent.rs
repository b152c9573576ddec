//! How much there is to be replayed into a part: the store makes its index accordingly.
//!
//! A part gets what is in its range, and only the backups see how much that is. So it is guessed by what
//! they have sent: the range's part of all segments is taken to be its part of those that were read.

use wire::peer::RecoveryNext;

/// Estimate of the records and bytes that one part will get.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Extent {
    /// Bytes of all segments, of every range.
    log: u64,
    /// Bytes of them that have been read for this part.
    read: u64,
    /// Of those, what lies in the range.
    received: u64,
}

impl Extent {
    /// The segments have so many bytes.
    pub(super) fn set_log(&mut self, bytes: u64) {
        self.log = bytes;
    }

    /// So many bytes of entries were in a segment from a place on.
    pub(super) fn note(&mut self, from: u32, next: RecoveryNext, bytes: usize) {
        let to = match next {
            RecoveryNext::From(next) => next,
            RecoveryNext::End { length, .. } => length,
            RecoveryNext::Missing => return,
        };
        self.read += u64::from(to.saturating_sub(from));
        self.received += bytes as u64;
    }

    /// Bytes of all entries of the range.
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
