//! Priority pulls of one reactor, for the records that its parked operations wait for.

use crate::Node;
use crate::context::Context;
use crate::outgoing::{Payload, Sending, To, Wake};
use protocols::migration::{Added, PriorityEffect, PriorityEvent, PriorityPulls, TargetEvent};
use protocols::{Outbox, Ticket};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use store::{Arrival, Missing, TabletState};
use types::{HashRange, Instant, KeyHash, MigrationId, ServerId, TableId};
use wire::peer::{PeerMessage, PriorityReply};

/// The priority pulls of one reactor for one migration.
struct Early {
    machine: PriorityPulls,
    arrival: Arc<Arrival>,
    /// Progress of each partition, as last reported to the machine.
    seen: Vec<Option<KeyHash>>,
    partitions: Vec<HashRange>,
    payloads: BTreeMap<Ticket, Payload>,
    next_ticket: u64,
    /// Payloads with a replay that met a busy leaf, and the offset at which it continues.
    unfinished: Vec<(Ticket, usize)>,
}

impl Early {
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

    fn keep(&mut self, payload: Payload) -> Option<Ticket> {
        if payload.bytes().is_empty() {
            return None;
        }
        self.next_ticket += 1;
        let ticket = Ticket(self.next_ticket);
        let before = self.payloads.insert(ticket, payload);
        assert!(before.is_none(), "a ticket names one payload");
        Some(ticket)
    }

    fn is_over(&self) -> bool {
        self.machine.is_idle() && self.arrival.is_complete()
    }
}

/// The priority pulls of one reactor, by migration.
#[derive(Default)]
pub(crate) struct PriorityPullDriver {
    pulls: BTreeMap<MigrationId, Early>,
}

impl PriorityPullDriver {
    /// Requests records that an operation misses. Returns `false` if they are no longer missing.
    pub(crate) fn pull(
        &mut self,
        table: TableId,
        missing: &Missing,
        context: &mut Context<'_>,
    ) -> bool {
        if !self.know(missing.migration, missing.hashes.first().copied(), context.node) {
            return false;
        }
        let hashes = missing.hashes.clone();
        self.handle(missing.migration, PriorityEvent::Wanted { table, hashes }, context);
        true
    }

    /// Makes this reactor track a migration to this server, if it is in progress.
    pub(crate) fn know(
        &mut self,
        migration: MigrationId,
        hash: Option<KeyHash>,
        node: &Node,
    ) -> bool {
        if self.pulls.contains_key(&migration) {
            return true;
        }
        let tablets = node.store().tablets();
        let tablet = hash.and_then(|hash| tablets.at(hash));
        let arrival = match tablet.map(|tablet| &tablet.state) {
            Some(TabletState::Arriving(arrival)) if arrival.migration() == migration => arrival,
            Some(
                TabletState::Arriving(_)
                | TabletState::Serving
                | TabletState::Frozen
                | TabletState::Leaving
                | TabletState::Recovering(_)
                | TabletState::Securing(_),
            )
            | None => return false,
        };
        let machines = node.machines();
        let side = machines.targets.get(&migration);
        let Some(intent) = side.and_then(|side| side.intent.as_ref()) else { return false };
        let partitions = protocols::migration::partitions(&intent.policy, intent.range);
        let seen = partitions.iter().map(|range| Some(range.first())).collect();
        let early = Early {
            machine: PriorityPulls::new(intent),
            arrival: arrival.clone(),
            seen,
            partitions,
            payloads: BTreeMap::new(),
            next_ticket: 0,
            unfinished: Vec::new(),
        };
        drop(machines);
        node.fleet.reactors_missing.fetch_add(1, Ordering::Relaxed);
        self.pulls.insert(migration, early);
        true
    }

    /// Passes an event to this reactor's priority pulls, and applies their effects.
    pub(crate) fn handle(
        &mut self,
        id: MigrationId,
        event: PriorityEvent,
        context: &mut Context<'_>,
    ) {
        let Some(early) = self.pulls.get_mut(&id) else { return };
        let mut effects = Outbox::new();
        early.machine.handle(context.now, event, &mut effects);
        while let Some(effect) = effects.take_first() {
            self.apply(id, effect, context);
        }
    }

    fn apply(&mut self, id: MigrationId, effect: PriorityEffect, context: &mut Context<'_>) {
        let Some(early) = self.pulls.get_mut(&id) else { return };
        match effect {
            PriorityEffect::Pull { to, pull } => context.out.peers.push(Sending {
                to: To::Server(to),
                is_priority: true,
                message: PeerMessage::PriorityPull(pull),
                payload: Vec::new(),
            }),
            PriorityEffect::Replay { ticket } => self.replay(id, ticket, 0, context),
            PriorityEffect::Discard { ticket } => {
                early.payloads.remove(&ticket);
            }
            PriorityEffect::NoteAbsent { table, hash } => early.arrival.note_absent(table, hash),
            PriorityEffect::Wake { table, hash } => {
                context.out.wakes.push(Wake::Record(table, hash));
            }
        }
    }

    /// Handles the answer to a priority pull. Operations wait for it, so it is replayed at once.
    pub(crate) fn on_reply(
        &mut self,
        from: ServerId,
        reply: PriorityReply,
        payload: Payload,
        context: &mut Context<'_>,
    ) {
        let id = reply.migration;
        let Some(early) = self.pulls.get_mut(&id) else { return };
        let payload = early.keep(payload);
        let event = PriorityEvent::Reply { from, reply: Box::new(reply), payload };
        self.handle(id, event, context);
    }

    fn replay(&mut self, id: MigrationId, ticket: Ticket, from: usize, context: &mut Context<'_>) {
        let Some(early) = self.pulls.get_mut(&id) else { return };
        let Some(payload) = early.payloads.get(&ticket) else { return };
        match context.worker.replay(&early.arrival, payload.bytes(), from, usize::MAX) {
            Ok(done) => {
                let added = Added { records: done.records, bytes: done.bytes };
                if let Some(next) = done.next {
                    return early.unfinished.push((ticket, next));
                }
                early.payloads.remove(&ticket);
                let event = TargetEvent::PriorityReplayed { added };
                context.node.change_machines(|it| it.drive_target(id, event, context));
                self.handle(id, PriorityEvent::Replayed { ticket }, context);
            }
            Err(error) => {
                tracing::warn!(migration = %id, %error, "cannot replay a priority pull's reply");
                self.handle(id, PriorityEvent::ReplayFailed { ticket }, context);
            }
        }
    }

    /// Resumes replays that met a busy leaf, and drops completed migrations.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) {
        let unfinished: Vec<_> = self
            .pulls
            .iter_mut()
            .flat_map(|(id, early)| {
                let id = *id;
                std::mem::take(&mut early.unfinished)
                    .into_iter()
                    .map(move |(t, from)| (id, t, from))
            })
            .collect();
        for (id, ticket, from) in unfinished {
            self.replay(id, ticket, from, context);
        }
        let before = self.pulls.len();
        self.pulls.retain(|_, early| !early.is_over());
        let over = before - self.pulls.len();
        let missing = context.node.fleet.reactors_missing.fetch_sub(over, Ordering::Relaxed);
        assert!(missing >= over, "every migration that a reactor tracks was counted");
    }

    /// Runs the priority pulls that are due.
    pub(crate) fn tick(&mut self, context: &mut Context<'_>) {
        let due: Vec<_> = self
            .pulls
            .iter()
            .filter(|(_, early)| early.machine.next_deadline().is_some_and(|at| at <= context.now))
            .map(|(id, _)| *id)
            .collect();
        for id in due {
            self.handle(id, PriorityEvent::Tick, context);
        }
    }

    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.pulls.values().filter_map(|early| early.machine.next_deadline()).min()
    }

    /// Reports the progress since the last call to this reactor's priority pulls.
    pub(crate) fn follow_progress(&mut self, context: &mut Context<'_>) {
        let mut passed: Vec<(MigrationId, HashRange)> = Vec::new();
        for (id, early) in &mut self.pulls {
            passed.extend(early.passed().into_iter().map(|range| (*id, range)));
        }
        if !passed.is_empty() {
            context.out.wakes.push(Wake::Progress);
        }
        for (id, range) in passed {
            self.handle(id, PriorityEvent::Passed { range }, context);
        }
    }

    /// Returns whether this reactor waits for no migration.
    pub(crate) fn is_idle(&self) -> bool {
        self.pulls.is_empty()
    }
}
