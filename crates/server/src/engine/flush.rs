//! FLUSHDB: empties tables on this server, in steps, as one moment for everybody who watches.
//!
//! 1. The coordinator has given new tenures: that is when the flush begins here, whoever asked for it
//!    and whether or not that one has heard. What is written until the table is empty keeps the old
//!    tenure, so that nothing of it counts after a crash. A range that is frozen may be served here
//!    again, one that is being recovered is going to be served here: the flush waits until it is
//!    known who owns it. A range that is being flushed is not frozen.
//! 2. The table's operations are held: tablets with the table in `flushing` are published.
//! 3. When every reactor has begun a turn, nobody is inside the table. From here on nothing that a
//!    migration still brings for it is taken. Its records are dropped, a bounded step at a time.
//! 4. Operations go on, under the new tenure, and the flush is answered.
//!
//! One flush goes on at a time. Whoever asked for it finds either that it is done, or does it.

use super::outgoing::Wake;
use super::tablets::renewed;
use super::{Engine, Node};
use planted::Bug;
use std::sync::Arc;
use store::{GracePeriod, TableSet, Tablet, TabletState};
use types::limits::TABLES_MAX;
use types::{KeyHash, TableId};
use wire::control::{Answer, ClusterMap};

/// A flush that is going on.
pub(super) struct Flush {
    /// Who asked for it, if that one waits.
    request: Option<u64>,
    /// It is about what this map says, or a later one.
    map: u64,
    /// `None`: nothing has begun.
    step: Option<Step>,
}

struct Step {
    /// Whose tenures are taken up.
    map: Arc<ClusterMap>,
    tables: TableSet,
    table: TableId,
    cursor: KeyHash,
    /// Over when nobody is inside the tables.
    grace: GracePeriod,
}

/// What became of an attempt to begin.
enum Begun {
    Held(Step),
    /// There is nothing to be flushed.
    Nothing,
    /// A range's owner is not certain, or another flush goes on.
    NotYet,
}

/// What sources still have of a table that is being flushed does not arrive any more.
fn refuse_what_arrives(node: &Node, table: TableId) {
    for tablet in node.store().tablets().iter().filter(|tablet| tablet.flushing.contains(table)) {
        match &tablet.state {
            TabletState::Arriving(arrival) => arrival.flush_table(table),
            TabletState::Serving
            | TabletState::Frozen
            | TabletState::Leaving
            | TabletState::Recovering(_)
            | TabletState::Securing(_) => {}
        }
    }
}

/// Buckets that one quantum empties.
const FLUSH_BUCKETS: usize = 64;

impl Engine {
    /// A map has come, which may give tables of ours other tenures.
    pub(super) fn flush_if_renewed(&mut self) {
        let (map, me) = (self.node.map(), self.node.me());
        let is_renewed = |tablet: &Tablet| match tablet.state {
            TabletState::Serving
            | TabletState::Arriving(_)
            | TabletState::Securing(_)
            | TabletState::Frozen => !renewed(tablet, &map, me).1.is_empty(),
            TabletState::Leaving | TabletState::Recovering(_) => false,
        };
        if self.node.store().tablets().iter().any(is_renewed) {
            self.begin_flush(None, 0);
        }
    }

    /// Tables may have to be flushed: a map has come, or the answer to this request.
    pub(super) fn begin_flush(&mut self, request: Option<u64>, map: u64) {
        self.flushes.push_back(Flush { request, map, step: None });
    }

    /// Holds the operations on tables that the newest map has given other tenures.
    fn hold_for_flush(&self, wanted: u64) -> Begun {
        let (node, map, me) = (&self.node, self.node.map(), self.node.me());
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
            TabletState::Frozen | TabletState::Leaving | TabletState::Recovering(_) => {
                TableSet::NONE
            }
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
            begun = Some(Begun::Held(Step { map: map.clone(), tables, table, cursor, grace }));
            Some(tablets.into_iter().map(held).collect())
        });
        match begun {
            // The period must begin when the tablets have been published.
            Some(Begun::Held(step)) => {
                Begun::Held(Step { grace: node.store().grace_period(), ..step })
            }
            Some(begun) => begun,
            None => Begun::NotYet,
        }
    }

    /// One step of the oldest flush. `false`: there is none, or nothing can be done.
    pub(super) fn flush_quantum(&mut self) -> bool {
        let Some(flush) = self.flushes.front_mut() else { return false };
        let wanted = flush.map;
        let Some(step) = &mut flush.step else { return self.try_flush(wanted) };
        if !self.node.store().is_over(&step.grace) {
            return true;
        }
        if step.cursor == KeyHash(0) && !planted::is(Bug::FlushedArrives) {
            refuse_what_arrives(&self.node, step.table);
        }
        match self.worker.flush_step(step.table, step.cursor, FLUSH_BUCKETS) {
            Some(cursor) => step.cursor = cursor,
            None => {
                step.cursor = KeyHash(0);
                let next = (step.table.0 + 1..TABLES_MAX as u8).map(TableId);
                match next.into_iter().find(|table| step.tables.contains(*table)) {
                    Some(table) => step.table = table,
                    None => self.end_flush(),
                }
            }
        }
        true
    }

    fn try_flush(&mut self, map: u64) -> bool {
        match self.hold_for_flush(map) {
            Begun::NotYet => false,
            Begun::Nothing => {
                self.answer_flush();
                true
            }
            Begun::Held(step) => {
                if let Some(flush) = self.flushes.front_mut() {
                    flush.step = Some(step);
                }
                true
            }
        }
    }

    /// The tables are empty: operations go on, under the new tenures.
    fn end_flush(&mut self) {
        let step = self.flushes.front_mut().and_then(|flush| flush.step.take());
        let Some(Step { map, .. }) = step else { return };
        let me = self.node.me();
        self.node.change_tablets(|tablets| {
            let over = |tablet: Tablet| {
                let (new, _) = renewed(&tablet, &map, me);
                let is_flushed = |table: usize| tablet.flushing.contains(TableId(table as u8));
                let tenures = std::array::from_fn(|table| {
                    if is_flushed(table) { new[table] } else { tablet.tenures[table] }
                });
                Tablet { flushing: TableSet::NONE, tenures, ..tablet }
            };
            tablets.into_iter().map(over).collect()
        });
        self.answer_flush();
    }

    fn answer_flush(&mut self) {
        let Some(Flush { request, .. }) = self.flushes.pop_front() else { return };
        let answer = |request| Wake::Answer(request, Answer::Flushed { map: 0 });
        self.out.wakes.extend(request.map(answer));
    }
}
