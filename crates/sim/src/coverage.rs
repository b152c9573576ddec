//! Coverage of a run: which fault has met which step of a protocol.
//!
//! The steps come from the states of the servers' ranges, and of the coordinator's migrations and
//! recoveries: a new state does not compile before it is a step here. The steps of replication and
//! failure detection are conditions of a server.

use crate::coordinators::Coordinators;
use crate::fleet::ServerFleet;
use crate::named::named;
use crate::servers::SimulatedServer;
use crate::settings::Knob;
use std::collections::BTreeSet;
use store::TabletState;
use store::log::Among;
use types::Instant;
use wire::control::{MigrationState, RecoveryState};

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
    Collecting, "collecting", "Backups report their replicas of a dead server's log.";
    ReadingManifest, "reading-manifest", "A backup delivers the manifest of a dead server's log.";
    ManifestMissing, "manifest-missing", "No connected backup has the manifest of a dead server.";
    SegmentsMissing, "segments-missing", "No connected backup has some segment of a dead server.";
    AwaitingLease, "awaiting-lease", "The lease of a dead server may not have ended.";
    AwaitingServers, "awaiting-servers", "No server can take the ranges of a dead server.";
    Assigned, "assigned", "Recovery masters have been told to recover a dead server's ranges.";
    AwaitingMigrations, "awaiting-migrations", "A migration still needs a dead server's log.";
    FreeingLog, "freeing-log", "Backups free their replicas of a recovered log.";
    Unacknowledged, "unacknowledged", "A master has sent writes that not all backups have.";
    LackingReplicas, "lacking-replicas", "A segment has fewer replicas than configured.";
    Unleased, "unleased", "A server has no read lease.";
    Absent, "absent", "A server is not connected to the coordinator.";
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

    fn of_recovery(state: RecoveryState) -> ProtocolStep {
        match state {
            RecoveryState::Collecting => ProtocolStep::Collecting,
            RecoveryState::ReadingManifest => ProtocolStep::ReadingManifest,
            RecoveryState::ManifestMissing => ProtocolStep::ManifestMissing,
            RecoveryState::SegmentsMissing => ProtocolStep::SegmentsMissing,
            RecoveryState::WaitingForLease => ProtocolStep::AwaitingLease,
            RecoveryState::WaitingForServers => ProtocolStep::AwaitingServers,
            RecoveryState::Recovering => ProtocolStep::Assigned,
            RecoveryState::WaitingForMigrations => ProtocolStep::AwaitingMigrations,
            RecoveryState::Freeing => ProtocolStep::FreeingLog,
        }
    }

    /// Returns the steps of replication and failure detection that are under way at a server.
    fn of_server(server: &SimulatedServer, now: Instant) -> impl Iterator<Item = ProtocolStep> {
        let durability = server.node.durability();
        let log = server.node.store().log();
        let is_with_others = durability.is_with_others();
        let steps = [
            (ProtocolStep::Unacknowledged, log.unacknowledged(Among::Writes).is_some()),
            (ProtocolStep::LackingReplicas, durability.under_replicated() > 0),
            (ProtocolStep::Unleased, !durability.is_leased(now)),
        ];
        let steps =
            steps.into_iter().filter(move |(_, is_under_way)| is_with_others && *is_under_way);
        let absent = (!server.link.is_connected).then_some(ProtocolStep::Absent);
        steps.map(|(step, _)| step).chain(absent)
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
        coordinators: &Coordinators,
        now: Instant,
    ) {
        if !COVERED_FAULTS.contains(&fault) {
            return;
        }
        for server in servers.live() {
            let tablets = server.node.store().tablets();
            let steps = tablets.iter().filter_map(|it| ProtocolStep::of_tablet(&it.state));
            let steps = steps.chain(ProtocolStep::of_server(server, now));
            self.0.extend(steps.map(|step| (fault, step)));
        }
        let (migrations, recoveries) = (coordinators.reports(), coordinators.recoveries());
        let steps = migrations.iter().filter_map(|it| ProtocolStep::of_migration(it.state));
        let steps = steps.chain(recoveries.iter().map(|it| ProtocolStep::of_recovery(it.state)));
        self.0.extend(steps.map(|step| (fault, step)));
    }

    /// Returns the pairs in order.
    pub fn pairs(&self) -> impl Iterator<Item = (Knob, ProtocolStep)> {
        self.0.iter().copied()
    }
}
