//! How much there is, counted now and then: records by table for those who watch, and the load of
//! each slot for the coordinator, who divides it among others when this server is dead
//! (`docs/design/replication.md`, "Wills").

use super::Engine;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use store::Expiring;
use types::limits::TABLES_MAX;
use types::{Instant, ReactorId, SLOT_COUNT, Slot, TableId};
use wire::control::{ToCoordinator, Will};

/// From the beginning of a count to the beginning of the next one.
const PAUSE: Duration = Duration::from_secs(1);

/// Leaves that one step looks at: 50 to 100 us.
const LEAVES: usize = 1024;

/// Between two steps.
const STEP_PAUSE: Duration = Duration::from_millis(20);

/// Between two wills.
const WILL_PAUSE: Duration = Duration::from_secs(5);

/// So many bytes in the log are replayed in the time that each record takes besides.
const RECORD_LOAD: u64 = 256;

/// What was counted.
#[derive(Debug, Default)]
pub(super) struct Census {
    /// By table, when it was counted last.
    records: [AtomicU64; TABLES_MAX],
    /// By table, records with an expiry that the last walk over the table has met, and the mean of
    /// what was left to them in ms.
    expiring: [(AtomicU64, AtomicU64); TABLES_MAX],
}

/// A count that goes on in steps. The first reactor counts for all.
#[derive(Debug, Default)]
pub(super) struct Count {
    /// When it goes on.
    next: Instant,
    /// When the next one begins.
    again: Instant,
    /// Where it goes on. `None`: it begins.
    slot: Option<Slot>,
    records: [u64; TABLES_MAX],
    /// By slot. Empty unless a will is due.
    loads: Vec<u64>,
    will_at: Instant,
}

impl Census {
    /// A walk over a table is at its end.
    pub(super) fn note_expiring(&self, table: TableId, met: Expiring) {
        let (records, mean_left) = &self.expiring[usize::from(table.0)];
        records.store(met.records, Ordering::Relaxed);
        let mean = met.left_millis.checked_div(met.records).unwrap_or(0);
        mean_left.store(mean, Ordering::Relaxed);
    }

    /// Records of a table that have an expiry, and the mean of what is left to them in ms: as the
    /// last walk over the table has met them.
    pub(super) fn expiring(&self, table: TableId) -> (u64, u64) {
        let (records, mean_left) = &self.expiring[usize::from(table.0)];
        (records.load(Ordering::Relaxed), mean_left.load(Ordering::Relaxed))
    }

    /// Tables that have records, and how many.
    pub(super) fn tables(&self) -> impl Iterator<Item = (TableId, u64)> {
        let counted = self.records.iter().map(|records| records.load(Ordering::Relaxed));
        let named = counted.enumerate().map(|(table, records)| (TableId(table as u8), records));
        named.filter(|(_, records)| *records > 0)
    }
}

impl Count {
    /// When it goes on, if it has begun.
    pub(super) fn next_step(&self) -> Option<Instant> {
        self.slot.is_some().then_some(self.next)
    }
}

impl Engine {
    /// Counts on, if it is time.
    pub(super) fn take_census(&mut self, now: Instant) {
        let count = &mut self.counting;
        if self.reactor != ReactorId(0) || now < count.next {
            return;
        }
        let from = count.slot.unwrap_or_else(|| {
            let makes_will = self.node.replication().is_some() && now >= count.will_at;
            let loads = if makes_will { vec![0; usize::from(SLOT_COUNT)] } else { Vec::new() };
            let (again, will_at) = (now + PAUSE, count.will_at);
            *count = Count { again, will_at, loads, ..Count::default() };
            Slot(0)
        });
        let Count { records, loads, .. } = count;
        let next = self.worker.count_slots(from, LEAVES, |slot, table, counted| {
            records[usize::from(table.0)] += counted.records;
            if let Some(load) = loads.get_mut(usize::from(slot.0)) {
                *load += counted.bytes + RECORD_LOAD * counted.records;
            }
        });
        count.slot = next;
        count.next = if next.is_some() { now + STEP_PAUSE } else { count.again };
        if next.is_some() {
            return;
        }
        for (shown, counted) in self.node.census.records.iter().zip(count.records) {
            shown.store(counted, Ordering::Relaxed);
        }
        if !count.loads.is_empty() {
            count.will_at = now + WILL_PAUSE;
            let will = Will::of(&std::mem::take(&mut count.loads));
            self.out.control.push(ToCoordinator::Will(will));
        }
    }
}
