//! The side logs of one worker: which there are, when they end, and the order in which their
//! bytes are sent.

use super::tablets::{Tablet, TabletMap, TabletState};
use crate::log::{Backlog, Log, Reservation, SideLog, SideLogKind, Unsaved};
use std::sync::Arc;
use types::MigrationId;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SideLogPurpose {
    /// Records of a migration.
    Migration(MigrationId),
    /// Recovered records that the dead server's log still holds durably.
    Recoveries,
    /// Recovered records that the dead server's log may lose. They must be durable here before a
    /// client sees them.
    Divergent,
}

/// Side logs of one worker.
#[derive(Default)]
pub(super) struct SideLogs {
    /// One per migration with replayed but unspliced records, and up to two for recoveries.
    open: Vec<(SideLogPurpose, SideLog)>,
    /// Segments of spliced side logs that are not completely replicated.
    spliced: Backlog,
    /// Set if recovered records that are durable elsewhere wait while there is enough memory.
    keeps_recovered_back: bool,
}

impl SideLogs {
    /// Returns the side log of this purpose, and opens it on first use. The segments of a
    /// migration come from its reservation, if it has one.
    pub(super) fn get_or_open(
        &mut self,
        purpose: SideLogPurpose,
        reservation: Option<&Arc<Reservation>>,
        log: &Arc<Log>,
    ) -> &mut SideLog {
        let at = self.position(purpose).unwrap_or_else(|| {
            let kind = match purpose {
                SideLogPurpose::Migration(_) => SideLogKind::Arriving(reservation.cloned()),
                SideLogPurpose::Recoveries => SideLogKind::Recovered,
                SideLogPurpose::Divergent => SideLogKind::Divergent,
            };
            debug_assert!(self.position(purpose).is_none(), "two side logs of {purpose:?}");
            self.open.push((purpose, log.side_log(kind)));
            self.open.len() - 1
        });
        &mut self.open[at].1
    }

    /// Splices the side log of a migration into the log.
    pub(super) fn splice(&mut self, migration: MigrationId) {
        if let Some(at) = self.position(SideLogPurpose::Migration(migration)) {
            self.open.swap_remove(at).1.splice(&mut self.spliced);
        }
    }

    /// Ends the side logs that the new tablets do not need.
    pub(super) fn adopt_tablets(&mut self, tablets: &TabletMap) {
        self.end_recoveries(tablets);
        self.end_arrivals(tablets);
    }

    /// Sets whether recovered records that are durable elsewhere wait while there is enough
    /// memory.
    pub(super) fn keep_recovered_back(&mut self, keeps: bool) {
        self.keeps_recovered_back = keeps;
    }

    /// Offers the unsent bytes of spliced side logs to `save`.
    #[inline]
    pub(super) fn hand_out_spliced(
        &mut self,
        log: &Log,
        save: &mut impl FnMut(Unsaved<'_>) -> bool,
    ) {
        self.spliced.hand_out_spliced(log, save);
    }

    /// Offers the unsent bytes of the open side logs to `save`.
    #[inline]
    pub(super) fn hand_out_open(&mut self, log: &Log, save: &mut impl FnMut(Unsaved<'_>) -> bool) {
        for (purpose, side_log) in &mut self.open {
            let keeps_back = match purpose {
                SideLogPurpose::Migration(_) => true,
                SideLogPurpose::Recoveries => self.keeps_recovered_back,
                SideLogPurpose::Divergent => false,
            };
            // Unsent segments delay the release of memory: dead entries free nothing meanwhile.
            if !keeps_back || log.is_low() {
                side_log.hand_out(save);
            }
        }
        self.open.retain(|(purpose, side_log)| match purpose {
            SideLogPurpose::Migration(_) => true,
            SideLogPurpose::Recoveries | SideLogPurpose::Divergent => !side_log.is_idle(),
        });
    }

    /// Closes the side logs of recoveries when no range is recovering any more: their last
    /// segments become ordinary ones.
    fn end_recoveries(&mut self, tablets: &TabletMap) {
        let is_recovering = |tablet: &Tablet| matches!(tablet.state, TabletState::Recovering(_));
        if tablets.iter().any(is_recovering) {
            return;
        }
        for (purpose, side_log) in &mut self.open {
            match purpose {
                SideLogPurpose::Recoveries | SideLogPurpose::Divergent => side_log.end(),
                SideLogPurpose::Migration(_) => {}
            }
        }
    }

    /// Splices the side logs of migrations that have ended, however they ended.
    fn end_arrivals(&mut self, tablets: &TabletMap) {
        let arrives = |migration: MigrationId, tablet: &Tablet| matches!(&tablet.state, TabletState::Arriving(it) if it.migration() == migration);
        let is_over = |(purpose, _): &mut (SideLogPurpose, SideLog)| match *purpose {
            SideLogPurpose::Migration(migration) => {
                !tablets.iter().any(|tablet| arrives(migration, tablet))
            }
            SideLogPurpose::Recoveries | SideLogPurpose::Divergent => false,
        };
        for (_, side_log) in self.open.extract_if(.., is_over) {
            side_log.splice(&mut self.spliced);
        }
    }

    fn position(&self, purpose: SideLogPurpose) -> Option<usize> {
        self.open.iter().position(|(known, _)| *known == purpose)
    }
}
