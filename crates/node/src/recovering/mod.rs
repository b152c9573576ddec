//! Recovery of dead servers' ranges on this server: drives one recovery master for each recovery
//! partition (part) that the coordinator has assigned to it.
//!
//! - `effects`: tablets that begin and end, reads, replays;
//! - `lineage`: partitions of a migration that has lost one side;
//! - `reading`: reads from this server's replicas of dead servers' logs;
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
mod reading;

pub(super) use counts::RecoveryCounts;
pub(super) use effects::{forget_replayed, sweep_recovered};
pub(super) use reading::{LogReads, ReadRequester};
pub use reading::{ReadDone, ReadJob};

use super::context::Context;
use super::machines::Machines;
use super::node::Node;
use super::outgoing::Payload;
use super::work::Work;
use extent::Extent;
use planted::Bug;
use protocols::recovery::{
    NO_ROOM, PartName, RecoveryMaster, RecoveryMasterEvent, RecoveryProgress,
};
use protocols::{Outbox, Ticket};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, MutexGuard, PoisonError};
use store::log::{Dependency, GracePeriod};
use store::{Recovery, ReplayCounters};
use types::{
    HashRange, Instant, KeyHash, OwnershipEpoch, ServerId, Slot, TableId, Tenure, UnixMillis,
};
use wire::control::{ClusterMap, RecoveryLog, RecoveryPart, RecoveryUpdate, ToCoordinator};
use wire::peer::RecoveryReply;

/// A recovery master with its driver's state.
pub(super) struct RecoverySide {
    pub(super) machine: RecoveryMaster,
    /// Logs to read, with the tenures of valid entries.
    logs: Vec<RecoveryLog>,
    /// Tenures of new entries, by table.
    tenures: Vec<Tenure>,
    /// Set if records that this server already holds are valid, too.
    keeps: bool,
    /// Latest clock by which the dead server can have judged expiry in the range.
    clock_floor: UnixMillis,
    recovery: Option<Arc<Recovery>>,
    /// Set while the partition waits for others to be replayed.
    is_queued: bool,
    waits: Option<Wait>,
    payloads: BTreeMap<Ticket, Payload>,
    next_ticket: u64,
    /// Servers that the machine knows to be dead.
    dead: BTreeSet<ServerId>,
    extent: Extent,
    /// Set once the partition has been handed back.
    is_refused: bool,
    since: Instant,
    replayed_at: Option<Instant>,
    is_served: bool,
    /// Set if it was handed back because it does not fit into this server's memory.
    lacks_room: bool,
}

/// The event that a partition waits for.
enum Wait {
    /// Every reactor begins a turn with the tablet; then the void records are deleted.
    Begin(GracePeriod, Voided),
    /// All entries written for the partition are acknowledged.
    Secure(Dependency),
    /// Every reactor begins a turn after the partition's last dependency has ended.
    Sweep(GracePeriod, Arc<Recovery>),
    /// Memory becomes free, to begin or to replay these payloads (`true`: settled).
    Room { until: Instant, replays: Vec<(Ticket, bool)> },
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
    is_settled: bool,
    payload: Payload,
    /// Number of payload bytes already replayed.
    from: usize,
}

impl RecoverySide {
    fn new(now: Instant, name: PartName, part: &RecoveryPart) -> RecoverySide {
        RecoverySide {
            machine: RecoveryMaster::new(name),
            logs: part.logs.clone(),
            tenures: part.tenures.clone(),
            keeps: part.keeps,
            clock_floor: part.clock_floor,
            recovery: None,
            is_queued: false,
            waits: None,
            payloads: BTreeMap::new(),
            next_ticket: 0,
            dead: BTreeSet::new(),
            extent: Extent::default(),
            is_refused: false,
            since: now,
            replayed_at: None,
            is_served: false,
            lacks_room: false,
        }
    }

    fn covers(&self, hash: KeyHash) -> bool {
        self.machine.name().range.contains(hash)
    }

    /// Returns whether reactors must poll this partition in each turn.
    pub(super) fn is_waiting(&self) -> bool {
        self.waits.is_some()
    }

    /// Returns whether it waits for backups only.
    pub(super) fn waits_for_backups(&self) -> bool {
        matches!(self.waits, Some(Wait::Secure(_)))
    }

    fn is_over(&self) -> bool {
        self.machine.is_over() && self.waits.is_none()
    }

    /// Records that the map assigns the partition to this server.
    fn note_served(&mut self, now: Instant) {
        let Some(replayed_at) = self.replayed_at else { return };
        if !std::mem::replace(&mut self.is_served, true) {
            tracing::info!(
                part = %self.machine.name(),
                records = self.counters().records,
                replay_ms = replayed_at.since(self.since).as_millis(),
                told_ms = now.since(replayed_at).as_millis(),
                "recovery partition served"
            );
        }
    }

    /// Returns whether segments are being read and replayed.
    fn is_being_replayed(&self) -> bool {
        self.recovery.is_some() && self.replayed_at.is_none()
    }

    fn keep(&mut self, payload: Payload) -> Ticket {
        self.next_ticket += 1;
        let ticket = Ticket(self.next_ticket);
        let before = self.payloads.insert(ticket, payload);
        assert!(before.is_none(), "a ticket names one payload");
        ticket
    }

    fn counters(&self) -> ReplayCounters {
        self.recovery.as_ref().map_or_else(ReplayCounters::default, |it| it.counters())
    }
}

/// Returns whether replication of replayed records is deferred until all are replayed. Deferring
/// serves clients sooner, and meanwhile the dead server's log has the records. Exceptions are
/// partitions that are served only when durable, and those that lack memory: dead entries free no
/// memory before they are replicated.
pub(super) fn keeps_recovered_back<'s>(sides: impl Iterator<Item = &'s RecoverySide>) -> bool {
    let mut is_replaying = false;
    for side in sides {
        let is_waited_for = side.recovery.is_some() && (side.keeps || side.logs.len() > 1);
        if is_waited_for || matches!(side.waits, Some(Wait::Room { .. })) {
            return false;
        }
        is_replaying |= side.is_being_replayed();
    }
    is_replaying
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
        let mut parts = machines.recoveries.values();
        let why = match parts.any(|side| side.lacks_room && side.covers(hash)) {
            true => NO_ROOM,
            false if in_recovery => return None,
            false => "no server recovers its data yet",
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
        let counters = sides().map(RecoverySide::counters);
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
    pub(super) fn recover(&mut self, part: Box<RecoveryPart>, context: &mut Context<'_>) {
        let Some(name) = PartName::of(&part) else { return };
        let PartName { dead, range, epoch } = name;
        let of_range = self.recoveries.iter();
        let others: Vec<OwnershipEpoch> = of_range
            .filter(|(_, side)| side.machine.name().range.overlaps(range))
            .map(|(other, _)| *other)
            .filter(|other| *other != epoch)
            .collect();
        // A partition of this range with an older epoch was handed back, or reassigned.
        if others.iter().all(|other| *other < epoch) {
            for other in others {
                self.drive_recovery(
                    other,
                    RecoveryMasterEvent::Decided { is_ours: false },
                    context,
                );
            }
            let now = context.now;
            let new = || {
                tracing::info!(%dead, %range, %epoch, "recovering a partition of a dead server");
                RecoverySide::new(now, name, &part)
            };
            if part.keeps && !self.recoveries.contains_key(&epoch) {
                self.end_migrations_of(range, context);
            }
            self.recoveries.entry(epoch).or_insert_with(new);
            self.note_deaths(epoch, context);
            self.drive_recovery(epoch, RecoveryMasterEvent::Part(part), context);
            if let Some(side) = self.recoveries.get_mut(&epoch) {
                side.extent.set_log(side.machine.log_bytes());
            }
        }
    }

    /// Passes deaths and ownership changes in the coordinator's map to the recovery masters.
    pub(super) fn follow_map_of_recoveries(&mut self, context: &mut Context<'_>) {
        let (map, me) = (context.node.map(), context.node.me());
        let epochs: Vec<OwnershipEpoch> = self.recoveries.keys().copied().collect();
        for epoch in epochs {
            self.note_deaths(epoch, context);
            let side = self.recoveries.get(&epoch);
            let decided = side.and_then(|side| decision(&map, side.machine.name(), me));
            if let Some(is_ours) = decided {
                if let Some(side) = self.recoveries.get_mut(&epoch).filter(|_| is_ours) {
                    side.note_served(context.now);
                }
                let event = RecoveryMasterEvent::Decided { is_ours };
                self.drive_recovery(epoch, event, context);
            }
        }
    }

    fn note_deaths(&mut self, epoch: OwnershipEpoch, context: &mut Context<'_>) {
        let Some(side) = self.recoveries.get_mut(&epoch) else { return };
        let dead = context.node.dead().into_iter();
        let died: Vec<ServerId> = dead.filter(|id| side.dead.insert(*id)).collect();
        for backup in died {
            self.drive_recovery(epoch, RecoveryMasterEvent::Died { backup }, context);
        }
    }

    /// Handles the coordinator's confirmation that a partition of this server is durable.
    pub(super) fn part_kept(
        &mut self,
        range: HashRange,
        epoch: OwnershipEpoch,
        context: &mut Context<'_>,
    ) {
        let side = self.recoveries.get(&epoch);
        if side.is_some_and(|side| side.machine.name().range == range) {
            self.drive_recovery(epoch, RecoveryMasterEvent::Kept, context);
        }
    }

    /// Passes an event to all recovery masters.
    pub(super) fn tell_recoveries(
        &mut self,
        event: &RecoveryMasterEvent,
        context: &mut Context<'_>,
    ) {
        let epochs: Vec<OwnershipEpoch> = self.recoveries.keys().copied().collect();
        for epoch in epochs {
            self.drive_recovery(epoch, event.clone(), context);
        }
    }

    /// Passes an event to a recovery master, and begins partitions that need not wait any more.
    pub(super) fn drive_recovery(
        &mut self,
        epoch: OwnershipEpoch,
        event: RecoveryMasterEvent,
        context: &mut Context<'_>,
    ) {
        self.drive_part(epoch, event, context);
        self.begin_in_turn(context);
    }

    fn drive_part(
        &mut self,
        epoch: OwnershipEpoch,
        event: RecoveryMasterEvent,
        context: &mut Context<'_>,
    ) {
        let Some(side) = self.recoveries.get_mut(&epoch) else { return };
        let mut effects = Outbox::new();
        side.machine.handle(context.now, event, &mut effects);
        while let Some(effect) = effects.take_first() {
            side.apply(effect, &mut effects, context);
        }
        if side.is_over() {
            self.recoveries.remove(&epoch);
        }
    }

    /// Begins queued partitions.
    fn begin_in_turn(&mut self, context: &mut Context<'_>) {
        let sides = self.recoveries.values();
        let mut replayed = sides.filter(|side| side.is_being_replayed()).count();
        let queued = self.recoveries.iter().filter(|(_, side)| side.is_queued);
        for epoch in queued.map(|(epoch, _)| *epoch).collect::<Vec<_>>() {
            if replayed >= REPLAYED_MAX {
                break;
            }
            let Some(side) = self.recoveries.get_mut(&epoch) else { continue };
            side.is_queued = false;
            if let Err(reason) = side.begin(context) {
                self.drive_part(epoch, RecoveryMasterEvent::Begun(Err(reason)), context);
            } else {
                replayed += 1;
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
            side.machine.name().range == reply.range && side.logs.iter().any(is_of_part)
        };
        // The newest partition counts, if there was an earlier one for the same range.
        let asker = self.recoveries.iter_mut().rfind(|(_, side)| is_asker(side));
        let Some((&epoch, side)) = asker else { return context.buffers.give(payload.buffer) };
        context.node.recovery_counts.received(payload.bytes().len());
        side.extent.note(reply.from, reply.next, payload.bytes().len());
        if let Some(recovery) = &side.recovery {
            recovery.foresee(side.extent.of_range());
        }
        let payload = match payload.bytes().is_empty() {
            true => {
                context.buffers.give(payload.buffer);
                None
            }
            false => Some(side.keep(payload)),
        };
        self.drive_recovery(epoch, RecoveryMasterEvent::Replied { from, reply, payload }, context);
    }

    /// Does this reactor's share of awaited work, and resumes masters that need not wait any
    /// more.
    pub(super) fn poll_recoveries(&mut self, context: &mut Context<'_>) {
        let waiting = self.recoveries.iter().filter(|(_, side)| side.is_waiting());
        let waiting: Vec<OwnershipEpoch> = waiting.map(|(epoch, _)| *epoch).collect();
        for epoch in waiting {
            let Some(side) = self.recoveries.get_mut(&epoch) else { continue };
            let events = side.poll(context);
            if side.is_over() {
                self.recoveries.remove(&epoch);
            }
            for event in events {
                self.drive_recovery(epoch, event, context);
            }
        }
    }

    /// Runs the recovery masters that are due.
    pub(super) fn tick_recoveries(&mut self, context: &mut Context<'_>) {
        let now = context.now;
        let is_due = |side: &RecoverySide| side.machine.next_deadline().is_some_and(|at| at <= now);
        let due = self.recoveries.iter().filter(|(_, side)| is_due(side));
        for epoch in due.map(|(epoch, _)| *epoch).collect::<Vec<_>>() {
            self.drive_recovery(epoch, RecoveryMasterEvent::Tick, context);
        }
    }
}

impl RecoverySide {
    /// Does this reactor's share of the work that the partition waits for. Returns its results.
    fn poll(&mut self, context: &mut Context<'_>) -> Vec<RecoveryMasterEvent> {
        let store = context.node.store();
        let range = self.machine.name().range;
        match self.waits.take() {
            Some(Wait::Begin(grace, mut voided)) => {
                if store.is_over(&grace) && voided.drop_some(context.worker, range) {
                    return vec![RecoveryMasterEvent::Begun(Ok(()))];
                }
                self.waits = Some(Wait::Begin(grace, voided));
            }
            Some(Wait::Secure(dependency)) => {
                let is_hasty = planted::is(Bug::FreedBeforeCommit);
                if is_hasty || store.log().is_acknowledged(&dependency) {
                    return vec![RecoveryMasterEvent::Secured];
                }
                self.waits = Some(Wait::Secure(dependency));
            }
            Some(Wait::Sweep(grace, recovery)) if store.is_over(&grace) => {
                context.node.work.push(Work::SweepRecovery(recovery));
            }
            Some(wait @ Wait::Sweep(..)) => self.waits = Some(wait),
            Some(Wait::Room { until, replays }) => {
                return self.poll_room(until, replays, context);
            }
            None => {}
        }
        Vec::new()
    }
}

/// Returns the answer of a server that cannot recover a partition, because it has no replicas.
pub(super) fn refusal(part: &RecoveryPart) -> Option<ToCoordinator> {
    let PartName { dead, range, epoch } = PartName::of(part)?;
    let reason = "this server does not replicate its log".to_owned();
    Some(RecoveryUpdate::NotRecovered { dead, range, epoch, reason }.into())
}

/// Returns whether this server owns a partition, once its range has a new owner: epochs rise.
/// Before that, this server may own the range under an older epoch, as the target of a migration
/// from a dead source.
fn decision(map: &ClusterMap, part: PartName, me: ServerId) -> Option<bool> {
    let inside = || map.tablets.iter().filter(|tablet| tablet.range.overlaps(part.range));
    let is_decided = inside().any(|tablet| tablet.epoch >= part.epoch);
    is_decided.then(|| inside().any(|it| (it.owner, it.epoch) == (me, part.epoch)))
}
