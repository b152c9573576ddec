//! Carries out what recovery masters want done on this server, one for each part of a dead server's
//! ranges that was handed to it.
//!
//! - [`effects`](self): tablets that begin and go, reads, replays;
//! - [`reading`](self): what this server's disk has of dead servers' logs;
//! - [`counts`](self): what operators see of both sides.
//!
//! The tablet of a part is *recovering* from the beginning until the coordinator's map makes it ours
//! under the part's epoch (`tablets.rs`), and from then on *securing*, until what was replayed is safe
//! and the coordinator knows that; what is replayed goes into the reactors' side logs, one for
//! all parts. What is not to be ours is forgotten.
//!
//! Few parts are replayed at a time, in the order of their epochs: each has reads under way and replies
//! that wait. Where memory is short a part waits for the cleaner before it is handed back.
//!
//! **Invariant:** nothing is read before every reactor has taken up the tablet: a reactor that did not
//! know of it would drop what it replays.
//! **Invariant:** nothing begins in a range of which an earlier attempt is still being forgotten.

mod counts;
mod effects;
mod extent;
mod lineage;
mod reading;

pub(super) use counts::RecoveryCounts;
pub(super) use reading::Reading;
pub use reading::{ReadDone, ReadJob};

use super::Engine;
use super::node::{Machines, Node};
use super::outgoing::Payload;
use super::work::Work;
use extent::Extent;
use planted::Bug;
use protocols::recovery::{Master, MasterEvent, NO_ROOM, PartName, Progress};
use protocols::{Outbox, Ticket};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, MutexGuard, PoisonError};
use store::log::{Dependency, GracePeriod};
use store::{Recovery, ReplayCounters};
use types::{
    HashRange, Instant, KeyHash, OwnershipEpoch, ServerId, Slot, TableId, Tenure, UnixMillis,
};
use wire::control::{ClusterMap, RecoveryLog, RecoveryPart, ToCoordinator};
use wire::peer::RecoveryReply;

/// A recovery master and what its driver must remember for it.
pub(super) struct RecoverySide {
    pub(super) machine: Master,
    /// Whose entries count, and under which tenures.
    logs: Vec<RecoveryLog>,
    /// By table: under which is written here.
    tenures: Vec<Tenure>,
    /// What is here counts, too.
    keeps: bool,
    /// The latest time by which the dead can have judged expiry in the range.
    clock_floor: UnixMillis,
    recovery: Option<Arc<Recovery>>,
    /// It may not begin before others have been replayed.
    is_queued: bool,
    waits: Option<Wait>,
    payloads: BTreeMap<Ticket, Payload>,
    next_ticket: u64,
    /// Whom the machine knows to be dead.
    dead: BTreeSet<ServerId>,
    extent: Extent,
    /// Whether it was said that the part is handed back.
    is_refused: bool,
    since: Instant,
    replayed_at: Option<Instant>,
    is_served: bool,
    /// It is, since it does not fit into this server's memory.
    lacks_room: bool,
}

/// What a part waits for.
enum Wait {
    /// For every reactor to know of its tablet, and then for what is void of these tables to go.
    Begin(GracePeriod, Voided),
    /// For everything that was written for it to be safe.
    Secure(Dependency),
    /// For every reactor to know that it depends on nothing any more.
    Sweep(GracePeriod, Arc<Recovery>),
    /// For memory, to begin or to replay these, each with whether it is settled.
    Room { until: Instant, replays: Vec<(Ticket, bool)> },
}

/// Parts that are replayed at a time.
const REPLAYED_MAX: usize = 4;

/// What a server keeps of a range and does not count any more: of these tables, from a hash on.
#[derive(Debug)]
struct Voided {
    tables: Vec<TableId>,
    from: KeyHash,
}

/// A reply on its way into the store.
#[derive(Debug)]
pub(super) struct ReplayLog {
    recovery: Arc<Recovery>,
    epoch: OwnershipEpoch,
    ticket: Ticket,
    /// Whether the dead server's log has it for whoever reads it next.
    is_settled: bool,
    payload: Payload,
    /// Bytes of the payload that are dealt with.
    from: usize,
}

impl RecoverySide {
    fn new(now: Instant, name: PartName, part: &RecoveryPart) -> RecoverySide {
        RecoverySide {
            machine: Master::new(name),
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

    /// Whether reactors must look here in each turn.
    pub(super) fn is_waiting(&self) -> bool {
        self.waits.is_some()
    }

    /// Whether that is all that it waits for.
    pub(super) fn waits_for_backups(&self) -> bool {
        matches!(self.waits, Some(Wait::Secure(_)))
    }

    fn is_over(&self) -> bool {
        self.machine.is_over() && self.waits.is_none()
    }

    /// The map shows that it is ours.
    fn note_served(&mut self, now: Instant) {
        let Some(replayed_at) = self.replayed_at else { return };
        if !std::mem::replace(&mut self.is_served, true) {
            tracing::info!(
                part = %self.machine.name(),
                records = self.counters().records,
                replay_ms = replayed_at.since(self.since).as_millis(),
                told_ms = now.since(replayed_at).as_millis(),
                "a part is served"
            );
        }
    }

    /// Whether segments are read for it.
    fn is_being_replayed(&self) -> bool {
        self.recovery.is_some() && self.replayed_at.is_none()
    }

    fn keep(&mut self, payload: Payload) -> Ticket {
        self.next_ticket += 1;
        let ticket = Ticket(self.next_ticket);
        self.payloads.insert(ticket, payload);
        ticket
    }

    fn counters(&self) -> ReplayCounters {
        self.recovery.as_ref().map_or_else(ReplayCounters::default, |it| it.counters())
    }
}

/// Whether what has been replayed waits to be replicated until everything is: that serves clients
/// sooner, and until then the dead server's log has it. Not if a part is served only when it is safe,
/// or lacks memory, which is not freed meanwhile.
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

    /// Whether something of the range is being forgotten that was replayed for nothing.
    pub(super) fn is_being_forgotten(&self, range: HashRange) -> bool {
        self.forgetting().values().any(|other| other.overlaps(range))
    }

    /// Redis's error for a slot whose owner is dead; `None` if its clients may wait for others to
    /// recover it.
    pub(super) fn not_served(&self, slot: Slot, in_recovery: bool) -> Option<String> {
        let hash = slot.first_hash();
        let machines = self.machines();
        let mut parts = machines.recoveries.values();
        let why = match parts.any(|side| side.lacks_room && side.covers(hash)) {
            true => NO_ROOM,
            false if in_recovery => return None,
            false => "nobody recovers yet what it held",
        };
        Some(format!("CLUSTERDOWN Hash slot not served: its server died, and {why}"))
    }

    /// The section `Recovery` of `INFO`.
    pub(super) fn recovery_fields(&self) -> Vec<(String, String)> {
        let machines = self.machines();
        let sides = || machines.recoveries.values();
        let progress = sides().map(|side| side.machine.progress());
        let progress = progress.fold(Progress::default(), |sum, part| Progress {
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

impl Engine {
    /// The coordinator hands a part to this server, or says once more where it can be read.
    pub(super) fn recover(&mut self, now: Instant, part: Box<RecoveryPart>) {
        let Some(name) = PartName::of(&part) else { return };
        let PartName { dead, range, epoch } = name;
        if self.replication.is_none() {
            let reason = "this server's log is not kept by others".to_owned();
            let refusal = ToCoordinator::NotRecovered { dead, range, epoch, reason };
            return self.out.control.push(refusal);
        }
        let node = self.node.clone();
        let mut machines = node.machines();
        let of_range = machines.recoveries.iter();
        let others: Vec<OwnershipEpoch> = of_range
            .filter(|(_, side)| side.machine.name().range.overlaps(range))
            .map(|(other, _)| *other)
            .filter(|other| *other != epoch)
            .collect();
        // What was handed out before this was handed back, or taken away.
        if others.iter().all(|other| *other < epoch) {
            for other in others {
                self.drive_recovery_in(
                    &mut machines,
                    now,
                    other,
                    MasterEvent::Decided { is_ours: false },
                );
            }
            let new = || {
                tracing::info!(%dead, %range, %epoch, "a part of a dead server's ranges is recovered");
                RecoverySide::new(now, name, &part)
            };
            if part.keeps && !machines.recoveries.contains_key(&epoch) {
                self.end_migrations_of(&mut machines, now, range);
            }
            machines.recoveries.entry(epoch).or_insert_with(new);
            self.note_deaths(&mut machines, now, epoch);
            self.drive_recovery_in(&mut machines, now, epoch, MasterEvent::Part(part));
            if let Some(side) = machines.recoveries.get_mut(&epoch) {
                side.extent.set_log(side.machine.log_bytes());
            }
        }
        node.note_machines(&machines);
    }

    /// The coordinator's map tells who is dead, and whose the parts are.
    pub(super) fn follow_map_of_recoveries(&mut self, now: Instant) {
        let node = self.node.clone();
        let mut machines = node.machines();
        let map = node.map();
        let epochs: Vec<OwnershipEpoch> = machines.recoveries.keys().copied().collect();
        for epoch in epochs {
            self.note_deaths(&mut machines, now, epoch);
            let side = machines.recoveries.get(&epoch);
            let decided = side.and_then(|side| decision(&map, side.machine.name(), node.me()));
            if let Some(is_ours) = decided {
                if let Some(side) = machines.recoveries.get_mut(&epoch).filter(|_| is_ours) {
                    side.note_served(now);
                }
                let event = MasterEvent::Decided { is_ours };
                self.drive_recovery_in(&mut machines, now, epoch, event);
            }
        }
        node.note_machines(&machines);
    }

    fn note_deaths(&mut self, machines: &mut Machines, now: Instant, epoch: OwnershipEpoch) {
        let Some(side) = machines.recoveries.get_mut(&epoch) else { return };
        let dead = self.node.dead().into_iter();
        let died: Vec<ServerId> = dead.filter(|id| side.dead.insert(*id)).collect();
        for backup in died {
            self.drive_recovery_in(machines, now, epoch, MasterEvent::Died { backup });
        }
    }

    /// The coordinator knows that a part of ours is safe.
    pub(super) fn part_kept(&mut self, now: Instant, range: HashRange, epoch: OwnershipEpoch) {
        let node = self.node.clone();
        let mut machines = node.machines();
        let side = machines.recoveries.get(&epoch);
        if side.is_some_and(|side| side.machine.name().range == range) {
            self.drive_recovery_in(&mut machines, now, epoch, MasterEvent::Kept);
        }
        node.note_machines(&machines);
    }

    /// Lets something happen to all masters.
    fn tell_recoveries(&mut self, now: Instant, event: &MasterEvent) {
        let node = self.node.clone();
        let mut machines = node.machines();
        let epochs: Vec<OwnershipEpoch> = machines.recoveries.keys().copied().collect();
        for epoch in epochs {
            self.drive_recovery_in(&mut machines, now, epoch, event.clone());
        }
        node.note_machines(&machines);
    }

    fn drive_recovery(&mut self, now: Instant, epoch: OwnershipEpoch, event: MasterEvent) {
        let node = self.node.clone();
        let mut machines = node.machines();
        self.drive_recovery_in(&mut machines, now, epoch, event);
        node.note_machines(&machines);
    }

    fn drive_recovery_in(
        &mut self,
        machines: &mut Machines,
        now: Instant,
        epoch: OwnershipEpoch,
        event: MasterEvent,
    ) {
        self.drive_part(machines, now, epoch, event);
        self.begin_in_turn(machines, now);
    }

    fn drive_part(
        &mut self,
        machines: &mut Machines,
        now: Instant,
        epoch: OwnershipEpoch,
        event: MasterEvent,
    ) {
        let Some(side) = machines.recoveries.get_mut(&epoch) else { return };
        let mut effects = Outbox::new();
        side.machine.handle(now, event, &mut effects);
        while let Some(effect) = effects.take_first() {
            self.carry_out_recovery(side, now, effect, &mut effects);
        }
        if side.is_over() {
            machines.recoveries.remove(&epoch);
        }
    }

    /// Begins parts that have been waiting for others.
    fn begin_in_turn(&mut self, machines: &mut Machines, now: Instant) {
        let sides = machines.recoveries.values();
        let mut replayed = sides.filter(|side| side.is_being_replayed()).count();
        let queued = machines.recoveries.iter().filter(|(_, side)| side.is_queued);
        for epoch in queued.map(|(epoch, _)| *epoch).collect::<Vec<_>>() {
            if replayed >= REPLAYED_MAX {
                break;
            }
            let Some(side) = machines.recoveries.get_mut(&epoch) else { continue };
            side.is_queued = false;
            if let Err(reason) = self.begin_recovery(side, now) {
                self.drive_part(machines, now, epoch, MasterEvent::Begun(Err(reason)));
            } else {
                replayed += 1;
            }
        }
    }

    /// A backup has answered a read.
    pub(super) fn recovery_replied(
        &mut self,
        now: Instant,
        from: ServerId,
        reply: RecoveryReply,
        payload: Payload,
    ) {
        let node = self.node.clone();
        let mut machines = node.machines();
        let is_asker = |side: &RecoverySide| {
            let is_of_part = |log: &RecoveryLog| log.dead == reply.replica.log;
            side.machine.name().range == reply.range && side.logs.iter().any(is_of_part)
        };
        // The youngest, if there was another one for the same range before.
        let asker = machines.recoveries.iter_mut().rfind(|(_, side)| is_asker(side));
        let Some((&epoch, side)) = asker else { return self.give_buffer(payload.buffer) };
        self.node.recovery_counts.received(payload.bytes().len());
        side.extent.note(reply.from, reply.next, payload.bytes().len());
        if let Some(recovery) = &side.recovery {
            recovery.foresee(side.extent.of_range());
        }
        let payload = match payload.bytes().is_empty() {
            true => {
                self.give_buffer(payload.buffer);
                None
            }
            false => Some(side.keep(payload)),
        };
        self.drive_recovery_in(
            &mut machines,
            now,
            epoch,
            MasterEvent::Replied { from, reply, payload },
        );
        node.note_machines(&machines);
    }

    /// Does this reactor's part of what masters wait for, and goes on with those that need not wait
    /// any more.
    pub(super) fn poll_recoveries(&mut self, machines: &mut Machines, now: Instant) {
        let waiting = machines.recoveries.iter().filter(|(_, side)| side.is_waiting());
        let waiting: Vec<OwnershipEpoch> = waiting.map(|(epoch, _)| *epoch).collect();
        for epoch in waiting {
            let Some(side) = machines.recoveries.get_mut(&epoch) else { continue };
            let events = self.poll_recovery(side, now);
            if side.is_over() {
                machines.recoveries.remove(&epoch);
            }
            for event in events {
                self.drive_recovery_in(machines, now, epoch, event);
            }
        }
    }

    fn poll_recovery(&mut self, side: &mut RecoverySide, now: Instant) -> Vec<MasterEvent> {
        let store = self.node.store().clone();
        let range = side.machine.name().range;
        match side.waits.take() {
            Some(Wait::Begin(grace, mut voided)) => {
                if store.is_over(&grace) && voided.drop_some(&mut self.worker, range) {
                    return vec![MasterEvent::Begun(Ok(()))];
                }
                side.waits = Some(Wait::Begin(grace, voided));
            }
            Some(Wait::Secure(dependency)) => {
                let is_hasty = planted::is(Bug::FreedBeforeCommit);
                if is_hasty || store.log().is_acknowledged(&dependency) {
                    return vec![MasterEvent::Secured];
                }
                side.waits = Some(Wait::Secure(dependency));
            }
            Some(Wait::Sweep(grace, recovery)) if store.is_over(&grace) => {
                self.node.work.push(Work::SweepRecovery(recovery));
            }
            Some(wait @ Wait::Sweep(..)) => side.waits = Some(wait),
            Some(Wait::Room { until, replays }) => {
                return self.poll_room(side, now, (until, replays));
            }
            None => {}
        }
        Vec::new()
    }

    /// Time has passed for the masters.
    pub(super) fn tick_recoveries(&mut self, machines: &mut Machines, now: Instant) {
        let is_due = |side: &RecoverySide| side.machine.next_deadline().is_some_and(|at| at <= now);
        let due = machines.recoveries.iter().filter(|(_, side)| is_due(side));
        for epoch in due.map(|(epoch, _)| *epoch).collect::<Vec<_>>() {
            self.drive_recovery_in(machines, now, epoch, MasterEvent::Tick);
        }
    }
}

/// Whether a part is ours, if its range has a new owner: epochs rise. Until then it may be ours under
/// an older one, if we are the target of a migration whose source has died.
fn decision(map: &ClusterMap, part: PartName, me: ServerId) -> Option<bool> {
    let inside = || map.tablets.iter().filter(|tablet| tablet.range.overlaps(part.range));
    let is_decided = inside().any(|tablet| tablet.epoch >= part.epoch);
    is_decided.then(|| inside().any(|it| (it.owner, it.epoch) == (me, part.epoch)))
}
