//! A server's part in two-sided reads: see `docs/design/two-sided-reads.md`.
//!
//! The target of a migration answers that a record has not arrived, instead of parking the read
//! (`store::Worker::read_if_here`). The source answers from the copy that it keeps
//! (`store::Worker::read_copy`). Clients learn of migrations from [`Node::shown_migrations`].

use crate::Node;
use crate::tablets::arrival_of;
use types::{HashRange, KeyHash, MigrationId, OwnershipEpoch, ServerId, Slot};

/// A migration that has not ended, as clients see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShownMigration {
    /// First and last slot.
    pub slots: (Slot, Slot),
    /// The source.
    pub source: ServerId,
    /// The target.
    pub target: ServerId,
    /// Slots of which records may still be at the source, ascending. `None` if this server is not
    /// the target, or has not accepted the flip.
    pub missing: Option<Vec<(Slot, Slot)>>,
}

impl Node {
    /// Returns whether a lease covers the reads of this server. Only then may a client combine its
    /// answer that a record has not arrived with the source's.
    #[inline]
    pub fn has_leased_reads(&self) -> bool {
        self.durability().is_with_others()
    }

    /// Returns the migration whose source is this server and still keeps its copy of a hash, and
    /// the epoch under which the target owns the hash.
    ///
    /// Other reactors delete copies, and a range may return. So what was read from the copy counts
    /// only if this answer is the same afterwards.
    pub fn copy_of(&self, hash: KeyHash) -> Option<(MigrationId, OwnershipEpoch)> {
        self.machines().copy_of(hash)
    }

    /// Returns the migrations that have not ended, in the order of the map.
    pub fn shown_migrations(&self) -> Vec<ShownMigration> {
        let tablets = self.store().tablets();
        let missing = |range: HashRange, source: ServerId| {
            let inside = tablets.iter().filter(|tablet| tablet.range.overlaps(range));
            let mut is_held = false;
            let arrivals = inside.inspect(|_| is_held = true).filter_map(arrival_of);
            let arrivals = arrivals.filter(|arrival| arrival.source() == source);
            let missing = joined(arrivals.flat_map(|arrival| arrival.missing()));
            is_held.then_some(missing)
        };
        let shown = |&(range, source, target): &(HashRange, ServerId, ServerId)| ShownMigration {
            slots: range.slots(),
            source,
            target,
            missing: missing(range, source).filter(|_| target == self.me()),
        };
        self.map().moving.iter().map(shown).collect()
    }
}

/// Returns the slots that ascending ranges touch.
fn joined(ranges: impl Iterator<Item = HashRange>) -> Vec<(Slot, Slot)> {
    let mut joined: Vec<(Slot, Slot)> = Vec::new();
    for (first, last) in ranges.map(HashRange::slots) {
        match joined.last_mut() {
            Some((_, end)) if first.0 <= end.0 + 1 => *end = last.max(*end),
            Some(_) | None => joined.push((first, last)),
        }
    }
    joined
}
