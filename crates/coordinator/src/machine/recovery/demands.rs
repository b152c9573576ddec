//! What recoveries demand of whom, as it follows from their stages and from what was heard.
//!
//! A demand is sent at once when it arises, when the server comes back, and again until it is met.

use super::Coordinator;
use super::evidence::{DirectoryQuestion, Proof};
use crate::machine::transitions::DEMAND_AGAIN;
use crate::outbox::{Moment, Outbox};
use crate::records::{Part, Recovery, RecoveryStage};
use crate::store::MetaStore;
use std::collections::{BTreeMap, BTreeSet};
use types::{Instant, OwnershipEpoch, ServerId};
use wire::control::{
    FromCoordinator, RecoveryLog, RecoveryPart, RecoverySegment, SEGMENTS_PER_MESSAGE,
};

/// One demand: for whose recovery, of whom, what.
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
    /// The part that was handed out under this epoch.
    Part(OwnershipEpoch),
    Free,
}

impl<S: MetaStore> Coordinator<S> {
    /// Sends what is due.
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

    /// When time alone lets a recovery go on.
    pub(in crate::machine) fn recovery_deadline(&self) -> Option<Instant> {
        let demands = self.demanded.values().copied();
        let leases = self.evidence.values().filter_map(|evidence| evidence.lease_end());
        let refusals = self.refusals.values().copied();
        let is_freeing = |recovery: &&Recovery| recovery.stage == RecoveryStage::Freeing;
        // Who stays away need not free anything.
        let absences = self.ledger.recoveries().values().any(|r| is_freeing(&r)).then(|| {
            let living = self.ledger.servers().values().filter(|server| !server.fenced);
            living.filter_map(|server| self.given_up_at(server.id))
        });
        let absences = absences.into_iter().flatten();
        demands.chain(leases).chain(refusals).chain(absences).min()
    }

    /// What is demanded of a server is sent at once: it has come back.
    pub(in crate::machine) fn demand_of_again(&mut self, server: ServerId) {
        self.demanded.retain(|wanted, _| wanted.server != server);
        // What it holds can be read again.
        for (&dead, evidence) in &self.evidence {
            if evidence.has_answered(server) {
                recall_parts(&mut self.demanded, dead);
            }
        }
    }

    /// Nothing that a dead server said counts any more, and who reads from it is told.
    pub(in crate::machine) fn forget_holder(&mut self, server: ServerId) {
        for (&dead, evidence) in &mut self.evidence {
            if evidence.forget(server) {
                recall_parts(&mut self.demanded, dead);
            }
        }
    }

    /// The log may be whole, or read from elsewhere: who has a part of it is told at once.
    pub(super) fn tell_masters(&mut self, dead: ServerId) {
        recall_parts(&mut self.demanded, dead);
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

    /// The demand in words. Nothing: it cannot be met for the time being.
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
                let segments = self.segments_of(recovery);
                match part.zip(segments) {
                    Some((part, segments)) => self.part_in_messages(dead, part, segments),
                    None => Vec::new(),
                }
            }
        }
    }

    /// The segments of a log that is whole.
    fn segments_of(&self, recovery: &Recovery) -> Option<Vec<RecoverySegment>> {
        let judged = self.judged(recovery)?;
        let evidence = self.evidence.get(&recovery.dead)?;
        (evidence.proof(&judged) == Proof::Whole).then(|| evidence.segments(recovery.dead, &judged))
    }

    fn part_in_messages(
        &mut self,
        dead: ServerId,
        part: Part,
        segments: Vec<RecoverySegment>,
    ) -> Vec<FromCoordinator> {
        self.lists += 1;
        let Part { range, epoch, tenures, .. } = part;
        let old_tenures = self.tablet_around(range).tenures.clone();
        let list = (self.ledger.term() << 32) + self.lists;
        let segments_total = segments.len() as u32;
        let message = |segments: &[RecoverySegment]| {
            let logs = vec![RecoveryLog { dead, old_tenures: old_tenures.clone() }];
            let (tenures, segments) = (tenures.clone(), segments.to_vec());
            let part = RecoveryPart {
                range,
                epoch,
                tenures,
                keeps: false,
                logs,
                list,
                segments_total,
                segments,
            };
            FromCoordinator::Recover(Box::new(part))
        };
        match segments.is_empty() {
            true => vec![message(&[])],
            false => segments.chunks(SEGMENTS_PER_MESSAGE).map(message).collect(),
        }
    }
}

/// Makes the parts of a log due.
fn recall_parts(demanded: &mut BTreeMap<Wanted, Instant>, dead: ServerId) {
    demanded.retain(|wanted, _| wanted.dead != dead || !matches!(wanted.what, What::Part(_)));
}
