//! The driver of migration sources.

use crate::context::Context;
use crate::demands::{Demands, Wait};
use crate::driver::{MachineDriver, Payloads};
use crate::state::NodeState;
use crate::tablets::{carve, clock_of, renewed, serves, with_state};
use crate::work::Work;
use planted::Bug;
use protocols::migration::{FrozenState, MigrationSource, SourceEffect, SourceEvent};
use store::log::{Among, Dependency, GracePeriod};
use store::{Store, TableSet, Tablet, TabletState};
use types::{HashRange, KeyHash, MigrationId, ServerId};
use wire::peer::RecordCounts;

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
                    if planted::is(Bug::LeavingTabletKept) {
                        return None;
                    }
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
            latency_target: intent.and_then(|it| it.policy.latency_target()),
            ..Demands::default()
        }
    }

    fn is_idle(&self, machine: &MigrationSource) -> bool {
        machine.intent().is_none() || machine.is_over()
    }
}

impl SourceDriver {
    /// Returns the range that leaves, and its new owner.
    pub(crate) fn leaving(&self) -> Option<(HashRange, ServerId)> {
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
fn freeze(range: HashRange, node: &NodeState) -> bool {
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

fn set_state(range: HashRange, state: &TabletState, node: &NodeState) {
    node.change_tablets(|tablets| with_state(tablets, range, state));
}

/// Runs one step of deleting records that the target has. Returns the event of the end.
pub(crate) fn forget(
    migration: MigrationId,
    range: HashRange,
    cursor: KeyHash,
    context: &mut Context<'_>,
) -> Option<SourceEvent> {
    let next = match planted::is(Bug::OldCopyKept) {
        true => None,
        false => context.worker.forget(range, cursor, FORGET_BUCKETS),
    };
    let Some(cursor) = next else { return Some(SourceEvent::Forgotten { range }) };
    context.node.work.push(Work::Forget { migration, range, cursor });
    None
}

/// Reports the size of a range to the coordinator.
pub(crate) fn measure(migration: MigrationId, range: HashRange, context: &mut Context<'_>) {
    let counts = context.worker.counts(range);
    let records = counts.iter().map(|(_, _, records)| u64::from(*records)).sum();
    let bytes = context.worker.bytes_to_receive(range);
    let measured = wire::control::MigrationUpdate::Measured { migration, records, bytes }.into();
    context.out.control.push(measured);
}

/// Maximum number of buckets that one quantum deletes. Each costs a cache miss or two: 40 us.
pub(crate) const FORGET_BUCKETS: usize = 32;

impl FreezeWait {
    fn is_over(&mut self, store: &Store) -> bool {
        if let FreezeWait::Turns(grace) = self {
            if !store.is_over(grace) && !planted::is(Bug::FrozenWithoutGrace) {
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
