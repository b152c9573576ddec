//! FLUSHDB: empties tables on this server, in steps, as one moment for everybody who watches.
//!
//! 1. The coordinator has given new tenures (that is when the flush begins here). A range that is
//!    frozen may be served here again, one that is being recovered is going to be served here: the
//!    flush waits until it is known who owns it. A range that is being flushed is not frozen.
//! 2. The table's operations are held: tablets with the table in `flushing` are published.
//! 3. When every reactor has begun a turn, nobody is inside the table. From here on nothing that a
//!    migration still brings for it is taken. Its records are dropped, a bounded step at a time.
//! 4. Operations go on, and the flush is answered.

use super::outgoing::Wake;
use super::{Engine, Node};
use planted::Bug;
use store::{GracePeriod, TableSet, Tablet, TabletState};
use types::limits::TABLES_MAX;
use types::{KeyHash, TableId};
use wire::control::Answer;

/// A flush that is going on.
pub(super) struct Flush {
    request: u64,
    tables: TableSet,
    table: TableId,
    cursor: KeyHash,
    /// Over when nobody is inside the tables. `None`: a range is frozen, nothing has begun.
    grace: Option<GracePeriod>,
}

/// What sources still have of a table that is being flushed does not arrive any more.
fn refuse_what_arrives(node: &Node, table: TableId) {
    for tablet in node.store().tablets().iter().filter(|tablet| tablet.flushing.contains(table)) {
        match &tablet.state {
            TabletState::Arriving(arrival) => arrival.flush_table(table),
            TabletState::Serving
            | TabletState::Frozen
            | TabletState::Leaving
            | TabletState::Recovering(_) => {}
        }
    }
}

/// Buckets that one quantum empties.
const FLUSH_BUCKETS: usize = 64;

impl Engine {
    pub(super) fn begin_flush(&mut self, request: u64, table: Option<TableId>) {
        let tables = table.map_or(TableSet::ALL, TableSet::of);
        let table = table.unwrap_or(TableId(0));
        self.flushes.push_back(Flush { request, tables, table, cursor: KeyHash(0), grace: None });
    }

    /// Holds the operations on the oldest flush's tables. `false`: a range is frozen.
    fn hold_for_flush(&mut self) -> bool {
        let Some(flush) = self.flushes.front_mut() else { return false };
        let tables = flush.tables;
        let is_frozen = |tablet: &Tablet| match tablet.state {
            TabletState::Frozen | TabletState::Recovering(_) => true,
            TabletState::Serving | TabletState::Arriving(_) | TabletState::Leaving => false,
        };
        if self.node.store().tablets().iter().any(is_frozen) {
            return false;
        }
        let mut is_held = false;
        self.node.change_tablets(|mut tablets_now| {
            is_held = !tablets_now.iter().any(is_frozen);
            for tablet in tablets_now.iter_mut().filter(|_| is_held) {
                match tablet.state {
                    TabletState::Serving | TabletState::Arriving(_) => {
                        tablet.flushing = tablet.flushing.union(tables);
                    }
                    TabletState::Frozen | TabletState::Leaving | TabletState::Recovering(_) => {}
                }
            }
            tablets_now
        });
        flush.grace = is_held.then(|| self.node.store().grace_period());
        is_held
    }

    /// One step of the oldest flush. `false`: there is none.
    pub(super) fn flush_quantum(&mut self) -> bool {
        match self.flushes.front().map(|flush| flush.grace.as_ref()) {
            None => return false,
            Some(None) => return self.hold_for_flush(),
            Some(Some(grace)) if !self.node.store().is_over(grace) => return true,
            Some(Some(_)) => {}
        }
        let Some(flush) = self.flushes.front_mut() else { return false };
        if flush.cursor == KeyHash(0) && !planted::is(Bug::FlushedArrives) {
            refuse_what_arrives(&self.node, flush.table);
        }
        match self.worker.flush_step(flush.table, flush.cursor, FLUSH_BUCKETS) {
            Some(cursor) => flush.cursor = cursor,
            None => {
                flush.cursor = KeyHash(0);
                let next = (flush.table.0 + 1..TABLES_MAX as u8).map(TableId);
                match next.into_iter().find(|table| flush.tables.contains(*table)) {
                    Some(table) => flush.table = table,
                    None => self.end_flush(),
                }
            }
        }
        true
    }

    fn end_flush(&mut self) {
        let Some(Flush { request, tables, .. }) = self.flushes.pop_front() else { return };
        self.node.change_tablets(|tablets| {
            let over =
                |tablet: Tablet| Tablet { flushing: tablet.flushing.without(tables), ..tablet };
            tablets.into_iter().map(over).collect()
        });
        self.out.wakes.push(Wake::Answer(request, Answer::Flushed));
    }
}
