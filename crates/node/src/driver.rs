//! The driver of the protocol machines: one loop for all of them.
//!
//! A component supplies a [`MachineDriver`]: the state that it keeps for one machine, and the way it
//! applies each effect. A [`DrivenMachines`] holds the machines of one kind with their drivers. Its
//! [`DrivenMachines::change`] is the only way to change one of them, and updates the indexes of deadlines,
//! waits and other demands. So no caller can forget a deadline, and a turn finds the machines to
//! poll or to tick without asking all of them.

use crate::context::{BufferPool, Context};
use crate::demands::{Demands, FleetDemands, ReplayReplication, Wait};
use crate::messages::Payload;
use protocols::{Machine, Outbox, Ticket};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use types::Instant;

/// An event of the machine that a driver serves.
pub(crate) type EventOf<D> = <<D as MachineDriver>::Machine as Machine>::Event;

/// An effect of the machine that a driver serves.
pub(crate) type EffectOf<D> = <<D as MachineDriver>::Machine as Machine>::Effect;

/// A component's state for one machine.
pub(crate) trait MachineDriver: Sized {
    /// The machine that it serves.
    type Machine: Machine;

    /// Applies an effect. Returns the event that answers it, if it is complete at once.
    fn apply(
        &mut self,
        machine: &Self::Machine,
        effect: EffectOf<Self>,
        payloads: &mut Payloads,
        context: &mut Context<'_>,
    ) -> Option<EventOf<Self>>;

    /// Does this reactor's share of the awaited work. Returns the events that end the wait.
    fn poll(&mut self, machine: &Self::Machine, context: &mut Context<'_>) -> Vec<EventOf<Self>>;

    /// Returns the demands on every turn.
    fn demands(&self, machine: &Self::Machine) -> Demands;

    /// Returns whether the machine only answers late messages. There may be few of these.
    fn is_idle(&self, _machine: &Self::Machine) -> bool {
        false
    }

    /// Returns whether the machine has nothing left to do, not even to answer late messages.
    fn is_over(&self, _machine: &Self::Machine) -> bool {
        false
    }
}

/// Bulk data that a machine names by tickets.
#[derive(Default)]
pub(crate) struct Payloads {
    payloads: BTreeMap<Ticket, Payload>,
    last: u64,
}

impl Payloads {
    /// Keeps a payload, and returns its ticket. Returns `None` for an empty payload.
    pub(crate) fn keep(&mut self, payload: Payload, buffers: &mut BufferPool) -> Option<Ticket> {
        if payload.bytes().is_empty() {
            buffers.give(payload.buffer);
            return None;
        }
        self.last += 1;
        let before = self.payloads.insert(Ticket(self.last), payload);
        assert!(before.is_none(), "a ticket names one payload");
        Some(Ticket(self.last))
    }

    /// Removes a payload. Returns `None` if it was taken or dropped before: a replay that fails
    /// after the end of its migration names such a payload.
    pub(crate) fn take(&mut self, ticket: Ticket) -> Option<Payload> {
        self.payloads.remove(&ticket)
    }

    /// Drops all payloads. Their tickets are not issued again.
    pub(crate) fn clear(&mut self) {
        self.payloads.clear();
    }

    /// Drops a payload that the machine does not need, and reuses its buffer.
    pub(crate) fn discard(&mut self, ticket: Ticket, buffers: &mut BufferPool) {
        if let Some(payload) = self.take(ticket) {
            buffers.give(payload.buffer);
        }
    }
}

/// A machine with its driver.
pub(crate) struct Driven<D: MachineDriver> {
    pub(crate) machine: D::Machine,
    pub(crate) driver: D,
    pub(crate) payloads: Payloads,
    /// The values in the indexes.
    indexed: Indexed,
}

/// Values of a machine in the indexes.
#[derive(Clone, Copy, Default)]
struct Indexed {
    deadline: Option<Instant>,
    demands: Demands,
}

impl<D: MachineDriver> Driven<D> {
    /// Passes an event to the machine, and applies effects until none is left.
    pub(crate) fn step(&mut self, event: EventOf<D>, context: &mut Context<'_>) {
        let mut effects = Outbox::new();
        self.machine.handle(context.now, event, &mut effects);
        while let Some(effect) = effects.take_first() {
            let answer = self.driver.apply(&self.machine, effect, &mut self.payloads, context);
            if let Some(event) = answer {
                self.machine.handle(context.now, event, &mut effects);
            }
        }
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Vec<EventOf<D>> {
        self.driver.poll(&self.machine, context)
    }
}

/// The machines of one kind, by their ids, with indexes of what they demand.
pub(crate) struct DrivenMachines<K, D: MachineDriver> {
    by_id: BTreeMap<K, Driven<D>>,
    deadlines: BTreeSet<(Instant, K)>,
    waits: BTreeSet<(Wait, K)>,
    background_shares: BTreeSet<(u8, K)>,
    latency_targets: BTreeSet<(Duration, K)>,
    served_until: BTreeSet<(Instant, K)>,
    replication: BTreeSet<(ReplayReplication, K)>,
}

impl<K, D: MachineDriver> Default for DrivenMachines<K, D> {
    fn default() -> DrivenMachines<K, D> {
        DrivenMachines {
            by_id: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            waits: BTreeSet::new(),
            background_shares: BTreeSet::new(),
            latency_targets: BTreeSet::new(),
            served_until: BTreeSet::new(),
            replication: BTreeSet::new(),
        }
    }
}

impl<K: Copy + Ord, D: MachineDriver> DrivenMachines<K, D> {
    pub(crate) fn get(&self, id: K) -> Option<&Driven<D>> {
        self.by_id.get(&id)
    }

    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = (K, &Driven<D>)> {
        self.by_id.iter().map(|(id, driven)| (*id, driven))
    }

    pub(crate) fn values(&self) -> impl DoubleEndedIterator<Item = &Driven<D>> {
        self.by_id.values()
    }

    /// Returns the ids of the machines that match, in order.
    pub(crate) fn ids(&self, matches: impl Fn(&Driven<D>) -> bool) -> Vec<K> {
        self.iter().filter(|(_, driven)| matches(driven)).map(|(id, _)| id).collect()
    }

    pub(crate) fn contains(&self, id: K) -> bool {
        self.by_id.contains_key(&id)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    /// Adds a machine, unless there is one with this id. The oldest idle machine is dropped if
    /// there are too many.
    pub(crate) fn begin(&mut self, id: K, new: impl FnOnce() -> (D::Machine, D)) {
        if self.contains(id) {
            return;
        }
        let idle = self.ids(|it| it.driver.is_idle(&it.machine));
        if idle.len() >= IDLE_MACHINES_MAX {
            self.remove(idle[0]);
        }
        let (machine, driver) = new();
        let (payloads, indexed) = (Payloads::default(), Indexed::default());
        self.by_id.insert(id, Driven { machine, driver, payloads, indexed });
        self.change(id, |_| ());
    }

    /// Changes a machine with its driver, if there is one with this id, and updates the indexes.
    pub(crate) fn change<T>(
        &mut self,
        id: K,
        change: impl FnOnce(&mut Driven<D>) -> T,
    ) -> Option<T> {
        let driven = self.by_id.get_mut(&id)?;
        let result = change(driven);
        let deadline = driven.machine.next_deadline();
        let now = Indexed { deadline, demands: driven.driver.demands(&driven.machine) };
        let before = std::mem::replace(&mut driven.indexed, now);
        let is_over = driven.driver.is_over(&driven.machine);
        self.index(id, before, now);
        if is_over {
            self.remove(id);
        }
        Some(result)
    }

    /// Passes an event to a machine, if there is one with this id, and applies its effects.
    pub(crate) fn step(&mut self, id: K, event: EventOf<D>, context: &mut Context<'_>) {
        self.change(id, |driven| driven.step(event, context));
    }

    /// Returns the ids of the machines that wait, in order.
    pub(crate) fn waiting(&self) -> Vec<K> {
        let mut waiting: Vec<K> = self.waits.iter().map(|(_, id)| *id).collect();
        waiting.sort_unstable();
        waiting
    }

    /// Does this reactor's share of the work that a machine waits for. Returns the events that
    /// end the wait.
    pub(crate) fn poll_one(&mut self, id: K, context: &mut Context<'_>) -> Vec<EventOf<D>> {
        self.change(id, |driven| driven.poll(context)).unwrap_or_default()
    }

    /// Does this reactor's share of awaited work, and resumes machines that need not wait any
    /// more.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) {
        for id in self.waiting() {
            for event in self.poll_one(id, context) {
                self.step(id, event, context);
            }
        }
    }

    /// Returns the ids of the machines that are due, in order.
    pub(crate) fn due(&self, now: Instant) -> Vec<K> {
        let due = self.deadlines.iter().take_while(|(at, _)| *at <= now);
        let mut due: Vec<K> = due.map(|(_, id)| *id).collect();
        due.sort_unstable();
        due
    }

    /// Runs the machines that are due.
    pub(crate) fn tick(&mut self, context: &mut Context<'_>) {
        for id in self.due(context.now) {
            self.step(id, D::Machine::TICK, context);
        }
    }

    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.deadlines.first().map(|(at, _)| *at)
    }

    /// Returns the demands of all machines together.
    pub(crate) fn demands(&self) -> FleetDemands {
        let is_restless = |wait: &&(Wait, K)| wait.0 == Wait::Reactors;
        FleetDemands {
            deadline: self.next_deadline(),
            waiting: self.waits.len(),
            restless: self.waits.iter().take_while(is_restless).count(),
            background_share: self.background_shares.last().map(|(share, _)| *share),
            latency_target: self.latency_targets.first().map(|(target, _)| *target),
            served_until: self.served_until.first().map(|(until, _)| *until),
            replication: self.replication.last().map(|(replication, _)| *replication),
        }
    }

    /// Removes a machine.
    pub(crate) fn remove(&mut self, id: K) {
        if let Some(driven) = self.by_id.remove(&id) {
            self.index(id, driven.indexed, Indexed::default());
        }
    }

    /// Replaces the entries of a machine in the indexes.
    fn index(&mut self, id: K, before: Indexed, now: Indexed) {
        reindex(&mut self.deadlines, id, before.deadline, now.deadline);
        let (before, now) = (before.demands, now.demands);
        if before == now {
            return;
        }
        reindex(&mut self.waits, id, before.wait, now.wait);
        let shares = &mut self.background_shares;
        reindex(shares, id, before.background_share, now.background_share);
        reindex(&mut self.latency_targets, id, before.latency_target, now.latency_target);
        reindex(&mut self.served_until, id, before.served_until, now.served_until);
        reindex(&mut self.replication, id, before.replication, now.replication);
    }
}

/// Replaces the entry of a machine in one index.
fn reindex<V: Copy + Ord, K: Copy + Ord>(
    index: &mut BTreeSet<(V, K)>,
    id: K,
    before: Option<V>,
    now: Option<V>,
) {
    if before == now {
        return;
    }
    let was_indexed = before.is_none_or(|value| index.remove(&(value, id)));
    assert!(was_indexed, "an index holds the last value of each machine");
    let is_new = now.is_none_or(|value| index.insert((value, id)));
    assert!(is_new, "an index holds one value of each machine");
}

/// Maximum number of idle machines of one kind. They remember how their migrations ended and
/// answer late messages. A connection delivers in order, so no message is later than that.
pub(crate) const IDLE_MACHINES_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine that is due when its last event says so.
    struct Alarm(Option<Instant>);

    struct AlarmDriver;

    impl Machine for Alarm {
        type Event = Option<Instant>;
        type Effect = ();

        const TICK: Option<Instant> = None;

        fn handle(&mut self, _: Instant, event: Option<Instant>, _: &mut Outbox<()>) {
            self.0 = event;
        }

        fn next_deadline(&self) -> Option<Instant> {
            self.0
        }
    }

    impl MachineDriver for AlarmDriver {
        type Machine = Alarm;

        fn apply(
            &mut self,
            _: &Alarm,
            (): (),
            _: &mut Payloads,
            _: &mut Context<'_>,
        ) -> Option<Option<Instant>> {
            None
        }

        fn poll(&mut self, _: &Alarm, _: &mut Context<'_>) -> Vec<Option<Instant>> {
            Vec::new()
        }

        fn demands(&self, _: &Alarm) -> Demands {
            Demands::default()
        }
    }

    fn fleet(deadlines: &[u64]) -> DrivenMachines<usize, AlarmDriver> {
        let mut fleet = DrivenMachines::default();
        for (id, at) in deadlines.iter().enumerate() {
            fleet.begin(id, || (Alarm(Some(Instant(*at))), AlarmDriver));
        }
        fleet
    }

    #[test]
    fn each_change_of_a_machine_updates_the_earliest_deadline() {
        let mut fleet = fleet(&[30, 10, 20]);
        assert_eq!(fleet.next_deadline(), Some(Instant(10)));
        assert_eq!(fleet.due(Instant(20)), [1, 2], "in the order of their ids");
        fleet.change(1, |alarm| alarm.machine.0 = None);
        assert_eq!(fleet.demands().deadline, Some(Instant(20)));
        fleet.remove(2);
        assert_eq!(fleet.due(Instant(30)), [0]);
    }

    #[test]
    #[should_panic(expected = "an index holds the last value of each machine")]
    fn the_indexes_agree_with_the_machines() {
        let mut fleet = fleet(&[10]);
        fleet.deadlines.clear();
        fleet.change(0, |alarm| alarm.machine.0 = None);
    }

    #[test]
    fn a_dropped_payload_is_not_taken_and_its_ticket_not_issued_again() {
        let mut buffers = BufferPool::default();
        let payload = || Payload { buffer: vec![0; 8], start: 0 };
        let mut payloads = Payloads::default();
        let first = payloads.keep(payload(), &mut buffers).expect("a payload with bytes");
        payloads.clear();
        payloads.discard(first, &mut buffers);
        assert!(buffers.is_empty(), "the payload was dropped before");
        assert_ne!(payloads.keep(payload(), &mut buffers), Some(first));
    }
}
