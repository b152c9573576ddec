//! FLUSHDB: empties tables on this server in steps that look atomic to clients.
//!
//! 1. The coordinator assigns new incarnations. The flush begins here when this server receives them,
//!    independently of the requester. Entries written until the table is empty keep the old
//!    incarnation, so that none of them is valid after a crash. A frozen range may be served here
//!    again, and a recovering range will be: the flush waits until their owner is certain. A
//!    range that is being flushed is not frozen.
//! 2. Tablets with the table in `flushing` are published. Operations on the table wait.
//! 3. When every reactor has begun a turn, no operation is inside the table. From here on,
//!    records that a migration brings for the table are refused. Its records are deleted in
//!    bounded steps.
//! 4. Operations resume under the new incarnation, and the flush is answered.
//!
//! One flush runs at a time. A request either finds the flush done, or performs it.

use crate::context::Context;
use crate::outgoing::{EngineOutput, Wake};
use crate::state::NodeState;
use crate::tablets::{arrival_of, assigned, renewed};
use planted::Bug;
use std::collections::VecDeque;
use std::sync::Arc;
use store::{GracePeriod, TableSet, Tablet, TabletState};
use types::limits::TABLES_MAX;
use types::{KeyHash, ServerId, TableId};
use wire::control::{Answer, ClusterMap};

/// A flush in progress, or queued.
struct TableFlush {
    /// Request to answer, if a client waits.
    request: Option<u64>,
    /// Minimum version of the map that has the new incarnations.
    map: u64,
    /// Position of the flush; `None` before it begins.
    step: Option<FlushStep>,
}

struct FlushStep {
    /// Map with the new incarnations.
    map: Arc<ClusterMap>,
    tables: TableSet,
    table: TableId,
    cursor: KeyHash,
    /// Grace period after which no operation is inside the tables.
    grace: GracePeriod,
}

/// Result of an attempt to begin.
enum Begun {
    Held(FlushStep),
    /// No table has new incarnations.
    Nothing,
    /// The owner of a range is not certain, or another flush is in progress.
    NotYet,
}

/// Refuses records that migrations still bring for a table that is being flushed.
fn refuse_what_arrives(node: &NodeState, table: TableId) {
    let tablets = node.store().tablets();
    let flushing = tablets.iter().filter(|tablet| tablet.flushing.contains(table));
    flushing.filter_map(arrival_of).for_each(|arrival| arrival.flush_table(table));
}

/// Maximum number of buckets that one quantum empties.
const FLUSH_BUCKETS: usize = 64;

/// Flushes of this reactor's requests and maps, in order.
#[derive(Default)]
pub(crate) struct Flushes {
    queue: VecDeque<TableFlush>,
}

impl Flushes {
    /// Begins a flush if the newest map has given tables of this server new incarnations.
    pub(crate) fn begin_if_renewed(&mut self, node: &NodeState) {
        let (map, me) = (node.map(), node.me());
        let is_renewed = |tablet: &Tablet| match tablet.state {
            TabletState::Serving
            | TabletState::Arriving(_)
            | TabletState::Securing(_)
            | TabletState::Frozen => !renewed(tablet, &map, me).1.is_empty(),
            TabletState::Leaving | TabletState::Recovering(_) => false,
        };
        if node.store().tablets().iter().any(is_renewed) {
            self.begin(None, 0);
        }
    }

    /// Queues a flush, after a new map or the answer to a request.
    pub(crate) fn begin(&mut self, request: Option<u64>, map: u64) {
        self.queue.push_back(TableFlush { request, map, step: None });
    }

    /// Runs one step of the oldest flush. Returns `false` if there is none, or it cannot proceed.
    pub(crate) fn step(&mut self, context: &mut Context<'_>) -> bool {
        let Some(flush) = self.queue.front_mut() else { return false };
        let wanted = flush.map;
        let Some(step) = &mut flush.step else { return self.try_begin(wanted, context) };
        assert!(step.tables.contains(step.table), "only renewed tables are emptied");
        if !context.node.store().is_over(&step.grace) {
            return true;
        }
        if step.cursor == KeyHash(0) && !planted::is(Bug::FlushedArrives) {
            refuse_what_arrives(context.node, step.table);
        }
        match context.worker.flush_step(step.table, step.cursor, FLUSH_BUCKETS) {
            Some(cursor) => {
                assert!(cursor >= step.cursor, "a flush does not go back");
                step.cursor = cursor;
            }
            None => {
                step.cursor = KeyHash(0);
                let next = (step.table.0 + 1..TABLES_MAX as u8).map(TableId);
                match next.into_iter().find(|table| step.tables.contains(*table)) {
                    Some(table) => step.table = table,
                    None => self.end(context),
                }
            }
        }
        true
    }

    fn try_begin(&mut self, map: u64, context: &mut Context<'_>) -> bool {
        match hold(map, context.node) {
            Begun::NotYet => false,
            Begun::Nothing => {
                self.answer(context.out);
                true
            }
            Begun::Held(step) => {
                if let Some(flush) = self.queue.front_mut() {
                    let before = flush.step.replace(step);
                    assert!(before.is_none(), "a flush begins once");
                }
                true
            }
        }
    }

    /// Ends a flush: the tables are empty, and operations resume under the new incarnations.
    fn end(&mut self, context: &mut Context<'_>) {
        let step = self.queue.front_mut().and_then(|flush| flush.step.take());
        let Some(FlushStep { map, tables, .. }) = step else { return };
        let me = context.node.me();
        context.node.change_tablets(|tablets| {
            let over = |tablet: Tablet| {
                assert_eq!(
                    tables.union(tablet.flushing),
                    tables,
                    "one flush runs at a time, and it has emptied these tables"
                );
                after_flush(tablet, &map, me)
            };
            tablets.into_iter().map(over).collect()
        });
        self.answer(context.out);
    }

    fn answer(&mut self, out: &mut EngineOutput) {
        let Some(TableFlush { request, step, .. }) = self.queue.pop_front() else { return };
        assert!(step.is_none(), "a flush in progress is not answered");
        let answer = |request| Wake::Answer(request, Answer::Flushed { map: 0 });
        out.wakes.extend(request.map(answer));
    }

    /// Returns whether there is no flush.
    pub(crate) fn is_idle(&self) -> bool {
        self.queue.is_empty()
    }
}

/// Returns a tablet after the flush that this map began. The death of the other side of a migration
/// during the flush may have changed the tablet:
/// - A part that has to be recovered was not emptied. It keeps its incarnations, because the recovery
///   removes the records of the tables in which they differ from the new ones.
/// - The other part may have got the epoch of that recovery. The map still names the earlier one.
fn after_flush(tablet: Tablet, map: &ClusterMap, me: ServerId) -> Tablet {
    let is_emptied = match tablet.state {
        TabletState::Serving | TabletState::Arriving(_) | TabletState::Securing(_) => true,
        TabletState::Frozen | TabletState::Leaving | TabletState::Recovering(_) => false,
    };
    let assigned = assigned(tablet.range, map, me).filter(|_| is_emptied);
    let is_flushed = |table: usize| {
        tablet.flushing.contains(TableId(table as u8)) && !planted::is(Bug::IncarnationNotRenewed)
    };
    let incarnations = std::array::from_fn(|table| match assigned {
        Some((_, new)) if is_flushed(table) => new[table],
        Some(_) | None => tablet.incarnations[table],
    });
    Tablet { flushing: TableSet::NONE, incarnations, ..tablet }
}

/// Makes operations wait on tables with new incarnations in the newest map.
fn hold(wanted: u64, node: &NodeState) -> Begun {
    let (map, me) = (node.map(), node.me());
    if map.version < wanted {
        return Begun::NotYet;
    }
    let is_uncertain = |tablet: &Tablet| match tablet.state {
        TabletState::Frozen | TabletState::Recovering(_) => true,
        TabletState::Serving | TabletState::Arriving(_) | TabletState::Securing(_) => {
            !tablet.flushing.is_empty()
        }
        TabletState::Leaving => false,
    };
    let renewed_tables = |tablet: &Tablet| match tablet.state {
        TabletState::Serving | TabletState::Arriving(_) | TabletState::Securing(_) => {
            renewed(tablet, &map, me).1
        }
        TabletState::Frozen | TabletState::Leaving | TabletState::Recovering(_) => TableSet::NONE,
    };
    let mut begun = None;
    node.change_tablets_if(|tablets| {
        if tablets.iter().any(is_uncertain) {
            begun = Some(Begun::NotYet);
            return None;
        }
        let tables = tablets.iter().map(renewed_tables).fold(TableSet::NONE, TableSet::union);
        begun = Some(Begun::Nothing);
        let table = (0..TABLES_MAX as u8).map(TableId).find(|table| tables.contains(*table))?;
        let held = |tablet: Tablet| Tablet { flushing: renewed_tables(&tablet), ..tablet };
        let (cursor, grace) = (KeyHash(0), node.store().grace_period());
        begun = Some(Begun::Held(FlushStep { map: map.clone(), tables, table, cursor, grace }));
        Some(tablets.into_iter().map(held).collect())
    });
    match begun {
        // The grace period must begin after the tablets are published.
        Some(Begun::Held(step)) => {
            Begun::Held(FlushStep { grace: node.store().grace_period(), ..step })
        }
        Some(begun) => begun,
        None => Begun::NotYet,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use store::{RangeClock, Recovery, RecoveryPlan, Store, StoreConfig};
    use types::{ClusterId, HashRange, HashSeed, Incarnation, OwnershipEpoch};
    use wire::control::TabletInfo;

    #[test]
    fn a_flush_renews_what_it_has_emptied_whatever_died_meanwhile() {
        let (me, range, epoch) = (ServerId(1), HashRange::ALL, OwnershipEpoch(3));
        let incarnations = |number| vec![Incarnation(number); TABLES_MAX];
        let is_born = false;
        let info = TabletInfo { range, owner: me, epoch, incarnations: incarnations(2), is_born };
        let (servers, moving) = (Vec::new(), Vec::new());
        let tablets = vec![info];
        let map = ClusterMap { version: 1, cluster: ClusterId(1), servers, tablets, moving };
        let flushed = TableId(0);
        let renewed_of = |epoch, state| {
            let tablet = Tablet {
                range,
                epoch,
                incarnations: [Incarnation(1); TABLES_MAX],
                state,
                clock: RangeClock::default(),
                flushing: TableSet::of(flushed),
            };
            let after = after_flush(tablet, &map, me);
            assert!(after.flushing.is_empty(), "operations resume after the flush");
            after.incarnations
        };
        for epoch in [epoch, OwnershipEpoch(4)] {
            let [first, second, ..] = renewed_of(epoch, TabletState::Serving);
            assert_eq!((first, second), (Incarnation(2), Incarnation(1)), "{epoch:?}");
        }
        let plan = RecoveryPlan { number: u64::MAX, range, old_incarnations: Vec::new() };
        let recovering = TabletState::Recovering(Arc::new(Recovery::new(plan)));
        assert_eq!(renewed_of(epoch, recovering), [Incarnation(1); TABLES_MAX]);
    }

    #[test]
    #[should_panic(expected = "a flush in progress is not answered")]
    fn a_flush_is_answered_when_its_tables_are_empty() {
        let config = StoreConfig {
            memory_bytes: 64 << 20,
            reactors: 1,
            seed: HashSeed::new(1),
            huge_pages: false,
            durable: false,
            segment_bytes: None,
        };
        let store = Store::new(config).expect("memory for a small store");
        let (servers, tablets, moving) = (Vec::new(), Vec::new(), Vec::new());
        let map = ClusterMap { version: 1, cluster: ClusterId(1), servers, tablets, moving };
        let (table, cursor, grace) = (TableId(0), KeyHash(0), store.grace_period());
        let tables = TableSet::of(table);
        let step = FlushStep { map: Arc::new(map), tables, table, cursor, grace };
        let mut flushes = Flushes::default();
        flushes.queue.push_back(TableFlush { request: None, map: 0, step: Some(step) });
        flushes.answer(&mut EngineOutput::default());
    }
}
