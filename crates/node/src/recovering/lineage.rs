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
    pub(super) fn nothing() -> Voided {
        Voided { tables: Vec::new(), from: KeyHash(0) }
    }

    /// Deletes some of the void records. Returns whether none is left.
    pub(super) fn drop_some(&mut self, worker: &mut Worker, range: HashRange) -> bool {
        let Some(table) = self.tables.last().copied() else { return true };
        let first = self.from.max(range.first());
        let rest = HashRange::new(first, range.last());
        match worker.drop_records(table, rest, VOID_BUCKETS) {
            Some(cursor) if cursor <= range.last() => self.from = cursor,
            Some(_) | None => {
                self.from = KeyHash(0);
                self.tables.pop();
            }
        }
        self.tables.is_empty()
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
        let new = incarnations(&self.incarnations);
        let (mut voided, mut earlier) = (Vec::new(), Vec::new());
        let own = node.store().clock();
        node.change_tablets(|tablets| {
            carve(tablets, range, |tablet| match &tablet.state {
                TabletState::Recovering(it) => {
                    earlier.push(it.clone());
                    let is_void = |table: &usize| tablet.incarnations[*table] != new[*table];
                    voided.extend((0..TABLES_MAX).filter(is_void));
                    let state = TabletState::Recovering(recovery.clone());
                    let at = tablet.clock.read(own).max(self.clock_floor);
                    let clock = RangeClock::going_on_from(at, own);
                    Some(Tablet { state, epoch, incarnations: new, clock, ..tablet })
                }
                TabletState::Serving | TabletState::Securing(_) => Some(Tablet { epoch, ..tablet }),
                TabletState::Frozen | TabletState::Leaving | TabletState::Arriving(_) => {
                    Some(tablet)
                }
            })
        });
        voided.sort_unstable();
        voided.dedup();
        let tables = voided.into_iter().map(|table| TableId(table as u8)).collect();
        self.published(recovery, Voided { tables, from: KeyHash(0) }, earlier, node);
        Ok(())
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
