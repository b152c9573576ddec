//! Rollback and absence of the coordinators' store, which is later replaced by its newest version.
//!
//! That a store is old is noticed, not proved (`docs/design/identity.md`): a coordinator accepts
//! it if more than half of the servers that it waits for have heard of nothing newer. The
//! simulator therefore restores a copy only if fewer such servers are left. The coordinator on
//! the copy must change nothing, and its messages must not keep servers from returning to the
//! newest store.
//!
//! Instead of a copy, a coordinator may find an empty folder, and then creates another cluster. That
//! cluster must admit no process with a disk of this one.
//!
//! In runs in which one disk at a time may lose data, a server's folder is rolled back instead.

use super::SimulatedCluster;
use crate::timeline::PlannedEvent;
use std::time::Duration;
use wire::control::HistoryMark;

/// One rollback in this many loses the store instead of restoring an earlier copy.
const MISLAID_ONE_IN: u32 = 6;

impl SimulatedCluster {
    /// Copies the store, or ends the coordinator so that the next one starts on an earlier copy or on
    /// an empty store.
    pub(crate) fn roll_back_store(&mut self) {
        if self.coordinators.is_rolled_back() {
            return;
        }
        if self.timeline.rng.u32(..MISLAID_ONE_IN) == 0 {
            self.timeline.note(format_args!("the store is mislaid"));
            self.coordinators.mislay_store();
        } else if !self.may_roll_back() || self.timeline.rng.u32(..4) == 0 {
            return self.coordinators.copy_store();
        } else {
            self.timeline.note(format_args!("an old copy of the store is restored"));
            self.coordinators.roll_back();
        }
        if let Some(number) = self.coordinators.current() {
            self.end_coordinator(number);
        }
        let until = self.timeline.micros(1_000..700_000);
        self.faults.extend_outages(self.timeline.now + until);
        self.timeline.plan_in(until, PlannedEvent::RestoreStore);
    }

    /// Returns whether too few servers are left that could confirm the copy, because they have
    /// heard of nothing newer.
    fn may_roll_back(&self) -> bool {
        let awaited = self.coordinators.awaited_by_copy(self.timeline.now);
        let Some((awaited, newest)) = awaited else { return false };
        let is_behind = |mark: &Option<HistoryMark>| mark.is_none_or(|it| it.transaction <= newest);
        self.disks.marks().filter(is_behind).count() < awaited
    }

    /// Restores the newest store, as an operator would.
    pub(crate) fn restore_store(&mut self) {
        if !self.coordinators.end_rollback() {
            return;
        }
        self.timeline.note(format_args!("the newest store is restored"));
        self.coordinators
            .of_other_stores()
            .into_iter()
            .for_each(|number| self.end_coordinator(number));
        self.coordinators.drop_copy();
        // Possibly no coordinator has opened the copy yet.
        self.timeline.plan_in(Duration::ZERO, PlannedEvent::Lead);
    }
}
