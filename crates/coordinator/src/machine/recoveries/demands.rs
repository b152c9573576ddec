//! Demands of recoveries: the requests that follow from their stages and replica inventories.
//!
//! A demand is sent when it arises, when the server reconnects, and periodically until it is met.
//! The demand of a recovery partition contains the segments of its logs, and is by far the longest.
//! Therefore a recovery master is given few partitions at a time, and a list is sent again only if it has
//! changed, or after a long time. Otherwise the lists of a large log would exceed what a control
//! link queues, and nothing behind them would ever arrive.

use super::lineage::{is_kept, logs_of_part};
use super::open_questions::OpenQuestions;
use super::replica_inventory::{ManifestQuestion, ReplicaInventory};
use super::{Recoveries, log_facts};
use crate::configuration::ClusterConfiguration;
use crate::machine::migrations::DEMAND_AGAIN;
use crate::machine::view::ClusterView;
use crate::outbox::Effects;
use crate::records::{AssignedPartition, RecoveryStage};
use std::collections::BTreeMap;
use std::time::Duration;
use types::{Instant, OwnershipEpoch, ServerId};
use wire::control::{
    FromCoordinator, LogRequest, RecoveryPartition, RecoveryRequest, RecoverySegment,
    SEGMENTS_PER_MESSAGE,
};
use wire::frame::MESSAGE_BYTES_MAX;

/// Most recovery partitions that a master is given and has not replayed. It replays four at a
/// time, so as many wait at the master while the next ones are on their way.
pub(in crate::machine) const PARTS_GIVEN_MAX: usize = 8;

/// Interval between two sends of an unchanged list. The master needs minutes for a long one, which
/// is lost only with its connection.
const LIST_AGAIN: Duration = Duration::from_secs(10);

/// Most messages with segments to one master in each [`LISTING_TIME`]. A longer list is sent alone.
const LISTED_MESSAGES_MAX: usize = 8;
/// Most segments listed to one master in each [`LISTING_TIME`].
pub(in crate::machine) const LISTED_SEGMENTS_MAX: usize =
    LISTED_MESSAGES_MAX * SEGMENTS_PER_MESSAGE;
/// Upper bound of the bytes of these segments. A control link must queue more.
pub const LISTED_BYTES_MAX: usize = LISTED_MESSAGES_MAX * MESSAGE_BYTES_MAX;
/// Time in which a master reads that much at any usual speed: its lists have 31 bytes per segment.
const LISTING_TIME: Duration = Duration::from_secs(1);

/// Number of times for which a question about a manifest is sent before another backup is asked.
const MANIFEST_QUESTIONS: u32 = 2;

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

impl DemandKind {
    /// Returns whether every connected server has to answer.
    fn is_question(self) -> bool {
        match self {
            DemandKind::Fence | DemandKind::Free => true,
            DemandKind::SegmentManifest | DemandKind::Part(_) => false,
        }
    }
}

/// The last send of a demand that is open. A list may have been put off instead.
#[derive(Clone, Copy, Debug)]
pub(super) struct SentDemand {
    /// Time at which the demand is sent again.
    due: Instant,
    /// Number of the newest list of segments, for a recovery partition.
    list: Option<u64>,
    /// Number of times for which the demand was sent.
    times: u32,
}

/// The segments that were listed to one recovery master.
#[derive(Clone, Copy, Debug)]
pub(super) struct Listing {
    /// Time at which the count begins anew.
    until: Instant,
    segments: usize,
}

impl Recoveries {
    /// Sends the demands that are due.
    pub(in crate::machine) fn send_demands(&mut self, view: ClusterView<'_>, out: &mut Effects) {
        self.leave_unanswered(view);
        self.assess(view);
        let now = view.at.now;
        let open = self.open_demands(view);
        self.demanded.retain(|demand, _| open.contains_key(demand));
        self.listings.retain(|_, listing| listing.until > now);
        let is_due = |demand: &RecoveryDemand, list: &Option<u64>| {
            let sent = self.demanded.get(demand);
            sent.is_none_or(|sent| sent.due <= now || sent.list != *list)
        };
        let mut due: BTreeMap<RecoveryDemand, Option<u64>> =
            open.into_iter().filter(|(demand, list)| is_due(demand, list)).collect();
        due.extend(self.take_questions(view).into_iter().map(|demand| (demand, None)));
        for (demand, list) in due {
            assert!(view.membership.is_connected(demand.server), "{demand:?} cannot be sent");
            let due = match list {
                Some(list) => self.send_part(demand, list, view, out),
                None => self.send_request(demand, view, out),
            };
            assert!(due > now, "{demand:?} is sent without end");
            if !demand.kind.is_question() {
                let times = self.demanded.get(&demand).map_or(0, |sent| sent.times) + 1;
                self.demanded.insert(demand, SentDemand { due, list, times });
            }
        }
    }

    /// Returns the questions for all connected servers that are due.
    fn take_questions(&mut self, view: ClusterView<'_>) -> Vec<RecoveryDemand> {
        let connected = view.membership.connected();
        let mut due = Vec::new();
        for (&dead, recovery) in view.configuration.recoveries() {
            let Some(inventory) = self.inventories.get(&dead) else { continue };
            let Some(questions) = self.questions.get_mut(&dead) else { continue };
            let is_freeing = recovery.stage == RecoveryStage::Freeing;
            let kind = if is_freeing { DemandKind::Free } else { DemandKind::Fence };
            questions.follow(is_freeing, inventory, connected);
            let servers = questions.take_due(view.at.now, DEMAND_AGAIN);
            due.extend(servers.into_iter().map(|server| RecoveryDemand { dead, server, kind }));
        }
        due
    }

    /// Gives up for now the questions about manifests that were repeated in vain.
    fn leave_unanswered(&mut self, view: ClusterView<'_>) {
        let now = view.at.now;
        let is_over = |(demand, sent): &(&RecoveryDemand, &SentDemand)| {
            demand.kind == DemandKind::SegmentManifest
                && sent.due <= now
                && sent.times >= MANIFEST_QUESTIONS
        };
        let over = self.demanded.iter().filter(is_over).map(|(&demand, _)| demand);
        for demand in over.collect::<Vec<_>>() {
            self.demanded.remove(&demand);
            let recovery = view.configuration.recoveries().get(&demand.dead);
            if let Some(facts) = recovery.and_then(|recovery| log_facts(recovery, view))
                && let Some(inventory) = self.inventories.get_mut(&demand.dead)
                && let Some(question) = inventory.manifest_question(&facts)
                && question.backup == demand.server
            {
                inventory.leave_unanswered(question, &facts);
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
        let questions = self.questions.values().filter_map(OpenQuestions::next);
        let demands = self.demanded.values().map(|sent| sent.due).chain(questions);
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
    pub(in crate::machine) fn repeat_demands_on(&mut self, server: ServerId) {
        self.demanded.retain(|demand, _| demand.server != server);
        self.questions.values_mut().for_each(|questions| questions.repeat_to(server));
        // Nothing is queued on a new connection.
        self.listings.remove(&server);
        self.inventories.values_mut().for_each(|inventory| inventory.reconnected(server));
    }

    /// Drops a dead server's replica inventories.
    pub(in crate::machine) fn forget_holder(&mut self, server: ServerId) {
        self.inventories.values_mut().for_each(|inventory| inventory.forget(server));
    }

    /// Returns the open demands, except for the questions for all connected servers; those of
    /// recovery partitions with the number of their list.
    fn open_demands(&self, view: ClusterView<'_>) -> BTreeMap<RecoveryDemand, Option<u64>> {
        let mut all = BTreeMap::new();
        let mut parts: Vec<(ServerId, &AssignedPartition)> = Vec::new();
        for (&dead, recovery) in view.configuration.recoveries() {
            let Some(inventory) = self.inventories.get(&dead) else { continue };
            let Some(facts) = log_facts(recovery, view) else { continue };
            let kind = DemandKind::SegmentManifest;
            let question = inventory.manifest_question(&facts);
            let server = question.map(|question| question.backup);
            all.extend(server.map(|server| (RecoveryDemand { dead, server, kind }, None)));
            let connected =
                recovery.parts().iter().filter(|part| view.membership.is_connected(part.master));
            parts.extend(connected.map(|part| (dead, part)));
        }
        parts.sort_by_key(|(_, part)| part.epoch);
        all.extend(self.parts_to_give(&parts, view.configuration));
        all
    }

    /// Returns the demands of the partitions that each master shall know: the first ones in order
    /// of their epochs, because it replays them in this order. A partition of an incomplete log
    /// cannot be recovered yet and keeps no other one back.
    fn parts_to_give(
        &self,
        parts: &[(ServerId, &AssignedPartition)],
        configuration: &ClusterConfiguration,
    ) -> Vec<(RecoveryDemand, Option<u64>)> {
        assert!(parts.is_sorted_by_key(|(_, part)| part.epoch), "partitions are out of order");
        let mut given: BTreeMap<ServerId, usize> = BTreeMap::new();
        let mut demands = Vec::new();
        for &(dead, part) in parts {
            let count = given.entry(part.master).or_default();
            if *count < PARTS_GIVEN_MAX
                && let Some(list) = self.list_of(dead, part, configuration)
            {
                *count += 1;
                let kind = DemandKind::Part(part.epoch);
                demands.push((RecoveryDemand { dead, server: part.master, kind }, Some(list)));
            }
        }
        demands
    }

    /// Returns the number of the newest list of a partition. `None`: one of its logs is incomplete.
    fn list_of(
        &self,
        dead: ServerId,
        part: &AssignedPartition,
        configuration: &ClusterConfiguration,
    ) -> Option<u64> {
        let logs = logs_of_part(dead, part, configuration);
        let list = |log: ServerId| Some(self.inventories.get(&log)?.listed()?.number);
        let lists = logs.iter().map(|log| list(log.dead)).collect::<Option<Vec<u64>>>()?;
        // Each new list of a log has a higher number than all earlier ones of any log.
        lists.into_iter().max()
    }

    /// Sends the request of a demand without a list. Returns when it is due again.
    fn send_request(
        &self,
        demand: RecoveryDemand,
        view: ClusterView<'_>,
        out: &mut Effects,
    ) -> Instant {
        if let Some(message) = self.request(demand, view) {
            view.membership.send(demand.server, message, out);
        }
        view.at.now + DEMAND_AGAIN
    }

    /// Returns the request of a demand without a list.
    fn request(&self, demand: RecoveryDemand, view: ClusterView<'_>) -> Option<FromCoordinator> {
        let RecoveryDemand { dead, kind, .. } = demand;
        match kind {
            DemandKind::Fence => Some(LogRequest::Fence { log: dead }.into()),
            DemandKind::Free => Some(LogRequest::FreeLog { log: dead }.into()),
            DemandKind::SegmentManifest => {
                let facts = log_facts(view.configuration.recoveries().get(&dead)?, view)?;
                let question = self.inventories.get(&dead)?.manifest_question(&facts)?;
                let ManifestQuestion { replica, first, .. } = question;
                Some(LogRequest::ReadManifest { log: dead, replica, first }.into())
            }
            DemandKind::Part(epoch) => unreachable!("the partition of {epoch} has a list"),
        }
    }

    /// Sends a recovery partition with its list, unless too much was listed to its master just now.
    /// Returns when it is due again.
    fn send_part(
        &mut self,
        demand: RecoveryDemand,
        list: u64,
        view: ClusterView<'_>,
        out: &mut Effects,
    ) -> Instant {
        let now = view.at.now;
        let RecoveryDemand { dead, server, kind } = demand;
        let recovery = view.configuration.recoveries().get(&dead);
        let mut parts = recovery.into_iter().flat_map(|recovery| recovery.parts());
        let part = parts.find(|part| kind == DemandKind::Part(part.epoch));
        let part = part.expect("an open demand has its partition");
        let logs = logs_of_part(dead, part, view.configuration);
        let inventories = || logs.iter().filter_map(|log| self.inventories.get(&log.dead));
        let count = inventories().filter_map(|it| it.listed()).map(|it| it.segments.len()).sum();
        let listing = self.listings.get(&server).copied();
        let listing = listing.unwrap_or(Listing { until: now + LISTING_TIME, segments: 0 });
        if listing.segments > 0 && listing.segments + count > LISTED_SEGMENTS_MAX {
            return listing.until;
        }
        let listed = inventories().filter_map(|it| it.listed()).flat_map(|it| &it.segments);
        let segments: Vec<RecoverySegment> = listed.cloned().collect();
        assert_eq!(segments.len(), count, "a list of {dead} has another length than was counted");
        let clock_floor = inventories().map(ReplicaInventory::clock_floor).max();
        let message = |segments: &[RecoverySegment]| {
            RecoveryRequest::Recover(Box::new(RecoveryPartition {
                range: part.range,
                epoch: part.epoch,
                incarnations: part.incarnations.clone(),
                keeps: is_kept(part, view.configuration),
                clock_floor: clock_floor.unwrap_or_default(),
                logs: logs.clone(),
                list,
                segments_total: count as u32,
                segments: segments.to_vec(),
            }))
        };
        match segments.is_empty() {
            true => view.membership.send(server, message(&[]), out),
            false => segments
                .chunks(SEGMENTS_PER_MESSAGE)
                .for_each(|some| view.membership.send(server, message(some), out)),
        }
        let segments = listing.segments + count;
        self.listings.insert(server, Listing { segments, ..listing });
        now + LIST_AGAIN
    }
}
