//! The driver of migration sources, and the pulls that this server answers as one.

use crate::Node;
use crate::context::Context;
use crate::driver::{Demands, MachineDriver, Payloads, Wait};
use crate::machines::Machines;
use crate::messages::{Route, Sending, To};
use crate::tablets::{carve, clock_of, renewed, serves, with_state};
use crate::work::Work;
use planted::Bug;
use protocols::migration::{FrozenState, MigrationSource, SourceEffect, SourceEvent};
use std::collections::VecDeque;
use store::log::{Among, Dependency, GracePeriod};
use store::{Stall, Store, TableSet, Tablet, TabletState};
use types::{HashRange, KeyHash, MigrationId, ServerId};
use wire::peer::{
    PRIORITY_BYTES_MAX, PULL_BYTES_MAX, PeerMessage, PriorityAnswer, PriorityPull, PriorityReply,
    Pull, PullReply, RecordCounts,
};

/// A pull that waits for a quantum.
struct PullToServe {
    route: Route,
    pull: Pull,
}

/// A priority pull that met a busy leaf, and is retried in the next turn.
struct PriorityToServe {
    route: Route,
    pull: PriorityPull,
}

/// Pulls that this reactor answers, as the source of migrations.
#[derive(Default)]
pub(crate) struct PullServer {
    pulls: VecDeque<PullToServe>,
    contended: Vec<(ServerId, PriorityToServe)>,
}

/// The state that this server keeps for the source of a migration.
pub(crate) enum SourceDriver {
    /// The range is served, or a flip is in flight.
    Idle,
    /// The range is served. Entries written before this attempt to freeze it must be acknowledged
    /// first.
    CatchingUp { attempt: u32, before: Dependency },
    /// The range is frozen.
    Frozen { attempt: u32, range: HashRange, wait: FreezeWait },
    /// The flip is accepted: `to` serves the range, and this server still holds records of it.
    Leaving { range: HashRange, to: ServerId },
}

/// The event that a freeze waits for.
pub(crate) enum FreezeWait {
    /// Every reactor begins a turn. After that no operation writes to the range.
    Turns(GracePeriod),
    /// All earlier writes are acknowledged: the target will show them to clients.
    Safety(Dependency),
}

impl Machines {
    /// Passes an event to a source, and applies its effects.
    pub(crate) fn step_source(
        &mut self,
        id: MigrationId,
        event: SourceEvent,
        context: &mut Context<'_>,
    ) {
        self.sources.begin(id, || (MigrationSource::new(id), SourceDriver::Idle));
        self.sources.step(id, event, context);
    }

    /// Returns the server that serves a hash after an accepted flip, until this server releases
    /// the range.
    pub(crate) fn left_to(&self, hash: KeyHash) -> Option<ServerId> {
        let mut leaving = self.sources.values().filter_map(|side| side.driver.leaving());
        leaving.rfind(|(range, _)| range.contains(hash)).map(|(_, to)| to)
    }

    /// Returns whether this server still holds its copy of a hash for this target; `None` if
    /// `from` is not the target of a known migration.
    fn keeps(&self, from: ServerId, migration: MigrationId, hash: KeyHash) -> Option<bool> {
        let machine = &self.sources.get(migration)?.machine;
        (machine.intent()?.target == from).then(|| machine.keeps(hash))
    }
}

impl MachineDriver for SourceDriver {
    type Machine = MigrationSource;

    fn apply(
        &mut self,
        machine: &MigrationSource,
        effect: SourceEffect,
        _payloads: &mut Payloads,
        context: &mut Context<'_>,
    ) -> Option<SourceEvent> {
        match effect {
            SourceEffect::CatchUp { attempt } => {
                let Some(before) = unacknowledged(context.node.store(), Among::Writes) else {
                    return Some(SourceEvent::CaughtUp { attempt });
                };
                self.enter(SourceDriver::CatchingUp { attempt, before });
            }
            SourceEffect::Freeze { range, epoch, attempt } => {
                self.enter(SourceDriver::Idle);
                if !serves(context.node.store().tablets().iter(), range, epoch) {
                    return Some(SourceEvent::FreezeRefused { attempt });
                }
                if freeze(range, context.node) {
                    let wait = FreezeWait::Turns(context.node.store().grace_period());
                    self.enter(SourceDriver::Frozen { attempt, range, wait });
                }
            }
            SourceEffect::Thaw { range } => {
                self.enter(SourceDriver::Idle);
                set_state(range, &TabletState::Serving, context.node);
            }
            SourceEffect::Send { to, message } => context.out.send(to, message),
            SourceEffect::Leave { range, to, .. } => {
                self.enter(SourceDriver::Leaving { range, to });
                set_state(range, &TabletState::Leaving, context.node);
            }
            SourceEffect::Forget { range } => {
                let (migration, cursor) = (machine.migration(), range.first());
                context.node.work.push(Work::Forget { migration, range, cursor });
            }
            SourceEffect::Release => {
                if let Some((range, _)) = self.leaving() {
                    *self = SourceDriver::Idle;
                    context.node.change_tablets(|tablets| carve(tablets, range, unless_leaving));
                }
            }
            SourceEffect::Tell(message) => context.out.control.push(message.into()),
        }
        None
    }

    /// Ends a freeze, or the wait before it, that need not wait any more.
    fn poll(&mut self, _: &MigrationSource, context: &mut Context<'_>) -> Vec<SourceEvent> {
        let store = context.node.store();
        let event = match self {
            SourceDriver::CatchingUp { attempt, before } => store
                .log()
                .is_acknowledged(before)
                .then_some(SourceEvent::CaughtUp { attempt: *attempt }),
            SourceDriver::Frozen { attempt, range, wait } => wait.is_over(store).then(|| {
                let at = Box::new(FrozenState {
                    version_floor: store.version(),
                    expiry_clock: clock_of(store.tablets().iter(), *range, store.clock()),
                    records: RecordCounts::of(&context.worker.counts(*range)),
                });
                SourceEvent::Frozen { attempt: *attempt, at }
            }),
            SourceDriver::Idle | SourceDriver::Leaving { .. } => None,
        };
        if event.is_some() {
            self.enter(SourceDriver::Idle);
        }
        event.into_iter().collect()
    }

    fn demands(&self, machine: &MigrationSource) -> Demands {
        let intent = machine.intent().filter(|_| !machine.is_over());
        Demands {
            wait: match self {
                SourceDriver::CatchingUp { .. } => Some(Wait::Backups),
                SourceDriver::Frozen { .. } => Some(Wait::Reactors),
                SourceDriver::Idle | SourceDriver::Leaving { .. } => None,
            },
            background_share: intent.map(|it| it.policy.background_share.clamp(1, 100)),
            ..Demands::default()
        }
    }

    fn is_idle(&self, machine: &MigrationSource) -> bool {
        machine.intent().is_none() || machine.is_over()
    }
}

impl SourceDriver {
    /// Returns the range that leaves, and its new owner.
    fn leaving(&self) -> Option<(HashRange, ServerId)> {
        match self {
            SourceDriver::Leaving { range, to } => Some((*range, *to)),
            SourceDriver::Idle | SourceDriver::CatchingUp { .. } | SourceDriver::Frozen { .. } => {
                None
            }
        }
    }

    fn enter(&mut self, next: SourceDriver) {
        assert!(self.leaving().is_none(), "a range that leaves is not frozen or served again");
        assert!(
            next.leaving().is_none() || matches!(self, SourceDriver::Idle),
            "a range leaves after its freeze has ended"
        );
        *self = next;
    }
}

/// Freezes a range. Returns `false`, so that the source retries, if the range is being flushed
/// or about to be. New incarnations for a flush make data under the old ones void once this owner
/// is gone, so the range must not leave under them.
fn freeze(range: HashRange, node: &Node) -> bool {
    let (map, me) = (node.map(), node.me());
    let mut is_free = false;
    node.change_tablets(|tablets| {
        let mut inside = tablets.iter().filter(|tablet| tablet.range.overlaps(range));
        is_free = inside.all(|tablet| {
            tablet.flushing == TableSet::NONE && renewed(tablet, &map, me).1.is_empty()
        });
        if is_free { with_state(tablets, range, &TabletState::Frozen) } else { tablets }
    });
    is_free
}

fn set_state(range: HashRange, state: &TabletState, node: &Node) {
    node.change_tablets(|tablets| with_state(tablets, range, state));
}

impl PullServer {
    /// Returns whether no pull waits for a quantum.
    pub(crate) fn is_idle(&self) -> bool {
        self.pulls.is_empty()
    }

    /// Returns whether a priority pull is to be retried in this turn.
    pub(crate) fn is_contended(&self) -> bool {
        !self.contended.is_empty()
    }

    /// Queues a pull if this server is the source of its migration.
    pub(crate) fn accept(&mut self, from: ServerId, route: Route, pull: Pull, node: &Node) {
        // A pull of deleted records is a late repetition, and gets no answer.
        let is_kept = node.machines().keeps(from, pull.migration, pull.cursor) == Some(true);
        // A target repeats its one pull per partition, so a pull may be dropped.
        if is_kept && self.pulls.len() < PULLS_TO_SERVE_MAX {
            self.pulls.push_back(PullToServe { route, pull });
        }
        assert!(self.pulls.len() <= PULLS_TO_SERVE_MAX, "the queue of pulls is bounded");
    }

    /// Serves one pull, a quantum of the source's work. Returns `false` if there is none.
    pub(crate) fn serve(&mut self, context: &mut Context<'_>) -> bool {
        let Some(PullToServe { route, pull }) = self.pulls.pop_front() else {
            return false;
        };
        let Pull { migration, epoch, partition, cursor, last, bytes_max } = pull;
        let Some(range) = HashRange::try_from((cursor, last)).ok() else { return true };
        let bytes_max = bytes_max.min(PULL_BYTES_MAX) as usize;
        // A bucket may exceed the requested size; some room avoids growing the buffer.
        let mut payload = context.buffers.take(bytes_max + (8 << 10));
        let next = context.worker.collect(range, cursor, bytes_max, &mut payload);
        let reply = PullReply { migration, epoch, partition, cursor, next };
        context.out.peers.push(Sending {
            to: To::Back(route),
            is_priority: false,
            message: PeerMessage::PullReply(reply),
            payload,
        });
        true
    }

    /// Answers a priority pull at once, completely or with as much as fits into a reply. The
    /// target asks again for the rest.
    pub(crate) fn serve_priority(
        &mut self,
        from: ServerId,
        route: Route,
        pull: PriorityPull,
        context: &mut Context<'_>,
    ) {
        let mut payload = Vec::new();
        let mut answers = Vec::with_capacity(pull.hashes.len());
        for &(table, hash) in &pull.hashes {
            if payload.len() >= PRIORITY_BYTES_MAX {
                break;
            }
            let kept = context.node.machines().keeps(from, pull.migration, hash);
            let answer = match kept {
                None => return,
                Some(false) => PriorityAnswer::Gone,
                Some(true) => match context.worker.collect_hash(table, hash, &mut payload) {
                    Ok(true) => PriorityAnswer::Records,
                    Ok(false) => PriorityAnswer::Absent,
                    Err(Stall::Contended) => {
                        if self.contended.len() < PRIORITY_TO_SERVE_MAX {
                            self.contended.push((from, PriorityToServe { route, pull }));
                        }
                        return;
                    }
                    Err(
                        Stall::NotOwned
                        | Stall::Held
                        | Stall::Missing(_)
                        | Stall::NotArrived { .. }
                        | Stall::OutOfMemory
                        | Stall::TooLarge,
                    ) => return,
                },
            };
            answers.push((table, hash, answer));
        }
        let PriorityPull { migration, epoch, request, .. } = pull;
        context.out.peers.push(Sending {
            to: To::Back(route),
            is_priority: true,
            message: PeerMessage::PriorityReply(PriorityReply {
                migration,
                epoch,
                request,
                answers,
            }),
            payload,
        });
    }

    /// Retries the priority pulls that met a busy leaf.
    pub(crate) fn serve_priority_again(&mut self, context: &mut Context<'_>) {
        for (from, PriorityToServe { route, pull }) in std::mem::take(&mut self.contended) {
            self.serve_priority(from, route, pull, context);
        }
    }
}

/// Concludes from a pull that its target has accepted the flip, even if the answer to the
/// flip was lost. So an answer to a pull proves to the target that the source knows.
pub(crate) fn learn_acceptance(from: ServerId, migration: MigrationId, context: &mut Context<'_>) {
    context.node.change_machines(|machines| {
        let side = machines.sources.get(migration);
        if side.is_some_and(|side| side.machine.expects_answer()) {
            let event = SourceEvent::FlipAnswered { from, accepted: true };
            machines.sources.step(migration, event, context);
        }
    });
}

/// Runs one step of deleting records that the target has.
pub(crate) fn forget(
    migration: MigrationId,
    range: HashRange,
    cursor: KeyHash,
    context: &mut Context<'_>,
) {
    let next = match planted::is(Bug::OldCopyKept) {
        true => None,
        false => context.worker.forget(range, cursor, FORGET_BUCKETS),
    };
    match next {
        Some(cursor) => context.node.work.push(Work::Forget { migration, range, cursor }),
        None => context.node.change_machines(|machines| {
            machines.step_source(migration, SourceEvent::Forgotten { range }, context);
        }),
    }
}

/// Reports the number of records and bytes in a range to the coordinator.
pub(crate) fn measure(migration: MigrationId, range: HashRange, context: &mut Context<'_>) {
    let counts = context.worker.counts(range);
    let records = counts.iter().map(|(_, _, records)| u64::from(*records)).sum();
    let bytes = context.worker.range_bytes(range);
    let measured = wire::control::MigrationUpdate::Measured { migration, records, bytes }.into();
    context.out.control.push(measured);
}

/// Maximum number of queued pulls: many times the outstanding pulls of several migrations.
const PULLS_TO_SERVE_MAX: usize = 4096;

/// Maximum number of priority pulls that meet a busy leaf in one turn; more are dropped.
const PRIORITY_TO_SERVE_MAX: usize = 256;

/// Maximum number of buckets that one quantum deletes. Each costs a cache miss or two: 40 us.
pub(crate) const FORGET_BUCKETS: usize = 32;

impl FreezeWait {
    fn is_over(&mut self, store: &Store) -> bool {
        if let FreezeWait::Turns(grace) = self {
            if !store.is_over(grace) {
                return false;
            }
            match unacknowledged(store, Among::Writes) {
                None => return true,
                Some(dependency) => *self = FreezeWait::Safety(dependency),
            }
        }
        match self {
            FreezeWait::Turns(_) => false,
            FreezeWait::Safety(dependency) => store.log().is_acknowledged(dependency),
        }
    }
}

/// Drops a leaving tablet. A tablet that has returned from a dead target stays.
fn unless_leaving(tablet: Tablet) -> Option<Tablet> {
    match tablet.state {
        TabletState::Leaving => None,
        TabletState::Serving
        | TabletState::Frozen
        | TabletState::Arriving(_)
        | TabletState::Recovering(_)
        | TabletState::Securing(_) => Some(tablet),
    }
}

/// Returns the unacknowledged entries; `None` if there are none, or the log is not persisted.
pub(crate) fn unacknowledged(store: &Store, among: Among) -> Option<Dependency> {
    store.log().is_durable().then(|| store.log().unacknowledged(among)).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "a range that leaves is not frozen or served again")]
    fn an_accepted_flip_is_not_taken_back() {
        let mut driver = SourceDriver::Idle;
        driver.enter(SourceDriver::Leaving { range: HashRange::ALL, to: ServerId(2) });
        driver.enter(SourceDriver::Idle);
    }
}
