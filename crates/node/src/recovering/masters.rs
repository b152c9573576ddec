//! Events for the recovery masters of this server, and their states for clients and operators.

use super::{REPLAYED_MAX, RecoveryDriver, RecoveryPhase};
use crate::Node;
use crate::context::Context;
use crate::machines::{Machines, RecoverySide};
use crate::messages::Payload;
use protocols::Machine;
use protocols::recovery::{
    PartRefusal, PartitionName, RecoveryMaster, RecoveryMasterEvent, RecoveryProgress,
};
use store::{ReplayCounters, Tablet, TabletState};
use types::{HashRange, Instant, OwnershipEpoch, ServerId, Slot};
use wire::control::{ClusterMap, RecoveryLog, RecoveryPartition, RecoveryUpdate, ToCoordinator};
use wire::peer::RecoveryReply;

impl Node {
    /// Returns the Redis error for a slot of a dead owner; `None` if clients may wait.
    pub(crate) fn not_served(&self, slot: Slot, in_recovery: bool) -> Option<String> {
        let hash = slot.first_hash();
        let machines = self.machines();
        let mut parts = machines.recoveries.values().map(|side| &side.machine);
        let lacks_room = |part: &RecoveryMaster| part.refusal() == Some(&PartRefusal::NoRoom);
        let why = match parts.any(|part| lacks_room(part) && part.name().range.contains(hash)) {
            true => PartRefusal::NoRoom.to_string(),
            false if in_recovery => return None,
            false => "no server recovers its data yet".to_owned(),
        };
        Some(format!("CLUSTERDOWN Hash slot not served: its server died, and {why}"))
    }

    /// Returns the fields of the section `Recovery` of `INFO`.
    pub fn recovery_fields(&self) -> Vec<(String, String)> {
        let machines = self.machines();
        let sides = || machines.recoveries.values();
        let progress = sides().map(|side| side.machine.progress());
        let progress = progress.fold(RecoveryProgress::default(), |sum, part| RecoveryProgress {
            segments_read: sum.segments_read + part.segments_read,
            segments_total: sum.segments_total + part.segments_total,
        });
        let counters = sides().map(|side| side.driver.counters());
        let counters = counters.fold(ReplayCounters::default(), |sum, part| ReplayCounters {
            records: sum.records + part.records,
            bytes: sum.bytes + part.bytes,
            dropped: sum.dropped + part.dropped,
        });
        let field = |name: &str, value: usize| (name.to_owned(), value.to_string());
        let mut fields = vec![
            field("recovery_parts", sides().count()),
            field("recovery_segments", progress.segments_total),
            field("recovery_segments_read", progress.segments_read),
        ];
        fields.extend(self.recovery_counts.fields(counters));
        let part = |side: &RecoverySide| {
            (format!("recovery_part_{}", side.machine.name().epoch), side.machine.to_string())
        };
        fields.extend(sides().map(part));
        fields
    }
}

impl Machines {
    /// Handles a partition from the coordinator, or a newer list of the replicas to read.
    pub(crate) fn recover(&mut self, part: Box<RecoveryPartition>, context: &mut Context<'_>) {
        let Some(name) = PartitionName::of(&part) else { return };
        let PartitionName { dead, range, epoch } = name;
        let of_range = self.recoveries.ids(|side| side.machine.name().range.overlaps(range));
        let others: Vec<OwnershipEpoch> =
            of_range.into_iter().filter(|other| *other != epoch).collect();
        // A partition of this range with an older epoch was handed back, or reassigned.
        if others.iter().all(|other| *other < epoch) {
            for other in others {
                let event = RecoveryMasterEvent::Decided { is_ours: false };
                self.step_recovery(other, event, context);
            }
            let now = context.now;
            let new = || {
                tracing::info!(%dead, %range, %epoch, "recovering a partition of a dead server");
                (RecoveryMaster::new(name), RecoveryDriver::new(now, &part))
            };
            if part.keeps && !self.recoveries.contains(epoch) {
                self.end_migrations_of(range, context);
            }
            self.recoveries.begin(epoch, new);
            self.note_deaths(epoch, context);
            self.step_recovery(epoch, RecoveryMasterEvent::Part(part), context);
            self.recoveries.change(epoch, |side| {
                side.driver.extent.set_log(side.machine.log_bytes());
            });
        }
    }

    /// Passes deaths and ownership changes in the coordinator's map to the recovery masters.
    pub(crate) fn follow_map_of_recoveries(&mut self, context: &mut Context<'_>) {
        let (map, me) = (context.node.map(), context.node.me());
        for epoch in self.recoveries.ids(|_| true) {
            self.note_deaths(epoch, context);
            let Some(side) = self.recoveries.get(epoch) else { continue };
            let Some(is_ours) = decision(&map, side.machine.name(), me) else { continue };
            if is_ours && !side.machine.is_served() {
                side.log_served(context.now);
            }
            self.step_recovery(epoch, RecoveryMasterEvent::Decided { is_ours }, context);
        }
    }

    fn note_deaths(&mut self, epoch: OwnershipEpoch, context: &mut Context<'_>) {
        let Some(side) = self.recoveries.get(epoch) else { return };
        let dead = context.node.dead().into_iter();
        let died: Vec<ServerId> = dead.filter(|id| !side.machine.knows_dead(*id)).collect();
        for backup in died {
            self.step_recovery(epoch, RecoveryMasterEvent::Died { backup }, context);
        }
    }

    /// Returns the dead server's log that a tablet needs until this server's own log has all of it.
    pub(crate) fn dependency_of(&self, tablet: &Tablet) -> Option<RecoveryLog> {
        match &tablet.state {
            TabletState::Securing(recovery) | TabletState::Recovering(recovery) => {
                let side = self.recoveries.get(OwnershipEpoch(recovery.number()))?;
                side.driver.dependency(&tablet.incarnations)
            }
            TabletState::Serving
            | TabletState::Frozen
            | TabletState::Leaving
            | TabletState::Arriving(_) => None,
        }
    }

    /// Handles the coordinator's confirmation that a partition of this server is durable.
    pub(crate) fn part_kept(
        &mut self,
        range: HashRange,
        epoch: OwnershipEpoch,
        context: &mut Context<'_>,
    ) {
        let side = self.recoveries.get(epoch);
        if side.is_some_and(|side| side.machine.name().range == range) {
            self.step_recovery(epoch, RecoveryMasterEvent::Kept, context);
        }
    }

    /// Passes an event to all recovery masters.
    pub(crate) fn tell_recoveries(
        &mut self,
        event: &RecoveryMasterEvent,
        context: &mut Context<'_>,
    ) {
        for epoch in self.recoveries.ids(|_| true) {
            self.step_recovery(epoch, event.clone(), context);
        }
    }

    /// Passes an event to a recovery master, and begins partitions that need not wait any more.
    pub(crate) fn step_recovery(
        &mut self,
        epoch: OwnershipEpoch,
        event: RecoveryMasterEvent,
        context: &mut Context<'_>,
    ) {
        self.step_part(epoch, event, context);
        self.begin_in_turn(context);
    }

    fn step_part(
        &mut self,
        epoch: OwnershipEpoch,
        event: RecoveryMasterEvent,
        context: &mut Context<'_>,
    ) {
        self.recoveries.change(epoch, |side| {
            let was_refused = side.machine.refusal().is_some();
            side.step(event, context);
            if let Some(reason) = side.machine.refusal().filter(|_| !was_refused) {
                tracing::warn!(part = %side.machine.name(), %reason, "partition handed back");
            }
        });
    }

    /// Begins queued partitions.
    fn begin_in_turn(&mut self, context: &mut Context<'_>) {
        let mut replayed = self.recoveries.ids(|side| side.driver.is_being_replayed()).len();
        let is_queued = |side: &RecoverySide| matches!(side.driver.phase, RecoveryPhase::Queued);
        for epoch in self.recoveries.ids(is_queued) {
            if replayed >= REPLAYED_MAX {
                break;
            }
            let begin = |side: &mut RecoverySide| side.driver.begin(side.machine.name(), context);
            match self.recoveries.change(epoch, begin) {
                Some(Err(reason)) => {
                    self.step_part(epoch, RecoveryMasterEvent::Begun(Err(reason)), context);
                }
                Some(Ok(())) => replayed += 1,
                None => {}
            }
        }
    }

    /// Handles a backup's reply to a read.
    pub(crate) fn recovery_replied(
        &mut self,
        from: ServerId,
        reply: RecoveryReply,
        payload: Payload,
        context: &mut Context<'_>,
    ) {
        let is_asker = |side: &RecoverySide| {
            let is_of_part = |log: &RecoveryLog| log.dead == reply.replica.log;
            side.machine.name().range == reply.range && side.driver.logs.iter().any(is_of_part)
        };
        // The newest partition counts, if there was an earlier one for the same range.
        let asker = self.recoveries.iter().rfind(|(_, side)| is_asker(side));
        let Some((epoch, _)) = asker else { return context.buffers.give(payload.buffer) };
        context.node.recovery_counts.received(payload.bytes().len());
        let keep = |side: &mut RecoverySide| {
            let RecoveryDriver { extent, phase, .. } = &mut side.driver;
            extent.note(reply.from, reply.next, payload.bytes().len());
            if let Some(recovery) = phase.recovery() {
                recovery.foresee(extent.of_range());
            }
            side.payloads.keep(payload, context.buffers)
        };
        let payload = self.recoveries.change(epoch, keep).flatten();
        self.step_recovery(epoch, RecoveryMasterEvent::Replied { from, reply, payload }, context);
    }

    /// Does this reactor's share of awaited work, and resumes masters that need not wait any
    /// more.
    pub(crate) fn poll_recoveries(&mut self, context: &mut Context<'_>) {
        for epoch in self.recoveries.waiting() {
            for event in self.recoveries.poll_one(epoch, context) {
                self.step_recovery(epoch, event, context);
            }
        }
    }

    /// Runs the recovery masters that are due.
    pub(crate) fn tick_recoveries(&mut self, context: &mut Context<'_>) {
        for epoch in self.recoveries.due(context.now) {
            self.step_recovery(epoch, RecoveryMaster::TICK, context);
        }
    }
}

impl RecoverySide {
    /// Logs that the map assigns the partition to this server.
    fn log_served(&self, now: Instant) {
        let Some(replayed_at) = self.driver.phase.replayed_at() else { return };
        tracing::info!(
            part = %self.machine.name(),
            records = self.driver.counters().records,
            replay_ms = replayed_at.since(self.driver.since).as_millis(),
            told_ms = now.since(replayed_at).as_millis(),
            "recovery partition served"
        );
    }
}

/// Returns the answer of a server that cannot recover a partition, because it has no replicas.
pub(crate) fn refusal(part: &RecoveryPartition) -> Option<ToCoordinator> {
    let PartitionName { dead, range, epoch } = PartitionName::of(part)?;
    let reason = "this server does not replicate its log".to_owned();
    Some(RecoveryUpdate::NotRecovered { dead, range, epoch, reason }.into())
}

/// Returns whether this server owns a partition, once its range has a new owner: epochs rise.
/// Before that, this server may own the range under an older epoch, as the target of a migration
/// from a dead source.
fn decision(map: &ClusterMap, part: PartitionName, me: ServerId) -> Option<bool> {
    let inside = || map.tablets.iter().filter(|tablet| tablet.range.overlaps(part.range));
    let is_decided = inside().any(|tablet| tablet.epoch >= part.epoch);
    is_decided.then(|| inside().any(|it| (it.owner, it.epoch) == (me, part.epoch)))
}
