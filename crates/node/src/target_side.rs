//! Effects of migration targets on this server.

use crate::Node;
use crate::context::Context;
use crate::machines::{Cut, Machines, TargetSide};
use crate::outgoing::Payload;
use crate::source_side::unacknowledged;
use crate::tablets::{carve, tenures};
use crate::work::{PullReplay, Work};
use planted::Bug;
use protocols::migration::{Acceptance, Added, TargetEffect, TargetEvent};
use protocols::{Outbox, Ticket};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use store::log::Among;
use store::{Arrival, ArrivalPlan, RangeClock, ReplayError, TableSet, Tablet, TabletState};
use types::{MigrationId, ReactorId, ServerId};
use wire::control::Intent;
use wire::peer::PullReply;

impl Machines {
    /// Passes an event to a target, and applies its effects.
    pub(crate) fn drive_target(
        &mut self,
        id: MigrationId,
        event: TargetEvent,
        context: &mut Context<'_>,
    ) {
        let side = self.target(id);
        if let TargetEvent::Prepare(intent) = &event {
            side.intent.get_or_insert_with(|| intent.clone());
        }
        let spreads = matches!(event, TargetEvent::Serving);
        let mut effects = Outbox::new();
        side.machine.handle(context.now, event, &mut effects);
        while let Some(effect) = effects.take_first() {
            side.apply(effect, spreads, &mut effects, context);
        }
    }

    /// Returns whether the target of this migration can still accept a flip.
    pub(crate) fn may_accept(&self, migration: MigrationId) -> bool {
        self.targets.get(&migration).is_some_and(|side| side.machine.may_accept())
    }

    /// Handles a new map, which acknowledges the flips that the coordinator has recorded.
    /// Returns whether there are any.
    pub(crate) fn acknowledge_flips(&mut self, context: &mut Context<'_>) -> bool {
        let (map, me) = (context.node.map(), context.node.me());
        let is_ours = |intent: &Intent| {
            let mut tablets = map.tablets.iter().filter(|tablet| tablet.owner == me);
            tablets.any(|it| it.epoch == intent.target_epoch && it.range.overlaps(intent.range))
        };
        let waiting = self.targets.iter().filter(|(_, side)| side.machine.is_unacknowledged());
        let known: Vec<MigrationId> = waiting
            .filter(|(_, side)| side.intent.as_deref().is_some_and(is_ours))
            .map(|(id, _)| *id)
            .collect();
        for id in &known {
            self.drive_target(*id, TargetEvent::Acknowledged, context);
        }
        !known.is_empty()
    }

    /// Handles the answer to a pull.
    pub(crate) fn pull_replied(
        &mut self,
        from: ServerId,
        reply: PullReply,
        payload: Payload,
        context: &mut Context<'_>,
    ) {
        let id = reply.migration;
        let side = self.target(id);
        let payload = (!payload.bytes().is_empty()).then(|| side.keep(payload));
        let event = TargetEvent::PullReply { from, reply, payload };
        self.drive_target(id, event, context);
    }

    /// Resumes accepted flips after their grace periods, and splices for cuts in progress.
    pub(crate) fn poll_targets(&mut self, context: &mut Context<'_>) {
        let store = context.node.store();
        let mut events: BTreeMap<MigrationId, TargetEvent> = BTreeMap::new();
        for (id, side) in &mut self.targets {
            if side.accepting.take_if(|grace| store.is_over(grace)).is_some() {
                events.insert(*id, TargetEvent::Serving);
            }
            if let Some(Cut::Splicing(reactors)) = &mut side.cutting
                && reactors.remove(&context.reactor)
            {
                context.worker.splice(*id);
                if reactors.is_empty() {
                    let unsafe_yet = unacknowledged(store, Among::Log);
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
            self.drive_target(id, event, context);
        }
    }

    /// Runs the targets that are due.
    pub(crate) fn tick_targets(&mut self, context: &mut Context<'_>) {
        let due: Vec<_> = self
            .targets
            .iter()
            .filter(|(_, side)| side.machine.next_deadline().is_some_and(|at| at <= context.now))
            .map(|(id, _)| *id)
            .collect();
        for id in due {
            self.drive_target(id, TargetEvent::Tick, context);
        }
    }
}

impl TargetSide {
    /// Applies an effect of the machine.
    fn apply(
        &mut self,
        effect: TargetEffect,
        spreads: bool,
        more: &mut Outbox<TargetEffect>,
        context: &mut Context<'_>,
    ) {
        match effect {
            TargetEffect::Reserve { bytes } => {
                let reserved = self.reserve(bytes, context);
                self.machine.handle(context.now, TargetEvent::Reserved(reserved), more);
            }
            TargetEffect::Unreserve => self.reservation = None,
            TargetEffect::Accept(acceptance) => self.accept(*acceptance, context),
            TargetEffect::Suspend => self.hold_arrival(context.node, true),
            TargetEffect::Resume => self.hold_arrival(context.node, false),
            TargetEffect::Send { to, message } => context.out.send(to, message),
            // The first pulls go to the work queue, so that all idle reactors take part. Each
            // later pull leaves from the reactor that made room for it.
            TargetEffect::Pull { to, pull } if spreads => {
                context.node.work.push(Work::Pull(to, pull))
            }
            TargetEffect::Pull { to, pull } => {
                context.out.send(to, wire::peer::PeerMessage::Pull(pull));
            }
            TargetEffect::Replay { partition, ticket } => {
                let payload = self.payloads.remove(&ticket);
                let arrival = self.arrival.clone();
                if let (Some(payload), Some(arrival)) = (payload, arrival) {
                    let (from, added) = (0, Added::default());
                    let replay = PullReplay { arrival, partition, ticket, payload, from, added };
                    context.node.work.push(Work::Replay(replay));
                    if context.node.work.len() > 1 {
                        context.node.wake_all();
                    }
                }
            }
            TargetEffect::Discard { ticket } => {
                if let Some(payload) = self.payloads.remove(&ticket) {
                    context.buffers.give(payload.buffer);
                }
            }
            TargetEffect::Advance { partition, to } => {
                if let Some(arrival) = &self.arrival {
                    arrival.advance(partition, to);
                }
                if context.node.fleet.reactors_missing.load(Ordering::Relaxed) > 0 {
                    context.node.wake_all();
                }
            }
            TargetEffect::Cut => {
                let reactors = context.node.settings().reactors;
                self.cutting = Some(Cut::Splicing((0..reactors).map(ReactorId).collect()));
                context.node.wake_all();
            }
            TargetEffect::Tell(message) => context.out.control.push(message.into()),
            TargetEffect::Finish => self.finish(context.node),
        }
    }

    /// Reserves memory for the range. Refuses if the range has records of an earlier stay.
    fn reserve(&mut self, bytes: u64, context: &mut Context<'_>) -> Result<(), String> {
        let Some(intent) = &self.intent else { return Err("no intent".to_owned()) };
        let store = context.node.store();
        let is_free =
            context.worker.is_empty(intent.range) && !context.node.is_being_forgotten(intent.range);
        if !is_free && !planted::is(Bug::OldCopyKept) {
            return Err("the target still holds an earlier incarnation of the range".into());
        }
        let log = store.log();
        let reactors = u64::from(context.node.settings().reactors);
        let segments = 2 * reactors * log.segment_bytes() as u64;
        // The coordinator forwards this number from the source, so it may be arbitrarily large.
        let wanted = bytes.saturating_add(bytes / 10).saturating_add(segments);
        match log.reserve(wanted) {
            Some(reservation) => {
                self.reservation = Some(Arc::new(reservation));
                Ok(())
            }
            None => Err(format!(
                "the target has no room: it needs {} MiB free, raise its --memory",
                wanted.div_ceil(1 << 20)
            )),
        }
    }

    /// Begins to serve the range.
    fn accept(&mut self, acceptance: Acceptance, context: &Context<'_>) {
        assert!(self.arrival.is_none(), "a target accepts one flip");
        assert!(self.accepting.is_none(), "a target accepts one flip");
        let Acceptance { intent, flip, partitions, until } = acceptance;
        let store = context.node.store();
        // This must precede the publication of the tablet: then a reactor may serve it.
        context.node.limit_unacknowledged(until);
        store.raise_version(flip.version_floor);
        let arrival = Arc::new(Arrival::new(ArrivalPlan {
            migration: intent.migration,
            source: intent.source,
            range: intent.range,
            partitions,
            expected: flip.records,
            reservation: self.reservation.take(),
        }));
        let tablet = Tablet {
            range: intent.range,
            epoch: intent.target_epoch,
            tenures: tenures(&intent.target_tenures),
            state: TabletState::Arriving(arrival.clone()),
            clock: RangeClock::going_on_from(flip.expiry_clock, store.clock()),
            flushing: TableSet::NONE,
        };
        context.node.change_tablets(|tablets| {
            let mut tablets = carve(tablets, intent.range, |_| None);
            tablets.push(tablet);
            tablets
        });
        self.arrival = Some(arrival);
        self.since = context.now;
        self.accepting = Some(context.node.store().grace_period());
    }

    /// Suspends all operations on the range, or serves it again.
    fn hold_arrival(&self, node: &Node, is_suspended: bool) {
        let Some(arrival) = &self.arrival else { return };
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
        node.change_tablets(|tablets| tablets);
    }

    fn finish(&mut self, node: &Node) {
        // If the source has died, these waits are obsolete.
        (self.accepting, self.cutting) = (None, None);
        let Some(arrival) = self.arrival.take() else { return };
        let migration = arrival.migration();
        node.change_tablets(|tablets| {
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
        node.work.push(Work::Sweep(arrival));
        self.payloads.clear();
    }

    fn keep(&mut self, payload: Payload) -> Ticket {
        self.next_ticket += 1;
        let ticket = Ticket(self.next_ticket);
        let before = self.payloads.insert(ticket, payload);
        assert!(before.is_none(), "a ticket names one payload");
        ticket
    }
}

impl PullReplay {
    /// Replays a bounded number of records from a pull's reply.
    pub(crate) fn run(mut self, context: &mut Context<'_>) {
        let batch = self.payload.bytes();
        let done = context.worker.replay(&self.arrival, batch, self.from, REPLAY_ENTRIES);
        let id = self.arrival.migration();
        let (partition, ticket) = (self.partition, self.ticket);
        match done {
            Ok(done) => {
                self.added.records += done.records + done.dropped;
                self.added.bytes += done.bytes;
                if let Some(next) = done.next {
                    self.from = next;
                    return context.node.work.put_back(Work::Replay(self));
                }
                let added = self.added;
                context.buffers.give(self.payload.buffer);
                let event = TargetEvent::Replayed { partition, ticket, added };
                context.node.change_machines(|it| it.drive_target(id, event, context));
            }
            Err(error) => {
                let (ReplayError::Corrupt(_) | ReplayError::OutOfMemory) = error;
                tracing::warn!(migration = %id, %error, "cannot replay a pull's reply");
                let event = TargetEvent::ReplayFailed { partition, ticket };
                context.node.change_machines(|it| it.drive_target(id, event, context));
            }
        }
    }
}

/// Maximum number of records that one quantum replays: 64 KiB of 160-byte entries, about 40 us.
const REPLAY_ENTRIES: usize = 410;
