//! Losses through dead servers.
//!
//! A server that dies loses its memory. If it has persisted its log, the next process at its
//! place recovers all of it. Otherwise its ranges are lost for good; for a moving range it
//! depends on the progress of the move. Lost registers are *excused*: they need not be answered
//! any more. An answer must still be right, and everything else goes on as usual.

use crate::collections::RegisterShape;
use crate::failure::{Failure, Rule};
use crate::fleet::ServerFleet;
use crate::workload::Register;
use std::collections::{BTreeMap, BTreeSet};
use store::TabletState;
use types::{HashRange, MigrationId, ServerId};
use wire::control::{MigrationReport, MigrationState};

/// Losses through dead servers.
#[derive(Debug, Default)]
pub(crate) struct Losses {
    /// Dead servers, with their places.
    pub(crate) dead: BTreeMap<ServerId, usize>,
    /// Ranges that certainly died with their owner: a server that serves them serves an old copy.
    gone: Vec<HashRange>,
    /// Ranges of which the coordinator may never learn that their dead owner held them. It moves no
    /// range before that.
    unconfirmed: Vec<HashRange>,
    /// Registers that need not be answered.
    excused: BTreeSet<usize>,
    /// Clients with a flush that failed because its question to a dead coordinator was lost.
    /// Requests behind it on the connection waited for as long.
    stalled: BTreeSet<usize>,
    /// Places with failed disks. Masters ask such a backup again only after a pause.
    pub(crate) failing: BTreeSet<usize>,
    /// Places that were paused or cut off. Masters avoid such a backup for a while as well.
    pub(crate) silent: BTreeSet<usize>,
    /// Number of excused registers that were considered for the final reads.
    tried: usize,
}

/// Number of excused registers that the final reads include.
const EXCUSED_READS: usize = 8;

impl Losses {
    pub(crate) fn is_excused(&self, register: usize) -> bool {
        self.excused.contains(&register)
    }

    /// Returns whether a register is read at the end. Only a few lost registers are read, since
    /// each may take five seconds.
    pub(crate) fn is_worth_reading(&mut self, register: usize) -> bool {
        let is_excused = self.is_excused(register);
        self.tried += usize::from(is_excused);
        !is_excused || self.tried <= EXCUSED_READS
    }

    /// Returns whether a master may have no usable backup for a while: one disk has failed, and
    /// the other backups have failed disks or were silent. Silence alone never takes away the
    /// last backup, but lost messages may silence one of several that a write needs.
    pub(crate) fn may_lack_backups(&self, servers: usize, needed: usize) -> bool {
        let are_out = self.failing.union(&self.silent).count() + 1 >= servers;
        needed > 1 || !self.failing.is_empty() && are_out
    }

    /// Records that requests of this client waited for a coordinator that had died.
    pub(crate) fn record_stalled(&mut self, client: usize) {
        self.stalled.insert(client);
    }

    pub(crate) fn is_stalled(&self, client: usize) -> bool {
        self.stalled.contains(&client)
    }

    /// Returns the migrations that wait for ever: a side has died after the flip, or both sides
    /// have died before its outcome was known. Includes migrations that are queued behind such, and
    /// those of a range whose dead owner may not have confirmed it.
    pub(crate) fn stuck(&self, reports: &[MigrationReport]) -> BTreeSet<MigrationId> {
        let mut stuck: Vec<(MigrationId, HashRange)> = Vec::new();
        // The reports are sorted from newest to oldest.
        for report in reports.iter().rev() {
            let is_dead = |server: ServerId| self.dead.contains_key(&server);
            let is_stuck = match report.state {
                MigrationState::Moving | MigrationState::Releasing => {
                    is_dead(report.source) || is_dead(report.target)
                }
                MigrationState::Preparing => is_dead(report.source) && is_dead(report.target),
                MigrationState::Queued => {
                    let stuck = stuck.iter().map(|(_, range)| *range);
                    let mut blocking = stuck.chain(self.unconfirmed.iter().copied());
                    blocking.any(|range| range.overlaps(report.range))
                }
                MigrationState::Success | MigrationState::Cancelled | MigrationState::Failed => {
                    false
                }
            };
            if is_stuck {
                stuck.push((report.migration, report.range));
            }
        }
        stuck.into_iter().map(|(migration, _)| migration).collect()
    }

    /// Records that a range died with its owner: no other copy of it may be served.
    pub(crate) fn record_gone(&mut self, range: HashRange) {
        self.gone.push(range);
    }

    /// Records that the owner of a range has died, maybe before it confirmed that it held the range.
    pub(crate) fn record_unconfirmed(&mut self, range: HashRange) {
        self.unconfirmed.push(range);
    }

    pub(crate) fn excuse(&mut self, registers: impl IntoIterator<Item = usize>) {
        self.excused.extend(registers);
    }

    /// Excuses the registers of which only the dead source had all data. Pages of a split value are
    /// pulled one by one, so they may be missing where its root has arrived. Only the source could tell
    /// that a page has no elements, also of a value that is divided later.
    pub(crate) fn excuse_not_arrived(
        &mut self,
        source: ServerId,
        servers: &mut ServerFleet,
        registers: &[Register],
    ) {
        for target in servers.iter_mut() {
            let tablets = target.node.store().tablets();
            for tablet in tablets.iter() {
                let TabletState::Arriving(arrival) = &tablet.state else { continue };
                if arrival.source() != source {
                    continue;
                }
                for (number, register) in registers.iter().enumerate() {
                    let mut keys = register.keys.iter().map(|(hash, _)| *hash);
                    let may_have_pages = register.shape != RegisterShape::String;
                    let is_away = keys.any(|hash| {
                        tablet.range.contains(hash)
                            && (may_have_pages
                                || !arrival.is_below_progress(hash)
                                    && !target.inspector.has(register.table, hash, None))
                    });
                    if is_away {
                        self.excused.insert(number);
                    }
                }
            }
        }
    }

    /// Checks that no server serves a range that died with its owner.
    pub(crate) fn check_lost(&self, server: ServerId, served: &[HashRange]) -> Option<Failure> {
        let gone = &self.gone;
        let old = served.iter().find_map(|a| gone.iter().find_map(|b| a.intersection(*b)))?;
        Some(Rule::LostStaysLost.broken(format!("{server} serves {old}, whose owner has died")))
    }
}

/// Returns whether the coordinator does not know the outcome of the flip.
pub(crate) fn is_in_doubt(reports: &[MigrationReport], migration: MigrationId) -> bool {
    let report = reports.iter().find(|report| report.migration == migration);
    report.is_none_or(|report| report.state == MigrationState::Preparing)
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::{Slot, UnixMillis};
    use wire::control::MigrationProgress;

    #[test]
    fn a_move_of_a_range_that_was_never_confirmed_may_stay_queued() {
        let queued = |number, slot| MigrationReport {
            migration: MigrationId(number),
            task: MigrationId(number),
            range: HashRange::of_slots(Slot(slot), Slot(slot)),
            source: ServerId(1),
            target: ServerId(2),
            state: MigrationState::Queued,
            message: String::new(),
            created: UnixMillis(0),
            updated: UnixMillis(0),
            progress: MigrationProgress::default(),
        };
        let reports = [queued(2, 20), queued(1, 10)];
        let mut losses = Losses::default();
        assert!(losses.stuck(&reports).is_empty());
        losses.record_unconfirmed(HashRange::of_slots(Slot(0), Slot(10)));
        assert_eq!(losses.stuck(&reports), [MigrationId(1)].into());
    }
}
