//! The driver of migration targets.

use crate::context::Context;
use crate::demands::{Demands, Wait};
use crate::driver::{MachineDriver, Payloads};
use crate::source_side::unacknowledged;
use crate::state::NodeState;
use crate::tablets::{arrival_of, carve, incarnations};
use crate::work::{PullReplay, Work};
use planted::Bug;
use protocols::migration::{Acceptance, Added, MigrationTarget, TargetEffect, TargetEvent};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use store::log::{Among, Dependency, GracePeriod, Reservation};
use store::{Arrival, ArrivalPlan, RangeClock, TableSet, Tablet, TabletState};
use types::{ReactorId, ServerId};
use wire::control::Intent;
use wire::peer::{PeerMessage, Pull};

/// The state that this server keeps for the target of a migration.
pub(crate) enum TargetDriver {
    /// The range is not here: no memory is reserved yet, or the migration is over.
    Idle,
    /// Memory is reserved.
    Reserved(Reservation),
    /// The flip is accepted, and every reactor must begin a turn with the new tablet.
    Accepting { arrival: Arc<Arrival>, partitions: usize, grace: GracePeriod },
    /// The range is served, and its records arrive.
    Arriving {
        arrival: Arc<Arrival>,
        /// Number of partitions whose first pull has not been sent yet.
        unpulled: usize,
        cut: CutWait,
    },
}

/// The event that a cut (a commit point of a migration) waits for.
pub(crate) enum CutWait {
    /// There is no cut.
    None,
    /// These reactors splice their side logs.
    Splicing(BTreeSet<ReactorId>),
    /// The log's content at the time of the cut is acknowledged completely.
    Securing(Dependency),
}

impl MachineDriver for TargetDriver {
    type Machine = MigrationTarget;

    fn apply(
        &mut self,
        machine: &MigrationTarget,
        effect: TargetEffect,
        payloads: &mut Payloads,
        context: &mut Context<'_>,
    ) -> Option<TargetEvent> {
        match effect {
            TargetEffect::Reserve { bytes } => {
                let reserved = match machine.intent() {
                    Some(intent) => reserve(intent, bytes, context),
                    None => Err("no intent".to_owned()),
                };
                return Some(TargetEvent::Reserved(reserved.map(|it| self.reserved(it))));
            }
            TargetEffect::Unreserve => {
                assert!(self.arrival().is_none(), "an accepted flip uses its reservation");
                *self = TargetDriver::Idle;
            }
            TargetEffect::Accept(acceptance) => self.accept(*acceptance, context),
            TargetEffect::Suspend => self.hold_arrival(context.node, true),
            TargetEffect::Resume => self.hold_arrival(context.node, false),
            TargetEffect::Send { to, message } => context.out.send(to, message),
            TargetEffect::Pull { to, pull } => self.pull(to, pull, context),
            TargetEffect::Replay { partition, ticket } => {
                if let (Some(payload), Some(arrival)) = (payloads.take(ticket), self.arrival()) {
                    let (from, added) = (0, Added::default());
                    let arrival = arrival.clone();
                    let replay = PullReplay { arrival, partition, ticket, payload, from, added };
                    context.node.work.push(Work::Replay(replay));
                    if context.node.work.len() > 1 {
                        context.node.wake_all();
                    }
                }
            }
            TargetEffect::Discard { ticket } => payloads.discard(ticket, context.buffers),
            TargetEffect::Advance { partition, to } => {
                if let Some(arrival) = self.arrival() {
                    arrival.advance(partition, to);
                }
                if context.node.demands.reactors_missing.load(Ordering::Relaxed) > 0 {
                    context.node.wake_all();
                }
            }
            TargetEffect::Cut => {
                self.cut(context.node.settings().reactors);
                context.node.wake_all();
            }
            TargetEffect::Tell(message) => context.out.control.push(message.into()),
            TargetEffect::Finish => {
                self.finish(context.node);
                payloads.clear();
            }
        }
        None
    }

    /// Resumes an accepted flip after its grace period, and splices for a cut.
    fn poll(&mut self, _: &MigrationTarget, context: &mut Context<'_>) -> Vec<TargetEvent> {
        let store = context.node.store();
        match self {
            TargetDriver::Accepting { arrival, partitions, grace } => {
                if !store.is_over(grace) {
                    return Vec::new();
                }
                let (arrival, unpulled) = (arrival.clone(), *partitions);
                *self = TargetDriver::Arriving { arrival, unpulled, cut: CutWait::None };
                vec![TargetEvent::Serving]
            }
            TargetDriver::Arriving { arrival, cut, .. } => {
                if !cut.poll(arrival, context) {
                    return Vec::new();
                }
                *cut = CutWait::None;
                vec![TargetEvent::CutCommitted]
            }
            TargetDriver::Idle | TargetDriver::Reserved(_) => Vec::new(),
        }
    }

    fn demands(&self, machine: &MigrationTarget) -> Demands {
        let intent = machine.intent().filter(|_| !machine.is_over());
        let wait = match self {
            TargetDriver::Accepting { .. }
            | TargetDriver::Arriving { cut: CutWait::Splicing(_), .. } => Some(Wait::Reactors),
            TargetDriver::Arriving { cut: CutWait::Securing(_), .. } => Some(Wait::Backups),
            TargetDriver::Arriving { cut: CutWait::None, .. }
            | TargetDriver::Idle
            | TargetDriver::Reserved(_) => None,
        };
        Demands {
            wait,
            background_share: intent.map(|it| it.policy.background_share.clamp(1, 100)),
            latency_target: intent.and_then(|it| it.policy.latency_target()),
            served_until: machine.unacknowledged_until(),
            replication: None,
        }
    }

    fn is_idle(&self, machine: &MigrationTarget) -> bool {
        machine.intent().is_none() || machine.is_over()
    }
}

impl CutWait {
    /// Splices this reactor's side log if that is due. Returns whether the cut is committed.
    fn poll(&mut self, arrival: &Arrival, context: &mut Context<'_>) -> bool {
        let store = context.node.store();
        match self {
            CutWait::None => false,
            CutWait::Splicing(reactors) => {
                if !reactors.remove(&context.reactor) {
                    return false;
                }
                if !planted::is(Bug::CutBeforeSplice) {
                    context.worker.splice(arrival.migration());
                }
                if !reactors.is_empty() {
                    return false;
                }
                match unacknowledged(store, Among::Log) {
                    Some(all) if !planted::is(Bug::CutBeforeHeadsAreSafe) => {
                        let is_over = store.log().is_acknowledged(&all);
                        *self = CutWait::Securing(all);
                        is_over
                    }
                    Some(_) | None => true,
                }
            }
            CutWait::Securing(all) => store.log().is_acknowledged(all),
        }
    }
}

/// Reserves memory for a range. Refuses if the range has records of an earlier stay.
fn reserve(intent: &Intent, bytes: u64, context: &mut Context<'_>) -> Result<Reservation, String> {
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
    log.reserve(wanted).ok_or_else(|| {
        let mebibytes = wanted.div_ceil(1 << 20);
        format!("the target has no room: it needs {mebibytes} MiB free, raise its --memory")
    })
}

impl TargetDriver {
    /// Returns the arriving range, from the accepted flip to the end of the migration.
    pub(crate) fn arrival(&self) -> Option<&Arc<Arrival>> {
        match self {
            TargetDriver::Accepting { arrival, .. } | TargetDriver::Arriving { arrival, .. } => {
                Some(arrival)
            }
            TargetDriver::Idle | TargetDriver::Reserved(_) => None,
        }
    }

    fn reserved(&mut self, reservation: Reservation) {
        assert!(matches!(self, TargetDriver::Idle), "a target reserves memory once");
        *self = TargetDriver::Reserved(reservation);
    }

    /// Sends a pull. The first pulls go to the work queue, so that all idle reactors take part.
    /// Each later pull leaves from the reactor that made room for it.
    fn pull(&mut self, to: ServerId, pull: Pull, context: &mut Context<'_>) {
        let TargetDriver::Arriving { unpulled, .. } = self else {
            unreachable!("records are pulled into a served range: {pull:?}");
        };
        if *unpulled > 0 {
            *unpulled -= 1;
            context.node.work.push(Work::Pull(to, pull));
        } else {
            context.out.send(to, PeerMessage::Pull(pull));
        }
    }

    /// Begins to commit the records that have arrived.
    fn cut(&mut self, reactors: u16) {
        let TargetDriver::Arriving { cut, .. } = self else {
            unreachable!("a cut commits records of an arriving range");
        };
        assert!(matches!(cut, CutWait::None), "one cut is committed at a time");
        *cut = CutWait::Splicing((0..reactors).map(ReactorId).collect());
    }

    /// Begins to serve the range.
    fn accept(&mut self, acceptance: Acceptance, context: &Context<'_>) {
        let TargetDriver::Reserved(reservation) = std::mem::replace(self, TargetDriver::Idle)
        else {
            unreachable!("a target accepts one flip, with its memory reserved");
        };
        let Acceptance { intent, flip, partitions, until } = acceptance;
        let (store, count) = (context.node.store(), partitions.len());
        // This must precede the publication of the tablet: then a reactor may serve it.
        context.node.limit_unacknowledged(until);
        store.raise_version(flip.version_floor);
        let arrival = Arc::new(Arrival::new(ArrivalPlan {
            migration: intent.migration,
            source: intent.source,
            range: intent.range,
            partitions,
            expected: flip.records,
            reservation: Some(Arc::new(reservation)),
        }));
        let tablet = Tablet {
            range: intent.range,
            epoch: intent.target_epoch,
            incarnations: incarnations(&intent.target_incarnations),
            state: TabletState::Arriving(arrival.clone()),
            clock: RangeClock::going_on_from(flip.expiry_clock, store.clock()),
            flushing: TableSet::NONE,
        };
        context.node.change_tablets(|tablets| {
            let mut tablets = carve(tablets, intent.range, |_| None);
            tablets.push(tablet);
            tablets
        });
        let grace = context.node.store().grace_period();
        *self = TargetDriver::Accepting { arrival, partitions: count, grace };
    }

    /// Suspends all operations on the range, or serves it again.
    fn hold_arrival(&self, node: &NodeState, is_suspended: bool) {
        let Some(arrival) = self.arrival() else { return };
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

    fn finish(&mut self, node: &NodeState) {
        // If the source has died, the driver may still wait for reactors or backups.
        let (TargetDriver::Accepting { arrival, .. } | TargetDriver::Arriving { arrival, .. }) =
            std::mem::replace(self, TargetDriver::Idle)
        else {
            unreachable!("an accepted flip is finished");
        };
        let migration = arrival.migration();
        node.change_tablets(|tablets| {
            carve(tablets, arrival.range(), |tablet| {
                let is_ours = arrival_of(&tablet).is_some_and(|it| it.migration() == migration);
                Some(if is_ours {
                    Tablet { state: TabletState::Serving, ..tablet }
                } else {
                    tablet
                })
            })
        });
        node.work.push(Work::Sweep(arrival, node.store().grace_period()));
    }
}

impl PullReplay {
    /// Replays a bounded number of records from a pull's reply. Returns the event of the end.
    pub(crate) fn run(mut self, context: &mut Context<'_>) -> Option<TargetEvent> {
        let batch = self.payload.bytes();
        let done = context.worker.replay(&self.arrival, batch, self.from, REPLAY_ENTRIES);
        let (partition, ticket) = (self.partition, self.ticket);
        match done {
            Ok(done) => {
                self.added.records += done.records + done.dropped;
                self.added.bytes += done.bytes;
                if let Some(next) = done.next {
                    self.from = next;
                    context.node.work.put_back(Work::Replay(self));
                    return None;
                }
                let added = self.added;
                context.buffers.give(self.payload.buffer);
                Some(TargetEvent::Replayed { partition, ticket, added })
            }
            Err(error) => {
                let id = self.arrival.migration();
                context.node.replay_warnings.warn(context.now, id, &error);
                Some(TargetEvent::ReplayFailed { partition, ticket })
            }
        }
    }
}

/// Maximum number of records that one quantum replays: 64 KiB of 160-byte entries, about 40 us.
const REPLAY_ENTRIES: usize = 410;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "a cut commits records of an arriving range")]
    fn only_an_arriving_range_is_cut() {
        TargetDriver::Idle.cut(1);
    }
}
