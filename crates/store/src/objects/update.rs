//! Writes of one key: blind, or conditional on the present record.

use super::changes::{ChangeAction, Changes, Scratch, UpdatedKeys};
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
        let target = WriteTarget { table, key, access, need: Need::Nothing };
        writer.put(&mut leaf, target, old, value)
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
            _ => {
                let is_needed = |_| need == Need::Records;
                let keys = keys.iter().map(|&key| TableKey { table, key });
                self.update_batch(keys, is_needed, f, |_, _, _, _| false)
            }
        }
    }

    /// Returns the keys that the last update has changed.
    pub fn updated_keys(&self) -> UpdatedKeys<'_> {
        UpdatedKeys { versions: &self.scratch.versions, changes: &self.scratch.list }
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
        let target = WriteTarget { table, key, access, need };
        let found = look(&view, &leaf, target)?;
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
}

/// Finds the entry of a key in its locked leaf. Fails if the record is needed and may still
/// arrive.
#[inline]
fn look<'t>(
    view: &View<'t>,
    leaf: &LeafGuard<'_>,
    target: WriteTarget<'_, '_>,
) -> Result<Lookup<'t>, Stall> {
    let WriteTarget { table, key, access, need } = target;
    let found = view.find_locked(leaf, key);
    if let (Need::Records, Lookup::Nothing, Some(arrival)) = (need, &found, access.arrival)
        && arrival.may_arrive(table, key.hash)
        && !planted::is(Bug::DecidedOnMissing)
    {
        return Err(Stall::missing(arrival.migration(), table, vec![key.hash]));
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
