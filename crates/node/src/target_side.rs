//! Effects of migration targets on this server.

use crate::Engine;
use crate::node::{Cut, Machines, TargetSide};
use crate::outgoing::{Payload, Wake};
use crate::source_side::unacknowledged;
use crate::tablets::{carve, tenures};
use crate::work::{Replay, Work};
use planted::Bug;
use protocols::migration::{Acceptance, Added, TargetEffect, TargetEvent};
use protocols::{Outbox, Ticket};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use store::log::Among;
use store::{Arrival, ArrivalPlan, RangeClock, ReplayError, TableSet, Tablet, TabletState};
use types::{HashRange, Instant, MigrationId, ReactorId, ServerId};
use wire::control::Intent;
use wire::peer::PullReply;

impl Engine {
    /// Passes an event to a target, and applies its effects.
    pub(crate) fn drive_target(&mut self, now: Instant, id: MigrationId, event: TargetEvent) {
        let node = self.node.clone();
        let mut machines = node.machines();
        self.drive_target_in(&mut machines, now, id, event);
        node.note_machines(&machines);
    }

    pub(crate) fn drive_target_in(
        &mut self,
        machines: &mut Machines,
        now: Instant,
        id: MigrationId,
        event: TargetEvent,
    ) {
        let side = machines.target(id);
        if let TargetEvent::Prepare(intent) = &event {
            side.intent.get_or_insert_with(|| intent.clone());
        }
        let spreads = matches!(event, TargetEvent::Serving);
        let mut effects = Outbox::new();
        side.machine.handle(now, event, &mut effects);
        while let Some(effect) = effects.take_first() {
            self.carry_out_target(side, now, effect, spreads, &mut effects);
        }
    }

    fn carry_out_target(
        &mut self,
        side: &mut TargetSide,
        now: Instant,
        effect: TargetEffect,
        spreads: bool,
        more: &mut Outbox<TargetEffect>,
    ) {
        match effect {
            TargetEffect::Reserve { bytes } => {
                let reserved = self.reserve(side, bytes);
                side.machine.handle(now, TargetEvent::Reserved(reserved), more);
            }
            TargetEffect::Unreserve => side.reservation = None,
            TargetEffect::Accept(acceptance) => self.accept(side, now, *acceptance),
            TargetEffect::Suspend => self.hold_arrival(side, true),
            TargetEffect::Resume => self.hold_arrival(side, false),
            TargetEffect::Send { to, message } => self.out.send(to, message),
            // The first pulls go to the work queue, so that all idle reactors take part. Each
            // later pull leaves from the reactor that made room for it.
            TargetEffect::Pull { to, pull } if spreads => self.node.work.push(Work::Pull(to, pull)),
            TargetEffect::Pull { to, pull } => {
                self.out.send(to, wire::peer::PeerMessage::Pull(pull));
            }
            TargetEffect::Replay { partition, ticket } => {
                let payload = side.payloads.remove(&ticket);
                let arrival = side.arrival.clone();
                if let (Some(payload), Some(arrival)) = (payload, arrival) {
                    let (from, added) = (0, Added::default());
                    let replay = Replay { arrival, partition, ticket, payload, from, added };
                    self.node.work.push(Work::Replay(replay));
                    if self.node.work.len() > 1 {
                        self.node.wake_all();
                    }
                }
            }
            TargetEffect::Discard { ticket } => {
                if let Some(payload) = side.payloads.remove(&ticket) {
                    self.give_buffer(payload.buffer);
                }
            }
            TargetEffect::Advance { partition, to } => {
                if let Some(arrival) = &side.arrival {
                    arrival.advance(partition, to);
                }
                if self.node.reactors_missing.load(Ordering::Relaxed) > 0 {
                    self.node.wake_all();
                }
            }
            TargetEffect::Cut => {
                let reactors = self.node.settings().reactors;
                side.cutting = Some(Cut::Splicing((0..reactors).map(ReactorId).collect()));
                self.node.wake_all();
            }
            TargetEffect::Tell(message) => self.out.control.push(message),
            TargetEffect::Finish => self.finish(side),
        }
    }

    /// Reserves memory for the range. Refuses if the range has records of an earlier stay.
    fn reserve(&mut self, side: &mut TargetSide, bytes: u64) -> Result<(), String> {
        let Some(intent) = &side.intent else { return Err("no intent".to_owned()) };
        let store = self.node.store();
        let is_free =
            self.worker.is_empty(intent.range) && !self.node.is_being_forgotten(intent.range);
        if !is_free && !planted::is(Bug::OldCopyKept) {
            return Err("the target still holds an earlier incarnation of the range".into());
        }
        let log = store.log();
        let reactors = u64::from(self.node.settings().reactors);
        let segments = 2 * reactors * log.segment_bytes() as u64;
        // The coordinator forwards this number from the source, so it may be arbitrarily large.
        let wanted = bytes.saturating_add(bytes / 10).saturating_add(segments);
        match log.reserve(wanted) {
            Some(reservation) => {
                side.reservation = Some(Arc::new(reservation));
                Ok(())
            }
            None => Err(format!(
                "the target has no room: it needs {} MiB free, raise its --memory",
                wanted.div_ceil(1 << 20)
            )),
        }
    }

    /// Begins to serve the range.
    fn accept(&mut self, side: &mut TargetSide, now: Instant, acceptance: Acceptance) {
        let Acceptance { intent, flip, partitions, until } = acceptance;
        let store = self.node.store();
        // This must precede the publication of the tablet: then a reactor may serve it.
        self.node.limit_unacknowledged(until);
        store.raise_version(flip.version_floor);
        let arrival = Arc::new(Arrival::new(ArrivalPlan {
            migration: intent.migration,
            source: intent.source,
            range: intent.range,
            partitions,
            expected: flip.records,
            reservation: side.reservation.take(),
        }));
        let tablet = Tablet {
            range: intent.range,
            epoch: intent.target_epoch,
            tenures: tenures(&intent.target_tenures),
            state: TabletState::Arriving(arrival.clone()),
            clock: RangeClock::going_on_from(flip.expiry_clock, store.clock()),
            flushing: TableSet::NONE,
        };
        self.node.change_tablets(|tablets| {
            let mut tablets = carve(tablets, intent.range, |_| None);
            tablets.push(tablet);
            tablets
        });
        side.arrival = Some(arrival);
        side.since = now;
        side.accepting = Some(self.node.store().grace_period());
    }

    /// Suspends all operations on the range, or serves it again.
    fn hold_arrival(&mut self, side: &TargetSide, is_suspended: bool) {
        let Some(arrival) = &side.arrival else { return };
        arrival.suspend(is_suspended);
        let (range, migration) = (arrival.range(), arrival.migration());
        if is_suspended {
            tracing::warn!(
                %migration, %range,
                "range not served: neither the source nor the coordinator has confirmed yet that \
                 this server owns it"
            );
        }
        // Publishing the tablets makes reactors retry the waiting operations.
        self.node.change_tablets(|tablets| tablets);
    }

    /// Handles a new map, which acknowledges the flips that the coordinator has recorded.
    pub(crate) fn acknowledge_flips(&mut self, now: Instant) {
        let node = self.node.clone();
        let (map, me) = (node.map(), node.me());
        let mut machines = node.machines();
        let is_ours = |intent: &Intent| {
            let mut tablets = map.tablets.iter().filter(|tablet| tablet.owner == me);
            tablets.any(|it| it.epoch == intent.target_epoch && it.range.overlaps(intent.range))
        };
        let waiting = machines.targets.iter().filter(|(_, side)| side.machine.is_unacknowledged());
        let known: Vec<MigrationId> = waiting
            .filter(|(_, side)| side.intent.as_deref().is_some_and(is_ours))
            .map(|(id, _)| *id)
            .collect();
        for id in &known {
            self.drive_target_in(&mut machines, now, *id, TargetEvent::Acknowledged);
        }
        if !known.is_empty() {
            node.note_machines(&machines);
        }
    }

    fn finish(&mut self, side: &mut TargetSide) {
        // If the source has died, these waits are obsolete.
        (side.accepting, side.cutting) = (None, None);
        let Some(arrival) = side.arrival.take() else { return };
        let migration = arrival.migration();
        self.node.change_tablets(|tablets| {
            carve(tablets, arrival.range(), |tablet| match &tablet.state {
                TabletState::Arriving(a) if a.migration() == migration => {
                    Some(Tablet { state: TabletState::Serving, ..tablet })
                }
                TabletState::Arriving(_)
                | TabletState::Serving
                | TabletState::Frozen
                | TabletState::Leaving
                | TabletState::Recovering(_)
                | TabletState::Securing(_) => Some(tablet),
            })
        });
        self.node.work.push(Work::Sweep(arrival));
        side.payloads.clear();
    }

    /// Handles the answer to a pull.
    pub(crate) fn pull_replied(
        &mut self,
        now: Instant,
        from: ServerId,
        reply: PullReply,
        payload: Payload,
    ) {
        let node = self.node.clone();
        let mut machines = node.machines();
        let id = reply.migration;
        let side = machines.target(id);
        let payload = (!payload.bytes().is_empty()).then(|| side.keep(payload));
        let event = TargetEvent::PullReply { from, reply, payload };
        self.drive_target_in(&mut machines, now, id, event);
        node.note_machines(&machines);
    }

    /// Replays a bounded number of records from a pull's reply.
    pub(crate) fn replay(&mut self, now: Instant, mut replay: Replay) {
        let batch = replay.payload.bytes();
        let done = self.worker.replay(&replay.arrival, batch, replay.from, REPLAY_ENTRIES);
        let id = replay.arrival.migration();
        let (partition, ticket) = (replay.partition, replay.ticket);
        match done {
            Ok(done) => {
                replay.added.records += done.records + done.dropped;
                replay.added.bytes += done.bytes;
                if let Some(next) = done.next {
                    replay.from = next;
                    return self.node.work.put_back(Work::Replay(replay));
                }
                let added = replay.added;
                self.give_buffer(replay.payload.buffer);
                self.drive_target(now, id, TargetEvent::Replayed { partition, ticket, added });
            }
            Err(error) => {
                let (ReplayError::Corrupt(_) | ReplayError::OutOfMemory) = error;
                tracing::warn!(migration = %id, %error, "cannot replay a pull's reply");
                self.drive_target(now, id, TargetEvent::ReplayFailed { partition, ticket });
            }
        }
    }

    /// Resumes accepted flips after their grace periods, and splices for cuts in progress.
    pub(crate) fn poll_targets(&mut self, machines: &mut Machines, now: Instant) {
        let store = self.node.store().clone();
        let mut events: BTreeMap<MigrationId, TargetEvent> = BTreeMap::new();
        for (id, side) in &mut machines.targets {
            if side.accepting.take_if(|grace| store.is_over(grace)).is_some() {
                events.insert(*id, TargetEvent::Serving);
            }
            if let Some(Cut::Splicing(reactors)) = &mut side.cutting
                && reactors.remove(&self.reactor)
            {
                self.worker.splice(*id);
                if reactors.is_empty() {
                    let unsafe_yet = unacknowledged(&store, Among::Log);
                    let unsafe_yet =
                        unsafe_yet.filter(|_| !planted::is(Bug::CutBeforeHeadsAreSafe));
                    side.cutting = unsafe_yet.map(Cut::Securing);
                    if side.cutting.is_none() {
                        events.insert(*id, TargetEvent::CutCommitted);
                    }
                }
            }
            let is_secure = |cut: &mut Cut| match cut {
                Cut::Splicing(_) => false,
                Cut::Securing(dependency) => store.log().is_acknowledged(dependency),
            };
            if side.cutting.take_if(is_secure).is_some() {
                events.insert(*id, TargetEvent::CutCommitted);
            }
        }
        for (id, event) in events {
            self.drive_target_in(machines, now, id, event);
        }
    }

    /// Runs the targets that are due.
    pub(crate) fn tick_targets(&mut self, machines: &mut Machines, now: Instant) {
        let due: Vec<_> = machines
            .targets
            .iter()
            .filter(|(_, side)| side.machine.next_deadline().is_some_and(|at| at <= now))
            .map(|(id, _)| *id)
            .collect();
        for id in due {
            self.drive_target_in(machines, now, id, TargetEvent::Tick);
        }
    }

    /// Reports the progress since the last call to this reactor's priority pulls.
    pub(crate) fn follow_progress(&mut self, now: Instant) {
        let mut passed: Vec<(MigrationId, HashRange)> = Vec::new();
        for (id, early) in &mut self.early {
            passed.extend(early.passed().into_iter().map(|range| (*id, range)));
        }
        if !passed.is_empty() {
            self.out.wakes.push(Wake::Progress);
        }
        for (id, range) in passed {
            self.drive_early(now, id, protocols::migration::PriorityEvent::Passed { range });
        }
    }
}

impl TargetSide {
    fn keep(&mut self, payload: Payload) -> Ticket {
        self.next_ticket += 1;
        let ticket = Ticket(self.next_ticket);
        self.payloads.insert(ticket, payload);
        ticket
    }
}

/// Maximum number of records that one quantum replays: 64 KiB of 160-byte entries, about 40 us.
const REPLAY_ENTRIES: usize = 410;
