//! Priority pulls of one reactor, for the records that its parked operations wait for.

use crate::Node;
use crate::context::Context;
use crate::demands::{Demands, Wait};
use crate::driver::{Driven, DrivenMachines, MachineDriver, Payloads};
use crate::messages::{Payload, Sending, To};
use crate::outgoing::Wake;
use crate::tablets::arrival_of;
use protocols::Ticket;
use protocols::migration::{Added, PriorityEffect, PriorityEvent, PriorityPulls, TargetEvent};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use store::{Arrival, Missing};
use types::{HashRange, Instant, KeyHash, MigrationId, ServerId};
use wire::peer::{PeerMessage, PriorityReply};

/// The reason to pull a record early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EarlyPull {
    /// An operation waits for it.
    Awaited,
    /// It is read often, at both sides of the migration.
    Hinted,
}

/// Number of records that a reactor has requested from one migration's source, from which hints are
/// ignored: four batches of a priority pull. More would delay records that operations wait for.
const HINTED_WAITING_MAX: usize = 64;

/// The state that one reactor keeps for its priority pulls of one migration.
struct EarlyRecords {
    node: Arc<Node>,
    migration: MigrationId,
    arrival: Arc<Arrival>,
    /// Progress of each partition, as last reported to the machine.
    seen: Vec<Option<KeyHash>>,
    partitions: Vec<HashRange>,
    /// Replays that met a busy leaf.
    unfinished: Vec<UnfinishedReplay>,
}

/// A reply of which some records are replayed.
struct UnfinishedReplay {
    ticket: Ticket,
    payload: Payload,
    /// Number of payload bytes already replayed.
    from: usize,
}

impl EarlyRecords {
    /// Returns whether the progress has passed hashes since they were last reported.
    fn is_behind(&self) -> bool {
        let progress = (0..self.seen.len()).map(|place| self.arrival.progress(place as u16));
        !progress.eq(self.seen.iter().copied())
    }

    /// Returns the ranges that the progress has passed since the last call.
    fn passed(&mut self) -> Vec<HashRange> {
        let mut passed = Vec::new();
        for (partition, range) in self.partitions.iter().enumerate() {
            let Some(before) = self.seen[partition] else { continue };
            let progress = self.arrival.progress(partition as u16);
            let last = match progress {
                None => range.last(),
                Some(hash) if hash > before => KeyHash(hash.0 - 1),
                Some(_) => continue,
            };
            self.seen[partition] = progress;
            passed.push(HashRange::new(before, last));
        }
        passed
    }

    /// Replays a reply. Operations wait for it, so it is replayed at once. Returns the event of
    /// its end, unless it met a busy leaf.
    fn replay(
        &mut self,
        UnfinishedReplay { ticket, payload, from }: UnfinishedReplay,
        context: &mut Context<'_>,
    ) -> Option<PriorityEvent> {
        match context.worker.replay(&self.arrival, payload.bytes(), from, usize::MAX) {
            Ok(done) => {
                if let Some(from) = done.next {
                    self.unfinished.push(UnfinishedReplay { ticket, payload, from });
                    return None;
                }
                let added = Added { records: done.records, bytes: done.bytes };
                let (id, event) = (self.migration, TargetEvent::PriorityReplayed { added });
                self.node.change_machines(|it| it.step_target(id, event, context));
                Some(PriorityEvent::Replayed { ticket })
            }
            Err(error) => {
                context.node.replay_warnings.warn(context.now, self.migration, &error);
                Some(PriorityEvent::ReplayFailed { ticket })
            }
        }
    }
}

impl MachineDriver for EarlyRecords {
    type Machine = PriorityPulls;

    fn apply(
        &mut self,
        _: &PriorityPulls,
        effect: PriorityEffect,
        payloads: &mut Payloads,
        context: &mut Context<'_>,
    ) -> Option<PriorityEvent> {
        match effect {
            PriorityEffect::Pull { to, pull } => context.out.peers.push(Sending {
                to: To::Server(to),
                is_priority: true,
                message: PeerMessage::PriorityPull(pull),
                payload: Vec::new(),
            }),
            PriorityEffect::Replay { ticket } => {
                let payload = payloads.take(ticket)?;
                return self.replay(UnfinishedReplay { ticket, payload, from: 0 }, context);
            }
            PriorityEffect::Discard { ticket } => payloads.discard(ticket, context.buffers),
            PriorityEffect::NoteAbsent { table, hash } => self.arrival.note_absent(table, hash),
            PriorityEffect::Wake { table, hash } => {
                context.out.wakes.push(Wake::Record(table, hash));
            }
        }
        None
    }

    /// Resumes replays that met a busy leaf.
    fn poll(&mut self, _: &PriorityPulls, context: &mut Context<'_>) -> Vec<PriorityEvent> {
        let unfinished = std::mem::take(&mut self.unfinished);
        unfinished.into_iter().filter_map(|replay| self.replay(replay, context)).collect()
    }

    fn demands(&self, _: &PriorityPulls) -> Demands {
        let wait = (!self.unfinished.is_empty()).then_some(Wait::Reactors);
        Demands { wait, ..Demands::default() }
    }
}

/// The priority pulls of one reactor, by migration.
#[derive(Default)]
pub(crate) struct PriorityPullDriver {
    pulls: DrivenMachines<MigrationId, EarlyRecords>,
}

impl PriorityPullDriver {
    /// Requests missing records. Returns `false` if they are no longer missing.
    pub(crate) fn pull(
        &mut self,
        missing: &Missing,
        purpose: EarlyPull,
        node: &Arc<Node>,
        context: &mut Context<'_>,
    ) -> bool {
        if !self.know(missing.migration, missing.hashes.first().copied(), node) {
            return false;
        }
        let waiting = self.pulls.get(missing.migration).map_or(0, |it| it.machine.waiting());
        if purpose == EarlyPull::Hinted && waiting >= HINTED_WAITING_MAX {
            return true;
        }
        let (table, hashes) = (missing.table, missing.hashes.clone());
        self.pulls.step(missing.migration, PriorityEvent::Wanted { table, hashes }, context);
        true
    }

    /// Makes this reactor track a migration to this server, if it is in progress.
    pub(crate) fn know(
        &mut self,
        migration: MigrationId,
        hash: Option<KeyHash>,
        node: &Arc<Node>,
    ) -> bool {
        if self.pulls.contains(migration) {
            return true;
        }
        let tablets = node.store().tablets();
        let tablet = hash.and_then(|hash| tablets.at(hash));
        let arrival = tablet.and_then(arrival_of).filter(|it| it.migration() == migration);
        let Some(arrival) = arrival else { return false };
        let machines = node.machines();
        let side = machines.targets.get(migration);
        let Some(intent) = side.and_then(|side| side.machine.intent()) else { return false };
        let partitions = protocols::migration::partitions(&intent.policy, intent.range);
        let early = EarlyRecords {
            node: node.clone(),
            migration,
            arrival: arrival.clone(),
            seen: partitions.iter().map(|range| Some(range.first())).collect(),
            partitions,
            unfinished: Vec::new(),
        };
        let machine = PriorityPulls::new(intent);
        drop(machines);
        node.demands.reactors_missing.fetch_add(1, Ordering::Relaxed);
        self.pulls.begin(migration, || (machine, early));
        true
    }

    /// Handles the answer to a priority pull.
    pub(crate) fn on_reply(
        &mut self,
        from: ServerId,
        reply: PriorityReply,
        payload: Payload,
        context: &mut Context<'_>,
    ) {
        self.pulls.change(reply.migration, |early| {
            let payload = early.payloads.keep(payload, context.buffers);
            early.step(PriorityEvent::Reply { from, reply: Box::new(reply), payload }, context);
        });
    }

    /// Resumes replays that met a busy leaf, and drops completed migrations.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) {
        self.pulls.poll(context);
        let is_over = |early: &Driven<EarlyRecords>| {
            early.machine.is_idle() && early.driver.arrival.is_complete()
        };
        let over = self.pulls.ids(is_over);
        over.iter().for_each(|id| self.pulls.remove(*id));
        let missing =
            context.node.demands.reactors_missing.fetch_sub(over.len(), Ordering::Relaxed);
        assert!(missing >= over.len(), "every migration that a reactor tracks was counted");
    }

    /// Runs the priority pulls that are due.
    pub(crate) fn tick(&mut self, context: &mut Context<'_>) {
        self.pulls.tick(context);
    }

    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.pulls.next_deadline()
    }

    /// Reports the progress since the last call to this reactor's priority pulls.
    pub(crate) fn follow_progress(&mut self, context: &mut Context<'_>) {
        let behind = self.pulls.ids(|early| early.driver.is_behind());
        if !behind.is_empty() {
            context.out.wakes.push(Wake::Progress);
        }
        for id in behind {
            let passed = self.pulls.change(id, |early| early.driver.passed());
            for range in passed.into_iter().flatten() {
                self.pulls.step(id, PriorityEvent::Passed { range }, context);
            }
        }
    }

    /// Returns whether this reactor waits for no migration.
    pub(crate) fn is_idle(&self) -> bool {
        self.pulls.is_empty()
    }
}
