//! Begin and end of the copies that a transaction works on, and their comparison with the store.

use super::backend::Backend;
use super::staged::TransactionRecords;
use crate::commands::NotExecuted;
use store::{Key, Record};
use types::{TableId, UnixMillis};

impl TransactionRecords {
    /// Reads the records of these distinct keys of a table, and copies them if `is_expected` accepts
    /// them.
    pub(crate) fn read(
        backend: &mut Backend,
        table: TableId,
        clock: UnixMillis,
        keys: &[Key<'_>],
        is_expected: impl FnOnce(&[Option<Record<'_>>]) -> bool,
    ) -> Result<Option<Box<TransactionRecords>>, NotExecuted> {
        let spare = backend.spare_copies.take();
        backend.peek(table, keys, |records| {
            is_expected(records)
                .then(|| TransactionRecords::begin(spare, table, clock, keys, records))
        })
    }

    /// Returns whether all copies are of one moment, so that an error of a command on them is one.
    pub(crate) fn are_of_one_moment(&self, backend: &mut Backend) -> Result<bool, NotExecuted> {
        let is_current = |records: &[Option<Record<'_>>]| self.is_current(records);
        Ok(!self.has_later_copies() || backend.read_tables(&self.keys(), is_current)?)
    }

    /// Ends a transaction. Retains its buffers for the next one.
    pub(crate) fn end(mut self: Box<TransactionRecords>, backend: &mut Backend) {
        self.reset();
        backend.spare_copies = Some(self);
    }
}
