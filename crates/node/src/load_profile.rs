//! Load profile of a server, counted periodically: the records of each table for operators, and
//! the load of each slot for the coordinator. The coordinator uses the profile (RAMCloud: *will*)
//! to divide the ranges of a dead server among recovery masters (`docs/design/replication.md`,
//! "Load profiles").

use crate::context::Context;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use store::Expiring;
use types::limits::TABLES_MAX;
use types::{Instant, ReactorId, SLOT_COUNT, Slot, TableId};
use wire::control::{LoadProfile, LogUpdate};

/// Time between the starts of two scans.
const PAUSE: Duration = Duration::from_secs(1);

/// Maximum number of leaves that one step scans, in 50 to 100 us.
const LEAVES: usize = 1024;

/// Time between two steps.
const STEP_PAUSE: Duration = Duration::from_millis(20);

/// Time between two load profiles.
const PROFILE_PAUSE: Duration = Duration::from_secs(5);

/// Load of a record besides its bytes: its fixed replay cost, in log bytes of equal cost.
const RECORD_LOAD: u64 = 256;

/// Results of the last scan.
#[derive(Debug, Default)]
pub(crate) struct KeyCounts {
    /// Number of records, by table.
    records: [AtomicU64; TABLES_MAX],
    /// Number of records with an expiry time that the last expiry scan has met, and their mean
    /// remaining time in milliseconds, by table.
    expiring: [(AtomicU64, AtomicU64); TABLES_MAX],
}

/// A scan in progress, which the first reactor runs in steps for all.
#[derive(Debug, Default)]
pub(crate) struct LoadProfileScan {
    /// Time of the next step.
    next: Instant,
    /// Start of the next scan.
    again: Instant,
    /// Slot of the next step; `None` at the start of a scan.
    slot: Option<Slot>,
    records: [u64; TABLES_MAX],
    /// Load by slot. Empty unless a load profile is due.
    loads: Vec<u64>,
    profile_at: Instant,
}

impl KeyCounts {
    /// Records the result of a complete expiry scan of a table.
    pub(crate) fn note_expiring(&self, table: TableId, met: Expiring) {
        let (records, mean_left) = &self.expiring[usize::from(table.0)];
        records.store(met.records, Ordering::Relaxed);
        let mean = met.left_millis.checked_div(met.records).unwrap_or(0);
        mean_left.store(mean, Ordering::Relaxed);
    }

    /// Returns the number of records of a table that have an expiry time, and their mean
    /// remaining time in milliseconds, as of the last expiry scan.
    pub(crate) fn expiring(&self, table: TableId) -> (u64, u64) {
        let (records, mean_left) = &self.expiring[usize::from(table.0)];
        (records.load(Ordering::Relaxed), mean_left.load(Ordering::Relaxed))
    }

    /// Returns the tables that have records, with the number of records.
    pub(crate) fn tables(&self) -> impl Iterator<Item = (TableId, u64)> {
        let counted = self.records.iter().map(|records| records.load(Ordering::Relaxed));
        let named = counted.enumerate().map(|(table, records)| (TableId(table as u8), records));
        named.filter(|(_, records)| *records > 0)
    }
}

impl LoadProfileScan {
    /// Returns the time of the next step, if a scan is in progress.
    pub(crate) fn next_step(&self) -> Option<Instant> {
        self.slot.is_some().then_some(self.next)
    }

    /// Runs a step of the scan if it is due.
    pub(crate) fn step(&mut self, context: &mut Context<'_>) {
        let (count, now) = (self, context.now);
        if context.reactor != ReactorId(0) || now < count.next {
            return;
        }
        let from = count.slot.unwrap_or_else(|| {
            let makes_profile =
                context.node.durability().is_with_others() && now >= count.profile_at;
            let loads = if makes_profile { vec![0; usize::from(SLOT_COUNT)] } else { Vec::new() };
            let (again, profile_at) = (now + PAUSE, count.profile_at);
            *count = LoadProfileScan { again, profile_at, loads, ..LoadProfileScan::default() };
            Slot(0)
        });
        let slots = count.loads.len();
        assert!(slots == 0 || slots == usize::from(SLOT_COUNT), "a profile has all slots");
        let LoadProfileScan { records, loads, .. } = count;
        let next = context.worker.count_slots(from, LEAVES, |slot, table, counted| {
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
        for (shown, counted) in context.node.key_counts.records.iter().zip(count.records) {
            shown.store(counted, Ordering::Relaxed);
        }
        if !count.loads.is_empty() {
            count.profile_at = now + PROFILE_PAUSE;
            let profile = LoadProfile::of(&std::mem::take(&mut count.loads));
            context.out.control.push(LogUpdate::LoadProfile(profile).into());
        }
    }
}
