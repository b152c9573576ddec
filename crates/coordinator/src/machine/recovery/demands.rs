//! Demands of recoveries: the requests that follow from their stages and replica inventories.
//!
//! A demand is sent when it arises, when the server reconnects, and periodically until it is met.

use super::Coordinator;
use super::evidence::{DirectoryQuestion, Evidence, Proof};
use crate::machine::transitions::DEMAND_AGAIN;
use crate::outbox::{Moment, Outbox};
use crate::records::{Part, Recovery, RecoveryStage};
use crate::store::MetaStore;
use std::collections::BTreeSet;
use types::{Instant, OwnershipEpoch, ServerId};
use wire::control::{FromCoordinator, RecoveryPart, RecoverySegment, SEGMENTS_PER_MESSAGE};

/// One demand: the recovery that needs it, the server that must meet it, and its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Wanted {
    pub(super) dead: ServerId,
    pub(super) server: ServerId,
    pub(super) what: What,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum What {
    Fence,
    Directory,
    /// The recovery partition that was assigned under this epoch.
    Part(OwnershipEpoch),
    Free,
}

impl<S: MetaStore> Coordinator<S> {
    /// Sends the demands that are due.
    pub(in crate::machine) fn send_recovery_demands(&mut self, at: Moment, out: &mut Outbox) {
        let wanted = self.wanted();
        self.demanded.retain(|demand, _| wanted.contains(demand));
        for demand in wanted {
            if self.demanded.get(&demand).is_none_or(|due| *due <= at.now) {
                for message in self.messages(demand) {
                    self.send(demand.server, message, out);
                }
                self.demanded.insert(demand, at.now + DEMAND_AGAIN);
            }
        }
    }

    /// Returns the next time at which a recovery can proceed without an event.
    pub(in crate::machine) fn recovery_deadline(&self) -> Option<Instant> {
        let demands = self.demanded.values().copied();
        let leases = self.evidence.values().filter_map(|evidence| evidence.lease_end());
        let refusals = self.refusals.values().copied();
        let is_freeing = |recovery: &&Recovery| recovery.stage == RecoveryStage::Freeing;
        // A permanently absent server need not free anything. Deadlines before the last pass are
        // already accounted for.
        let absences = self.ledger.recoveries().values().any(|r| is_freeing(&r)).then(|| {
            let living = self.ledger.servers().values().filter(|server| !server.fenced);
            let given_up = living.filter_map(|server| self.given_up_at(server.id));
            given_up.filter(|by| *by > self.settled)
        });
        let absences = absences.into_iter().flatten();
        demands.chain(leases).chain(refusals).chain(absences).min()
    }

    /// Makes all demands on a reconnected server due at once.
    pub(in crate::machine) fn demand_of_again(&mut self, server: ServerId) {
        self.demanded.retain(|wanted, _| wanted.server != server);
        // Its replicas can be read again.
        let held = self.evidence.iter().filter(|(_, evidence)| evidence.has_answered(server));
        let held: Vec<ServerId> = held.map(|(&dead, _)| dead).collect();
        for dead in held {
            self.tell_masters(dead);
        }
    }

    /// Drops a dead server's replica inventories, and informs the recovery masters that read from
    /// it.
    pub(in crate::machine) fn forget_holder(&mut self, server: ServerId) {
        let held = self.evidence.iter_mut().filter_map(|(&dead, evidence)| {
            let held = evidence.forget(server);
            held.then_some(dead)
        });
        let held: Vec<ServerId> = held.collect();
        for dead in held {
            self.tell_masters(dead);
        }
    }

    /// Makes the demands on all readers of the log due at once: it may be complete, or readable
    /// elsewhere.
    pub(super) fn tell_masters(&mut self, dead: ServerId) {
        let readers = self.readers_of(dead);
        let is_meant = |wanted: &Wanted| {
            matches!(wanted.what, What::Part(_)) && readers.contains(&wanted.dead)
        };
        self.demanded.retain(|wanted, _| !is_meant(wanted));
    }

    fn wanted(&self) -> BTreeSet<Wanted> {
        let mut all = BTreeSet::new();
        let connected = || self.connections.values().copied().flatten();
        for (&dead, recovery) in self.ledger.recoveries() {
            let Some(evidence) = self.evidence.get(&dead) else { continue };
            let wanted = |server, what| Wanted { dead, server, what };
            let Some(judged) = self.judged(recovery) else {
                let late = connected().filter(|&server| !evidence.has_freed(server));
                all.extend(late.map(|server| wanted(server, What::Free)));
                continue;
            };
            let late = connected().filter(|&server| !evidence.has_answered(server));
            all.extend(late.map(|server| wanted(server, What::Fence)));
            let question = evidence.directory_question(&judged);
            all.extend(question.map(|question| wanted(question.backup, What::Directory)));
            let parts = recovery.parts().iter();
            let parts = parts.filter(|part| self.connection_of(part.master).is_some());
            all.extend(parts.map(|part| wanted(part.master, What::Part(part.epoch))));
        }
        all
    }

    /// Returns the messages of a demand. Empty: it cannot be met at present.
    fn messages(&mut self, Wanted { dead, what, .. }: Wanted) -> Vec<FromCoordinator> {
        let Some(recovery) = self.ledger.recoveries().get(&dead) else { return Vec::new() };
        match what {
            What::Fence => vec![FromCoordinator::Fence { log: dead }],
            What::Free => vec![FromCoordinator::FreeLog { log: dead }],
            What::Directory => {
                let judged = self.judged(recovery);
                let evidence = self.evidence.get(&dead);
                let question = judged.zip(evidence).and_then(|(j, e)| e.directory_question(&j));
                let ask = |DirectoryQuestion { replica, first, .. }| {
                    FromCoordinator::ReadDirectory { log: dead, replica, first }
                };
                question.map(ask).into_iter().collect()
            }
            What::Part(epoch) => {
                let part = recovery.parts().iter().find(|part| part.epoch == epoch).cloned();
                part.map_or_else(Vec::new, |part| self.part_in_messages(dead, part))
            }
        }
    }

    /// Returns the segments of a log, if the log is complete.
    fn segments_of(&self, log: ServerId) -> Option<Vec<RecoverySegment>> {
        let judged = self.judged(self.ledger.recoveries().get(&log)?)?;
        let evidence = self.evidence.get(&log)?;
        (evidence.proof(&judged) == Proof::Whole).then(|| evidence.segments(log, &judged))
    }

    /// Returns the messages that assign a partition. Empty unless all of its logs are complete.
    fn part_in_messages(&mut self, dead: ServerId, part: Part) -> Vec<FromCoordinator> {
        let (logs, keeps) = (self.logs_of_part(dead, &part), self.is_kept(&part));
        let segments = logs.iter().map(|log| self.segments_of(log.dead));
        let Some(segments) = segments.collect::<Option<Vec<_>>>() else { return Vec::new() };
        let segments = segments.concat();
        self.lists += 1;
        let list = (self.ledger.term() << 32) + self.lists;
        let segments_total = segments.len() as u32;
        let Part { range, epoch, tenures, .. } = part;
        let floors = logs.iter().filter_map(|log| self.evidence.get(&log.dead));
        let clock_floor = floors.map(Evidence::clock_floor).max().unwrap_or_default();
        let message = |segments: &[RecoverySegment]| {
            FromCoordinator::Recover(Box::new(RecoveryPart {
                range,
                epoch,
                tenures: tenures.clone(),
                keeps,
                clock_floor,
                logs: logs.clone(),
                list,
                segments_total,
                segments: segments.to_vec(),
            }))
        };
        match segments.is_empty() {
            true => vec![message(&[])],
            false => segments.chunks(SEGMENTS_PER_MESSAGE).map(message).collect(),
        }
    }
}
