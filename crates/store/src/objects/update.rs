//! Writes of one key: blind, or decided by the record that they replace.

use super::changes::{Changes, Scratch, What};
use super::view::{Found, View};
use super::worker::check_size;
use super::write::Writer;
use super::{Key, Need, Record, Stall, Worker};
use planted::Bug;
use types::{TableId, UnixMillis};

impl Worker {
    /// Gives a key a value, whatever it had.
    #[inline]
    pub fn put(
        &mut self,
        table: TableId,
        key: Key<'_>,
        value: &[u8],
        expiry: Option<UnixMillis>,
    ) -> Result<(), Stall> {
        check_size(key.bytes, value.len())?;
        let access = self.tablets.access(table, key.hash)?;
        let turn = self.participant.turn();
        let view = View::new(&self.store, table, &turn);
        access.make_leaf(&view, key.hash);
        let mut leaf = view.lock(key.hash)?;
        let old = view.find_locked(&leaf, key).old();
        let mut writer = Writer { store: &self.store, head: &mut self.head, view };
        writer.put(&mut leaf, (key, access), old, (value, expiry))
    }

    /// Lets `f` see the records and decide what becomes of them, all in one moment. If the result
    /// is a stall, nothing has changed, even if `f` has run. A key that is given twice is seen
    /// twice; the last of its changes counts.
    #[inline]
    pub fn update<T>(
        &mut self,
        table: TableId,
        keys: &[Key<'_>],
        need: Need,
        f: impl FnOnce(&[Option<Record<'_>>], &mut Changes<'_>) -> T,
    ) -> Result<T, Stall> {
        match keys {
            [key] => self.update_one(table, *key, need, |record, changes| f(&[record], changes)),
            _ => self.update_several(table, keys, need, f),
        }
    }

    /// As [`Worker::update`] for one key; allocates nothing.
    pub fn update_one<T>(
        &mut self,
        table: TableId,
        key: Key<'_>,
        need: Need,
        f: impl FnOnce(Option<Record<'_>>, &mut Changes<'_>) -> T,
    ) -> Result<T, Stall> {
        check_size(key.bytes, 0)?;
        let access = self.tablets.access(table, key.hash)?;
        let turn = self.participant.turn();
        let view = View::new(&self.store, table, &turn);
        access.make_leaf(&view, key.hash);
        let mut leaf = view.lock(key.hash)?;
        let found = view.find_locked(&leaf, key);
        if let (Need::Records, Found::Nothing, Some(arrival)) = (need, &found, access.arrival)
            && arrival.may_arrive(table, key.hash)
            && !planted::is(Bug::DecidedOnMissing)
        {
            return Err(Stall::missing(arrival, vec![key.hash]));
        }
        let mut changes = Changes::new(&mut self.scratch, 1);
        let result = f(found.record(self.store.clock()), &mut changes);
        let Scratch { values, list } = &self.scratch;
        let Some(change) = list.last() else { return Ok(result) };
        let mut writer = Writer { store: &self.store, head: &mut self.head, view };
        match &change.what {
            What::Put { value, expiry } => {
                let value = &values[value.clone()];
                check_size(key.bytes, value.len())?;
                writer.put(&mut leaf, (key, access), found.old(), (value, *expiry))?;
            }
            What::Delete => writer.remove(&mut leaf, (key, access), found.old())?,
        }
        Ok(result)
    }
}
