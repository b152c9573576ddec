//! Coverage of a run: which fault has met which step of a protocol.
//!
//! The steps come from the states of the servers' ranges and of the coordinator's migrations. A new
//! state does not compile before it is a step here.

use crate::fleet::ServerFleet;
use crate::named::named;
use crate::settings::Knob;
use std::collections::BTreeSet;
use store::TabletState;
use wire::control::{MigrationReport, MigrationState};

named! {
    /// Step of a protocol that is under way.
    ProtocolStep:
    Frozen, "frozen", "A source has frozen a range, and waits for the outcome of its flip.";
    Leaving, "leaving", "A source answers pulls for a range that it has given away.";
    Arriving, "arriving", "A target serves a range whose records have not all arrived.";
    Recovering, "recovering", "A recovery master replays the log of a dead server.";
    Securing, "securing", "A recovered range still depends on the dead server's log.";
    Queued, "queued", "A migration waits for the end of another one.";
    Preparing, "preparing", "The coordinator has recorded the intent of a migration.";
    Moving, "moving", "The coordinator knows that the target owns the range.";
    Releasing, "releasing", "The source of a migration deletes its copy.";
}

impl ProtocolStep {
    fn of_tablet(state: &TabletState) -> Option<ProtocolStep> {
        match state {
            TabletState::Serving => None,
            TabletState::Frozen => Some(ProtocolStep::Frozen),
            TabletState::Leaving => Some(ProtocolStep::Leaving),
            TabletState::Arriving(_) => Some(ProtocolStep::Arriving),
            TabletState::Recovering(_) => Some(ProtocolStep::Recovering),
            TabletState::Securing(_) => Some(ProtocolStep::Securing),
        }
    }

    fn of_migration(state: MigrationState) -> Option<ProtocolStep> {
        match state {
            MigrationState::Queued => Some(ProtocolStep::Queued),
            MigrationState::Preparing => Some(ProtocolStep::Preparing),
            MigrationState::Moving => Some(ProtocolStep::Moving),
            MigrationState::Releasing => Some(ProtocolStep::Releasing),
            MigrationState::Success | MigrationState::Cancelled | MigrationState::Failed => None,
        }
    }
}

/// Faults whose coverage is recorded: those that begin at a moment.
pub const COVERED_FAULTS: [Knob; 14] = [
    Knob::Link,
    Knob::PairPartition,
    Knob::Pause,
    Knob::Clock,
    Knob::Restart,
    Knob::Takeover,
    Knob::Rollback,
    Knob::Blackout,
    Knob::Partition,
    Knob::Disk,
    Knob::Crash,
    Knob::SlowDisk,
    Knob::Absence,
    Knob::Deaths,
];

/// Pairs of a fault and a step that was under way when the fault began.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FaultCoverage(BTreeSet<(Knob, ProtocolStep)>);

impl FaultCoverage {
    /// Records that a fault begins now, if it is one of [`COVERED_FAULTS`].
    pub(crate) fn record(
        &mut self,
        fault: Knob,
        servers: &ServerFleet,
        migrations: &[MigrationReport],
    ) {
        if !COVERED_FAULTS.contains(&fault) {
            return;
        }
        for server in servers.live() {
            let tablets = server.node.store().tablets();
            let steps = tablets.iter().filter_map(|it| ProtocolStep::of_tablet(&it.state));
            self.0.extend(steps.map(|step| (fault, step)));
        }
        let steps = migrations.iter().filter_map(|it| ProtocolStep::of_migration(it.state));
        self.0.extend(steps.map(|step| (fault, step)));
    }

    /// Returns the pairs in order.
    pub fn pairs(&self) -> impl Iterator<Item = (Knob, ProtocolStep)> {
        self.0.iter().copied()
    }
}
