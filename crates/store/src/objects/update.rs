//! Writes of one key: blind, conditional on the present record, or conditional on a second record
//! in another table.

use super::changes::{ChangeAction, Changes, Scratch};
use super::expired::reclaim_touched;
use super::record::{Key, Need, Record, TableKey};
use super::stall::{Stall, check_size};
use super::view::{Lookup, Placed, View};
use super::worker::Worker;
use super::write::{WriteTarget, WriteValue, Writer};
use crate::index::LeafGuard;
use planted::Bug;
use types::{TableId, TypedValue, UnixMillis, Version};

impl Worker {
    /// Sets a key's value unconditionally, and returns the version of the new record.
    #[inline]
    pub fn put(
        &mut self,
        table: TableId,
        key: Key<'_>,
        value: &[u8],
        expiry: Option<UnixMillis>,
    ) -> Result<Version, Stall> {
        check_size(key.bytes, value.len())?;
        let access = self.tablets.access(table, key.hash)?;
        let turn = self.participant.turn();
        let view = View::for_client(&self.store, table, &turn, &self.dependency);
        access.make_leaf(&view, key.hash);
        let mut leaf = view.lock(key.hash)?;
        let old = view.find_locked(&leaf, key).old();
        let (head, tombstones) = (&mut self.head, &mut self.tombstones);
        let mut writer = Writer { store: &self.store, head, tombstones, view };
        let value = WriteValue { value: TypedValue::string(value), expiry };
        writer.put(&mut leaf, WriteTarget { key, access }, old, value)
    }

    /// Passes the records to `f`, which decides how they change, as one atomic step. If the
    /// result is a stall, nothing has changed, even if `f` has run. A key that is given twice is
    /// passed twice; the last of its changes wins.
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

    /// Returns the version that the last update has given to the key at this position; `None` if it
    /// has not written the key, or has removed it.
    pub fn written_version(&self, key: usize) -> Option<Version> {
        self.scratch.versions.iter().find(|(written, _)| *written == key).map(|(_, it)| *it)
    }

    /// Does the same as [`Worker::update`] for one key, without allocating.
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
        let view = View::for_client(&self.store, table, &turn, &self.dependency);
        access.make_leaf(&view, key.hash);
        let mut leaf = view.lock(key.hash)?;
        let target = WriteTarget { key, access };
        let found = look(&view, &leaf, target, need)?;
        let record = found.record(access.clock(&self.store));
        let has_expired = record.is_none() && found.may_expire();
        let mut changes = Changes::new(&mut self.scratch, 1);
        let result = f(record, &mut changes);
        let (head, tombstones) = (&mut self.head, &mut self.tombstones);
        let writer = Writer { store: &self.store, head, tombstones, view };
        let version = carry_out(&self.scratch, writer, &mut leaf, target, found.old())?;
        self.scratch.record_version(0, version);
        if has_expired && self.scratch.list.is_empty() {
            drop(leaf);
            let view = View::new(&self.store, table, &turn);
            let (head, tombstones) = (&mut self.head, &mut self.tombstones);
            reclaim_touched(Writer { store: &self.store, head, tombstones, view }, key, access);
        }
        Ok(result)
    }

    /// Does the same as [`Worker::update_one`] with all records needed, together with a record of
    /// another table, `beside`. `f` receives that record first.
    ///
    /// # Panics
    /// If both tables are the same.
    pub fn update_beside<T>(
        &mut self,
        beside: TableKey<'_>,
        changed: TableKey<'_>,
        f: impl FnOnce([Option<Record<'_>>; 2], &mut Changes<'_>) -> T,
    ) -> Result<T, Stall> {
        let TableKey { table: other_table, key: other_key } = beside;
        let TableKey { table, key } = changed;
        assert_ne!(other_table, table, "one leaf would be locked twice");
        check_size(key.bytes, 0)?;
        let access = self.tablets.access(table, key.hash)?;
        let other_access = self.tablets.access(other_table, other_key.hash)?;
        let turn = self.participant.turn();
        let view = View::for_client(&self.store, table, &turn, &self.dependency);
        let other_view = View::for_client(&self.store, other_table, &turn, &self.dependency);
        access.make_leaf(&view, key.hash);
        other_access.make_leaf(&other_view, other_key.hash);
        // Locked by ascending table, so that two such updates cannot deadlock.
        let (mut leaf, other_leaf);
        if table < other_table {
            leaf = view.lock(key.hash)?;
            other_leaf = other_view.lock(other_key.hash)?;
        } else {
            other_leaf = other_view.lock(other_key.hash)?;
            leaf = view.lock(key.hash)?;
        }
        let other = WriteTarget { key: other_key, access: other_access };
        let target = WriteTarget { key, access };
        let seen = look(&other_view, &other_leaf, other, Need::Records)?;
        let found = look(&view, &leaf, target, Need::Records)?;
        let records =
            [seen.record(other_access.clock(&self.store)), found.record(access.clock(&self.store))];
        let mut changes = Changes::new(&mut self.scratch, 1);
        let result = f(records, &mut changes);
        let (head, tombstones) = (&mut self.head, &mut self.tombstones);
        let writer = Writer { store: &self.store, head, tombstones, view };
        let version = carry_out(&self.scratch, writer, &mut leaf, target, found.old())?;
        self.scratch.record_version(0, version);
        Ok(result)
    }
}

/// Finds the entry of a key in its locked leaf. Fails if the record is needed and may still
/// arrive.
#[inline]
pub(super) fn look<'t>(
    view: &View<'t>,
    leaf: &LeafGuard<'_>,
    target: WriteTarget<'_, '_>,
    need: Need,
) -> Result<Lookup<'t>, Stall> {
    let WriteTarget { key, access } = target;
    let found = view.find_locked(leaf, key);
    if let (Need::Records, Lookup::Nothing, Some(arrival)) = (need, &found, access.arrival)
        && arrival.may_arrive(view.table, key.hash)
        && !planted::is(Bug::DecidedOnMissing)
    {
        return Err(Stall::missing(arrival.migration(), view.table, vec![key.hash]));
    }
    view.note_found(&found);
    Ok(found)
}

/// Applies the last change of one key, if there is any. Returns the version of the new record, if
/// the change leaves one.
#[inline]
fn carry_out(
    scratch: &Scratch,
    mut writer: Writer<'_, '_>,
    leaf: &mut LeafGuard<'_>,
    target: WriteTarget<'_, '_>,
    old: Option<Placed>,
) -> Result<Option<Version>, Stall> {
    let Some(change) = scratch.list.last() else { return Ok(None) };
    match &change.what {
        ChangeAction::Put(new) => {
            let value = scratch.value(new);
            check_size(target.key.bytes, value.stored_bytes())?;
            writer.put(leaf, target, old, WriteValue { value, expiry: new.expiry }).map(Some)
        }
        ChangeAction::Delete => writer.remove(leaf, target, old).map(|()| None),
    }
}
