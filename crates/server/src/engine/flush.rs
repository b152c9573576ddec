//! FLUSHDB: empties tables on this server, in steps, as one moment for everybody who watches.
//!
//! 1. The coordinator has given new tenures (that is when the flush begins here).
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
    grace: GracePeriod,
}

/// What sources still have of a table that is being flushed does not arrive any more.
fn refuse_what_arrives(node: &Node, table: TableId) {
    for tablet in node.store().tablets().iter().filter(|tablet| tablet.flushing.contains(table)) {
        match &tablet.state {
            TabletState::Arriving(arrival) => arrival.flush_table(table),
            TabletState::Serving | TabletState::Frozen | TabletState::Leaving => {}
        }
    }
}

/// Buckets that one quantum empties.
const FLUSH_BUCKETS: usize = 64;

impl Engine {
    pub(super) fn begin_flush(&mut self, request: u64, table: Option<TableId>) {
        let tables = table.map_or(TableSet::ALL, TableSet::of);
        self.node.change_tablets(|tablets| {
            let flushing = |tablet: Tablet| match &tablet.state {
                TabletState::Serving | TabletState::Arriving(_) => {
                    Tablet { flushing: tablet.flushing.union(tables), ..tablet }
                }
                TabletState::Frozen | TabletState::Leaving => tablet,
            };
            tablets.into_iter().map(flushing).collect()
        });
        let grace = self.node.store().grace_period();
        let table = table.unwrap_or(TableId(0));
        self.flushes.push_back(Flush { request, tables, table, cursor: KeyHash(0), grace });
    }

    /// One step of the oldest flush. `false`: there is none.
    pub(super) fn flush_quantum(&mut self) -> bool {
        let Some(flush) = self.flushes.front_mut() else { return false };
        if !self.node.store().is_over(&flush.grace) {
            return true;
        }
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
