//! Priority pulls of one reactor, for the records that its parked operations wait for.

use crate::Engine;
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
pub(crate) struct Early {
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
    pub(crate) fn passed(&mut self) -> Vec<HashRange> {
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
        self.payloads.insert(ticket, payload);
        Some(ticket)
    }

    fn is_over(&self) -> bool {
        self.machine.is_idle() && self.arrival.is_complete()
    }
}

impl Engine {
    /// Requests records that an operation misses. Returns `false` if they are no longer missing.
    pub fn pull_early(&mut self, now: Instant, table: TableId, missing: &Missing) -> bool {
        if !self.know_early(missing.migration, missing.hashes.first().copied()) {
            return false;
        }
        let hashes = missing.hashes.clone();
        self.drive_early(now, missing.migration, PriorityEvent::Wanted { table, hashes });
        true
    }

    /// Lets a scan wait for the progress of a migration. Returns `false` if it is not in progress.
    pub fn want_progress(&mut self, migration: MigrationId, from: KeyHash) -> bool {
        self.know_early(migration, Some(from))
    }

    /// Makes this reactor track a migration to this server, if it is in progress.
    fn know_early(&mut self, migration: MigrationId, hash: Option<KeyHash>) -> bool {
        if self.early.contains_key(&migration) {
            return true;
        }
        let tablets = self.node.store().tablets();
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
        let machines = self.node.machines();
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
        self.node.reactors_missing.fetch_add(1, Ordering::Relaxed);
        self.early.insert(migration, early);
        true
    }

    /// Passes an event to this reactor's priority pulls, and applies their effects.
    pub(crate) fn drive_early(&mut self, now: Instant, id: MigrationId, event: PriorityEvent) {
        let Some(early) = self.early.get_mut(&id) else { return };
        let mut effects = Outbox::new();
        early.machine.handle(now, event, &mut effects);
        while let Some(effect) = effects.take_first() {
            self.carry_out_early(now, id, effect);
        }
    }

    fn carry_out_early(&mut self, now: Instant, id: MigrationId, effect: PriorityEffect) {
        let Some(early) = self.early.get_mut(&id) else { return };
        match effect {
            PriorityEffect::Pull { to, pull } => self.out.peers.push(Sending {
                to: To::Server(to),
                is_priority: true,
                message: PeerMessage::PriorityPull(pull),
                payload: Vec::new(),
            }),
            PriorityEffect::Replay { ticket } => self.replay_early(now, id, ticket, 0),
            PriorityEffect::Discard { ticket } => {
                early.payloads.remove(&ticket);
            }
            PriorityEffect::NoteAbsent { table, hash } => early.arrival.note_absent(table, hash),
            PriorityEffect::Wake { table, hash } => {
                self.out.wakes.push(Wake::Record(table, hash));
            }
        }
    }

    /// Handles the answer to a priority pull. Operations wait for it, so it is replayed at once.
    pub(crate) fn priority_replied(
        &mut self,
        now: Instant,
        from: ServerId,
        reply: PriorityReply,
        payload: Payload,
    ) {
        let id = reply.migration;
        let Some(early) = self.early.get_mut(&id) else { return };
        let payload = early.keep(payload);
        let event = PriorityEvent::Reply { from, reply: Box::new(reply), payload };
        self.drive_early(now, id, event);
    }

    fn replay_early(&mut self, now: Instant, id: MigrationId, ticket: Ticket, from: usize) {
        let Some(early) = self.early.get_mut(&id) else { return };
        let Some(payload) = early.payloads.get(&ticket) else { return };
        match self.worker.replay(&early.arrival, payload.bytes(), from, usize::MAX) {
            Ok(done) => {
                let added = Added { records: done.records, bytes: done.bytes };
                if let Some(next) = done.next {
                    return early.unfinished.push((ticket, next));
                }
                early.payloads.remove(&ticket);
                self.drive_target(now, id, TargetEvent::PriorityReplayed { added });
                self.drive_early(now, id, PriorityEvent::Replayed { ticket });
            }
            Err(error) => {
                tracing::warn!(migration = %id, %error, "cannot replay a priority pull's reply");
                self.drive_early(now, id, PriorityEvent::ReplayFailed { ticket });
            }
        }
    }

    /// Resumes replays that met a busy leaf, and drops completed migrations.
    pub(crate) fn poll_early(&mut self, now: Instant) {
        let unfinished: Vec<_> = self
            .early
            .iter_mut()
            .flat_map(|(id, early)| {
                let id = *id;
                std::mem::take(&mut early.unfinished)
                    .into_iter()
                    .map(move |(t, from)| (id, t, from))
            })
            .collect();
        for (id, ticket, from) in unfinished {
            self.replay_early(now, id, ticket, from);
        }
        let before = self.early.len();
        self.early.retain(|_, early| !early.is_over());
        self.node.reactors_missing.fetch_sub(before - self.early.len(), Ordering::Relaxed);
    }

    /// Runs the priority pulls that are due.
    pub(crate) fn tick_early(&mut self, now: Instant) {
        let due: Vec<_> = self
            .early
            .iter()
            .filter(|(_, early)| early.machine.next_deadline().is_some_and(|at| at <= now))
            .map(|(id, _)| *id)
            .collect();
        for id in due {
            self.drive_early(now, id, PriorityEvent::Tick);
        }
    }

    pub(crate) fn early_deadline(&self) -> Option<Instant> {
        self.early.values().filter_map(|early| early.machine.next_deadline()).min()
    }
}
