//! The collection of completion records that no client can need any more.
//!
//! A walk over all records learns what each client has completed: every record names the first
//! incomplete number of its last request. The next walk drops the records below these numbers, and
//! those of ended leases. It first raises the floors of their slot, in the same atomic step, so
//! that a copy of a request that is still on its way is refused after its record is gone.
//!
//! A reactor may have read the records of a request just before they are dropped, and execute the
//! request in the same turn. So what a walk has learned counts once every reactor has begun
//! another turn: a request that is executed then has been sent by a client after what it names.

use crate::completions::{CompletedRequests, CompletionRecord, FiledUnder, SlotFloors, floors_key};
use std::collections::BTreeMap;
use std::time::Duration;
use store::log::GracePeriod;
use store::{Changes, Key, Need, Record, Worker};
use types::{Instant, KeyHash, LeaseId, Slot, TableId, key_hash};

/// Pause between two walks, and between two steps of a walk.
const WALK_PAUSE: Duration = Duration::from_millis(250);
const STEP_PAUSE: Duration = Duration::from_millis(1);

/// Buckets that a step reads: 20-50 us.
const STEP_BUCKETS: usize = 64;

/// Most records that one atomic step drops.
const DROPPED_MAX: usize = 64;

/// The walk over completion records. All reactors share it and run it in steps.
#[derive(Debug, Default)]
pub(crate) struct CompletionSweep {
    /// Position of the walk; `None` between two walks.
    cursor: Option<KeyHash>,
    next: Instant,
    /// Completed requests that the present walk has met so far.
    learned: CompletedRequests,
    /// Those that the last complete walk has met. They count after the grace period.
    pending: Option<(CompletedRequests, GracePeriod)>,
    /// Those on which the present walk acts.
    known: CompletedRequests,
}

/// A record that is not needed any more.
struct Droppable {
    slot: Slot,
    lease: LeaseId,
    key: Box<[u8]>,
}

impl CompletionSweep {
    /// Returns the time of the next step, if there are completion records.
    pub(crate) fn next_step(&self, worker: &Worker) -> Option<Instant> {
        worker.uses(TableId::COMPLETIONS).then_some(self.next)
    }

    /// Runs a step if it is due. `horizon`: leases below it have ended.
    pub(crate) fn step(&mut self, now: Instant, horizon: LeaseId, worker: &mut Worker) {
        if now < self.next || !worker.uses(TableId::COMPLETIONS) {
            return;
        }
        if self.cursor.is_none() {
            self.begin_walk(horizon, worker);
        }
        let cursor = self.cursor.unwrap_or(KeyHash(0));
        let mut droppable = Vec::new();
        let (learned, known) = (&mut self.learned, &self.known);
        let next =
            worker.own_table(TableId::COMPLETIONS).walk(cursor, STEP_BUCKETS, |key, record| {
                let Some(place) = FiledUnder::parse(key) else { return };
                let Some(completion) = CompletionRecord::parse(record.value.bytes) else { return };
                learned.note(place.lease, &completion);
                if known.cover(place.lease, &completion) {
                    let (slot, lease) = (place.hash.slot(), place.lease);
                    droppable.push(Droppable { slot, lease, key: key.into() });
                }
            });
        for of_slot in droppable.chunk_by(|one, other| one.slot == other.slot) {
            for some in of_slot.chunks(DROPPED_MAX) {
                self.drop_records(some, worker);
            }
        }
        assert!(next.is_none_or(|next| next > cursor), "a walk goes back");
        self.cursor = next;
        self.next = now + if next.is_some() { STEP_PAUSE } else { WALK_PAUSE };
    }

    /// Begins a walk that acts on what the one before has learned.
    fn begin_walk(&mut self, horizon: LeaseId, worker: &Worker) {
        let store = worker.store();
        let is_due = |(_, period): &mut (_, GracePeriod)| store.is_over(period);
        self.known = self.pending.take_if(is_due).map(|(known, _)| known).unwrap_or_default();
        let mut learned = std::mem::take(&mut self.learned);
        learned.horizon = horizon;
        self.pending.get_or_insert_with(|| (learned, store.grace_period()));
    }

    /// Drops these records of one slot, and raises the floors of the slot. Does nothing if that is
    /// not possible now: the next walk meets them again.
    fn drop_records(&self, droppable: &[Droppable], worker: &mut Worker) {
        let Some(Droppable { slot, .. }) = droppable.first() else { return };
        let seed = worker.store().seed().clone();
        let key_of = |bytes| Key { hash: key_hash(&seed, bytes), bytes };
        let floors_bytes = floors_key(*slot);
        let others = droppable.iter().map(|one| key_of(&one.key[..]));
        let keys: Vec<Key<'_>> = [key_of(&floors_bytes[..])].into_iter().chain(others).collect();
        let drop = |records: &[Option<Record<'_>>], changes: &mut Changes<'_>| {
            let before =
                records[0].map_or(Some(SlotFloors::NONE), |it| SlotFloors::parse(it.value.bytes));
            let Some(before) = before else { return };
            let mut floors = BTreeMap::new();
            let mut dropped = Vec::new();
            for (place, (record, one)) in records[1..].iter().zip(droppable).enumerate() {
                let completion = record.and_then(|it| CompletionRecord::parse(it.value.bytes));
                if completion.is_some_and(|completion| self.known.cover(one.lease, &completion)) {
                    let known = self.known.first_incomplete.get(&one.lease);
                    floors.insert(one.lease, known.copied().unwrap_or(0));
                    dropped.push(place + 1);
                }
            }
            let raised = before.raised(self.known.horizon, &floors);
            if let Some(raised) = raised.filter(|_| !dropped.is_empty()) {
                changes.put(0, &raised, None);
                dropped.into_iter().for_each(|place| changes.delete(place));
            }
        };
        // A stall is no reason to try again before the next walk.
        let _ = worker.update(TableId::COMPLETIONS, &keys, Need::Records, drop);
        // No reply depends on this write.
        let _ = worker.take_dependency();
    }
}
