//! Recovery partitions of a migration that has lost one side. The surviving side recovers the
//! moving range, and combines it with the records it holds.
//!
//! The source takes back the records that the target did not have. Its frozen copy remains valid,
//! together with the target's writes. The target reads the records that had not arrived from the
//! source's log, and continues to serve those that had. Until a partition is complete, no
//! operation on it is answered, because any of its records may be outdated.

use super::effects::refused;
use super::{RecoveryDriver, Voided};
use crate::context::Context;
use crate::machines::Machines;
use crate::state::NodeState;
use crate::tablets::{arrival_of, carve, incarnations};
use protocols::migration::{SourceEvent, TargetEvent};
use protocols::recovery::{PartRefusal, PartitionName};
use std::sync::Arc;
use store::{RangeClock, Recovery, RecoveryPlan, Tablet, TabletState, Worker};
use types::limits::TABLES_MAX;
use types::{HashRange, KeyHash, TableId};

/// Maximum number of buckets that one step empties.
const VOID_BUCKETS: usize = 64;

impl Voided {
    pub(super) fn new(parts: Vec<(HashRange, TableId)>) -> Voided {
        Voided { parts, from: KeyHash(0) }
    }

    /// Deletes some of the void records. Returns whether none is left.
    pub(super) fn drop_some(&mut self, worker: &mut Worker) -> bool {
        let Some(&(range, table)) = self.parts.last() else { return true };
        let rest = HashRange::new(self.from.max(range.first()), range.last());
        match worker.drop_records(table, rest, VOID_BUCKETS) {
            Some(cursor) if cursor <= range.last() => self.from = cursor,
            Some(_) | None => {
                self.from = KeyHash(0);
                self.parts.pop();
            }
        }
        self.parts.is_empty()
    }
}

impl Machines {
    /// Ends migrations of this range after the death of their other side. The moving records are
    /// not served until they are recovered.
    pub(super) fn end_migrations_of(&mut self, range: HashRange, context: &mut Context<'_>) {
        let sources = self.sources.ids(|side| {
            let intent = side.machine.intent();
            !side.machine.is_over() && intent.is_some_and(|intent| intent.range.overlaps(range))
        });
        for id in sources {
            self.sources.step(id, SourceEvent::Returned { range }, context);
        }
        let targets = self.targets.iter().filter_map(|(id, side)| {
            let arrival = side.driver.arrival()?;
            arrival.range().overlaps(range).then(|| (id, arrival.missing()))
        });
        for (id, missing) in targets.collect::<Vec<_>>() {
            for range in missing {
                suspend(range, context.node);
            }
            self.targets.step(id, TargetEvent::SourceDied, context);
        }
        context.node.change_tablets(|tablets| carve(tablets, range, without_source));
    }
}

impl RecoveryDriver {
    /// Begins a partition in a range that this server already holds in part.
    pub(super) fn begin_with_what_is_here(
        &mut self,
        name: PartitionName,
        node: &NodeState,
    ) -> Result<(), PartRefusal> {
        let PartitionName { range, epoch, .. } = name;
        let mut unknown = vec![range];
        for tablet in node.store().tablets().iter() {
            let is_ours = match tablet.state {
                TabletState::Recovering(_) | TabletState::Serving | TabletState::Securing(_) => {
                    true
                }
                TabletState::Frozen | TabletState::Leaving | TabletState::Arriving(_) => false,
            };
            if is_ours {
                let rest = unknown.into_iter().flat_map(|it| it.without(tablet.range));
                unknown = rest.flatten().collect();
            }
        }
        if !unknown.is_empty() {
            return Err(refused("the server does not hold the range that was moving"));
        }
        let recovery = self.new_recovery(name);
        let (mut taken, own) = (Taken::default(), node.store().clock());
        node.change_tablets(|tablets| {
            carve(tablets, range, |tablet| {
                let at = tablet.clock.read(own).max(self.clock_floor);
                let begun = Tablet {
                    state: TabletState::Recovering(recovery.clone()),
                    epoch,
                    incarnations: incarnations(&self.incarnations),
                    clock: RangeClock::going_on_from(at, own),
                    ..tablet
                };
                Some(taken.over(tablet, begun))
            })
        });
        self.published(recovery, Voided::new(taken.voided), taken.earlier, node);
        Ok(())
    }
}

/// Records and attempts that a partition takes over from the tablets in its range.
#[derive(Default)]
struct Taken {
    /// Records of these ranges and tables are void.
    voided: Vec<(HashRange, TableId)>,
    /// Attempts that the partition replaces.
    earlier: Vec<Arc<Recovery>>,
}

impl Taken {
    /// Returns `begun`, the tablet of the partition, in place of a tablet that waits for it, and
    /// notes the records that are void in it. A served tablet only gets the epoch: its records, and
    /// the clients' operations on them, remain valid.
    fn over(&mut self, tablet: Tablet, begun: Tablet) -> Tablet {
        assert_eq!(tablet.range, begun.range, "a tablet is taken over in its range");
        match tablet.state {
            TabletState::Recovering(earlier) => {
                let is_void =
                    |table: &usize| tablet.incarnations[*table] != begun.incarnations[*table];
                let tables = (0..TABLES_MAX).filter(is_void).map(|table| TableId(table as u8));
                self.voided.extend(tables.map(|table| (begun.range, table)));
                self.earlier.push(earlier);
                begun
            }
            TabletState::Serving | TabletState::Securing(_) => {
                Tablet { epoch: begun.epoch, ..tablet }
            }
            TabletState::Frozen | TabletState::Leaving | TabletState::Arriving(_) => tablet,
        }
    }
}

/// Makes operations on an arriving range wait.
fn suspend(range: HashRange, node: &NodeState) {
    node.change_tablets(|tablets| {
        carve(tablets, range, |tablet| {
            let arrives = arrival_of(&tablet).is_some();
            Some(if arrives { suspended(tablet) } else { tablet })
        })
    });
}

/// Makes a tablet wait for a partition that is about to begin. The tablet keeps its epoch, under
/// which it may already belong to this server. Its recovery number equals no epoch, so no map
/// marks it as recovered.
fn suspended(tablet: Tablet) -> Tablet {
    let plan = RecoveryPlan { number: u64::MAX, range: tablet.range, old_incarnations: Vec::new() };
    Tablet { state: TabletState::Recovering(Arc::new(Recovery::new(plan))), ..tablet }
}

/// Suspends a tablet that the source takes back from a dead target.
fn without_source(tablet: Tablet) -> Option<Tablet> {
    match tablet.state {
        TabletState::Leaving | TabletState::Frozen => Some(suspended(tablet)),
        TabletState::Serving
        | TabletState::Arriving(_)
        | TabletState::Recovering(_)
        | TabletState::Securing(_) => Some(tablet),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use store::TableSet;
    use types::{Incarnation, OwnershipEpoch};

    #[test]
    fn records_of_a_served_tablet_are_not_void() {
        let middle = KeyHash(1 << 60);
        let low = HashRange::new(KeyHash(0), middle);
        let [_, high] = HashRange::ALL.without(low);
        let high = high.expect("a range above the middle");
        let recovering = |range, number| {
            let plan = RecoveryPlan { number, range, old_incarnations: Vec::new() };
            TabletState::Recovering(Arc::new(Recovery::new(plan)))
        };
        let tablet = |range, epoch, incarnation, state| Tablet {
            range,
            epoch: OwnershipEpoch(epoch),
            incarnations: std::array::from_fn(|table| Incarnation(incarnation + table as u64)),
            state,
            clock: RangeClock::OWN,
            flushing: TableSet::NONE,
        };
        let mut taken = Taken::default();
        let mut begun = tablet(low, 9, 1, recovering(HashRange::ALL, 9));
        begun.incarnations[3] = Incarnation(100);
        let served = taken.over(tablet(low, 7, 1, TabletState::Serving), begun.clone());
        assert!(matches!(served.state, TabletState::Serving));
        assert_eq!((served.epoch, served.incarnations[3]), (OwnershipEpoch(9), Incarnation(4)));
        assert!(taken.voided.is_empty(), "{:?}", taken.voided);
        let waits = tablet(high, 7, 1, recovering(high, u64::MAX));
        let after = taken.over(waits, Tablet { range: high, ..begun });
        assert!(matches!(after.state, TabletState::Recovering(it) if it.number() == 9));
        assert_eq!(after.incarnations[3], Incarnation(100));
        assert_eq!(taken.voided, [(high, TableId(3))]);
        assert_eq!(taken.earlier.len(), 1);
    }
}
