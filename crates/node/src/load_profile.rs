//! Load profile of a server, counted periodically: the records of each table for operators, and
//! the load of each slot for the coordinator. The coordinator uses the profile (RAMCloud: *will*)
//! to divide the ranges of a dead server among recovery masters (`docs/design/replication.md`,
//! "Load profiles").

use crate::context::Context;
use std::time::Duration;
use types::limits::TABLES_MAX;
use types::{Instant, ReactorId, SLOT_COUNT, Slot};
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
        context.node.key_counts.note_records(&count.records);
        if !count.loads.is_empty() {
            count.profile_at = now + PROFILE_PAUSE;
            let profile = LoadProfile::of(&std::mem::take(&mut count.loads));
            context.out.control.push(LogUpdate::LoadProfile(profile).into());
        }
    }
}
