//! Demands of recoveries: the requests that follow from their stages and replica inventories.
//!
//! A demand is sent when it arises, when the server reconnects, and periodically until it is met.

use super::lineage::{is_kept, logs_of_part};
use super::replica_inventory::{Completeness, ManifestQuestion, ReplicaInventory};
use super::{Recoveries, log_facts};
use crate::configuration::ClusterConfiguration;
use crate::machine::migrations::DEMAND_AGAIN;
use crate::machine::view::ClusterView;
use crate::outbox::Effects;
use crate::records::{AssignedPartition, RecoveryStage};
use std::collections::BTreeSet;
use types::{Instant, OwnershipEpoch, ServerId};
use wire::control::{
    FromCoordinator, LogRequest, RecoveryPartition, RecoveryRequest, RecoverySegment,
    SEGMENTS_PER_MESSAGE,
};

/// One demand: the recovery that needs it, the server that must meet it, and its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RecoveryDemand {
    pub(super) dead: ServerId,
    pub(super) server: ServerId,
    pub(super) kind: DemandKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum DemandKind {
    Fence,
    SegmentManifest,
    /// The recovery partition that was assigned under this epoch.
    Part(OwnershipEpoch),
    Free,
}

impl Recoveries {
    /// Sends the demands that are due.
    pub(in crate::machine) fn send_demands(&mut self, view: ClusterView<'_>, out: &mut Effects) {
        let open = self.open_demands(view);
        self.demanded.retain(|demand, _| open.contains(demand));
        let now = view.at.now;
        for demand in open {
            assert!(view.membership.is_connected(demand.server), "{demand:?} cannot be sent");
            if self.demanded.get(&demand).is_none_or(|due| *due <= now) {
                for message in self.messages(demand, view) {
                    view.membership.send(demand.server, message, out);
                }
                self.demanded.insert(demand, now + DEMAND_AGAIN);
            }
        }
    }

    /// Returns the next time at which a recovery can proceed without an event. Deadlines up to
    /// `reconciled` are already accounted for.
    pub(in crate::machine) fn next_deadline(
        &self,
        reconciled: Instant,
        view: ClusterView<'_>,
    ) -> Option<Instant> {
        let demands = self.demanded.values().copied();
        let leases = self.inventories.values().filter_map(|inventory| inventory.lease_end());
        let refusals = self.refusals.values().copied();
        let mut recoveries = view.configuration.recoveries().values();
        // A permanently absent server need not free anything.
        let absences = recoveries.any(|it| it.stage == RecoveryStage::Freeing).then(|| {
            let living = view.configuration.living();
            let given_up = living.filter_map(|server| view.membership.given_up_at(server.id));
            given_up.filter(move |by| *by > reconciled)
        });
        let absences = absences.into_iter().flatten();
        demands.chain(leases).chain(refusals).chain(absences).min()
    }

    /// Makes all demands on a reconnected server due at once, and asks for its inventories again.
    pub(in crate::machine) fn repeat_demands_on(
        &mut self,
        server: ServerId,
        configuration: &ClusterConfiguration,
    ) {
        self.demanded.retain(|demand, _| demand.server != server);
        self.inventories.values_mut().for_each(|inventory| inventory.reconnected(server));
        // Its replicas can be read again.
        let held = self.inventories.iter().filter(|(_, it)| it.has_answered(server));
        let held: Vec<ServerId> = held.map(|(&dead, _)| dead).collect();
        for dead in held {
            self.notify_masters(dead, configuration);
        }
    }

    /// Drops a dead server's replica inventories, and informs the recovery masters that read from
    /// it.
    pub(in crate::machine) fn forget_holder(
        &mut self,
        server: ServerId,
        configuration: &ClusterConfiguration,
    ) {
        let held = self.inventories.iter_mut().filter_map(|(&dead, inventory)| {
            let held = inventory.forget(server);
            held.then_some(dead)
        });
        let held: Vec<ServerId> = held.collect();
        for dead in held {
            self.notify_masters(dead, configuration);
        }
    }

    /// Makes the demands on all readers of the log due at once: it may be complete, or readable
    /// elsewhere.
    pub(in crate::machine) fn notify_masters(
        &mut self,
        dead: ServerId,
        configuration: &ClusterConfiguration,
    ) {
        let readers = configuration.readers_of(dead);
        let is_meant = |demand: &RecoveryDemand| {
            matches!(demand.kind, DemandKind::Part(_)) && readers.contains(&demand.dead)
        };
        self.demanded.retain(|demand, _| !is_meant(demand));
    }

    fn open_demands(&self, view: ClusterView<'_>) -> BTreeSet<RecoveryDemand> {
        let mut all = BTreeSet::new();
        for (&dead, recovery) in view.configuration.recoveries() {
            let Some(inventory) = self.inventories.get(&dead) else { continue };
            let demand = |server, kind| RecoveryDemand { dead, server, kind };
            let Some(facts) = log_facts(recovery, view) else {
                let late = view.membership.servers().filter(|&it| !inventory.has_freed(it));
                all.extend(late.map(|server| demand(server, DemandKind::Free)));
                continue;
            };
            let late = view.membership.servers().filter(|&it| inventory.is_to_report(it));
            all.extend(late.map(|server| demand(server, DemandKind::Fence)));
            let question = inventory.manifest_question(&facts);
            all.extend(
                question.map(|question| demand(question.backup, DemandKind::SegmentManifest)),
            );
            let parts = recovery.parts().iter();
            let parts = parts.filter(|part| view.membership.is_connected(part.master));
            all.extend(parts.map(|part| demand(part.master, DemandKind::Part(part.epoch))));
        }
        all
    }

    /// Returns the messages of a demand. Empty: it cannot be met at present.
    fn messages(&mut self, demand: RecoveryDemand, view: ClusterView<'_>) -> Vec<FromCoordinator> {
        let RecoveryDemand { dead, kind, .. } = demand;
        let Some(recovery) = view.configuration.recoveries().get(&dead) else { return Vec::new() };
        match kind {
            DemandKind::Fence => vec![LogRequest::Fence { log: dead }.into()],
            DemandKind::Free => vec![LogRequest::FreeLog { log: dead }.into()],
            DemandKind::SegmentManifest => {
                let facts = log_facts(recovery, view);
                let inventory = self.inventories.get(&dead);
                let question = facts.zip(inventory).and_then(|(f, it)| it.manifest_question(&f));
                let ask = |ManifestQuestion { replica, first, .. }| {
                    LogRequest::ReadManifest { log: dead, replica, first }.into()
                };
                question.map(ask).into_iter().collect()
            }
            DemandKind::Part(epoch) => {
                let part = recovery.parts().iter().find(|part| part.epoch == epoch);
                part.map_or_else(Vec::new, |part| self.part_in_messages(dead, part, view))
            }
        }
    }

    /// Returns the segments of a log, if the log is complete.
    fn segments_of(&self, log: ServerId, view: ClusterView<'_>) -> Option<Vec<RecoverySegment>> {
        let facts = log_facts(view.configuration.recoveries().get(&log)?, view)?;
        let inventory = self.inventories.get(&log)?;
        let is_whole = inventory.completeness(&facts) == Completeness::Complete;
        let segments = is_whole.then(|| inventory.segments(log, &facts))?;
        let can_be_read = |it: &RecoverySegment| it.log == log && !it.places.is_empty();
        assert!(segments.iter().all(can_be_read), "a segment of {log} cannot be read");
        Some(segments)
    }

    /// Returns the messages that assign a partition. Empty unless all of its logs are complete.
    fn part_in_messages(
        &mut self,
        dead: ServerId,
        part: &AssignedPartition,
        view: ClusterView<'_>,
    ) -> Vec<FromCoordinator> {
        let logs = logs_of_part(dead, part, view.configuration);
        let keeps = is_kept(part, view.configuration);
        let segments = logs.iter().map(|log| self.segments_of(log.dead, view));
        let Some(segments) = segments.collect::<Option<Vec<_>>>() else { return Vec::new() };
        let segments = segments.concat();
        self.lists += 1;
        assert!(self.lists < 1 << 32, "the numbers of segment lists of a term are used up");
        let list = (self.term << 32) + self.lists;
        let segments_total = segments.len() as u32;
        let floors = logs.iter().filter_map(|log| self.inventories.get(&log.dead));
        let clock_floor = floors.map(ReplicaInventory::clock_floor).max().unwrap_or_default();
        let message = |segments: &[RecoverySegment]| {
            RecoveryRequest::Recover(Box::new(RecoveryPartition {
                range: part.range,
                epoch: part.epoch,
                incarnations: part.incarnations.clone(),
                keeps,
                clock_floor,
                logs: logs.clone(),
                list,
                segments_total,
                segments: segments.to_vec(),
            }))
            .into()
        };
        match segments.is_empty() {
            true => vec![message(&[])],
            false => segments.chunks(SEGMENTS_PER_MESSAGE).map(message).collect(),
        }
    }
}
