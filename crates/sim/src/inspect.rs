//! What must be true of the servers, looked at from outside.

use crate::reactor::TABLE;
use crate::workload::{Register, decode};
use std::collections::{BTreeMap, BTreeSet};
use store::{TabletState, Worker};
use types::{HashRange, KeyHash, MigrationId, ServerId, UnixMillis};
use wire::batch::BatchReader;
use wire::entry::Body;

/// A way into one server's store beside its reactors', and what it has seen.
pub(crate) struct Inspector {
    pub(crate) worker: Worker,
    /// Hashes of moving ranges that the progress has passed.
    passed: BTreeSet<(MigrationId, KeyHash)>,
    /// Hashes deleted here while their range was arriving.
    deleted: BTreeSet<(MigrationId, KeyHash)>,
}

impl Inspector {
    pub(crate) fn new(mut worker: Worker) -> Inspector {
        worker.sleep();
        Inspector { worker, passed: BTreeSet::new(), deleted: BTreeSet::new() }
    }

    /// Looks at the store; nobody has to wait for it afterwards.
    pub(crate) fn look<T>(&mut self, wall: UnixMillis, look: impl FnOnce(&mut Worker) -> T) -> T {
        self.worker.begin_turn(wall);
        let seen = look(&mut self.worker);
        self.worker.sleep();
        seen
    }

    pub(crate) fn note_deleted(&mut self, migration: MigrationId, hash: KeyHash) {
        self.deleted.insert((migration, hash));
    }

    /// Keys that the progress of some migration has passed since the last call, and their sources.
    pub(crate) fn newly_passed(
        &mut self,
        registers: &[Register],
    ) -> Vec<(MigrationId, ServerId, KeyHash)> {
        let mut newly = Vec::new();
        for tablet in self.worker.store().tablets().iter() {
            let TabletState::Arriving(arrival) = &tablet.state else { continue };
            let hashes =
                registers.iter().flat_map(|register| &register.keys).map(|(hash, _)| *hash);
            for hash in hashes.filter(|&hash| tablet.range.contains(hash)) {
                let id = arrival.migration();
                if arrival.is_below_progress(hash) && self.passed.insert((id, hash)) {
                    newly.push((id, arrival.source(), hash));
                }
            }
        }
        newly
    }

    /// Whether a record with this hash is here, or was deleted here since the range arrives.
    pub(crate) fn has_or_deleted(
        &mut self,
        wall: UnixMillis,
        migration: MigrationId,
        hash: KeyHash,
    ) -> bool {
        self.has(wall, hash) || self.deleted.contains(&(migration, hash))
    }

    pub(crate) fn has(&mut self, wall: UnixMillis, hash: KeyHash) -> bool {
        self.look(wall, |worker| worker.collect_hash(TABLE, hash, &mut Vec::new()) == Ok(true))
    }

    /// Ranges whose operations this server executes.
    pub(crate) fn served(&self) -> Vec<HashRange> {
        let tablets = self.worker.store().tablets();
        let served = tablets.iter().filter(|tablet| match tablet.state {
            TabletState::Serving | TabletState::Arriving(_) => true,
            TabletState::Frozen | TabletState::Leaving => false,
        });
        served.map(|tablet| tablet.range).collect()
    }

    /// Records in ranges that this server does not own.
    pub(crate) fn left_behind(&mut self, wall: UnixMillis) -> Vec<HashRange> {
        let tablets = self.worker.store().tablets();
        let mut foreign = vec![HashRange::ALL];
        for tablet in tablets.iter() {
            foreign =
                foreign.iter().flat_map(|range| range.without(tablet.range)).flatten().collect();
        }
        foreign.retain(|&range| !self.look(wall, |worker| worker.is_empty(range)));
        foreign
    }

    /// Every record in the ranges that this server owns, by key.
    pub(crate) fn walk(&mut self, wall: UnixMillis) -> BTreeMap<Vec<u8>, u64> {
        let mut batch = Vec::new();
        for range in self.served() {
            let mut cursor = Some(range.first());
            while let Some(at) = cursor {
                cursor = self.look(wall, |w| w.collect(range, at, WALK_BYTES, &mut batch));
            }
        }
        let records = BatchReader::new(&batch).map(|entry| entry.expect("the batch is ours").entry);
        records
            .filter_map(|entry| match entry.body {
                Body::Object { value, .. } => Some((entry.key.to_vec(), decode(value))),
                Body::Tombstone { .. } => None,
            })
            .collect()
    }

    /// Words in the index of the whole server: records, and tombstones that have not been swept.
    pub(crate) fn words(&mut self, wall: UnixMillis) -> u64 {
        self.look(wall, |worker| {
            worker.counts(HashRange::ALL).iter().map(|&(_, _, records)| u64::from(records)).sum()
        })
    }
}

/// What one step of the walk at the end of a run brings.
const WALK_BYTES: usize = 64 << 10;
