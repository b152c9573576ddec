//! Recovery of dead servers' ranges on this server: drives one recovery master for each recovery
//! partition (part) that the coordinator has assigned to it.
//!
//! - `effects`: tablets that begin and end, reads, replays;
//! - `lineage`: partitions of a migration that has lost one side;
//! - `reading`: reads from this server's replicas of dead servers' logs, and their `read_jobs`;
//! - `extent`: the estimated size of a partition;
//! - `counts`: counters of both sides for operators.
//!
//! The tablet of a partition is *recovering* until the coordinator's map assigns it to this
//! server under the partition's epoch (`tablets.rs`). From then on it is *securing*: served
//! before it is durable, until its replayed records are replicated and the coordinator knows
//! that. Replayed records go into one side log per reactor, shared by all partitions. If another
//! server becomes the owner, they are deleted.
//!
//! Few partitions are replayed at a time, in order of their epochs, because each has reads in
//! progress and replies that wait. When memory is short, a partition waits for the cleaner before
//! it is handed back.
//!
//! **Invariant:** no read starts before every reactor has begun a turn with the new tablet. A
//! reactor that did not know the tablet would drop the records it replays.
//! **Invariant:** no partition begins in a range while records of an earlier attempt there are
//! being deleted.

mod counts;
mod effects;
mod extent;
mod lineage;
mod read_jobs;
mod reading;

pub(super) use counts::RecoveryCounts;
pub(super) use effects::{forget_replayed, sweep_recovered};
pub(super) use read_jobs::{LogReads, ReadRequester};
pub use read_jobs::{ReadDone, ReadJob};

use super::context::Context;
use super::driver::{ReplayReplication, Wait};
use super::machines::{Machines, RecoverySide};
use super::messages::Payload;
use super::node::Node;
use extent::Extent;
use protocols::recovery::{
    PartRefusal, PartitionName, RecoveryMaster, RecoveryMasterEvent, RecoveryProgress,
};
use protocols::{Machine, Ticket};
use std::collections::BTreeMap;
use std::sync::{Arc, MutexGuard, PoisonError};
use store::log::{Dependency, GracePeriod};
use store::{Recovery, ReplayCounters};
use types::{
    HashRange, Incarnation, Instant, KeyHash, OwnershipEpoch, ServerId, Slot, TableId, UnixMillis,
};
use wire::control::{ClusterMap, RecoveryLog, RecoveryPartition, RecoveryUpdate, ToCoordinator};
use wire::peer::RecoveryReply;

/// The state that this server keeps for a recovery master.
pub(super) struct RecoveryDriver {
    /// Logs to read, with the incarnations of valid entries.
    logs: Vec<RecoveryLog>,
    /// Incarnations of new entries, by table.
    incarnations: Vec<Incarnation>,
    /// Set if records that this server already holds are valid, too.
    keeps: bool,
    /// Latest clock by which the dead server can have judged expiry in the range.
    clock_floor: UnixMillis,
    extent: Extent,
    since: Instant,
    phase: RecoveryPhase,
}

/// The progress of a recovery partition on this server.
enum RecoveryPhase {
    /// The partition is not here: it has not begun, or is over.
    Idle,
    /// The partition waits for others to be replayed.
    Queued,
    /// The partition waits for memory to begin.
    WaitingForRoom { until: Instant },
    /// Every reactor begins a turn with the tablet; then the void records are deleted.
    Beginning { recovery: Arc<Recovery>, grace: GracePeriod, voided: Voided },
    /// Segments are read and replayed.
    Replaying { recovery: Arc<Recovery> },
    /// These replays wait for memory.
    Stalled { recovery: Arc<Recovery>, until: Instant, replays: Vec<ReplayLog> },
    /// Backups must acknowledge all entries written for the partition.
    Securing { recovery: Arc<Recovery>, replayed_at: Instant, entries: Dependency },
    /// The partition is durable; the coordinator does not know that yet.
    Durable { recovery: Arc<Recovery>, replayed_at: Instant },
    /// The partition's last dependency has ended, and every reactor begins a turn.
    Sweeping { recovery: Arc<Recovery>, grace: GracePeriod },
}

/// Maximum number of partitions that are replayed at a time.
const REPLAYED_MAX: usize = 4;

/// Records of a range that are void: those of these tables, from a hash on.
#[derive(Debug)]
struct Voided {
    tables: Vec<TableId>,
    from: KeyHash,
}

/// A backup's reply that is being replayed into the store.
#[derive(Debug)]
pub(super) struct ReplayLog {
    recovery: Arc<Recovery>,
    epoch: OwnershipEpoch,
    ticket: Ticket,
    /// Set if every known replica of the log has the entries, so that later readers find them.
    is_common: bool,
    payload: Payload,
    /// Number of payload bytes already replayed.
    from: usize,
}

impl RecoveryPhase {
    /// Returns the replay of a partition that depends on the dead server's log.
    fn recovery(&self) -> Option<&Arc<Recovery>> {
        match self {
            RecoveryPhase::Beginning { recovery, .. }
            | RecoveryPhase::Replaying { recovery }
            | RecoveryPhase::Stalled { recovery, .. }
            | RecoveryPhase::Securing { recovery, .. }
            | RecoveryPhase::Durable { recovery, .. } => Some(recovery),
            RecoveryPhase::Idle
            | RecoveryPhase::Queued
            | RecoveryPhase::WaitingForRoom { .. }
            | RecoveryPhase::Sweeping { .. } => None,
        }
    }

    /// Returns when the last segment was replayed, until the partition's last dependency ends.
    fn replayed_at(&self) -> Option<Instant> {
        match self {
            RecoveryPhase::Securing { replayed_at, .. }
            | RecoveryPhase::Durable { replayed_at, .. } => Some(*replayed_at),
            RecoveryPhase::Idle
            | RecoveryPhase::Queued
            | RecoveryPhase::WaitingForRoom { .. }
            | RecoveryPhase::Beginning { .. }
            | RecoveryPhase::Replaying { .. }
            | RecoveryPhase::Stalled { .. }
            | RecoveryPhase::Sweeping { .. } => None,
        }
    }

    fn wait(&self) -> Option<Wait> {
        match self {
            RecoveryPhase::Securing { .. } => Some(Wait::Backups),
            RecoveryPhase::WaitingForRoom { .. }
            | RecoveryPhase::Beginning { .. }
            | RecoveryPhase::Stalled { .. }
            | RecoveryPhase::Sweeping { .. } => Some(Wait::Reactors),
            RecoveryPhase::Idle
            | RecoveryPhase::Queued
            | RecoveryPhase::Replaying { .. }
            | RecoveryPhase::Durable { .. } => None,
        }
    }
}

impl RecoveryDriver {
    fn new(now: Instant, part: &RecoveryPartition) -> RecoveryDriver {
        RecoveryDriver {
            logs: part.logs.clone(),
            incarnations: part.incarnations.clone(),
            keeps: part.keeps,
            clock_floor: part.clock_floor,
            extent: Extent::default(),
            since: now,
            phase: RecoveryPhase::Idle,
        }
    }

    /// Returns whether segments are being read and replayed.
    fn is_being_replayed(&self) -> bool {
        self.phase.recovery().is_some() && self.phase.replayed_at().is_none()
    }

    fn counters(&self) -> ReplayCounters {
        self.phase.recovery().map_or_else(ReplayCounters::default, |it| it.counters())
    }

    /// Returns when the replayed records are replicated. Deferring that serves clients sooner,
    /// and meanwhile the dead server's log has the records. Exceptions are partitions that are
    /// served only when durable, and those that lack memory: dead entries free no memory before
    /// they are replicated.
    fn replication(&self) -> Option<ReplayReplication> {
        let lacks_room = matches!(
            self.phase,
            RecoveryPhase::WaitingForRoom { .. } | RecoveryPhase::Stalled { .. }
        );
        let is_served_when_durable = self.keeps || self.logs.len() > 1;
        if lacks_room || (self.phase.recovery().is_some() && is_served_when_durable) {
            Some(ReplayReplication::Prompt)
        } else {
            self.is_being_replayed().then_some(ReplayReplication::Deferred)
        }
    }
}

impl Node {
    fn forgetting(&self) -> MutexGuard<'_, BTreeMap<OwnershipEpoch, HashRange>> {
        self.forgetting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether replayed records in the range are still being deleted.
    pub(super) fn is_being_forgotten(&self, range: HashRange) -> bool {
        self.forgetting().values().any(|other| other.overlaps(range))
    }

    /// Returns the Redis error for a slot of a dead owner; `None` if clients may wait.
    pub(super) fn not_served(&self, slot: Slot, in_recovery: bool) -> Option<String> {
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
    pub(super) fn recover(&mut self, part: Box<RecoveryPartition>, context: &mut Context<'_>) {
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
    pub(super) fn follow_map_of_recoveries(&mut self, context: &mut Context<'_>) {
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

    /// Handles the coordinator's confirmation that a partition of this server is durable.
    pub(super) fn part_kept(
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
    pub(super) fn tell_recoveries(
        &mut self,
        event: &RecoveryMasterEvent,
        context: &mut Context<'_>,
    ) {
        for epoch in self.recoveries.ids(|_| true) {
            self.step_recovery(epoch, event.clone(), context);
        }
    }

    /// Passes an event to a recovery master, and begins partitions that need not wait any more.
    pub(super) fn step_recovery(
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
    pub(super) fn recovery_replied(
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
    pub(super) fn poll_recoveries(&mut self, context: &mut Context<'_>) {
        for epoch in self.recoveries.waiting() {
            for event in self.recoveries.poll_one(epoch, context) {
                self.step_recovery(epoch, event, context);
            }
        }
    }

    /// Runs the recovery masters that are due.
    pub(super) fn tick_recoveries(&mut self, context: &mut Context<'_>) {
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
pub(super) fn refusal(part: &RecoveryPartition) -> Option<ToCoordinator> {
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
