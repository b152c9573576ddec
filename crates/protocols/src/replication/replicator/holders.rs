//! How many backups hold all that a replicator's segments have.

use super::{Replica, Replicator, Segment, Stage};
use crate::replication::replica::Extent;
use types::ServerId;

/// Other servers that hold all of each segment: of the segment that fewest hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Holders {
    /// Backups that have taken all of it.
    pub taken: usize,
    /// Backups that have said that all of it is stable.
    pub stable: usize,
}

impl Holders {
    /// Counts the backups of one segment. A segment that the log directory does not name would not be
    /// read after a crash: nobody holds it.
    fn of(segment: &Segment, master: ServerId) -> Holders {
        let Extent { length, .. } = segment.extent();
        let is_named = segment.is_listed || segment.stage >= Stage::Kept;
        let count = |has: fn(&Replica) -> u32| {
            let holds = segment.placed(Some(master)).filter(|replica| has(replica) >= length);
            if is_named { holds.filter(|replica| replica.is_open()).count() } else { 0 }
        };
        Holders { taken: count(|replica| replica.has()), stable: count(|replica| replica.stable()) }
    }

    /// Returns the smaller of both numbers.
    fn min(self, other: Holders) -> Holders {
        Holders { taken: self.taken.min(other.taken), stable: self.stable.min(other.stable) }
    }
}

impl Replicator {
    /// Returns how many other servers hold all that was appended so far. Segments about which
    /// nothing is to be done have all replicas that they need.
    pub fn holders(&self) -> Holders {
        let has_none = self.is_fenced || self.keeps_own_log();
        let wanted = if has_none { 0 } else { self.settings.replicas };
        let all = Holders { taken: wanted, stable: wanted };
        let unfinished = self.active.union(&self.short).map(|id| &self.segments[id]);
        let counted = unfinished.filter(|it| it.stage != Stage::Leaving && it.extent().length > 0);
        counted.map(|it| Holders::of(it, self.settings.log)).fold(all, Holders::min)
    }
}
